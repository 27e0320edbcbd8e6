/* offload/weights_internal.h - what weights.c (slots, leases), record.c (arithmetic) and load.c (reading) share. */
#ifndef SLUICE_OFFLOAD_WEIGHTS_INTERNAL_H
#define SLUICE_OFFLOAD_WEIGHTS_INTERNAL_H
#include "offload/weights.h"

/* A part as a stream: its rows one after another, as published. Bytes of it. */
uint64_t off_part_bytes(const struct off_part *p);
/* The run of file bytes that begins at byte `at` of the stream: its length (0: past the end), file and offset. */
uint64_t off_part_run(const struct off_part *p, uint64_t at, uint32_t *file, uint64_t *offset);
/* Every span of the part lies inside an open file. ERR_INVALID, ERR_IO. */
int off_part_check(const struct off_part *p, const off_catalog *c, struct err *e);

/* Reads records[i] into slots + slot_at[i], for every i, by all workers of cfg->pool. *bytes_read counts what came from files,
 * also when it fails. */
int off_load(const off_catalog *c, const struct off_record *records, uint32_t n, uint8_t *slots, const uint64_t *slot_at,
             const struct off_weights_config *cfg, bool direct, uint64_t *bytes_read, struct err *e);
#endif
