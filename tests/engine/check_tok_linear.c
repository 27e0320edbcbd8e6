/* What a long text costs: steps are counted, never timed. Patterns are run with a call-out at each of their items, which counts items and
 * characters moved over; everything else counts in tok_run.work. And the short cuts give what the long way gives. */
#include <unistd.h>
#include <utf8proc.h>

#include "engine/tok_internal.h"
#include "engine/tok_verify.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

#define SHARED "../shared/data/tokenizers/"

enum { LETTERS = 3 }; /* the first ones are taken by the MiB */
static const char *const units[] = {"a", " ", "\xE6\xB0\xB4", "A", "\n", "1", "!", "'", "\xE2\x96\x81", "\t", "aB", "the ", "a'", "e\xCC\x81\xCC\xA3", "<|eot_id", "\xCC\xA3\xCC\x81"};

struct counted { uint64_t steps; PCRE2_SPTR subject; size_t start, last; };

static int count(pcre2_callout_block *b, void *ctx)
{
    struct counted *c = ctx;
    if (b->subject != c->subject || b->start_match != c->start) {
        c->subject = b->subject;
        c->start = c->last = b->start_match;
    }
    c->steps += 1 + (b->current_position > c->last ? b->current_position - c->last : c->last - b->current_position);
    c->last = b->current_position;
    return 0;
}

/* The same patterns, but each item of them calls count. */
static void instrument(eng_tok *t)
{
    struct err e = {0};
    for (unsigned i = 0; i < t->d.n_split; i++) {
        struct buf b = {0};
        PCRE2_SIZE at;
        int code;
        if (t->d.split[i].kind != TOK_SPLIT_RE)
            continue;
        OK(tok_re_translate(t->d.split[i].a, t->d.split[i].an, &b, &e));
        tok_re_free(&t->re[i]);
        t->re[i] = (struct tok_re){.code = pcre2_compile((PCRE2_SPTR)b.data, b.len, PCRE2_UTF | PCRE2_UCP | PCRE2_AUTO_CALLOUT, &code, &at, NULL)};
        ck_assert(t->re[i].code != NULL);
        buf_free(&b);
    }
}

static uint64_t work(const eng_tok *t, const char *unit, size_t n)
{
    struct eng_ids ids = {.max = 1u << 26};
    struct counted c = {0};
    struct err e = {0};
    struct tok_run r;
    size_t len = strlen(unit);
    char *text = malloc(n);
    n -= n % len;
    for (size_t i = 0; i < n; i += len)
        memcpy(text + i, unit, len);
    OK(tok_run_open(&r, t, n, &ids, &e));
    pcre2_set_callout(r.mc, count, &c);
    r.mode = TOK_MODE_PLAIN;
    int rc = tok_run_text(&r, text, n);
    ck_assert_msg(rc == ERR_OK, "\"%s\": %s", unit, e.msg);
    uint64_t w = r.work + c.steps;
    tok_run_close(&r);
    eng_ids_free(&ids);
    free(text);
    return w;
}

/* A MiB of one thing costs a bounded number of steps a byte; with patterns counted too, four times the text four times the steps and
 * a logarithm. */
static void linear(eng_tok *t, const char *name)
{
    enum { MIB = 1 << 20, STEPS_A_BYTE = 100 };
    for (size_t i = 0; i < LETTERS; i++) {
        uint64_t w = work(t, units[i], MIB);
        ck_assert_msg(w <= (uint64_t)STEPS_A_BYTE * MIB, "%s, a MiB of \"%s\": %llu steps", name, units[i], (unsigned long long)w);
    }
    uint64_t all = 0;
    instrument(t);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        uint64_t a = work(t, units[i], 1 << 12), b = work(t, units[i], 1 << 14);
        all += b;
        ck_assert_msg(b <= a * 5 + 1000, "%s, \"%s\": %llu steps for 4k, %llu for 16k", name, units[i], (unsigned long long)a, (unsigned long long)b);
    }
    ck_assert_msg(all > 1 << 14, "%s: nothing was counted", name);
}

