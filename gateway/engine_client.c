/* The states of the line to the engine.
 *
 *   DOWN        a retry timer runs: backoff_ms_min where nobody listened (an engine that opens its model), since asking this
 *               machine costs nothing and readiness waits for it; doubling to backoff_ms_max after a line that broke -> connect_now
 *   CONNECTING  the socket connects; connect_ms                                                 -> gw_client_connected
 *   GREETING    our HELLO is out, the engine's is awaited; greet_ms                             -> on_hello
 *   FETCHING    tokenizer and template are fetched by digest (a tokenizer that we have is not)  -> on_blob
 *   UP          streams run; PING after ping_ms of silence, given up after silence_ms
 *   any error   -> line_down: streams keep what they have and wait (engine_streams.c)
 *
 * An engine answers HELLO only after it has generated a token of its own, so UP means that the device works. */
#include "gateway/engine_client.h"

#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/engine_client_internal.h"

#define TICK_MS 100
#define FRAME_MEMORY_MAX (128u << 20)       /* what a frame of one body can be decoded to, logprobs included */
#define LINK_BYTES_MAX ((size_t)512 << 20) /* what is owed to the engine; beyond it requests are refused */


void gw_engine_config_default(struct gw_engine_config *c)
{
    *c = (struct gw_engine_config){.streams_max = 65536, .connect_ms = 5000, .greet_ms = 30000, .ping_ms = 5000, .silence_ms = 20000,
                                   .backoff_ms_min = 20, .backoff_ms_max = 1000, .lost_ms = 60000, .blob_bytes_max = 256u << 20};
}

static void line_down(struct gw_engine *g, const char *why);

