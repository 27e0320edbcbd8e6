/* tests/kernels/check_gpu.c - the Vulkan backend against plain C: every operator and weight type at odd sizes, the same bits whatever the
 * chunk, company and page size, steps and devices that cannot be, counters. Runs on the first device (a software driver will do), with
 * the validation layer where it is there: it must stay silent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu.h"
#include "kernels/quantise.h"
#include "tests/support/rows.h"
#include "tests/support/scales.h"
#include "tests/support/suite.h"
#if __has_include(<vulkan/vulkan.h>)
#include "kernels/gpu_internal.h"
#define HAVE_HEADERS 1
#endif

enum { ROWS = 640, PICKS = 4, COLS = 3072, PICK_COLS = 128, VOCAB = 48, WEIGHTS = 256, OPS = 16, PAGES = 96 };
enum { KV = 2, DIM = 20, DIM_V = 12, STRIDE = 44 };

struct rig {
    const struct krn_backend_api *api[2];
    krn_backend *b[2];
    struct krn_pool pool;
    struct krn_weight w[WEIGHTS]; void *data[WEIGHTS]; uint32_t n_w;
    struct krn_op ops[OPS]; size_t n;
    uint32_t cols;                 /* of the arena, given out */
    struct krn_rope_table rope; double inv_freq[5];
    uint8_t *pages;                /* of the CPU */
    uint32_t tables[3 * STRIDE];
    uint64_t seed;
};

