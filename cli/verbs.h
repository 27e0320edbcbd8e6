/* cli/verbs.h - declarations of the verbs in cli/verbs.inc: int verb_NAME(argc, argv), argv[0] is the verb. */
#ifndef SLUICE_CLI_VERBS_H
#define SLUICE_CLI_VERBS_H
#define VERB(name, fn, help) int fn(int argc, char **argv);
#include "cli/verbs.inc"
#undef VERB
int verb_version(int argc, char **argv);
#endif
