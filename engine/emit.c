/* Operators: arguments are read by the registry's letters, attributes by its table, then one function per operator applies its
 * shape rule and fills the call. Views (heads, flatten, split) make no call. */
#include "engine/compile_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX 12

struct attr_val { double num; uint32_t weight; const char *text; bool set; };
/* One call's operands, sorted by kind in the order of the registry's letters. */
struct operands {
    struct eng_compiler *c;
    const struct eng_opdef *op;
    struct eng_val reg[ARGS_MAX]; unsigned n_regs;
    struct eng_bound w[KRN_OP_WEIGHTS]; const char *w_name[KRN_OP_WEIGHTS]; unsigned n_w;
    const char *state, *text;
    double num[ARGS_MAX]; bool null[ARGS_MAX]; unsigned n_nums;
    struct attr_val attr[ENG_OP_ATTRS];
    struct err *e;
};

static int fail(struct operands *o, const char *what, uint64_t expected, uint64_t found)
{
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: %s: expected %" PRIu64 ", found %" PRIu64, o->op->name, what, expected, found);
}

static uint32_t width(const struct krn_view *v) { return v->heads * v->dim; }

/* ---- registers and calls ---------------------------------------------------------------------------------- */
static int new_store(struct operands *o, uint32_t w, uint32_t copies, enum krn_rows rows, uint32_t *id)
{
    struct eng_compiler *c = o->c;

    if (!w)
        return eng_compile_at(c, o->e, ERR_FORMAT, "%s gives an empty register", o->op->name);
    if (c->n_stores == c->cap_stores) {
        uint32_t cap = c->cap_stores ? 2 * c->cap_stores : 256;
        struct eng_store *s = realloc(c->stores, cap * sizeof *s);
        if (!s)
            return err_set(o->e, ERR_NOMEM, "%u registers", cap);
        c->stores = s;
        c->cap_stores = cap;
    }
    c->stores[c->n_stores] = (struct eng_store){.width = w, .copies = copies, .rows = rows, .def = c->n_ops, .last = c->n_ops};
    *id = c->n_stores++;
    return ERR_OK;
}

static struct krn_view view_of(uint32_t store, uint32_t heads, uint32_t dim, enum krn_rows rows)
{
    return (struct krn_view){.base = store, .heads = heads, .dim = dim, .head_stride = dim, .rows = rows};
}

static int push_op(struct operands *o, const struct krn_op *op)
{
    struct eng_compiler *c = o->c;

    if (c->n_ops == c->cap_ops) {
        uint32_t cap = c->cap_ops ? 2 * c->cap_ops : 256;
        struct krn_op *ops = realloc(c->ops, cap * sizeof *ops);
        const char **names = realloc(c->op_reg, cap * sizeof *names);
        if (ops)
            c->ops = ops;
        if (names)
            c->op_reg = names;
        if (!ops || !names)
            return err_set(o->e, ERR_NOMEM, "%u calls", cap);
        c->cap_ops = cap;
    }
    c->op_reg[c->n_ops] = o->op->name; /* until the line gives it to a register */
    c->ops[c->n_ops++] = *op;
    return ERR_OK;
}

static struct krn_op blank(const struct operands *o)
{
    struct krn_op op;

    memset(&op, 0, sizeof op); /* padding too: calls are compared and hashed as bytes */
    op.code = o->op->code;
    op.layer = o->c->env.layer < 0 ? KRN_NO_LAYER : (uint16_t)o->c->env.layer;
    op.state = KRN_NO_STATE;
    for (unsigned i = 0; i < KRN_OP_WEIGHTS; i++)
        op.weight[i] = KRN_NO_WEIGHT;
    return op;
}

