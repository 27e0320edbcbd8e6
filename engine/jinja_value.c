/* engine/jinja_value.c - errors and bounds of a render; lists, dicts, iteration, and values made from JSON. */
#include "engine/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool j_fail(struct jrun *r, int code, const char *fmt, ...)
{
    char msg[320];
    va_list ap;
    if (r->e->code)
        return false; /* the first one tells */
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    err_set(r->e, code, "template, line %u: %s", r->line, msg);
    return false;
}

bool j_nomem(struct jrun *r)
{
    return j_fail(r, ERR_LIMIT, "its values take more than %zu bytes, or memory is short", r->a->bytes_max);
}

void *j_alloc(struct jrun *r, size_t n, size_t size)
{
    void *p = arena_array(r->a, n, size);
    if (!p)
        j_nomem(r);
    return p;
}

bool j_charge(struct jrun *r, size_t n)
{
    if (r->steps < n) {
        r->steps = 0;
        return j_fail(r, ERR_LIMIT, "more than %llu steps", (unsigned long long)r->t->lim.steps_max);
    }
    r->steps -= n;
    return true;
}

bool j_deeper(struct jrun *r)
{
    if (r->depth >= r->depth_max)
        return j_fail(r, ERR_LIMIT, "nested deeper than %u", r->depth_max);
    r->depth++;
    return true;
}

const char *j_type_name(jv v)
{
    static const char *const names[] = {"Undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple", "dict", "range",
                                        "dict view", "generator", "Namespace", "Macro", "function", "method", "LoopContext", "Cycler", "Joiner", "missing"};
    return names[v.t];
}

bool j_undefined(struct jrun *r, jv v)
{
    const char *owner = j_type_name((jv){.t = v.owner});
    int n = v.n > 100 ? 100 : (int)v.n;
    switch (v.sub) {
    case J_NO_ATTR: return j_fail(r, ERR_FORMAT, "\"%.*s\" is no attribute of this %s", n, v.u.name, owner);
    case J_NO_ITEM: return j_fail(r, ERR_FORMAT, "this %s has no such item", owner);
    case J_UNSAFE: return j_fail(r, ERR_FORMAT, "\"%.*s\" would change a %s", n, v.u.name, owner);
    default: return j_fail(r, ERR_FORMAT, v.n ? "\"%.*s\" is undefined" : "the value is undefined%.*s", n, v.n ? v.u.name : "");
    }
}

struct jlist *j_list(struct jrun *r, size_t cap)
{
    struct jlist *l = j_alloc(r, 1, sizeof *l);
    if (!l || !(l->v = j_alloc(r, cap, sizeof *l->v)))
        return NULL;
    l->cap = cap;
    return l;
}

bool j_append(struct jrun *r, struct jlist *l, jv v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap < 4 ? 4 : l->cap * 2;
        jv *more = j_alloc(r, cap, sizeof *more);
        if (!more)
            return false;
        if (l->n)
            memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return true;
}

struct jdict *j_dict(struct jrun *r, size_t cap)
{
    struct jdict *d = j_alloc(r, 1, sizeof *d);
    if (!d || !(d->p = j_alloc(r, cap, sizeof *d->p)))
        return NULL;
    d->cap = cap;
    return d;
}

bool j_hashable(struct jrun *r, jv k)
{
    if (k.t == J_TUPLE) {
        for (size_t i = 0; i < k.u.l->n; i++) {
            if (!j_deeper(r))
                return false;
            bool ok = j_hashable(r, k.u.l->v[i]);
            r->depth--;
            if (!ok)
                return false;
        }
        return true;
    }
    if (k.t == J_LIST || k.t == J_DICT || k.t == J_NS)
        return j_fail(r, ERR_FORMAT, "a %s cannot be a key", j_type_name(k));
    return true;
}

jv *j_dict_name(const struct jdict *d, const char *s, size_t n)
{
    for (size_t i = 0; i < d->n; i++) {
        const jv *k = &d->p[i].k;
        if (k->t == J_STR && k->u.s->n == n && !memcmp(k->u.s->s, s, n))
            return &d->p[i].v;
    }
    return NULL;
}

