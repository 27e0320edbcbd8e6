/* kernels/cpu_times.c - where a step's time goes: each worker's clock, read after every piece of work. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "kernels/cpu_internal.h"

/* One a worker, a cache line apart. */
struct cpu_times { _Alignas(64) uint64_t last, ns[CPU_TIMED][KRN_TYPE_COUNT], calls[CPU_TIMED][KRN_TYPE_COUNT]; };

void cpu_time_start(const krn_backend *b, unsigned worker)
{
    if (b->times) b->times[worker].last = clock_now_ns();
}

void cpu_time(const krn_backend *b, unsigned worker, unsigned what, enum krn_type t)
{
    if (!b->times) return;
    struct cpu_times *x = &b->times[worker];
    uint64_t now = clock_now_ns();
    x->ns[what][t] += now - x->last;
    x->calls[what][t]++;
    x->last = now;
}

static const char *name_of(unsigned what)
{
    static const char *const names[] = {"quantise", "store kv", "angles", "wait"};
    return what < KRN_OP_COUNT ? krn_op_name((enum krn_opcode)what) : names[what - KRN_OP_COUNT];
}

size_t cpu_times_take(krn_backend *b, struct krn_time *out, size_t max)
{
    size_t n = 0;
    if (!b->times) {
        b->times = aligned_alloc(64, b->cfg.threads * sizeof *b->times);
        if (b->times) memset(b->times, 0, b->cfg.threads * sizeof *b->times);
        return 0;
    }
    for (unsigned what = 0; what < CPU_TIMED; what++)
        for (unsigned t = 0; t < KRN_TYPE_COUNT; t++) {
            struct krn_time sum = {.name = name_of(what), .type = (enum krn_type)t};
            for (unsigned w = 0; w < b->cfg.threads; w++) {
                sum.ns += b->times[w].ns[what][t];
                sum.calls += b->times[w].calls[what][t];
                b->times[w].ns[what][t] = b->times[w].calls[what][t] = 0;
            }
            if (sum.calls && n < max) out[n++] = sum;
        }
    return n;
}