void gw_line_wake(struct gw_engine *g)
{
    uint64_t one = 1;
    while (write(g->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* ---- setting up ------------------------------------------------------------------------------------------- */

static void to_state(struct gw_engine *g, enum line_state s)
{
    pthread_mutex_lock(&g->lock);
    g->state = s;
    pthread_mutex_unlock(&g->lock);
    g->state_since_ns = clock_now_ns();
}

static void line_up(struct gw_engine *g)
{
    to_state(g, LINE_UP);
    g->backoff_ms = g->cfg.backoff_ms_min;
    atomic_fetch_add(&g->connects, 1);
    if (g->last_pid && g->d.pid && g->d.pid != g->last_pid)
        atomic_fetch_add(&g->restarts, 1);
    g->last_pid = g->d.pid;
    atomic_store(&g->up, true);
    log_info("engine connected model=%s ctx=%u seqs=%u pid=%lld", g->d.id, g->d.ctx, g->d.seqs, (long long)g->d.pid);
    if (g->cfg.changed)
        g->cfg.changed(g->cfg.ctx, true);
    gw_streams_line_up(g);
}

/* Asks for what is missing, or finishes. */
static void fetch_next(struct gw_engine *g)
{
    struct gw_served *s = NULL;
    struct err e;
    to_state(g, LINE_FETCHING);
    if (!g->tok || memcmp(g->tok->digest, g->d.tokenizer, HASH_BYTES)) {
        gw_line_send(g, ENG_FR_BLOB_GET, 0, g->d.tokenizer, HASH_BYTES);
        return;
    }
    if (g->d.has_template && !g->have_tmpl) {
        gw_line_send(g, ENG_FR_BLOB_GET, 0, g->d.template_digest, HASH_BYTES);
        return;
    }
    bool same = g->served && !memcmp(g->served->d.identity, g->d.identity, HASH_BYTES); /* only this thread changes served */
    if (!same) {
        if (gw_served_open(&s, g->hello.data, g->hello.len, g->tok, g->have_tmpl ? g->tmpl.data ? g->tmpl.data : "" : NULL, g->tmpl.len, &e)) {
            log_error("engine: its model cannot be served: %s", e.msg);
            line_down(g, "unusable model");
            return;
        }
        pthread_mutex_lock(&g->lock);
        struct gw_served *old = g->served;
        g->served = s;
        pthread_mutex_unlock(&g->lock);
        gw_served_unref(old);
    }
    line_up(g);
}

static void on_hello(struct gw_engine *g, const struct eng_frame *f)
{
    struct err e;
    if (g->state != LINE_GREETING)
        return;
    buf_reset(&g->hello);
    buf_reset(&g->tmpl);
    g->have_tmpl = false;
    arena_free(&g->d_mem);
    if (!buf_add(&g->hello, f->body, f->n)) {
        line_down(g, "description too long");
    } else if (gw_description_read(&g->d, g->hello.data, g->hello.len, &g->d_mem, &e)) {
        log_error("engine: %s", e.msg);
        line_down(g, "unreadable description");
    } else {
        if (g->served && g->d.has_template && g->served->d.has_template && !memcmp(g->served->d.identity, g->d.identity, HASH_BYTES))
            g->have_tmpl = true; /* the served model stays: its template is not needed again */
        fetch_next(g);
    }
}

static void on_blob(struct gw_engine *g, const struct eng_frame *f)
{
    struct err e;
    uint8_t digest[HASH_BYTES];
    bool is_tok;
    if (g->state != LINE_FETCHING || f->n < HASH_BYTES)
        return;
    const uint8_t *p = f->body + HASH_BYTES;
    size_t n = f->n - HASH_BYTES;
    is_tok = !memcmp(f->body, g->d.tokenizer, HASH_BYTES);
    if (!is_tok && (!g->d.has_template || memcmp(f->body, g->d.template_digest, HASH_BYTES)))
        return;
    if (is_tok) {
        struct gw_tok_ref *t;
        if (gw_tok_open(&t, g->d.tokenizer, p, n, &e)) {
            log_error("engine: tokenizer: %s", e.msg);
            line_down(g, "unusable tokenizer");
            return;
        }
        gw_tok_unref(g->tok);
        g->tok = t;
    } else {
        hash_sha256(p, n, digest);
        if (memcmp(digest, g->d.template_digest, HASH_BYTES) || !buf_add(&g->tmpl, p, n)) {
            line_down(g, "template blob does not have the digest it was asked by");
            return;
        }
        g->have_tmpl = true;
    }
    fetch_next(g);
}

/* ---- frames ----------------------------------------------------------------------------------------------- */

static void drives_of(const struct json *list, struct eng_stats *st)
{
    for (size_t i = 0; json_is(list, JSON_ARRAY) && i < list->n && i < ENG_DRIVES_MAX; i++) {
        struct eng_drive *d = &st->drives[st->n_drives++];
        const char *dir = json_str(json_get(list->items[i], "dir")), *reading = json_str(json_get(list->items[i], "reading"));
        json_u64(json_get(list->items[i], "bytes"), &d->bytes);
        json_u64(json_get(list->items[i], "reads"), &d->reads);
        json_u64(json_get(list->items[i], "errors"), &d->errors);
        snprintf(d->dir, sizeof d->dir, "%s", dir ? dir : "");
        snprintf(d->reading, sizeof d->reading, "%s", reading ? reading : "");
    }
}

static void on_stats(struct gw_engine *g, const struct eng_frame *f)
{
#define U64(name) {#name, offsetof(struct eng_stats, name), 8}
#define U32(name) {#name, offsetof(struct eng_stats, name), 4}
    static const struct { const char *name; size_t offset, size; } fields[] = {
        U32(running), U32(waiting), U32(seqs_max), U64(waiting_tokens), U64(requests), U64(tokens_in), U64(tokens_out), U64(steps), U64(step_ns),
        U64(model_ns), U64(draw_ns),
        U64(kv_pages), U64(kv_pages_used), U64(kv_bytes), U64(weight_bytes), U64(activation_bytes), U64(ram_max),
        U64(prefix_lookups), U64(prefix_hits), U64(prefix_tokens), U64(draft_tokens), U64(draft_accepted), U64(prefix_pages), U64(prefix_evictions),
        U64(weight_sweep_bytes), U64(weight_read_bytes), U64(weight_stalls), U64(weight_stall_ns),
        U64(expert_slots), U64(experts), U64(expert_hits), U64(expert_misses), U64(expert_read_bytes), U64(expert_preloaded),
        U64(snapshots), U64(snapshots_taken), U64(snapshots_restored), U64(snapshots_max), U64(snapshot_bytes),
        U64(weight_wanted_bytes), U64(weight_failing),
    };
#undef U64
#undef U32
    struct eng_stats st = {0};
    struct arena a;
    struct json *o = NULL;
    uint64_t v;
    arena_init(&a, 1u << 20);
    if (!json_parse(&o, (const char *)f->body, f->n, &json_strict, &a, NULL)) {
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
            if (!json_u64(json_get(o, fields[i].name), &v))
                continue;
            uint32_t small = v > UINT32_MAX ? UINT32_MAX : (uint32_t)v;
            memcpy((char *)&st + fields[i].offset, fields[i].size == 4 ? (void *)&small : (void *)&v, fields[i].size);
        }
        drives_of(json_get(o, "drives"), &st);
        pthread_mutex_lock(&g->lock);
        g->engine_stats = st;
        g->has_engine_stats = true;
        pthread_mutex_unlock(&g->lock);
    }
    arena_free(&a);
}

static void on_frame(struct gw_engine *g, const struct eng_frame *f)
{
    switch (f->type) {
    case ENG_FR_HELLO: on_hello(g, f); break;
    case ENG_FR_BLOB: on_blob(g, f); break;
    case ENG_FR_STATS: on_stats(g, f); break;
    case ENG_FR_PING: gw_line_send(g, ENG_FR_PONG, f->request, f->body, f->n); break;
    case ENG_FR_STARTED: case ENG_FR_TOKENS: case ENG_FR_DONE: case ENG_FR_REFUSED:
        if (g->state == LINE_UP)
            gw_streams_frame(g, f);
        break;
    default: break; /* unknown types are skipped, so that an engine may say more than we know */
    }
}

void gw_client_bytes(struct gw_engine *g, const void *p, size_t n)
{
    struct eng_frame f;
    struct err e;
    int fd = g->fd, got = 0;
    g->heard_ns = clock_now_ns();
    if (eng_frame_feed(&g->reader, p, n, &e)) {
        line_down(g, e.msg);
        return;
    }
    while (g->fd == fd && (got = eng_frame_next(&g->reader, &f, &e)) > 0)
        on_frame(g, &f);
    if (g->fd == fd && got < 0)
        line_down(g, e.msg);
}

void gw_client_broken(struct gw_engine *g, const char *why) { line_down(g, why); }

void gw_client_connected(struct gw_engine *g)
{
    char hello[64];
    g->heard_ns = clock_now_ns();
    to_state(g, LINE_GREETING);
    gw_line_send(g, ENG_FR_HELLO, 0, hello, (size_t)snprintf(hello, sizeof hello, "{\"proto\":%d,\"role\":\"gateway\"}", ENG_PROTO));
}

/* ---- connecting ------------------------------------------------------------------------------------------- */

static void schedule_retry(struct gw_engine *g, bool broke)
{
    uint32_t ms = broke ? g->backoff_ms : g->cfg.backoff_ms_min;
    struct timeval tv = {ms / 1000, (suseconds_t)(ms % 1000) * 1000};
    evtimer_add(g->retry, &tv);
    if (broke)
        g->backoff_ms = g->backoff_ms * 2 > g->cfg.backoff_ms_max ? g->cfg.backoff_ms_max : g->backoff_ms * 2;
}

static void line_down(struct gw_engine *g, const char *why)
{
    bool was_up = g->state == LINE_UP, broke = g->state >= LINE_GREETING;
    if (broke)
        log_warn("engine: connection lost (%s)", why);
    else
        log_debug("engine: not there (%s)", why);
    to_state(g, LINE_DOWN);
    gw_line_close(g);
    eng_frame_reader_free(&g->reader);
    eng_frame_reader_init(&g->reader, g->cfg.blob_bytes_max + HASH_BYTES);
    atomic_store(&g->up, false);
    gw_streams_line_down(g);
    if (was_up && g->cfg.changed)
        g->cfg.changed(g->cfg.ctx, false);
    schedule_retry(g, broke);
}

static void connect_now(evutil_socket_t fd, short what, void *ctx)
{
    struct gw_engine *g = ctx;
    struct err e = {0};
    (void)fd;
    (void)what;
    to_state(g, LINE_CONNECTING);
    if (!gw_line_connect(g, &e))
        line_down(g, e.msg);
}

/* ---- the thread ------------------------------------------------------------------------------------------- */

static void on_tick(evutil_socket_t fd, short what, void *ctx)
{
    struct gw_engine *g = ctx;
    uint64_t now = clock_now_ns(), in_state = now - g->state_since_ns;
    (void)fd;
    (void)what;
    if (g->state == LINE_CONNECTING && in_state > g->cfg.connect_ms * NS_PER_MS)
        line_down(g, "no connection in time");
    else if ((g->state == LINE_GREETING || g->state == LINE_FETCHING) && in_state > g->cfg.greet_ms * NS_PER_MS)
        line_down(g, "no greeting in time");
    else if (g->state == LINE_UP && now > g->heard_ns && now - g->heard_ns > g->cfg.silence_ms * NS_PER_MS)
        line_down(g, "silent for too long");
    else if (g->state == LINE_UP && now > g->heard_ns && now - g->heard_ns > g->cfg.ping_ms * NS_PER_MS && now - g->pinged_ns > g->cfg.ping_ms * NS_PER_MS) {
        g->pinged_ns = now;
        gw_line_send(g, ENG_FR_PING, 0, NULL, 0);
    }
    gw_streams_tick(g, clock_now_ns()); /* not `now`: waits that began in line_down just now are younger */
}

static void on_wake(evutil_socket_t fd, short what, void *ctx)
{
    struct gw_engine *g = ctx;
    uint64_t n;
    (void)what;
    while (read((int)fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
    gw_streams_commands(g);
    gw_line_watch(g);
    pthread_mutex_lock(&g->lock);
    bool closing = g->closing;
    pthread_mutex_unlock(&g->lock);
    if (closing)
        event_base_loopbreak(g->base);
}

static void *run(void *ctx)
{
    struct gw_engine *g = ctx;
    pthread_setname_np(pthread_self(), "gw-engine");
    connect_now(-1, 0, g);
    event_base_dispatch(g->base);
    gw_streams_commands(g);
    gw_streams_end_all(g, "the gateway is stopping");
    return NULL;
}

int gw_engine_open(gw_engine **out, const struct gw_engine_config *cfg, struct err *e)
{
    static const struct timeval tick = {0, TICK_MS * 1000};
    union gw_line_addr addr;
    socklen_t len;
    int rc = gw_line_address(cfg->address, &addr, &len, e);
    *out = NULL;
    if (rc)
        return rc;
    gw_engine *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "engine client");
    g->cfg = *cfg;
    g->wake_fd = g->fd = -1;
    g->inbox_tail = &g->inbox;
    g->backoff_ms = cfg->backoff_ms_min;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->sent, NULL);
    atomic_init(&g->next_id, 1);
    eng_frame_reader_init(&g->reader, cfg->blob_bytes_max + HASH_BYTES);
    buf_init(&g->out, LINK_BYTES_MAX);
    buf_init(&g->wire, LINK_BYTES_MAX);
    buf_init(&g->hello, GW_DESCRIPTION_BYTES_MAX);
    buf_init(&g->tmpl, cfg->blob_bytes_max);
    arena_init(&g->frame_mem, FRAME_MEMORY_MAX);
    arena_init(&g->d_mem, 8 * (size_t)GW_DESCRIPTION_BYTES_MAX);
    if (!(g->address = strdup(cfg->address)) || !(g->base = event_base_new()) || (g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 ||
        !(g->wake = event_new(g->base, g->wake_fd, EV_READ | EV_PERSIST, on_wake, g)) || !(g->tick = event_new(g->base, -1, EV_PERSIST, on_tick, g)) ||
        !(g->retry = evtimer_new(g->base, connect_now, g)) || event_add(g->wake, NULL) || event_add(g->tick, &tick)) {
        rc = err_set(e, ERR_NOMEM, "engine client: event loop");
        goto out;
    }
    if (pthread_create(&g->thread, NULL, run, g)) {
        rc = err_set(e, ERR_IO, "engine client: cannot start its thread");
        goto out;
    }
    g->thread_started = true;
    *out = g;
    g = NULL;
out:
    gw_engine_close(g);
    return rc;
}

void gw_engine_stop(gw_engine *g)
{
    if (!g || !g->thread_started)
        return;
    pthread_mutex_lock(&g->lock);
    g->closing = true;
    pthread_mutex_unlock(&g->lock);
    gw_line_wake(g);
    pthread_join(g->thread, NULL);
    g->thread_started = false;
}

void gw_engine_close(gw_engine *g)
{
    if (!g)
        return;
    gw_engine_stop(g);
    gw_line_close(g);
    if (g->wake)
        event_free(g->wake);
    if (g->tick)
        event_free(g->tick);
    if (g->retry)
        event_free(g->retry);
    if (g->base)
        event_base_free(g->base);
    if (g->wake_fd >= 0)
        close(g->wake_fd);
    eng_frame_reader_free(&g->reader);
    gw_served_unref(g->served);
    gw_tok_unref(g->tok);
    buf_free(&g->hello);
    buf_free(&g->tmpl);
    arena_free(&g->d_mem);
    arena_free(&g->frame_mem);
    pthread_cond_destroy(&g->sent);
    pthread_mutex_destroy(&g->lock);
    free(g->address);
    free(g);
}

bool gw_engine_up(gw_engine *g) { return atomic_load(&g->up); }

bool gw_engine_able(gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    bool failing = g->has_engine_stats && g->engine_stats.weight_failing;
    pthread_mutex_unlock(&g->lock);
    return gw_engine_up(g) && !failing;
}

struct gw_served *gw_engine_served(gw_engine *g)
{
    pthread_mutex_lock(&g->lock);
    struct gw_served *s = gw_served_ref(g->served);
    pthread_mutex_unlock(&g->lock);
    return s;
}

void gw_engine_stats(gw_engine *g, struct gw_engine_stats *s)
{
    pthread_mutex_lock(&g->lock);
    s->has_engine = g->has_engine_stats;
    s->engine = g->engine_stats;
    s->link_bytes = gw_line_unsent(g);
    pthread_mutex_unlock(&g->lock);
    s->up = atomic_load(&g->up);
    s->connects = atomic_load(&g->connects);
    s->restarts = atomic_load(&g->restarts);
    s->resubmitted = atomic_load(&g->resubmitted);
    s->lost = atomic_load(&g->lost);
    s->streams = atomic_load(&g->n_streams);
}
