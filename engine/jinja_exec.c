/* engine/jinja_exec.c - statements walked: output, scopes, loops, macros.
 *
 * A scope is a short list of variables with a link to the scope around it; NULL is the top level. Loop bodies get a fresh one for each
 * round, so `set` in a loop is gone with the round; `if` has none. A macro keeps the scope it was defined in. Captured output (macros,
 * set and filter blocks) goes to a buffer of its own that takes the place of r->out meanwhile. */
#include "engine/jinja_internal.h"

#include <string.h>

bool j_set_var(struct jrun *r, struct jscope *s, uint32_t id, jv v)
{
    if (!s) {
        r->globals[id] = v;
        r->seen[id] = J_SET;
        return true;
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (s->vars[i].id == id) {
            s->vars[i].v = v;
            return true;
        }
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? s->cap * 2 : 4;
        struct jvar *more = j_alloc(r, cap, sizeof *more);
        if (!more)
            return false;
        if (s->n)
            memcpy(more, s->vars, s->n * sizeof *more);
        s->vars = more;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jvar){id, v};
    return true;
}

static struct jscope *new_scope(struct jrun *r, struct jscope *up)
{
    struct jscope *s = j_alloc(r, 1, sizeof *s);
    if (s)
        s->up = up;
    return s;
}

static bool set_attribute(struct jrun *r, const struct jnode *target, jv v)
{
    struct jnode name = *target;
    jv ns, key = target->val;
    name.kind = N_NAME;
    if (!j_eval(r, &name, &ns))
        return false;
    if (ns.t != J_NS)
        return j_fail(r, ERR_FORMAT, "an attribute of a %s cannot be set, only one of a namespace", j_type_name(ns));
    if (key.u.s->n && *key.u.s->s == '_')
        return j_fail(r, ERR_FORMAT, "the attribute of a namespace starts with an underscore");
    return j_dict_set(r, ns.u.d, key, v);
}

bool j_assign(struct jrun *r, const struct jnode *target, jv v)
{
    struct jlist *l;
    if (target->kind == N_NAME)
        return j_set_var(r, r->scope, target->name, v);
    if (target->kind == N_NSREF)
        return set_attribute(r, target, v);
    if (v.t == J_UNDEF)
        return j_undefined(r, v);
    if (!j_iter(r, v, &l))
        return false;
    if (l->n != target->n)
        return j_fail(r, ERR_FORMAT, "%zu values for %u names", l->n, target->n);
    for (uint32_t i = 0; i < target->n; i++)
        if (!j_assign(r, target->v[i], l->v[i]))
            return false;
    return true;
}

/* Runs a body in a scope, its output into a string. */
static bool capture(struct jrun *r, const struct jnode *body, struct jscope *scope, jv *out)
{
    struct jout o = {0}, *keep_out = r->out;
    struct jscope *keep = r->scope;
    enum j_flow flow = r->flow;
    r->out = &o;
    r->scope = scope;
    r->flow = FLOW_ON;
    bool ok = scope && j_exec(r, body);
    r->out = keep_out;
    r->scope = keep;
    r->flow = flow;
    return ok && j_taken(r, &o, out);
}

static bool filtered(struct jrun *r, const struct jnode *filters, jv text, jv *out)
{
    jv keep = r->hole;
    r->hole = text;
    bool ok = j_eval(r, filters, out);
    r->hole = keep;
    return ok;
}

/* ---- loops ---- */
static bool round_of(struct jrun *r, const struct jnode *n, struct jloop *lo)
{
    struct jscope *s = new_scope(r, lo->scope);
    if (!s || !j_set_var(r, s, r->t->id_loop, (jv){.t = J_LOOP, .u.lo = lo}))
        return false;
    r->scope = s;
    return j_assign(r, n->a, lo->l->v[lo->i]) && j_exec(r, n->v[0]);
}

/* The items that the loop's own `if` lets through. */
static bool chosen(struct jrun *r, const struct jnode *n, struct jlist *all, struct jlist **out)
{
    struct jscope *keep = r->scope;
    jv v;
    if (!(*out = j_list(r, 0)))
        return false;
    for (size_t i = 0; i < all->n; i++) {
        if (!(r->scope = new_scope(r, keep)) || !j_assign(r, n->a, all->v[i]) || !j_eval(r, n->c, &v) ||
            (j_truth(v) && !j_append(r, *out, all->v[i])))
            return false;
    }
    r->scope = keep;
    return true;
}

