/* Copies of a file are told apart by nothing: the drive that will have the bytes first is asked. Its queue over its rate says which;
 * the rate is of the time in which something was asked of it. */
#include "offload/source.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "offload/io.h"

enum { LATELY = 512 << 20, COMPARED = 64 << 10 };
#define PAUSE_NS (5 * NS_PER_S) /* a drive that failed is asked last for so long */

/* The same size, the same begin and end: what a file of another model, or of a broken copy, would not have. */
static int compare(const struct off_file *f, int fd, uint64_t size, const char *path, struct err *e)
{
    static const char no_copy[] = "%s: expected a copy of %s, found a file of other content";
    uint8_t *a = malloc(2 * COMPARED), *b = a ? a + COMPARED : NULL;
    int rc = a ? ERR_OK : err_set(e, ERR_NOMEM, "%s", path);
    if (!rc && size != f->size)
        rc = err_set(e, ERR_INVALID, "%s: expected a copy of %s, %" PRIu64 " bytes, found %" PRIu64, path, f->path, f->size, size);
    size_t n = size < COMPARED ? (size_t)size : COMPARED;
    for (int k = 0; k < 2 && !rc; k++) {
        uint64_t at = k ? size - n : 0;
        if (!(rc = off_io_read_all(f->fd, a, n, at, e)) && !(rc = off_io_read_all(fd, b, n, at, e)) && memcmp(a, b, n))
            rc = err_set(e, ERR_INVALID, no_copy, path, f->path);
    }
    free(a);
    return rc;
}

/* One file on one drive; a drive need not have it. */
static int open_copy(struct off_source *s, uint32_t file, uint32_t drive, bool direct, struct err *e)
{
    const struct off_file *f = off_catalog_file(s->c, file);
    struct off_copy *k = off_source_copy(s, file, drive);
    char path[PATH_MAX];
    uint64_t size;
    int rc = ERR_OK;
    if (f->fd < 0 || f->cut)
        return ERR_OK;
    if (drive == f->drive) {
        k->fd = f->fd;
        snprintf(path, sizeof path, "%s", f->path);
    } else if (snprintf(path, sizeof path, "%s/%s", s->drives[drive].dir, f->base) >= (int)sizeof path || access(path, F_OK) != 0) {
        return ERR_OK;
    } else if ((rc = off_io_open(path, &k->fd, &size, e)) == ERR_OK) {
        k->own = true;
        rc = compare(f, k->fd, size, path, e);
    }
    if (!rc && direct)
        k->direct = off_io_open_direct(path, k->fd, &k->align);
    if (k->direct >= 0 && 2 * k->align > s->edge)
        s->edge = 2 * k->align;
    return rc;
}

static int open_copies(struct off_source *s, bool direct, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t d = 0; d < s->n_drives; d++) {
        s->drives[d].dir = off_catalog_dir(s->c, d);
        for (uint32_t i = 0; i < off_catalog_files(s->c) && !rc; i++)
            rc = open_copy(s, i, d, direct, e);
    }
    return rc;
}

int off_source_open(struct off_source *s, const off_catalog *c, bool direct, enum off_io io, struct err *e)
{
    size_t n = off_catalog_files(c);
    *s = (struct off_source){.c = c, .n_drives = (uint32_t)off_catalog_dirs(c), .io = io, .kind = "pread"};
    s->copies = calloc((n + 1) * s->n_drives, sizeof *s->copies);
    s->drives = calloc(s->n_drives, sizeof *s->drives);
    int rc = s->copies && s->drives ? ERR_OK : err_set(e, ERR_NOMEM, "list of %zu files", n);
    for (size_t i = 0; !rc && i < n * s->n_drives; i++)
        s->copies[i] = (struct off_copy){.fd = -1, .direct = -1};
    if (!rc) {
        pthread_mutex_init(&s->lock, NULL);
        rc = open_copies(s, direct, e);
    }
    if (rc)
        off_source_close(s);
    return rc;
}

void off_source_close(struct off_source *s)
{
    for (size_t i = 0; s->copies && s->drives && i < off_catalog_files(s->c) * s->n_drives; i++) {
        if (s->copies[i].direct >= 0)
            close(s->copies[i].direct);
        if (s->copies[i].own)
            close(s->copies[i].fd);
    }
    if (s->copies && s->drives)
        pthread_mutex_destroy(&s->lock);
    free(s->copies);
    free(s->drives);
    s->copies = NULL;
    s->drives = NULL;
}

/* ---- drives: called with the lock held ------------------------------------------------------------------------ */
/* Seconds until a drive would have n more bytes; where nothing is known, its queue decides. */
static double until(const struct off_drive *d, size_t n, uint64_t now)
{
    double rate = d->busy_ns ? (double)d->busy_bytes * 1e9 / (double)d->busy_ns : 1e9;
    double wait = (double)(d->queued + n) / (rate > 1e6 ? rate : 1e6);
    return d->failed_ns && now - d->failed_ns < PAUSE_NS ? wait + 1e6 : wait;
}

static void charge(struct off_drive *d, size_t n, uint64_t now)
{
    if (!d->queued)
        d->busy_since = now;
    d->queued += n;
}

static void discharge(struct off_drive *d, size_t n, int64_t came, uint64_t now)
{
    d->queued -= n;
    d->busy_ns += now - d->busy_since;
    d->busy_since = now;
    d->reads++;
    if (came > 0) {
        d->bytes += (uint64_t)came;
        d->busy_bytes += (uint64_t)came;
    } else if (came < 0) {
        d->errors++;
        d->failed_ns = now;
    }
    if (d->busy_bytes > LATELY) {
        d->busy_bytes /= 2;
        d->busy_ns /= 2;
    }
}

