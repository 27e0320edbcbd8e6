/* kernels/cpu_experts.c - routed experts: rows are dealt to the experts that the router chose, each expert's matrices meet all of
 * its rows at once, and nothing of another expert is touched.
 *
 *   out = w_0 y_0, then out = out + w_i y_i (product and sum rounded each), i over the row's experts as the routing lists them,
 *   y_e = down_e(act(gate_e h, up_e h)) by linear.h and act.h (biases where there are)
 *
 * A row's result is a chain of its own: company, chunk, portions and threads cannot change a bit: a few pairs keep what their experts said
 * until the last portion adds it up in order; many add it at once, which is why their portions ascend. Work is handed out in units: for gate and up
 * 64 columns of one expert (both matrices, activation and quantisation of the result follow at once), for down some output tiles
 * of all experts, summed on the spot. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu_internal.h"

enum { B = KRN_OPERAND_BLOCK, G = KRN_OPERAND_GROUP, R = KRN_TILE_ROWS, UNIT = 64, DOWN_TILES = 4, DOWN_PAIRS = 256 };

/* ---- buffers --------------------------------------------------------------------------------------------------------- */
static size_t pairs_max(const struct krn_backend_config *c) { return (size_t)c->rows_max[0] * c->experts.k; }
static size_t kept(const struct krn_backend_config *c) { return pairs_max(c) < KRN_PORTION_PAIRS ? pairs_max(c) : KRN_PORTION_PAIRS; }
static size_t aligned(size_t n) { return (n + 63) & ~(size_t)63; }
static size_t quant_bytes(size_t pairs, uint32_t cols) { return pairs <= UINT32_MAX ? krn_operand_bytes((uint32_t)pairs, cols) : 0; }

size_t cpu_experts_bytes(const struct krn_backend_config *c)
{
    size_t pairs = pairs_max(c), q1, q2;
    if (!c->experts.n) return 0;
    q1 = quant_bytes(pairs, c->experts.in);
    q2 = quant_bytes(pairs, c->experts.mid);
    if (!q1 || !q2 || pairs > SIZE_MAX / 64 / ((size_t)c->experts.in + c->experts.mid + 1)) return SIZE_MAX;
    return q1 + q2 + pairs * 4 * ((size_t)c->experts.in + c->experts.mid) + kept(c) * 4 * c->experts.out + pairs * 8 + c->experts.n * (2 * sizeof(struct cpu_group) + 4);
}

bool cpu_experts_open(struct cpu_experts *x, const struct krn_backend_config *c)
{
    size_t pairs = pairs_max(c);
    if (!c->experts.n) return true;
    x->group = calloc(c->experts.n, sizeof *x->group);
    x->run = calloc(c->experts.n, sizeof *x->run);
    x->count = calloc(c->experts.n, sizeof *x->count);
    x->row = calloc(pairs, sizeof *x->row);
    x->pair = calloc(pairs, sizeof *x->pair);
    x->x = aligned_alloc(64, aligned(pairs * c->experts.in * sizeof *x->x));
    x->mid = aligned_alloc(64, aligned(pairs * c->experts.mid * sizeof *x->mid));
    x->x_quant = aligned_alloc(64, aligned(quant_bytes(pairs, c->experts.in)));
    x->mid_quant = aligned_alloc(64, aligned(quant_bytes(pairs, c->experts.mid)));
    x->y = aligned_alloc(64, aligned(kept(c) * c->experts.out * sizeof *x->y) + 64);
    return x->group && x->run && x->count && x->y && x->row && x->pair && x->x && x->mid && x->x_quant && x->mid_quant;
}

void cpu_experts_close(struct cpu_experts *x)
{
    free(x->y);
    free(x->mid_quant);
    free(x->x_quant);
    free(x->mid);
    free(x->x);
    free(x->pair);
    free(x->row);
    free(x->count);
    free(x->run);
    free(x->group);
}

/* ---- record ---------------------------------------------------------------------------------------------------------- */
static const struct krn_weight *weight(const krn_list *l, unsigned slot, uint32_t expert)
{
    const struct krn_op *op = l->moe.op;
    return slot < op->n_weights && op->weight[slot] != KRN_NO_WEIGHT ? &l->weights[op->weight[slot] + expert] : NULL;
}

