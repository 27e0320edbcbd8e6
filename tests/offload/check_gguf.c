/* The catalog over GGUF: tensors, metadata as a tree and as arrays, split sets, and every lie by its name. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/catalog.h"
#include "offload/io.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/make_model.h"

static char *dir;
static const char *path;
static struct buf b;
static void begin(void)
{
    dir = mm_tmpdir();
    path = strdup(mm_path(dir, "x.gguf"));
    buf_init(&b, 1 << 24);
}
static void end(void)
{
    mm_rmdir(dir);
    free((char *)path);
    buf_free(&b);
}

static const struct mm_tensor tensors[] = {
    {.name = "token_embd.weight", .type = KRN_Q4_1, .n_dims = 2, .dims = {5, 64}},
    {.name = "output_norm.weight", .type = KRN_F32, .n_dims = 1, .dims = {64}},
    {.name = "blk.0.ffn_up_exps.weight", .type = KRN_Q8_0, .n_dims = 3, .dims = {2, 3, 32}},
    {.name = "scalar", .type = KRN_F32, .n_dims = 0},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static char long_names[100][12];
static const char *long_strs[100];
static int32_t long_ints[100];
static const char *const few[] = {"x", "", "zz"};
static const float floats[] = {0.5f, -1e30f};
static struct mm_kv pairs[] = {
    MM_KV_STR("general.architecture", "llama"),
    MM_KV_U32("llama.block_count", 2),
    MM_KV_F32("llama.rope.freq_base", 10000),
    MM_KV_F32("eps", 1e-5),
    MM_KV_BOOL("yes", 1),
    {.key = "i8", .type = MM_I8, .i = -5},
    {.key = "u8", .type = MM_U8, .i = 251},
    {.key = "i16", .type = MM_I16, .i = -300},
    {.key = "u16", .type = MM_U16, .i = 65000},
    {.key = "i32", .type = MM_I32, .i = -70000},
    {.key = "u64", .type = MM_U64, .i = -1},
    {.key = "i64", .type = MM_I64, .i = INT64_MIN},
    {.key = "f64", .type = MM_F64, .f = 0.1},
    {.key = "few", .type = MM_ARR, .elem = MM_STR, .n = 3, .strs = few},
    {.key = "floats", .type = MM_ARR, .elem = MM_F32, .n = 2, .floats = floats},
    {.key = "tokens", .type = MM_ARR, .elem = MM_STR, .n = 100, .strs = long_strs},
    {.key = "types", .type = MM_ARR, .elem = MM_I32, .n = 100, .ints = long_ints},
    {.key = "none", .type = MM_ARR, .elem = MM_U8, .n = 0},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static void fill(void)
{
    for (int i = 0; i < 100; i++) {
        snprintf(long_names[i], sizeof long_names[i], "t%d", i * i);
        long_strs[i] = long_names[i];
        long_ints[i] = -i;
    }
}

static int try(int header_only, struct err *e)
{
    off_catalog *c;
    *e = (struct err){0};
    int rc = off_catalog_open(&c, path, header_only, e);
    ck_assert_int_eq(rc == ERR_OK, c != NULL);
    ck_assert_int_eq(rc, rc == ERR_OK ? ERR_OK : e->code);
    off_catalog_close(c);
    return rc;
}

static void expect(int code, const char *part)
{
    struct err e;
    mm_write(path, b.data ? b.data : "", b.len);
    int rc = try(0, &e);
    ck_assert_msg(rc == code && strstr(e.msg, part), "expected %s \"%s\", found %s \"%s\"", err_name(code), part, err_name(rc), e.msg);
    if (rc != ERR_OK)
        ck_assert_msg(strstr(e.msg, "x.gguf"), "%s", e.msg);
    buf_reset(&b);
}

static void check_tensors(const off_catalog *c)
{
    ck_assert_uint_eq(off_catalog_count(c), TENSORS);
    for (size_t i = 0; i < TENSORS; i++) {
        const struct off_tensor *t = off_catalog_find(c, tensors[i].name, strlen(tensors[i].name));
        ck_assert_ptr_nonnull(t);
        ck_assert_int_eq(t->type, tensors[i].type);
        ck_assert_uint_eq(t->n_dims, tensors[i].n_dims);
        for (unsigned d = 0; d < t->n_dims; d++)
            ck_assert_uint_eq(t->dims[d], tensors[i].dims[d]);
        ck_assert_uint_eq(t->bytes, mm_bytes(&tensors[i]));
        uint8_t *p = malloc(t->bytes);
        ck_assert_int_eq(pread(off_catalog_file(c, t->file)->fd, p, t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
        for (uint64_t k = 0; k < t->bytes; k++)
            ck_assert_uint_eq(p[k], mm_pattern(t->name, k));
        free(p);
    }
}

/* ---- core ------------------------------------------------------------------------------------------------- */
START_TEST(one_file)
{
    struct err e;
    off_catalog *c;
    int64_t v;
    uint64_t u;
    double d;
    size_t n;
    fill();
    mm_gguf(path, pairs, PAIRS, tensors, TENSORS);
    ck_assert_msg(off_catalog_open(&c, path, 0, &e) == ERR_OK, "%s", e.msg);
    check_tensors(c);
    ck_assert_int_eq(off_catalog_kind(c), OFF_GGUF);
    const struct json *m = off_catalog_config(c);
    ck_assert(json_eq(json_get(m, "general.architecture"), "llama"));
    ck_assert(json_int(json_get(m, "llama.block_count"), &v) && v == 2);
    ck_assert(json_num(json_get(m, "llama.rope.freq_base"), &d) && d == 10000);
    ck_assert(json_num(json_get(m, "eps"), &d) && (float)d == 1e-5f);
    ck_assert(json_is(json_get(m, "yes"), JSON_BOOL) && json_get(m, "yes")->b);
    ck_assert(json_int(json_get(m, "i8"), &v) && v == -5);
    ck_assert(json_int(json_get(m, "u8"), &v) && v == 251);
    ck_assert(json_int(json_get(m, "i16"), &v) && v == -300);
    ck_assert(json_int(json_get(m, "u16"), &v) && v == 65000);
    ck_assert(json_int(json_get(m, "i32"), &v) && v == -70000);
    ck_assert(json_u64(json_get(m, "u64"), &u) && u == UINT64_MAX);
    ck_assert(json_int(json_get(m, "i64"), &v) && v == INT64_MIN);
    ck_assert(json_num(json_get(m, "f64"), &d) && d == 0.1);
    const struct json *f = json_get(m, "few");
    ck_assert(json_is(f, JSON_ARRAY) && f->n == 3 && json_eq(f->items[2], "zz") && json_eq(f->items[1], ""));
    ck_assert_ptr_null(json_get(m, "tokens")); /* long: by off_gguf_array alone */
    ck_assert(json_is(json_get(m, "none"), JSON_ARRAY) && json_get(m, "none")->n == 0);

    struct off_array a;
    ck_assert(off_gguf_array(c, "tokens", &a) && a.n == 100 && a.type == MM_STR);
    for (uint64_t i = 0; i < 100; i++) {
        const char *s = off_array_str(&a, i, &n);
        ck_assert(n == strlen(long_names[i]) && !memcmp(s, long_names[i], n));
    }
    ck_assert_ptr_null(off_array_str(&a, 100, &n));
    ck_assert(!off_array_int(&a, 0, &v) && !off_array_num(&a, 0, &d));
    ck_assert(off_gguf_array(c, "types", &a) && a.n == 100 && a.type == MM_I32);
    ck_assert(off_array_int(&a, 99, &v) && v == -99 && !off_array_int(&a, 100, &v) && !off_array_str(&a, 0, &n));
    ck_assert(off_gguf_array(c, "floats", &a) && off_array_num(&a, 1, &d) && (float)d == -1e30f && !off_array_int(&a, 1, &v));
    ck_assert(!off_gguf_array(c, "eps", &a) && !off_gguf_array(c, "absent", &a));
    off_catalog_close(c);
}
END_TEST

