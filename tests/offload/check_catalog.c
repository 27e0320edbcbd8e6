/* The catalog over safetensors: what opens, what every lie is called, and that no byte of a file can make it crash. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "offload/catalog.h"
#include "offload/io.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"

static char *dir;
static void begin(void) { dir = mm_tmpdir(); }
static void end(void) { mm_rmdir(dir); }

static const struct mm_tensor small[] = {
    {.name = "model.embed_tokens.weight", .type = KRN_BF16, .n_dims = 2, .dims = {6, 8}},
    {.name = "model.norm.weight", .type = KRN_F32, .n_dims = 1, .dims = {8}},
    {.name = "lm_head.weight", .type = KRN_F16, .n_dims = 2, .dims = {6, 8}},
    {.name = "größe", .type = KRN_I64, .n_dims = 0},
    {.name = "empty", .type = KRN_U8, .n_dims = 2, .dims = {0, 4}},
};
enum { SMALL = sizeof small / sizeof *small };

/* Opens and closes; the code, with the message in *e. */
static int try(const char *path, int header_only, struct err *e)
{
    off_catalog *c;
    *e = (struct err){0};
    int rc = off_catalog_open(&c, path, header_only, e);
    ck_assert_int_eq(rc == ERR_OK, c != NULL);
    ck_assert_int_eq(rc, rc == ERR_OK ? ERR_OK : e->code);
    if (rc != ERR_OK)
        ck_assert_uint_gt(strlen(e->msg), 0);
    off_catalog_close(c);
    return rc;
}

static void expect(const char *path, int code, const char *part)
{
    struct err e;
    int rc = try(path, 0, &e);
    ck_assert_msg(rc == code && strstr(e.msg, part), "%s: expected %s with \"%s\", found %s \"%s\"", path, err_name(code), part, err_name(rc), e.msg);
    ck_assert_ptr_null(strchr(e.msg, '\n'));
}

static void check_small(const off_catalog *c)
{
    ck_assert_uint_eq(off_catalog_count(c), SMALL);
    uint64_t bytes = 0;
    for (size_t i = 0; i < SMALL; i++) {
        const struct off_tensor *t = off_catalog_find(c, small[i].name, strlen(small[i].name));
        ck_assert_ptr_nonnull(t);
        ck_assert_str_eq(t->name, small[i].name);
        ck_assert_int_eq(t->type, small[i].type);
        ck_assert_uint_eq(t->n_dims, small[i].n_dims);
        for (unsigned d = 0; d < t->n_dims; d++)
            ck_assert_uint_eq(t->dims[d], small[i].dims[d]);
        ck_assert_uint_eq(t->bytes, mm_bytes(&small[i]));
        const struct off_file *f = off_catalog_file(c, t->file);
        ck_assert_uint_le(t->offset + t->bytes, f->size);
        uint8_t b[256];
        ck_assert_int_eq(pread(f->fd, b, t->bytes, (off_t)t->offset), (ssize_t)t->bytes);
        for (uint64_t k = 0; k < t->bytes; k++)
            ck_assert_uint_eq(b[k], mm_pattern(t->name, k));
        bytes += t->bytes;
    }
    ck_assert_uint_eq(off_catalog_bytes(c), bytes);
    ck_assert_ptr_null(off_catalog_find(c, "model", 5));
    ck_assert_ptr_null(off_catalog_find(c, "model.norm.weight", 16));
    ck_assert_ptr_null(off_catalog_find(c, "model.norm.weight\0x", 19));
    ck_assert_ptr_null(off_catalog_find(c, "", 0));
    ck_assert_uint_gt(off_catalog_memory(c), 0);
    ck_assert_int_eq(off_catalog_kind(c), OFF_SAFETENSORS);
    ck_assert_uint_eq(off_catalog_problems(c), 0);
}

