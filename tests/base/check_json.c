/* The strict reader against accepted and refused texts, the tree, exact numbers, the writer, and every allocation failing. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

static const char *const good[] = {
    "0", "-0", "10", "1.5", "-1.5e+3", "1E9", "true", "false", "null", "\"\"", "[]", "{}", " [ ] ", "\t{\r\n}\n", "[1,2]", "[[],{}]",
    "{\"a\":1,\"b\":[true,null]}", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\u00e9\\ud83d\\ude00\"", "\"h\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"",
    "{\"\":0}", "\"\xF4\x8F\xBF\xBF\"", "\"\xEE\x80\x80\"", "{\"a\":{\"a\":{\"a\":1}}}", "[{\"a\":1},{\"a\":2}]",
};
static const struct { const char *text, *words; int code; } bad[] = {
    {"", "expected a value, found the end", ERR_FORMAT}, {"  ", "the end", ERR_FORMAT}, {"01", "leading zero", ERR_FORMAT},
    {"-", "a digit", ERR_FORMAT}, {"+1", "expected a value, found '+'", ERR_FORMAT}, {".5", "a value", ERR_FORMAT},
    {"1.", "after the point", ERR_FORMAT}, {"1e", "exponent", ERR_FORMAT}, {"1e+", "exponent", ERR_FORMAT}, {"-a", "a digit", ERR_FORMAT},
    {"NaN", "a value", ERR_FORMAT}, {"Infinity", "a value", ERR_FORMAT}, {"tru", "a value", ERR_FORMAT}, {"nul", "a value", ERR_FORMAT},
    {"1 2", "nothing after", ERR_FORMAT}, {"{}x", "nothing after the value, found 'x'", ERR_FORMAT}, {"[1,]", "a value, found ']'", ERR_FORMAT},
    {"[,1]", "a value", ERR_FORMAT}, {"[1 2]", "',' or ']'", ERR_FORMAT}, {"[1", "',' or ']'", ERR_FORMAT}, {"[", "a value", ERR_FORMAT},
    {"{\"a\":1,}", "a key in quotes", ERR_FORMAT}, {"{a:1}", "a key in quotes", ERR_FORMAT}, {"{\"a\"1}", "':'", ERR_FORMAT},
    {"{\"a\":}", "a value", ERR_FORMAT}, {"{\"a\":1", "',' or '}'", ERR_FORMAT}, {"{", "or '}'", ERR_FORMAT}, {"[}", "a value", ERR_FORMAT},
    {"{\"a\":1]", "',' or '}'", ERR_FORMAT}, {"\"", "closing quote", ERR_FORMAT}, {"\"\\", "an escape", ERR_FORMAT},
    {"\"\\x\"", "after a backslash", ERR_FORMAT}, {"\"\\u12\"", "four hex", ERR_FORMAT}, {"\"\\u12G4\"", "four hex", ERR_FORMAT},
    {"\"\\ud800\"", "high surrogate", ERR_FORMAT}, {"\"\\ud800\\u0041\"", "high surrogate", ERR_FORMAT}, {"\"\\udc00\"", "low surrogate", ERR_FORMAT},
    {"\"\\u0000\"", "no \\u0000", ERR_FORMAT}, {"\"a\nb\"", "control", ERR_FORMAT}, {"\"\x01\"", "byte 0x01", ERR_FORMAT},
    {"\"\x80\"", "valid UTF-8, found byte 0x80", ERR_FORMAT}, {"\"\xC0\xAF\"", "UTF-8", ERR_FORMAT}, {"\"\xED\xA0\x80\"", "UTF-8", ERR_FORMAT},
    {"\"\xF4\x90\x80\x80\"", "UTF-8", ERR_FORMAT}, {"\"\xE2\x82\"", "UTF-8", ERR_FORMAT}, {"\xEF\xBB\xBF{}", "a value", ERR_FORMAT},
    {"{\"a\":1,\"a\":2}", "found again \"a\"", ERR_FORMAT}, {"{\"a\":1,\"\\u0061\":2}", "found again \"a\"", ERR_FORMAT},
    {"[\n1,\n\n  x]", "line 4, byte 8: expected a value, found 'x'", ERR_FORMAT}, {"// c\n1", "a value", ERR_FORMAT}, {"'a'", "a value", ERR_FORMAT},
};

START_TEST(core)
{
    struct err e = {0};
    struct arena a;
    arena_init(&a, 1 << 20);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct json *v;
        ck_assert_msg(json_check(good[i], strlen(good[i]), &json_strict, &e) == 0, "%s: %s", good[i], e.msg);
        ck_assert_msg(json_parse(&v, good[i], strlen(good[i]), &json_strict, &a, &e) == 0, "%s: %s", good[i], e.msg);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct json *v = (void *)&a;
        FAILS(bad[i].code, bad[i].words, json_check(bad[i].text, strlen(bad[i].text), &json_strict, &e));
        FAILS(bad[i].code, bad[i].words, json_parse(&v, bad[i].text, strlen(bad[i].text), &json_strict, &a, &e));
        ck_assert_ptr_null(v);
        ck_assert_int_eq(json_check(bad[i].text, strlen(bad[i].text), &json_strict, NULL), bad[i].code);
    }
    arena_free(&a);
}
END_TEST

START_TEST(streaming)
{
    static const char text[] = "{\"a\":[1,-2.5e3,\"x\\ty\"],\"skip\":{\"deep\":[{}]},\"s\":[[]],\"z\":null}";
    static const struct { int ev; const char *s; } want[] = {
        {JSON_EV_OBJECT, 0}, {JSON_EV_KEY, "a"}, {JSON_EV_ARRAY, 0}, {JSON_EV_NUMBER, "1"}, {JSON_EV_NUMBER, "-2.5e3"},
        {JSON_EV_STRING, "x\ty"}, {JSON_EV_ARRAY_END, 0}, {JSON_EV_KEY, "skip"}, {JSON_EV_KEY, "s"}, {JSON_EV_ARRAY, 0}, {JSON_EV_KEY, "z"},
        {JSON_EV_NULL, 0}, {JSON_EV_OBJECT_END, 0}, {JSON_EV_END, 0}, {JSON_EV_END, 0}};
    struct err e = {0};
    json_reader *r;
    const char *s = NULL;
    size_t n = 0;
    OK(json_reader_open(&r, text, sizeof text - 1, &json_strict, &e));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int ev = json_next(r, &s, &n, &e);
        ck_assert_int_eq(ev, want[i].ev);
        if (want[i].s)
            ck_assert(n == strlen(want[i].s) && !memcmp(s, want[i].s, n));
        if (ev == JSON_EV_KEY && n == 4)
            OK(json_skip(r, &e)); /* from the key: its value */
        if (i == 9)
            OK(json_skip(r, &e)); /* from an opening bracket */
    }
    json_reader_close(r);
    OK(json_reader_open(&r, "[1", 2, &json_strict, &e));
    ck_assert_int_eq(json_next(r, &s, &n, &e), JSON_EV_ARRAY);
    FAILS(ERR_FORMAT, "',' or ']'", json_skip(r, &e));
    e.msg[0] = 0;
    ck_assert_int_eq(json_next(r, &s, &n, &e), -1);
    ck_assert(strstr(e.msg, "',' or ']'") != NULL); /* an error stays */
    json_reader_close(r);
}
END_TEST

