#include "gateway/cert.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"

#define DAYS 825
#define RENEW_DAYS 30
static const char *const always[] = {"localhost", "127.0.0.1", "::1"};
#define N_ALWAYS (sizeof always / sizeof *always)

static int ssl_fail(struct err *e, const char *what)
{
    char why[200] = "no reason given";
    unsigned long code = ERR_peek_last_error();
    if (code)
        ERR_error_string_n(code, why, sizeof why);
    ERR_clear_error();
    return err_set(e, ERR_IO, "certificate: %s: %s", what, why);
}

static bool is_ip(const char *s)
{
    unsigned char b[16];
    return inet_pton(AF_INET, s, b) == 1 || inet_pton(AF_INET6, s, b) == 1;
}

static bool host_ok(const char *s)
{
    size_t n = strlen(s);
    if (is_ip(s))
        return true;
    return n > 0 && n < 254 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.*") == n;
}

/* ---- is what lies there still good? -------------------------------------------------------------------------- */
static X509 *load_cert(const char *path)
{
    FILE *f = fopen(path, "re");
    X509 *c = f ? PEM_read_X509(f, NULL, NULL, NULL) : NULL;
    if (f)
        fclose(f);
    return c;
}

static EVP_PKEY *load_key(const char *path)
{
    FILE *f = fopen(path, "re");
    EVP_PKEY *k = f ? PEM_read_PrivateKey(f, NULL, NULL, NULL) : NULL;
    if (f)
        fclose(f);
    return k;
}

static bool names(X509 *c, const char *host)
{
    if (is_ip(host))
        return X509_check_ip_asc(c, host, 0) == 1;
    return X509_check_host(c, host, 0, 0, NULL) == 1;
}

static bool covers(X509 *c, const char *const *hosts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!names(c, hosts[i]))
            return false;
    return true;
}

static bool good(const struct gw_cert *paths, const char *const *hosts, size_t n)
{
    X509 *c = load_cert(paths->cert), *ca = load_cert(paths->ca);
    EVP_PKEY *k = load_key(paths->key);
    time_t soon = time(NULL) + RENEW_DAYS * 86400;
    bool ok = c && ca && k && X509_check_private_key(c, k) == 1 && X509_verify(c, X509_get0_pubkey(ca)) == 1 &&
              X509_cmp_time(X509_get0_notAfter(c), &soon) > 0 && X509_cmp_time(X509_get0_notAfter(ca), &soon) > 0 && covers(c, always, N_ALWAYS) &&
              covers(c, hosts, n);
    EVP_PKEY_free(k);
    X509_free(ca);
    X509_free(c);
    ERR_clear_error();
    return ok;
}

/* ---- making -------------------------------------------------------------------------------------------------- */
static bool add_ext(X509 *c, X509V3_CTX *ctx, int nid, const char *value)
{
    X509_EXTENSION *x = X509V3_EXT_conf_nid(NULL, ctx, nid, value);
    bool ok = x && X509_add_ext(c, x, -1) == 1;
    X509_EXTENSION_free(x);
    return ok;
}

static X509 *new_cert(EVP_PKEY *key, const char *name, const X509 *issuer)
{
    unsigned char serial[16];
    X509 *c = X509_new();
    BIGNUM *n = NULL;
    if (!c || RAND_bytes(serial, sizeof serial) != 1)
        goto fail;
    serial[0] &= 0x7F;
    serial[0] |= 0x40; /* positive, 16 bytes */
    n = BN_bin2bn(serial, sizeof serial, NULL);
    X509_NAME *subject = X509_get_subject_name(c);
    if (!n || !BN_to_ASN1_INTEGER(n, X509_get_serialNumber(c)) || !X509_set_version(c, 2) || !X509_set_pubkey(c, key) ||
        !X509_gmtime_adj(X509_getm_notBefore(c), -3600) || !X509_gmtime_adj(X509_getm_notAfter(c), (long)DAYS * 86400 - 7200) ||
        !X509_NAME_add_entry_by_txt(subject, "O", MBSTRING_ASC, (const unsigned char *)"Sluice", -1, -1, 0) ||
        !X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0) ||
        !X509_set_issuer_name(c, issuer ? X509_get_subject_name(issuer) : subject))
        goto fail;
    BN_free(n);
    return c;
fail:
    BN_free(n);
    X509_free(c);
    return NULL;
}

