/* kernels/gpu_record.c - plan calls -> dispatches: views checked and turned into addresses, one dispatch a call (attention: two). */
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_internal.h"

struct rec { krn_backend *b; krn_list *l; const struct krn_op *op; struct err *e; };
/* A register view as kernels see it. */
struct place { uint64_t addr; uint32_t stride, head, heads, dim; bool picked; struct gpu_span span; };

enum { ATTEND_DIM_MAX = 512, ROWS_MAX = 65535 };

static int bad(struct rec *r, const char *what)
{
    return err_set(r->e, ERR_INVALID, "call %zu, %s, layer %d: %s", (size_t)(r->op - r->l->plan), krn_op_name(r->op->code), r->op->layer == KRN_NO_LAYER ? -1 : r->op->layer, what);
}

static int resolve(struct rec *r, const struct krn_view *v, struct place *out)
{
    const struct krn_backend_config *c = &r->b->cfg;
    if (v->rows != KRN_ROWS_TOKENS && v->rows != KRN_ROWS_PICKED) return bad(r, "a register is neither of tokens nor of picked rows");
    unsigned a = v->rows == KRN_ROWS_PICKED;
    if (v->list) return bad(r, "a list register where one register is expected");
    if (!v->heads || !v->dim || (v->heads > 1 && v->head_stride < v->dim)) return bad(r, "a view without width, or with overlapping heads");
    uint64_t last = (uint64_t)v->shift + (uint64_t)(v->heads - 1) * v->head_stride + v->dim;
    if (last > v->stride || (uint64_t)v->base + v->stride > c->arena_cols[a]) return bad(r, "a view reaches beyond its register or arena");
    *out = (struct place){.addr = r->b->arena[a].addr + 4 * ((uint64_t)v->base * c->rows_max[a] + v->shift), .stride = v->stride, .head = v->heads > 1 ? v->head_stride : v->dim,
                          .heads = v->heads, .dim = v->dim, .picked = a, .span = {a ? GPU_PICKED : GPU_TOKENS, v->base, v->base + v->stride}};
    return (uint64_t)v->stride * c->rows_max[a] > INT32_MAX ? bad(r, "a register of more than 2^31 floats") : ERR_OK;
}

static bool flat(const struct place *p) { return p->heads == 1 || p->head == p->dim; }
static uint64_t width(const struct place *p) { return (uint64_t)p->heads * p->dim; }
static void flatten(struct place *p)
{
    p->dim *= p->heads;
    p->head = p->dim;
    p->heads = 1;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */
static int size_of(struct rec *r, uint32_t x, uint32_t per, bool picked, uint32_t *index)
{
    krn_backend *b = r->b;
    if (x > 65535) return bad(r, "more than 65535 work groups");
    for (*index = 0; *index < b->n_sizes; ++*index)
        if (b->sizes[*index].x == x && b->sizes[*index].per == per && b->sizes[*index].picked == picked) return ERR_OK;
    if (b->n_sizes == GPU_SIZES_MAX) return bad(r, "more than 1024 different sizes of dispatches");
    b->sizes[b->n_sizes++] = (struct gpu_size){x, per, picked};
    return ERR_OK;
}

static struct gpu_call *add(struct rec *r, const char *shader, uint32_t x, bool picked, const void *push, size_t n, struct gpu_span write)
{
    krn_list *l = r->l;
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        void *p = realloc(l->calls, cap * sizeof *l->calls);
        if (!p) {
            err_set(r->e, ERR_NOMEM, "a list of calls");
            return NULL;
        }
        l->calls = p;
        l->cap = cap;
    }
    struct gpu_call *c = &l->calls[l->n];
    *c = (struct gpu_call){.spec = {.shader = shader}, .picked = picked, .push_bytes = (uint32_t)n, .write = write};
    memcpy(c->push, push, n);
    if (size_of(r, x, 1, picked, &c->args[0])) return NULL;
    c->args[1] = c->args[0];
    l->n++;
    return c;
}
static void reads(struct gpu_call *c, struct gpu_span s) { c->reads[c->n_reads++] = s; }
static uint64_t block(const struct rec *r, uint64_t at) { return r->b->block.addr + at; }
static const struct krn_weight *weight(const struct rec *r, unsigned i)
{
    return i < r->op->n_weights && r->op->weight[i] != KRN_NO_WEIGHT ? &r->l->weights[r->op->weight[i]] : NULL;
}

