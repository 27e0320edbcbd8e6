/* engine/template_verify.c - golden renderings: each case rendered in an arena of its own and compared byte for byte. */
#include "engine/template_verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/template.h"

enum { FILE_MAX = 64 << 20, CASES_MAX = 512 << 20, CASE_MAX = 192 << 20 };

struct verdict { FILE *out; unsigned *passed, *failed; int64_t now; const char *tmpl; size_t n; bool own; };

static int read_file(const char *path, struct arena *a, char **out, size_t *n, struct err *e)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    long size = fseek(f, 0, SEEK_END) ? -1 : ftell(f);
    int rc = ERR_OK;
    rewind(f);
    if (size < 0 || size > FILE_MAX || !(*out = arena_alloc(a, (size_t)size + 1)))
        rc = err_set(e, ERR_LIMIT, "%s: expected a file of at most %d bytes", path, FILE_MAX);
    else if ((*n = fread(*out, 1, (size_t)size, f)) != (size_t)size)
        rc = err_set(e, ERR_IO, "%s: short read", path);
    fclose(f);
    return rc;
}

static int64_t parse_now(const struct json *v)
{
    struct tm tm = {0};
    const char *s = json_str(v);
    return s && strptime(s, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) : 0;
}

/* The template of a case that brings its own: a string, or texts with how often each is repeated. */
static bool own_template(const struct json *c, struct arena *a, const char **s, size_t *n)
{
    const struct json *t = json_get(c, "template"), *parts = json_get(c, "parts");
    size_t len = 0;
    if (json_is(t, JSON_STRING)) {
        *s = t->s;
        *n = t->n;
        return true;
    }
    for (int pass = 0; pass < 2 && json_is(parts, JSON_ARRAY); pass++) {
        char *at = NULL;
        if (pass && !(at = arena_alloc(a, len + 1)))
            return false;
        *s = at;
        for (size_t i = 0; i < parts->n; i++) {
            const struct json *p = parts->items[i];
            int64_t times;
            if (!json_is(p, JSON_ARRAY) || p->n != 2 || !json_is(p->items[0], JSON_STRING) || !json_int(p->items[1], &times) || times < 0)
                return false;
            if (!pass && p->items[0]->n && (uint64_t)times > FILE_MAX / p->items[0]->n)
                return false;
            for (int64_t k = 0; k < times; k++) {
                if (pass)
                    at = (char *)memcpy(at, p->items[0]->s, p->items[0]->n) + p->items[0]->n;
                else if ((len += p->items[0]->n) > FILE_MAX)
                    return false;
            }
        }
        *n = len;
    }
    return json_is(parts, JSON_ARRAY);
}

static const struct json *context_of(const struct json *c, bool own, struct arena *a)
{
    static const char *const keys[] = {"messages", "tools", "documents", "add_generation_prompt"};
    const struct json *extra = json_get(c, "extra");
    if (own)
        return json_get(c, "context");
    struct json *ctx = json_new(a, JSON_OBJECT);
    bool ok = ctx != NULL;
    for (size_t i = 0; ok && i < sizeof keys / sizeof *keys; i++) {
        const struct json *v = json_get(c, keys[i]);
        ok = json_set(a, ctx, keys[i], v ? v : json_new(a, JSON_NULL));
    }
    for (size_t i = 0; ok && json_is(extra, JSON_OBJECT) && i < extra->n; i++)
        ok = json_set(a, ctx, extra->members[i].key, extra->members[i].value);
    return ok ? ctx : NULL;
}

/* NULL: as it should be. why is filled otherwise. */
static const char *judge(const struct json *c, int rc, const struct eng_prompt *p, const struct err *e, char why[256])
{
    const struct json *want = json_get(c, "rendered_ext"), *error = want ? NULL : json_get(c, "error"), *expect = json_get(c, "expect");
    const struct json *text = want ? want : json_get(c, "rendered") ? json_get(c, "rendered") : json_get(c, expect ? "output" : "expected");
    bool may_fail = error || (expect && !json_eq(expect, "output")), may_render = !error && !json_eq(expect, "error");
    if (rc) {
        snprintf(why, 256, "%.250s", e->msg);
        if (error && json_eq(json_get(c, "error_type"), "raise_exception") && strncmp(json_str(error), e->msg, sizeof e->msg - 4))
            return why;
        return may_fail ? NULL : why;
    }
    if (!may_render)
        return "rendered where an error was expected";
    if (!text)
        return expect ? NULL : "the case says neither what is rendered nor which error comes";
    size_t i = 0;
    while (i < p->n && i < text->n && p->text[i] == text->s[i])
        i++;
    if (i == p->n && i == text->n)
        return NULL;
    snprintf(why, 256, "differs at byte %zu: expected \"%.40s\", found \"%.40s\"", i, text->s + i, p->text + i);
    return why;
}

static void one_case(struct verdict *v, const struct json *c, size_t number, const char *path)
{
    struct arena a;
    struct err e = {0};
    struct eng_prompt p = {0};
    struct eng_template_limits lim = {.frozen = v->own};
    eng_template *t = NULL;
    char why[256];
    const char *s = v->tmpl, *bad = "the case is malformed", *name = json_str(json_get(c, json_get(c, "name") ? "name" : "feature"));
    size_t n = v->n;
    arena_init(&a, CASE_MAX);
    const struct json *ctx = context_of(c, v->own, &a);
    if (json_is(ctx, JSON_OBJECT) && (!v->own || own_template(c, &a, &s, &n))) {
        int rc = eng_template_open(&t, s, n, &lim, &e);
        if (!rc)
            rc = eng_template_render(t, ctx, NULL, v->now, &a, &p, &e);
        bad = judge(c, rc, &p, &e, why);
    }
    ++*(bad ? v->failed : v->passed);
    if (bad && v->out) {
        fprintf(v->out, "%s: case %zu", path, number);
        if (name)
            fprintf(v->out, " (%s)", name);
        fputs(": ", v->out);
        for (const char *k = bad; *k; k++) /* one line a check, whatever the texts hold */
            fputc(*k == '\n' ? ' ' : *k, v->out);
        fputc('\n', v->out);
    }
    eng_template_close(t);
    arena_free(&a);
}

int eng_template_verify(const char *tmpl_file, const char *cases_file, FILE *out, unsigned *passed, unsigned *failed, struct err *e)
{
    struct arena a;
    struct json *file;
    char *cases, *tmpl = NULL;
    size_t n, n_tmpl = 0;
    struct json_limits lim = {.allow_nul = true, .depth_max = 64};
    arena_init(&a, CASES_MAX);
    *passed = *failed = 0;
    int rc = tmpl_file ? read_file(tmpl_file, &a, &tmpl, &n_tmpl, e) : ERR_OK;
    if (!rc)
        rc = read_file(cases_file, &a, &cases, &n, e);
    if (!rc && (rc = json_parse(&file, cases, n, &lim, &a, e)))
        err_prefix(e, rc, "%s", cases_file);
    const struct json *list = rc ? NULL : json_get(file, "cases");
    if (!rc && (!json_is(list, JSON_ARRAY) || !list->n))
        rc = err_set(e, ERR_FORMAT, "%s: expected an array \"cases\" that is not empty", cases_file);
    if (!rc) {
        struct verdict v = {out, passed, failed, parse_now(json_get(file, "now")), tmpl, n_tmpl, tmpl_file == NULL};
        for (size_t i = 0; i < list->n; i++)
            one_case(&v, list->items[i], i, tmpl_file ? tmpl_file : cases_file);
    }
    arena_free(&a);
    return rc;
}
