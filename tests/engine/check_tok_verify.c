/* Golden ids: the small tokenizers of tests/data always, published ones where ../shared has them. */
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "engine/chat.h"
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

/* ---- rendered chats: what the template writes keeps its tokens, what users wrote stays text ------------------ */
static bool same(const struct eng_ids *got, const struct json *want)
{
    bool ok = json_is(want, JSON_ARRAY) && want->n == got->n;
    for (size_t i = 0; ok && i < got->n; i++) {
        int64_t id;
        ok = json_int(want->items[i], &id) && id == got->v[i];
    }
    return ok;
}

static const char *strip(const char *s, size_t *n)
{
    while (*n && strchr(" \t\r\n", *s))
        s++, --*n;
    while (*n && strchr(" \t\r\n", s[*n - 1]))
        --*n;
    return s;
}

/* The contents of the messages, in order, are the spans that are not trusted. first: where the content of a lone message begins,
 * which cannot be searched for when it spells what the template writes in front of it. */
static size_t find_spans(const struct json *c, const struct json *text, size_t first, struct eng_text_span *s, size_t max)
{
    const struct json *messages = json_get(c, "messages");
    size_t at = 0, n = 0;
    if (json_is(messages, JSON_ARRAY) && messages->n == 1 && first < text->n) {
        s[n++] = (struct eng_text_span){0, first, true};
        at = first;
    }
    for (size_t i = 0; json_is(messages, JSON_ARRAY) && i < messages->n && n + 2 < max; i++) {
        const struct json *content = json_get(messages->items[i], "content");
        size_t len = json_is(content, JSON_STRING) ? content->n : 0;
        const char *p = len ? strip(content->s, &len) : NULL, *m = len ? memmem(text->s + at, text->n - at, p, len) : NULL;
        if (!m)
            continue;
        s[n++] = (struct eng_text_span){at, (size_t)(m - text->s), true};
        at = (size_t)(m - text->s) + len;
        s[n++] = (struct eng_text_span){at - len, at, false};
    }
    s[n++] = (struct eng_text_span){at, text->n, true};
    return n;
}

static void chat_cases(eng_tok *t, const struct json *cases, const char *what)
{
    struct eng_ids ids = {.max = 1 << 20};
    struct eng_text_span spans[64];
    struct err e = {0};
    size_t attacks = 0, first = SIZE_MAX;
    for (size_t i = 0; i < cases->n; i++) {
        const struct json *c = cases->items[i], *text = json_get(c, "rendered"), *want = json_get(c, "ids"), *clean = json_get(c, "ids_sanitised");
        const char *name = json_str(json_get(c, "name"));
        if (!json_is(text, JSON_STRING) || !want)
            continue;
        ids.n = 0;
        OK(eng_tok_encode(t, text->s, text->n, ENG_TOK_SPECIAL, &ids, &e));
        ck_assert_msg(same(&ids, want), "%s: %s", what, name);
        const char *hello = name && !strcmp(name, "user") ? strstr(text->s, "Hello, who are you?") : NULL;
        if (hello)
            first = (size_t)(hello - text->s);
        if (!name || strncmp(name, "control text", 12) || strstr(name, "in a tool") || strstr(name, "cut in two"))
            continue;
        attacks++;
        ids.n = 0;
        OK(eng_tok_encode_spans(t, text->s, spans, find_spans(c, text, first, spans, 64), &ids, &e));
        ck_assert_msg(same(&ids, clean ? clean : want), "%s: %s, sanitised", what, name);
    }
    ck_assert_msg(attacks > 0, "%s: no case with control text", what);
    eng_ids_free(&ids);
}

static int prompt_of(const eng_chat *chat, const char *answer, const char *fields, int64_t now, struct arena *a, struct eng_prompt *text, struct err *e)
{
    struct json *body;
    struct buf b;
    struct eng_ids ids = {.max = 1 << 20};
    buf_init(&b, 1 << 16);
    buf_printf(&b, "{\"messages\":[{\"role\":\"user\",\"content\":\"How many?\"},{\"role\":\"assistant\",\"content\":\"%s\"}]%s}", answer, fields);
    ck_assert_int_eq(json_parse(&body, b.data, b.len, &(struct json_limits){.bytes_max = 1 << 16}, a, e), 0);
    int rc = eng_chat_prompt(chat, body, now, a, &ids, text, e);
    ck_assert(rc || ids.n > 4);
    eng_ids_free(&ids);
    buf_free(&b);
    return rc;
}

