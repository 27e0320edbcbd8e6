/* Requests in a heap, ordered by when they are due; the timer thread takes those that are, speaks for them without the lock, and puts
 * them back. A request that is spoken for (busy) belongs to the timer thread; others change its flags under the lock alone.
 *
 *   submit -> heap -> busy -> heap ... -> busy, end -> freed by the timer thread
 *               ^ pause: out of the heap (or in it for its deadline alone); cancel: due at once */
#include "engine/mock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "engine/mock_internal.h"
#include "engine/stops.h"

enum { BATCH = 128 };
#define NEVER UINT64_MAX
#define NOWHERE UINT32_MAX
static const char tmpl[] = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
                           "{% if add_generation_prompt %}assistant: {% endif %}";

struct seq {
    uint64_t id, due, key, turn;   /* key: when to look at it; turn: equal keys are served in the order of entry */
    uint32_t heap_at;
    bool busy, cancel, paused, started, ended, ignore_eos, logprobs;
    uint32_t n_prompt, n_out, max_tokens, min_tokens, top_logprobs;
    uint64_t submit_ns, first_ns, deadline_ns, text_skip; /* skip: of what comes, so much was delivered by an earlier life */
    struct eng_stops *stops;       /* NULL: none; then nothing is ever held back */
    struct buf pending;            /* text that has not gone out */
    struct seq *next;              /* in its bucket */
};
struct eng_mock {
    struct mock_text text;
    char *id, *aliases;
    uint64_t interval_ns;
    bool together;
    uint32_t ctx, seqs;
    eng_event_fn event;
    void *ctx_event;
    pthread_mutex_t lock;          /* guards the rest */
    pthread_cond_t wake;
    pthread_t thread;
    bool thread_on, stop, draining;
    struct seq **heap; uint32_t n_heap, n_live;
    struct seq **bucket; uint32_t mask;
    uint64_t turns;
    struct eng_stats stats;
};

/* ---- the heap ------------------------------------------------------------------------------------------------- */

static bool before(const struct seq *a, const struct seq *b) { return a->key != b->key ? a->key < b->key : a->turn < b->turn; }

static void place(eng_mock *m, struct seq *s, uint32_t at)
{
    m->heap[at] = s;
    s->heap_at = at;
}

static void sift(eng_mock *m, struct seq *s, uint32_t at)
{
    for (uint32_t up; at && before(s, m->heap[up = (at - 1) / 2]); at = up)
        place(m, m->heap[up], at);
    for (uint32_t child; (child = 2 * at + 1) < m->n_heap; at = child) {
        if (child + 1 < m->n_heap && before(m->heap[child + 1], m->heap[child]))
            child++;
        if (!before(m->heap[child], s))
            break;
        place(m, m->heap[child], at);
    }
    place(m, s, at);
}

static void heap_drop(eng_mock *m, struct seq *s)
{
    uint32_t at = s->heap_at;
    s->heap_at = NOWHERE;
    struct seq *last = m->heap[--m->n_heap];
    if (last != s)
        sift(m, last, at);
}

/* Where it belongs now. Wakes the timer thread when it is the next one. */
static void enter_heap(eng_mock *m, struct seq *s)
{
    uint64_t due = s->paused ? NEVER : s->due;
    if (s->deadline_ns && s->deadline_ns < due)
        due = s->deadline_ns;
    s->key = s->cancel ? 0 : due;
    s->turn = m->turns++;
    if (s->heap_at != NOWHERE)
        heap_drop(m, s);
    if (s->key == NEVER)
        return;
    sift(m, s, m->n_heap++);
    if (s->heap_at == 0)
        pthread_cond_signal(&m->wake);
}

/* ---- requests by id ------------------------------------------------------------------------------------------- */

static struct seq **find(eng_mock *m, uint64_t id)
{
    struct seq **p = &m->bucket[id & m->mask];
    while (*p && (*p)->id != id)
        p = &(*p)->next;
    return p;
}

static void seq_free(struct seq *s)
{
    free(s->stops);
    buf_free(&s->pending);
    free(s);
}

static uint64_t first_due(const eng_mock *m, uint64_t now)
{
    return m->together && m->interval_ns ? (now / m->interval_ns + 1) * m->interval_ns : now;
}

static void skip_sent(struct seq *s)
{
    size_t k = s->text_skip < s->pending.len ? (size_t)s->text_skip : s->pending.len;
    buf_consume(&s->pending, k);
    s->text_skip -= k;
}

/* What an earlier life has said is made again; what of it was held back waits in pending. More may have been said than it knows. */
static bool resume(eng_mock *m, struct seq *s, const struct eng_request *r, uint64_t now)
{
    for (uint32_t i = 0; i < r->n_done; i++)
        mock_text_put(&m->text, i, now, &s->pending);
    s->text_skip = r->text_skip;
    skip_sent(s);
    return !s->pending.failed;
}

