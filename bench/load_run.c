/* A thread's loop, and what each role does when its connection opens, is answered, or ends. */
#include <errno.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bench/load.h"

enum { EVENTS = 256, OPENING_MAX = 32 /* begun in one turn */, AGAIN_MS = 1000, SLOW_MS = 500, NOISE_MS = 100, NOISE_BYTES = 2048 };
static const char slow_head[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";

static bool attacks(enum role r) { return r >= ROLE_SLOW; }

struct figures *thread_stat(struct thread *t)
{
    int p = atomic_load_explicit(&t->l->phase, memory_order_relaxed);
    return p == NO_PHASE ? NULL : &t->stat[p];
}

uint64_t thread_random(struct thread *t) /* splitmix64 */
{
    uint64_t z = t->rng += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void blame(struct load *l, const char *why)
{
    bool no = false;
    if (atomic_compare_exchange_strong(&l->why_set, &no, true))
        snprintf(l->why, sizeof l->why, "%s", why);
}

/* ---- soak --------------------------------------------------------------------------------------------------------- */

static void soak_next(struct thread *t, struct conn *c)
{
    struct load *l = t->l;
    uint64_t r = thread_random(t);
    if (atomic_fetch_sub(&l->left, 1) <= 0)
        return;
    c->cut_ns = 0;
    if (r % 100 < (uint64_t)l->o.cut_percent) /* anywhere from before the first byte is answered to about its end */
        c->cut_ns = clock_now_ns() + thread_random(t) % (t->mean_ns * 3 / 2 + 200 * NS_PER_US);
    conn_ask(t, c, r >> 32 & 1 ? &l->stream : &l->ask);
}

static void soak_cut(struct thread *t, struct conn *c)
{
    if (c->state == ST_SEND || c->state == ST_READ)
        atomic_fetch_add(&t->l->cut, 1);
    conn_close(t, c, true);
    c->again_ns = 1;
}

/* ---- what happens --------------------------------------------------------------------------------------------------- */

void run_opened(struct thread *t, struct conn *c)
{
    static const char noise[NOISE_BYTES];
    struct load *l = t->l;
    uint64_t now = clock_now_ns();
    if (attacks(c->role))
        atomic_fetch_add(&l->attackers, 1);
    else if (c->role != ROLE_SHAKE)
        atomic_fetch_add(&l->opened, 1);
    switch (c->role) {
    case ROLE_STREAM: case ROLE_DEAF: conn_ask(t, c, &l->stream); break;
    case ROLE_ASK:
        c->again_ns = l->o.pace ? now + thread_random(t) % ((uint64_t)l->o.pace * NS_PER_US) : 0;
        if (!l->o.pace)
            conn_ask(t, c, &l->ask);
        break;
    case ROLE_SHAKE:
        if (l->o.resume && l->tls && !t->session) {
            conn_ask(t, c, &l->ping); /* tickets come with the answer */
            break;
        }
        conn_close(t, c, false);
        conn_open(t, c);
        break;
    case ROLE_SOAK: soak_next(t, c); break;
    case ROLE_SLOW:
        c->again_ns = now + SLOW_MS * NS_PER_MS;
        conn_send(t, c, slow_head, sizeof slow_head - 1);
        break;
    case ROLE_NOISE:
        for (size_t i = 0; i < NOISE_BYTES; i += 8) {
            uint64_t r = thread_random(t);
            memcpy(t->block + i, &r, 8);
        }
        c->again_ns = now + NOISE_MS * NS_PER_MS;
        if (send(c->fd, t->block, sizeof noise, MSG_NOSIGNAL) < 0)
            run_lost(t, c, "the server closed");
        break;
    case ROLE_HALF: conn_send(t, c, (const char *)l->hello, l->n_hello / 2); break;
    default: break; /* ROLE_IDLE */
    }
}

void run_answered(struct thread *t, struct conn *c, bool good)
{
    struct load *l = t->l;
    char why[64];
    if (!good) {
        snprintf(why, sizeof why, c->status == 200 ? "a stream without [DONE]" : "status %d", c->status);
        blame(l, why);
        atomic_fetch_add(&l->failed, 1);
    } else if (!attacks(c->role)) {
        atomic_fetch_add(&l->done, 1);
    }
    c->cut_ns = 0;
    if (c->role == ROLE_STREAM || attacks(c->role))
        return;
    if (c->role == ROLE_SHAKE || !c->keep || (c->role == ROLE_SOAK && thread_random(t) % 8 == 0)) {
        conn_close(t, c, false);
        c->again_ns = 1;
    } else if (c->role == ROLE_SOAK) {
        soak_next(t, c);
    } else if (l->o.pace) {
        uint64_t next = c->asked_ns + (uint64_t)l->o.pace * NS_PER_US;
        c->again_ns = next;
    } else if (good) {
        conn_ask(t, c, &l->ask);
    } else {
        c->again_ns = clock_now_ns() + 10 * NS_PER_MS; /* a server that refuses is not hammered */
    }
}

void run_lost(struct thread *t, struct conn *c, const char *why)
{
    struct load *l = t->l;
    bool asked = c->state == ST_SEND || c->state == ST_READ, never = c->state == ST_CONNECT || c->state == ST_SHAKE || c->state == ST_CLOSED;
    ERR_clear_error();
    conn_close(t, c, true);
    if (attacks(c->role)) {
        atomic_fetch_add(&l->kicked[c->role], 1);
        c->again_ns = clock_now_ns() + AGAIN_MS * NS_PER_MS;
        return;
    }
    if (asked || never) {
        blame(l, why);
        atomic_fetch_add(asked ? &l->failed : &l->lost, 1);
    }
    if (c->role != ROLE_STREAM)
        c->again_ns = clock_now_ns() + (asked || never ? 100 * NS_PER_MS : 0);
}

/* ---- the loop --------------------------------------------------------------------------------------------------------- */

static void look(struct thread *t, struct conn *c, uint64_t now)
{
    static const char more[] = "x";
    struct load *l = t->l;
    if (c->cut_ns && now >= c->cut_ns && c->state != ST_CLOSED)
        soak_cut(t, c);
    if (!c->again_ns || now < c->again_ns)
        return;
    c->again_ns = 0;
    if (c->state == ST_CLOSED) {
        if (c->role != ROLE_SOAK || atomic_load(&l->left) > 0)
            conn_open(t, c);
    } else if (c->role == ROLE_NOISE) {
        conn_close(t, c, true);
        c->again_ns = now + NOISE_MS * NS_PER_MS;
    } else if (c->role == ROLE_SLOW) {
        c->again_ns = now + SLOW_MS * NS_PER_MS;
        conn_send(t, c, more, 1);
    } else if (c->role == ROLE_ASK && c->state == ST_OPEN) {
        conn_ask(t, c, &l->ask);
    }
}

/* Opens what is due by the rate, so that the handshakes do not all come at once. */
static void begin(struct thread *t, uint64_t now)
{
    const struct options *o = &t->l->o;
    uint64_t rate = (uint64_t)o->open_rate, may = (now - t->start_ns) * rate / NS_PER_S / (uint64_t)o->threads + 1;
    for (int i = 0; i < OPENING_MAX && t->n_begun < t->n && t->n_begun < may; i++)
        conn_open(t, &t->conns[t->n_begun++]);
}

/* Between two attacks. True: nobody is here. */
static bool withdrawn(struct thread *t, uint64_t now)
{
    if (!t->n || !attacks(t->conns[0].role) || atomic_load(&t->l->attack))
        return false;
    for (; t->n_begun; t->n_begun--) {
        conn_close(t, &t->conns[t->n_begun - 1], true);
        t->conns[t->n_begun - 1].again_ns = 0;
    }
    t->start_ns = now;
    return true;
}

static int wait_of(const struct thread *t)
{
    if (t->n_begun < t->n || t->n <= 256)
        return 1;
    return t->l->o.mode == MODE_HOLD ? 50 : 5;
}

/* It stands for ten thousand machines, whose waking up costs the server nothing; here each of its own wake-ups would be paid by whoever
 * sends. So it lets a millisecond's events come together. What they wait is in the delays that it reports. */
static void collect(const struct thread *t, int n_events)
{
    if (t->l->o.mode == MODE_HOLD && t->n > 256 && t->n_begun == t->n && n_events && n_events < EVENTS)
        clock_sleep_ns(NS_PER_MS);
}

void *thread_main(void *ctx)
{
    struct thread *t = ctx;
    struct epoll_event ev[EVENTS];
    uint64_t looked = 0;
    t->start_ns = clock_now_ns();
    while (!atomic_load_explicit(&t->l->stop, memory_order_relaxed)) {
        int n = epoll_wait(t->ep, ev, EVENTS, wait_of(t));
        for (int i = 0; i < n; i++)
            conn_event(t, ev[i].data.ptr, ev[i].events);
        collect(t, n);
        uint64_t now = clock_now_ns();
        if (withdrawn(t, now))
            continue;
        if (t->n_begun < t->n)
            begin(t, now);
        if (t->l->o.mode == MODE_HOLD || (t->n > 256 && now - looked < 5 * NS_PER_MS))
            continue;
        looked = now;
        for (uint32_t i = 0; i < t->n_begun; i++)
            look(t, &t->conns[i], now);
    }
    for (uint32_t i = 0; i < t->n; i++)
        conn_close(t, &t->conns[i], true);
    return NULL;
}
