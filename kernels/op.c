/* kernels/op.c - the operators' names, as sheets spell them. */
#include "kernels/op.h"

const char *krn_op_name(enum krn_opcode c)
{
    static const char *const names[KRN_OP_COUNT] = {
        [KRN_OP_NONE] = "none", [KRN_EMBED] = "embed", [KRN_LINEAR] = "linear", [KRN_RMSNORM] = "rmsnorm", [KRN_L2NORM] = "l2norm",
        [KRN_ADD] = "add", [KRN_MUL] = "mul", [KRN_SCALE] = "scale", [KRN_SIGMOID] = "sigmoid", [KRN_SILU] = "silu",
        [KRN_SOFTCAP] = "softcap", [KRN_GLU] = "glu", [KRN_ROPE] = "rope", [KRN_ATTEND] = "attend", [KRN_PICK] = "pick",
        [KRN_COPY] = "copy", [KRN_ATTEND_MLA] = "attend_mla", [KRN_ROUTE] = "route", [KRN_EXPERTS] = "experts",
        [KRN_CONV1D] = "conv1d", [KRN_DECAY] = "decay", [KRN_DELTA] = "delta", [KRN_MIX] = "mix", [KRN_LAYERNORM] = "layernorm",
        [KRN_ACT] = "act", [KRN_ADD_TABLE] = "add_table", [KRN_ADD_GRID] = "add_grid", [KRN_ATTEND_ALL] = "attend_all",
        [KRN_ROPE_GRID] = "rope_grid", [KRN_ORDER] = "order", [KRN_CONCAT_UNITS] = "concat_units",
        [KRN_RASTER_UNITS] = "raster_units", [KRN_POOL] = "pool", [KRN_SHUFFLE] = "shuffle", [KRN_PLACE] = "place",
    };
    return (unsigned)c < KRN_OP_COUNT ? names[c] : "?";
}
