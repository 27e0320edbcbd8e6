/* Answers. Head and body are put together in the loop's scratch and leave in one write; only what the kernel does not take is
 * kept by the connection. Every gw_ function here may find its connection dead (the client left, the loop has not told yet). */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "gateway/server_internal.h"

enum framing { BODY_LENGTH, BODY_CHUNKED, BODY_TO_CLOSE, BODY_NONE };
struct head {
    int status;
    enum framing framing;
    size_t length;
    bool keep;
    unsigned minor;
    const char *content_type, *id, *origin;
    const struct gw_header *extra;
    size_t n_extra;
};

static const char *status_text(int s)
{
    static const struct { int status; const char *text; } names[] = {
        {200, "OK"}, {201, "Created"}, {202, "Accepted"}, {204, "No Content"}, {301, "Moved Permanently"}, {302, "Found"}, {303, "See Other"},
        {304, "Not Modified"}, {307, "Temporary Redirect"}, {308, "Permanent Redirect"}, {400, "Bad Request"}, {401, "Unauthorized"},
        {403, "Forbidden"}, {404, "Not Found"}, {405, "Method Not Allowed"}, {406, "Not Acceptable"}, {408, "Request Timeout"}, {409, "Conflict"},
        {413, "Content Too Large"}, {414, "URI Too Long"}, {415, "Unsupported Media Type"}, {417, "Expectation Failed"},
        {422, "Unprocessable Content"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"}, {500, "Internal Server Error"},
        {501, "Not Implemented"}, {502, "Bad Gateway"}, {503, "Service Unavailable"}, {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"}, {529, "Overloaded"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].status == s)
            return names[i].text;
    return s < 400 ? "OK" : "Error";
}

/* ---- heads --------------------------------------------------------------------------------------------------- */
static bool clean(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < 0x20 && *s != '\t') || *s == 0x7F)
            return false;
    return true;
}

static void put_field(struct buf *b, const char *name, const char *value)
{
    if (!clean(value) || !clean(name)) {
        log_error("http: header %s not sent: control character in its value", clean(name) ? name : "?");
        return;
    }
    buf_str(b, name);
    buf_add(b, ": ", 2);
    buf_str(b, value);
    buf_add(b, "\r\n", 2);
}

static void put_head(gw_loop *l, const struct head *h)
{
    struct buf *b = &l->out;
    buf_reset(b);
    buf_reserve(b, 512);
    buf_add(b, "HTTP/1.1 ", 9);
    buf_uint(b, (uint64_t)h->status);
    buf_char(b, ' ');
    buf_str(b, status_text(h->status));
    buf_add(b, "\r\nDate: ", 8);
    buf_str(b, loop_date(l));
    buf_add(b, "\r\nx-request-id: ", 16);
    buf_str(b, h->id);
    buf_add(b, "\r\n", 2);
    if (h->content_type)
        put_field(b, "Content-Type", h->content_type);
    if (h->origin) {
        put_field(b, "Access-Control-Allow-Origin", h->origin);
        put_field(b, "Access-Control-Expose-Headers", "x-request-id, request-id, retry-after, x-should-retry, x-ratelimit-limit-requests, "
                  "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens");
        if (*h->origin != '*')
            put_field(b, "Vary", "Origin");
    }
    for (size_t i = 0; i < h->n_extra; i++)
        put_field(b, h->extra[i].name, h->extra[i].value);
    if (h->framing == BODY_LENGTH) {
        buf_add(b, "Content-Length: ", 16);
        buf_uint(b, h->length);
        buf_add(b, "\r\n", 2);
    } else if (h->framing == BODY_CHUNKED)
        buf_str(b, "Transfer-Encoding: chunked\r\n");
    if (!h->keep)
        buf_str(b, "Connection: close\r\n");
    else if (h->minor == 0)
        buf_str(b, "Connection: keep-alive\r\n");
    buf_add(b, "\r\n", 2);
}

static void count_status(gw_loop *l, int status)
{
    if (status >= 500)
        COUNT(l, responses_5xx);
    else if (status >= 400)
        COUNT(l, responses_4xx);
    else
        COUNT(l, responses_2xx);
}

static void send_scratch(struct gw_conn *c)
{
    struct buf *b = &c->loop->out;
    if (b->failed)
        conn_lost(c, GW_GONE_STALLED);
    else
        conn_send(c, b->data, b->len);
    if (b->cap > 65536)
        buf_free(b);
}

/* ---- errors -------------------------------------------------------------------------------------------------- */
static const char *type_of(int status)
{
    return status == 429 ? "rate_limit_error" : status == 401 ? "authentication_error" : status == 403 ? "permission_error" : status >= 500 ? "server_error" : "invalid_request_error";
}

static void put_nullable(struct buf *b, const char *s)
{
    if (s)
        json_put_cstr(b, s);
    else
        buf_str(b, "null");
}

static void put_error(struct buf *b, int status, const char *type, const char *param, const char *code, const char *message)
{
    buf_str(b, "{\"error\":{\"message\":");
    json_put_cstr(b, message);
    buf_str(b, ",\"type\":");
    json_put_cstr(b, type ? type : type_of(status));
    buf_str(b, ",\"param\":");
    put_nullable(b, param);
    buf_str(b, ",\"code\":");
    put_nullable(b, code);
    buf_str(b, "}}");
}

static void new_id(gw_loop *l, char out[ID_MAX + 1])
{
    uint64_t count = ++l->id_count;
    memcpy(out, "req_", 4);
    for (int i = 0; i < 16; i++)
        out[4 + i] = "0123456789abcdef"[l->id_seed >> (60 - 4 * i) & 15];
    for (int i = 0; i < 8; i++)
        out[20 + i] = "0123456789abcdef"[count >> (28 - 4 * i) & 15];
    out[28] = 0;
}

/* For the log: bytes that never became a request. */
static void tell_refused(struct gw_conn *c, int status, const char *id, size_t n)
{
    const struct gw_handler *h = &c->loop->server->cfg.handler;
    struct gw_request r = {.method_name = "-", .path = "-", .host = "", .id = id, .peer = c->peer, .client = c->peer, .tls = c->ssl != NULL, .head = &c->http};
    struct gw_done d = {.status = status, .bytes = n, .cut = true, .owner = c->owner};
    if (h->on_done)
        h->on_done(h->ctx, &r, &d);
}

void answer_error(struct gw_conn *c, int status, const char *message)
{
    static const struct gw_header again = {"Retry-After", "1"};
    char id[ID_MAX + 1];
    struct buf body;
    if (c->state == CONN_DEAD)
        return;
    new_id(c->loop, id);
    buf_init(&body, 4096);
    put_error(&body, status, NULL, NULL, NULL, message);
    struct head h = {.status = status, .framing = BODY_LENGTH, .length = body.len, .minor = 1, .content_type = "application/json",
                     .id = c->x ? c->x->id : id, .origin = c->x ? c->x->origin : NULL, .extra = &again, .n_extra = status == 503};
    put_head(c->loop, &h);
    if (!c->x || !c->x->head_only)
        buf_add(&c->loop->out, body.data, body.len);
    count_status(c->loop, status);
    if (c->x) {
        c->x->status = status;
        c->x->bytes = body.len;
    } else
        tell_refused(c, status, id, body.len);
    buf_free(&body);
    send_scratch(c);
}

/* ---- exchanges ----------------------------------------------------------------------------------------------- */
static bool sane_id(const char *s)
{
    size_t n = 0;
    for (; s[n]; n++)
        if (n == ID_MAX || !((s[n] >= '0' && s[n] <= '9') || ((s[n] | 0x20) >= 'a' && (s[n] | 0x20) <= 'z') || strchr("-_.:", s[n])))
            return false;
    return n > 0;
}

/* Proxies append to the header or add one more of it: all its values count, the last one most. */
static void set_client(gw_exchange *x)
{
    const struct gw_conn *c = x->conn;
    const char *colon = strrchr(c->peer, ':');
    size_t skip = c->peer[0] == '[', n = colon ? (size_t)(colon - c->peer) - 2 * skip : 0;
    if (n >= sizeof x->client)
        n = 0;
    memcpy(x->client, c->peer + skip, n);
    if (!c->trusted)
        return;
    struct buf all;
    char text[GW_ADDR_TEXT];
    buf_init(&all, 8192);
    for (unsigned i = 0; i < c->http.n_fields; i++) {
        const char *name, *value = gw_http1_at(&c->http, i, &name);
        if (!strcmp(name, "x-forwarded-for"))
            buf_printf(&all, "%s%s", all.len ? "," : "", value);
    }
    if (all.len && !all.failed && gw_forwarded_for(all.data, &c->loop->server->cfg.trusted, text))
        memcpy(x->client, text, sizeof text);
    buf_free(&all);
}

/* A proxy on this machine makes strangers look local, and so does a browser that was lured to a name of ours (DNS rebinding). */
bool gw_exchange_local(const gw_exchange *x)
{
    const struct gw_conn *c = x->conn;
    static const char *const tell[] = {"x-forwarded-for", "forwarded", "via", "x-real-ip", "x-forwarded-host", "origin"};
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    if (!c->loopback)
        return false;
    for (size_t i = 0; i < sizeof tell / sizeof *tell; i++)
        if (gw_http1_get(&c->http, tell[i]))
            return false;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        size_t n = strlen(hosts[i]);
        if (!strncasecmp(c->http.host, hosts[i], n) && (!c->http.host[n] || c->http.host[n] == ':'))
            return true;
    }
    return false;
}

