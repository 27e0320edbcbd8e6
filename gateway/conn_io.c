/* What a connection reads and writes: the socket, plain or through TLS; the output that it has not taken; a reader that stalls. */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* glibc's tcp_info ends before tcpi_bytes_acked */
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "gateway/server_internal.h"

#define WRITE_PER_EVENT (256u << 10)

/* ---- reading on, off ------------------------------------------------------------------------------------------ */
void conn_pause(struct gw_conn *c)
{
    if (c->paused)
        return;
    c->paused = true;
    event_del(&c->rd);
    if (c->state == CONN_RUN)
        conn_await(c, DL_WATCH);
}

void conn_unpause(struct gw_conn *c)
{
    if (!c->paused)
        return;
    c->paused = false;
    event_add(&c->rd, NULL);
    if (c->dl_kind == DL_WATCH)
        conn_await(c, DL_NONE);
    loop_todo(c->loop, c, TODO_READ); /* TLS may hold bytes that epoll does not know of */
}

void conn_watch_output(struct gw_conn *c, bool on)
{
    if (c->writing == on)
        return;
    c->writing = on;
    if (on)
        event_add(&c->wr, NULL);
    else
        event_del(&c->wr);
}

/* ---- sockets ----------------------------------------------------------------------------------------------- */
ssize_t sock_result(ssize_t n, int wait)
{
    if (n >= 0)
        return n;
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? wait : IO_ERROR;
}

ssize_t conn_read(struct gw_conn *c, void *p, size_t n)
{
    if (c->ssl) {
        tls_warm(c);
        return tls_read(c->ssl, p, n);
    }
    return sock_result(recv(c->fd, p, n, 0), IO_READ);
}

static ssize_t conn_write(struct gw_conn *c, const void *p, size_t n)
{
    if (c->ssl) {
        tls_warm(c);
        return tls_write(c->ssl, p, n);
    }
    return sock_result(send(c->fd, p, n, MSG_NOSIGNAL), IO_WRITE);
}

/* ---- a reader that stalls ----------------------------------------------------------------------------------------- */
/* Bytes the peer's machine has acknowledged: what it really took. Our own writes only say what the kernel had room for. */
static uint64_t acked_bytes(const struct gw_conn *c)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    memset(&info, 0, sizeof info);
    return getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) ? 0 : info.tcpi_bytes_acked;
}

/* Armed when something begins to wait and not again with each byte taken: a reader that takes one now and then would hold its
 * connection, its buffer and its sequence for ever. */
static void stall_arm(struct gw_conn *c)
{
    c->acked = acked_bytes(c);
    deadline_arm(c->loop, DL_STALL, &c->stall);
}

/* It has taken all that the kernel had for it: then what waits, waits for this loop. */
static bool took_all(const struct gw_conn *c)
{
    int unsent = 1;
    return !ioctl(c->fd, SIOCOUTQ, &unsent) && !unsent;
}

void conn_stall_check(struct gw_conn *c)
{
    size_t least = conn_cfg(c)->write_min ? conn_cfg(c)->write_min : 1;
    if (acked_bytes(c) - c->acked >= least) {
        stall_arm(c);
    } else if (took_all(c)) {
        stall_arm(c);
        conn_writable(c);
    } else {
        conn_lost(c, GW_GONE_STALLED);
    }
}

/* ---- output -------------------------------------------------------------------------------------------------- */
void conn_send(struct gw_conn *c, const void *p, size_t n)
{
    const char *s = p;
    if (c->state == CONN_DEAD || !n)
        return;
    size_t before = conn_backlog(c);
    while (!before && n) {
        ssize_t w = conn_write(c, s, n);
        if (w == IO_EOF || w == IO_ERROR) {
            conn_lost(c, GW_GONE_CLOSED);
            return;
        }
        if (w < 0)
            break;
        s += w;
        n -= (size_t)w;
        COUNT_BY(c->loop, bytes_out, w);
    }
    if (!n)
        return;
    if (!buf_add(&c->out, s, n)) {
        conn_lost(c, GW_GONE_STALLED);
        return;
    }
    COUNT_BY(c->loop, backlog_bytes, n);
    if (!before) {
        stall_arm(c);
        conn_watch_output(c, true);
    }
}

static void flushed(struct gw_conn *c)
{
    buf_free(&c->out); /* an idle connection holds no buffer */
    c->out_off = 0;
    deadline_drop(&c->stall);
    conn_watch_output(c, false);
    if (c->state == CONN_CLOSING)
        conn_finish(c);
}

static void tell_room(struct gw_conn *c)
{
    gw_exchange *x = c->x;
    if (c->state != CONN_RUN || !x || !x->want_room || conn_backlog(c) > conn_cfg(c)->backlog_low)
        return;
    x->want_room = false;
    if (x->watched && x->watch.on_room)
        x->watch.on_room(x->watch.ctx, x);
}

void conn_writable(struct gw_conn *c)
{
    size_t sent = 0;
    while (conn_backlog(c) && sent < WRITE_PER_EVENT) {
        ssize_t w = conn_write(c, c->out.data + c->out_off, conn_backlog(c));
        if (w == IO_EOF || w == IO_ERROR) {
            COUNT_BY(c->loop, backlog_bytes, -sent); /* conn_lost takes off what is left */
            conn_lost(c, GW_GONE_CLOSED);
            return;
        }
        if (w < 0)
            break;
        c->out_off += (size_t)w;
        sent += (size_t)w;
    }
    COUNT_BY(c->loop, bytes_out, sent);
    COUNT_BY(c->loop, backlog_bytes, -sent);
    if (!conn_backlog(c))
        flushed(c);
    else if (c->out_off > c->out.len / 2) {
        buf_consume(&c->out, c->out_off);
        c->out_off = 0;
    }
    if (c->state == CONN_READ && c->ahead.len && conn_backlog(c) <= conn_cfg(c)->backlog_high)
        loop_todo(c->loop, c, TODO_AHEAD);
    tell_room(c); /* last: it may end the exchange and the connection */
}
