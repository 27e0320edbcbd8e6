#include "tests/support/gw_rig.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "gateway/cert.h"

#define PIECE 8192

/* ---- the application ------------------------------------------------------------------------------------------ */
struct job { /* of one exchange; lives on the loop, except that /later's thread holds it until its task has run */
    struct rig *rig;
    gw_exchange *x;
    gw_loop *loop;
    bool threaded, deaf;
    unsigned left;
};

static void on_gone(void *ctx, gw_exchange *x, enum gw_gone why)
{
    struct job *j = ctx;
    (void)x;
    atomic_fetch_add(&j->rig->gone[why], 1);
    j->x = NULL;
    if (!j->threaded)
        free(j);
}

static void pump(struct job *j)
{
    char piece[PIECE];
    while (j->left) {
        memset(piece, 'a' + (int)(j->left % 26), sizeof piece);
        int rc = gw_stream_write(j->x, piece, sizeof piece);
        if (rc == ERR_CLOSED)
            return;
        j->left--;
        if (rc == ERR_AGAIN && !j->deaf) {
            atomic_fetch_add(&j->rig->pauses, 1);
            return;
        }
    }
    gw_stream_end(j->x);
    free(j);
}

static void on_room(void *ctx, gw_exchange *x)
{
    (void)x;
    pump(ctx);
}

static struct job *watch(struct rig *r, gw_exchange *x)
{
    struct job *j = calloc(1, sizeof *j);
    ck_assert_ptr_nonnull(j);
    *j = (struct job){.rig = r, .x = x, .loop = gw_exchange_loop(x)};
    gw_exchange_watch(x, &(struct gw_watch){.ctx = j, .on_gone = on_gone, .on_room = on_room});
    return j;
}

static void later_task(void *arg)
{
    struct job *j = arg;
    if (j->x)
        gw_respond(j->x, 200, "text/plain", NULL, 0, "later", 5);
    free(j);
}

static void *later_thread(void *arg)
{
    struct job *j = arg;
    clock_sleep_ns(20 * NS_PER_MS);
    int rc;
    while ((rc = gw_loop_post(j->loop, later_task, j)) == ERR_AGAIN)
        clock_sleep_ns(NS_PER_MS);
    if (rc)
        free(j);
    return NULL;
}

/* What no handler may do: it keeps its loop from everything else until the test lets it go. */
static void block(struct rig *r, gw_exchange *x)
{
    atomic_store(&r->blocked, 1);
    while (atomic_load(&r->blocked))
        clock_sleep_ns(NS_PER_MS);
    gw_respond(x, 200, "text/plain", NULL, 0, "free", 4);
}

static void later(struct rig *r, gw_exchange *x)
{
    struct job *j = watch(r, x);
    pthread_t t;
    j->threaded = true;
    ck_assert_int_eq(pthread_create(&t, NULL, later_thread, j), 0);
    pthread_detach(t);
}

static void text(gw_exchange *x, const void *p, size_t n) { gw_respond(x, 200, "text/plain", NULL, 0, p, n); }

static void events(gw_exchange *x, unsigned n)
{
    char line[40];
    gw_stream_start(x, 200, NULL, NULL, 0, ": beat\n\n");
    for (unsigned i = 0; i < n; i++)
        if (gw_stream_write(x, line, (size_t)snprintf(line, sizeof line, "data: %u\n\n", i)) == ERR_CLOSED)
            break;
    gw_stream_end(x);
}

static void flood(struct rig *r, gw_exchange *x, unsigned n, bool deaf)
{
    struct job *j = watch(r, x);
    gw_stream_start(x, 200, "application/octet-stream", NULL, 0, NULL);
    j->left = n;
    j->deaf = deaf;
    pump(j);
}

static void take(gw_exchange *x)
{
    char line[40];
    size_t n;
    char *p = gw_exchange_take_body(x, &n);
    text(x, line, (size_t)snprintf(line, sizeof line, "%zu %c", n, n ? p[n - 1] : '-'));
    free(p);
}

static bool special(struct rig *r, gw_exchange *x, const char *path, unsigned n)
{
    static const struct gw_header bad[] = {{"X-Bad", "a\r\nX-Evil: 1"}, {"X-Good", "yes"}};
    if (!strcmp(path, "/none"))
        gw_respond(x, 204, NULL, NULL, 0, NULL, 0);
    else if (!strcmp(path, "/inject"))
        gw_respond(x, 200, "text/plain", bad, 2, "ok", 2);
    else if (!strcmp(path, "/id"))
        text(x, gw_exchange_id(x), strlen(gw_exchange_id(x)));
    else if (!strcmp(path, "/abort")) {
        gw_stream_start(x, 200, NULL, NULL, 0, NULL);
        gw_stream_write(x, "data: half", 10);
        gw_abort(x);
    } else if (!strcmp(path, "/last")) {
        gw_stream_start(x, 200, "text/plain", NULL, 0, NULL);
        gw_stream_finish(x, "last", 4);
    } else if (!strcmp(path, "/quiet")) {
        watch(r, x);
        gw_stream_start(x, 200, NULL, NULL, 0, ": beat\n\n");
    } else if (!strcmp(path, "/flood"))
        flood(r, x, n, false);
    else if (!strcmp(path, "/hose"))
        flood(r, x, n, true);
    else
        return false;
    return true;
}

