/* kernels/mathf.c - sin and cos for rotary angles: one definition for every machine.
 *
 * a = k pi/2 + r with pi/2 held in two doubles and fused products, so that r keeps 50 bits even where k is in the billions
 * (position 1e9 at frequency 1); then the Taylor series, whose first left-out term is below 2^-55 at pi/4. */
#include "kernels/mathf.h"

static double sin_series(double r, double z)
{
    static const double c[] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
    double p = 0;
    for (int i = 6; i >= 0; i--) p = p * z + c[i];
    return r + r * (z * p);
}

static double cos_series(double z)
{
    static const double c[] = {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
    double p = 0;
    for (int i = 6; i >= 0; i--) p = p * z + c[i];
    return 1.0 + (z * (z * p) - 0.5 * z);
}

void krn_sincos(double a, double *sin_a, double *cos_a)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    double k = (a * 0x1.45f306dc9c883p-1 + magic) - magic;
    double r = fma(k, -0x1.921fb54442d18p+0, a);
    r = fma(k, -0x1.1a62633145c07p-54, r);
    double z = r * r, s = sin_series(r, z), c = cos_series(z);
    switch ((int64_t)k & 3) {
    case 0: *sin_a = s; *cos_a = c; break;
    case 1: *sin_a = c; *cos_a = -s; break;
    case 2: *sin_a = -s; *cos_a = -c; break;
    default: *sin_a = -c; *cos_a = s; break;
    }
}
