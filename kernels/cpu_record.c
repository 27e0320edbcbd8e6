/* kernels/cpu_record.c - turns plan calls into executable ops: every view checked against its arena and resolved, linears of
 * one input joined behind one quantisation, attention split into store and attend, scratch sized. */
#include <stdlib.h>
#include "kernels/cpu_internal.h"
#include "kernels/route.h"

struct rec {
    krn_backend *b;
    krn_list *l;
    const struct krn_op *op;
    struct cpu_op *x;
    struct err *e;
};

static int bad(struct rec *r, const char *what)
{
    return err_set(r->e, ERR_INVALID, "call %zu, %s, layer %d: %s", (size_t)(r->op - r->l->plan), krn_op_name(r->op->code),
                   r->op->layer == KRN_NO_LAYER ? -1 : r->op->layer, what);
}

static int resolve(struct rec *r, const struct krn_view *v, struct cpu_view *out)
{
    const struct krn_backend_config *c = &r->b->cfg;
    if (v->rows != KRN_ROWS_TOKENS && v->rows != KRN_ROWS_PICKED) return bad(r, "a register is neither of tokens nor of picked rows");
    unsigned a = v->rows == KRN_ROWS_PICKED;
    if (v->list && r->op->code != KRN_MIX) return bad(r, "a list register where one register is expected");
    if (!v->heads || !v->dim || (v->heads > 1 && v->head_stride < v->dim)) return bad(r, "a view without width, or with overlapping heads");
    uint64_t last = (uint64_t)v->shift + (uint64_t)(v->heads - 1) * v->head_stride + v->dim;
    if (last > v->stride || (uint64_t)v->base + (uint64_t)v->stride * (v->list ? v->list : 1) > c->arena_cols[a]) return bad(r, "a view reaches beyond its register or arena");
    *out = (struct cpu_view){
        .p = r->b->arena[a] + (size_t)v->base * c->rows_max[a] + v->shift, .stride = v->stride, .head = v->heads > 1 ? v->head_stride : v->dim,
        .heads = v->heads, .dim = v->dim, .lo = v->base, .hi = v->base + v->stride * (v->list ? v->list : 1), .rows = (uint8_t)a,
        .list = v->list, .list_step = (size_t)v->stride * c->rows_max[a]};
    return ERR_OK;
}

static bool flat(const struct cpu_view *v) { return v->heads == 1 || v->head == v->dim; }
static uint64_t width(const struct cpu_view *v) { return (uint64_t)v->heads * v->dim; }
static void flatten(struct cpu_view *v)
{
    v->dim *= v->heads;
    v->head = v->dim;
    v->heads = 1;
}

/* Elementwise: one run of numbers where every view allows it, else head by head. in[1] of a MUL may be one number a head. */
static int elementwise(struct rec *r, unsigned n_in)
{
    struct cpu_op *x = r->x;
    bool all_flat = flat(&x->out), scalars = n_in == 2 && r->op->code == KRN_MUL && x->in[1].dim == 1 && x->out.dim > 1;
    for (unsigned i = 0; i < n_in; i++) all_flat = all_flat && flat(&x->in[i]) && width(&x->in[i]) == width(&x->out);
    if (all_flat) {
        flatten(&x->out);
        for (unsigned i = 0; i < n_in; i++) flatten(&x->in[i]);
        return ERR_OK;
    }
    for (unsigned i = 0; i < n_in; i++)
        if (x->in[i].heads != x->out.heads || (x->in[i].dim != x->out.dim && !(scalars && i == 1))) return bad(r, "inputs and output differ in shape");
    return ERR_OK;
}

static int norm(struct rec *r)
{
    const struct cpu_op *x = r->x;
    const struct krn_weight *w = cpu_weight(r->l, r->op, 0);
    if (x->in[0].heads != x->out.heads || x->in[0].dim != x->out.dim) return bad(r, "input and output differ in shape");
    if (w && (r->op->code != KRN_RMSNORM || w->rows != 1 || w->cols != x->out.dim)) return bad(r, "the weight does not have one number a channel");
    return ERR_OK;
}

