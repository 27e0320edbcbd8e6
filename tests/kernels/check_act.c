/* tests/kernels/check_act.c - elementwise operators: against double, equal bits, and answers that tell variants apart. */
#include <string.h>
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { N = 777 };
static const struct krn_glu acts[] = {
    {KRN_ACT_SILU, 0, 0, 0, 0}, {KRN_ACT_GELU, 0, 0, 0, 0}, {KRN_ACT_GELU_TANH, 0, 0, 0, 0}, {KRN_ACT_RELU, 0, 0, 0, 0}, {KRN_ACT_QUICK_GELU, 0, 0, 0, 0},
    {KRN_ACT_CLAMP_SWIGLU, 1.702f, 7, 0, 0}, {KRN_ACT_SITU, 0, 0, 4, 25}, {KRN_ACT_SITU, 0, 0, 2, 0}};
enum { N_ACTS = sizeof acts / sizeof *acts };

static double clamp(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }
static double reference(double g, double u, const struct krn_glu *p)
{
    switch (p->act) {
    case KRN_ACT_SILU: return g / (1 + exp(-g)) * u;
    case KRN_ACT_GELU: return 0.5 * g * (1 + erf(g / sqrt(2))) * u;
    case KRN_ACT_GELU_TANH: return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g))) * u;
    case KRN_ACT_RELU: return fmax(g, 0) * u;
    case KRN_ACT_QUICK_GELU: return g / (1 + exp(-1.702 * g)) * u;
    case KRN_ACT_CLAMP_SWIGLU: {
        double h = fmin(g, p->limit);
        return (clamp(u, -p->limit, p->limit) + 1) * h / (1 + exp(-(double)p->alpha * h));
    }
    case KRN_ACT_SITU: return p->beta * tanh(g / p->beta) / (1 + exp(-g)) * (p->beta_u != 0 ? p->beta_u * tanh(u / p->beta_u) : u);
    }
    return NAN;
}
static float glu1(float g, float u, const struct krn_glu *p)
{
    float y;
    krn_ops_get(KRN_ISA_C)->glu(&y, &g, &u, 1, p);
    return y;
}

START_TEST(core)
{
    uint64_t s = 5;
    for (int k = 0; k < N_ACTS; k++)
        for (int i = 0; i < 100000; i++) {
            float g = rows_normal(&s, i % 2 ? 2 : 8), u = rows_normal(&s, 5);
            double scale = fabs((double)g) * fmax(1, fabs((double)u) + 1);
            ck_assert_msg(fabs(glu1(g, u, &acts[k]) - reference(g, u, &acts[k])) <= 2e-6 * scale, "act %d of %a, %a", acts[k].act, (double)g, (double)u);
        }
}
END_TEST

/* Values to 7 digits by the formulas of act.h in double precision; neighbours of each variant differ in the 4th digit or sooner. */
START_TEST(known)
{
    const struct { int act; float g, u, y; } table[] = {
        {0, 1, 1, 0.7310586f}, {0, -2, 3, -0.7152175f},
        {1, 1, 1, 0.8413447f}, {2, 1, 1, 0.8411920f}, {1, -1.5f, 2, -0.2004216f}, {2, -1.5f, 2, -0.2008568f}, /* erf, not tanh */
        {3, -1, 5, 0}, {3, 2, 5, 10}, {4, 1, 1, 0.8457958f},
        {5, 1, 1, 1.691592f}, {5, 9, 1, 13.99991f}, {5, -9, 1, -4.006356e-06f}, {5, 1, 20, 6.766366f}, {5, 1, -20, -5.074775f}, /* min on g, clamp on u, + 1 */
        {6, 1, 1, 0.715818f}, {6, 4, 25, 56.959320f}, {6, -4, 25, -1.043246f}, {6, 10, 100, 98.590782f}, {6, -1.5f, 0.5f, -0.130730f}, {6, 0.3f, -30, -3.584931f}};
    for (unsigned i = 0; i < sizeof table / sizeof *table; i++) {
        float y = glu1(table[i].g, table[i].u, &acts[table[i].act]);
        ck_assert_msg(fabsf(y - table[i].y) <= 2e-6f * fmaxf(fabsf(table[i].y), 0.5f), "%u: %.8g, expected %.8g", i, (double)y, (double)table[i].y);
    }
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    const float x[3] = {30, -100, 0.5f};
    float y[3];
    c->softcap(y, x, 3, 30);
    ck_assert_float_eq_tol(y[0], 22.847825f, 1e-5f); /* 30 tanh 1 */
    ck_assert_float_eq_tol(y[1], -29.923739f, 1e-5f);
    ck_assert_float_eq_tol(y[2], 0.49995371f, 1e-6f);
    c->silu(y, x, 3);
    ck_assert_float_eq_tol(y[2], 0.31122968f, 1e-6f);
    c->sigmoid(y, x, 3);
    ck_assert_float_eq_tol(y[2], 0.62245933f, 1e-6f);
}
END_TEST

START_TEST(variants)
{
    static float g[N], u[N], a[N], b[N];
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C), *f;
    uint64_t s = 6;
    for (unsigned i = 0; (f = rows_fast(i)); i++)
        for (unsigned k = 0; k < 200; k++) {
            size_t n = 1 + rows_draw(&s) % N;
            rows_fill(g, n, &s, k % 4 ? 3 : 60);
            rows_fill(u, n, &s, k % 5 ? 3 : 1e20f);
            g[rows_draw(&s) % n] = k % 3 ? NAN : -INFINITY;
            u[rows_draw(&s) % n] = k % 2 ? NAN : INFINITY;
            c->glu(a, g, u, n, &acts[k % N_ACTS]);
            f->glu(b, g, u, n, &acts[k % N_ACTS]);
            ck_assert_msg(rows_equal(a, b, n), "glu %u %s, %zu", k % N_ACTS, f->name, n);
            krn_binary_fn *const bc[] = {c->add, c->mul}, *const bf[] = {f->add, f->mul};
            krn_scalar_fn *const sc[] = {c->scale, c->softcap}, *const sf[] = {f->scale, f->softcap};
            krn_unary_fn *const uc[] = {c->sigmoid, c->silu}, *const uf[] = {f->sigmoid, f->silu};
            for (int j = 0; j < 2; j++) {
                bc[j](a, g, u, n);
                memcpy(b, g, n * sizeof *g);
                bf[j](b, b, u, n);
                ck_assert_msg(rows_equal(a, b, n), "binary %d %s, %zu", j, f->name, n);
                sc[j](a, g, n, 30);
                sf[j](b, g, n, 30);
                ck_assert_msg(rows_equal(a, b, n), "scalar %d %s, %zu", j, f->name, n);
                uc[j](a, g, n);
                uf[j](b, g, n);
                ck_assert_msg(rows_equal(a, b, n), "unary %d %s, %zu", j, f->name, n);
            }
        }
}
END_TEST

START_TEST(limits)
{
    for (int k = 0; k < N_ACTS; k++) {
        ck_assert(isnan(glu1(NAN, 1, &acts[k])));
        ck_assert(isnan(glu1(1, NAN, &acts[k])));
        ck_assert(glu1(0, 3, &acts[k]) == 0);
        ck_assert(isfinite(glu1(-3e38f, 0.5f, &acts[k])));
        ck_assert(isfinite(glu1(3e38f, 0.25f, &acts[k])));
    }
}
END_TEST

SUITE("kernels", "act", core, known, variants, limits)