/* ---- reading -------------------------------------------------------------------------------------------------- */
bool off_source_ask(struct off_source *s, uint32_t file, uint64_t offset, size_t n, struct off_ask *a)
{
    uint64_t now = clock_now_ns();
    double best = 0;
    *a = (struct off_ask){.fd = -1, .n = n};
    pthread_mutex_lock(&s->lock);
    for (uint32_t d = 0; d < s->n_drives; d++) {
        const struct off_copy *k = off_source_copy(s, file, d);
        double t = until(&s->drives[d], n, now);
        if (k->direct < 0 || (a->fd >= 0 && t >= best))
            continue;
        best = t;
        a->fd = k->direct;
        a->drive = d;
        a->copy = (uint32_t)(k - s->copies);
        a->align = k->align;
        a->begin = offset & ~(uint64_t)(k->align - 1);
        a->head = (size_t)(offset - a->begin);
        a->span = (a->head + n + k->align - 1) & ~(k->align - 1);
    }
    if (a->fd >= 0)
        charge(&s->drives[a->drive], a->span, now);
    pthread_mutex_unlock(&s->lock);
    return a->fd >= 0;
}

bool off_source_came(struct off_source *s, const struct off_ask *a, int64_t r)
{
    bool all = r >= 0 && (uint64_t)r >= a->head + a->n; /* short at the end of the file is normal */
    pthread_mutex_lock(&s->lock);
    discharge(&s->drives[a->drive], a->span, r, clock_now_ns());
    pthread_mutex_unlock(&s->lock);
    if (r > 0)
        atomic_fetch_add(&s->bytes_read, (uint64_t)r);
    if (all)
        atomic_fetch_add(&s->bytes_wanted, a->n);
    return all;
}

static int read_copy(struct off_source *s, uint32_t file, uint32_t drive, uint64_t offset, size_t n, uint8_t *dst, struct err *e)
{
    size_t got;
    pthread_mutex_lock(&s->lock);
    charge(&s->drives[drive], n, clock_now_ns());
    pthread_mutex_unlock(&s->lock);
    int rc = off_io_read(off_source_copy(s, file, drive)->fd, dst, n, offset, &got, e);
    atomic_fetch_add(&s->bytes_read, got);
    if (rc == ERR_OK && got < n)
        rc = err_set(e, ERR_IO, "expected %zu bytes at %" PRIu64 ", found the end of the file after %zu", n, offset, got);
    pthread_mutex_lock(&s->lock);
    discharge(&s->drives[drive], n, rc ? -1 : (int64_t)got, clock_now_ns());
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int off_source_read_cached(struct off_source *s, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, struct err *e)
{
    const struct off_file *f = off_catalog_file(s->c, file);
    int rc = ERR_OK;
    bool tried = false;
    for (uint32_t d = 0; d < s->n_drives; d++) {
        if (off_source_copy(s, file, d)->fd < 0)
            continue;
        tried = true;
        if ((rc = read_copy(s, file, d, offset, n, dst, e)) == ERR_OK) {
            atomic_fetch_add(&s->bytes_wanted, n);
            return ERR_OK;
        }
    }
    if (!tried)
        rc = err_set(e, ERR_IO, "expected the file to be open, found it missing");
    return err_prefix(e, rc, "%s: tensor \"%s\"", f->base, name);
}

int off_source_read(struct off_source *s, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, uint8_t *stage, const uint8_t **got, struct err *e)
{
    struct off_ask a;
    *got = dst;
    if (off_source_ask(s, file, offset, n, &a)) {
        ssize_t r;
        do
            r = off_io_pread(a.fd, stage, a.span, (off_t)a.begin);
        while (r < 0 && errno == EINTR);
        if (off_source_came(s, &a, r < 0 ? -errno : r)) {
            *got = stage + a.head;
            return ERR_OK;
        }
    }
    return off_source_read_cached(s, name, file, offset, n, dst, e);
}

/* ---- for people ----------------------------------------------------------------------------------------------- */
void off_source_drive(struct off_source *s, uint32_t drive, struct off_drive *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->drives[drive];
    pthread_mutex_unlock(&s->lock);
}

const char *off_source_reading(const struct off_source *s, uint32_t drive)
{
    for (uint32_t i = 0; drive < s->n_drives && i < off_catalog_files(s->c); i++)
        if (off_source_copy(s, i, drive)->fd >= 0 && off_source_copy(s, i, drive)->direct < 0)
            return "pread, page cache";
    return s->kind;
}

void off_source_tell(const struct off_source *s, void (*line)(void *ctx, const char *text), void *ctx)
{
    for (uint32_t d = 0; d < s->n_drives; d++)
        for (int direct = 1; direct >= 0; direct--) {
            const char *first = NULL;
            char text[PATH_MAX + 256];
            uint32_t n = 0;
            for (uint32_t i = 0; i < off_catalog_files(s->c); i++) {
                const struct off_copy *k = off_source_copy(s, i, d);
                if (k->fd < 0 || (k->direct >= 0) != direct)
                    continue;
                first = first ? first : off_catalog_file(s->c, i)->base;
                n++;
            }
            if (!n)
                continue;
            size_t at = (size_t)snprintf(text, sizeof text, "%.2000s/%.200s", s->drives[d].dir, first);
            if (n > 1)
                at += (size_t)snprintf(text + at, sizeof text - at, " and %u more", n - 1);
            snprintf(text + at, sizeof text - at, ": %s, %s the page cache", direct ? s->kind : "pread", direct ? "past" : "through");
            line(ctx, text);
        }
}
