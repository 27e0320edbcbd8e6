/* gateway/work.h - threads for what a loop thread must not do: JSON, templates, tokenizing.
 *
 * Owns:      n threads and a ring of jobs_max waiting jobs, allocated at open.
 * Invariant: a job that was taken runs exactly once, also when close comes first; a full ring refuses (ERR_AGAIN).
 *            Jobs that are put close together are begun by one wake-up: whoever has put some says so once with gw_work_wake.
 * Threads:   gw_work_put and gw_work_wake from any thread; stop and close from the owner. */
#ifndef SLUICE_GATEWAY_WORK_H
#define SLUICE_GATEWAY_WORK_H
#include <stdbool.h>
#include <stddef.h>
#include "base/arena.h"
#include "base/err.h"
typedef struct gw_work gw_work;
/* mem: the thread's own, empty, forgotten when the job returns. The job sets its bytes_max. */
typedef void (*gw_work_fn)(void *ctx, struct arena *mem);
int gw_work_open(gw_work **out, unsigned n_threads, size_t jobs_max, struct err *e);
void gw_work_stop(gw_work *w);                                       /* runs what is queued, then joins; later puts are refused */
void gw_work_close(gw_work *w);                                      /* stops first; NULL is fine */
/* big: it may take long, so that nobody should wait for this thread to come back. Wakes nobody. ERR_AGAIN: full; ERR_CLOSED: stopped. */
int gw_work_put(gw_work *w, gw_work_fn f, void *ctx, bool big, struct err *e);
void gw_work_wake(gw_work *w);                                       /* costs next to nothing when nothing was put */
size_t gw_work_waiting(gw_work *w);
#endif
