/* The server over loopback, plain and over TLS: what a client sees of HTTP. Deadlines and back-pressure: check_server_limits.c. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "gateway/cert.h"
#include "tests/support/gw_rig.h"

#define H "Host: localhost\r\n"
static struct rig rig;
static struct client cl;

static void start(bool tls)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    rig_open(&rig, &cfg, tls);
}
static void start_and_connect(bool tls)
{
    start(tls);
    client_open(&cl, &rig);
}
static void stop(void)
{
    client_close(&cl);
    rig_close(&rig);
}

/* Loop tests: _i is 0 for plain HTTP, 1 for TLS. */
START_TEST(keep_alive)
{
    struct gw_counters c;
    start_and_connect(_i);
    for (int i = 0; i < 3; i++) {
        client_get(&cl, "/hello");
        client_expect(&cl, "HTTP/1.1 200 OK\r\n");
        client_expect(&cl, "Date: ");
        client_expect(&cl, " GMT\r\n");
        client_expect(&cl, "Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello");
        ck_assert_uint_eq(cl.len, 0);
    }
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.connections, 1);
    ck_assert_uint_eq(c.requests, 3);
    ck_assert_uint_eq(c.responses_2xx, 3);
    ck_assert_uint_eq(c.handshakes, _i);
    stop();
}
END_TEST

START_TEST(pipelining)
{
    start_and_connect(_i);
    client_say(&cl, "GET /hello HTTP/1.1\r\n" H "\r\nGET /later HTTP/1.1\r\n" H "\r\nPOST /echo HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc"
                    "GET /later HTTP/1.1\r\n" H "\r\nGET /stream?2 HTTP/1.1\r\n" H "\r\nGET /hello HTTP/1.1\r\n" H "\r\n");
    client_expect(&cl, "\r\n\r\nhello");
    client_expect(&cl, "\r\n\r\nlater");
    client_expect(&cl, "\r\n\r\nabc");
    client_expect(&cl, "\r\n\r\nlater");
    client_expect(&cl, "data: 1\n\n\r\n0\r\n\r\n");
    client_expect(&cl, "\r\n\r\nhello");
    stop();
}
END_TEST

/* More bytes ahead than pipeline_max: reading pauses, goes on, and nothing is lost. */
START_TEST(pipelining_deep)
{
    start_and_connect(_i);
    char *body = malloc(30001);
    memset(body, 'x', 30000);
    body[30000] = 0;
    client_get(&cl, "/later");
    for (int i = 0; i < 20; i++) {
        client_say(&cl, "POST /take HTTP/1.1\r\n" H "Content-Length: 30000\r\n\r\n");
        client_send(&cl, body, 30000);
    }
    client_expect(&cl, "later");
    for (int i = 0; i < 20; i++)
        client_expect(&cl, "\r\n\r\n30000 x");
    free(body);
    stop();
}
END_TEST

START_TEST(bodies)
{
    start_and_connect(_i);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhel");
    clock_sleep_ns(20 * NS_PER_MS);
    client_say(&cl, "lo\r\n6;x=y\r\n world\r\n0\r\nT: v\r\n\r");
    clock_sleep_ns(20 * NS_PER_MS);
    client_say(&cl, "\n");
    client_expect(&cl, "Content-Length: 11\r\n\r\nhello world");
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 4\r\n\r\nab");
    clock_sleep_ns(20 * NS_PER_MS);
    client_say(&cl, "cd");
    client_expect(&cl, "\r\n\r\nabcd");
    size_t n = 3 << 20;
    char *big = malloc(n), head[120];
    memset(big, 'z', n);
    snprintf(head, sizeof head, "POST /take HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n", n);
    client_say(&cl, head);
    client_send(&cl, big, n);
    client_expect(&cl, "\r\n\r\n3145728 z");
    client_say(&cl, "POST /take HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n");
    client_expect(&cl, "\r\n\r\n0 -");
    free(big);
    stop();
}
END_TEST

