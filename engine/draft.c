/* Speculation: guesses of policies/draft.h become further rows of decoding sequences, and are confirmed or dropped. */
#include <string.h>

#include "engine/engine_internal.h"

/* Guesses that this sequence has room for: every one but the last must leave room for the token after it. */
static uint32_t room_of(const eng_engine *g, const struct eng_seq *s)
{
    uint32_t out = s->max_tokens - s->n_out, ctx = g->c.ctx - s->n_tokens, least = out < ctx ? out : ctx, room = least ? least - 1 : 0;
    uint32_t state = eng_states_guesses_max(g->states, s->n_past);
    room = room < state ? room : state;
    return room < POL_DRAFT_MAX ? room : POL_DRAFT_MAX;
}

static uint32_t guess(eng_engine *g, struct eng_seq *s, uint32_t rows, float tokens, uint32_t most)
{
    uint32_t room = room_of(g, s);
    most = most < room ? most : room;
    uint32_t k = most ? pol_draft_guess(s->tokens, s->n_tokens, most, s->draft) : 0;
    if (!k)
        return 0;
    if (g->c.draft == ENG_DRAFT_AUTO)
        k = pol_draft_rows(&s->record, &g->draft_cost, rows, tokens, k);
    if (!k)
        pol_draft_idle(&s->record);
    return k && !eng_slot_reserve(g, s->slot, s->n_past + 1 + k) ? k : 0; /* pages are had without anybody giving way, or not at all */
}

void eng_draft(eng_engine *g)
{
    uint32_t rows = 0, decoding = 0;
    for (uint32_t i = 0; i < g->n_seqs; i++) {
        g->seqs[i]->n_draft = 0;
        rows += g->take[i];
        decoding += g->take[i] && g->seqs[i]->n_tokens - g->seqs[i]->n_past == 1;
    }
    if (rows != decoding || !g->draft_rows)
        return; /* a prompt takes what the step can hold */
    float tokens = (float)decoding;
    uint32_t left = g->c.chunk - rows < g->draft_rows ? g->c.chunk - rows : g->draft_rows;
    for (uint32_t i = 0; i < g->n_seqs && left; i++) {
        struct eng_seq *s = g->seqs[i];
        if (!g->take[i] || !(s->n_draft = guess(g, s, rows, tokens, left)))
            continue;
        g->take[i] += s->n_draft;
        rows += s->n_draft;
        left -= s->n_draft;
        tokens += pol_draft_gain(&s->record, s->n_draft);
    }
}

void eng_draft_seen(eng_engine *g, struct eng_seq *s, uint32_t accepted)
{
    pol_draft_seen(&s->record, s->n_draft, accepted);
    pthread_mutex_lock(&g->lock);
    g->stats.draft_tokens += s->n_draft;
    g->stats.draft_accepted += accepted;
    pthread_mutex_unlock(&g->lock);
}
