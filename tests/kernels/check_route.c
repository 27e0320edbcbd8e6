/* tests/kernels/check_route.c - the router: answers that tell its variants apart, the formulas in double, equal bits, NaN. */
#include "kernels/route.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { N = 96 };
static const struct krn_router_spec base = {KRN_ROUTER_SIGMOID, 4, 2, 1, 1, true, 1e-20f, 1};

static void run(const struct krn_router_spec *p, const float *x, const float *bias, float *ids, float *w)
{
    float scratch[KRN_ROUTE_SCRATCH(N)];
    krn_route(krn_ops_get(KRN_ISA_C), p, x, bias, scratch, ids, w);
}
static void expect(const struct krn_router_spec *p, const float *x, const float *bias, const float *ids, const float *w)
{
    float got[8], weight[8];
    run(p, x, bias, got, weight);
    for (uint32_t i = 0; i < p->k; i++) {
        ck_assert_float_eq(got[i], ids[i]);
        ck_assert_float_eq_tol(weight[i], w[i], 2e-6f);
    }
}

/* Numbers computed in double from the formulas of route.h. */
START_TEST(known)
{
    const float x[4] = {0.5f, -1, 2, 0.1f}, bias[4] = {0, 1, -0.5f, 0.2f};
    struct krn_router_spec p = base;
    expect(&p, x, bias, (float[]){1, 3}, (float[]){0.338751f, 0.661249f});
    expect(&p, x, NULL, (float[]){0, 2}, (float[]){0.414074f, 0.585926f});
    p.norm = false;
    p.scale = 2.5f;
    expect(&p, x, bias, (float[]){1, 3}, (float[]){0.672354f, 1.312448f}); /* scaling also without renormalisation */
    p = base;
    p.kind = KRN_ROUTER_SOFTMAX;
    p.norm_eps = 0;
    expect(&p, x, NULL, (float[]){0, 2}, (float[]){0.182426f, 0.817574f});
    p.norm = false;
    expect(&p, x, NULL, (float[]){0, 2}, (float[]){0.156859f, 0.702995f});
    p.kind = KRN_ROUTER_TOPK_SOFTMAX;
    expect(&p, x, NULL, (float[]){0, 2}, (float[]){0.182426f, 0.817574f});
    /* Three groups of two: by their sums the first and the last stay (0.6+0.5, 0.7+0.3), by their maximum the second and the last. */
    const float s[6] = {0.405465f, 0, 1.386294f, -4.595120f, 0.847298f, -0.847298f}; /* sigmoid: .6 .5 .8 .01 .7 .3 */
    p = (struct krn_router_spec){KRN_ROUTER_SIGMOID, 6, 2, 3, 2, true, 1e-20f, 1};
    expect(&p, s, NULL, (float[]){0, 4}, (float[]){0.461538f, 0.538462f});
    p.groups = p.keep = 1;
    expect(&p, s, NULL, (float[]){2, 4}, (float[]){0.533333f, 0.466667f});
    /* Biased scores below zero: groups that do not stay must not win by a zero. */
    const float low[6] = {-1, -1, -1, -1, -1, -1};
    p.groups = 3;
    p.keep = 1;
    expect(&p, s, low, (float[]){0, 1}, (float[]){0.545455f, 0.454545f});
}
END_TEST

START_TEST(ties)
{
    const float x[8] = {1, 2, 2, 1, 2, 2, 1, 2};
    struct krn_router_spec p = {KRN_ROUTER_SOFTMAX, 8, 3, 1, 1, true, 0, 1};
    expect(&p, x, NULL, (float[]){1, 2, 4}, (float[]){1 / 3.0f, 1 / 3.0f, 1 / 3.0f});
    p.groups = 4;
    p.keep = 2;
    expect(&p, x, NULL, (float[]){1, 4, 5}, (float[]){1 / 3.0f, 1 / 3.0f, 1 / 3.0f}); /* of the three groups of a 1 and a 2 the first stays, beside the one of two 2s */
}
END_TEST

