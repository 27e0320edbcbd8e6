/* tests/kernels/check_types.c - the type tables, the half floats, and every block type against published values. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/types.h"
#include "tests/support/blocks.h"

static const struct { const char *name; enum krn_type type; } files[] = {
    {"F16", KRN_F16},   {"BF16", KRN_BF16}, {"Q4_0", KRN_Q4_0}, {"Q4_1", KRN_Q4_1}, {"Q5_0", KRN_Q5_0},
    {"Q5_1", KRN_Q5_1}, {"Q8_0", KRN_Q8_0}, {"Q2_K", KRN_Q2_K}, {"Q3_K", KRN_Q3_K}, {"Q4_K", KRN_Q4_K},
    {"Q5_K", KRN_Q5_K}, {"Q6_K", KRN_Q6_K}, {"IQ4_NL", KRN_IQ4_NL}, {"IQ4_XS", KRN_IQ4_XS}, {"MXFP4", KRN_MXFP4},
};

START_TEST(block_values)
{
    static struct blocks b;
    static float got[BLOCK_COLS];
    enum krn_type t = files[_i].type;
    ck_assert_msg(blocks_load(&b, files[_i].name), "tests/data/gguf-blocks/%s.safetensors", files[_i].name);
    ck_assert_int_eq(krn_type_from_ggml(b.ggml_type), t);
    ck_assert_str_eq(krn_types[t].name, files[_i].name);
    ck_assert_uint_eq(krn_row_bytes(t, BLOCK_COLS), b.row_bytes);
    for (int r = 0; r < BLOCK_ROWS; r++) {
        const float *want = b.values + r * BLOCK_COLS;
        float top = 0, worst = 0;
        ck_assert(krn_expand(t, b.raw + (size_t)r * b.row_bytes, BLOCK_COLS, got));
        for (int c = 0; c < BLOCK_COLS; c++) {
            top = fmaxf(top, fabsf(want[c]));
            worst = fmaxf(worst, fabsf(got[c] - want[c]));
        }
        ck_assert_msg(worst <= 1e-6f * top, "%s row %d: off by %g of %g", files[_i].name, r, (double)worst, (double)top);
        ck_assert_msg(memcmp(got, want, sizeof got) == 0 || r == 5, "%s row %d: close, but other bits", files[_i].name, r);
    }
}
END_TEST

/* Types that no file has: a bf16 scale with nibbles, f32 scales of 128 columns with bytes; by hand. */
START_TEST(put_together)
{
    uint8_t b[18] = {0x40, 0x3f, 0x8f}, row[4 * 2 + 130]; /* 0.75; columns 0 and 16: 15 - 8 and 8 - 8 */
    float got[130], s[2] = {2, -0.5f};
    ck_assert(krn_expand(KRN_INT4, b, 32, got));
    ck_assert(got[0] == 0.75f * 7 && got[16] == 0 && got[1] == 0.75f * -8 && got[31] == 0.75f * -8);
    ck_assert_uint_eq(krn_row_bytes(KRN_INT4, 64), 36);
    ck_assert_uint_eq(krn_row_bytes(KRN_F8_SCALED, 130), sizeof row);
    ck_assert_uint_eq(krn_row_bytes(KRN_F8_SCALED, 128), 132);
    memcpy(row, s, sizeof s);
    memset(row + 8, 0x38, 130); /* 1 */
    row[8 + 127] = 0xfe;        /* -448 */
    row[8 + 129] = 0x01;        /* 2^-9 */
    ck_assert(krn_expand(KRN_F8_SCALED, row, 130, got));
    ck_assert(got[0] == 2 && got[127] == -896 && got[128] == -0.5f && got[129] == -0x1p-10f);
}
END_TEST

START_TEST(half_all)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float f = krn_f16_to_f32((uint16_t)h);
        int exp = (int)(h >> 10 & 31), man = (int)(h & 1023);
        if (exp == 31 && man) {
            ck_assert(isnan(f));
            ck_assert_uint_eq(krn_f32_to_f16(f), h | 0x200);
            continue;
        }
        double want = exp == 31 ? HUGE_VAL : exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24);
        ck_assert((double)f == (h & 0x8000 ? -want : want) && !signbit(f) == !(h & 0x8000));
        ck_assert_uint_eq(krn_f32_to_f16(f), h);
    }
}
END_TEST

