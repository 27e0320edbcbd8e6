#include "gateway/running.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"

void gw_runs_init(struct gw_runs *s)
{
    *s = (struct gw_runs){.n = 0};
    pthread_mutex_init(&s->lock, NULL);
}

void gw_runs_free(struct gw_runs *s) { pthread_mutex_destroy(&s->lock); }

void gw_runs_add(struct gw_runs *s, struct gw_running *r)
{
    pthread_mutex_lock(&s->lock);
    r->prev = NULL;
    if ((r->next = s->first))
        r->next->prev = r;
    s->first = r;
    s->n++;
    pthread_mutex_unlock(&s->lock);
}

void gw_runs_remove(struct gw_runs *s, struct gw_running *r)
{
    pthread_mutex_lock(&s->lock);
    if (r->prev || s->first == r) {
        if (r->prev)
            r->prev->next = r->next;
        else
            s->first = r->next;
        if (r->next)
            r->next->prev = r->prev;
        r->prev = r->next = NULL;
        s->n--;
    }
    pthread_mutex_unlock(&s->lock);
}

unsigned gw_runs_find(struct gw_runs *s, const char *id, bool (*take)(void *owner), void **out, unsigned most)
{
    unsigned n = 0;
    pthread_mutex_lock(&s->lock);
    for (struct gw_running *r = s->first; r && n < most; r = r->next)
        if ((!strcmp(r->id, id) || !strcmp(r->request_id, id)) && take(r->owner))
            out[n++] = r->owner;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void put_who(struct buf *b, const struct gw_running *r)
{
    buf_str(b, "\"id\":");
    json_put_cstr(b, r->id);
    buf_str(b, ",\"request_id\":");
    json_put_cstr(b, r->request_id);
    buf_str(b, ",\"tenant\":");
    json_put_cstr(b, gw_tenant_name(r->tenant));
    buf_str(b, ",\"client\":");
    json_put_cstr(b, r->client);
    buf_str(b, ",\"path\":");
    json_put_cstr(b, r->path);
    buf_str(b, ",\"model\":");
    json_put_cstr(b, r->model);
}

void gw_runs_write(struct gw_runs *s, uint64_t now_ns, struct buf *b)
{
    static const char *const names[GW_RUN_STATES] = {"preparing", "queued", "prefill", "decoding"};
    bool any = false;
    buf_str(b, "{\"requests\":[");
    pthread_mutex_lock(&s->lock);
    for (const struct gw_running *r = s->first; r; r = r->next, any = true) {
        buf_str(b, any ? ",{" : "{");
        put_who(b, r);
        buf_printf(b, ",\"state\":\"%s\",\"paused\":%s,\"age_s\":%.3f,\"prompt_tokens\":%u,\"output_tokens\":%u}", names[atomic_load(&r->state)],
                   atomic_load(&r->paused) ? "true" : "false", (double)(now_ns - r->start_ns) * 1e-9, atomic_load(&r->prompt_tokens),
                   atomic_load(&r->output_tokens));
    }
    buf_printf(b, "],\"count\":%zu}\n", s->n);
    pthread_mutex_unlock(&s->lock);
}

/* ---- log lines ------------------------------------------------------------------------------------------------- */
static void put_time(struct buf *b)
{
    struct timespec now;
    struct tm t;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    buf_printf(b, "{\"ts\":\"%s.%03ldZ\",", text, now.tv_nsec / 1000000);
}

/* What a client wrote, at most so much of it and nothing but printable ASCII: a log is read by terminals and other programs. */
static void put_foreign(struct buf *b, const char *s, size_t most)
{
    char text[512];
    size_t n = 0;
    for (; s && s[n] && n < most && n < sizeof text - 1; n++)
        text[n] = s[n] >= 0x20 && s[n] < 0x7F ? s[n] : '?';
    text[n] = 0;
    json_put_cstr(b, s ? text : NULL);
}

void gw_line_access(struct buf *b, const struct gw_request *r, const struct gw_done *d, const char *tenant)
{
    put_time(b);
    buf_str(b, "\"request_id\":");
    put_foreign(b, r->id, 128);
    buf_str(b, ",\"client\":");
    put_foreign(b, r->client, 64);
    buf_str(b, ",\"tenant\":");
    json_put_cstr(b, tenant);
    buf_str(b, ",\"method\":");
    put_foreign(b, r->method_name, 32);
    buf_str(b, ",\"path\":"); /* without its query, where a key may have been pasted */
    put_foreign(b, r->path, 256);
    buf_printf(b, ",\"status\":%d,\"bytes\":%llu,\"ms\":%.3f,\"cut\":%s,\"tls\":%s,\"agent\":", d->status, (unsigned long long)d->bytes, (double)d->ns * 1e-6,
               d->cut ? "true" : "false", r->tls ? "true" : "false");
    put_foreign(b, *r->method_name == '-' ? NULL : gw_request_header(r, "user-agent"), 200);
    buf_str(b, "}\n");
}

void gw_line_usage(struct buf *b, const struct gw_running *r, const struct gw_usage_line *u)
{
    put_time(b);
    put_who(b, r);
    buf_printf(b, ",\"choice\":%u,\"outcome\":\"%s\",\"prompt_tokens\":%u,\"cached_tokens\":%u,\"output_tokens\":%u,\"ttft_ms\":", u->choice, u->outcome,
               u->prompt_tokens, u->cached_tokens, u->output_tokens);
    if (u->ttft_ns)
        buf_printf(b, "%.3f", (double)u->ttft_ns * 1e-6);
    else
        buf_str(b, "null");
    buf_printf(b, ",\"ms\":%.3f}\n", (double)u->ns * 1e-6);
}

void gw_line_prompt(struct buf *b, const struct gw_running *r, const char *body, size_t n)
{
    put_time(b);
    put_who(b, r);
    buf_str(b, ",\"request\":");
    for (size_t i = 0; i < n; i++) /* line ends are blanks in JSON, and one would end our line; inside strings there are none */
        buf_char(b, body[i] == '\n' || body[i] == '\r' ? ' ' : body[i]);
    buf_str(b, "}\n");
}
