/* Records: where each tensor lies in its slot, and which runs of file bytes make up a part. Arithmetic only. */
#include <inttypes.h>

#include "offload/weights_internal.h"

static bool mul(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static bool add(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }

/* The rows that the spans give, or false: rows of another length, strides that overlap, a count beyond 64 bits. */
static bool rows_of(const struct off_part *p, uint64_t *rows)
{
    uint64_t row = off_part_row(p);
    *rows = 0;
    for (uint32_t i = 0; i < p->n_spans; i++) {
        const struct off_span *s = &p->spans[i];
        uint64_t n, group;
        if (row == 0 || s->row_bytes != row || !mul(s->n_outer, s->n_rows, &n) || !add(*rows, n, rows))
            return false;
        if (s->n_rows > 1 && s->row_stride < row)
            return false;
        if (s->n_outer > 1 && (!mul(s->n_rows ? s->n_rows - 1 : 0, s->row_stride, &group) || !add(group, row, &group) || s->outer_stride < group))
            return false;
    }
    return true;
}

int off_record_layout(struct off_record *r, struct err *e)
{
    uint64_t at = 0, file = 0;
    for (uint32_t i = 0; i < r->n_parts; i++) {
        struct off_part *p = &r->parts[i];
        uint64_t rows, bytes = krn_slot_bytes(p->type, p->layout, p->rows, p->cols);
        if (bytes == 0)
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\": expected a type and shape with a slot layout, found %s [%" PRIu64 ", %" PRIu64 "]", r->name,
                           p->name, (unsigned)p->type < KRN_TYPE_COUNT ? krn_types[p->type].name : "?", p->rows, p->cols);
        if (!rows_of(p, &rows) || rows != p->rows)
            return err_set(e, ERR_INVALID, "%s: tensor \"%s\": expected spans of %" PRIu64 " rows of %" PRIu64 " bytes, found %" PRIu64 " rows", r->name, p->name, p->rows,
                           off_part_row(p), rows);
        p->slot_offset = at;
        if (!add(at, bytes, &at) || !add(at, OFF_RECORD_ALIGN, &at) || !add(file, off_part_bytes(p), &file) ||
            (p->packed && !add(file, (p->rows / p->packed->rows + 1) * off_packed_scale_bytes(p->packed), &file)))
            return err_set(e, ERR_INVALID, "%s: expected fewer than 2^64 bytes, found more at tensor \"%s\"", r->name, p->name);
        at = (at - OFF_RECORD_ALIGN + KRN_SLOT_ALIGN - 1) & ~(uint64_t)(KRN_SLOT_ALIGN - 1);
    }
    r->slot_bytes = (at + OFF_RECORD_ALIGN - 1) & ~(uint64_t)(OFF_RECORD_ALIGN - 1);
    r->file_bytes = file;
    return ERR_OK;
}

/* rows * row bytes fits: the slot, which is no smaller, did */
uint64_t off_part_row(const struct off_part *p) { return p->packed ? p->packed->row_bytes : krn_row_bytes(p->type, p->cols); }
uint64_t off_part_bytes(const struct off_part *p) { return p->rows * off_part_row(p); }

uint64_t off_part_run(const struct off_part *p, uint64_t at, uint32_t *file, uint64_t *offset)
{
    for (uint32_t i = 0; i < p->n_spans; i++) {
        const struct off_span *s = &p->spans[i];
        uint64_t group = s->n_rows * s->row_bytes, all = s->n_outer * group;
        if (at >= all) {
            at -= all;
            continue;
        }
        uint64_t outer = at / group, in_group = at % group, row = in_group / s->row_bytes, in_row = in_group % s->row_bytes;
        *file = s->file;
        *offset = s->offset + outer * s->outer_stride + row * s->row_stride + in_row;
        if (s->n_rows > 1 && s->row_stride != s->row_bytes)
            return s->row_bytes - in_row;
        if (s->n_outer > 1 && s->outer_stride != group)
            return group - in_group;
        return all - at;
    }
    return 0;
}

int off_part_check(const struct off_part *p, const off_catalog *c, struct err *e)
{
    if (p->packed && off_catalog_file(c, p->packed->scales->file)->fd < 0)
        return err_set(e, ERR_IO, "%s: tensor \"%s\": expected the file to be open, found it missing", off_catalog_file(c, p->packed->scales->file)->base, p->packed->scales->name);
    for (uint32_t i = 0; i < p->n_spans; i++) {
        const struct off_span *s = &p->spans[i];
        uint64_t a, b, end;
        if (s->n_outer == 0 || s->n_rows == 0)
            continue;
        if (s->file >= off_catalog_files(c))
            return err_set(e, ERR_INVALID, "tensor \"%s\": expected a file number below %zu, found %u", p->name, off_catalog_files(c), s->file);
        const struct off_file *f = off_catalog_file(c, s->file);
        if (f->fd < 0)
            return err_set(e, ERR_IO, "%s: tensor \"%s\": expected the file to be open, found it missing", f->base, p->name);
        if (!mul(s->n_outer - 1, s->outer_stride, &a) || !mul(s->n_rows - 1, s->row_stride, &b) || !add(a, b, &end) || !add(end, s->row_bytes, &end) ||
            !add(end, s->offset, &end))
            end = UINT64_MAX;
        if (end > f->size)
            return err_set(e, ERR_INVALID, "%s: tensor \"%s\": expected bytes within the file's %" PRIu64 ", found an end at %" PRIu64, f->base, p->name, f->size, end);
    }
    return ERR_OK;
}

uint32_t off_record_units(const struct off_record *r)
{
    uint64_t n = 0;
    uint32_t pieces;
    const struct off_part *p = off_record_pieces(r, &pieces);
    for (uint32_t k = 0; k < pieces; k++) {
        uint64_t step = off_unit_bytes(&p[k]);
        n += (off_part_bytes(&p[k]) + step - 1) / step;
    }
    return (uint32_t)n;
}

struct off_unit off_record_unit(const struct off_record *r, uint32_t i, uint8_t *slot)
{
    uint32_t pieces;
    const struct off_part *first = off_record_pieces(r, &pieces);
    for (uint32_t k = 0; k < pieces; k++) {
        const struct off_part *p = &first[k];
        uint64_t all = off_part_bytes(p), step = off_unit_bytes(p), n = (all + step - 1) / step;
        if (i < n)
            return (struct off_unit){.part = p, .at = i * step, .n = all - i * step < step ? all - i * step : step, .slot = slot + p->slot_offset};
        i -= (uint32_t)n;
    }
    return (struct off_unit){0};
}
