/* The server over loopback: deadlines, bounded buffers, back-pressure, caps, drain, and that nothing is left after a soak. */
#include <arpa/inet.h>
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/gw_rig.h"

#define H "Host: localhost\r\n"
#define PIECE 8192
static struct rig rig;
static struct client cl;

static uint64_t ms_since(uint64_t t) { return (clock_now_ns() - t) / NS_PER_MS; }
static void stop(void)
{
    client_close(&cl);
    rig_close(&rig);
}

/* ---- deadlines ---------------------------------------------------------------------------------------------------- */
static void short_deadlines(struct gw_server_config *cfg)
{
    rig_config(cfg);
    cfg->handshake_ms = cfg->header_ms = cfg->body_ms = 250;
    cfg->body_total_ms = 600;
    cfg->idle_ms = 350;
    cfg->heartbeat_ms = 100;
}

START_TEST(slow_head)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    short_deadlines(&cfg);
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_say(&cl, "GET / HTTP/1.1\r\n" H "X: ");
    for (int i = 0; i < 1000 && !client_fill(&cl, 50); i++) /* a byte now and then does not buy time */
        client_say(&cl, "y");
    client_expect(&cl, "HTTP/1.1 408 ");
    client_expect_end(&cl);
    client_close(&cl);
    client_open(&cl, &rig); /* says nothing at all: closed without a word */
    client_expect_end(&cl);
    ck_assert_uint_eq(cl.len, 0);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.timeouts, 1);
    stop();
}
END_TEST

START_TEST(slow_body)
{
    struct gw_server_config cfg;
    short_deadlines(&cfg);
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\nab");
    client_expect(&cl, "HTTP/1.1 408 ");
    client_close(&cl);
    client_open(&cl, &rig);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\n");
    for (int i = 0; i < 90 && !client_fill(&cl, 80); i++) /* never silent for long, but too long altogether */
        client_say(&cl, "y");
    client_expect(&cl, "HTTP/1.1 408 ");
    stop();
}
END_TEST

START_TEST(idle)
{
    struct gw_server_config cfg;
    short_deadlines(&cfg);
    cfg.idle_ms = 4000;
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    clock_sleep_ns(600 * NS_PER_MS); /* longer than a head may take, far shorter than idle */
    uint64_t t = clock_now_ns();
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    client_expect_end(&cl);
    ck_assert_uint_ge(ms_since(t), 3900);
    ck_assert_uint_eq(cl.len, 0);
    stop();
}
END_TEST

START_TEST(no_handshake)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    short_deadlines(&cfg);
    rig_open(&rig, &cfg, true);
    cl = (struct client){.fd = client_connect(rig.port)};
    client_expect_end(&cl);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.handshakes_failed, 1);
    stop();
}
END_TEST

/* The loop is kept from its sockets until every deadline has passed. What had come in time is served all the same: more connections than
 * one poll tells of, so that some are looked at after the clock. */
#define LATE 80
static void begin_late(struct client *all, SSL **hello, SSL_CTX *ctx, bool tls)
{
    struct gw_counters c;
    for (int i = 0; i < LATE; i++) {
        if (i % 2) {
            client_open(&all[i], &rig);
            client_say(&all[i], i % 4 == 1 ? "GET /hello HTTP/1.1\r\n" : "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\n");
        } else if (tls) {
            all[i] = (struct client){.fd = client_connect(rig.port)};
            hello[i] = SSL_new(ctx);
            SSL_set_fd(hello[i], all[i].fd);
            SSL_set_connect_state(hello[i]);
        } else {
            client_open(&all[i], &rig);
        }
    }
    do
        rig_counters(&rig, &c);
    while (c.connections_open < LATE && (clock_sleep_ns(NS_PER_MS), true));
}

static void go_on_late(struct client *all, SSL **hello)
{
    for (int i = 0; i < LATE; i++) {
        if (hello[i]) { /* its first flight */
            fcntl(all[i].fd, F_SETFL, O_NONBLOCK);
            ck_assert_int_eq(SSL_get_error(hello[i], SSL_do_handshake(hello[i])), SSL_ERROR_WANT_READ);
            fcntl(all[i].fd, F_SETFL, 0);
        } else {
            client_say(&all[i], i % 4 == 1 ? H "\r\n" : i % 2 ? "hello" : "GET /hello HTTP/1.1\r\n" H "\r\n");
        }
    }
}

