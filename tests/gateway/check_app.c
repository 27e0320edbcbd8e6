/* The whole gateway over real sockets, with an engine that makes up its text: routes and keys, what each API answers. */
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/app_rig.h"
#include "tests/support/suite.h"

START_TEST(routes)
{
    struct reply r;
    app_prepare();
    app.cfg.metrics = GW_METRICS_KEY;
    app_open();
    r = app_ask("GET", "/health", "", NULL);
    ck_assert_int_eq(r.status, 200);
    r = app_ask("GET", "/ready", "", NULL);
    ck_assert_int_eq(r.status, 200);
    ck_assert_ptr_nonnull(strstr(r.body, "\"ready\""));
    r = app_get("/v1/models");
    ck_assert_int_eq(r.status, 200);
    const struct json *v = app_parse(r.body, r.n), *data = json_get(v, "data");
    ck_assert_uint_eq(data->n, 2);
    ck_assert_str_eq(app_str_at(data->items[0], "id"), "fake-model");
    ck_assert_str_eq(app_str_at(data->items[0], "object"), "model");
    ck_assert_str_eq(app_str_at(data->items[1], "display_name"), "org/fake"); /* as Anthropic's clients have it */
    ck_assert_str_eq(app_str_at(data->items[1], "type"), "model");
    ck_assert_str_eq(app_str_at(v, "last_id"), "org/fake");
    ck_assert_uint_eq(strlen(app_str_at(data->items[0], "created_at")), strlen("2026-01-31T23:59:59Z"));
    ck_assert_str_eq(app_get("/models").body, r.body);
    r = app_get("/v1/models/fake-model");
    ck_assert_int_eq(r.status, 200);
    r = app_get("/v1/models/org%2Ffake");
    ck_assert_str_eq(app_str_at(app_parse(r.body, r.n), "id"), "org/fake");
    app_expect_error(app_get("/v1/models/other"), 404, "model_not_found", "model");
    app_expect_error(app_get("/v1/nothing"), 404, "unknown_url", "");
    r = app_get(CHAT);
    app_expect_error(r, 405, "method_not_allowed", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Allow: POST"));
    app_expect_error(app_ask("POST", "/v1/models", AUTH, "{}"), 405, "method_not_allowed", "");
    r = app_ask("GET", "/v1/models", "", NULL);
    app_expect_error(r, 401, "invalid_api_key", "");
    ck_assert_ptr_nonnull(strstr(r.head, "WWW-Authenticate: Bearer"));
    app_expect_error(app_ask("GET", "/v1/models", "Authorization: Bearer wrong-key-1\r\n", NULL), 401, "invalid_api_key", "");
    app_expect_error(app_ask("GET", "/v1/models", "Authorization: Basic " KEY "\r\n", NULL), 401, "invalid_api_key", "");
    app_expect_error(app_ask("GET", "/metrics", "", NULL), 401, "invalid_api_key", "");
    app_expect_error(app_ask("POST", CHAT, "Content-Type: application/json\r\n", "{}"), 401, "invalid_api_key", "");
    app_expect_error(app_ask("POST", CHAT, "Authorization: bearer " KEY "\r\nContent-Type: application/x-www-form-urlencoded\r\n", "{}"), 415, "unsupported_media_type", "");
    app_expect_error(app_ask("POST", CHAT, AUTH "Content-Encoding: gzip\r\n", "{}"), 415, "unsupported_media_type", "");
    ck_assert_int_eq(app_ask("POST", CHAT, AUTH "Content-Encoding: identity\r\n", app_chat_body("hello", "\"max_tokens\":1")).status, 200);
    ck_assert_int_eq(app_ask("POST", "/chat/completions", AUTH, app_chat_body("hello", "\"max_tokens\":1")).status, 200);
    ck_assert_int_eq(app_ask("POST", "/completions", AUTH, "{\"model\":\"fake-model\",\"prompt\":\"x\",\"max_tokens\":1}").status, 200);
    ck_assert(app_metric("sluice_requests_total{route=\"/v1/chat/completions\",status=\"401\"} ") == 1);
    ck_assert(app_metric("sluice_engine_up ") == 1);
    ck_assert(app_metric("sluice_kv_pages_used ") == 7);
    ck_assert(app_metric("sluice_resident_bytes ") > 0);
    app_close();
}
END_TEST

START_TEST(chats)
{
    struct reply r;
    app_prepare();
    app_open();
    r = app_chat("hello", "\"max_tokens\":9,\"seed\":5");
    ck_assert_msg(r.status == 200, "%s", r.body);
    const struct json *v = app_parse(r.body, r.n), *c = json_get(v, "choices")->items[0];
    app_expect_text(app_str_at(c, "message.content"), 5, 9);
    ck_assert_str_eq(app_str_at(c, "finish_reason"), "length");
    ck_assert_str_eq(app_str_at(v, "model"), "fake-model");
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "9");
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "11"); /* "user:hello\n" */
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens_details.cached_tokens")->s, "3");
    r = app_ask("POST", CHAT, AUTH, "{\"model\":\"org/fake\",\"seed\":6,\"max_completion_tokens\":3,\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},"
                                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"!stop\"},{\"type\":\"text\",\"text\":\" 2\"}]}]}");
    v = app_parse(r.body, r.n);
    ck_assert_str_eq(app_str_at(json_get(v, "choices")->items[0], "finish_reason"), "stop");
    app_expect_text(app_str_at(json_get(v, "choices")->items[0], "message.content"), 6, 2);

    for (uint32_t n = 0; n < 12; n++) {
        struct streamed t = app_stream(arena_printf(&app.mem, "!stop %u", n), arena_printf(&app.mem, "\"seed\":%u,\"stream_options\":{\"include_usage\":true}", n));
        app_expect_text(t.text, n, n);
        ck_assert_str_eq(t.finish, "stop");
        ck_assert_str_eq(json_get(t.usage, "completion_tokens")->s, arena_printf(&app.mem, "%u", n));
    }
    struct streamed t = app_stream("x", "\"seed\":-1,\"max_tokens\":400");
    app_expect_text(t.text, (uint64_t)-1, 400);
    ck_assert_ptr_null(t.usage);
    ck_assert(t.chunks > 4); /* on a busy machine many tokens share one */
    ck_assert(app_metric("sluice_generations_total{reason=\"stop\"} ") == 13);
    ck_assert(app_metric("sluice_time_to_first_token_seconds_count ") >= 13);
    ck_assert(app_metric("sluice_generation_tokens_total ") == 9 + 2 + 66 + 400);
    ck_assert(app_metric("sluice_queue_requests ") == 0);
    ck_assert(app_metric("sluice_queue_tokens ") == 0);
    app_close();
}
END_TEST

