/* kernels/route.h - which experts a token goes to, and with what weight.
 *
 * From a row's router scores x [n]:
 *   softmax        s = e^(x - max x) / sum of them, summed in order of number     c = s + bias
 *   sigmoid        s = 1 / (1 + e^-x)                                             c = s + bias
 *   topk_softmax                                                                  c = x + bias
 * c selects (a bias never reaches a weight). With groups > 1 the experts fall into equal runs; a run scores by the sum of its two
 * best c (of one: that one), the `keep` best runs stay. Of what stays the k best are chosen; ties go to the lower number, for
 * runs as for experts. The chosen are listed by ascending number, which is also the order in which their outputs are added.
 *   weight  softmax, sigmoid: w = s; norm: w = s / (sum of the chosen s + norm_eps)      topk_softmax: w = softmax over the chosen x
 *   and then w = w * scale, always.
 * A NaN or infinity among the c: experts 0 .. k-1, every weight NaN, so that the row's result is NaN and nobody else's.
 * Source: Shazeer et al. 2017; DeepSeek-V3, section 2.1.2 (bias, groups); gpt-oss model card (softmax over the chosen).
 * Tolerance against the formula in double: 2e-6 of a weight; the choice is exact where its margin is larger. */
#ifndef SLUICE_KERNELS_ROUTE_H
#define SLUICE_KERNELS_ROUTE_H
#include "kernels/ops.h"

#define KRN_ROUTE_K_MAX 64
struct krn_router_spec {
    enum krn_router kind;
    uint32_t n, k, groups, keep; /* k <= KRN_ROUTE_K_MAX; groups divides n; keep <= groups; k <= keep * n / groups */
    bool norm;
    float norm_eps, scale;
};
#define KRN_ROUTE_SCRATCH(n) (3 * (size_t)(n)) /* floats */
/* bias: [n] or NULL. ids, weights: [k]; numbers are exact in f32. The same bits whatever f is. */
void krn_route(const struct krn_ops *f, const struct krn_router_spec *p, const float *x, const float *bias, float *scratch, float *ids, float *weights);
#endif
