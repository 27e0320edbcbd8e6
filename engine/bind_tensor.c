/* A found name becomes tensors: one path for dense ones, one for experts. K3 has 494,592 expert tensors: their names are written into
 * one buffer on the stack, shape and form of the first expert stand for all until one differs, and its spans lie in one array. */
#include "engine/bind_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SPAN_CHUNK 64

/* ---- dense tensors ---------------------------------------------------------------------------------------- */
/* Dims that the scales of a form must have, and whether there are such scales at all. */
static bool scale_dims(const struct eng_binder *b, const struct eng_form *f, uint64_t *want, unsigned *n)
{
    const struct off_tensor *t = f->data;
    uint64_t logical[OFF_DIMS_MAX];

    *n = eng_form_dims(f, logical);
    memcpy(want, logical, sizeof logical);
    if (*n < 2 || !f->scale || f->scale->n_dims < 1)
        return f->kind == ENG_FORM_FP8_ROW && f->scale && *n >= 1; /* a scalar */
    uint64_t *o = &want[*n - 2], *i = &want[*n - 1], last = f->scale->dims[f->scale->n_dims - 1];
    switch (f->kind) {
    case ENG_FORM_FP8_BLOCK:
        *o = (*o + b->scale_block[0] - 1) / b->scale_block[0];
        *i = (*i + b->scale_block[1] - 1) / b->scale_block[1];
        return true;
    case ENG_FORM_FP8_ROW: *i = 1; return true;
    case ENG_FORM_INT4: /* any group size that divides */
        if (!last || *i % last)
            return false;
        *i = last;
        return true;
    default: *i = (t->dims[t->n_dims - 1] * 2 + 31) / 32; return f->kind == ENG_FORM_MXFP4 ? *i * 32 == logical[*n - 1] : (*i = logical[*n - 1] / 32) > 0;
    }
}

/* The companions of a packed form; 0 with *ok false when a problem was noted. */
static int check_form(struct eng_binder *b, const struct eng_entry *x, const struct eng_form *f, struct err *e)
{
    uint64_t want[OFF_DIMS_MAX];
    unsigned n;
    char at[80], expected[160], found[160];
    static const enum krn_type packed[ENG_FORM_COUNT] = {KRN_TYPE_COUNT, KRN_F8_E4M3, KRN_F8_E4M3, KRN_I32, KRN_U8, KRN_U8};

    if (f->refused)
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f->refused->name, NULL, NULL, e, "tensor %s in %s (%s): this companion of a packed weight is not supported",
                              f->refused->name, eng_bind_file(b, f->refused), eng_bind_where(b, x, at));
    if (f->kind == ENG_FORM_PLAIN) {
        if (f->data->type <= KRN_F64 || f->data->type >= KRN_Q4_0)
            return ERR_OK;
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f->data->name, "a float or block type", krn_types[f->data->type].name, e,
                              "tensor %s in %s (%s): expected a float or block type, found %s", f->data->name, eng_bind_file(b, f->data), eng_bind_where(b, x, at), krn_types[f->data->type].name);
    }
    if (f->data->type != packed[f->kind])
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f->data->name, krn_types[packed[f->kind]].name, krn_types[f->data->type].name, e,
                              "tensor %s in %s (%s): expected %s for %s, found %s", f->data->name, eng_bind_file(b, f->data), eng_bind_where(b, x, at),
                              krn_types[packed[f->kind]].name, eng_form_name(f->kind), krn_types[f->data->type].name);
    if (!f->scale)
        return eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, f->data->name, "scales beside it", "none", e, "tensor %s in %s (%s): packed as %s, and its scales are not in the files",
                              f->data->name, eng_bind_file(b, f->data), eng_bind_where(b, x, at), eng_form_name(f->kind));
    bool one = f->kind == ENG_FORM_FP8_ROW && eng_bind_same(f->scale->dims, f->scale->n_dims, NULL, 0);
    if (one || (scale_dims(b, f, want, &n) && eng_bind_same(f->scale->dims, f->scale->n_dims, want, n)))
        return ERR_OK;
    eng_bind_dims(want, n, expected, sizeof expected);
    eng_bind_dims(f->scale->dims, f->scale->n_dims, found, sizeof found);
    return eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_FORMAT, f->scale->name, expected, found, e, "tensor %s in %s (scales of %s): expected %s for %s, found %s", f->scale->name,
                          eng_bind_file(b, f->scale), eng_bind_where(b, x, at), expected, eng_form_name(f->kind), found);
}

