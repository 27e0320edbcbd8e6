/* gateway/engine_client_internal.h - shared by engine_line.c (the socket), engine_client.c (states of the line) and engine_streams.c (what
 * runs over it). All fields without a note belong to the client's thread. */
#ifndef SLUICE_GATEWAY_ENGINE_CLIENT_INTERNAL_H
#define SLUICE_GATEWAY_ENGINE_CLIENT_INTERNAL_H
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>
#include "engine/frame.h"
#include "gateway/engine_client.h"

struct event;
struct event_base;

enum line_state { LINE_DOWN, LINE_CONNECTING, LINE_GREETING, LINE_FETCHING, LINE_UP };
#define STREAM_BUCKETS 4096

#define LINE_IN_BYTES 65536

/* Made and put into the table by whoever submits, who also sends it if the line is up; from then on the client's thread's, which alone
 * takes it out again. So its pointer stays good on that thread without the lock; links and `sent` need it. */
struct gw_stream {
    uint64_t id;
    struct gw_stream *next_in_bucket;
    struct gw_stream *prev, *next;      /* all streams, oldest first */
    struct eng_request req;             /* owned copies behind its pointers; ids grows with the output */
    uint32_t ids_cap, n_prompt;
    uint32_t regenerated;               /* tokens that will come a second time */
    uint64_t text_bytes;                /* delivered so far */
    struct gw_served *served;
    gw_stream_fn f; void *ctx;
    bool patient, sent, accepted /* the engine has shown that it holds it */, started, paused;
    uint64_t retry_at_ns;               /* not sent: try then (0: when the line is up) */
    uint64_t waiting_since_ns;          /* 0: the engine has it */
};

enum command_type { CMD_CANCEL, CMD_PAUSE };
struct command {
    struct command *next;
    enum command_type type;
    uint64_t id;
    bool on;
};

struct gw_engine {
    struct gw_engine_config cfg;
    char *address;
    pthread_t thread;
    bool thread_started;
    struct event_base *base;
    struct event *wake, *tick, *retry;
    int wake_fd;

    pthread_mutex_t lock;               /* all down to `state` */
    struct command *inbox, **inbox_tail;
    bool closing;
    struct gw_served *served;           /* last described */
    struct eng_stats engine_stats;
    bool has_engine_stats;
    struct gw_stream *bucket[STREAM_BUCKETS];
    struct gw_stream *first, *last;
    size_t n_unsent;                    /* streams that the engine does not have */
    struct buf out, wire;               /* frames; those on their way to the socket, the sender's own while `sending` */
    size_t wire_at;
    bool line_open, sending, blocked;   /* blocked: the socket takes no more */
    pthread_cond_t sent;                /* sending has ended */
    int fd;                             /* changes on the client's thread, and never while `sending` */
    enum line_state state;              /* changes on the client's thread */

    atomic_size_t n_streams;            /* counted at submit */
    atomic_uint_fast64_t next_id, connects, restarts, resubmitted, lost;
    atomic_bool up;

    struct event *readable, *writable;
    struct eng_frame_reader reader;
    struct arena frame_mem;             /* what a frame is decoded to: empty between two of them */
    char in[LINE_IN_BYTES];
    uint64_t state_since_ns, heard_ns, pinged_ns;
    uint32_t backoff_ms;
    int64_t last_pid;
    struct buf hello, tmpl;             /* of the connection being set up */
    bool have_tmpl;
    struct gw_description d;
    struct arena d_mem;
    struct gw_tok_ref *tok;             /* kept over reconnects while the digest stays */
};

/* engine_line.c */
union gw_line_addr { struct sockaddr sa; struct sockaddr_un un; struct sockaddr_in in; struct sockaddr_in6 in6; };
int gw_line_address(const char *s, union gw_line_addr *out, socklen_t *len, struct err *e); /* only this machine: the line carries prompts in the clear */
bool gw_line_connect(struct gw_engine *g, struct err *e);   /* gw_client_connected follows; false: close it */
void gw_line_ready(struct gw_engine *g);
void gw_line_close(struct gw_engine *g);                    /* nothing is sent or read any more; fine when not open */
void gw_line_watch(struct gw_engine *g);                    /* after a wake: somebody found the socket full */
bool gw_line_send(struct gw_engine *g, uint16_t type, uint64_t request, const void *body, size_t n); /* any thread, without the lock */
bool gw_line_put(struct gw_engine *g, const struct buf *frames); /* the lock is held, for these three */
void gw_line_flush(struct gw_engine *g);
size_t gw_line_unsent(const struct gw_engine *g);

/* engine_client.c */
void gw_line_wake(struct gw_engine *g); /* any thread */
void gw_client_connected(struct gw_engine *g);
void gw_client_bytes(struct gw_engine *g, const void *p, size_t n);
void gw_client_broken(struct gw_engine *g, const char *why);

/* engine_streams.c; all on the client's thread */
void gw_streams_commands(struct gw_engine *g);                  /* works through the inbox */
void gw_streams_frame(struct gw_engine *g, const struct eng_frame *f); /* a frame with a request id */
void gw_streams_line_up(struct gw_engine *g);
void gw_streams_line_down(struct gw_engine *g);
void gw_streams_tick(struct gw_engine *g, uint64_t now_ns);
void gw_streams_end_all(struct gw_engine *g, const char *why);
#endif