START_TEST(alignment)
{
    static const uint32_t aligns[] = {1, 8, 64, 4096};
    for (size_t i = 0; i < 4; i++) {
        struct err e;
        off_catalog *c;
        struct mm_kv kv = MM_KV_U32("general.alignment", aligns[i]);
        mm_gguf(path, &kv, 1, tensors, TENSORS);
        ck_assert_msg(off_catalog_open(&c, path, 0, &e) == ERR_OK, "%s", e.msg);
        check_tensors(c);
        off_catalog_close(c);
    }
}
END_TEST

/* A header larger than one reading. */
START_TEST(large_header)
{
    enum { N = 40000 };
    struct err e;
    off_catalog *c;
    struct off_array a;
    static char text[N][28];
    static const char *strs[N];
    size_t n;
    for (int i = 0; i < N; i++) {
        snprintf(text[i], sizeof text[i], "token number %d", i);
        strs[i] = text[i];
    }
    struct mm_kv kv[2] = {{.key = "tokens", .type = MM_ARR, .elem = MM_STR, .n = N, .strs = strs}, MM_KV_U32("last", 7)};
    mm_gguf(path, kv, 2, tensors, TENSORS);
    ck_assert_msg(off_catalog_open(&c, path, 0, &e) == ERR_OK, "%s", e.msg);
    check_tensors(c);
    ck_assert(off_gguf_array(c, "tokens", &a) && a.n == N);
    ck_assert(!memcmp(off_array_str(&a, N - 1, &n), "token number 39999", 18) && n == 18);
    off_catalog_close(c);
}
END_TEST

