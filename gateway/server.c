/* Listeners, start, drain and stop. Each loop has its own listening sockets on the same addresses (SO_REUSEPORT): the kernel
 * spreads connections and no loop hands one to another. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "gateway/server_internal.h"

#define ACCEPTS_PER_EVENT 64
#define THREADS_MAX 256

void gw_server_config_default(struct gw_server_config *c)
{
    *c = (struct gw_server_config){
        .http = gw_http1_limits_default,
        .body_bytes_total_max = 256u << 20,
        .connections_max = 20000, .handshakes_max = 1024,
        .handshake_ms = 10000, .header_ms = 15000, .body_ms = 30000, .body_total_ms = 300000, .idle_ms = 75000,
        .write_stall_ms = 30000, .linger_ms = 2000, .heartbeat_ms = 15000, .ticket_s = 3600,
        .backlog_high = 64 << 10, .backlog_low = 16 << 10, .backlog_max = 4 << 20, .write_min = 4096,
        .pipeline_max = 64 << 10, .post_max = 65536, .sndbuf = 128 << 10};
}

/* ---- addresses ------------------------------------------------------------------------------------------------- */

static int parse_addr(const struct gw_listen *from, uint16_t port, union gw_addr *a, socklen_t *len, struct err *e)
{
    const char *host = !strcmp(from->host, "localhost") ? "127.0.0.1" : from->host;
    char bare[64];
    size_t n = strlen(host);
    memset(a, 0, sizeof *a);
    if (n > 2 && n < sizeof bare && host[0] == '[' && host[n - 1] == ']') {
        memcpy(bare, host + 1, n - 2);
        bare[n - 2] = 0;
        host = bare;
    }
    if (inet_pton(AF_INET, host, &a->in.sin_addr) == 1) {
        a->in.sin_family = AF_INET;
        a->in.sin_port = htons(port);
        *len = sizeof a->in;
    } else if (inet_pton(AF_INET6, host, &a->in6.sin6_addr) == 1) {
        a->in6.sin6_family = AF_INET6;
        a->in6.sin6_port = htons(port);
        *len = sizeof a->in6;
    } else
        return err_set(e, ERR_INVALID, "listen address: expected an IPv4 or IPv6 address, found \"%s\"", from->host);
    return ERR_OK;
}

static bool is_loopback(const union gw_addr *a)
{
    if (a->sa.sa_family == AF_INET)
        return ntohl(a->in.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
}

static int check_config(const struct gw_server_config *c, struct err *e)
{
    if (!c->n_listen || c->n_listen > GW_LISTEN_MAX)
        return err_set(e, ERR_INVALID, "expected 1 to %d listen addresses, found %u", GW_LISTEN_MAX, c->n_listen);
    if (!c->cert_file != !c->key_file)
        return err_set(e, ERR_INVALID, "a certificate needs its key and a key its certificate: only one was given");
    if (!c->handler.on_request || c->backlog_low > c->backlog_high || c->backlog_high >= c->backlog_max || !c->post_max || !c->handshakes_max || c->threads > THREADS_MAX)
        return err_set(e, ERR_INVALID, "server limits contradict each other (backlog low %zu, high %zu, max %zu; threads %u)", c->backlog_low,
                       c->backlog_high, c->backlog_max, c->threads);
    for (unsigned i = 0; i < c->n_listen; i++) {
        union gw_addr a;
        socklen_t len;
        int rc = parse_addr(&c->listen[i], c->listen[i].port, &a, &len, e);
        if (rc)
            return rc;
        if (!c->cert_file && !c->plain_anywhere && !is_loopback(&a))
            return err_set(e, ERR_INVALID, "%s: plain HTTP is for loopback addresses; give a certificate", c->listen[i].host);
    }
    return ERR_OK;
}

/* ---- listening ------------------------------------------------------------------------------------------------- */
static void set_int(int fd, int level, int name, int value)
{
    setsockopt(fd, level, name, &value, sizeof value); /* tuning: a kernel that refuses it still serves */
}

/* Options are set here because accepted sockets inherit them: no system calls per connection. */
static void tune(int fd, const struct gw_server_config *c)
{
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384); /* else megabytes hide in the kernel and a slow reader looks fast */
    /* behind our own deadline, which knows what a client has taken: for peers that vanished while nothing waits in our buffer */
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, c->write_stall_ms < 0x3FFFFC00 ? (int)c->write_stall_ms * 2 + 1000 : 0x7FFFFFFF);
    if (c->sndbuf)
        set_int(fd, SOL_SOCKET, SO_SNDBUF, c->sndbuf);
}

