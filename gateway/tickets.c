#include "gateway/tickets.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

static bool rotate(struct gw_tickets *t) /* with the lock */
{
    struct gw_ticket_key fresh;
    if (!hash_random(&fresh, sizeof fresh))
        return false;
    memmove(t->key + 1, t->key, sizeof t->key - sizeof *t->key);
    t->key[0] = fresh;
    t->n += t->n < GW_TICKET_KEYS;
    t->born_ns = clock_now_ns();
    OPENSSL_cleanse(&fresh, sizeof fresh);
    return true;
}

bool gw_tickets_open(struct gw_tickets *t, uint64_t period_ns)
{
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    t->period_ns = period_ns;
    return rotate(t);
}

void gw_tickets_close(struct gw_tickets *t)
{
    OPENSSL_cleanse(t->key, sizeof t->key);
    pthread_mutex_destroy(&t->lock);
}

bool gw_tickets_rotate(struct gw_tickets *t)
{
    pthread_mutex_lock(&t->lock);
    bool ok = rotate(t);
    pthread_mutex_unlock(&t->lock);
    return ok;
}

static struct gw_ticket_key newest(struct gw_tickets *t)
{
    pthread_mutex_lock(&t->lock);
    if (clock_now_ns() - t->born_ns >= t->period_ns)
        rotate(t); /* without random bytes the old one serves on */
    struct gw_ticket_key k = t->key[0];
    pthread_mutex_unlock(&t->lock);
    return k;
}

/* Its place among the keys: 0 is the newest; -1: unknown, or too old. */
static int find(struct gw_tickets *t, const unsigned char name[16], struct gw_ticket_key *out)
{
    int at = -1;
    pthread_mutex_lock(&t->lock);
    uint64_t age = clock_now_ns() - t->born_ns; /* of the newest; an older one has as many periods more */
    for (unsigned i = 0; i < t->n && at < 0; i++)
        if (!memcmp(t->key[i].name, name, 16) && age / t->period_ns + i < GW_TICKET_KEYS) {
            *out = t->key[i];
            at = (int)i;
        }
    pthread_mutex_unlock(&t->lock);
    return at;
}

static bool set_mac(EVP_MAC_CTX *mac, const struct gw_ticket_key *k)
{
    char digest[] = "SHA256";
    unsigned char key[32];
    memcpy(key, k->mac, sizeof key);
    OSSL_PARAM params[] = {OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, key, sizeof key),
                           OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0), OSSL_PARAM_construct_end()};
    bool ok = EVP_MAC_CTX_set_params(mac, params) == 1;
    OPENSSL_cleanse(key, sizeof key);
    return ok;
}

/* OpenSSL's protocol: 1 go on, 2 go on and give the client a new ticket, 0 no such key, -1 fail the handshake. */
static int on_ticket(SSL *s, unsigned char name[16], unsigned char *iv, EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, int seal)
{
    struct gw_tickets *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(s));
    struct gw_ticket_key k;
    int at = 0, rc = -1;
    if (seal) {
        k = newest(t);
        memcpy(name, k.name, 16);
        if (RAND_bytes(iv, 16) == 1 && EVP_EncryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, k.aes, iv) == 1 && set_mac(mac, &k))
            rc = 1;
    } else if ((at = find(t, name, &k)) < 0) {
        return 0;
    } else if (set_mac(mac, &k) && EVP_DecryptInit_ex(cipher, EVP_aes_256_cbc(), NULL, k.aes, iv) == 1)
        rc = at || SSL_version(s) >= TLS1_3_VERSION ? 2 : 1; /* a ticket of 1.3 is used once */
    OPENSSL_cleanse(&k, sizeof k);
    return rc;
}

bool gw_tickets_attach(struct gw_tickets *t, SSL_CTX *c)
{
    return SSL_CTX_set_app_data(c, t) == 1 && SSL_CTX_set_tlsext_ticket_key_evp_cb(c, on_ticket) == 1;
}
