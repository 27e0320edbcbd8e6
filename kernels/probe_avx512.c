/* kernels/probe_avx512.c - how fast byte products come out of registers alone: vpdpbusd, 128 operations each. */
#include <immintrin.h>
#include "kernels/probe.h"

uint64_t krn_dots_avx512(uint32_t n)
{
    __m512i acc[12]; /* as many chains as hide the latency */
    const __m512i q = _mm512_set1_epi8(1);
    for (int i = 0; i < 12; i++) acc[i] = _mm512_set1_epi8((char)i);
    for (uint32_t k = 0; k < n; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm512_dpbusd_epi32(acc[i], acc[i], q);
    for (int i = 1; i < 12; i++) acc[0] = _mm512_xor_si512(acc[0], acc[i]);
    return (uint64_t)n * 12 * 128 + (_mm512_test_epi32_mask(acc[0], acc[0]) ? 1 : 0); /* the result is used */
}
