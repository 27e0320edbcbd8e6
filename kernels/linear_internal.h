/* kernels/linear_internal.h - what the instruction-set versions of linear.h share. */
#ifndef SLUICE_KERNELS_LINEAR_INTERNAL_H
#define SLUICE_KERNELS_LINEAR_INTERNAL_H
#include "kernels/linear.h"

#define KRN_AMAX_MIN 0x1p-119f /* below it 127 / amax could be infinite */

/* Entry of block 0 of row r, and how many rows its group has (= the step from block to block). */
static inline size_t krn_operand_entry(const struct krn_operand *a, uint32_t r, uint32_t *g)
{
    uint32_t first = r / KRN_OPERAND_GROUP * KRN_OPERAND_GROUP;
    *g = a->n - first < KRN_OPERAND_GROUP ? a->n - first : KRN_OPERAND_GROUP;
    return (size_t)first * (a->cols / KRN_OPERAND_BLOCK) + (r - first);
}

/* Bias of rows [row0, row0 + 16) as f32, zero beyond w->rows; false when there is none. */
bool krn_linear_bias(const struct krn_linear *l, uint32_t row0, float out[KRN_TILE_ROWS]);
/* run() for plain layouts. */
void krn_linear_plain(const struct krn_linear *l, const struct krn_operand *a, uint32_t tile0, uint32_t n_tiles);

extern const struct krn_linear_isa krn_linear_c, krn_linear_avx2, krn_linear_avx512;
#endif
