/* The modes: who connects, what is waited for, what is reported. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "bench/load.h"

enum { THREADS_MAX = 16, WARM_MS = 1000, SETTLE_MS = 1500 };
struct crew { struct load *l; struct thread *t[THREADS_MAX]; unsigned n; };
struct both { struct usage gateway, engine; uint64_t at_ns; };

static struct both measure(const struct load *l)
{
    return (struct both){usage_of(l->o.gateway_pid), usage_of(l->o.engine_pid), clock_now_ns()};
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

static struct thread *crew_add(struct crew *k, uint32_t n)
{
    struct thread *t = calloc(1, sizeof *t);
    if (!t || k->n == THREADS_MAX || !(t->conns = calloc(n ? n : 1, sizeof *t->conns)) || (t->ep = epoll_create1(EPOLL_CLOEXEC)) < 0) {
        fprintf(stderr, "load: no room for %u connections\n", n);
        exit(3);
    }
    t->l = k->l;
    t->number = k->n;
    t->n = n;
    t->rng = 0x5eed + k->n * 77777u;
    t->mean_ns = NS_PER_MS;
    for (uint32_t i = 0; i < n; i++) {
        t->conns[i].fd = -1;
        t->conns[i].at = i;
    }
    k->t[k->n++] = t;
    return t;
}

static void crew_same(struct crew *k, enum role role)
{
    const struct options *o = &k->l->o;
    for (int64_t i = 0; i < o->threads; i++) {
        struct thread *t = crew_add(k, (uint32_t)(o->connections / o->threads + (i < o->connections % o->threads)));
        for (uint32_t c = 0; c < t->n; c++)
            t->conns[c].role = role;
    }
}

static void crew_start(struct crew *k)
{
    for (unsigned i = 0; i < k->n; i++)
        if (pthread_create(&k->t[i]->id, NULL, thread_main, k->t[i])) {
            fprintf(stderr, "load: no thread\n");
            exit(3);
        }
}

static void crew_stop(struct crew *k)
{
    atomic_store(&k->l->stop, true);
    for (unsigned i = 0; i < k->n; i++)
        pthread_join(k->t[i]->id, NULL);
}

static void figures_join(struct figures *s, const struct figures *x)
{
    hist_join(&s->delay, &x->delay);
    hist_join(&s->first, &x->first);
    hist_join(&s->latency, &x->latency);
    s->tokens += x->tokens;
    s->answers += x->answers;
    s->streams += x->streams;
    s->bytes += x->bytes;
    s->shakes += x->shakes;
    s->resumed += x->resumed;
    for (int c = 0; c < 6; c++)
        s->refused[c] += x->refused[c];
}

/* Of phases from, from + step, ... */
static struct figures *crew_sum_of(struct crew *k, int from, int step)
{
    struct figures *s = calloc(1, sizeof *s);
    if (!s)
        exit(3);
    for (unsigned i = 0; i < k->n; i++)
        for (int p = from; p < PHASES; p += step)
            figures_join(s, &k->t[i]->stat[p]);
    return s;
}

static struct figures *crew_sum(struct crew *k, int phase) { return crew_sum_of(k, phase, PHASES); }

static void crew_free(struct crew *k)
{
    for (unsigned i = 0; i < k->n; i++) {
        close(k->t[i]->ep);
        SSL_SESSION_free(k->t[i]->session);
        free(k->t[i]->conns);
        free(k->t[i]);
    }
}

static void window(struct load *l, int phase, uint64_t ms)
{
    atomic_store(&l->phase, phase);
    clock_sleep_ns(ms * NS_PER_MS);
    atomic_store(&l->phase, NO_PHASE);
}

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

static double seconds(const struct both *a, const struct both *b) { return (double)(b->at_ns - a->at_ns) * 1e-9; }

static void add_cpu(struct rows *r, const struct both *a, const struct both *b, double events, const char *gateway, const char *engine)
{
    if (a->gateway.known && b->gateway.known) {
        row_add(r, "gateway_cores", (double)(b->gateway.cpu_ns - a->gateway.cpu_ns) * 1e-9 / seconds(a, b), "of CPU");
        row_add(r, gateway, events > 0 ? (double)(b->gateway.cpu_ns - a->gateway.cpu_ns) * 1e-3 / events : 0, "us");
    }
    if (a->engine.known && b->engine.known)
        row_add(r, engine, events > 0 ? (double)(b->engine.cpu_ns - a->engine.cpu_ns) * 1e-3 / events : 0, "us");
}

