#include "policies/schedule.h"

/* Is a to be served before b. */
static bool before(const struct pol_seq *a, const struct pol_seq *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (a->tenant_served != b->tenant_served)
        return a->tenant_served < b->tenant_served;
    return a->arrival < b->arrival;
}

uint32_t pol_schedule(const struct pol_seq *s, size_t n, const struct pol_schedule_limits *lim, uint32_t *take, uint32_t *order)
{
    uint32_t left = lim->tokens_max;
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        take[i] = 0;
    for (size_t i = 0; i < n && left; i++)
        if (s[i].running && s[i].runnable && s[i].n_left == 1) {
            take[i] = 1;
            left--;
        }
    for (size_t i = 0; i < n; i++) {
        if (!s[i].running || !s[i].runnable || s[i].n_left <= 1)
            continue;
        size_t k = m++; /* insertion sort: n is the number of slots */
        for (; k > 0 && before(&s[i], &s[order[k - 1]]); k--)
            order[k] = order[k - 1];
        order[k] = (uint32_t)i;
    }
    for (size_t k = 0; k < m && left; k++) {
        uint32_t t = s[order[k]].n_left < left ? s[order[k]].n_left : left;
        take[order[k]] = t;
        left -= t;
    }
    return lim->tokens_max - left;
}

size_t pol_admit(const struct pol_seq *s, size_t n, const struct pol_schedule_limits *lim)
{
    size_t running = 0, best = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        if (s[i].running)
            running++;
        else if (s[i].runnable && (best == SIZE_MAX || before(&s[i], &s[best])))
            best = i;
    }
    return running < lim->seqs_max ? best : SIZE_MAX;
}

size_t pol_preempt(const struct pol_seq *s, size_t n, size_t needy)
{
    size_t worst = needy;
    for (size_t i = 0; i < n; i++)
        if (s[i].running && before(&s[worst], &s[i]))
            worst = i;
    return worst;
}
