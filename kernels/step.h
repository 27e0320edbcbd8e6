/* kernels/step.h - what a step brings, checked before any device starts: rows, sequences, tokens, page tables. Pure but for row_seq.
 *
 * A bad step is an error that says which number is wrong, never a stray pointer. Every backend asks the same questions here. */
#ifndef SLUICE_KERNELS_STEP_H
#define SLUICE_KERNELS_STEP_H
#include "kernels/backend.h"

int krn_step_rows(const struct krn_step *s, const uint32_t rows_max[2], struct err *e); /* how many, and that picks are rows */
int krn_step_tokens(const struct krn_step *s, uint32_t vocab, struct err *e);
/* Sequences cover the rows one after the other: row_seq[row] = its sequence. */
int krn_step_sequences(const struct krn_step *s, uint32_t *row_seq, struct err *e);
/* What an attention call wants of a KV group: its geometry, and pages under every key that is seen or written. */
struct krn_kv_need { uint32_t group, layer, heads, dim, dim_v, window; };
int krn_step_group(const struct krn_step *s, const struct krn_kv_need *n, struct err *e);
int krn_step_tables(const struct krn_step *s, const struct krn_kv_need *n, struct err *e);
uint32_t krn_step_vocab(const struct krn_op *embed, const struct krn_weight *weights); /* rows of the table that an embed op looks into */
#endif
