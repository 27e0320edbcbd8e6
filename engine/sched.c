/* The scheduler thread: gather, ask policies/schedule, run one step, hand out tokens; again.
 *
 * A turn:  snapshot of live[] -> ends (cancel, deadline) -> admission -> take[] -> pages (preempt when short) -> drafts -> rows ->
 *          eng_exec_run -> draws (draw.c) -> events -> finished ones leave live[].
 * Preempted sequences lose their pages and wait again; what the prefix index has not kept of them is computed anew, so their
 * bits do not change. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_internal.h"

int eng_step_open(eng_engine *g, struct err *e)
{
    uint32_t slots = g->c.seqs, rows = g->c.chunk, groups = eng_kv_groups(g->kv), stride = eng_kv_table_stride(g->kv);
    size_t live = g->live_max;
    g->live = calloc(live, sizeof *g->live);
    g->seqs = calloc(live, sizeof *g->seqs);
    g->view = calloc(live, sizeof *g->view);
    g->take = calloc(live, sizeof *g->take);
    g->order = calloc(live, sizeof *g->order);
    g->slot_used = calloc(slots, sizeof *g->slot_used);
    g->row_token = calloc(rows, sizeof *g->row_token);
    g->row_pos = calloc(rows, sizeof *g->row_pos);
    g->row_pick = calloc(slots + g->draft_rows, sizeof *g->row_pick);
    g->row_seq = calloc(slots, sizeof *g->row_seq);
    g->row_slot = calloc(slots, sizeof *g->row_slot);
    g->row_owner = calloc(slots, sizeof *g->row_owner);
    g->row_bad = calloc(slots, sizeof *g->row_bad);
    g->drawn = calloc(slots, sizeof *g->drawn);
    g->groups = calloc(groups ? groups : 1, sizeof *g->groups);
    g->tables = calloc((size_t)(groups ? groups : 1) * slots * stride, sizeof *g->tables);
    if (!g->live || !g->seqs || !g->view || !g->take || !g->order || !g->slot_used || !g->row_token || !g->row_pos || !g->row_pick ||
        !g->row_seq || !g->row_owner || !g->row_bad || !g->drawn || !g->row_slot || !g->groups || !g->tables)
        return err_set(e, ERR_NOMEM, "scheduler tables for %u sequences and %u tokens a step", slots, rows);
    return ERR_OK;
}

void eng_step_close(eng_engine *g)
{
    for (uint32_t i = 0; i < g->n_live; i++)
        eng_seq_free(g, g->live[i]);
    free(g->live);
    free(g->seqs);
    free(g->view);
    free(g->take);
    free(g->order);
    free(g->slot_used);
    free(g->row_token);
    free(g->row_pos);
    free(g->row_pick);
    free(g->row_seq);
    free(g->row_owner);
    free(g->row_bad);
    free(g->drawn);
    free(g->row_slot);
    free(g->groups);
    free(g->tables);
}

/* Ends what was cancelled or ran out of time. */
static void end_some(eng_engine *g)
{
    uint64_t now = clock_now_ns();
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        struct eng_seq *s = g->seqs[i];
        if (atomic_load(&s->cancel))
            eng_seq_finish(g, s, ENG_CANCELLED, NULL);
        else if (s->deadline_ns && now >= s->deadline_ns)
            eng_seq_finish(g, s, ENG_DEADLINE, NULL);
    }
}

static void fill_view(eng_engine *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        const struct eng_seq *s = g->seqs[i];
        g->view[i] = (struct pol_seq){.running = s->running, .runnable = !s->finished && !atomic_load(&s->paused),
                                      .n_left = s->n_tokens - s->n_past, .priority = s->priority,
                                      .tenant_served = g->served[s->tenant], .arrival = s->arrival};
    }
}

static void reserve_pages(eng_engine *g)
{
    for (uint32_t i = 0; i < g->n_seqs; i++)
        while (g->take[i] && eng_slot_reserve(g, g->seqs[i]->slot, g->seqs[i]->n_past + g->take[i]))
            eng_preempt(g, pol_preempt(g->view, g->n_seqs, i)); /* may be i itself: then take[i] is 0 */
}

