/* A model's text becomes content, reasoning and calls: every format by table, cut in every way. */
#include "gateway/calls.h"
#include "gateway/json_scan.h"
#include "gateway/openai.h"
#include "tests/support/formats.h"
#include "tests/support/suite.h"

static const char request[] =
    "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"
    "\"days\":{\"type\":\"integer\"},\"unit\":{\"enum\":[\"c\",\"f\"]},\"metric\":{\"type\":\"boolean\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]}";
static struct gw_tools tools;

static void setup(struct arena *a)
{
    struct err e;
    struct json *body;
    struct gw_api_error ae;
    arena_init(a, 16u << 20);
    OK(json_parse(&body, request, sizeof request - 1, &json_strict, a, &e));
    ck_assert_msg(!gw_tools_read(&tools, body, a, &ae), "%s", ae.msg);
}

/* What was said, in short: T content, R reasoning, Cn=name#id, A arguments, E end, X broken end. Runs of a kind are one. */
static void put(struct buf *b, char *kind, const struct gw_part *p)
{
    static const char letters[] = "TRCAE";
    char k = p->type == GW_PART_END && p->broken ? 'X' : letters[p->type];
    if (k != *kind || k == 'C') {
        buf_printf(b, b->len ? "|%c:" : "%c:", k);
        *kind = k;
    }
    if (p->type == GW_PART_CALL)
        buf_printf(b, "%u %.*s#%.*s", p->call, (int)p->n, p->s, (int)p->id_n, p->id);
    else if (p->type == GW_PART_END)
        *kind = 0;
    else
        buf_add(b, p->s, p->n);
}

/* cut 0: random pieces; 1..: pieces of so many bytes. Parts are taken after every piece unless whole. */
static char *read_text(const struct gw_calls_config *cfg, const char *text, size_t n, size_t cut, unsigned seed)
{
    gw_calls *c = gw_calls_open(cfg);
    const struct gw_part *p;
    struct buf b;
    char kind = 0;
    ck_assert(c);
    buf_init(&b, 1u << 20);
    buf_str(&b, "");
    for (size_t at = 0; at < n || !n;) {
        size_t k = cut ? cut : 1 + (seed = seed * 1103515245u + 12345u, seed >> 16) % 17;
        k = k < n - at ? k : n - at;
        ck_assert(gw_calls_feed(c, text + at, k, at + k == n));
        at += k;
        if (cfg->whole && at < n)
            continue;
        size_t np = gw_calls_parts(c, &p);
        for (size_t i = 0; i < np; i++)
            put(&b, &kind, &p[i]);
        gw_calls_drop(c);
        if (!n)
            break;
    }
    gw_calls_close(c);
    return b.data;
}

/* ^ stands for ENG_MARK. */
static char *marked(const char *s)
{
    char *d = strdup(s);
    for (char *p = d; *p; p++)
        if (*p == '^')
            *p = ENG_MARK;
    return d;
}

static void says(const struct gw_calls_config *cfg, const char *text, const char *want, const char *what)
{
    char *raw = marked(text);
    for (size_t cut = 0; cut < 40; cut++) {
        char *got = read_text(cfg, raw, strlen(raw), cut > 8 ? (cut > 20 ? 0 : 1000) : cut, (unsigned)cut);
        ck_assert_msg(!strcmp(got, want), "%s, cut %zu%s: %s\n  want %s\n  got  %s", what, cut, cfg->whole ? ", whole" : "", text, want, got);
        free(got);
    }
    free(raw);
}

