/* kernels/simd.h - `vf`: the unit of arithmetic that mathf.h and the operators are written in.
 *
 * In a file compiled for AVX-512 a vf is one register of 16 floats, for AVX2 two of 8; otherwise it is one float and the same
 * formulas are the plain C definition. Every function here rounds each lane as the C expression in its comment does, so what
 * is built from them gives equal bits on all three. (NaN stays NaN; its payload is not defined.)
 * Use: inside one .c file only: everything is static. VF_N is the number of lanes. */
#ifndef SLUICE_KERNELS_SIMD_H
#define SLUICE_KERNELS_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#define VF_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)
#include <immintrin.h>
#define VF_N 16
typedef __m512 vf;
typedef __mmask16 vf_mask;
VF_INLINE vf vf_set1(float a) { return _mm512_set1_ps(a); }
VF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
VF_INLINE __mmask16 vf_lanes(size_t n) { return (__mmask16)((1u << n) - 1); }
VF_INLINE vf vf_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(vf_lanes(n), p); }
VF_INLINE void vf_store_n(float *p, vf a, size_t n) { _mm512_mask_storeu_ps(p, vf_lanes(n), a); }
VF_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VF_INLINE vf vf_neg(vf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
VF_INLINE vf vf_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
VF_INLINE vf vf_copysign(vf a, vf s)
{
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, s));
}
VF_INLINE vf_mask vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VF_INLINE vf vf_select(vf_mask m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
VF_INLINE vf vf_shl23(vf a) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a), 23)); }
/* lo <= lane < hi, for 0 <= lo and any hi */
VF_INLINE vf_mask vf_range(int lo, int hi)
{
    unsigned up = hi >= 16 ? 0xffffu : hi <= 0 ? 0 : (1u << hi) - 1, down = lo >= 16 ? 0xffffu : lo <= 0 ? 0 : (1u << lo) - 1;
    return (__mmask16)(up & ~down);
}
VF_INLINE vf vf_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p)); }
VF_INLINE void vf_store_f16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
VF_INLINE vf vf_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
}
/* p[0] p[0] p[1] p[1] .. p[7] p[7] */
VF_INLINE vf vf_load_twice(const float *p)
{
    const __m512i idx = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(idx, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
VF_INLINE vf vf_swap_pairs(vf a) { return _mm512_permute_ps(a, 0xb1); } /* a1 a0 a3 a2 .. */
VF_INLINE vf vf_neg_even(vf a) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi64(0x80000000ll))); }
VF_INLINE __m256 vf_half(vf a, int i) { return i ? _mm512_extractf32x8_ps(a, 1) : _mm512_castps512_ps256(a); }
/* vu: one register, where a loop counts registers. */
#define VU_N 16
typedef __m512 vu;
VF_INLINE vu vu_set1(float a) { return _mm512_set1_ps(a); }
VF_INLINE vu vu_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vu_store(float *p, vu a) { _mm512_storeu_ps(p, a); }
VF_INLINE vu vu_mul(vu a, vu b) { return _mm512_mul_ps(a, b); }
VF_INLINE vu vu_fma(vu a, vu b, vu c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vu vu_fnma(vu a, vu b, vu c) { return _mm512_fnmadd_ps(a, b, c); } /* fma(-a, b, c) */
VF_INLINE vu vu_sub(vu a, vu b) { return _mm512_sub_ps(a, b); }
typedef __mmask16 vu_mask;
VF_INLINE vu_mask vu_lane(int i) { return (vu_mask)(i >= 0 && i < 16 ? 1u << i : 0); } /* that one alone */
VF_INLINE vu vu_select(vu_mask m, vu a, vu b) { return _mm512_mask_blend_ps(m, b, a); }
VF_INLINE vu vu_load_f16(const uint16_t *p) { return vf_load_f16(p); }
VF_INLINE vu vu_load_bf16(const uint16_t *p) { return vf_load_bf16(p); }

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define VF_N 16
typedef struct { __m256 a, b; } vf;
typedef struct { __m256 a, b; } vf_mask;
#define VF2(e, f) ((vf){(e), (f)})
VF_INLINE vf vf_set1(float x) { __m256 v = _mm256_set1_ps(x); return VF2(v, v); }
VF_INLINE vf vf_load(const float *p) { return VF2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
VF_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
VF_INLINE vf vf_load_n(const float *p, size_t n)
{
    float t[16] = {0};
    memcpy(t, p, n * sizeof *p);
    return vf_load(t);
}
VF_INLINE void vf_store_n(float *p, vf x, size_t n)
{
    float t[16];
    vf_store(t, x);
    memcpy(p, t, n * sizeof *p);
}
VF_INLINE vf vf_add(vf x, vf y) { return VF2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
VF_INLINE vf vf_sub(vf x, vf y) { return VF2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
VF_INLINE vf vf_mul(vf x, vf y) { return VF2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
VF_INLINE vf vf_div(vf x, vf y) { return VF2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
VF_INLINE vf vf_fma(vf x, vf y, vf z) { return VF2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
VF_INLINE vf vf_max(vf x, vf y) { return VF2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
VF_INLINE vf vf_min(vf x, vf y) { return VF2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
VF_INLINE vf vf_neg(vf x) { __m256 s = _mm256_set1_ps(-0.0f); return VF2(_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s)); }
VF_INLINE vf vf_abs(vf x) { __m256 s = _mm256_set1_ps(-0.0f); return VF2(_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b)); }
VF_INLINE vf vf_copysign(vf x, vf g)
{
    __m256 s = _mm256_set1_ps(-0.0f);
    return VF2(_mm256_or_ps(_mm256_andnot_ps(s, x.a), _mm256_and_ps(s, g.a)), _mm256_or_ps(_mm256_andnot_ps(s, x.b), _mm256_and_ps(s, g.b)));
}
VF_INLINE vf_mask vf_lt(vf x, vf y) { return (vf_mask){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
VF_INLINE vf vf_select(vf_mask m, vf x, vf y) { return VF2(_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b)); }
VF_INLINE __m256 vf_shl23_half(__m256 x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
VF_INLINE vf vf_shl23(vf x) { return VF2(vf_shl23_half(x.a), vf_shl23_half(x.b)); }
VF_INLINE __m256 vf_range_half(int lo, int hi, int first)
{
    const __m256i lane = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane), _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
    return _mm256_castsi256_ps(in);
}
VF_INLINE vf_mask vf_range(int lo, int hi) { return (vf_mask){vf_range_half(lo, hi, 0), vf_range_half(lo, hi, 8)}; }
VF_INLINE __m256 vf_f16_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)); }
VF_INLINE vf vf_load_f16(const uint16_t *p) { return VF2(vf_f16_half(p), vf_f16_half(p + 8)); }
VF_INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
VF_INLINE __m256 vf_bf16_half(const uint16_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}
VF_INLINE vf vf_load_bf16(const uint16_t *p) { return VF2(vf_bf16_half(p), vf_bf16_half(p + 8)); }
VF_INLINE __m256 vf_twice_half(const float *p)
{
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
VF_INLINE vf vf_load_twice(const float *p) { return VF2(vf_twice_half(p), vf_twice_half(p + 4)); }
VF_INLINE vf vf_swap_pairs(vf x) { return VF2(_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)); }
VF_INLINE vf vf_neg_even(vf x)
{
    __m256 s = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000ll));
    return VF2(_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s));
}
VF_INLINE __m256 vf_half(vf x, int i) { return i ? x.b : x.a; }
#define VU_N 8
typedef __m256 vu;
VF_INLINE vu vu_set1(float a) { return _mm256_set1_ps(a); }
VF_INLINE vu vu_load(const float *p) { return _mm256_loadu_ps(p); }
VF_INLINE void vu_store(float *p, vu a) { _mm256_storeu_ps(p, a); }
VF_INLINE vu vu_mul(vu a, vu b) { return _mm256_mul_ps(a, b); }
VF_INLINE vu vu_fma(vu a, vu b, vu c) { return _mm256_fmadd_ps(a, b, c); }
VF_INLINE vu vu_fnma(vu a, vu b, vu c) { return _mm256_fnmadd_ps(a, b, c); }
VF_INLINE vu vu_sub(vu a, vu b) { return _mm256_sub_ps(a, b); }
typedef __m256 vu_mask;
VF_INLINE vu_mask vu_lane(int i) { return vf_range_half(i, i + 1, 0); }
VF_INLINE vu vu_select(vu_mask m, vu a, vu b) { return _mm256_blendv_ps(b, a, m); }
VF_INLINE vu vu_load_f16(const uint16_t *p) { return vf_f16_half(p); }
VF_INLINE vu vu_load_bf16(const uint16_t *p) { return vf_bf16_half(p); }

#else
#define VF_N 1
typedef float vf;
typedef int vf_mask;
VF_INLINE vf vf_set1(float a) { return a; }
VF_INLINE vf vf_add(vf a, vf b) { return a + b; }
VF_INLINE vf vf_sub(vf a, vf b) { return a - b; }
VF_INLINE vf vf_mul(vf a, vf b) { return a * b; }
VF_INLINE vf vf_div(vf a, vf b) { return a / b; }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
VF_INLINE vf vf_max(vf a, vf b) { return a > b ? a : b; } /* b when either is NaN: a constant goes first to let NaN through */
VF_INLINE vf vf_min(vf a, vf b) { return a < b ? a : b; }
VF_INLINE vf vf_neg(vf a) { return -a; }
VF_INLINE vf vf_abs(vf a) { return fabsf(a); }
VF_INLINE vf vf_copysign(vf a, vf s) { return copysignf(a, s); }
VF_INLINE vf_mask vf_lt(vf a, vf b) { return a < b; }
VF_INLINE vf vf_select(vf_mask m, vf a, vf b) { return m ? a : b; }
VF_INLINE vf vf_shl23(vf a) /* the bits of a, moved left by 23 */
{
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    u <<= 23;
    memcpy(&a, &u, sizeof a);
    return a;
}
#endif

/* The fixed tree that folds 16 partial results into one: 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
VF_INLINE float vf_fold16_sum(float t[16])
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) t[i] = t[i] + t[i + n];
    return t[0];
}
VF_INLINE float vf_fold16_max(float t[16])
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++) t[i] = t[i] > t[i + n] ? t[i] : t[i + n];
    return t[0];
}
#if VF_N == 16
VF_INLINE float vf_sum(vf x)
{
    __m256 h = _mm256_add_ps(vf_half(x, 0), vf_half(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
VF_INLINE float vf_maximum(vf x)
{
    __m256 h = _mm256_max_ps(vf_half(x, 0), vf_half(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
#endif
#endif
