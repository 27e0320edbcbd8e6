/* Filling slots: all workers take units in order, read the published bytes and convert them on the spot.
 *
 * A unit is some 2 MiB of one part, whole tiles where the part is tiled: what a worker reads is still in its cache when it packs
 * it. Plain parts are read straight into the slot. Reading past the page cache (O_DIRECT) needs aligned requests: the worker
 * reads the aligned span around a unit and skips its edges; whatever goes wrong there is done again through the cache, whose
 * errors are the ones reported. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/weights_internal.h"

enum { UNIT = 2 << 20 };

struct unit { uint32_t record, part; uint64_t at, n; }; /* bytes of the part's stream */
struct direct { int fd; size_t align; };
struct load {
    const off_catalog *c;
    const struct off_record *records;
    uint8_t *slots;
    const uint64_t *slot_at;
    const struct off_weights_config *cfg;
    struct unit *units; size_t n_units;
    struct direct *direct;        /* [files] fd -1: through the cache; NULL: all are */
    uint8_t **stage;              /* [workers] stage_bytes each */
    size_t stage_bytes;
    uint64_t total;
    atomic_size_t next;
    atomic_uint_fast64_t done, bytes_read;
    atomic_bool stop;
    pthread_mutex_t lock;         /* guards the two below */
    size_t bad;                   /* lowest unit that failed */
    struct err err;
};

static const struct off_part *part_of(const struct load *l, const struct unit *u) { return &l->records[u->record].parts[u->part]; }

/* Bytes a unit of this part should have: whole tiles for tiled ones, else any bytes. */
static uint64_t unit_bytes(const struct off_part *p)
{
    uint64_t tile = KRN_TILE_ROWS * krn_row_bytes(p->type, p->cols);
    if (p->layout != KRN_TILED)
        return UNIT;
    return tile >= UNIT ? tile : UNIT / tile * tile;
}

static int plan_units(struct load *l, uint32_t n_records, struct err *e)
{
    size_t cap = 0;
    l->stage_bytes = UNIT;
    for (uint32_t r = 0; r < n_records; r++)
        for (uint32_t k = 0; k < l->records[r].n_parts; k++) {
            const struct off_part *p = &l->records[r].parts[k];
            uint64_t all = off_part_bytes(p), step = unit_bytes(p);
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
                if (n > l->stage_bytes)
                    l->stage_bytes = (size_t)n;
            }
            l->total += all;
        }
    return ERR_OK;
}

/* The aligned span around a run, past the page cache. NULL: not this way. */
static uint8_t *read_direct(struct load *l, unsigned worker, uint32_t file, uint64_t offset, size_t n)
{
    const struct direct *d = &l->direct[file];
    if (d->fd < 0)
        return NULL;
    uint64_t begin = offset & ~(uint64_t)(d->align - 1);
    size_t head = (size_t)(offset - begin), span = (head + n + d->align - 1) & ~(d->align - 1);
    ssize_t r;
    do
        r = off_io_pread(d->fd, l->stage[worker], span, (off_t)begin);
    while (r < 0 && errno == EINTR);
    if (r > 0)
        atomic_fetch_add(&l->bytes_read, (uint64_t)r);
    return r >= 0 && (size_t)r >= head + n ? l->stage[worker] + head : NULL; /* short at the end of the file is normal */
}

/* n bytes of one file to dst, through the page cache. */
static int read_cached(struct load *l, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, struct err *e)
{
    const struct off_file *f = off_catalog_file(l->c, file);
    size_t got;
    int rc = off_io_read(f->fd, dst, n, offset, &got, e);
    atomic_fetch_add(&l->bytes_read, got);
    if (rc == ERR_OK && got < n)
        rc = err_set(e, ERR_IO, "expected %zu bytes at %" PRIu64 ", found the end of the file after %zu", n, offset, got);
    return rc == ERR_OK ? rc : err_prefix(e, rc, "%s: tensor \"%s\"", f->base, name);
}

