/* engine/verify: whole models against stored reference results, in every setting that must not matter. */
#include <check.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/verify.h"
#include "engine/ops.h"
#include "engine/session.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

/* Every folder of tests/data/models that has a reference: a family joins by its data alone. */
static char fixtures[64][128], goldens[16][128];
static int n_fixtures, n_goldens;
static const struct { const char *what; uint32_t chunk, page, threads; enum krn_isa isa; uint32_t seqs; } settings[] = {
    {"whole prompt", 0, 64, 2, KRN_ISA_AUTO, 1}, {"chunk 1", 1, 16, 1, KRN_ISA_AUTO, 1}, {"chunk 7", 7, 64, 2, KRN_ISA_AUTO, 1},
    {"chunk 64", 64, 16, 2, KRN_ISA_AUTO, 1},    {"plain C", 0, 64, 2, KRN_ISA_C, 1},    {"AVX2", 0, 64, 2, KRN_ISA_AVX2, 1},
    {"AVX-512", 0, 64, 2, KRN_ISA_AVX512, 1}, {"8 sequences", 64, 16, 2, KRN_ISA_AUTO, 8}, {"chunk 7 of 8 sequences", 7, 64, 1, KRN_ISA_AUTO, 8},
};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

static void find_fixtures(void)
{
    glob_t g;
    if (!glob("tests/data/models/*/reference/activations.safetensors", 0, NULL, &g))
        for (size_t i = 0; i < g.gl_pathc && i < sizeof fixtures / sizeof *fixtures; i++)
            snprintf(fixtures[n_fixtures++], sizeof fixtures[0], "%.*s", (int)(strlen(g.gl_pathv[i]) - strlen("/reference/activations.safetensors")), g.gl_pathv[i]);
    globfree(&g);
    if (!glob("tests/data/real/*.json", 0, NULL, &g))
        for (size_t i = 0; i < g.gl_pathc && i < sizeof goldens / sizeof *goldens; i++)
            snprintf(goldens[n_goldens++], sizeof goldens[0], "%s", g.gl_pathv[i]);
    globfree(&g);
}

static char *output(struct eng_verify *v, int *rc, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    v->out = open_memstream(&text, &n);
    *rc = eng_verify_run(v, e);
    fclose(v->out);
    return text;
}

/* Company matters where sequences share work: experts, latents, recurrent states. */
static bool shares(const char *dir)
{
    char path[200];
    size_t n;
    snprintf(path, sizeof path, "%s/config.json", dir);
    char *text = mm_read(path, &n);
    bool yes = strstr(text, "expert") != NULL;
    free(text);
    return yes;
}

START_TEST(fixture)
{
    struct err e = {0};
    int rc;
    const char *dir = fixtures[_i / N_SETTINGS];
    unsigned k = (unsigned)_i % N_SETTINGS;
    if (SUITE_SLOW && k != (_i / N_SETTINGS % 2 ? 2u : 0u)) /* whole or chunk 7 */
        return;
    if (settings[k].seqs > 1 && !shares(dir))
        return;
    if (settings[k].isa != KRN_ISA_AUTO && !krn_isa_have(settings[k].isa)) {
        printf("SKIP %s: this machine has none\n", settings[k].what);
        return;
    }
    struct eng_verify v = {.what = ENG_VERIFY_ALL, .c = {.model_path = dir, .chunk = settings[k].chunk, .page_tokens = settings[k].page,
                           .threads = settings[k].threads, .seqs = settings[k].seqs, .isa = settings[k].isa, .precision = KRN_PREC_F32, .kv_type = KRN_TYPE_COUNT}};
    char *text = output(&v, &rc, &e);
    ck_assert_msg(rc == ERR_OK, "%s, %s: %s", dir, settings[k].what, e.msg);
    ck_assert_msg(v.failed == 0 && v.passed >= 24, "%s, %s:\n%s", dir, settings[k].what, text);
    free(text);
}
END_TEST

