/* tests/kernels/check_delta.c - recurrent layers and attention residuals: published known answers, the token-by-token recurrence in
 * double, and equal bits for every instruction set, number of threads, chunk and company; bad calls and bad states refused. */
#include <stdlib.h>
#include <string.h>
#include "kernels/backend.h"
#include "kernels/mathf.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

/* ---- known answers (numpy in double, of the published formulas) ------------------------------------------------------- */
START_TEST(known)
{
    static const struct { float a_log, z, bounded, softplus; } gate[] = {
        {0, 0, -2.5f, -0.693147f}, {1, 0.5f, -3.978100f, -2.647816f}, {2, -1, -0.003088f, -2.314708f}, {0.5f, 3, -4.964698f, -5.026271f}};
    for (unsigned i = 0; i < 4; i++) {
        float out, zero = 0, a = expf(gate[i].a_log);
        krn_ops_c.decay(&out, &gate[i].z, &zero, 1, a, true, -5);
        ck_assert_msg(fabsf(out - gate[i].bounded) < 2e-6f, "bounded %u: %g", i, (double)out);
        krn_ops_c.decay(&out, &gate[i].z, &zero, 1, a, false, 0);
        ck_assert_msg(fabsf(out - gate[i].softplus) < 2e-6f, "softplus %u: %g", i, (double)out);
    }
    const float b0[] = {1, 0, -1, 2}, b1[] = {0.5f, 0.5f, 0.5f, -0.5f}, p[] = {2, -1, 0, 1}, w[] = {1 * 0.2f, 2 * -0.1f, 0.5f * 0.4f, 1 * 0.3f};
    const float want[] = {1.3532426f, -0.3532426f, -0.2552338f, 1.0594720f}, *v[] = {b0, b1, p};
    float out[4];
    krn_ops_c.mix(out, v, 3, w, 4, 1e-5f);
    for (int i = 0; i < 4; i++) ck_assert_msg(fabsf(out[i] - want[i]) < 2e-6f, "mix %d: %g", i, (double)out[i]);
}
END_TEST

/* q and k normalised beforehand, q scaled by 2^-0.5: three tokens, one head of 2 by 2. */
START_TEST(recurrence)
{
    static const float q[3][2] = {{1, 1}, {0, 2}, {1, -1}}, k[3][2] = {{3, 4}, {1, 0}, {1, 1}}, v[3][2] = {{1, 2}, {-1, 0.5f}, {2, 1}}, g[3][2] = {{-1, -2}, {-0.5f, -0.1f}, {-3, -0.2f}};
    static const float beta[3] = {0.5f, 0.8f, 0.3f}, want[3][2] = {{0.3499999f, 0.6999998f}, {0.2559266f, 0.5118533f}, {-0.1671725f, -0.2845580f}};
    float qn[3][2], kn[3][2], out[3][2], s[4], tile[6 * KRN_TILE];
    for (int t = 0; t < 3; t++) {
        krn_ops_c.l2norm(qn[t], q[t], 2, 1e-6f);
        krn_ops_c.scale(qn[t], qn[t], 2, sqrtf(0.5f));
        krn_ops_c.l2norm(kn[t], k[t], 2, 1e-6f);
    }
    float *scratch = malloc(krn_delta_scratch(2, 2) * sizeof *scratch);
    struct krn_delta d = {.ops = &krn_ops_c, .dk = 2, .dv = 2, .n = 3, .q = qn[0], .k = kn[0], .v = v[0], .g = g[0], .beta = beta, .q_stride = 2, .k_stride = 2,
                          .v_stride = 2, .g_stride = 2, .beta_stride = 1, .out = out[0], .out_stride = 2, .s = s, .tile = tile};
    krn_delta_run(&d, scratch);
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < 2; i++) ck_assert_msg(fabsf(out[t][i] - want[t][i]) < 2e-6f, "token %d: %g", t, (double)out[t][i]);
    free(scratch);
}
END_TEST

START_TEST(softplus)
{
    uint64_t seed = 3;
    for (int i = 0; i < 20000; i++) {
        float x = i < 200 ? (float)(i - 100) : rows_normal(&seed, 8), y;
        y = mf_softplus(x);
        double want = x > 30 ? x : log1p(exp(x));
        ck_assert_msg(fabs((double)y - want) <= 4e-7 * fabs(want) + 1e-38, "%g: %g for %g", (double)x, (double)y, want);
    }
    ck_assert(isnan(mf_softplus(NAN)));
}
END_TEST