static int rope(struct rec *r)
{
    const struct cpu_op *x = r->x;
    if (x->in[0].rows || x->out.rows) return bad(r, "rope works on rows of tokens");
    if (r->op->u.rope.table >= r->b->cfg.n_ropes) return bad(r, "no such rope table");
    if (x->in[0].heads != x->out.heads || x->in[0].dim != x->out.dim) return bad(r, "input and output differ in shape");
    if (2ull * r->b->cfg.ropes[r->op->u.rope.table].n_freq > x->out.dim) return bad(r, "more rotated channels than the head has");
    r->l->uses_rope = true;
    return ERR_OK;
}

static int embed(struct rec *r)
{
    const struct krn_weight *w = cpu_weight(r->l, r->op, 0);
    if (!w || r->x->out.rows || !flat(&r->x->out) || w->cols != width(&r->x->out)) return bad(r, "expected a matrix as wide as the output");
    flatten(&r->x->out);
    r->l->uses_tokens = true;
    return ERR_OK;
}

static int route(struct rec *r)
{
    const struct cpu_view *in = &r->x->in[0], *out = &r->x->out;
    const struct krn_weight *bias = cpu_weight(r->l, r->op, 0);
    uint32_t n = in->dim, k = r->op->u.route.k, groups = r->op->u.route.groups, keep = r->op->u.route.keep;
    if (in->heads != 1 || out->heads != 2 || out->dim != k || in->rows || out->rows) return bad(r, "expected a row of scores, and k numbers and k weights");
    if (!k || k > KRN_ROUTE_K_MAX || !groups || n % groups || !keep || keep > groups || k > (uint64_t)keep * (n / groups)) return bad(r, "no such choice of experts");
    if (bias && (uint64_t)bias->rows * bias->cols != n) return bad(r, "the bias does not have one number an expert");
    return ERR_OK;
}

static uint64_t values(const struct krn_weight *w) { return (uint64_t)w->rows * w->cols; }

static int decay(struct rec *r)
{
    const struct cpu_op *x = r->x;
    const struct krn_weight *a = cpu_weight(r->l, r->op, 0), *dt = cpu_weight(r->l, r->op, 1);
    if (!a || !dt || values(a) != x->out.heads || values(dt) != width(&x->out)) return bad(r, "expected A a head and dt a channel");
    if (x->in[0].heads == 1 && flat(&x->in[0]) && width(&x->in[0]) == width(&x->out)) { /* the input comes as one row */
        r->x->in[0].heads = x->out.heads;
        r->x->in[0].dim = x->out.dim;
        r->x->in[0].head = x->out.dim;
    }
    return x->in[0].heads != x->out.heads || x->in[0].dim != x->out.dim ? bad(r, "input and output differ in shape") : ERR_OK;
}
static int mix(struct rec *r)
{
    const struct cpu_op *x = r->x;
    const struct krn_weight *norm_w = cpu_weight(r->l, r->op, 0), *proj = cpu_weight(r->l, r->op, 1);
    if (!x->in[0].list || x->in[0].list >= KRN_MIX_MAX || x->in[1].list || x->out.list) return bad(r, "expected a list of 1 to 63 registers and one beside it");
    for (unsigned i = 0; i < 2; i++)
        if (x->in[i].heads != 1 || x->in[i].dim != x->out.dim || x->out.heads != 1) return bad(r, "entries and output differ in shape");
    if (!proj || values(proj) != x->out.dim || (norm_w && values(norm_w) != x->out.dim)) return bad(r, "expected one weight a channel");
    return x->out.lo < x->in[0].hi && x->in[0].lo < x->out.hi ? bad(r, "the output is one of the entries") : ERR_OK;
}

