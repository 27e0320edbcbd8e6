/* kernels/linear.h - matrix times activations: y[t][r] = sum over c of W[r][c] * x[t][c] (+ bias[r]).
 *
 * W is a struct krn_weight, tiled (slot.h) or plain; x and y are f32 rows. Two ways of computing, chosen by
 * krn_linear_int8(); both are defined to the bit, whatever the instruction set, batch, split over threads, or row order:
 *
 * int8  (block-quantised W, KRN_PREC_AUTO). x is quantised in blocks of 32 columns, once per operator input:
 *         amax = max |x|;  d = amax / 127;  inv = 127 / amax;  q = round_to_nearest_even(x * inv);  s = d * (float)(sum of q)
 *       A block with an infinity or NaN has d = s = NaN, q = 0. A block with amax < 2^-119 (127 / amax would not be
 *       finite) counts as zeros: d = s = 0, q = 0. Then, blocks in ascending order from acc = 0, dot exact in integers:
 *         Q4_0 Q5_0 Q8_0 IQ4_NL IQ4_XS MXFP4 INT4
 *                                               acc = fma((float)dot(w, q), d_w * d, acc)
 *         Q4_1 Q5_1 Q4_K Q5_K                   acc = fma((float)dot(w, q), d_w * d, acc);  acc = fma(m_w, s, acc)
 *         Q3_K Q6_K Q2_K                        acc = fma((float)(sc0 * dot0(w, q) + sc1 * dot1(w, q)), d_w * d, acc)
 *         Q2_K, after that                      acc = fma((float)(mn0 * sum0(q) + mn1 * sum1(q)), m_w * d, acc)
 *       where, with the fields of slot.h, a 0 or 1 meaning the first or last 16 of the 32 columns, and every product and
 *       sum in parentheses an exact integer:
 *         w    Q8_0: quant; Q4_0, INT4: nibble - 8; Q5_0: five bits - 16; Q6_K: six bits - 32; Q3_K: three bits - 4; IQ4_NL, IQ4_XS:
 *              the table's value; MXFP4: twice the e2m1 value; others: the bits unsigned
 *         d_w  d; Q4_K Q5_K: d * (float)scale; IQ4_XS: d * (float)(scale - 32); MXFP4: 2^(e - 128)
 *         m_w  Q4_1 Q5_1: m; Q4_K Q5_K: -dmin * (float)minimum; Q2_K: -dmin
 *         sc   Q6_K: scale, signed; Q3_K: scale - 32; Q2_K: scale            mn  Q2_K: minimum
 * f32   (float W, F8_SCALED; any W under KRN_PREC_F32; plain W of any type krn_expand knows). W expanded as types.h defines it;
 *       for each 32 columns a chain p = fma(w, x, p), columns ascending, p from 0; then acc = acc + p, from acc = 0.
 *       An E4M3 NaN among the weights has no defined result: offload refuses it.
 * Bias is added last: y = acc + bias. NaN in gives NaN out (its bits are unspecified).
 *
 * Use: krn_operand_init; quantise, split by rows over threads, barrier; run for every matrix that reads this input, split by
 * tiles over threads. quantise is needed only before an int8 run. Nothing here allocates.
 * Threads:   all functions are reentrant; calls on disjoint rows (quantise) or tiles (run) may run together. */
#ifndef SLUICE_KERNELS_LINEAR_H
#define SLUICE_KERNELS_LINEAR_H
#include "kernels/backend.h"
#include "kernels/slot.h"

#define KRN_OPERAND_BLOCK 32
#define KRN_OPERAND_GROUP 32 /* rows whose quantised blocks lie together: those that a weight is unpacked once for */

/* The input of one or more linears. Rows are kept in groups of KRN_OPERAND_GROUP (the last one holds what is left, g rows);
 * inside a group, block by block, its g rows side by side: block b of row r is entry
 * (r/32*32) * blocks + b * g + r%32 of d, s, c8, half, part, and that entry times 32 of q. */
struct krn_operand {
    const float *x;      /* [n][cols], rows `stride` floats apart; borrowed */
    size_t stride;
    uint32_t n, cols;
    int8_t *q;           /* [n * blocks][32] */
    float *d, *s;        /* [n * blocks] scale, scale * sum */
    int32_t *c8;         /* [n * blocks] -8 * sum of q: turns unsigned weights into signed ones */
    int16_t (*half)[2];  /* [n * blocks] sums of the first and of the last 16 of q */
    int16_t (*part)[3][2]; /* [n * blocks] 32 times the sums of the first 16 of q, of the last 16, and 16 times those of all: each one of columns
                            * 0, 1 and one of columns 2, 3 of every four, as products of bytes are added in 16 bits */
};
/* Bytes of scratch for n rows of cols columns (256-aligned); 0: too many. */
size_t krn_operand_bytes(uint32_t n, uint32_t cols);
/* scratch: krn_operand_bytes(n, cols) bytes, 64-aligned, or NULL when only f32 runs will follow. */
void krn_operand_init(struct krn_operand *a, const float *x, size_t stride, uint32_t n, uint32_t cols, void *scratch);
/* Moves what was quantised on by n entries: to a later block, or to rows that begin a group. */
static inline void krn_operand_skip(struct krn_operand *a, size_t n)
{
    if (!a->q) return;
    a->q += n * KRN_OPERAND_BLOCK;
    a->d += n;
    a->s += n;
    a->c8 += n;
    a->half += n;
    a->part += n;
}

struct krn_linear {
    const struct krn_weight *w;
    const struct krn_weight *bias; /* NULL, or plain F32 F16 BF16 of w->rows elements */
    float *y;                      /* [a->n][w->rows], rows y_stride floats apart */
    size_t y_stride;
    bool int8;                     /* krn_linear_int8(w->type, w->layout, precision) */
};

enum { KRN_LINEAR_NONE, KRN_LINEAR_SLOW, KRN_LINEAR_FAST };
/* Is there code: FAST for tiled layouts, SLOW (plain C on every instruction set) for plain ones that krn_expand knows. */
int krn_linear_support(enum krn_type t, enum krn_layout l);
bool krn_linear_int8(enum krn_type t, enum krn_layout l, enum krn_precision p);
static inline uint32_t krn_linear_tiles(const struct krn_weight *w) { return (w->rows - 1) / KRN_TILE_ROWS + 1; }

struct krn_linear_isa {
    const char *name;
    /* Rows [row0, row0 + n) of the operand. cols a multiple of 32. */
    void (*quantise)(const struct krn_operand *a, uint32_t row0, uint32_t n);
    /* Output tiles [tile0, tile0 + n_tiles) (16 rows of W each, the last one cut at w->rows), for all a->n rows.
     * a->cols == w->cols; writes only y[0 .. a->n)[tile0*16 .. min(rows, (tile0+n_tiles)*16)). */
    void (*run)(const struct krn_linear *l, const struct krn_operand *a, uint32_t tile0, uint32_t n_tiles);
};
/* AUTO: the best this machine has. NULL: krn_isa_have(isa) is false. */
const struct krn_linear_isa *krn_linear_get(enum krn_isa isa);
#endif
