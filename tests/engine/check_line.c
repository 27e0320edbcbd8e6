/* Lines: what they parse to, what is refused and how it is said. */
#include <string.h>
#include <unistd.h>

#include "engine/check.h"
#include "engine/line.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct arena a;
static struct err e;

static struct eng_line *parse(const char *text)
{
    struct eng_line *l;
    arena_init(&a, 1 << 20);
    OK(eng_line_parse(&l, text, &a, &e));
    return l;
}

START_TEST(core)
{
    struct eng_line *l = parse("a = linear(attend(rope(q), rope(k), v, $kv, scale = hd ** -0.5), @o)");
    ck_assert_int_eq(l->kind, ENG_LINE_SET);
    ck_assert_uint_eq(l->n_regs, 1);
    ck_assert_str_eq(l->regs[0], "a");
    const struct eng_arg *lin = l->value, *att = lin->args, *w = att->next;
    ck_assert(lin->kind == ENG_ARG_CALL && lin->op->code == KRN_LINEAR && lin->n_args == 2);
    ck_assert(w->kind == ENG_ARG_WEIGHT && !strcmp(w->name, "o") && !w->next);
    ck_assert(att->kind == ENG_ARG_CALL && att->op->code == KRN_ATTEND && att->n_args == 4);
    const struct eng_arg *v = att->args->next->next, *kv = v->next;
    ck_assert(v->kind == ENG_ARG_EXPR && !strcmp(v->name, "v"));
    ck_assert(kv->kind == ENG_ARG_STATE && !strcmp(kv->name, "kv"));
    ck_assert(att->attrs && !strcmp(att->attrs->attr, "scale") && att->attrs->kind == ENG_ARG_EXPR && !att->attrs->name);
    arena_free(&a);

    l = parse(" qn , qr = split(heads(q, nope + rd), nope, rd) ");
    ck_assert_uint_eq(l->n_regs, 2);
    ck_assert_str_eq(l->regs[1], "qr");
    ck_assert_uint_eq(l->value->n_args, 3);
    arena_free(&a);

    l = parse("use glu_ffn");
    ck_assert(l->kind == ENG_LINE_USE && !strcmp(l->block, "glu_ffn"));
    arena_free(&a);
    l = parse("layers");
    ck_assert(l->kind == ENG_LINE_WORD && !strcmp(l->block, "layers"));
    arena_free(&a);
    l = parse("x = a");
    ck_assert(l->kind == ENG_LINE_SET && l->value->kind == ENG_ARG_EXPR && !strcmp(l->value->name, "a"));
    arena_free(&a);
    l = parse("B = bank()");
    ck_assert(l->value->kind == ENG_ARG_CALL && l->value->n_args == 0);
    arena_free(&a);
    l = parse("r = route(h, @router, kind = a == 1 ? 'softmax' : 'sigmoid', k = max(top_k, 1), bias = @b)");
    const struct eng_arg *kind = l->value->attrs;
    ck_assert(kind->expr->op == ENG_X_COND && kind->next->expr->op == ENG_X_CALL && kind->next->next->kind == ENG_ARG_WEIGHT);
    arena_free(&a);
}
END_TEST

static const struct { const char *text; int code; const char *says; } bad[] = {
    {"q = heads(linear(h, @q) hd)", ERR_FORMAT, "expected `,` or `)` at column 25 of `q = heads(linear(h, @q) hd)`"},
    {"f = linear(swish(g), @down)", ERR_UNSUPPORTED, "no operator `swish` (known: add, attend, attend_mla, "},
    {"q = ", ERR_FORMAT, "expected an expression at column 5"},
    {"q", ERR_OK, ""},
    {"q r = add(a, b)", ERR_FORMAT, "expected `,` or `=`"},
    {"= add(a, b)", ERR_FORMAT, "expected a register name at column 1"},
    {"x = add(a, b) c", ERR_FORMAT, "expected the end of the line"},
    {"x = add(a, b", ERR_FORMAT, "expected `,` or `)`"},
    {"x = linear(h, @)", ERR_FORMAT, "expected a tensor name after @"},
    {"x = attend(q, k, v, $)", ERR_FORMAT, "expected a state name after $"},
    {"x = rmsnorm(x, eps = 1, @w)", ERR_FORMAT, "an argument of rmsnorm follows an attribute"},
    {"use ", ERR_FORMAT, "expected a block name"},
    {"use a b", ERR_FORMAT, "expected the end of the line"},
    {"", ERR_FORMAT, "expected a register name"},
    {"x = 1 + linear(h, @q)", ERR_FORMAT, "no function `linear`"},
    {"a, b, c, d, e, f, g, h, i = split(x, 1)", ERR_LIMIT, "more than 8 registers"}};

START_TEST(errors)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct eng_line *l;
        arena_init(&a, 1 << 20);
        e = (struct err){0};
        int rc = eng_line_parse(&l, bad[i].text, &a, &e);
        ck_assert_msg(rc == bad[i].code && strstr(e.msg, bad[i].says), "%s: expected %d `%s`, found %d `%s`", bad[i].text, bad[i].code, bad[i].says, rc, e.msg);
        arena_free(&a);
    }
}
END_TEST

START_TEST(limits)
{
    char text[4096] = "x = ";
    struct eng_line *l;
    for (int i = 0; i < 200; i++)
        strcat(text, "silu(");
    arena_init(&a, 1 << 20);
    ck_assert_int_eq(eng_line_parse(&l, text, &a, &e), ERR_LIMIT);
    arena_free(&a);
    arena_init(&a, 200);
    ck_assert_int_eq(eng_line_parse(&l, "x = add(silu(a), silu(b))", &a, &e), ERR_NOMEM);
    arena_free(&a);
    /* The registry: sorted, every attribute's default is an expression, words where there must be words. */
    for (size_t i = 0; i < eng_n_ops; i++) {
        if (i)
            ck_assert_str_lt(eng_ops[i - 1].name, eng_ops[i].name);
        ck_assert_ptr_eq(eng_op_find(eng_ops[i].name, strlen(eng_ops[i].name)), &eng_ops[i]);
        for (const struct eng_attr *at = eng_ops[i].attrs; at < eng_ops[i].attrs + ENG_OP_ATTRS && at->name; at++) {
            struct eng_expr *x;
            arena_init(&a, 1 << 16);
            ck_assert((at->kind == ENG_ATTR_WORD) == (at->words != NULL));
            if (at->dflt)
                ck_assert_int_eq(eng_expr_parse(&x, at->dflt, &a, &e), ERR_OK);
            arena_free(&a);
        }
    }
    ck_assert_int_eq(eng_op_word("silu gelu gelu_pytorch_tanh", "gelu", 4), 1);
    ck_assert_int_eq(eng_op_word("silu gelu gelu_pytorch_tanh", "gelu_pytorch_tanh", 17), 2);
    ck_assert_int_eq(eng_op_word("silu gelu", "swish", 5), -1);
}
END_TEST

START_TEST(page)
{
    struct buf b;
    size_t n;
    if (access("docs/operators.md", R_OK)) {
        puts("SKIP page: docs/operators.md is not below the working directory");
        return;
    }
    char *text = mm_read("docs/operators.md", &n), *body = strstr(text, "### ");
    buf_init(&b, 1 << 20);
    ck_assert(eng_check_page(&b));
    ck_assert_ptr_nonnull(body);
    ck_assert_msg(!strcmp(body, b.data), "docs/operators.md is not what the program says: put the output of `sluice check --operators` below its head");
    buf_free(&b);
    free(text);
}
END_TEST

SUITE("engine", "line", core, errors, limits, page)