static int seq_new(struct seq **out, eng_mock *m, const struct eng_request *r, struct err *e)
{
    uint32_t n_prompt = r->n_ids - r->n_done;
    if (r->n_done > r->n_ids || n_prompt >= m->ctx || r->n_done >= m->ctx - n_prompt)
        return err_set(e, ERR_LIMIT, "the prompt has %u tokens, the context %u", n_prompt, m->ctx);
    if (r->grammar && !r->grammar_trigger) /* a trigger never comes */
        return err_set(e, ERR_UNSUPPORTED, "grammar: the answers of an engine without a model are fixed");
    if (r->n_stops > ENG_STOPS_MAX)
        return err_set(e, ERR_INVALID, "%u stop strings, at most %d", r->n_stops, ENG_STOPS_MAX);
    struct seq *s = calloc(1, sizeof *s);
    if (!s || (r->n_stops && !(s->stops = calloc(1, sizeof *s->stops)))) {
        free(s);
        return err_set(e, ERR_NOMEM, "request");
    }
    buf_init(&s->pending, 64u << 20);
    s->id = r->id;
    s->heap_at = NOWHERE;
    s->n_prompt = n_prompt;
    s->n_out = r->n_done;
    s->max_tokens = r->max_tokens && r->max_tokens < m->ctx - n_prompt ? r->max_tokens : m->ctx - n_prompt;
    s->min_tokens = r->min_tokens;
    s->ignore_eos = r->ignore_eos;
    s->logprobs = r->logprobs;
    s->top_logprobs = r->top_logprobs;
    s->deadline_ns = r->deadline_ns;
    s->submit_ns = clock_now_ns();
    s->due = first_due(m, s->submit_ns);
    bool ok = resume(m, s, r, s->submit_ns);
    for (uint32_t i = 0; ok && i < r->n_stops; i++) {
        ok = r->stop_lens[i] && r->stop_lens[i] <= ENG_STOP_LEN_MAX;
        s->stops->len[s->stops->n] = ok ? r->stop_lens[i] : 0;
        memcpy(s->stops->text[s->stops->n++], r->stops[i], ok ? r->stop_lens[i] : 0);
    }
    if (!ok) {
        seq_free(s);
        return err_set(e, ERR_INVALID, "expected stop strings of 1 to %d bytes and at most 64 MiB of earlier text", ENG_STOP_LEN_MAX);
    }
    *out = s;
    return ERR_OK;
}

int eng_mock_submit(eng_mock *m, const struct eng_request *r, struct err *e)
{
    struct seq *s = NULL;
    int rc = seq_new(&s, m, r, e);
    if (rc || !s)
        return rc;
    pthread_mutex_lock(&m->lock);
    struct seq **at = find(m, s->id);
    if (m->draining || m->stop)
        rc = err_set(e, ERR_CLOSED, "the engine is shutting down");
    else if (m->n_live >= m->seqs)
        rc = err_set(e, ERR_AGAIN, "the engine is full: %u requests are under way", m->n_live);
    else if (*at)
        rc = err_set(e, ERR_INVALID, "request id %llu is in use", (unsigned long long)s->id);
    if (!rc) {
        *at = s;
        m->n_live++;
        m->stats.requests++;
        m->stats.tokens_in += s->n_prompt;
        enter_heap(m, s);
    }
    pthread_mutex_unlock(&m->lock);
    if (rc)
        seq_free(s);
    return rc;
}

void eng_mock_cancel(eng_mock *m, uint64_t id)
{
    pthread_mutex_lock(&m->lock);
    struct seq *s = *find(m, id);
    if (s) {
        s->cancel = true;
        if (!s->busy)
            enter_heap(m, s);
    }
    pthread_mutex_unlock(&m->lock);
}

void eng_mock_pause(eng_mock *m, uint64_t id, bool paused)
{
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&m->lock);
    struct seq *s = *find(m, id);
    if (s && s->paused != paused) {
        s->paused = paused;
        if (!paused && !s->busy && s->due < now) /* what it did not say meanwhile is not made up for */
            s->due = first_due(m, now);
        if (!s->busy)
            enter_heap(m, s);
    }
    pthread_mutex_unlock(&m->lock);
}

void eng_mock_drain(eng_mock *m)
{
    pthread_mutex_lock(&m->lock);
    m->draining = true;
    pthread_mutex_unlock(&m->lock);
}

void eng_mock_stats(eng_mock *m, struct eng_stats *s)
{
    pthread_mutex_lock(&m->lock);
    *s = m->stats;
    s->running = m->n_live;
    s->seqs_max = m->seqs;
    pthread_mutex_unlock(&m->lock);
}

/* ---- the timer thread ------------------------------------------------------------------------------------------ */

