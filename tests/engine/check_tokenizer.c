/* The tokenizer's promises: spans, control tokens, saved form, linear work, contradictions refused, every allocation failing. */
#include "base/json.h"
#include "engine/tok_internal.h"
#include "engine/tok_verify.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

/* Six bytes, two merges, a control token, an added one, one that is stripped, one that is a word. */
#define HEAD "{\"added_tokens\":["
#define ADDED "{\"id\":8,\"content\":\"<s>\",\"special\":true},{\"id\":9,\"content\":\"<x>\",\"special\":false}," \
              "{\"id\":10,\"content\":\"<l>\",\"special\":true,\"lstrip\":true,\"rstrip\":true},{\"id\":11,\"content\":\"aa\",\"special\":false,\"single_word\":true}"
#define PRE "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}," \
            "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"\xC4\xA0\":2,\"<\":3,\"s\":4,\">\":5,\"ab\":6,\"\xC4\xA0" "ab\":7},"
#define MERGES "\"merges\":[\"a b\",\"\xC4\xA0 ab\"]}}"
static const char tiny[] = HEAD ADDED PRE VOCAB MERGES;

static eng_tok *open_text(const char *json)
{
    struct err e = {0};
    eng_tok *t;
    OK(eng_tok_open_json(&t, json, strlen(json), NULL, 0, &e));
    return t;
}

static eng_tok *open_small(const char *name)
{
    char path[100];
    struct err e = {0};
    eng_tok *t;
    snprintf(path, sizeof path, "tests/data/tokenizer/%s.json", name);
    OK(eng_tok_open_file(&t, path, &e));
    return t;
}

static void expect(const struct eng_ids *got, const char *want, const char *what)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_str(&b, "");
    for (size_t i = 0; i < got->n; i++)
        buf_printf(&b, i ? " %d" : "%d", got->v[i]);
    ck_assert_msg(!strcmp(b.data ? b.data : "", want), "%s: expected %s, found %s", what, want, b.data);
    buf_free(&b);
}

static void encodes(const eng_tok *t, const char *text, unsigned flags, const char *want)
{
    struct eng_ids ids = {.max = 1000};
    struct err e = {0};
    OK(eng_tok_encode(t, text, strlen(text), flags, &ids, &e));
    expect(&ids, want, text);
    eng_ids_free(&ids);
}

START_TEST(core)
{
    eng_tok *t = open_text(tiny);
    size_t n;
    encodes(t, "ab ab", ENG_TOK_SPECIAL, "6 7");
    encodes(t, "", ENG_TOK_SPECIAL, "");
    encodes(t, "a<s>b", ENG_TOK_SPECIAL, "0 8 1");
    encodes(t, "a<s>b", ENG_TOK_ADDED, "0 3 4 5 1");
    encodes(t, "a<x>b", ENG_TOK_ADDED, "0 9 1");
    encodes(t, "a<x>b", 0, "0 3 5 1");             /* x has no byte here: dropped before merging */
    encodes(t, "axb", 0, "6");                      /* so its neighbours merge */
    encodes(t, "a  <l>  b", ENG_TOK_SPECIAL, "0 10 1");
    encodes(t, "a aa a", ENG_TOK_ADDED, "0 2 11 2 0");
    encodes(t, "aaa aa_", ENG_TOK_ADDED, "0 0 0 2 0 0");
    ck_assert(eng_tok_is_control(t, 8) && !eng_tok_is_control(t, 9) && !eng_tok_is_control(t, 0) && !eng_tok_is_control(t, 99));
    ck_assert(eng_tok_count(t) == 12 && eng_tok_find(t, "ab", 2) == 6 && eng_tok_find(t, "zz", 2) == -1);
    ck_assert(eng_tok_piece(t, 7, &n) && n == 4 && !eng_tok_piece(t, 12, &n) && !eng_tok_piece(t, -1, &n));
    eng_tok_mark_template(t, "{{ '<x>' }}", 11);
    ck_assert(eng_tok_is_control(t, 9));
    encodes(t, "a<x>b", ENG_TOK_ADDED, "0 3 5 1");
    encodes(t, "a<x>b", ENG_TOK_SPECIAL, "0 9 1");
    eng_tok_set_eos(t, (const int32_t[]){8, 8, 77, -1, 9}, 5);
    const int32_t *eos = eng_tok_eos(t, &n);
    ck_assert(n == 2 && eos[0] == 8 && eos[1] == 9);
    eng_tok_close(t);
}
END_TEST

