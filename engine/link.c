/* Slots and the thread.
 *
 * The queue between the scheduler and the link thread is the list of dirty slots: an event is appended to its request's slot, and
 * a slot is in the list at most once, so the queue cannot overflow however late the link thread is. What one request
 * may accumulate is bounded by LINK_PENDING_MAX; in practice by pausing. The link thread takes a slot's news by swapping buffers.
 *
 * A slot's life: taken by SUBMIT -> live -> (connection lost: orphan, cancelled) -> DONE event seen -> given back. The id carries
 * a generation, so that a late event of an earlier life finds nothing. */
#include "engine/link.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/link_internal.h"

enum { SLOT_BITS = 20, TICK_MS = 100 };

void eng_link_config_default(struct eng_link_config *c)
{
    *c = (struct eng_link_config){.connections_max = 16, .requests_max = 1024, .body_max = 8u << 20, .out_high = 256 << 10, .out_low = 64 << 10,
                                  .hello_ms = 10000, .stall_ms = 30000, .stats_ms = 1000};
}

/* ---- slots --------------------------------------------------------------------------------------------------- */

static void news_init(struct link_news *n)
{
    *n = (struct link_news){0};
    buf_init(&n->ids, LINK_PENDING_MAX);
    buf_init(&n->text, LINK_PENDING_MAX);
    buf_init(&n->last, LINK_PENDING_MAX);
    buf_init(&n->logprobs, LINK_PENDING_MAX);
}

static void news_clear(struct link_news *n)
{
    buf_reset(&n->ids);
    buf_reset(&n->text);
    buf_reset(&n->last);
    buf_reset(&n->logprobs);
    n->started = n->done = n->overflow = false;
}

static void news_free(struct link_news *n)
{
    buf_free(&n->ids);
    buf_free(&n->text);
    buf_free(&n->last);
    buf_free(&n->logprobs);
}

/* A gateway numbers its requests one after the other: their low bits spread well. */
static uint32_t *bucket_of(eng_link *l, const struct link_conn *c, uint64_t request)
{
    return &l->buckets[(request ^ (uintptr_t)c >> 6) & l->mask];
}

void link_slot_orphan(eng_link *l, struct link_slot *s)
{
    if (!s->conn)
        return;
    uint32_t *p = bucket_of(l, s->conn, s->request);
    while (&l->slots[*p] != s)
        p = &l->slots[*p].next_free;
    *p = s->next_free;
    s->conn = NULL;
}

struct link_slot *link_slot_take(eng_link *l, struct link_conn *c, uint64_t request)
{
    if (l->free_head == LINK_NONE)
        return NULL;
    struct link_slot *s = &l->slots[l->free_head];
    l->free_head = s->next_free;
    s->conn = c;
    s->request = request;
    uint32_t *head = bucket_of(l, c, request);
    s->next_free = *head;
    *head = (uint32_t)(s - l->slots);
    s->paused_by_gateway = s->paused_by_conn = false;
    pthread_mutex_lock(&l->lock);
    news_clear(&s->news);
    s->id = ++l->generation << SLOT_BITS | (uint64_t)(s - l->slots);
    l->live++;
    pthread_mutex_unlock(&l->lock);
    return s;
}

void link_slot_give(eng_link *l, struct link_slot *s)
{
    pthread_mutex_lock(&l->lock);
    s->id = 0;
    l->live--;
    pthread_mutex_unlock(&l->lock);
    link_slot_orphan(l, s);
    s->next_free = l->free_head;
    l->free_head = (uint32_t)(s - l->slots);
}

struct link_slot *link_slot_find(eng_link *l, const struct link_conn *c, uint64_t request)
{
    for (uint32_t i = *bucket_of(l, c, request); i != LINK_NONE; i = l->slots[i].next_free)
        if (l->slots[i].conn == c && l->slots[i].request == request)
            return &l->slots[i];
    return NULL;
}

