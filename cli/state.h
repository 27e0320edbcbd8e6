/* cli/state.h - the state directory: where a server keeps its key, certificate and sockets between runs. */
#ifndef SLUICE_CLI_STATE_H
#define SLUICE_CLI_STATE_H
#include <stddef.h>
#define CLI_STATE_KEY  "api-key"      /* the generated key, one line */
#define CLI_STATE_CERT "cert.pem"     /* the self-signed certificate */
#define CLI_STATE_TLS_KEY "key.pem"
/* given, else $XDG_STATE_HOME/sluice, else ~/.local/state/sluice. 0, or -1: no home. Creates nothing. */
int cli_state_dir(const char *given, char *out, size_t n);
/* First line of a small file in dir. 0 or -1. */
int cli_state_read(const char *dir, const char *name, char *out, size_t n);
#endif
