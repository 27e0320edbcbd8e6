/* tests/kernels/check_rope.c - rotary embedding: pairs, partial heads, sections, large positions, equal bits. */
#include <string.h>
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { DIM = 160 };

START_TEST(core)
{
    uint64_t s = 9;
    float x[DIM], y[DIM], cs[DIM], sn[DIM];
    double inv[DIM / 2];
    static const uint32_t positions[] = {0, 1, 17, 4095, 131071, 1048576, 100000007};
    for (unsigned p = 0; p < 7; p++)
        for (int k = 0; k < 20; k++) {
            uint32_t n = 1 + rows_draw(&s) % (DIM / 2), dim = 2 * n + rows_draw(&s) % (DIM - 2 * n + 1);
            enum krn_pairs pairs = k % 2 ? KRN_PAIRS_ADJACENT : KRN_PAIRS_HALVES;
            float mscale = k % 3 ? 1 : 1.25f;
            for (uint32_t j = 0; j < n; j++) inv[j] = pow(10000, -(double)j / n);
            struct krn_rope_table t = {.n_freq = n, .inv_freq = inv, .mscale = mscale};
            rows_fill(x, DIM, &s, 1);
            krn_rope_angles(&t, (uint32_t[3]){positions[p], 0, 0}, cs, sn);
            krn_ops_get(KRN_ISA_C)->rope(y, x, cs, sn, n, dim, pairs);
            for (uint32_t j = 0; j < n; j++) {
                uint32_t a = pairs == KRN_PAIRS_ADJACENT ? 2 * j : j, b = pairs == KRN_PAIRS_ADJACENT ? 2 * j + 1 : j + n;
                double c = cos(positions[p] * inv[j]) * mscale, z = sin(positions[p] * inv[j]) * mscale;
                ck_assert_double_eq_tol(y[a], x[a] * c - x[b] * z, 1e-6);
                ck_assert_double_eq_tol(y[b], x[b] * c + x[a] * z, 1e-6);
            }
            for (uint32_t i = 2 * n; i < dim; i++) ck_assert(y[i] == x[i]);
        }
}
END_TEST

START_TEST(known)
{
    /* One quarter turn takes (a, b) to (-b, a): halves pairs (0,2)(1,3), adjacent (0,1)(2,3). */
    const double quarter[2] = {1.5707963267948966, 1.5707963267948966};
    struct krn_rope_table t = {.n_freq = 2, .inv_freq = quarter, .mscale = 1};
    float c[2], s[2], y[6], x[6] = {1, 2, 3, 4, 5, 6};
    const float halves[6] = {-3, -4, 1, 2, 5, 6}, adjacent[6] = {-2, 1, -4, 3, 5, 6};
    krn_rope_angles(&t, (uint32_t[3]){1, 0, 0}, c, s);
    krn_ops_get(KRN_ISA_C)->rope(y, x, c, s, 2, 6, KRN_PAIRS_HALVES);
    for (int i = 0; i < 6; i++) ck_assert_float_eq_tol(y[i], halves[i], 1e-6f);
    krn_ops_get(KRN_ISA_C)->rope(y, x, c, s, 2, 6, KRN_PAIRS_ADJACENT);
    for (int i = 0; i < 6; i++) ck_assert_float_eq_tol(y[i], adjacent[i], 1e-6f);
    /* Position 1048576 at frequency 1: sin and cos of 2^20 to 9 digits, where an f32 angle of 1048576 * 0.1f is off by 1e-3. */
    const double f[2] = {1, 0.1};
    t.inv_freq = f;
    krn_rope_angles(&t, (uint32_t[3]){1048576, 0, 0}, c, s);
    ck_assert(s[0] == 0.330493140f && c[0] == 0.943808394f);
    ck_assert_float_eq_tol(s[1], (float)sin(104857.6), 1e-7f);
}
END_TEST

START_TEST(sections)
{
    /* m-rope, contiguous [2, 1, 3]: pairs take the time, height, width row of positions in turn. */
    const double f[6] = {1, 1, 1, 1, 1, 1};
    struct krn_rope_table t = {.n_freq = 6, .inv_freq = f, .mscale = 1, .sections = true, .section = {2, 1, 3}};
    float c[6], s[6];
    const uint32_t pos[3] = {1, 2, 3}, of[6] = {1, 1, 2, 3, 3, 3};
    krn_rope_angles(&t, pos, c, s);
    for (int i = 0; i < 6; i++) ck_assert(s[i] == (float)sin(of[i]) && c[i] == (float)cos(of[i]));
    const uint32_t same[3] = {5, 5, 5};
    float c1[6], s1[6];
    krn_rope_angles(&t, same, c, s);
    t.sections = false;
    krn_rope_angles(&t, same, c1, s1);
    ck_assert(rows_equal(c, c1, 6) && rows_equal(s, s1, 6));
}
END_TEST

START_TEST(variants)
{
    const struct krn_ops *ref = krn_ops_get(KRN_ISA_C), *f;
    float x[DIM], c[DIM], s[DIM], a[DIM], b[DIM];
    uint64_t seed = 4;
    for (unsigned i = 0; (f = rows_fast(i)); i++)
        for (int k = 0; k < 2000; k++) {
            size_t n = 1 + rows_draw(&seed) % (DIM / 2), dim = 2 * n + rows_draw(&seed) % (DIM - 2 * n + 1);
            enum krn_pairs pairs = k % 2 ? KRN_PAIRS_ADJACENT : KRN_PAIRS_HALVES;
            rows_fill(x, dim, &seed, 10);
            rows_fill(c, n, &seed, 1);
            rows_fill(s, n, &seed, 1);
            if (k % 9 == 0) x[rows_draw(&seed) % dim] = NAN;
            ref->rope(a, x, c, s, n, dim, pairs);
            memcpy(b, x, sizeof b);
            f->rope(b, k % 3 ? x : b, c, s, n, dim, pairs);
            ck_assert_msg(rows_equal(a, b, dim), "%s, %zu pairs of %zu, layout %d", f->name, n, dim, pairs);
        }
}
END_TEST

SUITE("kernels", "rope", core, known, sections, variants)