static bool run_loop(struct jrun *r, const struct jnode *n, jv items, unsigned depth)
{
    struct jscope *keep = r->scope;
    struct jlist *l;
    if (!j_iter(r, items, &l) || (n->c && !chosen(r, n, l, &l)))
        return false;
    struct jloop *lo = j_alloc(r, 1, sizeof *lo);
    if (!lo)
        return false;
    *lo = (struct jloop){.l = l, .depth = depth, .node = n, .scope = keep};
    bool ok = true, through = false; /* a round came to its end: without one, else runs, break and continue notwithstanding */
    size_t rounds = l->n;            /* a list that grows meanwhile does not prolong it */
    for (; ok && lo->i < rounds && lo->i < l->n && r->flow != FLOW_BREAK; lo->i++) {
        r->flow = FLOW_ON;
        ok = round_of(r, n, lo);
        through |= r->flow == FLOW_ON;
    }
    r->flow = FLOW_ON;
    r->scope = keep;
    if (ok && !through && n->n > 1) {
        r->scope = new_scope(r, keep);
        ok = r->scope && j_exec(r, n->v[1]);
        r->scope = keep;
    }
    return ok;
}

bool j_call_loop(struct jrun *r, const struct jloop *l, jv items, jv *out)
{
    struct jout o = {0}, *keep_out = r->out;
    struct jscope *keep = r->scope;
    if (!l->node->op)
        return j_fail(r, ERR_FORMAT, "loop() in a loop that is not recursive");
    if (!j_deeper(r))
        return false;
    r->out = &o;
    r->scope = l->scope;
    bool ok = run_loop(r, l->node, items, l->depth + 1);
    r->out = keep_out;
    r->scope = keep;
    r->depth--;
    return ok && j_taken(r, &o, out);
}

static bool loop_changed(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    struct jloop *lo = av[0].u.lo;
    struct jlist *l = j_list(r, raw->n);
    bool same = false;
    if (!l)
        return false;
    for (size_t i = 0; i < raw->n; i++)
        l->v[l->n++] = raw->v[i];
    if (lo->seen && !j_equal(r, lo->last, j_wrap_list(l), &same))
        return false;
    lo->seen = true;
    lo->last = j_wrap_list(l);
    *out = j_bool(!same);
    return true;
}

static bool loop_cycle(struct jrun *r, const jv *av, const struct jargs *raw, jv *out)
{
    if (!raw->n)
        return j_fail(r, ERR_FORMAT, "loop.cycle: expected an argument");
    *out = raw->v[av[0].u.lo->i % raw->n];
    return true;
}

bool j_loop_attr(struct jrun *r, const struct jloop *l, const char *s, size_t n, jv *out, bool *found)
{
    static const char *const names[] = {"index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth",
                                        "depth0", "changed", "cycle"};
    static const struct jbuiltin methods[] = {{"changed", loop_changed, "*", 0, J_LOOP, false}, {"cycle", loop_cycle, "*", 0, J_LOOP, false}};
    int64_t i = (int64_t)l->i, len = (int64_t)l->l->n;
    size_t k = 0;
    while (k < sizeof names / sizeof *names && !(strlen(names[k]) == n && !memcmp(names[k], s, n)))
        k++;
    *found = k < sizeof names / sizeof *names;
    switch (k) {
    case 0: *out = j_int(i + 1); break;
    case 1: *out = j_int(i); break;
    case 2: *out = j_bool(i == 0); break;
    case 3: *out = j_bool(i + 1 == len); break;
    case 4: *out = j_int(len); break;
    case 5: *out = j_int(len - i); break;
    case 6: *out = j_int(len - i - 1); break;
    case 7: *out = i > 0 ? l->l->v[i - 1] : (jv){.t = J_UNDEF}; break;
    case 8: *out = i + 1 < len ? l->l->v[i + 1] : (jv){.t = J_UNDEF}; break;
    case 9: *out = j_int((int64_t)l->depth + 1); break;
    case 10: *out = j_int(l->depth); break;
    case 11: case 12:
        *out = (jv){.t = J_METHOD, .u.me = j_alloc(r, 1, sizeof(struct jmethod))};
        if (!out->u.me)
            return false;
        *out->u.me = (struct jmethod){{.t = J_LOOP, .u.lo = (struct jloop *)(uintptr_t)l}, &methods[k - 11]};
        break;
    default: break;
    }
    return true;
}

