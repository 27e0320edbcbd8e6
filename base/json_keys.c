/* Keys of open objects: a stack of keys, a stack of objects, and a hash table per large object. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/json_internal.h"

bool json_keys_enter(struct json_keys *k)
{
    if (k->depth == k->frames_cap) {
        size_t cap = k->frames_cap ? 2 * k->frames_cap : 16;
        void *p = realloc(k->frames, cap * sizeof *k->frames);
        if (!p)
            return false;
        k->frames = p;
        k->frames_cap = cap;
    }
    k->frames[k->depth++] = (struct json_keys_frame){.base = k->n};
    return true;
}

static void put(struct json_keys_frame *f, const struct json_key *keys, size_t i)
{
    size_t at = (size_t)keys[f->base + i].hash & f->mask;
    while (f->table[at])
        at = (at + 1) & f->mask;
    f->table[at] = (uint32_t)i + 1;
}

/* Makes room for a table of n keys at most half full. */
static bool rehash(struct json_keys *k, struct json_keys_frame *f, size_t n)
{
    size_t size = 4 * JSON_SMALL, count = k->n - f->base;
    while (size < 4 * n)
        size *= 2;
    uint32_t *t = calloc(size, sizeof *t);
    if (!t)
        return false;
    if (!k->seed && (!hash_random(&k->seed, sizeof k->seed) || !k->seed))
        k->seed = 0x9E3779B97F4A7C15ull ^ (uint64_t)(uintptr_t)t;
    if (!f->table)
        for (size_t i = 0; i < count; i++)
            k->v[f->base + i].hash = hash_bytes(k->v[f->base + i].s, k->v[f->base + i].n, k->seed);
    free(f->table);
    f->table = t;
    f->mask = size - 1;
    for (size_t i = 0; i < count; i++)
        put(f, k->v, i);
    return true;
}

static bool same(const struct json_key *a, const char *s, size_t n)
{
    return a->n == n && !memcmp(a->s, s, n);
}

int64_t json_keys_add(struct json_keys *k, const char *s, size_t n)
{
    struct json_keys_frame *f = &k->frames[k->depth - 1];
    size_t count = k->n - f->base;
    uint64_t hash = 0;
    if (count >= UINT32_MAX - 1)
        return -2;
    if (k->n == k->cap) {
        size_t cap = k->cap ? 2 * k->cap : 32;
        void *p = realloc(k->v, cap * sizeof *k->v);
        if (!p)
            return -2;
        k->v = p;
        k->cap = cap;
    }
    if (count >= JSON_SMALL && (!f->table || 2 * count > f->mask) && !rehash(k, f, count + 1))
        return -2;
    if (f->table) {
        hash = hash_bytes(s, n, k->seed);
        for (size_t at = (size_t)hash & f->mask; f->table[at]; at = (at + 1) & f->mask) {
            const struct json_key *o = &k->v[f->base + f->table[at] - 1];
            if (o->hash == hash && same(o, s, n))
                return (int64_t)f->table[at] - 1;
        }
    } else {
        for (size_t i = 0; i < count; i++)
            if (same(&k->v[f->base + i], s, n))
                return (int64_t)i;
    }
    k->v[k->n++] = (struct json_key){s, n, hash};
    if (f->table)
        put(f, k->v, count);
    return -1;
}

void json_keys_leave(struct json_keys *k)
{
    struct json_keys_frame *f = &k->frames[--k->depth];
    free(f->table);
    k->n = f->base;
}

void json_keys_free(struct json_keys *k)
{
    while (k->depth)
        json_keys_leave(k);
    free(k->frames);
    free(k->v);
    *k = (struct json_keys){0};
}
