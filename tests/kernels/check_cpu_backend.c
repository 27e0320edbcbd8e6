/* tests/kernels/check_cpu_backend.c - record, submit, row on a small made-up decoder: against double precision, and equal bits
 * for every instruction set, number of threads, chunk, page size and company; bad plans and bad steps refused. */
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu_internal.h"
#include "kernels/quantise.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { VOCAB = 96, H = 64, HEADS = 4, KV = 2, D = 16, FF = 4128, LAYERS = 2, N_FREQ = 6, ROWS = 48 };
enum { W_EMBED, W_NORM, W_HEAD, W_LAYER, W_N1 = 0, W_Q, W_K, W_V, W_O, W_N2, W_GATE, W_UP, W_DOWN, W_QB, W_EACH };
enum { N_WEIGHTS = W_LAYER + LAYERS * W_EACH, OPS_MAX = 64 };
/* Columns of the token arena and of the picked arena. */
enum { C_X = 0, C_H = C_X + H, C_Q = C_H + H, C_K = C_Q + HEADS * D, C_V = C_K + KV * D, C_A = C_V + KV * D, C_G = C_A + H, C_U = C_G + FF, C_END = C_U + FF };
enum { P_X = 0, P_L = H, P_END = H + VOCAB };

struct model {
    struct krn_weight w[N_WEIGHTS];
    float *plain[N_WEIGHTS];       /* what the stored weights stand for, as f32 rows */
    void *slot[N_WEIGHTS];
    struct krn_op ops[OPS_MAX]; size_t n;
    double inv_freq[N_FREQ];
    struct krn_rope_table rope;
};

static void weight(struct model *m, unsigned i, uint32_t rows, uint32_t cols, enum krn_type t, float scale, uint64_t *seed)
{
    size_t bytes = krn_row_bytes(t, cols);
    uint8_t *published = malloc(rows * bytes);
    m->plain[i] = malloc((size_t)rows * cols * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        float *row = m->plain[i] + (size_t)r * cols;
        rows_fill(row, cols, seed, scale);
        ck_assert(krn_quantise_row(t, row, cols, published + r * bytes));
        ck_assert(krn_expand(t, published + r * bytes, cols, row));
    }
    m->w[i] = (struct krn_weight){t, rows > 1 ? KRN_TILED : KRN_PLAIN, rows, cols, NULL};
    size_t n = krn_slot_bytes(t, m->w[i].layout, rows, cols);
    m->slot[i] = aligned_alloc(256, (n + 255) & ~(size_t)255);
    if (rows > 1) krn_slot_pack(t, rows, cols, 0, (rows + 15) / 16, published, bytes, m->slot[i]);
    else memcpy(m->slot[i], published, bytes);
    m->w[i].data = m->slot[i];
    free(published);
}

static struct krn_view view(uint32_t base, uint32_t width, uint32_t heads, enum krn_rows rows)
{
    return (struct krn_view){.base = base, .stride = width, .heads = heads, .dim = width / heads, .head_stride = width / heads, .rows = rows};
}
static struct krn_view tok(uint32_t base, uint32_t width) { return view(base, width, 1, KRN_ROWS_TOKENS); }
static struct krn_op *call(struct model *m, enum krn_opcode code, struct krn_view out, unsigned n_in, struct krn_view a, struct krn_view b)
{
    struct krn_op *op = &m->ops[m->n++];
    *op = (struct krn_op){.code = code, .layer = KRN_NO_LAYER, .n_in = (uint8_t)n_in, .in = {a, b}, .out = out, .state = KRN_NO_STATE};
    for (int i = 0; i < KRN_OP_WEIGHTS; i++) op->weight[i] = KRN_NO_WEIGHT;
    return op;
}
static void linear(struct model *m, struct krn_view out, struct krn_view in, uint32_t w, uint32_t bias)
{
    struct krn_op *op = call(m, KRN_LINEAR, out, 1, in, in);
    op->n_weights = 2;
    op->weight[0] = w;
    op->weight[1] = bias;
}
static void norm(struct model *m, struct krn_view out, struct krn_view in, uint32_t w)
{
    struct krn_op *op = call(m, KRN_RMSNORM, out, 1, in, in);
    op->n_weights = 1;
    op->weight[0] = w;
    op->u.norm.eps = 1e-5f;
}

