/* engine/jinja_seq.c - filters over sequences: choose, map, sort, group, join. */
#include "engine/jinja_internal.h"

#include <string.h>

#define FILTER(name_) static bool name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)

static bool given(jv v) { return v.t != J_ABSENT && v.t != J_NONE; }
static bool yes(jv v) { return v.t != J_ABSENT && j_truth(v); }

static bool generator(struct jrun *r, struct jlist *l, jv *out)
{
    *out = (jv){.t = J_ITER, .u.it = j_alloc(r, 1, sizeof(struct jiter))};
    if (!out->u.it)
        return false;
    out->u.it->l = l;
    return true;
}

/* x by a path: "a.b.0", an integer, or nothing (x itself). */
static bool by_path(struct jrun *r, jv x, jv path, jv *out)
{
    *out = x;
    if (!given(path))
        return true;
    if (path.t != J_STR)
        return j_item(r, x, path, out);
    const struct jstr *p = path.u.s;
    for (size_t i = 0; i <= p->n;) {
        size_t n = 0;
        int64_t at;
        bool big;
        while (i + n < p->n && p->s[i + n] != '.')
            n++;
        jv key = {.t = J_STR};
        if (n && p->s[i] >= '0' && p->s[i] <= '9' && j_parse_int(p->s + i, n, 10, &at, &big) && !big)
            key = j_int(at);
        else if (!(key.u.s = j_text(r, p->s + i, n, p->trusted)))
            return false;
        if (!j_item(r, *out, key, out))
            return false;
        i += n + 1;
    }
    return true;
}

/* Texts that compare without case, unless asked otherwise. */
static bool folded(struct jrun *r, jv v, bool case_sensitive, jv *out)
{
    *out = v;
    return v.t != J_STR || case_sensitive || j_case(r, v.u.s, CASE_LOWER, out);
}

FILTER(list)
{
    struct jlist *l, *copy;
    (void)raw;
    if (!j_iter(r, av[0], &l) || !(copy = j_list(r, l->n)))
        return false;
    if (l->n)
        memcpy(copy->v, l->v, l->n * sizeof *l->v);
    copy->n = l->n;
    *out = j_wrap_list(copy);
    return true;
}

FILTER(join)
{
    struct jlist *l;
    struct jstr *sep = NULL, *s;
    struct jout o = {0};
    (void)raw;
    if (!j_iter(r, av[0], &l) || (av[1].t != J_ABSENT && !j_to_str(r, av[1], &sep)))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        jv v;
        if (!j_charge(r, 1) || !by_path(r, l->v[i], av[2], &v) || !j_to_str(r, v, &s) || (i && sep && !j_put_text(r, &o, sep)) || !j_put_text(r, &o, s))
            return false;
    }
    return j_taken(r, &o, out);
}

FILTER(first)
{
    struct jlist *l;
    (void)raw;
    if (!j_iter(r, av[0], &l))
        return false;
    *out = l->n ? l->v[0] : (jv){.t = J_UNDEF};
    return true;
}

FILTER(last)
{
    struct jlist *l;
    (void)raw;
    if (!j_iter(r, av[0], &l))
        return false;
    *out = l->n ? l->v[l->n - 1] : (jv){.t = J_UNDEF};
    return true;
}

FILTER(reverse)
{
    struct jlist *l, *back;
    (void)raw;
    if (av[0].t == J_STR)
        return j_slice(r, av[0], j_none(), j_none(), j_int(-1), out);
    if (!j_iter(r, av[0], &l) || !(back = j_list(r, l->n)))
        return false;
    for (size_t i = l->n; i-- > 0;)
        back->v[back->n++] = l->v[i];
    return generator(r, back, out);
}

