#include "engine/chat_form.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

#define PROBE_BYTES (32u << 20)
#define SHORT_ID 9

/* ---- messages in a form ------------------------------------------------------------------------------------ */

static int too_large(struct err *e) { return err_set(e, ERR_LIMIT, "the request is too large"); }

static bool set_str(struct arena *a, struct json *o, const char *key, const char *s, size_t n)
{
    const struct json *v = json_new_str(a, s, n);
    return v && json_set(a, o, key, v);
}

/* An id that templates of nine characters take: itself, or one made of it, the same each time. */
static const struct json *id_of(const struct eng_chat_form *f, const struct json *id, struct arena *a)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    char s[SHORT_ID];
    bool fits = id->n == SHORT_ID;
    for (size_t i = 0; i < id->n && fits; i++)
        fits = strchr(digits, id->s[i]) && id->s[i];
    if (!f->short_ids || fits)
        return id;
    uint64_t h = hash_bytes(id->s, id->n, 0);
    for (int i = 0; i < SHORT_ID; i++, h /= 62)
        s[i] = digits[h % 62];
    return json_new_str(a, s, SHORT_ID);
}

static int arguments_of(const struct eng_chat_form *f, const struct json *v, const char *at, struct arena *a, const struct json **out, struct err *e)
{
    struct err why;
    struct json *tree = NULL;
    bool blank = json_is(v, JSON_STRING) && strspn(v->s, " \n\r\t") == v->n;
    if (!v || v->type == JSON_NULL || blank) {
        *out = f->string_arguments ? json_new_str(a, "{}", 2) : json_new(a, JSON_OBJECT);
        return *out ? ERR_OK : too_large(e);
    }
    *out = v;
    if (json_is(v, JSON_STRING)) {
        if (json_parse(&tree, v->s, v->n, &json_strict, a, &why) == ERR_NOMEM)
            return too_large(e);
        if (!tree && f->broken_arguments) {
            *out = v;
            return ERR_OK;
        }
        if (!tree || tree->type != JSON_OBJECT)
            return err_set(e, ERR_INVALID, "%s.function.arguments: expected a JSON object in a string", at);
        *out = f->string_arguments ? v : tree;
    } else if (v->type != JSON_OBJECT) {
        return err_set(e, ERR_INVALID, "%s.function.arguments: expected a JSON object in a string", at);
    } else if (f->string_arguments) {
        struct buf b;
        buf_init(&b, 16u << 20);
        json_put(&b, v);
        *out = b.failed ? NULL : json_new_str(a, b.data, b.len);
        buf_free(&b);
    }
    return *out ? ERR_OK : too_large(e);
}

static int make_call(const struct eng_chat_form *f, const struct json *call, const char *at, struct arena *a, struct json *list, struct err *e)
{
    const struct json *fn = json_get(call, "function"), *name = json_get(fn, "name"), *id = json_get(call, "id"), *args = NULL;
    struct json *o = json_new(a, JSON_OBJECT), *inner = json_new(a, JSON_OBJECT);
    if (!json_is(name, JSON_STRING))
        return err_set(e, ERR_INVALID, "%s.function.name: expected a string", at);
    int rc = arguments_of(f, json_get(fn, "arguments"), at, a, &args, e);
    if (rc)
        return rc;
    bool ok = o && inner && (!json_is(id, JSON_STRING) || ((id = id_of(f, id, a)) && json_set(a, o, "id", id))) && set_str(a, o, "type", "function", 8) &&
              json_set(a, inner, "name", name) && json_set(a, inner, "arguments", args) && json_set(a, o, "function", inner) && json_push(a, list, o);
    return ok ? ERR_OK : too_large(e);
}

