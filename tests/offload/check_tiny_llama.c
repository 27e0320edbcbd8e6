/* The made-up model other tests run on: opens, has the tensors and vocabulary it promises, and is the same file every time. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "offload/catalog.h"
#include "tests/support/make_model.h"
#include "tests/support/tiny_llama.h"

static char *dir;
static void begin(void) { dir = mm_tmpdir(); }
static void end(void) { mm_rmdir(dir); }

static uint64_t digest(const char *path)
{
    size_t n;
    char *p = mm_read(path, &n);
    uint64_t h = hash_bytes(p, n, 7);
    free(p);
    return h;
}

START_TEST(core)
{
    static const struct tiny_llama options[] = {{0}, {.seed = 1}, {.chain = true}, {.untied = true}, {.f32 = true}, {.ctx = 128}};
    uint64_t seen[6];
    for (size_t i = 0; i < 6; i++) {
        struct err e;
        off_catalog *c;
        struct off_array tokens, merges, types;
        int64_t v;
        const char *path = mm_path(dir, "a.gguf"), *again = mm_path(dir, "b.gguf");
        tiny_llama_write(path, i ? &options[i] : NULL);
        tiny_llama_write(again, &options[i]);
        seen[i] = digest(path);
        ck_assert_uint_eq(seen[i], digest(again));
        for (size_t k = 0; k < i; k++)
            ck_assert_uint_ne(seen[k], seen[i]);
        ck_assert_msg(off_catalog_open(&c, path, 0, &e) == ERR_OK, "%s", e.msg);
        ck_assert_uint_eq(off_catalog_count(c), options[i].chain || options[i].untied ? 21 : 20);
        ck_assert(off_gguf_array(c, "tokenizer.ggml.tokens", &tokens) && tokens.n == TINY_VOCAB);
        ck_assert(off_gguf_array(c, "tokenizer.ggml.token_type", &types) && types.n == TINY_VOCAB);
        ck_assert(off_gguf_array(c, "tokenizer.ggml.merges", &merges) && merges.n == TINY_VOCAB - 259);
        for (uint64_t a = 0; a < tokens.n; a++) { /* every token once; every merge makes the token of its rank */
            size_t n, m;
            const char *s = off_array_str(&tokens, a, &n);
            ck_assert_uint_gt(n, 0);
            for (uint64_t b = 0; b < a; b++) {
                const char *t = off_array_str(&tokens, b, &m);
                ck_assert_msg(n != m || memcmp(s, t, n), "token %.*s twice", (int)n, s);
            }
            ck_assert(off_array_int(&types, a, &v) && v == (a < 3 ? 3 : 1));
        }
        for (uint64_t a = 0; a < merges.n; a++) {
            size_t n, m;
            const char *s = off_array_str(&merges, a, &n), *t = off_array_str(&tokens, 259 + a, &m), *space = memchr(s, ' ', n);
            ck_assert_ptr_nonnull(space);
            ck_assert_uint_eq(n, m + 1);
            ck_assert(!memcmp(s, t, (size_t)(space - s)) && !memcmp(space + 1, t + (space - s), n - 1 - (size_t)(space - s)));
            for (int half = 0; half < 2; half++) { /* both halves are earlier tokens */
                const char *h = half ? space + 1 : s;
                size_t hn = half ? n - 1 - (size_t)(space - s) : (size_t)(space - s);
                bool found = false;
                for (uint64_t b = 3; b < 259 + a; b++) {
                    t = off_array_str(&tokens, b, &m);
                    found |= m == hn && !memcmp(t, h, m);
                }
                ck_assert_msg(found, "merge %.*s", (int)n, s);
            }
        }
        ck_assert(json_int(json_get(off_catalog_config(c), "llama.context_length"), &v) && v == (options[i].ctx ? options[i].ctx : 2048));
        off_catalog_close(c);
    }
}
END_TEST

/* Quantised and F32 twins of one seed differ by quantisation alone. */
START_TEST(types)
{
    struct err e;
    off_catalog *a, *b;
    bool seen[KRN_TYPE_COUNT] = {false};
    tiny_llama_write(mm_path(dir, "a.gguf"), &(struct tiny_llama){.untied = true});
    tiny_llama_write(mm_path(dir, "b.gguf"), &(struct tiny_llama){.untied = true, .f32 = true});
    ck_assert_int_eq(off_catalog_open(&a, mm_path(dir, "a.gguf"), 0, &e), ERR_OK);
    ck_assert_int_eq(off_catalog_open(&b, mm_path(dir, "b.gguf"), 0, &e), ERR_OK);
    size_t na, nb;
    uint8_t *fa = mm_read(mm_path(dir, "a.gguf"), &na), *fb = mm_read(mm_path(dir, "b.gguf"), &nb);
    for (size_t i = 0; i < off_catalog_count(a); i++) {
        const struct off_tensor *t = off_catalog_at(a, i), *u = off_catalog_find(b, t->name, strlen(t->name));
        size_t n = (size_t)(u->bytes / 4);
        float *x = malloc(n * 4), *y = malloc(n * 4), worst = 0, largest = 0;
        seen[t->type] = true;
        ck_assert(krn_expand(t->type, fa + t->offset, n, x) && krn_expand(KRN_F32, fb + u->offset, n, y));
        for (size_t k = 0; k < n; k++) {
            worst = fmaxf(worst, fabsf(x[k] - y[k]));
            largest = fmaxf(largest, fabsf(y[k]));
        }
        float bar = t->type == KRN_F32 ? 0 : t->type == KRN_F16 || t->type == KRN_BF16 ? 0.004f : t->type == KRN_Q8_0 ? 0.006f : 0.126f;
        ck_assert_msg(worst <= bar * largest, "%s %s: %g of %g", t->name, krn_types[t->type].name, (double)worst, (double)largest);
        free(x);
        free(y);
    }
    ck_assert(seen[KRN_F32] && seen[KRN_F16] && seen[KRN_BF16] && seen[KRN_Q8_0] && seen[KRN_Q4_0] && seen[KRN_Q4_1]);
    free(fa);
    free(fb);
    off_catalog_close(a);
    off_catalog_close(b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tiny_llama");
    TCase *t = tcase_create("core");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, core);
    tcase_add_test(t, types);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad ? 1 : 0;
}
