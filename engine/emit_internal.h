/* engine/emit_internal.h - what the parts of emit.c share: one call's operands, and the registers and calls it makes.
 *
 * Owns:   nothing; operands live while their call is emitted, everything made goes into the compiler.
 * Leaves: the table of operators to engine/ops.h.
 *
 * emit.c (the table and operators without state), emit_args.c (arguments and attributes), emit_call.c (registers and calls),
 * emit_state.c (operators with a state), emit_moe.c (routing and experts). */
#ifndef SLUICE_ENGINE_EMIT_INTERNAL_H
#define SLUICE_ENGINE_EMIT_INTERNAL_H
#include "engine/compile_internal.h"

#define ENG_ARGS_MAX 12

struct eng_attr_val { double num; struct eng_bound w; const char *text; bool set; };
/* One call's operands, sorted by kind in the order of the registry's letters. */
struct eng_operands {
    struct eng_compiler *c;
    const struct eng_opdef *op;
    struct eng_val reg[ENG_ARGS_MAX]; unsigned n_regs;
    struct eng_bound w[KRN_OP_WEIGHTS]; const char *w_name[KRN_OP_WEIGHTS]; unsigned n_w;
    const char *state, *text;
    double num[ENG_ARGS_MAX]; bool null[ENG_ARGS_MAX]; unsigned n_nums;
    struct eng_attr_val attr[ENG_OP_ATTRS];
    struct err *e;
};

/* emit_args.c: what the call says, into o. */
int eng_emit_args(struct eng_operands *o, const struct eng_arg *src);
int eng_emit_attr(struct eng_operands *o, const struct eng_attr *d, const struct eng_arg *src, struct eng_attr_val *out);

/* emit_call.c */
int eng_emit_fail(struct eng_operands *o, const char *what, uint64_t expected, uint64_t found); /* ERR_FORMAT with the operator's place */
static inline uint32_t eng_emit_width(const struct krn_view *v) { return v->heads * v->dim; }
int eng_emit_store(struct eng_operands *o, uint32_t w, uint32_t copies, enum krn_rows rows, uint32_t *id); /* a new register of w values a row */
struct krn_view eng_emit_view(uint32_t store, uint32_t heads, uint32_t dim, enum krn_rows rows);
struct krn_op eng_emit_blank(const struct eng_operands *o); /* the operator's call, nothing in it yet */
void eng_emit_weight(struct krn_op *op, unsigned slot, const struct eng_bound *w);
int eng_emit_push(struct eng_operands *o, const struct krn_op *op);
/* Emits op with all register operands as inputs and a fresh [heads][dim] result. */
int eng_emit_call(struct eng_operands *o, struct krn_op *op, uint32_t heads, uint32_t dim, struct eng_val *out);
/* A row [n] that linears and flatten can take: heads side by side are one already, others are copied together. */
int eng_emit_row(struct eng_operands *o, struct eng_val *v);

/* vocab_tiles.c: the linear op tile by tile, each but the last ending a segment. */
int eng_emit_head(struct eng_operands *o, struct krn_op *op, const struct eng_tiles *t, struct eng_val *out);

/* Operators: each applies its shape rule and fills the call. */
int eng_emit_attend(struct eng_operands *o, struct eng_val *out);
int eng_emit_attend_mla(struct eng_operands *o, struct eng_val *out);
int eng_emit_conv1d(struct eng_operands *o, struct eng_val *out);
int eng_emit_decay(struct eng_operands *o, struct eng_val *out);
int eng_emit_delta(struct eng_operands *o, struct eng_val *out);
int eng_emit_linear(struct eng_operands *o, struct eng_val *out);
int eng_emit_route(struct eng_operands *o, struct eng_val *out);
int eng_emit_experts(struct eng_operands *o, struct eng_val *out);
#endif
