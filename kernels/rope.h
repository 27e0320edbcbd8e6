/* kernels/rope.h - rotary position embedding of one head of `dim` floats.
 *
 *   angle_j = pos * inv_freq_j in double;  c_j = (float)(cos(angle_j) * mscale),  s_j = (float)(sin(angle_j) * mscale)
 *   (a, b) -> (fma(a, c, -(b * s)), fma(b, c, a * s))   for n_freq pairs:
 *   halves   a = x_j, b = x_{j + n_freq}      adjacent   a = x_{2j}, b = x_{2j+1}
 * Dims 2 n_freq .. dim-1 pass unchanged. out may be x. The tables are made once a step for its positions (krn_rope_angles).
 * Exact in position: the product in double is right to 1e-7 rad at position 1e9; an f32 product is off by 1e-2 at 1e6.
 * Source: Su et al. 2021, arXiv 2104.09864. */
#ifndef SLUICE_KERNELS_ROPE_H
#define SLUICE_KERNELS_ROPE_H
#include "kernels/op.h"
typedef void krn_rope_fn(float *out, const float *x, const float *c, const float *s, size_t n_freq, size_t dim, enum krn_pairs pairs);

/* cos and sin [n_freq] for one token. pos[0..2]: its position rows; all but pos[0] are read only by a table with sections. */
void krn_rope_angles(const struct krn_rope_table *t, const uint32_t pos[3], float *c, float *s);
#endif
