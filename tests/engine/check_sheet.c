/* Merging, matching, claims; the built-in sheets. */
#include <string.h>

#include "engine/sheet.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;

static void merged(const char *const *texts, size_t n, const char *name, const char *expected)
{
    eng_sheets *s;
    struct arena a;
    struct buf b;
    const struct json *m;
    arena_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    OK(eng_sheets_open_texts(&s, texts, n, &e));
    OK(eng_sheets_merge(s, name, &a, &m, &e));
    json_put(&b, m);
    ck_assert_str_eq(b.data, expected);
    buf_free(&b);
    arena_free(&a);
    eng_sheets_close(s);
}

START_TEST(core)
{
    static const char *const texts[] = {
        "{\"sheet\":\"base\",\"abstract\":true,\"params\":{\"a\":\"1\",\"b\":[\"x\",\"y\"],\"o\":{\"hf\":[\"k\"],\"gguf\":{\"f\":[\"g\"]}}},\"model\":[\"one\",\"two\"]}",
        "{\"sheet\":\"mix\",\"abstract\":true,\"params\":{\"a\":\"2\",\"m\":\"3\"},\"blocks\":{\"q\":[]}}",
        "{\"sheet\":\"kid\",\"extends\":[\"base\",\"mix\"],\"match\":{\"hf\":{\"model_type\":[\"kid\",\"kid2\"]}},\"params\":{\"b\":\"4\",\"m\":null,\"o\":{\"gguf\":{\"f\":null,\"h\":[\"i\"]}}},\"model\":[\"three\"]}",
        "{\"sheet\":\"variant\",\"extends\":\"kid\",\"params\":{\"z\":null}}"};
    /* objects merge, null deletes, everything else replaces; later bases win over earlier ones, the sheet over all */
    merged(texts, 4, "kid", "{\"sheet\":\"kid\",\"params\":{\"a\":\"2\",\"b\":\"4\",\"o\":{\"hf\":[\"k\"],\"gguf\":{\"h\":[\"i\"]}}},\"model\":[\"three\"],\"blocks\":{\"q\":[]}}");
}
END_TEST

START_TEST(matching)
{
    static const char *const texts[] = {
        "{\"sheet\":\"kid\",\"match\":{\"hf\":{\"model_type\":[\"kid\",\"kid2\"]},\"gguf\":{\"general.architecture\":[\"kidarch\"]}}}",
        "{\"sheet\":\"variant\",\"extends\":\"kid\"}"};
    eng_sheets *s;
    struct arena a;
    const struct json *m;
    OK(eng_sheets_open_texts(&s, texts, 2, &e));
    ck_assert_str_eq(eng_sheets_match(s, "hf", "model_type", "kid2"), "kid");
    ck_assert_str_eq(eng_sheets_match(s, "gguf", "general.architecture", "kidarch"), "kid");
    ck_assert_ptr_null(eng_sheets_match(s, "hf", "model_type", "kid22")); /* exact */
    ck_assert_ptr_null(eng_sheets_match(s, "hf", "model_type", "kidarch"));
    arena_init(&a, 1 << 20);
    OK(eng_sheets_merge(s, "variant", &a, &m, &e));
    ck_assert_ptr_null(json_get(m, "match")); /* a variant inherits no claim */
    FAILS(ERR_NOTFOUND, "no sheet `nobody`", eng_sheets_merge(s, "nobody", &a, &m, &e));
    arena_free(&a);
    eng_sheets_close(s);
}
END_TEST

START_TEST(built_in)
{
    static const struct { const char *kind, *key, *value, *sheet; } claims[] = {
        {"hf", "model_type", "llama", "llama"}, {"hf", "model_type", "mistral", "mistral"}, {"hf", "model_type", "qwen2", "qwen2"}, {"hf", "model_type", "qwen3", "qwen3"},
        {"hf", "model_type", "gemma3", "gemma3"}, {"hf", "model_type", "gemma3_text", "gemma3"}, {"hf", "model_type", "deepseek_v3", "deepseek_v3"},
        {"hf", "model_type", "kimi_k2", "deepseek_v3"}, {"hf", "model_type", "kimi_linear", "kimi_linear"}, {"hf", "model_type", "kimi_k3", "kimi_k3"},
        {"gguf", "general.architecture", "llama", "llama"}, {"gguf", "general.architecture", "gemma3", "gemma3"}, {"gguf", "general.architecture", "qwen2", "qwen2"},
        {"hf", "model_type", "smollm3", NULL}, {"hf", "model_type", "mixtral", NULL}, {"hf", "model_type", "deepseek_v2", NULL}};
    eng_sheets *s;
    struct arena a;
    OK(eng_sheets_open(&s, NULL, &e));
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        const char *got = eng_sheets_match(s, claims[i].kind, claims[i].key, claims[i].value);
        ck_assert_msg((!got && !claims[i].sheet) || (got && claims[i].sheet && !strcmp(got, claims[i].sheet)), "%s: %s", claims[i].value, got ? got : "none");
    }
    for (size_t i = 0; i < eng_sheets_count(s); i++) {
        const struct json *m;
        arena_init(&a, 8 << 20);
        OK(eng_sheets_merge(s, eng_sheets_name(s, i), &a, &m, &e));
        arena_free(&a);
    }
    eng_sheets_close(s);
}
END_TEST

