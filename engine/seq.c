/* One request's output: tokens become text that may leave, until an end is met. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/engine_internal.h"

enum { PENDING_MAX = 1 << 20 };

static int check_request(const eng_engine *g, const struct eng_request *r, struct err *e)
{
    uint32_t vocab = eng_tok_count(g->model->tok);
    if (r->n_ids == 0 || r->n_done >= r->n_ids)
        return err_set(e, ERR_INVALID, "prompt: expected at least one token, found %u", r->n_ids - r->n_done);
    if (r->n_ids >= g->c.ctx)
        return err_set(e, ERR_LIMIT, "prompt of %u tokens does not fit a context of %u with room for one more", r->n_ids, g->c.ctx);
    for (uint32_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] < 0 || (uint32_t)r->ids[i] >= vocab)
            return err_set(e, ERR_INVALID, "prompt token %u: expected an id below %u, found %d", i, vocab, r->ids[i]);
    if (r->n_stops > ENG_STOPS_MAX)
        return err_set(e, ERR_INVALID, "stop: expected at most %d strings, found %u", ENG_STOPS_MAX, r->n_stops);
    for (uint32_t i = 0; i < r->n_stops; i++)
        if (r->stop_lens[i] == 0 || r->stop_lens[i] > ENG_STOP_LEN_MAX)
            return err_set(e, ERR_INVALID, "stop[%u]: expected 1 to %d bytes, found %u", i, ENG_STOP_LEN_MAX, r->stop_lens[i]);
    const struct eng_sampling *s = &r->sampling;
    if (!(s->temperature >= 0 && s->temperature <= 100) || !(s->top_p > 0 && s->top_p <= 1) || !(s->min_p >= 0 && s->min_p <= 1) || s->top_k < 0)
        return err_set(e, ERR_INVALID, "sampling: temperature %g (0..100), top_p %g (0..1], min_p %g [0..1], top_k %d (>= 0)",
                       (double)s->temperature, (double)s->top_p, (double)s->min_p, s->top_k);
    if (!(fabsf(s->presence) <= 100) || !(fabsf(s->frequency) <= 100) || !(s->repetition >= 0 && s->repetition <= 100))
        return err_set(e, ERR_INVALID, "penalties: presence %g, frequency %g (-100..100), repetition %g (0..100)", (double)s->presence,
                       (double)s->frequency, (double)s->repetition);
    if (r->n_bias > ENG_BIAS_MAX || r->top_logprobs > ENG_TOP_MAX)
        return err_set(e, ERR_INVALID, "expected at most %d biased tokens and %d top logprobs, found %u and %u", ENG_BIAS_MAX, ENG_TOP_MAX, r->n_bias,
                       r->top_logprobs);
    if (r->grammar_trigger && !r->grammar)
        return err_set(e, ERR_INVALID, "grammar trigger: expected a grammar beside it");
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].id < 0 || (uint32_t)r->bias[i].id >= vocab || !isfinite(r->bias[i].bias))
            return err_set(e, ERR_INVALID, "bias of token %d: expected an id below %u and a finite value", r->bias[i].id, vocab);
    return ERR_OK;
}

/* Text of one token. A marker's comes whole, between characters. */
static int push_text(const eng_engine *g, struct eng_seq *s, int32_t id)
{
    const eng_tok *tok = g->model->tok;
    if (!s->markers || !eng_format_is_marker(&g->model->format, id))
        return eng_detok_push(tok, &s->detok, id, true, &s->pending);
    int rc = eng_detok_end(tok, &s->detok, &s->pending);
    return rc || !buf_char(&s->pending, ENG_MARK) || !eng_tok_bytes(tok, id, &s->pending) ? ERR_NOMEM : ERR_OK;
}

