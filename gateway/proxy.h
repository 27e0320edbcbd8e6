/* gateway/proxy.h - who the client is when something stands between: networks that are trusted to say so, X-Forwarded-For, and
 * version 2 of the PROXY protocol (haproxy, "The PROXY protocol", section 2.2).
 *
 * Leaves:    reading and sockets to conn.c: these are functions of bytes alone, table-tested and fuzzed.
 * Invariant: nothing that an untrusted address says about itself is believed.
 * Threads:   any; a gw_nets is read-only once it is filled. */
#ifndef SLUICE_GATEWAY_PROXY_H
#define SLUICE_GATEWAY_PROXY_H
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

union gw_addr { struct sockaddr sa; struct sockaddr_in in; struct sockaddr_in6 in6; };
#define GW_ADDR_TEXT 46                     /* INET6_ADDRSTRLEN */

/* ---- networks ------------------------------------------------------------------------------------------------ */
#define GW_NETS_MAX 64
struct gw_nets { size_t n; struct { uint8_t addr[16]; unsigned bits; } net[GW_NETS_MAX]; }; /* IPv4 as ::ffff:a.b.c.d */
/* Adds "10.0.0.0/8", "192.0.2.1", "2001:db8::/32" or "::1". ERR_INVALID: not one, bits set behind the prefix; ERR_LIMIT. */
int gw_nets_add(struct gw_nets *s, const char *text, struct err *e);
bool gw_nets_has(const struct gw_nets *s, const struct sockaddr *a);

/* ---- X-Forwarded-For ----------------------------------------------------------------------------------------- */
/* The client according to the list (all values joined by commas; entries may carry a port): from the right, the first address that is not
 * trusted, since whatever stands left of it the client may have written itself. The last trusted one if all are. False: an entry on the
 * way is no address; then the peer itself is all that is known. */
bool gw_forwarded_for(const char *list, const struct gw_nets *trusted, char out[GW_ADDR_TEXT]);

/* ---- PROXY protocol v2 --------------------------------------------------------------------------------------- */
#define GW_PROXY2_FIXED 16
#define GW_PROXY2_MAX 2048                  /* bytes of a whole header; longer ones (by their TLVs) are refused */
/* With the first 16 bytes: the length of the whole header. 0: this is none, or it is too long. */
size_t gw_proxy2_length(const uint8_t fixed[GW_PROXY2_FIXED]);
/* A whole header of n bytes. *from is the client; *local: the proxy speaks for itself (a health check), *from is not set. TLVs are skipped.
 * ERR_FORMAT: what is wrong; ERR_UNSUPPORTED: neither TCP over IPv4 nor over IPv6. */
int gw_proxy2_parse(const uint8_t *p, size_t n, union gw_addr *from, bool *local, struct err *e);
#endif
