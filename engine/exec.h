/* engine/exec.h - runs one step of a plan: leases a segment's weights, submits its list, releases, next segment.
 *
 * Where experts were routed, the segment's list runs after the host has read the choice: only the chosen experts are leased.
 *
 * Owns:      the backend and the recorded lists. Leaves: which tokens run (engine/sched.h), KV pages (engine/kv.h), slots (offload).
 * Threads:   one caller. No allocation in run. */
#ifndef SLUICE_ENGINE_EXEC_H
#define SLUICE_ENGINE_EXEC_H
#include "engine/plan.h"

struct eng_exec_config {
    enum krn_isa isa;
    enum krn_precision precision;
    uint32_t threads, rows_max, picks_max;
    pool *pool;               /* of so many threads, borrowed; NULL: it has its own */
    const struct krn_device *device; /* engine/device.h; NULL: the CPU */
};
typedef struct eng_exec eng_exec;
uint64_t eng_exec_bytes(const struct eng_plan *p, const struct eng_exec_config *c); /* what open will allocate */
/* plan and weights are borrowed. On a device weights are leased, one record after the other, and copied; from then on steps lease none:
 * the caller may close them. */
int eng_exec_open(eng_exec **out, struct eng_plan *p, off_weights *w, const struct eng_exec_config *c, struct err *e);
void eng_exec_close(eng_exec *x);
/* After each segment (lists done, weights still leased) tap(ctx, segment) is called when not NULL: verify reads registers. */
int eng_exec_run(eng_exec *x, const struct krn_step *step, void (*tap)(void *ctx, uint32_t segment), void *ctx, struct err *e);
/* Are n rows of the step that just ran finite where its layers end. A row depends on no later row. */
bool eng_exec_finite(eng_exec *x, uint32_t first, uint32_t n);
/* Sequence k's are not: runs them again, call by call and alone, to say where they go wrong. Always an error, ERR_FORMAT with layer and
 * operator; the registers of the step are lost. */
int eng_exec_blame(eng_exec *x, const struct krn_step *step, uint32_t k, struct err *e);
const float *eng_exec_row(eng_exec *x, const struct krn_view *v, uint32_t row); /* valid until the next run */
size_t eng_exec_times(eng_exec *x, struct krn_time *out, size_t max); /* krn_backend_api.times */
const char *eng_exec_isa(const eng_exec *x);
bool eng_exec_counters(const eng_exec *x, struct krn_counters *out); /* false: the backend counts nothing */
#endif