/* ---- core ------------------------------------------------------------------------------------------------- */
START_TEST(one_file)
{
    struct err e;
    off_catalog *c;
    size_t n;
    mm_text(dir, "config.json", "{\"model_type\": \"llama\", \"hidden_size\": 8}");
    mm_text(dir, "tokenizer.json", "{}");
    mm_safetensors(mm_path(dir, "model.safetensors"), small, SMALL);
    ck_assert_msg(off_catalog_open(&c, dir, 0, &e) == ERR_OK, "%s", e.msg);
    check_small(c);
    ck_assert(json_eq(json_get(off_catalog_config(c), "model_type"), "llama"));
    char *text = off_catalog_text(c, "tokenizer.json", 100, &n, &e);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(n, 2);
    ck_assert_str_eq(text, "{}");
    free(text);
    ck_assert_ptr_null(off_catalog_text(c, "absent.json", 100, &n, &e));
    ck_assert_int_eq(e.code, ERR_NOTFOUND);
    ck_assert_ptr_null(off_catalog_text(c, "tokenizer.json", 1, &n, &e));
    ck_assert_int_eq(e.code, ERR_LIMIT);
    ck_assert_ptr_null(off_catalog_text(c, "../tokenizer.json", 100, &n, &e));
    ck_assert_int_eq(e.code, ERR_INVALID);
    off_catalog_close(c);
    /* the file itself, and the directory with a slash */
    ck_assert_int_eq(off_catalog_open(&c, mm_path(dir, "model.safetensors"), 0, &e), ERR_OK);
    check_small(c);
    ck_assert_ptr_nonnull(off_catalog_config(c));
    off_catalog_close(c);
    ck_assert_int_eq(off_catalog_open(&c, mm_path(dir, ""), 0, NULL), ERR_OK);
    off_catalog_close(c);
    ck_assert_int_eq(unlink(mm_path(dir, "config.json")), 0);
    ck_assert_int_eq(off_catalog_open(&c, mm_path(dir, "model.safetensors"), 0, &e), ERR_OK);
    ck_assert_ptr_null(off_catalog_config(c));
    off_catalog_close(c);
    expect(dir, ERR_NOTFOUND, "config.json");
}
END_TEST

START_TEST(sharded)
{
    for (unsigned shards = 1; shards <= SMALL; shards++) {
        struct err e;
        off_catalog *c;
        mm_text(dir, "config.json", "{}");
        mm_sharded(dir, small, SMALL, shards);
        ck_assert_msg(off_catalog_open(&c, dir, 0, &e) == ERR_OK, "%s", e.msg);
        check_small(c);
        ck_assert_uint_eq(off_catalog_files(c), shards);
        off_catalog_close(c);
    }
}
END_TEST

/* Many names, so that tables grow and several threads read. */
START_TEST(many)
{
    enum { N = 6000 };
    static char names[N][32];
    static struct mm_tensor t[N];
    struct err e;
    off_catalog *c;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "layers.%d.w", i);
        t[i] = (struct mm_tensor){.name = names[i], .type = KRN_U8, .n_dims = 1, .dims = {(uint64_t)i % 7}};
    }
    mm_text(dir, "config.json", "{}");
    mm_sharded(dir, t, N, 13);
    ck_assert_msg(off_catalog_open(&c, dir, 0, &e) == ERR_OK, "%s", e.msg);
    ck_assert_uint_eq(off_catalog_count(c), N);
    for (int i = 0; i < N; i++) {
        const struct off_tensor *x = off_catalog_find(c, names[i], strlen(names[i]));
        ck_assert_ptr_eq(x, off_catalog_at(c, (size_t)i));
        ck_assert_uint_eq(x->bytes, (uint64_t)i % 7);
        ck_assert_uint_eq(x->file, (uint32_t)i % 13);
    }
    off_catalog_close(c);
}
END_TEST

