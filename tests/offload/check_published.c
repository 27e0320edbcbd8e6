/* The catalog over checkpoints as families publish them, over the vocabularies of real GGUF files, and over the sparse Kimi K3 set
 * with everything that can be wrong with it. All of it lies beside the repository and may be absent. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "offload/catalog.h"
#include "tests/support/make_model.h"

#define SHARED "../shared/data/"
#define SPARSE "../shared/tools/make_sparse_k3.py"

static char *dir;
static void begin(void) { dir = mm_tmpdir(); }
static void end(void) { mm_rmdir(dir); }

static bool skip(const char *path)
{
    if (access(path, R_OK) == 0)
        return false;
    printf("SKIP %s is not there\n", path);
    fflush(stdout);
    return true;
}

/* ---- core ------------------------------------------------------------------------------------------------- */
START_TEST(fixtures)
{
    if (skip(SHARED "models"))
        return;
    DIR *d = opendir(SHARED "models");
    int n = 0;
    for (struct dirent *x; d && (x = readdir(d));) {
        char path[512];
        struct err e;
        off_catalog *c;
        snprintf(path, sizeof path, SHARED "models/%.200s/config.json", x->d_name);
        if (x->d_name[0] == '.' || access(path, R_OK) != 0)
            continue;
        path[strlen(path) - strlen("/config.json")] = 0;
        ck_assert_msg(off_catalog_open(&c, path, 0, &e) == ERR_OK, "%s", e.msg);
        ck_assert_uint_gt(off_catalog_count(c), 0);
        ck_assert(json_is(json_get(off_catalog_config(c), "model_type"), JSON_STRING));
        off_catalog_close(c);
        n++;
    }
    if (d)
        closedir(d);
    ck_assert_int_ge(n, 10);
}
END_TEST

START_TEST(vocabularies)
{
    static const struct { const char *name, *model; uint64_t tokens; } files[] = {
        {"smollm2", "gpt2", 49152}, {"llama3", "gpt2", 128256}, {"qwen2.5", "gpt2", 151936}, {"gemma3", "llama", 262144}, {"llama2", "llama", 32000}};
    if (skip(SHARED "tokenizers/gguf"))
        return;
    for (size_t i = 0; i < 5; i++) {
        char cmd[1024];
        struct err e;
        off_catalog *c;
        struct off_array a;
        snprintf(cmd, sizeof cmd, "gzip -dc " SHARED "tokenizers/gguf/%s.vocab.gguf.gz > %s/x.gguf", files[i].name, dir);
        ck_assert_int_eq(system(cmd), 0);
        ck_assert_msg(off_catalog_open(&c, mm_path(dir, "x.gguf"), 0, &e) == ERR_OK, "%s: %s", files[i].name, e.msg);
        ck_assert(json_eq(json_get(off_catalog_config(c), "tokenizer.ggml.model"), files[i].model));
        ck_assert(off_gguf_array(c, "tokenizer.ggml.tokens", &a));
        ck_assert_uint_eq(a.n, files[i].tokens);
        off_catalog_close(c);
    }
}
END_TEST

