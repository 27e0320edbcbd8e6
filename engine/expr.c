/* Recursive descent over the text, one function a precedence level; the tree is walked by eng_expr_eval. A number keeps
 * its kind: / of integers that divide exactly stays an integer because shapes must be exact. */
#include "engine/expr.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64
#define ARGS_MAX 16

static const char *const functions[] = {"min", "max", "floor", "ceil", "sqrt", "log", "len", "int", "cfg", "present", "has", "dim"};

bool eng_expr_is_function(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strlen(functions[i]) == n && !memcmp(functions[i], name, n))
            return true;
    return false;
}

/* ---- parsing ---------------------------------------------------------------------------------------------- */
struct parser {
    const char *text;
    size_t n, at;
    unsigned depth;
    struct arena *a;
    struct err *e;
};

static void blanks(struct parser *p)
{
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\t' || p->text[p->at] == '\n'))
        p->at++;
}

static int expected(struct parser *p, const char *what)
{
    return err_set(p->e, ERR_FORMAT, "expected %s at column %zu of `%.*s`", what, p->at + 1, (int)(p->n > 200 ? 200 : p->n), p->text);
}

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Takes the operator `op` when it comes next. A longer operator that starts alike ("/" before "//") is not taken. */
static bool take(struct parser *p, const char *op)
{
    static const char *const longer[] = {"//", "**", "??", "||", "&&", "==", "!=", "<=", ">="};
    size_t n = strlen(op);

    blanks(p);
    if (p->n - p->at < n || memcmp(p->text + p->at, op, n))
        return false;
    if (n == 1 && p->n - p->at > 1)
        for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
            if (!memcmp(p->text + p->at, longer[i], 2))
                return false;
    if (word_char(op[0]) && p->at + n < p->n && word_char(p->text[p->at + n]))
        return false; /* `in` is not the start of `index` */
    p->at += n;
    return true;
}

static struct eng_expr *node(struct parser *p, enum eng_expr_op op, struct eng_expr *a, struct eng_expr *b)
{
    struct eng_expr *x = ARENA_NEW(p->a, struct eng_expr);
    if (!x) {
        err_set(p->e, ERR_NOMEM, "expression tree");
        return NULL;
    }
    x->op = op;
    x->kid[0] = a;
    x->kid[1] = b;
    return x;
}

static struct eng_expr *parse_cond(struct parser *p);

static struct eng_expr *parse_number(struct parser *p)
{
    char buf[64];
    size_t n = 0, at = p->at;
    bool whole = true;
    struct eng_expr *x;

    while (at < p->n && n < sizeof buf - 1) {
        char c = p->text[at];
        bool exponent_sign = (c == '-' || c == '+') && n && (buf[n - 1] == 'e' || buf[n - 1] == 'E');
        if (!((c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || exponent_sign))
            break;
        if (!(c >= '0' && c <= '9'))
            whole = false;
        buf[n++] = c;
        at++;
    }
    buf[n] = 0;
    if (!(x = node(p, ENG_X_LITERAL, NULL, NULL)))
        return NULL;
    char *end;
    errno = 0;
    if (whole)
        x->lit = eng_v_int(strtoll(buf, &end, 10));
    else
        x->lit = eng_v_num(strtod(buf, &end));
    if (*end || errno == ERANGE) {
        expected(p, "a number");
        return NULL;
    }
    p->at = at;
    return x;
}

static struct eng_expr *parse_text(struct parser *p)
{
    size_t from = ++p->at;
    struct eng_expr *x;

    while (p->at < p->n && p->text[p->at] != '\'')
        p->at++;
    if (p->at == p->n) {
        expected(p, "a closing '");
        return NULL;
    }
    if (!(x = node(p, ENG_X_LITERAL, NULL, NULL)))
        return NULL;
    x->lit.type = ENG_V_STR;
    x->lit.n = p->at - from;
    if (!(x->lit.u.s = arena_strdup(p->a, p->text + from, x->lit.n))) {
        err_set(p->e, ERR_NOMEM, "expression text");
        return NULL;
    }
    p->at++;
    return x;
}

/* Items up to the closing bracket, chained behind list. */
static struct eng_expr *parse_items(struct parser *p, struct eng_expr *list, const char *close)
{
    struct eng_expr **tail = &list->kid[0];

