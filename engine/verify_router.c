#include "engine/verify_router.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/route.h"

static bool in(const int32_t *list, uint32_t k, uint32_t id)
{
    for (uint32_t i = 0; i < k; i++)
        if (list[i] == (int32_t)id)
            return true;
    return false;
}

static bool same(const float *ids, const int32_t *want, uint32_t k)
{
    for (uint32_t i = 0; i < k; i++)
        if (ids[i] != (float)want[i])
            return false;
    return true;
}

int eng_router_compare(const struct krn_op *op, const float *bias, const float *scores, const float *ids, const int32_t *want, float error, enum eng_choice *out, struct err *e)
{
    uint32_t n = op->in[0].dim, k = op->u.route.k;
    struct krn_router_spec p = {op->u.route.kind, n, k, op->u.route.groups, op->u.route.keep, op->u.route.norm, op->u.route.norm_eps, op->u.route.scale};
    float *moved, chosen[KRN_ROUTE_K_MAX], weights[KRN_ROUTE_K_MAX];

    *out = ENG_CHOICE_SAME;
    if (same(ids, want, k))
        return ERR_OK;
    if (!(moved = malloc((n + KRN_ROUTE_SCRATCH(n)) * sizeof *moved)))
        return err_set(e, ERR_NOMEM, "scores of %u experts", n);
    for (uint32_t i = 0; i < n; i++)
        moved[i] = scores[i] + (in(want, k, i) ? error : -error);
    krn_route(krn_ops_get(KRN_ISA_C), &p, moved, bias, moved + n, chosen, weights);
    *out = same(chosen, want, k) ? ENG_CHOICE_CLOSE : ENG_CHOICE_OTHER;
    free(moved);
    return ERR_OK;
}
