/* Every input is a table that an embed call looks up by row, so that registers are written by the backend alone. A case of experts has a
 * router in front, in a list of its own: backends read the routing between lists. */
#include "engine/op_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/ops.h"
#include "kernels/quantise.h"

enum { REGS_MAX = 10, WEIGHTS_MAX = 128, ROWS_MAX = 64, FREQ_MAX = 32 };

struct rig {
    const struct json *c, *attrs;
    const struct eng_op_way *way;
    const struct eng_opdef *def;
    uint32_t rows, grow;
    uint64_t seed;
    struct krn_op op[REGS_MAX]; unsigned n_ops, n_first;
    struct krn_view in[REGS_MAX]; unsigned n_in;
    struct krn_weight w[WEIGHTS_MAX]; void *data[WEIGHTS_MAX]; uint32_t n_w;
    uint32_t cols[2], widest, latent;
    double freq[FREQ_MAX];
    struct krn_rope_table rope;
    struct krn_pages pages;
    struct krn_states states;
    struct krn_experts_max experts;
};

static double number(const struct json *o, const char *key, double dflt)
{
    double v;
    return json_num(json_get(o, key), &v) ? v : dflt;
}
static bool truth(const struct json *o, const char *key) { return json_is(json_get(o, key), JSON_BOOL) && json_get(o, key)->b; }

static float draw(struct rig *r, const struct json *range)
{
    double lo = -1, hi = 1;
    if (json_is(range, JSON_ARRAY) && range->n == 2) {
        json_num(range->items[0], &lo);
        json_num(range->items[1], &hi);
    }
    r->seed ^= r->seed << 13;
    r->seed ^= r->seed >> 7;
    r->seed ^= r->seed << 17;
    return (float)(lo + (hi - lo) * (double)(r->seed >> 40) / (double)(1 << 24));
}

/* n values of an entry, from the file or drawn; the caller frees. */
static float *values(struct rig *r, const struct json *x, size_t n, size_t from, size_t step, size_t run, struct err *e)
{
    const struct json *v = json_get(x, "v");
    float *f = malloc(n * sizeof *f);
    if (!f) {
        err_set(e, ERR_NOMEM, "values of a case");
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        double d = 0;
        size_t at = from + i / run * step + i % run;
        if (r->way->grow) {
            f[i] = draw(r, json_get(x, "range"));
            continue;
        }
        if (!json_is(v, JSON_ARRAY) || at >= v->n || !json_num(v->items[at], &d)) {
            err_set(e, ERR_FORMAT, "%s: value %zu is missing", r->def->name, at);
            free(f);
            return NULL;
        }
        f[i] = (float)d;
    }
    return f;
}

/* Types that nothing here quantises to: any bytes are a block, and blocks are drawn until their values are numbers of some size. */
static bool draw_row(struct rig *r, enum krn_type t, uint32_t cols, uint8_t *dst)
{
    uint32_t block = t == KRN_F8_SCALED ? cols : krn_types[t].block; /* a row has its scales */
    size_t bytes = krn_row_bytes(t, block);
    float v[256];
    if (!bytes || block > 256 || cols % block)
        return false;
    for (uint32_t at = 0; at < cols; at += block, dst += bytes) {
        bool good = false;
        for (int tries = 0; tries < 20000 && !good; tries++) {
            double most = 0;
            for (size_t i = 0; i < bytes; i++) {
                draw(r, NULL);
                dst[i] = (uint8_t)(r->seed >> 33);
            }
            if (!krn_expand(t, dst, block, v))
                return false;
            for (uint32_t i = 0; i < block; i++)
                most = isfinite(v[i]) ? fmax(most, fabs((double)v[i])) : INFINITY;
            good = most > 1e-3 && most < 1e3;
        }
        if (!good)
            return false;
    }
    return true;
}

