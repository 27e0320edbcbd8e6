/* engine/jinja_lex.c - text and tags apart, white space control, tokens inside tags.
 *
 * The lexer is pulled one token at a time, so hostile source fails at its first error. Between tags it yields DATA already trimmed:
 * `{%-` takes white space before it, `-%}` after it, a block or comment tag takes the newline after it (trim_blocks) and, when it is
 * the first on its line, the blanks before it (lstrip_blocks). The source has LF alone and no newline at its very end. */
#include "engine/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <utf8proc.h>

int j_lex_fail(struct jlex *lx, size_t pos, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    size_t line = 1, start = 0;
    for (size_t i = 0; i < pos && i < lx->n; i++)
        if (lx->src[i] == '\n') {
            line++;
            start = i + 1;
        }
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(lx->e, ERR_FORMAT, "template, line %zu, column %zu: %s", line, pos - start + 1, msg);
}

size_t j_space_at(const char *s, size_t n, size_t i)
{
    size_t len;
    return i < n && j_is_space(j_cp_at(s + i, n - i, &len)) ? len : 0;
}

size_t j_rstrip_len(const char *s, size_t n)
{
    while (n) {
        size_t i = n - 1;
        while (i > 0 && n - i < 4 && ((unsigned char)s[i] & 0xC0) == 0x80)
            i--;
        size_t len = j_space_at(s, n, i);
        if (len != n - i)
            break;
        n = i;
    }
    return n;
}

static void skip_space(struct jlex *lx)
{
    for (size_t k; (k = j_space_at(lx->src, lx->n, lx->pos));)
        lx->pos += k;
}

/* After the end of a tag or comment: what of the following text belongs to it. */
static void end_tag(struct jlex *lx, char sign, bool takes_newline)
{
    if (sign == '-')
        skip_space(lx);
    else if (takes_newline && sign != '+' && lx->pos < lx->n && lx->src[lx->pos] == '\n')
        lx->pos++;
    lx->line_starting = lx->pos > 0 && lx->src[lx->pos - 1] == '\n';
}

/* {% raw %} or {% endraw %} at pos: the bytes of the tag up to and with %}, and the signs on both sides; 0 if it is another tag. */
static size_t raw_tag(const struct jlex *lx, size_t pos, const char *word, char *before, char *after)
{
    size_t i = pos + 2, len = strlen(word);
    *before = *after = 0;
    if (pos + 2 > lx->n || memcmp(lx->src + pos, "{%", 2))
        return 0;
    if (i < lx->n && (lx->src[i] == '-' || lx->src[i] == '+'))
        *before = lx->src[i++];
    for (size_t k; (k = j_space_at(lx->src, lx->n, i));)
        i += k;
    if (lx->n - i < len || memcmp(lx->src + i, word, len))
        return 0;
    i += len;
    for (size_t k; (k = j_space_at(lx->src, lx->n, i));)
        i += k;
    if (i < lx->n && (lx->src[i] == '-' || lx->src[i] == '+'))
        *after = lx->src[i++];
    return lx->n - i >= 2 && !memcmp(lx->src + i, "%}", 2) ? i + 2 - pos : 0;
}

/* The text [from, tag) before a tag that carries `sign`, trimmed. */
static size_t trim_before(const struct jlex *lx, size_t from, size_t tag, char sign, bool is_out)
{
    size_t n = tag - from;
    if (sign == '-')
        return j_rstrip_len(lx->src + from, n);
    if (sign == '+' || is_out)
        return n;
    size_t line = n;
    while (line && lx->src[from + line - 1] != '\n')
        line--;
    if (!line && !lx->line_starting)
        return n;
    return j_rstrip_len(lx->src + from + line, n - line) ? n : line;
}

static bool yield_data(struct jlex *lx, struct jtoken *t, size_t from, size_t n)
{
    for (; lx->line_pos < from; lx->line_pos++)
        lx->line += lx->src[lx->line_pos] == '\n';
    *t = (struct jtoken){T_DATA, 0, lx->line, from, lx->src + from, n};
    return true;
}

static bool lex_raw(struct jlex *lx, struct jtoken *t, size_t start)
{
    size_t from = lx->pos;
    for (size_t i = from; i + 1 < lx->n; i++) {
        char before, after;
        size_t len = lx->src[i] == '{' ? raw_tag(lx, i, "endraw", &before, &after) : 0;
        if (!len)
            continue;
        size_t n = trim_before(lx, from, i, before, false);
        lx->pos = i + len;
        end_tag(lx, after, true);
        return yield_data(lx, t, from, n);
    }
    return !j_lex_fail(lx, start, "raw has no endraw");
}

static bool lex_comment(struct jlex *lx)
{
    size_t at = lx->pos + 2, end = j_find(lx->src + at, lx->n - at, "#}", 2);
    if (end == SIZE_MAX)
        return !j_lex_fail(lx, lx->pos, "the comment has no end");
    lx->pos = at + end + 2;
    end_tag(lx, end ? lx->src[at + end - 1] : 0, true);
    return true;
}

