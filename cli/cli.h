/* cli/cli.h - the program's verbs. Results to stdout, progress and logs to stderr.
 * Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 could not open the model or met a fault. */
#ifndef SLUICE_CLI_CLI_H
#define SLUICE_CLI_CLI_H
enum { CLI_OK = 0, CLI_NO = 1, CLI_USAGE = 2, CLI_FAULT = 3 };
int cli_main(int argc, char **argv);
#endif
