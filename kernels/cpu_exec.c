/* kernels/cpu_exec.c - what each worker does: its share of every op of a list, meeting the others where cpu_order.c says. */
#include <string.h>
#include "kernels/cpu_internal.h"
#include "kernels/route.h"

/* Worker w's part of n things in units of g. */
struct part { uint32_t from, to; };
static struct part part_of(uint32_t n, uint32_t g, unsigned w, unsigned workers)
{
    w = workers == 1 ? 0 : w; /* a single actor, whichever worker it is */
    uint64_t units = ((uint64_t)n + g - 1) / g, a = units * w / workers * g, b = units * (w + 1) / workers * g;
    return (struct part){(uint32_t)(a < n ? a : n), (uint32_t)(b < n ? b : n)};
}

static float *at(const struct cpu_view *v, uint32_t row, uint32_t head) { return v->p + row * v->stride + head * v->head; }

/* A vector of weights as f32: itself, or expanded into the worker's scratch. */
static const float *vector(const struct krn_weight *w, float *scratch)
{
    if (!w) return NULL;
    if (w->type == KRN_F32) return w->data;
    krn_expand(w->type, w->data, (size_t)w->rows * w->cols, scratch);
    return scratch;
}

/* Channels [c0, c1) of one head of one row. */
static void element_op(const struct krn_ops *f, const struct cpu_op *x, uint32_t row, uint32_t head, uint32_t c0, uint32_t c1)
{
    const struct krn_op *op = x->op;
    const float *a = at(&x->in[0], row, head) + c0, *b = x->n_in > 1 ? at(&x->in[1], row, head) : NULL;
    float *out = at(&x->out, row, head) + c0;
    size_t n = c1 - c0;
    switch (op->code) {
    case KRN_ADD: f->add(out, a, b + c0, n); break;
    case KRN_MUL:
        if (x->in[1].dim == 1 && x->out.dim > 1) f->scale(out, a, n, b[0]);
        else f->mul(out, a, b + c0, n);
        break;
    case KRN_SCALE: f->scale(out, a, n, op->u.scalar.c); break;
    case KRN_SOFTCAP: f->softcap(out, a, n, op->u.scalar.c); break;
    case KRN_SIGMOID: f->sigmoid(out, a, n); break;
    case KRN_SILU: f->silu(out, a, n); break;
    case KRN_COPY: memmove(out, a, n * sizeof *a); break;
    case KRN_GLU: {
        struct krn_glu p = {op->u.glu.act, op->u.glu.alpha, op->u.glu.limit, op->u.glu.beta, op->u.glu.beta_u};
        f->glu(out, a, b + c0, n, &p);
        break;
    }
    default: break;
    }
}

/* A token's row lies in one of the tiles. */
static void embed_row(const struct krn_weight *w, const struct krn_op *op, uint32_t token, float *out)
{
    uint32_t tile = op->u.embed.tiles > 1 ? token / op->u.embed.tile_rows : 0;
    krn_weight_row(w + tile, token - tile * op->u.embed.tile_rows, out);
}

static void row_op(const krn_backend *b, const struct cpu_op *x, uint32_t row, const float *w)
{
    const struct krn_ops *f = b->ops;
    const struct krn_op *op = x->op;
    uint32_t dim = x->out.dim;
    for (uint32_t h = 0; h < x->out.heads; h++) {
        float *out = at(&x->out, row, h);
        switch (op->code) {
        case KRN_EMBED:
            embed_row(cpu_weight(b->list, op, 0), op, (uint32_t)b->step->tokens[row], out);
            if (op->u.embed.scale != 1.0f) f->scale(out, out, dim, op->u.embed.scale);
            break;
        case KRN_RMSNORM: f->rmsnorm(out, at(&x->in[0], row, h), w, dim, op->u.norm.eps, op->u.norm.offset); break;
        case KRN_L2NORM: f->l2norm(out, at(&x->in[0], row, h), dim, op->u.norm.eps); break;
        case KRN_ROPE: {
            const struct cpu_rope *t = &b->ropes[op->u.rope.table];
            size_t n = b->cfg.ropes[op->u.rope.table].n_freq;
            f->rope(out, at(&x->in[0], row, h), t->c + row * n, t->s + row * n, n, dim, op->u.rope.pairs);
            break;
        }
        case KRN_PICK: memcpy(out, at(&x->in[0], b->step->picks[row], h), dim * sizeof *out); break;
        default: element_op(f, x, row, h, 0, dim); break;
        }
    }
}

