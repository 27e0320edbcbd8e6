/* engine/budget.h - one ceiling divided among activations, KV and weights, before any of them exists.
 *
 * Activations and recurrent states come first, then KV pages for one whole sequence, then all weights; KV gets what is left. Where weights do not fit they
 * stream (offload/stream.h): KV may then grow by an eighth of what is left, up to what all sequences need, and weights get the rest:
 * each byte of them is read once a step, each byte of KV more saves at most one sequence's wait. KV is pages and snapshots of recurrent
 * states: the snapshots get what pages cannot use, at least a quarter of what is there beyond one sequence's pages, and never more
 * than is of use. */
#ifndef SLUICE_ENGINE_BUDGET_H
#define SLUICE_ENGINE_BUDGET_H
#include "engine/kv.h"

struct eng_budget { uint64_t ram_max, activation_bytes, state_bytes, snapshot_bytes, kv_bytes, weight_bytes; uint32_t snapshots; bool streams; };
/* In: ram_max, activation_bytes, state_bytes (of all sequences), snapshot_bytes (of one), snapshots (of use at most). Out: kv_bytes
 * (of pages), snapshots (that fit), weight_bytes. ERR_BUDGET says every item and what is missing. */
int eng_budget(struct eng_budget *b, const struct eng_plan *p, const struct eng_kv_config *kv, struct err *e);
#endif
