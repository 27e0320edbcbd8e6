/* One thread, one event base. A turn: poll, what the sockets have, then posted tasks, the to-do list, the application's on_turn, and
 * last the deadlines, so that bytes which lie in a socket count before the clock does. Deadlines are kept in a list per kind: every
 * kind has one duration, so appending keeps a list sorted, arming costs a few pointers, and one libevent timer stands for all. Work
 * that must not run inside a caller's stack (freeing a connection, its on_gone, going on with bytes read ahead) waits on the to-do
 * list for the end of the turn. Who posts a task wakes the loop only if it sleeps: a system call a turn, not one a task. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "gateway/server_internal.h"

#define SCRATCH_KEPT 65536
#define TASKS_KEPT 4096 /* room for so many stays with the loop */

/* ---- deadlines ------------------------------------------------------------------------------------------- */
void deadline_drop(struct deadline *d)
{
    if (!d->next)
        return;
    d->prev->next = d->next;
    d->next->prev = d->prev;
    d->next = d->prev = NULL;
}

static void timer_set(gw_loop *l, uint64_t at, uint64_t now)
{
    uint64_t wait = at > now ? at - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(wait / NS_PER_S), .tv_usec = (suseconds_t)(wait % NS_PER_S / 1000) + 1};
    if (tv.tv_usec == 1000000) {
        tv.tv_sec++;
        tv.tv_usec = 0;
    }
    l->timer_at = at;
    event_add(&l->timer_ev, &tv);
}

void deadline_arm(gw_loop *l, enum dl_kind kind, struct deadline *d)
{
    uint64_t now = clock_now_ns();
    struct deadline *head = &l->lists[kind];
    deadline_drop(d);
    d->at = now + l->server->ns[kind];
    d->next = head;
    d->prev = head->prev;
    head->prev->next = d;
    head->prev = d;
    if (d->at < l->timer_at)
        timer_set(l, d->at, now);
}

static struct gw_conn *deadline_conn(struct deadline *d, enum dl_kind kind)
{
    size_t off = kind == DL_STALL ? offsetof(struct gw_conn, stall) : kind == DL_BEAT ? offsetof(struct gw_conn, beat) : offsetof(struct gw_conn, dl);
    return (struct gw_conn *)(void *)((char *)d - off);
}

static void run_deadlines(gw_loop *l)
{
    uint64_t now, next = UINT64_MAX;
    if (l->timer_at == UINT64_MAX || l->timer_at > (now = clock_now_ns()))
        return;
    l->timer_at = UINT64_MAX;
    for (unsigned k = 0; k < DL_N; k++) {
        struct deadline *head = &l->lists[k], *d;
        while ((d = head->next) != head && d->at <= now) {
            deadline_drop(d);
            conn_deadline(deadline_conn(d, k), k);
        }
    }
    for (unsigned k = 0; k < DL_N; k++)
        if (l->lists[k].next != &l->lists[k] && l->lists[k].next->at < next)
            next = l->lists[k].next->at;
    if (next < l->timer_at)
        timer_set(l, next, now);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    gw_loop *l = arg;
    (void)fd;
    (void)what;
    l->timer_at = 0; /* its clock is coarse: whatever ours says, the lists are looked through and the timer set again */
}

/* ---- to do ----------------------------------------------------------------------------------------------- */
void loop_todo(gw_loop *l, struct gw_conn *c, uint8_t what)
{
    bool queued = c->todo & TODO_QUEUED;
    c->todo |= what | TODO_QUEUED;
    if (queued)
        return;
    c->todo_next = l->todo;
    l->todo = c;
}

void loop_run_todo(gw_loop *l)
{
    struct gw_conn *c = l->todo, *next;
    l->todo = NULL;
    for (; c; c = next) {
        uint8_t what = c->todo;
        next = c->todo_next;
        c->todo = 0;
        conn_do(c, what);
    }
}

/* ---- posted tasks ---------------------------------------------------------------------------------------- */
static void count_shared(gw_loop *l, size_t field_offset)
{
    atomic_fetch_add_explicit(&l->n[field_offset / 8], 1, memory_order_relaxed);
}

