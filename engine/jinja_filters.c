/* engine/jinja_filters.c - filters over texts and single values; the table of all filters. */
#include "engine/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name_) static bool name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)

static bool yes(jv v) { return v.t != J_ABSENT && j_truth(v); }
static bool text_of(struct jrun *r, jv v, struct jstr **s) { return j_to_str(r, v, s); }

bool j_want_text(struct jrun *r, jv v, const char *filter)
{
    if (v.t == J_STR)
        return true;
    return v.t == J_UNDEF ? j_undefined(r, v) : j_fail(r, ERR_FORMAT, "%s: expected a str, found a %s", filter, j_type_name(v));
}

/* A whole text that is a real number. */
static bool real_of(const struct jstr *s, double *out)
{
    char text[64], *end;
    if (!s->n || s->n >= sizeof text || memchr(s->s, 'x', s->n) || memchr(s->s, 'X', s->n))
        return false;
    memcpy(text, s->s, s->n);
    text[s->n] = 0;
    *out = strtod(text, &end);
    return end == text + s->n;
}

/* ---- JSON ---- */
FILTER(tojson)
{
    struct jdump how = {.indent = av[2].t == J_ABSENT ? j_none() : av[2], .ascii = yes(av[1]), .sort = yes(av[4])};
    bool flat = how.indent.t == J_NONE;
    (void)raw;
    how.item_sep = flat ? ", " : ",";
    how.n_item_sep = flat ? 2 : 1;
    how.key_sep = ": ";
    how.n_key_sep = 2;
    if (how.indent.t == J_FLOAT || (!flat && how.indent.t != J_INT && how.indent.t != J_BOOL && how.indent.t != J_STR))
        return j_fail(r, ERR_FORMAT, "tojson: indent is a %s", j_type_name(how.indent));
    if (av[3].t == J_TUPLE || av[3].t == J_LIST) {
        const struct jlist *l = av[3].u.l;
        if (l->n != 2 || l->v[0].t != J_STR || l->v[1].t != J_STR)
            return j_fail(r, ERR_FORMAT, "tojson: separators are two strings");
        how.plain_seps = !j_all_trusted(l->v[0].u.s) || !j_all_trusted(l->v[1].u.s);
        how.item_sep = l->v[0].u.s->s;
        how.n_item_sep = l->v[0].u.s->n;
        how.key_sep = l->v[1].u.s->s;
        how.n_key_sep = l->v[1].u.s->n;
    } else if (av[3].t != J_ABSENT && av[3].t != J_NONE) {
        return j_fail(r, ERR_FORMAT, "tojson: separators are two strings");
    }
    return j_tojson(r, av[0], &how, out);
}

FILTER(from_json)
{
    struct json *v;
    struct err e;
    (void)raw;
    if (r->t->lim.frozen)
        return j_fail(r, ERR_FORMAT, "there is no filter \"from_json\"");
    if (!j_want_text(r, av[0], "from_json"))
        return false;
    struct jstr *s = av[0].u.s;
    if (!j_charge(r, s->n / 16))
        return false;
    if (json_parse(&v, s->s, s->n, &json_strict, r->a, &e))
        return j_fail(r, ERR_FORMAT, "from_json: %.200s", e.msg);
    return j_from_json(r, v, j_all_trusted(s), out);
}

/* ---- plain text ---- */
FILTER(string)
{
    (void)raw;
    *out = (jv){.t = J_STR};
    return text_of(r, av[0], &out->u.s);
}

FILTER(length)
{
    size_t n;
    (void)raw;
    if (!j_len(r, av[0], &n))
        return false;
    *out = j_int((int64_t)n);
    return true;
}

FILTER(trim)
{
    struct jstr *s;
    (void)raw;
    return text_of(r, av[0], &s) && j_strip(r, s, av[1], STRIP_LEFT | STRIP_RIGHT, out);
}

static bool cased(struct jrun *r, jv v, enum j_case how, jv *out)
{
    struct jstr *s;
    return text_of(r, v, &s) && j_case(r, s, how, out);
}
FILTER(upper) { (void)raw; return cased(r, av[0], CASE_UPPER, out); }
FILTER(lower) { (void)raw; return cased(r, av[0], CASE_LOWER, out); }
FILTER(capitalize) { (void)raw; return cased(r, av[0], CASE_CAPITALIZE, out); }

