#include "cli/bench_ladder.h"

#include <inttypes.h>
#include <stdio.h>

uint32_t bench_rungs(uint32_t limit, uint32_t more, uint32_t *depth)
{
    uint32_t n = 0;
    uint64_t at = BENCH_RUNG_FIRST;
    for (; at + more <= limit && n < BENCH_RUNGS_MAX; at *= 2)
        depth[n++] = (uint32_t)at;
    if (n && n < BENCH_RUNGS_MAX && limit - more > depth[n - 1])
        depth[n++] = limit - more;
    return n;
}

/* Does the budget have room for this configuration; what is missing in why. *resident: in, must all weights stay; out, do they. */
static int fits(const struct eng_config *c, bool *resident, bool *yes, char *why, size_t n, struct err *e)
{
    struct eng_prediction p;
    int rc = eng_predict(c, &p, e);
    uint64_t kv = rc ? 0 : p.kv_seq_bytes * p.config.seqs;
    *yes = false;
    if (rc == ERR_BUDGET) {
        snprintf(why, n, "%u tokens: %.440s", c->ctx, e->msg);
        return ERR_OK;
    }
    if (rc)
        return rc;
    if (p.kv_bytes < kv)
        snprintf(why, n, "KV of %u sequences of %u tokens needs %" PRIu64 " bytes, the budget of %" PRIu64 " leaves %" PRIu64, p.config.seqs, p.config.ctx, kv, p.config.ram_max, p.kv_bytes);
    else if (*resident && !c->device.vulkan && (p.sweep_bytes || p.expert_slots))
        snprintf(why, n, "%u tokens would push weights out of the budget of %" PRIu64 " bytes: %" PRIu64 " bytes of them would not stay", p.config.ctx, p.config.ram_max,
                 p.weight_slot_bytes - p.resident_bytes - p.expert_bytes);
    else
        *yes = true;
    *resident = !p.sweep_bytes && !p.expert_slots;
    return ERR_OK;
}

int bench_ladder(struct bench_ladder *l, const struct eng_config *c, uint32_t more, struct err *e)
{
    struct eng_prediction p;
    struct eng_config at = *c;
    uint32_t depth[BENCH_RUNGS_MAX], limit = c->ctx;
    bool resident = false, yes = true;
    at.prefix_off = true; /* a session keeps nothing for later prompts */
    int rc = eng_predict(&at, &p, e); /* as it is: the model's own context */
    if (rc == ERR_BUDGET) { /* the context in question is too long, a ladder begins lower */
        at.ctx = BENCH_RUNG_FIRST + more;
        rc = eng_predict(&at, &p, e);
    }
    if (rc)
        return rc;
    limit = limit ? limit : p.ctx_made;
    at.ram_max = p.config.ram_max;
    uint32_t n = bench_rungs(limit, more, depth);
    *l = (struct bench_ladder){.end = BENCH_END_CONTEXT};
    snprintf(l->why, sizeof l->why, c->ctx ? "-c is %u tokens" : "the model was made for %u tokens", limit);
    if (!n)
        return err_set(e, ERR_LIMIT, "--ladder: the first depth, %d tokens and %u of decoding, is longer than the context of %u", BENCH_RUNG_FIRST, more, limit);
    for (; l->n < n && yes; l->n += yes) {
        at.ctx = depth[l->n] + more;
        if ((rc = fits(&at, &resident, &yes, l->why, sizeof l->why, e)))
            return rc;
        l->depth[l->n] = depth[l->n];
    }
    if (!yes)
        l->end = BENCH_END_MEMORY;
    return l->n ? ERR_OK : err_set(e, ERR_LIMIT, "--ladder: the first depth, %d tokens, does not fit: %s", BENCH_RUNG_FIRST, l->why);
}

bool bench_ladder_late(uint32_t depth, uint32_t next, double last_s, double passed_s, double limit_s)
{
    return limit_s > 0 && passed_s + last_s * next / depth > limit_s;
}

const char *bench_end_name(enum bench_end end)
{
    static const char *const names[] = {"context", "memory", "time"};
    return names[end];
}
