/* engine/jinja_containers.c - methods of lists, tuples, dicts and cyclers; which ones exist for which kind.
 *
 * A list may be changed only if the template made it (lists of the context are frozen), and only where the open allowed it. */
#include "engine/jinja_internal.h"

#include <string.h>

#define METHOD(name_) static bool m_##name_(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)

METHOD(get)
{
    jv *v;
    (void)raw;
    if (!j_dict_find(r, av[0].u.d, av[1], &v))
        return false;
    *out = v ? *v : av[2].t == J_ABSENT ? j_none() : av[2];
    return true;
}

static bool view(jv d, enum j_view which, jv *out)
{
    *out = (jv){.t = J_VIEW, .sub = (uint8_t)which, .u.d = d.u.d};
    return true;
}
METHOD(keys) { (void)r; (void)raw; return view(av[0], J_KEYS, out); }
METHOD(values) { (void)r; (void)raw; return view(av[0], J_VALUES, out); }
METHOD(items) { (void)r; (void)raw; return view(av[0], J_ITEMS, out); }

METHOD(copy_dict)
{
    (void)raw;
    struct jdict *d = j_dict(r, av[0].u.d->n);
    if (!d)
        return false;
    if (av[0].u.d->n)
        memcpy(d->p, av[0].u.d->p, av[0].u.d->n * sizeof *d->p);
    d->n = av[0].u.d->n;
    *out = (jv){.t = J_DICT, .u.d = d};
    return true;
}

static bool position(struct jrun *r, const jv *av, size_t *n, size_t *at)
{
    struct jlist *l;
    *n = 0;
    *at = SIZE_MAX;
    if (!j_iter(r, av[0], &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        bool same;
        if (!j_equal(r, l->v[i], av[1], &same))
            return false;
        if (same && !(*n)++)
            *at = i;
    }
    return true;
}

METHOD(count)
{
    size_t n, at;
    (void)raw;
    if (!position(r, av, &n, &at))
        return false;
    *out = j_int((int64_t)n);
    return true;
}

METHOD(index)
{
    size_t n, at;
    (void)raw;
    if (!position(r, av, &n, &at))
        return false;
    *out = j_int((int64_t)at);
    return n ? true : j_fail(r, ERR_FORMAT, "index: the value is not in the list");
}

METHOD(copy_list)
{
    struct jlist *l = j_list(r, av[0].u.l->n);
    (void)raw;
    for (size_t i = 0; l && i < av[0].u.l->n; i++)
        l->v[l->n++] = av[0].u.l->v[i];
    *out = j_wrap_list(l);
    return l != NULL;
}

METHOD(append)
{
    (void)raw;
    *out = j_none();
    return j_append(r, av[0].u.l, av[1]);
}

METHOD(extend)
{
    struct jlist *l;
    (void)raw;
    *out = j_none();
    if (!j_iter(r, av[1], &l))
        return false;
    for (size_t i = 0, n = l->n; i < n; i++)
        if (!j_append(r, av[0].u.l, l->v[i]))
            return false;
    return true;
}

METHOD(insert)
{
    struct jlist *l = av[0].u.l;
    int64_t i, n = (int64_t)l->n;
    (void)raw;
    *out = j_none();
    if (!j_to_index(r, av[1], &i) || !j_append(r, l, av[2]))
        return false;
    i = i < -n ? 0 : i < 0 ? i + n : i > n ? n : i;
    memmove(l->v + i + 1, l->v + i, (size_t)(n - i) * sizeof *l->v);
    l->v[i] = av[2];
    return j_charge(r, (size_t)(n - i) / 16);
}

METHOD(pop)
{
    struct jlist *l = av[0].u.l;
    int64_t i = -1, n = (int64_t)l->n;
    (void)raw;
    if (av[1].t != J_ABSENT && !j_to_index(r, av[1], &i))
        return false;
    i = i < 0 && i >= -n ? i + n : i;
    if (i < 0 || i >= n)
        return j_fail(r, ERR_FORMAT, "pop: there is no such item in the list");
    *out = l->v[i];
    memmove(l->v + i, l->v + i + 1, (size_t)(n - i - 1) * sizeof *l->v);
    l->n--;
    return j_charge(r, (size_t)(n - i) / 16);
}

METHOD(next)
{
    struct jcycle *c = av[0].u.cy;
    (void)r;
    (void)raw;
    *out = c->l->v[c->i++ % c->l->n];
    return true;
}

METHOD(reset)
{
    (void)r;
    (void)raw;
    av[0].u.cy->i = 0;
    *out = j_none();
    return true;
}

/* fn NULL: exists in Python, would change a value that others share, and is refused when called. */
static const struct jbuiltin methods[] = {
    {"get", m_get, "key,default", 1, J_DICT, false}, {"keys", m_keys, "", 0, J_DICT, false}, {"values", m_values, "", 0, J_DICT, false},
    {"items", m_items, "", 0, J_DICT, false}, {"copy", m_copy_dict, "", 0, J_DICT, false},
    {"clear", NULL, "", 0, J_DICT, true}, {"pop", NULL, "", 0, J_DICT, true}, {"popitem", NULL, "", 0, J_DICT, true},
    {"setdefault", NULL, "", 0, J_DICT, true}, {"update", NULL, "", 0, J_DICT, true},
    {"count", m_count, "value", 1, J_LIST, false}, {"index", m_index, "value", 1, J_LIST, false}, {"copy", m_copy_list, "", 0, J_LIST, false},
    {"append", m_append, "object", 1, J_LIST, true}, {"extend", m_extend, "iterable", 1, J_LIST, true},
    {"insert", m_insert, "index,object", 2, J_LIST, true}, {"pop", m_pop, "index", 0, J_LIST, true},
    {"clear", NULL, "", 0, J_LIST, true}, {"remove", NULL, "", 0, J_LIST, true}, {"reverse", NULL, "", 0, J_LIST, true}, {"sort", NULL, "", 0, J_LIST, true},
    {"count", m_count, "value", 1, J_TUPLE, false}, {"index", m_index, "value", 1, J_TUPLE, false},
    {"count", m_count, "value", 1, J_RANGE, false}, {"index", m_index, "value", 1, J_RANGE, false},
    {"next", m_next, "", 0, J_CYCLER, false}, {"reset", m_reset, "", 0, J_CYCLER, false},
};

const struct jbuiltin *j_method(uint8_t type, const char *s, size_t n)
{
    if (type == J_STR)
        return j_in_table(j_str_methods, j_n_str_methods, s, n);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i].type == type && strlen(methods[i].name) == n && !memcmp(methods[i].name, s, n))
            return &methods[i];
    return NULL;
}