static void wake(gw_loop *l)
{
    uint64_t one = 1;
    while (write(l->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

int gw_loop_post(gw_loop *l, void (*fn)(void *), void *arg)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&l->lock);
    if (l->closed)
        rc = ERR_CLOSED;
    else if (l->n_tasks == l->server->cfg.post_max)
        rc = ERR_AGAIN;
    else if (l->n_tasks == l->tasks_cap) {
        size_t cap = l->tasks_cap ? l->tasks_cap * 2 : 64;
        struct task *t = realloc(l->tasks, cap * sizeof *t);
        if (t) {
            l->tasks = t;
            l->tasks_cap = cap;
        } else
            rc = ERR_AGAIN;
    }
    if (!rc) {
        l->tasks[l->n_tasks++] = (struct task){fn, arg};
        if (atomic_exchange(&l->asleep, false))
            wake(l); /* with the lock held: when the task has run, the loop may be gone */
    }
    count_shared(l, rc ? offsetof(struct gw_counters, posts_refused) : offsetof(struct gw_counters, posts));
    pthread_mutex_unlock(&l->lock);
    return rc;
}

size_t loop_posts_waiting(gw_loop *l)
{
    pthread_mutex_lock(&l->lock);
    size_t n = l->n_tasks;
    pthread_mutex_unlock(&l->lock);
    return n;
}

static void run_tasks(gw_loop *l, bool last)
{
    pthread_mutex_lock(&l->lock);
    struct task *t = l->tasks;
    size_t n = l->n_tasks, cap = l->tasks_cap;
    l->tasks = l->tasks_spare; /* the two change places: no memory is asked for in the long run */
    l->tasks_cap = l->spare_cap;
    l->n_tasks = 0;
    if (last)
        l->closed = true;
    pthread_mutex_unlock(&l->lock);
    for (size_t i = 0; i < n; i++)
        t[i].fn(t[i].arg);
    if (cap > TASKS_KEPT) {
        free(t);
        t = NULL;
        cap = 0;
    }
    l->tasks_spare = t;
    l->spare_cap = cap;
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    gw_loop *l = arg;
    uint64_t n;
    (void)what;
    if (!l->edge && read((int)fd, &n, sizeof n) < 0)
        return; /* the tasks are run at the end of the turn in any case */
}

/* The end of a turn. True: there is more to do at once, after a look at the sockets, which are not starved by work that renews itself. */
static bool settle(gw_loop *l)
{
    const struct gw_handler *h = &l->server->cfg.handler;
    if (loop_posts_waiting(l))
        run_tasks(l, false);
    loop_run_todo(l);
    run_deadlines(l);
    if (l->scratch.cap > SCRATCH_KEPT)
        buf_free(&l->scratch);
    if (h->on_turn)
        h->on_turn(h->ctx);
    pthread_mutex_lock(&l->lock);
    bool more = l->n_tasks || l->todo || l->stop;
    atomic_store(&l->asleep, !more);
    pthread_mutex_unlock(&l->lock);
    return more;
}

/* ---- small things ---------------------------------------------------------------------------------------- */
const char *loop_date(gw_loop *l)
{
    static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    if (now != l->date_s) {
        struct tm t;
        gmtime_r(&now, &t);
        snprintf(l->date, sizeof l->date, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * (t.tm_wday % 7), t.tm_mday % 100,
                 months + 3 * (t.tm_mon % 12), (t.tm_year + 1900) % 10000, t.tm_hour % 100, t.tm_min % 100, t.tm_sec % 100);
        l->date_s = now;
    }
    return l->date;
}

struct buf *gw_loop_scratch(gw_loop *l)
{
    buf_reset(&l->scratch);
    return &l->scratch;
}

unsigned gw_loop_index(const gw_loop *l) { return l->index; }
struct event_base *gw_loop_base(gw_loop *l) { return l->base; }

/* ---- life ------------------------------------------------------------------------------------------------ */
int loop_open(gw_loop **out, gw_server *s, unsigned index, struct err *e)
{
    *out = NULL;
    gw_loop *l = calloc(1, sizeof *l);
    if (!l)
        return err_set(e, ERR_NOMEM, "event loop %u", index);
    l->server = s;
    l->index = index;
    l->wake_fd = -1;
    l->timer_at = UINT64_MAX;
    for (unsigned k = 0; k < DL_N; k++)
        l->lists[k].next = l->lists[k].prev = &l->lists[k];
    pthread_mutex_init(&l->lock, NULL);
    buf_init(&l->out, ANSWER_MAX + 65536);
    buf_init(&l->scratch, 2 * (size_t)ANSWER_MAX);
    l->base = event_base_new();
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!l->base || l->wake_fd < 0 || !hash_random(&l->id_seed, sizeof l->id_seed)) {
        loop_close(l);
        return err_set(e, ERR_IO, "event loop %u: %s", index, strerror(errno));
    }
    l->edge = event_base_get_features(l->base) & EV_FEATURE_ET; /* then every write is an event of its own and none has to be read */
    event_assign(&l->wake_ev, l->base, l->wake_fd, (short)(EV_READ | EV_PERSIST | (l->edge ? EV_ET : 0)), on_wake, l);
    event_assign(&l->timer_ev, l->base, -1, 0, on_timer, l);
    event_add(&l->wake_ev, NULL);
    *out = l;
    return ERR_OK;
}

static void *loop_main(void *arg)
{
    gw_loop *l = arg;
    char name[16];
    snprintf(name, sizeof name, "gw-loop-%u", l->index % 1000);
    pthread_setname_np(pthread_self(), name);
    while (!l->stop)
        event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY | EVLOOP_ONCE | (settle(l) ? EVLOOP_NONBLOCK : 0));
    run_tasks(l, true);
    loop_run_todo(l);
    return NULL;
}

int loop_start(gw_loop *l, struct err *e)
{
    sigset_t all, old;
    sigfillset(&all); /* signals are the main thread's; SIGPIPE of a write by OpenSSL stays pending here, harmless */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGPROF};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->thread, NULL, loop_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_set(e, ERR_IO, "thread of event loop %u: %s", l->index, strerror(rc));
    l->started = true;
    return ERR_OK;
}

static void stop_task(void *arg)
{
    gw_loop *l = arg;
    for (struct gw_conn *c = l->conns; c; c = c->next)
        conn_lost(c, GW_GONE_STOPPED);
    loop_run_todo(l);
    l->stop = true;
}

void loop_close(gw_loop *l)
{
    if (!l)
        return;
    if (l->started) {
        while (gw_loop_post(l, stop_task, l) == ERR_AGAIN)
            clock_sleep_ns(NS_PER_MS);
        pthread_join(l->thread, NULL);
    }
    for (unsigned i = 0; i < l->n_listeners; i++)
        if (l->listeners[i].fd >= 0) {
            if (event_initialized(&l->listeners[i].ev))
                event_del(&l->listeners[i].ev);
            close(l->listeners[i].fd);
        }
    free(l->listeners);
    if (l->base)
        event_base_free(l->base);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    SSL_CTX_free(l->tls);
    pthread_mutex_destroy(&l->lock);
    buf_free(&l->out);
    buf_free(&l->scratch);
    free(l->tasks);
    free(l->tasks_spare);
    free(l);
}