/* '|' separates spans, the first is trusted, then by turns. */
static void spans(const eng_tok *t, const char *marked, const char *want)
{
    struct eng_text_span s[16];
    struct eng_ids ids = {.max = 1000};
    struct err e = {0};
    char text[200];
    size_t n = 0, k = 0;
    s[0] = (struct eng_text_span){0, 0, true};
    for (const char *p = marked; *p; p++)
        if (*p == '|') {
            s[k].end = n;
            k++;
            s[k] = (struct eng_text_span){n, n, k % 2 == 0};
        } else
            text[n++] = *p;
    s[k].end = n;
    OK(eng_tok_encode_spans(t, text, s, k + 1, &ids, &e));
    expect(&ids, want, marked);
    eng_ids_free(&ids);
}

START_TEST(trust)
{
    eng_tok *t = open_text(tiny), *llama = open_small("llama");
    struct eng_ids ids = {.max = 10};
    struct err e = {0};
    spans(t, "<s>|<s>|<s>", "8 3 4 5 8");
    spans(t, "<s>|a|", "8 0");
    spans(t, "a|b", "6");                          /* joined across the border as one text */
    spans(t, "<|s>", "3 4 5");                     /* half from each side is no token */
    spans(t, "|<|s>", "3 4 5");
    spans(t, "|<s|><s>", "3 4 5 8");
    spans(t, "|a<|<s>", "0 3 8");                  /* user text cannot swallow what the template writes */
    spans(t, "<||s>", "8");                        /* an empty user text between trusted halves changes nothing */
    spans(t, "|<x>|", "9");
    spans(llama, "<|x|y|", "27 87 88");          /* borders leave no trace where nothing merges */
    FAILS(ERR_INVALID, "expected to begin at 1", eng_tok_encode_spans(t, "ab", (const struct eng_text_span[]){{0, 1, true}, {2, 2, true}}, 2, &ids, &e));
    FAILS(ERR_INVALID, "not UTF-8: byte 0xff at 1", eng_tok_encode(t, "a\xFF", 2, 0, &ids, &e));
    FAILS(ERR_LIMIT, "more than 10 tokens", eng_tok_encode(t, "a a a a a a a a", 15, 0, &ids, &e));
    eng_ids_free(&ids);
    eng_tok_close(t);
    eng_tok_close(llama);
}
END_TEST

static uint64_t work(const eng_tok *t, const char *unit, size_t times)
{
    struct eng_ids ids = {.max = 1u << 24};
    struct err e = {0};
    struct tok_run r;
    size_t len = strlen(unit), n = len * times;
    char *text = malloc(n);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * len, unit, len);
    OK(tok_run_open(&r, t, n, &ids, &e));
    r.mode = TOK_MODE_PLAIN;
    OK(tok_run_text(&r, text, n));
    uint64_t w = r.work;
    tok_run_close(&r);
    eng_ids_free(&ids);
    free(text);
    return w;
}

/* Four times the text may cost four times the work and a logarithm, whatever the text is: counted, not timed. */
START_TEST(limits)
{
    static const char *const names[] = {"llama", "gemma3", "qwen3", "kimi_linear"};
    static const char *const units[] = {"a", "A", " ", "\n", "ab", "aB", "1", "!", "the ", "\xE6\xB0\xB4", "e\xCC\x81\xCC\xA3", "<|eot_id", "\xE2\x96\x81", "\xCC\xA3\xCC\x81"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        eng_tok *t = open_small(names[k]);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            uint64_t a = work(t, units[i], 1 << 12), b = work(t, units[i], 1 << 14);
            ck_assert_msg(b <= a * 5 + 1000, "%s, \"%s\": %llu steps for 4k, %llu for 16k", names[k], units[i], (unsigned long long)a, (unsigned long long)b);
        }
        eng_tok_close(t);
    }
}
END_TEST

