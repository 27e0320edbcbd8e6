#include "offload/experts.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "offload/poison.h"
#include "offload/weights_internal.h"

enum { NONE = UINT32_MAX, LEAVING = 8 };

enum state { FREE, FILLING, READY, FAILED };
struct slot {
    uint32_t expert;              /* NONE: free */
    uint32_t n_units, taken, done, leases;
    enum state state;
    unsigned class;
    uint8_t *bytes;
    struct err err;               /* FAILED: why */
};
struct expert { uint32_t record, slot; unsigned class; bool wanted; }; /* wanted: by the gate at hand, and not yet released */

struct off_experts {
    off_reader *readers;
    struct off_experts_config c;
    struct pol_experts policy;
    struct slot *slots; uint32_t n_slots;
    struct expert *experts;       /* [layers * per_layer] */
    uint32_t *expert_of;          /* [n_records] NONE: no expert */
    struct { uint32_t first, n; } class[OFF_EXPERT_CLASSES]; /* slots of each */
    uint32_t *want, n_want, next_want; /* chosen by the gate at hand, ascending; which is looked at next */
    uint32_t layer;               /* of that gate */
    uint32_t urgent;              /* the expert that a lease waits for; NONE */
    uint32_t *filling, n_filling; /* slots that readers work on, oldest first */
    uint32_t leaving[OFF_EXPERT_CLASSES][LEAVING], n_leaving[OFF_EXPERT_CLASSES]; /* experts that give way next, last first */
    uint32_t *candidates;
    uint32_t *ahead, n_ahead, next_ahead;
    pthread_mutex_t lock;         /* guards everything above */
    pthread_cond_t ready;
    struct off_experts_stats stats;
};

/* ---- how an arena is cut --------------------------------------------------------------------------------------------- */
static int add_class(struct off_expert_cut *out, uint64_t bytes, struct err *e)
{
    for (unsigned c = 0; c < out->n; c++)
        if (out->of[c].slot_bytes == bytes) {
            out->of[c].experts++;
            return ERR_OK;
        }
    if (out->n == OFF_EXPERT_CLASSES)
        return err_set(e, ERR_UNSUPPORTED, "experts: expected at most %d sizes, found %" PRIu64 " bytes too", OFF_EXPERT_CLASSES, bytes);
    out->of[out->n++] = (struct off_expert_class){.slot_bytes = bytes, .experts = 1};
    return ERR_OK;
}

static uint32_t least_of(const struct off_expert_class *x, uint32_t k) { return k < x->experts ? k : x->experts; }

int off_experts_cut(struct off_expert_cut *out, const struct off_record *records, const struct off_choice *choice, uint64_t bytes, struct err *e)
{
    uint32_t all = choice->layers * choice->per_layer;
    int rc = ERR_OK;
    *out = (struct off_expert_cut){0};
    for (uint32_t i = 0; i < all && !rc; i++)
        if (choice->records[i] != NONE) {
            rc = add_class(out, records[choice->records[i]].slot_bytes, e);
            out->all_bytes += records[choice->records[i]].slot_bytes;
            out->experts++;
        }
    if (rc)
        return rc;
    for (unsigned c = 0; c < out->n; c++)
        out->floor_bytes += least_of(&out->of[c], choice->k) * out->of[c].slot_bytes;
    if (bytes < out->floor_bytes)
        return err_set(e, ERR_BUDGET, "experts: expected room for one token's of a layer, %" PRIu64 " bytes, found %" PRIu64 ": %" PRIu64 " bytes are missing", out->floor_bytes, bytes,
                       out->floor_bytes - bytes);
    double spare = (double)(bytes - out->floor_bytes);
    for (unsigned c = 0; c < out->n; c++) {
        struct off_expert_class *x = &out->of[c];
        uint32_t least = least_of(x, choice->k);
        double more = spare * x->experts / (double)out->all_bytes;
        x->slots = more < x->experts - least ? least + (uint32_t)more : x->experts;
        x->at = out->bytes;
        out->bytes += x->slots * x->slot_bytes;
        out->slots += x->slots;
    }
    return ERR_OK;
}

