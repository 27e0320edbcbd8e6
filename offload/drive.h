/* offload/drive.h - how fast the drives under a model's files give bytes: what `plan` and `bench` set beside their own.
 *
 * Reads as streaming does: the same queues, in the order of the files, past the page cache where the file system can, each byte once.
 * Threads: the caller's. Allocates for its own duration. */
#ifndef SLUICE_OFFLOAD_DRIVE_H
#define SLUICE_OFFLOAD_DRIVE_H
#include "offload/weights.h"

struct off_drive_rate { double bytes_s; uint64_t bytes; bool direct; }; /* direct: past the cache; otherwise the rate may be memory's */
/* At most `bytes` of the files, in a few long stretches spread over them. ERR_IO, ERR_NOMEM. */
int off_probe_drive(const off_catalog *c, uint64_t bytes, enum off_io io, struct off_drive_rate *out, struct err *e);
/* The same, and a line of off_weights_tell for each drive and way of reading. */
int off_probe_drive_tell(const off_catalog *c, uint64_t bytes, enum off_io io, void (*line)(void *ctx, const char *text), void *ctx, struct off_drive_rate *out, struct err *e);
#endif
