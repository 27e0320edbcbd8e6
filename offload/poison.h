/* offload/poison.h - under AddressSanitizer, bytes that nobody may touch now are marked, so that a kernel that kept a pointer too long
 * is caught at once; without it these do nothing. */
#ifndef SLUICE_OFFLOAD_POISON_H
#define SLUICE_OFFLOAD_POISON_H
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define OFF_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OFF_POISON 1
#endif
#endif
#ifdef OFF_POISON
#include <sanitizer/asan_interface.h>
#endif

static inline void off_poison(const void *p, size_t n)
{
#ifdef OFF_POISON
    __asan_poison_memory_region(p, n);
#else
    (void)p;
    (void)n;
#endif
}
static inline void off_unpoison(const void *p, size_t n)
{
#ifdef OFF_POISON
    __asan_unpoison_memory_region(p, n);
#else
    (void)p;
    (void)n;
#endif
}
#endif
