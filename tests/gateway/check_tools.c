/* Tools and reasoning through the whole gateway, both APIs, streamed and not; what requests say of tools. The engine is made up: its text is in the prompt. */
#include <stdio.h>

#include "base/json.h"
#include "gateway/anthropic.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/app_rig.h"
#include "tests/support/suite.h"

static void open_all(const char *format)
{
    app_prepare();
    app.fc.format = format;
    app_open();
}

/* The answer as it came; chunked coding is left in, which no text looked for here crosses. */
static const char *ask(const char *path, const char *body)
{
    int fd = app_dial(0);
    app_send_request(fd, "POST", path, AUTH, body);
    return app_raw(fd);
}

static void has(const char *s, const char *want) { ck_assert_msg(strstr(s, want) != NULL, "no %s in %s", want, s); }
static void has_not(const char *s, const char *bad) { ck_assert_msg(!strstr(s, bad), "%s in %s", bad, s); }

/* What the events of a stream say together: for each key the strings that stand behind it, joined. */
static const char *joined(const char *stream, const char *key)
{
    struct buf b;
    buf_init(&b, 1u << 20);
    buf_str(&b, "");
    for (const char *p = stream; (p = strstr(p, key));) {
        p += strlen(key);
        const char *from = p;
        while (*p != '"')
            p += *p == '\\' ? 2 : 1;
        buf_add(&b, from, (size_t)(p - from));
    }
    const char *s = arena_strdup(&app.mem, b.data, b.len);
    buf_free(&b);
    return s;
}

#define FORMAT "{\"tools\":{\"name\":\"x\",\"when\":[\"x\"],\"call\":\"<tool_call>{object}</tool_call>\"},\"reasoning\":{\"name\":\"x\",\"when\":[\"x\"],\"open\":\"<think>\",\"close\":\"</think>\"}}"
#define MARKED "{\"tools\":{\"name\":\"x\",\"when\":[\"x\"],\"begin\":\"<|a|>\",\"call\":\"<|b|>{name}<|c|>{arguments}\"},\"reasoning\":null}"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]"
#define ANTHROPIC "\"max_tokens\":200,\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}},{\"name\":\"g\",\"description\":\"d\",\"input_schema\":{}}]"
#define SAY(text, more) "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"!say " text "!\"}]," more "}"
#define CALL_F "<tool_call>{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"x\\\": 1}}</tool_call>"
#define CALL_G "<tool_call>{\\\"name\\\":\\\"g\\\",\\\"arguments\\\":{}}</tool_call>"

