/* A sweep against a budget: staging and looked-up rows are charged first, records that two segments share always stay, and
 * policies/place.h decides on the rest. */
#include <inttypes.h>
#include <stdlib.h>

#include "offload/reader.h"
#include "offload/weights_internal.h"
#include "policies/place.h"

/* How often each record is used, looked-up uses apart. */
struct counts { uint32_t *whole, *rows; };

static int count(const struct off_sweep *w, uint32_t n, struct counts *c, struct err *e)
{
    for (uint32_t i = 0; i < w->n; i++) {
        if (w->uses[i].record >= n || (i && w->uses[i].segment < w->uses[i - 1].segment))
            return err_set(e, ERR_INVALID, "sweep: expected records below %u by ascending segment, found %u in segment %u", n, w->uses[i].record, w->uses[i].segment);
        ++*(w->uses[i].looked_up ? &c->rows[w->uses[i].record] : &c->whole[w->uses[i].record]);
    }
    return ERR_OK;
}

static int decide(struct off_placing *p, const struct off_record *records, uint32_t n, const struct off_weights_config *cfg, const struct counts *c,
                  struct pol_item *items, bool *keep, uint32_t *scratch, struct err *e)
{
    const struct off_sweep *w = cfg->sweep;
    uint64_t fixed = p->staging_bytes, budget, all = 0, row = 0;
    uint32_t m = 0;
    struct pol_place at;
    for (uint32_t r = 0; r < n; r++) {
        all += records[r].slot_bytes;
        p->keep[r] = c->whole[r] > 1 || (!c->whole[r] && !c->rows[r]);
        p->kept_bytes += p->keep[r] ? records[r].slot_bytes : 0;
        if (p->keep[r] || !c->rows[r])
            continue;
        p->rows_bytes += off_rows_bytes(&records[r], 0);
        uint64_t one = off_rows_bytes(&records[r], 1) - off_rows_bytes(&records[r], 0);
        row = one > row ? one : row;
    }
    p->rows_bytes += row * w->rows_max; /* a token's row lies in one of the tables that a step looks into */
    for (uint32_t i = 0; i < w->n; i++)
        if (!w->uses[i].looked_up && !p->keep[w->uses[i].record]) {
            p->order[m] = w->uses[i].record;
            items[m++] = (struct pol_item){records[w->uses[i].record].slot_bytes, w->uses[i].segment};
        }
    fixed += p->kept_bytes + p->rows_bytes;
    budget = cfg->ram_max > fixed ? cfg->ram_max - fixed : 0;
    if (!pol_place(items, m, budget, keep, scratch, &at)) {
        uint64_t need = fixed + at.floor_bytes < all ? fixed + at.floor_bytes : all;
        return err_set(e, ERR_BUDGET, "weights: expected room for the largest layer and its readers, %" PRIu64 " bytes, found %" PRIu64 ": %" PRIu64 " bytes are missing",
                       need, cfg->ram_max, need - cfg->ram_max);
    }
    for (uint32_t i = 0; i < m; i++) {
        uint32_t r = p->order[i];
        p->keep[r] = keep[i];
        if (!keep[i])
            p->order[p->n_order++] = r;
    }
    p->kept_bytes += at.kept_bytes;
    p->sweep_bytes = at.streamed_bytes;
    p->window_bytes = at.streamed_bytes ? (at.window_bytes < at.streamed_bytes ? at.window_bytes : at.streamed_bytes) & ~(uint64_t)(KRN_SLOT_ALIGN - 1) : 0;
    return ERR_OK;
}

int off_place(struct off_placing *p, const struct off_source *src, const struct off_record *records, uint32_t n, const struct off_weights_config *cfg, struct err *e)
{
    size_t uses = cfg->sweep->n + 1, recs = (size_t)n + 1;
    struct counts c = {calloc(recs, sizeof *c.whole), calloc(recs, sizeof *c.rows)};
    struct pol_item *items = calloc(uses, sizeof *items);
    bool *keep = calloc(uses, sizeof *keep);
    uint32_t *scratch = calloc(uses, sizeof *scratch);
    int rc = ERR_OK;
    *p = (struct off_placing){.keep = calloc(recs, sizeof *p->keep), .order = calloc(uses, sizeof *p->order)};
    if (!c.whole || !c.rows || !items || !keep || !scratch || !p->keep || !p->order)
        rc = err_set(e, ERR_NOMEM, "placing of %u records", n);
    p->staging_bytes = off_reader_staging(src, records, n, NULL);
    if (!rc && !(rc = count(cfg->sweep, n, &c, e)))
        rc = decide(p, records, n, cfg, &c, items, keep, scratch, e);
    free(c.whole);
    free(c.rows);
    free(items);
    free(keep);
    free(scratch);
    return rc;
}

void off_placing_free(struct off_placing *p)
{
    free(p->keep);
    free(p->order);
    *p = (struct off_placing){0};
}