static uint32_t tile_words(const struct krn_weight *w) { return (uint32_t)(krn_row_bytes(w->type, w->cols) * KRN_TILE_ROWS / 4); }

static int linear(struct rec *r)
{
    struct place in, out;
    const struct krn_weight *w = weight(r, 0), *bias = weight(r, 1);
    int rc = r->op->n_in < 1 || !w ? bad(r, "no weight or no input") : resolve(r, &r->op->in[0], &in);
    if (!rc) rc = resolve(r, &r->op->out, &out);
    if (rc) return rc;
    if (!flat(&in) || !flat(&out) || in.picked != out.picked) return bad(r, "input and output must be plain rows of one kind");
    if (w->cols != width(&in) || w->rows != width(&out)) return bad(r, "the weight's shape is not output times input");
    if (bias && (uint64_t)bias->rows * bias->cols != w->rows) return bad(r, "the bias does not have one number an output");
    if (in.picked == out.picked && in.span.lo < out.span.hi && out.span.lo < in.span.hi) return bad(r, "output and input overlap");
    if (krn_row_bytes(w->type, w->cols) > UINT32_MAX / KRN_TILE_ROWS) return bad(r, "a row of more than 2^28 bytes");
    struct gpu_push_linear p = {.step = r->b->block.addr, .x = in.addr, .w = gpu_weight_of(r->b, r->op, 0)->addr, .bias = bias ? gpu_weight_of(r->b, r->op, 1)->addr : 0, .y = out.addr,
                                .x_stride = in.stride, .y_stride = out.stride, .rows = w->rows, .cols = w->cols, .tile_words = tile_words(w), .picked = in.picked, .biased = bias != NULL};
    uint32_t tiles = (w->rows - 1) / KRN_TILE_ROWS + 1;
    struct gpu_call *c = add(r, "linear", tiles, in.picked, &p, sizeof p, out.span);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    reads(c, in.span);
    c->linear = true;
    c->spec = (struct gpu_spec){"linear", {w->type, 1, in.addr % 16 == 0 && in.stride % 4 == 0}};
    return size_of(r, tiles, r->b->tokens_many, in.picked, &c->args[1]);
}

static int embed(struct rec *r)
{
    struct place out;
    const struct krn_weight *w = weight(r, 0);
    int rc = resolve(r, &r->op->out, &out);
    if (rc) return rc;
    if (!w || out.picked || !flat(&out) || w->cols != width(&out)) return bad(r, "expected a matrix as wide as the output");
    if (r->op->u.embed.tiles > 1 && r->op->u.embed.tile_rows % KRN_TILE_ROWS) return bad(r, "tiles of the table are no multiple of 16 rows");
    struct gpu_push_embed p = {.step = r->b->block.addr, .tokens = block(r, r->b->at_tokens), .w = gpu_weight_of(r->b, r->op, 0)->addr, .y = out.addr, .y_stride = out.stride,
                               .cols = w->cols, .tile_words = tile_words(w), .scale = r->op->u.embed.scale};
    struct gpu_call *c = add(r, "embed", (w->cols + 255) / 256, false, &p, sizeof p, out.span);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    c->spec.c[0] = w->type;
    r->l->uses_tokens = true;
    return ERR_OK;
}

static int norm(struct rec *r)
{
    struct place in, out;
    const struct krn_weight *w = weight(r, 0);
    int rc = r->op->n_in < 1 ? bad(r, "no input") : resolve(r, &r->op->in[0], &in);
    if (!rc) rc = resolve(r, &r->op->out, &out);
    if (rc) return rc;
    if (in.picked != out.picked || in.heads != out.heads || in.dim != out.dim) return bad(r, "input and output differ in shape");
    bool rms = r->op->code == KRN_RMSNORM;
    if (w && (!rms || (uint64_t)w->rows * w->cols != out.dim)) return bad(r, "the weight does not have one number a channel");
    struct gpu_push_norm p = {.step = r->b->block.addr, .x = in.addr, .w = w ? gpu_weight_of(r->b, r->op, 0)->addr : 0, .y = out.addr, .x_stride = in.stride, .x_head = in.head,
                              .y_stride = out.stride, .y_head = out.head, .dim = out.dim, .mode = rms ? GPU_NORM_RMS : GPU_NORM_L2, .weighted = w != NULL,
                              .eps = r->op->u.norm.eps, .offset = r->op->u.norm.offset};
    struct gpu_call *c = add(r, "norm", out.heads, out.picked, &p, sizeof p, out.span);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    reads(c, in.span);
    return ERR_OK;
}

