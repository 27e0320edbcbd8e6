/* A client by the thousand, for `sluice serve --mock` on this machine.     build/plain/bench/load MODE URL [flags]
 *
 *   hold      opens streams at a bounded rate, holds them, tells how late tokens are ({ns} in the mock's text)
 *   rate      whole answers over kept-alive connections, as fast as they come; --pace for a fixed rhythm
 *   connect   handshakes, one after the other on each connection; --resume with tickets
 *   soak      requests of both kinds, some cut at random moments
 *   attack    slow heads, readers that do not read, idlers, noise and half handshakes beside a client whose times are compared
 *
 * Only ever against 127.0.0.0/8 and ::1. Bounded: connections by the descriptors there are, time by --seconds. Certificates are not
 * checked. The figures of the server's processes come from /proc by --gateway-pid and --engine-pid. */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/arena.h"
#include "base/json.h"
#include "bench/load.h"
#include "cli/cli.h"
#include "cli/flags.h"

static const char *const modes[] = {"hold", "rate", "connect", "soak", "attack", NULL};

#define AT(f) offsetof(struct options, f)
#define N(name, field, min, max, help) {{name, CONF_INT, AT(field), min, max, NULL}, NULL, "N", help}
static const struct cli_flag flags[] = {
    {{"key", CONF_STR, AT(key), 0, 0, NULL}, NULL, "K", "API key (default $OPENAI_API_KEY)"},
    {{"model", CONF_STR, AT(model), 0, 0, NULL}, NULL, "NAME", "(default mock)"},
    N("connections", connections, 1, 100000, "at once (default 100; connect: 8; attack: 4 of the client)"),
    N("threads", threads, 1, 8, "(default 1)"),
    N("open-rate", open_rate, 1, 100000, "connections begun a second (default 500)"),
    N("seconds", seconds, 1, 600, "of measuring (default 5; attack: alone, and as many beside it)"),
    N("rounds", rounds, 1, ROUNDS_MAX, "attack: alone and beside take turns so often; the middle of their ratios counts (default 5)"),
    N("requests", requests, 1, 10000000, "soak: all of them (default 10000)"),
    N("tokens", tokens, 1, 1000000, "max_tokens of a request (default 8; hold: 100000)"),
    N("pace", pace, 0, 10000000, "rate, attack: microseconds between a connection's requests (default 0: none; attack: 5000)"),
    N("cut", cut_percent, 0, 100, "soak: per cent of requests cut (default 10)"),
    N("sources", sources, 0, 250, "spread over so many addresses 127.0.0.2 and up (default 0: 127.0.0.1)"),
    N("slow", slow, 0, 100000, "attack: slowloris (default 200)"),
    N("deaf", deaf, 0, 100000, "attack: streams never read (default 200)"),
    N("idle", idle, 0, 100000, "attack: connections that say nothing (default 1000)"),
    N("noise", noise, 0, 100000, "attack: random bytes, again and again (default 20)"),
    N("half", half, 0, 100000, "attack: half a ClientHello (default 100)"),
    {{"resume", CONF_BOOL, AT(resume), 0, 0, NULL}, NULL, NULL, "connect: with a ticket"},
    N("gateway-pid", gateway_pid, 0, 1 << 30, "process to watch"),
    N("engine-pid", engine_pid, 0, 1 << 30, "process to watch"),
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON object"},
};

/* ---- where to -------------------------------------------------------------------------------------------------------- */

static int target(struct load *l, struct err *e)
{
    char host[64];
    unsigned port = 0;
    const char *p = l->o.url;
    l->tls = !strncmp(p, "https://", 8);
    if (!l->tls && strncmp(p, "http://", 7))
        return err_set(e, ERR_INVALID, "%s: expected https://ADDRESS:PORT or http://", p);
    p += l->tls ? 8 : 7;
    if (sscanf(p, "[%63[0-9a-fA-F:]]:%u", host, &port) != 2 && sscanf(p, "%63[0-9.]:%u", host, &port) != 2)
        return err_set(e, ERR_INVALID, "%s: expected a numeric address and a port", l->o.url);
    l->to4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    l->to6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    l->six = strchr(host, ':') != NULL;
    bool ok = l->six ? inet_pton(AF_INET6, host, &l->to6.sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&l->to6.sin6_addr)
                     : inet_pton(AF_INET, host, &l->to4.sin_addr) == 1 && ntohl(l->to4.sin_addr.s_addr) >> 24 == 127;
    return ok && port && port < 65536 ? ERR_OK : err_set(e, ERR_INVALID, "%s: this tool loads nothing but this machine (127.0.0.0/8, ::1)", l->o.url);
}

static void make_request(struct buf *out, const struct options *o, bool stream)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_str(&b, "{\"model\":");
    json_put_cstr(&b, o->model);
    buf_printf(&b, ",\"max_tokens\":%lld,\"stream\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"Say what you always say, please.\"}]}",
               (long long)o->tokens, stream ? "true" : "false");
    buf_init(out, 1 << 16);
    buf_printf(out, "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: %s\r\nUser-Agent: sluice-load\r\n",
               stream ? "text/event-stream" : "application/json");
    if (o->key)
        buf_printf(out, "Authorization: Bearer %s\r\n", o->key);
    buf_printf(out, "Content-Length: %zu\r\n\r\n%s", b.len, b.data);
    buf_free(&b);
}