/* Half way between neighbours goes to the even one; one bit off half way goes to the nearer one. */
START_TEST(half_rounding)
{
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float lo = krn_f16_to_f32((uint16_t)h), hi = krn_f16_to_f32((uint16_t)(h + 1)), mid = (lo + hi) / 2;
        ck_assert_uint_eq(krn_f32_to_f16(mid), h + (h & 1));
        ck_assert_uint_eq(krn_f32_to_f16(nextafterf(mid, 0)), h);
        ck_assert_uint_eq(krn_f32_to_f16(nextafterf(mid, 1e9f)), h + 1);
        ck_assert_uint_eq(krn_f32_to_f16(-mid), (h + (h & 1)) | 0x8000);
    }
    ck_assert_uint_eq(krn_f32_to_f16(65519.996f), 0x7bff);
    ck_assert_uint_eq(krn_f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(krn_f32_to_f16(-INFINITY), 0xfc00);
    ck_assert_uint_eq(krn_f32_to_bf16(1.0f), 0x3f80);
    ck_assert_uint_eq(krn_f32_to_bf16(0x1.01p0f), 0x3f80);
    ck_assert_uint_eq(krn_f32_to_bf16(0x1.03p0f), 0x3f82);
    ck_assert_uint_eq(krn_f32_to_bf16(3.4e38f), 0x7f80);
    ck_assert(isnan(krn_bf16_to_f32(krn_f32_to_bf16(NAN))));
}
END_TEST

START_TEST(small_floats)
{
    static const struct { enum krn_type t; uint8_t b; float want; } rows[] = {
        {KRN_F8_E4M3, 0x00, 0}, {KRN_F8_E4M3, 0x01, 0x1p-9f}, {KRN_F8_E4M3, 0x07, 0x1.cp-7f}, {KRN_F8_E4M3, 0x08, 0x1p-6f},
        {KRN_F8_E4M3, 0x38, 1}, {KRN_F8_E4M3, 0x7e, 448}, {KRN_F8_E4M3, 0xfe, -448}, {KRN_F8_E4M3, 0x7f, NAN},
        {KRN_F8_E5M2, 0x01, 0x1p-16f}, {KRN_F8_E5M2, 0x3c, 1}, {KRN_F8_E5M2, 0xfb, -57344}, {KRN_F8_E5M2, 0x7c, INFINITY},
        {KRN_F8_E5M2, 0x7d, NAN}, {KRN_E8M0, 0, 0x1p-127f}, {KRN_E8M0, 127, 1}, {KRN_E8M0, 254, 0x1p127f}, {KRN_E8M0, 255, NAN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float f = 7;
        ck_assert(krn_expand(rows[i].t, &rows[i].b, 1, &f));
        ck_assert_msg(f == rows[i].want || (isnan(f) && isnan(rows[i].want)), "row %zu: %a", i, (double)f);
    }
    double d = 0.1;
    float f;
    ck_assert(krn_expand(KRN_F64, &d, 1, &f) && f == 0.1f);
    ck_assert(!krn_expand(KRN_I32, &d, 1, &f));
}
END_TEST

START_TEST(names_and_sizes)
{
    static const char *const st[] = {"F32", "F16", "BF16", "F64", "I8", "U8", "I16", "I32", "I64", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"};
    for (size_t i = 0; i < sizeof st / sizeof *st; i++)
        ck_assert_int_eq(krn_type_from_safetensors(st[i], strlen(st[i])), (int)i);
    ck_assert_int_eq(krn_type_from_safetensors("F3", 2), -1);
    ck_assert_int_eq(krn_type_from_safetensors("F32x", 4), -1);
    ck_assert_int_eq(krn_type_from_safetensors("Q4_0", 4), -1);
    ck_assert_int_eq(krn_type_from_safetensors("", 0), -1);
    ck_assert_int_eq(krn_type_from_ggml(0), KRN_F32);
    for (uint32_t t = 40; t < 300; t++)
        ck_assert_int_eq(krn_type_from_ggml(t), -1);
    ck_assert_int_eq(krn_type_from_ggml(UINT32_MAX), -1);
    ck_assert_int_eq(krn_type_from_ggml(4), -1);
    ck_assert_uint_eq(krn_row_bytes(KRN_Q4_1, 576), 360);
    ck_assert_uint_eq(krn_row_bytes(KRN_Q4_1, 33), 0);
    ck_assert_uint_eq(krn_row_bytes(KRN_F64, UINT64_MAX / 4), 0);
    for (int t = 0; t < KRN_TYPE_COUNT; t++)
        ck_assert(krn_types[t].name && krn_types[t].block && krn_types[t].block_bytes);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("types");
    TCase *core = tcase_create("core"), *limits = tcase_create("limits");
    tcase_add_loop_test(core, block_values, 0, (int)(sizeof files / sizeof *files));
    tcase_add_test(core, small_floats);
    tcase_add_test(core, names_and_sizes);
    tcase_add_test(limits, half_all);
    tcase_add_test(limits, put_together);
    tcase_add_test(limits, half_rounding);
    suite_add_tcase(s, core);
    suite_add_tcase(s, limits);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