static int whole_spans(struct eng_binder *b, const struct off_tensor *t, struct eng_tensor *r, struct err *e)
{
    struct eng_axes a;
    uint64_t rows, cols;
    int rc = eng_view_axes(b->env, NULL, t->dims, t->n_dims, &a, e);

    return rc ? rc : eng_axes_spans(&a, t, b->mem, &r->spans, &r->n_spans, &rows, &cols, &r->transposed, e);
}

/* The scales of a packed tensor are bound whole, whatever rows a view takes: a row finds its scale by its number in the file. */
static int add_scales(struct eng_binder *b, const struct eng_entry *x, const struct eng_form *f, uint32_t first, uint32_t n, int64_t expert, struct err *e)
{
    struct eng_tensor *r;
    int rc = eng_bind_reserve(b, 1, e);

    if (rc)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        b->tensors[first + i].scales = b->n;
        b->tensors[first + i].form = eng_form_name(f->kind);
    }
    r = eng_bind_add(b, x, f->scale, f->scale->dims, f->scale->n_dims > 4 ? 4 : f->scale->n_dims);
    r->name = eng_bind_name(b, x, ".scale", expert);
    if (f->shape)
        eng_bind_mark(b, f->shape);
    return r->name ? whole_spans(b, f->scale, r, e) : err_set(e, ERR_NOMEM, "tensor name");
}

/* One stored tensor seen through a view: compares its shape, sets spans and the weight's rows and columns. */
static int fill(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const struct eng_axes *a, struct eng_tensor *r, struct err *e)
{
    uint64_t rows, cols;
    struct krn_weight *w = &b->weights[r - b->tensors];
    int rc = eng_axes_spans(a, t, b->mem, &r->spans, &r->n_spans, &rows, &cols, &r->transposed, e);

    if (rc == ERR_UNSUPPORTED || rc == ERR_LIMIT) {
        char at[80];
        return eng_bind_issue(b, ENG_ISSUE_SHAPE, rc, t->name, NULL, NULL, e, "%s (%s)", e ? e->msg : "view", eng_bind_where(b, x, at));
    }
    if (rc)
        return rc;
    if (rows > UINT32_MAX || cols > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: %" PRIu64 " x %" PRIu64 " is larger than a weight may be", t->name, rows, cols);
    if (r->transposed || r->n_dims < 2 || !strcmp(r->form, "plain")) {
        bool apart = r->n_dims < 2 && cols == 1; /* a vector whose values do not lie side by side */
        w->rows = r->n_dims < 2 && !apart ? 1 : (uint32_t)rows;
        w->cols = (uint32_t)cols;
    }
    return ERR_OK;
}

/* The axes of a form's rows in stored elements, through the same view as its logical ones, a's: only whole rows can be taken. */
static int stored_axes(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, const struct eng_form *f, const struct eng_axes *a,
                       struct off_tensor *t, struct eng_axes *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX];
    uint8_t n = eng_form_dims(f, dims);
    char at[80];

    *t = eng_form_rows(f);
    *out = *a;
    if (f->kind == ENG_FORM_PLAIN || f->kind == ENG_FORM_FP8_BLOCK || f->kind == ENG_FORM_FP8_ROW)
        return ERR_OK;
    int rc = eng_view_axes(b->env, c->s.view, t->dims, t->n_dims, out, e);
    if (!rc && (!n || eng_axes_dim(out, out->n_dims - 1) != t->dims[n - 1] || eng_axes_dim(a, a->n_dims - 1) != dims[n - 1]))
        rc = ERR_UNSUPPORTED;
    return rc ? eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_UNSUPPORTED, f->data->name, NULL, NULL, e, "tensor %s (%s): a cut through columns packed as %s", f->data->name,
                               eng_bind_where(b, x, at), eng_form_name(f->kind)) : ERR_OK;
}

static int add_bias(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, uint64_t rows, struct eng_bound *out, struct err *e)
{
    char name[ENG_NAME_MAX];
    const struct off_tensor *t;
    struct eng_axes a;
    struct eng_tensor *r;
    uint64_t got;
    int rc;

    int n = snprintf(name, sizeof name, "%s.bias", c->name);
    if (c->expert_at != SIZE_MAX || n <= 0 || (size_t)n >= sizeof name || !(t = off_catalog_find(b->cat, name, (size_t)n)))
        return ERR_OK;
    if ((rc = eng_bind_reserve(b, 1, e)) || (rc = eng_view_axes(b->env, c->s.bias_view, t->dims, t->n_dims, &a, e)))
        return rc;
    out->bias = b->n;
    r = eng_bind_add(b, x, t, &rows, 1);
    r->split = r->split == ENG_SPLIT_COLS ? ENG_SPLIT_NONE : r->split; /* added once, after the sum */
    if (!(r->name = eng_bind_name(b, x, ".bias", -1)))
        return err_set(e, ERR_NOMEM, "tensor name");
    got = a.n_dims == 1 ? eng_axes_dim(&a, 0) : 0;
    if (got != rows)
        return eng_bind_wrong(b, x, t, &rows, 1, t->dims, t->n_dims, "rows of its weight", e);
    return fill(b, x, t, &a, r, e);
}

