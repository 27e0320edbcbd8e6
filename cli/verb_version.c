#include <stdio.h>

#include "cli/cli.h"
#include "cli/verbs.h"

int verb_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("sluice 0.1.0");
    return CLI_OK;
}
