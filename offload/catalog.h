/* offload/catalog.h - what a model's files hold: logical tensors -> file, range, dtype, shape; and the metadata beside them.
 *
 * Owns:      open descriptors of every file, the names, the metadata. Reads headers only; never a weight byte.
 * Invariant: every range lies inside its file; ranges of one file do not overlap; names are unique and valid UTF-8;
 *            no allocation is sized by a number that the file does not back with bytes.
 * Formats:   safetensors (huggingface/safetensors README, one file or an index), GGUF v2/v3 (ggml docs/gguf.md, one or split).
 * Threads:   read-only after open. */
#ifndef SLUICE_OFFLOAD_CATALOG_H
#define SLUICE_OFFLOAD_CATALOG_H
#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "kernels/types.h"

#define OFF_DIMS_MAX 8
enum off_kind { OFF_SAFETENSORS, OFF_GGUF };

struct off_tensor {
    const char *name;             /* as in the file: "model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight" */
    enum krn_type type;
    uint8_t n_dims;
    uint64_t dims[OFF_DIMS_MAX];  /* outermost first for both kinds (GGUF lists them innermost first: turned here) */
    uint32_t file;
    uint64_t offset, bytes;       /* absolute, within the file */
};
struct off_file {
    const char *path, *base;
    uint64_t size;
    int fd;
    bool missing;
    bool cut;                     /* of a packed copy: no more than its head is there, size is what was published */
    uint32_t drive;               /* of off_catalog_dir: where path lies */
};

typedef struct off_catalog off_catalog;

/* path: a .gguf file (the first of a split set), a .safetensors file, or a directory with config.json and safetensors.
 * header_only != 0 (check): missing or short files are recorded in off_catalog_problem instead of failing the open. Then the
 * tensors of a file that is missing, or cut inside its header, are not in the catalog, and the last tensors of a file cut in its
 * data may end past it. (A GGUF file cut inside its header is an error all the same.)
 * Errors name file, tensor, expected and found. ERR_NOTFOUND, ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED (dtype, version), ERR_INVALID
 * (not the first file of a split set), ERR_LIMIT, ERR_NOMEM; on error *out is NULL. */
int off_catalog_open(off_catalog **out, const char *path, int header_only, struct err *e);
/* The same, with directories on other drives (separated by commas; NULL: none) that hold copies of the model's files, or those that the
 * model's own directory lacks. ERR_INVALID: one that has none of them. */
int off_catalog_open_on(off_catalog **out, const char *path, const char *disks, int header_only, struct err *e);
void off_catalog_close(off_catalog *c);

enum off_kind off_catalog_kind(const off_catalog *c);
size_t off_catalog_count(const off_catalog *c);
const struct off_tensor *off_catalog_at(const off_catalog *c, size_t i);
const struct off_tensor *off_catalog_find(const off_catalog *c, const char *name, size_t n); /* NULL: absent; O(1) */
size_t off_catalog_files(const off_catalog *c);
const struct off_file *off_catalog_file(const off_catalog *c, size_t i);
size_t off_catalog_dirs(const off_catalog *c);           /* 0 is the model's own */
const char *off_catalog_dir(const off_catalog *c, size_t i);
size_t off_catalog_problems(const off_catalog *c);
const struct err *off_catalog_problem(const off_catalog *c, size_t i);
uint64_t off_catalog_bytes(const off_catalog *c);        /* of all tensors */
size_t off_catalog_memory(const off_catalog *c);         /* bytes the catalog itself holds */

/* A tensor's bytes, as published: for what is small and belongs to no record. ERR_IO; ERR_NOTFOUND: a packed copy does not have it. */
int off_catalog_read(const off_catalog *c, const struct off_tensor *t, void *dst, struct err *e);
const struct off_pack *off_catalog_pack(const off_catalog *c); /* NULL: published files (offload/pack.h) */
const char *off_catalog_model(const off_catalog *c);           /* the file it was opened by, without directory; ".": a directory */

/* config.json (safetensors) as a tree; for GGUF the metadata as an object with the file's own dotted keys, arrays included
 * except those longer than 64 entries, which off_gguf_array gives. Borrowed. */
const struct json *off_catalog_config(const off_catalog *c);
/* A text file beside the weights ("tokenizer.json", "generation_config.json", "chat_template.jinja"); NULL with *e->code
 * ERR_NOTFOUND if absent. malloc'ed and NUL-terminated, *n bytes: the caller frees it. bytes_max bounds it. */
char *off_catalog_text(const off_catalog *c, const char *name, size_t bytes_max, size_t *n, struct err *e);

/* GGUF arrays, borrowed from the catalog: element i. */
struct off_array { int type; /* GGUF value type number */ uint64_t n; const void *priv; };
bool off_gguf_array(const off_catalog *c, const char *key, struct off_array *a);
const char *off_array_str(const struct off_array *a, uint64_t i, size_t *n); /* not NUL-terminated; NULL: not strings */
bool off_array_int(const struct off_array *a, uint64_t i, int64_t *v);
bool off_array_num(const struct off_array *a, uint64_t i, double *v);
#endif