/* Outside of tags. */
static bool lex_data(struct jlex *lx, struct jtoken *t)
{
    for (;;) {
        size_t from = lx->pos, i = from;
        while (i + 1 < lx->n && !(lx->src[i] == '{' && strchr("{%#", lx->src[i + 1]) && lx->src[i + 1]))
            i++;
        if (i + 1 >= lx->n) {
            lx->pos = lx->n;
            yield_data(lx, t, from, lx->n - from);
            if (from == lx->n)
                t->type = T_EOF;
            return true;
        }
        char kind = lx->src[i + 1], sign = i + 2 < lx->n ? lx->src[i + 2] : 0, before, after;
        size_t n = trim_before(lx, from, i, sign, kind == '{'), raw = kind == '%' ? raw_tag(lx, i, "raw", &before, &after) : 0;
        lx->pos = i;
        if (n) {
            /* the tag comes with the next call: nothing before it then, and nothing to trim */
            lx->line_starting = false;
            return yield_data(lx, t, from, n);
        }
        if (raw && after != '+') {
            lx->pos = i + raw;
            end_tag(lx, after, false);
            lx->line_starting = false;
            if (!lex_raw(lx, t, i))
                return false;
            if (!t->n)
                continue;
            return true;
        }
        if (kind == '#') {
            if (!lex_comment(lx))
                return false;
            continue;
        }
        yield_data(lx, t, i, 2);
        t->type = kind == '{' ? T_OUT : T_TAG;
        lx->pos = i + 2 + (sign == '-' || sign == '+');
        lx->inside = true;
        lx->is_out = kind == '{';
        lx->n_open = 0;
        return true;
    }
}

static bool digits(const struct jlex *lx, size_t *i)
{
    size_t at = *i;
    while (at < lx->n && ((lx->src[at] >= '0' && lx->src[at] <= '9') ||
                          (lx->src[at] == '_' && at > *i && lx->src[at - 1] != '_' && at + 1 < lx->n && lx->src[at + 1] >= '0' && lx->src[at + 1] <= '9')))
        at++;
    bool any = at > *i;
    *i = at;
    return any;
}

static void lex_number(struct jlex *lx, struct jtoken *t)
{
    size_t i = lx->pos, start = i;
    const char *radix = NULL;
    bool after_dot = start > 0 && lx->src[start - 1] == '.';
    t->type = T_INT;
    if (lx->src[i] == '0' && i + 2 < lx->n && lx->src[i + 1])
        switch (lx->src[i + 1] | 32) {
        case 'x': radix = "0123456789abcdefABCDEF"; break;
        case 'o': radix = "01234567"; break;
        case 'b': radix = "01"; break;
        default: break;
        }
    if (radix) {
        size_t k = i + 2;
        while (k < lx->n && lx->src[k] && (strchr(radix, lx->src[k]) || (lx->src[k] == '_' && k + 1 < lx->n && lx->src[k + 1] && strchr(radix, lx->src[k + 1]))))
            k++;
        if (k > i + 2) {
            t->n = k - start;
            lx->pos = k;
            return;
        }
    }
    digits(lx, &i);
    size_t end = i;
    if (!after_dot) { /* x.0.1 is two items, not a fraction */
        size_t k = i + 1;
        if (i < lx->n && lx->src[i] == '.' && digits(lx, &k)) {
            end = i = k;
            t->type = T_FLOAT;
        }
        k = i + 1;
        if (i < lx->n && (lx->src[i] | 32) == 'e') {
            if (k < lx->n && (lx->src[k] == '+' || lx->src[k] == '-'))
                k++;
            if (digits(lx, &k)) {
                end = k;
                t->type = T_FLOAT;
            }
        }
    }
    t->n = end - start;
    lx->pos = end;
}

static bool name_char(int32_t c, bool first)
{
    if (c < 128)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (!first && c >= '0' && c <= '9');
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || k == UTF8PROC_CATEGORY_NL ||
           (!first && (k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_PC));
}

static void lex_name(struct jlex *lx, struct jtoken *t)
{
    size_t i = lx->pos, len;
    t->type = T_NAME;
    while (i < lx->n && name_char(j_cp_at(lx->src + i, lx->n - i, &len), i == lx->pos))
        i += len;
    t->n = i - lx->pos;
    lx->pos = i;
}

/* The number of hex digits an escape takes, 0 for the others. */
static unsigned hex_digits(char c) { return c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0; }

