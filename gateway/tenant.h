/* gateway/tenant.h - who a key belongs to, and how much that tenant may ask for.
 *
 * Owns:      the keys file's contents (SHA-256 of each key, never the key), the tenants with their limits, their running
 *            counts and rate buckets.
 * Leaves:    the shape of a refusal to gateway/openai_out.h; fair share between tenants to the engine's scheduler.
 * Invariant: a look-up's time does not depend on which key matches or how much of it; enter and leave come in pairs.
 * Keys file: a line per key, `#` starts a comment:
 *                SHA256-HEX  TENANT  [concurrent=N] [max_tokens=N] [requests_per_min=N] [tokens_per_min=N] [priority=N]
 *                                [connections=N] [queue=N] [admin=1]
 *            Several keys may name one tenant; its limits stand on one of those lines only. docs/formats.md.
 * Reload:    gw_tenants_reload replaces keys and limits in place. A tenant object lives until close, also when no key names it any
 *            more, so requests that run keep theirs and their counts go on.
 * Threads:   any. Keys have a read-write lock, each tenant's limits and counters a lock of their own. */
#ifndef SLUICE_GATEWAY_TENANT_H
#define SLUICE_GATEWAY_TENANT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define GW_KEY_MAX 512  /* longest key that is looked at */

struct gw_tenant_limits {
    uint32_t concurrent;        /* requests at once; 0: no bound (so for the others) */
    uint32_t max_tokens;        /* of output, per request */
    uint32_t requests_per_min;
    uint64_t tokens_per_min;    /* prompt and output together */
    uint32_t connections;       /* open at once */
    uint32_t queue;             /* requests submitted and not started; 0: the server's share, see gw_tenant_wait */
    int32_t priority;           /* handed to the engine; larger first */
    bool admin;                 /* may see and cancel everybody's requests */
};
typedef struct gw_tenants gw_tenants;
typedef struct gw_tenant gw_tenant;

/* keys_path: NULL for none. api_key: one more key, of tenant "default", without limits; NULL for none. At least one of them
 * must give a key, else ERR_INVALID. ERR_IO, ERR_FORMAT with "file:line: what". */
int gw_tenants_open(gw_tenants **out, const char *keys_path, const char *api_key, struct err *e);
void gw_tenants_close(gw_tenants *t);
/* The same once more, in place of what is there. On error nothing has changed. */
int gw_tenants_reload(gw_tenants *t, const char *keys_path, const char *api_key, struct err *e);
size_t gw_tenants_keys(gw_tenants *t);
size_t gw_tenants_count(gw_tenants *t);                               /* tenants that a key names */

gw_tenant *gw_tenants_find(gw_tenants *t, const char *key, size_t n); /* NULL: no such key. Borrowed from t */
const char *gw_tenant_name(const gw_tenant *n);
struct gw_tenant_limits gw_tenant_limits_of(gw_tenant *n);

/* Takes a place among the tenant's running requests and one of its requests a minute. ERR_AGAIN: *e says which bound and
 * *retry_ms when a retry can succeed (for `concurrent`: a second, since nobody knows). Ends with gw_tenant_leave. */
int gw_tenant_enter(gw_tenant *n, uint64_t now_ns, uint64_t *retry_ms, struct err *e);
/* Charges prompt tokens to the minute's budget; a prompt larger than a whole minute passes on a full bucket. ERR_AGAIN as above. */
int gw_tenant_charge(gw_tenant *n, uint64_t tokens, uint64_t now_ns, uint64_t *retry_ms, struct err *e);

/* Open connections that a tenant's key was used on. ERR_AGAIN: its bound is reached. */
int gw_tenant_connect(gw_tenant *n, struct err *e);
void gw_tenant_disconnect(gw_tenant *n);
/* Requests submitted and not started: at most the tenant's `queue`, or `share` of the server's queue where it has none (0: no bound). */
int gw_tenant_wait(gw_tenant *n, uint64_t share, struct err *e);
void gw_tenant_wait_end(gw_tenant *n);

/* What is left of the two rates, for x-ratelimit-* headers. limit 0: no such bound. reset_ms: until the bucket is full again. */
struct gw_rate { uint64_t limit, left, reset_ms; };
struct gw_rates { struct gw_rate requests, tokens; };
void gw_tenant_rates(gw_tenant *n, uint64_t now_ns, struct gw_rates *r);

void gw_tenant_leave(gw_tenant *n, uint64_t output_tokens, uint64_t now_ns); /* output is charged afterwards; the level may go below 0 */

/* The key of a server without a keys file: state_dir/api-key (mode 0600), made at first use (the directory too, 0700).
 * ERR_IO; ERR_INVALID when the file's content is no key or others can read it. */
#define GW_STATE_KEY_BYTES 64
int gw_state_key(const char *state_dir, char key[GW_STATE_KEY_BYTES], bool *created, struct err *e);
#endif
