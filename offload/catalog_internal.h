/* offload/catalog_internal.h - what the readers of the two file kinds fill in, and the catalog hands out. */
#ifndef SLUICE_OFFLOAD_CATALOG_INTERNAL_H
#define SLUICE_OFFLOAD_CATALOG_INTERNAL_H
#include "offload/catalog.h"
#include "offload/io.h"
#include "offload/names.h"

#define OFF_TEXT_BYTES_MAX ((size_t)1 << 30)     /* of an index or a block of GGUF metadata */
#define OFF_HEADER_BYTES_MAX 100000000ull        /* the safetensors format's own bound */
#define OFF_CONFIG_BYTES_MAX ((size_t)16 << 20)

struct off_catalog {
    enum off_kind kind;
    bool header_only;
    struct off_pack *pack;           /* NULL: published files */
    const char *model;               /* off_catalog_model */
    char *dir;                       /* of the model, without a final slash: "." where path has none */
    const char **dirs; uint32_t n_dirs; /* dir, then those of other drives; their strings in mem */
    struct off_names names;          /* names.v[i] is tensors[i] */
    struct off_tensor *tensors; size_t tensors_cap;
    struct off_names file_names;     /* base names, file_names.v[i] is files[i] */
    struct off_file *files; size_t files_cap;
    struct err *problems; size_t n_problems;
    uint64_t bytes;
    struct arena mem;                /* the config tree, paths */
    struct json *config;             /* NULL: a lone .safetensors file without one */
    struct off_gguf *gguf;           /* NULL for safetensors */
};

/* A tensor's bytes within the data part of its file. */
struct off_range { uint64_t begin, end; uint32_t tensor; };

/* Adds a tensor with that name: its index, or OFF_NO_NAME with *e set. *fresh is false where the name was there. */
uint32_t off_catalog_add(struct off_catalog *c, const char *name, size_t n, bool *fresh, struct err *e);
/* Adds a file of the model's directory (not opened yet; fd -1). */
uint32_t off_catalog_add_file(struct off_catalog *c, const char *base, size_t n, struct err *e);
/* Opens files[file]: fd and size. readable: how much of it is there (all of it, but of a packed copy its head). As off_io_open, and ERR_FORMAT. */
int off_catalog_open_file(struct off_catalog *c, uint32_t file, uint64_t *readable, struct err *e);
/* header_only: keeps *e as a problem, ERR_OK. Otherwise returns e->code. ERR_NOMEM. Not thread-safe. */
int off_catalog_note(struct off_catalog *c, struct err *e);
/* Ascending by begin, then end. */
void off_ranges_sort(struct off_range *r, size_t n);

/* What make an open complete; both set names, tensors, files, config. */
int off_safetensors_open_file(struct off_catalog *c, const char *base, struct err *e);
int off_safetensors_open_index(struct off_catalog *c, struct err *e);
int off_gguf_open(struct off_catalog *c, const char *base, struct err *e);
void off_gguf_free(struct off_gguf *g);
size_t off_gguf_bytes(const struct off_gguf *g);

/* What a file lacks at its end: only that may be a problem rather than an error (header_only). */
enum off_lack { OFF_WHOLE, OFF_DATA_CUT, OFF_HEADER_CUT };

/* The header of files[file], which is open: read, checked, its tensors filled in. listed: an index was read, every name must be
 * in the catalog already and assigned to this file, and several threads may read different files; otherwise names are added.
 * With an error of kind *lack == OFF_DATA_CUT the tensors are all there nevertheless. */
struct off_header { char *text; size_t cap; struct off_range *ranges; size_t ranges_cap; }; /* scratch, zeroed at first */
int off_safetensors_header(struct off_catalog *c, uint32_t file, bool listed, struct off_header *h, enum off_lack *lack, struct err *e);
void off_header_free(struct off_header *h);

#define OFF_NAME_SHOWN 120 /* bytes of a tensor's name in a message: printf's "%.*s" */
#endif
