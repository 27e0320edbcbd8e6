/* engine/engine: real scheduler, real kernels, a tiny model made on the spot. Same bits whatever the company, every end once. */
#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/session.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/tiny_llama.h"

enum { MAX = 32, OUT = 256 };
struct req {
    int32_t ids[OUT];
    uint32_t n, n_done_events, started;
    float logprob[OUT];
    struct eng_top top[OUT];
    int32_t stop;
    char text[4096];
    size_t text_n;
    enum eng_finish finish;
    struct eng_usage usage;
    bool token_after_done;
    char error[400];
};
struct box {
    unsigned long allocs_at[OUT]; /* allocations of the process when request 1's n-th token came */
    pthread_mutex_t lock; pthread_cond_t cond; struct req r[MAX]; eng_engine *g; uint64_t cancel_id; /* cancelled from inside its second token's event */
    uint64_t pause_id;  /* likewise: paused from inside its third, so that it cannot end by itself */ };

static char model[256];

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct box *b = ctx;
    pthread_mutex_lock(&b->lock);
    struct req *r = &b->r[ev->id % MAX];
    if (r->n_done_events)
        r->token_after_done = true;
    if (ev->type == ENG_EV_STARTED)
        r->started++;
    if (ev->type == ENG_EV_TOKEN && ev->id == 1 && ev->n_out < OUT)
        b->allocs_at[ev->n_out] = alloc_count();
    if (ev->type == ENG_EV_TOKEN && r->n < OUT && ev->logprobs) {
        r->logprob[r->n] = ev->logprobs->logprob;
        r->top[r->n] = ev->logprobs->n_top == 3 ? ev->logprobs->top[0] : (struct eng_top){-1, 0};
    }
    if (ev->type == ENG_EV_TOKEN && r->n < OUT)
        r->ids[r->n++] = ev->token;
    if (ev->n && r->text_n + ev->n < sizeof r->text) {
        memcpy(r->text + r->text_n, ev->text, ev->n);
        r->text_n += ev->n;
    }
    if (ev->type == ENG_EV_DONE) {
        r->n_done_events++;
        r->finish = ev->finish;
        r->stop = ev->stop;
        r->usage = *ev->usage;
        if (ev->err)
            snprintf(r->error, sizeof r->error, "%s", ev->err->msg);
    }
    pthread_cond_broadcast(&b->cond);
    bool pause = ev->id == b->pause_id && ev->type == ENG_EV_TOKEN && ev->n_out == 3;
    bool cancel = ev->id == b->cancel_id && ev->type == ENG_EV_TOKEN && ev->n_out == 2;
    pthread_mutex_unlock(&b->lock);
    if (pause)
        eng_pause(b->g, ev->id, true);
    if (cancel)
        eng_cancel(b->g, ev->id);
}

static struct eng_config conf(void)
{
    return (struct eng_config){.model_path = model, .ctx = 128, .seqs = 4, .threads = 2, .chunk = 32, .page_tokens = 16, .kv_type = KRN_F16,
                               .ram_max = 256u << 20, .queue_max = 8};
}

static void open_meddling(struct box *b, const struct eng_config *c, uint64_t cancel_id, uint64_t pause_id)
{
    struct err e = {0};
    *b = (struct box){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .cancel_id = cancel_id, .pause_id = pause_id};
    int rc = eng_open(&b->g, c, on_event, b, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.msg);
}

static void open_box(struct box *b, const struct eng_config *c) { open_meddling(b, c, UINT64_MAX, UINT64_MAX); }

static void fill_prompt(int32_t *ids, uint32_t n, uint32_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed * 31 + i * 17 + i * i * seed) % 200);
}

static int submit(struct box *b, uint64_t id, uint32_t n_prompt, uint32_t n_out, float temp, struct err *e)
{
    int32_t ids[OUT];
    fill_prompt(ids, n_prompt, (uint32_t)id);
    struct eng_request r = {.id = id, .ids = ids, .n_ids = n_prompt, .max_tokens = n_out, .ignore_eos = true,
                            .sampling = {.temperature = temp, .top_p = 0.95f, .seed = 1234 + id}};
    return eng_submit(b->g, &r, e);
}

