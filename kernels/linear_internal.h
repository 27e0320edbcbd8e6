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

/* ---- what a block type is made of: constants where t is one ---- */
#define KRN_TRAIT static inline __attribute__((always_inline))
KRN_TRAIT bool krn_k256(enum krn_type t) { return (t >= KRN_Q2_K && t <= KRN_Q6_K) || t == KRN_IQ4_XS; } /* 8 sub-blocks of 32 */
KRN_TRAIT bool krn_halves(enum krn_type t) { return t == KRN_Q2_K || t == KRN_Q3_K || t == KRN_Q6_K; }   /* an integer scale for each 16 columns */
KRN_TRAIT bool krn_has_min(enum krn_type t) { return t == KRN_Q4_1 || t == KRN_Q5_1 || t == KRN_Q4_K || t == KRN_Q5_K || t == KRN_Q2_K; }
KRN_TRAIT bool krn_has_table(enum krn_type t) { return t == KRN_IQ4_NL || t == KRN_IQ4_XS || t == KRN_MXFP4; }
/* What is subtracted from the unsigned bits; MXFP4: what makes the values of its table unsigned. */
KRN_TRAIT int krn_zero(enum krn_type t)
{
    return t == KRN_Q4_0 || t == KRN_INT4 ? 8 : t == KRN_Q5_0 ? 16 : t == KRN_Q6_K ? 32 : t == KRN_Q3_K ? 4 : t == KRN_MXFP4 ? 12 : 0;
}
/* Pieces ahead of the quants, counted in bytes of a row: an offset in a tile is 16 times that. */
KRN_TRAIT int krn_quants_at(enum krn_type t)
{
    switch (t) {
    case KRN_MXFP4: return 1;
    case KRN_Q4_1: return 4;
    case KRN_Q5_0: return 6;
    case KRN_Q5_1: case KRN_IQ4_XS: return 8;
    case KRN_Q4_K: return 16;
    case KRN_Q6_K: return 18;
    case KRN_Q2_K: return 20;
    case KRN_Q3_K: return 46;
    case KRN_Q5_K: return 48;
    default: return 2;
    }
}
KRN_TRAIT int krn_high_at(enum krn_type t) /* fifth or third bits; Q6_K's lie behind the nibbles of 128 columns */
{
    return t == KRN_Q5_0 ? 2 : t == KRN_Q5_1 ? 4 : t == KRN_Q5_K ? 16 : t == KRN_Q3_K ? 14 : 0;
}

/* Bias of rows [row0, row0 + 16) as f32, zero beyond w->rows; false when there is none. */
bool krn_linear_bias(const struct krn_linear *l, uint32_t row0, float out[KRN_TILE_ROWS]);
/* run() for plain layouts. */
void krn_linear_plain(const struct krn_linear *l, const struct krn_operand *a, uint32_t tile0, uint32_t n_tiles);

extern const struct krn_linear_isa krn_linear_c, krn_linear_avx2, krn_linear_avx512;
#endif
