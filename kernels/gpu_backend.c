/* kernels/gpu_backend.c - the Vulkan backend's front: opens a device's arenas and pages, replays a list's command buffer, reads rows.
 *
 * Numerics: registers, activations and sums are f32 whatever --precision says; matrices are expanded inside the kernel that uses them.
 * No shader uses subgroup operations, and every sum has one order (the shaders' heads), so results depend neither on the device's
 * subgroup width nor on batch, chunk, page size or budget.
 *
 * A list has a command buffer for each shape class: one row or more, of tokens and of picked rows. It is recorded at the first step of
 * its class and replayed ever after; what changes lies in the step block. Registers of picked rows (logits) and the flags of the watched
 * register lie where the host reads them; registers of tokens are copied back when somebody asks (verify). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_internal.h"

/* ---- open ------------------------------------------------------------------------------------------------------------ */
static uint64_t arena_bytes(const struct krn_backend_config *c, unsigned a) { return 4 * (uint64_t)c->arena_cols[a] * c->rows_max[a]; }

/* Of the host's memory: what the device reads from and writes to there. */
static size_t vulkan_bytes(const struct krn_backend_config *c)
{
    uint64_t n = sizeof(krn_backend) + (16u << 20) + arena_bytes(c, 0) + arena_bytes(c, 1) + (uint64_t)c->rows_max[0] * 32;
    for (uint32_t i = 0; i < c->n_ropes; i++) n += (uint64_t)c->rows_max[0] * c->ropes[i].n_freq * 8;
    return n > SIZE_MAX ? SIZE_MAX : (size_t)n;
}

static int check_config(const struct krn_backend_config *c, struct err *e)
{
    if (!c->device) return err_set(e, ERR_INVALID, "vulkan: no device configuration");
    if (!c->rows_max[0] || c->rows_max[0] > 65535 || c->rows_max[1] > 65535)
        return err_set(e, ERR_INVALID, "rows of a step: expected 1..65535 on Vulkan, found %u tokens, %u picked", c->rows_max[0], c->rows_max[1]);
    for (unsigned a = 0; a < 2; a++)
        if (arena_bytes(c, a) >= (uint64_t)1 << 40) return err_set(e, ERR_NOMEM, "activation arenas of %u rows of %u floats", c->rows_max[a], c->arena_cols[a]);
    return c->device->n_pools > 32 ? err_set(e, ERR_UNSUPPORTED, "vulkan: %u KV groups, at most 32", c->device->n_pools) : ERR_OK;
}

static int open_memory(krn_backend *b, struct err *e)
{
    int rc;
    if ((rc = gpu_alloc(b->g, GPU_LOCAL, arena_bytes(&b->cfg, 0), "activations", &b->arena[0], e)) ||
        (rc = gpu_alloc(b->g, GPU_READBACK, arena_bytes(&b->cfg, 1), "logits", &b->arena[1], e)) ||
        (rc = gpu_alloc(b->g, GPU_READBACK, (uint64_t)b->cfg.rows_max[0] * 4, "row flags", &b->flags, e)) ||
        (rc = gpu_alloc(b->g, GPU_READBACK, arena_bytes(&b->cfg, 0), "rows to look at", &b->back, e)) || (rc = gpu_step_open(b, e)) || (rc = gpu_stage_open(b->g, &b->stage, e)))
        return rc;
    memset(b->arena[1].host, 0, arena_bytes(&b->cfg, 1));
    if (!(b->pools = calloc(b->dev.n_pools + 1, sizeof *b->pools))) return err_set(e, ERR_NOMEM, "KV pools");
    for (uint32_t i = 0; i < b->dev.n_pools && !rc; i++)
        rc = gpu_alloc(b->g, GPU_LOCAL, (uint64_t)b->dev.pools[i].layout.page_bytes * b->dev.pools[i].n_pages, "KV pages", &b->pools[i], e);
    return rc;
}

static void vulkan_close(krn_backend *b)
{
    if (!b) return;
    if (b->g) {
        b->g->vk.vkDeviceWaitIdle(b->g->device);
        gpu_cache_save(b->g);
        gpu_pipelines_close(b->g, &b->pipelines);
        gpu_close(b->g);
    }
    gpu_weights_close(b);
    gpu_step_close(b);
    free(b->pools);
    free(b->times);
    free(b);
}

