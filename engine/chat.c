#include "engine/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { KEYS_MAX = 16 };
struct eng_chat {
    const eng_tok *tok;
    eng_template *tmpl;
    struct arena mem;
    struct json *specials;
    const char *trusted[KEYS_MAX + 1]; /* context keys whose text is the model's own */
    bool knows_developer;              /* the template tells the role apart; others get "system" */
    struct eng_chat_form form;
    char *source; size_t n;
};

enum { MARK_BYTES = 32 };
/* How the prompt ends: with the opening of an answer, as the messages end, or inside of the last message, which the answer continues:
 * a mark that nobody can guess is rendered behind its text, and the prompt is cut there. */
struct ending {
    bool opens, continues;
    char mark[MARK_BYTES + 1];
};

int eng_chat_open(eng_chat **out, const eng_tok *tok, const char *tmpl, size_t n, const struct json *special_tokens, struct err *e)
{
    *out = NULL;
    eng_chat *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ERR_NOMEM, "chat template");
    arena_init(&c->mem, 16u << 20);
    c->tok = tok;
    c->knows_developer = memmem(tmpl, n, "developer", 9) != NULL;
    c->specials = json_new(&c->mem, JSON_OBJECT);
    c->source = arena_strdup(&c->mem, tmpl, n);
    c->n = n;
    if (!c->specials || !c->source) {
        eng_chat_close(c);
        return err_set(e, ERR_NOMEM, "chat template");
    }
    for (size_t i = 0; json_is(special_tokens, JSON_OBJECT) && i < special_tokens->n && i < KEYS_MAX; i++) {
        const struct json_member *m = &special_tokens->members[i];
        if (!json_is(m->value, JSON_STRING))
            continue;
        char *key = arena_strdup(&c->mem, m->key, m->key_len);
        if (key && json_set(&c->mem, c->specials, key, json_new_str(&c->mem, m->value->s, m->value->n)))
            c->trusted[c->specials->n - 1] = key;
    }
    int rc = eng_template_open(&c->tmpl, tmpl, n, NULL, e);
    if (rc) {
        err_prefix(e, rc, "chat template");
        eng_chat_close(c);
        return rc;
    }
    eng_chat_probe(&c->form, c->tmpl, c->specials, c->trusted);
    *out = c;
    return ERR_OK;
}

const struct eng_chat_form *eng_chat_form_of(const eng_chat *c) { return &c->form; }

static bool in_name(char ch) { return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') || ch == '_'; }

bool eng_chat_reads(const eng_chat *c, const char *variable)
{
    size_t n = strlen(variable);
    for (const char *p = c->source, *end = c->source + c->n; (p = memmem(p, (size_t)(end - p), variable, n)); p += n)
        if ((p == c->source || !in_name(p[-1])) && !in_name(p[n]))
            return true;
    return false;
}

void eng_chat_close(eng_chat *c)
{
    if (!c)
        return;
    eng_template_close(c->tmpl);
    arena_free(&c->mem);
    free(c);
}

/* Text parts joined into one string: what the templates of text models expect. */
static int join_parts(const struct json *parts, size_t msg, struct arena *a, struct json **out, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < parts->n; i++) {
        const struct json *p = parts->items[i], *text = json_get(p, "text");
        if (!json_is(p, JSON_OBJECT) || !json_str(json_get(p, "type")))
            return err_set(e, ERR_INVALID, "messages[%zu].content[%zu]: expected an object with a type", msg, i);
        if (!json_eq(json_get(p, "type"), "text"))
            return err_set(e, ERR_INVALID, "messages[%zu].content[%zu].type: expected \"text\", found \"%.40s\": this model takes text alone", msg, i,
                           json_str(json_get(p, "type")));
        if (!json_is(text, JSON_STRING))
            return err_set(e, ERR_INVALID, "messages[%zu].content[%zu].text: expected a string", msg, i);
        n += text->n;
    }
    char *s = arena_alloc(a, n + 1);
    if (!s)
        return err_set(e, ERR_LIMIT, "messages[%zu].content: %zu bytes are too many", msg, n);
    n = 0;
    for (size_t i = 0; i < parts->n; i++) {
        const struct json *text = json_get(parts->items[i], "text");
        memcpy(s + n, text->s, text->n);
        n += text->n;
    }
    *out = json_new_str(a, s, n);
    return *out ? ERR_OK : err_set(e, ERR_LIMIT, "the request is too large");
}

