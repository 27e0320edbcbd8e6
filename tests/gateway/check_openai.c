/* The table of request bodies: what parses to what, and which field is blamed with which code; and the shapes of the answers. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/openai.h"
#include "gateway/openai_out.h"
#include "tests/support/alloc_fail.h"

#define MSG "\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define WITH(x) "{" MSG "," x "}"
#define MESSAGES(x) "{\"model\":\"m\",\"messages\":" x "}"

static struct arena mem;
static void setup(void) { arena_init(&mem, 16u << 20); }
static void teardown(void) { arena_free(&mem); }

static int parse(const char *body, size_t n, struct gw_chat_req *r, struct gw_api_error *ae)
{
    memset(r, 0, sizeof *r);
    memset(ae, 0, sizeof *ae);
    r->sampling = (struct eng_sampling){.temperature = 0.6f, .top_p = 0.9f, .top_k = 20};
    return gw_openai_parse_chat(r, body, n, &mem, ae);
}

START_TEST(core)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    static const char all[] = WITH("\"stream\":true,\"stream_options\":{\"include_usage\":true},\"max_completion_tokens\":12,\"temperature\":0,"
                                   "\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.05,\"seed\":-3,\"stop\":[\"a\",\"\\n\\n\"],\"ignore_eos\":true,\"min_tokens\":3,\"n\":4,"
                                   "\"logprobs\":true,\"top_logprobs\":20,\"logit_bias\":{\"0\":-100,\"12\":1.5},\"presence_penalty\":-2,\"frequency_penalty\":0.5,\"repetition_penalty\":1.1");
    ck_assert_msg(!parse(all, strlen(all), &r, &ae), "%s", ae.msg);
    ck_assert(r.stream && r.include_usage && r.ignore_eos && r.seed_given);
    ck_assert_uint_eq(r.max_tokens, 12);
    ck_assert_uint_eq(r.min_tokens, 3);
    ck_assert_float_eq(r.sampling.temperature, 0);
    ck_assert_float_eq(r.sampling.top_p, 0.5f);
    ck_assert_float_eq(r.sampling.min_p, 0.05f);
    ck_assert_int_eq(r.sampling.top_k, 0);
    ck_assert_uint_eq(r.sampling.seed, (uint64_t)-3);
    ck_assert_uint_eq(r.n_stops, 2);
    ck_assert_str_eq(r.stops[1], "\n\n");
    ck_assert_uint_eq(r.stop_lens[1], 2);
    ck_assert_str_eq(r.model, "m");
    ck_assert(r.n == 4 && r.n_prompts == 1 && !r.prompts && r.logprobs && r.top_logprobs == 20 && r.n_bias == 2);
    ck_assert(r.bias[0].id == 0 && r.bias[0].bias == -100 && r.bias[1].id == 12 && r.bias[1].bias == 1.5f);
    ck_assert(r.sampling.presence == -2 && r.sampling.frequency == 0.5f && r.sampling.repetition == 1.1f && r.sampling.choice == 0);

    ck_assert_int_eq(parse("{" MSG "}", strlen("{" MSG "}"), &r, &ae), 0); /* nothing given: the caller's defaults stay */
    ck_assert(!r.stream && !r.seed_given && !r.n_stops && !r.max_tokens && r.n == 1 && !r.logprobs && !r.n_bias);
    ck_assert_float_eq(r.sampling.temperature, 0.6f);
    ck_assert_float_eq(r.sampling.top_p, 0.9f);
    ck_assert_int_eq(r.sampling.top_k, 20);
}
END_TEST

