/* kernels/linear.c - the plain C definition of linear.h, its scratch, and the choice of instruction set.
 *
 * The loops have the shape of the vector versions: a tile of 16 rows, a group of tokens, block after block, so that a
 * block is unpacked once for all tokens of the group. Each (row, token) sees only its own chain of operations. */
#include "kernels/linear.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/linear_internal.h"

enum { B = KRN_OPERAND_BLOCK, R = KRN_TILE_ROWS, G = KRN_OPERAND_GROUP };

static size_t round_up(size_t n)
{
    return (n + 255) & ~(size_t)255;
}

size_t krn_operand_bytes(uint32_t n, uint32_t cols)
{
    uint64_t entries = (uint64_t)n * (cols / B + (cols % B != 0));
    if (entries > (SIZE_MAX >> 8))
        return 0;
    return round_up((size_t)entries * B) + 4 * round_up((size_t)entries * 4) + round_up((size_t)entries * sizeof *((struct krn_operand *)NULL)->part);
}

void krn_operand_init(struct krn_operand *a, const float *x, size_t stride, uint32_t n, uint32_t cols, void *scratch)
{
    *a = (struct krn_operand){.x = x, .stride = stride, .n = n, .cols = cols};
    if (!scratch)
        return;
    size_t entries = (size_t)n * (cols / B + (cols % B != 0));
    uint8_t *p = scratch;
    a->q = (int8_t *)p;
    p += round_up(entries * B);
    a->d = (float *)(void *)p;
    p += round_up(entries * 4);
    a->s = (float *)(void *)p;
    p += round_up(entries * 4);
    a->c8 = (int32_t *)(void *)p;
    p += round_up(entries * 4);
    a->half = (int16_t (*)[2])(void *)p;
    p += round_up(entries * 4);
    a->part = (int16_t (*)[3][2])(void *)p;
}

int krn_linear_support(enum krn_type t, enum krn_layout l)
{
    float f = 0;
    if (l == KRN_TILED)
        return krn_slot_can(t) ? KRN_LINEAR_FAST : KRN_LINEAR_NONE;
    return t != KRN_F8_SCALED && krn_expand(t, &f, 0, &f) ? KRN_LINEAR_SLOW : KRN_LINEAR_NONE;
}

bool krn_linear_int8(enum krn_type t, enum krn_layout l, enum krn_precision p)
{
    return p == KRN_PREC_AUTO && l == KRN_TILED && krn_slot_can(t) && krn_types[t].block > 1;
}

/* ---- activations ---- */

static void quantise_block(const float *x, int8_t *q, float *d, float *s, int32_t *c8, int16_t half[2], int16_t part[3][2])
{
    uint32_t top = 0;
    int sum[2] = {0};
    float amax;
    for (int i = 0; i < B; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        u &= 0x7fffffff; /* as integers, magnitudes sort, with infinity and NaN on top */
        if (u > top)
            top = u;
    }
    memcpy(&amax, &top, 4);
    memset(q, 0, B);
    *c8 = 0;
    half[0] = half[1] = 0;
    memset(part, 0, 3 * sizeof *part);
    if (top >= 0x7f800000) {
        *d = *s = NAN;
        return;
    }
    *d = *s = 0;
    if (amax < KRN_AMAX_MIN)
        return;
    float inv = 127.0f / amax;
    for (int i = 0; i < B; i++) {
        q[i] = (int8_t)lrintf(x[i] * inv); /* the default rounding mode: to nearest even */
        sum[i / (B / 2)] += q[i];
        part[i / (B / 2)][i % 4 / 2] = (int16_t)(part[i / (B / 2)][i % 4 / 2] + 32 * q[i]);
        part[2][i % 4 / 2] = (int16_t)(part[2][i % 4 / 2] + 16 * q[i]);
    }
    *d = amax / 127.0f;
    *s = *d * (float)(sum[0] + sum[1]);
    *c8 = -8 * (sum[0] + sum[1]);
    half[0] = (int16_t)sum[0];
    half[1] = (int16_t)sum[1];
}

static void quantise(const struct krn_operand *a, uint32_t row0, uint32_t n)
{
    assert(a->cols % B == 0 && a->q);
    for (uint32_t r = row0; r < row0 + n; r++) {
        uint32_t g;
        size_t at = krn_operand_entry(a, r, &g);
        for (uint32_t b = 0; b < a->cols / B; b++, at += g)
            quantise_block(a->x + r * a->stride + b * B, a->q + at * B, &a->d[at], &a->s[at], &a->c8[at], a->half[at], a->part[at]);
    }
}

/* ---- weights ---- */

static float f16_at(const uint8_t *p, unsigned i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return krn_f16_to_f32(h);
}

