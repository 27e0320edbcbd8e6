/* Names: to numbers and back through growth and filtering; what counts as a name. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/names.h"

START_TEST(core)
{
    enum { N = 5000 };
    struct off_names t;
    bool fresh, *keep = calloc(N, sizeof *keep);
    char s[32];
    off_names_init(&t);
    ck_assert_uint_eq(off_names_find(&t, "x", 1), OFF_NO_NAME);
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(s, sizeof s, "name.%u", i);
        ck_assert_uint_eq(off_names_add(&t, s, (size_t)n, &fresh), i);
        ck_assert(fresh);
        ck_assert_uint_eq(off_names_add(&t, s, (size_t)n, &fresh), i);
        ck_assert(!fresh);
        keep[i] = i % 3 == 1;
    }
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(s, sizeof s, "name.%u", i);
        ck_assert_uint_eq(off_names_find(&t, s, (size_t)n), i);
        ck_assert(t.v[i].n == (uint32_t)n && !strcmp(t.v[i].s, s));
    }
    ck_assert_uint_eq(off_names_find(&t, "name.", 5), OFF_NO_NAME);
    off_names_filter(&t, keep);
    ck_assert_uint_eq(t.n, (N + 1) / 3);
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(s, sizeof s, "name.%u", i);
        ck_assert_uint_eq(off_names_find(&t, s, (size_t)n), i % 3 == 1 ? i / 3 : OFF_NO_NAME);
    }
    ck_assert_uint_eq(off_names_add(&t, "", 0, &fresh), t.n - 1);
    ck_assert(fresh && off_names_find(&t, "", 0) == t.n - 1);
    ck_assert_uint_gt(t.bytes, t.n * sizeof *t.v);
    off_names_free(&t);
    off_names_free(&t);
    free(keep);
}
END_TEST

START_TEST(limits)
{
    static const struct { const char *s; size_t n; bool valid; } cases[] = {
        {"", 0, true}, {"abc", 3, true}, {"a\0b", 3, false}, {"\x7f", 1, true}, {"\x80", 1, false}, {"\xc2\x80", 2, true}, {"\xc1\xbf", 2, false},
        {"\xc3", 1, false}, {"\xdf\xbf", 2, true}, {"\xe0\x9f\xbf", 3, false}, {"\xe0\xa0\x80", 3, true}, {"\xed\x9f\xbf", 3, true},
        {"\xed\xa0\x80", 3, false}, {"\xef\xbf\xbf", 3, true}, {"\xf0\x8f\xbf\xbf", 4, false}, {"\xf0\x90\x80\x80", 4, true}, {"\xf4\x8f\xbf\xbf", 4, true},
        {"\xf4\x90\x80\x80", 4, false}, {"\xf5\x80\x80\x80", 4, false}, {"\xe2\x82", 2, false}, {"\xe2\x82x", 3, false}, {"a\xff", 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(off_name_valid(cases[i].s, cases[i].n) == cases[i].valid, "case %zu", i);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("names");
    TCase *t = tcase_create("core");
    tcase_add_test(t, core);
    tcase_add_test(t, limits);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
