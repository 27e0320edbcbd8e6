/* The socket of the line to the engine: connecting, bytes in, frames out.
 *
 * Whoever has a frame appends it to `out` under the lock and sends, unless somebody is sending already: then that one takes it along, so
 * that frames which come close together leave in one system call and no thread has to be woken for one. What the socket does not take
 * waits in `wire` until it is writable, which the client's thread watches. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "gateway/engine_client_internal.h"

#define READS_PER_EVENT 4
#define KEEP_BYTES (1u << 20) /* one huge prompt must not keep its size forever */

/* ---- addresses -------------------------------------------------------------------------------------------- */

static bool split_host_port(const char *s, char host[64], unsigned *port)
{
    const char *colon = strrchr(s, ':');
    char *end;
    if (!colon || colon == s || !colon[1] || (size_t)(colon - s) >= 64)
        return false;
    unsigned long p = strtoul(colon + 1, &end, 10);
    if (*end || p == 0 || p > 65535)
        return false;
    size_t skip = *s == '[' && colon[-1] == ']';
    size_t n = (size_t)(colon - s) - 2 * skip;
    memcpy(host, s + skip, n);
    host[n] = 0;
    *port = (unsigned)p;
    return true;
}

int gw_line_address(const char *s, union gw_line_addr *out, socklen_t *len, struct err *e)
{
    char host[64];
    unsigned port;
    const char *path = !strncmp(s, "unix:", 5) ? s + 5 : *s == '/' ? s : NULL;
    memset(out, 0, sizeof *out);
    if (path) {
        size_t n = strlen(path);
        if (!n || n >= sizeof out->un.sun_path)
            return err_set(e, ERR_INVALID, "engine address '%s': expected a path of 1 to %zu bytes", s, sizeof out->un.sun_path - 1);
        out->un.sun_family = AF_UNIX;
        memcpy(out->un.sun_path, path, n + 1);
        *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
        return ERR_OK;
    }
    if (!split_host_port(s, host, &port))
        return err_set(e, ERR_INVALID, "engine address '%s': expected unix:/path or host:port", s);
    if (!strcmp(host, "localhost"))
        memcpy(host, "127.0.0.1", 10);
    if (inet_pton(AF_INET, host, &out->in.sin_addr) == 1) {
        out->in.sin_family = AF_INET;
        out->in.sin_port = htons((uint16_t)port);
        *len = sizeof out->in;
        if ((ntohl(out->in.sin_addr.s_addr) >> 24) == 127)
            return ERR_OK;
    } else if (inet_pton(AF_INET6, host, &out->in6.sin6_addr) == 1) {
        out->in6.sin6_family = AF_INET6;
        out->in6.sin6_port = htons((uint16_t)port);
        *len = sizeof out->in6;
        if (IN6_IS_ADDR_LOOPBACK(&out->in6.sin6_addr))
            return ERR_OK;
    } else {
        return err_set(e, ERR_INVALID, "engine address '%s': expected a numeric address or localhost", s);
    }
    return err_set(e, ERR_UNSUPPORTED, "engine address '%s' is not on this machine, and the line to the engine is not encrypted", s);
}

/* ---- frames out ------------------------------------------------------------------------------------------- */

