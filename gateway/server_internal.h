/* gateway/server_internal.h - what loop.c, conn*.c, exchange.c, tls.c and server.c share. Nobody else includes it.
 *
 * Why not bufferevents: a bufferevent per connection asks epoll twice per answer (write interest on, then off), copies through two
 * evbuffers, and holds both for as long as a connection idles. Here a socket is read into the loop's own scratch, parsed where it
 * lies, and answered with one write; a connection owns a buffer only while something is left over.
 *
 * Rules: 1. A connection is touched by its loop's thread alone.
 *        2. conn_lost closes the socket at once, and frees (and calls on_gone) from the loop's to-do list, never inside a call of the
 *           application: every gw_ function may find state CONN_DEAD and must take it.
 *        3. Strings of a request live in conn->http, which is reset only when its exchange has ended. */
#ifndef SLUICE_GATEWAY_SERVER_INTERNAL_H
#define SLUICE_GATEWAY_SERVER_INTERNAL_H
#include <event2/event.h>
#include <event2/event_struct.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "gateway/peers.h"
#include "gateway/server.h"
#include "gateway/tickets.h"

#define IN_BYTES 65536          /* a loop's input scratch */
#define TLS_WARM 48             /* connections of a loop that keep their record buffers, 34 KB each; the others get them for each record */
#define ANSWER_MAX (256u << 20) /* bytes of one whole answer */
#define ID_MAX GW_REQUEST_ID_MAX
#define PEER_MAX 56

/* ---- deadlines: one list per kind, each kind has one duration, so lists stay sorted by appending ------------ */
enum dl_kind { DL_HANDSHAKE, DL_HEADER, DL_BODY, DL_IDLE, DL_LINGER, DL_WATCH, DL_STALL, DL_BEAT, DL_N, DL_NONE = DL_N };
struct deadline { struct deadline *prev, *next; uint64_t at; }; /* next NULL: not armed */

enum conn_state {
    CONN_PROXY,     /* the proxy's header is awaited */
    CONN_HANDSHAKE, /* TLS is being set up */
    CONN_READ,      /* idle, or a request is coming in */
    CONN_RUN,       /* an exchange runs; input is only watched for the end, or kept for later */
    CONN_CLOSING,   /* the last answer is being flushed */
    CONN_LINGER,    /* our side is shut; input is discarded so that no reset destroys the answer on its way */
    CONN_DEAD       /* socket closed, to be freed from the to-do list */
};
enum { TODO_READ = 1, TODO_AHEAD = 2, TODO_QUEUED = 4 };

struct gw_conn {
    gw_loop *loop;
    struct gw_conn *prev, *next, *todo_next;
    SSL *ssl;                          /* NULL: plain */
    gw_exchange *x;                    /* from the head of a request to its end */
    struct buf out, ahead;             /* not yet taken by the kernel; read while an exchange ran */
    size_t out_off;
    uint64_t body_start, lingered, acked; /* acked: bytes the peer had acknowledged when `stall` was armed */
    struct gw_peer_key peer_key;
    struct deadline dl, stall, beat;   /* of the state; of a reader that takes nothing; of a silent stream */
    int fd;
    uint8_t state, todo, dl_kind, gone, warm; /* warm: 1 + its place in the loop's list; 0: none */
    bool writing, paused, parsing, linger, served, read_wants_write, in_handshake, in_peers, trusted, loopback, spared;
    void *owner;
    void (*release)(void *owner);
    struct event rd, wr;
    struct gw_http1 http;
    char peer[PEER_MAX];
};

enum x_phase { X_HEAD, X_BODY, X_RUN, X_STREAM };
struct gw_exchange {
    struct gw_conn *conn;
    struct gw_request req;
    struct gw_watch watch;
    struct buf body;
    size_t charged;                    /* of body, in the server's total */
    uint64_t start_ns, bytes;
    int status;
    uint64_t body_max;
    const char *heartbeat;
    const char *origin;                /* of the page that may read the answer; NULL: none */
    uint8_t phase;
    bool watched, gone, head_only, chunked, keep, want_room, close, cut;
    char client[GW_ADDR_TEXT];
    char id[ID_MAX + 1];
};

struct listener { int fd; struct event ev; };
struct task { void (*fn)(void *); void *arg; };
struct gw_loop {
    gw_server *server;
    unsigned index;
    struct event_base *base;
    pthread_t thread;
    bool started, draining, stop, edge; /* edge: wake_fd is edge-triggered */
    SSL_CTX *tls;                      /* its own: reference counts are then not shared between cores */
    struct listener *listeners;        /* one an address, more after a take-over from more loops */
    unsigned n_listeners;
    struct event resume_ev, wake_ev, timer_ev;
    bool accept_paused, accept_full;   /* full: too many handshakes */
    unsigned handshakes, handshakes_max; /* open ones; this loop's share */
    int wake_fd;
    uint64_t timer_at;                 /* when timer_ev fires; UINT64_MAX: not armed */
    struct deadline lists[DL_N];
    struct gw_conn *conns, *todo;
    struct gw_conn *warm[TLS_WARM];    /* the last that spoke TLS */
    unsigned warm_at;
    struct buf out, scratch;           /* of answers as they leave; the application's */
    uint64_t id_seed, id_count;
    int64_t date_s;
    char date[40];
    pthread_mutex_t lock;              /* of tasks, n_tasks, tasks_cap, closed */
    struct task *tasks, *tasks_spare;  /* spare: the loop's own, empty */
    size_t n_tasks, tasks_cap, spare_cap;
    _Atomic bool asleep;               /* set with the lock held; cleared by whoever wakes it, or by what woke it */
    bool closed;
    _Atomic uint64_t n[sizeof(struct gw_counters) / 8]; /* by field of gw_counters; written by this loop, posts by anyone */
    char in[IN_BYTES];
};

