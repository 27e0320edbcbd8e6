/* Tables of expressions and their values; messages; bounds. */
#include <stdio.h>
#include <string.h>

#include "engine/expr.h"
#include "tests/support/suite.h"

static int name_of(void *ctx, const char *name, struct eng_value *out, struct err *e)
{
    static const int64_t list[] = {4, 8, 9};
    static struct eng_value items[3];
    (void)ctx;
    if (!strcmp(name, "hd"))
        *out = eng_v_int(64);
    else if (!strcmp(name, "half"))
        *out = eng_v_num(0.5);
    else if (!strcmp(name, "none"))
        *out = (struct eng_value){.type = ENG_V_NULL};
    else if (!strcmp(name, "index"))
        *out = eng_v_int(2);
    else if (!strcmp(name, "list")) {
        for (int i = 0; i < 3; i++)
            items[i] = eng_v_int(list[i]);
        *out = (struct eng_value){.type = ENG_V_LIST, .u.items = items, .n = 3};
    } else
        return err_set(e, ERR_NOTFOUND, "`%s` is not a parameter", name);
    return ERR_OK;
}

static int eval(const char *text, char *out, size_t n, struct err *e)
{
    struct arena a;
    struct eng_expr *x;
    struct eng_value v;
    arena_init(&a, 1 << 20);
    struct eng_scope s = {NULL, name_of, NULL, &a, 10000, 0};
    int rc = eng_expr_parse(&x, text, &a, e);
    if (!rc)
        rc = eng_expr_eval(x, &s, &v, e);
    if (!rc)
        eng_v_show(&v, out, n);
    arena_free(&a);
    return rc;
}

static const struct { const char *text, *value; } good[] = {
    {"1 + 2 * 3", "7"}, {"(1 + 2) * 3", "9"}, {"7 / 2", "3.5"}, {"8 / 2", "4"}, {"7 // 2", "3"}, {"-7 // 2", "-4"}, {"-7 % 3", "2"}, {"7 % -3", "-2"},
    {"2 ** 10", "1024"}, {"-2 ** 2", "-4"}, {"2 ** -1", "0.5"}, {"hd ** -0.5", "0.125"}, {"hd ** -0.5 * 2 ** 2", "0.5"}, {"2 ** 3 ** 2", "512"}, {"1 - 1 - 1", "-1"}, {"16 / 4 / 2", "2"},
    {"3 > 2 ? 'a' : 'b'", "'a'"}, {"3 < 2 ? 1 : 2 == 2 ? 3 : 4", "3"}, {"none ?? 5", "5"}, {"none ?? none ?? 6", "6"}, {"0 ?? 5", "0"},
    {"true || nope", "true"}, {"false && nope", "false"}, {"true ? 1 : nope", "1"}, {"1 ?? nope", "1"}, {"1 && 2", "true"}, {"!none", "true"}, {"!!hd", "true"},
    {"8 in list", "true"}, {"5 in list", "false"}, {"index + 1", "3"}, {"list[2]", "9"}, {"list[index - 1]", "8"}, {"len(list)", "3"}, {"len('abcd')", "4"}, {"[1, 'x', [2]]", "[1, 'x', [2]]"}, {"[]", "[]"},
    {"min(3, 1.5, 2)", "1.5"}, {"max(list)", "9"}, {"floor(2.7) + ceil(2.1)", "5"}, {"int(-2.7)", "-2"}, {"sqrt(16)", "4"}, {"log(1)", "0"}, {"int(hd * half)", "32"},
    {"1 == 1.0", "true"}, {"'a' == 'a'", "true"}, {"'a' == 1", "false"}, {"none == null", "true"}, {"list == [4, 8, 9]", "true"}, {"2 != 3", "true"}, {"2 <= 2", "true"}, {"3 >= 4", "false"},
    {"0.000001", "1e-06"}, {"1e-5 * 2", "2e-05"}, {"1 << 2", NULL}, {"", NULL}};