static void wait_done(struct box *b, uint64_t id)
{
    pthread_mutex_lock(&b->lock);
    while (!b->r[id].n_done_events)
        pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void wait_tokens(struct box *b, uint64_t id, uint32_t n)
{
    pthread_mutex_lock(&b->lock);
    while (b->r[id].n < n && !b->r[id].n_done_events)
        pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

/* Outputs of requests 1..n, each alone in an engine of this configuration, one after the other. */
static void alone(const struct eng_config *c, uint32_t n, float temp, struct req *out)
{
    static struct box b;
    struct err e = {0};
    open_box(&b, c);
    for (uint32_t i = 1; i <= n; i++) {
        ck_assert_int_eq(submit(&b, i, 5 + 7 * i, 24, temp, &e), ERR_OK);
        wait_done(&b, i);
        out[i] = b.r[i];
    }
    eng_close(b.g);
}

static void same(const struct req *a, const struct req *b, const char *what)
{
    ck_assert_msg(a->n == b->n && !memcmp(a->ids, b->ids, a->n * sizeof a->ids[0]), "%s: other ids", what);
    ck_assert_msg(a->text_n == b->text_n && !memcmp(a->text, b->text, a->text_n), "%s: other text", what);
}

/* Eight at once through four slots, greedy and sampled: as if each were alone. */
START_TEST(batch)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    float temp = _i ? 0.9f : 0.0f;
    alone(&c, 8, temp, ref);
    open_box(&b, &c);
    for (uint32_t i = 1; i <= 8; i++)
        ck_assert_int_eq(submit(&b, i, 5 + 7 * i, 24, temp, &e), ERR_OK);
    for (uint32_t i = 1; i <= 8; i++) {
        wait_done(&b, i);
        ck_assert_int_eq(b.r[i].finish, ENG_LENGTH);
        ck_assert_uint_eq(b.r[i].n, 24);
        ck_assert_uint_eq(b.r[i].started, 1);
        same(&ref[i], &b.r[i], "among others");
    }
    eng_close(b.g);
}
END_TEST

/* Chunk, page, threads, instruction set, and too few pages for all (preemption): one text. */
START_TEST(settings)
{
    static struct req ref[MAX], got[MAX];
    struct eng_config c = conf();
    alone(&c, 5, 0, ref);
    static const struct { uint32_t chunk, page, threads; enum krn_isa isa; const char *what; } v[] = {
        {4, 16, 2, KRN_ISA_AUTO, "chunk 4"}, {7, 16, 2, KRN_ISA_AUTO, "chunk 7"}, {64, 64, 2, KRN_ISA_AUTO, "chunk 64, page 64"},
        {32, 16, 1, KRN_ISA_AUTO, "1 thread"}, {32, 16, 2, KRN_ISA_C, "plain C"}, {32, 16, 2, KRN_ISA_AVX2, "AVX2"},
        {32, 16, 2, KRN_ISA_AVX512, "AVX-512"}};
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        if (v[i].isa != KRN_ISA_AUTO && !krn_isa_have(v[i].isa)) {
            printf("SKIP %s: this machine has none\n", v[i].what);
            continue;
        }
        c = conf();
        c.chunk = v[i].chunk;
        c.page_tokens = v[i].page;
        c.threads = v[i].threads;
        c.isa = v[i].isa;
        alone(&c, 5, 0, got);
        for (uint32_t k = 1; k <= 5; k++)
            same(&ref[k], &got[k], v[i].what);
    }
}
END_TEST

