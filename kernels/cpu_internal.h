/* kernels/cpu_internal.h - what the files of the CPU backend share: the backend, a recorded list, one executable op.
 *
 * cpu_backend.c  open, close, submit: checks a step and starts the workers
 * cpu_record.c   plan calls -> executable ops: pointers, functions, quantisations, attention geometry
 * cpu_order.c    where workers must wait for each other
 * cpu_times.c    the workers' clocks, when somebody asks
 * cpu_exec.c     what a worker does for each kind of op
 * cpu_experts.c  routed experts: who goes where in this step, and their three matrices */
#ifndef SLUICE_KERNELS_CPU_INTERNAL_H
#define SLUICE_KERNELS_CPU_INTERNAL_H
#include <stdatomic.h>
#include "base/pool.h"
#include "kernels/backend.h"
#include "kernels/latent.h"
#include "kernels/linear.h"
#include "kernels/ops.h"

/* A register view with its arena resolved: row r, head h, channel d is p[r * stride + h * head + d]. */
struct cpu_view {
    float *p;
    size_t stride, head;
    uint32_t heads, dim;
    uint32_t lo, hi;       /* arena columns that the register may touch: what cpu_order.c compares */
    uint8_t rows;          /* 0 tokens, 1 picked: also the arena */
    uint32_t list;         /* n: a list register, entry i at p + i * list_step; 0: one register */
    size_t list_step;
};

/* ABSORB and UNFOLD: latent.h's way in and out, a head a unit. EXPERTS becomes three: inputs gathered and quantised; gate, up and
 * activation; down and the weighted sum. CONV: a block of channels of a sequence; DELTA: a head of one. */
enum cpu_kind { CPU_ROW, CPU_QUANTISE, CPU_LINEAR, CPU_STORE, CPU_ATTEND, CPU_ABSORB, CPU_UNFOLD, CPU_MOE_IN, CPU_MOE_UP, CPU_MOE_DOWN, CPU_CONV, CPU_DELTA };
/* How the work of an op is dealt to the workers. Ops that deal the same rows alike need no barrier between them. */
enum cpu_deal { CPU_BY_ROWS, CPU_BY_COLS, CPU_BY_TILES, CPU_BY_UNITS };

/* Kinds of step: bit 0: fewer tokens than workers, bit 1: fewer picked rows than workers; or one row of each at most (a
 * decode of one sequence): then a run of small ops has one actor, who is whoever ends the parallel op before it. */
enum { CPU_CLASS_ONE = 4, CPU_CLASSES };
struct cpu_op {
    const struct krn_op *op;
    enum cpu_kind kind;
    bool wide;                     /* elementwise and costly: split by columns when there are few rows */
    uint8_t barrier;               /* bit c: workers meet before this op in class c */
    uint8_t n_in;
    struct cpu_view in[5], out;
    uint32_t n_linear;             /* LINEAR: this many plan calls, op .. op + n_linear - 1, share one input */
    uint32_t tiles;                /* LINEAR: of all of them */
    uint32_t geometry;             /* STORE, ATTEND, ABSORB, UNFOLD */
    uint32_t tail;                 /* of a parallel op: this many ops behind it belong to its last finisher in CPU_CLASS_ONE */
    _Atomic uint32_t next, done;   /* of a parallel op: next piece of work to hand out; pieces finished */
};

/* Attention calls that are cut alike. Work is cut at submit, once for all of them. */
struct cpu_geometry {
    uint32_t state, heads, kv_heads, dim, dim_v, window;
    bool latent;                   /* kv_heads: groups of heads, all on the page's one key */
    struct krn_attend_work work;
    uint32_t items_max;
    size_t slot_floats;            /* room for partial results */
    _Atomic uint32_t *left;        /* [items_max * kv_heads] */
};
#define CPU_GEOMETRIES 16

struct cpu_rope { float *c, *s; }; /* [rows_max[0]][n_freq] */

/* The experts that a step's rows were sent to, and what they work on. One for all lists: their EXPERTS calls run one by one. */
struct cpu_group { uint32_t expert, first, n; }; /* pairs [first, first + n) */
struct cpu_experts {
    struct cpu_group *group; uint32_t n_groups, n_pairs; /* a pair: a row and one of its experts; sorted by expert, then row */
    struct cpu_group *run; uint32_t n_run; /* of these groups, what the step under way computes: all, or a portion */
    uint32_t *row;                 /* [pairs] */
    uint32_t *pair;                /* [rows * k] pair of the i-th choice of a row */
    uint32_t *count;               /* [experts] pairs so far */
    float *x, *mid;                /* [pairs][in], [pairs][mid] */
    void *x_quant, *mid_quant;     /* krn_operand scratch of both */
    float *y;                      /* [KRN_PORTION_PAIRS][out] what experts said, until the last portion sums it up */
};
/* What record found out about a list's EXPERTS call. */
struct cpu_moe { const struct krn_op *op; struct cpu_view in, route; uint32_t n_in, mid, n_out, k; bool x_f32, x_int8, mid_int8; };

