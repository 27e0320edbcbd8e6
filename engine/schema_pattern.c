/* engine/schema_pattern.c - a regular expression of `pattern` -> the inside of a JSON string whose value it matches; and formats.
 *
 * A character that JSON must escape is written as its short escape; others as they are. So each value has one spelling, and classes stay classes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schema_internal.h"

enum { RANGES_MAX = 512, NEST_MAX = 40 };
struct range { uint32_t lo, hi; };
struct set { struct range r[RANGES_MAX]; unsigned n; bool over; };
struct length { uint64_t min, max; };                       /* characters; max SCHEMA_OPEN or more: no bound */

struct regex {
    struct schema *s;
    const char *p, *end;
    unsigned nest;
    uint32_t min, max;                                       /* bounds of the whole, wanted */
};

#define BAD(x, ...) schema_fail((x)->s, ERR_UNSUPPORTED, "pattern", __VA_ARGS__)

/* ---- sets of characters -------------------------------------------------------------------------------------- */

static void add(struct set *t, uint32_t lo, uint32_t hi)
{
    if (t->n == RANGES_MAX)
        t->over = true;
    else
        t->r[t->n++] = (struct range){lo, hi};
}

static int by_lo(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void tidy(struct set *t)
{
    unsigned k = 0;
    qsort(t->r, t->n, sizeof *t->r, by_lo);
    for (unsigned i = 0; i < t->n; i++) {
        if (k && t->r[i].lo <= t->r[k - 1].hi + 1)
            t->r[k - 1].hi = t->r[i].hi > t->r[k - 1].hi ? t->r[i].hi : t->r[k - 1].hi;
        else
            t->r[k++] = t->r[i];
    }
    t->n = k;
}

static void complement(struct set *t)
{
    struct set o = {.n = 0, .over = t->over};
    uint32_t from = 0;
    tidy(t);
    for (unsigned i = 0; i < t->n; from = t->r[i++].hi + 1)
        if (t->r[i].lo > from)
            add(&o, from, t->r[i].lo - 1);
    if (from <= 0x10FFFF)
        add(&o, from, 0x10FFFF);
    *t = o;
}

static void add_shorthand(struct set *t, char c)
{
    struct set one = {.n = 0};
    switch (c | 0x20) {
    case 'd': add(&one, '0', '9'); break;
    case 'w': add(&one, '0', '9'); add(&one, 'A', 'Z'); add(&one, '_', '_'); add(&one, 'a', 'z'); break;
    default: add(&one, '\t', '\r'); add(&one, ' ', ' '); add(&one, 0xA0, 0xA0); add(&one, 0x2028, 0x2029); add(&one, 0xFEFF, 0xFEFF); break;
    }
    if (c < 'a')
        complement(&one);
    for (unsigned i = 0; i < one.n; i++)
        add(t, one.r[i].lo, one.r[i].hi);
}

static void put_class_char(struct buf *b, uint32_t c)
{
    if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        buf_char(b, (char)c);
    else
        buf_printf(b, c < 0x100 ? "\\x%02X" : c < 0x10000 ? "\\u%04X" : "\\U%08X", c);
}

static bool has(const struct set *t, uint32_t c)
{
    for (unsigned i = 0; i < t->n; i++)
        if (c >= t->r[i].lo && c <= t->r[i].hi)
            return true;
    return false;
}

/* Of lo..hi what JSON writes as it is. */
static void put_raw(struct buf *b, uint32_t lo, uint32_t hi)
{
    static const uint32_t holes[][2] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}, {0x110000, 0x110000}};
    for (size_t i = 0; i < sizeof holes / sizeof *holes && lo <= hi; i++) {
        uint32_t to = hi < holes[i][0] ? hi : holes[i][0] - 1;
        if (holes[i][0] && lo <= to) {
            put_class_char(b, lo);
            if (to > lo)
                buf_char(b, '-');
            if (to > lo)
                put_class_char(b, to);
        }
        if (lo <= holes[i][1] && hi >= holes[i][0])
            lo = holes[i][1] + 1;
        else if (hi < holes[i][0])
            return;
    }
}

