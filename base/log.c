/* A line is formatted into one buffer and leaves with one write(2). In JSON, `key=value` words at the end of the message
 * become fields of their own (the longest tail that consists of such words only). */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"

enum { MESSAGE_MAX = 2048, LINE_BYTES = 16 * 1024 };
static struct log_config config = {.level = LOG_INFO, .fd = 2, .part = "sluice"};
static const char *const names[] = {"error", "warn", "info", "debug"}, *const shown[] = {"ERROR", "WARN", "INFO", "DEBUG"};

void log_setup(const struct log_config *c)
{
    config = *c;
    if (!config.part)
        config.part = "sluice";
}

bool log_on(enum log_level level) { return level <= config.level; }

int log_level_parse(const char *s)
{
    for (int i = 0; i < 4; i++)
        if (!strcmp(s, names[i]))
            return i;
    return -1;
}

static bool name_char(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || c == '_' || (!first && ((c >= '0' && c <= '9') || c == '.'));
}

/* Length of `name=value` at s (value: a word, or quoted), 0: it is something else. *eq: where '=' stands. */
static size_t pair(const char *s, size_t *eq)
{
    size_t i = 0;
    while (name_char(s[i], i == 0))
        i++;
    if (i == 0 || s[i] != '=')
        return 0;
    *eq = i++;
    if (s[i] == '"') {
        for (i++; s[i] && s[i] != '"'; i++)
            i += s[i] == '\\' && s[i + 1];
        return s[i] == '"' && (!s[i + 1] || s[i + 1] == ' ') ? i + 1 : 0;
    }
    while (s[i] && s[i] != ' ')
        i++;
    return i;
}

/* Where the tail of pairs begins: every start of a word is tried until one runs through to the end. */
static size_t tail(const char *s)
{
    size_t n = strlen(s);
    for (size_t at = 0; at < n; at++) {
        if (at && s[at - 1] != ' ')
            continue;
        size_t p = at, len, eq;
        while (s[p] && (len = pair(s + p, &eq))) {
            p += len;
            while (s[p] == ' ')
                p++;
        }
        if (!s[p])
            return at;
    }
    return n;
}

static void put_value(struct buf *b, const char *s, size_t n)
{
    char plain[MESSAGE_MAX];
    size_t m = 0;
    if (n >= 2 && *s == '"') {
        for (size_t i = 1; i < n - 1; i++) {
            i += s[i] == '\\';
            plain[m++] = s[i];
        }
        s = plain;
        n = m;
    }
    json_put_str(b, s, n);
}

static void put_json(struct buf *b, const char *time_text, enum log_level level, char *msg)
{
    size_t at = tail(msg), end = at, len, eq;
    while (end && msg[end - 1] == ' ')
        end--;
    buf_printf(b, "{\"ts\":\"%s\",\"level\":\"%s\",\"part\":", time_text, names[level]);
    json_put_cstr(b, config.part);
    buf_str(b, ",\"msg\":");
    json_put_str(b, msg, end);
    while (msg[at] && (len = pair(msg + at, &eq))) {
        buf_char(b, ',');
        json_put_str(b, msg + at, eq);
        buf_char(b, ':');
        put_value(b, msg + at + eq + 1, len - eq - 1);
        at += len;
        while (msg[at] == ' ')
            at++;
    }
    buf_str(b, "}\n");
}

void log_at(enum log_level level, const char *fmt, ...)
{
    if (!log_on(level))
        return;
    int kept = errno;
    char msg[MESSAGE_MAX], when[40];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    for (char *p = msg; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = ' ';
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%03ldZ", t.tv_nsec / 1000000);
    struct buf b;
    buf_init(&b, LINE_BYTES);
    if (config.json)
        put_json(&b, when, level, msg);
    else
        buf_printf(&b, "%s %s %s: %s\n", when, shown[level], config.part, msg);
    if (b.len && write(config.fd, b.data, b.len) < 0) {
        /* nobody is left to tell */
    }
    buf_free(&b);
    errno = kept;
}
