/* Routing and experts. A segment ends behind the router: which experts are read is known only then. The experts' call is a segment of
 * its own, so that it can run in portions as they arrive. */
#include "engine/emit_internal.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/route.h"

/* The router's matrix is a linear like any other; what it scores goes through route. */
int eng_emit_route(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    uint32_t k = (uint32_t)o->attr[1].num, n = o->w[0].n_dims ? (uint32_t)o->w[0].dims[0] : 0, groups = (uint32_t)o->attr[2].num, keep = (uint32_t)o->attr[3].num;
    const struct eng_bound *bias = &o->attr[7].w;
    struct eng_val scores = {0};
    int rc;

    if (!k || k > n || k > KRN_ROUTE_K_MAX)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "route: expected 1 to %d of %u experts a token, found %u", KRN_ROUTE_K_MAX, n, k);
    if (!groups || n % groups || !keep || keep > groups || (uint64_t)keep * (n / groups) < k)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "route: %u of %u groups of %u experts, for %u", keep, groups, n, k);
    if (!bias->absent && (bias->n_dims != 1 || bias->dims[0] != n))
        return eng_emit_fail(o, "values of the correction bias", n, bias->n_dims == 1 ? bias->dims[0] : 0);
    if ((rc = eng_emit_linear(o, &scores)))
        return rc;
    op.u.route.kind = (enum krn_router)(int)o->attr[0].num;
    op.u.route.k = k;
    op.u.route.groups = groups;
    op.u.route.keep = keep;
    op.u.route.norm = o->attr[4].num > 0;
    op.u.route.norm_eps = (float)o->attr[5].num;
    op.u.route.scale = (float)o->attr[6].num;
    if (!bias->absent)
        eng_emit_weight(&op, 0, bias);
    o->reg[0] = scores;
    if ((rc = eng_emit_call(o, &op, 2, k, out))) /* expert numbers, then their weights */
        return rc;
    out->kind = ENG_VAL_ROUTING;
    if ((rc = eng_compile_segment(o->c, true, o->e)) || (rc = eng_compile_tap(o->c, "router_scores", &scores.view, o->e)))
        return rc;
    return eng_compile_tap(o->c, "router", &out->view, o->e);
}

static void widest(uint32_t *most, uint64_t n)
{
    if (n > *most)
        *most = (uint32_t)n;
}

int eng_emit_experts(struct eng_operands *o, struct eng_val *out)
{
    struct krn_op op = eng_emit_blank(o);
    const struct krn_view *h = &o->reg[0].view;
    const struct eng_bound *g = &o->w[0], *u = &o->w[1], *d = &o->w[2];
    struct krn_experts_max *max = &o->c->p->experts;
    int rc;

    if (g->n_dims != 3 || u->n_dims != 3 || d->n_dims != 3 || g->dims[2] != eng_emit_width(h) || memcmp(g->dims, u->dims, sizeof g->dims) || d->dims[0] != g->dims[0] ||
        d->dims[2] != g->dims[1])
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "experts: expected @%s and @%s [E, f, %u] and @%s [E, out, f]", o->w_name[0], o->w_name[1], eng_emit_width(h), o->w_name[2]);
    if ((rc = eng_emit_row(o, &o->reg[0])))
        return rc;
    for (unsigned i = 0; i < 3; i++) {
        const struct eng_bound *bias = &o->attr[5 + i].w;
        eng_emit_weight(&op, i, &o->w[i]);
        if (bias->absent)
            continue;
        if (bias->n_dims != 2 || bias->dims[0] != g->dims[0] || bias->dims[1] != o->w[i].dims[1])
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "experts: %s: expected [%" PRIu64 ", %" PRIu64 "]", o->op->attrs[5 + i].name, g->dims[0], o->w[i].dims[1]);
        eng_emit_weight(&op, 3 + i, bias);
    }
    op.u.experts.act = (enum krn_act)(int)o->attr[0].num;
    op.u.experts.alpha = (float)o->attr[1].num;
    op.u.experts.limit = (float)o->attr[2].num;
    op.u.experts.beta = (float)o->attr[3].num;
    op.u.experts.beta_u = (float)o->attr[4].num;
    op.u.experts.n = (uint32_t)g->dims[0];
    widest(&max->n, g->dims[0]);
    widest(&max->k, o->reg[1].view.dim);
    widest(&max->in, g->dims[2]);
    widest(&max->out, d->dims[1]);
    widest(&max->mid, g->dims[1]);
    if (o->c->n_ops > o->c->seg_op0) {
        if ((rc = eng_compile_segment(o->c, false, o->e)))
            return rc;
        o->c->seg_joins = true;
    }
    if ((rc = eng_emit_call(o, &op, 1, (uint32_t)d->dims[1], out)) || (rc = eng_compile_segment(o->c, false, o->e)))
        return rc;
    o->c->seg_joins = true;
    return ERR_OK;
}
