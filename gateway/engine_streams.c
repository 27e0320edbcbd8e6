/* Streams: submit, route frames, and carry what runs over to the next connection.
 *
 * Sent again, a stream carries one output token less than it has: the engine makes that token a second time, and with it
 * whatever end it may have led to (end of sequence, a stop string, the last token asked for), whose DONE may have been lost.
 * Its text was delivered already and is skipped by byte count. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/engine_client_internal.h"

#define AGAIN_NS (200 * NS_PER_MS) /* between two tries with an engine that is full */
#define SUBMIT_BYTES_MAX (256u << 20)
#define SUBMIT_ROOM 512 /* of what is neither ids nor grammar, mostly */
#define FRAME_MEMORY_KEPT 65536

/* ---- the object ------------------------------------------------------------------------------------------- */

/* The lock is held in these three. */
static struct gw_stream *find(struct gw_engine *g, uint64_t id)
{
    struct gw_stream *s = g->bucket[id % STREAM_BUCKETS];
    while (s && s->id != id)
        s = s->next_in_bucket;
    return s;
}

static void link_in(struct gw_engine *g, struct gw_stream *s)
{
    struct gw_stream **b = &g->bucket[s->id % STREAM_BUCKETS];
    s->next_in_bucket = *b;
    *b = s;
    s->prev = g->last;
    if (g->last)
        g->last->next = s;
    else
        g->first = s;
    g->last = s;
    g->n_unsent++;
}

static void set_sent(struct gw_engine *g, struct gw_stream *s, bool sent)
{
    if (s->sent && !sent)
        g->n_unsent++;
    else if (!s->sent && sent)
        g->n_unsent--;
    s->sent = sent;
}

static void unlink_out(struct gw_engine *g, struct gw_stream *s)
{
    struct gw_stream **b = &g->bucket[s->id % STREAM_BUCKETS];
    pthread_mutex_lock(&g->lock);
    set_sent(g, s, true);
    while (*b != s)
        b = &(*b)->next_in_bucket;
    *b = s->next_in_bucket;
    *(s->prev ? &s->prev->next : &g->first) = s->next;
    *(s->next ? &s->next->prev : &g->last) = s->prev;
    pthread_mutex_unlock(&g->lock);
}

/* Client's thread: the first unsent stream after s, or of all. */
static struct gw_stream *next_unsent(struct gw_engine *g, struct gw_stream *s)
{
    pthread_mutex_lock(&g->lock);
    for (s = s ? s->next : g->n_unsent ? g->first : NULL; s && s->sent;)
        s = s->next;
    pthread_mutex_unlock(&g->lock);
    return s;
}

static struct gw_stream *find_any(struct gw_engine *g, uint64_t id, bool *sent)
{
    pthread_mutex_lock(&g->lock);
    struct gw_stream *s = find(g, id);
    *sent = s && s->sent;
    pthread_mutex_unlock(&g->lock);
    return s;
}

static void stream_free(struct gw_stream *s)
{
    if (!s)
        return;
    free((void *)s->req.ids);
    gw_served_unref(s->served);
    free(s);
}

/* A stream and all its request points to, except for ids, lie in one block: it is sent again when the engine dies. `at` moves through
 * the block; every piece begins at a multiple of 8. */
static size_t place(size_t n) { return (n + 7) & ~(size_t)7; }

static size_t stream_bytes(const struct eng_request *r)
{
    size_t n = place(sizeof(struct gw_stream)) + place(r->n_stops * sizeof(char *)) + place(r->n_stops * sizeof(uint32_t)) + place(r->n_bias * sizeof *r->bias);
    for (uint32_t i = 0; i < r->n_stops; i++)
        n += place(r->stop_lens[i] + (size_t)1);
    n += r->grammar ? place(r->grammar_n + (size_t)1) : 0;
    n += r->grammar_trigger ? place(r->grammar_trigger_n + (size_t)1) : 0;
    return n + (r->tenant ? place(strlen(r->tenant) + 1) : 0);
}

static void *put_copy(char **at, const void *p, size_t n, size_t room)
{
    void *to = *at;
    if (n)
        memcpy(to, p, n);
    *at += place(room);
    return to;
}