/* ---- the sparse set --------------------------------------------------------------------------------------- */
#define T1 "language_model.model.layers.1."
#define F2 "model-00002-of-000005.safetensors"
#define F4 "model-00004-of-000005.safetensors"
static const struct { const char *name; int code; const char *parts[3]; } breaks[] = {
    {"missing-shard", ERR_NOTFOUND, {F2, "the index gives 5404 tensors"}},
    {"truncated-shard", ERR_FORMAT, {F2, T1 "block_sparse_moe.experts.99.w3.weight_scale", "cut short"}},
    {"overlap", ERR_FORMAT, {F2, T1 "self_attn.q_proj.weight", "share bytes"}},
    {"duplicate", ERR_FORMAT, {F4 ": tensor \"" T1 "input_layernorm.weight", "expected in " F2}},
    {"unlisted-tensor", ERR_FORMAT, {F2, T1 "input_layernorm.weight", "found no such name in its header"}},
    {"long-header", ERR_FORMAT, {F2, "found a length of 1099511627776"}},
    {"bad-utf8", ERR_FORMAT, {F2, "expected valid UTF-8, found byte 0xff"}},
    {"huge-header", ERR_FORMAT, {F2, "found a length of 9223372036854775807"}},
    {"bad-json", ERR_FORMAT, {F2, "header: line 1"}},
    {"duplicate-key", ERR_FORMAT, {F2, T1 "input_layernorm.weight", "found twice"}},
    {"offset-overflow", ERR_FORMAT, {F2, T1 "input_layernorm.weight", "[18446744073709551608, 14328]"}},
    {"negative-offset", ERR_FORMAT, {F2, T1 "input_layernorm.weight", "found -8"}},
    {"gap", ERR_FORMAT, {F2, T1 "self_attn.q_proj.weight", "8 bytes before it belong to no tensor"}},
    {"trailing-bytes", ERR_FORMAT, {F2, "4096 bytes follow it"}},
    {"wrong-shard", ERR_FORMAT, {F2 ": tensor \"" T1 "input_layernorm.weight", "expected in " F4}},
    {"escape-path", ERR_FORMAT, {"model.safetensors.index.json", T1 "input_layernorm.weight", "\"../" F2 "\""}},
    {"short-total", ERR_OK, {NULL}}, /* a warning: check_catalog reads it */
};

enum { BREAKS = sizeof breaks / sizeof *breaks };

START_TEST(sparse_broken)
{
    struct buf cmd;
    if (skip(SPARSE))
        return;
    buf_init(&cmd, 4096);
    buf_printf(&cmd, "python3 tests/support/sparse_breaks.py " SPARSE " %s", dir);
    for (size_t i = 0; i < BREAKS; i++)
        buf_printf(&cmd, " %s", breaks[i].name);
    ck_assert_int_eq(system(cmd.data), 0);
    buf_free(&cmd);
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
    for (size_t i = 0; i < BREAKS; i++) {
        struct err e = {0};
        off_catalog *c;
        int rc = off_catalog_open(&c, mm_path(dir, breaks[i].name), 0, &e);
        ck_assert_msg(rc == breaks[i].code, "%s: %s", breaks[i].name, e.msg);
        for (int k = 0; k < 3 && breaks[i].parts[k]; k++)
            ck_assert_msg(strstr(e.msg, breaks[i].parts[k]), "%s: expected \"%s\", found \"%s\"", breaks[i].name, breaks[i].parts[k], e.msg);
        off_catalog_close(c);
    }
}
END_TEST

START_TEST(sparse_whole)
{
    struct err e;
    off_catalog *c;
    if (skip(SPARSE))
        return;
    char cmd[1024];
    snprintf(cmd, sizeof cmd, "python3 " SPARSE " %s >/dev/null", dir);
    ck_assert_int_eq(system(cmd), 0);
    uint64_t t0 = clock_now_ns();
    ck_assert_msg(off_catalog_open(&c, dir, 0, &e) == ERR_OK, "%s", e.msg);
    printf("497,220 tensors opened in %.3f s\n", (double)(clock_now_ns() - t0) / 1e9);
    ck_assert_uint_eq(off_catalog_count(c), 497220);
    ck_assert_uint_eq(off_catalog_files(c), 96);
    ck_assert_uint_eq(off_catalog_bytes(c), 1560860324864ull);
    ck_assert_uint_lt(off_catalog_memory(c), 150u << 20);
    const char *name = "language_model.model.layers.92.block_sparse_moe.experts.7.w1.weight_packed";
    const struct off_tensor *t = off_catalog_find(c, name, strlen(name));
    ck_assert(t && t->type == KRN_U8 && t->n_dims == 2);
    off_catalog_close(c);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("published");
    TCase *core = tcase_create("core"), *sparse = tcase_create("sparse");
    tcase_add_checked_fixture(core, begin, end);
    tcase_add_checked_fixture(sparse, begin, end);
    tcase_add_test(core, fixtures);
    tcase_add_test(core, vocabularies);
    tcase_set_timeout(sparse, 240);
    tcase_add_test(sparse, sparse_whole);
    tcase_add_test(sparse, sparse_broken);
    suite_add_tcase(s, core);
    suite_add_tcase(s, sparse);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
