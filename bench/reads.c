/* reads: how fast a model's records come from its drive into their slots, without a model running: each way of reading in turn, several
 * rounds, beside the drive's own rate in the same minute.
 *
 *   build/plain/bench/reads MODEL [ROUNDS] */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "engine/plan.h"
#include "offload/drive.h"
#include "offload/pack.h"
#include "offload/stream.h"
#include "offload/weights_internal.h"

struct way { const char *name; enum off_io io; struct off_reader_config c; };
static const struct way ways[] = {
    {"pread, 1 thread", OFF_IO_THREADS, {1, 0}},         {"pread, 2 threads", OFF_IO_THREADS, {2, 0}},        {"pread, 3 threads", OFF_IO_THREADS, {3, 0}},
    {"pread, 6 threads", OFF_IO_THREADS, {6, 0}},        {"io_uring, 1 thread x 4", OFF_IO_RING, {1, 4}},     {"io_uring, 1 thread x 8", OFF_IO_RING, {1, 8}},
    {"io_uring, 2 threads x 2", OFF_IO_RING, {2, 2}},    {"io_uring, 2 threads x 3", OFF_IO_RING, {2, 3}},    {"io_uring, 2 threads x 4", OFF_IO_RING, {2, 4}},
};
enum { BASE = 2, WAYS = sizeof ways / sizeof *ways, ROUNDS_MAX = 64 };

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* One pass over all records through a window of twice the largest. */
static int pass(const off_catalog *c, const struct eng_plan *p, const struct way *w, double *rate, double *cpu, const char **kind, struct err *e)
{
    struct off_source s;
    off_reader *r = NULL;
    off_stream *t = NULL;
    uint64_t most = 0, bytes = 0;
    uint32_t *order = calloc(p->n_records + 1, sizeof *order);
    uint8_t *ring = NULL, *slot;
    for (uint32_t i = 0; order && i < p->n_records; i++) {
        order[i] = i;
        most = p->records[i].slot_bytes > most ? p->records[i].slot_bytes : most;
        bytes += p->records[i].slot_bytes;
    }
    int rc = off_source_open(&s, c, true, w->io, e);
    if (!rc && (!order || !(ring = aligned_alloc(4096, (2 * most + 4095) & ~4095ull))))
        rc = err_set(e, ERR_NOMEM, "ring");
    struct off_stream_config cfg = {.records = p->records, .n_records = p->n_records, .order = order, .n_order = p->n_records, .ring = ring, .ring_bytes = 2 * most};
    if (!rc && !(rc = off_reader_open(&r, &s, p->records, p->n_records, &w->c, e)) && !(rc = off_stream_open(&t, r, &cfg, e))) {
        uint64_t t0 = clock_now_ns();
        double u0 = cpu_s();
        rc = off_reader_start(r, e);
        for (uint32_t i = 0; i < p->n_records && !rc; i++)
            if (!(rc = off_stream_acquire(t, i, &slot, e)))
                off_stream_release(t, i);
        *rate = (double)bytes * 1e9 / (double)(clock_now_ns() - t0);
        *cpu = (cpu_s() - u0) * 1e9 / (double)bytes;
        *kind = off_reader_kind(r);
    }
    off_reader_close(r);
    off_stream_close(t);
    off_source_close(&s);
    free(ring);
    free(order);
    return rc;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    static double rate[WAYS + 1][ROUNDS_MAX], ratio[WAYS + 1][ROUNDS_MAX], cpu[WAYS][ROUNDS_MAX];
    const char *kind[WAYS] = {0};
    int rounds = argc > 2 ? atoi(argv[2]) : 5, rc = 0;
    struct eng_plan_options o = {0};
    off_catalog *c = NULL;
    struct eng_plan *p = NULL;
    struct err e = {0};
    if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: reads MODEL [ROUNDS]\n");
        return 2;
    }
    if ((rc = off_catalog_open(&c, argv[1], 0, &e)) || (rc = eng_plan_compile(&p, c, &o, NULL, &e)))
        goto out;
    for (uint32_t i = 0; i < p->n_records && !rc; i++)
        rc = off_record_layout(&p->records[i], &e);
    if (!rc && off_catalog_pack(c)) {
        struct off_part *images = calloc(p->n_records + 1, sizeof *images);
        struct off_span *spans = calloc(p->n_records + 1, sizeof *spans);
        rc = images && spans ? off_pack_attach(c, p->records, p->n_records, images, spans, &e) : err_set(&e, ERR_NOMEM, "images");
    }
    for (int k = 0; k < rounds && !rc; k++) {
        struct off_drive_rate d = {0};
        for (int i = 0; i < WAYS && !rc; i++) { /* to and fro: drift meets all alike */
            int w = k % 2 ? WAYS - 1 - i : i;
            rc = pass(c, p, &ways[w], &rate[w][k], &cpu[w][k], &kind[w], &e);
        }
        if (!rc)
            rc = off_probe_drive(c, 512u << 20, OFF_IO_AUTO, &d, &e);
        rate[WAYS][k] = d.bytes_s;
        for (int w = 0; w <= WAYS; w++)
            ratio[w][k] = rate[w][k] / rate[BASE][k];
    }
    printf("%-24s %-21s %20s  %20s  %s\n", "", "", "GB/s min/median/max", "over pread, 3 threads", "CPU s/GB");
    for (int w = 0; w <= WAYS && !rc; w++) {
        qsort(rate[w], (size_t)rounds, sizeof **rate, by_size);
        qsort(ratio[w], (size_t)rounds, sizeof **ratio, by_size);
        printf("%-24s %-21s %6.2f %6.2f %6.2f ", w < WAYS ? ways[w].name : "drive probe", w < WAYS ? kind[w] : "", rate[w][0] / 1e9, rate[w][rounds / 2] / 1e9, rate[w][rounds - 1] / 1e9);
        printf(" %6.2f %6.2f %6.2f ", ratio[w][0], ratio[w][rounds / 2], ratio[w][rounds - 1]);
        if (w < WAYS) {
            qsort(cpu[w], (size_t)rounds, sizeof **cpu, by_size);
            printf("   %.3f", cpu[w][rounds / 2]);
        }
        printf("\n");
    }
out:
    if (rc)
        fprintf(stderr, "reads: %s\n", e.msg);
    eng_plan_close(p);
    off_catalog_close(c);
    return rc != 0;
}