/* Logits themselves, bit by bit: one prompt whole, in pieces, and beside another sequence. */
START_TEST(bits)
{
    struct eng_config c = conf();
    struct err e = {0};
    eng_session *s;
    int32_t ids[100], other[100];
    fill_prompt(ids, 100, 3);
    fill_prompt(other, 100, 5);
    c.chunk = 200;
    ck_assert_msg(eng_session_open(&s, &c, 100, &e) == ERR_OK, "%s", e.msg);
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    float *want = malloc(100 * (size_t)vocab * sizeof *want);
    struct eng_part whole = {.n = 100, .tokens = ids, .picks = ENG_PICK_ALL};
    ck_assert_int_eq(eng_session_step(s, &whole, 1, NULL, NULL, &e), ERR_OK);
    for (uint32_t i = 0; i < 100; i++)
        memcpy(want + (size_t)i * vocab, eng_session_logits(s, i), vocab * sizeof *want);
    static const uint32_t pieces[] = {1, 7, 64};
    for (size_t p = 0; p < 3; p++) {
        eng_session_drop(s, 0);
        eng_session_drop(s, 1);
        for (uint32_t at = 0; at < 100; at += pieces[p]) {
            uint32_t n = 100 - at < pieces[p] ? 100 - at : pieces[p];
            struct eng_part two[2] = {{.slot = 1, .pos0 = at, .n = n, .tokens = other + at, .picks = ENG_PICK_NONE},
                                      {.slot = 0, .pos0 = at, .n = n, .tokens = ids + at, .picks = ENG_PICK_ALL}};
            ck_assert_int_eq(eng_session_step(s, two, 2, NULL, NULL, &e), ERR_OK);
            for (uint32_t i = 0; i < n; i++)
                ck_assert_msg(!memcmp(want + (size_t)(at + i) * vocab, eng_session_logits(s, i), vocab * sizeof *want),
                              "pieces of %u: logits at %u differ", pieces[p], at + i);
        }
    }
    free(want);
    eng_session_close(s);
}
END_TEST

/* A budget that holds the KV of one sequence and little more: everybody ends, with the same text. */
START_TEST(preemption)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    struct eng_stats st;
    alone(&c, 4, 0, ref);
    open_box(&b, &c);
    eng_stats(b.g, &st);
    uint64_t fixed = st.weight_bytes + st.activation_bytes, kv = st.kv_bytes;
    eng_close(b.g);
    c.ram_max = fixed + kv / 4 + kv / 8;
    open_box(&b, &c);
    for (uint32_t i = 1; i <= 4; i++)
        ck_assert_int_eq(submit(&b, i, 5 + 7 * i, 24, 0, &e), ERR_OK);
    for (uint32_t i = 1; i <= 4; i++) {
        wait_done(&b, i);
        same(&ref[i], &b.r[i], "with few pages");
    }
    eng_stats(b.g, &st);
    ck_assert_uint_eq(st.requests, 4);
    ck_assert_uint_eq(st.tokens_in, 5 * 4 + 7 * 10); /* also where prompts were computed twice */
    ck_assert_uint_le(st.weight_bytes + st.activation_bytes + st.kv_bytes, c.ram_max);
    eng_close(b.g);
    c.ram_max = fixed + kv / 8;
    eng_engine *g;
    ck_assert_int_eq(eng_open(&g, &c, on_event, &b, &e), ERR_BUDGET);
    ck_assert_ptr_null(g);
    ck_assert_ptr_nonnull(strstr(e.msg, "missing"));
}
END_TEST

/* A life that ended after k tokens is continued: ids and text join without a seam, greedy and sampled. */
START_TEST(resume)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    float temp = 0.8f;
    alone(&c, 2, temp, ref);
    open_box(&b, &c);
    uint64_t skip = 0;
    for (uint32_t k = 0; k < 24; k += 5) {
        int32_t ids[OUT];
        uint32_t n = 5 + 7 * 2;
        fill_prompt(ids, n, 2);
        memcpy(ids + n, ref[2].ids, k * sizeof *ids);
        struct eng_request r = {.id = 3 + k, .ids = ids, .n_ids = n + k, .n_done = k, .text_skip = skip, .max_tokens = 24, .ignore_eos = true,
                                .sampling = {.temperature = temp, .top_p = 0.95f, .seed = 1234 + 2}};
        ck_assert_msg(eng_submit(b.g, &r, &e) == ERR_OK, "%s", e.msg);
        wait_done(&b, 3 + k);
        struct req *got = &b.r[3 + k];
        ck_assert_uint_eq(got->n, 24 - k);
        ck_assert(!memcmp(got->ids, ref[2].ids + k, got->n * sizeof *ids));
        ck_assert_msg(got->text_n == ref[2].text_n - skip && !memcmp(got->text, ref[2].text + skip, got->text_n), "after %u tokens: other text", k);
        skip = ref[2].text_n / 24 * k / 2;
    }
    eng_close(b.g);
}
END_TEST

static struct eng_bias bias_of_all[] = {{3, 1.5f}, {7, -100}};

