/* kernels/gpu_probe.c - instance, devices in order, features and limits. */
#include "kernels/gpu_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_layer(struct gpu_vk *vk, const char *name)
{
    VkLayerProperties p[64];
    uint32_t n = sizeof p / sizeof *p;
    VkResult r = vk->vkEnumerateInstanceLayerProperties(&n, p);
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n; i++)
        if (!strcmp(p[i].layerName, name)) return true;
    return false;
}
static bool has_instance_extension(struct gpu_vk *vk, const char *layer, const char *name)
{
    VkExtensionProperties p[128];
    uint32_t n = sizeof p / sizeof *p;
    VkResult r = vk->vkEnumerateInstanceExtensionProperties(layer, &n, p);
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n; i++)
        if (!strcmp(p[i].extensionName, name)) return true;
    return false;
}

int gpu_probe_instance(struct gpu_vk *vk, bool validate, VkInstance *out, struct err *e)
{
    static const char layer[] = "VK_LAYER_KHRONOS_validation", debug[] = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    const char *layers[] = {layer}, *extensions[] = {debug};
    uint32_t version = 0;
    if (vk->vkEnumerateInstanceVersion(&version) != VK_SUCCESS || version < VK_API_VERSION_1_2)
        return err_set(e, ERR_UNSUPPORTED, "Vulkan: expected a loader of version 1.2, found %u.%u", VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    if (validate && !has_layer(vk, layer)) return err_set(e, ERR_NOTFOUND, "Vulkan: no %s on this machine", layer);
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .pApplicationName = "sluice", .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo c = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &app, .enabledLayerCount = validate, .ppEnabledLayerNames = layers,
                              .enabledExtensionCount = has_instance_extension(vk, NULL, debug) || (validate && has_instance_extension(vk, layer, debug)),
                              .ppEnabledExtensionNames = extensions};
    VkResult r = vk->vkCreateInstance(&c, NULL, out);
    if (r == VK_ERROR_INCOMPATIBLE_DRIVER) return err_set(e, ERR_NOTFOUND, "Vulkan: the loader found no driver (on Debian: mesa-vulkan-drivers, or the vendor's)");
    if (r != VK_SUCCESS) return gpu_vk_fail(e, r, "instance");
    return gpu_vk_instance(vk, *out, e);
}

static enum gpu_type type_of(VkPhysicalDeviceType t)
{
    switch (t) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return GPU_DISCRETE;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return GPU_INTEGRATED;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return GPU_VIRTUAL;
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return GPU_CPU;
    default: return GPU_OTHER;
    }
}

int gpu_probe_devices(struct gpu_vk *vk, VkInstance i, VkPhysicalDevice *out, unsigned max, unsigned *n, struct err *e)
{
    VkPhysicalDevice all[GPU_DEVICES_MAX];
    uint32_t found = GPU_DEVICES_MAX;
    VkResult r = vk->vkEnumeratePhysicalDevices(i, &found, all);
    *n = 0;
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) return gpu_vk_fail(e, r, "list of devices");
    for (int type = GPU_DISCRETE; type <= GPU_OTHER; type++)
        for (uint32_t k = 0; k < found && *n < max; k++) {
            VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
            vk->vkGetPhysicalDeviceProperties2(all[k], &p);
            if ((int)type_of(p.properties.deviceType) == type) out[(*n)++] = all[k];
        }
    return *n ? ERR_OK : err_set(e, ERR_NOTFOUND, "Vulkan: no device on this machine (on Debian: mesa-vulkan-drivers, or the vendor's driver)");
}

bool gpu_probe_extension(struct gpu_vk *vk, VkPhysicalDevice d, const char *name)
{
    uint32_t n = 0;
    bool found = false;
    if (vk->vkEnumerateDeviceExtensionProperties(d, NULL, &n, NULL) != VK_SUCCESS || !n) return false;
    VkExtensionProperties *p = calloc(n, sizeof *p);
    if (p && vk->vkEnumerateDeviceExtensionProperties(d, NULL, &n, p) >= VK_SUCCESS)
        for (uint32_t i = 0; i < n && !found; i++) found = !strcmp(p[i].extensionName, name);
    free(p);
    return found;
}

bool gpu_probe_queues(struct gpu_vk *vk, VkPhysicalDevice d, uint32_t families[2])
{
    VkQueueFamilyProperties f[32];
    uint32_t n = sizeof f / sizeof *f;
    vk->vkGetPhysicalDeviceQueueFamilyProperties(d, &n, f);
    families[0] = families[1] = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        VkQueueFlags q = f[i].queueFlags;
        if (families[0] == UINT32_MAX && (q & VK_QUEUE_COMPUTE_BIT)) families[0] = i;
        if (families[1] == UINT32_MAX && (q & VK_QUEUE_TRANSFER_BIT) && !(q & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT))) families[1] = i;
    }
    if (families[1] == UINT32_MAX) families[1] = families[0];
    return families[0] != UINT32_MAX;
}

