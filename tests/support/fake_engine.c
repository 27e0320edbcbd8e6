#include "tests/support/fake_engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "engine/frame.h"

enum { CONNS = 8, SEQS = 512 };
struct conn { int fd; struct eng_frame_reader reader; struct buf out; bool mute; };
struct seq {
    bool live, started, paused, hang;
    int conn;
    uint32_t top_logprobs; bool logprobs;
    uint64_t id, seed, next_ns, delay_ns;
    uint32_t n_prompt, n_out, max_tokens, stop_after, fail_after, die_after, mute_after;
    uint32_t stop_string;      /* its number, from 1: what an end by !stop is said to have met */
    struct buf text;           /* all text of the tokens so far */
    struct buf say;            /* the whole text, when the prompt has it */
    size_t sent;
};
struct fake_engine {
    struct fake_config cfg;
    pthread_t thread;
    pthread_mutex_t lock;
    bool stop;
    uint32_t want_down_ms; bool want_down;
    struct fake_counts counts;
    int listen_fd;
    uint64_t back_ns;          /* when to listen again; UINT64_MAX: never */
    int64_t pid;
    struct conn conn[CONNS];
    struct seq seq[SEQS];
    uint64_t busy_left_for; uint32_t busy_left;
};
static const char tok_blob[] = "fake tokenizer blob", tmpl_blob[] = "fake template";

static uint64_t fake_seed(const struct eng_sampling *s) { return s->seed + s->choice * 1000003ull; } /* each choice has a text of its own */

static uint32_t mix(uint64_t seed, uint32_t i)
{
    uint64_t v[2] = {seed, i};
    return (uint32_t)(hash_bytes(v, sizeof v, 7) >> 16);
}

static void put_piece(struct buf *b, uint64_t seed, uint32_t i)
{
    uint32_t h = mix(seed, i);
    buf_printf(b, h % 5 == 0 ? "\xc3\xa9%u\n" : "%c%u ", h % 5 == 0 ? h % 90 : 'a' + h % 26, h % 90);
}

static bool holds_back(uint32_t n) { return n % 5 == 4; } /* after n tokens the last one's text stays */

char *fake_text(uint64_t seed, uint32_t n)
{
    struct buf b;
    buf_init(&b, 1u << 24);
    buf_str(&b, "");
    for (uint32_t i = 0; i < n; i++)
        put_piece(&b, seed, i);
    char *s = strdup(b.data ? b.data : "");
    buf_free(&b);
    return s;
}

void fake_config_default(struct fake_config *c)
{
    static int n;
    *c = (struct fake_config){.ctx = 512, .seqs = 4, .queue_max = 64, .queue_tokens_max = 100000, .down_ms = 300, .delay_us = 500, .numerics = "fake/1"};
    snprintf(c->path, sizeof c->path, "/tmp/fake_engine.%ld.%d", (long)getpid(), n++);
}

/* ---- connections ------------------------------------------------------------------------------------------ */

static void send_frame(struct conn *c, uint16_t type, uint64_t id, const void *p, size_t n)
{
    if (c->fd >= 0 && !c->mute)
        eng_frame_put(&c->out, type, id, p, n);
}

static void drop(fake_engine *f, int i)
{
    struct conn *c = &f->conn[i];
    if (c->fd < 0)
        return;
    close(c->fd);
    c->fd = -1;
    eng_frame_reader_free(&c->reader);
    buf_free(&c->out);
    for (int s = 0; s < SEQS; s++)
        if (f->seq[s].live && f->seq[s].conn == i) {
            f->seq[s].live = false;
            buf_free(&f->seq[s].text);
            buf_free(&f->seq[s].say);
        }
}

static void do_write(fake_engine *f, int i)
{
    struct conn *c = &f->conn[i];
    while (c->fd >= 0 && c->out.len) {
        ssize_t n = send(c->fd, c->out.data, c->out.len, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0)
            drop(f, i);
        else
            buf_consume(&c->out, (size_t)n);
    }
}

static void start_listening(fake_engine *f)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", f->cfg.path);
    unlink(f->cfg.path);
    f->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (f->listen_fd < 0 || bind(f->listen_fd, (void *)&a, sizeof a) || listen(f->listen_fd, 16)) {
        perror("fake engine");
        abort();
    }
    f->pid++;
}

