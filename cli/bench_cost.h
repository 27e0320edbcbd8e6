/* cli/bench_cost.h - what a step of a plan must read and multiply, by kind of work: the numbers that `bench` sets times beside. */
#ifndef SLUICE_CLI_BENCH_COST_H
#define SLUICE_CLI_BENCH_COST_H
#include "engine/plan.h"

enum { BENCH_COSTS_MAX = 128 };
/* name and type as krn_time has them. bytes: weights once a step, keys and values once a sequence; ops: a product and its sum are two. */
struct bench_cost { const char *name; enum krn_type type; double bytes, ops; };
struct bench_shape { uint32_t seqs, rows, picks, pos0; enum krn_type kv; }; /* rows and picks of each sequence; position of its first row */

/* Fills out[BENCH_COSTS_MAX], returns how many. Work that reads and multiplies next to nothing (norms, additions) is left out. */
size_t bench_costs(const struct eng_plan *p, const struct bench_shape *s, struct bench_cost *out);
double bench_bytes(const struct eng_plan *p, const struct bench_shape *s); /* their sum */
#endif
