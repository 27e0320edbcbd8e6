/* offload/fill.h - a unit of a part: read from its file, past the page cache where that works, and packed into its slot on the spot.
 *
 * Owns:      nothing.
 * Leaves:    the bytes to offload/source.h, several units at once to offload/queue.h, which unit goes where, and by which thread, to
 *            offload/load.c and offload/stream.c.
 * Threads:   off_fill from any number of threads, each with a stage of its own. */
#ifndef SLUICE_OFFLOAD_FILL_H
#define SLUICE_OFFLOAD_FILL_H
#include "offload/source.h"
#include "offload/weights.h"

/* Bytes [at, at + n) of the part's stream into its slot, `slot` being where the part begins there. Whole tiles if tiled. */
struct off_unit { const struct off_part *part; uint64_t at, n; uint8_t *slot; void *tag; uint8_t client; }; /* tag: the caller's; client: offload/reader.h's */

/* Bytes that a unit of this part should have: some MiB, whole tiles where the part is tiled. */
uint64_t off_unit_bytes(const struct off_part *p);
/* What a stage must hold for units of this part; a multiple of 4096. A stage is aligned to 4096. */
size_t off_stage_bytes(const struct off_source *s, const struct off_part *p);
/* Most of that over records. */
size_t off_stage_most(const struct off_source *s, const struct off_record *records, uint32_t n_records);
/* ERR_IO names file and tensor. */
int off_fill(struct off_source *s, const struct off_unit *u, uint8_t *stage, struct err *e);
/* The same in two halves: the one read that a unit is, where it is one, to be read to the stage's begin (false: use off_fill); then with
 * what came, or with NULL where it did not. */
bool off_fill_ask(struct off_source *s, const struct off_unit *u, struct off_ask *a);
/* Where such a read may go instead of the stage: into the slot itself, if it needs no packing and all is aligned. NULL: it may not. */
uint8_t *off_fill_straight(const struct off_unit *u, const struct off_ask *a);
int off_fill_came(struct off_source *s, const struct off_unit *u, uint8_t *stage, const uint8_t *came, struct err *e);
#endif
