/* gateway/app_internal.h - shared by app.c (routes) and chat.c (one chat's life). */
#ifndef SLUICE_GATEWAY_APP_INTERNAL_H
#define SLUICE_GATEWAY_APP_INTERNAL_H
#include "gateway/app.h"
#include "gateway/metrics.h"
#include "gateway/openai.h"
#include "gateway/running.h"

struct gw_app {
    struct gw_app_config cfg;
    struct gw_pages *pages;                  /* NULL: off */
    _Atomic(gw_server *) server;
    atomic_bool stopping;
    struct gw_metrics metrics;
    struct gw_runs runs;
    atomic_size_t waiting, waiting_tokens;   /* submitted, not started */
    atomic_size_t pending;                   /* bytes of text and tokens that came and were not given to an exchange: it lags, or wants all at once */
    atomic_uint_fast64_t service_ns;         /* moving mean of a request's prefill and decode; 0: none ended yet */
};

/* Answers with the error object and its headers; counts it. x is dead afterwards. */
void gw_app_error(struct gw_app *a, gw_exchange *x, enum gw_route r, const struct gw_api_error *ae);
/* Headers that an answer to a tenant carries beside the usual: what is left of its rates, Anthropic's name of the request's id. */
struct gw_app_headers { struct gw_header h[8]; size_t n; char text[6][32]; };
void gw_app_headers(struct gw_app_headers *h, enum gw_route r, const gw_exchange *x, gw_tenant *tenant);
bool gw_app_anthropic(enum gw_route r); /* errors there have Anthropic's shape */
/* A place in the queue for a prompt of n tokens, within the tenant's share of it, or 429 in *ae with the seconds after which one should be free. */
int gw_app_queue_enter(struct gw_app *a, gw_tenant *tenant, const struct gw_served *s, uint32_t n, struct gw_api_error *ae);
void gw_app_queue_leave(struct gw_app *a, gw_tenant *tenant, uint32_t n);
void gw_app_served_one(struct gw_app *a, const struct eng_usage *u); /* feeds the moving mean */
uint32_t gw_app_retry_s(struct gw_app *a, const struct gw_served *s, size_t ahead);
gw_tenant *gw_app_tenant(struct gw_app *a, const struct gw_request *r); /* NULL: no key, or a wrong one */

/* admin.c */
bool gw_admin_is(const char *path);
int gw_admin_check(struct gw_app *a, gw_exchange *x, const struct gw_request *r, struct gw_api_error *ae); /* who may, and how */
void gw_admin_answer(struct gw_app *a, gw_exchange *x, const struct gw_request *r);

/* chat.c: a whole request for text, its key known. */
struct gw_api;
void gw_chat_start(struct gw_app *a, const struct gw_api *api, gw_exchange *x, const struct gw_request *r, gw_tenant *tenant);
#endif
