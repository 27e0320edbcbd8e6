/* kernels/gpu_order.c - where a dispatch must wait: it touches what one since the last barrier wrote, or writes what one read.
 *
 * One memory barrier for everything, between two dispatches; q, k, v or gate, up share a gap. Validation sees no hazard through device
 * addresses, so this rule is what there is, and tests/kernels/check_gpu.c holds it against every plan it runs. */
#include "kernels/gpu_internal.h"

static bool meets(const struct gpu_span *a, const struct gpu_span *b) { return a->space == b->space && a->lo < b->hi && b->lo < a->hi; }

static bool depends(const struct gpu_call *later, const struct gpu_call *earlier)
{
    if (meets(&later->write, &earlier->write)) return true;
    for (unsigned i = 0; i < later->n_reads; i++)
        if (meets(&later->reads[i], &earlier->write)) return true;
    for (unsigned i = 0; i < earlier->n_reads; i++)
        if (meets(&later->write, &earlier->reads[i])) return true;
    return false;
}

void gpu_order(krn_list *l)
{
    for (size_t i = 0, first = 0; i < l->n; i++) {
        l->calls[i].barrier = false;
        for (size_t k = first; k < i && !l->calls[i].barrier; k++) l->calls[i].barrier = depends(&l->calls[i], &l->calls[k]);
        if (l->calls[i].barrier) first = i;
    }
}