static uint32_t element_op(const struct krn_op *op, struct gpu_push_elem *p)
{
    switch (op->code) {
    case KRN_ADD: return GPU_ELEM_ADD;
    case KRN_MUL: return GPU_ELEM_MUL;
    case KRN_SCALE: p->c0 = op->u.scalar.c; return GPU_ELEM_SCALE;
    case KRN_SOFTCAP: p->c0 = op->u.scalar.c; return GPU_ELEM_SOFTCAP;
    case KRN_SIGMOID: return GPU_ELEM_SIGMOID;
    case KRN_SILU: return GPU_ELEM_SILU;
    case KRN_PICK: return GPU_ELEM_PICK;
    case KRN_ROPE: return GPU_ELEM_ROPE;
    case KRN_GLU:
        p->c0 = op->u.glu.alpha;
        p->c1 = op->u.glu.limit;
        p->c2 = op->u.glu.beta;
        p->c3 = op->u.glu.beta_u;
        return GPU_ELEM_GLU + (uint32_t)op->u.glu.act;
    default: return GPU_ELEM_COPY;
    }
}

/* One run of numbers where every view allows it, else head by head; in[1] of a MUL may be one number a head. */
static int shapes(struct rec *r, struct place v[3], unsigned n_in, struct gpu_push_elem *p)
{
    bool all_flat = r->op->code != KRN_ROPE && flat(&v[2]);
    for (unsigned i = 0; i < n_in; i++) all_flat = all_flat && flat(&v[i]) && width(&v[i]) == width(&v[2]);
    if (all_flat) {
        for (unsigned i = 0; i < n_in; i++) flatten(&v[i]);
        flatten(&v[2]);
    }
    p->b_one = n_in == 2 && r->op->code == KRN_MUL && v[1].dim == 1 && v[2].dim > 1;
    for (unsigned i = 0; i < n_in; i++)
        if (v[i].heads != v[2].heads || (v[i].dim != v[2].dim && !(p->b_one && i == 1))) return bad(r, "inputs and output differ in shape");
    return ERR_OK;
}

static int rope_of(struct rec *r, const struct place v[3], struct gpu_push_elem *p)
{
    uint32_t t = r->op->u.rope.table;
    if (v[0].picked || v[2].picked) return bad(r, "rope works on rows of tokens");
    if (t >= r->b->cfg.n_ropes) return bad(r, "no such rope table");
    p->n_freq = r->b->cfg.ropes[t].n_freq;
    if (2ull * p->n_freq > v[2].dim) return bad(r, "more rotated channels than the head has");
    p->aux = block(r, r->b->at_ropes[t]);
    p->adjacent = r->op->u.rope.pairs == KRN_PAIRS_ADJACENT;
    return ERR_OK;
}

static int element(struct rec *r)
{
    struct place v[3];
    struct gpu_push_elem p = {0};
    unsigned n_in = r->op->code == KRN_ADD || r->op->code == KRN_MUL || r->op->code == KRN_GLU ? 2 : 1;
    int rc = n_in > r->op->n_in ? bad(r, "too few inputs") : resolve(r, &r->op->out, &v[2]);
    for (unsigned i = 0; i < n_in && !rc; i++) {
        rc = resolve(r, &r->op->in[i], &v[i]);
        if (!rc && v[i].picked != (r->op->code == KRN_PICK ? false : v[2].picked)) rc = bad(r, "rows of tokens and picked rows do not mix");
    }
    if (!rc && r->op->code == KRN_PICK && !v[2].picked) rc = bad(r, "the output is not a register of picked rows");
    if (!rc) rc = shapes(r, v, n_in, &p);
    p.op = element_op(r->op, &p);
    if (!rc && p.op == GPU_ELEM_ROPE) rc = rope_of(r, v, &p);
    if (rc) return rc;
    if (p.op == GPU_ELEM_PICK) p.aux = block(r, r->b->at_picks);
    p.a = v[0].addr;
    p.a_stride = v[0].stride;
    p.a_head = v[0].head;
    p.b = n_in > 1 ? v[1].addr : 0;
    p.b_stride = n_in > 1 ? v[1].stride : 0;
    p.b_head = n_in > 1 ? v[1].head : 0;
    p.y = v[2].addr;
    p.y_stride = v[2].stride;
    p.y_head = v[2].head;
    p.heads = v[2].heads;
    p.dim = v[2].dim;
    if (width(&v[2]) > UINT32_MAX - 64) return bad(r, "a row of more than 2^32 numbers");
    struct gpu_call *c = add(r, "elem", (uint32_t)((width(&v[2]) + 63) / 64), v[2].picked, &p, sizeof p, v[2].span);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    for (unsigned i = 0; i < n_in; i++) reads(c, v[i].span);
    return ERR_OK;
}

