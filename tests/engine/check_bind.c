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
               "\"cut\":[\"8, 8\",{\"name\":\"{B}kb\",\"view\":\"h (x:2 y) d -> (x d) (h y)\"},null]",
               false);
    OK(eng_bind(&b, "k", &w, &e)); /* rows 4..7 of the fused matrix, and of its bias */
    const struct eng_tensor *x = &b.tensors[w.first];
    span_is(x->spans, at(L0 "qkv.weight") + 4 * 32, 32, 4, 32, 1, 0);
    ck_assert(x->n_spans == 1 && x->split == ENG_SPLIT_ROWS && x->layer == 0 && b.weights[w.first].rows == 4 && b.weights[w.first].cols == 8);
    ck_assert_str_eq(b.tensors[w.bias].name, "k.bias");
    span_is(b.tensors[w.bias].spans, at(L0 "qkv.bias") + 16, 16, 1, 0, 1, 0);
    OK(eng_bind(&b, "k_up", &w, &e)); /* of each head's 6 rows the first 4 */
    span_is(b.tensors[w.first].spans, at(L0 "kvb.weight"), 16, 4, 16, 2, 6 * 16);
    ck_assert(w.n_dims == 3 && w.dims[0] == 2 && w.dims[1] == 4 && w.dims[2] == 8 && b.weights[w.first].rows == 8);
    OK(eng_bind(&b, "v_up", &w, &e));
    span_is(b.tensors[w.first].spans, at(L0 "kvb.weight") + 4 * 16, 16, 2, 16, 2, 6 * 16);
    OK(eng_bind(&b, "odd", &w, &e)); /* every other row */
    span_is(b.tensors[w.first].spans, at(L0 "gu.weight") + 16, 16, 6, 32, 1, 0);
    OK(eng_bind(&b, "turned", &w, &e)); /* bytes as they lie, and a mark */
    ck_assert(b.tensors[w.first].transposed && b.weights[w.first].rows == 16 && b.weights[w.first].cols == 4);
    span_is(b.tensors[w.first].spans, at(L0 "kb.weight"), 8, 16, 8, 1, 0);
    OK(eng_bind(&b, "A", &w, &e)); /* axes of one entry do not count */
    span_is(b.tensors[w.first].spans, at(L0 "A_log") + 4, 8, 1, 0, 1, 0);
    OK(eng_bind(&b, "conv", &w, &e));
    ck_assert(b.weights[w.first].rows == 6 && b.weights[w.first].cols == 4);
    OK(eng_bind(&b, "some", &w, &e)); /* three levels: two spans of [2][2] rows */
    x = &b.tensors[w.first];
    ck_assert_uint_eq(x->n_spans, 2);
    span_is(&x->spans[0], at(L0 "cube.weight") + 4 * 16, 16, 2, 16, 2, 4 * 16);
    span_is(&x->spans[1], at(L0 "cube.weight") + (12 + 4) * 16, 16, 2, 16, 2, 4 * 16);
    FAILS(ERR_UNSUPPORTED, "last axis is not contiguous", eng_bind(&b, "cut", &w, &e));
    FAILS(ERR_NOTFOUND, "no tensor `@nobody`", eng_bind(&b, "nobody", &w, &e));
    close_model();
}
END_TEST

