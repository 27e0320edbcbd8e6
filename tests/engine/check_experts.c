/* Mixtures whose experts do not all fit: logits bit for bit as if they did, from the floor up (one layer of the trunk and one token's
 * experts of a layer), in any chunks and company; texts of several requests with and without drafts; drives that fail. */
#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/engine_internal.h"
#include "engine/session.h"
#include "offload/io.h"
#include "tests/support/bad_io.h"
#include "tests/support/suite.h"

enum { PROMPT = 21, DECODE = 3, SEQS = 4, LEN = PROMPT + DECODE, ROUNDS = 3, TEXT = 16 };
static struct err e;
static const char *const models[] = {"tests/data/models/qwen3_moe", "tests/data/models/gpt_oss", "tests/data/models/deepseek_v3", "tests/data/models/kimi_linear"};
enum { N_MODELS = sizeof models / sizeof *models };

static int32_t token(uint32_t vocab, uint32_t seq, uint32_t i) { return (int32_t)((i * i * 29 + seq * 101 + i * seq * 7 + 3) % vocab); }

static int open_session(eng_session **s, const char *model, uint64_t ram)
{
    struct eng_config c = {.model_path = model, .ctx = 64, .seqs = SEQS, .threads = 2, .chunk = 64, .page_tokens = 16, .kv_type = KRN_TYPE_COUNT, .ram_max = ram};
    return eng_session_open(s, &c, SEQS, &e);
}

/* Logits after the prompt and after each further token of every sequence: [SEQS][1 + DECODE][vocab]. chunk: prompt tokens a step.
 * together: all sequences in one step, else one after the other. */
static void run(eng_session *s, uint32_t chunk, bool together, float *out)
{
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    int32_t ids[SEQS][LEN];
    for (uint32_t q = 0; q < SEQS; q++)
        for (uint32_t i = 0; i < LEN; i++)
            ids[q][i] = token(vocab, q, i);
    for (uint32_t q0 = 0, n = together ? SEQS : 1; q0 < SEQS; q0 += n)
        for (uint32_t at = 0, k; at < LEN; at += k) {
            struct eng_part p[SEQS];
            k = at < PROMPT ? (PROMPT - at < chunk ? PROMPT - at : chunk) : 1;
            for (uint32_t q = 0; q < n; q++)
                p[q] = (struct eng_part){.slot = q0 + q, .pos0 = at, .n = k, .tokens = ids[q0 + q] + at, .picks = at + k >= PROMPT ? ENG_PICK_LAST : ENG_PICK_NONE};
            OK(eng_session_step(s, p, n, NULL, NULL, &e));
            for (uint32_t q = 0; q < n && at + k >= PROMPT; q++)
                memcpy(out + ((q0 + q) * (1 + DECODE) + at + k - PROMPT) * vocab, eng_session_logits(s, q), vocab * sizeof *out);
        }
    for (uint32_t q = 0; q < SEQS; q++)
        eng_session_drop(s, q);
}

/* A refusal says exactly what is missing. */
static uint64_t missing(void)
{
    const char *p = strstr(e.msg, " bytes are missing");
    ck_assert_msg(p != NULL, "%s", e.msg);
    while (p > e.msg && p[-1] >= '0' && p[-1] <= '9')
        p--;
    return strtoull(p, NULL, 10);
}

/* The smallest budget. */
static uint64_t floor_of(const char *model, uint64_t ram)
{
    eng_session *s;
    for (int tries = 0; tries < 4; tries++) {
        int rc = open_session(&s, model, ram);
        if (!rc) {
            eng_session_close(s);
            return ram;
        }
        ck_assert_int_eq(rc, ERR_BUDGET);
        ram += missing();
    }
    ck_abort_msg("what is missing was never enough: %s", e.msg);
    return 0;
}

static uint64_t whole_of(const char *model, struct off_weights_stats *w)
{
    eng_session *s;
    OK(open_session(&s, model, 1u << 30));
    eng_session_weights(s, w);
    eng_session_close(s);
    return 1u << 30;
}