/* Where the JIT may not make code the interpreter must give the same ids, and get through a long run of one letter. */
START_TEST(no_jit)
{
    static const char *const names[] = {"llama", "kimi_linear", "qwen3"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        eng_tok *t = open_small(names[k]);
        struct eng_ids a = {.max = 1 << 22}, b = {.max = 1 << 22};
        struct err e = {0};
        char *text = malloc(1 << 21);
        size_t n = 0;
        for (int i = 0; i < 200; i++)
            n += (size_t)sprintf(text + n, "The Lock's keeper, it's %d o'clock;\n\n\t\xE6\xB0\xB4\xE9\x97\xA8 aB \xC3\x89t\xC3\xA9 don't  STOP", i * 37);
        memset(text + n, 'a', 1 << 19);
        memset(text + n + (1 << 19), 'A', 1 << 19);
        memset(text + n + (1 << 20), ' ', 1 << 19);
        n += (1 << 20) + (1 << 19);
        OK(eng_tok_encode(t, text, n, ENG_TOK_ADDED, &a, &e));
        for (unsigned i = 0; i < t->d.n_split; i++)
            t->re[i].jit = false;
        OK(eng_tok_encode(t, text, n, ENG_TOK_ADDED, &b, &e));
        ck_assert(a.n == b.n && !memcmp(a.v, b.v, a.n * sizeof *a.v));
        eng_ids_free(&a);
        eng_ids_free(&b);
        free(text);
        eng_tok_close(t);
    }
}
END_TEST

static void refused(const char *json, int code, const char *words)
{
    struct err e = {0};
    eng_tok *t = (eng_tok *)1;
    FAILS(code, words, eng_tok_open_json(&t, json, strlen(json), NULL, 0, &e));
    ck_assert(t == NULL);
}

