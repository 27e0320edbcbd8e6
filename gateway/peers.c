/* Open addressing at half load with a random seed; a row that empties pulls its followers back, so there are no tombstones. */
#include "gateway/peers.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct row { struct gw_peer_key key; uint32_t n; };
struct gw_peers {
    pthread_mutex_t lock;
    struct row *rows;
    size_t mask;
    uint64_t seed;
    unsigned each_max, used;
};

void gw_peer_key_of(const struct sockaddr *from, struct gw_peer_key *k)
{
    memset(k, 0, sizeof *k);
    if (from->sa_family == AF_INET) {
        k->b[10] = k->b[11] = 0xFF;
        memcpy(k->b + 12, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
        memcpy(k->b, a, IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_LOOPBACK(a) ? 16 : 8);
    }
}

int gw_peers_open(gw_peers **out, unsigned connections_max, unsigned each_max, struct err *e)
{
    size_t n = 64;
    *out = NULL;
    while (n < 2 * (size_t)connections_max)
        n *= 2;
    gw_peers *p = calloc(1, sizeof *p);
    if (!p || !(p->rows = calloc(n, sizeof *p->rows)) || !hash_random(&p->seed, sizeof p->seed)) {
        if (p)
            free(p->rows);
        free(p);
        return err_set(e, ERR_NOMEM, "table of %zu addresses", n);
    }
    pthread_mutex_init(&p->lock, NULL);
    p->mask = n - 1;
    p->each_max = each_max;
    *out = p;
    return ERR_OK;
}

void gw_peers_close(gw_peers *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    free(p->rows);
    free(p);
}

static size_t home(const gw_peers *p, const struct gw_peer_key *k) { return hash_bytes(k, sizeof *k, p->seed) & p->mask; }

static size_t find(const gw_peers *p, const struct gw_peer_key *k) /* its row, or the free one where it belongs */
{
    size_t i = home(p, k);
    while (p->rows[i].n && memcmp(&p->rows[i].key, k, sizeof *k))
        i = (i + 1) & p->mask;
    return i;
}

bool gw_peers_enter(gw_peers *p, const struct gw_peer_key *k)
{
    bool ok = false;
    pthread_mutex_lock(&p->lock);
    struct row *r = &p->rows[find(p, k)];
    if (r->n ? r->n < p->each_max : p->used < p->mask / 2 + 1) {
        if (!r->n++) {
            r->key = *k;
            p->used++;
        }
        ok = true;
    }
    pthread_mutex_unlock(&p->lock);
    return ok;
}

static void close_gap(gw_peers *p, size_t gap)
{
    for (size_t i = (gap + 1) & p->mask; p->rows[i].n; i = (i + 1) & p->mask) {
        size_t h = home(p, &p->rows[i].key);
        if (((i - h) & p->mask) < ((i - gap) & p->mask)) /* its home lies behind the gap: it may stay */
            continue;
        p->rows[gap] = p->rows[i];
        p->rows[i].n = 0;
        gap = i;
    }
}

void gw_peers_leave(gw_peers *p, const struct gw_peer_key *k)
{
    pthread_mutex_lock(&p->lock);
    size_t i = find(p, k);
    if (p->rows[i].n && !--p->rows[i].n) {
        p->used--;
        close_gap(p, i);
    }
    pthread_mutex_unlock(&p->lock);
}

unsigned gw_peers_addresses(gw_peers *p)
{
    pthread_mutex_lock(&p->lock);
    unsigned n = p->used;
    pthread_mutex_unlock(&p->lock);
    return n;
}
