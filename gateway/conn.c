/* A connection's life. States and who moves them:
 *
 *   accepted -> HANDSHAKE -> READ <-> RUN          conn_handshake; conn_requests.c
 *                             |       |
 *                             +-> CLOSING -> LINGER -> DEAD   conn_finish (out flushed), start_linger, conn_lost
 *
 * While an exchange runs reading stays on, so that a client's end is seen at once; what it sends meanwhile is kept in `ahead`
 * up to pipeline_max, then reading pauses and the socket is asked four times a second whether its peer is gone (libevent would spin
 * on a reset that only an EV_CLOSED event waits for). */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/server_internal.h"

#define READS_PER_EVENT 4           /* then the others get their turn */
#define LINGER_BYTES (64ull << 20)  /* discarded input after which we stop being polite */

static void on_io(evutil_socket_t fd, short what, void *arg);
static void conn_readable(struct gw_conn *c);
static void conn_proxy(struct gw_conn *c);

/* ---- deadlines of the state --------------------------------------------------------------------------------- */
void conn_await(struct gw_conn *c, enum dl_kind kind)
{
    c->dl_kind = (uint8_t)kind;
    if (kind == DL_NONE)
        deadline_drop(&c->dl);
    else
        deadline_arm(c->loop, kind, &c->dl);
}

/* ---- bounds on what a stranger holds ------------------------------------------------------------------------ */
static void handshake_over(struct gw_conn *c)
{
    if (!c->in_handshake)
        return;
    c->in_handshake = false;
    c->loop->handshakes--;
    COUNT_BY(c->loop, handshakes_open, -1);
    if (c->loop->accept_full && c->loop->handshakes < c->loop->handshakes_max - c->loop->handshakes_max / 4)
        accept_resume(c->loop);
}

/* ---- the end ------------------------------------------------------------------------------------------------- */
void conn_lost(struct gw_conn *c, enum gw_gone why)
{
    if (c->state == CONN_DEAD)
        return;
    gw_loop *l = c->loop;
    handshake_over(c);
    event_del(&c->rd);
    conn_watch_output(c, false);
    deadline_drop(&c->dl);
    deadline_drop(&c->stall);
    deadline_drop(&c->beat);
    COUNT_BY(l, backlog_bytes, -conn_backlog(c));
    COUNT_BY(l, pipeline_bytes, -c->ahead.len); /* freed later: the parser may stand in it */
    buf_free(&c->out);
    c->out_off = 0;
    tls_cool(c);
    close(c->fd);
    c->fd = -1;
    c->state = CONN_DEAD;
    c->gone = (uint8_t)why;
    if (why == GW_GONE_STALLED)
        COUNT(l, gone_stalled);
    else if (c->x && why == GW_GONE_CLOSED)
        COUNT(l, gone_closed);
    loop_todo(l, c, 0);
}

/* Drops the exchange without an answer of the application; tells it if it asked. Not inside a call of the application. */
void conn_drop_exchange(struct gw_conn *c)
{
    gw_exchange *x = c->x;
    if (!x)
        return;
    x->gone = true;
    if (x->watched && x->watch.on_gone)
        x->watch.on_gone(x->watch.ctx, x, (enum gw_gone)c->gone);
    c->x = NULL;
    exchange_free(x);
}

