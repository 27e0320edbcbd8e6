/* kernels/slot.h - the one layout in which kernels read a weight matrix, whatever tier it came from.
 *
 * A matrix [rows][cols] is cut into tiles of 16 rows (the last one padded with zero rows). Inside a tile, for each block
 * of 32 columns in turn (256-element K types: later), the tile keeps the bits of all 16 rows side by side, so that lane i
 * of a vector is row i and no reduction ever crosses lanes:
 *   F32 F16 BF16   [tile][col][16 rows]                                             element width 4 or 2 bytes
 *   Q8_0           [tile][block]{ d f16[16]; 8 groups of 4 cols: q s8[16 rows][4] }        = 16 * 34 bytes
 *   Q4_0           [tile][block]{ d f16[16]; 4 x u8[16 rows][4] }                          = 16 * 18 bytes
 *   Q4_1           [tile][block]{ d f16[16]; m f16[16]; 4 x u8[16 rows][4] }               = 16 * 20 bytes
 * 4-bit: byte j of group g of a row holds column 4g + j in the low nibble and column 16 + 4g + j in the high nibble,
 * which is the published pairing: only bytes move, no bit of a byte changes. Vectors (rows == 1 or 1-D) are not tiled:
 * they stay as published (`plain`).
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
