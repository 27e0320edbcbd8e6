/* engine/jinja_stmt.c - statements: bodies, and one function per tag.
 *
 * A body ends at a tag whose word its opener waits for; the parser then stands on that word. Nothing but the tags of Jinja that work
 * without a loader, loop controls and transformers' generation tag is known; include, import, extends and block are refused. */
#include "engine/jinja_internal.h"

#include <string.h>

static struct jnode *statement(struct jparse *p);

static bool end_tag(struct jparse *p, enum j_tok type)
{
    const struct jnode *n = p->unknown;
    p->unknown = NULL;
    if (n && !p->conds && !p->failed) {
        p->failed = true;
        return !j_lex_fail(&p->lx, p->unknown_pos, "there is no %s \"%.*s\"", n->kind == N_TEST ? "test" : "filter",
                           n->val.u.s->n > 60 ? 60 : (int)n->val.u.s->n, n->val.u.s->s);
    }
    if (p->cur.type != type)
        return !j_syntax(p, type == T_OUT_END ? "expected \"}}\"" : "expected \"%%}\"");
    return j_advance(p);
}

static bool one_of(const struct jparse *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (j_is_name(p, *ends))
            return true;
    return false;
}

static struct jnode *text_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_TEXT);
    if (!n)
        return NULL;
    n->val = (jv){.t = J_STR, .u.s = ARENA_NEW(&p->t->mem, struct jstr)};
    if (!n->val.u.s) {
        p->failed = true;
        err_set(p->e, ERR_LIMIT, "the template is too large");
        return NULL;
    }
    *n->val.u.s = (struct jstr){.s = p->cur.s, .n = p->cur.n, .cps = SIZE_MAX, .trusted = true};
    return j_advance(p) ? n : NULL;
}

static struct jnode *out_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_OUT);
    if (!n || !j_advance(p) || !(n->a = j_tuple(p, false, true, false, false)))
        return NULL;
    return end_tag(p, T_OUT_END) ? n : NULL;
}

/* Up to the tag that starts with a word of `ends` (NULL: the end of the template); the parser then stands on the word. */
static struct jnode *body(struct jparse *p, const char *const *ends)
{
    struct jnode *n = j_node(p, N_BODY), *c;
    if (n && p->depth++ >= p->t->lim.depth_max) {
        p->failed = true;
        err_set(p->e, ERR_LIMIT, "template, line %u: blocks are nested too deep", n->line);
    }
    while (!p->failed) {
        switch (p->cur.type) {
        case T_EOF:
            if (!ends) {
                p->depth--;
                return n;
            }
            j_syntax(p, "expected a tag \"%s\"", ends[0]);
            return NULL;
        case T_DATA: c = text_node(p); break;
        case T_OUT: c = out_node(p); break;
        default:
            if (!j_advance(p))
                return NULL;
            if (one_of(p, ends)) {
                p->depth--;
                return n;
            }
            c = statement(p);
        }
        if (!c || !j_push_node(p, &n->v, &n->n, c))
            return NULL;
    }
    return NULL;
}

/* A body up to `end`, with that tag. */
static struct jnode *whole_body(struct jparse *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    struct jnode *n = body(p, ends);
    return n && j_advance(p) && end_tag(p, T_TAG_END) ? n : NULL;
}

/* Tests and bodies take turns in v; a last body without a test is else's. */
static struct jnode *if_node(struct jparse *p)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct jnode *n = j_node(p, N_IF);
    bool more = true;
    while (n && more) {
        if (!j_advance(p) || !j_push_node(p, &n->v, &n->n, j_tuple(p, false, false, false, false)) || !end_tag(p, T_TAG_END))
            return NULL;
        p->conds++;
        if (!j_push_node(p, &n->v, &n->n, body(p, ends)))
            return NULL;
        p->conds--;
        more = j_is_name(p, "elif");
    }
    if (!n)
        return NULL;
    if (j_skip_name(p, "else")) {
        p->conds++;
        if (!end_tag(p, T_TAG_END) || !j_push_node(p, &n->v, &n->n, whole_body(p, "endif")))
            return NULL;
        p->conds--;
        return n;
    }
    return j_advance(p) && end_tag(p, T_TAG_END) ? n : NULL;
}

/* a: target, b: items, c: filter; v[0]: body, v[1]: else. */
static struct jnode *for_node(struct jparse *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *n = j_node(p, N_FOR);
    if (!n || !j_advance(p) || !(n->a = j_target(p, true, false)))
        return NULL;
    if (!j_skip_name(p, "in")) {
        j_syntax(p, "expected \"in\"");
        return NULL;
    }
    if (!(n->b = j_tuple(p, false, false, false, false)))
        return NULL;
    if (j_skip_name(p, "if") && !(n->c = j_expr(p)))
        return NULL;
    n->op = j_skip_name(p, "recursive");
    if (!end_tag(p, T_TAG_END))
        return NULL;
    p->loops++;
    struct jnode *b = body(p, ends);
    p->loops--;
    if (!j_push_node(p, &n->v, &n->n, b))
        return NULL;
    if (j_skip_name(p, "else"))
        return end_tag(p, T_TAG_END) && j_push_node(p, &n->v, &n->n, whole_body(p, "endfor")) ? n : NULL;
    return j_advance(p) && end_tag(p, T_TAG_END) ? n : NULL;
}

static struct jnode *hole_node(struct jparse *p) { return j_node(p, N_HOLE); }

