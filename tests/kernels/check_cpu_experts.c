/* tests/kernels/check_cpu_experts.c - routed experts on the CPU: against double precision, equal bits for every instruction set,
 * thread count, company and chunk, only the chosen experts read; bad plans and bad routings refused. */
#include <stdlib.h>
#include "kernels/quantise.h"
#include "kernels/route.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { E = 7, K = 3, IN = 96, MID = 160, OUT = 72, ROWS = 90, VOCAB = 64 };
enum { W_EMBED, W_ROUTER, W_GATE, W_UP = W_GATE + E, W_DOWN = W_UP + E, W_GB = W_DOWN + E, W_UB = W_GB + E, W_DB = W_UB + E, N_W = W_DB + E };
enum { C_H = 0, C_S = C_H + IN, C_R = C_S + 16, C_O = C_R + 16, C_END = C_O + OUT + 8 };

struct model {
    struct krn_weight w[N_W];
    float *plain[N_W];
    void *slot[N_W];
    struct krn_op ops[4];
    bool biases;
};

static void weight(struct model *m, unsigned i, uint32_t rows, uint32_t cols, enum krn_type t, float scale, uint64_t *seed)
{
    size_t bytes = krn_row_bytes(t, cols), size;
    uint8_t *published = malloc(rows * bytes);
    m->plain[i] = malloc((size_t)rows * cols * sizeof(float));
    for (uint32_t r = 0; r < rows; r++) {
        rows_fill(m->plain[i] + r * cols, cols, seed, scale);
        ck_assert(krn_quantise_row(t, m->plain[i] + r * cols, cols, published + r * bytes));
        ck_assert(krn_expand(t, published + r * bytes, cols, m->plain[i] + r * cols));
    }
    m->w[i] = (struct krn_weight){t, rows > 1 ? KRN_TILED : KRN_PLAIN, rows, cols, NULL};
    size = krn_slot_bytes(t, m->w[i].layout, rows, cols);
    m->slot[i] = aligned_alloc(256, (size + 255) & ~(size_t)255);
    if (rows > 1) krn_slot_pack(t, rows, cols, 0, (rows + 15) / 16, published, bytes, m->slot[i]);
    else memcpy(m->slot[i], published, bytes);
    m->w[i].data = m->slot[i];
    free(published);
}

static struct krn_view view(uint32_t base, uint32_t stride, uint32_t heads, uint32_t dim)
{
    return (struct krn_view){.base = base, .stride = stride, .heads = heads, .dim = dim, .head_stride = dim};
}
static struct krn_op *call(struct model *m, unsigned i, enum krn_opcode code, struct krn_view in, struct krn_view out, uint8_t n_in)
{
    struct krn_op *op = &m->ops[i];
    *op = (struct krn_op){.code = code, .layer = 3, .n_in = n_in, .in = {in}, .out = out, .state = KRN_NO_STATE};
    for (int k = 0; k < KRN_OP_WEIGHTS; k++) op->weight[k] = KRN_NO_WEIGHT;
    return op;
}

static struct model *open_model(enum krn_type t, bool biases)
{
    struct model *m = calloc(1, sizeof *m);
    uint64_t s = 3;
    struct krn_view h = view(C_H, IN, 1, IN), scores = view(C_S, 16, 1, E), r = view(C_R, 16, 2, K), o = view(C_O, OUT, 1, OUT);
    m->biases = biases;
    weight(m, W_EMBED, VOCAB, IN, KRN_F32, 1, &s);
    weight(m, W_ROUTER, E, IN, KRN_F32, 0.3f, &s);
    for (unsigned e = 0; e < E; e++) {
        weight(m, W_GATE + e, MID, IN, t, 0.1f, &s);
        weight(m, W_UP + e, MID, IN, t, 0.1f, &s);
        weight(m, W_DOWN + e, OUT, MID, t, 0.1f, &s);
        weight(m, W_GB + e, 1, MID, KRN_BF16, 1, &s);
        weight(m, W_UB + e, 1, MID, KRN_F32, 1, &s);
        weight(m, W_DB + e, 1, OUT, KRN_F16, 1, &s);
    }
    struct krn_op *op = call(m, 0, KRN_EMBED, h, h, 0);
    op->n_weights = 1;
    op->weight[0] = W_EMBED;
    op->u.embed.scale = 1;
    op = call(m, 1, KRN_LINEAR, h, scores, 1);
    op->n_weights = 1;
    op->weight[0] = W_ROUTER;
    op = call(m, 2, KRN_ROUTE, scores, r, 1);
    op->u.route.kind = KRN_ROUTER_SOFTMAX;
    op->u.route.k = K;
    op->u.route.groups = op->u.route.keep = 1;
    op->u.route.norm = true;
    op->u.route.scale = 1.25f;
    op = call(m, 3, KRN_EXPERTS, h, o, 2);
    op->in[1] = r;
    op->n_weights = biases ? 6 : 3;
    for (unsigned k = 0; k < op->n_weights; k++) op->weight[k] = W_GATE + k * E;
    op->u.experts.act = biases ? KRN_ACT_CLAMP_SWIGLU : KRN_ACT_SILU;
    op->u.experts.alpha = 1.702f;
    op->u.experts.limit = 2;
    op->u.experts.n = E;
    return m;
}
static void close_model(struct model *m)
{
    for (int i = 0; i < N_W; i++) {
        free(m->plain[i]);
        free(m->slot[i]);
    }
    free(m);
}

