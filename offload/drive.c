#include "offload/drive.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "offload/io.h"

enum { PIECE = 2 << 20 };

struct probe {
    int fd;
    uint64_t n, stride;           /* pieces to read, bytes between their starts */
    atomic_uint_fast64_t next, read;
    atomic_int failed;            /* errno */
};

static void *work(void *arg)
{
    struct probe *p = arg;
    uint8_t *buf = aligned_alloc(4096, PIECE);
    for (uint64_t i; buf && !atomic_load(&p->failed) && (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
        ssize_t r = off_io_pread(p->fd, buf, PIECE, (off_t)(i * p->stride));
        if (r < 0)
            atomic_store(&p->failed, errno);
        else
            atomic_fetch_add(&p->read, (uint64_t)r);
    }
    if (!buf)
        atomic_store(&p->failed, ENOMEM);
    free(buf);
    return NULL;
}

static int probe_file(const struct off_file *f, unsigned threads, uint64_t bytes, struct off_drive_rate *out, uint64_t *ns, struct err *e)
{
    size_t align;
    int direct = off_io_open_direct(f->path, f->fd, &align);
    uint64_t pieces = f->size / PIECE, want = (bytes + PIECE - 1) / PIECE;
    struct probe p = {.fd = direct >= 0 ? direct : f->fd, .n = pieces < want ? pieces : want};
    pthread_t t[16];
    unsigned n = 0;
    p.stride = p.n ? pieces / p.n * PIECE : 0;
    out->direct = out->direct && direct >= 0;
    uint64_t t0 = clock_now_ns();
    while (n + 1 < threads && n < sizeof t / sizeof *t && pthread_create(&t[n], NULL, work, &p) == 0)
        n++;
    work(&p);
    while (n)
        pthread_join(t[--n], NULL);
    *ns += clock_now_ns() - t0;
    out->bytes += atomic_load(&p.read);
    if (direct >= 0)
        close(direct);
    return atomic_load(&p.failed) ? err_set(e, ERR_IO, "%s: reading for the drive's rate: %s", f->base, strerror(atomic_load(&p.failed))) : ERR_OK;
}

int off_probe_drive(const off_catalog *c, unsigned threads, uint64_t bytes, struct off_drive_rate *out, struct err *e)
{
    uint64_t all = 0, ns = 0;
    int rc = ERR_OK;
    *out = (struct off_drive_rate){.direct = true};
    for (size_t i = 0; i < off_catalog_files(c); i++)
        all += off_catalog_file(c, i)->size;
    for (size_t i = 0; i < off_catalog_files(c) && !rc; i++) {
        const struct off_file *f = off_catalog_file(c, i);
        if (f->fd >= 0 && all)
            rc = probe_file(f, threads, (uint64_t)((double)bytes * (double)f->size / (double)all), out, &ns, e);
    }
    out->bytes_s = ns ? (double)out->bytes * 1e9 / (double)ns : 0;
    return rc;
}
