/* One chat, from the whole request to the end of its answer.
 *
 *   loop     gw_chat_start    the tenant's place is taken, the body moved out        -> worker
 *   worker   prepare          JSON, template, tokens, length                         -> loop
 *   loop     prepared         queue and rate are charged, submit, headers go out     -> engine client
 *   client   on_engine        text is put into `pend`; the end settles the accounts  -> loop
 *   loop     pump             pend -> chunks, or the whole answer
 *   loop     on_gone          at any time: x dies, the engine is told to cancel
 *
 * The object is counted: one reference each for the exchange, the worker's job, the engine's stream and a posted task. Fields
 * are touched by the thread named beside them; what crosses from client to loop does so under `lock`. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/app_internal.h"
#include "gateway/openai_out.h"

#define ANSWER_BYTES_MAX (64u << 20)
static const char heartbeat[] = ": keep-alive\n\n";

struct gw_chat {
    atomic_int refs;
    struct gw_app *app;
    gw_loop *loop;
    gw_tenant *tenant;
    uint64_t start_ns;
    atomic_int gone;               /* 0, or 1 + enum gw_gone; set by the loop */

    gw_exchange *x;                /* loop; NULL: ended */
    bool streaming, role_sent, paused, submitted;
    uint64_t stream_id;

    char *body; size_t body_n;     /* worker, then loop */
    struct arena mem;
    struct gw_served *served;      /* kept to the end: head points into it */
    struct gw_chat_req req;
    struct eng_ids ids;
    struct gw_api_error ae;
    struct gw_answer_head head;

    uint64_t submit_ns, first_ns, last_ns; /* client */
    uint32_t n_prompt, n_out;
    bool queued;                   /* client, after prepared: a place in the queue is held */

    pthread_mutex_t lock;
    struct buf pend;               /* text not yet given to the exchange */
    bool posted, ended;
    struct gw_stream_event end;
};

