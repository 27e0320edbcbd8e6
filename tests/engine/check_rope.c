/* Known answers of each scaling kind: where YaRN's ramp begins and ends for three published models, magnitudes, lists, refusals. */
#include <math.h>
#include <string.h>

#include "engine/rope.h"
#include "tests/support/suite.h"

static struct err e;
static struct arena a;
static uint32_t ctx_use /* 0: the model's */, ctx_switch;
static const float *factors_far;

static int build(const char *scaling, uint32_t dim, double theta, uint32_t ctx, const float *factors, struct krn_rope_table *t)
{
    struct json *j = NULL;
    struct eng_value v = {.type = ENG_V_NULL};
    arena_init(&a, 1 << 20);
    if (scaling) {
        OK(json_parse(&j, scaling, strlen(scaling), &json_strict, &a, &e));
        OK(eng_v_from_json(j, &a, &v, &e));
    }
    struct eng_rope_spec s = {.dim = dim, .theta = theta, .scaling = &v, .ctx = ctx, .ctx_use = ctx_use ? ctx_use : ctx, .factors = factors, .factors_far = factors_far};
    return eng_rope_build(&s, NULL, &a, t, &ctx_switch, &e);
}

static double plain(uint32_t j, uint32_t dim, double theta) { return pow(theta, -2.0 * j / dim); }
static bool is(double x, double y) { return fabs(x - y) <= 1e-12 * fabs(y); }

START_TEST(core)
{
    struct krn_rope_table t;
    OK(build(NULL, 8, 10000, 64, NULL, &t));
    ck_assert(t.n_freq == 4 && is(t.inv_freq[0], 1) && is(t.inv_freq[1], 0.1) && is(t.inv_freq[2], 0.01) && is(t.inv_freq[3], 0.001) && is((double)t.mscale, 1));
    arena_free(&a);
    OK(build("{\"type\":\"linear\",\"factor\":4}", 8, 10000, 64, NULL, &t));
    ck_assert(is(t.inv_freq[0], 0.25) && is(t.inv_freq[3], 0.00025));
    arena_free(&a);
    OK(build("{\"rope_type\":\"dynamic\",\"factor\":4.0}", 8, 10000, 64, NULL, &t)); /* as plain up to the context */
    ck_assert(is(t.inv_freq[1], 0.1));
    arena_free(&a);
    static const float factors[] = {1, 2, 4, 8};
    OK(build("{\"rope_type\":\"none\"}", 8, 10000, 64, factors, &t));
    ck_assert(is(t.inv_freq[0], 1) && is(t.inv_freq[1], 0.05) && is(t.inv_freq[3], 0.001 / 8));
    arena_free(&a);
}
END_TEST

START_TEST(yarn)
{
    static const struct { const char *s; double theta; uint32_t low, high; double factor, mscale; } known[] = {
        {"{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0}", 1e4, 10, 23, 40, 1},
        {"{\"type\":\"yarn\",\"factor\":32,\"original_max_position_embeddings\":4096,\"beta_fast\":1,\"beta_slow\":1}", 5e4, 19, 20, 32, 1.3465735902799727},
        {"{\"rope_type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,\"attention_factor\":0.5}", 1e4, 10, 23, 40, 0.5}};
    struct krn_rope_table t;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        OK(build(known[i].s, 64, known[i].theta, 163840, NULL, &t));
        for (uint32_t j = 0; j < 32; j++) {
            double f = plain(j, 64, known[i].theta);
            if (j <= known[i].low)
                ck_assert_msg(is(t.inv_freq[j], f), "case %zu pair %u is scaled", i, j);
            else if (j >= known[i].high)
                ck_assert_msg(is(t.inv_freq[j], f / known[i].factor), "case %zu pair %u is not scaled", i, j);
            else
                ck_assert(t.inv_freq[j] < f && t.inv_freq[j] > f / known[i].factor);
        }
        ck_assert_msg(fabs((double)t.mscale - known[i].mscale) < 1e-6, "case %zu: %g", i, (double)t.mscale);
        arena_free(&a);
    }
    /* not truncated: the ramp from 8.093 to 17.398 */
    OK(build("{\"rope_type\":\"yarn\",\"factor\":32.0,\"original_max_position_embeddings\":4096,\"beta_fast\":32.0,\"beta_slow\":1.0,\"truncate\":false}", 64, 15e4, 131072, NULL, &t));
    double f9 = plain(9, 64, 15e4), ramp = (9 - 8.0928) / (17.3980 - 8.0928);
    ck_assert(is(t.inv_freq[8], plain(8, 64, 15e4)) && is(t.inv_freq[18], plain(18, 64, 15e4) / 32));
    ck_assert(fabs(t.inv_freq[9] / (f9 / 32 * ramp + f9 * (1 - ramp)) - 1) < 1e-4);
    ck_assert(fabs((double)t.mscale - 1.3466) < 1e-4);
    arena_free(&a);
    /* mscale 1.2 over mscale_all_dim 0.8 */
    OK(build("{\"type\":\"yarn\",\"factor\":16,\"original_max_position_embeddings\":64,\"mscale\":1.2,\"mscale_all_dim\":0.8}", 16, 1e4, 2048, NULL, &t));
    ck_assert(fabs((double)t.mscale - (0.12 * log(16) + 1) / (0.08 * log(16) + 1)) < 1e-6);
    arena_free(&a);
}
END_TEST

