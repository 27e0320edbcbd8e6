/* gateway/calls.h - a model's text -> what it says: content, reasoning, calls of tools.
 *
 * Owns:      reading a text in a format of engine/format.h, as it comes.
 * Leaves:    how each API spells the parts; what tools there are to gateway/tools.h.
 * Invariant: the parts do not depend on how the text was cut; only what could still become a marker, the head of a call or white space
 *            before one is held back (at most GW_CALLS_HOLD bytes of it); arguments leave as they come and are valid JSON so far;
 *            a call of a function that is no tool, and what merely looks like a call, stays content; control tokens never become content.
 *            With `whole`, so does a call that turns out malformed or unfinished; without, what of it left before is followed by
 *            GW_PART_END with `broken`.
 * Source:    docs/sheets.md, "Calls of tools and reasoning".
 * Threads:   one owner. */
#ifndef SLUICE_GATEWAY_CALLS_H
#define SLUICE_GATEWAY_CALLS_H
#include "base/buf.h"
#include "engine/format.h"
#include "gateway/tools.h"

#define GW_CALLS_HOLD (16u << 10)
#define GW_VALUE_HOLD (64u << 10)  /* of an argument that is no string, which must be whole to be judged */

enum gw_part_type { GW_PART_CONTENT, GW_PART_REASONING, GW_PART_CALL, GW_PART_ARGUMENTS, GW_PART_END };
struct gw_part {
    enum gw_part_type type;
    uint32_t call;                    /* number of the call, from 0 */
    const char *s; size_t n;          /* text; CALL: the function's name */
    const char *id; size_t id_n;      /* CALL */
    bool broken;                      /* END */
};
struct gw_calls_config {
    const struct eng_format *format;  /* borrowed, as is tools */
    const struct gw_tools *tools;     /* NULL: none may be called */
    bool in_reasoning;                /* the prompt ended inside reasoning */
    bool whole;                       /* nothing is taken before the end */
    const char *id_prefix;            /* of ids that are made here: "call_" */
    uint64_t id_seed;
    size_t bytes_max;                 /* of what was fed and not yet taken */
};
typedef struct gw_calls gw_calls;
gw_calls *gw_calls_open(const struct gw_calls_config *c); /* NULL: no memory */
void gw_calls_close(gw_calls *c);
/* The next bytes of the text; end: there are no more. False: no memory, or too much. */
bool gw_calls_feed(gw_calls *c, const char *p, size_t n, bool end);
/* What can be said so far; valid until the next feed or drop. */
size_t gw_calls_parts(gw_calls *c, const struct gw_part **parts);
void gw_calls_drop(gw_calls *c);      /* the parts were taken */
uint32_t gw_calls_made(const gw_calls *c);      /* calls that ended whole */
uint32_t gw_calls_broken(const gw_calls *c);
uint64_t gw_calls_reasoning_bytes(const gw_calls *c);
bool gw_calls_in_reasoning(const gw_calls *c);  /* what was fed ends inside reasoning, or in a mark that may close it */
#endif