START_TEST(openai)
{
    open_all(FORMAT);
    const char *s = ask(CHAT, SAY("<think>why</think>Let me see. " CALL_F CALL_G, TOOLS));
    has(s, "\"content\":\"Let me see.\",\"reasoning_content\":\"why\",\"tool_calls\":[{\"id\":\"call_");
    has(s, "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}},{\"id\":\"call_");
    has(s, "\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}],\"refusal\":null}");
    has(s, "\"finish_reason\":\"tool_calls\"");
    s = ask(CHAT, SAY(CALL_F, TOOLS));
    has(s, "\"content\":null,\"tool_calls\"");
    s = ask(CHAT, SAY("<think>why</think>Let me see. " CALL_F CALL_G, TOOLS ",\"stream\":true"));
    ck_assert_str_eq(joined(s, "\"delta\":{\"content\":\""), "Let me see.");
    ck_assert_str_eq(joined(s, "\"delta\":{\"reasoning_content\":\""), "why");
    ck_assert_str_eq(joined(s, "\"index\":0,\"function\":{\"arguments\":\""), "{\\\"x\\\": 1}");
    ck_assert_str_eq(joined(s, "\"index\":1,\"function\":{\"arguments\":\""), "{}");
    has(s, "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_");
    has(s, "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}");
    has(s, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"");
    s = ask(CHAT, SAY(CALL_F CALL_G, TOOLS ",\"parallel_tool_calls\":false"));
    has(s, "\"name\":\"f\"");
    has_not(s, "\"name\":\"g\"");
    s = ask(CHAT, SAY(CALL_F, TOOLS ",\"tool_choice\":\"none\"")); /* none: text */
    has(s, "\"content\":\"<tool_call>");
    has(s, "\"finish_reason\":\"stop\"");
    s = ask(CHAT, SAY(CALL_F, "\"temperature\":0"));
    has(s, "\"content\":\"<tool_call>");
    s = ask(CHAT, SAY(CALL_F "<tool_call>{\\\"name\\\":\\\"f\\\",\\\"argu", TOOLS)); /* one that never ends is text */
    has(s, "\"content\":\"<tool_call>{\\\"name\\\":\\\"f\\\",\\\"argu\"");
    has(s, "\"arguments\":\"{\\\"x\\\": 1}\"");
    s = ask(CHAT, SAY(CALL_F, TOOLS ",\"max_tokens\":13,\"stream\":true")); /* cut: what was said stays, and the end says so */
    ck_assert_str_eq(joined(s, "\"index\":0,\"function\":{\"arguments\":\""), "{\\\"x\\\"");
    has(s, "\"finish_reason\":\"length\"");
    uint64_t before = fake_counts(app.fake).grammars; /* calls that are demanded, or strict, are the engine's to enforce */
    ask(CHAT, SAY(CALL_F, TOOLS));
    ck_assert_uint_eq(fake_counts(app.fake).grammars, before);
    s = ask(CHAT, SAY(CALL_F, TOOLS ",\"tool_choice\":\"required\""));
    has(s, "\"finish_reason\":\"tool_calls\"");
    ask(CHAT, SAY(CALL_F, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]"));
    ck_assert_uint_eq(fake_counts(app.fake).grammars, before + 2);
    s = ask(CHAT, SAY("x", "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":{\"x\":{\"not\":{}}}}}}]"));
    has(s, " 400 ");
    has(s, "\"param\":\"tools[0].function.parameters\"");
    has(s, "#/properties/x");
    s = ask(CHAT, SAY("ok", TOOLS ",\"logprobs\":true,\"stream\":true"));
    has(s, "\"content\":\"ok\"},\"logprobs\":{\"content\":[{\"token\"");
    app_close();
}
END_TEST

START_TEST(anthropic)
{
    open_all(FORMAT);
    const char *s = ask("/v1/messages", SAY("<think>why</think>Hm. " CALL_F CALL_G, ANTHROPIC));
    has(s, "\"content\":[{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":\"why\"},{\"type\":\"text\",\"text\":\"Hm.\"},{\"type\":\"tool_use\",\"id\":\"toolu_");
    has(s, "\"name\":\"f\",\"input\":{\"x\": 1}},{\"type\":\"tool_use\",\"id\":\"toolu_");
    has(s, "\"name\":\"g\",\"input\":{}}],\"stop_reason\":\"tool_use\"");
    s = ask("/v1/messages", SAY("<think>why</think>Hm. " CALL_F CALL_G, ANTHROPIC ",\"stream\":true"));
    ck_assert_str_eq(joined(s, "\"thinking_delta\",\"thinking\":\""), "why");
    ck_assert_str_eq(joined(s, "\"text_delta\",\"text\":\""), "Hm.");
    ck_assert_str_eq(joined(s, "\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\""), "{\\\"x\\\": 1}");
    has(s, "\"index\":0,\"content_block\":{\"type\":\"thinking\"");
    has(s, "{\"type\":\"signature_delta\",\"signature\":\"\"}}");
    has(s, "\"index\":1,\"content_block\":{\"type\":\"text\"");
    has(s, "\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_");
    has(s, "\"index\":3,\"content_block\":{\"type\":\"tool_use\"");
    has(s, "\"content_block_stop\",\"index\":3}");
    has(s, "\"stop_reason\":\"tool_use\"");
    s = ask("/v1/messages", SAY("<think>why</think>Hm.", ANTHROPIC ",\"thinking\":{\"type\":\"disabled\"}"));
    has(s, "\"content\":[{\"type\":\"text\",\"text\":\"Hm.\"}]");
    s = ask("/v1/messages", SAY("", ANTHROPIC ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}"));
    has(s, "\"type\":\"text\"");
    s = ask("/v1/messages", SAY("x", "\"max_tokens\":9,\"stream\":true"));
    has(s, "\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}");
    s = ask("/v1/messages/count_tokens", "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{}}]}");
    has(s, "\"input_tokens\":");
    app_close();
}
END_TEST

/* Control tokens mark calls; the engine is asked for their text, and none of it comes out. */
START_TEST(markers)
{
    open_all(MARKED);
    const char *s = ask(CHAT, SAY("Hm ~<|a|>~<|b|>f~<|c|>{\\\"x\\\":1}", TOOLS));
    has(s, "\"content\":\"Hm\",\"tool_calls\":[{");
    has(s, "\"arguments\":\"{\\\"x\\\":1}\"");
    s = ask(CHAT, SAY("Hm <|a|><|b|>f<|c|>{}", TOOLS));
    has(s, "\"content\":\"Hm <|a|><|b|>f<|c|>{}\"");
    s = ask(CHAT, SAY("a~<|b|>b", "\"n\":1"));
    has(s, "\"content\":\"ab\"");
    ck_assert_uint_eq(fake_counts(app.fake).marked, 3);
    s = ask("/v1/completions", "{\"model\":\"fake-model\",\"prompt\":\"!say plain!\"}");
    has(s, "\"text\":\"plain\"");
    ck_assert_uint_eq(fake_counts(app.fake).marked, 3);
    app_close();
    open_all(NULL); /* a model whose calls are spelled in no known way */
    s = ask(CHAT, SAY("x", TOOLS));
    has(s, " 400 ");
    has(s, "\"param\":\"tools\"");
    s = ask(CHAT, SAY("x", TOOLS ",\"tool_choice\":\"none\""));
    has(s, " 200 ");
    app_close();
}
END_TEST

START_TEST(reasoning)
{
    open_all(FORMAT);
    const char *s = ask(CHAT, SAY("hm</think>yes", "\"reasoning_effort\":\"none\""));
    has(s, "\"content\":\"hm</think>yes\"");
    has(s, "\"completion_tokens_details\":{\"reasoning_tokens\":0}");
    s = ask(CHAT, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"!open!say hmhmhm</think>yes!\"}]}"); /* the prompt opened it */
    has(s, "\"content\":\"yes\",\"reasoning_content\":\"hmhmhm\"");
    has(s, "\"completion_tokens\":6,"); /* "hmh" "mhm" "</t" "hin" "k>y" "es" */
    has(s, "\"completion_tokens_details\":{\"reasoning_tokens\":5}");
    for (int i = 0; i < 2; i++) { /* whole and streamed: "<th" "ink" are text until ">wh" completes the mark */
        s = ask(CHAT, i ? SAY("<think>why</think>yes now", "\"stream\":true,\"stream_options\":{\"include_usage\":true}") : SAY("<think>why</think>yes now", "\"n\":1"));
        has(s, "\"completion_tokens\":9,");
        has(s, "\"completion_tokens_details\":{\"reasoning_tokens\":4}");
    }
    s = ask(CHAT, SAY("<think>why</think>yes now", "\"n\":3")); /* of all answers */
    has(s, "\"completion_tokens_details\":{\"reasoning_tokens\":12}");
    s = ask(CHAT, "{\"model\":\"fake-model\",\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"!open!say hm</think>yes!\"}]}");
    has(s, "\"content\":\"yes\",\"refusal\"");
    s = ask(CHAT, SAY("x", "\"reasoning_effort\":\"low\"")); /* this template knows no efforts */
    has(s, " 400 ");
    has(s, "\"param\":\"reasoning_effort\"");
    app_close();
}
END_TEST

static const struct { const char *body, *param; } bad[] = {
    {"\"tools\":{}", "tools"}, {"\"tools\":[1]", "tools[0]"}, {"\"tools\":[{}]", "tools[0].type"}, {"\"tools\":[{\"type\":\"retrieval\"}]", "tools[0].type"},
    {"\"tools\":[{\"type\":\"function\"}]", "tools[0].function"}, {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools[0].function.name"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name"}, {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools[0].function.name"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]", "tools[1].function.name"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":[]}}]", "tools[0].function.parameters"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"strict\":1}}]", "tools[0].function.strict"},
    {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"description\":1}}]", "tools[0].function.description"},
    {TOOLS ",\"tool_choice\":\"maybe\"", "tool_choice"}, {TOOLS ",\"tool_choice\":7", "tool_choice"}, {TOOLS ",\"tool_choice\":{\"type\":\"x\"}", "tool_choice.type"},
    {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function.name"}, {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}", "tool_choice"},
    {"\"tool_choice\":\"required\"", "tool_choice"}, {TOOLS ",\"parallel_tool_calls\":1", "parallel_tool_calls"}, {"\"reasoning_effort\":\"some\"", "reasoning_effort"},
    {"\"reasoning_effort\":1", "reasoning_effort"}, {"\"enable_thinking\":1", "enable_thinking"}, {"\"chat_template_kwargs\":[]", "chat_template_kwargs"}};

START_TEST(errors)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct arena a;
        struct gw_chat_req r = {0};
        struct gw_api_error ae = {0};
        arena_init(&a, 1u << 20);
        const char *text = arena_printf(&a, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],%s}", bad[i].body);
        ck_assert_msg(gw_openai_parse_chat(&r, text, strlen(text), &a, &ae) == 400, "taken: %s", bad[i].body);
        ck_assert_msg(!strcmp(ae.param, bad[i].param), "%s: param %s, want %s", bad[i].body, ae.param, bad[i].param);
        arena_free(&a);
    }
}
END_TEST

