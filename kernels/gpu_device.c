/* kernels/gpu_device.c - opens a device by its number, with its queues, timelines and pipeline cache; queues work on it.
 *
 * The cache file is one a driver (its pipelineCacheUUID); the driver itself checks the bytes' head, so a stale or torn file is only a
 * cold start. It is written beside its place and renamed. */
#include "kernels/gpu_device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/gpu_probe.h"
#include "kernels/gpu_push.h"

enum { CACHE_BYTES_MAX = 256 << 20 };

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity, VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data, void *ctx)
{
    struct gpu *g = ctx;
    (void)severity;
    if (types & VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT) {
        atomic_fetch_add(&g->messages, 1);
        log_error("vulkan validation: %.300s", data->pMessage ? data->pMessage : "");
    }
    return VK_FALSE;
}

static void listen(struct gpu *g)
{
    VkDebugUtilsMessengerCreateInfoEXT c = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT, .pfnUserCallback = on_message, .pUserData = g,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT};
    if (g->vk.vkCreateDebugUtilsMessengerEXT) g->vk.vkCreateDebugUtilsMessengerEXT(g->instance, &c, NULL, &g->messenger);
}

static int choose(struct gpu *g, const struct gpu_options *o, struct err *e)
{
    VkPhysicalDevice d[GPU_DEVICES_MAX];
    unsigned n;
    int rc = gpu_probe_devices(&g->vk, g->instance, d, GPU_DEVICES_MAX, &n, e);
    if (rc) return rc;
    if (o->index >= n) return err_set(e, ERR_NOTFOUND, "--device vulkan:%u: found %u device%s, numbered from 0 (`sluice devices`)", o->index, n, n == 1 ? "" : "s");
    g->physical = d[o->index];
    gpu_probe_info(&g->vk, g->physical, &g->info);
    if (g->info.missing[0]) return err_set(e, ERR_UNSUPPORTED, "--device vulkan:%u, %s: it has no %s", o->index, g->info.name, g->info.missing);
    if (o->without & GPU_NO_BUDGET) g->info.memory_budget = false;
    if (o->without & GPU_NO_TIMESTAMPS) g->info.timestamp_ns = 0;
    g->region_bytes = o->without & GPU_NO_LARGE_REGIONS ? 1 << 20 : 1 << 30;
    g->local_max = o->local_max;
    gpu_probe_queues(&g->vk, g->physical, g->families);
    if (o->without & GPU_NO_TRANSFER_QUEUE) g->families[1] = g->families[0];
    g->two_queues = g->families[1] != g->families[0];
    VkPhysicalDeviceMemoryProperties2 m = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    g->vk.vkGetPhysicalDeviceMemoryProperties2(g->physical, &m);
    g->memory = m.memoryProperties;
    return ERR_OK;
}

static int open_device(struct gpu *g, struct err *e)
{
    const float priority = 1;
    VkDeviceQueueCreateInfo q[2];
    for (unsigned i = 0; i < 2; i++)
        q[i] = (VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = g->families[i], .queueCount = 1, .pQueuePriorities = &priority};
    VkPhysicalDeviceVulkan12Features f12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .bufferDeviceAddress = VK_TRUE, .timelineSemaphore = VK_TRUE};
    VkPhysicalDeviceVulkan11Features f11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12, .storageBuffer16BitAccess = VK_TRUE};
    VkDeviceCreateInfo c = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &f11, .queueCreateInfoCount = g->two_queues ? 2 : 1, .pQueueCreateInfos = q};
    VkResult r = g->vk.vkCreateDevice(g->physical, &c, NULL, &g->device);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, g->info.name);
    int rc = gpu_vk_device(&g->vk, g->instance, g->device, e);
    for (unsigned i = 0; i < 2 && !rc; i++) {
        VkSemaphoreTypeCreateInfo t = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
        VkSemaphoreCreateInfo s = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &t};
        VkCommandPoolCreateInfo p = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT, .queueFamilyIndex = g->families[i]};
        g->vk.vkGetDeviceQueue(g->device, g->families[i], 0, &g->queue[i]);
        if ((r = g->vk.vkCreateSemaphore(g->device, &s, NULL, &g->timeline[i].semaphore)) != VK_SUCCESS ||
            (r = g->vk.vkCreateCommandPool(g->device, &p, NULL, &g->pool[i])) != VK_SUCCESS)
            rc = gpu_vk_fail(e, r, "queues");
    }
    return rc;
}

