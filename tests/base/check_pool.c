/* Every worker runs every job once; barriers order what lies before and after them; sleeping workers wake up. */
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

struct job { pool *p; unsigned hits[64]; unsigned n_seen; unsigned rounds; unsigned long sum[2]; _Atomic unsigned errors; };

static void count(void *ctx, unsigned i, unsigned n)
{
    struct job *j = ctx;
    j->hits[i]++;
    if (i == 0)
        j->n_seen = n;
}

START_TEST(core)
{
    struct err e = {0};
    for (unsigned n = 1; n <= 8; n = n < 4 ? n + 1 : n * 2) {
        struct job j = {0};
        OK(pool_open(&j.p, n, &e));
        ck_assert_uint_eq(pool_workers(j.p), n);
        for (int k = 0; k < 2000; k++)
            pool_run(j.p, count, &j);
        for (unsigned i = 0; i < 64; i++)
            ck_assert_uint_eq(j.hits[i], i < n ? 2000 : 0);
        ck_assert_uint_eq(j.n_seen, n);
        clock_sleep_ns(3 * NS_PER_MS); /* long past the spin: they sleep now */
        pool_run(j.p, count, &j);
        ck_assert_uint_eq(j.hits[n - 1], 2001);
        pool_close(j.p);
    }
}
END_TEST

/* Plain variables written before a barrier are read after it by all: wrong order shows as a count, and to the thread sanitizer. */
static void rounds(void *ctx, unsigned i, unsigned n)
{
    struct job *j = ctx;
    for (unsigned r = 0; r < j->rounds; r++) {
        j->hits[i] = r + 1;
        if (i == r % n && r % 64 == 0)
            clock_sleep_ns(100 * NS_PER_US); /* a straggler puts the others to sleep */
        pool_barrier(j->p, i);
        for (unsigned k = 0; k < n; k++)
            if (j->hits[k] != r + 1)
                atomic_fetch_add(&j->errors, 1);
        pool_barrier(j->p, i);
    }
}

START_TEST(barriers)
{
    struct err e = {0};
    for (unsigned n = 1; n <= 5; n++) {
        struct job j = {.rounds = 1000};
        OK(pool_open(&j.p, n, &e));
        pool_run(j.p, rounds, &j);
        pool_run(j.p, rounds, &j);
        ck_assert_uint_eq(atomic_load(&j.errors), 0);
        pool_close(j.p);
    }
}
END_TEST

START_TEST(errors)
{
    struct err e = {0};
    pool *p;
    FAILS(ERR_INVALID, "1 to 256, found 0", pool_open(&p, 0, &e));
    FAILS(ERR_INVALID, "found 257", pool_open(&p, 257, &e));
    ck_assert_ptr_null(p);
    pool_close(NULL);
    if (!alloc_fail_works()) {
        puts("SKIP pool: allocations are not made to fail under a sanitizer");
        return;
    }
    alloc_fail_at(0);
    FAILS(ERR_NOMEM, "pool of 2", pool_open(&p, 2, &e));
    ck_assert(alloc_fail_end());
}
END_TEST

SUITE("base", "pool", core, barriers, errors)
