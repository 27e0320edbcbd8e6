/* SHA-256 from libcrypto's SHA256_*: EVP allocates with every digest begun, costs more than a short message does, and ids of KV pages are
 * made where nothing may allocate. The table hash multiplies 64x64 -> 128 and folds, 16 bytes a round. */
#include "base/hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct hash_ctx { SHA256_CTX md; };

/* A digest that could not be computed must never look like one: libcrypto refusing SHA-256 is not survivable. */
static void must(int ok)
{
    if (ok != 1)
        abort();
}

void hash_sha256(const void *p, size_t n, uint8_t out[HASH_BYTES])
{
    SHA256_CTX md;
    must(SHA256_Init(&md));
    must(SHA256_Update(&md, n ? p : "", n));
    must(SHA256_Final(out, &md));
}

hash_ctx *hash_new(void)
{
    hash_ctx *h = calloc(1, sizeof *h);
    if (h)
        must(SHA256_Init(&h->md));
    return h;
}

void hash_raw(hash_ctx *h, const void *p, size_t n)
{
    if (n)
        must(SHA256_Update(&h->md, p, n));
}

void hash_field(hash_ctx *h, const char *tag, const void *p, size_t n)
{
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n >> (8 * i));
    hash_raw(h, tag, strlen(tag) + 1);
    hash_raw(h, len, sizeof len);
    hash_raw(h, p, n);
}

void hash_again(hash_ctx *h, uint8_t out[HASH_BYTES])
{
    must(SHA256_Final(out, &h->md));
    must(SHA256_Init(&h->md));
}

void hash_end(hash_ctx *h, uint8_t out[HASH_BYTES])
{
    if (h)
        must(SHA256_Final(out, &h->md));
    free(h);
}

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

static uint64_t le64(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

uint64_t hash_bytes(const void *bytes, size_t n, uint64_t seed)
{
    const uint64_t k0 = 0xA24BAED4963EE407ull, k1 = 0x9FB21C651E98DF25ull, k2 = 0xD6E8FEB86659FD93ull;
    const uint8_t *p = bytes;
    uint64_t h = fold(seed ^ k0, k1);
    size_t left = n;
    for (; left > 16; left -= 16, p += 16)
        h = fold(le64(p, 8) ^ k1 ^ h, le64(p + 8, 8) ^ seed ^ k2);
    uint64_t a = 0, b = 0;
    if (left > 8) {
        a = le64(p, 8);
        b = le64(p + 8, left - 8);
    } else if (left) {
        a = le64(p, left);
    }
    h = fold(a ^ k1 ^ h, b ^ seed ^ k2);
    return fold(h ^ k0, (uint64_t)n ^ k1);
}

void hash_hex(const uint8_t *p, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = 0;
}

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hash_unhex(const char *hex, size_t n_bytes, uint8_t *out)
{
    if (strlen(hex) != 2 * n_bytes)
        return false;
    for (size_t i = 0; i < n_bytes; i++) {
        int hi = nibble(hex[2 * i]), lo = nibble(hex[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

bool hash_equal(const void *a, const void *b, size_t n) { return n == 0 || CRYPTO_memcmp(a, b, n) == 0; }

static bool from_kernel(void *p, size_t n)
{
    uint8_t *o = p;
    while (n) {
        ssize_t got = getrandom(o, n, 0);
        if (got <= 0)
            return false;
        o += got;
        n -= (size_t)got;
    }
    return true;
}

/* Seeds and ids take a few bytes many times a second: each thread draws them from a block, which a forked child throws away. What is
 * long enough to be a key comes from the kernel. */
enum { POOL_BYTES = 256, POOL_TAKE_MAX = 16 };
static _Thread_local struct { uint8_t b[POOL_BYTES]; size_t left; } pool;
static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static void pool_drop(void) { pool.left = 0; }
static void pool_guard(void) { pthread_atfork(NULL, NULL, pool_drop); }

bool hash_random(void *p, size_t n)
{
    if (n > POOL_TAKE_MAX || !n)
        return from_kernel(p, n);
    pthread_once(&pool_once, pool_guard);
    if (pool.left < n) {
        pool.left = 0;
        if (!from_kernel(pool.b, sizeof pool.b))
            return false;
        pool.left = sizeof pool.b;
    }
    pool.left -= n;
    memcpy(p, pool.b + pool.left, n);
    memset(pool.b + pool.left, 0, n);
    return true;
}
