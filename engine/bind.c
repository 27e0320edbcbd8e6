/* One path for dense tensors, one for experts. K3 has 494,592 expert tensors: their names are written into one buffer on the
 * stack, shape and form of the first expert stand for all until one differs, and its spans lie in one array. */
#include "engine/bind.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/view.h"

#define EXPERTS_MAX 65536
#define SPAN_CHUNK 64

struct spec { const char *name, *view, *bias_view, *map; };

int eng_bind_issue(struct eng_binder *b, enum eng_issue kind, int code, const char *tensor, const char *expected, const char *found, struct err *e,
                   const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!b->first.code)
        err_set(&b->first, code, "%s", text);
    if (!b->rep)
        return err_set(e, code, "%s", text);
    eng_report_add(b->rep, kind, code, tensor, expected, found, text);
    return ERR_OK;
}

int eng_binder_open(struct eng_binder *b, struct eng_env *env, struct eng_report *rep, struct err *e)
{
    const struct json *t = json_get(env->sheet, "tensors"), *block;
    size_t n = off_catalog_count(env->cfg.catalog);
    int64_t x;

    memset(b, 0, sizeof *b);
    b->env = env;
    b->cat = env->cfg.catalog;
    b->rep = rep;
    b->mem = env->mem;
    b->n_entries = json_is(t, JSON_OBJECT) ? t->n : 0;
    b->entries = ARENA_ARRAY(b->mem, struct eng_entry, b->n_entries);
    b->seen = ARENA_ARRAY(b->mem, uint64_t, n / 64 + 1);
    if (!b->entries || !b->seen)
        return err_set(e, ERR_NOMEM, "binding of %zu tensors", n);
    for (size_t i = 0; i < b->n_entries; i++) {
        const struct json *d = t->members[i].value;
        if (!json_is(d, JSON_ARRAY) || d->n < 3 || d->n > 4 || !json_str(d->items[0]))
            return err_set(e, ERR_FORMAT, "sheet %s: tensors.%s: expected [\"shape\", hf, gguf, {options}]", env->sheet_name, t->members[i].key);
        b->entries[i] = (struct eng_entry){.name = t->members[i].key, .def = d, .layer = -2};
    }
    block = json_path(off_catalog_config(b->cat), "quantization_config.weight_block_size");
    if (!block)
        block = json_path(off_catalog_config(b->cat), "text_config.quantization_config.weight_block_size");
    for (unsigned i = 0; i < 2; i++)
        b->scale_block[i] = json_is(block, JSON_ARRAY) && block->n == 2 && json_int(block->items[i], &x) && x > 0 && x < 65536 ? (uint32_t)x : 128;
    return ERR_OK;
}

void eng_binder_close(struct eng_binder *b)
{
    free(b->tensors);
    free(b->weights);
    b->tensors = NULL;
    b->weights = NULL;
}

/* ---- the tables ------------------------------------------------------------------------------------------- */
static int reserve(struct eng_binder *b, uint32_t more, struct err *e)
{
    uint64_t need = (uint64_t)b->n + more, cap = b->cap ? b->cap : 256;
    struct eng_tensor *t;
    struct krn_weight *w;

    if (need <= b->cap)
        return ERR_OK;
    while (cap < need)
        cap *= 2;
    if (cap > UINT32_MAX / 2)
        return err_set(e, ERR_LIMIT, "more than %u tensors", UINT32_MAX / 2);
    if ((t = realloc(b->tensors, cap * sizeof *t)))
        b->tensors = t;
    if ((w = realloc(b->weights, cap * sizeof *w)))
        b->weights = w;
    if (!t || !w)
        return err_set(e, ERR_NOMEM, "tables of %" PRIu64 " tensors", cap);
    b->cap = (uint32_t)cap;
    return ERR_OK;
}

static void mark(struct eng_binder *b, const struct off_tensor *t)
{
    size_t i = (size_t)(t - off_catalog_at(b->cat, 0));

    b->n_seen += !(b->seen[i / 64] >> (i % 64) & 1);
    b->seen[i / 64] |= UINT64_C(1) << (i % 64);
}

