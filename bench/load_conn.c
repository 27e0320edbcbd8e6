/* One client connection: TCP, TLS, a request out, an answer in (Content-Length or chunked; JSON or SSE). Level-triggered; one read a
 * wake-up, so that a stream's token costs one system call for the event and one for the bytes. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench/load.h"
#include "engine/mock.h"

static void watch(struct thread *t, struct conn *c, bool writing, int op)
{
    struct epoll_event ev = {.events = EPOLLIN | (writing ? EPOLLOUT : 0u), .data.ptr = c};
    if (c->role == ROLE_DEAF && c->state == ST_READ)
        ev.events = 0; /* hears of an end alone */
    if (op == EPOLL_CTL_ADD || writing != c->writing || !ev.events)
        epoll_ctl(t->ep, op, c->fd, &ev);
    c->writing = writing;
}

/* A port of its own address for every so many connections: more than one address has ports, and limits per address are not met. */
static int bind_source(struct thread *t, const struct conn *c, int fd)
{
    int64_t n = t->l->o.sources;
    if (t->l->six || n < 2)
        return 0;
    uint32_t number = ((t->number << 20) + c->at) % (uint32_t)n;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002u + number)};
    int one = 1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    return bind(fd, (struct sockaddr *)&a, sizeof a);
}

void conn_open(struct thread *t, struct conn *c)
{
    struct load *l = t->l;
    int one = 1, small = 2048, rc;
    c->fd = socket(l->six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        run_lost(t, c, strerror(errno));
        return;
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (c->role == ROLE_DEAF)
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    c->opened_ns = clock_now_ns();
    c->state = ST_CONNECT;
    c->writing = c->told = false;
    rc = bind_source(t, c, c->fd);
    if (!rc)
        rc = l->six ? connect(c->fd, (struct sockaddr *)&l->to6, sizeof l->to6) : connect(c->fd, (struct sockaddr *)&l->to4, sizeof l->to4);
    if (rc && errno != EINPROGRESS) {
        run_lost(t, c, strerror(errno));
        return;
    }
    watch(t, c, true, EPOLL_CTL_ADD);
}

/* abrupt: as a client that dies; else TLS is told, so that the session stays good. */
void conn_close(struct thread *t, struct conn *c, bool abrupt)
{
    (void)t;
    if (c->state == ST_CLOSED && c->fd < 0)
        return;
    if (c->ssl) {
        if (!abrupt)
            SSL_set_shutdown(c->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
        SSL_free(c->ssl);
    }
    if (c->fd >= 0)
        close(c->fd);
    c->ssl = NULL;
    c->fd = -1;
    c->state = ST_CLOSED;
    c->cut_ns = 0;
    buf_free(&c->rest);
    buf_free(&c->line);
}

/* ---- out -------------------------------------------------------------------------------------------------------- */

static bool push(struct thread *t, struct conn *c)
{
    while (c->out_at < c->out_n) {
        const char *p = c->out + c->out_at;
        size_t n = c->out_n - c->out_at;
        ssize_t k = c->ssl ? SSL_write(c->ssl, p, (int)n) : send(c->fd, p, n, MSG_NOSIGNAL);
        if (k > 0) {
            c->out_at += (size_t)k;
            continue;
        }
        int why = c->ssl ? SSL_get_error(c->ssl, (int)k) : 0;
        if (c->ssl ? why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE : errno == EAGAIN || errno == EINTR) {
            watch(t, c, true, EPOLL_CTL_MOD);
            return true;
        }
        run_lost(t, c, "the server closed while a request was sent");
        return false;
    }
    if (c->state == ST_SEND)
        c->state = ST_READ;
    watch(t, c, false, EPOLL_CTL_MOD);
    return true;
}

void conn_send(struct thread *t, struct conn *c, const char *p, size_t n)
{
    c->out = p;
    c->out_n = n;
    c->out_at = 0;
    push(t, c);
}

void conn_ask(struct thread *t, struct conn *c, const struct buf *request)
{
    c->stream = request == &t->l->stream;
    c->state = ST_SEND;
    c->body = BODY_HEAD;
    c->status = 0;
    c->chunked = c->saw_done = c->told = false;
    c->keep = true;
    c->left = 0;
    c->asked_ns = clock_now_ns();
    conn_send(t, c, request->data, request->len);
}

/* ---- in --------------------------------------------------------------------------------------------------------- */

static void text_came(struct thread *t, struct conn *c, const char *s, size_t n, uint64_t now)
{
    struct figures *st = thread_stat(t);
    size_t digits = 0;
    bool stamped = false;
    if (!c->told && st)
        hist_add(&st->first, now - c->asked_ns);
    c->told = true;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && isdigit((unsigned char)s[i])) {
            digits++;
            continue;
        }
        if (digits == ENG_MOCK_STAMP && st) {
            uint64_t due = strtoull(s + i - digits, NULL, 10);
            hist_add(&st->delay, now > due ? now - due : 0);
            st->tokens++;
        }
        stamped |= digits == ENG_MOCK_STAMP;
        digits = 0;
    }
    if (!stamped && st)
        st->tokens++;
}

