/* tests/kernels/check_slot.c - packing into tiles and reading rows back: the same numbers as the published rows. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/slot.h"
#include "tests/support/blocks.h"
#include "tests/support/scales.h"

static const enum krn_type tiled[] = {KRN_F32, KRN_F16, KRN_BF16, KRN_Q8_0, KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1, KRN_Q2_K, KRN_Q3_K,
                                      KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS, KRN_MXFP4, KRN_INT4, KRN_F8_SCALED};
enum { N_TILED = sizeof tiled / sizeof *tiled, N_FILES = N_TILED - 2 };

/* Random bytes with tame exponents: NaNs would make comparing bits depend on how a NaN is copied. */
static void fill(enum krn_type t, uint8_t *p, size_t rows, size_t stride, size_t cols, unsigned seed)
{
    size_t bytes = krn_types[t].block_bytes, n = cols / krn_types[t].block;
    for (size_t i = 0; i < rows * stride; i++)
        p[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
    for (size_t i = 0; i < rows * stride && t == KRN_F8_SCALED; i++)
        p[i] &= 0x3e; /* neither its scales nor its values are NaN */
    for (size_t r = 0; r < rows && t != KRN_F8_SCALED; r++)
        for (size_t b = 0; b < n; b++) {
            uint8_t *q = p + r * stride + b * bytes;
            if (t == KRN_F32)
                q[3] &= 0xbf;
            else if (t == KRN_BF16 || t == KRN_F16)
                q[1] &= 0xbf;
            else if (t == KRN_MXFP4)
                q[0] &= 0x7f;
            else
                for (int k = 0; k < scale_places(t)->n; k++)
                    q[scale_places(t)->at[k] + 1] &= 0xbf;
        }
}

/* Every row of a packed matrix expands to what its published row does; packing by spans equals packing at once; padding is zero. */
START_TEST(rows_survive)
{
    static const uint32_t rows[] = {1, 2, 15, 16, 17, 33, 48}, cols[] = {32, 96, 1056};
    enum krn_type t = tiled[_i];
    for (size_t a = 0; a < sizeof rows / sizeof *rows; a++)
        for (size_t b = 0; b < sizeof cols / sizeof *cols; b++) {
            uint32_t nr = rows[a], nc = cols[b] * krn_types[t].block / 32; /* 1, 3 or 33 blocks */
            if (krn_types[t].block == 1)
                nc = cols[b] - 13; /* float rows of any length */
            size_t row = krn_row_bytes(t, nc), stride = row + 6, total = krn_slot_bytes(t, KRN_TILED, nr, nc);
            uint32_t tiles = (nr + 15) / 16;
            uint8_t *src = malloc(nr * stride), *dst = malloc(total), *parts = malloc(total);
            float *want = malloc(nc * sizeof *want), *got = malloc(nc * sizeof *got);
            ck_assert_uint_eq(total, tiles * 16 * row);
            fill(t, src, nr, stride, nc, nr * 7919 + nc);
            memset(dst, 0xaa, total);
            krn_slot_pack(t, nr, nc, 0, tiles, src, stride, dst);
            for (uint32_t k = 0; k < tiles; k++)
                krn_slot_pack(t, nr, nc, k, 1, src + k * 16 * stride, stride, parts);
            ck_assert_mem_eq(dst, parts, total);
            struct krn_weight w = {.type = t, .layout = KRN_TILED, .rows = nr, .cols = nc, .data = dst};
            for (uint32_t r = 0; r < tiles * 16; r++) {
                ck_assert(krn_weight_row(&w, r, got));
                if (r < nr) {
                    ck_assert(krn_expand(t, src + r * stride, nc, want));
                    ck_assert_msg(memcmp(got, want, nc * sizeof *want) == 0, "%s %ux%u row %u", krn_types[t].name, nr, nc, r);
                }
                bool zero = true;
                for (uint32_t c = 0; r >= nr && c < nc; c++) /* a zero row of Q4_0 is -8 * 0 */
                    zero &= got[c] == 0;
                ck_assert(zero);
            }
            free(src), free(dst), free(parts), free(want), free(got);
        }
}
END_TEST

/* The published matrices of the fixtures, through the tiled layout. */
START_TEST(published_values)
{
    static struct blocks b;
    enum krn_type t = tiled[_i];
    ck_assert(blocks_load(&b, krn_types[t].name));
    uint8_t *slot = malloc(krn_slot_bytes(t, KRN_TILED, BLOCK_ROWS, BLOCK_COLS));
    float got[BLOCK_COLS];
    krn_slot_pack(t, BLOCK_ROWS, BLOCK_COLS, 0, 1, b.raw, b.row_bytes, slot);
    struct krn_weight w = {.type = t, .layout = KRN_TILED, .rows = BLOCK_ROWS, .cols = BLOCK_COLS, .data = slot};
    struct krn_weight plain = {.type = t, .layout = KRN_PLAIN, .rows = BLOCK_ROWS, .cols = BLOCK_COLS, .data = b.raw};
    for (uint32_t r = 0; r < BLOCK_ROWS; r++)
        for (int k = 0; k < 2; k++) {
            ck_assert(krn_weight_row(k ? &plain : &w, r, got));
            for (int c = 0; c < BLOCK_COLS; c++)
                ck_assert_msg(got[c] == b.values[r * BLOCK_COLS + (uint32_t)c], "%s row %u column %d", krn_types[t].name, r, c);
        }
    free(slot);
}
END_TEST

/* The places that slot.h names, by hand: column 4g + j and 16 + 4g + j of row i in byte j of group g. */
START_TEST(layout_q4_1)
{
    uint8_t src[16 * 20], dst[16 * 20];
    for (int i = 0; i < 16; i++) {
        uint8_t *p = src + i * 20;
        p[0] = (uint8_t)i, p[1] = 0x3c, p[2] = (uint8_t)(i + 100), p[3] = 0x40;
        for (int j = 0; j < 16; j++)
            p[4 + j] = (uint8_t)(i * 16 + j);
    }
    krn_slot_pack(KRN_Q4_1, 16, 32, 0, 1, src, 20, dst);
    for (int i = 0; i < 16; i++) {
        ck_assert_uint_eq(dst[2 * i], i);
        ck_assert_uint_eq(dst[32 + 2 * i], i + 100);
        for (int g = 0; g < 4; g++)
            for (int j = 0; j < 4; j++)
                ck_assert_uint_eq(dst[64 + g * 64 + i * 4 + j], i * 16 + 4 * g + j);
    }
}
END_TEST

/* Of Q5_0, the one place where bits move: the fifth bit of column 4g + j is bit g of byte j. */
START_TEST(layout_q5_0)
{
    uint8_t src[16 * 22], dst[16 * 22];
    for (unsigned k = 0; k < 32; k++) {
        for (unsigned i = 0; i < 16; i++) {
            uint8_t *p = src + i * 22;
            unsigned c = (k + i) % 32;
            memset(p, 0, 22);
            p[2 + c / 8] = (uint8_t)(1 << c % 8);
            p[6 + i] = (uint8_t)(i + 1);
        }
        krn_slot_pack(KRN_Q5_0, 16, 32, 0, 1, src, 22, dst);
        for (unsigned i = 0; i < 16; i++)
            for (unsigned j = 0; j < 4; j++) {
                unsigned c = (k + i) % 32;
                ck_assert_uint_eq(dst[32 + i * 4 + j], c % 4 == j ? 1u << c / 4 : 0);
                for (unsigned g = 0; g < 4; g++)
                    ck_assert_uint_eq(dst[96 + g * 64 + i * 4 + j], i == 4 * g + j ? i + 1 : 0);
            }
    }
}
END_TEST

/* Of Q6_K, whose fields move most: scale in front, scales, then each half's nibbles and upper bits. */
START_TEST(layout_q6_k)
{
    uint8_t src[16 * 210], dst[16 * 210];
    for (unsigned i = 0; i < 16; i++)
        for (unsigned k = 0; k < 210; k++)
            src[i * 210 + k] = (uint8_t)(k ^ i);
    krn_slot_pack(KRN_Q6_K, 16, 256, 0, 1, src, 210, dst);
    static const struct { unsigned from, n; } order[] = {{192, 16}, {0, 64}, {128, 32}, {64, 64}, {160, 32}};
    for (unsigned i = 0; i < 16; i++) {
        unsigned at = 32;
        ck_assert_uint_eq(dst[2 * i], 208 ^ i);
        ck_assert_uint_eq(dst[2 * i + 1], 209 ^ i);
        for (size_t f = 0; f < 5; at += order[f].n * 16, f++)
            for (unsigned k = 0; k < order[f].n; k++)
                ck_assert_uint_eq(dst[at + k / 4 * 64 + i * 4 + k % 4], (order[f].from + k) ^ i);
    }
}
END_TEST

START_TEST(sizes)
{
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q4_1, KRN_TILED, 17, 64), 32 * 40);
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q4_1, KRN_PLAIN, 17, 64), 17 * 40);
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q6_K, KRN_PLAIN, 3, 512), 3 * 420);
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q6_K, KRN_TILED, 3, 512), 16 * 420);
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q6_K, KRN_TILED, 3, 288), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F8_E4M3, KRN_TILED, 3, 512), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_Q4_1, KRN_TILED, 17, 65), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_TILED, 0, 64), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_TILED, 64, 0), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_TILED, UINT64_MAX, 64), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_TILED, UINT64_MAX / 16, 64), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_PLAIN, 2, UINT64_MAX / 4), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_F32, KRN_PLAIN, 2, UINT64_MAX), 0);
    ck_assert_uint_eq(krn_slot_bytes(KRN_TYPE_COUNT, KRN_PLAIN, 2, 2), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("slot");
    TCase *core = tcase_create("core"), *limits = tcase_create("limits");
    tcase_add_loop_test(core, rows_survive, 0, N_TILED);
    tcase_add_loop_test(core, published_values, 1, N_FILES); /* F32 has no fixture */
    tcase_add_test(core, layout_q4_1);
    tcase_add_test(core, layout_q5_0);
    tcase_add_test(core, layout_q6_k);
    tcase_add_test(limits, sizes);
    suite_add_tcase(s, core);
    suite_add_tcase(s, limits);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
