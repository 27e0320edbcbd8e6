/* engine/jinja_eval.c - expressions walked: names through scopes and context, calls with their arguments bound. */
#include "engine/jinja_internal.h"

#include <string.h>

static bool is_trusted(const struct jrun *r, const struct jname *name)
{
    for (const char *const *k = r->trusted_keys; k && *k; k++)
        if (strlen(*k) == name->n && !memcmp(*k, name->s, name->n))
            return true;
    return false;
}

/* Top level: what was set, else the context (converted when first asked for), else the functions everybody has. */
static bool global(struct jrun *r, uint32_t id, jv *out)
{
    const struct jname *name = &r->t->names[id];
    if (r->seen[id] == J_UNSEEN) {
        const struct json *v = json_get_n(r->ctx, name->s, name->n);
        r->seen[id] = v || name->global ? J_SET : J_MISSING;
        if (v && !j_from_json(r, v, is_trusted(r, name), &r->globals[id]))
            return false;
        if (!v && name->global)
            r->globals[id] = (jv){.t = J_FUNC, .u.fn = name->global};
    }
    *out = r->seen[id] == J_SET ? r->globals[id] : (jv){.t = J_UNDEF, .n = (uint32_t)name->n, .u.name = name->s};
    return true;
}

static bool lookup(struct jrun *r, uint32_t id, jv *out)
{
    for (const struct jscope *s = r->scope; s; s = s->up)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->vars[i].id == id) {
                *out = s->vars[i].v;
                return true;
            }
    return global(r, id, out);
}

static bool list(struct jrun *r, const struct jnode *n, jv *out)
{
    struct jlist *l = j_list(r, n->n);
    if (!l)
        return false;
    for (; l->n < n->n; l->n++)
        if (!j_eval(r, n->v[l->n], &l->v[l->n]))
            return false;
    *out = (jv){.t = n->kind == N_LIST ? J_LIST : J_TUPLE, .u.l = l};
    return true;
}

static bool dict(struct jrun *r, const struct jnode *n, jv *out)
{
    struct jdict *d = j_dict(r, n->n / 2);
    for (uint32_t i = 0; d && i < n->n; i += 2) {
        jv k, v;
        if (!j_eval(r, n->v[i], &k) || !j_eval(r, n->v[i + 1], &v) || !j_dict_set(r, d, k, v))
            return false;
    }
    *out = (jv){.t = J_DICT, .u.d = d};
    return d != NULL;
}

static bool chain(struct jrun *r, const struct jnode *n, jv *out)
{
    jv a, b;
    bool yes = true;
    if (!j_eval(r, n->a, &a))
        return false;
    for (uint32_t i = 0; i < n->n && yes; i++, a = b)
        if (!j_eval(r, n->v[i], &b) || !j_compare(r, (enum j_op)n->ops[i], a, b, &yes))
            return false;
    *out = j_bool(yes);
    return true;
}

static bool concat(struct jrun *r, const struct jnode *n, jv *out)
{
    struct jstr *all = j_text(r, "", 0, true), *s;
    jv v;
    for (uint32_t i = 0; i < n->n; i++) {
        if (!all || !j_eval(r, n->v[i], &v) || !j_to_str(r, v, &s) || !j_cat(r, all, s, &v))
            return false;
        all = v.u.s;
        all->safe = false;
    }
    *out = (jv){.t = J_STR, .u.s = all};
    return all != NULL;
}

static bool sign(struct jrun *r, const struct jnode *n, jv *out)
{
    jv v;
    if (!j_eval(r, n->a, &v))
        return false;
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    if (!j_is_num(v))
        return j_fail(r, ERR_FORMAT, "a sign before a %s", j_type_name(v));
    if (n->kind == N_NEG)
        return j_negate(r, v, out);
    *out = v;
    if (v.t == J_BOOL)
        *out = j_int(v.u.b);
    return true;
}

static bool slice(struct jrun *r, const struct jnode *n, jv *out)
{
    jv v, part[3];
    if (!j_eval(r, n->a, &v))
        return false;
    for (int i = 0; i < 3; i++) {
        part[i] = j_none();
        if (n->v[i] && !j_eval(r, n->v[i], &part[i]))
            return false;
    }
    return j_slice(r, v, part[0], part[1], part[2], out);
}

