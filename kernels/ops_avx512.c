/* kernels/ops_avx512.c - row operators for AVX512. */
#define ISA avx512
#define ISA_NAME "avx512"
#include "kernels/ops_simd.inc"
