/* tests/support/avx512_emu.h - the AVX-512 operations that kernels use, on pairs of AVX2 registers.
 *
 * Included before an *_avx512.c file (itself included by a file named *_avx2.c, which gives it the flags), it lets
 * processors without AVX-512 check that file's arithmetic. It replaces names of immintrin.h, so it comes first. */
#ifndef SLUICE_TESTS_SUPPORT_AVX512_EMU_H
#define SLUICE_TESTS_SUPPORT_AVX512_EMU_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { __m256 a, b; } emu_ps;
typedef struct { __m256i a, b; } emu_si;
#define __m512 emu_ps
#define __m512i emu_si
#ifndef __AVX512F__
#define __AVX512F__ 1
#endif
#define EMU static inline __attribute__((unused))
#define EMU_PS1(name, op) EMU emu_ps emu_##name(emu_ps x) { return (emu_ps){op(x.a), op(x.b)}; }
#define EMU_PS2(name, op) EMU emu_ps emu_##name(emu_ps x, emu_ps y) { return (emu_ps){op(x.a, y.a), op(x.b, y.b)}; }
#define EMU_SI2(name, op) EMU emu_si emu_##name(emu_si x, emu_si y) { return (emu_si){op(x.a, y.a), op(x.b, y.b)}; }
#define EMU_SHIFT(name, op) EMU emu_si emu_##name(emu_si x, unsigned n) { return (emu_si){op(x.a, (int)n), op(x.b, (int)n)}; }
#define EMU_SHIFTV(name, op) EMU emu_si emu_##name(emu_si x, __m128i n) { return (emu_si){op(x.a, n), op(x.b, n)}; }

EMU_PS2(add_ps, _mm256_add_ps)
EMU_PS2(sub_ps, _mm256_sub_ps)
EMU_PS2(mul_ps, _mm256_mul_ps)
EMU_PS2(div_ps, _mm256_div_ps)
EMU_PS2(max_ps, _mm256_max_ps)
EMU_PS2(min_ps, _mm256_min_ps)
EMU_PS2(and_ps, _mm256_and_ps)
EMU_PS2(or_ps, _mm256_or_ps)
EMU_PS2(xor_ps, _mm256_xor_ps)
EMU_PS2(andnot_ps, _mm256_andnot_ps)
EMU_PS1(sqrt_ps, _mm256_sqrt_ps)
EMU_SI2(add_epi32, _mm256_add_epi32)
EMU_SI2(sub_epi32, _mm256_sub_epi32)
EMU_SI2(sub_epi8, _mm256_sub_epi8)
EMU_SI2(madd_epi16, _mm256_madd_epi16)
EMU_SI2(mullo_epi32, _mm256_mullo_epi32)
EMU_SI2(shuffle_epi8, _mm256_shuffle_epi8)
EMU_SI2(max_epi32, _mm256_max_epi32)
EMU_SI2(and_si512, _mm256_and_si256)
EMU_SI2(or_si512, _mm256_or_si256)
EMU_SI2(xor_si512, _mm256_xor_si256)
EMU_SHIFT(slli_epi32, _mm256_slli_epi32)
EMU_SHIFT(srai_epi16, _mm256_srai_epi16)
EMU_SHIFT(srli_epi32, _mm256_srli_epi32)
EMU_SHIFT(srai_epi32, _mm256_srai_epi32)
EMU_SHIFTV(sll_epi32, _mm256_sll_epi32)
EMU_SHIFTV(srl_epi32, _mm256_srl_epi32)

