/* sluice VERB: each verb is one file cli/verb_*.c. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

int main(int argc, char **argv)
{
    return cli_main(argc, argv);
}
