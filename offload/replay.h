/* offload/replay.h - routings of a real run, played against a cache of experts: hit rates by policy and size.
 *
 * A trace is JSON lines, {"tok": N, "layers": [[expert, ...], ...]}: for each token the experts that each layer with experts chose, equally
 * many everywhere. Tokens run one by one, as in decode. Source of the rules: policies/experts.h. */
#ifndef SLUICE_OFFLOAD_REPLAY_H
#define SLUICE_OFFLOAD_REPLAY_H
#include "base/err.h"
#include "policies/experts.h"

struct off_trace {
    uint32_t tokens, layers, k, experts; /* experts of a layer: the highest number seen + 1 */
    uint16_t *chosen;             /* [tokens][layers][k] */
};
int off_trace_read(struct off_trace *out, const char *path, struct err *e); /* ERR_IO, ERR_FORMAT with the line, ERR_LIMIT, ERR_NOMEM */
void off_trace_free(struct off_trace *t);

/* The bound: leaves whom the future wants last. No policy without that knowledge hits more often. */
enum { OFF_REPLAY_BELADY = POL_EXPERTS_KINDS, OFF_REPLAY_KINDS };
/* Uses that found their expert in one of `slots` slots, empty at first. slots >= k. ERR_NOMEM. */
int off_replay(const struct off_trace *t, unsigned kind, uint32_t slots, uint64_t *hits, struct err *e);
#endif
