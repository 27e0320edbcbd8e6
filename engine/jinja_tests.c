/* engine/jinja_tests.c - `x is ...`, and the functions every template has. */
#include "engine/jinja_internal.h"

#include <string.h>
#include <time.h>

#include <utf8proc.h>

const struct jbuiltin *j_in_table(const struct jbuiltin *t, size_t rows, const char *s, size_t n)
{
    for (size_t i = 0; i < rows; i++)
        if (strlen(t[i].name) == n && !memcmp(t[i].name, s, n))
            return &t[i];
    return NULL;
}

/* ---- tests ---- */
#define TEST(name_, expr) \
    static bool name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) \
    { \
        (void)r; \
        (void)raw; \
        jv x = av[0]; \
        *out = j_bool(expr); \
        return true; \
    }
TEST(is_defined, x.t != J_UNDEF)
TEST(is_undefined, x.t == J_UNDEF)
TEST(is_none, x.t == J_NONE)
TEST(is_boolean, x.t == J_BOOL)
TEST(is_true, x.t == J_BOOL && x.u.b)
TEST(is_false, x.t == J_BOOL && !x.u.b)
TEST(is_integer, x.t == J_INT || x.t == J_BIG)
TEST(is_float, x.t == J_FLOAT)
TEST(is_number, j_is_num(x))
TEST(is_string, x.t == J_STR)
TEST(is_mapping, x.t == J_DICT)
TEST(is_sequence, j_has_len(x) && x.t != J_VIEW)
TEST(is_iterable, j_has_len(x) || x.t == J_ITER)
TEST(is_callable, x.t == J_UNDEF /* it has a way to be called: one that fails */ || x.t == J_MACRO || x.t == J_FUNC || x.t == J_METHOD || x.t == J_LOOP || x.t == J_JOINER)
TEST(is_escaped, x.t == J_STR && x.u.s->safe)
TEST(is_filter, x.t == J_STR && j_filter(x.u.s->s, x.u.s->n))
TEST(is_test, x.t == J_STR && j_test(x.u.s->s, x.u.s->n))

#define COMPARE(name_, op) \
    static bool name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) \
    { \
        bool yes = false, ok = j_compare(r, op, av[0], av[1], &yes); \
        (void)raw; \
        *out = j_bool(yes); \
        return ok; \
    }
COMPARE(is_eq, OP_EQ)
COMPARE(is_ne, OP_NE)
COMPARE(is_lt, OP_LT)
COMPARE(is_le, OP_LE)
COMPARE(is_gt, OP_GT)
COMPARE(is_ge, OP_GE)
COMPARE(is_in, OP_IN)

static bool is_sameas(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    bool same = av[0].t == av[1].t;
    (void)raw;
    if (same && (av[0].t <= J_FLOAT || av[0].t == J_STR)) {
        if (!j_equal(r, av[0], av[1], &same))
            return false;
    } else if (same) {
        same = av[0].u.l == av[1].u.l;
    }
    *out = j_bool(same);
    return true;
}

static bool remainder_is(struct jrun *r, jv x, jv by, int64_t want, jv *out)
{
    jv m;
    bool same;
    if (!j_binary(r, OP_MOD, x, by, &m) || !j_equal(r, m, j_int(want), &same))
        return false;
    *out = j_bool(same);
    return true;
}

static bool is_odd(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) { (void)raw; return remainder_is(r, av[0], j_int(2), 1, out); }
static bool is_even(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) { (void)raw; return remainder_is(r, av[0], j_int(2), 0, out); }
static bool is_divisible(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) { (void)raw; return remainder_is(r, av[0], av[1], 0, out); }

/* Every cased character is of this case, and there is one. */
static bool case_is(struct jrun *r, jv v, bool upper, jv *out)
{
    struct jstr *s;
    bool any = false, all = true;
    if (!j_to_str(r, v, &s))
        return false;
    for (size_t i = 0, len; i < s->n; i += len) {
        utf8proc_category_t k = utf8proc_category(j_cp_at(s->s + i, s->n - i, &len));
        bool up = k == UTF8PROC_CATEGORY_LU, low = k == UTF8PROC_CATEGORY_LL;
        any |= upper ? up : low;
        all &= !(upper ? low : up) && k != UTF8PROC_CATEGORY_LT;
    }
    *out = j_bool(any && all);
    return j_charge(r, s->n / 64);
}
static bool is_upper(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) { (void)raw; return case_is(r, av[0], true, out); }
static bool is_lower(struct jrun *r, const jv *av, const struct jargs *raw, jv *out) { (void)raw; return case_is(r, av[0], false, out); }