static void sse_line(struct thread *t, struct conn *c, const char *s, size_t n, uint64_t now)
{
    static const char content[] = "\"content\":\"";
    if (n < 6 || memcmp(s, "data: ", 6))
        return;
    if (n >= 12 && !memcmp(s + 6, "[DONE]", 6)) {
        c->saw_done = true;
        return;
    }
    const char *p = memmem(s, n, content, sizeof content - 1);
    if (p) {
        p += sizeof content - 1;
        const char *end = p;
        while (end < s + n && *end != '"')
            end += *end == '\\' ? 2 : 1;
        if (end > p)
            text_came(t, c, p, (size_t)((end < s + n ? end : s + n) - p), now);
    }
}

static void body_bytes(struct thread *t, struct conn *c, const char *s, size_t n, uint64_t now)
{
    if (!c->stream)
        return;
    while (n) {
        const char *nl = memchr(s, '\n', n);
        size_t k = nl ? (size_t)(nl - s) + 1 : n;
        if (c->line.len || !nl)
            buf_add(&c->line, s, k);
        if (nl && c->line.len)
            sse_line(t, c, c->line.data, c->line.len, now);
        else if (nl)
            sse_line(t, c, s, k, now);
        if (nl && c->line.len)
            buf_free(&c->line);
        s += k;
        n -= k;
    }
}

static void head_line(struct conn *c, const char *s, size_t n)
{
    static const char length[] = "content-length:", coding[] = "transfer-encoding: chunked", close_it[] = "connection: close";
    if (!c->status && n > 12)
        c->status = atoi(s + 9);
    else if (n >= sizeof length - 1 && !strncasecmp(s, length, sizeof length - 1))
        c->left = strtoull(s + sizeof length - 1, NULL, 10);
    else if (n >= sizeof coding - 1 && !strncasecmp(s, coding, sizeof coding - 1))
        c->chunked = true;
    else if (n >= sizeof close_it - 1 && !strncasecmp(s, close_it, sizeof close_it - 1))
        c->keep = false;
}

/* A line of head, chunk framing or trailers. True: the answer is whole. */
static bool frame_line(struct conn *c, const char *s, size_t n)
{
    bool empty = n == 0;
    switch (c->body) {
    case BODY_HEAD:
        if (!empty) {
            head_line(c, s, n);
            return false;
        }
        if (c->status == 100) { /* the real one follows */
            c->status = 0;
            return false;
        }
        c->body = c->chunked ? BODY_CHUNK_SIZE : BODY_PLAIN;
        return !c->chunked && !c->left;
    case BODY_CHUNK_SIZE:
        c->left = strtoull(s, NULL, 16);
        c->body = c->left ? BODY_CHUNK : BODY_TRAILER;
        return false;
    case BODY_CHUNK_END: c->body = BODY_CHUNK_SIZE; return false;
    default: return empty; /* trailers */
    }
}

/* True: the answer ended. *used: how many of the bytes it took. */
static bool feed(struct thread *t, struct conn *c, const char *s, size_t n, size_t *used, uint64_t now)
{
    for (size_t at = 0; at < n;) {
        if (c->body == BODY_PLAIN || c->body == BODY_CHUNK) {
            size_t k = n - at < c->left ? n - at : (size_t)c->left;
            body_bytes(t, c, s + at, k, now);
            at += k;
            c->left -= k;
            *used = at;
            if (!c->left && c->body == BODY_PLAIN)
                return true;
            if (!c->left)
                c->body = BODY_CHUNK_END;
            continue;
        }
        const char *nl = memchr(s + at, '\n', n - at);
        size_t k = nl ? (size_t)(nl - s) - at + 1 : n - at;
        if (c->rest.len || !nl)
            buf_add(&c->rest, s + at, k);
        const char *line = c->rest.len ? c->rest.data : s + at;
        size_t len = c->rest.len ? c->rest.len : k;
        at += k;
        *used = at;
        if (!nl)
            return false;
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        bool whole = frame_line(c, line, len);
        buf_free(&c->rest);
        if (whole)
            return true;
    }
    return false;
}