START_TEST(late_loop)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    struct client all[LATE];
    SSL *hello[LATE] = {NULL};
    rig_config(&cfg);
    cfg.threads = 1;
    cfg.handshake_ms = cfg.header_ms = cfg.body_ms = 5000;
    rig_open(&rig, &cfg, _i);
    SSL_CTX *ctx = _i ? client_ctx(&rig) : NULL;
    client_open(&cl, &rig);
    begin_late(all, hello, ctx, _i);
    client_get(&cl, "/block");
    for (int i = 0; i < RIG_WAIT_MS && !atomic_load(&rig.blocked); i++)
        clock_sleep_ns(NS_PER_MS);
    go_on_late(all, hello);
    clock_sleep_ns(5500 * NS_PER_MS);
    atomic_store(&rig.blocked, 0);
    for (int i = 0; i < LATE; i++) {
        if (hello[i]) {
            ck_assert_msg(SSL_connect(hello[i]) == 1, "client %d was dropped in its handshake", i);
            all[i].ssl = hello[i];
            client_get(&all[i], "/hello");
        }
        client_expect(&all[i], "hello");
        client_close(&all[i]);
    }
    client_expect(&cl, "free");
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.timeouts, 0);
    ck_assert_uint_eq(c.handshakes_failed, 0);
    SSL_CTX_free(ctx);
    stop();
}
END_TEST

START_TEST(heartbeats)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    short_deadlines(&cfg);
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    uint64_t t = clock_now_ns();
    client_get(&cl, "/quiet");
    client_expect(&cl, "\r\n\r\n");
    for (int i = 0; i < 8; i++) /* also past idle_ms: a running stream has no such deadline */
        client_expect(&cl, "8\r\n: beat\n\n\r\n");
    ck_assert_uint_ge(ms_since(t), 700);
    client_close(&cl);
    ck_assert_int_eq(rig_gone(&rig, RIG_WAIT_MS), GW_GONE_CLOSED);
    rig_counters(&rig, &c);
    ck_assert_uint_ge(c.heartbeats, 8);
    stop();
}
END_TEST

/* ---- back-pressure ------------------------------------------------------------------------------------------------- */
/* Counts pieces of 8 KiB and checks that each is of one letter, in the order they were written. */
static void read_flood(struct client *c, unsigned pieces)
{
    char want[32];
    snprintf(want, sizeof want, "%x\r\n", PIECE);
    for (unsigned left = pieces; left; left--) {
        client_expect(c, want);
        while (c->len < PIECE + 2)
            ck_assert(client_fill(c, RIG_WAIT_MS));
        char letter = (char)('a' + left % 26);
        int same = 0;
        while (same < PIECE && c->data[same] == letter)
            same++;
        ck_assert_msg(same == PIECE, "piece %u, byte %d: %02x, want %c", left, same, (unsigned char)c->data[same], letter);
        memmove(c->data, c->data + PIECE, c->len - PIECE + 1);
        c->len -= PIECE;
    }
    client_expect(c, "0\r\n\r\n");
}

/* The kernel of a reader may hold 6 MB for it; of this one far less than a flood is. */
static void client_hold_little(struct client *c)
{
    int n = 65536;
    ck_assert_int_eq(setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &n, sizeof n), 0);
}

START_TEST(slow_reader)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    rig_config(&cfg);
    cfg.sndbuf = 32768;
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_hold_little(&cl);
    client_get(&cl, "/flood?1000"); /* 8 MB */
    for (int i = 0; i < RIG_WAIT_MS && (rig_counters(&rig, &c), !c.backlog_bytes); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_gt(c.backlog_bytes, 0);
    ck_assert_uint_le(c.backlog_bytes, cfg.backlog_high + PIECE + 64);
    read_flood(&cl, 1000);
    ck_assert_int_ge(atomic_load(&rig.pauses), 1);
    client_get(&cl, "/hello"); /* and the connection goes on */
    client_expect(&cl, "hello");
    stop();
}
END_TEST