static int bad(const krn_list *l, struct err *e, const char *what)
{
    return err_set(e, ERR_INVALID, "call %zu, experts, layer %d: %s", (size_t)(l->moe.op - l->plan), l->moe.op->layer == KRN_NO_LAYER ? -1 : l->moe.op->layer, what);
}

static int check_weights(const krn_list *l, struct err *e)
{
    const struct cpu_moe *m = &l->moe;
    const uint32_t rows[3] = {m->mid, m->mid, m->n_out}, cols[3] = {m->n_in, m->n_in, m->mid};
    for (unsigned s = 0; s < 3; s++) {
        const struct krn_weight *first = weight(l, s, 0);
        if (!first) return bad(l, e, "expected gate, up and down");
        if (krn_linear_support(first->type, first->layout) == KRN_LINEAR_NONE)
            return err_set(e, ERR_UNSUPPORTED, "experts on %s weights (call %zu)", krn_types[first->type].name, (size_t)(m->op - l->plan));
        for (uint32_t i = 0; i < m->op->u.experts.n; i++) {
            const struct krn_weight *w = weight(l, s, i), *bias = weight(l, s + 3, i);
            if (w->rows != rows[s] || w->cols != cols[s]) return bad(l, e, "the shapes of gate, up and down do not fit together");
            if (w->type != first->type || w->layout != first->layout) return bad(l, e, "experts are stored in different ways");
            if (bias && ((uint64_t)bias->rows * bias->cols != w->rows || (bias->type != KRN_F32 && bias->type != KRN_F16 && bias->type != KRN_BF16)))
                return bad(l, e, "a bias does not have one number an output");
        }
    }
    return ERR_OK;
}

int cpu_experts_record(krn_backend *b, krn_list *l, struct err *e)
{
    struct cpu_moe *m = &l->moe;
    const struct krn_experts_max *max = &b->cfg.experts;
    const struct krn_weight *w = m->op->u.experts.n ? weight(l, 0, 0) : NULL;
    struct cpu_op *x = &l->ops[l->n];
    int rc;
    if (!w) return bad(l, e, "no expert, or no gate");
    m->mid = w->rows;
    if ((rc = check_weights(l, e))) return rc;
    if (m->op->u.experts.n > max->n || m->k > max->k || m->n_in > max->in || m->mid > max->mid || m->n_out > max->out) return bad(l, e, "larger than the backend was opened for");
    for (unsigned s = 0; s < 3; s++) {
        w = weight(l, s, 0);
        bool int8 = krn_linear_int8(w->type, w->layout, b->cfg.precision);
        if (s == 2) m->mid_int8 = int8;
        else if (int8) m->x_int8 = true;
        else m->x_f32 = true;
    }
    x[0] = (struct cpu_op){.kind = CPU_MOE_IN, .op = m->op, .n_in = 2, .in = {m->in, m->route}, .out = x->out};
    x[1] = x[2] = x[0];
    x[1].kind = CPU_MOE_UP;
    x[2].kind = CPU_MOE_DOWN;
    l->n += 3;
    return ERR_OK;
}

size_t cpu_experts_scratch(const krn_backend *b, const krn_list *l)
{
    size_t down = pairs_max(&b->cfg) * R, up = 2 * G * UNIT, in = (size_t)G * l->moe.n_in, few = (size_t)DOWN_PAIRS * DOWN_TILES * R;
    down = down > few ? down : few;
    up = up > in ? up : in;
    return down > up ? down : up;
}

/* ---- a step ---------------------------------------------------------------------------------------------------------- */
static const float *routing(const krn_list *l, uint32_t row, unsigned what) { return l->moe.route.p + row * l->moe.route.stride + what * l->moe.route.head; }

static int chosen(const krn_list *l, uint32_t row, uint32_t i, uint32_t *expert, struct err *e)
{
    float id = routing(l, row, 0)[i];
    if (!(id >= 0 && id < (float)l->moe.op->u.experts.n)) return err_set(e, ERR_INVALID, "experts, layer %u: row %u is routed to expert %g of %u", l->moe.op->layer, row, (double)id, l->moe.op->u.experts.n);
    *expert = (uint32_t)id;
    return ERR_OK;
}

