/* A link between a made-up engine (a thread that writes "1 2 3 ..." for each request) and test gateways on real sockets. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/frame.h"
#include "engine/link.h"
#include "tests/support/suite.h"

#define NUMBER_(n) #n
#define NUMBER(n) NUMBER_(n)
#define HELLO "{\"proto\":" NUMBER(ENG_PROTO) "}"

/* ---- the engine ----------------------------------------------------------------------------------------------- */

struct made { uint64_t id; uint32_t n, max; bool paused, cancel, live, started; char tenant[16]; };
struct engine {
    pthread_mutex_t lock;
    pthread_t thread;
    struct made r[64];
    unsigned cancels, pauses, resumes, drains, piece; /* piece: bytes of text a token */
    bool stop, hold;
    eng_link *link;
};
static struct engine g;
static char *filler;

static int submit(void *ctx, const struct eng_request *r, struct err *e)
{
    struct engine *x = ctx;
    int rc = err_set(e, ERR_AGAIN, "the queue is full");
    if (r->n_ids == 3)
        return err_set(e, ERR_LIMIT, "prompt too long");
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < 64; i++)
        if (!x->r[i].live) {
            x->r[i] = (struct made){.id = r->id, .max = r->max_tokens, .live = true};
            snprintf(x->r[i].tenant, sizeof x->r[i].tenant, "%s", r->tenant ? r->tenant : "-");
            rc = 0;
            break;
        }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

static void with(void *ctx, uint64_t id, void (*f)(struct engine *, struct made *, bool), bool flag)
{
    struct engine *x = ctx;
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < 64; i++)
        if (x->r[i].live && x->r[i].id == id)
            f(x, &x->r[i], flag);
    pthread_mutex_unlock(&x->lock);
}
static void do_cancel(struct engine *x, struct made *m, bool flag) { m->cancel = flag; x->cancels++; }
static void do_pause(struct engine *x, struct made *m, bool flag)
{
    m->paused = flag;
    if (flag)
        x->pauses++;
    else
        x->resumes++;
}
static void cancel(void *ctx, uint64_t id) { with(ctx, id, do_cancel, true); }
static void pause_seq(void *ctx, uint64_t id, bool p) { with(ctx, id, do_pause, p); }
static void drain(void *ctx)
{
    struct engine *x = ctx;
    pthread_mutex_lock(&x->lock);
    x->drains++;
    pthread_mutex_unlock(&x->lock);
}
static void stats(void *ctx, struct eng_stats *s)
{
    struct engine *x = ctx;
    *s = (struct eng_stats){.seqs_max = 64, .ram_max = 1ull << 60};
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < 64; i++)
        s->running += x->r[i].live;
    pthread_mutex_unlock(&x->lock);
}

/* Copies what to say under the lock, says it without. */
static bool step(struct engine *x, struct made *m)
{
    char text[32];
    static const struct eng_usage u = {.prompt_tokens = 3, .output_tokens = 4, .draft_tokens = 2, .draft_accepted = 1, .queue_ns = 5, .prefill_ns = 6, .decode_ns = 7};
    pthread_mutex_lock(&x->lock);
    struct made was = *m;
    bool hold = x->hold;
    unsigned piece = x->piece;
    if (m->live) {
        bool end = m->cancel || m->n == m->max;
        m->started = true;
        m->live = !end;
        if (!end && !m->paused && !hold)
            m->n++;
    }
    pthread_mutex_unlock(&x->lock);
    if (!was.live)
        return false;
    struct eng_event ev = {.type = ENG_EV_STARTED, .id = was.id};
    if (!was.started)
        eng_link_event(x->link, &ev);
    if (was.cancel || was.n == was.max) {
        ev = (struct eng_event){.type = ENG_EV_DONE, .id = was.id, .finish = was.cancel ? ENG_CANCELLED : ENG_STOP, .usage = &u, .text = "end", .n = 3};
        eng_link_event(x->link, &ev);
        eng_link_event(x->link, &ev); /* a late one finds nothing */
    } else if (!was.paused && !hold) {
        snprintf(text, sizeof text, "%u ", was.n + 1);
        ev = (struct eng_event){.type = ENG_EV_TOKEN, .id = was.id, .token = (int32_t)was.n + 1, .text = text, .n = strlen(text)};
        if (piece) { /* large pieces come at 20 MB/s: no model writes faster */
            clock_sleep_ns(NS_PER_MS);
            ev.text = filler;
            ev.n = piece;
        }
        eng_link_event(x->link, &ev);
        return true;
    }
    return false;
}

