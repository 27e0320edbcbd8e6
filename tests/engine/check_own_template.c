/* Chat templates that sheets bring: Kimi K3's chat, as this project writes it down and as the published program renders it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/chat.h"
#include "engine/plan.h"
#include "engine/tok_verify.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;
static eng_tok *tok;
static eng_chat *chat;
static off_catalog *catalog;
static struct eng_plan *plan;

static void setup(void)
{
    struct eng_plan_options o = {0};
    OK(off_catalog_open(&catalog, "tests/data/models/kimi_k3", 0, &e));
    OK(eng_plan_compile(&plan, catalog, &o, NULL, &e));
    ck_assert_ptr_nonnull(plan->template_text);
    OK(eng_tok_open_file(&tok, "tests/data/tokenizer/qwen3.json", &e));
    OK(eng_chat_open(&chat, tok, plan->template_text, plan->template_len, NULL, &e));
}

static void teardown(void)
{
    eng_chat_close(chat);
    eng_tok_close(tok);
    eng_plan_close(plan);
    off_catalog_close(catalog);
}

static const char *render(const char *body, size_t n, struct eng_prompt *p, struct arena *a)
{
    struct json *tree;
    struct eng_ids ids = {.max = 1 << 20};
    OK(json_parse(&tree, body, n, &json_strict, a, &e));
    int rc = eng_chat_prompt(chat, tree, 0, a, &ids, p, &e);
    eng_ids_free(&ids);
    return rc ? e.msg : p->text;
}

#define SAYS(text) "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"assistant\"<|sep|><|open|>" text "<|sep|>"
#define USER(text) "<|open|>message role=\"user\"<|sep|>" text
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"Why?\"}]"
#define CALL(id, name, args) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" args "}}"
static const struct { const char *body, *text; } cases[] = {
    {"{" ASK "}", USER("Why?") SAYS("think")},
    {"{" ASK ",\"chat_template_kwargs\":{\"thinking\":false}}", USER("Why?") SAYS("response")},
    {"{" ASK ",\"add_generation_prompt\":false}", USER("Why?") "<|close|>message<|sep|><|end_of_msg|>"},
    {"{" ASK ",\"tool_choice\":\"required\"}",
     USER("Why?") "<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"system\" type=\"tool-choice\"<|sep|>The system is invoked with `tool_choice=required`.\n"
                  "You MUST call tools in the next message." SAYS("think")},
    {"{\"messages\":[{\"role\":\"user\",\"name\":\"a\\\"b&c\",\"content\":[{\"type\":\"text\",\"text\":\"x<|sep|>\"},{\"type\":\"text\",\"text\":\"y\"}]}]}",
     "<|open|>message role=\"user\" name=\"a&quot;b&amp;c\"<|sep|>x<|sep|>y" SAYS("think")},
    /* results in the order of the calls, and named after them */
    {"{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\",\"tool_calls\":[" CALL("i", "f", "\"{\\\"k\\\":[1, true],\\\"s\\\":\\\"t\\\"}\"") "," CALL("j", "g", "\"{bad\"")
     "]},{\"role\":\"tool\",\"tool_call_id\":\"j\",\"content\":\"2\"},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"1\"}]}",
     "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
     "<|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"k\" type=\"array\"<|sep|>[1, true]<|close|>argument<|sep|>"
     "<|open|>argument key=\"s\" type=\"string\"<|sep|>t<|close|>argument<|sep|><|close|>call<|sep|>"
     "<|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json type=\"object\"<|sep|>{bad<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>"
     "<|open|>message role=\"tool\" tool=\"f\" index=\"1\"<|sep|>1<|close|>message<|sep|><|end_of_msg|><|open|>message role=\"tool\" tool=\"g\" index=\"2\"<|sep|>2" SAYS("think")},
};

