/* kernels/act.h - elementwise operators on rows of n floats; every element is a function of its own inputs alone.
 *
 *   add a + b   mul a * b   scale a * c   sigmoid 1 / (1 + e^-a)   silu a / (1 + e^-a)   softcap c * tanh(a / c)
 * glu (g, u):
 *   silu          silu(g) * u                      relu   max(g, 0) * u
 *   gelu          (0.5 g) (1 + erf(g / sqrt 2)) * u
 *   gelu_tanh     (0.5 g) (1 + tanh(g * fma(g^2, 0.044715 k, k))) * u,  k = sqrt(2 / pi)
 *   quick_gelu    g / (1 + e^(-1.702 g)) * u
 *   clamp_swiglu  h = min(g, limit):  (clamp(u, -limit, limit) + 1) * (h / (1 + e^(-alpha h)))
 *   situ          (beta tanh(g / beta)) sigmoid(g) * (beta_u tanh(u / beta_u));  beta_u 0: u
 * exp, tanh, erf are mathf.h's. out may be an input. NaN in, NaN out. Tolerance against the formula in double: 2e-6 of the
 * largest factor (gelu's left tail cancels, as it does in the references).
 * Source: Hendrycks and Gimpel 2016 (GELU), Shazeer 2020 (GLU), the gpt-oss and Kimi K3 model cards (clamped, SiTU). */
#ifndef SLUICE_KERNELS_ACT_H
#define SLUICE_KERNELS_ACT_H
#include "kernels/op.h"
struct krn_glu { enum krn_act act; float alpha, limit, beta, beta_u; };
typedef void krn_binary_fn(float *out, const float *a, const float *b, size_t n);
typedef void krn_unary_fn(float *out, const float *a, size_t n);
typedef void krn_scalar_fn(float *out, const float *a, size_t n, float c);
typedef void krn_glu_fn(float *out, const float *g, const float *u, size_t n, const struct krn_glu *p);
#endif
