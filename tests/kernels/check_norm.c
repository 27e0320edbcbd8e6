/* tests/kernels/check_norm.c - rmsnorm and l2norm: against the formula in double, equal bits, answers that tell variants apart. */
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { N = 1030 };
static const size_t sizes[] = {1, 2, 15, 16, 17, 31, 64, 100, 576, 1029};
static const unsigned n_sizes = sizeof sizes / sizeof *sizes;

static void reference(double *y, const float *x, const float *w, size_t n, double eps, double offset, bool mean)
{
    double ss = 0;
    for (size_t i = 0; i < n; i++) ss += (double)x[i] * x[i];
    double r = 1 / sqrt((mean ? ss / (double)n : ss) + eps);
    for (size_t i = 0; i < n; i++) y[i] = x[i] * r * (w ? w[i] + offset : 1);
}
static double worst(const float *y, const double *want, size_t n)
{
    double top = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs(y[i] - want[i]);
        if (!(d <= most)) most = d;
        if (fabs(want[i]) > top) top = fabs(want[i]);
    }
    return most / top;
}

START_TEST(core)
{
    static float x[N], w[N], y[N];
    static double want[N];
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    uint64_t s = 1;
    rows_fill(w, N, &s, 1);
    for (unsigned k = 0; k < n_sizes; k++)
        for (int scale = -8; scale <= 8; scale += 4) {
            size_t n = sizes[k];
            rows_fill(x, n, &s, powf(10, (float)scale));
            for (int form = 0; form < 3; form++) { /* plain, offset 1, without weight */
                c->rmsnorm(y, x, form < 2 ? w : NULL, n, 1e-5f, (float)(form == 1));
                reference(want, x, form < 2 ? w : NULL, n, 1e-5f, form == 1, true);
                ck_assert_double_le(worst(y, want, n), 1e-6);
            }
            c->l2norm(y, x, n, 1e-6f);
            reference(want, x, NULL, n, 1e-6f, 0, false);
            ck_assert_double_le(worst(y, want, n), 1e-6);
        }
}
END_TEST

START_TEST(known)
{
    /* x = (3, 4): mean square 12.5. eps inside the root, so with eps 12.5 the root is 5 and the result (0.6, 0.8). */
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    const float x[2] = {3, 4}, w[2] = {0.5f, -2};
    float y[2];
    c->rmsnorm(y, x, NULL, 2, 12.5f, 0);
    ck_assert_float_eq_tol(y[0], 0.6f, 1e-6f);
    ck_assert_float_eq_tol(y[1], 0.8f, 1e-6f);
    c->rmsnorm(y, x, w, 2, 12.5f, 0);
    ck_assert_float_eq_tol(y[0], 0.3f, 1e-6f);
    ck_assert_float_eq_tol(y[1], -1.6f, 1e-6f);
    c->rmsnorm(y, x, w, 2, 12.5f, 1); /* Gemma: 1 + w */
    ck_assert_float_eq_tol(y[0], 0.9f, 1e-6f);
    ck_assert_float_eq_tol(y[1], -0.8f, 1e-6f);
    c->l2norm(y, x, 2, 75); /* eps is added to the sum: sqrt(25 + 75) */
    ck_assert_float_eq_tol(y[0], 0.3f, 1e-6f);
    ck_assert_float_eq_tol(y[1], 0.4f, 1e-6f);
}
END_TEST

START_TEST(variants)
{
    static float x[N], w[N], a[N], b[N];
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C), *f;
    uint64_t s = 2;
    for (unsigned i = 0; (f = rows_fast(i)); i++)
        for (unsigned k = 0; k < 300; k++) {
            size_t n = k < n_sizes ? sizes[k] : 1 + rows_draw(&s) % (N - 1);
            rows_fill(x, n, &s, k % 3 ? 1.0f : 1e18f);
            rows_fill(w, n, &s, 1);
            if (k % 17 == 16) x[rows_draw(&s) % n] = k % 2 ? NAN : INFINITY;
            c->rmsnorm(a, x, k % 5 ? w : NULL, n, 1e-6f, (float)(k % 2));
            memcpy(b, x, n * sizeof *x);
            f->rmsnorm(b, b, k % 5 ? w : NULL, n, 1e-6f, (float)(k % 2)); /* in place */
            ck_assert_msg(rows_equal(a, b, n), "rmsnorm %s, %zu", f->name, n);
            c->l2norm(a, x, n, 1e-6f);
            f->l2norm(b, x, n, 1e-6f);
            ck_assert_msg(rows_equal(a, b, n), "l2norm %s, %zu", f->name, n);
        }
}
END_TEST

START_TEST(limits)
{
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    float x[20] = {0}, y[20];
    c->rmsnorm(y, x, NULL, 20, 1e-5f, 0);
    for (int i = 0; i < 20; i++) ck_assert(y[i] == 0);
    x[7] = NAN;
    c->rmsnorm(y, x, NULL, 20, 1e-5f, 0);
    for (int i = 0; i < 20; i++) ck_assert(isnan(y[i]));
}
END_TEST

SUITE("kernels", "norm", core, known, variants, limits)
