/* cli/child.h - a child process of `serve`: this program again with another verb, watched and started anew.
 *
 * Owns:      the child's pid and the pipe on which it says that it is ready.
 * Invariant: the child dies with its parent (parent-death signal), is alone in its process group (a terminal's Ctrl-C reaches the
 *            parent only), and has no open descriptor of the parent's beyond stdio and the pipe.
 * Back-off:  the first death after a healthy life costs no wait; further ones 250 ms, doubling to 30 s; CLI_DEATHS_MAX in a row is
 *            a crash loop. A life that got ready and lasted CLI_HEALTHY_MS clears the count.
 * Threads:   one, which must be the one that started the child (the parent-death signal is tied to it). */
#ifndef SLUICE_CLI_CHILD_H
#define SLUICE_CLI_CHILD_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/err.h"

enum { CLI_DEATHS_MAX = 6, CLI_HEALTHY_MS = 20000 };
struct cli_child {
    const char *verb, *config;    /* sluice VERB --config CONFIG --ready-fd N; borrowed */
    pid_t pid;                    /* 0: not running */
    int ready_fd;                 /* -1: closed */
    bool ready, ever_ready;
    unsigned deaths;              /* in a row */
    uint64_t started_ns, retry_ns;/* retry: when to start it again, while pid is 0 */
    char said[4096]; size_t said_n;
};
int cli_child_start(struct cli_child *c, struct err *e);
/* The next whole line it wrote to its ready-fd, or NULL. "ready" sets c->ready. */
const char *cli_child_line(struct cli_child *c, char *line, size_t n);
/* Looks whether it has died; true once per death: c->pid is 0 then, *status is waitpid's, and retry_ns says when. */
bool cli_child_died(struct cli_child *c, uint64_t now_ns, int *status);
void cli_child_signal(const struct cli_child *c, int sig);
/* Waits up to ms for its end, then kills it. */
void cli_child_end(struct cli_child *c, uint64_t ms);

/* How long to wait after `deaths` in a row; UINT64_MAX: give up. */
uint64_t cli_backoff_ns(unsigned deaths);
/* "exit 3", "signal 9 (Killed)" into text. */
void cli_describe_status(int status, char *text, size_t n);
#endif
