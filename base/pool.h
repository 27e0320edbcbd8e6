/* base/pool.h - a fixed set of worker threads that run one job together, and barriers inside it.
 *
 * For arithmetic: pool_run(f) calls f(ctx, i, n) on every worker i of n (the caller is worker 0) and returns when
 * all are done. Workers spin about 20 us for the next job, then sleep on a futex, since the gateway shares the cores.
 * pool_barrier may be called by all n workers inside a job. No allocation after open. n == 1 starts no thread.
 * Threads: one caller of pool_run at a time. */
#ifndef SLUICE_BASE_POOL_H
#define SLUICE_BASE_POOL_H
#include "base/err.h"
typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, unsigned worker, unsigned n_workers);
int pool_open(pool **out, unsigned n_workers, struct err *e); /* 1..256 */
void pool_close(pool *p);
unsigned pool_workers(const pool *p);
void pool_run(pool *p, pool_fn f, void *ctx);
void pool_barrier(pool *p, unsigned worker);
#endif