/* Emits op with all register operands as inputs and a fresh [heads][dim] result. */
static int call(struct operands *o, struct krn_op *op, uint32_t heads, uint32_t dim, struct eng_val *out)
{
    uint32_t id;
    enum krn_rows rows = o->n_regs ? o->reg[0].view.rows : KRN_ROWS_TOKENS;
    int rc;

    for (unsigned i = 0; i < o->n_regs; i++) {
        if (o->reg[i].view.rows != rows)
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s mixes picked rows with rows of tokens", o->op->name);
        op->in[op->n_in++] = o->reg[i].view;
    }
    if ((rc = new_store(o, heads * dim, 1, op->code == KRN_PICK ? KRN_ROWS_PICKED : rows, &id)))
        return rc;
    out->kind = ENG_VAL_REG;
    op->out = out->view = view_of(id, heads, dim, op->code == KRN_PICK ? KRN_ROWS_PICKED : rows);
    return push_op(o, op);
}

/* A row [n] that linears and flatten can take: heads side by side are one already, others are copied together. */
static int as_row(struct operands *o, struct eng_val *v)
{
    struct krn_op op = blank(o);
    uint32_t n = width(&v->view), id;
    int rc;

    if (v->view.heads > 1 && v->view.head_stride != v->view.dim) {
        op.code = KRN_COPY;
        op.n_in = 1;
        op.in[0] = v->view;
        if ((rc = new_store(o, n, 1, v->view.rows, &id)))
            return rc;
        op.out = view_of(id, v->view.heads, v->view.dim, v->view.rows);
        if ((rc = push_op(o, &op)))
            return rc;
        v->view = op.out;
    }
    v->view.heads = 1;
    v->view.dim = v->view.head_stride = n;
    return ERR_OK;
}

static void use_weight(struct krn_op *op, unsigned slot, const struct eng_bound *w)
{
    op->weight[slot] = w->absent ? KRN_NO_WEIGHT : w->first;
    if (slot >= op->n_weights)
        op->n_weights = (uint8_t)(slot + 1);
}

/* ---- operators -------------------------------------------------------------------------------------------- */
static int heads(struct operands *o, struct eng_val *out)
{
    double d = o->num[0];

    *out = o->reg[0];
    if (out->view.heads != 1)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "heads of a register that has %u heads already", out->view.heads);
    if (!(d >= 1) || d > out->view.dim || out->view.dim % (uint32_t)d)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "heads: %u values cannot be heads of %g", out->view.dim, d);
    out->view.heads = out->view.dim / (uint32_t)d;
    out->view.dim = out->view.head_stride = (uint32_t)d;
    return ERR_OK;
}

static int split(struct operands *o, struct eng_val *out, unsigned *n_out)
{
    double sum = 0;
    struct krn_view v = o->reg[0].view;

    for (unsigned i = 0; i < o->n_nums; i++) {
        if (!(o->num[i] >= 1))
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "split into a part of %g", o->num[i]);
        sum += o->num[i];
    }
    if (fabs(sum - v.dim) > 0.5 || o->n_nums > ENG_VALS_MAX)
        return fail(o, "sum of the parts", v.dim, (uint64_t)sum);
    for (unsigned i = 0; i < o->n_nums; i++) {
        out[i] = o->reg[0];
        out[i].view = v;
        out[i].view.dim = (uint32_t)o->num[i];
        if (v.heads == 1)
            out[i].view.head_stride = out[i].view.dim;
        v.shift += out[i].view.dim;
    }
    *n_out = o->n_nums;
    return ERR_OK;
}

static int embed(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);

    use_weight(&op, 0, &o->w[0]);
    op.u.scalar.c = (float)o->attr[0].num;
    return o->w[0].n_dims == 2 ? call(o, &op, 1, (uint32_t)o->w[0].dims[1], out) : fail(o, "dimensions of the table", 2, o->w[0].n_dims);
}

static int linear(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct eng_bound *w = &o->w[0];
    int rc;

    if (w->absent)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "linear needs @%s, which is not in the files", o->w_name[0]);
    if (w->n_dims != 2 || w->n != 1)
        return fail(o, "dimensions of the weight", 2, w->n_dims);
    if (width(&o->reg[0].view) != w->dims[1])
        return fail(o, "inputs", w->dims[1], width(&o->reg[0].view));
    if ((rc = as_row(o, &o->reg[0])))
        return rc;
    use_weight(&op, 0, w);
    if (w->bias != KRN_NO_WEIGHT) {
        op.weight[1] = w->bias;
        op.n_weights = 2;
    }
    if (w->dims[1] > o->c->p->linear_cols_max)
        o->c->p->linear_cols_max = (uint32_t)w->dims[1];
    return call(o, &op, 1, (uint32_t)w->dims[0], out);
}

