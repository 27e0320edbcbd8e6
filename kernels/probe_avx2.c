/* kernels/probe_avx2.c - how fast byte products come out of registers alone: vpmaddubsw, 64 operations each. */
#include <immintrin.h>
#include "kernels/probe.h"

uint64_t krn_dots_avx2(uint32_t n)
{
    __m256i acc[12]; /* as many chains as hide the latency */
    const __m256i q = _mm256_set1_epi8(1);
    for (int i = 0; i < 12; i++) acc[i] = _mm256_set1_epi8((char)i);
    for (uint32_t k = 0; k < n; k++)
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm256_maddubs_epi16(acc[i], q);
    for (int i = 1; i < 12; i++) acc[0] = _mm256_xor_si256(acc[0], acc[i]);
    return (uint64_t)n * 12 * 64 + (_mm256_testz_si256(acc[0], acc[0]) ? 0 : 1); /* the result is used */
}
