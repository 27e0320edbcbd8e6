/* Packed copies: the same bits as from published files, by each way of reading; interrupted anywhere and gone on with; changed by a
 * byte and refused, or found out by its checksum. */
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "offload/io.h"
#include "offload/pack.h"
#include "offload/pack_make.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

enum { T = 7, RECORDS = 3 };
static const struct mm_tensor tensors[T] = {
    {.name = "a", .type = KRN_F32, .n_dims = 2, .dims = {600, 1000}}, {.name = "b", .type = KRN_Q8_0, .n_dims = 2, .dims = {37, 64}},
    {.name = "c", .type = KRN_F32, .n_dims = 1, .dims = {77}},        {.name = "d", .type = KRN_Q4_0, .n_dims = 2, .dims = {1003, 256}},
    {.name = "e", .type = KRN_F16, .n_dims = 2, .dims = {17, 5}},     {.name = "f", .type = KRN_BF16, .n_dims = 2, .dims = {900, 900}},
    {.name = "factors", .type = KRN_F32, .n_dims = 1, .dims = {16}},  /* of no record */
};
static const int record_of[T] = {0, 0, 1, 1, 1, 2, -1};
struct model {
    off_catalog *c;
    struct off_span spans[T];
    struct off_part parts[T];
    struct off_record records[RECORDS];
    struct krn_weight weights[T];
};
static struct err e;
static char *dir, *copy, model_file[128];

static void build(struct model *m, const char *path)
{
    *m = (struct model){0};
    OK(off_catalog_open(&m->c, path, 0, &e));
    for (uint32_t i = 0; i + 1 < T; i++) {
        const struct off_tensor *t = off_catalog_find(m->c, tensors[i].name, strlen(tensors[i].name));
        ck_assert_ptr_nonnull(t);
        uint64_t cols = t->dims[t->n_dims - 1], row = krn_row_bytes(t->type, cols), rows = t->bytes / row;
        enum krn_layout layout = rows > 1 && i != 5 ? KRN_TILED : KRN_PLAIN;
        m->spans[i] = (struct off_span){.file = t->file, .offset = t->offset, .row_bytes = row, .n_rows = rows, .row_stride = row, .n_outer = 1};
        m->parts[i] = (struct off_part){.name = t->name, .type = t->type, .layout = layout, .rows = rows, .cols = cols, .spans = &m->spans[i], .n_spans = 1, .weight = i};
        m->weights[i] = (struct krn_weight){.type = t->type, .layout = layout, .rows = (uint32_t)rows, .cols = (uint32_t)cols};
        struct off_record *r = &m->records[record_of[i]];
        r->parts = r->parts ? r->parts : &m->parts[i];
        r->name = "record";
        r->n_parts++;
    }
    for (int r = 0; r < RECORDS; r++)
        OK(off_record_layout(&m->records[r], &e));
}
static void drop(struct model *m) { off_catalog_close(m->c); }

static void begin(void)
{
    dir = mm_tmpdir();
    copy = mm_tmpdir();
    snprintf(model_file, sizeof model_file, "%s", mm_path(dir, "x.gguf"));
    mm_gguf(model_file, NULL, 0, tensors, T);
}
static void end(void)
{
    mm_rmdir(dir);
    mm_rmdir(copy);
}

static int stop_after = -1, calls;
static void count(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    ck_assert_uint_le(done, total);
    if (++calls == stop_after)
        _exit(9); /* as if it had been killed */
}

static int pack(void)
{
    struct model m;
    build(&m, model_file);
    int rc = off_pack_make(m.c, m.records, RECORDS, copy, count, NULL, &e);
    drop(&m);
    return rc;
}

