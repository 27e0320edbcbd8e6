#include "engine/warm.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

static void header(const struct eng_model *m, char *out, size_t n)
{
    char hex[65];
    hash_hex(m->fingerprint, sizeof m->fingerprint, hex);
    snprintf(out, n, "sluice-experts 1 %s %u %u\n", hex, m->plan->choice.layers, m->plan->choice.per_layer);
}

/* Numbers of experts until the file ends: at most max. */
static int read_ids(FILE *f, uint32_t *ids, uint32_t max, uint32_t *n, struct err *e)
{
    char line[32];
    for (*n = 0; fgets(line, sizeof line, f); ++*n) {
        char *end;
        unsigned long id = strtoul(line, &end, 10);
        if (end == line || *end != '\n' || id >= max || *n == max)
            return err_set(e, ERR_FORMAT, "line %u: expected a number below %u", *n + 2, max);
        ids[*n] = (uint32_t)id;
    }
    return ferror(f) ? err_set(e, ERR_IO, "%s", strerror(errno)) : ERR_OK;
}

int eng_warm_load(off_weights *w, const struct eng_model *m, const char *path, uint32_t *n, struct err *e)
{
    char want[160], got[160];
    uint32_t max = m->plan->choice.layers * m->plan->choice.per_layer;
    *n = 0;
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(e, errno == ENOENT ? ERR_NOTFOUND : ERR_IO, "%s: %s", path, strerror(errno));
    uint32_t *ids = calloc((size_t)max + 1, sizeof *ids);
    int rc = ids ? ERR_OK : err_set(e, ERR_NOMEM, "%u experts", max);
    header(m, want, sizeof want);
    if (!rc && (!fgets(got, sizeof got, f) || strcmp(got, want)))
        rc = err_set(e, ERR_FORMAT, "expected the experts of this model");
    if (!rc && !(rc = read_ids(f, ids, max, n, e)))
        rc = off_weights_preload(w, ids, *n, e);
    free(ids);
    fclose(f);
    return rc ? err_prefix(e, rc, "%s", path) : ERR_OK;
}

int eng_warm_save(const off_weights *w, const struct eng_model *m, const char *path, struct err *e)
{
    char text[160], beside[4096];
    uint32_t max = m->plan->choice.layers * m->plan->choice.per_layer, n;
    if (snprintf(beside, sizeof beside, "%s.new", path) >= (int)sizeof beside)
        return err_set(e, ERR_IO, "%s: the path is too long", path);
    uint32_t *ids = calloc((size_t)max + 1, sizeof *ids);
    if (!ids)
        return err_set(e, ERR_NOMEM, "%u experts", max);
    FILE *f = fopen(beside, "w");
    header(m, text, sizeof text);
    n = off_weights_warm(w, ids, max);
    bool ok = f && fputs(text, f) >= 0;
    for (uint32_t i = 0; ok && i < n; i++)
        ok = fprintf(f, "%" PRIu32 "\n", ids[i]) > 0;
    ok = f && !fclose(f) && ok && !rename(beside, path);
    int rc = ok ? ERR_OK : err_set(e, ERR_IO, "%s: %s", beside, strerror(errno));
    if (!ok && f)
        unlink(beside);
    free(ids);
    return rc;
}
