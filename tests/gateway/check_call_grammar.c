/* Grammars of calls: each format's own spelling is in them and ends there, other functions and wrong arguments are not, and what they let through
 * is read back as the calls it is. */
#include "engine/grammar.h"
#include "gateway/call_grammar.h"
#include "gateway/calls.h"
#include "gateway/openai.h"
#include "tests/support/formats.h"
#include "tests/support/suite.h"

static struct err e;
static const char request[] =
    "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"},\"unit\":{\"type\":\"string\",\"enum\":[\"c\",\"f\"]}},\"required\":[\"city\",\"days\",\"unit\"],\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]%s}";

struct rig { struct arena a; struct eng_format *f; struct gw_tools tools; eng_tok *tok; eng_vocab *v; };

static void open_rig(struct rig *r, const char *tools, const char *reasoning, const char *more)
{
    struct json *body;
    struct gw_api_error ae;
    char *text;
    arena_init(&r->a, 16u << 20);
    r->f = formats_open(tools, reasoning, true, &r->a);
    r->tok = formats_tokenizer();
    OK(eng_vocab_open(&r->v, r->tok, 64, &e));
    ck_assert(asprintf(&text, request, more) > 0);
    OK(json_parse(&body, text, strlen(text), &json_strict, &r->a, &e));
    ck_assert_msg(!gw_tools_read(&r->tools, body, &r->a, &ae), "%s", ae.msg);
    free(text);
}

static void close_rig(struct rig *r)
{
    eng_vocab_close(r->v);
    eng_tok_close(r->tok);
    arena_free(&r->a);
}

/* How much of the text the grammar takes: all of it and whole 2, all of it 1, less 0. ^ stands for ENG_MARK. */
static int takes(struct rig *r, const struct buf *gbnf, const char *text)
{
    eng_grammar *g;
    struct eng_grammar_state s;
    int rc = 0;
    ck_assert_msg(!eng_grammar_compile(&g, gbnf->data, gbnf->len, r->tok, &e), "%s in %s", e.msg, gbnf->data);
    eng_grammar_begin(g, r->v, 0);
    OK(eng_grammar_start(g, &s, &e));
    for (const char *p = text; *p && !rc;) {
        size_t n = strcspn(p, "^"), len = 0;
        int32_t id = -1;
        rc = n ? eng_grammar_bytes_accept(g, &s, p, n, &e) : 0;
        p += n;
        for (uint32_t i = 0; *p == '^' && i < r->f->n_markers; i++)
            if (!strncmp(p + 1, r->f->marker_text[i].s, r->f->marker_text[i].n)) {
                id = r->f->markers[i];
                len = r->f->marker_text[i].n;
            }
        if (*p == '^' && !rc) {
            ck_assert_msg(id >= 0, "no control token at %s", p);
            rc = eng_grammar_accept(g, &s, id, &e);
            p += len + 1;
        }
    }
    int out = rc ? 0 : eng_grammar_may_end(g, s) ? 2 : 1;
    eng_grammar_close(g);
    return out;
}

static uint32_t calls_in(struct rig *r, const char *text, enum gw_call_place place)
{
    char *raw = strdup(text);
    for (char *p = raw; *p; p++)
        if (*p == '^')
            *p = ENG_MARK;
    struct gw_calls_config cfg = {.format = r->f, .tools = &r->tools, .in_reasoning = place == GW_PLACE_REASONING, .id_prefix = "", .bytes_max = 1u << 20};
    gw_calls *c = gw_calls_open(&cfg);
    ck_assert(gw_calls_feed(c, raw, strlen(raw), true));
    uint32_t n = gw_calls_made(c);
    ck_assert_uint_eq(gw_calls_broken(c), 0);
    gw_calls_close(c);
    free(raw);
    return n;
}

