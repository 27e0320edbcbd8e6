/* Opening goes from the inside out (keys, engine line, workers, application, server), so that the first request finds everything.
 * Stopping keeps two orders: workers and the engine line end before the loops do, since both post to them; and the engine client's
 * object outlives the loops, since a client that leaves in the last moment still calls cancel on it. */
#include "gateway/gateway.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "gateway/app.h"
#include "gateway/cert.h"

#define SPARE_MS 10000             /* how often a look is taken */
#define SPARE_BYTES ((size_t)32 << 20) /* free, and more than what is in use: worth giving back */

#define HOST_MAX 64

struct gw_gateway {
    gw_tenants *tenants;
    gw_engine *engine;
    gw_work *work;
    gw_app *app;
    gw_server *server;
    int stop_fd;
    atomic_bool retired;
    uint32_t drain_ms;
    char key[GW_STATE_KEY_BYTES];
    bool key_made;
    struct gw_cert cert;           /* empty strings: plain HTTP */
    gw_journal *access, *usage;
    char *keys_file, *api_key, *state_dir; /* for a reload; state_dir: the certificate there is ours */
    char hosts[GW_LISTEN_MAX][HOST_MAX];
    const char *cert_hosts[GW_LISTEN_MAX]; /* named in that certificate; point into hosts */
    size_t n_cert_hosts;
};

/* ---- addresses -------------------------------------------------------------------------------------------- */

