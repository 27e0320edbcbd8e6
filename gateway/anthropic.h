/* gateway/anthropic.h - Anthropic's Messages API on the core that serves OpenAI's: requests in, answers and errors out in its shapes.
 *
 * Owns:      the fields of POST /v1/messages and its count_tokens; the events of its streams; its names of errors.
 * Leaves:    the life of a request to gateway/chat.c, rendering to engine/chat.h: a request becomes messages as templates know them.
 * Invariant: a stream is message_start, ping, blocks (content_block_start, content_block_delta..., content_block_stop), message_delta,
 *            message_stop; or an error event at any point. There is at least one block.
 * Source:    Anthropic's API reference, Messages (2023-06-01).
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_ANTHROPIC_H
#define SLUICE_GATEWAY_ANTHROPIC_H
#include "gateway/api.h"

int gw_anthropic_parse(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae);
/* The same for /v1/messages/count_tokens: no max_tokens, and what shapes an answer is not looked at. */
int gw_anthropic_parse_count(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae);
/* {"type":"error","error":{...}}; returns the status that goes with it: overloads are 529. */
int gw_anthropic_error(struct buf *b, const struct gw_api_error *ae, const char *request_id);
int gw_anthropic_status(const struct gw_api_error *ae);
/* The anthropic-version header, which may be absent. */
int gw_anthropic_check_version(const char *version, struct gw_api_error *ae);
#endif