/* ---- errors ----------------------------------------------------------------------------------------------- */
static const struct { const char *header; uint64_t len, data; int code; const char *part; } headers[] = {
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_OK, ""},
    {"{}", 0, 0, ERR_OK, ""},
    {"{\"a\":{\"data_offsets\":[0,8],\"extra\":[{\"x\":[1]}],\"shape\":[2],\"dtype\":\"F32\"}}  ", 0, 8, ERR_OK, ""},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 0, 5, ERR_OK, ""},
    {"{}", 1ull << 40, 0, ERR_FORMAT, "header: expected at most 2 bytes"},
    {"{}", UINT64_MAX, 0, ERR_FORMAT, "18446744073709551615"},
    {"{}", 3, 0, ERR_FORMAT, "header: expected at most 2 bytes"},
    {"[]", 0, 0, ERR_FORMAT, "begin with '{'"},
    {" {}", 0, 0, ERR_FORMAT, "begin with '{'"},
    {"{} x", 0, 0, ERR_FORMAT, "header"},
    {"{\"a\":", 0, 0, ERR_FORMAT, "header"},
    {"{}", 0, 4, ERR_FORMAT, "4 bytes follow it"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 7, ERR_FORMAT, "tensor \"a\": expected to end at data byte 8, found a file of 7"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 9, ERR_FORMAT, "1 bytes follow it"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "tensor \"a\": expected 12 bytes"},
    {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_UNSUPPORTED, "\"F99\""},
    {"{\"a\":{\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "dtype: expected a string"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "shape: expected an array"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "found 2.0"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "found -2"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "found 18446744073709551616"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 0, 8, ERR_UNSUPPORTED, "at most 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, 0, ERR_FORMAT, "2^64"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,2147483648,0,2],\"data_offsets\":[0,0]}}", 0, 0, ERR_FORMAT, "2^64"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 0, 8, ERR_FORMAT, "expected 2 numbers, found 1"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 0, 8, ERR_UNSUPPORTED, "at most 2"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 0, 8, ERR_FORMAT, "begin <= end"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 0, 8, ERR_FORMAT, "found -8"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,9223372036854775808]}}", 0, 8, ERR_FORMAT, "found 9223372036854775808"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 0, 12, ERR_FORMAT, "4 bytes before it belong to no tensor"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 0, 12, ERR_FORMAT,
     "tensor \"b\": expected to begin at 8, where \"a\" ends, found 4"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", 0, 16, ERR_FORMAT, "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "twice"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "no dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0, 8, ERR_FORMAT, "no data_offsets"},
    {"{\"a\":[]}", 0, 0, ERR_FORMAT, "tensor \"a\": expected an object"},
    {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "UTF-8"},
    {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 0, 8, ERR_FORMAT, "header"},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, 0, ERR_OK, ""},
    {"{\"__metadata__\":{\"a\":1}}", 0, 0, ERR_FORMAT, "__metadata__"},
    {"{\"__metadata__\":[]}", 0, 0, ERR_FORMAT, "__metadata__"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, 0, ERR_FORMAT, "__metadata__ once"},
};

START_TEST(lying_headers)
{
    const char *path = mm_path(dir, "x.safetensors");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct err e;
        mm_safetensors_raw(path, headers[i].header, headers[i].len, headers[i].data);
        int rc = try(path, 0, &e);
        ck_assert_msg(rc == headers[i].code && (rc == ERR_OK || (strstr(e.msg, headers[i].part) && strstr(e.msg, "x.safetensors"))),
                      "%s: expected %s \"%s\", found %s \"%s\"", headers[i].header, err_name(headers[i].code), headers[i].part, err_name(rc), e.msg);
    }
}
END_TEST

