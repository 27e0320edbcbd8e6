/* Weights: every byte of every slot against the file, by each way of reading; leases; budgets; failing reads. */
#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/weights.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"

static char *dir;
static off_catalog *cat;
static pool *workers;

/* A little of everything: padded tiles, several units (the large ones exceed one read), one row, odd widths. */
static const struct mm_tensor tensors[] = {
    {.name = "embed", .type = KRN_Q4_1, .n_dims = 2, .dims = {37, 64}},
    {.name = "norm", .type = KRN_F32, .n_dims = 1, .dims = {7}},
    {.name = "up", .type = KRN_Q8_0, .n_dims = 2, .dims = {48, 96}},
    {.name = "down", .type = KRN_Q4_0, .n_dims = 2, .dims = {16, 32}},
    {.name = "big", .type = KRN_F32, .n_dims = 2, .dims = {540, 1000}},
    {.name = "bigplain", .type = KRN_BF16, .n_dims = 2, .dims = {3, 400001}},
    {.name = "half", .type = KRN_F16, .n_dims = 2, .dims = {17, 5}},
    {.name = "stack", .type = KRN_Q8_0, .n_dims = 3, .dims = {4, 24, 32}},
    {.name = "wide", .type = KRN_F64, .n_dims = 2, .dims = {2, 256}},
};
enum { T = sizeof tensors / sizeof *tensors, RECORDS = 3 };

struct model {
    struct off_span spans[T][2];
    struct off_part parts[T];
    struct off_record records[RECORDS];
    struct krn_weight weights[T];
};

