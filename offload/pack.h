/* offload/pack.h - packed copies: a model's records as memory holds them, one behind the other and aligned, with checksums; beside them the
 * heads of the published files and their texts, so that such a directory opens like any model.
 *
 * Owns:      the manifest, "sluice.pack": what lies where in "sluice.records" (docs/formats.md, "Packed copies").
 * Leaves:    making one to offload/pack_make.h; reading records to offload/fill.h.
 * Invariant: every number of the manifest was held against the sizes of the files. A copy that is not whole, or that was made for
 *            records of another shape, is refused by name; there is no way from it to a zero in place of a weight.
 * Threads:   read-only once open. */
#ifndef SLUICE_OFFLOAD_PACK_H
#define SLUICE_OFFLOAD_PACK_H
#include "base/arena.h"
#include "offload/weights.h"

#define OFF_PACK_MANIFEST "sluice.pack"
#define OFF_PACK_DATA "sluice.records"
enum { OFF_PACK_ALIGN = 4096, OFF_PACK_PIECE = 1 << 20 }; /* a checksum is of so many bytes of a record; the last piece may be shorter */
#define OFF_PACK_BYTES_MAX ((size_t)1 << 30)

struct off_pack_file { const char *name; uint64_t size, head; };   /* published; its first head bytes are in the copy */
struct off_pack_tensor { const char *name; uint64_t at, bytes; };  /* as published: what is read without being a record */
struct off_pack_record { uint64_t at, bytes, key; const uint64_t *sums; };
struct off_pack {
    const char *model;                /* the file that opens it; ".": a directory */
    struct off_pack_file *files; uint32_t n_files;
    struct off_pack_tensor *tensors; uint32_t n_tensors;
    struct off_pack_record *records; uint32_t n_records; /* those that are there; in the order of the plan */
    uint32_t n_planned;
    uint64_t end;                     /* of the data */
    size_t parsed;                    /* bytes of text that were read as whole lines */
    bool whole;
    uint32_t data;                    /* the catalog's number of the data file */
};
/* n bytes of text. partial: one that is being made may stop after any whole line, and what follows is left out; otherwise that is
 * an error. Strings and lists live in a. ERR_FORMAT with the line's number; ERR_NOMEM. */
int off_pack_parse(struct off_pack *p, const char *text, size_t n, bool partial, struct arena *a, struct err *e);
const struct off_pack_file *off_pack_file(const struct off_pack *p, const char *name);
/* What a record must be to be taken from a copy: names, types, layouts and places of its parts. */
uint64_t off_pack_key(const struct off_record *r);
uint64_t off_pack_sum(const void *p, size_t n);
static inline uint64_t off_pack_pieces(uint64_t bytes) { return (bytes + OFF_PACK_PIECE - 1) / OFF_PACK_PIECE; }
#endif
