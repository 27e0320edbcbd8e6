/* The writer: strings byte by byte with runs copied whole; a tree by plain recursion (its depth is bounded by the reader). */
#include <string.h>

#include "base/json_internal.h"

void json_put_str(struct buf *b, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)s, *end = p + (n ? n : 0), *run = p;
    buf_char(b, '"');
    while (p < end) {
        unsigned char c = *p;
        size_t len = c < 0x80 ? 1 : json_utf8(p, end);
        if (len && c >= 0x20 && c != '"' && c != '\\') {
            p += len;
            continue;
        }
        buf_add(b, run, (size_t)(p - run));
        run = ++p;
        if (!len) {
            buf_str(b, "\xEF\xBF\xBD");
            continue;
        }
        static const char *const letters = "\b\f\n\r\t\"\\", *const names = "bfnrt\"\\";
        const char *at = c ? strchr(letters, c) : NULL;
        if (at)
            buf_add(b, (char[]){'\\', names[at - letters]}, 2);
        else
            buf_add(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
    buf_add(b, run, (size_t)(p - run));
    buf_char(b, '"');
}

void json_put_cstr(struct buf *b, const char *s)
{
    if (s)
        json_put_str(b, s, strlen(s));
    else
        buf_str(b, "null");
}

void json_put(struct buf *b, const struct json *v)
{
    if (!v) {
        buf_str(b, "null");
        return;
    }
    switch (v->type) {
    case JSON_NULL: buf_str(b, "null"); break;
    case JSON_BOOL: buf_str(b, v->b ? "true" : "false"); break;
    case JSON_NUMBER: buf_add(b, v->s, v->n); break;
    case JSON_STRING: json_put_str(b, v->s, v->n); break;
    case JSON_ARRAY:
        buf_char(b, '[');
        for (size_t i = 0; i < v->n; i++) {
            if (i)
                buf_char(b, ',');
            json_put(b, v->items[i]);
        }
        buf_char(b, ']');
        break;
    case JSON_OBJECT:
        buf_char(b, '{');
        for (size_t i = 0; i < v->n; i++) {
            if (i)
                buf_char(b, ',');
            json_put_str(b, v->members[i].key, v->members[i].key_len);
            buf_char(b, ':');
            json_put(b, v->members[i].value);
        }
        buf_char(b, '}');
        break;
    }
}
