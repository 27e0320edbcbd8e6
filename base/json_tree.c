/* The tree: built from the reader's events with explicit stacks; entries of open arrays and objects wait in one temporary
 * array and move into the arena when their bracket closes. Arrays of entries have a power of two of room (room_for), so that
 * json_set and json_push know when they must grow without a field of its own. Objects beyond JSON_SMALL entries carry a hash
 * index, twice as large as their room. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json_internal.h"

struct index {
    uint64_t seed;
    size_t mask;
    uint64_t slots[]; /* upper half of the hash << 32 | entry + 1; 0: empty */
};

static size_t room_for(size_t n)
{
    size_t room = n ? 4 : 0;
    while (room < n)
        room *= 2;
    return room;
}

static void index_put(struct index *x, const struct json_member *m, size_t i)
{
    uint64_t h = hash_bytes(m->key, m->key_len, x->seed);
    size_t at = (size_t)h & x->mask;
    while (x->slots[at])
        at = (at + 1) & x->mask;
    x->slots[at] = (h & 0xFFFFFFFF00000000ull) | (uint64_t)(i + 1);
}

/* (Re)builds the index of an object beyond JSON_SMALL entries, for its present room. */
static bool index_build(struct arena *a, struct json *o)
{
    size_t size = 2 * room_for(o->n);
    if (o->n >= UINT32_MAX)
        return false;
    struct index *x = arena_alloc(a, sizeof *x + size * sizeof x->slots[0]);
    if (!x)
        return false;
    x->mask = size - 1;
    if (!hash_random(&x->seed, sizeof x->seed))
        x->seed = (uint64_t)(uintptr_t)x;
    for (size_t i = 0; i < o->n; i++)
        index_put(x, &o->members[i], i);
    o->index = x;
    return true;
}

static struct json_member *find(const struct json *o, const char *key, size_t n)
{
    const struct index *x = o->index;
    if (!x) {
        for (size_t i = 0; i < o->n; i++)
            if (o->members[i].key_len == n && !memcmp(o->members[i].key, key, n))
                return &o->members[i];
        return NULL;
    }
    uint64_t h = hash_bytes(key, n, x->seed);
    for (size_t at = (size_t)h & x->mask; x->slots[at]; at = (at + 1) & x->mask) {
        if ((x->slots[at] ^ h) >> 32)
            continue;
        struct json_member *m = &o->members[(uint32_t)x->slots[at] - 1];
        if (m->key_len == n && !memcmp(m->key, key, n))
            return m;
    }
    return NULL;
}

/* ---- parsing ---------------------------------------------------------------------------------------------- */

struct open_node { struct json *node; size_t base, slot; }; /* its entries start at base of tmp; the next value goes to slot */
struct builder {
    struct arena *a;
    json_reader *r;
    bool allow_duplicates;
    struct json_keys keys;
    struct open_node *stack;
    size_t depth, stack_cap;
    struct json_member *tmp;
    size_t n, cap;
    struct json *root;
};

static bool tmp_room(struct builder *b)
{
    if (b->n < b->cap)
        return true;
    size_t cap = b->cap ? 2 * b->cap : 32; /* below a kilobyte: what malloc has at hand */
    void *p = realloc(b->tmp, cap * sizeof *b->tmp);
    if (!p)
        return false;
    b->tmp = p;
    b->cap = cap;
    return true;
}

/* Hands a finished or just opened value to whatever it belongs into. */
static bool attach(struct builder *b, struct json *v)
{
    if (!b->depth) {
        b->root = v;
        return true;
    }
    struct open_node *o = &b->stack[b->depth - 1];
    if (o->node->type == JSON_ARRAY) {
        if (!tmp_room(b))
            return false;
        o->slot = b->n;
        b->tmp[b->n++] = (struct json_member){0};
    }
    b->tmp[o->slot].value = v;
    return true;
}

