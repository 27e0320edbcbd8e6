/* engine/view.h - the small einops of tensor entries: which rows of a stored tensor a logical one is.
 *
 *   "(h:heads d) r -> h d r ; d=0:nope"     axes of the file, their order here, ranges (or one index, which drops the axis)
 *
 * Owns:      nothing.
 * Invariant: a view only renames, cuts and permutes; it reduces to strided rows of published bytes or is refused.
 * Source:    docs/sheets.md, "Views". */
#ifndef SLUICE_ENGINE_VIEW_H
#define SLUICE_ENGINE_VIEW_H
#include "engine/env.h"
#include "offload/weights.h"

#define ENG_AXES_MAX 8
/* Logical axes, outermost first; strides and start in elements of the stored tensor. group: which logical dimension. */
struct eng_axes {
    unsigned n, n_dims;
    uint64_t size[ENG_AXES_MAX], stride[ENG_AXES_MAX], start;
    uint8_t group[ENG_AXES_MAX];
};
/* view NULL: the tensor as it is. ERR_FORMAT: syntax, sizes that do not multiply up, ranges outside. */
int eng_view_axes(struct eng_env *v, const char *view, const uint64_t *dims, unsigned n_dims, struct eng_axes *out, struct err *e);
uint64_t eng_axes_dim(const struct eng_axes *a, unsigned d);    /* size of logical dimension d */
/* Cuts logical dimension 0 down to entry i and drops it (an expert of a stack). */
bool eng_axes_entry(const struct eng_axes *a, uint64_t i, struct eng_axes *out);
/* The rows as byte ranges of file tensor t. *transposed: the last two logical axes lie the other way round in the file, and
 * rows are those of the file. A vector whose values lie apart comes out as rows of one. ERR_UNSUPPORTED: not strided rows, or a cut inside a block of the type. */
int eng_axes_spans(const struct eng_axes *a, const struct off_tensor *t, struct arena *mem, const struct off_span **spans, uint32_t *n_spans,
                   uint64_t *rows, uint64_t *cols, bool *transposed, struct err *e);
#endif
