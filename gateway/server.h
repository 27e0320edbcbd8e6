/* gateway/server.h - the network half of the gateway: listeners, TLS, HTTP/1.1 framing, streams with back-pressure.
 *
 * Owns:      event-loop threads, connections, their buffers and deadlines, the TLS contexts.
 * Leaves:    what a request means, and every body, to the handler (gateway/api.h).
 * Invariant: an exchange ends exactly once: by gw_respond, gw_stream_end or gw_abort of the application, or by its on_gone.
 *            After that its handle is dead. No callback runs inside a gw_ call that the application makes.
 *            Every buffer has a maximum. One connection runs one exchange at a time; pipelined requests wait.
 * Threads:   a handler and all callbacks run on the loop thread of their connection and must neither block nor compute;
 *            gw_exchange_*, gw_respond, gw_stream_*, gw_abort are called on that thread alone. From other threads:
 *            gw_loop_post(gw_exchange_loop(x), fn, arg), where fn runs on it. Loops of one server share nothing but counters.
 *
 * The server itself writes: Date, Content-Length or chunked framing, Connection, x-request-id (the client's own if it is sane,
 * else a new one), the answers HTTP demands (100, 400, 408, 413, 414, 417, 431, 501, 503, 505, as OpenAI error JSON, then close),
 * and for HEAD it leaves the body out of whatever the application answers. */
#ifndef SLUICE_GATEWAY_SERVER_H
#define SLUICE_GATEWAY_SERVER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "gateway/http1.h"
#include "gateway/proxy.h"

typedef struct gw_server gw_server;
typedef struct gw_loop gw_loop;
typedef struct gw_exchange gw_exchange;
struct event_base;

#define GW_REQUEST_ID_MAX 128  /* bytes of an x-request-id */

/* ---- requests ---------------------------------------------------------------------------------------------- */
/* Borrowed until the exchange ends, strings NUL-terminated (no NUL can be inside). */
struct gw_request {
    enum gw_http1_method method;   /* never CONNECT, TRACE, OTHER: the server answers 501 itself */
    const char *method_name;
    const char *path, *query;      /* raw; gw_http1_unescape decodes; query NULL: none */
    const char *host;              /* Host, "" if HTTP/1.0 gave none */
    const char *id;                /* x-request-id of this exchange */
    const char *peer;              /* "192.0.2.1:5555", "[::1]:5555"; with the PROXY protocol what the proxy says */
    const char *client;            /* its address alone, or what a trusted proxy put into X-Forwarded-For */
    bool tls, keep_alive;
    unsigned minor;                /* HTTP/1.minor */
    uint64_t content_length;       /* announced; 0: none or chunked */
    const char *body; size_t body_len; /* on_request: all of it, NUL behind it; on_head: NULL, 0 */
    const struct gw_http1 *head;
};
const char *gw_request_header(const struct gw_request *r, const char *lower_name); /* first of that name, or NULL */

/* ---- the application ----------------------------------------------------------------------------------------- */
enum gw_gone { GW_GONE_CLOSED /* the client left */, GW_GONE_STALLED /* it did not read within write_stall_ms, or backlog_max was passed */,
               GW_GONE_STOPPED /* the drain deadline passed */ };
struct gw_done {                  /* an exchange that has ended */
    int status;                    /* 0: it was dropped without an answer */
    uint64_t bytes, ns;            /* of the answer's body; from the head of the request to now */
    bool cut;                      /* the client left, was cut off, or the answer was broken off */
    void *owner;                   /* of gw_exchange_claim */
};
struct gw_handler {
    void *ctx;
    /* The head is there, no body was read (and no 100 Continue sent). True: go on and read the body, at most
     * gw_exchange_body_max bytes. False: it has answered with gw_respond (a bad key, a wrong path or type); the connection
     * closes if a body was on its way. NULL: always go on. */
    bool (*on_head)(void *ctx, gw_exchange *x, const struct gw_request *r);
    /* The whole request is there. Answer now or later; to answer later set a watch before returning. */
    void (*on_request)(void *ctx, gw_exchange *x, const struct gw_request *r);
    /* May be NULL. For logs: every exchange, once, after its end; and what was refused before it was one (then method_name and path are "-"). */
    void (*on_done)(void *ctx, const struct gw_request *r, const struct gw_done *d);
    /* May be NULL. The end of a loop's turn, before it sleeps: what its callbacks gathered for other threads is handed over once. */
    void (*on_turn)(void *ctx);
};

