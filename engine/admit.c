/* Who gets a slot: admission with the pages that the prefix index has, waiting for a prefix that is under way, giving way. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

int eng_slot_reserve(eng_engine *g, uint32_t slot, uint32_t n_tokens)
{
    return g->prefix ? eng_prefix_reserve(g->prefix, slot, n_tokens, NULL) : eng_kv_reserve(g->kv, slot, n_tokens, NULL);
}

static void release_pages(eng_engine *g, struct eng_seq *s)
{
    if (g->prefix)
        eng_prefix_release(g->prefix, &s->chain, s->slot);
    else
        eng_kv_release(g->kv, s->slot);
    g->slot_used[s->slot] = false;
    s->running = false;
}

void eng_seq_finish(eng_engine *g, struct eng_seq *s, enum eng_finish f, const struct err *why)
{
    if (s->running) {
        release_pages(g, s);
    } else {
        pthread_mutex_lock(&g->lock);
        g->n_waiting--;
        g->waiting_tokens -= s->n_tokens;
        pthread_mutex_unlock(&g->lock);
    }
    eng_seq_done(g, s, f, why);
}

/* A tenant that was away does not come back with credit: its counter rises to the least of those being served. */
static void lift_counter(eng_engine *g, const struct eng_seq *s)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < g->n_seqs; i++)
        if (g->seqs[i]->running) {
            if (g->seqs[i]->tenant == s->tenant)
                return;
            if (g->served[g->seqs[i]->tenant] < least)
                least = g->served[g->seqs[i]->tenant];
        }
    if (least != UINT64_MAX && g->served[s->tenant] < least)
        g->served[s->tenant] = least;
}

/* ---- a prefix under way ------------------------------------------------------------------------------------------ */

/* Does r compute now: a sequence that may stand still is not waited for, nor one that gives way to s. */
static bool leads(const struct eng_seq *r, const struct eng_seq *s)
{
    return r->running && !r->finished && !atomic_load(&r->paused) && !atomic_load(&r->cancel) && r->priority >= s->priority;
}

static uint32_t common_pages(const struct eng_engine *g, const struct eng_seq *s, const struct eng_seq *r)
{
    uint32_t n = (s->n_tokens < r->n_tokens ? s->n_tokens : r->n_tokens), page = g->c.page_tokens, k = 0;
    if (n == s->n_tokens)
        n--; /* its last token is its own to compute */
    while (k + page <= n && !memcmp(s->tokens + k, r->tokens + k, page * sizeof *s->tokens))
        k += page;
    return k / page;
}

/* Is a running sequence about to index pages of s's prompt that are not there yet? Then s waits for them: until they are there, or
 * the other one ends, stops or loses its slot. */
static bool awaits_prefix(eng_engine *g, struct eng_seq *s)
{
    for (uint32_t i = 0; i < g->n_seqs && s->leader_pages; i++)
        if (g->seqs[i]->id == s->leader && leads(g->seqs[i], s) && g->seqs[i]->chain.n_pages < s->leader_pages)
            return true;
    s->leader_pages = 0;
    uint32_t have = eng_prefix_match(g->prefix, &s->chain, s->tokens, s->n_tokens) / g->c.page_tokens;
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct eng_seq *r = g->seqs[i];
        if (r == s || !leads(r, s) || r->n_tokens - r->n_past < 2 || memcmp(r->chain.scope, s->chain.scope, HASH_BYTES))
            continue;
        uint32_t pages = common_pages(g, s, r);
        if (pages > have && pages > r->chain.n_pages && pages > s->leader_pages && (!g->n_snapshots || eng_snapshot_mark(g->seqs[i], pages * g->c.page_tokens))) {
            s->leader_pages = pages;
            s->leader = r->id;
        }
    }
    return s->leader_pages != 0;
}

/* ---- admission ---------------------------------------------------------------------------------------------------- */

/* Pages for what the index has of the prompt and for the first chunk after it. False: there are none. */
static bool place(eng_engine *g, struct eng_seq *s, uint32_t slot)
{
    uint32_t have = 0, reach = 0;
    s->slot = slot;
    if (g->prefix) {
        have = eng_prefix_match(g->prefix, &s->chain, s->tokens, s->n_tokens);
        reach = eng_prefix_reach(g->prefix);
        eng_prefix_lease(g->prefix, &s->chain, slot, have);
    }
    uint32_t left = s->n_tokens - have;
    if (eng_slot_reserve(g, slot, have + (left < g->c.chunk ? left : g->c.chunk))) {
        if (g->prefix)
            eng_prefix_release(g->prefix, &s->chain, slot);
        return false;
    }
    s->n_past = have;
    if (g->prefix && g->n_snapshots) {
        eng_snapshot_restore(g, s, have);
        if (reach > have) /* it parts from an earlier one there, or there was a snapshot once */
            eng_snapshot_mark(s, reach);
    }
    if (!s->started)
        s->usage.cached_tokens = have < s->n_prompt ? have : s->n_prompt;
    g->slot_used[slot] = true;
    s->running = true;
    pthread_mutex_lock(&g->lock);
    g->stats.prefix_lookups++;
    g->stats.prefix_hits += have != 0;
    g->stats.prefix_tokens += have;
    g->n_waiting--;
    g->waiting_tokens -= s->n_tokens;
    pthread_mutex_unlock(&g->lock);
    return true;
}

void eng_admit(eng_engine *g)
{
    struct pol_schedule_limits lim = {.tokens_max = g->c.chunk, .seqs_max = g->c.seqs};
    for (;;) {
        size_t i = pol_admit(g->view, g->n_seqs, &lim);
        if (i == SIZE_MAX)
            return;
        struct eng_seq *s = g->seqs[i];
        if (g->prefix && awaits_prefix(g, s)) {
            g->view[i].runnable = false;
            continue;
        }
        uint32_t slot = 0;
        while (slot < g->c.seqs && g->slot_used[slot])
            slot++;
        if (slot == g->c.seqs || !place(g, s, slot))
            return; /* no pages for its first chunk: it waits until somebody ends */
        lift_counter(g, s);
        g->view[i].running = true;
        g->view[i].n_left = s->n_tokens - s->n_past;
        if (!s->admit_ns)
            s->admit_ns = clock_now_ns();
        if (!s->started) {
            s->started = true;
            struct eng_event ev = {.type = ENG_EV_STARTED, .id = s->id};
            g->event(g->ctx, &ev);
        }
    }
}

void eng_preempt(eng_engine *g, size_t i)
{
    struct eng_seq *s = g->seqs[i];
    log_debug("request preempted id=%llu tokens=%u: KV pages ran out", (unsigned long long)s->id, s->n_tokens);
    release_pages(g, s);
    s->n_past = 0;
    g->view[i].running = false;
    g->take[i] = 0;
    pthread_mutex_lock(&g->lock);
    g->n_waiting++;
    g->waiting_tokens += s->n_tokens;
    pthread_mutex_unlock(&g->lock);
}