static void on_request(void *ctx, gw_exchange *x, const struct gw_request *q)
{
    struct rig *r = ctx;
    unsigned n = q->query ? (unsigned)strtoul(q->query, NULL, 10) : 0;
    atomic_fetch_add(&r->requests, 1);
    if (!strcmp(q->path, "/hello"))
        text(x, "hello", 5);
    else if (!strcmp(q->path, "/echo") || !strcmp(q->path, "/small"))
        text(x, q->body, q->body_len);
    else if (!strcmp(q->path, "/client")) {
        char line[80];
        text(x, line, (size_t)snprintf(line, sizeof line, "%s %s\n", q->client, gw_exchange_local(x) ? "local" : "far"));
    } else if (!strcmp(q->path, "/take"))
        take(x);
    else if (!strcmp(q->path, "/later"))
        later(r, x);
    else if (!strcmp(q->path, "/hang"))
        watch(r, x);
    else if (!strcmp(q->path, "/block"))
        block(r, x);
    else if (!strcmp(q->path, "/stream"))
        events(x, n);
    else if (!special(r, x, q->path, n))
        gw_respond_error(x, 404, NULL, NULL, "not_found", NULL, 0, false, "no such \"path\"");
}

static bool on_head(void *ctx, gw_exchange *x, const struct gw_request *q)
{
    static const struct gw_header ask = {"WWW-Authenticate", "Bearer"};
    (void)ctx;
    if (!strcmp(q->path, "/small"))
        gw_exchange_body_max(x, 10);
    if (strcmp(q->path, "/refuse"))
        return true;
    gw_respond_error(x, 401, NULL, NULL, "invalid_api_key", &ask, 1, false, "no");
    return false;
}

/* ---- the rig ---------------------------------------------------------------------------------------------------- */
void rig_config(struct gw_server_config *cfg)
{
    gw_server_config_default(cfg);
    cfg->listen[0] = (struct gw_listen){"127.0.0.1", 0};
    cfg->n_listen = 1;
    cfg->threads = 2;
}