static void layer(struct model *m, uint32_t l)
{
    uint32_t w = W_LAYER + l * W_EACH;
    struct krn_view x = tok(C_X, H), h = tok(C_H, H), q = view(C_Q, HEADS * D, HEADS, KRN_ROWS_TOKENS), k = view(C_K, KV * D, KV, KRN_ROWS_TOKENS), v = view(C_V, KV * D, KV, KRN_ROWS_TOKENS), a = tok(C_A, H);
    norm(m, h, x, w + W_N1);
    linear(m, tok(C_Q, HEADS * D), h, w + W_Q, w + W_QB);
    linear(m, tok(C_K, KV * D), h, w + W_K, KRN_NO_WEIGHT);
    linear(m, tok(C_V, KV * D), h, w + W_V, KRN_NO_WEIGHT);
    call(m, KRN_ROPE, q, 1, q, q)->u.rope.pairs = l ? KRN_PAIRS_ADJACENT : KRN_PAIRS_HALVES;
    call(m, KRN_ROPE, k, 1, k, k)->u.rope.pairs = l ? KRN_PAIRS_ADJACENT : KRN_PAIRS_HALVES;
    struct krn_op *op = call(m, KRN_ATTEND, view(C_A, H, HEADS, KRN_ROWS_TOKENS), 3, q, k);
    op->in[2] = v;
    op->state = 0;
    op->state_layer = l;
    op->u.attend.scale = 0.25f;
    op->u.attend.window = l ? 20 : 0;
    linear(m, h, a, w + W_O, KRN_NO_WEIGHT);
    call(m, KRN_ADD, x, 2, x, h);
    norm(m, h, x, w + W_N2);
    linear(m, tok(C_G, FF), h, w + W_GATE, KRN_NO_WEIGHT);
    linear(m, tok(C_U, FF), h, w + W_UP, KRN_NO_WEIGHT);
    call(m, KRN_GLU, tok(C_G, FF), 2, tok(C_G, FF), tok(C_U, FF))->u.glu.act = KRN_ACT_SILU;
    linear(m, a, tok(C_G, FF), w + W_DOWN, KRN_NO_WEIGHT);
    call(m, KRN_ADD, x, 2, x, a);
}

static struct model *open_model(enum krn_type t)
{
    struct model *m = calloc(1, sizeof *m);
    uint64_t s = 21;
    weight(m, W_EMBED, VOCAB, H, t, 1, &s);
    weight(m, W_NORM, 1, H, KRN_F32, 1, &s);
    weight(m, W_HEAD, VOCAB, H, t, 0.1f, &s);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct { uint32_t rows, cols; } shape[W_EACH] = {{1, H}, {HEADS * D, H}, {KV * D, H}, {KV * D, H}, {H, HEADS * D}, {1, H}, {FF, H}, {FF, H}, {H, FF}, {1, HEADS * D}};
        for (unsigned i = 0; i < W_EACH; i++)
            weight(m, W_LAYER + l * W_EACH + i, shape[i].rows, shape[i].cols, shape[i].rows == 1 ? (i == W_N2 ? KRN_BF16 : KRN_F32) : t, shape[i].rows == 1 ? 1 : 0.15f, &s);
    }
    struct krn_op *op = call(m, KRN_EMBED, tok(C_X, H), 0, tok(C_X, H), tok(C_X, H));
    op->n_weights = 1;
    op->weight[0] = W_EMBED;
    op->u.scalar.c = 2;
    for (uint32_t l = 0; l < LAYERS; l++) layer(m, l);
    struct krn_view px = view(P_X, H, 1, KRN_ROWS_PICKED), pl = view(P_L, VOCAB, 1, KRN_ROWS_PICKED);
    call(m, KRN_PICK, px, 1, tok(C_X, H), tok(C_X, H));
    norm(m, px, px, W_NORM);
    linear(m, pl, px, W_HEAD, KRN_NO_WEIGHT);
    call(m, KRN_SOFTCAP, pl, 1, pl, pl)->u.scalar.c = 30;
    for (int j = 0; j < N_FREQ; j++) m->inv_freq[j] = pow(100, -j / 6.0);
    m->rope = (struct krn_rope_table){.n_freq = N_FREQ, .inv_freq = m->inv_freq, .mscale = 1};
    return m;
}
static void close_model(struct model *m)
{
    for (int i = 0; i < N_WEIGHTS; i++) {
        free(m->plain[i]);
        free(m->slot[i]);
    }
    free(m);
}

