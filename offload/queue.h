/* offload/queue.h - several units on their way at once, for one thread: a ring of the kernel's (io_uring, with registered buffers and files
 * where the kernel lets it), or, where there is none, the same calls with a read at a time.
 *
 * Owns:      stages, the ring.
 * Leaves:    how a unit is read and packed to offload/fill.h, which comes next to the caller.
 * Invariant: a unit that was put comes out of take exactly once, in any order; what the ring could not read is read again by
 *            off_fill's means before it counts as an error.
 * Threads:   one at a time. */
#ifndef SLUICE_OFFLOAD_QUEUE_H
#define SLUICE_OFFLOAD_QUEUE_H
#include "offload/fill.h"

typedef struct off_queue off_queue;
/* A source of io OFF_IO_THREADS, or one that reads through the cache only, gets no ring. ERR_NOMEM. */
int off_queue_open(off_queue **out, struct off_source *s, unsigned depth, size_t stage_bytes, struct err *e);
void off_queue_close(off_queue *q);          /* waits for what is on its way; NULL is fine */
bool off_queue_room(const off_queue *q);     /* put may be called */
bool off_queue_empty(const off_queue *q);    /* nothing for take to wait for */
void off_queue_put(off_queue *q, const struct off_unit *u);
/* Waits for a unit and packs it: *u, and its result. */
int off_queue_take(off_queue *q, struct off_unit *u, struct err *e);
/* "io_uring, registered", "io_uring", "pread" */
const char *off_queue_kind(const off_queue *q);
#endif