/* Everything that shapes a draw at once. */
static int submit_shaped(struct box *b, uint64_t id, const int32_t *done, uint32_t n_done, float temp, uint32_t choice, struct err *e)
{
    int32_t ids[OUT];
    fill_prompt(ids, 20, 2);
    if (n_done)
        memcpy(ids + 20, done, n_done * sizeof *ids);
    struct eng_request r = {.id = id, .ids = ids, .n_ids = 20 + n_done, .n_done = n_done, .max_tokens = 60, .ignore_eos = true, .logprobs = true, .top_logprobs = 3,
                            .bias = bias_of_all, .n_bias = 2,
                            .sampling = {.temperature = temp, .top_p = 0.95f, .seed = 77, .choice = choice, .presence = 0.4f, .frequency = 0.3f, .repetition = 1.2f}};
    return eng_submit(b->g, &r, e);
}

/* Penalties, biases and logprobs: other tokens than without; the same after a resumption; greedy tokens without shaping are the
 * likeliest ones; choices differ when they draw. */
START_TEST(shaping)
{
    static struct box b;
    static struct req plain[MAX];
    struct eng_config c = conf();
    struct err e = {0};
    float temp = _i ? 0.8f : 0.0f;
    alone(&c, 2, temp, plain);
    open_box(&b, &c);
    ck_assert_msg(submit_shaped(&b, 1, NULL, 0, temp, 0, &e) == ERR_OK, "%s", e.msg);
    wait_done(&b, 1);
    struct req *all = &b.r[1];
    ck_assert_uint_eq(all->n, 60);
    int counts[300] = {0}, most = 0, likeliest = 0;
    for (uint32_t i = 0; i < all->n; i++) {
        ck_assert_int_ne(all->ids[i], 7);
        most = ++counts[all->ids[i]] > most ? counts[all->ids[i]] : most;
        ck_assert(all->logprob[i] <= 0 && all->top[i].id >= 0 && all->logprob[i] <= all->top[i].logprob);
        likeliest += all->top[i].id == all->ids[i];
        ck_assert(all->top[i].id != all->ids[i] || all->top[i].logprob == all->logprob[i]);
    }
    ck_assert(most < 30 && likeliest < 60);
    for (uint32_t k = 1; k < 60; k += 17) { /* each with what the first life made so far */
        ck_assert_int_eq(submit_shaped(&b, 2 + k % MAX, all->ids, k, temp, 0, &e), ERR_OK);
        wait_done(&b, 2 + k % MAX);
        struct req *got = &b.r[2 + k % MAX];
        ck_assert_uint_eq(got->n, 60 - k);
        ck_assert(!memcmp(got->ids, all->ids + k, got->n * sizeof *got->ids));
        ck_assert(!memcmp(got->logprob, all->logprob + k, got->n * sizeof *got->logprob));
    }
    ck_assert_int_eq(submit_shaped(&b, 31, NULL, 0, temp, 1, &e), ERR_OK);
    wait_done(&b, 31);
    ck_assert_int_eq(memcmp(b.r[31].ids, all->ids, 60 * sizeof *all->ids) == 0, temp <= 0);
    eng_close(b.g);
}
END_TEST

/* A token whose embedding is no number ends the requests that hold it, with layer and operator, and no other: the rest has the same
 * tokens as without it. */
