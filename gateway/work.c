/* A ring under one lock. A small job takes some ten microseconds, less than waking a thread does: one awake thread works off a burst of
 * them, and another is woken only if many wait or those that are awake have a big one in hand. */
#include "gateway/work.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MEMORY_KEPT 65536
enum { JOBS_PER_THREAD = 8 }; /* more of them waiting for each awake thread are worth another's wake-up */
struct job { gw_work_fn f; void *ctx; bool big; };
struct gw_work {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct job *ring;
    size_t cap, head, n;
    unsigned awake, idle, called;  /* threads that come back soon; that sleep; calls that no sleeper has heard yet (it counts as awake) */
    atomic_bool fresh;             /* something was put since the last gw_work_wake */
    bool closing;
    pthread_t *threads;
    unsigned n_threads;
};

/* These two hold the lock. */
static void call_another(gw_work *w)
{
    if (!w->idle || w->n <= (size_t)w->awake * JOBS_PER_THREAD)
        return;
    w->idle--;
    w->awake++;
    w->called++;
    pthread_cond_signal(&w->wake);
}

static void sleep_until_called(gw_work *w)
{
    w->awake--;
    w->idle++;
    while (!w->called && !w->closing)
        pthread_cond_wait(&w->wake, &w->lock);
    if (w->called) {
        w->called--;
    } else {
        w->idle--;
        w->awake++;
    }
}

static void *worker(void *arg)
{
    gw_work *w = arg;
    struct arena mem = {0};
    pthread_setname_np(pthread_self(), "gw-work");
    pthread_mutex_lock(&w->lock);
    w->awake++;
    for (;;) {
        while (!w->n && !w->closing)
            sleep_until_called(w);
        if (!w->n)
            break;
        struct job j = w->ring[w->head];
        w->head = (w->head + 1) % w->cap;
        w->n--;
        if (j.big) {
            w->awake--;
            call_another(w);
        }
        pthread_mutex_unlock(&w->lock);
        j.f(j.ctx, &mem);
        if (mem.used > MEMORY_KEPT)
            arena_free(&mem);
        else
            arena_reset(&mem);
        pthread_mutex_lock(&w->lock);
        w->awake += j.big;
    }
    pthread_mutex_unlock(&w->lock);
    arena_free(&mem);
    return NULL;
}

int gw_work_open(gw_work **out, unsigned n_threads, size_t jobs_max, struct err *e)
{
    int rc = ERR_OK;
    gw_work *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_set(e, ERR_NOMEM, "worker threads");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    w->cap = jobs_max;
    if (!(w->ring = calloc(jobs_max, sizeof *w->ring)) || !(w->threads = calloc(n_threads, sizeof *w->threads))) {
        rc = err_set(e, ERR_NOMEM, "queue of %zu jobs for %u threads", jobs_max, n_threads);
        goto out;
    }
    for (; w->n_threads < n_threads; w->n_threads++)
        if (pthread_create(&w->threads[w->n_threads], NULL, worker, w)) {
            rc = err_set(e, ERR_IO, "cannot start worker thread %u of %u", w->n_threads + 1, n_threads);
            goto out;
        }
    *out = w;
    w = NULL;
out:
    gw_work_close(w);
    return rc;
}

void gw_work_stop(gw_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    w->n_threads = 0;
}

void gw_work_close(gw_work *w)
{
    if (!w)
        return;
    gw_work_stop(w);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w->threads);
    free(w->ring);
    free(w);
}

int gw_work_put(gw_work *w, gw_work_fn f, void *ctx, bool big, struct err *e)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&w->lock);
    if (w->closing) {
        rc = err_set(e, ERR_CLOSED, "the gateway is stopping");
    } else if (w->n == w->cap) {
        rc = err_set(e, ERR_AGAIN, "%zu requests wait to be prepared, the most allowed", w->n);
    } else {
        w->ring[(w->head + w->n++) % w->cap] = (struct job){f, ctx, big};
        atomic_store_explicit(&w->fresh, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void gw_work_wake(gw_work *w)
{
    if (!atomic_load_explicit(&w->fresh, memory_order_relaxed) || !atomic_exchange(&w->fresh, false))
        return;
    pthread_mutex_lock(&w->lock);
    call_another(w);
    pthread_mutex_unlock(&w->lock);
}

size_t gw_work_waiting(gw_work *w)
{
    pthread_mutex_lock(&w->lock);
    size_t n = w->n;
    pthread_mutex_unlock(&w->lock);
    return n;
}