static void route_row(const krn_backend *b, const struct cpu_op *x, uint32_t row, const float *bias, float *scratch)
{
    const struct krn_op *op = x->op;
    struct krn_router_spec p = {op->u.route.kind, x->in[0].dim, op->u.route.k, op->u.route.groups, op->u.route.keep, op->u.route.norm, op->u.route.norm_eps, op->u.route.scale};
    krn_route(b->ops, &p, at(&x->in[0], row, 0), bias, scratch, at(&x->out, row, 0), at(&x->out, row, 1));
}

/* decay: a head's a = exp(A), or -A where the file has it raised. Vectors are A [heads], dt [heads * dim]. */
static void decay_op(const krn_backend *b, const struct cpu_op *x, uint32_t row, const float *a, const float *dt)
{
    const struct krn_op *op = x->op;
    for (uint32_t h = 0; h < x->out.heads; h++) {
        float raised = -a[h];
        if (!op->u.decay.raised) b->ops->exp(&raised, a + h, 1);
        b->ops->decay(at(&x->out, row, h), at(&x->in[0], row, h), dt + (size_t)h * x->out.dim, x->out.dim, raised, op->u.decay.bounded, op->u.decay.lower);
    }
}
static void mix_op(const krn_backend *b, const struct cpu_op *x, uint32_t row, const float *w)
{
    const float *v[KRN_MIX_MAX];
    uint32_t n = x->in[0].list;
    for (uint32_t i = 0; i < n; i++) v[i] = at(&x->in[0], row, 0) + i * x->in[0].list_step;
    v[n] = at(&x->in[1], row, 0);
    b->ops->mix(at(&x->out, row, 0), v, n + 1, w, x->out.dim, x->op->u.norm.eps);
}
/* Row operators with two vectors of weights: expanded, or multiplied, once for the worker's rows. */
static void two_vectors(const krn_backend *b, const struct cpu_op *x, uint32_t from, uint32_t to, float *scratch)
{
    const struct krn_weight *w0 = cpu_weight(b->list, x->op, 0), *w1 = cpu_weight(b->list, x->op, 1);
    const float *p = vector(w0, scratch), *q = vector(w1, scratch + (w0 ? (size_t)w0->rows * w0->cols : 0));
    bool mixes = x->op->code == KRN_MIX;
    if (mixes && p) b->ops->mul(scratch, p, q, x->out.dim); /* in place is fine */
    for (uint32_t r = from; r < to; r++) {
        if (mixes) mix_op(b, x, r, p ? scratch : q);
        else decay_op(b, x, r, p, q);
    }
}

static void run_rows(const krn_backend *b, const struct cpu_op *x, unsigned class, unsigned worker, unsigned workers)
{
    uint32_t n = cpu_rows(b, &x->out);
    float *scratch = b->scratch + worker * b->scratch_floats;
    if (cpu_deal_of(x, class) == CPU_BY_COLS) {
        struct part c = part_of(x->out.dim, 32, worker, workers);
        for (uint32_t r = 0; r < n && c.from < c.to; r++) element_op(b->ops, x, r, 0, c.from, c.to);
        return;
    }
    struct part p = part_of(n, 1, worker, workers);
    if (p.from == p.to) return;
    if (x->op->code == KRN_DECAY || x->op->code == KRN_MIX) {
        two_vectors(b, x, p.from, p.to, scratch);
        return;
    }
    bool route = x->op->code == KRN_ROUTE;
    const float *w = x->op->code == KRN_RMSNORM || route ? vector(cpu_weight(b->list, x->op, 0), scratch) : NULL;
    for (uint32_t r = p.from; r < p.to; r++) {
        if (route) route_row(b, x, r, w, scratch + x->in[0].dim);
        else row_op(b, x, r, w);
    }
}

