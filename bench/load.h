/* bench/load.h - the load tool's parts: options and what is measured (load.c), figures (load_stat.c), one client connection
 * (load_conn.c), threads that drive many of them (load_run.c), the sequence of each mode (load_modes.c).
 *
 * Threads:   a conn belongs to the thread that opened it. The main thread sets the phase and sleeps; a figure is counted in the
 *            stat of the phase in which it is seen, and read by the main thread after the join. */
#ifndef SLUICE_BENCH_LOAD_H
#define SLUICE_BENCH_LOAD_H
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"

/* ---- figures (load_stat.c) -------------------------------------------------------------------------------------- */
enum { HIST_BUCKETS = 64 * 32 };
struct hist { uint64_t n, max, at[HIST_BUCKETS]; }; /* ns; each power of two in 32 parts: an error of 3 % */
void hist_add(struct hist *h, uint64_t ns);
void hist_join(struct hist *h, const struct hist *from);
double hist_ms(const struct hist *h, double quantile);

struct usage { uint64_t cpu_ns, rss, fds; bool known; };
struct usage usage_of(int64_t pid); /* of a process, from /proc; pid 0: unknown */

struct rows { struct { const char *name, *unit; double v; char text[64]; } row[96]; size_t n; };
void row_add(struct rows *r, const char *name, double v, const char *unit);
void row_text(struct rows *r, const char *name, const char *text);
void rows_print(const struct rows *r, bool json);

/* ---- the whole -------------------------------------------------------------------------------------------------- */
enum mode { MODE_HOLD, MODE_RATE, MODE_CONNECT, MODE_SOAK, MODE_ATTACK };
enum { ROUNDS_MAX = 16, PHASES = 2 * ROUNDS_MAX, NO_PHASE = -1 }; /* of an attack: alone, beside, alone, ... */
enum role { ROLE_STREAM, ROLE_ASK, ROLE_SHAKE, ROLE_SOAK, ROLE_SLOW, ROLE_DEAF, ROLE_IDLE, ROLE_NOISE, ROLE_HALF, ROLES };

struct figures {
    struct hist delay, first, latency;          /* token behind its time; request -> first text; request -> whole answer */
    uint64_t tokens, answers, streams, bytes;   /* answers: whole ones of either kind */
    uint64_t shakes, resumed;
    uint64_t refused[6];                        /* answers by status class, 2xx aside */
};
struct options {
    int mode;
    const char *url, *key, *model;
    int64_t connections, threads, requests, tokens, open_rate, seconds, gateway_pid, engine_pid, sources, cut_percent, pace, rounds;
    int64_t slow, deaf, idle, noise, half;
    bool resume, json;
};
struct load {
    struct options o;
    struct sockaddr_in6 to6; struct sockaddr_in to4; bool six, tls;
    SSL_CTX *tls_ctx;
    struct buf stream, ask, ping;               /* whole requests */
    uint8_t hello[600]; size_t n_hello;         /* a ClientHello, for those who send half of one */
    atomic_int phase;
    atomic_bool stop, attack;                   /* attack: attackers come and stay; when it ends they leave, and come anew with the next one */
    atomic_llong left;                          /* soak: requests not yet begun */
    atomic_ullong opened, failed, lost, cut, done, attackers, kicked[ROLES];
    char why[128]; atomic_bool why_set;         /* the first failure, in words */
};

/* ---- one connection (load_conn.c) ------------------------------------------------------------------------------- */
enum state { ST_CLOSED, ST_CONNECT, ST_SHAKE, ST_OPEN /* nothing under way */, ST_SEND, ST_READ };
enum body_state { BODY_HEAD, BODY_PLAIN, BODY_CHUNK_SIZE, BODY_CHUNK, BODY_CHUNK_END, BODY_TRAILER };
struct thread;
struct conn {
    int fd;
    SSL *ssl;
    enum role role;
    enum state state;
    bool writing, stream, told;                 /* told: its first text came */
    enum body_state body;
    int status;
    bool chunked, saw_done, keep;
    uint64_t left;                              /* of the body or chunk */
    struct buf rest, line;                      /* part of a head or chunk line; part of an SSE line */
    const char *out; size_t out_n, out_at;
    uint64_t opened_ns, asked_ns, cut_ns, again_ns; /* cut: when to vanish; again: when to do the next thing */
    uint32_t at;                                /* number among its thread's */
};
struct thread {
    struct load *l;
    unsigned number;
    pthread_t id;
    int ep;
    struct conn *conns; uint32_t n, n_begun;
    SSL_SESSION *session;
    struct figures stat[PHASES];
    uint64_t start_ns, rng, mean_ns;            /* mean: of an answer, for the soak's cuts */
    char block[32 << 10];
};
void conn_open(struct thread *t, struct conn *c);
void conn_ask(struct thread *t, struct conn *c, const struct buf *request); /* one of the three */
void conn_send(struct thread *t, struct conn *c, const char *p, size_t n); /* raw bytes, through TLS if it is on */
void conn_close(struct thread *t, struct conn *c, bool abrupt);
void conn_event(struct thread *t, struct conn *c, uint32_t events);
struct figures *thread_stat(struct thread *t);     /* NULL: not measuring now */
uint64_t thread_random(struct thread *t);

/* What load_run.c does when something happened to a connection. */
void run_opened(struct thread *t, struct conn *c);
void run_answered(struct thread *t, struct conn *c, bool good);
void run_lost(struct thread *t, struct conn *c, const char *why);

/* ---- threads (load_run.c), modes (load_modes.c) ----------------------------------------------------------------- */
void *thread_main(void *thread);
int load_mode(struct load *l, struct rows *r, struct err *e);
#endif
