/* base/hash.h - SHA-256 for identity (OpenSSL's), a fast keyed-free 64-bit hash for tables, hex. */
#ifndef SLUICE_BASE_HASH_H
#define SLUICE_BASE_HASH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define HASH_BYTES 32
void hash_sha256(const void *p, size_t n, uint8_t out[HASH_BYTES]);

/* Incremental: fields are tagged and length-prefixed so that no two field lists collide. */
typedef struct hash_ctx hash_ctx;
hash_ctx *hash_new(void);                                              /* NULL: no memory */
void hash_field(hash_ctx *h, const char *tag, const void *p, size_t n); /* tag and a NUL, u64 LE length, bytes */
void hash_raw(hash_ctx *h, const void *p, size_t n);
void hash_end(hash_ctx *h, uint8_t out[HASH_BYTES]);                    /* frees h */
void hash_again(hash_ctx *h, uint8_t out[HASH_BYTES]);                  /* ends this digest; h is ready for the next one, without allocating */

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);            /* FNV-1a-like mixing; not for adversaries without a random seed */
void hash_hex(const uint8_t *p, size_t n, char *out);                   /* 2n chars and a NUL */
bool hash_unhex(const char *hex, size_t n_bytes, uint8_t *out);
bool hash_equal(const void *a, const void *b, size_t n);                /* constant time */
bool hash_random(void *p, size_t n);                                    /* getrandom(2) */
#endif