/* The same config in the newer spelling, where a fixture has it. */
START_TEST(spelling)
{
    struct err e = {0};
    int rc;
    char ref[160], newer[200], pattern[160];
    glob_t g;
    snprintf(ref, sizeof ref, "%s/reference", fixtures[_i]);
    snprintf(newer, sizeof newer, "%s/config-newer.json", ref);
    if (access(newer, R_OK))
        return;
    char *dir = mm_tmpdir();
    snprintf(pattern, sizeof pattern, "%s/*.*", fixtures[_i]);
    ck_assert_int_eq(glob(pattern, 0, NULL, &g), 0);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        const char *base = strrchr(g.gl_pathv[i], '/') + 1;
        char *full = realpath(strcmp(base, "config.json") ? g.gl_pathv[i] : newer, NULL);
        ck_assert(full && !symlink(full, mm_path(dir, base)));
        free(full);
    }
    globfree(&g);
    struct eng_verify v = {.what = ENG_VERIFY_ALL, .ref = ref, .c = {.model_path = dir, .threads = 1, .precision = KRN_PREC_F32, .kv_type = KRN_TYPE_COUNT}};
    char *text = output(&v, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.failed == 0 && v.passed >= 24, "%s: %s\n%s", newer, e.msg, text);
    free(text);
    mm_rmdir(dir);
}
END_TEST

/* A check that cannot fail is none: other numbers, other verdicts. */
START_TEST(notices)
{
    struct err e = {0};
    int rc;
    struct eng_verify v = {.what = ENG_VERIFY_ALL, .ref = "tests/data/models/llama-tied/reference",
                           .c = {.model_path = "tests/data/models/llama", .precision = KRN_PREC_F32, .kv_type = KRN_TYPE_COUNT}};
    char *text = output(&v, &rc, &e);
    ck_assert(rc != ERR_OK || v.failed > 10);
    free(text);
    v = (struct eng_verify){.ref = "tests/data/nowhere", .c = {.model_path = "tests/data/models/llama", .kv_type = KRN_TYPE_COUNT}};
    free(output(&v, &rc, &e));
    ck_assert_int_eq(rc, ERR_NOTFOUND);
}
END_TEST

/* Every operator that is a call has known answers, each of which tells its mistakes apart by far more than the tolerance. */
START_TEST(answers)
{
    struct json *doc;
    struct arena a;
    struct err e = {0};
    arena_init(&a, 64u << 20);
    OK(json_parse_file(&doc, "tests/data/operators/known.json", 16u << 20, &a, &e));
    const struct json *cases = json_get(doc, "cases");
    for (size_t k = 0; k < eng_n_ops; k++) {
        size_t n = 0;
        for (size_t i = 0; i < cases->n; i++)
            if (json_eq(json_get(cases->items[i], "op"), eng_ops[k].name)) {
                const struct json *apart = json_get(cases->items[i], "apart");
                ck_assert(json_is(apart, JSON_OBJECT) && apart->n);
                for (size_t m = 0; m < apart->n; m++) {
                    double d = 0;
                    ck_assert_msg(json_num(apart->members[m].value, &d) && d > 50 * eng_ops[k].tolerance, "%s: %s is %g away", eng_ops[k].name, apart->members[m].key, d);
                }
                n++;
            }
        ck_assert_msg(n || eng_ops[k].code == KRN_OP_NONE, "%s has no known answer", eng_ops[k].name);
    }
    arena_free(&a);
}
END_TEST

