/* Tables of which a step wants some rows: an address range as large as the slot, in which only the pages of those rows are ever
 * backed. A tiled row comes with its tile. Reads go through the page cache: rows are small, and frequent tokens come again. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "offload/poison.h"
#include "offload/weights_internal.h"

enum { PAGE = 4096 };

struct off_rows {
    const struct off_record *r;
    uint8_t *slot;
    uint8_t *stage;
};

/* Rows that come together, and the bytes of them in file and slot. */
static uint64_t group_of(const struct off_part *p) { return p->layout == KRN_TILED ? KRN_TILE_ROWS : 1; }
static uint64_t group_bytes(const struct off_part *p) { return group_of(p) * krn_row_bytes(p->type, p->cols); }

static size_t stage_bytes(const struct off_record *r)
{
    uint64_t most = 0;
    for (uint32_t k = 0; k < r->n_parts; k++)
        most = group_bytes(&r->parts[k]) > most ? group_bytes(&r->parts[k]) : most;
    return (size_t)((most + PAGE - 1) & ~(uint64_t)(PAGE - 1));
}

uint64_t off_rows_bytes(const struct off_record *r, uint32_t n)
{
    uint64_t all = 0;
    for (uint32_t k = 0; k < r->n_parts; k++)
        all += n * ((group_bytes(&r->parts[k]) + 2 * PAGE - 1) & ~(uint64_t)(PAGE - 1));
    return all + stage_bytes(r);
}

int off_rows_open(off_rows **out, const struct off_record *r, struct err *e)
{
    *out = NULL;
    off_rows *t = calloc(1, sizeof *t);
    if (!t || !(t->stage = aligned_alloc(PAGE, stage_bytes(r)))) {
        free(t);
        return err_set(e, ERR_NOMEM, "%s: rows", r->name);
    }
    t->r = r;
    void *p = mmap(NULL, (size_t)r->slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        free(t->stage);
        free(t);
        return err_set(e, ERR_NOMEM, "%s: %" PRIu64 " bytes of addresses: %s", r->name, r->slot_bytes, strerror(errno));
    }
    t->slot = p;
    madvise(p, (size_t)r->slot_bytes, MADV_NOHUGEPAGE); /* a row must not bring 2 MiB with it */
    off_poison(t->slot, (size_t)r->slot_bytes);
    *out = t;
    return ERR_OK;
}

void off_rows_close(off_rows *t)
{
    if (!t)
        return;
    off_unpoison(t->slot, (size_t)t->r->slot_bytes);
    munmap(t->slot, (size_t)t->r->slot_bytes);
    free(t->stage);
    free(t);
}

static int fetch(off_rows *t, struct off_source *src, const struct off_part *p, uint32_t row, struct err *e)
{
    uint64_t n = group_bytes(p), all = off_part_bytes(p), at = row / group_of(p) * n;
    n = all - at < n ? all - at : n;
    uint8_t *slot = t->slot + p->slot_offset;
    off_unpoison(t->slot + p->slot_offset + at, group_bytes(p)); /* padding rows of the last tile, too */
    if (t->r->image)
        return off_fill(src, &(struct off_unit){.part = t->r->image, .at = p->slot_offset + at, .n = group_bytes(p), .slot = t->slot}, t->stage, e);
    return off_fill(src, &(struct off_unit){.part = p, .at = at, .n = n, .slot = slot}, t->stage, e);
}

int off_rows_fetch(off_rows *t, struct off_source *src, const uint32_t *rows, uint32_t n, uint8_t **slot, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; i < n && !rc; i++)
        for (uint32_t k = 0; k < t->r->n_parts && !rc; k++) {
            const struct off_part *p = &t->r->parts[k];
            bool again = false;
            for (uint32_t j = i < 64 ? 0 : i - 64; j < i && !again; j++)
                again = rows[j] / group_of(p) == rows[i] / group_of(p);
            if (rows[i] < p->rows && !again)
                rc = fetch(t, src, p, rows[i], e);
        }
    *slot = rc ? NULL : t->slot;
    if (rc)
        off_rows_drop(t);
    return rc;
}

void off_rows_drop(off_rows *t)
{
    off_poison(t->slot, (size_t)t->r->slot_bytes);
    madvise(t->slot, (size_t)t->r->slot_bytes, MADV_DONTNEED);
}