static struct json *parse(struct arena *a, const char *s)
{
    struct err e = {0};
    struct json *v;
    OK(json_parse(&v, s, strlen(s), &json_strict, a, &e));
    return v;
}

START_TEST(numbers)
{
    static const struct { const char *s; bool ok; int64_t v; } ints[] = {
        {"0", true, 0}, {"-0", true, 0}, {"1.0", true, 1}, {"1e3", true, 1000}, {"-12.50e1", true, -125}, {"1.5", false, 0},
        {"9223372036854775807", true, INT64_MAX}, {"-9223372036854775808", true, INT64_MIN}, {"9223372036854775808", false, 0},
        {"9007199254740993", true, 9007199254740993}, {"1000000e-6", true, 1}, {"1e-1", false, 0}, {"0e999999999999999999999", true, 0},
        {"1e99999999999999999999", false, 0}, {"0.000000000000000000001e21", true, 1}, {"10e-1", true, 1}, {"100.00", true, 100}};
    struct arena a;
    arena_init(&a, 1 << 20);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        int64_t v = 0;
        ck_assert_msg(json_int(parse(&a, ints[i].s), &v) == ints[i].ok && v == ints[i].v, "%s gave %lld", ints[i].s, (long long)v);
    }
    uint64_t u = 0;
    double d = 0;
    ck_assert(json_u64(parse(&a, "18446744073709551615"), &u) && u == UINT64_MAX);
    ck_assert(!json_u64(parse(&a, "18446744073709551616"), &u) && !json_u64(parse(&a, "-1"), &u));
    ck_assert(json_num(parse(&a, "-2.5e-1"), &d) && d == -0.25);
    ck_assert(!json_num(parse(&a, "1e999"), &d) && !json_num(parse(&a, "\"1\""), &d) && !json_num(NULL, &d));
    arena_free(&a);
}
END_TEST

