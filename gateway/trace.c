#include "gateway/trace.h"

#include <string.h>

static bool hex(const char *s, int n) /* lower case, as the standard wants it; not all zeros */
{
    bool some = false;
    for (int i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return false;
        some |= s[i] != '0';
    }
    return some;
}

bool gw_trace_id(const char *t, char id[GW_TRACE_ID])
{
    enum { LEN = 55 };
    size_t n = t ? strlen(t) : 0;
    *id = 0;
    /* A later version may be longer, with another dash; ff is no version. The flags (and version 00) may be zero. */
    bool ok = n >= LEN && t[2] == '-' && t[35] == '-' && t[52] == '-' && (hex(t, 2) || !memcmp(t, "00", 2)) && memcmp(t, "ff", 2) && hex(t + 3, 32) &&
              hex(t + 36, 16) && (hex(t + 53, 2) || !memcmp(t + 53, "00", 2)) && (n == LEN || (memcmp(t, "00", 2) && t[LEN] == '-'));
    if (ok) {
        memcpy(id, t + 3, GW_TRACE_ID - 1);
        id[GW_TRACE_ID - 1] = 0;
    }
    return ok;
}