static int check_role(const eng_chat *c, const struct json *m, size_t i, const char **role, struct err *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    *role = json_str(json_get(m, "role"));
    for (size_t k = 0; *role && k < sizeof roles / sizeof *roles; k++)
        if (!strcmp(*role, roles[k])) {
            if (k == 1 && !c->knows_developer)
                *role = "system";
            return ERR_OK;
        }
    return err_set(e, ERR_INVALID, "messages[%zu].role: expected system, developer, user, assistant or tool, found %s%.40s%s", i, *role ? "\"" : "",
                   *role ? *role : "none", *role ? "\"" : "");
}

static int add_mark(const struct ending *end, const struct json *content, size_t i, struct arena *a, struct json **joined, struct err *e)
{
    if (!json_is(content, JSON_STRING) || !content->n)
        return err_set(e, ERR_INVALID, "messages[%zu].content: expected text that the answer can continue (continue_final_message), found none", i);
    char *s = arena_alloc(a, content->n + MARK_BYTES + 1);
    if (!s)
        return err_set(e, ERR_LIMIT, "messages[%zu].content: %zu bytes are too many", i, content->n);
    memcpy(s, content->s, content->n);
    memcpy(s + content->n, end->mark, MARK_BYTES);
    *joined = json_new_str(a, s, content->n + MARK_BYTES);
    return *joined ? ERR_OK : err_set(e, ERR_LIMIT, "the request is too large");
}

/* A message as this template wants it: content a string (or null), the role one that it knows, calls in its form. */
static int add_message(const eng_chat *c, const struct json *messages, size_t *at, const struct ending *end, struct arena *a, struct json *list, struct err *e)
{
    const char *role;
    size_t i = *at;
    const struct json *m = messages->items[i];
    if (!json_is(m, JSON_OBJECT))
        return err_set(e, ERR_INVALID, "messages[%zu]: expected an object", i);
    int rc = check_role(c, m, i, &role, e);
    if (rc)
        return rc;
    const struct json *content = json_get(m, "content");
    struct json *joined = NULL;
    if (json_is(content, JSON_ARRAY)) {
        if ((rc = join_parts(content, i, a, &joined, e)))
            return rc;
    } else if (content && !json_is(content, JSON_STRING) && !json_is(content, JSON_NULL)) {
        return err_set(e, ERR_INVALID, "messages[%zu].content: expected a string or an array of parts", i);
    } else if (!json_is(content, JSON_STRING) && (!strcmp(role, "user") || (!strcmp(role, "system") && !json_is(json_get(m, "tools"), JSON_ARRAY)))) {
        return err_set(e, ERR_INVALID, "messages[%zu].content: expected a string or an array of parts, found none", i);
    }
    if (end->continues && i == messages->n - 1) {
        if (strcmp(role, "assistant") || (json_is(json_get(m, "tool_calls"), JSON_ARRAY) && json_get(m, "tool_calls")->n))
            return err_set(e, ERR_INVALID, "messages[%zu].role: expected a text of the assistant's, which the answer continues (continue_final_message), found %s", i,
                           strcmp(role, "assistant") ? role : "calls of tools");
        if ((rc = add_mark(end, joined ? joined : content, i, a, &joined, e)))
            return rc;
    }
    return eng_chat_form_message(&c->form, messages, at, role, joined, a, list, e);
}

static int get_switch(const struct json *body, const char *name, bool unsaid, bool *out, struct err *e)
{
    const struct json *v = json_get(body, name);
    *out = v && v->type == JSON_BOOL ? v->b : unsaid;
    return !v || v->type == JSON_BOOL || v->type == JSON_NULL ? ERR_OK : err_set(e, ERR_INVALID, "%s: expected true or false", name);
}

