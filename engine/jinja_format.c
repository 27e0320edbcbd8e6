/* engine/jinja_format.c - Python's two ways to format: '%s' % x and '{}'.format(x).
 *
 * The result is plain as a whole once the format or any value is, so a value cannot complete a word of the template. */
#include "engine/jinja_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct spec { char fill[5]; char align, sign, type; bool alt, zero, comma; int64_t width, precision; };

static bool too_wide(struct jrun *r, int64_t n) { return j_fail(r, ERR_LIMIT, "a format of %lld characters", (long long)n); }

/* Digits at *i as a number; a long run of them is an error, not an overflow. */
static bool number(struct jrun *r, const struct jstr *f, size_t *i, int64_t *out)
{
    int64_t n = 0;
    for (; *i < f->n && f->s[*i] >= '0' && f->s[*i] <= '9'; ++*i) {
        n = n * 10 + f->s[*i] - '0';
        if ((uint64_t)n > r->bytes_max)
            return too_wide(r, n);
    }
    *out = n;
    return true;
}

/* An integer with its digits in a base; *n bytes of out, sign and prefix apart. */
static size_t digits_of(uint64_t v, unsigned base, bool upper, char out[70])
{
    char back[70];
    size_t n = 0;
    do
        back[n++] = (upper ? "0123456789ABCDEF" : "0123456789abcdef")[v % base];
    while (v /= base);
    for (size_t i = 0; i < n; i++)
        out[i] = back[n - 1 - i];
    return n;
}

static bool real_text(struct jrun *r, double f, const struct spec *p, char type, char out[512])
{
    char fmt[16];
    int64_t digits = p->precision < 0 ? 6 : p->precision;
    if (digits > 100)
        return too_wide(r, digits);
    snprintf(fmt, sizeof fmt, p->alt ? "%%#.*%c" : "%%.*%c", type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    int n = snprintf(out, 512, fmt, (int)digits, f); /* "%.*f" and kin, made two lines above */
#pragma GCC diagnostic pop
    return n < 512 ? true : too_wide(r, n);
}

static size_t with_commas(const char *s, size_t n, char *out)
{
    size_t whole = strspn(s, "0123456789"), len = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && i < whole && (whole - i) % 3 == 0)
            out[len++] = ',';
        out[len++] = s[i];
    }
    return len;
}

/* A number without its sign, and the sign apart. */
static bool number_text(struct jrun *r, jv v, const struct spec *p, char out[1400], size_t *n, bool *neg)
{
    char text[512], type = p->type;
    const char *prefix = "";
    int64_t i = v.t == J_BOOL ? v.u.b : v.t == J_INT ? v.u.i : 0;
    if (v.t == J_BIG || (v.t == J_FLOAT && strchr("dixXobc", type) && type))
        return j_fail(r, ERR_FORMAT, "format %c of a %s", type ? type : 'd', j_type_name(v));
    if (type && strchr("eEfFgG%", type)) {
        double f = j_double(v) * (type == '%' ? 100 : 1);
        *neg = f < 0 || (f == 0 && 1 / f < 0);
        if (!real_text(r, *neg ? -f : f, p, type == '%' ? 'f' : type, text))
            return false;
        strcat(text, type == '%' ? "%" : "");
    } else if (v.t == J_FLOAT) {
        *neg = v.u.f < 0 || (v.u.f == 0 && 1 / v.u.f < 0);
        if (p->precision >= 0) {
            if (!real_text(r, *neg ? -v.u.f : v.u.f, p, 'g', text))
                return false;
        } else {
            text[j_float_text(*neg ? -v.u.f : v.u.f, text)] = 0;
        }
    } else {
        unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
        *neg = i < 0;
        text[digits_of(i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base, type == 'X', text)] = 0;
        prefix = !p->alt || base == 10 ? "" : base == 16 ? (type == 'X' ? "0X" : "0x") : base == 8 ? "0o" : "0b";
    }
    strcpy(out, prefix);
    size_t at = strlen(prefix), len = strlen(text);
    *n = at + (p->comma ? with_commas(text, len, out + at) : (memcpy(out + at, text, len), len));
    return true;
}

static bool fill(struct jrun *r, struct jout *o, const char *c, int64_t n)
{
    if (n > 0 && (uint64_t)n > r->bytes_max)
        return too_wide(r, n);
    for (; n > 0; n--)
        if (!j_put(r, o, c, strlen(c), true))
            return false;
    return true;
}

