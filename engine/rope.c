#include "engine/rope.h"

#include <math.h>
#include <string.h>

struct build { const struct eng_rope_spec *s; struct eng_cfg *cfg; struct err *e; double *f, *far; uint32_t n, ctx_switch; int rc; }; /* far NULL: the same */

static const struct eng_value *field(struct build *b, const char *key)
{
    const struct eng_member *m = b->s->scaling ? eng_v_member(b->s->scaling, key) : NULL;

    if (m && b->cfg)
        eng_cfg_read_node(b->cfg, m->src);
    return m && m->value.type != ENG_V_NULL ? &m->value : NULL;
}

/* dflt NAN: the field must be there. */
static double number(struct build *b, const char *key, double dflt)
{
    const struct eng_value *v = field(b, key);
    double x = dflt;

    if (v && !eng_v_number(v, &x)) {
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: `%s` must be a number, found %s", key, eng_v_type(v));
        return 1;
    }
    if (isnan(x))
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: `%s` is missing", key);
    return isnan(x) ? 1 : x;
}

static double positive(struct build *b, const char *key, double dflt)
{
    double x = number(b, key, dflt);

    if (!b->rc && !(x > 0 && isfinite(x)))
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: `%s` is %g, expected more than 0", key, x);
    return x > 0 ? x : 1;
}

static double original(struct build *b)
{
    double x = positive(b, "original_max_position_embeddings", b->s->ctx);

    return b->s->original > 0 ? b->s->original : x; /* the one at the top of a config rules */
}

static float linear(struct build *b)
{
    double factor = positive(b, "factor", NAN);

    for (uint32_t j = 0; j < b->n; j++)
        b->f[j] /= factor;
    return 1;
}

static float llama3(struct build *b)
{
    double factor = positive(b, "factor", NAN), low = positive(b, "low_freq_factor", NAN), high = positive(b, "high_freq_factor", NAN), orig = original(b);

    if (!b->rc && high <= low)
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: high_freq_factor %g is not above low_freq_factor %g", high, low);
    for (uint32_t j = 0; j < b->n && !b->rc; j++) {
        double wave = 2 * M_PI / b->f[j], s = (orig / wave - low) / (high - low);
        if (wave > orig / low)
            b->f[j] /= factor;
        else if (wave >= orig / high)
            b->f[j] = (1 - s) * b->f[j] / factor + s * b->f[j];
    }
    return 1;
}

static double m_of(double factor, double c) { return factor <= 1 ? 1 : 0.1 * c * log(factor) + 1; }

static float yarn(struct build *b)
{
    double orig = original(b), factor = positive(b, "factor", b->s->ctx / orig), d = b->s->dim, theta = b->s->theta;
    double fast = number(b, "beta_fast", 32), slow = number(b, "beta_slow", 1), given = number(b, "attention_factor", 0);
    double m = number(b, "mscale", 0), m_all = number(b, "mscale_all_dim", 0), file = number(b, "yarn_attn_factor", 1);
    const struct eng_value *cut = field(b, "truncate");
    bool truncate = !cut || eng_v_truth(cut);

    fast = fast > 0 ? fast : 32;
    slow = slow > 0 ? slow : 1;
    double low = d * log(orig / (2 * M_PI * fast)) / (2 * log(theta)), high = d * log(orig / (2 * M_PI * slow)) / (2 * log(theta));
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, d - 1);
    if (!(high > low) && !(high < low))
        high += 0.001;
    for (uint32_t j = 0; j < b->n; j++) {
        double t = fmin(fmax((j - low) / (high - low), 0), 1);
        b->f[j] = b->f[j] / factor * t + b->f[j] * (1 - t);
    }
    double mu = given > 0 ? given : m > 0 && m_all > 0 ? m_of(factor, m) / m_of(factor, m_all) : m_of(factor, 1) * file;
    return (float)mu;
}

/* f divided by a list, by its name in the config. */
static void divide(struct build *b, const char *key, double *f)
{
    const struct eng_value *list = field(b, key);
    double x;

    if (!list || list->type != ENG_V_LIST || list->n != b->n) {
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: expected %s of %u numbers", key, b->n);
        return;
    }
    for (uint32_t j = 0; j < b->n && !b->rc; j++) {
        if (!eng_v_number(&list->u.items[j], &x) || !(x > 0))
            b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: factor %u of %s is no number above 0", j, key);
        else
            f[j] /= x;
    }
}

/* Both lists: a sequence that may pass the original context turns by the long one from its first token on, since stored keys were turned
 * with it. A GGUF file has the lists as tensors, which are divided by like any factors of a file. */
