/* kernels/gpu_vk.h - Vulkan's functions, found at run time: the loader is opened by name, so the program starts on machines without
 * one and says so only when a device is asked for. The one file that includes vulkan.h. */
#ifndef SLUICE_KERNELS_GPU_VK_H
#define SLUICE_KERNELS_GPU_VK_H
#include <stdbool.h>
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>
#include "base/err.h"

#define GPU_VK_GLOBAL(X) X(vkEnumerateInstanceVersion) X(vkEnumerateInstanceLayerProperties) X(vkEnumerateInstanceExtensionProperties) X(vkCreateInstance)
#define GPU_VK_INSTANCE(X) \
    X(vkDestroyInstance) X(vkEnumeratePhysicalDevices) X(vkGetPhysicalDeviceProperties2) X(vkGetPhysicalDeviceFeatures2) X(vkGetPhysicalDeviceMemoryProperties2) \
    X(vkGetPhysicalDeviceQueueFamilyProperties) X(vkEnumerateDeviceExtensionProperties) X(vkCreateDevice) X(vkGetDeviceProcAddr)
#define GPU_VK_DEVICE(X) \
    X(vkDestroyDevice) X(vkGetDeviceQueue) X(vkDeviceWaitIdle) X(vkCreateBuffer) X(vkDestroyBuffer) X(vkGetBufferMemoryRequirements) X(vkAllocateMemory) X(vkFreeMemory) \
    X(vkBindBufferMemory) X(vkMapMemory) X(vkGetBufferDeviceAddress) X(vkCreateShaderModule) X(vkDestroyShaderModule) X(vkCreatePipelineCache) \
    X(vkDestroyPipelineCache) X(vkGetPipelineCacheData) X(vkCreatePipelineLayout) X(vkDestroyPipelineLayout) X(vkCreateComputePipelines) X(vkDestroyPipeline) \
    X(vkCreateCommandPool) X(vkDestroyCommandPool) X(vkAllocateCommandBuffers) X(vkFreeCommandBuffers) X(vkBeginCommandBuffer) X(vkEndCommandBuffer) \
    X(vkCmdBindPipeline) X(vkCmdPushConstants) X(vkCmdDispatchIndirect) X(vkCmdPipelineBarrier) X(vkCmdCopyBuffer) X(vkCreateQueryPool) X(vkDestroyQueryPool) \
    X(vkCmdResetQueryPool) X(vkCmdWriteTimestamp) X(vkGetQueryPoolResults) X(vkQueueSubmit) X(vkCreateSemaphore) X(vkDestroySemaphore) \
    X(vkGetSemaphoreCounterValue) X(vkWaitSemaphores)
/* Of extensions: NULL where the extension is not on. */
#define GPU_VK_OPTIONAL(X) X(vkCreateDebugUtilsMessengerEXT) X(vkDestroyDebugUtilsMessengerEXT) X(vkSetDebugUtilsObjectNameEXT)

struct gpu_vk {
    void *lib;
    PFN_vkGetInstanceProcAddr get;
#define GPU_VK_FIELD(f) PFN_##f f;
    GPU_VK_GLOBAL(GPU_VK_FIELD) GPU_VK_INSTANCE(GPU_VK_FIELD) GPU_VK_DEVICE(GPU_VK_FIELD) GPU_VK_OPTIONAL(GPU_VK_FIELD)
#undef GPU_VK_FIELD
};
/* Opens the loader and its global functions. ERR_NOTFOUND: there is none. */
int gpu_vk_open(struct gpu_vk *vk, struct err *e);
int gpu_vk_instance(struct gpu_vk *vk, VkInstance i, struct err *e);
int gpu_vk_device(struct gpu_vk *vk, VkInstance i, VkDevice d, struct err *e);
void gpu_vk_close(struct gpu_vk *vk);
const char *gpu_vk_result(VkResult r);
/* "what: VK_ERROR_..."; out of memory is ERR_NOMEM, a lost device ERR_CLOSED, the rest ERR_IO. */
int gpu_vk_fail(struct err *e, VkResult r, const char *what);
#endif
