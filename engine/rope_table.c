/* The `ropes` of a sheet -> tables of the plan, made when a rope call first names them. Factors of a GGUF file are the only
 * weight bytes a compile reads: a few hundred. */
#include <string.h>

#include "engine/compile_internal.h"
#include "engine/rope.h"

#define TABLES_MAX 16

static int read_factors(struct eng_compiler *c, const struct off_tensor *t, uint32_t n, const float **out, struct err *e)
{
    const struct off_file *f = off_catalog_file(c->cat, t->file);
    float *v = ARENA_ARRAY(c->mem, float, n);
    size_t bytes = n * sizeof *v;

    *out = v;
    if (t->type != KRN_F32 || t->bytes != bytes)
        return err_set(e, ERR_FORMAT, "tensor %s in %s: expected F32 [%u], found %s of %llu bytes", t->name, f->base, n, krn_types[t->type].name, (unsigned long long)t->bytes);
    if (!v)
        return err_set(e, ERR_NOMEM, "rope factors");
    return off_catalog_read(c->cat, t, v, e);
}

static int value(struct eng_compiler *c, const struct json *def, const char *key, struct eng_value *out, struct err *e)
{
    const char *text = json_str(json_get(def, key));

    *out = (struct eng_value){.type = ENG_V_NULL};
    return text ? eng_env_text(&c->env, text, out, e) : ERR_OK;
}

static int build(struct eng_compiler *c, const struct json *def, struct krn_rope_table *t, struct err *e)
{
    struct eng_value dim, theta, scaling, original;
    struct eng_rope_spec s = {.scaling = &scaling, .ctx = c->p->ctx, .ctx_use = c->p->ctx_use};
    const char *factors = json_str(json_get(def, "factors")), *far = json_str(json_get(def, "factors_far"));
    const struct off_tensor *f;
    uint32_t beyond = 0;
    int64_t n;
    int rc;

    if ((rc = value(c, def, "dim", &dim, e)) || (rc = value(c, def, "theta", &theta, e)) || (rc = value(c, def, "scaling", &scaling, e)) ||
        (rc = value(c, def, "original", &original, e)))
        return rc;
    if (!eng_v_integer(&dim, &n) || n < 2 || n > 65536 || !eng_v_number(&theta, &s.theta))
        return err_set(e, ERR_FORMAT, "expected `dim`, a count from 2 to 65536, and `theta`, a number");
    s.dim = (uint32_t)n;
    eng_v_number(&original, &s.original);
    if (factors && (f = eng_bind_vector(&c->b, factors)) && (rc = read_factors(c, f, s.dim / 2, &s.factors, e)))
        return rc;
    if (far && (f = eng_bind_vector(&c->b, far)) && (rc = read_factors(c, f, s.dim / 2, &s.factors_far, e)))
        return rc;
    if (!(rc = eng_rope_build(&s, &c->env.cfg, c->mem, t, &beyond, e)) && beyond)
        c->p->ctx_switch = beyond;
    return rc;
}

int eng_rope_table(struct eng_compiler *c, const char *name, uint32_t *table, struct err *e)
{
    const struct json *def = json_get(json_get(c->env.sheet, "ropes"), name);
    struct eng_plan *p = c->p;
    int rc;

    for (*table = 0; *table < p->n_ropes; ++*table)
        if (!strcmp(c->rope_name[*table], name))
            return ERR_OK;
    if (!def)
        return eng_compile_at(c, e, ERR_FORMAT, "no rope table '%s' in sheet %s", name, c->env.sheet_name);
    if (p->n_ropes == TABLES_MAX)
        return err_set(e, ERR_LIMIT, "more than %d rope tables", TABLES_MAX);
    if (!p->ropes && !(p->ropes = ARENA_ARRAY(c->mem, struct krn_rope_table, TABLES_MAX)))
        return err_set(e, ERR_NOMEM, "rope tables");
    int32_t layer = c->env.layer; /* a table is made of parameters, never of a layer's values */
    eng_env_layer(&c->env, -1);
    rc = build(c, def, &p->ropes[p->n_ropes], e);
    eng_env_layer(&c->env, layer);
    if (rc)
        return err_prefix(e, rc, "rope table '%s'", name);
    c->rope_name[p->n_ropes++] = name;
    return ERR_OK;
}
