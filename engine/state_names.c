/* $name at a layer -> KV group or recurrent state of the plan. Layers whose declaration comes out equal share a group. */
#include <inttypes.h>
#include <string.h>

#include "engine/compile_internal.h"

#define GROUPS_MAX 64

static int declaration(struct eng_compiler *c, const char *name, const char *kind, const struct json **out, struct err *e)
{
    *out = json_get(json_get(c->env.sheet, "state"), name);
    if (c->env.layer < 0)
        return eng_compile_at(c, e, ERR_FORMAT, "state $%s is used outside the layers", name);
    if (!*out)
        return eng_compile_at(c, e, ERR_FORMAT, "no state `$%s` in sheet %s", name, c->env.sheet_name);
    return json_eq(json_get(*out, "kind"), kind) ? ERR_OK : eng_compile_at(c, e, ERR_FORMAT, "state $%s is not of kind %s", name, kind);
}

static int product(struct eng_compiler *c, const char *name, const char *text, uint64_t dims[4], unsigned *n, struct err *e)
{
    const struct eng_expr *list;
    int rc = text ? eng_env_list(&c->env, text, &list, e) : err_set(e, ERR_FORMAT, "expected a shape in quotes");

    *n = 0;
    for (const struct eng_expr *k = rc ? NULL : list->kid[0]; k && !rc; k = k->next) {
        struct eng_value v;
        int64_t i;
        if (!(rc = eng_env_eval(&c->env, k, &v, e)) && (*n == 4 || !eng_v_integer(&v, &i) || i < 0 || i > UINT32_MAX))
            rc = err_set(e, ERR_FORMAT, "`%s` is not a shape", text);
        if (!rc)
            dims[(*n)++] = (uint64_t)i;
    }
    return rc ? err_prefix(e, rc, "state $%s", name) : ERR_OK;
}

/* Values a token that the declaration states, summed over its parts. */
static int declared_per_token(struct eng_compiler *c, const char *name, const struct json *d, uint64_t *sum, struct err *e)
{
    const struct json *parts = json_get(d, "per_token");
    uint64_t dims[4];
    unsigned n;

    *sum = 0;
    for (size_t i = 0; json_is(parts, JSON_OBJECT) && i < parts->n; i++) {
        int rc = product(c, name, json_str(parts->members[i].value), dims, &n, e);
        uint64_t one = 1;
        if (rc)
            return rc;
        for (unsigned k = 0; k < n; k++)
            one *= dims[k];
        *sum += one;
    }
    return ERR_OK;
}

static int add_layer(struct eng_compiler *c, const uint16_t **layers, uint32_t *n, uint32_t *index, struct err *e)
{
    uint16_t *v = (uint16_t *)(uintptr_t)*layers; /* ours: the plan's pointer is const for readers */

    if (*n && v[*n - 1] == (uint16_t)c->env.layer) { /* several calls of one layer share it */
        *index = *n - 1;
        return ERR_OK;
    }
    if (!v && !(v = ARENA_ARRAY(c->mem, uint16_t, c->p->layers)))
        return err_set(e, ERR_NOMEM, "layers of a state");
    *layers = v;
    *index = *n;
    v[(*n)++] = (uint16_t)c->env.layer;
    return ERR_OK;
}