/* ---- what must hold -------------------------------------------------------------------------------------------------- */
static bool sound(const off_experts *x)
{
    uint32_t resident = 0, filling = 0;
    for (uint32_t i = 0; i < x->n_slots; i++) {
        const struct slot *s = &x->slots[i];
        filling += s->state == FILLING;
        resident += s->state == READY;
        if ((s->state == FREE) != (s->expert == NONE) || (s->leases && s->state != READY) || s->done > s->taken || s->taken > s->n_units)
            return false;
        if (s->expert != NONE && (x->experts[s->expert].slot != i || x->experts[s->expert].class != s->class))
            return false;
        if (s->state == READY && s->done != s->n_units)
            return false;
    }
    return resident + filling <= x->n_slots && filling <= x->n_filling;
}
#ifdef OFF_POISON
#define SOUND(x) assert(sound(x))
#else
#define SOUND(x) ((void)sizeof sound(x))
#endif

/* ---- slots: called with the lock held -------------------------------------------------------------------------------- */
static struct slot *slot_of(off_experts *x, uint32_t expert) { return x->experts[expert].slot == NONE ? NULL : &x->slots[x->experts[expert].slot]; }
static uint64_t bytes_of(const off_experts *x, const struct slot *s) { return x->c.cut->of[s->class].slot_bytes; }

static void set_free(off_experts *x, struct slot *s)
{
    x->experts[s->expert].slot = NONE;
    s->expert = NONE;
    s->state = FREE;
    off_poison(s->bytes, bytes_of(x, s));
}

static bool may_leave(const off_experts *x, const struct slot *s, bool wanted)
{
    return s->state == READY && !s->leases && x->experts[s->expert].wanted == wanted;
}

/* Those of a class that leave next, chosen a few at a time: looking through all slots for each would be slow. */
static void choose_leaving(off_experts *x, unsigned class, uint32_t needed)
{
    uint32_t n = 0, out[LEAVING], k, want = needed < LEAVING ? needed : LEAVING;
    for (uint32_t i = x->class[class].first; i < x->class[class].first + x->class[class].n; i++)
        if (may_leave(x, &x->slots[i], false))
            x->candidates[n++] = x->slots[i].expert;
    k = pol_experts_leave(&x->policy, x->layer, x->candidates, n, want ? want : 1, out);
    x->n_leaving[class] = k;
    for (uint32_t i = 0; i < k; i++)
        x->leaving[class][k - 1 - i] = out[i];
}

static struct slot *free_slot(off_experts *x, unsigned class)
{
    for (uint32_t i = x->class[class].first; x->stats.filled < x->n_slots && i < x->class[class].first + x->class[class].n; i++)
        if (x->slots[i].state == FREE)
            return &x->slots[i];
    return NULL;
}

/* A slot that somebody leaves. force: also one that the gate still wants, the one it wants last. */
static struct slot *taken_slot(off_experts *x, unsigned class, bool force)
{
    for (int twice = 0; twice < 2; twice++) {
        while (x->n_leaving[class]) {
            struct slot *s = slot_of(x, x->leaving[class][--x->n_leaving[class]]);
            if (s && may_leave(x, s, false))
                return s;
        }
        choose_leaving(x, class, x->n_want - x->next_want);
    }
    for (uint32_t i = x->n_want; force && i-- > 0;) {
        struct slot *s = slot_of(x, x->want[i]);
        if (s && s->class == class && may_leave(x, s, true))
            return s;
    }
    return NULL;
}

static bool begin(off_experts *x, uint32_t expert, struct slot *s)
{
    if (!s)
        return false;
    if (s->state == READY)
        set_free(x, s);
    else
        x->stats.filled++;
    *s = (struct slot){.expert = expert, .state = FILLING, .class = s->class, .bytes = s->bytes, .n_units = off_record_units(&x->c.records[x->experts[expert].record])};
    x->experts[expert].slot = (uint32_t)(s - x->slots);
    x->filling[x->n_filling++] = (uint32_t)(s - x->slots);
    off_unpoison(s->bytes, bytes_of(x, s));
    return true;
}

/* Gives the urgent expert a slot, else the next one that the gate misses. */
static bool begin_wanted(off_experts *x)
{
    if (x->urgent != NONE && x->experts[x->urgent].slot == NONE) {
        unsigned c = x->experts[x->urgent].class;
        struct slot *s = free_slot(x, c);
        return begin(x, x->urgent, s ? s : taken_slot(x, c, true));
    }
    for (; x->next_want < x->n_want; x->next_want++) {
        struct expert *p = &x->experts[x->want[x->next_want]];
        if (!p->wanted || p->slot != NONE)
            continue;
        struct slot *s = free_slot(x, p->class);
        if (!begin(x, x->want[x->next_want], s ? s : taken_slot(x, p->class, false)))
            return false;
        x->next_want++;
        return true;
    }
    return false;
}

