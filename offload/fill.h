/* offload/fill.h - a unit of a part: read from its file, past the page cache where that works, and packed into its slot on the spot.
 *
 * Owns:      descriptors opened for direct reading, the count of bytes read.
 * Leaves:    which unit goes where, and by which thread, to offload/load.c and offload/stream.c.
 * Invariant: what fails past the cache is read again through it, and that error is the one reported.
 * Threads:   off_fill from any number of threads, each with a stage of its own. */
#ifndef SLUICE_OFFLOAD_FILL_H
#define SLUICE_OFFLOAD_FILL_H
#include <stdatomic.h>

#include "offload/weights.h"

struct off_direct { int fd; size_t align; }; /* fd -1: this file goes through the cache */
struct off_source {
    const off_catalog *c;
    struct off_direct *direct;    /* [files]; NULL: all go through the cache */
    size_t edge;                  /* bytes by which an aligned span may exceed a unit */
    atomic_uint_fast64_t bytes_read;
};
int off_source_open(struct off_source *s, const off_catalog *c, bool direct, struct err *e);
void off_source_close(struct off_source *s);

/* Bytes that a unit of this part should have: some 2 MiB, whole tiles where the part is tiled. */
uint64_t off_unit_bytes(const struct off_part *p);
/* What a stage must hold for units of this part; a multiple of 4096. A stage is aligned to 4096. */
size_t off_stage_bytes(const struct off_source *s, const struct off_part *p);
/* Bytes [at, at + n) of the part's stream into its slot, `slot` being where the part begins there. Whole tiles if tiled. ERR_IO names
 * file and tensor. */
int off_fill(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *slot, uint8_t *stage, struct err *e);
#endif
