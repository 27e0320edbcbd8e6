/* gateway/app.h - what a path means: routing, who may ask, the small answers. The handler that gateway/server.h calls.
 *
 * Owns:      the route table, the metrics, the bound on waiting requests and their tokens.
 * Leaves:    chats to gateway/chat.h; keys to gateway/tenant.h; the engine to gateway/engine_client.h.
 * Invariant: every path needs a key except /health, /ready, the pages and, where the configuration says so, /metrics.
 * Threads:   the handler runs on loop threads. */
#ifndef SLUICE_GATEWAY_APP_H
#define SLUICE_GATEWAY_APP_H
#include "base/conf.h"
#include "gateway/engine_client.h"
#include "gateway/journal.h"
#include "gateway/server.h"
#include "gateway/tenant.h"
#include "gateway/work.h"

struct gw_app_config {
    struct gw_tenants *tenants;     /* borrowed, all three */
    gw_engine *engine;
    gw_work *work;
    uint32_t queue_requests;        /* submitted and not started; 0: what the engine says */
    uint64_t queue_tokens;          /* their prompt tokens; 0: what the engine says */
    uint32_t queue_share;           /* percent of queue_requests that one tenant may hold; 0: all if there is one tenant, else half */
    uint64_t prompt_bytes_max;      /* memory for one request's JSON, text and ids */
    uint32_t request_ms;            /* deadline of one request; 0: none */
    struct conf_list cors_origins;  /* borrowed; empty: browsers may not call from other pages */
    gw_journal *access, *usage;     /* borrowed; NULL: not written */
    bool log_prompts;               /* the bodies of requests too, in the usage log */
    bool admin_local;               /* /admin without a key, for who is on this machine; otherwise keys with admin=1 */
    bool metrics_open;              /* /metrics without a key */
    bool pages;                     /* / and /dashboard for browsers (gateway/page.h); else 404 */
};
typedef struct gw_app gw_app;
int gw_app_open(gw_app **out, const struct gw_app_config *cfg, struct err *e);
void gw_app_close(gw_app *a);                      /* after the server is closed and work and engine are stopped */
struct gw_handler gw_app_handler(gw_app *a);
void gw_app_set_server(gw_app *a, gw_server *s);   /* for its counters in /metrics; before the first request matters, not more */
void gw_app_stop(gw_app *a);                       /* new chats are answered 503 from now on */
#endif