/* ---- attention ------------------------------------------------------------------------------------------------------- */
static int attend_check(struct rec *r, const struct place *q, const struct place *k, const struct place *v, const struct place *o)
{
    const struct krn_weight *sinks = weight(r, 0);
    if (q->picked || k->picked || v->picked || o->picked) return bad(r, "attention works on rows of tokens");
    if (q->heads % k->heads || k->heads != v->heads || o->heads != q->heads || k->dim != q->dim || o->dim != v->dim) return bad(r, "q, k, v and output disagree in heads or dims");
    if (r->op->state >= r->b->dev.n_pools) return bad(r, "no KV group");
    if (q->dim > ATTEND_DIM_MAX || v->dim > ATTEND_DIM_MAX) return bad(r, "heads of more than 512 channels");
    if (sinks && (uint64_t)sinks->rows * sinks->cols != q->heads) return bad(r, "expected one sink a head");
    const struct krn_kv_layout *l = &r->b->dev.pools[r->op->state].layout;
    if (l->heads != k->heads || l->dim_k != k->dim || l->dim_v != v->dim || r->op->state_layer >= l->n_layers) return bad(r, "the KV group holds pages of another shape");
    return l->page_bytes > UINT32_MAX / 2 ? bad(r, "pages of more than 2 GiB") : ERR_OK;
}

static int store(struct rec *r, const struct place *k, const struct place *v, struct gpu_span pages)
{
    const struct krn_pool *pages_of = &r->b->dev.pools[r->op->state];
    const struct krn_kv_layout *l = &pages_of->layout;
    uint32_t at = (uint32_t)(r->op->state_layer * l->layer_bytes);
    struct gpu_push_store p = {.k = k->addr, .v = v->addr, .pool = r->b->pools[r->op->state].addr, .rows = block(r, r->b->at_rows), .tables = block(r, r->b->at_tables[r->op->state]),
                               .k_stride = k->stride, .k_head = k->head, .v_stride = v->stride, .v_head = v->head, .heads = k->heads, .dim = k->dim, .dim_v = v->dim,
                               .page_tokens = l->page_tokens, .table_stride = pages_of->table_stride, .page_bytes = (uint32_t)l->page_bytes, .k_at = at, .v_at = at + (uint32_t)l->v_offset};
    struct gpu_call *c = add(r, "store", (k->heads * (k->dim + v->dim) + 63) / 64, false, &p, sizeof p, pages);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    c->spec.c[0] = l->type;
    reads(c, k->span);
    reads(c, v->span);
    return ERR_OK;
}