START_TEST(no_number)
{
    static struct box b;
    static struct req plain[MAX];
    struct eng_config c = conf();
    struct err e = {0};
    off_catalog *cat;
    enum { BAD = 250 };
    char path[300];
    float nan[TINY_HIDDEN];
    snprintf(path, sizeof path, "%s.nan", model);
    tiny_llama_write(path, &(struct tiny_llama){.untied = true, .f32 = true});
    c.model_path = path;
    c.prefix_off = true;
    alone(&c, 3, 0, plain);
    ck_assert_int_eq(off_catalog_open(&cat, path, 0, &e), ERR_OK);
    const struct off_tensor *t = off_catalog_find(cat, "token_embd.weight", strlen("token_embd.weight"));
    ck_assert(t && t->type == KRN_F32 && t->dims[1] == TINY_HIDDEN);
    for (int i = 0; i < TINY_HIDDEN; i++)
        nan[i] = i == 40 ? NAN : 0.5f;
    FILE *file = fopen(path, "r+b");
    ck_assert(file && !fseek(file, (long)(t->offset + BAD * sizeof nan), SEEK_SET) && fwrite(nan, sizeof nan, 1, file) == 1 && !fclose(file));
    off_catalog_close(cat);
    open_box(&b, &c);
    for (uint32_t i = 1; i <= 3; i++) { /* each beside a request that fails */
        int32_t ids[9] = {4, 5, 6, 7, 8, 9, 10, 11, 12};
        ids[3 * i - 1] = BAD;
        struct eng_request r = {.id = 10 + i, .ids = ids, .n_ids = 9, .max_tokens = 8, .ignore_eos = true, .sampling = {.top_p = 1}};
        ck_assert_int_eq(submit(&b, i, 5 + 7 * i, 24, 0, &e), ERR_OK);
        ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_OK);
    }
    for (uint32_t i = 1; i <= 3; i++) {
        wait_done(&b, i);
        wait_done(&b, 10 + i);
        same(&b.r[i], &plain[i], "beside a failed request");
        ck_assert(b.r[10 + i].finish == ENG_FAILED && b.r[10 + i].n == 0);
        ck_assert_msg(strstr(b.r[10 + i].error, "embed, operator embed: a result is not a finite number"), "%s", b.r[10 + i].error);
    }
    eng_close(b.g);
    unlink(path);
}
END_TEST

/* After warm-up a token allocates nothing: not in the scheduler, not in kernels, not in sampling. */
START_TEST(allocations)
{
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    if (!alloc_fail_works()) {
        printf("SKIP allocations: a sanitizer owns the allocator\n");
        return;
    }
    open_box(&b, &c);
    if (_i == 2)
        ck_assert_int_eq(submit_shaped(&b, 1, NULL, 0, 0.7f, 0, &e), ERR_OK);
    else
        ck_assert_int_eq(submit(&b, 1, 10, 100, _i ? 0.7f : 0, &e), ERR_OK);
    wait_done(&b, 1);
    eng_close(b.g);
    ck_assert_uint_gt(b.allocs_at[5], 0);
    ck_assert_uint_eq(b.allocs_at[_i == 2 ? 59 : 99], b.allocs_at[5]);
}
END_TEST

START_TEST(stop_strings)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    alone(&c, 3, 0, ref);
    ck_assert_uint_gt(ref[3].text_n, 6);
    char stop[3] = {ref[3].text[4], ref[3].text[5], 0};
    const char *stops[] = {"never said", stop};
    uint32_t lens[] = {10, 2};
    const char *first = strstr(ref[3].text, stop);
    int32_t ids[OUT];
    open_box(&b, &c);
    fill_prompt(ids, 26, 3);
    struct eng_request r = {.id = 3, .ids = ids, .n_ids = 26, .max_tokens = 24, .ignore_eos = true, .sampling = {.top_p = 1}, .stops = stops,
                            .stop_lens = lens, .n_stops = 2};
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_OK);
    wait_done(&b, 3);
    ck_assert_int_eq(b.r[3].finish, ENG_STOP);
    ck_assert_int_eq(b.r[3].stop, 1);
    ck_assert_int_eq(ref[3].stop, -1);
    ck_assert_uint_eq(b.r[3].text_n, (size_t)(first - ref[3].text));
    ck_assert(!memcmp(b.r[3].text, ref[3].text, b.r[3].text_n));
    eng_close(b.g);
}
END_TEST