static void conn_free(struct gw_conn *c)
{
    gw_loop *l = c->loop;
    conn_drop_exchange(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        l->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    SSL_free(c->ssl);
    gw_http1_free(&c->http);
    buf_free(&c->ahead);
    buf_free(&c->out);
    if (c->release)
        c->release(c->owner);
    if (c->in_peers)
        gw_peers_leave(l->server->peers, &c->peer_key);
    free(c);
    COUNT_BY(l, connections_open, -1);
    atomic_fetch_sub_explicit(&l->server->open, 1, memory_order_relaxed);
}

static void start_linger(struct gw_conn *c)
{
    if (c->ssl)
        tls_bye(c->ssl);
    shutdown(c->fd, SHUT_WR);
    c->state = CONN_LINGER;
    c->paused = false;
    event_add(&c->rd, NULL);
    conn_await(c, DL_LINGER);
}

void conn_finish(struct gw_conn *c)
{
    if (c->state == CONN_DEAD)
        return;
    if (conn_backlog(c)) {
        if (c->state != CONN_CLOSING) {
            c->state = CONN_CLOSING;
            conn_await(c, DL_NONE);
            event_del(&c->rd);
        }
    } else if (c->linger || c->ahead.len)
        start_linger(c);
    else {
        if (c->ssl && c->state > CONN_HANDSHAKE)
            tls_bye(c->ssl);
        conn_lost(c, GW_GONE_CLOSED);
    }
}

/* ---- events -------------------------------------------------------------------------------------------------- */
static void conn_eof(struct gw_conn *c, bool broken)
{
    if (c->state == CONN_HANDSHAKE)
        COUNT(c->loop, handshakes_failed);
    else if (c->state == CONN_PROXY)
        COUNT(c->loop, proxy_errors);
    if (c->state == CONN_READ && !broken && conn_backlog(c) && !c->x)
        conn_finish(c); /* answers are still on their way to a client that only closed its sending half */
    else
        conn_lost(c, GW_GONE_CLOSED);
}

static void conn_handshake(struct gw_conn *c)
{
    static const char hint[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 39\r\nConnection: close\r\n\r\n"
                               "This port speaks HTTPS: use https://.\r\n";
    int rc = tls_accept(c->ssl);
    if (rc == IO_READ || rc == IO_WRITE) {
        conn_watch_output(c, rc == IO_WRITE);
        return;
    }
    conn_watch_output(c, false);
    if (rc == 1) {
        tls_warm(c);
        c->spared = false;
        handshake_over(c);
        COUNT(c->loop, handshakes);
        if (SSL_session_reused(c->ssl))
            COUNT(c->loop, handshakes_resumed);
        c->state = CONN_READ;
        conn_await_input(c);
        if (SSL_has_pending(c->ssl))
            conn_readable(c);
        return;
    }
    if (rc != IO_HTTP) {
        conn_eof(c, true);
        return;
    }
    COUNT(c->loop, handshakes_failed);
    handshake_over(c);
    SSL_free(c->ssl);
    c->ssl = NULL;
    if (send(c->fd, hint, sizeof hint - 1, MSG_NOSIGNAL) < 0)
        conn_lost(c, GW_GONE_CLOSED);
    else
        start_linger(c);
}

static void discard(struct gw_conn *c)
{
    ssize_t n = sock_result(recv(c->fd, c->loop->in, IN_BYTES, 0), IO_READ);
    if (n == IO_READ)
        return;
    if (n > 0)
        c->lingered += (uint64_t)n;
    if (n <= 0 || c->lingered > LINGER_BYTES)
        conn_lost(c, GW_GONE_CLOSED);
}

static void conn_readable(struct gw_conn *c)
{
    for (int i = 0; i < READS_PER_EVENT; i++) {
        if (c->paused || (c->state != CONN_READ && c->state != CONN_RUN))
            return;
        ssize_t n = conn_read(c, c->loop->in, IN_BYTES);
        if (n == IO_READ)
            return;
        if (n == IO_WRITE) { /* a key update has to go out first */
            c->read_wants_write = true;
            conn_watch_output(c, true);
            return;
        }
        if (n <= 0) {
            conn_eof(c, n != IO_EOF);
            return;
        }
        COUNT_BY(c->loop, bytes_in, n);
        conn_input(c, c->loop->in, (size_t)n);
        if (c->state != CONN_DEAD && (c->ssl ? !SSL_has_pending(c->ssl) : n < IN_BYTES))
            return;
    }
    if (c->state != CONN_DEAD)
        loop_todo(c->loop, c, TODO_READ);
}

static void hear(struct gw_conn *c)
{
    if (c->state == CONN_PROXY)
        conn_proxy(c);
    else if (c->state == CONN_HANDSHAKE)
        conn_handshake(c);
    else if (c->state == CONN_LINGER)
        discard(c);
    else
        conn_readable(c);
}

static void on_io(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    struct gw_conn *c = arg;
    if (atomic_load_explicit(&c->loop->asleep, memory_order_relaxed))
        atomic_store_explicit(&c->loop->asleep, false, memory_order_relaxed); /* it runs: who posts need not wake it */
    if (what & EV_WRITE) {
        if (c->state == CONN_HANDSHAKE) {
            conn_handshake(c);
            return;
        }
        if (c->read_wants_write) {
            c->read_wants_write = false;
            conn_watch_output(c, conn_backlog(c) > 0);
            conn_readable(c);
        }
        if (c->state != CONN_DEAD && conn_backlog(c))
            conn_writable(c);
    }
    if (c->state == CONN_DEAD)
        return;
    if (what & EV_READ)
        hear(c);
}

void conn_do(struct gw_conn *c, uint8_t what)
{
    if (c->state != CONN_DEAD && (what & TODO_AHEAD))
        conn_resume(c);
    if (c->state != CONN_DEAD && (what & TODO_READ))
        conn_readable(c);
    if (c->state == CONN_DEAD && !(c->todo & TODO_QUEUED))
        conn_free(c);
}

static bool peer_gone(const struct gw_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0;
}

/* A loop that is late has not read yet what came in time. One more term is given to who spoke and is not through; just one, since a
 * byte can always be found lying there. */
bool conn_spare(struct gw_conn *c, enum dl_kind kind)
{
    int waiting = 0;
    if (c->paused || ioctl(c->fd, FIONREAD, &waiting) || !waiting)
        return false;
    hear(c);
    if (c->state == CONN_DEAD || c->dl_kind != kind || c->dl.next)
        return true;
    if (c->spared)
        return false;
    c->spared = true;
    conn_await(c, kind);
    return true;
}

void conn_deadline(struct gw_conn *c, enum dl_kind kind)
{
    if ((kind == DL_HANDSHAKE || kind == DL_HEADER || kind == DL_BODY || kind == DL_IDLE || (kind == DL_LINGER && c->state == CONN_READ)) && conn_spare(c, kind))
        return;
    switch (kind) {
    case DL_HANDSHAKE:
        COUNT(c->loop, timeouts);
        conn_eof(c, true);
        break;
    case DL_HEADER:
        if (gw_http1_started(&c->http))
            conn_fail(c, 408, "the request head took too long");
        else
            conn_finish(c);
        break;
    case DL_BODY:
        conn_fail(c, 408, "the request body stopped coming");
        break;
    case DL_STALL:
        conn_stall_check(c);
        break;
    case DL_BEAT:
        exchange_beat(c);
        break;
    case DL_WATCH:
        if (peer_gone(c))
            conn_lost(c, GW_GONE_CLOSED);
        else
            conn_await(c, DL_WATCH);
        break;
    default: /* idle; linger, also of a connection that a drain found just opened */
        if (c->state == CONN_LINGER)
            conn_lost(c, GW_GONE_CLOSED);
        else
            conn_finish(c);
    }
}

static bool conn_idle(const struct gw_conn *c)
{
    return c->state == CONN_READ && !c->x && !gw_http1_started(&c->http) && !c->ahead.len;
}

void conn_drain(struct gw_conn *c)
{
    if (conn_idle(c))
        conn_readable(c); /* a request that has arrived is still answered */
    if (conn_idle(c) && !c->served)
        conn_await(c, DL_LINGER); /* just opened: its request is on the way, and nobody sends a first one twice */
    else if (conn_idle(c))
        conn_finish(c);
}

/* ---- the start ----------------------------------------------------------------------------------------------- */
static void put_peer(struct gw_conn *c, const struct sockaddr *from)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    if (from->sa_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)(const void *)from;
        inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip);
        snprintf(c->peer, sizeof c->peer, "%s:%u", ip, ntohs(a->sin_port));
    } else {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)(const void *)from;
        inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip);
        snprintf(c->peer, sizeof c->peer, "[%s]:%u", ip, ntohs(a->sin6_port));
    }
}