/* ---- calls ---- */
static bool star_args(struct jrun *r, const struct jnode *n, struct jargs *args)
{
    jv v;
    struct jlist *l;
    if (n->b) {
        if (!j_eval(r, n->b, &v) || !j_iter(r, v, &l))
            return false;
        jv *all = j_alloc(r, args->n + l->n, sizeof *all);
        if (!all)
            return false;
        if (args->n)
            memcpy(all, args->v, args->n * sizeof *all);
        if (l->n)
            memcpy(all + args->n, l->v, l->n * sizeof *all);
        args->v = all;
        args->n += l->n;
    }
    if (!n->c)
        return true;
    if (!j_eval(r, n->c, &v))
        return false;
    if (v.t != J_DICT)
        return j_fail(r, ERR_FORMAT, "** before a %s", j_type_name(v));
    struct jnamed *kw = j_alloc(r, args->n_kw + v.u.d->n, sizeof *kw);
    if (!kw)
        return false;
    if (args->n_kw)
        memcpy(kw, args->kw, args->n_kw * sizeof *kw);
    for (size_t i = 0; i < v.u.d->n; i++) {
        const struct jpair *p = &v.u.d->p[i];
        if (p->k.t != J_STR)
            return j_fail(r, ERR_FORMAT, "a keyword that is a %s", j_type_name(p->k));
        for (size_t k = 0; k < args->n_kw; k++)
            if (kw[k].len == p->k.u.s->n && !memcmp(kw[k].name, p->k.u.s->s, kw[k].len))
                return j_fail(r, ERR_FORMAT, "a keyword given twice");
        kw[args->n_kw + i] = (struct jnamed){p->k.u.s->s, p->k.u.s->n, p->v, !j_all_trusted(p->k.u.s)};
    }
    args->kw = kw;
    args->n_kw += v.u.d->n;
    return true;
}

static bool arguments(struct jrun *r, const struct jnode *n, struct jargs *args)
{
    *args = (struct jargs){.n = n->n, .n_kw = n->n_kw};
    if ((n->n && !(args->v = j_alloc(r, n->n, sizeof *args->v))) || (n->n_kw && !(args->kw = j_alloc(r, n->n_kw, sizeof *args->kw))))
        return false;
    for (uint32_t i = 0; i < n->n; i++)
        if (!j_eval(r, n->v[i], &args->v[i]))
            return false;
    for (uint32_t i = 0; i < n->n_kw; i++) {
        args->kw[i] = (struct jnamed){.name = n->kw[i].name, .len = n->kw[i].len};
        if (!j_eval(r, n->kw[i].v, &args->kw[i].v))
            return false;
    }
    return (!n->b && !n->c) || star_args(r, n, args);
}

/* Arguments into the places that `params` names ("width,first,blank"). */
bool j_call_builtin(struct jrun *r, const struct jbuiltin *fn, jv self, const struct jargs *args, jv *out)
{
    enum { PARAMS_MAX = 6 };
    jv av[PARAMS_MAX + 1] = {self};
    size_t n = 0;
    if (*fn->params == '*')
        return fn->fn(r, av, args, out);
    for (size_t i = 1; i <= PARAMS_MAX; i++)
        av[i].t = J_ABSENT;
    size_t used = 0;
    for (const char *p = fn->params; *p; n++) {
        size_t len = strcspn(p, ",");
        if (n < args->n)
            av[n + 1] = args->v[n];
        for (size_t k = 0; k < args->n_kw; k++)
            if (args->kw[k].len == len && !memcmp(args->kw[k].name, p, len)) {
                if (n < args->n)
                    return j_fail(r, ERR_FORMAT, "%s: argument %.*s is given twice", fn->name, (int)len, p);
                av[n + 1] = args->kw[k].v;
                used++;
            }
        if (n < fn->need && av[n + 1].t == J_ABSENT)
            return j_fail(r, ERR_FORMAT, "%s: expected an argument %.*s", fn->name, (int)len, p);
        p += len + (p[len] == ',');
    }
    if (args->n > n)
        return j_fail(r, ERR_FORMAT, "%s: expected at most %zu arguments, found %zu", fn->name, n, args->n);
    if (used < args->n_kw)
        return j_fail(r, ERR_FORMAT, "%s: an argument has a name that is not known", fn->name);
    return fn->fn(r, av, args, out);
}

