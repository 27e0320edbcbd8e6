/* cli/service.h - what the long-running verbs (engine, gateway, serve) share: a configuration from a file and flags, logging,
 * signals that ask for the end, and the word that something is ready. */
#ifndef SLUICE_CLI_SERVICE_H
#define SLUICE_CLI_SERVICE_H
#include "base/buf.h"
#include "cli/flags.h"

struct cli_service {
    const char *config;      /* --config FILE: read first, flags override it */
    int log_level;           /* enum log_level */
    bool log_json;
    uint64_t drain_ms;       /* after SIGTERM: how long running requests may go on */
    int64_t ready_fd;        /* is told "ready" (and closed) once requests can be served; -1: nobody */
};
extern const struct cli_flag cli_service_flags[];
extern const size_t cli_n_service_flags;
#define CLI_SERVICE_DEFAULTS {.log_level = 2, .drain_ms = 30000, .ready_fd = -1}

/* The file named by --config (if any) and the flags. tables[0].target is the struct cli_service. Sets the log up for `part`.
 * Returns CLI_OK; CLI_USAGE or CLI_FAULT, reported; -1 when --help was asked for. */
int cli_service_read(int argc, char **argv, const char *part, const char *usage, const struct cli_flags *tables, struct arena *a);
/* The file alone: its directives are the flags of the tables, spelled with _ for -. */
int cli_read_config(const char *path, const struct cli_flags *tables, struct arena *a, struct err *e);
const char *cli_directive(const char *flag, struct arena *a); /* "log-level" -> "log_level" */
/* The reverse: lines that cli_read_config reads back into the same values. ERR_INVALID: text with control characters. */
int cli_put_config(struct buf *b, const struct cli_flags *tables, struct arena *a, struct err *e);
int cli_put_string(struct buf *b, const char *name, const char *value, struct err *e); /* one line of text, quoted */

/* SIGTERM, SIGINT (and SIGHUP of a terminal that closes): until cli_signals_ready they end the process at once, afterwards they wait
 * for cli_signal, where SIGCHLD shows up too. SIGPIPE is ignored. Before any thread starts. */
int cli_signals_open(struct err *e);
void cli_signals_usr2(void);          /* SIGUSR2 is passed on too; otherwise it is ignored */
void cli_signals_ready(void);
int cli_signal_fd(void);              /* readable when a signal waits */
int cli_signal(int timeout_ms);       /* the next one's number; 0: none within the time; < 0 waits for ever */

void cli_tell(int64_t fd, const char *line); /* writes a line to a --ready-fd; nothing for -1 */
#endif
