/* kernels/types.c - the tables of types.h and the plain expansion of every block type.
 *
 * A K block is 256 elements in 8 or 16 sub-blocks with small integer scales under one or two f16 scales; element order
 * inside a block follows the published files, which keep bytes of 32 columns together and stack bits upwards.
 * Products are formed as (scale product) * (integer), each rounded to f32, which gives the bits of the reference. */
#include "kernels/types.h"

#include <string.h>

const struct krn_type_info krn_types[KRN_TYPE_COUNT] = {
    [KRN_F32] = {"F32", 1, 4},         [KRN_F16] = {"F16", 1, 2},         [KRN_BF16] = {"BF16", 1, 2},
    [KRN_F64] = {"F64", 1, 8},         [KRN_I8] = {"I8", 1, 1},           [KRN_U8] = {"U8", 1, 1},
    [KRN_I16] = {"I16", 1, 2},         [KRN_I32] = {"I32", 1, 4},         [KRN_I64] = {"I64", 1, 8},
    [KRN_BOOL] = {"BOOL", 1, 1},       [KRN_F8_E4M3] = {"F8_E4M3", 1, 1}, [KRN_F8_E5M2] = {"F8_E5M2", 1, 1},
    [KRN_E8M0] = {"F8_E8M0", 1, 1},    [KRN_Q4_0] = {"Q4_0", 32, 18},     [KRN_Q4_1] = {"Q4_1", 32, 20},
    [KRN_Q5_0] = {"Q5_0", 32, 22},     [KRN_Q5_1] = {"Q5_1", 32, 24},     [KRN_Q8_0] = {"Q8_0", 32, 34},
    [KRN_Q2_K] = {"Q2_K", 256, 84},    [KRN_Q3_K] = {"Q3_K", 256, 110},   [KRN_Q4_K] = {"Q4_K", 256, 144},
    [KRN_Q5_K] = {"Q5_K", 256, 176},   [KRN_Q6_K] = {"Q6_K", 256, 210},   [KRN_IQ4_NL] = {"IQ4_NL", 32, 18},
    [KRN_IQ4_XS] = {"IQ4_XS", 256, 136}, [KRN_MXFP4] = {"MXFP4", 32, 17},
    [KRN_INT4] = {"INT4", 32, 18},     [KRN_F8_SCALED] = {"F8_E4M3+scales", 1, 1},
};

/* ggml's numbers; the gaps are types without an expansion here. */
static const int8_t from_ggml[] = {
    [0] = KRN_F32,   [1] = KRN_F16,   [2] = KRN_Q4_0,  [3] = KRN_Q4_1,    [4] = -1,         [5] = -1,        [6] = KRN_Q5_0,
    [7] = KRN_Q5_1,  [8] = KRN_Q8_0,  [9] = -1,        [10] = KRN_Q2_K,   [11] = KRN_Q3_K,  [12] = KRN_Q4_K, [13] = KRN_Q5_K,
    [14] = KRN_Q6_K, [15] = -1,       [16] = -1,       [17] = -1,         [18] = -1,        [19] = -1,       [20] = KRN_IQ4_NL,
    [21] = -1,       [22] = -1,       [23] = KRN_IQ4_XS, [24] = KRN_I8,   [25] = KRN_I16,   [26] = KRN_I32,  [27] = KRN_I64,
    [28] = KRN_F64,  [29] = -1,       [30] = KRN_BF16, [31] = -1,         [32] = -1,        [33] = -1,       [34] = -1,
    [35] = -1,       [36] = -1,       [37] = -1,       [38] = -1,         [39] = KRN_MXFP4,
};

int krn_type_from_ggml(uint32_t ggml_type)
{
    return ggml_type < sizeof from_ggml ? from_ggml[ggml_type] : -1;
}

int krn_type_from_safetensors(const char *s, size_t n)
{
    for (int t = 0; t < KRN_Q4_0; t++) /* block types have no safetensors name */
        if (strlen(krn_types[t].name) == n && memcmp(krn_types[t].name, s, n) == 0)
            return t;
    return -1;
}

size_t krn_row_bytes(enum krn_type t, uint64_t n)
{
    const struct krn_type_info *i = &krn_types[t];
    if (t == KRN_F8_SCALED)
        return n > SIZE_MAX / 8 ? 0 : (size_t)(n + (n + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK * sizeof(float));
    if (n % i->block || n / i->block > SIZE_MAX / i->block_bytes)
        return 0;
    return (size_t)(n / i->block) * i->block_bytes;
}

static float bits_f32(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

float krn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31)                                      /* a signalling NaN comes out quiet, as the hardware does it */
        return bits_f32(sign | 0x7f800000 | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) {
        float f = (float)man * 0x1p-24f;                /* exact: at most 10 bits */
        return bits_f32(sign | f32_bits(f));
    }
    return bits_f32(sign | (exp + 112) << 23 | man << 13);
}