static const struct jbuiltin tests[] = {
    {"defined", is_defined, "", 0, 0, false}, {"undefined", is_undefined, "", 0, 0, false}, {"none", is_none, "", 0, 0, false},
    {"boolean", is_boolean, "", 0, 0, false}, {"true", is_true, "", 0, 0, false}, {"false", is_false, "", 0, 0, false},
    {"integer", is_integer, "", 0, 0, false}, {"float", is_float, "", 0, 0, false}, {"number", is_number, "", 0, 0, false},
    {"string", is_string, "", 0, 0, false}, {"mapping", is_mapping, "", 0, 0, false}, {"sequence", is_sequence, "", 0, 0, false},
    {"iterable", is_iterable, "", 0, 0, false}, {"callable", is_callable, "", 0, 0, false}, {"escaped", is_escaped, "", 0, 0, false},
    {"filter", is_filter, "", 0, 0, false}, {"test", is_test, "", 0, 0, false},
    {"eq", is_eq, "other", 1, 0, false}, {"equalto", is_eq, "other", 1, 0, false}, {"==", is_eq, "other", 1, 0, false},
    {"ne", is_ne, "other", 1, 0, false}, {"!=", is_ne, "other", 1, 0, false},
    {"lt", is_lt, "other", 1, 0, false}, {"lessthan", is_lt, "other", 1, 0, false}, {"<", is_lt, "other", 1, 0, false},
    {"le", is_le, "other", 1, 0, false}, {"<=", is_le, "other", 1, 0, false},
    {"gt", is_gt, "other", 1, 0, false}, {"greaterthan", is_gt, "other", 1, 0, false}, {">", is_gt, "other", 1, 0, false},
    {"ge", is_ge, "other", 1, 0, false}, {">=", is_ge, "other", 1, 0, false},
    {"in", is_in, "seq", 1, 0, false}, {"sameas", is_sameas, "other", 1, 0, false},
    {"odd", is_odd, "", 0, 0, false}, {"even", is_even, "", 0, 0, false}, {"divisibleby", is_divisible, "num", 1, 0, false},
    {"upper", is_upper, "", 0, 0, false}, {"lower", is_lower, "", 0, 0, false},
};
const struct jbuiltin *j_test(const char *s, size_t n) { return j_in_table(tests, sizeof tests / sizeof *tests, s, n); }

/* ---- functions ---- */
static bool range(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    enum { RANGE_MAX = 100000 }; /* the reference's sandbox refuses longer ones too */
    int64_t part[3] = {0, 0, 1};
    (void)av;
    if (raw->n < 1 || raw->n > 3 || raw->n_kw)
        return j_fail(r, ERR_FORMAT, "range: expected 1 to 3 arguments, found %zu", raw->n);
    for (size_t i = 0; i < raw->n; i++)
        if (!j_to_index(r, raw->v[i], &part[raw->n == 1 ? 1 : i]))
            return false;
    int64_t a = part[0], b = part[1], step = part[2];
    if (!step)
        return j_fail(r, ERR_FORMAT, "range: its step is 0");
    uint64_t span = step > 0 ? (b > a ? (uint64_t)b - (uint64_t)a : 0) : (a > b ? (uint64_t)a - (uint64_t)b : 0);
    uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, n = span / by + (span % by != 0);
    if (n > RANGE_MAX)
        return j_fail(r, ERR_LIMIT, "a range of more than %d numbers", RANGE_MAX);
    *out = (jv){.t = J_RANGE, .u.r = j_alloc(r, 1, sizeof(struct jrange))};
    if (!out->u.r)
        return false;
    *out->u.r = (struct jrange){a, b, step, (size_t)n};
    return true;
}

/* Pairs or a dict, then keywords, into a dict. */
static bool fill(struct jrun *r, const struct jargs *raw, struct jdict *d)
{
    struct jlist *l, *pair;
    if (raw->n > 1)
        return j_fail(r, ERR_FORMAT, "expected at most one argument without a name, found %zu", raw->n);
    if (raw->n && raw->v[0].t == J_DICT) {
        for (size_t i = 0; i < raw->v[0].u.d->n; i++)
            if (!j_dict_set(r, d, raw->v[0].u.d->p[i].k, raw->v[0].u.d->p[i].v))
                return false;
    } else if (raw->n) {
        if (!j_iter(r, raw->v[0], &l))
            return false;
        for (size_t i = 0; i < l->n; i++) {
            if (!j_iter(r, l->v[i], &pair))
                return false;
            if (pair->n != 2)
                return j_fail(r, ERR_FORMAT, "expected pairs, found %zu values", pair->n);
            if (!j_dict_set(r, d, pair->v[0], pair->v[1]))
                return false;
        }
    }
    for (size_t i = 0; i < raw->n_kw; i++) {
        struct jstr *k = j_text(r, raw->kw[i].name, raw->kw[i].len, !raw->kw[i].plain);
        if (!k || !j_dict_set(r, d, (jv){.t = J_STR, .u.s = k}, raw->kw[i].v))
            return false;
    }
    return true;
}

