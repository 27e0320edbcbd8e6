/* kernels/attend_c.c - attention's inner loops in plain C: the definition. */
#include "kernels/mathf.h"
#include "kernels/ops.h"

static float element(const void *p, size_t i, enum krn_type t)
{
    if (t == KRN_F32) return ((const float *)p)[i];
    uint16_t u = ((const uint16_t *)p)[i];
    return t == KRN_F16 ? krn_f16_to_f32(u) : krn_bf16_to_f32(u);
}

void krn_scores_c(float *s, const float *q, uint32_t nq, uint32_t dim, const void *const *kb, uint32_t nb, bool ahead, enum krn_type t, float scale)
{
    (void)ahead;
    for (uint32_t b = 0; b < nb; b++)
        for (uint32_t i = 0; i < nq; i++) {
            float *out = s + (size_t)i * KRN_ATTEND_SEGMENT + b * KRN_KV_BLOCK;
            for (uint32_t lane = 0; lane < KRN_KV_BLOCK; lane++) {
                float acc = 0;
                for (uint32_t d = 0; d < dim; d++) acc = fmaf(q[(size_t)i * dim + d], element(kb[b], (size_t)d * KRN_KV_BLOCK + lane, t), acc);
                out[lane] = acc * scale;
            }
        }
}

void krn_soften_c(float *s, uint32_t lo, uint32_t hi, float softcap, float *m, float *l)
{
    float top[16], sum[16] = {0};
    for (int i = 0; i < 16; i++) top[i] = -INFINITY;
    for (uint32_t t = lo; t < hi; t++) {
        if (softcap > 0) s[t] = softcap * mf_tanh(s[t] / softcap);
        top[t % 16] = vf_max(top[t % 16], s[t]);
    }
    *m = vf_fold16_max(top);
    for (uint32_t t = lo; t < hi; t++) {
        s[t] = mf_exp(s[t] - *m);
        sum[t % 16] += s[t];
    }
    *l = vf_fold16_sum(sum);
}

void krn_weigh_c(float *o, const float *p, uint32_t nq, const uint32_t *lo, const uint32_t *hi, const void *const *vb, bool ahead, uint32_t dim_v, enum krn_type t)
{
    (void)ahead;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t k = lo[i]; k < hi[i]; k++) {
            float w = p[(size_t)i * KRN_ATTEND_SEGMENT + k];
            for (uint32_t d = 0; d < dim_v; d++) {
                float *acc = &o[(size_t)i * dim_v + d];
                *acc = fmaf(w, element(vb[k / KRN_KV_BLOCK], (size_t)(k % KRN_KV_BLOCK) * dim_v + d, t), *acc);
            }
        }
}

void krn_untile_c(float *dst, const void *kb, uint32_t dim_v, enum krn_type t)
{
    for (uint32_t d = 0; d < dim_v; d++)
        for (uint32_t i = 0; i < KRN_KV_BLOCK; i++) dst[(size_t)i * dim_v + d] = element(kb, (size_t)d * KRN_KV_BLOCK + i, t);
}