static float bf16_at(const uint8_t *p, unsigned i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return krn_bf16_to_f32(h);
}

/* 32 columns of 16 rows. A weight stands for d * w (+ m), or by halves of the columns for d * sc * w (+ m * mn). */
struct cols32 {
    int16_t w[B][R];            /* [column][row], signed where the type is */
    float d[R], m[R];
    int sc[2][R], mn[2][R];
};

/* Byte n of row i in the field of 4-byte pieces that begins `at` row bytes into the block. */
static unsigned byte_at(const uint8_t *p, int at, unsigned n, unsigned i)
{
    return p[(unsigned)at * R + n / 4 * R * 4 + i * 4 + n % 4];
}

/* The bits of column c of sub-block k, unsigned. */
static unsigned bits_at(enum krn_type t, const uint8_t *p, unsigned k, unsigned c, unsigned i)
{
    const int quants = krn_quants_at(t), high = krn_high_at(t);
    if (t == KRN_Q2_K || t == KRN_Q3_K) {
        unsigned two = byte_at(p, quants, k / 4 * 32 + c, i) >> 2 * (k % 4) & 3;
        return t == KRN_Q2_K ? two : two | (byte_at(p, high, c, i) >> k & 1) << 2;
    }
    if (t == KRN_Q4_K || t == KRN_Q5_K) {
        unsigned four = byte_at(p, quants, k / 2 * 32 + c, i) >> 4 * (k % 2) & 15;
        return t == KRN_Q4_K ? four : four | (byte_at(p, high, c, i) >> k & 1) << 4;
    }
    if (t == KRN_Q6_K) {
        int at = quants + (int)(k / 4) * 96;
        return (byte_at(p, at, k % 2 * 32 + c, i) >> 4 * (k / 2 % 2) & 15) | (byte_at(p, at + 64, c, i) >> 2 * (k % 4) & 3) << 4;
    }
    unsigned four = byte_at(p, quants, k * 16 + c % 16, i) >> c / 16 * 4 & 15;
    return high ? four | (byte_at(p, high, c % 4, i) >> c / 4 & 1) << 4 : four;
}

static int quant_at(enum krn_type t, const uint8_t *p, unsigned k, unsigned c, unsigned i)
{
    if (t == KRN_Q8_0)
        return (int8_t)byte_at(p, krn_quants_at(t), c, i);
    unsigned bits = bits_at(t, p, k, c, i);
    return t == KRN_MXFP4 ? krn_e2m1_doubled[bits] : krn_has_table(t) ? krn_iq4_values[bits] : (int)bits - krn_zero(t);
}

/* Scale and minimum of sub-block k of Q4_K and Q5_K, of 6 bits each in 12 bytes (types.c has them as published). */
static void scale_at(const uint8_t *p, unsigned k, unsigned i, int *sc, int *mn)
{
    unsigned s = byte_at(p, 4, k % 4, i), m = byte_at(p, 4, 4 + k % 4, i), both = byte_at(p, 4, 8 + k % 4, i);
    *sc = (int)(k < 4 ? s & 63 : (both & 15) | s >> 6 << 4);
    *mn = (int)(k < 4 ? m & 63 : both >> 4 | m >> 6 << 4);
}

/* The integer scales of both halves of sub-block k. */
static void halves_at(enum krn_type t, const uint8_t *p, unsigned k, unsigned i, struct cols32 *o)
{
    for (unsigned h = 0; h < 2; h++) {
        unsigned n = 2 * k + h, s;
        if (t == KRN_Q2_K) {
            s = byte_at(p, 4, n, i);
            o->sc[h][i] = (int)(s & 15);
            o->mn[h][i] = (int)(s >> 4);
        } else if (t == KRN_Q3_K) {
            s = byte_at(p, 2, n % 8, i) >> n / 8 * 4 & 15;
            o->sc[h][i] = (int)(s | (byte_at(p, 2, 8 + n % 4, i) >> n / 4 * 2 & 3) << 4) - 32;
        } else {
            o->sc[h][i] = (int8_t)byte_at(p, 2, n, i);
        }
    }
}