/* Three tensors a record. "stack" is read as one group of rows per expert, "up" and "half" as two spans cut between rows. */
static void build(struct model *m)
{
    memset(m, 0, sizeof *m);
    for (uint32_t i = 0; i < T; i++) {
        const struct off_tensor *t = off_catalog_find(cat, tensors[i].name, strlen(tensors[i].name));
        ck_assert_ptr_nonnull(t);
        uint64_t cols = t->dims[t->n_dims - 1], row = krn_row_bytes(t->type, cols), rows = t->bytes / row;
        m->spans[i][0] = (struct off_span){.file = t->file, .offset = t->offset, .row_bytes = row, .n_rows = rows, .row_stride = row, .n_outer = 1};
        m->parts[i] = (struct off_part){.name = t->name, .type = t->type, .layout = krn_slot_can(t->type) && rows > 3 ? KRN_TILED : KRN_PLAIN,
                                        .rows = rows, .cols = cols, .spans = m->spans[i], .n_spans = 1, .weight = i};
        if (!strcmp(t->name, "stack")) {
            m->spans[i][0].n_rows = 24;
            m->spans[i][0].n_outer = 4;
            m->spans[i][0].outer_stride = 24 * row;
        } else if (!strcmp(t->name, "up") || !strcmp(t->name, "half")) {
            m->spans[i][1] = m->spans[i][0];
            m->spans[i][0].n_rows = 11;
            m->spans[i][1].n_rows = rows - 11;
            m->spans[i][1].offset += 11 * row;
            m->parts[i].n_spans = 2;
        }
        m->weights[i] = (struct krn_weight){.type = t->type, .layout = m->parts[i].layout, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
    }
    for (uint32_t r = 0; r < RECORDS; r++)
        m->records[r] = (struct off_record){.name = r ? "layer" : "embed", .parts = m->parts + 3 * r, .n_parts = 3};
}

static void begin(void)
{
    struct err e;
    dir = mm_tmpdir();
    mm_gguf(mm_path(dir, "x.gguf"), NULL, 0, tensors, T);
    ck_assert_msg(off_catalog_open(&cat, mm_path(dir, "x.gguf"), 0, &e) == ERR_OK, "%s", e.msg);
    ck_assert_int_eq(pool_open(&workers, 3, &e), ERR_OK);
}
static void end(void)
{
    off_catalog_close(cat);
    pool_close(workers);
    mm_rmdir(dir);
}

/* What the slot of a part must hold, from the pattern the writer used. */
static void check_slot(const struct mm_tensor *t, const struct off_part *p, const struct krn_weight *w)
{
    uint64_t row = krn_row_bytes(p->type, p->cols), n = krn_slot_bytes(p->type, p->layout, p->rows, p->cols);
    uint8_t *file = malloc(p->rows * row), *want = calloc(1, n);
    ck_assert(file && want);
    for (uint64_t i = 0; i < p->rows * row; i++)
        file[i] = mm_pattern(t->name, i);
    if (p->layout == KRN_TILED)
        krn_slot_pack(p->type, p->rows, p->cols, 0, (p->rows + 15) / 16, file, row, want);
    else
        memcpy(want, file, n);
    ck_assert_msg(!memcmp(w->data, want, n), "%s differs", t->name);
    ck_assert_uint_eq((uintptr_t)w->data % KRN_SLOT_ALIGN, 0);
    free(file);
    free(want);
}

static uint64_t seen_done, seen_total;
static void progress(void *ctx, uint64_t done, uint64_t total)
{
    ++*(int *)ctx;
    ck_assert_uint_le(done, total);
    seen_done = done;
    seen_total = total;
}

/* ---- core ------------------------------------------------------------------------------------------------- */
START_TEST(layout)
{
    struct model m;
    struct err e;
    build(&m);
    for (uint32_t r = 0; r < RECORDS; r++) {
        uint64_t at = 0, file = 0;
        ck_assert_int_eq(off_record_layout(&m.records[r], &e), ERR_OK);
        for (uint32_t k = 0; k < 3; k++) {
            const struct off_part *p = &m.records[r].parts[k];
            ck_assert_uint_eq(p->slot_offset % KRN_SLOT_ALIGN, 0);
            ck_assert_uint_ge(p->slot_offset, at);
            at = p->slot_offset + krn_slot_bytes(p->type, p->layout, p->rows, p->cols);
            file += p->rows * krn_row_bytes(p->type, p->cols);
        }
        ck_assert_uint_ge(m.records[r].slot_bytes, at);
        ck_assert_uint_eq(m.records[r].slot_bytes % KRN_SLOT_ALIGN, 0);
        ck_assert_uint_eq(m.records[r].file_bytes, file);
    }
}
END_TEST

START_TEST(bytes)
{
    static const int reads[] = {OFF_READ_AUTO, OFF_READ_CACHED, OFF_READ_DIRECT};
    for (int i = 0; i < 6; i++) {
        struct model m;
        struct err e;
        off_weights *w;
        struct off_weights_stats s;
        int calls = 0;
        struct off_weights_config cfg = {.ram_max = 1 << 30, .pool = i & 1 ? workers : NULL, .progress = progress, .ctx = &calls, .read = reads[i / 2]};
        build(&m);
        ck_assert_msg(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e) == ERR_OK, "%s", e.msg);
        ck_assert_int_ge(calls, 2);
        ck_assert_uint_eq(seen_done, seen_total);
        ck_assert_uint_eq(seen_total, off_catalog_bytes(cat));
        for (uint32_t r = 0; r < RECORDS; r++) {
            ck_assert_int_eq(off_lease(w, r, &e), ERR_OK);
            for (uint32_t k = 0; k < T; k++)
                ck_assert_int_eq(m.weights[k].data != NULL, k / 3 == r);
            for (uint32_t k = 3 * r; k < 3 * r + 3; k++)
                check_slot(&tensors[k], &m.parts[k], &m.weights[k]);
            off_release(w, r);
        }
        off_weights_stats(w, &s);
        ck_assert_uint_eq(s.slot_bytes, m.records[0].slot_bytes + m.records[1].slot_bytes + m.records[2].slot_bytes);
        ck_assert_uint_eq(s.resident_bytes, s.slot_bytes);
        ck_assert_uint_ge(s.file_bytes_read, off_catalog_bytes(cat));
        if (cfg.read == OFF_READ_CACHED)
            ck_assert_uint_eq(s.file_bytes_read, off_catalog_bytes(cat));
        ck_assert_uint_eq(s.leases, RECORDS);
        ck_assert_uint_eq(s.lease_misses, 0);
        off_weights_close(w);
    }
}
END_TEST

