/* gateway/tickets.h - the keys that session tickets are sealed with: shared by all loops of a server and replaced as they age.
 *
 * Invariant: a new ticket is sealed with the newest key; one sealed with an older key that is still kept is accepted and replaced. A key
 *            is forgotten after GW_TICKET_KEYS periods, and what was sealed with it is then worth nothing to whoever steals memory later.
 * Threads:   any; one lock, held for a copy. */
#ifndef SLUICE_GATEWAY_TICKETS_H
#define SLUICE_GATEWAY_TICKETS_H
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define GW_TICKET_KEYS 3
struct gw_ticket_key { unsigned char name[16], aes[32], mac[32]; };
struct gw_tickets {
    pthread_mutex_t lock;
    struct gw_ticket_key key[GW_TICKET_KEYS]; /* the newest first */
    unsigned n;
    uint64_t born_ns, period_ns;
};
bool gw_tickets_open(struct gw_tickets *t, uint64_t period_ns);  /* false: no random bytes */
void gw_tickets_close(struct gw_tickets *t);
bool gw_tickets_rotate(struct gw_tickets *t);                    /* at once; otherwise by age, with the first ticket after a period */
bool gw_tickets_attach(struct gw_tickets *t, SSL_CTX *c);        /* t outlives c and its connections */
#endif
