/* tests/kernels/check_attend.c - paged attention: against a softmax in double, and equal bits however the work is cut: chunks,
 * page sizes, splits over threads, company in the batch, instruction sets. */
#include <stdlib.h>
#include <string.h>
#include "tests/support/rows.h"
#include "tests/support/suite.h"

struct shape {
    uint32_t heads, kv_heads, dim, dim_v, window;
    float scale, softcap;
    bool sinks;
    enum krn_type type;
    uint32_t n;       /* tokens of the sequence */
};
/* How the same numbers are computed. */
struct way { uint32_t chunk, page; unsigned threads; const struct krn_ops *ops; uint32_t company; };

struct data { float *q, *k, *v, *sinks; };

static struct data make(const struct shape *s, uint64_t seed)
{
    struct data d = {calloc(s->n * s->heads * s->dim, 4), calloc(s->n * s->kv_heads * s->dim, 4), calloc(s->n * s->kv_heads * s->dim_v, 4), calloc(s->heads, 4)};
    rows_fill(d.q, s->n * s->heads * s->dim, &seed, 2);
    rows_fill(d.k, s->n * s->kv_heads * s->dim, &seed, 2);
    rows_fill(d.v, s->n * s->kv_heads * s->dim_v, &seed, 1);
    rows_fill(d.sinks, s->heads, &seed, 3);
    return d;
}
static void drop(struct data d)
{
    free(d.q);
    free(d.k);
    free(d.v);
    free(d.sinks);
}

/* A pool of pages full of NaN, handed to the sequences in scattered order. */
struct world {
    struct krn_pages pages;
    uint32_t *tables;
    struct krn_seq seqs[8];
};

static void open_world(struct world *w, const struct shape *s, const struct way *way, uint32_t n_seqs)
{
    uint32_t stride = s->n / way->page + 2, n_pages = stride * n_seqs;
    memset(w, 0, sizeof *w);
    w->pages.layout = (struct krn_kv_layout){.type = s->type, .page_tokens = way->page, .n_layers = 2, .heads = s->kv_heads, .dim_k = s->dim, .dim_v = s->dim_v};
    ck_assert(krn_kv_layout_init(&w->pages.layout));
    w->pages.pool = aligned_alloc(64, n_pages * w->pages.layout.page_bytes);
    memset(w->pages.pool, 0xff, n_pages * w->pages.layout.page_bytes); /* NaN in every type */
    w->tables = malloc(n_pages * sizeof *w->tables);
    for (uint32_t i = 0; i < n_pages; i++) w->tables[i] = (i * 7 + 3) % n_pages; /* scattered; unique where 7 does not divide */
    if (n_pages % 7 == 0)
        for (uint32_t i = 0; i < n_pages; i++) w->tables[i] = n_pages - 1 - i;
    w->pages.tables = w->tables;
    w->pages.table_stride = stride;
}

/* Computes out[n][heads][dim_v] for the sequence in d; `company` more sequences with other numbers run beside it. */
static void compute(const struct shape *s, const struct way *way, const struct data *d, float *out)
{
    uint32_t n_seqs = 1 + way->company, me = way->company / 2, group = s->heads / s->kv_heads;
    size_t qw = s->heads * s->dim, kw = s->kv_heads * s->dim, vw = s->kv_heads * s->dim_v, ow = s->heads * s->dim_v;
    struct world w;
    open_world(&w, s, way, n_seqs);
    struct krn_attend a = {.ops = way->ops, .q_stride = qw, .out_stride = ow, .q_head = s->dim, .out_head = s->dim_v, .heads = s->heads, .kv_heads = s->kv_heads,
                           .dim = s->dim, .dim_v = s->dim_v, .layer = 1, .window = s->window, .scale = s->scale, .softcap = s->softcap,
                           .sinks = s->sinks ? d->sinks : NULL, .seqs = w.seqs, .n_seqs = n_seqs, .pages = &w.pages};
    uint32_t rows_max = way->chunk * n_seqs, items_max = krn_attend_items_max(rows_max, way->threads);
    size_t slots = krn_attend_slot_floats(&a, way->threads);
    struct krn_attend_work work = {.items = calloc(items_max, sizeof *work.items)};
    float *scratch = malloc(krn_attend_scratch(group, s->dim, s->dim_v, false) * sizeof *scratch);
    float *slot = malloc((slots + 1) * sizeof *slot);
    _Atomic uint32_t *left = calloc(items_max * s->kv_heads, sizeof *left);
    float *q = calloc(rows_max * qw, sizeof *q), *o = calloc(rows_max * ow, sizeof *o);

    for (uint32_t pos = 0; pos < s->n; pos += way->chunk) {
        uint32_t count = s->n - pos < way->chunk ? s->n - pos : way->chunk, row = 0;
        for (uint32_t i = 0; i < n_seqs; i++) {
            /* Companions see the same positions with their tokens shifted, in shorter chunks. */
            uint32_t c = i == me ? count : 1 + count / 2;
            w.seqs[i] = (struct krn_seq){row, c, pos, false};
            for (uint32_t r = 0; r < c; r++) {
                uint32_t t = i == me ? pos + r : (pos + r + i + 1) % s->n;
                memcpy(q + (row + r) * qw, d->q + t * qw, qw * sizeof *q);
                krn_attend_store(&a, i, pos + r, d->k + t * kw, s->dim, d->v + t * vw, s->dim_v);
            }
            row += c;
        }
        a.q = q;
        a.out = o;
        krn_attend_cut(&a, &work, items_max, slots, way->threads);
        for (uint32_t u = work.n_items * s->kv_heads; u-- > 0;) krn_attend_run(&a, &work, u, scratch, slot, left);
        memcpy(out + pos * ow, o + w.seqs[me].first * ow, count * ow * sizeof *o);
    }
    free(q);
    free(o);
    free((void *)left);
    free(slot);
    free(scratch);
    free(work.items);
    free(w.tables);
    free(w.pages.pool);
}