START_TEST(stalled_reader)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    rig_config(&cfg);
    cfg.write_stall_ms = 300;
    cfg.sndbuf = 32768;
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    uint64_t t = clock_now_ns();
    client_get(&cl, "/flood?100000");
    ck_assert_int_eq(rig_gone(&rig, RIG_WAIT_MS), GW_GONE_STALLED);
    ck_assert_uint_ge(ms_since(t), 290);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.gone_stalled, 1);
    stop();
}
END_TEST

/* A reader that takes a few bytes now and then is not stalled, yet it does not get what it needs to live for ever. */
START_TEST(trickling_reader)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    char some[512];
    int small = 4096;
    rig_config(&cfg);
    cfg.write_stall_ms = _i ? 800 : 2500;
    cfg.write_min = _i ? 16 << 20 : 1; /* cut; tolerated */
    cfg.sndbuf = 16384;
    rig_open(&rig, &cfg, false);
    client_open(&cl, &rig);
    setsockopt(cl.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    client_get(&cl, "/flood?100000");
    uint64_t t = clock_now_ns();
    while (ms_since(t) < (_i ? RIG_WAIT_MS : 6000) && rig_gone(&rig, 2) < 0)
        for (int i = 0; i < 4; i++)
            ck_assert_int_gt(recv(cl.fd, some, sizeof some, 0), 0);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.gone_stalled, (unsigned)_i);
    stop();
}
END_TEST

/* Nothing waits for it: silence on a finished answer is no stall. */
START_TEST(reader_that_has_all)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    cfg.write_stall_ms = 100;
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_get(&cl, "/quiet");
    ck_assert_int_eq(rig_gone(&rig, 500), -1);
    stop();
}
END_TEST

/* An application deaf to ERR_AGAIN is stopped by backlog_max. */
START_TEST(backlog_max)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    cfg.backlog_max = 1 << 20;
    cfg.sndbuf = 32768;
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_get(&cl, "/hose?100000");
    ck_assert_int_eq(rig_gone(&rig, RIG_WAIT_MS), GW_GONE_STALLED);
    stop();
}
END_TEST

/* A client that asks and asks and never reads: requests stop being taken. */
START_TEST(answers_pile_up)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    char *body = malloc(60000);
    memset(body, 'b', 60000);
    rig_config(&cfg);
    cfg.sndbuf = 32768;
    cfg.write_stall_ms = 1000;
    rig_open(&rig, &cfg, false);
    client_open(&cl, &rig);
    struct timeval tv = {0, 300000};
    setsockopt(cl.fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    for (int i = 0; i < 400; i++) {
        client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 60000\r\n\r\n");
        client_send(&cl, body, 60000);
        rig_counters(&rig, &c);
        ck_assert_uint_le(c.backlog_bytes, cfg.backlog_high + 61000);
        if (c.requests < (uint64_t)i / 2)
            break;
    }
    for (int i = 0; i < RIG_WAIT_MS && !c.gone_stalled; i++) {
        clock_sleep_ns(NS_PER_MS);
        rig_counters(&rig, &c);
    }
    ck_assert_uint_eq(c.gone_stalled, 1);
    free(body);
    stop();
}
END_TEST

START_TEST(body_budget)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    cfg.body_bytes_total_max = 100000;
    rig_open(&rig, &cfg, _i);
    char *body = calloc(1, 200000);
    client_open(&cl, &rig);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 200000\r\n\r\n");
    client_send(&cl, body, 200000);
    client_expect(&cl, "HTTP/1.1 503 ");
    client_expect(&cl, "Retry-After: 1\r\n");
    client_close(&cl);
    struct gw_counters c;
    do /* the loop sees the end of the first when it comes to it */
        rig_counters(&rig, &c);
    while (c.connections_open && (clock_sleep_ns(NS_PER_MS), true));
    client_open(&cl, &rig); /* what the first held is free again */
    client_say(&cl, "POST /take HTTP/1.1\r\n" H "Content-Length: 50000\r\n\r\n");
    client_send(&cl, body, 50000);
    client_expect(&cl, "50000 ");
    free(body);
    stop();
}
END_TEST

