/* kernels/gpu_vk.c - opens libvulkan.so.1 and looks functions up. */
#include "kernels/gpu_vk.h"

#include <dlfcn.h>
#include <string.h>

static PFN_vkVoidFunction missing(PFN_vkVoidFunction f, const char *name, const char **first)
{
    if (!f && !*first) *first = name;
    return f;
}

int gpu_vk_open(struct gpu_vk *vk, struct err *e)
{
    const char *first = NULL;
    memset(vk, 0, sizeof *vk);
    if (!(vk->lib = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL)))
        return err_set(e, ERR_NOTFOUND, "Vulkan: no loader on this machine (libvulkan.so.1 of package libvulkan1): %s", dlerror());
    void *p = dlsym(vk->lib, "vkGetInstanceProcAddr");
    memcpy(&vk->get, &p, sizeof p); /* ISO C knows no cast from data to code */
    if (!vk->get) return err_set(e, ERR_UNSUPPORTED, "Vulkan: libvulkan.so.1 has no vkGetInstanceProcAddr");
#define LOOK_UP(f) vk->f = (PFN_##f)missing(vk->get(NULL, #f), #f, &first);
    GPU_VK_GLOBAL(LOOK_UP)
#undef LOOK_UP
    return first ? err_set(e, ERR_UNSUPPORTED, "Vulkan: the loader has no %s: expected version 1.2 or later", first) : ERR_OK;
}

int gpu_vk_instance(struct gpu_vk *vk, VkInstance i, struct err *e)
{
    const char *first = NULL;
#define LOOK_UP(f) vk->f = (PFN_##f)missing(vk->get(i, #f), #f, &first);
    GPU_VK_INSTANCE(LOOK_UP)
#undef LOOK_UP
#define LOOK_UP(f) vk->f = (PFN_##f)vk->get(i, #f);
    GPU_VK_OPTIONAL(LOOK_UP)
#undef LOOK_UP
    return first ? err_set(e, ERR_UNSUPPORTED, "Vulkan: the loader has no %s: expected version 1.2 or later", first) : ERR_OK;
}

int gpu_vk_device(struct gpu_vk *vk, VkInstance i, VkDevice d, struct err *e)
{
    const char *first = NULL;
    (void)i;
#define LOOK_UP(f) vk->f = (PFN_##f)missing(vk->vkGetDeviceProcAddr(d, #f), #f, &first);
    GPU_VK_DEVICE(LOOK_UP)
#undef LOOK_UP
    return first ? err_set(e, ERR_UNSUPPORTED, "Vulkan: the driver has no %s", first) : ERR_OK;
}

void gpu_vk_close(struct gpu_vk *vk)
{
    if (vk->lib) dlclose(vk->lib);
    vk->lib = NULL;
}

const char *gpu_vk_result(VkResult r)
{
    switch (r) {
    case VK_SUCCESS: return "VK_SUCCESS";
    case VK_TIMEOUT: return "VK_TIMEOUT";
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case VK_ERROR_INITIALIZATION_FAILED: return "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_DEVICE_LOST: return "VK_ERROR_DEVICE_LOST";
    case VK_ERROR_MEMORY_MAP_FAILED: return "VK_ERROR_MEMORY_MAP_FAILED";
    case VK_ERROR_LAYER_NOT_PRESENT: return "VK_ERROR_LAYER_NOT_PRESENT";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "VK_ERROR_FEATURE_NOT_PRESENT";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_TOO_MANY_OBJECTS: return "VK_ERROR_TOO_MANY_OBJECTS";
    default: return "an unknown Vulkan error";
    }
}

int gpu_vk_fail(struct err *e, VkResult r, const char *what)
{
    bool memory = r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return err_set(e, memory ? ERR_NOMEM : r == VK_ERROR_DEVICE_LOST ? ERR_CLOSED : ERR_IO, "Vulkan: %s: %s (%d)", what, gpu_vk_result(r), (int)r);
}
