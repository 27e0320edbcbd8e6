#include "offload/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "offload/poison.h"
#include "offload/weights_internal.h"

struct entry {
    uint32_t record;
    uint64_t at, bytes;           /* of the ring */
    uint32_t n_units, taken, done;
    uint32_t leases;
    bool used, failed;            /* used: may leave when it comes to the tail */
    struct err err;
};

struct off_stream {
    off_reader *readers;
    struct off_stream_config c;
    uint32_t *order, *place;      /* place[record]: where it stands in order; UINT32_MAX: not streamed */
    struct entry *entries;        /* a queue of cap entries: first .. first + n, oldest first */
    uint32_t cap, first, n;
    uint32_t next;                /* order[next] is loaded next */
    pthread_mutex_t lock;         /* guards what follows, entries and next */
    pthread_cond_t ready;
    struct off_stream_stats stats;
    bool (*hopeless)(void *ctx); void *hopeless_ctx;
    uint64_t failing_ns, failed_ns; /* since when nothing comes, 0: all is well; when a read failed last */
};

static struct entry *entry_at(off_stream *s, uint32_t i) { return &s->entries[(s->first + i) % s->cap]; }
static bool filled(const struct entry *x) { return x->done == x->n_units; }

static struct entry *find(off_stream *s, uint32_t record, uint32_t *index)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (entry_at(s, i)->record == record && !(entry_at(s, i)->used && !entry_at(s, i)->leases)) {
            *index = i;
            return entry_at(s, i);
        }
    return NULL;
}

/* ---- the ring: called with the lock held ---------------------------------------------------------------------- */
static void drop_tail(off_stream *s)
{
    bool any = false;
    while (s->n && entry_at(s, 0)->used && !entry_at(s, 0)->leases && entry_at(s, 0)->taken == entry_at(s, 0)->done) {
        s->first = (s->first + 1) % s->cap;
        s->n--;
        any = true;
    }
    if (any)
        off_reader_wake(s->readers);
}

/* Where `bytes` can lie behind the newest entry without reaching the oldest. */
static bool room(off_stream *s, uint64_t bytes, uint64_t *at)
{
    if (s->n == 0) {
        *at = 0;
        return bytes <= s->c.ring_bytes;
    }
    const struct entry *old = entry_at(s, 0), *new = entry_at(s, s->n - 1);
    uint64_t head = new->at + new->bytes;
    if (new->at < old->at) {
        *at = head;
        return bytes <= old->at - head;
    }
    *at = bytes <= s->c.ring_bytes - head ? head : 0;
    return *at == head || bytes <= old->at;
}

/* The next record of the sweep gets its place, if there is one. A record is in the ring once at most. */
static struct entry *begin_next(off_stream *s)
{
    uint32_t r = s->order[s->next], i;
    uint64_t at;
    if (s->n == s->cap || find(s, r, &i) || !room(s, s->c.records[r].slot_bytes, &at))
        return NULL;
    struct entry *x = entry_at(s, s->n++);
    *x = (struct entry){.record = r, .at = at, .bytes = s->c.records[r].slot_bytes, .n_units = off_record_units(&s->c.records[r])};
    s->next = (s->next + 1) % s->c.n_order;
    off_unpoison(s->c.ring + x->at, x->bytes);
    if (filled(x))
        pthread_cond_broadcast(&s->ready);
    return x;
}

/* An entry that has units nobody reads yet: the oldest first, so that what is leased next comes first. */
static struct entry *next_work(off_stream *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct entry *x = entry_at(s, i);
        if (!x->used && !x->failed && x->taken < x->n_units)
            return x;
    }
    struct entry *x = begin_next(s);
    return x && x->n_units ? x : NULL;
}

/* ---- what readers call -------------------------------------------------------------------------------------------------- */
static bool give_unit(void *ctx, struct off_unit *u)
{
    off_stream *s = ctx;
    pthread_mutex_lock(&s->lock);
    struct entry *x = next_work(s);
    if (x) {
        *u = off_record_unit(&s->c.records[x->record], x->taken++, s->c.ring + x->at);
        u->tag = x; /* an entry stays where it is in the queue while a unit of it is out */
    }
    pthread_mutex_unlock(&s->lock);
    return x != NULL;
}

static void unit_done(void *ctx, const struct off_unit *u, int rc, const struct err *e)
{
    off_stream *s = ctx;
    struct entry *x = u->tag;
    pthread_mutex_lock(&s->lock);
    x->done++;
    if (rc && !x->failed) {
        s->failing_ns = s->failed_ns = clock_now_ns();
        x->failed = true;
        x->err = *e;
    }
    if (!rc)
        s->failing_ns = 0;
    if (filled(x) && !x->failed) {
        s->stats.loaded_bytes += x->bytes;
        if (!x->leases)
            off_poison(s->c.ring + x->at, x->bytes);
    }
    if (filled(x) || x->failed)
        pthread_cond_broadcast(&s->ready);
    drop_tail(s);
    pthread_mutex_unlock(&s->lock);
}

/* ---- leases --------------------------------------------------------------------------------------------------- */
/* What the sweep has skipped will not be leased any more. Entries [0, n). */
static void skip(off_stream *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        entry_at(s, i)->used = true;
    drop_tail(s);
}

/* The record is not on its way: forget what is, and go on from there. */
static void restart(off_stream *s, uint32_t record)
{
    skip(s, s->n);
    s->next = s->place[record];
    s->stats.restarts++;
    off_reader_wake(s->readers);
}

