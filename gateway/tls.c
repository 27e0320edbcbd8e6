/* OpenSSL as the gateway uses it: TLS 1.2 and 1.3, forward secrecy and AEAD only, ALPN http/1.1, stateless tickets. A context
 * per loop, with ticket keys in common, so that a session resumes on whichever loop the next connection lands. */
#include <errno.h>
#include <openssl/err.h>
#include <string.h>

#include "gateway/server_internal.h"

static int pick_alpn(SSL *s, const unsigned char **out, unsigned char *out_len, const unsigned char *in, unsigned in_len, void *arg)
{
    (void)s;
    (void)arg;
    for (unsigned i = 0; i < in_len; i += in[i] + 1u)
        if (in[i] == 8 && in_len - i > 8 && !memcmp(in + i + 1, "http/1.1", 8)) {
            *out = in + i + 1;
            *out_len = 8;
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_ALERT_FATAL; /* it would speak another protocol at us */
}

static int tls_fail(struct err *e, const char *what, const char *file)
{
    char why[200] = "no reason given";
    unsigned long code = ERR_peek_last_error();
    if (code)
        ERR_error_string_n(code, why, sizeof why);
    ERR_clear_error();
    return err_set(e, ERR_IO, "TLS: %s%s%s: %s", what, file ? " " : "", file ? file : "", why);
}

static void set_modes(SSL_CTX *c)
{
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
                               SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(c, 1); /* one read(2) a record instead of two */
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c, 1);
    SSL_CTX_set_alpn_select_cb(c, pick_alpn, NULL);
}

int tls_ctx_new(SSL_CTX **out, const char *cert_file, const char *key_file, struct gw_tickets *tickets, struct err *e)
{
    int rc = ERR_OK;
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());

    *out = NULL;
    if (!c || !SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) || !SSL_CTX_set_cipher_list(c, "ECDHE+AESGCM:ECDHE+CHACHA20") ||
        !SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") ||
        !SSL_CTX_set1_groups_list(c, "X25519:P-256:P-384") || !SSL_CTX_set_session_id_context(c, (const unsigned char *)"sluice", 6)) {
        rc = tls_fail(e, "context", NULL);
        goto out;
    }
    set_modes(c);
    if (!gw_tickets_attach(tickets, c))
        rc = tls_fail(e, "ticket keys", NULL);
    else if (SSL_CTX_use_certificate_chain_file(c, cert_file) != 1)
        rc = tls_fail(e, "certificate", cert_file);
    else if (SSL_CTX_use_PrivateKey_file(c, key_file, SSL_FILETYPE_PEM) != 1)
        rc = tls_fail(e, "key", key_file);
    else if (SSL_CTX_check_private_key(c) != 1)
        rc = tls_fail(e, "the key does not belong to the certificate:", key_file);
    if (rc)
        goto out;
    *out = c;
    c = NULL;
out:
    SSL_CTX_free(c);
    return rc;
}

static int result(SSL *s, int rc)
{
    switch (SSL_get_error(s, rc)) {
    case SSL_ERROR_WANT_READ:
        return IO_READ;
    case SSL_ERROR_WANT_WRITE:
        return IO_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return IO_EOF;
    case SSL_ERROR_SSL:
        return ERR_GET_REASON(ERR_peek_error()) == SSL_R_HTTP_REQUEST ? IO_HTTP : IO_ERROR;
    default:
        return IO_ERROR;
    }
}

int tls_accept(SSL *s)
{
    ERR_clear_error(); /* an old entry would be read as the cause of this call's result */
    int rc = SSL_accept(s);
    return rc == 1 ? 1 : result(s, rc);
}

int tls_read(SSL *s, void *p, size_t n)
{
    ERR_clear_error();
    int rc = SSL_read(s, p, (int)n);
    return rc > 0 ? rc : result(s, rc);
}

int tls_write(SSL *s, const void *p, size_t n)
{
    ERR_clear_error();
    int rc = SSL_write(s, p, n < 16384 ? (int)n : 16384);
    return rc > 0 ? rc : result(s, rc);
}

void tls_bye(SSL *s)
{
    ERR_clear_error();
    SSL_shutdown(s);
    ERR_clear_error();
}

/* OpenSSL takes 17 KB for each record it reads or writes and gives them back after it (SSL_MODE_RELEASE_BUFFERS), or keeps them for as
 * long as the connection lives. Neither is cheap: a busy connection pays for them, or ten thousand silent ones hold them. */
void tls_cool(struct gw_conn *c)
{
    if (!c->warm)
        return;
    c->loop->warm[c->warm - 1] = NULL;
    c->warm = 0;
    SSL_free_buffers(c->ssl);
}

void tls_warm(struct gw_conn *c)
{
    gw_loop *l = c->loop;
    if (c->warm)
        return;
    if (l->warm[l->warm_at])
        tls_cool(l->warm[l->warm_at]);
    l->warm[l->warm_at] = c;
    c->warm = (uint8_t)(l->warm_at + 1);
    l->warm_at = (l->warm_at + 1) % TLS_WARM;
}