START_TEST(choices)
{
    static const struct mm_tensor t[] = {
        ANCHOR, {L0 "second.weight", KRN_BF16, 1, {4}, NULL}, {"model.embed.weight", KRN_BF16, 2, {4, 2}, NULL}, {L0 "lin.weight", KRN_BF16, 2, {4, 2}, NULL},
        {"model.layers.1.draft.weight", KRN_BF16, 1, {2}, NULL}, {"model.layers.0.stray", KRN_F32, 1, {2}, NULL}, {"eye.weight", KRN_F32, 1, {2}, NULL}};
    struct eng_bound w, v;
    open_model(t, sizeof t / sizeof *t,
               "\"alt\":[\"4\",[\"{B}first\",{\"name\":\"{B}second\",\"when\":\"heads == 3\"},\"{B}second\"],null],"
               "\"opt\":[\"4\",\"{B}absent\",null,{\"optional\":true}],\"embed\":[\"4, 2\",\"{P}embed\",null],\"head\":[\"4, 2\",\"lm_head\",null,{\"or\":\"embed\"}],"
               "\"gone\":[\"heads*2, 2\",[\"{B}one\",\"{B}two\"],null],\"lin\":[\"4, 2\",\"{B}lin\",null,{\"bias\":\"auto\"}],\"mapped\":[\"4\",{\"name\":\"{B}second\",\"map\":\"log(-v)\"},null]"
               "},\"skip\":{\"drafts\":[\"{P}layers.{>=layers}.*\"],\"eyes\":[\"eye.*\"]",
               true);
    OK(eng_bind(&b, "alt", &w, &e));
    ck_assert_str_eq(b.tensors[w.first].file_name, L0 "second.weight");
    OK(eng_bind(&b, "opt", &w, &e));
    ck_assert(w.absent);
    OK(eng_bind(&b, "embed", &w, &e));
    OK(eng_bind(&b, "head", &v, &e)); /* tied: the very same tensor */
    ck_assert(v.first == w.first && b.tensors[v.first].layer == KRN_NO_LAYER);
    OK(eng_bind(&b, "lin", &w, &e));
    ck_assert_uint_eq(w.bias, KRN_NO_WEIGHT);
    OK(eng_bind(&b, "mapped", &w, &e));
    ck_assert_str_eq(b.tensors[w.first].map, "log(-v)");
    ck_assert_uint_eq(rep.n, 0);
    OK(eng_bind(&b, "gone", &w, &e)); /* noted, and binding goes on with the shape it should have */
    ck_assert(rep.total[ENG_ISSUE_MISSING] == 1 && w.n_dims == 2 && w.dims[0] == 4);
    ck_assert_str_eq(rep.v[0].text, "missing tensor (@gone, layer 0), expected [4, 2]: none of ['model.layers.0.one', 'model.layers.0.two'] is in the files");
    OK(eng_bind_rest(&b, &e));
    ck_assert(rep.bound == 3 && rep.excused == 2 && rep.total[ENG_ISSUE_UNKNOWN] == 2 && rep.n_excuses == 2); /* the anchor was only looked at */
    ck_assert_str_eq(rep.excuse[0].reason, "drafts");
    close_model();
}
END_TEST