static void go_down(fake_engine *f, uint32_t ms)
{
    for (int i = 0; i < CONNS; i++) {
        do_write(f, i); /* what it had said arrives */
        drop(f, i);
    }
    if (f->listen_fd >= 0)
        close(f->listen_fd);
    f->listen_fd = -1;
    unlink(f->cfg.path);
    f->back_ns = ms ? clock_now_ns() + ms * NS_PER_MS : UINT64_MAX;
    if (f->cfg.numerics_after)
        f->cfg.numerics = f->cfg.numerics_after;
    pthread_mutex_lock(&f->lock);
    f->counts.deaths++;
    pthread_mutex_unlock(&f->lock);
}

static void hex_of(const void *p, size_t n, char out[65])
{
    uint8_t d[32];
    hash_sha256(p, n, d);
    hash_hex(d, 32, out);
}

static void send_hello(fake_engine *f, struct conn *c)
{
    char tok[65], tmpl[65];
    struct buf b;
    if (f->cfg.hello) {
        send_frame(c, ENG_FR_HELLO, 0, f->cfg.hello, strlen(f->cfg.hello));
        return;
    }
    hex_of(tok_blob, sizeof tok_blob - 1, tok);
    hex_of(tmpl_blob, sizeof tmpl_blob - 1, tmpl);
    buf_init(&b, 1u << 16);
    buf_printf(&b, "{\"proto\":%d,\"pid\":%lld,\"id\":\"fake-model\",\"aliases\":[\"org/fake\"],\"ctx\":%u,\"seqs\":%u,\"vocab\":2000,\"queue_max\":%u,\"queue_tokens_max\":%llu,"
               "\"numerics\":\"%s\",\"tokenizer\":\"%s\",\"template\":\"%s\",\"special_tokens\":{},\"eos\":[0],\"temperature\":0.7,\"top_p\":1,\"top_k\":0,\"format\":%s}",
               ENG_PROTO, (long long)f->pid, f->cfg.ctx, f->cfg.seqs, f->cfg.queue_max, (unsigned long long)f->cfg.queue_tokens_max, f->cfg.numerics, tok, tmpl, f->cfg.format ? f->cfg.format : "null");
    send_frame(c, ENG_FR_HELLO, 0, b.data, b.len);
    buf_reset(&b);
    buf_str(&b, "{\"running\":1,\"waiting\":2,\"seqs_max\":4,\"kv_pages\":100,\"kv_pages_used\":7,\"kv_bytes\":4096,\"ram_max\":1000000}");
    send_frame(c, ENG_FR_STATS, 0, b.data, b.len);
    buf_free(&b);
}

static void send_blob(fake_engine *f, struct conn *c, const struct eng_frame *fr)
{
    uint8_t d[32];
    struct buf b;
    const char *bytes = NULL;
    hash_sha256(tok_blob, sizeof tok_blob - 1, d);
    if (fr->n == 32 && !memcmp(d, fr->body, 32))
        bytes = tok_blob;
    hash_sha256(tmpl_blob, sizeof tmpl_blob - 1, d);
    if (fr->n == 32 && !memcmp(d, fr->body, 32))
        bytes = tmpl_blob;
    buf_init(&b, 1u << 16);
    buf_add(&b, fr->body, fr->n);
    buf_str(&b, f->cfg.bad_blob ? "something else" : bytes ? bytes : "");
    send_frame(c, ENG_FR_BLOB, 0, b.data, b.len);
    buf_free(&b);
}

/* ---- requests --------------------------------------------------------------------------------------------- */

static bool command(const char *prompt, const char *name, uint32_t *n)
{
    const char *at = NULL, *p = prompt;
    char word[16];
    snprintf(word, sizeof word, "!%s", name);
    while ((p = strstr(p, word)))
        at = p++;
    if (at && n)
        *n = (uint32_t)strtoul(at + strlen(word), NULL, 10);
    return at != NULL;
}

static void refuse(struct conn *c, uint64_t id, uint32_t code)
{
    struct buf b;
    static const char msg[] = "the fake engine says no";
    buf_init(&b, 4096);
    buf_u32(&b, code);
    buf_blob(&b, msg, sizeof msg - 1);
    send_frame(c, ENG_FR_REFUSED, id, b.data, b.len);
    buf_free(&b);
}

/* Token i's text. */
static void put_token(struct seq *s, uint32_t i)
{
    size_t at = 3 * (size_t)i, left = s->say.len > at ? s->say.len - at : 0;
    if (!s->say.len)
        put_piece(&s->text, s->seed, i);
    else
        buf_add(&s->text, s->say.data + at, left < 3 ? left : 3);
}