static bool begin_ahead(off_experts *x)
{
    while (x->next_ahead < x->n_ahead) {
        uint32_t id = x->ahead[x->next_ahead];
        if (x->experts[id].slot == NONE) {
            if (!begin(x, id, free_slot(x, x->experts[id].class)))
                break;
            x->stats.preloaded++;
            x->next_ahead++;
            return true;
        }
        x->next_ahead++;
    }
    x->next_ahead = x->n_ahead; /* no slot is free any more: from here on use decides */
    return false;
}

/* ---- what readers call ----------------------------------------------------------------------------------------------- */
/* The next unit of a slot that is being filled: of one that is wanted, or of any. */
static struct slot *unfinished(off_experts *x, bool any)
{
    for (uint32_t i = 0; i < x->n_filling; i++) {
        struct slot *s = &x->slots[x->filling[i]];
        if (s->state == FILLING && s->taken < s->n_units && (any || x->experts[s->expert].wanted))
            return s;
    }
    return NULL;
}

static void give(off_experts *x, struct slot *s, struct off_unit *u)
{
    *u = off_record_unit(&x->c.records[x->experts[s->expert].record], s->taken++, s->bytes);
    u->tag = s;
}

static bool next_demand(void *ctx, struct off_unit *u)
{
    off_experts *x = ctx;
    pthread_mutex_lock(&x->lock);
    struct slot *s = unfinished(x, false);
    if (!s && begin_wanted(x))
        s = unfinished(x, false);
    if (s)
        give(x, s, u);
    pthread_mutex_unlock(&x->lock);
    return s != NULL;
}

static bool next_ahead(void *ctx, struct off_unit *u)
{
    off_experts *x = ctx;
    pthread_mutex_lock(&x->lock);
    struct slot *s = unfinished(x, true);
    if (!s && begin_ahead(x))
        s = unfinished(x, true);
    if (s)
        give(x, s, u);
    pthread_mutex_unlock(&x->lock);
    return s != NULL;
}

static void end_filling(off_experts *x, struct slot *s)
{
    uint32_t i = 0, at = (uint32_t)(s - x->slots);
    while (x->filling[i] != at)
        i++;
    memmove(x->filling + i, x->filling + i + 1, (--x->n_filling - i) * sizeof *x->filling);
}

static void unit_done(void *ctx, const struct off_unit *u, int rc, const struct err *e)
{
    off_experts *x = ctx;
    struct slot *s = u->tag;
    pthread_mutex_lock(&x->lock);
    s->done++;
    if (rc && s->state == FILLING) {
        s->state = FAILED;
        s->err = *e;
    }
    bool ended = s->state == FAILED ? s->done == s->taken : s->done == s->n_units;
    if (ended)
        end_filling(x, s);
    if (ended && s->state == FILLING) {
        s->state = READY;
        x->stats.loaded_bytes += bytes_of(x, s);
        off_poison(s->bytes, bytes_of(x, s));
    } else if (ended && !x->experts[s->expert].wanted) { /* nobody will ask why */
        set_free(x, s);
        x->stats.filled--;
    }
    SOUND(x);
    pthread_cond_broadcast(&x->ready);
    pthread_mutex_unlock(&x->lock);
}

void off_experts_demand(off_experts *x, struct off_reader_client *c) { *c = (struct off_reader_client){next_demand, unit_done, x}; }
void off_experts_ahead(off_experts *x, struct off_reader_client *c) { *c = (struct off_reader_client){next_ahead, unit_done, x}; }

/* ---- gates and leases ------------------------------------------------------------------------------------------------ */
static bool settled(const struct slot *s) { return s->state == FAILED && s->done == s->taken; }

/* A read that failed is told once; then the slot is anybody's. */
static void forget(off_experts *x, struct slot *s)
{
    set_free(x, s);
    x->stats.filled--;
}

