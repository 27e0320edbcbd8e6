/* Prefix reuse in the whole engine: ids, text and log-probabilities as if every prompt were computed cold, on models with full,
 * mixed, windowed and latent attention; what is counted; who waits for whom. */
#include <unistd.h>

#include "tests/support/engine_rig.h"
#include "tests/support/tiny_llama.h"

enum { PROMPT = 100 };
static char tiny[64];
static const char *models[] = {tiny, "tests/data/models/gemma3", "tests/data/models/mistral", "tests/data/models/deepseek_v3", "tests/data/models/kimi_linear"};

static struct eng_config conf(int m)
{
    return (struct eng_config){.model_path = models[m], .ctx = 192, .seqs = 4, .threads = 2, .chunk = 32, .page_tokens = 16, .kv_type = KRN_F16,
                               .ram_max = 256u << 20, .queue_max = MAX};
}
/* Prompt k: families of prompts that begin alike. n_done of its output tokens are an earlier life's. */
static uint32_t prompt(int32_t *ids, uint32_t k)
{
    uint32_t n = 40 + 13 * (k % 5), shared = k % 3 == 0 ? n : 20 + 8 * (k % 7);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 3 + (int32_t)((i * 37 + i * i * 11 + (i < shared ? 0 : k * 101)) % 250);
    return n;
}
static void submit(struct box *b, uint64_t id, uint32_t k, const char *tenant, const int32_t *done, uint32_t n_done)
{
    struct err e = {0};
    int32_t ids[PROMPT + 20];
    uint32_t n = prompt(ids, k);
    if (n_done)
        memcpy(ids + n, done, n_done * sizeof *ids);
    struct eng_request r = {.id = id, .ids = ids, .n_ids = n + n_done, .n_done = n_done, .max_tokens = 20, .ignore_eos = true, .logprobs = true, .top_logprobs = 5,
                            .tenant = tenant, .sampling = {.temperature = k % 2 ? 0.9f : 0.0f, .top_p = 0.95f, .seed = k, .repetition = k % 4 == 3 ? 1.2f : 0.0f}};
    OK(eng_submit(b->g, &r, &e));
}
/* Prompts 0 .. n - 1, each computed by an engine that shares nothing. */
static void cold(int m, uint32_t n, struct req *out)
{
    static struct box b;
    struct eng_config c = conf(m);
    c.prefix_off = true;
    open_box(&b, &c);
    for (uint32_t k = 0; k < n; k++) {
        submit(&b, k, k, NULL, NULL, 0);
        wait_done(&b, k);
        ck_assert_uint_eq(b.r[k].usage.cached_tokens, 0);
        out[k] = b.r[k];
    }
    struct eng_stats st;
    eng_stats(b.g, &st);
    ck_assert(!st.prefix_hits && !st.prefix_pages);
    eng_close(b.g);
}

/* One after the other: pages, chunks, instruction sets. Then all again: everything but the last page's worth is there. */
START_TEST(core)
{
    enum { N = 12 };
    static struct req ref[MAX];
    static struct box b;
    static const struct { uint32_t page, chunk; enum krn_isa isa; } v[] = {{16, 32, KRN_ISA_AUTO}, {32, 7, KRN_ISA_AUTO}, {64, 128, KRN_ISA_AUTO}, {16, 5, KRN_ISA_C}};
    int m = _i / 4, w = _i % 4;
    if (SUITE_SLOW && w != m % 4)
        return;
    struct eng_config c = conf(m);
    c.page_tokens = v[w].page;
    c.chunk = v[w].chunk;
    c.isa = v[w].isa;
    cold(m, N, ref);
    open_box(&b, &c);
    for (uint32_t k = 0; k < 2 * N; k++) {
        submit(&b, k, k % N, NULL, NULL, 0);
        wait_done(&b, k);
        same(&ref[k % N], 0, &b.r[k], "one by one", k % N);
        uint32_t whole = (b.r[k].usage.prompt_tokens - 1) / c.page_tokens * c.page_tokens;
        ck_assert_uint_le(b.r[k].usage.cached_tokens, whole);
        ck_assert_uint_eq(b.r[k].usage.cached_tokens % c.page_tokens, 0);
        if (m == 0 && k >= N) /* the pool holds all of them; windowed pools do not */
            ck_assert_uint_eq(b.r[k].usage.cached_tokens, whole);
    }
    submit(&b, 2 * N, N - 1, NULL, NULL, 0); /* at once again: whatever the windows */
    wait_done(&b, 2 * N);
    same(&ref[N - 1], 0, &b.r[2 * N], "again", N - 1);
    ck_assert_uint_eq(b.r[2 * N].usage.cached_tokens, (b.r[2 * N].usage.prompt_tokens - 1) / c.page_tokens * c.page_tokens);
    struct eng_stats st;
    do /* the last one's pages go back in the next turn */
        eng_stats(b.g, &st);
    while (st.kv_pages_used);
    ck_assert(st.prefix_lookups == 2 * N + 1 && st.prefix_hits && st.prefix_tokens && st.prefix_pages);
    eng_close(b.g);
}
END_TEST