static void write_split(unsigned count, unsigned claimed, unsigned no_of_second, unsigned total)
{
    for (unsigned i = 0; i < count; i++) {
        char name[64];
        struct mm_kv kv[3] = {{.key = "split.no", .type = MM_U16, .i = i == 1 ? no_of_second : i},
                              {.key = "split.count", .type = MM_U16, .i = claimed},
                              {.key = "split.tensors.count", .type = MM_I32, .i = total}};
        snprintf(name, sizeof name, "x-%05u-of-%05u.gguf", i + 1, count);
        size_t first = i * TENSORS / count, last = (i + 1) * TENSORS / count;
        mm_gguf(mm_path(dir, name), kv, 3, tensors + first, last - first);
    }
}

static int try_split(const char *name, const char *part)
{
    struct err e = {0};
    off_catalog *c;
    int rc = off_catalog_open(&c, mm_path(dir, name), 0, &e);
    if (rc == ERR_OK)
        check_tensors(c);
    ck_assert_msg(strstr(e.msg, part), "expected \"%s\", found \"%s\"", part, e.msg);
    off_catalog_close(c);
    return rc;
}

START_TEST(split)
{
    struct err e;
    off_catalog *c;
    write_split(3, 3, 1, TENSORS);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", ""), ERR_OK);
    ck_assert_int_eq(try_split("x-00002-of-00003.gguf", "first file of the split set, found part 2 of 3"), ERR_INVALID);
    write_split(3, 3, 2, TENSORS);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", "expected split.no 1 of split.count 3, found 2 of 3"), ERR_FORMAT);
    write_split(3, 3, 1, TENSORS + 1);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", "x-00001-of-00003.gguf: expected 5 tensors in the 3 files"), ERR_FORMAT);
    write_split(3, 4, 1, TENSORS);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", "-00001-of-00004.gguf"), ERR_FORMAT);
    write_split(3, 3, 1, TENSORS);
    ck_assert_int_eq(rename(mm_path(dir, "x-00002-of-00003.gguf"), mm_path(dir, "y")), 0);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", "x-00002-of-00003.gguf: expected this file, part 2 of a split set of 3"), ERR_NOTFOUND);
    ck_assert_int_eq(off_catalog_open(&c, mm_path(dir, "x-00001-of-00003.gguf"), 1, &e), ERR_OK);
    ck_assert_uint_eq(off_catalog_problems(c), 1);
    ck_assert(off_catalog_file(c, 1)->missing && off_catalog_files(c) == 3);
    off_catalog_close(c);
    /* a tensor in two parts */
    mm_gguf(mm_path(dir, "x-00002-of-00003.gguf"), (struct mm_kv[]){{.key = "split.no", .type = MM_U16, .i = 1}, {.key = "split.count", .type = MM_U16, .i = 3}}, 2, tensors, 1);
    ck_assert_int_eq(try_split("x-00001-of-00003.gguf", "x-00002-of-00003.gguf: tensor \"token_embd.weight\": expected once, found again (first in x-00001"), ERR_FORMAT);
}
END_TEST

