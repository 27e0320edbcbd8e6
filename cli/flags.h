/* cli/flags.h - command lines: a table of flags, parsed once for every verb; the engine flags that several verbs share.
 *
 * A flag is a conf_directive (base/conf.h) whose name is the long spelling without "--". --help prints the table. */
#ifndef SLUICE_CLI_FLAGS_H
#define SLUICE_CLI_FLAGS_H
#include "base/conf.h"
#include "engine/engine.h"

struct cli_flag {
    struct conf_directive d;
    const char *brief;        /* "-t", or NULL */
    const char *arg, *help;   /* what the value is called in the help; BOOL flags take none */
};
/* Parses argv[1..]: flags into target, others into words (at most words_max). *asked_help: --help was printed, exit 0.
 * usage: the line after "usage: sluice VERB". Several tables may be given, ended by a NULL table; each has its own target. */
struct cli_flags { const struct cli_flag *flags; size_t n; void *target; };
int cli_parse(int argc, char **argv, const char *usage, const struct cli_flags *tables, const char **words, size_t words_max, size_t *n_words,
              bool *asked_help, struct arena *a, struct err *e);

/* The engine flags of DESIGN, "Command line". Only those that act exist. */
struct cli_engine {
    const char *model, *alias, *ram, *device, *disk, *warm, *vram, *without;
    int64_t ctx, seqs, threads, chunk, page;
    int precision, kernels, kv_type, prefix, draft, io;
    bool verify_reads; /* indices of the words */
};
extern const struct cli_flag cli_engine_flags[];
extern const size_t cli_n_engine_flags;
#define CLI_ENGINE_DEFAULTS {.precision = 0, .kernels = 0, .kv_type = 0}
/* Resolves words, sizes and percentages (of the model's bytes) into an engine configuration. */
int cli_engine_config(const struct cli_engine *f, struct eng_config *c, struct err *e);
/* "1,8,32" into v: at most CLI_LIST_MAX numbers from least to most, the largest of them in top. flag: for errors. */
enum { CLI_LIST_MAX = 16 };
int cli_list(const char *flag, const char *s, long least, long most, uint32_t *v, uint32_t *n, uint32_t *top, struct err *e);
/* One line to stderr with every value in force. */
void cli_echo_config(const struct eng_config *c, const char *isa);
/* "WHAT 12 % of N MiB" on a terminal, ten times a second; quiet elsewhere. */
void cli_progress(const char *what, uint64_t done, uint64_t total);
/* The same of loading. */
void cli_load_progress(void *ctx, uint64_t done, uint64_t total);
/* Prints "sluice VERB: message" to stderr and gives the exit code for it. */
int cli_fail(const char *verb, const struct err *e);
#endif
