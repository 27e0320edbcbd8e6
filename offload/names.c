#include "offload/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct off_names_chunk {
    struct off_names_chunk *next;
    size_t used, size;
    char data[];
};
enum { CHUNK = 1 << 16 };

void off_names_init(struct off_names *t)
{
    *t = (struct off_names){0};
    if (!hash_random(&t->seed, sizeof t->seed))
        t->seed = (uint64_t)(uintptr_t)t * 0x9E3779B97F4A7C15ull;
}

void off_names_free(struct off_names *t)
{
    for (struct off_names_chunk *c = t->chunks, *n; c; c = n) {
        n = c->next;
        free(c);
    }
    free(t->v);
    free(t->slots);
    *t = (struct off_names){0};
}

static uint32_t hash_of(const struct off_names *t, const char *s, size_t n)
{
    uint64_t h = hash_bytes(s, n, t->seed);
    return (uint32_t)(h ^ (h >> 32));
}

static char *intern(struct off_names *t, const char *s, size_t n)
{
    struct off_names_chunk *c = t->chunks;
    if (!c || c->size - c->used < n + 1) {
        size_t size = c && c->size < (size_t)1 << 20 ? 2 * c->size : c ? c->size : CHUNK;
        if (size < n + 1)
            size = n + 1;
        if (!(c = malloc(sizeof *c + size)))
            return NULL;
        *c = (struct off_names_chunk){.next = t->chunks, .size = size};
        t->chunks = c;
        t->bytes += sizeof *c + size;
    }
    char *p = c->data + c->used;
    memcpy(p, s, n);
    p[n] = 0;
    c->used += n + 1;
    return p;
}

static void put(struct off_names *t, uint32_t index)
{
    size_t at = t->v[index].hash & t->mask;
    while (t->slots[at])
        at = (at + 1) & t->mask;
    t->slots[at] = index + 1;
}

static bool grow(struct off_names *t)
{
    if (t->n == t->cap) {
        uint32_t cap = t->cap ? 2 * t->cap : 64;
        struct off_name *v = cap > t->cap ? realloc(t->v, cap * sizeof *v) : NULL;
        if (!v)
            return false;
        t->bytes += (cap - t->cap) * sizeof *v;
        t->v = v;
        t->cap = cap;
    }
    if (!t->slots || 2 * ((size_t)t->n + 1) > t->mask + 1) {
        size_t size = t->slots ? 2 * (t->mask + 1) : 128;
        uint32_t *slots = calloc(size, sizeof *slots);
        if (!slots)
            return false;
        t->bytes += (size - (t->slots ? t->mask + 1 : 0)) * sizeof *slots;
        free(t->slots);
        t->slots = slots;
        t->mask = size - 1;
        for (uint32_t i = 0; i < t->n; i++)
            put(t, i);
    }
    return true;
}

static uint32_t find(const struct off_names *t, const char *s, size_t n, uint32_t hash)
{
    for (size_t at = hash & t->mask; t->slots && t->slots[at]; at = (at + 1) & t->mask) {
        const struct off_name *x = &t->v[t->slots[at] - 1];
        if (x->hash == hash && x->n == n && !memcmp(x->s, s, n))
            return t->slots[at] - 1;
    }
    return OFF_NO_NAME;
}

uint32_t off_names_add(struct off_names *t, const char *s, size_t n, bool *fresh)
{
    uint32_t hash = hash_of(t, s, n), i = find(t, s, n, hash);
    *fresh = i == OFF_NO_NAME;
    if (!*fresh)
        return i;
    if (n >= UINT32_MAX || t->n >= UINT32_MAX / 2 || !grow(t))
        return OFF_NO_NAME;
    char *p = intern(t, s, n);
    if (!p)
        return OFF_NO_NAME;
    t->v[t->n] = (struct off_name){.s = p, .n = (uint32_t)n, .hash = hash};
    put(t, t->n);
    return t->n++;
}

uint32_t off_names_find(const struct off_names *t, const char *s, size_t n)
{
    return t->n ? find(t, s, n, hash_of(t, s, n)) : OFF_NO_NAME;
}

void off_names_filter(struct off_names *t, const bool *keep)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (keep[i])
            t->v[n++] = t->v[i];
    t->n = n;
    if (t->slots)
        memset(t->slots, 0, (t->mask + 1) * sizeof *t->slots);
    for (uint32_t i = 0; i < n; i++)
        put(t, i);
}

bool off_name_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    while (p < end) {
        unsigned c = *p++;
        if (c == 0)
            return false;
        if (c < 0x80)
            continue;
        unsigned more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1, min = more == 3 ? 0x10000 : more == 2 ? 0x800 : 0x80;
        if (c < 0xC2 || c > 0xF4 || (size_t)(end - p) < more)
            return false;
        c &= 0x3Fu >> more;
        for (unsigned i = 0; i < more; i++, p++) {
            if ((*p & 0xC0) != 0x80)
                return false;
            c = c << 6 | (*p & 0x3F);
        }
        if (c < min || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
            return false;
    }
    return true;
}
