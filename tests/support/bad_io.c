#include "tests/support/bad_io.h"

#include <errno.h>
#include <stdatomic.h>
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

ssize_t slow_io_pread(int fd, void *p, size_t n, off_t at)
{
    if (atomic_fetch_add(&turn, 1) % 2) {
        errno = EINTR;
        return -1;
    }
    clock_sleep_ns(NS_PER_MS);
    return pread(fd, p, n > 4096 ? n / 4096 / 2 * 4096 + 512 : n, at);
}
