/* Golden ids: the small tokenizers of tests/data always, published ones where ../shared has them. */
#include <unistd.h>

#include "engine/tok_verify.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

#define SHARED "../shared/data/tokenizers/"

static void must_pass(const eng_tok *t, const char *golden, size_t at_least, size_t refused)
{
    struct eng_tok_verdict v = {0};
    struct err e = {0};
    OK(eng_tok_verify_with(t, golden, stdout, &v, &e));
    ck_assert_msg(v.failed == 0, "%s: %zu of %zu checks failed", golden, v.failed, v.passed + v.failed);
    ck_assert_msg(v.passed >= at_least, "%s: only %zu checks", golden, v.passed);
    ck_assert_msg(v.refused <= refused, "%s: %zu cases refused", golden, v.refused);
}

/* The same goldens again from the saved form, which must also save to the same bytes. */
static void twice(eng_tok *t, const char *golden, size_t at_least, size_t refused)
{
    struct buf a, b;
    struct err e = {0};
    eng_tok *u;
    buf_init(&a, 1u << 30);
    buf_init(&b, 1u << 30);
    must_pass(t, golden, at_least, refused);
    OK(eng_tok_save(t, &a, &e));
    OK(eng_tok_load(&u, a.data, a.len, &e));
    OK(eng_tok_save(u, &b, &e));
    ck_assert(a.len == b.len && !memcmp(a.data, b.data, a.len));
    must_pass(u, golden, at_least, refused);
    eng_tok_close(u);
    buf_free(&a);
    buf_free(&b);
}

START_TEST(core)
{
    static const struct { const char *name; size_t at_least; } small[] = {{"llama", 16}, {"gemma3", 13}, {"qwen3", 10}, {"kimi_linear", 12}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        char path[100], golden[100];
        struct err e = {0};
        eng_tok *t;
        snprintf(path, sizeof path, "tests/data/tokenizer/%s.json", small[i].name);
        snprintf(golden, sizeof golden, "tests/data/tokenizer/%s.golden.json", small[i].name);
        OK(eng_tok_open_file(&t, path, &e));
        twice(t, golden, small[i].at_least, 2); /* chats: control tokens that plain text may not make */
        eng_tok_close(t);
    }
}
END_TEST

/* refused: plain texts in which the reference's own Unigram model makes a control token; a stated difference. */
static const struct published { const char *packed, *file, *golden, *stream; size_t at_least, refused; } published[] = {
    {"gguf/smollm2.vocab.gguf.gz", "t.gguf", "gguf/smollm2.golden.json", NULL, 1161, 0},
    {"gguf/llama3.vocab.gguf.gz", "t.gguf", "gguf/llama3.golden.json", NULL, 1158, 0},
    {"gguf/qwen2.5.vocab.gguf.gz", "t.gguf", "gguf/qwen2.5.golden.json", NULL, 1146, 0},
    {"gguf/gemma3.vocab.gguf.gz", "t.gguf", "gguf/gemma3.golden.json", NULL, 1218, 0},
    {"gguf/llama2.vocab.gguf.gz", "t.gguf", "gguf/llama2.golden.json", NULL, 1155, 0},
    {"llama3/tokenizer.json.gz", "tokenizer.json", "llama3/golden.json", "llama3/streaming.json", 1584, 0},
    {"qwen3/tokenizer.json.gz", "tokenizer.json", "qwen3/golden.json", "qwen3/streaming.json", 1644, 0},
    {"deepseek-v3/tokenizer.json.gz", "tokenizer.json", "deepseek-v3/golden.json", "deepseek-v3/streaming.json", 1671, 0},
    {"gpt-oss/tokenizer.json.gz", "tokenizer.json", "gpt-oss/golden.json", "gpt-oss/streaming.json", 1618, 0},
    {"gemma3/tokenizer.json.gz", "tokenizer.json", "gemma3/golden.json", "gemma3/streaming.json", 1673, 0},
    {"mistral-v1/tokenizer.json.gz", "tokenizer.json", "mistral-v1/golden.json", "mistral-v1/streaming.json", 1576, 0},
    {"unigram-bytes/tokenizer.json.gz", "tokenizer.json", "unigram-bytes/golden.json", "unigram-bytes/streaming.json", 1546, 33},
    {"unigram-t5/tokenizer.json.gz", "tokenizer.json", "unigram-t5/golden.json", NULL, 1801, 52},
    {"kimi-k3-standin/tiktoken.model.gz", "tiktoken.model", "kimi-k3-standin/golden.json", "kimi-k3-standin/streaming.json", 1678, 0},
    {"kimi-k3-standin/tiktoken.model.gz", "tiktoken.model", "kimi-k3-standin/golden_long.json", NULL, 24, 0},
};