/* A weight of the rig out of f32 rows. */
static int add_weight(struct rig *r, const float *f, uint32_t rows, uint32_t cols, enum krn_type t, bool tiled, uint32_t *index, struct err *e)
{
    size_t row = krn_row_bytes(t, cols), bytes;
    enum krn_layout lay = tiled && rows > 1 && krn_slot_can(t) ? KRN_TILED : KRN_PLAIN;
    if (r->n_w == WEIGHTS_MAX || !row || !(bytes = krn_slot_bytes(t, lay, rows, cols)))
        return err_set(e, ERR_FORMAT, "%s: a weight of %u x %u %s cannot be", r->def->name, rows, cols, krn_types[t].name);
    uint8_t *p = malloc(rows * row), *slot = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
    bool ok = p && slot;
    for (uint32_t i = 0; i < rows && ok; i++)
        ok = krn_quantise_row(t, f + (size_t)i * cols, cols, p + i * row) || draw_row(r, t, cols, p + i * row);
    if (ok && lay == KRN_TILED)
        krn_slot_pack(t, rows, cols, 0, (rows + KRN_TILE_ROWS - 1) / KRN_TILE_ROWS, p, row, slot);
    else if (ok)
        memcpy(slot, p, rows * row);
    free(p);
    *index = r->n_w;
    r->w[r->n_w] = (struct krn_weight){.type = t, .layout = lay, .rows = rows, .cols = cols, .data = slot};
    r->data[r->n_w++] = slot;
    return ok ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "%s: no values of type %s can be made", r->def->name, krn_types[t].name);
}

static struct krn_op *add_op(struct rig *r, enum krn_opcode code, struct krn_view out)
{
    struct krn_op *op = &r->op[r->n_ops++];
    *op = (struct krn_op){.code = code, .layer = KRN_NO_LAYER, .out = out, .state = KRN_NO_STATE};
    for (int i = 0; i < KRN_OP_WEIGHTS; i++)
        op->weight[i] = KRN_NO_WEIGHT;
    return op;
}

static struct krn_view view(struct rig *r, uint32_t heads, uint32_t dim, enum krn_rows rows)
{
    uint32_t *at = &r->cols[rows == KRN_ROWS_PICKED];
    struct krn_view v = {.base = *at, .stride = heads * dim, .heads = heads, .dim = dim, .head_stride = dim, .rows = rows};
    *at += heads * dim;
    return v;
}

/* A register, or a list of registers side by side, and the calls that fill it. */
static int add_input(struct rig *r, const struct json *x, struct err *e)
{
    uint32_t heads = (uint32_t)number(x, "heads", 0), dim = (uint32_t)number(x, "dim", 0) * (truth(x, "fixed") ? 1 : r->grow);
    bool list = truth(x, "list");
    uint32_t n = list ? heads : 1, width = list ? dim : heads * dim, per_row = heads * (uint32_t)number(x, "dim", 0);
    int rc = ERR_OK;
    if (!heads || !dim || r->n_in == 6 || r->n_ops + n > REGS_MAX - 3)
        return err_set(e, ERR_FORMAT, "%s: an input of %u x %u", r->def->name, heads, dim);
    for (uint32_t i = 0; i < n && !rc; i++) {
        float *f = values(r, x, (size_t)r->rows * width, list ? (size_t)i * dim : 0, per_row, r->way->grow ? width : list ? dim : per_row, e);
        struct krn_view v = list ? view(r, 1, dim, KRN_ROWS_TOKENS) : view(r, heads, dim, KRN_ROWS_TOKENS), flat = v;
        uint32_t w = 0;
        rc = f ? add_weight(r, f, r->rows, width, KRN_F32, true, &w, e) : e ? e->code : ERR_NOMEM;
        free(f);
        flat.dim = flat.head_stride = width;
        flat.heads = 1;
        struct krn_op *op = add_op(r, KRN_EMBED, flat);
        op->n_weights = 1;
        op->weight[0] = w;
        op->u.embed.scale = 1;
        if (i == 0)
            r->in[r->n_in] = v;
    }
    if (list)
        r->in[r->n_in].list = n;
    r->n_in++;
    return rc;
}

/* As the compiler chooses: matrices of linears, experts and tables, and stacks of heads that end where a tile does. */
static bool tiled(const struct rig *r, const struct krn_op *op, uint32_t rows)
{
    if (op->code == KRN_ATTEND_MLA)
        return rows / r->in[0].heads % KRN_TILE_ROWS == 0;
    return op->code == KRN_LINEAR || op->code == KRN_EXPERTS || op->code == KRN_EMBED;
}

