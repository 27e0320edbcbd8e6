/* What the gateway's network half costs by itself: a server whose handler answers at once, in this process, and a client in
 * a forked one. build/plain/bench/http [tls|plain] [connections] [requests] [loops]
 *
 * Prints requests/s over kept-alive connections, the server's CPU per request (user and system), the memory of an open
 * connection that idles, and the CPU of a new connection (for TLS: a whole handshake). The client shares the cores, so
 * requests/s is a floor; CPU per request is the figure to compare. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "gateway/cert.h"
#include "gateway/server.h"

static const char body[] = "{\"id\":\"chatcmpl-0123456789\",\"object\":\"chat.completion\",\"model\":\"m\",\"choices\":[{\"index\":0,\"message\":"
                           "{\"role\":\"assistant\",\"content\":\"Hello! How can I help you today?\"},\"finish_reason\":\"stop\"}]}";
static const char ask[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8443\r\nAccept: application/json\r\nContent-Type: application/json\r\n"
                          "Authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\nUser-Agent: bench\r\nContent-Length: 80\r\n\r\n"
                          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello, who are you? 0123\"}]}\n";

static void die(const char *what)
{
    perror(what);
    exit(3);
}

static void on_request(void *ctx, gw_exchange *x, const struct gw_request *r)
{
    (void)ctx;
    (void)r;
    gw_respond(x, 200, "application/json", NULL, 0, body, sizeof body - 1);
}

/* ---- client ------------------------------------------------------------------------------------------------------ */
struct conn { int fd; SSL *ssl; size_t got; };
static size_t answer_bytes;

static void open_conn(struct conn *c, uint16_t port, SSL_CTX *ctx)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    *c = (struct conn){.fd = socket(AF_INET, SOCK_STREAM, 0)};
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&a, sizeof a))
        die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (ctx) {
        c->ssl = SSL_new(ctx);
        SSL_set_fd(c->ssl, c->fd);
        if (SSL_connect(c->ssl) != 1)
            die("TLS");
    }
}

static void say(struct conn *c)
{
    ssize_t n = c->ssl ? SSL_write(c->ssl, ask, sizeof ask - 1) : send(c->fd, ask, sizeof ask - 1, 0);
    if (n != sizeof ask - 1)
        die("send");
}

static ssize_t hear(struct conn *c, char *buf, size_t n)
{
    ssize_t k = c->ssl ? SSL_read(c->ssl, buf, (int)n) : recv(c->fd, buf, n, 0);
    if (k > 0)
        return k;
    if (c->ssl ? SSL_get_error(c->ssl, (int)k) == SSL_ERROR_WANT_READ : errno == EAGAIN)
        return 0;
    die("receive");
    return -1;
}

/* One answer, blocking; every answer has the same length. */
static void one(struct conn *c)
{
    char buf[8192];
    size_t got = 0;
    say(c);
    do {
        got += (size_t)hear(c, buf + got, sizeof buf - 1 - got);
        buf[got] = 0;
    } while (!strstr(buf, "}]}"));
    answer_bytes = got;
}

static void load(struct conn *all, unsigned n, unsigned requests)
{
    char buf[16384];
    struct epoll_event ev[64];
    unsigned asked = 0, done = 0;
    int ep = epoll_create1(0);
    for (unsigned i = 0; i < n && asked < requests; i++, asked++) {
        fcntl(all[i].fd, F_SETFL, O_NONBLOCK);
        epoll_ctl(ep, EPOLL_CTL_ADD, all[i].fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &all[i]});
        say(&all[i]);
    }
    while (done < requests) {
        int k = epoll_wait(ep, ev, 64, -1);
        for (int i = 0; i < k; i++) {
            struct conn *c = ev[i].data.ptr;
            c->got += (size_t)hear(c, buf, sizeof buf);
            if (c->got < answer_bytes)
                continue;
            c->got -= answer_bytes;
            done++;
            if (asked < requests) {
                asked++;
                say(c);
            }
        }
    }
    close(ep);
}