/* ---- a small layer: three convolutions, decay, delta ------------------------------------------------------------------ */
enum { SEQS = 3 };
struct shape { uint32_t heads, dk, dv, taps, n; enum krn_type type; bool bounded; float deep; };
static const struct shape shapes[] = {
    {3, 32, 32, 4, 150, KRN_F32, true, 1},  {2, 16, 24, 4, 70, KRN_F32, false, 1},  {2, 20, 20, 3, 61, KRN_F32, false, 6}, {1, 128, 128, 4, 300, KRN_F32, true, 4},
    {2, 32, 32, 4, 100, KRN_BF16, true, 1}, {2, 32, 32, 4, 100, KRN_F16, false, 1}, {5, 8, 4, 1, 40, KRN_F32, true, 1},   {9, 64, 64, 4, 50, KRN_F32, false, 0.05f},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };
struct way { enum krn_isa isa; unsigned threads; uint32_t chunk, company; };
struct rig { struct shape s; uint32_t kw, vw, c[11]; struct krn_op ops[5]; struct krn_weight w[5]; float *weight[5], *x; };

static struct krn_view view(uint32_t base, uint32_t heads, uint32_t dim)
{
    return (struct krn_view){.base = base, .stride = heads * dim, .heads = heads, .dim = dim, .head_stride = dim};
}
enum { Q, K, V, G, BETA, QC, KC, VC, GC, OUT, END };

static struct rig rig_open(const struct shape *s)
{
    struct rig r = {.s = *s, .kw = s->heads * s->dk, .vw = s->heads * s->dv};
    const uint32_t width[END] = {r.kw, r.kw, r.vw, r.kw, s->heads, r.kw, r.kw, r.vw, r.kw, r.vw};
    uint64_t seed = 11;
    for (int i = 0; i < END; i++) r.c[i + 1] = r.c[i] + width[i];
    const uint32_t rows[5] = {r.kw, r.kw, r.vw, 1, 1}, cols[5] = {s->taps, s->taps, s->taps, s->heads, r.kw};
    for (int i = 0; i < 5; i++) {
        r.weight[i] = malloc((size_t)rows[i] * cols[i] * sizeof(float));
        rows_fill(r.weight[i], (size_t)rows[i] * cols[i], &seed, i < 3 ? 0.6f : 0.5f);
        r.w[i] = (struct krn_weight){KRN_F32, KRN_PLAIN, rows[i], cols[i], r.weight[i]};
    }
    r.x = malloc((size_t)s->n * r.c[QC] * sizeof *r.x);
    for (uint32_t t = 0; t < s->n; t++) {
        float *x = r.x + (size_t)t * r.c[QC];
        rows_fill(x, r.c[G], &seed, 1.0f);
        rows_fill(x + r.c[G], r.kw, &seed, 2 * s->deep); /* deep: how far decays go */
        for (uint32_t h = 0; h < s->heads; h++) x[r.c[BETA] + h] = (float)(rows_draw(&seed) & 0xffff) / 65536.0f;
        for (uint32_t i = 0; i < r.kw; i++) x[r.c[K] + i] *= 1.5f / sqrtf((float)s->dk); /* keys of about unit length, as l2norm leaves them */
    }
    for (uint32_t i = 0; i < 3; i++)
        r.ops[i] = (struct krn_op){.code = KRN_CONV1D, .n_in = 1, .n_weights = 1, .weight = {i}, .in = {view(r.c[i], 1, width[i])}, .out = view(r.c[QC + i], 1, width[i]), .u.state = {1 + i}};
    r.ops[3] = (struct krn_op){.code = KRN_DECAY, .n_in = 1, .n_weights = 2, .weight = {3, 4}, .in = {view(r.c[G], 1, r.kw)}, .out = view(r.c[GC], s->heads, s->dk),
                               .state = KRN_NO_STATE, .u.decay = {.bounded = s->bounded, .lower = -5}};
    r.ops[4] = (struct krn_op){.code = KRN_DELTA, .n_in = 5, .out = view(r.c[OUT], s->heads, s->dv),
                               .in = {view(r.c[QC], s->heads, s->dk), view(r.c[KC], s->heads, s->dk), view(r.c[VC], s->heads, s->dv), view(r.c[GC], s->heads, s->dk), view(r.c[BETA], 1, s->heads)}};
    return r;
}
static void rig_close(struct rig *r)
{
    for (int i = 0; i < 5; i++) free(r->weight[i]);
    free(r->x);
}
static struct krn_state_layout layout_of(const struct rig *r)
{
    struct krn_state_layout l = {.n_layers = 1, .n_fields = 4, .field = {{.n_dims = 3, .heads = r->s.heads, .dk = r->s.dk, .dv = r->s.dv}}};
    for (int i = 1; i < 4; i++) l.field[i] = (struct krn_state_field){.n_dims = 2, .keep = r->s.taps - 1, .cols = i == 3 ? r->vw : r->kw, .type = r->s.type};
    return l;
}
static float *at(krn_backend *b, const struct rig *r, int c, uint32_t row)
{
    struct krn_view v = view(r->c[c], 1, r->c[c + 1] - r->c[c]);
    return (float *)(uintptr_t)krn_cpu.row(b, &v, row);
}

