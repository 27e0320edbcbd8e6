/* kernels/delta_avx2.c - inner loops of recurrent layers for AVX2. */
#define ISA avx2
#include "kernels/delta_simd.inc"