/* Drivers and layers lose a few bytes of their own, in modules that are gone when leaks are counted: nothing to name in a suppression. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

static bool have_device(void)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e;
    unsigned n;
    if (!gpu_list(g, GPU_DEVICES_MAX, &n, &e) && !g[0].missing[0]) return true;
    printf("SKIP %s\n", g[0].missing[0] && n ? g[0].missing : e.msg);
    return false;
}

static struct krn_device device_of(struct rig *r)
{
    return (struct krn_device){.validate = true, .pools = &r->pool, .n_pools = 1, .seqs_max = 3, .without = GPU_NO_LARGE_REGIONS};
}
static struct krn_backend_config config_of(const struct rig *r)
{
    return (struct krn_backend_config){.isa = KRN_ISA_C, .precision = KRN_PREC_F32, .threads = 1, .rows_max = {ROWS, PICKS}, .arena_cols = {COLS, PICK_COLS},
                                       .ropes = &r->rope, .n_ropes = 1, .linear_cols_max = 1024};
}

static struct rig *open_rig(enum krn_type kv, uint32_t page)
{
    struct rig *r = calloc(1, sizeof *r);
    struct err e;
    r->api[0] = &krn_cpu;
    r->api[1] = &krn_vulkan;
    r->seed = 7;
    r->pool = (struct krn_pool){.layout = {.type = kv, .page_tokens = page, .n_layers = 2, .heads = KV, .dim_k = DIM, .dim_v = DIM_V}, .n_pages = PAGES, .table_stride = STRIDE};
    ck_assert(krn_kv_layout_init(&r->pool.layout));
    for (int j = 0; j < 5; j++) r->inv_freq[j] = pow(50, -j / 5.0);
    r->rope = (struct krn_rope_table){.n_freq = 5, .inv_freq = r->inv_freq, .mscale = 1.25f};
    struct krn_backend_config c = config_of(r);
    struct krn_device d = device_of(r);
    OK(krn_cpu.open(&r->b[0], &c, &e));
    c.device = &d;
    int rc = krn_vulkan.open(&r->b[1], &c, &e);
    if (rc == ERR_NOTFOUND && strstr(e.msg, "validation")) {
        printf("SKIP validation: %s\n", e.msg);
        d.validate = false;
        rc = krn_vulkan.open(&r->b[1], &c, &e);
    }
    ck_assert_msg(!rc, "%s", e.msg);
    r->pages = malloc(PAGES * r->pool.layout.page_bytes);
    memset(r->pages, 0xff, PAGES * r->pool.layout.page_bytes);
    for (uint32_t i = 0; i < 3 * STRIDE; i++) r->tables[i] = (i * 7 + 3) % PAGES;
    return r;
}
static void close_rig(struct rig *r)
{
    struct krn_counters n;
    krn_vulkan.counters(r->b[1], &n);
    ck_assert_uint_eq(n.messages, 0);
    krn_vulkan.close(r->b[1]);
    krn_cpu.close(r->b[0]);
    for (uint32_t i = 0; i < r->n_w; i++) free(r->data[i]);
    free(r->pages);
    free(r);
}

/* ---- building lists -------------------------------------------------------------------------------------------------- */
static void random_row(struct rig *r, enum krn_type t, uint8_t *row, uint32_t cols, float scale)
{
    float x[1024];
    size_t bytes = krn_row_bytes(t, cols);
    if (krn_types[t].block == 1) {
        rows_fill(x, cols, &r->seed, scale);
        ck_assert(krn_quantise_row(t, x, cols, row));
        return;
    }
    for (size_t i = 0; i < bytes; i++) row[i] = (uint8_t)rows_draw(&r->seed);
    const struct scale_places *s = scale_places(t);
    for (uint8_t *at = row; at < row + bytes; at += krn_types[t].block_bytes)
        for (int k = 0; k < s->n; k++) {
            uint16_t h = (uint16_t)(0x2000 + (rows_draw(&r->seed) & 0x87ff));
            memcpy(at + s->at[k], &h, 2);
        }
}
static uint32_t weight(struct rig *r, enum krn_type t, uint32_t rows, uint32_t cols, float scale)
{
    uint32_t i = r->n_w++;
    size_t bytes = krn_row_bytes(t, cols);
    uint8_t *published = malloc(rows * bytes);
    ck_assert_uint_lt(i, WEIGHTS);
    for (uint32_t k = 0; k < rows; k++) random_row(r, t, published + k * bytes, cols, scale);
    r->w[i] = (struct krn_weight){t, rows > 1 ? KRN_TILED : KRN_PLAIN, rows, cols, NULL};
    r->data[i] = published;
    if (rows > 1) {
        r->data[i] = aligned_alloc(256, (krn_slot_bytes(t, KRN_TILED, rows, cols) + 255) & ~(size_t)255);
        krn_slot_pack(t, rows, cols, 0, (rows + 15) / 16, published, bytes, r->data[i]);
        free(published);
    }
    r->w[i].data = r->data[i];
    return i;
}
static struct krn_view reg(struct rig *r, uint32_t heads, uint32_t dim)
{
    struct krn_view v = {.base = r->cols, .stride = heads * dim, .heads = heads, .dim = dim, .head_stride = dim};
    r->cols += (heads * dim + 15) / 16 * 16;
    ck_assert_uint_le(r->cols, COLS);
    return v;
}
static struct krn_op *call(struct rig *r, enum krn_opcode code, struct krn_view out, unsigned n_in, struct krn_view a, struct krn_view b)
{
    struct krn_op *op = &r->ops[r->n++];
    ck_assert_uint_le(r->n, OPS);
    *op = (struct krn_op){.code = code, .layer = KRN_NO_LAYER, .n_in = (uint8_t)n_in, .in = {a, b}, .out = out, .state = KRN_NO_STATE};
    for (int i = 0; i < KRN_OP_WEIGHTS; i++) op->weight[i] = KRN_NO_WEIGHT;
    return op;
}
static void use(struct krn_op *op, unsigned i, uint32_t w)
{
    op->weight[i] = w;
    if (op->n_weights <= i) op->n_weights = (uint8_t)(i + 1);
}
/* A register of random numbers: rows of a table that the step's tokens name. */
static struct krn_view input(struct rig *r, uint32_t heads, uint32_t dim, float scale)
{
    struct krn_view v = reg(r, heads, dim), row = v;
    row.heads = 1;
    row.dim = row.head_stride = heads * dim;
    struct krn_op *op = call(r, KRN_EMBED, row, 0, row, row);
    use(op, 0, weight(r, KRN_F32, VOCAB, heads * dim, scale));
    op->u.embed.scale = 1;
    return v;
}
static void fresh(struct rig *r) { r->n = r->cols = 0; }

