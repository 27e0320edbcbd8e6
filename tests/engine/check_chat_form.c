/* The form of past calls that a template shows is found by rendering, and messages are rewritten to it. */
#include <unistd.h>

#include "engine/chat.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;

static const char *form_text(const struct eng_chat_form *f)
{
    static char s[200];
    static const char *const empty[] = {"\"\"", "null", "absent"};
    if (!f->calls)
        return f->tools ? "tools, no calls" : "none";
    snprintf(s, sizeof s, "%s%s %s%s%s%s%s%s%s%s", f->tools ? "" : "no tools, ", empty[f->empty], f->string_arguments ? "string" : "object", f->broken_arguments ? ", broken too" : "", f->short_ids ? ", short ids" : "",
             f->one_call ? ", one call" : "", f->split_text ? ", split text" : "", f->reasoning ? ", " : "", f->reasoning ? f->reasoning : "", f->reasoning_alone ? " alone" : "");
    return s;
}

static void probed(const char *tmpl, size_t n, const char *want, const char *what)
{
    eng_template *t;
    struct eng_chat_form f;
    struct arena a;
    struct json *specials;
    static const char text[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    arena_init(&a, 1u << 20);
    OK(json_parse(&specials, text, sizeof text - 1, &json_strict, &a, &e));
    OK(eng_template_open(&t, tmpl, n, NULL, &e));
    eng_chat_probe(&f, t, specials, NULL);
    ck_assert_msg(!strcmp(form_text(&f), want), "%s: found %s, want %s", what, form_text(&f), want);
    eng_template_close(t);
    arena_free(&a);
}

#define TOOLS "{{ tools | tojson }}"
#define CALLS(args) "{% for c in m.tool_calls %}<c>{{ c.function.name }} {{ c.function.arguments" args " }}</c>{% endfor %}"
static const struct { const char *tmpl, *form; } made[] = {
    {"{% for m in messages %}{{ m.content }}{% endfor %}", "none"},
    {TOOLS "{% for m in messages %}{{ m.content }}{% endfor %}", "tools, no calls"},
    {TOOLS "{% for m in messages %}{{ m.content }}" CALLS("|tojson") "{% endfor %}", "\"\" object"},
    {TOOLS "{% for m in messages %}{{ m.content + '' }}" CALLS("+''") "{% endfor %}", "\"\" string, broken too"},
    {TOOLS "{% for m in messages %}{% if m.content is none %}" CALLS("|tojson") "{% else %}{{ m.content }}{% endif %}{% endfor %}", "null object, split text"},
    {TOOLS "{% for m in messages %}{% if 'content' in m %}{{ m.content }}{% else %}" CALLS("+''") "{% endif %}{% endfor %}", "absent string, broken too, split text"},
    {"{% for m in messages %}{% if m.tool_calls and m.tool_calls|length > 1 %}{{ raise_exception('one') }}{% endif %}{{ m.content }}" CALLS("|tojson") "{% endfor %}",
     "no tools, \"\" object, one call"},
    {"{% for m in messages %}{% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}{% endfor %}{{ m.content }}" CALLS("|tojson") "{% endfor %}",
     "no tools, \"\" object, short ids"},
    {"{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}" CALLS("|tojson") "{% endfor %}", "no tools, \"\" object, reasoning_content"},
    {"{% for m in messages %}{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}{{ m.thinking }}{{ m.content }}" CALLS("|tojson") "{% endfor %}",
     "no tools, \"\" object, thinking alone"},
    {"{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}", "no tools, \"\" string, broken too"}, /* Python's spelling of a dict, but not of the arguments */
};

static const struct { const char *dir, *form; } published[] = {
    {"deepseek-r1-distill-llama", "no tools, null string, broken too, split text"}, {"deepseek-v3", "no tools, null string, broken too, split text"},
    {"deepseek-v3.1", "no tools, \"\" object"}, {"gemma3", "none"}, {"gpt-oss", "\"\" object, one call, split text, thinking"}, {"hermes3-tool-use", "\"\" object, broken too, split text"}, {"kimi-k2", "\"\" object"},
    {"kimi-k2-instruct", "\"\" object, broken too"}, {"kimi-k3", "\"\" object, broken too, reasoning_content"}, {"llama3.1", "\"\" object, one call, split text"}, {"minimax-m2", "\"\" object, reasoning_content"},
    {"mistral-nemo", "\"\" object, short ids"}, {"mistral-v1", "none"}, {"phi3.5", "none"}, {"qwen2.5", "\"\" object"}, {"qwen3", "\"\" object, broken too, reasoning_content"},
    {"qwen3-coder", "\"\" object"}, {"smollm2", "none"}, {"smollm3", "none"}};

START_TEST(core)
{
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        probed(made[i].tmpl, strlen(made[i].tmpl), made[i].form, made[i].tmpl);
}
END_TEST

START_TEST(real_templates)
{
    if (access("../shared/data/templates", R_OK)) {
        printf("SKIP published templates: ../shared/data/templates is not here\n");
        return;
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        char path[200];
        size_t n;
        snprintf(path, sizeof path, "../shared/data/templates/%s/template.jinja", published[i].dir);
        char *text = mm_read(path, &n);
        probed(text, n, published[i].form, published[i].dir);
        free(text);
    }
}
END_TEST

/* messages in, what the template is given out. */
static const struct { struct eng_chat_form f; const char *in, *out; } rewritten[] = {
    {{.calls = true}, "[{\"role\":\"assistant\",\"content\":null,\"refusal\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]},"
                      "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"r\"}]",
     "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"r\",\"name\":\"f\"}]"},
    {{.calls = true, .empty = ENG_EMPTY_NULL, .string_arguments = true}, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}]",
     "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]"},
    {{.calls = true, .empty = ENG_EMPTY_ABSENT, .split_text = true},
     "[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]",
     "[{\"role\":\"assistant\",\"content\":\"t\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]"},
    {{.calls = true, .one_call = true},
     "[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"id\":\"b\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"rb\"},{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"ra\"},{\"role\":\"tool\",\"tool_call_id\":\"z\",\"content\":\"rz\"},"
     "{\"role\":\"user\",\"content\":\"u\"}]",
     "[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"ra\",\"name\":\"f\"},"
     "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"b\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"rb\",\"name\":\"g\"},{\"role\":\"tool\",\"tool_call_id\":\"z\",\"content\":\"rz\"},{\"role\":\"user\",\"content\":\"u\"}]"},
    {{.calls = true, .short_ids = true}, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"abcdefgh1\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]",
     "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]"},
    {{.calls = true, .reasoning = "thinking", .reasoning_alone = true},
     "[{\"role\":\"assistant\",\"content\":\"t\",\"reasoning_content\":\"w\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
     "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"w\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]",
     "[{\"role\":\"assistant\",\"content\":\"t\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
     "{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"w\",\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]}]"},
};

