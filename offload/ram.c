#include "offload/ram.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void lower(struct off_ram *r, uint64_t bytes, const char *rule)
{
    if (bytes && bytes < r->bytes)
        *r = (struct off_ram){bytes, rule};
}

/* The number behind `key ` in a file, or the first number when key is NULL; 0: none ("max", absent). */
static uint64_t read_number(const char *path, const char *key)
{
    char line[512];
    uint64_t v = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) {
        size_t k = key ? strlen(key) : 0;
        if (key && (strncmp(line, key, k) != 0 || line[k] != ' '))
            continue;
        v = strtoull(line + k, NULL, 10);
        break;
    }
    fclose(f);
    return v;
}

/* Both hierarchies can be mounted at once; each names this process's group in /proc/self/cgroup. */
static void cgroups(const char *root, struct off_ram *r)
{
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    if (!f)
        return;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *ctl = strchr(line, ':'), *group = ctl ? strchr(ctl + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        ctl++;
        if (strstr(ctl, "memory")) {
            snprintf(path, sizeof path, "%.256s/sys/fs/cgroup/memory%.3000s/memory.stat", root, group);
            uint64_t v = read_number(path, "hierarchical_memory_limit");
            if (!v) { /* inside a container the group's own path is often mounted as the root */
                snprintf(path, sizeof path, "%.256s/sys/fs/cgroup/memory/memory.stat", root);
                v = read_number(path, "hierarchical_memory_limit");
            }
            lower(r, v, "cgroup v1");
        } else if (!*ctl) {
            for (;;) {
                snprintf(path, sizeof path, "%.256s/sys/fs/cgroup%.3000s/memory.max", root, strcmp(group, "/") ? group : "");
                lower(r, read_number(path, NULL), "cgroup v2");
                char *up = strrchr(group, '/');
                if (!up || up == group) {
                    snprintf(path, sizeof path, "%.256s/sys/fs/cgroup/memory.max", root);
                    lower(r, read_number(path, NULL), "cgroup v2");
                    break;
                }
                *up = 0;
            }
        }
    }
    fclose(f);
}

struct off_ram off_ram_limit(const char *root)
{
    struct off_ram r = {UINT64_MAX, "none"};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    lower(&r, read_number(path, "MemTotal:") * 1024, "physical memory");
    struct rlimit l;
    if (!*root && getrlimit(RLIMIT_AS, &l) == 0 && l.rlim_cur != RLIM_INFINITY)
        lower(&r, l.rlim_cur, "rlimit");
    if (!*root && getrlimit(RLIMIT_DATA, &l) == 0 && l.rlim_cur != RLIM_INFINITY)
        lower(&r, l.rlim_cur, "rlimit");
    cgroups(root, &r);
    return r;
}

uint64_t off_ram_default(struct off_ram r)
{
    uint64_t reserve = r.bytes / 20, low = 128ull << 20, high = 2ull << 30;
    reserve = reserve < low ? low : reserve > high ? high : reserve;
    return r.bytes > reserve ? r.bytes - reserve : 0;
}
