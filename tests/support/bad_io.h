/* tests/support/bad_io.h - drives that fail, for off_io_pread (offload/io.h). Threads: any. */
#ifndef SLUICE_TESTS_BAD_IO_H
#define SLUICE_TESTS_BAD_IO_H
#include <stdint.h>
#include <sys/types.h>

/* Reads n .. n + times - 1 from now on (0: the next one), of pread and of a ring alike (off_io_ring), go wrong in one way. */
enum bad_how { BAD_SHORT, BAD_NOTHING, BAD_EIO, BAD_EAGAIN, BAD_EINTR, BAD_WAYS };
void bad_io_nth(int n, int times, enum bad_how how);
int bad_io_met(void);          /* reads that went wrong since */
ssize_t bad_nth_pread(int fd, void *p, size_t n, off_t at);
int64_t bad_nth_ring(void *p, size_t n, int64_t r);

/* From now on `reads` reads succeed; then every one fails with error, or finds the end of the file where error is 0. */
void bad_io_after(int reads, int error);
ssize_t bad_io_pread(int fd, void *p, size_t n, off_t at);
/* Every other read is interrupted, the others take a millisecond and give half at most, at odd lengths. */
ssize_t slow_io_pread(int fd, void *p, size_t n, off_t at);
#endif
