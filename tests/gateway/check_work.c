/* The worker threads: every job once, a full ring refuses, close runs what is queued. */
#include <stdatomic.h>

#include "base/clock.h"
#include "gateway/work.h"
#include "tests/support/suite.h"

static atomic_int ran, gate;

static atomic_int unclean;

static void count(void *ctx, struct arena *mem)
{
    mem->bytes_max = 1u << 20;
    if (mem->used || mem->full) /* of the job before */
        atomic_fetch_add(&unclean, 1);
    atomic_fetch_add((atomic_int *)ctx, 1);
    arena_alloc(mem, atomic_load((atomic_int *)ctx) % 100 ? 100 : 200000);
}

static void wait_at_gate(void *ctx, struct arena *mem)
{
    (void)ctx;
    (void)mem;
    while (!atomic_load(&gate))
        clock_sleep_ns(NS_PER_MS);
}

START_TEST(core)
{
    struct err e;
    gw_work *w;
    OK(gw_work_open(&w, 3, 64, &e));
    for (int i = 0; i < 5000;) {
        if (!gw_work_put(w, count, &ran, i % 3 == 0, &e))
            i++;
        else
            ck_assert_int_eq(e.code, ERR_AGAIN);
        if (i % 7 == 0)
            gw_work_wake(w);
    }
    gw_work_close(w);
    ck_assert_int_eq(atomic_load(&ran), 5000);
    ck_assert_int_eq(atomic_load(&unclean), 0);
    gw_work_close(NULL);
}
END_TEST

START_TEST(limits)
{
    struct err e;
    gw_work *w;
    OK(gw_work_open(&w, 1, 4, &e));
    OK(gw_work_put(w, wait_at_gate, NULL, true, &e));
    gw_work_wake(w);
    for (int i = 0; i < 60000 && gw_work_waiting(w); i++)
        clock_sleep_ns(NS_PER_MS);
    for (int i = 0; i < 4; i++)
        OK(gw_work_put(w, count, &ran, false, &e));
    FAILS(ERR_AGAIN, "4 requests wait", gw_work_put(w, count, &ran, false, &e));
    ck_assert_uint_eq(gw_work_waiting(w), 4);
    atomic_store(&gate, 1);
    gw_work_stop(w);
    ck_assert_int_eq(atomic_load(&ran), 4);
    FAILS(ERR_CLOSED, "stopping", gw_work_put(w, count, &ran, false, &e));
    gw_work_close(w);
}
END_TEST

SUITE("gateway", "work", core, limits)