static void compute(struct rig *r, const struct way *w, float *out)
{
    struct err e = {0};
    uint32_t seqs = 1 + w->company, slots[SEQS] = {2, 0, 1};
    struct krn_backend_config cfg = {.isa = w->isa, .threads = w->threads, .rows_max = {r->s.n * seqs, 1}, .arena_cols = {r->c[END], 1}};
    struct krn_states st = {.layout = layout_of(r)};
    ck_assert(krn_state_layout_init(&st.layout));
    st.base = aligned_alloc(64, st.layout.slot_bytes * SEQS);
    memset(st.base, 0xff, st.layout.slot_bytes * SEQS); /* NaN: nobody reads what it has not written */
    krn_backend *b;
    krn_list *l;
    ck_assert_msg(krn_cpu.open(&b, &cfg, &e) == ERR_OK, "%s", e.msg);
    ck_assert_msg(krn_cpu.record(b, r->ops, 5, r->w, &l, &e) == ERR_OK, "%s", e.msg);
    uint32_t *pos = calloc(r->s.n * SEQS, sizeof *pos);
    for (uint32_t p = 0; p < r->s.n; p += w->chunk) {
        uint32_t n = r->s.n - p < w->chunk ? r->s.n - p : w->chunk;
        struct krn_seq q[SEQS];
        for (uint32_t i = 0; i < seqs; i++) {
            q[i] = (struct krn_seq){i * n, n, p, false};
            for (uint32_t t = 0; t < n; t++) {
                const float *x = r->x + (size_t)(i == w->company ? p + t : (p + t + i + 1) % r->s.n) * r->c[QC];
                for (int c = Q; c <= BETA; c++) memcpy(at(b, r, c, i * n + t), x + r->c[c], (r->c[c + 1] - r->c[c]) * sizeof *x);
            }
        }
        struct krn_step step = {.n_tokens = n * seqs, .n_seqs = seqs, .pos = pos, .seqs = q, .n_states = 1, .states = &st, .slots = slots};
        ck_assert_msg(krn_cpu.submit(b, l, &step, &e) == ERR_OK, "%s", e.msg);
        for (uint32_t t = 0; t < n; t++) memcpy(out + (size_t)(p + t) * r->vw, at(b, r, OUT, w->company * n + t), r->vw * sizeof *out);
    }
    free(pos);
    krn_cpu.list_free(l);
    krn_cpu.close(b);
    free(st.base);
}

/* ---- the recurrence, token by token, in double ------------------------------------------------------------------------ */
static double stored(float x, enum krn_type t) { return t == KRN_F32 ? x : t == KRN_F16 ? krn_f16_to_f32(krn_f32_to_f16(x)) : krn_bf16_to_f32(krn_f32_to_bf16(x)); }
static double conv(const struct rig *r, int which, uint32_t t, uint32_t c)
{
    double acc = 0;
    for (uint32_t i = 0; i < r->s.taps; i++) {
        if (t + i + 1 < r->s.taps) continue;
        uint32_t from = t + i + 1 - r->s.taps;
        float x = r->x[(size_t)from * r->c[QC] + r->c[which] + c];
        acc += (double)r->weight[which][c * r->s.taps + i] * (from == t ? (double)x : stored(x, r->s.type));
    }
    return acc / (1 + exp(-acc));
}
static double reference(const struct rig *r, const float *got, double *scale)
{
    double worst = 0;
    uint32_t dk = r->s.dk, dv = r->s.dv;
    for (uint32_t h = 0; h < r->s.heads; h++) {
        double *s = calloc((size_t)dk * dv, sizeof *s);
        for (uint32_t t = 0; t < r->s.n; t++) {
            const float *x = r->x + (size_t)t * r->c[QC];
            for (uint32_t d = 0; d < dk; d++) {
                uint32_t c = h * dk + d;
                double z = (double)x[r->c[G] + c] + (double)r->weight[4][c], a = exp((double)r->weight[3][h]);
                double g = r->s.bounded ? -5 / (1 + exp(-a * z)) : -a * (z > 30 ? z : log1p(exp(z)));
                for (uint32_t i = 0; i < dv; i++) s[d * dv + i] *= exp(g);
            }
            for (uint32_t i = 0; i < dv; i++) {
                double sk = 0, o = 0, v = conv(r, V, t, h * dv + i);
                for (uint32_t d = 0; d < dk; d++) sk += s[d * dv + i] * conv(r, K, t, h * dk + d);
                for (uint32_t d = 0; d < dk; d++) s[d * dv + i] += (double)x[r->c[BETA] + h] * conv(r, K, t, h * dk + d) * (v - sk);
                for (uint32_t d = 0; d < dk; d++) o += s[d * dv + i] * conv(r, Q, t, h * dk + d);
                worst = fmax(worst, fabs(o - (double)got[(size_t)t * r->vw + h * dv + i]));
                *scale = fmax(*scale, fabs(o));
                if (isnan(got[(size_t)t * r->vw + h * dv + i])) worst = INFINITY;
            }
        }
        free(s);
    }
    return worst;
}

