/* base/arena.h - memory that dies together: many small objects of one request, file or plan.
 *
 * Owns:      chunks from malloc, freed at once by arena_free.
 * Invariant: total bytes <= bytes_max; a pointer stays valid until arena_free or arena_reset.
 * Threads:   one owner at a time. */
#ifndef SLUICE_BASE_ARENA_H
#define SLUICE_BASE_ARENA_H
#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;
struct arena {
    struct arena_chunk *head; /* newest first */
    size_t used, bytes_max;   /* bytes handed out so far, and their ceiling */
    bool full;                /* something was refused for that ceiling, not for want of memory */
};

void arena_init(struct arena *a, size_t bytes_max);
void arena_free(struct arena *a);  /* back to the state after arena_init; fine on a zeroed struct */
void arena_reset(struct arena *a); /* forgets all objects, keeps one chunk for reuse */

/* 16-byte aligned, zeroed. NULL: malloc failed or bytes_max would be passed. n == 0 gives a valid pointer. */
void *arena_alloc(struct arena *a, size_t n);
void *arena_array(struct arena *a, size_t n, size_t size);          /* checked n * size */
char *arena_strdup(struct arena *a, const char *s, size_t n);       /* n bytes and a NUL */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define ARENA_NEW(a, type) ((type *)arena_alloc((a), sizeof(type)))
#define ARENA_ARRAY(a, type, n) ((type *)arena_array((a), (n), sizeof(type)))
#endif
