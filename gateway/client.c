#include "gateway/client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 64 * 1024 };
struct wire { int fd; SSL_CTX *ctx; SSL *ssl; struct buf in; };

int gw_client_url(struct gw_client *c, const char *url, struct err *e)
{
    const char *p = url;
    c->tls = true;
    if (!strncmp(p, "https://", 8))
        p += 8;
    else if (!strncmp(p, "http://", 7)) {
        p += 7;
        c->tls = false;
    }
    size_t n = strcspn(p, "/");
    const char *slash = p + n, *host = p, *colon = NULL;
    size_t host_n = n;
    if (*p == '[') {
        const char *close = memchr(p, ']', n);
        if (!close)
            return err_set(e, ERR_INVALID, "url %s: no ] behind [", url);
        host = p + 1;
        host_n = (size_t)(close - host);
        colon = close + 1 < slash && close[1] == ':' ? close + 1 : NULL;
    } else if ((colon = memchr(p, ':', n))) {
        host_n = (size_t)(colon - p);
    }
    c->port = colon ? atoi(colon + 1) : c->tls ? 443 : 80;
    size_t prefix = strlen(slash);
    while (prefix && slash[prefix - 1] == '/')
        prefix--;
    if (prefix >= 3 && !strncmp(slash + prefix - 3, "/v1", 3))
        prefix -= 3;
    if (host_n == 0 || host_n >= sizeof c->host || prefix >= sizeof c->prefix || c->port < 1 || c->port > 65535)
        return err_set(e, ERR_INVALID, "url %s: expected https://HOST[:PORT][/PATH]", url);
    memcpy(c->host, host, host_n);
    c->host[host_n] = 0;
    memcpy(c->prefix, slash, prefix);
    c->prefix[prefix] = 0;
    return ERR_OK;
}

static int tls_error(const struct gw_client *c, SSL *ssl, const char *what, struct err *e)
{
    char text[160] = "connection closed";
    unsigned long code = ERR_get_error();
    long verify = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    if (verify != X509_V_OK)
        return err_set(e, ERR_IO, "%s:%d: certificate: %s (--ca FILE names the one to trust)", c->host, c->port, X509_verify_cert_error_string(verify));
    if (code)
        ERR_error_string_n(code, text, sizeof text);
    return err_set(e, ERR_IO, "%s:%d: %s: %s", c->host, c->port, what, text);
}

static int open_socket(const struct gw_client *c, int *fd, struct err *e)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    struct timeval tv = {.tv_sec = c->timeout_s ? c->timeout_s : 60};
    int one = 1, last = 0;
    snprintf(port, sizeof port, "%d", c->port);
    int rc = getaddrinfo(c->host, port, &hints, &list);
    if (rc)
        return err_set(e, ERR_IO, "%s: %s", c->host, gai_strerror(rc));
    *fd = -1;
    for (struct addrinfo *a = list; a && *fd < 0; a = a->ai_next) {
        int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (s < 0)
            continue;
        setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
        setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(s, a->ai_addr, a->ai_addrlen) == 0)
            *fd = s;
        else {
            last = errno;
            close(s);
        }
    }
    freeaddrinfo(list);
    return *fd >= 0 ? ERR_OK : err_set(e, ERR_IO, "%s:%d: %s", c->host, c->port, strerror(last));
}