struct way { enum krn_isa isa; enum krn_precision precision; unsigned threads; uint32_t chunk, portion; /* experts of one, 0: all at once */ };
static struct krn_backend_config config_of(const struct way *w)
{
    return (struct krn_backend_config){.isa = w->isa, .precision = w->precision, .threads = w->threads, .rows_max = {ROWS, 1}, .arena_cols = {C_END, 16},
                                       .linear_cols_max = MID, .experts = {E, K, IN, MID, OUT}};
}
struct rig { krn_backend *b; krn_list *first, *second; };
static void open_rig(struct rig *r, const struct model *m, const struct way *w)
{
    struct err e;
    struct krn_backend_config c = config_of(w);
    OK(krn_cpu.open(&r->b, &c, &e));
    OK(krn_cpu.record(r->b, m->ops, 3, m->w, &r->first, &e));
    OK(krn_cpu.record(r->b, m->ops + 3, 1, m->w, &r->second, &e));
}
static void close_rig(struct rig *r)
{
    krn_cpu.list_free(r->first);
    krn_cpu.list_free(r->second);
    krn_cpu.close(r->b);
}

static struct krn_step step_of(const int32_t *tokens, uint32_t n, uint32_t *pos, struct krn_seq *seq)
{
    for (uint32_t i = 0; i < n; i++) pos[i] = i;
    *seq = (struct krn_seq){0, n, 0, false};
    return (struct krn_step){.n_tokens = n, .n_seqs = 1, .tokens = tokens, .pos = pos, .seqs = seq};
}

static void lease(struct model *m, const bool *experts)
{
    for (unsigned k = 0; k < E * 6; k++) m->w[W_GATE + k].data = experts[k % E] ? m->slot[W_GATE + k] : NULL;
}

/* The second list, some of the chosen experts a submit; where the order is free the last come first. */
static void in_portions(struct rig *r, struct model *m, const struct way *w, struct krn_step s, const bool *chosen)
{
    uint32_t list[E], n = 0;
    struct err e;
    for (uint32_t i = 0; i < E; i++)
        if (chosen[i]) list[n++] = i;
    for (uint32_t done = 0, k; done < n; done += k) {
        bool here[E] = {false};
        k = n - done < w->portion ? n - done : w->portion;
        const uint32_t *at = s.n_tokens * K > KRN_PORTION_PAIRS ? list + done : list + n - done - k;
        struct krn_portion p = {at, k, done == 0, done + k == n};
        for (uint32_t i = 0; i < k; i++) here[at[i]] = true;
        lease(m, here);
        s.portion = &p;
        OK(krn_cpu.submit(r->b, r->second, &s, &e));
    }
}

/* Rows of tokens through both lists; experts that no row chose have no bytes while the second one runs. */
static void outputs(struct model *m, const struct way *w, const int32_t *tokens, uint32_t n, float *out, float *ids)
{
    struct rig r;
    struct err e;
    open_rig(&r, m, w);
    for (uint32_t at = 0; at < n; at += w->chunk) {
        uint32_t pos[ROWS], count = n - at < w->chunk ? n - at : w->chunk;
        struct krn_seq seq;
        struct krn_step s = step_of(tokens + at, count, pos, &seq);
        bool chosen[E] = {false};
        OK(krn_cpu.submit(r.b, r.first, &s, &e));
        for (uint32_t i = 0; i < count; i++) {
            const float *id = krn_cpu.row(r.b, &m->ops[2].out, i);
            for (int k = 0; k < K; k++) chosen[(int)id[k]] = true;
            if (ids) memcpy(ids + (at + i) * 2 * K, id, 2 * K * sizeof *id);
        }
        lease(m, chosen);
        if (w->portion) in_portions(&r, m, w, s, chosen);
        else OK(krn_cpu.submit(r.b, r.second, &s, &e));
        for (uint32_t i = 0; i < count; i++) memcpy(out + (at + i) * OUT, krn_cpu.row(r.b, &m->ops[3].out, i), OUT * sizeof *out);
    }
    close_rig(&r);
}

