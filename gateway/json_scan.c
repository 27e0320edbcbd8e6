#include "gateway/json_scan.h"

#include <string.h>

enum { VALUE, FIRST_VALUE, FIRST_KEY, KEY, COLON, AFTER, STRING, ESCAPE, HEX, NUMBER, WORD, OVER };
enum { SIGN, ZERO, INT, POINT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS }; /* of a number */

void gw_scan_init(struct gw_scan *s) { *s = (struct gw_scan){.at = VALUE}; }

static bool is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }
static bool in_array(const struct gw_scan *s) { return s->arrays >> (s->depth - 1) & 1; }

static void put(struct buf *out, unsigned char c)
{
    if (out)
        buf_char(out, (char)c);
}

static enum gw_scan_end value_over(struct gw_scan *s)
{
    s->at = s->depth ? AFTER : OVER;
    return s->depth ? GW_SCAN_MORE : GW_SCAN_OVER;
}

static enum gw_scan_end open_level(struct gw_scan *s, bool array)
{
    if (s->depth == GW_SCAN_DEPTH)
        return GW_SCAN_WRONG;
    uint64_t bit = 1ull << s->depth++;
    s->arrays = array ? s->arrays | bit : s->arrays & ~bit;
    s->at = array ? FIRST_VALUE : FIRST_KEY;
    return GW_SCAN_MORE;
}

static enum gw_scan_end begin_value(struct gw_scan *s, unsigned char c)
{
    static const char *const words[] = {"true", "false", "null"};
    if (c == '{' || c == '[')
        return open_level(s, c == '[');
    if (c == '"') {
        s->at = STRING;
        s->key = false;
        return GW_SCAN_MORE;
    }
    if (c == '-' || is_digit(c)) {
        s->at = NUMBER;
        s->sub = c == '-' ? SIGN : c == '0' ? ZERO : INT;
        return GW_SCAN_MORE;
    }
    for (int i = 0; i < 3; i++)
        if ((unsigned char)*words[i] == c) {
            s->at = WORD;
            s->word = words[i] + 1;
            return GW_SCAN_MORE;
        }
    return GW_SCAN_WRONG;
}

static enum gw_scan_end in_string(struct gw_scan *s, unsigned char c, struct buf *out)
{
    if (s->at == ESCAPE) {
        if (!c || !strchr("\"\\/bfnrtu", c))
            return GW_SCAN_WRONG;
        put(out, c);
        s->at = c == 'u' ? HEX : STRING;
        s->sub = 0;
        return GW_SCAN_MORE;
    }
    if (s->at == HEX) {
        if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F'))
            return GW_SCAN_WRONG;
        put(out, c);
        if (++s->sub == 4)
            s->at = STRING;
        return GW_SCAN_MORE;
    }
    if (c == '"') {
        put(out, c);
        if (!s->key)
            return value_over(s);
        s->at = COLON;
        return GW_SCAN_MORE;
    }
    if (c == 0xFF)
        return GW_SCAN_WRONG;
    if (c == '\\') {
        put(out, c);
        s->at = ESCAPE;
    } else if (c < 0x20 && out) {
        gw_scan_put_string(out, (const char *)&c, 1);
    } else {
        put(out, c);
    }
    return GW_SCAN_MORE;
}

/* True: c belongs to the number. */
static bool in_number(struct gw_scan *s, unsigned char c)
{
    bool digit = is_digit(c);
    switch (s->sub) {
    case SIGN: s->sub = c == '0' ? ZERO : INT; return digit;
    case INT: if (digit) return true; /* fall through */
    case ZERO: s->sub = c == '.' ? POINT : EXP; return c == '.' || c == 'e' || c == 'E';
    case POINT: s->sub = FRACTION; return digit;
    case FRACTION: s->sub = digit ? FRACTION : EXP; return digit || c == 'e' || c == 'E';
    case EXP: s->sub = digit ? EXP_DIGITS : EXP_SIGN; return digit || c == '+' || c == '-';
    case EXP_SIGN: s->sub = EXP_DIGITS; return digit;
    default: return digit;
    }
}

static bool number_ends(const struct gw_scan *s) { return s->sub == ZERO || s->sub == INT || s->sub == FRACTION || s->sub == EXP_DIGITS; }

static enum gw_scan_end between(struct gw_scan *s, unsigned char c)
{
    bool close = s->depth && c == (in_array(s) ? ']' : '}');
    switch (s->at) {
    case FIRST_VALUE:
        if (!close)
            return begin_value(s, c);
        break;
    case VALUE: return begin_value(s, c);
    case FIRST_KEY:
    case KEY:
        if (close && s->at == FIRST_KEY)
            break;
        s->at = STRING;
        s->key = true;
        return c == '"' ? GW_SCAN_MORE : GW_SCAN_WRONG;
    case COLON: s->at = VALUE; return c == ':' ? GW_SCAN_MORE : GW_SCAN_WRONG;
    case AFTER:
        if (close)
            break;
        s->at = in_array(s) ? VALUE : KEY;
        return c == ',' ? GW_SCAN_MORE : GW_SCAN_WRONG;
    default: return GW_SCAN_WRONG;
    }
    s->depth--;
    return value_over(s);
}

enum gw_scan_end gw_scan_byte(struct gw_scan *s, unsigned char c, struct buf *out)
{
    if (s->at == STRING || s->at == ESCAPE || s->at == HEX)
        return in_string(s, c, out);
    if (s->at == WORD) {
        if ((unsigned char)*s->word != c)
            return GW_SCAN_WRONG;
        put(out, c);
        return *++s->word ? GW_SCAN_MORE : value_over(s);
    }
    if (s->at == NUMBER) {
        struct gw_scan before = *s;
        if (in_number(s, c)) {
            put(out, c);
            return GW_SCAN_MORE;
        }
        *s = before;
        if (!number_ends(s) || value_over(s) == GW_SCAN_OVER)
            return GW_SCAN_WRONG; /* a number alone ends where the text does */
    }
    if (is_space(c)) {
        put(out, c);
        return GW_SCAN_MORE;
    }
    enum gw_scan_end e = between(s, c);
    if (e != GW_SCAN_WRONG)
        put(out, c);
    return e;
}

bool gw_scan_ends(const struct gw_scan *s) { return s->at == OVER || (s->at == NUMBER && !s->depth && number_ends(s)); }

bool gw_scan_is_json(const char *p, size_t n)
{
    struct gw_scan s;
    size_t i = 0;
    while (n && is_space((unsigned char)p[n - 1]))
        n--;
    gw_scan_init(&s);
    for (; i < n && s.at != OVER; i++)
        if (gw_scan_byte(&s, (unsigned char)p[i], NULL) == GW_SCAN_WRONG)
            return false;
    return i == n && gw_scan_ends(&s);
}

void gw_scan_put_string(struct buf *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        const char *short_form = c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : NULL;
        if (short_form)
            buf_str(out, short_form);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_char(out, (char)c);
    }
}