static bool extreme(struct jrun *r, const jv *av, bool max, jv *out)
{
    struct jlist *l;
    jv best_key = {0};
    *out = (jv){.t = J_UNDEF};
    if (!j_iter(r, av[0], &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        jv key;
        bool less = true;
        if (!by_path(r, l->v[i], av[2], &key) || !folded(r, key, yes(av[1]), &key) ||
            (i && !(max ? j_less(r, best_key, key, "max", &less) : j_less(r, key, best_key, "min", &less))))
            return false;
        if (less) {
            best_key = key;
            *out = l->v[i];
        }
    }
    return true;
}
FILTER(min) { (void)raw; return extreme(r, av, false, out); }
FILTER(max) { (void)raw; return extreme(r, av, true, out); }

FILTER(sum)
{
    struct jlist *l;
    jv all = av[2].t == J_ABSENT ? j_int(0) : av[2], v;
    (void)raw;
    if (!j_iter(r, av[0], &l))
        return false;
    for (size_t i = 0; i < l->n; i++)
        if (!by_path(r, l->v[i], av[1], &v) || !j_binary(r, OP_ADD, all, v, &all))
            return false;
    *out = all;
    return true;
}

/* ---- sorting ---- */
struct keyed { jv key, v; };

static bool merge_sort(struct jrun *r, struct keyed *v, struct keyed *tmp, size_t n, bool reverse)
{
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n, i = lo, k = mid;
            for (size_t at = lo; at < hi; at++) {
                bool right = false; /* equal ones keep their order */
                if (i == mid)
                    right = true;
                else if (k < hi && !(reverse ? j_less(r, v[i].key, v[k].key, "sort", &right) : j_less(r, v[k].key, v[i].key, "sort", &right)))
                    return false;
                tmp[at] = right ? v[k++] : v[i++];
            }
        }
        memcpy(v, tmp, n * sizeof *v);
    }
    return true;
}

/* By one path, or by several with commas between them: a list of keys, so that two undefined ones count as equal. */
static bool sort_key(struct jrun *r, jv x, jv path, bool case_sensitive, jv *out)
{
    struct jlist *l = j_list(r, 1);
    size_t i = 0, n = 0;
    *out = j_wrap_list(l);
    for (; l; i += n + 1) {
        jv part = path, key;
        if (path.t == J_STR) {
            const char *comma = memchr(path.u.s->s + i, ',', path.u.s->n - i);
            n = comma ? (size_t)(comma - path.u.s->s) - i : path.u.s->n - i;
            if (!j_sub(r, path.u.s, i, n, &part))
                return false;
        }
        if (!by_path(r, x, part, &key) || !folded(r, key, case_sensitive, &key) || !j_append(r, l, key))
            return false;
        if (path.t != J_STR || i + n == path.u.s->n)
            return true;
    }
    return false;
}

struct order { jv path; bool case_sensitive, reverse, many /* commas in path separate several */; };

static bool sorted(struct jrun *r, struct jlist *l, const struct order *by, struct jlist **out, struct keyed **keys)
{
    struct keyed *v = j_alloc(r, l->n, sizeof *v), *tmp = v ? j_alloc(r, l->n, sizeof *tmp) : NULL;
    if (!tmp || !(*out = j_list(r, l->n)))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        v[i].v = l->v[i];
        jv *key = &v[i].key;
        if (!(by->many ? sort_key(r, l->v[i], by->path, by->case_sensitive, key) : by_path(r, l->v[i], by->path, key) && folded(r, *key, by->case_sensitive, key)))
            return false;
    }
    if (!merge_sort(r, v, tmp, l->n, by->reverse))
        return false;
    for (size_t i = 0; i < l->n; i++)
        (*out)->v[(*out)->n++] = v[i].v;
    *keys = v;
    return true;
}

FILTER(sort)
{
    struct jlist *l, *done;
    struct keyed *keys;
    (void)raw;
    if (!j_iter(r, av[0], &l) || !sorted(r, l, &(struct order){av[3], yes(av[2]), yes(av[1]), true}, &done, &keys))
        return false;
    *out = j_wrap_list(done);
    return true;
}

FILTER(dictsort)
{
    struct jlist *l, *done;
    struct keyed *keys;
    bool by_value = av[2].t == J_STR && av[2].u.s->n == 5 && !memcmp(av[2].u.s->s, "value", 5);
    (void)raw;
    if (av[0].t != J_DICT)
        return av[0].t == J_UNDEF ? j_undefined(r, av[0]) : j_fail(r, ERR_FORMAT, "dictsort: expected a dict, found a %s", j_type_name(av[0]));
    if (av[2].t != J_ABSENT && !by_value && !(av[2].t == J_STR && av[2].u.s->n == 3 && !memcmp(av[2].u.s->s, "key", 3)))
        return j_fail(r, ERR_FORMAT, "dictsort: by is \"key\" or \"value\"");
    if (!j_iter(r, (jv){.t = J_VIEW, .sub = J_ITEMS, .u.d = av[0].u.d}, &l) ||
        !sorted(r, l, &(struct order){j_int(by_value), yes(av[1]), yes(av[3]), false}, &done, &keys))
        return false;
    *out = j_wrap_list(done);
    return true;
}

