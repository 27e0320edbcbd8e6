/* engine/jinja_operand.c - operands of expressions: names, literals, calls, subscripts, filters and tests. */
#include "engine/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

static bool name_text(struct jparse *p, jv *out)
{
    struct jstr *s = ARENA_NEW(&p->t->mem, struct jstr);
    if (!s) {
        j_parse_fail(p, ERR_LIMIT, "the template is too large");
        return false;
    }
    *s = (struct jstr){.s = p->cur.s, .n = p->cur.n, .cps = SIZE_MAX, .trusted = true};
    j_cps(s); /* now: a render may not write into the tree */
    *out = (jv){.t = J_STR, .u.s = s};
    return true;
}

static struct jnode *name_node(struct jparse *p, enum j_kind kind)
{
    struct jnode *n = j_node(p, kind);
    if (!n)
        return NULL;
    if ((n->name = j_name_id(p->t, p->cur.s, p->cur.n)) == UINT32_MAX)
        return j_parse_fail(p, ERR_LIMIT, "the template is too large");
    p->uses |= (uint8_t)((n->name == p->t->id_varargs ? USES_VARARGS : 0) | (n->name == p->t->id_kwargs ? USES_KWARGS : 0) |
                         (n->name == p->t->id_caller ? USES_CALLER : 0));
    return j_advance(p) ? n : NULL;
}

/* Adjacent strings are one. */
static struct jnode *string_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_CONST);
    if (!n || !name_text(p, &n->val) || !j_advance(p))
        return NULL;
    while (p->cur.type == T_STR) {
        struct jstr *s = n->val.u.s;
        char *text = arena_alloc(&p->t->mem, s->n + p->cur.n + 1);
        if (!text)
            return j_parse_fail(p, ERR_LIMIT, "the template is too large");
        memcpy(text, s->s, s->n);
        memcpy(text + s->n, p->cur.s, p->cur.n);
        *s = (struct jstr){.s = text, .n = s->n + p->cur.n, .cps = SIZE_MAX, .trusted = true};
        j_cps(s);
        if (!j_advance(p))
            return NULL;
    }
    return n;
}

static struct jnode *number_node(struct jparse *p)
{
    enum { DIGITS_MAX = 4300 }; /* as Python's ceiling for text to integer */
    struct jnode *n = j_node(p, N_CONST);
    if (!n)
        return NULL;
    char *text = arena_alloc(&p->t->mem, p->cur.n + 1);
    if (!text)
        return j_parse_fail(p, ERR_LIMIT, "the template is too large");
    size_t len = 0;
    for (size_t i = 0; i < p->cur.n; i++)
        if (p->cur.s[i] != '_')
            text[len++] = p->cur.s[i];
    if (p->cur.type == T_FLOAT) {
        n->val = j_float(strtod(text, NULL));
        return j_advance(p) ? n : NULL;
    }
    if (len > DIGITS_MAX)
        return j_parse_fail(p, ERR_LIMIT, "the integer has more than 4300 digits");
    int base = len > 1 && text[0] == '0' ? ((text[1] | 32) == 'x' ? 16 : (text[1] | 32) == 'o' ? 8 : (text[1] | 32) == 'b' ? 2 : 10) : 10;
    size_t skip = base == 10 ? 0 : 2;
    bool big = false;
    int64_t v = 0;
    if (base == 10 && len > 1 && text[0] == '0' && strspn(text, "0") != len)
        return j_parse_fail(p, ERR_FORMAT, "an integer starts with 0");
    if (!j_parse_int(text + skip, len - skip, base, &v, &big) || (big && base != 10))
        return j_parse_fail(p, ERR_FORMAT, "the integer is beyond 64 bits");
    n->val = j_int(v);
    if (big) {
        struct jtoken keep = p->cur;
        p->cur.s = text;
        p->cur.n = len;
        if (!name_text(p, &n->val))
            return NULL;
        n->val.t = J_BIG;
        p->cur = keep;
    }
    return j_advance(p) ? n : NULL;
}

static bool expr_into(struct jparse *p, struct jnode *n)
{
    return j_push_node(p, &n->v, &n->n, j_expr(p));
}

static struct jnode *list_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_LIST);
    if (!n || !j_advance(p))
        return NULL;
    while (!j_is_op(p, ']')) {
        if (n->n && !j_expect_op(p, ','))
            return NULL;
        if (j_is_op(p, ']'))
            break;
        if (!expr_into(p, n))
            return NULL;
    }
    return j_advance(p) ? n : NULL;
}

/* Keys and values take turns in v. */
static struct jnode *dict_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_DICT);
    if (!n || !j_advance(p))
        return NULL;
    while (!j_is_op(p, '}')) {
        if (n->n && !j_expect_op(p, ','))
            return NULL;
        if (j_is_op(p, '}'))
            break;
        if (!expr_into(p, n) || !j_expect_op(p, ':') || !expr_into(p, n))
            return NULL;
    }
    return j_advance(p) ? n : NULL;
}

