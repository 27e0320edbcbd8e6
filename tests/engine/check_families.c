/* Each dense family from both kinds of file: a GGUF as the usual converter writes it gives the tokens and the logits of the
 * safetensors it was made from. Two configs lose a fact on the way (Mistral's window, Gemma's query_pre_attn_scalar): there the
 * safetensors say what the GGUF is taken to mean. */
#include <math.h>
#include <unistd.h>

#include "engine/session.h"
#include "engine/verify.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"
#include "tests/support/to_gguf.h"

static struct err e;
static const struct { const char *dir, *arch, *from, *to; unsigned files; } families[] = {
    {"llama", "llama", NULL, NULL, 1}, {"llama-tied", "llama", NULL, NULL, 3}, {"mistral", "llama", "\"sliding_window\": 32", "\"sliding_window\": null", 1},
    {"qwen2", "qwen2", NULL, NULL, 2}, {"qwen3", "qwen3", NULL, NULL, 1}, {"gemma3", "gemma3", "\"query_pre_attn_scalar\": 40", "\"query_pre_attn_scalar\": 32", 1},
    {"phi3", "phi3", NULL, NULL, 1}, {"glm4", "glm4", NULL, NULL, 1}};

/* The fixture with one fact of its config exchanged; returns a directory of its own. */
static char *altered(const char *dir, const char *from, const char *to)
{
    static const char *const files[] = {"config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors",
                                        "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    char *out = mm_tmpdir(), path[300];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        snprintf(path, sizeof path, "tests/data/models/%s/%s", dir, files[i]);
        if (access(path, R_OK))
            continue;
        char *text = mm_read(path, &n), *at = i || !from ? NULL : strstr(text, from);
        ck_assert_msg(i || !from || at, "%s has no %s", path, from);
        if (at) {
            char *changed = NULL;
            ck_assert(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
            free(text);
            text = changed;
            n = strlen(text);
        }
        mm_write(mm_path(out, files[i]), text, n);
        free(text);
    }
    return out;
}

static eng_session *open_at(const char *path, uint32_t ctx)
{
    struct eng_config c = {.model_path = path, .ctx = ctx, .seqs = 1, .threads = 1, .chunk = 64, .precision = KRN_PREC_F32, .kv_type = KRN_TYPE_COUNT};
    eng_session *s = NULL;
    ck_assert_msg(!eng_session_open(&s, &c, 64, &e), "%s: %s", path, e.msg);
    return s;
}

static void compare(const char *what, eng_session *a, eng_session *b, const struct eng_ids *ids)
{
    double worst = 0, scale = 0;
    uint32_t vocab = eng_session_model(a)->plan->vocab, at_most = eng_session_model(a)->plan->ctx_switch;
    bool far = at_most && eng_session_config(a)->ctx > at_most; /* as a request would that may fill the context */
    ck_assert_uint_eq(vocab, eng_session_model(b)->plan->vocab);
    for (uint32_t at = 0, n; at < ids->n; at += n) {
        n = ids->n - at < 64 ? (uint32_t)ids->n - at : 64;
        struct eng_part part = {.pos0 = at, .n = n, .tokens = ids->v + at, .picks = ENG_PICK_ALL, .far = far};
        OK(eng_session_step(a, &part, 1, NULL, NULL, &e));
        OK(eng_session_step(b, &part, 1, NULL, NULL, &e));
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t v = 0; v < vocab; v++) {
                double x = (double)eng_session_logits(a, i)[v], y = (double)eng_session_logits(b, i)[v];
                scale = fmax(scale, fabs(x));
                worst = fabs(x - y) <= worst ? worst : fabs(x - y);
            }
    }
    ck_assert_msg(worst <= 1e-4 * scale && scale > 0.1, "%s: logits differ by %g of %g", what, worst, scale);
}

/* Mixtures: the expert stacks, fused and interleaved matrices taken apart, kv_b turned around, A raised, residual scores multiplied
 * out, MXFP4 in blocks. Every layer and the logits against the reference that the safetensors are held to. */
START_TEST(mixtures)
{
    static const struct { const char *dir, *arch; } models[] = {{"deepseek_v3", "deepseek2"}, {"kimi_linear", "kimi-linear"}, {"kimi_k3", "kimi-k3"}, {"gpt_oss", "gpt-oss"}};
    char dir[100], ref[120], *out = mm_tmpdir(), *text = NULL;
    size_t n = 0;
    snprintf(dir, sizeof dir, "tests/data/models/%s", models[_i].dir);
    snprintf(ref, sizeof ref, "%s/reference", dir);
    mm_to_gguf(dir, models[_i].arch, out, 1);
    struct eng_verify v = {.what = ENG_VERIFY_LAYERS, .ref = ref,
                           .c = {.model_path = mm_path(out, "m.gguf"), .threads = 2, .precision = KRN_PREC_F32, .kv_type = KRN_TYPE_COUNT}};
    v.out = open_memstream(&text, &n);
    int rc = eng_verify_run(&v, &e);
    fclose(v.out);
    ck_assert_msg(rc == ERR_OK && v.failed == 0 && v.passed >= 24, "%s: %s\n%s", models[_i].arch, e.msg, text);
    free(text);
    mm_rmdir(out);
}
END_TEST