/* The block was zeroed, so that texts end in NUL. */
static const char *put_text(char **at, const char *p, size_t n) { return p ? put_copy(at, p, n, n + 1) : NULL; }

static struct gw_stream *stream_new(const struct eng_request *r)
{
    struct gw_stream *s = calloc(1, stream_bytes(r));
    uint32_t cap = r->n_ids + 64;
    int32_t *ids = malloc(cap * sizeof *ids);
    if (!s || !ids) {
        free(s);
        free(ids);
        return NULL;
    }
    char *at = (char *)s + place(sizeof *s);
    const char **stops = put_copy(&at, NULL, 0, r->n_stops * sizeof *stops);
    s->req = *r;
    s->req.stop_lens = put_copy(&at, r->stop_lens, r->n_stops * sizeof(uint32_t), r->n_stops * sizeof(uint32_t));
    s->req.bias = put_copy(&at, r->bias, r->n_bias * sizeof *r->bias, r->n_bias * sizeof *r->bias);
    for (uint32_t i = 0; i < r->n_stops; i++)
        stops[i] = put_text(&at, r->stops[i], r->stop_lens[i]);
    s->req.stops = stops;
    s->req.grammar = put_text(&at, r->grammar, r->grammar_n);
    s->req.grammar_trigger = put_text(&at, r->grammar_trigger, r->grammar_trigger_n);
    s->req.tenant = put_text(&at, r->tenant, r->tenant ? strlen(r->tenant) : 0);
    s->n_prompt = r->n_ids;
    s->ids_cap = cap;
    s->req.ids = memcpy(ids, r->ids, r->n_ids * sizeof *ids);
    return s;
}

/* Takes the stream out and tells its owner: the one place where a stream ends. */
static void end_stream(struct gw_engine *g, struct gw_stream *s, const struct gw_stream_event *ev)
{
    unlink_out(g, s);
    atomic_fetch_sub(&g->n_streams, 1); /* first, so that its owner may submit the next one at once */
    s->f(s->ctx, ev);
    stream_free(s);
}

static void lose(struct gw_engine *g, struct gw_stream *s, int code, const char *why)
{
    struct gw_stream_event ev = {.type = GW_ST_LOST};
    err_set(&ev.err, code, "%s", why);
    atomic_fetch_add(&g->lost, 1);
    end_stream(g, s, &ev);
}

/* ---- from other threads ----------------------------------------------------------------------------------- */

static int put_command(struct gw_engine *g, const struct command *c, struct err *e)
{
    struct command *m = malloc(sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "command to the engine");
    *m = *c;
    m->next = NULL;
    pthread_mutex_lock(&g->lock);
    bool closing = g->closing, first = g->inbox == NULL;
    if (!closing) {
        *g->inbox_tail = m;
        g->inbox_tail = &m->next;
    }
    pthread_mutex_unlock(&g->lock);
    if (closing) {
        free(m);
        return err_set(e, ERR_CLOSED, "the gateway is stopping");
    }
    if (first)
        gw_line_wake(g);
    return ERR_OK;
}

static bool put_frame(const struct gw_stream *s, struct buf *frames);

