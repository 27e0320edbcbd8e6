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
    ck_assert_msg(eng_sample(s, logits, V, p, 0, position, NULL, 0, &id, &e) == ERR_OK, "%s", e.msg);
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
    ck_assert_int_eq(eng_sample(s, logits, V, &p, 0, 0, banned, 2, &id, &e), ERR_OK);
    ck_assert_int_eq(id, 1);
    ck_assert_int_eq(eng_sample(s, logits, 600, &p, 0, 0, NULL, 0, &id, &e), ERR_OK); /* rows beyond the tokenizer */
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
    for (uint32_t pos = 0; pos < 200; pos++) {
        int32_t id = draw(&q, pos);
        ck_assert_int_eq(id, draw(&q, pos));
        differ += id != draw(&other, pos);
    }
    ck_assert_int_gt(differ, 50);
    ck_assert(eng_uniform(1, 0, 0) != eng_uniform(1, 1, 0) && eng_uniform(1, 0, 0) != eng_uniform(2, 0, 0));
}
END_TEST

START_TEST(errors)
{
    struct eng_sampling p = {.top_p = 1};
    struct err e = {0};
    int32_t id;
    logits[17] = NAN;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, 0, 0, NULL, 0, &id, &e), ERR_FORMAT);
    ck_assert_ptr_nonnull(strstr(e.msg, "token 17"));
    for (int i = 0; i < V; i++)
        logits[i] = -INFINITY;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, 0, 0, NULL, 0, &id, &e), ERR_FORMAT);
    logits[3] = INFINITY;
    ck_assert_int_eq(eng_sample(s, logits, V, &p, 0, 0, NULL, 0, &id, &e), ERR_FORMAT);
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
