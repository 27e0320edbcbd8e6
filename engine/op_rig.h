/* engine/op_rig.h - one operator on a backend by itself: inputs looked up from tables, the call, its output.
 *
 * A case is a JSON object (tests/data/operators, written by scripts/dev/operator_answers.py):
 *   op, rows, attrs; pos0: position of the first row; in: [{heads, dim, v, list?, fixed?, range?}]; w: [{rows, cols, v, stack?, grow?, range?} | null];
 *   out: {heads, dim, v}. v: row by row. list: the heads are entries of a list register. stack: that many weights, one an expert. fixed, grow
 *   ("rc" unless said; a weight of one row: "c"): which sizes a drawn case multiplies. range: of drawn values, -1 to 1 unless said.
 * Owns:      nothing between calls.  Threads: reentrant. */
#ifndef SLUICE_ENGINE_OP_RIG_H
#define SLUICE_ENGINE_OP_RIG_H
#include "base/err.h"
#include "base/json.h"
#include "kernels/backend.h"

struct eng_op_way {
    const struct krn_backend_api *api;
    enum krn_isa isa;
    enum krn_precision precision;
    unsigned threads;
    uint32_t chunk;          /* rows a step; 0: all */
    uint32_t grow;           /* sizes times this; 0: 1, and the case's own values instead of drawn ones */
    uint64_t seed;           /* of drawn values */
    enum krn_type type;      /* of a linear's matrix when drawn */
};
/* Runs the case; *out: [rows][heads * dim] floats, the caller's to free. ERR_FORMAT: no such case; ERR_UNSUPPORTED: the backend has no such operator. */
int eng_op_run(const struct json *c, const struct eng_op_way *way, float **out, size_t *n, struct err *e);
#endif