static struct jnode *const_node(struct jparse *p, jv v)
{
    struct jnode *n = j_node(p, N_CONST);
    if (!n)
        return NULL;
    n->val = v;
    return j_advance(p) ? n : NULL;
}

struct jnode *j_primary(struct jparse *p, bool ns)
{
    struct jnode *n;
    switch (p->cur.type) {
    case T_NAME:
        if (j_is_name(p, "true") || j_is_name(p, "True"))
            return const_node(p, j_bool(true));
        if (j_is_name(p, "false") || j_is_name(p, "False"))
            return const_node(p, j_bool(false));
        if (j_is_name(p, "none") || j_is_name(p, "None"))
            return const_node(p, j_none());
        if (!(n = name_node(p, N_NAME)) || !ns || !j_skip_op(p, '.'))
            return p->failed ? NULL : n;
        n->kind = N_NSREF;
        if (p->cur.type != T_NAME) {
            j_syntax(p, "expected an attribute");
            return NULL;
        }
        return name_text(p, &n->val) && j_advance(p) ? n : NULL;
    case T_STR: return string_node(p);
    case T_INT: case T_FLOAT: return number_node(p);
    case T_OP:
        if (p->cur.op == '(') {
            if (!j_advance(p) || !(n = j_tuple(p, false, true, true, false)) || !j_expect_op(p, ')'))
                return NULL;
            return n;
        }
        if (p->cur.op == '[')
            return list_node(p);
        if (p->cur.op == '{')
            return dict_node(p);
        break;
    default: break;
    }
    j_syntax(p, "expected an expression");
    return NULL;
}

/* Arguments between the parentheses that start here; *x goes to b, **x to c. */
static bool call_args(struct jparse *p, struct jnode *n)
{
    if (!j_expect_op(p, '('))
        return false;
    for (bool first = true; !j_is_op(p, ')'); first = false) {
        if (!first && !j_expect_op(p, ','))
            return false;
        if (j_is_op(p, ')'))
            break;
        if (j_skip_op(p, T2('*'))) {
            if (n->c || !(n->c = j_expr(p)))
                return n->c && !p->failed ? !j_syntax(p, "expected one ** argument at most") : false;
        } else if (j_skip_op(p, '*')) {
            if (n->b || n->c || !(n->b = j_expr(p)))
                return n->b && !p->failed ? !j_syntax(p, "expected one * argument at most") : false;
        } else if (p->cur.type == T_NAME && p->next.type == T_OP && p->next.op == '=') {
            struct jkw kw = {.name = p->cur.s, .len = p->cur.n, .id = j_name_id(p->t, p->cur.s, p->cur.n)};
            for (uint32_t i = 0; i < n->n_kw; i++)
                if (n->kw[i].len == kw.len && !memcmp(n->kw[i].name, kw.name, kw.len))
                    return !j_syntax(p, "expected each keyword once");
            if (n->c)
                return !j_syntax(p, "expected no keyword after **");
            if (!j_advance(p) || !j_advance(p) || !(kw.v = j_expr(p)))
                return false;
            if (!(n->n_kw & (n->n_kw - 1))) {
                if (n->n_kw >= 256)
                    return j_parse_fail(p, ERR_LIMIT, "more than 256 keyword arguments") != NULL;
                struct jkw *more = ARENA_ARRAY(&p->t->mem, struct jkw, n->n_kw ? (size_t)n->n_kw * 2 : 1);
                if (!more)
                    return j_parse_fail(p, ERR_LIMIT, "the template is too large") != NULL;
                if (n->n_kw)
                    memcpy(more, n->kw, n->n_kw * sizeof *more);
                n->kw = more;
            }
            n->kw[n->n_kw++] = kw;
        } else {
            if (n->n_kw || n->b || n->c)
                return !j_syntax(p, "expected no positional argument after keywords");
            if (!expr_into(p, n))
                return false;
        }
    }
    return j_expect_op(p, ')');
}

static struct jnode *call_node(struct jparse *p, struct jnode *a)
{
    struct jnode *n = j_node(p, N_CALL);
    if (!n || !call_args(p, n))
        return NULL;
    n->a = a;
    return n;
}

static struct jnode *slice_or_item(struct jparse *p, struct jnode *a)
{
    struct jnode *part[3] = {NULL, NULL, NULL}, *n = j_node(p, N_ITEM);
    int colons = 0;
    if (!n)
        return NULL;
    while (!j_is_op(p, ']')) {
        if (j_is_op(p, ':') && colons < 2) {
            colons++;
            if (!j_advance(p))
                return NULL;
            continue;
        }
        if (part[colons]) {
            j_syntax(p, colons ? "expected \":\" or \"]\"" : "expected \"]\"");
            return NULL;
        }
        if (!(part[colons] = colons ? j_expr(p) : j_tuple(p, false, true, false, false)))
            return NULL;
    }
    if (!colons && !part[0]) {
        j_syntax(p, "expected an index");
        return NULL;
    }
    if (!j_advance(p))
        return NULL;
    if (!colons) {
        n->a = a;
        n->b = part[0];
        return n;
    }
    n->kind = N_SLICE;
    n->a = a;
    if (!(n->v = ARENA_ARRAY(&p->t->mem, struct jnode *, 3)))
        return j_parse_fail(p, ERR_LIMIT, "the template is too large");
    memcpy(n->v, part, sizeof part);
    n->n = 3;
    return n;
}

