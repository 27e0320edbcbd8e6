/* kernels/linear_avx2.c - linear.h on AVX2, FMA and F16C: 8 lanes, two vectors a tile.
 *
 * Products of bytes go through vpmaddubsw, which adds two neighbours in 16 bits with saturation; none can occur:
 *   4-bit weights: a pair is at most 2 * 15 * 127 = 3810, and the 8 pairs that one 16-bit lane collects 30480.
 *   5-bit weights (MXFP4: 24), less 16: a lane's sum is at most 8 * 2 * 16 * 127 = 32512. It is built from unsigned ones and may wrap on
 *   the way, but not a pair (2 * 31 * 127 = 7874); 16 times the lane's sum of activations, which 16 bits hold too, brings it back.
 *   6-bit weights, less 32: so with the 4 pairs of half a block, 4 * 2 * 32 * 127 = 32512.
 *   8-bit weights: |w| (128 for -128, as an unsigned byte) meets the activation with w's sign; a pair is at most
 *   2 * 128 * 127 = 32512, and is widened to 32 bits before anything is added to it.
 * vpmaddwd, which widens those sums, multiplies them by the scale of their 16 columns where a type has one. */
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
/* A 256th of E4M3 bytes: as halves whose exponent is 8 less. */
static inline vf vf_f8(const uint8_t *p)
{
    __m128i b = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)), sign = _mm_and_si128(b, _mm_set1_epi16(0x80));
    return _mm256_cvtph_ps(_mm_or_si128(_mm_slli_epi16(sign, 8), _mm_slli_epi16(_mm_xor_si128(b, sign), 7)));
}
static inline vi vi_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
static inline vi vi_set1(int v) { return _mm256_set1_epi32(v); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
static inline vi vi_sub8(vi a, vi b) { return _mm256_sub_epi8(a, b); }
static inline vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
static inline vi vi_madd(vi a, vi b) { return _mm256_madd_epi16(a, b); } /* products of 16-bit halves, the two of a lane added */
static inline vi vi_sll_var(vi v, uint32_t n) { return _mm256_sll_epi32(v, _mm_cvtsi32_si128((int)n)); }
static inline vi vi_srl_var(vi v, uint32_t n) { return _mm256_srl_epi32(v, _mm_cvtsi32_si128((int)n)); }
#define vi_srl(v, n) _mm256_srli_epi32(v, n)
#define vi_sll(v, n) _mm256_slli_epi32(v, n)
#define vi_sra16(v, n) _mm256_srai_epi16(v, n)
/* Byte j of each lane as a signed number. */
static inline vi vi_byte(vi v, uint32_t j) { return _mm256_srai_epi32(_mm256_sll_epi32(v, _mm_cvtsi32_si128((int)(24 - 8 * j))), 24); }

static inline vi vi_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)); }
static inline vi vi_u16(const uint8_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)); }
static inline vf vf_bits(vi v) { return _mm256_castsi256_ps(v); }
static inline vi vi_16(const int8_t p[16]) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p)); }
static inline vi vi_lookup(const int8_t table[16], vi v) { return _mm256_shuffle_epi8(vi_16(table), v); } /* table[each byte of v], for bytes below 16 */
/* Within each four lanes, byte i becomes byte from[i], or zero where that is negative. */
static inline vi vi_move(vi v, const int8_t from[16]) { return _mm256_shuffle_epi8(v, vi_16(from)); }

/* Four activations on every lane. */
static inline vi vi_four(const int8_t *q)
{
    int v;
    memcpy(&v, q, 4);
    return vi_set1(v);
}

/* Byte n of each lane, signed, in both its 16-bit halves: the scale of sums that vpmaddwd widens. */
static inline vi scale_of(vi v, int n)
{
    static const int8_t twice[4][16] = {{-1, 0, -1, 0, -1, 4, -1, 4, -1, 8, -1, 8, -1, 12, -1, 12}, {-1, 1, -1, 1, -1, 5, -1, 5, -1, 9, -1, 9, -1, 13, -1, 13},
                                        {-1, 2, -1, 2, -1, 6, -1, 6, -1, 10, -1, 10, -1, 14, -1, 14}, {-1, 3, -1, 3, -1, 7, -1, 7, -1, 11, -1, 11, -1, 15, -1, 15}};
    return vi_sra16(vi_move(v, twice[n]), 8);
}

/* Groups of 4 columns whose pair sums are added in 16 bits: all, those of one scale, none. */
enum { SUM_ALL = 8, SUM_HALF = 4, SUM_SIGNED = 1, NARROW = true };

static inline vi centred(vi v, const int16_t part[2])
{
    int x;
    if (!part)
        return v;
    memcpy(&x, part, 4);
    return _mm256_sub_epi16(v, _mm256_set1_epi32(x));
}

static inline vi signed_unpack(vi v) { return _mm256_abs_epi8(v); }

/* u has the magnitudes; the signs are read again from w, the groups' bytes, which are in the first cache level. */
static inline __attribute__((always_inline)) vi signed_dot(const vi u[4], const uint8_t *w, const vi q[4])
{
    vi s[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        s[k] = vi_madd(_mm256_maddubs_epi16(u[k], _mm256_sign_epi8(q[k], vi_load(w + k * KRN_TILE_ROWS * 4))), _mm256_set1_epi16(1));
    return vi_add(vi_add(s[0], s[1]), vi_add(s[2], s[3]));
}

/* Four of a block's eight groups, times the scale where there is one; SUM_ALL leaves sums of pairs in 16 bits. part: what to take from those. */
static inline __attribute__((always_inline)) vi dot_part(int sums, bool scaled, const vi u[4], const uint8_t *w, const vi q[4], const vi *scale, const int16_t *part)
{
    if (sums == SUM_SIGNED)
        return signed_dot(u, w, q);
    vi a = _mm256_add_epi16(_mm256_maddubs_epi16(u[0], q[0]), _mm256_maddubs_epi16(u[1], q[1]));
    vi b = _mm256_add_epi16(_mm256_maddubs_epi16(u[2], q[2]), _mm256_maddubs_epi16(u[3], q[3]));
    a = centred(_mm256_add_epi16(a, b), part);
    return sums == SUM_ALL ? a : vi_madd(a, scaled ? *scale : _mm256_set1_epi16(1));
}
static inline vi dot_join(int sums, vi a, vi b) { return sums == SUM_ALL ? _mm256_add_epi16(a, b) : vi_add(a, b); }
static inline vi dot_end(int sums, vi v, int32_t c8, const int16_t *part)
{
    (void)c8;
    return sums == SUM_ALL ? vi_madd(centred(v, part), _mm256_set1_epi16(1)) : v;
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

/* Rounds 32 products to bytes. */
static inline void block_round(const float *x, float inv, int8_t *q)
{
    __m256i v[4];
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(inv)));
    /* the packs work within 128-bit halves; the permutation puts groups of four back in order */
    __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    b = _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(void *)q, b);
}

#include "kernels/linear_simd.inc"

const struct krn_linear_isa krn_linear_avx2 = {.name = "avx2", .quantise = quantise, .run = run};
