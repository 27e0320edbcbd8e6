/* Registers and calls: what every operator makes. */
#include "engine/emit_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int eng_emit_fail(struct eng_operands *o, const char *what, uint64_t expected, uint64_t found)
{
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: %s: expected %" PRIu64 ", found %" PRIu64, o->op->name, what, expected, found);
}

int eng_emit_store(struct eng_operands *o, uint32_t w, uint32_t copies, enum krn_rows rows, uint32_t *id)
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

struct krn_view eng_emit_view(uint32_t store, uint32_t heads, uint32_t dim, enum krn_rows rows)
{
    return (struct krn_view){.base = store, .heads = heads, .dim = dim, .head_stride = dim, .rows = rows};
}

int eng_emit_push(struct eng_operands *o, const struct krn_op *op)
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

struct krn_op eng_emit_blank(const struct eng_operands *o)
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

int eng_emit_call(struct eng_operands *o, struct krn_op *op, uint32_t heads, uint32_t dim, struct eng_val *out)
{
    uint32_t id;
    enum krn_rows rows = o->n_regs ? o->reg[0].view.rows : KRN_ROWS_TOKENS;
    int rc;

    for (unsigned i = 0; i < o->n_regs; i++) {
        if (o->reg[i].view.rows != rows)
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s mixes picked rows with rows of tokens", o->op->name);
        op->in[op->n_in++] = o->reg[i].view;
    }
    if ((rc = eng_emit_store(o, heads * dim, 1, op->code == KRN_PICK ? KRN_ROWS_PICKED : rows, &id)))
        return rc;
    out->kind = ENG_VAL_REG;
    op->out = out->view = eng_emit_view(id, heads, dim, op->code == KRN_PICK ? KRN_ROWS_PICKED : rows);
    return eng_emit_push(o, op);
}

int eng_emit_row(struct eng_operands *o, struct eng_val *v)
{
    struct krn_op op = eng_emit_blank(o);
    uint32_t n = eng_emit_width(&v->view), id;
    int rc;

    if (v->view.heads > 1 && v->view.head_stride != v->view.dim) {
        op.code = KRN_COPY;
        op.n_in = 1;
        op.in[0] = v->view;
        if ((rc = eng_emit_store(o, n, 1, v->view.rows, &id)))
            return rc;
        op.out = eng_emit_view(id, v->view.heads, v->view.dim, v->view.rows);
        if ((rc = eng_emit_push(o, &op)))
            return rc;
        v->view = op.out;
    }
    v->view.heads = 1;
    v->view.dim = v->view.head_stride = n;
    return ERR_OK;
}

void eng_emit_weight(struct krn_op *op, unsigned slot, const struct eng_bound *w)
{
    op->weight[slot] = w->absent ? KRN_NO_WEIGHT : w->first;
    if (slot >= op->n_weights)
        op->n_weights = (uint8_t)(slot + 1);
}
