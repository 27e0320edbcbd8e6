/* kernels/gpu_push.h - what one dispatch is told: push constants, one struct a shader, read by C and by GLSL.
 *
 * Addresses are buffer device addresses (GLSL sees two words, so no shader needs 64-bit integers). Strides and offsets count floats
 * unless a name says bytes or words. Addresses come first, so that both languages lay the struct out alike; 128 bytes is the least
 * that every Vulkan device gives. What changes from step to step is not here but in the step block (gpu_step.h), whose head is
 * struct gpu_step_head: command buffers are recorded once and replayed. */
#ifndef SLUICE_KERNELS_GPU_PUSH_H
#define SLUICE_KERNELS_GPU_PUSH_H
#ifdef GPU_GLSL
#define GPU_ADDR uvec2
#define GPU_U32 uint
#define GPU_F32 float
#else
#include <stdint.h>
#define GPU_ADDR uint64_t
#define GPU_U32 uint32_t
#define GPU_F32 float
#endif

/* y[t][r] = sum over c of W[r][c] x[t][c] (+ bias[r]); W tiled (slot.h) of tile_words 32-bit words a tile of 16 rows. */
struct gpu_push_linear {
    GPU_ADDR step, x, w, bias, y;
    GPU_U32 x_stride, y_stride, rows, cols, tile_words, picked, biased;
};
/* y[t] = scale * row tokens[t] of W. */
struct gpu_push_embed {
    GPU_ADDR step, tokens, w, y;
    GPU_U32 y_stride, cols, tile_words;
    GPU_F32 scale;
};
/* A head of a row: GPU_NORM_RMS, GPU_NORM_L2; GPU_NORM_SCAN: y is a word a row, 1 where x holds something that is no finite number. */
#define GPU_NORM_RMS 0
#define GPU_NORM_L2 1
#define GPU_NORM_SCAN 2
struct gpu_push_norm {
    GPU_ADDR step, x, w, y;
    GPU_U32 x_stride, x_head, y_stride, y_head, dim, mode, weighted;
    GPU_F32 eps, offset;
};
/* One element, or one pair of ROPE, an invocation. aux: ROPE [row][2][n_freq] cos and sin; PICK [row] source rows. */
#define GPU_ELEM_COPY 0
#define GPU_ELEM_ADD 1
#define GPU_ELEM_MUL 2
#define GPU_ELEM_SCALE 3
#define GPU_ELEM_SIGMOID 4
#define GPU_ELEM_SILU 5
#define GPU_ELEM_SOFTCAP 6
#define GPU_ELEM_PICK 7
#define GPU_ELEM_ROPE 8
#define GPU_ELEM_GLU 16 /* + enum krn_act */
struct gpu_push_elem {
    GPU_ADDR a, b, y, aux;
    GPU_U32 a_stride, a_head, b_stride, b_head, y_stride, y_head, heads, dim, op, b_one, n_freq, adjacent;
    GPU_F32 c0, c1, c2, c3;
};
/* Writes k, v of each row into its page. rows: [row] (sequence, position). Offsets in bytes from a page's start. */
struct gpu_push_store {
    GPU_ADDR k, v, pool, rows, tables;
    GPU_U32 k_stride, k_head, v_stride, v_head, heads, dim, dim_v, page_tokens, table_stride, page_bytes, k_at, v_at;
};
/* Causal attention of one (row, head). heads of q that share a key: group. */
struct gpu_push_attend {
    GPU_ADDR q, y, pool, rows, tables, sinks;
    GPU_U32 q_stride, q_head, y_stride, y_head, group, dim, dim_v, page_tokens, table_stride, page_bytes, k_at, v_at, window, sunk;
    GPU_F32 scale, softcap;
};
/* n: READ 16-byte words of x, a multiple of 512 for each group; FMA turns. never: a sum that x does not have. */
#define GPU_PEAK_READ 0
#define GPU_PEAK_FMA 1
struct gpu_push_peak {
    GPU_ADDR x, y;
    GPU_U32 n, mode, never;
    GPU_F32 c;
};
/* The step block's first words. */
#define GPU_HEAD_TOKENS 0
#define GPU_HEAD_PICKS 1

#ifndef GPU_GLSL
#define GPU_PUSH_BYTES 128
_Static_assert(sizeof(struct gpu_push_linear) <= GPU_PUSH_BYTES && sizeof(struct gpu_push_elem) <= GPU_PUSH_BYTES &&
               sizeof(struct gpu_push_norm) <= GPU_PUSH_BYTES && sizeof(struct gpu_push_store) <= GPU_PUSH_BYTES &&
               sizeof(struct gpu_push_attend) <= GPU_PUSH_BYTES && sizeof(struct gpu_push_embed) <= GPU_PUSH_BYTES, "push constants beyond Vulkan's minimum");
#endif
#endif