/* Every byte of every weight, of the copy and of the published files. */
static int same(int read, enum off_io io, bool verify)
{
    struct model a, b;
    off_weights *x, *y;
    struct off_weights_stats s;
    struct off_weights_config cfg = {.ram_max = 1 << 30};
    build(&a, model_file);
    build(&b, copy);
    OK(off_weights_open(&x, a.c, a.records, RECORDS, a.weights, T, &cfg, &e));
    cfg = (struct off_weights_config){.ram_max = 1 << 30, .read = read, .io = io, .verify = verify};
    int rc = off_weights_open(&y, b.c, b.records, RECORDS, b.weights, T, &cfg, &e);
    for (uint32_t r = 0; r < RECORDS && !rc; r++) {
        OK(off_lease(x, r, &e));
        OK(off_lease(y, r, &e));
        for (uint32_t i = 0; i + 1 < T; i++)
            if (record_of[i] == (int)r)
                ck_assert_msg(!memcmp(a.weights[i].data, b.weights[i].data, krn_slot_bytes(a.parts[i].type, a.parts[i].layout, a.parts[i].rows, a.parts[i].cols)),
                              "%s differs", tensors[i].name);
        off_release(x, r);
        off_release(y, r);
    }
    if (!rc) {
        off_weights_stats(y, &s);
        ck_assert_uint_eq(s.file_bytes_wanted, a.records[0].slot_bytes + a.records[1].slot_bytes + a.records[2].slot_bytes);
        ck_assert_uint_eq(s.file_bytes_read, s.file_bytes_wanted); /* aligned: nothing beside it */
        off_weights_close(y);
    }
    off_weights_close(x);
    drop(&a);
    drop(&b);
    return rc;
}

START_TEST(core)
{
    struct model m;
    float got[16];
    OK(pack());
    for (int way = 0; way < 6; way++)
        OK(same(way % 3 == 0 ? OFF_READ_CACHED : OFF_READ_DIRECT, way % 3 == 1 ? OFF_IO_RING : OFF_IO_THREADS, way >= 3));
    build(&m, copy);
    const struct off_tensor *t = off_catalog_find(m.c, "factors", 7);
    ck_assert_ptr_nonnull(t);
    OK(off_catalog_read(m.c, t, got, &e));
    for (unsigned i = 0; i < sizeof got; i++)
        ck_assert_uint_eq(((uint8_t *)got)[i], mm_pattern("factors", i));
    FAILS(ERR_NOTFOUND, "in a record or not at all", off_catalog_read(m.c, off_catalog_find(m.c, "a", 1), got, &e));
    drop(&m);
    calls = 0;
    OK(pack()); /* whole already: nothing to do */
    ck_assert_int_eq(calls, 0);
    build(&m, copy);
    FAILS(ERR_INVALID, "found a packed copy", off_pack_make(m.c, m.records, RECORDS, dir, NULL, NULL, &e));
    drop(&m);
    struct off_weights_config cfg = {.ram_max = 1 << 30, .verify = true};
    off_weights *w;
    build(&m, model_file);
    FAILS(ERR_INVALID, "no checksums", off_weights_open(&w, m.c, m.records, RECORDS, m.weights, T, &cfg, &e));
    drop(&m);
}
END_TEST

/* Cut off after each record, and the manifest after each byte of its last lines: refused as a model, completed by packing again. */
START_TEST(resumes)
{
    for (int n = 1; n <= RECORDS; n++) {
        pid_t child = fork();
        if (child == 0) {
            stop_after = n;
            calls = 0;
            pack();
            _exit(0);
        }
        int status;
        ck_assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 9);
        off_catalog *c;
        int rc = off_catalog_open(&c, copy, 0, &e);
        ck_assert_msg(rc == ERR_FORMAT && strstr(e.msg, "packing was interrupted"), "%s", e.msg);
        OK(pack());
        OK(same(OFF_READ_DIRECT, OFF_IO_AUTO, true));
        mm_rmdir(copy);
        copy = mm_tmpdir();
    }
    size_t size, kept;
    OK(pack());
    char manifest[128];
    snprintf(manifest, sizeof manifest, "%s", mm_path(copy, OFF_PACK_MANIFEST));
    char *text = mm_read(manifest, &size);
    for (size_t cut = 0; cut < size; cut += SUITE_SLOW ? 97 : 13) {
        off_catalog *c;
        mm_write(manifest, text, cut);
        ck_assert_int_eq(off_catalog_open(&c, copy, 0, &e), ERR_FORMAT);
        OK(pack());
        char *now = mm_read(manifest, &kept);
        ck_assert(kept == size && !memcmp(now, text, size));
        free(now);
    }
    OK(same(OFF_READ_DIRECT, OFF_IO_AUTO, true));
    free(text);
}
END_TEST

