#include "offload/reader.h"

#include <stdlib.h>

/* Reads in flight: what keeps a drive of today busy is some MiB. Threads of a ring only pack what came; without one each waits for its
 * own read. docs/measured.md has both. */
enum { RING_THREADS = 2, RING_DEPTH = 4, PREAD_THREADS = 3 };

struct thread { off_reader *r; off_queue *q; pthread_t id; };
struct off_reader {
    struct off_reader_client clients[OFF_READER_CLIENTS];
    unsigned n_clients, n_queues, n_threads;
    struct thread threads[OFF_READER_THREADS];
    pthread_mutex_t lock;         /* guards the three below */
    pthread_cond_t wake;
    uint64_t calls, wakeups;      /* calls of wake */
    bool stop;
};

static struct off_reader_config in_force(const struct off_source *s, const struct off_reader_config *cfg)
{
    struct off_reader_config c = cfg ? *cfg : (struct off_reader_config){0};
    bool ring = s->io != OFF_IO_THREADS;
    c.threads = c.threads ? c.threads : ring ? RING_THREADS : PREAD_THREADS;
    c.threads = c.threads < OFF_READER_THREADS ? c.threads : OFF_READER_THREADS;
    c.depth = !ring ? 1 : c.depth ? c.depth : RING_DEPTH;
    return c;
}

uint64_t off_reader_staging(const struct off_source *s, const struct off_record *records, uint32_t n_records, const struct off_reader_config *cfg)
{
    struct off_reader_config c = in_force(s, cfg);
    return (uint64_t)c.threads * c.depth * off_stage_most(s, records, n_records);
}

int off_reader_open(off_reader **out, struct off_source *source, const struct off_record *records, uint32_t n_records, const struct off_reader_config *cfg,
                    struct err *e)
{
    *out = NULL;
    off_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "readers");
    struct off_reader_config c = in_force(source, cfg);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    size_t stage = off_stage_most(source, records, n_records);
    while (r->n_queues < c.threads) {
        struct thread *t = &r->threads[r->n_queues];
        int rc = off_queue_open(&t->q, source, c.depth, stage, e);
        if (rc) {
            off_reader_close(r);
            return rc;
        }
        t->r = r;
        r->n_queues++;
    }
    *out = r;
    return ERR_OK;
}

void off_reader_add(off_reader *r, const struct off_reader_client *c)
{
    r->clients[r->n_clients++] = *c;
}

/* Whoever comes first has a unit: it is on its way. */
static bool put_next(off_reader *r, off_queue *q)
{
    struct off_unit u;
    for (unsigned i = 0; i < r->n_clients; i++)
        if (r->clients[i].next(r->clients[i].ctx, &u)) {
            u.client = (uint8_t)i;
            off_queue_put(q, &u);
            return true;
        }
    return false;
}

/* Sleeps until somebody woke the readers after call number `seen`. false: the end. */
static bool sleep_until(off_reader *r, uint64_t *seen, bool wait)
{
    pthread_mutex_lock(&r->lock);
    while (wait && !r->stop && *seen == r->calls)
        pthread_cond_wait(&r->wake, &r->lock);
    *seen = r->calls;
    r->wakeups += wait;
    bool on = !r->stop;
    pthread_mutex_unlock(&r->lock);
    return on;
}

static void *work(void *arg)
{
    struct thread *t = arg;
    off_reader *r = t->r;
    uint64_t seen = 0;
    bool idle = false;
    while (sleep_until(r, &seen, idle)) {
        struct off_unit u;
        struct err e;
        while (off_queue_room(t->q) && put_next(r, t->q))
            ;
        idle = off_queue_empty(t->q);
        if (idle)
            continue;
        int rc = off_queue_take(t->q, &u, &e);
        r->clients[u.client].done(r->clients[u.client].ctx, &u, rc, &e);
    }
    while (!off_queue_empty(t->q)) {
        struct off_unit u;
        struct err e;
        int rc = off_queue_take(t->q, &u, &e);
        r->clients[u.client].done(r->clients[u.client].ctx, &u, rc, &e);
    }
    return NULL;
}

int off_reader_start(off_reader *r, struct err *e)
{
    while (r->n_threads < r->n_queues) {
        struct thread *t = &r->threads[r->n_threads];
        if (pthread_create(&t->id, NULL, work, t) != 0)
            return err_set(e, ERR_NOMEM, "%u reader threads", r->n_queues);
        r->n_threads++;
    }
    return ERR_OK;
}

void off_reader_wake(off_reader *r)
{
    pthread_mutex_lock(&r->lock);
    r->calls++;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

void off_reader_close(off_reader *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    for (unsigned i = 0; i < r->n_threads; i++)
        pthread_join(r->threads[i].id, NULL);
    for (unsigned i = 0; i < r->n_queues; i++)
        off_queue_close(r->threads[i].q);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    free(r);
}

const char *off_reader_kind(const off_reader *r) { return off_queue_kind(r->threads[0].q); }
unsigned off_reader_threads(const off_reader *r) { return r->n_threads; }

uint64_t off_reader_wakeups(off_reader *r)
{
    pthread_mutex_lock(&r->lock);
    uint64_t n = r->wakeups;
    pthread_mutex_unlock(&r->lock);
    return n;
}