/* ---- TLS --------------------------------------------------------------------------------------------------------------- */

static int keep_session(SSL *ssl, SSL_SESSION *s)
{
    struct thread *t = SSL_get_app_data(ssl);
    if (!t || !t->l->o.resume)
        return 0;
    SSL_SESSION_free(t->session);
    t->session = s;
    return 1;
}

/* What a client says first, kept for those who say half of it. */
static bool first_words(struct load *l)
{
    SSL *ssl = SSL_new(l->tls_ctx);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    if (!ssl || !in || !out)
        return false;
    SSL_set_bio(ssl, in, out);
    SSL_set_connect_state(ssl);
    SSL_do_handshake(ssl);
    int n = BIO_read(out, l->hello, sizeof l->hello);
    l->n_hello = n > 0 ? (size_t)n : 0;
    SSL_free(ssl);
    return n > 0;
}

static int open_tls(struct load *l, struct err *e)
{
    l->tls_ctx = SSL_CTX_new(TLS_client_method());
    if (!l->tls_ctx)
        return err_set(e, ERR_NOMEM, "TLS");
    SSL_CTX_set_verify(l->tls_ctx, SSL_VERIFY_NONE, NULL);
    SSL_CTX_set_mode(l->tls_ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(l->tls_ctx, 1);
    SSL_CTX_set_options(l->tls_ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(l->tls_ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(l->tls_ctx, keep_session);
    return first_words(l) ? ERR_OK : err_set(e, ERR_NOMEM, "TLS");
}

/* ---- main ---------------------------------------------------------------------------------------------------------------- */

/* Descriptors for all of them, or a word on how to get more. */
static int room(const struct options *o, struct err *e)
{
    struct rlimit r;
    int64_t need = o->connections + 64 + (o->mode == MODE_ATTACK ? o->slow + o->deaf + o->idle + o->noise + o->half : 0);
    getrlimit(RLIMIT_NOFILE, &r);
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
    if ((uint64_t)need > r.rlim_max)
        return err_set(e, ERR_INVALID, "%lld descriptors are needed, %llu allowed (ulimit -Hn)", (long long)need, (unsigned long long)r.rlim_max);
    return ERR_OK;
}

static void defaults(struct options *o, int mode)
{
    *o = (struct options){.mode = mode, .key = getenv("OPENAI_API_KEY"), .model = "mock", .connections = 100, .threads = 1, .open_rate = 500, .seconds = 5,
                          .requests = 10000, .tokens = mode == MODE_HOLD || mode == MODE_ATTACK ? 100000 : 8, .cut_percent = 10, .rounds = 5, .slow = 200, .deaf = 200,
                          .idle = 1000, .noise = 20, .half = 100};
    if (mode == MODE_CONNECT)
        o->connections = 8;
    if (mode == MODE_ATTACK) {
        o->connections = 4;
        o->pace = 5000;
    }
}

static int run(struct load *l, struct rows *r, struct err *e)
{
    struct options small = l->o;
    int rc;
    if ((rc = target(l, e)) || (rc = room(&l->o, e)) || (rc = open_tls(l, e)))
        return rc;
    if (l->o.mode == MODE_ATTACK)
        small.tokens = 8; /* the normal client's requests are short, those of who never read are long */
    if (l->o.threads > l->o.connections)
        l->o.threads = l->o.connections;
    make_request(&l->stream, &l->o, true);
    make_request(&l->ask, &small, false);
    buf_init(&l->ping, 256);
    buf_str(&l->ping, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    if (l->stream.failed || l->ask.failed || l->ping.failed)
        return err_set(e, ERR_INVALID, "--key, --model: expected something shorter");
    return load_mode(l, r, e);
}

int main(int argc, char **argv)
{
    static struct load l;
    static struct rows r;
    const char *words[2];
    size_t n_words = 0;
    struct err e = {0};
    struct arena a;
    bool help = false;
    int mode = 0;
    for (int i = 1; i < argc; i++) /* its defaults come first */
        for (int m = 0; modes[m]; m++)
            if (!strcmp(argv[i], modes[m]))
                mode = m;
    arena_init(&a, 1 << 20);
    defaults(&l.o, mode);
    signal(SIGPIPE, SIG_IGN);
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &l.o}, {0}};
    int rc = cli_parse(argc, argv, "hold|rate|connect|soak|attack URL", tables, words, 2, &n_words, &help, &a, &e);
    if (help)
        return CLI_OK;
    if (!rc && (n_words != 2 || strcmp(words[0], modes[mode])))
        rc = err_set(&e, ERR_INVALID, "expected a mode (hold, rate, connect, soak, attack) and a URL");
    l.o.url = words[1];
    if (!rc)
        rc = run(&l, &r, &e);
    if (r.n)
        rows_print(&r, l.o.json);
    if (rc)
        fprintf(stderr, "load: %s\n", e.msg);
    SSL_CTX_free(l.tls_ctx);
    buf_free(&l.stream);
    buf_free(&l.ask);
    buf_free(&l.ping);
    arena_free(&a);
    return rc == ERR_INVALID ? CLI_USAGE : rc ? CLI_FAULT : CLI_OK;
}
