/* tests/kernels/check_kv_layout.c - the page layout: every element has its own bytes inside the page; impossible sizes refused. */
#include <stdlib.h>
#include <string.h>
#include "kernels/kv_layout.h"
#include "tests/support/suite.h"

START_TEST(core)
{
    const struct krn_kv_layout shapes[] = {
        {.type = KRN_F32, .page_tokens = 16, .n_layers = 2, .heads = 3, .dim_k = 8, .dim_v = 8},
        {.type = KRN_F16, .page_tokens = 64, .n_layers = 3, .heads = 2, .dim_k = 6, .dim_v = 10},
        {.type = KRN_BF16, .page_tokens = 32, .n_layers = 1, .heads = 1, .dim_k = 5, .dim_v = 0}};
    for (unsigned i = 0; i < 3; i++) {
        struct krn_kv_layout l = shapes[i];
        size_t e = l.type == KRN_F32 ? 4 : 2, used = 0;
        ck_assert(krn_kv_layout_init(&l));
        ck_assert(l.layer_bytes % 64 == 0 && l.v_offset % 64 == 0 && l.page_bytes == l.n_layers * l.layer_bytes);
        uint8_t *seen = calloc(1, l.page_bytes);
        for (uint32_t layer = 0; layer < l.n_layers; layer++)
            for (uint32_t h = 0; h < l.heads; h++)
                for (uint32_t t = 0; t < l.page_tokens; t++)
                    for (uint32_t d = 0; d < l.dim_k + l.dim_v; d++) {
                        size_t at = d < l.dim_k ? krn_kv_k(&l, layer, h, t, d) : krn_kv_v(&l, layer, h, t, d - l.dim_k);
                        ck_assert(at % e == 0 && at + e <= l.page_bytes && !seen[at]);
                        seen[at] = 1;
                        used += e;
                    }
        ck_assert_uint_le(l.page_bytes - used, 2 * 63 * l.n_layers);
        free(seen);
    }
}
END_TEST

START_TEST(order)
{
    /* Keys: 16 tokens side by side, then the next channel; values: channels side by side. */
    struct krn_kv_layout l = {.type = KRN_F16, .page_tokens = 32, .n_layers = 1, .heads = 2, .dim_k = 4, .dim_v = 4};
    ck_assert(krn_kv_layout_init(&l));
    ck_assert_uint_eq(krn_kv_k(&l, 0, 0, 1, 0), 2);
    ck_assert_uint_eq(krn_kv_k(&l, 0, 0, 0, 1), 32);
    ck_assert_uint_eq(krn_kv_k(&l, 0, 0, 16, 0), 4 * 32);
    ck_assert_uint_eq(krn_kv_k(&l, 0, 1, 0, 0), 2 * 4 * 32);
    ck_assert_uint_eq(krn_kv_v(&l, 0, 0, 0, 1) - l.v_offset, 2);
    ck_assert_uint_eq(krn_kv_v(&l, 0, 0, 1, 0) - l.v_offset, 8);
    ck_assert_uint_eq(krn_kv_v(&l, 0, 1, 0, 0) - l.v_offset, 32 * 8);
}
END_TEST

START_TEST(errors)
{
    const struct krn_kv_layout good = {.type = KRN_F16, .page_tokens = 16, .n_layers = 1, .heads = 1, .dim_k = 8, .dim_v = 8};
    struct krn_kv_layout l = good;
    ck_assert(krn_kv_layout_init(&l));
    for (int i = 0; i < 7; i++) {
        l = good;
        switch (i) {
        case 0: l.type = KRN_Q8_0; break;
        case 1: l.page_tokens = 24; break;
        case 2: l.page_tokens = 0; break;
        case 3: l.n_layers = 0; break;
        case 4: l.heads = 0; break;
        case 5: l.dim_k = 0; break;
        case 6: l.page_tokens = 1u << 31; l.heads = l.dim_k = l.dim_v = l.n_layers = 1u << 16; break; /* 2^80 bytes */
        }
        ck_assert_msg(!krn_kv_layout_init(&l), "case %d", i);
    }
}
END_TEST

SUITE("kernels", "kv_layout", core, order, errors)