START_TEST(leases)
{
    struct model m;
    struct err e;
    off_weights *w;
    struct off_weights_config cfg = {.ram_max = 1 << 30};
    build(&m);
    ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_OK);
    for (uint32_t k = 0; k < T; k++)
        ck_assert_ptr_null(m.weights[k].data);
    ck_assert_int_eq(off_lease(w, 1, &e), ERR_OK);
    const void *p = m.weights[3].data;
    ck_assert_int_eq(off_lease(w, 1, &e), ERR_OK);
    off_release(w, 1);
    ck_assert_ptr_eq(m.weights[3].data, p); /* still leased once */
    off_release(w, 1);
    ck_assert_ptr_null(m.weights[3].data);
    ck_assert_int_eq(off_lease(w, 1, &e), ERR_OK);
    ck_assert_ptr_eq(m.weights[3].data, p);
    off_release(w, 1);
    off_weights_close(w);
    off_weights_close(NULL);
    /* no records at all */
    ck_assert_int_eq(off_weights_open(&w, cat, NULL, 0, NULL, 0, &cfg, &e), ERR_OK);
    off_weights_close(w);
}
END_TEST

START_TEST(release_of_nothing)
{
    struct model m;
    struct err e;
    off_weights *w;
    struct off_weights_config cfg = {.ram_max = 1 << 30};
    build(&m);
    ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_OK);
    mm_rmdir(dir); /* the teardown will not run */
    off_release(w, 0);
}
END_TEST

/* ---- limits ----------------------------------------------------------------------------------------------- */
START_TEST(budget)
{
    struct model m;
    struct err e;
    off_weights *w;
    struct off_weights_stats s;
    struct off_weights_config cfg = {.ram_max = 1 << 30};
    build(&m);
    ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_OK);
    off_weights_stats(w, &s);
    off_weights_close(w);
    cfg.ram_max = s.slot_bytes;
    ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_OK);
    off_weights_close(w);
    cfg.ram_max = s.slot_bytes - 1;
    ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_BUDGET);
    ck_assert_ptr_null(w);
    char want[64];
    snprintf(want, sizeof want, "a need of %llu: 1 bytes", (unsigned long long)s.slot_bytes);
    ck_assert_msg(strstr(e.msg, want), "%s", e.msg);
}
END_TEST

/* ---- errors ----------------------------------------------------------------------------------------------- */
START_TEST(wrong_plans)
{
    for (int i = 0; i < 9; i++) {
        static const struct { int code; const char *part; } want[] = {
            {ERR_INVALID, "\"embed\": expected spans of 37 rows"},
            {ERR_INVALID, "\"embed\": expected spans of 37 rows"},
            {ERR_UNSUPPORTED, "\"wide\": expected a type and shape with a slot layout, found F64"},
            {ERR_INVALID, "x.gguf: tensor \"norm\": expected bytes within the file's"},
            {ERR_INVALID, "\"norm\": expected a weight of its own"},
            {ERR_INVALID, "\"norm\": expected a weight of its own below 9, found number 9"},
            {ERR_INVALID, "\"norm\": expected weight 1 to be F32 [1, 7], found F32 [1, 8]"},
            {ERR_INVALID, "\"norm\": expected a file number below 1, found 1"},
            {ERR_INVALID, "\"embed\": expected spans of 37 rows"},
        };
        struct model m;
        struct err e;
        off_weights *w;
        struct off_weights_config cfg = {.ram_max = 1 << 30};
        build(&m);
        switch (i) {
        case 0: m.spans[0][0].n_rows = 36; break;
        case 1: m.spans[0][0].row_bytes++; break;
        case 2: m.parts[8].layout = KRN_TILED; break;
        case 3: m.spans[1][0].offset = UINT64_MAX - 5; break;
        case 4: m.parts[1].weight = 0; break;
        case 5: m.parts[1].weight = 9; break;
        case 6: m.weights[1].cols = 8; break;
        case 7: m.spans[1][0].file = 1; break;
        case 8: m.spans[0][0].row_stride--; break;
        }
        int rc = off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e);
        ck_assert_msg(rc == want[i].code && strstr(e.msg, want[i].part), "case %d: %s", i, e.msg);
        ck_assert_ptr_null(w);
    }
}
END_TEST


