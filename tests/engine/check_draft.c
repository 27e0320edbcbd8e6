/* Speculation in the whole engine: ids, text, log-probabilities and ends as without it, whatever is guessed and however often it is
 * right. */
#include <unistd.h>

#include "offload/catalog.h"
#include "tests/support/engine_rig.h"
#include "tests/support/tiny_llama.h"

static char tiny[64], chain[64];
static const char *models[] = {tiny, chain, "tests/data/models/gemma3", "tests/data/models/kimi_linear"}; /* the last: recurrent states, too */

static struct eng_config conf(int m, enum eng_draft_mode draft)
{
    return (struct eng_config){.model_path = models[m], .ctx = 192, .seqs = 4, .threads = 2, .chunk = 32, .page_tokens = 16, .kv_type = KRN_F16,
                               .ram_max = 256u << 20, .queue_max = MAX, .draft = draft};
}

/* Everything that an end or a draw depends on, by k. Prompts say things several times. */
static void submit(struct box *b, uint64_t id, uint32_t k, const int32_t *done, uint32_t n_done)
{
    struct err e = {0};
    int32_t ids[192];
    uint32_t n = 30 + k % 40;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = tiny_llama_byte((uint8_t)TINY_CHAIN[(i + k) % (k % 3 ? 36 : 5)]);
    if (n_done)
        memcpy(ids + n, done, n_done * sizeof *ids);
    static const char *const stops[] = {"z0", "fgh", "bc"};
    static const uint32_t lens[] = {2, 3, 2};
    static struct eng_bias bias[] = {{10, 1.0f}, {11, -3.0f}};
    struct eng_request r = {.id = id, .ids = ids, .n_ids = n + n_done, .n_done = n_done, .max_tokens = 1 + (k * 7) % 60, .min_tokens = k % 5 == 1 ? 20 : 0,
                            .ignore_eos = k % 5 == 2, .logprobs = true, .top_logprobs = k % 6, .bias = bias, .n_bias = k % 7 == 3 ? 2 : 0,
                            .stops = k % 4 == 1 ? stops : NULL, .stop_lens = lens, .n_stops = k % 4 == 1 ? 3 : 0,
                            .sampling = {.temperature = k % 2 ? 0.8f : 0.0f, .top_p = 0.95f, .seed = k, .repetition = k % 8 == 6 ? 1.1f : 0.0f,
                                         .frequency = k % 8 == 5 ? 0.2f : 0.0f, .presence = k % 8 == 4 ? 0.1f : 0.0f}};
    if (r.max_tokens <= n_done)
        r.max_tokens = n_done + 1;
    OK(eng_submit(b->g, &r, &e));
}

static void reference(int m, uint32_t n, struct req *out)
{
    static struct box b;
    struct eng_config c = conf(m, ENG_DRAFT_OFF);
    c.prefix_off = true;
    open_box(&b, &c);
    for (uint32_t k = 0; k < n; k++) {
        submit(&b, k, k, NULL, 0);
        wait_done(&b, k);
        ck_assert(!b.r[k].usage.draft_tokens && !b.r[k].usage.draft_accepted);
        out[k] = b.r[k];
    }
    eng_close(b.g);
}