static int row_op(struct rec *r)
{
    struct cpu_op *x = r->x;
    unsigned n_in = r->op->code == KRN_EMBED ? 0 : r->op->code == KRN_ADD || r->op->code == KRN_MUL || r->op->code == KRN_GLU || r->op->code == KRN_MIX ? 2 : 1;
    int rc = resolve(r, &r->op->out, &x->out);
    x->kind = CPU_ROW;
    x->n_in = (uint8_t)n_in;
    if (!rc && n_in > r->op->n_in) rc = bad(r, "too few inputs");
    for (unsigned i = 0; i < n_in && !rc; i++) {
        rc = resolve(r, &r->op->in[i], &x->in[i]);
        if (!rc && x->in[i].rows != (r->op->code == KRN_PICK ? 0 : x->out.rows)) rc = bad(r, "rows of tokens and picked rows do not mix");
    }
    if (rc) return rc;
    switch (r->op->code) {
    case KRN_EMBED: return embed(r);
    case KRN_RMSNORM: case KRN_L2NORM: return norm(r);
    case KRN_ROPE: return rope(r);
    case KRN_ROUTE: return route(r);
    case KRN_DECAY: return decay(r);
    case KRN_MIX: return mix(r);
    case KRN_PICK: if (!x->out.rows) return bad(r, "the output is not a register of picked rows"); break;
    default: break;
    }
    rc = elementwise(r, n_in);
    /* Below some thousand exponentials, or ten thousand sums, a barrier costs more than the second worker saves. */
    bool costly = r->op->code == KRN_GLU || r->op->code == KRN_SIGMOID || r->op->code == KRN_SILU || r->op->code == KRN_SOFTCAP;
    x->wide = !rc && r->op->code != KRN_PICK && x->out.heads == 1 && x->out.dim >= (costly ? 4096u : 16384u);
    return rc;
}

/* ---- linear ---------------------------------------------------------------------------------------------------------- */
static bool same_view(const struct krn_view *a, const struct krn_view *b)
{
    return a->base == b->base && a->shift == b->shift && a->stride == b->stride && a->heads == b->heads && a->dim == b->dim &&
           a->head_stride == b->head_stride && a->rows == b->rows;
}

static int linear_one(struct rec *r, struct cpu_view *in, struct cpu_view *out, bool *int8)
{
    const struct krn_weight *w = cpu_weight(r->l, r->op, 0), *bias = cpu_weight(r->l, r->op, 1);
    int rc = resolve(r, &r->op->in[0], in);
    if (!rc) rc = resolve(r, &r->op->out, out);
    if (rc) return rc;
    if (!w || r->op->n_in < 1) return bad(r, "no weight or no input");
    if (!flat(in) || !flat(out) || in->rows != out->rows) return bad(r, "input and output must be plain rows of one kind");
    if (w->cols != width(in) || w->rows != width(out)) return bad(r, "the weight's shape is not output times input");
    if (bias && (uint64_t)bias->rows * bias->cols != w->rows) return bad(r, "the bias does not have one number an output");
    if (in->lo < out->hi && out->lo < in->hi) return bad(r, "output and input overlap");
    if (krn_linear_support(w->type, w->layout) == KRN_LINEAR_NONE)
        return err_set(r->e, ERR_UNSUPPORTED, "linear on %s weights (call %zu)", krn_types[w->type].name, (size_t)(r->op - r->l->plan));
    if (w->cols > r->b->cfg.linear_cols_max) return bad(r, "an input wider than the plan's linear_cols_max");
    flatten(in);
    flatten(out);
    *int8 = krn_linear_int8(w->type, w->layout, r->b->cfg.precision);
    return ERR_OK;
}

