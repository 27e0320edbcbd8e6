/* kernels/mathf.h - our own exp, tanh, sigmoid, erf in f32, and sin, cos of rotary angles in double.
 *
 * Defined once over `vf` (simd.h), so that C, AVX2 and AVX-512 give equal bits; libm's differ between versions and have no
 * vector form. Accuracy over all finite inputs, in units of the last place of the exact result: exp 1.5, tanh and erf 2,
 * sigmoid 2.5 down to results of 2^-126 (below -88.7 it is 0). NaN in, NaN out.
 * Source of the coefficients: interpolation at Chebyshev nodes in double, rounded to f32. */
#ifndef SLUICE_KERNELS_MATHF_H
#define SLUICE_KERNELS_MATHF_H
#include "kernels/simd.h"

#define MF_MAGIC 12582912.0f /* 1.5 * 2^23: adding and subtracting it rounds to an integer, nearest even */

/* 2^k for an integer -126 <= k <= 127. Low bits of (magic + 127 + k) hold k + 127: the exponent field once moved up. */
VF_INLINE vf mf_pow2(vf k) { return vf_shl23(vf_add(k, vf_set1(MF_MAGIC + 127.0f))); }

/* e^x: x = k ln 2 + r, e^r by a polynomial, times 2^k in two halves so that overflow and denormals come out rounded. */
VF_INLINE vf mf_exp(vf x)
{
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-105.0f), x));
    vf k = vf_sub(vf_fma(x, vf_set1(0x1.715476p+0f), vf_set1(MF_MAGIC)), vf_set1(MF_MAGIC));
    vf r = vf_fma(k, vf_set1(-0x1.62e43p-1f), x);
    r = vf_fma(k, vf_set1(0x1.05c61p-29f), r);
    vf p = vf_fma(r, vf_set1(0x1.a125f6p-13f), vf_set1(0x1.6d444ap-10f));
    p = vf_fma(p, r, vf_set1(0x1.1110ep-7f));
    p = vf_fma(p, r, vf_set1(0x1.5554e8p-5f));
    p = vf_fma(p, r, vf_set1(0x1.555556p-3f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, vf_mul(r, r), r);
    p = vf_add(p, vf_set1(1.0f));
    vf k1 = vf_sub(vf_fma(k, vf_set1(0.5f), vf_set1(MF_MAGIC)), vf_set1(MF_MAGIC));
    return vf_mul(vf_mul(p, mf_pow2(k1)), mf_pow2(vf_sub(k, k1)));
}

VF_INLINE vf mf_sigmoid(vf x) { return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), mf_exp(vf_neg(x)))); }

/* ln(1 + e^x) = max(x, 0) + ln(1 + t), t = e^-|x|; ln(1 + t) = 2 atanh(t / (2 + t)) by its series, s^2 <= 1/9. NaN in, NaN out. */
VF_INLINE vf mf_softplus(vf x)
{
    vf t = mf_exp(vf_neg(vf_abs(x))), s = vf_div(t, vf_add(vf_set1(2.0f), t)), z = vf_mul(s, s);
    vf p = vf_fma(z, vf_set1(1.0f / 17), vf_set1(1.0f / 15));
    p = vf_fma(p, z, vf_set1(1.0f / 13));
    p = vf_fma(p, z, vf_set1(1.0f / 11));
    p = vf_fma(p, z, vf_set1(1.0f / 9));
    p = vf_fma(p, z, vf_set1(1.0f / 7));
    p = vf_fma(p, z, vf_set1(0.2f));
    p = vf_fma(p, z, vf_set1(1.0f / 3));
    p = vf_fma(vf_mul(p, z), s, s);
    return vf_fma(vf_set1(2.0f), p, vf_max(vf_set1(0.0f), x));
}

VF_INLINE vf mf_tanh(vf x)
{
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_fma(z, vf_set1(0x1.2c83cp-9f), vf_set1(-0x1.116a16p-7f));
    p = vf_fma(p, z, vf_set1(0x1.64a976p-6f));
    p = vf_fma(p, z, vf_set1(-0x1.ba08c4p-5f));
    p = vf_fma(p, z, vf_set1(0x1.1110eap-3f));
    p = vf_fma(p, z, vf_set1(-0x1.555556p-2f));
    vf small = vf_fma(vf_mul(p, z), a, a);
    vf e = mf_exp(vf_add(a, a));
    vf large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
    return vf_copysign(vf_select(vf_lt(a, vf_set1(0.625f)), small, large), x);
}

VF_INLINE vf mf_erf(vf x)
{
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_fma(z, vf_set1(0x1.5fcd12p-14f), vf_set1(-0x1.ab25e6p-11f));
    p = vf_fma(p, z, vf_set1(0x1.54e222p-8f));
    p = vf_fma(p, z, vf_set1(-0x1.b8114cp-6f));
    p = vf_fma(p, z, vf_set1(0x1.ce2e2ap-4f));
    p = vf_fma(p, z, vf_set1(-0x1.812744p-2f));
    p = vf_fma(p, z, vf_set1(0x1.06eba8p-3f));
    vf small = vf_fma(p, x, x);
    vf t = vf_min(vf_set1(4.0f), a); /* erf is 1 in f32 from 3.92 on */
    vf q = vf_fma(t, vf_set1(0x1.b93156p-20f), vf_set1(-0x1.835f18p-15f)); /* ln(1 - erf t) */
    q = vf_fma(q, t, vf_set1(0x1.3964a0p-11f));
    q = vf_fma(q, t, vf_set1(-0x1.383056p-8f));
    q = vf_fma(q, t, vf_set1(0x1.b10c8ap-6f));
    q = vf_fma(q, t, vf_set1(-0x1.c2f2eap-4f));
    q = vf_fma(q, t, vf_set1(-0x1.437d1cp-1f));
    q = vf_fma(q, t, vf_set1(-0x1.215748p+0f));
    q = vf_fma(q, t, vf_set1(0x1.50277ap-12f));
    vf large = vf_sub(vf_set1(1.0f), mf_exp(q));
    return vf_select(vf_lt(a, vf_set1(0.921875f)), small, vf_copysign(large, x));
}

/* sin and cos in double, |a| < 2^31; error below 2^-50. Plain C on every instruction set. */
void krn_sincos(double a, double *sin_a, double *cos_a);
#endif