static int norm(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *v = &o->reg[0].view;
    bool l2 = op.code == KRN_L2NORM;

    op.u.norm.eps = (float)o->attr[0].num;
    op.u.norm.offset = l2 ? 0 : (float)o->attr[1].num;
    if (!l2 && o->n_w) {
        if (!o->w[0].absent && (o->w[0].n_dims != 1 || o->w[0].dims[0] != v->dim))
            return fail(o, "values of the norm's weight", v->dim, o->w[0].dims[0]);
        use_weight(&op, 0, &o->w[0]);
    }
    return call(o, &op, v->heads, v->dim, out);
}

static int unary(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *v = &o->reg[0].view;

    if (op.code == KRN_SOFTCAP && (o->null[0] || !(o->num[0] > 0))) {
        *out = o->reg[0]; /* no cap: no call */
        return ERR_OK;
    }
    if (op.code == KRN_SOFTCAP || op.code == KRN_SCALE)
        op.u.scalar.c = (float)o->num[0];
    return call(o, &op, v->heads, v->dim, out);
}

static int binary(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *a = &o->reg[0].view, *b = &o->reg[1].view;
    bool same = a->heads == b->heads && a->dim == b->dim;
    int rc;

    if (width(a) != width(b))
        return fail(o, "values of the second operand", width(a), width(b));
    if (!same && ((rc = as_row(o, &o->reg[0])) || (rc = as_row(o, &o->reg[1]))))
        return rc;
    if (op.code == KRN_GLU) {
        op.u.glu.act = (enum krn_act)(int)o->attr[0].num;
        op.u.glu.alpha = (float)o->attr[1].num;
        op.u.glu.limit = (float)o->attr[2].num;
        op.u.glu.beta = (float)o->attr[3].num;
        op.u.glu.beta_u = (float)o->attr[4].num;
    }
    return call(o, &op, a->heads, a->dim, out);
}

static int rope(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *v = &o->reg[0].view;
    int rc = eng_rope_table(o->c, o->attr[0].text, &op.u.rope.table, o->e);

    if (rc)
        return rc;
    op.u.rope.pairs = (enum krn_pairs)(int)o->attr[1].num;
    if (2 * o->c->p->ropes[op.u.rope.table].n_freq > v->dim)
        return fail(o, "rotated dims at most", v->dim, 2 * o->c->p->ropes[op.u.rope.table].n_freq);
    return call(o, &op, v->heads, v->dim, out);
}

static int attend(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *q = &o->reg[0].view, *k = &o->reg[1].view, *v = &o->reg[2].view;
    int rc;

    if (k->dim != q->dim)
        return fail(o, "head size of k", q->dim, k->dim);
    if (v->heads != k->heads)
        return fail(o, "heads of v", k->heads, v->heads);
    if (!k->heads || q->heads % k->heads)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend: %u query heads over %u key heads", q->heads, k->heads);
    op.u.attend.scale = (float)o->attr[0].num;
    op.u.attend.window = (uint32_t)o->attr[1].num;
    op.u.attend.softcap = (float)o->attr[2].num;
    if (o->attr[3].weight != KRN_NO_WEIGHT) {
        op.weight[0] = o->attr[3].weight;
        op.n_weights = 1;
    }
    if ((rc = eng_state_pages(o->c, o->state, k->heads, k->dim, v->dim, false, op.u.attend.window, &op.state, &op.state_layer, o->e)))
        return rc;
    return call(o, &op, q->heads, v->dim, out);
}