static const char *file_of(const struct eng_binder *b, const struct off_tensor *t) { return off_catalog_file(b->cat, t->file)->base; }

static void show_dims(const uint64_t *d, unsigned n, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");

    for (unsigned i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRIu64, i ? ", " : "", d[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
}

/* Axes of one entry do not count. */
static bool same_shape(const uint64_t *a, unsigned n, const uint64_t *b, unsigned m)
{
    unsigned i = 0, k = 0;

    for (;;) {
        while (i < n && a[i] == 1)
            i++;
        while (k < m && b[k] == 1)
            k++;
        if (i == n || k == m)
            return i == n && k == m;
        if (a[i++] != b[k++])
            return false;
    }
}

static const char *where(const struct eng_binder *b, const struct eng_entry *x, char out[80])
{
    if (b->env->layer >= 0 && x->layered)
        snprintf(out, 80, "@%.40s, layer %d", x->name, (int)b->env->layer);
    else
        snprintf(out, 80, "@%.40s", x->name);
    return out;
}

static int wrong_shape(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *want, unsigned n, const uint64_t *got,
                       unsigned m, const char *rule, struct err *e)
{
    char expected[160], found[160], at[80];

    show_dims(want, n, expected, sizeof expected);
    show_dims(got, m, found, sizeof found);
    return eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_FORMAT, t->name, expected, found, e, "tensor %s in %s (%s): expected %s = [%s], found %s", t->name,
                          file_of(b, t), where(b, x, at), expected, rule, found);
}

/* Names of expert e of a sheet tensor are the same in every layer; there are few. */
static const char *entry_name(struct eng_binder *b, const struct eng_entry *x, const char *suffix, int64_t e)
{
    return e < 0 ? arena_printf(b->mem, "%s%s", x->name, suffix) : arena_printf(b->mem, "%s%s[%" PRId64 "]", x->name, suffix, e);
}

static struct eng_tensor *add(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *dims, unsigned n_dims)
{
    static const char *const splits[] = {"none", "rows", "cols", "heads"};
    const struct json *opts = x->def->n > 3 ? x->def->items[3] : NULL;
    struct eng_tensor *r = &b->tensors[b->n];
    struct krn_weight *w = &b->weights[b->n++];

    memset(r, 0, sizeof *r);
    memset(w, 0, sizeof *w);
    r->layer = b->env->layer >= 0 && x->layered ? (uint16_t)b->env->layer : KRN_NO_LAYER;
    r->scales = KRN_NO_WEIGHT;
    r->form = eng_form_name(ENG_FORM_PLAIN);
    r->n_dims = (uint8_t)n_dims;
    memcpy(r->dims, dims, n_dims * sizeof *dims);
    for (unsigned i = 0; i < 4; i++)
        if (json_eq(json_get(opts, "split"), splits[i]))
            r->split = i;
    uint64_t rows = 1;
    for (unsigned i = 0; i + 1 < n_dims; i++)
        rows *= dims[i];
    w->rows = (uint32_t)(rows > UINT32_MAX ? UINT32_MAX : rows);
    w->cols = n_dims ? (uint32_t)(dims[n_dims - 1] > UINT32_MAX ? UINT32_MAX : dims[n_dims - 1]) : 1;
    if (t) {
        r->file_name = t->name;
        r->type = w->type = t->type;
        mark(b, t);
    }
    return r;
}

/* ---- choosing a name -------------------------------------------------------------------------------------- */
static int spec_of(struct eng_binder *b, const struct json *j, struct spec *s, bool *use, struct err *e)
{
    struct eng_value v;
    const char *when;
    int rc;

    *s = (struct spec){0};
    *use = true;
    if (json_is(j, JSON_STRING)) {
        s->name = j->s;
        return ERR_OK;
    }
    if (!(s->name = json_str(json_get(j, "name"))))
        return err_set(e, ERR_FORMAT, "a tensor entry needs a name, or {\"name\": ...}");
    s->view = json_str(json_get(j, "view"));
    s->bias_view = json_str(json_get(j, "bias_view"));
    s->map = json_str(json_get(j, "map"));
    if ((when = json_str(json_get(j, "when")))) {
        if ((rc = eng_env_text(b->env, when, &v, e)))
            return rc;
        *use = eng_v_truth(&v);
    }
    return ERR_OK;
}

struct choice { struct spec s; struct eng_form f; char name[ENG_NAME_MAX]; size_t len, expert_at; bool found; char tried[640]; };

/* name with {E} replaced by e; expert_at is where {E} stood in c->name, or SIZE_MAX. */
static size_t expert_name(const struct choice *c, uint64_t e, char out[ENG_NAME_MAX])
{
    char digits[20];
    size_t n = 0, at = c->expert_at, rest;

    if (at == SIZE_MAX) {
        memcpy(out, c->name, c->len + 1);
        return c->len;
    }
    do
        digits[n++] = (char)('0' + e % 10);
    while ((e /= 10));
    rest = c->len - at - 3;
    if (at + n + rest + 1 >= ENG_NAME_MAX)
        return 0;
    memcpy(out, c->name, at);
    for (size_t i = 0; i < n; i++)
        out[at + i] = digits[n - 1 - i];
    memcpy(out + at + n, c->name + at + 3, rest + 1);
    return at + n + rest;
}

static int try_spec(struct eng_binder *b, const struct json *j, struct choice *c, struct err *e)
{
    char name[ENG_NAME_MAX];
    bool use;
    const char *brace;
    int rc = spec_of(b, j, &c->s, &use, e);

    if (rc || !use || !(c->len = eng_env_expand(b->env, c->s.name, c->name)))
        return rc;
    brace = strstr(c->name, "{E}");
    c->expert_at = brace ? (size_t)(brace - c->name) : SIZE_MAX;
    size_t n = expert_name(c, 0, name), used = strlen(c->tried);
    c->found = n && eng_form_find(b->cat, name, n, 0, &c->f);
    if (!c->found && used + 210 < sizeof c->tried)
        snprintf(c->tried + used, sizeof c->tried - used, "%s'%.200s'", used ? ", " : "", c->name);
    return ERR_OK;
}

static int choose(struct eng_binder *b, const struct eng_entry *x, struct choice *c, struct err *e)
{
    const struct json *j = x->def->items[b->env->cfg.gguf ? 2 : 1];
    int rc = ERR_OK;

    c->found = false;
    c->tried[0] = 0;
    if (j->type == JSON_ARRAY)
        for (size_t i = 0; !rc && !c->found && i < j->n; i++)
            rc = try_spec(b, j->items[i], c, e);
    else if (j->type != JSON_NULL)
        rc = try_spec(b, j, c, e);
    return rc ? err_prefix(e, rc, "sheet %s: tensors.%s", b->env->sheet_name, x->name) : ERR_OK;
}

/* ---- dense tensors ---------------------------------------------------------------------------------------- */
static int shape_of(struct eng_binder *b, const struct eng_entry *x, struct eng_bound *out, struct err *e)
{
    const struct eng_expr *list;
    int rc = eng_env_list(b->env, x->def->items[0]->s, &list, e);

    out->n_dims = 0;
    for (const struct eng_expr *k = rc ? NULL : list->kid[0]; k && !rc; k = k->next) {
        struct eng_value v;
        char text[80];
        int64_t i;
        if ((rc = eng_env_eval(b->env, k, &v, e)))
            break;
        eng_v_show(&v, text, sizeof text);
        if (out->n_dims == 4)
            rc = err_set(e, ERR_FORMAT, "a shape of more than 4 dimensions");
        else if (!eng_v_integer(&v, &i) || i < 1 || i > UINT32_MAX)
            rc = err_set(e, ERR_FORMAT, "a dimension of [%s] is %s, expected a count", x->def->items[0]->s, text);
        else
            out->dims[out->n_dims++] = (uint64_t)i;
    }
    return rc ? err_prefix(e, rc, "tensor @%s", x->name) : ERR_OK;
}

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
                              f->refused->name, file_of(b, f->refused), where(b, x, at));
    if (f->kind == ENG_FORM_PLAIN) {
        if (f->data->type <= KRN_F64 || f->data->type >= KRN_Q4_0)
            return ERR_OK;
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f->data->name, "a float or block type", krn_types[f->data->type].name, e,
                              "tensor %s in %s (%s): expected a float or block type, found %s", f->data->name, file_of(b, f->data), where(b, x, at), krn_types[f->data->type].name);
    }
    if (f->data->type != packed[f->kind])
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f->data->name, krn_types[packed[f->kind]].name, krn_types[f->data->type].name, e,
                              "tensor %s in %s (%s): expected %s for %s, found %s", f->data->name, file_of(b, f->data), where(b, x, at),
                              krn_types[packed[f->kind]].name, eng_form_name(f->kind), krn_types[f->data->type].name);
    if (!f->scale)
        return eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, f->data->name, "scales beside it", "none", e, "tensor %s in %s (%s): packed as %s, and its scales are not in the files",
                              f->data->name, file_of(b, f->data), where(b, x, at), eng_form_name(f->kind));
    bool one = f->kind == ENG_FORM_FP8_ROW && same_shape(f->scale->dims, f->scale->n_dims, NULL, 0);
    if (one || (scale_dims(b, f, want, &n) && same_shape(f->scale->dims, f->scale->n_dims, want, n)))
        return ERR_OK;
    show_dims(want, n, expected, sizeof expected);
    show_dims(f->scale->dims, f->scale->n_dims, found, sizeof found);
    return eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_FORMAT, f->scale->name, expected, found, e, "tensor %s in %s (scales of %s): expected %s for %s, found %s", f->scale->name,
                          file_of(b, f->scale), where(b, x, at), expected, eng_form_name(f->kind), found);
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
    int rc = reserve(b, 1, e);

    if (rc)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        b->tensors[first + i].scales = b->n;
        b->tensors[first + i].form = eng_form_name(f->kind);
    }
    r = add(b, x, f->scale, f->scale->dims, f->scale->n_dims > 4 ? 4 : f->scale->n_dims);
    r->name = entry_name(b, x, ".scale", expert);
    if (f->shape)
        mark(b, f->shape);
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
        return eng_bind_issue(b, ENG_ISSUE_SHAPE, rc, t->name, NULL, NULL, e, "%s (%s)", e ? e->msg : "view", where(b, x, at));
    }
    if (rc)
        return rc;
    if (rows > UINT32_MAX || cols > UINT32_MAX)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: %" PRIu64 " x %" PRIu64 " is larger than a weight may be", t->name, rows, cols);
    if (r->transposed || r->n_dims < 2 || !strcmp(r->form, "plain")) {
        w->rows = r->n_dims < 2 ? 1 : (uint32_t)rows;
        w->cols = (uint32_t)cols;
    }
    return ERR_OK;
}