static bool open_value(struct builder *b, enum json_type t)
{
    struct json *v = json_new(b->a, t);
    if (!v || !attach(b, v))
        return false;
    if (b->depth == b->stack_cap) {
        size_t cap = b->stack_cap ? 2 * b->stack_cap : 16;
        void *p = realloc(b->stack, cap * sizeof *b->stack);
        if (!p)
            return false;
        b->stack = p;
        b->stack_cap = cap;
    }
    b->stack[b->depth++] = (struct open_node){.node = v, .base = b->n};
    return t == JSON_ARRAY || json_keys_enter(&b->keys);
}

static bool close_value(struct builder *b)
{
    struct open_node *o = &b->stack[--b->depth];
    struct json *v = o->node;
    v->n = b->n - o->base;
    b->n = o->base;
    if (v->type == JSON_OBJECT)
        json_keys_leave(&b->keys);
    if (!v->n)
        return true;
    const struct json_member *from = b->tmp + o->base;
    if (v->type == JSON_ARRAY) {
        if (!(v->items = ARENA_ARRAY(b->a, struct json *, room_for(v->n))))
            return false;
        for (size_t i = 0; i < v->n; i++)
            v->items[i] = from[i].value;
        return true;
    }
    if (!(v->members = ARENA_ARRAY(b->a, struct json_member, room_for(v->n))))
        return false;
    memcpy(v->members, from, v->n * sizeof *from);
    return v->n <= JSON_SMALL || index_build(b->a, v);
}

/* 0, or an error code with *e. */
static int add_key(struct builder *b, const char *s, size_t n, struct err *e)
{
    struct open_node *o = &b->stack[b->depth - 1];
    const char *k = arena_strdup(b->a, s, n);
    int64_t at = k && tmp_room(b) ? json_keys_add(&b->keys, k, n) : -2;
    if (at == -2)
        return -2;
    if (at >= 0 && !b->allow_duplicates)
        return json_reader_fail(b->r, e, ERR_FORMAT, "expected each key once, found again", s, n);
    o->slot = at >= 0 ? o->base + (size_t)at : b->n;
    if (at < 0)
        b->tmp[b->n++] = (struct json_member){.key = k, .key_len = n};
    return 0;
}

static struct json *scalar(struct arena *a, int ev, const char *s, size_t n)
{
    struct json *v;
    switch (ev) {
    case JSON_EV_STRING: return json_new_str(a, s, n);
    case JSON_EV_NUMBER:
        if ((v = json_new_str(a, s, n)))
            v->type = JSON_NUMBER;
        return v;
    case JSON_EV_NULL: return json_new(a, JSON_NULL);
    default: return json_new_bool(a, ev == JSON_EV_TRUE);
    }
}

/* One event: 0 go on, -1 *e is filled, -2 no memory. */
static int take(struct builder *b, int ev, const char *s, size_t n, struct err *e)
{
    struct json *v;
    switch (ev) {
    case JSON_EV_OBJECT: return open_value(b, JSON_OBJECT) ? 0 : -2;
    case JSON_EV_ARRAY: return open_value(b, JSON_ARRAY) ? 0 : -2;
    case JSON_EV_OBJECT_END:
    case JSON_EV_ARRAY_END: return close_value(b) ? 0 : -2;
    case JSON_EV_KEY: return add_key(b, s, n, e);
    default: return (v = scalar(b->a, ev, s, n)) && attach(b, v) ? 0 : -2;
    }
}

int json_parse(struct json **out, const char *p, size_t n, const struct json_limits *lim, struct arena *a, struct err *e)
{
    struct builder b = {.a = a, .allow_duplicates = lim->allow_duplicates};
    const char *s = NULL;
    size_t len = 0;
    *out = NULL;
    int ev, got = 0, rc = json_reader_open(&b.r, p, n, lim, e);
    if (rc)
        return rc;
    while (got == 0 && (ev = json_next(b.r, &s, &len, e)) != JSON_EV_END)
        got = ev < 0 ? -1 : take(&b, ev, s, len, e);
    if (got == -2)
        rc = err_set(e, ERR_NOMEM, "JSON tree: no memory (%zu of at most %zu bytes in use)", a->used, a->bytes_max);
    else if (got == -1)
        rc = json_reader_code(b.r);
    else
        *out = b.root;
    json_keys_free(&b.keys);
    free(b.stack);
    free(b.tmp);
    json_reader_close(b.r);
    return rc;
}