static void wake(eng_link *l)
{
    uint64_t one = 1;
    while (write(l->event_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void note(struct link_news *n, const struct eng_event *ev)
{
    if (n->done)
        return;
    switch (ev->type) {
    case ENG_EV_STARTED: n->started = true; break;
    case ENG_EV_TOKEN:
        buf_u32(&n->ids, (uint32_t)ev->token);
        buf_add(&n->text, ev->text, ev->n);
        if (ev->logprobs)
            eng_frame_put_logprobs(&n->logprobs, ev->logprobs);
        break;
    case ENG_EV_DONE:
        n->done = true;
        n->finish = ev->finish;
        n->stop = ev->stop;
        n->usage = ev->usage ? *ev->usage : (struct eng_usage){0};
        n->err = ev->err ? *ev->err : (struct err){0};
        buf_add(&n->last, ev->text, ev->n);
        break;
    }
    n->overflow |= n->logprobs.failed || n->ids.failed || n->text.failed || n->last.failed;
}

void eng_link_event(void *link, const struct eng_event *ev)
{
    eng_link *l = link;
    uint64_t at = ev->id & ((1u << SLOT_BITS) - 1);
    bool first = false;
    if (at >= l->c.requests_max)
        return;
    struct link_slot *s = &l->slots[at];
    pthread_mutex_lock(&l->lock);
    if (s->id == ev->id) {
        note(&s->news, ev);
        if (!s->dirty) {
            first = l->dirty_head == LINK_NONE;
            s->dirty = true;
            s->next_dirty = LINK_NONE;
            if (first)
                l->dirty_head = (uint32_t)at;
            else
                l->slots[l->dirty_tail].next_dirty = (uint32_t)at;
            l->dirty_tail = (uint32_t)at;
        }
    }
    pthread_mutex_unlock(&l->lock);
    if (first)
        wake(l);
}

/* Takes the first dirty slot and swaps its news into l->scratch; NULL: none. */
static struct link_slot *take_dirty(eng_link *l)
{
    struct link_slot *s = NULL;
    news_clear(&l->scratch);
    pthread_mutex_lock(&l->lock);
    while (l->dirty_head != LINK_NONE) {
        struct link_slot *d = &l->slots[l->dirty_head];
        l->dirty_head = d->next_dirty;
        d->dirty = false;
        if (!d->id)
            continue;
        struct link_news t = l->scratch;
        l->scratch = d->news;
        d->news = t;
        s = d;
        break;
    }
    pthread_mutex_unlock(&l->lock);
    return s;
}

/* Passes on what the scheduler said. A slot that becomes dirty again meanwhile is at the end of the list. */
static void tell(eng_link *l)
{
    struct link_slot *s;
    while ((s = take_dirty(l))) {
        struct link_news *n = &l->scratch;
        if (s->conn && !s->conn->dead)
            link_conn_news(l, s->conn, s, n);
        if (n->overflow && !n->done) {
            link_slot_orphan(l, s); /* the gateway was told that it failed */
            l->ops.cancel(l->ops.engine, s->id);
        }
        if (n->done)
            link_slot_give(l, s);
    }
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static void accept_all(eng_link *l, uint64_t now)
{
    for (;;) {
        int fd = accept4(l->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return;
        struct link_conn *c = l->n_conns < l->c.connections_max ? link_conn_new(l, fd, now) : NULL;
        if (!c) {
            log_warn("connection refused: %u are open", l->n_conns);
            close(fd);
            continue;
        }
        l->conns[l->n_conns++] = c;
        log_info("gateway connected connections=%u", l->n_conns);
    }
}

static bool same_load(const struct link_conn *c, const struct eng_stats *st)
{
    return c->load[0] == st->running && c->load[1] == st->waiting;
}

/* Every tick: whoever has not heard of the present load; every stats_ms: everyone. */
static void tell_stats(eng_link *l, bool all)
{
    struct eng_stats st;
    if (!l->n_conns)
        return;
    l->ops.stats(l->ops.engine, &st);
    for (uint32_t i = 0; i < l->n_conns; i++) {
        struct link_conn *c = l->conns[i];
        if (c->hello && !c->dead && (all || !same_load(c, &st)) && link_unsent(c) < l->c.out_low)
            link_conn_stats(l, c, &st);
    }
}

/* Sends what there is, drops the dead, and reports how much is unsent. False: the owner wants the end. */
static bool settle(eng_link *l, uint64_t now)
{
    size_t unsent = 0;
    for (uint32_t i = 0; i < l->n_conns;) {
        struct link_conn *c = l->conns[i];
        link_conn_flush(l, c, now);
        if (!c->dead) {
            unsent += link_unsent(c);
            i++;
            continue;
        }
        link_conn_free(l, c);
        l->conns[i] = l->conns[--l->n_conns];
        log_info("gateway gone connections=%u", l->n_conns);
    }
    pthread_mutex_lock(&l->lock);
    l->unsent = unsent;
    bool go_on = !l->stopping;
    pthread_mutex_unlock(&l->lock);
    return go_on;
}

static void wait_ready(eng_link *l, struct pollfd *p)
{
    p[0] = (struct pollfd){.fd = l->listen_fd, .events = POLLIN};
    p[1] = (struct pollfd){.fd = l->event_fd, .events = POLLIN};
    for (uint32_t i = 0; i < l->n_conns; i++) {
        const struct link_conn *c = l->conns[i];
        bool room = link_unsent(c) <= l->c.out_high; /* who does not read is not read from */
        p[2 + i] = (struct pollfd){.fd = c->fd, .events = (short)((room ? POLLIN : 0) | (link_unsent(c) ? POLLOUT : 0))};
    }
    if (poll(p, 2 + l->n_conns, TICK_MS) < 0)
        for (uint32_t i = 0; i < 2 + l->n_conns; i++)
            p[i].revents = 0;
    uint64_t count;
    if ((p[1].revents & POLLIN) && read(l->event_fd, &count, sizeof count) < 0) {
        /* another turn took it */
    }
}

static void *run(void *arg)
{
    eng_link *l = arg;
    struct pollfd *p = calloc(2 + l->c.connections_max, sizeof *p);
    uint64_t tick = 0, stats = 0;
    if (!p) {
        log_error("link thread: no memory");
        return NULL;
    }
    while (settle(l, clock_now_ns())) {
        wait_ready(l, p);
        uint64_t now = clock_now_ns();
        uint32_t n = l->n_conns; /* p describes these */
        for (uint32_t i = 0; i < n; i++) {
            if (p[2 + i].revents & (POLLIN | POLLHUP | POLLERR))
                link_conn_read(l, l->conns[i]);
            link_conn_frames(l, l->conns[i], now);
        }
        if (p[0].revents & POLLIN)
            accept_all(l, now);
        tell(l);
        if (now - tick >= TICK_MS * NS_PER_MS) {
            bool all = now - stats >= l->c.stats_ms * NS_PER_MS;
            tell_stats(l, all);
            tick = now;
            stats = all ? now : stats;
        }
    }
    while (l->n_conns)
        link_conn_free(l, l->conns[--l->n_conns]);
    free(p);
    return NULL;
}

/* ---- the front ------------------------------------------------------------------------------------------------ */

int eng_link_open(eng_link **out, const struct eng_link_config *c, struct err *e)
{
    *out = NULL;
    if (!c->requests_max || c->requests_max >= 1u << SLOT_BITS || !c->connections_max || c->out_low > c->out_high)
        return err_set(e, ERR_INVALID, "link: expected 1 to %u requests, a connection or more, and out_low <= out_high", (1u << SLOT_BITS) - 1);
    eng_link *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "link");
    int rc = ERR_OK;
    l->c = *c;
    l->listen_fd = l->event_fd = -1;
    l->dirty_head = l->dirty_tail = LINK_NONE;
    pthread_mutex_init(&l->lock, NULL);
    buf_init(&l->hello, 4 << 20);
    news_init(&l->scratch);
    l->slots = calloc(c->requests_max, sizeof *l->slots);
    l->conns = calloc(c->connections_max, sizeof(struct link_conn *));
    l->mask = 63;
    while (l->mask < c->requests_max)
        l->mask = 2 * l->mask + 1;
    l->buckets = malloc(((size_t)l->mask + 1) * sizeof *l->buckets);
    if (!l->slots || !l->conns || !l->buckets) {
        rc = err_set(e, ERR_NOMEM, "link: %u requests", c->requests_max);
        goto out;
    }
    memset(l->buckets, 0xff, ((size_t)l->mask + 1) * sizeof *l->buckets); /* LINK_NONE */
    for (uint32_t i = 0; i < c->requests_max; i++) {
        news_init(&l->slots[i].news);
        l->slots[i].next_free = i + 1 < c->requests_max ? i + 1 : LINK_NONE;
    }
    if ((l->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) {
        rc = err_set(e, ERR_IO, "eventfd: %s", strerror(errno));
        goto out;
    }
    if ((rc = link_listen(c->listen, &l->listen_fd, &l->path, &l->port, e)))
        goto out;
    *out = l;
    l = NULL;
out:
    eng_link_close(l);
    return rc;
}

static bool make_hello(eng_link *l, const char *description, size_t n)
{
    buf_reset(&l->hello);
    buf_printf(&l->hello, "{\"proto\":%d,\"pid\":%ld", ENG_PROTO, (long)getpid());
    size_t skip = 1;
    while (skip < n && strchr(" \t\r\n", description[skip]))
        skip++;
    if (n < 2 || description[0] != '{')
        return false;
    if (description[skip] != '}')
        buf_char(&l->hello, ',');
    return buf_add(&l->hello, description + skip, n - skip);
}

int eng_link_start(eng_link *l, const struct eng_link_ops *ops, const char *description, size_t n, const struct eng_link_blob *blobs, size_t n_blobs,
                   struct err *e)
{
    l->ops = *ops;
    l->blobs = blobs;
    l->n_blobs = n_blobs;
    l->c.listen = NULL; /* borrowed for open alone */
    if (!make_hello(l, description, n))
        return err_set(e, ERR_INVALID, "link: expected a JSON object of at most 4 MiB as description");
    if (listen(l->listen_fd, 64))
        return err_set(e, ERR_IO, "listen: %s", strerror(errno));
    if (pthread_create(&l->thread, NULL, run, l))
        return err_set(e, ERR_NOMEM, "link thread");
    l->thread_on = true;
    return ERR_OK;
}

uint16_t eng_link_port(const eng_link *l) { return l->port; }

bool eng_link_idle(eng_link *l)
{
    pthread_mutex_lock(&l->lock);
    bool idle = !l->live && !l->unsent;
    pthread_mutex_unlock(&l->lock);
    return idle;
}

void eng_link_stop(eng_link *l)
{
    if (!l->thread_on)
        return;
    pthread_mutex_lock(&l->lock);
    l->stopping = true;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    pthread_join(l->thread, NULL);
    l->thread_on = false;
}

void eng_link_close(eng_link *l)
{
    if (!l)
        return;
    eng_link_stop(l);
    if (l->listen_fd >= 0)
        close(l->listen_fd);
    if (l->path)
        unlink(l->path);
    free(l->path);
    if (l->event_fd >= 0)
        close(l->event_fd);
    for (uint32_t i = 0; l->slots && i < l->c.requests_max; i++)
        news_free(&l->slots[i].news);
    free(l->slots);
    free(l->buckets);
    free(l->conns);
    news_free(&l->scratch);
    buf_free(&l->hello);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
