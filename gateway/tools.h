/* gateway/tools.h - what a request says of tools: the functions, which may or must be called, and how many at once.
 *
 * Owns:      reading `tools`, `tool_choice` and `parallel_tool_calls` in OpenAI's spelling (Anthropic's is turned into it first).
 * Leaves:    the text of calls to gateway/calls.h, their grammar to gateway/call_grammar.h, showing tools to the model to engine/chat.h.
 * Invariant: names are 1 to 128 of A-Za-z0-9_.- and differ; parameters are an object or absent.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_TOOLS_H
#define SLUICE_GATEWAY_TOOLS_H
#include <stdbool.h>
#include <stdint.h>
#include "base/arena.h"
#include "base/json.h"

#define GW_TOOLS_MAX 128
#define GW_TOOL_NAME_MAX 128

enum gw_tool_choice { GW_TOOLS_AUTO, GW_TOOLS_NONE, GW_TOOLS_REQUIRED, GW_TOOLS_NAMED };
struct gw_tool { const char *name; size_t n; const struct json *parameters; /* NULL: none said */ bool strict; };
struct gw_tools {
    struct gw_tool *v; uint32_t n;  /* 0: the request has none */
    enum gw_tool_choice choice;
    uint32_t named;                 /* index, with GW_TOOLS_NAMED */
    bool parallel;                  /* several calls in one answer may be made */
    bool parallel_said;             /* .. because the request says so: where calls are demanded, small models do not know when to stop */
};
struct gw_api_error;
/* body: the request. Borrows from its tree; the list is in a. 0, or the status in *ae, which names the field. */
int gw_tools_read(struct gw_tools *t, const struct json *body, struct arena *a, struct gw_api_error *ae);
/* A copy that lives in a alone. False: no memory. */
bool gw_tools_copy(struct gw_tools *out, const struct gw_tools *t, struct arena *a);
const struct gw_tool *gw_tools_find(const struct gw_tools *t, const char *name, size_t n); /* NULL: none */
bool gw_tools_name_ok(const char *s, size_t n);
#endif