/* Selection by sorting, in double. */
static void reference(const struct krn_router_spec *p, const float *x, const float *bias, uint32_t *ids, double *w)
{
    double s[N], c[N], sum = 0, top = -1e30;
    uint32_t size = p->n / p->groups;
    bool out[N] = {false};
    for (uint32_t i = 0; i < p->n; i++) top = fmax(top, x[i]);
    for (uint32_t i = 0; i < p->n; i++) sum += exp(x[i] - top);
    for (uint32_t i = 0; i < p->n; i++) {
        s[i] = p->kind == KRN_ROUTER_SIGMOID ? 1 / (1 + exp(-x[i])) : p->kind == KRN_ROUTER_SOFTMAX ? exp(x[i] - top) / sum : x[i];
        c[i] = s[i] + (bias ? bias[i] : 0);
    }
    for (uint32_t drop = p->groups - p->keep; drop; drop--) {
        uint32_t worst = 0;
        double least = 1e30;
        for (uint32_t g = 0; g < p->groups; g++) {
            double a = -1e30, b = -1e30;
            for (uint32_t i = g * size; i < (g + 1) * size; i++) {
                b = fmax(b, fmin(a, c[i]));
                a = fmax(a, c[i]);
            }
            if (!out[g * size] && (size > 1 ? a + b : a) <= least) {
                least = size > 1 ? a + b : a;
                worst = g;
            }
        }
        for (uint32_t i = 0; i < size; i++) out[worst * size + i] = true;
    }
    for (uint32_t k = 0; k < p->k; k++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < p->n; i++)
            if (!out[i] && (best == UINT32_MAX || c[i] > c[best])) best = i;
        out[best] = true;
        ids[k] = best;
    }
    for (uint32_t i = 1; i < p->k; i++)
        for (uint32_t j = i; j && ids[j - 1] > ids[j]; j--) {
            uint32_t t = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = t;
        }
    sum = p->norm ? (double)p->norm_eps : 1;
    for (uint32_t i = 0; i < p->k; i++) w[i] = p->kind == KRN_ROUTER_TOPK_SOFTMAX ? exp(x[ids[i]] - top) : s[ids[i]];
    if (p->kind == KRN_ROUTER_TOPK_SOFTMAX) sum = 0;
    for (uint32_t i = 0; i < p->k && (p->norm || p->kind == KRN_ROUTER_TOPK_SOFTMAX); i++) sum += w[i];
    for (uint32_t i = 0; i < p->k; i++) w[i] = w[i] / sum * (double)p->scale;
}

START_TEST(drawn)
{
    uint64_t seed = 5;
    for (int round = 0; round < 600; round++) {
        static const uint32_t ns[] = {1, 8, 24, 96}, groups[] = {1, 1, 3, 8};
        unsigned m = (unsigned)round % 4;
        struct krn_router_spec p = {(enum krn_router)(round / 4 % 3), ns[m], 1, groups[m], 1, round & 16, 1e-20f, 1.5f};
        p.keep = 1 + (uint32_t)round % p.groups;
        p.k = 1 + rows_draw(&seed) % 8;
        if (p.k > p.keep * (p.n / p.groups)) p.k = p.keep * (p.n / p.groups);
        float x[N], bias[N], ids[8], w[8], ids2[8], w2[8], scratch[KRN_ROUTE_SCRATCH(N)];
        uint32_t want[8];
        double weight[8];
        rows_fill(x, p.n, &seed, 2);
        rows_fill(bias, p.n, &seed, 0.5f);
        const float *b = round & 32 && p.kind != KRN_ROUTER_TOPK_SOFTMAX ? bias : NULL;
        run(&p, x, b, ids, w);
        reference(&p, x, b, want, weight);
        for (uint32_t i = 0; i < p.k; i++) {
            ck_assert_float_eq(ids[i], (float)want[i]);
            ck_assert_double_le(fabs(w[i] - weight[i]), 2e-6 * fabs(weight[i]) + 1e-9);
        }
        for (unsigned k = 0; rows_fast(k); k++) {
            krn_route(rows_fast(k), &p, x, b, scratch, ids2, w2);
            ck_assert(rows_equal(ids, ids2, p.k) && rows_equal(w, w2, p.k));
        }
    }
}
END_TEST

START_TEST(broken)
{
    float x[4] = {1, NAN, 3, 2}, ids[2], w[2];
    for (int kind = 0; kind < 3; kind++) {
        struct krn_router_spec p = base;
        p.kind = (enum krn_router)kind;
        x[1] = NAN;
        run(&p, x, NULL, ids, w);
        ck_assert(ids[0] == 0 && ids[1] == 1 && isnan(w[0]) && isnan(w[1]));
        x[1] = INFINITY;
        run(&p, x, NULL, ids, w);
        ck_assert(ids[0] < 4 && ids[1] < 4 && ids[0] < ids[1]);
    }
}
END_TEST

SUITE("kernels", "route", known, ties, drawn, broken)
