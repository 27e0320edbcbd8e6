/* gateway/openai.h - bytes of a request -> what the engine needs, or an error in OpenAI's terms.
 *
 * Owns:      which fields exist, their types and ranges, which are refused by name because ignoring them would change the answer.
 * Leaves:    single values to gateway/fields.h; Anthropic's spelling to gateway/anthropic.h; rendering and tokenizing to engine/chat.h; whether the model exists and the prompt fits to gateway/chat.h.
 * Invariant: a request that parses has every known field of the right type and in range; null means absent; unknown fields are
 *            ignored, as OpenAI-compatible servers do.
 * Source:    OpenAI's API reference for POST /v1/chat/completions and /v1/completions; repetition_penalty, top_k, min_p, min_tokens and ignore_eos as vLLM spells them.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_OPENAI_H
#define SLUICE_GATEWAY_OPENAI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/json.h"
#include "engine/engine.h"
#include "gateway/structured.h"
#include "gateway/tools.h"

#define GW_STOPS_MAX 16
#define GW_STOP_BYTES_MAX 256
#define GW_CHOICES_MAX 128     /* answers of one request: prompts times n */

/* An answer that is an error: {"error":{message,type,code,param}} with its status. */
struct gw_api_error {
    int status;             /* 0: none */
    const char *type;       /* "invalid_request_error", ...; static */
    const char *code;       /* static; NULL: null */
    char param[128];        /* "": null */
    char msg[640];
    uint32_t retry_after_s; /* 0: no Retry-After */
    const char *allow;      /* 405: the Allow header; static */
    bool no_retry;          /* x-should-retry: false */
};
/* Fills *ae and returns the status; the type follows from the status. param NULL: none. */
int gw_api_error_set(struct gw_api_error *ae, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* What any API asks for, once read. */
struct gw_chat_req {
    const struct json *body;       /* the request with `messages` as a template wants them, in the arena */
    const char *model;
    bool stream, include_usage;
    uint32_t n;                    /* answers to each prompt */
    uint32_t max_tokens;           /* 0: not given */
    uint32_t min_tokens;
    bool ignore_eos, seed_given;
    struct eng_sampling sampling;  /* what is not given stays as the caller set it; seed only when seed_given */
    bool logprobs;
    uint32_t top_logprobs;
    const struct eng_bias *bias;
    uint32_t n_bias;
    const char **stops;
    uint32_t *stop_lens, n_stops;
    const struct json **prompts;   /* completions: each a string or an array of token ids; chats have one prompt, `messages` */
    uint32_t n_prompts;
    bool echo;                     /* completions: the prompt's text comes first */
    struct gw_tools tools;
    struct gw_structured structured;
    const char *effort;            /* of reasoning: "low", ...; NULL: not given */
    enum { GW_THINK_UNSAID, GW_THINK_ON, GW_THINK_OFF } think;
    const char *think_param;       /* the field that said so */
};
/* *r is filled; r->sampling holds the model's defaults on entry. Everything lives in a. 0, or the status in *ae. */
int gw_openai_parse_chat(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae);
int gw_openai_parse_completion(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae); /* completions.c */
#endif