/* Sub-block k (0 where a block has 32 columns) of the tiled block at p. */
static void unpack(enum krn_type t, const uint8_t *p, unsigned k, struct cols32 *o)
{
    for (unsigned i = 0; i < R; i++) {
        int sc, mn;
        o->d[i] = t == KRN_MXFP4 ? krn_e8m0_half(p[i]) : t == KRN_INT4 ? bf16_at(p, i) : f16_at(p, i);
        o->m[i] = krn_has_min(t) ? f16_at(p + 2 * R, i) : 0;
        if (krn_halves(t)) {
            o->m[i] = -o->m[i];
            halves_at(t, p, k, i, o);
        } else if (t == KRN_Q4_K || t == KRN_Q5_K) {
            scale_at(p, k, i, &sc, &mn);
            o->d[i] *= (float)sc;
            o->m[i] *= -(float)mn;
        } else if (t == KRN_IQ4_XS) {
            sc = (int)(byte_at(p, 4, k / 2, i) >> k % 2 * 4 & 15);
            sc |= (p[2 * R + 2 * i + k / 4] >> k % 4 * 2 & 3) << 4;
            o->d[i] *= (float)(sc - 32);
        }
    }
    for (unsigned c = 0; c < B; c++)
        for (unsigned i = 0; i < R; i++)
            o->w[c][i] = (int16_t)quant_at(t, p, k, c, i);
}

/* The block of columns [32b, 32b + 32) of a tile, and which sub-block of it they are. */
static const uint8_t *block_at(enum krn_type t, const uint8_t *tile, uint32_t b, unsigned *k)
{
    uint32_t subs = krn_types[t].block / B;
    *k = b % subs;
    return tile + (size_t)(b / subs) * R * krn_types[t].block_bytes;
}

