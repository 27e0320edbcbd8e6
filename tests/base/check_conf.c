/* The config reader: every type, every refusal with file:line, lists, quoting, command-line values. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

struct target { const char *name; int64_t n; uint64_t bytes, wait_ms; bool on; double ratio; int mode; struct conf_list list; };
static const char *const modes[] = {"auto", "f32", NULL};
#define AT(f) offsetof(struct target, f)
static const struct conf_directive table[] = {
    {"name", CONF_STR, AT(name), 0, 0, NULL},       {"n", CONF_INT, AT(n), 1, 100, NULL},
    {"bytes", CONF_SIZE, AT(bytes), 0, 0, NULL},    {"wait", CONF_MS, AT(wait_ms), 0, 3600000, NULL},
    {"on", CONF_BOOL, AT(on), 0, 0, NULL},          {"ratio", CONF_FLOAT, AT(ratio), 0, 1, NULL},
    {"mode", CONF_ENUM, AT(mode), 0, 0, modes},     {"list", CONF_LIST, AT(list), 0, 0, NULL}};
enum { N = sizeof table / sizeof *table };

static struct arena mem;
static int load(const char *text, struct target *t, struct err *e)
{
    *t = (struct target){.n = 7, .name = "default"};
    arena_free(&mem);
    arena_init(&mem, 1 << 20);
    return conf_read_text("x.conf", text, table, N, t, &mem, e);
}

START_TEST(core)
{
    struct err e = {0};
    struct target t;
    OK(load("", &t, &e));
    ck_assert(t.n == 7 && !strcmp(t.name, "default"));
    OK(load("# all of them\n  name \"a \\\"b\\\" # c\\\\\"  # comment\nn 100\r\nbytes 1.5K\nwait 2m\n\non on\nratio 0.25\nmode f32\n"
            "list one \"two words\"\nlist three four five", &t, &e));
    ck_assert_str_eq(t.name, "a \"b\" # c\\");
    ck_assert(t.n == 100 && t.bytes == 1536 && t.wait_ms == 120000 && t.on && t.ratio == 0.25 && t.mode == 1 && t.list.n == 5);
    ck_assert_str_eq(t.list.items[1], "two words");
    ck_assert_str_eq(t.list.items[4], "five");
    OK(load("wait 0\nname \"\"\nbytes 3g", &t, &e));
    ck_assert(t.wait_ms == 0 && !*t.name && t.bytes == 3ull << 30);
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *text, *words; } bad[] = {
        {"n 1\nwhat 2", "x.conf:2: what: expected a known directive"}, {"\n\nn 0", "x.conf:3: n: expected a whole number from 1 to 100, found \"0\""},
        {"n 1\nn 2", "x.conf:2: n: expected once"}, {"n", "one value, found 0"}, {"n 1 2", "one value, found 2"}, {"n 1x", "found \"1x\""},
        {"n +5", "a whole number"}, {"n \" 5\"", "a whole number"}, {"n 99999999999999999999", "a whole number"}, {"bytes 5X", "a size such as"},
        {"bytes 1.5", "a size"}, {"bytes 20000000T", "a size"}, {"bytes 99999999999999999999", "a size"}, {"bytes -1", "a size"},
        {"bytes K", "a size"}, {"bytes 5KB", "a size"}, {"bytes 1.K", "a size"}, {"wait 5", "a duration"}, {"wait 2h", "a duration"},
        {"wait 5 m", "found 2"}, {"on yes", "on or off"}, {"ratio 1.5", "a number from 0 to 1"}, {"ratio nan", "a number"}, {"ratio 0x1", "a number"},
        {"mode F32", "expected one of auto f32, found \"F32\""}, {"list", "at least one"}, {"name \"a", "closing quote"}, {"name \"a\"b", "a space after"},
        {"name a\"b\"", "a space before"}};
    struct err e = {0};
    struct target t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        FAILS(ERR_INVALID, bad[i].words, load(bad[i].text, &t, &e));
    FAILS(ERR_NOTFOUND, "/nonexistent.conf", conf_read_file("/nonexistent.conf", table, N, &t, &mem, &e));
    FAILS(ERR_IO, "/tmp", conf_read_file("/tmp", table, N, &t, &mem, &e));
    char many[1024] = "list";
    for (int i = 0; i < 70; i++)
        strcat(many, " x");
    FAILS(ERR_INVALID, "at most 64 words", load(many, &t, &e));
    if (alloc_fail_works()) {
        long n = 0;
        for (bool more = true; more; n++) {
            alloc_fail_at(n);
            int rc = load("name a\nlist b c d\nn 5", &t, &e);
            more = alloc_fail_end();
            ck_assert_int_eq(rc, more ? ERR_NOMEM : ERR_OK);
        }
        ck_assert_int_ge(n, 4);
    } else {
        puts("SKIP conf: allocations are not made to fail under a sanitizer");
    }
}
END_TEST

START_TEST(files)
{
    struct err e = {0};
    struct target t = {.n = 1};
    char path[] = "/tmp/sluice-conf-XXXXXX";
    int fd = mkstemp(path);
    ck_assert(write(fd, "n 5\nbytes 1T\n", 13) == 13);
    arena_init(&mem, 1 << 20);
    OK(conf_read_file(path, table, N, &t, &mem, &e));
    ck_assert(t.n == 5 && t.bytes == 1ull << 40);
    ck_assert(write(fd, "name a\0b\n", 9) == 9);
    FAILS(ERR_INVALID, "a NUL byte", conf_read_file(path, table, N, &t, &mem, &e));
    for (int i = 0; i < 1100; i++)
        for (int k = 0; k < 16; k++)
            ck_assert(write(fd, "################################################################\n", 65) == 65);
    FAILS(ERR_LIMIT, "at most 1048576 bytes", conf_read_file(path, table, N, &t, &mem, &e));
    close(fd);
    unlink(path);
    OK(conf_set("--bytes", "4k", &table[2], &t, &mem, &e));
    ck_assert_uint_eq(t.bytes, 4096);
    FAILS(ERR_INVALID, "--bytes: expected a size", conf_set("--bytes", "4q", &table[2], &t, &mem, &e));
    uint64_t u;
    ck_assert(conf_size("0", &u) == 0 && u == 0 && conf_size("", &u) == -1 && conf_size("16777215T", &u) == 0 && conf_size("16777216T", &u) == -1);
    arena_free(&mem);
}
END_TEST

SUITE("base", "conf", core, errors, files)
