/* Filling slots: all workers take units in order, read the published bytes and convert them on the spot (offload/fill.h): what a
 * worker reads is still in its cache when it packs it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "offload/fill.h"
#include "offload/weights_internal.h"

struct unit { uint32_t record, part; uint64_t at, n; }; /* bytes of the part's stream */
struct load {
    struct off_source *source;
    const struct off_record *records;
    uint8_t *slots;
    const uint64_t *slot_at;
    const struct off_weights_config *cfg;
    struct unit *units; size_t n_units;
    uint8_t **stage;              /* [workers] stage_bytes each */
    size_t stage_bytes;
    uint64_t total;
    atomic_size_t next;
    atomic_uint_fast64_t done;
    atomic_bool stop;
    pthread_mutex_t lock;         /* guards the two below */
    size_t bad;                   /* lowest unit that failed */
    struct err err;
};

static const struct off_part *part_of(const struct load *l, const struct unit *u) { return &l->records[u->record].parts[u->part]; }

static int plan_units(struct load *l, uint32_t n_records, const bool *keep, struct err *e)
{
    size_t cap = 0;
    for (uint32_t r = 0; r < n_records; r++)
        for (uint32_t k = 0; keep[r] && k < l->records[r].n_parts; k++) {
            const struct off_part *p = &l->records[r].parts[k];
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
    return ERR_OK;
}

static void work(void *ctx, unsigned worker, unsigned n_workers)
{
    struct load *l = ctx;
    struct err e;
    (void)n_workers;
    while (!atomic_load(&l->stop)) {
        size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_units)
            break;
        const struct unit *u = &l->units[i];
        const struct off_part *p = part_of(l, u);
        uint8_t *slot = l->slots + l->slot_at[u->record] + p->slot_offset;
        int rc = off_fill(l->source, p, u->at, u->n, slot, l->stage[worker], &e);
        uint64_t done = atomic_fetch_add(&l->done, u->n) + u->n;
        if (rc != ERR_OK) {
            pthread_mutex_lock(&l->lock);
            if (i < l->bad) { /* units before i are all taken: the lowest one that fails wins, whoever is faster */
                l->bad = i;
                l->err = e;
            }
            pthread_mutex_unlock(&l->lock);
            atomic_store(&l->stop, true);
        } else if (worker == 0 && l->cfg->progress) {
            l->cfg->progress(l->cfg->ctx, done, l->total);
        }
    }
}

int off_load(struct off_source *source, const struct off_record *records, uint32_t n, const bool *keep, uint8_t *slots, const uint64_t *slot_at,
             const struct off_weights_config *cfg, struct err *e)
{
    unsigned workers = cfg->pool ? pool_workers(cfg->pool) : 1;
    struct load l = {.source = source, .records = records, .slots = slots, .slot_at = slot_at, .cfg = cfg, .bad = SIZE_MAX, .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = plan_units(&l, n, keep, e);
    if (rc == ERR_OK && !(l.stage = calloc(workers, sizeof *l.stage)))
        rc = err_set(e, ERR_NOMEM, "loading by %u threads", workers);
    for (unsigned i = 0; rc == ERR_OK && i < workers; i++)
        if (!(l.stage[i] = aligned_alloc(4096, l.stage_bytes ? l.stage_bytes : 4096)))
            rc = err_set(e, ERR_NOMEM, "%u reading buffers of %zu bytes", workers, l.stage_bytes);
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
    for (unsigned i = 0; l.stage && i < workers; i++)
        free(l.stage[i]);
    free(l.stage);
    free(l.units);
    pthread_mutex_destroy(&l.lock);
    return rc;
}