static void read_say(struct seq *s, const char *prompt)
{
    const char *p = strstr(prompt, "!say ");
    buf_init(&s->say, 1u << 20);
    for (p = p ? p + 5 : ""; *p && *p != '!'; p++)
        buf_char(&s->say, (char)(*p == '~' ? 0xFF : *p));
    if (s->say.len)
        s->stop_after = (uint32_t)((s->say.len + 2) / 3);
}

static void take(fake_engine *f, int ci, const struct eng_request *r, const char *prompt)
{
    struct seq *s = NULL;
    uint32_t v;
    for (int i = 0; i < SEQS && !s; i++)
        if (!f->seq[i].live)
            s = &f->seq[i];
    assert(s);
    *s = (struct seq){.live = true, .conn = ci, .id = r->id, .seed = fake_seed(&r->sampling), .n_prompt = r->n_ids - r->n_done, .n_out = r->n_done,
                      .max_tokens = r->max_tokens ? r->max_tokens : f->cfg.ctx - (r->n_ids - r->n_done), .sent = r->text_skip,
                      .logprobs = r->logprobs, .top_logprobs = r->top_logprobs,
                      .delay_ns = f->cfg.delay_us * NS_PER_US, .stop_after = UINT32_MAX, .fail_after = UINT32_MAX, .die_after = UINT32_MAX, .mute_after = UINT32_MAX};
    buf_init(&s->text, 1u << 24);
    read_say(s, prompt);
    for (uint32_t i = 0; i < r->n_done; i++)
        put_token(s, i);
    if (command(prompt, "stop", &v))
        s->stop_after = v;
    if (command(prompt, "fail", &v))
        s->fail_after = v;
    if (command(prompt, "die", &v) && !f->counts.deaths)
        s->die_after = v;
    if (command(prompt, "mute", &v) && f->counts.connections == 1)
        s->mute_after = v;
    if (command(prompt, "delay", &v))
        s->delay_ns = v * NS_PER_MS;
    if (command(prompt, "met", &v))
        s->stop_string = v;
    s->hang = command(prompt, "hang", NULL);
    s->next_ns = clock_now_ns();
}

static void on_submit(fake_engine *f, int ci, const struct eng_frame *fr)
{
    struct arena a;
    struct eng_request r;
    struct err e;
    uint32_t v;
    arena_init(&a, 64u << 20);
    if (eng_frame_get_submit(fr, clock_now_ns(), &a, &r, &e)) {
        fprintf(stderr, "fake engine: %s\n", e.msg);
        abort();
    }
    uint32_t n = r.n_ids - r.n_done;
    char *prompt = arena_alloc(&a, n + 1);
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = r.ids[i] > 0 && r.ids[i] < 256 ? (char)r.ids[i] : '?';
    for (uint32_t i = 0; i < r.n_done; i++) /* what it brings back must be what this engine made */
        assert((uint32_t)r.ids[n + i] == 1000 + mix(fake_seed(&r.sampling), i) % 1000);
    pthread_mutex_lock(&f->lock);
    f->counts.submits++;
    f->counts.resumed += r.n_done > 0;
    f->counts.marked += r.markers;
    f->counts.grammars += r.grammar_n > 0;
    pthread_mutex_unlock(&f->lock);
    if (command(prompt, "refuse", &v)) {
        refuse(&f->conn[ci], r.id, v);
    } else if (command(prompt, "busy", &v) && (f->busy_left_for != r.id ? (f->busy_left_for = r.id, f->busy_left = v) : f->busy_left)) {
        f->busy_left--;
        refuse(&f->conn[ci], r.id, ERR_AGAIN);
    } else {
        take(f, ci, &r, prompt);
    }
    arena_free(&a);
}

static struct seq *find(fake_engine *f, int ci, uint64_t id)
{
    for (int i = 0; i < SEQS; i++)
        if (f->seq[i].live && f->seq[i].conn == ci && f->seq[i].id == id)
            return &f->seq[i];
    return NULL;
}