/* ---- macros ---- */
static bool uses(const struct jnode *params, uint32_t id)
{
    for (uint32_t i = 0; i < params->n; i++)
        if (params->v[i]->name == id)
            return true;
    return false;
}

/* Positional arguments past the parameters are varargs, unknown keywords kwargs, if the body asks for them by name. */
static bool bind(struct jrun *r, const struct jmacro *m, struct jscope *s, const struct jargs *args)
{
    const struct jnode *n = m->node;
    struct jlist *rest = j_list(r, args->n > n->n ? args->n - n->n : 0);
    struct jdict *kw = j_dict(r, 0);
    bool ok = rest && kw;
    for (size_t i = n->n; ok && i < args->n; i++)
        rest->v[rest->n++] = args->v[i];
    for (uint32_t i = 0; ok && i < n->n && i < args->n; i++)
        ok = j_set_var(r, s, n->v[i]->name, args->v[i]);
    for (size_t k = 0; ok && k < args->n_kw; k++) {
        const struct jnamed *a = &args->kw[k];
        uint32_t i = 0;
        for (; i < n->n; i++) {
            const struct jname *name = &r->t->names[n->v[i]->name];
            if (name->n == a->len && !memcmp(name->s, a->name, a->len))
                break;
        }
        struct jstr *key = j_text(r, a->name, a->len, !a->plain);
        if (i < n->n && i < args->n)
            return j_fail(r, ERR_FORMAT, "argument \"%.*s\" is given twice", (int)(a->len > 60 ? 60 : a->len), a->name);
        if (i == n->n && a->len == 6 && !memcmp(a->name, "caller", 6) && (n->op & USES_CALLER))
            ok = j_set_var(r, s, r->t->id_caller, a->v);
        else
            ok = i < n->n ? j_set_var(r, s, n->v[i]->name, a->v) : key && j_dict_set(r, kw, (jv){.t = J_STR, .u.s = key}, a->v);
    }
    if (ok && rest->n && !(n->op & USES_VARARGS))
        return j_fail(r, ERR_FORMAT, "the macro takes %u arguments, found %zu", n->n, args->n);
    if (ok && kw->n && !(n->op & USES_KWARGS))
        return j_fail(r, ERR_FORMAT, "the macro takes no keyword \"%.60s\"", args->kw[0].name);
    if (ok && !uses(n, r->t->id_varargs))
        ok = j_set_var(r, s, r->t->id_varargs, (jv){.t = J_TUPLE, .u.l = rest});
    if (ok && !uses(n, r->t->id_kwargs))
        ok = j_set_var(r, s, r->t->id_kwargs, (jv){.t = J_DICT, .u.d = kw});
    return ok;
}

/* Defaults are evaluated at the call and may use the parameters before them. */
static bool defaults(struct jrun *r, const struct jnode *n, struct jscope *s)
{
    struct jscope *keep = r->scope;
    bool ok = true;
    r->scope = s;
    for (uint32_t i = 0; ok && i < n->n; i++) {
        bool given = false;
        jv v;
        for (uint32_t k = 0; k < s->n && !given; k++)
            given = s->vars[k].id == n->v[i]->name;
        if (given)
            continue;
        const struct jname *name = &r->t->names[n->v[i]->name];
        v = (jv){.t = J_UNDEF, .n = (uint32_t)name->n, .u.name = name->s};
        ok = (!n->v[i]->a || j_eval(r, n->v[i]->a, &v)) && j_set_var(r, s, n->v[i]->name, v);
    }
    r->scope = keep;
    return ok;
}

bool j_call_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, jv *out)
{
    struct jscope *s = new_scope(r, m->scope);
    if (!s || !bind(r, m, s, args) || !defaults(r, m->node, s))
        return false;
    if (r->calls >= r->t->lim.depth_max * 2)
        return j_fail(r, ERR_LIMIT, "macros are called deeper than %u", r->t->lim.depth_max * 2);
    r->calls++;
    bool ok = j_deeper(r) && capture(r, m->node->c, s, out);
    r->calls--;
    r->depth--;
    return ok;
}

