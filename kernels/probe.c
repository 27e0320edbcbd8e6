#include "kernels/probe.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"

enum { HUGE = 2 << 20 };

/* On huge pages: with small ones, page walks and prefetch streams that end every 4 KiB cost a quarter of the rate. */
static void *big(size_t n)
{
    if (n > SIZE_MAX - HUGE)
        return NULL;
    n = (n + HUGE - 1) / HUGE * HUGE;
    void *p = aligned_alloc(HUGE, n);
    if (p)
        madvise(p, n, MADV_HUGEPAGE); /* a wish; refused, the probe still works */
    return p;
}

/* A pool of one is timed by its own CPU time, which other programs on the machine do not lengthen. */
static uint64_t now_ns(const pool *p)
{
    struct timespec t;
    if (pool_workers(p) > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t))
        return clock_now_ns();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- memory ---- */

struct reader {
    const uint8_t *data;
    size_t bytes;
    uint64_t sums[256]; /* kept so that the reads are not removed */
};

typedef uint64_t wide __attribute__((vector_size(32), aligned(8)));

static void read_part(void *ctx, unsigned worker, unsigned n)
{
    struct reader *r = ctx;
    size_t part = r->bytes / n / 256 * 256;
    const uint8_t *p = r->data + worker * part;
    wide s[4] = {{0}};
    for (size_t i = 0; i < part; i += 128) {
        __builtin_prefetch(p + i + 2048);
        __builtin_prefetch(p + i + 2112);
        for (int k = 0; k < 4; k++) {
            wide v;
            memcpy(&v, p + i + 32 * k, sizeof v);
            s[k] ^= v;
        }
    }
    s[0] ^= s[1] ^ s[2] ^ s[3];
    r->sums[worker] += s[0][0] ^ s[0][1] ^ s[0][2] ^ s[0][3];
}

static double read_once(pool *p, struct reader *r)
{
    uint64_t start = now_ns(p);
    pool_run(p, read_part, r);
    uint64_t ns = now_ns(p) - start;
    return (double)r->bytes * 1e9 / (double)(ns ? ns : 1);
}

int krn_probe_read(pool *p, size_t bytes, unsigned rounds, double *bytes_s, struct err *e)
{
    unsigned n = pool_workers(p);
    struct reader r = {.bytes = bytes / n / 256 * 256 * n};
    *bytes_s = 0;
    if (r.bytes == 0)
        return err_set(e, ERR_INVALID, "%zu bytes are too few to measure %u workers", bytes, n);
    uint8_t *mem = big(r.bytes);
    if (!mem)
        return err_set(e, ERR_NOMEM, "%zu bytes for the memory probe", r.bytes);
    memset(mem, 1, r.bytes);
    r.data = mem;
    for (unsigned k = 0; k < rounds; k++)
        *bytes_s = fmax(*bytes_s, read_once(p, &r));
    free(mem);
    return ERR_OK;
}

/* ---- dot products ---- */

struct dotter { uint64_t (*dots)(uint32_t n); _Atomic uint64_t ops; };
static void dot_part(void *ctx, unsigned worker, unsigned n)
{
    struct dotter *d = ctx;
    (void)worker, (void)n;
    atomic_fetch_add(&d->ops, d->dots(1u << 20));
}

double krn_probe_dot(pool *p, enum krn_isa isa, unsigned rounds)
{
    struct dotter d = {.dots = NULL};
    double best = 0;
#if defined(__x86_64__)
    d.dots = krn_isa_have(KRN_ISA_AVX512) && (isa == KRN_ISA_AUTO || isa == KRN_ISA_AVX512) ? krn_dots_avx512
           : krn_isa_have(KRN_ISA_AVX2) && (isa == KRN_ISA_AUTO || isa == KRN_ISA_AVX2)     ? krn_dots_avx2 : NULL;
#endif
    for (unsigned k = 0; k < rounds && d.dots; k++) {
        uint64_t start = now_ns(p);
        atomic_store(&d.ops, 0);
        pool_run(p, dot_part, &d);
        uint64_t ns = now_ns(p) - start;
        best = fmax(best, (double)atomic_load(&d.ops) * 1e9 / (double)(ns ? ns : 1));
    }
    (void)isa;
    return best;
}

/* ---- linears ---- */

struct linears {
    const struct krn_probe_linear *what;
    const struct krn_linear_isa *isa;
    uint8_t *slots; size_t slot_bytes;
    float *x, *y;
    void *scratch;
    struct krn_operand a;
    pool *p;
};

