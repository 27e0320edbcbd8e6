/* kernels/delta.c - walks a sequence's rows tile by tile; the inner loops are in delta_c.c and delta_simd.inc. */
#include <string.h>
#include "kernels/delta.h"
#include "kernels/ops.h"

#define T KRN_TILE

/* ---- the delta rule -------------------------------------------------------------------------------------------------- */
/* A tile's parts in scratch: kd [dk][16]; D, e [dk]; a, p [16][16]; x [2 n][dk]: rows k D, then q D; y [2 n][dv]: w, then o. */
struct tile { float *kd, *decay, *e, *a, *p, *x, *y, *kt, *et, *u; };

size_t krn_delta_scratch(uint32_t dk, uint32_t dv) { return (size_t)dk * (T + 2) + 2 * T * T + 2 * (size_t)T * ((size_t)dk + dv) + 64; }

static struct tile carve(const struct krn_delta *d, float *p)
{
    struct tile t = {.kd = p};
    size_t dk = d->dk;
    t.decay = t.kd + dk * T;
    t.e = t.decay + dk;
    t.a = t.e + dk;
    t.p = t.a + T * T;
    t.x = t.p + T * T;
    t.y = t.x + 2 * T * dk;
    t.kt = d->tile;
    t.et = t.kt + dk * T;
    t.u = t.et + dk * T;
    return t;
}

/* S has decayed by e once more. */
static void decayed(const struct krn_delta *d, const struct tile *t, uint32_t i)
{
    if (i) d->ops->mul(t->decay, t->decay, t->e, d->dk);
    else memcpy(t->decay, t->e, d->dk * sizeof *t->e);
}

/* Rows of the open tile from earlier steps: keys decayed up to row i0 - 1, and how much S has decayed. */
static void reopen(const struct krn_delta *d, const struct tile *t, uint32_t i0)
{
    float a[T], p[T], k[KRN_DELTA_DK_MAX];
    for (uint32_t i = 0; i < i0; i++) {
        for (size_t c = 0; c < d->dk; c++) {
            k[c] = t->kt[c * T + i];
            t->e[c] = t->et[c * T + i];
        }
        d->ops->keys(t->kd, t->e, k, k, i, d->dk, a, p);
        decayed(d, t, i);
    }
}

/* Row i, token t of the step, the m-th of n: products with the keys so far, its rows for the product with S. Only a tile that stays
 * open is written to the state. */
static void take(const struct krn_delta *d, const struct tile *w, uint32_t i, uint32_t t, uint32_t m, uint32_t n, bool open)
{
    const float *k = d->k + t * d->k_stride, *q = d->q + t * d->q_stride;
    d->ops->exp(w->e, d->g + t * d->g_stride, d->dk);
    for (size_t c = 0; c < d->dk && open; c++) {
        w->kt[c * T + i] = k[c];
        w->et[c * T + i] = w->e[c];
    }
    decayed(d, w, i);
    d->ops->keys(w->kd, w->e, k, q, i, d->dk, w->a + i * T, w->p + i * T);
    d->ops->mul(w->x + (size_t)m * d->dk, k, w->decay, d->dk);
    d->ops->mul(w->x + (size_t)(n + m) * d->dk, q, w->decay, d->dk);
}

/* A head's rows lie a row of all heads apart, which no prefetcher foresees: row t's, a tile ahead of its use. */
static void foresee(const struct krn_delta *d, uint32_t t)
{
    if (t >= d->n) return;
    for (size_t c = 0; c < d->dk; c += 16) {
        __builtin_prefetch(d->q + t * d->q_stride + c);
        __builtin_prefetch(d->k + t * d->k_stride + c);
        __builtin_prefetch(d->g + t * d->g_stride + c);
    }
    for (size_t c = 0; c < d->dv; c += 16) {
        __builtin_prefetch(d->v + t * d->v_stride + c);
        __builtin_prefetch(d->out + t * d->out_stride + c, 1);
    }
}

/* Rows [i0, i1) of a tile, the step's tokens from t0 on. */
static void rows(const struct krn_delta *d, const struct tile *w, uint32_t i0, uint32_t i1, uint32_t t0)
{
    uint32_t n = i1 - i0;
    size_t dv = d->dv;
    for (uint32_t m = 0; m < n; m++) take(d, w, i0 + m, t0 + m, m, n, i1 < T);
    memset(w->y, 0, 2 * n * dv * sizeof *w->y);
    d->ops->mac(w->y, dv, NULL, w->x, d->dk, 2 * n, d->s, dv, d->dk, d->dv);
    for (uint32_t m = 0; m < n; m++) {
        uint32_t i = i0 + m;
        const float *v = d->v + (t0 + m) * d->v_stride, *y = w->y + m * dv;
        float *u = w->u + i * dv, *o = w->y + (n + m) * dv, *a = w->a + i * T;
        for (size_t c = 0; c < dv; c++) u[c] = v[c] - y[c];
        for (uint32_t j = 0; j < i; j++) a[j] = -a[j];
        d->ops->mac(u, dv, NULL, a, T, 1, w->u, dv, i, d->dv);
        d->ops->scale(u, u, dv, d->beta[(t0 + m) * d->beta_stride]);
        d->ops->mac(o, dv, NULL, w->p + i * T, T, 1, w->u, dv, i + 1, d->dv);
        memcpy(d->out + (t0 + m) * d->out_stride, o, dv * sizeof *o);
        foresee(d, t0 + m + T);
    }
}

