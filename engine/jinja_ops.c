/* engine/jinja_ops.c - operators, items, attributes and slices, with Python's rules for each pair of kinds. */
#include "engine/jinja_internal.h"

#include <math.h>
#include <string.h>

bool j_escape(struct jrun *r, jv v, jv *out)
{
    struct jstr *s;
    struct jout o = {0};
    if (!j_to_str(r, v, &s))
        return false;
    if (s->safe) {
        *out = (jv){.t = J_STR, .u.s = s};
        return true;
    }
    for (size_t i = 0, from = 0; i <= s->n; i++) {
        const char *as = i == s->n ? "" : s->s[i] == '&' ? "&amp;" : s->s[i] == '<' ? "&lt;" : s->s[i] == '>' ? "&gt;" : s->s[i] == '"' ? "&#34;" : s->s[i] == '\'' ? "&#39;" : NULL;
        jv part;
        if (!as)
            continue;
        if (!j_sub(r, s, from, i - from, &part) || !j_put_text(r, &o, part.u.s))
            return false;
        if (i < s->n && !j_put(r, &o, as, strlen(as), s->map ? s->map[i] : s->trusted))
            return false;
        from = i + 1;
    }
    if (!j_taken(r, &o, out))
        return false;
    out->u.s->safe = true;
    return true;
}

static bool add_text(struct jrun *r, jv a, jv b, jv *out)
{
    if (a.u.s->safe != b.u.s->safe && !j_escape(r, a.u.s->safe ? b : a, a.u.s->safe ? &b : &a))
        return false;
    return j_cat(r, a.u.s, b.u.s, out);
}

static bool add_lists(struct jrun *r, jv a, jv b, jv *out)
{
    const struct jlist *x = a.u.l, *y = b.u.l;
    struct jlist *l = j_charge(r, (x->n + y->n) / 8) ? j_list(r, x->n + y->n) : NULL;
    if (!l)
        return false;
    if (x->n)
        memcpy(l->v, x->v, x->n * sizeof *l->v);
    if (y->n)
        memcpy(l->v + x->n, y->v, y->n * sizeof *l->v);
    l->n = x->n + y->n;
    *out = (jv){.t = a.t, .u.l = l};
    return true;
}

static bool repeat(struct jrun *r, jv v, jv times, jv *out)
{
    int64_t n;
    if (!j_to_index(r, times, &n))
        return false;
    if (n < 0)
        n = 0;
    size_t one = v.t == J_STR ? v.u.s->n : v.u.l->n;
    if (one && (uint64_t)n > r->bytes_max / one)
        return j_fail(r, ERR_LIMIT, "a repetition of more than %zu bytes", r->bytes_max);
    if (v.t == J_STR) {
        struct jout o = {0};
        for (int64_t i = 0; one && i < n; i++)
            if (!j_charge(r, i % 16 == 0) || !j_put_text(r, &o, v.u.s))
                return false;
        if (!j_taken(r, &o, out))
            return false;
        out->u.s->safe = v.u.s->safe;
        return true;
    }
    struct jlist *l = j_charge(r, one * (size_t)n / 8) ? j_list(r, one * (size_t)n) : NULL;
    if (!l)
        return false;
    for (int64_t i = 0; one && i < n; i++)
        memcpy(l->v + l->n, v.u.l->v, one * sizeof *l->v), l->n += one;
    *out = (jv){.t = v.t, .u.l = l};
    return true;
}

bool j_binary(struct jrun *r, enum j_op op, jv a, jv b, jv *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (op == OP_MOD && a.t == J_STR)
        return j_percent(r, a.u.s, b, out);
    if (a.t == J_UNDEF || b.t == J_UNDEF)
        return j_undefined(r, a.t == J_UNDEF ? a : b);
    if (j_is_num(a) && j_is_num(b))
        return j_arith(r, op, a, b, out);
    if (op == OP_ADD && a.t == J_STR && b.t == J_STR)
        return add_text(r, a, b, out);
    if (op == OP_ADD && a.t == b.t && (a.t == J_LIST || a.t == J_TUPLE))
        return add_lists(r, a, b, out);
    bool seq_a = a.t == J_STR || a.t == J_LIST || a.t == J_TUPLE, seq_b = b.t == J_STR || b.t == J_LIST || b.t == J_TUPLE;
    if (op == OP_MUL && ((seq_a && j_is_int(b)) || (seq_b && j_is_int(a))))
        return repeat(r, seq_a ? a : b, seq_a ? b : a, out);
    return j_fail(r, ERR_FORMAT, "%s between a %s and a %s", signs[op], j_type_name(a), j_type_name(b));
}