FILTER(replace)
{
    struct jstr *s, *from, *to;
    (void)raw;
    if (!text_of(r, av[0], &s) || !text_of(r, av[1], &from) || !text_of(r, av[2], &to))
        return false;
    return j_replace(r, s, (jv){.t = J_STR, .u.s = from}, (jv){.t = J_STR, .u.s = to}, av[3], out);
}

FILTER(indent)
{
    struct jstr *s, *by;
    struct jout o = {0};
    jv pad, line;
    int64_t width = 4;
    (void)raw;
    if (!j_want_text(r, av[0], "indent"))
        return false;
    s = av[0].u.s;
    if (av[1].t == J_STR) {
        by = av[1].u.s;
    } else {
        if (av[1].t != J_ABSENT && !j_to_index(r, av[1], &width))
            return false;
        if (!j_pad(r, &(struct jstr){.s = "", .trusted = true, .cps = 0}, width, " ", '<', &pad))
            return false;
        by = pad.u.s;
    }
    for (size_t i = 0, row = 0; i <= s->n; row++) {
        size_t n = 0;
        while (i + n < s->n && s->s[i + n] != '\n')
            n++;
        size_t end = i + n + (i + n < s->n);
        bool pads = row ? n > 0 || yes(av[3]) : yes(av[2]);
        if (!j_charge(r, 1 + n / 64) || (pads && !j_put_text(r, &o, by)) || !j_sub(r, s, i, end - i, &line) || !j_put_text(r, &o, line.u.s))
            return false;
        i += n + 1;
    }
    if (!j_taken(r, &o, out))
        return false;
    out->u.s->safe = s->safe;
    return true;
}

FILTER(safe)
{
    struct jstr *s;
    (void)raw;
    if (!text_of(r, av[0], &s))
        return false;
    *out = (jv){.t = J_STR, .u.s = j_alloc(r, 1, sizeof *s)};
    if (!out->u.s)
        return false;
    *out->u.s = *s;
    out->u.s->safe = true;
    return true;
}
FILTER(escape) { (void)raw; return j_escape(r, av[0], out); }

FILTER(forceescape)
{
    struct jstr *s;
    (void)raw;
    if (!text_of(r, av[0], &s))
        return false;
    struct jstr unsafe = *s;
    unsafe.safe = false;
    return j_escape(r, (jv){.t = J_STR, .u.s = &unsafe}, out);
}

FILTER(format)
{
    struct jstr *s;
    struct jlist l = {.v = raw->v, .n = raw->n};
    jv args = {.t = J_TUPLE, .u.l = &l};
    if (raw->n && raw->n_kw)
        return j_fail(r, ERR_FORMAT, "format: expected values with names or without, not both");
    if (raw->n_kw) {
        args = (jv){.t = J_DICT, .u.d = j_dict(r, raw->n_kw)};
        for (size_t i = 0; args.u.d && i < raw->n_kw; i++) {
            struct jstr *k = j_text(r, raw->kw[i].name, raw->kw[i].len, true);
            if (!k || !j_dict_set(r, args.u.d, (jv){.t = J_STR, .u.s = k}, raw->kw[i].v))
                return false;
        }
        if (!args.u.d)
            return false;
    }
    return text_of(r, av[0], &s) && j_percent(r, s, args, out);
}

FILTER(center)
{
    struct jstr *s;
    int64_t width = 80;
    (void)raw;
    return text_of(r, av[0], &s) && (av[1].t == J_ABSENT || j_to_index(r, av[1], &width)) && j_pad(r, s, width, " ", 'c', out);
}

FILTER(urlencode)
{
    struct jstr *s;
    struct jout o = {0};
    (void)raw;
    if (av[0].t == J_DICT || av[0].t == J_LIST)
        return j_fail(r, ERR_UNSUPPORTED, "urlencode: only texts are supported");
    if (!text_of(r, av[0], &s))
        return false;
    bool trusted = j_all_trusted(s);
    for (size_t i = 0; i < s->n; i++) {
        unsigned char c = (unsigned char)s->s[i];
        char hex[3] = {'%', "0123456789ABCDEF"[c >> 4], "0123456789ABCDEF"[c & 15]};
        bool keep = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c && strchr("/_.-~", c));
        if (!j_put(r, &o, keep ? s->s + i : hex, keep ? 1 : 3, trusted))
            return false;
    }
    return j_charge(r, s->n / 16) && j_taken(r, &o, out);
}