/* A prompt that ends inside of the last message is the beginning of one in which that message is longer. */
static void goes_on(const eng_chat *chat, int64_t now, struct arena *a, const char *what)
{
    struct eng_prompt part, whole;
    struct err err;
    ck_assert_msg(!prompt_of(chat, "There are ", ",\"continue_final_message\":true", now, a, &part, &err), "%s: %s", what, err.msg);
    ck_assert_msg(!prompt_of(chat, "There are 42", ",\"add_generation_prompt\":false", now, a, &whole, &err), "%s: %s", what, err.msg);
    ck_assert_msg(part.n > 10 && !memcmp(part.text + part.n - 10, "There are ", 10), "%s: ends with %s", what, part.text);
    ck_assert_msg(whole.n > part.n && !memcmp(whole.text, part.text, part.n), "%s: %s\nis not how this begins: %s", what, part.text, whole.text);
    ck_assert_uint_eq(part.spans[part.n_spans - 1].end, part.n);
    ck_assert_int_eq(prompt_of(chat, "", ",\"continue_final_message\":true", now, a, &part, &err), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "messages[1].content"));
    ck_assert_int_eq(prompt_of(chat, "x", ",\"continue_final_message\":true,\"add_generation_prompt\":true", now, a, &part, &err), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "add_generation_prompt"));
    ck_assert_int_eq(prompt_of(chat, "x\"},{\"role\":\"user\",\"content\":\"y", ",\"continue_final_message\":true", now, a, &part, &err), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "messages[2].role"));
    ck_assert_int_eq(prompt_of(chat, "x", ",\"continue_final_message\":1", now, a, &part, &err), ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.msg, "continue_final_message"));
}

/* Messages to ids as a request goes: template, who wrote what, tokenizer. Where a past call or reasoning takes another form than the
 * reference gave it (engine/chat_form.h), its text is not comparable. */
static void chat_whole(const eng_tok *t, const struct json *head, const char *tmpl, size_t n, const char *what)
{
    struct eng_ids ids = {.max = 1 << 20};
    struct json *special;
    const struct json *cases = json_get(head, "cases");
    struct err e = {0};
    struct tm tm = {0};
    struct arena a;
    struct buf b;
    eng_chat *chat;
    size_t whole = 0;
    arena_init(&a, 1 << 28);
    buf_init(&b, 1 << 24);
    buf_char(&b, '{');
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "eos_token" : "bos_token";
        if (!json_is(json_get(head, key), JSON_STRING))
            continue;
        buf_printf(&b, "%s\"%s\":", b.len > 1 ? "," : "", key);
        json_put(&b, json_get(head, key));
    }
    buf_char(&b, '}');
    OK(json_parse(&special, b.data, b.len, &(struct json_limits){.bytes_max = 1 << 20}, &a, &e));
    ck_assert_ptr_nonnull(strptime(json_str(json_get(head, "now")), "%Y-%m-%dT%H:%M:%S", &tm));
    OK(eng_chat_open(&chat, t, tmpl, n, special, &e));
    for (size_t i = 0; i < cases->n; i++) {
        const struct json *c = cases->items[i], *clean = json_get(c, "ids_sanitised"), *want = clean ? clean : json_get(c, "ids");
        const char *name = json_str(json_get(c, "name"));
        if (json_get(c, "error") || !want || strstr(name, "round trip") || strstr(name, "reasoning under") || strstr(name, "description and result"))
            continue;
        ids.n = 0;
        ck_assert_msg(eng_chat_prompt(chat, c, timegm(&tm), &a, &ids, NULL, &e) == 0, "%s: %s: %s", what, name, e.msg);
        ck_assert_msg(same(&ids, want), "%s: %s, from its messages", what, name);
        whole++;
    }
    ck_assert_uint_gt(whole, 10);
    goes_on(chat, timegm(&tm), &a, what);
    eng_chat_close(chat);
    eng_ids_free(&ids);
    buf_free(&b);
    arena_free(&a);
}