static void done(fake_engine *f, struct seq *s, enum eng_finish finish)
{
    struct buf b;
    struct err err = {0};
    struct eng_usage u = {.prompt_tokens = s->n_prompt, .cached_tokens = 3, .output_tokens = s->n_out, .prefill_ns = 1000000, .decode_ns = 9000000};
    struct eng_event ev = {.type = ENG_EV_DONE, .finish = finish, .stop = finish == ENG_STOP && s->stop_string ? (int32_t)s->stop_string - 1 : -1, .usage = &u};
    if (finish == ENG_FAILED)
        err_set(&err, ERR_IO, "a made-up fault");
    ev.err = finish == ENG_FAILED ? &err : NULL;
    if (finish != ENG_CANCELLED && s->sent < s->text.len) {
        ev.text = s->text.data + s->sent;
        ev.n = s->text.len - s->sent;
    }
    buf_init(&b, 1u << 24);
    eng_frame_put_done(&b, &ev);
    send_frame(&f->conn[s->conn], ENG_FR_DONE, s->id, b.data, b.len);
    buf_free(&b);
    buf_free(&s->text);
    buf_free(&s->say);
    s->live = false;
}

/* One token of one sequence; false: the engine is down. */
static bool step(fake_engine *f, struct seq *s)
{
    struct buf b;
    struct conn *c = &f->conn[s->conn];
    if (!s->started)
        send_frame(c, ENG_FR_STARTED, s->id, NULL, 0);
    s->started = true;
    if (s->n_out >= s->die_after) {
        go_down(f, f->cfg.down_ms);
        return false;
    }
    if (s->n_out >= s->mute_after)
        c->mute = true;
    if (s->n_out >= s->fail_after) {
        done(f, s, ENG_FAILED);
        return true;
    }
    if (s->n_out >= s->stop_after || s->n_out >= s->max_tokens) {
        done(f, s, s->n_out >= s->stop_after ? ENG_STOP : ENG_LENGTH);
        return true;
    }
    int32_t id = (int32_t)(1000 + mix(s->seed, s->n_out) % 1000);
    size_t before = s->text.len;
    put_token(s, s->n_out++);
    size_t out = holds_back(s->n_out) ? before : s->text.len;
    buf_init(&b, 1u << 20);
    struct eng_logprobs lp = {.logprob = -0.5f, .n_top = s->top_logprobs};
    for (uint32_t i = 0; i < s->top_logprobs; i++)
        lp.top[i] = (struct eng_top){i ? 'a' + (int32_t)i : id, -0.5f - (float)i};
    eng_frame_put_tokens(&b, &(struct eng_frame_tokens){.ids = &id, .n = 1, .text = s->text.data + (out > s->sent ? s->sent : out),
                                                        .text_n = out > s->sent ? out - s->sent : 0, .logprobs = s->logprobs ? &lp : NULL});
    send_frame(c, ENG_FR_TOKENS, s->id, b.data, b.len);
    buf_free(&b);
    s->sent = out > s->sent ? out : s->sent;
    s->next_ns += s->delay_ns;
    if (s->n_out >= s->max_tokens && s->stop_after > s->n_out && s->fail_after > s->n_out && s->die_after > s->n_out && !c->mute)
        done(f, s, ENG_LENGTH);
    return true;
}

static void on_frame(fake_engine *f, int ci, const struct eng_frame *fr)
{
    struct seq *s = find(f, ci, fr->request);
    pthread_mutex_lock(&f->lock);
    f->counts.cancels += fr->type == ENG_FR_CANCEL;
    f->counts.pauses += fr->type == ENG_FR_PAUSE && fr->n == 1 && fr->body[0];
    f->counts.resumes += fr->type == ENG_FR_PAUSE && fr->n == 1 && !fr->body[0];
    f->counts.blobs += fr->type == ENG_FR_BLOB_GET;
    pthread_mutex_unlock(&f->lock);
    switch (fr->type) {
    case ENG_FR_HELLO: send_hello(f, &f->conn[ci]); break;
    case ENG_FR_BLOB_GET: send_blob(f, &f->conn[ci], fr); break;
    case ENG_FR_SUBMIT: on_submit(f, ci, fr); break;
    case ENG_FR_PING: send_frame(&f->conn[ci], ENG_FR_PONG, fr->request, fr->body, fr->n); break;
    case ENG_FR_CANCEL:
        if (s)
            done(f, s, ENG_CANCELLED);
        break;
    case ENG_FR_PAUSE:
        if (s) {
            s->paused = fr->body[0];
            s->next_ns = clock_now_ns();
        }
        break;
    default: break;
    }
}

/* ---- the loop --------------------------------------------------------------------------------------------- */