static int attend_mla(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *qn = &o->reg[0].view, *qr = &o->reg[1].view, *lat = &o->reg[2].view, *kr = &o->reg[3].view;
    const struct eng_bound *ku = &o->w[0], *vu = &o->w[1];
    int rc;

    if (qr->heads != qn->heads)
        return fail(o, "heads of qr", qn->heads, qr->heads);
    if (ku->n_dims != 3 || ku->dims[0] != qn->heads || ku->dims[1] != qn->dim || ku->dims[2] != lat->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend_mla: expected @%s [%u, %u, %u]", o->w_name[0], qn->heads, qn->dim, lat->dim);
    if (vu->n_dims != 3 || vu->dims[0] != qn->heads || vu->dims[2] != lat->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend_mla: expected @%s [%u, values, %u]", o->w_name[1], qn->heads, lat->dim);
    if (width(kr) != qr->dim)
        return fail(o, "values of kr", qr->dim, width(kr));
    use_weight(&op, 0, ku);
    use_weight(&op, 1, vu);
    op.u.attend.scale = (float)o->attr[0].num;
    if ((rc = eng_state_pages(o->c, o->state, 1, lat->dim + qr->dim, 0, true, 0, &op.state, &op.state_layer, o->e)))
        return rc;
    return call(o, &op, qn->heads, (uint32_t)vu->dims[1], out);
}

static int route(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    uint32_t k = (uint32_t)o->attr[1].num, n = (uint32_t)o->w[0].dims[0], groups = (uint32_t)o->attr[2].num, keep = (uint32_t)o->attr[3].num;
    int rc;

    if (o->w[0].n_dims != 2 || o->w[0].dims[1] != width(&o->reg[0].view))
        return fail(o, "inputs of the router", width(&o->reg[0].view), o->w[0].n_dims == 2 ? o->w[0].dims[1] : 0);
    if (!k || k > n)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "route: %u of %u experts", k, n);
    if (!groups || n % groups || !keep || keep > groups || (uint64_t)keep * (n / groups) < k)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "route: %u of %u groups of %u experts, for %u", keep, groups, n, k);
    op.u.route.kind = (enum krn_router)(int)o->attr[0].num;
    op.u.route.k = k;
    op.u.route.groups = groups;
    op.u.route.keep = keep;
    op.u.route.norm = o->attr[4].num > 0;
    op.u.route.norm_eps = (float)o->attr[5].num;
    op.u.route.scale = (float)o->attr[6].num;
    use_weight(&op, 0, &o->w[0]);
    if (o->attr[7].weight != KRN_NO_WEIGHT) {
        op.weight[1] = o->attr[7].weight;
        op.n_weights = 2;
    }
    if ((rc = call(o, &op, 2, k, out))) /* expert numbers, then their weights */
        return rc;
    out->kind = ENG_VAL_ROUTING;
    return eng_compile_segment(o->c, true, o->e);
}

static int experts(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *h = &o->reg[0].view;
    const struct eng_bound *g = &o->w[0], *u = &o->w[1], *d = &o->w[2];

    if (g->n_dims != 3 || u->n_dims != 3 || d->n_dims != 3 || g->dims[2] != width(h) || memcmp(g->dims, u->dims, sizeof g->dims) || d->dims[0] != g->dims[0] ||
        d->dims[2] != g->dims[1])
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "experts: expected @%s and @%s [E, f, %u] and @%s [E, out, f]", o->w_name[0], o->w_name[1], width(h), o->w_name[2]);
    for (unsigned i = 0; i < 3; i++)
        use_weight(&op, i, &o->w[i]);
    op.u.experts.act = (enum krn_act)(int)o->attr[0].num;
    op.u.experts.alpha = (float)o->attr[1].num;
    op.u.experts.limit = (float)o->attr[2].num;
    op.u.experts.beta = (float)o->attr[3].num;
    op.u.experts.beta_u = (float)o->attr[4].num;
    op.u.experts.n = (uint32_t)g->dims[0];
    for (unsigned i = 1; i < 3; i++)
        if (g->dims[i] > o->c->p->linear_cols_max)
            o->c->p->linear_cols_max = (uint32_t)g->dims[i];
    return call(o, &op, 1, (uint32_t)d->dims[1], out);
}

