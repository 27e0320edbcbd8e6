/* kernels/gpu_internal.h - what the files of the Vulkan backend share.
 *
 * gpu_vk.c, gpu_probe.c, gpu_device.c, gpu_memory.c   Vulkan itself: functions, what there is, one open device, its memory
 * gpu_pipeline.c   shaders with their constants, compiled when a list first needs them
 * gpu_stage.c      bytes from host to device through a ring of staging memory
 * gpu_weights.c    where each weight of the plan lies on the device, and in what form
 * gpu_step.c       the step block: all that changes from step to step, checked and written
 * gpu_record.c     plan calls -> dispatches
 * gpu_order.c      where a dispatch must wait for earlier ones
 * gpu_times.c      timestamps of dispatches
 * gpu_backend.c    open, command buffers, submit, wait, rows */
#ifndef SLUICE_KERNELS_GPU_INTERNAL_H
#define SLUICE_KERNELS_GPU_INTERNAL_H
#include "kernels/gpu_device.h"
#include "kernels/gpu_push.h"

/* ---- pipelines ------------------------------------------------------------------------------------------------------- */
/* Specialisation constants by number; the rest of a shader's are zero. */
struct gpu_spec { const char *shader; uint32_t c[4]; };
struct gpu_pipelines { struct { struct gpu_spec spec; VkPipeline pipeline; } *v; uint32_t n, cap; VkShaderModule *modules; };
int gpu_pipeline_get(struct gpu *g, struct gpu_pipelines *p, const struct gpu_spec *s, VkPipeline *out, struct err *e);
void gpu_pipelines_close(struct gpu *g, struct gpu_pipelines *p);

/* ---- staging --------------------------------------------------------------------------------------------------------- */
enum { GPU_CHUNKS = 2, GPU_CHUNK_COPIES = 64 };
struct gpu_chunk { VkCommandBuffer commands; uint64_t value; /* of the copy timeline when its bytes are on the device */ };
struct gpu_stage {
    struct gpu_mem memory;     /* GPU_CHUNKS of chunk_bytes */
    uint64_t chunk_bytes, used, sent; /* used: of the chunk that is being filled; sent: bytes since open */
    struct gpu_chunk chunk[GPU_CHUNKS]; unsigned at;
    struct { VkBuffer to; VkBufferCopy copy; } copies[GPU_CHUNK_COPIES]; unsigned n_copies;
    uint64_t after;            /* of the compute timeline: what this chunk overwrites is read until then */
};
int gpu_stage_open(struct gpu *g, struct gpu_stage *s, struct err *e);
/* Room for n <= chunk_bytes to write into, sent to the device by gpu_stage_send. after: as in struct gpu_stage. */
int gpu_stage_room(struct gpu *g, struct gpu_stage *s, uint64_t n, uint64_t after, void **out, struct err *e);
void gpu_stage_send(struct gpu_stage *s, const struct gpu_mem *to, uint64_t at, uint64_t n);
int gpu_stage_put(struct gpu *g, struct gpu_stage *s, const struct gpu_mem *to, uint64_t at, const void *from, uint64_t n, uint64_t after, struct err *e);
int gpu_stage_flush(struct gpu *g, struct gpu_stage *s, struct err *e); /* submits what is there; timeline[GPU_COPY].value says when it is done */

/* ---- weights --------------------------------------------------------------------------------------------------------- */
enum gpu_form { GPU_UNPLACED, GPU_MATRIX /* tiled, as slot.h */, GPU_VECTOR /* f32 */ };
struct gpu_weight { enum gpu_form form; struct gpu_mem region; uint64_t addr, at, bytes; bool loaded; };
struct gpu_weights { struct gpu_weight *v; uint32_t n; struct gpu_mem region; uint64_t used; /* of region */ };