static int add_bias(struct eng_binder *b, const struct eng_entry *x, const struct choice *c, uint64_t rows, struct eng_bound *out, struct err *e)
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
    if ((rc = reserve(b, 1, e)) || (rc = eng_view_axes(b->env, c->s.bias_view, t->dims, t->n_dims, &a, e)))
        return rc;
    out->bias = b->n;
    r = add(b, x, t, &rows, 1);
    r->split = r->split == ENG_SPLIT_COLS ? ENG_SPLIT_NONE : r->split; /* added once, after the sum */
    if (!(r->name = entry_name(b, x, ".bias", -1)))
        return err_set(e, ERR_NOMEM, "tensor name");
    got = a.n_dims == 1 ? eng_axes_dim(&a, 0) : 0;
    if (got != rows)
        return wrong_shape(b, x, t, &rows, 1, t->dims, t->n_dims, "rows of its weight", e);
    return fill(b, x, t, &a, r, e);
}

static int bind_dense(struct eng_binder *b, const struct eng_entry *x, const struct choice *c, struct eng_bound *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX], got[ENG_AXES_MAX];
    struct eng_axes a;
    struct eng_form f = c->f;
    const struct json *opts = x->def->n > 3 ? x->def->items[3] : NULL;
    int rc = reserve(b, 1, e);

    if (rc)
        return rc;
    out->first = b->n;
    out->n = 1;
    struct eng_tensor *r = add(b, x, f.data, out->dims, out->n_dims);
    if (!(r->name = entry_name(b, x, "", -1)))
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
    if (!same_shape(got, a.n_dims, out->dims, out->n_dims)) {
        rc = wrong_shape(b, x, f.data, out->dims, out->n_dims, got, a.n_dims, x->def->items[0]->s, e);
    } else if (f.kind == ENG_FORM_PLAIN || f.kind == ENG_FORM_FP8_BLOCK || f.kind == ENG_FORM_FP8_ROW) {
        rc = fill(b, x, f.data, &a, r, e);
    } else if (!c->s.view) {
        rc = whole_spans(b, f.data, r, e);
    } else {
        rc = eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_UNSUPPORTED, f.data->name, NULL, NULL, e, "tensor %s: a view of values packed as %s is not supported", f.data->name, r->form);
    }
    if (!rc && f.scale && f.kind != ENG_FORM_PLAIN)
        rc = add_scales(b, x, &f, out->first, 1, -1, e);
    if (!rc && json_eq(json_get(opts, "bias"), "auto"))
        rc = add_bias(b, x, c, out->dims[0], out, e);
    return rc;
}