/* All at once, through more sequences than slots, with pages for all, and with too few for two (preemption, eviction). */
START_TEST(together)
{
    enum { N = 24 };
    static struct req ref[MAX];
    static struct box b;
    int m = _i / 2;
    if (SUITE_SLOW && _i % 2 != m % 2)
        return;
    struct eng_config c = conf(m);
    struct eng_stats st;
    cold(m, N, ref);
    open_box(&b, &c);
    eng_stats(b.g, &st);
    if (_i % 2) { /* again with little */
        eng_close(b.g);
        c.ram_max = st.weight_bytes + st.activation_bytes + st.kv_bytes * 5 / 16;
        open_box(&b, &c);
    }
    for (uint32_t k = 0; k < N; k++)
        submit(&b, k, k, NULL, NULL, 0);
    for (uint32_t k = 0; k < N; k++) {
        wait_done(&b, k);
        same(&ref[k], 0, &b.r[k], _i % 2 ? "together, few pages" : "together", k);
    }
    do
        eng_stats(b.g, &st);
    while (st.kv_pages_used);
    ck_assert(_i % 2 == 0 || st.prefix_evictions);
    ck_assert_uint_le(st.weight_bytes + st.activation_bytes + st.kv_bytes, c.ram_max);
    eng_close(b.g);
}
END_TEST

/* Four of one prompt at once: one computes, three wait and take; and when the one is cancelled, another computes. */
START_TEST(under_way)
{
    static struct req ref[MAX];
    static struct box b;
    int m = _i / 2;
    bool cancelled = _i % 2;
    if (SUITE_SLOW && _i % 2 == m % 2)
        return;
    struct eng_config c = conf(m);
    c.chunk = 4;
    cold(m, 4, ref);
    open_box(&b, &c);
    if (cancelled)
        b.cancel_at_start = 0;
    for (uint32_t id = 0; id < 4; id++)
        submit(&b, id, 3, NULL, NULL, 0);
    uint64_t cached = 0;
    for (uint32_t id = 0; id < 4; id++) {
        wait_done(&b, id);
        if (id || !cancelled)
            same(&ref[3], 0, &b.r[id], "at once", 3);
        cached += b.r[id].usage.cached_tokens;
    }
    ck_assert(!cancelled || b.r[0].finish == ENG_CANCELLED);
    uint64_t whole = (b.r[3].usage.prompt_tokens - 1) / 16 * 16;
    ck_assert_uint_ge(cached, cancelled ? 2 * whole : 3 * whole);
    eng_close(b.g);
}
END_TEST

/* A paused one is not waited for. */
START_TEST(paused)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf(0);
    cold(0, 4, ref);
    open_box(&b, &c);
    submit(&b, 0, 3, NULL, NULL, 0);
    eng_pause(b.g, 0, true);
    submit(&b, 1, 3, NULL, NULL, 0);
    wait_done(&b, 1);
    same(&ref[3], 0, &b.r[1], "beside a paused one", 3);
    eng_pause(b.g, 0, false);
    wait_done(&b, 0);
    same(&ref[3], 0, &b.r[0], "paused", 3);
    eng_close(b.g);
}
END_TEST

/* Another tenant's pages are not there; a life that goes on finds its own prompt, which counts up to its end. */
START_TEST(spaces)
{
    static struct req ref[MAX];
    static struct box b;
    int m = _i;
    struct eng_config c = conf(m);
    cold(m, 4, ref);
    open_box(&b, &c);
    submit(&b, 0, 3, "a", NULL, 0);
    wait_done(&b, 0);
    submit(&b, 1, 3, "b", NULL, 0);
    wait_done(&b, 1);
    ck_assert_uint_eq(b.r[1].usage.cached_tokens, 0);
    same(&ref[3], 0, &b.r[1], "another tenant", 3);
    for (uint32_t done = 1; done < 20; done += 6) {
        submit(&b, 2 + done, 3, "a", ref[3].ids, done);
        wait_done(&b, 2 + done);
        same(&ref[3], done, &b.r[2 + done], "resumed", 3);
        ck_assert_uint_gt(b.r[2 + done].usage.cached_tokens, 0);
        ck_assert_uint_le(b.r[2 + done].usage.cached_tokens, b.r[2 + done].usage.prompt_tokens);
    }
    eng_close(b.g);
}
END_TEST

/* Recurrent layers: prompts go on from snapshots, in chunks of 1, 7, 64 and whole, alone and eight at once, with pages of 16 and 64;
 * again; then conversations that go on; with few pages and snapshots, where sequences lose their slots. */