gw_loop *gw_exchange_loop(const gw_exchange *x);
const char *gw_exchange_id(const gw_exchange *x);
/* In on_head: pages of this origin may read the answer. The string must outlive the exchange; "*" is any. */
void gw_exchange_cors(gw_exchange *x, const char *origin);
bool gw_exchange_local(const gw_exchange *x);                   /* straight from this machine: a loopback address, nothing that speaks of a proxy, Host loopback too */
void gw_exchange_body_max(gw_exchange *x, uint64_t bytes);      /* in on_head: another limit than the configured one, for this request */
/* Says whose connection this is, until it ends or is claimed for another: release(owner) is called then, on the loop's thread. */
void gw_exchange_claim(gw_exchange *x, void *owner, void (*release)(void *owner));
void gw_exchange_close_after(gw_exchange *x);                    /* the connection ends with this answer */
void *gw_exchange_owner(const gw_exchange *x);                  /* NULL: unclaimed */
char *gw_exchange_take_body(gw_exchange *x, size_t *n);        /* moves the body out (free() it), so that another thread may read it after the exchange; NULL: there is none */

struct gw_watch {
    void *ctx;
    void (*on_gone)(void *ctx, gw_exchange *x, enum gw_gone why); /* x is dead when this returns; do not answer */
    void (*on_room)(void *ctx, gw_exchange *x); /* may be NULL. The backlog fell to backlog_low after gw_stream_write gave ERR_AGAIN */
    void (*on_slow)(void *ctx, gw_exchange *x); /* may be NULL. No answer has begun for heartbeat_ms, or for as long again: a stream may begin now to keep the line alive */
};
void gw_exchange_watch(gw_exchange *x, const struct gw_watch *w); /* copied; replaces */

/* ---- answers --------------------------------------------------------------------------------------------------- */
struct gw_header { const char *name, *value; }; /* a value with control characters is not sent (and logged) */

/* The whole answer; x is dead afterwards. content_type NULL: none. body is copied. Status 204 and 304 carry no body. */
void gw_respond(gw_exchange *x, int status, const char *content_type, const struct gw_header *h, size_t n_headers, const void *body, size_t n);
/* The same with OpenAI's error object as body; type, param and code may be NULL (type: by status). close: end the connection after it. */
void gw_respond_error(gw_exchange *x, int status, const char *type, const char *param, const char *code, const struct gw_header *h, size_t n_headers,
                      bool close, const char *message);

/* A stream: status line and headers go out at once, each write is one flush (TCP_NODELAY; chunked in HTTP/1.1, to the end of the
 * connection in 1.0). content_type NULL: text/event-stream, with Cache-Control: no-cache and X-Accel-Buffering: no.
 * heartbeat: a static string such as ": keep-alive\n\n", sent by the server whenever nothing was written for heartbeat_ms and
 * nothing is waiting to be sent; NULL: none. */
void gw_stream_start(gw_exchange *x, int status, const char *content_type, const struct gw_header *h, size_t n_headers, const char *heartbeat);
/* ERR_OK: sent or queued. ERR_AGAIN: queued, and the backlog is above backlog_high: write no more until on_room.
 * ERR_CLOSED: dropped; the client is gone and on_gone follows from the loop (or end the exchange yourself at once). */
int gw_stream_write(gw_exchange *x, const void *p, size_t n);
/* gw_stream_write of the last n bytes and gw_stream_end in one: they leave in one record, one system call. x is dead afterwards. */
void gw_stream_finish(gw_exchange *x, const void *p, size_t n);
size_t gw_stream_backlog(const gw_exchange *x);                 /* bytes not yet taken by the kernel */
void gw_stream_end(gw_exchange *x);                             /* a proper end; x is dead afterwards */
/* Cuts the connection (after what is queued, as far as the socket takes it now): the client sees a broken answer. x is dead afterwards. */
void gw_abort(gw_exchange *x);

/* ---- loops ----------------------------------------------------------------------------------------------------- */
/* Runs fn(arg) on the loop's thread, soon, in the order of posting. Any thread. ERR_AGAIN: post_max tasks are waiting already
 * (keep at most one outstanding task per object of yours and this cannot happen). ERR_CLOSED: the loop has ended. */
int gw_loop_post(gw_loop *l, void (*fn)(void *arg), void *arg);
struct buf *gw_loop_scratch(gw_loop *l);                         /* empty, for what a callback makes to send; good until it returns, or asks again */
unsigned gw_loop_index(const gw_loop *l);                        /* 0 .. threads-1 */
struct event_base *gw_loop_base(gw_loop *l);                     /* for timers and sockets of the application, on the loop's thread only */

