/* Where snapshots of recurrent states are taken: a later sequence that begins alike goes on from one (docs/kv.md, "Snapshots").
 *
 * At the ends of pages, since the prefix index finds whole pages:
 *   - the last one inside the prompt: the same prompt again, or a conversation that goes on;
 *   - marks: where another prompt that begins alike was seen to part from this one;
 *   - every `stride` tokens, as many as there is room for: what parts elsewhere, and long prompts that lose their slot;
 *   - the last one of all known tokens, in place of the one before it: answers that a conversation quotes, sequences that lose their slot. */
#include <assert.h>
#include <stdlib.h>

#include "engine/engine_internal.h"

enum { STRIDE_PAGES = 8, ENDS = 4 /* a sequence: its prompt's, its latest, marks */, STEP_MAX = 8 /* a sequence in one step */ };

uint32_t eng_snapshots_wanted(const struct eng_config *c, const struct eng_plan *p)
{
    uint64_t n = p->n_recurrent && !c->prefix_off ? (uint64_t)c->seqs * (c->ctx / (STRIDE_PAGES * c->page_tokens) + ENDS) : 0;
    return n < UINT32_MAX / 2 ? (uint32_t)n : UINT32_MAX / 2;
}

/* The distance at which all sequences' contexts find room in what two ends a sequence leave. */
static uint32_t stride_of(const struct eng_config *c, uint32_t n)
{
    uint32_t ends = 2 * c->seqs, page = c->page_tokens;
    if (n <= ends)
        return 0;
    uint64_t tokens = (uint64_t)c->seqs * c->ctx / (n - ends), least = (uint64_t)STRIDE_PAGES * page;
    tokens = tokens > least ? (tokens + page - 1) / page * page : least;
    return tokens < c->ctx ? (uint32_t)tokens : 0;
}

int eng_snapshots_open(eng_engine *g, struct err *e)
{
    g->snapshot_stride = stride_of(&g->c, g->n_snapshots);
    g->snapshot_follows = g->n_snapshots >= 2 * g->c.seqs;
    g->snapshots = calloc((size_t)g->c.seqs * STEP_MAX, sizeof *g->snapshots);
    g->taken = calloc((size_t)g->c.seqs * STEP_MAX, sizeof *g->taken);
    return g->snapshots && g->taken ? ERR_OK : err_set(e, ERR_NOMEM, "snapshots of a step");
}

void eng_snapshots_close(eng_engine *g)
{
    free(g->snapshots);
    free(g->taken);
}

bool eng_snapshot_mark(struct eng_seq *s, uint32_t pos)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] > s->n_past && s->marks[i] != pos)
            s->marks[n++] = s->marks[i];
    s->n_marks = n;
    if (pos <= s->n_past || n == ENG_MARKS)
        return false;
    s->marks[s->n_marks++] = pos;
    return true;
}

static uint32_t prompt_end(const eng_engine *g, const struct eng_seq *s)
{
    return s->n_prompt ? (s->n_prompt - 1) / g->c.page_tokens * g->c.page_tokens : 0; /* its last token is computed again */
}

static bool stays(const eng_engine *g, const struct eng_seq *s, uint32_t pos)
{
    if (pos == prompt_end(g, s) || (g->snapshot_stride && pos % g->snapshot_stride == 0))
        return true;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] == pos)
            return true;
    return false;
}

/* Room for one more: that of the latest that followed this sequence, or a free one, or the oldest's. */
static uint32_t room(eng_engine *g, struct eng_seq *s)
{
    uint32_t i = s->followed ? eng_prefix_snapshot_pull(g->prefix, &s->chain, s->followed) : ENG_NO_SNAPSHOT;
    s->followed = 0;
    return i != ENG_NO_SNAPSHOT ? i : eng_prefix_snapshot_take(g->prefix);
}

void eng_snapshots_plan(eng_engine *g, struct eng_seq *s, uint32_t k, uint32_t n_known)
{
    uint32_t page = g->c.page_tokens, end = s->n_past + n_known, n = 0;
    if (!g->n_snapshots || !g->prefix)
        return;
    for (uint32_t pos = (s->n_past / page + 1) * page; pos <= end && n < STEP_MAX; pos += page) {
        bool follows = g->snapshot_follows && end - pos < page && end >= s->n_tokens && pos > prompt_end(g, s), keep = stays(g, s, pos);
        uint32_t i = keep || follows ? room(g, s) : ENG_NO_SNAPSHOT;
        if (i == ENG_NO_SNAPSHOT)
            continue;
        g->taken[g->step.n_snapshots] = (struct eng_taken){.number = i, .follows = !keep};
        g->snapshots[g->step.n_snapshots++] = (struct krn_snapshot){.seq = k, .pos = pos, .to = eng_states_snapshot(g->states, i)};
        n++;
    }
}

void eng_snapshots_keep(eng_engine *g, struct eng_seq *s, uint32_t k)
{
    for (uint32_t i = 0; i < g->step.n_snapshots; i++) {
        if (g->snapshots[i].seq != k)
            continue;
        if (eng_prefix_snapshot_put(g->prefix, &s->chain, g->snapshots[i].pos, g->taken[i].number)) {
            g->snapshots_taken++;
            s->followed = g->taken[i].follows ? g->snapshots[i].pos : s->followed;
        }
        g->taken[i].number = ENG_NO_SNAPSHOT;
    }
}

void eng_snapshots_end(eng_engine *g)
{
    for (uint32_t i = 0; i < g->step.n_snapshots; i++)
        if (g->taken[i].number != ENG_NO_SNAPSHOT)
            eng_prefix_snapshot_give(g->prefix, g->taken[i].number);
    g->step.n_snapshots = 0;
}

void eng_snapshot_restore(eng_engine *g, struct eng_seq *s, uint32_t n_tokens)
{
    s->followed = 0;
    if (!n_tokens || !g->n_snapshots)
        return;
    uint32_t i = eng_prefix_snapshot_get(g->prefix, &s->chain, n_tokens);
    assert(i != ENG_NO_SNAPSHOT); /* the match saw it */
    eng_states_load(g->states, s->slot, n_tokens, eng_states_snapshot(g->states, i));
    g->snapshots_restored++;
}