static int open_socket(const union gw_addr *a, socklen_t len, bool share, int *out, struct err *e)
{
    int fd = socket(a->sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set(e, ERR_IO, "socket: %s", strerror(errno));
    set_int(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (share)
        set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (a->sa.sa_family == AF_INET6)
        set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(fd, &a->sa, len)) {
        int why = errno;
        close(fd);
        return err_set(e, ERR_IO, "bind: %s", strerror(why));
    }
    *out = fd;
    return ERR_OK;
}

static int add_listener(gw_loop *l, int fd, struct err *e) /* takes fd */
{
    struct listener *p = realloc(l->listeners, (l->n_listeners + 1) * sizeof *p);
    if (!p) {
        close(fd);
        return err_set(e, ERR_NOMEM, "listening socket");
    }
    l->listeners = p;
    memset(&p[l->n_listeners], 0, sizeof *p);
    p[l->n_listeners++].fd = fd;
    return ERR_OK;
}

static uint16_t port_of(const union gw_addr *a) { return ntohs(a->sa.sa_family == AF_INET ? a->in.sin_port : a->in6.sin6_port); }

static bool same_host(const union gw_addr *a, const union gw_addr *b)
{
    if (a->sa.sa_family != b->sa.sa_family)
        return false;
    return a->sa.sa_family == AF_INET ? a->in.sin_addr.s_addr == b->in.sin_addr.s_addr : !memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, 16);
}

/* This loop's share of the inherited sockets of address i; *all: how many there are for any loop. */
static int inherit(gw_server *s, gw_loop *l, unsigned i, const union gw_addr *want, unsigned *all, struct err *e)
{
    int rc = ERR_OK;
    *all = 0;
    for (unsigned k = 0; k < s->cfg.n_inherit && !rc; k++) {
        union gw_addr a;
        socklen_t len = sizeof a;
        if (getsockname(s->cfg.inherit[k], &a.sa, &len) || !same_host(&a, want) || (s->port[i] && port_of(&a) != s->port[i]))
            continue;
        s->port[i] = port_of(&a);
        if ((*all)++ % s->n_planned != l->index)
            continue;
        int fd = fcntl(s->cfg.inherit[k], F_DUPFD_CLOEXEC, 3); /* the caller's are closed when all loops have theirs */
        rc = fd < 0 ? err_set(e, ERR_IO, "inherited descriptor %d: %s", s->cfg.inherit[k], strerror(errno)) : add_listener(l, fd, e);
    }
    return rc;
}

static int listen_on(gw_server *s, gw_loop *l, unsigned i, struct err *e)
{
    const struct gw_listen *from = &s->cfg.listen[i];
    union gw_addr a;
    socklen_t len;
    unsigned inherited, had = l->n_listeners;
    int fd = -1, rc;
    if (!l->index)
        s->port[i] = from->port;
    if ((rc = parse_addr(from, s->port[i], &a, &len, e)) || (rc = inherit(s, l, i, &a, &inherited, e)) || l->n_listeners > had)
        return rc;
    if (inherited && (rc = parse_addr(from, s->port[i], &a, &len, e)))
        return rc;
    if (!l->index && from->port && !inherited) { /* SO_REUSEPORT would silently share the port with another server: ask without it first */
        if ((rc = open_socket(&a, len, false, &fd, e)))
            return err_prefix(e, rc, "%s port %u", from->host, from->port);
        close(fd);
        fd = -1;
    }
    if ((rc = open_socket(&a, len, true, &fd, e)))
        return err_prefix(e, rc, "%s port %u", from->host, from->port);
    tune(fd, &s->cfg);
    if (listen(fd, 4096) || getsockname(fd, &a.sa, &len)) {
        rc = err_set(e, ERR_IO, "%s port %u: %s", from->host, from->port, strerror(errno));
        close(fd);
        return rc;
    }
    s->port[i] = port_of(&a);
    return add_listener(l, fd, e);
}

