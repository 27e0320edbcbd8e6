/* Histograms, a process's CPU and memory, and the closing table. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "bench/load.h"

static unsigned bucket(uint64_t ns)
{
    unsigned top = 63u - (unsigned)__builtin_clzll(ns | 1);
    return top < 5 ? (unsigned)ns : (top - 4) * 32 + (unsigned)((ns >> (top - 5)) & 31);
}

static uint64_t value(unsigned b)
{
    return b < 32 ? b : (uint64_t)(32 + b % 32) << (b / 32 - 1);
}

void hist_add(struct hist *h, uint64_t ns)
{
    h->n++;
    h->max = ns > h->max ? ns : h->max;
    h->at[bucket(ns)]++;
}

void hist_join(struct hist *h, const struct hist *from)
{
    h->n += from->n;
    h->max = from->max > h->max ? from->max : h->max;
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        h->at[i] += from->at[i];
}

double hist_ms(const struct hist *h, double quantile)
{
    uint64_t want = (uint64_t)(quantile * (double)h->n), seen = 0;
    if (quantile >= 1 || !h->n)
        return (double)h->max * 1e-6;
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        if ((seen += h->at[i]) > want)
            return (double)(i < 32 ? i : value(i) + ((uint64_t)1 << (i / 32 - 1)) / 2) * 1e-6; /* the middle of the bucket */
    return (double)h->max * 1e-6;
}

static uint64_t count_fds(int64_t pid)
{
    char path[64];
    uint64_t n = 0;
    snprintf(path, sizeof path, "/proc/%lld/fd", (long long)pid);
    DIR *d = opendir(path);
    for (struct dirent *ent; d && (ent = readdir(d));)
        n += ent->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

struct usage usage_of(int64_t pid)
{
    struct usage u = {0};
    char path[64], text[1024];
    unsigned long user = 0, system = 0;
    long pages = 0;
    if (!pid)
        return u;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return u;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')'); /* the name may hold anything */
    u.known = p && sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %*u %*u %ld", &user, &system, &pages) == 3;
    u.cpu_ns = (uint64_t)(user + system) * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
    u.rss = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    u.fds = count_fds(pid);
    return u;
}

void row_add(struct rows *r, const char *name, double v, const char *unit)
{
    if (r->n < sizeof r->row / sizeof *r->row) {
        r->row[r->n].name = name;
        r->row[r->n].unit = unit;
        r->row[r->n++].v = v;
    }
}

void row_text(struct rows *r, const char *name, const char *text)
{
    row_add(r, name, 0, NULL);
    snprintf(r->row[r->n - 1].text, sizeof r->row[0].text, "%s", text);
}

void rows_print(const struct rows *r, bool json)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < r->n; i++) {
        bool whole = r->row[i].v == (double)(int64_t)r->row[i].v;
        if (json) {
            buf_str(&b, i ? "," : "{");
            json_put_cstr(&b, r->row[i].name);
            buf_char(&b, ':');
            if (r->row[i].unit)
                buf_printf(&b, whole ? "%.0f" : "%.6g", r->row[i].v);
            else
                json_put_cstr(&b, r->row[i].text);
        } else if (r->row[i].unit) {
            buf_printf(&b, whole ? "%-24s %12.0f     %s\n" : "%-24s %16.3f %s\n", r->row[i].name, r->row[i].v, r->row[i].unit);
        } else {
            buf_printf(&b, "%-24s %s\n", r->row[i].name, r->row[i].text);
        }
    }
    if (json)
        buf_str(&b, r->n ? "}\n" : "{}\n");
    fwrite(b.data, 1, b.len, stdout);
    fflush(stdout);
    buf_free(&b);
}