/* Several answers, logprobs, completions: whole and as streams. */
START_TEST(choices)
{
    struct reply r;
    app_prepare();
    app_open();
    r = app_chat("hello", "\"max_tokens\":6,\"seed\":5,\"n\":3,\"logprobs\":true,\"top_logprobs\":2");
    ck_assert_msg(r.status == 200, "%s", r.body);
    const struct json *v = app_parse(r.body, r.n), *all = json_get(v, "choices");
    ck_assert_uint_eq(all->n, 3);
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "18");
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "11"); /* once */
    for (size_t i = 0; i < 3; i++) {
        app_expect_text(app_str_at(all->items[i], "message.content"), 5 + i * 1000003, 6);
        const struct json *lp = json_path(all->items[i], "logprobs.content");
        ck_assert_uint_eq(lp->n, 6);
        ck_assert_uint_eq(json_get(lp->items[5], "top_logprobs")->n, 2);
        ck_assert_str_eq(json_get(lp->items[0], "logprob")->s, "-0.5");
        ck_assert_str_eq(app_str_at(json_get(lp->items[0], "top_logprobs")->items[0], "token"), app_str_at(lp->items[0], "token"));
        ck_assert_str_eq(app_str_at(json_get(lp->items[0], "top_logprobs")->items[1], "token"), "b");
        ck_assert_uint_eq(json_get(lp->items[0], "bytes")->n, strlen(app_str_at(lp->items[0], "token")));
    }
    r = app_chat("hello", "\"max_tokens\":6,\"seed\":5,\"n\":3,\"logprobs\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    struct buf text[3];
    size_t ends = 0, tokens = 0;
    bool done = false;
    for (int i = 0; i < 3; i++) {
        buf_init(&text[i], 4096);
        buf_str(&text[i], "");
    }
    for (const char *p = r.body, *end; p < r.body + r.n; p = end + 2) {
        ck_assert_ptr_nonnull(end = strstr(p, "\n\n"));
        if ((done = !strncmp(p, "data: [DONE]", 12)))
            continue;
        v = app_parse(p + 6, (size_t)(end - p - 6));
        if (!json_get(v, "choices")->n) {
            ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "18");
            continue;
        }
        const struct json *c = json_get(v, "choices")->items[0], *lp = json_path(c, "logprobs.content");
        int64_t i;
        ck_assert(json_int(json_get(c, "index"), &i) && i >= 0 && i < 3);
        buf_str(&text[i], app_str_at(c, "delta.content"));
        ends += json_str(json_get(c, "finish_reason")) != NULL;
        tokens += lp ? lp->n : 0;
    }
    ck_assert(done && ends == 3 && tokens == 18);
    for (int i = 0; i < 3; i++) {
        app_expect_text(text[i].data, 5 + (uint64_t)i * 1000003, 6);
        buf_free(&text[i]);
    }