EMU emu_ps emu_fmadd_ps(emu_ps x, emu_ps y, emu_ps z) { return (emu_ps){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
EMU emu_ps emu_setzero_ps(void) { return (emu_ps){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
EMU emu_si emu_setzero_si512(void) { return (emu_si){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
EMU emu_ps emu_set1_ps(float f) { return (emu_ps){_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
EMU emu_si emu_set1_epi32(int v) { return (emu_si){_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
EMU emu_si emu_set1_epi64(long long v) { return (emu_si){_mm256_set1_epi64x(v), _mm256_set1_epi64x(v)}; }
EMU emu_si emu_set1_epi8(char v) { return (emu_si){_mm256_set1_epi8(v), _mm256_set1_epi8(v)}; }
EMU emu_ps emu_loadu_ps(const void *p) { return (emu_ps){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)}; }
EMU void emu_storeu_ps(void *p, emu_ps v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps((float *)p + 8, v.b);
}
EMU emu_si emu_loadu_si512(const void *p)
{
    emu_si v;
    memcpy(&v, p, 64);
    return v;
}
/* Memory behind a clear mask bit is not touched. */
EMU emu_ps emu_maskz_loadu_ps(__mmask16 m, const float *p)
{
    float t[16] = {0};
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            t[i] = p[i];
    return emu_loadu_ps(t);
}
EMU void emu_mask_storeu_ps(float *p, __mmask16 m, emu_ps v)
{
    float t[16];
    emu_storeu_ps(t, v);
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            p[i] = t[i];
}
EMU emu_ps emu_mask_blend_ps(__mmask16 m, emu_ps x, emu_ps y)
{
    float s[16], t[16];
    emu_storeu_ps(s, x);
    emu_storeu_ps(t, y);
    for (int i = 0; i < 16; i++)
        if (m >> i & 1)
            s[i] = t[i];
    return emu_loadu_ps(s);
}
EMU emu_ps emu_permutexvar_ps(emu_si idx, emu_ps v)
{
    float s[16], t[16];
    int32_t k[16];
    emu_storeu_ps(s, v);
    memcpy(k, &idx, sizeof k);
    for (int i = 0; i < 16; i++)
        t[i] = s[k[i] & 15];
    return emu_loadu_ps(t);
}
EMU emu_ps emu_castsi512_ps(emu_si v) { return (emu_ps){_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)}; }
EMU emu_si emu_castps_si512(emu_ps v) { return (emu_si){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)}; }
EMU __m256 emu_castps512_ps256(emu_ps v) { return v.a; }
EMU emu_ps emu_castps256_ps512(__m256 v) { return (emu_ps){v, _mm256_setzero_ps()}; }
EMU emu_ps emu_cvtepi32_ps(emu_si v) { return (emu_ps){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)}; }
EMU emu_si emu_cvtps_epi32(emu_ps v) { return (emu_si){_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)}; }
EMU emu_ps emu_cvtph_ps(__m256i v) { return (emu_ps){_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))}; }
EMU emu_si emu_cvtepu16_epi32(__m256i v)
{
    return (emu_si){_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1))};
}
EMU emu_si emu_cvtepu8_epi32(__m128i v) { return (emu_si){_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))}; }
EMU emu_si emu_broadcast_i32x4(__m128i v) { return (emu_si){_mm256_broadcastsi128_si256(v), _mm256_broadcastsi128_si256(v)}; }
EMU __m128i emu_cvtepi32_epi8(emu_si v)
{
    int32_t k[16];
    int8_t b[16];
    memcpy(k, &v, sizeof k);
    for (int i = 0; i < 16; i++)
        b[i] = (int8_t)k[i];
    return _mm_loadu_si128((const __m128i *)(const void *)b);
}
EMU emu_si emu_dpbusd_epi32(emu_si acc, emu_si u, emu_si s)
{
    int32_t k[16];
    uint8_t x[64];
    int8_t y[64];
    memcpy(k, &acc, 64);
    memcpy(x, &u, 64);
    memcpy(y, &s, 64);
    for (int i = 0; i < 64; i++)
        k[i / 4] += x[i] * y[i];
    memcpy(&acc, k, 64);
    return acc;
}
EMU int emu_reduce_add_epi32(emu_si v)
{
    int32_t k[16], sum = 0;
    memcpy(k, &v, 64);
    for (int i = 0; i < 16; i++)
        sum += k[i];
    return sum;
}
EMU int emu_reduce_max_epi32(emu_si v)
{
    int32_t k[16];
    memcpy(k, &v, 64);
    for (int i = 1; i < 16; i++)
        if (k[i] > k[0])
            k[0] = k[i];
    return k[0];
}

