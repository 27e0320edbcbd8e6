/* gateway/cert.h - the certificate of a server that was given none: made once, kept in the state directory, renewed in time.
 *
 * Owns:      DIR/tls.key (0600), DIR/tls.crt, DIR/ca.crt, and DIR/tls.lock, which keeps two starting servers apart.
 * Invariant: what gw_cert_ensure returns belongs together, is valid for at least 30 days (made for 825, the most that all clients
 *            accept) and names localhost, 127.0.0.1, ::1 and the hosts given. Files appear by rename, never half written.
 * Method:    ECDSA P-256. tls.crt is signed by a small authority of its own whose key is thrown away at once: clients trust
 *            ca.crt (SSL_CERT_FILE, NODE_EXTRA_CA_CERTS, curl --cacert), and whoever steals tls.key can forge no other site.
 *            Libraries that refuse an authority as a server's certificate (webpki) accept this as well.
 * Threads:   any; blocks on the disk. */
#ifndef SLUICE_GATEWAY_CERT_H
#define SLUICE_GATEWAY_CERT_H
#include <stdbool.h>
#include <stddef.h>
#include "base/err.h"

#define GW_CERT_PATH_MAX 1024
struct gw_cert {
    char cert[GW_CERT_PATH_MAX], key[GW_CERT_PATH_MAX]; /* for gw_server_config */
    char ca[GW_CERT_PATH_MAX];                          /* for clients */
    bool made;                                          /* new in this call: clients must learn ca again */
};

/* dir is created (0700) if it is missing. hosts: DNS names or IP addresses beyond the three that are always there.
 * ERR_IO, ERR_INVALID (a host that is neither), ERR_LIMIT (a path too long). */
int gw_cert_ensure(const char *dir, const char *const *hosts, size_t n_hosts, struct gw_cert *out, struct err *e);
#endif
