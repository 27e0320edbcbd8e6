/* Jobs are announced by a generation counter that workers watch; finished workers count down `left`; a barrier is an arrival
 * count and a phase. Whoever waits spins about 20 us on the word, then sleeps on it with a futex. The waker bumps the word
 * first and looks at `sleepers` second, the sleeper counts itself first and re-checks the word second (all sequentially
 * consistent), so a wake-up cannot be lost; the kernel re-checks the word once more. */
#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

enum { WORKERS_MAX = 256, SPIN_NS = 20000 };

struct word { _Alignas(64) _Atomic uint32_t value; _Atomic uint32_t sleepers; };
struct worker { pool *p; unsigned id; pthread_t thread; };
struct pool {
    unsigned n, started;
    bool stop;      /* written before a generation, read after it */
    pool_fn f;      /* likewise */
    void *ctx;
    struct word job;   /* generation of the current job */
    struct word left;  /* workers that still run it */
    struct word phase; /* of the barrier */
    _Alignas(64) _Atomic uint32_t arrived;
    struct worker worker[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void wake(struct word *w)
{
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Returns once the word differs from `old`. */
static void wait_change(struct word *w, uint32_t old)
{
    uint64_t end = 0;
    for (unsigned i = 0; atomic_load_explicit(&w->value, memory_order_acquire) == old; i++) {
        relax();
        if (i % 64)
            continue;
        uint64_t now = clock_now_ns();
        if (!end)
            end = now + SPIN_NS;
        else if (now >= end)
            break;
    }
    if (atomic_load_explicit(&w->value, memory_order_acquire) != old)
        return;
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == old)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

static void *work(void *arg)
{
    struct worker *me = arg;
    pool *p = me->p;
    for (uint32_t seen = 0;; seen++) {
        wait_change(&p->job, seen);
        if (p->stop)
            return NULL;
        p->f(p->ctx, me->id, p->n);
        if (atomic_fetch_sub(&p->left.value, 1) == 1)
            wake(&p->left);
    }
}

int pool_open(pool **out, unsigned n_workers, struct err *e)
{
    *out = NULL;
    if (n_workers < 1 || n_workers > WORKERS_MAX)
        return err_set(e, ERR_INVALID, "workers: expected 1 to %d, found %u", WORKERS_MAX, n_workers);
    size_t size = sizeof(pool) + n_workers * sizeof(struct worker);
    pool *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!p)
        return err_set(e, ERR_NOMEM, "pool of %u workers", n_workers);
    *p = (pool){.n = n_workers, .started = 1};
    for (unsigned i = 1; i < n_workers; i++) {
        p->worker[i] = (struct worker){.p = p, .id = i};
        int rc = pthread_create(&p->worker[i].thread, NULL, work, &p->worker[i]);
        if (rc) {
            pool_close(p);
            return err_set(e, ERR_NOMEM, "thread %u of %u: the system refused (%d)", i, n_workers, rc);
        }
        p->started++;
    }
    *out = p;
    return ERR_OK;
}

void pool_close(pool *p)
{
    if (!p)
        return;
    p->stop = true;
    atomic_fetch_add(&p->job.value, 1);
    wake(&p->job);
    for (unsigned i = 1; i < p->started; i++)
        pthread_join(p->worker[i].thread, NULL);
    free(p);
}

unsigned pool_workers(const pool *p) { return p->n; }

void pool_run(pool *p, pool_fn f, void *ctx)
{
    if (p->n > 1) {
        p->f = f;
        p->ctx = ctx;
        atomic_store(&p->left.value, p->n - 1);
        atomic_fetch_add(&p->job.value, 1);
        wake(&p->job);
    }
    f(ctx, 0, p->n);
    for (uint32_t left; p->n > 1 && (left = atomic_load(&p->left.value));)
        wait_change(&p->left, left);
}

void pool_barrier(pool *p, unsigned worker)
{
    (void)worker;
    if (p->n == 1)
        return;
    uint32_t phase = atomic_load(&p->phase.value);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == p->n) {
        atomic_store(&p->arrived, 0);
        atomic_fetch_add(&p->phase.value, 1);
        wake(&p->phase);
    } else {
        wait_change(&p->phase, phase);
    }
}