static void *engine_main(void *ctx)
{
    struct engine *x = ctx;
    for (bool stop = false; !stop;) {
        bool busy = false;
        for (int i = 0; i < 64; i++)
            busy |= step(x, &x->r[i]);
        if (!busy)
            clock_sleep_ns(NS_PER_MS);
        pthread_mutex_lock(&x->lock);
        stop = x->stop;
        pthread_mutex_unlock(&x->lock);
    }
    return NULL;
}

static unsigned count(const unsigned *v)
{
    pthread_mutex_lock(&g.lock);
    unsigned n = *v;
    pthread_mutex_unlock(&g.lock);
    return n;
}

static bool reaches(const unsigned *v, unsigned n)
{
    for (int i = 0; i < 5000 && count(v) < n; i++)
        clock_sleep_ns(NS_PER_MS);
    return count(v) >= n;
}

static void set_hold(bool hold)
{
    pthread_mutex_lock(&g.lock);
    g.hold = hold;
    pthread_mutex_unlock(&g.lock);
}

static void set_piece(unsigned n)
{
    pthread_mutex_lock(&g.lock);
    g.piece = n;
    pthread_mutex_unlock(&g.lock);
}

static char dir[] = "/tmp/sluice-link-XXXXXX", path[64];
static struct eng_link_blob blob;

static void open_link(const char *listen, void (*tune)(struct eng_link_config *))
{
    struct err e = {0};
    struct eng_link_config c;
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2});
    if (!*path) {
        ck_assert_ptr_nonnull(mkdtemp(dir));
        snprintf(path, sizeof path, "%s/s", dir);
        filler = calloc(1, 1 << 20);
        memset(filler, 'x', 1 << 20);
    }
    g = (struct engine){.piece = 0};
    pthread_mutex_init(&g.lock, NULL);
    eng_link_config_default(&c);
    c.listen = listen ? listen : path;
    if (tune)
        tune(&c);
    blob = (struct eng_link_blob){.p = filler, .n = 1 << 20};
    hash_sha256(blob.p, blob.n, blob.digest);
    OK(eng_link_open(&g.link, &c, &e));
    const struct eng_link_ops ops = {&g, submit, cancel, pause_seq, drain, stats};
    OK(eng_link_start(g.link, &ops, " {}" + 1, 2, &blob, 1, &e));
    ck_assert_int_eq(pthread_create(&g.thread, NULL, engine_main, &g), 0);
}

static void close_link(void)
{
    eng_link_stop(g.link);
    pthread_mutex_lock(&g.lock);
    g.stop = true;
    pthread_mutex_unlock(&g.lock);
    pthread_join(g.thread, NULL);
    eng_link_close(g.link);
    pthread_mutex_destroy(&g.lock);
    free(filler);
    rmdir(dir);
}

/* ---- a gateway ------------------------------------------------------------------------------------------------ */

struct gateway { int fd; struct eng_frame_reader r; struct arena a; };

static void send_frame(struct gateway *w, uint16_t type, uint64_t request, const void *body, size_t n)
{
    struct buf b;
    buf_init(&b, 8 << 20);
    eng_frame_put(&b, type, request, body, n);
    for (size_t at = 0; at < b.len;) {
        ssize_t k = send(w->fd, b.data + at, b.len - at, MSG_NOSIGNAL);
        if (k <= 0)
            break; /* the other side hung up: what was said so far shows why */
        at += (size_t)k;
    }
    buf_free(&b);
}

static void dial(struct gateway *w)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, path);
    w->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert(connect(w->fd, (struct sockaddr *)&a, sizeof a) == 0);
    eng_frame_reader_init(&w->r, 8 << 20);
    arena_init(&w->a, 64 << 20);
}

static void hang_up(struct gateway *w)
{
    close(w->fd);
    eng_frame_reader_free(&w->r);
    arena_free(&w->a);
}

/* 1 and a frame; 0: the engine closed the connection. STATS frames are left out unless asked for. */
static int next_frame(struct gateway *w, struct eng_frame *f, bool want_stats)
{
    struct err e = {0};
    char block[65536];
    for (;;) {
        int got = eng_frame_next(&w->r, f, &e);
        ck_assert_msg(got >= 0, "%s", e.msg);
        if (got && (f->type != ENG_FR_STATS || want_stats))
            return 1;
        if (got)
            continue;
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 20000) == 1, "no frame within 20 s");
        ssize_t n = recv(w->fd, block, sizeof block, 0);
        if (n <= 0)
            return 0;
        OK(eng_frame_feed(&w->r, block, (size_t)n, &e));
    }
}