static double stored(float x, enum krn_type t)
{
    return t == KRN_F32 ? x : t == KRN_F16 ? krn_f16_to_f32(krn_f32_to_f16(x)) : krn_bf16_to_f32(krn_f32_to_bf16(x));
}
static void reference(const struct shape *s, const struct data *d, double *out)
{
    double *p = malloc(s->n * sizeof *p);
    for (uint32_t t = 0; t < s->n; t++)
        for (uint32_t h = 0; h < s->heads; h++) {
            uint32_t g = h / (s->heads / s->kv_heads), lo = s->window && t + 1 > s->window ? t + 1 - s->window : 0;
            double top = s->sinks ? d->sinks[h] : -INFINITY, sum = 0;
            for (uint32_t k = lo; k <= t; k++) {
                p[k] = 0;
                for (uint32_t i = 0; i < s->dim; i++) p[k] += d->q[(t * s->heads + h) * s->dim + i] * stored(d->k[(k * s->kv_heads + g) * s->dim + i], s->type);
                p[k] *= s->scale;
                if (s->softcap > 0) p[k] = s->softcap * tanh(p[k] / s->softcap);
                top = fmax(top, p[k]);
            }
            for (uint32_t k = lo; k <= t; k++) sum += p[k] = exp(p[k] - top);
            if (s->sinks) sum += exp(d->sinks[h] - top);
            for (uint32_t i = 0; i < s->dim_v; i++) {
                double o = 0;
                for (uint32_t k = lo; k <= t; k++) o += p[k] * stored(d->v[(k * s->kv_heads + g) * s->dim_v + i], s->type);
                out[(t * s->heads + h) * s->dim_v + i] = o / sum;
            }
        }
    free(p);
}

static const struct shape shapes[] = {
    {9, 3, 64, 64, 0, 0.125f, 0, false, KRN_F32, 700},
    {4, 4, 32, 32, 0, 0.177f, 0, false, KRN_F16, 530},    /* no sharing of keys */
    {6, 2, 24, 40, 100, 0.2f, 0, false, KRN_BF16, 700},   /* odd dims, window across a segment */
    {2, 1, 48, 48, 17, 0.15f, 20, true, KRN_F32, 150},    /* window, cap, sinks */
    {10, 2, 20, 12, 0, 0.22f, 30, true, KRN_F16, 90},
    {60, 1, 16, 16, 0, 0.25f, 0, false, KRN_F32, 40},     /* more heads on one KV head than walk together */
    {1, 1, 7, 5, 1, 0.3f, 0, false, KRN_F32, 33}};        /* a window of one: the value itself */
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

START_TEST(core)
{
    for (int i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        size_t n = s->n * s->heads * s->dim_v;
        struct data d = make(s, 11);
        float *out = malloc(n * sizeof *out);
        double *want = malloc(n * sizeof *want), top = 0, most = 0;
        struct way way = {64, 16, 1, krn_ops_get(KRN_ISA_C), 0};
        reference(s, &d, want);
        compute(s, &way, &d, out);
        for (size_t k = 0; k < n; k++) {
            double e = fabs(out[k] - want[k]);
            if (!(e <= most)) most = e;
            top = fmax(top, fabs(want[k]));
        }
        ck_assert_msg(most <= 1e-5 * top, "shape %d: off by %g of %g", i, most, top);
        free(want);
        free(out);
        drop(d);
    }
}
END_TEST