/* ---- running them ---------------------------------------------------------------------------------------------------- */
struct span { uint32_t seq, pos0, n; }; /* a chunk of one sequence */
static void run(struct rig *r, unsigned which, krn_list *l, const struct span *s, uint32_t n_spans, const uint32_t *picks, uint32_t n_picks)
{
    static int32_t tokens[ROWS];
    static uint32_t pos[ROWS];
    struct krn_seq seqs[3];
    uint32_t tables[3 * STRIDE];
    struct krn_pages g = {.pool = r->pages, .layout = r->pool.layout, .tables = tables, .table_stride = STRIDE};
    struct krn_step step = {.n_picks = n_picks, .n_seqs = n_spans, .n_groups = 1, .tokens = tokens, .pos = pos, .picks = picks, .seqs = seqs, .groups = &g};
    struct err e;
    for (uint32_t i = 0; i < n_spans; i++) {
        seqs[i] = (struct krn_seq){.first = step.n_tokens, .count = s[i].n, .pos0 = s[i].pos0};
        memcpy(tables + i * STRIDE, r->tables + s[i].seq * STRIDE, STRIDE * sizeof *tables);
        for (uint32_t t = 0; t < s[i].n; t++, step.n_tokens++) {
            pos[step.n_tokens] = s[i].pos0 + t;
            tokens[step.n_tokens] = (int32_t)((s[i].seq * 17 + (s[i].pos0 + t) * 5) % VOCAB);
        }
    }
    OK(r->api[which]->submit(r->b[which], l, &step, &e));
    OK(r->api[which]->wait(r->b[which], &e));
}
static void record(struct rig *r, krn_list *l[2])
{
    struct err e;
    for (unsigned i = 0; i < 2; i++) OK(r->api[i]->record(r->b[i], r->ops, r->n, r->w, &l[i], &e));
}
static void drop(struct rig *r, krn_list *l[2])
{
    for (unsigned i = 0; i < 2; i++) r->api[i]->list_free(l[i]);
}
static void look(struct rig *r, unsigned which, struct krn_view v, uint32_t row, float *out)
{
    const float *p = r->api[which]->row(r->b[which], &v, row);
    for (uint32_t h = 0; h < v.heads; h++) memcpy(out + h * v.dim, p + h * v.head_stride, v.dim * sizeof *out);
}
static void close_to(const char *what, const float *a, const float *b, size_t n, double tolerance)
{
    double worst = 0, most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst)) worst = d;
        if (fabs((double)a[i]) > most) most = fabs((double)a[i]);
    }
    ck_assert_msg(worst <= tolerance * most && most > 0, "%s: off by %g of %g", what, worst, most);
}
/* The list as it stands on both devices, over n rows; row 0 alone gives its bits again. */
static void compare(struct rig *r, const char *what, struct krn_view v, uint32_t n, double tolerance)
{
    krn_list *l[2];
    static float a[1024], b[1024], first[1024];
    struct span s = {1, 3, n};
    size_t width = (size_t)v.heads * v.dim;
    record(r, l);
    for (unsigned i = 0; i < 2; i++) run(r, i, l[i], &s, 1, NULL, 0);
    for (uint32_t row = 0; row < n; row++) {
        look(r, 0, v, row, a);
        look(r, 1, v, row, b);
        close_to(what, a, b, width, tolerance);
        if (row == 0) memcpy(first, b, sizeof first);
    }
    s.n = 1;
    run(r, 1, l[1], &s, 1, NULL, 0);
    look(r, 1, v, 0, b);
    ck_assert_msg(rows_equal(first, b, width), "%s: a row alone differs from itself in company", what);
    drop(r, l);
}

