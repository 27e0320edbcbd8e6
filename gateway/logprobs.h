/* gateway/logprobs.h - tokens' log-probabilities, held until the text they belong to leaves, and their JSON.
 *
 * Owns:      the tokens of one choice whose text is still held back; where each begins in the text.
 * Invariant: a token's entry leaves with the first byte of its text, or with the next text when it has none of its own; what a stop
 *            string cut away never leaves.
 * Source:    OpenAI's API reference: `logprobs` of chat completions and of completions.
 * Threads:   one owner. */
#ifndef SLUICE_GATEWAY_LOGPROBS_H
#define SLUICE_GATEWAY_LOGPROBS_H
#include "base/buf.h"
#include "engine/engine.h"
#include "engine/tokenizer.h"

struct gw_lp_token { int32_t id; struct eng_logprobs lp; };
struct gw_lp {
    struct buf wait;            /* struct waiting of the .c */
    struct eng_detok detok;
    uint64_t made, made_chars;  /* text of the tokens seen: bytes, characters */
    struct buf scratch;
};
void gw_lp_init(struct gw_lp *l, size_t bytes_max);
void gw_lp_free(struct gw_lp *l);
bool gw_lp_add(struct gw_lp *l, const eng_tok *tok, const struct gw_lp_token *t, size_t n); /* false: bytes_max, or no memory */
/* How many of the waiting tokens begin before byte `delivered` of the text; all: every one. */
size_t gw_lp_ready(const struct gw_lp *l, uint64_t delivered, bool all);
void gw_lp_drop(struct gw_lp *l, size_t n); /* the first n have left */

void gw_lp_put_chat(struct buf *b, const struct gw_lp *l, const eng_tok *tok, size_t n);       /* {"content":[...],"refusal":null} */
void gw_lp_put_completion(struct buf *b, const struct gw_lp *l, const eng_tok *tok, size_t n); /* {"tokens":[...],...} */
#endif