START_TEST(errors)
{
    refused("", ERR_FORMAT, "");
    refused("[]", ERR_FORMAT, "an object");
    refused("{}", ERR_FORMAT, "no model");
    refused(HEAD ADDED PRE VOCAB "\"merges\":[\"a q\"]}}", ERR_FORMAT, "the right part is not in the vocabulary");
    refused(HEAD ADDED PRE VOCAB "\"merges\":[\"b a\"]}}", ERR_FORMAT, "the result is not in the vocabulary");
    refused(HEAD ADDED PRE VOCAB "\"merges\":[\"ab\"]}}", ERR_FORMAT, "expected two pieces");
    refused(HEAD ADDED PRE VOCAB "\"merges\":[[\"a\"]]}}", ERR_FORMAT, "[left, right]");
    refused(HEAD ADDED PRE "\"vocab\":{\"a\":0,\"b\":0}," MERGES, ERR_FORMAT, "id 0 is both \"a\" and \"b\"");
    refused(HEAD ADDED PRE "\"vocab\":{\"a\":0,\"a\":1}," MERGES, ERR_FORMAT, "\"a\" is piece 0 and again piece 1");
    refused(HEAD ADDED PRE "\"vocab\":{\"a\":-1}," MERGES, ERR_FORMAT, "no id");
    refused(HEAD ADDED PRE "\"vocab\":{\"a\":7000000}," MERGES, ERR_FORMAT, "highest id 7000000 with only 5 pieces");
    refused(HEAD ADDED PRE "\"vocab\":{\"a\":90000000}," MERGES, ERR_LIMIT, "id 90000000");
    refused(HEAD "{\"id\":0,\"content\":\"<s>\"}" PRE VOCAB MERGES, ERR_FORMAT, "\"<s>\" has id 0, which is \"a\"");
    refused(HEAD "{\"id\":20,\"content\":\"ab\"}" PRE VOCAB MERGES, ERR_FORMAT, "\"ab\" is piece 6 and again piece 20");
    refused(HEAD "{\"id\":8,\"content\":\"q\"},{\"id\":8,\"content\":\"q\"}" PRE VOCAB MERGES, ERR_FORMAT, "listed twice");
    refused(HEAD "{\"id\":8}" PRE VOCAB MERGES, ERR_FORMAT, "expected id and content");
    refused(HEAD ADDED "],\"normalizer\":{\"type\":\"BertNormalizer\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\"," VOCAB MERGES, ERR_UNSUPPORTED, "normalizer \"BertNormalizer\"");
    refused(HEAD ADDED "],\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\"," VOCAB MERGES, ERR_UNSUPPORTED, "pre_tokenizer \"Whitespace\"");
    refused(HEAD ADDED "],\"decoder\":{\"type\":\"CTC\"},\"model\":{\"type\":\"BPE\"," VOCAB MERGES, ERR_UNSUPPORTED, "decoder \"CTC\"");
    refused(HEAD ADDED "],\"decoder\":null,\"model\":{\"type\":\"BPE\"," VOCAB MERGES, ERR_UNSUPPORTED, "no decoder");
    refused(HEAD ADDED PRE "\"dropout\":0.1," VOCAB MERGES, ERR_UNSUPPORTED, "model.dropout is set");
    refused(HEAD ADDED "],\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"WordPiece\"," VOCAB "\"x\":null}}", ERR_UNSUPPORTED, "\"WordPiece\"");
#define RE(p) HEAD ADDED "],\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"" p "\"}},\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\"," VOCAB MERGES
    refused(RE("[a&&b]"), ERR_UNSUPPORTED, "an intersection");
    refused(RE("[a[b]]"), ERR_UNSUPPORTED, "a class inside a class");
    refused(RE("\\\\w+"), ERR_UNSUPPORTED, "an escape");
    refused(RE("a$"), ERR_UNSUPPORTED, "an anchor");
    refused(RE("(?<n>a)"), ERR_UNSUPPORTED, "a group of this form");
    refused(RE("\\\\p{Klingon}"), ERR_UNSUPPORTED, "split pattern");
    refused(RE("a{2}+"), ERR_UNSUPPORTED, "a plus behind braces");
    refused(RE("(a"), ERR_UNSUPPORTED, "split pattern");
}
END_TEST

/* Every beginning of a saved tokenizer is refused, and so is every one with a byte changed that no longer means one. */
START_TEST(saved)
{
    eng_tok *t = open_text(tiny), *u;
    struct buf b;
    struct err e = {0};
    buf_init(&b, 1 << 20);
    eng_tok_mark_template(t, "<x>", 3);
    OK(eng_tok_save(t, &b, &e));
    OK(eng_tok_load(&u, b.data, b.len, &e));
    ck_assert(eng_tok_is_control(u, 9) && eng_tok_count(u) == 12);
    encodes(u, "a<s>b<x> ab", ENG_TOK_SPECIAL, "0 8 1 9 7");
    eng_tok_close(u);
    for (size_t n = 0; n < b.len; n++)
        FAILS(ERR_FORMAT, "saved tokenizer", eng_tok_load(&u, b.data, n, &e));
    buf_char(&b, 0);
    FAILS(ERR_FORMAT, "bytes behind the end", eng_tok_load(&u, b.data, b.len, &e));
    for (size_t i = 0; i < b.len; i++) {
        char keep = b.data[i];
        b.data[i] = (char)(keep ^ 0x81);
        if (eng_tok_load(&u, b.data, b.len - 1, &e) == ERR_OK)
            encodes(u, "", ENG_TOK_SPECIAL, "");
        eng_tok_close(u);
        b.data[i] = keep;
    }
    buf_free(&b);
    eng_tok_close(t);
}
END_TEST

