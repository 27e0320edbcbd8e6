/* engine/link_internal.h - what link.c (slots, events, the thread) and link_conn.c (one connection) share. */
#ifndef SLUICE_ENGINE_LINK_INTERNAL_H
#define SLUICE_ENGINE_LINK_INTERNAL_H
#include <pthread.h>

#include "engine/frame.h"
#include "engine/link.h"

enum { LINK_PENDING_MAX = 4 << 20 /* bytes of ids or text that wait in one slot */ };

/* What the scheduler has said about a request and no frame has told yet. */
struct link_news {
    struct buf ids, text, last;   /* i32 ids as bytes; text after them; text of the end */
    struct buf logprobs;          /* records, as many as ids or none */
    bool started, done, overflow; /* overflow: it did not fit, the request is failed */
    enum eng_finish finish;
    int32_t stop;
    struct eng_usage usage;
    struct err err;
};
struct link_conn;
struct link_slot {
    uint64_t id;                  /* engine-wide: generation and number; 0: free. Written with the lock held */
    struct link_news news;        /* with the lock held */
    bool dirty; uint32_t next_dirty;
    struct link_conn *conn;       /* the rest: the link thread's. NULL: orphan, waits for its DONE */
    uint64_t request;
    bool paused_by_gateway, paused_by_conn;
    uint32_t next_free;           /* or, while taken, the next one in its bucket */
};
struct link_conn {
    int fd;
    bool hello, paused, dead;
    uint64_t opened_ns, moved_ns; /* moved: the last time the peer took a byte, or there was nothing to take */
    struct eng_frame_reader reader;
    struct buf out;
    size_t sent;                  /* of out */
    uint32_t load[2];             /* running, waiting as last told */
};
struct eng_link {
    struct eng_link_config c;
    struct eng_link_ops ops;
    const struct eng_link_blob *blobs; size_t n_blobs;
    struct buf hello;
    int listen_fd, event_fd;
    char *path;                   /* of a Unix socket, to be removed */
    uint16_t port;
    pthread_t thread;
    bool thread_on, stopping;     /* stopping: with the lock held */
    pthread_mutex_t lock;
    struct link_slot *slots; uint32_t *buckets, mask; /* taken slots by (conn, request); an orphan is in none */
    uint32_t free_head, dirty_head, dirty_tail; /* dirty: with the lock held */
    uint64_t generation;
    uint32_t live;                /* with the lock held */
    size_t unsent;                /* with the lock held: of all connections, as of the last turn */
    struct link_conn **conns; uint32_t n_conns;
    struct link_news scratch;     /* swapped with a slot's */
};
enum { LINK_NONE = UINT32_MAX };

/* link.c */
struct link_slot *link_slot_take(eng_link *l, struct link_conn *c, uint64_t request); /* NULL: none is free */
void link_slot_give(eng_link *l, struct link_slot *s);
void link_slot_orphan(eng_link *l, struct link_slot *s); /* its connection is gone */
struct link_slot *link_slot_find(eng_link *l, const struct link_conn *c, uint64_t request);

/* link_conn.c: c->dead is set when the connection is done for */
struct link_conn *link_conn_new(eng_link *l, int fd, uint64_t now_ns);
void link_conn_free(eng_link *l, struct link_conn *c);           /* cancels its requests */
void link_conn_read(eng_link *l, struct link_conn *c);
void link_conn_frames(eng_link *l, struct link_conn *c, uint64_t now_ns); /* handles what was read, as far as there is room to answer */
void link_conn_news(eng_link *l, struct link_conn *c, struct link_slot *s, struct link_news *n);
void link_conn_stats(eng_link *l, struct link_conn *c, const struct eng_stats *s);
void link_conn_flush(eng_link *l, struct link_conn *c, uint64_t now_ns);  /* sends; pauses or lets go on; notices a stall */
static inline size_t link_unsent(const struct link_conn *c) { return c->out.len - c->sent; }

/* link_addr.c */
int link_listen(const char *address, int *fd, char **path, uint16_t *port, struct err *e);
#endif
