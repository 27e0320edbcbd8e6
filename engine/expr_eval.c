/* The evaluator and the values of engine/expr.h. Arithmetic stays in int64 while both sides are integers and checks for
 * overflow; a float appears only by /, **, sqrt, log or a float operand. */
#include "engine/expr.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 200 /* of nested evaluations: parameters evaluate other parameters through the scope */
#define ARGS_MAX 16

struct eng_value eng_v_int(int64_t i) { return (struct eng_value){.type = ENG_V_INT, .u.i = i}; }
struct eng_value eng_v_num(double f) { return (struct eng_value){.type = ENG_V_NUM, .u.f = f}; }
struct eng_value eng_v_bool(bool b) { return (struct eng_value){.type = ENG_V_BOOL, .u.b = b}; }
struct eng_value eng_v_str(const char *s) { return (struct eng_value){.type = ENG_V_STR, .u.s = s, .n = strlen(s)}; }

bool eng_v_truth(const struct eng_value *v)
{
    switch (v->type) {
    case ENG_V_NULL: return false;
    case ENG_V_BOOL: return v->u.b;
    case ENG_V_INT: return v->u.i != 0;
    case ENG_V_NUM: return v->u.f < 0 || v->u.f > 0;
    default: return v->n != 0;
    }
}

bool eng_v_number(const struct eng_value *v, double *out)
{
    if (v->type != ENG_V_INT && v->type != ENG_V_NUM)
        return false;
    *out = v->type == ENG_V_INT ? (double)v->u.i : v->u.f;
    return true;
}

bool eng_v_integer(const struct eng_value *v, int64_t *out)
{
    if (v->type == ENG_V_INT) {
        *out = v->u.i;
        return true;
    }
    if (v->type != ENG_V_NUM || !(fabs(v->u.f) < 9e15) || floor(v->u.f) < v->u.f)
        return false;
    *out = (int64_t)v->u.f;
    return true;
}

bool eng_v_equal(const struct eng_value *a, const struct eng_value *b)
{
    double x, y;

    if (eng_v_number(a, &x) && eng_v_number(b, &y))
        return a->type == ENG_V_INT && b->type == ENG_V_INT ? a->u.i == b->u.i : !(x < y) && !(x > y);
    if (a->type != b->type)
        return false;
    switch (a->type) {
    case ENG_V_NULL: return true;
    case ENG_V_BOOL: return a->u.b == b->u.b;
    case ENG_V_STR: return a->n == b->n && !memcmp(a->u.s, b->u.s, a->n);
    case ENG_V_LIST:
        for (size_t i = 0; i < a->n; i++)
            if (i >= b->n || !eng_v_equal(&a->u.items[i], &b->u.items[i]))
                return false;
        return a->n == b->n;
    default: return false;
    }
}

const struct eng_member *eng_v_member(const struct eng_value *v, const char *key)
{
    if (v->type == ENG_V_OBJECT)
        for (size_t i = 0; i < v->n; i++)
            if (!strcmp(v->u.members[i].key, key))
                return &v->u.members[i];
    return NULL;
}

const char *eng_v_type(const struct eng_value *v)
{
    static const char *const names[] = {"null", "a truth value", "an integer", "a number", "text", "a list", "an object"};
    return names[v->type];
}

void eng_v_show(const struct eng_value *v, char *out, size_t n)
{
    size_t at = 0;

    switch (v->type) {
    case ENG_V_NULL: snprintf(out, n, "null"); break;
    case ENG_V_BOOL: snprintf(out, n, "%s", v->u.b ? "true" : "false"); break;
    case ENG_V_INT: snprintf(out, n, "%" PRId64, v->u.i); break;
    case ENG_V_NUM: snprintf(out, n, "%.9g", v->u.f); break;
    case ENG_V_STR: snprintf(out, n, "'%.*s'", (int)(v->n > 60 ? 60 : v->n), v->u.s); break;
    case ENG_V_OBJECT: snprintf(out, n, "an object of %zu keys", v->n); break;
    case ENG_V_LIST:
        at = (size_t)snprintf(out, n, "[");
        for (size_t i = 0; i < v->n && i < 4 && at + 8 < n; i++) {
            char one[40];
            eng_v_show(&v->u.items[i], one, sizeof one);
            at += (size_t)snprintf(out + at, n - at, "%s%s", i ? ", " : "", one);
        }
        if (at < n)
            snprintf(out + at, n - at, "%s]", v->n > 4 ? ", ..." : "");
        break;
    }
}