static double glu(const struct model *m, double g, double u)
{
    if (!m->biases) return g / (1 + exp(-g)) * u;
    double h = fmin(g, 2), v = fmax(-2, fmin(2, u));
    return (v + 1) * h / (1 + exp(-1.702f * h));
}
static double d_dot(const float *w, const double *x, uint32_t n)
{
    double s = 0;
    for (uint32_t i = 0; i < n; i++) s += w[i] * x[i];
    return s;
}
static void d_experts(const struct model *m, int32_t token, const float *ids, double *out)
{
    double h[IN], mid[MID];
    for (int i = 0; i < IN; i++) h[i] = m->plain[W_EMBED][token * IN + i];
    for (int i = 0; i < OUT; i++) out[i] = 0;
    for (int k = 0; k < K; k++) {
        int e = (int)ids[k];
        for (int i = 0; i < MID; i++)
            mid[i] = glu(m, d_dot(m->plain[W_GATE + e] + i * IN, h, IN) + (m->biases ? m->plain[W_GB + e][i] : 0), d_dot(m->plain[W_UP + e] + i * IN, h, IN) + (m->biases ? m->plain[W_UB + e][i] : 0));
        for (int i = 0; i < OUT; i++) out[i] += ids[K + k] * (d_dot(m->plain[W_DOWN + e] + i * MID, mid, MID) + (m->biases ? m->plain[W_DB + e][i] : 0));
    }
}

static void make_tokens(int32_t *t)
{
    uint64_t s = 9;
    for (int i = 0; i < ROWS; i++) t[i] = i < ROWS / 2 ? (int32_t)(rows_draw(&s) % VOCAB) : t[0]; /* half of the rows go the same way */
}
static const enum krn_type types[] = {KRN_F32, KRN_BF16, KRN_Q8_0, KRN_Q4_1};

START_TEST(core)
{
    static float out[ROWS * OUT], ids[ROWS * 2 * K];
    int32_t t[ROWS];
    make_tokens(t);
    for (unsigned i = 0; i < 8; i++) {
        struct model *m = open_model(types[i / 2], i & 1);
        for (int p = 0; p < 2; p++) {
            struct way w = {KRN_ISA_AUTO, p ? KRN_PREC_F32 : KRN_PREC_AUTO, 2, ROWS, 0};
            double most = 0, top = 0;
            outputs(m, &w, t, ROWS, out, ids);
            for (int r = 0; r < ROWS; r++) {
                double want[OUT];
                d_experts(m, t[r], ids + r * 2 * K, want);
                for (int c = 0; c < OUT; c++) {
                    most = fmax(most, fabs(out[r * OUT + c] - want[c]));
                    top = fmax(top, fabs(want[c]));
                }
            }
            ck_assert_msg(most / top < (p || i < 4 ? 2e-6 : 2e-2), "%s: off by %g", krn_types[types[i / 2]].name, most / top);
        }
        close_model(m);
    }
}
END_TEST

START_TEST(same_bits)
{
    static float a[ROWS * OUT], b[ROWS * OUT];
    int32_t t[ROWS];
    make_tokens(t);
    for (unsigned i = 0; i < 8; i++) {
        struct model *m = open_model(types[i / 2], i & 1);
        struct way base = {KRN_ISA_C, i & 2 ? KRN_PREC_F32 : KRN_PREC_AUTO, 1, ROWS, 0};
        outputs(m, &base, t, ROWS, a, NULL);
        static const enum krn_isa isas[] = {KRN_ISA_AVX2, KRN_ISA_AVX512, KRN_ISA_C};
        static const struct { unsigned threads; uint32_t chunk, portion; } ways[] = {{1, ROWS, 0}, {2, ROWS, 0}, {1, 1, 0}, {2, 1, 0}, {5, 1, 0}, {2, 7, 0}, {8, 3, 0}, {3, 17, 0}, {2, 39, 0},
                                                                                     {2, ROWS, 1}, {3, ROWS, 4}, {2, 1, 1}, {3, 1, 2}, {2, 17, 3}, {2, 39, E}};
        for (unsigned k = 0; k < 3 * sizeof ways / sizeof *ways; k++) {
            struct way w = {isas[k % 3], base.precision, ways[k / 3].threads, ways[k / 3].chunk, ways[k / 3].portion};
            if (!krn_isa_have(w.isa)) continue;
            outputs(m, &w, t, ROWS, b, NULL);
            ck_assert_msg(rows_equal(a, b, ROWS * OUT), "%s: way %u", krn_types[types[i / 2]].name, k);
        }
        close_model(m);
    }
}
END_TEST