FILTER(unique)
{
    struct jlist *l, *keys = j_list(r, 0), *kept = j_list(r, 0);
    (void)raw;
    if (!keys || !kept || !j_iter(r, av[0], &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        jv key;
        bool seen = false;
        if (!by_path(r, l->v[i], av[2], &key) || !folded(r, key, yes(av[1]), &key) || !j_hashable(r, key))
            return false;
        for (size_t k = 0; k < keys->n && !seen; k++)
            if (!j_equal(r, keys->v[k], key, &seen))
                return false;
        if (!seen && (!j_append(r, keys, key) || !j_append(r, kept, l->v[i])))
            return false;
    }
    return generator(r, kept, out);
}

FILTER(groupby)
{
    struct jlist *l, *done, *groups = j_list(r, 0);
    struct keyed *keys;
    (void)raw;
    if (!groups || !j_iter(r, av[0], &l) || !sorted(r, l, &(struct order){av[1], yes(av[3]), false, false}, &done, &keys))
        return false;
    for (size_t i = 0; i < done->n; i++) {
        bool same = false;
        if (i && !j_equal(r, keys[i - 1].key, keys[i].key, &same))
            return false;
        if (!same) {
            struct jlist *pair = j_list(r, 2), *members = j_list(r, 0);
            if (!pair || !members || !by_path(r, done->v[i], av[1], &pair->v[0]))
                return false;
            if (pair->v[0].t == J_UNDEF && given(av[2]))
                pair->v[0] = av[2];
            pair->v[1] = j_wrap_list(members);
            pair->n = 2;
            if (!j_append(r, groups, (jv){.t = J_TUPLE, .u.l = pair}))
                return false;
        }
        if (!j_append(r, groups->v[groups->n - 1].u.l->v[1].u.l, done->v[i]))
            return false;
    }
    *out = j_wrap_list(groups);
    return true;
}

/* ---- choosing ---- */
static bool choose(struct jrun *r, const jv *av, const struct jargs *raw, bool by_attr, bool want, jv *out)
{
    struct jargs rest = {.kw = raw->kw, .n_kw = raw->n_kw};
    const struct jbuiltin *test = NULL;
    struct jlist *l, *kept = j_list(r, 0);
    size_t skip = by_attr;
    if (by_attr && !raw->n)
        return j_fail(r, ERR_FORMAT, "expected the name of an attribute");
    if (raw->n > skip) {
        if (raw->v[skip].t != J_STR)
            return j_fail(r, ERR_FORMAT, "expected the name of a test, found a %s", j_type_name(raw->v[skip]));
        const struct jstr *name = raw->v[skip].u.s;
        if (!(test = j_test(name->s, name->n)))
            return j_fail(r, ERR_FORMAT, "there is no test \"%.*s\"", (int)(name->n > 60 ? 60 : name->n), name->s);
        rest.v = raw->v + skip + 1;
        rest.n = raw->n - skip - 1;
    }
    if (!kept || (j_truth(av[0]) ? !j_iter(r, av[0], &l) : !(l = j_list(r, 0)))) /* none and 0 are empty here */
        return false;
    for (size_t i = 0; i < l->n; i++) {
        jv x = l->v[i];
        if (!j_charge(r, 1) || (by_attr && !by_path(r, x, raw->v[0], &x)) || (test && !j_call_builtin(r, test, x, &rest, &x)))
            return false;
        if (j_truth(x) == want && !j_append(r, kept, l->v[i]))
            return false;
    }
    return generator(r, kept, out);
}
FILTER(select_) { return choose(r, av, raw, false, true, out); }
FILTER(reject) { return choose(r, av, raw, false, false, out); }
FILTER(selectattr) { return choose(r, av, raw, true, true, out); }
FILTER(rejectattr) { return choose(r, av, raw, true, false, out); }

/* map(attribute=..., default=...), or map('filter', arguments). */
FILTER(map)
{
    struct jargs rest = *raw;
    const struct jbuiltin *filter = NULL;
    jv path = {.t = J_ABSENT}, fallback = {.t = J_ABSENT};
    struct jlist *l, *made;
    if (!raw->n) {
        for (size_t i = 0; i < raw->n_kw; i++) {
            const struct jnamed *k = &raw->kw[i];
            if (k->len == 9 && !memcmp(k->name, "attribute", 9))
                path = k->v;
            else if (k->len == 7 && !memcmp(k->name, "default", 7))
                fallback = k->v;
            else
                return j_fail(r, ERR_FORMAT, "map: an argument has a name that is not known");
        }
        if (path.t == J_ABSENT)
            return j_fail(r, ERR_FORMAT, "map: expected a filter or an attribute");
    } else {
        if (raw->v[0].t != J_STR)
            return j_fail(r, ERR_FORMAT, "map: expected the name of a filter, found a %s", j_type_name(raw->v[0]));
        const struct jstr *name = raw->v[0].u.s;
        if (!(filter = j_filter(name->s, name->n)))
            return j_fail(r, ERR_FORMAT, "there is no filter \"%.*s\"", (int)(name->n > 60 ? 60 : name->n), name->s);
        rest.v++;
        rest.n--;
    }
    if ((j_truth(av[0]) ? !j_iter(r, av[0], &l) : !(l = j_list(r, 0))) || !(made = j_list(r, l->n)))
        return false;
    for (size_t i = 0, n = l->n; i < n; i++) {
        jv *to = &made->v[made->n++];
        if (!j_charge(r, 1) || !(filter ? j_call_builtin(r, filter, l->v[i], &rest, to) : by_path(r, l->v[i], path, to)))
            return false;
        if (!filter && to->t == J_UNDEF && fallback.t != J_ABSENT)
            *to = fallback;
    }
    return generator(r, made, out);
}

FILTER(items)
{
    struct jlist *none = j_list(r, 0);
    (void)raw;
    if (av[0].t == J_UNDEF)
        return none && generator(r, none, out);
    if (av[0].t != J_DICT)
        return j_fail(r, ERR_FORMAT, "items: expected a dict, found a %s", j_type_name(av[0]));
    return j_iter(r, (jv){.t = J_VIEW, .sub = J_ITEMS, .u.d = av[0].u.d}, &none) && generator(r, none, out);
}

/* ---- pieces ---- */
FILTER(batch)
{
    struct jlist *l, *rows = j_list(r, 0), *row = NULL;
    int64_t n;
    (void)raw;
    if (!rows || !j_iter(r, av[0], &l) || !j_to_index(r, av[1], &n))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        if ((!row || (int64_t)row->n == n) && (!(row = j_list(r, 0)) || !j_append(r, rows, j_wrap_list(row))))
            return false;
        if (!j_append(r, row, l->v[i]))
            return false;
    }
    while (row && given(av[2]) && (int64_t)row->n < n)
        if (!j_charge(r, 1) || !j_append(r, row, av[2]))
            return false;
    return generator(r, rows, out);
}