START_TEST(linears)
{
    static const struct { enum krn_type t; uint32_t rows, cols; } shapes[] = {
        {KRN_F32, 33, 45}, {KRN_F16, 5, 35}, {KRN_BF16, 17, 300}, {KRN_Q8_0, 40, 544}, {KRN_Q4_0, 31, 96}, {KRN_Q4_1, 18, 576},
        {KRN_Q5_0, 3, 32}, {KRN_Q5_1, 16, 64}, {KRN_Q4_K, 20, 768}, {KRN_Q5_K, 33, 256}, {KRN_Q6_K, 19, 512},
    };
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fresh(r);
        struct krn_view x = input(r, 1, shapes[i].cols, 1), y = reg(r, 1, shapes[i].rows), z = reg(r, 1, shapes[i].cols);
        struct krn_op *op = call(r, KRN_LINEAR, y, 1, x, x);
        use(op, 0, weight(r, shapes[i].t, shapes[i].rows, shapes[i].cols, 0.1f));
        if (i % 2) use(op, 1, weight(r, i % 4 == 1 ? KRN_BF16 : KRN_F32, 1, shapes[i].rows, 1));
        compare(r, krn_types[shapes[i].t].name, y, 7, 1e-5);
        fresh(r);
        op = call(r, KRN_EMBED, z, 0, z, z);
        use(op, 0, weight(r, shapes[i].t, VOCAB, shapes[i].cols, 1));
        op->u.embed.scale = 1.5f;
        compare(r, "embed", z, 3, 1e-6);
    }
    close_rig(r);
}
END_TEST

START_TEST(elements)
{
    static const enum krn_opcode plain[] = {KRN_ADD, KRN_MUL, KRN_SCALE, KRN_SIGMOID, KRN_SILU, KRN_SOFTCAP, KRN_COPY};
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        fresh(r);
        struct krn_view a = input(r, 1, 70, 4), b = input(r, 1, 70, 1), y = reg(r, 1, 70);
        call(r, plain[i], y, plain[i] == KRN_ADD || plain[i] == KRN_MUL ? 2 : 1, a, b)->u.scalar.c = 2.5f;
        compare(r, krn_op_name(plain[i]), y, 5, 1e-6);
    }
    for (int act = KRN_ACT_SILU; act <= KRN_ACT_QUICK_GELU; act++) {
        fresh(r);
        struct krn_view g = input(r, 1, 130, 3), u = input(r, 1, 130, 2);
        struct krn_op *op = call(r, KRN_GLU, g, 2, g, u); /* in place */
        op->u.glu.act = (enum krn_act)act;
        op->u.glu.alpha = 1.7f;
        op->u.glu.limit = 2;
        op->u.glu.beta = 3;
        op->u.glu.beta_u = 4;
        compare(r, "glu", g, 3, 2e-6);
    }
    fresh(r); /* one number a head; heads that lie apart */
    struct krn_view a = input(r, 3, 24, 1), b = input(r, 3, 1, 1), y = reg(r, 3, 40);
    y.dim = 24;
    call(r, KRN_MUL, y, 2, a, b);
    compare(r, "mul by heads", y, 3, 1e-6);
    for (int pairs = KRN_PAIRS_HALVES; pairs <= KRN_PAIRS_ADJACENT; pairs++) {
        fresh(r);
        struct krn_view q = input(r, 3, 13, 1), out = pairs ? q : reg(r, 3, 13); /* three channels do not turn */
        call(r, KRN_ROPE, out, 1, q, q)->u.rope.pairs = (enum krn_pairs)pairs;
        compare(r, "rope", out, 9, 1e-6);
    }
    close_rig(r);
}
END_TEST

START_TEST(norms)
{
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    for (unsigned i = 0; i < 4; i++) {
        fresh(r);
        struct krn_view x = input(r, i ? 3 : 1, i ? 33 : 1001, 2), y = i == 1 ? x : reg(r, x.heads, x.dim);
        struct krn_op *op = call(r, i == 3 ? KRN_L2NORM : KRN_RMSNORM, y, 1, x, x);
        op->u.norm.eps = 1e-5f;
        op->u.norm.offset = i == 1 ? 1 : 0;
        if (i < 2) use(op, 0, weight(r, i ? KRN_BF16 : KRN_F32, 1, x.dim, 1));
        compare(r, krn_op_name(op->code), y, 6, 1e-6);
    }
    close_rig(r);
}
END_TEST

