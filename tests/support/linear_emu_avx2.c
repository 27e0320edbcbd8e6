/* tests/support/linear_emu_avx2.c - kernels/linear_avx512.c on emulated registers, as krn_linear_emulated. */
#include "tests/support/avx512_emu.h"

#define krn_linear_avx512 krn_linear_emulated
#include "kernels/linear_avx512.c"