/* Cancelled while waiting, in prefill, in decode, from inside an event, and twice; deadlines; an engine that closes. */
START_TEST(ends)
{
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    c.seqs = 2;
    c.chunk = 4;
    open_meddling(&b, &c, 3, 2);
    for (uint64_t i = 1; i <= 6; i++)
        ck_assert_int_eq(submit(&b, i, 60, 60, 0, &e), ERR_OK);
    eng_cancel(b.g, 6); /* waits */
    wait_done(&b, 6);
    ck_assert_int_eq(b.r[6].finish, ENG_CANCELLED);
    ck_assert_uint_eq(b.r[6].n, 0);
    eng_cancel(b.g, 1); /* prefill or decode */
    wait_tokens(&b, 2, 3);
    eng_cancel(b.g, 2);
    eng_cancel(b.g, 2);
    wait_done(&b, 1);
    wait_done(&b, 2);
    ck_assert_int_eq(b.r[2].finish, ENG_CANCELLED);
    wait_done(&b, 3);
    ck_assert_int_eq(b.r[3].finish, ENG_CANCELLED);
    wait_done(&b, 4);
    wait_done(&b, 5);
    int32_t ids[OUT];
    fill_prompt(ids, 60, 9);
    struct eng_request r = {.id = 9, .ids = ids, .n_ids = 60, .max_tokens = 60, .ignore_eos = true, .sampling = {.top_p = 1}, .deadline_ns = clock_now_ns() + 1};
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_OK);
    wait_done(&b, 9);
    ck_assert_int_eq(b.r[9].finish, ENG_DEADLINE);
    eng_pause(b.g, 10, true); /* nobody of that name */
    pthread_mutex_lock(&b.lock);
    b.pause_id = 11;
    pthread_mutex_unlock(&b.lock);
    ck_assert_int_eq(submit(&b, 11, 20, 60, 0, &e), ERR_OK);
    wait_tokens(&b, 11, 3);
    ck_assert_int_eq(submit(&b, 12, 20, 10, 0, &e), ERR_OK);
    wait_done(&b, 12); /* runs on beside the paused one */
    ck_assert_uint_eq(b.r[11].n_done_events, 0);
    eng_pause(b.g, 11, false);
    wait_done(&b, 11);
    ck_assert_uint_eq(b.r[11].n, 60);
    struct eng_stats st;
    do /* pages are back once the last end was swept */
        eng_stats(b.g, &st);
    while (st.kv_pages_used || st.running);
    eng_drain(b.g);
    ck_assert_int_eq(submit(&b, 13, 20, 10, 0, &e), ERR_CLOSED);
    eng_close(b.g);
    for (int i = 0; i < MAX; i++)
        ck_assert(b.r[i].n_done_events <= 1 && !b.r[i].token_after_done);
}
END_TEST

START_TEST(refusals)
{
    static struct box b;
    struct eng_config c = conf();
    struct err e = {0};
    int32_t ids[200] = {0};
    c.queue_max = 2;
    c.seqs = 1;
    open_box(&b, &c);
    struct eng_request ok = {.id = 1, .ids = ids, .n_ids = 100, .max_tokens = 20, .ignore_eos = true, .sampling = {.top_p = 1}}, r = ok;
    r.n_ids = 128;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_LIMIT);
    r.n_ids = 0;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    r = ok;
    ids[50] = 1 << 20;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(e.msg, "token 50"));
    ids[50] = -1;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    ids[50] = 0;
    r.sampling.top_p = 0;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    r = ok;
    r.sampling.presence = INFINITY;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    r = ok;
    r.bias = (struct eng_bias[1]){{1 << 20, 1}};
    r.n_bias = 1;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(e.msg, "1048576"));
    r = ok;
    r.top_logprobs = 21;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    r = ok;
    r.n_stops = 17;
    ck_assert_int_eq(eng_submit(b.g, &r, &e), ERR_INVALID);
    ck_assert_int_eq(eng_submit(b.g, &ok, &e), ERR_OK);
    ck_assert_int_eq(eng_submit(b.g, &ok, &e), ERR_INVALID); /* the same id */
    int rc = ERR_OK;
    for (uint64_t i = 2; i < 6 && !rc; i++) {
        ok.id = i;
        rc = eng_submit(b.g, &ok, &e);
    }
    ck_assert_int_eq(rc, ERR_AGAIN);
    eng_close(b.g); /* with work in every state */
    c.model_path = "/nonexistent/model.gguf";
    ck_assert_int_ne(eng_open(&b.g, &c, on_event, &b, &e), ERR_OK);
    ck_assert_ptr_null(b.g);
}
END_TEST

int main(void)
{
    snprintf(model, sizeof model, "/tmp/sluice-engine-%d.gguf", (int)getpid());
    tiny_llama_write(model, NULL);
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, batch, 0, 2);
    tcase_add_test(t, settings);
    tcase_add_test(t, bits);
    tcase_add_test(t, preemption);
    tcase_add_test(t, resume);
    tcase_add_loop_test(t, shaping, 0, 2);
    tcase_add_test(t, no_number);
    tcase_add_loop_test(t, allocations, 0, 3);
    tcase_add_test(t, stop_strings);
    suite_add_tcase(s, t);
    t = tcase_create("limits");
    tcase_add_test(t, ends);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    unlink(model);
    return bad != 0;
}