/* Who goes where: read once a step, at the first portion. */
static int deal(krn_backend *b, const krn_list *l, struct err *e)
{
    struct cpu_experts *x = &b->experts;
    uint32_t rows = b->step->n_tokens, k = l->moe.k, n = l->moe.op->u.experts.n, expert = 0;
    int rc;
    x->n_groups = 0;
    x->n_pairs = rows * k;
    memset(x->count, 0, n * sizeof *x->count);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++) {
            if ((rc = chosen(l, r, i, &expert, e))) return rc;
            x->count[expert]++;
        }
    for (uint32_t i = 0, first = 0; i < n; i++) {
        uint32_t c = x->count[i];
        if (c) x->group[x->n_groups++] = (struct cpu_group){i, first, c};
        x->count[i] = first;
        first += c;
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < k; i++) {
            uint32_t p = x->count[(uint32_t)routing(l, r, 0)[i]]++;
            x->row[p] = r;
            x->pair[r * k + i] = p;
        }
    return ERR_OK;
}

/* The groups of this submit. Their weights must be there. */
static int choose(krn_backend *b, const krn_list *l, struct err *e)
{
    struct cpu_experts *x = &b->experts;
    const struct krn_portion *p = b->step->portion;
    uint32_t n = p ? p->n : x->n_groups, at = 0;
    x->n_run = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t expert = p ? p->experts[i] : x->group[i].expert;
        while (at < x->n_groups && x->group[at].expert < expert) at++;
        if (at == x->n_groups || x->group[at].expert != expert) return err_set(e, ERR_INVALID, "experts, layer %u: no row chose expert %u, or they do not ascend", l->moe.op->layer, expert);
        for (unsigned s = 0; s < l->moe.op->n_weights; s++)
            if (weight(l, s, expert) && !weight(l, s, expert)->data) return err_set(e, ERR_INVALID, "experts, layer %u: expert %u is not leased", l->moe.op->layer, expert);
        x->run[x->n_run++] = x->group[at++];
    }
    return ERR_OK;
}

int cpu_experts_prepare(krn_backend *b, const krn_list *l, struct err *e)
{
    const struct krn_portion *p = b->step->portion;
    int rc = ERR_OK;
    if (p && l->n_plan != 1) return err_set(e, ERR_INVALID, "a portion of experts: expected a list of one call, found %zu", l->n_plan);
    if (!p || p->first) rc = deal(b, l, e);
    return rc ? rc : choose(b, l, e);
}

/* Rows [first, first + n) of an operand as one with groups of its own. */
static struct krn_operand part(struct krn_operand a, size_t first, uint32_t n)
{
    size_t at = first * (a.cols / B);
    a.x += first * a.stride;
    a.n = n;
    krn_operand_skip(&a, at);
    return a;
}

/* One row goes to all its experts as it is; several are gathered by expert. */
static bool alone(const krn_backend *b) { return b->step->n_tokens == 1; }

static struct krn_operand inputs(const krn_backend *b, const struct cpu_group *g)
{
    const struct cpu_moe *m = &b->list->moe;
    const struct cpu_experts *x = &b->experts;
    struct krn_operand a;
    krn_operand_init(&a, alone(b) ? m->in.p : x->x, alone(b) ? m->in.stride : m->n_in, x->n_pairs, m->n_in, m->x_int8 ? x->x_quant : NULL);
    return part(a, alone(b) ? 0 : g->first, g->n);
}

static struct krn_operand middle(const krn_backend *b, const struct cpu_group *g)
{
    const struct cpu_moe *m = &b->list->moe;
    const struct cpu_experts *x = &b->experts;
    struct krn_operand a;
    krn_operand_init(&a, x->mid, m->mid, x->n_pairs, m->mid, m->mid_int8 ? x->mid_quant : NULL);
    return part(a, g->first, g->n);
}