#define ARGS "{\"city\": \"Köln\", \"days\": 2, \"unit\": \"c\"}"
static const struct { const char *tools, *reasoning; enum gw_call_place place; const char *text; uint32_t n; } good[] = {
    {"hermes", NULL, GW_PLACE_START, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS "}\n</tool_call>", 1},
    {"hermes", NULL, GW_PLACE_START, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " ARGS "}\n</tool_call>", 2},
    {"hermes", "think", GW_PLACE_START, "<think>\nwell < then\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", 1},
    {"hermes", "think", GW_PLACE_REASONING, "hm\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": [1]}}\n</tool_call>", 1},
    {"llama3", NULL, GW_PLACE_START, "{\"name\": \"get_weather\", \"parameters\": " ARGS "}", 1},
    {"mistral", NULL, GW_PLACE_START, "^[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " ARGS "}, {\"name\": \"now\", \"arguments\": {}}]", 2},
    {"mistral_args", NULL, GW_PLACE_START, "^[TOOL_CALLS]get_weather^[ARGS]" ARGS "^[TOOL_CALLS]now^[ARGS]{}", 2},
    {"deepseek_v3", NULL, GW_PLACE_START, "^<｜tool▁calls▁begin｜>^<｜tool▁call▁begin｜>function^<｜tool▁sep｜>get_weather\n```json\n" ARGS "\n```^<｜tool▁call▁end｜>^<｜tool▁calls▁end｜>", 1},
    {"deepseek_v3_1", "think", GW_PLACE_REASONING, "w</think>^<｜tool▁calls▁begin｜>^<｜tool▁call▁begin｜>get_weather^<｜tool▁sep｜>" ARGS "^<｜tool▁call▁end｜>^<｜tool▁calls▁end｜>", 1},
    {"kimi_k2", NULL, GW_PLACE_START, "^<|tool_calls_section_begin|>^<|tool_call_begin|>functions.get_weather:0^<|tool_call_argument_begin|>" ARGS "^<|tool_call_end|>^<|tool_calls_section_end|>", 1},
    {"kimi_k3", "kimi_k3", GW_PLACE_REASONING, "hm^<|close|>think^<|sep|>^<|open|>response^<|sep|>ok^<|close|>response^<|sep|>^<|open|>tools^<|sep|>^<|open|>call tool=\"get_weather\" index=\"1\"^<|sep|>"
     "^<|open|>argument key=\"city\" type=\"string\"^<|sep|>Köln^<|close|>argument^<|sep|>^<|open|>argument key=\"days\" type=\"number\"^<|sep|>2^<|close|>argument^<|sep|>"
     "^<|open|>argument key=\"unit\" type=\"string\"^<|sep|>c^<|close|>argument^<|sep|>^<|close|>call^<|sep|>^<|close|>tools^<|sep|>", 1},
    {"kimi_k3", "kimi_k3", GW_PLACE_CONTENT, "^<|close|>response^<|sep|>^<|open|>tools^<|sep|>^<|open|>call tool=\"now\" index=\"1\"^<|sep|>^<|close|>call^<|sep|>^<|close|>tools^<|sep|>", 1},
    {"qwen3_coder", NULL, GW_PLACE_START, "<tool_call>\n<function=get_weather>\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=unit>\nf\n</parameter>\n</function>\n</tool_call>", 1},
    {"minimax_m2", NULL, GW_PLACE_START, "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">K</parameter>\n<parameter name=\"days\">2</parameter>\n"
     "<parameter name=\"unit\">c</parameter>\n</invoke>\n</minimax:tool_call>", 1},
    {"harmony", "harmony", GW_PLACE_START, "^<|channel|>analysis^<|message|>hm^<|end|>^<|start|>assistant^<|channel|>commentary to=functions.get_weather ^<|constrain|>json^<|message|>" ARGS "^<|call|>", 1},
    {"harmony", "harmony", GW_PLACE_START, "^<|channel|>commentary to=functions.now ^<|constrain|>json^<|message|>{}^<|call|>", 1},
};

START_TEST(core)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct rig r;
        struct gw_call_grammar g;
        uint32_t bad;
        open_rig(&r, good[i].tools, good[i].reasoning, ",\"tool_choice\":\"required\",\"parallel_tool_calls\":true");
        OK(gw_call_grammar(&g, r.f, &r.tools, good[i].place, r.tok, &bad, &e));
        ck_assert(!g.trigger.len);
        ck_assert_msg(takes(&r, &g.text, good[i].text) == 2, "%s: %s\n%s\n%s", good[i].tools, e.msg, good[i].text, g.text.data);
        ck_assert_uint_eq(calls_in(&r, good[i].text, good[i].place), good[i].n);
        char *cut = strdup(good[i].text);
        cut[strlen(cut) - 12] = 0;
        for (char *p = cut; (p = strchr(p, '^')); p++) { /* not in the middle of a control token's name */
            bool whole = false;
            for (uint32_t k = 0; k < r.f->n_markers; k++)
                whole |= !strncmp(p + 1, r.f->marker_text[k].s, r.f->marker_text[k].n);
            if (!whole)
                *p-- = 0;
        }
        ck_assert_msg(takes(&r, &g.text, cut) == 1, "%s ends early: %s", good[i].tools, cut);
        free(cut);
        gw_call_grammar_free(&g);
        close_rig(&r);
    }
}
END_TEST