static void expect(struct gateway *w, struct eng_frame *f, uint16_t type, uint64_t request)
{
    ck_assert_msg(next_frame(w, f, type == ENG_FR_STATS) == 1, "the connection was closed");
    ck_assert_msg(f->type == type && f->request == request, "expected frame %u of %llu, found %u of %llu", type, (unsigned long long)request, f->type,
                  (unsigned long long)f->request);
}

static void greet(struct gateway *w)
{
    struct eng_frame f;
    dial(w);
    send_frame(w, ENG_FR_HELLO, 0, HELLO, sizeof HELLO - 1);
    expect(w, &f, ENG_FR_HELLO, 0);
}

static void send_request(struct gateway *w, uint64_t request, uint32_t n_ids, uint32_t max)
{
    static const int32_t ids[4] = {1, 2, 3, 4};
    struct buf b;
    buf_init(&b, 4096);
    ck_assert(eng_frame_put_submit(&b, &(struct eng_request){.ids = ids, .n_ids = n_ids, .max_tokens = max, .tenant = "acme"}, 0));
    send_frame(w, ENG_FR_SUBMIT, request, b.data, b.len);
    buf_free(&b);
}

/* Reads one request to its end; checks that token k is k+1. Returns the number of tokens. */
static uint32_t read_answer(struct gateway *w, uint64_t request, enum eng_finish finish, size_t *bytes)
{
    struct err e = {0}, why;
    struct eng_frame f;
    uint32_t seen = 0;
    expect(w, &f, ENG_FR_STARTED, request);
    for (;;) {
        struct eng_frame_tokens t;
        ck_assert_int_eq(next_frame(w, &f, false), 1);
        if (f.type == ENG_FR_DONE)
            break;
        OK(eng_frame_get_tokens(&f, &w->a, &t, &e));
        for (uint32_t i = 0; i < t.n; i++)
            if (t.ids[i] != (int32_t)++seen)
                ck_abort_msg("token %u is %d", seen, t.ids[i]);
        if (bytes)
            *bytes += t.text_n;
        arena_reset(&w->a);
    }
    struct eng_event ev;
    struct eng_usage u;
    OK(eng_frame_get_done(&f, &ev, &u, &why, &e));
    ck_assert_int_eq(ev.finish, finish);
    ck_assert(f.request == request && ev.n == 3 && u.output_tokens == 4 && u.decode_ns == 7);
    return seen;
}