/* ---- errors ----------------------------------------------------------------------------------------------- */
static void head(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    buf_str(&b, "GGUF");
    buf_u32(&b, version);
    buf_u64(&b, n_tensors);
    buf_u64(&b, n_kv);
}
static void str(const char *s)
{
    buf_u64(&b, strlen(s));
    buf_str(&b, s);
}
static void pad(size_t n)
{
    while (n--)
        buf_u8(&b, 0);
}
static void tensor(const char *name, uint32_t n_dims, uint64_t d0, uint64_t d1, uint32_t type, uint64_t offset)
{
    str(name);
    buf_u32(&b, n_dims);
    if (n_dims > 0)
        buf_u64(&b, d0);
    if (n_dims > 1)
        buf_u64(&b, d1);
    buf_u32(&b, type);
    buf_u64(&b, offset);
}

START_TEST(lying_heads)
{
    expect(ERR_FORMAT, "magic");
    buf_str(&b, "GGUG");
    pad(100);
    expect(ERR_FORMAT, "magic \"GGUF\", found bytes 47 47 55 47");
    head(1, 0, 0);
    expect(ERR_UNSUPPORTED, "version 2 or 3, found 1");
    head(4, 0, 0);
    expect(ERR_UNSUPPORTED, "found 4");
    head(0x03000000, 0, 0);
    expect(ERR_UNSUPPORTED, "big-endian");
    head(2, 0, 0);
    expect(ERR_OK, "");
    head(3, 1, 0);
    expect(ERR_FORMAT, "tensor count: expected at most 0");
    head(3, UINT64_MAX, 0);
    expect(ERR_FORMAT, "found 18446744073709551615");
    head(3, 0, 1ull << 40);
    pad(1000);
    expect(ERR_FORMAT, "metadata count: expected at most 71");
    head(3, 0, 5000);
    pad(100000);
    expect(ERR_FORMAT, "metadata count: expected at most 4096");
}
END_TEST