int gw_engine_submit(gw_engine *g, const struct eng_request *r, struct gw_served *served, bool patient, gw_stream_fn f, void *ctx, uint64_t *id, struct err *e)
{
    struct buf frames;
    int rc = ERR_OK;
    if (atomic_fetch_add(&g->n_streams, 1) >= g->cfg.streams_max) {
        atomic_fetch_sub(&g->n_streams, 1);
        return err_set(e, ERR_AGAIN, "%zu requests are running or waiting, the most allowed", g->cfg.streams_max);
    }
    struct gw_stream *s = stream_new(r);
    buf_init(&frames, SUBMIT_BYTES_MAX);
    if (!s) {
        atomic_fetch_sub(&g->n_streams, 1);
        return err_set(e, ERR_NOMEM, "request of %u tokens", r->n_ids);
    }
    s->id = s->req.id = atomic_fetch_add(&g->next_id, 1);
    s->served = gw_served_ref(served);
    s->patient = patient;
    s->f = f;
    s->ctx = ctx;
    s->waiting_since_ns = clock_now_ns();
    *id = s->id; /* before it is sent: events may come at once */
    if (!put_frame(s, &frames))
        rc = err_set(e, ERR_NOMEM, "request of %u tokens", r->n_ids);
    pthread_mutex_lock(&g->lock);
    if (!rc && g->closing)
        rc = err_set(e, ERR_CLOSED, "the gateway is stopping");
    if (!rc) { /* what cannot be sent now is sent when the line is up, by the client's thread */
        link_in(g, s);
        if (g->state == LINE_UP && !memcmp(served->d.identity, g->d.identity, HASH_BYTES) && gw_line_put(g, &frames)) {
            set_sent(g, s, true);
            gw_line_flush(g);
        }
    }
    pthread_mutex_unlock(&g->lock);
    buf_free(&frames);
    if (rc) {
        atomic_fetch_sub(&g->n_streams, 1);
        stream_free(s);
    }
    return rc;
}

/* Cancel and pause have no one to report to: without memory for the command a cancelled stream runs to its own end. */
void gw_engine_cancel(gw_engine *g, uint64_t id)
{
    put_command(g, &(struct command){.type = CMD_CANCEL, .id = id}, NULL);
}

void gw_engine_pause(gw_engine *g, uint64_t id, bool paused)
{
    put_command(g, &(struct command){.type = CMD_PAUSE, .id = id, .on = paused}, NULL);
}

/* ---- sending ---------------------------------------------------------------------------------------------- */

static void send_pause(struct gw_engine *g, const struct gw_stream *s)
{
    uint8_t on = s->paused;
    gw_line_send(g, ENG_FR_PAUSE, s->id, &on, 1);
}

/* SUBMIT of what the stream is by now. */
static bool put_frame(const struct gw_stream *s, struct buf *frames)
{
    struct eng_request r = s->req;
    struct buf b;
    r.n_ids = s->n_prompt + s->req.n_done;
    buf_init(&b, SUBMIT_BYTES_MAX);
    buf_reserve(&b, SUBMIT_ROOM + (size_t)r.n_ids * sizeof *r.ids + r.grammar_n);
    bool ok = eng_frame_put_submit(&b, &r, clock_now_ns()) && eng_frame_put(frames, ENG_FR_SUBMIT, s->id, b.data, b.len);
    buf_free(&b);
    return ok;
}

/* Client's thread: one that the engine does not have. */
static void send_stream(struct gw_engine *g, struct gw_stream *s)
{
    struct buf frames;
    uint32_t n_out = s->req.n_ids - s->n_prompt;

    if (memcmp(s->served->d.identity, g->d.identity, HASH_BYTES)) {
        lose(g, s, ERR_UNSUPPORTED, "the engine came back with another model or another arithmetic");
        return;
    }
    s->req.n_done = n_out ? n_out - 1 : 0; /* see the head of this file */
    s->regenerated = n_out ? 1 : 0;
    s->req.text_skip = s->text_bytes;
    buf_init(&frames, SUBMIT_BYTES_MAX);
    bool ok = put_frame(s, &frames);
    pthread_mutex_lock(&g->lock);
    if (ok && (ok = gw_line_put(g, &frames))) {
        set_sent(g, s, true);
        gw_line_flush(g);
    }
    pthread_mutex_unlock(&g->lock);
    buf_free(&frames);
    if (!ok) {
        lose(g, s, ERR_NOMEM, "out of memory while sending the request to the engine");
        return;
    }
    s->retry_at_ns = 0;
    if (s->accepted)
        atomic_fetch_add(&g->resubmitted, 1);
    if (s->paused)
        send_pause(g, s);
}

static void do_cancel(struct gw_engine *g, uint64_t id)
{
    bool sent;
    struct gw_stream *s = find_any(g, id, &sent);
    if (!s)
        return;
    if (sent && g->state == LINE_UP)
        gw_line_send(g, ENG_FR_CANCEL, id, NULL, 0);
    struct gw_stream_event ev = {.type = GW_ST_DONE, .finish = ENG_CANCELLED, .stop = -1};
    ev.usage.prompt_tokens = s->n_prompt;
    ev.usage.output_tokens = s->req.n_ids - s->n_prompt;
    end_stream(g, s, &ev);
}

