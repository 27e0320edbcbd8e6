/* engine/template_verify.h - a template held against golden renderings: one check a case, as `sluice verify --template` prints them. */
#ifndef SLUICE_ENGINE_TEMPLATE_VERIFY_H
#define SLUICE_ENGINE_TEMPLATE_VERIFY_H
#include <stdio.h>
#include "base/err.h"

/* cases: {"now": "2026-07-15T12:34:56", "cases": [...]}. With a template file, a case has messages, tools, documents,
 * add_generation_prompt, extra (more variables), and rendered_ext, rendered, or error with error_type. With tmpl_file NULL it has a
 * template of its own (or `parts`: [text, times] pairs) and a context, and `expected`, or error, or `expect` ("error", "output",
 * "error or output") with output; lists are then frozen as in the reference. An error must come where one is expected; its text is
 * compared for raise_exception alone. Failures are printed to out (NULL: nowhere), one line each; the caller sums up. */
int eng_template_verify(const char *tmpl_file, const char *cases_file, FILE *out, unsigned *passed, unsigned *failed, struct err *e);
#endif
