/* kernels/isa.c - which instruction sets this build has code for and this processor can run. */
#include "kernels/backend.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool have_f16c(void) /* not a name that clang 14's __builtin_cpu_supports knows */
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool krn_isa_have(enum krn_isa isa)
{
    switch (isa) {
    case KRN_ISA_AUTO:
    case KRN_ISA_C:
        return true;
#if defined(__x86_64__)
    case KRN_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && have_f16c();
    case KRN_ISA_AVX512:
        return krn_isa_have(KRN_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#endif
    default:
        return false;
    }
}

const char *krn_isa_name(enum krn_isa isa)
{
    static const char *const names[] = {"auto", "c", "avx2", "avx512"};
    return isa <= KRN_ISA_AVX512 ? names[isa] : "?";
}
