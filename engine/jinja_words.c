/* engine/jinja_words.c - filters that look at words: title, truncate, count, wrap, strip tags. No surveyed template needs them. */
#include "engine/jinja_internal.h"

#include <string.h>

#define FILTER(name_) static bool name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)

static bool yes(jv v) { return v.t != J_ABSENT && j_truth(v); }
static bool given(jv v) { return v.t != J_ABSENT && v.t != J_NONE; }

/* Words start after white space, hyphens and opening brackets; an apostrophe starts none. */
FILTER(title)
{
    struct jstr *s;
    struct jout o = {0};
    bool start = true;
    (void)raw;
    if (!j_to_str(r, av[0], &s))
        return false;
    for (size_t i = 0, n; i < s->n; i += n) {
        jv part;
        n = j_cp_len(s->s + i, s->n - i);
        if (j_space_at(s->s, s->n, i) || strchr("-([{<", s->s[i])) {
            start = true;
            if (!j_sub(r, s, i, n, &part) || !j_put_text(r, &o, part.u.s))
                return false;
            continue;
        }
        if (!start) { /* the rest of the word at once, so that its end is known */
            while (i + n < s->n && !j_space_at(s->s, s->n, i + n) && !strchr("-([{<", s->s[i + n]))
                n += j_cp_len(s->s + i + n, s->n - i - n);
        }
        if (!j_sub(r, s, i, n, &part) || !j_case(r, part.u.s, start ? CASE_UPPER : CASE_LOWER, &part) || !j_put_text(r, &o, part.u.s))
            return false;
        start = false;
    }
    return j_taken(r, &o, out);
}

FILTER(truncate)
{
    struct jstr *s, *end;
    int64_t length = 255, leeway = 5;
    jv head, tail = av[3];
    (void)raw;
    if (av[0].t != J_STR && j_has_len(av[0])) { /* short enough is short enough, whatever it is */
        size_t items;
        *out = av[0];
        return j_len(r, av[0], &items) && (av[1].t == J_ABSENT || j_to_index(r, av[1], &length)) && (given(av[4]) ? j_to_index(r, av[4], &leeway) : true) &&
               ((int64_t)items <= length + leeway || j_fail(r, ERR_FORMAT, "truncate: expected a str, found a %s", j_type_name(av[0])));
    }
    if (!j_want_text(r, av[0], "truncate"))
        return false;
    s = av[0].u.s;
    if ((av[1].t != J_ABSENT && !j_to_index(r, av[1], &length)) || (given(av[4]) && !j_to_index(r, av[4], &leeway)) ||
        (tail.t == J_ABSENT && !j_lit(r, "...", &tail)) || !j_to_str(r, tail, &end))
        return false;
    int64_t n = (int64_t)j_cps(s), keep = length - (int64_t)j_cps(end);
    if (keep < 0 || leeway < 0)
        return j_fail(r, ERR_FORMAT, "truncate: expected a length that holds its end mark");
    *out = (jv){.t = J_STR, .u.s = s};
    if (n <= length + leeway)
        return true;
    if (!j_slice(r, *out, j_none(), j_int(keep), j_none(), &head))
        return false;
    if (!yes(av[2])) { /* back to the last space */
        size_t k = j_rfind(head.u.s->s, head.u.s->n, " ", 1);
        if (k != SIZE_MAX && !j_sub(r, head.u.s, 0, k, &head))
            return false;
    }
    return j_cat(r, head.u.s, end, out);
}

FILTER(wordcount)
{
    struct jstr *s;
    int64_t n = 0;
    bool word = false;
    (void)raw;
    if (!j_to_str(r, av[0], &s))
        return false;
    for (size_t i = 0; i < s->n; i += j_cp_len(s->s + i, s->n - i)) {
        jv c, is;
        struct jargs none = {0};
        if (!j_sub(r, s, i, j_cp_len(s->s + i, s->n - i), &c) ||
            !(s->s[i] == '_' ? (is = j_bool(true), true) : j_call_builtin(r, j_method(J_STR, "isalnum", 7), c, &none, &is)))
            return false;
        n += is.u.b && !word;
        word = is.u.b;
    }
    *out = j_int(n);
    return true;
}