static const char *const good[] = {
    WITH("\"stop\":null,\"temperature\":null,\"max_tokens\":null,\"stream\":null,\"stream_options\":null,\"tools\":null"),
    WITH("\"max_tokens\":5,\"max_completion_tokens\":5"),
    WITH("\"max_tokens\":1e2"),
    WITH("\"top_p\":0"),
    WITH("\"stop\":\"END\""),
    WITH("\"stop\":[]"),
    WITH("\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":false,\"service_tier\":\"auto\",\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\""),
    WITH("\"tools\":[],\"tool_choice\":\"auto\",\"parallel_tool_calls\":true,\"logprobs\":false,\"top_logprobs\":0,\"suffix\":\"\",\"best_of\":1,\"n\":1,\"logit_bias\":{}"),
    WITH("\"presence_penalty\":0,\"frequency_penalty\":0.0,\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"]"),
    WITH("\"response_format\":{\"type\":\"json_object\"}"),
    WITH("\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"object\"}},\"grammar\":\"\""),
    WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}}}"),
    WITH("\"grammar\":\"root ::= [a-z]+\",\"guided_json\":null"),
    WITH("\"guided_json\":\"{\\\"type\\\":\\\"integer\\\"}\""),
    WITH("\"structured_outputs\":{\"choice\":[\"a\",\"b\\\"c\"]}"),
    WITH("\"some_new_field\":{\"x\":[1,2]},\"seed\":9223372036854775807"),
    WITH("\"stream\":true,\"stream_options\":{}"),
    MESSAGES("[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"system\",\"content\":\"\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"name\":\"x\"}]"),
    MESSAGES("[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"r\"}]"),
};

START_TEST(accepted)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    ck_assert_msg(!parse(good[_i], strlen(good[_i]), &r, &ae), "%s: %s", good[_i], ae.msg);
}
END_TEST