static void cache_read(struct gpu *g, void **data, size_t *n)
{
    FILE *f = g->cache_path[0] ? fopen(g->cache_path, "rb") : NULL;
    long end = -1;
    *data = NULL;
    *n = 0;
    if (f && !fseek(f, 0, SEEK_END) && (end = ftell(f)) > 0 && end <= CACHE_BYTES_MAX && !fseek(f, 0, SEEK_SET) && (*data = malloc((size_t)end)))
        *n = fread(*data, 1, (size_t)end, f);
    if (f) fclose(f);
}

static int open_cache(struct gpu *g, const char *dir, struct err *e)
{
    void *data;
    size_t n;
    char key[33];
    for (unsigned i = 0; i < 16; i++) snprintf(key + 2 * i, 3, "%02x", g->info.uuid[i]);
    if (dir && (size_t)snprintf(g->cache_path, sizeof g->cache_path, "%s/vulkan-%s.cache", dir, key) >= sizeof g->cache_path)
        return err_set(e, ERR_INVALID, "pipeline cache: the path %s is too long", dir);
    cache_read(g, &data, &n);
    VkPipelineCacheCreateInfo c = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO, .initialDataSize = n, .pInitialData = data};
    VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = GPU_PUSH_BYTES};
    VkPipelineLayoutCreateInfo l = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, .pushConstantRangeCount = 1, .pPushConstantRanges = &push};
    VkResult r = g->vk.vkCreatePipelineCache(g->device, &c, NULL, &g->cache);
    free(data);
    if (r == VK_SUCCESS) r = g->vk.vkCreatePipelineLayout(g->device, &l, NULL, &g->layout);
    return r == VK_SUCCESS ? ERR_OK : gpu_vk_fail(e, r, "pipeline cache");
}

void gpu_cache_save(struct gpu *g)
{
    char tmp[560];
    size_t n = 0;
    void *data = NULL;
    if (!g->cache_path[0] || g->vk.vkGetPipelineCacheData(g->device, g->cache, &n, NULL) != VK_SUCCESS || !n || !(data = malloc(n))) return;
    snprintf(tmp, sizeof tmp, "%s.%ld", g->cache_path, (long)getpid());
    FILE *f = g->vk.vkGetPipelineCacheData(g->device, g->cache, &n, data) == VK_SUCCESS ? fopen(tmp, "wb") : NULL;
    if (f) {
        bool whole = fwrite(data, 1, n, f) == n;
        if (fclose(f) || !whole || rename(tmp, g->cache_path)) unlink(tmp);
    }
    free(data);
}

int gpu_open(struct gpu **out, const struct gpu_options *o, struct err *e)
{
    struct gpu *g = calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return err_set(e, ERR_NOMEM, "a device");
    int rc = gpu_vk_open(&g->vk, e);
    if (!rc) rc = gpu_probe_instance(&g->vk, o->validate, &g->instance, e);
    if (!rc) {
        if (o->validate) listen(g);
        rc = choose(g, o, e);
    }
    if (!rc) rc = open_device(g, e);
    if (!rc) rc = open_cache(g, o->cache_dir, e);
    if (rc) gpu_close(g);
    else *out = g;
    return rc;
}