START_TEST(core)
{
    struct rig r = rig_open(&shapes[_i]);
    size_t n = (size_t)r.s.n * r.vw;
    float *want = malloc(n * 4), *got = malloc(n * 4);
    compute(&r, &(struct way){KRN_ISA_C, 1, r.s.n, 0}, want);
    if (r.s.dk <= 64) {
        double scale = 0, worst = reference(&r, want, &scale);
        ck_assert_msg(worst <= 2e-6 * scale, "shape %d: %g of %g", _i, worst, scale);
    }
    static const struct way ways[] = {{KRN_ISA_C, 1, 1, 0},    {KRN_ISA_C, 2, 7, 2},    {KRN_ISA_AVX2, 1, 64, 0}, {KRN_ISA_AVX2, 2, 1, 1},
                                      {KRN_ISA_AVX2, 2, 7, 2}, {KRN_ISA_AVX2, 2, 16, 1}, {KRN_ISA_AVX2, 2, 300, 0}, {KRN_ISA_AVX512, 2, 7, 1}};
    for (unsigned k = 0; k < sizeof ways / sizeof *ways; k++) {
        if (!krn_isa_have(ways[k].isa)) continue;
        memset(got, 0, n * 4);
        compute(&r, &ways[k], got);
        ck_assert_msg(rows_equal(got, want, n), "shape %d, way %u", _i, k);
    }
    free(want);
    free(got);
    rig_close(&r);
}
END_TEST

/* Decays that underflow within a tile, and none at all: nothing overflows, nothing is NaN. */
START_TEST(limits)
{
    enum { DK = 16, DV = 16, N = 40 };
    static float q[N * DK], k[N * DK], v[N * DV], g[N * DK], beta[N], out[2][N * DV], s[DK * DV], tile[3 * DK * KRN_TILE];
    float *scratch = malloc(krn_delta_scratch(DK, DV) * sizeof *scratch);
    uint64_t seed = 5;
    rows_fill(q, N * DK, &seed, 1);
    rows_fill(k, N * DK, &seed, 0.3f);
    rows_fill(v, N * DV, &seed, 1);
    for (int i = 0; i < N; i++) beta[i] = 0.7f;
    for (int i = 0; i < N * DK; i++) g[i] = i % 3 == 0 ? -300.0f : i % 3 == 1 ? 0.0f : -1e-6f;
    for (int way = 0; way < 2; way++) {
        const struct krn_ops *ops = way ? rows_fast(0) : &krn_ops_c;
        if (!ops) continue;
        struct krn_delta d = {.ops = ops, .dk = DK, .dv = DV, .n = N, .q = q, .k = k, .v = v, .g = g, .beta = beta, .q_stride = DK, .k_stride = DK, .v_stride = DV,
                              .g_stride = DK, .beta_stride = 1, .out = out[way], .out_stride = DV, .s = s, .tile = tile};
        krn_delta_run(&d, scratch);
        for (int i = 0; i < N * DV; i++) ck_assert(isfinite(out[way][i]));
        if (way) ck_assert(rows_equal(out[0], out[1], N * DV));
    }
    free(scratch);
}
END_TEST