static void set_peer(struct gw_conn *c, const struct sockaddr *from)
{
    put_peer(c, from);
    gw_peer_key_of(from, &c->peer_key);
    c->trusted = gw_nets_has(&conn_cfg(c)->trusted, from);
    c->loopback = from->sa_family == AF_INET ? ntohl(((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr) >> 24 == 127
                                             : IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)from)->sin6_addr);
}

/* Its bytes may be read from now on. */
static void conn_begin(struct gw_conn *c)
{
    if (c->ssl) {
        SSL_set_accept_state(c->ssl);
        c->state = CONN_HANDSHAKE;
        c->in_handshake = true;
        c->loop->handshakes++;
        COUNT(c->loop, handshakes_open);
        conn_await(c, DL_HANDSHAKE);
    } else {
        c->state = CONN_READ;
        conn_await_input(c);
    }
}

/* The header is read to its last byte and not further: what follows belongs to TLS. */
static void conn_proxy(struct gw_conn *c)
{
    union gw_addr from;
    struct err e;
    bool local;
    size_t want = GW_PROXY2_FIXED;
    for (;;) {
        if (c->ahead.len >= GW_PROXY2_FIXED && !(want = gw_proxy2_length((const uint8_t *)c->ahead.data))) {
            conn_eof(c, true);
            return;
        }
        if (c->ahead.len == want)
            break;
        ssize_t n = sock_result(recv(c->fd, c->loop->in, want - c->ahead.len, 0), IO_READ);
        if (n == IO_READ)
            return;
        if (n <= 0 || !buf_add(&c->ahead, c->loop->in, (size_t)n)) {
            conn_eof(c, true);
            return;
        }
    }
    if (gw_proxy2_parse((const uint8_t *)c->ahead.data, want, &from, &local, &e)) {
        log_info("http: %s: %s", c->peer, e.msg);
        conn_eof(c, true);
        return;
    }
    buf_free(&c->ahead);
    if (!local) {
        set_peer(c, &from.sa);
        c->loopback = false; /* it came through a proxy, whatever that says */
        c->in_peers = c->loop->server->peers && !c->trusted && gw_peers_enter(c->loop->server->peers, &c->peer_key);
        if (c->loop->server->peers && !c->trusted && !c->in_peers) {
            COUNT(c->loop, connections_refused_address);
            conn_lost(c, GW_GONE_CLOSED);
            return;
        }
    }
    conn_begin(c);
}

