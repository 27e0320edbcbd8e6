/* The certificate of the state directory: made, kept, renewed, repaired; and it verifies the way clients verify. */
#include <check.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gateway/cert.h"

static char dir[128];

static void open_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/check_cert.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void close_dir(void)
{
    char cmd[200];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static X509 *load(const char *path)
{
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    X509 *c = PEM_read_X509(f, NULL, NULL, NULL);
    fclose(f);
    ck_assert_ptr_nonnull(c);
    return c;
}

/* As a strict client: the authority as the only root, all of RFC 5280, for a server, by name. */
static int verify(const struct gw_cert *p, const char *host, bool ip)
{
    X509 *c = load(p->cert), *ca = load(p->ca);
    X509_STORE *s = X509_STORE_new();
    X509_STORE_CTX *v = X509_STORE_CTX_new();
    X509_STORE_add_cert(s, ca);
    X509_STORE_CTX_init(v, s, c, NULL);
    X509_VERIFY_PARAM *param = X509_STORE_CTX_get0_param(v);
    X509_VERIFY_PARAM_set_flags(param, X509_V_FLAG_X509_STRICT | X509_V_FLAG_CHECK_SS_SIGNATURE);
    X509_STORE_CTX_set_default(v, "ssl_server");
    if (ip)
        X509_VERIFY_PARAM_set1_ip_asc(param, host);
    else
        X509_VERIFY_PARAM_set1_host(param, host, 0);
    int ok = X509_verify_cert(v), why = X509_STORE_CTX_get_error(v);
    X509_STORE_CTX_free(v);
    X509_STORE_free(s);
    X509_free(ca);
    X509_free(c);
    return ok == 1 ? 0 : why ? why : -1;
}

static void serial_of(const struct gw_cert *p, char out[64])
{
    X509 *c = load(p->cert);
    BIGNUM *n = ASN1_INTEGER_to_BN(X509_get0_serialNumber(c), NULL);
    char *hex = BN_bn2hex(n);
    snprintf(out, 64, "%s", hex);
    OPENSSL_free(hex);
    BN_free(n);
    X509_free(c);
}

START_TEST(made_and_kept)
{
    static const char *const hosts[] = {"llm.example.org", "192.0.2.7"};
    struct gw_cert p;
    struct err e;
    struct stat st;
    char a[64], b[64], sub[160];
    snprintf(sub, sizeof sub, "%s/x/y", dir);
    ck_assert_int_eq(gw_cert_ensure(sub, hosts, 2, &p, &e), ERR_OK);
    ck_assert(p.made);
    ck_assert_int_eq(stat(p.key, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(verify(&p, "localhost", false), 0);
    ck_assert_int_eq(verify(&p, "127.0.0.1", true), 0);
    ck_assert_int_eq(verify(&p, "::1", true), 0);
    ck_assert_int_eq(verify(&p, "llm.example.org", false), 0);
    ck_assert_int_eq(verify(&p, "192.0.2.7", true), 0);
    ck_assert_int_ne(verify(&p, "example.com", false), 0);
    serial_of(&p, a);
    ck_assert_int_eq(gw_cert_ensure(sub, hosts, 1, &p, &e), ERR_OK);
    ck_assert(!p.made);
    serial_of(&p, b);
    ck_assert_str_eq(a, b);
}
END_TEST

START_TEST(days)
{
    struct gw_cert p;
    struct err e;
    int d, s;
    ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
    X509 *c = load(p.cert);
    ck_assert_int_eq(ASN1_TIME_diff(&d, &s, X509_get0_notBefore(c), X509_get0_notAfter(c)), 1);
    ck_assert_int_le(d, 824);
    ck_assert_int_gt(d, 800);
    X509_free(c);
}
END_TEST

static void spoil(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* Whatever is wrong with the set, the next start makes a whole one that verifies. */
START_TEST(repaired)
{
    struct gw_cert p, q;
    struct err e;
    char other[160];
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
        snprintf(other, sizeof other, "%s/other%d", dir, i);
        ck_assert_int_eq(gw_cert_ensure(other, NULL, 0, &q, &e), ERR_OK);
        switch (i) {
        case 0: unlink(p.key); break;
        case 1: unlink(p.cert); break;
        case 2: unlink(p.ca); break;
        case 3: spoil(p.cert, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"); break;
        case 4: ck_assert_int_eq(rename(q.key, p.key), 0); break; /* a key of another certificate */
        default: ck_assert_int_eq(rename(q.ca, p.ca), 0);         /* another authority */
        }
        ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
        ck_assert_msg(p.made, "case %d was not noticed", i);
        ck_assert_int_eq(verify(&p, "localhost", false), 0);
    }
}
END_TEST

/* Re-signed by its own (test) authority with an end in 10 days: too near. */
START_TEST(renewed)
{
    struct gw_cert p;
    struct err e;
    ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *c = load(p.cert);
    X509_gmtime_adj(X509_getm_notAfter(c), 10 * 86400);
    X509_set_pubkey(c, k);
    X509_set_issuer_name(c, X509_get_subject_name(c));
    X509_sign(c, k, EVP_sha256());
    FILE *f = fopen(p.cert, "w"), *g = fopen(p.ca, "w"), *h = fopen(p.key, "w");
    PEM_write_X509(f, c);
    PEM_write_X509(g, c);
    PEM_write_PrivateKey(h, k, NULL, NULL, 0, NULL, NULL);
    fclose(f);
    fclose(g);
    fclose(h);
    X509_free(c);
    EVP_PKEY_free(k);
    ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
    ck_assert(p.made);
    ck_assert_int_eq(verify(&p, "localhost", false), 0);
}
END_TEST

START_TEST(new_host)
{
    static const char *const hosts[] = {"new.example.org"};
    struct gw_cert p;
    struct err e;
    ck_assert_int_eq(gw_cert_ensure(dir, NULL, 0, &p, &e), ERR_OK);
    ck_assert_int_eq(gw_cert_ensure(dir, hosts, 1, &p, &e), ERR_OK);
    ck_assert(p.made);
    ck_assert_int_eq(verify(&p, "new.example.org", false), 0);
}
END_TEST

START_TEST(bad_input)
{
    static const char *const hosts[] = {"a,DNS:evil"};
    struct gw_cert p;
    struct err e;
    char file[160];
    ck_assert_int_eq(gw_cert_ensure(dir, hosts, 1, &p, &e), ERR_INVALID);
    snprintf(file, sizeof file, "%s/file", dir);
    spoil(file, "x");
    strcat(file, "/sub");
    ck_assert_int_eq(gw_cert_ensure(file, NULL, 0, &p, &e), ERR_IO);
    ck_assert_ptr_nonnull(strstr(e.msg, "file"));
    char *longer = calloc(1, 3000);
    memset(longer, 'a', 2999);
    ck_assert_int_eq(gw_cert_ensure(longer, NULL, 0, &p, &e), ERR_LIMIT);
    free(longer);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cert");
    TCase *c = tcase_create("core"), *x = tcase_create("errors");
    tcase_add_checked_fixture(c, open_dir, close_dir);
    tcase_add_checked_fixture(x, open_dir, close_dir);
    tcase_add_test(c, made_and_kept);
    tcase_add_test(c, days);
    tcase_add_test(c, new_host);
    tcase_add_test(c, renewed);
    tcase_add_test(x, repaired);
    tcase_add_test(x, bad_input);
    suite_add_tcase(s, c);
    suite_add_tcase(s, x);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