static void say_done(eng_mock *m, struct seq *s, enum eng_finish f, int32_t stop, size_t ready, const struct err *why, uint64_t now)
{
    struct eng_usage u = {.prompt_tokens = s->n_prompt, .output_tokens = s->n_out, .prefill_ns = (s->first_ns ? s->first_ns : now) - s->submit_ns,
                          .decode_ns = s->first_ns ? now - s->first_ns : 0};
    struct eng_event ev = {.type = ENG_EV_DONE, .id = s->id, .n_out = s->n_out, .text = ready ? s->pending.data : "",
                           .n = ready, .stop = stop, .finish = f, .usage = &u, .err = why};
    s->ended = true;
    m->event(m->ctx_event, &ev);
}

/* One token; the text that may leave goes with it. */
static void say_token(eng_mock *m, struct seq *s, uint64_t now)
{
    const struct mock_text *x = &m->text;
    uint32_t i = s->n_out++;
    size_t ready;
    uint32_t which;
    mock_text_put(x, i, m->interval_ns ? s->due : now, &s->pending);
    skip_sent(s);
    ready = s->pending.len;
    bool stopped = s->stops && eng_stops_scan(s->stops, s->pending.data, s->pending.len, &ready, &which);
    struct eng_event ev = {.type = ENG_EV_TOKEN, .id = s->id, .token = x->t[i % x->n_t].id, .n_out = s->n_out, .text = s->pending.data, .n = ready};
    struct eng_logprobs sure = {.logprob = 0, .n_top = s->top_logprobs ? 1 : 0, .top = {{ev.token, 0}}}; /* it could not have said anything else */
    if (s->logprobs)
        ev.logprobs = &sure;
    if (!s->first_ns)
        s->first_ns = now;
    m->event(m->ctx_event, &ev);
    buf_consume(&s->pending, ready);
    s->due = m->interval_ns ? s->due + m->interval_ns : now;
    if (stopped)
        say_done(m, s, ENG_STOP, (int32_t)which, 0, NULL, now);
    else if (s->n_out >= s->max_tokens)
        say_done(m, s, ENG_LENGTH, -1, s->pending.len, NULL, now);
    else if (s->n_out % x->n_t == 0 && !s->ignore_eos && s->n_out >= s->min_tokens)
        say_done(m, s, ENG_STOP, -1, s->pending.len, NULL, now);
}

static void speak(eng_mock *m, struct seq *s, bool cancel, uint64_t now)
{
    struct err why;
    if (cancel || s->pending.failed) {
        if (!cancel)
            err_set(&why, ERR_NOMEM, "mock: %zu bytes of text wait", s->pending.len);
        say_done(m, s, cancel ? ENG_CANCELLED : ENG_FAILED, -1, 0, cancel ? NULL : &why, now);
        return;
    }
    if (s->deadline_ns && now >= s->deadline_ns) {
        say_done(m, s, ENG_DEADLINE, -1, s->pending.len, NULL, now);
        return;
    }
    if (!s->started) {
        struct eng_event ev = {.type = ENG_EV_STARTED, .id = s->id};
        s->started = true;
        m->event(m->ctx_event, &ev);
    }
    if (s->n_out >= s->max_tokens) /* it came back with all it may say */
        say_done(m, s, ENG_LENGTH, -1, s->pending.len, NULL, now);
    else
        say_token(m, s, now);
}

static void put_back(eng_mock *m, struct seq *s, uint32_t n_before)
{
    m->stats.tokens_out += s->n_out - n_before;
    s->busy = false;
    if (!s->ended) {
        enter_heap(m, s);
        return;
    }
    struct seq **p = find(m, s->id);
    *p = s->next;
    m->n_live--;
    seq_free(s);
}

/* With the lock held: those that are due, at most a batch, so that submits and cancels get a turn. */
static void turn(eng_mock *m, uint64_t now)
{
    struct { struct seq *s; uint32_t n_out; bool cancel; } b[BATCH];
    uint32_t n = 0;
    for (; n < BATCH && m->n_heap && m->heap[0]->key <= now; n++) {
        struct seq *s = m->heap[0];
        heap_drop(m, s);
        s->busy = true;
        b[n].s = s;
        b[n].n_out = s->n_out;
        b[n].cancel = s->cancel;
    }
    pthread_mutex_unlock(&m->lock);
    for (uint32_t i = 0; i < n; i++)
        speak(m, b[i].s, b[i].cancel, now);
    uint64_t took = clock_now_ns() - now;
    pthread_mutex_lock(&m->lock);
    m->stats.steps++;
    m->stats.step_ns += took;
    for (uint32_t i = 0; i < n; i++)
        put_back(m, b[i].s, b[i].n_out);
}