static int from_json(const struct json *j, struct arena *a, struct eng_value *out, unsigned depth, struct err *e)
{
    int64_t i;
    double f;

    *out = (struct eng_value){.type = ENG_V_NULL};
    if (!j || j->type == JSON_NULL)
        return ERR_OK;
    if (depth > 16)
        return err_set(e, ERR_LIMIT, "config value nested more than 16 deep");
    switch (j->type) {
    case JSON_BOOL: *out = eng_v_bool(j->b); return ERR_OK;
    case JSON_NUMBER:
        if (!memchr(j->s, '.', j->n) && !memchr(j->s, 'e', j->n) && !memchr(j->s, 'E', j->n) && json_int(j, &i))
            *out = eng_v_int(i);
        else if (json_num(j, &f))
            *out = eng_v_num(f);
        else
            return err_set(e, ERR_FORMAT, "config number `%.*s` does not fit", (int)(j->n > 40 ? 40 : j->n), j->s);
        return ERR_OK;
    case JSON_STRING:
        *out = (struct eng_value){.type = ENG_V_STR, .u.s = j->s, .n = j->n};
        return ERR_OK;
    case JSON_ARRAY: {
        struct eng_value *items = ARENA_ARRAY(a, struct eng_value, j->n);
        if (!items)
            return err_set(e, ERR_NOMEM, "config list of %zu items", j->n);
        for (size_t k = 0; k < j->n; k++) {
            int rc = from_json(j->items[k], a, &items[k], depth + 1, e);
            if (rc)
                return rc;
        }
        *out = (struct eng_value){.type = ENG_V_LIST, .u.items = items, .n = j->n};
        return ERR_OK;
    }
    default: {
        struct eng_member *m = ARENA_ARRAY(a, struct eng_member, j->n);
        if (!m)
            return err_set(e, ERR_NOMEM, "config object of %zu keys", j->n);
        for (size_t k = 0; k < j->n; k++) {
            m[k].key = j->members[k].key;
            m[k].src = j->members[k].value;
            int rc = from_json(m[k].src, a, &m[k].value, depth + 1, e);
            if (rc)
                return rc;
        }
        *out = (struct eng_value){.type = ENG_V_OBJECT, .u.members = m, .n = j->n};
        return ERR_OK;
    }
    }
}

int eng_v_from_json(const struct json *j, struct arena *a, struct eng_value *out, struct err *e)
{
    return from_json(j, a, out, 0, e);
}

/* ---- evaluation ------------------------------------------------------------------------------------------- */
static int wrong(struct err *e, const char *what, const struct eng_value *v)
{
    char text[80];
    eng_v_show(v, text, sizeof text);
    return err_set(e, ERR_INVALID, "expected %s, found %s %s", what, eng_v_type(v), v->type == ENG_V_NULL ? "" : text);
}

static int overflow(struct err *e) { return err_set(e, ERR_INVALID, "integer overflow"); }

static int integer_op(enum eng_expr_op op, int64_t x, int64_t y, struct eng_value *out, struct err *e)
{
    int64_t r = 0;

    if ((op == ENG_X_DIV || op == ENG_X_IDIV || op == ENG_X_MOD) && (y == 0 || (x == INT64_MIN && y == -1)))
        return err_set(e, ERR_INVALID, "division by zero");
    switch (op) {
    case ENG_X_ADD: if (__builtin_add_overflow(x, y, &r)) return overflow(e); break;
    case ENG_X_SUB: if (__builtin_sub_overflow(x, y, &r)) return overflow(e); break;
    case ENG_X_MUL: if (__builtin_mul_overflow(x, y, &r)) return overflow(e); break;
    case ENG_X_DIV:
        if (x % y) {
            *out = eng_v_num((double)x / (double)y);
            return ERR_OK;
        }
        r = x / y;
        break;
    case ENG_X_IDIV: r = x / y - (x % y != 0 && (x < 0) != (y < 0)); break; /* toward minus infinity */
    case ENG_X_MOD: r = x % y + (x % y != 0 && (x < 0) != (y < 0) ? y : 0); break;
    default: /* POW with an exponent >= 0 */
        for (r = 1; y > 0; y--)
            if (__builtin_mul_overflow(r, x, &r))
                return overflow(e);
        break;
    }
    *out = eng_v_int(r);
    return ERR_OK;
}