#define W "get_weather"
#define P "{\"city\": \"Köln\"}"
static const struct { const char *tools, *reasoning; bool in_reasoning; const char *text, *want; } cases[] = {
    {"hermes", NULL, false, "just text\n\n", "T:just text\n\n"},
    {"hermes", NULL, false, "Let me see.\n<tool_call>\n{\"name\": \"" W "\", \"arguments\": " P "}\n</tool_call>", "T:Let me see.|C:0 " W "#call_0|A:" P "|E:"},
    {"hermes", NULL, false, "<tool_call>{\"arguments\": " P ", \"name\": \"" W "\"}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call> done",
     "C:0 " W "#call_0|A:" P "|E:|C:1 now#call_1|A:{}|E:|T:done"},
    {"hermes", NULL, false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}", "C:0 now#call_0|A:{}|E:"},
    {"hermes", NULL, false, "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>", "T:<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"},
    {"hermes", NULL, false, "a <tool_call> is a tag, {\"name\": \"now\"}", "T:a <tool_call> is a tag, {\"name\": \"now\"}"},
    {"hermes", NULL, false, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"s\": \"a\nb\tc\"}}\n</tool_call>", "C:0 now#call_0|A:{\"s\": \"a\\nb\\tc\"}|E:"},
    {"hermes", "think", false, "<think>\nhm\n <tool_call>{\"name\":\"now\"}\n</think>\n\n<tool_call>{\"name\":\"now\"}</tool_call>",
     "R:hm\n <tool_call>{\"name\":\"now\"}|C:0 now#call_0|A:{}|E:"},
    {"hermes", "think", true, "hm</think>\n\nfine ", "R:hm|T:fine "},
    {"hermes", "think", true, "never ends\n", "R:never ends\n"},
    {"hermes", "think", false, "I say <think>x</think>", "T:I say <think>x</think>"},
    {"llama3", NULL, false, "{\"name\": \"" W "\", \"parameters\": " P "}", "C:0 " W "#call_0|A:" P "|E:"},
    {"llama3", NULL, false, "{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}; {\"name\": \"" W "\", \"parameters\": " P "}",
     "C:0 now#call_0|A:{}|E:|C:1 " W "#call_1|A:" P "|E:"},
    {"llama3", NULL, false, "^<|python_tag|>{\"name\": \"now\", \"parameters\": {\"x\": [1, -2.5e3, true, null]}}", "C:0 now#call_0|A:{\"x\": [1, -2.5e3, true, null]}|E:"},
    {"llama3", NULL, false, "{\"city\": 1}", "T:{\"city\": 1}"},
    {"llama3", NULL, false, "so: {\"name\": \"now\", \"parameters\": {}}", "T:so: {\"name\": \"now\", \"parameters\": {}}"},
    {"llama3", NULL, false, "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", "T:<|python_tag|>{\"name\": \"now\", \"parameters\": {}}"},
    {"mistral", NULL, false, "^[TOOL_CALLS][{\"name\": \"" W "\", \"arguments\": " P ", \"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]",
     "C:0 " W "#9|A:" P "|E:|C:1 now#9|A:{}|E:"},
    {"mistral", NULL, false, "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}]", "T:[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}]"},
    {"mistral_args", NULL, false, "Hm.^[TOOL_CALLS]" W "^[ARGS]" P "^[TOOL_CALLS]now^[CALL_ID]abcdefghi^[ARGS]{}", "T:Hm.|C:0 " W "#9|A:" P "|E:|C:1 now#abcdefghi|A:{}|E:"},
    {"deepseek_v3", NULL, false, "^<｜tool▁calls▁begin｜>^<｜tool▁call▁begin｜>function^<｜tool▁sep｜>" W "\n```json\n" P "\n```^<｜tool▁call▁end｜>\n"
     "^<｜tool▁call▁begin｜>function^<｜tool▁sep｜>now\n```json\n{}\n```^<｜tool▁call▁end｜>^<｜tool▁calls▁end｜>", "C:0 " W "#call_0|A:" P "|E:|C:1 now#call_1|A:{}|E:"},
    {"deepseek_v3_1", "think", true, "why</think>^<｜tool▁calls▁begin｜>^<｜tool▁call▁begin｜>" W "^<｜tool▁sep｜>" P "^<｜tool▁call▁end｜>^<｜tool▁calls▁end｜>",
     "R:why|C:0 " W "#call_0|A:" P "|E:"},
    {"kimi_k2", NULL, false, "ok^<|tool_calls_section_begin|>^<|tool_call_begin|>functions." W ":0^<|tool_call_argument_begin|>" P "^<|tool_call_end|>"
     "^<|tool_call_begin|>functions.now:1^<|tool_call_argument_begin|>{}^<|tool_call_end|>^<|tool_calls_section_end|>",
     "T:ok|C:0 " W "#functions." W ":0|A:" P "|E:|C:1 now#functions.now:1|A:{}|E:"},
    {"kimi_k2", NULL, false, "^<|tool_calls_section_begin|>^<|tool_call_begin|>functions.other:0^<|tool_call_argument_begin|>{}^<|tool_call_end|>", "T:functions.other:0{}"},
    {"kimi_k3", "kimi_k3", true, "hm ^<|close|>think^<|sep|>^<|open|>response^<|sep|>Let me.^<|close|>response^<|sep|>^<|open|>tools^<|sep|>"
     "^<|open|>call tool=\"" W "\" index=\"1\"^<|sep|>^<|open|>argument key=\"city\" type=\"string\"^<|sep|>Kö\"ln^<|close|>argument^<|sep|>"
     "^<|open|>argument key=\"a&quot;b\" type=\"array\"^<|sep|>[1, \"x\"]^<|close|>argument^<|sep|>^<|close|>call^<|sep|>"
     "^<|open|>call tool=\"now\" index=\"2\"^<|sep|>^<|close|>call^<|sep|>^<|close|>tools^<|sep|>^<|close|>message^<|sep|>",
     "R:hm|T:Let me.|C:0 " W "#call_0|A:{\"city\": \"Kö\\\"ln\", \"a\\\"b\": [1, \"x\"]}|E:|C:1 now#call_1|A:{}|E:"},
    {"kimi_k3", "kimi_k3", true, "hm^<|open|>tools^<|sep|>^<|open|>call tool=\"" W "\" index=\"1\"^<|sep|>^<|open|>json type=\"object\"^<|sep|>" P
     "^<|close|>json^<|sep|>^<|close|>call^<|sep|>^<|close|>tools^<|sep|>", "R:hm|C:0 " W "#call_0|A:" P "|E:"},
    {"kimi_k3", "kimi_k3", false, "answer^<|close|>message^<|sep|>", "T:answer"},
    {"qwen3_coder", NULL, false, "I look.\n<tool_call>\n<function=" W ">\n<parameter=city>\nKöln\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n</parameter>\n"
     "<parameter=metric>\nTrue\n</parameter>\n</function>\n</tool_call>",
     "T:I look.|C:0 " W "#call_0|A:{\"city\": \"Köln\", \"days\": 3, \"unit\": \"c\", \"metric\": true}|E:"},
    {"qwen3_coder", NULL, false, "<tool_call>\n<function=" W ">\n<parameter=city>\n  two\n\nlines\n\n</parameter>\n<parameter=days>\nmany\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=now>\n</function>\n</tool_call>", "C:0 " W "#call_0|A:{\"city\": \"  two\\n\\nlines\\n\", \"days\": \"many\"}|E:|C:1 now#call_1|A:{}|E:"},
    {"minimax_m2", "think", true, "why\n</think>\n\n<minimax:tool_call>\n<invoke name=\"" W "\">\n<parameter name=\"city\">K</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n"
     "<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>", "R:why|C:0 " W "#call_0|A:{\"city\": \"K\", \"days\": 2}|E:|C:1 now#call_1|A:{}|E:"},
    {"harmony", "harmony", false, "^<|channel|>analysis^<|message|>hm^<|end|>^<|start|>assistant^<|channel|>commentary to=functions." W " ^<|constrain|>json^<|message|>" P "^<|call|>",
     "R:hm|C:0 " W "#call_0|A:" P "|E:"},
    {"harmony", "harmony", false, "^<|channel|>analysis^<|message|>hm^<|end|>^<|start|>assistant^<|channel|>final^<|message|>Hello", "R:hm|T:Hello"},
    {"harmony", "harmony", false, "^<|channel|>commentary^<|message|>I will look.^<|end|>^<|start|>assistant to=functions.now^<|channel|>commentary json^<|message|>{}",
     "T:I will look.|C:0 now#call_0|A:{}|E:"},
    {"harmony", "harmony", false, "^<|channel|>final^<|message|>say <|channel|> to=functions.now", "T:say <|channel|> to=functions.now"},
    {"qwen2", NULL, false, "```json\n{\n  \"name\": \"" W "\",\n  \"arguments\": " P "\n}\n```", "C:0 " W "#call_0|A:" P "|E:"},
    {"qwen2", NULL, false, "{\"name\": \"" W "\", \"arguments\": " P "}", "C:0 " W "#call_0|A:" P "|E:"},
    {"qwen2", NULL, false, "Like this:\n```json\n{\"name\": \"" W "\", \"arguments\": " P "}\n```", "T:Like this:\n```json\n{\"name\": \"" W "\", \"arguments\": " P "}\n```"},
    {"qwen2", NULL, false, "```json\n{\"city\": 1}\n```", "T:```json\n{\"city\": 1}\n```"},
    {NULL, "think", true, "a\n\n</think>\nb\n", "R:a|T:b\n"},
};

