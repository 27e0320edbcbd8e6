/* kernels/ops.h - one table of row functions per instruction set; contracts in norm.h, act.h, rope.h, attend.h, delta.h, mix.h.
 *
 * The C table (ops_c.c, attend_c.c) is the definition; the AVX ones are one text (ops_simd.inc, attend_simd.inc) over the
 * 16-lane vector of simd.h, compiled twice, and give equal bits. Reentrant; no alignment is asked of any pointer. */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H
#include "kernels/act.h"
#include "kernels/attend.h"
#include "kernels/delta.h"
#include "kernels/mix.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

struct krn_ops {
    const char *name;
    krn_rmsnorm_fn *rmsnorm;
    krn_l2norm_fn *l2norm;
    krn_binary_fn *add, *mul;
    krn_scalar_fn *scale, *softcap;
    krn_unary_fn *sigmoid, *silu, *exp, *tanh, *erf;
    krn_glu_fn *glu;
    krn_rope_fn *rope;
    krn_scores_fn *scores;
    krn_soften_fn *soften;
    krn_weigh_fn *weigh;
    krn_untile_fn *untile;
    krn_merge_fn *merge;
    krn_narrow_fn *narrow;
    krn_conv_fn *conv;
    krn_decay_fn *decay;
    krn_mac_fn *mac;
    krn_keys_fn *keys;
    krn_solve_fn *solve;
    krn_mix_fn *mix;
};
/* AUTO: the best this machine has. NULL: krn_isa_have(isa) is false. */
const struct krn_ops *krn_ops_get(enum krn_isa isa);

extern const struct krn_ops krn_ops_c, krn_ops_avx2, krn_ops_avx512; /* the last two on x86-64 only */
/* attend_*.c's part of the tables */
krn_scores_fn krn_scores_c, krn_scores_avx2, krn_scores_avx512;
krn_soften_fn krn_soften_c, krn_soften_avx2, krn_soften_avx512;
krn_weigh_fn krn_weigh_c, krn_weigh_avx2, krn_weigh_avx512;
krn_untile_fn krn_untile_c, krn_untile_avx2, krn_untile_avx512;
/* delta_*.c's */
krn_conv_fn krn_conv_c, krn_conv_avx2, krn_conv_avx512;
krn_decay_fn krn_decay_c, krn_decay_avx2, krn_decay_avx512;
krn_mac_fn krn_mac_c, krn_mac_avx2, krn_mac_avx512;
krn_keys_fn krn_keys_c, krn_keys_avx2, krn_keys_avx512;
krn_solve_fn krn_solve_c, krn_solve_avx2, krn_solve_avx512;
krn_mix_fn krn_mix_c, krn_mix_avx2, krn_mix_avx512;
#endif
