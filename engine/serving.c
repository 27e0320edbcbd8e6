/* What a sheet tells people and servers: `serve`, expressions over parameters, evaluated before anything that may ask for the context
 * in force; `say`, sentences with the condition under which they are true of the files at hand; and how calls and reasoning are spelled. */
#include <string.h>

#include "base/buf.h"
#include "engine/compile_internal.h"
#include "engine/format.h"

static int number(struct eng_compiler *c, const struct json *s, const char *key, double low, double high, double *out, struct err *e)
{
    const char *text = json_str(json_get(s, key));
    struct eng_value v;
    char shown[80];
    int rc;

    if (!text)
        return json_get(s, key) ? err_set(e, ERR_FORMAT, "serve.%s: expected an expression in quotes", key) : ERR_OK;
    if ((rc = eng_env_text(&c->env, text, &v, e)))
        return err_prefix(e, rc, "serve.%s", key);
    eng_v_show(&v, shown, sizeof shown);
    if (!eng_v_number(&v, out) || !(*out >= low && *out <= high))
        return err_set(e, ERR_FORMAT, "serve.%s: expected a number from %g to %g, found %s", key, low, high, shown);
    return ERR_OK;
}

static int stops(struct eng_compiler *c, const struct json *list, struct err *e)
{
    const char **v;

    if (!list)
        return ERR_OK;
    if (list->type != JSON_ARRAY || list->n > 16)
        return err_set(e, ERR_FORMAT, "serve.stop: expected a list of at most 16 tokens");
    if (!(v = ARENA_ARRAY(c->mem, const char *, list->n + 1)))
        return err_set(e, ERR_NOMEM, "serve.stop");
    for (size_t i = 0; i < list->n; i++) {
        const char *s = json_str(list->items[i]);
        if (!s || !*s || !(v[i] = arena_strdup(c->mem, s, strlen(s)))) /* the sheet's text may be gone before the plan */
            return err_set(e, s && *s ? ERR_NOMEM : ERR_FORMAT, "serve.stop: expected tokens as text");
    }
    c->p->serve.stop = v;
    c->p->serve.n_stop = (uint32_t)list->n;
    return ERR_OK;
}

int eng_serving(struct eng_compiler *c, struct err *e)
{
    static const char *const keys[] = {"ctx", "seqs", "chunk", "temperature", "top_p", "min_p", "top_k", "stop"};
    static const double low[] = {1, 1, 1, 0, 0, 0, 0}, high[] = {INT32_MAX, 4096, 65536, 100, 1, 1, 1e6};
    const struct json *s = json_get(c->env.sheet, "serve");
    double v[] = {c->p->ctx < 4096 ? c->p->ctx : 4096, 8, 256, 1, 1, 0, 0};
    struct eng_serving *r = &c->p->serve;
    int rc;

    for (size_t i = 0; json_is(s, JSON_OBJECT) && i < s->n; i++) {
        size_t k = 0;
        while (k < sizeof keys / sizeof *keys && strcmp(keys[k], s->members[i].key))
            k++;
        if (k == sizeof keys / sizeof *keys)
            return err_set(e, ERR_FORMAT, "sheet %s: serve has no `%s`", c->env.sheet_name, s->members[i].key);
    }
    for (size_t k = 0; k < sizeof v / sizeof *v; k++)
        if ((rc = number(c, s, keys[k], low[k], high[k], &v[k], e)))
            return err_prefix(e, rc, "sheet %s", c->env.sheet_name);
    *r = (struct eng_serving){.ctx = (uint32_t)v[0], .seqs = (uint32_t)v[1], .chunk = (uint32_t)v[2], .temperature = (float)v[3], .top_p = (float)v[4],
                              .min_p = (float)v[5], .top_k = (int32_t)v[6]};
    if ((rc = stops(c, json_get(s, "stop"), e)))
        return err_prefix(e, rc, "sheet %s", c->env.sheet_name);
    c->p->ctx_use = c->ctx_asked ? c->ctx_asked : r->ctx;
    c->env.ctx_use = c->p->ctx_use;
    return ERR_OK;
}

int eng_notes(struct eng_compiler *c, struct err *e)
{
    const struct json *s = json_get(c->env.sheet, "say");
    const char **v;
    uint32_t n = 0;

    if (!json_is(s, JSON_OBJECT) || !s->n)
        return ERR_OK;
    if (!(v = ARENA_ARRAY(c->mem, const char *, s->n)))
        return err_set(e, ERR_NOMEM, "notes");
    for (size_t i = 0; i < s->n; i++) {
        const char *text = json_str(s->members[i].value);
        struct eng_value x;
        int rc = text ? eng_env_text(&c->env, text, &x, e) : err_set(e, ERR_FORMAT, "expected a condition in quotes");
        if (rc)
            return err_prefix(e, rc, "sheet %s: say `%s`", c->env.sheet_name, s->members[i].key);
        if (eng_v_truth(&x) && !(v[n++] = arena_strdup(c->mem, s->members[i].key, s->members[i].key_len)))
            return err_set(e, ERR_NOMEM, "notes");
    }
    c->p->notes = v;
    c->p->n_notes = n;
    return ERR_OK;
}

int eng_formats(struct eng_compiler *c, struct err *e)
{
    static const char *const names[] = {"tools", "reasoning"};
    struct json *copy = NULL;
    struct buf b;
    int rc;

    buf_init(&b, 1u << 20);
    for (int k = 0; k < 2; k++) {
        const struct json *v = json_get(c->env.sheet, names[k]);
        buf_printf(&b, k ? ",\"%s\":" : "{\"%s\":", names[k]);
        if (v)
            json_put(&b, v);
        else
            buf_str(&b, "{}");
    }
    buf_char(&b, '}');
    rc = b.failed ? err_set(e, ERR_NOMEM, "formats") : json_parse(&copy, b.data, b.len, &json_strict, c->mem, e);
    buf_free(&b);
    if (!rc && (rc = eng_format_check(copy, c->mem, e)))
        return err_prefix(e, rc, "sheet %s", c->env.sheet_name);
    c->p->formats = copy;
    return rc;
}

/* The chat template of families whose published files bring none: lines, joined by ends of lines. */
int eng_own_template(struct eng_compiler *c, struct err *e)
{
    const struct json *v = json_get(c->env.sheet, "template");
    struct buf b;

    if (!v)
        return ERR_OK;
    buf_init(&b, 1u << 20);
    for (size_t i = 0; v->type == JSON_ARRAY && i < v->n && json_is(v->items[i], JSON_STRING); i++) {
        buf_add(&b, v->items[i]->s, v->items[i]->n);
        buf_char(&b, '\n');
    }
    bool lines = v->type == JSON_ARRAY && v->n;
    for (size_t i = 0; lines && i < v->n; i++)
        lines = json_is(v->items[i], JSON_STRING);
    if (lines && !b.failed && (c->p->template_text = arena_strdup(c->mem, b.data, b.len - 1)))
        c->p->template_len = b.len - 1;
    buf_free(&b);
    return !lines ? err_set(e, ERR_FORMAT, "sheet %s: template: expected a list of lines", c->env.sheet_name)
                  : c->p->template_text ? ERR_OK : err_set(e, ERR_NOMEM, "chat template");
}