static bool put_number(struct jrun *r, struct jout *o, jv v, const struct spec *p)
{
    char text[1400];
    size_t n = 0;
    bool neg = false;
    if (!number_text(r, v, p, text, &n, &neg))
        return false;
    const char *sign = neg ? "-" : p->sign == '+' ? "+" : p->sign == ' ' ? " " : "";
    int64_t pad = p->width - (int64_t)(n + strlen(sign));
    char align = p->align ? p->align : p->zero ? '=' : '>';
    const char *c = p->zero && !p->align ? "0" : p->fill;
    int64_t left = align == '>' || align == '=' ? pad : align == '^' ? pad / 2 : 0;
    return (align == '=' ? j_put(r, o, sign, strlen(sign), true) && fill(r, o, c, left) : fill(r, o, c, left) && j_put(r, o, sign, strlen(sign), true)) &&
           j_put(r, o, text, n, !v.plain) && fill(r, o, c, pad - (left > 0 ? left : 0));
}

static bool put_text(struct jrun *r, struct jout *o, struct jstr *s, const struct spec *p)
{
    jv v = {.t = J_STR, .u.s = s};
    if (p->precision >= 0 && !j_slice(r, v, j_none(), j_int(p->precision), j_none(), &v))
        return false;
    int64_t pad = p->width - (int64_t)j_cps(v.u.s), left = pad <= 0 ? 0 : p->align == '>' ? pad : p->align == '^' ? pad / 2 : 0;
    return fill(r, o, p->fill, left) && j_put_text(r, o, v.u.s) && fill(r, o, p->fill, pad - left);
}

static bool settle(struct jrun *r, struct jout *o, bool plain, bool safe, jv *out)
{
    if (!j_taken(r, o, out))
        return false;
    if (out->u.s->map || plain) {
        out->u.s->trusted = false;
        out->u.s->map = NULL;
    }
    out->u.s->safe = safe;
    return true;
}

/* ---- % ---- */
struct percent { struct jlist one, *l; size_t at; bool mapping; jv args; };

static bool next_arg(struct jrun *r, struct percent *a, jv *out)
{
    if (a->at >= a->l->n)
        return j_fail(r, ERR_FORMAT, "%%: fewer values than the format asks for");
    *out = a->l->v[a->at++];
    return true;
}

static bool flags(struct jrun *r, const struct jstr *f, size_t *i, struct percent *a, struct spec *p)
{
    *p = (struct spec){.fill = " ", .precision = -1, .align = '>'};
    for (; *i < f->n && f->s[*i] && strchr("-+ #0", f->s[*i]); ++*i)
        switch (f->s[*i]) {
        case '-': p->align = '<'; break;
        case '0': p->zero = true; break;
        case '#': p->alt = true; break;
        default: p->sign = f->s[*i] == '+' || p->sign == '+' ? '+' : ' '; break;
        }
    for (int k = 0; k < 2; k++) {
        int64_t *n = k ? &p->precision : &p->width;
        jv v;
        if (k) {
            if (*i >= f->n || f->s[*i] != '.')
                break;
            ++*i;
        }
        if (*i < f->n && f->s[*i] == '*') {
            ++*i;
            if (!next_arg(r, a, &v) || !j_to_index(r, v, n))
                return false;
            if (*n < 0 || (uint64_t)*n > r->bytes_max)
                return too_wide(r, *n);
        } else if (!number(r, f, i, n)) {
            return false;
        }
    }
    while (*i < f->n && f->s[*i] && strchr("hlL", f->s[*i]))
        ++*i;
    if (p->zero && p->align == '>')
        p->align = 0;
    return true;
}

static bool convert(struct jrun *r, struct jout *o, char type, jv v, struct spec *p)
{
    struct jstr *s;
    switch (type) {
    case 's': return j_to_str(r, v, &s) && put_text(r, o, s, p);
    case 'r': case 'a': return j_repr(r, v, &s) && put_text(r, o, s, p);
    case 'c':
        if (v.t == J_STR && j_cps(v.u.s) == 1)
            return put_text(r, o, v.u.s, p);
        if (v.t == J_INT && v.u.i > 0 && v.u.i < 0x110000 && (v.u.i < 0xD800 || v.u.i > 0xDFFF)) {
            char utf8[8];
            jv c;
            return j_str(r, utf8, j_cp_put(utf8, (int32_t)v.u.i), !v.plain, &c) && put_text(r, o, c.u.s, p);
        }
        return j_fail(r, ERR_FORMAT, "%%c of a %s", j_type_name(v));
    case 'd': case 'i': case 'u':
        if (v.t == J_FLOAT && j_double(v) > -9e18 && j_double(v) < 9e18)
            v = (jv){.t = J_INT, .plain = v.plain, .u.i = (int64_t)v.u.f};
        type = 'd';
        break;
    case 'x': case 'X': case 'o': case 'e': case 'E': case 'f': case 'F': case 'g': case 'G': break;
    default: return j_fail(r, ERR_FORMAT, "%%: a conversion that is not known");
    }
    if (!j_is_num(v))
        return v.t == J_UNDEF ? j_undefined(r, v) : j_fail(r, ERR_FORMAT, "%%%c of a %s", type, j_type_name(v));
    if (v.t == J_BIG && type == 'd')
        return j_repr(r, v, &s) && put_text(r, o, s, p);
    p->type = type;
    if (type == 'd' && p->precision >= 0) { /* at least so many digits */
        jv text;
        char plain[32];
        bool neg = j_big_sign(v);
        int n = snprintf(plain, sizeof plain, "%llu", v.t == J_INT ? (unsigned long long)(neg ? 0 - (uint64_t)v.u.i : (uint64_t)v.u.i) : (unsigned long long)v.u.b);
        struct jout inner = {0};
        return (!neg || j_put(r, &inner, "-", 1, true)) && fill(r, &inner, "0", p->precision - n) && j_put(r, &inner, plain, (size_t)n, !v.plain) &&
               j_taken(r, &inner, &text) && (p->precision = -1, put_text(r, o, text.u.s, p));
    }
    return put_number(r, o, v, p);
}

