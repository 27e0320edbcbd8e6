/* gateway/gateway.h - the gateway's front: one object that listens, answers, and talks to an engine. Used by the verbs.
 *
 * Owns:      the server, the application, the prompt workers, the line to the engine, the keys.
 * Leaves:    signals and command lines to cli/.
 * Invariant: without a TLS certificate or without keys it listens on this machine's own addresses only; what it made up for itself
 *            (key, certificate) is in the state directory.
 * Threads:   open, run and close from one thread; gw_gateway_stop from any, and from a signal handler. */
#ifndef SLUICE_GATEWAY_GATEWAY_H
#define SLUICE_GATEWAY_GATEWAY_H
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/conf.h"
#include "base/err.h"
#include "gateway/tenant.h"

enum gw_admin_access { GW_ADMIN_AUTO /* as GW_ADMIN_LOCAL on loopback, a key elsewhere */, GW_ADMIN_LOCAL, GW_ADMIN_KEY };
enum gw_metrics_access { GW_METRICS_AUTO /* open on loopback, key elsewhere */, GW_METRICS_OPEN, GW_METRICS_KEY };

/* conf/gateway.conf says what each means. 0 and NULL as given there. */
struct gw_config {
    struct conf_list listen;               /* "host:port"; empty: 127.0.0.1:8443 */
    const char *engine;
    const int *inherit; unsigned n_inherit; /* no directives: gw_gateway_listen_fds of the gateway that this one replaces; ... */
    bool paused;                           /* ... then nothing is accepted until gw_gateway_accept */
    struct conf_list trusted_proxies;      /* addresses and networks */
    const char *access_log, *usage_log;    /* "stderr" or a file; NULL: none */
    const char *state_dir, *keys_file, *api_key, *tls_cert, *tls_key;
    bool tls, plain_anywhere, pages, proxy_protocol, log_prompts;
    int admin;                             /* enum gw_admin_access */
    int metrics;                           /* enum gw_metrics_access */
    struct conf_list cors_origins;         /* pages that may call from a browser; "*": any */
    int64_t threads, workers, connections_max, connections_address_max, handshakes_max, streams_max, queue_requests, queue_share, preparing_max, headers_max;
    uint64_t queue_tokens;                 /* a plain number; K M G work */
    uint64_t header_bytes, body_bytes, body_bytes_total, prompt_memory, backlog_high, backlog_low, backlog_max, write_min, socket_buffer;
    uint64_t handshake_ms, header_ms, body_ms, body_total_ms, idle_ms, write_stall_ms, heartbeat_ms, request_ms, engine_lost_ms, drain_ms, ticket_ms;
    int log_level;                         /* enum log_level */
    bool log_json;
};
void gw_config_default(struct gw_config *c);
/* The directives of conf/gateway.conf; serve takes some of them as flags. */
extern const struct conf_directive gw_config_directives[];
extern const size_t gw_config_n_directives;
int gw_config_read_file(struct gw_config *c, const char *path, struct arena *a, struct err *e); /* over the defaults */

typedef struct gw_gateway gw_gateway;
/* Listens and begins to connect to the engine. ERR_INVALID: a configuration that is refused, and why; ERR_IO. c and its strings need
 * not outlive the call. */
int gw_gateway_open(gw_gateway **out, const struct gw_config *c, struct err *e);
unsigned gw_gateway_run(gw_gateway *g);     /* until gw_gateway_stop, then drains for drain_ms; how many requests were cut off */
void gw_gateway_stop(gw_gateway *g);
void gw_gateway_retire(gw_gateway *g);      /* the same, but another process has the sockets: requests on open connections are still served */
/* Reads the keys file and the certificate again and opens the log files again; streams and connections go on. What fails is said in *e
 * and stays as it was, the rest is done all the same. One caller at a time; while gw_gateway_run runs. */
int gw_gateway_reload(gw_gateway *g, struct err *e);
void gw_gateway_accept(gw_gateway *g);      /* after an opening with `paused` */
unsigned gw_gateway_listen_fds(const gw_gateway *g, int *out, unsigned most);
void gw_gateway_close(gw_gateway *g);       /* NULL is fine */

uint16_t gw_gateway_port(const gw_gateway *g, unsigned i);   /* the bound port of listen[i] */
bool gw_gateway_ready(gw_gateway *g);                        /* an engine is connected that has generated a token */
const char *gw_gateway_key(const gw_gateway *g, bool *made); /* the generated key; NULL: there is a keys file or api_key. made: just now */
const char *gw_gateway_ca(const gw_gateway *g);              /* path of the certificate that clients must trust; NULL: plain HTTP */
#endif
