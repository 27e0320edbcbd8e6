/* gateway/openai_out.h - answers in OpenAI's shapes: completions, chunks of a stream, usage, models, errors.
 *
 * Owns:      the JSON of each; nothing is sent here. Of a chat: gw_api_chat of gateway/api.h.
 * Invariant: every chunk of one answer carries the same id, created, model and system_fingerprint; a stream is, for each choice,
 *            role, reasoning, content and calls as they come, finish, then [usage], [DONE]; usage is null on all chunks but the last when it was asked for.
 * Source:    OpenAI's API reference, chat completion (chunk) objects; `timings` as llama.cpp's server has them.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_OPENAI_OUT_H
#define SLUICE_GATEWAY_OPENAI_OUT_H
#include "gateway/api.h"

void gw_out_head(struct buf *b, const struct gw_answer_head *h, const char *object); /* {"id":...,"system_fingerprint":... without the brace's end */
void gw_out_usage(struct buf *b, const struct eng_usage *u);           /* "usage":{...},"timings":{...} */
void gw_out_chunk_error(struct buf *b, const struct gw_api_error *ae); /* an event, with [DONE] */
void gw_out_error(struct buf *b, const struct gw_api_error *ae);
void gw_out_model(struct buf *b, const char *id, int64_t created, uint32_t ctx);

const char *gw_out_finish_reason(enum eng_finish f); /* "stop", "length"; NULL: the request did not end well */
#endif
