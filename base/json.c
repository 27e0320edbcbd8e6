/* The reader: one pass, no recursion. What must come next is a state; which kind of bracket is open, a bit per level.
 *
 * Strings without escapes are handed out as they lie in the input; others are decoded into `scratch`. String bodies are scanned
 * eight bytes at a time for the few bytes that need attention. Lines are only counted once there is an error to report. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/json_internal.h"

enum state { WANT_VALUE, WANT_VALUE_OR_END, WANT_KEY_OR_END, WANT_COMMA_OR_END, WANT_NOTHING, FAILED };

struct json_reader {
    const unsigned char *begin, *p, *end;
    enum state state;
    unsigned depth, depth_max;
    bool allow_nul, after_key;
    int last, code;
    struct err first; /* the error, repeated by every later call */
    char *scratch;
    size_t scratch_cap;
    uint64_t is_object[JSON_DEPTH_MAX / 64];
};

const struct json_limits json_strict = {.depth_max = 64};

int json_reader_open(json_reader **out, const char *p, size_t n, const struct json_limits *lim, struct err *e)
{
    *out = NULL;
    if (lim->depth_max > JSON_DEPTH_MAX)
        return err_set(e, ERR_INVALID, "JSON depth limit: expected at most %d, found %u", JSON_DEPTH_MAX, lim->depth_max);
    if (lim->bytes_max && n > lim->bytes_max)
        return err_set(e, ERR_LIMIT, "JSON text: expected at most %zu bytes, found %zu", lim->bytes_max, n);
    json_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "JSON reader");
    r->begin = r->p = (const unsigned char *)(n ? p : "");
    r->end = r->begin + n;
    r->depth_max = lim->depth_max ? lim->depth_max : 64;
    r->allow_nul = lim->allow_nul;
    r->last = -1;
    *out = r;
    return ERR_OK;
}

void json_reader_close(json_reader *r)
{
    if (!r)
        return;
    free(r->scratch);
    free(r);
}

int json_reader_code(const json_reader *r) { return r->code; }

bool json_reader_borrowed(const json_reader *r, const char *s)
{
    return (uintptr_t)s >= (uintptr_t)r->begin && (uintptr_t)s <= (uintptr_t)r->end;
}

static size_t line_of(const json_reader *r, const unsigned char *at)
{
    size_t line = 1;
    for (const unsigned char *q = r->begin; q < at; q++)
        line += *q == '\n';
    return line;
}

static int fail(json_reader *r, struct err *e, int code, const unsigned char *at, const char *what)
{
    char found[16] = "the end";
    if (at < r->end) {
        static const char hex[] = "0123456789abcdef";
        if (*at >= 0x20 && *at < 0x7F)
            memcpy(found, (char[]){'\'', (char)*at, '\'', 0}, 4);
        else
            memcpy(found, (char[]){'b', 'y', 't', 'e', ' ', '0', 'x', hex[*at >> 4], hex[*at & 15], 0}, 10);
    }
    r->state = FAILED;
    r->code = code;
    err_set(&r->first, code, "line %zu, byte %zu: %s, found %s", line_of(r, at), (size_t)(at - r->begin), what, found);
    if (e)
        *e = r->first;
    return -1;
}

/* For users of the reader that find something wrong with the string they were just given. */
int json_reader_fail(json_reader *r, struct err *e, int code, const char *what, const char *s, size_t n)
{
    r->state = FAILED;
    r->code = code;
    err_set(&r->first, code, "line %zu, byte %zu: %s%s%.*s%s", line_of(r, r->p), (size_t)(r->p - r->begin), what, s ? " \"" : "",
            s ? (int)(n < 100 ? n : 100) : 0, s ? s : "", s ? "\"" : "");
    if (e)
        *e = r->first;
    return -1;
}