#define TURN(blocks) "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":" blocks "}"
#define RESULT(more) ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"" more "}]}]"
static const struct { const char *body, *want; } turns[] = { /* want: the messages, or "!" and what the error says */
    {TURN("[{\"type\":\"thinking\",\"thinking\":\"w\",\"signature\":\"\"},{\"type\":\"text\",\"text\":\"t\"},{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"x\":1}}]")
     RESULT(",\"content\":\"r\"") "}",
     "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}],\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":"
     "{\"name\":\"f\",\"arguments\":{\"x\":1}}}],\"reasoning_content\":\"w\"},{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"r\"}]"},
    {TURN("[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{}}]") ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}],"
     "\"is_error\":true},{\"type\":\"text\",\"text\":\"and\"}]}]}",
     "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
     "{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"and\"}]}]"},
    {TURN("[{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\"}]") "]}", "!messages.1.content.0.input"}, {TURN("[{\"type\":\"tool_use\",\"name\":\"f\",\"input\":{}}]") "]}", "!messages.1.content.0.id"},
    {TURN("[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\"}]") "]}", "!messages.1.content.0"}, {TURN("\"t\"") RESULT(",\"content\":[{\"type\":\"image\"}]") "}", "!messages.2.content.0.content.0"},
    {TURN("\"t\"") RESULT(",\"is_error\":\"x\"") "}", "!messages.2.content.0"}, {TURN("[{\"type\":\"thinking\"}]") "]}", "!messages.1.content.0.thinking"},
    {"{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\"}]}", "!tools.0.input_schema"},
    {"{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"w\"}]}", "!tools.0"},
    {"{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tool_choice\":{\"type\":\"some\"}}", "!tool_choice"},
    {"{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tool_choice\":{\"type\":\"tool\"}}", "!tool_choice.name"},
    {"{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"thinking\":{\"type\":\"much\"}}", "!thinking"}};