#define COMPLETION(x) app_ask("POST", "/v1/completions", AUTH, "{\"model\":\"fake-model\"," x "}")
    r = COMPLETION("\"prompt\":\"abc\",\"seed\":7,\"max_tokens\":4,\"echo\":true");
    ck_assert_msg(r.status == 200, "%s", r.body);
    v = json_get(app_parse(r.body, r.n), "choices")->items[0];
    ck_assert_int_eq(strncmp(app_str_at(v, "text"), "abc", 3), 0);
    app_expect_text(app_str_at(v, "text") + 3, 7, 4);
    r = COMPLETION("\"prompt\":[[97,98],[99]],\"n\":2,\"seed\":7,\"logprobs\":3");
    ck_assert_msg(r.status == 200, "%s", r.body);
    v = app_parse(r.body, r.n);
    all = json_get(v, "choices");
    ck_assert_uint_eq(all->n, 4);
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "3");
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "64"); /* 16 each */
    for (size_t i = 0; i < 4; i++) {
        app_expect_text(app_str_at(all->items[i], "text"), 7 + i % 2 * 1000003, 16);
        ck_assert_uint_eq(json_path(all->items[i], "logprobs.tokens")->n, 16);
        ck_assert_uint_eq(json_path(all->items[i], "logprobs.top_logprobs")->items[3]->n, 3);
        ck_assert_str_eq(json_path(all->items[i], "logprobs.text_offset")->items[3]->s, "3");
    }
    r = COMPLETION("\"prompt\":\"!fail 3\",\"n\":4");
    app_expect_error(r, 500, "engine_error", "");
    app_expect_error(COMPLETION("\"prompt\":[2000]"), 400, "invalid_value", "prompt");
    app_expect_error(COMPLETION("\"prompt\":\"x\",\"suffix\":\"y\""), 400, "unsupported_parameter", "suffix");
    int fd = app_dial(0); /* leaves: all of its streams end */
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("!hang", "\"n\":5"));
    app_wait_live(5);
    close(fd);
    app_wait_live(0);
    for (int i = 0; i < 6000 && app_metric("sluice_queue_requests ") != 0; i++)
        clock_sleep_ns(10 * NS_PER_MS);
    ck_assert(app_metric("sluice_queue_requests ") == 0 && app_metric("sluice_queue_tokens ") == 0 && app_metric("sluice_inflight_requests ") == 0);
    app_close();
}
END_TEST

