#include "gateway/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/anthropic.h"
#include "gateway/app_internal.h"
#include "gateway/openai_out.h"
#include "gateway/small.h"
#include "gateway/page.h"

static const char json_type[] = "application/json";

/* ---- answers ---------------------------------------------------------------------------------------------- */

static void answer_json(struct gw_app *a, gw_exchange *x, enum gw_route r, int status, const struct gw_header *h, size_t n, const struct buf *b)
{
    gw_metrics_answer(&a->metrics, r, b->failed ? 500 : status);
    if (b->failed)
        gw_respond(x, 500, NULL, NULL, 0, "", 0);
    else
        gw_respond(x, status, json_type, h, n, b->data, b->len);
}

bool gw_app_anthropic(enum gw_route r) { return r == GW_ROUTE_MESSAGES || r == GW_ROUTE_COUNT; }

/* OpenAI's names; a reset is the time until the bucket is full again, in its notation ("12.500s"). */
static void put_rate(struct gw_app_headers *h, const char *const names[3], size_t at, const struct gw_rate *r)
{
    if (!r->limit)
        return;
    char (*t)[32] = &h->text[at];
    snprintf(t[0], sizeof t[0], "%llu", (unsigned long long)r->limit);
    snprintf(t[1], sizeof t[1], "%llu", (unsigned long long)r->left);
    snprintf(t[2], sizeof t[2], "%llu.%03us", (unsigned long long)(r->reset_ms / 1000), (unsigned)(r->reset_ms % 1000));
    for (size_t i = 0; i < 3; i++)
        h->h[h->n++] = (struct gw_header){names[i], t[i]};
}

