/* cli/bench_ladder.h - the depths that `bench --ladder` takes: from 1024 tokens, doubled, as far as the model's context and memory go.
 *
 * Memory goes as far as the budget has all sequences' KV pages and, where all weights stay at the first depth, as long as they still do. */
#ifndef SLUICE_CLI_BENCH_LADDER_H
#define SLUICE_CLI_BENCH_LADDER_H
#include "engine/engine.h"

enum { BENCH_RUNGS_MAX = 16, BENCH_RUNG_FIRST = 1024 };
enum bench_end { BENCH_END_CONTEXT, BENCH_END_MEMORY, BENCH_END_TIME };
struct bench_ladder {
    uint32_t depth[BENCH_RUNGS_MAX], n;
    enum bench_end end;
    char why[512];            /* of the end: what the next depth lacks */
};
/* c: seqs those that decode together; ctx 0: the model's own is where it ends. more: positions that a depth needs behind it. ERR_LIMIT: not even the first. */
int bench_ladder(struct bench_ladder *l, const struct eng_config *c, uint32_t more, struct err *e);
/* Depths up to a limit on positions: doubled ones, and last what is left of the limit. */
uint32_t bench_rungs(uint32_t limit, uint32_t more, uint32_t *depth);
/* After a depth: would the next one, which takes as many times longer at least as it is deeper, pass the seconds (0: no limit). */
bool bench_ladder_late(uint32_t depth, uint32_t next, double last_s, double passed_s, double limit_s);
const char *bench_end_name(enum bench_end end); /* "context" */
#endif
