/* kernels/gpu_shaders.h - the SPIR-V of kernels/shaders/, built in (scripts/shaders.sh). */
#ifndef SLUICE_KERNELS_GPU_SHADERS_H
#define SLUICE_KERNELS_GPU_SHADERS_H
#include <stddef.h>
#include <stdint.h>
struct gpu_shader { const char *name; const uint32_t *words; size_t bytes; };
extern const struct gpu_shader gpu_shaders[];
extern const unsigned gpu_n_shaders;
#endif