/* ---- linear ---------------------------------------------------------------------------------------------------------- */
static struct krn_operand act_of(const krn_backend *b, const struct cpu_view *in)
{
    struct krn_operand a;
    krn_operand_init(&a, in->p, in->stride, cpu_rows(b, in), in->dim, b->quant);
    return a;
}

static void run_quantise(const krn_backend *b, const struct cpu_op *x, unsigned worker, unsigned workers)
{
    struct part p = part_of(cpu_rows(b, &x->in[0]), 1, worker, workers);
    if (p.from == p.to) return;
    struct krn_operand a = act_of(b, &x->in[0]);
    b->linear->quantise(&a, p.from, p.to - p.from);
}

/* Tiles of all calls, counted through, are handed out in runs, each a worker's half of what is left: long ones for most of the work,
 * short ones at the end, where they even out what the workers (and whoever interrupts them) made unequal. false: none is left. */
static bool take_tiles(struct cpu_op *x, unsigned workers, uint32_t *from, uint32_t *to)
{
    uint32_t t = atomic_load_explicit(&x->next, memory_order_relaxed), run;
    do {
        if (t >= x->tiles) return false;
        run = workers == 1 ? x->tiles : (x->tiles - t) / (2 * workers);
        if (!run) run = 1;
    } while (!atomic_compare_exchange_weak_explicit(&x->next, &t, t + run, memory_order_relaxed, memory_order_relaxed));
    *from = t;
    *to = t + run;
    return true;
}

/* true: this worker finished the last piece. */
static bool run_linear(const krn_backend *b, struct cpu_op *x, unsigned worker, unsigned workers)
{
    struct krn_operand a = act_of(b, &x->in[0]);
    bool last = false;
    for (uint32_t t, end; take_tiles(x, workers, &t, &end);) {
        for (uint32_t i = 0, first = 0; i < x->n_linear && first < end; i++) {
            const struct krn_op *op = x->op + i;
            const struct krn_weight *w = cpu_weight(b->list, op, 0);
            const struct cpu_view *out = i ? &x->in[i] : &x->out;
            uint32_t n = krn_linear_tiles(w), from = t > first ? t - first : 0, to = end - first < n ? end - first : n;
            struct krn_linear l = {w, cpu_weight(b->list, op, 1), out->p, out->stride, krn_linear_int8(w->type, w->layout, b->cfg.precision)};
            if (from < to) {
                b->linear->run(&l, &a, from, to - from);
                cpu_time(b, worker, KRN_LINEAR, w->type);
            }
            first += n;
        }
        last = atomic_fetch_add_explicit(&x->done, end - t, memory_order_acq_rel) + (end - t) == x->tiles;
    }
    return last;
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */
struct krn_attend cpu_attend_of(const struct krn_backend *b, const struct cpu_op *x)
{
    const struct cpu_geometry *g = &b->geometry[x->geometry];
    struct cpu_view q = x->in[0], out = x->out;
    if (g->latent) q = out = (struct cpu_view){.p = b->latent, .stride = (size_t)g->heads * g->dim, .head = g->dim};
    return (struct krn_attend){
        .ops = b->ops, .q = q.p, .out = out.p, .q_stride = q.stride, .out_stride = out.stride, .q_head = q.head,
        .out_head = out.head, .heads = g->heads, .kv_heads = g->kv_heads, .dim = g->dim, .dim_v = g->dim_v, .layer = x->op->state_layer,
        .window = g->window, .latent = g->latent, .scale = x->op->u.attend.scale, .softcap = x->op->u.attend.softcap, .seqs = b->step->seqs,
        .n_seqs = b->step->n_seqs, .pages = &b->step->groups[g->state]};
}

static void run_store(const krn_backend *b, const struct cpu_op *x, unsigned worker, unsigned workers)
{
    struct part p = part_of(b->step->n_tokens, 1, worker, workers);
    struct krn_attend a = cpu_attend_of(b, x);
    for (uint32_t r = p.from; r < p.to; r++) {
        const struct krn_seq *s = &b->step->seqs[b->row_seq[r]];
        if (a.latent) krn_attend_store_latent(&a, b->row_seq[r], s->pos0 + (r - s->first), at(&x->in[2], r, 0), at(&x->in[3], r, 0));
        else krn_attend_store(&a, b->row_seq[r], s->pos0 + (r - s->first), at(&x->in[1], r, 0), x->in[1].head, at(&x->in[2], r, 0), x->in[2].head);
    }
}

static bool run_attend(const krn_backend *b, struct cpu_op *x, unsigned worker)
{
    const struct cpu_geometry *g = &b->geometry[x->geometry];
    struct krn_attend a = cpu_attend_of(b, x);
    float *scratch = b->scratch + worker * b->scratch_floats;
    a.sinks = a.latent ? NULL : vector(cpu_weight(b->list, x->op, 0), scratch);
    for (bool last = false;;) {
        uint32_t u = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed), n = g->work.n_items * g->kv_heads;
        if (u >= n) return last;
        krn_attend_run(&a, &g->work, u, scratch + ((g->heads + 15) & ~15u), b->slots, g->left);
        last = atomic_fetch_add_explicit(&x->done, 1, memory_order_acq_rel) + 1 == n;
    }
}

