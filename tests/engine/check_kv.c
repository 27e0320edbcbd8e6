/* engine/kv: pages come, slide and go; pools hold what was promised and nothing is in two places. */
#include <check.h>
#include <string.h>

#include "engine/kv.h"

static const uint16_t layers_full[] = {0, 2}, layers_win[] = {1};
static struct eng_kv_group groups[] = {
    {.state = "kv", .heads = 2, .dim_k = 16, .dim_v = 16, .layers = layers_full, .n_layers = 2},
    {.state = "kv", .heads = 2, .dim_k = 16, .dim_v = 16, .window = 32, .layers = layers_win, .n_layers = 1},
};
static struct eng_plan plan = {.kv = groups, .n_kv = 2};
static const struct eng_kv_config conf = {.type = KRN_F32, .page_tokens = 16, .slots = 3, .ctx = 256, .chunk = 32, .bytes_max = 1 << 24};

static void used_is(eng_kv *kv, uint64_t want)
{
    uint64_t pages, used, bytes;
    eng_kv_usage(kv, &pages, &used, &bytes);
    ck_assert_uint_eq(used, want);
    ck_assert(used <= pages && bytes <= conf.bytes_max);
}

START_TEST(core)
{
    eng_kv *kv;
    struct err e = {0};
    uint32_t table[16], other[16];
    ck_assert_int_eq(eng_kv_open(&kv, &plan, &conf, &e), ERR_OK);
    ck_assert_uint_eq(eng_kv_table_stride(kv), 16);
    used_is(kv, 0);
    ck_assert_int_eq(eng_kv_reserve(kv, 0, 17, &e), ERR_OK);
    used_is(kv, 4);
    ck_assert_int_eq(eng_kv_reserve(kv, 0, 20, &e), ERR_OK); /* nothing new */
    used_is(kv, 4);
    ck_assert_int_eq(eng_kv_reserve(kv, 2, 32, &e), ERR_OK);
    eng_kv_table(kv, 0, 0, table);
    eng_kv_table(kv, 0, 2, other);
    ck_assert(table[0] != KRN_NO_PAGE && table[1] != KRN_NO_PAGE && table[2] == KRN_NO_PAGE);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            ck_assert_uint_ne(table[i], other[j]);
    eng_kv_release(kv, 0);
    eng_kv_release(kv, 2);
    used_is(kv, 0);
    eng_kv_close(kv);
}
END_TEST

/* A whole context through chunks: every slot reaches its end, the windowed group never holds more than window and chunk span. */
START_TEST(sliding)
{
    eng_kv *kv;
    struct err e = {0};
    uint32_t table[16];
    ck_assert_int_eq(eng_kv_open(&kv, &plan, &conf, &e), ERR_OK);
    for (uint32_t pos = 0; pos < conf.ctx; pos += conf.chunk)
        for (uint32_t s = 0; s < conf.slots; s++) {
            ck_assert_int_eq(eng_kv_reserve(kv, s, pos + conf.chunk, &e), ERR_OK);
            eng_kv_slide(kv, s, pos + conf.chunk);
            eng_kv_table(kv, 1, s, table);
            for (uint32_t k = 0; k < 16; k++) { /* keys that a query at the next position may see are there */
                bool seen = (k + 1) * 16 + 32 > pos + conf.chunk + 1 && k * 16 < pos + conf.chunk;
                ck_assert_msg(!seen || table[k] != KRN_NO_PAGE, "page %u at %u", k, pos);
            }
            eng_kv_table(kv, 0, s, table);
            for (uint32_t k = 0; k * 16 < pos + conf.chunk; k++)
                ck_assert(table[k] != KRN_NO_PAGE);
        }
    for (uint32_t s = 0; s < conf.slots; s++)
        eng_kv_release(kv, s);
    used_is(kv, 0);
    eng_kv_close(kv);
}
END_TEST

START_TEST(limits)
{
    eng_kv *kv;
    struct err e = {0};
    struct eng_kv_config c = conf;
    c.bytes_max = eng_kv_bytes(&plan, &c, 1);
    ck_assert_int_eq(eng_kv_open(&kv, &plan, &c, &e), ERR_OK); /* one sequence at a time */
    for (uint32_t pos = 0; pos < c.ctx; pos += c.chunk) {
        ck_assert_int_eq(eng_kv_reserve(kv, 1, pos + c.chunk, &e), ERR_OK);
        eng_kv_slide(kv, 1, pos + c.chunk);
    }
    ck_assert_int_eq(eng_kv_reserve(kv, 0, 16, &e), ERR_AGAIN);
    eng_kv_release(kv, 1);
    ck_assert_int_eq(eng_kv_reserve(kv, 0, 16, &e), ERR_OK);
    eng_kv_close(kv);
    c.bytes_max--;
    ck_assert_int_eq(eng_kv_open(&kv, &plan, &c, &e), ERR_BUDGET);
    ck_assert_ptr_null(kv);
    ck_assert_ptr_nonnull(strstr(e.msg, "missing"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kv");
    TCase *t = tcase_create("core");
    tcase_add_test(t, core);
    tcase_add_test(t, sliding);
    suite_add_tcase(s, t);
    t = tcase_create("limits");
    tcase_add_test(t, limits);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