/* ---- running it ------------------------------------------------------------------------------------------------------ */
struct way { enum krn_isa isa; enum krn_precision precision; unsigned threads; uint32_t chunk, page, company; bool lists; };
struct run {
    krn_backend *b;
    krn_list *list[OPS_MAX]; size_t n_lists;
    struct krn_pages pages;
    uint32_t *tables;
};

static struct krn_backend_config config_of(const struct model *m, const struct way *w)
{
    return (struct krn_backend_config){.isa = w->isa, .precision = w->precision, .threads = w->threads, .rows_max = {ROWS * 4, ROWS * 4}, .arena_cols = {C_END, P_END},
                                       .ropes = &m->rope, .n_ropes = 1, .linear_cols_max = FF};
}
static void open_run(struct run *r, const struct model *m, const struct way *w)
{
    struct err e;
    struct krn_backend_config c = config_of(m, w);
    uint32_t n_pages = (w->company + 1) * (ROWS / w->page + 1);
    memset(r, 0, sizeof *r);
    OK(krn_cpu.open(&r->b, &c, &e));
    /* One list for all, or one for each layer as an engine would have it. */
    for (size_t at = 0, n; at < m->n; at += n) {
        n = m->n;
        if (w->lists) n = at == 0 ? 1 : at < m->n - 4 ? (m->n - 5) / LAYERS : 4;
        OK(krn_cpu.record(r->b, m->ops + at, n, m->w, &r->list[r->n_lists++], &e));
    }
    r->pages.layout = (struct krn_kv_layout){.type = KRN_F16, .page_tokens = w->page, .n_layers = LAYERS, .heads = KV, .dim_k = D, .dim_v = D};
    ck_assert(krn_kv_layout_init(&r->pages.layout));
    r->pages.pool = aligned_alloc(64, n_pages * r->pages.layout.page_bytes);
    memset(r->pages.pool, 0xff, n_pages * r->pages.layout.page_bytes);
    r->tables = malloc(n_pages * sizeof *r->tables);
    for (uint32_t i = 0; i < n_pages; i++) r->tables[i] = n_pages - 1 - i;
    r->pages.tables = r->tables;
    r->pages.table_stride = ROWS / w->page + 1;
}
static void close_run(struct run *r)
{
    for (size_t i = 0; i < r->n_lists; i++) krn_cpu.list_free(r->list[i]);
    krn_cpu.close(r->b);
    free(r->tables);
    free(r->pages.pool);
}

/* Logits [n][VOCAB] of tokens[n], in chunks, with `company` other sequences beside. */
static void logits(const struct model *m, const struct way *w, const int32_t *tokens, uint32_t n, float *out)
{
    struct run r;
    struct err e;
    uint32_t me = w->company / 2;
    open_run(&r, m, w);
    for (uint32_t pos = 0; pos < n; pos += w->chunk) {
        int32_t t[ROWS * 4];
        uint32_t p[ROWS * 4], picks[ROWS], row = 0, mine = 0, count = n - pos < w->chunk ? n - pos : w->chunk;
        struct krn_seq seqs[4];
        for (uint32_t s = 0; s <= w->company; s++) {
            seqs[s] = (struct krn_seq){row, count, pos, false};
            if (s == me) mine = row;
            for (uint32_t i = 0; i < count; i++, row++) {
                t[row] = s == me ? tokens[pos + i] : (int32_t)((pos + i) * 31 + s) % VOCAB;
                p[row] = pos + i;
                if (s == me) picks[i] = row;
            }
        }
        struct krn_step step = {.n_tokens = row, .n_picks = count, .n_seqs = w->company + 1, .n_groups = 1, .tokens = t, .pos = p, .picks = picks, .seqs = seqs, .groups = &r.pages};
        for (size_t i = 0; i < r.n_lists; i++) {
            OK(krn_cpu.submit(r.b, r.list[i], &step, &e));
            OK(krn_cpu.wait(r.b, &e));
        }
        ck_assert_uint_lt(mine, ROWS * 4);
        struct krn_view v = view(P_L, VOCAB, 1, KRN_ROWS_PICKED);
        for (uint32_t i = 0; i < count; i++) memcpy(out + (pos + i) * VOCAB, krn_cpu.row(r.b, &v, i), VOCAB * sizeof *out);
    }
    close_run(&r);
}