static bool equal_lists(struct jrun *r, const struct jlist *a, const struct jlist *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++)
        if (!j_equal(r, a->v[i], b->v[i], out))
            return false;
    return true;
}

static bool equal_dicts(struct jrun *r, const struct jdict *a, const struct jdict *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        jv *v;
        if (!j_dict_find(r, b, a->p[i].k, &v))
            return false;
        if (!v)
            *out = false;
        else if (!j_equal(r, a->p[i].v, *v, out))
            return false;
    }
    return true;
}

static bool equal_ranges(const struct jrange *a, const struct jrange *b)
{
    return a->n == b->n && (!a->n || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

bool j_equal(struct jrun *r, jv a, jv b, bool *out)
{
    bool ok = true;
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    if (j_is_num(a) && j_is_num(b)) {
        *out = a.t == J_FLOAT || b.t == J_FLOAT ? j_double(a) == j_double(b) : j_big_cmp(a, b) == 0;
    } else if (a.t != b.t) {
        *out = false;
    } else {
        switch (a.t) {
        case J_UNDEF: case J_NONE: *out = true; break;
        case J_STR:
            *out = a.u.s->n == b.u.s->n && (a.u.s->s == b.u.s->s || !memcmp(a.u.s->s, b.u.s->s, a.u.s->n));
            ok = j_charge(r, *out ? a.u.s->n / 1024 : 0);
            break;
        case J_LIST: case J_TUPLE: ok = a.u.l == b.u.l ? (*out = true) : equal_lists(r, a.u.l, b.u.l, out); break;
        case J_DICT: ok = a.u.d == b.u.d ? (*out = true) : equal_dicts(r, a.u.d, b.u.d, out); break;
        case J_RANGE: *out = equal_ranges(a.u.r, b.u.r); break;
        default: *out = a.u.l == b.u.l && a.sub == b.sub; break; /* the same object */
        }
    }
    r->depth--;
    return ok;
}

static bool less_lists(struct jrun *r, const struct jlist *a, const struct jlist *b, const char *sign, bool *out)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        if (!j_equal(r, a->v[i], b->v[i], &same))
            return false;
        if (!same)
            return j_less(r, a->v[i], b->v[i], sign, out);
    }
    *out = a->n < b->n;
    return true;
}

bool j_less(struct jrun *r, jv a, jv b, const char *sign, bool *out)
{
    bool ok = true;
    if (a.t == J_UNDEF || b.t == J_UNDEF)
        return j_undefined(r, a.t == J_UNDEF ? a : b);
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    if (j_is_num(a) && j_is_num(b)) {
        *out = a.t == J_FLOAT || b.t == J_FLOAT ? j_double(a) < j_double(b) : j_big_cmp(a, b) < 0;
    } else if (a.t == J_STR && b.t == J_STR) { /* the order of UTF-8 is that of code points */
        size_t n = a.u.s->n < b.u.s->n ? a.u.s->n : b.u.s->n;
        int c = n ? memcmp(a.u.s->s, b.u.s->s, n) : 0;
        *out = c ? c < 0 : a.u.s->n < b.u.s->n;
        ok = j_charge(r, n / 1024);
    } else if (a.t == b.t && (a.t == J_LIST || a.t == J_TUPLE)) {
        ok = less_lists(r, a.u.l, b.u.l, sign, out);
    } else {
        ok = j_fail(r, ERR_FORMAT, "%s between a %s and a %s", sign, j_type_name(a), j_type_name(b));
    }
    r->depth--;
    return ok;
}