/* What the next line of a wrapped text takes: spaces and words in turn, a word that is too long in pieces if `cut`. */
static bool wrap_line(struct jrun *r, struct jout *o, struct jlist *parts, size_t *at, int64_t width, bool cut, bool first)
{
    size_t from = *at += !first && *at < parts->n && j_space_at(parts->v[*at].u.s->s, parts->v[*at].u.s->n, 0), end;
    int64_t len = 0, n = 0;
    while (*at < parts->n && len + (n = (int64_t)j_cps(parts->v[*at].u.s)) <= width) {
        len += n;
        ++*at;
    }
    end = *at;
    bool pieces = *at < parts->n && n > width;
    if (end > from && !pieces && j_space_at(parts->v[end - 1].u.s->s, parts->v[end - 1].u.s->n, 0))
        end--; /* no space at the end of a line */
    if (end == from && !pieces)
        return true;
    if (!first && !j_put(r, o, "\n", 1, true))
        return false;
    for (size_t i = from; i < end; i++)
        if (!j_charge(r, 1) || !j_put_text(r, o, parts->v[i].u.s))
            return false;
    if (!pieces)
        return true;
    jv *long_one = &parts->v[*at], head = *long_one;
    if (cut) {
        return j_charge(r, 1) && (len == width || (j_slice(r, *long_one, j_none(), j_int(width - len), j_none(), &head) && j_put_text(r, o, head.u.s) &&
               j_slice(r, *long_one, j_int(width - len), j_none(), j_none(), long_one)));
    }
    if (end > from)
        return true;
    ++*at;
    return j_put_text(r, o, head.u.s);
}

/* A line as spaces and words in turn; a word may break after a hyphen between letters. */
static bool wrap_parts(struct jrun *r, struct jstr *s, struct jlist *parts)
{
    for (size_t i = 0; i < s->n;) {
        size_t n = 0;
        bool space = j_space_at(s->s, s->n, i) > 0;
        jv part;
        while (i + n < s->n && (j_space_at(s->s, s->n, i + n) > 0) == space) {
            size_t k = j_cp_len(s->s + i + n, s->n - i - n);
            bool hyphen = !space && n > 1 && s->s[i + n] == '-' && i + n + 1 < s->n && (s->s[i + n + 1] | 32) >= 'a' && (s->s[i + n + 1] | 32) <= 'z';
            n += k;
            if (hyphen)
                break;
        }
        if (!j_charge(r, 1) || !j_sub(r, s, i, n, &part) || !j_append(r, parts, part))
            return false;
        i += n;
    }
    return true;
}

/* As Python's textwrap for every line of the text. */
FILTER(wordwrap)
{
    struct jargs none = {0};
    struct jout o = {0};
    int64_t width = 79;
    bool cut = av[2].t == J_ABSENT || j_truth(av[2]);
    jv lines;
    (void)raw;
    if (!j_want_text(r, av[0], "wordwrap") || (av[1].t != J_ABSENT && !j_to_index(r, av[1], &width)) ||
        !j_call_builtin(r, j_method(J_STR, "splitlines", 10), av[0], &none, &lines))
        return false;
    if (width < 1)
        return j_fail(r, ERR_FORMAT, "wordwrap: expected a positive width");
    for (size_t i = 0; i < lines.u.l->n; i++) {
        struct jlist *parts = j_list(r, 0);
        size_t at = 0;
        if (!parts || !wrap_parts(r, lines.u.l->v[i].u.s, parts) || (i && !j_put(r, &o, "\n", 1, true)))
            return false;
        for (bool first = true; at < parts->n; first = false)
            if (!wrap_line(r, &o, parts, &at, width, cut, first) || !j_charge(r, 1))
                return false;
    }
    return j_taken(r, &o, out);
}

/* Tags and comments out, runs of white space to one space. */
FILTER(striptags)
{
    struct jstr *s;
    struct jout o = {0};
    bool space = false;
    (void)raw;
    if (!j_to_str(r, av[0], &s))
        return false;
    for (size_t i = 0, n; i < s->n; i += n) {
        jv c;
        n = j_cp_len(s->s + i, s->n - i);
        if (s->s[i] == '<') {
            bool comment = s->n - i >= 4 && !memcmp(s->s + i, "<!--", 4);
            size_t k = j_find(s->s + i, s->n - i, comment ? "-->" : ">", comment ? 3 : 1);
            if (k != SIZE_MAX) {
                n = k + (comment ? 3 : 1);
                continue;
            }
        }
        if (j_space_at(s->s, s->n, i)) {
            space = true;
            continue;
        }
        if ((space && o.n && !j_put(r, &o, " ", 1, true)) || !j_sub(r, s, i, n, &c) || !j_put_text(r, &o, c.u.s))
            return false;
        space = false;
    }
    return j_charge(r, s->n / 16) && j_taken(r, &o, out);
}

#define ROW(name_, fn_, params_, need_) {name_, fn_, params_, need_, 0, false}
const struct jbuiltin j_word_filters[] = {
    ROW("title", title, "", 0),
    ROW("truncate", truncate, "length,killwords,end,leeway", 0),
    ROW("wordcount", wordcount, "", 0),
    ROW("wordwrap", wordwrap, "width,break_long_words", 0),
    ROW("striptags", striptags, "", 0),
};
const size_t j_n_word_filters = sizeof j_word_filters / sizeof *j_word_filters;
