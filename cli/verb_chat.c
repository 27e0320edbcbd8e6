/* sluice chat [URL]: terminal chat over the public API. The answer streams to stdout; tok/s and TTFT go to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/live.h"
#include "cli/state.h"
#include "cli/verbs.h"
#include "gateway/client.h"

struct chat_flags { const char *prompt, *key, *model, *ca, *system; int64_t max_tokens; double temp; bool insecure; };
#define AT(f) offsetof(struct chat_flags, f)
static const struct cli_flag flags[] = {
    {{"prompt", CONF_STR, AT(prompt), 0, 0, NULL}, "-p", "TEXT", "ask once, print the answer and leave"},
    {{"system", CONF_STR, AT(system), 0, 0, NULL}, NULL, "TEXT", "a system message"},
    {{"key", CONF_STR, AT(key), 0, 0, NULL}, NULL, "K", "API key (default: the local server's own, or OPENAI_API_KEY)"},
    {{"model", CONF_STR, AT(model), 0, 0, NULL}, NULL, "NAME", "model (default: the server's first)"},
    {{"max-tokens", CONF_INT, AT(max_tokens), 1, 16777216, NULL}, "-n", "N", "tokens of an answer at most"},
    {{"temp", CONF_FLOAT, AT(temp), 0, 100, NULL}, NULL, "T", "temperature"},
    {{"insecure", CONF_BOOL, AT(insecure), 0, 0, NULL}, NULL, NULL, "do not check the certificate"},
    {{"ca", CONF_STR, AT(ca), 0, 0, NULL}, NULL, "FILE", "certificate to trust (default: the local server's own, SSL_CERT_FILE, or the system's)"},
};

struct talk {
    struct gw_client c;
    const struct chat_flags *f;
    struct arena mem;            /* of the conversation */
    struct json *messages;
    char model[256];
    /* the running answer */
    struct buf line, text, fail;
    uint64_t t0, t_first, t_last, t_shown;
    struct cli_live live;
    uint32_t n_tokens;
    bool done;
};

/* Four times a second, on a terminal. */
static void show_rate(struct talk *t)
{
    char text[80];
    if (t->t_last - t->t_shown < 250 * NS_PER_MS || t->n_tokens < 2)
        return;
    t->t_shown = t->t_last;
    snprintf(text, sizeof text, "%u pieces, first after %.0f ms, %.1f/s", t->n_tokens, (double)(t->t_first - t->t0) / 1e6,
             (t->n_tokens - 1) * 1e9 / (double)(t->t_last - t->t_first + 1));
    cli_live_show(&t->live, text);
}

/* One "data:" line of the stream. */
static void on_line(struct talk *t, const char *s, size_t n)
{
    if (n < 5 || memcmp(s, "data:", 5))
        return;
    s += 5;
    n -= 5;
    while (n && *s == ' ') {
        s++;
        n--;
    }
    if (n >= 6 && !memcmp(s, "[DONE]", 6)) {
        t->done = true;
        return;
    }
    struct arena a;
    struct json *doc;
    arena_init(&a, 16u << 20);
    if (!json_parse(&doc, s, n, &json_strict, &a, NULL)) {
        const struct json *choices = json_get(doc, "choices");
        const char *err = json_str(json_path(doc, "error.message"));
        const struct json *delta = json_is(choices, JSON_ARRAY) && choices->n ? json_path(choices->items[0], "delta.content") : NULL;
        if (err)
            buf_str(&t->fail, err);
        if (json_is(delta, JSON_STRING) && delta->n) {
            t->t_last = clock_now_ns();
            if (!t->n_tokens++)
                t->t_first = t->t_last;
            fwrite(delta->s, 1, delta->n, stdout);
            fflush(stdout);
            show_rate(t);
            buf_add(&t->text, delta->s, delta->n);
        }
    }
    arena_free(&a);
}