static void close_device(struct gpu *g)
{
    g->vk.vkDeviceWaitIdle(g->device);
    for (uint32_t i = 0; i < g->n_blocks; i++) {
        g->vk.vkDestroyBuffer(g->device, g->blocks[i].buffer, NULL);
        g->vk.vkFreeMemory(g->device, g->blocks[i].memory, NULL);
    }
    for (unsigned i = 0; i < 2; i++) {
        g->vk.vkDestroySemaphore(g->device, g->timeline[i].semaphore, NULL);
        g->vk.vkDestroyCommandPool(g->device, g->pool[i], NULL);
    }
    g->vk.vkDestroyPipelineLayout(g->device, g->layout, NULL);
    g->vk.vkDestroyPipelineCache(g->device, g->cache, NULL);
    g->vk.vkDestroyDevice(g->device, NULL);
}

void gpu_close(struct gpu *g)
{
    if (!g) return;
    if (g->device && g->vk.vkDestroyDevice) close_device(g);
    if (g->messenger && g->vk.vkDestroyDebugUtilsMessengerEXT) g->vk.vkDestroyDebugUtilsMessengerEXT(g->instance, g->messenger, NULL);
    if (g->instance && g->vk.vkDestroyInstance) g->vk.vkDestroyInstance(g->instance, NULL);
    gpu_vk_close(&g->vk);
    free(g->blocks);
    free(g);
}

/* ---- work ------------------------------------------------------------------------------------------------------------ */
int gpu_submit(struct gpu *g, unsigned queue, VkCommandBuffer c, const uint64_t waits[2], struct err *e)
{
    struct gpu_timeline *t = &g->timeline[queue];
    VkSemaphore wait[2];
    VkPipelineStageFlags stage[2];
    uint64_t value[2], next = t->value + 1;
    uint32_t n = 0;
    for (unsigned k = 0; k < 2; k++)
        if (waits && waits[k]) {
            wait[n] = g->timeline[k].semaphore;
            stage[n] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
            value[n++] = waits[k];
        }
    VkTimelineSemaphoreSubmitInfo ts = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, .waitSemaphoreValueCount = n, .pWaitSemaphoreValues = value,
                                        .signalSemaphoreValueCount = 1, .pSignalSemaphoreValues = &next};
    VkSubmitInfo s = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &ts, .waitSemaphoreCount = n, .pWaitSemaphores = wait, .pWaitDstStageMask = stage,
                      .commandBufferCount = 1, .pCommandBuffers = &c, .signalSemaphoreCount = 1, .pSignalSemaphores = &t->semaphore};
    VkResult r = g->vk.vkQueueSubmit(g->queue[queue], 1, &s, VK_NULL_HANDLE);
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, "submit");
    t->value = next;
    g->submits++;
    return ERR_OK;
}

int gpu_wait(struct gpu *g, unsigned queue, uint64_t value, struct err *e)
{
    VkSemaphoreWaitInfo w = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO, .semaphoreCount = 1, .pSemaphores = &g->timeline[queue].semaphore, .pValues = &value};
    uint64_t now = 0;
    VkResult r = VK_SUCCESS;
    for (int spin = 0; spin < 64; spin++) /* a decode on a fast device is over sooner than a sleep */
        if ((r = g->vk.vkGetSemaphoreCounterValue(g->device, g->timeline[queue].semaphore, &now)) != VK_SUCCESS || now >= value) break;
    if (r == VK_SUCCESS && now < value) r = g->vk.vkWaitSemaphores(g->device, &w, UINT64_MAX);
    return r == VK_SUCCESS ? ERR_OK : gpu_vk_fail(e, r, "wait for the device");
}

void gpu_name(struct gpu *g, VkObjectType type, uint64_t handle, const char *name)
{
    VkDebugUtilsObjectNameInfoEXT i = {.sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT, .objectType = type, .objectHandle = handle, .pObjectName = name};
    if (g->vk.vkSetDebugUtilsObjectNameEXT) g->vk.vkSetDebugUtilsObjectNameEXT(g->device, &i);
}