/* Attention residuals of every width and number of rows. */
START_TEST(mix_ways)
{
    enum { MAX = 130 };
    static float v[12][MAX], w[MAX], a[MAX], b[MAX];
    const float *list[12];
    uint64_t seed = 9;
    for (int i = 0; i < 12; i++) {
        rows_fill(v[i], MAX, &seed, 1);
        list[i] = v[i];
    }
    rows_fill(w, MAX, &seed, 0.3f);
    for (uint32_t n = 1; n <= MAX; n += n < 40 ? 1 : 17)
        for (uint32_t k = 1; k <= 12; k++) {
            const struct krn_ops *fast;
            krn_ops_c.mix(a, list, k, w, n, 1e-5f);
            for (unsigned i = 0; (fast = rows_fast(i)); i++) {
                fast->mix(b, list, k, w, n, 1e-5f);
                ck_assert_msg(rows_equal(a, b, n), "%u rows of %u", k, n);
            }
        }
}
END_TEST

static void refused(struct rig *r, const struct krn_op *op, const char *what)
{
    struct err e = {0};
    krn_backend *b;
    krn_list *l;
    struct krn_backend_config cfg = {.isa = KRN_ISA_C, .threads = 1, .rows_max = {4, 1}, .arena_cols = {r->c[END], 1}};
    ck_assert_int_eq(krn_cpu.open(&b, &cfg, &e), ERR_OK);
    ck_assert_int_ne(krn_cpu.record(b, op, 1, r->w, &l, &e), ERR_OK);
    ck_assert_msg(strstr(e.msg, what) != NULL, "%s", e.msg);
    krn_cpu.close(b);
}
START_TEST(errors)
{
    struct rig r = rig_open(&shapes[0]);
    struct krn_op op = r.ops[4];
    op.n_in = 4;
    refused(&r, &op, "too few inputs");
    op = r.ops[4];
    op.in[1].dim = op.in[1].head_stride = 16;
    refused(&r, &op, "one shape");
    op = r.ops[4];
    op.state = KRN_NO_STATE;
    refused(&r, &op, "no state");
    op = r.ops[4];
    op.out = view(r.c[QC], r.s.heads, r.s.dv);
    refused(&r, &op, "overlap");
    op = r.ops[0];
    op.weight[0] = 4;
    refused(&r, &op, "taps");
    op = r.ops[3];
    op.weight[0] = 4;
    refused(&r, &op, "A a head");
    op = (struct krn_op){.code = KRN_MIX, .n_in = 2, .n_weights = 2, .weight = {KRN_NO_WEIGHT, 4}, .in = {view(r.c[Q], 1, r.kw), view(r.c[K], 1, r.kw)}, .out = view(r.c[KC], 1, r.kw)};
    refused(&r, &op, "list");
    struct krn_state_layout l = layout_of(&r);
    l.field[1].keep = KRN_STATE_ROWS + 1;
    ck_assert(!krn_state_layout_init(&l));
    l = layout_of(&r);
    l.field[0].heads = l.field[0].dk = l.field[0].dv = UINT32_MAX;
    ck_assert(!krn_state_layout_init(&l));
    /* A step whose state is of another shape. */
    struct err e = {0};
    struct krn_backend_config cfg = {.isa = KRN_ISA_C, .threads = 1, .rows_max = {4, 1}, .arena_cols = {r.c[END], 1}};
    krn_backend *b;
    krn_list *list;
    uint32_t pos = 0, slot = 0;
    struct krn_seq q = {0, 1, 0, false};
    struct krn_states st = {.layout = layout_of(&r)};
    st.layout.field[0].dv++;
    ck_assert(krn_state_layout_init(&st.layout));
    ck_assert_int_eq(krn_cpu.open(&b, &cfg, &e), ERR_OK);
    ck_assert_int_eq(krn_cpu.record(b, r.ops, 5, r.w, &list, &e), ERR_OK);
    struct krn_step step = {.n_tokens = 1, .n_seqs = 1, .pos = &pos, .seqs = &q, .n_states = 1, .states = &st, .slots = &slot};
    ck_assert_int_eq(krn_cpu.submit(b, list, &step, &e), ERR_INVALID);
    step.n_states = 0;
    ck_assert_int_eq(krn_cpu.submit(b, list, &step, &e), ERR_INVALID);
    krn_cpu.list_free(list);
    krn_cpu.close(b);
    rig_close(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("delta");
    TCase *t = tcase_create("core");
    tcase_set_timeout(t, 600);
    tcase_add_test(t, known);
    tcase_add_test(t, recurrence);
    tcase_add_test(t, softplus);
    tcase_add_loop_test(t, core, 0, N_SHAPES);
    tcase_add_test(t, limits);
    tcase_add_test(t, mix_ways);
    tcase_add_test(t, errors);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