static int vulkan_open(krn_backend **out, const struct krn_backend_config *cfg, struct err *e)
{
    *out = NULL;
    int rc = check_config(cfg, e);
    if (rc) return rc;
    krn_backend *b = calloc(1, sizeof *b);
    if (!b) return err_set(e, ERR_NOMEM, "a backend");
    b->cfg = *cfg;
    b->dev = *cfg->device;
    struct gpu_options o = {.index = b->dev.index, .without = b->dev.without, .validate = b->dev.validate, .cache_dir = b->dev.cache_dir, .local_max = b->dev.bytes_max};
    rc = gpu_open(&b->g, &o, e);
    if (!rc) {
        b->tokens_many = 4;
        rc = open_memory(b, e);
    }
    if (rc) vulkan_close(b);
    else *out = b;
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------------------------------- */
static void vulkan_list_free(krn_list *l)
{
    if (!l) return;
    struct gpu *g = l->owner->g;
    gpu_times_forget(l->owner, l);
    for (unsigned i = 0; i < GPU_CLASSES; i++)
        if (l->commands[i]) g->vk.vkFreeCommandBuffers(g->device, g->pool[GPU_COMPUTE], 1, &l->commands[i]);
    free(l->calls);
    free(l);
}

static int vulkan_record(krn_backend *b, const struct krn_op *ops, size_t n, const struct krn_weight *weights, krn_list **out, struct err *e)
{
    *out = NULL;
    krn_list *l = calloc(1, sizeof *l);
    if (!l) return err_set(e, ERR_NOMEM, "a list");
    *l = (krn_list){.owner = b, .plan = ops, .n_plan = n, .weights = weights};
    int rc = gpu_weights_place(b, l, e);
    if (!rc) rc = gpu_record(b, l, e);
    if (rc) vulkan_list_free(l);
    else *out = l;
    return rc;
}

static int begin(krn_backend *b, VkCommandBuffer *c, struct err *e)
{
    VkCommandBufferAllocateInfo a = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = b->g->pool[GPU_COMPUTE], .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    VkCommandBufferBeginInfo i = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult r = b->g->vk.vkAllocateCommandBuffers(b->g->device, &a, c);
    if (r == VK_SUCCESS) r = b->g->vk.vkBeginCommandBuffer(*c, &i);
    return r == VK_SUCCESS ? ERR_OK : gpu_vk_fail(e, r, "command buffer");
}

enum { STAGES = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT, WRITES = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
       BOTH = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT };
static void barrier(krn_backend *b, VkCommandBuffer c, bool host)
{
    VkMemoryBarrier m = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = WRITES, .dstAccessMask = host ? VK_ACCESS_HOST_READ_BIT : BOTH};
    b->g->vk.vkCmdPipelineBarrier(c, STAGES, host ? VK_PIPELINE_STAGE_HOST_BIT : STAGES, 0, 1, &m, 0, NULL, 0, NULL);
}

enum { TIMED = 4 };
static int record_class(krn_backend *b, krn_list *l, unsigned class, struct err *e)
{
    VkCommandBuffer c = NULL;
    VkPipeline bound = NULL;
    bool timed = class & TIMED;
    int rc = begin(b, &c, e);
    if (rc) return rc;
    l->commands[class] = c;
    barrier(b, c, false); /* after what earlier submissions wrote */
    if (timed) rc = gpu_times_begin(b, l, c, e);
    for (size_t i = 0; i < l->n && !rc; i++) {
        const struct gpu_call *x = &l->calls[i];
        bool many = class >> x->picked & 1;
        struct gpu_spec spec = x->spec;
        VkPipeline p;
        if (x->linear && many) spec.c[1] = b->tokens_many;
        if ((rc = gpu_pipeline_get(b->g, &b->pipelines, &spec, &p, e))) break;
        if (x->barrier || timed) barrier(b, c, false);
        if (p != bound) b->g->vk.vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, p);
        bound = p;
        b->g->vk.vkCmdPushConstants(c, b->g->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, x->push_bytes, x->push);
        b->g->vk.vkCmdDispatchIndirect(c, b->block.buffer, b->at_sizes + x->args[many] * sizeof(VkDispatchIndirectCommand));
        if (timed) gpu_times_mark(b, l, c, i + 1);
    }
    if (!rc) {
        barrier(b, c, true);
        VkResult r = b->g->vk.vkEndCommandBuffer(c);
        if (r != VK_SUCCESS) rc = gpu_vk_fail(e, r, "command buffer");
    }
    if (rc) {
        b->g->vk.vkFreeCommandBuffers(b->g->device, b->g->pool[GPU_COMPUTE], 1, &c);
        l->commands[class] = NULL;
        return rc;
    }
    b->counters.lists++;
    return ERR_OK;
}

