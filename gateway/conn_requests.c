/* Bytes to requests: parsing, the body's bounds, what is read ahead while an exchange runs. */
#include <string.h>

#include "base/clock.h"
#include "gateway/server_internal.h"

/* ---- requests ------------------------------------------------------------------------------------------------ */
/* An answer that HTTP itself demands; the connection's framing is lost or its request will never be whole. */
void conn_fail(struct gw_conn *c, int status, const char *why)
{
    if (status == 408)
        COUNT(c->loop, timeouts);
    else if (status != 503)
        COUNT(c->loop, parse_errors);
    answer_error(c, status, why);
    conn_drop_exchange(c);
    c->linger = true;
    conn_finish(c);
}

static void conn_head(struct gw_conn *c, bool more_at_hand)
{
    const struct gw_handler *h = &conn_cfg(c)->handler;
    gw_exchange *x = exchange_new(c);
    if (!x) {
        conn_fail(c, 503, "out of memory");
        return;
    }
    c->x = x;
    if (c->http.method >= GW_CONNECT) {
        conn_fail(c, 501, "this method is not implemented");
        return;
    }
    if (h->on_head && !h->on_head(h->ctx, x, &x->req)) {
        if (c->x == x) /* it promised an answer and gave none */
            conn_fail(c, 500, "the request was refused without a reason");
        return;
    }
    if (c->state != CONN_READ || c->x != x)
        return;
    x->phase = X_BODY;
    c->http.limits.body_max = x->body_max;
    buf_init(&x->body, (size_t)x->body_max);
    c->body_start = clock_now_ns();
    size_t used;
    if (gw_http1_feed(&c->http, NULL, 0, &used) == GW_HTTP1_ERROR) /* too large by its own announcement: no 100 for that */
        conn_fail(c, c->http.status, c->http.reason);
    else if (c->http.expect_continue && !more_at_hand)
        conn_send(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

static void conn_body(struct gw_conn *c)
{
    gw_exchange *x = c->x;
    gw_server *s = c->loop->server;
    if (!x->body.cap) /* what was announced, as far as that costs little */
        buf_reserve(&x->body, c->http.content_length < 65536 ? (size_t)c->http.content_length : 65536);
    if (!buf_add(&x->body, c->http.body, c->http.body_len)) {
        conn_fail(c, 503, "out of memory");
        return;
    }
    size_t more = x->body.cap - x->charged;
    if (!more)
        return;
    x->charged += more;
    if (atomic_fetch_add_explicit(&s->body_held, more, memory_order_relaxed) + more > s->cfg.body_bytes_total_max)
        conn_fail(c, 503, "too many request bytes are held at the moment; try again");
}

static void conn_request(struct gw_conn *c)
{
    const struct gw_handler *h = &conn_cfg(c)->handler;
    gw_exchange *x = c->x;
    c->state = CONN_RUN;
    conn_await(c, c->paused ? DL_WATCH : DL_NONE);
    x->phase = X_RUN;
    x->req.body = x->body.data ? x->body.data : "";
    x->req.body_len = x->body.len;
    h->on_request(h->ctx, x, &x->req);
}

/* More input is needed: which deadline counts now? */
void conn_await_input(struct gw_conn *c)
{
    if (c->x) {
        conn_await(c, DL_BODY);
        if (clock_now_ns() - c->body_start > conn_cfg(c)->body_total_ms * NS_PER_MS)
            conn_fail(c, 408, "the request body took too long");
        return;
    }
    enum dl_kind kind = gw_http1_started(&c->http) || !c->served ? DL_HEADER : DL_IDLE;
    if (kind != c->dl_kind)
        conn_await(c, kind); /* a slow header does not renew its deadline with each byte */
}

/* Feeds bytes while requests may be taken; returns how many were used. */
static size_t conn_parse(struct gw_conn *c, const char *d, size_t n)
{
    size_t at = 0, used;
    c->parsing = true;
    while (c->state == CONN_READ && conn_backlog(c) <= conn_cfg(c)->backlog_high) {
        enum gw_http1_event ev = gw_http1_feed(&c->http, d + at, n - at, &used);
        at += used;
        if (ev == GW_HTTP1_HEAD)
            conn_head(c, at < n);
        else if (ev == GW_HTTP1_BODY)
            conn_body(c);
        else if (ev == GW_HTTP1_END)
            conn_request(c);
        else if (ev == GW_HTTP1_ERROR)
            conn_fail(c, c->http.status, c->http.reason);
        else {
            conn_await_input(c);
            break;
        }
    }
    c->parsing = false;
    return at;
}

static void conn_keep_ahead(struct gw_conn *c, const char *d, size_t n)
{
    if (!n || c->state == CONN_DEAD || c->state == CONN_LINGER)
        return;
    if (!buf_add(&c->ahead, d, n)) {
        conn_lost(c, GW_GONE_CLOSED);
        return;
    }
    COUNT_BY(c->loop, pipeline_bytes, n);
    if (c->ahead.len >= conn_cfg(c)->pipeline_max && c->state != CONN_CLOSING)
        conn_pause(c);
}

void conn_input(struct gw_conn *c, const char *d, size_t n)
{
    size_t at = 0;
    if (c->state == CONN_READ && !c->ahead.len)
        at = conn_parse(c, d, n);
    conn_keep_ahead(c, d + at, n - at);
}

/* Goes on with what was read ahead. */
void conn_resume(struct gw_conn *c)
{
    if (c->state != CONN_READ)
        return;
    size_t used = conn_parse(c, c->ahead.data, c->ahead.len);
    if (c->state == CONN_DEAD)
        return;
    COUNT_BY(c->loop, pipeline_bytes, -used);
    buf_consume(&c->ahead, used);
    if (!c->ahead.len)
        buf_free(&c->ahead);
    if (c->state <= CONN_RUN && c->ahead.len < conn_cfg(c)->pipeline_max)
        conn_unpause(c);
}

void conn_next(struct gw_conn *c, bool keep)
{
    if (c->state == CONN_DEAD)
        return;
    deadline_drop(&c->beat);
    gw_http1_reset(&c->http);
    if (!keep) {
        conn_finish(c);
        return;
    }
    c->state = CONN_READ;
    c->served = true;
    c->spared = false;
    c->dl_kind = DL_NONE;
    if (c->parsing) /* conn_parse goes on by itself */
        return;
    if (c->ahead.len)
        loop_todo(c->loop, c, TODO_AHEAD);
    else
        conn_await_input(c);
}
