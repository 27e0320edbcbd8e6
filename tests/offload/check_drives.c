/* Several directories: mirrors and parts of a model, what is no copy, a drive that fails while another goes on. */
#include <sys/stat.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/source.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

enum { T = 6, ROWS = 300, COLS = 2000, SHARDS = 3, SWEEPS = 6 };
static const enum off_io ios[] = {OFF_IO_RING, OFF_IO_THREADS};
static char *own, *other, names[T][16];
static struct mm_tensor tensors[T];
static struct off_span spans[T];
static struct off_part parts[T];
static struct off_record records[T];
static struct krn_weight weights[T];
static struct off_use uses[T];
static struct err e;

static void begin(void)
{
    own = mm_tmpdir();
    other = mm_tmpdir();
    for (int i = 0; i < T; i++) {
        snprintf(names[i], sizeof names[i], "t%d", i);
        tensors[i] = (struct mm_tensor){.name = names[i], .type = KRN_F32, .n_dims = 2, .dims = {ROWS, COLS}};
    }
    mm_sharded(own, tensors, T, SHARDS);
    mm_text(own, "config.json", "{}");
}
static void end(void)
{
    mm_rmdir(own);
    mm_rmdir(other);
}

static const char *shard(int i)
{
    static char name[2][64];
    char *s = name[i & 1];
    snprintf(s, sizeof name[0], "model-%05d-of-%05d.safetensors", i + 1, SHARDS);
    return s;
}

static void copy(int i)
{
    size_t n;
    char path[256];
    snprintf(path, sizeof path, "%s", mm_path(own, shard(i)));
    void *p = mm_read(path, &n);
    mm_write(mm_path(other, shard(i)), p, n);
    free(p);
}

static int open_model(off_catalog **c, off_weights **w, enum off_io io)
{
    static struct off_sweep sweep = {.uses = uses, .n = T, .rows_max = 1};
    uint64_t row = COLS * sizeof(float), all = 0;
    *w = NULL;
    int rc = off_catalog_open_on(c, own, other, 0, &e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < T; i++) {
        const struct off_tensor *t = off_catalog_find(*c, names[i], strlen(names[i]));
        spans[i] = (struct off_span){.file = t->file, .offset = t->offset, .row_bytes = row, .n_rows = ROWS, .row_stride = row, .n_outer = 1};
        parts[i] = (struct off_part){.name = names[i], .type = KRN_F32, .layout = KRN_PLAIN, .rows = ROWS, .cols = COLS, .spans = &spans[i], .n_spans = 1, .weight = i};
        records[i] = (struct off_record){.name = names[i], .parts = &parts[i], .n_parts = 1};
        weights[i] = (struct krn_weight){.type = KRN_F32, .layout = KRN_PLAIN, .rows = ROWS, .cols = COLS};
        uses[i] = (struct off_use){.record = i, .segment = i};
        OK(off_record_layout(&records[i], &e));
        all += records[i].slot_bytes;
    }
    struct off_weights_config cfg = {.ram_max = all - 1, .sweep = &sweep, .read = OFF_READ_DIRECT, .io = io};
    return off_weights_open(w, *c, records, T, weights, T, &cfg, &e);
}

static void sweep(off_weights *w, int n)
{
    for (int k = 0; k < n * T; k++) {
        uint32_t r = (uint32_t)k % T;
        OK(off_lease(w, r, &e));
        const uint8_t *p = weights[r].data;
        for (uint64_t i = 0; i < records[r].file_bytes; i += 97)
            ck_assert_msg(p[i] == mm_pattern(names[r], i), "%s: byte %llu", names[r], (unsigned long long)i);
        off_release(w, r);
    }
}

static struct off_drive_stats drive(off_weights *w, uint32_t i)
{
    struct off_drive_stats d;
    ck_assert(off_weights_drive(w, i, &d));
    return d;
}