/* ---- attention ------------------------------------------------------------------------------------------------------- */
static struct krn_view attention(struct rig *r, uint32_t window, float softcap, bool sinks)
{
    fresh(r);
    struct krn_view q = input(r, 4, DIM, 1), k = input(r, KV, DIM, 1), v = input(r, KV, DIM_V, 1), y = reg(r, 4, DIM_V);
    struct krn_op *op = call(r, KRN_ATTEND, y, 3, q, k);
    op->in[2] = v;
    op->state = 0;
    op->state_layer = 1;
    op->u.attend.scale = 0.6f;
    op->u.attend.window = window;
    op->u.attend.softcap = softcap;
    if (sinks) use(op, 0, weight(r, KRN_F32, 1, 4, 1));
    return y;
}
enum { CONTEXT = SUITE_SLOW ? 530 : 600, KEEP = 4 * DIM_V };
/* The last row of CONTEXT tokens in chunks, with other sequences beside: rows of the last `tail` tokens into out. */
static void context(struct rig *r, unsigned which, krn_list *l, struct krn_view y, uint32_t chunk, bool company, float *out)
{
    for (uint32_t pos = 0; pos < CONTEXT; pos += chunk) {
        uint32_t n = CONTEXT - pos < chunk ? CONTEXT - pos : chunk, other = pos / chunk;
        struct span s[3] = {{2, other, company}, {0, pos, n}, {1, other, company}};
        run(r, which, l, company ? s : s + 1, company ? 3 : 1, NULL, 0);
        if (pos + n == CONTEXT) look(r, which, y, (company ? 1 : 0) + n - 1, out);
    }
}

START_TEST(attends)
{
    static const struct { enum krn_type kv; uint32_t page, window; float softcap; bool sinks; } ways[] = {
        {KRN_F32, 16, 0, 0, false}, {KRN_F16, 32, 37, 0, true}, {KRN_BF16, 16, 0, 3, false}};
    if (!have_device()) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct rig *r = open_rig(ways[i].kv, ways[i].page);
        struct krn_view y = attention(r, ways[i].window, ways[i].softcap, ways[i].sinks);
        krn_list *l[2];
        float a[KEEP], b[KEEP], c[KEEP];
        record(r, l);
        context(r, 0, l[0], y, 600, false, a);
        context(r, 1, l[1], y, 600, false, b);
        close_to("attend", a, b, KEEP, 1e-5);
        context(r, 1, l[1], y, 37, true, c);
        ck_assert_msg(rows_equal(b, c, KEEP), "attend: another chunk and company give other bits");
        drop(r, l);
        close_rig(r);
    }
}
END_TEST

/* ---- a whole list: picks, counters, the watched register --------------------------------------------------------------- */
START_TEST(lists)
{
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    struct krn_view x = input(r, 1, 64, 1), px = {.base = 0, .stride = 64, .heads = 1, .dim = 64, .head_stride = 64, .rows = KRN_ROWS_PICKED}, pl = px;
    krn_list *l[2];
    struct krn_counters before, after;
    float a[50], b[50];
    const uint32_t picks[] = {4, 0, 2};
    pl.base = 64;
    pl.stride = pl.dim = pl.head_stride = 50;
    call(r, KRN_PICK, px, 1, x, x);
    use(call(r, KRN_LINEAR, pl, 1, px, px), 0, weight(r, KRN_Q8_0, 50, 64, 1));
    record(r, l);
    for (unsigned i = 0; i < 2; i++) run(r, i, l[i], &(struct span){0, 0, 5}, 1, picks, 3);
    for (uint32_t k = 0; k < 3; k++) {
        look(r, 0, pl, k, a);
        look(r, 1, pl, k, b);
        close_to("logits", a, b, 50, 1e-5);
    }
    run(r, 1, l[1], &(struct span){0, 5, 1}, 1, picks + 1, 1); /* the other shape class: last of the warm-up */
    krn_vulkan.counters(r->b[1], &before);
    for (uint32_t i = 0; i < 4; i++) run(r, 1, l[1], &(struct span){0, 6 + i, 1}, 1, picks + 1, 1);
    run(r, 1, l[1], &(struct span){0, 10, 5}, 1, picks, 3);
    krn_vulkan.counters(r->b[1], &after);
    ck_assert_uint_eq(after.submits - before.submits, 5);
    ck_assert_uint_eq(after.dispatches - before.dispatches, 5 * 3);
    ck_assert_uint_eq(after.uploads, before.uploads);
    ck_assert_uint_eq(after.allocations, before.allocations);
    ck_assert_uint_eq(after.pipelines, before.pipelines);
    ck_assert_uint_eq(after.lists, before.lists);
    drop(r, l);
    close_rig(r);
}
END_TEST

