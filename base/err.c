#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message that was cut must not end inside a UTF-8 character: logs and JSON carry it on. */
static void cut_utf8(char *s)
{
    size_t n = strlen(s), k = n;
    while (k > 0 && ((unsigned char)s[k - 1] & 0xC0) == 0x80)
        k--;
    if (k == 0)
        return;
    unsigned char lead = (unsigned char)s[k - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (k - 1) < want)
        s[k - 1] = 0;
}

int err_set_at(struct err *e, int code, const char *where, const char *fmt, ...)
{
    if (!e)
        return code;
    char msg[sizeof e->msg]; /* an argument may be e->msg itself */
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    e->where = where;
    int n = vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (n < 0)
        msg[0] = 0;
    if (n >= (int)sizeof msg)
        cut_utf8(msg);
    memcpy(e->msg, msg, strlen(msg) + 1);
    for (char *p = e->msg; *p; p++) /* one line, whatever a file's name holds */
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = '?';
    return code;
}

int err_prefix(struct err *e, int code, const char *fmt, ...)
{
    if (!e)
        return code;
    char head[sizeof e->msg], all[2 * sizeof e->msg + 8];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    snprintf(all, sizeof all, "%s: %s", head, e->msg);
    size_t n = strlen(all);
    if (n >= sizeof e->msg)
        n = sizeof e->msg - 1;
    memcpy(e->msg, all, n);
    e->msg[n] = 0;
    cut_utf8(e->msg);
    return e->code ? e->code : code;
}

const char *err_name(int code)
{
    static const char *const names[] = {"ok", "again", "nomem", "budget", "io", "format", "unsupported", "invalid",
                                        "notfound", "limit", "cancelled", "timeout", "closed"};
    return code >= 0 && code < (int)(sizeof names / sizeof *names) ? names[code] : "?";
}
