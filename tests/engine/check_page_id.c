/* engine/page_id: known answers (made by an independent implementation, see the comment), and every field counts. */
#include "engine/page_id.h"
#include "tests/support/suite.h"

static const uint8_t model[32] = {1, 2, 3}, other[32] = {1, 2, 4};
static const uint16_t layers[] = {0, 2, 5}, fewer[] = {0, 2};
static const double freq[] = {1.0, 0.25}, freq2[] = {1.0, 0.5};
static const struct krn_rope_table rope = {.n_freq = 2, .inv_freq = freq, .mscale = 1.0f}, rope_scaled = {.n_freq = 2, .inv_freq = freq, .mscale = 1.5f},
                                   rope_other = {.n_freq = 2, .inv_freq = freq2, .mscale = 1.0f},
                                   rope_rows = {.n_freq = 2, .inv_freq = freq, .mscale = 1.0f, .sections = true, .section = {1, 1}};
static const struct eng_kv_group group = {.state = "kv", .heads = 2, .dim_k = 16, .dim_v = 16, .layers = layers, .n_layers = 3};
static const struct eng_page_scope base = {.fingerprint = model, .sheet = model, .numerics = "1/int8x32/cpu/exact/tp1", .kv = &group, .type = KRN_F16,
                                           .page_tokens = 16, .tp_size = 1, .ropes = &rope, .n_ropes = 1, .image_recipe = "", .adapter = "",
                                           .space = "default", .space_n = 7};

static void scope_of(const struct eng_page_scope *s, uint8_t out[32])
{
    struct err e = {0};
    OK(eng_page_scope_id(s, out, &e));
}
static const char *hex_of(const uint8_t d[32])
{
    static char hex[65];
    hash_hex(d, 32, hex);
    return hex;
}

/* Python: f(tag, b) = tag + b"\0" + len(b).to_bytes(8, "little") + b, u(tag, n) = f(tag, n.to_bytes(4, "little")); the scope is
 * sha256 of u(format,1) f(model) f(sheet) f(numerics) u(group,0) f(state) u(kind,0) u(heads) u(dim_k) u(dim_v) u(window) u(layer)...
 * f(dtype,"F16") u(page,16) u(tp_rank,0) u(tp_size,1) u(rope,n) then u(freq) of each double's low and high word, u(mscale, bits),
 * f(images,"") f(adapter,"") f(namespace); an id of f(scope) f(parent) f(ids) and u(image at), f(image) for each image. */
START_TEST(core)
{
    uint8_t scope[32], id[32], next[32];
    int32_t ids[16];
    struct eng_page_image image = {3, model};
    hash_ctx *h = hash_new();
    for (int i = 0; i < 16; i++)
        ids[i] = 1000 * i + 7;
    scope_of(&base, scope);
    ck_assert_str_eq(hex_of(scope), "4a886162fba6e87b6c65ed6ba3176e270b7a90047218416b7aec355591c5c401");
    eng_page_id(h, scope, NULL, ids, 16, NULL, 0, id);
    ck_assert_str_eq(hex_of(id), "715d6f3ad06dcf6fb1850eeecf37485cfb420462d246d27edc0ee27d378f4049");
    eng_page_id(h, scope, id, ids, 16, NULL, 0, next);
    ck_assert_str_eq(hex_of(next), "ff01292d1535edd6f1b0a3be2d32e5067965e629468b14f81fc0687c56be5527");
    eng_page_id(h, scope, id, ids, 16, &image, 1, next);
    ck_assert_str_eq(hex_of(next), "0880df8e824b5aad2d6d5a188d94352592d6ae55817c3f41350c52e0dc37dfcc");
    hash_end(h, next);
}
END_TEST

START_TEST(fields)
{
    struct eng_page_scope v[20];
    struct eng_kv_group k[7];
    uint8_t d[20][32];
    for (int i = 0; i < 20; i++)
        v[i] = base;
    for (int i = 0; i < 7; i++)
        k[i] = group;
    v[1].fingerprint = other;
    v[2].sheet = other;
    v[3].numerics = "1/f32/cpu/exact/tp1";
    v[4].group = 1;
    v[5].type = KRN_BF16;
    v[6].page_tokens = 32;
    v[7].tp_rank = 1;
    v[8].tp_size = 2;
    v[9].ropes = &rope_scaled;
    v[10].ropes = &rope_other;
    v[11].n_ropes = 0;
    v[12].image_recipe = "x";
    v[13].adapter = "x";
    v[14].space_n = 6;
    v[15].ropes = &rope_rows;
    k[0].heads = 4;
    k[1].window = 32;
    k[2].layers = fewer;
    k[2].n_layers = 2;
    k[3].kind = ENG_KV_LATENT;
    for (int i = 0; i < 4; i++)
        v[16 + i].kv = &k[i];
    for (int i = 0; i < 20; i++) {
        scope_of(&v[i], d[i]);
        for (int j = 0; j < i; j++)
            ck_assert_msg(memcmp(d[i], d[j], 32) != 0, "%d and %d are one", i, j);
    }
}
END_TEST

/* An id tells apart: where a page lies, what is in it, how many tokens it has. */
START_TEST(pages)
{
    uint8_t scope[2][32], d[6][32];
    int32_t ids[80] = {0};
    hash_ctx *h = hash_new();
    scope_of(&base, scope[0]);
    memset(scope[1], 7, 32);
    eng_page_id(h, scope[0], NULL, ids, 80, NULL, 0, d[0]);
    eng_page_id(h, scope[0], d[0], ids, 80, NULL, 0, d[1]);
    eng_page_id(h, scope[0], NULL, ids, 79, NULL, 0, d[2]);
    eng_page_id(h, scope[1], NULL, ids, 80, NULL, 0, d[3]);
    ids[79] = 1;
    eng_page_id(h, scope[0], NULL, ids, 80, NULL, 0, d[4]);
    ids[79] = 1 << 24;
    eng_page_id(h, scope[0], NULL, ids, 80, NULL, 0, d[5]);
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < i; j++)
            ck_assert_msg(memcmp(d[i], d[j], 32) != 0, "%d and %d are one", i, j);
    hash_end(h, d[0]);
}
END_TEST

SUITE("engine", "page_id", core, fields, pages)