START_TEST(exact)
{
    const char *model = models[_i];
    struct off_weights_stats w;
    eng_session *s;
    whole_of(model, &w);
    OK(open_session(&s, model, 1u << 30));
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    size_t n = (size_t)SEQS * (1 + DECODE) * vocab;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    uint64_t others = eng_session_others(s);
    run(s, PROMPT, false, want);
    eng_session_close(s);
    uint64_t least = floor_of(model, others + w.slot_bytes / 4), most = others + w.slot_bytes;
    ck_assert_int_eq(open_session(&s, model, least - 1), ERR_BUDGET);
    for (unsigned i = 0; i < ROUNDS; i++) {
        static const struct { uint32_t chunk; bool together; } ways[ROUNDS] = {{1, false}, {16, true}, {PROMPT, false}};
        OK(open_session(&s, model, least + (most - 1 - least) * i / (ROUNDS - 1)));
        for (unsigned k = 0; k < ROUNDS; k++) {
            if (k != i && (SUITE_SLOW || k != 1))
                continue;
            memset(got, 0, n * sizeof *got);
            run(s, ways[k].chunk, ways[k].together, got);
            ck_assert_msg(!memcmp(want, got, n * sizeof *got), "%s, budget %u, way %u: other logits", model, i, k);
        }
        eng_session_weights(s, &w);
        if (!w.expert_slots) { /* reading buffers beside the floor of so small a model can be more than the model */
            ck_assert_msg(_i == 1 || _i == 2, "%s: nothing is cached", model);
            printf("SKIP %s, budget %u: all of it is smaller than a part and its readers\n", model, i);
        } else {
            ck_assert_uint_lt(w.expert_slots, w.experts);
            ck_assert_uint_gt(w.expert_misses, 0);
            ck_assert(w.expert_slots < w.experts / 2 || w.expert_hits > 0);
        }
        ck_assert_uint_le(w.resident_bytes + w.window_bytes + w.staging_bytes + w.expert_bytes + others, least + (most - 1 - least) * i / (ROUNDS - 1));
        eng_session_close(s);
    }
    free(want);
    free(got);
}
END_TEST

/* ---- the engine ------------------------------------------------------------------------------------------------------ */
struct box { pthread_mutex_t lock; pthread_cond_t cond; struct { int32_t ids[40]; uint32_t n; bool done, failed; char why[400]; } r[SEQS]; };

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct box *b = ctx;
    pthread_mutex_lock(&b->lock);
    if (ev->type == ENG_EV_TOKEN)
        b->r[ev->id % SEQS].ids[b->r[ev->id % SEQS].n++] = ev->token;
    if (ev->type == ENG_EV_DONE) {
        b->r[ev->id % SEQS].done = true;
        b->r[ev->id % SEQS].failed = ev->finish == ENG_FAILED;
        if (ev->finish == ENG_FAILED)
            snprintf(b->r[ev->id % SEQS].why, sizeof b->r[ev->id % SEQS].why, "%s", ev->err->msg);
    }
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static struct eng_config serving(const char *model, uint64_t ram, bool drafts)
{
    return (struct eng_config){.model_path = model, .ctx = 128, .seqs = SEQS, .threads = 2, .chunk = 16, .page_tokens = 16, .kv_type = KRN_TYPE_COUNT, .ram_max = ram,
                               .queue_max = SEQS, .draft = drafts ? ENG_DRAFT_AUTO : ENG_DRAFT_OFF};
}

/* With the smallest budget from `ram` on that the model opens with. */
static uint64_t open_least(eng_engine **g, const char *model, uint64_t ram, bool drafts, struct box *b)
{
    for (int tries = 0; tries < 60; tries++) { /* KV takes a share of what is added */
        struct eng_config c = serving(model, ram, drafts);
        int rc = eng_open(g, &c, on_event, b, &e);
        if (!rc)
            return ram;
        ck_assert_int_eq(rc, ERR_BUDGET);
        ram += missing();
    }
    ck_abort_msg("what is missing was never enough: %s", e.msg);
    return 0;
}