START_TEST(tree)
{
    struct err e = {0};
    struct arena a;
    struct buf b;
    arena_init(&a, 64 << 20);
    buf_init(&b, 64 << 20);
    const struct json *v = parse(&a, "{\"a\":{\"b\":{\"c\":\"x\"}},\"A\":true,\"l\":[1,[],{}]}");
    ck_assert(json_eq(json_path(v, "a.b.c"), "x") && json_get(v, "A")->b && !json_get(v, "nope") && !json_path(v, "a.x.c"));
    ck_assert(json_get(v, "l")->n == 3 && !json_get(json_get(v, "l"), "a") && !json_get(NULL, "a") && !json_str(json_get(v, "l")));
    json_put(&b, v);
    ck_assert_str_eq(b.data, "{\"a\":{\"b\":{\"c\":\"x\"}},\"A\":true,\"l\":[1,[],{}]}");

    /* duplicates, where allowed: the last one wins and keeps the first one's place */
    struct json_limits lim = json_strict;
    struct json *w;
    lim.allow_duplicates = lim.allow_nul = true;
    const char *dup = "{\"a\":[1],\"b\":2,\"a\":{\"q\":3},\"s\":\"x\\u0000y\"}";
    OK(json_parse(&w, dup, strlen(dup), &lim, &a, &e));
    ck_assert(w->n == 3 && json_get(json_get(w, "a"), "q") && json_get(w, "s")->n == 3 && !memcmp(json_str(json_get(w, "s")), "x\0y", 3));
    OK(json_check(dup, strlen(dup), &lim, &e));

    /* large objects: an index finds every key, a duplicate among them is seen */
    buf_reset(&b);
    buf_char(&b, '{');
    for (int i = 0; i < 20000; i++)
        buf_printf(&b, "%s\"k%d\":%d", i ? "," : "", i, i);
    size_t len = b.len;
    buf_str(&b, ",\"k777\":0}");
    FAILS(ERR_FORMAT, "again \"k777\"", json_check(b.data, b.len, &json_strict, &e));
    FAILS(ERR_FORMAT, "again \"k777\"", json_parse(&w, b.data, b.len, &json_strict, &a, &e));
    b.len = len;
    buf_str(&b, "}");
    OK(json_parse(&w, b.data, b.len, &json_strict, &a, &e));
    for (int i = 0; i < 20000; i++) {
        char key[16];
        int64_t got = -1;
        snprintf(key, sizeof key, "k%d", i);
        if (!json_int(json_get(w, key), &got) || got != i)
            ck_abort_msg("%s gave %lld", key, (long long)got);
    }
    ck_assert(!json_get(w, "k20000") && !json_get(w, ""));
    buf_free(&b);
    arena_free(&a);
}
END_TEST

START_TEST(building)
{
    struct arena a;
    struct buf b;
    arena_init(&a, 16 << 20);
    buf_init(&b, 1 << 20);
    struct json *o = json_new(&a, JSON_OBJECT), *l = json_new(&a, JSON_ARRAY);
    for (int i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i % 50);
        ck_assert(json_set(&a, o, key, json_new_int(&a, i)));
        ck_assert(json_push(&a, l, json_new_bool(&a, i % 2)));
    }
    int64_t got = 0;
    ck_assert(o->n == 50 && json_int(json_get(o, "k49"), &got) && got == 99 && json_int(json_get(o, "k0"), &got) && got == 50 && l->n == 100);
    ck_assert(!json_set(&a, o, "x", NULL) && !json_push(&a, l, NULL));
    static const char odd[] = "q\"\\/\b\f\n\r\t\x01\xC3\xA9\xFFz";
    json_put_str(&b, odd, sizeof odd - 1);
    ck_assert_str_eq(b.data, "\"q\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\xC3\xA9\xEF\xBF\xBDz\"");
    buf_reset(&b);
    json_put_cstr(&b, NULL);
    json_put(&b, NULL);
    json_put(&b, json_new(&a, JSON_NULL));
    json_put(&b, json_new_str(&a, "a\0b", 3));
    ck_assert_str_eq(b.data, "nullnullnull\"a\\u0000b\"");
    buf_free(&b);
    arena_free(&a);
}
END_TEST

START_TEST(limits)
{
    struct err e = {0};
    struct json_limits lim = {.bytes_max = 8, .depth_max = 3};
    struct arena a;
    struct json *v;
    char deep[2100];
    OK(json_check("[[[1]]]", 7, &lim, &e));
    FAILS(ERR_LIMIT, "less nesting", json_check("[[[[]]]]", 8, &lim, &e));
    FAILS(ERR_LIMIT, "at most 8 bytes, found 9", json_check("123456789", 9, &lim, &e));
    lim.depth_max = 5000;
    FAILS(ERR_INVALID, "at most 1024", json_check("1", 1, &lim, &e));
    memset(deep, '[', 1024);
    memset(deep + 1024, ']', 1024);
    lim = (struct json_limits){.depth_max = 1024};
    OK(json_check(deep, 2048, &lim, &e));
    FAILS(ERR_LIMIT, "byte 64:", json_check(deep, 2048, &json_strict, &e));
    arena_init(&a, 1024);
    FAILS(ERR_NOMEM, "of at most 1024 bytes", json_parse(&v, "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]", 37, &json_strict, &a, &e));
    arena_free(&a);
}
END_TEST

