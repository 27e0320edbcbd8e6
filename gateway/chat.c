/* One request for text, from the whole request to the end of its answer.
 *
 *   loop     gw_chat_start    the tenant's place is taken, the body moved out        -> worker
 *   worker   prepare          JSON, template, tokens, length, choices (chat_prepare.c)
 *            admit            queue and rate are charged, submit                     -> engine; a stream or an error: -> loop
 *   client   on_engine        text is put into the choice's `pend`; its end settles  -> loop
 *   loop     pump             pend -> pieces, or the whole answer (chat_answer.c)
 *   loop     on_gone          at any time: x dies, the engine is told to cancel
 *
 * A request has one choice, or prompts times n: each is a stream of the engine's. The object is counted: one reference each for the
 * exchange, the worker's job, each choice's stream and a posted task. What crosses from client to loop does so under `lock`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/chat_internal.h"
#include "gateway/openai_out.h"

#define SMALL_BODY 8192 /* bytes of a request that is prepared in no time */

static void choices_free(struct gw_chat *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++) {
        struct gw_choice *k = &c->choices[i];
        atomic_fetch_sub(&c->app->pending, k->counted);
        buf_free(&k->pend);
        buf_free(&k->toks);
        buf_free(&k->text);
        buf_free(&k->toks_out);
        buf_free(&k->cuts);
        buf_free(&k->cuts_out);
        gw_lp_free(&k->lp);
        gw_calls_close(k->calls);
    }
    free(c->choices);
}

