/* offload/reader.h - threads that keep drives busy: they ask who has a unit to read, keep several on their way, and say when each is in
 * its slot.
 *
 * Owns:      threads and their queues (offload/queue.h).
 * Leaves:    which unit is next, and where it goes, to its clients: the first that has one is served, so those who wait come before those
 *            who guess.
 * Invariant: a unit that `next` gave comes back through `done` exactly once, before close returns.
 * Threads:   next and done are called from readers without a lock of theirs; wake from anywhere, also under a client's own lock. */
#ifndef SLUICE_OFFLOAD_READER_H
#define SLUICE_OFFLOAD_READER_H
#include "offload/queue.h"

struct off_reader_client {
    bool (*next)(void *ctx, struct off_unit *out);   /* a unit to read now; false: none until the next wake */
    void (*done)(void *ctx, const struct off_unit *u, int rc, const struct err *e);
    void *ctx;
};
enum { OFF_READER_CLIENTS = 4, OFF_READER_THREADS = 16 };
#define OFF_STALL_NS (60ull * 1000000000)            /* what a lease waits for a drive, unless its owner says otherwise */
typedef struct off_reader off_reader;

/* Threads, and reads that each has on its way (without a ring: one). NULL or zeros: what measures best for this source. */
struct off_reader_config { unsigned threads, depth; };
/* Bytes of staging that open takes for these records: part of the caller's budget. */
uint64_t off_reader_staging(const struct off_source *s, const struct off_record *records, uint32_t n_records, const struct off_reader_config *cfg);
/* source: borrowed until close. No thread runs before start. ERR_NOMEM. */
int off_reader_open(off_reader **out, struct off_source *source, const struct off_record *records, uint32_t n_records, const struct off_reader_config *cfg,
                    struct err *e);
/* Clients in the order in which they are served; before start. */
void off_reader_add(off_reader *r, const struct off_reader_client *c);
int off_reader_start(off_reader *r, struct err *e);
void off_reader_wake(off_reader *r);                 /* somebody has units */
void off_reader_close(off_reader *r);                /* NULL is fine. Clients live until it returns */
const char *off_reader_kind(const off_reader *r);    /* off_queue_kind of its queues */
unsigned off_reader_threads(const off_reader *r);
uint64_t off_reader_wakeups(off_reader *r);          /* times that a thread of it began to look for work */
#endif
