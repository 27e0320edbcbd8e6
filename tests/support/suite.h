/* tests/support/suite.h - what every test program does in main: run one suite, say how it went.
 *
 *   SUITE("base", "json", core, limits, errors)   at the end of the file, after START_TEST(core) ... END_TEST */
#ifndef SLUICE_TESTS_SUITE_H
#define SLUICE_TESTS_SUITE_H
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* A call that must succeed, and one that must fail with a code and words in its message. Both want `struct err e` in scope. */
#define OK(call) do { int rc_ = (call); ck_assert_msg(rc_ == 0, "%s: %s", #call, e.msg); } while (0)
#define FAILS(code_, words, call) do { e.msg[0] = 0; int rc_ = (call); \
    ck_assert_msg(rc_ == (code_), "%s: expected %s, found %s (%s)", #call, err_name(code_), err_name(rc_), e.msg); \
    ck_assert_msg(strstr(e.msg, (words)) != NULL, "%s: expected \"%s\" in \"%s\"", #call, (words), e.msg); } while (0)

/* Built with address or thread checks, code runs ten times slower: one setting of each kind is run then, since all settings run the same code. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SUITE_SLOW = 1 };
#else
enum { SUITE_SLOW = 0 };
#endif

static inline int suite_main(const char *name, const TTest *const *tests, const char *const *names, size_t n)
{
    Suite *s = suite_create(name);
    for (size_t i = 0; i < n; i++) {
        TCase *c = tcase_create(names[i]);
        tcase_add_test(c, tests[i]);
        suite_add_tcase(s, c);
    }
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
#define SUITE_EACH1(m, a) m(a)
#define SUITE_EACH2(m, a, ...) m(a), SUITE_EACH1(m, __VA_ARGS__)
#define SUITE_EACH3(m, a, ...) m(a), SUITE_EACH2(m, __VA_ARGS__)
#define SUITE_EACH4(m, a, ...) m(a), SUITE_EACH3(m, __VA_ARGS__)
#define SUITE_EACH5(m, a, ...) m(a), SUITE_EACH4(m, __VA_ARGS__)
#define SUITE_EACH6(m, a, ...) m(a), SUITE_EACH5(m, __VA_ARGS__)
#define SUITE_EACH7(m, a, ...) m(a), SUITE_EACH6(m, __VA_ARGS__)
#define SUITE_EACH8(m, a, ...) m(a), SUITE_EACH7(m, __VA_ARGS__)
#define SUITE_EACH9(m, a, ...) m(a), SUITE_EACH8(m, __VA_ARGS__)
#define SUITE_EACH10(m, a, ...) m(a), SUITE_EACH9(m, __VA_ARGS__)
#define SUITE_EACH11(m, a, ...) m(a), SUITE_EACH10(m, __VA_ARGS__)
#define SUITE_EACH12(m, a, ...) m(a), SUITE_EACH11(m, __VA_ARGS__)
#define SUITE_EACH13(m, a, ...) m(a), SUITE_EACH12(m, __VA_ARGS__)
#define SUITE_EACH14(m, a, ...) m(a), SUITE_EACH13(m, __VA_ARGS__)
#define SUITE_EACH15(m, a, ...) m(a), SUITE_EACH14(m, __VA_ARGS__)
#define SUITE_EACH16(m, a, ...) m(a), SUITE_EACH15(m, __VA_ARGS__)
#define SUITE_PICK(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, x, ...) x
#define SUITE_MAP(m, ...) SUITE_PICK(__VA_ARGS__, SUITE_EACH16, SUITE_EACH15, SUITE_EACH14, SUITE_EACH13, SUITE_EACH12, SUITE_EACH11, SUITE_EACH10, SUITE_EACH9, SUITE_EACH8, SUITE_EACH7, SUITE_EACH6, SUITE_EACH5, \
                                     SUITE_EACH4, SUITE_EACH3, SUITE_EACH2, SUITE_EACH1, 0)(m, __VA_ARGS__)
#define SUITE_NAME(t) #t
#define SUITE_TEST(t) t
#define SUITE(layer, module, ...) \
    int main(void) \
    { \
        const TTest *const tests[] = {SUITE_MAP(SUITE_TEST, __VA_ARGS__)}; \
        const char *const names[] = {SUITE_MAP(SUITE_NAME, __VA_ARGS__)}; \
        return suite_main(layer "/" module, tests, names, sizeof tests / sizeof *tests); \
    }
#endif