static const struct { const char *body, *param, *code; } bad[] = {
    {"", NULL, NULL},
    {"{", NULL, NULL},
    {"[]", NULL, NULL},
    {"{" MSG "} x", NULL, NULL},
    {"{" MSG ",\"model\":\"m\"}", NULL, NULL},
    {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", NULL, NULL},
    {"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}", NULL, NULL},
    {"{\"messages\":[]}", "model", "missing_required_parameter"},
    {"{\"model\":7}", "model", "invalid_type"},
    {"{\"model\":\"m\"}", "messages", "missing_required_parameter"},
    {MESSAGES("{}"), "messages", "invalid_type"},
    {MESSAGES("[]"), "messages", "empty_array"},
    {MESSAGES("[1]"), "messages[0]", "invalid_type"},
    {MESSAGES("[{\"content\":\"x\"}]"), "messages[0].role", "missing_required_parameter"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"robot\",\"content\":\"x\"}]"), "messages[1].role", "invalid_value"},
    {MESSAGES("[{\"role\":1,\"content\":\"x\"}]"), "messages[0].role", "invalid_type"},
    {MESSAGES("[{\"role\":\"user\"}]"), "messages[0].content", "missing_required_parameter"},
    {MESSAGES("[{\"role\":\"user\",\"content\":null}]"), "messages[0].content", "missing_required_parameter"},
    {MESSAGES("[{\"role\":\"user\",\"content\":5}]"), "messages[0].content", "invalid_type"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[]}]"), "messages[0].content", "invalid_value"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[\"x\"]}]"), "messages[0].content[0]", "invalid_type"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"text\":\"x\"}]}]"), "messages[0].content[0].type", "missing_required_parameter"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]"), "messages[0].content[0].text", "missing_required_parameter"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]"), "messages[0].content[0].type", "unsupported_value"},
    {MESSAGES("[{\"role\":\"user\",\"content\":[{\"type\":\"blob\"}]}]"), "messages[0].content[0].type", "invalid_value"},
    {MESSAGES("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]}]"), "messages[0].tool_calls[0].function", "invalid_value"},
    {MESSAGES("[{\"role\":\"user\",\"content\":\"x\",\"name\":1}]"), "messages[0].name", "invalid_type"},
    {WITH("\"stream\":1"), "stream", "invalid_type"},
    {WITH("\"stream_options\":{\"include_usage\":true}"), "stream_options", "invalid_value"},
    {WITH("\"stream\":true,\"stream_options\":[]"), "stream_options", "invalid_type"},
    {WITH("\"stream\":true,\"stream_options\":{\"include_usage\":\"yes\"}"), "stream_options.include_usage", "invalid_type"},
    {WITH("\"max_tokens\":0"), "max_tokens", "invalid_value"},
    {WITH("\"max_tokens\":-1"), "max_tokens", "invalid_value"},
    {WITH("\"max_tokens\":\"5\""), "max_tokens", "invalid_type"},
    {WITH("\"max_tokens\":1.5"), "max_tokens", "invalid_type"},
    {WITH("\"max_tokens\":18446744073709551617"), "max_tokens", "invalid_type"},
    {WITH("\"max_completion_tokens\":99999999999"), "max_completion_tokens", "invalid_value"},
    {WITH("\"max_tokens\":5,\"max_completion_tokens\":6"), "max_tokens", "invalid_value"},
    {WITH("\"max_tokens\":5,\"min_tokens\":6"), "min_tokens", "invalid_value"},
    {WITH("\"ignore_eos\":\"x\""), "ignore_eos", "invalid_type"},
    {WITH("\"temperature\":2.1"), "temperature", "invalid_value"},
    {WITH("\"temperature\":-0.1"), "temperature", "invalid_value"},
    {WITH("\"temperature\":\"hot\""), "temperature", "invalid_type"},
    {WITH("\"temperature\":1e999"), "temperature", "invalid_value"},
    {WITH("\"top_p\":1.01"), "top_p", "invalid_value"},
    {WITH("\"min_p\":true"), "min_p", "invalid_type"},
    {WITH("\"top_k\":-2"), "top_k", "invalid_value"},
    {WITH("\"top_k\":0.5"), "top_k", "invalid_type"},
    {WITH("\"seed\":\"1\""), "seed", "invalid_type"},
    {WITH("\"stop\":5"), "stop", "invalid_type"},
    {WITH("\"stop\":\"\""), "stop", "invalid_value"},
    {WITH("\"stop\":[\"a\",1]"), "stop[1]", "invalid_type"},
    {WITH("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]"), "stop", "array_above_max_length"},
    {WITH("\"n\":0"), "n", "invalid_value"},
    {WITH("\"n\":129"), "n", "invalid_value"},
    {WITH("\"n\":2,\"best_of\":3"), "best_of", "unsupported_value"},
    {WITH("\"n\":\"1\""), "n", "invalid_type"},
    {WITH("\"logprobs\":5"), "logprobs", "invalid_type"},
    {WITH("\"top_logprobs\":3"), "top_logprobs", "invalid_value"},
    {WITH("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs", "invalid_value"},
    {WITH("\"logit_bias\":[1]"), "logit_bias", "invalid_type"},
    {WITH("\"logit_bias\":{\"x\":1}"), "logit_bias", "invalid_value"},
    {WITH("\"logit_bias\":{\"\":1}"), "logit_bias", "invalid_value"},
    {WITH("\"logit_bias\":{\"-1\":1}"), "logit_bias", "invalid_value"},
    {WITH("\"logit_bias\":{\"07\":1}"), "logit_bias", "invalid_value"},
    {WITH("\"logit_bias\":{\"12345678901\":1}"), "logit_bias", "invalid_value"},
    {WITH("\"logit_bias\":{\"5\":\"1\"}"), "logit_bias.5", "invalid_type"},
    {WITH("\"logit_bias\":{\"5\":101}"), "logit_bias.5", "invalid_value"},
    {WITH("\"presence_penalty\":2.5"), "presence_penalty", "invalid_value"},
    {WITH("\"frequency_penalty\":\"x\""), "frequency_penalty", "invalid_type"},
    {WITH("\"repetition_penalty\":0"), "repetition_penalty", "invalid_value"},
    {WITH("\"echo\":true"), "echo", "unsupported_parameter"},
    {WITH("\"stop_token_ids\":[1]"), "stop_token_ids", "unsupported_parameter"},
    {WITH("\"tools\":[{\"type\":\"function\"}]"), "tools[0].function", "missing_required_parameter"},
    {WITH("\"tool_choice\":\"required\""), "tool_choice", "invalid_value"},
    {WITH("\"response_format\":\"json\""), "response_format", "invalid_type"},
    {WITH("\"response_format\":{}"), "response_format.type", "missing_required_parameter"},
    {WITH("\"response_format\":{\"type\":\"xml\"}"), "response_format.type", "invalid_value"},
    {WITH("\"response_format\":{\"type\":\"json_schema\"}"), "response_format.json_schema", "missing_required_parameter"},
    {WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}"), "response_format.json_schema.name", "missing_required_parameter"},
    {WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":1}}"), "response_format.json_schema.strict", "invalid_type"},
    {WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"type\":\"dog\"}}}"), "response_format.json_schema.schema", "invalid_value"},
    {WITH("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"not\":{}}}}"), "response_format.json_schema.schema", "unsupported_value"},
    {WITH("\"response_format\":{\"type\":\"json_object\"},\"grammar\":\"root ::= [a]\""), "grammar", "invalid_value"},
    {WITH("\"grammar\":7"), "grammar", "invalid_type"},
    {WITH("\"guided_json\":\"{\""), "guided_json", "invalid_value"},
    {WITH("\"guided_choice\":[]"), "guided_choice", "invalid_type"},
    {WITH("\"guided_choice\":[1]"), "guided_choice", "invalid_type"},
    {WITH("\"guided_regex\":\"a\""), "guided_regex", "unsupported_parameter"},
    {WITH("\"structured_outputs\":{\"regex\":\"a\"}"), "structured_outputs", "unsupported_parameter"},
    {WITH("\"structured_outputs\":{\"json\":{\"type\":[]}}"), "structured_outputs.json", "invalid_value"},
    {WITH("\"reasoning_effort\":\"huge\""), "reasoning_effort", "invalid_value"},
    {WITH("\"modalities\":[\"text\",\"audio\"]"), "modalities", "unsupported_parameter"},
    {WITH("\"user\":5"), "user", "invalid_type"},
    {WITH("\"metadata\":[]"), "metadata", "invalid_type"},
};