/* ---- many ------------------------------------------------------------------------------------------------------------ */
static bool descriptors(rlim_t want)
{
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    if (r.rlim_cur >= want)
        return true;
    if (r.rlim_max < want)
        return false;
    r.rlim_cur = want;
    return setrlimit(RLIMIT_NOFILE, &r) == 0;
}

START_TEST(idle_thousand)
{
    int n = _i ? 200 : 1000;
    struct gw_server_config cfg;
    struct gw_counters c;
    if (!descriptors(2 * (rlim_t)n + 100)) {
        printf("SKIP %d descriptors are not allowed here\n", 2 * n + 100);
        return;
    }
    rig_config(&cfg);
    rig_open(&rig, &cfg, _i);
    struct client *all = calloc((size_t)n, sizeof *all);
    for (int i = 0; i < n; i++)
        client_open(&all[i], &rig);
    client_open(&cl, &rig);
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    do /* the other loop may still be accepting */
        rig_counters(&rig, &c);
    while (c.connections_open <= (unsigned)n && (clock_sleep_ns(NS_PER_MS), true));
    ck_assert_uint_eq(c.connections_open, (unsigned)n + 1);
    for (int i = 0; i < n; i++) {
        client_get(&all[i], "/hello");
        client_expect(&all[i], "hello");
        client_close(&all[i]);
    }
    free(all);
    stop();
}
END_TEST

START_TEST(connection_cap)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    struct client some[4];
    rig_config(&cfg);
    cfg.connections_max = 4;
    rig_open(&rig, &cfg, false);
    for (int i = 0; i < 4; i++) {
        client_open(&some[i], &rig);
        client_get(&some[i], "/hello");
        client_expect(&some[i], "hello");
    }
    client_open(&cl, &rig);
    client_expect_end(&cl);
    client_close(&cl);
    client_close(&some[0]);
    do {
        clock_sleep_ns(NS_PER_MS);
        rig_counters(&rig, &c);
    } while (c.connections_open > 3);
    client_open(&cl, &rig);
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    ck_assert_uint_eq(c.connections_refused, 1);
    for (int i = 1; i < 4; i++)
        client_close(&some[i]);
    stop();
}
END_TEST

/* A connection from another of this machine's loopback addresses. */
static int connect_from(const char *ip)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_port = htons(rig.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(inet_pton(AF_INET, ip, &from.sin_addr), 1);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&from, sizeof from), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

START_TEST(address_cap)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    struct client some[3];
    rig_config(&cfg);
    cfg.connections_address_max = 3;
    rig_open(&rig, &cfg, false);
    for (int round = 0; round < 3; round++) { /* places come back */
        for (int i = 0; i < 3; i++) {
            client_open(&some[i], &rig);
            client_get(&some[i], "/hello");
            client_expect(&some[i], "hello");
        }
        client_open(&cl, &rig);
        client_expect_end(&cl);
        client_close(&cl);
        cl = (struct client){.fd = connect_from("127.0.0.2")}; /* another address is not concerned */
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        rig_counters(&rig, &c);
        ck_assert_uint_eq(c.connections_refused_address, (unsigned)round + 1);
        ck_assert_uint_eq(c.addresses, 2);
        client_close(&cl);
        for (int i = 0; i < 3; i++)
            client_close(&some[i]);
        do {
            clock_sleep_ns(NS_PER_MS);
            rig_counters(&rig, &c);
        } while (c.connections_open);
        ck_assert_uint_eq(c.addresses, 0);
    }
    stop();
}
END_TEST

