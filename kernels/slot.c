/* kernels/slot.c - the tiled layout: packing published rows into it, and reading a row back. Only bytes move. */
#include "kernels/slot.h"

#include <string.h>

enum { BLOCK = 32, R = KRN_TILE_ROWS };

bool krn_slot_can(enum krn_type t)
{
    return t == KRN_F32 || t == KRN_F16 || t == KRN_BF16 || t == KRN_Q8_0 || t == KRN_Q4_0 || t == KRN_Q4_1;
}

/* Of a block type: f16 fields at the front (d, m), and 4-byte groups of quants. */
static void shape(enum krn_type t, unsigned *n_scales, unsigned *n_groups)
{
    *n_scales = t == KRN_Q4_1 ? 2 : 1;
    *n_groups = t == KRN_Q8_0 ? 8 : 4;
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

INLINE void pack_blocks(unsigned n_scales, unsigned n_groups, uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    const size_t bytes = n_scales * 2 + n_groups * 4;
    for (uint64_t b = 0; b < cols / BLOCK; b++, dst += R * bytes)
        for (unsigned i = 0; i < R; i++) {
            static const uint8_t zero[34];
            const uint8_t *s = row[i] ? row[i] + b * bytes : zero;
            UNROLL for (unsigned k = 0; k < n_scales; k++)
                memcpy(dst + (k * R + i) * 2, s + k * 2, 2);
            UNROLL for (unsigned g = 0; g < n_groups; g++)
                memcpy(dst + n_scales * R * 2 + (g * R + i) * 4, s + n_scales * 2 + g * 4, 4);
        }
}

/* The loops above with their sizes known to the compiler. */
static void pack_tile(enum krn_type t, uint64_t cols, const uint8_t *const *row, uint8_t *dst)
{
    switch (t) {
    case KRN_F32: pack_elements(4, cols, row, dst); break;
    case KRN_F16: case KRN_BF16: pack_elements(2, cols, row, dst); break;
    case KRN_Q8_0: pack_blocks(1, 8, cols, row, dst); break;
    case KRN_Q4_0: pack_blocks(1, 4, cols, row, dst); break;
    default: pack_blocks(2, 4, cols, row, dst); break; /* Q4_1 */
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
    uint8_t one[BLOCK * 4];
    unsigned i = r % R;
    size_t bytes = krn_types[w->type].block_bytes;
    const uint8_t *tile = (const uint8_t *)w->data + (size_t)(r / R) * R * krn_row_bytes(w->type, w->cols);
    if (krn_types[w->type].block == 1) {
        for (uint32_t c = 0; c < w->cols; c += BLOCK) {
            uint32_t n = w->cols - c < BLOCK ? w->cols - c : BLOCK;
            for (uint32_t k = 0; k < n; k++)
                memcpy(one + k * bytes, tile + ((size_t)(c + k) * R + i) * bytes, bytes);
            krn_expand(w->type, one, n, dst + c);
        }
        return true;
    }
    unsigned n_scales, n_groups;
    shape(w->type, &n_scales, &n_groups);
    for (uint32_t c = 0; c < w->cols; c += BLOCK, tile += R * bytes) {
        for (unsigned k = 0; k < n_scales; k++)
            memcpy(one + k * 2, tile + (k * R + i) * 2, 2);
        for (unsigned g = 0; g < n_groups; g++)
            memcpy(one + n_scales * 2 + g * 4, tile + n_scales * R * 2 + (g * R + i) * 4, 4);
        krn_expand(w->type, one, BLOCK, dst + c);
    }
    return true;
}

bool krn_weight_row(const struct krn_weight *w, uint32_t row, float *dst)
{
    if (w->layout == KRN_TILED)
        return krn_slot_can(w->type) && tiled_row(w, row, dst);
    return krn_expand(w->type, (const uint8_t *)w->data + row * krn_row_bytes(w->type, w->cols), w->cols, dst);
}
