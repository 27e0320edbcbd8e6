/* engine/jinja_methods.c - the methods of strings that templates call, cut and join with every byte's trust kept. */
#include "engine/jinja_internal.h"

#include <string.h>

#include <utf8proc.h>

#define METHOD(name_) static bool m_##name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)

static bool want_str(struct jrun *r, jv v, const char *what)
{
    if (v.t == J_STR)
        return true;
    return v.t == J_UNDEF ? j_undefined(r, v) : j_fail(r, ERR_FORMAT, "%s: expected a str, found a %s", what, j_type_name(v));
}

static bool count_of(struct jrun *r, jv v, int64_t *out)
{
    *out = -1;
    return v.t == J_ABSENT || j_to_index(r, v, out);
}

/* ---- strip ---- */
static bool in_set(const struct jstr *set, const char *p, size_t len)
{
    if (!set) {
        size_t k;
        return j_is_space(j_cp_at(p, len, &k));
    }
    return j_find(set->s, set->n, p, len) != SIZE_MAX;
}

bool j_strip(struct jrun *r, struct jstr *s, jv chars, int sides, jv *out)
{
    const struct jstr *set = NULL;
    size_t a = 0, b = s->n;
    if (chars.t != J_ABSENT && chars.t != J_NONE) {
        if (!want_str(r, chars, "strip"))
            return false;
        set = chars.u.s;
    }
    while ((sides & STRIP_LEFT) && a < b) {
        size_t len = j_cp_len(s->s + a, b - a);
        if (!in_set(set, s->s + a, len))
            break;
        a += len;
    }
    while ((sides & STRIP_RIGHT) && a < b) {
        size_t i = b - 1;
        while (i > a && ((unsigned char)s->s[i] & 0xC0) == 0x80)
            i--;
        if (!in_set(set, s->s + i, b - i))
            break;
        b = i;
    }
    return j_charge(r, (s->n - (b - a)) * (set ? 1 + set->n / 64 : 1) / 64) && j_sub(r, s, a, b - a, out);
}
METHOD(strip) { (void)raw; return j_strip(r, av[0].u.s, av[1], STRIP_LEFT | STRIP_RIGHT, out); }
METHOD(lstrip) { (void)raw; return j_strip(r, av[0].u.s, av[1], STRIP_LEFT, out); }
METHOD(rstrip) { (void)raw; return j_strip(r, av[0].u.s, av[1], STRIP_RIGHT, out); }

/* ---- replace ---- */
bool j_replace(struct jrun *r, struct jstr *s, jv from, jv to, jv count, jv *out)
{
    struct jout o = {0};
    int64_t left;
    if (!want_str(r, from, "replace") || !want_str(r, to, "replace") || !count_of(r, count.t == J_NONE ? (jv){.t = J_ABSENT} : count, &left))
        return false;
    if (s->safe && !j_escape(r, to, &to))
        return false;
    const struct jstr *f = from.u.s;
    size_t at = 0;
    for (;;) {
        size_t k = left == 0 ? SIZE_MAX : j_find(s->s + at, s->n - at, f->s, f->n);
        if (k == SIZE_MAX)
            break;
        size_t keep = f->n ? k : at < s->n ? j_cp_len(s->s + at, s->n - at) : 0; /* an empty text is found before every character */
        jv part;
        if (!j_charge(r, 1 + k / 256) || !j_sub(r, s, at, keep, &part) || (f->n && !j_put_text(r, &o, part.u.s)) || !j_put_text(r, &o, to.u.s) ||
            (!f->n && !j_put_text(r, &o, part.u.s)))
            return false;
        left -= left > 0;
        at += keep + f->n;
        if (!f->n && !keep)
            break;
    }
    jv rest;
    if (!j_sub(r, s, at, s->n - at, &rest) || !j_put_text(r, &o, rest.u.s) || !j_charge(r, s->n / 256) || !j_taken(r, &o, out))
        return false;
    out->u.s->safe = s->safe;
    return true;
}
METHOD(replace) { (void)raw; return j_replace(r, av[0].u.s, av[1], av[2], av[3], out); }

/* ---- split ---- */
static bool push_part(struct jrun *r, struct jlist *l, struct jstr *s, size_t from, size_t to)
{
    jv v;
    return j_charge(r, 1) && j_sub(r, s, from, to - from, &v) && j_append(r, l, v);
}