size_t json_utf8(const unsigned char *p, const unsigned char *end)
{
    size_t left = (size_t)(end - p);
    if (left == 0)
        return 0;
    unsigned c = p[0];
    if (c < 0x80)
        return 1;
    if (c < 0xC2 || c > 0xF4)
        return 0;
    size_t n = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (left < n)
        return 0;
    unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < lo || p[1] > hi)
        return 0;
    for (size_t i = 2; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* Skips bytes of a string that stand for themselves: not '"', not '\', not a control byte, not beyond ASCII. */
static const unsigned char *plain_run(const unsigned char *p, const unsigned char *end)
{
    const uint64_t ones = 0x0101010101010101ull, high = ones * 0x80;
    while (end - p >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        uint64_t quote = w ^ (ones * '"'), slash = w ^ (ones * '\\');
        uint64_t odd = w | (w - ones * 0x20) | (quote - ones) | (slash - ones);
        if (odd & high)
            break;
        p += 8;
    }
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\')
        p++;
    return p;
}

static bool hex4(const unsigned char *p, const unsigned char *end, unsigned *v)
{
    *v = 0;
    if (end - p < 4)
        return false;
    for (int i = 0; i < 4; i++) {
        unsigned c = p[i], d = c - '0';
        if (d > 9) {
            d = (c | 0x20) - 'a';
            if (d > 5)
                return false;
            d += 10;
        }
        *v = *v << 4 | d;
    }
    return true;
}

static size_t put_utf8(char *o, unsigned c)
{
    if (c < 0x80) {
        o[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        o[i] = (char)(0x80 | (c & 0x3F));
    o[0] = (char)((n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0) | c);
    return n;
}

/* r->p stands on a backslash. Writes the character to o and returns its length; 0: *e is filled. */
static size_t escape(json_reader *r, char *o, struct err *e)
{
    const unsigned char *at = r->p++;
    unsigned c, low;
    if (r->p == r->end)
        return fail(r, e, ERR_FORMAT, r->p, "string: expected an escape"), 0;
    switch (*r->p++) {
    case '"': *o = '"'; return 1;
    case '\\': *o = '\\'; return 1;
    case '/': *o = '/'; return 1;
    case 'b': *o = '\b'; return 1;
    case 'f': *o = '\f'; return 1;
    case 'n': *o = '\n'; return 1;
    case 'r': *o = '\r'; return 1;
    case 't': *o = '\t'; return 1;
    case 'u': break;
    default: return fail(r, e, ERR_FORMAT, r->p - 1, "string: expected one of \"\\/bfnrtu after a backslash"), 0;
    }
    if (!hex4(r->p, r->end, &c))
        return fail(r, e, ERR_FORMAT, r->p, "string: expected four hex digits after \\u"), 0;
    r->p += 4;
    if (c == 0 && !r->allow_nul)
        return fail(r, e, ERR_FORMAT, at, "string: expected no \\u0000"), 0;
    if (c >= 0xDC00 && c <= 0xDFFF)
        return fail(r, e, ERR_FORMAT, at, "string: a low surrogate without a high one"), 0;
    if (c >= 0xD800 && c <= 0xDBFF) {
        if (r->end - r->p < 6 || r->p[0] != '\\' || r->p[1] != 'u' || !hex4(r->p + 2, r->end, &low) || low < 0xDC00 || low > 0xDFFF)
            return fail(r, e, ERR_FORMAT, at, "string: a high surrogate without a low one"), 0;
        r->p += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return put_utf8(o, c);
}

static bool scratch_room(json_reader *r, size_t need)
{
    if (need <= r->scratch_cap)
        return true;
    size_t cap = r->scratch_cap ? r->scratch_cap : 256;
    while (cap < need)
        cap *= 2;
    char *p = realloc(r->scratch, cap);
    if (!p)
        return false;
    r->scratch = p;
    r->scratch_cap = cap;
    return true;
}

/* r->p stands after the opening quote. 0, or -1 with *e. */
static int string(json_reader *r, const char **s, size_t *len, struct err *e)
{
    const unsigned char *start = r->p, *piece = r->p;
    size_t n = 0; /* decoded so far */
    bool decoded = false;
    for (;;) {
        r->p = plain_run(r->p, r->end);
        if (r->p == r->end)
            return fail(r, e, ERR_FORMAT, r->end, "string: expected a closing quote");
        unsigned char c = *r->p;
        if (c >= 0x80) {
            size_t u = json_utf8(r->p, r->end);
            if (!u)
                return fail(r, e, ERR_FORMAT, r->p, "string: expected valid UTF-8");
            r->p += u;
            continue;
        }
        if (c < 0x20)
            return fail(r, e, ERR_FORMAT, r->p, "string: expected control characters to be escaped");
        size_t run = (size_t)(r->p - piece);
        if (c == '"' && !decoded) {
            *s = (const char *)start;
            *len = run;
            r->p++;
            return 0;
        }
        if (!scratch_room(r, n + run + 4))
            return json_reader_fail(r, e, ERR_NOMEM, "string: no memory to decode it", NULL, 0);
        memcpy(r->scratch + n, piece, run);
        n += run;
        if (c == '"') {
            r->p++;
            *s = r->scratch;
            *len = n;
            return 0;
        }
        size_t got = escape(r, r->scratch + n, e);
        if (!got)
            return -1;
        n += got;
        decoded = true;
        piece = r->p;
    }
}

static const unsigned char *digits(const unsigned char *p, const unsigned char *end)
{
    while (p < end && (unsigned)(*p - '0') < 10)
        p++;
    return p;
}

static int number(json_reader *r, const char **s, size_t *len, struct err *e)
{
    const unsigned char *p = r->p, *q;
    if (*p == '-')
        p++;
    q = digits(p, r->end);
    if (q == p)
        return fail(r, e, ERR_FORMAT, q, "number: expected a digit");
    if (*p == '0' && q - p > 1)
        return fail(r, e, ERR_FORMAT, p, "number: expected no leading zero");
    if (q < r->end && *q == '.') {
        p = q + 1;
        q = digits(p, r->end);
        if (q == p)
            return fail(r, e, ERR_FORMAT, q, "number: expected a digit after the point");
    }
    if (q < r->end && (*q | 0x20) == 'e') {
        p = q + 1;
        if (p < r->end && (*p == '+' || *p == '-'))
            p++;
        q = digits(p, r->end);
        if (q == p)
            return fail(r, e, ERR_FORMAT, q, "number: expected a digit in the exponent");
    }
    *s = (const char *)r->p;
    *len = (size_t)(q - r->p);
    r->p = q;
    return 0;
}

static bool in_object(const json_reader *r)
{
    unsigned d = r->depth - 1;
    return r->is_object[d / 64] >> (d % 64) & 1;
}

static void after_value(json_reader *r)
{
    r->state = r->depth ? WANT_COMMA_OR_END : WANT_NOTHING;
}

static int open_bracket(json_reader *r, bool object, struct err *e)
{
    if (r->depth == r->depth_max)
        return fail(r, e, ERR_LIMIT, r->p, "expected less nesting");
    uint64_t bit = 1ull << (r->depth % 64), *word = &r->is_object[r->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    r->depth++;
    r->p++;
    r->state = object ? WANT_KEY_OR_END : WANT_VALUE_OR_END;
    return object ? JSON_EV_OBJECT : JSON_EV_ARRAY;
}

static int close_bracket(json_reader *r)
{
    int ev = in_object(r) ? JSON_EV_OBJECT_END : JSON_EV_ARRAY_END;
    r->depth--;
    r->p++;
    after_value(r);
    return ev;
}

static int word(json_reader *r, const char *w, size_t n, int ev, struct err *e)
{
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, w, n))
        return fail(r, e, ERR_FORMAT, r->p, "expected a value");
    r->p += n;
    after_value(r);
    return ev;
}

static int value(json_reader *r, const char **s, size_t *len, struct err *e)
{
    if (r->p == r->end)
        return fail(r, e, ERR_FORMAT, r->p, "expected a value");
    switch (*r->p) {
    case '{': return open_bracket(r, true, e);
    case '[': return open_bracket(r, false, e);
    case '"':
        r->p++;
        if (string(r, s, len, e) < 0)
            return -1;
        after_value(r);
        return JSON_EV_STRING;
    case 't': return word(r, "true", 4, JSON_EV_TRUE, e);
    case 'f': return word(r, "false", 5, JSON_EV_FALSE, e);
    case 'n': return word(r, "null", 4, JSON_EV_NULL, e);
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        if (number(r, s, len, e) < 0)
            return -1;
        after_value(r);
        return JSON_EV_NUMBER;
    default: return fail(r, e, ERR_FORMAT, r->p, "expected a value");
    }
}

static inline void space(json_reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t'))
        r->p++;
}

static int key(json_reader *r, const char **s, size_t *len, struct err *e)
{
    r->p++;
    if (string(r, s, len, e) < 0)
        return -1;
    space(r);
    if (r->p == r->end || *r->p != ':')
        return fail(r, e, ERR_FORMAT, r->p, "expected ':' after a key");
    r->p++;
    r->state = WANT_VALUE;
    return JSON_EV_KEY;
}

static int next(json_reader *r, const char **s, size_t *len, struct err *e)
{
    space(r);
    unsigned char c = r->p < r->end ? *r->p : 0;
    switch (r->state) {
    case WANT_COMMA_OR_END:
        if (c == (in_object(r) ? '}' : ']'))
            return close_bracket(r);
        if (c != ',')
            return fail(r, e, ERR_FORMAT, r->p, in_object(r) ? "expected ',' or '}'" : "expected ',' or ']'");
        r->p++;
        space(r);
        if (!in_object(r))
            return value(r, s, len, e);
        if (r->p == r->end || *r->p != '"')
            return fail(r, e, ERR_FORMAT, r->p, "expected a key in quotes");
        return key(r, s, len, e);
    case WANT_VALUE: return value(r, s, len, e);
    case WANT_VALUE_OR_END: return c == ']' ? close_bracket(r) : value(r, s, len, e);
    case WANT_KEY_OR_END:
        if (c == '}')
            return close_bracket(r);
        if (c != '"')
            return fail(r, e, ERR_FORMAT, r->p, "expected a key in quotes or '}'");
        return key(r, s, len, e);
    case WANT_NOTHING:
        if (r->p < r->end)
            return fail(r, e, ERR_FORMAT, r->p, "expected nothing after the value");
        return JSON_EV_END;
    case FAILED: break;
    }
    if (e)
        *e = r->first;
    return -1;
}

int json_next(json_reader *r, const char **s, size_t *len, struct err *e)
{
    return r->last = next(r, s, len, e);
}

int json_skip(json_reader *r, struct err *e)
{
    const char *s;
    size_t n;
    if (r->last == JSON_EV_KEY && json_next(r, &s, &n, e) < 0)
        return json_reader_code(r);
    if (r->last != JSON_EV_OBJECT && r->last != JSON_EV_ARRAY)
        return r->last < 0 ? r->code : ERR_OK;
    unsigned outside = r->depth - 1;
    while (r->depth > outside)
        if (json_next(r, &s, &n, e) < 0)
            return json_reader_code(r);
    return ERR_OK;
}

/* Keys that were decoded live in the reader's scratch memory: they need a copy of their own to be compared later. */
static const char *lasting(const json_reader *r, struct arena *a, const char *s, size_t n)
{
    return json_reader_borrowed(r, s) ? s : arena_strdup(a, s, n);
}

int json_check(const char *p, size_t n, const struct json_limits *lim, struct err *e)
{
    json_reader *r;
    struct json_keys keys = {0};
    struct arena copies;
    const char *s = NULL;
    size_t len = 0;
    int ev, rc = json_reader_open(&r, p, n, lim, e);
    if (rc)
        return rc;
    arena_init(&copies, SIZE_MAX / 2);
    bool track = !lim->allow_duplicates;
    while ((ev = json_next(r, &s, &len, e)) != JSON_EV_END && ev >= 0) {
        if (!track)
            continue;
        if (ev == JSON_EV_OBJECT && !json_keys_enter(&keys))
            ev = -2;
        if (ev == JSON_EV_OBJECT_END)
            json_keys_leave(&keys);
        if (ev == JSON_EV_KEY) {
            const char *k = lasting(r, &copies, s, len);
            int64_t at = k ? json_keys_add(&keys, k, len) : -2;
            if (at >= 0)
                ev = json_reader_fail(r, e, ERR_FORMAT, "expected each key once, found again", s, len);
            else if (at == -2)
                ev = -2;
        }
        if (ev == -2)
            ev = json_reader_fail(r, e, ERR_NOMEM, "no memory to compare keys", NULL, 0);
        if (ev < 0)
            break;
    }
    rc = ev < 0 ? json_reader_code(r) : ERR_OK;
    arena_free(&copies);
    json_keys_free(&keys);
    json_reader_close(r);
    return rc;
}
