/* kernels/ops_avx2.c - row operators for AVX2. */
#define ISA avx2
#define ISA_NAME "avx2"
#include "kernels/ops_simd.inc"
