#include "cli/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_state_dir(const char *given, char *out, size_t n)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int k = given ? snprintf(out, n, "%s", given) : xdg && *xdg == '/' ? snprintf(out, n, "%s/sluice", xdg)
          : home && *home ? snprintf(out, n, "%s/.local/state/sluice", home) : -1;
    return k > 0 && (size_t)k < n ? 0 : -1;
}

int cli_state_read(const char *dir, const char *name, char *out, size_t n)
{
    char path[4200];
    snprintf(path, sizeof path, "%.4000s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    char *got = fgets(out, (int)n, f);
    fclose(f);
    if (!got)
        return -1;
    out[strcspn(out, "\r\n")] = 0;
    return *out ? 0 : -1;
}