START_TEST(forms)
{
    static const struct mm_tensor t[] = {
        ANCHOR, {L0 "f8.weight", KRN_F8_E4M3, 2, {130, 300}, NULL}, {L0 "f8.weight_scale_inv", KRN_F32, 2, {2, 3}, NULL}, {L0 "row.weight", KRN_F8_E4M3, 2, {4, 8}, NULL},
        {L0 "row.weight_scale", KRN_F32, 2, {4, 1}, NULL}, {L0 "i4.weight_packed", KRN_I32, 2, {4, 8}, NULL}, {L0 "i4.weight_scale", KRN_BF16, 2, {4, 2}, NULL},
        {L0 "i4.weight_shape", KRN_I32, 1, {2}, NULL}, {L0 "m4.weight_packed", KRN_U8, 2, {4, 32}, NULL}, {L0 "m4.weight_scale", KRN_U8, 2, {4, 2}, NULL},
        {L0 "bad.weight_packed", KRN_U8, 2, {4, 32}, NULL}, {L0 "bad.weight_scale", KRN_U8, 2, {4, 1}, NULL}, {L0 "asym.weight_packed", KRN_I32, 2, {4, 8}, NULL},
        {L0 "asym.weight_scale", KRN_BF16, 2, {4, 2}, NULL}, {L0 "asym.weight_zero_point", KRN_I32, 2, {1, 2}, NULL}, {L0 "grid.weight", KRN_F8_E4M3, 2, {130, 300}, NULL},
        {L0 "grid.weight_scale_inv", KRN_F32, 2, {2, 2}, NULL}};
    struct eng_bound w;
    open_model(t, sizeof t / sizeof *t,
               "\"f8\":[\"130, 300\",\"{B}f8\",null],\"row\":[\"4, 8\",\"{B}row\",null],\"i4\":[\"4, 64\",\"{B}i4\",null],\"m4\":[\"4, 64\",\"{B}m4\",null],"
               "\"bad\":[\"4, 64\",\"{B}bad\",null],\"asym\":[\"4, 64\",\"{B}asym\",null],\"grid\":[\"130, 300\",\"{B}grid\",null]", true);
    static const char *const names[] = {"f8", "row", "i4", "m4"}, *const kinds[] = {"fp8-block", "fp8-row", "int4-packed", "mxfp4"};
    for (int i = 0; i < 4; i++) {
        OK(eng_bind(&b, names[i], &w, &e));
        const struct eng_tensor *x = &b.tensors[w.first];
        ck_assert_str_eq(x->form, kinds[i]);
        ck_assert(x->scales != KRN_NO_WEIGHT && strstr(b.tensors[x->scales].file_name, "scale") && b.tensors[x->scales].n_spans == 1);
        ck_assert(b.weights[w.first].rows == w.dims[0] && b.weights[w.first].cols == w.dims[1]);
    }
    ck_assert(rep.n == 0 && b.n_seen == 9);
    OK(eng_bind(&b, "bad", &w, &e));
    OK(eng_bind(&b, "asym", &w, &e));
    OK(eng_bind(&b, "grid", &w, &e));
    ck_assert_uint_eq(rep.n, 3);
    ck_assert(strstr(rep.v[0].text, "bad.weight_scale") && strstr(rep.v[0].text, "expected [4, 2] for mxfp4, found [4, 1]"));
    ck_assert(strstr(rep.v[1].text, "asym.weight_zero_point"));
    ck_assert(strstr(rep.v[2].text, "expected [2, 3] for fp8-block, found [2, 2]"));
    close_model();
}
END_TEST

START_TEST(experts)
{
    static const struct mm_tensor t[] = {
        ANCHOR, {L0 "e.0.up.weight", KRN_BF16, 2, {4, 8}, NULL}, {L0 "e.1.up.weight", KRN_BF16, 2, {4, 8}, NULL}, {L0 "e.2.up.weight", KRN_BF16, 2, {4, 8}, NULL},
        {L0 "p.0.weight_packed", KRN_U8, 2, {4, 16}, NULL}, {L0 "p.0.weight_scale", KRN_U8, 2, {4, 1}, NULL}, {L0 "p.1.weight_packed", KRN_U8, 2, {4, 16}, NULL},
        {L0 "p.1.weight_scale", KRN_U8, 2, {4, 1}, NULL}, {L0 "p.2.weight_packed", KRN_U8, 2, {4, 16}, NULL}, {L0 "p.2.weight_scale", KRN_U8, 2, {4, 1}, NULL},
        {L0 "stack", KRN_BF16, 3, {3, 8, 8}, NULL}, {L0 "h.0.weight", KRN_BF16, 2, {4, 8}, NULL}, {L0 "h.2.weight", KRN_BF16, 2, {4, 8}, NULL},
        {L0 "d.0.weight", KRN_BF16, 2, {4, 8}, NULL}, {L0 "d.1.weight", KRN_F16, 2, {4, 8}, NULL}, {L0 "d.2.weight", KRN_BF16, 2, {8, 4}, NULL}};
    struct eng_bound w;
    open_model(t, sizeof t / sizeof *t,
               "\"up\":[\"n, 4, 8\",\"{B}e.{E}.up\",null,{\"experts\":\"n\"}],\"p\":[\"n, 4, 32\",\"{B}p.{E}\",null,{\"experts\":\"n\"}],"
               "\"gate\":[\"n, 4, 8\",{\"name\":\"{B}stack\",\"view\":\"e (two:2 i) c ; two=1\"},null,{\"experts\":\"n\"}],"
               "\"holes\":[\"n, 4, 8\",\"{B}h.{E}\",null,{\"experts\":\"n\"}],\"mixed\":[\"n, 4, 8\",\"{B}d.{E}\",null,{\"experts\":\"n\"}]", true);
    OK(eng_bind(&b, "up", &w, &e));
    ck_assert(w.n == 3 && w.n_dims == 3 && !strcmp(b.tensors[w.first + 2].name, "up[2]") && b.tensors[w.first + 2].n_dims == 2);
    span_is(b.tensors[w.first + 1].spans, at(L0 "e.1.up.weight"), 16, 4, 16, 1, 0);
    OK(eng_bind(&b, "p", &w, &e));
    for (uint32_t i = 0; i < 3; i++) {
        const struct eng_tensor *x = &b.tensors[w.first + i], *s = &b.tensors[x->scales];
        ck_assert(x->scales == w.first + 3 + i && !strncmp(s->file_name, x->file_name, strlen(L0 "p.0")) && b.weights[w.first + i].cols == 32);
    }
    OK(eng_bind(&b, "gate", &w, &e)); /* the second half of each expert's rows */
    span_is(b.tensors[w.first + 2].spans, at(L0 "stack") + (2 * 8 + 4) * 16, 16, 4, 16, 1, 0);
    ck_assert_uint_eq(rep.n, 0);
    ck_assert_uint_eq(b.n_seen, 10);
    OK(eng_bind(&b, "holes", &w, &e));
    ck_assert(rep.n == 1 && rep.total[ENG_ISSUE_MISSING] == 1 && strstr(rep.v[0].text, "missing tensor model.layers.0.h.1 (@holes, layer 0, expert 1 of 3)"));
    OK(eng_bind(&b, "mixed", &w, &e));
    ck_assert(rep.total[ENG_ISSUE_DTYPE] == 2 && rep.total[ENG_ISSUE_SHAPE] == 1);
    close_model();
}
END_TEST

