/* tests/support/formats.h - the built-in descriptions of calls and reasoning, compiled over a small tokenizer that has their control tokens. */
#ifndef SLUICE_TESTS_FORMATS_H
#define SLUICE_TESTS_FORMATS_H
#include "engine/format.h"

/* tools, reasoning: names of entries, NULL: none. marked: the vocabulary has the control tokens as special ones. In a; fails the test. */
struct eng_format *formats_open(const char *tools, const char *reasoning, bool marked, struct arena *a);
const struct json *formats_sections(struct arena *a); /* {"tools", "reasoning"} of the sheet that all inherit */
#endif
