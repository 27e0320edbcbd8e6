/* kernels/probe.h - what this machine can do: memory read rate, dot products, and the rate of one linear. `bench` sets its numbers beside.
 *
 * Figures are the best of several rounds, since other programs only ever make a round slower.
 * Threads:   the caller of the pool. Allocates for its own duration. */
#ifndef SLUICE_KERNELS_PROBE_H
#define SLUICE_KERNELS_PROBE_H
#include "base/pool.h"
#include "kernels/linear.h"

/* Bytes per second that the pool's workers together read from `bytes` of memory (choose several times the last cache).
 * ERR_NOMEM; ERR_INVALID: less than 64 bytes a worker. */
int krn_probe_read(pool *p, size_t bytes, unsigned rounds, double *bytes_s, struct err *e);

/* Operations per second (a product and its sum are two) of the workers' integer dot products on data in registers: what no kernel
 * can pass. 0: the instruction set has no such instruction. */
double krn_probe_dot(pool *p, enum krn_isa isa, unsigned rounds);
uint64_t krn_dots_avx2(uint32_t n), krn_dots_avx512(uint32_t n); /* n turns of a loop; operations done */

struct krn_probe_linear {
    enum krn_isa isa;
    enum krn_type type;
    enum krn_precision precision;
    uint32_t rows, cols, tokens;
    uint32_t copies;               /* that many matrices in turn: more than the caches hold, and weights come from memory */
    unsigned rounds;               /* passes over all copies */
};
struct krn_probe_rate {
    double weight_bytes_s;         /* published bytes of weights per second */
    double ops_s;                  /* 2 * rows * cols * tokens per second; quantising x is inside the time */
    double ns;                     /* one matrix */
    double read_bytes_s;           /* plain reads of the same memory, a round after each pass; 0 with one copy */
};
int krn_probe_linear(pool *p, const struct krn_probe_linear *what, struct krn_probe_rate *out, struct err *e);
#endif
