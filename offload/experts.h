/* offload/experts.h - the RAM tier of routed experts: an arena of slots, who lies in them, and the reads that fill them.
 *
 * Owns:      the slots' states and the order of reading. The arena's memory is the caller's.
 * Leaves:    who gives way to policies/experts.h, reading to offload/reader.h, pointers to weights to offload/weights.c.
 * Invariant: a leased slot is neither given away nor written; nor is one that the gate at hand wants, unless the expert that its caller
 *            waits for has no other place; resident + filling <= slots. Slots are of equal size within a class (experts of one size).
 * States:    docs/offload.md, "The expert cache".
 * Threads:   gate, lease, release from one thread; readers come through the clients. */
#ifndef SLUICE_OFFLOAD_EXPERTS_H
#define SLUICE_OFFLOAD_EXPERTS_H
#include "offload/reader.h"
#include "policies/experts.h"

/* How an arena is cut: experts of one size are a class, and a class gets slots as it has experts, one token's choice of a layer at least. */
struct off_expert_class { uint64_t slot_bytes, at; uint32_t experts, slots; }; /* at: in the arena */
enum { OFF_EXPERT_CLASSES = 8 };
struct off_expert_cut { struct off_expert_class of[OFF_EXPERT_CLASSES]; unsigned n; uint64_t bytes, floor_bytes, all_bytes; uint32_t slots, experts; };
/* ERR_BUDGET: less than floor_bytes (set all the same). ERR_UNSUPPORTED: more sizes than OFF_EXPERT_CLASSES. */
int off_experts_cut(struct off_expert_cut *out, const struct off_record *records, const struct off_choice *choice, uint64_t bytes, struct err *e);

struct off_experts_config {
    const struct off_record *records; uint32_t n_records; /* borrowed */
    const struct off_choice *choice;              /* borrowed while open runs */
    const struct off_expert_cut *cut;
    uint8_t *arena;                               /* [cut->bytes] aligned to KRN_SLOT_ALIGN */
    uint64_t stall_ns_max;                        /* a lease waits no longer; 0: OFF_STALL_NS */
};
typedef struct off_experts off_experts;
/* Adds no client: demand comes before, ahead after the others, as the caller says. ERR_NOMEM. */
int off_experts_open(off_experts **out, off_reader *r, const struct off_experts_config *cfg, struct err *e);
void off_experts_close(off_experts *x);           /* readers have ended, nothing is leased. NULL is fine */
void off_experts_demand(off_experts *x, struct off_reader_client *c); /* what a gate wants */
void off_experts_ahead(off_experts *x, struct off_reader_client *c);  /* what off_experts_preload named */

/* A step of n_tokens passed the gate of `layer`: rows[e] of them chose expert e [per_layer]. Those will be leased and released next, once
 * each and by ascending number if they cannot all be held at once; what is missing is read in that order, before all else. */
void off_experts_gate(off_experts *x, uint32_t layer, const uint32_t *rows, uint32_t n_tokens);
bool off_experts_has(off_experts *x, uint32_t record); /* a lease would not wait */
/* Waits for the record's bytes. A caller that holds leases may lease only what off_experts_has. ERR_IO with file and tensor. */
int off_experts_lease(off_experts *x, uint32_t record, uint8_t **slot, struct err *e);
void off_experts_release(off_experts *x, uint32_t record);

/* To be read into free slots while nothing else is wanted, in this order: layer * per_layer + expert [n]. Copied. ERR_NOMEM. */
int off_experts_preload(off_experts *x, const uint32_t *ids, uint32_t n, struct err *e);
/* Who is resident, those that are expected to be wanted soonest first: at most n, ids as above. Returns how many. */
uint32_t off_experts_resident(off_experts *x, uint32_t *ids, uint32_t n);

struct off_experts_stats {
    uint32_t slots, filled;
    uint64_t hits, misses;        /* experts that a gate chose: there (or on their way) already, and not */
    uint64_t loaded_bytes, preloaded;
    uint64_t stalls, stall_ns;    /* leases that had to wait */
};
void off_experts_stats(off_experts *x, struct off_experts_stats *out);
#endif
