/* tests/support/alloc_fail.h - makes the n-th allocation of this thread fail, to walk through every out-of-memory path.
 *
 *   for (long n = 0;; n++) { alloc_fail_at(n); rc = thing(); if (!alloc_fail_end()) break; expect(rc == ERR_NOMEM); }
 *
 * Inert until asked. Under a sanitizer, whose allocator it must not displace, alloc_fail_works() is false and a test skips. */
#ifndef SLUICE_TESTS_ALLOC_FAIL_H
#define SLUICE_TESTS_ALLOC_FAIL_H
#include <stdbool.h>

bool alloc_fail_works(void);
void alloc_fail_at(long n);  /* the n-th (from 0) malloc, calloc, realloc or aligned_alloc from now on gives NULL, once */
bool alloc_fail_end(void);   /* did one fail? Turns it off. */
unsigned long alloc_count(void); /* allocations of all threads so far; 0 where alloc_fail_works() is false */
#endif
