#include "engine/device.h"

#include <inttypes.h>

#include "kernels/gpu.h"

enum { FIXED = 1 << 20 }; /* what is small: alignment of pieces */

/* Matrices lie as in a slot, vectors as f32. */
uint64_t eng_device_weight_bytes(const struct eng_plan *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_weights; i++) {
        const struct krn_weight *w = &p->weights[i];
        uint64_t one = w->layout == KRN_TILED ? krn_slot_bytes(w->type, KRN_TILED, w->rows, w->cols) : 4 * (uint64_t)w->rows * w->cols;
        n += (one + KRN_SLOT_ALIGN - 1) / KRN_SLOT_ALIGN * KRN_SLOT_ALIGN;
    }
    return n;
}

/* Nine tenths of the largest heap of its own, and of what the driver says is left. A software device has the host's memory: --ram rules. */
static uint64_t memory_of(const struct gpu_info *g, const struct eng_config *c)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < g->n_heaps; i++) {
        uint64_t n = g->heaps[i].budget && g->heaps[i].budget < g->heaps[i].bytes ? g->heaps[i].budget : g->heaps[i].bytes;
        if (g->heaps[i].local && n > most)
            most = n;
    }
    return g->type == GPU_CPU ? c->ram_max : most / 10 * 9;
}

static int bound(const struct eng_config *c, uint64_t *bytes, struct err *e)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    unsigned n;
    int rc = gpu_list(g, GPU_DEVICES_MAX, &n, e);
    if (rc)
        return err_prefix(e, rc, "--device vulkan");
    if (c->device.index >= n)
        return err_set(e, ERR_NOTFOUND, "--device vulkan:%u: found %u device%s, numbered from 0 (`sluice devices`)", c->device.index, n, n == 1 ? "" : "s");
    *bytes = c->device.bytes_max ? c->device.bytes_max : memory_of(&g[c->device.index], c);
    return ERR_OK;
}

int eng_device_plan(struct eng_device *out, const struct eng_config *c, const struct eng_plan *p, const struct eng_exec_config *x, struct eng_kv_config *kv, struct err *e)
{
    *out = (struct eng_device){.d = {.index = c->device.index, .without = c->device.without, .validate = c->device.validate, .cache_dir = c->device.cache_dir, .seqs_max = c->seqs}};
    int rc = bound(c, &out->bytes_max, e);
    if (rc)
        return rc;
    uint64_t rows = 4 * (uint64_t)p->arena_cols[0] * x->rows_max + FIXED, least = eng_kv_bytes(p, kv, 1);
    out->weight_bytes = eng_device_weight_bytes(p);
    uint64_t need = out->weight_bytes + rows + least;
    if (need > out->bytes_max)
        return err_set(e, ERR_BUDGET, "--vram %" PRIu64 ": weights %" PRIu64 " + activations %" PRIu64 " + KV of one sequence %" PRIu64 " = %" PRIu64 ", %" PRIu64 " bytes are missing",
                       out->bytes_max, out->weight_bytes, rows, least, need, need - out->bytes_max);
    if (p->n_kv > ENG_POOLS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "vulkan: %u KV groups, at most %d", p->n_kv, ENG_POOLS_MAX);
    kv->elsewhere = true;
    kv->bytes_max = out->bytes_max - out->weight_bytes - rows;
    out->d.bytes_max = out->bytes_max;
    return ERR_OK;
}

void eng_device_pools(struct eng_device *d, const eng_kv *kv)
{
    d->d.n_pools = eng_kv_groups(kv);
    d->d.pools = d->pools;
    for (uint32_t i = 0; i < d->d.n_pools; i++) {
        struct krn_pages pages;
        eng_kv_pages(kv, i, &pages);
        d->pools[i] = (struct krn_pool){.layout = pages.layout, .n_pages = eng_kv_pool_pages(kv, i), .table_stride = eng_kv_table_stride(kv)};
    }
}

void eng_device_whole_tables(struct eng_plan *p)
{
    for (uint32_t i = 0; i < p->n_uses; i++)
        p->uses[i].looked_up = false;
}