START_TEST(memory)
{
    if (!alloc_fail_works()) {
        printf("SKIP failing allocations: not under a sanitizer\n");
        return;
    }
    static const char text[] = "ab <s> ab ab aa <x>";
    for (long n = 0;; n++) {
        struct err e = {0};
        struct eng_ids ids = {.max = 100};
        eng_tok *t;
        alloc_fail_at(n);
        int rc = eng_tok_open_json(&t, tiny, sizeof tiny - 1, NULL, 0, &e);
        if (!rc)
            rc = eng_tok_encode(t, text, sizeof text - 1, ENG_TOK_SPECIAL, &ids, &e);
        bool failed = alloc_fail_end();
        ck_assert_msg(rc == ERR_OK || failed, "%ld: %s", n, e.msg);
        if (rc == ERR_OK)
            expect(&ids, "6 2 8 7 7 2 11 2 9", "after allocations");
        eng_ids_free(&ids);
        eng_tok_close(t);
        if (!failed)
            break;
    }
}
END_TEST

/* From a model's files: the vocabulary may not be larger than the embedding; GGUF names that nobody knows are refused. */
START_TEST(model)
{
    static const char *const tokens[] = {"a", "b", "\xC4\xA0", "ab", "<|im_end|>", "pad"}, *const merges[] = {"a b"};
    static const int32_t types[] = {1, 1, 1, 1, 3, 5};
    struct mm_kv kv[] = {MM_KV_STR("general.architecture", "llama"), MM_KV_STR("tokenizer.ggml.model", "gpt2"), MM_KV_STR("tokenizer.ggml.pre", "smollm"),
                         {.key = "tokenizer.ggml.tokens", .type = MM_ARR, .elem = MM_STR, .n = 6, .strs = tokens},
                         {.key = "tokenizer.ggml.token_type", .type = MM_ARR, .elem = MM_I32, .n = 6, .ints = types},
                         {.key = "tokenizer.ggml.merges", .type = MM_ARR, .elem = MM_STR, .n = 1, .strs = merges},
                         MM_KV_U32("tokenizer.ggml.eos_token_id", 4), MM_KV_U32("tokenizer.ggml.bos_token_id", 4), MM_KV_BOOL("tokenizer.ggml.add_bos_token", 1)};
    struct mm_tensor w = {.name = "token_embd.weight", .type = KRN_F32, .n_dims = 2, .dims = {6, 4}};
    char *dir = mm_tmpdir();
    struct err e = {0};
    off_catalog *c;
    eng_tok *t;
    size_t n;
    mm_gguf(mm_path(dir, "m.gguf"), kv, sizeof kv / sizeof *kv, &w, 1);
    OK(off_catalog_open(&c, mm_path(dir, "m.gguf"), 0, &e));
    OK(eng_tok_open(&t, c, 6, &e));
    encodes(t, "ab<|im_end|> b", ENG_TOK_SPECIAL | ENG_TOK_WRAP, "4 3 4 2 1");
    ck_assert(eng_tok_bos(t) == 4 && eng_tok_eos(t, &n)[0] == 4 && n == 1 && eng_tok_count(t) == 5);
    eng_tok_close(t);
    FAILS(ERR_FORMAT, "the tokenizer has 5 ids, the embedding 4 rows", eng_tok_open(&t, c, 4, &e));
    off_catalog_close(c);
    kv[2].s = "made-up";
    mm_gguf(mm_path(dir, "m.gguf"), kv, sizeof kv / sizeof *kv, &w, 1);
    OK(off_catalog_open(&c, mm_path(dir, "m.gguf"), 0, &e));
    FAILS(ERR_UNSUPPORTED, "pre \"made-up\" is not known", eng_tok_open(&t, c, 6, &e));
    off_catalog_close(c);
    mm_rmdir(dir);
}
END_TEST

SUITE("engine", "tokenizer", core, trust, limits, no_jit, saved, memory, model, errors)
