/* kernels/attend_avx512.c - attention's inner loops for AVX512. */
#define ISA avx512
#include "kernels/attend_simd.inc"