/* ---- accepting ------------------------------------------------------------------------------------------------- */
void accept_resume(gw_loop *l)
{
    if (!l->accept_paused)
        return;
    l->accept_paused = l->accept_full = false;
    event_del(&l->resume_ev);
    for (unsigned i = 0; i < l->n_listeners; i++)
        if (l->listeners[i].fd >= 0)
            event_add(&l->listeners[i].ev, NULL);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    accept_resume(arg);
}

/* A listening socket that stays readable would spin, so it is not watched for a while. */
static void pause_accept(gw_loop *l, const char *why)
{
    static const struct timeval soon = {0, 100000};
    if (l->accept_paused)
        return;
    l->accept_paused = true;
    COUNT(l, accept_pauses);
    if (why) /* once a second at most: this must not fill a disk */
        log_warn("http: accept pauses: %s", why);
    for (unsigned i = 0; i < l->n_listeners; i++)
        if (l->listeners[i].fd >= 0)
            event_del(&l->listeners[i].ev);
    event_add(&l->resume_ev, &soon);
}

/* Handshakes are the one thing a stranger can make us compute and hold memory for. Beyond the bound the oldest goes if it has had its
 * second (nobody who means it needs longer, and half-open ones must not lock everybody out); else newcomers wait in the kernel. */
static bool handshake_room(gw_loop *l)
{
    struct deadline *oldest = l->lists[DL_HANDSHAKE].next;
    if (l->handshakes < l->handshakes_max)
        return true;
    uint64_t had = l->server->ns[DL_HANDSHAKE] < NS_PER_S ? l->server->ns[DL_HANDSHAKE] : NS_PER_S;
    if (oldest != &l->lists[DL_HANDSHAKE] && clock_now_ns() + l->server->ns[DL_HANDSHAKE] >= oldest->at + had) {
        struct gw_conn *c = (struct gw_conn *)(void *)((char *)oldest - offsetof(struct gw_conn, dl));
        deadline_drop(oldest);
        if (!conn_spare(c, DL_HANDSHAKE)) {
            COUNT(l, handshakes_evicted);
            COUNT(l, handshakes_failed);
            conn_lost(c, GW_GONE_CLOSED);
        }
        if (l->handshakes < l->handshakes_max)
            return true;
    }
    l->accept_full = true;
    pause_accept(l, NULL);
    return false;
}

/* Closes at once whom the bounds exclude. */
static bool within_bounds(gw_loop *l, int fd, const struct sockaddr *from, bool *in_peers)
{
    gw_server *s = l->server;
    struct gw_peer_key k;
    bool trusted = gw_nets_has(&s->cfg.trusted, from);
    gw_peer_key_of(from, &k);
    *in_peers = s->peers && !trusted;
    if (atomic_fetch_add_explicit(&s->open, 1, memory_order_relaxed) >= s->cfg.connections_max)
        COUNT(l, connections_refused);
    else if (s->cfg.proxy_protocol && !trusted)
        COUNT(l, proxy_errors);
    else if (*in_peers && !gw_peers_enter(s->peers, &k))
        COUNT(l, connections_refused_address);
    else
        return true;
    atomic_fetch_sub_explicit(&s->open, 1, memory_order_relaxed);
    close(fd);
    return false;
}

static bool accept_one(gw_loop *l, int listen_fd)
{
    union gw_addr a;
    bool in_peers;
    socklen_t len = sizeof a;
    if (l->tls && !handshake_room(l))
        return false;
    int fd = accept4(listen_fd, &a.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accept(l, strerror(errno));
        return errno == ECONNABORTED || errno == EINTR;
    }
    if (within_bounds(l, fd, &a.sa, &in_peers))
        conn_accepted(l, fd, &a.sa, in_peers);
    return true;
}

static void on_accept(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    for (int i = 0; i < ACCEPTS_PER_EVENT && accept_one(arg, (int)fd); i++)
        ;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
static unsigned cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    return n < 1 ? 1 : n > THREADS_MAX ? THREADS_MAX : (unsigned)n;
}

