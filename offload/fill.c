#include "offload/fill.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/weights_internal.h"

enum { UNIT = 2 << 20, PAGE = 4096 };

int off_source_open(struct off_source *s, const off_catalog *c, bool direct, struct err *e)
{
    size_t n = off_catalog_files(c);
    *s = (struct off_source){.c = c};
    if (!direct)
        return ERR_OK;
    if (!(s->direct = calloc(n ? n : 1, sizeof *s->direct)))
        return err_set(e, ERR_NOMEM, "list of %zu files", n);
    for (size_t i = 0; i < n; i++) {
        const struct off_file *f = off_catalog_file(c, i);
        s->direct[i].fd = f->fd < 0 ? -1 : off_io_open_direct(f->path, f->fd, &s->direct[i].align);
        if (s->direct[i].fd >= 0 && 2 * s->direct[i].align > s->edge)
            s->edge = 2 * s->direct[i].align;
    }
    return ERR_OK;
}

void off_source_close(struct off_source *s)
{
    for (size_t i = 0; s->direct && i < off_catalog_files(s->c); i++)
        if (s->direct[i].fd >= 0)
            close(s->direct[i].fd);
    free(s->direct);
    s->direct = NULL;
}

uint64_t off_unit_bytes(const struct off_part *p)
{
    uint64_t tile = KRN_TILE_ROWS * off_part_row(p);
    if (p->layout != KRN_TILED && !p->packed)
        return UNIT;
    return tile >= UNIT ? tile : UNIT / tile * tile;
}

/* A tile of rows put together, and the scales they need. */
static size_t tile_bytes(const struct off_part *p) { return KRN_TILE_ROWS * krn_row_bytes(p->type, p->cols); }
static size_t scale_bytes(const struct off_part *p) { return KRN_TILE_ROWS * (size_t)off_packed_scale_bytes(p->packed); }

size_t off_stage_bytes(const struct off_source *s, const struct off_part *p)
{
    uint64_t n = off_unit_bytes(p);
    size_t more = p->packed ? tile_bytes(p) + scale_bytes(p) : 0; /* what fill_packed puts behind the unit */
    return ((size_t)(n > UNIT ? n : UNIT) + s->edge + more + PAGE - 1) & ~(size_t)(PAGE - 1);
}

/* The aligned span around a run, past the page cache. NULL: not this way. */
static uint8_t *read_direct(struct off_source *s, uint8_t *stage, uint32_t file, uint64_t offset, size_t n)
{
    const struct off_direct *d = &s->direct[file];
    if (d->fd < 0)
        return NULL;
    uint64_t begin = offset & ~(uint64_t)(d->align - 1);
    size_t head = (size_t)(offset - begin), span = (head + n + d->align - 1) & ~(d->align - 1);
    ssize_t r;
    do
        r = off_io_pread(d->fd, stage, span, (off_t)begin);
    while (r < 0 && errno == EINTR);
    if (r > 0)
        atomic_fetch_add(&s->bytes_read, (uint64_t)r);
    return r >= 0 && (size_t)r >= head + n ? stage + head : NULL; /* short at the end of the file is normal */
}

/* n bytes of one file to dst, through the page cache. */
static int read_cached(struct off_source *s, const char *name, uint32_t file, uint64_t offset, size_t n, uint8_t *dst, struct err *e)
{
    const struct off_file *f = off_catalog_file(s->c, file);
    size_t got;
    int rc = off_io_read(f->fd, dst, n, offset, &got, e);
    atomic_fetch_add(&s->bytes_read, got);
    if (rc == ERR_OK && got < n)
        rc = err_set(e, ERR_IO, "expected %zu bytes at %" PRIu64 ", found the end of the file after %zu", n, offset, got);
    return rc == ERR_OK ? rc : err_prefix(e, rc, "%s: tensor \"%s\"", f->base, name);
}

/* A plain part: run by run into the slot. */
static int fill_plain(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *dst, uint8_t *stage, struct err *e)
{
    int rc = ERR_OK;
    for (uint64_t k = 0, run; rc == ERR_OK && k < n; k += run) {
        uint32_t file;
        uint64_t offset;
        run = off_part_run(p, at + k, &file, &offset);
        if (run > n - k)
            run = n - k;
        const uint8_t *got = s->direct ? read_direct(s, stage, file, offset, (size_t)run) : NULL;
        if (got)
            memcpy(dst + k, got, (size_t)run);
        else
            rc = read_cached(s, p->name, file, offset, (size_t)run, dst + k, e);
    }
    return rc;
}