gw_exchange *exchange_new(struct gw_conn *c)
{
    gw_exchange *x = calloc(1, sizeof *x);
    const struct gw_http1 *h = &c->http;
    if (!x)
        return NULL;
    const char *id = gw_http1_get(h, "x-request-id");
    if (id && sane_id(id))
        memcpy(x->id, id, strlen(id) + 1);
    else
        new_id(c->loop, x->id);
    x->conn = c;
    x->start_ns = clock_now_ns();
    set_client(x);
    x->keep = h->keep_alive;
    x->head_only = h->method == GW_HEAD;
    x->body_max = c->loop->server->cfg.http.body_max;
    x->req = (struct gw_request){.method = h->method, .method_name = h->method_name, .path = h->path, .query = h->query, .host = h->host, .id = x->id,
                                 .peer = c->peer, .client = x->client, .tls = c->ssl != NULL, .keep_alive = h->keep_alive, .minor = h->minor,
                                 .content_length = h->content_length, .head = h};
    COUNT(c->loop, requests);
    COUNT(c->loop, exchanges_open);
    return x;
}

static void uncharge(gw_exchange *x)
{
    if (x->charged)
        atomic_fetch_sub_explicit(&x->conn->loop->server->body_held, x->charged, memory_order_relaxed);
    x->charged = 0;
}

