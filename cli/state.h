/* cli/state.h - the state directory: where a server keeps its key, certificate and sockets between runs. */
#ifndef SLUICE_CLI_STATE_H
#define SLUICE_CLI_STATE_H
#include <stddef.h>
#include "base/err.h"
#define CLI_STATE_KEY  "api-key"      /* the generated key, one line */
#define CLI_STATE_CERT "ca.crt"       /* what clients trust (gateway/cert.h) */
#define CLI_STATE_SOCKET "engine.sock"
/* given, else $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. 0, or -1: no home. Creates nothing. */
int cli_state_dir(const char *given, char *out, size_t n);
int cli_state_make(const char *dir, struct err *e); /* with its parents, mode 0700. ERR_IO */
/* First line of a small file in dir. 0 or -1. */
int cli_state_read(const char *dir, const char *name, char *out, size_t n);
#endif
