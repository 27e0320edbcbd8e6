#include "engine/budget.h"

#include <inttypes.h>

/* Takes the snapshots out of the bytes that KV has; pages of `least` bytes stay whatever comes. */
static void snapshots(struct eng_budget *b, uint64_t least, uint64_t all)
{
    uint64_t quarter = (b->kv_bytes - least) / 4, spare = b->kv_bytes > all ? b->kv_bytes - all : 0;
    uint64_t n = b->snapshot_bytes ? (spare > quarter ? spare : quarter) / b->snapshot_bytes : 0;
    if (n < b->snapshots)
        b->snapshots = (uint32_t)n;
    b->kv_bytes -= b->snapshots * b->snapshot_bytes;
}

int eng_budget(struct eng_budget *b, const struct eng_plan *p, const struct eng_kv_config *kv, struct err *e)
{
    uint64_t least = eng_kv_bytes(p, kv, 1), all = eng_kv_bytes(p, kv, kv->slots), need = b->activation_bytes + b->state_bytes + least;
    if (need >= b->ram_max)
        return err_set(e, ERR_BUDGET,
                       "--ram %" PRIu64 " leaves nothing for weights: activations %" PRIu64 " + recurrent states %" PRIu64 " + KV of one sequence %" PRIu64 " = %" PRIu64 ", %" PRIu64
                       " bytes are missing before the first weight (a smaller -c, -np or -ub needs less)",
                       b->ram_max, b->activation_bytes, b->state_bytes, least, need, need - b->ram_max + 1);
    uint64_t left = b->ram_max - need, kept = b->snapshots * b->snapshot_bytes, more = (all > least ? all - least : 0) + kept;
    b->streams = p->weight_bytes_slot > left;
    b->kv_bytes = b->streams ? least + (left / 8 < more ? left / 8 : more) : least + (left - p->weight_bytes_slot);
    b->weight_bytes = b->streams ? left + least - b->kv_bytes : p->weight_bytes_slot;
    snapshots(b, least, all);
    return ERR_OK;
}
