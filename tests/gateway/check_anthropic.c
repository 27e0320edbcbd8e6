/* Anthropic's request bodies by table, what they become for a template, and the shapes of answers, events and errors. */
#include "gateway/anthropic.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

#define MSG "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define WITH(x) "{" MSG ",\"max_tokens\":7," x "}"
#define MESSAGES(x) "{\"model\":\"m\",\"max_tokens\":7,\"messages\":" x "}"

static struct arena mem;

static int parse(const char *body, struct gw_chat_req *r, struct gw_api_error *ae)
{
    memset(r, 0, sizeof *r);
    memset(ae, 0, sizeof *ae);
    r->sampling = (struct eng_sampling){.temperature = 0.6f, .top_p = 0.9f, .top_k = 20};
    return gw_anthropic_parse(r, body, strlen(body), &mem, ae);
}

static void expect_messages(const struct gw_chat_req *r, const char *want)
{
    struct buf b;
    buf_init(&b, 1u << 16);
    json_put(&b, json_get(r->body, "messages"));
    ck_assert_str_eq(b.data, want);
    buf_free(&b);
}

START_TEST(core)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    arena_init(&mem, 16u << 20);
    ck_assert_msg(!parse(WITH("\"system\":\"be brief\",\"stop_sequences\":[\"END\",\"\\n\\n\"],\"temperature\":1,\"top_p\":0.5,\"top_k\":5,\"stream\":true,"
                              "\"metadata\":{\"user_id\":\"u\"},\"tools\":[],\"thinking\":{\"type\":\"adaptive\"},\"output_config\":{\"effort\":\"low\"},\"tool_choice\":{\"type\":\"auto\"}"), &r, &ae), "%s", ae.msg);
    ck_assert(r.stream && r.max_tokens == 7 && r.n == 1 && r.n_prompts == 1 && !r.prompts && r.n_stops == 2 && !strcmp(r.stops[0], "END"));
    ck_assert(r.sampling.temperature == 1 && r.sampling.top_p == 0.5f && r.sampling.top_k == 5 && !r.seed_given && !r.ignore_eos);
    expect_messages(&r, "[{\"role\":\"system\",\"content\":\"be brief\"},{\"role\":\"user\",\"content\":\"hi\"}]");
    ck_assert(!parse("{" MSG ",\"max_tokens\":1}", &r, &ae));
    ck_assert(r.sampling.temperature == 0.6f && r.sampling.top_k == 20 && !r.stream && !r.n_stops);
    ck_assert_msg(!parse("{\"model\":\"m\",\"max_tokens\":1,\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":["
                         "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\",\"cache_control\":null}]},"
                         "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\",\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"d\"}]},"
                         "{\"role\":\"user\",\"content\":\"e\"}]}", &r, &ae), "%s", ae.msg);
    expect_messages(&r, "[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
                        "{\"type\":\"text\",\"text\":\"c\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"d\"}],\"reasoning_content\":\"t\"},{\"role\":\"user\",\"content\":\"e\"}]");
    ck_assert(!r.structured.rules && !parse("{" MSG ",\"max_tokens\":1,\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"integer\"}}}}", &r, &ae));
    ck_assert(r.structured.rules && strstr(r.structured.rules, "answer ::=") && !strcmp(r.structured.param, "output_config.format"));
    ck_assert(!parse("{" MSG ",\"max_tokens\":1,\"output_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}}", &r, &ae) && r.structured.rules);
    ck_assert(!parse("{" MSG ",\"max_tokens\":1,\"system\":\"\"}", &r, &ae));
    expect_messages(&r, "[{\"role\":\"user\",\"content\":\"hi\"}]");
    ck_assert_int_eq(gw_anthropic_parse_count(&r, "{" MSG "}", strlen("{" MSG "}"), &mem, &ae), 0);
    ck_assert(!json_get(r.body, "continue_final_message"));
    ck_assert(!parse(MESSAGES("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"{\"}]"), &r, &ae));
    ck_assert(json_is(json_get(r.body, "continue_final_message"), JSON_BOOL) && json_get(r.body, "continue_final_message")->b);
    ck_assert(!gw_anthropic_check_version(NULL, &ae) && !gw_anthropic_check_version("2023-06-01", &ae));
    ck_assert(gw_anthropic_check_version("", &ae) == 400 && gw_anthropic_check_version("v1", &ae) == 400 && gw_anthropic_check_version("2023-06-011", &ae) == 400);
    arena_free(&mem);
}
END_TEST

static const struct { const char *body, *says; } bad[] = {
    {"{" MSG ",\"max_tokens\":1,\"output_config\":{\"format\":{\"type\":\"xml\"}}}", "output_config.format.type"},
    {"{" MSG ",\"max_tokens\":1,\"output_config\":{\"format\":{\"type\":\"json_schema\"}}}", "schema: Field required"},
    {"{" MSG ",\"max_tokens\":1,\"output_format\":{\"type\":\"json_schema\",\"schema\":{\"properties\":{\"a\":{\"if\":{\"type\":\"string\"}}}}}}", "at #/properties/a/if"},
    {"", "JSON"}, {"[]", "object"}, {"{\"max_tokens\":1}", "model"}, {"{\"model\":\"m\",\"max_tokens\":1}", "messages: Field required"},
    {"{" MSG "}", "max_tokens: Field required"}, {"{" MSG ",\"max_tokens\":0}", "max_tokens"}, {"{" MSG ",\"max_tokens\":\"x\"}", "max_tokens"},
    {MESSAGES("[]"), "at least one message"}, {MESSAGES("{}"), "messages"}, {MESSAGES("[1]"), "messages.0"},
    {MESSAGES("[{\"role\":\"system\",\"content\":\"x\"}]"), "messages.0.role"}, {MESSAGES("[{\"content\":\"x\"}]"), "messages.0.role"},
    {MESSAGES("[{\"role\":\"user\"}]"), "messages.0.content"}, {MESSAGES("[{\"role\":\"user\",\"content\":5}]"), "messages.0.content"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[]}]"), "at least one block"}, {MESSAGES("[{\"role\":\"user\",\"content\":[5]}]"), "messages.0.content.0"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), "messages.0.content.0.text"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"image\",\"source\":{}}]}]"), "messages.0.content.1"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]"), "(no type)"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y \"}]"), "trailing whitespace"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"y\\n\"}]}]"), "trailing whitespace"},
    {WITH("\"system\":5"), "system"}, {WITH("\"system\":[{\"type\":\"image\"}]"), "system.0"}, {WITH("\"stream\":1"), "stream"},
    {WITH("\"temperature\":1.5"), "temperature"}, {WITH("\"top_p\":-1"), "top_p"}, {WITH("\"top_k\":-1"), "top_k"}, {WITH("\"stop_sequences\":[\"\"]"), "stop_sequences[0]"},
    {WITH("\"stop_sequences\":5"), "stop_sequences"}, {WITH("\"metadata\":5"), "metadata"}, {WITH("\"tools\":[{\"name\":\"f\"}]"), "tools"},
    {WITH("\"tool_choice\":{\"type\":\"any\"}"), "tool_choice"}, {WITH("\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":\"x\"}"), "budget_tokens"},
    {WITH("\"mcp_servers\":[]"), "mcp_servers"}, {WITH("\"output_config\":{\"format\":{\"type\":\"json_schema\"}}"), "output_config.format"},
};