/* One character of the set. */
static int put_set(struct regex *x, struct set *t, struct buf *b)
{
    static const struct { uint32_t c; const char *text; } escapes[] = {{'"', "\\\\\\\""}, {'\\', "\\\\\\\\"}, {'\b', "\\\\b"}, {'\f', "\\\\f"}, {'\n', "\\\\n"}, {'\r', "\\\\r"}, {'\t', "\\\\t"}};
    struct buf raw;
    const char *bar = "";
    tidy(t);
    if (t->over)
        return BAD(x, "a class of too many ranges");
    buf_init(&raw, 64 << 10);
    for (unsigned i = 0; i < t->n; i++)
        put_raw(&raw, t->r[i].lo, t->r[i].hi);
    buf_str(b, " (");
    if (raw.len) {
        buf_str(b, "[");
        buf_add(b, raw.data, raw.len);
        buf_str(b, "]");
        bar = " | ";
    }
    bool failed = raw.failed;
    buf_free(&raw);
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
        if (has(t, escapes[i].c)) {
            buf_printf(b, "%s\"%s\"", bar, escapes[i].text);
            bar = " | ";
        }
    for (uint32_t c = 0; c < 0x20 && !*bar; c++) /* a control character alone */
        if (has(t, c)) {
            buf_printf(b, "\"\\\\u%04X\"", c);
            bar = " | ";
        }
    buf_str(b, ")");
    if (failed)
        return schema_fail(x->s, ERR_NOMEM, "pattern", "no memory");
    return *bar ? ERR_OK : BAD(x, "a class of no character");
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

static bool more(const struct regex *x) { return x->p < x->end; }

static int get_hex(struct regex *x, unsigned digits, uint32_t *c)
{
    *c = 0;
    for (unsigned i = 0; i < digits; i++, x->p++) {
        char h = more(x) ? *x->p : 'x';
        int d = h >= '0' && h <= '9' ? h - '0' : (h | 0x20) >= 'a' && (h | 0x20) <= 'f' ? (h | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            return BAD(x, "expected %u hex digits", digits);
        *c = *c << 4 | (uint32_t)d;
    }
    return ERR_OK;
}

/* Behind a backslash: a class (\d \w \s and capitals) goes into t, else *c is one character. */
static int get_escape(struct regex *x, struct set *t, uint32_t *c, bool *is_class)
{
    char k = more(x) ? *x->p++ : 0;
    *is_class = k && strchr("dDwWsS", k);
    if (*is_class) {
        add_shorthand(t, k);
        return ERR_OK;
    }
    switch (k) {
    case 'n': *c = '\n'; return ERR_OK;
    case 'r': *c = '\r'; return ERR_OK;
    case 't': *c = '\t'; return ERR_OK;
    case 'f': *c = '\f'; return ERR_OK;
    case 'v': *c = '\v'; return ERR_OK;
    case 'x': return get_hex(x, 2, c);
    case 'u':
        if (!more(x) || *x->p != '{')
            return get_hex(x, 4, c);
        for (x->p++, *c = 0; more(x) && *x->p != '}';) {
            uint32_t d;
            int rc = get_hex(x, 1, &d);
            if (rc || (*c = *c << 4 | d) > 0x10FFFF)
                return rc ? rc : BAD(x, "no such character");
        }
        x->p += more(x);
        return ERR_OK;
    default:
        if (k && (strchr("^$\\.*+?()[]{}|/-\"' ,:;=!<>&@#%_~`", k)))
            return *c = (uint32_t)k, ERR_OK;
        return BAD(x, "'\\%c' is not supported", k > 0x20 ? k : '?');
    }
}

static uint32_t get_utf8(struct regex *x) /* schemas are valid UTF-8 */
{
    uint8_t k = (uint8_t)*x->p++;
    unsigned n = k < 0x80 ? 0 : k < 0xE0 ? 1 : k < 0xF0 ? 2 : 3;
    uint32_t c = n ? k & (0x3Fu >> n) : k;
    for (; n && more(x); n--)
        c = c << 6 | (*x->p++ & 0x3F);
    return c;
}

static int get_class(struct regex *x, struct set *t)
{
    bool negated = more(x) && *x->p == '^', is_class, second;
    x->p += negated;
    while (more(x) && *x->p != ']') {
        uint32_t lo = 0, hi;
        int rc = 0;
        is_class = false;
        if (*x->p == '\\') {
            x->p++;
            if (more(x) && *x->p == 'b') { /* in a class: backspace */
                x->p++;
                lo = '\b';
            } else {
                rc = get_escape(x, t, &lo, &is_class);
            }
        } else {
            lo = get_utf8(x);
        }
        if (rc)
            return rc;
        if (is_class)
            continue;
        hi = lo;
        if (x->end - x->p > 1 && *x->p == '-' && x->p[1] != ']') {
            x->p++;
            if (*x->p == '\\') {
                x->p++;
                if ((rc = get_escape(x, t, &hi, &second)) || second)
                    return rc ? rc : BAD(x, "a range to a class");
            } else {
                hi = get_utf8(x);
            }
        }
        if (hi < lo)
            return BAD(x, "a range that goes down");
        add(t, lo, hi);
    }
    if (!more(x))
        return BAD(x, "a class without its ']'");
    x->p++;
    if (negated)
        complement(t);
    return ERR_OK;
}

static int get_alternatives(struct regex *x, bool top, struct buf *b, struct length *len);

/* ( ... ), (?: ... ), (?<name> ... ) */
static int get_group(struct regex *x, struct buf *b, struct length *len)
{
    if (more(x) && *x->p == '?') {
        if (x->end - x->p > 1 && x->p[1] == ':') {
            x->p += 2;
        } else if (x->end - x->p > 2 && x->p[1] == '<' && x->p[2] != '=' && x->p[2] != '!') {
            while (more(x) && *x->p != '>')
                x->p++;
            x->p += more(x);
        } else {
            return BAD(x, "looking ahead or behind is not supported");
        }
    }
    if (++x->nest > NEST_MAX)
        return schema_fail(x->s, ERR_LIMIT, "pattern", "groups nest more than %d deep", NEST_MAX);
    buf_str(b, " (");
    int rc = get_alternatives(x, false, b, len);
    buf_str(b, ")");
    x->nest--;
    if (rc)
        return rc;
    if (!more(x))
        return BAD(x, "a group without its ')'");
    x->p++;
    return ERR_OK;
}

static int get_atom(struct regex *x, struct buf *b, struct length *len)
{
    struct set t = {.n = 0};
    uint32_t c;
    bool is_class;
    int rc;
    char k = *x->p++;
    *len = (struct length){1, 1};
    switch (k) {
    case '(': return get_group(x, b, len);
    case '[': return (rc = get_class(x, &t)) ? rc : put_set(x, &t, b);
    case '.':
        add(&t, '\n', '\n');
        add(&t, '\r', '\r');
        add(&t, 0x2028, 0x2029);
        complement(&t);
        return put_set(x, &t, b);
    case '\\':
        if ((rc = get_escape(x, &t, &c, &is_class)))
            return rc;
        if (!is_class)
            add(&t, c, c);
        return put_set(x, &t, b);
    case '*': case '+': case '?': return BAD(x, "nothing to repeat in front of '%c'", k);
    case '^': case '$': return BAD(x, "'%c' is supported at the ends of the pattern only", k);
    default:
        x->p--;
        c = get_utf8(x);
        add(&t, c, c);
        return put_set(x, &t, b);
    }
}

static bool get_number(struct regex *x, uint64_t *n)
{
    const char *from = x->p;
    for (*n = 0; more(x) && *x->p >= '0' && *x->p <= '9'; x->p++)
        *n = *n < SCHEMA_MANY ? 10 * *n + (uint64_t)(*x->p - '0') : *n;
    return x->p > from;
}

/* A quantifier, if one is here; *min and *max stay 1 without. */
static int get_quantifier(struct regex *x, uint64_t *min, uint64_t *max)
{
    *min = *max = 1;
    const char *from = x->p;
    char k = more(x) ? *x->p : 0;
    if (k == '*' || k == '+' || k == '?') {
        x->p++;
        *min = k == '+';
        *max = k == '?' ? 1 : SCHEMA_OPEN;
    } else if (k == '{') {
        x->p++;
        bool first = get_number(x, min);
        *max = *min;
        if (first && more(x) && *x->p == ',') {
            x->p++;
            if (!get_number(x, max))
                *max = SCHEMA_OPEN;
        }
        if (!first || !more(x) || *x->p++ != '}') { /* ECMA: then it is text; unclear enough to refuse */
            x->p = from;
            return BAD(x, "expected {m}, {m,} or {m,n}");
        }
        if (*max < *min || *min >= SCHEMA_MANY || (*max != SCHEMA_OPEN && *max >= SCHEMA_MANY))
            return BAD(x, "expected at most %d repetitions, and {m,n} with m <= n", SCHEMA_MANY - 1);
    }
    if (x->p > from && more(x) && *x->p == '?')
        x->p++; /* lazy: the same texts */
    return ERR_OK;
}

static uint64_t times(uint64_t a, uint64_t b) { return a >= SCHEMA_OPEN || b >= SCHEMA_OPEN ? (a && b ? SCHEMA_OPEN : 0) : a * b; }
static uint64_t plus(uint64_t a, uint64_t b) { return a + b >= SCHEMA_OPEN ? SCHEMA_OPEN : a + b; }

static void put_quantifier(struct buf *b, uint64_t min, uint64_t max)
{
    if (max >= SCHEMA_OPEN)
        buf_printf(b, min ? "{%u,}" : "*", (unsigned)min);
    else if (min != 1 || max != 1)
        buf_printf(b, "{%u,%u}", (unsigned)min, (unsigned)max);
}

static bool ends_here(const struct regex *x) { return !more(x) || *x->p == '|' || *x->p == ')'; }
static bool at_dollar(const struct regex *x) { return more(x) && *x->p == '$' && (x->p + 1 == x->end || x->p[1] == '|'); }

/* Top: without ^ or $ anything may stand in front or behind. A single repeated atom takes the string's own bounds. */
static int get_sequence(struct regex *x, bool top, struct buf *b, struct length *len)
{
    bool from_start = top && more(x) && *x->p == '^', alone = from_start;
    x->p += from_start;
    *len = (struct length){0, 0};
    buf_str(b, " \"\"");
    if (top && !from_start) {
        schema_use(x->s, b, COMMON_CHAR);
        buf_str(b, "*");
        len->max = SCHEMA_OPEN;
    }
    while (!ends_here(x) && !(top && at_dollar(x))) {
        struct length one;
        uint64_t min, max;
        int rc = get_atom(x, b, &one);
        if (rc || (rc = get_quantifier(x, &min, &max)))
            return rc;
        if (alone && top && at_dollar(x) && one.min == 1 && one.max == 1) {
            min = min < x->min ? x->min : min;
            max = max > x->max ? x->max : max;
            if (min > max)
                return schema_fail(x->s, ERR_INVALID, "pattern", "no string has a length that both the pattern and the bounds allow");
        }
        alone = false;
        put_quantifier(b, min, max);
        len->min = plus(len->min, times(one.min, min));
        len->max = plus(len->max, times(one.max, max));
    }
    if (top && at_dollar(x)) {
        x->p++;
    } else if (top) {
        schema_use(x->s, b, COMMON_CHAR);
        buf_str(b, "*");
        len->max = SCHEMA_OPEN;
    }
    return b->failed ? schema_fail(x->s, ERR_LIMIT, "pattern", "it is too large") : ERR_OK;
}

static int get_alternatives(struct regex *x, bool top, struct buf *b, struct length *len)
{
    *len = (struct length){UINT64_MAX, 0};
    for (;;) {
        struct length one;
        int rc = get_sequence(x, top, b, &one);
        if (rc)
            return rc;
        len->min = one.min < len->min ? one.min : len->min;
        len->max = one.max > len->max ? one.max : len->max;
        if (!more(x) || *x->p != '|')
            return ERR_OK;
        x->p++;
        buf_str(b, " |");
    }
}

int schema_pattern(struct schema *s, const char *re, size_t n, uint32_t min, uint32_t max, struct buf *b)
{
    struct regex x = {.s = s, .p = re, .end = re + n, .min = min, .max = max};
    struct length len;
    buf_str(b, " (");
    int rc = get_alternatives(&x, true, b, &len);
    buf_str(b, ")");
    if (rc)
        return rc;
    if (more(&x))
        return BAD(&x, "a ')' without its '('");
    if (len.min < min || len.max > max)
        return schema_fail(s, ERR_UNSUPPORTED, "pattern", "beside minLength or maxLength it must keep them by itself, or be one repeated class between ^ and $");
    return ERR_OK;
}

/* ---- formats -------------------------------------------------------------------------------------------------- */

#define DATE "( ([12] [0-9]{3} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | (\"0\" [469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | " \
             "\"02-\" (\"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8]))) | " \
             "(([12] [0-9] (\"0\" [48] | [2468] [048] | [13579] [26]) | (\"1\" [26] | \"2\" [048]) \"00\") \"-02-29\") )" /* years 1000 to 2999 */
#define TIME "( ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9] \":\" [0-5] [0-9] (\".\" [0-9]{1,9})? (\"Z\" | [+-] ([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]) )"
#define BYTE "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9] [0-9] | [0-9])"
#define IPV4 BYTE " \".\" " BYTE " \".\" " BYTE " \".\" " BYTE
#define H16 "[0-9a-fA-F]{1,4}"
#define LABEL "([a-zA-Z0-9] ([a-zA-Z0-9\\-]{0,30} [a-zA-Z0-9])?)"
#define ATEXT "[a-zA-Z0-9!#$%&'*+/=?\\x5E_`{|}~\\-]"

const char *schema_format_rule(const char *format)
{
    static const struct { const char *name, *rule; } table[] = {
        {"date", DATE}, {"time", TIME}, {"date-time", DATE " \"T\" " TIME},
        {"duration", "\"P\" ([0-9]{1,4} \"W\" | ([0-9]{1,4} \"Y\")? ([0-9]{1,4} \"M\")? ([0-9]{1,4} \"D\") | ([0-9]{1,4} \"Y\")? ([0-9]{1,4} \"M\") | ([0-9]{1,4} \"Y\") | "
                     "([0-9]{1,4} \"D\")? \"T\" (([0-9]{1,4} \"H\") ([0-9]{1,4} \"M\")? ([0-9]{1,4} \"S\")? | ([0-9]{1,4} \"M\") ([0-9]{1,4} \"S\")? | ([0-9]{1,4} \"S\")))"},
        {"uuid", "[0-9a-fA-F]{8} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{4} \"-\" [0-9a-fA-F]{12}"},
        {"ipv4", IPV4},
        {"ipv6", "(" H16 " (\":\" " H16 "){7} | \"::\" (" H16 " (\":\" " H16 "){0,6})? | " H16 " \"::\" (" H16 " (\":\" " H16 "){0,5})? | " H16 " \":\" " H16 " \"::\" (" H16 " (\":\" " H16 "){0,4})?)"},
        {"hostname", LABEL " (\".\" " LABEL "){0,6}"},
        {"email", ATEXT "{1,32} (\".\" " ATEXT "{1,32}){0,3} \"@\" " LABEL " (\".\" " LABEL "){0,3} \".\" [a-zA-Z]{2,12}"},
        {"uri", "[a-z] [a-z0-9+.\\-]{0,15} \"://\" [a-zA-Z0-9.\\-]{1,100} (\":\" [0-9]{1,4})? (\"/\" [a-zA-Z0-9._~!$&'()*+,;=:@\\-]{0,100}){0,12} "
                "(\"?\" [a-zA-Z0-9._~!$&'()*+,;=:@/?\\-]{0,300})? (\"#\" [a-zA-Z0-9._~!$&'()*+,;=:@/?\\-]{0,100})?"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, format))
            return table[i].rule;
    return NULL;
}
