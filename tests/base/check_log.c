/* A log line is one write: text and JSON shapes, levels, and what a message may not do to a line. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "tests/support/suite.h"

static int ends[2];
static char line[65536];

static void open_log(enum log_level level, bool json)
{
    ck_assert(pipe2(ends, O_NONBLOCK) == 0);
    log_setup(&(struct log_config){.level = level, .json = json, .fd = ends[1], .part = "test"});
}

static const char *read_log(void)
{
    ssize_t n = read(ends[0], line, sizeof line - 1);
    line[n > 0 ? n : 0] = 0;
    return line;
}

START_TEST(core)
{
    open_log(LOG_INFO, false);
    log_info("listening addr=%s", "127.0.0.1:8443");
    const char *s = read_log();
    ck_assert_msg(strlen(s) > 25 && s[4] == '-' && s[10] == 'T' && s[19] == '.' && s[23] == 'Z', "%s", s);
    ck_assert_str_eq(s + 24, " INFO test: listening addr=127.0.0.1:8443\n");
    log_debug("not shown");
    ck_assert_str_eq(read_log(), "");
    log_error("two\nlines\x1b[1m");
    ck_assert_str_eq(read_log() + 24, " ERROR test: two lines [1m\n");
    ck_assert(log_level_parse("error") == LOG_ERROR && log_level_parse("debug") == LOG_DEBUG && log_level_parse("INFO") == -1);
    ck_assert(log_on(LOG_WARN) && !log_on(LOG_DEBUG));
}
END_TEST

static void expect(const char *msg, const char *fields)
{
    struct err e = {0};
    struct arena a;
    struct json *v;
    arena_init(&a, 1 << 20);
    const char *s = strchr(read_log(), '\n');
    ck_assert(s && !s[1]);
    OK(json_parse(&v, line, strlen(line), &json_strict, &a, &e));
    ck_assert_str_eq(json_str(json_get(v, "msg")), msg);
    ck_assert(json_eq(json_get(v, "part"), "test") && json_eq(json_get(v, "level"), "warn"));
    const char *from = strstr(line, "\"msg\":");
    ck_assert_msg(strstr(from, fields) != NULL, "%s", line);
    arena_free(&a);
}

START_TEST(json)
{
    open_log(LOG_DEBUG, true);
    log_warn("engine is gone pid=%d restart_ms=%d", 12, 500);
    expect("engine is gone", "\"engine is gone\",\"pid\":\"12\",\"restart_ms\":\"500\"}");
    log_warn("a=b means nothing here");
    expect("a=b means nothing here", "here\"}");
    log_warn("quoted path=\"/tmp/a b \\\"c\\\"\" n=1");
    expect("quoted", "\"path\":\"/tmp/a b \\\"c\\\"\",\"n\":\"1\"}");
    log_warn("x=1");
    expect("", "\"msg\":\"\",\"x\":\"1\"}");
    log_warn("bad utf8 \xFF and \"quotes\"");
    expect("bad utf8 \xEF\xBF\xBD and \"quotes\"", "}");
}
END_TEST

START_TEST(limits)
{
    char big[5000];
    open_log(LOG_DEBUG, true);
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    log_warn("%s", big); /* cut, still one whole line of JSON */
    big[2047] = 0;
    expect(big, "}");
    log_warn("k=\"%s", big);
    const char *s = read_log();
    ck_assert(s[strlen(s) - 2] == '}');
    close(ends[0]);
    close(ends[1]);
    log_warn("nobody listens"); /* must not fail */
}
END_TEST

SUITE("base", "log", core, json, limits)
