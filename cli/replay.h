/* cli/replay.h - `sluice plan --replay`: hit rates of the expert cache on recorded routings, by policy and size. */
#ifndef SLUICE_CLI_REPLAY_H
#define SLUICE_CLI_REPLAY_H
#include <stddef.h>
#include "base/err.h"

/* One table a file, to stdout. */
int cli_replay(const char *const *files, size_t n, struct err *e);
#endif