/* Operators by themselves, and a wrong answer is noticed. */
START_TEST(operators)
{
    char *dir = mm_tmpdir(), *text = NULL, *known, *at;
    size_t n = 0, len;
    struct err e = {0};
    struct eng_verify v = {.passed = 0};
    v.out = open_memstream(&text, &n);
    OK(eng_verify_operators(&v, NULL, &e));
    fclose(v.out);
    ck_assert_msg(v.failed == 0 && v.passed >= 42, "%s", text);
    free(text);
    known = mm_read("tests/data/operators/known.json", &len);
    at = strstr(known, "\"sinks\"");
    at = at ? strstr(at, "\"out\"") : NULL;
    at = at ? strstr(at, "\"v\":[") : NULL;
    ck_assert(at != NULL);
    at += strlen("\"v\":[");
    at[*at == '-' ? 3 : 2] = at[*at == '-' ? 3 : 2] == '9' ? '1' : '9'; /* the first digit behind the point */
    mm_text(dir, "known.json", known);
    v = (struct eng_verify){.out = fopen("/dev/null", "w")};
    OK(eng_verify_operators(&v, mm_path(dir, "known.json"), &e));
    ck_assert_uint_ge(v.failed, 1);
    mm_text(dir, "known.json", "{\"cases\":[{\"op\":\"twist\",\"case\":\"x\"}]}");
    FAILS(ERR_FORMAT, "one of the registry", eng_verify_operators(&v, mm_path(dir, "known.json"), &e));
    mm_text(dir, "known.json", "{\"cases\":[{\"op\":\"silu\",\"case\":\"x\",\"rows\":2,\"in\":[{\"heads\":1,\"dim\":2,\"v\":[1]}],\"out\":{\"heads\":1,\"dim\":2,\"v\":[]}}]}");
    FAILS(ERR_FORMAT, "silu: value 1 is missing", eng_verify_operators(&v, mm_path(dir, "known.json"), &e));
    fclose(v.out);
    free(known);
    mm_rmdir(dir);
}
END_TEST

/* What is frozen on the path in use holds there whatever chunks and instruction set, its text on another path too where its margins are wide, and nothing of it for another model. */
START_TEST(baseline)
{
    char *dir = mm_tmpdir(), *text;
    const char *to = mm_path(dir, "base");
    struct err e = {0};
    int rc;
    struct eng_verify v = {.what = ENG_VERIFY_ALL, .ref = to, .out = fopen("/dev/null", "w"),
                           .c = {.model_path = "tests/data/models/qwen3_moe", .threads = 2, .ctx = 200, .chunk = 64, .kv_type = KRN_TYPE_COUNT}};
    OK(eng_verify_write(&v, to, NULL, &e));
    fclose(v.out);
    v.c.ctx = 0;
    v.c.chunk = 7;
    v.c.isa = KRN_ISA_C;
    text = output(&v, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.failed == 0 && v.passed >= 24 && strstr(text, "long.logits"), "%s\n%s", e.msg, text);
    free(text);
    v.passed = 0;
    v.what = ENG_VERIFY_TEXT; /* experts that are nearly as good are other ones there: only the text's margins say something */
    v.c.precision = KRN_PREC_F32;
    v.c.isa = KRN_ISA_AUTO;
    text = output(&v, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.failed == 0 && v.passed == 5, "%s\n%s", e.msg, text);
    free(text);
    v.what = ENG_VERIFY_ALL;
    v.c.model_path = "tests/data/models/llama-tied";
    text = output(&v, &rc, &e);
    ck_assert(rc != ERR_OK || v.failed > 10);
    free(text);
    v.c.model_path = "tests/data/models/qwen3_moe";
    v.out = stdout;
    FAILS(ERR_IO, "not a directory", eng_verify_write(&v, "tests/data/README.md", NULL, &e));
    mm_rmdir(dir);
}
END_TEST