/* Python's pprint for values that fit one line: repr with the keys of dicts sorted. */
FILTER(pprint)
{
    struct jstr *s;
    struct jargs none = {0};
    jv v = av[0], l;
    (void)raw;
    if (v.t == J_DICT && v.u.d->n) {
        struct jdict *d = j_dict(r, v.u.d->n);
        if (!d || !j_call_builtin(r, j_filter("dictsort", 8), v, &none, &l))
            return false;
        for (size_t i = 0; i < l.u.l->n; i++)
            d->p[d->n++] = (struct jpair){l.u.l->v[i].u.l->v[0], l.u.l->v[i].u.l->v[1]};
        v.u.d = d;
    }
    *out = (jv){.t = J_STR};
    if (!j_repr(r, v, &s))
        return false;
    out->u.s = s;
    return true;
}

/* ---- numbers ---- */
FILTER(int_)
{
    jv other = av[1].t == J_ABSENT ? j_int(0) : av[1];
    int64_t base = 10, v;
    bool big;
    (void)raw;
    if (av[2].t != J_ABSENT && !j_to_index(r, av[2], &base))
        return false;
    if (av[0].t == J_INT || av[0].t == J_BIG || av[0].t == J_BOOL) {
        *out = av[0].t == J_BOOL ? j_int(av[0].u.b) : av[0];
        return true;
    }
    *out = other;
    double f = NAN;
    if (av[0].t == J_FLOAT) {
        f = av[0].u.f;
    } else if (av[0].t == J_STR) {
        jv t;
        if (!j_strip(r, av[0].u.s, (jv){.t = J_ABSENT}, STRIP_LEFT | STRIP_RIGHT, &t))
            return false;
        const char *s = t.u.s->s;
        size_t n = t.u.s->n;
        bool trusted = j_all_trusted(t.u.s);
        if (n > 2 && *s == '0' && ((base == 16 && (s[1] | 32) == 'x') || (base == 8 && (s[1] | 32) == 'o') || (base == 2 && (s[1] | 32) == 'b'))) {
            s += 2;
            n -= 2;
        }
        if (base >= 2 && base <= 36 && j_parse_int(s, n, (int)base, &v, &big)) {
            if (big)
                return base == 10 ? j_int_lit(r, s, n, trusted, out) : j_fail(r, ERR_LIMIT, "an integer beyond 64 bits");
            *out = j_int(v);
            out->plain = !trusted;
            return true;
        }
        if (!real_of(t.u.s, &f))
            return true;
        out->plain = !trusted;
    } else if (av[0].t == J_UNDEF) {
        return j_undefined(r, av[0]);
    }
    if (f > -9.2e18 && f < 9.2e18) {
        *out = j_int((int64_t)f);
        out->plain = av[0].plain || av[0].t == J_STR ? !(av[0].t == J_STR && j_all_trusted(av[0].u.s)) : false;
    }
    return true;
}

FILTER(float_)
{
    double f;
    (void)raw;
    *out = av[1].t == J_ABSENT ? j_float(0) : av[1];
    if (av[0].t == J_UNDEF)
        return j_undefined(r, av[0]);
    if (j_is_num(av[0])) {
        *out = j_float(j_double(av[0]));
        out->plain = av[0].plain;
    } else if (av[0].t == J_STR) {
        jv t;
        if (!j_strip(r, av[0].u.s, (jv){.t = J_ABSENT}, STRIP_LEFT | STRIP_RIGHT, &t))
            return false;
        if (real_of(t.u.s, &f)) {
            *out = j_float(f);
            out->plain = !j_all_trusted(t.u.s);
        }
    }
    return true;
}

FILTER(abs_)
{
    (void)raw;
    if (!j_is_num(av[0]))
        return av[0].t == J_UNDEF ? j_undefined(r, av[0]) : j_fail(r, ERR_FORMAT, "abs of a %s", j_type_name(av[0]));
    *out = av[0].t == J_BOOL ? j_int(av[0].u.b) : av[0];
    return av[0].t == J_FLOAT ? (out->u.f = fabs(av[0].u.f), true) : !j_big_sign(av[0]) || j_negate(r, av[0], out);
}

