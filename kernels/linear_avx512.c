/* kernels/linear_avx512.c - linear.h on AVX-512 (F BW DQ VL VNNI): 16 lanes, one vector a tile.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds four products to 32 bits without saturation. Signed weights are
 * made unsigned by adding 128, and the sum is put right by -128 * (sum of activations) = 16 * c8. */
#include <assert.h>
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/linear_internal.h"

typedef __m512 vf;
typedef __m512i vi;
enum { LANES = 16 };

static inline vf vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf vf_set1(float f) { return _mm512_set1_ps(f); }
static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vf_int(vi v) { return _mm512_cvtepi32_ps(v); }
static inline vf vf_f16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
static inline vf vf_bf16(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}
/* A 256th of E4M3 bytes: as halves whose exponent is 8 less. */
static inline vf vf_f8(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p)), sign = _mm256_and_si256(b, _mm256_set1_epi16(0x80));
    return _mm512_cvtph_ps(_mm256_or_si256(_mm256_slli_epi16(sign, 8), _mm256_slli_epi16(_mm256_xor_si256(b, sign), 7)));
}
static inline vi vi_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline vi vi_set1(int v) { return _mm512_set1_epi32(v); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
static inline vi vi_sub8(vi a, vi b) { return _mm512_sub_epi8(a, b); }
static inline vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
static inline vi vi_madd(vi a, vi b) { return _mm512_madd_epi16(a, b); } /* products of 16-bit halves, the two of a lane added */
static inline vi vi_sll_var(vi v, uint32_t n) { return _mm512_sll_epi32(v, _mm_cvtsi32_si128((int)n)); }
static inline vi vi_srl_var(vi v, uint32_t n) { return _mm512_srl_epi32(v, _mm_cvtsi32_si128((int)n)); }
#define vi_srl(v, n) _mm512_srli_epi32(v, n)
#define vi_sll(v, n) _mm512_slli_epi32(v, n)
#define vi_sra16(v, n) _mm512_srai_epi16(v, n)
/* Byte j of each lane as a signed number. */
static inline vi vi_byte(vi v, uint32_t j) { return _mm512_srai_epi32(_mm512_sll_epi32(v, _mm_cvtsi32_si128((int)(24 - 8 * j))), 24); }

static inline vi vi_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)); }
static inline vi vi_u16(const uint8_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
static inline vf vf_bits(vi v) { return _mm512_castsi512_ps(v); }
static inline vi vi_16(const int8_t p[16]) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)p)); }
static inline vi vi_lookup(const int8_t table[16], vi v) { return _mm512_shuffle_epi8(vi_16(table), v); } /* table[each byte of v], for bytes below 16 */
/* Within each four lanes, byte i becomes byte from[i], or zero where that is negative. */
static inline vi vi_move(vi v, const int8_t from[16]) { return _mm512_shuffle_epi8(v, vi_16(from)); }

/* Four activations on every lane. */
static inline vi vi_four(const int8_t *q)
{
    int v;
    memcpy(&v, q, 4);
    return vi_set1(v);
}

/* Byte n of each lane, signed: the scale of sums of 32 bits. */
static inline vi scale_of(vi v, int n) { return vi_byte(v, (uint32_t)n); }

/* Sums are of 32 bits at once; only signed weights are told apart. */
enum { SUM_ALL = 8, SUM_HALF = 4, SUM_SIGNED = 1, NARROW = false };

static inline vi signed_unpack(vi v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }

/* A block's eight groups in a chain for each half of its columns: the latency of one vpdpbusd is about five cycles. */
static inline __attribute__((always_inline)) vi dot_part(int sums, bool scaled, const vi u[8], const uint8_t *w, const vi q[8], const vi *scale, const int16_t *part)
{
    vi a = _mm512_setzero_si512(), b = a;
    (void)sums;
    (void)w;
    (void)part;
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        a = _mm512_dpbusd_epi32(a, u[k], q[k]);
        b = _mm512_dpbusd_epi32(b, u[4 + k], q[4 + k]);
    }
    return scaled ? vi_add(_mm512_mullo_epi32(a, scale[0]), _mm512_mullo_epi32(b, scale[1])) : vi_add(a, b);
}
static inline vi dot_join(int sums, vi a, vi b)
{
    (void)sums;
    return vi_add(a, b);
}
static inline vi dot_end(int sums, vi v, int32_t c8, const int16_t *part)
{
    (void)part;
    return sums == SUM_SIGNED ? vi_add(v, vi_set1(16 * c8)) : v;
}

static inline float block_amax(const float *x)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i m = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x)), mask),
                                 _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + 16)), mask));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(m))));
}

/* Rounds 32 products to bytes. */
static inline void block_round(const float *x, float inv, int8_t *q)
{
    __m512i lo = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), vf_set1(inv)));
    __m512i hi = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), vf_set1(inv)));
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(lo));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(hi));
}

#include "kernels/linear_simd.inc"

const struct krn_linear_isa krn_linear_avx512 = {.name = "avx512", .quantise = quantise, .run = run};
