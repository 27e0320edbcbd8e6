/* sluice run MODEL: one answer from one model in this process. Text to stdout as it comes, the rest to stderr. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/live.h"
#include "cli/verbs.h"
#include "offload/drive.h"

enum { LIVE_MS = 250, LIVE_DRIVE_BYTES = 128 << 20 };

struct run_flags {
    const char *prompt, *file, *ids;
    int64_t n, top_k, seed;
    double temp, top_p, min_p;
    bool raw, chat, print_ids, ignore_eos, json;
};
#define AT(f) offsetof(struct run_flags, f)
static const struct cli_flag flags[] = {
    {{"prompt", CONF_STR, AT(prompt), 0, 0, NULL}, "-p", "TEXT", "what to ask or continue"},
    {{"file", CONF_STR, AT(file), 0, 0, NULL}, "-f", "FILE", "the prompt from a file"},
    {{"ids", CONF_STR, AT(ids), 0, 0, NULL}, NULL, "1,2,3", "the prompt as token ids"},
    {{"n-predict", CONF_INT, AT(n), 1, 16777216, NULL}, "-n", "N", "tokens to generate at most (default 128)"},
    {{"temp", CONF_FLOAT, AT(temp), 0, 100, NULL}, NULL, "T", "temperature; 0, the default, takes the likeliest token"},
    {{"top-k", CONF_INT, AT(top_k), 0, 1 << 30, NULL}, NULL, "K", "sample among the K likeliest (0: all)"},
    {{"top-p", CONF_FLOAT, AT(top_p), 0, 1, NULL}, NULL, "P", "sample among the likeliest that hold P of the mass"},
    {{"min-p", CONF_FLOAT, AT(min_p), 0, 1, NULL}, NULL, "P", "drop tokens below P times the likeliest"},
    {{"seed", CONF_INT, AT(seed), 0, 9.2e18, NULL}, "-s", "S", "seed of the sampling (default: drawn)"},
    {{"raw", CONF_BOOL, AT(raw), 0, 0, NULL}, NULL, NULL, "the prompt as it is, without the chat template"},
    {{"chat", CONF_BOOL, AT(chat), 0, 0, NULL}, NULL, NULL, "the prompt as a user's message (default where the model has a template)"},
    {{"print-ids", CONF_BOOL, AT(print_ids), 0, 0, NULL}, NULL, NULL, "print token ids instead of text"},
    {{"ignore-eos", CONF_BOOL, AT(ignore_eos), 0, 0, NULL}, NULL, NULL, "go on after an end-of-sequence token"},
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON document: text, ids, usage, timings"},
};

struct state {
    const struct run_flags *f;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
    uint64_t tokens;
    enum eng_finish finish;
    struct eng_usage usage;
    struct err err;
    struct buf text;
    struct eng_ids ids;
};

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct state *s = ctx;
    if (ev->type == ENG_EV_TOKEN && s->f->json)
        eng_ids_push(&s->ids, ev->token, NULL);
    pthread_mutex_lock(&s->lock); /* the live line is another thread's */
    s->tokens += ev->type == ENG_EV_TOKEN;
    if (ev->type == ENG_EV_TOKEN && s->f->print_ids && !s->f->json) {
        printf("%s%d", ev->n_out > 1 ? " " : "", ev->token);
        fflush(stdout);
    }
    if (ev->n && s->f->json)
        buf_add(&s->text, ev->text, ev->n);
    else if (ev->n && !s->f->print_ids) {
        fwrite(ev->text, 1, ev->n, stdout);
        fflush(stdout);
    }
    if (ev->type == ENG_EV_DONE) {
        s->finish = ev->finish;
        s->usage = *ev->usage;
        if (ev->err)
            s->err = *ev->err;
        s->done = true;
        pthread_cond_signal(&s->cond);
    }
    pthread_mutex_unlock(&s->lock);
}

static int read_text(const struct run_flags *f, struct buf *b, struct err *e)
{
    if (f->prompt)
        return buf_str(b, f->prompt) ? ERR_OK : err_set(e, ERR_LIMIT, "prompt is longer than %zu bytes", b->max);
    FILE *in = !strcmp(f->file, "-") ? stdin : fopen(f->file, "re");
    if (!in)
        return err_set(e, ERR_INVALID, "%s: %s", f->file, strerror(errno));
    int rc = ERR_OK;
    char chunk[8192];
    for (size_t k; !rc && (k = fread(chunk, 1, sizeof chunk, in)) > 0;)
        if (!buf_add(b, chunk, k))
            rc = err_set(e, ERR_LIMIT, "%s is longer than %zu bytes", f->file, b->max);
    if (!rc && ferror(in))
        rc = err_set(e, ERR_INVALID, "%s: %s", f->file, strerror(errno));
    if (in != stdin)
        fclose(in);
    return rc;
}