START_TEST(expect_continue)
{
    start_and_connect(_i);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&cl, "HTTP/1.1 100 Continue\r\n\r\n");
    client_say(&cl, "abc");
    client_expect(&cl, "HTTP/1.1 200 OK\r\n");
    client_expect(&cl, "\r\n\r\nabc");
    client_say(&cl, "POST /small HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 11\r\n\r\n");
    client_expect(&cl, "HTTP/1.1 413 ");
    client_expect_end(&cl);
    ck_assert_ptr_null(strstr(cl.data, "100 Continue"));
    stop();
}
END_TEST

START_TEST(refused_by_head)
{
    start_and_connect(_i);
    client_get(&cl, "/refuse"); /* no body under way: the connection stays */
    client_expect(&cl, "HTTP/1.1 401 Unauthorized\r\n");
    client_expect(&cl, "WWW-Authenticate: Bearer\r\n");
    client_expect(&cl, "{\"error\":{\"message\":\"no\",\"type\":\"authentication_error\",\"param\":null,\"code\":\"invalid_api_key\"}}");
    client_say(&cl, "POST /refuse HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    client_expect(&cl, "HTTP/1.1 401 Unauthorized\r\n"); /* and not a 100 first */
    client_expect(&cl, "Connection: close\r\n");
    client_expect_end(&cl);
    client_close(&cl);
    client_open(&cl, &rig); /* a body that comes although nobody wants it must not destroy the answer by a reset */
    char *big = calloc(1, 2 << 20);
    client_say(&cl, "POST /refuse HTTP/1.1\r\n" H "Content-Length: 2097152\r\n\r\n");
    client_send(&cl, big, 2 << 20);
    client_expect(&cl, "invalid_api_key");
    client_expect_end(&cl);
    free(big);
    stop();
}
END_TEST

START_TEST(head_and_options)
{
    start_and_connect(_i);
    client_say(&cl, "HEAD /hello HTTP/1.1\r\n" H "\r\nHEAD /stream?3 HTTP/1.1\r\n" H "\r\nOPTIONS * HTTP/1.1\r\n" H "\r\n");
    client_expect(&cl, "Content-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\n");
    client_expect(&cl, "Content-Type: text/event-stream\r\n");
    client_expect(&cl, "Transfer-Encoding: chunked\r\n\r\nHTTP/1.1 404 Not Found\r\n");
    client_expect(&cl, "no such \\\"path\\\"");
    client_get(&cl, "/none");
    client_expect(&cl, "HTTP/1.1 204 No Content\r\n");
    client_expect(&cl, "\r\n\r\n");
    ck_assert_uint_eq(cl.len, 0);
    stop();
}
END_TEST

START_TEST(streams)
{
    start_and_connect(_i);
    client_get(&cl, "/stream?3");
    client_expect(&cl, "HTTP/1.1 200 OK\r\n");
    client_expect(&cl, "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_expect(&cl, "9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    client_get(&cl, "/abort");
    client_expect(&cl, "data: half");
    client_expect_end(&cl);
    ck_assert_ptr_null(strstr(cl.data, "0\r\n\r\n"));
    stop();
}
END_TEST

START_TEST(http10)
{
    start_and_connect(_i);
    client_say(&cl, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    client_expect(&cl, "Connection: keep-alive\r\n\r\nhello");
    client_say(&cl, "GET /stream?2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    client_expect(&cl, "Connection: close\r\n\r\ndata: 0\n\ndata: 1\n\n");
    client_expect_end(&cl);
    client_close(&cl);
    client_open(&cl, &rig);
    client_say(&cl, "GET /hello HTTP/1.0\r\n\r\n");
    client_expect(&cl, "Connection: close\r\n\r\nhello");
    client_expect_end(&cl);
    client_close(&cl);
    client_open(&cl, &rig);
    client_say(&cl, "GET /hello HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    client_expect(&cl, "Connection: close\r\n\r\nhello");
    client_expect_end(&cl);
    stop();
}
END_TEST

/* What HTTP itself refuses: the status, OpenAI's error object, and the end of the connection. */
START_TEST(refusals)
{
    static const struct { const char *in; int status; } t[] = {
        {"GET / HTTP/1.1\n\n", 400}, {"GET / HTTP/1.1\r\n\r\n", 400}, {"BREW / HTTP/1.1\r\n" H "\r\n", 501}, {"CONNECT a:1 HTTP/1.1\r\n" H "\r\n", 501},
        {"TRACE / HTTP/1.1\r\n" H "\r\n", 501}, {"GET / HTTP/2.0\r\n\r\n", 505}, {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 99999999999\r\n\r\n", 413}, {"POST / HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400}, {"POST / HTTP/1.1\r\n" H "Expect: x\r\n\r\n", 417}};
    char want[64];
    start(_i);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        client_open(&cl, &rig);
        client_say(&cl, t[i].in);
        snprintf(want, sizeof want, "HTTP/1.1 %d ", t[i].status);
        client_expect(&cl, want);
        client_expect(&cl, "x-request-id: req_");
        client_expect(&cl, "Content-Type: application/json\r\n");
        client_expect(&cl, "Connection: close\r\n\r\n{\"error\":{\"message\":\"");
        client_expect(&cl, "\"param\":null,\"code\":null}}");
        client_expect_end(&cl);
        client_close(&cl);
    }
    client_open(&cl, &rig);
    char line[9000];
    memset(line, 'a', sizeof line);
    client_say(&cl, "GET /");
    client_send(&cl, line, sizeof line);
    client_expect(&cl, "HTTP/1.1 414 ");
    client_close(&cl);
    client_open(&cl, &rig);
    client_say(&cl, "GET / HTTP/1.1\r\n" H);
    for (int i = 0; i < 101; i++)
        client_say(&cl, "X: y\r\n");
    client_expect(&cl, "HTTP/1.1 431 ");
    stop();
}
END_TEST

START_TEST(request_ids)
{
    start_and_connect(_i);
    client_say(&cl, "GET /id HTTP/1.1\r\n" H "X-Request-Id: mine-1.2:3_4\r\n\r\n");
    client_expect(&cl, "x-request-id: mine-1.2:3_4\r\n");
    client_expect(&cl, "\r\n\r\nmine-1.2:3_4");
    client_say(&cl, "GET /id HTTP/1.1\r\n" H "X-Request-Id: a\"b\r\n\r\n"); /* not fit for logs and headers */
    client_expect(&cl, "\r\n\r\nreq_");
    client_get(&cl, "/inject");
    client_expect(&cl, "X-Good: yes\r\n");
    client_expect(&cl, "ok");
    client_get(&cl, "/inject");
    while (!strstr(cl.data ? cl.data : "", "\r\n\r\nok"))
        ck_assert(client_fill(&cl, RIG_WAIT_MS));
    ck_assert_ptr_null(strstr(cl.data, "Evil"));
    stop();
}
END_TEST

/* The client leaves while the handler is silent: a clean end, a reset, and an end behind bytes that nobody reads. */
START_TEST(leaves)
{
    static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    struct gw_counters c;
    char junk[8192];
    memset(junk, 'j', sizeof junk);
    for (int how = 0; how < 4; how++) {
        start_and_connect(_i);
        client_get(&cl, "/hang");
        while (!atomic_load(&rig.requests))
            clock_sleep_ns(NS_PER_MS);
        if (how == 1)
            setsockopt(cl.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        for (int i = 0; how >= 2 && i < 10; i++) /* past pipeline_max: reading has paused; the kernel still has room for the end */
            client_send(&cl, junk, sizeof junk);
        if (how == 3) {
            clock_sleep_ns(50 * NS_PER_MS);
            setsockopt(cl.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        if (how == 0 && cl.ssl)
            SSL_shutdown(cl.ssl); /* close_notify alone says it */
        else
            client_close(&cl);
        ck_assert_msg(rig_gone(&rig, RIG_WAIT_MS) == GW_GONE_CLOSED, "way %d: nobody noticed", how);
        rig_counters(&rig, &c);
        ck_assert_uint_eq(c.gone_closed, 1);
        stop();
    }
}
END_TEST

/* ---- TLS alone ------------------------------------------------------------------------------------------------- */
START_TEST(tls_rules)
{
    static const unsigned char h2[] = "\x02h2";
    struct gw_counters c;
    start(true);
    for (int i = 0; i < 2; i++) {
        SSL_CTX *ctx = client_ctx(&rig);
        int fd = client_connect(rig.port);
        if (i == 0)
            SSL_CTX_set_max_proto_version(ctx, TLS1_1_VERSION);
        SSL *s = SSL_new(ctx);
        SSL_set_fd(s, fd);
        if (i == 1)
            SSL_set_alpn_protos(s, h2, sizeof h2 - 1);
        ck_assert_int_ne(SSL_connect(s), 1);
        SSL_free(s);
        SSL_CTX_free(ctx);
        close(fd);
    }
    for (int v = TLS1_2_VERSION; v <= TLS1_3_VERSION; v++) {
        SSL_CTX *ctx = client_ctx(&rig);
        SSL_CTX_set_max_proto_version(ctx, v);
        client_open_tls(&cl, &rig, ctx, NULL);
        const unsigned char *proto;
        unsigned n;
        ck_assert_int_eq(SSL_version(cl.ssl), v);
        SSL_get0_alpn_selected(cl.ssl, &proto, &n);
        ck_assert_uint_eq(n, 8);
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        client_close(&cl);
        SSL_CTX_free(ctx);
    }
    for (int i = 0; i < 500; i++) {
        rig_counters(&rig, &c);
        if (c.handshakes_failed == 2)
            break;
        clock_sleep_ns(NS_PER_MS);
    }
    ck_assert_uint_eq(c.handshakes_failed, 2);
    ck_assert_uint_eq(c.handshakes, 2);
    rig_close(&rig);
}
END_TEST

/* A session resumes on whichever loop the next connection lands: 12 tries hit both of 2 loops but once in 2048 runs. */
START_TEST(tls_resumes)
{
    struct gw_counters c;
    start(true);
    SSL_CTX *ctx = client_ctx(&rig);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT);
    if (_i)
        SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
    SSL_SESSION *session = NULL;
    for (int i = 0; i < 13; i++) {
        client_open_tls(&cl, &rig, ctx, session);
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        ck_assert_int_eq(SSL_session_reused(cl.ssl), i > 0);
        SSL_SESSION_free(session);
        session = SSL_get1_session(cl.ssl);
        SSL_shutdown(cl.ssl);
        client_close(&cl);
    }
    SSL_SESSION_free(session);
    SSL_CTX_free(ctx);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.handshakes_resumed, 12);
    rig_close(&rig);
}
END_TEST

/* Other certificates for new connections; a running one goes on; sessions resume across the change; a bad file changes nothing. */
START_TEST(tls_reload)
{
    struct gw_cert other;
    struct client old;
    struct err e;
    char dir[] = "/tmp/check_reload.XXXXXX", cmd[80];
    start(true);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_msg(!gw_cert_ensure(dir, NULL, 0, &other, &e), "%s", e.msg);
    client_open(&old, &rig);
    client_get(&old, "/hello");
    client_expect(&old, "hello");
    SSL_SESSION *session = SSL_get1_session(old.ssl);
    ck_assert_int_ne(gw_server_reload_tls(rig.server, "/nonexistent", other.key, &e), 0);
    ck_assert_int_ne(gw_server_reload_tls(rig.server, other.cert, "/nonexistent", &e), 0);
    client_open(&cl, &rig); /* still the first one's authority */
    client_close(&cl);
    ck_assert_msg(!gw_server_reload_tls(rig.server, other.cert, other.key, &e), "%s", e.msg);
    SSL_CTX *ctx = client_ctx(&rig);
    client_open_tls(&cl, &rig, ctx, session); /* resumed: no certificate is looked at */
    ck_assert_int_eq(SSL_session_reused(cl.ssl), 1);
    client_close(&cl);
    SSL_CTX_free(ctx);
    SSL_SESSION_free(session);
    char first[sizeof rig.ca];
    snprintf(first, sizeof first, "%s", rig.ca);
    snprintf(rig.ca, sizeof rig.ca, "%s", other.ca);
    ctx = client_ctx(&rig);
    for (int i = 0, tries = 0; i < 8; i++) { /* on both loops, each of which takes it over in its own time */
        while (!client_try_tls(&cl, &rig, ctx, NULL)) {
            client_close(&cl);
            ck_assert_int_lt(tries++, 1000);
            clock_sleep_ns(10000000);
        }
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        client_close(&cl);
    }
    SSL_CTX_free(ctx);
    snprintf(rig.ca, sizeof rig.ca, "%s", first);
    client_get(&old, "/hello");
    client_expect(&old, "hello");
    client_close(&old);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    ck_assert_int_eq(system(cmd), 0);
    rig_close(&rig);
}
END_TEST

/* Ticket keys of one second: a ticket serves for the second after as well and is replaced then, and is refused when its key is forgotten. */
START_TEST(tickets_age)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    cfg.ticket_s = 2;
    rig_open(&rig, &cfg, true);
    SSL_CTX *ctx = client_ctx(&rig);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_CLIENT);
    if (_i)
        SSL_CTX_set_max_proto_version(ctx, TLS1_2_VERSION);
    SSL_SESSION *session = NULL;
    static const int wait_ms[] = {0, 0, 2200, 2200, 6400, 0}, resumed[] = {0, 1, 1, 1, 0, 1};
    for (int i = 0; i < 6; i++) {
        clock_sleep_ns((uint64_t)wait_ms[i] * NS_PER_MS);
        client_open_tls(&cl, &rig, ctx, session);
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        ck_assert_msg(SSL_session_reused(cl.ssl) == resumed[i], "try %d", i);
        SSL_SESSION_free(session);
        session = SSL_get1_session(cl.ssl);
        SSL_shutdown(cl.ssl);
        client_close(&cl);
    }
    SSL_SESSION_free(session);
    SSL_CTX_free(ctx);
    rig_close(&rig);
}
END_TEST

START_TEST(http_on_tls_port)
{
    start(true);
    cl = (struct client){.fd = client_connect(rig.port)};
    client_say(&cl, "GET / HTTP/1.1\r\n" H "\r\n");
    client_expect(&cl, "HTTP/1.1 400 Bad Request\r\n");
    client_expect(&cl, "HTTPS");
    client_expect_end(&cl);
    client_close(&cl);
    cl = (struct client){.fd = client_connect(rig.port)};
    client_say(&cl, "\x01\x02\x03garbage that is no handshake");
    client_expect_end(&cl);
    stop();
}
END_TEST

/* ---- loops ------------------------------------------------------------------------------------------------------- */
struct order { gw_loop *loop; _Atomic unsigned run; unsigned next; bool wrong; };
struct item { struct order *o; unsigned n; };
static void check_order(void *arg)
{
    struct item *it = arg;
    it->o->wrong |= it->n != it->o->next++;
    atomic_fetch_add(&it->o->run, 1);
    free(it);
}

static void *poster(void *arg)
{
    struct order *o = arg;
    for (unsigned i = 0; i < 5000; i++) {
        struct item *it = malloc(sizeof *it);
        *it = (struct item){o, i};
        while (gw_loop_post(o->loop, check_order, it) == ERR_AGAIN)
            clock_sleep_ns(50 * NS_PER_US);
    }
    return NULL;
}

START_TEST(posts)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    cfg.post_max = 100;
    rig_open(&rig, &cfg, false);
    ck_assert_uint_eq(gw_server_loops(rig.server), 2);
    pthread_t t[4];
    struct order o[4];
    for (unsigned i = 0; i < 4; i++) {
        gw_loop *l = gw_server_loop(rig.server, i % 2);
        ck_assert_uint_eq(gw_loop_index(l), i % 2);
        o[i] = (struct order){.loop = l};
        ck_assert_int_eq(pthread_create(&t[i], NULL, poster, &o[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < RIG_WAIT_MS && atomic_load(&o[0].run) + atomic_load(&o[1].run) + atomic_load(&o[2].run) + atomic_load(&o[3].run) < 20000; i++)
        clock_sleep_ns(NS_PER_MS);
    rig_close(&rig); /* joins the loops: their plain fields may be read now */
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_uint_eq(o[i].run, 5000);
        ck_assert(!o[i].wrong);
    }
}
END_TEST

/* Another server takes over the sockets of one with more or fewer loops; a connection made in between waits and is answered. */
START_TEST(inherits)
{
    static const unsigned threads[][2] = {{3, 2}, {2, 5}, {1, 1}};
    struct gw_server_config cfg;
    struct rig next;
    int fds[8], waiting[40];
    rig_config(&cfg);
    cfg.threads = threads[_i][0];
    rig_open(&rig, &cfg, false);
    unsigned n = gw_server_listen_fds(rig.server, fds, 8);
    ck_assert_uint_eq(n, threads[_i][0]);
    for (unsigned i = 0; i < n; i++)
        ck_assert_int_ge(fds[i] = dup(fds[i]), 0);
    cfg.listen[0].port = rig.port;
    cfg.threads = threads[_i][1];
    cfg.inherit = fds;
    cfg.n_inherit = n;
    cfg.paused = true;
    rig_open(&next, &cfg, false);
    ck_assert_uint_eq(next.port, rig.port);
    gw_server_handed(rig.server);
    rig_close(&rig); /* from here on nobody accepts */
    for (int i = 0; i < 40; i++)
        ck_assert_int_ge(waiting[i] = client_connect(next.port), 0);
    gw_server_accept(next.server);
    for (int i = 0; i < 40; i++) {
        cl = (struct client){.fd = waiting[i]};
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        client_close(&cl);
    }
    rig_close(&next);
    ck_assert_int_eq(client_connect(next.port), -1); /* nothing of the first was left open */
}
END_TEST

START_TEST(ipv6)
{
    struct gw_server_config cfg;
    struct err e;
    gw_server *s;
    rig_config(&cfg);
    cfg.listen[1] = (struct gw_listen){"[::1]", 0};
    cfg.n_listen = 2;
    cfg.handler = (struct gw_handler){.on_request = (void (*)(void *, gw_exchange *, const struct gw_request *))abort};
    if (gw_server_open(&s, &cfg, &e)) {
        printf("SKIP no IPv6 here: %s\n", e.msg);
        return;
    }
    ck_assert_uint_ne(gw_server_port(s, 1), 0);
    gw_server_close(s);
}
END_TEST

START_TEST(bad_config)
{
    struct gw_server_config cfg;
    struct err e;
    gw_server *s;
    start(false);
    for (int i = 0; i < 7; i++) {
        rig_config(&cfg);
        cfg.handler = (struct gw_handler){.on_request = (void (*)(void *, gw_exchange *, const struct gw_request *))abort};
        int want = ERR_INVALID;
        switch (i) {
        case 0: cfg.listen[0].host = "0.0.0.0"; break; /* plain HTTP for everybody */
        case 1: cfg.listen[0].host = "example.org"; break;
        case 2: cfg.cert_file = "/nonexistent"; break;
        case 3: cfg.backlog_low = cfg.backlog_high + 1; break;
        case 4: cfg.n_listen = 0; break;
        case 5: cfg.cert_file = cfg.key_file = "/nonexistent"; want = ERR_IO; break;
        default: cfg.listen[0].port = rig.port; want = ERR_IO; /* taken */
        }
        ck_assert_msg(gw_server_open(&s, &cfg, &e) == want, "case %d: %s", i, e.msg);
        ck_assert_ptr_null(s);
    }
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("server");
    TCase *h = tcase_create("http"), *t = tcase_create("tls"), *l = tcase_create("loops");
    tcase_add_loop_test(h, keep_alive, 0, 2);
    tcase_add_loop_test(h, pipelining, 0, 2);
    tcase_add_loop_test(h, pipelining_deep, 0, 2);
    tcase_add_loop_test(h, bodies, 0, 2);
    tcase_add_loop_test(h, expect_continue, 0, 2);
    tcase_add_loop_test(h, refused_by_head, 0, 2);
    tcase_add_loop_test(h, head_and_options, 0, 2);
    tcase_add_loop_test(h, streams, 0, 2);
    tcase_add_loop_test(h, http10, 0, 2);
    tcase_add_loop_test(h, refusals, 0, 2);
    tcase_add_loop_test(h, request_ids, 0, 2);
    tcase_add_loop_test(h, leaves, 0, 2);
    tcase_add_test(t, tls_rules);
    tcase_add_loop_test(t, tls_resumes, 0, 2);
    tcase_add_test(t, tls_reload);
    tcase_add_loop_test(t, tickets_age, 0, 2);
    tcase_add_test(t, http_on_tls_port);
    tcase_add_test(l, posts);
    tcase_add_loop_test(l, inherits, 0, 3);
    tcase_add_test(l, ipv6);
    tcase_add_test(l, bad_config);
    suite_add_tcase(s, h);
    suite_add_tcase(s, t);
    suite_add_tcase(s, l);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
