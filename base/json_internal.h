/* base/json_internal.h - what the reader, the tree and the writer of base/json.h share: the set of keys of open objects. */
#ifndef SLUICE_BASE_JSON_INTERNAL_H
#define SLUICE_BASE_JSON_INTERNAL_H
#include "base/json.h"

enum { JSON_DEPTH_MAX = 1024, JSON_SMALL = 16 /* objects up to this size are searched in a line */ };

/* The keys of every object that is still open, innermost last. Objects beyond JSON_SMALL keys get a hash table whose seed is
 * random, so that a sender cannot choose colliding keys. Keys are borrowed: their bytes must outlive the object. */
struct json_keys {
    struct json_key { const char *s; size_t n; uint64_t hash; } *v;
    size_t n, cap;
    struct json_keys_frame { size_t base; uint32_t *table; size_t mask; } *frames;
    size_t depth, frames_cap;
    uint64_t seed;
};
bool json_keys_enter(struct json_keys *k); /* false: no memory */
/* Returns the number of the same key within the innermost object, or -1: it is new and was added; -2: no memory. */
int64_t json_keys_add(struct json_keys *k, const char *s, size_t n);
void json_keys_leave(struct json_keys *k);
void json_keys_free(struct json_keys *k);

/* The code of the reader's last error (json_next itself only returns -1). */
int json_reader_code(const json_reader *r);
bool json_reader_borrowed(const json_reader *r, const char *s); /* s points into the input, not into scratch memory */
int json_reader_fail(json_reader *r, struct err *e, int code, const char *what, const char *s, size_t n);

/* Length of the valid UTF-8 sequence at p (1..4), 0: none. */
size_t json_utf8(const unsigned char *p, const unsigned char *end);
#endif
