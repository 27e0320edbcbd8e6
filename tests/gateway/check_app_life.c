/* The whole gateway over real sockets, with an engine that makes up its text: limits, clients that go or do not read, deaths, the end. */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/json.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/app_rig.h"
#include "tests/support/suite.h"

START_TEST(queue)
{
    struct reply r;
    int fd[3];
    app_prepare();
    app.fc.queue_max = 3;
    app_open();
    for (int i = 0; i < 3; i++) {
        fd[i] = app_dial(0);
        app_send_request(fd[i], "POST", CHAT, AUTH, app_chat_body("!hang", "\"stream\":true"));
    }
    app_wait_live(3);
    r = app_chat("one more", "\"stream\":true");
    app_expect_error(r, 429, "queue_full", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    ck_assert(app_metric("sluice_queue_requests ") == 3);
    close(fd[0]); /* one leaves: its place is free again */
    app_wait_live(2);
    r = app_chat("!stop 1", "");
    ck_assert_int_eq(r.status, 200);
    close(fd[1]);
    close(fd[2]);
    app_wait_live(0);
    ck_assert_uint_eq(fake_counts(app.fake).cancels, 3);
    app_wait_metric("sluice_generations_total{reason=\"cancelled\"} ", 3);
    app_close();

    app_prepare(); /* by tokens: a prompt that is too much beside another is refused, alone it is taken */
    app.cfg.queue_tokens = 60;
    app_open();
    fd[0] = app_dial(0);
    app_send_request(fd[0], "POST", CHAT, AUTH, app_chat_body("!hang ......................................................................", ""));
    app_wait_live(1);
    app_expect_error(app_chat("short", ""), 429, "queue_full", "");
    close(fd[0]);
    app_wait_live(0);
    app_close();
}
END_TEST

START_TEST(tenants)
{
    struct reply r;
    char hex[65], path[64];
    uint8_t d[32];
    int fd;
    app_prepare();
    snprintf(path, sizeof path, "/tmp/check_app.keys.%ld", (long)getpid());
    FILE *f = fopen(path, "w");
    hash_sha256("key-of-acme", 11, d);
    hash_hex(d, 32, hex);
    fprintf(f, "%s acme concurrent=1 max_tokens=20 requests_per_min=4 tokens_per_min=1000\n", hex);
    fclose(f);
    app.cfg.keys_file = path;
    app_open();
#define ACME "Authorization: Bearer key-of-acme\r\nContent-Type: application/json\r\n"
    r = app_ask("POST", CHAT, ACME, app_chat_body("x", "\"max_tokens\":21"));
    app_expect_error(r, 400, "invalid_value", "max_tokens");
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-remaining-requests: 3\r"));
    r = app_ask("POST", CHAT, ACME, app_chat_body("x", "\"seed\":3")); /* the limit is also the default */
    app_expect_text(app_str_at(json_get(app_parse(r.body, r.n), "choices")->items[0], "message.content"), 3, 20);
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-limit-requests: 4\r"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-remaining-requests: 2\r"));
    ck_assert_ptr_nonnull(strcasestr(r.head, "x-ratelimit-limit-tokens: 1000\r"));
    app_wait_live(0); /* the engine counts a request a moment longer than its client */
    fd = app_dial(0);
    app_send_request(fd, "POST", CHAT, ACME, app_chat_body("!hang", ""));
    app_wait_live(1);
    r = app_ask("POST", CHAT, ACME, app_chat_body("x", ""));
    app_expect_error(r, 429, "rate_limit_exceeded", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: 1\r"));
    close(fd);
    app_wait_live(0);
    r = app_ask("POST", CHAT, ACME, app_chat_body("x", ""));
    ck_assert_int_eq(r.status, 200);
    r = app_ask("POST", CHAT, ACME, app_chat_body("x", "")); /* the fifth of this minute */
    app_expect_error(r, 429, "rate_limit_exceeded", "");
    ck_assert_int_eq(app_chat("!stop 1", "").status, 200); /* api_key is another tenant */
    app_close();
    unlink(path);
}
END_TEST

