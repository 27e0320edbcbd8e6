/* gateway/engine_client.h - the gateway's line to one engine: requests out, tokens and text back, across the engine's deaths.
 *
 * Owns:      one thread with its own event loop, the socket, the table of running streams, the served model as last described.
 * Leaves:    what a request means and how it is answered to gateway/chat.h; framing to engine/frame.h.
 * Invariant: a stream ends with exactly one GW_ST_DONE, GW_ST_REFUSED or GW_ST_LOST event; nothing follows it. A stream that outlives a
 *            connection is sent again with the tokens it has, the same seed and the bytes already delivered, so its text goes on as if
 *            nothing had happened; only to an engine of equal identity (gateway/served.h).
 * Threads:   submit, cancel, pause, the getters: any; submit sends on the caller's thread. Events arrive on the client's thread, also
 *            while submit has not returned, and must not block.
 * States:    down -> connecting -> greeting (HELLO awaited) -> fetching (blobs) -> up -> down; see the head of the .c. */
#ifndef SLUICE_GATEWAY_ENGINE_CLIENT_H
#define SLUICE_GATEWAY_ENGINE_CLIENT_H
#include "engine/engine.h"
#include "gateway/served.h"

struct gw_engine_config {
    const char *address;           /* "unix:/path", "/path" or "host:port" of this machine; copied */
    size_t streams_max;            /* running and waiting together */
    uint32_t connect_ms, greet_ms; /* to a connection; to a HELLO and each blob after it */
    uint32_t ping_ms, silence_ms;  /* a PING after this long without a byte; the line is given up after that long */
    uint32_t backoff_ms_min, backoff_ms_max;
    uint32_t lost_ms;              /* how long streams wait for an engine to come back (or to take them) before GW_ST_LOST */
    size_t blob_bytes_max;
    void (*changed)(void *ctx, bool up); /* may be NULL; on the client's thread, after the state changed */
    void *ctx;
};
void gw_engine_config_default(struct gw_engine_config *c);

typedef struct gw_engine gw_engine;
/* Starts the thread, which keeps trying to connect. ERR_INVALID: the address; ERR_UNSUPPORTED: another machine's. */
int gw_engine_open(gw_engine **out, const struct gw_engine_config *cfg, struct err *e);
void gw_engine_stop(gw_engine *g);         /* running streams end with GW_ST_LOST; later calls are refused or do nothing. NULL is fine */
void gw_engine_close(gw_engine *g);        /* stops first; no other thread may use it any more. NULL is fine */

bool gw_engine_up(gw_engine *g);
bool gw_engine_able(gw_engine *g);             /* up, and its weights can be read */
/* The model as last described, also while the engine is away; NULL before the first description. Ends with gw_served_unref. */
struct gw_served *gw_engine_served(gw_engine *g);

enum gw_stream_event_type { GW_ST_STARTED, GW_ST_TOKENS, GW_ST_DONE, GW_ST_REFUSED, GW_ST_LOST };
struct gw_stream_event {
    enum gw_stream_event_type type;
    uint32_t n_tokens; const int32_t *ids; const struct eng_logprobs *logprobs; /* TOKENS: not counting what was regenerated after a loss; logprobs NULL unless asked for */
    const char *text; size_t n;      /* TOKENS, DONE: valid in the call */
    enum eng_finish finish;          /* DONE */
    int32_t stop;                    /* DONE: the stop string that was met; -1: none */
    struct eng_usage usage;          /* DONE */
    struct err err;                  /* DONE with ENG_FAILED, REFUSED, LOST */
};
typedef void (*gw_stream_fn)(void *ctx, const struct gw_stream_event *ev);

/* Copies *r (whose id, n_done and text_skip are set here). served: what r->ids were made for; a reference is taken.
 * patient: an engine that is full or draining is asked again until lost_ms; otherwise that is GW_ST_REFUSED.
 * ERR_AGAIN: streams_max. ERR_CLOSED: closing. ERR_NOMEM. On success *id names the stream and events may come at once. */
int gw_engine_submit(gw_engine *g, const struct eng_request *r, struct gw_served *served, bool patient, gw_stream_fn f, void *ctx, uint64_t *id, struct err *e);
void gw_engine_cancel(gw_engine *g, uint64_t id);              /* DONE with ENG_CANCELLED follows unless the stream ended before */
void gw_engine_pause(gw_engine *g, uint64_t id, bool paused);

struct gw_engine_stats {
    bool up;
    uint64_t connects, restarts;     /* connections that reached `up`; of those, with another process than the one before */
    uint64_t resubmitted, lost;      /* streams */
    size_t streams;
    size_t link_bytes;               /* owed to the engine and not yet taken */
    bool has_engine; struct eng_stats engine; /* the last STATS frame */
};
void gw_engine_stats(gw_engine *g, struct gw_engine_stats *s);
#endif
