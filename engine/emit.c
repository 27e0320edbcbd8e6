/* Operators without a state: one function each applies the shape rule and fills the call. Views (heads, flatten, split) make no
 * call. Arguments are read by the registry's letters, attributes by its table, before. */
#include "engine/emit_internal.h"

#include <math.h>
#include <string.h>

static int heads(struct eng_operands *o, struct eng_val *out)
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

static int split(struct eng_operands *o, struct eng_val *out, unsigned *n_out)
{
    double sum = 0;
    struct krn_view v = o->reg[0].view;

    for (unsigned i = 0; i < o->n_nums; i++) {
        if (!(o->num[i] >= 1))
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "split into a part of %g", o->num[i]);
        sum += o->num[i];
    }
    if (fabs(sum - v.dim) > 0.5 || o->n_nums > ENG_VALS_MAX)
        return eng_emit_fail(o, "sum of the parts", v.dim, (uint64_t)sum);
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

static int embed(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    struct eng_tiles t;
    int rc;

    eng_emit_weight(&op, 0, &o->w[0]);
    if ((rc = eng_vocab_tiles(o->c, op.weight[0], &t, o->e)))
        return rc;
    op.weight[0] = t.first;
    op.u.embed.scale = (float)o->attr[0].num;
    op.u.embed.tiles = t.n;
    op.u.embed.tile_rows = t.rows;
    return o->w[0].n_dims == 2 ? eng_emit_call(o, &op, 1, (uint32_t)o->w[0].dims[1], out) : eng_emit_fail(o, "dimensions of the table", 2, o->w[0].n_dims);
}

int eng_emit_linear(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct eng_bound *w = &o->w[0];
    int rc;

    op.code = KRN_LINEAR;
    if (w->absent)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s needs @%s, which is not in the files", o->op->name, o->w_name[0]);
    if (w->n_dims != 2 || w->n != 1)
        return eng_emit_fail(o, "dimensions of the weight", 2, w->n_dims);
    if (eng_emit_width(&o->reg[0].view) != w->dims[1])
        return eng_emit_fail(o, "inputs", w->dims[1], eng_emit_width(&o->reg[0].view));
    if ((rc = eng_emit_row(o, &o->reg[0])))
        return rc;
    eng_emit_weight(&op, 0, w);
    if (w->bias != KRN_NO_WEIGHT) {
        op.weight[1] = w->bias;
        op.n_weights = 2;
    }
    if (w->dims[1] > o->c->p->linear_cols_max)
        o->c->p->linear_cols_max = (uint32_t)w->dims[1];
    if (o->c->env.layer < 0 && w->bias == KRN_NO_WEIGHT && w->dims[0] == o->c->p->vocab) {
        struct eng_tiles t;
        if ((rc = eng_vocab_tiles(o->c, op.weight[0], &t, o->e)))
            return rc;
        if (t.n > 1)
            return eng_emit_head(o, &op, &t, out);
    }
    return eng_emit_call(o, &op, 1, (uint32_t)w->dims[0], out);
}

static int norm(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *v = &o->reg[0].view;
    bool l2 = op.code == KRN_L2NORM;

    op.u.norm.eps = (float)o->attr[0].num;
    op.u.norm.offset = l2 ? 0 : (float)o->attr[1].num;
    if (!l2 && o->n_w) {
        if (!o->w[0].absent && (o->w[0].n_dims != 1 || o->w[0].dims[0] != v->dim))
            return eng_emit_fail(o, "values of the norm's weight", v->dim, o->w[0].dims[0]);
        eng_emit_weight(&op, 0, &o->w[0]);
    }
    return eng_emit_call(o, &op, v->heads, v->dim, out);
}

static int unary(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *v = &o->reg[0].view;

    if (op.code == KRN_SOFTCAP && (o->null[0] || !(o->num[0] > 0))) {
        *out = o->reg[0]; /* no cap: no call */
        return ERR_OK;
    }
    if (op.code == KRN_SOFTCAP || op.code == KRN_SCALE)
        op.u.scalar.c = (float)o->num[0];
    return eng_emit_call(o, &op, v->heads, v->dim, out);
}

static int binary(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *a = &o->reg[0].view, *b = &o->reg[1].view;
    bool same = a->heads == b->heads && a->dim == b->dim;
    int rc;

    if (eng_emit_width(a) != eng_emit_width(b))
        return eng_emit_fail(o, "values of the second operand", eng_emit_width(a), eng_emit_width(b));
    if (!same && ((rc = eng_emit_row(o, &o->reg[0])) || (rc = eng_emit_row(o, &o->reg[1]))))
        return rc;
    if (op.code == KRN_GLU) {
        op.u.glu.act = (enum krn_act)(int)o->attr[0].num;
        op.u.glu.alpha = (float)o->attr[1].num;
        op.u.glu.limit = (float)o->attr[2].num;
        op.u.glu.beta = (float)o->attr[3].num;
        op.u.glu.beta_u = (float)o->attr[4].num;
    }
    return eng_emit_call(o, &op, a->heads, a->dim, out);
}