/* Weights of the call, in the order of krn_op.weight; a stack is one an expert. */
static int add_weights(struct rig *r, struct krn_op *op, struct err *e)
{
    const struct json *ws = json_get(r->c, "w");
    int rc = ERR_OK;
    for (size_t k = 0; json_is(ws, JSON_ARRAY) && k < ws->n && k < KRN_OP_WEIGHTS && !rc; k++) {
        const struct json *x = ws->items[k];
        if (!json_is(x, JSON_OBJECT))
            continue;
        uint32_t stack = (uint32_t)number(x, "stack", 1), rows = (uint32_t)number(x, "rows", 0) / (stack ? stack : 1), cols = (uint32_t)number(x, "cols", 0), one = rows * cols;
        const char *grow = json_str(json_get(x, "grow"));
        grow = grow ? grow : rows > 1 ? "rc" : "c";
        rows *= strchr(grow, 'r') ? r->grow : 1;
        cols *= strchr(grow, 'c') ? r->grow : 1;
        op->n_weights = (uint8_t)(k + 1);
        for (uint32_t i = 0; i < stack && !rc; i++) {
            uint32_t w = 0;
            bool typed = op->code == KRN_LINEAR && k == 0 && r->way->grow;
            float *f = values(r, x, (size_t)rows * cols, (size_t)i * one, one, one ? one : 1, e);
            rc = f ? add_weight(r, f, rows, cols, typed ? r->way->type : KRN_F32, tiled(r, op, rows), &w, e) : e ? e->code : ERR_NOMEM;
            free(f);
            if (i == 0)
                op->weight[k] = w;
        }
        r->widest = cols > r->widest ? cols : r->widest;
    }
    return rc;
}

static int word(const struct rig *r, const struct json *attrs, const char *name)
{
    const char *s = json_str(json_get(attrs, name));
    for (const struct eng_attr *a = r->def->attrs; s && a < r->def->attrs + ENG_OP_ATTRS && a->name; a++)
        if (!strcmp(a->name, name))
            return eng_op_word(a->words, s, strlen(s));
    return 0;
}

static void set_route(struct krn_op *op, const struct json *a)
{
    static const char kinds[] = "softmax sigmoid topk_softmax";
    const char *kind = json_str(json_get(a, "kind"));
    op->u.route.kind = (enum krn_router)(kind ? eng_op_word(kinds, kind, strlen(kind)) : 0);
    op->u.route.k = (uint32_t)number(a, "k", 1);
    op->u.route.groups = (uint32_t)number(a, "groups", 1);
    op->u.route.keep = (uint32_t)number(a, "keep", 1);
    op->u.route.norm = truth(a, "norm");
    op->u.route.norm_eps = (float)number(a, "norm_eps", 0);
    op->u.route.scale = (float)number(a, "scale", 1);
}

static void set_attrs(struct rig *r, struct krn_op *op)
{
    const struct json *a = r->attrs;
    switch (op->code) {
    case KRN_RMSNORM: case KRN_L2NORM: case KRN_MIX:
        op->u.norm.eps = (float)number(a, "eps", 0);
        op->u.norm.offset = (float)number(a, "offset", 0);
        break;
    case KRN_SCALE: case KRN_SOFTCAP: op->u.scalar.c = (float)number(a, "c", 0); break;
    case KRN_EMBED: op->u.embed.scale = (float)number(a, "scale", 1); break;
    case KRN_GLU:
        op->u.glu.act = (enum krn_act)word(r, a, "act");
        op->u.glu.alpha = (float)number(a, "alpha", 1.702);
        op->u.glu.limit = (float)number(a, "limit", 7);
        op->u.glu.beta = (float)number(a, "beta", 1);
        op->u.glu.beta_u = (float)number(a, "beta_u", 0);
        break;
    case KRN_EXPERTS:
        op->u.experts.act = (enum krn_act)word(r, a, "act");
        op->u.experts.alpha = (float)number(a, "alpha", 1.702);
        op->u.experts.limit = (float)number(a, "limit", 7);
        op->u.experts.beta = (float)number(a, "beta", 1);
        op->u.experts.beta_u = (float)number(a, "beta_u", 0);
        break;
    case KRN_ROPE: op->u.rope.pairs = (enum krn_pairs)word(r, a, "pairs"); break;
    case KRN_ATTEND: case KRN_ATTEND_MLA:
        op->u.attend.scale = (float)number(a, "scale", 1);
        op->u.attend.softcap = (float)number(a, "softcap", 0);
        op->u.attend.window = (uint32_t)number(a, "window", 0);
        break;
    case KRN_ROUTE: set_route(op, a); break;
    case KRN_DECAY:
        op->u.decay.bounded = word(r, a, "kind") == 1;
        op->u.decay.lower = (float)number(a, "lower", 0);
        break;
    default: break;
    }
}