static int opened(void)
{
    off_catalog *c;
    int rc = off_catalog_open(&c, copy, 0, &e);
    off_catalog_close(c);
    return rc;
}

START_TEST(errors)
{
    size_t size, n;
    OK(pack());
    char path[3][128];
    snprintf(path[0], sizeof path[0], "%s", mm_path(copy, OFF_PACK_MANIFEST));
    snprintf(path[1], sizeof path[1], "%s", mm_path(copy, OFF_PACK_DATA));
    snprintf(path[2], sizeof path[2], "%s", mm_path(copy, "x.gguf"));
    char *text = mm_read(path[0], &size);
    for (size_t i = 0; i < size; i += SUITE_SLOW ? 31 : 3) { /* any byte changed */
        text[i] ^= 1;
        mm_write(path[0], text, size);
        int rc = opened();
        ck_assert_msg(rc != ERR_OK && strstr(e.msg, OFF_PACK_MANIFEST), "byte %zu: %s", i, e.msg);
        text[i] ^= 1;
    }
    mm_write(path[0], text, size);
    OK(opened());
    char *data = mm_read(path[1], &n);
    mm_write(path[1], data, n - 4096);
    FAILS(ERR_FORMAT, "sluice.records: expected", opened());
    data[n / 2] ^= 4;
    mm_write(path[1], data, n);
    OK(opened());
    FAILS(ERR_IO, "record \"record\": expected checksum", same(OFF_READ_DIRECT, OFF_IO_AUTO, true));
    FAILS(ERR_IO, "expected checksum", same(OFF_READ_CACHED, OFF_IO_AUTO, true));
    char *head = mm_read(path[2], &n);
    mm_write(path[2], head, n - 1);
    FAILS(ERR_FORMAT, "x.gguf: expected a file that sluice.pack lists", opened());
    mm_write(path[2], head, n);
    /* records of another shape */
    struct model m;
    off_weights *w;
    struct off_weights_config cfg = {.ram_max = 1 << 30};
    build(&m, copy);
    m.parts[2].name = "cc";
    FAILS(ERR_FORMAT, "has to be packed again", off_weights_open(&w, m.c, m.records, RECORDS, m.weights, T, &cfg, &e));
    FAILS(ERR_FORMAT, "expected 2 records, found 3", off_weights_open(&w, m.c, m.records, 2, m.weights, T, &cfg, &e));
    drop(&m);
    /* a directory with the copy of another model */
    build(&m, model_file);
    m.parts[2].name = "cc";
    FAILS(ERR_INVALID, "of another", off_pack_make(m.c, m.records, RECORDS, copy, NULL, NULL, &e));
    FAILS(ERR_IO, "/proc", off_pack_make(m.c, m.records, RECORDS, "/proc/none", NULL, NULL, &e));
    drop(&m);
    free(text);
    free(data);
    free(head);
}
END_TEST

/* Reads that go wrong while records come straight into their slots. */
START_TEST(spoiled)
{
    OK(pack());
    off_io_pread = bad_nth_pread;
    off_io_ring = bad_nth_ring;
    for (int how = 0; how < BAD_WAYS; how++)
        for (int n = 0; n < 6; n++) {
            struct model m;
            off_weights *w;
            struct off_weights_config cfg = {.ram_max = 1 << 30, .read = OFF_READ_DIRECT, .io = _i ? OFF_IO_THREADS : OFF_IO_RING, .verify = true};
            bad_io_nth(0, 0, how);
            build(&m, copy);
            bad_io_nth(n, 1, how);
            OK(off_weights_open(&w, m.c, m.records, RECORDS, m.weights, T, &cfg, &e)); /* checksums say that all is right */
            off_weights_close(w);
            drop(&m);
        }
    off_io_pread = pread;
    off_io_ring = NULL;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pack");
    TCase *t = tcase_create("pack");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, core);
    tcase_add_test(t, resumes);
    tcase_add_test(t, errors);
    tcase_add_loop_test(t, spoiled, 0, 2);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