#define _mm512_add_ps emu_add_ps
#define _mm512_sub_ps emu_sub_ps
#define _mm512_mul_ps emu_mul_ps
#define _mm512_div_ps emu_div_ps
#define _mm512_max_ps emu_max_ps
#define _mm512_min_ps emu_min_ps
#define _mm512_and_ps emu_and_ps
#define _mm512_or_ps emu_or_ps
#define _mm512_xor_ps emu_xor_ps
#define _mm512_andnot_ps emu_andnot_ps
#define _mm512_sqrt_ps emu_sqrt_ps
#define _mm512_add_epi32 emu_add_epi32
#define _mm512_sub_epi32 emu_sub_epi32
#define _mm512_sub_epi8 emu_sub_epi8
#define _mm512_madd_epi16 emu_madd_epi16
#define _mm512_mullo_epi32 emu_mullo_epi32
#define _mm512_shuffle_epi8 emu_shuffle_epi8
#define _mm512_cvtepu8_epi32 emu_cvtepu8_epi32
#define _mm512_broadcast_i32x4 emu_broadcast_i32x4
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 emu_srai_epi16
#define _mm512_max_epi32 emu_max_epi32
#define _mm512_and_si512 emu_and_si512
#define _mm512_or_si512 emu_or_si512
#define _mm512_xor_si512 emu_xor_si512
#undef _mm512_slli_epi32 /* macros where the compiler does not optimise */
#undef _mm512_srli_epi32
#undef _mm512_srai_epi32
#undef _mm512_setr_epi32
#undef _mm512_cmp_ps_mask
#undef _mm512_permute_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_cvtps_ph
#define _mm512_slli_epi32 emu_slli_epi32
#define _mm512_srli_epi32 emu_srli_epi32
#define _mm512_srai_epi32 emu_srai_epi32
#define _mm512_sll_epi32 emu_sll_epi32
#define _mm512_srl_epi32 emu_srl_epi32
#define _mm512_fmadd_ps emu_fmadd_ps
#define _mm512_setzero_ps emu_setzero_ps
#define _mm512_setzero_si512 emu_setzero_si512
#define _mm512_set1_ps emu_set1_ps
#define _mm512_set1_epi32 emu_set1_epi32
#define _mm512_set1_epi64 emu_set1_epi64
#define _mm512_set1_epi8 emu_set1_epi8
#define _mm512_setr_epi32(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    ((emu_si){_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm256_setr_epi32(i, j, k, l, m, n, o, p)})
#define _mm512_loadu_ps emu_loadu_ps
#define _mm512_storeu_ps emu_storeu_ps
#define _mm512_loadu_si512 emu_loadu_si512
#define _mm512_maskz_loadu_ps emu_maskz_loadu_ps
#define _mm512_mask_storeu_ps emu_mask_storeu_ps
#define _mm512_mask_blend_ps emu_mask_blend_ps
#define _mm512_permutexvar_ps emu_permutexvar_ps
#define _mm512_permute_ps(v, imm) ((emu_ps){_mm256_permute_ps((v).a, imm), _mm256_permute_ps((v).b, imm)})
#define _mm512_extractf32x8_ps(v, i) ((i) ? (v).b : (v).a)
#define _mm512_cmp_ps_mask(x, y, imm) \
    ((__mmask16)(_mm256_movemask_ps(_mm256_cmp_ps((x).a, (y).a, imm)) | _mm256_movemask_ps(_mm256_cmp_ps((x).b, (y).b, imm)) << 8))
#define _mm512_castsi512_ps emu_castsi512_ps
#define _mm512_castps_si512 emu_castps_si512
#define _mm512_castps512_ps256 emu_castps512_ps256
#define _mm512_castps256_ps512 emu_castps256_ps512
#define _mm512_cvtepi32_ps emu_cvtepi32_ps
#define _mm512_cvtps_epi32 emu_cvtps_epi32
#define _mm512_cvtph_ps emu_cvtph_ps
#define _mm512_cvtps_ph(v, r) _mm256_set_m128i(_mm256_cvtps_ph((v).b, r), _mm256_cvtps_ph((v).a, r))
#define _mm512_cvtepu16_epi32 emu_cvtepu16_epi32
#define _mm512_cvtepi32_epi8 emu_cvtepi32_epi8
#define _mm512_dpbusd_epi32 emu_dpbusd_epi32
#define _mm512_reduce_add_epi32 emu_reduce_add_epi32
#define _mm512_reduce_max_epi32 emu_reduce_max_epi32
#endif
