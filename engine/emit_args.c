/* What a call says: arguments by the registry's letters, attributes from the call, the sheet's defaults, or the registry. */
#include "engine/emit_internal.h"

#include <float.h>
#include <string.h>

static int bad_arg(struct eng_operands *o, unsigned i, const char *what)
{
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u: expected %s", o->op->name, i + 1, what);
}

static int bad_value(struct eng_operands *o, unsigned i, const char *what, const struct eng_value *v)
{
    char text[80];

    eng_v_show(v, text, sizeof text);
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u: expected %s, found %s", o->op->name, i + 1, what, text);
}

static int read_register(struct eng_operands *o, const struct eng_arg *a, unsigned i, char letter)
{
    struct eng_val v[ENG_VALS_MAX];
    unsigned n = 0;
    static const char *const what[] = {"a register", "a list register", "what route gives", "tok"};
    enum eng_val_kind want = letter == 'B' ? ENG_VAL_LIST : letter == 'R' ? ENG_VAL_ROUTING : letter == 't' ? ENG_VAL_TOKENS : ENG_VAL_REG;
    int rc;

    if (a->kind != ENG_ARG_CALL && !a->name)
        return bad_arg(o, i, what[want]);
    if (a->kind == ENG_ARG_WEIGHT || a->kind == ENG_ARG_STATE)
        return bad_arg(o, i, what[want]);
    rc = eng_compile_arg(o->c, a, v, &n, o->e);
    if (rc)
        return rc;
    if (n != 1 || v[0].kind != want)
        return bad_arg(o, i, what[want]);
    if (letter != 't')
        o->reg[o->n_regs++] = v[0];
    return ERR_OK;
}

static int read_weight(struct eng_operands *o, const struct eng_arg *a, unsigned i)
{
    int rc;

    if (a->kind != ENG_ARG_WEIGHT || o->n_w == KRN_OP_WEIGHTS)
        return bad_arg(o, i, "a tensor (@name)");
    o->w_name[o->n_w] = a->name;
    if ((rc = eng_bind(&o->c->b, a->name, &o->w[o->n_w++], o->e)))
        return rc == ERR_NOTFOUND ? eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: no tensor `@%s` in sheet %s", o->op->name, a->name, o->c->env.sheet_name) : rc;
    return ERR_OK;
}

static int eval(struct eng_operands *o, const struct eng_arg *a, struct eng_value *v)
{
    int rc = eng_env_eval(&o->c->env, a->expr, v, o->e);

    if (rc == ERR_NOTFOUND && a->name)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "`%s` is neither a parameter nor a register set by an earlier line", a->name);
    return rc ? eng_compile_at(o->c, o->e, rc, "%s", o->e ? o->e->msg : "expression") : ERR_OK;
}

static int read_number(struct eng_operands *o, const struct eng_arg *a, unsigned i, char letter, bool optional)
{
    struct eng_value v;
    double x = 0;
    int64_t n;
    int rc;

    if (a->kind != ENG_ARG_EXPR)
        return bad_arg(o, i, "a number");
    if ((rc = eval(o, a, &v)))
        return rc;
    o->null[o->n_nums] = v.type == ENG_V_NULL;
    if (letter == 'q') {
        if (v.type != ENG_V_STR)
            return bad_arg(o, i, "a text in quotes");
        o->text = v.u.s;
        return ERR_OK;
    }
    if (!(v.type == ENG_V_NULL && optional) && (!eng_v_number(&v, &x) || (letter == 'n' && (!eng_v_integer(&v, &n) || n < 1 || n > INT32_MAX))))
        return bad_value(o, i, letter == 'n' ? "a count" : "a number", &v);
    o->num[o->n_nums++] = x;
    return ERR_OK;
}

int eng_emit_args(struct eng_operands *o, const struct eng_arg *src)
{
    const char *p = o->op->args;
    const struct eng_arg *a = src->args;
    int rc = ERR_OK;

    for (unsigned i = 0; *p && !rc; i++) {
        char letter = *p;
        bool optional = p[1] == '?', many = p[1] == '*';
        if (i == ENG_ARGS_MAX)
            return err_set(o->e, ERR_LIMIT, "%s: more than %d arguments", o->op->name, ENG_ARGS_MAX);
        if (!a) {
            if (optional || (many && i > 0)) {
                if (letter == 'f')
                    o->null[o->n_nums++] = true;
                p += 2;
                continue;
            }
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: argument %u is missing", o->op->name, i + 1);
        }
        if (letter == 'w')
            rc = read_weight(o, a, i);
        else if (letter == 's')
            rc = a->kind == ENG_ARG_STATE ? (o->state = a->name, ERR_OK) : bad_arg(o, i, "a state ($name)");
        else if (letter == 'n' || letter == 'f' || letter == 'q')
            rc = read_number(o, a, i, letter, optional);
        else
            rc = read_register(o, a, i, letter);
        a = a->next;
        if (!many)
            p += optional ? 2 : 1;
    }
    if (!rc && a)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: more arguments than it takes", o->op->name);
    return rc;
}

