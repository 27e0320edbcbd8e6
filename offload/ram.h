/* offload/ram.h - how much memory this process may take: the smallest of cgroup v1, cgroup v2, rlimit and physical memory.
 *
 * The cgroup is the one named in /proc/self/cgroup; v1 gives hierarchical_memory_limit, v2 the minimum of memory.max up the path.
 * root replaces "" in front of /proc and /sys, so that a test can make its own tree. */
#ifndef SLUICE_OFFLOAD_RAM_H
#define SLUICE_OFFLOAD_RAM_H
#include <stdint.h>
struct off_ram { uint64_t bytes; const char *rule; /* "cgroup v1", "cgroup v2", "rlimit", "physical memory" */ };
struct off_ram off_ram_limit(const char *root);
/* What is left after the reserve for the program, its buffers and the system: a twentieth, between 128 MiB and 2 GiB. */
uint64_t off_ram_default(struct off_ram r);
#endif
