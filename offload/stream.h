/* offload/stream.h - records that pass through memory: a ring of slots, filled in sweep order by reader threads ahead of the leases.
 *
 * Owns:      its readers and their staging buffers, the order of loading, the entries of the ring. The ring's memory is the caller's.
 * Leaves:    which records are streamed (policies/place.h), pointers to weights (offload/weights.c), reading and packing (offload/fill.h).
 * Invariant: an entry's bytes are written only between its allocation and `ready`, and stand still from then until it is released and
 *            has come to the ring's tail; entries are handed out and taken back in one order, so the ring never fragments.
 * States:    absent -> filling -> ready -> leased -> used -> absent; filling -> failed -> absent when a read cannot be had: the lease
 *            that waits for it gets the error, and the next one tries again. A lease out of sweep order (a step that broke off)
 *            drops what nobody leases and starts anew from there.
 * Threads:   acquire and release from one thread; readers are its own. */
#ifndef SLUICE_OFFLOAD_STREAM_H
#define SLUICE_OFFLOAD_STREAM_H
#include "offload/fill.h"

struct off_stream_config {
    const struct off_record *records;             /* borrowed */
    uint32_t n_records;
    const uint32_t *order; uint32_t n_order;      /* records in the order a sweep leases them, each once; copied */
    uint8_t *ring; uint64_t ring_bytes;           /* aligned to KRN_SLOT_ALIGN; at least the largest record */
    unsigned readers;                             /* 0: OFF_STREAM_READERS */
};
enum { OFF_STREAM_READERS = 3 };
typedef struct off_stream off_stream;
/* Bytes of staging that open will take for these records: part of the caller's budget. */
uint64_t off_stream_staging(const struct off_source *s, const struct off_record *records, uint32_t n_records, unsigned readers);
/* source: borrowed until close. Readers begin at once with order[0]. ERR_NOMEM. */
int off_stream_open(off_stream **out, struct off_source *source, const struct off_stream_config *cfg, struct err *e);
void off_stream_close(off_stream *s);              /* nothing may be leased. NULL is fine */

/* Waits until the record is in the ring and pins it there; may be nested. ERR_IO with file and tensor. */
int off_stream_acquire(off_stream *s, uint32_t record, uint8_t **slot, struct err *e);
void off_stream_release(off_stream *s, uint32_t record);

struct off_stream_stats { uint64_t hits, stalls, stall_ns, restarts, loaded_bytes; }; /* loaded: slot bytes of entries that became ready */
void off_stream_stats(off_stream *s, struct off_stream_stats *out);
#endif