static void *run(void *ctx)
{
    eng_mock *m = ctx;
    prctl(PR_SET_TIMERSLACK, 1000UL); /* ns; the default of 50 us would show in every delay */
    pthread_mutex_lock(&m->lock);
    while (!m->stop || m->n_live) {
        uint64_t now = clock_now_ns();
        if (m->n_heap && m->heap[0]->key <= now) {
            turn(m, now);
        } else if (m->n_heap) {
            uint64_t t = m->heap[0]->key;
            struct timespec ts = {.tv_sec = (time_t)(t / NS_PER_S), .tv_nsec = (long)(t % NS_PER_S)};
            pthread_cond_timedwait(&m->wake, &m->lock, &ts);
        } else {
            pthread_cond_wait(&m->wake, &m->lock);
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the front ------------------------------------------------------------------------------------------------- */

static int open_tables(eng_mock *m, struct err *e)
{
    m->mask = 63;
    while (m->mask < m->seqs)
        m->mask = 2 * m->mask + 1;
    m->heap = calloc(m->seqs, sizeof(struct seq *));
    m->bucket = calloc((size_t)m->mask + 1, sizeof(struct seq *));
    return m->heap && m->bucket ? ERR_OK : err_set(e, ERR_NOMEM, "mock: %u requests", m->seqs);
}

static bool copy_names(eng_mock *m, const char *list)
{
    size_t first = strcspn(list, ",");
    m->id = first ? strndup(list, first) : strdup("mock");
    m->aliases = strdup(list[first] ? list + first + 1 : "");
    return m->id && m->aliases;
}

int eng_mock_open(eng_mock **out, const struct eng_mock_config *c, eng_event_fn f, void *ctx, struct err *e)
{
    int rc;
    *out = NULL;
    eng_mock *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "mock engine");
    pthread_mutex_init(&m->lock, NULL);
    clock_cond_init(&m->wake);
    m->ctx = c->ctx ? c->ctx : ENG_MOCK_CTX;
    m->seqs = c->seqs ? c->seqs : ENG_MOCK_SEQS;
    m->interval_ns = c->rate ? NS_PER_S / c->rate : 0;
    m->together = c->together;
    m->event = f;
    m->ctx_event = ctx;
    if ((rc = mock_text_open(&m->text, c->text, e)) || (rc = open_tables(m, e)))
        goto out;
    if (!copy_names(m, c->id ? c->id : "mock") || pthread_create(&m->thread, NULL, run, m)) {
        rc = err_set(e, ERR_NOMEM, "mock engine: its thread");
        goto out;
    }
    m->thread_on = true;
    *out = m;
    m = NULL;
out:
    eng_mock_close(m);
    return rc;
}

void eng_mock_close(eng_mock *m)
{
    if (!m)
        return;
    if (m->thread_on) {
        pthread_mutex_lock(&m->lock);
        m->stop = true;
        for (uint32_t i = 0; i <= m->mask; i++)
            for (struct seq *s = m->bucket[i]; s; s = s->next) {
                s->cancel = true;
                if (!s->busy)
                    enter_heap(m, s);
            }
        pthread_cond_signal(&m->wake);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    mock_text_close(&m->text);
    free(m->id);
    free(m->aliases);
    free(m->heap);
    free(m->bucket);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static void put_digest(struct buf *b, const char *key, const void *p, size_t n)
{
    uint8_t d[HASH_BYTES];
    char hex[2 * HASH_BYTES + 1];
    hash_sha256(p, n, d);
    hash_hex(d, sizeof d, hex);
    buf_printf(b, ",\"%s\":\"%s\"", key, hex);
}

int eng_mock_describe(const eng_mock *m, struct buf *b, struct err *e)
{
    buf_char(b, '{');
    eng_put_names(b, m->id, m->aliases);
    buf_printf(b, ",\"ctx\":%u,\"seqs\":%u,\"vocab\":%u,\"queue_max\":%u,\"queue_tokens_max\":%llu,\"numerics\":\"mock/1\",\"sheet\":\"mock\"", m->ctx,
               m->seqs, m->text.vocab, m->seqs, 4ull * m->seqs * m->ctx);
    put_digest(b, "fingerprint", m->text.s, m->text.n);
    put_digest(b, "tokenizer", m->text.blob.data, m->text.blob.len);
    put_digest(b, "template", tmpl, sizeof tmpl - 1);
    buf_printf(b, ",\"eos\":[%d],\"temperature\":0,\"top_p\":1,\"top_k\":0,\"special_tokens\":{}}", m->text.eos);
    return b->failed ? err_set(e, ERR_NOMEM, "mock description") : ERR_OK;
}

const char *eng_mock_tokenizer(const eng_mock *m, size_t *n)
{
    *n = m->text.blob.len;
    return m->text.blob.data;
}

const char *eng_mock_template(size_t *n)
{
    *n = sizeof tmpl - 1;
    return tmpl;
}

const char *eng_mock_id(const eng_mock *m) { return m->id; }
