/* gateway/running.h - the requests that run, for /admin/requests and for the two logs; and what a log line of one looks like.
 *
 * Owns:      the list; an entry is part of its chat and leaves the list before the chat's memory goes.
 * Invariant: ids are ours ("chatcmpl-..."), so they are unique; x-request-id may be the client's own and is shown beside it.
 * Threads:   any; one lock. The numbers of an entry are atomic and read without stopping anybody. */
#ifndef SLUICE_GATEWAY_RUNNING_H
#define SLUICE_GATEWAY_RUNNING_H
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "gateway/journal.h"
#include "gateway/metrics.h"
#include "gateway/server.h"
#include "gateway/tenant.h"

enum gw_run_state { GW_RUN_PREPARING, GW_RUN_QUEUED, GW_RUN_PREFILL, GW_RUN_DECODING, GW_RUN_STATES };
struct gw_running {
    struct gw_running *prev, *next;
    void *owner;                       /* the chat */
    gw_tenant *tenant;
    const char *id, *model, *path;     /* borrowed; outlive the entry */
    char request_id[GW_REQUEST_ID_MAX + 1], client[GW_ADDR_TEXT];
    uint64_t start_ns;
    atomic_int state;
    atomic_bool paused;                /* its reader lags */
    atomic_uint prompt_tokens, output_tokens;
};
struct gw_runs { pthread_mutex_t lock; struct gw_running *first; size_t n; };

void gw_runs_init(struct gw_runs *s);
void gw_runs_free(struct gw_runs *s);
void gw_runs_add(struct gw_runs *s, struct gw_running *r);
void gw_runs_remove(struct gw_runs *s, struct gw_running *r);  /* one that was never added is fine */
void gw_runs_write(struct gw_runs *s, uint64_t now_ns, struct buf *b); /* {"requests":[...]} , the newest first */
/* Calls take(owner) with the lock held for the entry of that id (ours, or an x-request-id: then all of them); those that took it are in out. */
unsigned gw_runs_find(struct gw_runs *s, const char *id, bool (*take)(void *owner), void **out, unsigned most);

/* ---- log lines: JSON, one a line, without a word of prompt or answer ------------------------------------------- */
void gw_line_access(struct buf *b, const struct gw_request *r, const struct gw_done *d, const char *tenant);
struct gw_usage_line { unsigned choice, prompt_tokens, cached_tokens, output_tokens; const char *outcome; uint64_t ttft_ns, ns; /* ttft 0: no token */ };
void gw_line_usage(struct buf *b, const struct gw_running *r, const struct gw_usage_line *u);
/* ... and this one is the exception, for those who asked for it: the request's body, which has passed as JSON. */
void gw_line_prompt(struct buf *b, const struct gw_running *r, const char *body, size_t n);
#endif
