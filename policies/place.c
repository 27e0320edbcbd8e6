#include "policies/place.h"

struct window { uint64_t segment, item; }; /* largest segment and item among what is not kept */

static struct window window_of(const struct pol_item *items, uint32_t n, const bool *keep)
{
    struct window w = {0, 0};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i == 0 || items[i].segment != items[i - 1].segment)
            sum = 0;
        if (keep[i])
            continue;
        sum += items[i].bytes;
        w.segment = sum > w.segment ? sum : w.segment;
        w.item = items[i].bytes > w.item ? items[i].bytes : w.item;
    }
    return w;
}

/* 0 .. n-1 in the order of their bits reversed: every prefix is spread evenly. */
static void spread(uint32_t *order, uint32_t n)
{
    unsigned bits = 0;
    uint32_t k = 0;
    while (bits < 32 && ((uint64_t)1 << bits) < n)
        bits++;
    for (uint64_t i = 0; i < (uint64_t)1 << bits; i++) {
        uint32_t r = 0;
        for (unsigned b = 0; b < bits; b++)
            r |= (uint32_t)(i >> b & 1) << (bits - 1 - b);
        if (r < n)
            order[k++] = r;
    }
}

/* Keeps one item after another as long as any longer prefix can still fit; what fits last is the answer. */
static uint32_t longest(const struct pol_item *items, uint32_t n, uint64_t budget, bool *keep, const uint32_t *order)
{
    uint64_t kept = 0;
    uint32_t best = 0;
    for (uint32_t p = 0; p < n; p++) {
        keep[order[p]] = true;
        kept += items[order[p]].bytes;
        if (kept > budget)
            break;
        struct window w = window_of(items, n, keep);
        if (2 * w.segment + w.item <= budget - kept)
            best = p + 1;
    }
    return best;
}

bool pol_place(const struct pol_item *items, uint32_t n, uint64_t budget, bool *keep, uint32_t *scratch, struct pol_place *out)
{
    uint64_t total = 0;
    *out = (struct pol_place){0};
    for (uint32_t i = 0; i < n; i++) {
        keep[i] = false;
        total += items[i].bytes;
    }
    struct window w = window_of(items, n, keep);
    out->floor_bytes = w.segment + w.item < total ? w.segment + w.item : total;
    if (budget < out->floor_bytes)
        return false;
    if (total <= budget) {
        for (uint32_t i = 0; i < n; i++)
            keep[i] = true;
        *out = (struct pol_place){.kept_bytes = total, .floor_bytes = out->floor_bytes, .n_kept = n};
        return true;
    }
    out->window_bytes = budget;
    out->streamed_bytes = total;
    out->overlap = 2 * w.segment + w.item <= budget;
    if (!out->overlap)
        return true;
    spread(scratch, n);
    out->n_kept = longest(items, n, budget, keep, scratch);
    for (uint32_t p = 0; p < n; p++) {
        keep[scratch[p]] = p < out->n_kept;
        out->kept_bytes += p < out->n_kept ? items[scratch[p]].bytes : 0;
    }
    out->window_bytes = budget - out->kept_bytes;
    out->streamed_bytes = total - out->kept_bytes;
    return true;
}