static bool make_dict(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    (void)av;
    *out = (jv){.t = J_DICT, .u.d = j_dict(r, raw->n_kw)};
    return out->u.d && fill(r, raw, out->u.d);
}

static bool namespace_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    (void)av;
    *out = (jv){.t = J_NS, .u.d = j_dict(r, raw->n_kw)};
    if (!out->u.d || !fill(r, raw, out->u.d))
        return false;
    for (size_t i = 0; i < out->u.d->n; i++)
        if (out->u.d->p[i].k.t == J_STR && out->u.d->p[i].k.u.s->n && *out->u.d->p[i].k.u.s->s == '_')
            return j_fail(r, ERR_FORMAT, "the attribute of a namespace starts with an underscore");
    return true;
}

static bool raise(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    struct jstr *s;
    (void)raw;
    (void)out;
    if (!j_to_str(r, av[1], &s))
        return false;
    err_set(r->e, ERR_INVALID, "%.*s", s->n > 399 ? 399 : (int)s->n, s->s); /* its author wrote it for the user: nothing is added */
    return false;
}

static bool strftime_now(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    struct jout o = {0};
    struct tm tm;
    time_t now = (time_t)r->now;
    (void)raw;
    if (av[1].t != J_STR)
        return j_fail(r, ERR_FORMAT, "strftime_now: expected a format, found a %s", j_type_name(av[1]));
    if (!gmtime_r(&now, &tm))
        return j_fail(r, ERR_FORMAT, "strftime_now: the time is out of range");
    const struct jstr *f = av[1].u.s;
    bool trusted = j_all_trusted(f);
    for (size_t i = 0; i < f->n; i++) { /* one directive at a time: no width, no flags, a bounded result each */
        char spec[4] = {'%', 0, 0, 0}, text[64];
        size_t len = 0;
        if (f->s[i] != '%' || i + 1 == f->n) {
            if (!j_put(r, &o, f->s + i, 1, trusted))
                return false;
            continue;
        }
        spec[1] = f->s[i + 1];
        if (spec[1] >= '1' && spec[1] <= '9')
            return j_fail(r, ERR_FORMAT, "strftime_now: widths are not supported");
        if (spec[1] && strchr("-_0^#", spec[1]) && i + 2 < f->n && f->s[i + 2] && strchr("aAbBdeHIjklmMpPSuUVwWyY", f->s[i + 2])) {
            spec[2] = f->s[i + 2];
            i++;
        } else if (!spec[1] || !strchr("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%", spec[1])) {
            if (!j_put(r, &o, f->s + i, 1, trusted))
                return false;
            continue;
        }
        len = strftime(text, sizeof text, spec, &tm);
        if (!j_put(r, &o, text, len, trusted))
            return false;
        i++;
    }
    return j_taken(r, &o, out);
}

static bool cycler(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    struct jlist *l = j_list(r, raw->n);
    (void)av;
    if (!raw->n)
        return j_fail(r, ERR_FORMAT, "cycler: expected an argument");
    *out = (jv){.t = J_CYCLER, .u.cy = j_alloc(r, 1, sizeof(struct jcycle))};
    if (!l || !out->u.cy)
        return false;
    for (size_t i = 0; i < raw->n; i++)
        l->v[l->n++] = raw->v[i];
    out->u.cy->l = l;
    return true;
}

static bool joiner(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    struct jlist *l = j_list(r, 1);
    jv sep = av[1];
    (void)raw;
    *out = (jv){.t = J_JOINER, .u.cy = j_alloc(r, 1, sizeof(struct jcycle))};
    if (!l || !out->u.cy || (sep.t == J_ABSENT && !j_lit(r, ", ", &sep)))
        return false;
    l->v[l->n++] = sep;
    out->u.cy->l = l;
    return true;
}

static const struct jbuiltin globals[] = {
    {"range", range, "*", 0, 0, false}, {"dict", make_dict, "*", 0, 0, false}, {"namespace", namespace_, "*", 0, 0, false},
    {"raise_exception", raise, "message", 1, 0, false}, {"strftime_now", strftime_now, "format", 1, 0, false},
    {"cycler", cycler, "*", 0, 0, false}, {"joiner", joiner, "sep", 0, 0, false},
};
const struct jbuiltin *j_global(const char *s, size_t n) { return j_in_table(globals, sizeof globals / sizeof *globals, s, n); }
