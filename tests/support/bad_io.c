#include "tests/support/bad_io.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static atomic_int left, code, turn;

void bad_io_after(int reads, int error)
{
    atomic_store(&code, error);
    atomic_store(&left, reads);
}

ssize_t bad_io_pread(int fd, void *p, size_t n, off_t at)
{
    if (atomic_fetch_sub(&left, 1) > 0)
        return pread(fd, p, n, at);
    errno = atomic_load(&code);
    return errno ? -1 : 0;
}

static atomic_int before, wrong, how, met;

void bad_io_nth(int n, int times, enum bad_how way)
{
    atomic_store(&met, 0);
    atomic_store(&how, way);
    atomic_store(&wrong, times);
    atomic_store(&before, n);
}

int bad_io_met(void) { return atomic_load(&met); }

/* What a read of n bytes that gave r gives instead; what it does not give must not be used. */
static int64_t spoil(void *p, size_t n, int64_t r)
{
    if (atomic_fetch_sub(&before, 1) > 0 || atomic_fetch_sub(&wrong, 1) <= 0)
        return r;
    atomic_fetch_add(&met, 1);
    int64_t half = (int64_t)(n / 1024 * 512);
    switch (atomic_load(&how)) {
    case BAD_SHORT:
        if (r <= half)
            return r;
        memset((char *)p + half, 0xEE, (size_t)(r - half));
        return half;
    case BAD_NOTHING: r = 0; break;
    case BAD_EIO: r = -EIO; break;
    case BAD_EAGAIN: r = -EAGAIN; break;
    default: r = -EINTR; break;
    }
    memset(p, 0xEE, n);
    return r;
}

int64_t bad_nth_ring(void *p, size_t n, int64_t r) { return spoil(p, n, r); }

ssize_t bad_nth_pread(int fd, void *p, size_t n, off_t at)
{
    ssize_t r = pread(fd, p, n, at);
    int64_t got = spoil(p, n, r < 0 ? -errno : r);
    if (got < 0)
        errno = (int)-got;
    return got < 0 ? -1 : (ssize_t)got;
}

ssize_t slow_io_pread(int fd, void *p, size_t n, off_t at)
{
    if (atomic_fetch_add(&turn, 1) % 2) {
        errno = EINTR;
        return -1;
    }
    clock_sleep_ns(NS_PER_MS);
    return pread(fd, p, n > 4096 ? n / 4096 / 2 * 4096 + 512 : n, at);
}