static float longrope(struct build *b)
{
    double orig = original(b), factor = number(b, "factor", 0), given = number(b, "attention_factor", 0);
    bool in_file = b->s->factors && !field(b, "short_factor") && !field(b, "long_factor");

    b->ctx_switch = orig < UINT32_MAX ? (uint32_t)orig : 0;
    if (factor <= 0)
        factor = b->s->ctx / orig;
    memcpy(b->far, b->f, b->n * sizeof *b->f);
    if (in_file && b->s->ctx_use > orig && !b->s->factors_far)
        b->rc = err_set(b->e, ERR_FORMAT, "rope scaling: no list for contexts beyond %g tokens (asked: %u)", orig, b->s->ctx_use);
    if (!in_file)
        divide(b, "short_factor", b->f);
    if (!in_file && !b->rc)
        divide(b, "long_factor", b->far);
    return (float)(given > 0 ? given : factor <= 1 ? 1 : sqrt(1 + log(factor) / log(orig)));
}

/* Frequencies change with the length only beyond the model's context; what was stored before would have to be made anew. */
static float dynamic(struct build *b)
{
    positive(b, "factor", 1);
    if (!b->rc && b->s->ctx_use > b->s->ctx)
        b->rc = err_set(b->e, ERR_UNSUPPORTED, "rope scaling `dynamic` beyond the context of %u tokens that the model was made for (asked: %u)", b->s->ctx, b->s->ctx_use);
    return 1;
}

static const struct { const char *name; float (*f)(struct build *b); } kinds[] = {
    {"default", NULL}, {"none", NULL}, {"dynamic", dynamic}, {"linear", linear}, {"llama3", llama3}, {"yarn", yarn}, {"longrope", longrope}, {"su", longrope}};

static void by_file(struct build *b, const float *factors, double *f)
{
    for (uint32_t j = 0; j < b->n && factors && !b->rc; j++) {
        if (!(factors[j] > 0))
            b->rc = err_set(b->e, ERR_FORMAT, "rope factor %u in the file is %g, expected more than 0", j, (double)factors[j]);
        f[j] /= factors[j];
    }
}

int eng_rope_build(const struct eng_rope_spec *s, struct eng_cfg *cfg, struct arena *a, struct krn_rope_table *out, uint32_t *ctx_switch, struct err *e)
{
    struct build b = {.s = s, .cfg = cfg, .e = e, .n = s->dim / 2};
    const struct eng_value *type = field(&b, "rope_type"), *older = field(&b, "type");
    const char *kind = "default";

    memset(out, 0, sizeof *out);
    *ctx_switch = 0;
    if (s->dim < 2 || s->dim % 2 || s->dim > 65536 || !(s->theta > 1 && s->theta <= 1e15))
        return err_set(e, ERR_FORMAT, "rope over %u dims with base %g: expected an even count and a base above 1 and at most 1e15", s->dim, s->theta);
    if (!(b.f = ARENA_ARRAY(a, double, b.n)) || !(b.far = ARENA_ARRAY(a, double, b.n)))
        return err_set(e, ERR_NOMEM, "rope table");
    if (!type)
        type = older;
    if (type && type->type == ENG_V_STR)
        kind = type->u.s;
    else if (s->scaling && s->scaling->type == ENG_V_OBJECT && !type && eng_v_member(s->scaling, "factor"))
        return err_set(e, ERR_FORMAT, "rope scaling has a factor and no rope_type");
    if (!strcmp(kind, "yarn") && field(&b, "short_factor"))
        kind = "longrope"; /* what the first Phi-3 files call it */
    for (uint32_t j = 0; j < b.n; j++)
        b.f[j] = pow(s->theta, -2.0 * j / s->dim);
    out->mscale = 1;
    size_t k = 0, n = sizeof kinds / sizeof *kinds;
    while (k < n && strcmp(kinds[k].name, kind))
        k++;
    if (k == n)
        return err_set(e, ERR_UNSUPPORTED, "rope scaling kind `%.40s` (known: default, linear, dynamic, llama3, yarn, longrope)", kind);
    if (kinds[k].f)
        out->mscale = kinds[k].f(&b);
    by_file(&b, s->factors, b.f);
    by_file(&b, s->factors_far, b.far);
    out->n_freq = b.n;
    out->inv_freq = b.f;
    out->inv_freq_far = b.ctx_switch ? b.far : NULL;
    *ctx_switch = b.ctx_switch;
    return b.rc;
}