void gw_app_headers(struct gw_app_headers *h, enum gw_route r, const gw_exchange *x, gw_tenant *tenant)
{
    static const char *const openai[2][3] = {{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"},
                                             {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}};
    struct gw_rates rates = {0};
    h->n = 0;
    if (tenant)
        gw_tenant_rates(tenant, clock_now_ns(), &rates);
    put_rate(h, openai[0], 0, &rates.requests);
    put_rate(h, openai[1], 3, &rates.tokens);
    if (gw_app_anthropic(r))
        h->h[h->n++] = (struct gw_header){"request-id", gw_exchange_id(x)};
}

void gw_app_error(struct gw_app *a, gw_exchange *x, enum gw_route r, const struct gw_api_error *ae)
{
    struct gw_header h[12];
    struct gw_app_headers rates;
    char seconds[16];
    struct buf b;
    size_t n = 0;
    gw_app_headers(&rates, r, x, gw_exchange_owner(x)); /* NULL: nobody's, a wrong key on a new connection */
    for (; n < rates.n; n++)
        h[n] = rates.h[n];
    if (ae->retry_after_s) {
        snprintf(seconds, sizeof seconds, "%u", ae->retry_after_s);
        h[n++] = (struct gw_header){"Retry-After", seconds};
    }
    if (ae->allow)
        h[n++] = (struct gw_header){"Allow", ae->allow};
    if (ae->status == 401)
        h[n++] = (struct gw_header){"WWW-Authenticate", "Bearer"};
    if (ae->no_retry)
        h[n++] = (struct gw_header){"x-should-retry", "false"};
    buf_init(&b, 1u << 16);
    int status = ae->status;
    if (gw_app_anthropic(r)) {
        status = gw_anthropic_error(&b, ae, gw_exchange_id(x));
    } else {
        gw_out_error(&b, ae);
    }
    answer_json(a, x, r, status, h, n, &b);
    buf_free(&b);
}

/* ---- the queue's bound ------------------------------------------------------------------------------------ */

uint32_t gw_app_retry_s(struct gw_app *a, const struct gw_served *s, size_t ahead)
{
    uint64_t one = atomic_load(&a->service_ns);
    double each = one ? (double)one * 1e-9 : 2.0; /* before anything was measured */
    double t = each * (double)(ahead + 1) / (s && s->d.seqs ? s->d.seqs : 1);
    return t < 1 ? 1 : t > 120 ? 120 : (uint32_t)(t + 0.999); /* official clients obey up to 120 s */
}

static uint64_t smaller_bound(uint64_t a, uint64_t b) /* 0: none */
{
    return !a ? b : !b || a < b ? a : b;
}

/* One tenant's burst must leave room for the others: what the engine shares fairly is only what got that far. */
static uint64_t tenant_share(struct gw_app *a, uint64_t requests_max)
{
    uint64_t percent = a->cfg.queue_share ? a->cfg.queue_share : gw_tenants_count(a->cfg.tenants) > 1 ? 50 : 100;
    return requests_max ? (requests_max * percent + 99) / 100 : 0;
}

int gw_app_queue_enter(struct gw_app *a, gw_tenant *tenant, const struct gw_served *s, uint32_t n, struct gw_api_error *ae)
{
    struct err e;
    uint64_t requests_max = smaller_bound(a->cfg.queue_requests, s->d.queue_max);
    uint64_t tokens_max = smaller_bound(a->cfg.queue_tokens, s->d.queue_tokens_max);
    if (gw_tenant_wait(tenant, tenant_share(a, requests_max), &e)) {
        gw_api_error_set(ae, 429, "queue_full", NULL, "%s. Try again later.", e.msg);
        ae->retry_after_s = gw_app_retry_s(a, s, atomic_load(&a->waiting));
        return 429;
    }
    size_t waiting = atomic_fetch_add(&a->waiting, 1), tokens = atomic_fetch_add(&a->waiting_tokens, n);
    const char *what = NULL;
    if (requests_max && waiting >= requests_max)
        what = "requests";
    else if (tokens_max && waiting && tokens + n > tokens_max) /* a prompt that fits the context always fits an empty queue */
        what = "prompt tokens";
    if (!what)
        return 0;
    gw_app_queue_leave(a, tenant, n);
    gw_api_error_set(ae, 429, "queue_full", NULL, "The queue is full: %zu requests with %zu prompt tokens are waiting, and the bound on %s is %llu. Try again later.",
                     waiting, tokens, what, (unsigned long long)(*what == 'r' ? requests_max : tokens_max));
    ae->retry_after_s = gw_app_retry_s(a, s, waiting);
    return 429;
}

void gw_app_queue_leave(struct gw_app *a, gw_tenant *tenant, uint32_t n)
{
    gw_tenant_wait_end(tenant);
    atomic_fetch_sub(&a->waiting, 1);
    atomic_fetch_sub(&a->waiting_tokens, n);
}

void gw_app_served_one(struct gw_app *a, const struct eng_usage *u)
{
    uint64_t took = u->prefill_ns + u->decode_ns, old = atomic_load(&a->service_ns);
    if (took) /* a lost update costs one sample of a mean */
        atomic_store(&a->service_ns, old ? old - old / 8 + took / 8 : took);
}

/* ---- who asks --------------------------------------------------------------------------------------------- */

gw_tenant *gw_app_tenant(struct gw_app *a, const struct gw_request *r)
{
    const char *h = gw_request_header(r, "authorization");
    if (h && !strncasecmp(h, "Bearer ", 7)) {
        h += 7;
        h += strspn(h, " ");
    } else if (!(h = gw_request_header(r, "x-api-key"))) { /* as Anthropic's clients send it */
        return NULL;
    }
    return gw_tenants_find(a->cfg.tenants, h, strlen(h));
}

static void disconnect(void *tenant) { gw_tenant_disconnect(tenant); }

/* A connection belongs to the tenant whose key was used on it last. */
static int claim(gw_exchange *x, gw_tenant *t, struct gw_api_error *ae)
{
    struct err e;
    if (gw_exchange_owner(x) == t)
        return 0;
    if (gw_tenant_connect(t, &e)) {
        gw_api_error_set(ae, 429, "too_many_connections", NULL, "%s.", e.msg);
        ae->retry_after_s = 5;
        gw_exchange_close_after(x);
        return 429;
    }
    gw_exchange_claim(x, t, disconnect);
    return 0;
}

static int check_key(struct gw_app *a, gw_exchange *x, const struct gw_request *r, struct gw_api_error *ae)
{
    gw_tenant *t = gw_app_tenant(a, r);
    if (t)
        return claim(x, t, ae);
    gw_api_error_set(ae, 401, "invalid_api_key", NULL, gw_request_header(r, "authorization") || gw_request_header(r, "x-api-key") ?
                     "Incorrect API key provided." : "You didn't provide an API key. Send it in an Authorization header: Bearer YOUR_KEY.");
    ae->type = "invalid_request_error"; /* as OpenAI has it for keys */
    return 401;
}

/* ---- routes ----------------------------------------------------------------------------------------------- */

static enum gw_route route_of(const char *path)
{
    static const struct { const char *path; enum gw_route r; } fixed[] = {
        {"/v1/chat/completions", GW_ROUTE_CHAT}, {"/v1/completions", GW_ROUTE_COMPLETIONS}, {"/v1/messages", GW_ROUTE_MESSAGES},
        {"/v1/messages/count_tokens", GW_ROUTE_COUNT}, {"/tokenize", GW_ROUTE_TOKENIZE}, {"/detokenize", GW_ROUTE_DETOKENIZE}, {"/v1/models", GW_ROUTE_MODELS}, {"/health", GW_ROUTE_HEALTH}, {"/health/live", GW_ROUTE_HEALTH},
        {"/chat/completions", GW_ROUTE_CHAT}, {"/completions", GW_ROUTE_COMPLETIONS}, {"/models", GW_ROUTE_MODELS}, /* of who gave a base URL without /v1 */
        {"/ready", GW_ROUTE_READY}, {"/health/ready", GW_ROUTE_READY}, {"/metrics", GW_ROUTE_METRICS},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (!strcmp(path, fixed[i].path))
            return fixed[i].r;
    if (gw_admin_is(path))
        return GW_ROUTE_ADMIN;
    if (gw_page_is(path))
        return GW_ROUTE_PAGE;
    return !strncmp(path, "/v1/models/", 11) && path[11] ? GW_ROUTE_MODEL : GW_ROUTE_OTHER;
}

static bool needs_key(const struct gw_app *a, enum gw_route r)
{
    return !(r == GW_ROUTE_HEALTH || r == GW_ROUTE_READY || r == GW_ROUTE_PAGE || r == GW_ROUTE_ADMIN /* has rules of its own */ || (r == GW_ROUTE_METRICS && a->cfg.metrics_open));
}

static bool is_post(enum gw_route r) { return r <= GW_ROUTE_DETOKENIZE; } /* the first of the list */

static bool is_json(const char *type)
{
    size_t n = strlen(json_type);
    return !type || (!strncasecmp(type, json_type, n) && (!type[n] || strchr("; \t", type[n])));
}

static int check_post(struct gw_app *a, enum gw_route route, const struct gw_request *r, struct gw_api_error *ae)
{
    const char *type = gw_request_header(r, "content-type"), *coding = gw_request_header(r, "content-encoding");
    if (coding && strcasecmp(coding, "identity"))
        return gw_api_error_set(ae, 415, "unsupported_media_type", NULL, "Expected a body without a coding, but Content-Encoding says '%.100s'.", coding);
    if (!is_json(type))
        return gw_api_error_set(ae, 415, "unsupported_media_type", NULL, "Expected a body of type application/json, but Content-Type says '%.100s'.", type);
    if (gw_app_anthropic(route) && gw_anthropic_check_version(gw_request_header(r, "anthropic-version"), ae))
        return ae->status;
    if (atomic_load(&a->stopping)) {
        gw_api_error_set(ae, 503, "engine_unavailable", NULL, "The server is stopping.");
        ae->retry_after_s = 5;
    } else if (!gw_engine_up(a->cfg.engine)) {
        gw_api_error_set(ae, 503, "engine_unavailable", NULL, "No engine is connected; it may be loading its model. Try again shortly.");
        ae->retry_after_s = 2;
    }
    return ae->status;
}

/* Marks the answer as readable by the page it came from, if that is on the list; answers the browser's question beforehand.
 * True: it was that question. A page that is not on the list gets an answer that its browser will not show it. */
static bool cors(struct gw_app *a, gw_exchange *x, const struct gw_request *r)
{
    const char *origin = gw_request_header(r, "origin"), *allowed = NULL, *asked = gw_request_header(r, "access-control-request-headers");
    for (size_t i = 0; origin && i < a->cfg.cors_origins.n && !allowed; i++)
        if (!strcmp(a->cfg.cors_origins.items[i], "*") || !strcmp(a->cfg.cors_origins.items[i], origin))
            allowed = a->cfg.cors_origins.items[i];
    if (!allowed)
        return false;
    gw_exchange_cors(x, allowed);
    if (r->method != GW_OPTIONS || !gw_request_header(r, "access-control-request-method"))
        return false;
    const struct gw_header h[] = {{"Access-Control-Allow-Methods", "GET, POST"}, {"Access-Control-Max-Age", "600"},
                                  {"Access-Control-Allow-Headers", asked ? asked : "authorization, content-type"}};
    gw_metrics_answer(&a->metrics, route_of(r->path), 204);
    gw_respond(x, 204, NULL, h, sizeof h / sizeof *h, "", 0);
    return true;
}

static bool on_head(void *ctx, gw_exchange *x, const struct gw_request *r)
{
    struct gw_app *a = ctx;
    struct gw_api_error ae = {0};
    enum gw_route route = route_of(r->path);
    bool get = r->method == GW_GET || r->method == GW_HEAD;
    if (route != GW_ROUTE_ADMIN && cors(a, x, r)) /* no page of another origin gets near /admin */
        return false;
    if (route == GW_ROUTE_PAGE && !a->pages)
        route = GW_ROUTE_OTHER;
    if (route == GW_ROUTE_OTHER) {
        gw_api_error_set(&ae, 404, "unknown_url", NULL, "Unknown request URL: %s %.200s.", r->method_name, r->path);
    } else if (route == GW_ROUTE_ADMIN) {
        gw_admin_check(a, x, r, &ae);
    } else if (is_post(route) ? r->method != GW_POST : !get) {
        gw_api_error_set(&ae, 405, "method_not_allowed", NULL, "Not allowed to %s on %.200s.", r->method_name, r->path);
        ae.allow = is_post(route) ? "POST" : "GET, HEAD";
    } else if (!needs_key(a, route) || !check_key(a, x, r, &ae)) {
        if (is_post(route))
            check_post(a, route, r, &ae);
    }
    if (!ae.status)
        return true;
    gw_app_error(a, x, route, &ae);
    return false;
}

static void answer_models(struct gw_app *a, gw_exchange *x)
{
    struct gw_served *s = gw_engine_served(a->cfg.engine);
    struct buf b;
    buf_init(&b, 1u << 20);
    buf_str(&b, "{\"object\":\"list\",\"data\":[");
    if (s) {
        gw_out_model(&b, s->d.id, s->created, s->d.ctx);
        for (size_t i = 0; i < s->d.n_aliases; i++) {
            buf_char(&b, ',');
            gw_out_model(&b, s->d.aliases[i], s->created, s->d.ctx);
        }
    }
    buf_str(&b, "],\"has_more\":false,\"first_id\":");
    json_put_cstr(&b, s ? s->d.id : NULL);
    buf_str(&b, ",\"last_id\":");
    json_put_cstr(&b, s && s->d.n_aliases ? s->d.aliases[s->d.n_aliases - 1] : s ? s->d.id : NULL);
    buf_char(&b, '}');
    answer_json(a, x, GW_ROUTE_MODELS, 200, NULL, 0, &b);
    buf_free(&b);
    gw_served_unref(s);
}

static void answer_model(struct gw_app *a, gw_exchange *x, const char *raw)
{
    struct gw_served *s = gw_engine_served(a->cfg.engine);
    struct gw_api_error ae;
    struct buf name, b;
    buf_init(&name, 4096);
    buf_init(&b, 1u << 16);
    bool ok = gw_http1_unescape(raw, strlen(raw), &name) && name.len;
    if (ok && s && gw_served_is(s, name.data)) {
        gw_out_model(&b, name.data, s->created, s->d.ctx);
        answer_json(a, x, GW_ROUTE_MODEL, 200, NULL, 0, &b);
    } else {
        gw_api_error_set(&ae, 404, "model_not_found", "model", "The model '%.200s' does not exist.", ok ? name.data : raw);
        gw_app_error(a, x, GW_ROUTE_MODEL, &ae);
    }
    buf_free(&name);
    buf_free(&b);
    gw_served_unref(s);
}

static void answer_ready(struct gw_app *a, gw_exchange *x)
{
    static const struct gw_header retry = {"Retry-After", "2"};
    bool up = gw_engine_able(a->cfg.engine) && !atomic_load(&a->stopping);
    struct gw_served *s = gw_engine_served(a->cfg.engine);
    struct buf b;
    buf_init(&b, 1u << 16);
    buf_printf(&b, "{\"status\":\"%s\",\"model\":", up ? "ready" : "not ready");
    json_put_cstr(&b, s ? s->d.id : NULL);
    buf_char(&b, '}');
    answer_json(a, x, GW_ROUTE_READY, up ? 200 : 503, &retry, up ? 0 : 1, &b);
    buf_free(&b);
    gw_served_unref(s);
}

static uint64_t resident_bytes(void)
{
    unsigned long long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re"); /* made by the kernel on the spot: this does not wait for a disk */
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void answer_metrics(struct gw_app *a, gw_exchange *x)
{
    struct gw_engine_stats es;
    struct gw_counters sc = {0};
    struct buf b;
    gw_server *server = atomic_load(&a->server);
    gw_engine_stats(a->cfg.engine, &es);
    if (server)
        gw_server_counters(server, &sc);
    pthread_mutex_lock(&a->runs.lock);
    size_t running = a->runs.n;
    pthread_mutex_unlock(&a->runs.lock);
    struct gw_metrics_now now = {.waiting = atomic_load(&a->waiting), .waiting_tokens = atomic_load(&a->waiting_tokens), .preparing = gw_work_waiting(a->cfg.work),
                                 .running = running, .pending = atomic_load(&a->pending), .log_bytes = gw_journal_waiting(a->cfg.access) + gw_journal_waiting(a->cfg.usage),
                                 .log_dropped = gw_journal_dropped(a->cfg.access) + gw_journal_dropped(a->cfg.usage),
                                 .engine = &es, .server = &sc, .rss_bytes = resident_bytes()};
    buf_init(&b, 1u << 20);
    gw_metrics_write(&a->metrics, &now, &b);
    gw_metrics_answer(&a->metrics, GW_ROUTE_METRICS, 200);
    gw_respond(x, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, 0, b.data, b.len);
    buf_free(&b);
}

static void on_request(void *ctx, gw_exchange *x, const struct gw_request *r)
{
    static const char alive[] = "{\"status\":\"ok\"}";
    struct gw_app *a = ctx;
    gw_tenant *tenant = gw_exchange_owner(x); /* whose key came with the head */
    switch (route_of(r->path)) {
    case GW_ROUTE_CHAT: gw_chat_start(a, &gw_api_chat, x, r, tenant); break;
    case GW_ROUTE_MESSAGES: gw_chat_start(a, &gw_api_messages, x, r, tenant); break;
    case GW_ROUTE_COUNT:
    case GW_ROUTE_TOKENIZE:
    case GW_ROUTE_DETOKENIZE: gw_small_start(a, route_of(r->path), x, tenant); break;
    case GW_ROUTE_COMPLETIONS: gw_chat_start(a, &gw_api_completions, x, r, tenant); break;
    case GW_ROUTE_MODELS: answer_models(a, x); break;
    case GW_ROUTE_MODEL: answer_model(a, x, r->path + 11); break;
    case GW_ROUTE_READY: answer_ready(a, x); break;
    case GW_ROUTE_ADMIN: gw_admin_answer(a, x, r); break;
    case GW_ROUTE_METRICS: answer_metrics(a, x); break;
    case GW_ROUTE_PAGE: gw_metrics_answer(&a->metrics, GW_ROUTE_PAGE, gw_page_answer(a->pages, x, r)); break;
    default: /* on_head let nothing else through but /health */
        gw_metrics_answer(&a->metrics, GW_ROUTE_HEALTH, 200);
        gw_respond(x, 200, json_type, NULL, 0, alive, sizeof alive - 1);
    }
}

/* ---- life ------------------------------------------------------------------------------------------------- */

int gw_app_open(gw_app **out, const struct gw_app_config *cfg, struct err *e)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return err_set(e, ERR_NOMEM, "gateway application");
    (*out)->cfg = *cfg;
    gw_runs_init(&(*out)->runs);
    int rc = cfg->pages ? gw_pages_open(&(*out)->pages, e) : ERR_OK;
    if (rc) {
        gw_app_close(*out);
        *out = NULL;
    }
    return rc;
}

void gw_app_close(gw_app *a)
{
    if (!a)
        return;
    gw_pages_close(a->pages);
    gw_runs_free(&a->runs);
    free(a);
}

static void on_done(void *ctx, const struct gw_request *r, const struct gw_done *d)
{
    struct gw_app *a = ctx;
    struct buf b;
    buf_init(&b, 8192);
    gw_line_access(&b, r, d, d->owner ? gw_tenant_name(d->owner) : NULL);
    if (!b.failed)
        gw_journal_put(a->cfg.access, b.data, b.len);
    buf_free(&b);
}

static void on_turn(void *ctx) { gw_work_wake(((struct gw_app *)ctx)->cfg.work); }

struct gw_handler gw_app_handler(gw_app *a)
{
    return (struct gw_handler){.ctx = a, .on_turn = on_turn, .on_head = on_head, .on_request = on_request, .on_done = a->cfg.access ? on_done : NULL};
}
void gw_app_set_server(gw_app *a, gw_server *s) { atomic_store(&a->server, s); }
void gw_app_stop(gw_app *a) { atomic_store(&a->stopping, true); }