/* exp of the mean surprise, straight from the definition. */
static double perplexity_of(const char *model, const char *text)
{
    struct eng_config c = {.model_path = model, .seqs = 1, .chunk = 4, .threads = 1, .precision = KRN_PREC_F32, .kv_type = KRN_F32};
    struct eng_ids ids = {.max = 1000};
    struct err e = {0};
    eng_session *s;
    long double sum = 0;
    OK(eng_session_open(&s, &c, 1, &e));
    OK(eng_tok_encode(eng_session_model(s)->tok, text, strlen(text), ENG_TOK_WRAP, &ids, &e));
    for (uint32_t i = 0; i + 1 < ids.n; i++) {
        struct eng_part part = {.pos0 = i, .n = 1, .tokens = ids.v + i, .picks = ENG_PICK_LAST};
        long double all = 0;
        OK(eng_session_step(s, &part, 1, NULL, NULL, &e));
        const float *row = eng_session_logits(s, 0);
        for (uint32_t k = 0; k < eng_tok_count(eng_session_model(s)->tok); k++)
            all += expl((long double)row[k]);
        sum -= logl(expl((long double)row[ids.v[i + 1]]) / all);
    }
    double p = (double)expl(sum / (long double)(ids.n - 1));
    eng_ids_free(&ids);
    eng_session_close(s);
    return p;
}

static double said(const char *out, const char *before)
{
    const char *p = strstr(out, before);
    ck_assert_msg(p != NULL, "%s", out);
    return strtod(p + strlen(before), NULL);
}

START_TEST(perplexity)
{
    static const char story[] = "The quick brown fox jumps over the lazy dog; nobody minds.";
    char *dir = mm_tmpdir(), *text;
    const char *model = mm_path(dir, "m.gguf"), *file = mm_path(dir, "text.txt");
    struct err e = {0};
    int rc;
    tiny_llama_write(model, NULL);
    mm_text(dir, "text.txt", story);
    struct eng_verify v = {.c = {.model_path = model, .threads = 2, .kv_type = KRN_TYPE_COUNT}};
    size_t n = 0;
    v.out = open_memstream(&text, &n);
    rc = eng_verify_text(&v, file, &e);
    fclose(v.out);
    ck_assert_msg(rc == ERR_OK && v.passed + v.failed == 1, "%s", e.msg);
    double want = perplexity_of(model, story), got = said(text, "tokens: ");
    ck_assert_msg(fabs(got / want - 1) < 1e-4, "expected %.6f:\n%s", want, text);
    double served = said(text, "in f32, "), line = said(strstr(text, "text.perplexity"), ")");
    ck_assert_msg(fabs(line - fabs(served / got - 1)) < 1e-4 && line > 0 && (line <= 0.005) == (v.passed == 1), "%s", text);
    free(text);
    v.out = stdout;
    FAILS(ERR_NOTFOUND, "none.txt", eng_verify_text(&v, mm_path(dir, "none.txt"), &e));
    mm_text(dir, "text.txt", "");
    FAILS(ERR_IO, "is empty", eng_verify_text(&v, file, &e));
    mm_text(dir, "text.txt", "a");
    FAILS(ERR_FORMAT, "expected at least 2", eng_verify_text(&v, file, &e));
    mm_write(file, "a\xff" "b", 3);
    FAILS(ERR_INVALID, "not UTF-8", eng_verify_text(&v, file, &e));
    mm_rmdir(dir);
}
END_TEST

/* NULL, and why is said: the model of these goldens is not there. */
static const char *fetched(const char *ref)
{
    static char path[4096];
    const char *models = getenv("SLUICE_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s/%.*s.gguf", models ? models : cache ? cache : home ? home : "", models ? "" : cache ? "/sluice/models" : "/.cache/sluice/models",
             (int)(strlen(ref) - strlen("tests/data/real/.json")), ref + strlen("tests/data/real/"));
    if (!access(path, R_OK))
        return path;
    printf("SKIP real model: %s is not fetched (scripts/fetch.sh)\n", strrchr(path, '/') + 1);
    return NULL;
}

/* Models with goldens, where they have been fetched: ids, the ten best logits, greedy text; both paths. */
START_TEST(real)
{
    struct err e = {0};
    int rc;
    const char *ref = goldens[_i / 2], *path = fetched(ref);
    if (!path)
        return;
    struct eng_verify v = {.what = ENG_VERIFY_ALL, .ref = ref,
                           .c = {.model_path = path, .kv_type = KRN_TYPE_COUNT, .precision = _i % 2 ? KRN_PREC_AUTO : KRN_PREC_F32}};
    char *text = output(&v, &rc, &e);
    ck_assert_msg(rc == ERR_OK, "%s", e.msg);
    ck_assert_msg(v.failed == 0 && v.passed >= 12 && v.passed % 3 == 0, "%s", text);
    free(text);
}
END_TEST