/* The assistant's message m with the calls from..to-1 of it; content: NULL, or its text; reasons: with its reasoning. */
static int put_calls(const struct eng_chat_form *f, const struct json *m, size_t at, size_t from, size_t to, bool reasons, const struct json *content, struct arena *a,
                     struct json *list, struct err *e)
{
    const struct json *calls = json_get(m, "tool_calls"), *reason = json_get(m, "reasoning_content");
    struct json *o = json_new(a, JSON_OBJECT), *out = json_new(a, JSON_ARRAY);
    char where[64];
    bool has_text = json_is(content, JSON_STRING) && content->n;
    bool ok = o && out && set_str(a, o, "role", "assistant", 9);
    if (ok && has_text)
        ok = json_set(a, o, "content", content);
    else if (ok && f->empty != ENG_EMPTY_ABSENT)
        ok = f->empty == ENG_EMPTY_NULL ? json_set(a, o, "content", json_new(a, JSON_NULL)) : set_str(a, o, "content", "", 0);
    if (ok && reasons && json_is(reason, JSON_STRING) && f->reasoning && !(has_text && f->reasoning_alone))
        ok = json_set(a, o, f->reasoning, reason);
    for (size_t i = from; ok && i < to; i++) {
        snprintf(where, sizeof where, "messages[%zu].tool_calls[%zu]", at, i);
        int rc = make_call(f, calls->items[i], where, a, out, e);
        if (rc)
            return rc;
    }
    ok = ok && (from == to || json_set(a, o, "tool_calls", out)) && json_push(a, list, o);
    return ok ? ERR_OK : too_large(e);
}

/* The function whose call a result answers; NULL: none that is known. */
static const struct json *name_of_result(const struct json *messages, size_t at)
{
    const struct json *id = json_get(messages->items[at], "tool_call_id");
    for (size_t i = at; id && id->type == JSON_STRING && i--;) {
        const struct json *calls = json_get(messages->items[i], "tool_calls");
        for (size_t k = 0; json_is(calls, JSON_ARRAY) && k < calls->n; k++)
            if (json_eq(json_get(calls->items[k], "id"), id->s))
                return json_path(calls->items[k], "function.name");
    }
    return NULL;
}

static int put_result(const struct eng_chat_form *f, const struct json *messages, size_t at, const struct json *content, struct arena *a, struct json *list, struct err *e)
{
    const struct json *m = messages->items[at], *id = json_get(m, "tool_call_id"), *name = json_get(m, "name");
    struct json *o = json_new(a, JSON_OBJECT);
    bool ok = o != NULL;
    for (size_t k = 0; ok && k < m->n; k++)
        ok = json_set(a, o, m->members[k].key, m->members[k].value);
    if (ok && content)
        ok = json_set(a, o, "content", content);
    if (ok && json_is(id, JSON_STRING))
        ok = (id = id_of(f, id, a)) && json_set(a, o, "tool_call_id", id);
    if (ok && !json_is(name, JSON_STRING) && json_is(name = name_of_result(messages, at), JSON_STRING))
        ok = json_set(a, o, "name", name);
    return ok && json_push(a, list, o) ? ERR_OK : too_large(e);
}

/* Calls one by one, each before the results that answer it. */
static int put_each(const struct eng_chat_form *f, const struct json *messages, size_t *i, const struct json *content, struct arena *a, struct json *list, struct err *e)
{
    const struct json *m = messages->items[*i], *calls = json_get(m, "tool_calls");
    size_t first = *i + 1, end = first;
    int rc = ERR_OK;
    while (end < messages->n && json_eq(json_get(messages->items[end], "role"), "tool"))
        end++;
    for (size_t k = 0; k < calls->n && !rc; k++) {
        const char *id = json_str(json_get(calls->items[k], "id"));
        rc = put_calls(f, m, *i, k, k + 1, !k, k ? NULL : content, a, list, e);
        for (size_t r = first; r < end && !rc; r++)
            if (id && json_eq(json_get(messages->items[r], "tool_call_id"), id))
                rc = put_result(f, messages, r, NULL, a, list, e);
    }
    for (size_t r = first; r < end && !rc; r++) /* and those that answer nothing here */
        for (size_t k = 0, known = 0; k <= calls->n && !rc; k++) {
            const char *id = k < calls->n ? json_str(json_get(calls->items[k], "id")) : NULL;
            known += id && json_eq(json_get(messages->items[r], "tool_call_id"), id);
            if (k == calls->n && !known)
                rc = put_result(f, messages, r, NULL, a, list, e);
        }
    *i = end - 1;
    return rc;
}

static bool has_calls(const struct json *m)
{
    const struct json *calls = json_get(m, "tool_calls");
    return json_is(calls, JSON_ARRAY) && calls->n;
}

/* Results with parts for content are joined by the caller one message at a time, so calls are taken apart only where all are strings. */
static bool plain_results(const struct json *messages, size_t i)
{
    for (i++; i < messages->n && json_eq(json_get(messages->items[i], "role"), "tool"); i++)
        if (json_is(json_get(messages->items[i], "content"), JSON_ARRAY))
            return false;
    return true;
}