void exchange_free(gw_exchange *x)
{
    gw_loop *l = x->conn->loop;
    const struct gw_handler *h = &l->server->cfg.handler;
    if (h->on_done) {
        struct gw_done d = {.status = x->status, .bytes = x->bytes, .ns = clock_now_ns() - x->start_ns, .cut = x->cut || x->gone, .owner = x->conn->owner};
        h->on_done(h->ctx, &x->req, &d);
    }
    uncharge(x);
    buf_free(&x->body);
    COUNT_BY(l, exchanges_open, -1);
    if (x->phase == X_STREAM)
        COUNT_BY(l, streams_open, -1);
    free(x);
}

const char *gw_request_header(const struct gw_request *r, const char *lower_name) { return gw_http1_get(r->head, lower_name); }
gw_loop *gw_exchange_loop(const gw_exchange *x) { return x->conn->loop; }
const char *gw_exchange_id(const gw_exchange *x) { return x->id; }
void gw_exchange_cors(gw_exchange *x, const char *origin) { x->origin = origin; }

void gw_exchange_close_after(gw_exchange *x) { x->close = true; }
void *gw_exchange_owner(const gw_exchange *x) { return x->conn->owner; }

void gw_exchange_claim(gw_exchange *x, void *owner, void (*release)(void *owner))
{
    struct gw_conn *c = x->conn;
    if (c->release)
        c->release(c->owner);
    c->owner = owner;
    c->release = release;
}