static bool make_macro(struct jrun *r, const struct jnode *n, jv *out)
{
    *out = (jv){.t = J_MACRO, .u.m = j_alloc(r, 1, sizeof(struct jmacro))};
    if (!out->u.m)
        return false;
    *out->u.m = (struct jmacro){.node = n, .scope = r->scope};
    return true;
}

/* {% call f(x) %}: f gets one keyword more, caller. */
static bool call_block(struct jrun *r, const struct jnode *n)
{
    jv m, v;
    if (!make_macro(r, n->b, &m))
        return false;
    struct jnode hole = {.kind = N_HOLE, .line = n->line}, call = *n->a;
    struct jkw *kw = j_alloc(r, call.n_kw + 1, sizeof *kw);
    if (!kw)
        return false;
    if (call.n_kw)
        memcpy(kw, call.kw, call.n_kw * sizeof *kw);
    kw[call.n_kw] = (struct jkw){"caller", 6, r->t->id_caller, &hole};
    call.kw = kw;
    call.n_kw++;
    return filtered(r, &call, m, &v) && j_put_str(r, r->out, v);
}

/* ---- the rest ---- */
static bool run_if(struct jrun *r, const struct jnode *n)
{
    for (uint32_t i = 0; i < n->n; i += 2) {
        jv v;
        if (i + 1 == n->n)
            return j_exec(r, n->v[i]);
        if (!j_eval(r, n->v[i], &v))
            return false;
        if (j_truth(v))
            return j_exec(r, n->v[i + 1]);
    }
    return true;
}

static bool run_with(struct jrun *r, const struct jnode *n)
{
    struct jscope *keep = r->scope, *s = new_scope(r, keep);
    bool ok = s != NULL;
    for (uint32_t i = 0; ok && i < n->n; i += 2) { /* values see the names outside */
        jv v;
        ok = j_eval(r, n->v[i + 1], &v);
        r->scope = s;
        ok = ok && j_assign(r, n->v[i], v);
        r->scope = keep;
    }
    r->scope = s;
    ok = ok && j_exec(r, n->c);
    r->scope = keep;
    return ok;
}

static bool run_scope(struct jrun *r, const struct jnode *n)
{
    struct jscope *keep = r->scope;
    bool ok = (r->scope = new_scope(r, keep)) && j_exec(r, n->c);
    r->scope = keep;
    return ok;
}

static bool exec(struct jrun *r, const struct jnode *n)
{
    jv v, text;
    switch (n->kind) {
    case N_BODY:
        for (uint32_t i = 0; i < n->n && r->flow == FLOW_ON; i++)
            if (!j_exec(r, n->v[i]))
                return false;
        return true;
    case N_TEXT: return j_put_text(r, r->out, n->val.u.s);
    case N_OUT: return j_eval(r, n->a, &v) && j_put_str(r, r->out, v);
    case N_IF: return run_if(r, n);
    case N_FOR: return j_eval(r, n->b, &v) && run_loop(r, n, v, 0);
    case N_SET: return j_eval(r, n->b, &v) && j_assign(r, n->a, v);
    case N_SETBLOCK: return capture(r, n->c, new_scope(r, r->scope), &text) && filtered(r, n->b, text, &v) && j_assign(r, n->a, v);
    case N_FILTERBLOCK: return capture(r, n->c, new_scope(r, r->scope), &text) && filtered(r, n->b, text, &v) && j_put_str(r, r->out, v);
    case N_MACRO: return make_macro(r, n, &v) && j_set_var(r, r->scope, n->name, v);
    case N_CALLBLOCK: return call_block(r, n);
    case N_WITH: return run_with(r, n);
    case N_SCOPE: return run_scope(r, n);
    default: r->flow = n->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE; return true;
    }
}

bool j_exec(struct jrun *r, const struct jnode *n)
{
    if (!j_charge(r, 1) || !j_deeper(r))
        return false;
    r->line = n->line;
    bool ok = exec(r, n);
    r->depth--;
    return ok;
}
