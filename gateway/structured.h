/* gateway/structured.h - what a request says about the form of its answer -> a grammar for the engine.
 *
 * Owns:      response_format (text, json_object, json_schema), the extension `grammar` (GBNF), vLLM's guided_json / guided_grammar / guided_choice and
 *            structured_outputs, Anthropic's output_config.format and output_format.
 * Leaves:    schemas to engine/schema.h, grammars to engine/grammar.h; calls of tools to gateway/call_grammar.h.
 * Invariant: what is read here compiles, or the request is refused with the field and, for schemas, the place in it.
 * Source:    OpenAI's API reference, "Structured model outputs"; vLLM's and Anthropic's documentation of the same name; llama.cpp's server (`grammar`,
 *            `schema` beside json_object).
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_STRUCTURED_H
#define SLUICE_GATEWAY_STRUCTURED_H
#include "base/arena.h"
#include "base/json.h"
#include "engine/format.h"
#include "gateway/call_grammar.h"

struct gw_api_error;
struct gw_structured {
    const char *rules; size_t n;   /* GBNF without `root`: the answer is what rule `answer` says; NULL: any answer */
    bool whole;                    /* rules are the caller's own grammar, with its own `root` */
    const char *param;             /* the field that asked for it */
};
int gw_structured_read(struct gw_structured *s, const struct json *body, struct arena *a, struct gw_api_error *ae);           /* OpenAI's and vLLM's fields */
int gw_structured_read_anthropic(struct gw_structured *s, const struct json *body, struct arena *a, struct gw_api_error *ae);

/* The whole grammar of an answer. format NULL: a plain completion. place: where the prompt left the answer; reasoning comes first where the prompt has
 * opened it, and may come first where the model opens it itself, unless no_reasoning. tools: NULL, or calls of these may stand in place of the answer. tok: the
 * model's. 0, or the status in *ae. */
struct gw_structured_place { const struct eng_format *format; enum gw_call_place place; bool no_reasoning; const struct gw_tools *tools; const eng_tok *tok; };
int gw_structured_grammar(const struct gw_structured *s, const struct gw_structured_place *p, struct arena *a, const char **text, uint32_t *n, struct gw_api_error *ae);
#endif
