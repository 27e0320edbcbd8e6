/* kernels/latent.h - multi-head latent attention in its absorbed form, decode and prefill alike (DESIGN "Numerics" 4).
 *
 *   q~_h = k_up_h^T qn_h   [rank]                      the query meets the latent itself, keys are never expanded
 *   s_t  = scale * (q~_h . c_t + qr_h . kr_t)          one key [c | kr] a token for all heads, causal
 *   ctx_h = sum_t softmax(s)_t c_t   [rank];   out_h = v_up_h ctx_h   [vd]
 * k_up [heads, nope, rank] and v_up [heads, vd, rank] are the rows of kv_b. scale is the sheet's: (nope + rope)^-0.5, times
 * yarn's mscale squared where the family has it. qr and kr come rotated, or not at all (NoPE).
 *
 * To the bit:  q~    a chain fma(qn_d, w_dj, q~_j) over d ascending, from 0; where the file has k_up turned around (rows are
 *                    (h, j)), the f32 sum of linear.h over its columns
 *              s..ctx  attend.h over keys of rank + rope channels in pages as stored; no softcap, no window, no sinks
 *              out   the f32 sum of linear.h over the columns of v_up
 * Weights are expanded to f32 inside, whatever they are stored as; --precision does not change it.
 * Tolerance against the expanded form in double: 1e-5 of the largest |out|. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. */
#ifndef SLUICE_KERNELS_LATENT_H
#define SLUICE_KERNELS_LATENT_H
#include "kernels/linear.h"
#include "kernels/ops.h"

#define KRN_LATENT_NOPE_MAX KRN_ATTEND_SEGMENT /* channels of a head's part without position */

/* n rows of one head: q~ [n][rank], rows q_stride apart, from qn [n][nope], rows x_stride apart. turned: k_up's rows are (h, j).
 * scratch: krn_latent_scratch floats. */
struct krn_absorb {
    const struct krn_ops *ops; const struct krn_linear_isa *linear;
    const struct krn_weight *k_up; bool turned;
    uint32_t nope, rank, n;
    const float *qn; size_t x_stride;
    float *q; size_t q_stride;
};
size_t krn_latent_scratch(uint32_t nope, uint32_t rank);
void krn_latent_absorb(const struct krn_absorb *a, uint32_t head, float *scratch);

/* y[t][i] = sum over columns of rows [row0, row0 + rows) of w times x[t], the f32 sum of linear.h. scratch: w->cols floats. */
void krn_latent_rows(const struct krn_linear_isa *linear, const struct krn_weight *w, uint32_t row0, uint32_t rows, const float *x, size_t x_stride,
                     uint32_t n, float *y, size_t y_stride, float *scratch);
/* Heads that walk the keys together: the largest divisor of `heads` up to 16. */
uint32_t krn_latent_group(uint32_t heads);
#endif