FILTER(slice)
{
    struct jlist *l, *rows = j_list(r, 0);
    int64_t n;
    (void)raw;
    if (!rows || !j_iter(r, av[0], &l) || !j_to_index(r, av[1], &n))
        return false;
    if (n < 1)
        return j_fail(r, ERR_FORMAT, "slice: expected a positive number of slices");
    for (size_t i = 0, at = 0; i < (size_t)n; i++) {
        size_t len = l->n / (size_t)n + (i < l->n % (size_t)n);
        struct jlist *row = j_charge(r, 1) ? j_list(r, len) : NULL;
        if (!row)
            return false;
        for (size_t k = 0; k < len; k++)
            row->v[row->n++] = l->v[at++];
        if (given(av[2]) && i >= l->n % (size_t)n && l->n % (size_t)n && !j_append(r, row, av[2]))
            return false;
        if (!j_append(r, rows, j_wrap_list(row)))
            return false;
    }
    return generator(r, rows, out);
}

#define ROW(name_, fn_, params_, need_) {name_, fn_, params_, need_, 0, false}
const struct jbuiltin j_seq_filters[] = {
    ROW("list", list, "", 0), ROW("join", join, "d,attribute", 0), ROW("first", first, "", 0), ROW("last", last, "", 0), ROW("reverse", reverse, "", 0),
    ROW("min", min, "case_sensitive,attribute", 0), ROW("max", max, "case_sensitive,attribute", 0), ROW("sum", sum, "attribute,start", 0),
    ROW("sort", sort, "reverse,case_sensitive,attribute", 0), ROW("dictsort", dictsort, "case_sensitive,by,reverse", 0),
    ROW("unique", unique, "case_sensitive,attribute", 0), ROW("groupby", groupby, "attribute,default,case_sensitive", 1),
    ROW("select", select_, "*", 0), ROW("reject", reject, "*", 0), ROW("selectattr", selectattr, "*", 0), ROW("rejectattr", rejectattr, "*", 0),
    ROW("map", map, "*", 0), ROW("items", items, "", 0), ROW("batch", batch, "linecount,fill_with", 1), ROW("slice", slice, "slices,fill_with", 1),
};
const size_t j_n_seq_filters = sizeof j_seq_filters / sizeof *j_seq_filters;