static int rewrite(const struct eng_chat_form *f, const char *in, struct arena *a, struct json *list)
{
    struct json *m;
    int rc = 0;
    OK(json_parse(&m, in, strlen(in), &json_strict, a, &e));
    for (size_t i = 0; i < m->n && !rc; i++)
        rc = eng_chat_form_message(f, m, &i, json_str(json_get(m->items[i], "role")), NULL, a, list, &e);
    return rc;
}

START_TEST(messages)
{
    for (size_t i = 0; i < sizeof rewritten / sizeof *rewritten; i++) {
        struct arena a;
        struct buf b;
        arena_init(&a, 1u << 20);
        buf_init(&b, 1u << 20);
        struct json *list = json_new(&a, JSON_ARRAY);
        OK(rewrite(&rewritten[i].f, rewritten[i].in, &a, list));
        json_put(&b, list);
        ck_assert_str_eq(b.data, rewritten[i].out);
        buf_free(&b);
        arena_free(&a);
    }
    struct arena a;
    struct eng_chat_form f = {.calls = true, .short_ids = true};
    arena_init(&a, 1u << 20);
    struct json *list = json_new(&a, JSON_ARRAY); /* a long id becomes the same short one in call and result */
    OK(rewrite(&f, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call_long\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_long\",\"content\":\"\"}]", &a, list));
    const struct json *id = json_get(json_get(list->items[0], "tool_calls")->items[0], "id");
    ck_assert(id->n == 9 && json_eq(json_get(list->items[1], "tool_call_id"), id->s) && json_eq(json_get(list->items[1], "name"), "f"));
    arena_free(&a);
}
END_TEST

START_TEST(errors)
{
    static const struct { bool calls; const char *in, *says; } bad[] = {
        {false, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}]", "messages[0].tool_calls: this model's template"},
        {true, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}]", "messages[0].tool_calls[0].function.arguments"},
        {true, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}]}]", "messages[0].tool_calls[0].function.arguments"},
        {true, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":7}}]}]", "expected a JSON object"},
        {true, "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"}]}]", "function.name"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct arena a;
        struct eng_chat_form f = {.calls = bad[i].calls};
        arena_init(&a, 1u << 20);
        FAILS(ERR_INVALID, bad[i].says, rewrite(&f, bad[i].in, &a, json_new(&a, JSON_ARRAY)));
        arena_free(&a);
    }
}
END_TEST

SUITE("engine", "chat_form", core, real_templates, messages, errors)