static void add_hist(struct rows *r, const struct hist *h, const char *p50, const char *p99, const char *max)
{
    row_add(r, p50, hist_ms(h, 0.5), "ms");
    row_add(r, p99, hist_ms(h, 0.99), "ms");
    row_add(r, max, hist_ms(h, 1), "ms");
}

static void add_errors(struct rows *r, struct load *l)
{
    row_add(r, "failed_requests", (double)atomic_load(&l->failed), "");
    row_add(r, "lost_connections", (double)atomic_load(&l->lost), "");
    if (atomic_load(&l->why_set))
        row_text(r, "first_failure", l->why);
}

static void add_after(struct rows *r, const struct both *before, const struct both *after)
{
    if (!before->gateway.known || !after->gateway.known)
        return;
    row_add(r, "gateway_rss_before", (double)before->gateway.rss / 1024, "KB");
    row_add(r, "gateway_rss_after", (double)after->gateway.rss / 1024, "KB");
    row_add(r, "gateway_fds_before", (double)before->gateway.fds, "");
    row_add(r, "gateway_fds_after", (double)after->gateway.fds, "");
}

/* ---- modes ------------------------------------------------------------------------------------------------------------- */

static int wait_opened(struct load *l, uint64_t ms, struct err *e)
{
    uint64_t end = clock_now_ns() + ms * NS_PER_MS, want = (uint64_t)l->o.connections;
    while (atomic_load(&l->opened) + atomic_load(&l->lost) < want && clock_now_ns() < end)
        clock_sleep_ns(10 * NS_PER_MS);
    uint64_t have = atomic_load(&l->opened);
    return have ? ERR_OK : err_set(e, ERR_IO, "no connection: %s", atomic_load(&l->why_set) ? l->why : "no answer in time");
}

static int hold(struct load *l, struct crew *k, struct rows *r, struct err *e)
{
    const struct options *o = &l->o;
    struct both before = measure(l), begin, end, after;
    crew_same(k, ROLE_STREAM);
    atomic_store(&l->phase, 1); /* what comes while they open: first tokens */
    crew_start(k);
    int rc = wait_opened(l, (uint64_t)(o->connections * 1000 / o->open_rate) + 30000, e);
    double opening = (double)(clock_now_ns() - before.at_ns) * 1e-9;
    clock_sleep_ns(WARM_MS * NS_PER_MS);
    atomic_store(&l->phase, NO_PHASE);
    begin = measure(l);
    window(l, 0, (uint64_t)o->seconds * 1000);
    end = measure(l);
    uint64_t ended = atomic_load(&l->done), failed = atomic_load(&l->failed);
    crew_stop(k);
    clock_sleep_ns(SETTLE_MS * NS_PER_MS);
    after = measure(l);
    struct figures *s = crew_sum(k, 0), *s1 = crew_sum(k, 1);
    double n = (double)atomic_load(&l->opened);
    row_add(r, "connections", n, "held");
    row_add(r, "opening", opening, "s");
    row_add(r, "tokens", (double)s->tokens, "");
    row_add(r, "tokens_per_second", (double)s->tokens / seconds(&begin, &end), "");
    add_hist(r, &s->delay, "token_delay_p50", "token_delay_p99", "token_delay_max");
    add_hist(r, &s1->first, "first_token_p50", "first_token_p99", "first_token_max");
    row_add(r, "bytes_per_token", s->tokens ? (double)s->bytes / (double)s->tokens : 0, "bytes");
    row_add(r, "ended_early", (double)ended, "");
    atomic_store(&l->failed, failed);
    add_errors(r, l);
    if (begin.gateway.known)
        row_add(r, "gateway_connection", ((double)end.gateway.rss - (double)before.gateway.rss) / 1024 / n, "KB");
    if (begin.engine.known)
        row_add(r, "engine_connection", ((double)end.engine.rss - (double)before.engine.rss) / 1024 / n, "KB");
    add_cpu(r, &begin, &end, (double)s->tokens, "gateway_token", "engine_token");
    add_after(r, &before, &after);
    free(s);
    free(s1);
    return rc;
}