static void set_durations(gw_server *s)
{
    const struct gw_server_config *c = &s->cfg;
    const uint32_t ms[DL_N] = {[DL_HANDSHAKE] = c->handshake_ms, [DL_HEADER] = c->header_ms, [DL_BODY] = c->body_ms, [DL_IDLE] = c->idle_ms,
                               [DL_LINGER] = c->linger_ms, [DL_WATCH] = 250, [DL_STALL] = c->write_stall_ms, [DL_BEAT] = c->heartbeat_ms};
    for (unsigned k = 0; k < DL_N; k++)
        s->ns[k] = ms[k] * NS_PER_MS;
}

static int open_loop(gw_server *s, unsigned i, struct err *e)
{
    const struct gw_server_config *c = &s->cfg;
    gw_loop *l;
    int rc = loop_open(&l, s, i, e);
    if (rc)
        return rc;
    s->loops[s->n_loops++] = l;
    l->handshakes_max = (c->handshakes_max + s->n_planned - 1) / s->n_planned;
    if (c->cert_file && (rc = tls_ctx_new(&l->tls, c->cert_file, c->key_file, &s->tickets, e)))
        return rc;
    for (unsigned k = 0; k < c->n_listen; k++)
        if ((rc = listen_on(s, l, k, e)))
            return rc;
    for (unsigned k = 0; k < l->n_listeners; k++) { /* now that the array moves no more */
        event_assign(&l->listeners[k].ev, l->base, l->listeners[k].fd, EV_READ | EV_PERSIST, on_accept, l);
        if (!c->paused)
            event_add(&l->listeners[k].ev, NULL);
    }
    event_assign(&l->resume_ev, l->base, -1, 0, on_resume, l);
    return ERR_OK;
}

int gw_server_open(gw_server **out, const struct gw_server_config *cfg, struct err *e)
{
    int rc = ERR_OK;
    gw_server *s = NULL;

    *out = NULL;
    if ((rc = check_config(cfg, e)))
        return rc;
    unsigned n = cfg->threads ? cfg->threads : cores();
    if (!(s = calloc(1, sizeof *s)) || !(s->loops = calloc(n, sizeof *s->loops))) {
        rc = err_set(e, ERR_NOMEM, "server of %u loops", n);
        goto out;
    }
    s->cfg = *cfg;
    s->n_planned = n;
    set_durations(s);
    if (cfg->connections_address_max && (rc = gw_peers_open(&s->peers, cfg->connections_max, cfg->connections_address_max, e)))
        goto out;
    s->has_tickets = true;
    if (!gw_tickets_open(&s->tickets, (cfg->ticket_s ? cfg->ticket_s : 1) * NS_PER_S)) {
        rc = err_set(e, ERR_IO, "no random bytes for session tickets");
        goto out;
    }
    for (unsigned i = 0; i < n && !rc; i++)
        rc = open_loop(s, i, e);
    for (unsigned i = 0; i < n && !rc; i++)
        rc = loop_start(s->loops[i], e);
    if (rc)
        goto out;
    for (unsigned i = 0; i < cfg->n_inherit; i++)
        close(cfg->inherit[i]);
    s->cfg.inherit = NULL;
    s->cfg.n_inherit = 0;
    s->cfg.cert_file = s->cfg.key_file = NULL; /* the caller's strings: not ours from here on */
    for (unsigned i = 0; i < GW_LISTEN_MAX; i++)
        s->cfg.listen[i].host = NULL;
    *out = s;
    s = NULL;
out:
    gw_server_close(s);
    return rc;
}

static void accept_task(void *arg)
{
    gw_loop *l = arg;
    for (unsigned i = 0; i < l->n_listeners && !l->draining; i++)
        event_add(&l->listeners[i].ev, NULL);
}

void gw_server_accept(gw_server *s)
{
    for (unsigned i = 0; i < s->n_loops; i++)
        while (gw_loop_post(s->loops[i], accept_task, s->loops[i]) == ERR_AGAIN)
            clock_sleep_ns(NS_PER_MS);
}

void gw_server_handed(gw_server *s) { atomic_store(&s->handed, true); }

