#include "policies/evict.h"

#include <assert.h>

static bool before(const struct pol_page *a, const struct pol_page *b, bool windowed)
{
    if (a->used_at != b->used_at)
        return a->used_at < b->used_at;
    return windowed ? a->depth < b->depth : a->depth > b->depth;
}

struct shares { uint32_t pages[POL_EVICT_TENANTS], all, tenants; }; /* pages[]: cached ones, held or not */

static void count(struct shares *s, const struct pol_page *p, size_t n)
{
    *s = (struct shares){0};
    for (size_t i = 0; i < n; i++)
        if (p[i].cached) {
            assert(p[i].tenant < POL_EVICT_TENANTS);
            s->tenants += !s->pages[p[i].tenant]++;
            s->all++;
        }
}

size_t pol_evict(const struct pol_page *p, size_t n, bool windowed)
{
    struct shares s;
    size_t best = SIZE_MAX, kept = SIZE_MAX; /* kept: the best of those that a share protects */
    count(&s, p, n);
    for (size_t i = 0; i < n; i++) {
        if (!p[i].cached || p[i].leases || (!windowed && p[i].children))
            continue;
        bool within = (uint64_t)s.pages[p[i].tenant] * s.tenants <= s.all && s.tenants > 1;
        bool idle = p[i].since > (uint64_t)POL_EVICT_IDLE * n;
        size_t *of = within && !idle ? &kept : &best;
        if (*of == SIZE_MAX || before(&p[i], &p[*of], windowed))
            *of = i;
    }
    return best != SIZE_MAX ? best : kept;
}