uint16_t krn_f32_to_f16(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000)                                /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) {                               /* below 2^-14: adding 0.5 rounds at 2^-24, to nearest even */
        float r = bits_f32(a) + 0.5f;
        return (uint16_t)(sign | (f32_bits(r) - 0x3f000000));
    }
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | ((a >> 13) - (112 << 10)));
}

uint16_t krn_f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static uint16_t le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float half(const uint8_t *p)
{
    return krn_f16_to_f32(le16(p));
}

/* OCP 8-bit float without infinities: S.1111.111 is NaN. */
static float f8_e4m3(uint8_t b)
{
    uint32_t exp = b >> 3 & 15, man = b & 7, sign = (uint32_t)(b & 0x80) << 24;
    if ((b & 0x7f) == 0x7f)
        return bits_f32(sign | 0x7fc00000);
    float f = exp ? bits_f32((exp + 120) << 23 | man << 20) : (float)man * 0x1p-9f;
    return bits_f32(sign | f32_bits(f));
}

static float e8m0(uint8_t b)
{
    return b == 255 ? bits_f32(0x7fc00000) : b ? bits_f32((uint32_t)b << 23) : 0x1p-127f;
}

const int8_t krn_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t krn_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float krn_e8m0_half(uint8_t b)
{
    return b == 255 ? e8m0(255) : b > 1 ? bits_f32((uint32_t)(b - 1) << 23) : bits_f32(0x00200000u << b);
}

/* One block each; nibbles of byte j: column j low, column 16 + j high. */
static void q4_0(const uint8_t *p, float *y)
{
    float d = half(p);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((p[2 + j] & 15) - 8);
        y[16 + j] = d * (float)((p[2 + j] >> 4) - 8);
    }
}

static void int4(const uint8_t *p, float *y)
{
    float d = krn_bf16_to_f32(le16(p));
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((p[2 + j] & 15) - 8);
        y[16 + j] = d * (float)((p[2 + j] >> 4) - 8);
    }
}

static void f8_scaled(const uint8_t *p, size_t n, float *y)
{
    const uint8_t *v = p + (n + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK * sizeof(float);
    for (size_t i = 0; i < n; i++) {
        float s;
        memcpy(&s, p + i / KRN_F8_BLOCK * sizeof s, sizeof s);
        y[i] = s * f8_e4m3(v[i]);
    }
}

static void q4_1(const uint8_t *p, float *y)
{
    float d = half(p), m = half(p + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(p[4 + j] & 15) + m;
        y[16 + j] = d * (float)(p[4 + j] >> 4) + m;
    }
}

/* The fifth bits of a block of 32: one little-endian word, bit i for column i. */
static int fifth(const uint8_t *h, int i)
{
    return (h[i / 8] >> i % 8 & 1) << 4;
}

static void q5_0(const uint8_t *p, float *y)
{
    float d = half(p);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(((p[6 + j] & 15) | fifth(p + 2, j)) - 16);
        y[16 + j] = d * (float)((p[6 + j] >> 4 | fifth(p + 2, 16 + j)) - 16);
    }
}

static void q5_1(const uint8_t *p, float *y)
{
    float d = half(p), m = half(p + 2);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((p[8 + j] & 15) | fifth(p + 4, j)) + m;
        y[16 + j] = d * (float)(p[8 + j] >> 4 | fifth(p + 4, 16 + j)) + m;
    }
}

static void q8_0(const uint8_t *p, float *y)
{
    float d = half(p);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)p[2 + j];
}

/* scales[16] (4-bit scale, 4-bit minimum), qs[64], d, dmin */
static void q2_k(const uint8_t *p, float *y)
{
    float d = half(p + 80), dmin = half(p + 82);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, j = i / 32 % 4, l = i % 32, sc = p[i / 16];
        y[i] = d * (float)(sc & 15) * (float)(p[16 + 32 * h + l] >> 2 * j & 3) - dmin * (float)(sc >> 4);
    }
}

/* hmask[32], qs[64], scales[12] (16 of 6 bits: low nibbles first, then pairs of high bits), d */
static void q3_k(const uint8_t *p, float *y)
{
    const uint8_t *s = p + 96;
    float d = half(p + 108);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, j = i / 32 % 4, l = i % 32, k = i / 16;
        int sc = (k < 8 ? s[k] & 15 : s[k - 8] >> 4) | (s[8 + k % 4] >> 2 * (k / 4) & 3) << 4;
        int q = (p[32 + 32 * h + l] >> 2 * j & 3) - (p[l] >> (4 * h + j) & 1 ? 0 : 4);
        y[i] = d * (float)(sc - 32) * (float)q;
    }
}

