/* offload/io.h - regular files opened and read whole: EINTR, short reads, directories and pipes, errors with numbers.
 *
 * Leaves:    what the bytes mean to its callers. No mapping: a file that shrinks gives an error, never a signal.
 * Threads:   any; off_io_pread is set by tests before threads start. */
#ifndef SLUICE_OFFLOAD_IO_H
#define SLUICE_OFFLOAD_IO_H
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

/* The one system call through which offload/ reads files. Tests put a failing one here. */
typedef ssize_t (*off_pread_fn)(int fd, void *p, size_t n, off_t at);
extern off_pread_fn off_io_pread;
/* What a ring (offload/queue.h) says of a read, r bytes or -errno, as tests would have it; NULL: as it is. The bytes are in p already. */
typedef int64_t (*off_ring_fn)(void *p, size_t n, int64_t r);
extern off_ring_fn off_io_ring;

/* Opens a regular file for reading: its descriptor in *fd (the caller's to close), its bytes in *size.
 * ERR_NOTFOUND: no such file. ERR_IO: anything else, a directory or a pipe included. On error *fd is -1. */
int off_io_open(const char *path, int *fd, uint64_t *size, struct err *e);
/* Reads until n bytes are there or the file ends: *got <= n. What says EAGAIN is asked again for a tenth of a second. ERR_IO with the
 * system's reason. The message does not name the file: callers put that, and the tensor, in front. */
int off_io_read(int fd, void *p, size_t n, uint64_t at, size_t *got, struct err *e);
/* The same, and fewer than n bytes are an error: ERR_IO "N bytes at OFFSET: the file ended after M". */
int off_io_read_all(int fd, void *p, size_t n, uint64_t at, struct err *e);
/* Opens the same file again past the page cache (O_DIRECT): a descriptor, and in *align what offset, length and address must
 * be multiples of; or -1 where the file system cannot. */
int off_io_open_direct(const char *path, int fd, size_t *align);
#endif
