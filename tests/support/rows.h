/* tests/support/rows.h - for tests of row operators: repeatable numbers, the tables this machine can run, equality to the bit
 * (with == : NaN equals NaN, and zeros of either sign are equal). */
#ifndef SLUICE_TESTS_ROWS_H
#define SLUICE_TESTS_ROWS_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "kernels/ops.h"

static inline uint32_t rows_draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}
/* Roughly normal, deviation `scale`. */
static inline float rows_normal(uint64_t *state, float scale)
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += (float)(rows_draw(state) & 0xffffff) / 16777216.0f - 0.5f;
    return s * 1.41421356f * scale;
}
static inline void rows_fill(float *x, size_t n, uint64_t *state, float scale)
{
    for (size_t i = 0; i < n; i++) x[i] = rows_normal(state, scale);
}
static inline bool rows_equal(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(a[i] == b[i]) && !(isnan(a[i]) && isnan(b[i]))) {
            printf("element %zu: %a and %a\n", i, (double)a[i], (double)b[i]);
            return false;
        }
    return true;
}
/* The i-th table beside plain C that runs here; NULL after the last. Says once what is skipped. */
static inline const struct krn_ops *rows_fast(unsigned i)
{
    static const enum krn_isa isas[] = {KRN_ISA_AVX2, KRN_ISA_AVX512};
    static bool said[2];
    for (unsigned k = 0; k < 2; k++) {
        if (!krn_isa_have(isas[k])) {
            if (!said[k]) printf("SKIP %s: this processor has none\n", krn_isa_name(isas[k]));
            said[k] = true;
        } else if (!i--) return krn_ops_get(isas[k]);
    }
    return NULL;
}
#endif