static void build_step(eng_engine *g)
{
    struct krn_step *st = &g->step;
    uint32_t groups = eng_kv_groups(g->kv), stride = eng_kv_table_stride(g->kv);
    *st = (struct krn_step){.n_groups = groups, .tokens = g->row_token, .pos = g->row_pos, .picks = g->row_pick, .seqs = g->row_seq,
                            .groups = g->groups, .slots = g->row_slot, .snapshots = g->snapshots};
    st->states = eng_states_step(g->states, &st->n_states);
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        struct eng_seq *s = g->seqs[i];
        if (!g->take[i])
            continue;
        uint32_t k = st->n_seqs++;
        g->row_owner[k] = s;
        g->row_slot[k] = s->slot;
        g->row_seq[k] = (struct krn_seq){.first = st->n_tokens, .count = g->take[i], .pos0 = s->n_past, .far = s->far};
        for (uint32_t pos = s->n_past; pos < s->n_past + g->take[i]; pos++) {
            if (pos + 1 >= s->n_tokens) /* its logits say what comes after it */
                g->row_pick[st->n_picks++] = st->n_tokens;
            g->row_token[st->n_tokens] = pos < s->n_tokens ? s->tokens[pos] : s->draft[pos - s->n_tokens];
            g->row_pos[st->n_tokens++] = pos;
        }
        eng_snapshots_plan(g, s, k, g->take[i] - s->n_draft);
        for (uint32_t q = 0; q < groups; q++)
            eng_kv_table(g->kv, q, s->slot, g->tables + ((size_t)q * g->c.seqs + k) * stride);
    }
    for (uint32_t q = 0; q < groups; q++) {
        eng_kv_pages(g->kv, q, &g->groups[q]);
        g->groups[q].tables = g->tables + (size_t)q * g->c.seqs * stride;
    }
}

/* Pages that are full now can serve others; those that no window sees any more go. */
static void settle_pages(eng_engine *g, struct eng_seq *s)
{
    if (g->prefix)
        eng_prefix_add(g->prefix, &s->chain, s->slot, s->tokens, s->n_past);
    eng_kv_slide(g->kv, s->slot, s->n_past);
}

/* One token from the row of the last known one, and one more for each guess that it confirms. The rows behind a wrong guess count
 * for nothing: their keys and values are overwritten, and whether they are numbers is all the same. Returns how many; *sound: false
 * when a row that counts holds no number, and then the step's row count is what it takes to say why. */
static uint32_t take_tokens(eng_engine *g, uint32_t k, bool *sound)
{
    struct eng_seq *s = g->row_owner[k];
    uint32_t n = 0, known = g->row_seq[k].count - s->n_draft;
    s->usage.draft_tokens += s->n_draft;
    for (;;) {
        eng_draw_take(g, k, n++);
        if (s->finished || n > s->n_draft || s->tokens[s->n_tokens - 1] != s->draft[n - 1] || atomic_load(&s->paused) || atomic_load(&s->cancel))
            break;
        s->usage.draft_accepted++;
        if (!(*sound = eng_exec_finite(g->exec, g->row_seq[k].first + known + n - 1, 1))) {
            g->row_seq[k].count = known + n;
            break;
        }
        s->n_past++;
        settle_pages(g, s);
    }
    if (s->n_draft)
        eng_draft_seen(g, s, n - 1);
    return n;
}

/* The known rows of each sequence have been computed. Those of which one is no number stay in row_owner[] without a row of logits:
 * they are named at the step's end, since that takes the registers which others still need. */
static void settle_rows(eng_engine *g)
{
    uint32_t pick = 0;
    for (uint32_t k = 0; k < g->step.n_seqs; k++) {
        struct eng_seq *s = g->row_owner[k];
        uint32_t known = g->row_seq[k].count - s->n_draft;
        bool last = s->n_past + known == s->n_tokens, sound = eng_exec_finite(g->exec, g->row_seq[k].first, known);
        g->drawn[k] = (struct eng_drawn){.pick = pick, .wanted = last && sound};
        pick += last ? 1 + s->n_draft : 0;
        g->row_bad[k] = !sound;
        if (!sound)
            continue;
        s->n_past += known;
        g->served[s->tenant] += known;
        settle_pages(g, s);
        eng_snapshots_keep(g, s, k);
    }
}