static int split_listen(const char *s, char host[HOST_MAX], uint16_t *port, struct err *e)
{
    const char *colon = strrchr(s, ':');
    char *end = NULL;
    unsigned long p = colon ? strtoul(colon + 1, &end, 10) : 0;
    bool bracket = *s == '[' && colon && colon > s && colon[-1] == ']';
    size_t n = colon ? (size_t)(colon - s) - (bracket ? 2 : 0) : 0;
    if (!colon || !colon[1] || *end || p > 65535 || !n || n >= HOST_MAX)
        return err_set(e, ERR_INVALID, "listen '%s': expected host:port", s);
    memcpy(host, s + bracket, n);
    host[n] = 0;
    *port = (uint16_t)p;
    return ERR_OK;
}

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (!strcmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

static int read_listen(const struct gw_config *c, struct gw_server_config *s, char hosts[GW_LISTEN_MAX][HOST_MAX], const char **outside, struct err *e)
{
    static const char *const one[] = {"127.0.0.1:8443"};
    size_t n = c->listen.n ? c->listen.n : 1;
    *outside = NULL;
    if (n > GW_LISTEN_MAX)
        return err_set(e, ERR_INVALID, "listen: at most %d addresses, found %zu", GW_LISTEN_MAX, n);
    for (size_t i = 0; i < n; i++) {
        const char *text = c->listen.n ? c->listen.items[i] : one[0];
        int rc = split_listen(text, hosts[i], &s->listen[i].port, e);
        if (rc)
            return rc;
        s->listen[i].host = hosts[i];
        if (!is_loopback(hosts[i]))
            *outside = text;
    }
    s->n_listen = (unsigned)n;
    return ERR_OK;
}

/* ---- what is made up when nothing is given ---------------------------------------------------------------- */

static int open_keys(gw_gateway *g, const struct gw_config *c, const char *outside, struct err *e)
{
    const char *key = c->api_key;
    if (!c->keys_file && !key) {
        if (outside)
            return err_set(e, ERR_INVALID, "listen '%s' can be reached from other machines: that needs keys_file or api_key", outside);
        if (!c->state_dir)
            return err_set(e, ERR_INVALID, "expected keys_file or api_key, or a state_dir to keep a generated key in, found none of them");
        int rc = gw_state_key(c->state_dir, g->key, &g->key_made, e);
        if (rc)
            return rc;
        key = g->key;
    }
    if ((c->keys_file && !(g->keys_file = strdup(c->keys_file))) || (key && !(g->api_key = strdup(key))))
        return err_set(e, ERR_NOMEM, "keys");
    return gw_tenants_open(&g->tenants, c->keys_file, key, e);
}

static bool copy_path(char *out, const char *s)
{
    return snprintf(out, GW_CERT_PATH_MAX, "%s", s) < GW_CERT_PATH_MAX;
}

static int find_certificate(gw_gateway *g, const struct gw_config *c, const struct gw_server_config *sc, struct err *e)
{
    if (!c->tls) {
        if (c->tls_cert || c->tls_key)
            return err_set(e, ERR_INVALID, "tls is off, but tls_cert or tls_key is given");
        return ERR_OK;
    }
    if (!c->tls_cert != !c->tls_key)
        return err_set(e, ERR_INVALID, "tls_cert and tls_key: expected both or neither");
    if (c->tls_cert) {
        if (!copy_path(g->cert.cert, c->tls_cert) || !copy_path(g->cert.key, c->tls_key) || !copy_path(g->cert.ca, c->tls_cert))
            return err_set(e, ERR_INVALID, "tls_cert or tls_key: path longer than %d bytes", GW_CERT_PATH_MAX - 1);
        return ERR_OK;
    }
    if (!c->state_dir)
        return err_set(e, ERR_INVALID, "tls: expected tls_cert and tls_key, or a state_dir to keep a certificate of our own in, found none of them");
    for (unsigned i = 0; i < sc->n_listen; i++)
        if (!is_loopback(sc->listen[i].host) && strcmp(sc->listen[i].host, "0.0.0.0") && strcmp(sc->listen[i].host, "::"))
            g->cert_hosts[g->n_cert_hosts++] = sc->listen[i].host;
    if (!(g->state_dir = strdup(c->state_dir)))
        return err_set(e, ERR_NOMEM, "state_dir");
    return gw_cert_ensure(c->state_dir, g->cert_hosts, g->n_cert_hosts, &g->cert, e);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static void server_config(const struct gw_config *c, const gw_gateway *g, bool outside, struct gw_server_config *s)
{
    s->threads = (unsigned)c->threads;
    s->cert_file = *g->cert.cert ? g->cert.cert : NULL;
    s->key_file = *g->cert.cert ? g->cert.key : NULL;
    s->plain_anywhere = c->plain_anywhere;
    s->inherit = c->inherit;
    s->n_inherit = c->n_inherit;
    s->paused = c->paused;
    s->proxy_protocol = c->proxy_protocol;
    s->ticket_s = (uint32_t)(c->ticket_ms / 1000);
    s->http.head_bytes_max = c->header_bytes;
    s->http.headers_max = (unsigned)c->headers_max;
    s->http.body_max = c->body_bytes;
    s->body_bytes_total_max = c->body_bytes_total;
    s->connections_max = (unsigned)c->connections_max;
    s->connections_address_max = outside ? (unsigned)c->connections_address_max : 0; /* on loopback everybody has one address */
    s->handshakes_max = (unsigned)c->handshakes_max;
    s->write_min = c->write_min;
    s->sndbuf = (int)c->socket_buffer;
    s->handshake_ms = (uint32_t)c->handshake_ms;
    s->header_ms = (uint32_t)c->header_ms;
    s->body_ms = (uint32_t)c->body_ms;
    s->body_total_ms = (uint32_t)c->body_total_ms;
    s->idle_ms = (uint32_t)c->idle_ms;
    s->write_stall_ms = (uint32_t)c->write_stall_ms;
    s->heartbeat_ms = (uint32_t)c->heartbeat_ms;
    s->backlog_high = c->backlog_high;
    s->backlog_low = c->backlog_low;
    s->backlog_max = c->backlog_max;
    s->handler = gw_app_handler(g->app);
    if (s->post_max < (size_t)c->connections_max * 2)
        s->post_max = (size_t)c->connections_max * 2; /* a chat has one task outstanding, so a post is never refused for being full */
}

static int open_inside(gw_gateway *g, const struct gw_config *c, const struct gw_server_config *sc, const char *outside, struct err *e)
{
    struct gw_engine_config ec;
    struct gw_app_config ac = {.queue_requests = (uint32_t)c->queue_requests, .queue_tokens = c->queue_tokens, .queue_share = (uint32_t)c->queue_share, .prompt_bytes_max = c->prompt_memory,
                               .request_ms = (uint32_t)c->request_ms, .pages = c->pages,
                               .cors_origins = c->cors_origins, .metrics_open = c->metrics == GW_METRICS_OPEN || (c->metrics == GW_METRICS_AUTO && !outside)};
    int rc;
    if (!c->engine)
        return err_set(e, ERR_INVALID, "engine: expected unix:/path or host:port, found nothing");
    if (c->backlog_low > c->backlog_high || c->backlog_high > c->backlog_max)
        return err_set(e, ERR_INVALID, "backlog_low, backlog_high, backlog_max: expected rising sizes, found %llu, %llu, %llu",
                       (unsigned long long)c->backlog_low, (unsigned long long)c->backlog_high, (unsigned long long)c->backlog_max);
    if ((rc = open_keys(g, c, outside, e)) || (rc = find_certificate(g, c, sc, e)))
        return rc;
    gw_engine_config_default(&ec);
    ec.address = c->engine;
    ec.streams_max = (size_t)c->streams_max;
    ec.lost_ms = (uint32_t)c->engine_lost_ms;
    if ((rc = gw_engine_open(&g->engine, &ec, e)) || (rc = gw_work_open(&g->work, (unsigned)c->workers, (size_t)c->preparing_max, e)))
        return rc;
    if ((c->access_log && (rc = gw_journal_open(&g->access, c->access_log, e))) || (c->usage_log && (rc = gw_journal_open(&g->usage, c->usage_log, e))))
        return rc;
    ac.access = g->access;
    ac.usage = g->usage;
    ac.log_prompts = c->log_prompts;
    ac.admin_local = c->admin == GW_ADMIN_LOCAL || (c->admin == GW_ADMIN_AUTO && !outside && !c->trusted_proxies.n);
    ac.tenants = g->tenants;
    ac.engine = g->engine;
    ac.work = g->work;
    return gw_app_open(&g->app, &ac, e);
}

static int read_proxies(const struct gw_config *c, struct gw_server_config *s, struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; i < c->trusted_proxies.n && !rc; i++)
        if ((rc = gw_nets_add(&s->trusted, c->trusted_proxies.items[i], e)))
            err_prefix(e, rc, "trusted_proxies");
    if (!rc && c->proxy_protocol && !c->trusted_proxies.n)
        rc = err_set(e, ERR_INVALID, "proxy_protocol: expected trusted_proxies too, since anybody could claim to be anybody");
    if (!rc && c->log_prompts && !c->usage_log)
        rc = err_set(e, ERR_INVALID, "log_prompts: expected a usage_log to write them to");
    return rc;
}

int gw_gateway_open(gw_gateway **out, const struct gw_config *c, struct err *e)
{
    struct gw_server_config sc;
    const char *outside;
    int rc;
    *out = NULL;
    gw_server_config_default(&sc);
    gw_gateway *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "gateway");
    g->stop_fd = -1;
    if ((rc = read_listen(c, &sc, g->hosts, &outside, e)) || (rc = read_proxies(c, &sc, e)))
        goto out;
    g->drain_ms = (uint32_t)c->drain_ms;
    if ((g->stop_fd = eventfd(0, EFD_CLOEXEC)) < 0) {
        rc = err_set(e, ERR_IO, "gateway: %s", strerror(errno));
        goto out;
    }
    if ((rc = open_inside(g, c, &sc, outside, e)))
        goto out;
    server_config(c, g, outside != NULL, &sc);
    if ((rc = gw_server_open(&g->server, &sc, e)))
        goto out;
    gw_app_set_server(g->app, g->server);
    for (unsigned i = 0; i < sc.n_listen; i++)
        log_info("listening addr=%s:%u tls=%s", g->hosts[i], gw_server_port(g->server, i), *g->cert.cert ? "on" : "off");
    *out = g;
    g = NULL;
out:
    gw_gateway_close(g);
    return rc;
}