START_TEST(lying_metadata)
{
    head(3, 0, 1);
    buf_u64(&b, UINT64_MAX - 3);
    pad(100);
    expect(ERR_FORMAT, "metadata key 0: expected 18446744073709551612 bytes");
    head(3, 0, 1);
    buf_u64(&b, 0);
    pad(100);
    expect(ERR_FORMAT, "metadata key 0: expected 1 to 65535 bytes of UTF-8, found none");
    head(3, 0, 1);
    str("a\xff");
    pad(100);
    expect(ERR_FORMAT, "UTF-8");
    head(3, 0, 1);
    str("k");
    buf_u32(&b, 13);
    pad(100);
    expect(ERR_FORMAT, "k: expected a value type from 0 to 12, found 13");
    head(3, 0, 1);
    str("k");
    buf_u32(&b, MM_BOOL);
    buf_u8(&b, 2);
    expect(ERR_FORMAT, "k: expected a bool of 0 or 1, found 2");
    head(3, 0, 1);
    str("k");
    buf_u32(&b, MM_U64);
    pad(7);
    expect(ERR_FORMAT, "k: expected 8 bytes at 37, found the end of the file at 44");
    for (int elem = 0; elem <= 13; elem++) {
        head(3, 0, 1);
        str("k");
        buf_u32(&b, MM_ARR);
        buf_u32(&b, (uint32_t)elem);
        buf_u64(&b, 1ull << 61);
        pad(64);
        expect(elem == MM_ARR ? ERR_UNSUPPORTED : ERR_FORMAT, elem == MM_ARR || elem == 13 ? "expected an array of" : elem == MM_STR ? "expected at most 8 strings" : "k: expected");
    }
    head(3, 0, 2);
    str("k");
    buf_u32(&b, MM_U8);
    buf_u8(&b, 1);
    str("k");
    buf_u32(&b, MM_U8);
    buf_u8(&b, 1);
    expect(ERR_FORMAT, "k: expected this metadata key once, found it twice");
    static const int64_t aligns[] = {0, 3, 48, 1 << 21};
    for (size_t i = 0; i < 4; i++) {
        struct mm_kv kv = MM_KV_U32("general.alignment", aligns[i]);
        head(3, 0, 1);
        str(kv.key);
        buf_u32(&b, MM_U32);
        buf_u32(&b, (uint32_t)aligns[i]);
        expect(ERR_FORMAT, "general.alignment: expected a power of two");
    }
    mm_gguf_bytes(&b, &(struct mm_kv)MM_KV_STR("general.alignment", "32"), 1, NULL, 0);
    expect(ERR_FORMAT, "general.alignment: expected a whole number");
    mm_gguf_bytes(&b, (struct mm_kv[]){MM_KV_U32("split.count", 2)}, 1, NULL, 0);
    expect(ERR_NOTFOUND, "expected split.no in the metadata");
    mm_gguf_bytes(&b, (struct mm_kv[]){MM_KV_U32("split.count", 2), MM_KV_U32("split.no", 0)}, 2, NULL, 0);
    expect(ERR_FORMAT, "expected a name that ends in -00001-of-00002.gguf");
}
END_TEST