int eng_bind_dense(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX], got[ENG_AXES_MAX];
    struct eng_axes a, stored;
    struct off_tensor t;
    struct eng_form f = c->f;
    const struct json *opts = x->def->n > 3 ? x->def->items[3] : NULL;
    int rc = eng_bind_reserve(b, 1, e);

    if (rc)
        return rc;
    out->first = b->n;
    out->n = 1;
    struct eng_tensor *r = eng_bind_add(b, x, f.data, out->dims, out->n_dims);
    if (!(r->name = eng_bind_name(b, x, "", -1)))
        return err_set(e, ERR_NOMEM, "tensor name");
    r->form = eng_form_name(f.kind);
    r->map = c->s.map;
    if (!r->map && (rc = check_form(b, x, &f, e)))
        return rc;
    uint8_t n = eng_form_dims(&f, dims);
    if ((rc = eng_view_axes(b->env, c->s.view, dims, n, &a, e)))
        return eng_bind_issue(b, ENG_ISSUE_SHAPE, rc, f.data->name, NULL, NULL, e, "tensor %s: %s", f.data->name, e ? e->msg : "view");
    for (unsigned i = 0; i < a.n_dims; i++)
        got[i] = eng_axes_dim(&a, i);
    if (!eng_bind_same(got, a.n_dims, out->dims, out->n_dims)) {
        rc = eng_bind_wrong(b, x, f.data, out->dims, out->n_dims, got, a.n_dims, x->def->items[0]->s, e);
    } else if (!(rc = stored_axes(b, x, c, &f, &a, &t, &stored, e))) {
        rc = fill(b, x, &t, &stored, r, e);
    }
    if (!rc && f.scale && f.kind != ENG_FORM_PLAIN)
        rc = add_scales(b, x, &f, out->first, 1, -1, e);
    if (!rc && json_eq(json_get(opts, "bias"), "auto"))
        rc = add_bias(b, x, c, out->dims[0], out, e);
    return rc;
}

/* ---- experts ---------------------------------------------------------------------------------------------- */
/* A stack [n, rows, cols] in one stored tensor, cut into its entries. */
int eng_bind_stack(struct eng_binder *b, const struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX], got[ENG_AXES_MAX];
    struct eng_axes a, stored, one;
    struct off_tensor t;
    uint8_t n = eng_form_dims(&c->f, dims);
    int rc = eng_view_axes(b->env, c->s.view, dims, n, &a, e);

    if (!rc)
        rc = check_form(b, x, &c->f, e);
    for (unsigned i = 0; !rc && i < a.n_dims; i++)
        got[i] = eng_axes_dim(&a, i);
    if (rc || !eng_bind_same(got, a.n_dims, out->dims, out->n_dims))
        return rc ? rc : eng_bind_wrong(b, x, c->f.data, out->dims, out->n_dims, got, a.n_dims, x->def->items[0]->s, e);
    if ((rc = stored_axes(b, x, c, &c->f, &a, &t, &stored, e)) || b->n != out->first)
        return rc;
    for (uint32_t i = 0; i < out->n; i++) {
        struct eng_tensor *r = eng_bind_add(b, x, c->f.data, out->dims + 1, out->n_dims - 1);
        if (!(r->name = eng_bind_name(b, x, "", i)))
            return err_set(e, ERR_NOMEM, "tensor name");
        r->form = eng_form_name(c->f.kind);
        if (out->n == 1 && a.n_dims < out->n_dims)
            one = stored;
        else if (!eng_axes_entry(&stored, i, &one))
            return err_set(e, ERR_FORMAT, "tensor %s: the view does not begin with the axis of experts", c->f.data->name);
        if ((rc = fill(b, x, &t, &one, r, e)))
            return rc;
    }
    return c->f.scale && c->f.kind != ENG_FORM_PLAIN ? add_scales(b, x, &c->f, out->first, out->n, -1, e) : ERR_OK;
}

/* What expert 0 showed, for comparison with the others. */
struct model_expert { struct eng_form f; bool ok; struct off_span data, scale; };

static void expert_span(const struct off_span *like, const struct off_tensor *t, struct off_span *s, struct eng_tensor *r)
{
    *s = *like;
    s->file = t->file;
    s->offset = t->offset;
    r->spans = s;
    r->n_spans = 1;
}