static void heaps(struct gpu_vk *vk, VkPhysicalDevice d, struct gpu_info *o)
{
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 m = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = o->memory_budget ? &budget : NULL};
    vk->vkGetPhysicalDeviceMemoryProperties2(d, &m);
    o->n_heaps = m.memoryProperties.memoryHeapCount < GPU_HEAPS_MAX ? m.memoryProperties.memoryHeapCount : GPU_HEAPS_MAX;
    for (uint32_t i = 0; i < o->n_heaps; i++)
        o->heaps[i] = (struct gpu_heap){.bytes = m.memoryProperties.memoryHeaps[i].size, .budget = budget.heapBudget[i],
                                        .local = m.memoryProperties.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT};
    for (uint32_t i = 0; i < m.memoryProperties.memoryTypeCount; i++)
        if (m.memoryProperties.memoryTypes[i].heapIndex < o->n_heaps && (m.memoryProperties.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT))
            o->heaps[m.memoryProperties.memoryTypes[i].heapIndex].mapped = true;
}

static void need(struct gpu_info *o, bool have, const char *what)
{
    size_t n = strlen(o->missing);
    if (!have) snprintf(o->missing + n, sizeof o->missing - n, "%s%s", n ? ", " : "", what);
}

static void features(struct gpu_vk *vk, VkPhysicalDevice d, struct gpu_info *o)
{
    VkPhysicalDeviceVulkan12Features f12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features f11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &f11};
    uint32_t families[2];
    vk->vkGetPhysicalDeviceFeatures2(d, &f);
    need(o, f12.bufferDeviceAddress, "bufferDeviceAddress");
    need(o, f12.timelineSemaphore, "timelineSemaphore");
    need(o, f11.storageBuffer16BitAccess, "storageBuffer16BitAccess");
    need(o, gpu_probe_queues(vk, d, families), "a compute queue");
    need(o, o->group_invocations >= 256, "work groups of 256");
    need(o, o->group_shared >= 16384, "16 KiB of shared memory");
    o->transfer_queue = families[0] != families[1];
    o->f16 = f12.shaderFloat16;
    o->int8_dot = gpu_probe_extension(vk, d, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    o->coop_matrix = gpu_probe_extension(vk, d, "VK_KHR_cooperative_matrix") || gpu_probe_extension(vk, d, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME);
    o->host_import = gpu_probe_extension(vk, d, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
}

void gpu_probe_info(struct gpu_vk *vk, VkPhysicalDevice d, struct gpu_info *o)
{
    memset(o, 0, sizeof *o);
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk->vkGetPhysicalDeviceProperties2(d, &p);
    uint32_t v = p.properties.apiVersion;
    snprintf(o->name, sizeof o->name, "%s", p.properties.deviceName);
    snprintf(o->api, sizeof o->api, "%u.%u.%u", VK_API_VERSION_MAJOR(v), VK_API_VERSION_MINOR(v), VK_API_VERSION_PATCH(v));
    memcpy(o->uuid, p.properties.pipelineCacheUUID, sizeof o->uuid);
    o->type = type_of(p.properties.deviceType);
    if (v < VK_API_VERSION_1_2) {
        need(o, false, "Vulkan 1.2");
        return;
    }
    bool widths = gpu_probe_extension(vk, d, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    VkPhysicalDeviceSubgroupSizeControlPropertiesEXT control = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan12Properties p12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = widths ? &control : NULL};
    VkPhysicalDeviceVulkan11Properties p11 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &p12};
    p.pNext = &p11;
    vk->vkGetPhysicalDeviceProperties2(d, &p);
    snprintf(o->driver, sizeof o->driver, "%s", p12.driverName);
    snprintf(o->driver_info, sizeof o->driver_info, "%s", p12.driverInfo);
    o->subgroup = p11.subgroupSize;
    o->subgroup_min = control.minSubgroupSize;
    o->subgroup_max = control.maxSubgroupSize;
    o->group_invocations = p.properties.limits.maxComputeWorkGroupInvocations;
    o->group_shared = p.properties.limits.maxComputeSharedMemorySize;
    o->push_bytes = p.properties.limits.maxPushConstantsSize;
    o->alloc_max = p11.maxMemoryAllocationSize;
    o->timestamp_ns = p.properties.limits.timestampComputeAndGraphics ? (double)p.properties.limits.timestampPeriod : 0;
    o->memory_budget = gpu_probe_extension(vk, d, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    features(vk, d, o);
    heaps(vk, d, o);
}

int gpu_list(struct gpu_info *out, unsigned max, unsigned *n, struct err *e)
{
    struct gpu_vk vk;
    VkInstance instance = NULL;
    VkPhysicalDevice d[GPU_DEVICES_MAX];
    int rc = gpu_vk_open(&vk, e);
    *n = 0;
    if (!rc) rc = gpu_probe_instance(&vk, false, &instance, e);
    if (!rc) rc = gpu_probe_devices(&vk, instance, d, max < GPU_DEVICES_MAX ? max : GPU_DEVICES_MAX, n, e);
    for (unsigned i = 0; !rc && i < *n; i++) gpu_probe_info(&vk, d[i], &out[i]);
    if (instance && vk.vkDestroyInstance) vk.vkDestroyInstance(instance, NULL);
    gpu_vk_close(&vk);
    return rc;
}
