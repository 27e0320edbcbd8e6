/* Messages: one line, cut at whole characters, prefixes, and an argument that is the message itself. */
#include <string.h>

#include "base/err.h"
#include "tests/support/suite.h"

START_TEST(core)
{
    struct err e = {0};
    ck_assert_int_eq(err_set(&e, ERR_BUDGET, "%d bytes", 5), ERR_BUDGET);
    ck_assert(e.code == ERR_BUDGET && strstr(e.where, "check_err.c:") != NULL);
    ck_assert_int_eq(err_prefix(&e, ERR_IO, "file %s", "x"), ERR_BUDGET);
    ck_assert_str_eq(e.msg, "file x: 5 bytes");
    err_set(&e, ERR_IO, "again: %s", e.msg);
    ck_assert_str_eq(e.msg, "again: file x: 5 bytes");
    ck_assert(err_set(NULL, ERR_NOMEM, "x") == ERR_NOMEM && err_prefix(NULL, ERR_NOMEM, "x") == ERR_NOMEM);
    ck_assert_str_eq(err_name(ERR_OK), "ok");
    ck_assert_str_eq(err_name(ERR_CLOSED), "closed");
    ck_assert_str_eq(err_name(ERR_CLOSED + 1), "?");
    ck_assert_str_eq(err_name(-1), "?");
}
END_TEST

START_TEST(limits)
{
    struct err e = {0};
    char text[600];
    for (size_t lead = 0; lead < 4; lead++) { /* a three-byte character on every phase of the cut */
        memset(text, 'x', lead);
        for (size_t i = lead; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xE2\x82\xAC", 4);
        err_set(&e, ERR_IO, "%s", text);
        size_t n = strlen(e.msg);
        ck_assert(n >= sizeof e.msg - 4 && n < sizeof e.msg && (n - lead) % 3 == 0);
        err_prefix(&e, ERR_IO, "%s", text);
        ck_assert((strlen(e.msg) - lead) % 3 == 0);
    }
    err_set(&e, ERR_IO, "a\nb\x7F\x01");
    ck_assert_str_eq(e.msg, "a?b??");
}
END_TEST

SUITE("base", "err", core, limits)