static int arithmetic(enum eng_expr_op op, const struct eng_value *a, const struct eng_value *b, struct eng_value *out, struct err *e)
{
    double x, y, r;

    if (!eng_v_number(a, &x))
        return wrong(e, "a number", a);
    if (!eng_v_number(b, &y))
        return wrong(e, "a number", b);
    if (a->type == ENG_V_INT && b->type == ENG_V_INT && (op != ENG_X_POW || (b->u.i >= 0 && b->u.i < 64)))
        return integer_op(op, a->u.i, b->u.i, out, e);
    switch (op) {
    case ENG_X_ADD: r = x + y; break;
    case ENG_X_SUB: r = x - y; break;
    case ENG_X_MUL: r = x * y; break;
    case ENG_X_DIV: r = x / y; break;
    case ENG_X_IDIV: r = floor(x / y); break;
    case ENG_X_MOD: r = x - y * floor(x / y); break;
    default: r = pow(x, y); break;
    }
    if (!isfinite(r))
        return err_set(e, ERR_INVALID, "arithmetic gives no finite number (%.9g and %.9g)", x, y);
    *out = eng_v_num(r);
    return ERR_OK;
}

static int compare(enum eng_expr_op op, const struct eng_value *a, const struct eng_value *b, struct eng_value *out, struct err *e)
{
    double x, y;

    if (op == ENG_X_EQ || op == ENG_X_NE) {
        *out = eng_v_bool(eng_v_equal(a, b) == (op == ENG_X_EQ));
        return ERR_OK;
    }
    if (op == ENG_X_IN) {
        bool found = false;
        if (b->type != ENG_V_LIST)
            return wrong(e, "a list after `in`", b);
        for (size_t i = 0; i < b->n && !found; i++)
            found = eng_v_equal(a, &b->u.items[i]);
        *out = eng_v_bool(found);
        return ERR_OK;
    }
    if (!eng_v_number(a, &x))
        return wrong(e, "a number", a);
    if (!eng_v_number(b, &y))
        return wrong(e, "a number", b);
    *out = eng_v_bool(op == ENG_X_LT ? x < y : op == ENG_X_LE ? x <= y : op == ENG_X_GT ? x > y : x >= y);
    return ERR_OK;
}

static int index_of(const struct eng_value *a, const struct eng_value *b, struct eng_value *out, struct err *e)
{
    if (a->type == ENG_V_OBJECT && b->type == ENG_V_STR) {
        const struct eng_member *m = eng_v_member(a, b->u.s);
        *out = m ? m->value : (struct eng_value){.type = ENG_V_NULL};
        return ERR_OK;
    }
    if (a->type != ENG_V_LIST)
        return wrong(e, "a list before `[`", a);
    if (b->type != ENG_V_INT)
        return wrong(e, "an integer index", b);
    if (b->u.i < 0 || (uint64_t)b->u.i >= a->n)
        return err_set(e, ERR_INVALID, "index %" PRId64 " in a list of %zu", b->u.i, a->n);
    *out = a->u.items[b->u.i];
    return ERR_OK;
}

static int min_max(bool max, const struct eng_value *args, unsigned n, struct eng_value *out, struct err *e)
{
    double best, x;

    if (n == 1 && args->type == ENG_V_LIST)
        return args->n ? min_max(max, args->u.items, (unsigned)args->n, out, e) : err_set(e, ERR_INVALID, "min or max of an empty list");
    *out = args[0];
    if (!eng_v_number(out, &best))
        return wrong(e, "a number", out);
    for (unsigned i = 1; i < n; i++) {
        if (!eng_v_number(&args[i], &x))
            return wrong(e, "a number", &args[i]);
        if (max ? x > best : x < best) {
            best = x;
            *out = args[i];
        }
    }
    return ERR_OK;
}

static int call_builtin(const char *fn, const struct eng_value *args, unsigned n, struct eng_value *out, struct err *e)
{
    double x, r;

    if (!strcmp(fn, "min") || !strcmp(fn, "max"))
        return n ? min_max(fn[1] == 'a', args, n, out, e) : err_set(e, ERR_INVALID, "%s needs an argument", fn);
    if (n != 1)
        return err_set(e, ERR_INVALID, "%s takes 1 argument, found %u", fn, n);
    if (!strcmp(fn, "len")) {
        if (args->type != ENG_V_LIST && args->type != ENG_V_STR)
            return wrong(e, "a list or text", args);
        *out = eng_v_int((int64_t)args->n);
        return ERR_OK;
    }
    if (!eng_v_number(args, &x))
        return wrong(e, "a number", args);
    if (!strcmp(fn, "sqrt") || !strcmp(fn, "log")) {
        r = fn[0] == 's' ? sqrt(x) : log(x);
        if (!isfinite(r))
            return err_set(e, ERR_INVALID, "%s of %.9g", fn, x);
        *out = eng_v_num(r);
        return ERR_OK;
    }
    r = !strcmp(fn, "floor") ? floor(x) : !strcmp(fn, "ceil") ? ceil(x) : trunc(x); /* int() cuts toward zero */
    if (!(fabs(r) < 9e15))
        return overflow(e);
    *out = eng_v_int((int64_t)r);
    return ERR_OK;
}

