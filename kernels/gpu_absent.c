/* kernels/gpu_absent.c - stands in for the gpu_ files where vulkan.h, glslc or spirv-val was missing at build time. */
#include "kernels/gpu.h"

static int absent(struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "this program was built without Vulkan: libvulkan-dev, glslc or spirv-tools was missing");
}
int gpu_list(struct gpu_info *out, unsigned max, unsigned *n, struct err *e)
{
    (void)out;
    (void)max;
    *n = 0;
    return absent(e);
}
int gpu_measure(unsigned index, uint64_t bytes, struct gpu_peaks *out, struct err *e)
{
    (void)index;
    (void)bytes;
    (void)out;
    return absent(e);
}
static int open_none(krn_backend **out, const struct krn_backend_config *cfg, struct err *e)
{
    (void)cfg;
    *out = NULL;
    return absent(e);
}
static size_t bytes(const struct krn_backend_config *cfg)
{
    (void)cfg;
    return 0;
}
const struct krn_backend_api krn_vulkan = {.name = "vulkan", .supports = gpu_supports, .open = open_none, .bytes = bytes};
