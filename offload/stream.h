/* offload/stream.h - records that pass through memory: a ring of slots, filled in sweep order by reader threads ahead of the leases.
 *
 * Owns:      the order of loading, the entries of the ring. The ring's memory is the caller's.
 * Leaves:    which records are streamed (policies/place.h), pointers to weights (offload/weights.c), reading to offload/reader.h.
 * Invariant: an entry's bytes are written only between its allocation and `ready`, and stand still from then until it is released and
 *            has come to the ring's tail; entries are handed out and taken back in one order, so the ring never fragments.
 * States:    absent -> filling -> ready -> leased -> used -> absent; filling -> failed -> absent when a read cannot be had: the lease
 *            that waits for it gets the error, and the next one tries again. A lease out of sweep order (a step that broke off)
 *            drops what nobody leases and starts anew from there.
 * Threads:   acquire and release from one thread; the rest is called by the readers. */
#ifndef SLUICE_OFFLOAD_STREAM_H
#define SLUICE_OFFLOAD_STREAM_H
#include "offload/reader.h"

struct off_stream_config {
    const struct off_record *records;             /* borrowed */
    uint32_t n_records;
    const uint32_t *order; uint32_t n_order;      /* records in the order a sweep leases them, each once; copied */
    uint8_t *ring; uint64_t ring_bytes;           /* aligned to KRN_SLOT_ALIGN; at least the largest record */
    uint64_t stall_ns_max;                        /* a lease that waits longer is an error; 0: OFF_STALL_NS */
};
typedef struct off_stream off_stream;
/* Becomes a client of the readers, which have not started yet and are closed before the stream. ERR_NOMEM. */
int off_stream_open(off_stream **out, off_reader *readers, const struct off_stream_config *cfg, struct err *e);
void off_stream_close(off_stream *s);              /* nothing may be leased. NULL is fine */

/* Waits until the record is in the ring and pins it there; may be nested. ERR_IO with file and tensor, or for how long a drive has not
 * answered: then the record is still on its way, and the next lease waits for it again. */
int off_stream_acquire(off_stream *s, uint32_t record, uint8_t **slot, struct err *e);
/* A lease that has waited a second asks this now and then, without a lock held: true ends it with ERR_AGAIN. NULL: nobody. */
void off_stream_patience(off_stream *s, bool (*hopeless)(void *ctx), void *ctx);
/* A read failed, or a lease has waited five seconds, and nothing came since; what failed is tried again if a second has passed. Any thread. */
bool off_stream_failing(off_stream *s);
void off_stream_release(off_stream *s, uint32_t record);

struct off_stream_stats { uint64_t hits, stalls, stall_ns, restarts, given_up, loaded_bytes; }; /* loaded: slot bytes of entries that became ready */
void off_stream_stats(off_stream *s, struct off_stream_stats *out);
#endif
