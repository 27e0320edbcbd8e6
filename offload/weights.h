/* offload/weights.h - weights by lease: the only way an executor reaches a weight byte.
 *
 * Owns:      the slots (one anonymous arena), their residency, the reads that fill them.
 * Leaves:    what the tensors mean (the plan), the layout inside a slot (kernels/slot.h).
 * Invariant: a leased record's bytes neither move nor change; resident bytes <= ram_max; a record that is not resident has
 *            no pointer. Every byte read is counted.
 * Policy:    resident when all records fit ram_max: they are read at open by all threads, and a lease is a counter. Otherwise the
 *            records that policies/place.h keeps are resident and the others pass through what is left (offload/stream.h), read
 *            ahead of their leases. Same calls, same bits.
 * Threads:   lease and release from one thread (the scheduler's). */
#ifndef SLUICE_OFFLOAD_WEIGHTS_H
#define SLUICE_OFFLOAD_WEIGHTS_H
#include "base/err.h"
#include "base/pool.h"
#include "kernels/slot.h"
#include "offload/catalog.h"
#include "offload/packed.h"

/* How several reads are on their way at once: AUTO is a ring of the kernel's (io_uring) where it may be had, else threads. */
enum off_io { OFF_IO_AUTO, OFF_IO_RING, OFF_IO_THREADS };

/* Rows of published bytes: n_outer groups of n_rows rows of row_bytes each. A plain matrix has n_outer 1. */
struct off_span {
    uint32_t file;
    uint64_t offset, row_bytes, n_rows, row_stride, n_outer, outer_stride;
};
/* One tensor of a record. rows = sum over spans of n_outer * n_rows. */
struct off_part {
    const char *name;             /* for errors: the file's tensor name */
    enum krn_type type;
    enum krn_layout layout;
    uint64_t rows, cols;
    const struct off_span *spans; uint32_t n_spans; /* packed: rows of the data tensor */
    const struct off_packed *packed; /* values and scales apart in the files; NULL: rows of `type` as they are. Borrowed */
    const uint64_t *sums;         /* of its pieces in a packed copy (offload/pack.h); NULL: as published */
    uint64_t slot_offset;         /* set by off_record_layout: multiple of KRN_SLOT_ALIGN */
    uint32_t weight;              /* index in the plan's weight table */
};
/* The unit that moves. Borrowed from the plan for the life of off_weights. */
struct off_record {
    const char *name;             /* "layer 3", "embed", "head" */
    struct off_part *parts; uint32_t n_parts;
    uint64_t slot_bytes;          /* set by off_record_layout */
    const struct off_part *image; /* the whole slot as it lies in a packed copy; NULL: made from parts. Set while off_weights is open */
    uint64_t file_bytes;
};
/* Fills slot_offset, slot_bytes (a multiple of OFF_RECORD_ALIGN), file_bytes. ERR_UNSUPPORTED: a type without slot layout.
 * ERR_INVALID: spans that do not make up the part's rows. */
enum { OFF_RECORD_ALIGN = 4096 }; /* so that drives can write straight into slots */
int off_record_layout(struct off_record *r, struct err *e);

/* How a step uses the records: each in one of n segments, in order; a segment's are leased together. A record that two segments use
 * must be listed in both and is always kept. looked_up: its rows are wanted singly (off_lease_rows), at most rows_max a step. */
struct off_use { uint32_t record, segment; bool looked_up; };
/* Records of which a step uses those that it chooses itself: expert e of the layer-th layer with experts is records[layer * per_layer + e],
 * UINT32_MAX where there is none; a token chooses k of each layer. None of them is among the uses. */
struct off_choice { const uint32_t *records; uint32_t layers, per_layer, k; };
struct off_sweep { const struct off_use *uses; uint32_t n; uint32_t rows_max; struct off_choice choice; };

struct off_weights_config {
    uint64_t ram_max;             /* bytes for slots and staging. Less than all records: they stream, if sweep says how; less than what
                                     that needs is ERR_BUDGET with the numbers and the difference */
    const struct off_sweep *sweep; /* NULL: resident or not at all */
    pool *pool;                   /* for loading; NULL: one thread */
    enum { OFF_READ_AUTO, OFF_READ_CACHED, OFF_READ_DIRECT } read; /* AUTO: past the page cache when the files would not fit beside the slots */
    uint64_t stall_ns_max;        /* a lease that waits longer for a drive is ERR_IO; 0: a minute */
    bool verify;                  /* what is read of a packed copy is held against its checksums; ERR_INVALID where there is none */
    enum off_io io;               /* how reads past the cache are made */
    void (*progress)(void *ctx, uint64_t done, uint64_t total); void *ctx; /* may be NULL; called on the opening thread */
};
typedef struct off_weights off_weights;
struct off_weights_stats;
/* What open would do with these records, nothing read or allocated: every field of *s that is known before. Same errors. */
int off_weights_plan(const off_catalog *c, struct off_record *records, uint32_t n_records, const struct off_weights_config *cfg, struct off_weights_stats *s,
                     struct err *e);
