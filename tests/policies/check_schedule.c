/* policies/schedule: tables of snapshots and decisions. */
#include <check.h>
#include <stdlib.h>

#include "policies/schedule.h"

#define RUN(left, prio, served, arr) {.running = true, .runnable = true, .n_left = (left), .priority = (prio), .tenant_served = (served), .arrival = (arr)}
#define WAITS(prio, served, arr) {.runnable = true, .n_left = 9, .priority = (prio), .tenant_served = (served), .arrival = (arr)}

static const struct {
    const char *what;
    uint32_t budget;
    size_t n;
    struct pol_seq s[4];
    uint32_t take[4];
} cases[] = {
    {"decodes first, the prompt gets the rest", 8, 3, {RUN(100, 0, 0, 0), RUN(1, 0, 0, 1), RUN(1, 0, 0, 2)}, {6, 1, 1}},
    {"budget smaller than the decodes", 1, 2, {RUN(1, 0, 0, 0), RUN(1, 0, 0, 1)}, {1, 0}},
    {"first come first served among prompts", 10, 2, {RUN(8, 0, 0, 5), RUN(8, 0, 0, 4)}, {2, 8}},
    {"priority beats arrival", 10, 2, {RUN(8, 0, 0, 0), RUN(8, 3, 0, 9)}, {2, 8}},
    {"the less served tenant goes first", 10, 2, {RUN(8, 0, 500, 0), RUN(8, 0, 20, 9)}, {2, 8}},
    {"paused ones take nothing", 10, 2, {{.running = true, .n_left = 8}, RUN(8, 0, 0, 1)}, {0, 8}},
    {"waiting ones take nothing", 10, 2, {WAITS(9, 0, 0), RUN(8, 0, 0, 1)}, {0, 8}},
    {"nothing to do", 10, 0, {{0}}, {0}},
};

START_TEST(core)
{
    uint32_t take[4], order[4], sum = 0;
    struct pol_schedule_limits lim = {.tokens_max = cases[_i].budget, .seqs_max = 4};
    uint32_t got = pol_schedule(cases[_i].s, cases[_i].n, &lim, take, order);
    for (size_t i = 0; i < cases[_i].n; i++) {
        ck_assert_msg(take[i] == cases[_i].take[i], "%s: sequence %zu takes %u", cases[_i].what, i, take[i]);
        sum += take[i];
    }
    ck_assert_uint_eq(got, sum);
}
END_TEST

START_TEST(admission)
{
    struct pol_seq s[] = {RUN(1, 0, 0, 0), WAITS(0, 5, 1), WAITS(0, 4, 2), WAITS(1, 9, 3), {.n_left = 1, .priority = 99}};
    struct pol_schedule_limits lim = {.tokens_max = 8, .seqs_max = 2};
    ck_assert_uint_eq(pol_admit(s, 5, &lim), 3);
    ck_assert_uint_eq(pol_admit(s, 3, &lim), 2);
    lim.seqs_max = 1;
    ck_assert(pol_admit(s, 5, &lim) == SIZE_MAX);
}
END_TEST

START_TEST(preemption)
{
    struct pol_seq s[] = {RUN(1, 1, 0, 0), RUN(1, 0, 7, 1), RUN(1, 0, 7, 2), WAITS(-5, 0, 3)};
    ck_assert_uint_eq(pol_preempt(s, 4, 0), 2);
    ck_assert_uint_eq(pol_preempt(s, 1, 0), 0);
    ck_assert_uint_eq(pol_preempt(s, 3, 2), 2);
}
END_TEST

/* Whatever the snapshot: the budget holds, nobody takes more than he has left, and work is never left lying. */
START_TEST(limits)
{
    srand(7);
    for (int round = 0; round < 20000; round++) {
        struct pol_seq s[6];
        uint32_t take[6], order[6], want = 0;
        struct pol_schedule_limits lim = {.tokens_max = 1 + (uint32_t)(rand() % 20), .seqs_max = 6};
        for (int i = 0; i < 6; i++) {
            s[i] = (struct pol_seq){.running = rand() % 2, .runnable = rand() % 4, .n_left = 1 + (uint32_t)(rand() % 12),
                                    .priority = rand() % 3, .tenant_served = (uint64_t)(rand() % 3), .arrival = (uint64_t)i};
            if (s[i].running && s[i].runnable)
                want += s[i].n_left;
        }
        uint32_t got = pol_schedule(s, 6, &lim, take, order);
        ck_assert_uint_eq(got, want < lim.tokens_max ? want : lim.tokens_max);
        for (int i = 0; i < 6; i++) {
            ck_assert(take[i] <= s[i].n_left);
            ck_assert(!take[i] || (s[i].running && s[i].runnable));
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("schedule");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, core, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, admission);
    tcase_add_test(t, preemption);
    suite_add_tcase(s, t);
    t = tcase_create("limits");
    tcase_add_test(t, limits);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
