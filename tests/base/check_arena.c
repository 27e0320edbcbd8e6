/* Alignment, zeroing, the ceiling, reuse after a reset, overflow of counts. */
#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

START_TEST(core)
{
    struct arena a;
    unsigned char *p[200];
    arena_init(&a, 1 << 20);
    for (size_t i = 0; i < 200; i++) {
        p[i] = arena_alloc(&a, i);
        ck_assert(p[i] && (uintptr_t)p[i] % 16 == 0);
        for (size_t k = 0; k < i; k++)
            if (p[i][k])
                ck_abort_msg("object %zu is not zeroed", i);
        memset(p[i], (int)i, i);
    }
    for (size_t i = 1; i < 200; i++)
        ck_assert(p[i][0] == i && p[i][i - 1] == i);
    ck_assert_str_eq(arena_strdup(&a, "hello world", 5), "hello");
    ck_assert_str_eq(arena_printf(&a, "%s=%d", "n", 7), "n=7");
    arena_reset(&a);
    unsigned char *q = arena_alloc(&a, 64);
    for (int k = 0; k < 64; k++)
        ck_assert(q[k] == 0); /* zeroed again although the chunk was used before */
    arena_free(&a);
    ck_assert(a.used == 0 && arena_alloc(&a, 100));
    arena_free(&a);
}
END_TEST

START_TEST(limits)
{
    struct arena a, zero = {0};
    arena_init(&a, 256);
    ck_assert(arena_alloc(&a, 240) && !arena_alloc(&a, 17) && arena_alloc(&a, 16) && !arena_alloc(&a, 1) && a.used == 256);
    arena_reset(&a);
    ck_assert(arena_alloc(&a, 256) && !arena_alloc(&a, SIZE_MAX) && !arena_array(&a, SIZE_MAX / 2, 3) && !arena_strdup(&a, "", SIZE_MAX));
    arena_free(&a);
    ck_assert(!arena_alloc(&zero, 1));
    arena_free(&zero);
    arena_reset(&zero);
}
END_TEST

START_TEST(errors)
{
    struct arena a;
    arena_init(&a, 1 << 20);
    if (!alloc_fail_works()) {
        puts("SKIP arena: allocations are not made to fail under a sanitizer");
        return;
    }
    alloc_fail_at(0);
    ck_assert(!arena_alloc(&a, 8) && alloc_fail_end() && a.used == 0);
    ck_assert(arena_alloc(&a, 8) != NULL);
    alloc_fail_at(0);
    ck_assert(!arena_printf(&a, "%*s", 100000, "x") && alloc_fail_end());
    arena_free(&a);
}
END_TEST

SUITE("base", "arena", core, limits, errors)