static void do_pause(struct gw_engine *g, uint64_t id, bool on)
{
    bool sent;
    struct gw_stream *s = find_any(g, id, &sent);
    if (!s || s->paused == on)
        return;
    s->paused = on;
    if (sent && g->state == LINE_UP)
        send_pause(g, s);
}

void gw_streams_commands(struct gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    struct command *c = g->inbox;
    g->inbox = NULL;
    g->inbox_tail = &g->inbox;
    pthread_mutex_unlock(&g->lock);
    while (c) {
        struct command *next = c->next;
        if (c->type == CMD_CANCEL)
            do_cancel(g, c->id);
        else
            do_pause(g, c->id, c->on);
        free(c);
        c = next;
    }
}

/* ---- receiving -------------------------------------------------------------------------------------------- */

static bool keep_ids(struct gw_stream *s, const int32_t *ids, uint32_t n)
{
    if (n > s->ids_cap - s->req.n_ids) {
        uint64_t cap = 2ull * s->ids_cap + n;
        if (cap > SUBMIT_BYTES_MAX / sizeof *ids)
            return false;
        int32_t *p = realloc((void *)s->req.ids, (size_t)cap * sizeof *p);
        if (!p)
            return false;
        s->req.ids = p;
        s->ids_cap = (uint32_t)cap;
    }
    memcpy((int32_t *)s->req.ids + s->req.n_ids, ids, n * sizeof *ids);
    s->req.n_ids += n;
    return true;
}

/* Tokens made a second time must be the ones we have: anything else means the bits differ and the text would not fit together. */
static bool same_again(struct gw_stream *s, struct eng_frame_tokens *t)
{
    while (s->regenerated && t->n) {
        if (*t->ids != s->req.ids[s->req.n_ids - s->regenerated])
            return false;
        s->regenerated--;
        t->ids++;
        t->n--;
        if (t->logprobs)
            t->logprobs++;
    }
    return true;
}

static void on_started(struct gw_stream *s)
{
    if (s->started)
        return;
    s->started = true;
    s->f(s->ctx, &(struct gw_stream_event){.type = GW_ST_STARTED});
}

static void on_tokens(struct gw_engine *g, struct gw_stream *s, const struct eng_frame *f)
{
    struct gw_stream_event ev = {.type = GW_ST_TOKENS};
    struct err e = {.msg = "logprobs were asked for and are missing"};
    struct eng_frame_tokens t;

    if (eng_frame_get_tokens(f, &g->frame_mem, &t, &e) || (s->req.logprobs && t.n && !t.logprobs)) {
        log_error("engine: tokens of request %llu: %s", (unsigned long long)s->id, e.msg);
        gw_line_send(g, ENG_FR_CANCEL, s->id, NULL, 0);
        lose(g, s, ERR_FORMAT, "the engine sent tokens that cannot be read");
    } else if (!same_again(s, &t) || !keep_ids(s, t.ids, t.n)) {
        gw_line_send(g, ENG_FR_CANCEL, s->id, NULL, 0);
        lose(g, s, ERR_FORMAT, "the engine did not go on where it had stopped");
    } else {
        on_started(s);
        ev.n_tokens = t.n;
        ev.ids = t.ids;
        ev.logprobs = t.logprobs;
        ev.text = t.text;
        ev.n = t.text_n;
        s->text_bytes += ev.n;
        if (ev.n_tokens || ev.n)
            s->f(s->ctx, &ev);
    }
    if (g->frame_mem.used > FRAME_MEMORY_KEPT)
        arena_free(&g->frame_mem);
    else
        arena_reset(&g->frame_mem);
}