void gw_chat_unref(struct gw_chat *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    gw_runs_remove(&c->app->runs, &c->run);
    choices_free(c);
    free(c->body);
    free(c->stops);
    arena_free(&c->kept);
    gw_call_grammar_free(&c->calls_grammar);
    eng_ids_free(&c->ids);
    gw_served_unref(c->served);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bool post(struct gw_chat *c, void (*fn)(void *))
{
    atomic_fetch_add(&c->refs, 1);
    if (!gw_loop_post(c->loop, fn, c))
        return true;
    gw_chat_unref(c);
    return false;
}

/* ---- the end of a choice ----------------------------------------------------------------------------------- */

static enum gw_outcome outcome_of(struct gw_chat *c, const struct gw_stream_event *ev)
{
    if (ev->type == GW_ST_REFUSED)
        return GW_OUT_REFUSED;
    if (ev->type == GW_ST_LOST)
        return GW_OUT_LOST;
    switch (ev->finish) {
    case ENG_STOP: return GW_OUT_STOP;
    case ENG_LENGTH: return GW_OUT_LENGTH;
    case ENG_CANCELLED: return atomic_load(&c->gone) == 1 + GW_GONE_STALLED ? GW_OUT_STALLED : GW_OUT_CANCELLED;
    case ENG_DEADLINE: return GW_OUT_DEADLINE;
    default: return GW_OUT_FAILED;
    }
}

/* n choices are over; with the last one the tenant's place is free. */
static void leave(struct gw_chat *c, uint32_t n, uint64_t now)
{
    if (atomic_fetch_sub(&c->n_left, n) == n)
        gw_tenant_leave(c->tenant, atomic_load(&c->out), now);
}

static void log_usage(struct gw_chat *c, const struct gw_choice *k, const struct gw_stream_event *ev, const char *outcome, uint32_t out, uint64_t now)
{
    struct gw_usage_line u = {.choice = k->index, .prompt_tokens = k->n_prompt, .cached_tokens = ev->type == GW_ST_DONE ? ev->usage.cached_tokens : 0,
                              .output_tokens = out, .outcome = outcome, .ttft_ns = k->n_out ? k->first_ns - c->start_ns : 0, .ns = now - c->start_ns};
    struct buf b;
    buf_init(&b, 8192);
    gw_line_usage(&b, &c->run, &u);
    if (!b.failed)
        gw_journal_put(c->app->cfg.usage, b.data, b.len);
    buf_free(&b);
}

static void log_prompt(struct gw_chat *c)
{
    struct buf b;
    buf_init(&b, GW_JOURNAL_MAX / 4);
    gw_line_prompt(&b, &c->run, c->body, c->body_n);
    if (!b.failed)
        gw_journal_put(c->app->cfg.usage, b.data, b.len);
    buf_free(&b);
}

/* Client's thread, once a choice: gives back what it held and counts it. */
static void settle(struct gw_chat *c, struct gw_choice *k, const struct gw_stream_event *ev)
{
    struct gw_metrics *m = &c->app->metrics;
    uint64_t now = clock_now_ns();
    uint32_t out = ev->type == GW_ST_DONE && ev->usage.output_tokens > k->n_out ? ev->usage.output_tokens : k->n_out;
    enum gw_outcome outcome = outcome_of(c, ev);
    log_debug("chat ended id=%s trace=%s choice=%u tenant=%s outcome=%s prompt=%u cached=%u output=%u ttft_ms=%.1f ms=%.1f", c->head.id, c->trace, k->index,
              gw_tenant_name(c->tenant), gw_outcome_name(outcome), k->n_prompt, ev->usage.cached_tokens, out,
              k->n_out ? (double)(k->first_ns - c->start_ns) * 1e-6 : 0.0, (double)(now - c->start_ns) * 1e-6);
    if (c->app->cfg.usage)
        log_usage(c, k, ev, gw_outcome_name(outcome), out, now);
    if (k->queued)
        gw_app_queue_leave(c->app, c->tenant, k->n_prompt);
    k->queued = false;
    atomic_fetch_add(&c->out, out);
    leave(c, 1, now);
    atomic_fetch_add(&m->outcomes[outcome], 1);
    atomic_fetch_add(&m->tokens_out, out);
    gw_histogram_add(&m->duration, now - c->start_ns);
    if (k->n_out > 1)
        gw_histogram_add(&m->tpot, (k->last_ns - k->first_ns) / (k->n_out - 1));
    if (ev->type == GW_ST_DONE) {
        atomic_fetch_add(&m->tokens_in, ev->usage.prompt_tokens);
        atomic_fetch_add(&m->tokens_cached, ev->usage.cached_tokens);
        if (ev->finish == ENG_STOP || ev->finish == ENG_LENGTH)
            gw_app_served_one(c->app, &ev->usage);
    }
}

/* ---- loop --------------------------------------------------------------------------------------------------- */

/* Its head. What the worker makes is not looked at. */
static void begin_stream(struct gw_chat *c)
{
    c->begun = true;
    gw_metrics_answer(&c->app->metrics, c->api->route, 200);
    struct gw_app_headers h;
    gw_app_headers(&h, c->api->route, c->x, c->tenant);
    gw_stream_start(c->x, 200, NULL, h.h, h.n, c->api->heartbeat);
}

static void open_stream(struct gw_chat *c)
{
    struct buf *b = gw_loop_scratch(c->loop);
    if (!c->begun)
        begin_stream(c);
    c->opened = true;
    if (!c->api->begin)
        return;
    c->api->begin(b, &c->head);
    if (gw_stream_write(c->x, b->data, b->len) == ERR_AGAIN)
        gw_chat_pause(c, true);
}

static void pump(void *arg)
{
    struct gw_chat *c = arg;
    pthread_mutex_lock(&c->lock);
    c->posted = false;
    pthread_mutex_unlock(&c->lock);
    if (c->x && c->ae.status) { /* what the worker found wrong, or had no room for */
        gw_chat_break(c, &c->ae);
    } else if (c->x) {
        if (c->streaming && !c->opened)
            open_stream(c);
        gw_chat_deliver(c);
    }
    gw_chat_unref(c);
}

static void on_room(void *ctx, gw_exchange *x)
{
    struct gw_chat *c = ctx;
    (void)x;
    if (!c->paused)
        return;
    gw_chat_pause(c, false);
    gw_chat_deliver(c);
}

/* A prompt that takes as long as a heartbeat: its stream begins before it is known whether it fits, and an error comes as an event. */
static void on_slow(void *ctx, gw_exchange *x)
{
    struct gw_chat *c = ctx;
    (void)x;
    pthread_mutex_lock(&c->lock);
    bool early = c->streaming && !c->admitted;
    pthread_mutex_unlock(&c->lock);
    if (early)
        begin_stream(c);
}

static void on_gone(void *ctx, gw_exchange *x, enum gw_gone why)
{
    struct gw_chat *c = ctx;
    (void)x;
    atomic_store(&c->gone, 1 + (int)why);
    if (gw_chat_admitted(c))
        gw_chat_cancel(c);
    c->x = NULL;
    gw_chat_unref(c);
}

/* ---- client's thread -------------------------------------------------------------------------------------- */

static void count_tokens(struct gw_chat *c, struct gw_choice *k, const struct gw_stream_event *ev, uint64_t now)
{
    if ((ev->type == GW_ST_STARTED || ev->n_tokens) && k->queued) {
        gw_app_queue_leave(c->app, c->tenant, k->n_prompt);
        gw_histogram_add(&c->app->metrics.queue, now - c->submit_ns);
        k->queued = false;
        atomic_store(&c->run.state, GW_RUN_PREFILL);
    }
    if (!ev->n_tokens)
        return;
    atomic_store(&c->run.state, GW_RUN_DECODING);
    atomic_fetch_add(&c->run.output_tokens, ev->n_tokens);
    if (!k->n_out) {
        k->first_ns = now;
        if (!atomic_exchange(&c->first_seen, true))
            gw_histogram_add(&c->app->metrics.ttft, now - c->start_ns);
    }
    k->n_out += ev->n_tokens;
    k->last_ns = now;
}

static bool is_eos(const struct gw_chat *c, int32_t id)
{
    size_t n;
    const int32_t *eos = eng_tok_eos(c->served->tok->tok, &n);
    for (size_t i = 0; i < n && !c->no_eos; i++)
        if (eos[i] == id)
            return true;
    return false;
}

/* With the lock held. The token that ends an answer has no text and no entry. */
static void keep_tokens(struct gw_chat *c, struct gw_choice *k, const struct gw_stream_event *ev)
{
    struct gw_lp_token t;
    memset(&t, 0, sizeof t);
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        if (!is_eos(c, ev->ids[i])) {
            t.id = ev->ids[i];
            t.lp = ev->logprobs[i];
            buf_add(&k->toks, &t, sizeof t);
        }
}

static void on_engine(void *ctx, const struct gw_stream_event *ev)
{
    struct gw_choice *k = ctx;
    struct gw_chat *c = k->c;
    bool end = ev->type == GW_ST_DONE || ev->type == GW_ST_REFUSED || ev->type == GW_ST_LOST;

    count_tokens(c, k, ev, clock_now_ns());
    if (end)
        settle(c, k, ev);
    pthread_mutex_lock(&c->lock);
    size_t before = k->pend.len + k->toks.len + k->cuts.len;
    if (ev->n)
        buf_add(&k->pend, ev->text, ev->n);
    if (c->head.logprobs && ev->logprobs)
        keep_tokens(c, k, ev);
    if (k->calls && c->served->format.has_reasoning && (ev->n || ev->n_tokens)) {
        struct gw_cut cut = {(uint32_t)ev->n, ev->n_tokens};
        buf_add(&k->cuts, &cut, sizeof cut);
    }
    size_t more = k->pend.len + k->toks.len + k->cuts.len - before;
    k->counted += more;
    atomic_fetch_add(&c->app->pending, more);
    if (end) {
        k->ended = true;
        k->end = *ev;
        k->end.text = NULL;
        k->end.n = 0;
    }
    bool wake = !c->posted && c->admitted && (end || (c->streaming && ev->n));
    if (wake)
        c->posted = true;
    pthread_mutex_unlock(&c->lock);
    if (wake)
        post(c, pump); /* fails only when the loop has ended, and the exchange with it */
    if (end)
        gw_chat_unref(c);
}

/* ---- worker ----------------------------------------------------------------------------------------------- */

static void free_prompt(struct gw_chat *c) /* the engine client has its own copy */
{
    free(c->body);
    c->body = NULL;
    eng_ids_free(&c->ids);
    memset(&c->ids, 0, sizeof c->ids);
}

static int submit_error(struct gw_chat *c, const struct err *e)
{
    if (e->code == ERR_AGAIN) {
        gw_api_error_set(&c->ae, 429, "queue_full", NULL, "The server is full: %s. Try again later.", e->msg);
        c->ae.retry_after_s = gw_app_retry_s(c->app, c->served, atomic_load(&c->app->waiting));
    } else {
        gw_api_error_set(&c->ae, 503, "engine_unavailable", NULL, "The request cannot be sent to the engine: %s", e->msg);
        c->ae.retry_after_s = 5;
    }
    return c->ae.status;
}

static int submit(struct gw_chat *c, struct gw_choice *k)
{
    struct gw_app *a = c->app;
    struct err e;
    const struct gw_chat_req *q = &c->req;
    struct eng_request r = {
        .ids = c->ids.v + c->prompt_end[k->prompt] - k->n_prompt, .n_ids = k->n_prompt, .max_tokens = q->max_tokens, .min_tokens = q->min_tokens,
        .ignore_eos = q->ignore_eos, .markers = k->calls && c->served->format.n_markers, .sampling = q->sampling, .bias = q->bias, .n_bias = q->n_bias, .logprobs = q->logprobs, .top_logprobs = q->top_logprobs,
        .grammar = c->grammar, .grammar_n = c->grammar_n, .stops = q->stops, .stop_lens = q->stop_lens, .n_stops = q->n_stops,
        .deadline_ns = a->cfg.request_ms ? c->start_ns + a->cfg.request_ms * NS_PER_MS : 0,
        .priority = gw_tenant_limits_of(c->tenant).priority, .tenant = gw_tenant_name(c->tenant),
    };
    r.sampling.choice = k->index % q->n;
    if (c->calls_grammar.text.len && (!c->grammar || !c->calls_grammar.trigger.len)) { /* a demanded call rules over the form of an answer, a free one does not */
        r.grammar = c->calls_grammar.text.data;
        r.grammar_n = (uint32_t)c->calls_grammar.text.len;
        r.grammar_trigger = c->calls_grammar.trigger.len ? c->calls_grammar.trigger.data : NULL;
        r.grammar_trigger_n = (uint32_t)c->calls_grammar.trigger.len;
    }
    int rc = gw_app_queue_enter(a, c->tenant, c->served, k->n_prompt, &c->ae);
    if (rc)
        return rc;
    k->queued = k->submitted = true;
    atomic_fetch_add(&c->refs, 1);
    if (!gw_engine_submit(a->cfg.engine, &r, c->served, q->stream, on_engine, k, &k->stream_id, &e))
        return 0;
    k->queued = k->submitted = false;
    gw_app_queue_leave(a, c->tenant, k->n_prompt);
    gw_chat_unref(c);
    return submit_error(c, &e);
}

/* All choices are submitted or none goes on. On failure the tenant's place is given back, at once or by those that were. */
static int admit(struct gw_chat *c)
{
    struct err e;
    uint64_t retry_ms = 0;
    uint32_t i = 0;
    int rc = c->ae.status;
    if (rc || !c->n_choices) {
        gw_tenant_leave(c->tenant, 0, clock_now_ns());
        return rc ? rc : gw_api_error_set(&c->ae, 503, NULL, NULL, "The request was not read.");
    }
    if (gw_tenant_charge(c->tenant, c->ids.n, clock_now_ns(), &retry_ms, &e)) {
        rc = gw_api_error_set(&c->ae, 429, "rate_limit_exceeded", NULL, "Your %s.", e.msg);
        c->ae.retry_after_s = (uint32_t)((retry_ms + 999) / 1000);
    }
    c->submit_ns = clock_now_ns();
    atomic_store(&c->run.prompt_tokens, (unsigned)c->ids.n);
    atomic_store(&c->run.state, GW_RUN_QUEUED);
    if (c->app->cfg.usage && c->app->cfg.log_prompts && c->body)
        log_prompt(c);
    for (; i < c->n_choices && !rc; i++)
        if ((rc = submit(c, &c->choices[i])))
            break;
    if (rc) {
        gw_chat_cancel(c);
        leave(c, c->n_choices - i, clock_now_ns());
    }
    return rc;
}

bool gw_chat_admitted(struct gw_chat *c)
{
    pthread_mutex_lock(&c->lock);
    bool yes = c->admitted;
    pthread_mutex_unlock(&c->lock);
    return yes;
}

/* From here on the loop may look at all of it. What came from the engine meanwhile has waited for that. */
static void hand_over(struct gw_chat *c)
{
    bool news = c->ae.status || c->streaming;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_choices && !news; i++)
        news = c->choices[i].ended;
    c->admitted = true;
    c->posted = news;
    bool gone = atomic_load(&c->gone);
    pthread_mutex_unlock(&c->lock);
    if (gone)
        gw_chat_cancel(c); /* the loop saw its end too early to say so, or says it now as well */
    if (news)
        post(c, pump);
}