START_TEST(chats)
{
    static const char *const l[][3] = {
        {"gguf/smollm2.vocab.gguf.gz", "t.gguf", "gguf/smollm2.chat_ids.json"}, {"llama3/tokenizer.json.gz", "tokenizer.json", "llama3/chat_ids.json"},
        {"qwen3/tokenizer.json.gz", "tokenizer.json", "qwen3/chat_ids.json"}, {"deepseek-v3/tokenizer.json.gz", "tokenizer.json", "deepseek-v3/chat_ids.json"},
        {"gpt-oss/tokenizer.json.gz", "tokenizer.json", "gpt-oss/chat_ids.json"}, {"gemma3/tokenizer.json.gz", "tokenizer.json", "gemma3/chat_ids.json"},
        {"mistral-v1/tokenizer.json.gz", "tokenizer.json", "mistral-v1/chat_ids.json"}};
    for (size_t i = 0; i < sizeof l / sizeof *l; i++) {
        char path[300], cmd[1024];
        struct err e = {0};
        struct json *v;
        struct arena a;
        eng_tok *t;
        snprintf(path, sizeof path, SHARED "%s", l[i][2]);
        if (access(path, R_OK)) {
            printf("SKIP %s is not here\n", path);
            continue;
        }
        arena_init(&a, 1 << 28);
        OK(json_parse_file(&v, path, 1 << 26, &a, &e));
        char *dir = mm_tmpdir();
        snprintf(path, sizeof path, "%s/%s", dir, l[i][1]);
        snprintf(cmd, sizeof cmd, "gunzip -c '" SHARED "%s' > '%s'", l[i][0], path);
        ck_assert_msg(system(cmd) == 0, "%s", cmd);
        OK(eng_tok_open_file(&t, path, &e));
        snprintf(path, sizeof path, "../shared/data/%s", json_str(json_get(v, "template")));
        size_t n;
        char *tmpl = mm_read(path, &n);
        eng_tok_mark_template(t, tmpl, n);
        chat_cases(t, json_get(v, "cases"), l[i][2]);
        chat_whole(t, v, tmpl, n, l[i][2]);
        free(tmpl);
        eng_tok_close(t);
        mm_rmdir(dir);
        arena_free(&a);
    }
}
END_TEST

/* Prompts of the tiny models and of real GGUF files: a folder's tokenizer, its BOS where the family adds one. */
static void prompts(const char *file, const eng_tok *t, unsigned flags)
{
    struct eng_ids ids = {.max = 1 << 20};
    struct err e = {0};
    struct arena a;
    struct json *v;
    arena_init(&a, 1 << 28);
    OK(json_parse_file(&v, file, 1 << 26, &a, &e));
    const struct json *l = json_is(v, JSON_ARRAY) ? v : json_get(v, "prompts");
    ck_assert_msg(json_is(l, JSON_ARRAY) && l->n > 0, "%s", file);
    for (size_t i = 0; i < l->n; i++) {
        const struct json *text = json_get(l->items[i], "text"), *want = json_get(l->items[i], "ids");
        ids.n = 0;
        OK(eng_tok_encode(t, text->s, text->n, flags, &ids, &e));
        ck_assert_msg(same(&ids, want), "%s: prompt %zu: %zu ids, expected %zu", file, i, ids.n, want->n);
    }
    eng_ids_free(&ids);
    arena_free(&a);
}

START_TEST(models)
{
    static const char *const names[] = {"llama", "llama-tied", "mistral", "phi3", "qwen2", "qwen3", "gemma3", "qwen3_moe", "deepseek_v3",
                                        "deepseek_v3-fp8", "deepseek_v3-int4", "gpt_oss", "kimi_linear"};
    static const char *const real[][2] = {{"smollm2", "SmolLM2-135M-Instruct.Q4_1"}, {"gemma3", "gemma-3-270m-it-q4_k_m"},
                                          {"qwen2.5", "qwen2.5-coder-0.5b-q4"}, {"qwen2.5", "qwen2.5-coder-1.5b"}};
    struct err e = {0};
    eng_tok *t;
    char path[300], cmd[1024];
    if (access("../shared/data/models", R_OK)) {
        printf("SKIP ../shared/data/models is not here\n");
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        off_catalog *c;
        snprintf(path, sizeof path, "../shared/data/models/%s", names[i]);
        OK(off_catalog_open(&c, path, 1, &e));
        int64_t rows = 0;
        ck_assert(json_int(json_get(off_catalog_config(c), "vocab_size"), &rows));
        OK(eng_tok_open(&t, c, (uint32_t)rows, &e));
        snprintf(path, sizeof path, "../shared/data/models/%s/reference/prompts.json", names[i]);
        prompts(path, t, ENG_TOK_SPECIAL | ENG_TOK_WRAP);
        snprintf(path, sizeof path, "../shared/data/models/%s/reference/chat.json", names[i]);
        prompts(path, t, ENG_TOK_SPECIAL);
        eng_tok_close(t);
        off_catalog_close(c);
    }
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) {
        char *dir = mm_tmpdir();
        snprintf(path, sizeof path, "%s/t.gguf", dir);
        snprintf(cmd, sizeof cmd, "gunzip -c '" SHARED "gguf/%s.vocab.gguf.gz' > '%s'", real[i][0], path);
        ck_assert_msg(system(cmd) == 0, "%s", cmd);
        OK(eng_tok_open_file(&t, path, &e));
        snprintf(path, sizeof path, "../shared/data/real/%s.json", real[i][1]);
        prompts(path, t, ENG_TOK_WRAP);
        eng_tok_close(t);
        mm_rmdir(dir);
    }
}
END_TEST

SUITE("engine", "tok_verify", core, shared, chats, models, errors)