static bool on_data(void *ctx, const char *p, size_t n)
{
    struct talk *t = ctx;
    if (!buf_add(&t->line, p, n))
        return false;
    for (char *nl; (nl = memchr(t->line.data, '\n', t->line.len));) {
        size_t k = (size_t)(nl - t->line.data);
        on_line(t, t->line.data, k && nl[-1] == '\r' ? k - 1 : k);
        buf_consume(&t->line, k + 1);
    }
    return !t->done;
}

static bool add_message(struct talk *t, const char *role, const char *text, size_t n)
{
    struct json *m = json_new(&t->mem, JSON_OBJECT);
    return m && json_set(&t->mem, m, "role", json_new_str(&t->mem, role, strlen(role))) &&
           json_set(&t->mem, m, "content", json_new_str(&t->mem, text, n)) && json_push(&t->mem, t->messages, m);
}

static void put_request(const struct talk *t, struct buf *b)
{
    buf_str(b, "{\"model\":");
    json_put_cstr(b, t->model);
    buf_str(b, ",\"stream\":true,\"messages\":");
    json_put(b, t->messages);
    if (t->f->max_tokens)
        buf_printf(b, ",\"max_tokens\":%lld", (long long)t->f->max_tokens);
    if (t->f->temp >= 0)
        buf_printf(b, ",\"temperature\":%g", t->f->temp);
    buf_char(b, '}');
}

/* A refusal's JSON arrives through on_data as one line without an end. */
static int refusal(struct talk *t, int status, struct err *e)
{
    struct arena a;
    struct json *doc = NULL;
    arena_init(&a, 1u << 20);
    json_parse(&doc, t->line.data ? t->line.data : "", t->line.len, &json_strict, &a, NULL);
    const char *msg = json_str(json_path(doc, "error.message"));
    int rc = err_set(e, ERR_INVALID, "the server answered %d: %s", status, msg ? msg : "no reason given");
    arena_free(&a);
    return rc;
}

static int ask(struct talk *t, const char *text, size_t n, struct err *e)
{
    struct buf body;
    int status = 0;
    if (!add_message(t, "user", text, n))
        return err_set(e, ERR_LIMIT, "the conversation is too long");
    buf_init(&body, 64u << 20);
    buf_reset(&t->line);
    buf_reset(&t->text);
    buf_reset(&t->fail);
    t->n_tokens = 0;
    t->done = false;
    put_request(t, &body);
    t->t0 = clock_now_ns();
    t->t_shown = t->t0;
    cli_live_open(&t->live);
    int rc = gw_client_call(&t->c, "/v1/chat/completions", body.data, body.len, &status, on_data, t, e);
    cli_live_close(&t->live);
    buf_free(&body);
    if (!rc && status != 200)
        return refusal(t, status, e);
    if (t->n_tokens)
        putchar('\n');
    if (!rc && t->fail.len)
        rc = err_set(e, ERR_IO, "%s", t->fail.data);
    if (rc)
        return rc;
    double rate = t->n_tokens > 1 ? (t->n_tokens - 1) * 1e9 / (double)(t->t_last - t->t_first) : 0;
    fflush(stdout);
    fprintf(stderr, "[%u pieces, first after %.0f ms, %.1f/s]\n", t->n_tokens, t->n_tokens ? (double)(t->t_first - t->t0) / 1e6 : 0.0, rate);
    return add_message(t, "assistant", t->text.data ? t->text.data : "", t->text.len) ? ERR_OK : err_set(e, ERR_LIMIT, "the conversation is too long");
}

static int first_model(struct talk *t, struct err *e)
{
    struct buf b;
    struct arena a;
    struct json *doc;
    int status;
    buf_init(&b, 16u << 20);
    arena_init(&a, 16u << 20);
    int rc = gw_client_get(&t->c, "/v1/models", NULL, 0, &status, &b, e);
    if (!rc && !(rc = json_parse(&doc, b.data ? b.data : "", b.len, &json_strict, &a, e))) {
        const struct json *list = json_get(doc, "data");
        const char *id = json_is(list, JSON_ARRAY) && list->n ? json_str(json_get(list->items[0], "id")) : NULL;
        const char *msg = json_str(json_path(doc, "error.message"));
        if (id)
            snprintf(t->model, sizeof t->model, "%s", id);
        else
            rc = err_set(e, ERR_INVALID, "the server answered %d: %s", status, msg ? msg : "it serves no model");
    }
    buf_free(&b);
    arena_free(&a);
    return rc;
}

