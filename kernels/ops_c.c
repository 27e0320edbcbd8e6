/* kernels/ops_c.c - row operators in plain C: the definition the others are held against. */
#include "kernels/mathf.h"
#include "kernels/ops.h"

static float sum_squares(const float *x, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    return vf_fold16_sum(lane);
}

static void rmsnorm_c(float *out, const float *x, const float *w, size_t n, float eps, float offset)
{
    float r = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++) out[i] = w ? (x[i] * r) * (w[i] + offset) : x[i] * r;
}
static void l2norm_c(float *out, const float *x, size_t n, float eps)
{
    float r = 1.0f / sqrtf(sum_squares(x, n) + eps);
    for (size_t i = 0; i < n; i++) out[i] = x[i] * r;
}

static void add_c(float *out, const float *a, const float *b, size_t n) { for (size_t i = 0; i < n; i++) out[i] = a[i] + b[i]; }
static void mul_c(float *out, const float *a, const float *b, size_t n) { for (size_t i = 0; i < n; i++) out[i] = a[i] * b[i]; }
static void scale_c(float *out, const float *a, size_t n, float c) { for (size_t i = 0; i < n; i++) out[i] = a[i] * c; }
static void softcap_c(float *out, const float *a, size_t n, float c) { for (size_t i = 0; i < n; i++) out[i] = c * mf_tanh(a[i] / c); }
static void sigmoid_c(float *out, const float *a, size_t n) { for (size_t i = 0; i < n; i++) out[i] = mf_sigmoid(a[i]); }
static void silu_c(float *out, const float *a, size_t n) { for (size_t i = 0; i < n; i++) out[i] = a[i] / (1.0f + mf_exp(-a[i])); }
static void exp_c(float *out, const float *a, size_t n) { for (size_t i = 0; i < n; i++) out[i] = mf_exp(a[i]); }
static void tanh_c(float *out, const float *a, size_t n) { for (size_t i = 0; i < n; i++) out[i] = mf_tanh(a[i]); }
static void erf_c(float *out, const float *a, size_t n) { for (size_t i = 0; i < n; i++) out[i] = mf_erf(a[i]); }

static float glu1(float g, float u, const struct krn_glu *p)
{
    switch (p->act) {
    case KRN_ACT_SILU:
        return g / (1.0f + mf_exp(-g)) * u;
    case KRN_ACT_GELU:
        return (0.5f * g) * (1.0f + mf_erf(g * 0.70710678f)) * u;
    case KRN_ACT_GELU_TANH:
        return (0.5f * g) * (1.0f + mf_tanh(g * fmaf(g * g, 0.035677408f, 0.79788456f))) * u;
    case KRN_ACT_QUICK_GELU:
        return g / (1.0f + mf_exp(-(1.702f * g))) * u;
    case KRN_ACT_RELU:
        return vf_max(0.0f, g) * u;
    case KRN_ACT_CLAMP_SWIGLU: {
        float h = vf_min(p->limit, g), v = vf_max(-p->limit, vf_min(p->limit, u));
        return (v + 1.0f) * (h / (1.0f + mf_exp(-(p->alpha * h))));
    }
    case KRN_ACT_SITU: {
        float v = p->beta_u != 0 ? p->beta_u * mf_tanh(u / p->beta_u) : u;
        return (p->beta * mf_tanh(g / p->beta)) * mf_sigmoid(g) * v;
    }
    }
    return NAN;
}
static void glu_c(float *out, const float *g, const float *u, size_t n, const struct krn_glu *p)
{
    for (size_t i = 0; i < n; i++) out[i] = glu1(g[i], u[i], p);
}

static void rope_c(float *out, const float *x, const float *c, const float *s, size_t n_freq, size_t dim, enum krn_pairs pairs)
{
    size_t step = pairs == KRN_PAIRS_ADJACENT ? 2 : 1, apart = pairs == KRN_PAIRS_ADJACENT ? 1 : n_freq;
    for (size_t j = 0; j < n_freq; j++) {
        float a = x[j * step], b = x[j * step + apart];
        out[j * step] = fmaf(a, c[j], -(b * s[j]));
        out[j * step + apart] = fmaf(b, c[j], a * s[j]);
    }
    for (size_t i = 2 * n_freq; i < dim; i++) out[i] = x[i];
}

static void merge_c(float *acc, const float *o, size_t n, float a, float b)
{
    for (size_t i = 0; i < n; i++) acc[i] = fmaf(acc[i], a, o[i] * b);
}
static void narrow_c(void *dst, const float *src, size_t n, enum krn_type t)
{
    for (size_t i = 0; i < n; i++) {
        if (t == KRN_F32) ((float *)dst)[i] = src[i];
        else ((uint16_t *)dst)[i] = t == KRN_F16 ? krn_f32_to_f16(src[i]) : krn_f32_to_bf16(src[i]);
    }
}

const struct krn_ops krn_ops_c = {
    .name = "c", .rmsnorm = rmsnorm_c, .l2norm = l2norm_c, .add = add_c, .mul = mul_c, .scale = scale_c, .softcap = softcap_c,
    .sigmoid = sigmoid_c, .silu = silu_c, .exp = exp_c, .tanh = tanh_c, .erf = erf_c, .glu = glu_c, .rope = rope_c,
    .scores = krn_scores_c, .soften = krn_soften_c, .weigh = krn_weigh_c, .untile = krn_untile_c, .merge = merge_c, .narrow = narrow_c,
    .conv = krn_conv_c, .decay = krn_decay_c, .mac = krn_mac_c, .keys = krn_keys_c, .solve = krn_solve_c, .mix = krn_mix_c,
};