/* One by one and all at once; always and where it pays; pages, chunks with hardly any room for guesses, few pages. */
START_TEST(core)
{
    enum { N = 40 };
    static struct req ref[MAX];
    static struct box b;
    static const struct { enum eng_draft_mode draft; uint32_t chunk, page; bool together, little; } v[] = {
        {ENG_DRAFT_ALWAYS, 32, 16, false, false}, {ENG_DRAFT_ALWAYS, 32, 32, true, false}, {ENG_DRAFT_ALWAYS, 6, 16, true, true}, {ENG_DRAFT_AUTO, 32, 64, true, false}};
    int m = _i / 4, w = _i % 4;
    if (SUITE_SLOW && w != m)
        return;
    struct eng_config c = conf(m, v[w].draft);
    struct eng_stats st;
    reference(m, N, ref);
    c.chunk = v[w].chunk;
    c.page_tokens = v[w].page;
    open_box(&b, &c);
    if (v[w].little) {
        eng_stats(b.g, &st);
        eng_close(b.g);
        c.ram_max = st.weight_bytes + st.activation_bytes + st.kv_bytes * 5 / 16 + (m == 3 ? 1 << 20 : 0); /* the states */
        open_box(&b, &c);
    }
    for (uint32_t k = 0; k < N; k++) {
        submit(&b, k, k, NULL, 0);
        if (!v[w].together)
            wait_done(&b, k);
    }
    uint64_t guessed = 0, right = 0;
    for (uint32_t k = 0; k < N; k++) {
        wait_done(&b, k);
        same(&ref[k], 0, &b.r[k], "with guesses", k);
        ck_assert_uint_le(b.r[k].usage.draft_accepted, b.r[k].usage.draft_tokens);
        ck_assert_uint_le(b.r[k].usage.draft_accepted, b.r[k].usage.output_tokens);
        guessed += b.r[k].usage.draft_tokens;
        right += b.r[k].usage.draft_accepted;
    }
    do /* the engine's own count of the last step comes after its events */
        eng_stats(b.g, &st);
    while (st.draft_tokens < guessed || st.draft_accepted < right);
    if (v[w].draft == ENG_DRAFT_ALWAYS && m == 3) /* its text hardly repeats */
        ck_assert_uint_gt(guessed, 0);
    else if (v[w].draft == ENG_DRAFT_ALWAYS)
        ck_assert_msg(guessed > 20 && right > 10 && right < guessed, "%llu guessed, %llu right", (unsigned long long)guessed, (unsigned long long)right);
    if (v[w].draft == ENG_DRAFT_ALWAYS && m == 1 && !v[w].together) { /* the chain's model says what its prompt said */
        uint64_t out = 0;
        for (uint32_t k = 0; k < N; k++)
            out += b.r[k].n;
        ck_assert_uint_gt(right * 2, out);
    }
    eng_close(b.g);
}
END_TEST

/* A life that goes on after k tokens; a pause that comes in the middle of a step's tokens; a cancel. */
START_TEST(lives)
{
    static struct req ref[MAX];
    static struct box b;
    struct eng_config c = conf(_i, ENG_DRAFT_ALWAYS);
    reference(_i, 29, ref);
    uint64_t next = 0;
    open_box(&b, &c);
    for (uint32_t k = 8; k < 29; k += 4) /* greedy ones */
        for (uint32_t done = 1; done + 1 < ref[k].n; done += 7) {
            uint64_t id = next++;
            submit(&b, id, k, ref[k].ids, done);
            wait_done(&b, id);
            same(&ref[k], done, &b.r[id], "resumed", k);
        }
    ck_assert_uint_lt(next, 60);
    b.pause_at_second = 60;
    submit(&b, 60, 16, NULL, 0);
    submit(&b, 61, 20, NULL, 0);
    wait_done(&b, 61);
    same(&ref[20], 0, &b.r[61], "beside a paused one", 20);
    ck_assert_uint_eq(b.r[60].done, 0);
    ck_assert_uint_eq(b.r[60].n, 2); /* what a step had for it beyond that is computed again */
    eng_pause(b.g, 60, false);
    wait_done(&b, 60);
    same(&ref[16], 0, &b.r[60], "paused", 16);
    b.cancel_at_start = 62;
    submit(&b, 62, 8, NULL, 0);
    wait_done(&b, 62);
    ck_assert_int_eq(b.r[62].finish, ENG_CANCELLED);
    eng_close(b.g);
}
END_TEST

enum { A = 70, X = 71, Y = 72 };