/* weights[i].data of every part is set while its record is leased and NULL otherwise. Table borrowed, n_weights long; a weight
 * belongs to one part, and its type, layout, rows and cols are the part's. Errors name file and tensor: ERR_IO, ERR_NOMEM,
 * ERR_BUDGET, ERR_INVALID (a span outside its file, a weight in two parts); on error *out is NULL. */
int off_weights_open(off_weights **out, const off_catalog *c, struct off_record *records, uint32_t n_records,
                     struct krn_weight *weights, uint32_t n_weights, const struct off_weights_config *cfg, struct err *e);
void off_weights_close(off_weights *w);
/* Pins a record until released; may be nested. ERR_IO when its bytes cannot be had. */
int off_lease(off_weights *w, uint32_t record, struct err *e);
/* The same for some rows only [n], of every part of the record: the others may hold anything. For tables that are looked into. */
int off_lease_rows(off_weights *w, uint32_t record, const uint32_t *rows, uint32_t n, struct err *e);
void off_release(off_weights *w, uint32_t record);

/* Experts that do not all stay lie in a cache (offload/experts.h). A step of n_tokens chose them at a gate: rows[e] of them expert e of that
 * layer of off_choice. They are leased next; those of the cache, by ascending number where they might not fit all at once, and with
 * others still leased only those that off_at_hand names. */
void off_gate(off_weights *w, uint32_t layer, const uint32_t *rows, uint32_t n_tokens);
bool off_at_hand(const off_weights *w, uint32_t record); /* a lease would not wait for a drive */
/* Who of the experts is in memory, the most wanted first, as layer * per_layer + expert: at most n. And who should be, before anybody
 * asks: read while nothing else is wanted. Nothing, where all experts stay. */
uint32_t off_weights_warm(const off_weights *w, uint32_t *ids, uint32_t n);
int off_weights_preload(off_weights *w, const uint32_t *ids, uint32_t n, struct err *e);

struct off_weights_stats {
    uint64_t slot_bytes;          /* of all records */
    uint64_t resident_bytes;      /* of those that stay */
    uint64_t window_bytes, staging_bytes; /* memory through which the others pass, and their readers' */
    uint64_t sweep_bytes;         /* slot bytes that pass in one step; 0: nothing streams */
    uint64_t expert_bytes;        /* of the cache of experts; 0: they stay, or there are none */
    uint64_t experts_bytes_all;   /* slot bytes of all experts, whether they stay or not */
    uint32_t expert_slots, experts; /* how many it holds, and of how many */
    uint64_t expert_hits, expert_misses, expert_loaded_bytes, expert_preloaded;
    uint64_t file_bytes_read, file_bytes_wanted; /* wanted: without what alignment adds */
    uint64_t leases, lease_misses, stall_ns;
    uint64_t reader_wakeups;      /* times a reader began to look for work */
    const char *reading;          /* how reads past the cache are made: "io_uring, registered", "io_uring", "pread" */
};
/* For people: one line a drive and way of reading, which files and how. */
void off_weights_tell(const off_weights *w, void (*line)(void *ctx, const char *text), void *ctx);
/* While a lease waits for a drive, after a second: may it end with ERR_AGAIN? Asked on the thread that leases. */
void off_weights_patience(off_weights *w, bool (*hopeless)(void *ctx), void *ctx);
/* The two below from any thread. What came from a drive of the catalog's directories; false: no such drive. */
struct off_drive_stats { const char *dir, *reading; uint64_t bytes, reads, errors; };
bool off_weights_drive(off_weights *w, uint32_t drive, struct off_drive_stats *out);
/* Reads of what streams fail, or do not end, and have not gone well since. Asked again and again, it has them tried again. */
bool off_weights_failing(off_weights *w);
void off_weights_stats(const off_weights *w, struct off_weights_stats *s);
#endif
