/* offload/source.h - the bytes of a model's files: on which drives they lie, the way they are read, what was read.
 *
 * Owns:      descriptors for reading past the page cache and of copies on other drives; counts.
 * Leaves:    what the bytes are and where they go (offload/fill.h), several reads at once (offload/queue.h).
 * Invariant: what fails past the cache is read again through it, and on another drive where there is one; the error that remains is
 *            the one reported. Every byte read is counted, on its drive.
 * Threads:   everything from any number of threads, between open and close. */
#ifndef SLUICE_OFFLOAD_SOURCE_H
#define SLUICE_OFFLOAD_SOURCE_H
#include <pthread.h>
#include <stdatomic.h>

#include "offload/weights.h"

struct off_copy { int fd, direct; size_t align; bool own; }; /* of one file on one drive; fd: through the cache, ours if own; direct: past it. -1: not that way */
struct off_drive {
    const char *dir;
    uint64_t bytes, reads, errors;
    uint64_t queued;              /* bytes asked for and not there yet */
    uint64_t busy_since, busy_ns, busy_bytes; /* of late: what its rate is taken from */
    uint64_t failed_ns;           /* when a read failed last */
};
struct off_source {
    const off_catalog *c;
    struct off_copy *copies;      /* [files * drives] */
    struct off_drive *drives; uint32_t n_drives;
    pthread_mutex_t lock;         /* guards the drives' numbers */
    enum off_io io;
    const char *kind;             /* of the queues that were opened (offload/queue.h) */
    bool verify;                  /* pieces of a packed copy are held against their checksums */
    size_t edge;                  /* bytes by which an aligned span may exceed what is wanted */
    atomic_uint_fast64_t bytes_read, bytes_wanted; /* wanted: without what alignment adds */
};
/* direct: past the page cache, where a file system can. A drive for each directory of the catalog. ERR_NOMEM, ERR_IO; ERR_INVALID: what
 * is called a copy is none. */
int off_source_open(struct off_source *s, const off_catalog *c, bool direct, enum off_io io, struct err *e);
void off_source_close(struct off_source *s); /* a zeroed one is fine */
static inline struct off_copy *off_source_copy(const struct off_source *s, uint32_t file, uint32_t drive) { return &s->copies[(size_t)file * s->n_drives + drive]; }

/* One line a drive and way of reading: which files, how. For people. */
void off_source_tell(const struct off_source *s, void (*line)(void *ctx, const char *text), void *ctx);
/* What came from each drive so far; n_drives of them. */
const char *off_source_reading(const struct off_source *s, uint32_t drive); /* "io_uring, registered", or how the worst of its files is read */
void off_source_drive(struct off_source *s, uint32_t drive, struct off_drive *out);

/* A read past the cache: n bytes at offset are [head, head + n) of the aligned span at begin. copy: index of the copy. */
struct off_ask { uint32_t drive, copy; int fd; uint64_t begin; size_t span, head, n, align; };
/* Plans one and charges the drive that will be done first. false: not past the cache. Ends with off_source_came. */
bool off_source_ask(struct off_source *s, uint32_t file, uint64_t offset, size_t n, struct off_ask *a);
/* r: bytes that came or -errno. true: they are all there. */
bool off_source_came(struct off_source *s, const struct off_ask *a, int64_t r);

/* n bytes now, into stage (off_source_stage bytes, aligned to 4096) past the cache or into dst; *got says where they are. dst may be the
 * stage. ERR_IO names file and, by `name`, tensor. */
int off_source_read(struct off_source *s, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, uint8_t *stage, const uint8_t **got, struct err *e);
/* The same through the cache. */
int off_source_read_cached(struct off_source *s, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, struct err *e);
#endif
