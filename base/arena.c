#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct arena_chunk {
    struct arena_chunk *next;
    size_t size, used;
    _Alignas(16) unsigned char data[];
};
enum { CHUNK = 16 * 1024 };

void arena_init(struct arena *a, size_t bytes_max)
{
    *a = (struct arena){.bytes_max = bytes_max};
}

void arena_free(struct arena *a)
{
    for (struct arena_chunk *c = a->head, *n; c; c = n) {
        n = c->next;
        free(c);
    }
    a->head = NULL;
    a->used = 0;
    a->full = false;
}

void arena_reset(struct arena *a)
{
    struct arena_chunk *keep = a->head;
    if (keep) {
        for (struct arena_chunk *c = keep->next, *n; c; c = n) {
            n = c->next;
            free(c);
        }
        keep->next = NULL;
        keep->used = 0;
    }
    a->full = false;
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX - 64)
        return NULL;
    n = (n + 15) & ~(size_t)15;
    if (n == 0)
        n = 16;
    if (n > a->bytes_max || a->used > a->bytes_max - n) {
        a->full = true;
        return NULL;
    }
    struct arena_chunk *c = a->head;
    if (!c || c->size - c->used < n) {
        size_t size = c && c->size < (size_t)1 << 20 ? c->size * 2 : c ? c->size : CHUNK;
        if (size < n)
            size = n;
        c = malloc(sizeof *c + size);
        if (!c)
            return NULL;
        *c = (struct arena_chunk){.next = a->head, .size = size};
        a->head = c;
    }
    void *p = c->data + c->used;
    c->used += n;
    a->used += n;
    return memset(p, 0, n);
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    if (size && n > SIZE_MAX / size)
        return NULL;
    return arena_alloc(a, n * size);
}

char *arena_strdup(struct arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return NULL;
    char *p = arena_alloc(a, (size_t)n + 1);
    if (p) {
        va_start(ap, fmt);
        vsnprintf(p, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return p;
}
