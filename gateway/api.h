/* gateway/api.h - what differs between the APIs that generate text: how a request is read and how its answer is spelled.
 *
 * Owns:      the table of functions of each; the life of a request is one for all (gateway/chat.h).
 * Invariant: a stream is begin, then pieces of each choice (the first marked, the last with its finish), then end; whatever order the
 *            choices speak in. Functions append whole events to a buffer and send nothing.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_API_H
#define SLUICE_GATEWAY_API_H
#include "base/buf.h"
#include "gateway/calls.h"
#include "gateway/logprobs.h"
#include "gateway/metrics.h"
#include "gateway/openai.h"

struct gw_answer_head {
    char id[48];              /* the API's prefix and random digits */
    int64_t created;          /* seconds since 1970 */
    const char *model;        /* the served id */
    const char *fingerprint;  /* "fp_..." */
    bool include_usage, logprobs;
    bool hide_reasoning;      /* reasoning was switched off: what a model thinks nevertheless is not shown */
    uint32_t prompt_tokens;   /* of all prompts */
    const char *const *stops; /* the stop strings, for an answer that names the one that was met */
    const eng_tok *tok;       /* of logprobs */
};
/* Blocks of a streamed answer that is made of them: which is open. */
struct gw_blocks { uint32_t n; bool open; enum gw_part_type type; };
/* What one choice says now. In a whole answer: all of it. */
struct gw_piece {
    uint32_t index;
    bool first;               /* nothing of this choice went out before */
    const struct gw_part *part; size_t n; /* text that no format was read in is one part of content */
    struct gw_blocks *blocks;
    uint32_t calls;           /* ended: whole calls that were made in the answer */
    const struct gw_lp *lp; size_t n_lp; /* so many tokens' logprobs go with the text */
    bool ended;
    enum eng_finish finish; int32_t stop; /* ended: STOP or LENGTH */
};
struct gw_api {
    enum gw_route route;
    const char *id_prefix, *call_prefix, *heartbeat;
    int (*parse)(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae);
    void (*begin)(struct buf *b, const struct gw_answer_head *h); /* NULL: nothing */
    void (*piece)(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p);
    void (*end)(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *last, const struct eng_usage *u); /* last: how choice 0 ended */
    void (*error)(struct buf *b, const struct gw_api_error *ae); /* in a stream; ends it */
    void (*whole)(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u);
};
extern const struct gw_api gw_api_chat;        /* openai_out.c */
extern const struct gw_api gw_api_completions; /* completions.c */
extern const struct gw_api gw_api_messages;    /* anthropic_out.c */

void gw_out_id(char id[48], const char *prefix); /* a fresh random one */
#endif