bool j_percent(struct jrun *r, struct jstr *f, jv args, jv *out)
{
    struct percent a = {.one = {.v = &args, .n = 1}, .args = args, .mapping = args.t == J_DICT};
    struct jout o = {0};
    bool plain = false;
    a.l = args.t == J_TUPLE ? args.u.l : &a.one;
    if (!j_charge(r, f->n / 16))
        return false;
    for (size_t i = 0; i < f->n;) {
        const char *at = memchr(f->s + i, '%', f->n - i);
        size_t n = at ? (size_t)(at - f->s) - i : f->n - i;
        struct spec p;
        jv v, text;
        if (!j_sub(r, f, i, n, &text) || !j_put_text(r, &o, text.u.s))
            return false;
        i += n + 1;
        if (!at)
            break;
        const char *key = NULL, *end;
        if (i < f->n && f->s[i] == '(') {
            if (!a.mapping || !(end = memchr(f->s + i, ')', f->n - i)))
                return j_fail(r, ERR_FORMAT, "%%(name): expected a dict and a closing parenthesis");
            key = f->s + i + 1;
            jv *held = j_dict_name(args.u.d, key, (size_t)(end - key));
            if (!held)
                return j_fail(r, ERR_FORMAT, "%%(name): the dict has no such key");
            v = *held;
            i = (size_t)(end - f->s) + 1;
        }
        if (!flags(r, f, &i, &a, &p))
            return false;
        char type = i < f->n ? f->s[i++] : 0;
        if (type == '%') {
            if (!j_put(r, &o, "%", 1, true))
                return false;
            continue;
        }
        if ((!key && !next_arg(r, &a, &v)) || !j_any_plain(r, v, &plain) || (f->safe && type == 's' && !j_escape(r, v, &v)) || !convert(r, &o, type, v, &p))
            return false;
    }
    if (a.at < a.l->n && args.t != J_DICT && args.t != J_LIST && args.t != J_RANGE && args.t != J_UNDEF)
        return j_fail(r, ERR_FORMAT, "%%: more values than the format asks for");
    return settle(r, &o, plain || !j_all_trusted(f), f->safe, out);
}

/* ---- {} ---- */
static bool parse_spec(struct jrun *r, const struct jstr *f, size_t i, size_t end, struct spec *p)
{
    *p = (struct spec){.fill = " ", .precision = -1};
    size_t len = i < end ? j_cp_len(f->s + i, end - i) : 0;
    if (i + len < end && strchr("<>=^", f->s[i + len])) {
        memcpy(p->fill, f->s + i, len);
        p->fill[len] = 0;
        p->align = f->s[i + len];
        i += len + 1;
    } else if (i < end && strchr("<>=^", f->s[i])) {
        p->align = f->s[i++];
    }
    if (i < end && strchr("+- ", f->s[i]))
        p->sign = f->s[i++];
    if (i < end && f->s[i] == '#') {
        p->alt = true;
        i++;
    }
    if (i < end && f->s[i] == '0') {
        p->zero = true;
        i++;
    }
    if (!number(r, f, &i, &p->width))
        return false;
    if (i < end && f->s[i] == ',') {
        p->comma = true;
        i++;
    }
    if (i < end && f->s[i] == '.') {
        i++;
        if (!number(r, f, &i, &p->precision))
            return false;
    }
    if (i < end)
        p->type = f->s[i++];
    return i == end ? true : j_fail(r, ERR_FORMAT, "format: what follows the colon is not understood");
}

struct fields { const struct jargs *args; size_t next; };

