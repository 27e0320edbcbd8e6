/* tests/support/scales.h - where the scales lie in a published block, for tests that make blocks of random bits. */
#ifndef SLUICE_TESTS_SUPPORT_SCALES_H
#define SLUICE_TESTS_SUPPORT_SCALES_H
#include "kernels/types.h"

struct scale_places { int n; uint8_t at[2]; }; /* f16 fields, d first; MXFP4: one byte */

static inline const struct scale_places *scale_places(enum krn_type t)
{
    static const struct scale_places places[KRN_TYPE_COUNT] = {
        [KRN_Q4_0] = {1, {0}},      [KRN_Q4_1] = {2, {0, 2}}, [KRN_Q5_0] = {1, {0}},      [KRN_Q5_1] = {2, {0, 2}}, [KRN_Q8_0] = {1, {0}},
        [KRN_Q2_K] = {2, {80, 82}}, [KRN_Q3_K] = {1, {108}},  [KRN_Q4_K] = {2, {0, 2}},   [KRN_Q5_K] = {2, {0, 2}}, [KRN_Q6_K] = {1, {208}},
        [KRN_IQ4_NL] = {1, {0}},    [KRN_IQ4_XS] = {1, {0}},  [KRN_MXFP4] = {1, {0}}, [KRN_INT4] = {1, {0}},
    };
    return &places[t];
}
#endif