int eng_state_pages(struct eng_compiler *c, const char *name, uint32_t heads, uint32_t dim_k, uint32_t dim_v, bool latent, uint32_t window, uint32_t *group,
                    uint32_t *layer, struct err *e)
{
    const struct json *d;
    struct eng_plan *p = c->p;
    const char *w;
    uint64_t declared;
    uint32_t i = 0;
    int rc;

    if ((rc = declaration(c, name, "pages", &d, e)) || (rc = declared_per_token(c, name, d, &declared, e)))
        return rc;
    if (declared != (uint64_t)heads * (dim_k + dim_v))
        return eng_compile_at(c, e, ERR_FORMAT, "state $%s holds %" PRIu64 " values a token, the call writes %" PRIu64, name, declared, (uint64_t)heads * (dim_k + dim_v));
    if ((w = json_str(json_get(d, "window")))) {
        struct eng_value v;
        int64_t n = 0;
        if ((rc = eng_env_text(&c->env, w, &v, e)))
            return rc;
        if (!eng_v_integer(&v, &n) || n != window)
            return eng_compile_at(c, e, ERR_FORMAT, "state $%s has window %" PRId64 ", the call %u", name, n, window);
    }
    if (!p->kv && !(p->kv = ARENA_ARRAY(c->mem, struct eng_kv_group, GROUPS_MAX)))
        return err_set(e, ERR_NOMEM, "KV groups");
    int kind = latent ? ENG_KV_LATENT : ENG_KV_HEADS;
    for (; i < p->n_kv; i++) {
        const struct eng_kv_group *g = &p->kv[i];
        if (!strcmp(g->state, name) && (int)g->kind == kind && g->heads == heads && g->dim_k == dim_k && g->dim_v == dim_v && g->window == window)
            break;
    }
    if (i == GROUPS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d KV groups", GROUPS_MAX);
    if (i == p->n_kv)
        p->kv[p->n_kv++] = (struct eng_kv_group){.state = name, .kind = latent ? ENG_KV_LATENT : ENG_KV_HEADS, .heads = heads, .dim_k = dim_k, .dim_v = dim_v, .window = window};
    *group = i;
    return add_layer(c, &p->kv[i].layers, &p->kv[i].n_layers, layer, e);
}

static int read_fields(struct eng_compiler *c, const char *name, const struct json *d, struct eng_recurrent *r, struct err *e)
{
    const struct json *parts = json_get(d, "per_seq"), *types = json_get(d, "dtype");

    if (!json_is(parts, JSON_OBJECT) || !parts->n || parts->n > sizeof r->field / sizeof *r->field)
        return eng_compile_at(c, e, ERR_FORMAT, "state $%s: expected per_seq with 1 to %zu fields", name, sizeof r->field / sizeof *r->field);
    r->state = name;
    for (; r->n_fields < parts->n; r->n_fields++) {
        unsigned n;
        const char *field = parts->members[r->n_fields].key;
        int rc = product(c, name, json_str(parts->members[r->n_fields].value), r->field[r->n_fields].dims, &n, e);
        if (rc)
            return rc;
        r->field[r->n_fields].name = field;
        r->field[r->n_fields].n_dims = (uint8_t)n;
        r->field[r->n_fields].type = json_eq(json_get(types, field), "f32") ? KRN_F32 : KRN_BF16;
    }
    return ERR_OK;
}

static bool equal(const struct eng_recurrent *a, const struct eng_recurrent *b)
{
    if (strcmp(a->state, b->state) || a->n_fields != b->n_fields)
        return false;
    for (uint32_t i = 0; i < a->n_fields; i++)
        if (strcmp(a->field[i].name, b->field[i].name) || a->field[i].type != b->field[i].type || a->field[i].n_dims != b->field[i].n_dims ||
            memcmp(a->field[i].dims, b->field[i].dims, sizeof a->field[i].dims))
            return false;
    return true;
}

int eng_state_recurrent(struct eng_compiler *c, const char *name, uint32_t *state, uint32_t *layer, struct err *e)
{
    const struct json *d;
    struct eng_plan *p = c->p;
    struct eng_recurrent r = {0};
    uint32_t i = 0;
    int rc;

    if ((rc = declaration(c, name, "recurrent", &d, e)) || (rc = read_fields(c, name, d, &r, e)))
        return rc;
    if (!p->recurrent && !(p->recurrent = ARENA_ARRAY(c->mem, struct eng_recurrent, GROUPS_MAX)))
        return err_set(e, ERR_NOMEM, "recurrent states");
    while (i < p->n_recurrent && !equal(&p->recurrent[i], &r))
        i++;
    if (i == GROUPS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d recurrent states", GROUPS_MAX);
    if (i == p->n_recurrent)
        p->recurrent[p->n_recurrent++] = r;
    *state = i;
    return add_layer(c, &p->recurrent[i].layers, &p->recurrent[i].n_layers, layer, e);
}