static void bytes_came(struct thread *t, struct conn *c, const char *s, size_t n)
{
    uint64_t now = clock_now_ns();
    struct figures *st = thread_stat(t);
    size_t used = 0;
    if (st)
        st->bytes += n;
    if (c->state != ST_READ && c->state != ST_SEND)
        return; /* an answer nobody asked for: a 408 to an idle one, or what noise is told */
    c->rest.max = c->line.max = 1u << 20;
    if (!feed(t, c, s, n, &used, now))
        return;
    bool good = c->status == 200 && (!c->stream || c->saw_done);
    if (st) {
        hist_add(&st->latency, now - c->asked_ns);
        st->answers += good;
        st->streams += good && c->stream;
        if (c->status != 200)
            st->refused[c->status / 100 % 6]++;
    }
    t->mean_ns += ((now - c->asked_ns) >> 4) - (t->mean_ns >> 4);
    c->state = ST_OPEN;
    run_answered(t, c, good);
}

static void pull(struct thread *t, struct conn *c)
{
    do {
        ssize_t n = c->ssl ? SSL_read(c->ssl, t->block, sizeof t->block) : recv(c->fd, t->block, sizeof t->block, 0);
        if (n > 0) {
            SSL *was = c->ssl;
            bytes_came(t, c, t->block, (size_t)n);
            if (c->state == ST_CLOSED || c->ssl != was)
                return;
            continue;
        }
        if (c->ssl) {
            int why = SSL_get_error(c->ssl, (int)n);
            if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
                return;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        run_lost(t, c, c->state == ST_READ ? "the server closed before its answer was whole" : "the server closed");
        return;
    } while (c->ssl && SSL_has_pending(c->ssl));
}

/* ---- the way there ------------------------------------------------------------------------------------------------ */

static void opened(struct thread *t, struct conn *c)
{
    struct figures *st = thread_stat(t);
    c->state = ST_OPEN;
    watch(t, c, false, EPOLL_CTL_MOD);
    if (st) {
        st->shakes++;
        st->resumed += c->ssl && SSL_session_reused(c->ssl);
    }
    run_opened(t, c);
}

static void shake(struct thread *t, struct conn *c)
{
    int rc = SSL_do_handshake(c->ssl);
    if (rc == 1) {
        opened(t, c);
        return;
    }
    int why = SSL_get_error(c->ssl, rc);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        watch(t, c, why == SSL_ERROR_WANT_WRITE, EPOLL_CTL_MOD);
    else
        run_lost(t, c, "the TLS handshake failed");
}

static void connected(struct thread *t, struct conn *c)
{
    int rc = 0;
    socklen_t n = sizeof rc;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &rc, &n);
    if (rc) {
        run_lost(t, c, strerror(rc));
        return;
    }
    if (!t->l->tls || c->role == ROLE_NOISE || c->role == ROLE_HALF) {
        opened(t, c);
        return;
    }
    c->ssl = SSL_new(t->l->tls_ctx);
    if (!c->ssl || !SSL_set_fd(c->ssl, c->fd)) {
        run_lost(t, c, "no memory for TLS");
        return;
    }
    SSL_set_connect_state(c->ssl);
    SSL_set_app_data(c->ssl, t);
    SSL_SESSION *again = t->session ? SSL_SESSION_dup(t->session) : NULL; /* OpenSSL uses a session of 1.3 once */
    if (again)
        SSL_set_session(c->ssl, again);
    SSL_SESSION_free(again);
    c->state = ST_SHAKE;
    shake(t, c);
}

void conn_event(struct thread *t, struct conn *c, uint32_t events)
{
    if (c->state == ST_CONNECT) {
        if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
            connected(t, c);
    } else if (c->state == ST_SHAKE) {
        shake(t, c);
    } else if (c->role == ROLE_DEAF && c->state == ST_READ) {
        run_lost(t, c, "the server closed"); /* events are ERR or HUP alone */
    } else {
        if ((events & EPOLLOUT) && c->out_at < c->out_n && !push(t, c))
            return;
        if (c->state != ST_CLOSED && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
            pull(t, c);
    }
}
