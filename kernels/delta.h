/* kernels/delta.h - the operators of Kimi Delta Attention: short convolution, decay, and the gated delta rule in absolute tiles.
 *
 * conv1d   out_t = silu(sum_i w_i x_(t-taps+1+i)), a channel by itself, x before the sequence is 0; x_t as it is, earlier rows as
 *          the state stores them (f32, f16, bf16). To the bit: acc = fma(w_i, x, acc) over taps ascending, from 0; acc / (1 + exp(-acc)).
 * decay    softplus: -(a * ln(1 + e^z));  bounded: lower * sigmoid(a * z);   z = x + dt, a = exp(A) of the head
 *          ln(1 + e^z) = max(z, 0) + ln(1 + t), t = exp(-|z|); ln(1 + t) = 2 s (1 + s^2/3 + .. + s^16/17), s = t / (2 + t)
 * delta    S = diag(e^g) S;  S += beta k (v - S^T k)^T;  o = S^T q      for each head: S [dk][dv], q, k, g [dk], v, o [dv]
 *
 * The delta rule in tiles of 16 absolute positions (DESIGN "Numerics" 5): with S the state at the tile's start, row i of the tile
 * needs only rows j <= i of it, so prefill and decode are one arithmetic. To the bit, chains ascending:
 *   e_i    = exp(g_i);   D = e_0 e_1 .. e_i  (products one by one)
 *   k_j(i) = k_j e_(j+1) .. e_i              (products one by one: never above k, whatever the decay)
 *   a_j = sum_d fma(k_i, k_j(i)) for j < i;  p_j = sum_d fma(q_i, k_j(i)) for j <= i
 *   u_i = beta_i (v_i - w - sum_(j<i) a_j u_j),  w = sum_d fma(k_i D, S_d), the rest fma(-a_j, u_j, .)
 *   o_i = sum_d fma(q_i D, S_d), then fma(p_j, u_j, .) for j <= i
 *   after row 15:  S_d = S_d D_d, then fma(k_j(15)_d, u_j, S_d) over j
 * Tolerance against the token-by-token recurrence in double: 2e-6 of the largest |o|.
 * Source: Kimi Linear, arXiv 2510.26692; Yang et al. 2024, arXiv 2412.06464; the bounded decay: Kimi K3 technical report. */
#ifndef SLUICE_KERNELS_DELTA_H
#define SLUICE_KERNELS_DELTA_H
#include "kernels/state.h"

#define KRN_CONV_TAPS 16u /* at most; keep = taps - 1 rows */

/* out[c] over n channels: rows[i] + c is tap i's input, w + i * w_stride + c its weight. */
typedef void krn_conv_fn(float *out, const float *const *rows, const float *w, size_t w_stride, uint32_t taps, size_t n);
typedef void krn_decay_fn(float *out, const float *x, const float *dt, size_t n, float a, bool bounded, float lower);
/* out[i][c] = out[i][c] * scale[i] (NULL: as it is), then fma(x[i][j], w[j][c], .) over j < k. Rows os, xs, ws floats apart. */
typedef void krn_mac_fn(float *out, size_t os, const float *scale, const float *x, size_t xs, uint32_t n, const float *w, size_t ws, uint32_t k, uint32_t cols);
/* Rows i0 .. i0 + n - 1 of a tile, one after the other: kd[d][j] *= e[d] for j < i, kd[d][i] = k[d]; a[j], p[j] as above for j <= i.
 * e, k, q: row i0, the next ones es, ks, qs floats on; a, p: row i0 of [16][16]. Entries beyond j = i are unspecified in kd, a, p; those
 * of kd must be numbers, and finite, before. */
typedef void krn_keys_fn(float *kd, const float *e, size_t es, const float *k, size_t ks, const float *q, size_t qs, uint32_t i0, uint32_t n, uint32_t dk, float *a, float *p);
/* Rows i0 .. i0 + n - 1 of a tile: u_i and o_i as above from y, n rows of w and then n of sum_d fma(q_i D, S_d), and from u_j of the rows
 * before. u [16][dv]; a, p [16][16]; v, out, beta: row i0, the next ones so many floats on. */
struct krn_solve { float *u, *out; const float *y, *a, *p, *v, *beta; size_t out_stride, v_stride, beta_stride; uint32_t i0, n, dv; };
typedef void krn_solve_fn(const struct krn_solve *s);

#define KRN_DELTA_DK_MAX 1024u
/* One head of one sequence. */
struct krn_ops;
struct krn_delta {
    const struct krn_ops *ops;
    uint32_t dk, dv, n, pos0;                 /* n rows at positions pos0 .. */
    const float *q, *k, *v, *g, *beta;        /* row t: + t * stride */
    size_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    float *out; size_t out_stride;
    float *s, *tile;                          /* the head's S and open tile (state.h) */
};
size_t krn_delta_scratch(uint32_t dk, uint32_t dv); /* floats */
void krn_delta_run(const struct krn_delta *d, float *scratch);

/* Channels [c0, c0 + n) of one convolution over the rows of one sequence. */
struct krn_conv {
    const struct krn_ops *ops;
    uint32_t taps, cols, n, pos0, c0, n_cols;
    const float *x; size_t x_stride;          /* row t, channel 0 */
    float *out; size_t out_stride;
    const void *w; enum krn_type w_type;      /* [cols][taps] as published */
    void *rows; enum krn_type type;           /* the state's field: [KRN_STATE_ROWS][cols] */
};
#define KRN_CONV_COLS 256u
size_t krn_conv_scratch(uint32_t taps); /* floats, for at most KRN_CONV_COLS channels */
void krn_conv_run(const struct krn_conv *c, float *scratch);
#endif