void gw_exchange_body_max(gw_exchange *x, uint64_t bytes)
{
    x->body_max = bytes < SIZE_MAX / 4 ? bytes : SIZE_MAX / 4;
}

char *gw_exchange_take_body(gw_exchange *x, size_t *n)
{
    char *p = x->body.data;
    *n = x->body.len;
    uncharge(x);
    buf_init(&x->body, 0);
    x->req.body = NULL;
    x->req.body_len = 0;
    return p;
}

void gw_exchange_watch(gw_exchange *x, const struct gw_watch *w)
{
    x->watch = *w;
    x->watched = true;
    if (w->on_slow && x->conn->state != CONN_DEAD)
        deadline_arm(x->conn->loop, DL_BEAT, &x->conn->beat);
}

/* ---- whole answers ------------------------------------------------------------------------------------------- */
static bool unread_body(const gw_exchange *x)
{
    return x->phase < X_RUN && x->conn->http.has_body;
}

static bool may_keep(const gw_exchange *x)
{
    return x->keep && !x->close && !x->conn->loop->draining && !unread_body(x);
}

static void end(gw_exchange *x, bool keep)
{
    struct gw_conn *c = x->conn;
    c->linger |= unread_body(x);
    c->x = NULL;
    exchange_free(x);
    conn_next(c, keep);
}

void gw_respond(gw_exchange *x, int status, const char *content_type, const struct gw_header *h, size_t n_headers, const void *body, size_t n)
{
    struct gw_conn *c = x->conn;
    bool keep = may_keep(x);
    if (x->gone)
        return;
    if (x->phase == X_STREAM) { /* too late for another head: all that is left is to cut */
        log_error("http: %s: a whole answer inside a stream", x->id);
        gw_abort(x);
        return;
    }
    if (c->state != CONN_DEAD) {
        bool none = status == 204 || status == 304 || (status >= 100 && status < 200);
        struct head head = {.status = status, .framing = none ? BODY_NONE : BODY_LENGTH, .length = n, .keep = keep, .minor = c->http.minor,
                            .content_type = content_type, .id = x->id, .origin = x->origin, .extra = h, .n_extra = n_headers};
        put_head(c->loop, &head);
        if (!none && !x->head_only)
            buf_add(&c->loop->out, body, n);
        count_status(c->loop, status);
        x->status = status;
        x->bytes = none || x->head_only ? 0 : n;
        send_scratch(c);
    }
    end(x, keep);
}

void gw_respond_error(gw_exchange *x, int status, const char *type, const char *param, const char *code, const struct gw_header *h, size_t n_headers,
                      bool close, const char *message)
{
    struct buf body;
    buf_init(&body, 65536);
    put_error(&body, status, type, param, code, message);
    if (close)
        x->close = true;
    gw_respond(x, status, "application/json", h, n_headers, body.failed ? "" : body.data, body.failed ? 0 : body.len);
    buf_free(&body);
}

/* ---- streams ------------------------------------------------------------------------------------------------- */
void gw_stream_start(gw_exchange *x, int status, const char *content_type, const struct gw_header *h, size_t n_headers, const char *heartbeat)
{
    struct gw_conn *c = x->conn;
    struct gw_header all[40] = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
    size_t n = content_type ? 0 : 2;
    if (x->gone || x->phase == X_STREAM)
        return;
    for (size_t i = 0; i < n_headers && n < sizeof all / sizeof *all; i++)
        all[n++] = h[i];
    x->chunked = c->http.minor > 0;
    x->keep = may_keep(x) && x->chunked;
    if (unread_body(x))
        c->linger = true;
    x->phase = X_STREAM;
    x->heartbeat = heartbeat;
    COUNT(c->loop, streams);
    COUNT(c->loop, streams_open);
    if (c->state == CONN_DEAD)
        return;
    struct head head = {.status = status, .framing = x->chunked ? BODY_CHUNKED : BODY_TO_CLOSE, .keep = x->keep, .minor = c->http.minor,
                        .content_type = content_type ? content_type : "text/event-stream", .id = x->id, .origin = x->origin, .extra = all, .n_extra = n};
    put_head(c->loop, &head);
    count_status(c->loop, status);
    x->status = status;
    send_scratch(c);
    if (heartbeat && c->state != CONN_DEAD)
        deadline_arm(c->loop, DL_BEAT, &c->beat);
}