static int open_tls(const struct gw_client *c, struct wire *w, struct err *e)
{
    if (!(w->ctx = SSL_CTX_new(TLS_client_method())))
        return tls_error(c, NULL, "TLS", e);
    SSL_CTX_set_min_proto_version(w->ctx, TLS1_2_VERSION);
    SSL_CTX_set_verify(w->ctx, c->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
    if (c->ca_file ? SSL_CTX_load_verify_locations(w->ctx, c->ca_file, NULL) != 1 : SSL_CTX_set_default_verify_paths(w->ctx) != 1)
        return err_set(e, ERR_IO, "%s: no usable certificates", c->ca_file ? c->ca_file : "system store");
    if (!(w->ssl = SSL_new(w->ctx)) || !SSL_set_fd(w->ssl, w->fd))
        return tls_error(c, NULL, "TLS", e);
    X509_VERIFY_PARAM *p = SSL_get0_param(w->ssl);
    if (!X509_VERIFY_PARAM_set1_ip_asc(p, c->host)) { /* a name, not an address */
        X509_VERIFY_PARAM_set1_host(p, c->host, 0);
        SSL_set_tlsext_host_name(w->ssl, c->host);
    }
    return SSL_connect(w->ssl) == 1 ? ERR_OK : tls_error(c, w->ssl, "TLS handshake", e);
}

static ssize_t wire_read(struct wire *w, void *p, size_t n)
{
    if (!w->ssl)
        return recv(w->fd, p, n, 0);
    int k = SSL_read(w->ssl, p, (int)n);
    return k > 0 ? k : SSL_get_error(w->ssl, k) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

static bool wire_write(struct wire *w, const char *p, size_t n)
{
    while (n) {
        ssize_t k = w->ssl ? SSL_write(w->ssl, p, n > 1 << 20 ? 1 << 20 : (int)n) : send(w->fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static void wire_close(struct wire *w)
{
    if (w->ssl)
        SSL_free(w->ssl);
    if (w->ctx)
        SSL_CTX_free(w->ctx);
    if (w->fd >= 0)
        close(w->fd);
    buf_free(&w->in);
}

/* More bytes into w->in. 1: some came; 0: the peer closed; -1: error or time-out. */
static int more(struct wire *w)
{
    char tmp[16384];
    ssize_t k = wire_read(w, tmp, sizeof tmp);
    if (k > 0)
        return buf_add(&w->in, tmp, (size_t)k) ? 1 : -1;
    return k == 0 ? 0 : -1;
}

static int send_request(const struct gw_client *c, struct wire *w, const char *path, const char *body, size_t n, struct err *e)
{
    struct buf b;
    buf_init(&b, HEAD_MAX);
    buf_printf(&b, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%d\r\nUser-Agent: sluice\r\nConnection: close\r\nAccept: */*\r\n", body ? "POST" : "GET", c->prefix, path,
               strchr(c->host, ':') ? "[" : "", c->host, strchr(c->host, ':') ? "]" : "", c->port);
    if (c->key)
        buf_printf(&b, "Authorization: Bearer %s\r\n", c->key);
    if (body)
        buf_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", n);
    buf_str(&b, "\r\n");
    bool ok = !b.failed && wire_write(w, b.data, b.len) && (!body || wire_write(w, body, n));
    buf_free(&b);
    return ok ? ERR_OK : err_set(e, ERR_IO, "%s:%d: the request could not be sent", c->host, c->port);
}

struct answer { int status; bool chunked; long long length; /* -1: to the end */ };

static int read_head(const struct gw_client *c, struct wire *w, struct answer *a, struct err *e)
{
    char *end;
    while (!w->in.data || !(end = strstr(w->in.data, "\r\n\r\n"))) {
        if (w->in.len > HEAD_MAX || more(w) <= 0)
            return err_set(e, ERR_IO, "%s:%d: no answer", c->host, c->port);
    }
    if (sscanf(w->in.data, "HTTP/1.%*d %d", &a->status) != 1)
        return err_set(e, ERR_FORMAT, "%s:%d: the answer is not HTTP/1.1", c->host, c->port);
    a->length = -1;
    for (char *line = strstr(w->in.data, "\r\n"); line && line < end; line = strstr(line + 2, "\r\n")) {
        if (!strncasecmp(line + 2, "content-length:", 15))
            a->length = atoll(line + 17);
        if (!strncasecmp(line + 2, "transfer-encoding: chunked", 26))
            a->chunked = true;
    }
    buf_consume(&w->in, (size_t)(end + 4 - w->in.data));
    return ERR_OK;
}

/* Hands over up to n bytes of what is buffered or comes. */
static int pass(struct wire *w, unsigned long long n, gw_client_data f, void *ctx, bool *stop)
{
    while (n && !*stop) {
        if (!w->in.len && more(w) <= 0)
            return -1;
        size_t k = w->in.len < n ? w->in.len : (size_t)n;
        *stop = !f(ctx, w->in.data, k);
        buf_consume(&w->in, k);
        n -= k;
    }
    return 0;
}

static int read_chunked(struct wire *w, gw_client_data f, void *ctx, bool *stop)
{
    for (;;) {
        char *nl;
        while (!w->in.data || !(nl = strstr(w->in.data, "\r\n")))
            if (w->in.len > 64 || more(w) <= 0)
                return -1;
        char *end;
        unsigned long long n = strtoull(w->in.data, &end, 16);
        if (end == w->in.data || n > 1ull << 40)
            return -1;
        buf_consume(&w->in, (size_t)(nl + 2 - w->in.data));
        if (n == 0)
            return 0;
        if (pass(w, n, f, ctx, stop))
            return -1;
        if (*stop)
            return 0;
        while (w->in.len < 2)
            if (more(w) <= 0)
                return -1;
        buf_consume(&w->in, 2);
    }
}

static int read_body(const struct gw_client *c, struct wire *w, const struct answer *a, gw_client_data f, void *ctx, struct err *e)
{
    bool stop = false;
    int bad = 0;
    if (a->chunked)
        bad = read_chunked(w, f, ctx, &stop);
    else if (a->length >= 0)
        bad = pass(w, (unsigned long long)a->length, f, ctx, &stop);
    else
        while (!stop && (w->in.len || more(w) > 0))
            bad = pass(w, w->in.len, f, ctx, &stop);
    return bad ? err_set(e, ERR_IO, "%s:%d: the answer ended early", c->host, c->port) : ERR_OK;
}

int gw_client_call(const struct gw_client *c, const char *path, const char *body, size_t n, int *status, gw_client_data on_data, void *ctx, struct err *e)
{
    struct wire w = {.fd = -1};
    struct answer a = {0};
    buf_init(&w.in, 64u << 20);
    signal(SIGPIPE, SIG_IGN); /* OpenSSL writes with write(2) */
    int rc = open_socket(c, &w.fd, e);
    if (!rc && c->tls)
        rc = open_tls(c, &w, e);
    if (!rc && !(rc = send_request(c, &w, path, body, n, e)) && !(rc = read_head(c, &w, &a, e)))
        rc = read_body(c, &w, &a, on_data, ctx, e);
    *status = a.status;
    wire_close(&w);
    return rc;
}

static bool collect(void *ctx, const char *p, size_t n) { return buf_add(ctx, p, n); }

int gw_client_get(const struct gw_client *c, const char *path, const char *body, size_t n, int *status, struct buf *b, struct err *e)
{
    return gw_client_call(c, path, body, n, status, collect, b, e);
}
