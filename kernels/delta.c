/* kernels/delta.c - walks a sequence's rows tile by tile; the inner loops are in delta_c.c and delta_simd.inc. */
#include <string.h>
#include "kernels/delta.h"
#include "kernels/ops.h"

#define T KRN_TILE
enum { AHEAD = 6 };

/* ---- the delta rule -------------------------------------------------------------------------------------------------- */
/* A tile's parts in scratch: kd [dk][16] and D [dk], those of this tile and of the one before it, which S may not have met yet; e [16][dk];
 * a, p [16][16]; x [2 n][dk]: rows k D, then q D; y [2 n][dv]: w, then o. */
struct tile { float *kd[2], *decay[2], *e, *a, *p, *x, *y, *kt, *et, *u; unsigned now; bool owed; };

size_t krn_delta_scratch(uint32_t dk, uint32_t dv) { return (size_t)dk * (5 * T + 2) + 2 * T * T + 2 * (size_t)T * dv + 64; }

static struct tile carve(const struct krn_delta *d, float *p)
{
    size_t dk = d->dk;
    struct tile t = {.kd = {p, p + dk * T}};
    t.decay[0] = t.kd[1] + dk * T;
    t.decay[1] = t.decay[0] + dk;
    t.e = t.decay[1] + dk;
    t.a = t.e + T * dk;
    t.p = t.a + T * T;
    t.x = t.p + T * T;
    t.y = t.x + 2 * T * dk;
    t.kt = d->tile;
    t.et = t.kt + dk * T;
    t.u = t.et + dk * T;
    return t;
}

/* S has decayed by row i's e once more. */
static float *decayed(const struct krn_delta *d, const struct tile *t, uint32_t i)
{
    float *decay = t->decay[t->now];
    if (i) d->ops->mul(decay, decay, t->e + i * d->dk, d->dk);
    else memcpy(decay, t->e, d->dk * sizeof *t->e);
    return decay;
}

/* Rows of the open tile from earlier steps: keys decayed up to row i0 - 1, and how much S has decayed. */
static void reopen(const struct krn_delta *d, const struct tile *t, uint32_t i0)
{
    size_t dk = d->dk;
    float *k = t->x;
    for (uint32_t i = 0; i < i0; i++) {
        for (size_t c = 0; c < dk; c++) {
            k[i * dk + c] = t->kt[c * T + i];
            t->e[i * dk + c] = t->et[c * T + i];
        }
        decayed(d, t, i);
    }
    d->ops->keys(t->kd[t->now], t->e, dk, k, dk, k, dk, 0, i0, d->dk, t->a, t->p);
}

/* A head's rows lie a row of all heads apart, which no prefetcher foresees, and mostly a power of two, so that caches keep few of them:
 * those of row t are fetched shortly before their use, the values' while S is met. */
static void foresee_keys(const struct krn_delta *d, uint32_t t)
{
    for (size_t c = 0; c < d->dk && t < d->n; c += 16) {
        __builtin_prefetch(d->g + t * d->g_stride + c);
        __builtin_prefetch(d->k + t * d->k_stride + c);
        __builtin_prefetch(d->q + t * d->q_stride + c);
    }
}
static void foresee_values(const struct krn_delta *d, uint32_t t)
{
    for (size_t c = 0; c < d->dv && t < d->n; c += 16) {
        __builtin_prefetch(d->v + t * d->v_stride + c);
        __builtin_prefetch(d->out + t * d->out_stride + c, 1);
    }
}

/* Rows [i0, i0 + n), the step's tokens from t0 on: products among the keys, rows for the product with S. Only a tile that stays open
 * is written to the state. */
static void take(const struct krn_delta *d, const struct tile *w, uint32_t i0, uint32_t n, uint32_t t0, bool open)
{
    const float *k = d->k + t0 * d->k_stride, *q = d->q + t0 * d->q_stride;
    size_t dk = d->dk;
    for (uint32_t m = 0; m < n; m++) {
        float *e = w->e + (i0 + m) * dk;
        foresee_keys(d, t0 + m + AHEAD);
        d->ops->exp(e, d->g + (t0 + m) * d->g_stride, dk);
        for (size_t c = 0; c < dk && open; c++) {
            w->kt[c * T + i0 + m] = k[m * d->k_stride + c];
            w->et[c * T + i0 + m] = e[c];
        }
        const float *decay = decayed(d, w, i0 + m);
        d->ops->mul(w->x + m * dk, k + m * d->k_stride, decay, dk);
        d->ops->mul(w->x + (n + m) * dk, q + m * d->q_stride, decay, dk);
    }
    d->ops->keys(w->kd[w->now], w->e + i0 * dk, dk, k, d->k_stride, q, d->q_stride, i0, n, d->dk, w->a + i0 * T, w->p + i0 * T);
}

/* S panel by panel, while one lies near: it meets the tile before this one, if that is still owed, then gives y = x S of n rows. */
static void meet(const struct krn_delta *d, struct tile *w, uint32_t n)
{
    const float *kd = w->kd[!w->now], *decay = w->decay[!w->now];
    memset(w->y, 0, (size_t)n * d->dv * sizeof *w->y);
    for (uint32_t c = 0; c < d->dv; c += KRN_STATE_PANEL) {
        uint32_t cols = d->dv - c < KRN_STATE_PANEL ? d->dv - c : KRN_STATE_PANEL;
        float *s = d->s + (size_t)c * d->dk;
        if (w->owed) d->ops->mac(s, cols, decay, kd, T, d->dk, w->u + c, d->dv, T, cols);
        if (n) d->ops->mac(w->y + c, d->dv, NULL, w->x, d->dk, n, s, cols, d->dk, cols);
    }
    w->owed = false;
}

/* Rows [i0, i1) of a tile, the step's tokens from t0 on. */
static void rows(const struct krn_delta *d, struct tile *w, uint32_t i0, uint32_t i1, uint32_t t0)
{
    uint32_t n = i1 - i0;
    take(d, w, i0, n, t0, i1 < T);
    for (uint32_t m = 0; m < n; m++) foresee_values(d, t0 + m);
    meet(d, w, 2 * n);
    d->ops->solve(&(struct krn_solve){.u = w->u, .out = d->out + t0 * d->out_stride, .y = w->y, .a = w->a, .p = w->p, .v = d->v + t0 * d->v_stride,
                                      .beta = d->beta + t0 * d->beta_stride, .out_stride = d->out_stride, .v_stride = d->v_stride, .beta_stride = d->beta_stride,
                                      .i0 = i0, .n = n, .dv = d->dv});
}

void krn_delta_run(const struct krn_delta *d, float *scratch)
{
    struct tile w = carve(d, scratch);
    if (d->pos0 == 0) memset(d->s, 0, (size_t)d->dk * d->dv * sizeof *d->s);
    for (uint32_t t = 0; t < d->n;) {
        uint32_t i0 = (d->pos0 + t) % T, i1 = d->n - t < T - i0 ? i0 + d->n - t : T;
        memset(w.kd[w.now], 0, (size_t)d->dk * T * sizeof *w.kd[0]);
        if (i0) reopen(d, &w, i0);
        rows(d, &w, i0, i1, t);
        w.owed = i1 == T;
        w.now ^= w.owed;
        t += i1 - i0;
    }
    meet(d, &w, 0);
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