/* Rows side by side in the stage. Rows that lie apart in the file are gathered through the cache, since the stage is taken. */
static int read_rows(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *stage, const uint8_t **src, struct err *e)
{
    uint32_t file;
    uint64_t offset, run = off_part_run(p, at, &file, &offset);
    int rc = ERR_OK;
    if ((*src = s->direct && run >= n ? read_direct(s, stage, file, offset, (size_t)n) : NULL))
        return ERR_OK;
    *src = stage;
    for (uint64_t k = 0; rc == ERR_OK && k < n; k += run) {
        run = off_part_run(p, at + k, &file, &offset);
        if (run > n - k)
            run = n - k;
        rc = read_cached(s, p->name, file, offset, (size_t)run, stage + k, e);
    }
    return rc;
}

/* The rows of scales that up to 16 rows need, one behind the other; rows that share one read it once. */
static int read_scales(struct off_source *s, const struct off_part *p, uint64_t row0, uint64_t n, uint8_t *dst, const uint8_t **scales, struct err *e)
{
    const struct off_packed *k = p->packed;
    uint64_t bytes = off_packed_scale_bytes(k), have[KRN_TILE_ROWS], offset;
    uint32_t file;
    for (uint64_t i = 0, begin = 0, runs = 0; i < n; i++) { /* neighbours are read together */
        off_part_run(p, (row0 + i) * k->row_bytes, &file, &offset);
        have[i] = off_packed_scale_row(k, offset);
        if (have[i] >= k->scales->bytes / bytes)
            return err_set(e, ERR_INVALID, "tensor \"%s\": expected %" PRIu64 " rows of scales, found %" PRIu64, k->scales->name, have[i] + 1, k->scales->bytes / bytes);
        bool same = i && have[i] == have[i - 1];
        runs += !same;
        scales[i] = dst + (runs - 1) * bytes;
        bool last = i + 1 == n;
        if (!last) {
            off_part_run(p, (row0 + i + 1) * k->row_bytes, &file, &offset);
            uint64_t next = off_packed_scale_row(k, offset);
            last = next != have[i] && next != have[i] + 1;
        }
        if (last) {
            int rc = read_cached(s, k->scales->name, k->scales->file, k->scales->offset + have[begin] * bytes, (size_t)((have[i] - have[begin] + 1) * bytes),
                                 (uint8_t *)scales[begin], e);
            if (rc != ERR_OK)
                return rc;
            begin = i + 1;
        }
    }
    return ERR_OK;
}

/* Values and scales from their two places, a tile at a time. */
static int fill_packed(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *slot, uint8_t *stage, struct err *e)
{
    size_t row = krn_row_bytes(p->type, p->cols), unit = off_stage_bytes(s, p) - tile_bytes(p) - scale_bytes(p);
    uint8_t *tile = stage + unit, *room = tile + tile_bytes(p);
    const uint8_t *src, *scales[KRN_TILE_ROWS];
    uint64_t row0 = at / p->packed->row_bytes, rows = n / p->packed->row_bytes, col = 0;
    int rc = read_rows(s, p, at, n, stage, &src, e);
    for (uint64_t r = 0; rc == ERR_OK && r < rows; r += KRN_TILE_ROWS) {
        uint64_t count = rows - r < KRN_TILE_ROWS ? rows - r : KRN_TILE_ROWS;
        if ((rc = read_scales(s, p, row0 + r, count, room, scales, e)) != ERR_OK)
            return rc;
        for (uint64_t i = 0; i < count; i++)
            if ((rc = off_packed_row(p->packed, p->cols, src + (r + i) * p->packed->row_bytes, scales[i], tile + i * row, &col)) != ERR_OK)
                return err_set(e, rc, "tensors \"%s\" and \"%s\": row %" PRIu64 ", column %" PRIu64 ": a scale or value is no finite number", p->name, p->packed->scales->name, row0 + r + i, col);
        if (p->layout == KRN_TILED)
            krn_slot_pack(p->type, p->rows, p->cols, (row0 + r) / KRN_TILE_ROWS, 1, tile, row, slot);
        else
            memcpy(slot + (row0 + r) * row, tile, count * row);
    }
    return rc;
}

/* A tiled part: whole tiles, then packed. */
static int fill_tiled(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *slot, uint8_t *stage, struct err *e)
{
    size_t row = krn_row_bytes(p->type, p->cols);
    const uint8_t *src;
    int rc = read_rows(s, p, at, n, stage, &src, e);
    if (rc != ERR_OK)
        return rc;
    krn_slot_pack(p->type, p->rows, p->cols, at / row / KRN_TILE_ROWS, (n / row + KRN_TILE_ROWS - 1) / KRN_TILE_ROWS, src, row, slot);
    return ERR_OK;
}

int off_fill(struct off_source *s, const struct off_part *p, uint64_t at, uint64_t n, uint8_t *slot, uint8_t *stage, struct err *e)
{
    if (p->packed)
        return fill_packed(s, p, at, n, slot, stage, e);
    return p->layout == KRN_TILED ? fill_tiled(s, p, at, n, slot, stage, e) : fill_plain(s, p, at, n, slot + at, stage, e);
}
