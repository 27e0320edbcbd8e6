/* engine/jinja_parse.c - expressions: tokens and nodes, operators by precedence, tuples and targets (operands: jinja_operand.c).
 *
 * From loose to tight: inline if, or, and, not, comparisons (chained), + -, ~, * / // %, **, unary - and +, then . [] () | is.
 * As in Jinja, not in Python: ~ binds tighter than +, unary minus tighter than **, ** leans left, and a filter on a signed operand
 * takes the sign with it. */
#include "engine/jinja_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool j_advance(struct jparse *p)
{
    if (p->failed)
        return false;
    p->cur = p->next;
    if (p->cur.type != T_EOF && !j_lex(&p->lx, &p->next))
        p->failed = true;
    return !p->failed;
}

static const char *describe(const struct jtoken *t, char out[48])
{
    switch (t->type) {
    case T_EOF: return "the end of the template";
    case T_OUT_END: return "\"}}\"";
    case T_TAG_END: return "\"%}\"";
    case T_DATA: return "text";
    case T_STR: return "a string";
    case T_OP: snprintf(out, 48, "\"%c%s\"", t->op & 255, t->op < 256 ? "" : t->op == T2('*') ? "*" : t->op == T2('/') ? "/" : "="); return out;
    default: snprintf(out, 48, "\"%.*s\"", t->n > 40 ? 40 : (int)t->n, t->s); return out;
    }
}

int j_syntax(struct jparse *p, const char *fmt, ...)
{
    char msg[220], tok[48];
    va_list ap;
    if (p->failed)
        return ERR_FORMAT;
    p->failed = true;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return j_lex_fail(&p->lx, p->cur.pos, "%s, found %s", msg, describe(&p->cur, tok));
}

void *j_parse_fail(struct jparse *p, int code, const char *what)
{
    if (!p->failed)
        err_set(p->e, code, "template, line %u: %s", p->cur.line, what);
    p->failed = true;
    return NULL;
}

bool j_is_op(const struct jparse *p, int op) { return p->cur.type == T_OP && p->cur.op == op; }
static bool named(const struct jtoken *t, const char *name) { return t->type == T_NAME && t->n == strlen(name) && !memcmp(t->s, name, t->n); }
bool j_is_name(const struct jparse *p, const char *name) { return named(&p->cur, name); }
bool j_skip_op(struct jparse *p, int op) { return j_is_op(p, op) && j_advance(p); }
bool j_skip_name(struct jparse *p, const char *name) { return j_is_name(p, name) && j_advance(p); }

bool j_expect_op(struct jparse *p, int op)
{
    if (!j_is_op(p, op))
        return !j_syntax(p, "expected \"%c\"", op & 255);
    return j_advance(p);
}

struct jnode *j_node(struct jparse *p, enum j_kind kind)
{
    if (p->failed)
        return NULL;
    struct jnode *n = ARENA_NEW(&p->t->mem, struct jnode);
    if (!n)
        return j_parse_fail(p, ERR_LIMIT, "the template is too large");
    n->kind = (uint8_t)kind;
    n->line = p->cur.line;
    return n;
}

bool j_push_node(struct jparse *p, struct jnode ***v, uint32_t *n, struct jnode *c)
{
    if (p->failed || !c)
        return false;
    if (!(*n & (*n - 1))) { /* 0 or a power of two: full */
        struct jnode **more = ARENA_ARRAY(&p->t->mem, struct jnode *, *n ? (size_t)*n * 2 : 1);
        if (!more)
            return j_parse_fail(p, ERR_LIMIT, "the template is too large");
        if (*n)
            memcpy(more, *v, *n * sizeof *more);
        *v = more;
    }
    (*v)[(*n)++] = c;
    return true;
}

static bool deeper(struct jparse *p)
{
    if (p->depth >= p->t->lim.depth_max) {
        j_parse_fail(p, ERR_LIMIT, "nested too deep");
        return false;
    }
    p->depth++;
    return true;
}

static struct jnode *unary(struct jparse *p, bool filters)
{
    struct jnode *n;
    if (!deeper(p))
        return NULL;
    if (j_is_op(p, '-') || j_is_op(p, '+')) {
        n = j_node(p, p->cur.op == '-' ? N_NEG : N_POS);
        if (n)
            n->a = j_advance(p) ? unary(p, false) : NULL;
        n = n && n->a ? n : NULL;
    } else {
        n = j_primary(p, false);
    }
    n = j_postfix(p, n);
    if (filters)
        n = j_filters(p, n, false);
    p->depth--;
    return n;
}

/* The operators of one level of the table, lean left. */
static int binary_op(const struct jparse *p, int level)
{
    if (p->cur.type != T_OP)
        return -1;
    switch (p->cur.op) {
    case '+': return level == 0 ? OP_ADD : -1;
    case '-': return level == 0 ? OP_SUB : -1;
    case '*': return level == 2 ? OP_MUL : -1;
    case '/': return level == 2 ? OP_DIV : -1;
    case T2('/'): return level == 2 ? OP_FLOORDIV : -1;
    case '%': return level == 2 ? OP_MOD : -1;
    case T2('*'): return level == 3 ? OP_POW : -1;
    default: return -1;
    }
}