static void unref(struct gw_chat *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    free(c->body);
    arena_free(&c->mem);
    eng_ids_free(&c->ids);
    gw_served_unref(c->served);
    buf_free(&c->pend);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static bool post(struct gw_chat *c, void (*fn)(void *))
{
    atomic_fetch_add(&c->refs, 1);
    if (!gw_loop_post(c->loop, fn, c))
        return true;
    unref(c);
    return false;
}

/* ---- the end of it ---------------------------------------------------------------------------------------- */

static void end_error(struct gw_app *a, const struct gw_chat *c, const struct gw_stream_event *ev, struct gw_api_error *ae)
{
    int code = ev->err.code;
    if (ev->type == GW_ST_DONE && ev->finish == ENG_FAILED) {
        gw_api_error_set(ae, 500, "engine_error", NULL, "The engine failed while answering: %s", ev->err.msg);
        ae->no_retry = true;
    } else if ((ev->type == GW_ST_DONE && ev->finish == ENG_DEADLINE) || (ev->type == GW_ST_LOST && code == ERR_TIMEOUT)) {
        gw_api_error_set(ae, 504, "deadline_exceeded", NULL, "The request did not finish within the time this server allows.");
        ae->no_retry = true;
    } else if (ev->type == GW_ST_REFUSED && code == ERR_LIMIT) {
        gw_api_error_set(ae, 400, "context_length_exceeded", "messages", "%s", ev->err.msg);
    } else if (ev->type == GW_ST_REFUSED && code == ERR_INVALID) {
        gw_api_error_set(ae, 400, "invalid_value", NULL, "%s", ev->err.msg);
    } else if (ev->type != GW_ST_DONE && code == ERR_AGAIN) {
        gw_api_error_set(ae, 429, "queue_full", NULL, "The engine's queue is full: %s", ev->err.msg);
        ae->retry_after_s = gw_app_retry_s(a, c->served, atomic_load(&a->waiting));
    } else if (ev->type == GW_ST_DONE || code == ERR_CLOSED) {
        gw_api_error_set(ae, 503, "engine_unavailable", NULL, "The engine went away: %s", ev->type == GW_ST_DONE ? "it is stopping" : ev->err.msg);
        ae->retry_after_s = 5;
    } else {
        gw_api_error_set(ae, 500, "engine_error", NULL, "The engine did not take the request: %s", ev->err.msg);
        ae->no_retry = true;
    }
}

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

/* Client's thread, once: gives back what the request held and counts it. */
static void settle(struct gw_chat *c, const struct gw_stream_event *ev)
{
    struct gw_metrics *m = &c->app->metrics;
    uint64_t now = clock_now_ns();
    uint32_t out = ev->type == GW_ST_DONE && ev->usage.output_tokens > c->n_out ? ev->usage.output_tokens : c->n_out;
    enum gw_outcome outcome = outcome_of(c, ev);
    log_debug("chat ended id=%s tenant=%s outcome=%s prompt=%u cached=%u output=%u ttft_ms=%.1f ms=%.1f", c->head.id, gw_tenant_name(c->tenant),
              gw_outcome_name(outcome), c->n_prompt, ev->usage.cached_tokens, out, c->n_out ? (double)(c->first_ns - c->start_ns) * 1e-6 : 0.0,
              (double)(now - c->start_ns) * 1e-6);
    if (c->queued)
        gw_app_queue_leave(c->app, c->n_prompt);
    c->queued = false;
    gw_tenant_leave(c->tenant, out, now);
    atomic_fetch_add(&m->outcomes[outcome], 1);
    atomic_fetch_add(&m->tokens_out, out - c->n_out); /* the others were counted as they came */
    gw_histogram_add(&m->duration, now - c->start_ns);
    if (c->n_out > 1)
        gw_histogram_add(&m->tpot, (c->last_ns - c->first_ns) / (c->n_out - 1));
    if (ev->type == GW_ST_DONE) {
        atomic_fetch_add(&m->tokens_in, ev->usage.prompt_tokens);
        atomic_fetch_add(&m->tokens_cached, ev->usage.cached_tokens);
        if (ev->finish == ENG_STOP || ev->finish == ENG_LENGTH)
            gw_app_served_one(c->app, &ev->usage);
    }
}

/* ---- loop: answering -------------------------------------------------------------------------------------- */

static void drop_exchange(struct gw_chat *c)
{
    c->x = NULL;
    unref(c);
}

static void answer_whole(struct gw_chat *c, const struct buf *text, const struct gw_stream_event *end)
{
    const char *reason = end->type == GW_ST_DONE ? gw_out_finish_reason(end->finish) : NULL;
    struct gw_api_error ae = {0};
    struct buf b;
    buf_init(&b, 8 * (size_t)ANSWER_BYTES_MAX);
    if (!reason)
        end_error(c->app, c, end, &ae);
    else if (text->failed)
        gw_api_error_set(&ae, 500, "engine_error", NULL, "The answer is longer than this server can hold; ask for a stream.");
    else
        gw_out_completion(&b, &c->head, text->len ? text->data : "", text->len, reason, &end->usage);
    if (!ae.status && b.failed)
        gw_api_error_set(&ae, 503, NULL, NULL, "Out of memory while writing the answer.");
    if (ae.status) {
        gw_app_error(c->app, c->x, GW_ROUTE_CHAT, &ae);
    } else {
        gw_metrics_answer(&c->app->metrics, GW_ROUTE_CHAT, 200);
        gw_respond(c->x, 200, "application/json", NULL, 0, b.data, b.len);
    }
    buf_free(&b);
    drop_exchange(c);
}

/* Writes what is there; true: the client lags, no more for now. */
static bool write_chunks(struct gw_chat *c, const struct buf *text, const struct gw_stream_event *end)
{
    struct gw_api_error ae;
    struct buf b;
    const char *reason = end && end->type == GW_ST_DONE ? gw_out_finish_reason(end->finish) : NULL;
    buf_init(&b, 8 * (size_t)ANSWER_BYTES_MAX);
    if (!c->role_sent && (text->len || reason)) {
        gw_out_chunk_role(&b, &c->head);
        c->role_sent = true;
    }
    if (text->len)
        gw_out_chunk_text(&b, &c->head, text->data, text->len);
    if (reason) {
        gw_out_chunk_end(&b, &c->head, reason, &end->usage);
    } else if (end) {
        end_error(c->app, c, end, &ae);
        gw_out_chunk_error(&b, &ae);
    }
    bool lost = b.failed || text->failed;
    bool lags = !lost && b.len && gw_stream_write(c->x, b.data, b.len) == ERR_AGAIN;
    buf_free(&b);
    if (lost) { /* a hole in the text must not look like a whole answer */
        gw_engine_cancel(c->app->cfg.engine, c->stream_id);
        gw_abort(c->x);
        drop_exchange(c);
        return false;
    }
    if (end) {
        gw_stream_end(c->x);
        drop_exchange(c);
        return false;
    }
    return lags;
}

/* Takes what has come and gives it to the exchange. */
static void deliver(struct gw_chat *c)
{
    struct buf text;
    struct gw_stream_event end;
    if (!c->x || (c->streaming && c->paused))
        return;
    pthread_mutex_lock(&c->lock);
    bool ended = c->ended;
    if (!c->streaming && !ended) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    text = c->pend;
    buf_init(&c->pend, ANSWER_BYTES_MAX);
    if (ended)
        end = c->end;
    pthread_mutex_unlock(&c->lock);

    if (!c->streaming) {
        answer_whole(c, &text, &end);
    } else if (write_chunks(c, &text, ended ? &end : NULL)) {
        c->paused = true;
        gw_engine_pause(c->app->cfg.engine, c->stream_id, true);
    }
    buf_free(&text);
}

static void pump(void *arg)
{
    struct gw_chat *c = arg;
    pthread_mutex_lock(&c->lock);
    c->posted = false;
    pthread_mutex_unlock(&c->lock);
    deliver(c);
    unref(c);
}

static void on_room(void *ctx, gw_exchange *x)
{
    struct gw_chat *c = ctx;
    (void)x;
    if (!c->paused)
        return;
    c->paused = false;
    gw_engine_pause(c->app->cfg.engine, c->stream_id, false);
    deliver(c);
}

static void on_gone(void *ctx, gw_exchange *x, enum gw_gone why)
{
    struct gw_chat *c = ctx;
    (void)x;
    atomic_store(&c->gone, 1 + (int)why);
    if (c->submitted)
        gw_engine_cancel(c->app->cfg.engine, c->stream_id);
    drop_exchange(c);
}

/* ---- client's thread -------------------------------------------------------------------------------------- */

static void on_engine(void *ctx, const struct gw_stream_event *ev)
{
    struct gw_chat *c = ctx;
    bool end = ev->type == GW_ST_DONE || ev->type == GW_ST_REFUSED || ev->type == GW_ST_LOST;
    uint64_t now = clock_now_ns();

    if (ev->type == GW_ST_STARTED || ev->n_tokens) {
        if (c->queued) {
            gw_app_queue_leave(c->app, c->n_prompt);
            gw_histogram_add(&c->app->metrics.queue, now - c->submit_ns);
        }
        c->queued = false;
    }
    if (ev->n_tokens) {
        if (!c->n_out) {
            c->first_ns = now;
            gw_histogram_add(&c->app->metrics.ttft, now - c->start_ns);
        }
        c->n_out += ev->n_tokens;
        atomic_fetch_add_explicit(&c->app->metrics.tokens_out, ev->n_tokens, memory_order_relaxed);
        c->last_ns = now;
    }
    if (end)
        settle(c, ev);
    pthread_mutex_lock(&c->lock);
    if (ev->n)
        buf_add(&c->pend, ev->text, ev->n);
    if (end) {
        c->ended = true;
        c->end = *ev;
        c->end.text = NULL;
        c->end.n = 0;
    }
    bool wake = !c->posted && (end || (c->streaming && ev->n));
    if (wake)
        c->posted = true;
    pthread_mutex_unlock(&c->lock);
    if (wake)
        post(c, pump); /* fails only when the loop has ended, and the exchange with it */
    if (end)
        unref(c);
}

/* ---- worker ----------------------------------------------------------------------------------------------- */

static int prompt_error(struct gw_chat *c, const struct err *e)
{
    if (e->code == ERR_LIMIT && c->ids.n >= c->ids.max)
        return gw_api_error_set(&c->ae, 400, "context_length_exceeded", "messages",
                                "This model's maximum context length is %u tokens. However, your messages resulted in more than %zu tokens. Please reduce the length of the messages.",
                                c->served->d.ctx, c->ids.max);
    if (e->code == ERR_NOMEM)
        return gw_api_error_set(&c->ae, 400, "prompt_too_large", "messages", "The messages need more memory than this server gives one request: %s", e->msg);
    return gw_api_error_set(&c->ae, 400, "invalid_value", "messages", "The messages cannot be rendered for this model: %s", e->msg);
}

static int check_lengths(struct gw_chat *c)
{
    uint32_t most = gw_tenant_limits_of(c->tenant)->max_tokens;
    if (most && c->req.max_tokens > most)
        return gw_api_error_set(&c->ae, 400, "invalid_value", json_get(c->req.body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens",
                                "%u tokens were asked for, but this key's limit is %u per request.", c->req.max_tokens, most);
    if (!c->req.max_tokens)
        c->req.max_tokens = most;
    if (c->ids.n >= c->served->d.ctx) /* room for one token of output is needed */
        return gw_api_error_set(&c->ae, 400, "context_length_exceeded", "messages",
                                "This model's maximum context length is %u tokens. However, your messages resulted in %zu tokens. Please reduce the length of the messages.",
                                c->served->d.ctx, c->ids.n);
    return 0;
}

static int render(struct gw_chat *c)
{
    struct err e = {0};
    c->req.sampling = c->served->d.sampling;
    if (gw_openai_parse_chat(&c->req, c->body ? c->body : "", c->body_n, &c->mem, &c->ae))
        return c->ae.status;
    if (!gw_served_is(c->served, c->req.model))
        return gw_api_error_set(&c->ae, 404, "model_not_found", "model", "The model '%.200s' does not exist or you do not have access to it.", c->req.model);
    if (!c->served->chat)
        return gw_api_error_set(&c->ae, 400, "unsupported_value", "model", "The model '%.200s' has no chat template.", c->req.model);
    c->ids.max = c->app->cfg.prompt_bytes_max / 16;
    if (eng_chat_prompt(c->served->chat, c->req.body, clock_wall_s(), &c->mem, &c->ids, &e))
        return prompt_error(c, &e);
    if (!c->req.seed_given && !hash_random(&c->req.sampling.seed, sizeof c->req.sampling.seed))
        return gw_api_error_set(&c->ae, 503, NULL, NULL, "No random bytes for a seed.");
    return check_lengths(c);
}

static void prepared(void *arg);

static void prepare(void *arg)
{
    struct gw_chat *c = arg;
    if (!atomic_load(&c->gone))
        render(c);
    if (!post(c, prepared))
        gw_tenant_leave(c->tenant, 0, clock_now_ns()); /* the loop has ended: nobody waits for an answer */
    unref(c);
}

/* ---- loop: from prepared to submitted --------------------------------------------------------------------- */

static void free_prompt(struct gw_chat *c) /* the engine client has its own copy */
{
    free(c->body);
    c->body = NULL;
    arena_free(&c->mem);
    eng_ids_free(&c->ids);
    memset(&c->ids, 0, sizeof c->ids);
}

static int submit(struct gw_chat *c)
{
    struct gw_app *a = c->app;
    struct err e;
    const struct gw_chat_req *q = &c->req;
    struct eng_request r = {
        .ids = c->ids.v, .n_ids = (uint32_t)c->ids.n, .max_tokens = q->max_tokens, .min_tokens = q->min_tokens, .ignore_eos = q->ignore_eos,
        .sampling = q->sampling, .stops = q->stops, .stop_lens = q->stop_lens, .n_stops = q->n_stops,
        .deadline_ns = a->cfg.request_ms ? c->start_ns + a->cfg.request_ms * NS_PER_MS : 0,
        .priority = gw_tenant_limits_of(c->tenant)->priority, .tenant = gw_tenant_name(c->tenant),
    };
    c->n_prompt = r.n_ids;
    c->submit_ns = clock_now_ns();
    c->streaming = q->stream;
    c->head.include_usage = q->include_usage;
    c->queued = c->submitted = true;
    atomic_fetch_add(&c->refs, 1);
    int rc = gw_engine_submit(a->cfg.engine, &r, c->served, q->stream, on_engine, c, &c->stream_id, &e);
    if (!rc)
        return 0;
    c->queued = c->submitted = false;
    gw_app_queue_leave(a, c->n_prompt);
    unref(c);
    if (rc == ERR_AGAIN) {
        gw_api_error_set(&c->ae, 429, "queue_full", NULL, "The server is full: %s. Try again later.", e.msg);
        c->ae.retry_after_s = gw_app_retry_s(a, c->served, atomic_load(&a->waiting));
    } else {
        gw_api_error_set(&c->ae, 503, "engine_unavailable", NULL, "The request cannot be sent to the engine: %s", e.msg);
        c->ae.retry_after_s = 5;
    }
    return c->ae.status;
}

static int admit(struct gw_chat *c)
{
    struct gw_app *a = c->app;
    struct err e;
    uint64_t retry_ms = 0;
    uint32_t n = (uint32_t)c->ids.n;
    int rc;
    if (c->ae.status)
        return c->ae.status;
    if ((rc = gw_app_queue_enter(a, c->served, n, &c->ae)))
        return rc;
    if (gw_tenant_charge(c->tenant, n, clock_now_ns(), &retry_ms, &e)) {
        gw_app_queue_leave(a, n);
        gw_api_error_set(&c->ae, 429, "rate_limit_exceeded", NULL, "Your %s.", e.msg);
        c->ae.retry_after_s = (uint32_t)((retry_ms + 999) / 1000);
        return 429;
    }
    return submit(c);
}

static void prepared(void *arg)
{
    struct gw_chat *c = arg;
    if (!c->x || admit(c)) {
        gw_tenant_leave(c->tenant, 0, clock_now_ns());
        if (c->x) {
            gw_app_error(c->app, c->x, GW_ROUTE_CHAT, &c->ae);
            drop_exchange(c);
        }
    } else if (c->streaming) {
        gw_metrics_answer(&c->app->metrics, GW_ROUTE_CHAT, 200);
        gw_stream_start(c->x, 200, NULL, NULL, 0, heartbeat);
    }
    free_prompt(c);
    unref(c);
}

/* ---- loop: the beginning ---------------------------------------------------------------------------------- */

static struct gw_chat *chat_new(struct gw_app *a, gw_exchange *x, gw_tenant *tenant)
{
    struct gw_chat *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    atomic_init(&c->refs, 1); /* the exchange's */
    c->app = a;
    c->loop = gw_exchange_loop(x);
    c->tenant = tenant;
    c->x = x;
    c->start_ns = clock_now_ns();
    c->body = gw_exchange_take_body(x, &c->body_n);
    c->served = gw_engine_served(a->cfg.engine);
    arena_init(&c->mem, a->cfg.prompt_bytes_max);
    buf_init(&c->pend, ANSWER_BYTES_MAX);
    pthread_mutex_init(&c->lock, NULL);
    gw_out_id(c->head.id);
    c->head.created = clock_wall_s();
    return c;
}

static void refuse(struct gw_app *a, gw_exchange *x, int status, const char *code, uint64_t retry_ms, const char *msg)
{
    struct gw_api_error ae;
    gw_api_error_set(&ae, status, code, NULL, "%s", msg);
    ae.retry_after_s = (uint32_t)((retry_ms + 999) / 1000);
    gw_app_error(a, x, GW_ROUTE_CHAT, &ae);
}

void gw_chat_start(struct gw_app *a, gw_exchange *x, const struct gw_request *r, gw_tenant *tenant)
{
    struct err e;
    uint64_t retry_ms = 0;
    (void)r;
    if (!tenant) {
        refuse(a, x, 401, "invalid_api_key", 0, "Incorrect API key provided.");
        return;
    }
    if (gw_tenant_enter(tenant, clock_now_ns(), &retry_ms, &e)) {
        refuse(a, x, 429, "rate_limit_exceeded", retry_ms, e.msg);
        return;
    }
    struct gw_chat *c = chat_new(a, x, tenant);
    if (!c || !c->served) {
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, 503, "engine_unavailable", 2000, c ? "No engine has described its model yet. Try again shortly." : "Out of memory.");
        if (c)
            unref(c);
        return;
    }
    c->head.model = c->served->d.id;
    c->head.fingerprint = c->served->fingerprint;
    gw_exchange_watch(x, &(struct gw_watch){c, on_gone, on_room});
    atomic_fetch_add(&c->refs, 1); /* the job's */
    if (gw_work_put(a->cfg.work, prepare, c, &e)) {
        unref(c);
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, e.code == ERR_AGAIN ? 429 : 503, e.code == ERR_AGAIN ? "queue_full" : "engine_unavailable", 1000ull * gw_app_retry_s(a, c->served, gw_work_waiting(a->cfg.work)), e.msg);
        drop_exchange(c);
    }
}
