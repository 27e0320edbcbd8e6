/* tests/support/gw_rig.h - a gateway server with a small application for tests, and a client that speaks raw bytes over TCP or TLS.
 *
 * The application: /hello; /echo (the body back); /take (its length, after taking it); /later (answered by another thread after 20 ms);
 * /hang (never); /block (not before the test clears `blocked`, and its loop stands still); /stream?N (N events, end); /quiet (a stream that only beats); /flood?N (N pieces of 8 KiB under back-pressure);
 * /hose (as fast as it can, deaf to back-pressure); /none (204); /abort (a stream that is cut); /last (a stream that ends
 * with its first piece); /inject (a header with a line end);
 * /refuse (401 by the head alone); /small (bodies of at most 10 bytes); /id (x-request-id as body). /client (its address, and whether it is local).
 * Everything else: 404. */
#ifndef SLUICE_TESTS_GW_RIG_H
#define SLUICE_TESTS_GW_RIG_H
#include <openssl/ssl.h>
#include <stdatomic.h>

#include "gateway/server.h"

struct rig {
    gw_server *server;
    uint16_t port;
    bool tls;
    char dir[64], ca[1100];
    _Atomic int gone[3], pauses, requests, refused_posts, blocked;
};
/* Fills cfg with the defaults, one loopback address, 2 threads. tls makes a certificate in a directory of its own. */
void rig_config(struct gw_server_config *cfg);
void rig_open(struct rig *r, const struct gw_server_config *cfg, bool tls);
#define RIG_WAIT_MS 60000               /* how long a test waits for what must come: only a failure lasts as long, on the slowest machine */
void rig_close(struct rig *r);          /* checks that nothing is left open, held or waiting */
int rig_gone(struct rig *r, int ms);    /* waits until some on_gone came; returns which, or -1 */
void rig_counters(struct rig *r, struct gw_counters *c);

struct client {
    int fd;
    SSL *ssl;
    SSL_CTX *ctx;
    char *data;                         /* what came and was not yet matched; NUL-terminated */
    size_t len, cap;
    bool eof;
};
void client_open(struct client *c, const struct rig *r);
bool client_try_tls(struct client *c, const struct rig *r, SSL_CTX *ctx, SSL_SESSION *resume); /* false: no handshake; close it all the same */
void client_open_tls(struct client *c, const struct rig *r, SSL_CTX *ctx, SSL_SESSION *resume); /* ctx: borrowed */
int client_connect(uint16_t port);      /* a plain socket, -1 when refused */
SSL_CTX *client_ctx(const struct rig *r);
void client_send(struct client *c, const void *p, size_t n);
void client_say(struct client *c, const char *text);
void client_get(struct client *c, const char *path); /* a whole GET */
/* Reads until text appears, drops everything up to and with it; fails the test after RIG_WAIT_MS. */
void client_expect(struct client *c, const char *text);
bool client_fill(struct client *c, int ms); /* one read; false: the end or nothing within ms */
void client_expect_end(struct client *c); /* the server closes; leftovers stay in data */
void client_close(struct client *c);
#endif