static struct jnode *arith(struct jparse *p, int level)
{
    if (level == 4)
        return unary(p, true);
    struct jnode *a = arith(p, level + 1);
    if (level == 1) { /* ~ of any length is one node */
        if (!a || !j_is_op(p, '~'))
            return a;
        struct jnode *n = j_node(p, N_CONCAT);
        if (!n || !j_push_node(p, &n->v, &n->n, a))
            return NULL;
        while (j_skip_op(p, '~'))
            if (!j_push_node(p, &n->v, &n->n, arith(p, 2)))
                return NULL;
        return p->failed ? NULL : n;
    }
    for (int op; a && (op = binary_op(p, level)) >= 0;) {
        struct jnode *n = j_node(p, N_BIN);
        if (!n || !j_advance(p) || !(n->b = arith(p, level + 1)))
            return NULL;
        n->op = (uint8_t)op;
        n->a = a;
        a = n;
    }
    return p->failed ? NULL : a;
}

static int compare_op(struct jparse *p)
{
    if (p->cur.type == T_OP)
        switch (p->cur.op) {
        case T2('='): return OP_EQ;
        case T2('!'): return OP_NE;
        case '<': return OP_LT;
        case T2('<'): return OP_LE;
        case '>': return OP_GT;
        case T2('>'): return OP_GE;
        default: return -1;
        }
    if (j_is_name(p, "in"))
        return OP_IN;
    return j_is_name(p, "not") && named(&p->next, "in") ? OP_NOT_IN : -1;
}

static struct jnode *compare(struct jparse *p)
{
    enum { CHAIN_MAX = 64 };
    struct jnode *a = arith(p, 0), *n = NULL;
    for (int op; a && (op = compare_op(p)) >= 0;) {
        if (!n) {
            if (!(n = j_node(p, N_COMPARE)) || !(n->ops = arena_alloc(&p->t->mem, CHAIN_MAX)))
                return j_parse_fail(p, ERR_LIMIT, "the template is too large");
            n->a = a;
        }
        if (n->n == CHAIN_MAX)
            return j_parse_fail(p, ERR_LIMIT, "more than 64 comparisons in a row");
        n->ops[n->n] = (uint8_t)op;
        if (!j_advance(p) || (op == OP_NOT_IN && !j_advance(p)) || !j_push_node(p, &n->v, &n->n, arith(p, 0)))
            return NULL;
    }
    return p->failed ? NULL : n ? n : a;
}

static struct jnode *not_expr(struct jparse *p)
{
    if (!j_is_name(p, "not"))
        return compare(p);
    struct jnode *n = j_node(p, N_NOT);
    if (!n || !deeper(p))
        return NULL;
    n->a = j_advance(p) ? not_expr(p) : NULL;
    p->depth--;
    return n->a ? n : NULL;
}

static struct jnode *logic(struct jparse *p, bool is_or)
{
    struct jnode *a = is_or ? logic(p, false) : not_expr(p);
    while (a && j_is_name(p, is_or ? "or" : "and")) {
        struct jnode *n = j_node(p, is_or ? N_OR : N_AND);
        if (!n || !j_advance(p))
            return NULL;
        n->a = a;
        if (!(n->b = is_or ? logic(p, false) : not_expr(p)))
            return NULL;
        a = n;
    }
    return p->failed ? NULL : a;
}

struct jnode *j_expr(struct jparse *p)
{
    if (!deeper(p))
        return NULL;
    const struct jnode *before = p->unknown;
    struct jnode *a = logic(p, true);
    while (a && j_is_name(p, "if")) {
        struct jnode *n = j_node(p, N_COND);
        if (!n || !j_advance(p) || !(n->a = logic(p, true)))
            return NULL;
        n->b = a;
        if (j_skip_name(p, "else") && !(n->c = j_expr(p)))
            return NULL;
        p->unknown = before; /* what stands in a conditional expression may never run */
        a = n;
    }
    p->depth--;
    return p->failed ? NULL : a;
}

/* One expression, or a tuple where a comma follows. simplified: names and literals alone; parens: () is the empty tuple. */
struct jnode *j_tuple(struct jparse *p, bool simplified, bool inline_if, bool parens, bool ns)
{
    struct jnode *n = NULL, *one = NULL;
    for (;;) {
        if (p->failed)
            return NULL;
        if (p->cur.type == T_TAG_END || p->cur.type == T_OUT_END || j_is_op(p, ')') || j_is_name(p, "in") || j_is_name(p, "recursive"))
            break;
        struct jnode *a = simplified ? j_primary(p, ns) : inline_if ? j_expr(p) : logic(p, true);
        if (!a)
            return NULL;
        if (n && !j_push_node(p, &n->v, &n->n, a))
            return NULL;
        one = a;
        if (!j_is_op(p, ','))
            return n ? n : one;
        if (!n && (!(n = j_node(p, N_TUPLE)) || !j_push_node(p, &n->v, &n->n, one)))
            return NULL;
        if (!j_advance(p))
            return NULL;
    }
    if (!n && !parens) {
        j_syntax(p, "expected an expression");
        return NULL;
    }
    return n ? n : j_node(p, N_TUPLE);
}

static bool assignable(const struct jnode *n)
{
    if (n->kind != N_TUPLE)
        return n->kind == N_NAME || n->kind == N_NSREF;
    for (uint32_t i = 0; i < n->n; i++)
        if (!assignable(n->v[i]))
            return false;
    return true;
}

struct jnode *j_target(struct jparse *p, bool tuple, bool ns)
{
    struct jnode *n = tuple ? j_tuple(p, true, false, false, ns) : j_primary(p, ns);
    if (n && !assignable(n)) {
        j_syntax(p, "expected a name to assign to");
        return NULL;
    }
    return n;
}
