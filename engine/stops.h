/* engine/stops.h - text that may go out: nothing that could still become a stop string leaves, nothing after one ever does.
 *
 * Owns nothing but plain data; the pending text is bounded by the longest stop string plus one piece. */
#ifndef SLUICE_ENGINE_STOPS_H
#define SLUICE_ENGINE_STOPS_H
#include "base/buf.h"

#define ENG_STOPS_MAX 16
#define ENG_STOP_LEN_MAX 256
struct eng_stops { uint32_t n; uint32_t len[ENG_STOPS_MAX]; char text[ENG_STOPS_MAX][ENG_STOP_LEN_MAX]; };

/* pending holds text not yet sent. Returns true when a stop string is complete in it: *ready is then the text before the
 * earliest one (of several that begin there, the first in the list), *which its index, and the stream is over. Otherwise *ready is how many
 * bytes may leave now. */
bool eng_stops_scan(const struct eng_stops *s, const char *pending, size_t n, size_t *ready, uint32_t *which);
#endif