static int rate(struct load *l, struct crew *k, struct rows *r, struct err *e)
{
    crew_same(k, ROLE_ASK);
    crew_start(k);
    int rc = wait_opened(l, 10000, e);
    clock_sleep_ns(WARM_MS / 2 * NS_PER_MS);
    struct both a = measure(l), b;
    window(l, 0, (uint64_t)l->o.seconds * 1000);
    b = measure(l);
    crew_stop(k);
    struct figures *s = crew_sum(k, 0);
    row_add(r, "connections", (double)l->o.connections, "");
    row_add(r, "requests", (double)s->answers, "");
    row_add(r, "requests_per_second", (double)s->answers / seconds(&a, &b), "");
    add_hist(r, &s->latency, "latency_p50", "latency_p99", "latency_max");
    row_add(r, "bytes_per_request", s->answers ? (double)s->bytes / (double)s->answers : 0, "bytes");
    add_errors(r, l);
    add_cpu(r, &a, &b, (double)s->answers, "gateway_request", "engine_request");
    free(s);
    return rc;
}

static int connects(struct load *l, struct crew *k, struct rows *r, struct err *e)
{
    crew_same(k, ROLE_SHAKE);
    crew_start(k);
    clock_sleep_ns(WARM_MS / 2 * NS_PER_MS);
    struct both a = measure(l), b;
    window(l, 0, (uint64_t)l->o.seconds * 1000);
    b = measure(l);
    crew_stop(k);
    struct figures *s = crew_sum(k, 0);
    row_add(r, "connections", (double)s->shakes, "");
    row_add(r, "connections_per_second", (double)s->shakes / seconds(&a, &b), "");
    row_add(r, "resumed", (double)s->resumed, "");
    add_errors(r, l);
    add_cpu(r, &a, &b, (double)s->shakes, "gateway_handshake", "engine_handshake");
    int rc = s->shakes ? ERR_OK : err_set(e, ERR_IO, "no connection: %s", l->why);
    free(s);
    return rc;
}

static int soak(struct load *l, struct crew *k, struct rows *r, struct err *e)
{
    struct both before = measure(l), after;
    uint64_t want = (uint64_t)l->o.requests, seen = 0, moved = clock_now_ns(), last = 0;
    atomic_store(&l->left, l->o.requests);
    crew_same(k, ROLE_SOAK);
    atomic_store(&l->phase, 0);
    crew_start(k);
    while (seen < want && clock_now_ns() - moved < 20 * NS_PER_S) { /* until nothing moves any more */
        clock_sleep_ns(20 * NS_PER_MS);
        seen = atomic_load(&l->done) + atomic_load(&l->cut) + atomic_load(&l->failed);
        if (seen != last)
            moved = clock_now_ns();
        last = seen;
    }
    double took = (double)(clock_now_ns() - before.at_ns) * 1e-9;
    crew_stop(k);
    clock_sleep_ns(2 * SETTLE_MS * NS_PER_MS);
    after = measure(l);
    struct figures *s = crew_sum(k, 0);
    row_add(r, "requests", (double)want, "");
    row_add(r, "answered", (double)atomic_load(&l->done), "");
    row_add(r, "answered_streams", (double)s->streams, "");
    row_add(r, "cut", (double)atomic_load(&l->cut), "");
    row_add(r, "stuck", (double)(want - seen), "");
    row_add(r, "requests_per_second", (double)seen / took, "");
    add_errors(r, l);
    add_hist(r, &s->latency, "latency_p50", "latency_p99", "latency_max");
    add_after(r, &before, &after);
    free(s);
    return seen == want ? ERR_OK : err_set(e, ERR_TIMEOUT, "%llu requests have no end", (unsigned long long)(want - seen));
}

static void add_attackers(struct crew *k)
{
    const struct options *o = &k->l->o;
    const struct { int64_t n; enum role role; } parts[] = {{o->slow, ROLE_SLOW}, {o->deaf, ROLE_DEAF}, {o->idle, ROLE_IDLE}, {o->noise, ROLE_NOISE},
                                                          {o->half, ROLE_HALF}};
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        n += (uint32_t)parts[i].n;
    struct thread *t = crew_add(k, n);
    n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int64_t c = 0; c < parts[i].n; c++)
            t->conns[n++].role = parts[i].role;
}

static int by_value(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}

/* One round after the other says how the machine does just then; a slow moment of its own is in both windows of a round, or in few rounds. */
static double middle_ratio(struct crew *k, int rounds)
{
    double ratio[ROUNDS_MAX];
    for (int i = 0; i < rounds; i++) {
        struct figures *alone = crew_sum(k, 2 * i), *beside = crew_sum(k, 2 * i + 1);
        double a = hist_ms(&alone->latency, 0.99);
        ratio[i] = a > 0 ? hist_ms(&beside->latency, 0.99) / a : 0;
        free(alone);
        free(beside);
    }
    qsort(ratio, (size_t)rounds, sizeof *ratio, by_value);
    return rounds % 2 ? ratio[rounds / 2] : (ratio[rounds / 2 - 1] + ratio[rounds / 2]) / 2;
}