static void prepare(void *arg, struct arena *mem)
{
    struct gw_chat *c = arg;
    mem->bytes_max = c->app->cfg.prompt_bytes_max;
    c->mem = *mem;
    if (atomic_load(&c->gone)) {
        gw_tenant_leave(c->tenant, 0, clock_now_ns());
    } else {
        gw_chat_prepare(c);
        admit(c);
    }
    free_prompt(c);
    *mem = c->mem;
    c->mem = (struct arena){0};
    hand_over(c);
    gw_chat_unref(c);
}

/* ---- loop: the beginning ---------------------------------------------------------------------------------- */

static struct gw_chat *chat_new(struct gw_app *a, const struct gw_api *api, gw_exchange *x, const struct gw_request *r, gw_tenant *tenant)
{
    struct gw_chat *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    atomic_init(&c->refs, 1); /* the exchange's */
    c->app = a;
    c->api = api;
    c->loop = gw_exchange_loop(x);
    c->tenant = tenant;
    c->x = x;
    c->start_ns = clock_now_ns();
    gw_trace_id(gw_request_header(r, "traceparent"), c->trace);
    c->body = gw_exchange_take_body(x, &c->body_n);
    c->served = gw_engine_served(a->cfg.engine);
    arena_init(&c->kept, a->cfg.prompt_bytes_max);
    pthread_mutex_init(&c->lock, NULL);
    gw_out_id(c->head.id, api->id_prefix);
    c->head.created = clock_wall_s();
    return c;
}