START_TEST(errors)
{
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    struct krn_view y = attention(r, 0, 0, false);
    krn_list *l[2];
    struct err e;
    int32_t tokens[4] = {0, 1, 2, VOCAB};
    uint32_t pos[4] = {0, 1, 2, 3};
    struct krn_seq seq = {.count = 4};
    struct krn_pages g = {.pool = r->pages, .layout = r->pool.layout, .tables = r->tables, .table_stride = STRIDE};
    struct krn_step s = {.n_tokens = 4, .n_seqs = 1, .n_groups = 1, .tokens = tokens, .pos = pos, .seqs = &seq, .groups = &g};
    record(r, l);
    FAILS(ERR_INVALID, "token 48 of a vocabulary of 48", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    tokens[3] = 0;
    r->tables[0] = PAGES;
    FAILS(ERR_INVALID, "page 96 of a pool of 96", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    r->tables[0] = KRN_NO_PAGE;
    FAILS(ERR_INVALID, "is free", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    r->tables[0] = 0;
    seq.count = 3;
    FAILS(ERR_INVALID, "3 of 4 rows", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    seq.count = 4;
    r->w[0].data = NULL;
    FAILS(ERR_INVALID, "weight 0 is not leased", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    r->w[0].data = r->data[0];
    OK(krn_vulkan.submit(r->b[1], l[1], &s, &e));
    OK(krn_vulkan.wait(r->b[1], &e));
    for (uint32_t i = 0; i < r->n_w; i++) r->w[i].data = NULL; /* the device has them now */
    OK(krn_vulkan.submit(r->b[1], l[1], &s, &e));
    OK(krn_vulkan.wait(r->b[1], &e));
    drop(r, l);
    fresh(r);
    call(r, KRN_ROUTE, y, 1, y, y);
    FAILS(ERR_UNSUPPORTED, "no kernel for operator route", krn_vulkan.record(r->b[1], r->ops, 1, r->w, &l[1], &e));
    fresh(r);
    use(call(r, KRN_LINEAR, y, 1, y, y), 0, weight(r, KRN_Q3_K, 48, 256, 1));
    FAILS(ERR_UNSUPPORTED, "linear on Q3_K", krn_vulkan.record(r->b[1], r->ops, 1, r->w, &l[1], &e));
    close_rig(r);
}
END_TEST

/* With the clocks on: the same bits, one time a kind of dispatch, nothing left after it was taken; peaks are numbers. */
static const struct krn_time *time_of(const struct krn_time *t, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(t[i].name, name)) return &t[i];
    ck_abort_msg("no time of %s", name);
}
static bool stamps(void)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e;
    unsigned n;
    OK(gpu_list(g, GPU_DEVICES_MAX, &n, &e));
    if (g[0].timestamp_ns <= 0) printf("SKIP times: %s has no timestamps\n", g[0].name);
    return g[0].timestamp_ns > 0;
}
START_TEST(times)
{
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F16, 16);
    struct krn_view y = attention(r, 0, 0, false);
    krn_list *l[2];
    struct krn_time t[16];
    struct gpu_peaks peaks = {0};
    struct err e;
    float a[4 * DIM_V], b[4 * DIM_V];
    if (!stamps()) {
        close_rig(r);
        return;
    }
    record(r, l);
    run(r, 1, l[1], &(struct span){0, 0, 9}, 1, NULL, 0);
    look(r, 1, y, 8, a);
    ck_assert_uint_eq(krn_vulkan.times(r->b[1], t, 16), 0);
    run(r, 1, l[1], &(struct span){0, 0, 9}, 1, NULL, 0);
    look(r, 1, y, 8, b);
    ck_assert(rows_equal(a, b, 4 * DIM_V));
    run(r, 1, l[1], &(struct span){0, 9, 1}, 1, NULL, 0);
    size_t n = krn_vulkan.times(r->b[1], t, 16);
    ck_assert_uint_gt(n, 1);
    ck_assert(time_of(t, n, "attend")->calls == 2 && time_of(t, n, "attend")->ns > 0);
    ck_assert(time_of(t, n, "store kv")->calls == 2);
    ck_assert_uint_eq(krn_vulkan.times(r->b[1], t, 16), 0);
    drop(r, l);
    close_rig(r);
    FAILS(ERR_INVALID, "found another size", gpu_measure(0, 1 << 20, &peaks, &e));
    OK(gpu_measure(0, 32 << 20, &peaks, &e));
    ck_assert(peaks.read_bytes_s > 0 && peaks.fma_ops_s > 0);
}
END_TEST

/* A device that goes away says so at a submission or in a wait: both are ERR_CLOSED, at which an engine ends, and the backend still closes. */
#ifdef HAVE_HEADERS
static VKAPI_ATTR VkResult VKAPI_CALL lost_submit(VkQueue q, uint32_t n, const VkSubmitInfo *s, VkFence f)
{
    (void)q;
    (void)n;
    (void)s;
    (void)f;
    return VK_ERROR_DEVICE_LOST;
}
static VKAPI_ATTR VkResult VKAPI_CALL lost_value(VkDevice d, VkSemaphore s, uint64_t *value)
{
    (void)d;
    (void)s;
    *value = 0;
    return VK_ERROR_DEVICE_LOST;
}
#endif
START_TEST(lost)
{
#ifdef HAVE_HEADERS
    if (!have_device()) return;
    struct rig *r = open_rig(KRN_F32, 16);
    krn_list *l[2];
    struct err e;
    int32_t token = 1;
    uint32_t pos = 0;
    struct krn_seq seq = {.count = 1};
    struct krn_pages g = {.pool = r->pages, .layout = r->pool.layout, .tables = r->tables, .table_stride = STRIDE};
    struct krn_step s = {.n_tokens = 1, .n_seqs = 1, .n_groups = 1, .tokens = &token, .pos = &pos, .seqs = &seq, .groups = &g};
    struct gpu_vk *vk = &r->b[1]->g->vk, real = *vk;
    attention(r, 0, 0, false);
    record(r, l);
    OK(krn_vulkan.submit(r->b[1], l[1], &s, &e));
    vk->vkGetSemaphoreCounterValue = lost_value;
    FAILS(ERR_CLOSED, "wait for the device: VK_ERROR_DEVICE_LOST", krn_vulkan.wait(r->b[1], &e));
    *vk = real;
    OK(krn_vulkan.wait(r->b[1], &e));
    vk->vkQueueSubmit = lost_submit;
    FAILS(ERR_CLOSED, "submit: VK_ERROR_DEVICE_LOST", krn_vulkan.submit(r->b[1], l[1], &s, &e));
    *vk = real;
    drop(r, l);
    close_rig(r);
#else
    puts("SKIP lost: vulkan.h was missing at build time");
#endif
}
END_TEST

START_TEST(devices)
{
    struct rig r = {0};
    struct err e;
    krn_backend *b;
    uint32_t mask;
    OK(gpu_mask_parse("budget,transfer-queue", &mask, &e));
    ck_assert_uint_eq(mask, GPU_NO_BUDGET | GPU_NO_TRANSFER_QUEUE);
    FAILS(ERR_INVALID, "\"warp\": expected", gpu_mask_parse("budget,warp", &mask, &e));
    struct krn_backend_config c = config_of(&r);
    struct krn_device d = {.index = 77, .seqs_max = 1};
    c.device = &d;
    c.n_ropes = 0;
    if (!have_device()) {
        ck_assert_int_ne(krn_vulkan.open(&b, &c, &e), 0);
        return;
    }
    FAILS(ERR_NOTFOUND, "numbered from 0", krn_vulkan.open(&b, &c, &e));
    d.index = 0;
    d.bytes_max = 1000;
    FAILS(ERR_BUDGET, "--vram 1000: activations needs", krn_vulkan.open(&b, &c, &e));
    ck_assert_ptr_null(b);
}
END_TEST

SUITE("kernels", "gpu", linears, elements, norms, attends, lists, errors, times, lost, devices)
