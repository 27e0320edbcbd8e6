#include "offload/fill.h"

#include <inttypes.h>
#include <string.h>

#include "offload/pack.h"
#include "offload/weights_internal.h"

enum { UNIT = 1 << 20, PAGE = 4096, GATHER = 512 << 10 };
_Static_assert((int)UNIT == (int)OFF_PACK_PIECE, "a unit of a packed record is what a checksum is of");

uint64_t off_unit_bytes(const struct off_part *p)
{
    uint64_t tile = KRN_TILE_ROWS * off_part_row(p);
    if (p->layout != KRN_TILED && !p->packed)
        return UNIT;
    return tile >= UNIT ? tile : UNIT / tile * tile;
}

/* A tile of rows put together, and the scales they need. */
static size_t tile_bytes(const struct off_part *p) { return KRN_TILE_ROWS * krn_row_bytes(p->type, p->cols); }
static size_t scale_bytes(const struct off_part *p) { return 2 * KRN_TILE_ROWS * (size_t)off_packed_scale_bytes(p->packed); } /* every other row */

/* Room for rows that lie apart in the file, behind all else. */
static size_t gather_bytes(const struct off_part *p)
{
    const struct off_span *one = p->n_spans == 1 ? &p->spans[0] : NULL;
    return one && one->n_outer == 1 && (one->n_rows == 1 || one->row_stride == one->row_bytes) ? 0 : GATHER;
}

static size_t unit_most(const struct off_part *p)
{
    uint64_t unit = off_unit_bytes(p), all = off_part_bytes(p);
    return (size_t)(unit < all ? unit : all);
}

size_t off_stage_bytes(const struct off_source *s, const struct off_part *p)
{
    size_t more = p->packed ? tile_bytes(p) + scale_bytes(p) : 0; /* what fill_packed puts behind the unit */
    return (unit_most(p) + s->edge + more + gather_bytes(p) + PAGE - 1) & ~(size_t)(PAGE - 1);
}

size_t off_stage_most(const struct off_source *s, const struct off_record *records, uint32_t n_records)
{
    size_t most = PAGE;
    for (uint32_t r = 0; r < n_records; r++) {
        uint32_t pieces;
        const struct off_part *p = off_record_pieces(&records[r], &pieces);
        for (uint32_t k = 0; k < pieces; k++) {
            size_t n = off_stage_bytes(s, &p[k]);
            most = n > most ? n : most;
        }
    }
    return most;
}

/* Of a packed copy: a piece against its checksum. */
static bool sum_is_right(const struct off_source *s, const struct off_unit *u, const uint8_t *came)
{
    bool piece = u->at % OFF_PACK_PIECE == 0 && (u->n == OFF_PACK_PIECE || u->at + u->n == off_part_bytes(u->part));
    return !s->verify || !u->part->sums || !piece || off_pack_sum(came, (size_t)u->n) == u->part->sums[u->at / OFF_PACK_PIECE];
}

static int check_sum(const struct off_source *s, const struct off_unit *u, const uint8_t *came, struct err *e)
{
    if (sum_is_right(s, u, came))
        return ERR_OK;
    return err_set(e, ERR_IO, "%s: record \"%s\": expected checksum %016" PRIx64 " of %" PRIu64 " bytes at %" PRIu64 ", found %016" PRIx64, OFF_PACK_DATA, u->part->name,
                   u->part->sums[u->at / OFF_PACK_PIECE], u->n, u->part->spans->offset + u->at, off_pack_sum(came, (size_t)u->n));
}

