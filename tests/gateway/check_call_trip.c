/* Round trips: calls in a past message, shown by a model's own template, are read back as the same calls. */
#include <unistd.h>

#include "engine/chat_form.h"
#include "gateway/calls.h"
#include "gateway/openai.h"
#include "tests/support/formats.h"
#include "tests/support/make_model.h"

static struct err e;

#define ARGS1 "{\"city\": \"Köln \\\"Süd\\\"\", \"days\": 3, \"note\": \"a\\nb <x> & y\", \"list\": [1, \"two\", null], \"metric\": true}"
#define ARGS2 "{\"zone\": \"CET\"}"
static const char messages[] =
    "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
    "{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"arguments\":%s}},"
    "{\"id\":\"abcdefgh2\",\"type\":\"function\",\"function\":{\"name\":\"now\",\"arguments\":" ARGS2 "}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"content\":\"rain\"},{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh2\",\"content\":\"noon\"}]";
static const char request[] =
    "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"w\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"c\"},"
    "\"days\":{\"type\":\"integer\",\"description\":\"d\"},\"note\":{\"type\":\"string\",\"description\":\"n\"},\"list\":{\"type\":\"array\",\"description\":\"l\"},"
    "\"metric\":{\"type\":\"boolean\",\"description\":\"m\"}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"description\":\"t\",\"parameters\":{\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"string\",\"description\":\"z\"}},\"required\":[]}}}]}";

static const char specials[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

static char *render(const eng_template *t, const struct eng_chat_form *f, const char *text, const struct json *tools, struct arena *a)
{
    struct json *m, *ctx = json_new(a, JSON_OBJECT), *list = json_new(a, JSON_ARRAY);
    struct eng_prompt p;
    OK(json_parse(&m, text, strlen(text), &json_strict, a, &e));
    for (size_t i = 0; i < m->n; i++)
        OK(eng_chat_form_message(f, m, &i, json_str(json_get(m->items[i], "role")), NULL, a, list, &e));
    json_set(a, ctx, "bos_token", json_new_str(a, "<s>", 3));
    json_set(a, ctx, "eos_token", json_new_str(a, "</s>", 4));
    json_set(a, ctx, "messages", list);
    json_set(a, ctx, "tools", tools);
    json_set(a, ctx, "add_generation_prompt", json_new_bool(a, true));
    OK(eng_template_render(t, ctx, NULL, 0, a, &p, &e));
    return p.text;
}

/* The text as the engine would send it: a mark before each control token. */
static void mark(const struct eng_format *f, const char *s, struct buf *out)
{
    for (; *s; s++) {
        for (uint32_t i = 0; i < f->n_markers; i++)
            if (!strncmp(s, f->marker_text[i].s, f->marker_text[i].n)) {
                buf_char(out, ENG_MARK);
                break;
            }
        buf_char(out, *s);
    }
}

static void expect_args(const char *got, size_t n, const char *want, const char *what, struct arena *a)
{
    struct json *g, *w;
    struct buf b, c;
    buf_init(&b, 1u << 16);
    buf_init(&c, 1u << 16);
    ck_assert_msg(!json_parse(&g, got, n, &json_strict, a, &e), "%s: %.*s", what, (int)n, got);
    OK(json_parse(&w, want, strlen(want), &json_strict, a, &e));
    json_put(&b, g);
    json_put(&c, w);
    ck_assert_msg(!strcmp(b.data, c.data), "%s: %s\n  want %s", what, b.data, c.data);
    buf_free(&b);
    buf_free(&c);
}

static void trip(const char *dir, bool marked, bool two)
{
    char path[200], *text;
    size_t n;
    struct arena a;
    eng_template *t;
    struct eng_chat_form form;
    struct json *body;
    struct gw_tools tools;
    struct gw_api_error ae;
    struct buf fed, args;
    const struct gw_part *p;
    uint32_t made = 0;
    arena_init(&a, 64u << 20);
    snprintf(path, sizeof path, "../shared/data/templates/%s/template.jinja", dir);
    text = mm_read(path, &n);
    OK(eng_template_open(&t, text, n, NULL, &e));
    OK(json_parse(&body, specials, sizeof specials - 1, &json_strict, &a, &e));
    eng_chat_probe(&form, t, body, NULL);
    const struct json *chosen = eng_format_choose(formats_sections(&a), text, n, &a);
    const char *tool_name = json_str(json_path(chosen, "tools.name"));
    ck_assert_msg(form.calls && tool_name, "%s", dir);
    struct eng_format *f = formats_open(tool_name, json_str(json_path(chosen, "reasoning.name")), marked, &a);
    OK(json_parse(&body, request, sizeof request - 1, &json_strict, &a, &e));
    ck_assert(!gw_tools_read(&tools, body, &a, &ae));
    char *history;
    ck_assert(asprintf(&history, messages, ARGS1) > 0);
    char *whole = render(t, &form, history, json_get(body, "tools"), &a);
    char *before = render(t, &form, "[{\"role\":\"user\",\"content\":\"q\"}]", json_get(body, "tools"), &a);
    while (*before && *before == *whole)
        before++, whole++;
    while (whole[-1] != '>' && whole[-1] != '\n' && whole[-1] != ']' && whole[-1] != 't') /* to the end of a mark that both have */
        whole--;
    buf_init(&fed, 1u << 20);
    buf_init(&args, 1u << 20);
    mark(f, whole, &fed);
    struct gw_calls_config cfg = {.format = f, .tools = &tools, .id_prefix = "call_", .bytes_max = 1u << 20};
    gw_calls *c = gw_calls_open(&cfg);
    ck_assert(gw_calls_feed(c, fed.data, fed.len, true));
    size_t np = gw_calls_parts(c, &p);
    for (size_t i = 0; i < np; i++) {
        if (p[i].type == GW_PART_CALL) {
            ck_assert_msg(!strncmp(p[i].s, made ? "now" : "get_weather", p[i].n), "%s: %.*s", dir, (int)p[i].n, p[i].s);
            buf_reset(&args);
        } else if (p[i].type == GW_PART_ARGUMENTS) {
            buf_add(&args, p[i].s, p[i].n);
        } else if (p[i].type == GW_PART_END) {
            ck_assert(!p[i].broken);
            expect_args(args.data, args.len, made ? ARGS2 : ARGS1, dir, &a);
            made++;
        }
    }
    ck_assert_msg(made == (two ? 2 : 1), "%s, %s: %u calls in: %s", dir, marked ? "marked" : "plain", made, whole);
    gw_calls_close(c);
    buf_free(&fed);
    buf_free(&args);
    free(history);
    free(text);
    eng_template_close(t);
    arena_free(&a);
}

/* Llama's second call begins a message of its own, which is no beginning of an answer. */
static const struct { const char *dir; bool two; } templates[] = {
    {"deepseek-r1-distill-llama", true}, {"deepseek-v3", true}, {"deepseek-v3.1", true}, {"gpt-oss", true}, {"hermes3-tool-use", true}, {"kimi-k2", true},
    {"kimi-k3", true}, {"llama3.1", false}, {"minimax-m2", true}, {"mistral-nemo", true}, {"qwen2.5", true}, {"qwen3", true}, {"qwen3-coder", true}};

START_TEST(core)
{
    if (access("../shared/data/templates", R_OK)) {
        printf("SKIP round trips: ../shared/data/templates is not here\n");
        return;
    }
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        for (int marked = 0; marked < 2; marked++)
            trip(templates[i].dir, marked, templates[i].two);
}
END_TEST

SUITE("gateway", "call_trip", core)