static int ids_of(const char *s, struct eng_ids *ids, struct err *e)
{
    while (*s) {
        char *end;
        long v = strtol(s, &end, 10);
        if (end == s || v < 0 || v > INT32_MAX || (*end && *end != ',' && *end != ' '))
            return err_set(e, ERR_INVALID, "--ids: expected numbers with commas, found '%.20s'", s);
        int rc = eng_ids_push(ids, (int32_t)v, e);
        if (rc)
            return rc;
        s = *end ? end + 1 : end;
    }
    return ERR_OK;
}

static int text_ids(const struct run_flags *f, const struct eng_model *m, const struct buf *text, struct eng_ids *ids, struct err *e)
{
    struct arena a;
    int rc;
    arena_init(&a, 512u << 20);
    if (f->raw || !m->chat) {
        if (f->chat)
            rc = err_set(e, ERR_INVALID, "--chat: the model has no chat template");
        else
            rc = eng_tok_encode(m->tok, text->data ? text->data : "", text->len, ENG_TOK_ADDED | ENG_TOK_WRAP, ids, e);
    } else {
        struct json *body = json_new(&a, JSON_OBJECT), *list = json_new(&a, JSON_ARRAY), *msg = json_new(&a, JSON_OBJECT);
        json_set(&a, msg, "role", json_new_str(&a, "user", 4));
        json_set(&a, msg, "content", json_new_str(&a, text->data ? text->data : "", text->len));
        json_push(&a, list, msg);
        json_set(&a, body, "messages", list);
        rc = eng_chat_prompt(m->chat, body, clock_wall_s(), &a, ids, NULL, e);
    }
    arena_free(&a);
    return rc;
}

static void print_json(const struct state *s)
{
    static const char *const names[] = {"stop", "length", "cancelled", "deadline", "failed"};
    struct buf b;
    buf_init(&b, 64u << 20);
    buf_str(&b, "{\"text\":");
    json_put_str(&b, s->text.data ? s->text.data : "", s->text.len);
    buf_str(&b, ",\"ids\":[");
    for (size_t i = 0; i < s->ids.n; i++)
        buf_printf(&b, "%s%d", i ? "," : "", s->ids.v[i]);
    buf_printf(&b, "],\"finish\":\"%s\",\"prompt_tokens\":%u,\"output_tokens\":%u,\"prefill_ms\":%.3f,\"decode_ms\":%.3f}", names[s->finish],
               s->usage.prompt_tokens, s->usage.output_tokens, (double)s->usage.prefill_ns / 1e6, (double)s->usage.decode_ns / 1e6);
    puts(b.data ? b.data : "{}");
    buf_free(&b);
}

static void summary(const struct state *s)
{
    const struct eng_usage *u = &s->usage;
    double pre = (double)u->prefill_ns / 1e9, dec = (double)u->decode_ns / 1e9;
    fprintf(stderr, "\nsluice: prompt %u tokens in %.3f s (%.1f tok/s), output %u tokens in %.3f s (%.1f tok/s)\n", u->prompt_tokens, pre,
            pre > 0 ? u->prompt_tokens / pre : 0, u->output_tokens, dec, dec > 0 && u->output_tokens > 1 ? (u->output_tokens - 1) / dec : 0);
}

/* What the drive gives, for the live line; 0: nothing streams. */
static double drive_rate(eng_engine *g, const struct eng_config *c)
{
    struct off_drive_rate d = {0};
    struct eng_stats st;
    off_catalog *cat;
    eng_stats(g, &st);
    if (!st.weight_sweep_bytes || off_catalog_open_on(&cat, c->model_path, c->disks, 0, NULL))
        return 0;
    int rc = off_probe_drive(cat, LIVE_DRIVE_BYTES, c->io, &d, NULL);
    off_catalog_close(cat);
    return rc ? 0 : d.bytes_s;
}

static struct cli_moment moment(uint64_t tokens, eng_engine *g)
{
    struct eng_stats st;
    eng_stats(g, &st);
    return (struct cli_moment){clock_now_ns(), st.steps, tokens, st.weight_read_bytes};
}