/* The text of an attribute's value: from the call, the sheet's defaults, or the registry. */
static int attr_weight(struct eng_operands *o, const struct eng_arg *a, struct eng_attr_val *out)
{
    int rc;

    out->w.absent = true;
    if (!a || a->kind == ENG_ARG_EXPR)
        return ERR_OK; /* null */
    if (a->kind != ENG_ARG_WEIGHT)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: expected a tensor (@name)", o->op->name, a->attr);
    if ((rc = eng_bind(&o->c->b, a->name, &out->w, o->e)))
        return rc == ERR_NOTFOUND ? eng_compile_at(o->c, o->e, ERR_FORMAT, "no tensor `@%s` in sheet %s", a->name, o->c->env.sheet_name) : rc;
    return ERR_OK;
}

static int attr_value(struct eng_operands *o, const struct eng_attr *d, const struct eng_value *v, struct eng_attr_val *out)
{
    char text[80];
    int64_t i;
    int word = -1;
    bool bounded = d->most > d->least;

    eng_v_show(v, text, sizeof text);
    switch (d->kind) {
    case ENG_ATTR_NUM:
        if (!eng_v_number(v, &out->num))
            break;
        if (out->num < (bounded ? d->least : -FLT_MAX) || out->num > (bounded ? d->most : FLT_MAX))
            return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: expected a number from %.9g to %.9g, found %s", o->op->name, d->name, bounded ? d->least : -FLT_MAX,
                                  bounded ? d->most : FLT_MAX, text);
        return ERR_OK;
    case ENG_ATTR_INT:
        if (eng_v_integer(v, &i) && i >= 0 && i <= UINT32_MAX) {
            out->num = (double)i;
            return ERR_OK;
        }
        break;
    case ENG_ATTR_BOOL:
        if (v->type == ENG_V_BOOL || v->type == ENG_V_INT) {
            out->num = eng_v_truth(v);
            return ERR_OK;
        }
        break;
    case ENG_ATTR_WORD:
        if (v->type == ENG_V_STR && (word = eng_op_word(d->words, v->u.s, v->n)) >= 0) {
            out->num = word;
            return ERR_OK;
        }
        return eng_compile_at(o->c, o->e, ERR_UNSUPPORTED, "%s: %s: expected one of %s, found %s", o->op->name, d->name, d->words, text);
    default:
        if (v->type == ENG_V_STR) {
            out->text = v->u.s;
            return ERR_OK;
        }
    }
    return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: found %s, which is no %s", o->op->name, d->name, text,
                          d->kind == ENG_ATTR_NUM ? "number" : d->kind == ENG_ATTR_INT ? "count" : d->kind == ENG_ATTR_BOOL ? "truth value" : "name");
}

int eng_emit_attr(struct eng_operands *o, const struct eng_attr *d, const struct eng_arg *src, struct eng_attr_val *out)
{
    const char *dflt = json_str(json_get(json_get(json_get(o->c->env.sheet, "defaults"), o->op->name), d->name));
    const struct eng_arg *a = src->attrs;
    struct eng_value v = {.type = ENG_V_NULL};
    int rc = ERR_OK;

    while (a && strcmp(a->attr, d->name))
        a = a->next;
    if (d->kind == ENG_ATTR_WEIGHT)
        return attr_weight(o, a, out);
    if (a && a->kind != ENG_ARG_EXPR)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s: expected an expression", o->op->name, d->name);
    if (a)
        rc = eval(o, a, &v);
    else if (dflt && (rc = eng_env_text(&o->c->env, dflt, &v, o->e)))
        rc = eng_compile_at(o->c, o->e, rc, "%s: default %s: %s", o->op->name, d->name, o->e ? o->e->msg : "");
    if (rc)
        return rc;
    if (v.type == ENG_V_NULL && d->dflt && (rc = eng_env_text(&o->c->env, d->dflt, &v, o->e)))
        return rc;
    if (v.type == ENG_V_NULL)
        return eng_compile_at(o->c, o->e, ERR_FORMAT, "%s: attribute %s is missing", o->op->name, d->name);
    return attr_value(o, d, &v, out);
}
