/* kernels/attend.c - attention over pages: who computes what, and in which order partial results are merged.
 *
 * The arithmetic of a row is fixed by attend.h alone; everything here (row blocks, splits, slots) only decides who does it.
 * An item is a block of rows of one sequence; a unit is an item for one KV head, so the heads that share keys share loads.
 * An item that is much of a step's work (a decode far into a sequence, alone, with its drafts or beside short ones) is split by segments,
 * or by spans of segments when there are many; each unit leaves its partial result in a slot and the last one of a set merges them. */
#include <assert.h>
#include <stdatomic.h>
#include "kernels/mathf.h"
#include "kernels/ops.h"

#define SEG KRN_ATTEND_SEGMENT
#define SPLIT_QUERIES 8u   /* (row, head) pairs that the room for partial results is made for: more of them are split into fewer parts */
#define RUN 64u            /* keys whose latent values lie turned around, token by token, while all queries of a batch use them */
#define SPLIT_SEGMENTS 64u /* up to this many segments are split one by one, beyond it by spans */

/* Partial softmax results of some queries; l < 0 marks one that has seen no key yet. */
struct state { float *m, *l, *o; };

static inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t most(uint32_t a, uint32_t b) { return a > b ? a : b; }
static uint32_t rows_per_item(uint32_t group) { return most(1, KRN_ATTEND_QUERIES / group); }
static uint32_t queries_max(uint32_t group) { return rows_per_item(group) * group; }
static uint32_t first_key(const struct krn_attend *a, uint32_t pos) { return a->window && pos >= a->window ? pos - a->window + 1 : 0; }

size_t krn_attend_scratch(uint32_t group, uint32_t dim, uint32_t dim_v, bool latent)
{
    return (size_t)queries_max(group) * ((size_t)dim + SEG + 3 * ((size_t)dim_v + 2)) + 256 + (latent ? (size_t)RUN * dim_v : 0);
}
size_t krn_attend_slot_floats(const struct krn_attend *a, unsigned threads)
{
    return threads > 1 ? (size_t)4 * SPLIT_SEGMENTS * a->kv_heads * most(a->heads / a->kv_heads, SPLIT_QUERIES) * ((size_t)a->dim_v + 2) : 0;
}
uint32_t krn_attend_items_max(uint32_t rows_max, unsigned threads) { return rows_max + (threads > 1 ? 4 * SPLIT_SEGMENTS : 0); }

static void segments_of(const struct krn_attend *a, struct krn_attend_item *it)
{
    uint32_t pos = a->seqs[it->seq].pos0 + it->row0;
    it->seg0 = first_key(a, pos) / SEG;
    it->seg1 = (pos + it->n_rows - 1) / SEG + 1;
}

/* Row blocks of all sequences, the last (longest) block of each first. */
static uint32_t cut_rows(const struct krn_attend *a, struct krn_attend_item *out, uint32_t max)
{
    uint32_t n = 0, step = rows_per_item(a->heads / a->kv_heads);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        for (uint32_t left = a->seqs[s].count; left;) {
            uint32_t rows = left % step ? left % step : step;
            left -= rows;
            assert(n < max);
            out[n] = (struct krn_attend_item){.seq = s, .row0 = left, .n_rows = rows, .first = n, .n_items = 1};
            segments_of(a, &out[n++]);
        }
    (void)max;
    return n;
}

static uint32_t parts_of(const struct krn_attend_item *it)
{
    uint32_t segs = it->seg1 - it->seg0, span = KRN_ATTEND_SPAN / SEG;
    return segs <= SPLIT_SEGMENTS ? segs : (it->seg1 - 1) / span - it->seg0 / span + 1;
}
static uint64_t cost_of(const struct krn_attend_item *it) { return (uint64_t)it->n_rows * (it->seg1 - it->seg0); }
static size_t part_floats(const struct krn_attend *a, uint32_t n_rows) { return (size_t)n_rows * (a->heads / a->kv_heads) * ((size_t)a->dim_v + 2); }

