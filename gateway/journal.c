#include "gateway/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"

struct gw_journal {
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread;
    bool started, end, reopen;
    struct buf wait;
    uint64_t dropped;
    char *path; /* NULL: stderr */
    int fd;     /* the thread's */
};

static int open_file(const char *path) { return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640); }

static void write_all(gw_journal *j, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(j->fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0) {
            log_warn("log file %s: %s", j->path ? j->path : "stderr", strerror(errno));
            return;
        }
        p += w;
        n -= (size_t)w;
    }
}

static void open_again(gw_journal *j)
{
    int fd = j->path ? open_file(j->path) : -1;
    if (fd >= 0) {
        close(j->fd);
        j->fd = fd;
    } else if (j->path) {
        log_error("log file %s: %s: the old one is written on", j->path, strerror(errno));
    }
}

static void *writer(void *arg)
{
    gw_journal *j = arg;
    struct buf mine;
    buf_init(&mine, GW_JOURNAL_MAX);
    pthread_mutex_lock(&j->lock);
    while (!j->end || j->wait.len) {
        if (!j->wait.len && !j->reopen) {
            pthread_cond_wait(&j->news, &j->lock);
            continue;
        }
        struct buf take = j->wait; /* the two buffers change places: no memory is asked for in the long run */
        bool reopen = j->reopen;
        j->wait = mine;
        j->reopen = false;
        pthread_mutex_unlock(&j->lock);
        write_all(j, take.data, take.len);
        if (reopen)
            open_again(j);
        buf_reset(&take);
        mine = take;
        pthread_mutex_lock(&j->lock);
    }
    pthread_mutex_unlock(&j->lock);
    buf_free(&mine);
    return NULL;
}

int gw_journal_open(gw_journal **out, const char *path, struct err *e)
{
    sigset_t all, old;
    gw_journal *j = calloc(1, sizeof *j);
    bool to_stderr = !strcmp(path, "stderr");
    *out = NULL;
    if (!j || (!to_stderr && !(j->path = strdup(path)))) {
        free(j);
        return err_set(e, ERR_NOMEM, "log file %s", path);
    }
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->news, NULL);
    buf_init(&j->wait, GW_JOURNAL_MAX);
    if ((j->fd = to_stderr ? 2 : open_file(path)) < 0) {
        int rc = err_set(e, ERR_IO, "log file %s: %s", path, strerror(errno));
        gw_journal_close(j);
        return rc;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    j->started = !pthread_create(&j->thread, NULL, writer, j);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!j->started) {
        gw_journal_close(j);
        return err_set(e, ERR_NOMEM, "thread of log file %s", path);
    }
    *out = j;
    return ERR_OK;
}

void gw_journal_close(gw_journal *j)
{
    if (!j)
        return;
    if (j->started) {
        pthread_mutex_lock(&j->lock);
        j->end = true;
        pthread_cond_signal(&j->news);
        pthread_mutex_unlock(&j->lock);
        pthread_join(j->thread, NULL);
    }
    if (j->path && j->fd >= 0)
        close(j->fd);
    pthread_cond_destroy(&j->news);
    pthread_mutex_destroy(&j->lock);
    buf_free(&j->wait);
    free(j->path);
    free(j);
}

void gw_journal_put(gw_journal *j, const char *line, size_t n)
{
    if (!j || !n)
        return;
    pthread_mutex_lock(&j->lock);
    bool wake = !j->wait.len;
    if (!buf_add(&j->wait, line, n)) {
        j->wait.failed = false; /* there is room again once the writer has taken it */
        j->dropped++;
    }
    if (wake)
        pthread_cond_signal(&j->news);
    pthread_mutex_unlock(&j->lock);
}

void gw_journal_reopen(gw_journal *j)
{
    if (!j)
        return;
    pthread_mutex_lock(&j->lock);
    j->reopen = true;
    pthread_cond_signal(&j->news);
    pthread_mutex_unlock(&j->lock);
}

uint64_t gw_journal_dropped(gw_journal *j)
{
    if (!j)
        return 0;
    pthread_mutex_lock(&j->lock);
    uint64_t n = j->dropped;
    pthread_mutex_unlock(&j->lock);
    return n;
}

size_t gw_journal_waiting(gw_journal *j)
{
    if (!j)
        return 0;
    pthread_mutex_lock(&j->lock);
    size_t n = j->wait.len;
    pthread_mutex_unlock(&j->lock);
    return n;
}
