/* base/json.h - JSON in and out: a strict streaming reader, a tree on top of it, and a writer.
 *
 * Strict is RFC 8259 and more: whole input, valid UTF-8, no lone surrogates, bounded depth; duplicate keys and
 * \u0000 are refused unless allowed. Numbers keep their text, so 64-bit integers stay exact.
 * One reader serves requests, sheets, config.json, tokenizer.json and safetensors headers (100 MB and 500,000
 * names in one pass without a tree). Source: RFC 8259. */
#ifndef SLUICE_BASE_JSON_H
#define SLUICE_BASE_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"

struct json_limits {
    size_t bytes_max;      /* 0: no bound */
    unsigned depth_max;    /* 0: 64 */
    bool allow_nul;        /* \u0000 inside strings (tokenizer files) */
    bool allow_duplicates; /* keys repeated in one object (tree: the last one wins) */
};
extern const struct json_limits json_strict; /* depth 64, no bound on bytes, no NUL, no duplicates */

/* ---- streaming -------------------------------------------------------------------------------------------- */
enum json_event { JSON_EV_OBJECT, JSON_EV_OBJECT_END, JSON_EV_ARRAY, JSON_EV_ARRAY_END, JSON_EV_KEY, JSON_EV_STRING,
                  JSON_EV_NUMBER, JSON_EV_TRUE, JSON_EV_FALSE, JSON_EV_NULL, JSON_EV_END };
typedef struct json_reader json_reader;

/* Reads [p, p+n), which must outlive the reader. Duplicate keys are detected by the tree and by json_check, not here. */
int json_reader_open(json_reader **out, const char *p, size_t n, const struct json_limits *lim, struct err *e);
void json_reader_close(json_reader *r);
/* The next event, or a code < 0 is never returned: on error returns -1 and fills *e (byte offset, line, what was expected).
 * For KEY, STRING and NUMBER *s,*len are the decoded bytes (number: its text), valid until the next call. */
int json_next(json_reader *r, const char **s, size_t *len, struct err *e);
int json_skip(json_reader *r, struct err *e); /* the value whose first event was just returned, to its end */

/* ---- checking --------------------------------------------------------------------------------------------- */
int json_check(const char *p, size_t n, const struct json_limits *lim, struct err *e); /* ERR_FORMAT, ERR_LIMIT */

/* ---- tree ------------------------------------------------------------------------------------------------- */
enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
struct json_member;
struct json {
    enum json_type type;
    bool b;               /* BOOL */
    const char *s;        /* STRING: bytes, NUL-terminated; NUMBER: its text */
    size_t n;             /* STRING, NUMBER: bytes; ARRAY, OBJECT: entries */
    struct json **items;  /* ARRAY */
    struct json_member *members; /* OBJECT, in the order of the text */
    void *index;          /* private: hash index of large objects */
};
struct json_member { const char *key; size_t key_len; struct json *value; };

int json_parse(struct json **out, const char *p, size_t n, const struct json_limits *lim, struct arena *a, struct err *e);
int json_parse_file(struct json **out, const char *path, size_t bytes_max, struct arena *a, struct err *e);
/* Look-ups: NULL when v is NULL, not an object, or lacks the key. Case-sensitive; O(1) for large objects. */
const struct json *json_get(const struct json *v, const char *key);
const struct json *json_get_n(const struct json *v, const char *key, size_t n);
const struct json *json_path(const struct json *v, const char *dotted); /* "a.b.c" */
bool json_is(const struct json *v, enum json_type t);                   /* false for NULL */
bool json_int(const struct json *v, int64_t *out);                      /* exact integers only (1.0 and 1e3 count) */
bool json_u64(const struct json *v, uint64_t *out);
bool json_num(const struct json *v, double *out);
const char *json_str(const struct json *v);                             /* NULL unless a string */
bool json_eq(const struct json *v, const char *s);                      /* is the string s */

/* Building trees (context of a template, tests). On allocation failure: NULL. */
struct json *json_new(struct arena *a, enum json_type t);
struct json *json_new_str(struct arena *a, const char *s, size_t n);
struct json *json_new_int(struct arena *a, int64_t v);
struct json *json_new_bool(struct arena *a, bool b);
bool json_set(struct arena *a, struct json *obj, const char *key, const struct json *v); /* replaces or appends; key copied */
bool json_push(struct arena *a, struct json *arr, const struct json *v);

/* ---- writing into a buf ----------------------------------------------------------------------------------- */
void json_put_str(struct buf *b, const char *s, size_t n); /* quoted; invalid UTF-8 becomes U+FFFD; </ is left alone */
void json_put_cstr(struct buf *b, const char *s);          /* NULL writes null */
void json_put(struct buf *b, const struct json *v);        /* a whole tree, compact */
#endif