START_TEST(leaving) /* clients that go, and clients that do not read */
{
    struct buf raw;
    int fd;
    app_prepare();
    app.fc.ctx = 200000;
    app.fc.delay_us = 0;
    app.cfg.heartbeat_ms = 100;
    app_open();
    fd = app_dial(0); /* leaves in mid-stream */
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("!delay 5", "\"stream\":true"));
    char in[2000];
    ck_assert_int_gt(recv(fd, in, sizeof in, 0), 0);
    app_wait_live(1);
    close(fd);
    app_wait_live(0);
    fd = app_dial(0); /* leaves while a whole answer is being made */
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("!delay 5", ""));
    app_wait_live(1);
    close(fd);
    app_wait_live(0);
    app_wait_metric("sluice_generations_total{reason=\"cancelled\"} ", 2);
    ck_assert_uint_eq(fake_counts(app.fake).cancels, 2);

    buf_init(&raw, 256u << 20); /* reads late: its sequence is paused, and then nothing is missing */
    fd = app_dial(4096);
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("slow", "\"stream\":true,\"seed\":1,\"max_tokens\":60000"));
    for (int i = 0; i < 60000 && !fake_counts(app.fake).pauses; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(fake_counts(app.fake).pauses, 1);
    int rcvbuf = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    app_read_all(fd, &raw);
    close(fd);
    struct reply r = app_split(&raw);
    struct streamed t = app_take_apart(r.body, r.n);
    app_expect_text(t.text, 1, 60000);
    ck_assert_uint_ge(fake_counts(app.fake).resumes, 1);
    buf_free(&raw);

    app_close();
    app_prepare();
    app.fc.ctx = 200000;
    app.fc.delay_us = 0;
    app.cfg.write_stall_ms = 700;
    app_open();
    fd = app_dial(4096); /* never reads: cut off and cancelled */
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("stall", "\"stream\":true,\"max_tokens\":150000"));
    app_wait_metric("sluice_generations_total{reason=\"stalled\"} ", 1);
    app_wait_live(0);
    close(fd);
    app_close();
}
END_TEST

START_TEST(heartbeats)
{
    struct buf raw;
    int fd;
    app_prepare();
    app.cfg.heartbeat_ms = 100;
    app_open();
    fd = app_dial(0);
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("!hang", "\"stream\":true"));
    buf_init(&raw, 1u << 20);
    char in[4096];
    ssize_t n;
    while (!strstr(raw.data ? raw.data : "", ": keep-alive") && (n = recv(fd, in, sizeof in, 0)) > 0)
        buf_add(&raw, in, (size_t)n);
    ck_assert_ptr_nonnull(strstr(raw.data, "200 OK")); /* headers are there before any token */
    ck_assert_ptr_nonnull(strstr(raw.data, ": keep-alive"));
    close(fd);
    buf_free(&raw);
    app_close();
}
END_TEST

/* A prompt of a megabyte takes longer to prepare than a heartbeat: its stream begins before that, and what is wrong with the prompt
 * comes as an event. A whole answer has its status. How long it takes is the machine's affair, so it is asked until it was long enough. */
START_TEST(slow_prompts)
{
    enum { BYTES = 1 << 20 };
    struct buf body;
    struct reply r = {0};
    app_prepare();
    app.cfg.heartbeat_ms = 5;
    app_open();
    char *word = malloc(BYTES + 1);
    memset(word, 'a', BYTES);
    for (size_t i = 7; i < BYTES; i += 8)
        word[i] = ' ';
    word[BYTES] = 0;
    buf_init(&body, 32u << 20);
    buf_printf(&body, "{\"model\":\"fake-model\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", word);
    for (int i = 0; i < 100 && r.status != 200; i++) {
        r = app_ask("POST", CHAT, AUTH, body.data);
        ck_assert_msg(r.status == 200 || r.status == 400, "%s", r.head);
    }
    ck_assert_msg(r.status == 200, "%s", r.body);
    ck_assert_ptr_nonnull(strstr(r.head, "text/event-stream"));
    const char *error = strstr(r.body, "data: {\"error\"");
    ck_assert_msg(error && strstr(error, "context_length_exceeded") && strstr(error, "data: [DONE]"), "%.400s", r.body);
    ck_assert_ptr_null(strstr(r.body, "\"choices\""));
    buf_reset(&body);
    buf_printf(&body, "{\"model\":\"fake-model\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", word);
    app_expect_error(app_ask("POST", CHAT, AUTH, body.data), 400, "context_length_exceeded", "messages");
    ck_assert(app_metric("sluice_queue_requests ") == 0);
    free(word);
    buf_free(&body);
    app_close();
}
END_TEST

START_TEST(deaths)
{
    struct reply r;
    app_prepare();
    app.fc.down_ms = 100;
    app_open();
    struct streamed t = app_stream("!die 7 !stop 30", "\"seed\":9");
    app_expect_text(t.text, 9, 30);
    ck_assert_str_eq(t.finish, "stop");
    ck_assert_uint_eq(fake_counts(app.fake).resumed, 1);
    ck_assert(app_metric("sluice_engine_restarts_total ") == 1);
    app_close();
    app_prepare(); /* for good this time, with a stream running */
    app.cfg.engine_lost_ms = 500;
    app_open();
    int fd = app_dial(0);
    app_send_request(fd, "POST", CHAT, AUTH, app_chat_body("!delay 10", "\"stream\":true,\"seed\":4"));
    app_wait_live(1);
    fake_die(app.fake, 0);
    struct buf raw;
    buf_init(&raw, 1u << 24);
    app_read_all(fd, &raw);
    close(fd);
    r = app_split(&raw);
    t = app_take_apart(r.body, r.n);
    ck_assert_str_eq(app_str_at(t.error, "code"), "engine_unavailable");
    buf_free(&raw);
    r = app_ask("GET", "/ready", "", NULL);
    ck_assert_int_eq(r.status, 503);
    ck_assert_int_eq(app_ask("GET", "/health", "", NULL).status, 200);
    r = app_chat("x", "");
    app_expect_error(r, 503, "engine_unavailable", "");
    ck_assert_ptr_nonnull(strstr(r.head, "Retry-After: "));
    ck_assert_int_eq(app_get("/v1/models").status, 200); /* still listed */
    app_close();
}
END_TEST