static int get_ending(const struct json *body, struct ending *end, struct err *e)
{
    uint8_t r[MARK_BYTES / 2];
    int rc = get_switch(body, "continue_final_message", false, &end->continues, e);
    if (rc || (rc = get_switch(body, "add_generation_prompt", !end->continues, &end->opens, e)))
        return rc;
    if (end->continues && end->opens)
        return err_set(e, ERR_INVALID, "add_generation_prompt: expected false beside continue_final_message: an answer either begins or goes on");
    if (end->continues && !hash_random(r, sizeof r))
        return err_set(e, ERR_NOMEM, "no random numbers");
    for (size_t i = 0; end->continues && i < sizeof r; i++)
        snprintf(end->mark + 2 * i, 3, "%02x", r[i]);
    return ERR_OK;
}

/* Ends the prompt where the mark stands. */
static int cut_at_mark(const struct ending *end, struct eng_prompt *p, struct err *e)
{
    const char *at = memmem(p->text, p->n, end->mark, MARK_BYTES);
    if (!at)
        return err_set(e, ERR_INVALID, "continue_final_message: the chat template does not show the last message's text as it is");
    p->n = (size_t)(at - p->text);
    p->text[p->n] = '\0';
    size_t n = 0;
    while (n < p->n_spans && p->spans[n].begin < p->n) {
        if (p->spans[n].end > p->n)
            p->spans[n].end = p->n;
        n++;
    }
    p->n_spans = n;
    return ERR_OK;
}

static int make_context(const eng_chat *c, const struct json *body, const struct ending *end, struct arena *a, struct json **out, struct err *e)
{
    static const char *const shown[] = {"tool_choice", "response_format"}; /* some templates tell the model of these demands */
    const struct json *messages = json_get(body, "messages"), *tools = json_get(body, "tools"), *extra = json_get(body, "chat_template_kwargs");
    if (!json_is(messages, JSON_ARRAY) || !messages->n)
        return err_set(e, ERR_INVALID, "messages: expected an array with at least one message");
    struct json *ctx = json_new(a, JSON_OBJECT), *list = json_new(a, JSON_ARRAY);
    bool ok = ctx && list;
    for (size_t i = 0; ok && json_is(extra, JSON_OBJECT) && i < extra->n; i++)
        ok = json_set(a, ctx, extra->members[i].key, extra->members[i].value);
    for (size_t i = 0; ok && i < c->specials->n; i++) /* after the request's: they are trusted by name */
        ok = json_set(a, ctx, c->specials->members[i].key, c->specials->members[i].value);
    for (size_t i = 0; ok && i < messages->n; i++) {
        int rc = add_message(c, messages, &i, end, a, list, e);
        if (rc)
            return rc;
    }
    ok = ok && json_set(a, ctx, "messages", list) && json_set(a, ctx, "add_generation_prompt", json_new_bool(a, end->opens));
    if (ok && json_is(tools, JSON_ARRAY) && tools->n)
        ok = json_set(a, ctx, "tools", tools);
    for (size_t i = 0; ok && i < sizeof shown / sizeof *shown; i++)
        if (json_get(body, shown[i]) && !json_get(ctx, shown[i]) && eng_chat_reads(c, shown[i]))
            ok = json_set(a, ctx, shown[i], json_get(body, shown[i]));
    *out = ctx;
    return ok ? ERR_OK : err_set(e, ERR_LIMIT, "the request is too large");
}

int eng_chat_prompt(const eng_chat *c, const struct json *body, int64_t now, struct arena *a, struct eng_ids *ids, struct eng_prompt *text, struct err *e)
{
    struct json *ctx = NULL;
    struct eng_prompt p;
    struct ending end = {0};
    int rc = get_ending(body, &end, e);
    if (rc || (rc = make_context(c, body, &end, a, &ctx, e)))
        return rc;
    if ((rc = eng_template_render(c->tmpl, ctx, c->trusted, now, a, &p, e)))
        return err_prefix(e, rc, "messages");
    if (end.continues && (rc = cut_at_mark(&end, &p, e)))
        return rc;
    if (text)
        *text = p;
    return eng_tok_encode_spans(c->tok, p.text, p.spans, p.n_spans, ids, e);
}
