/* kernels/route.c - route.h. Scores through the table's exp and sigmoid, the choice in plain C: one pass that keeps the k best. */
#include "kernels/route.h"

#include <math.h>

/* The k best of c[0 .. n), best first, ties to the lower index; entries of -infinity are not eligible. */
static uint32_t best(const float *c, uint32_t n, uint32_t k, uint32_t *sel)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i] == -INFINITY || (have == k && !(c[i] > c[sel[k - 1]]))) continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && c[i] > c[sel[at - 1]]; at--) sel[at] = sel[at - 1];
        sel[at] = i;
    }
    return have;
}

/* Experts of the groups that do not stay become ineligible. */
static void keep_groups(float *c, uint32_t n, uint32_t groups, uint32_t keep, float *score)
{
    uint32_t size = n / groups;
    for (uint32_t g = 0; g < groups; g++) {
        float a = -INFINITY, b = -INFINITY;
        for (const float *p = c + g * size; p < c + (g + 1) * size; p++) {
            if (*p > a) {
                b = a;
                a = *p;
            } else if (*p > b) b = *p;
        }
        score[g] = size > 1 ? a + b : a;
    }
    for (uint32_t dropped = groups - keep; dropped > 0; dropped--) {
        uint32_t worst = UINT32_MAX; /* the highest number among equals goes first */
        for (uint32_t g = 0; g < groups; g++)
            if (!isnan(score[g]) && (worst == UINT32_MAX || score[g] <= score[worst])) worst = g;
        score[worst] = NAN;
        for (uint32_t i = worst * size; i < (worst + 1) * size; i++) c[i] = -INFINITY;
    }
}

static float softmax(const struct krn_ops *f, const float *x, uint32_t n, float *out)
{
    float top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] - top;
    f->exp(out, out, n);
    for (uint32_t i = 0; i < n; i++) sum += out[i];
    return sum;
}

static void scores(const struct krn_ops *f, const struct krn_router_spec *p, const float *x, float *s)
{
    if (p->kind == KRN_ROUTER_SIGMOID) f->sigmoid(s, x, p->n);
    else if (p->kind == KRN_ROUTER_SOFTMAX) {
        float sum = softmax(f, x, p->n, s);
        for (uint32_t i = 0; i < p->n; i++) s[i] = s[i] / sum;
    } else {
        for (uint32_t i = 0; i < p->n; i++) s[i] = x[i];
    }
}

static void weigh(const struct krn_ops *f, const struct krn_router_spec *p, const float *s, const uint32_t *sel, float *w)
{
    float sum = 0;
    for (uint32_t i = 0; i < p->k; i++) w[i] = s[sel[i]];
    if (p->kind == KRN_ROUTER_TOPK_SOFTMAX) {
        sum = softmax(f, w, p->k, w);
    } else if (p->norm) {
        for (uint32_t i = 0; i < p->k; i++) sum += w[i];
        sum += p->norm_eps;
    } else {
        sum = 1;
    }
    for (uint32_t i = 0; i < p->k; i++) w[i] = w[i] / sum * p->scale;
}

void krn_route(const struct krn_ops *f, const struct krn_router_spec *p, const float *x, const float *bias, float *scratch, float *ids, float *weights)
{
    float *s = scratch, *c = scratch + p->n, *group = scratch + 2 * (size_t)p->n;
    uint32_t sel[KRN_ROUTE_K_MAX], n = 0;
    bool finite = true;
    scores(f, p, x, s);
    for (uint32_t i = 0; i < p->n; i++) {
        c[i] = bias ? s[i] + bias[i] : s[i];
        finite = finite && isfinite(c[i]);
    }
    if (finite) {
        if (p->groups > 1) keep_groups(c, p->n, p->groups, p->keep, group);
        n = best(c, p->n, p->k, sel);
    }
    if (n < p->k) { /* nothing to choose by */
        for (uint32_t i = 0; i < p->k; i++) {
            ids[i] = (float)i;
            weights[i] = NAN;
        }
        return;
    }
    for (uint32_t i = 1; i < p->k; i++) /* by ascending number */
        for (uint32_t j = i; j > 0 && sel[j - 1] > sel[j]; j--) {
            uint32_t t = sel[j];
            sel[j] = sel[j - 1];
            sel[j - 1] = t;
        }
    weigh(f, p, s, sel, weights);
    for (uint32_t i = 0; i < p->k; i++) ids[i] = (float)sel[i];
}
