/* What the client of a request sees: pieces as they come, or one whole answer, or an error. All on the exchange's loop.
 *
 * The first choice that ends badly ends the answer: the others are cancelled, and their ends only settle accounts. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "gateway/chat_internal.h"
#include "gateway/openai_out.h"

#define TEXT_KEPT 1024 /* a token's text; a whole answer's memory goes back */

void gw_chat_end_error(const struct gw_chat *c, const struct gw_stream_event *ev, struct gw_api_error *ae)
{
    int code = ev->err.code;
    if (ev->type == GW_ST_DONE && ev->finish == ENG_FAILED && code == ERR_INVALID) { /* the caller's own doing: a grammar that this model cannot follow */
        gw_api_error_set(ae, 400, "invalid_grammar", NULL, "The answer cannot go on: %s", ev->err.msg);
        ae->no_retry = true;
    } else if (ev->type == GW_ST_DONE && ev->finish == ENG_FAILED) {
        gw_api_error_set(ae, 500, "engine_error", NULL, "The engine failed while answering: %s", ev->err.msg);
        ae->no_retry = true;
    } else if ((ev->type == GW_ST_DONE && ev->finish == ENG_DEADLINE) || (ev->type == GW_ST_LOST && code == ERR_TIMEOUT)) {
        gw_api_error_set(ae, 504, "deadline_exceeded", NULL, "The request did not finish within the time this server allows.");
        ae->no_retry = true;
    } else if (ev->type == GW_ST_REFUSED && code == ERR_LIMIT) {
        gw_api_error_set(ae, 400, "context_length_exceeded", c->req.prompts ? "prompt" : "messages", "%s", ev->err.msg);
    } else if (ev->type == GW_ST_REFUSED && (code == ERR_INVALID || code == ERR_UNSUPPORTED)) {
        gw_api_error_set(ae, 400, code == ERR_INVALID ? "invalid_value" : "unsupported_value", NULL, "%s", ev->err.msg);
    } else if (ev->type != GW_ST_DONE && code == ERR_AGAIN) {
        gw_api_error_set(ae, 429, "queue_full", NULL, "The engine's queue is full: %s", ev->err.msg);
        ae->retry_after_s = gw_app_retry_s(c->app, c->served, atomic_load(&c->app->waiting));
    } else if (ev->type == GW_ST_DONE || code == ERR_CLOSED) {
        gw_api_error_set(ae, 503, "engine_unavailable", NULL, "The engine went away: %s", ev->type == GW_ST_DONE ? "it is stopping" : ev->err.msg);
        ae->retry_after_s = 5;
    } else {
        gw_api_error_set(ae, 500, "engine_error", NULL, "The engine did not take the request: %s", ev->err.msg);
        ae->no_retry = true;
    }
}

void gw_chat_cancel(struct gw_chat *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++)
        if (c->choices[i].submitted && !c->choices[i].finished)
            gw_engine_cancel(c->app->cfg.engine, c->choices[i].stream_id);
}

void gw_chat_pause(struct gw_chat *c, bool paused)
{
    c->paused = paused;
    atomic_store(&c->run.paused, paused);
    for (uint32_t i = 0; i < c->n_choices; i++)
        if (c->choices[i].submitted && !c->choices[i].finished)
            gw_engine_pause(c->app->cfg.engine, c->choices[i].stream_id, paused);
}

static void drop_exchange(struct gw_chat *c)
{
    c->x = NULL;
    gw_chat_unref(c);
}

static bool ended_well(const struct gw_stream_event *ev) { return ev->type == GW_ST_DONE && gw_out_finish_reason(ev->finish); }

/* Prompts count once, however many answers they got; choices run beside each other, so their times do not add up. */
static struct eng_usage sum_usage(const struct gw_chat *c)
{
    struct eng_usage u = {0};
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct eng_usage *one = &c->choices[i].end.usage;
        if (!i || c->choices[i].prompt != c->choices[i - 1].prompt) {
            u.prompt_tokens += one->prompt_tokens;
            u.cached_tokens += one->cached_tokens;
        }
        u.output_tokens += one->output_tokens;
        u.reasoning_tokens += c->choices[i].n_reasoning;
        u.draft_tokens += one->draft_tokens;
        u.draft_accepted += one->draft_accepted;
        u.queue_ns = one->queue_ns > u.queue_ns ? one->queue_ns : u.queue_ns;
        u.prefill_ns = one->prefill_ns > u.prefill_ns ? one->prefill_ns : u.prefill_ns;
        u.decode_ns = one->decode_ns > u.decode_ns ? one->decode_ns : u.decode_ns;
    }
    return u;
}