/* A plain part: run by run into the slot. */
static int fill_plain(struct off_source *s, const struct off_unit *u, uint8_t *stage, struct err *e)
{
    uint8_t *dst = u->slot + u->at;
    int rc = ERR_OK;
    for (uint64_t k = 0, run; rc == ERR_OK && k < u->n; k += run) {
        uint32_t file;
        uint64_t offset;
        const uint8_t *got;
        run = off_part_run(u->part, u->at + k, &file, &offset);
        if (run > u->n - k)
            run = u->n - k;
        rc = off_source_read(s, u->part->name, file, offset, (size_t)run, dst + k, stage, &got, e);
        if (rc == ERR_OK && got != dst + k)
            memcpy(dst + k, got, (size_t)run);
    }
    return rc ? rc : check_sum(s, u, dst, e);
}

/* The unit's bytes from `at` on that lie close together in one file: runs with no more than their own length between them (another
 * matrix's rows), within GATHER bytes. *end: of the stretch in the file. Returns where in the unit they end. */
static uint64_t stretch(const struct off_unit *u, uint64_t at, uint32_t file, uint64_t begin, uint64_t *end)
{
    *end = begin;
    for (uint64_t run; at < u->n; at += run) {
        uint32_t f;
        uint64_t offset;
        run = off_part_run(u->part, u->at + at, &f, &offset);
        run = run < u->n - at ? run : u->n - at;
        if (*end > begin && (f != file || offset < *end || offset - *end > run || offset + run - begin > GATHER))
            break;
        *end = offset + run;
    }
    return at;
}

/* One read of such a stretch, its runs picked into dst; a run alone is read into its place. *k: bytes of the unit that are done. */
static int gather(struct off_source *s, const struct off_unit *u, uint64_t *k, uint8_t *dst, uint8_t *room, struct err *e)
{
    uint32_t file;
    uint64_t begin, end, offset, run = off_part_run(u->part, u->at + *k, &file, &begin), next = stretch(u, *k, file, begin, &end);
    bool alone = end - begin == next - *k; /* nothing between */
    int rc = off_source_read_cached(s, u->part->name, file, begin, (size_t)(end - begin), alone ? dst + *k : room, e);
    for (; *k < next && rc == ERR_OK && !alone; *k += run) {
        run = off_part_run(u->part, u->at + *k, &file, &offset);
        run = run < next - *k ? run : next - *k;
        memcpy(dst + *k, room + (offset - begin), (size_t)run);
    }
    *k = next;
    return rc;
}

/* Rows side by side in the stage. Rows that lie apart in the file are gathered through the cache, since the stage is taken. */
static int read_rows(struct off_source *s, const struct off_unit *u, uint8_t *stage, const uint8_t **src, struct err *e)
{
    uint32_t file;
    uint64_t offset, run = off_part_run(u->part, u->at, &file, &offset);
    int rc = ERR_OK;
    if (run >= u->n)
        return off_source_read(s, u->part->name, file, offset, (size_t)u->n, stage, stage, src, e);
    *src = stage;
    for (uint64_t k = 0; rc == ERR_OK && k < u->n;)
        rc = gather(s, u, &k, stage, stage + off_stage_bytes(s, u->part) - GATHER, e);
    return rc;
}

/* The rows of scales that up to 16 rows need, in their order; rows that share one read it once, rows that lie close are read at once. */
static int read_scales(struct off_source *s, const struct off_part *p, uint64_t row0, uint64_t n, uint8_t *dst, const uint8_t **scales, struct err *e)
{
    const struct off_packed *k = p->packed;
    uint64_t bytes = off_packed_scale_bytes(k), have[KRN_TILE_ROWS], offset;
    uint32_t file;
    for (uint64_t i = 0, begin = 0; i < n; i++) {
        off_part_run(p, (row0 + i) * k->row_bytes, &file, &offset);
        have[i] = off_packed_scale_row(k, offset);
        if (have[i] >= k->scales->bytes / bytes)
            return err_set(e, ERR_INVALID, "tensor \"%s\": expected %" PRIu64 " rows of scales, found %" PRIu64, k->scales->name, have[i] + 1, k->scales->bytes / bytes);
        scales[i] = dst + (have[i] - have[begin]) * bytes;
        bool last = i + 1 == n;
        if (!last) {
            off_part_run(p, (row0 + i + 1) * k->row_bytes, &file, &offset);
            uint64_t next = off_packed_scale_row(k, offset);
            last = next < have[i] || next - have[i] > 2;
        }
        if (last) {
            int rc = off_source_read_cached(s, k->scales->name, k->scales->file, k->scales->offset + have[begin] * bytes, (size_t)((have[i] - have[begin] + 1) * bytes),
                                 (uint8_t *)scales[begin], e);
            if (rc != ERR_OK)
                return rc;
            dst += (have[i] - have[begin] + 1) * bytes;
            begin = i + 1;
        }
    }
    return ERR_OK;
}