START_TEST(blocks)
{
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct arena a;
        struct buf b;
        struct gw_chat_req r = {0};
        struct gw_api_error ae = {0};
        arena_init(&a, 1u << 20);
        buf_init(&b, 1u << 20);
        int rc = gw_anthropic_parse(&r, turns[i].body, strlen(turns[i].body), &a, &ae);
        if (*turns[i].want == '!') {
            ck_assert_msg(rc == 400 && strstr(ae.msg, turns[i].want + 1), "%s: %d %s", turns[i].body, rc, ae.msg);
        } else {
            ck_assert_msg(!rc, "%s: %s", turns[i].body, ae.msg);
            json_put(&b, json_get(r.body, "messages"));
            ck_assert_str_eq(b.data, turns[i].want);
        }
        buf_free(&b);
        arena_free(&a);
    }
    struct arena a;
    struct gw_chat_req r = {0};
    struct gw_api_error ae = {0};
    arena_init(&a, 1u << 20);
    static const char some[] = "{\"model\":\"m\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"tools\":[{\"name\":\"f\",\"input_schema\":{}},{\"type\":\"custom\",\"name\":\"g\","
                               "\"input_schema\":{\"type\":\"object\"},\"strict\":true}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\",\"disable_parallel_tool_use\":true}}";
    ck_assert_msg(!gw_anthropic_parse(&r, some, sizeof some - 1, &a, &ae), "%s", ae.msg);
    ck_assert(r.tools.n == 2 && r.tools.choice == GW_TOOLS_NAMED && r.tools.named == 1 && !r.tools.parallel && r.tools.v[1].strict && !r.tools.v[0].strict);
    arena_free(&a);
}
END_TEST

SUITE("gateway", "tools", openai, anthropic, markers, reasoning, errors, blocks)