START_TEST(errors)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    arena_init(&mem, 16u << 20);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ck_assert_msg(parse(bad[i].body, &r, &ae) == 400, "accepted: %s", bad[i].body);
        ck_assert_msg(strstr(ae.msg, bad[i].says) != NULL, "%s: %s", bad[i].body, ae.msg);
    }
    arena_free(&mem);
}
END_TEST

START_TEST(memory) /* every allocation fails once */
{
    static const char body[] = "{\"model\":\"m\",\"max_tokens\":1,\"system\":\"s\",\"stop_sequences\":[\"x\"],\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}]}";
    struct gw_chat_req r;
    struct gw_api_error ae;
    if (!alloc_fail_works()) {
        puts("SKIP memory: a sanitizer owns the allocator");
        return;
    }
    for (long n = 0;; n++) {
        arena_init(&mem, 16u << 20);
        alloc_fail_at(n);
        int rc = parse(body, &r, &ae);
        bool failed = alloc_fail_end();
        ck_assert_int_eq(rc, failed ? 503 : 0);
        arena_free(&mem);
        if (!failed)
            break;
    }
}
END_TEST

START_TEST(answers)
{
    static const char *const stops[] = {"END", "\"x\""};
    struct gw_answer_head h = {.id = "msg_1", .model = "m", .prompt_tokens = 9, .stops = stops};
    struct eng_usage u = {.prompt_tokens = 9, .cached_tokens = 4, .output_tokens = 3};
    struct gw_blocks blocks = {0};
    struct gw_part text[] = {{.type = GW_PART_CONTENT, .s = "a\"b", .n = 3}, {.type = GW_PART_CONTENT, .s = "hi", .n = 2}};
    struct gw_piece p = {.part = text, .n = 1, .ended = true, .finish = ENG_STOP, .stop = 1};
    struct gw_api_error ae;
    struct buf b;
    buf_init(&b, 1u << 16);
    gw_api_messages.whole(&b, &h, &p, 1, &u);
    ck_assert_str_eq(b.data, "{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":[{\"type\":\"text\",\"text\":\"a\\\"b\"}],"
                             "\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\"\\\"x\\\"\",\"usage\":{\"input_tokens\":5,\"cache_creation_input_tokens\":0,"
                             "\"cache_read_input_tokens\":4,\"output_tokens\":3}}");
    buf_reset(&b);
    gw_api_messages.begin(&b, &h);
    gw_api_messages.piece(&b, &h, &(struct gw_piece){.first = true, .part = text + 1, .n = 1, .blocks = &blocks});
    p = (struct gw_piece){.ended = true, .finish = ENG_LENGTH, .stop = -1, .blocks = &blocks};
    gw_api_messages.piece(&b, &h, &p);
    gw_api_messages.end(&b, &h, &p, &u);
    static const char *const events[] = {"message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"};
    const char *at = b.data;
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) { /* each event's name and its data's type agree */
        char want[96];
        snprintf(want, sizeof want, "event: %s\ndata: {\"type\":\"%s\"", events[i], events[i]);
        ck_assert_msg(!strncmp(at, want, strlen(want)), "%s: %.80s", events[i], at);
        ck_assert_ptr_nonnull(at = strstr(at, "\n\n"));
        at += 2;
    }
    ck_assert_int_eq(*at, 0);
    ck_assert_ptr_nonnull(strstr(b.data, "\"stop_reason\":\"max_tokens\",\"stop_sequence\":null"));
    static const struct { int status; const char *code; int out; const char *type; } refusals[] = {
        {400, "x", 400, "invalid_request_error"}, {401, "x", 401, "authentication_error"}, {404, NULL, 404, "not_found_error"}, {413, NULL, 413, "request_too_large"},
        {429, "rate_limit_exceeded", 429, "rate_limit_error"}, {429, "queue_full", 529, "overloaded_error"}, {503, "x", 529, "overloaded_error"},
        {500, NULL, 500, "api_error"}, {504, NULL, 504, "timeout_error"}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        char want[128];
        gw_api_error_set(&ae, refusals[i].status, refusals[i].code, NULL, "no");
        buf_reset(&b);
        ck_assert_int_eq(gw_anthropic_error(&b, &ae, "req_1"), refusals[i].out);
        snprintf(want, sizeof want, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":\"no\"},\"request_id\":\"req_1\"}", refusals[i].type);
        ck_assert_str_eq(b.data, want);
    }
    buf_free(&b);
}
END_TEST

SUITE("gateway", "anthropic", core, errors, memory, answers)