START_TEST(errors)
{
    struct err e = {0};
    struct arena a;
    struct json *v;
    struct buf b;
    arena_init(&a, 1 << 20);
    FAILS(ERR_NOTFOUND, "/nonexistent/x.json", json_parse_file(&v, "/nonexistent/x.json", 0, &a, &e));
    FAILS(ERR_IO, "a regular file", json_parse_file(&v, "/tmp", 0, &a, &e));
    char path[] = "/tmp/sluice-json-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fputs("{\"a\":\n[1,}", f);
    fclose(f);
    FAILS(ERR_FORMAT, ": line 2, byte 9", json_parse_file(&v, path, 0, &a, &e));
    FAILS(ERR_LIMIT, "at most 5 bytes, found 10", json_parse_file(&v, path, 5, &a, &e));
    remove(path);

    if (!alloc_fail_works()) {
        puts("SKIP json: allocations are not made to fail under a sanitizer");
    } else {
        buf_init(&b, 1 << 20);
        buf_char(&b, '[');
        for (int i = 0; i < 40; i++)
            buf_printf(&b, "%s{\"a\\n\":[\"x\\ty\",%d]}", i ? "," : "", i);
        buf_str(&b, ",{");
        for (int i = 0; i < 200; i++)
            buf_printf(&b, "%s\"k%d\":%d", i ? "," : "", i, i);
        buf_str(&b, "}]");
        long n = 0;
        for (bool more = true; more; n++) {
            alloc_fail_at(n);
            int rc = json_check(b.data, b.len, &json_strict, &e);
            more = alloc_fail_end();
            ck_assert_int_eq(rc, more ? ERR_NOMEM : ERR_OK);
        }
        ck_assert_int_gt(n, 5);
        n = 0;
        for (bool more = true; more; n++) {
            struct arena t;
            arena_init(&t, 1 << 20);
            alloc_fail_at(n);
            int rc = json_parse(&v, b.data, b.len, &json_strict, &t, &e);
            more = alloc_fail_end();
            ck_assert_int_eq(rc, more ? ERR_NOMEM : ERR_OK);
            arena_free(&t);
        }
        ck_assert_int_gt(n, 8);
        buf_free(&b);
    }
    arena_free(&a);
}
END_TEST

/* A header like those of checkpoints with very many tensors passes in one go. The rate is printed, and its floor here is low
 * enough for a loaded machine: docs/measured.md has the number. */
START_TEST(large_header)
{
    struct err e = {0};
    struct buf b;
    buf_init(&b, 64 << 20);
    buf_char(&b, '{');
    for (int i = 0; i < 100000; i++)
        buf_printf(&b, "%s\"model.layers.%d.mlp.experts.%d.gate_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[7168,2048],\"data_offsets\":[%d,%d]}",
                   i ? "," : "", i / 384, i % 384, i * 4096, i * 4096 + 4096);
    buf_char(&b, '}');
    json_reader *r;
    const char *s;
    size_t n, events = 0;
    uint64_t t = clock_now_ns();
    OK(json_reader_open(&r, b.data, b.len, &json_strict, &e));
    int ev; /* no assertion per event: Check's own cost would hide the reader's */
    while ((ev = json_next(r, &s, &n, &e)) != JSON_EV_END && ev >= 0)
        events++;
    ck_assert_int_eq(ev, JSON_EV_END);
    json_reader_close(r);
    double mb = (double)b.len / 1e6, sec = (double)(clock_now_ns() - t) / 1e9;
    printf("streamed %.1f MB in %.3f s: %.0f MB/s\n", mb, sec, mb / sec);
    ck_assert_uint_eq(events, 2 + 100000 * 15);
    t = clock_now_ns();
    OK(json_check(b.data, b.len, &json_strict, &e));
    sec = (double)(clock_now_ns() - t) / 1e9;
    printf("checked for duplicates: %.0f MB/s\n", mb / sec);
    struct arena a;
    struct json *v;
    arena_init(&a, (size_t)1 << 30);
    t = clock_now_ns();
    OK(json_parse(&v, b.data, b.len, &json_strict, &a, &e));
    sec = (double)(clock_now_ns() - t) / 1e9;
    printf("made a tree: %.0f MB/s\n", mb / sec);
    ck_assert_uint_eq(v->n, 100000);
    arena_free(&a);
    buf_free(&b);
}
END_TEST

SUITE("base", "json", core, streaming, numbers, tree, building, limits, errors, large_header)
