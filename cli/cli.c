#include "cli/cli.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/verbs.h"

static const struct { const char *name; int (*run)(int, char **); const char *help; } verbs[] = {
#define VERB(name, fn, help) {name, fn, help},
#include "cli/verbs.inc"
#undef VERB
};

static void usage(FILE *f)
{
    fprintf(f, "usage: sluice VERB ...   (sluice VERB --help)\n\n");
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        fprintf(f, "  %-10s %s\n", verbs[i].name, verbs[i].help);
}

/* Results that did not arrive (a full disk, a closed stream) are no success. */
static int flushed(const char *verb, int rc)
{
    bool lost = ferror(stdout) != 0;
    if (fflush(stdout) != 0 || lost) {
        fprintf(stderr, "sluice %s: standard output: %s\n", verb, lost || !errno ? "not everything could be written" : strerror(errno));
        return rc ? rc : CLI_FAULT;
    }
    return rc;
}

int cli_main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return CLI_OK;
    }
    if (!strcmp(argv[1], "--version"))
        return verb_version(1, argv + 1);
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(argv[1], verbs[i].name))
            return flushed(argv[1], verbs[i].run(argc - 1, argv + 1));
    fprintf(stderr, "sluice: no verb '%s'\n", argv[1]);
    usage(stderr);
    return CLI_USAGE;
}