static int read_whole(const char *path, size_t bytes_max, char **text, size_t *n, struct err *e)
{
    struct stat st;
    int rc = ERR_OK, fd = open(path, O_RDONLY | O_CLOEXEC);
    *text = NULL;
    if (fd < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        rc = err_set(e, ERR_IO, "%s: expected a regular file", path);
    else if (bytes_max && (uint64_t)st.st_size > bytes_max)
        rc = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes, found %lld", path, bytes_max, (long long)st.st_size);
    else if (!(*text = malloc((size_t)st.st_size + 1)))
        rc = err_set(e, ERR_NOMEM, "%s: %lld bytes", path, (long long)st.st_size);
    *n = 0;
    while (!rc && *n < (size_t)st.st_size) {
        ssize_t got = read(fd, *text + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        if (got <= 0)
            break;
        *n += (size_t)got;
    }
    close(fd);
    return rc;
}

int json_parse_file(struct json **out, const char *path, size_t bytes_max, struct arena *a, struct err *e)
{
    struct json_limits lim = json_strict;
    char *text;
    size_t n = 0;
    *out = NULL;
    lim.allow_nul = true;
    int rc = read_whole(path, bytes_max, &text, &n, e);
    if (!rc && (rc = json_parse(out, text, n, &lim, a, e)))
        err_prefix(e, rc, "%s", path);
    free(text);
    return rc;
}

/* ---- reading a tree --------------------------------------------------------------------------------------- */

bool json_is(const struct json *v, enum json_type t) { return v && v->type == t; }

const struct json *json_get_n(const struct json *v, const char *key, size_t n)
{
    const struct json_member *m = json_is(v, JSON_OBJECT) ? find(v, key, n) : NULL;
    return m ? m->value : NULL;
}

const struct json *json_get(const struct json *v, const char *key) { return json_get_n(v, key, strlen(key)); }

const struct json *json_path(const struct json *v, const char *dotted)
{
    for (;;) {
        size_t n = strcspn(dotted, ".");
        v = json_get_n(v, dotted, n);
        if (!v || !dotted[n])
            return v;
        dotted += n + 1;
    }
}

/* The exact value of a number's text as sign and magnitude; false when it is no integer or beyond 64 bits. The digits, point
 * taken out, are d * 10^exp with zeros stripped at both ends. */
static bool exact(const struct json *v, bool *negative, uint64_t *mag)
{
    if (!json_is(v, JSON_NUMBER))
        return false;
    const char *s = v->s, *end = v->s + v->n;
    *negative = *s == '-';
    s += *negative;
    const char *e = s;
    while (e < end && *e != 'e' && *e != 'E')
        e++;
    const char *dot = memchr(s, '.', (size_t)(e - s));
    int64_t exp = dot ? -(e - dot - 1) : 0, given = 0;
    for (const char *p = e + 1; p < end; p++)
        if (*p >= '0' && *p <= '9' && given < INT64_MAX / 100)
            given = given * 10 + (*p - '0');
    if (e < end)
        exp += e[1] == '-' ? -given : given;
    while (e > s && (e[-1] == '0' || e[-1] == '.'))
        exp += *--e == '0';
    *mag = 0;
    for (; s < e; s++)
        if (*s != '.' && (__builtin_mul_overflow(*mag, 10, mag) || __builtin_add_overflow(*mag, (uint64_t)(*s - '0'), mag)))
            return false;
    if (*mag == 0)
        return true;
    if (exp < 0)
        return false;
    for (; exp > 0; exp--)
        if (__builtin_mul_overflow(*mag, 10, mag))
            return false;
    return true;
}

bool json_int(const struct json *v, int64_t *out)
{
    bool negative;
    uint64_t mag;
    if (!exact(v, &negative, &mag) || mag > (uint64_t)INT64_MAX + negative)
        return false;
    *out = (int64_t)(negative ? 0 - mag : mag);
    return true;
}

bool json_u64(const struct json *v, uint64_t *out)
{
    bool negative;
    uint64_t mag;
    if (!exact(v, &negative, &mag) || (negative && mag))
        return false;
    *out = mag;
    return true;
}

bool json_num(const struct json *v, double *out)
{
    if (!json_is(v, JSON_NUMBER))
        return false;
    double d = strtod(v->s, NULL);
    if (!isfinite(d))
        return false;
    *out = d;
    return true;
}

const char *json_str(const struct json *v) { return json_is(v, JSON_STRING) ? v->s : NULL; }

bool json_eq(const struct json *v, const char *s)
{
    return json_is(v, JSON_STRING) && v->n == strlen(s) && !memcmp(v->s, s, v->n);
}

/* ---- building --------------------------------------------------------------------------------------------- */

struct json *json_new(struct arena *a, enum json_type t)
{
    struct json *v = ARENA_NEW(a, struct json);
    if (!v)
        return NULL;
    v->type = t;
    if (t == JSON_STRING || t == JSON_NUMBER) {
        v->s = t == JSON_STRING ? "" : "0";
        v->n = strlen(v->s);
    }
    return v;
}

struct json *json_new_str(struct arena *a, const char *s, size_t n)
{
    struct json *v = ARENA_NEW(a, struct json);
    char *copy = v ? arena_strdup(a, s, n) : NULL;
    if (!copy)
        return NULL;
    *v = (struct json){.type = JSON_STRING, .s = copy, .n = n};
    return v;
}

struct json *json_new_int(struct arena *a, int64_t i)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)i);
    struct json *v = json_new_str(a, text, (size_t)n);
    if (v)
        v->type = JSON_NUMBER;
    return v;
}

