/* kernels/quantise.h - f32 rows into stored types: for tests, made-up models and tools. Not a converter of models.
 *
 * Blocks of 32 as published files have them (scales rounded to f16; integers from the unrounded scale):
 *   Q8_0  d = amax / 127                 q = round(x / d)
 *   Q4_0  d = (x of largest |x|) / -8    q = min(15, floor(x / d + 8.5))
 *   Q4_1  d = (max - min) / 15, m = min  q = min(15, floor((x - m) / d + 0.5)) */
#ifndef SLUICE_KERNELS_QUANTISE_H
#define SLUICE_KERNELS_QUANTISE_H
#include "kernels/types.h"

/* n floats, a multiple of the type's block, into krn_row_bytes(t, n) bytes. false: not F32 F16 BF16 Q8_0 Q4_0 Q4_1.
 * x must be finite for the block types. */
bool krn_quantise_row(enum krn_type t, const float *x, size_t n, void *dst);
#endif
