#include "cli/replay.h"

#include <stdio.h>

#include "offload/replay.h"

static int row(const struct off_trace *t, unsigned percent, struct err *e)
{
    uint32_t all = t->layers * t->experts, slots = (uint32_t)((uint64_t)all * percent / 100);
    uint64_t hits, uses = (uint64_t)t->tokens * t->layers * t->k;
    printf("%6u %% %8u %8.2f", percent, slots, (double)slots / (t->layers * t->k));
    for (unsigned kind = 0; kind < OFF_REPLAY_KINDS; kind++) {
        int rc = off_replay(t, kind, slots, &hits, e);
        if (rc)
            return rc;
        printf(" %7.1f", 100.0 * (double)hits / (double)uses);
    }
    printf("\n");
    return ERR_OK;
}

int cli_replay(const char *const *files, size_t n, struct err *e)
{
    static const unsigned percents[] = {5, 10, 20, 30, 40, 50, 70};
    for (size_t i = 0; i < n; i++) {
        struct off_trace t;
        int rc = off_trace_read(&t, files[i], e);
        if (rc)
            return rc;
        printf("%s: %u tokens, %u layers, %u of %u experts each\n%8s %8s %8s", files[i], t.tokens, t.layers, t.k, t.experts, "held", "experts", "tokens'");
        for (unsigned k = 0; k < POL_EXPERTS_KINDS; k++)
            printf(" %7s", pol_experts_names[k]);
        printf(" %7s\n", "belady");
        for (size_t p = 0; p < sizeof percents / sizeof *percents && !rc; p++)
            rc = row(&t, percents[p], e);
        off_trace_free(&t);
        if (rc)
            return rc;
    }
    return ERR_OK;
}
