#include "engine/stops.h"

#include <string.h>

bool eng_stops_scan(const struct eng_stops *s, const char *pending, size_t n, size_t *ready, uint32_t *which)
{
    size_t first = SIZE_MAX, hold = n; /* earliest complete stop; earliest place where one might have begun */
    for (uint32_t i = 0; i < s->n; i++) {
        size_t len = s->len[i];
        for (size_t at = 0; at < n; at++) {
            size_t have = n - at < len ? n - at : len;
            if (memcmp(pending + at, s->text[i], have) != 0)
                continue;
            if (have == len && at < first) {
                first = at;
                *which = i;
            }
            if (have < len && at < hold)
                hold = at;
            break; /* a later match of the same string cannot come first */
        }
    }
    *ready = first != SIZE_MAX ? first : hold;
    return first != SIZE_MAX;
}