/* ---- the server ------------------------------------------------------------------------------------------------ */
#define GW_LISTEN_MAX 8
struct gw_listen { const char *host; uint16_t port; }; /* a numeric IPv4 or IPv6 address, or "localhost"; port 0: any free one */
struct gw_server_config {
    struct gw_listen listen[GW_LISTEN_MAX]; unsigned n_listen;
    unsigned threads;               /* 0: the cores this process may use */
    const char *cert_file, *key_file; /* PEM. Both NULL: plain HTTP, refused unless every address is loopback */
    bool plain_anywhere;            /* plain HTTP on other addresses too */
    struct gw_nets trusted;         /* proxies: X-Forwarded-For of theirs is believed, connections_address_max does not bind them */
    bool proxy_protocol;            /* every connection begins with a PROXY v2 header, and comes from a trusted address */
    uint32_t ticket_s;              /* the age at which ticket keys are replaced */
    struct gw_http1_limits http;
    uint64_t body_bytes_total_max;  /* request bodies held at once, all connections; more: 503 */
    unsigned connections_max;       /* of the server; more are closed at once */
    unsigned connections_address_max; /* of one address, an IPv6 /64 being one; 0: no bound */
    unsigned handshakes_max;        /* unfinished TLS handshakes; more wait in the kernel's accept queue */
    uint32_t handshake_ms, header_ms, body_ms /* without a byte */, body_total_ms, idle_ms, write_stall_ms, linger_ms, heartbeat_ms;
    size_t backlog_high, backlog_low, backlog_max; /* bytes of an answer that the kernel has not taken */
    size_t pipeline_max;            /* bytes read ahead while an exchange runs */
    size_t write_min;               /* bytes that a client must have acknowledged within write_stall_ms while more is waiting for it */
    size_t post_max;                /* tasks waiting on a loop */
    int sndbuf;                     /* SO_SNDBUF; 0: the system's */
    /* Listening sockets of a server that this one takes over from (gw_server_listen_fds of it, passed on by exec): those that are bound to an
     * address in `listen` are used, the others closed. A connection that waits in one of them is lost to neither. */
    const int *inherit; unsigned n_inherit;
    bool paused;                    /* accept nothing until gw_server_accept */
    struct gw_handler handler;
};
void gw_server_config_default(struct gw_server_config *c); /* everything but listen, certificate and handler */

/* Listens and starts the threads; the strings of cfg need not outlive the call, handler.ctx must. ERR_INVALID, ERR_IO (an address in
 * use, a certificate unreadable), ERR_NOMEM. */
int gw_server_open(gw_server **out, const struct gw_server_config *cfg, struct err *e);
/* Other files for connections from now on; those that run keep what they have. On error nothing has changed. */
int gw_server_reload_tls(gw_server *s, const char *cert_file, const char *key_file, struct err *e);
void gw_server_accept(gw_server *s);                        /* begins to accept, if it was opened paused */
void gw_server_handed(gw_server *s);                        /* another process accepts from the same sockets: a drain leaves what waits in them to it */
unsigned gw_server_listen_fds(const gw_server *s, int *out, unsigned most); /* before a drain; borrowed */
uint16_t gw_server_port(const gw_server *s, unsigned i);    /* the bound port of listen[i] */
unsigned gw_server_loops(const gw_server *s);
gw_loop *gw_server_loop(gw_server *s, unsigned i);
/* Accepts no more, closes idle connections, answers with Connection: close, and waits until running exchanges have ended or ms have
 * passed; returns how many are left. Any thread but a loop's. */
unsigned gw_server_drain(gw_server *s, uint32_t ms);
void gw_server_close(gw_server *s);                         /* cuts what is left (on_gone with GW_GONE_STOPPED), joins the threads. NULL is fine */

struct gw_counters {
    uint64_t connections, connections_open, connections_refused, handshakes, handshakes_failed, handshakes_resumed;
    uint64_t connections_refused_address, handshakes_open, handshakes_evicted, addresses, proxy_errors;
    uint64_t requests, exchanges_open, responses_2xx, responses_4xx, responses_5xx, parse_errors, timeouts;
    uint64_t gone_closed, gone_stalled, streams, streams_open, heartbeats, posts, posts_refused;
    uint64_t bytes_in, bytes_out, backlog_bytes, pipeline_bytes, body_bytes_held, accept_pauses, posts_waiting;
};
void gw_server_counters(const gw_server *s, struct gw_counters *c); /* sums over the loops; any thread */
#endif