/* Marks the items that are split: those of which a unit is more than an eighth of what a thread has to do, while there is room. Returns
 * how many items that makes. */
static uint32_t mark_parts(const struct krn_attend *a, struct krn_attend_item *it, uint32_t n, uint32_t max, size_t slot_floats, unsigned threads)
{
    uint64_t total = 0;
    uint32_t items = n;
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++) total += cost_of(&it[i]);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = parts_of(&it[i]);
        size_t floats = (size_t)k * a->kv_heads * part_floats(a, it[i].n_rows);
        if (k < 2 || cost_of(&it[i]) * 8 * threads <= total * a->kv_heads || k - 1 > max - items || floats > slot_floats - used) continue;
        it[i].n_items = k;
        it[i].slot = used;
        used += floats;
        items += k - 1;
    }
    return items;
}

void krn_attend_cut(const struct krn_attend *a, struct krn_attend_work *w, uint32_t max, size_t slot_floats, unsigned threads)
{
    const uint32_t n = cut_rows(a, w->items, max), items = threads > 1 ? mark_parts(a, w->items, n, max, slot_floats, threads) : n;
    w->n_items = items;
    w->split = items > n;
    /* Backwards, so that an item's parts never overwrite one that is still to be split. */
    for (uint32_t i = n, end = items; w->split && i-- > 0;) {
        struct krn_attend_item it = w->items[i];
        const uint32_t k = it.n_items, span = KRN_ATTEND_SPAN / SEG, stop = it.seg1;
        const bool singly = k == it.seg1 - it.seg0;
        end -= k;
        it.first = end;
        for (uint32_t j = 0, seg = it.seg0; j < k; j++) {
            it.seg0 = seg;
            it.seg1 = seg = k == 1 ? stop : singly ? seg + 1 : least(stop, (seg / span + 1) * span);
            w->items[end + j] = it;
            it.slot += a->kv_heads * part_floats(a, it.n_rows);
        }
    }
}

/* ---- merging --------------------------------------------------------------------------------------------------------- */
static void empty(struct state s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) s.l[i] = -1.0f;
}
static void merge(const struct krn_ops *ops, struct state to, struct state from, uint32_t i, size_t dim_v)
{
    float *acc = to.o + i * dim_v;
    const float *o = from.o + i * dim_v;
    if (from.l[i] < 0) return;
    if (to.l[i] < 0) {
        to.m[i] = from.m[i];
        to.l[i] = from.l[i];
        memcpy(acc, o, dim_v * sizeof *o);
        return;
    }
    float top = vf_max(to.m[i], from.m[i]), x = mf_exp(to.m[i] - top), y = mf_exp(from.m[i] - top);
    ops->merge(acc, o, dim_v, x, y);
    to.l[i] = fmaf(to.l[i], x, from.l[i] * y);
    to.m[i] = top;
}
static void merge_all(const struct krn_ops *ops, struct state to, struct state from, uint32_t n, size_t dim_v)
{
    for (uint32_t i = 0; i < n; i++) merge(ops, to, from, i, dim_v);
}

/* ---- one segment ----------------------------------------------------------------------------------------------------- */
struct unit {
    const struct krn_attend *a;
    struct krn_attend_item it;
    uint32_t kv_head, group, nq;
    float *q, *s, *values;
    struct state seg, span, total;
};

static struct state carve(float **p, uint32_t n, size_t dim_v)
{
    struct state s = {*p, *p + n, *p + 2 * (size_t)n};
    *p += n * (dim_v + 2);
    return s;
}