static struct jnode *set_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_SET);
    if (!n || !j_advance(p) || !(n->a = j_target(p, true, true)))
        return NULL;
    if (j_skip_op(p, '='))
        return (n->b = j_tuple(p, false, true, false, false)) && end_tag(p, T_TAG_END) ? n : NULL;
    n->kind = N_SETBLOCK;
    if (!(n->b = j_filters(p, hole_node(p), false)) || !end_tag(p, T_TAG_END) || !(n->c = whole_body(p, "endset")))
        return NULL;
    return n;
}

/* Parameters of a macro: names in v (NAME nodes), defaults of the last ones in kw, in order. */
static bool signature(struct jparse *p, struct jnode *n)
{
    if (!j_expect_op(p, '('))
        return false;
    while (!j_is_op(p, ')')) {
        if (n->n && !j_expect_op(p, ','))
            return false;
        if (n->n >= 255)
            return !j_syntax(p, "expected at most 255 parameters");
        struct jnode *name = p->cur.type == T_NAME ? j_target(p, false, false) : NULL;
        if (!name)
            return !j_syntax(p, "expected a parameter");
        if (j_skip_op(p, '=')) {
            if (!(name->a = j_expr(p)))
                return false;
        } else if (n->n && n->v[n->n - 1]->a) {
            return !j_syntax(p, "expected a default value");
        }
        if (!j_push_node(p, &n->v, &n->n, name))
            return false;
    }
    return j_expect_op(p, ')');
}

/* c: body; its loop controls would leave the macro, so loops count from 0 inside. */
static bool macro_body(struct jparse *p, struct jnode *n, const char *end)
{
    unsigned loops = p->loops;
    uint8_t uses = p->uses;
    if (!end_tag(p, T_TAG_END))
        return false;
    p->loops = p->uses = 0;
    n->c = whole_body(p, end);
    n->op = p->uses;
    p->loops = loops;
    p->uses = uses;
    return n->c != NULL;
}

static struct jnode *macro_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_MACRO), *name;
    if (!n || !j_advance(p))
        return NULL;
    if (p->cur.type != T_NAME) {
        j_syntax(p, "expected a name");
        return NULL;
    }
    if (!(name = j_target(p, false, false)) || !signature(p, n))
        return NULL;
    n->name = name->name;
    return macro_body(p, n, "endmacro") ? n : NULL;
}

/* a: the call, b: the macro that caller() runs. */
static struct jnode *call_block(struct jparse *p)
{
    struct jnode *n = j_node(p, N_CALLBLOCK), *m = j_node(p, N_MACRO);
    if (!m || !j_advance(p) || (j_is_op(p, '(') && !signature(p, m)) || !(n->a = j_expr(p)))
        return NULL;
    if (n->a->kind != N_CALL) {
        j_syntax(p, "expected a call before it");
        return NULL;
    }
    m->name = p->t->id_caller;
    n->b = m;
    return macro_body(p, m, "endcall") ? n : NULL;
}

static struct jnode *filter_block(struct jparse *p)
{
    struct jnode *n = j_node(p, N_FILTERBLOCK);
    if (!n || !j_advance(p) || !(n->b = j_filters(p, hole_node(p), true)) || !end_tag(p, T_TAG_END) || !(n->c = whole_body(p, "endfilter")))
        return NULL;
    return n;
}

/* Targets and values take turns in v. */
static struct jnode *with_node(struct jparse *p)
{
    struct jnode *n = j_node(p, N_WITH);
    if (!n || !j_advance(p))
        return NULL;
    while (p->cur.type != T_TAG_END) {
        if ((n->n && !j_expect_op(p, ',')) || !j_push_node(p, &n->v, &n->n, j_target(p, false, false)) || !j_expect_op(p, '=') ||
            !j_push_node(p, &n->v, &n->n, j_expr(p)))
            return NULL;
    }
    return end_tag(p, T_TAG_END) && (n->c = whole_body(p, "endwith")) ? n : NULL;
}

static struct jnode *loop_control(struct jparse *p, enum j_kind kind)
{
    struct jnode *n = j_node(p, kind);
    if (!p->loops) {
        j_syntax(p, "expected a loop around it");
        return NULL;
    }
    return n && j_advance(p) && end_tag(p, T_TAG_END) ? n : NULL;
}

static struct jnode *scope_node(struct jparse *p, const char *end)
{
    struct jnode *n = j_node(p, N_SCOPE);
    unsigned loops = p->loops;
    if (!n || !j_advance(p) || !end_tag(p, T_TAG_END))
        return NULL;
    p->loops = 0;
    n->c = whole_body(p, end);
    p->loops = loops;
    return n->c ? n : NULL;
}

static struct jnode *statement(struct jparse *p)
{
    static const struct { const char *word; struct jnode *(*parse)(struct jparse *p); } tags[] = {
        {"if", if_node}, {"for", for_node}, {"set", set_node}, {"macro", macro_node}, {"call", call_block},
        {"filter", filter_block}, {"with", with_node},
    };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (j_is_name(p, tags[i].word))
            return tags[i].parse(p);
    if (j_is_name(p, "break"))
        return loop_control(p, N_BREAK);
    if (j_is_name(p, "continue"))
        return loop_control(p, N_CONTINUE);
    if (j_is_name(p, "generation"))
        return scope_node(p, "endgeneration");
    j_syntax(p, "expected a tag that is known");
    return NULL;
}

struct jnode *j_template(struct jparse *p)
{
    p->cur = (struct jtoken){.type = T_DATA};
    if (!j_lex(&p->lx, &p->next)) {
        p->failed = true;
        return NULL;
    }
    return j_advance(p) ? body(p, NULL) : NULL;
}
