/* engine/sampler: what may be drawn, how often, and that it depends on nothing but (logits, parameters, seed, position). */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"

enum { V = 1000 };
static eng_sampler *s;
static float logits[V];

static void open_it(void)
{
    struct err e = {0};
    ck_assert_int_eq(eng_sampler_open(&s, V, &e), ERR_OK);
    srand(5);
    for (int i = 0; i < V; i++)
        logits[i] = (float)(rand() % 4000) / 200.0f - 10.0f;
}
static void close_it(void) { eng_sampler_close(s); }

static int32_t draw(const struct eng_sampling *p, uint32_t position)
{
    struct err e = {0};
    int32_t id = -1;
    ck_assert_msg(eng_sample(s, logits, V, p, &(struct eng_draw){.position = position}, &id, &e) == ERR_OK, "%s", e.msg);
    ck_assert(id >= 0 && id < V);
    return id;
}

/* Rank of an id among the logits: 0 is the largest. */
static int rank_of(int32_t id)
{
    int r = 0;
    for (int i = 0; i < V; i++)
        r += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
    return r;
}

START_TEST(greedy)
{
    struct eng_sampling p = {.top_p = 1};
    struct err e = {0};
    int32_t id;
    ck_assert_int_eq(rank_of(draw(&p, 0)), 0);
    for (int i = 0; i < V; i++)
        logits[i] = 1;
    ck_assert_int_eq(draw(&p, 0), 0); /* smallest id among equals */
    logits[700] = 2;
    int32_t banned[] = {700, 0};
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &(struct eng_draw){.banned = banned, .n_banned = 2}, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 1);
    ck_assert_int_eq(eng_sample(s, logits, 600, &p, &(struct eng_draw){0}, &id, &e), ERR_OK); /* rows beyond the tokenizer */
    ck_assert_int_lt(id, 600);
}
END_TEST

START_TEST(limits)
{
    for (uint32_t pos = 0; pos < 2000; pos++) {
        struct eng_sampling k = {.temperature = 2, .top_p = 1, .top_k = 7, .seed = 3};
        ck_assert_int_lt(rank_of(draw(&k, pos)), 7);
        struct eng_sampling tiny = {.temperature = 1, .top_p = 1e-6f, .seed = 3};
        ck_assert_int_eq(rank_of(draw(&tiny, pos)), 0);
        struct eng_sampling m = {.temperature = 1, .top_p = 1, .min_p = 0.5f, .seed = 3};
        int32_t id = draw(&m, pos);
        float best = -INFINITY;
        for (int i = 0; i < V; i++)
            best = logits[i] > best ? logits[i] : best;
        ck_assert(expf(logits[id] - best) > 0.499f);
    }
}
END_TEST

/* top_p: the smallest set of likeliest tokens with that mass, against a plain sort. */
START_TEST(nucleus)
{
    double p[V], total = 0, sum = 0;
    int order[V], n = 0;
    for (int i = 0; i < V; i++)
        order[rank_of(i)] = i;
    for (int i = 0; i < V; i++)
        total += p[i] = exp((double)logits[order[i]] / 1.5);
    while (sum < 0.9 * total)
        sum += p[n++];
    int seen = 0;
    for (uint32_t pos = 0; pos < 20000; pos++) {
        struct eng_sampling q = {.temperature = 1.5f, .top_p = 0.9f, .seed = 11};
        int r = rank_of(draw(&q, pos));
        ck_assert_int_le(r, n); /* the border token by rounding */
        seen = r > seen ? r : seen;
    }
    ck_assert_int_gt(seen, n / 2);
}
END_TEST