void krn_delta_run(const struct krn_delta *d, float *scratch)
{
    struct tile w = carve(d, scratch);
    if (d->pos0 == 0) memset(d->s, 0, (size_t)d->dk * d->dv * sizeof *d->s);
    for (uint32_t t = 0; t < d->n;) {
        uint32_t i0 = (d->pos0 + t) % T, i1 = d->n - t < T - i0 ? i0 + d->n - t : T;
        memset(w.kd, 0, (size_t)d->dk * T * sizeof *w.kd);
        if (i0) reopen(d, &w, i0);
        rows(d, &w, i0, i1, t);
        if (i1 == T) d->ops->mac(d->s, d->dv, w.decay, w.kd, T, d->dk, w.u, d->dv, T, d->dv);
        t += i1 - i0;
    }
}

/* ---- the short convolution ------------------------------------------------------------------------------------------- */
size_t krn_conv_scratch(uint32_t taps) { return (size_t)(2 * taps) * KRN_CONV_COLS; }

static void widen(float *dst, const void *src, size_t i, size_t n, enum krn_type t) { krn_expand(t, (const uint8_t *)src + i * (t == KRN_F32 ? 4 : 2), n, dst); }

/* Weights of the channels at hand, turned around: [taps][KRN_CONV_COLS]. */
static void turn_weights(const struct krn_conv *c, float *w, float *tmp)
{
    widen(tmp, c->w, (size_t)c->c0 * c->taps, (size_t)c->n_cols * c->taps, c->w_type);
    for (uint32_t i = 0; i < c->n_cols; i++)
        for (uint32_t k = 0; k < c->taps; k++) w[(size_t)k * KRN_CONV_COLS + i] = tmp[(size_t)i * c->taps + k];
}

/* The window holds the taps - 1 rows before the present one as the state stores them, oldest first, in a ring by position. */
void krn_conv_run(const struct krn_conv *c, float *scratch)
{
    uint32_t keep = c->taps - 1, first = c->n > KRN_STATE_ROWS ? c->n - KRN_STATE_ROWS : 0;
    size_t e = c->type == KRN_F32 ? 4 : 2;
    float *w = scratch, *window = w + (size_t)c->taps * KRN_CONV_COLS;
    turn_weights(c, w, window);
    for (uint32_t k = 1; k <= keep; k++) { /* position pos0 - k */
        float *row = window + (size_t)((c->pos0 + c->taps - k) % c->taps) * KRN_CONV_COLS;
        if (k > c->pos0) memset(row, 0, c->n_cols * sizeof *row);
        else widen(row, c->rows, (size_t)((c->pos0 - k) % KRN_STATE_ROWS) * c->cols + c->c0, c->n_cols, c->type);
    }
    for (uint32_t t = 0; t < c->n; t++) {
        const float *x = c->x + t * c->x_stride + c->c0, *tap[KRN_CONV_TAPS];
        uint32_t pos = c->pos0 + t;
        for (uint32_t i = 0; i < keep; i++) tap[i] = window + (size_t)((pos + 1 + i) % c->taps) * KRN_CONV_COLS;
        tap[keep] = x;
        float *own = window + (size_t)(pos % c->taps) * KRN_CONV_COLS; /* where the oldest row but `keep` lay: free now */
        uint8_t *stored = (uint8_t *)c->rows + ((size_t)(pos % KRN_STATE_ROWS) * c->cols + c->c0) * e;
        if (c->type == KRN_F32) memcpy(own, x, c->n_cols * sizeof *own);
        else {
            uint16_t half[KRN_CONV_COLS];
            c->ops->narrow(half, x, c->n_cols, c->type);
            widen(own, half, 0, c->n_cols, c->type);
            if (t >= first) memcpy(stored, half, c->n_cols * e);
        }
        if (c->type == KRN_F32 && t >= first) memcpy(stored, x, c->n_cols * e);
        c->ops->conv(c->out + t * c->out_stride + c->c0, tap, w, KRN_CONV_COLS, c->taps, c->n_cols);
    }
}