/* ---- experts ---------------------------------------------------------------------------------------------- */
/* A stack [n, rows, cols] in one stored tensor, cut into its entries. */
static int bind_stack(struct eng_binder *b, const struct eng_entry *x, const struct choice *c, struct eng_bound *out, struct err *e)
{
    uint64_t dims[OFF_DIMS_MAX], got[ENG_AXES_MAX];
    struct eng_axes a, one;
    uint8_t n = eng_form_dims(&c->f, dims);
    int rc = eng_view_axes(b->env, c->s.view, dims, n, &a, e);

    if (!rc)
        rc = check_form(b, x, &c->f, e);
    for (unsigned i = 0; !rc && i < a.n_dims; i++)
        got[i] = eng_axes_dim(&a, i);
    if (rc || !same_shape(got, a.n_dims, out->dims, out->n_dims))
        return rc ? rc : wrong_shape(b, x, c->f.data, out->dims, out->n_dims, got, a.n_dims, x->def->items[0]->s, e);
    if (c->f.kind != ENG_FORM_PLAIN)
        return eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, c->f.data->name, NULL, NULL, e, "tensor %s: a stack of experts packed as %s is not supported",
                              c->f.data->name, eng_form_name(c->f.kind));
    for (uint32_t i = 0; i < out->n; i++) {
        struct eng_tensor *r = add(b, x, c->f.data, out->dims + 1, out->n_dims - 1);
        if (!(r->name = entry_name(b, x, "", i)))
            return err_set(e, ERR_NOMEM, "tensor name");
        if (out->n == 1 && a.n_dims < out->n_dims)
            one = a;
        else if (!eng_axes_entry(&a, i, &one))
            return err_set(e, ERR_FORMAT, "tensor %s: the view does not begin with the axis of experts", c->f.data->name);
        if ((rc = fill(b, x, c->f.data, &one, r, e)))
            return rc;
    }
    return ERR_OK;
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

    if (!same_shape(dims, n, out->dims + 1, out->n_dims - 1))
        return wrong_shape(b, x, f->data, out->dims + 1, out->n_dims - 1, dims, n, x->def->items[0]->s, e);
    return check_form(b, x, f, e);
}

