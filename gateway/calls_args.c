/* A call's arguments as they come: JSON byte by byte, or members spelled singly whose values become JSON. The states are calls.c's. */
#include <stdlib.h>
#include <string.h>

#include "gateway/calls_internal.h"

bool calls_step_arguments(gw_calls *c)
{
    calls_open_part(c, GW_PART_ARGUMENTS);
    enum gw_scan_end e = GW_SCAN_MORE;
    while (c->at < c->held.len && e == GW_SCAN_MORE) {
        e = gw_scan_byte(&c->scan, (unsigned char)c->held.data[c->at], &c->bytes);
        c->at += e != GW_SCAN_WRONG;
    }
    calls_close_part(c);
    if (e == GW_SCAN_OVER)
        c->state = TAIL;
    else if (e == GW_SCAN_WRONG || c->end)
        calls_break(c);
    return e != GW_SCAN_MORE;
}

static const struct json *schema_of(const gw_calls *c, const char *key, size_t n)
{
    return json_get_n(json_get(c->head.tool->parameters, "properties"), key, n);
}

static bool all_strings(const struct json *list)
{
    for (size_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++)
        if (!json_is(list->items[i], JSON_STRING))
            return false;
    return json_is(list, JSON_ARRAY) && list->n;
}

/* Is this argument's text a string as it stands. */
static bool is_string(const gw_calls *c, const struct gw_member *m, const char *key, size_t key_n)
{
    if (m->type)
        return m->type_n == 6 && !memcmp(m->type, "string", 6);
    const struct json *s = schema_of(c, key, key_n), *type = json_get(s, "type");
    return json_eq(type, "string") || (!type && (all_strings(json_get(s, "enum")) || json_is(json_get(s, "const"), JSON_STRING)));
}

static size_t unescape(char *s, size_t n)
{
    static const struct { const char *from; char to; } known[] = {{"&quot;", '"'}, {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}};
    size_t out = 0;
    for (size_t i = 0; i < n;) {
        size_t k = 0, len = 0;
        while (k < 4 && ((len = strlen(known[k].from)) > n - i || memcmp(s + i, known[k].from, len)))
            k++;
        s[out++] = k < 4 ? known[k].to : s[i];
        i += k < 4 ? len : 1;
    }
    return out;
}

static void begin_value(gw_calls *c, const struct gw_member *m)
{
    char key[300];
    size_t n = m->key_n < sizeof key ? m->key_n : sizeof key;
    memcpy(key, m->key, n);
    if (c->f->tools.xml)
        n = unescape(key, n);
    c->value_string = is_string(c, m, key, n);
    calls_open_part(c, GW_PART_ARGUMENTS);
    buf_str(&c->bytes, c->any_member ? ", \"" : "{\"");
    gw_scan_put_string(&c->bytes, key, n);
    buf_str(&c->bytes, c->value_string ? "\": \"" : "\": ");
    calls_close_part(c);
    c->any_member = true;
    c->state = VALUE;
}

bool calls_step_members(gw_calls *c)
{
    struct gw_member m;
    while (c->at < c->held.len && gw_is_space(c->held.data[c->at]))
        c->at++;
    size_t n = c->held.len - c->at;
    struct gw_cursor cur = calls_window(c, c->held.data + c->at, n);
    enum gw_match got = gw_match_member(&c->f->tools, &cur, &m);
    if (got == GW_YES) {
        c->at += cur.at;
        begin_value(c, &m);
        return true;
    }
    cur.at = 0;
    cur.end = n > GW_CALLS_HOLD;
    enum gw_match tail = gw_match_tail(&c->f->tools, &c->head, &cur);
    if (tail == GW_NO ? got == GW_NO : tail == GW_MORE && c->end && !n) {
        calls_break(c);
        return true;
    }
    if (tail != GW_YES && !c->end)
        return false;
    if (!c->any_member)
        calls_say(c, GW_PART_ARGUMENTS, "{", 1);
    calls_say(c, GW_PART_ARGUMENTS, "}", 1);
    c->state = TAIL;
    return true;
}

static void put_value(gw_calls *c, const char *p, size_t n)
{
    static const struct { const char *from, *to; } python[] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    while (n && gw_is_space(*p))
        p++, n--;
    n -= calls_trailing_space(p, n);
    for (size_t i = 0; i < 3; i++)
        if (strlen(python[i].from) == n && !memcmp(p, python[i].from, n)) {
            calls_say(c, GW_PART_ARGUMENTS, python[i].to, strlen(python[i].to));
            return;
        }
    if (n && gw_scan_is_json(p, n)) {
        calls_put_json(c, p, n);
        return;
    }
    calls_say(c, GW_PART_ARGUMENTS, "\"", 1);
    gw_scan_put_string(&c->bytes, p, n);
    buf_char(&c->bytes, '"');
    calls_close_part(c);
}

bool calls_step_value(gw_calls *c)
{
    const char *p = c->held.data + c->at, *stop;
    size_t n = c->held.len - c->at, safe = 0, used = 0;
    if (!n && !c->end)
        return false;
    stop = n ? gw_match_value(&c->f->tools, p, n, &safe, &used) : NULL;
    size_t len = stop ? (size_t)(stop - p) : safe;
    bool strange = n && memchr(p, ENG_MARK, len); /* a control token that closes nothing */
    if (c->value_string && !strange) {
        calls_open_part(c, GW_PART_ARGUMENTS);
        gw_scan_put_string(&c->bytes, p, len);
        if (stop)
            buf_char(&c->bytes, '"');
        calls_close_part(c);
    } else if (stop && !strange) {
        put_value(c, p, len);
    }
    if (strange || (!stop && (c->end || (!c->value_string && n > GW_VALUE_HOLD)))) {
        if (c->cfg.whole)
            c->at = c->end ? c->held.len : c->at;
        else if (c->value_string && !strange)
            c->at += len;
        calls_break(c);
        return true;
    }
    c->at += stop ? used : c->value_string ? len : 0;
    if (stop)
        c->state = MEMBERS;
    return stop != NULL;
}
