/* tests/kernels/check_mathf.c - exp, tanh, erf, sigmoid against double-precision libm; sin and cos at large positions. */
#include <string.h>
#include "kernels/mathf.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

/* Error in units of the last place of the exact value (of a denormal: of the smallest one). */
static double ulps(float got, double want)
{
    if (fabs(want) > 3.4028235677973366e38) return isinf(got) ? 0 : INFINITY; /* beyond the rounding bound of f32 */
    float w = (float)want, next = nextafterf(fabsf(w), INFINITY);
    if (isinf(got) || isinf(w)) return got == w ? 0 : INFINITY;
    return fabs((double)got - want) / ((double)next - (double)fabsf(w));
}

static double worst(krn_unary_fn *f, double (*ref)(double), float lo, float hi, unsigned n)
{
    double most = 0;
    for (unsigned i = 0; i <= n; i++) {
        float x = (float)((double)lo + ((double)hi - (double)lo) * i / n), y;
        f(&y, &x, 1);
        double u = ulps(y, ref((double)x));
        if (!(u <= most)) most = u;
    }
    return most;
}
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

START_TEST(core)
{
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    ck_assert_double_le(worst(c->exp, exp, -104, 89.5f, 2000003), 1.5);
    ck_assert_double_le(worst(c->exp, exp, -1e-3f, 1e-3f, 200003), 1.0);
    ck_assert_double_le(worst(c->tanh, tanh, -10, 10, 2000003), 2.0);
    ck_assert_double_le(worst(c->tanh, tanh, -1e-4f, 1e-4f, 100003), 1.0);
    ck_assert_double_le(worst(c->erf, erf, -5, 5, 2000003), 2.0);
    ck_assert_double_le(worst(c->sigmoid, sigmoid, -87, 40, 2000003), 2.5);
}
END_TEST

START_TEST(variants)
{
    enum { N = 4096 };
    static float x[N], a[N], b[N];
    uint64_t s = 7;
    for (size_t i = 0; i < N; i++) { /* any bits: denormals, infinities and NaN among them */
        uint32_t u = rows_draw(&s) ^ rows_draw(&s) << 16;
        memcpy(&x[i], &u, 4);
        if (i % 2) x[i] = rows_normal(&s, 20);
    }
    for (unsigned k = 0; rows_fast(k); k++) {
        const struct krn_ops *c = krn_ops_get(KRN_ISA_C), *f = rows_fast(k);
        krn_unary_fn *const of_c[] = {c->exp, c->tanh, c->erf, c->sigmoid, c->silu}, *const of_f[] = {f->exp, f->tanh, f->erf, f->sigmoid, f->silu};
        for (unsigned j = 0; j < 5; j++)
            for (size_t n = N - 17; n <= N; n++) {
                of_c[j](a, x, n);
                of_f[j](b, x, n);
                ck_assert_msg(rows_equal(a, b, n), "%s, function %u, %zu numbers", f->name, j, n);
            }
    }
}
END_TEST

START_TEST(limits)
{
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    const float x[] = {-INFINITY, INFINITY, NAN, 0, -0.0f, 88.72283f, 88.72284f, -103.97f, -104, 3e38f, -3e38f, 1e-45f};
    enum { N = sizeof x / sizeof *x };
    float y[N];
    c->exp(y, x, N);
    ck_assert(y[0] == 0 && isinf(y[1]) && isnan(y[2]) && y[3] == 1 && y[4] == 1);
    ck_assert(isfinite(y[5]) && isinf(y[6]) && y[7] == 0x1p-149f && y[8] == 0 && isinf(y[9]) && y[10] == 0 && y[11] == 1);
    c->tanh(y, x, N);
    ck_assert(y[0] == -1 && y[1] == 1 && isnan(y[2]) && y[3] == 0 && signbit(y[4]) && y[9] == 1 && y[10] == -1 && y[11] == 1e-45f);
    c->erf(y, x, N);
    ck_assert(y[0] == -1 && y[1] == 1 && isnan(y[2]) && y[3] == 0 && signbit(y[4]) && y[9] == 1 && y[10] == -1);
    c->sigmoid(y, x, N);
    ck_assert(y[0] == 0 && y[1] == 1 && isnan(y[2]) && y[3] == 0.5f && y[9] == 1 && y[10] == 0);
}
END_TEST

START_TEST(angles)
{
    uint64_t s = 3;
    for (int i = 0; i < 200000; i++) {
        double a = (double)rows_draw(&s) * (i % 4 ? 1e-3 : 1) * ((double)rows_draw(&s) / 2147483648.0), sn, cs;
        krn_sincos(a, &sn, &cs);
        ck_assert_double_eq_tol(sn, sin(a), 2e-15);
        ck_assert_double_eq_tol(cs, cos(a), 2e-15);
    }
    /* sin and cos of whole radians, to 18 digits (from series in 90-digit decimal arithmetic). */
    const struct { double a, s, c; } known[] = {
        {1048576, 0.330493140021734672, 0.943808393901311984}, {1e9, 0.545843449448699564, 0.837887181363902334}, {2147483647, -0.724916555144556391, -0.688836691877943835}, {355, -0.00003014435335948844921, -0.999999999545658980}};
    for (unsigned i = 0; i < 4; i++) {
        double sn, cs;
        krn_sincos(known[i].a, &sn, &cs);
        ck_assert_double_eq_tol(sn, known[i].s, 1e-15);
        ck_assert_double_eq_tol(cs, known[i].c, 1e-15);
    }
}
END_TEST

SUITE("kernels", "mathf", core, variants, limits, angles)
