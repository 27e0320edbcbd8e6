#include "offload/packed.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

typedef uint8_t v16 __attribute__((vector_size(16)));

uint64_t off_packed_scale_bytes(const struct off_packed *p) { return p->n * krn_types[p->scales->type].block_bytes; }

uint64_t off_packed_scale_row(const struct off_packed *p, uint64_t offset)
{
    uint64_t row = (offset - p->data->offset) / p->row_bytes, per = (p->matrix_rows + p->rows - 1) / p->rows;
    return row / p->matrix_rows * per + row % p->matrix_rows / p->rows;
}

/* Adjacent nibbles to those of a block of 32: byte j has columns j and 16 + j. */
static void nibbles(const uint8_t *src, uint8_t *dst)
{
    v16 v, low, high;
    memcpy(&v, src, 16);
    low = v & 15;
    high = v >> 4;
    v16 first = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    v16 last = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    v = first | last << 4;
    memcpy(dst, &v, 16);
}

static int mxfp4_row(uint64_t cols, const uint8_t *src, const uint8_t *scales, uint8_t *dst, uint64_t *col)
{
    for (uint64_t b = 0; b < cols / 32; b++, dst += 17) {
        if (scales[b] == 255) { /* E8M0's NaN */
            *col = b * 32;
            return ERR_FORMAT;
        }
        dst[0] = scales[b];
        nibbles(src + b * 16, dst + 1);
    }
    return ERR_OK;
}

static int int4_row(const struct off_packed *p, uint64_t cols, const uint8_t *src, const uint8_t *scales, uint8_t *dst, uint64_t *col)
{
    for (uint64_t b = 0; b < cols / 32; b++, dst += 18) {
        float s;
        const uint8_t *scale = scales + b * 32 / p->cols * 2;
        krn_expand(p->scales->type, scale, 1, &s);
        if (!isfinite(s)) {
            *col = b * 32;
            return ERR_FORMAT;
        }
        memcpy(dst, scale, 2);
        nibbles(src + b * 16, dst + 2);
    }
    return ERR_OK;
}

static int fp8_row(const struct off_packed *p, uint64_t cols, const uint8_t *src, const uint8_t *scales, uint8_t *dst, uint64_t *col)
{
    uint64_t n = (cols + KRN_F8_BLOCK - 1) / KRN_F8_BLOCK;
    uint8_t nan = 0;
    for (uint64_t b = 0; b < n; b++) {
        float s;
        krn_expand(p->scales->type, scales + b * KRN_F8_BLOCK / p->cols * krn_types[p->scales->type].block_bytes, 1, &s);
        if (!isfinite(s)) {
            *col = b * KRN_F8_BLOCK;
            return ERR_FORMAT;
        }
        memcpy(dst + b * sizeof s, &s, sizeof s);
    }
    for (uint64_t i = 0; i < cols; i++)
        nan |= (src[i] & 0x7f) == 0x7f;
    memcpy(dst + n * sizeof(float), src, cols);
    for (*col = 0; nan && (src[*col] & 0x7f) != 0x7f;)
        ++*col;
    return nan ? ERR_FORMAT : ERR_OK;
}

int off_packed_row(const struct off_packed *p, uint64_t cols, const uint8_t *src, const uint8_t *scales, uint8_t *dst, uint64_t *col)
{
    switch (p->kind) {
    case OFF_PACKED_MXFP4: return mxfp4_row(cols, src, scales, dst, col);
    case OFF_PACKED_INT4: return int4_row(p, cols, src, scales, dst, col);
    default: return fp8_row(p, cols, src, scales, dst, col);
    }
}
