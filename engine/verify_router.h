/* engine/verify_router.h - is a router's choice the reference's, where the error does not decide it.
 * Owns: nothing. Threads: reentrant. */
#ifndef SLUICE_ENGINE_VERIFY_ROUTER_H
#define SLUICE_ENGINE_VERIFY_ROUTER_H
#include "base/err.h"
#include "kernels/op.h"

enum eng_choice { ENG_CHOICE_SAME, ENG_CHOICE_CLOSE /* scores moved by less than the error give the reference's */, ENG_CHOICE_OTHER };
/* op: the ROUTE call; bias: its correction bias [E], NULL: none; scores [E]; ids [k] what it chose, want [k] the reference, both
 * ascending; error: of a score, absolute. ERR_NOMEM. */
int eng_router_compare(const struct krn_op *op, const float *bias, const float *scores, const float *ids, const int32_t *want, float error, enum eng_choice *out, struct err *e);
#endif