void rig_open(struct rig *r, const struct gw_server_config *cfg, bool tls)
{
    struct gw_server_config c = *cfg;
    struct gw_cert cert;
    struct err e = {0};
    memset(r, 0, sizeof *r);
    r->tls = tls;
    if (tls) {
        snprintf(r->dir, sizeof r->dir, "/tmp/check_server.XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(r->dir));
        ck_assert_msg(!gw_cert_ensure(r->dir, NULL, 0, &cert, &e), "%s", e.msg);
        c.cert_file = cert.cert;
        c.key_file = cert.key;
        snprintf(r->ca, sizeof r->ca, "%s", cert.ca);
    }
    c.handler = (struct gw_handler){.ctx = r, .on_head = on_head, .on_request = on_request};
    ck_assert_msg(!gw_server_open(&r->server, &c, &e), "%s", e.msg);
    r->port = gw_server_port(r->server, 0);
    ck_assert_uint_ne(r->port, 0);
}

void rig_counters(struct rig *r, struct gw_counters *c) { gw_server_counters(r->server, c); }

static bool quiet(const struct gw_counters *c)
{
    return !c->connections_open && !c->exchanges_open && !c->streams_open && !c->backlog_bytes && !c->body_bytes_held;
}

void rig_close(struct rig *r)
{
    struct gw_counters c;
    char cmd[128];
    gw_server_drain(r->server, RIG_WAIT_MS);
    for (int i = 0; i < RIG_WAIT_MS / 4; i++) {
        rig_counters(r, &c);
        if (quiet(&c))
            break;
        clock_sleep_ns(4 * NS_PER_MS);
    }
    ck_assert_msg(quiet(&c), "left: %llu connections, %llu exchanges, %llu streams, %llu bytes of backlog, %llu of bodies", (unsigned long long)c.connections_open,
                  (unsigned long long)c.exchanges_open, (unsigned long long)c.streams_open, (unsigned long long)c.backlog_bytes, (unsigned long long)c.body_bytes_held);
    gw_server_close(r->server);
    if (r->tls) {
        snprintf(cmd, sizeof cmd, "rm -rf '%s'", r->dir);
        ck_assert_int_eq(system(cmd), 0);
    }
}

int rig_gone(struct rig *r, int ms)
{
    for (int i = 0; i < ms; i++) {
        for (int k = 0; k < 3; k++)
            if (atomic_load(&r->gone[k]))
                return k;
        clock_sleep_ns(NS_PER_MS);
    }
    return -1;
}

/* ---- the client ------------------------------------------------------------------------------------------------- */
int client_connect(uint16_t port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_msg(fd >= 0, "socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

SSL_CTX *client_ctx(const struct rig *r)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    ck_assert_ptr_nonnull(ctx);
    ck_assert_int_eq(SSL_CTX_load_verify_locations(ctx, r->ca, NULL), 1);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    return ctx;
}

bool client_try_tls(struct client *c, const struct rig *r, SSL_CTX *ctx, SSL_SESSION *resume)
{
    static const unsigned char alpn[] = "\x08http/1.1";
    memset(c, 0, sizeof *c);
    c->fd = client_connect(r->port);
    ck_assert_int_ge(c->fd, 0);
    c->ssl = SSL_new(ctx);
    SSL_set_fd(c->ssl, c->fd);
    SSL_set_alpn_protos(c->ssl, alpn, sizeof alpn - 1);
    SSL_set1_host(c->ssl, "localhost");
    SSL_clear_mode(c->ssl, SSL_MODE_AUTO_RETRY); /* else a ticket makes SSL_read wait for what may never come */
    if (resume)
        SSL_set_session(c->ssl, resume);
    return SSL_connect(c->ssl) == 1;
}

void client_open_tls(struct client *c, const struct rig *r, SSL_CTX *ctx, SSL_SESSION *resume) { ck_assert(client_try_tls(c, r, ctx, resume)); }

void client_open(struct client *c, const struct rig *r)
{
    if (r->tls) {
        SSL_CTX *ctx = client_ctx(r);
        client_open_tls(c, r, ctx, NULL);
        c->ctx = ctx;
        return;
    }
    memset(c, 0, sizeof *c);
    c->fd = client_connect(r->port);
    ck_assert_int_ge(c->fd, 0);
}

void client_close(struct client *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(c->ctx);
    if (c->fd >= 0)
        close(c->fd);
    free(c->data);
    *c = (struct client){.fd = -1};
}

void client_send(struct client *c, const void *p, size_t n)
{
    const char *s = p;
    while (n) {
        ssize_t w = c->ssl ? SSL_write(c->ssl, s, (int)n) : send(c->fd, s, n, MSG_NOSIGNAL);
        if (w <= 0)
            return; /* the server closed: the test sees that when it reads */
        s += w;
        n -= (size_t)w;
    }
}

void client_say(struct client *c, const char *t) { client_send(c, t, strlen(t)); }

void client_get(struct client *c, const char *path)
{
    char s[300];
    client_send(c, s, (size_t)snprintf(s, sizeof s, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
}

bool client_fill(struct client *c, int ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    if (c->eof)
        return false;
    if (c->cap - c->len < 65537) {
        c->cap = c->cap * 2 + 131072;
        c->data = realloc(c->data, c->cap);
        ck_assert_ptr_nonnull(c->data);
    }
    ssize_t n;
    do {
        if (!(c->ssl && SSL_pending(c->ssl)) && poll(&p, 1, ms) == 0)
            return false;
        n = c->ssl ? SSL_read(c->ssl, c->data + c->len, 65536) : recv(c->fd, c->data + c->len, 65536, 0);
    } while (c->ssl && n <= 0 && SSL_get_error(c->ssl, (int)n) == SSL_ERROR_WANT_READ); /* that was a session ticket */
    if (n <= 0) {
        c->eof = true;
        n = 0;
    }
    c->len += (size_t)n;
    c->data[c->len] = 0;
    return n > 0;
}

void client_expect(struct client *c, const char *t)
{
    uint64_t until = clock_now_ns() + RIG_WAIT_MS * NS_PER_MS;
    for (;;) {
        char *hit = c->len ? strstr(c->data, t) : NULL;
        if (hit) {
            size_t drop = (size_t)(hit - c->data) + strlen(t);
            memmove(c->data, c->data + drop, c->len - drop + 1);
            c->len -= drop;
            return;
        }
        uint64_t now = clock_now_ns();
        bool more = now < until && client_fill(c, (int)((until - now) / NS_PER_MS) + 1);
        ck_assert_msg(more, "expected \"%s\", found %s\"%s\"", t, c->eof ? "the end after " : "", c->len ? c->data : "");
    }
}

void client_expect_end(struct client *c)
{
    uint64_t until = clock_now_ns() + RIG_WAIT_MS * NS_PER_MS;
    while (!c->eof) {
        uint64_t now = clock_now_ns();
        ck_assert_msg(now < until, "the connection is still open after %d ms", RIG_WAIT_MS);
        client_fill(c, (int)((until - now) / NS_PER_MS) + 1);
    }
}
