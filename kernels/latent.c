/* kernels/latent.c - the two ends of latent attention: queries into the latent, contexts out of it. The middle is attend.c.
 *
 * The way in is weigh() of attend.h with the rows of k_up for values and the query for weights: the same chain. Rows of other
 * types than it reads are expanded 16 at a time, for all rows of the step. */
#include <string.h>
#include "kernels/latent.h"

enum { BLOCK = KRN_KV_BLOCK, BATCH = KRN_ATTEND_QUERIES };

size_t krn_latent_scratch(uint32_t nope, uint32_t rank)
{
    size_t wide = nope > rank ? nope : rank;
    return (size_t)BATCH * (KRN_ATTEND_SEGMENT + rank) + BLOCK * wide + wide;
}

uint32_t krn_latent_group(uint32_t heads)
{
    for (uint32_t g = 16; g > 1; g--)
        if (heads % g == 0) return g;
    return 1;
}

void krn_latent_rows(const struct krn_linear_isa *linear, const struct krn_weight *w, uint32_t row0, uint32_t rows, const float *x, size_t x_stride,
                     uint32_t n, float *y, size_t y_stride, float *scratch)
{
    struct krn_operand a;
    krn_operand_init(&a, x, x_stride, n, w->cols, NULL);
    if (row0 % KRN_TILE_ROWS == 0 && rows % KRN_TILE_ROWS == 0) { /* y is row row0's: linear counts from row 0 */
        struct krn_linear l = {w, NULL, y - row0, y_stride, false};
        linear->run(&l, &a, row0 / KRN_TILE_ROWS, rows / KRN_TILE_ROWS);
        return;
    }
    for (uint32_t i = 0; i < rows; i++) {
        struct krn_weight one = {KRN_F32, KRN_PLAIN, 1, w->cols, scratch};
        struct krn_linear l = {&one, NULL, y + i, y_stride, false};
        krn_weight_row(w, row0 + i, scratch);
        linear->run(&l, &a, 0, 1);
    }
}

/* Rows [row0, row0 + nope) of k_up times the weights p, into q[n][rank]. */
static void absorb_batch(const struct krn_absorb *a, uint32_t row0, uint32_t n, const float *p, float *q, float *rows)
{
    const struct krn_weight *w = a->k_up;
    bool direct = w->layout == KRN_PLAIN && (w->type == KRN_F32 || w->type == KRN_F16 || w->type == KRN_BF16);
    uint32_t lo[BATCH], hi[BATCH];
    const void *vb[KRN_ATTEND_BLOCKS];
    for (uint32_t d0 = 0; d0 < a->nope; d0 += BLOCK) {
        uint32_t end = d0 + BLOCK < a->nope ? d0 + BLOCK : a->nope;
        if (direct) vb[d0 / BLOCK] = (const uint8_t *)w->data + (size_t)(row0 + d0) * krn_row_bytes(w->type, w->cols);
        else vb[d0 / BLOCK] = rows;
        if (direct && end < a->nope) continue;
        for (uint32_t d = d0; d < end && !direct; d++) krn_weight_row(w, row0 + d, rows + (size_t)(d - d0) * a->rank);
        for (uint32_t i = 0; i < n; i++) {
            lo[i] = direct ? 0 : d0;
            hi[i] = end;
        }
        a->ops->weigh(q, p, n, lo, hi, vb, false, a->rank, direct ? w->type : KRN_F32);
    }
}

void krn_latent_absorb(const struct krn_absorb *a, uint32_t head, float *scratch)
{
    float *p = scratch, *q = p + (size_t)BATCH * KRN_ATTEND_SEGMENT, *rows = q + (size_t)BATCH * a->rank;
    if (a->turned) {
        krn_latent_rows(a->linear, a->k_up, head * a->rank, a->rank, a->qn, a->x_stride, a->n, a->q, a->q_stride, scratch);
        return;
    }
    for (uint32_t t0 = 0; t0 < a->n; t0 += BATCH) {
        uint32_t n = a->n - t0 < BATCH ? a->n - t0 : BATCH;
        for (uint32_t i = 0; i < n; i++) memcpy(p + (size_t)i * KRN_ATTEND_SEGMENT, a->qn + (t0 + i) * a->x_stride, a->nope * sizeof *p);
        memset(q, 0, (size_t)n * a->rank * sizeof *q);
        absorb_batch(a, head * a->nope, n, p, q, rows);
        for (uint32_t i = 0; i < n; i++) memcpy(a->q + (t0 + i) * a->q_stride, q + (size_t)i * a->rank, a->rank * sizeof *q);
    }
}
