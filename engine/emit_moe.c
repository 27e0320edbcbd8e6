/* Routing and experts. A segment ends behind the router: which experts are read is known only then. */
#include "engine/emit_internal.h"

#include <string.h>

int eng_emit_route(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    uint32_t k = (uint32_t)o->attr[1].num, n = (uint32_t)o->w[0].dims[0], groups = (uint32_t)o->attr[2].num, keep = (uint32_t)o->attr[3].num;
    int rc;

    if (o->w[0].n_dims != 2 || o->w[0].dims[1] != eng_emit_width(&o->reg[0].view))
        return eng_emit_fail(o, "inputs of the router", eng_emit_width(&o->reg[0].view), o->w[0].n_dims == 2 ? o->w[0].dims[1] : 0);
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
    eng_emit_weight(&op, 0, &o->w[0]);
    if (o->attr[7].weight != KRN_NO_WEIGHT) {
        op.weight[1] = o->attr[7].weight;
        op.n_weights = 2;
    }
    if ((rc = eng_emit_call(o, &op, 2, k, out))) /* expert numbers, then their weights */
        return rc;
    out->kind = ENG_VAL_ROUTING;
    return eng_compile_segment(o->c, true, o->e);
}

int eng_emit_experts(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *h = &o->reg[0].view;
    const struct eng_bound *g = &o->w[0], *u = &o->w[1], *d = &o->w[2];

    if (g->n_dims != 3 || u->n_dims != 3 || d->n_dims != 3 || g->dims[2] != eng_emit_width(h) || memcmp(g->dims, u->dims, sizeof g->dims) || d->dims[0] != g->dims[0] ||
        d->dims[2] != g->dims[1])
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "experts: expected @%s and @%s [E, f, %u] and @%s [E, out, f]", o->w_name[0], o->w_name[1], eng_emit_width(h), o->w_name[2]);
    for (unsigned i = 0; i < 3; i++)
        eng_emit_weight(&op, i, &o->w[i]);
    op.u.experts.act = (enum krn_act)(int)o->attr[0].num;
    op.u.experts.alpha = (float)o->attr[1].num;
    op.u.experts.limit = (float)o->attr[2].num;
    op.u.experts.beta = (float)o->attr[3].num;
    op.u.experts.beta_u = (float)o->attr[4].num;
    op.u.experts.n = (uint32_t)g->dims[0];
    for (unsigned i = 1; i < 3; i++)
        if (g->dims[i] > o->c->p->linear_cols_max)
            o->c->p->linear_cols_max = (uint32_t)g->dims[i];
    return eng_emit_call(o, &op, 1, (uint32_t)d->dims[1], out);
}