/* Files of qwen3moe cannot say that a layer is dense: the fixture's first layers, which are not. */
START_TEST(qwen3moe)
{
    char *dir = altered("qwen3_moe", "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2"), *out = mm_tmpdir();
    struct eng_ids ids = {.max = 1000};
    mm_to_gguf(dir, "qwen3moe", out, 1);
    eng_session *a = open_at(dir, 90), *b = open_at(mm_path(out, "m.gguf"), 90);
    OK(eng_tok_encode(eng_session_model(a)->tok, "Routers choose by scores, and by nothing else: 1, 2, 3.", 54, ENG_TOK_WRAP, &ids, &e));
    compare("qwen3moe", a, b, &ids);
    eng_ids_free(&ids);
    eng_session_close(a);
    eng_session_close(b);
    mm_rmdir(dir);
    mm_rmdir(out);
}
END_TEST

START_TEST(core)
{
    static const char text[] = "The quick brown fox doesn't jump over 1234 lazy dogs, she said.\nThen the weather turned cold and the river froze over, "
                               "and they walked home along the old road by the mill, telling each other the stories of the year 1871.";
    char gguf[300];
    int i = _i / 2;
    uint32_t ctx = _i % 2 ? 300 : 90; /* both sides of phi3's switch; the rest must not care */
    char *dir = altered(families[i].dir, families[i].from, families[i].to), *out = mm_tmpdir();
    mm_to_gguf(dir, families[i].arch, out, families[i].files);
    snprintf(gguf, sizeof gguf, "%s/m%s.gguf", out, families[i].files == 1 ? "" : families[i].files == 2 ? "-00001-of-00002" : "-00001-of-00003");
    eng_session *a = open_at(dir, ctx), *b = open_at(gguf, ctx);
    struct eng_ids ids[2] = {{.max = 1000}, {.max = 1000}};
    OK(eng_tok_encode(eng_session_model(a)->tok, text, sizeof text - 1, ENG_TOK_WRAP, &ids[0], &e));
    OK(eng_tok_encode(eng_session_model(b)->tok, text, sizeof text - 1, ENG_TOK_WRAP, &ids[1], &e));
    ck_assert_msg(ids[0].n > 90 && ids[0].n == ids[1].n && !memcmp(ids[0].v, ids[1].v, ids[0].n * sizeof *ids[0].v), "%s: the two tokenizers differ", families[i].dir);
    if (ids[0].n > ctx)
        ids[0].n = ctx;
    compare(families[i].dir, a, b, &ids[0]);
    ck_assert_uint_eq(eng_session_model(b)->plan->ctx_switch, strcmp(families[i].dir, "phi3") ? 0 : 100);
    eng_ids_free(&ids[0]);
    eng_ids_free(&ids[1]);
    eng_session_close(a);
    eng_session_close(b);
    mm_rmdir(dir);
    mm_rmdir(out);
}
END_TEST

/* A fact that is lost changes the logits: the comparison above would notice. */
START_TEST(notices)
{
    char *dir = altered("gemma3", NULL, NULL), *out = mm_tmpdir();
    struct eng_ids ids = {.max = 1000};
    mm_to_gguf(dir, "gemma3", out, 1);
    eng_session *a = open_at(dir, 90), *b = open_at(mm_path(out, "m.gguf"), 90);
    OK(eng_tok_encode(eng_session_model(a)->tok, "a b c d", 7, ENG_TOK_WRAP, &ids, &e));
    struct eng_part part = {.n = (uint32_t)ids.n, .tokens = ids.v, .picks = ENG_PICK_LAST};
    OK(eng_session_step(a, &part, 1, NULL, NULL, &e));
    OK(eng_session_step(b, &part, 1, NULL, NULL, &e));
    double worst = 0;
    for (uint32_t v = 0; v < eng_session_model(a)->plan->vocab; v++)
        worst = fmax(worst, fabs((double)eng_session_logits(a, 0)[v] - (double)eng_session_logits(b, 0)[v]));
    ck_assert(worst > 1e-3);
    eng_ids_free(&ids);
    eng_session_close(a);
    eng_session_close(b);
    mm_rmdir(dir);
    mm_rmdir(out);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/families");
    TCase *t = tcase_create("core");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, core, 0, 2 * (int)(sizeof families / sizeof *families));
    tcase_add_loop_test(t, mixtures, 0, 4);
    tcase_add_test(t, qwen3moe);
    tcase_add_test(t, notices);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
