/* Names: which of an entry's alternatives is in the files, and the tables that bound tensors go to. */
#include "engine/bind_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPERTS_MAX 65536

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
int eng_bind_reserve(struct eng_binder *b, uint32_t more, struct err *e)
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

void eng_bind_mark(struct eng_binder *b, const struct off_tensor *t)
{
    size_t i = (size_t)(t - off_catalog_at(b->cat, 0));

    b->n_seen += !(b->seen[i / 64] >> (i % 64) & 1);
    b->seen[i / 64] |= UINT64_C(1) << (i % 64);
}

const char *eng_bind_file(const struct eng_binder *b, const struct off_tensor *t) { return off_catalog_file(b->cat, t->file)->base; }

void eng_bind_dims(const uint64_t *d, unsigned n, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "[");

    for (unsigned i = 0; i < n && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%" PRIu64, i ? ", " : "", d[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
}

bool eng_bind_same(const uint64_t *a, unsigned n, const uint64_t *b, unsigned m)
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

const char *eng_bind_where(const struct eng_binder *b, const struct eng_entry *x, char out[80])
{
    if (b->env->layer >= 0 && x->layered)
        snprintf(out, 80, "@%.40s, layer %d", x->name, (int)b->env->layer);
    else
        snprintf(out, 80, "@%.40s", x->name);
    return out;
}

int eng_bind_wrong(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *want, unsigned n, const uint64_t *got,
                       unsigned m, const char *rule, struct err *e)
{
    char expected[160], found[160], at[80];

    eng_bind_dims(want, n, expected, sizeof expected);
    eng_bind_dims(got, m, found, sizeof found);
    return eng_bind_issue(b, ENG_ISSUE_SHAPE, ERR_FORMAT, t->name, expected, found, e, "tensor %s in %s (%s): expected %s = [%s], found %s", t->name,
                          eng_bind_file(b, t), eng_bind_where(b, x, at), expected, rule, found);
}

/* Names of expert e of a sheet tensor are the same in every layer; there are few. */
const char *eng_bind_name(struct eng_binder *b, const struct eng_entry *x, const char *suffix, int64_t e)
{
    return e < 0 ? arena_printf(b->mem, "%s%s", x->name, suffix) : arena_printf(b->mem, "%s%s[%" PRId64 "]", x->name, suffix, e);
}

struct eng_tensor *eng_bind_add(struct eng_binder *b, const struct eng_entry *x, const struct off_tensor *t, const uint64_t *dims, unsigned n_dims)
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
        eng_bind_mark(b, t);
    }
    return r;
}

/* ---- choosing a name -------------------------------------------------------------------------------------- */
static int spec_of(struct eng_binder *b, const struct json *j, struct eng_spec *s, bool *use, struct err *e)
{
    struct eng_value v;
    const char *when;
    int rc;

    *s = (struct eng_spec){0};
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

/* name with {E} replaced by e; expert_at is where {E} stood in c->name, or SIZE_MAX. */
size_t eng_bind_expert_name(const struct eng_choice *c, uint64_t e, char out[ENG_NAME_MAX])
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

static int try_spec(struct eng_binder *b, const struct json *j, struct eng_choice *c, struct err *e)
{
    char name[ENG_NAME_MAX];
    bool use;
    const char *brace;
    int rc = spec_of(b, j, &c->s, &use, e);

    if (rc || !use || !(c->len = eng_env_expand(b->env, c->s.name, c->name)))
        return rc;
    brace = strstr(c->name, "{E}");
    c->expert_at = brace ? (size_t)(brace - c->name) : SIZE_MAX;
    size_t n = eng_bind_expert_name(c, 0, name), used = strlen(c->tried);
    c->found = n && eng_form_find(b->cat, name, n, 0, &c->f);
    if (!c->found && used + 210 < sizeof c->tried)
        snprintf(c->tried + used, sizeof c->tried - used, "%s'%.200s'", used ? ", " : "", c->name);
    return ERR_OK;
}

static int choose(struct eng_binder *b, const struct eng_entry *x, struct eng_choice *c, struct err *e)
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

static int not_found(struct eng_binder *b, struct eng_entry *x, const struct eng_choice *c, bool experts, struct eng_bound *out, struct err *e)
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
    eng_bind_where(b, x, at);
    eng_bind_dims(out->dims, out->n_dims, expected, sizeof expected);
    if (c->tried[0])
        rc = eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, x->name, expected, NULL, e, "missing tensor (%s), expected %s: none of [%s] is in the files", at, expected, c->tried);
    else
        rc = eng_bind_issue(b, ENG_ISSUE_MISSING, ERR_FORMAT, x->name, expected, NULL, e, "missing tensor (%s): the sheet knows no name for it in %s files", at,
                            b->env->cfg.gguf ? "GGUF" : "safetensors");
    if (rc || (rc = eng_bind_reserve(b, 1, e)))
        return rc;
    out->first = b->n; /* one entry stands for all experts, too */
    eng_bind_add(b, x, NULL, experts ? out->dims + 1 : out->dims, experts ? out->n_dims - 1 : out->n_dims)->name = x->name;
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
    struct eng_choice c = {0};
    uint32_t experts;
    int rc;

    if ((rc = choose(b, x, &c, e)) || (rc = shape_of(b, x, out, e)) || (rc = expert_count(b, x, &experts, e)))
        return rc;
    out->bias = KRN_NO_WEIGHT;
    out->n = experts ? experts : 1;
    if (experts && ((out->n_dims != 3 && out->n_dims != 2) || out->dims[0] != experts))
        return err_set(e, ERR_FORMAT, "tensor @%s: an expert tensor has the shape [experts, rows, cols], a bias [experts, values]", x->name);
    if (!c.found)
        return not_found(b, x, &c, experts > 0, out, e);
    if (!experts)
        return eng_bind_dense(b, x, &c, out, e);
    if ((rc = eng_bind_reserve(b, 2 * experts, e)))
        return rc;
    out->first = b->n;
    memset(b->tensors + b->n, 0, sizeof *b->tensors);
    memset(b->weights + b->n, 0, sizeof *b->weights);
    rc = c.expert_at == SIZE_MAX ? eng_bind_stack(b, x, &c, out, e) : eng_bind_experts(b, x, &c, out, e);
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
    struct eng_choice c = {0};

    if (!x || choose(b, x, &c, NULL) || !c.found || c.f.kind != ENG_FORM_PLAIN)
        return NULL;
    eng_bind_mark(b, c.f.data);
    return c.f.data;
}