START_TEST(directory)
{
    char *dir = mm_tmpdir();
    eng_sheets *s;
    struct arena a;
    const struct json *m;
    mm_text(dir, "mine.json", "{\"sheet\":\"llama\",\"extends\":\"decoder\",\"match\":{\"hf\":{\"model_type\":[\"llama\",\"mine\"]}},\"params\":{\"win\":\"7\"}}");
    mm_text(dir, "notes.txt", "not a sheet");
    OK(eng_sheets_open(&s, dir, &e)); /* replaces the built-in one of that name */
    ck_assert_str_eq(eng_sheets_match(s, "hf", "model_type", "mine"), "llama");
    ck_assert_ptr_null(eng_sheets_match(s, "gguf", "general.architecture", "llama"));
    arena_init(&a, 8 << 20);
    OK(eng_sheets_merge(s, "mistral", &a, &m, &e));
    ck_assert_str_eq(json_str(json_path(m, "params.hidden")) ? "text" : "list", "list");
    arena_free(&a);
    eng_sheets_close(s);
    mm_text(dir, "bad.json", "{\"sheet\":\"bad\",");
    FAILS(ERR_FORMAT, "bad.json", eng_sheets_open(&s, dir, &e));
    ck_assert_ptr_null(s);
    FAILS(ERR_IO, "cannot list", eng_sheets_open(&s, "/nonexistent", &e));
    mm_rmdir(dir);
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *texts[2]; int code; const char *says; } bad[] = {
        {{"[]"}, ERR_FORMAT, "expected an object with a text `sheet`"},
        {{"{\"sheet\":\"a\",\"modle\":[]}"}, ERR_FORMAT, "unknown section `modle`"},
        {{"{\"sheet\":\"a\",\"params\":{\"x\":\"1\",\"x\":\"2\"}}"}, ERR_FORMAT, "x"},
        {{"{\"sheet\":\"a\",\"match\":{\"hf\":{\"model_type\":[\"m\"]}}}", "{\"sheet\":\"b\",\"match\":{\"hf\":{\"model_type\":[\"m\"]}}}"}, ERR_FORMAT, "both claim model_type m"},
        {{"{\"sheet\":\"a\",\"match\":{\"hf\":[]},\"model\":[]}", "{\"sheet\":\"b\",\"match\":{\"hf\":{\"model_type\":\"m\"}}}"}, ERR_FORMAT, "must be an object of lists"}};
    eng_sheets *s;
    struct arena a;
    const struct json *m;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        FAILS(bad[i].code, bad[i].says, eng_sheets_open_texts(&s, bad[i].texts, bad[i].texts[1] ? 2 : 1, &e));
    static const char *const circle[] = {"{\"sheet\":\"a\",\"extends\":\"b\"}", "{\"sheet\":\"b\",\"extends\":[\"a\"]}"};
    OK(eng_sheets_open_texts(&s, circle, 2, &e));
    arena_init(&a, 1 << 20);
    FAILS(ERR_FORMAT, "circle", eng_sheets_merge(s, "a", &a, &m, &e));
    eng_sheets_close(s);
    static const char *const orphan[] = {"{\"sheet\":\"a\",\"extends\":\"gone\"}"};
    OK(eng_sheets_open_texts(&s, orphan, 1, &e));
    FAILS(ERR_NOTFOUND, "sheet a extends: no sheet `gone`", eng_sheets_merge(s, "a", &a, &m, &e));
    eng_sheets_close(s);
    arena_free(&a);
}
END_TEST

SUITE("engine", "sheet", core, matching, built_in, directory, errors)
