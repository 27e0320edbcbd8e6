/* kernels/gpu.h - Vulkan devices from outside: what there is, what each can do, and the backend that runs plans on one.
 *
 * Nothing of Vulkan shows here, so that callers build where it is missing: then every call says so (gpu_absent.c).
 * Order of devices: discrete, integrated, virtual, processors (software drivers); among equals as the loader lists them. */
#ifndef SLUICE_KERNELS_GPU_H
#define SLUICE_KERNELS_GPU_H
#include "kernels/backend.h"

enum { GPU_HEAPS_MAX = 16, GPU_DEVICES_MAX = 16 };
enum gpu_type { GPU_DISCRETE, GPU_INTEGRATED, GPU_VIRTUAL, GPU_CPU, GPU_OTHER };
struct gpu_heap { uint64_t bytes, budget; bool local, mapped; }; /* budget 0: the driver does not say; mapped: the host sees it */
struct gpu_info {
    char name[256], driver[256], driver_info[256], api[32];
    uint8_t uuid[16];          /* of its pipeline caches */
    enum gpu_type type;
    struct gpu_heap heaps[GPU_HEAPS_MAX]; unsigned n_heaps;
    uint32_t subgroup, subgroup_min, subgroup_max; /* invocations; min and max 0: the driver does not say */
    uint32_t group_invocations, group_shared, push_bytes;
    uint64_t alloc_max;        /* bytes of one allocation */
    double timestamp_ns;       /* a tick; 0: no timestamps */
    bool transfer_queue;       /* a queue family for copies alone */
    bool f16, int8_dot, coop_matrix, host_import, memory_budget;
    char missing[160];         /* what this program needs and the device lacks; "": it can run models */
};
/* Fills at most max entries. ERR_NOTFOUND: no loader or no device; ERR_UNSUPPORTED: built without Vulkan. */
int gpu_list(struct gpu_info *out, unsigned max, unsigned *n, struct err *e);

/* What can be taken away from a device, to see what others would do: the capability mask. */
enum { GPU_NO_TRANSFER_QUEUE = 1, GPU_NO_BUDGET = 2, GPU_NO_TIMESTAMPS = 4, GPU_NO_LARGE_REGIONS = 8 /* of weights: 1 MiB instead of 1 GiB */ };
/* "transfer-queue,budget,timestamps,large-regions" -> bits; ERR_INVALID names the word. */
int gpu_mask_parse(const char *words, uint32_t *mask, struct err *e);
extern const char *const gpu_type_names[];

/* krn_vulkan.supports: what there are kernels for, whether or not this build can open a device. */
enum krn_support gpu_supports(enum krn_opcode code, enum krn_type weight);

/* What a device reaches at best, measured now: reads of `bytes` (a multiple of 32 MiB) of its memory, f32 operations (a product and a sum are two) outside matrix units. */
struct gpu_peaks { double read_bytes_s, fma_ops_s; };
int gpu_measure(unsigned index, uint64_t bytes, struct gpu_peaks *out, struct err *e);

extern const struct krn_backend_api krn_vulkan;
#endif
