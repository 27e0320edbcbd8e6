/* kernels/gpu_stage.c - the staging ring: the host fills one chunk while the device copies another.
 *
 * A chunk is  free -> filled (room, send) -> under way (flush: one submission on the copy queue) -> free when its value is reached. */
#include <string.h>

#include "kernels/gpu_internal.h"

int gpu_stage_open(struct gpu *g, struct gpu_stage *s, struct err *e)
{
    s->chunk_bytes = g->region_bytes < 8 << 20 ? g->region_bytes / 4 : 8 << 20;
    int rc = gpu_alloc(g, GPU_UPLOAD, GPU_CHUNKS * s->chunk_bytes, "staging", &s->memory, e);
    for (unsigned i = 0; i < GPU_CHUNKS && !rc; i++) {
        VkCommandBufferAllocateInfo a = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = g->pool[GPU_COPY], .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
        VkResult r = g->vk.vkAllocateCommandBuffers(g->device, &a, &s->chunk[i].commands);
        if (r != VK_SUCCESS) rc = gpu_vk_fail(e, r, "staging");
    }
    return rc;
}

int gpu_stage_flush(struct gpu *g, struct gpu_stage *s, struct err *e)
{
    struct gpu_chunk *c = &s->chunk[s->at];
    if (!s->n_copies) return ERR_OK;
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    VkResult r = g->vk.vkBeginCommandBuffer(c->commands, &begin);
    for (unsigned i = 0; r == VK_SUCCESS && i < s->n_copies; i++) g->vk.vkCmdCopyBuffer(c->commands, s->memory.buffer, s->copies[i].to, 1, &s->copies[i].copy);
    if (r == VK_SUCCESS) r = g->vk.vkEndCommandBuffer(c->commands);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, "staging");
    int rc = gpu_submit(g, GPU_COPY, c->commands, (const uint64_t[2]){s->after, 0}, e);
    if (rc) return rc;
    c->value = g->timeline[GPU_COPY].value;
    s->at = (s->at + 1) % GPU_CHUNKS;
    s->used = s->after = 0;
    s->n_copies = 0;
    return ERR_OK;
}

int gpu_stage_room(struct gpu *g, struct gpu_stage *s, uint64_t n, uint64_t after, void **out, struct err *e)
{
    int rc = ERR_OK;
    if (s->used + n > s->chunk_bytes || s->n_copies == GPU_CHUNK_COPIES) rc = gpu_stage_flush(g, s, e);
    if (!rc && !s->n_copies) rc = gpu_wait(g, GPU_COPY, s->chunk[s->at].value, e);
    if (rc) return rc;
    if (after > s->after) s->after = after;
    *out = (uint8_t *)s->memory.host + s->at * s->chunk_bytes + s->used;
    return ERR_OK;
}

void gpu_stage_send(struct gpu_stage *s, const struct gpu_mem *to, uint64_t at, uint64_t n)
{
    s->copies[s->n_copies].to = to->buffer;
    s->copies[s->n_copies++].copy = (VkBufferCopy){.srcOffset = s->at * s->chunk_bytes + s->used, .dstOffset = to->offset + at, .size = n};
    s->used += (n + 15) & ~(uint64_t)15;
    s->sent += n;
}

int gpu_stage_put(struct gpu *g, struct gpu_stage *s, const struct gpu_mem *to, uint64_t at, const void *from, uint64_t n, uint64_t after, struct err *e)
{
    for (uint64_t done = 0, k; done < n; done += k) {
        void *room;
        uint64_t left = s->chunk_bytes - s->used;
        if (left < 4096 || s->n_copies == GPU_CHUNK_COPIES) left = s->chunk_bytes; /* of the next chunk */
        k = n - done < left ? n - done : left;
        int rc = gpu_stage_room(g, s, k, after, &room, e);
        if (rc) return rc;
        memcpy(room, (const uint8_t *)from + done, k);
        gpu_stage_send(s, to, at + done, k);
    }
    return ERR_OK;
}