/* "0", "name", "", then .attribute and [key] in any number. */
static bool field_value(struct jrun *r, const struct jstr *f, size_t i, size_t end, struct fields *a, jv *out)
{
    size_t n = 0;
    while (i + n < end && f->s[i + n] != '.' && f->s[i + n] != '[')
        n++;
    int64_t at = 0;
    bool big, digits = n && f->s[i] >= '0' && f->s[i] <= '9' && j_parse_int(f->s + i, n, 10, &at, &big) && !big;
    if (!n || digits) {
        size_t k = n ? (size_t)at : a->next++;
        if (k >= a->args->n)
            return j_fail(r, ERR_FORMAT, "format: there is no argument %zu", k);
        *out = a->args->v[k];
    } else {
        size_t k = 0;
        while (k < a->args->n_kw && !(a->args->kw[k].len == n && !memcmp(a->args->kw[k].name, f->s + i, n)))
            k++;
        if (k == a->args->n_kw)
            return j_fail(r, ERR_FORMAT, "format: there is no argument \"%.*s\"", (int)(n > 60 ? 60 : n), f->s + i);
        *out = a->args->kw[k].v;
    }
    for (i += n; i < end;) {
        bool item = f->s[i++] == '[';
        size_t len = 0;
        while (i + len < end && (item ? f->s[i + len] != ']' : f->s[i + len] != '.' && f->s[i + len] != '['))
            len++;
        jv key = {.t = J_STR};
        if (item && len && f->s[i] >= '0' && f->s[i] <= '9' && j_parse_int(f->s + i, len, 10, &at, &big) && !big)
            key = j_int(at);
        else if (!(key.u.s = j_text(r, f->s + i, len, true)))
            return false;
        if (!(item ? j_item(r, *out, key, out) : j_attr(r, *out, f->s + i, len, out)))
            return false;
        i += len + item;
    }
    return true;
}

static bool put_field(struct jrun *r, struct jout *o, jv v, char conversion, const struct spec *p)
{
    struct jstr *s;
    if (conversion) {
        if (conversion != 's' && conversion != 'r' && conversion != 'a')
            return j_fail(r, ERR_FORMAT, "format: the conversion after \"!\" is not known");
        return (conversion == 's' ? j_to_str(r, v, &s) : j_repr(r, v, &s)) && put_text(r, o, s, p);
    }
    bool bare = !p->type && !p->width && p->precision < 0 && !p->comma && !p->sign;
    if (j_is_num(v) && !(v.t == J_BOOL && bare) && v.t != J_BIG && p->type != 's') {
        if (p->type && !strchr("dxXobeEfFgG%", p->type))
            return j_fail(r, ERR_FORMAT, "format: \"%c\" is not known for a %s", p->type, j_type_name(v));
        return put_number(r, o, v, p);
    }
    if (p->type && p->type != 's')
        return j_fail(r, ERR_FORMAT, "format: \"%c\" is not known for a %s", p->type, j_type_name(v));
    return j_to_str(r, v, &s) && put_text(r, o, s, p);
}

bool j_format(struct jrun *r, struct jstr *f, const struct jargs *args, jv *out)
{
    struct fields a = {.args = args};
    struct jout o = {0};
    bool plain = !j_all_trusted(f);
    if (!j_charge(r, f->n / 16))
        return false;
    for (size_t i = 0; i < f->n;) {
        size_t n = 0;
        jv v, text;
        struct spec p;
        while (i + n < f->n && f->s[i + n] != '{' && f->s[i + n] != '}')
            n++;
        if (!j_sub(r, f, i, n, &text) || !j_put_text(r, &o, text.u.s))
            return false;
        i += n;
        if (i == f->n)
            break;
        if (i + 1 < f->n && f->s[i + 1] == f->s[i]) {
            if (!j_put(r, &o, f->s + i, 1, true))
                return false;
            i += 2;
            continue;
        }
        const char *close = f->s[i] == '{' ? memchr(f->s + i, '}', f->n - i) : NULL;
        if (!close || memchr(f->s + i + 1, '{', (size_t)(close - f->s) - i - 1))
            return j_fail(r, ERR_FORMAT, "format: expected one pair of braces, not nested");
        size_t end = (size_t)(close - f->s), name_end = i + 1;
        while (name_end < end && f->s[name_end] != ':' && f->s[name_end] != '!')
            name_end++;
        size_t at = name_end;
        char conversion = at + 1 < end && f->s[at] == '!' ? f->s[at + 1] : 0;
        at += conversion ? 2 : 0;
        if (at < end && f->s[at] != ':')
            return j_fail(r, ERR_FORMAT, "format: expected a colon in the braces");
        if (!field_value(r, f, i + 1, name_end, &a, &v) || !parse_spec(r, f, at < end ? at + 1 : end, end, &p) || !j_any_plain(r, v, &plain) ||
            (f->safe && !j_escape(r, v, &v)) || !put_field(r, &o, v, conversion, &p))
            return false;
        i = end + 1;
    }
    return settle(r, &o, plain, f->safe, out);
}
