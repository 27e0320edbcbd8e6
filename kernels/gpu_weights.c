/* kernels/gpu_weights.c - the plan's weights on the device: matrices in the tile layout as they are leased, vectors as f32.
 *
 * Regions of at most region_bytes are dealt out in order of use; recorded command buffers hold addresses, so a weight stays where it
 * is. The tiles of a table that an embed op looks rows up in follow each other without a gap: to the device they are one matrix. */
#include <inttypes.h>
#include <stdlib.h>

#include "kernels/gpu_internal.h"

static const struct krn_op *op_uses(const struct krn_op *op, unsigned i, enum gpu_form *form, uint32_t *n)
{
    *form = i == 0 && (op->code == KRN_LINEAR || op->code == KRN_EMBED) ? GPU_MATRIX : GPU_VECTOR;
    *n = i == 0 && op->code == KRN_EMBED && op->u.embed.tiles ? op->u.embed.tiles : 1;
    return op->weight[i] == KRN_NO_WEIGHT ? NULL : op;
}

static int grow(struct gpu_weights *w, uint32_t n, struct err *e)
{
    if (n <= w->n) return ERR_OK;
    struct gpu_weight *v = realloc(w->v, n * sizeof *v);
    if (!v) return err_set(e, ERR_NOMEM, "weights of the device");
    for (uint32_t i = w->n; i < n; i++) v[i] = (struct gpu_weight){0};
    w->v = v;
    w->n = n;
    return ERR_OK;
}

static uint64_t bytes_of(const struct krn_weight *w, enum gpu_form form)
{
    return form == GPU_MATRIX ? krn_slot_bytes(w->type, KRN_TILED, w->rows, w->cols) : 4 * (uint64_t)w->rows * w->cols;
}

static int check(const struct krn_op *op, const struct krn_weight *w, enum gpu_form form, struct err *e)
{
    if (form == GPU_MATRIX && (w->layout != KRN_TILED || gpu_supports(op->code, w->type) == KRN_MISSING))
        return err_set(e, ERR_UNSUPPORTED, "vulkan: %s on %s weights%s", krn_op_name(op->code), krn_types[w->type].name, w->layout == KRN_TILED ? "" : " that are not tiled");
    if (form == GPU_VECTOR && w->type != KRN_F32 && w->type != KRN_F16 && w->type != KRN_BF16)
        return err_set(e, ERR_UNSUPPORTED, "vulkan: %s with a vector of type %s", krn_op_name(op->code), krn_types[w->type].name);
    return ERR_OK;
}

/* Visits every weight of a list that has no place yet: n tables of weights that must lie together. */
typedef int visit_fn(krn_backend *b, const krn_list *l, uint32_t first, uint32_t n, enum gpu_form form, void *ctx, struct err *e);
static int visit(krn_backend *b, const krn_list *l, visit_fn *f, void *ctx, struct err *e)
{
    for (size_t k = 0; k < l->n_plan; k++)
        for (unsigned i = 0; i < l->plan[k].n_weights; i++) {
            enum gpu_form form;
            uint32_t n;
            const struct krn_op *op = op_uses(&l->plan[k], i, &form, &n);
            if (!op) continue;
            int rc = grow(&b->weights, op->weight[i] + n, e);
            for (uint32_t t = 0; t < n && !rc; t++) {
                const struct gpu_weight *w = &b->weights.v[op->weight[i] + t];
                rc = check(op, &l->weights[op->weight[i] + t], form, e);
                if (!rc && w->form != GPU_UNPLACED && w->form != form) rc = err_set(e, ERR_UNSUPPORTED, "vulkan: weight %u is used as a matrix and as a vector", op->weight[i] + t);
            }
            if (!rc && b->weights.v[op->weight[i]].form == GPU_UNPLACED) rc = f(b, l, op->weight[i], n, form, ctx, e);
            if (rc) return rc;
        }
    return ERR_OK;
}

static int add_up(krn_backend *b, const krn_list *l, uint32_t first, uint32_t n, enum gpu_form form, void *ctx, struct err *e)
{
    uint64_t *sum = ctx;
    (void)b;
    (void)e;
    for (uint32_t t = 0; t < n; t++) *sum += (bytes_of(&l->weights[first + t], form) + 255) & ~(uint64_t)255;
    return ERR_OK;
}