static int put_plain(const struct eng_chat_form *f, const struct json *m, const char *role, const struct json *content, struct arena *a, struct json *list, struct err *e)
{
    const struct json *reason = json_get(m, "reasoning_content");
    struct json *o = json_new(a, JSON_OBJECT);
    bool ok = o != NULL;
    for (size_t k = 0; ok && k < m->n; k++)
        if (strcmp(m->members[k].key, "tool_calls")) /* an empty list is none */
            ok = json_set(a, o, m->members[k].key, m->members[k].value);
    ok = ok && set_str(a, o, "role", role, strlen(role)) && (!content || json_set(a, o, "content", content));
    if (ok && json_is(reason, JSON_STRING) && f->reasoning)
        ok = json_set(a, o, f->reasoning, reason);
    return ok && json_push(a, list, o) ? ERR_OK : too_large(e);
}

int eng_chat_form_message(const struct eng_chat_form *f, const struct json *messages, size_t *i, const char *role, const struct json *content, struct arena *a,
                          struct json *list, struct err *e)
{
    const struct json *m = messages->items[*i], *text = content ? content : json_get(m, "content");
    int rc = ERR_OK;
    if (!strcmp(role, "tool"))
        return put_result(f, messages, *i, content, a, list, e);
    if (strcmp(role, "assistant") || !has_calls(m))
        return put_plain(f, m, role, content, a, list, e);
    if (!f->calls)
        return err_set(e, ERR_INVALID, "messages[%zu].tool_calls: this model's template cannot show a call", *i);
    bool split = f->split_text && json_is(text, JSON_STRING) && text->n;
    if (split && (rc = put_calls(f, m, *i, 0, 0, false, text, a, list, e)))
        return rc;
    if (f->one_call && json_get(m, "tool_calls")->n > 1 && plain_results(messages, *i))
        return put_each(f, messages, i, split ? NULL : text, a, list, e);
    return put_calls(f, m, *i, 0, json_get(m, "tool_calls")->n, true, split ? NULL : text, a, list, e);
}

/* ---- the probe --------------------------------------------------------------------------------------------- */

struct probe { const eng_template *t; const struct json *context; const char *const *trusted; struct arena a; const char *text; size_t n; };

static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"zqother\",\"description\":\"zqabout\",\"parameters\":{\"type\":\"object\",\"properties\":"
                                 "{\"zqparam\":{\"type\":\"string\",\"description\":\"zqwhat\"}},\"required\":[\"zqparam\"]}}}]";

static struct json *parse(struct probe *p, const char *text)
{
    struct json *v = NULL;
    struct err e;
    return json_parse(&v, text, strlen(text), &json_strict, &p->a, &e) ? NULL : v;
}

/* The messages, rewritten to f, rendered into p->text. */
static bool render(struct probe *p, const struct eng_chat_form *f, const char *messages)
{
    struct err e;
    struct eng_prompt out;
    const struct json *m = parse(p, messages);
    struct json *ctx = json_new(&p->a, JSON_OBJECT), *list = json_new(&p->a, JSON_ARRAY);
    bool ok = m && ctx && list;
    for (size_t i = 0; ok && p->context && i < p->context->n; i++)
        ok = json_set(&p->a, ctx, p->context->members[i].key, p->context->members[i].value);
    for (size_t i = 0; ok && i < m->n; i++)
        ok = !eng_chat_form_message(f, m, &i, json_str(json_get(m->items[i], "role")), NULL, &p->a, list, &e);
    const struct json *tools = parse(p, tools_text);
    ok = ok && tools && json_set(&p->a, ctx, "messages", list) && json_set(&p->a, ctx, "tools", tools) &&
         json_set(&p->a, ctx, "add_generation_prompt", json_new_bool(&p->a, true)) && !eng_template_render(p->t, ctx, p->trusted, 0, &p->a, &out, &e);
    p->text = ok ? out.text : "";
    p->n = ok ? out.n : 0;
    return ok;
}

static bool has(const struct probe *p, const char *s) { return memmem(p->text, p->n, s, strlen(s)) != NULL; }