static bool call_joiner(struct jrun *r, jv f, jv *out)
{
    if (!f.u.cy->i++) /* nothing the first time */
        return j_lit(r, "", out);
    *out = f.u.cy->l->v[0];
    return true;
}

bool j_call(struct jrun *r, jv f, const struct jargs *args, jv *out)
{
    switch (f.t) {
    case J_FUNC: return j_call_builtin(r, f.u.fn, j_none(), args, out);
    case J_METHOD: return j_call_builtin(r, f.u.me->fn, f.u.me->self, args, out);
    case J_MACRO: return j_call_macro(r, f.u.m, args, out);
    case J_JOINER: return call_joiner(r, f, out);
    case J_LOOP:
        if (args->n != 1 || args->n_kw)
            return j_fail(r, ERR_FORMAT, "loop: expected one argument");
        return j_call_loop(r, f.u.lo, args->v[0], out);
    case J_UNDEF: return j_undefined(r, f);
    default: return j_fail(r, ERR_FORMAT, "a %s cannot be called", j_type_name(f));
    }
}

static bool call(struct jrun *r, const struct jnode *n, jv *out)
{
    jv f;
    struct jargs args;
    return j_eval(r, n->a, &f) && arguments(r, n, &args) && j_call(r, f, &args, out);
}

/* Filters and tests: a is what they work on. */
static bool apply(struct jrun *r, const struct jnode *n, jv *out)
{
    jv self;
    struct jargs args;
    if (!n->fn)
        return j_fail(r, ERR_FORMAT, "there is no %s \"%.60s\"", n->kind == N_TEST ? "test" : "filter", n->val.u.s->s);
    if (!j_eval(r, n->a, &self) || !arguments(r, n, &args))
        return false;
    r->line = n->line;
    return j_call_builtin(r, n->fn, self, &args, out);
}

static bool eval(struct jrun *r, const struct jnode *n, jv *out)
{
    jv a, b;
    switch (n->kind) {
    case N_CONST: *out = n->val; return true;
    case N_NAME: return lookup(r, n->name, out);
    case N_HOLE: *out = r->hole; return true;
    case N_LIST: case N_TUPLE: return list(r, n, out);
    case N_DICT: return dict(r, n, out);
    case N_COND:
        if (!j_eval(r, n->a, &a))
            return false;
        if (j_truth(a))
            return j_eval(r, n->b, out);
        *out = (jv){.t = J_UNDEF};
        return !n->c || j_eval(r, n->c, out);
    case N_AND: case N_OR:
        if (!j_eval(r, n->a, out))
            return false;
        return j_truth(*out) == (n->kind == N_OR) || j_eval(r, n->b, out);
    case N_NOT:
        if (!j_eval(r, n->a, &a))
            return false;
        *out = j_bool(!j_truth(a));
        return true;
    case N_COMPARE: return chain(r, n, out);
    case N_BIN:
        if (!j_eval(r, n->a, &a) || !j_eval(r, n->b, &b))
            return false;
        r->line = n->line;
        return j_binary(r, (enum j_op)n->op, a, b, out);
    case N_CONCAT: return concat(r, n, out);
    case N_NEG: case N_POS: return sign(r, n, out);
    case N_ATTR: return j_eval(r, n->a, &a) && j_attr(r, a, n->val.u.s->s, n->val.u.s->n, out);
    case N_ITEM: return j_eval(r, n->a, &a) && j_eval(r, n->b, &b) && j_item(r, a, b, out);
    case N_SLICE: return slice(r, n, out);
    case N_CALL: return call(r, n, out);
    default: return apply(r, n, out);
    }
}

bool j_eval(struct jrun *r, const struct jnode *n, jv *out)
{
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    r->line = n->line;
    bool ok = eval(r, n, out);
    r->depth--;
    return ok;
}
