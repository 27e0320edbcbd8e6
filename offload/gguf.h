/* offload/gguf.h - a GGUF header in memory: its block of bytes and where each metadata value lies in it. Inside offload/ only. */
#ifndef SLUICE_OFFLOAD_GGUF_H
#define SLUICE_OFFLOAD_GGUF_H
#include <stdio.h>
#include "offload/catalog_internal.h"

enum { OFF_GGUF_U8, OFF_GGUF_I8, OFF_GGUF_U16, OFF_GGUF_I16, OFF_GGUF_U32, OFF_GGUF_I32, OFF_GGUF_F32, OFF_GGUF_BOOL,
       OFF_GGUF_STRING, OFF_GGUF_ARRAY, OFF_GGUF_U64, OFF_GGUF_I64, OFF_GGUF_F64 };

struct off_gguf;
struct off_gguf_value {
    uint8_t type, elem;   /* elem: of an array */
    size_t at;            /* of the scalar, the string's bytes, the first element */
    uint64_t n;           /* string: bytes; array: elements */
    uint32_t *strings;    /* array of strings: where each one's length stands */
    const struct off_gguf *g; /* set once the header is read */
};
struct off_gguf {
    uint8_t *block;       /* the file's first `have` bytes */
    size_t have;
    struct off_names keys;              /* keys.v[i] is values[i] */
    struct off_gguf_value *values; size_t n_values;
};

extern const uint8_t off_gguf_bytes_of[]; /* bytes of a scalar by type; 0: string, array */
uint64_t off_gguf_le(const uint8_t *p, unsigned n_bytes);
bool off_gguf_int(const struct off_gguf *g, unsigned type, size_t at, int64_t *v); /* integers and bools that fit */
bool off_gguf_num(const struct off_gguf *g, unsigned type, size_t at, double *v);
int off_gguf_config(struct off_catalog *c, struct err *e); /* c->config from c->gguf */
#endif