static int stalled(const off_stream *s, uint32_t record, struct err *e)
{
    return err_set(e, ERR_IO, "%s: expected its bytes within %.1f s, found that the drive has not given them", s->c.records[record].name, (double)s->c.stall_ns_max / 1e9);
}

#define TELL_NS (5 * NS_PER_S)   /* a wait so long is a drive that fails */

/* A while of waiting for the record; an error when it has been long enough, or when nobody cares any more. */
static int wait_ready(off_stream *s, uint32_t record, uint64_t since, struct err *e)
{
    uint64_t now = clock_now_ns(), until = now + 100 * NS_PER_MS;
    if (now - since >= s->c.stall_ns_max)
        return stalled(s, record, e);
    if (now - since >= TELL_NS)
        s->failing_ns = now;
    if (s->hopeless && now - since >= NS_PER_S) {
        pthread_mutex_unlock(&s->lock);
        bool enough = s->hopeless(s->hopeless_ctx);
        pthread_mutex_lock(&s->lock);
        if (enough)
            return err_set(e, ERR_AGAIN, "%s: not there after %.1f s", s->c.records[record].name, (double)(now - since) / 1e9);
    }
    struct timespec t = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = (long)(until % NS_PER_S)};
    pthread_cond_timedwait(&s->ready, &s->lock, &t);
    return ERR_OK;
}

void off_stream_patience(off_stream *s, bool (*hopeless)(void *ctx), void *ctx)
{
    s->hopeless = hopeless;
    s->hopeless_ctx = ctx;
}

int off_stream_acquire(off_stream *s, uint32_t record, uint8_t **slot, struct err *e)
{
    uint32_t i;
    uint64_t since = 0;
    int rc = ERR_OK;
    assert(record < s->c.n_records && s->place[record] != UINT32_MAX);
    pthread_mutex_lock(&s->lock);
    struct entry *x = find(s, record, &i);
    if (x)
        skip(s, i);
    else if (s->order[s->next] == record)
        skip(s, s->n);
    else
        restart(s, record);
    while (!rc && (!(x = find(s, record, &i)) || (!filled(x) && !x->failed))) {
        since = since ? since : clock_now_ns();
        rc = wait_ready(s, record, since, e);
    }
    if (since) {
        s->stats.stalls++;
        s->stats.stall_ns += clock_now_ns() - since;
    } else {
        s->stats.hits++;
    }
    if (rc) {
        s->failing_ns = clock_now_ns();
        s->stats.given_up++;
    } else if (x->failed) {
        rc = x->err.code;
        if (e)
            *e = x->err;
        restart(s, record);
    } else if (x->leases++ == 0) {
        off_unpoison(s->c.ring + x->at, x->bytes);
    }
    *slot = rc ? NULL : s->c.ring + x->at;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

bool off_stream_failing(off_stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool failing = s->failing_ns != 0;
    if (failing && clock_now_ns() - s->failed_ns > NS_PER_S) {
        s->failed_ns = clock_now_ns();
        for (uint32_t i = 0; i < s->n; i++) {
            struct entry *x = entry_at(s, i);
            if (x->failed && !x->used && x->taken == x->done) {
                x->failed = false;
                x->taken = x->done = 0;
            }
        }
        off_reader_wake(s->readers);
    }
    pthread_mutex_unlock(&s->lock);
    return failing;
}

void off_stream_release(off_stream *s, uint32_t record)
{
    uint32_t i;
    pthread_mutex_lock(&s->lock);
    struct entry *x = find(s, record, &i);
    assert(x && x->leases > 0);
    if (--x->leases == 0) {
        x->used = true;
        off_poison(s->c.ring + x->at, x->bytes);
        drop_tail(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void off_stream_stats(off_stream *s, struct off_stream_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

/* ---- open, close ---------------------------------------------------------------------------------------------- */
int off_stream_open(off_stream **out, off_reader *readers, const struct off_stream_config *cfg, struct err *e)
{
    *out = NULL;
    off_stream *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "stream");
    s->readers = readers;
    s->c = *cfg;
    s->c.stall_ns_max = cfg->stall_ns_max ? cfg->stall_ns_max : OFF_STALL_NS;
    s->cap = 2 * cfg->n_order + 1; /* an entry that is used may wait for the tail while its record comes round again */
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->ready);
    s->order = malloc(cfg->n_order * sizeof *s->order);
    s->place = malloc((size_t)cfg->n_records * sizeof *s->place);
    s->entries = calloc(s->cap, sizeof *s->entries);
    if (!s->order || !s->place || !s->entries) {
        off_stream_close(s);
        return err_set(e, ERR_NOMEM, "stream of %u records", cfg->n_order);
    }
    memset(s->place, 0xFF, (size_t)cfg->n_records * sizeof *s->place);
    for (uint32_t i = 0; i < cfg->n_order; i++) {
        s->order[i] = cfg->order[i];
        s->place[cfg->order[i]] = i;
    }
    off_poison(cfg->ring, cfg->ring_bytes);
    off_reader_add(readers, &(struct off_reader_client){give_unit, unit_done, s});
    *out = s;
    return ERR_OK;
}

void off_stream_close(off_stream *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        assert(entry_at(s, i)->leases == 0); /* somebody still computes with these bytes */
    off_unpoison(s->c.ring, s->c.ring_bytes);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->ready);
    free(s->entries);
    free(s->order);
    free(s->place);
    free(s);
}
