/* engine/link.h - the engine's end of the connections to gateways: frames in, frames out, one thread.
 *
 * Owns:      the listening socket, the connections, the table that maps (connection, its request number) to an engine-wide id.
 * Leaves:    framing to engine/frame.h, every decision about a request to the engine behind eng_link_ops.
 * Invariant: eng_link_event never blocks and never waits for a socket: it appends to the request's own slot, which is bounded because
 *            a connection whose unsent bytes pass out_high has its sequences paused; they go on at out_low. A connection that
 *            takes nothing for stall_ms, or sends what is not a frame, is closed; a lost connection cancels its requests. After
 *            DONE or REFUSED nothing more is sent for a request.
 * Lock:      one mutex guards the slots; no function of eng_link_ops is called while it is held (the engine calls
 *            eng_link_event from its own thread).
 * Order:     eng_link_open, eng_open(..., eng_link_event, link), eng_link_start, ..., eng_link_stop, eng_close, eng_link_close.
 * Threads:   eng_link_event: the scheduler's. The rest: the owner's. */
#ifndef SLUICE_ENGINE_LINK_H
#define SLUICE_ENGINE_LINK_H
#include "engine/engine.h"

struct eng_link_ops { /* what a link uses of engine/engine.h */
    void *engine;
    int (*submit)(void *engine, const struct eng_request *r, struct err *e);
    void (*cancel)(void *engine, uint64_t id);
    void (*pause)(void *engine, uint64_t id, bool paused);
    void (*drain)(void *engine);
    void (*stats)(void *engine, struct eng_stats *s);
};
struct eng_link_blob { uint8_t digest[32]; const void *p; size_t n; };

struct eng_link_config {
    const char *listen;          /* "unix:/path", "/path", or "host:port" of this machine */
    uint32_t connections_max;    /* more are closed at once */
    uint32_t requests_max;       /* live ones of all connections; more are refused with ERR_AGAIN */
    size_t body_max;             /* of a joined frame */
    size_t out_high, out_low;    /* unsent bytes of a connection: pause its sequences, let them go on */
    uint32_t hello_ms, stall_ms; /* to the gateway's HELLO; without a byte taken */
    uint32_t stats_ms;
};
void eng_link_config_default(struct eng_link_config *c); /* everything but listen */

typedef struct eng_link eng_link;
/* Allocates the slots and binds the socket; a stale socket file is replaced. ERR_INVALID: the address. ERR_UNSUPPORTED: an address
 * beyond this machine, which needs TLS. ERR_IO: in use, no permission. */
int eng_link_open(eng_link **out, const struct eng_link_config *c, struct err *e);
/* Starts to listen. description: a JSON object (eng_describe); proto and pid are put into it. It and the blobs are borrowed until
 * eng_link_stop, ops is copied. */
int eng_link_start(eng_link *l, const struct eng_link_ops *ops, const char *description, size_t n, const struct eng_link_blob *blobs, size_t n_blobs,
                   struct err *e);
void eng_link_event(void *link, const struct eng_event *ev); /* an eng_event_fn */
uint16_t eng_link_port(const eng_link *l);                   /* of a TCP socket; 0 otherwise */
bool eng_link_idle(eng_link *l);                             /* no live request, nothing unsent */
void eng_link_stop(eng_link *l);                             /* closes connections, cancels what they had, ends the thread */
void eng_link_close(eng_link *l);                            /* stops first; removes the socket file. NULL is fine */
#endif