START_TEST(core)
{
    struct err e = {0};
    struct gateway a, b;
    struct eng_frame f;
    struct json *v;
    int64_t pid;
    open_link(NULL, NULL);
    struct stat st;
    ck_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    dial(&a);
    expect(&a, &f, ENG_FR_HELLO, 0); /* the engine speaks first */
    OK(json_parse(&v, (const char *)f.body, f.n, &json_strict, &a.a, &e));
    ck_assert(json_int(json_get(v, "pid"), &pid) && pid == getpid() && json_int(json_get(v, "proto"), &pid) && pid == ENG_PROTO);
    send_frame(&a, ENG_FR_HELLO, 0, HELLO, sizeof HELLO - 1);
    send_frame(&a, ENG_FR_BLOB_GET, 0, blob.digest, 32);
    expect(&a, &f, ENG_FR_BLOB, 0);
    ck_assert(f.n == 32 + blob.n && !memcmp(f.body, blob.digest, 32) && !memcmp(f.body + 32, blob.p, blob.n));
    uint8_t none[32] = {1};
    send_frame(&a, ENG_FR_BLOB_GET, 7, none, 32);
    expect(&a, &f, ENG_FR_BLOB, 7);
    ck_assert_uint_eq(f.n, 32);
    send_frame(&a, ENG_FR_PING, 9, "hi", 2);
    expect(&a, &f, ENG_FR_PONG, 9);
    ck_assert(f.n == 2 && !memcmp(f.body, "hi", 2));
    send_frame(&a, 4242, 1, "later", 5); /* unknown: skipped */
    send_request(&a, 1, 2, 100);
    ck_assert_uint_eq(read_answer(&a, 1, ENG_STOP, NULL), 100);
    send_request(&a, 1, 2, 5); /* the number is free again */
    ck_assert_uint_eq(read_answer(&a, 1, ENG_STOP, NULL), 5);
    send_request(&a, 2, 3, 5);
    struct err why;
    expect(&a, &f, ENG_FR_REFUSED, 2);
    OK(eng_frame_get_refused(&f, &why, &e));
    ck_assert(why.code == ERR_LIMIT && !strcmp(why.msg, "prompt too long"));
    send_frame(&a, ENG_FR_SUBMIT, 3, "x", 1); /* its body alone is refused */
    expect(&a, &f, ENG_FR_REFUSED, 3);
    expect(&a, &f, ENG_FR_STATS, 0);
    OK(json_parse(&v, (const char *)f.body, f.n, &json_strict, &a.a, &e));
    ck_assert(json_int(json_get(v, "ram_max"), &pid) && pid == 1ll << 60 && json_get(v, "running") && json_get(v, "kv_pages_used"));

    greet(&b); /* two gateways may use the same number */
    send_request(&a, 5, 2, 2000);
    send_request(&b, 5, 2, 3000);
    ck_assert_uint_eq(read_answer(&b, 5, ENG_STOP, NULL), 3000);
    ck_assert_uint_eq(read_answer(&a, 5, ENG_STOP, NULL), 2000);
    hang_up(&a);
    hang_up(&b);
    for (int i = 0; i < 5000 && !eng_link_idle(g.link); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert(eng_link_idle(g.link));
    close_link();
    ck_assert(stat(path, &st) != 0);
}
END_TEST

START_TEST(control)
{
    struct gateway w;
    struct eng_frame f;
    open_link(NULL, NULL);
    greet(&w);
    send_request(&w, 1, 2, 1u << 30);
    expect(&w, &f, ENG_FR_STARTED, 1);
    send_frame(&w, ENG_FR_PAUSE, 1, "\1", 1);
    ck_assert(reaches(&g.pauses, 1));
    send_frame(&w, ENG_FR_PAUSE, 1, "\0", 1);
    ck_assert(reaches(&g.resumes, 1));
    send_frame(&w, ENG_FR_CANCEL, 1, "", 0);
    do
        ck_assert_int_eq(next_frame(&w, &f, false), 1);
    while (f.type != ENG_FR_DONE);
    send_frame(&w, ENG_FR_CANCEL, 1, "", 0); /* too late, and unknown ones: nothing happens */
    send_frame(&w, ENG_FR_PAUSE, 77, "\1", 1);
    send_frame(&w, ENG_FR_DRAIN, 0, "", 0);
    ck_assert(reaches(&g.drains, 1));
    ck_assert_uint_eq(count(&g.cancels), 1);
    for (uint64_t i = 1; i <= 10; i++)
        send_request(&w, i, 2, 1u << 30);
    for (int started = 0; started < 10;) {
        ck_assert_int_eq(next_frame(&w, &f, false), 1);
        started += f.type == ENG_FR_STARTED;
    }
    hang_up(&w); /* a lost connection cancels what it had */
    ck_assert(reaches(&g.cancels, 11));
    for (int i = 0; i < 5000 && !eng_link_idle(g.link); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert(eng_link_idle(g.link));
    close_link();
}
END_TEST

/* The peer does not read while much more than a socket holds is written: the sequence is paused, memory stays bounded, and every
 * token arrives in order once it reads again. */
START_TEST(backpressure)
{
    struct gateway w;
    open_link(NULL, NULL);
    greet(&w);
    set_piece(20000);
    send_request(&w, 1, 2, 500);
    ck_assert(reaches(&g.pauses, 1));
    pthread_mutex_lock(&g.lock);
    uint32_t at = g.r[0].n;
    pthread_mutex_unlock(&g.lock);
    ck_assert_msg(at < 300, "%u tokens of 20000 bytes were made for a peer that reads none", at);
    size_t bytes = 0;
    ck_assert_uint_eq(read_answer(&w, 1, ENG_STOP, &bytes), 500);
    ck_assert_uint_eq(bytes, 500 * 20000);
    ck_assert(reaches(&g.resumes, 1));
    hang_up(&w);
    close_link();
}
END_TEST

static void short_times(struct eng_link_config *c)
{
    c->hello_ms = c->stall_ms = 200;
    c->connections_max = 2;
    c->requests_max = 2;
}

START_TEST(limits)
{
    struct err e = {0}, why;
    struct gateway a, b, c;
    struct eng_frame f;
    open_link(NULL, short_times);
    dial(&a); /* says nothing: closed */
    expect(&a, &f, ENG_FR_HELLO, 0);
    ck_assert_int_eq(next_frame(&a, &f, false), 0);
    hang_up(&a);
    greet(&a);
    greet(&b);
    dial(&c);
    ck_assert_int_eq(next_frame(&c, &f, false), 0); /* one too many */
    hang_up(&c);
    set_hold(true);
    send_request(&a, 1, 2, 10);
    send_request(&a, 2, 2, 10);
    expect(&a, &f, ENG_FR_STARTED, 1);
    expect(&a, &f, ENG_FR_STARTED, 2);
    send_request(&b, 1, 2, 10);
    expect(&b, &f, ENG_FR_REFUSED, 1);
    OK(eng_frame_get_refused(&f, &why, &e));
    ck_assert_int_eq(why.code, ERR_AGAIN);
    hang_up(&b);
    send_frame(&a, ENG_FR_CANCEL, 1, "", 0);
    send_frame(&a, ENG_FR_CANCEL, 2, "", 0);
    expect(&a, &f, ENG_FR_DONE, 1);
    expect(&a, &f, ENG_FR_DONE, 2);
    set_hold(false);
    set_piece(20000);
    unsigned cancels = count(&g.cancels);
    send_request(&a, 3, 2, 1u << 30); /* and never read: past the stall time it is gone */
    ck_assert(reaches(&g.cancels, cancels + 1));
    hang_up(&a);
    close_link();
}
END_TEST

static void expect_closed(uint16_t type, uint64_t request, const void *body, size_t n, bool greeted)
{
    struct gateway w;
    struct eng_frame f;
    dial(&w);
    if (greeted)
        send_frame(&w, ENG_FR_HELLO, 0, HELLO, sizeof HELLO - 1);
    send_frame(&w, type, request, body, n);
    expect(&w, &f, ENG_FR_HELLO, 0);
    while (next_frame(&w, &f, true))
        ck_assert(f.type == ENG_FR_STARTED || f.type == ENG_FR_TOKENS || f.type == ENG_FR_STATS);
    hang_up(&w);
}

START_TEST(errors)
{
    struct err e = {0};
    struct gateway w;
    struct eng_frame f;
    open_link(NULL, NULL);
    expect_closed(ENG_FR_PING, 1, "", 0, false);
    expect_closed(ENG_FR_HELLO, 0, "{\"proto\":1}", 11, false);
    expect_closed(ENG_FR_HELLO, 0, HELLO, sizeof HELLO - 2, false);
    expect_closed(ENG_FR_HELLO, 0, "", 0, false);
    expect_closed(ENG_FR_STATS, 0, "", 0, true);
    expect_closed(ENG_FR_BLOB_GET, 0, "short", 5, true);
    expect_closed(ENG_FR_PAUSE, 1, "\2", 1, true);
    expect_closed(ENG_FR_SUBMIT, 0, "", 0, true);
    dial(&w);
    ck_assert(write(w.fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 28) == 28);
    expect(&w, &f, ENG_FR_HELLO, 0);
    ck_assert_int_eq(next_frame(&w, &f, false), 0);
    hang_up(&w);
    greet(&w);
    set_hold(true);
    send_request(&w, 8, 2, 10);
    send_request(&w, 8, 2, 10); /* in use */
    while (next_frame(&w, &f, true))
        ;
    hang_up(&w);
    ck_assert(reaches(&g.cancels, 1));

    struct eng_link_config c;
    eng_link *l;
    eng_link_config_default(&c);
    static const struct { const char *listen, *words; int code; } bad[] = {
        {"", "host:port", ERR_INVALID}, {"nothing", "host:port", ERR_INVALID}, {"127.0.0.1:99999", "host:port", ERR_INVALID},
        {"example.org:80", "a numeric address", ERR_INVALID}, {"0.0.0.0:0", "needs TLS", ERR_UNSUPPORTED}, {"[::]:0", "needs TLS", ERR_UNSUPPORTED},
        {"/nonexistent/dir/s", "No such file", ERR_IO}, {"unix:", "a socket path", ERR_INVALID}, {"/tmp/", "another file", ERR_IO}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c.listen = bad[i].listen;
        FAILS(bad[i].code, bad[i].words, eng_link_open(&l, &c, &e));
        ck_assert_ptr_null(l);
    }
    c.listen = path;
    FAILS(ERR_IO, "another engine listens", eng_link_open(&l, &c, &e));
    char other[80];
    snprintf(other, sizeof other, "%s2", path);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    strcpy(a.sun_path, other);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    close(fd); /* what a killed engine leaves behind */
    c.listen = other;
    OK(eng_link_open(&l, &c, &e));
    eng_link_close(l);
    c.listen = "127.0.0.1:0";
    OK(eng_link_open(&l, &c, &e));
    ck_assert_uint_gt(eng_link_port(l), 0);
    FAILS(ERR_INVALID, "a JSON object", eng_link_start(l, &(struct eng_link_ops){0}, "[]", 2, NULL, 0, &e));
    eng_link_close(l);
    c.requests_max = 0;
    FAILS(ERR_INVALID, "requests", eng_link_open(&l, &c, &e));
    close_link();
}
END_TEST

SUITE("engine", "link", core, control, backpressure, limits, errors)
