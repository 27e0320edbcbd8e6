/* tests/support/make_model.h - writes small model files of both kinds, as published and, on request, wrong.
 *
 * Everything here aborts with a message when the system refuses: a test that cannot write its files has no result. */
#ifndef SLUICE_TESTS_SUPPORT_MAKE_MODEL_H
#define SLUICE_TESTS_SUPPORT_MAKE_MODEL_H
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "kernels/types.h"

/* A directory of its own under $TMPDIR or /tmp; mm_rmdir removes it with its files. The string is malloc'ed. */
char *mm_tmpdir(void);
void mm_rmdir(char *dir);                      /* frees dir; subdirectories one level deep go too */
const char *mm_path(const char *dir, const char *name); /* "dir/name", good for 8 further calls */
void mm_write(const char *path, const void *p, size_t n);
void *mm_read(const char *path, size_t *n);    /* malloc'ed, NUL-terminated */

struct mm_tensor {
    const char *name;
    enum krn_type type;
    uint8_t n_dims;
    uint64_t dims[8];          /* outermost first */
    const void *data;          /* published bytes; NULL: a pattern made from the name */
};
uint64_t mm_bytes(const struct mm_tensor *t);  /* of its data */
uint8_t mm_pattern(const char *name, uint64_t i); /* byte i of a tensor without data */

/* ---- safetensors ------------------------------------------------------------------------------------------ */
/* A file as the format's own writer would make it: header padded with spaces to 8, data in the order given, no gaps. */
void mm_safetensors(const char *path, const struct mm_tensor *t, size_t n);
/* A file with any header text and length field (0: the true one) before data_bytes of zeros. */
void mm_safetensors_raw(const char *path, const char *header, uint64_t header_len, uint64_t data_bytes);
/* model-0000i-of-0000N.safetensors and the index; tensor i goes to shard i % shards. */
void mm_sharded(const char *dir, const struct mm_tensor *t, size_t n, unsigned shards);
/* Several ones in one call: `mm_text(dir, "config.json", "{}")`. */
void mm_text(const char *dir, const char *name, const char *text);

/* ---- GGUF ------------------------------------------------------------------------------------------------- */
enum { MM_U8, MM_I8, MM_U16, MM_I16, MM_U32, MM_I32, MM_F32, MM_BOOL, MM_STR, MM_ARR, MM_U64, MM_I64, MM_F64 };
struct mm_kv {
    const char *key;
    int type;                  /* MM_... */
    int64_t i;                 /* integers, bool */
    double f;                  /* F32, F64 */
    const char *s;             /* STR */
    int elem; uint64_t n;      /* ARR: element type and count, then one of */
    const char *const *strs;   /*   STR */
    const int32_t *ints;       /*   any integer type */
    const float *floats;       /*   F32 */
};
#define MM_KV_U32(k, v) {.key = (k), .type = MM_U32, .i = (v)}
#define MM_KV_STR(k, v) {.key = (k), .type = MM_STR, .s = (v)}
#define MM_KV_F32(k, v) {.key = (k), .type = MM_F32, .f = (v)}
#define MM_KV_BOOL(k, v) {.key = (k), .type = MM_BOOL, .i = (v)}
/* The bytes of a GGUF v3 file (alignment: general.alignment of the pairs, else 32) into b. */
void mm_gguf_bytes(struct buf *b, const struct mm_kv *kv, size_t n_kv, const struct mm_tensor *t, size_t n);
void mm_gguf(const char *path, const struct mm_kv *kv, size_t n_kv, const struct mm_tensor *t, size_t n);
#endif
