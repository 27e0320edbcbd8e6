/* kernels/cpu_backend.c - the CPU backend's front: opens arenas and workers, checks each step, runs a list on it.
 *
 * submit computes on the calling thread and the pool's workers and returns when all is done, so wait has nothing to do.
 * Everything a step brings (positions, sequences, page tables, tokens) is checked here, before any worker starts: a bad step
 * is an error, never a stray pointer. Nothing is allocated in submit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu_internal.h"
#include "kernels/step.h"

static enum krn_support cpu_supports(enum krn_opcode code, enum krn_type weight)
{
    switch (code) {
    case KRN_LINEAR: case KRN_EXPERTS: {
        int tiled = krn_slot_can(weight) ? krn_linear_support(weight, KRN_TILED) : KRN_LINEAR_NONE;
        if (tiled == KRN_LINEAR_FAST) return KRN_FAST;
        return tiled != KRN_LINEAR_NONE || krn_linear_support(weight, KRN_PLAIN) != KRN_LINEAR_NONE ? KRN_PLAIN_C : KRN_MISSING;
    }
    case KRN_EMBED: { /* rows are read singly: whatever can be expanded */
        float x[256];
        const uint8_t zero[4096] = {0};
        return (unsigned)weight < KRN_TYPE_COUNT && krn_types[weight].block && krn_expand(weight, zero, krn_types[weight].block, x) ? KRN_FAST : KRN_MISSING;
    }
    case KRN_ATTEND_MLA:
        return krn_linear_support(weight, krn_slot_can(weight) ? KRN_TILED : KRN_PLAIN) == KRN_LINEAR_NONE ? KRN_MISSING : KRN_FAST;
    case KRN_RMSNORM: case KRN_ATTEND: case KRN_ROUTE: case KRN_CONV1D: case KRN_DECAY: case KRN_MIX:
        return weight == KRN_F32 || weight == KRN_F16 || weight == KRN_BF16 ? KRN_FAST : KRN_MISSING;
    case KRN_L2NORM: case KRN_ADD: case KRN_MUL: case KRN_SCALE: case KRN_SIGMOID: case KRN_SILU: case KRN_SOFTCAP: case KRN_GLU:
    case KRN_ROPE: case KRN_PICK: case KRN_COPY: case KRN_DELTA:
        return KRN_FAST;
    default:
        return KRN_MISSING;
    }
}

/* ---- open ------------------------------------------------------------------------------------------------------------ */
static uint32_t rows_most(const struct krn_backend_config *c) { return c->rows_max[0] > c->rows_max[1] ? c->rows_max[0] : c->rows_max[1]; }

/* Bytes of arena a, of rope table i (cos and sin), of the quantised input; SIZE_MAX: the product does not fit. */
static size_t bytes3(size_t a, size_t b, size_t c)
{
    size_t n;
    return __builtin_mul_overflow(a, b, &n) || __builtin_mul_overflow(n, c, &n) || n > SIZE_MAX - 128 ? SIZE_MAX : (n + 63) & ~(size_t)63;
}
static size_t arena_bytes(const struct krn_backend_config *c, unsigned a) { return bytes3(c->arena_cols[a], c->rows_max[a], sizeof(float)); }
static size_t rope_bytes(const struct krn_backend_config *c, uint32_t i) { return bytes3(2 * (size_t)c->ropes[i].n_freq, c->rows_max[0], sizeof(float)); }
static size_t row_bytes(const struct krn_backend_config *c) { return bytes3(c->rows_max[0], 5, sizeof(uint32_t)); } /* sequence, 3 positions, list */
static size_t quant_bytes(const struct krn_backend_config *c) { return c->linear_cols_max ? krn_operand_bytes(rows_most(c), c->linear_cols_max) : 0; }

static size_t latent_bytes(const struct krn_backend_config *c) { return bytes3(c->latent_cols, c->rows_max[0], sizeof(float)); }

static size_t cpu_bytes(const struct krn_backend_config *c)
{
    size_t n = sizeof(krn_backend), parts[6] = {arena_bytes(c, 0), arena_bytes(c, 1), row_bytes(c), quant_bytes(c), latent_bytes(c), cpu_experts_bytes(c)};
    for (int i = 0; i < 6; i++)
        if (__builtin_add_overflow(n, parts[i], &n)) return SIZE_MAX;
    for (uint32_t i = 0; i < c->n_ropes; i++)
        if (__builtin_add_overflow(n, rope_bytes(c, i), &n)) return SIZE_MAX;
    return n;
}

