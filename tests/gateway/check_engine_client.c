/* The line to an engine, against a fake one over a real socket: streams, refusals, cancel, pause, deaths in mid-stream, strangers. */
#include <pthread.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/engine_client.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/fake_engine.h"
#include "tests/support/suite.h"

struct sink {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct buf text;
    uint32_t n_tokens;
    bool started, ended;
    int after_end;
    struct gw_stream_event end;
};

static void sink_init(struct sink *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    buf_init(&s->text, 1u << 24);
    buf_str(&s->text, "");
}

static void sink_free(struct sink *s)
{
    buf_free(&s->text);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
}

static void on_event(void *ctx, const struct gw_stream_event *ev)
{
    struct sink *s = ctx;
    pthread_mutex_lock(&s->lock);
    if (s->ended)
        s->after_end++;
    s->started |= ev->type == GW_ST_STARTED;
    s->n_tokens += ev->n_tokens;
    if (ev->n)
        buf_add(&s->text, ev->text, ev->n);
    if (ev->type == GW_ST_DONE || ev->type == GW_ST_REFUSED || ev->type == GW_ST_LOST) {
        s->ended = true;
        s->end = *ev;
    }
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

/* Waits up to 10 s for the end, or for n tokens. */
static bool sink_wait(struct sink *s, uint32_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    pthread_mutex_lock(&s->lock);
    int rc = 0;
    while (!rc && !s->ended && (!n || s->n_tokens < n))
        rc = pthread_cond_timedwait(&s->wake, &s->lock, &until);
    bool ok = s->ended || (n && s->n_tokens >= n);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static gw_engine *open_client_silent(const char *path, uint32_t lost_ms, uint32_t silence_ms)
{
    struct gw_engine_config c;
    struct err e;
    gw_engine *g;
    gw_engine_config_default(&c);
    c.address = path;
    c.lost_ms = lost_ms;
    c.backoff_ms_min = 20;
    c.backoff_ms_max = 100;
    c.ping_ms = silence_ms / 3;
    c.silence_ms = silence_ms;
    c.streams_max = 64;
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
    OK(gw_engine_open(&g, &c, &e));
    return g;
}

static gw_engine *open_client(const char *path, uint32_t lost_ms) { return open_client_silent(path, lost_ms, 60000); }

static void wait_up(gw_engine *g)
{
    for (int i = 0; i < 60000 && !gw_engine_up(g); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert(gw_engine_up(g));
}

static int submit_text(gw_engine *g, const char *prompt, uint64_t seed, uint32_t max, bool patient, struct sink *s, uint64_t *id, struct err *e)
{
    struct gw_served *served = gw_engine_served(g);
    struct eng_ids ids = {.max = 10000};
    struct eng_request r = {.max_tokens = max, .sampling = {.temperature = 1, .top_p = 1, .seed = seed}, .tenant = "t"};
    push_text(&ids, prompt, strlen(prompt), e);
    r.ids = ids.v;
    r.n_ids = (uint32_t)ids.n;
    int rc = gw_engine_submit(g, &r, served, patient, on_event, s, id, e);
    eng_ids_free(&ids);
    gw_served_unref(served);
    return rc;
}

static void expect_text(struct sink *s, uint64_t seed, uint32_t n)
{
    char *want = fake_text(seed, n);
    ck_assert_str_eq(s->text.data, want);
    free(want);
    ck_assert_int_eq(s->after_end, 0);
}

START_TEST(core)
{
    struct fake_config fc;
    struct err e;
    struct sink s[8];
    uint64_t id;
    fake_config_default(&fc);
    fake_engine *f = fake_open(&fc);
    gw_engine *g = open_client(fc.path, 60000);
    wait_up(g);
    struct gw_served *served = gw_engine_served(g);
    ck_assert_str_eq(served->d.id, "fake-model");
    ck_assert(gw_served_is(served, "org/fake") && !gw_served_is(served, "fake"));
    ck_assert_uint_eq(served->d.queue_max, 64);
    gw_served_unref(served);
    for (unsigned i = 0; i < 8; i++) {
        sink_init(&s[i]);
        OK(submit_text(g, i % 2 ? "hello" : "hello !stop 17", i, 40, false, &s[i], &id, &e));
    }
    for (unsigned i = 0; i < 8; i++) {
        ck_assert(sink_wait(&s[i], 0));
        ck_assert_int_eq(s[i].end.type, GW_ST_DONE);
        ck_assert_int_eq(s[i].end.finish, i % 2 ? ENG_LENGTH : ENG_STOP);
        ck_assert_uint_eq(s[i].end.usage.output_tokens, i % 2 ? 40 : 17);
        ck_assert(s[i].started);
        ck_assert_uint_eq(s[i].n_tokens, i % 2 ? 40 : 17);
        expect_text(&s[i], i, i % 2 ? 40 : 17);
        sink_free(&s[i]);
    }
    struct gw_engine_stats st;
    gw_engine_stats(g, &st);
    ck_assert(st.up && st.has_engine && st.streams == 0 && st.connects == 1 && st.restarts == 0);
    ck_assert_uint_eq(st.engine.kv_pages_used, 7);
    gw_engine_close(g);
    fake_close(f);
}
END_TEST

START_TEST(refusals)
{
    struct fake_config fc;
    struct err e;
    struct sink s;
    uint64_t id;
    fake_config_default(&fc);
    fake_engine *f = fake_open(&fc);
    gw_engine *g = open_client(fc.path, 60000);
    wait_up(g);
    sink_init(&s);
    OK(submit_text(g, "!refuse 9", 1, 5, true, &s, &id, &e)); /* too long: final, patient or not */
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.type, GW_ST_REFUSED);
    ck_assert_int_eq(s.end.err.code, ERR_LIMIT);
    ck_assert_str_eq(s.end.err.msg, "the fake engine says no");
    sink_free(&s);
    sink_init(&s);
    OK(submit_text(g, "!busy 2", 1, 5, false, &s, &id, &e));
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.type, GW_ST_REFUSED);
    ck_assert_int_eq(s.end.err.code, ERR_AGAIN);
    sink_free(&s);
    sink_init(&s);
    OK(submit_text(g, "!busy 2", 3, 5, true, &s, &id, &e)); /* a patient one gets through the third time */
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.type, GW_ST_DONE);
    expect_text(&s, 3, 5);
    sink_free(&s);
    sink_init(&s);
    OK(submit_text(g, "!fail 3", 4, 5, true, &s, &id, &e));
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.finish, ENG_FAILED);
    ck_assert_str_eq(s.end.err.msg, "a made-up fault");
    sink_free(&s);
    gw_engine_close(g);
    fake_close(f);
}
END_TEST