/* CPU of the gateway in windows of one kind. */
struct spent { uint64_t cpu_ns, ns; };
static void watched_window(struct load *l, int phase, uint64_t ms, struct spent *s)
{
    struct both a = measure(l), b;
    window(l, phase, ms);
    b = measure(l);
    s->cpu_ns += b.gateway.cpu_ns - a.gateway.cpu_ns;
    s->ns += b.at_ns - a.at_ns;
}

static void attack_rows(struct load *l, struct crew *k, struct rows *r, const struct spent *spent)
{
    static const struct { enum role role; const char *name; } roles[] = {
        {ROLE_SLOW, "kicked_slowloris"}, {ROLE_DEAF, "kicked_never_reading"}, {ROLE_IDLE, "kicked_idle"}, {ROLE_NOISE, "kicked_random_bytes"},
        {ROLE_HALF, "kicked_half_tls"}};
    const struct options *o = &l->o;
    struct figures *s0 = crew_sum_of(k, 0, 2), *s1 = crew_sum_of(k, 1, 2);
    row_add(r, "attackers", (double)(o->slow + o->deaf + o->idle + o->noise + o->half), "");
    row_add(r, "rounds", (double)o->rounds, "");
    row_add(r, "attacker_openings", (double)atomic_load(&l->attackers), "");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        row_add(r, roles[i].name, (double)atomic_load(&l->kicked[roles[i].role]), "");
    row_add(r, "requests_alone", (double)s0->answers, "");
    row_add(r, "requests_beside", (double)s1->answers, "");
    add_hist(r, &s0->latency, "alone_p50", "alone_p99", "alone_max");
    add_hist(r, &s1->latency, "beside_p50", "beside_p99", "beside_max");
    row_add(r, "p99_ratio", middle_ratio(k, (int)o->rounds), "times");
    row_add(r, "p99_ratio_of_all", hist_ms(&s0->latency, 0.99) > 0 ? hist_ms(&s1->latency, 0.99) / hist_ms(&s0->latency, 0.99) : 0, "times");
    add_errors(r, l);
    if (o->gateway_pid) {
        row_add(r, "gateway_cores_alone", (double)spent[0].cpu_ns / (double)spent[0].ns, "of CPU");
        row_add(r, "gateway_cores_beside", (double)spent[1].cpu_ns / (double)spent[1].ns, "of CPU");
    }
    free(s0);
    free(s1);
}

static int attack(struct load *l, struct crew *k, struct rows *r, struct err *e)
{
    const struct options *o = &l->o;
    uint64_t ms = (uint64_t)o->seconds * 1000 / (uint64_t)o->rounds, count = (uint64_t)(o->slow + o->deaf + o->idle + o->noise + o->half), rss = 0;
    struct spent spent[2] = {{0}};
    l->o.threads = 1;
    crew_same(k, ROLE_ASK); /* the client beside the attack has a thread of its own */
    add_attackers(k);
    crew_start(k);
    int rc = wait_opened(l, 10000, e);
    clock_sleep_ns(SETTLE_MS * NS_PER_MS);
    struct both before = measure(l);
    for (int i = 0; i < (int)o->rounds; i++) {
        watched_window(l, 2 * i, ms, &spent[0]);
        atomic_store(&l->attack, true);
        clock_sleep_ns(count * NS_PER_S / (uint64_t)o->open_rate + SETTLE_MS / 2 * NS_PER_MS);
        watched_window(l, 2 * i + 1, ms, &spent[1]);
        rss = measure(l).gateway.rss;
        atomic_store(&l->attack, false);
        clock_sleep_ns(SETTLE_MS / 2 * NS_PER_MS);
    }
    clock_sleep_ns(2 * SETTLE_MS * NS_PER_MS);
    struct both after = measure(l);
    crew_stop(k);
    attack_rows(l, k, r, spent);
    add_after(r, &before, &after);
    if (before.gateway.known)
        row_add(r, "gateway_rss_during", (double)rss / 1024, "KB");
    return rc;
}

int load_mode(struct load *l, struct rows *r, struct err *e)
{
    static int (*const modes[])(struct load *, struct crew *, struct rows *, struct err *) = {hold, rate, connects, soak, attack};
    struct crew k = {.l = l};
    atomic_store(&l->phase, NO_PHASE);
    int rc = modes[l->o.mode](l, &k, r, e);
    crew_free(&k);
    return rc;
}
