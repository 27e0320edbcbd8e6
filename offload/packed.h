/* offload/packed.h - weights whose values and scales are tensors of their own: put together, row by row, as a kernel reads them.
 *
 *   MXFP4   a byte is columns 2j (low) and 2j + 1, an E8M0 a group of 32            -> rows of MXFP4
 *   INT4    the same nibbles, meaning nibble - 8, a bf16 (f16) a group of 32k       -> rows of INT4 (Q4_0)
 *   FP8     E4M3, a scale a block of rows and 128k columns, a row, or the tensor    -> rows of F8_SCALED
 * Bits of values and scales stay as published (a scale that is f32 stays so, bf16 and f16 are widened, one that a group of more
 * than 32 columns shares is repeated). Rows of the part are the data tensor's rows, whole; a row finds its scales by its number there.
 *
 * Owns:      nothing.
 * Leaves:    which tensors belong together and of what shape to the engine, layouts to kernels/slot.h.
 * Sources:   OCP Microscaling specification; compressed-tensors pack-quantized; DeepSeek-V3 technical report (block scales). */
#ifndef SLUICE_OFFLOAD_PACKED_H
#define SLUICE_OFFLOAD_PACKED_H
#include "offload/catalog.h"

enum off_packing { OFF_PACKED_MXFP4, OFF_PACKED_INT4, OFF_PACKED_FP8 };
struct off_packed {
    enum off_packing kind;
    const struct off_tensor *data, *scales;
    uint64_t row_bytes;           /* of a row of the data tensor */
    uint64_t matrix_rows;         /* rows of one matrix of a stack; of the tensor where it is one matrix */
    uint64_t rows, cols;          /* of a matrix that share a scale */
    uint64_t n;                   /* scales in a row of the scale tensor */
};
/* Bytes of one row of scales, and which one belongs to the data row that begins at this offset of the file. */
uint64_t off_packed_scale_bytes(const struct off_packed *p);
uint64_t off_packed_scale_row(const struct off_packed *p, uint64_t offset);
/* One row: src as published, scales its row of scales; dst a row of the type above, cols columns. ERR_FORMAT: a scale or value that is
 * not a finite number; *col says where. */
int off_packed_row(const struct off_packed *p, uint64_t cols, const uint8_t *src, const uint8_t *scales, uint8_t *dst, uint64_t *col);
#endif
