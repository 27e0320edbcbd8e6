/* A sweep against a budget: staging, looked-up rows and one token's experts of a layer are charged first, records that two segments share
 * always stay, policies/place.h decides on the rest of the trunk, and what a whole trunk leaves is the experts'. */
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

static bool has_experts(const struct off_sweep *w) { return w->choice.layers > 0; }

/* Experts are in no segment's list; they are not kept, but cached. */
static void release_experts(struct off_placing *p, const struct off_choice *c)
{
    for (uint32_t i = 0; i < c->layers * c->per_layer; i++)
        if (c->records[i] != UINT32_MAX)
            p->keep[c->records[i]] = false;
}

static int decide(struct off_placing *p, const struct off_record *records, uint32_t n, const struct off_weights_config *cfg, const struct counts *c,
                  struct pol_item *items, bool *keep, uint32_t *scratch, struct err *e)
{
    const struct off_sweep *w = cfg->sweep;
    uint64_t fixed = p->staging_bytes, budget, all = 0, row = 0;
    uint32_t m = 0;
    struct pol_place at;
    int rc = has_experts(w) ? off_experts_cut(&p->experts, records, &w->choice, INT64_MAX, e) : ERR_OK;
    if (rc)
        return rc;
    fixed += p->experts.floor_bytes;
    for (uint32_t r = 0; r < n; r++)
        p->keep[r] = c->whole[r] > 1 || (!c->whole[r] && !c->rows[r]);
    release_experts(p, &w->choice);
    for (uint32_t r = 0; r < n; r++) {
        all += records[r].slot_bytes;
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
        return err_set(e, ERR_BUDGET, "weights: expected room for the largest layer%s and its readers, %" PRIu64 " bytes, found %" PRIu64 ": %" PRIu64 " bytes are missing",
                       has_experts(w) ? ", one token's experts of a layer" : "", need, cfg->ram_max, need - cfg->ram_max);
    }
    for (uint32_t i = 0; i < m; i++) {
        uint32_t r = p->order[i];
        p->keep[r] = keep[i];
        if (!keep[i])
            p->order[p->n_order++] = r;
    }
    if (has_experts(w) && (rc = off_experts_cut(&p->experts, records, &w->choice, p->experts.floor_bytes + (at.streamed_bytes ? 0 : budget - at.kept_bytes), e)))
        return rc;
    p->kept_bytes += at.kept_bytes;
    p->sweep_bytes = at.streamed_bytes;
    p->window_bytes = at.streamed_bytes ? (at.window_bytes < at.streamed_bytes ? at.window_bytes : at.streamed_bytes) & ~(uint64_t)(KRN_SLOT_ALIGN - 1) : 0;
    return ERR_OK;
}

/* Buffers for all the reads that a drive likes to have on their way, but no more than a sixteenth of the budget; one at least. What is
 * charged grows evenly with the budget, so that what is left for weights does too. */
enum { STAGING_SHARE = 16 };
static void staging(struct off_placing *p, const struct off_source *src, const struct off_record *records, uint32_t n, uint64_t ram_max)
{
    struct off_reader_config one = {1, 1}, two = {1, 2};
    uint64_t least = off_reader_staging(src, records, n, &one), all = off_reader_staging(src, records, n, NULL), share = ram_max / STAGING_SHARE;
    bool ring = off_reader_staging(src, records, n, &two) > least;
    p->staging_bytes = share < least ? least : share < all ? share : all;
    p->readers = (struct off_reader_config){0};
    if (p->staging_bytes < all)
        p->readers = ring ? (struct off_reader_config){1, (unsigned)(p->staging_bytes / least)} : (struct off_reader_config){(unsigned)(p->staging_bytes / least), 1};
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
    staging(p, src, records, n, cfg->ram_max);
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