bool j_compare(struct jrun *r, enum j_op op, jv a, jv b, bool *out)
{
    bool ok = true;
    switch (op) {
    case OP_EQ: return j_equal(r, a, b, out);
    case OP_NE: ok = j_equal(r, a, b, out); break;
    case OP_LT: return j_less(r, a, b, "<", out);
    case OP_GT: return j_less(r, b, a, ">", out);
    case OP_LE: case OP_GE:
        if (j_is_num(a) && j_is_num(b) && (isnan(j_double(a)) || isnan(j_double(b)))) {
            *out = false;
            return true;
        }
        ok = op == OP_LE ? j_less(r, b, a, "<=", out) : j_less(r, a, b, ">=", out);
        break;
    case OP_IN: return j_contains(r, b, a, out);
    default: ok = j_contains(r, b, a, out); break;
    }
    *out = !*out;
    return ok;
}

bool j_contains(struct jrun *r, jv in, jv x, bool *out)
{
    struct jlist *l;
    jv *found;
    *out = false;
    switch (in.t) {
    case J_STR:
        if (x.t == J_UNDEF)
            return j_undefined(r, x);
        if (x.t != J_STR)
            return j_fail(r, ERR_FORMAT, "a %s cannot be in a str", j_type_name(x));
        *out = j_find(in.u.s->s, in.u.s->n, x.u.s->s, x.u.s->n) != SIZE_MAX;
        return j_charge(r, in.u.s->n / 256);
    case J_DICT:
        if (!j_dict_find(r, in.u.d, x, &found))
            return false;
        *out = found != NULL;
        return true;
    case J_UNDEF: return true;
    default:
        if (!j_iter(r, in, &l))
            return false;
        for (size_t i = 0; i < l->n && !*out; i++)
            if (!j_equal(r, l->v[i], x, out))
                return false;
        return true;
    }
}

static jv undefined_of(jv owner, enum j_undef sub, const char *s, size_t n)
{
    return (jv){.t = J_UNDEF, .sub = (uint8_t)sub, .owner = owner.t, .n = (uint32_t)(n > UINT32_MAX ? 0 : n), .u.name = s};
}

/* x.name: a method first, then the key. */
bool j_attr(struct jrun *r, jv v, const char *s, size_t n, jv *out)
{
    bool found = false;
    jv *held;
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    const struct jbuiltin *m = j_method(v.t, s, n);
    if (m) {
        if (!m->fn || (m->changes && (v.u.l->frozen || r->t->lim.frozen))) {
            *out = undefined_of(v, J_UNSAFE, s, n);
            return true;
        }
        *out = (jv){.t = J_METHOD, .u.me = j_alloc(r, 1, sizeof(struct jmethod))};
        if (!out->u.me)
            return false;
        *out->u.me = (struct jmethod){v, m};
        return true;
    }
    if (v.t == J_LOOP) {
        if (!j_loop_attr(r, v.u.lo, s, n, out, &found))
            return false;
        if (found)
            return true;
    }
    if (v.t == J_DICT || v.t == J_NS) {
        if (!j_charge(r, v.u.d->n / 8))
            return false;
        if ((held = j_dict_name(v.u.d, s, n))) {
            *out = *held;
            return true;
        }
    }
    *out = undefined_of(v, J_NO_ATTR, s, n);
    return true;
}

/* x[key]: the key or index first, then what x.key would be. */
bool j_item(struct jrun *r, jv v, jv k, jv *out)
{
    jv *held;
    int64_t i;
    size_t n;
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    if (v.t == J_DICT && k.t != J_LIST && k.t != J_DICT && k.t != J_NS) {
        if (!j_dict_find(r, v.u.d, k, &held))
            return false;
        if (held) {
            *out = *held;
            return true;
        }
    } else if (j_is_int(k) && (v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE || v.t == J_RANGE)) {
        if (!j_len(r, v, &n) || !j_to_index(r, k, &i))
            return false;
        i = i < 0 ? i + (int64_t)n : i;
        if (i >= 0 && (uint64_t)i < n) {
            if (v.t == J_STR) {
                size_t at = j_cp_offset(v.u.s, (size_t)i);
                return j_charge(r, at / 256) && j_sub(r, v.u.s, at, j_cp_len(v.u.s->s + at, v.u.s->n - at), out);
            }
            *out = v.t == J_RANGE ? j_int(v.u.r->start + i * v.u.r->step) : v.u.l->v[i];
            return true;
        }
    }
    if (k.t == J_STR)
        return j_attr(r, v, k.u.s->s, k.u.s->n, out);
    *out = undefined_of(v, J_NO_ITEM, "", 0);
    return true;
}

