/* offload/drive.h - how fast the drive under a model's files gives bytes: what `plan` and `bench` set beside their own.
 *
 * Reads as streaming does: 2 MiB at a time, past the page cache where the file system can, from several threads, each part of the files
 * once. Threads: the caller's. Allocates for its own duration. */
#ifndef SLUICE_OFFLOAD_DRIVE_H
#define SLUICE_OFFLOAD_DRIVE_H
#include "offload/catalog.h"

struct off_drive_rate { double bytes_s; uint64_t bytes; bool direct; }; /* direct: past the cache; otherwise the rate may be memory's */
/* At most `bytes` of the files, spread over them evenly. ERR_IO, ERR_NOMEM. */
int off_probe_drive(const off_catalog *c, unsigned threads, uint64_t bytes, struct off_drive_rate *out, struct err *e);
#endif