static void generate(eng_engine *g, uint32_t vocab, struct box *b)
{
    static uint32_t next = SEQS; /* an id is free again a little after its DONE */
    *b = (struct box){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    for (uint32_t k = 0; k < SEQS; k++) {
        int32_t ids[PROMPT + SEQS * 8];
        for (uint32_t i = 0; i < PROMPT + SEQS * 8; i++)
            ids[i] = token(vocab, k, i % 9); /* a text that repeats itself: there is something to guess */
        struct eng_request r = {.id = next++, .ids = ids, .n_ids = 12 + 8 * k, .max_tokens = TEXT, .ignore_eos = true, .sampling = {.temperature = k % 2 ? 0.8f : 0, .top_p = 1, .seed = k}};
        OK(eng_submit(g, &r, &e));
    }
    pthread_mutex_lock(&b->lock);
    for (uint32_t k = 0; k < SEQS; k++)
        while (!b->r[k].done)
            pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void same_texts(const struct box *a, const struct box *b, const char *what)
{
    for (uint32_t k = 0; k < SEQS; k++)
        ck_assert_msg(!b->r[k].failed && a->r[k].n == b->r[k].n && a->r[k].n == TEXT && !memcmp(a->r[k].ids, b->r[k].ids, sizeof a->r[k].ids), "%s: request %u: other text", what, k);
}

START_TEST(served)
{
    static struct box whole, part;
    struct eng_stats st;
    eng_engine *g;
    const char *model = models[_i];
    struct eng_config c = serving(model, 1u << 30, false);
    OK(eng_open(&g, &c, on_event, &whole, &e));
    uint32_t vocab = g->model->plan->vocab;
    generate(g, vocab, &whole);
    eng_stats(g, &st);
    ck_assert_uint_eq(st.expert_slots, 0);
    uint64_t ram = st.activation_bytes + st.kv_bytes + st.weight_bytes / 4;
    eng_close(g);
    for (int drafts = 0; drafts < 2; drafts++) {
        ram = open_least(&g, model, ram + (uint64_t)drafts * st.weight_bytes / 10, drafts, &part);
        generate(g, vocab, &part);
        same_texts(&whole, &part, drafts ? "drafts" : "no drafts");
        eng_stats(g, &st);
        ck_assert(_i == 1 || _i == 2 || st.expert_slots > 0); /* as above */
        ck_assert(!st.expert_slots || (st.expert_misses > 0 && st.expert_read_bytes > 0));
        eng_close(g);
    }
}
END_TEST

/* Reads fail: the requests end with the reason, the engine lives and the next ones are right. */
START_TEST(faults)
{
    static struct box whole, part;
    eng_engine *g;
    struct eng_stats st;
    int failed = 0;
    struct eng_config c = serving(models[0], 1u << 30, false);
    OK(eng_open(&g, &c, on_event, &whole, &e));
    uint32_t vocab = g->model->plan->vocab;
    generate(g, vocab, &whole);
    eng_stats(g, &st);
    eng_close(g);
    bad_io_after(1 << 30, 0);
    off_io_pread = bad_io_pread;
    open_least(&g, models[0], st.activation_bytes + st.kv_bytes + st.weight_bytes / 4, false, &part);
    for (int n = 0; n < 24; n += SUITE_SLOW ? 12 : 6) {
        bad_io_after(n, n % 12 ? EIO : 0);
        generate(g, vocab, &part);
        for (uint32_t k = 0; k < SEQS; k++) {
            failed += part.r[k].failed;
            ck_assert_msg(!part.r[k].failed || strstr(part.r[k].why, "tensor \""), "%s", part.r[k].why);
        }
        bad_io_after(1 << 30, 0);
        generate(g, vocab, &part);
        same_texts(&whole, &part, "after a fault");
    }
    ck_assert_int_gt(failed, 0);
    eng_close(g);
    off_io_pread = pread;
}
END_TEST

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert(f && fputs(text, f) >= 0 && !fclose(f));
}

static uint64_t lines_of(const char *path)
{
    uint64_t n = 0;
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    for (int c; (c = getc(f)) != EOF;)
        n += c == '\n';
    fclose(f);
    return n;
}

/* Who was in memory at the end is read ahead at the next start; a file of something else changes nothing. */
START_TEST(warm)
{
    static struct box first, second;
    char path[64];
    eng_engine *g;
    struct eng_stats st;
    snprintf(path, sizeof path, "/tmp/check_experts.%d", (int)getpid());
    struct eng_config c = serving(models[0], 1u << 30, false);
    OK(eng_open(&g, &c, on_event, &first, &e));
    uint32_t vocab = g->model->plan->vocab;
    eng_stats(g, &st);
    eng_close(g);
    uint64_t ram = open_least(&g, models[0], st.activation_bytes + st.kv_bytes + st.weight_bytes / 4, false, &first);
    eng_close(g);
    c = serving(models[0], ram, false);
    c.warm_path = path;
    for (int i = 0; i < 4; i++) { /* no file; one of this model; two that are not */
        if (i >= 2)
            write_text(path, i == 2 ? "sluice-experts 1 00 1 1\n0\n" : "");
        OK(eng_open(&g, &c, on_event, i ? &second : &first, &e));
        generate(g, vocab, i ? &second : &first);
        eng_stats(g, &st);
        ck_assert_msg(i == 1 || !st.expert_preloaded, "run %d: %llu read ahead", i, (unsigned long long)st.expert_preloaded); /* 1: into what the self-test left free */
        eng_close(g);
        if (i)
            same_texts(&first, &second, "warm");
        ck_assert_uint_eq(lines_of(path), 1 + st.expert_slots);
    }
    unlink(path);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("experts");
    TCase *t = tcase_create("experts");
    tcase_add_loop_test(t, exact, 0, N_MODELS);
    tcase_add_loop_test(t, served, 0, N_MODELS);
    tcase_add_test(t, faults);
    tcase_add_test(t, warm);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