static bool hex_escape(struct jlex *lx, size_t *i, unsigned want, char *out, size_t *n)
{
    uint32_t c = 0;
    for (unsigned k = 0; k < want; k++) {
        char d = *i < lx->n ? lx->src[*i] : 0;
        unsigned v = d >= '0' && d <= '9' ? (unsigned)(d - '0') : (d | 32) >= 'a' && (d | 32) <= 'f' ? (unsigned)((d | 32) - 'a' + 10) : 16;
        if (v == 16)
            return !j_lex_fail(lx, *i, "expected %u hex digits in the escape", want);
        c = c * 16 + v;
        ++*i;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        return !j_lex_fail(lx, *i, "U+%04X is no character", (unsigned)c);
    *n += j_cp_put(out + *n, (int32_t)c);
    return true;
}

/* A Python string: simple escapes, octal, hex; an unknown escape keeps its backslash, one before a newline drops both. */
static bool unescape(struct jlex *lx, size_t from, size_t to, char *out, size_t *n)
{
    static const char plain[] = "\\'\"abfnrtv", made[] = "\\'\"\a\b\f\n\r\t\v";
    for (size_t i = from; i < to;) {
        char c = lx->src[i++];
        if (c != '\\') {
            out[(*n)++] = c;
            continue;
        }
        c = lx->src[i++];
        const char *at = c ? strchr(plain, c) : NULL;
        if (c == '\n')
            continue;
        if (at) {
            out[(*n)++] = made[at - plain];
        } else if (hex_digits(c)) {
            if (!hex_escape(lx, &i, hex_digits(c), out, n))
                return false;
        } else if (c >= '0' && c <= '7') {
            int32_t v = c - '0';
            for (int k = 0; k < 2 && i < to && lx->src[i] >= '0' && lx->src[i] <= '7'; k++)
                v = v * 8 + lx->src[i++] - '0';
            *n += j_cp_put(out + *n, v);
        } else if (c == 'N') {
            return !j_lex_fail(lx, i, "escapes by character name are not supported");
        } else {
            out[(*n)++] = '\\';
            out[(*n)++] = c;
        }
    }
    return true;
}

static bool lex_string(struct jlex *lx, struct jtoken *t)
{
    size_t start = lx->pos, i = start + 1;
    char quote = lx->src[start];
    bool escapes = false;
    while (i < lx->n && lx->src[i] != quote) {
        if (lx->src[i] == '\\') {
            escapes = true;
            i++;
        }
        i++;
    }
    if (i >= lx->n)
        return !j_lex_fail(lx, start, "the string has no end");
    t->type = T_STR;
    t->s = lx->src + start + 1;
    t->n = i - start - 1;
    lx->pos = i + 1;
    if (!escapes)
        return true;
    char *text = arena_alloc(lx->mem, t->n + 1); /* an escape is never shorter than its character */
    if (!text) {
        err_set(lx->e, ERR_LIMIT, "template: its strings are too large");
        return false;
    }
    t->n = 0;
    t->s = text;
    return unescape(lx, start + 1, i, text, &t->n);
}

static bool lex_op(struct jlex *lx, struct jtoken *t)
{
    static const char two[][3] = {"**", "//", "==", "!=", ">=", "<="};
    char c = lx->src[lx->pos], d = lx->pos + 1 < lx->n ? lx->src[lx->pos + 1] : 0;
    t->type = T_OP;
    t->op = c;
    t->n = 1;
    for (size_t k = 0; k < sizeof two / sizeof *two; k++)
        if (c == two[k][0] && d == two[k][1]) {
            t->op = T2(c);
            t->n = 2;
        }
    if (t->n == 1 && (!c || !strchr("+-*/%~[](){}<>=.:|,;", c)))
        return !j_lex_fail(lx, lx->pos, "unexpected character");
    if (strchr("([{", c)) {
        if (lx->n_open == sizeof lx->open)
            return !err_set(lx->e, ERR_LIMIT, "template, line %u: more than %zu brackets are open", t->line, sizeof lx->open);
        lx->open[lx->n_open++] = c == '(' ? ')' : (char)(c + 2);
    } else if (strchr(")]}", c)) {
        if (!lx->n_open || lx->open[lx->n_open - 1] != c)
            return !j_lex_fail(lx, lx->pos, "unexpected \"%c\"", c);
        lx->n_open--;
    }
    lx->pos += t->n;
    return true;
}

/* The end of the tag, if it is here: brackets must be closed, as }} may also end two dicts. */
static bool lex_end(struct jlex *lx, struct jtoken *t)
{
    size_t i = lx->pos;
    char sign = i < lx->n && (lx->src[i] == '-' || (lx->src[i] == '+' && !lx->is_out)) ? lx->src[i++] : 0;
    if (lx->n_open || lx->n - i < 2 || lx->src[i] != (lx->is_out ? '}' : '%') || lx->src[i + 1] != '}')
        return false;
    t->type = lx->is_out ? T_OUT_END : T_TAG_END;
    t->n = i + 2 - lx->pos;
    lx->pos = i + 2;
    lx->inside = false;
    end_tag(lx, sign, !lx->is_out);
    return true;
}

bool j_lex(struct jlex *lx, struct jtoken *t)
{
    if (!lx->inside)
        return lex_data(lx, t);
    skip_space(lx);
    yield_data(lx, t, lx->pos, 0);
    if (lx->pos == lx->n) {
        t->type = T_EOF;
        return true;
    }
    if (lex_end(lx, t))
        return true;
    char c = lx->src[lx->pos];
    size_t len;
    if (c == '\'' || c == '"')
        return lex_string(lx, t);
    if (c >= '0' && c <= '9') {
        lex_number(lx, t);
        return true;
    }
    if (name_char(j_cp_at(lx->src + lx->pos, lx->n - lx->pos, &len), true)) {
        lex_name(lx, t);
        return true;
    }
    return lex_op(lx, t);
}