/* Python's slice.indices: from and to within the length, for this step. */
static bool bounds(struct jrun *r, size_t len, jv from, jv to, jv step, int64_t *a, int64_t *b, int64_t *s)
{
    int64_t n = (int64_t)len, v;
    *s = 1;
    if (step.t != J_NONE && !j_to_index(r, step, s))
        return false;
    if (!*s)
        return j_fail(r, ERR_FORMAT, "a slice with step 0");
    *a = *s > 0 ? 0 : n - 1;
    *b = *s > 0 ? n : -1;
    for (int k = 0; k < 2; k++) {
        jv x = k ? to : from;
        if (x.t == J_NONE)
            continue;
        if (!j_to_index(r, x, &v))
            return false;
        if (v < 0)
            v = v < -n ? -1 : v + n;
        if (v < 0)
            v = *s > 0 ? 0 : -1;
        if (v >= n)
            v = *s > 0 ? n : n - 1;
        *(k ? b : a) = v;
    }
    return true;
}

static bool slice_str(struct jrun *r, struct jstr *s, int64_t a, int64_t b, int64_t step, jv *out)
{
    if (step == 1) {
        size_t from = a < b ? j_cp_offset(s, (size_t)a) : 0, to = a < b ? j_cp_offset(s, (size_t)b) : 0;
        return j_charge(r, s->n / 256) && j_sub(r, s, from, to - from, out);
    }
    struct jlist *chars;
    struct jout o = {0};
    if (!j_iter(r, (jv){.t = J_STR, .u.s = s}, &chars))
        return false;
    for (int64_t i = a; step > 0 ? i < b : i > b; i += step) {
        if (!j_put_text(r, &o, chars->v[i].u.s))
            return false;
        if (step > 0 ? i > INT64_MAX - step : i < INT64_MIN - step)
            break;
    }
    if (!j_taken(r, &o, out))
        return false;
    out->u.s->safe = s->safe;
    if (!j_all_trusted(s)) { /* new neighbours: nothing of it is the template's own words any more */
        out->u.s->map = NULL;
        out->u.s->trusted = false;
    }
    return true;
}

bool j_slice(struct jrun *r, jv v, jv from, jv to, jv step, jv *out)
{
    size_t n;
    int64_t a = 0, b = 0, s = 1;
    struct jlist *all, *l;
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    if (v.t != J_STR && v.t != J_LIST && v.t != J_TUPLE && v.t != J_RANGE)
        return j_fail(r, ERR_FORMAT, "a slice of a %s", j_type_name(v));
    if (!j_len(r, v, &n) || !bounds(r, n, from, to, step, &a, &b, &s))
        return false;
    if (v.t == J_STR)
        return slice_str(r, v.u.s, a, b, s, out);
    if (v.t == J_RANGE) {
        const struct jrange *x = v.u.r;
        struct jrange *y = j_alloc(r, 1, sizeof *y);
        if (!y)
            return false;
        s = s > (int64_t)n ? (int64_t)n + 1 : s < -(int64_t)n ? -(int64_t)n - 1 : s; /* beyond the length all steps are one step */
        int64_t count = s > 0 ? (b - a + s - 1) / s : (a - b - s - 1) / -s;
        *y = (struct jrange){x->start + a * x->step, x->start + b * x->step, x->step * s, count > 0 ? (size_t)count : 0};
        *out = (jv){.t = J_RANGE, .u.r = y};
        return true;
    }
    if (!j_iter(r, v, &all) || !(l = j_list(r, 0)))
        return false;
    for (int64_t i = a; s > 0 ? i < b : i > b; i += s) {
        if (!j_append(r, l, all->v[i]))
            return false;
        if (s > 0 ? i > INT64_MAX - s : i < INT64_MIN - s)
            break;
    }
    *out = (jv){.t = v.t, .u.l = l};
    return true;
}