static void forget(struct talk *t)
{
    arena_reset(&t->mem);
    t->messages = json_new(&t->mem, JSON_ARRAY);
    if (t->f->system)
        add_message(t, "system", t->f->system, strlen(t->f->system));
}

/* Lines from the terminal; the empty line and end of input leave. */
static int converse(struct talk *t, struct err *e)
{
    char *line = NULL;
    size_t cap = 0;
    fprintf(stderr, "chat with %s; /reset forgets, /quit leaves\n", t->model);
    for (;;) {
        fprintf(stderr, "> ");
        ssize_t n = getline(&line, &cap, stdin);
        if (n <= 0)
            break;
        if (line[n - 1] == '\n')
            line[--n] = 0;
        if (!strcmp(line, "/quit"))
            break;
        if (!strcmp(line, "/reset")) {
            forget(t);
            continue;
        }
        if (n == 0)
            continue;
        if (line[0] == '/') {
            fprintf(stderr, "no command %s (/reset, /quit)\n", line);
            continue;
        }
        if (ask(t, line, (size_t)n, e)) {
            fprintf(stderr, "sluice chat: %s\n", e->msg);
            forget(t);
        }
    }
    free(line);
    return ERR_OK;
}

/* What was not given: for a local server what it keeps in its state directory (the environment's key and certificates are likely
 * those of another service), else the environment. */
static void find_credentials(struct talk *t, char *key, size_t key_n, char *ca, size_t ca_n)
{
    char dir[4096];
    bool local = !strcmp(t->c.host, "127.0.0.1") || !strcmp(t->c.host, "localhost") || !strcmp(t->c.host, "::1");
    t->c.key = t->f->key;
    t->c.ca_file = t->f->ca;
    if (local && !cli_state_dir(NULL, dir, sizeof dir)) {
        snprintf(ca, ca_n, "%.3900s/%s", dir, CLI_STATE_CERT);
        if (!t->c.key && !cli_state_read(dir, CLI_STATE_KEY, key, key_n))
            t->c.key = key;
        if (!t->c.ca_file && access(ca, R_OK) == 0)
            t->c.ca_file = ca;
    }
    if (!t->c.key)
        t->c.key = getenv("OPENAI_API_KEY");
    if (!t->c.ca_file)
        t->c.ca_file = getenv("SSL_CERT_FILE");
}

int verb_chat(int argc, char **argv)
{
    struct chat_flags f = {.temp = -1};
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {NULL, 0, NULL}};
    const char *words[1];
    size_t n_words;
    bool helped;
    struct arena a;
    struct err e = {0};
    char key[256], ca[4200];
    struct talk t = {.f = &f};
    arena_init(&a, 1u << 20);
    arena_init(&t.mem, 256u << 20);
    buf_init(&t.line, 16u << 20);
    buf_init(&t.text, 64u << 20);
    buf_init(&t.fail, 4096);
    int rc = cli_parse(argc, argv, "[URL] [flags]      URL: https://127.0.0.1:8443", tables, words, 1, &n_words, &helped, &a, &e);
    if (!rc && !helped && !(rc = gw_client_url(&t.c, n_words ? words[0] : "https://127.0.0.1:8443", &e))) {
        find_credentials(&t, key, sizeof key, ca, sizeof ca);
        t.c.insecure = f.insecure;
        t.c.timeout_s = 300;
        if (f.model)
            snprintf(t.model, sizeof t.model, "%s", f.model);
        else
            rc = first_model(&t, &e);
        forget(&t);
        if (!rc)
            rc = f.prompt ? ask(&t, f.prompt, strlen(f.prompt), &e) : converse(&t, &e);
    }
    buf_free(&t.line);
    buf_free(&t.text);
    buf_free(&t.fail);
    arena_free(&t.mem);
    arena_free(&a);
    return rc ? cli_fail("chat", &e) : CLI_OK;
}
