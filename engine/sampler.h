/* engine/sampler.h - one row of logits -> one token id.
 *
 * Order: candidates are ids < n_ids (rows beyond the tokenizer never win) that are not banned; temperature, top-k, top-p, min-p; then
 * one draw of a counter-based generator keyed by (seed, choice, position): a stream that is resumed draws the same numbers.
 * temperature 0 takes the largest logit, the smallest id among equals. No allocation after open. */
#ifndef SLUICE_ENGINE_SAMPLER_H
#define SLUICE_ENGINE_SAMPLER_H
#include "engine/engine.h"

typedef struct eng_sampler eng_sampler;
int eng_sampler_open(eng_sampler **out, uint32_t vocab, struct err *e);
void eng_sampler_close(eng_sampler *s);
/* banned: ids that must not be taken now (end of sequence before min_tokens). ERR_FORMAT: a NaN or nothing finite in the row;
 * *e says where. choice: the n of a request (0 now); position: number of the output token. */
int eng_sample(eng_sampler *s, const float *logits, uint32_t n_ids, const struct eng_sampling *p, uint32_t choice, uint32_t position,
               const int32_t *banned, size_t n_banned, int32_t *id, struct err *e);
/* A uniform number in [0, 1) with 53 bits from (seed, choice, position). Source: splitmix64 finaliser over a keyed counter. */
double eng_uniform(uint64_t seed, uint32_t choice, uint32_t position);
#endif