static int rope(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *v = &o->reg[0].view;
    int rc = eng_rope_table(o->c, o->attr[0].text, &op.u.rope.table, o->e);

    if (rc)
        return rc;
    op.u.rope.pairs = (enum krn_pairs)(int)o->attr[1].num;
    if (2 * o->c->p->ropes[op.u.rope.table].n_freq > v->dim)
        return eng_emit_fail(o, "rotated dims at most", v->dim, 2 * o->c->p->ropes[op.u.rope.table].n_freq);
    return eng_emit_call(o, &op, v->heads, v->dim, out);
}

static int bank(struct eng_operands *o, struct eng_val *out)
{
    uint32_t id;
    /* Its width and how many copies it needs are known when the walk is over: push() widens it. */
    int rc = eng_emit_store(o, 1, 1, KRN_ROWS_TOKENS, &id);

    out->kind = ENG_VAL_LIST;
    out->view = eng_emit_view(id, 1, 1, KRN_ROWS_TOKENS);
    return rc;
}

static int push(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    struct eng_val *b = &o->reg[0];
    struct krn_view x = o->reg[1].view;
    struct eng_store *s = &o->c->stores[b->view.base];

    if (!b->view.list)
        s->width = b->view.dim = b->view.head_stride = eng_emit_width(&x);
    if (s->width != eng_emit_width(&x) || x.rows != s->rows)
        return eng_emit_fail(o, "values of a list entry", s->width, eng_emit_width(&x));
    op.n_in = 1;
    op.in[0] = x;
    op.out = eng_emit_view(b->view.base, 1, s->width, s->rows);
    op.out.stride = b->view.list; /* which copy, until the layout is known */
    *out = *b;
    out->view.list++;
    if (out->view.list > s->copies)
        s->copies = out->view.list;
    return eng_emit_push(o, &op);
}

static int mix(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *x = &o->reg[1].view;

    if (!o->reg[0].view.list) {
        *out = o->reg[1]; /* nothing to mix with */
        return ERR_OK;
    }
    if (o->reg[0].view.dim != eng_emit_width(x))
        return eng_emit_fail(o, "values of x", o->reg[0].view.dim, eng_emit_width(x));
    if (!o->w[0].absent)
        eng_emit_weight(&op, 0, &o->w[0]);
    if (o->w[1].n_dims < 1 || o->w[1].dims[o->w[1].n_dims - 1] != eng_emit_width(x))
        return eng_emit_fail(o, "inputs of the projection", eng_emit_width(x), o->w[1].n_dims ? o->w[1].dims[o->w[1].n_dims - 1] : 0);
    eng_emit_weight(&op, 1, &o->w[1]);
    op.u.norm.eps = (float)o->attr[0].num;
    return eng_emit_call(o, &op, 1, eng_emit_width(x), out);
}

static int simple(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    int rc;

    if ((rc = eng_emit_row(o, &o->reg[0])))
        return rc;
    if (o->op->code == KRN_PICK)
        return eng_emit_call(o, &op, 1, o->reg[0].view.dim, out);
    *out = o->reg[0]; /* flatten */
    return ERR_OK;
}

static const struct { const char *name; int (*f)(struct eng_operands *, struct eng_val *); } emitters[] = {
    {"add", binary}, {"attend", eng_emit_attend}, {"attend_mla", eng_emit_attend_mla}, {"bank", bank}, {"conv1d", eng_emit_conv1d},
    {"decay", eng_emit_decay}, {"delta", eng_emit_delta}, {"embed", embed}, {"experts", eng_emit_experts}, {"flatten", simple}, {"glu", binary},
    {"heads", heads}, {"l2norm", norm}, {"linear", eng_emit_linear}, {"mix", mix}, {"mul", binary}, {"pick", simple}, {"push", push}, {"rmsnorm", norm},
    {"rope", rope}, {"route", eng_emit_route}, {"scale", unary}, {"sigmoid", unary}, {"silu", unary}, {"softcap", unary}};

int eng_emit(struct eng_compiler *c, const struct eng_arg *src, struct eng_val *out, unsigned *n_out, struct err *e)
{
    struct eng_operands o = {.c = c, .op = src->op, .e = e};
    int rc = eng_emit_args(&o, src);

    for (unsigned i = 0; !rc && i < ENG_OP_ATTRS && o.op->attrs[i].name; i++)
        rc = eng_emit_attr(&o, &o.op->attrs[i], src, &o.attr[i]);
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