/* Tokens of all sequences that have a row of logits; returns how many. */
static uint32_t hand_out(eng_engine *g)
{
    uint32_t out = 0;
    for (uint32_t k = 0; k < g->step.n_seqs; k++)
        if (g->drawn[k].wanted) {
            bool sound = true;
            uint32_t n = take_tokens(g, k, &sound);
            g->row_bad[k] = !sound;
            g->served[g->row_owner[k]->tenant] += n - 1;
            out += n;
        }
    return out;
}

static void fail_rows(eng_engine *g, const struct err *why)
{
    struct err e = {0};
    for (uint32_t k = 0; k < g->step.n_seqs; k++) {
        if (!why && !g->row_bad[k])
            continue;
        if (!why) {
            eng_exec_blame(g->exec, &g->step, k, &e);
            log_error("request %llu failed: %s", (unsigned long long)g->row_owner[k]->id, e.msg);
        }
        eng_seq_finish(g, g->row_owner[k], ENG_FAILED, why ? why : &e);
    }
}

/* A drive keeps the step waiting: is there somebody in it who cannot wait any longer? The others' rows are computed once more, which
 * states that steps add to would not survive; where there are some, everybody has to have given up. */
static bool hopeless(void *engine)
{
    eng_engine *g = engine;
    uint64_t now = clock_now_ns();
    uint32_t gone = 0;
    for (uint32_t k = 0; k < g->step.n_seqs; k++)
        gone += atomic_load(&g->row_owner[k]->cancel) || (g->row_owner[k]->deadline_ns && now >= g->row_owner[k]->deadline_ns);
    pthread_mutex_lock(&g->lock);
    bool stop = g->stop;
    pthread_mutex_unlock(&g->lock);
    return stop || (gone && (gone == g->step.n_seqs || !g->model->plan->n_recurrent));
}

static void run_step(eng_engine *g)
{
    struct err e = {0};
    uint32_t out = 0;
    uint64_t t0 = clock_now_ns();
    g->draw_ns = 0;
    build_step(g);
    uint64_t t1 = clock_now_ns();
    int rc = eng_exec_run(g->exec, &g->step, NULL, NULL, &e);
    uint64_t model_ns = clock_now_ns() - t1;
    if (rc == ERR_AGAIN) { /* the next turn ends who is out of time */
        log_warn("step given up: %s", e.msg);
        eng_snapshots_end(g);
    } else if (rc) {
        log_error("step failed: %s (%s)", e.msg, e.where);
        if (rc == ERR_CLOSED && g->c.lost)
            g->c.lost(&e);
        eng_snapshots_end(g);
    } else {
        settle_rows(g);
        eng_snapshots_end(g);
        eng_draw_all(g);
        out = hand_out(g);
        if (g->step.n_picks == g->step.n_tokens)
            pol_draft_timed(&g->draft_cost, g->step.n_tokens, clock_now_ns() - t0);
    }
    if (rc != ERR_AGAIN)
        fail_rows(g, rc ? &e : NULL);
    struct off_weights_stats w = {0};
    if (g->weights)
        off_weights_stats(g->weights, &w);
    pthread_mutex_lock(&g->lock);
    g->stats.steps++;
    g->stats.weight_read_bytes = w.file_bytes_read;
    g->stats.weight_wanted_bytes = w.file_bytes_wanted;
    g->stats.weight_stalls = w.lease_misses;
    g->stats.weight_stall_ns = w.stall_ns;
    g->stats.model_ns += model_ns;
    g->stats.draw_ns += g->draw_ns;
    g->stats.expert_hits = w.expert_hits;
    g->stats.expert_misses = w.expert_misses;
    g->stats.expert_read_bytes = w.expert_loaded_bytes;
    g->stats.expert_preloaded = w.expert_preloaded;
    g->stats.tokens_out += out;
    uint64_t now = clock_now_ns();
    g->stats.step_ns += now - g->turn_ns;
    g->turn_ns = now;
    pthread_mutex_unlock(&g->lock);
}

/* Finished sequences leave live[], order kept. Called with the lock held. */
static void sweep_finished(eng_engine *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_live; i++) {
        if (g->live[i]->finished)
            eng_seq_free(g, g->live[i]);
        else
            g->live[n++] = g->live[i];
    }
    g->n_live = n;
}