START_TEST(errors)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    ck_assert_msg(parse(bad[_i].body, strlen(bad[_i].body), &r, &ae) == 400, "accepted: %s", bad[_i].body);
    ck_assert_str_eq(ae.type, "invalid_request_error");
    ck_assert_msg(!strcmp(ae.param, bad[_i].param ? bad[_i].param : ""), "%s: param '%s'", bad[_i].body, ae.param);
    ck_assert_msg((!ae.code && !bad[_i].code) || (ae.code && bad[_i].code && !strcmp(ae.code, bad[_i].code)), "%s: code %s", bad[_i].body, ae.code ? ae.code : "null");
    ck_assert(*ae.msg);
}
END_TEST

#define PROMPT(x) "{\"model\":\"m\",\"prompt\":" x "}"

static int parse_completion(const char *body, struct gw_chat_req *r, struct gw_api_error *ae)
{
    memset(r, 0, sizeof *r);
    memset(ae, 0, sizeof *ae);
    return gw_openai_parse_completion(r, body, strlen(body), &mem, ae);
}

static const struct { const char *body; uint32_t n_prompts; } good_completions[] = {
    {PROMPT("\"x\""), 1}, {PROMPT("[\"x\",\"y\"]"), 2}, {PROMPT("[1,2,3]"), 1}, {PROMPT("[[1],[2,3]]"), 2}, {PROMPT("\"x\",\"suffix\":\"\""), 1},
    {PROMPT("\"x\",\"echo\":true,\"logprobs\":null"), 1}, {PROMPT("\"x\",\"logprobs\":0"), 1}, {PROMPT("\"x\",\"best_of\":2,\"n\":2"), 1},
    {PROMPT("\"x\",\"suffix\":null,\"stop\":[\"a\"],\"logit_bias\":{\"3\":1},\"seed\":1,\"user\":\"u\",\"stream\":true,\"stream_options\":{\"include_usage\":true}"), 1},
};
static const struct { const char *body, *param, *code; } bad_completions[] = {
    {"{\"model\":\"m\"}", "prompt", "missing_required_parameter"},
    {"{\"prompt\":\"x\"}", "model", "missing_required_parameter"},
    {PROMPT("5"), "prompt", "invalid_type"}, {PROMPT("{}"), "prompt", "invalid_type"}, {PROMPT("\"\""), "prompt", "invalid_value"},
    {PROMPT("[]"), "prompt", "empty_array"}, {PROMPT("[\"x\",\"\"]"), "prompt[1]", "invalid_type"}, {PROMPT("[\"x\",5]"), "prompt[1]", "invalid_type"},
    {PROMPT("[\"x\",[5]]"), "prompt[1]", "invalid_type"}, {PROMPT("[[5],\"x\"]"), "prompt[1]", "invalid_type"}, {PROMPT("[[]]"), "prompt[0]", "invalid_type"},
    {PROMPT("[1,-2]"), "prompt", "invalid_value"}, {PROMPT("[1,1.5]"), "prompt", "invalid_value"}, {PROMPT("[[1,\"x\"]]"), "prompt[0]", "invalid_value"},
    {PROMPT("[1,4294967296]"), "prompt", "invalid_value"}, {PROMPT("[true]"), "prompt[0]", "invalid_type"},
    {PROMPT("[\"a\",\"b\"],\"n\":65"), "prompt", "array_above_max_length"},
    {PROMPT("\"x\",\"suffix\":\"y\""), "suffix", "unsupported_parameter"}, {PROMPT("\"x\",\"logprobs\":21"), "logprobs", "invalid_value"},
    {PROMPT("\"x\",\"logprobs\":true"), "logprobs", "invalid_type"}, {PROMPT("\"x\",\"echo\":true,\"logprobs\":1"), "logprobs", "unsupported_value"},
    {PROMPT("\"x\",\"echo\":1"), "echo", "invalid_type"}, {PROMPT("\"x\",\"best_of\":4"), "best_of", "unsupported_value"},
    {PROMPT("\"x\",\"min_tokens\":17"), "min_tokens", "invalid_value"}, {PROMPT("\"x\",\"max_tokens\":0"), "max_tokens", "invalid_value"},
};

