/* gateway/calls_internal.h - matching a text against the patterns of a format: calls_match.c; the states that use it: calls.c, and of
 * arguments calls_args.c. */
#ifndef SLUICE_GATEWAY_CALLS_INTERNAL_H
#define SLUICE_GATEWAY_CALLS_INTERNAL_H
#include "gateway/calls.h"
#include "gateway/json_scan.h"

enum gw_match { GW_NO, GW_MORE /* the text ends before it is decided */, GW_YES };
/* [p, p+n); end: nothing follows, so that what would need more is NO. */
struct gw_cursor { const char *p; size_t n, at; bool end; };

/* The part of a call up to its arguments; pointers are into the text. */
struct gw_head {
    uint32_t alt, body;                /* which call pattern, which step of it the arguments are */
    const struct gw_tool *tool;
    const char *id; size_t id_n;       /* NULL: the text has none */
    bool in_object;                    /* the arguments are a member of an object that goes on after them */
    bool known; const char *args; size_t args_n; /* they came before the name, or not at all (0 bytes) */
};
struct gw_member { const char *key, *type; size_t key_n, type_n; };

bool gw_is_space(char c);
enum gw_match gw_match_literal(struct gw_cursor *c, const struct eng_pattern *p); /* a pattern of one literal */
/* section: calls of this answer have begun, `begin` was read. fresh: nothing but white space was said, so that a call may begin without a mark. */
enum gw_match gw_match_head(const struct eng_tools_format *f, const struct gw_tools *tools, bool section, bool fresh, struct gw_cursor *c, struct gw_head *h);
enum gw_match gw_match_tail(const struct eng_tools_format *f, const struct gw_head *h, struct gw_cursor *c); /* from the arguments' end */
enum gw_match gw_match_member(const struct eng_tools_format *f, struct gw_cursor *c, struct gw_member *m);   /* up to its value */
/* Where the value ends that the text begins with; NULL: not in it, and *safe bytes of it can be nothing but value. *used: with what closes it. */
const char *gw_match_value(const struct eng_tools_format *f, const char *p, size_t n, size_t *safe, size_t *used);

enum calls_state { TEXT, REASONING, ARGUMENTS, MEMBERS, VALUE, TAIL, AFTER, OVER };
struct calls_part { enum gw_part_type type; uint32_t call; size_t at, n, id_at, id_n; bool broken; };

struct gw_calls {
    struct gw_calls_config cfg;
    const struct eng_format *f;
    enum calls_state state;
    struct buf held; size_t at; bool end;
    struct buf bytes, parts, out;      /* of what was said: text, struct part, struct gw_part */
    bool starts[256];                  /* bytes that something other than text may begin with */
    bool fresh, skip_space, long_space;

    struct gw_head head;               /* of the call at hand: alt, body, tool, in_object */
    struct gw_scan scan;
    bool any_member, value_string;
    size_t raw_at;                     /* whole: where the call begins in held */
    size_t undo_bytes, undo_parts;     /* and what had been said before it */
    uint32_t n_calls, made, broken;
    uint64_t seed, reasoning;
};

/* calls.c: what was said, as parts. */
void calls_open_part(gw_calls *c, enum gw_part_type type);
void calls_close_part(gw_calls *c);
void calls_say(gw_calls *c, enum gw_part_type type, const char *p, size_t n);
size_t calls_trailing_space(const char *p, size_t n);
/* JSON with its spaces taken out; the call breaks off, and is text if it is wanted whole; what a pattern may look at. */
void calls_put_json(gw_calls *c, const char *p, size_t n);
void calls_break(gw_calls *c);
struct gw_cursor calls_window(const gw_calls *c, const char *p, size_t n);
/* calls_args.c: one step of a state; false: more text is needed. */
bool calls_step_arguments(gw_calls *c);
bool calls_step_members(gw_calls *c);
bool calls_step_value(gw_calls *c);
#endif