static bool would_block(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

size_t gw_line_unsent(const struct gw_engine *g) { return g->out.len + g->wire.len - g->wire_at; }

void gw_line_flush(struct gw_engine *g)
{
    while (g->fd >= 0 && g->line_open && !g->sending && !g->blocked && gw_line_unsent(g)) {
        if (g->wire_at == g->wire.len) {
            struct buf t = g->wire;
            g->wire = g->out;
            g->wire_at = 0;
            buf_reset(&t);
            if (t.cap > KEEP_BYTES)
                buf_free(&t);
            g->out = t;
        }
        g->sending = true;
        pthread_mutex_unlock(&g->lock);
        ssize_t n = send(g->fd, g->wire.data + g->wire_at, g->wire.len - g->wire_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        bool wait = n < 0 && would_block();
        pthread_mutex_lock(&g->lock);
        g->sending = false;
        if (n > 0)
            g->wire_at += (size_t)n;
        else
            g->blocked = true; /* the client's thread waits for room, or reads of the end */
        if (g->blocked && wait)
            gw_line_wake(g);
        pthread_cond_broadcast(&g->sent);
    }
}

bool gw_line_put(struct gw_engine *g, const struct buf *frames)
{
    return g->line_open && buf_add(&g->out, frames->data, frames->len);
}

bool gw_line_send(struct gw_engine *g, uint16_t type, uint64_t request, const void *body, size_t n)
{
    pthread_mutex_lock(&g->lock);
    bool ok = g->line_open && eng_frame_put(&g->out, type, request, body, n);
    gw_line_flush(g);
    pthread_mutex_unlock(&g->lock);
    return ok;
}

static void on_writable(evutil_socket_t fd, short what, void *ctx)
{
    struct gw_engine *g = ctx;
    (void)fd;
    (void)what;
    if (g->state == LINE_CONNECTING) {
        int err = 0;
        socklen_t len = sizeof err;
        if (getsockopt(g->fd, SOL_SOCKET, SO_ERROR, &err, &len) || err)
            gw_client_broken(g, strerror(err));
        else
            gw_line_ready(g);
        return;
    }
    pthread_mutex_lock(&g->lock);
    g->blocked = false;
    gw_line_flush(g);
    bool again = g->blocked;
    pthread_mutex_unlock(&g->lock);
    if (again)
        event_add(g->writable, NULL);
}

void gw_line_watch(struct gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    bool wait = g->fd >= 0 && g->blocked;
    pthread_mutex_unlock(&g->lock);
    if (wait)
        event_add(g->writable, NULL);
}

/* ---- bytes in --------------------------------------------------------------------------------------------- */

static void on_readable(evutil_socket_t fd, short what, void *ctx)
{
    struct gw_engine *g = ctx;
    (void)what;
    for (int i = 0; i < READS_PER_EVENT && g->fd == (int)fd; i++) {
        ssize_t n = recv(g->fd, g->in, sizeof g->in, 0);
        if (n < 0 && would_block())
            return;
        if (n <= 0) {
            gw_client_broken(g, n ? strerror(errno) : "closed by the engine");
            return;
        }
        gw_client_bytes(g, g->in, (size_t)n);
        if ((size_t)n < sizeof g->in)
            return;
    }
}

/* ---- the connection --------------------------------------------------------------------------------------- */

void gw_line_ready(struct gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->line_open = true;
    pthread_mutex_unlock(&g->lock);
    event_add(g->readable, NULL);
    gw_client_connected(g);
}

bool gw_line_connect(struct gw_engine *g, struct err *e)
{
    union gw_line_addr addr;
    socklen_t len;
    int one = 1;
    if (gw_line_address(g->address, &addr, &len, e)) /* was checked at open */
        return false;
    int fd = socket(addr.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err_set(e, ERR_IO, "%s", strerror(errno));
        return false;
    }
    g->fd = fd;
    g->readable = event_new(g->base, fd, EV_READ | EV_PERSIST, on_readable, g);
    g->writable = event_new(g->base, fd, EV_WRITE, on_writable, g);
    if (addr.sa.sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    int rc = g->readable && g->writable ? connect(fd, &addr.sa, len) : -1;
    if (!rc)
        gw_line_ready(g);
    else if (!g->readable || !g->writable || errno != EINPROGRESS || event_add(g->writable, NULL)) {
        err_set(e, ERR_IO, "%s", strerror(errno));
        return false;
    }
    return true;
}

void gw_line_close(struct gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->line_open = false;
    while (g->sending) /* not waiting for the peer: sends do not block */
        pthread_cond_wait(&g->sent, &g->lock);
    int fd = g->fd;
    g->fd = -1;
    g->blocked = false;
    buf_free(&g->out);
    buf_free(&g->wire);
    g->wire_at = 0;
    pthread_mutex_unlock(&g->lock);
    if (g->readable)
        event_free(g->readable);
    if (g->writable)
        event_free(g->writable);
    g->readable = g->writable = NULL;
    if (fd >= 0)
        close(fd);
}
