/* gateway/peers.h - how many connections each address has open, so that one peer cannot take all of them.
 *
 * Owns:      a table of fixed size, one row an address that has a connection; an IPv6 network of 64 bits counts as one address,
 *            since that is what one customer is given.
 * Invariant: enter and leave come in pairs; never more than connections_max rows are in use.
 * Threads:   any; one lock, held for a few memory accesses. */
#ifndef SLUICE_GATEWAY_PEERS_H
#define SLUICE_GATEWAY_PEERS_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "base/err.h"

struct gw_peer_key { uint8_t b[16]; };   /* IPv4 as ::ffff:a.b.c.d */
void gw_peer_key_of(const struct sockaddr *from, struct gw_peer_key *k);

typedef struct gw_peers gw_peers;
int gw_peers_open(gw_peers **out, unsigned connections_max, unsigned each_max, struct err *e);
void gw_peers_close(gw_peers *p);                               /* NULL is fine */
bool gw_peers_enter(gw_peers *p, const struct gw_peer_key *k);  /* false: it has each_max already */
void gw_peers_leave(gw_peers *p, const struct gw_peer_key *k);
unsigned gw_peers_addresses(gw_peers *p);                       /* rows in use */
#endif
