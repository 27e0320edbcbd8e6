#include "cli/state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int cli_state_dir(const char *given, char *out, size_t n)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int k = given ? snprintf(out, n, "%s", given) : xdg && *xdg == '/' ? snprintf(out, n, "%s/sluice", xdg)
          : home && *home ? snprintf(out, n, "%s/.local/state/sluice", home) : -1;
    return k > 0 && (size_t)k < n ? 0 : -1;
}

int cli_state_make(const char *dir, struct err *e)
{
    char path[4096];
    struct stat st;
    if (snprintf(path, sizeof path, "%s", dir) >= (int)sizeof path)
        return err_set(e, ERR_INVALID, "state directory: the path is too long");
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            if (mkdir(path, 0700) && errno != EEXIST)
                return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
            *p = '/';
        }
    if (mkdir(path, 0700) && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (stat(path, &st) || !S_ISDIR(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a directory", path);
    return ERR_OK;
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
