/* kernels/gpu_memory.c - device memory: one buffer with memory of its own a piece, kept to the end.
 *
 * There are few pieces, all large (arenas, page pools, regions of weights that gpu_weights.c deals out), and what a model needs is known
 * when it is opened: nothing is ever given back and nothing can fragment. Types are taken by flags, best first. Buffers are used by
 * both queues' families at once: no transfers of ownership. */
#include <inttypes.h>
#include <stdlib.h>

#include "kernels/gpu_device.h"

static const VkMemoryPropertyFlags wishes[GPU_PLACES][3] = {
    [GPU_LOCAL] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, 0},
    [GPU_UPLOAD] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0, 0},
    [GPU_READBACK] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
                      VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0},
};

static uint32_t type_of(const struct gpu *g, uint32_t allowed, enum gpu_place place)
{
    for (unsigned w = 0; w < 3; w++)
        for (uint32_t i = 0; i < g->memory.memoryTypeCount && (w == 0 || wishes[place][w] || place == GPU_LOCAL); i++)
            if ((allowed >> i & 1) && (g->memory.memoryTypes[i].propertyFlags & wishes[place][w]) == wishes[place][w]) return i;
    return UINT32_MAX;
}

static int map_block(struct gpu *g, struct gpu_block *b, const char *what, struct err *e)
{
    VkMemoryRequirements need;
    g->vk.vkGetBufferMemoryRequirements(g->device, b->buffer, &need);
    uint32_t type = type_of(g, need.memoryTypeBits, b->place);
    if (type == UINT32_MAX) return err_set(e, ERR_UNSUPPORTED, "%s: the device has no memory for %s", g->info.name, what);
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO, .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo a = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &flags, .allocationSize = need.size, .memoryTypeIndex = type};
    VkResult r = g->vk.vkAllocateMemory(g->device, &a, NULL, &b->memory);
    if (r == VK_SUCCESS) r = g->vk.vkBindBufferMemory(g->device, b->buffer, b->memory, 0);
    void *host = NULL;
    if (r == VK_SUCCESS && b->place != GPU_LOCAL) r = g->vk.vkMapMemory(g->device, b->memory, 0, VK_WHOLE_SIZE, 0, &host);
    if (r != VK_SUCCESS) {
        gpu_vk_fail(e, r, g->info.name);
        return err_prefix(e, ERR_NOMEM, "%" PRIu64 " bytes for %s beside %" PRIu64, (uint64_t)need.size, what, g->local_bytes);
    }
    VkBufferDeviceAddressInfo i = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = b->buffer};
    b->host = host;
    b->addr = g->vk.vkGetBufferDeviceAddress(g->device, &i);
    gpu_name(g, VK_OBJECT_TYPE_BUFFER, (uint64_t)(uintptr_t)b->buffer, what);
    return ERR_OK;
}

static int add_block(struct gpu *g, enum gpu_place place, uint64_t bytes, const char *what, struct err *e)
{
    if (place == GPU_LOCAL && g->local_max && (bytes > g->local_max || g->local_bytes > g->local_max - bytes))
        return err_set(e, ERR_BUDGET, "--vram %" PRIu64 ": %s needs %" PRIu64 " bytes beside %" PRIu64 ", %" PRIu64 " are missing", g->local_max, what, bytes, g->local_bytes,
                       g->local_bytes + bytes - g->local_max);
    if (g->info.alloc_max && bytes > g->info.alloc_max)
        return err_set(e, ERR_LIMIT, "%s: %s needs %" PRIu64 " bytes in one piece, the device gives %" PRIu64, g->info.name, what, bytes, g->info.alloc_max);
    if (g->n_blocks == g->blocks_cap) {
        uint32_t cap = g->blocks_cap ? 2 * g->blocks_cap : 16;
        void *p = realloc(g->blocks, cap * sizeof *g->blocks);
        if (!p) return err_set(e, ERR_NOMEM, "device memory blocks");
        g->blocks = p;
        g->blocks_cap = cap;
    }
    struct gpu_block *b = &g->blocks[g->n_blocks];
    *b = (struct gpu_block){.bytes = bytes, .place = place};
    VkBufferCreateInfo c = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes,
                            .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT,
                            .sharingMode = g->two_queues ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
                            .queueFamilyIndexCount = g->two_queues ? 2 : 0, .pQueueFamilyIndices = g->families};
    VkResult r = g->vk.vkCreateBuffer(g->device, &c, NULL, &b->buffer);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, what);
    g->n_blocks++; /* closed with the device, whatever comes */
    int rc = map_block(g, b, what, e);
    if (rc) return rc;
    *(place == GPU_LOCAL ? &g->local_bytes : &g->host_bytes) += bytes;
    g->allocations++;
    return ERR_OK;
}

int gpu_alloc(struct gpu *g, enum gpu_place place, uint64_t bytes, const char *what, struct gpu_mem *out, struct err *e)
{
    bytes = bytes ? (bytes + 255) & ~(uint64_t)255 : 256;
    int rc = add_block(g, place, bytes, what, e);
    if (rc) return rc;
    const struct gpu_block *b = &g->blocks[g->n_blocks - 1];
    *out = (struct gpu_mem){.buffer = b->buffer, .bytes = bytes, .addr = b->addr, .host = b->host};
    return ERR_OK;
}
