/* gateway/engine_client_internal.h - shared by engine_client.c (the line) and engine_streams.c (what runs over it).
 * All fields without a note belong to the client's thread. */
#ifndef SLUICE_GATEWAY_ENGINE_CLIENT_INTERNAL_H
#define SLUICE_GATEWAY_ENGINE_CLIENT_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>
#include "engine/frame.h"
#include "gateway/engine_client.h"

struct bufferevent;
struct event;
struct event_base;

enum line_state { LINE_DOWN, LINE_CONNECTING, LINE_GREETING, LINE_FETCHING, LINE_UP };
#define STREAM_BUCKETS 4096

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

enum command_type { CMD_SUBMIT, CMD_CANCEL, CMD_PAUSE };
struct command {
    struct command *next;
    enum command_type type;
    uint64_t id;
    bool on;
    struct gw_stream *stream;           /* SUBMIT */
};

struct gw_engine {
    struct gw_engine_config cfg;
    char *address;
    pthread_t thread;
    bool thread_started;
    struct event_base *base;
    struct event *wake, *tick, *retry;
    int wake_fd;

    pthread_mutex_t lock;               /* the inbox, served, engine_stats, has_engine_stats */
    struct command *inbox, **inbox_tail;
    bool closing;
    struct gw_served *served;           /* last described */
    struct eng_stats engine_stats;
    bool has_engine_stats;
    atomic_size_t n_streams;            /* counted at submit */
    atomic_uint_fast64_t next_id, connects, restarts, resubmitted, lost;
    atomic_bool up;

    enum line_state state;
    struct bufferevent *bev;
    struct eng_frame_reader reader;
    struct buf out;                     /* frames being built */
    uint64_t state_since_ns, heard_ns, pinged_ns;
    uint32_t backoff_ms;
    int64_t last_pid;
    struct buf hello, tmpl;             /* of the connection being set up */
    bool have_tmpl;
    struct gw_description d;
    struct arena d_mem;
    struct gw_tok_ref *tok;             /* kept over reconnects while the digest stays */

    struct gw_stream *bucket[STREAM_BUCKETS];
    struct gw_stream *first, *last;
};

/* engine_client.c */
bool gw_line_send(struct gw_engine *g, uint16_t type, uint64_t request, const void *body, size_t n);
void gw_line_wake(struct gw_engine *g); /* any thread */

/* engine_streams.c; all on the client's thread */
void gw_streams_commands(struct gw_engine *g);                  /* works through the inbox */
void gw_streams_frame(struct gw_engine *g, const struct eng_frame *f); /* a frame with a request id */
void gw_streams_line_up(struct gw_engine *g);
void gw_streams_line_down(struct gw_engine *g);
void gw_streams_tick(struct gw_engine *g, uint64_t now_ns);
void gw_streams_end_all(struct gw_engine *g, const char *why);
#endif