/* Output of an earlier life goes through the decoder again, so that text continues in the middle of a character or a stop. */
static int replay(const eng_engine *g, struct eng_seq *s, struct err *e)
{
    for (uint32_t i = s->n_prompt; i < s->n_tokens; i++) {
        int rc = push_text(g, s, s->tokens[i]);
        if (rc)
            return err_set(e, rc, "decoding token %u of a resumed request", i);
    }
    size_t skip = s->text_skip < s->pending.len ? (size_t)s->text_skip : s->pending.len;
    buf_consume(&s->pending, skip);
    s->text_skip -= skip;
    return ERR_OK;
}

/* Output of an earlier life goes through the grammar on the scheduler's thread, which owns the automaton. */
static int lease_grammar(const eng_engine *g, struct eng_seq *s, const struct eng_request *r, struct err *e)
{
    eng_grammar *grammar;
    int rc = r->grammar ? eng_grammars_lease(g->grammars, r->grammar, r->grammar_n, &grammar, e) : ERR_OK;
    if (!r->grammar || rc)
        return rc;
    if ((rc = eng_guide_open(&s->guide, grammar, g->vocab, r->grammar_trigger, r->grammar_trigger_n, e)))
        eng_grammars_release(g->grammars, grammar);
    if (rc)
        s->guide = (struct eng_guide){0};
    return rc;
}

