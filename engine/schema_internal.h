/* engine/schema_internal.h - what the files of the schema compiler share: the run, and how pieces of a grammar are written. */
#ifndef SLUICE_ENGINE_SCHEMA_INTERNAL_H
#define SLUICE_ENGINE_SCHEMA_INTERNAL_H
#include "base/arena.h"
#include "engine/schema.h"

enum { SCHEMA_DEPTH_MAX = 64, SCHEMA_REFS_MAX = 512, SCHEMA_PATH_MAX = 300, SCHEMA_MANY = 1 << 14, SCHEMA_BODY_MAX = 4 << 20 };
#define SCHEMA_OPEN UINT32_MAX /* no upper bound */

/* Rules that are written when first asked for; "prefix-string" and so on. */
enum schema_common { COMMON_WS, COMMON_CHAR, COMMON_STRING, COMMON_INTEGER, COMMON_NUMBER, COMMON_BOOLEAN, COMMON_NULL, COMMON_VALUE, COMMON_ARRAY, COMMON_OBJECT, COMMON_N };

struct schema_ref { const struct json *target; uint32_t rule, level; bool open; };
struct schema {
    const struct json *root;
    const char *prefix;
    bool strict;
    struct buf *out;
    struct err *e;
    struct arena mem;                 /* merged schemas */
    uint32_t n_rules, level, depth;   /* level: values entered; two schemas of one level are the same value */
    bool common[COMMON_N], failed;    /* failed: memory was short where no error could be returned */
    struct schema_ref refs[SCHEMA_REFS_MAX]; uint32_t n_refs;
    char path[SCHEMA_PATH_MAX]; size_t n_path;
};

int schema_fail(struct schema *s, int code, const char *key /* NULL: the place itself */, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void schema_use(struct schema *s, struct buf *b, enum schema_common c); /* appends its name, and its rule to s->out if need be */
const char *schema_format_rule(const char *format);                    /* a GBNF expression of the text between the quotes; NULL: unknown */

/* A value inside another one: a rule of its own, whose name is appended to b. */
int schema_inner(struct schema *s, const struct json *n, struct buf *b);
/* Down the path of messages; returns what s->n_path was. */
size_t schema_enter(struct schema *s, const char *a, const char *b /* or NULL */);
size_t schema_enter_n(struct schema *s, const char *a, size_t i);
int schema_counts(struct schema *s, const struct json *n, const char *min_key, const char *max_key, uint32_t *min, uint32_t *max); /* max SCHEMA_OPEN: none */
void schema_times(struct buf *b, uint32_t min, uint32_t max);          /* "{min,max}" */

/* Arrays and objects (schema_members.c). */
int schema_array(struct schema *s, const struct json *n, struct buf *b);
int schema_object(struct schema *s, const struct json *n, struct buf *b);
/* Numbers (schema_number.c), strings' patterns (schema_pattern.c): append an expression. */
int schema_number(struct schema *s, const struct json *n, bool integer, struct buf *b);
int schema_pattern(struct schema *s, const char *re, size_t n, uint32_t min, uint32_t max, struct buf *b);
#endif
