/* kernels/norm.h - root-mean-square and l2 normalisation of one row of n floats (a head, or a whole register row).
 *
 *   ss       = sum of x^2 over 16 virtual lanes: lane i%16 is a chain fma(x_i, x_i, lane), i ascending, folded 8+8 4+4 2+2 1+1
 *   rmsnorm  out_i = (x_i * r) * (w_i + offset),  r = 1 / sqrt(ss / n + eps);   without w: out_i = x_i * r
 *   l2norm   out_i = x_i * r,                     r = 1 / sqrt(ss + eps)
 * out may be x. NaN anywhere in a row makes the whole row NaN. Tolerance against the formula in double: 1e-6 relative.
 * Source: Zhang and Sennrich 2019, arXiv 1910.07467; offset 1 is Gemma's form. */
#ifndef SLUICE_KERNELS_NORM_H
#define SLUICE_KERNELS_NORM_H
#include <stddef.h>
typedef void krn_rmsnorm_fn(float *out, const float *x, const float *w, size_t n, float eps, float offset); /* w may be NULL */
typedef void krn_l2norm_fn(float *out, const float *x, size_t n, float eps);
#endif
