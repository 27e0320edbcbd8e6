/* Operators that keep a state between tokens: attention over KV pages, convolution and the delta rule over recurrent fields. */
#include "engine/emit_internal.h"

#include <inttypes.h>
#include <string.h>

int eng_emit_attend(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *q = &o->reg[0].view, *k = &o->reg[1].view, *v = &o->reg[2].view;
    int rc;

    if (k->dim != q->dim)
        return eng_emit_fail(o, "head size of k", q->dim, k->dim);
    if (v->heads != k->heads)
        return eng_emit_fail(o, "heads of v", k->heads, v->heads);
    if (!k->heads || q->heads % k->heads)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend: %u query heads over %u key heads", q->heads, k->heads);
    op.u.attend.scale = (float)o->attr[0].num;
    op.u.attend.window = (uint32_t)o->attr[1].num;
    op.u.attend.softcap = (float)o->attr[2].num;
    if (!o->attr[3].w.absent)
        eng_emit_weight(&op, 0, &o->attr[3].w);
    if ((rc = eng_state_pages(o->c, o->state, k->heads, k->dim, v->dim, false, op.u.attend.window, &op.state, &op.state_layer, o->e)))
        return rc;
    return eng_emit_call(o, &op, q->heads, v->dim, out);
}

int eng_emit_attend_mla(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *qn = &o->reg[0].view, *qr = &o->reg[1].view, *lat = &o->reg[2].view, *kr = &o->reg[3].view;
    const struct eng_bound *ku = &o->w[0], *vu = &o->w[1];
    int rc;

    if (qr->heads != qn->heads)
        return eng_emit_fail(o, "heads of qr", qn->heads, qr->heads);
    if (ku->n_dims != 3 || ku->dims[0] != qn->heads || ku->dims[1] != qn->dim || ku->dims[2] != lat->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend_mla: expected @%s [%u, %u, %u]", o->w_name[0], qn->heads, qn->dim, lat->dim);
    if (vu->n_dims != 3 || vu->dims[0] != qn->heads || vu->dims[2] != lat->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "attend_mla: expected @%s [%u, values, %u]", o->w_name[1], qn->heads, lat->dim);
    if (eng_emit_width(kr) != qr->dim)
        return eng_emit_fail(o, "values of kr", qr->dim, eng_emit_width(kr));
    eng_emit_weight(&op, 0, ku);
    eng_emit_weight(&op, 1, vu);
    op.u.attend.scale = (float)o->attr[0].num;
    op.u.attend.turned = o->c->b.tensors[ku->first].transposed;
    uint64_t cols = (uint64_t)qn->heads * (lat->dim + qr->dim);
    if (cols > INT32_MAX)
        return eng_emit_fail(o, "absorbed queries of a token at most", INT32_MAX, cols);
    if (cols > o->c->p->latent_cols)
        o->c->p->latent_cols = (uint32_t)cols;
    if ((rc = eng_state_pages(o->c, o->state, 1, lat->dim + qr->dim, 0, true, 0, &op.state, &op.state_layer, o->e)))
        return rc;
    return eng_emit_call(o, &op, qn->heads, (uint32_t)vu->dims[1], out);
}

static int field_index(struct eng_operands *o, uint32_t state, const char *name)
{
    const struct eng_recurrent *r = &o->c->p->recurrent[state];

    for (uint32_t i = 0; i < r->n_fields; i++)
        if (!strcmp(r->field[i].name, name))
            return (int)i;
    return -1;
}

int eng_emit_conv1d(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *x = &o->reg[0].view;
    int rc = eng_state_recurrent(o->c, o->state, &op.state, &op.state_layer, o->e), field;

    if (rc)
        return rc;
    if (o->w[0].n_dims != 2 || o->w[0].dims[0] != eng_emit_width(x))
        return eng_emit_fail(o, "channels of the kernel", eng_emit_width(x), o->w[0].dims[0]);
    if ((field = field_index(o, op.state, o->text)) < 0)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "conv1d: state $%s has no field '%s'", o->state, o->text);
    const uint64_t *d = o->c->p->recurrent[op.state].field[field].dims;
    if (o->c->p->recurrent[op.state].field[field].n_dims != 2 || d[0] + 1 != o->w[0].dims[1] || d[1] != eng_emit_width(x))
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "conv1d: state field '%s' must be [%" PRIu64 ", %u]", o->text, o->w[0].dims[1] - 1, eng_emit_width(x));
    eng_emit_weight(&op, 0, &o->w[0]);
    op.u.state.field = (uint32_t)field;
    return eng_emit_call(o, &op, x->heads, x->dim, out);
}

int eng_emit_decay(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *x = &o->reg[0].view;
    uint64_t h = o->w[0].dims[0];

    if (o->w[0].n_dims != 1 || !h || eng_emit_width(x) % h || o->w[1].n_dims != 1 || o->w[1].dims[0] != eng_emit_width(x))
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "decay: expected @%s a head and @%s [%u]", o->w_name[0], o->w_name[1], eng_emit_width(x));
    eng_emit_weight(&op, 0, &o->w[0]);
    eng_emit_weight(&op, 1, &o->w[1]);
    op.u.decay.bounded = o->attr[0].num > 0;
    op.u.decay.lower = (float)o->attr[1].num;
    op.u.decay.raised = o->c->b.tensors[o->w[0].first].map && !strcmp(o->c->b.tensors[o->w[0].first].map, "log(-v)");
    return eng_emit_call(o, &op, (uint32_t)h, eng_emit_width(x) / (uint32_t)h, out);
}

int eng_emit_delta(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *q = &o->reg[0].view, *k = &o->reg[1].view, *v = &o->reg[2].view, *g = &o->reg[3].view, *beta = &o->reg[4].view;
    int rc = eng_state_recurrent(o->c, o->state, &op.state, &op.state_layer, o->e), field;

    if (rc)
        return rc;
    if (k->heads != q->heads || k->dim != q->dim || v->heads % q->heads)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: k must be as q, and heads of v a multiple of theirs");
    if (eng_emit_width(g) != eng_emit_width(k) && eng_emit_width(g) != v->heads)
        return eng_emit_fail(o, "values of the decay", eng_emit_width(k), eng_emit_width(g));
    if (eng_emit_width(beta) != v->heads)
        return eng_emit_fail(o, "values of beta", v->heads, eng_emit_width(beta));
    if ((field = field_index(o, op.state, "S")) < 0)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: state $%s has no field 'S'", o->state);
    const uint64_t *d = o->c->p->recurrent[op.state].field[field].dims;
    if (o->c->p->recurrent[op.state].field[field].n_dims != 3 || d[0] != v->heads || d[1] != k->dim || d[2] != v->dim)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "delta: state field 'S' must be [%u, %u, %u]", v->heads, k->dim, v->dim);
    op.u.state.field = (uint32_t)field;
    return eng_emit_call(o, &op, v->heads, v->dim, out);
}
