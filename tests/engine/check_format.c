/* Descriptions of calls and reasoning: what a template chooses, patterns as steps, control tokens marked, mistakes named. */
#include <unistd.h>

#include "engine/format.h"
#include "tests/support/formats.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;

static const struct { const char *dir, *tools, *reasoning; } published[] = {
    {"deepseek-r1-distill-llama", "deepseek_v3", "think"}, {"deepseek-v3", "deepseek_v3", NULL}, {"deepseek-v3.1", "deepseek_v3_1", "think"}, {"gemma3", NULL, NULL},
    {"gpt-oss", "harmony", "harmony"}, {"hermes3-tool-use", "qwen2", NULL}, {"kimi-k2", "kimi_k2", NULL}, {"kimi-k2-instruct", "kimi_k2", NULL},
    {"kimi-k3", "kimi_k3", "kimi_k3"}, {"llama3.1", "llama3", NULL}, {"minimax-m2", "minimax_m2", "think"}, {"mistral-nemo", "mistral", NULL}, {"mistral-v1", NULL, NULL},
    {"phi3.5", NULL, NULL}, {"qwen2.5", "qwen2", NULL}, {"qwen3", "qwen2", "think"}, {"qwen3-coder", "qwen3_coder", NULL}, {"smollm2", NULL, NULL},
    {"smollm3", NULL, "think"}};

START_TEST(choosing)
{
    struct arena a;
    arena_init(&a, 16u << 20);
    const struct json *sections = formats_sections(&a);
    OK(eng_format_check(sections, &a, &e));
    if (access("../shared/data/templates", R_OK)) {
        printf("SKIP published templates: ../shared/data/templates is not here\n");
        arena_free(&a);
        return;
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        char path[200];
        size_t n;
        snprintf(path, sizeof path, "../shared/data/templates/%s/template.jinja", published[i].dir);
        char *text = mm_read(path, &n);
        const struct json *c = eng_format_choose(sections, text, n, &a);
        const char *t = json_str(json_path(c, "tools.name")), *r = json_str(json_path(c, "reasoning.name"));
        ck_assert_msg(!strcmp(t ? t : "-", published[i].tools ? published[i].tools : "-"), "%s: calls %s", path, t);
        ck_assert_msg(!strcmp(r ? r : "-", published[i].reasoning ? published[i].reasoning : "-"), "%s: reasoning %s", path, r);
        free(text);
    }
    arena_free(&a);
}
END_TEST

START_TEST(core)
{
    struct arena a;
    arena_init(&a, 16u << 20);
    const struct json *c = eng_format_choose(formats_sections(&a), NULL, 0, &a);
    struct eng_format f;
    OK(eng_format_read(&f, c, NULL, &a, &e));
    ck_assert(!f.has_tools && !f.has_reasoning && !f.n_markers);
    struct eng_format *k = formats_open("kimi_k2", NULL, true, &a);
    ck_assert(k->has_tools && !k->has_reasoning && k->n_markers == 5 && eng_format_is_marker(k, 10) && !eng_format_is_marker(k, 14));
    const struct eng_pattern *p = &k->tools.call[0];
    ck_assert(p->n == 5 && p->v[0].kind == ENG_STEP_LITERAL && p->v[0].s[0] == ENG_MARK && p->v[1].kind == ENG_STEP_ID && p->v[3].kind == ENG_STEP_ARGUMENTS && eng_format_marked(p));
    k = formats_open("kimi_k2", NULL, false, &a);
    ck_assert(!k->n_markers && k->tools.call[0].v[0].s[0] == '<' && !eng_format_marked(&k->tools.call[0]));
    k = formats_open("hermes", "think", true, &a); /* <tool_call> is an added token, but no special one: its text comes anyway */
    ck_assert(!k->n_markers && k->tools.call[0].v[1].kind == ENG_STEP_OBJECT && !strcmp(k->tools.key_arguments, "arguments"));
    arena_free(&a);
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *text, *says; } bad[] = {
        {"{\"tools\":[]}", "tools: expected an object"}, {"{\"tools\":{\"x\":{}}}", "tools.x.when"}, {"{\"tools\":{\"x\":{\"when\":[\"a\"]}}}", "tools.x.call"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{what}\"}}}", "tools.x.call: expected other fields"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"<c>\"}}}", "{object}"}, {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{arguments} {name}\"}}}", "before its arguments"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{name}{arguments}\"}}}", "between two fields"}, {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"<{name\"}}}", "closing brace"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"<{name}>{members}</>\"}}}", "a `member`"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"<{name}>{members}</>\",\"member\":\"{key}={value};\"}}}", "tools.x.member"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{object}\",\"colour\":1}}}", "tools.x.colour: expected no such field"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{object}\",\"id\":\"{index}\"}}}", "tools.x.id"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{object}\",\"keys\":[\"n\"]}}}", "tools.x.keys"},
        {"{\"tools\":{\"x\":{\"when\":[\"a\"],\"call\":\"{object}\",\"escape\":\"url\"}}}", "tools.x.escape"},
        {"{\"reasoning\":{\"x\":{\"when\":[\"a\"],\"open\":\"<t>\"}}}", "reasoning.x.open"}, {"{\"reasoning\":{\"x\":{\"when\":[],\"open\":\"<t>\",\"close\":\"</t>\"}}}", "reasoning.x.when"},
        {"{\"reasoning\":{\"x\":{\"when\":[\"a\"],\"open\":\"<t>\",\"close\":\"</t>\",\"drop\":\"y\"}}}", "reasoning.x.drop"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct arena a;
        struct json *s;
        arena_init(&a, 16u << 20);
        OK(json_parse(&s, bad[i].text, strlen(bad[i].text), &json_strict, &a, &e));
        ck_assert_msg(eng_format_check(s, &a, &e) == ERR_FORMAT, "taken: %s", bad[i].text);
        ck_assert_msg(strstr(e.msg, bad[i].says) != NULL, "%s: expected \"%s\" in \"%s\"", bad[i].text, bad[i].says, e.msg);
        arena_free(&a);
    }
}
END_TEST

SUITE("engine", "format", core, choosing, errors)
