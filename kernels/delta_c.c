/* kernels/delta_c.c - inner loops of recurrent layers and attention residuals in plain C: the definition. */
#include "kernels/mathf.h"
#include "kernels/ops.h"

void krn_conv_c(float *out, const float *const *rows, const float *w, size_t w_stride, uint32_t taps, size_t n)
{
    for (size_t c = 0; c < n; c++) {
        float acc = 0;
        for (uint32_t i = 0; i < taps; i++) acc = fmaf(w[i * w_stride + c], rows[i][c], acc);
        out[c] = acc / (1.0f + mf_exp(-acc));
    }
}

void krn_decay_c(float *out, const float *x, const float *dt, size_t n, float a, bool bounded, float lower)
{
    for (size_t c = 0; c < n; c++) {
        float z = x[c] + dt[c];
        out[c] = bounded ? lower * mf_sigmoid(a * z) : -(a * mf_softplus(z));
    }
}

void krn_mac_c(float *out, size_t os, const float *scale, const float *x, size_t xs, uint32_t n, const float *w, size_t ws, uint32_t k, uint32_t cols)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < cols; c++) {
            float acc = scale ? out[i * os + c] * scale[i] : out[i * os + c];
            for (size_t j = 0; j < k; j++) acc = fmaf(x[i * xs + j], w[j * ws + c], acc);
            out[i * os + c] = acc;
        }
}

void krn_keys_c(float *kd, const float *e, size_t es, const float *k, size_t ks, const float *q, size_t qs, uint32_t i0, uint32_t n, uint32_t dk, float *a, float *p)
{
    for (uint32_t i = i0; i < i0 + n; i++, e += es, k += ks, q += qs, a += KRN_TILE, p += KRN_TILE) {
        for (uint32_t j = 0; j <= i; j++) a[j] = p[j] = 0;
        for (uint32_t d = 0; d < dk; d++) {
            float *row = kd + (size_t)d * KRN_TILE;
            for (uint32_t j = 0; j < i; j++) row[j] *= e[d];
            row[i] = k[d];
            for (uint32_t j = 0; j <= i; j++) {
                a[j] = fmaf(k[d], row[j], a[j]);
                p[j] = fmaf(q[d], row[j], p[j]);
            }
        }
    }
}

void krn_solve_c(const struct krn_solve *s)
{
    size_t dv = s->dv;
    for (uint32_t r = 0; r < s->n; r++) {
        const float *a = s->a + (s->i0 + r) * KRN_TILE, *p = s->p + (s->i0 + r) * KRN_TILE;
        for (size_t c = 0; c < dv; c++) {
            float u = s->v[r * s->v_stride + c] - s->y[r * dv + c], o = s->y[(s->n + r) * dv + c];
            for (uint32_t j = 0; j < s->i0 + r; j++) u = fmaf(-a[j], s->u[j * dv + c], u);
            s->u[(s->i0 + r) * dv + c] = u * s->beta[r * s->beta_stride];
            for (uint32_t j = 0; j <= s->i0 + r; j++) o = fmaf(p[j], s->u[j * dv + c], o);
            s->out[r * s->out_stride + c] = o;
        }
    }
}

static float dot16(const float *x, const float *w, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i++) lane[i % 16] = fmaf(x[i], w[i], lane[i % 16]);
    return vf_fold16_sum(lane);
}

void krn_mix_c(float *out, const float *const *v, uint32_t n_v, const float *w, size_t n, float eps)
{
    float s[KRN_MIX_MAX], top = -INFINITY, l = 0;
    for (uint32_t i = 0; i < n_v; i++) {
        s[i] = dot16(v[i], w, n) * (1.0f / sqrtf(dot16(v[i], v[i], n) / (float)n + eps));
        top = vf_max(top, s[i]);
    }
    for (uint32_t i = 0; i < n_v; i++) l += s[i] = mf_exp(s[i] - top);
    float r = 1.0f / l;
    for (size_t c = 0; c < n; c++) {
        float acc = 0;
        for (uint32_t i = 0; i < n_v; i++) acc = fmaf(s[i], v[i][c], acc);
        out[c] = acc * r;
    }
}
