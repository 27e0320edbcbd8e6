#include "offload/queue.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "offload/io.h"

enum { AGAIN_MAX = 8 };

struct flight {
    struct off_unit unit;
    struct off_ask ask;
    uint8_t *stage, *to;          /* to: where the read goes, the stage or the slot */
    int again;                    /* times that the kernel asked to be asked again */
    enum { FREE, WAITS, FLIES } state;
};

struct off_queue {
    struct off_source *source;
    unsigned depth, n, n_flies;
    struct flight *flights;       /* [depth] */
    struct io_uring ring;
    bool ring_on, buffers_on, files_on; /* registered: the kernel need not look them up, or pin them, at every read */
    size_t stage_bytes;
};

/* ---- ring ----------------------------------------------------------------------------------------------------- */
/* What an unprivileged process may lock in memory can be less than the buffers; reads do without then. */
static int register_all(off_queue *q, struct err *e)
{
    size_t n = off_catalog_files(q->source->c) * q->source->n_drives;
    struct iovec *v = calloc(q->depth, sizeof *v);
    int *fds = malloc((n + 1) * sizeof *fds);
    bool have = v && fds;
    for (unsigned i = 0; have && i < q->depth; i++)
        v[i] = (struct iovec){q->flights[i].stage, q->stage_bytes};
    for (size_t i = 0; have && i < n; i++)
        fds[i] = q->source->copies[i].direct;
    q->buffers_on = have && io_uring_register_buffers(&q->ring, v, q->depth) == 0;
    q->files_on = have && io_uring_register_files(&q->ring, fds, (unsigned)n) == 0;
    free(v);
    free(fds);
    return have ? ERR_OK : err_set(e, ERR_NOMEM, "list of %zu files", n);
}

static bool any_direct(const struct off_source *s)
{
    for (size_t i = 0; i < off_catalog_files(s->c) * s->n_drives; i++)
        if (s->copies[i].direct >= 0)
            return true;
    return false;
}

/* false: the kernel takes no more just now. */
static bool launch(off_queue *q, struct flight *f)
{
    struct io_uring_sqe *x = io_uring_get_sqe(&q->ring);
    if (!x)
        return false;
    int fd = q->files_on ? (int)f->ask.copy : f->ask.fd;
    if (q->buffers_on && f->to == f->stage)
        io_uring_prep_read_fixed(x, fd, f->to, (unsigned)f->ask.span, f->ask.begin, (int)(f - q->flights));
    else
        io_uring_prep_read(x, fd, f->to, (unsigned)f->ask.span, f->ask.begin);
    if (q->files_on)
        x->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(x, f);
    int r;
    do
        r = io_uring_submit(&q->ring);
    while (r == -EINTR || r == -EAGAIN || r == -EBUSY);
    if (r == 1)
        return true;
    io_uring_prep_nop(x); /* it is in the ring already, and may go with the next one */
    io_uring_sqe_set_data(x, NULL);
    return false;
}

/* The next read that ended: its flight and r, bytes or -errno. */
static struct flight *landed(off_queue *q, int64_t *r)
{
    struct flight *f = NULL;
    while (!f) {
        struct io_uring_cqe *x;
        int rc = io_uring_wait_cqe(&q->ring, &x);
        assert(rc == 0 || rc == -EINTR || rc == -EAGAIN); /* else the ring is none */
        if (rc)
            continue;
        f = io_uring_cqe_get_data(x);
        *r = x->res;
        io_uring_cqe_seen(&q->ring, x);
    }
    if (off_io_ring)
        *r = off_io_ring(f->to, f->ask.span, *r);
    return f;
}

/* ---- open, close ---------------------------------------------------------------------------------------------- */
static int open_parts(off_queue *q, struct err *e)
{
    for (unsigned i = 0; i < q->depth; i++)
        if (!(q->flights[i].stage = aligned_alloc(4096, q->stage_bytes)))
            return err_set(e, ERR_NOMEM, "%u reading buffers of %zu bytes", q->depth, q->stage_bytes);
    q->ring_on = q->source->io != OFF_IO_THREADS && any_direct(q->source) && io_uring_queue_init(q->depth, &q->ring, 0) == 0;
    return q->ring_on ? register_all(q, e) : ERR_OK;
}

int off_queue_open(off_queue **out, struct off_source *s, unsigned depth, size_t stage_bytes, struct err *e)
{
    *out = NULL;
    off_queue *q = calloc(1, sizeof *q);
    if (!q || !(q->flights = calloc(depth, sizeof *q->flights))) {
        free(q);
        return err_set(e, ERR_NOMEM, "queue of %u reads", depth);
    }
    q->source = s;
    q->depth = depth;
    q->stage_bytes = stage_bytes;
    int rc = open_parts(q, e);
    if (rc) {
        off_queue_close(q);
        return rc;
    }
    s->kind = off_queue_kind(q);
    *out = q;
    return ERR_OK;
}

void off_queue_close(off_queue *q)
{
    if (!q)
        return;
    while (q->n_flies) { /* the kernel still writes to these stages */
        int64_t r;
        struct flight *f = landed(q, &r);
        off_source_came(q->source, &f->ask, r);
        q->n_flies--;
    }
    if (q->ring_on)
        io_uring_queue_exit(&q->ring);
    for (unsigned i = 0; i < q->depth; i++)
        free(q->flights[i].stage);
    free(q->flights);
    free(q);
}

bool off_queue_room(const off_queue *q) { return q->n < (q->ring_on ? q->depth : 1); }
bool off_queue_empty(const off_queue *q) { return q->n == 0; }

const char *off_queue_kind(const off_queue *q)
{
    return !q->ring_on ? "pread" : q->buffers_on && q->files_on ? "io_uring, registered" : "io_uring";
}

/* ---- units ---------------------------------------------------------------------------------------------------- */
void off_queue_put(off_queue *q, const struct off_unit *u)
{
    struct flight *f = q->flights;
    while (f->state != FREE)
        f++;
    f->unit = *u;
    f->again = 0;
    f->state = WAITS;
    q->n++;
    if (!q->ring_on || !off_fill_ask(q->source, u, &f->ask))
        return;
    f->to = off_fill_straight(u, &f->ask);
    f->to = f->to ? f->to : f->stage;
    if (launch(q, f)) {
        f->state = FLIES;
        q->n_flies++;
    } else {
        off_source_came(q->source, &f->ask, 0);
    }
}

static struct flight *waiting(off_queue *q)
{
    for (unsigned i = 0; q->n > q->n_flies && i < q->depth; i++)
        if (q->flights[i].state == WAITS)
            return &q->flights[i];
    return NULL;
}

static int leave(off_queue *q, struct flight *f, struct off_unit *u, int rc)
{
    *u = f->unit;
    f->state = FREE;
    q->n--;
    return rc;
}

int off_queue_take(off_queue *q, struct off_unit *u, struct err *e)
{
    struct flight *f = waiting(q);
    int64_t r;
    if (f)
        return leave(q, f, u, off_fill(q->source, &f->unit, f->stage, e));
    for (;;) {
        f = landed(q, &r);
        bool again = (r == -EAGAIN || r == -EINTR) && f->again++ < AGAIN_MAX;
        if (!again || !launch(q, f))
            break;
    }
    q->n_flies--;
    bool came = off_source_came(q->source, &f->ask, r);
    return leave(q, f, u, off_fill_came(q->source, &f->unit, f->stage, came ? f->to + f->ask.head : NULL, e));
}
