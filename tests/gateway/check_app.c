/* The whole gateway over real sockets, with an engine that makes up its text: routes, keys, chats, limits, deaths, slow readers. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "gateway/gateway.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/fake_engine.h"
#include "tests/support/suite.h"

#define KEY "test-key-123"
#define CHAT "/v1/chat/completions"

static struct arena mem;
static struct gw_config cfg;
static struct fake_config fc;
static fake_engine *fake;
static gw_gateway *gw;

static void prepare_config(void)
{
    arena_init(&mem, 256u << 20);
    fake_config_default(&fc);
    gw_config_default(&cfg);
    const char **listen = ARENA_ARRAY(&mem, const char *, 1);
    listen[0] = "127.0.0.1:0";
    cfg.listen = (struct conf_list){listen, 1};
    cfg.tls = false;
    cfg.api_key = KEY;
    cfg.threads = 2;
    cfg.engine = fc.path;
    cfg.drain_ms = 60000;
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
}

static void open_all(void)
{
    struct err e;
    fake = fake_open(&fc);
    OK(gw_gateway_open(&gw, &cfg, &e));
    for (int i = 0; i < 60000 && !gw_gateway_ready(gw); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert(gw_gateway_ready(gw));
}

static void close_all(void)
{
    gw_gateway_close(gw);
    fake_close(fake);
    arena_free(&mem);
}

/* ---- a client that shows everything ----------------------------------------------------------------------- */

struct reply { int status; const char *head; const char *body; size_t n; };

