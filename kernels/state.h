/* kernels/state.h - what a recurrent layer keeps of a sequence, and where: the contract between kernels and the engine's states.
 *
 * A slot holds one sequence's state, layer by layer; a layer its fields one after the other, each at a multiple of 64 bytes:
 *   matrix [heads, dk, dv]   f32: S of each head at the start of the open 16-token tile, in panels of KRN_STATE_PANEL of its dv
 *                            columns, [dk][columns] each, the last one narrower; then the tile's rows, a head
 *                            { k [dk][16], e^g [dk][16], u [16][dv] } (delta.h)
 *   rows   [taps - 1, cols]  the convolution's inputs at the last positions, row pos % KRN_STATE_ROWS (delta.h)
 * Position 0 starts from nothing: kernels do not read a slot before the sequence wrote it, so slots need no clearing.
 * Rows are found by position, so that tokens after a position inside the open tile are forgotten by going on from there, as long
 * as the tile was not ended in between. At the end of a tile S and the last taps - 1 rows are all there is to keep. */
#ifndef SLUICE_KERNELS_STATE_H
#define SLUICE_KERNELS_STATE_H
#include "kernels/types.h"

#define KRN_TILE 16u        /* tokens of a tile, at absolute positions */
#define KRN_STATE_PANEL 32u /* columns: 128 rows of so many fill half of a first-level cache */
#define KRN_STATE_ROWS 16u  /* rows a convolution keeps: taps - 1 <= this */
#define KRN_STATE_FIELDS 8

struct krn_state_field {
    uint32_t n_dims;            /* 3: matrix, 2: rows */
    uint32_t heads, dk, dv;     /* matrix */
    uint32_t keep, cols;        /* rows: taps - 1 */
    enum krn_type type;         /* rows: F32, F16 or BF16 */
    size_t offset, tile_offset; /* bytes from the layer's start; of the open tile's rows */
    size_t kept_offset;         /* in a snapshot, from the layer's start there */
};
struct krn_state_layout {
    uint32_t n_layers, n_fields;
    struct krn_state_field field[KRN_STATE_FIELDS];
    size_t layer_bytes, slot_bytes, kept_layer_bytes;
};
/* Fills offsets and sizes from the rest; false on overflow or an impossible value. */
bool krn_state_layout_init(struct krn_state_layout *l);
/* A snapshot: what is to be kept at the end of a tile, group by group, a group layer by layer, nothing between. Of a matrix S, of rows
 * those of the last taps - 1 positions, oldest first, zeros before position 0. Bytes of one group's part: */
size_t krn_state_kept_bytes(const struct krn_state_layout *l);

/* One recurrent group this step. */
struct krn_states { uint8_t *base; struct krn_state_layout layout; };
/* A snapshot to take in the step: of its sequence `seq`, when that one has seen pos tokens, a multiple of KRN_TILE within the step. */
struct krn_snapshot { uint32_t seq, pos; uint8_t *to; };
#endif
