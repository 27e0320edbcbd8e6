/* Slots and leases. A record that stays is  absent -> resident (off_weights_open) -> leased (off_lease, count 1) -> resident
 * (off_release, count 0); one that passes is in the hands of offload/stream.c, whose entry the lease pins; rows of a table that is
 * looked into lie in a sparse slot of its own (rows.c) for as long as they are leased. Under AddressSanitizer the bytes of a record
 * that nobody leases are poisoned. */
#include "offload/weights.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "offload/experts.h"
#include "offload/poison.h"
#include "offload/ram.h"
#include "offload/stream.h"
#include "offload/weights_internal.h"

struct off_weights {
    const struct off_record *records; /* [n_records] borrowed */
    uint32_t n_records;
    struct off_record *editable;      /* the same, where images are set */
    struct krn_weight *weights;       /* borrowed; data is ours */
    uint8_t *slots;                   /* one anonymous mapping: what stays, then the experts' arena, then the ring */
    uint64_t slot_bytes, map_bytes;   /* slot_bytes: of all records */
    uint64_t *slot_at;                /* [n_records] of what stays */
    uint32_t *leases;                 /* [n_records] */
    struct off_placing place;
    struct off_source source, cached; /* cached: for rows */
    off_reader *readers;              /* NULL: everything stays */
    off_stream *stream;
    off_experts *experts;             /* NULL: they stay, or there are none */
    bool *cached_expert;              /* [n_records] it lies there */
    off_rows **rows;                  /* [n_records] NULL: not looked up, or stays */
    struct off_part *images; struct off_span *image_spans; /* [n_records] of a packed copy */
    bool *by_rows;                    /* [n_records] the lease at hand is of rows */
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

/* Where each kept record lies, and the ring behind them. */
static int map_slots(struct off_weights *w, struct err *e)
{
    uint64_t at = 0;
    for (uint32_t r = 0; r < w->n_records; r++)
        if (w->place.keep[r]) {
            w->slot_at[r] = at;
            at += w->records[r].slot_bytes;
        }
    w->map_bytes = at + w->place.experts.bytes + w->place.window_bytes;
    if (w->map_bytes == 0)
        return ERR_OK;
    void *p = mmap(NULL, (size_t)w->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "weights: %" PRIu64 " bytes of memory: %s", w->map_bytes, strerror(errno));
    w->slots = p;
    madvise(p, (size_t)w->map_bytes, MADV_HUGEPAGE); /* a wish: decode walks all of it once a token */
    return ERR_OK;
}

/* The page cache would push our own pages, or be pushed out unused, when both copies do not fit; and what streams is read to be
 * forgotten. */
static bool past_cache(const struct off_weights_config *cfg, uint64_t slot_bytes, uint64_t file_bytes)
{
    if (cfg->read != OFF_READ_AUTO)
        return cfg->read == OFF_READ_DIRECT;
    return slot_bytes > cfg->ram_max || slot_bytes + file_bytes > off_ram_limit("").bytes;
}

/* Everything stays, or the sweep says what does. */
static int place(struct off_weights *w, const struct off_weights_config *cfg, struct err *e)
{
    if (cfg->sweep && w->slot_bytes > cfg->ram_max)
        return off_place(&w->place, &w->source, w->records, w->n_records, cfg, e);
    if (w->slot_bytes > cfg->ram_max)
        return err_set(e, ERR_BUDGET, "weights: expected to fit --ram %" PRIu64 " bytes, found a need of %" PRIu64 ": %" PRIu64 " bytes are missing", cfg->ram_max,
                       w->slot_bytes, w->slot_bytes - cfg->ram_max);
    w->place = (struct off_placing){.keep = malloc((size_t)w->n_records + 1), .kept_bytes = w->slot_bytes};
    if (!w->place.keep)
        return err_set(e, ERR_NOMEM, "%u records", w->n_records);
    memset(w->place.keep, true, (size_t)w->n_records + 1);
    if (cfg->sweep && cfg->sweep->choice.layers && off_experts_cut(&w->place.experts, w->records, &cfg->sweep->choice, INT64_MAX, NULL) == ERR_OK)
        w->place.experts.bytes = w->place.experts.slots = 0; /* counted, not cached */
    return ERR_OK;
}

static struct off_weights_stats stats_of(const off_weights *w)
{
    const struct off_placing *p = &w->place;
    return (struct off_weights_stats){.slot_bytes = w->slot_bytes, .resident_bytes = p->kept_bytes, .window_bytes = p->window_bytes + p->rows_bytes,
                                      .staging_bytes = p->n_order || p->experts.slots ? p->staging_bytes : 0, .sweep_bytes = p->sweep_bytes,
                                      .expert_bytes = p->experts.bytes, .expert_slots = p->experts.slots,
                                      .experts_bytes_all = p->experts.all_bytes, .experts = p->experts.experts};
}

/* The sweep's ring and the experts' cache, and who reads for them: what a gate waits for, then the sweep, then what may be wanted. */
static int open_readers(struct off_weights *w, const struct off_weights_config *cfg, struct err *e)
{
    struct off_stream_config s = {.records = w->records, .n_records = w->n_records, .order = w->place.order, .n_order = w->place.n_order,
                                  .ring = w->slots + w->place.kept_bytes + w->place.experts.bytes, .ring_bytes = w->place.window_bytes, .stall_ns_max = cfg->stall_ns_max};
    struct off_experts_config x = {.records = w->records, .n_records = w->n_records, .choice = cfg->sweep ? &cfg->sweep->choice : NULL, .cut = &w->place.experts,
                                   .arena = w->slots + w->place.kept_bytes, .stall_ns_max = cfg->stall_ns_max};
    struct off_reader_client c;
    int rc = off_reader_open(&w->readers, &w->source, w->records, w->n_records, &w->place.readers, e);
    if (!rc && x.cut->slots && !(rc = off_experts_open(&w->experts, w->readers, &x, e))) {
        off_experts_demand(w->experts, &c);
        off_reader_add(w->readers, &c);
        for (uint32_t i = 0; i < x.choice->layers * x.choice->per_layer; i++)
            if (x.choice->records[i] != UINT32_MAX)
                w->cached_expert[x.choice->records[i]] = true;
    }
    if (!rc && s.n_order)
        rc = off_stream_open(&w->stream, w->readers, &s, e);
    if (!rc && w->experts) {
        off_experts_ahead(w->experts, &c);
        off_reader_add(w->readers, &c);
    }
    return rc ? rc : off_reader_start(w->readers, e);
}

/* What does not stay: readers for the sweep, sparse slots for tables. */
static int open_passing(struct off_weights *w, const off_catalog *c, const struct off_weights_config *cfg, struct err *e)
{
    int rc = off_source_open(&w->cached, c, false, OFF_IO_THREADS, e);
    for (uint32_t i = 0; !rc && cfg->sweep && i < cfg->sweep->n; i++) {
        const struct off_use *u = &cfg->sweep->uses[i];
        if (u->looked_up && !w->place.keep[u->record] && !w->rows[u->record])
            rc = off_rows_open(&w->rows[u->record], &w->records[u->record], e);
    }
    return rc || (!w->place.n_order && !w->place.experts.slots) ? rc : open_readers(w, cfg, e);
}

/* A packed copy has the records whole. */
static int take_images(struct off_weights *w, const off_catalog *c, struct off_record *records, const struct off_weights_config *cfg, struct err *e)
{
    w->editable = records;
    for (uint32_t i = 0; i < w->n_records; i++)
        records[i].image = NULL;
    if (!off_catalog_pack(c))
        return cfg->verify ? err_set(e, ERR_INVALID, "--verify-reads: expected a packed copy (sluice pack), found published files, which have no checksums") : ERR_OK;
    w->images = calloc((size_t)w->n_records + 1, sizeof *w->images);
    w->image_spans = calloc((size_t)w->n_records + 1, sizeof *w->image_spans);
    if (!w->images || !w->image_spans)
        return err_set(e, ERR_NOMEM, "%u records", w->n_records);
    return off_pack_attach(c, records, w->n_records, w->images, w->image_spans, e);
}

static void drop_images(struct off_weights *w)
{
    for (uint32_t i = 0; w->editable && i < w->n_records; i++)
        w->editable[i].image = NULL;
    free(w->images);
    free(w->image_spans);
}

static int open_all(struct off_weights *w, const off_catalog *c, struct off_record *records, uint32_t n_weights, const struct off_weights_config *cfg, struct err *e)
{
    uint64_t file_bytes;
    int rc;
    w->slot_at = calloc((size_t)w->n_records + 1, sizeof *w->slot_at);
    w->leases = calloc((size_t)w->n_records + 1, sizeof *w->leases);
    w->rows = calloc((size_t)w->n_records + 1, sizeof *w->rows);
    w->by_rows = calloc((size_t)w->n_records + 1, sizeof *w->by_rows);
    w->cached_expert = calloc((size_t)w->n_records + 1, sizeof *w->cached_expert);
    if (!w->slot_at || !w->leases || !w->rows || !w->by_rows || !w->cached_expert)
        return err_set(e, ERR_NOMEM, "%u records", w->n_records);
    if ((rc = check(w, c, records, n_weights, &file_bytes, e)) || (rc = take_images(w, c, records, cfg, e)) || (rc = off_source_open(&w->source, c, past_cache(cfg, w->slot_bytes, file_bytes), cfg->io, e)) ||
        (w->source.verify = cfg->verify, rc = place(w, cfg, e)) || (rc = map_slots(w, e)) || (rc = off_load(&w->source, records, w->n_records, w->place.keep, w->slots, w->slot_at, cfg, e)) ||
        (rc = open_passing(w, c, cfg, e)))
        return rc;
    if (w->place.kept_bytes)
        off_poison(w->slots, (size_t)w->place.kept_bytes);
    w->stats = stats_of(w);
    return ERR_OK;
}

int off_weights_plan(const off_catalog *c, struct off_record *records, uint32_t n_records, const struct off_weights_config *cfg, struct off_weights_stats *s,
                     struct err *e)
{
    off_weights w = {.records = records, .n_records = n_records};
    int rc = ERR_OK;
    *s = (struct off_weights_stats){0};
    for (uint32_t r = 0; r < n_records && !rc; r++)
        if (!(rc = off_record_layout(&records[r], e)) && __builtin_add_overflow(w.slot_bytes, records[r].slot_bytes, &w.slot_bytes))
            rc = err_set(e, ERR_BUDGET, "%s: expected fewer than 2^64 bytes of weights in all", records[r].name);
    if (!rc && !(rc = take_images(&w, c, records, cfg, e)) && !(rc = off_source_open(&w.source, c, true, cfg->io, e)) && !(rc = place(&w, cfg, e)))
        *s = stats_of(&w);
    drop_images(&w);
    off_source_close(&w.source);
    off_placing_free(&w.place);
    return rc;
}

int off_weights_open(off_weights **out, const off_catalog *c, struct off_record *records, uint32_t n_records,
                     struct krn_weight *weights, uint32_t n_weights, const struct off_weights_config *cfg, struct err *e)
{
    *out = NULL;
    for (uint32_t i = 0; i < n_weights; i++)
        weights[i].data = NULL;
    off_weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(e, ERR_NOMEM, "weights");
    w->records = records;
    w->n_records = n_records;
    w->weights = weights;
    int rc = open_all(w, c, records, n_weights, cfg, e);
    if (rc)
        off_weights_close(w);
    else
        *out = w;
    return rc;
}

void off_weights_close(off_weights *w)
{
    if (!w)
        return;
    for (uint32_t r = 0; w->leases && r < w->n_records; r++)
        assert(w->leases[r] == 0); /* somebody still computes with these bytes */
    off_reader_close(w->readers);
    off_stream_close(w->stream);
    off_experts_close(w->experts);
    for (uint32_t r = 0; w->rows && r < w->n_records; r++)
        off_rows_close(w->rows[r]);
    if (w->slots) {
        off_unpoison(w->slots, (size_t)w->map_bytes);
        munmap(w->slots, (size_t)w->map_bytes);
    }
    off_source_close(&w->source);
    off_source_close(&w->cached);
    off_placing_free(&w->place);
    drop_images(w);
    free(w->rows);
    free(w->by_rows);
    free(w->cached_expert);
    free(w->slot_at);
    free(w->leases);
    free(w);
}

static void point(off_weights *w, uint32_t record, const uint8_t *slot)
{
    const struct off_record *r = &w->records[record];
    for (uint32_t k = 0; k < r->n_parts; k++) {
        const struct off_part *p = &r->parts[k];
        w->weights[p->weight].data = slot ? slot + p->slot_offset : NULL;
    }
}

int off_lease(off_weights *w, uint32_t record, struct err *e)
{
    uint8_t *slot;
    int rc;
    assert(record < w->n_records);
    w->stats.leases++;
    if (w->leases[record] > 0) {
        assert(!w->by_rows[record]); /* a lease of some rows cannot grow into one of all */
        w->leases[record]++;
        return ERR_OK;
    }
    if (w->place.keep[record]) {
        slot = w->slots + w->slot_at[record];
        off_unpoison(slot, (size_t)w->records[record].slot_bytes);
    } else if ((rc = w->cached_expert[record] ? off_experts_lease(w->experts, record, &slot, e) : off_stream_acquire(w->stream, record, &slot, e)) != ERR_OK) {
        return rc;
    }
    w->leases[record] = 1;
    point(w, record, slot);
    return ERR_OK;
}

int off_lease_rows(off_weights *w, uint32_t record, const uint32_t *rows, uint32_t n, struct err *e)
{
    uint8_t *slot;
    int rc;
    assert(record < w->n_records);
    if (w->place.keep[record] || !w->rows[record])
        return off_lease(w, record, e);
    assert(w->leases[record] == 0);
    w->stats.leases++;
    if ((rc = off_rows_fetch(w->rows[record], &w->cached, rows, n, &slot, e)) != ERR_OK)
        return rc;
    w->leases[record] = 1;
    w->by_rows[record] = true;
    point(w, record, slot);
    return ERR_OK;
}

void off_release(off_weights *w, uint32_t record)
{
    assert(record < w->n_records && w->leases[record] > 0);
    if (--w->leases[record] > 0)
        return;
    point(w, record, NULL);
    if (w->by_rows[record]) {
        w->by_rows[record] = false;
        off_rows_drop(w->rows[record]);
    } else if (w->place.keep[record]) {
        off_poison(w->slots + w->slot_at[record], (size_t)w->records[record].slot_bytes);
    } else if (w->cached_expert[record]) {
        off_experts_release(w->experts, record);
    } else {
        off_stream_release(w->stream, record);
    }
}

void off_weights_tell(const off_weights *w, void (*line)(void *ctx, const char *text), void *ctx) { off_source_tell(&w->source, line, ctx); }
void off_weights_patience(off_weights *w, bool (*hopeless)(void *ctx), void *ctx)
{
    if (w->stream)
        off_stream_patience(w->stream, hopeless, ctx);
}

bool off_weights_failing(off_weights *w) { return w->stream && off_stream_failing(w->stream); }

bool off_weights_drive(off_weights *w, uint32_t drive, struct off_drive_stats *out)
{
    struct off_source *both[] = {&w->source, &w->cached};
    *out = (struct off_drive_stats){.reading = off_source_reading(&w->source, drive)};
    for (int i = 0; i < 2; i++) {
        struct off_drive d;
        if (drive >= both[i]->n_drives)
            return i > 0; /* rows were not asked for: the second is not open */
        off_source_drive(both[i], drive, &d);
        out->dir = d.dir;
        out->bytes += d.bytes;
        out->reads += d.reads;
        out->errors += d.errors;
    }
    return true;
}

void off_gate(off_weights *w, uint32_t layer, const uint32_t *rows, uint32_t n_tokens)
{
    if (w->experts)
        off_experts_gate(w->experts, layer, rows, n_tokens);
}

bool off_at_hand(const off_weights *w, uint32_t record)
{
    return w->place.keep[record] || w->leases[record] || (w->cached_expert[record] && off_experts_has(w->experts, record));
}

uint32_t off_weights_warm(const off_weights *w, uint32_t *ids, uint32_t n) { return w->experts ? off_experts_resident(w->experts, ids, n) : 0; }

int off_weights_preload(off_weights *w, const uint32_t *ids, uint32_t n, struct err *e)
{
    return w->experts ? off_experts_preload(w->experts, ids, n, e) : ERR_OK;
}

void off_weights_stats(const off_weights *w, struct off_weights_stats *s)
{
    *s = w->stats;
    s->file_bytes_read = atomic_load(&w->source.bytes_read) + atomic_load(&w->cached.bytes_read);
    s->file_bytes_wanted = atomic_load(&w->source.bytes_wanted) + atomic_load(&w->cached.bytes_wanted);
    s->reading = w->source.kind;
    s->reader_wakeups = w->readers ? off_reader_wakeups(w->readers) : 0;
    if (w->stream) {
        struct off_stream_stats t;
        off_stream_stats(w->stream, &t);
        s->lease_misses = t.stalls;
        s->stall_ns = t.stall_ns;
    }
    if (w->experts) {
        struct off_experts_stats t;
        off_experts_stats(w->experts, &t);
        s->expert_hits = t.hits;
        s->expert_misses = t.misses;
        s->expert_loaded_bytes = t.loaded_bytes;
        s->expert_preloaded = t.preloaded;
        s->lease_misses += t.stalls;
        s->stall_ns += t.stall_ns;
    }
}