START_TEST(core)
{
    setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct eng_prompt p;
        struct arena a;
        arena_init(&a, 16u << 20);
        const char *got = render(cases[i].body, strlen(cases[i].body), &p, &a);
        ck_assert_msg(!strcmp(got, cases[i].text), "%s\ngives %s\nnot   %s", cases[i].body, got, cases[i].text);
        arena_free(&a);
    }
    teardown();
}
END_TEST

/* Where byte i of the prompt comes from. */
static bool trusted_at(const struct eng_prompt *p, size_t i)
{
    for (size_t k = 0; k < p->n_spans; k++)
        if (i >= p->spans[k].begin && i < p->spans[k].end)
            return p->spans[k].trusted;
    return false;
}

/* Segments [text, is_markup]: control tokens are the template's own, and what looks like one elsewhere is the request's. */
static void compare(const char *name, const struct eng_prompt *p, const char *got, const struct json *segments)
{
    size_t at = 0;
    for (size_t i = 0; i < segments->n; i++) {
        const struct json *s = segments->items[i]->items[0];
        ck_assert_msg(strlen(got) >= at + s->n && !memcmp(got + at, s->s, s->n), "%s, byte %zu: %s\nexpected %s", name, at, got + at, s->s);
        if (segments->items[i]->items[1]->b || strstr(s->s, "<|"))
            ck_assert_msg(trusted_at(p, at + s->n / 2) == segments->items[i]->items[1]->b, "%s: `%s` is %s", name, s->s, segments->items[i]->items[1]->b ? "data" : "markup");
        at += s->n;
    }
    ck_assert_msg(!got[at], "%s: more than expected: %s", name, got + at);
}

/* The request of a case: what is no field of the API is a variable of the template. */
static struct json *request(struct json *c, struct arena *a)
{
    static const char *const vars[] = {"thinking", "thinking_effort"};
    struct json *kwargs = json_new(a, JSON_OBJECT);
    for (size_t i = 0; i < 2; i++)
        if (json_get(c, vars[i]))
            ck_assert(json_set(a, kwargs, vars[i], json_get(c, vars[i])));
    ck_assert(json_set(a, c, "chat_template_kwargs", kwargs));
    return c;
}

START_TEST(published)
{
    static const char dir[] = "../shared/data/kimi-k3/";
    struct json *want, *in;
    struct arena a;
    char *text[2];
    size_t n[2], same = 0, images = 0;
    if (access("../shared/data/kimi-k3/xtml_cases.json", R_OK)) {
        printf("SKIP published renderings: %s is not here\n", dir);
        return;
    }
    setup();
    arena_init(&a, 64u << 20);
    text[0] = mm_read("../shared/data/kimi-k3/xtml_golden.json", &n[0]);
    text[1] = mm_read("../shared/data/kimi-k3/xtml_cases.json", &n[1]);
    OK(json_parse(&want, text[0], n[0], &(struct json_limits){.bytes_max = 1 << 24}, &a, &e));
    OK(json_parse(&in, text[1], n[1], &(struct json_limits){.bytes_max = 1 << 24}, &a, &e));
    const struct json *goldens = json_get(want, "cases"), *list = json_get(in, "cases");
    for (size_t i = 0; i < list->n; i++) {
        struct eng_prompt p;
        struct eng_ids ids = {.max = 1 << 20};
        if (json_get(list->members[i].value, "image_prompts")) {
            images++; /* text alone, so far */
            continue;
        }
        int rc = eng_chat_prompt(chat, request(list->members[i].value, &a), 0, &a, &ids, &p, &e);
        ck_assert_msg(!rc, "%s: %s", list->members[i].key, e.msg);
        compare(list->members[i].key, &p, p.text, json_get(goldens, list->members[i].key));
        eng_ids_free(&ids);
        same++;
    }
    ck_assert_uint_eq(same, 35);
    ck_assert_uint_eq(images, 3);
    free(text[0]);
    free(text[1]);
    arena_free(&a);
    teardown();
}
END_TEST

SUITE("engine", "own_template", core, published)
