/* offload/names.h - an ordered set of strings: index <-> name, both ways in constant time. For tensors, files and metadata keys.
 *
 * Owns:      copies of the names, NUL-terminated, that neither move nor change until off_names_free.
 * Invariant: names hold no NUL; the hash is seeded at random, so that a file cannot choose its collisions.
 * Threads:   any number may find; adding needs the set alone. */
#ifndef SLUICE_OFFLOAD_NAMES_H
#define SLUICE_OFFLOAD_NAMES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OFF_NO_NAME UINT32_MAX

struct off_name { const char *s; uint32_t n, hash; };
struct off_names {
    struct off_name *v;    /* [n] */
    uint32_t n, cap;
    uint32_t *slots;       /* [mask + 1] index + 1; 0: empty. At most half full. */
    size_t mask;
    uint64_t seed;
    struct off_names_chunk *chunks; /* newest first: where the bytes lie */
    size_t bytes;          /* of everything allocated here */
};

void off_names_init(struct off_names *t);
void off_names_free(struct off_names *t);  /* fine on a zeroed struct */
/* The index of s, added if it was not there (*fresh says so). OFF_NO_NAME: no memory, or more names or bytes than 32 bits count.
 * s must hold no NUL. */
uint32_t off_names_add(struct off_names *t, const char *s, size_t n, bool *fresh);
uint32_t off_names_find(const struct off_names *t, const char *s, size_t n); /* OFF_NO_NAME: absent */
/* Keeps the names whose keep[i] is set, in their order; indices move down. */
void off_names_filter(struct off_names *t, const bool *keep);
/* n bytes of UTF-8 without NUL, without surrogates and overlong forms: what every name in a model file must be. */
bool off_name_valid(const char *s, size_t n);
#endif