/* The call is there: name, key and value, not quoted twice and not as Python writes a dict. */
static bool whole(const struct probe *p, const char *name, const char *key, const char *value)
{
    char twice[32], python[32];
    snprintf(twice, sizeof twice, "\\\"%s", key);
    snprintf(python, sizeof python, "'%s'", key);
    return has(p, name) && has(p, key) && has(p, value) && !has(p, twice) && !has(p, python);
}

#define ID "zqid00001"
#define USER "{\"role\":\"user\",\"content\":\"zquser\"},"
#define CALL(id, n) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"zqcall" n "\",\"arguments\":\"{\\\"zqkey" n "\\\": \\\"zqvalue" n "\\\"}\"}}"
#define BROKEN "{\"id\":\"" ID "\",\"type\":\"function\",\"function\":{\"name\":\"zqcall1\",\"arguments\":\"{\\\"zqbad\"}}"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"zqresult\"}"
#define ASSISTANT(more, calls) "{\"role\":\"assistant\"," more "\"tool_calls\":[" calls "]},"

static bool calls_in(struct probe *p, struct eng_chat_form *f)
{
    f->calls = true;
    for (int args = 0; args < 2; args++)
        for (int empty = 0; empty < 3; empty++) {
            f->string_arguments = args;
            f->empty = (enum eng_empty)empty;
            if (render(p, f, "[" USER ASSISTANT("", CALL(ID, "1")) RESULT(ID) "]") && whole(p, "zqcall1", "zqkey1", "zqvalue1") && (!empty || !has(p, "None")))
                return true;
        }
    return f->calls = false;
}

static bool two_calls(struct probe *p, const struct eng_chat_form *f)
{
    return render(p, f, "[" USER ASSISTANT("", CALL(ID, "1") "," CALL("zqid00002", "2")) RESULT(ID) "," RESULT("zqid00002") "]") &&
           whole(p, "zqcall1", "zqkey1", "zqvalue1") && whole(p, "zqcall2", "zqkey2", "zqvalue2");
}

static bool text_beside(struct probe *p, const struct eng_chat_form *f)
{
    return render(p, f, "[" USER ASSISTANT("\"content\":\"zqsaid\",", CALL(ID, "1")) RESULT(ID) ",{\"role\":\"assistant\",\"content\":\"zqend\"}," USER
                        "{\"role\":\"assistant\",\"content\":\"zqmore\"},{\"role\":\"user\",\"content\":\"zqlast\"}]") &&
           whole(p, "zqcall1", "zqkey1", "zqvalue1") && has(p, "zqsaid");
}

static void find_reasoning(struct probe *p, struct eng_chat_form *f)
{
    static const char *const keys[] = {"reasoning_content", "thinking", "reasoning"};
    for (int i = 0; i < 3; i++) {
        f->reasoning = keys[i];
        if (render(p, f, "[" USER ASSISTANT("\"reasoning_content\":\"zqwhy\",", CALL(ID, "1")) RESULT(ID) "]") && has(p, "zqwhy")) {
            f->reasoning_alone = !render(p, f, "[" USER ASSISTANT("\"content\":\"zqsaid\",\"reasoning_content\":\"zqwhy\",", CALL(ID, "1")) RESULT(ID) "]");
            return;
        }
    }
    f->reasoning = NULL;
}

void eng_chat_probe(struct eng_chat_form *f, const eng_template *t, const struct json *context, const char *const *trusted)
{
    struct probe p = {.t = t, .context = context, .trusted = trusted};
    memset(f, 0, sizeof *f);
    arena_init(&p.a, PROBE_BYTES);
    f->tools = render(&p, f, "[{\"role\":\"user\",\"content\":\"zquser\"}]") && has(&p, "zqother") && has(&p, "zqparam");
    if (calls_in(&p, f)) {
        static const char long_id[] = "[" USER ASSISTANT("", CALL("call_zq0000000000000000000001", "1")) RESULT("call_zq0000000000000000000001") "]";
        f->short_ids = !render(&p, f, long_id);
        if (!two_calls(&p, f)) {
            f->one_call = true;
            f->one_call = two_calls(&p, f);
        }
        if (!text_beside(&p, f)) {
            f->split_text = true;
            f->split_text = text_beside(&p, f);
        }
        find_reasoning(&p, f);
        f->broken_arguments = true;
        f->broken_arguments = render(&p, f, "[" USER ASSISTANT("", BROKEN) RESULT(ID) "]") && has(&p, "{\"zqbad");
    }
    arena_free(&p.a);
}
