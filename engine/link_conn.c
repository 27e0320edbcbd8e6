/* One connection: its first frame must be a HELLO; then frames are handled one by one while there is room to answer. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/link_internal.h"

enum { READ_BYTES = 64 << 10 };

struct link_conn *link_conn_new(eng_link *l, int fd, uint64_t now_ns)
{
    struct link_conn *c = calloc(1, sizeof *c);
    size_t blob = 0;
    if (!c)
        return NULL;
    for (size_t i = 0; i < l->n_blobs; i++)
        blob = l->blobs[i].n > blob ? l->blobs[i].n : blob;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* a Unix socket has no such option and needs none */
    c->fd = fd;
    c->opened_ns = c->moved_ns = now_ns;
    c->load[0] = c->load[1] = UINT32_MAX;
    eng_frame_reader_init(&c->reader, l->c.body_max);
    /* Room for one answer of each kind beyond out_high: no frame is begun above it, and a slot's news is bounded. */
    buf_init(&c->out, l->c.out_high + blob + 4 * LINK_PENDING_MAX + (8u << 20));
    if (!eng_frame_put(&c->out, ENG_FR_HELLO, 0, l->hello.data, l->hello.len)) {
        buf_free(&c->out);
        eng_frame_reader_free(&c->reader);
        free(c);
        return NULL;
    }
    return c;
}

void link_conn_free(eng_link *l, struct link_conn *c)
{
    for (uint32_t i = 0; i < l->c.requests_max; i++)
        if (l->slots[i].conn == c) {
            link_slot_orphan(l, &l->slots[i]); /* given back when its DONE comes */
            l->ops.cancel(l->ops.engine, l->slots[i].id);
        }
    close(c->fd);
    buf_free(&c->out);
    eng_frame_reader_free(&c->reader);
    free(c);
}

static void put(struct link_conn *c, uint16_t type, uint64_t request, const void *body, size_t n)
{
    if (!c->dead && !eng_frame_put(&c->out, type, request, body, n)) {
        log_error("connection closed: no memory for what it is owed bytes=%zu", c->out.len);
        c->dead = true;
    }
}

void link_conn_read(eng_link *l, struct link_conn *c)
{
    char block[READ_BYTES];
    struct err e;
    if (c->dead || link_unsent(c) > l->c.out_high)
        return;
    ssize_t n = recv(c->fd, block, sizeof block, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        c->dead = true;
        return;
    }
    if (eng_frame_feed(&c->reader, block, (size_t)n, &e)) {
        log_warn("connection closed: %s", e.msg);
        c->dead = true;
    }
}

/* ---- frames from a gateway ------------------------------------------------------------------------------------ */

static int on_hello(struct link_conn *c, const struct eng_frame *f, struct err *e)
{
    struct arena a;
    struct json *v;
    uint64_t proto = 0;
    struct json_limits lim = json_strict;
    lim.bytes_max = 64 << 10;
    arena_init(&a, 1 << 20);
    int rc = json_parse(&v, (const char *)f->body, f->n, &lim, &a, e);
    if (!rc && (!json_u64(json_get(v, "proto"), &proto) || proto != ENG_PROTO))
        rc = err_set(e, ERR_UNSUPPORTED, "the gateway speaks protocol %llu, this engine %d", (unsigned long long)proto, ENG_PROTO);
    arena_free(&a);
    c->hello = !rc;
    return rc;
}

static int on_blob_get(eng_link *l, struct link_conn *c, const struct eng_frame *f, struct err *e)
{
    struct buf b;
    if (f->n != 32)
        return err_set(e, ERR_FORMAT, "BLOB_GET frame: expected 32 bytes, found %zu", f->n);
    const struct eng_link_blob *blob = NULL;
    for (size_t i = 0; i < l->n_blobs; i++)
        if (!memcmp(l->blobs[i].digest, f->body, 32))
            blob = &l->blobs[i];
    buf_init(&b, SIZE_MAX / 4);
    buf_add(&b, f->body, 32);
    if (blob)
        buf_add(&b, blob->p, blob->n);
    if (b.failed)
        c->dead = true;
    else
        put(c, ENG_FR_BLOB, f->request, b.data, b.len);
    buf_free(&b);
    return ERR_OK;
}

static void refuse(struct link_conn *c, uint64_t request, const struct err *why)
{
    struct buf b;
    buf_init(&b, 4096);
    if (!eng_frame_put_refused(&b, why))
        c->dead = true;
    put(c, ENG_FR_REFUSED, request, b.data, b.len);
    buf_free(&b);
}

