/* The resident policy: every record is read at open into one arena, and a lease is a counter.
 *
 * A record is  absent -> resident (off_weights_open) -> leased (off_lease, count 1) -> resident (off_release, count 0).
 * Under AddressSanitizer the bytes of a record that nobody leases are poisoned, so that a kernel that kept a pointer too long
 * is caught although the resident policy would let it get away with it. */
#include "offload/weights.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "offload/ram.h"
#include "offload/weights_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#define POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISON 1
#endif
#endif
#ifdef POISON
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

struct off_weights {
    const struct off_record *records; /* [n_records] borrowed */
    uint32_t n_records;
    struct krn_weight *weights;       /* borrowed; data is ours */
    uint8_t *slots;                   /* one anonymous mapping of slot_bytes */
    uint64_t slot_bytes;
    uint64_t *slot_at;                /* [n_records] */
    uint32_t *leases;                 /* [n_records] */
    struct off_weights_stats stats;
};

/* Lays the records out and holds them against their weights and files. */
static int check(struct off_weights *w, const off_catalog *c, struct off_record *records, uint32_t n_weights, uint64_t *file_bytes, struct err *e)
{
    bool *taken = calloc((size_t)n_weights + 1, sizeof *taken);
    int rc = taken ? ERR_OK : err_set(e, ERR_NOMEM, "%u weights", n_weights);
    *file_bytes = 0;
    for (uint32_t r = 0; rc == ERR_OK && r < w->n_records; r++) {
        if ((rc = off_record_layout(&records[r], e)) != ERR_OK)
            break;
        w->slot_at[r] = w->slot_bytes;
        *file_bytes += records[r].file_bytes;
        if (__builtin_add_overflow(w->slot_bytes, records[r].slot_bytes, &w->slot_bytes) || w->slot_bytes > SIZE_MAX / 2)
            rc = err_set(e, ERR_BUDGET, "%s: expected fewer than 2^63 bytes of weights in all", records[r].name);
        for (uint32_t k = 0; rc == ERR_OK && k < records[r].n_parts; k++) {
            const struct off_part *p = &records[r].parts[k];
            const struct krn_weight *x = p->weight < n_weights ? &w->weights[p->weight] : NULL;
            if (!x || taken[p->weight])
                rc = err_set(e, ERR_INVALID, "tensor \"%s\": expected a weight of its own below %u, found number %u", p->name, n_weights, p->weight);
            else if (x->type != p->type || x->layout != p->layout || x->rows != p->rows || x->cols != p->cols)
                rc = err_set(e, ERR_INVALID, "tensor \"%s\": expected weight %u to be %s [%" PRIu64 ", %" PRIu64 "], found %s [%u, %u]", p->name, p->weight,
                             krn_types[p->type].name, p->rows, p->cols, krn_types[x->type].name, x->rows, x->cols);
            else
                rc = off_part_check(p, c, e);
            if (rc == ERR_OK)
                taken[p->weight] = true;
        }
    }
    free(taken);
    return rc;
}

static int map_slots(struct off_weights *w, struct err *e)
{
    if (w->slot_bytes == 0)
        return ERR_OK;
    void *p = mmap(NULL, (size_t)w->slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "weights: %" PRIu64 " bytes of memory: %s", w->slot_bytes, strerror(errno));
    w->slots = p;
    madvise(p, (size_t)w->slot_bytes, MADV_HUGEPAGE); /* a wish: decode walks all of it once a token */
    return ERR_OK;
}

/* The page cache would push our own pages, or be pushed out unused, when both copies do not fit. */
static bool past_cache(const struct off_weights_config *cfg, uint64_t slot_bytes, uint64_t file_bytes)
{
    if (cfg->read != OFF_READ_AUTO)
        return cfg->read == OFF_READ_DIRECT;
    return slot_bytes + file_bytes > off_ram_limit("").bytes;
}

int off_weights_open(off_weights **out, const off_catalog *c, struct off_record *records, uint32_t n_records,
                     struct krn_weight *weights, uint32_t n_weights, const struct off_weights_config *cfg, struct err *e)
{
    uint64_t file_bytes;
    int rc;
    *out = NULL;
    for (uint32_t i = 0; i < n_weights; i++)
        weights[i].data = NULL;
    struct off_weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "weights");
    w->records = records;
    w->n_records = n_records;
    w->weights = weights;
    w->slot_at = calloc((size_t)n_records + 1, sizeof *w->slot_at);
    w->leases = calloc((size_t)n_records + 1, sizeof *w->leases);
    if (!w->slot_at || !w->leases) {
        rc = err_set(e, ERR_NOMEM, "%u records", n_records);
        goto out;
    }
    if ((rc = check(w, c, records, n_weights, &file_bytes, e)) != ERR_OK)
        goto out;
    if (w->slot_bytes > cfg->ram_max) {
        rc = err_set(e, ERR_BUDGET, "weights: expected to fit --ram %" PRIu64 " bytes, found a need of %" PRIu64 ": %" PRIu64 " bytes are missing", cfg->ram_max,
                     w->slot_bytes, w->slot_bytes - cfg->ram_max);
        goto out;
    }
    if ((rc = map_slots(w, e)) != ERR_OK)
        goto out;
    rc = off_load(c, records, n_records, w->slots, w->slot_at, cfg, past_cache(cfg, w->slot_bytes, file_bytes), &w->stats.file_bytes_read, e);
    if (rc != ERR_OK)
        goto out;
    if (w->slot_bytes)
        ASAN_POISON_MEMORY_REGION(w->slots, (size_t)w->slot_bytes);
    w->stats.slot_bytes = w->stats.resident_bytes = w->slot_bytes;
    *out = w;
    w = NULL;
out:
    off_weights_close(w);
    return rc;
}

void off_weights_close(off_weights *w)
{
    if (!w)
        return;
    for (uint32_t r = 0; w->leases && r < w->n_records; r++)
        assert(w->leases[r] == 0); /* somebody still computes with these bytes */
    if (w->slots) {
        ASAN_UNPOISON_MEMORY_REGION(w->slots, (size_t)w->slot_bytes);
        munmap(w->slots, (size_t)w->slot_bytes);
    }
    free(w->slot_at);
    free(w->leases);
    free(w);
}

int off_lease(off_weights *w, uint32_t record, struct err *e)
{
    (void)e; /* the resident policy has every byte */
    assert(record < w->n_records);
    w->stats.leases++;
    if (w->leases[record]++ > 0)
        return ERR_OK;
    const struct off_record *r = &w->records[record];
    for (uint32_t k = 0; k < r->n_parts; k++) {
        const struct off_part *p = &r->parts[k];
        uint8_t *data = w->slots + w->slot_at[record] + p->slot_offset;
        ASAN_UNPOISON_MEMORY_REGION(data, krn_slot_bytes(p->type, p->layout, p->rows, p->cols));
        w->weights[p->weight].data = data;
    }
    return ERR_OK;
}

void off_release(off_weights *w, uint32_t record)
{
    assert(record < w->n_records && w->leases[record] > 0);
    if (--w->leases[record] > 0)
        return;
    const struct off_record *r = &w->records[record];
    for (uint32_t k = 0; k < r->n_parts; k++)
        w->weights[r->parts[k].weight].data = NULL;
    if (r->slot_bytes)
        ASAN_POISON_MEMORY_REGION(w->slots + w->slot_at[record], (size_t)r->slot_bytes);
}

void off_weights_stats(const off_weights *w, struct off_weights_stats *s) { *s = w->stats; }