static X509 *make_ca(EVP_PKEY *key)
{
    char name[64];
    uint32_t tag;
    if (RAND_bytes((unsigned char *)&tag, sizeof tag) != 1)
        return NULL;
    snprintf(name, sizeof name, "Sluice local authority %08x", tag); /* a name of its own: clients look issuers up by it */
    X509 *c = new_cert(key, name, NULL);
    X509V3_CTX ctx;
    X509V3_set_ctx(&ctx, c, c, NULL, NULL, 0);
    if (c && add_ext(c, &ctx, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") && add_ext(c, &ctx, NID_key_usage, "critical,keyCertSign,cRLSign") &&
        add_ext(c, &ctx, NID_subject_key_identifier, "hash") && add_ext(c, &ctx, NID_authority_key_identifier, "keyid:always") &&
        X509_sign(c, key, EVP_sha256()))
        return c;
    X509_free(c);
    return NULL;
}

static bool put_names(struct buf *b, const char *const *hosts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%s:%s", b->len ? "," : "", is_ip(hosts[i]) ? "IP" : "DNS", hosts[i]);
    return !b->failed;
}

static X509 *make_leaf(EVP_PKEY *key, X509 *ca, EVP_PKEY *ca_key, const char *const *hosts, size_t n)
{
    struct buf san;
    X509V3_CTX ctx;
    buf_init(&san, 65536);
    X509 *c = new_cert(key, "localhost", ca);
    X509V3_set_ctx(&ctx, ca, c, NULL, NULL, 0);
    bool ok = c && put_names(&san, always, N_ALWAYS) && put_names(&san, hosts, n) && add_ext(c, &ctx, NID_basic_constraints, "critical,CA:FALSE") &&
              add_ext(c, &ctx, NID_key_usage, "critical,digitalSignature") && add_ext(c, &ctx, NID_ext_key_usage, "serverAuth") &&
              add_ext(c, &ctx, NID_subject_alt_name, san.data) && add_ext(c, &ctx, NID_subject_key_identifier, "hash") &&
              add_ext(c, &ctx, NID_authority_key_identifier, "keyid:always") && X509_sign(c, ca_key, EVP_sha256());
    buf_free(&san);
    if (ok)
        return c;
    X509_free(c);
    return NULL;
}

/* ---- files --------------------------------------------------------------------------------------------------- */
static int write_pem(const char *path, mode_t mode, X509 *c, EVP_PKEY *k, struct err *e)
{
    char tmp[GW_CERT_PATH_MAX + 8];
    snprintf(tmp, sizeof tmp, "%s.new", path); /* the lock is held: nobody else writes it */
    unlink(tmp);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        int why = errno;
        if (fd >= 0)
            close(fd);
        return err_set(e, ERR_IO, "%s: %s", tmp, strerror(why));
    }
    bool ok = k ? PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL) : PEM_write_X509(f, c);
    ok = !fflush(f) && !fsync(fd) && ok;
    ok = !fclose(f) && ok;
    if (ok && !rename(tmp, path))
        return ERR_OK;
    int why = errno;
    unlink(tmp);
    return err_set(e, ERR_IO, "%s: %s", path, ok ? strerror(why) : "could not be written");
}

static int make(const struct gw_cert *paths, const char *const *hosts, size_t n, struct err *e)
{
    int rc = ERR_OK;
    EVP_PKEY *ca_key = EVP_EC_gen("P-256"), *key = EVP_EC_gen("P-256");
    X509 *ca = ca_key ? make_ca(ca_key) : NULL, *leaf = ca && key ? make_leaf(key, ca, ca_key, hosts, n) : NULL;
    if (!leaf)
        rc = ssl_fail(e, "could not be made");
    else if (!(rc = write_pem(paths->key, 0600, NULL, key, e)) && !(rc = write_pem(paths->ca, 0644, ca, NULL, e)))
        rc = write_pem(paths->cert, 0644, leaf, NULL, e); /* a crash between the three leaves a set that good() refuses */
    X509_free(leaf);
    X509_free(ca);
    EVP_PKEY_free(key);
    EVP_PKEY_free(ca_key);
    return rc;
}

static int make_dir(const char *dir, struct err *e)
{
    char path[GW_CERT_PATH_MAX];
    size_t n = strlen(dir);
    if (!n || n > sizeof path - 16)
        return err_set(e, ERR_LIMIT, "state directory: a path of %zu bytes", n);
    memcpy(path, dir, n + 1);
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            if (mkdir(path, 0700) && errno != EEXIST)
                return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
            *p = '/';
        }
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    return ERR_OK;
}

int gw_cert_ensure(const char *dir, const char *const *hosts, size_t n_hosts, struct gw_cert *out, struct err *e)
{
    char lock[GW_CERT_PATH_MAX];
    int rc = make_dir(dir, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < n_hosts; i++)
        if (!host_ok(hosts[i]))
            return err_set(e, ERR_INVALID, "certificate: expected a host name or an address, found \"%s\"", hosts[i]);
    out->made = false;
    snprintf(out->cert, sizeof out->cert, "%s/tls.crt", dir);
    snprintf(out->key, sizeof out->key, "%s/tls.key", dir);
    snprintf(out->ca, sizeof out->ca, "%s/ca.crt", dir);
    snprintf(lock, sizeof lock, "%s/tls.lock", dir);
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX)) {
        rc = err_set(e, ERR_IO, "%s: %s", lock, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (good(out, hosts, n_hosts)) {
        if (chmod(out->key, 0600))
            rc = err_set(e, ERR_IO, "%s: %s", out->key, strerror(errno));
    } else {
        rc = make(out, hosts, n_hosts, e);
        out->made = !rc;
    }
    close(fd);
    return rc;
}
