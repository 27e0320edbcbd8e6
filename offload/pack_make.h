/* offload/pack_make.h - making a packed copy (offload/pack.h) of a model whose records are known.
 *
 * Resumes: the manifest grows by a line once a record's bytes are on the drive; what it names is not written again.
 * Threads: the caller's. Memory: the largest record and one reading buffer. */
#ifndef SLUICE_OFFLOAD_PACK_MAKE_H
#define SLUICE_OFFLOAD_PACK_MAKE_H
#include "offload/weights.h"

/* records: laid out (off_record_layout). dir is made if it is not there. progress may be NULL. ERR_INVALID: the directory holds something
 * else, or the copy of another model; ERR_IO, ERR_NOMEM. */
int off_pack_make(const off_catalog *c, const struct off_record *records, uint32_t n, const char *dir, void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx,
                  struct err *e);
#endif
