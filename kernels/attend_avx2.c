/* kernels/attend_avx2.c - attention's inner loops for AVX2. */
#define ISA avx2
#include "kernels/attend_simd.inc"