/* Until the answer is done, with the live line where there is one. Called, and returns, with the lock held. */
static void wait_done(struct state *s, eng_engine *g, struct cli_live *live, struct cli_course *course)
{
    char text[200];
    while (!s->done) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += LIVE_MS * 1000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        if (!live->on)
            pthread_cond_wait(&s->cond, &s->lock);
        else if (pthread_cond_timedwait(&s->cond, &s->lock, &t) == ETIMEDOUT) {
            uint64_t tokens = s->tokens;
            pthread_mutex_unlock(&s->lock);
            course->now = moment(tokens, g);
            pthread_mutex_lock(&s->lock);
            if (tokens && !course->first.ns)
                course->first = course->now;
            cli_live_text(course, text, sizeof text);
            cli_live_show(live, text);
        }
    }
    cli_live_close(live);
}

static int answer(const struct run_flags *f, const struct eng_config *c, struct err *e)
{
    struct state s = {.f = f, .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .ids = {.max = 1u << 24}};
    struct eng_ids ids = {.max = 1u << 24};
    eng_engine *g = NULL;
    struct eng_config in_force;
    struct buf text;
    buf_init(&s.text, 256u << 20);
    buf_init(&text, 64u << 20);
    int rc = f->ids ? ids_of(f->ids, &ids, e) : read_text(f, &text, e); /* before the wait for the weights */
    if (rc || (rc = eng_open(&g, c, on_event, &s, e)))
        goto out;
    eng_config_in_force(g, &in_force);
    cli_echo_config(&in_force, eng_isa(g));
    if (!f->ids && (rc = text_ids(f, eng_model_of(g), &text, &ids, e)))
        goto out;
    uint64_t seed = (uint64_t)f->seed;
    if (f->seed < 0)
        hash_random(&seed, sizeof seed);
    struct eng_request r = {.id = 1, .ids = ids.v, .n_ids = (uint32_t)ids.n, .max_tokens = (uint32_t)f->n, .ignore_eos = f->ignore_eos,
                            .sampling = {.temperature = (float)f->temp, .top_p = (float)f->top_p, .min_p = (float)f->min_p,
                                         .top_k = (int32_t)f->top_k, .seed = seed}};
    struct cli_live live = {0};
    struct cli_course course = {.prompt = (uint32_t)ids.n, .chunk = in_force.chunk};
    if (isatty(2) && !f->json)
        course.drive_s = drive_rate(g, &in_force);
    course.begin = moment(0, g);
    if ((rc = eng_submit(g, &r, e)))
        goto out;
    if (!f->json) {
        pthread_mutex_lock(&s.lock);
        cli_live_open(&live);
        pthread_mutex_unlock(&s.lock);
    }
    pthread_mutex_lock(&s.lock);
    wait_done(&s, g, &live, &course);
    pthread_mutex_unlock(&s.lock);
    if (f->json)
        print_json(&s);
    else
        puts("");
    summary(&s);
    if (s.finish == ENG_FAILED) {
        *e = s.err;
        rc = s.err.code;
    }
out:
    eng_close(g);
    eng_ids_free(&ids);
    buf_free(&text);
    eng_ids_free(&s.ids);
    buf_free(&s.text);
    return rc;
}

int verb_run(int argc, char **argv)
{
    struct cli_engine ef = CLI_ENGINE_DEFAULTS;
    struct run_flags f = {.n = 128, .seed = -1, .top_p = 1};
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {cli_engine_flags, cli_n_engine_flags, &ef}, {NULL, 0, NULL}};
    const char *words[1];
    size_t n_words;
    bool helped;
    struct arena a;
    struct err e = {0};
    struct eng_config c;
    arena_init(&a, 1u << 20);
    int rc = cli_parse(argc, argv, "MODEL (-p TEXT | -f FILE | --ids 1,2,3) [flags]", tables, words, 1, &n_words, &helped, &a, &e);
    if (!rc && !helped) {
        if (n_words)
            ef.model = words[0];
        if (!f.prompt + !f.file + !f.ids != 2)
            rc = err_set(&e, ERR_INVALID, "expected one of -p TEXT, -f FILE, --ids 1,2,3");
        else if (f.raw && f.chat)
            rc = err_set(&e, ERR_INVALID, "--raw and --chat exclude each other");
        if (!ef.seqs)
            ef.seqs = 1;
        if (!rc && !(rc = cli_engine_config(&ef, &c, &e))) {
            c.progress = cli_load_progress;
            rc = answer(&f, &c, &e);
        }
    }
    arena_free(&a);
    return rc ? cli_fail("run", &e) : CLI_OK;
}