/* Takes the descriptor; the connection was counted in server->open, and where in_peers among its address's. */
void conn_accepted(gw_loop *l, int fd, const struct sockaddr *from, bool in_peers)
{
    struct gw_conn *c = calloc(1, sizeof *c);
    if (!c || (l->tls && (!(c->ssl = SSL_new(l->tls)) || !SSL_set_fd(c->ssl, fd)))) {
        struct gw_peer_key key;
        if (c)
            SSL_free(c->ssl);
        free(c);
        close(fd);
        COUNT(l, connections_refused);
        gw_peer_key_of(from, &key);
        if (in_peers)
            gw_peers_leave(l->server->peers, &key);
        atomic_fetch_sub_explicit(&l->server->open, 1, memory_order_relaxed);
        return;
    }
    c->loop = l;
    c->fd = fd;
    c->in_peers = in_peers;
    c->gone = GW_GONE_CLOSED;
    c->dl_kind = DL_NONE;
    gw_http1_init(&c->http, &l->server->cfg.http);
    buf_init(&c->out, ANSWER_MAX);
    buf_init(&c->ahead, l->server->cfg.pipeline_max + IN_BYTES);
    set_peer(c, from);
    if ((c->next = l->conns))
        c->next->prev = c;
    l->conns = c;
    COUNT(l, connections);
    COUNT(l, connections_open);
    event_assign(&c->rd, l->base, fd, EV_READ | EV_PERSIST, on_io, c);
    event_assign(&c->wr, l->base, fd, EV_WRITE | EV_PERSIST, on_io, c);
    event_add(&c->rd, NULL);
    if (l->server->cfg.proxy_protocol) {
        c->state = CONN_PROXY;
        conn_await(c, DL_HANDSHAKE);
    } else
        conn_begin(c);
}