/* A needle's table into memory. */
static char *needle_table(struct eng_verify *v, const char *path, uint32_t length, uint32_t depth, int *rc, struct err *e)
{
    char *text = NULL;
    size_t n;
    v->out = open_memstream(&text, &n);
    *rc = eng_verify_needle(v, path, &length, length != 0, &depth, 1, e);
    fclose(v->out);
    return text;
}

/* Weights without meaning miss it, and what they say instead is there to read. */
START_TEST(needle_missed)
{
    char *dir = mm_tmpdir(), *text, model[600];
    struct err e = {0};
    int rc;
    snprintf(model, sizeof model, "%s", mm_path(dir, "tiny.gguf"));
    tiny_llama_write(model, &(struct tiny_llama){.seed = 5});
    struct eng_verify v = {.c = {.model_path = model, .kv_type = KRN_TYPE_COUNT}};
    text = needle_table(&v, NULL, 640, 50, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.passed == 0 && v.failed == 1 && strstr(text, "     640   missed\n") && strstr(text, "at 50 %: expected "), "%s%s", e.msg, text);
    free(text);
    v.json = true;
    text = needle_table(&v, "tests/data/text/opticks.txt", 640, 50, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.failed == 2 && strstr(text, "\"length\":640,\"depth\":50,\"prompt_tokens\":5"), "%s%s", e.msg, text); /* 592 at most, and not much less */
    free(text);
    free(needle_table(&v, NULL, 100, 50, &rc, &e));
    ck_assert_msg(rc == ERR_INVALID && strstr(e.msg, "100 tokens are too few"), "%s", e.msg);
    free(needle_table(&v, NULL, 2049, 50, &rc, &e));
    ck_assert_msg(rc == ERR_INVALID && strstr(e.msg, "2049 tokens, the model was made for 2048"), "%s", e.msg);
    free(needle_table(&v, "/nowhere", 640, 50, &rc, &e));
    ck_assert_msg(rc == ERR_NOTFOUND && v.passed + v.failed == 2, "%s", e.msg);
    mm_rmdir(dir);
}
END_TEST

/* A model that was trained finds it. */
START_TEST(needle_found)
{
    const char *path = fetched("tests/data/real/SmolLM2-135M-Instruct.Q4_1.json");
    struct err e = {0};
    int rc;
    if (!path)
        return;
    struct eng_verify v = {.c = {.model_path = path, .kv_type = KRN_TYPE_COUNT}};
    char *text = needle_table(&v, NULL, SUITE_SLOW ? 256 : 512, 50, &rc, &e);
    ck_assert_msg(rc == ERR_OK && v.passed == 1 && v.failed == 0, "%s%s", e.msg, text);
    free(text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("verify");
    find_fixtures();
    if (n_fixtures < 7 || !n_goldens) {
        printf("expected at least 7 fixtures in tests/data/models and a golden in tests/data/real, found %d and %d\n", n_fixtures, n_goldens);
        return 1;
    }
    TCase *t = tcase_create("core");
    tcase_set_timeout(t, 1200);
    tcase_add_loop_test(t, fixture, 0, n_fixtures * N_SETTINGS);
    tcase_add_loop_test(t, spelling, 0, n_fixtures);
    tcase_add_test(t, notices);
    tcase_add_test(t, perplexity);
    tcase_add_loop_test(t, real, 0, 2 * n_goldens);
    suite_add_tcase(s, t);
    t = tcase_create("alone"); /* what needs no fixture's reference */
    tcase_add_test(t, answers);
    tcase_add_test(t, baseline);
    tcase_add_test(t, operators);
    tcase_add_test(t, needle_missed);
    tcase_add_test(t, needle_found);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
