/* kernels/delta_avx512.c - inner loops of recurrent layers for AVX-512. */
#define ISA avx512
#include "kernels/delta_simd.inc"
