/* kernels/ops.c - chooses the table of row operators; the angles of rotary embedding. */
#include "kernels/ops.h"
#include "kernels/mathf.h"

const struct krn_ops *krn_ops_get(enum krn_isa isa)
{
    if (isa == KRN_ISA_AUTO) isa = krn_isa_have(KRN_ISA_AVX512) ? KRN_ISA_AVX512 : krn_isa_have(KRN_ISA_AVX2) ? KRN_ISA_AVX2 : KRN_ISA_C;
    if (!krn_isa_have(isa)) return NULL;
#if defined(__x86_64__)
    if (isa == KRN_ISA_AVX512) return &krn_ops_avx512;
    if (isa == KRN_ISA_AVX2) return &krn_ops_avx2;
#endif
    return &krn_ops_c;
}

void krn_rope_angles(const struct krn_rope_table *t, const uint32_t pos[3], float *c, float *s)
{
    uint32_t row = 0, end = t->sections ? t->section[0] : t->n_freq;
    for (uint32_t j = 0; j < t->n_freq; j++) {
        while (t->sections && j >= end && row < 2) end += t->section[++row];
        double sn, cs;
        krn_sincos((double)pos[row] * t->inv_freq[j], &sn, &cs);
        c[j] = (float)(cs * (double)t->mscale);
        s[j] = (float)(sn * (double)t->mscale);
    }
}
