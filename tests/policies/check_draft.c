/* policies/draft: guesses out of texts, and when they pay. */
#include "policies/draft.h"
#include "tests/support/suite.h"

static const struct { const char *text; uint32_t k; const char *guess; } cases[] = {
    {"", 4, ""}, {"a", 4, ""}, {"ab", 4, ""}, {"abcdxyz", 4, ""},
    {"abcdab", 4, "cdab"},                  /* what followed, and then the guesses themselves */
    {"abcdab", 1, "c"},
    {"xabcd.abce.ab", 3, "ce."},            /* equal matches: the latest */
    {"xabcd.zbce.xab", 3, "cd."},           /* the longer match */
    {"axb", 4, ""}, {"bxb", 4, ""},         /* one token alone is no match */
    {"abcdab", 0, ""},
    {"aaaa", 3, "aaa"},                     /* a text that repeats itself overlaps its own end */
    {"0123456789abc0123456789", 8, "abc01234"},
};

START_TEST(core)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t t[64], out[POL_DRAFT_MAX];
        uint32_t n = (uint32_t)strlen(cases[i].text), want = (uint32_t)strlen(cases[i].guess);
        for (uint32_t k = 0; k < n; k++)
            t[k] = cases[i].text[k];
        uint32_t got = pol_draft_guess(t, n, cases[i].k, out);
        ck_assert_msg(got == want, "%s: %u guesses", cases[i].text, got);
        for (uint32_t k = 0; k < got; k++)
            ck_assert_msg(out[k] == cases[i].guess[k], "%s: guess %u is %c", cases[i].text, k, out[k]);
    }
}
END_TEST

START_TEST(record)
{
    struct pol_draft_record r = {0};
    ck_assert(pol_draft_gain(&r, 1) == 0.5f && pol_draft_gain(&r, 2) == 0.75f && pol_draft_gain(&r, 0) == 0);
    for (int i = 0; i < 100; i++)
        pol_draft_seen(&r, 4, 4);
    ck_assert(pol_draft_gain(&r, 4) > 3.9f);
    for (int i = 0; i < 100; i++)
        pol_draft_seen(&r, 4, 0);
    ck_assert(pol_draft_gain(&r, 4) < 0.01f && r.guesses == 500);
    for (int i = 0; i < 1000; i++)
        pol_draft_idle(&r);
    ck_assert(pol_draft_gain(&r, 1) > 0.4f && pol_draft_gain(&r, 1) < 0.5f);
}
END_TEST

/* Rows that cost nothing are always worth their guess, rows that cost a step never; between them the record decides. */
START_TEST(limits)
{
    struct pol_draft_record good = {0.9f, 100}, bad = {0.05f, 100}, none = {0};
    struct pol_draft_cost free_rows = {{0}}, dear = {{0}}, some = {{0}}, unknown = {{0}};
    for (uint32_t n = 1; n <= POL_DRAFT_ROWS; n++) {
        pol_draft_timed(&free_rows, n, 1000000);
        pol_draft_timed(&dear, n, 1000000 * n);
        pol_draft_timed(&some, n, 1000000 + 150000 * n);
    }
    ck_assert_uint_eq(pol_draft_rows(&good, &free_rows, 1, 1, 8), 8);
    ck_assert_uint_eq(pol_draft_rows(&good, &dear, 1, 1, 8), 0);
    ck_assert_uint_gt(pol_draft_rows(&good, &some, 1, 1, 8), 2);
    ck_assert_uint_eq(pol_draft_rows(&bad, &some, 1, 1, 8), 0);
    ck_assert_uint_gt(pol_draft_rows(&none, &unknown, 1, 1, 8), 0); /* tried at least once */
    ck_assert_uint_eq(pol_draft_rows(&good, &free_rows, POL_DRAFT_ROWS, 32, 8), 0);
    ck_assert_uint_eq(pol_draft_rows(&good, &free_rows, 1, 1, 0), 0);
    /* One measured point, then a dear second one: the first try ends it. */
    pol_draft_timed(&unknown, 1, 1000000);
    ck_assert_uint_gt(pol_draft_rows(&none, &unknown, 1, 1, 4), 0);
    for (uint32_t n = 2; n <= 5; n++)
        pol_draft_timed(&unknown, n, 1000000 * n);
    ck_assert_uint_eq(pol_draft_rows(&none, &unknown, 1, 1, 4), 0);
    for (uint32_t n = 0; n < 200; n++) /* times change */
        pol_draft_timed(&unknown, 2, 1000000);
    ck_assert_uint_eq(pol_draft_rows(&none, &unknown, 1, 1, 4), 1);
    pol_draft_timed(&unknown, 0, 1);
    pol_draft_timed(&unknown, POL_DRAFT_ROWS + 1, 1); /* no such rows: nothing happens */
}
END_TEST

SUITE("policies", "draft", core, record, limits)
