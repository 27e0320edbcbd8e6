/* Streaming: every byte of every leased slot against the file, at every budget; sweeps that break off; rows; reads that fail. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/weights.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

#ifdef __SANITIZE_THREAD__
enum { BUDGETS = 2, SWEEPS = 6 };
#else
enum { BUDGETS = 12, SWEEPS = 60 };
#endif
enum { LAYERS = 9, PER = 3, EMBED = 0, HEAD = 1 + LAYERS, RECORDS = 2 + LAYERS, T = 2 + LAYERS * PER, ROWS = 40 };
static char *dir;
static off_catalog *cat;
static struct mm_tensor tensors[T];
static char names[T][24];
static struct off_span spans[T];
static struct off_part parts[T];
static struct off_record records[RECORDS];
static struct krn_weight weights[T];
static uint8_t *want[T];
static size_t want_n[T];
static struct off_use uses[RECORDS + 1];
static uint32_t n_uses;

static uint32_t first_of(uint32_t r) { return r == EMBED ? 0 : r == HEAD ? T - 1 : 1 + (r - 1) * PER; }

/* What a part's slot must hold. */
static uint8_t *wanted(const struct off_part *p, size_t *n)
{
    uint64_t row = krn_row_bytes(p->type, p->cols);
    uint8_t *file = malloc(p->rows * row), *slot = calloc(1, *n = krn_slot_bytes(p->type, p->layout, p->rows, p->cols));
    ck_assert(file && slot);
    for (uint64_t i = 0; i < p->rows * row; i++)
        file[i] = mm_pattern(p->name, i);
    if (p->layout == KRN_TILED)
        krn_slot_pack(p->type, p->rows, p->cols, 0, (p->rows + 15) / 16, file, row, slot);
    else
        memcpy(slot, file, *n);
    free(file);
    return slot;
}