static void do_accept(fake_engine *f)
{
    int fd = accept4(f->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    for (int i = 0; fd >= 0 && i < CONNS; i++)
        if (f->conn[i].fd < 0) {
            f->conn[i] = (struct conn){.fd = fd};
            eng_frame_reader_init(&f->conn[i].reader, 64u << 20);
            buf_init(&f->conn[i].out, 64u << 20);
            pthread_mutex_lock(&f->lock);
            f->counts.connections++;
            pthread_mutex_unlock(&f->lock);
            return;
        }
    if (fd >= 0)
        close(fd);
}

static void do_read(fake_engine *f, int i)
{
    char in[65536];
    struct err e;
    struct eng_frame fr;
    struct conn *c = &f->conn[i];
    ssize_t n = read(c->fd, in, sizeof in);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || eng_frame_feed(&c->reader, in, (size_t)n, &e)) {
        drop(f, i);
        return;
    }
    int got;
    while (c->fd >= 0 && (got = eng_frame_next(&c->reader, &fr, &e)) > 0)
        on_frame(f, i, &fr);
}

enum { BURST = 64 };

static bool steps(fake_engine *f) /* true: there is more to do at once */
{
    uint64_t now = clock_now_ns();
    uint32_t running = 0;
    bool more = false;
    for (int i = 0; i < SEQS && running < f->cfg.seqs; i++) {
        struct seq *s = &f->seq[i];
        if (!s->live || s->hang)
            continue;
        running++;
        for (int k = 0; k < BURST && s->live && !s->paused && now >= s->next_ns; k++)
            if (!step(f, s))
                return false;
        more |= s->live && !s->paused && now >= s->next_ns && f->conn[s->conn].out.len < (1u << 20);
    }
    return more;
}

static void *run(void *arg)
{
    fake_engine *f = arg;
    bool more = false;
    for (;;) {
        struct pollfd p[CONNS + 1] = {{.fd = f->listen_fd, .events = POLLIN}};
        pthread_mutex_lock(&f->lock);
        bool stop = f->stop, down = f->want_down;
        uint32_t ms = f->want_down_ms;
        f->want_down = false;
        f->counts.live = 0;
        for (int i = 0; i < SEQS; i++)
            f->counts.live += f->seq[i].live;
        pthread_mutex_unlock(&f->lock);
        if (stop)
            return NULL;
        if (down)
            go_down(f, ms);
        if (f->listen_fd < 0 && clock_now_ns() >= f->back_ns)
            start_listening(f);
        p[0].fd = f->listen_fd;
        for (int i = 0; i < CONNS; i++)
            p[i + 1] = (struct pollfd){.fd = f->conn[i].fd, .events = (short)(POLLIN | (f->conn[i].out.len ? POLLOUT : 0))};
        poll(p, CONNS + 1, more ? 0 : 1);
        if (p[0].revents)
            do_accept(f);
        for (int i = 0; i < CONNS; i++)
            if (p[i + 1].fd >= 0 && p[i + 1].revents & (POLLIN | POLLHUP | POLLERR) && f->conn[i].fd == p[i + 1].fd)
                do_read(f, i);
        more = steps(f);
        for (int i = 0; i < CONNS; i++)
            do_write(f, i);
    }
}

fake_engine *fake_open(const struct fake_config *c)
{
    fake_engine *f = calloc(1, sizeof *f);
    assert(f);
    f->cfg = *c;
    f->listen_fd = -1;
    f->pid = 100;
    for (int i = 0; i < CONNS; i++)
        f->conn[i].fd = -1;
    pthread_mutex_init(&f->lock, NULL);
    start_listening(f);
    if (pthread_create(&f->thread, NULL, run, f))
        abort();
    return f;
}

void fake_close(fake_engine *f)
{
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    for (int i = 0; i < CONNS; i++)
        drop(f, i);
    if (f->listen_fd >= 0)
        close(f->listen_fd);
    unlink(f->cfg.path);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

void fake_die(fake_engine *f, uint32_t down_ms)
{
    pthread_mutex_lock(&f->lock);
    f->want_down = true;
    f->want_down_ms = down_ms;
    pthread_mutex_unlock(&f->lock);
}

struct fake_counts fake_counts(fake_engine *f)
{
    pthread_mutex_lock(&f->lock);
    struct fake_counts c = f->counts;
    pthread_mutex_unlock(&f->lock);
    return c;
}
