/* engine/sampler.h - one row of logits -> one token id.
 *
 * Order: candidates are ids < n_ids (rows beyond the tokenizer never win) that are allowed and not banned; biases are added, then repetition,
 * frequency and presence penalties (in vLLM's order; the latter two by OpenAI's formula); temperature, top-k, top-p, min-p; then one draw of a counter-based generator keyed by (seed, choice, position): a stream that is resumed draws the same numbers.
 * temperature 0 takes the largest logit, the smallest id among equals. No allocation after open. */
#ifndef SLUICE_ENGINE_SAMPLER_H
#define SLUICE_ENGINE_SAMPLER_H
#include "engine/engine.h"

typedef struct eng_sampler eng_sampler;
int eng_sampler_open(eng_sampler **out, uint32_t vocab, struct err *e);
void eng_sampler_close(eng_sampler *s);
/* What a draw depends on beside logits and parameters. Penalties are computed anew from the tokens so far, so that a resumed or
 * preempted sequence has the same ones. All borrowed. */
struct eng_draw {
    uint32_t position;                            /* number of the output token */
    const int32_t *tokens; uint32_t n_prompt, n_tokens; /* prompt, then output; ids at or above n_ids do not count */
    const struct eng_bias *bias; uint32_t n_bias;
    const int32_t *banned; size_t n_banned;       /* ids that must not be taken now (end of sequence before min_tokens) */
    const uint64_t *allowed;                      /* NULL: all; else only ids whose bit is set (a grammar's); (n_ids + 63) / 64 words */
};
/* ERR_FORMAT: a NaN or nothing finite in the row; *e says where. */
int eng_sample(eng_sampler *s, const float *logits, uint32_t n_ids, const struct eng_sampling *p, const struct eng_draw *d, int32_t *id, struct err *e);
/* Log-probability of id and the k <= ENG_TOP_MAX likeliest ids (smaller id among equals first) under softmax of the logits as they are.
 * The row must be one that eng_sample accepts. */
void eng_sample_logprobs(eng_sampler *s, const float *logits, uint32_t n_ids, int32_t id, uint32_t k, struct eng_logprobs *out);
/* A uniform number in [0, 1) with 53 bits from (seed, choice, position). Source: splitmix64 finaliser over a keyed counter. */
double eng_uniform(uint64_t seed, uint32_t choice, uint32_t position);
#endif
