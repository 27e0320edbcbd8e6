/* gateway/call_grammar.h - a format and a request's tools -> the grammar (engine/grammar.h) of answers that must call, or of calls that must be well made.
 *
 * Owns:      the GBNF of calls in a format's first spelling, with the reasoning and the mark-up that come before.
 * Leaves:    arguments' schemas to engine/schema.h, enforcement to the engine.
 * Invariant: a text of the grammar is read back by gateway/calls.h as calls of the request's tools, whole.
 *            Where calls are demanded it is one, unless the request says parallel_tool_calls.
 *            Arguments follow their schema where the tool is strict; elsewhere too where the schema can be compiled, else they are any object.
 * Source:    docs/sheets.md, "Calls of tools and reasoning"; GBNF as engine/grammar.h has it.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_CALL_GRAMMAR_H
#define SLUICE_GATEWAY_CALL_GRAMMAR_H
#include "base/buf.h"
#include "engine/format.h"
#include "gateway/tools.h"

struct gw_call_grammar {
    struct buf text;     /* GBNF; empty: none is needed */
    struct buf trigger;  /* empty: it rules from the first token */
};
enum gw_call_place { GW_PLACE_START, GW_PLACE_REASONING /* the prompt ended inside */, GW_PLACE_CONTENT /* inside content's mark-up */ };
/* Both buffers are initialised here and the caller's to free. tok: the vocabulary, for control tokens. ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT: the
 * schema of tools[*bad] is refused, *e says why; ERR_NOMEM. */
int gw_call_grammar(struct gw_call_grammar *g, const struct eng_format *f, const struct gw_tools *t, enum gw_call_place place, const eng_tok *tok, uint32_t *bad, struct err *e);
void gw_call_grammar_free(struct gw_call_grammar *g);
#endif
