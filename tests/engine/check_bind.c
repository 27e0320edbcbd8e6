/* Names, alternatives, views, forms and shapes on small files: which bytes a logical tensor is. */
#include <string.h>

#include "engine/bind.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;
static struct arena a;
static char *dir;
static off_catalog *cat;
static struct eng_env env;
static struct eng_binder b;
static struct eng_report rep;

static const char head[] = "{\"sheet\":\"t\",\"prefix\":{\"hf\":[\"model.\",\"text.\"],\"gguf\":[\"\"]},\"anchor\":{\"hf\":\"anchor\",\"gguf\":\"anchor\"},"
                           "\"block_prefix\":{\"hf\":\"{P}layers.{L}.\",\"gguf\":\"blk.{L}.\"},\"params\":{\"heads\":\"2\",\"nope\":\"4\",\"vd\":\"2\",\"n\":\"3\",\"layers\":\"1\"},\"tensors\":{";

static void open_model(const struct mm_tensor *t, size_t n, const char *tensors, bool report)
{
    struct json *sheet;
    char *text;
    arena_init(&a, 16 << 20);
    dir = mm_tmpdir();
    mm_text(dir, "config.json", "{\"model_type\":\"t\"}");
    mm_safetensors(mm_path(dir, "model.safetensors"), t, n);
    OK(off_catalog_open(&cat, dir, 0, &e));
    text = arena_printf(&a, "%s%s}}", head, tensors);
    OK(json_parse(&sheet, text, strlen(text), &json_strict, &a, &e));
    OK(eng_env_open(&env, "t", sheet, cat, &a, &e));
    eng_report_init(&rep);
    OK(eng_binder_open(&b, &env, report ? &rep : NULL, &e));
    eng_env_layer(&env, 0);
}

static void close_model(void)
{
    eng_binder_close(&b);
    eng_report_free(&rep);
    off_catalog_close(cat);
    mm_rmdir(dir);
    arena_free(&a);
}

static uint64_t at(const char *name) { return off_catalog_find(cat, name, strlen(name))->offset; }

static void span_is(const struct off_span *s, uint64_t offset, uint64_t row_bytes, uint64_t n_rows, uint64_t row_stride, uint64_t n_outer, uint64_t outer_stride)
{
    ck_assert_uint_eq(s->offset, offset);
    ck_assert_uint_eq(s->row_bytes, row_bytes);
    ck_assert_uint_eq(s->n_rows, n_rows);
    ck_assert(n_rows == 1 || s->row_stride == row_stride);
    ck_assert_uint_eq(s->n_outer, n_outer);
    ck_assert(n_outer == 1 || s->outer_stride == outer_stride);
}

#define ANCHOR {"model.anchor.weight", KRN_BF16, 1, {2}, NULL}
#define L0 "model.layers.0."

START_TEST(views)
{
    static const struct mm_tensor t[] = {
        ANCHOR, {L0 "qkv.weight", KRN_F32, 2, {12, 8}, NULL}, {L0 "qkv.bias", KRN_F32, 1, {12}, NULL}, {L0 "kvb.weight", KRN_BF16, 2, {12, 8}, NULL},
        {L0 "gu.weight", KRN_BF16, 2, {12, 8}, NULL}, {L0 "kb.weight", KRN_BF16, 3, {2, 8, 4}, NULL}, {L0 "A_log", KRN_F32, 4, {1, 1, 4, 1}, NULL},
        {L0 "conv.weight", KRN_F32, 3, {6, 1, 4}, NULL}, {L0 "cube.weight", KRN_BF16, 4, {2, 3, 4, 8}, NULL}};
    struct eng_bound w;
    open_model(t, sizeof t / sizeof *t,
               "\"k\":[\"4, 8\",{\"name\":\"{B}qkv\",\"view\":\"r c ; r=4:8\",\"bias_view\":\"r ; r=4:8\"},null,{\"bias\":\"auto\",\"split\":\"rows\"}],"
               "\"k_up\":[\"heads, nope, 8\",{\"name\":\"{B}kvb\",\"view\":\"(h:heads d) r -> h d r ; d=0:nope\"},null,{\"split\":\"heads\"}],"
               "\"v_up\":[\"heads, vd, 8\",{\"name\":\"{B}kvb\",\"view\":\"(h:heads d) r -> h d r ; d=nope:nope+vd\"},null],"
               "\"odd\":[\"6, 8\",{\"name\":\"{B}gu\",\"view\":\"(i two:2) c ; two=1\"},null],"
               "\"turned\":[\"heads, 4, 8\",{\"name\":\"{B}kb\",\"view\":\"h r d -> h d r\"},null],"
               "\"A\":[\"2\",{\"name\":\"{B}A_log\",\"view\":\"h ; h=1:3\"},null],"
               "\"conv\":[\"6, 4\",\"{B}conv\",null],"
               "\"some\":[\"2, 2, 2, 8\",{\"name\":\"{B}cube\",\"view\":\"x y z c ; y=1:3, z=0:2\"},null],"
               "\"cut\":[\"2, 4, 3\",{\"name\":\"{B}kb\",\"view\":\"h (x:2 y) d -> (x d) (h y)\"},null]",
               false);
    OK(eng_bind(&b, "k", &w, &e));
    span_is(b.tensors[w.first].spans, at(L0 "qkv.weight") + 4 * 32, 4 * 32, 1, 0, 1, 0 + 0) ;
    ck_assert_uint_eq(b.weights[w.first].rows, 4);
    close_model();
}
END_TEST