/* The text at hand into its reader, as it came: a token is one of reasoning if the reading stood there before or after it, so that
 * the token that completes the mark at either end counts. False: memory. */
static bool read_text(struct gw_choice *k, bool ended)
{
    const struct gw_cut *cut = (const void *)k->cuts_out.data;
    size_t at = 0;
    bool ok = !k->cuts_out.failed;
    for (size_t i = 0; ok && i < k->cuts_out.len / sizeof *cut; at += cut[i++].bytes) {
        bool in = gw_calls_in_reasoning(k->calls);
        ok = gw_calls_feed(k->calls, k->text.data ? k->text.data + at : "", cut[i].bytes, false);
        k->n_reasoning += in || gw_calls_in_reasoning(k->calls) ? cut[i].tokens : 0;
    }
    return ok && gw_calls_feed(k->calls, k->text.data ? k->text.data + at : "", k->text.len - at, ended);
}

/* The parts that the text at hand makes. */
static bool make_parts(struct gw_choice *k, bool ended, struct gw_piece *p)
{
    if (!k->calls) {
        k->plain = (struct gw_part){.type = GW_PART_CONTENT, .s = k->text.data, .n = k->text.len};
        p->part = &k->plain;
        p->n = k->text.len > 0;
        return true;
    }
    bool ok = read_text(k, ended);
    p->n = gw_calls_parts(k->calls, &p->part);
    p->calls = gw_calls_made(k->calls);
    return ok;
}

/* What a choice has to say from its text and toks_out. False: memory. */
static bool make_piece(struct gw_chat *c, struct gw_choice *k, bool ended, struct gw_piece *p)
{
    bool stopped = ended && k->end.finish == ENG_STOP && k->end.stop >= 0;
    *p = (struct gw_piece){.index = k->index, .first = !k->begun, .blocks = &k->blocks, .ended = ended,
                           .finish = ended ? k->end.finish : ENG_STOP, .stop = ended ? k->end.stop : -1};
    k->delivered += k->text.len;
    if (k->text.failed || !make_parts(k, ended, p))
        return false;
    if (!c->head.logprobs)
        return true;
    if (!gw_lp_add(&k->lp, c->head.tok, (const void *)k->toks_out.data, k->toks_out.len / sizeof(struct gw_lp_token)))
        return false;
    p->lp = &k->lp;
    p->n_lp = gw_lp_ready(&k->lp, k->delivered, ended && !stopped);
    return !k->toks_out.failed;
}

/* What was taken is through. Its memory serves again: text is put in by another thread, and memory that one asks for and the other gives
 * back makes the two wait for each other. */
static void drop_taken(struct gw_choice *k)
{
    if (k->text.cap > TEXT_KEPT)
        buf_free(&k->text);
    else
        buf_reset(&k->text);
    buf_reset(&k->toks_out);
    buf_reset(&k->cuts_out);
}

static void piece_done(struct gw_choice *k, const struct gw_piece *p)
{
    k->begun = true;
    k->finished |= p->ended;
    if (p->lp)
        gw_lp_drop(&k->lp, p->n_lp);
    if (k->calls)
        gw_calls_drop(k->calls);
    drop_taken(k);
}

static void answer_error(struct gw_chat *c, const struct gw_api_error *ae)
{
    if (gw_chat_admitted(c))
        gw_chat_cancel(c);
    gw_app_error(c->app, c->x, c->api->route, ae);
    drop_exchange(c);
}

static void answer_whole(struct gw_chat *c)
{
    struct gw_api_error ae;
    struct gw_piece one, *p = c->n_choices == 1 ? &one : calloc(c->n_choices, sizeof *p);
    struct buf *b = gw_loop_scratch(c->loop);
    bool ok = p != NULL, memory = true;
    for (uint32_t i = 0; i < c->n_choices && ok; i++)
        ok = make_piece(c, &c->choices[i], true, &p[i]);
    if (ok) {
        struct eng_usage u = sum_usage(c);
        c->api->whole(b, &c->head, p, c->n_choices, &u);
        memory = !b->failed;
        for (uint32_t i = 0; i < c->n_choices; i++)
            piece_done(&c->choices[i], &p[i]);
    }
    if (ok && memory) {
        gw_metrics_answer(&c->app->metrics, c->api->route, 200);
        struct gw_app_headers h;
        gw_app_headers(&h, c->api->route, c->x, c->tenant);
        gw_respond(c->x, 200, "application/json", h.h, h.n, b->data, b->len);
        drop_exchange(c);
    } else if (p && !ok) {
        gw_api_error_set(&ae, 500, "engine_error", NULL, "The answer is longer than this server can hold; ask for a stream.");
        answer_error(c, &ae);
    } else {
        gw_api_error_set(&ae, 503, NULL, NULL, "Out of memory while writing the answer.");
        answer_error(c, &ae);
    }
    if (p != &one)
        free(p);
}