static int field_index(struct operands *o, uint32_t state, const char *name)
{
    const struct eng_recurrent *r = &o->c->p->recurrent[state];

    for (uint32_t i = 0; i < r->n_fields; i++)
        if (!strcmp(r->field[i].name, name))
            return (int)i;
    return -1;
}

static int conv1d(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *x = &o->reg[0].view;
    int rc = eng_state_recurrent(o->c, o->state, &op.state, &op.state_layer, o->e), field;

    if (rc)
        return rc;
    if (o->w[0].n_dims != 2 || o->w[0].dims[0] != width(x))
        return fail(o, "channels of the kernel", width(x), o->w[0].dims[0]);
    if ((field = field_index(o, op.state, o->text)) < 0)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "conv1d: state $%s has no field '%s'", o->state, o->text);
    const uint64_t *d = o->c->p->recurrent[op.state].field[field].dims;
    if (o->c->p->recurrent[op.state].field[field].n_dims != 2 || d[0] + 1 != o->w[0].dims[1] || d[1] != width(x))
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "conv1d: state field '%s' must be [%" PRIu64 ", %u]", o->text, o->w[0].dims[1] - 1, width(x));
    use_weight(&op, 0, &o->w[0]);
    op.u.conv.field = (uint32_t)field;
    return call(o, &op, x->heads, x->dim, out);
}

static int decay(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *x = &o->reg[0].view;
    uint64_t h = o->w[0].dims[0];

    if (o->w[0].n_dims != 1 || !h || width(x) % h || o->w[1].n_dims != 1 || o->w[1].dims[0] != width(x))
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "decay: expected @%s a head and @%s [%u]", o->w_name[0], o->w_name[1], width(x));
    use_weight(&op, 0, &o->w[0]);
    use_weight(&op, 1, &o->w[1]);
    op.u.decay.bounded = o->attr[0].num > 0;
    op.u.decay.lower = (float)o->attr[1].num;
    return call(o, &op, (uint32_t)h, width(x) / (uint32_t)h, out);
}

