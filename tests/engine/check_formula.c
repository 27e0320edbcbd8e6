/* engine/formula: what a context is said to cost is what is charged for it, and the formulas that are printed give those bytes. */
#include <ctype.h>

#include "engine/engine.h"
#include "engine/states.h"
#include "tests/support/suite.h"

/* Sums, products and brackets over whole numbers; words are skipped. */
static uint64_t sum(const char **s);
static uint64_t factor(const char **s)
{
    uint64_t v = 0;
    while (**s == ' ')
        ++*s;
    if (**s == '(') {
        ++*s;
        v = sum(s);
        ck_assert_int_eq(**s, ')');
        ++*s;
    } else {
        ck_assert_msg(isdigit((unsigned char)**s), "expected a number at \"%s\"", *s);
        for (; isdigit((unsigned char)**s); ++*s)
            v = v * 10 + (uint64_t)(**s - '0');
    }
    while (**s == ' ' || (isalpha((unsigned char)**s) && strncmp(*s, "x ", 2)))
        ++*s;
    return v;
}
static uint64_t product(const char **s)
{
    uint64_t v = factor(s);
    while (**s == 'x') {
        ++*s;
        v *= factor(s);
    }
    return v;
}
static uint64_t sum(const char **s)
{
    uint64_t v = product(s);
    while (**s == '+') {
        ++*s;
        v += product(s);
    }
    return v;
}

/* From the text alone, without the files: what a page and a slot really take. */
static void holds(const char *model, enum krn_type kv, uint32_t ctx, const char *says)
{
    struct eng_config c = {.model_path = model, .ctx = ctx, .seqs = 2, .chunk = 32, .page_tokens = 16, .threads = 1, .kv_type = kv};
    struct eng_prediction p;
    struct err e = {0};
    uint64_t token = 0, seq = 0, state = 0;
    bool said = false;
    OK(eng_predict(&c, &p, &e));
    ck_assert_uint_gt(p.n_formulas, 0);
    for (uint32_t i = 0; i < p.n_formulas; i++) {
        const struct eng_formula *f = &p.formulas[i];
        const char *at = f->text;
        uint64_t v = sum(&at), layers = strtoull(f->text, NULL, 10);
        ck_assert_msg(!*at, "%s: %s: rest \"%s\"", model, f->text, at);
        ck_assert_msg(f->state ? v <= f->bytes && f->bytes - v < 128 * layers : v == f->bytes, "%s: %s: %s = %llu, found %llu", model, f->what, f->text, (unsigned long long)v,
                      (unsigned long long)f->bytes);
        *(f->state ? &state : &token) += f->bytes;
        if (!f->state) {
            seq += f->seq_bytes;
            ck_assert_uint_ge(f->seq_bytes, f->bytes * f->pages * 16); /* a layer's part begins at a multiple of 64 bytes */
            ck_assert_uint_le(f->seq_bytes, (f->bytes * 16 + 128 * layers) * f->pages);
        }
        said |= strstr(f->what, says) != NULL;
    }
    ck_assert_msg(said, "%s: expected %s", model, says);
    ck_assert_uint_eq(token, p.kv_token_bytes);
    ck_assert_uint_eq(seq, p.kv_seq_bytes);
    ck_assert_uint_eq(2 * state, p.state_bytes);
}

START_TEST(charged)
{
    static const struct { const char *model, *says; } l[] = {
        {"tests/data/models/llama", "KV"}, {"tests/data/models/gemma3", "KV window "}, {"tests/data/models/gpt_oss", "KV window "},
        {"tests/data/models/deepseek_v3", "KV latent"}, {"tests/data/models/kimi_linear", "state "}, {"tests/data/models/kimi_linear", "KV latent"},
    };
    for (size_t i = 0; i < sizeof l / sizeof *l; i++)
        for (uint32_t ctx = 64; ctx <= 256; ctx *= 4) {
            holds(l[i].model, KRN_F16, ctx, l[i].says);
            holds(l[i].model, KRN_F32, ctx, l[i].says);
        }
}
END_TEST

/* Shapes as large models have them, by hand. */
START_TEST(spelled)
{
    static const uint16_t layers[24];
    struct eng_kv_group g[] = {{.heads = 2, .dim_k = 64, .dim_v = 64, .layers = layers, .n_layers = 24},
                               {.heads = 8, .dim_k = 192, .dim_v = 128, .window = 128, .layers = layers, .n_layers = 3},
                               {.kind = ENG_KV_LATENT, .heads = 1, .dim_k = 576, .layers = layers, .n_layers = 7}};
    const struct eng_plan p = {.kv = g, .n_kv = 3};
    const struct eng_kv_config c = {.type = KRN_F16, .page_tokens = 64, .slots = 1, .ctx = 32768, .chunk = 256};
    struct eng_formula f[4];
    ck_assert_uint_eq(eng_formulas(&p, &c, f, 4), 3);
    ck_assert_str_eq(f[0].text, "24 layers x 2 x 2 heads x 64 x 2 bytes");
    ck_assert(f[0].bytes == 12288 && f[0].pages == 512 && f[0].seq_bytes == 384u << 20);
    ck_assert_str_eq(f[1].what, "KV window 128");
    ck_assert_str_eq(f[1].text, "3 layers x 8 heads x (192 + 128) x 2 bytes");
    ck_assert(f[1].bytes == 15360 && f[1].pages == 8 && f[1].seq_bytes == 15360 * 512);
    ck_assert_str_eq(f[2].what, "KV latent");
    ck_assert_str_eq(f[2].text, "7 layers x 576 x 2 bytes");
    ck_assert(f[2].bytes == 8064 && f[2].seq_bytes == 8064 * 32768);
    ck_assert_uint_eq(eng_formulas(&p, &c, f, 2), 2);
}
END_TEST

SUITE("engine", "formula", charged, spelled)