/* ---- the same in double ---------------------------------------------------------------------------------------------- */
static void d_norm(double *y, const double *x, const float *w)
{
    double ss = 0;
    for (int i = 0; i < H; i++) ss += x[i] * x[i];
    for (int i = 0; i < H; i++) y[i] = x[i] / sqrt(ss / H + 1e-5f) * w[i];
}
static void d_linear(double *y, const double *x, const float *w, const float *bias, uint32_t rows, uint32_t cols)
{
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = bias ? bias[r] : 0;
        for (uint32_t c = 0; c < cols; c++) y[r] += x[c] * w[(size_t)r * cols + c];
    }
}
static void d_rope(const struct model *m, double *x, int heads, uint32_t pos, bool adjacent)
{
    for (int h = 0; h < heads; h++, x += D)
        for (int j = 0; j < N_FREQ; j++) {
            double *a = &x[adjacent ? 2 * j : j], *b = &x[adjacent ? 2 * j + 1 : j + N_FREQ], c = cos(pos * m->inv_freq[j]), s = sin(pos * m->inv_freq[j]), t = *a;
            *a = t * c - *b * s;
            *b = *b * c + t * s;
        }
}
static void d_logits(const struct model *m, const int32_t *tokens, uint32_t n, double *out)
{
    static double ks[LAYERS][ROWS][KV * D], vs[LAYERS][ROWS][KV * D];
    for (uint32_t t = 0; t < n; t++) {
        double x[H], h[H], q[HEADS * D], a[H], g[FF], u[FF], p[ROWS];
        for (int i = 0; i < H; i++) x[i] = 2.0 * m->plain[W_EMBED][tokens[t] * H + i];
        for (int l = 0; l < LAYERS; l++) {
            float *const *w = m->plain + W_LAYER + l * W_EACH;
            d_norm(h, x, w[W_N1]);
            d_linear(q, h, w[W_Q], w[W_QB], HEADS * D, H);
            d_linear(ks[l][t], h, w[W_K], NULL, KV * D, H);
            d_linear(vs[l][t], h, w[W_V], NULL, KV * D, H);
            d_rope(m, q, HEADS, t, l);
            d_rope(m, ks[l][t], KV, t, l);
            for (int i = 0; i < HEADS * D; i++) {
                int head = i / D, kv = head / (HEADS / KV);
                double sum = 0, o = 0;
                for (uint32_t k = l && t + 1 > 20 ? t + 1 - 20 : 0; k <= t; k++) {
                    double s = 0;
                    for (int d = 0; d < D; d++) s += q[head * D + d] * ks[l][k][kv * D + d];
                    sum += p[k] = exp(0.25 * s);
                    o += p[k] * vs[l][k][kv * D + i % D];
                }
                a[i] = o / sum;
            }
            d_linear(h, a, w[W_O], NULL, H, HEADS * D);
            for (int i = 0; i < H; i++) x[i] += h[i];
            d_norm(h, x, w[W_N2]);
            d_linear(g, h, w[W_GATE], NULL, FF, H);
            d_linear(u, h, w[W_UP], NULL, FF, H);
            for (int i = 0; i < FF; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
            d_linear(h, g, w[W_DOWN], NULL, H, FF);
            for (int i = 0; i < H; i++) x[i] += h[i];
        }
        d_norm(h, x, m->plain[W_NORM]);
        d_linear(out + t * VOCAB, h, m->plain[W_HEAD], NULL, VOCAB, H);
        for (int i = 0; i < VOCAB; i++) out[t * VOCAB + i] = 30 * tanh(out[t * VOCAB + i] / 30);
    }
}

static void make_tokens(int32_t *t)
{
    uint64_t s = 77;
    for (int i = 0; i < ROWS; i++) t[i] = (int32_t)(rows_draw(&s) % VOCAB);
}
static double error_of(const float *got, const double *want)
{
    double top = 0, most = 0;
    for (int i = 0; i < ROWS * VOCAB; i++) {
        double d = fabs(got[i] - want[i]);
        if (!(d <= most)) most = d;
        top = fmax(top, fabs(want[i]));
    }
    return most / top;
}

START_TEST(core)
{
    static float out[ROWS * VOCAB];
    static double want[ROWS * VOCAB];
    int32_t t[ROWS];
    const enum krn_type types[] = {KRN_F32, KRN_BF16, KRN_Q8_0};
    make_tokens(t);
    for (int i = 0; i < 3; i++) {
        struct model *m = open_model(types[i]);
        d_logits(m, t, ROWS, want);
        /* The bar leaves room for keys and values in f16 (2^-11 each); with int8 activations for their rounding. */
        struct way w = {KRN_ISA_AUTO, KRN_PREC_F32, 2, 16, 16, 0, false};
        logits(m, &w, t, ROWS, out);
        ck_assert_msg(error_of(out, want) < 2e-3, "%s: off by %g", krn_types[types[i]].name, error_of(out, want));
        w.precision = KRN_PREC_AUTO;
        logits(m, &w, t, ROWS, out);
        ck_assert_msg(error_of(out, want) < (types[i] == KRN_Q8_0 ? 5e-2 : 2e-3), "%s: off by %g", krn_types[types[i]].name, error_of(out, want));
        close_model(m);
    }
}
END_TEST

START_TEST(same_bits)
{
    static float a[ROWS * VOCAB], b[ROWS * VOCAB];
    int32_t t[ROWS];
    const enum krn_type types[] = {KRN_Q8_0, KRN_F32};
    make_tokens(t);
    for (int i = 0; i < 2; i++) {
        struct model *m = open_model(types[i]);
        struct way base = {KRN_ISA_C, KRN_PREC_AUTO, 1, ROWS, 16, 0, false};
        logits(m, &base, t, ROWS, a);
        for (int k = 0; k < 14; k++) {
            const enum krn_isa isas[] = {KRN_ISA_AVX2, KRN_ISA_AVX512, KRN_ISA_AUTO, KRN_ISA_C};
            static const struct way ways[14] = {{0, 0, 1, 48, 16, 0, 0}, {0, 0, 2, 48, 64, 0, 0}, {0, 0, 1, 1, 16, 0, 1}, {0, 0, 2, 1, 16, 0, 1}, {0, 0, 2, 7, 64, 0, 1}, {0, 0, 5, 7, 16, 0, 0}, {0, 0, 3, 1, 16, 3, 1},
                                                {0, 0, 2, 13, 16, 3, 1}, {0, 0, 2, 1, 64, 1, 0}, {0, 0, 8, 2, 16, 2, 0}, {0, 0, 2, 48, 16, 3, 1}, {0, 0, 1, 5, 64, 3, 1}, {0, 0, 4, 3, 32, 0, 0}, {0, 0, 2, 47, 16, 1, 0}};
            struct way w = ways[k];
            w.isa = isas[k % 4];
            w.precision = base.precision;
            if (!krn_isa_have(w.isa)) continue; /* rows_fast says SKIP */
            logits(m, &w, t, ROWS, b);
            ck_assert_msg(rows_equal(a, b, ROWS * VOCAB), "%s: way %d", krn_types[types[i]].name, k);
        }
        close_model(m);
    }
    rows_fast(9);
}
END_TEST

/* Rope tables follow the positions, also when only they change between two steps of the same list. */
START_TEST(positions)
{
    struct model *m = open_model(KRN_F32);
    struct way w = {KRN_ISA_AUTO, KRN_PREC_AUTO, 2, 1, 16, 0, false};
    struct run r;
    struct err e;
    float first[H], again[H], third[H];
    const struct krn_view q = view(C_Q, HEADS * D, HEADS, KRN_ROWS_TOKENS);
    open_run(&r, m, &w);
    float *out[3] = {first, again, third};
    for (int i = 0; i < 3; i++) {
        const int32_t t = 5;
        const uint32_t pos = i == 1 ? 9 : 0, pick = 0;
        const struct krn_seq seq = {0, 1, 0, false};
        struct krn_step step = {.n_tokens = 1, .n_picks = 1, .n_seqs = 1, .n_groups = 1, .tokens = &t, .pos = &pos, .picks = &pick, .seqs = &seq, .groups = &r.pages};
        OK(krn_cpu.submit(r.b, r.list[0], &step, &e));
        memcpy(out[i], krn_cpu.row(r.b, &q, 0), sizeof first);
    }
    ck_assert(memcmp(first, again, sizeof first) && !memcmp(first, third, sizeof first));
    close_run(&r);
    close_model(m);
}
END_TEST

START_TEST(errors)
{
    struct err e;
    struct model *m = open_model(KRN_Q8_0);
    struct way w = {KRN_ISA_AUTO, KRN_PREC_AUTO, 2, 4, 16, 0, false};
    struct krn_backend_config c = config_of(m, &w);
    struct run r;
    krn_backend *b;
    krn_list *l;
    open_run(&r, m, &w);

    c.threads = 0;
    FAILS(ERR_INVALID, "threads", krn_cpu.open(&b, &c, &e));
    c = config_of(m, &w);
    if (!krn_isa_have(KRN_ISA_AVX512)) {
        c.isa = KRN_ISA_AVX512;
        FAILS(ERR_UNSUPPORTED, "avx512", krn_cpu.open(&b, &c, &e));
    }
    const struct krn_op saved = m->ops[0];
    m->ops[0].code = KRN_LAYERNORM;
    FAILS(ERR_UNSUPPORTED, "layernorm", krn_cpu.record(r.b, m->ops, m->n, m->w, &l, &e));
    m->ops[0] = saved;
    m->ops[0].out.base = C_END;
    FAILS(ERR_INVALID, "beyond", krn_cpu.record(r.b, m->ops, m->n, m->w, &l, &e));
    m->ops[0] = saved;
    m->w[W_EMBED].cols = 32;
    FAILS(ERR_INVALID, "embed", krn_cpu.record(r.b, m->ops, m->n, m->w, &l, &e));
    m->w[W_EMBED].cols = H;

    int32_t t[2] = {1, 2};
    uint32_t pos[2] = {0, 1}, pick = 0;
    struct krn_seq seq = {0, 2, 0, false};
    struct krn_step good = {.n_tokens = 2, .n_picks = 1, .n_seqs = 1, .n_groups = 1, .tokens = t, .pos = pos, .picks = &pick, .seqs = &seq, .groups = &r.pages}, s = good;
    OK(krn_cpu.submit(r.b, r.list[0], &s, &e));
    t[1] = VOCAB;
    FAILS(ERR_INVALID, "token 96", krn_cpu.submit(r.b, r.list[0], &s, &e));
    t[1] = -1;
    FAILS(ERR_INVALID, "token -1", krn_cpu.submit(r.b, r.list[0], &s, &e));
    t[1] = 2;
    pick = 2;
    FAILS(ERR_INVALID, "picked row 2", krn_cpu.submit(r.b, r.list[0], &s, &e));
    pick = 0;
    s.n_tokens = ROWS * 4 + 1;
    FAILS(ERR_LIMIT, "opened for", krn_cpu.submit(r.b, r.list[0], &s, &e));
    s = good;
    seq.count = 1;
    FAILS(ERR_INVALID, "1 of 2 rows", krn_cpu.submit(r.b, r.list[0], &s, &e));
    seq = (struct krn_seq){0, 2, ROWS + 16, false};
    FAILS(ERR_INVALID, "beyond its table", krn_cpu.submit(r.b, r.list[0], &s, &e));
    seq.pos0 = 0;
    r.tables[0] = KRN_NO_PAGE;
    FAILS(ERR_INVALID, "free", krn_cpu.submit(r.b, r.list[0], &s, &e));
    r.tables[0] = 0;
    s.n_groups = 0;
    FAILS(ERR_INVALID, "KV group", krn_cpu.submit(r.b, r.list[0], &s, &e));
    s = good;
    m->w[W_HEAD].data = NULL;
    FAILS(ERR_INVALID, "leased", krn_cpu.submit(r.b, r.list[0], &s, &e));
    m->w[W_HEAD].data = m->slot[W_HEAD];
    OK(krn_cpu.submit(r.b, r.list[0], &s, &e));
    close_run(&r);
    close_model(m);
}
END_TEST

START_TEST(no_memory)
{
    if (!alloc_fail_works()) {
        printf("SKIP no_memory: the sanitizer's allocator stays\n");
        return;
    }
    struct err e;
    struct model *m = open_model(KRN_Q8_0);
    struct way w = {KRN_ISA_AUTO, KRN_PREC_AUTO, 2, 4, 16, 0, false};
    struct krn_backend_config c = config_of(m, &w);
    for (long n = 0, done = 0; !done; n++) {
        krn_backend *b = NULL;
        krn_list *l = NULL;
        alloc_fail_at(n);
        int rc = krn_cpu.open(&b, &c, &e);
        if (!rc) rc = krn_cpu.record(b, m->ops, m->n, m->w, &l, &e);
        done = !alloc_fail_end();
        ck_assert_msg(done ? rc == 0 : rc == ERR_NOMEM, "allocation %ld: %s", n, err_name(rc));
        krn_cpu.list_free(l);
        krn_cpu.close(b);
    }
    close_model(m);
}
END_TEST

/* Ops on rows need no barrier between them as long as row r of what they share is one place: registers that overlap from another
 * column on have other rows there. */
START_TEST(order)
{
    struct err e;
    static const struct { uint32_t written; bool waits; } cases[] = {{64, false}, {48, true}, {96, true}, {0, false}, {128, false}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct krn_op ops[2] = {{.code = KRN_COPY, .n_in = 1, .in = {tok(64, 64)}, .out = tok(192, 64), .state = KRN_NO_STATE},
                                {.code = KRN_SCALE, .n_in = 1, .in = {tok(192, 64)}, .out = tok(cases[i].written, 64), .state = KRN_NO_STATE, .u.scalar.c = 2}};
        struct krn_backend_config c = {.isa = KRN_ISA_C, .threads = 2, .rows_max = {8, 1}, .arena_cols = {256, 1}};
        krn_backend *b;
        krn_list *l;
        OK(krn_cpu.open(&b, &c, &e));
        OK(krn_cpu.record(b, ops, 2, NULL, &l, &e));
        ck_assert_msg((l->ops[1].barrier & 1) == cases[i].waits, "column %u", cases[i].written);
        krn_cpu.list_free(l);
        krn_cpu.close(b);
    }
}
END_TEST

START_TEST(supports)
{
    ck_assert_int_eq(krn_cpu.supports(KRN_GLU, KRN_F32), KRN_FAST);
    ck_assert_int_eq(krn_cpu.supports(KRN_LINEAR, KRN_Q4_1), KRN_FAST);
    ck_assert_int_eq(krn_cpu.supports(KRN_LINEAR, KRN_F8_E4M3) == KRN_FAST, 0);
    ck_assert_int_eq(krn_cpu.supports(KRN_EMBED, KRN_I64), KRN_MISSING);
    ck_assert_int_eq(krn_cpu.supports(KRN_LAYERNORM, KRN_F32), KRN_MISSING);
    for (int i = 0; i < KRN_OP_COUNT; i++) ck_assert_str_ne(krn_op_name((enum krn_opcode)i), "?");
    ck_assert_str_eq(krn_op_name(KRN_OP_COUNT), "?");
}
END_TEST

SUITE("kernels", "cpu_backend", core, same_bits, positions, errors, no_memory, order, supports)