struct json *json_new_bool(struct arena *a, bool b)
{
    struct json *v = json_new(a, JSON_BOOL);
    if (v)
        v->b = b;
    return v;
}

bool json_set(struct arena *a, struct json *o, const char *key, const struct json *v)
{
    size_t len = strlen(key);
    struct json_member *m = find(o, key, len);
    if (!v)
        return false;
    if (m) {
        m->value = (struct json *)v;
        return true;
    }
    const char *copy = arena_strdup(a, key, len);
    bool grow = o->n == room_for(o->n);
    if (!copy)
        return false;
    if (grow) {
        struct json_member *p = ARENA_ARRAY(a, struct json_member, room_for(o->n + 1));
        if (!p)
            return false;
        if (o->n)
            memcpy(p, o->members, o->n * sizeof *p);
        o->members = p;
    }
    o->members[o->n] = (struct json_member){.key = copy, .key_len = len, .value = (struct json *)v};
    o->n++;
    if (o->n <= JSON_SMALL)
        return true;
    if (o->index && !grow)
        index_put(o->index, &o->members[o->n - 1], o->n - 1);
    else if (!index_build(a, o)) {
        o->n--;
        return false;
    }
    return true;
}

bool json_push(struct arena *a, struct json *arr, const struct json *v)
{
    if (!v)
        return false;
    if (arr->n == room_for(arr->n)) {
        struct json **p = ARENA_ARRAY(a, struct json *, room_for(arr->n + 1));
        if (!p)
            return false;
        if (arr->n)
            memcpy(p, arr->items, arr->n * sizeof *p);
        arr->items = p;
    }
    arr->items[arr->n++] = (struct json *)v;
    return true;
}
