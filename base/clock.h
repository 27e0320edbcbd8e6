/* base/clock.h - time: monotonic for durations and deadlines, wall for people. */
#ifndef SLUICE_BASE_CLOCK_H
#define SLUICE_BASE_CLOCK_H
#include <pthread.h>
#include <stdint.h>
#define NS_PER_S  1000000000ull
#define NS_PER_MS 1000000ull
#define NS_PER_US 1000ull
uint64_t clock_now_ns(void);            /* CLOCK_MONOTONIC */
int64_t clock_wall_s(void);             /* seconds since 1970 */
void clock_sleep_ns(uint64_t ns);       /* restarts on EINTR */
void clock_cond_init(pthread_cond_t *c); /* timed waits end at times of clock_now_ns */
#endif