/* Scale and minimum k of 8, 6 bits each, in the 12 bytes that Q4_K and Q5_K share. */
static void k_scale(const uint8_t *s, int k, int *sc, int *m)
{
    if (k < 4) {
        *sc = s[k] & 63;
        *m = s[k + 4] & 63;
    } else {
        *sc = (s[k + 4] & 15) | s[k - 4] >> 6 << 4;
        *m = s[k + 4] >> 4 | s[k] >> 6 << 4;
    }
}

/* d, dmin, scales[12], then Q5_K: qh[32]; qs[128] */
static void q45_k(const uint8_t *p, float *y, bool five)
{
    float d = half(p), dmin = half(p + 2);
    const uint8_t *qh = p + 16, *qs = p + (five ? 48 : 16);
    for (int k = 0; k < 8; k++) {
        int sc, m;
        k_scale(p + 4, k, &sc, &m);
        float ds = d * (float)sc, dm = dmin * (float)m;
        for (int l = 0; l < 32; l++) {
            int q = qs[32 * (k / 2) + l] >> 4 * (k % 2) & 15;
            if (five)
                q |= (qh[l] >> k & 1) << 4;
            y[32 * k + l] = ds * (float)q - dm;
        }
    }
}

/* ql[128], qh[64], scales s8[16], d */
static void q6_k(const uint8_t *p, float *y)
{
    float d = half(p + 208);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, j = i / 32 % 4, l = i % 32;
        int q = (p[64 * h + 32 * (j % 2) + l] >> 4 * (j / 2) & 15) | (p[128 + 32 * h + l] >> 2 * j & 3) << 4;
        y[i] = d * (float)(int8_t)p[192 + i / 16] * (float)(q - 32);
    }
}

static void nibbles(const uint8_t *q, const int8_t *table, float d, float *y)
{
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)table[q[j] & 15];
        y[16 + j] = d * (float)table[q[j] >> 4];
    }
}

/* d, scales_h u16, scales_l[4], qs[128] */
static void iq4_xs(const uint8_t *p, float *y)
{
    float d = half(p);
    for (int k = 0; k < 8; k++) {
        int sc = (p[4 + k / 2] >> 4 * (k % 2) & 15) | (le16(p + 2) >> 2 * k & 3) << 4;
        nibbles(p + 8 + 16 * k, krn_iq4_values, d * (float)(sc - 32), y + 32 * k);
    }
}

static void expand_block(enum krn_type t, const uint8_t *p, float *y)
{
    switch (t) {
    case KRN_Q4_0: q4_0(p, y); break;
    case KRN_Q4_1: q4_1(p, y); break;
    case KRN_Q5_0: q5_0(p, y); break;
    case KRN_Q5_1: q5_1(p, y); break;
    case KRN_Q8_0: q8_0(p, y); break;
    case KRN_Q2_K: q2_k(p, y); break;
    case KRN_Q3_K: q3_k(p, y); break;
    case KRN_Q4_K: q45_k(p, y, false); break;
    case KRN_Q5_K: q45_k(p, y, true); break;
    case KRN_Q6_K: q6_k(p, y); break;
    case KRN_IQ4_NL: nibbles(p + 2, krn_iq4_values, half(p), y); break;
    case KRN_IQ4_XS: iq4_xs(p, y); break;
    case KRN_INT4: int4(p, y); break;
    case KRN_MXFP4: nibbles(p + 1, krn_e2m1_doubled, krn_e8m0_half(p[0]), y); break;
    default: break;
    }
}

static float element(enum krn_type t, const uint8_t *p)
{
    double d;
    switch (t) {
    case KRN_F16: return half(p);
    case KRN_BF16: return krn_bf16_to_f32(le16(p));
    case KRN_F64: memcpy(&d, p, 8); return (float)d;
    case KRN_F8_E4M3: return f8_e4m3(*p);
    case KRN_F8_E5M2: return krn_f16_to_f32((uint16_t)(*p << 8)); /* the upper half of a half */
    case KRN_E8M0: return e8m0(*p);
    default: return 0;
    }
}

bool krn_expand(enum krn_type t, const void *src, size_t n, float *dst)
{
    const uint8_t *p = src;
    size_t block = krn_types[t].block, bytes = krn_types[t].block_bytes;

    switch (t) {
    case KRN_I8: case KRN_U8: case KRN_I16: case KRN_I32: case KRN_I64: case KRN_BOOL: case KRN_TYPE_COUNT:
        return false;
    case KRN_F32:
        memcpy(dst, src, n * sizeof *dst);
        return true;
    case KRN_F8_SCALED:
        f8_scaled(src, n, dst);
        return true;
    default:
        break;
    }
    if (block == 1)
        for (size_t i = 0; i < n; i++)
            dst[i] = element(t, p + i * bytes);
    else
        for (size_t i = 0; i < n / block; i++)
            expand_block(t, p + i * bytes, dst + i * block);
    return true;
}
