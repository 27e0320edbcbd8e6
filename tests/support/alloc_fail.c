/* Overrides the allocator's entry points in the test program; the C library's own come from dlsym(RTLD_NEXT). dlsym may itself
 * call calloc before the real one is known: those few requests are served from a small static area. */
#include "tests/support/alloc_fail.h"

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool alloc_fail_works(void) { return false; }
void alloc_fail_at(long n) { (void)n; }
bool alloc_fail_end(void) { return false; }
unsigned long alloc_count(void) { return 0; }
#else
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *aligned_alloc(size_t align, size_t n);
void free(void *p);

static __thread long left = -1;
static __thread bool failed;
static _Alignas(16) unsigned char early[4096];
static size_t early_used;
static unsigned long count;

bool alloc_fail_works(void) { return true; }

void alloc_fail_at(long n)
{
    failed = false;
    left = n;
}

bool alloc_fail_end(void)
{
    left = -1;
    return failed;
}

unsigned long alloc_count(void) { return __atomic_load_n(&count, __ATOMIC_RELAXED); }

static bool refuse(void)
{
    __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
    if (left < 0 || left-- > 0)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

static void *real(const char *name, void **slot)
{
    void *f = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (!f) {
        f = dlsym(RTLD_NEXT, name);
        __atomic_store_n(slot, f, __ATOMIC_RELEASE);
    }
    return f;
}

static void *take_early(size_t n)
{
    n = (n + 15) & ~(size_t)15;
    if (n > sizeof early - early_used)
        return NULL;
    early_used += n;
    return early + early_used - n;
}

static bool is_early(const void *p)
{
    return (uintptr_t)p >= (uintptr_t)early && (uintptr_t)p < (uintptr_t)(early + sizeof early);
}

void *malloc(size_t n)
{
    static void *slot;
    void *(*f)(size_t);
    *(void **)&f = real("malloc", &slot);
    return refuse() ? NULL : f(n);
}

void *calloc(size_t n, size_t size)
{
    static void *slot;
    static __thread bool looking;
    void *(*f)(size_t, size_t);
    if (looking)
        return take_early(n * size);
    looking = true;
    *(void **)&f = real("calloc", &slot);
    looking = false;
    return refuse() ? NULL : f(n, size);
}

void *realloc(void *p, size_t n)
{
    static void *slot;
    void *(*f)(void *, size_t);
    *(void **)&f = real("realloc", &slot);
    if (is_early(p)) {
        void *q = malloc(n);
        return q ? memcpy(q, p, n < (size_t)(early + sizeof early - (unsigned char *)p) ? n : (size_t)(early + sizeof early - (unsigned char *)p)) : NULL;
    }
    return refuse() ? NULL : f(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    static void *slot;
    void *(*f)(size_t, size_t);
    *(void **)&f = real("aligned_alloc", &slot);
    return refuse() ? NULL : f(align, n);
}

void free(void *p)
{
    static void *slot;
    void (*f)(void *);
    if (is_early(p))
        return;
    *(void **)&f = real("free", &slot);
    f(p);
}
#endif