/* Columns [c0, c0 + n) of a tile as f32: w[column][row]. c0 is a multiple of 32; n < 32 only for element types and F8_SCALED. */
static void expand_tile(enum krn_type t, const uint8_t *tile, uint32_t cols, uint32_t c0, uint32_t n, float w[B][R])
{
    struct cols32 o;
    unsigned k;
    if (t == KRN_F8_SCALED) {
        const uint8_t *v = tile + (cols + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK * R * sizeof(float);
        krn_expand(KRN_F8_E4M3, v + (size_t)c0 * R, (size_t)n * R, &w[0][0]);
        for (unsigned c = 0; c < n; c++)
            for (unsigned i = 0; i < R; i++) {
                float s;
                memcpy(&s, tile + (c0 / KRN_F8_BLOCK * R + i) * sizeof s, sizeof s);
                w[c][i] = s * w[c][i];
            }
        return;
    }
    if (krn_types[t].block == 1) {
        krn_expand(t, tile + (size_t)c0 * R * krn_types[t].block_bytes, (size_t)n * R, &w[0][0]);
        return;
    }
    const uint8_t *p = block_at(t, tile, c0 / B, &k);
    unpack(t, p, k, &o);
    for (unsigned c = 0; c < B; c++)
        for (unsigned i = 0; i < R; i++) {
            unsigned h = c / (B / 2);
            float d = krn_halves(t) ? o.d[i] * (float)o.sc[h][i] : o.d[i], v = d * (float)o.w[c][i];
            w[c][i] = !krn_has_min(t) ? v : krn_halves(t) ? v + o.m[i] * (float)o.mn[h][i] : v + o.m[i];
        }
}

bool krn_linear_bias(const struct krn_linear *l, uint32_t row0, float out[R])
{
    if (!l->bias)
        return false;
    uint32_t n = l->w->rows - row0 < R ? l->w->rows - row0 : R;
    memset(out, 0, R * sizeof *out);
    krn_expand(l->bias->type, (const uint8_t *)l->bias->data + (size_t)row0 * krn_types[l->bias->type].block_bytes, n, out);
    return true;
}

/* ---- products ---- */

static void tile_int8(const struct krn_linear *l, const struct krn_operand *a, const uint8_t *tile, uint32_t t0, uint32_t g, float acc[G][R])
{
    struct cols32 o;
    const enum krn_type type = l->w->type;
    const bool halves = krn_halves(type), has_min = krn_has_min(type);
    uint32_t step;
    size_t at = krn_operand_entry(a, t0, &step);
    for (uint32_t b = 0; b < a->cols / B; b++, at += step) {
        unsigned k;
        const uint8_t *p = block_at(type, tile, b, &k);
        unpack(type, p, k, &o);
        for (uint32_t t = 0; t < g; t++) {
            const int8_t *q = a->q + (at + t) * B;
            const int16_t *sum = a->half[at + t];
            int dot[2][R] = {{0}};
            for (unsigned c = 0; c < B; c++)
                for (unsigned i = 0; i < R; i++)
                    dot[c / (B / 2)][i] += o.w[c][i] * q[c];
            for (unsigned i = 0; i < R; i++) {
                int all = halves ? o.sc[0][i] * dot[0][i] + o.sc[1][i] * dot[1][i] : dot[0][i] + dot[1][i];
                acc[t][i] = fmaf((float)all, o.d[i] * a->d[at + t], acc[t][i]);
                if (has_min && halves)
                    acc[t][i] = fmaf((float)(o.mn[0][i] * sum[0] + o.mn[1][i] * sum[1]), o.m[i] * a->d[at + t], acc[t][i]);
                else if (has_min)
                    acc[t][i] = fmaf(o.m[i], a->s[at + t], acc[t][i]);
            }
        }
    }
}

static void tile_f32(const struct krn_linear *l, const struct krn_operand *a, const uint8_t *tile, uint32_t t0, uint32_t g, float acc[G][R])
{
    float w[B][R];
    for (uint32_t c0 = 0; c0 < a->cols; c0 += B) {
        uint32_t n = a->cols - c0 < B ? a->cols - c0 : B;
        expand_tile(l->w->type, tile, a->cols, c0, n, w);
        for (uint32_t t = 0; t < g; t++) {
            const float *x = a->x + (t0 + t) * a->stride + c0;
            float p[R] = {0};
            for (uint32_t c = 0; c < n; c++)
                for (unsigned i = 0; i < R; i++)
                    p[i] = fmaf(w[c][i], x[c], p[i]);
            for (unsigned i = 0; i < R; i++)
                acc[t][i] += p[i];
        }
    }
}

static void run(const struct krn_linear *l, const struct krn_operand *a, uint32_t tile0, uint32_t n_tiles)
{
    const struct krn_weight *w = l->w;
    size_t tile_bytes = R * krn_row_bytes(w->type, w->cols);
    assert(a->cols == w->cols);
    if (w->layout == KRN_PLAIN) {
        krn_linear_plain(l, a, tile0, n_tiles);
        return;
    }
    for (uint32_t k = tile0; k < tile0 + n_tiles; k++) {
        float bias[R];
        bool biased = krn_linear_bias(l, k * R, bias);
        uint32_t n = w->rows - k * R < R ? w->rows - k * R : R;
        for (uint32_t t0 = 0; t0 < a->n; t0 += G) {
            uint32_t g = a->n - t0 < G ? a->n - t0 : G;
            float acc[G][R] = {{0}};
            (l->int8 ? tile_int8 : tile_f32)(l, a, (const uint8_t *)w->data + k * tile_bytes, t0, g, acc);
            for (uint32_t t = 0; t < g; t++)
                for (unsigned i = 0; i < n; i++)
                    l->y[(t0 + t) * l->y_stride + k * R + i] = biased ? acc[t][i] + bias[i] : acc[t][i];
        }
    }
}

/* A chunk of a row is expanded once for all tokens; y holds the sums in between. 256 is a multiple of every block. */
void krn_linear_plain(const struct krn_linear *l, const struct krn_operand *a, uint32_t tile0, uint32_t n_tiles)
{
    enum { CHUNK = 256 };
    const struct krn_weight *w = l->w;
    size_t row_bytes = krn_row_bytes(w->type, w->cols);
    uint64_t end = ((uint64_t)tile0 + n_tiles) * R;
    for (uint32_t r = tile0 * R; r < w->rows && r < end; r++) {
        float bias[R], chunk[CHUNK];
        const uint8_t *row = (const uint8_t *)w->data + r * row_bytes;
        for (uint32_t t = 0; t < a->n; t++)
            l->y[t * l->y_stride + r] = 0;
        for (uint32_t c0 = 0; c0 < w->cols; c0 += CHUNK) {
            uint32_t n = w->cols - c0 < CHUNK ? w->cols - c0 : CHUNK;
            krn_expand(w->type, row + krn_row_bytes(w->type, c0), n, chunk);
            for (uint32_t t = 0; t < a->n; t++) {
                const float *x = a->x + t * a->stride + c0;
                for (uint32_t b = 0; b < n; b += B) {
                    float p = 0;
                    for (uint32_t c = b; c < n && c < b + B; c++)
                        p = fmaf(chunk[c], x[c], p);
                    l->y[t * l->y_stride + r] += p;
                }
            }
        }
        if (krn_linear_bias(l, r / R * R, bias))
            for (uint32_t t = 0; t < a->n; t++)
                l->y[t * l->y_stride + r] += bias[r % R];
    }
}

const struct krn_linear_isa krn_linear_c = {.name = "c", .quantise = quantise, .run = run};

const struct krn_linear_isa *krn_linear_get(enum krn_isa isa)
{
    if (isa == KRN_ISA_AUTO)
        isa = krn_isa_have(KRN_ISA_AVX512) ? KRN_ISA_AVX512 : krn_isa_have(KRN_ISA_AVX2) ? KRN_ISA_AVX2 : KRN_ISA_C;
    if (!krn_isa_have(isa))
        return NULL;
    switch (isa) {
#if defined(__x86_64__)
    case KRN_ISA_AVX2: return &krn_linear_avx2;
    case KRN_ISA_AVX512: return &krn_linear_avx512;
#endif
    default: return &krn_linear_c;
    }
}
