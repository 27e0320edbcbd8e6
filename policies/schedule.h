/* policies/schedule.h - which sequences run in the next step, with how many tokens each; who is admitted, who gives way.
 *
 * Pure: a snapshot in, a decision out; no clock, no lock, no allocation.
 * Order: decoding sequences first, one token each (a stream that runs never waits behind a prompt); what is left of the token
 * budget goes to prefills by priority (larger first), then by tokens their tenant has been served (fewer first), then by arrival.
 * Ties break by arrival, then by index. Source: chunked prefill as in Sarathi-Serve (OSDI 2024), fair share by token counters as
 * in VTC (OSDI 2024). */
#ifndef SLUICE_POLICIES_SCHEDULE_H
#define SLUICE_POLICIES_SCHEDULE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pol_seq {
    bool running;            /* holds a slot (else: waits for one) */
    bool runnable;           /* not paused, not finished */
    uint32_t n_left;         /* tokens still to compute before the next one can be sampled: 1 when decoding, more in prefill */
    int32_t priority;
    uint64_t tenant_served;  /* tokens served to its tenant so far */
    uint64_t arrival;        /* a counter: smaller came first */
};
struct pol_schedule_limits { uint32_t tokens_max, seqs_max; };

/* take[i]: tokens of sequence i to run now (0: none). order: scratch [n]. Returns the sum. */
uint32_t pol_schedule(const struct pol_seq *s, size_t n, const struct pol_schedule_limits *lim, uint32_t *take, uint32_t *order);

/* The waiting sequence to admit next, or SIZE_MAX when none waits or no slot is free. */
size_t pol_admit(const struct pol_seq *s, size_t n, const struct pol_schedule_limits *lim);

/* KV pages ran out for running sequence `needy`: who gives its pages back (to be recomputed later): the running one of lowest
 * priority, then most served tenant, then latest arrival. It may be needy itself. */
size_t pol_preempt(const struct pol_seq *s, size_t n, size_t needy);
#endif