static const uint8_t *block_of(const struct krn_attend *a, uint32_t seq, uint32_t pos, uint32_t kv_head, bool v)
{
    const struct krn_pages *g = a->pages;
    const struct krn_kv_layout *l = &g->layout;
    uint32_t page = g->tables[(size_t)seq * g->table_stride + pos / l->page_tokens], t = pos % l->page_tokens;
    if (a->latent) kv_head = 0, v = false;
    assert(page != KRN_NO_PAGE);
    return g->pool + page * l->page_bytes + (v ? krn_kv_v(l, a->layer, kv_head, t, 0) : krn_kv_k(l, a->layer, kv_head, t, 0));
}

/* weigh() on latent values: those of RUN keys at a time are turned around first; the order of sums stays that of the keys. */
static void weigh_latent(struct unit *u, float *o, const float *s, uint32_t n, const uint32_t *lo, const uint32_t *hi, const void *const *kb)
{
    const struct krn_attend *a = u->a;
    enum krn_type t = a->pages->layout.type;
    for (uint32_t r0 = lo[0] / RUN * RUN; r0 < hi[n - 1]; r0 += RUN) {
        uint32_t l[KRN_ATTEND_QUERIES], h[KRN_ATTEND_QUERIES];
        const void *vb[KRN_ATTEND_BLOCKS] = {0};
        for (uint32_t b = most(r0, lo[0]) / KRN_KV_BLOCK; b * KRN_KV_BLOCK < least(r0 + RUN, hi[n - 1]); b++) {
            float *v = u->values + (size_t)(b % (RUN / KRN_KV_BLOCK)) * KRN_KV_BLOCK * a->dim_v;
            a->ops->untile(v, kb[b], a->dim_v, t);
            vb[b] = v;
        }
        for (uint32_t i = 0; i < n; i++) {
            l[i] = most(lo[i], r0);
            h[i] = most(l[i], least(hi[i], r0 + RUN));
        }
        a->ops->weigh(o, s, n, l, h, vb, false, a->dim_v, KRN_F32);
    }
}

/* All rows of the item that see keys of this segment; leaves their partial results in u->seg. */
static void walk_segment(struct unit *u, uint32_t segment)
{
    const struct krn_attend *a = u->a;
    uint32_t start = segment * SEG, end = start + SEG, pos0 = a->seqs[u->it.seq].pos0 + u->it.row0;
    uint32_t ra = start > pos0 ? start - pos0 : 0, rb = u->it.n_rows; /* rows before ra end before the segment */
    uint32_t lo[KRN_ATTEND_QUERIES], hi[KRN_ATTEND_QUERIES];
    const void *kb[KRN_ATTEND_BLOCKS + KRN_ATTEND_AHEAD], *vb[KRN_ATTEND_BLOCKS + KRN_ATTEND_AHEAD];

    while (rb > ra && first_key(a, pos0 + rb - 1) >= end) rb--;
    empty(u->seg, u->nq);
    if (ra >= rb) return;
    uint32_t low = most(first_key(a, pos0 + ra), start) - start, high = least(pos0 + rb, end) - start;
    uint32_t b0 = low / KRN_KV_BLOCK, b1 = (high - 1) / KRN_KV_BLOCK + 1;
    for (uint32_t b = b0; b < b1; b++) {
        kb[b] = block_of(a, u->it.seq, start + b * KRN_KV_BLOCK, u->kv_head, false);
        vb[b] = block_of(a, u->it.seq, start + b * KRN_KV_BLOCK, u->kv_head, true);
    }
    for (uint32_t i = 0; i < KRN_ATTEND_AHEAD; i++) { /* after these keys come the values, after the values the next segment's keys */
        kb[b1 + i] = vb[least(b0 + i, b1 - 1)];
        vb[b1 + i] = high == SEG && segment + 1 < u->it.seg1 ? block_of(a, u->it.seq, least(end + i * KRN_KV_BLOCK, pos0 + rb - 1), u->kv_head, false) : kb[b1 - 1];
    }
    /* Queries go in batches of KRN_ATTEND_QUERIES (more only where one KV head serves more heads than that). */
    for (uint32_t q0 = ra * u->group, qe = rb * u->group; q0 < qe; q0 += KRN_ATTEND_QUERIES) {
        uint32_t n = least(qe - q0, KRN_ATTEND_QUERIES);
        float *s = u->s + (size_t)q0 * SEG, *o = u->seg.o + (size_t)q0 * a->dim_v;
        a->ops->scores(s + b0 * KRN_KV_BLOCK, u->q + (size_t)q0 * a->dim, n, a->dim, kb + b0, b1 - b0, true, a->pages->layout.type, a->scale);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pos = pos0 + (q0 + i) / u->group;
            lo[i] = most(first_key(a, pos), start) - start;
            hi[i] = least(pos + 1, end) - start;
            a->ops->soften(s + (size_t)i * SEG, lo[i], hi[i], a->softcap, &u->seg.m[q0 + i], &u->seg.l[q0 + i]);
        }
        memset(o, 0, (size_t)n * a->dim_v * sizeof *o);
        if (a->latent) weigh_latent(u, o, s, n, lo, hi, vb);
        else a->ops->weigh(o, s, n, lo, hi, vb, true, a->dim_v, a->pages->layout.type);
    }
}

