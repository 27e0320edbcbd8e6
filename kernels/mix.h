/* kernels/mix.h - block attention residuals: a softmax over kept rows of the residual stream and the present one.
 *
 *   s_i = (sum_d V_i[d] w[d]) / sqrt(mean(V_i^2) + eps),  w = norm * proj;   out = sum_i softmax(s)_i V_i      (V_i as they are)
 * To the bit: both sums over 16 virtual lanes (norm.h); r = 1 / sqrt(ss / n + eps), s = dot * r; p_i = exp(s_i - max), l = their sum
 * ascending; out = fma(p_i, V_i, out) over i ascending, from 0, then times 1 / l.
 * Strictly a row by itself. out must not be one of the V. Tolerance against the formula in double: 1e-6 of the largest |V|.
 * Source: Kimi K3 technical report, block attention residuals. */
#ifndef SLUICE_KERNELS_MIX_H
#define SLUICE_KERNELS_MIX_H
#include <stddef.h>
#include <stdint.h>
#define KRN_MIX_MAX 64u
typedef void krn_mix_fn(float *out, const float *const *v, uint32_t n_v, const float *w, size_t n, float eps);
#endif