START_TEST(cancel_pause)
{
    struct fake_config fc;
    struct err e;
    struct sink s;
    uint64_t id;
    fake_config_default(&fc);
    fc.ctx = 1000000;
    fake_engine *f = fake_open(&fc);
    gw_engine *g = open_client(fc.path, 60000);
    wait_up(g);
    sink_init(&s);
    OK(submit_text(g, "go", 5, 900000, false, &s, &id, &e));
    ck_assert(sink_wait(&s, 3));
    gw_engine_pause(g, id, true);
    uint32_t n = 0;
    for (int i = 0, same = 0; i < 600 && same < 3; i++) { /* what was under way still comes, then nothing does */
        clock_sleep_ns(100 * NS_PER_MS);
        pthread_mutex_lock(&s.lock);
        same = s.n_tokens == n ? same + 1 : 0;
        n = s.n_tokens;
        ck_assert(i < 599 && !s.ended);
        pthread_mutex_unlock(&s.lock);
    }
    gw_engine_pause(g, id, false);
    ck_assert(sink_wait(&s, n + 5));
    gw_engine_cancel(g, id);
    gw_engine_cancel(g, id); /* the second finds nothing */
    gw_engine_pause(g, id, true);
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.finish, ENG_CANCELLED);
    for (int i = 0; i < 60000 && fake_counts(f).live; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(fake_counts(f).live, 0);
    ck_assert_uint_eq(fake_counts(f).cancels, 1);
    clock_sleep_ns(50 * NS_PER_MS);
    ck_assert_int_eq(s.after_end, 0);
    sink_free(&s);
    sink_init(&s); /* one that waits in the engine's queue */
    OK(submit_text(g, "!hang", 5, 400, false, &s, &id, &e));
    for (int i = 0; i < 60000 && !fake_counts(f).live; i++)
        clock_sleep_ns(NS_PER_MS);
    gw_engine_cancel(g, id);
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.finish, ENG_CANCELLED);
    sink_free(&s);
    gw_engine_close(g);
    fake_close(f);
}
END_TEST