void off_experts_gate(off_experts *x, uint32_t layer, const uint32_t *rows, uint32_t n_tokens)
{
    pthread_mutex_lock(&x->lock);
    for (uint32_t i = 0; i < x->n_want; i++) { /* of a step that broke off, the rest */
        struct slot *s = slot_of(x, x->want[i]);
        x->experts[x->want[i]].wanted = false;
        if (s && settled(s))
            forget(x, s);
    }
    pol_experts_use(&x->policy, layer, rows, n_tokens);
    x->layer = layer;
    x->n_want = x->next_want = 0;
    memset(x->n_leaving, 0, sizeof x->n_leaving);
    for (uint32_t e = 0; e < x->policy.per_layer; e++) {
        uint32_t id = layer * x->policy.per_layer + e;
        if (!rows[e])
            continue;
        assert(x->experts[id].record != NONE);
        const struct slot *s = slot_of(x, id);
        if (s && s->state != FAILED)
            x->stats.hits++;
        else
            x->stats.misses++;
        x->experts[id].wanted = true;
        x->want[x->n_want++] = id;
    }
    SOUND(x);
    pthread_mutex_unlock(&x->lock);
    off_reader_wake(x->readers);
}

bool off_experts_has(off_experts *x, uint32_t record)
{
    pthread_mutex_lock(&x->lock);
    const struct slot *s = slot_of(x, x->expert_of[record]);
    bool has = s && s->state == READY;
    pthread_mutex_unlock(&x->lock);
    return has;
}

static int wait_for(off_experts *x, uint32_t id, struct err *e)
{
    uint64_t since = clock_now_ns(), until = since + x->c.stall_ns_max;
    struct timespec t = {.tv_sec = (time_t)(until / NS_PER_S), .tv_nsec = (long)(until % NS_PER_S)};
    const struct slot *s;
    int rc = ERR_OK;
    x->urgent = id;
    while (!rc && (!(s = slot_of(x, id)) || (s->state != READY && !settled(s)))) {
        off_reader_wake(x->readers);
        if (pthread_cond_timedwait(&x->ready, &x->lock, &t) == ETIMEDOUT)
            rc = err_set(e, ERR_IO, "%s: expected its bytes within %.1f s, found that the drive has not given them", x->c.records[x->experts[id].record].name,
                         (double)x->c.stall_ns_max / 1e9);
    }
    x->urgent = NONE;
    x->stats.stalls++;
    x->stats.stall_ns += clock_now_ns() - since;
    return rc;
}

int off_experts_lease(off_experts *x, uint32_t record, uint8_t **slot, struct err *e)
{
    uint32_t id = x->expert_of[record];
    int rc = ERR_OK;
    assert(id != NONE);
    *slot = NULL;
    pthread_mutex_lock(&x->lock);
    struct slot *s = slot_of(x, id);
    if (!s || s->state != READY)
        rc = wait_for(x, id, e);
    if (!rc && (s = slot_of(x, id))->state == FAILED) {
        rc = s->err.code;
        if (e)
            *e = s->err;
        forget(x, s);
    }
    if (!rc) {
        if (s->leases++ == 0)
            off_unpoison(s->bytes, bytes_of(x, s));
        *slot = s->bytes;
    }
    SOUND(x);
    pthread_mutex_unlock(&x->lock);
    return rc;
}

void off_experts_release(off_experts *x, uint32_t record)
{
    uint32_t id = x->expert_of[record];
    pthread_mutex_lock(&x->lock);
    struct slot *s = slot_of(x, id);
    assert(s && s->leases > 0);
    bool more = false;
    if (--s->leases == 0) {
        x->experts[id].wanted = false;
        off_poison(s->bytes, bytes_of(x, s));
        more = x->next_want < x->n_want;
    }
    SOUND(x);
    pthread_mutex_unlock(&x->lock);
    if (more) /* the slot may be what the next one waits for */
        off_reader_wake(x->readers);
}

/* ---- the warm set ---------------------------------------------------------------------------------------------------- */
int off_experts_preload(off_experts *x, const uint32_t *ids, uint32_t n, struct err *e)
{
    uint32_t all = x->policy.layers * x->policy.per_layer;
    uint32_t *copy = calloc((size_t)n + 1, sizeof *copy);
    if (!copy)
        return err_set(e, ERR_NOMEM, "%u experts to preload", n);
    pthread_mutex_lock(&x->lock);
    free(x->ahead);
    x->ahead = copy;
    x->n_ahead = x->next_ahead = 0;
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < all && x->experts[ids[i]].record != NONE)
            copy[x->n_ahead++] = ids[i];
    pthread_mutex_unlock(&x->lock);
    off_reader_wake(x->readers);
    return ERR_OK;
}

struct rank { float wait; uint32_t id; };
static int sooner(const void *a, const void *b)
{
    const struct rank *p = a, *q = b;
    return p->wait != q->wait ? (p->wait > q->wait) - (p->wait < q->wait) : (p->id > q->id) - (p->id < q->id);
}