static void *run_gateway(void *arg)
{
    *(unsigned *)arg = gw_gateway_run(app.gw);
    return NULL;
}

START_TEST(drain) /* what runs ends well, nothing new begins; past the deadline it is cut */
{
    pthread_t th;
    unsigned cut = 99;
    struct buf raw;
    for (int late = 0; late < 2; late++) {
        app_prepare();
        app.cfg.drain_ms = late ? 200 : 60000;
        app_open();
        pthread_create(&th, NULL, run_gateway, &cut);
        int fd = app_dial(0);
        app_send_request(fd, "POST", CHAT, AUTH, app_chat_body(late ? "!delay 20" : "!delay 5 !stop 40", "\"stream\":true,\"seed\":4"));
        app_wait_live(1);
        gw_gateway_stop(app.gw);
        buf_init(&raw, 1u << 24);
        if (late)
            pthread_join(th, NULL);
        if (!late) {
            app_read_all(fd, &raw);
            struct reply r = app_split(&raw);
            struct streamed t = app_take_apart(r.body, r.n);
            app_expect_text(t.text, 4, 40);
            pthread_join(th, NULL);
        }
        ck_assert_uint_eq(cut, late ? 1 : 0);
        buf_free(&raw);
        app_close(); /* with `late` a stream still runs */
        close(fd);
    }
}
END_TEST

START_TEST(config)
{
    struct gw_config c;
    struct err e;
    gw_gateway *g;
    app_prepare();
    OK((gw_config_default(&c), gw_config_read_file(&c, "conf/gateway.conf", &app.mem, &e)));
    ck_assert_str_eq(c.engine, "unix:/run/sluice/engine.sock");
    ck_assert_str_eq(c.listen.items[0], "127.0.0.1:8443");
    /* every directive stands in the file, commented out or not */
    FILE *f = fopen("conf/gateway.conf", "r");
    char *text = arena_alloc(&app.mem, 65536);
    ck_assert_uint_gt(fread(text, 1, 65535, f), 1000);
    fclose(f);
    for (size_t i = 0; i < gw_config_n_directives; i++)
        ck_assert_msg(strstr(text, arena_printf(&app.mem, "\n# %s ", gw_config_directives[i].name)) || strstr(text, arena_printf(&app.mem, "\n%s ", gw_config_directives[i].name)),
                      "conf/gateway.conf lacks %s", gw_config_directives[i].name);
    for (char *p = text; (p = strstr(p, "\n# ")); p++) { /* what is commented out parses as well */
        size_t n = strcspn(p + 3, " \n");
        bool known = false;
        for (size_t i = 0; i < gw_config_n_directives; i++)
            known |= strlen(gw_config_directives[i].name) == n && !strncmp(p + 3, gw_config_directives[i].name, n) && p[3 + n] == ' ' && !strstr(arena_strdup(&app.mem, p + 3, strcspn(p + 3, "\n")), ". ");
        if (known && strcspn(p + 3, "\n") < 60) {
            gw_config_default(&c);
            OK(conf_read_text("line", arena_strdup(&app.mem, p + 3, strcspn(p + 3, "\n")), gw_config_directives, gw_config_n_directives, &c, &app.mem, &e));
        }
    }
    app.cfg.listen.items[0] = "0.0.0.0:0";
    app.cfg.api_key = NULL;
    FAILS(ERR_INVALID, "needs keys_file", gw_gateway_open(&g, &app.cfg, &e));
    app.cfg.api_key = KEY; /* plain HTTP outside */
    ck_assert_int_ne(gw_gateway_open(&g, &app.cfg, &e), 0);
    app.cfg.listen.items[0] = "127.0.0.1:99999";
    FAILS(ERR_INVALID, "host:port", gw_gateway_open(&g, &app.cfg, &e));
    app.cfg.listen.items[0] = "127.0.0.1:0";
    app.cfg.api_key = NULL;
    FAILS(ERR_INVALID, "state_dir", gw_gateway_open(&g, &app.cfg, &e));
    app.cfg.api_key = KEY;
    app.cfg.tls_cert = "x.pem";
    FAILS(ERR_INVALID, "tls is off", gw_gateway_open(&g, &app.cfg, &e));
    app.cfg.tls_cert = NULL;
    app.cfg.tls = true;
    FAILS(ERR_INVALID, "state_dir", gw_gateway_open(&g, &app.cfg, &e));
    app.cfg.tls = false;
    app.cfg.engine = NULL;
    FAILS(ERR_INVALID, "engine", gw_gateway_open(&g, &app.cfg, &e));
    arena_free(&app.mem);
}
END_TEST

SUITE("gateway", "app_life", queue, tenants, leaving, heartbeats, slow_prompts, deaths, drain, config)
