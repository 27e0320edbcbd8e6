/* offload/weights_internal.h - what weights.c (slots, leases), record.c (arithmetic), load.c (reading), placing.c and rows.c share. */
#ifndef SLUICE_OFFLOAD_WEIGHTS_INTERNAL_H
#define SLUICE_OFFLOAD_WEIGHTS_INTERNAL_H
#include "offload/experts.h"
#include "offload/fill.h"
#include "offload/weights.h"

/* What is read to fill a record's slot: its parts, or its image. */
static inline const struct off_part *off_record_pieces(const struct off_record *r, uint32_t *n)
{
    *n = r->image ? 1 : r->n_parts;
    return r->image ? r->image : r->parts;
}
/* Records as they lie in the catalog's packed copy: sets image of each. images, spans: [n]. ERR_FORMAT: made for others. */
int off_pack_attach(const off_catalog *c, struct off_record *records, uint32_t n, struct off_part *images, struct off_span *spans, struct err *e);

/* A part as a stream: its rows one after another, as published (packed: without their scales). Bytes of a row, bytes of it. */
uint64_t off_part_row(const struct off_part *p);
uint64_t off_part_bytes(const struct off_part *p);
/* The run of file bytes that begins at byte `at` of the stream: its length (0: past the end), file and offset. */
uint64_t off_part_run(const struct off_part *p, uint64_t at, uint32_t *file, uint64_t *offset);
/* A record as units: how many, and the i-th; its slot is where its part lies behind `slot`. */
uint32_t off_record_units(const struct off_record *r);
struct off_unit off_record_unit(const struct off_record *r, uint32_t i, uint8_t *slot);
/* Every span of the part lies inside an open file. ERR_INVALID, ERR_IO. */
int off_part_check(const struct off_part *p, const off_catalog *c, struct err *e);

/* Reads records[i] into slots + slot_at[i], for every i that keep[i] names, by all workers of cfg->pool. */
int off_load(struct off_source *source, const struct off_record *records, uint32_t n, const bool *keep, uint8_t *slots, const uint64_t *slot_at,
             const struct off_weights_config *cfg, struct err *e);

/* What of a sweep stays and what passes, within ram_max: rows.c and weights.c take it from here. */
struct off_placing {
    bool *keep;                   /* [n_records] */
    uint32_t *order; uint32_t n_order; /* what passes, in sweep order */
    uint64_t kept_bytes, window_bytes, staging_bytes, rows_bytes, sweep_bytes;
    struct off_reader_config readers;
    struct off_expert_cut experts; /* slots 0: they stay, or there are none */
};
/* ERR_BUDGET: with the bytes missing. *p is freed by off_placing_free, also after an error. */
int off_place(struct off_placing *p, const struct off_source *src, const struct off_record *records, uint32_t n, const struct off_weights_config *cfg, struct err *e);
void off_placing_free(struct off_placing *p);

/* Sparse slots: the address range of a looked-up record, of which only the pages with wanted rows are there. */
typedef struct off_rows off_rows;
int off_rows_open(off_rows **out, const struct off_record *r, struct err *e);
void off_rows_close(off_rows *t);
int off_rows_fetch(off_rows *t, struct off_source *src, const uint32_t *rows, uint32_t n, uint8_t **slot, struct err *e);
void off_rows_drop(off_rows *t);      /* gives the pages back */
/* Memory that n rows of the record may take at most, staging included. */
uint64_t off_rows_bytes(const struct off_record *r, uint32_t n);
#endif
