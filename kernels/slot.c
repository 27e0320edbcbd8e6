/* kernels/slot.c - the tiled layout: packing published rows into it, and reading a row back. Only bits move. */
#include "kernels/slot.h"

#include <string.h>

enum { BLOCK = 32, R = KRN_TILE_ROWS };

/* The fields of a published block, in their order in a tile. */
struct field { uint8_t at, width, n; }; /* offset in the published block; bytes a piece; pieces */
enum { FIELDS = 6 };
static const struct field fields[KRN_TYPE_COUNT][FIELDS] = {
    [KRN_Q8_0] = {{0, 2, 1}, {2, 4, 8}},
    [KRN_Q4_0] = {{0, 2, 1}, {2, 4, 4}},
    [KRN_Q4_1] = {{0, 2, 2}, {4, 4, 4}},
    [KRN_Q5_0] = {{0, 2, 1}, {2, 4, 1}, {6, 4, 4}},
    [KRN_Q5_1] = {{0, 2, 2}, {4, 4, 1}, {8, 4, 4}},
    [KRN_Q2_K] = {{80, 2, 2}, {0, 4, 4}, {16, 4, 16}},
    [KRN_Q3_K] = {{108, 2, 1}, {96, 4, 3}, {0, 4, 8}, {32, 4, 16}},
    [KRN_Q4_K] = {{0, 2, 2}, {4, 4, 3}, {16, 4, 32}},
    [KRN_Q5_K] = {{0, 2, 2}, {4, 4, 3}, {16, 4, 8}, {48, 4, 32}},
    [KRN_Q6_K] = {{208, 2, 1}, {192, 4, 4}, {0, 4, 16}, {128, 4, 8}, {64, 4, 16}, {160, 4, 8}},
    [KRN_IQ4_NL] = {{0, 2, 1}, {2, 4, 4}},
    [KRN_IQ4_XS] = {{0, 2, 2}, {4, 4, 1}, {8, 4, 32}},
    [KRN_MXFP4] = {{0, 1, 1}, {1, 4, 4}},
    [KRN_INT4] = {{0, 2, 1}, {2, 4, 4}},
};

bool krn_slot_can(enum krn_type t)
{
    return t == KRN_F32 || t == KRN_F16 || t == KRN_BF16 || t == KRN_F8_SCALED || ((unsigned)t < KRN_TYPE_COUNT && fields[t][0].n);
}

/* Where the fifth bits of a Q5_0 or Q5_1 block lie, as published; 0: the type has none. */
static unsigned fifth_bits(enum krn_type t)
{
    return t == KRN_Q5_0 ? 2 : t == KRN_Q5_1 ? 4 : 0;
}

size_t krn_slot_bytes(enum krn_type t, enum krn_layout l, uint64_t rows, uint64_t cols)
{
    if ((unsigned)t >= KRN_TYPE_COUNT || rows == 0 || cols == 0 || (l == KRN_TILED && !krn_slot_can(t)))
        return 0;
    size_t row = krn_row_bytes(t, cols);
    if (l == KRN_TILED) {
        if (rows > UINT64_MAX - R)
            return 0;
        rows = (rows + R - 1) / R * R;
    }
    return row == 0 || rows > SIZE_MAX / row ? 0 : (size_t)rows * row;
}

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

/* A square of elements, one vector a row, is transposed by log2(rows) rounds that interleave vector i with i + rows/2. */
typedef uint16_t v8 __attribute__((vector_size(16)));
typedef uint32_t v4 __attribute__((vector_size(16)));

