/* kernels/backend.h - a device that runs plan calls: record once per shape class, submit every step, wait for the result.
 *
 * Owns:      activation arenas, scratch, threads or queues.
 * Leaves:    weights (leased by the caller), KV pools (given in krn_step), the order of lists (the caller's loop).
 * Invariant: results do not depend on threads, chunk, batch or page size within one mode (DESIGN "Numerics").
 * Threads:   one caller thread. Allocation only in open and record. */
#ifndef SLUICE_KERNELS_BACKEND_H
#define SLUICE_KERNELS_BACKEND_H
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kv_layout.h"
#include "kernels/op.h"
#include "kernels/state.h"

enum krn_isa { KRN_ISA_AUTO, KRN_ISA_C, KRN_ISA_AVX2, KRN_ISA_AVX512 };
enum krn_precision {
    KRN_PREC_AUTO, /* block-quantised weights meet activations quantised to int8 in blocks of 32; others f32 */
    KRN_PREC_F32   /* every weight is expanded to f32 inside the kernel; activations stay f32 */
};

/* The sequences of one step. Rows of one sequence are adjacent and in order of position. */
struct krn_seq {
    uint32_t first, count;   /* rows [first, first + count) of the step */
    uint32_t pos0;           /* position of row `first`; keys 0 .. pos0 + count - 1 exist after the write */
    bool far;                /* rope tables with two lists: the second. One and the same for all of a sequence's life */
};
/* One KV group this step. tables[seq * table_stride + pos / page_tokens] is a page number, KRN_NO_PAGE where freed. */
struct krn_pages {
    uint8_t *pool;
    struct krn_kv_layout layout;
    const uint32_t *tables;
    uint32_t table_stride;
};
#define KRN_NO_PAGE UINT32_MAX

/* Routed experts a few at a time, for a caller that does not hold all of a call's at once. Every expert that the step's rows chose is in one
 * portion of the call; only its own must be leased. Up to KRN_PORTION_PAIRS rows times choices portions come in any order; above that experts
 * ascend from portion to portion. The result is bit for bit that of one submit. */
struct krn_portion {
    const uint32_t *experts; uint32_t n; /* ascending */
    bool first, last;              /* of the call in this step: inputs are gathered at the first, sums made by the last */
};
enum { KRN_PORTION_PAIRS = 256 };

struct krn_step {
    uint32_t n_tokens, n_picks, n_seqs, n_groups;
    const int32_t *tokens;         /* [n_tokens] */
    const uint32_t *pos;           /* [n_tokens] absolute positions */
    const uint32_t *pos_rows[3];   /* m-rope's rows [n_tokens], NULL: pos */
    const int32_t *image_id;       /* [n_tokens], -1 for text; NULL: no images */
    const uint32_t *picks;         /* [n_picks] token rows whose logits are wanted */
    const struct krn_seq *seqs;    /* [n_seqs] */
    const struct krn_pages *groups;/* [n_groups] */
    uint32_t n_states;
    const struct krn_states *states; /* [n_states] recurrent groups */
    const uint32_t *slots;         /* [n_seqs] where each sequence's state lies: slot * slot_bytes; no two alike */
    const struct krn_portion *portion; /* for a list of one EXPERTS call; NULL: all of its experts are leased */
    const struct krn_snapshot *snapshots; uint32_t n_snapshots; /* by sequence, then by position */
};

/* A backend with memory of its own: where pages lie, what it may take. */
struct krn_pool { struct krn_kv_layout layout; uint32_t n_pages, table_stride; };
struct krn_device {
    unsigned index;                /* which of several */
    uint32_t without;              /* features it is to do without, kernels/gpu.h */
    bool validate;                 /* checks by the driver's own layers */
    const char *cache_dir;         /* of compiled kernels; NULL: none */
    uint64_t bytes_max;            /* of its memory; 0: no bound */
    const struct krn_pool *pools; uint32_t n_pools; /* one a KV group: allocated there, krn_pages.pool is not looked at */
    uint32_t seqs_max;             /* of a step: sizes the page tables */
    bool watched; struct krn_view watch; /* a register whose rows `finite` is asked about */
};
/* Counted since open. uploads: bytes of weights that went to the device. */
struct krn_counters { uint64_t submits, dispatches, uploads, allocations, pipelines, lists, messages, device_bytes; };