/* Made-up ids are random: the first of each answer is call_0, the next call_1; nine characters are 9. */
static void plain_ids(char *s, const char *prefix)
{
    char *out = s;
    int k = 0;
    for (const char *p = s; *p;) {
        if (!strncmp(p, prefix, strlen(prefix)) && p > s && p[-1] == '#') {
            out += sprintf(out, "call_%d", k++);
            p += strlen(prefix) + 24;
        } else {
            *out++ = *p++;
        }
    }
    *out = 0;
}

static void check_case(size_t i, struct arena *a, bool whole)
{
    struct eng_format *f = formats_open(cases[i].tools, cases[i].reasoning, true, a);
    struct gw_calls_config cfg = {.format = f, .tools = &tools, .in_reasoning = cases[i].in_reasoning, .whole = whole, .id_prefix = "call_", .id_seed = 5, .bytes_max = 1u << 20};
    char *raw = marked(cases[i].text), *first = read_text(&cfg, raw, strlen(raw), 1000000, 0), *shown = strdup(first);
    plain_ids(shown, "call_");
    if (cases[i].tools && !strncmp(cases[i].tools, "mistral", 7)) /* nine letters and digits */
        for (char *p = shown; (p = strchr(p, '#')); p++)
            if (strncmp(p + 1, "abcdefghi", 9)) {
                p[1] = '9';
                memmove(p + 2, p + 10, strlen(p + 10) + 1);
            }
    ck_assert_msg(!strcmp(shown, cases[i].want), "%s%s: %s\n  want %s\n  got  %s", cases[i].tools ? cases[i].tools : "-", whole ? ", whole" : "", cases[i].text,
                  cases[i].want, shown);
    says(&cfg, cases[i].text, first, cases[i].tools ? cases[i].tools : "-");
    free(first);
    free(shown);
    free(raw);
}