/* ---- a step ---------------------------------------------------------------------------------------------------------- */
static int vulkan_submit(krn_backend *b, krn_list *l, const struct krn_step *s, struct err *e)
{
    unsigned class = (s->n_tokens > 1 ? 1u : 0) | (s->n_picks > 1 ? 2u : 0) | (gpu_times_of(b, l) ? TIMED : 0u);
    int rc = gpu_step_write(b, l, s, e);
    if (!rc) rc = gpu_weights_ready(b, l, e);
    if (rc || !s->n_tokens) return rc;
    if (!l->commands[class] && (rc = record_class(b, l, class, e))) return rc;
    if ((rc = gpu_submit(b->g, GPU_COMPUTE, l->commands[class], (const uint64_t[2]){0, b->g->timeline[GPU_COPY].value}, e))) return rc;
    if (class & TIMED) gpu_times_submitted(b, l);
    b->step = s;
    b->n_tokens = s->n_tokens;
    b->n_picks = s->n_picks;
    b->back_valid = false;
    b->counters.submits++;
    b->counters.dispatches += l->n;
    return ERR_OK;
}

static int vulkan_wait(krn_backend *b, struct err *e)
{
    b->step = NULL;
    int rc = gpu_wait(b->g, GPU_COMPUTE, b->g->timeline[GPU_COMPUTE].value, e);
    if (!rc) gpu_times_waited(b);
    return rc;
}

/* ---- looking at rows ------------------------------------------------------------------------------------------------- */
static int copy_back(krn_backend *b, struct err *e)
{
    int rc = ERR_OK;
    if (!b->back_commands) {
        if ((rc = begin(b, &b->back_commands, e))) return rc;
        VkBufferCopy whole = {.size = arena_bytes(&b->cfg, 0)};
        barrier(b, b->back_commands, false);
        b->g->vk.vkCmdCopyBuffer(b->back_commands, b->arena[0].buffer, b->back.buffer, 1, &whole);
        barrier(b, b->back_commands, true);
        b->g->vk.vkEndCommandBuffer(b->back_commands);
    }
    if (!(rc = gpu_submit(b->g, GPU_COMPUTE, b->back_commands, NULL, e))) rc = gpu_wait(b->g, GPU_COMPUTE, b->g->timeline[GPU_COMPUTE].value, e);
    b->back_valid = !rc;
    return rc;
}

static const float *vulkan_row(krn_backend *b, const struct krn_view *v, uint32_t r)
{
    unsigned a = v->rows == KRN_ROWS_PICKED;
    struct err e;
    const float *p = a ? b->arena[1].host : b->back.host;
    if (!a && !b->back_valid && copy_back(b, &e)) memset(b->back.host, 0xFF, arena_bytes(&b->cfg, 0)); /* no numbers: nothing can be taken for a result */
    return p + (size_t)v->base * b->cfg.rows_max[a] + (size_t)r * v->stride + v->shift;
}

static bool vulkan_finite(krn_backend *b, uint32_t first, uint32_t n)
{
    const uint32_t *flag = b->flags.host;
    for (uint32_t r = first; r < first + n; r++)
        if (flag[r]) return false;
    return true;
}

static int vulkan_load(krn_backend *b, const struct krn_weight *weights, uint32_t index, struct err *e) { return gpu_weight_load(b, index, &weights[index], e); }

static void vulkan_counters(const krn_backend *b, struct krn_counters *out)
{
    *out = b->counters;
    out->uploads = b->stage.sent;
    out->allocations = b->g->allocations;
    out->pipelines = b->g->pipelines;
    out->messages = atomic_load(&b->g->messages);
    out->device_bytes = b->g->local_bytes;
}

static const char *vulkan_isa(const krn_backend *b) { return b->g->info.name; }

const struct krn_backend_api krn_vulkan = {
    .name = "vulkan", .supports = gpu_supports, .open = vulkan_open, .close = vulkan_close, .bytes = vulkan_bytes, .record = vulkan_record, .list_free = vulkan_list_free,
    .submit = vulkan_submit, .wait = vulkan_wait, .row = vulkan_row, .times = gpu_times_take, .isa = vulkan_isa, .load = vulkan_load, .finite = vulkan_finite, .counters = vulkan_counters,
};
