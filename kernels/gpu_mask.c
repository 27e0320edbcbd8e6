/* kernels/gpu_mask.c - words about devices, and what the backend has kernels for; the one gpu_ file that is built with or without Vulkan. */
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

enum krn_support gpu_supports(enum krn_opcode code, enum krn_type weight)
{
    switch (code) {
    case KRN_LINEAR: case KRN_EMBED:
        switch (weight) {
        case KRN_F32: case KRN_F16: case KRN_BF16: case KRN_Q8_0: case KRN_Q4_0: case KRN_Q4_1: case KRN_Q5_0: case KRN_Q5_1: case KRN_Q4_K: case KRN_Q5_K: case KRN_Q6_K: return KRN_FAST;
        default: return KRN_MISSING;
        }
    case KRN_RMSNORM: case KRN_ATTEND: return weight == KRN_F32 || weight == KRN_F16 || weight == KRN_BF16 ? KRN_FAST : KRN_MISSING;
    case KRN_L2NORM: case KRN_ADD: case KRN_MUL: case KRN_SCALE: case KRN_SIGMOID: case KRN_SILU: case KRN_SOFTCAP: case KRN_GLU: case KRN_ROPE: case KRN_PICK: case KRN_COPY: return KRN_FAST;
    default: return KRN_MISSING;
    }
}
