/* engine/formula.h - what a context costs in memory, as formulas with this model's numbers: KV bytes a token by group, state bytes a sequence by field.
 *
 * Invariant: the bytes are those that kv.h and states.h charge; the formula's product is them, but for rounding to 64 bytes. */
#ifndef SLUICE_ENGINE_FORMULA_H
#define SLUICE_ENGINE_FORMULA_H
#include "engine/kv.h"

struct eng_formula {
    char what[48];            /* "KV", "KV latent", "KV window 128", "state kda.s" */
    char text[160];           /* "24 layers x 2 x 2 heads x 64 x 2 bytes" */
    uint64_t bytes;           /* KV: of a token; state: of a sequence */
    bool state;
    uint64_t seq_bytes;       /* of one sequence of the context in force; of KV in whole pages */
    uint32_t pages, page_tokens; /* KV: so many of a sequence's pages at most, of so many tokens */
};
enum { ENG_FORMULAS_MAX = 64 };
/* How many; those beyond max are left out. */
uint32_t eng_formulas(const struct eng_plan *p, const struct eng_kv_config *c, struct eng_formula *out, uint32_t max);
#endif