/* ---- reload ------------------------------------------------------------------------------------------------ */

int gw_gateway_reload(gw_gateway *g, struct err *e)
{
    int rc = gw_tenants_reload(g->tenants, g->keys_file, g->api_key, e), other = ERR_OK;
    struct err why = {0};
    struct gw_cert cert = g->cert;
    gw_journal_reopen(g->access);
    gw_journal_reopen(g->usage);
    if (*g->cert.cert) {
        other = g->state_dir ? gw_cert_ensure(g->state_dir, g->cert_hosts, g->n_cert_hosts, &cert, &why) : ERR_OK;
        if (!other && !(other = gw_server_reload_tls(g->server, cert.cert, cert.key, &why)))
            g->cert = cert;
    }
    if (rc && other)
        log_error("reload: %s", why.msg); /* the caller reports the first */
    else if (other)
        *e = why;
    return rc ? rc : other;
}

/* ---- running ---------------------------------------------------------------------------------------------- */

void gw_gateway_stop(gw_gateway *g)
{
    uint64_t one = 1;
    int saved = errno;
    while (write(g->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
    errno = saved;
}

void gw_gateway_retire(gw_gateway *g)
{
    atomic_store(&g->retired, true);
    gw_server_handed(g->server);
    gw_gateway_stop(g);
}

/* Memory of a burst that is over goes back to the system: each thread's share of the heap keeps what once was in use. */
static void give_back_memory(void)
{
#ifdef __GLIBC__
    struct mallinfo2 m = mallinfo2();
    if (m.fordblks > SPARE_BYTES && m.fordblks > m.uordblks)
        malloc_trim(SPARE_BYTES / 4);
#endif
}

unsigned gw_gateway_run(gw_gateway *g)
{
    struct pollfd p = {.fd = g->stop_fd, .events = POLLIN};
    uint64_t n;
    int rc;
    while ((rc = poll(&p, 1, SPARE_MS)) == 0 || (rc < 0 && errno == EINTR))
        give_back_memory();
    while (read(g->stop_fd, &n, sizeof n) < 0 && errno == EINTR)
        ;
    if (!atomic_load(&g->retired))
        gw_app_stop(g->app);
    unsigned left = gw_server_drain(g->server, g->drain_ms);
    if (left)
        log_warn("drain deadline passed requests_cut=%u", left);
    return left;
}

void gw_gateway_close(gw_gateway *g)
{
    if (!g)
        return;
    if (g->app)
        gw_app_stop(g->app);
    if (g->work)
        gw_work_stop(g->work);
    gw_engine_stop(g->engine);
    gw_server_close(g->server);
    gw_work_close(g->work);
    gw_engine_close(g->engine);
    gw_app_close(g->app);
    gw_tenants_close(g->tenants);
    gw_journal_close(g->access);
    gw_journal_close(g->usage);
    if (g->stop_fd >= 0)
        close(g->stop_fd);
    free(g->keys_file);
    free(g->api_key);
    free(g->state_dir);
    free(g);
}

void gw_gateway_accept(gw_gateway *g) { gw_server_accept(g->server); }
unsigned gw_gateway_listen_fds(const gw_gateway *g, int *out, unsigned most) { return gw_server_listen_fds(g->server, out, most); }
uint16_t gw_gateway_port(const gw_gateway *g, unsigned i) { return gw_server_port(g->server, i); }
bool gw_gateway_ready(gw_gateway *g) { return gw_engine_up(g->engine); }
const char *gw_gateway_ca(const gw_gateway *g) { return *g->cert.ca ? g->cert.ca : NULL; }

const char *gw_gateway_key(const gw_gateway *g, bool *made)
{
    if (made)
        *made = g->key_made;
    return *g->key ? g->key : NULL;
}