static int delta(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *q = &o->reg[0].view, *k = &o->reg[1].view, *v = &o->reg[2].view, *g = &o->reg[3].view, *beta = &o->reg[4].view;
    int rc = eng_state_recurrent(o->c, o->state, &op.state, &op.state_layer, o->e), field;

    if (rc)
        return rc;
    if (k->heads != q->heads || k->dim != q->dim || v->heads % q->heads)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: k must be as q, and heads of v a multiple of theirs");
    if (width(g) != width(k) && width(g) != v->heads)
        return fail(o, "values of the decay", width(k), width(g));
    if (width(beta) != v->heads)
        return fail(o, "values of beta", v->heads, width(beta));
    if ((field = field_index(o, op.state, "S")) < 0)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: state $%s has no field 'S'", o->state);
    const uint64_t *d = o->c->p->recurrent[op.state].field[field].dims;
    if (o->c->p->recurrent[op.state].field[field].n_dims != 3 || d[0] != v->heads || d[1] != k->dim || d[2] != v->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: state field 'S' must be [%u, %u, %u]", v->heads, k->dim, v->dim);
    return call(o, &op, v->heads, v->dim, out);
}

static int bank(struct operands *o, struct eng_val *out)
{
    uint32_t id;
    /* Its width and how many copies it needs are known when the walk is over: push() widens it. */
    int rc = new_store(o, 1, 1, KRN_ROWS_TOKENS, &id);

    out->kind = ENG_VAL_LIST;
    out->view = view_of(id, 1, 1, KRN_ROWS_TOKENS);
    return rc;
}

static int push(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    struct eng_val *b = &o->reg[0];
    struct krn_view x = o->reg[1].view;
    struct eng_store *s = &o->c->stores[b->view.base];

    if (!b->view.list)
        s->width = b->view.dim = b->view.head_stride = width(&x);
    if (s->width != width(&x) || x.rows != s->rows)
        return fail(o, "values of a list entry", s->width, width(&x));
    op.n_in = 1;
    op.in[0] = x;
    op.out = view_of(b->view.base, 1, s->width, s->rows);
    op.out.stride = b->view.list; /* which copy, until the layout is known */
    *out = *b;
    out->view.list++;
    if (out->view.list > s->copies)
        s->copies = out->view.list;
    return push_op(o, &op);
}

static int mix(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    const struct krn_view *x = &o->reg[1].view;

    if (!o->reg[0].view.list) {
        *out = o->reg[1]; /* nothing to mix with */
        return ERR_OK;
    }
    if (o->reg[0].view.dim != width(x))
        return fail(o, "values of x", o->reg[0].view.dim, width(x));
    if (!o->w[0].absent)
        use_weight(&op, 0, &o->w[0]);
    if (o->w[1].n_dims < 1 || o->w[1].dims[o->w[1].n_dims - 1] != width(x))
        return fail(o, "inputs of the projection", width(x), o->w[1].n_dims ? o->w[1].dims[o->w[1].n_dims - 1] : 0);
    use_weight(&op, 1, &o->w[1]);
    op.u.norm.eps = (float)o->attr[0].num;
    return call(o, &op, 1, width(x), out);
}

static int simple(struct operands *o, struct eng_val *out)
{
    struct krn_op op = blank(o);
    int rc;

    if ((rc = as_row(o, &o->reg[0])))
        return rc;
    if (o->op->code == KRN_PICK)
        return call(o, &op, 1, o->reg[0].view.dim, out);
    *out = o->reg[0]; /* flatten */
    return ERR_OK;
}

static const struct { const char *name; int (*f)(struct operands *, struct eng_val *); } emitters[] = {
    {"add", binary}, {"attend", attend}, {"attend_mla", attend_mla}, {"bank", bank}, {"conv1d", conv1d}, {"decay", decay}, {"delta", delta}, {"embed", embed},
    {"experts", experts}, {"flatten", simple}, {"glu", binary}, {"heads", heads}, {"l2norm", norm}, {"linear", linear}, {"mix", mix}, {"mul", binary},
    {"pick", simple}, {"push", push}, {"rmsnorm", norm}, {"rope", rope}, {"route", route}, {"scale", unary}, {"sigmoid", unary}, {"silu", unary}, {"softcap", unary}};

/* ---- operands --------------------------------------------------------------------------------------------- */
static int bad_arg(struct operands *o, unsigned i, const char *what)
{
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u: expected %s", o->op->name, i + 1, what);
}

static int bad_value(struct operands *o, unsigned i, const char *what, const struct eng_value *v)
{
    char text[80];

    eng_v_show(v, text, sizeof text);
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u: expected %s, found %s", o->op->name, i + 1, what, text);
}

static int read_register(struct operands *o, const struct eng_arg *a, unsigned i, char letter)
{
    struct eng_val v[ENG_VALS_MAX];
    unsigned n = 0;
    static const char *const what[] = {"a register", "a list register", "what route gives", "tok"};
    enum eng_val_kind want = letter == 'B' ? ENG_VAL_LIST : letter == 'R' ? ENG_VAL_ROUTING : letter == 't' ? ENG_VAL_TOKENS : ENG_VAL_REG;
    int rc;

    if (a->kind != ENG_ARG_CALL && !a->name)
        return bad_arg(o, i, what[want]);
    if (a->kind == ENG_ARG_WEIGHT || a->kind == ENG_ARG_STATE)
        return bad_arg(o, i, what[want]);
    rc = eng_compile_arg(o->c, a, v, &n, o->e);
    if (rc)
        return rc;
    if (n != 1 || v[0].kind != want)
        return bad_arg(o, i, what[want]);
    if (letter != 't')
        o->reg[o->n_regs++] = v[0];
    return ERR_OK;
}

static int read_weight(struct operands *o, const struct eng_arg *a, unsigned i)
{
    int rc;

    if (a->kind != ENG_ARG_WEIGHT || o->n_w == KRN_OP_WEIGHTS)
        return bad_arg(o, i, "a tensor (@name)");
    o->w_name[o->n_w] = a->name;
    if ((rc = eng_bind(&o->c->b, a->name, &o->w[o->n_w++], o->e)))
        return rc == ERR_NOTFOUND ? eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: no tensor `@%s` in sheet %s", o->op->name, a->name, o->c->env.sheet_name) : rc;
    return ERR_OK;
}

static int eval(struct operands *o, const struct eng_arg *a, struct eng_value *v)
{
    int rc = eng_env_eval(&o->c->env, a->expr, v, o->e);

    if (rc == ERR_NOTFOUND && a->name)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "`%s` is neither a parameter nor a register set by an earlier line", a->name);
    return rc ? eng_compile_at(o->c, o->e, rc, "%s", o->e ? o->e->msg : "expression") : ERR_OK;
}