START_TEST(refused)
{
    static const struct { const char *more, *text; int takes; } some[] = {
        {",\"tool_choice\":\"required\"", "Hello", 0}, {",\"tool_choice\":\"required\"", "<tool_call>\n{\"name\": \"other\"", 0},
        {",\"tool_choice\":\"required\"", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 5", 0},
        {",\"tool_choice\":\"required\"", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}", 0},
        {",\"tool_choice\":\"required\"", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"any\": 5}}", 1},
        {",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}", "<tool_call>\n{\"name\": \"get_weather\"", 0},
        {",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", 2},
        {",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"now\"}}", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<", 0},
        {",\"tool_choice\":\"required\"", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<", 0}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct rig r;
        struct gw_call_grammar g;
        uint32_t bad;
        open_rig(&r, "hermes", NULL, some[i].more);
        OK(gw_call_grammar(&g, r.f, &r.tools, GW_PLACE_START, r.tok, &bad, &e));
        ck_assert_msg(takes(&r, &g.text, some[i].text) == some[i].takes, "%s: %s", some[i].text, g.text.data);
        gw_call_grammar_free(&g);
        close_rig(&r);
    }
}
END_TEST

/* Strict tools that may be called: what follows the trigger. */
static const struct { const char *tools, *trigger, *text; } strict[] = {
    {"hermes", "<tool_call>", "\n{\"name\": \"get_weather\", \"arguments\": " ARGS "}\n</tool_call>"},
    {"llama3", "{\"name\": ", "\"get_weather\", \"parameters\": " ARGS "}"},
    {"mistral", "[TOOL_CALLS]", "[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": " ARGS "}]"},
    {"kimi_k2", "<|tool_call_begin|>", "functions.get_weather:12^<|tool_call_argument_begin|>" ARGS "^<|tool_call_end|>"},
    {"qwen3_coder", "<tool_call>\n<function=", "now>\n</function>\n</tool_call>"},
    {"harmony", "<|channel|>commentary to=functions.", "get_weather ^<|constrain|>json^<|message|>" ARGS "^<|call|>"}};

START_TEST(triggers)
{
    for (size_t i = 0; i < sizeof strict / sizeof *strict; i++) {
        struct rig r;
        struct gw_call_grammar g;
        uint32_t bad;
        open_rig(&r, strict[i].tools, NULL, "");
        OK(gw_call_grammar(&g, r.f, &r.tools, GW_PLACE_START, r.tok, &bad, &e));
        ck_assert_str_eq(g.trigger.data, strict[i].trigger);
        ck_assert_msg(takes(&r, &g.text, strict[i].text) == 2, "%s: %s\n%s", strict[i].tools, e.msg, g.text.data);
        gw_call_grammar_free(&g);
        r.tools.v[0].strict = false; /* nothing is demanded then */
        OK(gw_call_grammar(&g, r.f, &r.tools, GW_PLACE_START, r.tok, &bad, &e));
        ck_assert(!g.text.len && !g.trigger.len);
        gw_call_grammar_free(&g);
        close_rig(&r);
    }
}
END_TEST

/* A schema that cannot be compiled: refused where it was promised, any object elsewhere. */
START_TEST(errors)
{
    static const char odd[] = "{\"type\":\"object\",\"properties\":{\"x\":{\"not\":{\"type\":\"string\"}}}}";
    struct rig r;
    struct gw_call_grammar g;
    uint32_t bad = 9;
    struct json *schema;
    open_rig(&r, "hermes", NULL, ",\"tool_choice\":\"required\"");
    OK(json_parse(&schema, odd, sizeof odd - 1, &json_strict, &r.a, &e));
    r.tools.v[1].parameters = schema;
    OK(gw_call_grammar(&g, r.f, &r.tools, GW_PLACE_START, r.tok, &bad, &e));
    ck_assert_int_eq(takes(&r, &g.text, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": \"y\"}}\n</tool_call>"), 2);
    gw_call_grammar_free(&g);
    r.tools.v[1].strict = true;
    int rc = gw_call_grammar(&g, r.f, &r.tools, GW_PLACE_START, r.tok, &bad, &e);
    ck_assert_msg((rc == ERR_UNSUPPORTED || rc == ERR_INVALID) && bad == 1 && strstr(e.msg, "#/properties/x"), "%s", e.msg);
    gw_call_grammar_free(&g);
    close_rig(&r);
}
END_TEST

SUITE("gateway", "call_grammar", core, refused, triggers, errors)