START_TEST(core)
{
    struct arena a;
    setup(&a);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int whole = 0; whole < 2; whole++)
            check_case(i, &a, whole);
    arena_free(&a);
}
END_TEST

/* What breaks off or breaks down: with `whole` all of it is content, otherwise what left before stays said. */
static const struct { const char *tools, *text, *whole, *stream; } broken[] = {
    {"hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": 1", "T:<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": 1", "C:0 now#|A:{\"x\": 1|X:"},
    {"hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": oh}}\n</tool_call>", "T:<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": oh}}\n</tool_call>",
     "C:0 now#|A:{\"x\": |X:|T:oh}}\n</tool_call>"},
    {"hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": n^<tool_call>", "T:<tool_call>\n{\"name\": \"now\", \"arguments\": {\"x\": n<tool_call>", "C:0 now#|A:{\"x\": n|X:|T:<tool_call>"},
    {"hermes", "<tool_call>\n{\"name\": \"now\"", "T:<tool_call>\n{\"name\": \"now\"", "T:<tool_call>\n{\"name\": \"now\""},
    {"hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}} or so", "T:<tool_call>\n{\"name\": \"now\", \"arguments\": {}} or so", "C:0 now#|A:{}|X:|T:} or so"},
    {"kimi_k2", "^<|tool_calls_section_begin|>^<|tool_call_begin|>functions.now:0^<|tool_call_argument_begin|>{\"x\"^<|tool_call_end|>", "T:functions.now:0{\"x\"",
     "C:0 now#functions.now:0|A:{\"x\"|X:"},
    {"qwen3_coder", "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n", "T:<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n", "C:0 now#|A:{\"a\": 1|X:"},
    {"qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nKö", "T:<tool_call>\n<function=get_weather>\n<parameter=city>\nKö", "C:0 get_weather#|A:{\"city\": \"Kö|X:"},
    {"qwen3_coder", "<tool_call>\n<function=now>\nwhat?\n</function>", "T:<tool_call>\n<function=now>\nwhat?\n</function>", "C:0 now#|X:|T:what?\n</function>"},
};

START_TEST(malformed)
{
    struct arena a;
    setup(&a);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        for (int whole = 0; whole < 2; whole++) {
            struct eng_format *f = formats_open(broken[i].tools, NULL, true, &a);
            struct gw_calls_config cfg = {.format = f, .tools = &tools, .whole = whole, .id_prefix = "", .id_seed = 5, .bytes_max = 1u << 20};
            char *raw = marked(broken[i].text), *first = read_text(&cfg, raw, strlen(raw), 1000000, 0), *shown = strdup(first), *id = strchr(shown, '#');
            if (id && id[1] != 'f')
                memmove(id + 1, id + 25, strlen(id + 25) + 1);
            ck_assert_msg(!strcmp(shown, whole ? broken[i].whole : broken[i].stream), "%s\n  got %s", broken[i].text, shown);
            says(&cfg, broken[i].text, first, broken[i].tools);
            free(first);
            free(shown);
            free(raw);
        }
    arena_free(&a);
}
END_TEST