static int read_number(struct operands *o, const struct eng_arg *a, unsigned i, char letter, bool optional)
{
    struct eng_value v;
    double x = 0;
    int64_t n;
    int rc;

    if (a->kind != ENG_ARG_EXPR)
        return bad_arg(o, i, "a number");
    if ((rc = eval(o, a, &v)))
        return rc;
    o->null[o->n_nums] = v.type == ENG_V_NULL;
    if (letter == 'q') {
        if (v.type != ENG_V_STR)
            return bad_arg(o, i, "a text in quotes");
        o->text = v.u.s;
        return ERR_OK;
    }
    if (!(v.type == ENG_V_NULL && optional) && (!eng_v_number(&v, &x) || (letter == 'n' && (!eng_v_integer(&v, &n) || n < 1 || n > INT32_MAX))))
        return bad_value(o, i, letter == 'n' ? "a count" : "a number", &v);
    o->num[o->n_nums++] = x;
    return ERR_OK;
}

static int read_args(struct operands *o, const struct eng_arg *src)
{
    const char *p = o->op->args;
    const struct eng_arg *a = src->args;
    int rc = ERR_OK;

    for (unsigned i = 0; *p && !rc; i++) {
        char letter = *p;
        bool optional = p[1] == '?', many = p[1] == '*';
        if (i == ARGS_MAX)
            return err_set(o->e, ERR_LIMIT, "%s: more than %d arguments", o->op->name, ARGS_MAX);
        if (!a) {
            if (optional || (many && i > 0)) {
                if (letter == 'f')
                    o->null[o->n_nums++] = true;
                p += 2;
                continue;
            }
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u is missing", o->op->name, i + 1);
        }
        if (letter == 'w')
            rc = read_weight(o, a, i);
        else if (letter == 's')
            rc = a->kind == ENG_ARG_STATE ? (o->state = a->name, ERR_OK) : bad_arg(o, i, "a state ($name)");
        else if (letter == 'n' || letter == 'f' || letter == 'q')
            rc = read_number(o, a, i, letter, optional);
        else
            rc = read_register(o, a, i, letter);
        a = a->next;
        if (!many)
            p += optional ? 2 : 1;
    }
    if (!rc && a)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: more arguments than it takes", o->op->name);
    return rc;
}

/* The text of an attribute's value: from the call, the sheet's defaults, or the registry. */
static int attr_weight(struct operands *o, const struct eng_arg *a, struct attr_val *out)
{
    struct eng_bound w;
    int rc;

    out->weight = KRN_NO_WEIGHT;
    if (!a || a->kind == ENG_ARG_EXPR)
        return ERR_OK; /* null */
    if (a->kind != ENG_ARG_WEIGHT)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: expected a tensor (@name)", o->op->name, a->attr);
    if ((rc = eng_bind(&o->c->b, a->name, &w, o->e)))
        return rc == ERR_NOTFOUND ? eng_compile_at(o->c, o->e, ERR_FORMAT, "no tensor `@%s` in sheet %s", a->name, o->c->env.sheet_name) : rc;
    out->weight = w.absent ? KRN_NO_WEIGHT : w.first;
    return ERR_OK;
}