    if (take(p, close))
        return list;
    for (;;) {
        struct eng_expr *x = parse_cond(p);
        if (!x)
            return NULL;
        *tail = x;
        tail = &x->next;
        if (++list->n_kids > 256) {
            err_set(p->e, ERR_LIMIT, "more than 256 items in `%.*s`", (int)(p->n > 200 ? 200 : p->n), p->text);
            return NULL;
        }
        if (take(p, close))
            return list;
        if (!take(p, ",")) {
            expected(p, close[0] == ')' ? "`,` or `)`" : "`,` or `]`");
            return NULL;
        }
    }
}

static struct eng_expr *parse_word(struct parser *p)
{
    size_t from = p->at;
    struct eng_expr *x;

    while (p->at < p->n && word_char(p->text[p->at]))
        p->at++;
    char *w = arena_strdup(p->a, p->text + from, p->at - from);
    if (!w || !(x = node(p, ENG_X_NAME, NULL, NULL))) {
        err_set(p->e, ERR_NOMEM, "expression name");
        return NULL;
    }
    x->name = w;
    if (!strcmp(w, "true") || !strcmp(w, "false")) {
        x->op = ENG_X_LITERAL;
        x->lit = eng_v_bool(w[0] == 't');
    } else if (!strcmp(w, "null")) {
        x->op = ENG_X_LITERAL;
        x->lit.type = ENG_V_NULL;
    } else if (p->at < p->n && p->text[p->at] == '(') {
        if (!eng_expr_is_function(w, strlen(w))) {
            err_set(p->e, ERR_FORMAT, "no function `%s` (known: min, max, floor, ceil, sqrt, log, len, int, cfg, present, has, dim)", w);
            return NULL;
        }
        p->at++;
        x->op = ENG_X_CALL;
        return parse_items(p, x, ")");
    }
    return x;
}

static struct eng_expr *parse_primary(struct parser *p)
{
    struct eng_expr *x;

    blanks(p);
    if (p->at == p->n) {
        expected(p, "an expression");
        return NULL;
    }
    char c = p->text[p->at];
    if (c >= '0' && c <= '9')
        return parse_number(p);
    if (c == '\'')
        return parse_text(p);
    if (word_char(c))
        return parse_word(p);
    if (take(p, "(")) {
        if (!(x = parse_cond(p)))
            return NULL;
        if (!take(p, ")")) {
            expected(p, "`)`");
            return NULL;
        }
        return x;
    }
    if (take(p, "["))
        return (x = node(p, ENG_X_LIST, NULL, NULL)) ? parse_items(p, x, "]") : NULL;
    expected(p, "an expression");
    return NULL;
}

static struct eng_expr *parse_postfix(struct parser *p)
{
    struct eng_expr *x = parse_primary(p);

    while (x) {
        if (take(p, "[")) {
            struct eng_expr *i = parse_cond(p);
            if (!i)
                return NULL;
            if (!take(p, "]")) {
                expected(p, "`]`");
                return NULL;
            }
            x = node(p, ENG_X_INDEX, x, i);
        } else if (p->at + 1 < p->n && p->text[p->at] == '.' && word_char(p->text[p->at + 1])) {
            size_t from = ++p->at;
            while (p->at < p->n && word_char(p->text[p->at]))
                p->at++;
            if ((x = node(p, ENG_X_KEY, x, NULL)) && !(x->name = arena_strdup(p->a, p->text + from, p->at - from)))
                return NULL;
        } else {
            break;
        }
    }
    return x;
}

static struct eng_expr *parse_unary(struct parser *p);
static struct eng_expr *parse_power(struct parser *p)
{
    struct eng_expr *x = parse_postfix(p), *y;

    if (x && take(p, "**"))
        x = (y = parse_unary(p)) ? node(p, ENG_X_POW, x, y) : NULL;
    return x;
}

static struct eng_expr *parse_unary(struct parser *p)
{
    struct eng_expr *x = NULL;