INLINE void transpose8(v8 m[8])
{
    UNROLL for (int round = 0; round < 3; round++) {
        v8 n[8];
        UNROLL for (int i = 0; i < 4; i++) {
            n[2 * i] = __builtin_shufflevector(m[i], m[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
            n[2 * i + 1] = __builtin_shufflevector(m[i], m[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
        }
        memcpy(m, n, sizeof n);
    }
}

INLINE void transpose4(v4 m[4])
{
    UNROLL for (int round = 0; round < 2; round++) {
        v4 n[4];
        UNROLL for (int i = 0; i < 2; i++) {
            n[2 * i] = __builtin_shufflevector(m[i], m[i + 2], 0, 4, 1, 5);
            n[2 * i + 1] = __builtin_shufflevector(m[i], m[i + 2], 2, 6, 3, 7);
        }
        memcpy(m, n, sizeof n);
    }
}

/* Elements to [col][16 rows], in squares of S by S, then the columns that are left one by one. A NULL row is zeros. */
INLINE void pack_elements(size_t width, uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    const unsigned S = (unsigned)(16 / width);
    uint64_t c = 0;
    for (; c + S <= cols; c += S)
        for (unsigned i0 = 0; i0 < R; i0 += S) {
            union { v8 h[8]; v4 w[4]; uint8_t b[8][16]; } m;
            UNROLL for (unsigned i = 0; i < S; i++)
                if (row[i0 + i])
                    memcpy(m.b[i], row[i0 + i] + c * width, 16);
                else
                    memset(m.b[i], 0, 16);
            if (width == 2)
                transpose8(m.h);
            else
                transpose4(m.w);
            UNROLL for (unsigned k = 0; k < S; k++)
                memcpy(dst + ((c + k) * R + i0) * width, m.b[k], 16);
        }
    for (; c < cols; c++)
        for (unsigned i = 0; i < R; i++)
            memcpy(dst + (c * R + i) * width, row[i] ? row[i] + c * width : (const uint8_t[4]){0}, width);
}

/* Scales and bytes of F8_SCALED, each as [piece][16 rows]. */
static void pack_f8(uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    size_t scales = (size_t)((cols + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK);
    for (unsigned i = 0; i < R; i++) {
        const uint8_t *v = row[i] ? row[i] + scales * sizeof(float) : NULL;
        for (size_t k = 0; k < scales; k++)
            if (v)
                memcpy(dst + (k * R + i) * sizeof(float), row[i] + k * sizeof(float), sizeof(float));
            else
                memset(dst + (k * R + i) * sizeof(float), 0, sizeof(float));
        for (uint64_t c = 0; c < cols; c++)
            dst[scales * R * sizeof(float) + c * R + i] = v ? v[c] : 0;
    }
}

/* n words that follow each other in each row to [word][16 rows]. */
INLINE void pack_words(unsigned n, const uint8_t *const row[R], size_t at, uint8_t *dst)
{
    unsigned k = 0;
    for (; k + 4 <= n; k += 4)
        UNROLL for (unsigned i0 = 0; i0 < R; i0 += 4) {
            v4 m[4];
            UNROLL for (unsigned i = 0; i < 4; i++)
                memcpy(&m[i], row[i0 + i] + at + k * 4, 16);
            transpose4(m);
            UNROLL for (unsigned i = 0; i < 4; i++)
                memcpy(dst + ((k + i) * R + i0) * 4, &m[i], 16);
        }
    for (; k < n; k++)
        UNROLL for (unsigned i = 0; i < R; i++)
            memcpy(dst + (k * R + i) * 4, row[i] + at + k * 4, 4);
}

/* Exchanges the bits whose positions differ by `by` and of which the lower one is in m. */
INLINE v4 swap_bits(v4 x, unsigned by, uint32_t m)
{
    v4 t = (x >> by ^ x) & m;
    return x ^ t ^ t << by;
}

/* Bit 4g + j to bit 8j + g: the five bits of its position turn by two places, as four exchanges of two of them. */
INLINE v4 spread_bits(v4 x)
{
    return swap_bits(swap_bits(swap_bits(swap_bits(x, 14, 0xcccc), 7, 0x00aa00aa), 2, 0x0c0c0c0c), 1, 0x22222222);
}

INLINE v4 gather_bits(v4 x)
{
    return swap_bits(swap_bits(swap_bits(swap_bits(x, 1, 0x22222222), 2, 0x0c0c0c0c), 7, 0x00aa00aa), 14, 0xcccc);
}

INLINE void pack_blocks(enum krn_type t, uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    static const uint8_t zero[256];
    const size_t bytes = krn_types[t].block_bytes;
    for (uint64_t b = 0; b < cols / krn_types[t].block; b++) {
        const uint8_t *s[R];
        for (unsigned i = 0; i < R; i++)
            s[i] = row[i] ? row[i] + b * bytes : zero;
        UNROLL for (unsigned n = 0; n < FIELDS; n++) {
            const struct field *f = &fields[t][n];
            if (f->width == 4)
                pack_words(f->n, s, f->at, dst);
            else if (f->width == 2)
                for (unsigned k = 0; k < f->n; k++)
                    UNROLL for (unsigned i = 0; i < R; i++)
                        memcpy(dst + (k * R + i) * 2, s[i] + f->at + k * 2, 2);
            else if (f->width == 1)
                for (unsigned i = 0; i < R; i++)
                    dst[i] = s[i][f->at];
            if (fifth_bits(t) && f->at == fifth_bits(t))
                for (unsigned i = 0; i < R; i += 4) {
                    v4 w;
                    memcpy(&w, dst + i * 4, 16);
                    w = spread_bits(w);
                    memcpy(dst + i * 4, &w, 16);
                }
            dst += f->n * f->width * R;
        }
    }
}

static void pack_tile(enum krn_type t, uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    switch (t) {
    case KRN_F32: pack_elements(4, cols, row, dst); break;
    case KRN_F16: case KRN_BF16: pack_elements(2, cols, row, dst); break;
    case KRN_Q8_0: pack_blocks(KRN_Q8_0, cols, row, dst); break; /* small blocks want their fields known to the compiler */
    case KRN_F8_SCALED: pack_f8(cols, row, dst); break;
    case KRN_Q4_0: case KRN_IQ4_NL: case KRN_INT4: pack_blocks(KRN_Q4_0, cols, row, dst); break;
    case KRN_Q4_1: pack_blocks(KRN_Q4_1, cols, row, dst); break;
    case KRN_Q5_0: pack_blocks(KRN_Q5_0, cols, row, dst); break;
    default: pack_blocks(t, cols, row, dst); break;
    }
}

void krn_slot_pack(enum krn_type t, uint64_t rows, uint64_t cols, uint64_t tile0, uint64_t n_tiles,
                   const void *src, size_t row_stride, void *dst)
{
    size_t tile_bytes = R * krn_row_bytes(t, cols);
    for (uint64_t k = 0; k < n_tiles; k++) {
        const uint8_t *row[R];
        for (unsigned i = 0; i < R; i++)
            row[i] = (tile0 + k) * R + i < rows ? (const uint8_t *)src + (k * R + i) * row_stride : NULL;
        pack_tile(t, cols, row, (uint8_t *)dst + (tile0 + k) * tile_bytes);
    }
}

/* Undoes the tiling of one block or of up to 32 elements, then lets types.h say what they stand for. */
static bool tiled_row(const struct krn_weight *w, uint32_t r, float *dst)
{
    uint8_t one[256];
    unsigned i = r % R;
    size_t bytes = krn_types[w->type].block_bytes;
    const uint8_t *tile = (const uint8_t *)w->data + (size_t)(r / R) * R * krn_row_bytes(w->type, w->cols);
    if (w->type == KRN_F8_SCALED) {
        float scale;
        const uint8_t *v = tile + (w->cols + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK * R * sizeof scale;
        for (uint32_t c = 0; c < w->cols; c++) {
            memcpy(&scale, tile + (c / KRN_F8_BLOCK * R + i) * sizeof scale, sizeof scale);
            krn_expand(KRN_F8_E4M3, v + (size_t)c * R + i, 1, dst + c);
            dst[c] = scale * dst[c];
        }
        return true;
    }
    if (krn_types[w->type].block == 1) {
        for (uint32_t c = 0; c < w->cols; c += BLOCK) {
            uint32_t n = w->cols - c < BLOCK ? w->cols - c : BLOCK;
            for (uint32_t k = 0; k < n; k++)
                memcpy(one + k * bytes, tile + ((size_t)(c + k) * R + i) * bytes, bytes);
            krn_expand(w->type, one, n, dst + c);
        }
        return true;
    }
    const unsigned block = krn_types[w->type].block, fifth = fifth_bits(w->type);
    for (uint32_t c = 0; c < w->cols; c += block) {
        for (const struct field *f = fields[w->type]; f < fields[w->type] + FIELDS && f->n; tile += f->n * f->width * R, f++)
            for (unsigned k = 0; k < f->n; k++)
                memcpy(one + f->at + k * f->width, tile + (k * R + i) * f->width, f->width);
        if (fifth) {
            v4 bits = {0};
            memcpy(&bits, one + fifth, 4);
            bits = gather_bits(bits);
            memcpy(one + fifth, &bits, 4);
        }
        krn_expand(w->type, one, block, dst + c);
    }
    return true;
}

bool krn_weight_row(const struct krn_weight *w, uint32_t row, float *dst)
{
    if (w->layout == KRN_TILED)
        return krn_slot_can(w->type) && tiled_row(w, row, dst);
    return krn_expand(w->type, (const uint8_t *)w->data + row * krn_row_bytes(w->type, w->cols), w->cols, dst);
}