/* Steps are marked on the pipe, so that the server side reads its meters at the right moments. */
static void mark(int out, int in)
{
    char c = 'x';
    if (write(out, &c, 1) != 1 || read(in, &c, 1) != 1)
        exit(3);
}

static void client(int out, int in, bool tls, unsigned n, unsigned requests)
{
    uint16_t port;
    if (read(in, &port, sizeof port) != sizeof port)
        exit(3);
    SSL_CTX *ctx = tls ? SSL_CTX_new(TLS_client_method()) : NULL;
    struct conn *all = calloc(n, sizeof *all);
    if (!all)
        exit(3);
    struct conn first;
    open_conn(&first, port, ctx);
    one(&first);
    mark(out, in);
    for (unsigned i = 0; i < n; i++) {
        open_conn(&all[i], port, ctx);
        one(&all[i]);
    }
    mark(out, in);
    load(all, n, requests);
    mark(out, in);
    exit(0);
}

/* ---- server ------------------------------------------------------------------------------------------------------ */
static double cpu_us(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static double rss_kb(void)
{
    char line[200];
    double kb = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lf", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb;
}

struct meter { double us, kb; uint64_t ns; };
static struct meter step(int out, int in)
{
    char c;
    if (read(in, &c, 1) != 1)
        exit(3);
    struct meter m = {cpu_us(), rss_kb(), clock_now_ns()};
    if (write(out, &c, 1) != 1)
        exit(3);
    return m;
}

static gw_server *serve(bool tls, unsigned loops, const char *dir)
{
    struct gw_server_config cfg;
    struct gw_cert cert;
    struct err e;
    gw_server *s;
    gw_server_config_default(&cfg);
    cfg.listen[0] = (struct gw_listen){"127.0.0.1", 0};
    cfg.n_listen = 1;
    cfg.threads = loops;
    cfg.handler.on_request = on_request;
    if (tls && !gw_cert_ensure(dir, NULL, 0, &cert, &e)) {
        cfg.cert_file = cert.cert;
        cfg.key_file = cert.key;
    }
    if (gw_server_open(&s, &cfg, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(3);
    }
    return s;
}

int main(int argc, char **argv)
{
    bool tls = argc < 2 || strcmp(argv[1], "plain");
    unsigned n = argc > 2 ? (unsigned)atoi(argv[2]) : 64, requests = argc > 3 ? (unsigned)atoi(argv[3]) : 200000, loops = argc > 4 ? (unsigned)atoi(argv[4]) : 1;
    int up[2], down[2];
    char dir[] = "/tmp/bench_http.XXXXXX", cmd[64];
    struct rlimit r;
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if (!n || !requests || pipe(up) || pipe(down) || !mkdtemp(dir))
        die("start");
    if (fork() == 0)
        client(up[1], down[0], tls, n, requests);
    close(up[1]); /* so that the end of the client is seen */
    close(down[0]);
    gw_server *s = serve(tls, loops, dir);
    uint16_t port = gw_server_port(s, 0);
    if (write(down[1], &port, sizeof port) != sizeof port)
        die("pipe");
    struct meter a = step(down[1], up[0]), b = step(down[1], up[0]), c = step(down[1], up[0]);
    printf("%s, %u connections, %u requests, %u loop(s)\n", tls ? "TLS 1.3" : "plain", n, requests, loops);
    printf("new connection and first answer   %8.1f us CPU   %8.1f KB kept\n", (b.us - a.us) / n, (b.kb - a.kb) / n);
    printf("kept-alive request                %8.1f us CPU   %8.0f requests/s\n", (c.us - b.us) / requests, requests / ((double)(c.ns - b.ns) / 1e9));
    wait(NULL);
    gw_server_close(s);
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd) ? 3 : 0;
}