/* ---- one unit -------------------------------------------------------------------------------------------------------- */
static void gather(struct unit *u)
{
    const struct krn_attend *a = u->a;
    for (uint32_t i = 0; i < u->nq; i++) {
        size_t row = a->seqs[u->it.seq].first + u->it.row0 + i / u->group;
        memcpy(u->q + (size_t)i * a->dim, a->q + row * a->q_stride + (u->kv_head * u->group + i % u->group) * a->q_head, a->dim * sizeof *u->q);
    }
}

static void finish(const struct unit *u)
{
    const struct krn_attend *a = u->a;
    for (uint32_t i = 0; i < u->nq; i++) {
        uint32_t head = u->kv_head * u->group + i % u->group;
        size_t row = a->seqs[u->it.seq].first + u->it.row0 + i / u->group;
        const float *o = u->total.o + (size_t)i * a->dim_v;
        float *out = a->out + row * a->out_stride + head * a->out_head, l = u->total.l[i];
        if (a->sinks) {
            float top = vf_max(u->total.m[i], a->sinks[head]), x = mf_exp(u->total.m[i] - top);
            l = fmaf(l, x, mf_exp(a->sinks[head] - top));
            a->ops->scale(u->total.o + (size_t)i * a->dim_v, o, a->dim_v, x);
        }
        a->ops->scale(out, o, a->dim_v, 1.0f / l);
    }
}

/* The last unit of a set merges what all of them left, in order of their keys. */
static void merge_set(struct unit *u, const struct krn_attend_work *w, float *slots)
{
    const struct krn_attend *a = u->a;
    size_t size = part_floats(a, u->it.n_rows);
    uint32_t span = KRN_ATTEND_SPAN / SEG;
    empty(u->total, u->nq);
    empty(u->span, u->nq);
    for (uint32_t k = 0; k < u->it.n_items; k++) {
        const struct krn_attend_item *it = &w->items[u->it.first + k];
        float *p = slots + it->slot + u->kv_head * size;
        merge_all(a->ops, u->span, carve(&p, u->nq, a->dim_v), u->nq, a->dim_v);
        if (k + 1 == u->it.n_items || it[1].seg0 / span != it->seg0 / span) {
            merge_all(a->ops, u->total, u->span, u->nq, a->dim_v);
            empty(u->span, u->nq);
        }
    }
}

