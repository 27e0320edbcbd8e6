#include "tests/support/app_rig.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "tests/support/suite.h"

struct app app;

void app_prepare(void)
{
    arena_init(&app.mem, 256u << 20);
    fake_config_default(&app.fc);
    gw_config_default(&app.cfg);
    const char **listen = ARENA_ARRAY(&app.mem, const char *, 1);
    listen[0] = "127.0.0.1:0";
    app.cfg.listen = (struct conf_list){listen, 1};
    app.cfg.tls = false;
    app.cfg.api_key = KEY;
    app.cfg.threads = 2;
    app.cfg.engine = app.fc.path;
    app.cfg.drain_ms = 60000;
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
}

void app_open(void)
{
    struct err e;
    app.fake = fake_open(&app.fc);
    OK(gw_gateway_open(&app.gw, &app.cfg, &e));
    for (int i = 0; i < 60000 && !gw_gateway_ready(app.gw); i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert(gw_gateway_ready(app.gw));
}

void app_close(void)
{
    gw_gateway_close(app.gw);
    fake_close(app.fake);
    arena_free(&app.mem);
}

/* ---- a client that shows everything ----------------------------------------------------------------------- */

int app_dial(int rcvbuf)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(gw_gateway_port(app.gw, 0)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval tv = {60, 0}; /* as every wait of this rig */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    if (rcvbuf)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    ck_assert_int_eq(connect(fd, (void *)&a, sizeof a), 0);
    return fd;
}

void app_send_request(int fd, const char *method, const char *path, const char *headers, const char *body)
{
    struct buf b;
    buf_init(&b, 64u << 20);
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, headers);
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

void app_read_all(int fd, struct buf *b)
{
    char in[16384];
    ssize_t n;
    while ((n = recv(fd, in, sizeof in, 0)) > 0)
        buf_add(b, in, (size_t)n);
    buf_str(b, "");
}

const char *app_raw(int fd)
{
    struct buf b;
    buf_init(&b, 256u << 20);
    app_read_all(fd, &b);
    close(fd);
    const char *s = arena_strdup(&app.mem, b.data ? b.data : "", b.len);
    buf_free(&b);
    return s;
}

/* Splits an answer and undoes the chunked coding, in the arena. */
struct reply app_split(const struct buf *raw)
{
    struct reply r = {0};
    char *text = arena_strdup(&app.mem, raw->data ? raw->data : "", raw->len);
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

struct reply app_ask(const char *method, const char *path, const char *headers, const char *body)
{
    struct buf raw;
    int fd = app_dial(0);
    buf_init(&raw, 256u << 20);
    app_send_request(fd, method, path, headers, body);
    app_read_all(fd, &raw);
    close(fd);
    struct reply r = app_split(&raw);
    buf_free(&raw);
    return r;
}

struct reply app_get(const char *path) { return app_ask("GET", path, AUTH, NULL); }

const char *app_chat_body(const char *prompt, const char *more)
{
    return arena_printf(&app.mem, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s%s}", prompt, *more ? "," : "", more);
}

struct reply app_chat(const char *prompt, const char *more) { return app_ask("POST", CHAT, AUTH, app_chat_body(prompt, more)); }

const struct json *app_parse(const char *s, size_t n)
{
    struct json *v = NULL;
    struct err e;
    ck_assert_msg(!json_parse(&v, s, n, &json_strict, &app.mem, &e), "%s in: %.300s", e.msg, s);
    return v;
}

const char *app_str_at(const struct json *v, const char *path)
{
    const char *s = json_str(json_path(v, path));
    return s ? s : "";
}

void app_expect_error(struct reply r, int status, const char *code, const char *param)
{
    ck_assert_msg(r.status == status, "status %d: %s", r.status, r.body);
    const struct json *v = app_parse(r.body, r.n);
    ck_assert_msg(!strcmp(app_str_at(v, "error.code"), code), "code: %s", r.body);
    ck_assert_msg(!strcmp(app_str_at(v, "error.param"), param), "param: %s", r.body);
    ck_assert(*app_str_at(v, "error.message") && *app_str_at(v, "error.type"));
    ck_assert_ptr_nonnull(strstr(r.head, "application/json"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-request-id: "));
}

/* A stream, taken apart and checked for its shape. */

struct streamed app_take_apart(const char *s, size_t n)
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
        const struct json *v = app_parse(p + 6, (size_t)(end - p - 6)), *choices = json_get(v, "choices");
        if (json_get(v, "error")) {
            t.error = json_get(v, "error");
            continue;
        }
        t.chunks++;
        ck_assert(!id || !strcmp(id, app_str_at(v, "id")));
        id = app_str_at(v, "id");
        ck_assert_str_eq(app_str_at(v, "object"), "chat.completion.chunk");
        ck_assert_str_eq(app_str_at(v, "model"), "fake-model");
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
        buf_str(&text, app_str_at(delta, "content"));
        if (json_str(json_get(c, "finish_reason")))
            t.finish = json_str(json_get(c, "finish_reason"));
    }
    ck_assert(done);
    ck_assert(role || t.error);
    t.text = arena_strdup(&app.mem, text.data, text.len);
    buf_free(&text);
    return t;
}

struct streamed app_stream(const char *prompt, const char *more)
{
    struct reply r = app_chat(prompt, arena_printf(&app.mem, "\"stream\":true%s%s", *more ? "," : "", more));
    ck_assert_msg(r.status == 200, "%d %s", r.status, r.body);
    ck_assert_ptr_nonnull(strstr(r.head, "text/event-stream"));
    return app_take_apart(r.body, r.n);
}

void app_expect_text(const char *got, uint64_t seed, uint32_t n)
{
    char *want = fake_text(seed, n);
    ck_assert_str_eq(got, want);
    free(want);
}

void app_wait_live(uint64_t n)
{
    for (int i = 0; i < 60000 && fake_counts(app.fake).live != n; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(fake_counts(app.fake).live, n);
}

double app_metric(const char *line)
{
    struct reply r = app_get("/metrics");
    ck_assert_int_eq(r.status, 200);
    line = arena_printf(&app.mem, "\n%s", line);
    const char *p = strstr(r.body, line);
    ck_assert_msg(p != NULL, "%s is missing", line);
    return strtod(p + strlen(line), NULL);
}

void app_wait_metric(const char *line, double v)
{
    for (int i = 0; i < 3000 && app_metric(line) != v; i++)
        clock_sleep_ns(20 * NS_PER_MS);
    ck_assert_msg(app_metric(line) == v, "%s%g, expected %g", line, app_metric(line), v);
}