START_TEST(small)
{
    static const char *const names[] = {"llama", "gemma3", "qwen3", "kimi_linear"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e = {0};
        eng_tok *t;
        char path[100];
        snprintf(path, sizeof path, "tests/data/tokenizer/%s.json", names[i]);
        OK(eng_tok_open_file(&t, path, &e));
        linear(t, names[i]);
        eng_tok_close(t);
    }
}
END_TEST

START_TEST(shared)
{
    static const char *const l[][2] = {
        {"gguf/smollm2.vocab.gguf.gz", "t.gguf"}, {"gguf/llama3.vocab.gguf.gz", "t.gguf"}, {"gguf/qwen2.5.vocab.gguf.gz", "t.gguf"},
        {"gguf/gemma3.vocab.gguf.gz", "t.gguf"}, {"gguf/llama2.vocab.gguf.gz", "t.gguf"}, {"llama3/tokenizer.json.gz", "tokenizer.json"},
        {"qwen3/tokenizer.json.gz", "tokenizer.json"}, {"deepseek-v3/tokenizer.json.gz", "tokenizer.json"}, {"gpt-oss/tokenizer.json.gz", "tokenizer.json"},
        {"gemma3/tokenizer.json.gz", "tokenizer.json"}, {"mistral-v1/tokenizer.json.gz", "tokenizer.json"}, {"unigram-bytes/tokenizer.json.gz", "tokenizer.json"},
        {"unigram-t5/tokenizer.json.gz", "tokenizer.json"}, {"kimi-k3-standin/tiktoken.model.gz", "tiktoken.model"}};
    for (size_t i = 0; i < sizeof l / sizeof *l; i += SUITE_SLOW ? 5 : 1) {
        char path[256], cmd[1024];
        struct err e = {0};
        eng_tok *t;
        snprintf(path, sizeof path, SHARED "%s", l[i][0]);
        if (access(path, R_OK)) {
            printf("SKIP %s is not here\n", path);
            continue;
        }
        char *dir = mm_tmpdir();
        snprintf(cmd, sizeof cmd, "gunzip -c '%s' > '%s/%s' && cp '" SHARED "kimi-k3-standin/tokenizer_config.json' '%s'", path, dir, l[i][1], dir);
        ck_assert_msg(system(cmd) == 0, "%s", cmd);
        OK(eng_tok_open_file(&t, mm_path(dir, l[i][1]), &e));
        linear(t, l[i][0]);
        eng_tok_close(t);
        mm_rmdir(dir);
    }
}
END_TEST

/* ---- short cuts --------------------------------------------------------------------------------------------- */
static uint32_t next(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 33);
}

static size_t random_text(uint64_t *seed, const char *const *parts, size_t n_parts, char *out, size_t max)
{
    size_t n = 0, want = next(seed) % max;
    while (n < want) {
        const char *p = parts[next(seed) % n_parts];
        size_t len = strlen(p);
        memcpy(out + n, p, len);
        n += len;
    }
    return n;
}

