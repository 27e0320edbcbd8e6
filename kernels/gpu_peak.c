/* kernels/gpu_peak.c - what a device reaches where nothing is in the way: reads of its memory, f32 products and sums. Measured by the host's clock over so
 * many dispatches that a submission does not count. */
#include "kernels/gpu_internal.h"

#include "base/clock.h"

enum { GROUPS = 4096, FMA_STEPS = 64, ROUNDS = 3, ENOUGH_MS = 30, DISPATCHES_MAX = 1 << 14 };

struct peak { struct gpu *g; struct gpu_pipelines pipelines; VkPipeline pipeline; struct gpu_mem out; };

static int record(struct peak *k, const struct gpu_push_peak *p, uint32_t n, VkCommandBuffer *c, struct err *e)
{
    struct gpu_vk *vk = &k->g->vk;
    VkCommandBufferAllocateInfo a = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = k->g->pool[GPU_COMPUTE], .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    VkCommandBufferBeginInfo b = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkResult r = vk->vkAllocateCommandBuffers(k->g->device, &a, c);
    if (r == VK_SUCCESS) r = vk->vkBeginCommandBuffer(*c, &b);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, "command buffer");
    vk->vkCmdBindPipeline(*c, VK_PIPELINE_BIND_POINT_COMPUTE, k->pipeline);
    vk->vkCmdPushConstants(*c, k->g->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof *p, p);
    for (uint32_t i = 0; i < n; i++) vk->vkCmdDispatchIndirect(*c, k->out.buffer, 256);
    r = vk->vkEndCommandBuffer(*c);
    return r == VK_SUCCESS ? ERR_OK : gpu_vk_fail(e, r, "command buffer");
}

/* Seconds of one dispatch: more and more of them until they take long enough, then the best of a few rounds. */
static int seconds(struct peak *k, const struct gpu_push_peak *p, double *out, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t n = 1; !rc; n *= 2) {
        VkCommandBuffer c = NULL;
        uint64_t best = UINT64_MAX;
        rc = record(k, p, n, &c, e);
        for (unsigned i = 0; i < ROUNDS && !rc; i++) {
            uint64_t t0 = clock_now_ns();
            if (!(rc = gpu_submit(k->g, GPU_COMPUTE, c, NULL, e))) rc = gpu_wait(k->g, GPU_COMPUTE, k->g->timeline[GPU_COMPUTE].value, e);
            uint64_t t = clock_now_ns() - t0;
            best = t < best ? t : best;
        }
        if (c) k->g->vk.vkFreeCommandBuffers(k->g->device, k->g->pool[GPU_COMPUTE], 1, &c);
        *out = (double)best * 1e-9 / n;
        if (best >= (uint64_t)ENOUGH_MS * NS_PER_MS || n >= DISPATCHES_MAX) break;
    }
    return rc;
}

static int measure(struct peak *k, uint64_t bytes, struct gpu_peaks *out, struct err *e)
{
    struct gpu_mem memory;
    double s;
    bytes -= bytes % ((uint64_t)GROUPS * 512 * 16);
    if (!bytes || bytes / 16 > UINT32_MAX) return err_set(e, ERR_INVALID, "a measurement of %u MiB to 64 GiB: found another size", GROUPS * 512 * 16 >> 20);
    int rc = gpu_pipeline_get(k->g, &k->pipelines, &(struct gpu_spec){.shader = "peak"}, &k->pipeline, e);
    if (!rc) rc = gpu_alloc(k->g, GPU_UPLOAD, 512, "a measurement", &k->out, e);
    if (!rc) rc = gpu_alloc(k->g, GPU_LOCAL, bytes, "a measurement", &memory, e);
    if (rc) return rc;
    *(VkDispatchIndirectCommand *)(void *)((uint8_t *)k->out.host + 256) = (VkDispatchIndirectCommand){GROUPS, 1, 1};
    struct gpu_push_peak p = {.x = memory.addr, .y = k->out.addr, .n = (uint32_t)(bytes / 16), .mode = GPU_PEAK_READ, .never = 0x5a5a1234};
    if ((rc = seconds(k, &p, &s, e))) return rc;
    out->read_bytes_s = (double)bytes / s;
    p = (struct gpu_push_peak){.y = k->out.addr, .n = FMA_STEPS, .mode = GPU_PEAK_FMA, .c = 0.5f};
    if ((rc = seconds(k, &p, &s, e))) return rc;
    out->fma_ops_s = 2.0 * 16 * FMA_STEPS * GROUPS * 256 / s;
    return ERR_OK;
}

int gpu_measure(unsigned index, uint64_t bytes, struct gpu_peaks *out, struct err *e)
{
    struct peak k = {0};
    int rc = gpu_open(&k.g, &(struct gpu_options){.index = index}, e);
    if (!rc) rc = measure(&k, bytes, out, e);
    if (k.g) {
        k.g->vk.vkDeviceWaitIdle(k.g->device);
        gpu_pipelines_close(k.g, &k.pipelines);
    }
    gpu_close(k.g);
    return rc;
}