/* Half-open handshakes fill their bound; a client that means it still gets in, after one of them has had its second. */
START_TEST(handshake_bound)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    int half[8];
    rig_config(&cfg);
    cfg.threads = 1;
    cfg.handshakes_max = 4;
    rig_open(&rig, &cfg, true);
    uint64_t t = clock_now_ns();
    for (int i = 0; i < 8; i++)
        half[i] = client_connect(rig.port);
    for (int i = 0; i < RIG_WAIT_MS && (rig_counters(&rig, &c), c.handshakes_open < 4); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(c.handshakes_open, 4);
    ck_assert_uint_eq(c.connections_open, 4); /* the others wait in the kernel */
    client_open(&cl, &rig);
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    ck_assert_uint_ge(ms_since(t), 700);
    rig_counters(&rig, &c);
    ck_assert_uint_ge(c.handshakes_evicted, 4);
    ck_assert_uint_ge(c.accept_pauses, 1);
    for (int i = 0; i < 8; i++)
        close(half[i]);
    client_close(&cl);
    for (int i = 0; i < 20; i++) { /* none is left counted */
        client_open(&cl, &rig);
        client_get(&cl, "/hello");
        client_expect(&cl, "hello");
        client_close(&cl);
    }
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.handshakes_open, 0);
    stop();
}
END_TEST

/* The last piece and the end of the coding arrive together. */
START_TEST(end_in_one_piece)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_get(&cl, "/last");
    client_expect(&cl, "\r\n\r\n");
    while (!cl.len)
        ck_assert(client_fill(&cl, RIG_WAIT_MS));
    ck_assert_str_eq(cl.data, "4\r\nlast\r\n0\r\n\r\n");
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    stop();
}
END_TEST

/* No descriptor left: accepting pauses instead of spinning, and recovers. */
START_TEST(out_of_descriptors)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    struct rlimit r, few;
    rig_config(&cfg);
    rig_open(&rig, &cfg, false);
    client_open(&cl, &rig);
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    int fd = client_connect(rig.port); /* its socket exists before the limit falls */
    client_get(&cl, "/hello");
    client_expect(&cl, "hello");
    getrlimit(RLIMIT_NOFILE, &r);
    few = r;
    uint64_t t = clock_now_ns();
    int extra[2] = {socket(AF_INET, SOCK_STREAM, 0), socket(AF_INET, SOCK_STREAM, 0)};
    few.rlim_cur = (rlim_t)extra[1] + 1;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct client waiting = {.fd = extra[0]};
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    ck_assert_int_eq(getpeername(fd, (struct sockaddr *)&a, &len), 0);
    ck_assert_int_eq(connect(extra[0], (struct sockaddr *)&a, len), 0);
    for (int i = 0; i < RIG_WAIT_MS && (rig_counters(&rig, &c), !c.accept_pauses); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(c.accept_pauses, 1);
    ck_assert_uint_le(c.accept_pauses, 2 * (ms_since(t) / 100 + 1)); /* one each 100 ms and loop */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
    client_get(&waiting, "/hello");
    client_expect(&waiting, "hello");
    close(fd);
    close(extra[1]);
    client_close(&waiting);
    stop();
}
END_TEST