unsigned gw_server_listen_fds(const gw_server *s, int *out, unsigned most)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->n_loops; i++)
        for (unsigned k = 0; k < s->loops[i]->n_listeners && n < most; k++)
            out[n++] = s->loops[i]->listeners[k].fd;
    return n;
}

uint16_t gw_server_port(const gw_server *s, unsigned i) { return i < s->cfg.n_listen ? s->port[i] : 0; }
unsigned gw_server_loops(const gw_server *s) { return s->n_loops; }
gw_loop *gw_server_loop(gw_server *s, unsigned i) { return i < s->n_loops ? s->loops[i] : NULL; }

/* ---- other certificates ------------------------------------------------------------------------------------------ */
struct new_tls { gw_loop *loop; SSL_CTX *ctx; };

static void tls_task(void *arg)
{
    struct new_tls *n = arg;
    SSL_CTX_free(n->loop->tls); /* connections hold references of their own */
    n->loop->tls = n->ctx;
    free(n);
}

int gw_server_reload_tls(gw_server *s, const char *cert_file, const char *key_file, struct err *e)
{
    int rc = ERR_OK;
    struct new_tls *n[THREADS_MAX] = {0};
    for (unsigned i = 0; i < s->n_loops && !rc; i++)
        if (!(n[i] = calloc(1, sizeof **n)))
            rc = err_set(e, ERR_NOMEM, "TLS context");
        else
            rc = tls_ctx_new(&n[i]->ctx, cert_file, key_file, &s->tickets, e);
    for (unsigned i = 0; i < s->n_loops; i++) {
        int posted = ERR_CLOSED;
        if (n[i])
            n[i]->loop = s->loops[i];
        while (!rc && (posted = gw_loop_post(s->loops[i], tls_task, n[i])) == ERR_AGAIN)
            clock_sleep_ns(NS_PER_MS);
        if (posted && n[i]) {
            SSL_CTX_free(n[i]->ctx);
            free(n[i]);
        }
    }
    return rc;
}

static void drain_task(void *arg)
{
    gw_loop *l = arg;
    l->draining = true;
    for (unsigned i = 0; i < l->n_listeners; i++) {
        int fd = l->listeners[i].fd;
        if (fd < 0)
            continue;
        while (!atomic_load(&l->server->handed) && accept_one(l, fd) && !l->accept_paused) /* who is in the queue already would get a reset */
            ;
        event_del(&l->listeners[i].ev);
        close(fd);
        l->listeners[i].fd = -1;
    }
    event_del(&l->resume_ev);
    for (struct gw_conn *c = l->conns; c; c = c->next)
        conn_drain(c);
}

unsigned gw_server_drain(gw_server *s, uint32_t ms)
{
    uint64_t until = clock_now_ns() + ms * NS_PER_MS, left;
    if (!atomic_exchange(&s->draining, true))
        for (unsigned i = 0; i < s->n_loops; i++)
            while (gw_loop_post(s->loops[i], drain_task, s->loops[i]) == ERR_AGAIN)
                clock_sleep_ns(NS_PER_MS);
    while ((left = atomic_load_explicit(&s->open, memory_order_relaxed)) && clock_now_ns() < until)
        clock_sleep_ns(2 * NS_PER_MS);
    return (unsigned)left;
}

void gw_server_close(gw_server *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < s->n_loops; i++)
        loop_close(s->loops[i]);
    gw_peers_close(s->peers);
    if (s->has_tickets)
        gw_tickets_close(&s->tickets);
    free(s->loops);
    free(s);
}

void gw_server_counters(const gw_server *s, struct gw_counters *c)
{
    uint64_t sum[sizeof *c / 8] = {0};
    for (unsigned i = 0; i < s->n_loops; i++)
        for (size_t k = 0; k < sizeof sum / 8; k++)
            sum[k] += atomic_load_explicit(&s->loops[i]->n[k], memory_order_relaxed);
    memcpy(c, sum, sizeof *c);
    c->body_bytes_held = atomic_load_explicit(&s->body_held, memory_order_relaxed);
    c->addresses = s->peers ? gw_peers_addresses(s->peers) : 0;
    for (unsigned i = 0; i < s->n_loops; i++)
        c->posts_waiting += loop_posts_waiting(s->loops[i]);
}