START_TEST(errors)
{
    struct model *m = open_model(KRN_F32, false);
    struct way w = {KRN_ISA_AUTO, KRN_PREC_F32, 2, ROWS, 0};
    struct krn_backend_config c = config_of(&w);
    struct rig r;
    struct err e;
    krn_list *l;
    uint32_t pos[ROWS];
    struct krn_seq seq;
    int32_t t[ROWS];
    make_tokens(t);
    struct krn_step s = step_of(t, 2, pos, &seq);
    open_rig(&r, m, &w);
    OK(krn_cpu.submit(r.b, r.first, &s, &e));
    float *id = (float *)krn_cpu.row(r.b, &m->ops[2].out, 1), was = id[0];
    for (float bad = -1; bad <= E; bad += E + 1) {
        id[0] = bad;
        FAILS(ERR_INVALID, "row 1 is routed to expert", krn_cpu.submit(r.b, r.second, &s, &e));
    }
    id[0] = NAN;
    FAILS(ERR_INVALID, "row 1 is routed to expert nan", krn_cpu.submit(r.b, r.second, &s, &e));
    id[0] = was;
    m->w[W_DOWN + (int)was].data = NULL;
    FAILS(ERR_INVALID, "is not leased", krn_cpu.submit(r.b, r.second, &s, &e));
    struct krn_portion p = {(uint32_t[]){E}, 1, true, false};
    s.portion = &p;
    FAILS(ERR_INVALID, "no row chose expert", krn_cpu.submit(r.b, r.second, &s, &e));
    s.portion = NULL;
    close_rig(&r);

    OK(krn_cpu.open(&r.b, &c, &e));
    FAILS(ERR_INVALID, "written in the same list", krn_cpu.record(r.b, m->ops, 4, m->w, &l, &e));
    m->w[W_UP + 2].rows = MID - 16;
    FAILS(ERR_INVALID, "do not fit together", krn_cpu.record(r.b, m->ops + 3, 1, m->w, &l, &e));
    m->w[W_UP + 2].rows = MID;
    m->w[W_UP + 2].type = KRN_BF16;
    FAILS(ERR_INVALID, "in different ways", krn_cpu.record(r.b, m->ops + 3, 1, m->w, &l, &e));
    m->w[W_UP + 2].type = KRN_F32;
    m->ops[2].u.route.k = E + 1;
    FAILS(ERR_INVALID, "", krn_cpu.record(r.b, m->ops, 3, m->w, &l, &e));
    krn_cpu.close(r.b);
    c.experts.mid = MID - 1;
    OK(krn_cpu.open(&r.b, &c, &e));
    FAILS(ERR_INVALID, "larger than the backend was opened for", krn_cpu.record(r.b, m->ops + 3, 1, m->w, &l, &e));
    krn_cpu.close(r.b);
    close_model(m);
}
END_TEST

/* A row that is not a number spoils itself alone. */
START_TEST(broken_row)
{
    struct model *m = open_model(KRN_Q8_0, false);
    struct way w = {KRN_ISA_AUTO, KRN_PREC_AUTO, 2, ROWS, 0};
    static float good[ROWS * OUT], bad[ROWS * OUT];
    int32_t t[ROWS];
    make_tokens(t);
    outputs(m, &w, t, ROWS, good, NULL);
    t[5] = (t[5] + 1) % VOCAB;
    for (unsigned k = 0; k < E * 6; k++) m->w[W_GATE + k].data = m->slot[W_GATE + k];
    float *row = malloc(IN * sizeof *row);
    for (int i = 0; i < IN; i++) row[i] = NAN;
    for (int i = 0; i < IN; i++) memcpy((float *)m->slot[W_EMBED] + ((size_t)(t[5] / 16) * IN + i) * 16 + t[5] % 16, &row[i], sizeof *row);
    outputs(m, &w, t, ROWS, bad, NULL);
    for (int r = 0; r < ROWS; r++) {
        if (t[r] == t[5]) ck_assert(isnan(bad[r * OUT]));
        else ck_assert(rows_equal(good + r * OUT, bad + r * OUT, OUT));
    }
    free(row);
    close_model(m);
}
END_TEST

SUITE("kernels", "cpu_experts", core, same_bits, errors, broken_row)
