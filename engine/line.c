#include "engine/line.h"

#include <string.h>

#define DEPTH_MAX 32

struct parser {
    const char *text;
    size_t n, at;
    unsigned depth;
    struct arena *a;
    struct err *e;
};

static int expected(struct parser *p, const char *what)
{
    return err_set(p->e, ERR_FORMAT, "expected %s at column %zu of `%.*s`", what, p->at + 1, (int)(p->n > 200 ? 200 : p->n), p->text);
}

static void blanks(struct parser *p)
{
    while (p->at < p->n && (p->text[p->at] == ' ' || p->text[p->at] == '\t'))
        p->at++;
}

static bool take(struct parser *p, char c)
{
    blanks(p);
    if (p->at == p->n || p->text[p->at] != c)
        return false;
    p->at++;
    return true;
}

static size_t word_len(const char *s, size_t n)
{
    size_t i = 0;

    while (i < n && ((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || s[i] == '_' || (i && s[i] >= '0' && s[i] <= '9')))
        i++;
    return i;
}

static const char *take_word(struct parser *p, const char *what)
{
    blanks(p);
    size_t n = word_len(p->text + p->at, p->n - p->at);
    const char *w;

    if (!n) {
        expected(p, what);
        return NULL;
    }
    if (!(w = arena_strdup(p->a, p->text + p->at, n)))
        err_set(p->e, ERR_NOMEM, "line");
    p->at += n;
    return w;
}

static struct eng_arg *parse_arg(struct parser *p);

/* `name =` but not `name ==`: moves past it. */
static const char *take_attr(struct parser *p)
{
    blanks(p);
    size_t n = word_len(p->text + p->at, p->n - p->at), i = p->at + n;
    const char *w;

    while (i < p->n && p->text[i] == ' ')
        i++;
    if (!n || i >= p->n || p->text[i] != '=' || (i + 1 < p->n && p->text[i + 1] == '='))
        return NULL;
    if (!(w = arena_strdup(p->a, p->text + p->at, n)))
        err_set(p->e, ERR_NOMEM, "line");
    p->at = i + 1;
    return w;
}

static struct eng_arg *parse_call(struct parser *p, struct eng_arg *call)
{
    struct eng_arg **args = &call->args, **attrs = &call->attrs;

    if (take(p, ')'))
        return call;
    for (;;) {
        const char *attr = take_attr(p);
        struct eng_arg *x = parse_arg(p);
        if (!x)
            return NULL;
        if (attr) {
            x->attr = attr;
            *attrs = x;
            attrs = &x->next;
        } else {
            if (call->attrs) {
                err_set(p->e, ERR_FORMAT, "an argument of %s follows an attribute in `%.*s`", call->op->name, (int)(p->n > 200 ? 200 : p->n), p->text);
                return NULL;
            }
            *args = x;
            args = &x->next;
            call->n_args++;
        }
        if (take(p, ')'))
            return call;
        if (!take(p, ',')) {
            expected(p, "`,` or `)`");
            return NULL;
        }
    }
}

static struct eng_arg *parse_named(struct parser *p, struct eng_arg *x, enum eng_arg_kind kind)
{
    p->at++;
    x->kind = kind;
    x->name = take_word(p, kind == ENG_ARG_WEIGHT ? "a tensor name after @" : "a state name after $");
    return x->name ? x : NULL;
}

static struct eng_arg *parse_arg(struct parser *p)
{
    struct eng_arg *x = ARENA_NEW(p->a, struct eng_arg);
    char known[400];

    if (!x) {
        err_set(p->e, ERR_NOMEM, "line");
        return NULL;
    }
    if (++p->depth > DEPTH_MAX) {
        err_set(p->e, ERR_LIMIT, "calls nested more than %d deep in `%.*s`", DEPTH_MAX, (int)(p->n > 200 ? 200 : p->n), p->text);
        return NULL;
    }
    blanks(p);
    const char *s = p->text + p->at;
    size_t n = word_len(s, p->n - p->at);
    if (p->at < p->n && (*s == '@' || *s == '$')) {
        x = parse_named(p, x, *s == '@' ? ENG_ARG_WEIGHT : ENG_ARG_STATE);
    } else if (n && p->at + n < p->n && s[n] == '(' && !eng_expr_is_function(s, n)) {
        x->kind = ENG_ARG_CALL;
        if (!(x->op = eng_op_find(s, n))) {
            eng_op_names(known, sizeof known);
            err_set(p->e, ERR_UNSUPPORTED, "no operator `%.*s` (known: %s)", (int)(n > 60 ? 60 : n), s, known);
            return NULL;
        }
        p->at += n + 1;
        x = parse_call(p, x);
    } else {
        x->kind = ENG_ARG_EXPR;
        if (eng_expr_parse_at(&x->expr, p->text, p->n, &p->at, p->a, p->e))
            return NULL;
        x->name = x->expr->op == ENG_X_NAME ? x->expr->name : NULL;
    }
    p->depth--;
    return x;
}

static int parse_set(struct parser *p, struct eng_line *l)
{
    l->kind = ENG_LINE_SET;
    do {
        if (l->n_regs == ENG_LINE_REGS)
            return err_set(p->e, ERR_LIMIT, "more than %d registers before `=`", ENG_LINE_REGS);
        if (!(l->regs[l->n_regs++] = take_word(p, "a register name")))
            return p->e->code;
    } while (take(p, ','));
    if (!take(p, '='))
        return expected(p, "`,` or `=`");
    if (!(l->value = parse_arg(p)))
        return p->e->code;
    blanks(p);
    return p->at < p->n ? expected(p, "the end of the line") : ERR_OK;
}

int eng_line_parse(struct eng_line **out, const char *text, struct arena *a, struct err *e)
{
    struct err own = {0};
    struct parser p = {text, strlen(text), 0, 0, a, e ? e : &own};
    struct eng_line *l = ARENA_NEW(a, struct eng_line);
    size_t n;

    *out = l;
    if (!l)
        return err_set(e, ERR_NOMEM, "line");
    blanks(&p);
    n = word_len(text + p.at, p.n - p.at);
    if (n == 3 && !memcmp(text + p.at, "use", 3) && text[p.at + 3] == ' ') {
        p.at += 3;
        l->kind = ENG_LINE_USE;
        if (!(l->block = take_word(&p, "a block name")))
            return p.e->code;
    } else if (n && p.at + n == p.n) {
        l->kind = ENG_LINE_WORD;
        l->block = take_word(&p, "a word");
        return l->block ? ERR_OK : p.e->code;
    } else {
        return parse_set(&p, l);
    }
    blanks(&p);
    return p.at < p.n ? expected(&p, "the end of the line") : ERR_OK;
}