static int on_submit(eng_link *l, struct link_conn *c, const struct eng_frame *f, uint64_t now_ns, struct err *e)
{
    struct eng_request r;
    struct arena a;
    struct err why;
    if (!f->request || link_slot_find(l, c, f->request))
        return err_set(e, ERR_FORMAT, "SUBMIT frame: request number %llu is %s", (unsigned long long)f->request, f->request ? "in use" : "not allowed");
    arena_init(&a, f->n + (64 << 10));
    int rc = eng_frame_get_submit(f, now_ns, &a, &r, &why);
    struct link_slot *s = rc ? NULL : link_slot_take(l, c, f->request);
    if (!rc && !s)
        rc = err_set(&why, ERR_AGAIN, "the engine is full: %u requests are under way", l->c.requests_max);
    if (!rc) {
        r.id = s->id;
        if ((rc = l->ops.submit(l->ops.engine, &r, &why)))
            link_slot_give(l, s);
        else if (c->paused) {
            s->paused_by_conn = true;
            l->ops.pause(l->ops.engine, s->id, true);
        }
    }
    if (rc)
        refuse(c, f->request, &why);
    arena_free(&a);
    return ERR_OK;
}

static int on_pause(eng_link *l, struct link_conn *c, const struct eng_frame *f, struct err *e)
{
    if (f->n != 1 || f->body[0] > 1)
        return err_set(e, ERR_FORMAT, "PAUSE frame: expected one byte, 0 or 1");
    struct link_slot *s = link_slot_find(l, c, f->request);
    if (!s) /* its end crossed this frame */
        return ERR_OK;
    s->paused_by_gateway = f->body[0];
    l->ops.pause(l->ops.engine, s->id, s->paused_by_gateway || s->paused_by_conn);
    return ERR_OK;
}

static int handle(eng_link *l, struct link_conn *c, const struct eng_frame *f, uint64_t now_ns, struct err *e)
{
    struct link_slot *s;
    if (!c->hello && f->type != ENG_FR_HELLO)
        return err_set(e, ERR_FORMAT, "expected HELLO first, found frame type %u", f->type);
    switch (f->type) {
    case ENG_FR_HELLO: return on_hello(c, f, e);
    case ENG_FR_BLOB_GET: return on_blob_get(l, c, f, e);
    case ENG_FR_SUBMIT: return on_submit(l, c, f, now_ns, e);
    case ENG_FR_CANCEL:
        if ((s = link_slot_find(l, c, f->request)))
            l->ops.cancel(l->ops.engine, s->id);
        return ERR_OK;
    case ENG_FR_PAUSE: return on_pause(l, c, f, e);
    case ENG_FR_DRAIN: l->ops.drain(l->ops.engine); return ERR_OK;
    case ENG_FR_PING: put(c, ENG_FR_PONG, f->request, f->body, f->n); return ERR_OK;
    case ENG_FR_PONG: return ERR_OK;
    default: return err_set(e, ERR_FORMAT, "frame type %u is not for an engine", f->type);
    }
}

void link_conn_frames(eng_link *l, struct link_conn *c, uint64_t now_ns)
{
    struct eng_frame f;
    struct err e;
    int got = 0;
    while (!c->dead && link_unsent(c) <= l->c.out_high && (got = eng_frame_next(&c->reader, &f, &e)) != 0)
        if (got < 0 || handle(l, c, &f, now_ns, &e)) {
            log_warn("connection closed: %s", e.msg);
            c->dead = true;
        }
    if (!c->dead && !c->hello && now_ns - c->opened_ns > l->c.hello_ms * NS_PER_MS) {
        log_warn("connection closed: no HELLO within %u ms", l->c.hello_ms);
        c->dead = true;
    }
}

/* ---- frames to a gateway -------------------------------------------------------------------------------------- */

void link_conn_news(eng_link *l, struct link_conn *c, struct link_slot *s, struct link_news *n)
{
    struct buf b;
    buf_init(&b, 4 * LINK_PENDING_MAX);
    if (n->started)
        put(c, ENG_FR_STARTED, s->request, "", 0);
    if ((n->ids.len || n->text.len) && !n->overflow) {
        buf_u32(&b, (uint32_t)(n->ids.len / 4)); /* what eng_frame_put_tokens writes: the ids are little-endian already */
        buf_add(&b, n->ids.data, n->ids.len);
        buf_blob(&b, n->text.data, n->text.len);
        buf_u32(&b, n->logprobs.len ? (uint32_t)(n->ids.len / 4) : 0);
        buf_add(&b, n->logprobs.data, n->logprobs.len);
        put(c, ENG_FR_TOKENS, s->request, b.data, b.len);
    }
    if (n->done || n->overflow) {
        struct eng_event ev = {.type = ENG_EV_DONE, .finish = n->finish, .stop = n->stop, .usage = &n->usage, .text = n->last.data, .n = n->last.len,
                               .err = n->finish == ENG_FAILED ? &n->err : NULL};
        struct err lost;
        if (n->overflow) {
            err_set(&lost, ERR_LIMIT, "more output than may wait for a connection that does not read");
            ev = (struct eng_event){.type = ENG_EV_DONE, .finish = ENG_FAILED, .stop = -1, .err = &lost};
        }
        buf_reset(&b);
        eng_frame_put_done(&b, &ev);
        put(c, ENG_FR_DONE, s->request, b.data, b.len);
    }
    if (b.failed)
        c->dead = true;
    buf_free(&b);
    (void)l;
}