START_TEST(lying_tensors)
{
    static const struct { uint32_t n_dims; uint64_t d0, d1; uint32_t type; uint64_t offset; int code; const char *part; } cases[] = {
        {2, 4, 2, 0, 0, ERR_OK, ""},
        {2, 4, 0, 0, 0, ERR_OK, ""},
        {5, 4, 2, 0, 0, ERR_FORMAT, "at most 4 dimensions, found 5"},
        {2, 4, 2, 99, 0, ERR_UNSUPPORTED, "known ggml type, found number 99"},
        {2, 33, 1, 8, 0, ERR_FORMAT, "multiple of 32 elements (Q8_0), found 33"},
        {2, 4, 2, 0, 8, ERR_FORMAT, "multiple of 32, found 8"},
        {2, 4, 1ull << 62, 0, 0, ERR_FORMAT, "beyond 2^63"},
        {2, 1ull << 32, 1ull << 32, 0, 0, ERR_FORMAT, "beyond 2^63"},
        {2, 1ull << 63, 1ull << 1, 0, 0, ERR_FORMAT, "beyond 2^63"},
        {2, 4, 2, 0, 1ull << 63, ERR_FORMAT, "beyond 2^63"},
        {2, 4, 2, 0, INT64_MAX - 63, ERR_FORMAT, "cut short"},
        {2, 4, 2, 0, 128, ERR_FORMAT, "expected to end at byte 256, found a file of 192 bytes"},
        {2, 4, 64, 0, 0, ERR_FORMAT, "cut short"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head(3, 1, 0);
        tensor("w", cases[i].n_dims, cases[i].d0, cases[i].d1, cases[i].type, cases[i].offset);
        while (b.len < 192)
            buf_u8(&b, 0);
        expect(cases[i].code, cases[i].part);
    }
    head(3, 2, 0);
    tensor("a", 1, 9, 0, 0, 0);
    tensor("b", 1, 8, 0, 0, 32);
    pad(200);
    expect(ERR_FORMAT, "tensor \"b\": expected to begin at or behind 36, where \"a\" ends, found 32");
    head(3, 2, 0);
    tensor("a", 1, 8, 0, 0, 0);
    tensor("a", 1, 8, 0, 0, 32);
    pad(200);
    expect(ERR_FORMAT, "tensor \"a\": expected once, found again");
    head(3, 1, 0);
    tensor("\xc0\x80", 1, 8, 0, 0, 0);
    pad(200);
    expect(ERR_FORMAT, "tensor 0: expected a name of 1 to 65535 bytes of UTF-8");
    head(3, 1, 0);
    tensor("", 1, 8, 0, 0, 0);
    pad(200);
    expect(ERR_FORMAT, "found none");
}
END_TEST

START_TEST(broken_bytes)
{
    struct err e;
    fill();
    mm_gguf_bytes(&b, pairs, PAIRS, tensors, TENSORS);
    mm_write(path, b.data, b.len);
    for (size_t n = b.len; n-- > 0;) {
        ck_assert_int_eq(truncate(path, (off_t)n), 0);
        ck_assert_int_ne(try(0, &e), ERR_OK);
        try(1, &e);
    }
    size_t opened = 0;
    static const uint8_t flips[] = {0x01, 0x80, 0xFF};
    for (size_t k = 0; k < b.len - 600; k++)
        for (size_t i = 0; i < sizeof flips; i++) {
            b.data[k] = (char)(b.data[k] ^ flips[i]);
            mm_write(path, b.data, b.len);
            opened += try(0, &e) == ERR_OK;
            b.data[k] = (char)(b.data[k] ^ flips[i]);
        }
    ck_assert_uint_gt(opened, 0);
}
END_TEST

static int reads_left;
static ssize_t failing_pread(int fd, void *p, size_t n, off_t at)
{
    if (reads_left-- > 0)
        return pread(fd, p, n < 512 ? n : 512, at);
    errno = EIO;
    return -1;
}

START_TEST(failing_reads)
{
    struct err e;
    int n = 0, rc;
    fill();
    mm_gguf(path, pairs, PAIRS, tensors, TENSORS);
    do {
        reads_left = n++;
        off_io_pread = failing_pread;
        rc = try(0, &e);
        off_io_pread = pread;
        if (rc != ERR_OK)
            ck_assert_msg(rc == ERR_IO && strstr(e.msg, "x.gguf") && strstr(e.msg, strerror(EIO)), "%s", e.msg);
    } while (rc != ERR_OK && n < 1000);
    ck_assert_int_eq(rc, ERR_OK);
    ck_assert_int_gt(n, 4);
}
END_TEST

START_TEST(failing_allocations)
{
    struct err e;
    int refused = 0;
    if (!alloc_fail_works()) {
        printf("SKIP failing allocations: a sanitizer owns the allocator\n");
        return;
    }
    fill();
    mm_gguf(path, pairs, PAIRS, tensors, TENSORS);
    for (long n = 0;; n++) {
        off_catalog *c;
        alloc_fail_at(n); /* nothing of Check may run before the end: it allocates too */
        int rc = off_catalog_open(&c, path, 0, &e);
        bool failed = alloc_fail_end();
        off_catalog_close(c);
        ck_assert_msg(rc == ERR_OK || (failed && rc == ERR_NOMEM), "%ld: %s", n, e.msg); /* OK: a large object does without its index */
        if (!failed)
            break;
        refused += rc == ERR_NOMEM;
    }
    ck_assert_int_gt(refused, 20);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gguf");
    TCase *core = tcase_create("core"), *errors = tcase_create("errors");
    tcase_add_checked_fixture(core, begin, end);
    tcase_add_checked_fixture(errors, begin, end);
    tcase_add_test(core, one_file);
    tcase_add_test(core, alignment);
    tcase_add_test(core, large_header);
    tcase_add_test(core, split);
    tcase_add_test(errors, lying_heads);
    tcase_add_test(errors, lying_metadata);
    tcase_add_test(errors, lying_tensors);
    tcase_add_test(errors, broken_bytes);
    tcase_add_test(errors, failing_reads);
    tcase_add_test(errors, failing_allocations);
    suite_add_tcase(s, core);
    tcase_set_timeout(core, 120);
    tcase_set_timeout(errors, 120);
    suite_add_tcase(s, errors);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