static void published_one(const struct published *p, const char *dir)
{
    char path[256], golden[256], cmd[1024];
    struct err e = {0};
    eng_tok *t;
    snprintf(path, sizeof path, "%s/%s", dir, p->file);
    snprintf(cmd, sizeof cmd, "gunzip -c '" SHARED "%s' > '%s'", p->packed, path);
    ck_assert_msg(system(cmd) == 0, "%s", cmd);
    if (strstr(p->packed, "kimi")) {
        snprintf(cmd, sizeof cmd, "cp '" SHARED "kimi-k3-standin/tokenizer_config.json' '%s'", dir);
        ck_assert_msg(system(cmd) == 0, "%s", cmd);
    }
    OK(eng_tok_open_file(&t, path, &e));
    snprintf(golden, sizeof golden, SHARED "%s", p->golden);
    must_pass(t, golden, p->at_least, p->refused);
    if (p->stream) {
        snprintf(golden, sizeof golden, SHARED "%s", p->stream);
        must_pass(t, golden, 20, 0);
    }
    eng_tok_close(t);
}

START_TEST(shared)
{
    char *dir;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        char path[256];
        snprintf(path, sizeof path, SHARED "%s", published[i].packed);
        if (access(path, R_OK)) {
            printf("SKIP %s is not here\n", path);
            continue;
        }
        dir = mm_tmpdir();
        published_one(&published[i], dir);
        mm_rmdir(dir);
    }
}
END_TEST

/* A golden that is wrong in one id, one text or one chunk must be noticed, each by the check that owns it. */
START_TEST(errors)
{
    static const struct { const char *golden; size_t passed, failed; } l[] = {
        {"[{\"text\": \"The lock k\", \"ids\": [328, 280, 460, 337]}]", 2, 0},
        {"[{\"text\": \"The lock k\", \"ids\": [328, 280, 460, 336]}]", 0, 2},
        {"[{\"text\": \"The lock k\", \"ids\": [328, 280, 460]}]", 0, 2},
        {"[{\"text\": \"The lock k\", \"ids\": [328, 280, 460, 337], \"ids_with_specials\": [507, 328, 280, 460, 337], \"decoded\": \"The lock k\"}]", 4, 0},
        {"[{\"text\": \"The lock k\", \"ids\": [328, 280, 460, 337], \"ids_with_specials\": [328, 280, 460, 337], \"decoded\": \"The lock\"}]", 2, 2},
        {"[{\"ids\": [328, 280], \"chunks\": [\"The\", \" l\"], \"tail\": \"\", \"text\": \"The l\"}]", 1, 0},
        {"[{\"ids\": [328, 280], \"chunks\": [\"The \", \"l\"], \"tail\": \"\", \"text\": \"The l\"}]", 0, 1},
        {"[{\"ids\": [328], \"chunks\": [\"The\"], \"tail\": \"x\"}]", 0, 1},
        {"[{\"text\": \"<|eot_id|>\", \"ids\": [511], \"ids_plain\": [511]}]", 1, 0},
        {"[{}]", 0, 1},
    };
    struct err e = {0};
    eng_tok *t;
    char *dir = mm_tmpdir();
    OK(eng_tok_open_file(&t, "tests/data/tokenizer/llama.json", &e));
    for (size_t i = 0; i < sizeof l / sizeof *l; i++) {
        struct eng_tok_verdict v = {0};
        mm_text(dir, "g.json", l[i].golden);
        OK(eng_tok_verify_with(t, mm_path(dir, "g.json"), NULL, &v, &e));
        ck_assert_msg(v.passed == l[i].passed && v.failed == l[i].failed, "%s: %zu passed, %zu failed", l[i].golden, v.passed, v.failed);
    }
    struct eng_tok_verdict v = {0};
    mm_text(dir, "g.json", "{}");
    FAILS(ERR_FORMAT, "an array of cases", eng_tok_verify_with(t, mm_path(dir, "g.json"), NULL, &v, &e));
    FAILS(ERR_IO, "none.json", eng_tok_verify("none.json", mm_path(dir, "g.json"), NULL, &v, &e));
    eng_tok_close(t);
    mm_rmdir(dir);
}
END_TEST

SUITE("engine", "tok_verify", core, shared, errors)