/* ---- calls ----------------------------------------------------------------------------------------------------------- */
enum gpu_space { GPU_TOKENS, GPU_PICKED, GPU_PAGES, GPU_FLAGS };
struct gpu_span { uint8_t space; uint32_t lo, hi; };
struct gpu_call {
    struct gpu_spec spec;      /* LINEAR: for one row; `many` for more */
    bool linear, picked, barrier;
    uint16_t what; uint8_t type; /* as times() says it: operator, type of its matrix */
    uint32_t args[2];          /* index into the step block's dispatch sizes: for one row, for more */
    uint32_t push_bytes;
    uint8_t push[GPU_PUSH_BYTES];
    struct gpu_span reads[4], write; uint8_t n_reads;
};
/* Dispatch sizes: x groups are fixed, y is rows of a kind over `per`, rounded up. Written into the step block every step. */
struct gpu_size { uint32_t x, per; bool picked; };
enum { GPU_SIZES_MAX = 1024, GPU_CLASSES = 8 /* bit 0: more than one token, bit 1: more than one picked row, bit 2: timed */, GPU_STAMPS_MAX = 16384 };

struct krn_list {
    krn_backend *owner;
    const struct krn_op *plan; size_t n_plan;
    const struct krn_weight *weights;
    struct gpu_call *calls; size_t n, cap;
    VkCommandBuffer commands[GPU_CLASSES];
    uint32_t pools;            /* bit g: attends to KV group g */
    bool uses_tokens;
    VkQueryPool stamps; bool pending; struct krn_list *next; /* gpu_times.c */
};

struct gpu_times;
struct gpu_table { uint64_t at; uint32_t entries; };
struct krn_backend {
    struct krn_backend_config cfg;
    struct krn_device dev;
    struct gpu *g;
    struct gpu_pipelines pipelines;
    struct gpu_stage stage;
    struct gpu_weights weights;
    struct gpu_mem arena[2], flags, back;  /* back: of tokens' rows, when somebody looks */
    struct gpu_mem *pools;     /* [dev.n_pools] */
    VkCommandBuffer back_commands;
    bool back_valid;
    /* the step block */
    struct gpu_mem block;
    uint64_t at_tokens, at_rows, at_picks, at_sizes, *at_tables, *at_ropes;
    uint32_t *row_seq;         /* [rows_max[0]] */
    struct gpu_size sizes[GPU_SIZES_MAX]; uint32_t n_sizes;
    uint32_t tokens_many;      /* rows a dispatch of a linear takes at once when there are several */
    const struct krn_step *step; /* since the last wait; NULL: none */
    uint32_t n_tokens, n_picks;
    struct krn_counters counters;
    struct gpu_times *times;   /* NULL: nobody asked, or no timestamps */
};

/* gpu_weights.c. place: gives every weight of a list its address; recorded lists keep it. get: where weight i of an op lies. */
int gpu_weights_place(krn_backend *b, const krn_list *l, struct err *e);
const struct gpu_weight *gpu_weight_of(const krn_backend *b, const struct krn_op *op, unsigned i);
int gpu_weight_load(krn_backend *b, uint32_t index, const struct krn_weight *w, struct err *e);
int gpu_weights_ready(krn_backend *b, const krn_list *l, struct err *e); /* loads what is leased and not there yet */
void gpu_weights_close(krn_backend *b);
/* gpu_step.c */
int gpu_step_open(krn_backend *b, struct err *e);
int gpu_step_write(krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e);
void gpu_step_close(krn_backend *b);
/* gpu_record.c, gpu_order.c */
int gpu_record(krn_backend *b, krn_list *l, struct err *e);
void gpu_order(krn_list *l);
/* gpu_times.c. begin, mark: into a timed command buffer, before the first dispatch and after dispatch i - 1. */
void gpu_times_kind(struct gpu_call *c, const struct krn_op *op, const struct krn_weight *weights);
void gpu_times_scan(struct gpu_call *c);
bool gpu_times_of(const krn_backend *b, const krn_list *l); /* is it replayed timed from now on */
int gpu_times_begin(krn_backend *b, krn_list *l, VkCommandBuffer c, struct err *e);
void gpu_times_mark(krn_backend *b, krn_list *l, VkCommandBuffer c, size_t i);
void gpu_times_submitted(krn_backend *b, krn_list *l);
void gpu_times_waited(krn_backend *b);
void gpu_times_forget(krn_backend *b, krn_list *l);
size_t gpu_times_take(krn_backend *b, struct krn_time *out, size_t max);
#endif