/* ---- latent attention: queries into the latent, contexts out of it --------------------------------------------------- */
static void absorb_head(const krn_backend *b, const struct cpu_op *x, uint32_t head, float *scratch)
{
    const struct cpu_geometry *g = &b->geometry[x->geometry];
    size_t stride = (size_t)g->heads * g->dim, rank = g->dim_v;
    struct krn_absorb a = {
        .ops = b->ops, .linear = b->linear, .k_up = cpu_weight(b->list, x->op, 0), .turned = x->op->u.attend.turned, .nope = x->in[0].dim,
        .rank = g->dim_v, .n = b->step->n_tokens, .qn = at(&x->in[0], 0, head), .x_stride = x->in[0].stride, .q = b->latent + head * g->dim, .q_stride = stride};
    krn_latent_absorb(&a, head, scratch);
    for (uint32_t r = 0; r < a.n; r++) memcpy(a.q + r * stride + rank, at(&x->in[1], r, head), (g->dim - rank) * sizeof(float));
}

static void unfold_head(const krn_backend *b, const struct cpu_op *x, uint32_t head, float *scratch)
{
    const struct cpu_geometry *g = &b->geometry[x->geometry];
    uint32_t vd = x->out.dim;
    krn_latent_rows(b->linear, cpu_weight(b->list, x->op, 1), head * vd, vd, b->latent + head * g->dim, (size_t)g->heads * g->dim, b->step->n_tokens,
                    at(&x->out, 0, head), x->out.stride, scratch);
}

static bool run_heads(const krn_backend *b, struct cpu_op *x, unsigned worker)
{
    uint32_t n = b->geometry[x->geometry].heads;
    float *scratch = b->scratch + worker * b->scratch_floats;
    for (bool last = false;;) {
        uint32_t head = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed);
        if (head >= n) return last;
        (x->kind == CPU_ABSORB ? absorb_head : unfold_head)(b, x, head, scratch);
        last = atomic_fetch_add_explicit(&x->done, 1, memory_order_acq_rel) + 1 == n;
    }
}

/* ---- a list ---------------------------------------------------------------------------------------------------------- */
static void make_angles(const krn_backend *b, unsigned worker, unsigned workers)
{
    struct part p = part_of(b->rope_rows, 1, worker, workers);
    for (uint32_t i = 0; i < b->cfg.n_ropes; i++) {
        const struct krn_rope_table *t = &b->cfg.ropes[i];
        struct krn_rope_table far = *t;
        if (t->inv_freq_far) far.inv_freq = t->inv_freq_far;
        for (uint32_t r = p.from; r < p.to; r++) {
            uint32_t pos[3] = {b->rope_pos[0][r], b->rope_pos[1][r], b->rope_pos[2][r]};
            krn_rope_angles(b->rope_far[r] ? &far : t, pos, b->ropes[i].c + (size_t)r * t->n_freq, b->ropes[i].s + (size_t)r * t->n_freq);
        }
    }
}