static struct jnode *attr_node(struct jparse *p, struct jnode *a)
{
    struct jnode *n = j_node(p, N_ATTR);
    if (!n || !j_advance(p))
        return NULL;
    n->a = a;
    if (p->cur.type == T_NAME)
        return name_text(p, &n->val) && j_advance(p) ? n : NULL;
    if (p->cur.type != T_INT) {
        j_syntax(p, "expected a name or a number after \".\"");
        return NULL;
    }
    n->kind = N_ITEM;
    n->b = number_node(p);
    return n->b ? n : NULL;
}

struct jnode *j_postfix(struct jparse *p, struct jnode *a)
{
    while (a && p->cur.type == T_OP && !p->failed) {
        if (p->cur.op == '.')
            a = attr_node(p, a);
        else if (p->cur.op == '[')
            a = j_advance(p) ? slice_or_item(p, a) : NULL;
        else if (p->cur.op == '(')
            a = call_node(p, a);
        else
            break;
    }
    return p->failed ? NULL : a;
}

/* "name.name": the words of a filter or test, as one text. */
static bool dotted(struct jparse *p, struct jnode *n)
{
    if (p->cur.type != T_NAME)
        return !j_syntax(p, "expected a name");
    if (!name_text(p, &n->val) || !j_advance(p))
        return false;
    while (j_skip_op(p, '.')) {
        if (p->cur.type != T_NAME)
            return !j_syntax(p, "expected a name");
        struct jstr *s = n->val.u.s;
        char *text = arena_alloc(&p->t->mem, s->n + p->cur.n + 2);
        if (!text)
            return j_parse_fail(p, ERR_LIMIT, "the template is too large") != NULL;
        memcpy(text, s->s, s->n);
        text[s->n] = '.';
        memcpy(text + s->n + 1, p->cur.s, p->cur.n);
        *s = (struct jstr){.s = text, .n = s->n + 1 + p->cur.n, .cps = SIZE_MAX, .trusted = true};
        j_cps(s);
        if (!j_advance(p))
            return false;
    }
    return !p->failed;
}

/* An unknown name is remembered: an error where the tag ends, unless a condition may keep it from ever running. */
static void note_unknown(struct jparse *p, const struct jnode *n, size_t pos)
{
    if (!n->fn && !p->unknown) {
        p->unknown = n;
        p->unknown_pos = pos;
    }
}

static struct jnode *filter_node(struct jparse *p, struct jnode *a)
{
    struct jnode *n = j_node(p, N_FILTER);
    size_t pos = p->cur.pos;
    if (!n || !dotted(p, n))
        return NULL;
    n->a = a;
    n->fn = j_filter(n->val.u.s->s, n->val.u.s->n);
    note_unknown(p, n, pos);
    return j_is_op(p, '(') && !call_args(p, n) ? NULL : n;
}

static struct jnode *test_node(struct jparse *p, struct jnode *a)
{
    struct jnode *n = j_node(p, N_TEST), *arg;
    if (!n || !j_advance(p))
        return NULL;
    bool negated = j_skip_name(p, "not");
    size_t pos = p->cur.pos;
    if (!dotted(p, n))
        return NULL;
    n->a = a;
    n->fn = j_test(n->val.u.s->s, n->val.u.s->n);
    note_unknown(p, n, pos);
    if (j_is_op(p, '(')) {
        if (!call_args(p, n))
            return NULL;
    } else if (j_is_name(p, "is")) {
        j_syntax(p, "expected one test after \"is\"");
        return NULL;
    } else if ((p->cur.type >= T_NAME && p->cur.type <= T_FLOAT && !j_is_name(p, "else") && !j_is_name(p, "or") && !j_is_name(p, "and")) ||
               j_is_op(p, '[') || j_is_op(p, '{')) {
        if (!(arg = j_postfix(p, j_primary(p, false))) || !j_push_node(p, &n->v, &n->n, arg))
            return NULL;
    }
    if (!negated)
        return n;
    struct jnode *no = j_node(p, N_NOT);
    if (no)
        no->a = n;
    return no;
}

/* start_inline: the first filter has no bar before it, as in {% filter upper %}. */
struct jnode *j_filters(struct jparse *p, struct jnode *a, bool start_inline)
{
    if (start_inline)
        a = filter_node(p, a);
    while (a && !p->failed) {
        if (j_is_op(p, '|'))
            a = j_advance(p) ? filter_node(p, a) : NULL;
        else if (j_is_name(p, "is"))
            a = test_node(p, a);
        else if (j_is_op(p, '('))
            a = call_node(p, a);
        else
            break;
    }
    return p->failed ? NULL : a;
}