static int attr_value(struct operands *o, const struct eng_attr *d, const struct eng_value *v, struct attr_val *out)
{
    char text[80];
    int64_t i;
    int word = -1;

    eng_v_show(v, text, sizeof text);
    switch (d->kind) {
    case ENG_ATTR_NUM:
        if (eng_v_number(v, &out->num))
            return ERR_OK;
        break;
    case ENG_ATTR_INT:
        if (eng_v_integer(v, &i) && i >= 0 && i <= UINT32_MAX) {
            out->num = (double)i;
            return ERR_OK;
        }
        break;
    case ENG_ATTR_BOOL:
        if (v->type == ENG_V_BOOL || v->type == ENG_V_INT) {
            out->num = eng_v_truth(v);
            return ERR_OK;
        }
        break;
    case ENG_ATTR_WORD:
        if (v->type == ENG_V_STR && (word = eng_op_word(d->words, v->u.s, v->n)) >= 0) {
            out->num = word;
            return ERR_OK;
        }
        return eng_compile_at(o->c, o->e, ERR_UNSUPPORTED, "%s: %s: expected one of %s, found %s", o->op->name, d->name, d->words, text);
    default:
        if (v->type == ENG_V_STR) {
            out->text = v->u.s;
            return ERR_OK;
        }
    }
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: found %s, which is no %s", o->op->name, d->name, text,
                          d->kind == ENG_ATTR_NUM ? "number" : d->kind == ENG_ATTR_INT ? "count" : d->kind == ENG_ATTR_BOOL ? "truth value" : "name");
}

static int read_attr(struct operands *o, const struct eng_attr *d, const struct eng_arg *src, struct attr_val *out)
{
    const char *dflt = json_str(json_get(json_get(json_get(o->c->env.sheet, "defaults"), o->op->name), d->name));
    const struct eng_arg *a = src->attrs;
    struct eng_value v = {.type = ENG_V_NULL};
    int rc = ERR_OK;

    while (a && strcmp(a->attr, d->name))
        a = a->next;
    if (d->kind == ENG_ATTR_WEIGHT)
        return attr_weight(o, a, out);
    if (a && a->kind != ENG_ARG_EXPR)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: expected an expression", o->op->name, d->name);
    if (a)
        rc = eval(o, a, &v);
    else if (dflt && (rc = eng_env_text(&o->c->env, dflt, &v, o->e)))
        rc = eng_compile_at(o->c, o->e, rc, "%s: default %s: %s", o->op->name, d->name, o->e ? o->e->msg : "");
    if (rc)
        return rc;
    if (v.type == ENG_V_NULL && d->dflt && (rc = eng_env_text(&o->c->env, d->dflt, &v, o->e)))
        return rc;
    if (v.type == ENG_V_NULL)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s is missing", o->op->name, d->name);
    return attr_value(o, d, &v, out);
}

int eng_emit(struct eng_compiler *c, const struct eng_arg *src, struct eng_val *out, unsigned *n_out, struct err *e)
{
    struct operands o = {.c = c, .op = src->op, .e = e};
    int rc = read_args(&o, src);

    for (unsigned i = 0; !rc && i < ENG_OP_ATTRS && o.op->attrs[i].name; i++)
        rc = read_attr(&o, &o.op->attrs[i], src, &o.attr[i]);
    for (const struct eng_arg *a = src->attrs; !rc && a; a = a->next) {
        bool known = false;
        for (unsigned i = 0; i < ENG_OP_ATTRS && o.op->attrs[i].name; i++)
            known = known || !strcmp(o.op->attrs[i].name, a->attr);
        if (!known)
            rc = eng_compile_at(c, e, ERR_FORMAT, "%s has no attribute `%s`", o.op->name, a->attr);
    }
    if (rc)
        return rc;
    *n_out = 1;
    if (!strcmp(o.op->name, "split"))
        return split(&o, out, n_out);
    for (size_t i = 0; i < sizeof emitters / sizeof *emitters; i++)
        if (!strcmp(emitters[i].name, o.op->name))
            return emitters[i].f(&o, out);
    return err_set(e, ERR_UNSUPPORTED, "operator %s is not compiled", o.op->name);
}