#define A "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"
#define AB "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}"
static const struct { const char *index; int code; const char *part; } indexes[] = {
    {"{\"weight_map\":{\"a\":\"1.safetensors\"}}", ERR_OK, ""},
    {"{\"metadata\":{\"total_size\":2.0,\"x\":[1]},\"weight_map\":{\"a\":\"1.safetensors\"},\"y\":{\"z\":1}}", ERR_OK, ""},
    {"{\"metadata\":7,\"weight_map\":{\"a\":\"1.safetensors\"}}", ERR_OK, ""},
    {"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", ERR_FORMAT, "2.safetensors: tensor \"a\": expected in 1.safetensors"},
    {"{\"weight_map\":{\"a\":\"2.safetensors\",\"b\":\"2.safetensors\"}}", ERR_OK, ""},
    {"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"1.safetensors\"}}", ERR_FORMAT, "1.safetensors: tensor \"c\": expected in this file"},
    {"{\"weight_map\":{\"b\":\"2.safetensors\"}}", ERR_FORMAT, "2.safetensors: tensor \"a\": expected every tensor in model.safetensors.index.json"},
    {"{\"weight_map\":{\"a\":\"3.safetensors\"}}", ERR_NOTFOUND, "3.safetensors: expected this file"},
    {"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", ERR_FORMAT, "expected the name of a file in this directory, found \"../1.safetensors\""},
    {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", ERR_FORMAT, "name of a file in this directory"},
    {"{\"weight_map\":{\"a\":\"..\"}}", ERR_FORMAT, "name of a file in this directory"},
    {"{\"weight_map\":{\"a\":\"\"}}", ERR_FORMAT, "name of a file in this directory"},
    {"{\"weight_map\":{\"a\":\"sub\"}}", ERR_IO, "expected a regular file, found a directory"},
    {"{\"weight_map\":{\"a\":\"fifo\"}}", ERR_IO, "expected a regular file, found a pipe"},
    {"{\"weight_map\":{\"a\":1}}", ERR_FORMAT, "tensor \"a\": expected a file's name"},
    {"{\"weight_map\":[]}", ERR_FORMAT, "weight_map: expected an object"},
    {"{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"1.safetensors\"}}", ERR_FORMAT, "twice"},
    {"{\"weight_map\":{},\"weight_map\":{}}", ERR_FORMAT, "twice"},
    {"{\"weight_map\":{}}", ERR_FORMAT, "found none"},
    {"{}", ERR_FORMAT, "weight_map"},
    {"[]", ERR_FORMAT, "expected an object"},
    {"{\"weight_map\":{\"a\":\"1.safe", ERR_FORMAT, "model.safetensors.index.json"},
    {"", ERR_FORMAT, "model.safetensors.index.json"},
};

START_TEST(lying_indexes)
{
    mm_text(dir, "config.json", "{}");
    mm_safetensors_raw(mm_path(dir, "1.safetensors"), A, 0, 2);
    mm_safetensors_raw(mm_path(dir, "2.safetensors"), AB, 0, 4);
    ck_assert_int_eq(mkdir(mm_path(dir, "sub"), 0700), 0);
    ck_assert_int_eq(mkfifo(mm_path(dir, "fifo"), 0600), 0);
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        struct err e;
        mm_text(dir, "model.safetensors.index.json", indexes[i].index);
        int rc = try(dir, 0, &e);
        ck_assert_msg(rc == indexes[i].code && strstr(e.msg, indexes[i].part), "%s: expected %s \"%s\", found %s \"%s\"", indexes[i].index,
                      err_name(indexes[i].code), indexes[i].part, err_name(rc), e.msg);
    }
}
END_TEST

START_TEST(wrong_paths)
{
    expect(mm_path(dir, "absent"), ERR_NOTFOUND, "absent");
    expect(dir, ERR_NOTFOUND, "expected model.safetensors");
    mm_text(dir, "notes.txt", "hello");
    expect(mm_path(dir, "notes.txt"), ERR_FORMAT, "expected a GGUF file");
    mm_text(dir, "short.safetensors", "1234567");
    expect(mm_path(dir, "short.safetensors"), ERR_FORMAT, "found a file of 7");
    mm_text(dir, "config.json", "[]");
    mm_safetensors(mm_path(dir, "model.safetensors"), small, SMALL);
    expect(dir, ERR_FORMAT, "config.json");
    mm_text(dir, "config.json", "{");
    expect(dir, ERR_FORMAT, "config.json");
    ck_assert_int_eq(mkdir(mm_path(dir, "d.safetensors"), 0700), 0);
    expect(mm_path(dir, "d.safetensors"), ERR_NOTFOUND, "d.safetensors");
}
END_TEST

