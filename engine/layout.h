/* engine/layout.h - where registers lie in the activation arenas: liveness, reuse in place, columns.
 *
 * While a plan is compiled a view's `base` is the number of a store (one register's memory) and `stride` which copy of it
 * (0 except in lists); eng_layout replaces both. Owns: nothing.
 * Invariant: stores that live at the same time do not overlap; a store begins at a multiple of 16 columns.
 * Method:    ops in order; an op that may work in place takes over its first input's store when nothing reads those columns
 *            later; the others get the first gap that is free over their life (linear scan). */
#ifndef SLUICE_ENGINE_LAYOUT_H
#define SLUICE_ENGINE_LAYOUT_H
#include "base/err.h"
#include "kernels/op.h"

struct eng_store {
    uint32_t width, copies;      /* floats a row; list registers: copies of that width one after the other */
    enum krn_rows rows;
    uint32_t def, last;          /* ops that write it first and read it last */
    bool fixed;                  /* lives on to the end: a result */
    /* filled in by eng_layout */
    uint32_t into, shift, column;/* into: the store it was merged into, itself: none */
};
/* in_place(code): may out be in[0]. extra: views beside those of ops (taps, logits) to be rewritten alike. */
int eng_layout(struct krn_op *ops, uint32_t n_ops, bool (*in_place)(enum krn_opcode), struct eng_store *stores, uint32_t n_stores,
               struct krn_view **extra, uint32_t n_extra, uint32_t cols[2], struct err *e);
#endif