static void span_of(const struct off_tensor *t, struct off_span *s)
{
    uint64_t cols = t->n_dims ? t->dims[t->n_dims - 1] : 1, row = krn_row_bytes(t->type, cols);

    *s = (struct off_span){.row_bytes = row, .n_rows = row ? t->bytes / row : 0, .row_stride = row, .n_outer = 1};
}

static int bind_experts(struct eng_binder *b, struct eng_entry *x, const struct choice *c, struct eng_bound *out, struct err *e)
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
        size_t n = expert_name(c, i, name);
        struct eng_form f = {0};
        bool found = n && eng_form_find(b->cat, name, n, c->f.suffix, &f), as_first = found && same_kind(f.data, c->f.data) && f.kind == c->f.kind && !f.refused &&
                     (f.scale != NULL) == scaled && (!scaled || same_kind(f.scale, c->f.scale));
        if (found && (i == 0 || !as_first))
            rc = check_expert(b, x, &f, out, e);
        if (!rc && found && !as_first && i)
            rc = eng_bind_issue(b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, f.data->name, NULL, NULL, e, "tensor %s in %s (%s): stored in another way than expert 0", f.data->name,
                                file_of(b, f.data), where(b, x, at));
        if (!found) { /* the first one says it; a config that claims experts nobody has must not cost memory */
            b->n = out->first + 1;
            return eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, name, NULL, NULL, e, "missing tensor %s (%s, expert %u of %u): it is not in the files", name,
                                  where(b, x, at), i, out->n);
        }
        if (rc)
            break;
        if (i % SPAN_CHUNK == 0 && !(spans = ARENA_ARRAY(b->mem, struct off_span, 2 * SPAN_CHUNK)))
            return err_set(e, ERR_NOMEM, "%u experts of @%s", out->n, x->name);
        struct eng_tensor *r = add(b, x, f.data, out->dims + 1, out->n_dims - 1);
        r->name = like_t ? like_t[i].name : entry_name(b, x, "", i);
        r->form = eng_form_name(c->f.kind);
        expert_span(&like[0], f.data, &spans[i % SPAN_CHUNK], r);
        if (f.shape)
            mark(b, f.shape);
        r->scales = scaled ? out->first + out->n + i : KRN_NO_WEIGHT;
        if (!r->name)
            return err_set(e, ERR_NOMEM, "tensor name");
        if (scaled && f.scale) { /* its place behind the experts' own */
            uint32_t keep = b->n;
            b->n = r->scales;
            struct eng_tensor *s = add(b, x, f.scale, f.scale->dims, f.scale->n_dims > 4 ? 4 : f.scale->n_dims);
            s->name = like_t ? like_t[out->n + i].name : entry_name(b, x, ".scale", i);
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

/* ---- one entry -------------------------------------------------------------------------------------------- */
static struct eng_entry *find_entry(struct eng_binder *b, const char *name)
{
    for (size_t i = 0; i < b->n_entries; i++)
        if (!strcmp(b->entries[i].name, name))
            return &b->entries[i];
    return NULL;
}

static bool mentions_layer(const struct json *j)
{
    if (j->type == JSON_STRING)
        return strstr(j->s, "{B}") || strstr(j->s, "{L}");
    for (size_t i = 0; j->type == JSON_ARRAY && i < j->n; i++)
        if (mentions_layer(j->items[i]))
            return true;
    return j->type == JSON_OBJECT && json_get(j, "name") && mentions_layer(json_get(j, "name"));
}

static int not_found(struct eng_binder *b, struct eng_entry *x, const struct choice *c, bool experts, struct eng_bound *out, struct err *e)
{
    const struct json *opts = x->def->n > 3 ? x->def->items[3] : NULL, *optional = json_get(opts, "optional");
    const char *other = json_str(json_get(opts, "or"));
    char at[80], expected[160];
    int rc;

    if (other)
        return eng_bind(b, other, out, e);
    if (json_is(optional, JSON_BOOL) && optional->b) {
        out->absent = true;
        return ERR_OK;
    }
    where(b, x, at);
    show_dims(out->dims, out->n_dims, expected, sizeof expected);
    if (c->tried[0])
        rc = eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, x->name, expected, NULL, e, "missing tensor (%s), expected %s: none of [%s] is in the files", at, expected, c->tried);
    else
        rc = eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, x->name, expected, NULL, e, "missing tensor (%s): the sheet knows no name for it in %s files", at,
                            b->env->cfg.gguf ? "GGUF" : "safetensors");
    if (rc || (rc = reserve(b, 1, e)))
        return rc;
    out->first = b->n; /* one entry stands for all experts, too */
    add(b, x, NULL, experts ? out->dims + 1 : out->dims, experts ? out->n_dims - 1 : out->n_dims)->name = x->name;
    return ERR_OK;
}