bool j_dict_find(struct jrun *r, const struct jdict *d, jv k, jv **out)
{
    *out = NULL;
    if (!j_charge(r, d->n / 8))
        return false;
    if (k.t == J_STR) {
        *out = j_dict_name(d, k.u.s->s, k.u.s->n);
        return true;
    }
    if (!j_hashable(r, k))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        bool same;
        if (!j_equal(r, d->p[i].k, k, &same))
            return false;
        if (same) {
            *out = &d->p[i].v;
            return true;
        }
    }
    return true;
}

bool j_dict_set(struct jrun *r, struct jdict *d, jv k, jv v)
{
    jv *old;
    if (!j_dict_find(r, d, k, &old) || !j_hashable(r, k))
        return false;
    if (old) {
        *old = v;
        return true;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap < 4 ? 4 : d->cap * 2;
        struct jpair *more = j_alloc(r, cap, sizeof *more);
        if (!more)
            return false;
        if (d->n)
            memcpy(more, d->p, d->n * sizeof *more);
        d->p = more;
        d->cap = cap;
    }
    d->p[d->n++] = (struct jpair){k, v};
    return true;
}

static bool number_from_json(struct jrun *r, const struct json *v, bool trusted, jv *out)
{
    bool big = false;
    if (strcspn(v->s, ".eE") == v->n) {
        if (!j_int_lit(r, v->s, v->n, trusted, out))
            return j_fail(r, ERR_FORMAT, "a number of the context cannot be read");
    } else {
        *out = j_float(strtod(v->s, NULL));
    }
    (void)big;
    out->plain = !trusted;
    return true;
}

static bool object_from_json(struct jrun *r, const struct json *v, bool trusted, jv *out)
{
    struct jdict *d = j_dict(r, v->n);
    if (!d)
        return false;
    for (size_t i = 0; i < v->n; i++) {
        struct jstr *k = j_text(r, v->members[i].key, v->members[i].key_len, trusted);
        if (!k || !j_from_json(r, v->members[i].value, trusted, &d->p[i].v))
            return false;
        d->p[i].k = (jv){.t = J_STR, .u.s = k};
        d->n++;
    }
    *out = (jv){.t = J_DICT, .u.d = d};
    return true;
}

static bool array_from_json(struct jrun *r, const struct json *v, bool trusted, jv *out)
{
    struct jlist *l = j_list(r, v->n);
    if (!l)
        return false;
    l->frozen = true;
    for (size_t i = 0; i < v->n; i++)
        if (!j_from_json(r, v->items[i], trusted, &l->v[l->n++]))
            return false;
    *out = j_wrap_list(l);
    return true;
}

bool j_from_json(struct jrun *r, const struct json *v, bool trusted, jv *out)
{
    bool ok = true;
    struct jstr *s;
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    switch (v->type) {
    case JSON_NULL: *out = j_none(); out->plain = !trusted; break;
    case JSON_BOOL: *out = j_bool(v->b); out->plain = !trusted; break;
    case JSON_NUMBER: ok = number_from_json(r, v, trusted, out); break;
    case JSON_STRING:
        ok = (s = j_text(r, v->s, v->n, trusted)) != NULL;
        *out = (jv){.t = J_STR, .u.s = s};
        break;
    case JSON_ARRAY: ok = array_from_json(r, v, trusted, out); break;
    default: ok = object_from_json(r, v, trusted, out); break;
    }
    r->depth--;
    return ok;
}

bool j_truth(jv v)
{
    switch (v.t) {
    case J_UNDEF: case J_NONE: case J_ABSENT: return false;
    case J_BOOL: return v.u.b;
    case J_INT: return v.u.i != 0;
    case J_FLOAT: return v.u.f != 0;
    case J_STR: return v.u.s->n > 0;
    case J_LIST: case J_TUPLE: return v.u.l->n > 0;
    case J_DICT: case J_VIEW: return v.u.d->n > 0;
    case J_RANGE: return v.u.r->n > 0;
    default: return true;
    }
}

bool j_has_len(jv v)
{
    return v.t == J_UNDEF || v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE || v.t == J_DICT || v.t == J_VIEW || v.t == J_RANGE;
}

