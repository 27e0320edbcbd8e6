/* tests/kernels/check_latent.c - latent attention through the CPU backend: against the expanded form in double, and equal bits for
 * every instruction set, number of threads, chunk, page size and company; bad calls refused. */
#include <stdlib.h>
#include <string.h>
#include "kernels/latent.h"
#include "kernels/quantise.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { ROWS_MAX = 1400, SEQS = 3 };
struct shape { uint32_t heads, nope, rope, rank, vd, n; enum krn_type weight, kv; bool turned, tiled; };
struct way { enum krn_isa isa; unsigned threads; uint32_t chunk, page, company; };

static const struct shape shapes[] = {
    {4, 16, 8, 32, 16, 150, KRN_F32, KRN_F32, false, true},   {4, 16, 8, 20, 16, 600, KRN_BF16, KRN_F32, false, true},
    {6, 24, 4, 48, 32, 90, KRN_F16, KRN_F16, false, true},    {32, 128, 64, 512, 128, 40, KRN_BF16, KRN_BF16, false, true},
    {4, 32, 8, 64, 12, 70, KRN_F32, KRN_F32, false, false},   {4, 32, 8, 64, 16, 70, KRN_Q8_0, KRN_F32, false, true},
    {4, 32, 8, 64, 16, 70, KRN_Q8_0, KRN_F32, true, true},    {4, 32, 8, 20, 16, 70, KRN_F32, KRN_F32, true, false},
    {3, 24, 8, 32, 16, 600, KRN_F32, KRN_F32, false, true},
    {7, 16, 8, 32, 16, 1100, KRN_F32, KRN_F32, false, true},  {2, 8, 4, 16, 8, 33, KRN_BF16, KRN_F32, true, true},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Weights as stored and as the f32 rows they stand for. */
struct matrix { struct krn_weight w; float *plain; void *slot; };
static struct matrix matrix(uint32_t rows, uint32_t cols, enum krn_type t, bool tiled, uint64_t *seed)
{
    size_t bytes = krn_row_bytes(t, cols);
    struct matrix m = {{t, tiled ? KRN_TILED : KRN_PLAIN, rows, cols, NULL}, malloc((size_t)rows * cols * 4), NULL};
    uint8_t *published = malloc(rows * bytes);
    for (uint32_t r = 0; r < rows; r++) {
        rows_fill(m.plain + (size_t)r * cols, cols, seed, 0.3f);
        ck_assert(krn_quantise_row(t, m.plain + (size_t)r * cols, cols, published + r * bytes));
        ck_assert(krn_expand(t, published + r * bytes, cols, m.plain + (size_t)r * cols));
    }
    m.slot = aligned_alloc(256, (krn_slot_bytes(t, m.w.layout, rows, cols) + 511) & ~(size_t)255);
    if (tiled) krn_slot_pack(t, rows, cols, 0, (rows + 15) / 16, published, bytes, m.slot);
    else memcpy(m.slot, published, rows * bytes);
    m.w.data = m.slot;
    free(published);
    return m;
}

/* One row of the register arena: qn, qr, c, kr, out. */
struct cols { uint32_t qn, qr, c, kr, out, end; };
static struct cols cols_of(const struct shape *s)
{
    struct cols c = {.qn = 0};
    c.qr = c.qn + s->heads * s->nope;
    c.c = c.qr + s->heads * s->rope;
    c.kr = c.c + s->rank;
    c.out = c.kr + s->rope;
    c.end = c.out + s->heads * s->vd;
    return c;
}
static struct krn_view view(uint32_t base, uint32_t heads, uint32_t dim)
{
    return (struct krn_view){.base = base, .stride = heads * dim, .heads = heads, .dim = dim, .head_stride = dim};
}

struct rig { struct shape s; struct matrix k, v; float *x; /* [n][end - out] inputs */ struct krn_op op; };
static struct rig rig_open(const struct shape *s)
{
    uint64_t seed = 7;
    struct cols c = cols_of(s);
    struct rig g = {.s = *s};
    bool k_tiled = s->turned && s->tiled && s->rank % 16 == 0;
    g.k = s->turned ? matrix(s->heads * s->rank, s->nope, s->weight, k_tiled, &seed) : matrix(s->heads * s->nope, s->rank, s->weight, false, &seed);
    g.v = matrix(s->heads * s->vd, s->rank, s->weight, s->tiled && s->vd % 16 == 0, &seed);
    g.x = malloc((size_t)s->n * c.out * 4);
    rows_fill(g.x, (size_t)s->n * c.out, &seed, 1);
    g.op = (struct krn_op){.code = KRN_ATTEND_MLA, .n_in = 4, .n_weights = 2, .weight = {0, 1, KRN_NO_WEIGHT, KRN_NO_WEIGHT, KRN_NO_WEIGHT},
                           .in = {view(c.qn, s->heads, s->nope), view(c.qr, s->heads, s->rope), view(c.c, 1, s->rank), view(c.kr, 1, s->rope)},
                           .out = view(c.out, s->heads, s->vd), .u.attend = {.scale = 0.11f, .turned = s->turned}};
    return g;
}
static void rig_close(struct rig *g)
{
    free(g->k.plain);
    free(g->k.slot);
    free(g->v.plain);
    free(g->v.slot);
    free(g->x);
}

static float *row(krn_backend *b, uint32_t base, uint32_t width, uint32_t r)
{
    struct krn_view v = view(base, 1, width);
    return (float *)(uintptr_t)krn_cpu.row(b, &v, r);
}

/* All rows of the sequence, with company sequences of the same numbers one token behind each other. out [n][heads * vd]. */
static void compute(const struct rig *g, const struct way *w, float *out)
{
    const struct shape *s = &g->s;
    struct cols c = cols_of(s);
    struct err e = {0};
    struct krn_weight weights[2] = {g->k.w, g->v.w};
    struct krn_backend_config cfg = {.isa = w->isa, .threads = w->threads, .rows_max = {s->n * (1 + w->company), 1}, .arena_cols = {c.end, 1},
                                     .latent_cols = s->heads * (s->rank + s->rope), .linear_cols_max = 32};
    krn_backend *b;
    krn_list *l;
    ck_assert_msg(krn_cpu.open(&b, &cfg, &e) == ERR_OK, "%s", e.msg);
    ck_assert_msg(krn_cpu.record(b, &g->op, 1, weights, &l, &e) == ERR_OK, "%s", e.msg);
    uint32_t seqs = 1 + w->company, stride = s->n / w->page + 1;
    struct krn_pages pages = {.layout = {.type = s->kv, .page_tokens = w->page, .n_layers = 1, .heads = 1, .dim_k = s->rank + s->rope}, .table_stride = stride};
    ck_assert(krn_kv_layout_init(&pages.layout));
    pages.pool = malloc(pages.layout.page_bytes * stride * seqs);
    memset(pages.pool, 0xff, pages.layout.page_bytes * stride * seqs);
    uint32_t *tables = malloc(seqs * stride * sizeof *tables), *pos = calloc(ROWS_MAX * SEQS, sizeof *pos);
    for (uint32_t i = 0; i < seqs * stride; i++) tables[i] = seqs * stride - 1 - i;
    pages.tables = tables;
    for (uint32_t at = 0; at < s->n; at += w->chunk) {
        uint32_t n = s->n - at < w->chunk ? s->n - at : w->chunk;
        struct krn_seq q[SEQS];
        for (uint32_t i = 0; i < seqs; i++) {
            q[i] = (struct krn_seq){i * n, n, at, false};
            for (uint32_t t = 0; t < n; t++) {
                const float *x = g->x + (size_t)(i == w->company ? at + t : (at + t + i + 1) % s->n) * c.out;
                memcpy(row(b, c.qn, s->heads * s->nope, i * n + t), x + c.qn, s->heads * s->nope * 4);
                memcpy(row(b, c.qr, s->heads * s->rope, i * n + t), x + c.qr, s->heads * s->rope * 4);
                memcpy(row(b, c.c, s->rank, i * n + t), x + c.c, s->rank * 4);
                memcpy(row(b, c.kr, s->rope, i * n + t), x + c.kr, s->rope * 4);
                pos[i * n + t] = at + t;
            }
        }
        struct krn_step st = {.n_tokens = n * seqs, .n_seqs = seqs, .n_groups = 1, .pos = pos, .seqs = q, .groups = &pages};
        ck_assert_msg(krn_cpu.submit(b, l, &st, &e) == ERR_OK, "%s", e.msg);
        for (uint32_t t = 0; t < n; t++) memcpy(out + (size_t)(at + t) * s->heads * s->vd, row(b, c.out, s->heads * s->vd, w->company * n + t), s->heads * s->vd * 4);
    }
    krn_cpu.list_free(l);
    krn_cpu.close(b);
    free(pages.pool);
    free(tables);
    free(pos);
}

/* The expanded form: keys and values of every head from the latent as stored, softmax in double. */
static double stored(float x, enum krn_type t) { return t == KRN_F32 ? x : t == KRN_F16 ? krn_f16_to_f32(krn_f32_to_f16(x)) : krn_bf16_to_f32(krn_f32_to_bf16(x)); }
static void expanded(const struct rig *g, uint32_t r, uint32_t h, double *out)
{
    const struct shape *s = &g->s;
    struct cols c = cols_of(s);
    const float *q = g->x + (size_t)r * c.out;
    double *p = malloc((r + 1) * sizeof *p), top = -1e300, sum = 0;
    for (uint32_t t = 0; t <= r; t++) {
        const float *k = g->x + (size_t)t * c.out;
        double dot = 0;
        for (uint32_t d = 0; d < s->nope; d++) {
            double key = 0;
            for (uint32_t j = 0; j < s->rank; j++)
                key += stored(k[c.c + j], s->kv) * (double)(s->turned ? g->k.plain[((size_t)h * s->rank + j) * s->nope + d] : g->k.plain[((size_t)h * s->nope + d) * s->rank + j]);
            dot += (double)q[c.qn + h * s->nope + d] * key;
        }
        for (uint32_t d = 0; d < s->rope; d++) dot += (double)q[c.qr + h * s->rope + d] * stored(k[c.kr + d], s->kv);
        p[t] = dot * (double)g->op.u.attend.scale;
        top = p[t] > top ? p[t] : top;
    }
    for (uint32_t t = 0; t <= r; t++) sum += p[t] = exp(p[t] - top);
    for (uint32_t i = 0; i < s->vd; i++) {
        out[i] = 0;
        for (uint32_t t = 0; t <= r; t++)
            for (uint32_t j = 0; j < s->rank; j++)
                out[i] += p[t] / sum * stored(g->x[(size_t)t * c.out + c.c + j], s->kv) * (double)g->v.plain[((size_t)h * s->vd + i) * s->rank + j];
    }
    free(p);
}

START_TEST(core)
{
    const struct shape *s = &shapes[_i];
    struct rig g = rig_open(s);
    size_t n = (size_t)s->n * s->heads * s->vd;
    float *want = malloc(n * 4), *got = malloc(n * 4);
    compute(&g, &(struct way){KRN_ISA_C, 1, s->n, 64, 0}, want);
    double worst = 0, scale = 0, *ref = malloc(s->vd * sizeof *ref);
    for (uint32_t r = 0; r < s->n; r += r < 5 ? 1 : s->n / 3)
        for (uint32_t h = 0; h < s->heads; h += 5) {
            expanded(&g, r, h, ref);
            for (uint32_t i = 0; i < s->vd; i++) {
                worst = fmax(worst, fabs(ref[i] - (double)want[((size_t)r * s->heads + h) * s->vd + i]));
                scale = fmax(scale, fabs(ref[i]));
            }
        }
    ck_assert_msg(worst <= 1e-5 * scale, "shape %d: %g of %g", _i, worst, scale);
    static const struct way ways[] = {{KRN_ISA_C, 1, 1, 16, 0},    {KRN_ISA_C, 2, 7, 64, 2},     {KRN_ISA_AVX2, 1, 64, 16, 0}, {KRN_ISA_AVX2, 2, 1, 64, 0}, {KRN_ISA_AVX2, 2, 64, 64, 0},
                                      {KRN_ISA_AVX2, 2, 7, 32, 1}, {KRN_ISA_AVX2, 2, 1400, 64, 2}, {KRN_ISA_AVX512, 2, 7, 64, 1}};
    for (unsigned k = 0; k < sizeof ways / sizeof *ways; k++) {
        if (!krn_isa_have(ways[k].isa)) continue;
        memset(got, 0, n * 4);
        compute(&g, &ways[k], got);
        ck_assert_msg(rows_equal(got, want, n), "shape %d, way %u", _i, k);
    }
    free(ref);
    free(want);
    free(got);
    rig_close(&g);
}
END_TEST

static void refused(const struct rig *g, const struct krn_op *op, uint32_t latent_cols, const char *what)
{
    struct cols c = cols_of(&g->s);
    struct err e = {0};
    krn_backend *b;
    krn_list *l;
    struct krn_weight weights[2] = {g->k.w, g->v.w};
    struct krn_backend_config cfg = {.isa = KRN_ISA_C, .threads = 1, .rows_max = {4, 1}, .arena_cols = {c.end, 1}, .latent_cols = latent_cols};
    ck_assert_int_eq(krn_cpu.open(&b, &cfg, &e), ERR_OK);
    ck_assert_int_ne(krn_cpu.record(b, op, 1, weights, &l, &e), ERR_OK);
    ck_assert_msg(strstr(e.msg, what) != NULL, "%s", e.msg);
    krn_cpu.close(b);
}

START_TEST(errors)
{
    struct rig g = rig_open(&shapes[2]);
    uint32_t cols = g.s.heads * (g.s.rank + g.s.rope);
    struct krn_op op = g.op;
    refused(&g, &op, cols - 1, "latent_cols");
    op.n_in = 3;
    refused(&g, &op, cols, "expected qn, qr, c and kr");
    op = g.op;
    op.weight[1] = 0;
    refused(&g, &op, cols, "v_up");
    op = g.op;
    op.u.attend.turned = true;
    refused(&g, &op, cols, "k_up");
    op = g.op;
    op.in[1].dim = op.in[1].head_stride = 2;
    refused(&g, &op, cols, "disagree");
    op = g.op;
    op.state = KRN_NO_STATE;
    refused(&g, &op, cols, "no KV group");
    rig_close(&g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("latent");
    TCase *t = tcase_create("core");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, core, 0, N_SHAPES);
    tcase_add_test(t, errors);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
