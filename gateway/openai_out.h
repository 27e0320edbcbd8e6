/* gateway/openai_out.h - answers in OpenAI's shapes: completions, chunks of a stream, usage, models, errors.
 *
 * Owns:      the JSON of each; nothing is sent here.
 * Invariant: every chunk of one answer carries the same id, created, model and system_fingerprint; a stream is
 *            role, content..., finish, [usage], [DONE]; usage is null on all chunks but the last when it was asked for.
 * Source:    OpenAI's API reference, chat completion (chunk) objects.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_OPENAI_OUT_H
#define SLUICE_GATEWAY_OPENAI_OUT_H
#include "base/buf.h"
#include "gateway/openai.h"

struct gw_answer_head {
    char id[40];              /* "chatcmpl-..." */
    int64_t created;          /* seconds since 1970 */
    const char *model;        /* the served id */
    const char *fingerprint;  /* "fp_..." */
    bool include_usage;
};
void gw_out_id(char id[40]);  /* a fresh random one */

/* Each appends one or more whole SSE events ("data: ...\n\n") to b. */
void gw_out_chunk_role(struct buf *b, const struct gw_answer_head *h);
void gw_out_chunk_text(struct buf *b, const struct gw_answer_head *h, const char *text, size_t n);
void gw_out_chunk_end(struct buf *b, const struct gw_answer_head *h, const char *finish_reason, const struct eng_usage *u); /* with usage, if asked, and [DONE] */
void gw_out_chunk_error(struct buf *b, const struct gw_api_error *ae); /* with [DONE] */

/* Whole JSON documents. */
void gw_out_completion(struct buf *b, const struct gw_answer_head *h, const char *text, size_t n, const char *finish_reason, const struct eng_usage *u);
void gw_out_error(struct buf *b, const struct gw_api_error *ae);
void gw_out_model(struct buf *b, const char *id, int64_t created, uint32_t ctx);

const char *gw_out_finish_reason(enum eng_finish f); /* "stop", "length"; NULL: the request did not end well */
#endif