/* An embedding, layers of different sizes (the fourth is the largest: several reads), a head. */
static void begin(void)
{
    struct err e;
    dir = mm_tmpdir();
    for (uint32_t i = 0; i < T; i++) {
        uint32_t layer = (i - 1) / PER;
        snprintf(names[i], sizeof names[i], i == 0 ? "embed" : i == T - 1 ? "head" : "l%u.%u", layer, (i - 1) % PER);
        tensors[i] = (struct mm_tensor){.name = names[i], .type = i % 3 == 0 ? KRN_Q8_0 : i % 3 == 1 ? KRN_Q4_0 : KRN_F32, .n_dims = 2,
                                        .dims = {i == 0 || i == T - 1 ? 1003 : layer == 3 ? 2100 : 1200 + 16 * layer, layer == 3 ? 320 : 256}};
    }
    tensors[3 + 2 * PER].n_dims = 1; /* a vector: stays as published */
    tensors[3 + 2 * PER].type = KRN_F32;
    tensors[3 + 2 * PER].dims[0] = 777;
    mm_gguf(mm_path(dir, "x.gguf"), NULL, 0, tensors, T);
    ck_assert_msg(off_catalog_open(&cat, mm_path(dir, "x.gguf"), 0, &e) == ERR_OK, "%s", e.msg);
    for (uint32_t i = 0; i < T; i++) {
        const struct off_tensor *t = off_catalog_find(cat, names[i], strlen(names[i]));
        ck_assert_ptr_nonnull(t);
        uint64_t cols = t->dims[t->n_dims - 1], row = krn_row_bytes(t->type, cols), rows = t->bytes / row;
        spans[i] = (struct off_span){.file = t->file, .offset = t->offset, .row_bytes = row, .n_rows = rows, .row_stride = row, .n_outer = 1};
        parts[i] = (struct off_part){.name = names[i], .type = t->type, .layout = rows > 1 && i != 0 ? KRN_TILED : KRN_PLAIN, .rows = rows, .cols = cols,
                                     .spans = &spans[i], .n_spans = 1, .weight = i};
        want[i] = wanted(&parts[i], &want_n[i]);
        weights[i] = (struct krn_weight){.type = t->type, .layout = parts[i].layout, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
    }
    n_uses = 0;
    for (uint32_t r = 0; r < RECORDS; r++) {
        records[r] = (struct off_record){.name = "record", .parts = &parts[first_of(r)], .n_parts = r == EMBED || r == HEAD ? 1 : PER};
        uses[n_uses++] = (struct off_use){.record = r, .segment = r, .looked_up = r == EMBED};
        ck_assert_int_eq(off_record_layout(&records[r], &e), ERR_OK);
    }
}
static void end(void)
{
    for (uint32_t i = 0; i < T; i++)
        free(want[i]);
    off_catalog_close(cat);
    mm_rmdir(dir);
}

static uint64_t all_bytes(void)
{
    uint64_t n = 0;
    for (uint32_t r = 0; r < RECORDS; r++)
        n += records[r].slot_bytes;
    return n;
}

static void check_record(uint32_t r)
{
    for (uint32_t k = 0; k < records[r].n_parts; k++) {
        const struct off_part *p = &records[r].parts[k];
        ck_assert_ptr_nonnull(weights[p->weight].data);
        ck_assert_msg(!memcmp(weights[p->weight].data, want[p->weight], want_n[p->weight]), "%s differs", p->name);
    }
}

static void check_rows(uint32_t r, const uint32_t *rows, uint32_t n)
{
    const struct krn_weight *w = &weights[records[r].parts[0].weight];
    float got[256], right[256];
    struct krn_weight whole = *w;
    whole.data = want[records[r].parts[0].weight];
    for (uint32_t i = 0; i < n; i++) {
        ck_assert(krn_weight_row(w, rows[i], got) && krn_weight_row(&whole, rows[i], right));
        ck_assert_msg(!memcmp(got, right, sizeof got), "row %u differs", rows[i]);
    }
}

static enum off_io io;
static uint64_t stall_ns;
static int open_at(off_weights **w, uint64_t ram, int read, struct err *e)
{
    static struct off_sweep sweep;
    sweep = (struct off_sweep){.uses = uses, .n = n_uses, .rows_max = ROWS};
    struct off_weights_config cfg = {.ram_max = ram, .sweep = &sweep, .read = read, .io = io, .stall_ns_max = stall_ns};
    return off_weights_open(w, cat, records, RECORDS, weights, T, &cfg, e);
}

/* The smallest budget, as the refusal of a byte says it. */
static uint64_t floor_bytes(int read)
{
    struct err e;
    off_weights *w;
    uint64_t n = 0;
    ck_assert_int_eq(open_at(&w, 1, read, &e), ERR_BUDGET);
    ck_assert_ptr_null(w);
    ck_assert_msg(sscanf(strstr(e.msg, "readers, "), "readers, %" SCNu64, &n) == 1, "%s", e.msg);
    return n;
}
/* A budget at which most of it streams. */
static uint64_t some(void) { return floor_bytes(OFF_READ_AUTO) + (all_bytes() - floor_bytes(OFF_READ_AUTO)) / 3; }

static void sweep_once(off_weights *w, uint32_t until)
{
    struct err e;
    uint32_t rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        rows[i] = (i * 389 + until) % 1003;
    for (uint32_t r = 0; r < until; r++) {
        int rc = r == EMBED ? off_lease_rows(w, r, rows, ROWS, &e) : off_lease(w, r, &e);
        ck_assert_msg(rc == ERR_OK, "%s", e.msg);
        if (r == EMBED)
            check_rows(r, rows, ROWS);
        else
            check_record(r);
        off_release(w, r);
        ck_assert_ptr_null(weights[first_of(r)].data);
    }
}

/* From the floor to the whole, each way of reading. */
START_TEST(budgets)
{
    struct err e;
    off_weights *w;
    uint64_t floor = floor_bytes(OFF_READ_AUTO);
    ck_assert_int_eq(open_at(&w, floor - 1, OFF_READ_AUTO, &e), ERR_BUDGET);
    ck_assert_msg(strstr(e.msg, ": 1 bytes are missing"), "%s", e.msg);
    uint64_t last = UINT64_MAX;
    for (int i = 0; i <= BUDGETS; i++) {
        uint64_t ram = floor + (all_bytes() - floor) * (unsigned)i / BUDGETS;
        struct off_weights_stats s;
        ck_assert_msg(open_at(&w, ram, i % 3 == 0 ? OFF_READ_AUTO : i % 3 == 1 ? OFF_READ_CACHED : OFF_READ_DIRECT, &e) == ERR_OK, "%s", e.msg);
        for (int k = 0; k < 3; k++)
            sweep_once(w, RECORDS);
        off_weights_stats(w, &s);
        ck_assert_uint_le(s.resident_bytes + s.window_bytes + s.staging_bytes, ram);
        ck_assert_uint_le(s.sweep_bytes, last);
        ck_assert_uint_eq(s.leases, 3 * RECORDS);
        last = s.sweep_bytes;
        off_weights_close(w);
    }
    ck_assert_uint_eq(last, 0);
}
END_TEST

/* Steps that break off anywhere, and leases out of order: the bytes are right all the same. */
START_TEST(broken_sweeps)
{
    struct err e;
    off_weights *w;
    uint32_t seed = 5;
    ck_assert_msg(open_at(&w, some() + (uint64_t)_i * 100000, OFF_READ_AUTO, &e) == ERR_OK, "%s", e.msg);
    for (int k = 0; k < SWEEPS; k++) {
        seed = seed * 1664525 + 1013904223;
        if (k % 3 == 2) {
            uint32_t r = 1 + (seed >> 16) % (RECORDS - 1);
            ck_assert_msg(off_lease(w, r, &e) == ERR_OK, "%s", e.msg);
            ck_assert_int_eq(off_lease(w, r, &e), ERR_OK);
            check_record(r);
            off_release(w, r);
            check_record(r);
            off_release(w, r);
        } else {
            sweep_once(w, (seed >> 16) % (RECORDS + 1));
        }
    }
    off_weights_close(w);
}
END_TEST

/* A record that two segments use is always there. */
START_TEST(shared)
{
    struct err e;
    off_weights *w;
    struct off_weights_stats s;
    uses[n_uses++] = (struct off_use){.record = 5, .segment = RECORDS};
    ck_assert_msg(open_at(&w, some(), OFF_READ_AUTO, &e) == ERR_OK, "%s", e.msg);
    off_weights_stats(w, &s);
    ck_assert_uint_ge(s.resident_bytes, records[5].slot_bytes);
    for (int k = 0; k < 3; k++) {
        sweep_once(w, RECORDS);
        ck_assert_int_eq(off_lease(w, 5, &e), ERR_OK);
        check_record(5);
        off_release(w, 5);
    }
    off_weights_close(w);
    uint64_t ram = some();
    uses[n_uses - 1].segment = 0;
    ck_assert_int_eq(open_at(&w, ram, OFF_READ_AUTO, &e), ERR_INVALID);
    n_uses--;
}
END_TEST

/* A table used whole and looked into: both from the same file bytes. */
START_TEST(tied)
{
    struct err e;
    off_weights *w;
    uint32_t rows[] = {0, 17, 1002, 17, 500};
    uses[0].record = HEAD;
    struct off_use first = {.record = EMBED, .segment = 0};
    memmove(uses + 1, uses, n_uses++ * sizeof *uses);
    uses[0] = first;
    ck_assert_msg(open_at(&w, some(), OFF_READ_AUTO, &e) == ERR_OK, "%s", e.msg);
    for (int k = 0; k < 3; k++) {
        ck_assert_msg(off_lease_rows(w, HEAD, rows, 5, &e) == ERR_OK, "%s", e.msg);
        check_rows(HEAD, rows, 5);
        off_release(w, HEAD);
        for (uint32_t r = 0; r < RECORDS; r++) {
            ck_assert_msg(off_lease(w, r, &e) == ERR_OK, "%s", e.msg);
            check_record(r);
            off_release(w, r);
        }
    }
    off_weights_close(w);
}
END_TEST


/* From the n-th read on nothing comes any more; the lease says so, and all is well when the drive is back. */
START_TEST(failing_reads)
{
    for (int n = 0; n < 60; n += n < 20 ? 1 : 7) {
        struct err e;
        off_weights *w;
        int errors = 0;
        uint64_t ram = some();
        bad_io_after(1 << 30, 0);
        off_io_pread = bad_io_pread;
        ck_assert_msg(open_at(&w, ram, OFF_READ_CACHED, &e) == ERR_OK, "%s", e.msg);
        bad_io_after(n, _i ? EIO : 0);
        for (uint32_t k = 0; k < 2 * RECORDS; k++) {
            uint32_t r = 1 + k % (RECORDS - 1);
            int rc = off_lease(w, r, &e);
            if (rc == ERR_OK) {
                check_record(r);
                off_release(w, r);
            } else {
                ck_assert_msg(rc == ERR_IO && strstr(e.msg, "x.gguf: tensor \"") && strstr(e.msg, _i ? strerror(EIO) : "the end of the file after"), "%s", e.msg);
                ck_assert_ptr_null(weights[first_of(r)].data);
                errors++;
            }
        }
        ck_assert(errors > 0 || n >= 20);
        bad_io_after(1 << 30, 0);
        for (uint32_t r = 1, tries = 0; r < RECORDS; r++) { /* what was read ahead and failed is told once */
            while (off_lease(w, r, &e) != ERR_OK)
                ck_assert_uint_lt(tries++, 2 * RECORDS);
            check_record(r);
            off_release(w, r);
        }
        off_weights_close(w);
        off_io_pread = pread;
    }
}
END_TEST

START_TEST(slow_reads)
{
    struct err e;
    off_weights *w;
    uint64_t ram = some();
    off_io_pread = slow_io_pread;
    ck_assert_msg(open_at(&w, ram, _i ? OFF_READ_DIRECT : OFF_READ_CACHED, &e) == ERR_OK, "%s", e.msg);
    sweep_once(w, RECORDS);
    sweep_once(w, RECORDS);
    off_weights_close(w);
    off_io_pread = pread;
}
END_TEST

/* ---- every way of reading, and every way in which a read goes wrong -------------------------------------------- */
struct way { const char *name; int read; enum off_io io; bool unprivileged; };
static const struct way ways[] = {
    {"ring", OFF_READ_DIRECT, OFF_IO_RING, false},
    {"ring of a process without privileges", OFF_READ_DIRECT, OFF_IO_RING, true},
    {"threads", OFF_READ_DIRECT, OFF_IO_THREADS, false},
    {"through the cache", OFF_READ_CACHED, OFF_IO_AUTO, false},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* One read, or all from there on: right bytes, or an error with file and tensor, and right bytes when the drive is well again. */
static void spoiled(off_weights *w, int n, int times, enum bad_how how)
{
    struct err e;
    int errors = 0;
    bool passes = how == BAD_SHORT || how == BAD_EINTR || how == BAD_EAGAIN;
    bad_io_nth(n, times, how);
    for (uint32_t k = 0; k < 2 * RECORDS; k++) {
        uint32_t r = 1 + k % (RECORDS - 1);
        int rc = off_lease(w, r, &e);
        ck_assert_msg(rc == ERR_OK || (rc == ERR_IO && strstr(e.msg, "x.gguf: tensor \"")), "%s", e.msg);
        errors += rc != ERR_OK;
        if (rc == ERR_OK) {
            check_record(r);
            off_release(w, r);
        }
    }
    ck_assert_int_gt(bad_io_met(), 0);
    ck_assert(times > 1 || !passes || errors == 0);
    ck_assert(times == 1 || passes || errors > 0);
    bad_io_nth(0, 0, how);
    for (uint32_t r = 1, tries = 0; r < RECORDS; r++) {
        while (off_lease(w, r, &e) != ERR_OK)
            ck_assert_uint_lt(tries++, 2 * RECORDS);
        check_record(r);
        off_release(w, r);
    }
}

static void spoil_every(const struct way *way)
{
    struct err e;
    off_weights *w;
    struct off_weights_stats s;
    if (way->unprivileged) {
        struct rlimit none = {0, 0};
        ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
        ck_assert(geteuid() != 0 || setuid(65534) == 0);
    }
    io = way->io;
    uint64_t ram = some();
    bad_io_nth(0, 0, BAD_EIO);
    off_io_pread = bad_nth_pread;
    off_io_ring = bad_nth_ring;
    ck_assert_msg(open_at(&w, ram, way->read, &e) == ERR_OK, "%s", e.msg);
    off_weights_stats(w, &s);
    bool ring = way->io == OFF_IO_RING && strncmp(s.reading, "pread", 5) != 0;
    if (ring && way->unprivileged)
        ck_assert_str_eq(s.reading, "io_uring");
    if (!ring)
        ck_assert_str_eq(s.reading, "pread");
    for (int how = 0; how < BAD_WAYS; how++) {
        for (int n = 0; n < 24; n += SUITE_SLOW ? 24 : n < 8 ? 1 : 5)
            spoiled(w, n, 1, how);
        if (how != BAD_EINTR && how != BAD_SHORT) /* for ever: those never end, and give the rest bit by bit */
            spoiled(w, 5, how == BAD_EAGAIN ? 40 : 1 << 30, how);
    }
    off_weights_close(w);
    off_io_pread = pread;
    off_io_ring = NULL;
}

START_TEST(each_read_fails)
{
    const struct way *way = &ways[_i];
    if (!way->unprivileged) {
        spoil_every(way);
        return;
    }
    int status;
    ck_assert(chmod(dir, 0755) == 0 && chmod(mm_path(dir, "x.gguf"), 0644) == 0);
    pid_t child = fork(); /* who has given up its rights cannot clean up */
    if (child == 0) {
        spoil_every(way);
        _exit(0);
    }
    ck_assert(waitpid(child, &status, 0) == child && WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

/* A drive that does not answer: the lease waits as long as it may, then says so; the record comes when the drive does. */
static atomic_bool stuck;
static ssize_t stuck_pread(int fd, void *p, size_t n, off_t at)
{
    while (atomic_load(&stuck))
        usleep(1000);
    return pread(fd, p, n, at);
}

START_TEST(silent_drive)
{
    struct err e;
    off_weights *w;
    int rc = ERR_OK;
    uint64_t ram = some();
    stall_ns = 50000000;
    io = OFF_IO_THREADS;
    off_io_pread = stuck_pread;
    ck_assert_msg(open_at(&w, ram, OFF_READ_DIRECT, &e) == ERR_OK, "%s", e.msg);
    atomic_store(&stuck, true);
    uint32_t r = 0;
    while (rc == ERR_OK) { /* what was read ahead comes all the same */
        r = 1 + r % (RECORDS - 1);
        if ((rc = off_lease(w, r, &e)) == ERR_OK)
            off_release(w, r);
    }
    ck_assert_msg(rc == ERR_IO && strstr(e.msg, "the drive has not given them"), "%s", e.msg);
    ck_assert_ptr_null(weights[first_of(r)].data);
    atomic_store(&stuck, false);
    for (r = 1; r < RECORDS; r++) {
        while (off_lease(w, r, &e) != ERR_OK) /* a busy machine may be that slow, too */
            ck_assert_msg(strstr(e.msg, "the drive has not given them"), "%s", e.msg);
        check_record(r);
        off_release(w, r);
    }
    off_weights_close(w);
    off_io_pread = pread;
}
END_TEST

/* What is read is what is wanted, and edges: counted over sweeps of records of a MiB and more. */
START_TEST(amplification)
{
    struct err e;
    off_weights *w;
    struct off_weights_stats s;
    io = ways[_i].io;
    ck_assert_msg(open_at(&w, some(), ways[_i].read, &e) == ERR_OK, "%s", e.msg);
    for (int k = 0; k < 4; k++)
        sweep_once(w, RECORDS);
    off_weights_stats(w, &s);
    ck_assert_uint_gt(s.file_bytes_wanted, 4 * s.sweep_bytes / 2);
    ck_assert_uint_ge(s.file_bytes_read, s.file_bytes_wanted);
    ck_assert_msg((double)s.file_bytes_read <= 1.01 * (double)s.file_bytes_wanted, "%llu bytes read for %llu", (unsigned long long)s.file_bytes_read,
                  (unsigned long long)s.file_bytes_wanted);
    off_weights_close(w);
}
END_TEST

/* Everything fits: no thread of ours is there, nothing is read after opening. */
static int threads(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    ck_assert_ptr_nonnull(d);
    for (struct dirent *x; (x = readdir(d));)
        n += x->d_name[0] != '.';
    closedir(d);
    return n;
}

START_TEST(idle)
{
    struct err e;
    off_weights *w;
    struct off_weights_stats before, after;
    int n = threads();
    ck_assert_msg(open_at(&w, all_bytes(), OFF_READ_AUTO, &e) == ERR_OK, "%s", e.msg);
    off_weights_stats(w, &before);
    ck_assert_uint_eq(before.sweep_bytes, 0);
    ck_assert_uint_eq(before.window_bytes + before.staging_bytes, 0);
    for (int k = 0; k < 20; k++)
        sweep_once(w, RECORDS);
    off_weights_stats(w, &after);
    ck_assert_int_eq(threads(), n);
    ck_assert_uint_eq(after.file_bytes_read, before.file_bytes_read);
    ck_assert_uint_eq(after.lease_misses + after.reader_wakeups, 0);
    off_weights_close(w);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stream");
    TCase *t = tcase_create("stream");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, budgets);
    tcase_add_loop_test(t, broken_sweeps, 0, 3);
    tcase_add_test(t, shared);
    tcase_add_test(t, tied);
    tcase_add_loop_test(t, failing_reads, 0, 2);
    tcase_add_loop_test(t, slow_reads, 0, 2);
    tcase_add_loop_test(t, each_read_fails, 0, WAYS);
    tcase_add_loop_test(t, amplification, 0, WAYS);
    tcase_add_test(t, silent_drive);
    tcase_add_test(t, idle);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
