/* policies/draft.h - speculation: which tokens a sequence's next ones are guessed to be, and how many guesses pay.
 *
 * Guesses come from the sequence itself: what followed the last place where its latest tokens stood before (prompt lookup; A. Saxena
 * 2023, "Prompt Lookup Decoding"). A guess costs a row of the step, and gives a token when the model would have said the same.
 * Pure: counters and measured times in, a number out. Whatever is decided here, output is the same: guesses are only ever
 * confirmed, and a sampled token depends on (seed, choice, position), not on how its row came about. */
#ifndef SLUICE_POLICIES_DRAFT_H
#define SLUICE_POLICIES_DRAFT_H
#include <stdint.h>

#define POL_DRAFT_MAX 8      /* guesses of one sequence in one step */
#define POL_DRAFT_ROWS 64    /* steps with more rows than this are busy enough: no guesses */

/* Writes up to k <= POL_DRAFT_MAX guesses for what follows tokens[0, n); returns how many. The longest match of the last 2 to 8
 * tokens wins, among equals the latest. */
uint32_t pol_draft_guess(const int32_t *tokens, uint32_t n, uint32_t k, int32_t *out);

/* How often a sequence's guesses come true: an average over its latest ones. Zero: nothing known. */
struct pol_draft_record { float rate; uint32_t guesses; };
void pol_draft_seen(struct pol_draft_record *r, uint32_t guessed, uint32_t accepted);
/* A token went by without a guess: an old bad record fades, so that it is tried again some day. */
void pol_draft_idle(struct pol_draft_record *r);

/* What a step of n rows takes, as measured on steps that only decode; 0: not measured. */
struct pol_draft_cost { float ns[POL_DRAFT_ROWS + 1]; };
void pol_draft_timed(struct pol_draft_cost *c, uint32_t rows, uint64_t ns);
/* Of most <= POL_DRAFT_MAX guesses, how many rows to add to a step of `rows` rows that will give `tokens` tokens without them, so that it gives
 * the most tokens a second: 0 unless that is at least 5 % more. */
uint32_t pol_draft_rows(const struct pol_draft_record *r, const struct pol_draft_cost *c, uint32_t rows, float tokens, uint32_t most);
/* Tokens that k guesses are expected to give. */
float pol_draft_gain(const struct pol_draft_record *r, uint32_t k);
#endif