struct krn_backend_config {
    enum krn_isa isa;              /* AUTO: the best this machine has; a wished one that is missing is ERR_UNSUPPORTED */
    enum krn_precision precision;
    unsigned threads;              /* 1..256 */
    pool *pool;                    /* of so many workers, borrowed, idle while the backend computes; NULL: it opens its own */
    uint32_t rows_max[2];          /* tokens, picks: the arenas' row capacity */
    uint32_t arena_cols[2];        /* columns of each arena (from the plan) */
    const struct krn_rope_table *ropes; uint32_t n_ropes; /* borrowed for the backend's life */
    uint32_t linear_cols_max;      /* widest input of any linear: sizes the activation-quantisation scratch */
    uint32_t latent_cols;          /* most heads * (rank + rope) of any latent attention: absorbed queries, a row a token */
    struct krn_experts_max { uint32_t n, k, in, mid, out; } experts; /* of any EXPERTS call: how many, chosen a row, widths; n 0: none */
    const struct krn_device *device; /* copied, its pools borrowed; NULL: the CPU */
};

typedef struct krn_backend krn_backend;
typedef struct krn_list krn_list;

/* Time of one kind of work, all workers together. name: an operator's, or "quantise", "store kv", "angles", "wait" (for other workers).
 * type: of its matrix, F32 where it has none. */
struct krn_time { const char *name; enum krn_type type; uint64_t ns, calls; };

enum krn_support { KRN_MISSING, KRN_PLAIN_C, KRN_FAST };
struct krn_backend_api {
    const char *name;              /* "cpu", "vulkan" */
    /* Is there code for this operator on weights of this type (ignored where it has none). */
    enum krn_support (*supports)(enum krn_opcode code, enum krn_type weight);
    int (*open)(krn_backend **out, const struct krn_backend_config *cfg, struct err *e);
    void (*close)(krn_backend *b);
    size_t (*bytes)(const struct krn_backend_config *cfg);         /* what open will allocate (+- 1 %); the planner charges it */
    /* ops and names are borrowed for the list's life. `weights` is the plan-wide table that weight indices refer to: its
     * types and shapes are read now, its data pointers at submit. ERR_UNSUPPORTED names the operator. */
    int (*record)(krn_backend *b, const struct krn_op *ops, size_t n, const struct krn_weight *weights, krn_list **out, struct err *e);
    void (*list_free)(krn_list *l);
    /* What is leased may be released when submit returns; the step stays valid until wait. Lists submitted between two waits share one step. */
    int (*submit)(krn_backend *b, krn_list *l, const struct krn_step *step, struct err *e);
    int (*wait)(krn_backend *b, struct err *e);
    /* Row r of a view after wait: f32, contiguous when the view is plain. Borrowed until the next submit. */
    const float *(*row)(krn_backend *b, const struct krn_view *v, uint32_t r);
    /* What ran since the last call, at most max entries; the first call only starts the clocks (and allocates them). */
    size_t (*times)(krn_backend *b, struct krn_time *out, size_t max);
    const char *(*isa)(const krn_backend *b);                      /* "c", "avx2", "avx512", device name */
    /* Of backends with memory of their own, NULL on others. load: a weight that recorded lists use, now leased, goes to the device and
     * stays: lists run without leasing it. finite: are rows of the watched register numbers, after wait. */
    int (*load)(krn_backend *b, const struct krn_weight *weights, uint32_t index, struct err *e);
    bool (*finite)(krn_backend *b, uint32_t first, uint32_t n);
    void (*counters)(const krn_backend *b, struct krn_counters *out);
};
extern const struct krn_backend_api krn_cpu;
bool krn_isa_have(enum krn_isa isa);       /* compiled in and this CPU has it */
const char *krn_isa_name(enum krn_isa isa);
#endif