void link_conn_stats(eng_link *l, struct link_conn *c, const struct eng_stats *s)
{
    struct buf b;
    const struct { const char *name; uint64_t v; } fields[] = {
        {"running", s->running}, {"waiting", s->waiting}, {"seqs_max", s->seqs_max}, {"waiting_tokens", s->waiting_tokens},
        {"requests", s->requests}, {"tokens_in", s->tokens_in}, {"tokens_out", s->tokens_out}, {"steps", s->steps}, {"step_ns", s->step_ns},
        {"model_ns", s->model_ns}, {"draw_ns", s->draw_ns},
        {"kv_pages", s->kv_pages}, {"kv_pages_used", s->kv_pages_used}, {"kv_bytes", s->kv_bytes}, {"weight_bytes", s->weight_bytes},
        {"activation_bytes", s->activation_bytes}, {"ram_max", s->ram_max}, {"prefix_lookups", s->prefix_lookups}, {"prefix_hits", s->prefix_hits},
        {"prefix_tokens", s->prefix_tokens}, {"draft_tokens", s->draft_tokens}, {"draft_accepted", s->draft_accepted}, {"prefix_pages", s->prefix_pages}, {"prefix_evictions", s->prefix_evictions},
        {"weight_sweep_bytes", s->weight_sweep_bytes}, {"weight_read_bytes", s->weight_read_bytes}, {"weight_stalls", s->weight_stalls},
        {"weight_stall_ns", s->weight_stall_ns}, {"expert_slots", s->expert_slots}, {"experts", s->experts}, {"expert_hits", s->expert_hits}, {"expert_misses", s->expert_misses},
        {"expert_read_bytes", s->expert_read_bytes}, {"expert_preloaded", s->expert_preloaded}, {"snapshots", s->snapshots}, {"snapshots_taken", s->snapshots_taken}, {"snapshots_restored", s->snapshots_restored},
        {"snapshots_max", s->snapshots_max}, {"snapshot_bytes", s->snapshot_bytes},
        {"weight_wanted_bytes", s->weight_wanted_bytes}, {"weight_failing", s->weight_failing}};
    (void)l;
    c->load[0] = s->running;
    c->load[1] = s->waiting;
    buf_init(&b, 8192);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        buf_printf(&b, "%c\"%s\":%llu", i ? ',' : '{', fields[i].name, (unsigned long long)fields[i].v);
    buf_str(&b, ",\"drives\":[");
    for (uint32_t i = 0; i < s->n_drives; i++) {
        const struct eng_drive *d = &s->drives[i];
        buf_printf(&b, "%s{\"bytes\":%llu,\"reads\":%llu,\"errors\":%llu,\"dir\":", i ? "," : "", (unsigned long long)d->bytes, (unsigned long long)d->reads,
                   (unsigned long long)d->errors);
        json_put_cstr(&b, d->dir);
        buf_str(&b, ",\"reading\":");
        json_put_cstr(&b, d->reading);
        buf_char(&b, '}');
    }
    if (buf_str(&b, "]}"))
        put(c, ENG_FR_STATS, 0, b.data, b.len);
    buf_free(&b);
}

/* Its sequences stop when the peer lags and go on when it has caught up; those that the gateway itself paused stay so. */
static void pace(eng_link *l, struct link_conn *c)
{
    bool paused = c->paused ? link_unsent(c) > l->c.out_low : link_unsent(c) > l->c.out_high;
    if (paused == c->paused)
        return;
    c->paused = paused;
    for (uint32_t i = 0; i < l->c.requests_max; i++) {
        struct link_slot *s = &l->slots[i];
        if (s->conn != c)
            continue;
        s->paused_by_conn = paused;
        l->ops.pause(l->ops.engine, s->id, s->paused_by_conn || s->paused_by_gateway);
    }
}

void link_conn_flush(eng_link *l, struct link_conn *c, uint64_t now_ns)
{
    while (!c->dead && link_unsent(c)) {
        ssize_t n = send(c->fd, c->out.data + c->sent, link_unsent(c), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0)
            c->dead = true;
        else {
            c->sent += (size_t)n;
            c->moved_ns = now_ns;
        }
    }
    if (c->dead)
        return;
    if (!link_unsent(c)) {
        c->moved_ns = now_ns;
        if (c->out.cap > 4 * l->c.out_high + (1u << 20))
            buf_free(&c->out); /* a large blob has gone through */
        else
            buf_reset(&c->out);
        c->sent = 0;
    } else if (c->sent > c->out.len / 2) {
        buf_consume(&c->out, c->sent);
        c->sent = 0;
    }
    if (now_ns - c->moved_ns > l->c.stall_ms * NS_PER_MS) {
        log_warn("connection closed: nothing taken for %u ms, unsent=%zu", l->c.stall_ms, link_unsent(c));
        c->dead = true;
        return;
    }
    pace(l, c);
}