enum { LONG = 150, TALKS = 8 };
static void say(struct box *b, uint64_t id, uint32_t k, const struct req *before)
{
    struct err e = {0};
    int32_t ids[LONG + TOKENS + 8];
    uint32_t n = LONG - 7 * (k % 4), shared = k % 4 == 0 ? 0 : 70 + 10 * (k % 3);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = 3 + (int32_t)((i * 37 + i * i * 11 + (i < shared ? 0 : (k % 7) * 101)) % 250);
    for (uint32_t i = 0; before && i < before->n; i++)
        ids[n++] = before->ids[i];
    for (uint32_t i = 0; before && i < 8; i++)
        ids[n++] = 5 + (int32_t)i;
    struct eng_request r = {.id = id, .ids = ids, .n_ids = n, .max_tokens = before ? 5 : 40, .ignore_eos = true, .logprobs = true, .top_logprobs = 5,
                            .sampling = {.temperature = k % 2 ? 0.9f : 0.0f, .top_p = 0.95f, .seed = k}};
    OK(eng_submit(b->g, &r, &e));
}

START_TEST(recurrent)
{
    static const struct { uint32_t page, chunk, seqs; bool together, little; } v[] = {
        {16, 1, 1, false, false}, {64, 7, 1, false, false}, {16, 64, 8, true, false}, {64, 192, 8, true, false}, {16, 32, 8, true, true}};
    static struct req ref[2 * TALKS];
    static struct box b;
    struct eng_config c = conf(4);
    struct eng_stats st;
    if (SUITE_SLOW && _i < 4)
        return;
    c.ctx = 256;
    c.seqs = 8;
    c.prefix_off = true;
    open_box(&b, &c);
    for (uint32_t k = 0; k < 2 * TALKS; k++) {
        say(&b, k, k % TALKS, k < TALKS ? NULL : &ref[k - TALKS]);
        wait_done(&b, k);
        ref[k] = b.r[k];
    }
    eng_stats(b.g, &st);
    ck_assert(!st.prefix_hits && !st.snapshots_taken && !st.snapshots_max);
    eng_close(b.g);
    c.prefix_off = false;
    c.page_tokens = v[_i].page;
    c.chunk = v[_i].chunk;
    c.seqs = v[_i].seqs;
    if (v[_i].little) { /* pages of three sequences, less two snapshots or three */
        struct eng_prediction p;
        struct err e = {0};
        OK(eng_predict(&c, &p, &e));
        c.ram_max = p.weight_slot_bytes + p.activation_bytes + p.state_bytes + 3 * p.kv_seq_bytes;
        c.ram_max += 3 * p.snapshot_bytes / p.snapshots;
    }
    open_box(&b, &c);
    for (uint32_t round = 0, id = 0; round < 3; round++) {
        for (uint32_t k = 0; k < TALKS; k++) {
            say(&b, id + k, k, round < 2 ? NULL : &ref[k]);
            if (!v[_i].together)
                wait_done(&b, id + k);
        }
        for (uint32_t k = 0; k < TALKS; k++, id++) {
            wait_done(&b, id);
            const struct eng_usage *u = &b.r[id].usage;
            uint32_t whole = (u->prompt_tokens - 1) / c.page_tokens * c.page_tokens;
            same(&ref[round < 2 ? k : TALKS + k], 0, &b.r[id], round == 0 ? "recurrent" : round == 1 ? "again" : "a conversation", k);
            ck_assert(u->cached_tokens % c.page_tokens == 0 && u->cached_tokens <= whole);
            if (round == 1 && c.seqs == TALKS && !v[_i].little) /* else there is room for some of their snapshots */
                ck_assert_uint_eq(u->cached_tokens, whole);
            if (round == 2 && c.seqs == TALKS && !v[_i].little) /* up to the last page of the answer's known tokens */
                ck_assert_uint_ge(u->cached_tokens, (LONG - 7 * (k % 4) + 39) / c.page_tokens * c.page_tokens);
        }
    }
    do
        eng_stats(b.g, &st);
    while (st.kv_pages_used);
    ck_assert(st.prefix_hits && st.snapshots_taken >= st.snapshots && st.snapshots_restored == st.prefix_hits && st.snapshots <= st.snapshots_max);
    ck_assert(!v[_i].little || (st.snapshots_max && st.snapshots_max < c.seqs && st.prefix_evictions));
    eng_close(b.g);
}
END_TEST

int main(void)
{
    snprintf(tiny, sizeof tiny, "/tmp/sluice-reuse-%d.gguf", (int)getpid());
    tiny_llama_write(tiny, NULL);
    Suite *s = suite_create("engine/reuse");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, core, 0, 16);
    tcase_add_loop_test(t, together, 0, 8);
    tcase_add_loop_test(t, under_way, 0, 8);
    tcase_add_test(t, paused);
    tcase_add_loop_test(t, recurrent, 0, 5);
    tcase_add_loop_test(t, spaces, 0, 4);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    unlink(tiny);
    return bad != 0;
}