static int expert_count(struct eng_binder *b, const struct eng_entry *x, uint32_t *n, struct err *e)
{
    const char *text = json_str(json_get(x->def->n > 3 ? x->def->items[3] : NULL, "experts"));
    struct eng_value v;
    int64_t i;
    int rc;

    *n = 0;
    if (!text)
        return ERR_OK;
    if ((rc = eng_env_text(b->env, text, &v, e)))
        return rc;
    if (!eng_v_integer(&v, &i) || i < 1 || i > EXPERTS_MAX)
        return err_set(e, ERR_FORMAT, "tensor @%s: expected 1 to %d experts", x->name, EXPERTS_MAX);
    *n = (uint32_t)i;
    return ERR_OK;
}

static int bind_entry(struct eng_binder *b, struct eng_entry *x, struct eng_bound *out, struct err *e)
{
    struct choice c = {0};
    uint32_t experts;
    int rc;

    if ((rc = choose(b, x, &c, e)) || (rc = shape_of(b, x, out, e)) || (rc = expert_count(b, x, &experts, e)))
        return rc;
    out->bias = KRN_NO_WEIGHT;
    out->n = experts ? experts : 1;
    if (experts && (out->n_dims != 3 || out->dims[0] != experts))
        return err_set(e, ERR_FORMAT, "tensor @%s: an expert tensor has the shape [experts, rows, cols]", x->name);
    if (!c.found)
        return not_found(b, x, &c, experts > 0, out, e);
    if (!experts)
        return bind_dense(b, x, &c, out, e);
    if ((rc = reserve(b, 2 * experts, e)))
        return rc;
    out->first = b->n;
    memset(b->tensors + b->n, 0, sizeof *b->tensors);
    memset(b->weights + b->n, 0, sizeof *b->weights);
    rc = c.expert_at == SIZE_MAX ? bind_stack(b, x, &c, out, e) : bind_experts(b, x, &c, out, e);
    if (!rc && b->n == out->first)
        b->n++; /* a problem was noted: the empty entry keeps the index good */
    return rc;
}

int eng_bind(struct eng_binder *b, const char *name, struct eng_bound *out, struct err *e)
{
    struct eng_entry *x = find_entry(b, name);
    struct err own;
    int rc;

    memset(out, 0, sizeof *out);
    if (!x)
        return err_set(e, ERR_NOTFOUND, "no tensor `@%s` in sheet %s", name, b->env->sheet_name);
    if (x->layer == -2)
        x->layered = mentions_layer(x->def->items[b->env->cfg.gguf ? 2 : 1]);
    int32_t layer = x->layered ? b->env->layer : -1;
    if (x->done && x->layer == layer) {
        *out = x->bound;
        return ERR_OK;
    }
    if ((rc = bind_entry(b, x, out, e ? e : &own)))
        return rc;
    x->layer = layer;
    x->done = true;
    x->bound = *out;
    return ERR_OK;
}

const struct off_tensor *eng_bind_vector(struct eng_binder *b, const char *name)
{
    struct eng_entry *x = find_entry(b, name);
    struct choice c = {0};

    if (!x || choose(b, x, &c, NULL) || !c.found || c.f.kind != ENG_FORM_PLAIN)
        return NULL;
    mark(b, c.f.data);
    return c.f.data;
}