/* Pages or a state for the call, one sequence's. */
static int add_memory(struct rig *r, struct krn_op *op, struct err *e)
{
    struct krn_kv_layout *kv = &r->pages.layout;
    struct krn_state_layout *st = &r->states.layout;
    if (op->code == KRN_ATTEND || op->code == KRN_ATTEND_MLA) {
        bool latent = op->code == KRN_ATTEND_MLA;
        *kv = (struct krn_kv_layout){.type = KRN_F32, .page_tokens = ROWS_MAX, .n_layers = 1, .heads = latent ? 1 : r->in[1].heads,
                                     .dim_k = latent ? r->in[2].dim + r->in[3].dim : r->in[1].dim, .dim_v = latent ? 0 : r->in[2].dim};
        r->latent = latent ? r->in[0].heads * kv->dim_k : 0;
        if (!krn_kv_layout_init(kv) || !(r->pages.pool = aligned_alloc(64, (kv->page_bytes + 63) & ~(size_t)63)))
            return err_set(e, ERR_NOMEM, "pages of a case");
        memset(r->pages.pool, 0xff, kv->page_bytes);
        op->state = 0;
    } else if (op->code == KRN_CONV1D || op->code == KRN_DELTA) {
        st->n_layers = st->n_fields = 1;
        if (op->code == KRN_CONV1D)
            st->field[0] = (struct krn_state_field){.n_dims = 2, .keep = r->w[op->weight[0]].cols - 1, .cols = r->in[0].dim, .type = KRN_F32};
        else
            st->field[0] = (struct krn_state_field){.n_dims = 3, .heads = r->in[0].heads, .dk = r->in[0].dim, .dv = r->in[2].dim, .type = KRN_F32};
        if (!krn_state_layout_init(st) || !(r->states.base = aligned_alloc(64, (st->slot_bytes + 63) & ~(size_t)63)))
            return err_set(e, ERR_NOMEM, "state of a case");
        memset(r->states.base, 0xff, st->slot_bytes);
        op->state = 0;
    }
    return ERR_OK;
}

static int add_rope(struct rig *r, struct err *e)
{
    const struct json *f = json_get(r->attrs, "freq");
    r->rope = (struct krn_rope_table){.inv_freq = r->freq, .mscale = 1};
    for (size_t i = 0; json_is(f, JSON_ARRAY) && i < f->n && i < FREQ_MAX; i++)
        if (!json_num(f->items[i], &r->freq[r->rope.n_freq++]))
            return err_set(e, ERR_FORMAT, "rope: freq: expected numbers");
    return ERR_OK;
}

/* What the call gives: [heads, dim], tokens' rows or, for pick, picked ones. */
static int output(struct rig *r, enum krn_opcode code, struct krn_view *out, struct err *e)
{
    const struct json *o = json_get(r->c, "out");
    bool routing = code == KRN_ROUTE;
    uint32_t heads = (uint32_t)number(o, "heads", 0), dim = (uint32_t)number(o, "dim", 0) * (routing ? 1 : r->grow);
    if (!heads || !dim)
        return err_set(e, ERR_FORMAT, "%s: the answer has no shape", r->def->name);
    *out = view(r, heads, dim, code == KRN_PICK ? KRN_ROWS_PICKED : KRN_ROWS_TOKENS);
    return ERR_OK;
}

static int build(struct rig *r, struct err *e)
{
    const struct json *ins = json_get(r->c, "in");
    enum krn_opcode code = r->def->code;
    struct krn_view out = {0}, routing = {0};
    int rc = add_rope(r, e);
    for (size_t i = 0; json_is(ins, JSON_ARRAY) && i < ins->n && !rc; i++)
        rc = add_input(r, ins->items[i], e);
    if (rc || (rc = output(r, code, &out, e)))
        return rc;
    if (code == KRN_EXPERTS) {
        const struct json *a = json_get(r->attrs, "route");
        struct krn_op *route = add_op(r, KRN_ROUTE, view(r, 2, (uint32_t)number(a, "k", 1), KRN_ROWS_TOKENS));
        set_route(route, a);
        route->n_in = 1;
        route->in[0] = r->in[1];
        r->in[1] = routing = route->out;
    }
    r->n_first = code == KRN_EXPERTS ? r->n_ops : 0;
    struct krn_op *op = add_op(r, code, out);
    op->n_in = (uint8_t)(r->n_in < KRN_OP_INPUTS ? r->n_in : KRN_OP_INPUTS);
    memcpy(op->in, r->in, op->n_in * sizeof *op->in);
    if ((rc = add_weights(r, op, e)))
        return rc;
    set_attrs(r, op);
    if (code == KRN_EXPERTS) {
        op->u.experts.n = (uint32_t)number(json_get(r->c, "w")->items[0], "stack", 1);
        r->experts = (struct krn_experts_max){.n = op->u.experts.n, .k = routing.dim, .in = r->in[0].dim, .mid = r->w[op->weight[0]].rows, .out = out.dim};
    }
    return add_memory(r, op, e);
}

