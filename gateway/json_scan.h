/* gateway/json_scan.h - one JSON value, byte by byte: valid so far, over, or wrong.
 *
 * Owns:      where in the value a byte stands, in a few words of state: nothing is kept of the text itself.
 * Invariant: what was written to `out` is a prefix of a valid JSON value; line ends and tabs that stand raw in a string, which models
 *            write and JSON forbids, are written as escapes.
 * Threads:   none of its own. */
#ifndef SLUICE_GATEWAY_JSON_SCAN_H
#define SLUICE_GATEWAY_JSON_SCAN_H
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"

#define GW_SCAN_DEPTH 64
struct gw_scan { uint64_t arrays; uint8_t depth, at, sub; bool key; const char *word; };
enum gw_scan_end { GW_SCAN_MORE, GW_SCAN_OVER /* this byte was its last */, GW_SCAN_WRONG /* this byte is none of it */ };

void gw_scan_init(struct gw_scan *s);
enum gw_scan_end gw_scan_byte(struct gw_scan *s, unsigned char c, struct buf *out);
bool gw_scan_ends(const struct gw_scan *s);                /* may the text end here: after a number, which does not say so itself */
bool gw_scan_is_json(const char *p, size_t n);             /* one value, white space around it */
void gw_scan_put_string(struct buf *out, const char *p, size_t n); /* the inside of a JSON string; bytes above 0x7F as they are */
#endif