int eng_seq_new(struct eng_seq **out, const eng_engine *g, const struct eng_request *r, struct err *e)
{
    *out = NULL;
    int rc = check_request(g, r, e);
    if (rc)
        return rc;
    struct eng_seq *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "request");
    uint32_t n_prompt = r->n_ids - r->n_done, room = g->c.ctx - n_prompt;
    s->max_tokens = r->max_tokens && r->max_tokens < room ? r->max_tokens : room;
    s->tokens_cap = n_prompt + s->max_tokens;
    buf_init(&s->pending, PENDING_MAX);
    if (s->tokens_cap < r->n_ids || !(s->tokens = malloc(s->tokens_cap * sizeof *s->tokens)) || !buf_reserve(&s->pending, 4096) ||
        (r->n_bias && !(s->bias = malloc(r->n_bias * sizeof *s->bias)))) {
        rc = s->tokens_cap < r->n_ids ? err_set(e, ERR_INVALID, "resumed with %u tokens of output, at most %u were asked for", r->n_done, s->max_tokens)
                                      : err_set(e, ERR_NOMEM, "request of %u tokens", s->tokens_cap);
        eng_seq_free(g, s);
        return rc;
    }
    memcpy(s->tokens, r->ids, r->n_ids * sizeof *s->tokens);
    s->id = r->id;
    s->far = g->model->plan->ctx_switch && s->tokens_cap > g->model->plan->ctx_switch;
    s->n_tokens = r->n_ids;
    s->n_prompt = n_prompt;
    s->n_out = r->n_done;
    s->min_tokens = r->min_tokens;
    s->ignore_eos = r->ignore_eos;
    s->markers = r->markers;
    s->sampling = r->sampling;
    if ((s->n_bias = r->n_bias))
        memcpy(s->bias, r->bias, r->n_bias * sizeof *s->bias);
    s->logprobs = r->logprobs;
    s->top_logprobs = r->top_logprobs;
    s->stop = -1;
    s->text_skip = r->text_skip;
    s->deadline_ns = r->deadline_ns;
    s->priority = r->priority;
    const char *tenant = r->tenant ? r->tenant : "default";
    s->tenant = (uint32_t)(hash_bytes(tenant, strlen(tenant), 0) % ENG_TENANTS);
    s->submit_ns = clock_now_ns();
    s->usage.prompt_tokens = n_prompt;
    s->stops.n = r->n_stops;
    for (uint32_t i = 0; i < r->n_stops; i++) {
        s->stops.len[i] = r->stop_lens[i];
        memcpy(s->stops.text[i], r->stops[i], r->stop_lens[i]);
    }
    eng_detok_init(&s->detok);
    if ((g->prefix && (rc = eng_prefix_scope(g->prefix, tenant, s->far, &s->chain, e))) || (rc = lease_grammar(g, s, r, e)) || (rc = replay(g, s, e))) {
        eng_seq_free(g, s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

void eng_seq_free(const eng_engine *g, struct eng_seq *s)
{
    if (!s)
        return;
    eng_grammars_release(g->grammars, s->guide.grammar);
    eng_guide_close(&s->guide);
    buf_free(&s->pending);
    free(s->tokens);
    free(s->bias);
    free(s);
}

static void skip_sent(struct eng_seq *s)
{
    if (!s->text_skip)
        return;
    size_t k = s->text_skip < s->pending.len ? (size_t)s->text_skip : s->pending.len;
    buf_consume(&s->pending, k);
    s->text_skip -= k;
}

bool eng_seq_is_eos(const eng_engine *g, int32_t id)
{
    size_t n;
    const int32_t *eos = eng_tok_eos(g->model->tok, &n);
    for (size_t i = 0; i < n; i++)
        if (eos[i] == id)
            return true;
    return false;
}

bool eng_seq_token(eng_engine *g, struct eng_seq *s, int32_t id, const struct eng_logprobs *lp, enum eng_finish *f, struct err *e)
{
    s->tokens[s->n_tokens++] = id;
    s->n_out++;
    s->usage.output_tokens = s->n_out;
    bool over = false;
    if (!s->ignore_eos && eng_seq_is_eos(g, id)) {
        *f = ENG_STOP;
        over = true;
    } else if (push_text(g, s, id) || s->pending.failed) {
        *f = ENG_FAILED;
        err_set(e, ERR_NOMEM, "text of token %d", id);
        return true;
    }
    skip_sent(s);
    size_t ready;
    uint32_t which;
    if (eng_stops_scan(&s->stops, s->pending.data, s->pending.len, &ready, &which)) {
        *f = ENG_STOP;
        s->stop = (int32_t)which;
        s->pending.len = ready; /* nothing after it ever leaves */
        over = true;
    } else if (!over && s->guide.grammar && eng_guide_over(&s->guide)) {
        *f = ENG_STOP; /* whole, and nothing may follow: there is no need to ask for the end */
        over = true;
    } else if (!over && (s->n_out >= s->max_tokens || s->n_tokens >= g->c.ctx)) {
        *f = ENG_LENGTH;
        over = true;
    }
    struct eng_event ev = {.type = ENG_EV_TOKEN, .id = s->id, .token = id, .n_out = s->n_out,
                           .text = s->pending.data ? s->pending.data : "", .n = over ? 0 : ready, .logprobs = lp};
    g->event(g->ctx, &ev);
    if (!over)
        buf_consume(&s->pending, ready);
    return over;
}

void eng_seq_done(eng_engine *g, struct eng_seq *s, enum eng_finish f, const struct err *why)
{
    if (f == ENG_STOP || f == ENG_LENGTH) {
        size_t stop_at;
        uint32_t which;
        bool stopped = eng_stops_scan(&s->stops, s->pending.data ? s->pending.data : "", s->pending.len, &stop_at, &which);
        if (!stopped) /* an unfinished character leaves as U+FFFD, held-back text as it is */
            eng_detok_end(g->model->tok, &s->detok, &s->pending);
        skip_sent(s);
    } else {
        s->pending.len = 0;
    }
    uint64_t now = clock_now_ns();
    s->usage.queue_ns = (s->admit_ns ? s->admit_ns : now) - s->submit_ns;
    s->usage.prefill_ns = s->admit_ns ? (s->first_ns ? s->first_ns : now) - s->admit_ns : 0;
    s->usage.decode_ns = s->first_ns ? now - s->first_ns : 0;
    s->finished = true;
    struct eng_event ev = {.type = ENG_EV_DONE, .id = s->id, .n_out = s->n_out, .text = s->pending.data ? s->pending.data : "",
                           .n = s->pending.len, .finish = f, .stop = f == ENG_STOP ? s->stop : -1, .usage = &s->usage, .err = f == ENG_FAILED ? why : NULL};
    g->event(g->ctx, &ev);
}
