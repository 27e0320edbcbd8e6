#include "offload/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

off_pread_fn off_io_pread = pread;
off_ring_fn off_io_ring;

enum { READ_MAX = 1 << 30, AGAIN_MAX = 100 }; /* Linux returns at most 2 GiB - 4096 anyway */

int off_io_open(const char *path, int *fd, uint64_t *size, struct err *e)
{
    struct stat st;
    *fd = -1;
    *size = 0;
    /* O_NONBLOCK: opening a pipe must fail below, not wait for its writer. It means nothing for a regular file. */
    int f;
    do
        f = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while (f < 0 && errno == EINTR);
    if (f < 0)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(f, &st) != 0) {
        int rc = err_set(e, ERR_IO, "%s: fstat: %s", path, strerror(errno));
        close(f);
        return rc;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return err_set(e, ERR_IO, "%s: expected a regular file, found %s", path,
                       S_ISDIR(st.st_mode) ? "a directory" : S_ISFIFO(st.st_mode) ? "a pipe" : "a special file");
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return ERR_OK;
}

int off_io_read(int fd, void *p, size_t n, uint64_t at, size_t *got, struct err *e)
{
    int again = 0;
    *got = 0;
    while (*got < n) {
        size_t ask = n - *got < READ_MAX ? n - *got : READ_MAX;
        ssize_t r = off_io_pread(fd, (char *)p + *got, ask, (off_t)(at + *got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0 && errno == EAGAIN && again++ < AGAIN_MAX) {
            clock_sleep_ns(NS_PER_MS);
            continue;
        }
        if (r < 0)
            return err_set(e, ERR_IO, "read of %zu bytes at %llu: %s", n, (unsigned long long)at, strerror(errno));
        if (r == 0)
            break;
        *got += (size_t)r;
    }
    return ERR_OK;
}

int off_io_read_all(int fd, void *p, size_t n, uint64_t at, struct err *e)
{
    size_t got;
    int rc = off_io_read(fd, p, n, at, &got, e);
    if (rc == ERR_OK && got < n)
        rc = err_set(e, ERR_IO, "read of %zu bytes at %llu: the file ended after %zu", n, (unsigned long long)at, got);
    return rc;
}

/* STATX_DIOALIGN came with Linux 6.1 and may be missing from the headers; 4096 satisfies every drive in use. A drive that is content
 * with 512 has less to read at the edges. */
static size_t direct_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 && (sx.stx_mask & STATX_DIOALIGN)) {
        size_t a = sx.stx_dio_offset_align > sx.stx_dio_mem_align ? sx.stx_dio_offset_align : sx.stx_dio_mem_align;
        return sx.stx_dio_offset_align ? a : 0; /* 0: the file system says no */
    }
#endif
    (void)fd;
    return 4096;
}

int off_io_open_direct(const char *path, int fd, size_t *align)
{
    struct stat a, b;
    *align = direct_align(fd);
    if (*align == 0 || (*align & (*align - 1)))
        return -1;
    int d = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_DIRECT);
    if (d < 0)
        return -1;
    /* the path may name another file by now: what was checked at open is what must be read */
    if (fstat(fd, &a) != 0 || fstat(d, &b) != 0 || a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
        close(d);
        return -1;
    }
    return d;
}