static void gather(const krn_backend *b, const struct cpu_group *g, uint32_t r0, float *scratch)
{
    const struct cpu_moe *m = &b->list->moe;
    uint32_t n = g->n - r0 < G ? g->n - r0 : G;
    struct krn_operand a = part(inputs(b, g), r0, n);
    if (!alone(b)) {
        float *to = m->x_f32 ? b->experts.x + (size_t)(g->first + r0) * m->n_in : scratch;
        for (uint32_t i = 0; i < n; i++) memcpy(to + (size_t)i * m->n_in, m->in.p + b->experts.row[g->first + r0 + i] * m->in.stride, m->n_in * sizeof *to);
        a.x = to;
        a.stride = m->n_in;
    }
    if (m->x_int8) b->linear->quantise(&a, 0, n);
}

static void run_in(const krn_backend *b, float *scratch, unsigned worker, unsigned workers)
{
    uint32_t u = 0, groups = b->step->portion && !b->step->portion->first ? 0 : alone(b) ? 1 : b->experts.n_groups;
    worker = workers == 1 ? 0 : worker;
    for (const struct cpu_group *g = b->experts.group; g < b->experts.group + groups; g++)
        for (uint32_t r = 0; r < g->n; r += G, u++)
            if (u % workers == worker) gather(b, g, r, scratch);
}

/* Rows [row0, row0 + n) of a matrix and of its bias; row0 a multiple of 16. */
struct strip { struct krn_weight w, bias; bool biased; };
static struct strip strip_of(const krn_list *l, unsigned slot, uint32_t expert, uint32_t row0, uint32_t n)
{
    const struct krn_weight *w = weight(l, slot, expert), *bias = weight(l, slot + 3, expert);
    struct strip s = {.w = *w, .biased = bias != NULL};
    s.w.rows = n;
    s.w.data = (const uint8_t *)w->data + (w->layout == KRN_TILED ? row0 / R * krn_slot_bytes(w->type, KRN_TILED, R, w->cols) : row0 * krn_row_bytes(w->type, w->cols));
    if (bias) s.bias = (struct krn_weight){bias->type, KRN_PLAIN, 1, n, (const uint8_t *)bias->data + row0 * krn_types[bias->type].block_bytes};
    return s;
}

static void run_strip(const krn_backend *b, const struct strip *s, const struct krn_operand *a, float *y, size_t stride)
{
    struct krn_linear l = {&s->w, s->biased ? &s->bias : NULL, y, stride, krn_linear_int8(s->w.type, s->w.layout, b->cfg.precision)};
    b->linear->run(&l, a, 0, krn_linear_tiles(&s->w));
}

/* Columns [c0, c0 + n) of one expert's activations, for all its rows, and their quantisation. */
static void up_unit(const krn_backend *b, const struct cpu_group *g, uint32_t c0, float *scratch)
{
    const struct cpu_moe *m = &b->list->moe;
    const struct krn_op *op = m->op;
    const struct krn_glu p = {op->u.experts.act, op->u.experts.alpha, op->u.experts.limit, op->u.experts.beta, op->u.experts.beta_u};
    uint32_t cols = m->mid - c0 < UNIT ? m->mid - c0 : UNIT;
    struct strip gate = strip_of(b->list, 0, g->expert, c0, cols), up = strip_of(b->list, 1, g->expert, c0, cols);
    struct krn_operand in = inputs(b, g), mid = middle(b, g);
    float *u = scratch + G * UNIT;
    for (uint32_t r = 0; r < g->n; r += G) {
        uint32_t n = g->n - r < G ? g->n - r : G;
        struct krn_operand a = part(in, r, n), o = part(mid, r, n);
        float *y = b->experts.mid + (size_t)(g->first + r) * m->mid + c0;
        run_strip(b, &gate, &a, scratch, UNIT);
        run_strip(b, &up, &a, u, UNIT);
        for (uint32_t i = 0; i < n; i++) b->ops->glu(y + (size_t)i * m->mid, scratch + i * UNIT, u + i * UNIT, cols, &p);
        for (uint32_t c = c0; c < c0 + cols && m->mid_int8; c += B) { /* block c / 32 of n rows: an operand of one block */
            struct krn_operand one = o;
            one.x += c;
            one.cols = B;
            krn_operand_skip(&one, (size_t)(c / B) * n);
            b->linear->quantise(&one, 0, n);
        }
    }
}