START_TEST(same_bits)
{
    for (int i = 0; i < N_SHAPES; i++) {
        const struct shape *s = &shapes[i];
        size_t n = s->n * s->heads * s->dim_v;
        struct data d = make(s, 12);
        float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
        struct way base = {s->n, 16, 1, krn_ops_get(KRN_ISA_C), 0};
        compute(s, &base, &d, a);
        for (unsigned k = 0; k < 10; k++) {
            const struct krn_ops *f = rows_fast(k % 2) ? rows_fast(k % 2) : rows_fast(0) ? rows_fast(0) : base.ops;
            const struct way ways[] = {{s->n, 16, 1, f, 0}, {1, 64, 1, f, 0}, {1, 16, 2, f, 0}, {7, 64, 2, f, 0}, {64, 16, 2, f, 0},
                                       {s->n, 64, 16, f, 0}, {1, 16, 16, f, 3}, {5, 32, 2, f, 6}, {64, 64, 1, f, 1}, {3, 16, 2, base.ops, 1}};
            compute(s, &ways[k], &d, b);
            ck_assert_msg(rows_equal(a, b, n), "shape %d, chunk %u, page %u, %u threads, %u others, %s", i, ways[k].chunk, ways[k].page, ways[k].threads, ways[k].company, ways[k].ops->name);
        }
        free(a);
        free(b);
        drop(d);
    }
}
END_TEST

/* A decode far into a long sequence, of one row or with drafts: split by segments, or beyond 64 of them by spans; the bits stay those of
 * one thread. */
START_TEST(long_split)
{
    const struct shape s = {4, 2, 16, 16, 0, 0.25f, 0, true, KRN_F16, 0};
    const uint32_t lengths[] = {513, 5000, 20000, 40000, 70000};
    for (unsigned i = 0; i < 10; i++) {
        const uint32_t rows = i % 2 ? 5 : 1;
        struct shape t = s;
        struct world w;
        struct way way = {1, 64, 8, rows_fast(0) ? rows_fast(0) : krn_ops_get(KRN_ISA_C), 0};
        t.n = lengths[i / 2];
        struct data d = make(&t, i);
        open_world(&w, &t, &way, 1);
        struct krn_attend a = {.ops = way.ops, .q = d.q, .heads = 4, .kv_heads = 2, .dim = 16, .dim_v = 16, .q_head = 16, .out_head = 16, .q_stride = 64, .out_stride = 64,
                               .scale = 0.25f, .sinks = d.sinks, .seqs = w.seqs, .n_seqs = 1, .pages = &w.pages};
        for (uint32_t p = 0; p < t.n; p++) krn_attend_store(&a, 0, p, d.k + p * 32, 16, d.v + p * 32, 16);
        w.seqs[0] = (struct krn_seq){0, rows, t.n - rows, false};
        float *scratch = malloc(krn_attend_scratch(2, 16, 16, false) * sizeof *scratch), one[5 * 64], many[5 * 64];
        size_t slots = krn_attend_slot_floats(&a, 8);
        uint32_t max = krn_attend_items_max(rows, 8);
        float *slot = malloc(slots * sizeof *slot);
        struct krn_attend_work work = {.items = calloc(max, sizeof *work.items)};
        _Atomic uint32_t *left = calloc(max * 2, sizeof *left);
        a.out = one;
        krn_attend_cut(&a, &work, max, 0, 1);
        ck_assert(!work.split && work.n_items == 1);
        for (uint32_t u = 0; u < 2; u++) krn_attend_run(&a, &work, u, scratch, NULL, NULL);
        a.out = many;
        krn_attend_cut(&a, &work, max, slots, 8);
        uint32_t segments = (t.n - 1) / KRN_ATTEND_SEGMENT + 1, spans = (t.n - 1) / KRN_ATTEND_SPAN + 1;
        ck_assert(work.split);
        ck_assert_uint_eq(work.n_items, segments <= 64 ? segments : spans);
        for (uint32_t u = 0, n = work.n_items * 2; u < n; u++) krn_attend_run(&a, &work, (u * 11 + 3) % n, scratch, slot, left);
        ck_assert(rows_equal(one, many, rows * 64));
        free((void *)left);
        free(work.items);
        free(slot);
        free(scratch);
        free(w.tables);
        free(w.pages.pool);
        drop(d);
    }
}
END_TEST