/* Anthropic's API over the wire, and the small questions. */
START_TEST(messages)
{
    struct reply r;
    app_prepare();
    app_open();
#define XKEY "x-api-key: " KEY "\r\nanthropic-version: 2023-06-01\r\nContent-Type: application/json\r\n"
#define MESSAGES "/v1/messages"
#define ASK(prompt, more) "{\"model\":\"fake-model\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"" prompt "\"}]" more "}"
    r = app_ask("POST", MESSAGES, XKEY, ASK("hello", ",\"system\":\"be\""));
    ck_assert_msg(r.status == 200, "%s", r.body);
    ck_assert_ptr_nonnull(strcasestr(r.head, "\nrequest-id: req_"));
    const struct json *v = app_parse(r.body, r.n);
    ck_assert_str_eq(app_str_at(v, "stop_reason"), "max_tokens");
    ck_assert_str_eq(json_path(v, "usage.input_tokens")->s, "18"); /* system:be, user:hello, less 3 cached */
    ck_assert_str_eq(json_path(v, "usage.output_tokens")->s, "9");
    ck_assert(*app_str_at(json_get(v, "content")->items[0], "text"));
    r = app_ask("POST", MESSAGES, XKEY, ASK("!stop 2 !met 2", ",\"stop_sequences\":[\"one\",\"two\"]"));
    v = app_parse(r.body, r.n);
    ck_assert_str_eq(app_str_at(v, "stop_reason"), "stop_sequence");
    ck_assert_str_eq(app_str_at(v, "stop_sequence"), "two");
    r = app_ask("POST", MESSAGES, XKEY, ASK("!stop 3", ",\"stream\":true"));
    ck_assert_int_eq(r.status, 200);
    const char *last = strstr(r.body, "event: message_delta\ndata: ");
    ck_assert_ptr_nonnull(last);
    v = app_parse(last + 27, strcspn(last + 27, "\n"));
    ck_assert_str_eq(app_str_at(v, "delta.stop_reason"), "end_turn");
    ck_assert_str_eq(json_path(v, "usage.output_tokens")->s, "3");
    ck_assert_int_eq(strncmp(r.body, "event: message_start\n", 21), 0);
    ck_assert_ptr_nonnull(strstr(last, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    r = app_ask("POST", MESSAGES, XKEY, ASK("!fail 2", ",\"stream\":true"));
    ck_assert_ptr_nonnull(strstr(r.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""));
    static const struct { const char *headers, *body; int status; const char *type; } bad[] = {
        {XKEY, "{", 400, "invalid_request_error"}, {XKEY, ASK("x", ",\"tools\":[{}]"), 400, "invalid_request_error"},
        {"x-api-key: wrong\r\nContent-Type: application/json\r\n", ASK("x", ""), 401, "authentication_error"},
        {"Content-Type: application/json\r\n", ASK("x", ""), 401, "authentication_error"},
        {AUTH "anthropic-version: soon\r\n", ASK("x", ""), 400, "invalid_request_error"},
        {XKEY, "{\"model\":\"other\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 404, "not_found_error"},
        {XKEY, ASK("!busy 1", ""), 529, "overloaded_error"}, {XKEY, ASK("!fail 1", ""), 500, "api_error"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r = app_ask("POST", MESSAGES, bad[i].headers, bad[i].body);
        ck_assert_msg(r.status == bad[i].status, "%zu: %d %s", i, r.status, r.body);
        v = app_parse(r.body, r.n);
        ck_assert_str_eq(app_str_at(v, "type"), "error");
        ck_assert_str_eq(app_str_at(v, "error.type"), bad[i].type);
    }
    r = app_ask("POST", MESSAGES "/count_tokens", XKEY, ASK("hello", ""));
    ck_assert_str_eq(r.body, "{\"input_tokens\":11}");
    r = app_ask("POST", MESSAGES "/count_tokens", XKEY, "{\"model\":\"fake-model\"}");
    ck_assert_str_eq(app_str_at(app_parse(r.body, r.n), "error.type"), "invalid_request_error");
    r = app_ask("POST", "/tokenize", AUTH, "{\"model\":\"fake-model\",\"prompt\":\"abc\"}");
    ck_assert_str_eq(r.body, "{\"count\":3,\"max_model_len\":512,\"tokens\":[97,98,99],\"token_strs\":null}");
    r = app_ask("POST", "/tokenize", AUTH, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"return_token_strs\":true}");
    ck_assert_str_eq(json_path(app_parse(r.body, r.n), "count")->s, "7");
    r = app_ask("POST", "/detokenize", AUTH, "{\"tokens\":[97,98,99]}");
    ck_assert_str_eq(r.body, "{\"prompt\":\"abc\"}");
    app_expect_error(app_ask("POST", "/tokenize", AUTH, "{}"), 400, "missing_required_parameter", "prompt");
    app_expect_error(app_ask("POST", "/tokenize", AUTH, "{\"prompt\":[1]}"), 400, "invalid_type", "prompt");
    app_expect_error(app_ask("POST", "/detokenize", AUTH, "{\"tokens\":[5000]}"), 400, "invalid_value", "tokens");
    app_expect_error(app_ask("POST", "/detokenize", AUTH, "{\"tokens\":5}"), 400, "invalid_type", "tokens");
    app_expect_error(app_ask("POST", "/detokenize", AUTH, "{\"model\":\"m\",\"tokens\":[]}"), 404, "model_not_found", "model");
    app_expect_error(app_ask("GET", "/tokenize", AUTH, NULL), 405, "method_not_allowed", "");
    app_close();
}
END_TEST

START_TEST(browsers) /* pages on the list may call and read; others get no permission, and without a list nobody does */
{
    static const char *const list[] = {"https://a.example", "http://localhost:3000"};
    struct reply r;
#define FROM(o) AUTH "Origin: " o "\r\n"
#define PREFLIGHT(o) "Origin: " o "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n"
    app_prepare();
    app.cfg.cors_origins = (struct conf_list){(const char **)list, 2};
    app_open();
    r = app_ask("OPTIONS", CHAT, PREFLIGHT("http://localhost:3000"), NULL);
    ck_assert_int_eq(r.status, 204);
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Origin: http://localhost:3000\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Headers: authorization, x-stainless-os\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Methods: GET, POST\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Vary: Origin\r"));
    r = app_ask("OPTIONS", CHAT, PREFLIGHT("https://evil.example"), NULL);
    ck_assert(r.status == 405 && !strstr(r.head, "Access-Control"));
    r = app_ask("POST", CHAT, FROM("https://a.example"), app_chat_body("!stop 2", ""));
    ck_assert(r.status == 200 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = app_ask("POST", CHAT, FROM("https://a.example"), app_chat_body("!stop 2", "\"stream\":true"));
    ck_assert(r.status == 200 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = app_ask("POST", CHAT, "Content-Type: application/json\r\nOrigin: https://a.example\r\n", "{}"); /* errors can be read too */
    ck_assert(r.status == 401 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = app_ask("POST", CHAT, FROM("https://a.example.evil"), app_chat_body("!stop 2", ""));
    ck_assert(r.status == 200 && !strstr(r.head, "Access-Control"));
    app_close();
    app_prepare();
    app_open();
    r = app_ask("OPTIONS", CHAT, PREFLIGHT("https://a.example"), NULL);
    ck_assert(r.status == 405 && !strstr(r.head, "Access-Control"));
    app_close();
    static const char *const any[] = {"*"};
    app_prepare();
    app.cfg.cors_origins = (struct conf_list){(const char **)any, 1};
    app_open();
    r = app_get("/v1/models");
    ck_assert_ptr_null(strstr(r.head, "Access-Control")); /* not from a page */
    r = app_ask("GET", "/v1/models", FROM("null"), NULL);
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Origin: *\r"));
    app_close();
}
END_TEST

START_TEST(errors)
{
    struct reply r;
    app_prepare();
    app.fc.ctx = 64;
    app.cfg.body_bytes = 100000;
    app_open();
    app_expect_error(app_ask("POST", CHAT, AUTH, "{"), 400, "", "");
    app_expect_error(app_ask("POST", CHAT, AUTH, ""), 400, "", "");
    app_expect_error(app_chat("x", "\"temperature\":9"), 400, "invalid_value", "temperature");
    app_expect_error(app_chat("x", "\"stream\":true,\"n\":300"), 400, "invalid_value", "n");
    app_expect_error(app_chat("x", "\"logit_bias\":{\"2000\":1}"), 400, "invalid_value", "logit_bias");
    app_expect_error(app_chat("x", "\"stream\":true,\"grammar\":\"root ::= \\\"a\\\" root\""), 400, "invalid_value", "grammar");
    app_expect_error(app_chat("x", "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"contains\":{\"type\":\"string\"}}}}"), 400,
                 "unsupported_value", "response_format.json_schema.schema");
    uint64_t grammars = fake_counts(app.fake).grammars;
    ck_assert_int_eq(app_chat("x", "\"max_tokens\":3,\"response_format\":{\"type\":\"json_object\"}").status, 200);
    ck_assert_int_eq(app_chat("x", "\"max_tokens\":3,\"grammar\":\"root ::= [a-z]\"").status, 200);
    ck_assert_uint_eq(fake_counts(app.fake).grammars, grammars + 2);
    app_expect_error(app_ask("POST", CHAT, AUTH, "{\"model\":\"gpt-x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"), 404, "model_not_found", "model");
    app_expect_error(app_ask("POST", CHAT, AUTH, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"!raise\"}]}"), 400, "invalid_value", "messages");
    r = app_chat("this prompt is longer than the sixty-four tokens that the model takes", "\"stream\":true");
    app_expect_error(r, 400, "context_length_exceeded", "messages");
    ck_assert_ptr_nonnull(strstr(r.body, "64 tokens"));
    ck_assert_ptr_nonnull(strstr(r.body, "75 tokens"));
    char *big = arena_alloc(&app.mem, 200001);
    memset(big, 'x', 200000);
    r = app_chat(big, "");
    ck_assert_int_eq(r.status, 413);
    app_expect_error(app_chat("!refuse 9", ""), 400, "context_length_exceeded", "messages");
    app_expect_error(app_chat("!refuse 7", ""), 400, "invalid_value", "");
    r = app_chat("!fail 2", "");
    app_expect_error(r, 500, "engine_error", "");
    ck_assert_ptr_nonnull(strstr(r.head, "x-should-retry: false"));
    r = app_chat("!busy 1", "");
    app_expect_error(r, 429, "queue_full", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    struct streamed t = app_stream("!fail 4", "\"seed\":2");
    ck_assert_str_eq(app_str_at(t.error, "code"), "engine_error");
    app_expect_text(t.text, 2, 4);
    t = app_stream("!busy 2 !stop 3", "\"seed\":2"); /* headers are out, so the gateway waits for its place */
    app_expect_text(t.text, 2, 3);
    t = app_stream("!refuse 9", "");
    ck_assert_str_eq(app_str_at(t.error, "code"), "context_length_exceeded");
    app_close();
}
END_TEST

/* What a kept-alive request costs is counted, since a count is the same on every machine: a buffer that grows from nothing, or a job
 * that is no longer one block, shows here. The engine of the rig and its frames are in it. */
START_TEST(cost)
{
    enum { WARM = 50, COUNTED = 400, MOST = 45 };
    char in[8192], request[512];
    unsigned long before = 0;
    if (!alloc_fail_works())
        return; /* a sanitizer's allocator is not counted */
    app_prepare();
    app_open();
    int fd = app_dial(0);
    const char *body = app_chat_body("hello", "\"max_tokens\":1");
    snprintf(request, sizeof request, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\n" AUTH "Content-Length: %zu\r\n\r\n%s", strlen(body), body);
    for (int i = 0; i < WARM + COUNTED; i++) {
        size_t n = 0;
        if (i == WARM)
            before = alloc_count();
        ck_assert_int_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
        do {
            ssize_t got = recv(fd, in + n, sizeof in - 1 - n, 0);
            ck_assert_int_gt(got, 0);
            in[n += (size_t)got] = 0;
        } while (n < 3 || strcmp(in + n - 2, "}}")); /* its last field is an object */
        ck_assert_int_eq(strncmp(in, "HTTP/1.1 200", 12), 0);
    }
    double each = (double)(alloc_count() - before) / COUNTED;
    ck_assert_msg(each > 1 && each <= MOST, "%.1f allocations a request, at most %d", each, MOST);
    close(fd);
    app_close();
}
END_TEST

SUITE("gateway", "app", routes, chats, choices, messages, browsers, errors, cost)