FILTER(round_)
{
    int64_t digits = 0;
    char text[400];
    (void)raw;
    if (!j_is_num(av[0]))
        return av[0].t == J_UNDEF ? j_undefined(r, av[0]) : j_fail(r, ERR_FORMAT, "round of a %s", j_type_name(av[0]));
    if (av[1].t != J_ABSENT && !j_to_index(r, av[1], &digits))
        return false;
    const struct jstr *how = av[2].t == J_STR ? av[2].u.s : NULL;
    bool ceil_ = how && how->n == 4 && !memcmp(how->s, "ceil", 4), floor_ = how && how->n == 5 && !memcmp(how->s, "floor", 5);
    if (how && !ceil_ && !floor_ && !(how->n == 6 && !memcmp(how->s, "common", 6)))
        return j_fail(r, ERR_FORMAT, "round: the method is common, ceil or floor");
    if (digits < -30 || digits > 30)
        return j_fail(r, ERR_FORMAT, "round: expected -30 to 30 digits");
    double f = j_double(av[0]), scale = pow(10, (double)digits);
    if (ceil_ || floor_) {
        *out = j_float((ceil_ ? ceil(f * scale) : floor(f * scale)) / scale);
    } else if (av[0].t != J_FLOAT && digits >= 0) {
        *out = av[0].t == J_BOOL ? j_int(av[0].u.b) : av[0]; /* an integer stays one */
        return true;
    } else if (digits >= 0) { /* exact: half to even on the value's true digits */
        snprintf(text, sizeof text, "%.*f", (int)digits, f);
        *out = j_float(strtod(text, NULL));
    } else {
        *out = j_float(nearbyint(f * scale) / scale);
    }
    out->plain = av[0].plain;
    return true;
}

/* ---- the rest ---- */
FILTER(default_)
{
    (void)raw;
    *out = av[0];
    if (av[0].t != J_UNDEF && !(yes(av[2]) && !j_truth(av[0])))
        return true;
    *out = av[1];
    return av[1].t != J_ABSENT || j_lit(r, "", out);
}

FILTER(attr)
{
    struct jstr *name;
    (void)raw;
    if (!text_of(r, av[1], &name))
        return false;
    if (av[0].t == J_DICT) { /* attributes alone, not keys */
        jv empty = {.t = J_DICT, .u.d = j_dict(r, 0)};
        return empty.u.d && (j_method(J_DICT, name->s, name->n) ? j_attr(r, av[0], name->s, name->n, out) : j_attr(r, empty, name->s, name->n, out));
    }
    return j_attr(r, av[0], name->s, name->n, out);
}

#define ROW(name_, fn_, params_, need_) {name_, fn_, params_, need_, 0, false}
static const struct jbuiltin filters[] = {
    ROW("tojson", tojson, "ensure_ascii,indent,separators,sort_keys", 0), ROW("from_json", from_json, "", 0), ROW("string", string, "", 0),
    ROW("length", length, "", 0), ROW("count", length, "", 0), ROW("trim", trim, "chars", 0), ROW("upper", upper, "", 0), ROW("lower", lower, "", 0),
    ROW("capitalize", capitalize, "", 0), ROW("replace", replace, "old,new,count", 2),
    ROW("indent", indent, "width,first,blank", 0), ROW("safe", safe, "", 0), ROW("escape", escape, "", 0), ROW("e", escape, "", 0),
    ROW("forceescape", forceescape, "", 0), ROW("format", format, "*", 0), ROW("center", center, "width", 0),
        ROW("urlencode", urlencode, "", 0), ROW("pprint", pprint, "", 0), ROW("int", int_, "default,base", 0),
    ROW("float", float_, "default", 0), ROW("abs", abs_, "", 0), ROW("round", round_, "precision,method", 0),
    ROW("default", default_, "default_value,boolean", 0), ROW("d", default_, "default_value,boolean", 0), ROW("attr", attr, "name", 1),
};

const struct jbuiltin *j_filter(const char *s, size_t n)
{
    const struct jbuiltin *f = j_in_table(filters, sizeof filters / sizeof *filters, s, n);
    f = f ? f : j_in_table(j_seq_filters, j_n_seq_filters, s, n);
    return f ? f : j_in_table(j_word_filters, j_n_word_filters, s, n);
}
