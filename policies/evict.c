#include "policies/evict.h"

static bool before(const struct pol_page *a, const struct pol_page *b, bool windowed)
{
    if (a->used_at != b->used_at)
        return a->used_at < b->used_at;
    return windowed ? a->depth < b->depth : a->depth > b->depth;
}

size_t pol_evict(const struct pol_page *p, size_t n, bool windowed)
{
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < n; i++)
        if (p[i].cached && !p[i].leases && (windowed || !p[i].children) && (best == SIZE_MAX || before(&p[i], &p[best], windowed)))
            best = i;
    return best;
}