static void put_chunk(struct buf *b, const void *p, size_t n)
{
    char size[20], *s = size + sizeof size;
    *--s = '\n';
    *--s = '\r';
    for (size_t v = n; v; v >>= 4)
        *--s = "0123456789abcdef"[v & 15];
    buf_add(b, s, (size_t)(size + sizeof size - s));
    buf_add(b, p, n);
    buf_add(b, "\r\n", 2);
}

int gw_stream_write(gw_exchange *x, const void *p, size_t n)
{
    struct gw_conn *c = x->conn;
    const struct gw_server_config *cfg = &c->loop->server->cfg;
    if (x->gone || c->state == CONN_DEAD || x->phase != X_STREAM)
        return ERR_CLOSED;
    if (!n || x->head_only)
        return ERR_OK;
    if (n + 20 > cfg->backlog_max || conn_backlog(c) > cfg->backlog_max - n - 20) {
        conn_lost(c, GW_GONE_STALLED);
        return ERR_CLOSED;
    }
    x->bytes += n;
    if (x->chunked) {
        buf_reset(&c->loop->out);
        put_chunk(&c->loop->out, p, n);
        send_scratch(c);
    } else
        conn_send(c, p, n);
    if (c->state == CONN_DEAD)
        return ERR_CLOSED;
    if (x->heartbeat)
        deadline_arm(c->loop, DL_BEAT, &c->beat);
    if (conn_backlog(c) <= cfg->backlog_high)
        return ERR_OK;
    x->want_room = true;
    return ERR_AGAIN;
}

size_t gw_stream_backlog(const gw_exchange *x) { return conn_backlog(x->conn); }

void gw_stream_end(gw_exchange *x) { gw_stream_finish(x, NULL, 0); }

void gw_stream_finish(gw_exchange *x, const void *p, size_t n)
{
    struct gw_conn *c = x->conn;
    struct buf *b = &c->loop->out;
    if (x->gone)
        return;
    if (x->phase != X_STREAM) {
        log_error("http: %s: the end of a stream that never began", x->id);
        gw_abort(x);
        return;
    }
    if (n > c->loop->server->cfg.backlog_max || conn_backlog(c) > c->loop->server->cfg.backlog_max - n) {
        conn_lost(c, GW_GONE_STALLED);
    } else if (x->chunked && !x->head_only && c->state != CONN_DEAD) {
        x->bytes += n;
        buf_reset(b);
        if (n)
            put_chunk(b, p, n);
        buf_add(b, "0\r\n\r\n", 5);
        send_scratch(c);
    } else if (!x->head_only) {
        x->bytes += n;
        conn_send(c, p, n);
    }
    x->cut = c->state == CONN_DEAD;
    end(x, x->keep && !c->loop->draining);
}

void gw_abort(gw_exchange *x)
{
    struct gw_conn *c = x->conn;
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (x->gone)
        return;
    /* an answer that ends with the connection looks whole after a plain FIN: only a reset says otherwise */
    if (c->state != CONN_DEAD && x->phase == X_STREAM && !x->chunked)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    c->x = NULL;
    x->cut = true;
    exchange_free(x);
    conn_lost(c, GW_GONE_CLOSED);
}

void exchange_beat(struct gw_conn *c)
{
    gw_exchange *x = c->x;
    if (x && x->phase == X_RUN && x->watched && x->watch.on_slow) {
        deadline_arm(c->loop, DL_BEAT, &c->beat);
        x->watch.on_slow(x->watch.ctx, x);
        return;
    }
    if (!x || x->phase != X_STREAM || !x->heartbeat)
        return;
    if (conn_backlog(c)) { /* bytes are on their way already */
        deadline_arm(c->loop, DL_BEAT, &c->beat);
        return;
    }
    COUNT(c->loop, heartbeats);
    gw_stream_write(x, x->heartbeat, strlen(x->heartbeat));
}