static int step(struct rig *r, krn_backend *b, krn_list *const *lists, unsigned n_lists, uint32_t at, uint32_t n, struct err *e)
{
    int32_t tokens[ROWS_MAX];
    uint32_t pos[ROWS_MAX], picks[ROWS_MAX], table = 0, slot = 0, pos0 = (uint32_t)number(r->c, "pos0", 0);
    struct krn_seq seq = {.count = n, .pos0 = pos0 + at};
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)(at + i);
        pos[i] = pos0 + at + i;
        picks[i] = i;
    }
    r->pages.tables = &table;
    r->pages.table_stride = 1;
    struct krn_step s = {.n_tokens = n, .n_picks = n, .n_seqs = 1, .n_groups = r->pages.pool ? 1 : 0, .tokens = tokens, .pos = pos, .picks = picks, .seqs = &seq, .groups = &r->pages,
                         .n_states = r->states.base ? 1 : 0, .states = &r->states, .slots = &slot};
    for (unsigned i = 0; i < n_lists; i++) {
        int rc = r->way->api->submit(b, lists[i], &s, e);
        if (rc || (rc = r->way->api->wait(b, e)))
            return rc;
    }
    return ERR_OK;
}

static int run(struct rig *r, float *out, struct err *e)
{
    const struct krn_backend_api *api = r->way->api;
    const struct krn_view *v = &r->op[r->n_ops - 1].out;
    struct krn_backend_config cfg = {.isa = r->way->isa, .precision = r->way->precision, .threads = r->way->threads, .rows_max = {r->rows, r->rows}, .arena_cols = {r->cols[0] + 16, r->cols[1] + 16},
                                     .ropes = &r->rope, .n_ropes = r->rope.n_freq ? 1 : 0, .linear_cols_max = r->widest + 1, .latent_cols = r->latent, .experts = r->experts};
    krn_backend *b = NULL;
    krn_list *lists[2] = {NULL, NULL};
    unsigned n = 0;
    uint32_t chunk = r->way->chunk ? r->way->chunk : r->rows, width = v->heads * v->dim;
    int rc = api->open(&b, &cfg, e);
    if (!rc && r->n_first)
        rc = api->record(b, r->op, r->n_first, r->w, &lists[n++], e);
    if (!rc)
        rc = api->record(b, r->op + r->n_first, r->n_ops - r->n_first, r->w, &lists[n++], e);
    for (uint32_t at = 0, k; at < r->rows && !rc; at += k) {
        k = r->rows - at < chunk ? r->rows - at : chunk;
        rc = step(r, b, lists, n, at, k, e);
        for (uint32_t i = 0; i < k && !rc; i++)
            memcpy(out + (size_t)(at + i) * width, api->row(b, v, i), width * sizeof *out);
    }
    for (unsigned i = 0; i < 2; i++)
        if (lists[i])
            api->list_free(lists[i]);
    if (b)
        api->close(b);
    return rc;
}

int eng_op_run(const struct json *c, const struct eng_op_way *way, float **out, size_t *n, struct err *e)
{
    const char *name = json_str(json_get(c, "op"));
    struct rig *r = calloc(1, sizeof *r);
    int rc = ERR_OK;
    *out = NULL;
    if (!r)
        return err_set(e, ERR_NOMEM, "a case");
    r->c = c;
    r->attrs = json_get(c, "attrs");
    r->way = way;
    r->grow = way->grow ? way->grow : 1;
    r->seed = way->seed * 2862933555777941757u + 3037000493u;
    r->rows = (uint32_t)number(c, "rows", 0);
    r->def = name ? eng_op_find(name, strlen(name)) : NULL;
    if (!r->def || r->def->code == KRN_OP_NONE || !r->rows || r->rows > ROWS_MAX)
        rc = err_set(e, ERR_FORMAT, "case of `%s` with %u rows: expected an operator that is a call and 1 to %d rows", name ? name : "?", r->rows, ROWS_MAX);
    if (!rc && !(rc = build(r, e))) {
        const struct krn_view *v = &r->op[r->n_ops - 1].out;
        *n = (size_t)r->rows * v->heads * v->dim;
        *out = malloc(*n * sizeof **out);
        rc = *out ? run(r, *out, e) : err_set(e, ERR_NOMEM, "an answer");
    }
    if (rc) {
        free(*out);
        *out = NULL;
    }
    for (uint32_t i = 0; i < r->n_w; i++)
        free(r->data[i]);
    free(r->pages.pool);
    free(r->states.base);
    free(r);
    return rc;
}