void krn_attend_run(const struct krn_attend *a, const struct krn_attend_work *w, uint32_t index, float *scratch, float *slots, _Atomic uint32_t *left)
{
    struct unit u = {.a = a, .it = w->items[index / a->kv_heads], .kv_head = index % a->kv_heads, .group = a->heads / a->kv_heads};
    uint32_t span = KRN_ATTEND_SPAN / SEG;
    u.nq = u.it.n_rows * u.group;
    u.s = scratch;
    u.q = u.s + (size_t)u.nq * SEG;
    float *p = u.q + (size_t)u.nq * a->dim;
    u.seg = carve(&p, u.nq, a->dim_v);
    u.span = carve(&p, u.nq, a->dim_v);
    u.total = carve(&p, u.nq, a->dim_v);
    u.values = p;
    gather(&u);
    empty(u.span, u.nq);
    empty(u.total, u.nq);
    for (uint32_t s = u.it.seg0; s < u.it.seg1; s++) {
        walk_segment(&u, s);
        merge_all(a->ops, u.span, u.seg, u.nq, a->dim_v);
        if (s + 1 == u.it.seg1 || (s + 1) % span == 0) {
            merge_all(a->ops, u.total, u.span, u.nq, a->dim_v);
            empty(u.span, u.nq);
        }
    }
    if (u.it.n_items > 1) {
        const size_t size = part_floats(a, u.it.n_rows);
        memcpy(slots + u.it.slot + u.kv_head * size, u.total.m, size * sizeof *slots);
        _Atomic uint32_t *count = &left[(size_t)u.it.first * a->kv_heads + u.kv_head];
        if (atomic_fetch_add_explicit(count, 1, memory_order_acq_rel) + 1 < u.it.n_items) return;
        atomic_store_explicit(count, 0, memory_order_relaxed); /* ready for the next step */
        merge_set(&u, w, slots);
    }
    finish(&u);
}

/* ---- writing --------------------------------------------------------------------------------------------------------- */
/* n channels of a key into their block: element d goes to dst[16 d]. */
static void scatter(const struct krn_ops *ops, uint8_t *dst, const float *k, uint32_t n, enum krn_type t)
{
    uint16_t half[64];
    if (t == KRN_F32) {
        for (uint32_t d = 0; d < n; d++) ((float *)(void *)dst)[(size_t)d * KRN_KV_BLOCK] = k[d];
        return;
    }
    for (uint32_t d0 = 0; d0 < n; d0 += 64) {
        uint32_t m = least(64, n - d0);
        ops->narrow(half, k + d0, m, t);
        for (uint32_t d = 0; d < m; d++) ((uint16_t *)(void *)dst)[(size_t)(d0 + d) * KRN_KV_BLOCK] = half[d];
    }
}

void krn_attend_store(const struct krn_attend *a, uint32_t seq, uint32_t pos, const float *k, size_t k_head, const float *v, size_t v_head)
{
    const struct krn_pages *g = a->pages;
    const struct krn_kv_layout *l = &g->layout;
    uint32_t t = pos % l->page_tokens;
    uint8_t *page = g->pool + g->tables[(size_t)seq * g->table_stride + pos / l->page_tokens] * l->page_bytes;
    for (uint32_t h = 0; h < a->kv_heads; h++) {
        scatter(a->ops, page + krn_kv_k(l, a->layer, h, t, 0), k + h * k_head, a->dim, l->type);
        a->ops->narrow(page + krn_kv_v(l, a->layer, h, t, 0), v + h * v_head, a->dim_v, l->type);
    }
}

void krn_attend_store_latent(const struct krn_attend *a, uint32_t seq, uint32_t pos, const float *c, const float *kr)
{
    const struct krn_pages *g = a->pages;
    const struct krn_kv_layout *l = &g->layout;
    uint32_t t = pos % l->page_tokens;
    uint8_t *page = g->pool + g->tables[(size_t)seq * g->table_stride + pos / l->page_tokens] * l->page_bytes;
    scatter(a->ops, page + krn_kv_k(l, a->layer, 0, t, 0), c, a->dim_v, l->type);
    scatter(a->ops, page + krn_kv_k(l, a->layer, 0, t, a->dim_v), kr, a->dim - a->dim_v, l->type);
}
