/* kernels/gpu_mask.c - words about devices; the one gpu_ file that is built with or without Vulkan. */
#include <string.h>
#include "kernels/gpu.h"

const char *const gpu_type_names[] = {"discrete", "integrated", "virtual", "cpu", "other"};

int gpu_mask_parse(const char *words, uint32_t *mask, struct err *e)
{
    static const char *const names[] = {"transfer-queue", "budget", "timestamps", "large-regions"};
    *mask = 0;
    for (const char *p = words; *p; p += *p == ',') {
        size_t n = strcspn(p, ","), i = 0;
        while (i < sizeof names / sizeof *names && (strlen(names[i]) != n || strncmp(names[i], p, n))) i++;
        if (i == sizeof names / sizeof *names)
            return err_set(e, ERR_INVALID, "\"%.*s\": expected transfer-queue, budget, timestamps or large-regions", (int)(n < 64 ? n : 64), p);
        *mask |= 1u << i;
        p += n;
    }
    return ERR_OK;
}