bool j_len(struct jrun *r, jv v, size_t *out)
{
    switch (v.t) {
    case J_UNDEF: *out = 0; return true;
    case J_STR: *out = j_cps(v.u.s); return j_charge(r, v.u.s->n / 1024);
    case J_LIST: case J_TUPLE: *out = v.u.l->n; return true;
    case J_DICT: case J_VIEW: *out = v.u.d->n; return true;
    case J_RANGE: *out = v.u.r->n; return true;
    default: return j_fail(r, ERR_FORMAT, "a %s has no length", j_type_name(v));
    }
}

static bool iter_str(struct jrun *r, struct jstr *s, struct jlist *l)
{
    for (size_t i = 0, k; i < s->n; i += k) {
        k = j_cp_len(s->s + i, s->n - i);
        if (!j_sub(r, s, i, k, &l->v[l->n]))
            return false;
        l->v[l->n++].u.s->safe = false;
    }
    return true;
}

static bool iter_dict(struct jrun *r, const struct jdict *d, int view, struct jlist *l)
{
    for (size_t i = 0; i < d->n; i++) {
        jv v = view == J_VALUES ? d->p[i].v : d->p[i].k;
        if (view == J_ITEMS) {
            struct jlist *pair = j_list(r, 2);
            if (!pair)
                return false;
            pair->v[0] = d->p[i].k;
            pair->v[1] = d->p[i].v;
            pair->n = 2;
            v = (jv){.t = J_TUPLE, .u.l = pair};
        }
        l->v[l->n++] = v;
    }
    return true;
}

bool j_iter(struct jrun *r, jv v, struct jlist **out)
{
    size_t n;
    if (v.t == J_ITER) {
        struct jiter *it = v.u.it;
        if (!(*out = j_alloc(r, 1, sizeof **out)))
            return false;
        **out = (struct jlist){.v = it->l->v + it->pos, .n = it->l->n - it->pos, .cap = it->l->n - it->pos, .frozen = true};
        it->pos = it->l->n;
        return j_charge(r, (*out)->n);
    }
    if (!j_has_len(v))
        return j_fail(r, ERR_FORMAT, "a %s cannot be looped over", j_type_name(v));
    if (!j_len(r, v, &n) || !j_charge(r, n))
        return false;
    if (v.t == J_LIST || v.t == J_TUPLE) {
        *out = v.u.l;
        return true;
    }
    if (!(*out = j_list(r, n)))
        return false;
    switch (v.t) {
    case J_STR: return iter_str(r, v.u.s, *out);
    case J_DICT: return iter_dict(r, v.u.d, J_KEYS, *out);
    case J_VIEW: return iter_dict(r, v.u.d, v.sub, *out);
    case J_RANGE:
        for (size_t i = 0; i < n; i++)
            (*out)->v[(*out)->n++] = j_int(v.u.r->start + (int64_t)i * v.u.r->step);
        return true;
    default: return true; /* undefined: nothing */
    }
}

bool j_to_index(struct jrun *r, jv v, int64_t *out)
{
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    if (!j_is_int(v))
        return j_fail(r, ERR_FORMAT, "expected an integer, found a %s", j_type_name(v));
    *out = v.t == J_BOOL ? v.u.b : v.t == J_INT ? v.u.i : j_big_sign(v) ? INT64_MIN : INT64_MAX;
    return true;
}

bool j_any_plain(struct jrun *r, jv v, bool *plain)
{
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    bool ok = true;
    const struct jlist *l = v.t == J_LIST || v.t == J_TUPLE ? v.u.l : v.t == J_ITER ? v.u.it->l : NULL;
    const struct jdict *d = v.t == J_DICT || v.t == J_VIEW || v.t == J_NS ? v.u.d : NULL;
    if (v.t == J_STR || v.t == J_BIG)
        *plain |= !j_all_trusted(v.u.s);
    *plain |= v.plain;
    for (size_t i = 0; ok && l && i < l->n && !*plain; i++)
        ok = j_any_plain(r, l->v[i], plain);
    for (size_t i = 0; ok && d && i < d->n && !*plain; i++)
        ok = j_any_plain(r, d->p[i].k, plain) && j_any_plain(r, d->p[i].v, plain);
    r->depth--;
    return ok;
}