START_TEST(death) /* in mid-stream, at every early token: the text goes on as if nothing had happened */
{
    struct fake_config fc;
    struct err e;
    char prompt[32];
    for (unsigned n = 0; n <= 12; n++) {
        struct sink s, other;
        uint64_t id;
        fake_config_default(&fc);
        fc.down_ms = 60;
        fake_engine *f = fake_open(&fc);
        gw_engine *g = open_client(fc.path, 60000);
        wait_up(g);
        sink_init(&s);
        sink_init(&other);
        snprintf(prompt, sizeof prompt, "!die %u !stop 12", n);
        OK(submit_text(g, "bystander", 99, 30, false, &other, &id, &e));
        OK(submit_text(g, prompt, n, 40, false, &s, &id, &e));
        ck_assert(sink_wait(&s, 0) && sink_wait(&other, 0));
        ck_assert_int_eq(s.end.type, GW_ST_DONE);
        ck_assert_int_eq(s.end.finish, ENG_STOP);
        ck_assert_uint_eq(s.n_tokens, 12);
        expect_text(&s, n, 12);
        ck_assert_int_eq(other.end.finish, ENG_LENGTH);
        ck_assert_uint_eq(other.n_tokens, 30);
        expect_text(&other, 99, 30);
        struct gw_engine_stats st;
        gw_engine_stats(g, &st);
        ck_assert_uint_eq(st.restarts, 1);
        ck_assert_uint_ge(st.resubmitted, 1);
        ck_assert_uint_eq(st.streams, 0);
        ck_assert_uint_eq(fake_counts(f).blobs, 2); /* the second time everything is known by digest */
        sink_free(&s);
        sink_free(&other);
        gw_engine_close(g);
        fake_close(f);
    }
}
END_TEST

START_TEST(stalls) /* an engine that says nothing any more, one that stays away, one that comes back changed */
{
    struct fake_config fc;
    struct err e;
    struct sink s;
    uint64_t id;
    fake_config_default(&fc);
    fake_engine *f = fake_open(&fc);
    gw_engine *g = open_client_silent(fc.path, 60000, 600);
    wait_up(g);
    sink_init(&s);
    OK(submit_text(g, "!mute 5", 8, 20, false, &s, &id, &e)); /* silent on the first connection; the PING shows it */
    ck_assert(sink_wait(&s, 0));
    ck_assert_msg(s.end.type == GW_ST_DONE, "%s", s.end.err.msg);
    expect_text(&s, 8, 20);
    sink_free(&s);
    gw_engine_close(g);

    g = open_client(fc.path, 300);
    wait_up(g);
    sink_init(&s);
    OK(submit_text(g, "!delay 20", 8, 200, false, &s, &id, &e));
    ck_assert(sink_wait(&s, 3));
    fake_die(f, 0);
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.type, GW_ST_LOST);
    ck_assert_int_eq(s.end.err.code, ERR_CLOSED);
    ck_assert(!gw_engine_up(g));
    sink_free(&s);
    gw_engine_close(g);
    fake_close(f);

    fake_config_default(&fc);
    fc.numerics_after = "fake/2";
    f = fake_open(&fc);
    g = open_client(fc.path, 60000);
    wait_up(g);
    sink_init(&s);
    OK(submit_text(g, "!die 4", 8, 200, false, &s, &id, &e));
    ck_assert(sink_wait(&s, 0));
    ck_assert_int_eq(s.end.type, GW_ST_LOST);
    ck_assert_ptr_nonnull(strstr(s.end.err.msg, "another model"));
    sink_free(&s);
    gw_engine_close(g);
    fake_close(f);
}
END_TEST