static void time_op(const krn_backend *b, const struct cpu_op *x, unsigned worker)
{
    if (x->kind == CPU_LINEAR) return; /* its pieces have been timed */
    const struct krn_weight *w = x->op->code == KRN_RMSNORM || x->op->code == KRN_ATTEND ? NULL : cpu_weight(b->list, x->op, 0);
    if (x->kind == CPU_QUANTISE) cpu_time(b, worker, CPU_TIME_QUANTISE, KRN_F32);
    else if (x->kind == CPU_STORE) cpu_time(b, worker, CPU_TIME_STORE, KRN_F32);
    else cpu_time(b, worker, x->op->code, w ? w->type : KRN_F32);
}

/* true: this worker finished the last piece of a parallel op. */
static bool run_op(const krn_backend *b, struct cpu_op *x, unsigned class, unsigned worker, unsigned workers)
{
    if (!cpu_rows(b, &x->out)) return worker == 0; /* nothing is picked in the middle of a prefill */
    switch (x->kind) {
    case CPU_ROW: run_rows(b, x, class, worker, workers); break;
    case CPU_QUANTISE: run_quantise(b, x, worker, workers); break;
    case CPU_STORE: run_store(b, x, worker, workers); break;
    case CPU_LINEAR: return run_linear(b, x, worker, workers);
    case CPU_ATTEND: return run_attend(b, x, worker);
    case CPU_CONV: case CPU_DELTA: return cpu_run_state(b, x, worker);
    case CPU_ABSORB: case CPU_UNFOLD: return run_heads(b, x, worker);
    case CPU_MOE_IN: case CPU_MOE_UP: case CPU_MOE_DOWN: return cpu_experts_run(b, x, worker, workers);
    }
    return false;
}

static void meet(const krn_backend *b, unsigned worker)
{
    pool_barrier(b->pool, worker);
    cpu_time(b, worker, CPU_TIME_WAIT, KRN_F32);
}

static void run_dealt(krn_backend *b, unsigned class, unsigned worker, unsigned workers)
{
    for (size_t i = 0; i < b->list->n; i++) {
        struct cpu_op *x = &b->list->ops[i];
        if (workers > 1 && (x->barrier >> class & 1)) meet(b, worker);
        run_op(b, x, class, worker, workers);
        time_op(b, x, worker);
    }
}

/* One row: small ops as the tail of the parallel op before them (cpu_order.c). */
static void run_one(krn_backend *b, unsigned worker, unsigned workers)
{
    for (size_t i = 0; i < b->list->n; i++) {
        struct cpu_op *x = &b->list->ops[i];
        if (x->barrier >> CPU_CLASS_ONE & 1) meet(b, worker);
        if (cpu_parallel(x)) {
            bool last = run_op(b, x, CPU_CLASS_ONE, worker, workers);
            time_op(b, x, worker);
            for (uint32_t k = 1; k <= x->tail && last; k++) {
                run_op(b, x + k, CPU_CLASS_ONE, worker, 1);
                time_op(b, x + k, worker);
            }
            i += x->tail;
        } else if (worker == 0) {
            run_op(b, x, CPU_CLASS_ONE, 0, 1);
            time_op(b, x, 0);
        }
    }
}

void cpu_job(void *backend, unsigned worker, unsigned workers)
{
    krn_backend *b = backend;
    cpu_time_start(b, worker);
    if (b->make_angles) {
        make_angles(b, worker, workers);
        cpu_time(b, worker, CPU_TIME_ANGLES, KRN_F32);
        if (workers > 1) meet(b, worker);
    }
    if (workers > 1 && b->step->n_tokens <= 1 && b->step->n_picks <= 1) run_one(b, worker, workers);
    else run_dealt(b, (b->step->n_tokens < workers ? 1u : 0) | (b->step->n_picks < workers ? 2u : 0), worker, workers);
}