/* header_only: what is absent becomes a list, and the rest opens. */
START_TEST(problems)
{
    struct err e;
    off_catalog *c;
    mm_text(dir, "config.json", "{}");
    mm_sharded(dir, small, SMALL, 4);
    ck_assert_int_eq(unlink(mm_path(dir, "model-00001-of-00004.safetensors")), 0);
    ck_assert_int_eq(truncate(mm_path(dir, "model-00002-of-00004.safetensors"), 5), 0);
    struct stat st;
    ck_assert_int_eq(stat(mm_path(dir, "model-00003-of-00004.safetensors"), &st), 0);
    ck_assert_int_eq(truncate(mm_path(dir, "model-00003-of-00004.safetensors"), st.st_size - 1), 0);
    expect(dir, ERR_NOTFOUND, "model-00001-of-00004.safetensors");
    ck_assert_msg(off_catalog_open(&c, dir, 1, &e) == ERR_OK, "%s", e.msg);
    ck_assert_uint_eq(off_catalog_problems(c), 3);
    int seen = 0;
    for (size_t i = 0; i < 3; i++) {
        const char *m = off_catalog_problem(c, i)->msg;
        seen |= strstr(m, "model-00001") && strstr(m, "the index gives 2 tensors") ? 1 : 0;
        seen |= strstr(m, "model-00002") && strstr(m, "found a file of 5") ? 2 : 0;
        seen |= strstr(m, "model-00003") && strstr(m, "lm_head.weight") && strstr(m, "cut short") ? 4 : 0;
    }
    ck_assert_int_eq(seen, 7);
    ck_assert_uint_eq(off_catalog_count(c), 2); /* of the third and fourth file */
    ck_assert_ptr_nonnull(off_catalog_find(c, "lm_head.weight", 14));
    ck_assert_ptr_nonnull(off_catalog_find(c, small[3].name, strlen(small[3].name)));
    ck_assert_ptr_null(off_catalog_find(c, "model.norm.weight", 17));
    ck_assert(off_catalog_file(c, 0)->missing && off_catalog_file(c, 1)->missing && !off_catalog_file(c, 2)->missing);
    off_catalog_close(c);
}
END_TEST

START_TEST(total_size_only_warns)
{
    struct err e;
    size_t n;
    mm_text(dir, "config.json", "{}");
    mm_safetensors_raw(mm_path(dir, "1.safetensors"), A, 0, 2);
    mm_text(dir, "model.safetensors.index.json", "{\"metadata\":{\"total_size\":3},\"weight_map\":{\"a\":\"1.safetensors\"}}");
    FILE *f = fopen(mm_path(dir, "log"), "w+");
    ck_assert_ptr_nonnull(f);
    log_setup(&(struct log_config){.level = LOG_WARN, .fd = fileno(f), .part = "test"});
    ck_assert_int_eq(try(dir, 0, &e), ERR_OK);
    log_setup(&(struct log_config){.level = LOG_INFO, .fd = 2, .part = "test"});
    fclose(f);
    char *text = mm_read(mm_path(dir, "log"), &n);
    ck_assert_ptr_nonnull(strstr(text, "total_size: expected 2"));
    free(text);
}
END_TEST