/* left: what this list still has to place, so that the last region is no larger than it. */
static int place(krn_backend *b, const krn_list *l, uint32_t first, uint32_t n, enum gpu_form form, void *ctx, struct err *e)
{
    struct gpu_weights *w = &b->weights;
    uint64_t *left = ctx, all = 0, pad = 0;
    for (uint32_t t = 0; t < n; t++) all += bytes_of(&l->weights[first + t], form);
    if (!w->region.bytes || all > w->region.bytes - w->used) {
        uint64_t size = *left < b->g->region_bytes ? *left : b->g->region_bytes;
        int rc = gpu_alloc(b->g, GPU_LOCAL, size > all ? size : all, "weights", &w->region, e);
        if (rc) return rc;
        w->used = 0;
    }
    for (uint32_t t = 0; t < n; t++) {
        uint64_t bytes = bytes_of(&l->weights[first + t], form);
        w->v[first + t] = (struct gpu_weight){.form = form, .region = w->region, .addr = w->region.addr + w->used, .at = w->used, .bytes = bytes};
        w->used += bytes;
        pad += (bytes + 255) & ~(uint64_t)255;
    }
    w->used = (w->used + 255) & ~(uint64_t)255;
    if (w->used > w->region.bytes) w->used = w->region.bytes;
    *left -= pad < *left ? pad : *left;
    return ERR_OK;
}

int gpu_weights_place(krn_backend *b, const krn_list *l, struct err *e)
{
    uint64_t need = 0, free_bytes = b->weights.region.bytes - b->weights.used;
    int rc = visit(b, l, add_up, &need, e);
    if (rc) return rc;
    uint64_t more = need > free_bytes ? need - free_bytes : 0;
    if (b->g->local_max && (more > b->g->local_max || b->g->local_bytes > b->g->local_max - more))
        return err_set(e, ERR_BUDGET, "--vram %" PRIu64 ": weights need %" PRIu64 " bytes beside %" PRIu64 " of pages and activations, %" PRIu64 " are missing", b->g->local_max, need,
                       b->g->local_bytes, b->g->local_bytes + more - b->g->local_max);
    return visit(b, l, place, &need, e);
}

const struct gpu_weight *gpu_weight_of(const krn_backend *b, const struct krn_op *op, unsigned i)
{
    return i < op->n_weights && op->weight[i] != KRN_NO_WEIGHT ? &b->weights.v[op->weight[i]] : NULL;
}

int gpu_weight_load(krn_backend *b, uint32_t index, const struct krn_weight *w, struct err *e)
{
    if (index >= b->weights.n || b->weights.v[index].form == GPU_UNPLACED || b->weights.v[index].loaded) return ERR_OK; /* no call uses it, or it is there */
    struct gpu_weight *d = &b->weights.v[index];
    if (!w->data) return err_set(e, ERR_INVALID, "weight %u is not leased", index);
    int rc = ERR_OK;
    uint64_t n = d->form == GPU_VECTOR ? d->bytes / 4 : 0;
    const uint64_t part = b->stage.chunk_bytes / 4;
    if (d->form == GPU_MATRIX) rc = gpu_stage_put(b->g, &b->stage, &d->region, d->at, w->data, d->bytes, 0, e);
    for (uint64_t done = 0; done < n && !rc; done += part) {
        void *room;
        uint64_t k = n - done < part ? n - done : part;
        if ((rc = gpu_stage_room(b->g, &b->stage, 4 * k, 0, &room, e))) break;
        krn_expand(w->type, (const uint8_t *)w->data + done * krn_types[w->type].block_bytes, k, room);
        gpu_stage_send(&b->stage, &d->region, d->at + 4 * done, 4 * k);
    }
    d->loaded = !rc;
    return rc;
}

int gpu_weights_ready(krn_backend *b, const krn_list *l, struct err *e)
{
    for (size_t k = 0; k < l->n_plan; k++)
        for (unsigned i = 0; i < l->plan[k].n_weights; i++) {
            enum gpu_form form;
            uint32_t n;
            const struct krn_op *op = op_uses(&l->plan[k], i, &form, &n);
            for (uint32_t t = 0; op && t < n; t++) {
                uint32_t index = op->weight[i] + t;
                int rc = b->weights.v[index].loaded ? ERR_OK : gpu_weight_load(b, index, &l->weights[index], e);
                if (rc) return err_prefix(e, rc, "call %zu, %s", k, krn_op_name(op->code));
            }
        }
    return gpu_stage_flush(b->g, &b->stage, e);
}

void gpu_weights_close(krn_backend *b) { free(b->weights.v); }
