#include "offload/drive.h"

#include <stdlib.h>

#include "base/clock.h"
#include "offload/reader.h"

enum { PIECE = 1 << 20, STRETCHES = 4 };

/* Units that go nowhere: parts without a slot, a stretch of a file each. */
struct probe {
    struct off_span *spans;
    struct off_part *parts;
    uint32_t n_parts, part;       /* the next one */
    uint64_t at, left;            /* of that part; units that are not back */
    uint64_t bytes;
    int rc;
    struct err err;
    pthread_mutex_t lock;         /* guards the above */
    pthread_cond_t end;
};

static bool give(void *ctx, struct off_unit *u)
{
    struct probe *p = ctx;
    pthread_mutex_lock(&p->lock);
    bool any = p->part < p->n_parts && !p->rc;
    if (any) {
        const struct off_part *x = &p->parts[p->part];
        uint64_t n = x->cols - p->at < PIECE ? x->cols - p->at : PIECE;
        *u = (struct off_unit){.part = x, .at = p->at, .n = n};
        if ((p->at += n) == x->cols) {
            p->at = 0;
            p->part++;
        }
    }
    pthread_mutex_unlock(&p->lock);
    return any;
}

static void take(void *ctx, const struct off_unit *u, int rc, const struct err *e)
{
    struct probe *p = ctx;
    pthread_mutex_lock(&p->lock);
    p->bytes += u->n;
    if (rc && !p->rc) {
        p->rc = rc;
        p->err = *e;
    }
    if (--p->left == 0 || p->rc)
        pthread_cond_signal(&p->end);
    pthread_mutex_unlock(&p->lock);
}

static bool there(const struct off_file *f) { return f->fd >= 0 && !f->cut; }

/* A few stretches of each file, long enough that the drive reads on. */
static int plan(struct probe *p, const off_catalog *c, uint64_t bytes, struct err *e)
{
    size_t n = off_catalog_files(c), most = n * STRETCHES + 1;
    uint64_t all = 0;
    p->spans = calloc(most, sizeof *p->spans);
    p->parts = calloc(most, sizeof *p->parts);
    if (!p->spans || !p->parts)
        return err_set(e, ERR_NOMEM, "probe of %zu files", n);
    for (size_t i = 0; i < n; i++)
        all += there(off_catalog_file(c, i)) ? off_catalog_file(c, i)->size : 0;
    for (size_t i = 0; i < n; i++) {
        const struct off_file *f = off_catalog_file(c, i);
        uint64_t want = there(f) ? (uint64_t)((double)(bytes < all ? bytes : all) * (double)f->size / (double)all) : 0;
        uint32_t parts = want >= (uint64_t)STRETCHES * 64 * PIECE ? STRETCHES : 1;
        for (uint32_t k = 0; k < parts && want / parts; k++) {
            struct off_span *s = &p->spans[p->n_parts];
            uint64_t len = want / parts, at = f->size / parts * k;
            *s = (struct off_span){.file = (uint32_t)i, .offset = at, .row_bytes = len, .n_rows = 1, .row_stride = len, .n_outer = 1};
            p->parts[p->n_parts++] = (struct off_part){.name = "the drive's rate", .type = KRN_I8, .layout = KRN_PLAIN, .rows = 1, .cols = len, .spans = s, .n_spans = 1};
            p->left += (len + PIECE - 1) / PIECE;
        }
    }
    return ERR_OK;
}

static int measure(struct probe *p, struct off_source *s, struct off_drive_rate *out, struct err *e)
{
    struct off_record r = {.name = "probe", .parts = p->parts, .n_parts = p->n_parts};
    off_reader *readers;
    int rc = off_reader_open(&readers, s, &r, 1, NULL, e);
    if (rc)
        return rc;
    off_reader_add(readers, &(struct off_reader_client){give, take, p});
    uint64_t t0 = clock_now_ns();
    rc = p->left ? off_reader_start(readers, e) : ERR_OK;
    pthread_mutex_lock(&p->lock);
    while (!rc && p->left && !p->rc)
        pthread_cond_wait(&p->end, &p->lock);
    uint64_t ns = clock_now_ns() - t0;
    pthread_mutex_unlock(&p->lock);
    off_reader_close(readers);
    if (p->rc && e)
        *e = p->err;
    out->bytes = p->bytes;
    out->bytes_s = p->bytes && ns ? (double)p->bytes * 1e9 / (double)ns : 0;
    return rc ? rc : p->rc;
}

int off_probe_drive(const off_catalog *c, uint64_t bytes, enum off_io io, struct off_drive_rate *out, struct err *e)
{
    return off_probe_drive_tell(c, bytes, io, NULL, NULL, out, e);
}

int off_probe_drive_tell(const off_catalog *c, uint64_t bytes, enum off_io io, void (*line)(void *ctx, const char *text), void *ctx, struct off_drive_rate *out, struct err *e)
{
    struct probe p = {.lock = PTHREAD_MUTEX_INITIALIZER, .end = PTHREAD_COND_INITIALIZER};
    struct off_source s = {0};
    *out = (struct off_drive_rate){.direct = true};
    int rc = plan(&p, c, bytes, e);
    if (!rc && !(rc = off_source_open(&s, c, true, io, e)))
        rc = measure(&p, &s, out, e);
    if (!rc && line)
        off_source_tell(&s, line, ctx);
    for (size_t i = 0; !rc && i < off_catalog_files(c); i++)
        out->direct = out->direct && (!there(off_catalog_file(c, i)) || off_source_copy(&s, (uint32_t)i, off_catalog_file(c, i)->drive)->direct >= 0);
    off_source_close(&s);
    free(p.spans);
    free(p.parts);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.end);
    return rc;
}