/* Frequencies follow the probabilities: chi-square over five tokens. */
START_TEST(frequencies)
{
    struct eng_sampling q = {.temperature = 1, .top_p = 1, .seed = 99};
    double p[5], total = 0, chi = 0;
    unsigned count[5] = {0}, n = 50000;
    for (int i = 0; i < V; i++)
        logits[i] = -INFINITY;
    for (int i = 0; i < 5; i++) {
        logits[i * 100] = (float)i * 0.5f;
        total += p[i] = exp(i * 0.5);
    }
    for (uint32_t pos = 0; pos < n; pos++)
        count[draw(&q, pos) / 100]++;
    for (int i = 0; i < 5; i++) {
        double want = p[i] / total * n;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    ck_assert_msg(chi < 18.5, "chi-square %g with 4 degrees of freedom", chi); /* 0.1 % */
}
END_TEST

START_TEST(repeatable)
{
    struct eng_sampling q = {.temperature = 1, .top_p = 0.95f, .top_k = 50, .seed = 42}, other = q;
    int differ = 0;
    other.seed = 43;
    struct eng_sampling choice = q;
    choice.choice = 1;
    int differ_too = 0;
    for (uint32_t pos = 0; pos < 200; pos++) {
        int32_t id = draw(&q, pos);
        ck_assert_int_eq(id, draw(&q, pos));
        differ += id != draw(&other, pos);
        differ_too += id != draw(&choice, pos);
    }
    ck_assert_int_gt(differ, 50);
    ck_assert_int_gt(differ_too, 50);
    ck_assert(eng_uniform(1, 0, 0) != eng_uniform(1, 1, 0) && eng_uniform(1, 0, 0) != eng_uniform(2, 0, 0));
}
END_TEST

/* A row of its own against the formulas, written out token by token. */
START_TEST(penalties)
{
    struct err e = {0};
    int32_t id;
    static const int32_t tokens[] = {10, 11, 12, 12, 20, 20, 20, 21, 5000}; /* prompt of 4; an id beyond the row does no harm */
    struct eng_draw d = {.tokens = tokens, .n_prompt = 4, .n_tokens = 9};
    struct eng_sampling p = {.top_p = 1, .presence = 0.5f, .frequency = 0.25f};
    for (int i = 0; i < V; i++)
        logits[i] = -5;
    logits[10] = 3;   /* in the prompt: neither penalty */
    logits[20] = 4.2f; /* three times in the output: 4.2 - 0.75 - 0.5 = 2.95 */
    logits[21] = 3.7f; /* once: 2.95 */
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 10);
    logits[20] = 4.3f; /* 3.05 */
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 20);
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK); /* nothing stays from the call before */
    ck_assert_int_eq(id, 20);
    p = (struct eng_sampling){.top_p = 1, .repetition = 2};
    logits[30] = 2.2f; /* the others are halved: 1.5, 2.15, 1.85 */
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 30);
    for (int i = 0; i < V; i++)
        logits[i] = -1;
    for (int i = 0; i < 8; i++)
        logits[tokens[i]] = -0.6f; /* below zero: multiplied, -1.2 */
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 0);

    struct eng_bias bias[] = {{7, 5}, {0, -100}, {9999, 50}};
    d = (struct eng_draw){.bias = bias, .n_bias = 3};
    p = (struct eng_sampling){.top_p = 1};
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 7);
    bias[0].bias = -100;
    p.temperature = 2;
    for (int i = 10; i < V; i++)
        logits[i] = -200;
    for (d.position = 0; d.position < 500; d.position++) {
        ck_assert_int_eq(eng_sample(s, logits, V, &p, &d, &id, &e), ERR_OK);
        ck_assert(id != 7 && id != 0 && id < 10);
    }
}
END_TEST

START_TEST(logprobs)
{
    struct eng_logprobs lp;
    double total = 0, sum = 0;
    for (int i = 0; i < V; i++)
        total += exp((double)logits[i]);
    for (uint32_t k = 0; k <= ENG_TOP_MAX; k++) {
        eng_sample_logprobs(s, logits, V, 17, k, &lp);
        ck_assert(fabs((double)lp.logprob - (logits[17] - log(total))) < 1e-5);
        ck_assert_uint_eq(lp.n_top, k);
        for (uint32_t i = 0; i < k; i++) {
            ck_assert_int_eq(rank_of(lp.top[i].id), (int)i);
            ck_assert(fabs((double)lp.top[i].logprob - (logits[lp.top[i].id] - log(total))) < 1e-5);
        }
    }
    for (int32_t i = 0; i < V; i++) {
        eng_sample_logprobs(s, logits, V, i, 0, &lp);
        sum += exp((double)lp.logprob);
    }
    ck_assert(fabs(sum - 1) < 1e-4);
    eng_sample_logprobs(s, logits, 3, 0, 20, &lp); /* a vocabulary smaller than the list */
    ck_assert_uint_eq(lp.n_top, 3);
}
END_TEST

START_TEST(errors)
{
    struct eng_sampling p = {.top_p = 1};
    struct err e = {0};
    int32_t id;
    logits[17] = NAN;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &(struct eng_draw){0}, &id, &e), ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(e.msg, "token 17"));
    for (int i = 0; i < V; i++)
        logits[i] = -INFINITY;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &(struct eng_draw){0}, &id, &e), ERR_FORMAT);
    logits[3] = INFINITY;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, &(struct eng_draw){0}, &id, &e), ERR_FORMAT);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *t = tcase_create("core");
    tcase_add_checked_fixture(t, open_it, close_it);
    tcase_add_test(t, greedy);
    tcase_add_test(t, nucleus);
    tcase_add_test(t, frequencies);
    tcase_add_test(t, repeatable);
    tcase_add_test(t, penalties);
    tcase_add_test(t, logprobs);
    suite_add_tcase(suite, t);
    t = tcase_create("limits");
    tcase_add_checked_fixture(t, open_it, close_it);
    tcase_add_test(t, limits);
    tcase_add_test(t, errors);
    suite_add_tcase(suite, t);
    SRunner *r = srunner_create(suite);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