struct gw_server {
    struct gw_server_config cfg;
    unsigned n_loops, n_planned;
    gw_loop **loops;
    uint16_t port[GW_LISTEN_MAX];
    uint64_t ns[DL_N];                 /* duration per kind of deadline */
    struct gw_tickets tickets;
    bool has_tickets;
    gw_peers *peers;                   /* NULL: addresses are not counted */
    _Atomic uint64_t open, body_held;
    _Atomic bool draining, handed;
};

/* One writer, so no locked add is needed. */
#define COUNT_BY(l, field, by) \
    atomic_store_explicit(&(l)->n[offsetof(struct gw_counters, field) / 8], \
                          atomic_load_explicit(&(l)->n[offsetof(struct gw_counters, field) / 8], memory_order_relaxed) + (uint64_t)(by), memory_order_relaxed)
#define COUNT(l, field) COUNT_BY(l, field, 1)

/* loop.c */
int loop_open(gw_loop **out, gw_server *s, unsigned index, struct err *e);
int loop_start(gw_loop *l, struct err *e);
void loop_close(gw_loop *l);                       /* joins; NULL is fine */
void loop_todo(gw_loop *l, struct gw_conn *c, uint8_t what);
void loop_run_todo(gw_loop *l);
size_t loop_posts_waiting(gw_loop *l);
void deadline_arm(gw_loop *l, enum dl_kind kind, struct deadline *d);
void deadline_drop(struct deadline *d);
const char *loop_date(gw_loop *l);

/* server.c */
void accept_resume(gw_loop *l);                    /* a handshake has ended, or it is time to look again */

/* conn.c */
void conn_accepted(gw_loop *l, int fd, const struct sockaddr *from, bool in_peers);
void conn_lost(struct gw_conn *c, enum gw_gone why);
void conn_finish(struct gw_conn *c);               /* flush, then close in good order */
void conn_send(struct gw_conn *c, const void *p, size_t n);
void conn_deadline(struct gw_conn *c, enum dl_kind kind);
void conn_do(struct gw_conn *c, uint8_t what);     /* from the to-do list */
void conn_drain(struct gw_conn *c);
static inline size_t conn_backlog(const struct gw_conn *c) { return c->out.len - c->out_off; }
static inline const struct gw_server_config *conn_cfg(const struct gw_conn *c) { return &c->loop->server->cfg; }
void conn_await(struct gw_conn *c, enum dl_kind kind); /* the deadline of its state; DL_NONE: none */
void conn_drop_exchange(struct gw_conn *c);        /* without an answer of the application; tells it if it asked. Not inside a call of its */
bool conn_spare(struct gw_conn *c, enum dl_kind kind); /* its time is up: takes what lies in its socket first. True: it goes on */

/* conn_io.c */
void conn_pause(struct gw_conn *c);                /* no more input */
void conn_unpause(struct gw_conn *c);
void conn_watch_output(struct gw_conn *c, bool on);
ssize_t sock_result(ssize_t n, int wait);          /* of recv or send: bytes, or `wait`, or IO_ERROR */
ssize_t conn_read(struct gw_conn *c, void *p, size_t n);
void conn_writable(struct gw_conn *c);
void conn_stall_check(struct gw_conn *c);

/* conn_requests.c */
void conn_next(struct gw_conn *c, bool keep);      /* its exchange has ended */
void conn_fail(struct gw_conn *c, int status, const char *why); /* an answer that HTTP itself demands, and the end */
void conn_await_input(struct gw_conn *c);          /* more is needed: the deadline that counts now */
void conn_input(struct gw_conn *c, const char *d, size_t n);
void conn_resume(struct gw_conn *c);               /* goes on with what was read ahead */

/* exchange.c */
gw_exchange *exchange_new(struct gw_conn *c);      /* NULL: no memory */
void exchange_free(gw_exchange *x);
void exchange_beat(struct gw_conn *c);
void answer_error(struct gw_conn *c, int status, const char *message); /* without the application; the caller closes */

/* tls.c: results above 0 are bytes */
enum { IO_EOF = 0, IO_READ = -1 /* wait to read */, IO_WRITE = -2, IO_ERROR = -3, IO_HTTP = -4 /* plain HTTP came in a handshake */ };
int tls_ctx_new(SSL_CTX **out, const char *cert_file, const char *key_file, struct gw_tickets *tickets, struct err *e);
int tls_accept(SSL *s);                            /* 1: done */
int tls_read(SSL *s, void *p, size_t n);
int tls_write(SSL *s, const void *p, size_t n);
void tls_bye(SSL *s);                              /* close_notify, if the socket takes it */
void tls_warm(struct gw_conn *c);                  /* it speaks: its buffers stay for a while */
void tls_cool(struct gw_conn *c);                  /* its buffers go, unless a record is half there */
#endif