/* As a backend does it: quantise by rows, barrier, tiles, barrier, next matrix. */
static void run_copies(void *ctx, unsigned worker, unsigned n)
{
    struct linears *s = ctx;
    const struct krn_probe_linear *k = s->what;
    bool int8 = krn_linear_int8(k->type, KRN_TILED, k->precision);
    for (uint32_t c = 0; c < k->copies; c++) {
        struct krn_weight w = {.type = k->type, .layout = KRN_TILED, .rows = k->rows, .cols = k->cols, .data = s->slots + c * s->slot_bytes};
        struct krn_linear l = {.w = &w, .y = s->y, .y_stride = k->rows, .int8 = int8};
        uint32_t tiles = krn_linear_tiles(&w);
        uint32_t r0 = (uint32_t)((uint64_t)k->tokens * worker / n), r1 = (uint32_t)((uint64_t)k->tokens * (worker + 1) / n);
        uint32_t t0 = (uint32_t)((uint64_t)tiles * worker / n), t1 = (uint32_t)((uint64_t)tiles * (worker + 1) / n);
        if (int8) {
            s->isa->quantise(&s->a, r0, r1 - r0);
            pool_barrier(s->p, worker);
        }
        s->isa->run(&l, &s->a, t0, t1 - t0);
        pool_barrier(s->p, worker);
    }
}

/* Small made-up numbers with scales that are normal halves: denormals or NaN would measure something else. */
static void fill(struct linears *s)
{
    const struct krn_probe_linear *k = s->what;
    uint32_t r = 1;
    for (size_t i = 0; i < s->slot_bytes * k->copies; i++)
        s->slots[i] = (uint8_t)(((r = r * 1664525u + 1013904223u) >> 24 & 0x2f) | (k->type == KRN_MXFP4 ? 0x60 : 0)); /* its scales are bytes */
    for (size_t i = 0; i < (size_t)k->tokens * k->cols; i++)
        s->x[i] = (float)(int32_t)(r = r * 1664525u + 1013904223u) * 0x1p-31f;
}

int krn_probe_linear(pool *p, const struct krn_probe_linear *what, struct krn_probe_rate *out, struct err *e)
{
    int rc = ERR_OK;
    struct linears s = {.what = what, .isa = krn_linear_get(what->isa), .p = p};
    size_t bytes = krn_slot_bytes(what->type, KRN_TILED, what->rows, what->cols), act = krn_operand_bytes(what->tokens, what->cols);
    s.slot_bytes = (bytes + KRN_SLOT_ALIGN - 1) / KRN_SLOT_ALIGN * KRN_SLOT_ALIGN;
    *out = (struct krn_probe_rate){0};
    if (!s.isa || bytes == 0)
        return err_set(e, ERR_UNSUPPORTED, "no %s linear on %s", krn_types[what->type].name, krn_isa_name(what->isa));
    s.slots = big(s.slot_bytes * what->copies);
    s.scratch = big(act);
    s.x = calloc((size_t)what->tokens * what->cols, sizeof *s.x);
    s.y = calloc((size_t)what->tokens * what->rows, sizeof *s.y);
    if (!s.slots || !s.scratch || !s.x || !s.y) {
        rc = err_set(e, ERR_NOMEM, "%u matrices of %zu bytes for the probe", what->copies, s.slot_bytes);
        goto out;
    }
    fill(&s);
    struct reader r = {.data = s.slots, .bytes = s.slot_bytes * what->copies / 256 / pool_workers(p) * 256 * pool_workers(p)};
    krn_operand_init(&s.a, s.x, what->cols, what->tokens, what->cols, s.scratch);
    for (unsigned k = 0; k < what->rounds; k++) {
        uint64_t start = now_ns(p);
        pool_run(p, run_copies, &s);
        double ns = (double)(now_ns(p) - start) / what->copies;
        if (out->ns == 0 || ns < out->ns)
            out->ns = ns;
        if (what->copies > 1)
            out->read_bytes_s = fmax(out->read_bytes_s, read_once(p, &r));
    }
    out->weight_bytes_s = (double)what->rows * (double)krn_row_bytes(what->type, what->cols) * 1e9 / out->ns;
    out->ops_s = 2.0 * what->rows * what->cols * what->tokens * 1e9 / out->ns;
out:
    free(s.slots), free(s.scratch), free(s.x), free(s.y);
    return rc;
}