/* Values and scales from their two places, a tile at a time. */
static int pack_with_scales(struct off_source *s, const struct off_unit *u, uint8_t *stage, const uint8_t *src, struct err *e)
{
    const struct off_part *p = u->part;
    size_t row = krn_row_bytes(p->type, p->cols), unit = off_stage_bytes(s, p) - tile_bytes(p) - scale_bytes(p) - gather_bytes(p);
    uint8_t *slot = u->slot, *tile = stage + unit, *room = tile + tile_bytes(p);
    const uint8_t *scales[KRN_TILE_ROWS];
    uint64_t row0 = u->at / p->packed->row_bytes, rows = u->n / p->packed->row_bytes, col = 0;
    int rc = ERR_OK;
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

/* What was read into its place. */
static int place(struct off_source *s, const struct off_unit *u, uint8_t *stage, const uint8_t *src, struct err *e)
{
    const struct off_part *p = u->part;
    size_t row = krn_row_bytes(p->type, p->cols);
    if (!u->slot) /* read for its own sake (offload/drive.c) */
        return ERR_OK;
    if (p->packed)
        return pack_with_scales(s, u, stage, src, e);
    if (p->layout == KRN_TILED)
        krn_slot_pack(p->type, p->rows, p->cols, u->at / row / KRN_TILE_ROWS, (u->n / row + KRN_TILE_ROWS - 1) / KRN_TILE_ROWS, src, row, u->slot);
    else if (src != u->slot + u->at)
        memcpy(u->slot + u->at, src, u->n);
    return ERR_OK;
}

int off_fill(struct off_source *s, const struct off_unit *u, uint8_t *stage, struct err *e)
{
    const uint8_t *src;
    if (!u->part->packed && u->part->layout != KRN_TILED)
        return fill_plain(s, u, stage, e);
    int rc = read_rows(s, u, stage, &src, e);
    return rc ? rc : place(s, u, stage, src, e);
}

uint8_t *off_fill_straight(const struct off_unit *u, const struct off_ask *a)
{
    uint8_t *dst = u->slot ? u->slot + u->at : NULL;
    bool fits = !u->part->packed && u->part->layout != KRN_TILED && a->head == 0 && a->span == a->n && (uintptr_t)dst % a->align == 0;
    return fits ? dst : NULL;
}

bool off_fill_ask(struct off_source *s, const struct off_unit *u, struct off_ask *a)
{
    uint32_t file;
    uint64_t offset;
    return off_part_run(u->part, u->at, &file, &offset) >= u->n && off_source_ask(s, file, offset, (size_t)u->n, a);
}

int off_fill_came(struct off_source *s, const struct off_unit *u, uint8_t *stage, const uint8_t *came, struct err *e)
{
    uint32_t file;
    uint64_t offset;
    if (!came || !sum_is_right(s, u, came)) { /* memory may have been at fault, or the way: once more */
        off_part_run(u->part, u->at, &file, &offset);
        int rc = off_source_read_cached(s, u->part->name, file, offset, (size_t)u->n, stage, e);
        if (rc)
            return rc;
        came = stage;
        if ((rc = check_sum(s, u, came, e)))
            return rc;
    }
    return place(s, u, stage, came, e);
}