static uint64_t next_deadline(const eng_engine *g)
{
    uint64_t d = UINT64_MAX;
    for (uint32_t i = 0; i < g->n_live; i++)
        if (g->live[i]->deadline_ns && g->live[i]->deadline_ns < d)
            d = g->live[i]->deadline_ns;
    return d;
}

static void wait_for_work(eng_engine *g)
{
    uint64_t d = next_deadline(g);
    if (d == UINT64_MAX) {
        pthread_cond_wait(&g->wake, &g->lock);
        return;
    }
    struct timespec t = {.tv_sec = (time_t)(d / NS_PER_S), .tv_nsec = (long)(d % NS_PER_S)};
    pthread_cond_timedwait(&g->wake, &g->lock, &t);
}

/* Takes a snapshot of live[]; false when the engine closes. idle: the last turn found nothing to run. */
static bool gather(eng_engine *g, bool idle)
{
    pthread_mutex_lock(&g->lock);
    sweep_finished(g);
    if (idle && !g->stop && !g->kicked)
        wait_for_work(g);
    if (idle)
        g->turn_ns = clock_now_ns();
    g->kicked = false;
    g->n_seqs = g->n_live;
    memcpy(g->seqs, g->live, g->n_live * sizeof *g->live);
    bool go = !g->stop;
    uint32_t running = 0;
    for (uint32_t i = 0; i < g->n_live; i++)
        running += g->live[i]->running;
    g->stats.running = running;
    eng_kv_usage(g->kv, &g->stats.kv_pages, &g->stats.kv_pages_used, &g->stats.kv_bytes);
    if (g->prefix) {
        struct eng_prefix_stats p;
        eng_prefix_stats(g->prefix, &p);
        g->stats.prefix_pages = p.pages;
        g->stats.prefix_evictions = p.evictions;
        g->stats.snapshots = p.snapshots;
        g->stats.snapshots_taken = g->snapshots_taken;
        g->stats.snapshots_restored = g->snapshots_restored;
    }
    pthread_mutex_unlock(&g->lock);
    return go;
}

void *eng_sched_main(void *engine)
{
    eng_engine *g = engine;
    struct pol_schedule_limits lim = {.tokens_max = g->c.chunk, .seqs_max = g->c.seqs};
    bool idle = true;
    if (g->weights)
        off_weights_patience(g->weights, hopeless, g);
    while (gather(g, idle)) {
        end_some(g);
        fill_view(g);
        eng_admit(g);
        bool any = pol_schedule(g->view, g->n_seqs, &lim, g->take, g->order) != 0;
        if (any) {
            reserve_pages(g);
            eng_draft(g);
        }
        bool ended = false;
        any = false;
        for (uint32_t i = 0; i < g->n_seqs; i++) {
            any |= g->take[i] != 0;
            ended |= g->seqs[i]->finished;
        }
        if (any)
            run_step(g);
        idle = !any && !ended;
    }
    for (uint32_t i = 0; i < g->n_seqs; i++) /* closing: everybody gets an end */
        if (!g->seqs[i]->finished)
            eng_seq_finish(g, g->seqs[i], ENG_CANCELLED, NULL);
    return NULL;
}

int eng_self_test(eng_engine *g, struct err *e)
{
    struct eng_seq s = {.n_tokens = 1, .tokens = (int32_t[1]){0}};
    int rc = eng_kv_reserve(g->kv, 0, 1, e);
    if (rc)
        return rc;
    g->seqs[0] = &s;
    g->n_seqs = 1;
    g->take[0] = 1;
    build_step(g);
    rc = eng_exec_run(g->exec, &g->step, NULL, NULL, e);
    if (!rc) {
        const float *row = eng_exec_row(g->exec, &g->model->plan->logits, 0);
        for (uint32_t i = 0; i < g->model->plan->vocab && !rc; i++)
            if (!isfinite(row[i]))
                rc = err_set(e, ERR_FORMAT, "self-test: logit %u of the first token is not finite: the weights are damaged", i);
    }
    eng_kv_release(g->kv, 0);
    g->n_seqs = 0;
    return rc;
}