START_TEST(completions)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    for (size_t i = 0; i < sizeof good_completions / sizeof *good_completions; i++) {
        ck_assert_msg(!parse_completion(good_completions[i].body, &r, &ae), "%s: %s", good_completions[i].body, ae.msg);
        ck_assert_uint_eq(r.n_prompts, good_completions[i].n_prompts);
        ck_assert(r.prompts && r.max_tokens == 16);
    }
    for (size_t i = 0; i < sizeof bad_completions / sizeof *bad_completions; i++) {
        ck_assert_msg(parse_completion(bad_completions[i].body, &r, &ae) == 400, "accepted: %s", bad_completions[i].body);
        ck_assert_msg(!strcmp(ae.param, bad_completions[i].param) && ae.code && !strcmp(ae.code, bad_completions[i].code), "%s: param '%s' code %s",
                      bad_completions[i].body, ae.param, ae.code);
    }
}
END_TEST

START_TEST(limits)
{
    struct gw_chat_req r;
    struct gw_api_error ae;
    struct buf b;
    buf_init(&b, 1u << 20);
    buf_str(&b, "{" MSG ",\"stop\":\""); /* 257 bytes of stop string: one too many */
    for (int i = 0; i < 257; i++)
        buf_char(&b, 's');
    buf_str(&b, "\"}");
    ck_assert_int_eq(parse(b.data, b.len, &r, &ae), 400);
    ck_assert_str_eq(ae.param, "stop");
    buf_reset(&b);
    buf_str(&b, "{" MSG ",\"x\":"); /* deeper than the reader goes */
    for (int i = 0; i < 200; i++)
        buf_char(&b, '[');
    for (int i = 0; i < 200; i++)
        buf_char(&b, ']');
    buf_char(&b, '}');
    ck_assert_int_eq(parse(b.data, b.len, &r, &ae), 400);
    buf_reset(&b);
    for (size_t cut = 0; cut < strlen(WITH("\"stop\":[\"a\"],\"seed\":1")); cut++) /* every prefix is an error, never a crash */
        ck_assert_int_eq(parse(WITH("\"stop\":[\"a\"],\"seed\":1"), cut, &r, &ae), 400);
    arena_free(&mem); /* an arena too small for the tree: no use in asking again */
    arena_init(&mem, 64);
    ck_assert_int_eq(parse("{" MSG "}", strlen("{" MSG "}"), &r, &ae), 400);
    ck_assert_str_eq(ae.code, "prompt_too_large");
    buf_free(&b);
}
END_TEST