/* Joins the calls that follow and read the same register; *taken says how many plan calls were used. */
static int linear(struct rec *r, size_t left, size_t *taken)
{
    struct cpu_op *q = r->x, *x = q + 1;
    const struct krn_op *first = r->op;
    bool any = false;
    int rc = ERR_OK;
    *x = (struct cpu_op){.kind = CPU_LINEAR, .op = first, .n_in = 1};
    for (uint32_t n = 0; n < 3 && n < left && first[n].code == KRN_LINEAR && !rc; n++) {
        struct cpu_view in, out;
        bool int8 = false;
        r->op = first + n;
        if (n && !same_view(&first->in[0], &r->op->in[0])) break;
        if ((rc = linear_one(r, &in, &out, &int8))) break;
        bool clash = n && out.rows == x->out.rows && out.lo < x->out.hi && x->out.lo < out.hi;
        for (unsigned i = 1; i < n; i++) clash = clash || (out.lo < x->in[i].hi && x->in[i].lo < out.hi);
        if (clash) break;
        any = any || int8;
        x->in[0] = in;
        if (n) x->in[n] = out;
        else x->out = out;
        x->n_linear = n + 1;
        x->tiles += krn_linear_tiles(cpu_weight(r->l, r->op, 0));
    }
    if (rc) return rc;
    *taken = x->n_linear;
    if (any) {
        *q = (struct cpu_op){.kind = CPU_QUANTISE, .op = first, .n_in = 1, .in = {x->in[0]}, .out = {.rows = x->in[0].rows}};
        r->l->n += 2;
    } else {
        *q = *x;
        r->l->n++;
    }
    return ERR_OK;
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */
static int geometry_of(struct rec *r, struct cpu_geometry g, uint32_t *index)
{
    krn_backend *b = r->b;
    for (uint32_t i = 0; i < b->n_geometries; i++) {
        const struct cpu_geometry *o = &b->geometry[i];
        if (o->state == g.state && o->heads == g.heads && o->kv_heads == g.kv_heads && o->dim == g.dim && o->dim_v == g.dim_v && o->window == g.window && o->latent == g.latent) {
            *index = i;
            return ERR_OK;
        }
    }
    if (b->n_geometries == CPU_GEOMETRIES) return bad(r, "more than 16 kinds of attention in one model");
    struct krn_attend a = {.heads = g.heads, .kv_heads = g.kv_heads, .dim = g.dim, .dim_v = g.dim_v};
    g.items_max = krn_attend_items_max(b->cfg.rows_max[0], b->cfg.threads);
    g.slot_floats = krn_attend_slot_floats(&a, b->cfg.threads);
    g.work.items = calloc(g.items_max, sizeof *g.work.items);
    g.left = calloc((size_t)g.items_max * g.kv_heads, sizeof *g.left);
    if (g.work.items && g.left && g.slot_floats > b->slots_floats) {
        free(b->slots);
        b->slots_floats = 0;
        if ((b->slots = malloc(g.slot_floats * sizeof *b->slots))) b->slots_floats = g.slot_floats;
    }
    if (!g.work.items || !g.left || g.slot_floats > b->slots_floats) {
        free(g.work.items);
        free((void *)g.left);
        return err_set(r->e, ERR_NOMEM, "attention scratch of %zu bytes", g.slot_floats * sizeof *b->slots);
    }
    *index = b->n_geometries++;
    b->geometry[*index] = g;
    return ERR_OK;
}

static int attend(struct rec *r)
{
    struct cpu_op *x = r->x;
    const struct krn_weight *sinks = cpu_weight(r->l, r->op, 0);
    int rc = r->op->n_in < 3 ? bad(r, "expected q, k and v") : resolve(r, &r->op->out, &x->out);
    for (unsigned i = 0; i < 3 && !rc; i++) rc = resolve(r, &r->op->in[i], &x->in[i]);
    if (rc) return rc;
    const struct cpu_view *q = &x->in[0], *k = &x->in[1], *v = &x->in[2], *o = &x->out;
    if (q->rows || k->rows || v->rows || o->rows) return bad(r, "attention works on rows of tokens");
    if (q->heads % k->heads || k->heads != v->heads || o->heads != q->heads || k->dim != q->dim || o->dim != v->dim) return bad(r, "q, k, v and output disagree in heads or dims");
    if (r->op->state == KRN_NO_STATE) return bad(r, "no KV group");
    if (sinks && (uint64_t)sinks->rows * sinks->cols != q->heads) return bad(r, "expected one sink a head");
    struct cpu_geometry g = {.state = r->op->state, .heads = q->heads, .kv_heads = k->heads, .dim = q->dim, .dim_v = v->dim, .window = r->op->u.attend.window};
    if ((rc = geometry_of(r, g, &x->geometry))) return rc;
    x->n_in = 3;
    x->kind = CPU_STORE;
    x[1] = *x;
    x[1].kind = CPU_ATTEND;
    r->l->geometries |= 1u << x->geometry;
    r->l->n += 2;
    return ERR_OK;
}

static int latent_weights(struct rec *r, const struct cpu_view *qn, uint32_t rank, uint32_t vd)
{
    const struct krn_weight *k = cpu_weight(r->l, r->op, 0), *v = cpu_weight(r->l, r->op, 1);
    uint64_t k_rows = (uint64_t)qn->heads * (r->op->u.attend.turned ? rank : qn->dim), k_cols = r->op->u.attend.turned ? qn->dim : rank;
    if (!k || !v || k->rows != k_rows || k->cols != k_cols) return bad(r, "k_up is not [heads, nope, rank]");
    if (v->rows != (uint64_t)qn->heads * vd || v->cols != rank) return bad(r, "v_up is not [heads, value channels, rank]");
    if (krn_linear_support(v->type, v->layout) == KRN_LINEAR_NONE) return err_set(r->e, ERR_UNSUPPORTED, "attend_mla on %s weights", krn_types[v->type].name);
    return qn->dim > KRN_LATENT_NOPE_MAX ? bad(r, "more than 512 channels of a head without position") : ERR_OK;
}

/* attend_mla: in 0..3 are qn, qr, c and kr. */
static int latent(struct rec *r)
{
    struct cpu_op *x = r->x;
    static const enum cpu_kind kinds[] = {CPU_ABSORB, CPU_STORE, CPU_ATTEND, CPU_UNFOLD};
    int rc = r->op->n_in < 4 ? bad(r, "expected qn, qr, c and kr") : resolve(r, &r->op->out, &x->out);
    for (unsigned i = 0; i < 4 && !rc; i++) rc = resolve(r, &r->op->in[i], &x->in[i]);
    if (rc) return rc;
    const struct cpu_view *qn = &x->in[0], *qr = &x->in[1], *c = &x->in[2], *kr = &x->in[3], *o = &x->out;
    if (qn->rows || qr->rows || c->rows || kr->rows || o->rows) return bad(r, "attention works on rows of tokens");
    if (qr->heads != qn->heads || o->heads != qn->heads || c->heads != 1 || kr->heads != 1 || kr->dim != qr->dim) return bad(r, "qn, qr, c, kr and output disagree in heads or dims");
    if (r->op->state == KRN_NO_STATE) return bad(r, "no KV group");
    struct cpu_geometry g = {.state = r->op->state, .heads = qn->heads, .kv_heads = qn->heads / krn_latent_group(qn->heads), .dim = c->dim + kr->dim, .dim_v = c->dim, .latent = true};
    if ((uint64_t)g.heads * g.dim > r->b->cfg.latent_cols) return bad(r, "more than the plan's latent_cols");
    if ((rc = latent_weights(r, qn, c->dim, o->dim)) || (rc = geometry_of(r, g, &x->geometry))) return rc;
    x->n_in = 4;
    for (unsigned i = 4; i-- > 0;) {
        x[i] = *x;
        x[i].kind = kinds[i];
    }
    r->l->geometries |= 1u << x->geometry;
    r->l->n += 4;
    return ERR_OK;
}

/* ---- routed experts -------------------------------------------------------------------------------------------------- */
static int experts(struct rec *r)
{
    struct cpu_moe *m = &r->l->moe;
    struct cpu_view *in = &m->in, *route = &m->route, *out = &r->x->out;
    int rc = r->op->n_in < 2 ? bad(r, "expected the input and its routing") : m->op ? bad(r, "a second call in one list") : resolve(r, &r->op->out, out);
    if (!rc) rc = resolve(r, &r->op->in[0], in);
    if (!rc) rc = resolve(r, &r->op->in[1], route);
    if (rc) return rc;
    if (in->rows || route->rows || out->rows || !flat(in) || !flat(out) || route->heads != 2) return bad(r, "expected rows of tokens, and two rows of routing");
    if (out->lo < route->hi && route->lo < out->hi) return bad(r, "output and routing overlap");
    for (const struct krn_op *p = r->l->plan; p < r->op; p++)
        if (p->out.rows == r->op->in[1].rows && p->out.base < route->hi && route->lo < p->out.base + p->out.stride) return bad(r, "the routing is written in the same list: the host reads it between two");
    flatten(in);
    flatten(out);
    m->op = r->op;
    m->n_in = in->dim;
    m->n_out = out->dim;
    m->k = route->dim;
    return cpu_experts_record(r->b, r->l, r->e);
}

/* ---- recurrent layers ------------------------------------------------------------------------------------------------ */
/* conv1d: one input; delta: q, k, v, g, beta. Which field of the state it is, and its shape, is checked with the step. */
static int recurrent(struct rec *r)
{
    struct cpu_op *x = r->x;
    bool conv = r->op->code == KRN_CONV1D;
    const struct krn_weight *w = cpu_weight(r->l, r->op, 0);
    x->n_in = conv ? 1 : 5;
    int rc = r->op->n_in < x->n_in ? bad(r, "too few inputs") : resolve(r, &r->op->out, &x->out);
    for (unsigned i = 0; i < x->n_in && !rc; i++) rc = resolve(r, &r->op->in[i], &x->in[i]);
    if (rc) return rc;
    for (unsigned i = 0; i < x->n_in; i++)
        if (x->in[i].rows || x->out.rows) return bad(r, "recurrent layers work on rows of tokens");
    if (r->op->state == KRN_NO_STATE || r->op->u.state.field >= KRN_STATE_FIELDS) return bad(r, "no state");
    const struct cpu_view *q = &x->in[0], *k = &x->in[1], *v = &x->in[2], *g = &x->in[3], *beta = &x->in[4];
    if (conv) {
        if (!flat(&x->in[0]) || !flat(&x->out) || width(&x->in[0]) != width(&x->out)) return bad(r, "input and output must be plain rows of one width");
        if (!w || w->rows != width(&x->out) || !w->cols || w->cols > KRN_CONV_TAPS) return bad(r, "expected 1 to 16 taps a channel");
        if (x->in[0].lo < x->out.hi && x->out.lo < x->in[0].hi) return bad(r, "output and input overlap");
        flatten(&x->in[0]);
        flatten(&x->out);
    } else {
        if (k->heads != q->heads || k->dim != q->dim || g->heads != q->heads || g->dim != q->dim) return bad(r, "q, k and g must have one shape, a decay a channel");
        if (v->heads != q->heads || x->out.heads != v->heads || x->out.dim != v->dim) return bad(r, "v and output must have the heads of q");
        if (width(beta) != q->heads || !flat(beta) || q->dim > KRN_DELTA_DK_MAX) return bad(r, "expected one beta a head, and keys of at most 1024 channels");
        for (unsigned i = 0; i < 5; i++)
            if (x->in[i].lo < x->out.hi && x->out.lo < x->in[i].hi) return bad(r, "output and input overlap");
    }
    x->kind = conv ? CPU_CONV : CPU_DELTA;
    r->l->uses_states = true;
    r->l->n++;
    return ERR_OK;
}

/* Floats of scratch that a worker needs for this op. */
static size_t scratch_of(const krn_backend *b, const krn_list *l, const struct cpu_op *x)
{
    const struct cpu_geometry *g = &b->geometry[x->geometry];
    if (x->kind == CPU_ATTEND) return krn_attend_scratch(g->heads / g->kv_heads, g->dim, g->dim_v, g->latent) + g->heads + 16;
    if (x->kind == CPU_ABSORB) return krn_latent_scratch(x->in[0].dim, g->dim_v);
    if (x->kind == CPU_UNFOLD) return g->dim_v;
    if (x->kind == CPU_MOE_UP) return cpu_experts_scratch(b, l);
    if (x->kind == CPU_ROW && x->op->code == KRN_ROUTE) return x->in[0].dim + KRN_ROUTE_SCRATCH(x->in[0].dim);
    if (x->kind == CPU_CONV || x->kind == CPU_DELTA) return cpu_state_scratch(x);
    if (x->kind == CPU_ROW && (x->op->code == KRN_DECAY || x->op->code == KRN_MIX)) return 2 * width(&x->out) + x->out.heads;
    return x->kind == CPU_ROW ? x->out.dim : 0;
}
static int grow_scratch(krn_backend *b, const krn_list *l, struct err *e)
{
    size_t need = 0;
    for (size_t i = 0; i < l->n; i++) {
        size_t n = scratch_of(b, l, &l->ops[i]);
        need = n > need ? n : need;
    }
    need = (need + 63) & ~(size_t)63;
    if (need <= b->scratch_floats) return ERR_OK;
    float *p = aligned_alloc(64, need * b->cfg.threads * sizeof *p);
    if (!p) return err_set(e, ERR_NOMEM, "worker scratch of %zu bytes", need * b->cfg.threads * sizeof *p);
    free(b->scratch);
    b->scratch = p;
    b->scratch_floats = need;
    return ERR_OK;
}

int cpu_record(krn_backend *b, const struct krn_op *ops, size_t n, const struct krn_weight *weights, krn_list **out, struct err *e)
{
    int rc = ERR_OK;
    krn_list *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l || !(l->ops = calloc(4 * n + 1, sizeof *l->ops))) {
        rc = err_set(e, ERR_NOMEM, "a list of %zu calls", n);
        goto done;
    }
    l->plan = ops;
    l->n_plan = n;
    l->weights = weights;
    for (size_t i = 0, taken = 1; i < n && !rc; i += taken) {
        struct rec r = {b, l, &ops[i], &l->ops[l->n], e};
        const struct krn_weight *w = cpu_weight(l, &ops[i], 0);
        taken = 1;
        r.x->op = &ops[i];
        if (krn_cpu.supports(ops[i].code, w ? w->type : KRN_F32) == KRN_MISSING)
            rc = err_set(e, ERR_UNSUPPORTED, "%s%s%s has no code on the CPU (call %zu)", krn_op_name(ops[i].code), w ? " on " : "", w ? krn_types[w->type].name : "", i);
        else if (ops[i].code == KRN_LINEAR) rc = linear(&r, n - i, &taken);
        else if (ops[i].code == KRN_ATTEND) rc = attend(&r);
        else if (ops[i].code == KRN_ATTEND_MLA) rc = latent(&r);
        else if (ops[i].code == KRN_EXPERTS) rc = experts(&r);
        else if (ops[i].code == KRN_CONV1D || ops[i].code == KRN_DELTA) rc = recurrent(&r);
        else if (!(rc = row_op(&r))) l->n++;
    }
    if (!rc) rc = grow_scratch(b, l, e);
    if (!rc) {
        cpu_order(l);
        *out = l;
        l = NULL;
    }
done:
    cpu_list_free(l);
    return rc;
}

void cpu_list_free(krn_list *l)
{
    if (!l) return;
    free(l->ops);
    free(l);
}
