/* policies/place.h - which records of a model stay in memory and which pass through it, for one budget.
 *
 * Pure: sizes in, a decision out. A sweep uses every item once, in order, the items of one segment together.
 * What passes through needs a window: the bytes of the segment that computes and of the one that is being read meanwhile, and one item
 * more, since memory is handed out in order and an item does not straddle the end.
 * Kept items are spread evenly over the sweep, so that the drive is asked for bytes at an even rate and never waits for compute. They
 * are taken in an order that does not depend on the budget (a van der Corput sequence over the items): what a budget keeps, every
 * larger one keeps too, and the bytes read a sweep never rise with it. */
#ifndef SLUICE_POLICIES_PLACE_H
#define SLUICE_POLICIES_PLACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pol_item { uint64_t bytes; uint32_t segment; }; /* segments ascend */
struct pol_place {
    uint64_t kept_bytes, window_bytes, streamed_bytes; /* the last: read every sweep */
    uint64_t floor_bytes;         /* the smallest budget that works: one segment at a time, none kept */
    uint32_t n_kept;
    bool overlap;                 /* the window holds two segments: reading and computing go on together */
};
/* keep: [n]. scratch: [n]. False: budget < floor_bytes (which is set all the same). */
bool pol_place(const struct pol_item *items, uint32_t n, uint64_t budget, bool *keep, uint32_t *scratch, struct pol_place *out);
#endif