/* Each row of an F32 matrix as `with` makes it. */
static void patch(const char *path, const char *name, float *(*with)(float *w, uint32_t row))
{
    struct err e = {0};
    off_catalog *cat;
    float w[TINY_HIDDEN];
    OK(off_catalog_open(&cat, path, 0, &e));
    const struct off_tensor *t = off_catalog_find(cat, name, strlen(name));
    FILE *f = fopen(path, "r+b");
    ck_assert(t && f && t->type == KRN_F32 && t->dims[1] == TINY_HIDDEN);
    for (uint32_t r = 0; r < t->dims[0]; r++) {
        long at = (long)(t->offset + r * sizeof w);
        ck_assert(!fseek(f, at, SEEK_SET) && fread(w, sizeof w, 1, f) == 1);
        ck_assert(!fseek(f, at, SEEK_SET) && fwrite(with(w, r), sizeof w, 1, f) == 1);
    }
    ck_assert_int_eq(fclose(f), 0);
    off_catalog_close(cat);
}
/* X alone has channel 0, Y alone channel 1. */
static float *embed(float *w, uint32_t row)
{
    w[0] = w[1] = 0;
    if (row == X || row == Y) {
        memset(w, 0, TINY_HIDDEN * sizeof *w);
        w[row == Y] = 1;
    }
    return w;
}
/* In each head's slowest rotation, so that every distance gives plus infinity. */
static float *query(float *w, uint32_t row) { w[0] = row % 16 == 14 ? 1e20f : 0; return w; }
static float *key(float *w, uint32_t row) { w[1] = row % 16 == 14 ? 1e20f : 0; return w; }

/* A model in which X after Y is no number, and nothing else: a guess of it that is wrong does no harm, neither to its own sequence nor to
 * the keys and values that stay behind it; one that is right ends the request where it would end without guesses. */
START_TEST(no_number)
{
    static struct req want[2];
    static struct box b;
    char path[80];
    static const struct eng_bias bias[] = {{A, 1000}, {X, 900}};
    int32_t ids[] = {A, A, X, Y, A};
    snprintf(path, sizeof path, "%s.x", tiny);
    tiny_llama_write(path, &(struct tiny_llama){.untied = true, .f32 = true});
    patch(path, "token_embd.weight", embed);
    patch(path, "blk.0.attn_q.weight", query);
    patch(path, "blk.0.attn_k.weight", key);
    for (int draft = 0; draft < 2; draft++) {
        struct eng_config c = conf(0, draft ? ENG_DRAFT_ALWAYS : ENG_DRAFT_OFF);
        struct err e = {0};
        c.model_path = path;
        c.kv_type = KRN_F32;
        c.precision = KRN_PREC_F32;
        open_box(&b, &c);
        for (uint64_t id = 0; id < 2; id++) { /* 0 says A for ever; 1, once, then X */
            struct eng_request r = {.id = id, .ids = ids, .n_ids = 5, .max_tokens = 12, .ignore_eos = true, .logprobs = true, .top_logprobs = 3, .bias = bias,
                                    .n_bias = id ? 2 : 1, .sampling = {.top_p = 1, .presence = id ? 100 : 0, .frequency = id ? 100 : 0}};
            OK(eng_submit(b.g, &r, &e));
            wait_done(&b, id);
            ck_assert_uint_eq(b.r[id].n, id ? 2 : 12);
            ck_assert_int_eq(b.r[id].finish, id ? ENG_FAILED : ENG_LENGTH);
            ck_assert(b.r[id].ids[0] == A && b.r[id].ids[1] == (id ? X : A));
            if (draft) {
                ck_assert_uint_gt(b.r[id].usage.draft_tokens, 0);
                ck_assert(!id || b.r[id].usage.draft_accepted == 1);
                same(&want[id], 0, &b.r[id], "beside a guess that is no number", (uint32_t)id);
            }
            want[id] = b.r[id];
        }
        eng_close(b.g);
    }
    unlink(path);
}
END_TEST

int main(void)
{
    snprintf(tiny, sizeof tiny, "/tmp/sluice-draft-%d.gguf", (int)getpid());
    snprintf(chain, sizeof chain, "/tmp/sluice-draft-chain-%d.gguf", (int)getpid());
    tiny_llama_write(tiny, NULL);
    tiny_llama_write(chain, &(struct tiny_llama){.chain = true});
    Suite *s = suite_create("engine/draft");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, core, 0, 16);
    tcase_add_loop_test(t, lives, 0, 4);
    tcase_add_test(t, no_number);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    unlink(tiny);
    unlink(chain);
    return bad != 0;
}