static bool split_space(struct jrun *r, struct jstr *s, int64_t max, struct jlist *l)
{
    size_t i = 0, k;
    for (;;) {
        while ((k = j_space_at(s->s, s->n, i)))
            i += k;
        if (i >= s->n)
            return true;
        if (max == 0)
            return push_part(r, l, s, i, s->n);
        size_t from = i;
        while (i < s->n && !j_space_at(s->s, s->n, i))
            i += j_cp_len(s->s + i, s->n - i);
        if (!push_part(r, l, s, from, i))
            return false;
        max -= max > 0;
    }
}

static void turn(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        jv v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static bool rsplit_space(struct jrun *r, struct jstr *s, int64_t max, struct jlist *l)
{
    size_t end = s->n;
    for (;;) {
        end = j_rstrip_len(s->s, end);
        if (!end)
            break;
        size_t from = end;
        if (max == 0) {
            from = 0;
        } else {
            while (from > 0) {
                size_t i = from - 1;
                while (i > 0 && ((unsigned char)s->s[i] & 0xC0) == 0x80)
                    i--;
                if (j_space_at(s->s, end, i))
                    break;
                from = i;
            }
        }
        if (!push_part(r, l, s, from, end))
            return false;
        if (max == 0)
            break;
        end = from;
        max -= max > 0;
    }
    turn(l);
    return true;
}

static bool split_by(struct jrun *r, struct jstr *s, const struct jstr *sep, int64_t max, bool right, struct jlist *l)
{
    size_t at = 0, end = s->n, k;
    if (!sep->n)
        return j_fail(r, ERR_FORMAT, "split: the separator is empty");
    if (right) {
        for (; max != 0 && (k = j_rfind(s->s, end, sep->s, sep->n)) != SIZE_MAX; end = k, max -= max > 0)
            if (!j_charge(r, (end - k) / 64) || !push_part(r, l, s, k + sep->n, end))
                return false;
        if (!push_part(r, l, s, 0, end))
            return false;
        turn(l);
        return true;
    }
    for (; max != 0 && (k = j_find(s->s + at, s->n - at, sep->s, sep->n)) != SIZE_MAX; at += k + sep->n, max -= max > 0)
        if (!push_part(r, l, s, at, at + k))
            return false;
    return push_part(r, l, s, at, s->n);
}

static bool split_any(struct jrun *r, const jv *av, bool right, jv *out)
{
    int64_t max;
    struct jlist *l = j_list(r, 0);
    struct jstr *s = av[0].u.s;
    if (!l || !count_of(r, av[2], &max) || !j_charge(r, s->n / 64))
        return false;
    if (max < 0)
        max = -1;
    *out = j_wrap_list(l);
    if (av[1].t == J_ABSENT || av[1].t == J_NONE)
        return right ? rsplit_space(r, s, max, l) : split_space(r, s, max, l);
    return want_str(r, av[1], "split") && split_by(r, s, av[1].u.s, max, right, l);
}
METHOD(split) { (void)raw; return split_any(r, av, false, out); }
METHOD(rsplit) { (void)raw; return split_any(r, av, true, out); }

METHOD(splitlines)
{
    struct jlist *l = j_list(r, 0);
    struct jstr *s = av[0].u.s;
    bool keep = av[1].t != J_ABSENT && j_truth(av[1]);
    (void)raw;
    for (size_t i = 0, from = 0, len; l && i < s->n;) {
        int32_t c = j_cp_at(s->s + i, s->n - i, &len);
        size_t end = i;
        i += len;
        bool line = (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
        if (c == 13 && i < s->n && s->s[i] == '\n')
            i++;
        if (line || i >= s->n) {
            if (!push_part(r, l, s, from, line && !keep ? end : i))
                return false;
            from = i;
        }
    }
    *out = j_wrap_list(l);
    return l && j_charge(r, s->n / 64);
}

static bool part(struct jrun *r, const jv *av, bool right, jv *out)
{
    struct jstr *s = av[0].u.s;
    struct jlist *l = j_list(r, 3);
    if (!l || !want_str(r, av[1], "partition"))
        return false;
    const struct jstr *sep = av[1].u.s;
    if (!sep->n)
        return j_fail(r, ERR_FORMAT, "partition: the separator is empty");
    size_t k = right ? j_rfind(s->s, s->n, sep->s, sep->n) : j_find(s->s, s->n, sep->s, sep->n);
    bool found = k != SIZE_MAX;
    size_t a = found ? k : right ? 0 : s->n, b = found ? k + sep->n : a;
    *out = (jv){.t = J_TUPLE, .u.l = l};
    return j_charge(r, s->n / 64) && push_part(r, l, s, 0, a) && push_part(r, l, s, a, b) && push_part(r, l, s, b, s->n);
}
METHOD(partition) { (void)raw; return part(r, av, false, out); }
METHOD(rpartition) { (void)raw; return part(r, av, true, out); }

/* ---- search ---- */
/* s between two code points, as av[2] and av[3] may say. */
static bool window(struct jrun *r, const jv *av, jv *out)
{
    jv from = av[2].t == J_ABSENT ? j_none() : av[2], to = av[3].t == J_ABSENT ? j_none() : av[3];
    return j_slice(r, av[0], from, to, j_none(), out);
}

static bool affix(struct jrun *r, const jv *av, bool end, jv *out)
{
    jv v;
    struct jlist one = {.v = (jv *)(uintptr_t)&av[1], .n = 1}, *l = av[1].t == J_TUPLE ? av[1].u.l : &one;
    bool yes = false;
    if (!window(r, av, &v))
        return false;
    for (size_t i = 0; i < l->n && !yes; i++) {
        if (!want_str(r, l->v[i], end ? "endswith" : "startswith"))
            return false;
        const struct jstr *w = l->v[i].u.s, *s = v.u.s;
        yes = w->n <= s->n && (!w->n || !memcmp(end ? s->s + s->n - w->n : s->s, w->s, w->n));
        if (!j_charge(r, w->n / 1024))
            return false;
    }
    *out = j_bool(yes);
    return true;
}
METHOD(startswith) { (void)raw; return affix(r, av, false, out); }
METHOD(endswith) { (void)raw; return affix(r, av, true, out); }

static bool search(struct jrun *r, const jv *av, bool right, bool must, jv *out)
{
    jv v;
    int64_t from = 0;
    if (!want_str(r, av[1], "find") || !window(r, av, &v))
        return false;
    const struct jstr *s = v.u.s, *w = av[1].u.s;
    if (right && !j_charge(r, s->n / 64 * (1 + w->n / 64)))
        return false;
    size_t k = right ? (w->n ? j_rfind(s->s, s->n, w->s, w->n) : s->n) : j_find(s->s, s->n, w->s, w->n);
    if (k == SIZE_MAX && must)
        return j_fail(r, ERR_FORMAT, "index: the text is not in the string");
    if (k == SIZE_MAX) {
        *out = j_int(-1);
        return true;
    }
    struct jstr head = {.s = s->s, .n = k, .cps = SIZE_MAX};
    if (av[2].t != J_ABSENT && av[2].t != J_NONE) {
        int64_t n = (int64_t)j_cps(av[0].u.s);
        if (!j_to_index(r, av[2], &from))
            return false;
        from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    }
    *out = j_int(from + (int64_t)j_cps(&head));
    return j_charge(r, s->n / 64);
}
METHOD(find) { (void)raw; return search(r, av, false, false, out); }
METHOD(rfind) { (void)raw; return search(r, av, true, false, out); }
METHOD(index) { (void)raw; return search(r, av, false, true, out); }
METHOD(rindex) { (void)raw; return search(r, av, true, true, out); }

METHOD(count)
{
    jv v;
    int64_t n = 0;
    (void)raw;
    if (!want_str(r, av[1], "count") || !window(r, av, &v))
        return false;
    const struct jstr *s = v.u.s, *w = av[1].u.s;
    if (!w->n)
        n = (int64_t)j_cps(v.u.s) + 1;
    for (size_t at = 0, k; w->n && (k = j_find(s->s + at, s->n - at, w->s, w->n)) != SIZE_MAX; at += k + w->n)
        n++;
    *out = j_int(n);
    return j_charge(r, s->n / 64);
}

/* ---- join, case, kinds ---- */
METHOD(join)
{
    struct jlist *l;
    struct jout o = {0};
    (void)raw;
    if (!j_iter(r, av[1], &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        jv v = l->v[i];
        if (!want_str(r, v, "join") || (av[0].u.s->safe && !j_escape(r, v, &v)) || (i && !j_put_text(r, &o, av[0].u.s)) || !j_put_text(r, &o, v.u.s))
            return false;
    }
    if (!j_taken(r, &o, out))
        return false;
    out->u.s->safe = av[0].u.s->safe;
    return true;
}
METHOD(upper) { (void)raw; return j_case(r, av[0].u.s, CASE_UPPER, out); }
METHOD(lower) { (void)raw; return j_case(r, av[0].u.s, CASE_LOWER, out); }
METHOD(title) { (void)raw; return j_case(r, av[0].u.s, CASE_TITLE, out); }
METHOD(capitalize) { (void)raw; return j_case(r, av[0].u.s, CASE_CAPITALIZE, out); }
METHOD(swapcase) { (void)raw; return j_case(r, av[0].u.s, CASE_SWAP, out); }

static bool is_alpha(int32_t c) { utf8proc_category_t k = utf8proc_category(c); return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO; }
static bool is_digit(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND || c == 0xB2 || c == 0xB3 || c == 0xB9; }
static bool is_decimal(int32_t c) { return utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }
static bool is_alnum(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return is_alpha(c) || k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

static bool all_are(struct jrun *r, const struct jstr *s, bool (*is)(int32_t), jv *out)
{
    bool yes = s->n > 0;
    for (size_t i = 0, len; yes && i < s->n; i += len)
        yes = is(j_cp_at(s->s + i, s->n - i, &len));
    *out = j_bool(yes);
    return j_charge(r, s->n / 64);
}
METHOD(isalpha) { (void)raw; return all_are(r, av[0].u.s, is_alpha, out); }
METHOD(isdigit) { (void)raw; return all_are(r, av[0].u.s, is_digit, out); }
METHOD(isdecimal) { (void)raw; return all_are(r, av[0].u.s, is_decimal, out); }
METHOD(isalnum) { (void)raw; return all_are(r, av[0].u.s, is_alnum, out); }
METHOD(isspace) { (void)raw; return all_are(r, av[0].u.s, j_is_space, out); }
METHOD(isupper) { struct jargs none = {0}; (void)raw; return j_call_builtin(r, j_test("upper", 5), av[0], &none, out); }
METHOD(islower) { struct jargs none = {0}; (void)raw; return j_call_builtin(r, j_test("lower", 5), av[0], &none, out); }

static bool remove_affix(struct jrun *r, const jv *av, bool end, jv *out)
{
    if (!want_str(r, av[1], end ? "removesuffix" : "removeprefix"))
        return false;
    struct jstr *s = av[0].u.s;
    const struct jstr *w = av[1].u.s;
    bool has = w->n && w->n <= s->n && !memcmp(end ? s->s + s->n - w->n : s->s, w->s, w->n);
    return j_sub(r, s, has && !end ? w->n : 0, s->n - (has ? w->n : 0), out);
}
METHOD(removeprefix) { (void)raw; return remove_affix(r, av, false, out); }
METHOD(removesuffix) { (void)raw; return remove_affix(r, av, true, out); }

/* ---- padding ---- */
bool j_pad(struct jrun *r, struct jstr *s, int64_t width, const char *fill, int align, jv *out)
{
    struct jout o = {0};
    int64_t n = (int64_t)j_cps(s), more = width > n ? width - n : 0, left;
    if ((uint64_t)more > r->bytes_max)
        return j_fail(r, ERR_LIMIT, "a text of %lld characters", (long long)width);
    left = align == '>' ? more : align == '<' ? 0 : align == 'c' ? more / 2 + (more & width & 1) : more / 2;
    for (int64_t i = 0; i < left; i++)
        if (!j_put(r, &o, fill, strlen(fill), true))
            return false;
    if (!j_put_text(r, &o, s))
        return false;
    for (int64_t i = left; i < more; i++)
        if (!j_put(r, &o, fill, strlen(fill), true))
            return false;
    if (!j_charge(r, (size_t)more / 16) || !j_taken(r, &o, out))
        return false;
    out->u.s->safe = s->safe;
    return true;
}

static bool pad(struct jrun *r, const jv *av, int align, jv *out)
{
    int64_t width;
    char fill[8] = " ";
    if (!j_to_index(r, av[1], &width))
        return false;
    if (av[2].t != J_ABSENT) {
        if (!want_str(r, av[2], "fill"))
            return false;
        if (j_cps(av[2].u.s) != 1 || av[2].u.s->n > 4)
            return j_fail(r, ERR_FORMAT, "the fill must be one character");
        memcpy(fill, av[2].u.s->s, av[2].u.s->n);
        fill[av[2].u.s->n] = 0;
    }
    return j_pad(r, av[0].u.s, width, fill, align, out);
}
METHOD(ljust) { (void)raw; return pad(r, av, '<', out); }
METHOD(rjust) { (void)raw; return pad(r, av, '>', out); }
METHOD(center) { (void)raw; return pad(r, av, 'c', out); }

METHOD(zfill)
{
    int64_t width;
    struct jstr *s = av[0].u.s;
    jv sign, rest, padded;
    (void)raw;
    if (!j_to_index(r, av[1], &width))
        return false;
    size_t n = s->n && (*s->s == '-' || *s->s == '+');
    return j_sub(r, s, 0, n, &sign) && j_sub(r, s, n, s->n - n, &rest) && j_pad(r, rest.u.s, width - (int64_t)n, "0", '>', &padded) &&
           j_cat(r, sign.u.s, padded.u.s, out);
}

METHOD(expandtabs)
{
    struct jout o = {0};
    struct jstr *s = av[0].u.s;
    int64_t size = 8, col = 0;
    (void)raw;
    if (av[1].t != J_ABSENT && !j_to_index(r, av[1], &size))
        return false;
    for (size_t i = 0, len; i < s->n; i += len) {
        jv c;
        len = j_cp_len(s->s + i, s->n - i);
        if (s->s[i] == '\t') {
            int64_t n = size > 0 ? size - col % size : 0;
            if ((uint64_t)n > r->bytes_max)
                return j_fail(r, ERR_LIMIT, "a tab of %lld columns", (long long)size);
            for (; n > 0; n--, col++)
                if (!j_put(r, &o, " ", 1, j_all_trusted(s)))
                    return false;
            continue;
        }
        col = s->s[i] == '\n' || s->s[i] == '\r' ? 0 : col + 1;
        if (!j_sub(r, s, i, len, &c) || !j_put_text(r, &o, c.u.s))
            return false;
    }
    return j_charge(r, o.n / 16) && j_taken(r, &o, out);
}

METHOD(format) { return j_format(r, av[0].u.s, raw, out); }
METHOD(format_map)
{
    struct jargs args = {0};
    (void)raw;
    if (av[1].t != J_DICT)
        return j_fail(r, ERR_FORMAT, "format_map: expected a dict, found a %s", j_type_name(av[1]));
    if (!(args.kw = j_alloc(r, av[1].u.d->n, sizeof *args.kw)))
        return false;
    for (size_t i = 0; i < av[1].u.d->n; i++)
        if (av[1].u.d->p[i].k.t == J_STR)
            args.kw[args.n_kw++] = (struct jnamed){av[1].u.d->p[i].k.u.s->s, av[1].u.d->p[i].k.u.s->n, av[1].u.d->p[i].v, false};
    return j_format(r, av[0].u.s, &args, out);
}
METHOD(encode)
{
    (void)av;
    (void)raw;
    (void)out;
    return j_fail(r, ERR_UNSUPPORTED, "encode: bytes are not supported");
}

#define ROW(name_, fn_, params_, need_) {name_, m_##fn_, params_, need_, J_STR, false}
const struct jbuiltin j_str_methods[] = {
    ROW("split", split, "sep,maxsplit", 0), ROW("strip", strip, "chars", 0), ROW("lstrip", lstrip, "chars", 0), ROW("rstrip", rstrip, "chars", 0),
    ROW("startswith", startswith, "prefix,start,end", 1), ROW("endswith", endswith, "suffix,start,end", 1), ROW("replace", replace, "old,new,count", 2),
    ROW("join", join, "iterable", 1), ROW("upper", upper, "", 0), ROW("lower", lower, "", 0), ROW("casefold", lower, "", 0), ROW("title", title, "", 0),
    ROW("capitalize", capitalize, "", 0), ROW("swapcase", swapcase, "", 0), ROW("format", format, "*", 0), ROW("format_map", format_map, "mapping", 1),
    ROW("rsplit", rsplit, "sep,maxsplit", 0), ROW("splitlines", splitlines, "keepends", 0), ROW("partition", partition, "sep", 1),
    ROW("rpartition", rpartition, "sep", 1), ROW("find", find, "sub,start,end", 1), ROW("rfind", rfind, "sub,start,end", 1),
    ROW("index", index, "sub,start,end", 1), ROW("rindex", rindex, "sub,start,end", 1), ROW("count", count, "sub,start,end", 1),
    ROW("isalpha", isalpha, "", 0), ROW("isdigit", isdigit, "", 0), ROW("isdecimal", isdecimal, "", 0), ROW("isnumeric", isdigit, "", 0),
    ROW("isalnum", isalnum, "", 0), ROW("isspace", isspace, "", 0), ROW("isupper", isupper, "", 0), ROW("islower", islower, "", 0),
    ROW("removeprefix", removeprefix, "prefix", 1), ROW("removesuffix", removesuffix, "suffix", 1), ROW("ljust", ljust, "width,fillchar", 1),
    ROW("rjust", rjust, "width,fillchar", 1), ROW("center", center, "width,fillchar", 1), ROW("zfill", zfill, "width", 1),
    ROW("expandtabs", expandtabs, "tabsize", 0), ROW("encode", encode, "encoding,errors", 0),
};
const size_t j_n_str_methods = sizeof j_str_methods / sizeof *j_str_methods;