START_TEST(core)
{
    for (int k = 0; k < 2; k++) {
        off_catalog *c;
        off_weights *w;
        for (int i = 0; i < SHARDS; i++)
            copy(i);
        OK(open_model(&c, &w, ios[k]));
        sweep(w, SWEEPS);
        ck_assert_uint_gt(drive(w, 0).bytes, 0);
        ck_assert_uint_gt(drive(w, 1).bytes, 0);
        ck_assert_str_eq(drive(w, 1).dir, other);
        struct off_drive_stats none;
        ck_assert(!off_weights_drive(w, 2, &none));
        off_weights_close(w);
        off_catalog_close(c);
    }
    /* parts: one shard here only, one there only, one on both */
    off_catalog *c;
    off_weights *w;
    char gone[256];
    snprintf(gone, sizeof gone, "%s", mm_path(own, shard(1)));
    ck_assert(unlink(gone) == 0 && unlink(mm_path(other, shard(0))) == 0);
    OK(open_model(&c, &w, OFF_IO_AUTO));
    sweep(w, 2);
    ck_assert_uint_gt(drive(w, 1).bytes, 2 * records[1].file_bytes);
    off_weights_close(w);
    off_catalog_close(c);
}
END_TEST

static int refused(void)
{
    off_catalog *c = NULL;
    off_weights *w;
    int rc = open_model(&c, &w, OFF_IO_AUTO);
    off_weights_close(w);
    off_catalog_close(c);
    return rc;
}

START_TEST(errors)
{
    size_t n;
    FAILS(ERR_INVALID, "expected at least one of the model's files, found none", refused());
    copy(1);
    uint8_t *p = mm_read(mm_path(other, shard(1)), &n);
    mm_write(mm_path(other, shard(1)), p, n - 1);
    FAILS(ERR_INVALID, "expected a copy of", refused());
    p[n - 1] ^= 1;
    mm_write(mm_path(other, shard(1)), p, n);
    FAILS(ERR_INVALID, "a file of other content", refused());
    free(p);
}
END_TEST

/* The copies end while they are read: everything comes from the model's own drive, and the errors are counted. */
START_TEST(fails_over)
{
    off_catalog *c;
    off_weights *w;
    for (int i = 0; i < SHARDS; i++)
        copy(i);
    OK(open_model(&c, &w, ios[_i]));
    sweep(w, 1);
    for (int i = 0; i < SHARDS; i++)
        ck_assert_int_eq(truncate(mm_path(other, shard(i)), 4096), 0);
    sweep(w, 3);
    ck_assert(!off_weights_failing(w));
    off_weights_close(w);
    off_catalog_close(c);
}
END_TEST

/* Other files take the names of the model's: what was opened is what is read. */
START_TEST(replaced)
{
    off_catalog *c;
    off_weights *w;
    copy(0);
    OK(open_model(&c, &w, ios[_i]));
    sweep(w, 1);
    for (int i = 0; i < SHARDS; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s", mm_path(own, shard(i)));
        mm_write(mm_path(own, "new"), "nothing", 7);
        ck_assert_int_eq(rename(mm_path(own, "new"), path), 0);
    }
    sweep(w, 3);
    ck_assert(!off_weights_failing(w));
    off_weights_close(w);
    off_catalog_close(c);
}
END_TEST

/* All drives fail: leases say so and so does failing, which has them tried again. */
START_TEST(recovers)
{
    off_catalog *c;
    off_weights *w;
    int failed = 0;
    copy(0);
    bad_io_nth(0, 0, BAD_EIO);
    off_io_pread = bad_nth_pread;
    off_io_ring = bad_nth_ring;
    OK(open_model(&c, &w, OFF_IO_AUTO));
    sweep(w, 1);
    ck_assert(!off_weights_failing(w));
    bad_io_nth(0, 1 << 30, BAD_EIO);
    for (uint32_t k = 0; k < 3 * T; k++)
        if (off_lease(w, k % T, &e) == ERR_OK)
            off_release(w, k % T);
        else
            failed++;
    ck_assert_int_gt(failed, 0);
    ck_assert(off_weights_failing(w));
    bad_io_nth(0, 0, BAD_EIO);
    while (off_weights_failing(w)) /* nobody leases: it comes back by being asked */
        usleep(20000);
    off_weights_close(w);
    off_catalog_close(c);
    off_io_pread = pread;
    off_io_ring = NULL;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("drives");
    TCase *t = tcase_create("drives");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, core);
    tcase_add_test(t, errors);
    tcase_add_loop_test(t, fails_over, 0, 2);
    tcase_add_loop_test(t, replaced, 0, 2);
    tcase_add_test(t, recovers);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