/* Every known pattern cuts the same with plain words taken at once as without. */
START_TEST(words)
{
    static const char *const parts[] = {"a", "b", "z", "A", "Z", " ", "  ", "\n", "\r\n", "\t", "'", "'s", "'LL", "don't", "The", "word", "ABC", "aB", "1", "23", "456", ".", ", ",
                                        "(", "\xC3\xA9", "\xCC\x81", "\xC5\xBF", "\xE6\xB0\xB4", "\xE2\x80\x99", "\xF0\x9F\x98\x80", "\xC2\xA0", "_", "-", "/", "\x1C"};
    uint64_t seed = 7;
    char text[80];
    for (int k = TOK_RE_GPT2; k <= TOK_RE_CJK; k++) {
        const char *pattern = tok_known_pattern((enum tok_known)k);
        struct tok_re re = {0};
        struct tok_run r = {0};
        struct err e = {0};
        r.e = &e;
        OK(tok_re_open(&r));
        pcre2_match_data *md = pcre2_match_data_create(1, NULL);
        OK(tok_re_compile(&re, pattern, strlen(pattern), &e));
        ck_assert(re.words == (k <= TOK_RE_DEEPSEEK));
        for (int i = 0; re.words && i < (SUITE_SLOW ? 2000 : 20000); i++) {
            size_t n = random_text(&seed, parts, sizeof parts / sizeof *parts, text, 60), at = 0, b[2], end[2];
            for (bool more = true; more && at < n; at = end[0]) {
                int rc = ERR_OK;
                re.words = true;
                more = tok_re_next(&r, &re, md, text, n, at, &b[0], &end[0], &rc);
                re.words = false;
                ck_assert(tok_re_next(&r, &re, md, text, n, at, &b[1], &end[1], &rc) == more && rc == ERR_OK);
                ck_assert_msg(!more || (b[0] == b[1] && end[0] == end[1]), "pattern %d, \"%.*s\" at %zu: [%zu, %zu), the pattern says [%zu, %zu)", k, (int)n, text, at, b[0],
                              end[0], b[1], end[1]);
                if (!more)
                    break;
            }
            re.words = true;
        }
        tok_re_free(&re);
        pcre2_match_data_free(md);
        pcre2_match_context_free(r.mc);
    }
    ck_assert(tok_known_words("[^\r\n\\p{L}\\p{N}]?[\\p{L}", 20) == false);
}
END_TEST

/* Only unsettled stretches go through the library; the result is that of the whole. */
START_TEST(nfc)
{
    static const char *const parts[] = {"a", "e", "E", "plain words here, ", " ", "\xCC\x81", "\xCC\xA3", "\xC3\xA9", "\xE1\xBA\xB9", "\xEA\xB0\x80", "\xE1\x84\x80", "\xE1\x85\xA1", "\xE1\x86\xA8",
                                        "\xE6\xB0\xB4", "\xE3\x81\x8B", "\xE3\x82\x99", "\xE2\x80\x80", "\xE2\x84\xAB", "\xE2\x80\x99", "\xE3\x80\x82", "\xE0\xA4\xA8", "\xE0\xA4\xBC", "\xE0\xA7\x87", "\xE0\xA6\xBE",
                                        "\xF0\x9D\x85\x97\xF0\x9D\x85\xA5", "\xEF\xA4\x80", "\xCD\x80", "\xC3\x80"};
    uint64_t seed = 11;
    char text[300];
    eng_tok *t;
    struct err e = {0};
    struct eng_ids ids = {.max = 100};
    struct tok_run r;
    OK(eng_tok_open_file(&t, "tests/data/tokenizer/qwen3.json", &e));
    ck_assert(t->d.n_norm == 1 && t->d.norm[0].kind == TOK_NORM_NFC);
    OK(tok_run_open(&r, t, 0, &ids, &e));
    for (int i = 0; i < (SUITE_SLOW ? 2000 : 20000); i++) {
        size_t n = random_text(&seed, parts, sizeof parts / sizeof *parts, text, 100), got = n;
        const char *s = text;
        utf8proc_uint8_t *want;
        text[n] = 0;
        OK(tok_normalise(&r, &s, &got));
        want = utf8proc_NFC((const utf8proc_uint8_t *)text);
        ck_assert_msg(got == strlen((char *)want) && !memcmp(s, want, got), "\"%s\": \"%.*s\", expected \"%s\"", text, (int)got, s, (char *)want);
        free(want);
    }
    for (uint32_t c = 1; c < 0x110000; c++) { /* each character between two that might compose with it */
        if (c >= 0xD800 && c < 0xE000)
            continue;
        size_t n = 1, got;
        const char *s = text;
        utf8proc_uint8_t *want;
        text[0] = 'A';
        n += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)text + n);
        memcpy(text + n, "\xCC\x81\xE1\x86\xA8", 6);
        got = n += 5;
        OK(tok_normalise(&r, &s, &got));
        want = utf8proc_NFC((const utf8proc_uint8_t *)text);
        ck_assert_msg(got == strlen((char *)want) && !memcmp(s, want, got), "U+%04X", c);
        free(want);
    }
    tok_run_close(&r);
    eng_tok_close(t);
}
END_TEST

SUITE("engine", "tok_linear", small, shared, words, nfc)
