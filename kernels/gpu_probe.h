/* kernels/gpu_probe.h - what the loader's devices are and can do: shared by the list of devices and by opening one. */
#ifndef SLUICE_KERNELS_GPU_PROBE_H
#define SLUICE_KERNELS_GPU_PROBE_H
#include "kernels/gpu.h"
#include "kernels/gpu_vk.h"

/* An instance of version 1.2, with debug names where the loader has them, and the validation layer where it is wished and there. */
int gpu_probe_instance(struct gpu_vk *vk, bool validate, VkInstance *out, struct err *e);
/* Devices in the order of gpu.h, at most max. ERR_NOTFOUND: none. */
int gpu_probe_devices(struct gpu_vk *vk, VkInstance i, VkPhysicalDevice *out, unsigned max, unsigned *n, struct err *e);
void gpu_probe_info(struct gpu_vk *vk, VkPhysicalDevice d, struct gpu_info *out);
bool gpu_probe_extension(struct gpu_vk *vk, VkPhysicalDevice d, const char *name);
/* families[0]: the first that computes; families[1]: one that only copies, else the same. */
bool gpu_probe_queues(struct gpu_vk *vk, VkPhysicalDevice d, uint32_t families[2]);
#endif