/* Kinds of work that are timed apart: operators, then these. */
enum { CPU_TIME_QUANTISE = KRN_OP_COUNT, CPU_TIME_STORE, CPU_TIME_ANGLES, CPU_TIME_WAIT, CPU_TIMED };

struct krn_list {
    struct cpu_op *ops; size_t n;
    const struct krn_op *plan; size_t n_plan;
    const struct krn_weight *weights;
    bool uses_rope, uses_tokens, uses_states;
    uint32_t geometries;           /* bit g: has attention of geometry g */
    struct cpu_moe moe;            /* op NULL: none; a list has one at most */
};

struct krn_backend {
    struct krn_backend_config cfg;
    enum krn_isa isa;
    const struct krn_ops *ops;
    const struct krn_linear_isa *linear;
    pool *pool;
    float *arena[2];
    float *latent;                 /* [rows_max[0]][latent_cols] absorbed queries, then contexts in their place */
    void *quant;                   /* scratch of krn_operand for the widest input */
    uint32_t *row_seq;             /* [rows_max[0]] sequence of each row of this step */
    struct cpu_rope *ropes;
    uint32_t *rope_pos[3], *rope_far, rope_rows; /* positions and lists that the rope tables hold now */
    struct cpu_geometry geometry[CPU_GEOMETRIES]; uint32_t n_geometries;
    float *scratch; size_t scratch_floats; /* per worker */
    float *slots; size_t slots_floats;
    struct cpu_experts experts;
    struct cpu_times *times;       /* [threads], NULL: nobody asked */
    /* the step under way */
    const struct krn_step *step;
    krn_list *list;
    bool make_angles;
};

static inline uint32_t cpu_rows(const struct krn_backend *b, const struct cpu_view *v) { return v->rows ? b->step->n_picks : b->step->n_tokens; }
static inline enum cpu_deal cpu_deal_of(const struct cpu_op *x, unsigned class)
{
    if (x->kind == CPU_LINEAR) return CPU_BY_TILES;
    if (x->kind >= CPU_ATTEND) return CPU_BY_UNITS;
    return x->wide && class < CPU_CLASS_ONE && (class >> x->out.rows & 1) ? CPU_BY_COLS : CPU_BY_ROWS;
}
static inline bool cpu_parallel(const struct cpu_op *x) { return x->kind == CPU_LINEAR || (x->kind >= CPU_ATTEND && x->kind != CPU_MOE_IN); }
static inline const struct krn_weight *cpu_weight(const struct krn_list *l, const struct krn_op *op, unsigned i)
{
    return i < op->n_weights && op->weight[i] != KRN_NO_WEIGHT ? &l->weights[op->weight[i]] : NULL;
}
/* The attention call of a STORE or ATTEND op in the step under way. */
struct krn_attend cpu_attend_of(const struct krn_backend *b, const struct cpu_op *x);

/* cpu_experts.c. bytes: of the buffers, SIZE_MAX: too many. record: checks a list's EXPERTS call and appends its three ops; views are
 * resolved by the caller. prepare: reads the routing on the submitting thread. run: true: this worker finished the last piece. */
size_t cpu_experts_bytes(const struct krn_backend_config *c);
bool cpu_experts_open(struct cpu_experts *x, const struct krn_backend_config *c);
void cpu_experts_close(struct cpu_experts *x);
int cpu_experts_record(krn_backend *b, krn_list *l, struct err *e);
size_t cpu_experts_scratch(const krn_backend *b, const krn_list *l); /* floats a worker */
int cpu_experts_prepare(krn_backend *b, const krn_list *l, struct err *e);
bool cpu_experts_run(const krn_backend *b, struct cpu_op *x, unsigned worker, unsigned workers);

/* cpu_states.c: recurrent layers. true: this worker finished the last piece. */
bool cpu_run_state(const krn_backend *b, struct cpu_op *x, unsigned worker);
int cpu_check_states(const krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e);
size_t cpu_state_scratch(const struct cpu_op *x);
int cpu_record(krn_backend *b, const struct krn_op *ops, size_t n, const struct krn_weight *weights, krn_list **out, struct err *e);
void cpu_list_free(krn_list *l);
void cpu_time_start(const krn_backend *b, unsigned worker);
void cpu_time(const krn_backend *b, unsigned worker, unsigned what, enum krn_type t); /* since the last of these calls */
size_t cpu_times_take(krn_backend *b, struct krn_time *out, size_t max);
void cpu_order(krn_list *l);
void cpu_job(void *backend, unsigned worker, unsigned n_workers); /* a pool_fn: runs b->list on b->step */
#endif
