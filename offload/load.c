/* Filling slots: all workers take units in order, read the published bytes and convert them on the spot (offload/fill.h): what a
 * worker reads is still in its cache when it packs it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "offload/queue.h"
#include "offload/weights_internal.h"

enum { DEPTH = 2 };            /* reads of a worker that are on their way, where there is a ring */

struct unit { uint32_t record, part; uint64_t at, n; }; /* bytes of the part's stream */
struct load {
    struct off_source *source;
    const struct off_record *records;
    uint8_t *slots;
    const uint64_t *slot_at;
    const struct off_weights_config *cfg;
    struct unit *units; size_t n_units;
    off_queue **queues;           /* [workers] */
    size_t stage_bytes;
    uint64_t total;
    atomic_size_t next;
    atomic_uint_fast64_t done;
    atomic_bool stop;
    pthread_mutex_t lock;         /* guards the two below */
    size_t bad;                   /* lowest unit that failed */
    struct err err;
};

static const struct off_part *part_of(const struct load *l, const struct unit *u)
{
    uint32_t n;
    return off_record_pieces(&l->records[u->record], &n) + u->part;
}

static int plan_units(struct load *l, uint32_t n_records, const bool *keep, struct err *e)
{
    size_t cap = 0;
    for (uint32_t r = 0; r < n_records; r++) {
        uint32_t pieces;
        const struct off_part *first = off_record_pieces(&l->records[r], &pieces);
        for (uint32_t k = 0; keep[r] && k < pieces; k++) {
            const struct off_part *p = &first[k];
            size_t stage = off_stage_bytes(l->source, p);
            uint64_t all = off_part_bytes(p), step = off_unit_bytes(p);
            for (uint64_t at = 0; at < all; at += step) {
                if (l->n_units == cap) {
                    cap = cap ? 2 * cap : 256;
                    struct unit *u = realloc(l->units, cap * sizeof *u);
                    if (!u)
                        return err_set(e, ERR_NOMEM, "list of %zu reads", cap);
                    l->units = u;
                }
                uint64_t n = all - at < step ? all - at : step;
                l->units[l->n_units++] = (struct unit){r, k, at, n};
            }
            l->total += all;
            l->stage_bytes = stage > l->stage_bytes ? stage : l->stage_bytes;
        }
    }
    return ERR_OK;
}

/* The next unit is on its way. false: there is none. */
static bool put_next(struct load *l, off_queue *q)
{
    size_t i = atomic_load(&l->stop) ? l->n_units : atomic_fetch_add(&l->next, 1);
    if (i >= l->n_units)
        return false;
    const struct unit *u = &l->units[i];
    const struct off_part *p = part_of(l, u);
    off_queue_put(q, &(struct off_unit){.part = p, .at = u->at, .n = u->n, .slot = l->slots + l->slot_at[u->record] + p->slot_offset, .tag = &l->units[i]});
    return true;
}

static void failed(struct load *l, size_t i, const struct err *e)
{
    pthread_mutex_lock(&l->lock);
    if (i < l->bad) { /* units before i are all taken: the lowest one that fails wins, whoever is faster */
        l->bad = i;
        l->err = *e;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->stop, true);
}

static void work(void *ctx, unsigned worker, unsigned n_workers)
{
    struct load *l = ctx;
    off_queue *q = l->queues[worker];
    (void)n_workers;
    for (;;) {
        struct off_unit u;
        struct err e;
        while (off_queue_room(q) && put_next(l, q))
            ;
        if (off_queue_empty(q))
            break;
        int rc = off_queue_take(q, &u, &e);
        uint64_t done = atomic_fetch_add(&l->done, u.n) + u.n;
        if (rc != ERR_OK)
            failed(l, (size_t)((struct unit *)u.tag - l->units), &e);
        else if (worker == 0 && l->cfg->progress)
            l->cfg->progress(l->cfg->ctx, done, l->total);
    }
}

int off_load(struct off_source *source, const struct off_record *records, uint32_t n, const bool *keep, uint8_t *slots, const uint64_t *slot_at,
             const struct off_weights_config *cfg, struct err *e)
{
    unsigned workers = cfg->pool ? pool_workers(cfg->pool) : 1;
    struct load l = {.source = source, .records = records, .slots = slots, .slot_at = slot_at, .cfg = cfg, .bad = SIZE_MAX, .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = plan_units(&l, n, keep, e);
    if (rc == ERR_OK && !(l.queues = calloc(workers, sizeof *l.queues)))
        rc = err_set(e, ERR_NOMEM, "loading by %u threads", workers);
    for (unsigned i = 0; rc == ERR_OK && i < workers; i++)
        rc = off_queue_open(&l.queues[i], source, DEPTH, l.stage_bytes ? l.stage_bytes : 4096, e);
    if (rc == ERR_OK) {
        if (cfg->progress)
            cfg->progress(cfg->ctx, 0, l.total);
        if (cfg->pool)
            pool_run(cfg->pool, work, &l);
        else
            work(&l, 0, 1);
        if (l.bad != SIZE_MAX) {
            rc = l.err.code;
            if (e)
                *e = l.err;
        } else if (cfg->progress) {
            cfg->progress(cfg->ctx, l.total, l.total);
        }
    }
    for (unsigned i = 0; l.queues && i < workers; i++)
        off_queue_close(l.queues[i]);
    free(l.queues);
    free(l.units);
    pthread_mutex_destroy(&l.lock);
    return rc;
}