START_TEST(choices)
{
    struct arena a;
    setup(&a);
    static const char two[] = "<tool_call>{\"name\":\"now\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call>bye";
    struct gw_calls_config cfg = {.format = formats_open("hermes", NULL, false, &a), .tools = &tools, .id_prefix = "x", .bytes_max = 1u << 20};
    struct gw_tools one = tools, none = {0};
    one.parallel = false;
    cfg.tools = &one;
    char *got = read_text(&cfg, two, sizeof two - 1, 3, 0);
    ck_assert_msg(!strncmp(got, "C:0 now#x", 9) && !strcmp(got + 9 + 24, "|A:{}|E:"), "%s", got);
    free(got);
    cfg.tools = NULL;
    says(&cfg, two, "T:<tool_call>{\"name\":\"now\"}</tool_call><tool_call>{\"name\":\"now\"}</tool_call>bye", "no tools");
    cfg.tools = &none;
    says(&cfg, "x <tool_call> ", "T:x <tool_call> ", "empty tools");
    says(&cfg, "", "", "nothing");
    arena_free(&a);
}
END_TEST

/* Held-back text is bounded, and where the bound lies does not depend on the cutting. */
START_TEST(limits)
{
    struct arena a;
    struct buf b;
    setup(&a);
    struct gw_calls_config cfg = {.format = formats_open("hermes", NULL, false, &a), .tools = &tools, .id_prefix = "", .bytes_max = 4u << 20};
    buf_init(&b, 1u << 20);
    static const size_t spaces[] = {10, 255, 256, 257, 600};
    for (size_t k = 0; k < 5; k++) {
        buf_reset(&b);
        buf_str(&b, "x");
        for (size_t i = 0; i < spaces[k]; i++)
            buf_char(&b, i & 1 ? ' ' : '\n');
        buf_str(&b, "<tool_call>{\"name\":\"now\"}</tool_call>");
        char *first = read_text(&cfg, b.data, b.len, 100000, 0);
        ck_assert_uint_eq(strlen(first), strlen("T:x|C:0 now#|A:{}|E:") + 24 + (spaces[k] > 256 ? spaces[k] : 0));
        says(&cfg, b.data, first, "spaces");
        free(first);
    }
    buf_reset(&b);
    buf_str(&b, "<tool_call>{\"arguments\": {\"x\": \"");
    for (size_t i = 0; i < GW_CALLS_HOLD; i++)
        buf_char(&b, 'a');
    buf_str(&b, "\"}, \"name\": \"now\"}</tool_call>");
    for (size_t cut = 1000; cut < 40000; cut += 7000) { /* the name comes too late: text */
        char *got = read_text(&cfg, b.data, b.len, cut, 0);
        ck_assert(got[0] == 'T' && strlen(got) == b.len + 2);
        free(got);
    }
    buf_free(&b);
    arena_free(&a);
}
END_TEST

START_TEST(json)
{
    static const char *const good[] = {"{}", "[]", " {\"a\":[1,2,{\"b\":null}],\"c\":\"\\u00e9\\n\"} ", "-0.5e+10", "0", "true", "\"x\"", "[[[]]]", "1 "};
    static const char *const bad[] = {"", "{", "{,}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1,]", "01", "1.", "-", "1e", "tru", "truex", "\"", "\"\\x\"", "{}{}", "{a:1}", "'x'", "\"\xFF\"", "[1}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_msg(gw_scan_is_json(good[i], strlen(good[i])), "refused: %s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!gw_scan_is_json(bad[i], strlen(bad[i])), "taken: %s", bad[i]);
    char deep[200];
    memset(deep, '[', GW_SCAN_DEPTH + 1);
    memset(deep + GW_SCAN_DEPTH + 1, ']', GW_SCAN_DEPTH + 1);
    ck_assert(!gw_scan_is_json(deep, 2 * GW_SCAN_DEPTH + 2) && gw_scan_is_json(deep + 1, 2 * GW_SCAN_DEPTH));
}
END_TEST

SUITE("gateway", "calls", core, malformed, choices, limits, json)