static void down(const krn_backend *b, const struct cpu_group *g, uint32_t c0, uint32_t cols, float *y, size_t stride)
{
    struct strip s = strip_of(b->list, 2, g->expert, c0, cols);
    struct krn_operand a = middle(b, g);
    run_strip(b, &s, &a, y, stride);
}

/* Columns [c0, c0 + cols) of all rows, from what each of their experts said: pair p's at y + p * stride. */
static void sum_up(const krn_backend *b, const struct cpu_op *x, uint32_t c0, uint32_t cols, const float *y, size_t stride)
{
    const struct cpu_moe *m = &b->list->moe;
    for (uint32_t r = 0; r < b->step->n_tokens; r++) {
        const float *w = routing(b->list, r, 1);
        const uint32_t *pair = b->experts.pair + (size_t)r * m->k;
        float *out = x->out.p + r * x->out.stride + c0;
        b->ops->scale(out, y + pair[0] * stride, cols, w[0]);
        for (uint32_t i = 1; i < m->k; i++) b->ops->merge(out, y + pair[i] * stride, cols, 1, w[i]);
    }
}

/* One expert's part of the sums of its rows, at once: all experts below it have had their turn. */
static void add(const krn_backend *b, const struct cpu_op *x, const struct cpu_group *g, uint32_t c0, uint32_t cols, const float *y)
{
    const struct cpu_moe *m = &b->list->moe;
    for (uint32_t p = g->first; p < g->first + g->n; p++, y += cols) {
        uint32_t r = b->experts.row[p], i = 0;
        const uint32_t *pair = b->experts.pair + (size_t)r * m->k;
        float *out = x->out.p + r * x->out.stride + c0;
        while (pair[i] != p) i++;
        if (i) b->ops->merge(out, y, cols, 1, routing(b->list, r, 1)[i]);
        else b->ops->scale(out, y, cols, routing(b->list, r, 1)[0]);
    }
}

/* Output columns [c0, c0 + cols) of all rows: what each of their experts says, then the sums. */
static void down_unit(const krn_backend *b, const struct cpu_op *x, uint32_t c0, uint32_t cols, float *scratch)
{
    const struct cpu_experts *s = &b->experts;
    const struct krn_portion *part = b->step->portion;
    bool many = s->n_pairs > KRN_PORTION_PAIRS;
    size_t stride = part ? b->cfg.experts.out : cols;
    float *y = part && !many ? s->y + c0 : scratch;
    for (const struct cpu_group *g = s->run; g < s->run + s->n_run; g++)
        if (part && many) {
            down(b, g, c0, cols, scratch, cols);
            add(b, x, g, c0, cols, scratch);
        } else {
            down(b, g, c0, cols, y + g->first * stride, stride);
        }
    if (!part || (part->last && !many)) sum_up(b, x, c0, cols, y, stride);
}

bool cpu_experts_run(const krn_backend *b, struct cpu_op *x, unsigned worker, unsigned workers)
{
    const struct cpu_moe *m = &b->list->moe;
    float *scratch = b->scratch + worker * b->scratch_floats;
    bool last_op = x->kind == CPU_MOE_DOWN, last = false;
    if (x->kind == CPU_MOE_IN) {
        run_in(b, scratch, worker, workers);
        return false;
    }
    uint32_t width = !last_op ? UNIT : R * (b->experts.n_pairs <= DOWN_PAIRS ? DOWN_TILES : 1);
    uint32_t per = ((last_op ? m->n_out : m->mid) - 1) / width + 1, n = last_op ? per : per * b->experts.n_run;
    for (;;) {
        uint32_t u = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed), c0 = u % per * width;
        if (u >= n) return last;
        if (last_op) down_unit(b, x, c0, m->n_out - c0 < width ? m->n_out - c0 : width, scratch);
        else up_unit(b, &b->experts.run[u / per], c0, scratch);
        last = atomic_fetch_add_explicit(&x->done, 1, memory_order_acq_rel) + 1 == n;
    }
}
