/* gateway/client.h - a small blocking HTTPS client for one server: the terminal chat and the tests talk to the public API with it.
 *
 * One request a connection; bodies with Content-Length, chunked, or to the end. Certificates are checked against a CA file or the
 * system's, names too, unless told otherwise. Threads: one caller. */
#ifndef SLUICE_GATEWAY_CLIENT_H
#define SLUICE_GATEWAY_CLIENT_H
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"

struct gw_client {
    char host[256]; int port; bool tls, insecure;
    const char *ca_file;      /* NULL: the system's */
    const char *key;          /* NULL: none */
    char prefix[256];         /* path in front of every request's, "" or "/x" */
    unsigned timeout_s;       /* for connecting and between bytes; 0: 60 */
};
/* "https://host[:port][/prefix]" or "http://..."; a trailing "/v1" is dropped. ERR_INVALID. */
int gw_client_url(struct gw_client *c, const char *url, struct err *e);
/* body NULL: GET. on_data gets the decoded body as it comes; false ends the request early. *status: HTTP's. */
typedef bool (*gw_client_data)(void *ctx, const char *p, size_t n);
int gw_client_call(const struct gw_client *c, const char *path, const char *body, size_t n, int *status, gw_client_data on_data, void *ctx, struct err *e);
/* The same, body collected into b. */
int gw_client_get(const struct gw_client *c, const char *path, const char *body, size_t n, int *status, struct buf *b, struct err *e);
#endif