uint32_t off_experts_resident(off_experts *x, uint32_t *ids, uint32_t n)
{
    struct rank *r = calloc((size_t)x->n_slots + 1, sizeof *r);
    uint32_t k = 0;
    pthread_mutex_lock(&x->lock);
    for (uint32_t i = 0; r && i < x->n_slots; i++)
        if (x->slots[i].state == READY)
            r[k++] = (struct rank){x->policy.of[x->slots[i].expert].wait, x->slots[i].expert};
    pthread_mutex_unlock(&x->lock);
    if (r)
        qsort(r, k, sizeof *r, sooner);
    k = k < n ? k : n;
    for (uint32_t i = 0; i < k; i++)
        ids[i] = r[i].id;
    free(r);
    return k;
}

void off_experts_stats(off_experts *x, struct off_experts_stats *out)
{
    pthread_mutex_lock(&x->lock);
    *out = x->stats;
    out->slots = x->n_slots;
    pthread_mutex_unlock(&x->lock);
}

/* ---- open, close ----------------------------------------------------------------------------------------------------- */
static void lay_out(off_experts *x, const struct off_choice *choice)
{
    const struct off_expert_cut *cut = x->c.cut;
    memset(x->expert_of, 0xFF, (size_t)x->c.n_records * sizeof *x->expert_of);
    for (uint32_t i = 0; i < choice->layers * choice->per_layer; i++) {
        x->experts[i] = (struct expert){.record = choice->records[i], .slot = NONE};
        if (choice->records[i] == NONE)
            continue;
        x->expert_of[choice->records[i]] = i;
        while (cut->of[x->experts[i].class].slot_bytes != x->c.records[choice->records[i]].slot_bytes)
            x->experts[i].class++;
    }
    for (unsigned c = 0, n = 0; c < cut->n; c++) {
        x->class[c].first = n;
        x->class[c].n = cut->of[c].slots;
        for (uint32_t i = 0; i < cut->of[c].slots; i++)
            x->slots[n++] = (struct slot){.expert = NONE, .class = c, .bytes = x->c.arena + cut->of[c].at + i * cut->of[c].slot_bytes};
    }
    off_poison(x->c.arena, cut->bytes);
}

int off_experts_open(off_experts **out, off_reader *r, const struct off_experts_config *cfg, struct err *e)
{
    size_t all = (size_t)cfg->choice->layers * cfg->choice->per_layer;
    *out = NULL;
    off_experts *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "expert cache");
    x->readers = r;
    x->c = *cfg;
    x->c.stall_ns_max = cfg->stall_ns_max ? cfg->stall_ns_max : OFF_STALL_NS;
    x->n_slots = cfg->cut->slots;
    x->urgent = NONE;
    pthread_mutex_init(&x->lock, NULL);
    clock_cond_init(&x->ready);
    x->policy = (struct pol_experts){.kind = POL_EXPERTS_RATE, .layers = cfg->choice->layers, .per_layer = cfg->choice->per_layer, .of = calloc(all, sizeof *x->policy.of)};
    x->slots = calloc((size_t)x->n_slots + 1, sizeof *x->slots);
    x->experts = calloc(all, sizeof *x->experts);
    x->expert_of = calloc((size_t)cfg->n_records + 1, sizeof *x->expert_of);
    x->want = calloc((size_t)cfg->choice->per_layer + 1, sizeof *x->want);
    x->filling = calloc((size_t)x->n_slots + 1, sizeof *x->filling);
    x->candidates = calloc((size_t)x->n_slots + 1, sizeof *x->candidates);
    if (!x->policy.of || !x->slots || !x->experts || !x->expert_of || !x->want || !x->filling || !x->candidates) {
        off_experts_close(x);
        return err_set(e, ERR_NOMEM, "expert cache of %u slots", cfg->cut->slots);
    }
    lay_out(x, cfg->choice);
    *out = x;
    return ERR_OK;
}

void off_experts_close(off_experts *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; x->slots && i < x->n_slots; i++)
        assert(x->slots[i].leases == 0); /* somebody still computes with these bytes */
    if (x->expert_of)
        off_unpoison(x->c.arena, x->c.cut->bytes);
    pthread_mutex_destroy(&x->lock);
    pthread_cond_destroy(&x->ready);
    free(x->ahead);
    free(x->candidates);
    free(x->filling);
    free(x->want);
    free(x->expert_of);
    free(x->experts);
    free(x->slots);
    free(x->policy.of);
    free(x);
}