/* ---- the end ---------------------------------------------------------------------------------------------------------- */
START_TEST(drain)
{
    struct gw_server_config cfg;
    struct gw_counters n;
    struct client silent, fresh, mute;
    rig_config(&cfg);
    cfg.linger_ms = 20000;
    cfg.threads = 1;
    rig_open(&rig, &cfg, _i);
    client_open(&silent, &rig);
    client_get(&silent, "/hello");
    client_expect(&silent, "hello");
    client_open(&cl, &rig);
    client_say(&cl, "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nla");
    client_open(&fresh, &rig);
    client_open(&mute, &rig);
    for (int i = 0; i < RIG_WAIT_MS && (rig_counters(&rig, &n), n.connections_open < 4 || n.handshakes_open || n.requests < 2); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(gw_server_drain(rig.server, 0), 2);
    client_expect_end(&silent); /* by now its loop drains */
    client_get(&fresh, "/hello"); /* it was opened before, and its first request is served after */
    client_expect(&fresh, "Connection: close\r\n\r\nhello");
    client_say(&cl, "ter");
    client_expect(&cl, "Connection: close\r\n\r\nlater");
    client_close(&mute); /* else it would have its linger_ms */
    ck_assert_uint_eq(gw_server_drain(rig.server, RIG_WAIT_MS), 0);
    client_expect_end(&cl);
    ck_assert_int_eq(client_connect(rig.port), -1);
    client_close(&silent);
    client_close(&fresh);
    stop();
}
END_TEST

START_TEST(drain_deadline)
{
    struct gw_server_config cfg;
    rig_config(&cfg);
    rig_open(&rig, &cfg, _i);
    client_open(&cl, &rig);
    client_get(&cl, "/hang");
    while (!atomic_load(&rig.requests))
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(gw_server_drain(rig.server, 100), 1);
    gw_server_close(rig.server);
    ck_assert_int_eq(atomic_load(&rig.gone[GW_GONE_STOPPED]), 1);
    client_expect_end(&cl);
    client_close(&cl);
}
END_TEST

/* Random requests, a third of them left at a random moment; afterwards nothing is open, held or counted twice. */
static void one_of_many(struct client *c, unsigned seed)
{
    static const char *const paths[] = {"/hello", "/later", "/stream?20", "/flood?60", "/hang", "/quiet", "/abort", "/refuse"};
    const char *path = paths[seed % 8];
    bool leave = seed / 8 % 3 == 0 || seed % 8 == 4 || seed % 8 == 5;
    client_open(c, &rig);
    if (seed / 24 % 5 == 0)
        client_say(c, "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"); /* never whole */
    else
        client_get(c, path);
    for (unsigned i = 0; i < seed / 128 % 4; i++)
        client_fill(c, 3);
    if (leave || seed / 24 % 5 == 0)
        return;
    if (seed % 8 == 3)
        read_flood(c, 60);
    else if (seed % 8 == 6)
        client_expect_end(c);
    else
        client_expect(c, seed % 8 == 0 ? "hello" : seed % 8 == 1 ? "later" : seed % 8 == 2 ? "0\r\n\r\n" : "invalid_api_key");
}

START_TEST(soak)
{
    struct gw_server_config cfg;
    struct gw_counters c;
    unsigned seed = 12345;
    int n = _i ? 200 : 800;
    rig_config(&cfg);
    cfg.sndbuf = 32768;
    rig_open(&rig, &cfg, _i);
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        one_of_many(&cl, seed >> 8);
        client_close(&cl);
    }
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.connections, (unsigned)n);
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("server_limits");
    TCase *d = tcase_create("deadlines"), *b = tcase_create("backlog"), *m = tcase_create("many"), *e = tcase_create("end");
    tcase_add_loop_test(d, slow_head, 0, 2);
    tcase_add_loop_test(d, slow_body, 0, 2);
    tcase_add_loop_test(d, idle, 0, 2);
    tcase_add_test(d, no_handshake);
    tcase_add_loop_test(d, late_loop, 0, 2);
    tcase_add_loop_test(d, heartbeats, 0, 2);
    tcase_add_loop_test(b, slow_reader, 0, 2);
    tcase_add_loop_test(b, stalled_reader, 0, 2);
    tcase_add_loop_test(b, trickling_reader, 0, 2);
    tcase_add_loop_test(b, reader_that_has_all, 0, 2);
    tcase_add_loop_test(b, end_in_one_piece, 0, 2);
    tcase_add_loop_test(b, backlog_max, 0, 2);
    tcase_add_test(b, answers_pile_up);
    tcase_add_loop_test(b, body_budget, 0, 2);
    tcase_add_loop_test(m, idle_thousand, 0, 2);
    tcase_add_test(m, connection_cap);
    tcase_add_test(m, address_cap);
    tcase_add_test(m, handshake_bound);
    tcase_add_test(m, out_of_descriptors);
    tcase_add_loop_test(m, soak, 0, 2);
    tcase_add_loop_test(e, drain, 0, 2);
    tcase_add_loop_test(e, drain_deadline, 0, 2);
    suite_add_tcase(s, d);
    suite_add_tcase(s, b);
    suite_add_tcase(s, m);
    suite_add_tcase(s, e);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