/* Every length of a file, and every byte changed in several ways: an error or a catalog, never a crash. */
START_TEST(broken_bytes)
{
    const char *path = mm_path(dir, "x.safetensors");
    size_t n, opened = 0;
    struct err e;
    mm_safetensors(path, small, SMALL);
    uint8_t *p = mm_read(path, &n);
    uint64_t header = 8 + (uint64_t)p[0] + 256u * p[1];
    for (size_t k = 0; k < n; k++) {
        ck_assert_int_eq(truncate(path, (off_t)(n - 1 - k)), 0);
        ck_assert_int_ne(try(path, 0, &e), ERR_OK);
        try(path, 1, &e);
    }
    static const uint8_t flips[] = {0x01, 0x80, 0x20, 0xFF};
    for (size_t k = 0; k < header; k++)
        for (size_t i = 0; i < sizeof flips; i++) {
            p[k] ^= flips[i];
            mm_write(path, p, n);
            opened += try(path, 0, &e) == ERR_OK;
            p[k] ^= flips[i];
        }
    ck_assert_uint_gt(opened, 0); /* a letter of a name */
    free(p);
}
END_TEST

/* ---- a failing system ------------------------------------------------------------------------------------- */
static ssize_t slow_pread(int fd, void *p, size_t n, off_t at)
{
    static int turn;
    if (__atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 2) {
        errno = EINTR;
        return -1;
    }
    return pread(fd, p, n < 7 ? n : 7, at);
}

START_TEST(failing_reads)
{
    struct err e;
    mm_text(dir, "config.json", "{}");
    mm_sharded(dir, small, SMALL, 3);
    for (int kind = 0; kind < 2; kind++) {
        int n = 0, rc;
        do {
            bad_io_after(n, kind ? EIO : 0);
            off_io_pread = bad_io_pread;
            rc = try(dir, 0, &e);
            off_io_pread = pread;
            if (rc != ERR_OK) {
                ck_assert_int_eq(rc, ERR_IO);
                ck_assert_msg(strstr(e.msg, "model"), "%s", e.msg);
                ck_assert_msg(strstr(e.msg, kind ? strerror(EIO) : "the file ended"), "%s", e.msg);
            }
            n++;
        } while (rc != ERR_OK && n < 100);
        ck_assert_int_eq(n, 1 + 3 * 2 + 1); /* the index, then length and header of each file; the last round succeeds */
    }
    off_catalog *c;
    off_io_pread = slow_pread; /* interrupted, seven bytes at a time */
    ck_assert_int_eq(off_catalog_open(&c, dir, 0, &e), ERR_OK);
    off_io_pread = pread;
    check_small(c);
    off_catalog_close(c);
}
END_TEST

START_TEST(failing_allocations)
{
    if (!alloc_fail_works()) {
        printf("SKIP failing allocations: a sanitizer owns the allocator\n");
        return;
    }
    mm_text(dir, "config.json", "{\"model_type\": \"llama\"}");
    mm_sharded(dir, small, SMALL, 3);
    mm_safetensors(mm_path(dir, "one.safetensors"), small, SMALL);
    for (int kind = 0; kind < 2; kind++) {
        const char *path = kind ? mm_path(dir, "one.safetensors") : dir;
        int refused = 0;
        for (long n = 0;; n++) {
            struct err e = {0};
            off_catalog *c;
            alloc_fail_at(n);
            int rc = off_catalog_open(&c, path, 0, &e);
            bool failed = alloc_fail_end();
            ck_assert_msg(rc == ERR_NOMEM || rc == ERR_OK, "%ld: %s", n, e.msg); /* OK: a helper thread could not start */
            refused += rc == ERR_NOMEM;
            if (rc == ERR_OK)
                check_small(c);
            off_catalog_close(c);
            if (!failed)
                break;
        }
        ck_assert_int_gt(refused, 10);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("catalog");
    TCase *core = tcase_create("core"), *errors = tcase_create("errors");
    tcase_add_checked_fixture(core, begin, end);
    tcase_add_checked_fixture(errors, begin, end);
    tcase_add_test(core, one_file);
    tcase_add_test(core, sharded);
    tcase_add_test(core, many);
    tcase_add_test(core, total_size_only_warns);
    tcase_add_test(core, problems);
    tcase_add_test(errors, lying_headers);
    tcase_add_test(errors, lying_indexes);
    tcase_add_test(errors, wrong_paths);
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