static int check_config(const struct krn_backend_config *c, struct err *e)
{
    if (c->threads < 1 || c->threads > 256) return err_set(e, ERR_INVALID, "threads: expected 1..256, found %u", c->threads);
    if (c->pool && pool_workers(c->pool) != c->threads) return err_set(e, ERR_INVALID, "pool: expected %u workers, found %u", c->threads, pool_workers(c->pool));
    if (!c->rows_max[0] || rows_most(c) > 1u << 20) return err_set(e, ERR_INVALID, "rows of a step: expected 1..1048576, found %u", rows_most(c));
    for (uint32_t i = 0; i < 2 * c->n_ropes; i++) {
        const double *f = i % 2 ? c->ropes[i / 2].inv_freq_far : c->ropes[i / 2].inv_freq;
        for (uint32_t j = 0; f && j < c->ropes[i / 2].n_freq; j++)
            if (!(fabs(f[j]) <= 1024)) return err_set(e, ERR_INVALID, "rope table %u: frequency %u is %g", i / 2, j, f[j]);
    }
    if (!krn_isa_have(c->isa))
        return err_set(e, ERR_UNSUPPORTED, "kernels %s: this processor has%s%s c", krn_isa_name(c->isa), krn_isa_have(KRN_ISA_AVX512) ? " avx512" : "", krn_isa_have(KRN_ISA_AVX2) ? " avx2" : "");
    if (c->linear_cols_max && !quant_bytes(c)) return err_set(e, ERR_INVALID, "%u rows of %u columns are too many to quantise", rows_most(c), c->linear_cols_max);
    if (cpu_bytes(c) == SIZE_MAX) return err_set(e, ERR_NOMEM, "activation arenas of %u rows exceed the address space", rows_most(c));
    return ERR_OK;
}

static void *zeroed(size_t n)
{
    n = n ? n : 64;
    void *p = aligned_alloc(64, n);
    return p ? memset(p, 0, n) : NULL;
}

static void cpu_close(krn_backend *b)
{
    if (!b) return;
    if (!b->cfg.pool) pool_close(b->pool);
    for (uint32_t i = 0; i < b->n_geometries; i++) {
        free(b->geometry[i].work.items);
        free((void *)b->geometry[i].left);
    }
    for (uint32_t i = 0; b->ropes && i < b->cfg.n_ropes; i++) free(b->ropes[i].c);
    free(b->ropes);
    free(b->row_seq);
    free(b->slots);
    cpu_experts_close(&b->experts);
    free(b->scratch);
    free(b->quant);
    free(b->latent);
    free(b->times);
    free(b->arena[1]);
    free(b->arena[0]);
    free(b);
}

static enum krn_isa best_isa(enum krn_isa wish)
{
    if (wish != KRN_ISA_AUTO) return wish;
    return krn_isa_have(KRN_ISA_AVX512) ? KRN_ISA_AVX512 : krn_isa_have(KRN_ISA_AVX2) ? KRN_ISA_AVX2 : KRN_ISA_C;
}

static bool allocate(krn_backend *b)
{
    const struct krn_backend_config *c = &b->cfg;
    for (unsigned a = 0; a < 2; a++)
        if (!(b->arena[a] = zeroed(arena_bytes(c, a)))) return false;
    if (!(b->row_seq = zeroed(row_bytes(c)))) return false;
    for (unsigned i = 0; i < 3; i++) b->rope_pos[i] = b->row_seq + (i + 1) * (size_t)c->rows_max[0];
    b->rope_far = b->row_seq + 4 * (size_t)c->rows_max[0];
    if (quant_bytes(c) && !(b->quant = zeroed((quant_bytes(c) + 63) & ~(size_t)63))) return false;
    if (latent_bytes(c) && !(b->latent = zeroed(latent_bytes(c)))) return false;
    if (!cpu_experts_open(&b->experts, c)) return false;
    if (!(b->ropes = calloc(c->n_ropes + 1, sizeof *b->ropes))) return false;
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        if (!(b->ropes[i].c = zeroed(rope_bytes(c, i)))) return false;
        b->ropes[i].s = b->ropes[i].c + (size_t)c->ropes[i].n_freq * c->rows_max[0];
    }
    return true;
}

static int cpu_open(krn_backend **out, const struct krn_backend_config *cfg, struct err *e)
{
    krn_backend *b = NULL;
    int rc = check_config(cfg, e);
    *out = NULL;
    if (rc) return rc;
    if (!(b = calloc(1, sizeof *b))) return err_set(e, ERR_NOMEM, "a backend");
    b->cfg = *cfg;
    b->isa = best_isa(cfg->isa);
    b->ops = krn_ops_get(b->isa);
    b->linear = krn_linear_get(b->isa);
    if (!allocate(b)) rc = err_set(e, ERR_NOMEM, "activation arenas and scratch of %zu bytes", cpu_bytes(cfg));
    else if (!(b->pool = cfg->pool)) rc = pool_open(&b->pool, cfg->threads, e);
    if (rc) cpu_close(b);
    else *out = b;
    return rc;
}

