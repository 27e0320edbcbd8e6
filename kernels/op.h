/* kernels/op.h - one call of a plan: operator, register views, weights, state, attributes. Plain data.
 *
 * The engine compiles a model sheet into arrays of these; a backend records and runs them; nothing else describes a model's
 * arithmetic. Registers are f32. What changes from step to step (tokens, positions, page tables) is in struct krn_step.
 *
 * Activation arenas: one for registers with a row per token of the step, one for registers with a row per picked token
 * (logits and what feeds them). A register of width w placed at column `base` occupies floats
 * [base * rows_max, (base + w) * rows_max) of its arena, row-major: row r, column c is base*rows_max + r*stride + shift + c. */
#ifndef SLUICE_KERNELS_OP_H
#define SLUICE_KERNELS_OP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/slot.h"

enum krn_opcode {
    KRN_OP_NONE,
    /* text */
    KRN_EMBED,      /* out[r] = row tok[r] of w0, times scale                                                        */
    KRN_LINEAR,     /* out = in W^T (+ bias w1)                                                                       */
    KRN_RMSNORM,    /* over dim of each head: x * 1/sqrt(mean(x^2) + eps) * (w + offset); w0 may be absent            */
    KRN_L2NORM,     /* over dim of each head: x * 1/sqrt(sum(x^2) + eps)                                              */
    KRN_ADD, KRN_MUL, KRN_SCALE, KRN_SIGMOID, KRN_SILU,
    KRN_SOFTCAP,    /* c * tanh(x / c); never emitted when the cap is null                                            */
    KRN_GLU,        /* act(in0) * in1, see enum krn_act                                                               */
    KRN_ROPE,       /* rotates the first 2*n_freq of dim of each head by table `table`, pairs halves or adjacent      */
    KRN_ATTEND,     /* writes k, v into state's page, then out = softmax(q k^T * scale) v, causal, window, sinks w0   */
    KRN_PICK,       /* rows of a token register -> rows of a picked register                                          */
    KRN_COPY,       /* out = in (a register re-bound into a list slot, or compacted)                                  */
    /* mixture of experts, latent attention, recurrent layers, attention residuals */
    KRN_ATTEND_MLA,
    KRN_ROUTE,      /* router scores [E] (+ correction bias w0) -> [2][k]: chosen experts ascending, their weights; see route.h */
    KRN_EXPERTS,    /* sum over the chosen e of weight_e * down_e(act(gate_e in0) * up_e in0); in1: a routing of an earlier list */
    KRN_CONV1D, KRN_DECAY, KRN_DELTA, KRN_MIX,
    /* vision */
    KRN_LAYERNORM, KRN_ACT, KRN_ADD_TABLE, KRN_ADD_GRID, KRN_ATTEND_ALL, KRN_ROPE_GRID, KRN_ORDER, KRN_CONCAT_UNITS,
    KRN_RASTER_UNITS, KRN_POOL, KRN_SHUFFLE, KRN_PLACE,
    KRN_OP_COUNT
};
const char *krn_op_name(enum krn_opcode c); /* "rmsnorm": the sheet's spelling; push and bank compile to copy / nothing */

enum krn_rows { KRN_ROWS_TOKENS, KRN_ROWS_PICKED, KRN_ROWS_PATCHES };

struct krn_view {
    uint32_t base, stride, shift;   /* see the head of this file */
    uint32_t heads, dim;            /* the view is [heads][dim]; a plain row has heads == 1 */
    uint32_t head_stride;           /* floats between heads; == dim when they are adjacent */
    uint32_t list;                  /* 0: one register; n: a list register of n equal registers, entry i at base + i*stride */
    enum krn_rows rows;
};

enum krn_act { KRN_ACT_SILU, KRN_ACT_GELU, KRN_ACT_GELU_TANH, KRN_ACT_SITU, KRN_ACT_CLAMP_SWIGLU, KRN_ACT_RELU, KRN_ACT_QUICK_GELU };
enum krn_pairs { KRN_PAIRS_HALVES, KRN_PAIRS_ADJACENT };
enum krn_router { KRN_ROUTER_SOFTMAX, KRN_ROUTER_SIGMOID, KRN_ROUTER_TOPK_SOFTMAX };

#define KRN_OP_INPUTS 6
#define KRN_OP_WEIGHTS 6
#define KRN_NO_WEIGHT UINT32_MAX
#define KRN_NO_STATE UINT32_MAX
#define KRN_NO_LAYER UINT16_MAX

struct krn_op {
    enum krn_opcode code;
    uint16_t layer;                       /* KRN_NO_LAYER outside the layers */
    uint8_t n_in, n_weights;
    struct krn_view in[KRN_OP_INPUTS], out; /* out may equal in[0] where the registry says in_place */
    uint32_t weight[KRN_OP_WEIGHTS];      /* indices into the plan's tensors, KRN_NO_WEIGHT: absent. EXPERTS: the first of u.experts.n
                                           * of gate, up, down and of the biases of each */
    uint32_t state;                       /* KV group or recurrent group, KRN_NO_STATE */
    uint32_t state_layer;                 /* which layer of that group */
    union {
        struct { float eps, offset; } norm;             /* RMSNORM, L2NORM, LAYERNORM */
        struct { float c; } scalar;                     /* SCALE, SOFTCAP cap */
        struct { float scale; uint32_t tiles, tile_rows; } embed; /* w0 is the first of `tiles` weights of tile_rows rows (the last: the rest) */
        struct { enum krn_act act; float alpha, limit, beta, beta_u; } glu; /* GLU, ACT; EXPERTS has its own copy */
        struct { uint32_t table; enum krn_pairs pairs; } rope;
        struct { float scale, softcap; uint32_t window; /* window 0: all; counts the token itself; softcap 0: none */
                 bool turned; } attend;                 /* ATTEND_MLA: rows of k_up are (head, latent channel) */
        struct { enum krn_router kind; uint32_t k, groups, keep; bool norm; float norm_eps, scale; } route;
        struct { enum krn_act act; float alpha, limit, beta, beta_u; uint32_t n; } experts;
        struct { uint32_t field; } state;               /* CONV1D, DELTA: of the recurrent group's layout */
        struct { bool bounded, raised; float lower; } decay; /* raised: A holds -exp(A) already */
    } u;
};

/* Angles of rotary embedding: angle(pos, i) = pos * inv_freq[i], cos and sin multiplied by mscale. Owned by the plan. */
struct krn_rope_table {
    uint32_t n_freq;          /* pairs that turn: rotary dim / 2 */
    const double *inv_freq;   /* [n_freq], scaling already applied */
    const double *inv_freq_far; /* [n_freq], what sequences with krn_seq.far turn by (longrope's second list); NULL: the same */
    float mscale;
    bool sections;            /* m-rope: row of positions by section (u.rope of vision sheets) */
    uint32_t section[4];      /* pairs per position row */
};
#endif
