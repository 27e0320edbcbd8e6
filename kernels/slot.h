/* kernels/slot.h - the one layout in which kernels read a weight matrix, whatever tier it came from.
 *
 * A matrix [rows][cols] is cut into tiles of 16 rows (the last one padded with zero rows). Inside a tile, block by block
 * of columns, the bits of all 16 rows lie side by side, so that lane i of a vector is row i and no reduction ever crosses
 * lanes. F32 F16 BF16: [tile][col][16 rows]. Block types: [tile][block]{ fields }, a field being n pieces of 1, 2 (f16) or
 * 4 bytes (w), each as [16 rows][piece]:
 *   Q8_0     d f16; 8 w quants, a signed byte a column                                                      = 16 * 34 bytes
 *   Q4_0     d f16; 4 w nibbles                                                                             = 16 * 18
 *   Q4_1     d f16; m f16; 4 w nibbles                                                                      = 16 * 20
 *   Q5_0     d f16; 1 w fifth bits; 4 w nibbles                                                             = 16 * 22
 *   Q5_1     d f16; m f16; 1 w fifth bits; 4 w nibbles                                                      = 16 * 24
 *   IQ4_NL   d f16; 4 w nibbles                                                                             = 16 * 18
 *   MXFP4    e u8; 4 w nibbles                                                                              = 16 * 17
 *   INT4     d bf16; 4 w nibbles                                                                            = 16 * 18
 * and of 256 columns, 8 sub-blocks of 32:
 *   Q2_K     d f16; dmin f16; 4 w scales; 16 w two-bit quants                                               = 16 * 84
 *   Q3_K     d f16; 3 w scales; 8 w third bits; 16 w two-bit quants                                         = 16 * 110
 *   Q4_K     d f16; dmin f16; 3 w scales; 32 w nibbles                                                      = 16 * 144
 *   Q5_K     d f16; dmin f16; 3 w scales; 8 w fifth bits; 32 w nibbles                                      = 16 * 176
 *   Q6_K     d f16; 4 w scales; twice, for 128 columns each: 16 w nibbles, 8 w upper two bits               = 16 * 210
 *   IQ4_XS   d f16; upper scale bits u16; 1 w lower scale bits; 32 w nibbles                                = 16 * 136
 * F8_SCALED: [tile]{ scales f32, one for each 128 columns, as [scale][16 rows]; quants, a byte a column, as [col][16 rows] }.
 * Fields move, the bytes inside a field stay in published order: in the types of 32 columns and in IQ4_XS byte j of word g
 * holds column 4g + j of the (sub-)block in its low and column 16 + 4g + j in its high bits; in the K types, whose bytes
 * hold 2, 4 or 8 sub-blocks, column 4g + j of each of them. Bits move in one place only: of the 32 fifth bits of Q5_0 and
 * Q5_1, the one of column 4g + j goes from bit 4g + j of its word to bit g of byte j, beside its nibble's byte.
 * Vectors (rows == 1 or 1-D) are not tiled: they stay as published (`plain`).
 * Size is that of the published rows, rounded up to whole tiles. */
#ifndef SLUICE_KERNELS_SLOT_H
#define SLUICE_KERNELS_SLOT_H
#include "kernels/types.h"

#define KRN_TILE_ROWS 16
#define KRN_SLOT_ALIGN 256 /* every tensor of a slot begins at a multiple of this */

enum krn_layout { KRN_PLAIN, KRN_TILED };

/* A weight as a kernel gets it. data is borrowed and valid while the record that holds it is leased. */
struct krn_weight {
    enum krn_type type;
    enum krn_layout layout;
    uint32_t rows, cols;
    const void *data;
};

bool krn_slot_can(enum krn_type t);                                       /* is there a tiled layout for it */
size_t krn_slot_bytes(enum krn_type t, enum krn_layout l, uint64_t rows, uint64_t cols); /* 0: impossible (type, block, overflow) */
/* Converts tiles [tile0, tile0 + n) : src is the published row tile0*16, row_stride bytes apart; dst the matrix's slot start.
 * Rows beyond `rows` are zero filled. May run on any thread. */
void krn_slot_pack(enum krn_type t, uint64_t rows, uint64_t cols, uint64_t tile0, uint64_t n_tiles,
                   const void *src, size_t row_stride, void *dst);
/* Expands one row of a weight (tiled or plain) to f32 [cols]: embedding look-up, norm weights, biases, diagnosis. */
bool krn_weight_row(const struct krn_weight *w, uint32_t row, float *dst);
#endif