static int dial(int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(gw_gateway_port(gw, 0)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval tv = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (rcvbuf)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    ck_assert_int_eq(connect(fd, (void *)&a, sizeof a), 0);
    return fd;
}

static void send_request(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    struct buf b;
    buf_init(&b, 64u << 20);
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s", method, path, headers);
    if (body)
        buf_printf(&b, "Content-Length: %zu\r\n", strlen(body));
    buf_str(&b, "\r\n");
    if (body)
        buf_str(&b, body);
    ck_assert(!b.failed);
    for (size_t at = 0; at < b.len;) {
        ssize_t n = send(fd, b.data + at, b.len - at, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* answered and closed before it was all sent */
        at += (size_t)n;
    }
    buf_free(&b);
}

static void read_all(int fd, struct buf *b)
{
    char in[16384];
    ssize_t n;
    while ((n = recv(fd, in, sizeof in, 0)) > 0)
        buf_add(b, in, (size_t)n);
    buf_str(b, "");
}

/* Splits an answer and undoes the chunked coding, in the arena. */
static struct reply split(const struct buf *raw)
{
    struct reply r = {0};
    char *text = arena_strdup(&mem, raw->data ? raw->data : "", raw->len);
    char *end = strstr(text, "\r\n\r\n");
    ck_assert_msg(end && !strncmp(text, "HTTP/1.1 ", 9), "no answer: %.200s", text);
    end[2] = 0;
    r.status = atoi(text + 9);
    r.head = text;
    char *p = end + 4, *out = p;
    size_t left = raw->len - (size_t)(p - text);
    r.body = out;
    r.n = left;
    if (!strstr(r.head, "chunked"))
        return r;
    r.n = 0;
    for (;;) {
        char *line;
        size_t len = strtoul(p, &line, 16);
        ck_assert_msg(line > p && !strncmp(line, "\r\n", 2), "bad chunk: %.60s", p);
        if (!len)
            break;
        memmove(out + r.n, line + 2, len);
        r.n += len;
        p = line + 2 + len + 2;
    }
    out[r.n] = 0;
    return r;
}

static struct reply ask(const char *method, const char *path, const char *headers, const char *body)
{
    struct buf raw;
    int fd = dial(0);
    buf_init(&raw, 256u << 20);
    send_request(fd, method, path, headers, body);
    read_all(fd, &raw);
    close(fd);
    struct reply r = split(&raw);
    buf_free(&raw);
    return r;
}

#define AUTH "Authorization: Bearer " KEY "\r\nContent-Type: application/json\r\n"
static struct reply get(const char *path) { return ask("GET", path, AUTH, NULL); }

static const char *chat_body(const char *prompt, const char *more)
{
    return arena_printf(&mem, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s%s}", prompt, *more ? "," : "", more);
}

static struct reply chat(const char *prompt, const char *more) { return ask("POST", CHAT, AUTH, chat_body(prompt, more)); }

static const struct json *parse(const char *s, size_t n)
{
    struct json *v = NULL;
    struct err e;
    ck_assert_msg(!json_parse(&v, s, n, &json_strict, &mem, &e), "%s in: %.300s", e.msg, s);
    return v;
}

static const char *str_at(const struct json *v, const char *path)
{
    const char *s = json_str(json_path(v, path));
    return s ? s : "";
}

static void expect_error(struct reply r, int status, const char *code, const char *param)
{
    ck_assert_msg(r.status == status, "status %d: %s", r.status, r.body);
    const struct json *v = parse(r.body, r.n);
    ck_assert_msg(!strcmp(str_at(v, "error.code"), code), "code: %s", r.body);
    ck_assert_msg(!strcmp(str_at(v, "error.param"), param), "param: %s", r.body);
    ck_assert(*str_at(v, "error.message") && *str_at(v, "error.type"));
    ck_assert_ptr_nonnull(strstr(r.head, "application/json"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-request-id: "));
}

/* A stream, taken apart and checked for its shape. */
struct streamed { const char *text, *finish; const struct json *usage, *error; size_t chunks, comments; };

static struct streamed take_apart(const char *s, size_t n)
{
    struct streamed t = {.finish = ""};
    struct buf text;
    bool done = false, role = false;
    const char *id = NULL;
    buf_init(&text, 64u << 20);
    buf_str(&text, "");
    for (const char *p = s, *end; p < s + n; p = end + 2) {
        ck_assert_msg((end = strstr(p, "\n\n")) != NULL, "an event does not end: %.200s", p);
        ck_assert(!done);
        if (*p == ':') {
            t.comments++;
            continue;
        }
        ck_assert_int_eq(strncmp(p, "data: ", 6), 0);
        if (!strncmp(p + 6, "[DONE]", 6)) {
            done = true;
            continue;
        }
        const struct json *v = parse(p + 6, (size_t)(end - p - 6)), *choices = json_get(v, "choices");
        if (json_get(v, "error")) {
            t.error = json_get(v, "error");
            continue;
        }
        t.chunks++;
        ck_assert(!id || !strcmp(id, str_at(v, "id")));
        id = str_at(v, "id");
        ck_assert_str_eq(str_at(v, "object"), "chat.completion.chunk");
        ck_assert_str_eq(str_at(v, "model"), "fake-model");
        if (choices->n == 0) {
            t.usage = json_get(v, "usage");
            continue;
        }
        const struct json *c = choices->items[0], *delta = json_get(c, "delta");
        ck_assert(!*t.finish);
        if (json_get(delta, "role")) {
            ck_assert(!role && t.chunks == 1);
            role = true;
        }
        buf_str(&text, str_at(delta, "content"));
        if (json_str(json_get(c, "finish_reason")))
            t.finish = json_str(json_get(c, "finish_reason"));
    }
    ck_assert(done);
    ck_assert(role || t.error);
    t.text = arena_strdup(&mem, text.data, text.len);
    buf_free(&text);
    return t;
}

static struct streamed stream(const char *prompt, const char *more)
{
    struct reply r = chat(prompt, arena_printf(&mem, "\"stream\":true%s%s", *more ? "," : "", more));
    ck_assert_msg(r.status == 200, "%d %s", r.status, r.body);
    ck_assert_ptr_nonnull(strstr(r.head, "text/event-stream"));
    return take_apart(r.body, r.n);
}

static void expect_text(const char *got, uint64_t seed, uint32_t n)
{
    char *want = fake_text(seed, n);
    ck_assert_str_eq(got, want);
    free(want);
}

static void wait_live(uint64_t n)
{
    for (int i = 0; i < 60000 && fake_counts(fake).live != n; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(fake_counts(fake).live, n);
}

static double metric(const char *line)
{
    struct reply r = get("/metrics");
    ck_assert_int_eq(r.status, 200);
    line = arena_printf(&mem, "\n%s", line);
    const char *p = strstr(r.body, line);
    ck_assert_msg(p != NULL, "%s is missing", line);
    return strtod(p + strlen(line), NULL);
}

static void wait_metric(const char *line, double v)
{
    for (int i = 0; i < 3000 && metric(line) != v; i++)
        clock_sleep_ns(20 * NS_PER_MS);
    ck_assert_msg(metric(line) == v, "%s%g, expected %g", line, metric(line), v);
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

START_TEST(routes)
{
    struct reply r;
    prepare_config();
    cfg.metrics = GW_METRICS_KEY;
    open_all();
    r = ask("GET", "/health", "", NULL);
    ck_assert_int_eq(r.status, 200);
    r = ask("GET", "/ready", "", NULL);
    ck_assert_int_eq(r.status, 200);
    ck_assert_ptr_nonnull(strstr(r.body, "\"ready\""));
    r = get("/v1/models");
    ck_assert_int_eq(r.status, 200);
    const struct json *v = parse(r.body, r.n), *data = json_get(v, "data");
    ck_assert_uint_eq(data->n, 2);
    ck_assert_str_eq(str_at(data->items[0], "id"), "fake-model");
    ck_assert_str_eq(str_at(data->items[0], "object"), "model");
    r = get("/v1/models/fake-model");
    ck_assert_int_eq(r.status, 200);
    r = get("/v1/models/org%2Ffake");
    ck_assert_str_eq(str_at(parse(r.body, r.n), "id"), "org/fake");
    expect_error(get("/v1/models/other"), 404, "model_not_found", "model");
    expect_error(get("/v1/nothing"), 404, "unknown_url", "");
    r = get(CHAT);
    expect_error(r, 405, "method_not_allowed", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Allow: POST"));
    expect_error(ask("POST", "/v1/models", AUTH, "{}"), 405, "method_not_allowed", "");
    r = ask("GET", "/v1/models", "", NULL);
    expect_error(r, 401, "invalid_api_key", "");
    ck_assert_ptr_nonnull(strstr(r.head, "WWW-Authenticate: Bearer"));
    expect_error(ask("GET", "/v1/models", "Authorization: Bearer wrong-key-1\r\n", NULL), 401, "invalid_api_key", "");
    expect_error(ask("GET", "/v1/models", "Authorization: Basic " KEY "\r\n", NULL), 401, "invalid_api_key", "");
    expect_error(ask("GET", "/metrics", "", NULL), 401, "invalid_api_key", "");
    expect_error(ask("POST", CHAT, "Content-Type: application/json\r\n", "{}"), 401, "invalid_api_key", "");
    expect_error(ask("POST", CHAT, "Authorization: bearer " KEY "\r\nContent-Type: application/x-www-form-urlencoded\r\n", "{}"), 415, "unsupported_media_type", "");
    ck_assert(metric("sluice_requests_total{route=\"/v1/chat/completions\",status=\"401\"} ") == 1);
    ck_assert(metric("sluice_engine_up ") == 1);
    ck_assert(metric("sluice_kv_pages_used ") == 7);
    ck_assert(metric("sluice_resident_bytes ") > 0);
    close_all();
}
END_TEST

START_TEST(chats)
{
    struct reply r;
    prepare_config();
    open_all();
    r = chat("hello", "\"max_tokens\":9,\"seed\":5");
    ck_assert_msg(r.status == 200, "%s", r.body);
    const struct json *v = parse(r.body, r.n), *c = json_get(v, "choices")->items[0];
    expect_text(str_at(c, "message.content"), 5, 9);
    ck_assert_str_eq(str_at(c, "finish_reason"), "length");
    ck_assert_str_eq(str_at(v, "model"), "fake-model");
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "9");
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "11"); /* "user:hello\n" */
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens_details.cached_tokens")->s, "3");
    r = ask("POST", CHAT, AUTH, "{\"model\":\"org/fake\",\"seed\":6,\"max_completion_tokens\":3,\"messages\":[{\"role\":\"developer\",\"content\":\"d\"},"
                                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"!stop\"},{\"type\":\"text\",\"text\":\" 2\"}]}]}");
    v = parse(r.body, r.n);
    ck_assert_str_eq(str_at(json_get(v, "choices")->items[0], "finish_reason"), "stop");
    expect_text(str_at(json_get(v, "choices")->items[0], "message.content"), 6, 2);

    for (uint32_t n = 0; n < 12; n++) {
        struct streamed t = stream(arena_printf(&mem, "!stop %u", n), arena_printf(&mem, "\"seed\":%u,\"stream_options\":{\"include_usage\":true}", n));
        expect_text(t.text, n, n);
        ck_assert_str_eq(t.finish, "stop");
        ck_assert_str_eq(json_get(t.usage, "completion_tokens")->s, arena_printf(&mem, "%u", n));
    }
    struct streamed t = stream("x", "\"seed\":-1,\"max_tokens\":400");
    expect_text(t.text, (uint64_t)-1, 400);
    ck_assert_ptr_null(t.usage);
    ck_assert(t.chunks > 4); /* on a busy machine many tokens share one */
    ck_assert(metric("sluice_generations_total{reason=\"stop\"} ") == 13);
    ck_assert(metric("sluice_time_to_first_token_seconds_count ") >= 13);
    ck_assert(metric("sluice_generation_tokens_total ") == 9 + 2 + 66 + 400);
    ck_assert(metric("sluice_queue_requests ") == 0);
    ck_assert(metric("sluice_queue_tokens ") == 0);
    close_all();
}
END_TEST

/* Several answers, logprobs, completions: whole and as streams. */
START_TEST(choices)
{
    struct reply r;
    prepare_config();
    open_all();
    r = chat("hello", "\"max_tokens\":6,\"seed\":5,\"n\":3,\"logprobs\":true,\"top_logprobs\":2");
    ck_assert_msg(r.status == 200, "%s", r.body);
    const struct json *v = parse(r.body, r.n), *all = json_get(v, "choices");
    ck_assert_uint_eq(all->n, 3);
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "18");
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "11"); /* once */
    for (size_t i = 0; i < 3; i++) {
        expect_text(str_at(all->items[i], "message.content"), 5 + i * 1000003, 6);
        const struct json *lp = json_path(all->items[i], "logprobs.content");
        ck_assert_uint_eq(lp->n, 6);
        ck_assert_uint_eq(json_get(lp->items[5], "top_logprobs")->n, 2);
        ck_assert_str_eq(json_get(lp->items[0], "logprob")->s, "-0.5");
        ck_assert_str_eq(str_at(json_get(lp->items[0], "top_logprobs")->items[0], "token"), str_at(lp->items[0], "token"));
        ck_assert_str_eq(str_at(json_get(lp->items[0], "top_logprobs")->items[1], "token"), "b");
        ck_assert_uint_eq(json_get(lp->items[0], "bytes")->n, strlen(str_at(lp->items[0], "token")));
    }
    r = chat("hello", "\"max_tokens\":6,\"seed\":5,\"n\":3,\"logprobs\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true}");
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
        v = parse(p + 6, (size_t)(end - p - 6));
        if (!json_get(v, "choices")->n) {
            ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "18");
            continue;
        }
        const struct json *c = json_get(v, "choices")->items[0], *lp = json_path(c, "logprobs.content");
        int64_t i;
        ck_assert(json_int(json_get(c, "index"), &i) && i >= 0 && i < 3);
        buf_str(&text[i], str_at(c, "delta.content"));
        ends += json_str(json_get(c, "finish_reason")) != NULL;
        tokens += lp ? lp->n : 0;
    }
    ck_assert(done && ends == 3 && tokens == 18);
    for (int i = 0; i < 3; i++) {
        expect_text(text[i].data, 5 + (uint64_t)i * 1000003, 6);
        buf_free(&text[i]);
    }
#define COMPLETION(x) ask("POST", "/v1/completions", AUTH, "{\"model\":\"fake-model\"," x "}")
    r = COMPLETION("\"prompt\":\"abc\",\"seed\":7,\"max_tokens\":4,\"echo\":true");
    ck_assert_msg(r.status == 200, "%s", r.body);
    v = json_get(parse(r.body, r.n), "choices")->items[0];
    ck_assert_int_eq(strncmp(str_at(v, "text"), "abc", 3), 0);
    expect_text(str_at(v, "text") + 3, 7, 4);
    r = COMPLETION("\"prompt\":[[97,98],[99]],\"n\":2,\"seed\":7,\"logprobs\":3");
    ck_assert_msg(r.status == 200, "%s", r.body);
    v = parse(r.body, r.n);
    all = json_get(v, "choices");
    ck_assert_uint_eq(all->n, 4);
    ck_assert_str_eq(json_path(v, "usage.prompt_tokens")->s, "3");
    ck_assert_str_eq(json_path(v, "usage.completion_tokens")->s, "64"); /* 16 each */
    for (size_t i = 0; i < 4; i++) {
        expect_text(str_at(all->items[i], "text"), 7 + i % 2 * 1000003, 16);
        ck_assert_uint_eq(json_path(all->items[i], "logprobs.tokens")->n, 16);
        ck_assert_uint_eq(json_path(all->items[i], "logprobs.top_logprobs")->items[3]->n, 3);
        ck_assert_str_eq(json_path(all->items[i], "logprobs.text_offset")->items[3]->s, "3");
    }
    r = COMPLETION("\"prompt\":\"!fail 3\",\"n\":4");
    expect_error(r, 500, "engine_error", "");
    expect_error(COMPLETION("\"prompt\":[2000]"), 400, "invalid_value", "prompt");
    expect_error(COMPLETION("\"prompt\":\"x\",\"suffix\":\"y\""), 400, "unsupported_parameter", "suffix");
    int fd = dial(0); /* leaves: all of its streams end */
    send_request(fd, "POST", CHAT, AUTH, chat_body("!hang", "\"n\":5"));
    wait_live(5);
    close(fd);
    wait_live(0);
    for (int i = 0; i < 6000 && metric("sluice_queue_requests ") != 0; i++)
        clock_sleep_ns(10 * NS_PER_MS);
    ck_assert(metric("sluice_queue_requests ") == 0 && metric("sluice_queue_tokens ") == 0 && metric("sluice_inflight_requests ") == 0);
    close_all();
}
END_TEST

/* Anthropic's API over the wire, and the small questions. */
START_TEST(messages)
{
    struct reply r;
    prepare_config();
    open_all();
#define XKEY "x-api-key: " KEY "\r\nanthropic-version: 2023-06-01\r\nContent-Type: application/json\r\n"
#define MESSAGES "/v1/messages"
#define ASK(prompt, more) "{\"model\":\"fake-model\",\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"" prompt "\"}]" more "}"
    r = ask("POST", MESSAGES, XKEY, ASK("hello", ",\"system\":\"be\""));
    ck_assert_msg(r.status == 200, "%s", r.body);
    ck_assert_ptr_nonnull(strcasestr(r.head, "\nrequest-id: req_"));
    const struct json *v = parse(r.body, r.n);
    ck_assert_str_eq(str_at(v, "stop_reason"), "max_tokens");
    ck_assert_str_eq(json_path(v, "usage.input_tokens")->s, "18"); /* system:be, user:hello, less 3 cached */
    ck_assert_str_eq(json_path(v, "usage.output_tokens")->s, "9");
    ck_assert(*str_at(json_get(v, "content")->items[0], "text"));
    r = ask("POST", MESSAGES, XKEY, ASK("!stop 2 !met 2", ",\"stop_sequences\":[\"one\",\"two\"]"));
    v = parse(r.body, r.n);
    ck_assert_str_eq(str_at(v, "stop_reason"), "stop_sequence");
    ck_assert_str_eq(str_at(v, "stop_sequence"), "two");
    r = ask("POST", MESSAGES, XKEY, ASK("!stop 3", ",\"stream\":true"));
    ck_assert_int_eq(r.status, 200);
    const char *last = strstr(r.body, "event: message_delta\ndata: ");
    ck_assert_ptr_nonnull(last);
    v = parse(last + 27, strcspn(last + 27, "\n"));
    ck_assert_str_eq(str_at(v, "delta.stop_reason"), "end_turn");
    ck_assert_str_eq(json_path(v, "usage.output_tokens")->s, "3");
    ck_assert_int_eq(strncmp(r.body, "event: message_start\n", 21), 0);
    ck_assert_ptr_nonnull(strstr(last, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    r = ask("POST", MESSAGES, XKEY, ASK("!fail 2", ",\"stream\":true"));
    ck_assert_ptr_nonnull(strstr(r.body, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""));
    static const struct { const char *headers, *body; int status; const char *type; } bad[] = {
        {XKEY, "{", 400, "invalid_request_error"}, {XKEY, ASK("x", ",\"tools\":[{}]"), 400, "invalid_request_error"},
        {"x-api-key: wrong\r\nContent-Type: application/json\r\n", ASK("x", ""), 401, "authentication_error"},
        {"Content-Type: application/json\r\n", ASK("x", ""), 401, "authentication_error"},
        {AUTH "anthropic-version: soon\r\n", ASK("x", ""), 400, "invalid_request_error"},
        {XKEY, "{\"model\":\"other\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", 404, "not_found_error"},
        {XKEY, ASK("!busy 1", ""), 529, "overloaded_error"}, {XKEY, ASK("!fail 1", ""), 500, "api_error"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        r = ask("POST", MESSAGES, bad[i].headers, bad[i].body);
        ck_assert_msg(r.status == bad[i].status, "%zu: %d %s", i, r.status, r.body);
        v = parse(r.body, r.n);
        ck_assert_str_eq(str_at(v, "type"), "error");
        ck_assert_str_eq(str_at(v, "error.type"), bad[i].type);
    }
    r = ask("POST", MESSAGES "/count_tokens", XKEY, ASK("hello", ""));
    ck_assert_str_eq(r.body, "{\"input_tokens\":11}");
    r = ask("POST", MESSAGES "/count_tokens", XKEY, "{\"model\":\"fake-model\"}");
    ck_assert_str_eq(str_at(parse(r.body, r.n), "error.type"), "invalid_request_error");
    r = ask("POST", "/tokenize", AUTH, "{\"model\":\"fake-model\",\"prompt\":\"abc\"}");
    ck_assert_str_eq(r.body, "{\"count\":3,\"max_model_len\":512,\"tokens\":[97,98,99],\"token_strs\":null}");
    r = ask("POST", "/tokenize", AUTH, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"return_token_strs\":true}");
    ck_assert_str_eq(json_path(parse(r.body, r.n), "count")->s, "7");
    r = ask("POST", "/detokenize", AUTH, "{\"tokens\":[97,98,99]}");
    ck_assert_str_eq(r.body, "{\"prompt\":\"abc\"}");
    expect_error(ask("POST", "/tokenize", AUTH, "{}"), 400, "missing_required_parameter", "prompt");
    expect_error(ask("POST", "/tokenize", AUTH, "{\"prompt\":[1]}"), 400, "invalid_type", "prompt");
    expect_error(ask("POST", "/detokenize", AUTH, "{\"tokens\":[5000]}"), 400, "invalid_value", "tokens");
    expect_error(ask("POST", "/detokenize", AUTH, "{\"tokens\":5}"), 400, "invalid_type", "tokens");
    expect_error(ask("POST", "/detokenize", AUTH, "{\"model\":\"m\",\"tokens\":[]}"), 404, "model_not_found", "model");
    expect_error(ask("GET", "/tokenize", AUTH, NULL), 405, "method_not_allowed", "");
    close_all();
}
END_TEST

START_TEST(browsers) /* pages on the list may call and read; others get no permission, and without a list nobody does */
{
    static const char *const list[] = {"https://a.example", "http://localhost:3000"};
    struct reply r;
#define FROM(o) AUTH "Origin: " o "\r\n"
#define PREFLIGHT(o) "Origin: " o "\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-stainless-os\r\n"
    prepare_config();
    cfg.cors_origins = (struct conf_list){(const char **)list, 2};
    open_all();
    r = ask("OPTIONS", CHAT, PREFLIGHT("http://localhost:3000"), NULL);
    ck_assert_int_eq(r.status, 204);
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Origin: http://localhost:3000\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Headers: authorization, x-stainless-os\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Methods: GET, POST\r"));
    ck_assert_ptr_nonnull(strstr(r.head, "Vary: Origin\r"));
    r = ask("OPTIONS", CHAT, PREFLIGHT("https://evil.example"), NULL);
    ck_assert(r.status == 405 && !strstr(r.head, "Access-Control"));
    r = ask("POST", CHAT, FROM("https://a.example"), chat_body("!stop 2", ""));
    ck_assert(r.status == 200 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = ask("POST", CHAT, FROM("https://a.example"), chat_body("!stop 2", "\"stream\":true"));
    ck_assert(r.status == 200 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = ask("POST", CHAT, "Content-Type: application/json\r\nOrigin: https://a.example\r\n", "{}"); /* errors can be read too */
    ck_assert(r.status == 401 && strstr(r.head, "Access-Control-Allow-Origin: https://a.example\r"));
    r = ask("POST", CHAT, FROM("https://a.example.evil"), chat_body("!stop 2", ""));
    ck_assert(r.status == 200 && !strstr(r.head, "Access-Control"));
    close_all();
    prepare_config();
    open_all();
    r = ask("OPTIONS", CHAT, PREFLIGHT("https://a.example"), NULL);
    ck_assert(r.status == 405 && !strstr(r.head, "Access-Control"));
    close_all();
    static const char *const any[] = {"*"};
    prepare_config();
    cfg.cors_origins = (struct conf_list){(const char **)any, 1};
    open_all();
    r = get("/v1/models");
    ck_assert_ptr_null(strstr(r.head, "Access-Control")); /* not from a page */
    r = ask("GET", "/v1/models", FROM("null"), NULL);
    ck_assert_ptr_nonnull(strstr(r.head, "Access-Control-Allow-Origin: *\r"));
    close_all();
}
END_TEST

START_TEST(errors)
{
    struct reply r;
    prepare_config();
    fc.ctx = 64;
    cfg.body_bytes = 100000;
    open_all();
    expect_error(ask("POST", CHAT, AUTH, "{"), 400, "", "");
    expect_error(ask("POST", CHAT, AUTH, ""), 400, "", "");
    expect_error(chat("x", "\"temperature\":9"), 400, "invalid_value", "temperature");
    expect_error(chat("x", "\"stream\":true,\"n\":300"), 400, "invalid_value", "n");
    expect_error(chat("x", "\"logit_bias\":{\"2000\":1}"), 400, "invalid_value", "logit_bias");
    expect_error(chat("x", "\"stream\":true,\"grammar\":\"root ::= \\\"a\\\" root\""), 400, "invalid_value", "grammar");
    expect_error(chat("x", "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":{\"contains\":{\"type\":\"string\"}}}}"), 400,
                 "unsupported_value", "response_format.json_schema.schema");
    uint64_t grammars = fake_counts(fake).grammars;
    ck_assert_int_eq(chat("x", "\"max_tokens\":3,\"response_format\":{\"type\":\"json_object\"}").status, 200);
    ck_assert_int_eq(chat("x", "\"max_tokens\":3,\"grammar\":\"root ::= [a-z]\"").status, 200);
    ck_assert_uint_eq(fake_counts(fake).grammars, grammars + 2);
    expect_error(ask("POST", CHAT, AUTH, "{\"model\":\"gpt-x\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"), 404, "model_not_found", "model");
    expect_error(ask("POST", CHAT, AUTH, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"!raise\"}]}"), 400, "invalid_value", "messages");
    r = chat("this prompt is longer than the sixty-four tokens that the model takes", "\"stream\":true");
    expect_error(r, 400, "context_length_exceeded", "messages");
    ck_assert_ptr_nonnull(strstr(r.body, "64 tokens"));
    ck_assert_ptr_nonnull(strstr(r.body, "75 tokens"));
    char *big = arena_alloc(&mem, 200001);
    memset(big, 'x', 200000);
    r = chat(big, "");
    ck_assert_int_eq(r.status, 413);
    expect_error(chat("!refuse 9", ""), 400, "context_length_exceeded", "messages");
    expect_error(chat("!refuse 7", ""), 400, "invalid_value", "");
    r = chat("!fail 2", "");
    expect_error(r, 500, "engine_error", "");
    ck_assert_ptr_nonnull(strstr(r.head, "x-should-retry: false"));
    r = chat("!busy 1", "");
    expect_error(r, 429, "queue_full", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    struct streamed t = stream("!fail 4", "\"seed\":2");
    ck_assert_str_eq(str_at(t.error, "code"), "engine_error");
    expect_text(t.text, 2, 4);
    t = stream("!busy 2 !stop 3", "\"seed\":2"); /* headers are out, so the gateway waits for its place */
    expect_text(t.text, 2, 3);
    t = stream("!refuse 9", "");
    ck_assert_str_eq(str_at(t.error, "code"), "context_length_exceeded");
    close_all();
}
END_TEST

START_TEST(queue)
{
    struct reply r;
    int fd[3];
    prepare_config();
    fc.queue_max = 3;
    open_all();
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(0);
        send_request(fd[i], "POST", CHAT, AUTH, chat_body("!hang", "\"stream\":true"));
    }
    wait_live(3);
    r = chat("one more", "\"stream\":true");
    expect_error(r, 429, "queue_full", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    ck_assert(metric("sluice_queue_requests ") == 3);
    close(fd[0]); /* one leaves: its place is free again */
    wait_live(2);
    r = chat("!stop 1", "");
    ck_assert_int_eq(r.status, 200);
    close(fd[1]);
    close(fd[2]);
    wait_live(0);
    ck_assert_uint_eq(fake_counts(fake).cancels, 3);
    wait_metric("sluice_generations_total{reason=\"cancelled\"} ", 3);
    close_all();

    prepare_config(); /* by tokens: a prompt that is too much beside another is refused, alone it is taken */
    cfg.queue_tokens = 60;
    open_all();
    fd[0] = dial(0);
    send_request(fd[0], "POST", CHAT, AUTH, chat_body("!hang ......................................................................", ""));
    wait_live(1);
    expect_error(chat("short", ""), 429, "queue_full", "");
    close(fd[0]);
    wait_live(0);
    close_all();
}
END_TEST

START_TEST(tenants)
{
    struct reply r;
    char hex[65], path[64];
    uint8_t d[32];
    int fd;
    prepare_config();
    snprintf(path, sizeof path, "/tmp/check_app.keys.%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    hash_sha256("key-of-acme", 11, d);
    hash_hex(d, 32, hex);
    fprintf(f, "%s acme concurrent=1 max_tokens=20 requests_per_min=4 tokens_per_min=1000\n", hex);
    fclose(f);
    cfg.keys_file = path;
    open_all();
#define ACME "Authorization: Bearer key-of-acme\r\nContent-Type: application/json\r\n"
    r = ask("POST", CHAT, ACME, chat_body("x", "\"max_tokens\":21"));
    expect_error(r, 400, "invalid_value", "max_tokens");
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-remaining-requests: 3\r"));
    r = ask("POST", CHAT, ACME, chat_body("x", "\"seed\":3")); /* the limit is also the default */
    expect_text(str_at(json_get(parse(r.body, r.n), "choices")->items[0], "message.content"), 3, 20);
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-limit-requests: 4\r"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-remaining-requests: 2\r"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-limit-tokens: 1000\r"));
    wait_live(0); /* the engine counts a request a moment longer than its client */
    fd = dial(0);
    send_request(fd, "POST", CHAT, ACME, chat_body("!hang", ""));
    wait_live(1);
    r = ask("POST", CHAT, ACME, chat_body("x", ""));
    expect_error(r, 429, "rate_limit_exceeded", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: 1\r"));
    close(fd);
    wait_live(0);
    r = ask("POST", CHAT, ACME, chat_body("x", ""));
    ck_assert_int_eq(r.status, 200);
    r = ask("POST", CHAT, ACME, chat_body("x", "")); /* the fifth of this minute */
    expect_error(r, 429, "rate_limit_exceeded", "");
    ck_assert_int_eq(chat("!stop 1", "").status, 200); /* api_key is another tenant */
    close_all();
    unlink(path);
}
END_TEST

START_TEST(leaving) /* clients that go, and clients that do not read */
{
    struct buf raw;
    int fd;
    prepare_config();
    fc.ctx = 200000;
    fc.delay_us = 0;
    cfg.heartbeat_ms = 100;
    open_all();
    fd = dial(0); /* leaves in mid-stream */
    send_request(fd, "POST", CHAT, AUTH, chat_body("!delay 5", "\"stream\":true"));
    char in[2000];
    ck_assert_int_gt(recv(fd, in, sizeof in, 0), 0);
    wait_live(1);
    close(fd);
    wait_live(0);
    fd = dial(0); /* leaves while a whole answer is being made */
    send_request(fd, "POST", CHAT, AUTH, chat_body("!delay 5", ""));
    wait_live(1);
    close(fd);
    wait_live(0);
    wait_metric("sluice_generations_total{reason=\"cancelled\"} ", 2);
    ck_assert_uint_eq(fake_counts(fake).cancels, 2);

    buf_init(&raw, 256u << 20); /* reads late: its sequence is paused, and then nothing is missing */
    fd = dial(4096);
    send_request(fd, "POST", CHAT, AUTH, chat_body("slow", "\"stream\":true,\"seed\":1,\"max_tokens\":60000"));
    for (int i = 0; i < 60000 && !fake_counts(fake).pauses; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(fake_counts(fake).pauses, 1);
    int rcvbuf = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    read_all(fd, &raw);
    close(fd);
    struct reply r = split(&raw);
    struct streamed t = take_apart(r.body, r.n);
    expect_text(t.text, 1, 60000);
    ck_assert_uint_ge(fake_counts(fake).resumes, 1);
    buf_free(&raw);

    close_all();
    prepare_config();
    fc.ctx = 200000;
    fc.delay_us = 0;
    cfg.write_stall_ms = 700;
    open_all();
    fd = dial(4096); /* never reads: cut off and cancelled */
    send_request(fd, "POST", CHAT, AUTH, chat_body("stall", "\"stream\":true,\"max_tokens\":150000"));
    wait_metric("sluice_generations_total{reason=\"stalled\"} ", 1);
    wait_live(0);
    close(fd);
    close_all();
}
END_TEST

START_TEST(heartbeats)
{
    struct buf raw;
    int fd;
    prepare_config();
    cfg.heartbeat_ms = 100;
    open_all();
    fd = dial(0);
    send_request(fd, "POST", CHAT, AUTH, chat_body("!hang", "\"stream\":true"));
    buf_init(&raw, 1u << 20);
    char in[4096];
    ssize_t n;
    while (!strstr(raw.data ? raw.data : "", ": keep-alive") && (n = recv(fd, in, sizeof in, 0)) > 0)
        buf_add(&raw, in, (size_t)n);
    ck_assert_ptr_nonnull(strstr(raw.data, "200 OK")); /* headers are there before any token */
    ck_assert_ptr_nonnull(strstr(raw.data, ": keep-alive"));
    close(fd);
    buf_free(&raw);
    close_all();
}
END_TEST

START_TEST(deaths)
{
    struct reply r;
    prepare_config();
    fc.down_ms = 100;
    open_all();
    struct streamed t = stream("!die 7 !stop 30", "\"seed\":9");
    expect_text(t.text, 9, 30);
    ck_assert_str_eq(t.finish, "stop");
    ck_assert_uint_eq(fake_counts(fake).resumed, 1);
    ck_assert(metric("sluice_engine_restarts_total ") == 1);
    close_all();
    prepare_config(); /* for good this time, with a stream running */
    cfg.engine_lost_ms = 500;
    open_all();
    int fd = dial(0);
    send_request(fd, "POST", CHAT, AUTH, chat_body("!delay 10", "\"stream\":true,\"seed\":4"));
    wait_live(1);
    fake_die(fake, 0);
    struct buf raw;
    buf_init(&raw, 1u << 24);
    read_all(fd, &raw);
    close(fd);
    r = split(&raw);
    t = take_apart(r.body, r.n);
    ck_assert_str_eq(str_at(t.error, "code"), "engine_unavailable");
    buf_free(&raw);
    r = ask("GET", "/ready", "", NULL);
    ck_assert_int_eq(r.status, 503);
    ck_assert_int_eq(ask("GET", "/health", "", NULL).status, 200);
    r = chat("x", "");
    expect_error(r, 503, "engine_unavailable", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    ck_assert_int_eq(get("/v1/models").status, 200); /* still listed */
    close_all();
}
END_TEST

static void *run_gateway(void *arg)
{
    *(unsigned *)arg = gw_gateway_run(gw);
    return NULL;
}

START_TEST(drain) /* what runs ends well, nothing new begins; past the deadline it is cut */
{
    pthread_t th;
    unsigned cut = 99;
    struct buf raw;
    for (int late = 0; late < 2; late++) {
        prepare_config();
        cfg.drain_ms = late ? 200 : 60000;
        open_all();
        pthread_create(&th, NULL, run_gateway, &cut);
        int fd = dial(0);
        send_request(fd, "POST", CHAT, AUTH, chat_body(late ? "!delay 20" : "!delay 5 !stop 40", "\"stream\":true,\"seed\":4"));
        wait_live(1);
        gw_gateway_stop(gw);
        buf_init(&raw, 1u << 24);
        if (late)
            pthread_join(th, NULL);
        if (!late) {
            read_all(fd, &raw);
            struct reply r = split(&raw);
            struct streamed t = take_apart(r.body, r.n);
            expect_text(t.text, 4, 40);
            pthread_join(th, NULL);
        }
        ck_assert_uint_eq(cut, late ? 1 : 0);
        buf_free(&raw);
        close_all(); /* with `late` a stream still runs */
        close(fd);
    }
}
END_TEST

START_TEST(config)
{
    struct gw_config c;
    struct err e;
    gw_gateway *g;
    prepare_config();
    OK((gw_config_default(&c), gw_config_read_file(&c, "conf/gateway.conf", &mem, &e)));
    ck_assert_str_eq(c.engine, "unix:/run/sluice/engine.sock");
    ck_assert_str_eq(c.listen.items[0], "127.0.0.1:8443");
    /* every directive stands in the file, commented out or not */
    FILE *f = fopen("conf/gateway.conf", "r");
    char *text = arena_alloc(&mem, 65536);
    ck_assert_uint_gt(fread(text, 1, 65535, f), 1000);
    fclose(f);
    for (size_t i = 0; i < gw_config_n_directives; i++)
        ck_assert_msg(strstr(text, arena_printf(&mem, "\n# %s ", gw_config_directives[i].name)) || strstr(text, arena_printf(&mem, "\n%s ", gw_config_directives[i].name)),
                      "conf/gateway.conf lacks %s", gw_config_directives[i].name);
    for (char *p = text; (p = strstr(p, "\n# ")); p++) { /* what is commented out parses as well */
        size_t n = strcspn(p + 3, " \n");
        bool known = false;
        for (size_t i = 0; i < gw_config_n_directives; i++)
            known |= strlen(gw_config_directives[i].name) == n && !strncmp(p + 3, gw_config_directives[i].name, n) && p[3 + n] == ' ' && !strstr(arena_strdup(&mem, p + 3, strcspn(p + 3, "\n")), ". ");
        if (known && strcspn(p + 3, "\n") < 60) {
            gw_config_default(&c);
            OK(conf_read_text("line", arena_strdup(&mem, p + 3, strcspn(p + 3, "\n")), gw_config_directives, gw_config_n_directives, &c, &mem, &e));
        }
    }
    cfg.listen.items[0] = "0.0.0.0:0";
    cfg.api_key = NULL;
    FAILS(ERR_INVALID, "needs keys_file", gw_gateway_open(&g, &cfg, &e));
    cfg.api_key = KEY; /* plain HTTP outside */
    ck_assert_int_ne(gw_gateway_open(&g, &cfg, &e), 0);
    cfg.listen.items[0] = "127.0.0.1:99999";
    FAILS(ERR_INVALID, "host:port", gw_gateway_open(&g, &cfg, &e));
    cfg.listen.items[0] = "127.0.0.1:0";
    cfg.api_key = NULL;
    FAILS(ERR_INVALID, "state_dir", gw_gateway_open(&g, &cfg, &e));
    cfg.api_key = KEY;
    cfg.tls_cert = "x.pem";
    FAILS(ERR_INVALID, "tls is off", gw_gateway_open(&g, &cfg, &e));
    cfg.tls_cert = NULL;
    cfg.tls = true;
    FAILS(ERR_INVALID, "state_dir", gw_gateway_open(&g, &cfg, &e));
    cfg.tls = false;
    cfg.engine = NULL;
    FAILS(ERR_INVALID, "engine", gw_gateway_open(&g, &cfg, &e));
    arena_free(&mem);
}
END_TEST

SUITE("gateway", "app", routes, chats, choices, messages, browsers, errors, queue, tenants, leaving, heartbeats, deaths, drain, config)