START_TEST(failing_reads)
{
    for (int kind = 0; kind < 4; kind++) {
        int n = 0, rc;
        do {
            struct model m;
            struct err e;
            off_weights *w;
            struct off_weights_config cfg = {.ram_max = 1 << 30, .pool = kind & 1 ? workers : NULL, .read = OFF_READ_CACHED};
            build(&m);
            bad_io_after(n++, kind & 2 ? EIO : 0);
            off_io_pread = bad_io_pread;
            rc = off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e);
            off_io_pread = pread;
            ck_assert_int_eq(rc == ERR_OK, w != NULL);
            if (rc != ERR_OK)
                ck_assert_msg(rc == ERR_IO && strstr(e.msg, "x.gguf: tensor \"") && strstr(e.msg, kind & 2 ? strerror(EIO) : "the end of the file after"), "%s", e.msg);
            off_weights_close(w);
        } while (rc != ERR_OK && n < 1000);
        ck_assert_int_eq(rc, ERR_OK);
        ck_assert_int_gt(n, T);
    }
}
END_TEST

START_TEST(failing_allocations)
{
    int refused = 0;
    if (!alloc_fail_works()) {
        printf("SKIP failing allocations: a sanitizer owns the allocator\n");
        return;
    }
    for (long n = 0;; n++) {
        struct model m;
        struct err e;
        off_weights *w;
        struct off_weights_config cfg = {.ram_max = 1 << 30, .read = OFF_READ_DIRECT};
        build(&m);
        alloc_fail_at(n);
        int rc = off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e);
        bool failed = alloc_fail_end();
        ck_assert_int_eq(rc, failed ? ERR_NOMEM : ERR_OK);
        off_weights_close(w);
        if (!failed)
            break;
        refused++;
    }
    ck_assert_int_gt(refused, 5);
}
END_TEST

/* Short and interrupted reads, and a drive that refuses direct ones in the middle: the same bytes. */
START_TEST(hesitant_reads)
{
    for (int kind = 0; kind < 2; kind++) {
        struct model m;
        struct err e;
        off_weights *w;
        struct off_weights_config cfg = {.ram_max = 1 << 30, .pool = workers, .read = kind ? OFF_READ_DIRECT : OFF_READ_CACHED};
        build(&m);
        off_io_pread = slow_io_pread;
        ck_assert_msg(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e) == ERR_OK, "%s", e.msg);
        off_io_pread = pread;
        for (uint32_t r = 0; r < RECORDS; r++) {
            ck_assert_int_eq(off_lease(w, r, &e), ERR_OK);
            for (uint32_t k = 3 * r; k < 3 * r + 3; k++)
                check_slot(&tensors[k], &m.parts[k], &m.weights[k]);
            off_release(w, r);
        }
        off_weights_close(w);
    }
}
END_TEST

/* The file shrinks after the catalog was opened. */
START_TEST(shrunk_file)
{
    struct model m;
    struct err e;
    off_weights *w;
    struct off_weights_config cfg = {.ram_max = 1 << 30, .pool = workers};
    build(&m);
    ck_assert_int_eq(truncate(mm_path(dir, "x.gguf"), 1000000), 0);
    for (int direct = 0; direct < 2; direct++) {
        cfg.read = direct ? OFF_READ_DIRECT : OFF_READ_CACHED;
        ck_assert_int_eq(off_weights_open(&w, cat, m.records, RECORDS, m.weights, T, &cfg, &e), ERR_IO);
        ck_assert_msg(strstr(e.msg, "tensor \"big\"") && strstr(e.msg, "found the end of the file after"), "%s", e.msg);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("weights");
    TCase *core = tcase_create("core"), *limits = tcase_create("limits"), *errors = tcase_create("errors");
    tcase_add_checked_fixture(core, begin, end);
    tcase_add_checked_fixture(limits, begin, end);
    tcase_add_checked_fixture(errors, begin, end);
    tcase_add_test(core, layout);
    tcase_add_test(core, bytes);
    tcase_add_test(core, leases);
    tcase_add_test(limits, budget);
    tcase_add_test(errors, wrong_plans);
    tcase_add_test(errors, failing_reads);
    tcase_add_test(errors, failing_allocations);
    tcase_add_test(errors, hesitant_reads);
    tcase_add_test(errors, shrunk_file);
    tcase_add_test_raise_signal(errors, release_of_nothing, SIGABRT);
    suite_add_tcase(s, core);
    suite_add_tcase(s, limits);
    tcase_set_timeout(core, 120);
    tcase_set_timeout(errors, 120);
    suite_add_tcase(s, errors);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
