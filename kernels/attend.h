/* kernels/attend.h - causal attention over paged keys and values: contract, and the pieces each instruction set supplies.
 *
 *   s_t = scale * (q . k_t);  softcap c > 0: s_t = c tanh(s_t / c);  out = sum_t p_t v_t,  p = softmax(s [, sink])
 * over the keys t in (pos - window, pos] (window 0: [0, pos]); a sink adds e^sink to the denominator and nothing to the sum.
 * Head h of q reads KV head h / (heads / kv_heads).
 *
 * The arithmetic, to the bit, whatever the chunk, page size, batch or number of threads:
 *   score    a chain fma(q_d, k_d, acc) over channels ascending, from 0, then times scale; lane = token of its 16-block
 *   segment  512 keys at absolute positions. m = max over its visible keys; p_t = exp(s_t - m); l = sum of p over 16 lanes
 *            (lane = t % 16, blocks ascending), folded by the tree of simd.h; o_d = chain fma(p_t, v_td, o_d), t ascending,
 *            from 0. Keys that are not visible take no part (their page may hold anything).
 *   merge    (m, l, o) of segments ascending inside a span of 32 segments, then of spans ascending; the first is taken as
 *            it is, then M' = max(M, m), a = exp(M - M'), b = exp(m - M'): l = fma(L, a, l b), o = fma(O, a, o b)
 *   end      sink: M' = max(M, sink), the same a, L = fma(L, a, exp(sink - M')), O = O a;  out = O * (1 / L)
 * Two levels of merging let a decode of any length be cut over threads with few partial results to keep.
 * Keys and values are read back from the page as stored (f32, f16, bf16), those of the step's own rows too.
 * Latent attention (latent.h) stores one key for all heads and no values: the first `latent` channels of a key are its value.
 * Tolerance against a softmax in double: 1e-5 of the largest |v|. Source: Dao et al. 2022, arXiv 2205.14135 (merging). */
#ifndef SLUICE_KERNELS_ATTEND_H
#define SLUICE_KERNELS_ATTEND_H
#include "kernels/backend.h"

#define KRN_ATTEND_SEGMENT 512
#define KRN_ATTEND_SPAN (32 * KRN_ATTEND_SEGMENT)
#define KRN_ATTEND_BLOCKS (KRN_ATTEND_SEGMENT / KRN_KV_BLOCK)
#define KRN_ATTEND_AHEAD 4    /* blocks that are fetched ahead of use */
#define KRN_ATTEND_QUERIES 48 /* most (row, head) pairs that walk a segment together */

/* s[q][KRN_ATTEND_SEGMENT]: entries 16 (b0 + b) + lane for blocks b < nb; kb[b] points at [dim][16] of one block.
 * ahead: KRN_ATTEND_AHEAD entries stand behind the last, what is read next of keys or values: fetched, never looked at. */
typedef void krn_scores_fn(float *s, const float *q, uint32_t nq, uint32_t dim, const void *const *kb, uint32_t nb, bool ahead, enum krn_type t, float scale);
/* Turns scores [lo, hi) of one query into p in place; lo < hi <= 512. Entries outside become unspecified. */
typedef void krn_soften_fn(float *s, uint32_t lo, uint32_t hi, float softcap, float *m, float *l);
/* o[q][dim_v] += p v over [lo[q], hi[q]); both ascend with q. vb[b] points at [16][dim_v] of block b.
 * ahead as in scores, behind the block of the last hi. */
typedef void krn_weigh_fn(float *o, const float *p, uint32_t nq, const uint32_t *lo, const uint32_t *hi, const void *const *vb, bool ahead, uint32_t dim_v, enum krn_type t);
/* Values of a latent block: dst[16][dim_v] = the first dim_v channels of the key block kb, [dim][16], as f32. */
typedef void krn_untile_fn(float *dst, const void *kb, uint32_t dim_v, enum krn_type t);
typedef void krn_merge_fn(float *acc, const float *o, size_t n, float a, float b); /* acc = fma(acc, a, o * b) */
typedef void krn_narrow_fn(void *dst, const float *src, size_t n, enum krn_type t);  /* to F32, F16 or BF16, nearest even */

/* ---- one attention call, resolved (attend.c) ------------------------------------------------------------------------ */
struct krn_ops;
struct krn_attend {
    const struct krn_ops *ops;
    const float *q; float *out;
    size_t q_stride, out_stride, q_head, out_head;   /* floats between rows and between heads */
    uint32_t heads, kv_heads, dim, dim_v;
    uint32_t layer, window;
    bool latent;                                     /* one key for all, dim_v of its channels are the value; kv_heads: groups of heads that work together */
    float scale, softcap;
    const float *sinks;                              /* [heads] or NULL */
    const struct krn_seq *seqs; uint32_t n_seqs;
    const struct krn_pages *pages;
};
/* A piece of work for one KV head: some rows of one sequence against some of their segments. */
struct krn_attend_item {
    uint32_t seq, row0, n_rows;      /* rows relative to the sequence's first */
    uint32_t seg0, seg1;             /* absolute segments */
    uint32_t first, n_items;         /* split items: first item of the set, and its size */
    size_t slot;                     /* and where its partial results lie: floats ahead of KV head 0's */
};
struct krn_attend_work {
    struct krn_attend_item *items; uint32_t n_items;
    bool split;                      /* some sets have several items, merged by whoever ends last */
};
/* Fills w->items (room for `max` of them) from the step; slot_floats bounds the partial results of what is split. Pure. */
void krn_attend_cut(const struct krn_attend *a, struct krn_attend_work *w, uint32_t max, size_t slot_floats, unsigned threads);
uint32_t krn_attend_items_max(uint32_t rows_max, unsigned threads);
/* Floats of partial results; of scratch a worker needs. */
size_t krn_attend_slot_floats(const struct krn_attend *a, unsigned threads);
size_t krn_attend_scratch(uint32_t group, uint32_t dim, uint32_t dim_v, bool latent);
/* Runs unit u of w->n_items * kv_heads. left: one counter per (set, KV head), all zero before the step. */
void krn_attend_run(const struct krn_attend *a, const struct krn_attend_work *w, uint32_t unit, float *scratch, float *slots, _Atomic uint32_t *left);
/* Stores k, v of one row (token at pos of sequence seq) into its page. k, v: [kv_heads][dim], heads k_head, v_head apart. */
void krn_attend_store(const struct krn_attend *a, uint32_t seq, uint32_t pos, const float *k, size_t k_head, const float *v, size_t v_head);
/* The same for a latent key: c [dim_v], then kr [dim - dim_v]. */
void krn_attend_store_latent(const struct krn_attend *a, uint32_t seq, uint32_t pos, const float *c, const float *kr);
#endif