START_TEST(memory) /* every allocation fails once: a 503, never a crash and never a half-read request */
{
    static const char body[] = WITH("\"stop\":[\"a\",\"b\"],\"logit_bias\":{\"1\":2},\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    struct gw_chat_req r;
    struct gw_api_error ae;
    if (!alloc_fail_works()) {
        puts("SKIP memory: a sanitizer owns the allocator");
        return;
    }
    long n = 0;
    for (;; n++) {
        arena_free(&mem);
        arena_init(&mem, 16u << 20);
        alloc_fail_at(n);
        int rc = parse(body, strlen(body), &r, &ae);
        if (!alloc_fail_end()) {
            ck_assert_int_eq(rc, 0);
            break;
        }
        ck_assert_msg(rc == 503, "allocation %ld: %d %s", n, rc, ae.msg);
    }
    ck_assert_int_gt(n, 0);
}
END_TEST

static const struct json *event_json(const char **p, struct arena *a) /* the next "data: {...}" event as a tree; NULL: [DONE] */
{
    struct json *v = NULL;
    ck_assert_int_eq(strncmp(*p, "data: ", 6), 0);
    const char *end = strstr(*p, "\n\n");
    ck_assert_ptr_nonnull(end);
    const char *s = *p + 6;
    *p = end + 2;
    if (!strncmp(s, "[DONE]", 6))
        return NULL;
    ck_assert_int_eq(json_parse(&v, s, (size_t)(end - s), &json_strict, a, NULL), 0);
    return v;
}

START_TEST(answers)
{
    struct gw_answer_head h = {.created = 1700000000, .model = "a \"model\"", .fingerprint = "fp_1", .include_usage = true};
    struct eng_usage u = {.prompt_tokens = 5, .cached_tokens = 2, .output_tokens = 3, .reasoning_tokens = 1};
    struct gw_api_error ae;
    struct buf b;
    struct json *v = NULL;
    const char *p;
    const struct json *ev;
    buf_init(&b, 1u << 16);
    gw_out_id(h.id, gw_api_chat.id_prefix);
    ck_assert_int_eq(strncmp(h.id, "chatcmpl-", 9), 0);
    gw_api_chat.piece(&b, &h, &(struct gw_piece){.index = 2, .first = true, .part = &(struct gw_part){.type = GW_PART_CONTENT, .s = "x\n\"\xc3\xa9", .n = 5}, .n = 1});
    gw_api_chat.piece(&b, &h, &(struct gw_piece){.index = 2, .ended = true, .finish = ENG_STOP});
    gw_api_chat.end(&b, &h, NULL, &u);
    p = b.data;
    ev = event_json(&p, &mem);
    ck_assert(json_eq(json_get(ev, "id"), h.id) && json_eq(json_get(ev, "model"), h.model));
    ck_assert(json_eq(json_path(json_get(ev, "choices")->items[0], "delta.role"), "assistant"));
    ck_assert(json_is(json_get(ev, "usage"), JSON_NULL));
    ev = event_json(&p, &mem);
    ck_assert(json_eq(json_path(json_get(ev, "choices")->items[0], "delta.content"), "x\n\"\xc3\xa9"));
    ck_assert_ptr_null(json_path(json_get(ev, "choices")->items[0], "delta.role"));
    ev = event_json(&p, &mem);
    ck_assert(json_eq(json_get(json_get(ev, "choices")->items[0], "finish_reason"), "stop"));
    ev = event_json(&p, &mem);
    ck_assert_uint_eq(json_get(ev, "choices")->n, 0);
    ck_assert_str_eq(json_path(ev, "usage.total_tokens")->s, "8");
    ck_assert_str_eq(json_path(ev, "usage.prompt_tokens_details.cached_tokens")->s, "2");
    ck_assert_str_eq(json_path(ev, "usage.completion_tokens_details.reasoning_tokens")->s, "1");
    ck_assert_ptr_null(event_json(&p, &mem));
    ck_assert_int_eq(*p, 0);

    buf_reset(&b);
    struct gw_piece two[] = {{.part = &(struct gw_part){.type = GW_PART_CONTENT, .s = "hello", .n = 5}, .n = 1, .ended = true, .finish = ENG_LENGTH}, {.index = 1, .ended = true, .finish = ENG_STOP}};
    gw_api_chat.whole(&b, &h, two, 2, &u);
    ck_assert_int_eq(json_parse(&v, b.data, b.len, &json_strict, &mem, NULL), 0);
    ck_assert(json_eq(json_get(v, "object"), "chat.completion"));
    ck_assert(json_eq(json_path(json_get(v, "choices")->items[0], "message.content"), "hello"));
    ck_assert(json_eq(json_path(json_get(v, "choices")->items[1], "message.content"), "") && json_get(v, "choices")->n == 2);
    ck_assert(json_is(json_path(v, "timings.predicted_n"), JSON_NUMBER));

    buf_reset(&b);
    gw_api_completions.piece(&b, &h, &(struct gw_piece){.index = 1, .first = true, .part = &(struct gw_part){.type = GW_PART_CONTENT, .s = "abc", .n = 3}, .n = 1, .ended = true, .finish = ENG_LENGTH});
    gw_api_completions.end(&b, &h, NULL, &u);
    p = b.data;
    ev = event_json(&p, &mem);
    ck_assert(json_eq(json_get(ev, "object"), "text_completion") && json_eq(json_get(json_get(ev, "choices")->items[0], "text"), "abc"));
    ck_assert(json_eq(json_get(json_get(ev, "choices")->items[0], "finish_reason"), "length"));
    ck_assert_str_eq(json_path(event_json(&p, &mem), "usage.total_tokens")->s, "8");
    ck_assert_ptr_null(event_json(&p, &mem));

    buf_reset(&b);
    gw_api_error_set(&ae, 404, "model_not_found", "model", "The model '%s' does not exist.", "x\"y");
    gw_out_error(&b, &ae);
    ck_assert_str_eq(b.data, "{\"error\":{\"message\":\"The model 'x\\\"y' does not exist.\",\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}");
    buf_reset(&b);
    gw_out_model(&b, "m", 1, 4096);
    ck_assert_int_eq(json_parse(&v, b.data, b.len, &json_strict, &mem, NULL), 0);
    ck_assert_str_eq(gw_out_finish_reason(ENG_LENGTH), "length");
    ck_assert_ptr_null(gw_out_finish_reason(ENG_FAILED));
    buf_free(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gateway/openai");
    TCase *c = tcase_create("core");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, core);
    tcase_add_loop_test(c, accepted, 0, (int)(sizeof good / sizeof *good));
    tcase_add_loop_test(c, errors, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(c, completions);
    tcase_add_test(c, limits);
    tcase_add_test(c, memory);
    tcase_add_test(c, answers);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
