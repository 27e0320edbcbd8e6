/* kernels/linear_avx2.c - linear.h on AVX2, FMA and F16C: 8 lanes, two vectors a tile.
 *
 * Products of bytes go through vpmaddubsw, which adds two neighbours in 16 bits with saturation; none can occur:
 *   4-bit weights: a pair is at most 2 * 15 * 127 = 3810 and the 8 pairs that one 16-bit lane collects 30480.
 *   8-bit weights: |w| (128 for -128, as an unsigned byte) meets the activation with w's sign; a pair is at most
 *   2 * 128 * 127 = 32512, and is widened to 32 bits before anything is added to it. */
#include <assert.h>
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/linear_internal.h"

typedef __m256 vf;
typedef __m256i vi;
enum { LANES = 8 };

static inline vf vf_zero(void) { return _mm256_setzero_ps(); }
static inline vf vf_set1(float f) { return _mm256_set1_ps(f); }
static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vf_int(vi v) { return _mm256_cvtepi32_ps(v); }
static inline vf vf_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
static inline vf vf_bf16(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}
static inline vi vi_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
static inline vi vi_set1(int v) { return _mm256_set1_epi32(v); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_srl_var(vi v, uint32_t n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128((int)n)); }
#define vi_srl(v, n) _mm256_srli_epi32(v, n)
/* Byte j of each lane as a signed number. */
static inline vi vi_byte(vi v, uint32_t j) { return _mm256_srai_epi32(_mm256_sll_epi32(v, _mm_cvtsi32_si128((int)(24 - 8 * j))), 24); }

/* Four activations on every lane. */
static inline vi vi_four(const int8_t *q)
{
    int v;
    memcpy(&v, q, 4);
    return vi_set1(v);
}

/* Four of a block's eight groups: sums of pairs in 16 bits. */
static inline __attribute__((always_inline)) vi q4_dot(const vi u[4], const vi q[4])
{
    return _mm256_add_epi16(_mm256_add_epi16(_mm256_maddubs_epi16(u[0], q[0]), _mm256_maddubs_epi16(u[1], q[1])),
                            _mm256_add_epi16(_mm256_maddubs_epi16(u[2], q[2]), _mm256_maddubs_epi16(u[3], q[3])));
}
static inline vi q4_add(vi a, vi b) { return _mm256_add_epi16(a, b); }
static inline vi q4_end(vi v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

static inline vi q8_unpack(vi v) { return _mm256_abs_epi8(v); }

/* u has the magnitudes; the signs are read again from w, the groups' bytes, which are in the first cache level. */
static inline __attribute__((always_inline)) vi q8_dot(const vi u[4], const uint8_t *w, const vi q[4])
{
    vi s[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        s[k] = _mm256_madd_epi16(_mm256_maddubs_epi16(u[k], _mm256_sign_epi8(q[k], vi_load(w + k * KRN_TILE_ROWS * 4))), _mm256_set1_epi16(1));
    return vi_add(vi_add(s[0], s[1]), vi_add(s[2], s[3]));
}
static inline vi q8_end(vi v, int32_t c8)
{
    (void)c8;
    return v;
}

static inline float block_amax(const float *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < 32; i += 8)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), mask));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

/* Rounds 32 products to bytes and returns their sum. */
static inline int block_round(const float *x, float inv, int8_t *q)
{
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inv)));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(v[0], v[1]), _mm256_add_epi32(v[2], v[3]));
    /* the packs work within 128-bit halves; the permutation puts groups of four back in order */
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, b);
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

#include "kernels/linear_simd.inc"

const struct krn_linear_isa krn_linear_avx2 = {.name = "avx2", .quantise = quantise, .run = run};