/* ---- a step ---------------------------------------------------------------------------------------------------------- */
static int check_rows(krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e)
{
    int rc = krn_step_rows(s, b->cfg.rows_max, e);
    for (size_t i = 0; i < l->n && l->uses_tokens && !rc; i++)
        if (l->ops[i].op->code == KRN_EMBED) rc = krn_step_tokens(s, krn_step_vocab(l->ops[i].op, l->weights), e);
    for (size_t i = 0; i < l->n_plan && !rc; i++) /* of experts only the chosen ones are needed: cpu_experts_prepare */
        for (unsigned k = 0; k < l->plan[i].n_weights && l->plan[i].code != KRN_EXPERTS; k++) {
            const struct krn_weight *w = cpu_weight(l, &l->plan[i], k);
            if (w && !w->data) return err_set(e, ERR_INVALID, "call %zu, %s: weight %u is not leased", i, krn_op_name(l->plan[i].code), k);
        }
    return rc;
}

static struct krn_kv_need need_of(const struct cpu_geometry *g, uint32_t layer)
{
    return (struct krn_kv_need){.group = g->state, .layer = layer, .heads = g->latent ? 1 : g->kv_heads, .dim = g->dim, .dim_v = g->latent ? 0 : g->dim_v, .window = g->window};
}

static int prepare_attention(krn_backend *b, krn_list *l, const struct krn_step *s, struct err *e)
{
    int rc = krn_step_sequences(s, b->row_seq, e);
    uint32_t done = 0;
    for (size_t i = 0; i < l->n && !rc; i++) {
        struct cpu_op *x = &l->ops[i];
        struct cpu_geometry *g = &b->geometry[x->geometry];
        struct krn_kv_need need = need_of(g, x->op->state_layer);
        if (x->kind != CPU_ATTEND || (rc = krn_step_group(s, &need, e)) || (done >> x->geometry & 1)) continue;
        done |= 1u << x->geometry;
        if ((rc = krn_step_tables(s, &need, e))) break;
        struct krn_attend a = cpu_attend_of(b, x);
        krn_attend_cut(&a, &g->work, g->items_max, g->slot_floats, b->cfg.threads);
    }
    return rc;
}

/* true: the rows' lists (krn_seq.far) are those of the step before. */
static bool same_lists(krn_backend *b, const struct krn_step *s)
{
    bool same = true;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        for (uint32_t r = s->seqs[i].first; r < s->n_tokens && r - s->seqs[i].first < s->seqs[i].count; r++) {
            same = same && b->rope_far[r] == s->seqs[i].far;
            b->rope_far[r] = s->seqs[i].far;
        }
    return same;
}

/* Rope tables are a function of positions and lists alone: kept while these stay the same (the other lists of this step). */
static void prepare_angles(krn_backend *b, const krn_list *l, const struct krn_step *s)
{
    bool same = b->rope_rows == s->n_tokens;
    b->make_angles = false;
    if (!l->uses_rope) return;
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t *pos = s->pos_rows[i] ? s->pos_rows[i] : s->pos;
        same = same && !memcmp(b->rope_pos[i], pos, s->n_tokens * sizeof *pos);
        memmove(b->rope_pos[i], pos, s->n_tokens * sizeof *pos);
    }
    same = same_lists(b, s) && same;
    b->rope_rows = s->n_tokens;
    b->make_angles = !same;
}

static int cpu_submit(krn_backend *b, krn_list *l, const struct krn_step *step, struct err *e)
{
    int rc = check_rows(b, l, step, e);
    b->step = step;
    b->list = l;
    if (!rc && l->uses_states) rc = krn_step_sequences(step, b->row_seq, e);
    if (!rc && l->uses_states) rc = cpu_check_states(b, l, step, e);
    if (!rc && l->geometries) rc = prepare_attention(b, l, step, e);
    if (!rc && l->moe.op) rc = cpu_experts_prepare(b, l, e);
    if (rc || !step->n_tokens) return rc;
    prepare_angles(b, l, step);
    for (size_t i = 0; i < l->n; i++) {
        atomic_store_explicit(&l->ops[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&l->ops[i].done, 0, memory_order_relaxed);
    }
    pool_run(b->pool, cpu_job, b);
    return ERR_OK;
}

static int cpu_wait(krn_backend *b, struct err *e)
{
    (void)b;
    (void)e;
    return ERR_OK;
}

static const float *cpu_row(krn_backend *b, const struct krn_view *v, uint32_t r)
{
    unsigned a = v->rows == KRN_ROWS_PICKED;
    return b->arena[a] + (size_t)v->base * b->cfg.rows_max[a] + (size_t)r * v->stride + v->shift;
}

static const char *cpu_isa(const krn_backend *b) { return krn_isa_name(b->isa); }

const struct krn_backend_api krn_cpu = {
    .name = "cpu", .supports = cpu_supports, .open = cpu_open, .close = cpu_close, .bytes = cpu_bytes, .record = cpu_record,
    .list_free = cpu_list_free, .submit = cpu_submit, .wait = cpu_wait, .row = cpu_row, .times = cpu_times_take, .isa = cpu_isa,
};
