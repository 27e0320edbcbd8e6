/* engine/check.h - can this model run here: files, sheet, tensors, config, operators, tokenizer, chat template, without one weight byte.
 *
 * Owns:      nothing; findings go to the caller's report (engine/report.h).
 * Readers:   `sluice check`, tests. */
#ifndef SLUICE_ENGINE_CHECK_H
#define SLUICE_ENGINE_CHECK_H
#include "engine/plan.h"
#include "engine/report.h"

/* Compiles the sheet that matches (binding only) and fills the report. *plan may be NULL when there is none to show; the caller
 * closes it. The return value is an error only when the check itself could not be made (ERR_NOMEM); the verdict is
 * eng_report_problems(). Without a sheet that claims the model, the nearest one by bound names is suggested and what stands
 * against it is listed. */
int eng_check(const off_catalog *c, struct eng_report *r, struct eng_plan **plan, struct err *e);
/* The operator list of a plan and what every backend has for each; what the given one lacks becomes findings. */
void eng_check_operators(const struct eng_plan *p, enum eng_backend backend, struct eng_report *r);

/* The columns of that list. Each says what it has kernels for, also where this build or machine cannot open it. */
struct eng_check_backend { const char *name; const struct krn_backend_api *api; };
extern const struct eng_check_backend eng_check_backends[ENG_BACKEND_COUNT];
/* The body of docs/operators.md: each operator of the registry, what the backends have for it and how exact it is. */
struct buf;
bool eng_check_page(struct buf *b);
#endif