/* Writes what was taken; failed: the end of a choice that ended badly. */
static void write_pieces(struct gw_chat *c, const struct gw_stream_event *failed)
{
    struct gw_api_error ae;
    struct buf *b = gw_loop_scratch(c->loop);
    bool lost = false;
    uint32_t finished = 0;
    for (uint32_t i = 0; i < c->n_choices && !lost; i++) {
        struct gw_choice *k = &c->choices[i];
        struct gw_piece p;
        bool ended = !failed && k->end_taken && !k->finished;
        if (!k->finished && (k->text.len || k->toks_out.len || k->cuts_out.len || ended || k->text.failed)) {
            lost = !make_piece(c, k, ended, &p);
            if (!lost && (p.n || p.n_lp || ended)) {
                c->api->piece(b, &c->head, &p);
                piece_done(k, &p);
            } else if (!lost) { /* all of it waits */
                drop_taken(k);
            }
        }
        finished += k->finished;
    }
    if (failed) {
        gw_chat_end_error(c, failed, &ae);
        c->api->error(b, &ae);
    } else if (finished == c->n_choices) {
        struct eng_usage u = sum_usage(c);
        c->api->end(b, &c->head, &(struct gw_piece){.ended = true, .finish = c->choices[0].end.finish, .stop = c->choices[0].end.stop,
                                                                   .calls = c->choices[0].calls ? gw_calls_made(c->choices[0].calls) : 0}, &u);
    }
    lost |= b->failed;
    bool over = lost || failed || finished == c->n_choices;
    int rc = !over && b->len ? gw_stream_write(c->x, b->data, b->len) : ERR_OK;
    if (over) {
        if (finished < c->n_choices)
            gw_chat_cancel(c);
        if (lost) /* a hole in the text must not look like a whole answer */
            gw_abort(c->x);
        else
            gw_stream_finish(c->x, b->data, b->len); /* the end travels with the last piece */
        drop_exchange(c);
    } else if (rc == ERR_AGAIN) {
        gw_chat_pause(c, true);
    }
}

void gw_chat_break(struct gw_chat *c, const struct gw_api_error *ae)
{
    struct buf b;
    atomic_store(&c->gone, 1 + GW_GONE_CLOSED); /* a prompt that is being prepared goes no further */
    if (!c->begun) {
        answer_error(c, ae);
        return;
    }
    buf_init(&b, 1u << 16);
    c->api->error(&b, ae);
    if (gw_chat_admitted(c))
        gw_chat_cancel(c);
    gw_stream_finish(c->x, b.data, b.len);
    drop_exchange(c);
    buf_free(&b);
}

void gw_chat_deliver(struct gw_chat *c)
{
    uint32_t ended = 0;
    const struct gw_stream_event *failed = NULL;
    if (!c->x || c->paused)
        return;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        ended += c->choices[i].ended;
        if (c->choices[i].ended && !ended_well(&c->choices[i].end) && !failed)
            failed = &c->choices[i].end; /* written once, before `ended` */
    }
    for (uint32_t i = 0; i < c->n_choices && (c->streaming || ended == c->n_choices); i++) {
        struct gw_choice *k = &c->choices[i];
        struct buf text = k->text, toks = k->toks_out, cuts = k->cuts_out; /* empty */
        if (k->finished)
            continue;
        atomic_fetch_sub(&c->app->pending, k->counted);
        k->counted = 0;
        k->end_taken = k->ended; /* all of its text is in what is taken now */
        k->text = k->pend;
        k->pend = text;
        k->toks_out = k->toks;
        k->toks = toks;
        k->cuts_out = k->cuts;
        k->cuts = cuts;
    }
    pthread_mutex_unlock(&c->lock);
    if (c->streaming) {
        write_pieces(c, failed);
    } else if (failed) {
        struct gw_api_error ae;
        gw_chat_end_error(c, failed, &ae);
        answer_error(c, &ae);
    } else if (ended == c->n_choices) {
        answer_whole(c);
    }
}
