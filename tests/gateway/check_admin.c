/* Running requests as an administrator sees and ends them, the two logs, a reload, a tenant's connections: on a whole gateway. */
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/app_rig.h"
#include "tests/support/suite.h"

static char dir[32], keys[64], access_log[64], usage_log[64];

static void put_keys(const char *text, const char *mode)
{
    FILE *f = fopen(keys, mode);
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void put_key(const char *key, const char *rest, const char *mode)
{
    uint8_t d[32];
    char hex[65];
    hash_sha256(key, strlen(key), d);
    hash_hex(d, 32, hex);
    put_keys(arena_printf(&app.mem, "%s %s\n", hex, rest), mode);
}

static void begin(void)
{
    app_prepare();
    snprintf(dir, sizeof dir, "/tmp/check_admin.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(keys, sizeof keys, "%s/keys", dir);
    snprintf(access_log, sizeof access_log, "%s/access.log", dir);
    snprintf(usage_log, sizeof usage_log, "%s/usage.log", dir);
    put_key("user-key-1", "acme", "w");
    put_key("admin-key-1", "boss admin=1", "a");
    app.cfg.api_key = NULL;
    app.cfg.keys_file = keys;
    app.cfg.access_log = access_log;
    app.cfg.usage_log = usage_log;
}

static void close_all(void)
{
    ck_assert_int_eq(system(arena_printf(&app.mem, "rm -rf %s", dir)), 0);
    app_close();
}

/* ---- a client ------------------------------------------------------------------------------------------------ */
static int send_head(const char *method, const char *path, const char *headers, const char *body)
{
    int fd = app_dial(0);
    app_send_request(fd, method, path, headers, body);
    return fd;
}

static const char *ask(const char *method, const char *path, const char *headers) { return app_raw(send_head(method, path, headers, "")); }
static bool is(const char *answer, int status) { return strlen(answer) > 12 && atoi(answer + 9) == status; }

#define USER "Authorization: Bearer user-key-1\r\n"
#define BOSS "Authorization: Bearer admin-key-1\r\n"
static int chat(const char *prompt, bool streamed, const char *headers)
{
    return send_head("POST", "/v1/chat/completions", arena_printf(&app.mem, "Content-Type: application/json\r\n%s", headers),
                     arena_printf(&app.mem, "{\"model\":\"fake-model\",\"max_tokens\":1000,%s\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
                                  streamed ? "\"stream\":true," : "", prompt));
}

static const struct json *list(const char *headers)
{
    const char *a = ask("GET", "/admin/requests", headers), *body = strstr(a, "\r\n\r\n");
    struct json *v;
    struct err e;
    ck_assert_msg(is(a, 200), "%s", a);
    ck_assert_msg(!json_parse(&v, body + 4, strlen(body + 4), &json_strict, &app.mem, &e), "%s", body);
    return v;
}

static const struct json *wait_list(size_t n, const char *state)
{
    for (int i = 0; i < 6000; i++, clock_sleep_ns(10 * NS_PER_MS)) {
        const struct json *v = list(BOSS), *r = json_get(v, "requests");
        if (r->n == n && (!n || !state || json_eq(json_get(r->items[0], "state"), state)))
            return r;
    }
    ck_abort_msg("the list never had %zu requests (%s)", n, state ? state : "any");
}

/* A log's lines, once there are n; each must be JSON. */
static const struct json **lines(const char *path, size_t n)
{
    static const struct json *out[64];
    char text[65536];
    for (int i = 0; i < 6000; i++, clock_sleep_ns(10 * NS_PER_MS)) {
        FILE *f = fopen(path, "r");
        size_t len = f ? fread(text, 1, sizeof text - 1, f) : 0, got = 0;
        if (f)
            fclose(f);
        text[len] = 0;
        for (char *p = text, *end; got < 64 && (end = strchr(p, '\n')); p = end + 1) {
            struct json *v;
            struct err e;
            ck_assert_msg(!json_parse(&v, p, (size_t)(end - p), &json_strict, &app.mem, &e), "%s: %.*s", e.msg, (int)(end - p), p);
            out[got++] = v;
        }
        if (got >= n)
            return out;
    }
    ck_abort_msg("%s has fewer than %zu lines", path, n);
}

static double num(const struct json *v, const char *key)
{
    double d = -1;
    json_num(json_get(v, key), &d);
    return d;
}

/* ---- tests --------------------------------------------------------------------------------------------------- */
START_TEST(who_may)
{
    begin();
    app.cfg.admin = _i ? GW_ADMIN_KEY : GW_ADMIN_AUTO;
    app_open();
    ck_assert(is(ask("GET", "/admin/requests", BOSS), 200));
    ck_assert(is(ask("GET", "/admin/requests", USER), _i ? 403 : 200)); /* whoever sits here, with whatever key */
    ck_assert(is(ask("GET", "/admin/requests", ""), _i ? 401 : 200));
    static const char *const far[] = {"X-Forwarded-For: 127.0.0.1\r\n", "Via: 1.1 p\r\n", "Forwarded: for=127.0.0.1\r\n", "Origin: http://localhost\r\n"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        ck_assert(is(ask("GET", "/admin/requests", far[i]), 401));
    ck_assert(is(ask("DELETE", "/admin/requests/x", far[0]), 401));
    ck_assert(is(ask("DELETE", "/admin/requests/chatcmpl-none", BOSS), 404));
    ck_assert(is(ask("DELETE", "/admin/requests", BOSS), 405));
    ck_assert(is(ask("GET", "/admin/requests/x", BOSS), 405));
    ck_assert(is(ask("GET", "/admin", BOSS), 404));
    ck_assert(is(ask("GET", "/admin/requestsx", BOSS), 404));
    close_all();
}
END_TEST

START_TEST(cancel)
{
    begin();
    app_open();
    bool streamed = _i & 1, hang = _i & 2;
    int fd = chat(hang ? "secret words !hang" : "secret words !delay 20", streamed, USER "x-request-id: mine-7\r\n");
    const struct json *r = wait_list(1, hang ? "queued" : "decoding")->items[0];
    ck_assert(json_eq(json_get(r, "tenant"), "acme"));
    ck_assert(json_eq(json_get(r, "model"), "fake-model"));
    ck_assert(json_eq(json_get(r, "request_id"), "mine-7"));
    ck_assert(json_eq(json_get(r, "client"), "127.0.0.1"));
    ck_assert(json_eq(json_get(r, "path"), "/v1/chat/completions"));
    ck_assert(num(r, "prompt_tokens") > 5 && num(r, "age_s") >= 0 && (hang ? num(r, "output_tokens") == 0 : num(r, "output_tokens") > 0));
    const char *id = _i & 4 ? "mine-7" : json_str(json_get(r, "id"));
    ck_assert(is(ask("DELETE", arena_printf(&app.mem, "/admin/requests/%s", id), BOSS), 200));
    const char *answer = app_raw(fd);
    ck_assert(is(answer, streamed ? 200 : 503));
    ck_assert_ptr_nonnull(strstr(answer, "request_cancelled"));
    if (streamed)
        ck_assert_ptr_nonnull(strstr(answer, "data: [DONE]"));
    wait_list(0, NULL);
    ck_assert(is(ask("DELETE", arena_printf(&app.mem, "/admin/requests/%s", id), BOSS), 404));
    for (int i = 0; i < 60000 && fake_counts(app.fake).live; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(fake_counts(app.fake).live, 0);
    ck_assert(is(app_raw(chat("go on !stop 3", streamed, USER)), 200)); /* the tenant's place is free again */
    close_all();
}
END_TEST

START_TEST(logs)
{
    begin();
    app.cfg.log_prompts = _i;
    app_open();
    ck_assert(is(ask("GET", "/v1/models?key=hidden", USER "User-Agent: tell\x01\"tale\xC3\xA9\r\n"), 400)); /* a control character: refused before it is a request */
    ck_assert(is(ask("GET", "/v1/models?key=hidden", USER "User-Agent: \"tale\xC3\xA9\r\n"), 200));
    ck_assert(is(ask("GET", "/v1/models", ""), 401));
    ck_assert(is(app_raw(chat("secret words !stop 4", false, USER "x-request-id: mine-8\r\n")), 200));
    int fd = chat("secret words !delay 20", true, USER);
    char byte;
    ck_assert_int_eq(recv(fd, &byte, 1, 0), 1);
    close(fd); /* leaves */
    const struct json **a = lines(access_log, 5), *v = a[0];
    ck_assert(json_eq(json_get(v, "method"), "-") && num(v, "status") == 400);
    ck_assert(json_eq(json_get(a[1], "path"), "/v1/models") && json_eq(json_get(a[1], "tenant"), "acme") && json_eq(json_get(a[1], "agent"), "\"tale??"));
    ck_assert(num(a[1], "bytes") > 10 && num(a[1], "status") == 200 && json_get(a[1], "cut")->b == false);
    ck_assert(num(a[2], "status") == 401 && json_get(a[2], "tenant")->type == JSON_NULL);
    ck_assert(json_eq(json_get(a[3], "request_id"), "mine-8") && num(a[3], "ms") >= 0);
    ck_assert(json_get(a[4], "cut")->b == true);
    const struct json **u = lines(usage_log, _i ? 3 : 2);
    if (_i) {
        ck_assert_uint_eq(json_get(json_get(u[0], "request"), "messages")->n, 1);
        ck_assert(json_eq(json_get(u[0], "request_id"), "mine-8"));
        u++;
    }
    ck_assert(json_eq(json_get(u[0], "request_id"), "mine-8") && json_eq(json_get(u[0], "outcome"), "stop") && json_eq(json_get(u[0], "tenant"), "acme"));
    ck_assert(num(u[0], "prompt_tokens") > 5 && num(u[0], "output_tokens") >= 4 && num(u[0], "ttft_ms") >= 0);
    const char *all = arena_printf(&app.mem, "grep -q -e secret -e hidden -e user-key %s %s", access_log, usage_log);
    ck_assert_int_eq(WEXITSTATUS(system(all)), _i ? 0 : 1);
    close_all();
}
END_TEST

/* A running stream goes on while keys change around it; logs go to a new file after they were moved away. */
START_TEST(reload)
{
    struct err e;
    begin();
    app_open();
    int fd = chat("a !delay 10 !stop 60", true, USER);
    wait_list(1, "decoding");
    put_key("user-key-2", "acme", "w");
    put_key("admin-key-1", "boss admin=1", "a");
    ck_assert_int_eq(rename(access_log, arena_printf(&app.mem, "%s.1", access_log)), 0);
    OK(gw_gateway_reload(app.gw, &e));
    ck_assert(is(ask("GET", "/v1/models", USER), 401));
    ck_assert(is(ask("GET", "/v1/models", "Authorization: Bearer user-key-2\r\n"), 200));
    lines(access_log, 2);
    put_keys("rubbish\n", "w");
    ck_assert_int_eq(gw_gateway_reload(app.gw, &e), ERR_FORMAT);
    ck_assert(is(ask("GET", "/v1/models", "Authorization: Bearer user-key-2\r\n"), 200));
    const char *answer = app_raw(fd);
    ck_assert(is(answer, 200));
    ck_assert_ptr_nonnull(strstr(answer, "\"finish_reason\":\"stop\""));
    close_all();
}
END_TEST

START_TEST(tenant_connections)
{
    begin();
    put_key("user-key-1", "acme connections=2", "w");
    put_key("admin-key-1", "boss admin=1", "a");
    app_open();
    int a = chat("!hang", true, USER), b = chat("!hang", true, USER);
    wait_list(2, NULL);
    const char *answer = ask("GET", "/v1/models", USER);
    ck_assert(is(answer, 429));
    ck_assert_ptr_nonnull(strstr(answer, "too_many_connections"));
    ck_assert_ptr_nonnull(strstr(answer, "Retry-After: "));
    ck_assert(is(ask("GET", "/v1/models", BOSS), 200));
    close(a);
    wait_list(1, NULL);
    for (int i = 0; i < 6000 && !is(ask("GET", "/v1/models", USER), 200); i++)
        clock_sleep_ns(10 * NS_PER_MS);
    ck_assert(is(ask("GET", "/v1/models", USER), 200));
    close(b);
    wait_list(0, NULL);
    close_all();
}
END_TEST

START_TEST(refused)
{
    struct err e;
    const char **nets;
    begin();
    nets = ARENA_ARRAY(&app.mem, const char *, 1);
    nets[0] = _i == 0 ? "10.0.0.1/8" : "10.0.0.0/8";
    if (_i < 1)
        app.cfg.trusted_proxies = (struct conf_list){nets, 1};
    app.cfg.proxy_protocol = _i == 1;
    if (_i == 2) {
        app.cfg.log_prompts = true;
        app.cfg.usage_log = NULL;
    }
    if (_i == 3)
        app.cfg.access_log = "/nonexistent/dir/log";
    ck_assert_int_eq(gw_gateway_open(&app.gw, &app.cfg, &e), _i == 3 ? ERR_IO : ERR_INVALID);
    ck_assert_ptr_null(app.gw);
    ck_assert_int_eq(system(arena_printf(&app.mem, "rm -rf %s", dir)), 0);
    arena_free(&app.mem);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("admin");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, who_may, 0, 2);
    tcase_add_loop_test(t, cancel, 0, 8);
    tcase_add_loop_test(t, logs, 0, 2);
    tcase_add_test(t, reload);
    tcase_add_test(t, tenant_connections);
    tcase_add_loop_test(t, refused, 0, 4);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