static bool same_kind(const struct off_tensor *a, const struct off_tensor *b)
{
    return a->type == b->type && a->n_dims == b->n_dims && !memcmp(a->dims, b->dims, sizeof a->dims);
}

static int check_expert(struct eng_binder *b, const struct eng_entry *x, const struct eng_form *f, const struct eng_bound *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX];
    uint8_t n = eng_form_dims(f, dims);

    if (!eng_bind_same(dims, n, out->dims + 1, out->n_dims - 1))
        return eng_bind_wrong(b, x, f->data, out->dims + 1, out->n_dims - 1, dims, n, x->def->items[0]->s, e);
    return check_form(b, x, f, e);
}

static void span_of(const struct off_tensor *t, struct off_span *s)
{
    uint64_t cols = t->n_dims ? t->dims[t->n_dims - 1] : 1, row = krn_row_bytes(t->type, cols);

    *s = (struct off_span){.row_bytes = row, .n_rows = row ? t->bytes / row : 0, .row_stride = row, .n_outer = 1};
}

int eng_bind_experts(struct eng_binder *b, struct eng_entry *x, const struct eng_choice *c, struct eng_bound *out, struct err *e)
{
    struct off_span *spans = NULL; /* of SPAN_CHUNK experts, then of their scales */
    char name[ENG_NAME_MAX], at[80];
    struct off_span like[2] = {{0}};
    bool scaled = c->f.scale != NULL;
    int rc = ERR_OK;

    if (c->s.view)
        return err_set(e, ERR_UNSUPPORTED, "sheet %s: tensors.%s: a view of single experts", b->env->sheet_name, x->name);
    /* Another layer's experts have the same names. */
    const struct eng_tensor *like_t = x->done && x->whole && x->bound.n == out->n ? &b->tensors[x->bound.first] : NULL;
    if (like_t && scaled && like_t->scales != x->bound.first + out->n)
        like_t = NULL;
    x->whole = false;
    span_of(c->f.data, &like[0]);
    if (scaled)
        span_of(c->f.scale, &like[1]);
    for (uint32_t i = 0; i < out->n && !rc; i++) {
        size_t n = eng_bind_expert_name(c, i, name);
        struct eng_form f = {0};
        bool found = n && eng_form_find(b->cat, name, n, c->f.suffix, &f), as_first = found && same_kind(f.data, c->f.data) && f.kind == c->f.kind && !f.refused &&
                     (f.scale != NULL) == scaled && (!scaled || same_kind(f.scale, c->f.scale));
        if (found && (i == 0 || !as_first))
            rc = check_expert(b, x, &f, out, e);
        if (!rc && found && !as_first && i)
            rc = eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f.data->name, NULL, NULL, e, "tensor %s in %s (%s): stored in another way than expert 0", f.data->name,
                                eng_bind_file(b, f.data), eng_bind_where(b, x, at));
        if (!found) { /* the first one says it; a config that claims experts nobody has must not cost memory */
            b->n = out->first + 1;
            return eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, name, NULL, NULL, e, "missing tensor %s (%s, expert %u of %u): it is not in the files", name,
                                  eng_bind_where(b, x, at), i, out->n);
        }
        if (rc)
            break;
        if (i % SPAN_CHUNK == 0 && !(spans = ARENA_ARRAY(b->mem, struct off_span, 2 * SPAN_CHUNK)))
            return err_set(e, ERR_NOMEM, "%u experts of @%s", out->n, x->name);
        struct eng_tensor *r = eng_bind_add(b, x, f.data, out->dims + 1, out->n_dims - 1);
        r->name = like_t ? like_t[i].name : eng_bind_name(b, x, "", i);
        r->form = eng_form_name(c->f.kind);
        expert_span(&like[0], f.data, &spans[i % SPAN_CHUNK], r);
        if (f.shape)
            eng_bind_mark(b, f.shape);
        r->scales = scaled ? out->first + out->n + i : KRN_NO_WEIGHT;
        if (!r->name)
            return err_set(e, ERR_NOMEM, "tensor name");
        if (scaled && f.scale) { /* its place behind the experts' own */
            uint32_t keep = b->n;
            b->n = r->scales;
            struct eng_tensor *s = eng_bind_add(b, x, f.scale, f.scale->dims, f.scale->n_dims > 4 ? 4 : f.scale->n_dims);
            s->name = like_t ? like_t[out->n + i].name : eng_bind_name(b, x, ".scale", i);
            expert_span(&like[1], f.scale, &spans[SPAN_CHUNK + i % SPAN_CHUNK], s);
            b->n = keep;
            if (!s->name)
                return err_set(e, ERR_NOMEM, "tensor name");
        }
    }
    if (!rc && scaled)
        b->n = out->first + 2 * out->n;
    x->whole = !rc;
    return rc;
}