/* A plain part: run by run into the slot. */
static int fill_plain(struct load *l, unsigned worker, const struct unit *u, uint8_t *dst, struct err *e)
{
    const struct off_part *p = part_of(l, u);
    int rc = ERR_OK;
    for (uint64_t k = 0, run; rc == ERR_OK && k < u->n; k += run) {
        uint32_t file;
        uint64_t offset;
        run = off_part_run(p, u->at + k, &file, &offset);
        if (run > u->n - k)
            run = u->n - k;
        const uint8_t *got = l->direct ? read_direct(l, worker, file, offset, (size_t)run) : NULL;
        if (got)
            memcpy(dst + k, got, (size_t)run);
        else
            rc = read_cached(l, p->name, file, offset, (size_t)run, dst + k, e);
    }
    return rc;
}

/* A tiled part: whole tiles side by side in the stage, then packed. Rows that lie apart in the file are gathered through the
 * cache, since the stage is taken. */
static int fill_tiled(struct load *l, unsigned worker, const struct unit *u, uint8_t *slot, struct err *e)
{
    const struct off_part *p = part_of(l, u);
    size_t row = krn_row_bytes(p->type, p->cols);
    uint32_t file;
    uint64_t offset, run = off_part_run(p, u->at, &file, &offset);
    const uint8_t *src = l->direct && run >= u->n ? read_direct(l, worker, file, offset, (size_t)u->n) : NULL;
    if (!src) {
        uint8_t *dst = l->stage[worker];
        int rc = ERR_OK;
        for (uint64_t k = 0; rc == ERR_OK && k < u->n; k += run) {
            run = off_part_run(p, u->at + k, &file, &offset);
            if (run > u->n - k)
                run = u->n - k;
            rc = read_cached(l, p->name, file, offset, (size_t)run, dst + k, e);
        }
        if (rc != ERR_OK)
            return rc;
        src = dst;
    }
    krn_slot_pack(p->type, p->rows, p->cols, u->at / row / KRN_TILE_ROWS, (u->n / row + KRN_TILE_ROWS - 1) / KRN_TILE_ROWS, src, row, slot);
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
        int rc = p->layout == KRN_TILED ? fill_tiled(l, worker, u, slot, &e) : fill_plain(l, worker, u, slot + u->at, &e);
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

static int open_direct(struct load *l, struct err *e)
{
    size_t n = off_catalog_files(l->c), align = 1;
    if (!(l->direct = calloc(n, sizeof *l->direct)))
        return err_set(e, ERR_NOMEM, "list of %zu files", n);
    for (size_t i = 0; i < n; i++) {
        const struct off_file *f = off_catalog_file(l->c, i);
        l->direct[i].fd = f->fd < 0 ? -1 : off_io_open_direct(f->path, f->fd, &l->direct[i].align);
        if (l->direct[i].fd >= 0 && l->direct[i].align > align)
            align = l->direct[i].align;
    }
    l->stage_bytes += 2 * align; /* the edges of an aligned span */
    return ERR_OK;
}

int off_load(const off_catalog *c, const struct off_record *records, uint32_t n, uint8_t *slots, const uint64_t *slot_at,
             const struct off_weights_config *cfg, bool direct, uint64_t *bytes_read, struct err *e)
{
    unsigned workers = cfg->pool ? pool_workers(cfg->pool) : 1;
    struct load l = {.c = c, .records = records, .slots = slots, .slot_at = slot_at, .cfg = cfg, .bad = SIZE_MAX, .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = plan_units(&l, n, e);
    if (rc == ERR_OK && direct)
        rc = open_direct(&l, e);
    if (rc == ERR_OK && !(l.stage = calloc(workers, sizeof *l.stage)))
        rc = err_set(e, ERR_NOMEM, "loading by %u threads", workers);
    l.stage_bytes = (l.stage_bytes + 4095) & ~(size_t)4095;
    for (unsigned i = 0; rc == ERR_OK && i < workers; i++)
        if (!(l.stage[i] = aligned_alloc(4096, l.stage_bytes)))
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
    *bytes_read = atomic_load(&l.bytes_read);
    for (unsigned i = 0; l.stage && i < workers; i++)
        free(l.stage[i]);
    for (size_t i = 0; l.direct && i < off_catalog_files(c); i++)
        if (l.direct[i].fd >= 0)
            close(l.direct[i].fd);
    free(l.stage);
    free(l.direct);
    free(l.units);
    pthread_mutex_destroy(&l.lock);
    return rc;
}