START_TEST(blocks)
{
    static const struct mm_tensor t[] = {{"anchor.weight", KRN_F32, 1, {32}, NULL}, {"blk.0.w.weight", KRN_Q8_0, 2, {6, 64}, NULL}};
    static const struct mm_kv kv[] = {MM_KV_STR("general.architecture", "t")};
    struct json *sheet;
    struct eng_bound w;
    char *text;
    arena_init(&a, 16 << 20);
    dir = mm_tmpdir();
    mm_gguf(mm_path(dir, "m.gguf"), kv, 1, t, 2);
    OK(off_catalog_open(&cat, mm_path(dir, "m.gguf"), 0, &e));
    text = arena_printf(&a, "%s%s}}", head,
                        "\"rows\":[\"2, 64\",null,{\"name\":\"{B}w\",\"view\":\"r c ; r=2:4\"}],\"right\":[\"6, 32\",null,{\"name\":\"{B}w\",\"view\":\"r c ; c=32:64\"}],"
                        "\"inside\":[\"6, 32\",null,{\"name\":\"{B}w\",\"view\":\"r c ; c=16:48\"}],\"none\":[\"6, 64\",\"x\",null]");
    OK(json_parse(&sheet, text, strlen(text), &json_strict, &a, &e));
    OK(eng_env_open(&env, "t", sheet, cat, &a, &e));
    OK(eng_binder_open(&b, &env, NULL, &e));
    eng_report_init(&rep);
    eng_env_layer(&env, 0);
    OK(eng_bind(&b, "rows", &w, &e));
    span_is(b.tensors[w.first].spans, at("blk.0.w.weight") + 2 * 68, 68, 2, 68, 1, 0);
    OK(eng_bind(&b, "right", &w, &e)); /* at a block's border */
    span_is(b.tensors[w.first].spans, at("blk.0.w.weight") + 34, 34, 6, 68, 1, 0);
    FAILS(ERR_UNSUPPORTED, "cuts inside a block of 32 values of Q8_0", eng_bind(&b, "inside", &w, &e));
    FAILS(ERR_FORMAT, "the sheet knows no name for it in GGUF files", eng_bind(&b, "none", &w, &e));
    close_model();
}
END_TEST

SUITE("engine", "bind", views, choices, forms, experts, blocks)