    if (++p->depth > DEPTH_MAX) {
        err_set(p->e, ERR_LIMIT, "expression nested more than %d deep", DEPTH_MAX);
        return NULL;
    }
    if (take(p, "-"))
        x = (x = parse_unary(p)) ? node(p, ENG_X_NEG, x, NULL) : NULL;
    else if (take(p, "!"))
        x = (x = parse_unary(p)) ? node(p, ENG_X_NOT, x, NULL) : NULL;
    else
        x = parse_power(p);
    p->depth--;
    return x;
}

/* Left-associative binary levels, loosest first. */
static const struct { const char *op; enum eng_expr_op code; int level; } binary[] = {
    {"||", ENG_X_OR, 0}, {"&&", ENG_X_AND, 1},
    {"==", ENG_X_EQ, 2}, {"!=", ENG_X_NE, 2}, {"<=", ENG_X_LE, 2}, {">=", ENG_X_GE, 2}, {"<", ENG_X_LT, 2}, {">", ENG_X_GT, 2}, {"in", ENG_X_IN, 2},
    {"+", ENG_X_ADD, 3}, {"-", ENG_X_SUB, 3},
    {"//", ENG_X_IDIV, 4}, {"*", ENG_X_MUL, 4}, {"/", ENG_X_DIV, 4}, {"%", ENG_X_MOD, 4}};
#define LEVELS 5

static struct eng_expr *parse_binary(struct parser *p, int level)
{
    if (level == LEVELS)
        return parse_unary(p);
    struct eng_expr *x = parse_binary(p, level + 1);
    for (size_t i = 0; x && i < sizeof binary / sizeof *binary;) {
        struct eng_expr *y;
        if (binary[i].level != level || !take(p, binary[i].op)) {
            i++;
            continue;
        }
        x = (y = parse_binary(p, level + 1)) ? node(p, binary[i].code, x, y) : NULL;
        i = 0; /* another operator of this level may follow */
    }
    return x;
}

static struct eng_expr *parse_cond(struct parser *p)
{
    struct eng_expr *x, *y, *z;

    if (++p->depth > DEPTH_MAX) {
        err_set(p->e, ERR_LIMIT, "expression nested more than %d deep", DEPTH_MAX);
        return NULL;
    }
    x = parse_binary(p, 0);
    while (x && take(p, "??"))
        x = (y = parse_binary(p, 0)) ? node(p, ENG_X_COAL, x, y) : NULL;
    if (x && take(p, "?")) {
        if (!(y = parse_cond(p)))
            return NULL;
        if (!take(p, ":")) {
            expected(p, "`:`");
            return NULL;
        }
        if (!(z = parse_cond(p)))
            return NULL;
        if ((x = node(p, ENG_X_COND, x, y)))
            x->kid[2] = z;
    }
    p->depth--;
    return x;
}

int eng_expr_parse_at(struct eng_expr **out, const char *text, size_t n, size_t *at, struct arena *a, struct err *e)
{
    struct err own = {0};
    struct parser p = {text, n, *at, 0, a, e ? e : &own};

    p.e->code = ERR_OK;
    *out = parse_cond(&p);
    blanks(&p);
    *at = p.at;
    return *out ? ERR_OK : p.e->code ? p.e->code : err_set(p.e, ERR_NOMEM, "expression tree");
}

int eng_expr_parse(struct eng_expr **out, const char *text, struct arena *a, struct err *e)
{
    size_t n = strlen(text), at = 0;
    int rc = eng_expr_parse_at(out, text, n, &at, a, e);

    if (!rc && at < n) {
        struct parser p = {text, n, at, 0, a, e};
        return expected(&p, "an operator or the end");
    }
    return rc;
}

int eng_expr_parse_list(struct eng_expr **out, const char *text, struct arena *a, struct err *e)
{
    struct err own = {0};
    struct parser p = {text, strlen(text), 0, 0, a, e ? e : &own};
    struct eng_expr *list = node(&p, ENG_X_LIST, NULL, NULL), **tail;

    *out = list;
    if (!list)
        return p.e->code;
    p.e->code = ERR_OK;
    tail = &list->kid[0];
    do {
        struct eng_expr *x = parse_cond(&p);
        if (!x)
            return p.e->code ? p.e->code : err_set(p.e, ERR_NOMEM, "expression tree");
        *tail = x;
        tail = &x->next;
        list->n_kids++;
    } while (take(&p, ","));
    blanks(&p);
    return p.at < p.n ? expected(&p, "`,` or the end") : ERR_OK;
}