static int call(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e)
{
    struct eng_value args[ARGS_MAX];
    unsigned n = 0;

    if (x->n_kids > ARGS_MAX)
        return err_set(e, ERR_LIMIT, "%s with more than %d arguments", x->name, ARGS_MAX);
    for (const struct eng_expr *k = x->kid[0]; k; k = k->next) {
        int rc = eng_expr_eval(k, s, &args[n++], e);
        if (rc)
            return rc;
    }
    if (!strcmp(x->name, "cfg") || !strcmp(x->name, "present") || !strcmp(x->name, "has") || !strcmp(x->name, "dim"))
        return s->call ? s->call(s->ctx, x->name, args, n, out, e) : err_set(e, ERR_INVALID, "%s is not available here", x->name);
    return call_builtin(x->name, args, n, out, e);
}

static int list(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e)
{
    struct eng_value *items = ARENA_ARRAY(s->mem, struct eng_value, x->n_kids);
    size_t n = 0;

    if (!items)
        return err_set(e, ERR_NOMEM, "list of %u", x->n_kids);
    for (const struct eng_expr *k = x->kid[0]; k; k = k->next) {
        int rc = eng_expr_eval(k, s, &items[n++], e);
        if (rc)
            return rc;
    }
    *out = (struct eng_value){.type = ENG_V_LIST, .u.items = items, .n = n};
    return ERR_OK;
}

/* Operators that look at their first operand before they evaluate the second. */
static int lazy(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e)
{
    struct eng_value a;
    int rc = eng_expr_eval(x->kid[0], s, &a, e);

    if (rc)
        return rc;
    switch (x->op) {
    case ENG_X_COND: return eng_expr_eval(x->kid[eng_v_truth(&a) ? 1 : 2], s, out, e);
    case ENG_X_COAL:
        if (a.type == ENG_V_NULL)
            return eng_expr_eval(x->kid[1], s, out, e);
        *out = a;
        return ERR_OK;
    default: /* OR, AND give a truth value */
        if (eng_v_truth(&a) == (x->op == ENG_X_OR)) {
            *out = eng_v_bool(x->op == ENG_X_OR);
            return ERR_OK;
        }
        if ((rc = eng_expr_eval(x->kid[1], s, &a, e)))
            return rc;
        *out = eng_v_bool(eng_v_truth(&a));
        return ERR_OK;
    }
}

static int strict(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e)
{
    struct eng_value a, b = {.type = ENG_V_NULL};
    int rc = eng_expr_eval(x->kid[0], s, &a, e);

    if (!rc && x->kid[1])
        rc = eng_expr_eval(x->kid[1], s, &b, e);
    if (rc)
        return rc;
    switch (x->op) {
    case ENG_X_NOT: *out = eng_v_bool(!eng_v_truth(&a)); return ERR_OK;
    case ENG_X_NEG: b = eng_v_int(0); return arithmetic(ENG_X_SUB, &b, &a, out, e);
    case ENG_X_INDEX: return index_of(&a, &b, out, e);
    case ENG_X_KEY:
        b = eng_v_str(x->name);
        return a.type == ENG_V_OBJECT ? index_of(&a, &b, out, e) : wrong(e, "an object before `.`", &a);
    case ENG_X_EQ: case ENG_X_NE: case ENG_X_LT: case ENG_X_LE: case ENG_X_GT: case ENG_X_GE: case ENG_X_IN:
        return compare(x->op, &a, &b, out, e);
    default: return arithmetic(x->op, &a, &b, out, e);
    }
}

int eng_expr_eval(const struct eng_expr *x, struct eng_scope *s, struct eng_value *out, struct err *e)
{
    int rc;

    if (!s->steps)
        return err_set(e, ERR_LIMIT, "expressions of this sheet take too many steps");
    if (s->depth >= DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "expressions nested more than %d deep", DEPTH_MAX);
    s->steps--;
    s->depth++;
    switch (x->op) {
    case ENG_X_LITERAL: *out = x->lit; rc = ERR_OK; break;
    case ENG_X_NAME: rc = s->name(s->ctx, x->name, out, e); break;
    case ENG_X_LIST: rc = list(x, s, out, e); break;
    case ENG_X_CALL: rc = call(x, s, out, e); break;
    case ENG_X_COND: case ENG_X_COAL: case ENG_X_OR: case ENG_X_AND: rc = lazy(x, s, out, e); break;
    default: rc = strict(x, s, out, e); break;
    }
    s->depth--;
    return rc;
}
