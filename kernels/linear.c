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
    return round_up((size_t)entries * B) + 3 * round_up((size_t)entries * 4);
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
}

int krn_linear_support(enum krn_type t, enum krn_layout l)
{
    float f = 0;
    if (l == KRN_TILED)
        return krn_slot_can(t) ? KRN_LINEAR_FAST : KRN_LINEAR_NONE;
    return krn_expand(t, &f, 0, &f) ? KRN_LINEAR_SLOW : KRN_LINEAR_NONE;
}

bool krn_linear_int8(enum krn_type t, enum krn_layout l, enum krn_precision p)
{
    return p == KRN_PREC_AUTO && l == KRN_TILED && (t == KRN_Q4_0 || t == KRN_Q4_1 || t == KRN_Q8_0);
}

/* ---- activations ---- */

static void quantise_block(const float *x, int8_t *q, float *d, float *s, int32_t *c8)
{
    uint32_t top = 0;
    int sum = 0;
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
        sum += q[i];
    }
    *d = amax / 127.0f;
    *s = *d * (float)sum;
    *c8 = -8 * sum;
}

static void quantise(const struct krn_operand *a, uint32_t row0, uint32_t n)
{
    assert(a->cols % B == 0 && a->q);
    for (uint32_t r = row0; r < row0 + n; r++) {
        uint32_t g;
        size_t at = krn_operand_entry(a, r, &g);
        for (uint32_t b = 0; b < a->cols / B; b++, at += g)
            quantise_block(a->x + r * a->stride + b * B, a->q + at * B, &a->d[at], &a->s[at], &a->c8[at]);
    }
}

/* ---- weights ---- */

static float f16_at(const uint8_t *p, unsigned i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return krn_f16_to_f32(h);
}

/* The integers of a tiled block: w[column][row]; d and m of each row. Q4_0 and Q8_0 have no m. */
static void unpack_block(enum krn_type t, const uint8_t *p, int16_t w[B][R], float d[R], float m[R])
{
    for (unsigned i = 0; i < R; i++) {
        d[i] = f16_at(p, i);
        m[i] = t == KRN_Q4_1 ? f16_at(p + 2 * R, i) : 0;
    }
    p += t == KRN_Q4_1 ? 4 * R : 2 * R;
    if (t == KRN_Q8_0) {
        for (unsigned c = 0; c < B; c++)
            for (unsigned i = 0; i < R; i++)
                w[c][i] = (int8_t)p[c / 4 * R * 4 + i * 4 + c % 4];
        return;
    }
    int zero = t == KRN_Q4_0 ? 8 : 0;
    for (unsigned c = 0; c < B / 2; c++)
        for (unsigned i = 0; i < R; i++) {
            unsigned byte = p[c / 4 * R * 4 + i * 4 + c % 4];
            w[c][i] = (int16_t)((int)(byte & 15) - zero);
            w[B / 2 + c][i] = (int16_t)((int)(byte >> 4) - zero);
        }
}

/* Columns [c0, c0 + n) of a tile as f32: w[column][row]. c0 is a multiple of 32; n < 32 only for element types. */
static void expand_tile(const struct krn_weight *k, const uint8_t *tile, uint32_t c0, uint32_t n, float w[B][R])
{
    size_t bytes = krn_types[k->type].block_bytes;
    if (krn_types[k->type].block == 1) {
        krn_expand(k->type, tile + (size_t)c0 * R * bytes, (size_t)n * R, &w[0][0]);
        return;
    }
    int16_t q[B][R];
    float d[R], m[R];
    unpack_block(k->type, tile + (size_t)(c0 / B) * R * bytes, q, d, m);
    for (unsigned c = 0; c < B; c++)
        for (unsigned i = 0; i < R; i++)
            w[c][i] = k->type == KRN_Q4_1 ? d[i] * (float)q[c][i] + m[i] : d[i] * (float)q[c][i];
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
    int16_t w[B][R];
    float d[R], m[R];
    enum krn_type type = l->w->type;
    uint32_t step;
    size_t at = krn_operand_entry(a, t0, &step);
    for (uint32_t b = 0; b < a->cols / B; b++, at += step, tile += R * krn_types[type].block_bytes) {
        unpack_block(type, tile, w, d, m);
        for (uint32_t t = 0; t < g; t++) {
            const int8_t *q = a->q + (at + t) * B;
            int dot[R] = {0};
            for (unsigned c = 0; c < B; c++)
                for (unsigned i = 0; i < R; i++)
                    dot[i] += w[c][i] * q[c];
            for (unsigned i = 0; i < R; i++) {
                acc[t][i] = fmaf((float)dot[i], d[i] * a->d[at + t], acc[t][i]);
                if (type == KRN_Q4_1)
                    acc[t][i] = fmaf(m[i], a->s[at + t], acc[t][i]);
            }
        }
    }
}

static void tile_f32(const struct krn_linear *l, const struct krn_operand *a, const uint8_t *tile, uint32_t t0, uint32_t g, float acc[G][R])
{
    float w[B][R];
    for (uint32_t c0 = 0; c0 < a->cols; c0 += B) {
        uint32_t n = a->cols - c0 < B ? a->cols - c0 : B;
        expand_tile(l->w, tile, c0, n, w);
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