/* What is much of a step's work is split, what stands beside it is not; without room nothing is. */
START_TEST(cut_by_work)
{
    const struct krn_seq seqs[] = {{0, 1, 30, false}, {1, 1, 20 * KRN_ATTEND_SEGMENT - 1, false}, {2, 3, 2 * KRN_ATTEND_SEGMENT, false}};
    const struct krn_attend a = {.heads = 4, .kv_heads = 2, .dim = 16, .dim_v = 16, .seqs = seqs, .n_seqs = 3};
    struct krn_attend_item items[64];
    struct krn_attend_work w = {.items = items};
    krn_attend_cut(&a, &w, 64, krn_attend_slot_floats(&a, 2), 2);
    ck_assert(w.split && w.n_items == 1 + 20 + 3);
    ck_assert(items[0].n_items == 1 && items[0].first == 0 && items[0].seg1 == 1);
    for (uint32_t i = 1; i < 24; i++) {
        uint32_t first = i < 21 ? 1 : 21, rows = i < 21 ? 1 : 3;
        ck_assert(items[i].first == first && items[i].n_items == (i < 21 ? 20 : 3) && items[i].seg0 == i - first && items[i].seg1 == i - first + 1);
        ck_assert_uint_eq(items[i].slot, first == 1 ? (i - 1) * 2 * 2 * 18 : 20 * 2 * 2 * 18 + (i - 21) * 2 * rows * 2 * 18);
    }
    krn_attend_cut(&a, &w, 22, krn_attend_slot_floats(&a, 2), 2); /* items for the longer one only */
    ck_assert(w.split && w.n_items == 22 && items[21].n_items == 1 && items[21].first == 21 && items[21].seg1 == 3);
    krn_attend_cut(&a, &w, 64, 3 * 2 * 6 * 18, 2); /* floats for the shorter one only */
    ck_assert(w.split && w.n_items == 5 && items[1].n_items == 1 && items[2].n_items == 3 && items[2].slot == 0);
    krn_attend_cut(&a, &w, 64, 0, 2);
    ck_assert(!w.split && w.n_items == 3);
}
END_TEST

START_TEST(known)
{
    /* Two keys with equal scores: the mean of their values. A window of 1 sees only the second; a
     * sink of the same score takes a third; cut into single rows nothing changes. */
    const struct krn_ops *c = krn_ops_get(KRN_ISA_C);
    const float q[2] = {1, 1}, k[2] = {0, 0}, v[2] = {2, 4}, sink[1] = {0};
    for (int form = 0; form < 4; form++) {
        struct shape s = {1, 1, 1, 1, form == 1, 1, 0, form == 2, KRN_F32, 2};
        struct data d = {(float *)q, (float *)k, (float *)v, (float *)sink};
        struct way way = {form == 3 ? 1 : 2, 16, 1, c, 0};
        float out[2];
        compute(&s, &way, &d, out);
        ck_assert_float_eq_tol(out[1], form == 1 ? 4.0f : form == 2 ? 2.0f : 3.0f, 1e-6f); /* sink: 6 / 3 */
    }
    /* softcap: scores 100 and 0 under a cap of 1 are 1 and 0: weights e/(e+1). */
    const float q2[2] = {0, 1}, k2[2] = {100, 0}, v2[2] = {1, 0};
    struct shape s = {1, 1, 1, 1, 0, 1, 1, false, KRN_F32, 2};
    struct data d = {(float *)q2, (float *)k2, (float *)v2, NULL};
    struct way way = {2, 16, 1, c, 0};
    float out[2];
    compute(&s, &way, &d, out);
    ck_assert_float_eq_tol(out[1], 0.7310586f, 1e-6f);
}
END_TEST

START_TEST(limits)
{
    /* Scores of 1e30: the largest takes all. A NaN key poisons the rows that see it and no other. */
    enum { T = 40, D = 8 };
    struct shape s = {2, 1, D, D, 0, 1, 0, false, KRN_F32, T};
    struct data d = make(&s, 3);
    float a[T * 2 * D], b[T * 2 * D];
    struct way c = {T, 16, 1, krn_ops_get(KRN_ISA_C), 0}, f = {3, 16, 1, rows_fast(0) ? rows_fast(0) : c.ops, 0};
    for (uint32_t i = 0; i < T * D; i++) d.k[i] *= 1e30f;
    compute(&s, &c, &d, a);
    compute(&s, &f, &d, b);
    ck_assert(rows_equal(a, b, T * 2 * D));
    for (uint32_t i = 0; i < T * 2 * D; i++) ck_assert(isfinite(a[i]));
    drop(d);
    d = make(&s, 4);
    d.k[20 * D + 3] = NAN;
    d.v[30 * D] = NAN;
    compute(&s, &c, &d, a);
    compute(&s, &f, &d, b);
    ck_assert(rows_equal(a, b, T * 2 * D));
    for (uint32_t t = 0; t < T; t++) ck_assert(isnan(a[t * 2 * D]) == (t >= 20));
    drop(d);
}
END_TEST

SUITE("kernels", "attend", core, same_bits, long_split, cut_by_work, known, limits)