START_TEST(longrope)
{
    static const char s[] = "{\"type\":\"longrope\",\"short_factor\":[1,2],\"long_factor\":[4,8],\"original_max_position_embeddings\":1024}";
    struct krn_rope_table t;
    OK(build(s, 4, 10000, 4096, NULL, &t)); /* both lists; the magnitude is of the model's context */
    ck_assert(is(t.inv_freq[0], 1) && is(t.inv_freq[1], 0.005) && is(t.inv_freq_far[0], 0.25) && is(t.inv_freq_far[1], 0.01 / 8));
    ck_assert(fabs((double)t.mscale - sqrt(1 + log(4) / log(1024))) < 1e-6 && ctx_switch == 1024);
    arena_free(&a);
    OK(build(s, 4, 10000, 1024, NULL, &t));
    ck_assert(is(t.inv_freq[0], 1) && is(t.inv_freq[1], 0.005) && is((double)t.mscale, 1));
    arena_free(&a);
    OK(build("{\"type\":\"linear\",\"factor\":4}", 4, 10000, 1024, NULL, &t));
    ck_assert(t.inv_freq_far == NULL && ctx_switch == 0);
    arena_free(&a);
    /* the context in force changes nothing; early files call the kind yarn */
    static const char early[] = "{\"type\":\"yarn\",\"short_factor\":[1,2],\"long_factor\":[4,8],\"original_max_position_embeddings\":1024}";
    for (ctx_use = 1024; ctx_use <= 1025; ctx_use++) {
        OK(build(ctx_use == 1024 ? early : s, 4, 10000, 4096, NULL, &t));
        ck_assert(is(t.inv_freq[1], 0.005) && is(t.inv_freq_far[1], 0.01 / 8) && fabs((double)t.mscale - sqrt(1 + log(4) / log(1024))) < 1e-6);
        ck_assert_uint_eq(ctx_switch, 1024);
        arena_free(&a);
    }
    ctx_use = 0;
    /* a GGUF file: lists as tensors, the magnitude in the metadata */
    static const float list[] = {1, 2}, far[] = {4, 8};
    static const char in_file[] = "{\"rope_type\":\"longrope\",\"attention_factor\":1.25,\"original_max_position_embeddings\":1024}";
    factors_far = far;
    OK(build(in_file, 4, 10000, 4096, list, &t));
    ck_assert(is(t.inv_freq[0], 1) && is(t.inv_freq[1], 0.005) && is(t.inv_freq_far[0], 0.25) && is(t.inv_freq_far[1], 0.01 / 8) && is((double)t.mscale, 1.25));
    arena_free(&a);
    factors_far = NULL;
    FAILS(ERR_FORMAT, "no list for contexts beyond 1024 tokens (asked: 4096)", build(in_file, 4, 10000, 4096, list, &t));
    arena_free(&a);
    /* dynamic: as plain up to the model's context, refused beyond it */
    ctx_use = 4097;
    FAILS(ERR_UNSUPPORTED, "`dynamic` beyond the context of 4096 tokens", build("{\"type\":\"dynamic\",\"factor\":2}", 4, 10000, 4096, NULL, &t));
    arena_free(&a);
    ctx_use = 0;
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *s; uint32_t dim; double theta; int code; const char *says; } bad[] = {
        {"{\"rope_type\":\"spiral\"}", 8, 1e4, ERR_UNSUPPORTED, "kind `spiral` (known: default"},
        {"{\"rope_type\":\"linear\"}", 8, 1e4, ERR_FORMAT, "`factor` is missing"},
        {"{\"factor\":2}", 8, 1e4, ERR_FORMAT, "a factor and no rope_type"},
        {"{\"rope_type\":\"linear\",\"factor\":\"2\"}", 8, 1e4, ERR_FORMAT, "`factor` must be a number"},
        {"{\"rope_type\":\"linear\",\"factor\":0}", 8, 1e4, ERR_FORMAT, "`factor` is 0"},
        {"{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1}", 8, 1e4, ERR_FORMAT, "is not above low_freq_factor"},
        {"{\"rope_type\":\"longrope\",\"short_factor\":[1],\"long_factor\":[1]}", 8, 1e4, ERR_FORMAT, "expected short_factor of 4 numbers"},
        {NULL, 7, 1e4, ERR_FORMAT, "even count"}, {NULL, 0, 1e4, ERR_FORMAT, "even count"}, {NULL, 8, 1, ERR_FORMAT, "a base above 1"}};
    struct krn_rope_table t;
    static const float factors[] = {1, 0, 1, 1};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(bad[i].code, bad[i].says, build(bad[i].s, bad[i].dim, bad[i].theta, 64, NULL, &t));
        arena_free(&a);
    }
    FAILS(ERR_FORMAT, "rope factor 1 in the file is 0", build(NULL, 8, 1e4, 64, factors, &t));
    arena_free(&a);
}
END_TEST

SUITE("engine", "rope", core, yarn, longrope, errors)