static void on_done(struct gw_engine *g, struct gw_stream *s, const struct eng_frame *f)
{
    struct gw_stream_event ev = {.type = GW_ST_DONE};
    struct eng_event done;
    struct err e;
    if (eng_frame_get_done(f, &done, &ev.usage, &ev.err, &e)) {
        log_error("engine: end of request %llu: %s", (unsigned long long)s->id, e.msg);
        lose(g, s, ERR_FORMAT, "the engine sent an end that cannot be read");
        return;
    }
    ev.text = done.text;
    ev.n = done.n;
    ev.finish = done.finish;
    ev.stop = done.stop;
    end_stream(g, s, &ev);
}

static void on_refused(struct gw_engine *g, struct gw_stream *s, const struct eng_frame *f)
{
    struct gw_stream_event ev = {.type = GW_ST_REFUSED};
    struct rd r = rd_of(f->body, f->n);
    uint32_t code = rd_u32(&r);
    size_t n = 0;
    const char *msg = rd_blob(&r, &n);
    if (r.bad || n > INT32_MAX) {
        lose(g, s, ERR_FORMAT, "the engine sent a refusal that cannot be read");
        return;
    }
    if ((code == ERR_AGAIN || code == ERR_CLOSED) && (s->patient || s->accepted)) {
        pthread_mutex_lock(&g->lock);
        set_sent(g, s, false);
        pthread_mutex_unlock(&g->lock);
        s->retry_at_ns = clock_now_ns() + AGAIN_NS;
        if (!s->waiting_since_ns)
            s->waiting_since_ns = clock_now_ns();
        return;
    }
    err_set(&ev.err, code ? (int)code : ERR_FORMAT, "%.*s", (int)n, msg);
    end_stream(g, s, &ev);
}

void gw_streams_frame(struct gw_engine *g, const struct eng_frame *f)
{
    bool sent;
    struct gw_stream *s = find_any(g, f->request, &sent);
    if (!sent)
        return; /* cancelled meanwhile */
    if (f->type == ENG_FR_REFUSED) {
        on_refused(g, s, f);
        return;
    }
    s->accepted = true;
    s->waiting_since_ns = 0;
    if (f->type == ENG_FR_STARTED)
        on_started(s);
    else if (f->type == ENG_FR_TOKENS)
        on_tokens(g, s, f);
    else if (f->type == ENG_FR_DONE)
        on_done(g, s, f);
}

/* ---- the line's life -------------------------------------------------------------------------------------- */

/* A stream that is handled here may end and be freed: its follower is looked up first. Followers are freed by nobody else. */
void gw_streams_line_up(struct gw_engine *g)
{
    for (struct gw_stream *s = next_unsent(g, NULL), *next; s && g->state == LINE_UP; s = next) {
        next = next_unsent(g, s);
        send_stream(g, s);
    }
}

void gw_streams_line_down(struct gw_engine *g)
{
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&g->lock);
    for (struct gw_stream *s = g->first; s; s = s->next) {
        if (s->sent) {
            s->accepted = true; /* a second sending is a resubmission: never refused for being full */
            s->waiting_since_ns = now;
            set_sent(g, s, false);
        }
        s->retry_at_ns = 0;
    }
    pthread_mutex_unlock(&g->lock);
}

void gw_streams_tick(struct gw_engine *g, uint64_t now_ns)
{
    for (struct gw_stream *s = next_unsent(g, NULL), *next; s; s = next) {
        next = next_unsent(g, s);
        if (s->req.deadline_ns && now_ns >= s->req.deadline_ns)
            lose(g, s, ERR_TIMEOUT, "the request's deadline passed while no engine was there");
        else if (s->waiting_since_ns && now_ns > s->waiting_since_ns && now_ns - s->waiting_since_ns >= g->cfg.lost_ms * NS_PER_MS)
            g->state == LINE_UP ? lose(g, s, ERR_AGAIN, "the engine stayed full for too long")
                                : lose(g, s, ERR_CLOSED, "the engine went away and did not come back in time");
        else if (g->state == LINE_UP && now_ns >= s->retry_at_ns)
            send_stream(g, s);
    }
}

void gw_streams_end_all(struct gw_engine *g, const char *why)
{
    for (;;) {
        pthread_mutex_lock(&g->lock);
        struct gw_stream *s = g->first;
        pthread_mutex_unlock(&g->lock);
        if (!s)
            break;
        lose(g, s, ERR_CLOSED, why);
    }
}
