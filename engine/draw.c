/* What a row of logits becomes: the next token of its sequence, by that sequence's own rules.
 *
 * Sequences without a grammar are drawn for by all workers, one sequence at a time each, after the step and before anything is
 * handed out; a draw depends on nothing but its own sequence, so who draws when does not show. A grammar's automaton is shared and
 * grows as it is walked: those draws, and those behind a confirmed guess, are made by the scheduler's thread when their turn comes. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

int eng_draw_open(eng_engine *g, struct err *e)
{
    g->samplers = calloc(g->c.threads, sizeof *g->samplers);
    int rc = g->samplers ? ERR_OK : err_set(e, ERR_NOMEM, "samplers");
    for (uint32_t i = 0; i < g->c.threads && !rc; i++)
        rc = eng_sampler_open(&g->samplers[i], g->model->plan->vocab, e);
    return rc;
}

void eng_draw_close(eng_engine *g)
{
    for (uint32_t i = 0; g->samplers && i < g->c.threads; i++)
        eng_sampler_close(g->samplers[i]);
    free(g->samplers);
}

static uint32_t ids_of(const eng_engine *g)
{
    uint32_t n = eng_tok_count(g->model->tok), vocab = g->model->plan->vocab;
    return n < vocab ? n : vocab;
}

static struct eng_draw rules_of(const eng_engine *g, const struct eng_seq *s)
{
    size_t n_eos = 0;
    const int32_t *eos = eng_tok_eos(g->model->tok, &n_eos);
    return (struct eng_draw){.position = s->n_out, .tokens = s->tokens, .n_prompt = s->n_prompt, .n_tokens = s->n_tokens, .bias = s->bias, .n_bias = s->n_bias,
                             .banned = eos, .n_banned = s->n_out < s->min_tokens ? n_eos : 0};
}

/* Under a grammar. ERR_CLOSED: the end, with *f, and no token. ERR_INVALID: its grammar goes nowhere. */
static int guided(eng_engine *g, struct eng_seq *s, struct eng_drawn *d, enum eng_finish *f)
{
    struct eng_allowed may = {.may_end = true};
    struct eng_draw draw = rules_of(g, s);
    uint32_t n_ids = ids_of(g);
    size_t n_eos = 0;
    const int32_t *eos = eng_tok_eos(g->model->tok, &n_eos);
    int rc = eng_guide_sync(&s->guide, g->vocab, s->tokens + s->n_prompt, s->n_out, g->grammar_keep, &d->err);
    if (!rc)
        rc = eng_guide_mask(&s->guide, g->allowed, &may, &d->err);
    if (rc)
        return rc;
    if (may.ruled && !may.count && may.may_end) {
        *f = ENG_STOP;
        return ERR_CLOSED;
    }
    if (may.ruled && !may.count)
        return eng_guide_stuck(&s->guide, &d->err);
    for (size_t i = 0; i < n_eos && may.ruled && may.may_end && !s->ignore_eos; i++)
        if ((uint32_t)eos[i] < n_ids)
            g->allowed[eos[i] / 64] |= 1ull << eos[i] % 64;
    draw.allowed = may.ruled ? g->allowed : NULL;
    for (;;) {
        if ((rc = eng_sample(g->samplers[0], d->row, n_ids, &s->sampling, &draw, &d->id, &d->err)) || (!s->ignore_eos && eng_seq_is_eos(g, d->id)))
            return rc;
        if ((rc = eng_guide_token(&s->guide, g->vocab, d->id, &d->err)) != ERR_INVALID)
            return rc;
        if (!draw.allowed) /* free output: a token that ends the trigger and goes on against the grammar */
            memset(g->allowed, 0xFF, eng_vocab_words(g->vocab) * sizeof *g->allowed);
        draw.allowed = g->allowed;
        g->allowed[d->id / 64] &= ~(1ull << d->id % 64);
    }
}

static void logprobs_of(const eng_engine *g, const struct eng_seq *s, struct eng_drawn *d, unsigned worker)
{
    if (!d->rc && s->logprobs)
        eng_sample_logprobs(g->samplers[worker], d->row, ids_of(g), d->id, s->top_logprobs, &d->lp);
}

static void draw_free(const eng_engine *g, const struct eng_seq *s, struct eng_drawn *d, unsigned worker)
{
    struct eng_draw draw = rules_of(g, s);
    d->rc = eng_sample(g->samplers[worker], d->row, ids_of(g), &s->sampling, &draw, &d->id, &d->err);
    logprobs_of(g, s, d, worker);
    d->made = true;
}

static void work(void *engine, unsigned worker, unsigned n_workers)
{
    eng_engine *g = engine;
    (void)n_workers;
    for (uint32_t k; (k = atomic_fetch_add(&g->draw_next, 1)) < g->step.n_seqs;)
        if (g->drawn[k].wanted && !g->row_owner[k]->guide.grammar)
            draw_free(g, g->row_owner[k], &g->drawn[k], worker);
}

void eng_draw_all(eng_engine *g)
{
    uint64_t t0 = clock_now_ns();
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->step.n_seqs; k++) {
        struct eng_drawn *d = &g->drawn[k];
        if (d->wanted)
            d->row = eng_exec_row(g->exec, &g->model->plan->logits, d->pick);
        n += d->wanted && !g->row_owner[k]->guide.grammar;
    }
    atomic_store(&g->draw_next, 0);
    if (n > 1)
        pool_run(g->pool, work, g);
    else if (n)
        work(g, 0, 1);
    g->draw_ns += clock_now_ns() - t0;
}

void eng_draw_take(eng_engine *g, uint32_t k, uint32_t nth)
{
    struct eng_seq *s = g->row_owner[k];
    struct eng_drawn *d = &g->drawn[k];
    struct err e = {0};
    enum eng_finish f = ENG_FAILED;
    if (nth || !d->made) {
        uint64_t t0 = clock_now_ns();
        d->row = eng_exec_row(g->exec, &g->model->plan->logits, d->pick + nth);
        if (s->guide.grammar) {
            d->rc = guided(g, s, d, &f);
            logprobs_of(g, s, d, 0);
        } else {
            draw_free(g, s, d, 0);
        }
        g->draw_ns += clock_now_ns() - t0;
    }
    if (!s->first_ns)
        s->first_ns = clock_now_ns();
    if (d->rc) {
        if (d->err.code == ERR_LIMIT) /* of a grammar: the request's own fault */
            d->err.code = ERR_INVALID;
        eng_seq_finish(g, s, f, &d->err);
    } else if (eng_seq_token(g, s, d->id, s->logprobs ? &d->lp : NULL, &f, &e)) {
        eng_seq_finish(g, s, f, &e);
    }
}