static void refuse(struct gw_app *a, gw_exchange *x, enum gw_route r, int status, const char *code, uint64_t retry_ms, const char *msg)
{
    struct gw_api_error ae;
    gw_api_error_set(&ae, status, code, NULL, "%s", msg);
    ae.retry_after_s = (uint32_t)((retry_ms + 999) / 1000);
    gw_app_error(a, x, r, &ae);
}

void gw_chat_start(struct gw_app *a, const struct gw_api *api, gw_exchange *x, const struct gw_request *r, gw_tenant *tenant)
{
    struct err e;
    uint64_t retry_ms = 0;
    if (!tenant) {
        refuse(a, x, api->route, 401, "invalid_api_key", 0, "Incorrect API key provided.");
        return;
    }
    if (gw_tenant_enter(tenant, clock_now_ns(), &retry_ms, &e)) {
        refuse(a, x, api->route, 429, "rate_limit_exceeded", retry_ms, e.msg);
        return;
    }
    struct gw_chat *c = chat_new(a, api, x, r, tenant);
    if (!c || !c->served) {
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, api->route, 503, "engine_unavailable", 2000, c ? "No engine has described its model yet. Try again shortly." : "Out of memory.");
        if (c)
            gw_chat_unref(c);
        return;
    }
    c->head.model = c->served->d.id;
    c->head.fingerprint = c->served->fingerprint;
    c->run = (struct gw_running){.owner = c, .tenant = tenant, .id = c->head.id, .model = c->head.model, .path = gw_route_name(api->route), .start_ns = c->start_ns};
    snprintf(c->run.request_id, sizeof c->run.request_id, "%s", r->id);
    snprintf(c->run.client, sizeof c->run.client, "%s", r->client);
    gw_runs_add(&a->runs, &c->run);
    gw_exchange_watch(x, &(struct gw_watch){c, on_gone, on_room, on_slow});
    atomic_fetch_add(&c->refs, 1); /* the job's */
    if (gw_work_put(a->cfg.work, prepare, c, c->body_n > SMALL_BODY, &e)) {
        gw_chat_unref(c);
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, api->route, e.code == ERR_AGAIN ? 429 : 503, e.code == ERR_AGAIN ? "queue_full" : "engine_unavailable",
               1000ull * gw_app_retry_s(a, c->served, gw_work_waiting(a->cfg.work)), e.msg);
        c->x = NULL;
        gw_chat_unref(c);
    }
}
