/* kernels/gpu_device.h - one Vulkan device that was opened: instance, device, queues, timelines, pipeline cache, memory.
 *
 * Owns:      every Vulkan object below but command buffers and pipelines (gpu_backend.h).
 * Invariant: one compute queue, and one for copies that may be the same; each has a timeline semaphore whose value only grows.
 *            The compute queue runs submissions in order, and what is submitted never waits for what is submitted later on it: one
 *            in-order queue is enough.
 * Threads:   one caller. The validation counter may be raised by any thread. */
#ifndef SLUICE_KERNELS_GPU_DEVICE_H
#define SLUICE_KERNELS_GPU_DEVICE_H
#include <stdatomic.h>
#include "kernels/gpu.h"
#include "kernels/gpu_vk.h"

/* Where memory lies: LOCAL on the device; UPLOAD written by the host and read by the device once; READBACK written by the device
 * and read by the host. */
enum gpu_place { GPU_LOCAL, GPU_UPLOAD, GPU_READBACK, GPU_PLACES };
struct gpu_mem {
    VkBuffer buffer; VkDeviceSize offset, bytes; /* offset: of a part of a piece */
    uint64_t addr;             /* on the device */
    void *host;                /* NULL: LOCAL */
};
struct gpu_block { VkBuffer buffer; VkDeviceMemory memory; VkDeviceSize bytes; uint64_t addr; uint8_t *host; enum gpu_place place; };
struct gpu_timeline { VkSemaphore semaphore; uint64_t value; /* of the last submission */ };

struct gpu {
    struct gpu_vk vk;
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    _Atomic uint32_t messages; /* warnings and errors of the validation layer */
    VkPhysicalDevice physical;
    VkPhysicalDeviceMemoryProperties memory;
    struct gpu_info info;
    VkDevice device;
    uint32_t families[2];      /* compute, copies */
    bool two_queues;
    VkQueue queue[2];
    struct gpu_timeline timeline[2];
    VkCommandPool pool[2];
    VkPipelineCache cache;
    VkPipelineLayout layout;   /* push constants alone: no shader has a descriptor */
    char cache_path[512];      /* "": none on disk */
    struct gpu_block *blocks; uint32_t n_blocks, blocks_cap;
    uint64_t region_bytes;     /* most of a piece of device memory that weights share */
    uint64_t local_bytes, local_max, host_bytes; /* taken so far; local_max 0: no bound */
    uint64_t allocations, pipelines, submits; /* counted since the device was opened */
};
enum { GPU_COMPUTE, GPU_COPY };

struct gpu_options {
    unsigned index;            /* as gpu_list orders them */
    uint32_t without;          /* capability mask */
    bool validate;             /* with the validation layer, if it is there */
    const char *cache_dir;     /* of pipeline caches; NULL: none */
    uint64_t local_max;        /* bytes of device memory */
};
int gpu_open(struct gpu **out, const struct gpu_options *o, struct err *e);
void gpu_close(struct gpu *g);
/* A piece of memory that stays until gpu_close, at an address that is a multiple of 256. ERR_BUDGET: beyond local_max, with the numbers;
 * ERR_NOMEM, ERR_LIMIT. what: for the message. */
int gpu_alloc(struct gpu *g, enum gpu_place place, uint64_t bytes, const char *what, struct gpu_mem *out, struct err *e);
/* Queues a command buffer; waits[k] of timeline k must be reached first (0: no wait). The queue's timeline ends at its new value. */
int gpu_submit(struct gpu *g, unsigned queue, VkCommandBuffer c, const uint64_t waits[2], struct err *e);
int gpu_wait(struct gpu *g, unsigned queue, uint64_t value, struct err *e);
void gpu_name(struct gpu *g, VkObjectType type, uint64_t handle, const char *name); /* for debuggers; "" where they are not on */
void gpu_cache_save(struct gpu *g); /* to disk, if there is a place; failing is no error */
#endif
