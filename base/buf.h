/* base/buf.h - a growable byte buffer with a maximum, and cursors that read and write little-endian fields.
 *
 * Invariant: data[len] is always 0 once anything was added, so data is a C string when it has no NUL inside.
 * A failed add sets `failed` and leaves len alone; later adds do nothing: check once at the end. */
#ifndef SLUICE_BASE_BUF_H
#define SLUICE_BASE_BUF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t len, cap, max;
    bool failed; /* malloc failed or max was reached */
};

void buf_init(struct buf *b, size_t max);
void buf_free(struct buf *b);
void buf_reset(struct buf *b);               /* len = 0, failed = false, memory kept */
bool buf_reserve(struct buf *b, size_t more);
bool buf_add(struct buf *b, const void *p, size_t n);
bool buf_str(struct buf *b, const char *s);
bool buf_char(struct buf *b, char c);
bool buf_uint(struct buf *b, uint64_t v);    /* decimal */
bool buf_milli(struct buf *b, uint64_t v);   /* v / 1000 with three decimals */
bool buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_consume(struct buf *b, size_t n);   /* drops n bytes from the front (memmove) */

bool buf_u8(struct buf *b, uint8_t v);       /* little-endian */
bool buf_u16(struct buf *b, uint16_t v);
bool buf_u32(struct buf *b, uint32_t v);
bool buf_u64(struct buf *b, uint64_t v);
bool buf_f32(struct buf *b, float v);
bool buf_blob(struct buf *b, const void *p, size_t n); /* u32 length, then the bytes; n > UINT32_MAX fails */

/* Reads what the functions above wrote. Past the end: returns 0 / NULL and sets `bad`, forever. */
struct rd {
    const uint8_t *p, *end;
    bool bad;
};
struct rd rd_of(const void *p, size_t n);
uint8_t rd_u8(struct rd *r);
uint16_t rd_u16(struct rd *r);
uint32_t rd_u32(struct rd *r);
uint64_t rd_u64(struct rd *r);
float rd_f32(struct rd *r);
const void *rd_bytes(struct rd *r, size_t n);
const void *rd_blob(struct rd *r, size_t *n); /* borrowed from the input */
static inline size_t rd_left(const struct rd *r) { return (size_t)(r->end - r->p); }
#endif