START_TEST(core)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char out[100] = "";
        struct err e = {0};
        int rc = eval(good[i].text, out, sizeof out, &e);
        if (!good[i].value)
            ck_assert_msg(rc == ERR_FORMAT, "%s gave %s", good[i].text, out);
        else
            ck_assert_msg(!rc && !strcmp(out, good[i].value), "%s: expected %s, found %s %s", good[i].text, good[i].value, out, rc ? e.msg : "");
    }
}
END_TEST

static const struct { const char *text; int code; const char *says; } bad[] = {
    {"hd +", ERR_FORMAT, "expected an expression at column 5 of `hd +`"},
    {"(1 + 2", ERR_FORMAT, "expected `)` at column 7"},
    {"1 2", ERR_FORMAT, "expected an operator or the end at column 3"},
    {"'abc", ERR_FORMAT, "expected a closing '"},
    {"a ? b", ERR_FORMAT, "expected `:`"},
    {"swish(1)", ERR_FORMAT, "no function `swish`"},
    {"cfg('x')", ERR_INVALID, "cfg is not available here"},
    {"hdd * 2", ERR_NOTFOUND, "`hdd` is not a parameter"},
    {"1 / 0", ERR_INVALID, "division by zero"},
    {"1.0 / 0", ERR_INVALID, "no finite number"},
    {"9223372036854775807 + 1", ERR_INVALID, "overflow"},
    {"9223372036854775808", ERR_FORMAT, "expected a number"},
    {"3 ** 60", ERR_INVALID, "overflow"},
    {"'a' + 1", ERR_INVALID, "expected a number, found text 'a'"},
    {"none * 2", ERR_INVALID, "expected a number, found null"},
    {"list[3]", ERR_INVALID, "index 3 in a list of 3"},
    {"1 in 2", ERR_INVALID, "expected a list after `in`"},
    {"hd.x", ERR_INVALID, "expected an object"},
    {"min()", ERR_INVALID, "needs an argument"},
    {"sqrt(-1)", ERR_INVALID, "sqrt of -1"},
    {"len(3)", ERR_INVALID, "expected a list or text"},
    {"1..2", ERR_FORMAT, "expected a number"}};

START_TEST(errors)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char out[100] = "";
        struct err e = {0};
        int rc = eval(bad[i].text, out, sizeof out, &e);
        ck_assert_msg(rc == bad[i].code && strstr(e.msg, bad[i].says), "%s: expected %d with `%s`, found %d `%s` %s", bad[i].text, bad[i].code, bad[i].says, rc, e.msg, out);
    }
}
END_TEST

START_TEST(limits)
{
    char text[2000], out[100];
    struct err e = {0};
    memset(text, '(', 1000);
    text[1000] = 0;
    ck_assert_int_eq(eval(text, out, sizeof out, &e), ERR_LIMIT);
    memset(text, '-', 1000);
    ck_assert_int_eq(eval(text, out, sizeof out, &e), ERR_LIMIT);
    size_t n = 0;
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s1", i ? "+" : "");
    ck_assert_int_eq(eval(text, out, sizeof out, &e), ERR_LIMIT); /* a tree that leans 300 deep */
    struct arena a;
    struct eng_expr *x;
    struct eng_value v;
    arena_init(&a, 1 << 20);
    struct eng_scope s = {NULL, name_of, NULL, &a, 3, 0};
    ck_assert_int_eq(eng_expr_parse(&x, "1 + 2 + 3", &a, &e), ERR_OK);
    ck_assert_int_eq(eng_expr_eval(x, &s, &v, &e), ERR_LIMIT);
    arena_free(&a);
    arena_init(&a, 64);
    ck_assert_int_eq(eng_expr_parse(&x, "1 + 2 + 3", &a, &e), ERR_NOMEM);
    arena_free(&a);
    arena_init(&a, 1 << 20);
    ck_assert_int_eq(eng_expr_parse_list(&x, "heads*hd, hidden", &a, &e), ERR_OK);
    ck_assert_uint_eq(x->n_kids, 2);
    arena_free(&a);
}
END_TEST

SUITE("engine", "expr", core, errors, limits)