static int attend(struct rec *r)
{
    struct place q, k, v, o;
    const struct krn_weight *sinks = weight(r, 0);
    int rc = r->op->n_in < 3 ? bad(r, "expected q, k and v") : resolve(r, &r->op->in[0], &q);
    if (!rc) rc = resolve(r, &r->op->in[1], &k);
    if (!rc) rc = resolve(r, &r->op->in[2], &v);
    if (!rc) rc = resolve(r, &r->op->out, &o);
    if (!rc) rc = attend_check(r, &q, &k, &v, &o);
    if (rc) return rc;
    struct gpu_span pages = {GPU_PAGES, r->op->state, r->op->state + 1};
    if ((rc = store(r, &k, &v, pages))) return rc;
    const struct krn_pool *pages_of = &r->b->dev.pools[r->op->state];
    const struct krn_kv_layout *l = &pages_of->layout;
    uint32_t at = (uint32_t)(r->op->state_layer * l->layer_bytes);
    struct gpu_push_attend p = {.q = q.addr, .y = o.addr, .pool = r->b->pools[r->op->state].addr, .rows = block(r, r->b->at_rows), .tables = block(r, r->b->at_tables[r->op->state]),
                                .sinks = sinks ? gpu_weight_of(r->b, r->op, 0)->addr : 0, .q_stride = q.stride, .q_head = q.head, .y_stride = o.stride, .y_head = o.head,
                                .group = q.heads / k.heads, .dim = q.dim, .dim_v = v.dim, .page_tokens = l->page_tokens, .table_stride = pages_of->table_stride,
                                .page_bytes = (uint32_t)l->page_bytes, .k_at = at, .v_at = at + (uint32_t)l->v_offset, .window = r->op->u.attend.window, .sunk = sinks != NULL,
                                .scale = r->op->u.attend.scale, .softcap = r->op->u.attend.softcap};
    struct gpu_call *c = add(r, "attend", q.heads, false, &p, sizeof p, o.span);
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    c->spec.c[0] = l->type;
    c->spec.c[1] = (v.dim + 63) / 64;
    reads(c, q.span);
    reads(c, pages);
    r->l->pools |= 1u << r->op->state;
    return ERR_OK;
}

/* ---- a list ---------------------------------------------------------------------------------------------------------- */
/* The watched register's rows are looked through at the end of each list that writes it. */
static int watch(struct rec *r, const struct krn_op *last)
{
    struct place x;
    r->op = last;
    int rc = resolve(r, &r->b->dev.watch, &x);
    if (rc) return rc;
    if (!flat(&x) || x.picked) return bad(r, "the watched register is no plain row of tokens");
    struct gpu_push_norm p = {.step = r->b->block.addr, .x = x.addr, .y = r->b->flags.addr, .x_stride = x.stride, .dim = (uint32_t)width(&x), .mode = GPU_NORM_SCAN};
    struct gpu_call *c = add(r, "norm", 1, false, &p, sizeof p, (struct gpu_span){GPU_FLAGS, 0, 1});
    if (!c) return r->e ? r->e->code : ERR_NOMEM;
    reads(c, x.span);
    gpu_times_scan(c);
    return ERR_OK;
}

static bool writes_watched(const krn_backend *b, const struct krn_op *op)
{
    const struct krn_view *w = &b->dev.watch, *o = &op->out;
    return b->dev.watched && o->rows == w->rows && o->base == w->base && o->stride == w->stride && o->shift == w->shift && o->heads * o->dim == w->heads * w->dim;
}

int gpu_record(krn_backend *b, krn_list *l, struct err *e)
{
    struct err own;
    struct rec r = {.b = b, .l = l, .e = e ? e : &own};
    const struct krn_op *last = NULL;
    int rc = ERR_OK;
    for (size_t i = 0; i < l->n_plan && !rc; i++) {
        size_t first = l->n;
        r.op = &l->plan[i];
        switch (r.op->code) {
        case KRN_EMBED: rc = embed(&r); break;
        case KRN_LINEAR: rc = linear(&r); break;
        case KRN_RMSNORM: case KRN_L2NORM: rc = norm(&r); break;
        case KRN_ATTEND: rc = attend(&r); break;
        case KRN_ADD: case KRN_MUL: case KRN_SCALE: case KRN_SIGMOID: case KRN_SILU: case KRN_SOFTCAP: case KRN_GLU: case KRN_ROPE: case KRN_PICK: case KRN_COPY: rc = element(&r); break;
        default: rc = err_set(r.e, ERR_UNSUPPORTED, "vulkan: no kernel for operator %s", krn_op_name(r.op->code)); break;
        }
        for (size_t k = first; k < l->n && !rc; k++) gpu_times_kind(&l->calls[k], r.op, l->weights);
        if (writes_watched(b, r.op)) last = r.op;
    }
    if (!rc && last) rc = watch(&r, last);
    if (!rc) gpu_order(l);
    return rc;
}