START_TEST(limits)
{
    struct fake_config fc;
    struct err e;
    struct sink s[65];
    uint64_t id;
    fake_config_default(&fc);
    fake_engine *f = fake_open(&fc);
    gw_engine *g = open_client(fc.path, 60000);
    wait_up(g);
    for (int i = 0; i < 65; i++)
        sink_init(&s[i]);
    for (int i = 0; i < 64; i++)
        OK(submit_text(g, "!hang", 1, 5, false, &s[i], &id, &e));
    FAILS(ERR_AGAIN, "64 requests", submit_text(g, "!hang", 1, 5, false, &s[64], &id, &e));
    gw_engine_stop(g); /* ends them all */
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(s[i].end.type, GW_ST_LOST);
    FAILS(ERR_CLOSED, "stopping", submit_text(g, "x", 1, 5, false, &s[64], &id, &e));
    gw_engine_cancel(g, 1);
    gw_engine_close(g);
    for (int i = 0; i < 65; i++)
        sink_free(&s[i]);
    fake_close(f);
}
END_TEST

START_TEST(errors)
{
    static const char *const hellos[] = {
        "{}", "{\"proto\":1}", "{\"proto\":3,\"id\":\"\"}", "{\"proto\":3,\"id\":\"m\",\"ctx\":0}", "not json",
        "{\"proto\":3,\"id\":\"m\",\"ctx\":10,\"seqs\":1,\"vocab\":10,\"tokenizer\":\"abc\"}",
        "{\"proto\":3,\"id\":\"m\",\"ctx\":10,\"seqs\":1,\"vocab\":10,\"tokenizer\":\"00\",\"template\":7}",
    };
    struct gw_engine_config c;
    struct gw_description d;
    struct arena a;
    struct err e;
    gw_engine *g;
    gw_engine_config_default(&c);
    c.address = "unix:";
    FAILS(ERR_INVALID, "path", gw_engine_open(&g, &c, &e));
    c.address = "somewhere";
    FAILS(ERR_INVALID, "host:port", gw_engine_open(&g, &c, &e));
    c.address = "192.0.2.1:9000";
    FAILS(ERR_UNSUPPORTED, "not on this machine", gw_engine_open(&g, &c, &e));
    c.address = "127.0.0.1:70000";
    FAILS(ERR_INVALID, "host:port", gw_engine_open(&g, &c, &e));
    for (size_t i = 0; i < sizeof hellos / sizeof *hellos; i++) {
        arena_init(&a, 1u << 20);
        ck_assert_int_ne(gw_description_read(&d, hellos[i], strlen(hellos[i]), &a, &e), 0);
        arena_free(&a);
    }
    struct fake_config fc; /* blobs that are not what they are called: never up, never crashing */
    fake_config_default(&fc);
    fc.bad_blob = true;
    fake_engine *f = fake_open(&fc);
    g = open_client(fc.path, 1000);
    for (int i = 0; i < 60000 && fake_counts(f).connections < 3; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(fake_counts(f).connections, 3);
    ck_assert(!gw_engine_up(g));
    ck_assert_ptr_null(gw_engine_served(g));
    gw_engine_close(g);
    fake_close(f);
}
END_TEST

SUITE("gateway", "engine_client", core, refusals, cancel_pause, death, stalls, limits, errors)
