/* tests/support/bad_io.h - drives that fail, for off_io_pread (offload/io.h). Threads: any. */
#ifndef SLUICE_TESTS_BAD_IO_H
#define SLUICE_TESTS_BAD_IO_H
#include <sys/types.h>

/* From now on `reads` reads succeed; then every one fails with error, or finds the end of the file where error is 0. */
void bad_io_after(int reads, int error);
ssize_t bad_io_pread(int fd, void *p, size_t n, off_t at);
/* Every other read is interrupted, the others take a millisecond and give half at most, at odd lengths. */
ssize_t slow_io_pread(int fd, void *p, size_t n, off_t at);
#endif
