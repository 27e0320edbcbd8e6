/* Grammars: which texts they have (tables), what is refused with which words; masks against trying every token, on random walks; guides with
 * triggers; forgetting. */
#include "engine/guide.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

enum { KEEP = 1 << 20 };
static eng_tok *tok;
static eng_vocab *vocab;

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    ck_assert_msg(f != NULL, "%s", path);
    char *p = malloc(1 << 20);
    *n = fread(p, 1, 1 << 20, f);
    fclose(f);
    return p;
}

static void open_named(const char *name)
{
    struct err e = {0};
    char path[100];
    size_t n;
    snprintf(path, sizeof path, "tests/data/tokenizer/%s.json", name);
    char *json = slurp(path, &n);
    OK(eng_tok_open_json(&tok, json, n, NULL, 0, &e));
    OK(eng_vocab_open(&vocab, tok, eng_tok_count(tok), &e));
    free(json);
}

static void close_vocab(void)
{
    eng_vocab_close(vocab);
    eng_tok_close(tok);
}

static eng_grammar *compile(const char *gbnf)
{
    struct err e = {0};
    eng_grammar *g;
    OK(eng_grammar_compile(&g, gbnf, strlen(gbnf), tok, &e));
    eng_grammar_begin(g, vocab, KEEP);
    return g;
}

/* -1: not even a beginning of a text; 0: a beginning; 1: a whole text. */
static int reads(eng_grammar *g, const char *s)
{
    struct err e = {0};
    struct eng_grammar_state at;
    OK(eng_grammar_start(g, &at, &e));
    int rc = eng_grammar_bytes_accept(g, &at, s, strlen(s), &e);
    ck_assert_msg(rc == 0 || rc == ERR_INVALID, "%s", e.msg);
    return rc ? -1 : eng_grammar_may_end(g, at);
}

#define N_OF(a) (sizeof(a) / sizeof *(a))
static const char arithmetic[] = "root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= ident | num | \"(\" ws expr \")\" ws\n"
                                 "ident ::= [a-z] [a-z0-9_]* ws\nnum   ::= [0-9]+ ws\nws    ::= [ \\t\\n]*\n";
static const char json[] =
    "root ::= object\nvalue ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::=\n  \"{\" ws (\n            string \":\" ws value\n    (\",\" ws string \":\" ws value)*\n  )? \"}\" ws\n"
    "array  ::=\n  \"[\" ws (\n            value\n    (\",\" ws value)*\n  )? \"]\" ws\n"
    "string ::=\n  \"\\\"\" (\n    [^\"\\\\\\x7F\\x00-\\x1F] |\n    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n  )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws\n"
    "# Optional space: by convention, applied in this grammar after literal chars when allowed\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

START_TEST(core)
{
    static const struct { const char *gbnf, *whole[8], *begun[5], *wrong[8]; } cases[] = {
        {"root ::= \"ab\"", {"ab"}, {"", "a"}, {"b", "abc", "aa"}},
        {"root ::= \"a\" | \"b\" \"c\"\n", {"a", "bc"}, {"b"}, {"c", "ab"}},
        {"root ::= a*\na ::= [x-z]", {"", "x", "zyx"}, {0}, {"w", "xw"}},
        {"root ::= (\"a\" | \"bc\")+", {"a", "bc", "abca"}, {"", "ab"}, {"c"}},
        {"root ::= \"a\"{2,3} \"b\"?", {"aa", "aaa", "aab", "aaab"}, {"", "a"}, {"aaaa", "ab"}},
        {"root ::= \"a\"{2} [0-9]{1,}", {"aa0", "aa12345"}, {"aa"}, {"aaa", "aaaa1"}},
        {"root ::= \"a\"{,2}", {"", "a", "aa"}, {0}, {"aaa"}},
        {"root ::= \"a\"{0}", {""}, {0}, {"a"}},
        {"root ::= [^a-y\\n]", {"z", "\xC3\xA9", "\xF0\x9F\x98\x80", "A"}, {"\xC3", "\xF0\x9F"}, {"a", "\n", "\x80", "\xC3z", "\xED\xA0\x80", "\xF5", "\xE0\x80"}},
        {"root ::= [\\u00e9-\\U0001F600]", {"\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80"}, {"\xF0"}, {"a", "\xC3\xA8", "\xF0\x9F\x98\x81", "\xED\xA0\x80"}},
        {"root ::= .", {"a", "\n", "\xE4\xB8\xAD"}, {"\xE4"}, {"ab", "\xFF"}},
        {"root ::= [\\x41\\]\\[\\-^]+", {"A", "]", "[", "-", "^"}, {""}, {"B", "\\"}},
        {"root ::= [a-]", {"a", "-"}, {0}, {"b"}},
        {"root ::= \"\\x41\\u00e9\\\"\\\\\\n\"", {"A\xC3\xA9\"\\\n"}, {"A\xC3"}, {"AA"}},
        {"root ::= x \"!\" # hello\n# more\n\nx ::= # a new line may follow\n \"q\"\n  | \"r\"", {"q!", "r!"}, {"q"}, {"!"}},
        {"root ::= (\"a\"*)* \"b\"", {"b", "aab"}, {"", "aa"}, {"c"}},
        {"root ::= x*\nx ::= \"a\"?", {"", "aa"}, {0}, {"b"}},
        {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "(()"}, {")", "())"}},
        {"root ::= \"a\" root | \"a\"", {"a", "aaaa"}, {""}, {"b"}},
        {"root ::= \"a\" root \"b\" | \"a\" root | \"c\"", {"c", "aacb", "aac", "aacbb"}, {"aa"}, {"aacbbb"}},
        {"root-2 ::= \"x\"\nroot ::= root-2 \"y\"", {"xy"}, {"x"}, {"y"}},
        {"root ::= \"a\"\nnever ::= \"b\" other\nother ::= \"c\"", {"a"}, {""}, {"b"}},
        {arithmetic, {"x=1\n", "(a +1)*b_2 = 7\n", "1=1\n2=2\n"}, {"x", "((", "1=1\n2"}, {"=", "x==", "A=1"}},
        {json, {"{}", "{\"a\":1}", "{\"a\": [1, 2.5e3, {\"b\":null}],\"c\":\"\\u00e9\\n\"}", "{\n  \"k\": true}\n"}, {"{", "{\"a\"", "{\"a\":[[[", "{\"\\u00"}, {"[", "{a", "{\"a\":01}", "{,", "{\"\n", "{}{"}},
    };
    open_named("qwen3");
    for (size_t i = 0; i < N_OF(cases); i++) {
        eng_grammar *g = compile(cases[i].gbnf);
        for (size_t k = 0; k < N_OF(cases[i].whole) && cases[i].whole[k]; k++)
            ck_assert_msg(reads(g, cases[i].whole[k]) == 1, "%s: whole: %s", cases[i].gbnf, cases[i].whole[k]);
        for (size_t k = 0; k < N_OF(cases[i].begun) && cases[i].begun[k]; k++)
            ck_assert_msg(reads(g, cases[i].begun[k]) == 0, "%s: begun: %s", cases[i].gbnf, cases[i].begun[k]);
        for (size_t k = 0; k < N_OF(cases[i].wrong) && cases[i].wrong[k]; k++)
            ck_assert_msg(reads(g, cases[i].wrong[k]) == -1, "%s: wrong: %s", cases[i].gbnf, cases[i].wrong[k]);
        eng_grammar_close(g);
    }
    close_vocab();
}
END_TEST

/* ---- masks -------------------------------------------------------------------------------------------------- */

static uint64_t draws;
static uint32_t draw(uint32_t n)
{
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % n);
}

/* The mask says of each token what trying it says; then one of them is taken. False: nothing may come. */
static bool walk_on(eng_grammar *g, struct eng_grammar_state *at, uint64_t *bits)
{
    struct err e = {0};
    uint32_t n = eng_tok_count(tok), count, seen = 0, chosen = 0;
    OK(eng_grammar_mask(g, *at, bits, &count, &e));
    for (uint32_t id = 0; id < n; id++) {
        struct eng_grammar_state copy = *at;
        int rc = eng_grammar_accept(g, &copy, (int32_t)id, &e);
        bool bit = bits[id / 64] >> id % 64 & 1;
        ck_assert_msg(rc == 0 || rc == ERR_INVALID, "%s", e.msg);
        ck_assert_msg(bit == (rc == 0), "token %u: mask %d, accept %d", id, bit, rc);
        seen += bit;
    }
    ck_assert_uint_eq(seen, count);
    if (!count)
        return false;
    uint32_t skip = draw(count);
    for (uint32_t id = 0; id < n; id++)
        if (bits[id / 64] >> id % 64 & 1 && !skip--) {
            chosen = id;
            break;
        }
    OK(eng_grammar_accept(g, at, (int32_t)chosen, &e));
    return true;
}

START_TEST(masks)
{
    static const char *const tokenizers[] = {"qwen3", "llama", "gemma3", "kimi_linear"};
    static const char *const grammars[] = {json, arithmetic, "root ::= .*", "root ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]{0,40} \"\\\"\"", "root ::= [a-zA-Z ]{3,6} [^a-z]*",
                                           "root ::= (!<[5]> | \"ab\"){0,9} <[7]>", "root ::= [\\u0080-\\uFFFF]+ \"x\""};
    for (size_t t = 0; t < N_OF(tokenizers); t++) {
        open_named(tokenizers[t]);
        uint64_t *bits = calloc(eng_vocab_words(vocab), 8);
        for (size_t i = 0; i < N_OF(grammars); i++)
            for (int round = 0; round < 3; round++) {
                struct err e = {0};
                struct eng_grammar_state at;
                eng_grammar *g = compile(grammars[i]);
                OK(eng_grammar_start(g, &at, &e));
                for (int k = 0; k < 25 && walk_on(g, &at, bits); k++)
                    ;
                eng_grammar_close(g);
            }
        free(bits);
        close_vocab();
    }
}
END_TEST

/* A vocabulary without the bytes that a grammar wants goes nowhere, and says where. */
START_TEST(nowhere)
{
    struct err e = {0};
    struct eng_grammar_state at;
    char where[100];
    uint32_t count;
    static const char tiny[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[[\"a\",\"b\"]]},\"decoder\":{\"type\":\"ByteLevel\"},"
                               "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}}";
    OK(eng_tok_open_json(&tok, tiny, sizeof tiny - 1, NULL, 0, &e));
    OK(eng_vocab_open(&vocab, tok, eng_tok_count(tok), &e));
    uint64_t bits[1];
    eng_grammar *g = compile("root ::= \"a\" inner\ninner ::= \"b\"? \"c\"");
    OK(eng_grammar_start(g, &at, &e));
    OK(eng_grammar_mask(g, at, bits, &count, &e));
    ck_assert_uint_eq(bits[0], 5);
    OK(eng_grammar_accept(g, &at, 2, &e));
    OK(eng_grammar_mask(g, at, bits, &count, &e));
    ck_assert(count == 0 && !eng_grammar_may_end(g, at));
    eng_grammar_where(g, at, where, sizeof where);
    ck_assert_str_eq(where, "inner"); /* the call at root's end leaves nothing of root */
    eng_grammar_close(g);
    close_vocab();
}
END_TEST

/* Forgotten memory: old states are not valid, and the masks of a replay are the same. */
START_TEST(forgetting)
{
    struct err e = {0};
    open_named("qwen3");
    uint64_t *a = calloc(eng_vocab_words(vocab), 8), *b = calloc(eng_vocab_words(vocab), 8);
    int32_t out[40];
    struct eng_guide u, v;
    struct eng_allowed x, y;
    eng_grammar *g = compile(json), *h = compile(json);
    OK(eng_guide_open(&u, g, vocab, NULL, 0, &e));
    OK(eng_guide_open(&v, h, vocab, NULL, 0, &e));
    for (uint32_t n = 0; n < 40; n++) {
        OK(eng_guide_sync(&u, vocab, out, n, 0, &e)); /* forgets every time */
        OK(eng_guide_sync(&v, vocab, out, n, KEEP, &e));
        OK(eng_guide_mask(&u, a, &x, &e));
        OK(eng_guide_mask(&v, b, &y, &e));
        ck_assert(x.count == y.count && x.may_end == y.may_end && !memcmp(a, b, eng_vocab_words(vocab) * 8));
        if (!x.count)
            break;
        uint32_t skip = draw(x.count);
        for (uint32_t id = 0; id < eng_tok_count(tok); id++)
            if (a[id / 64] >> id % 64 & 1 && !skip--)
                out[n] = (int32_t)id;
        struct eng_guide ahead = v; /* a copy looks ahead and is dropped */
        OK(eng_guide_token(&ahead, vocab, out[n], &e));
    }
    int32_t wrong = eng_tok_find(tok, "]", 1);
    u.n_fed = 0;
    u.state.generation = 0;
    FAILS(ERR_INVALID, "token 0 of the output", eng_guide_sync(&u, vocab, &wrong, 1, KEEP, &e));
    eng_guide_close(&u);
    eng_guide_close(&v);
    eng_grammar_close(g);
    eng_grammar_close(h);
    free(a);
    free(b);
    close_vocab();
}
END_TEST

static void say(struct eng_guide *u, const char *text)
{
    struct err e = {0};
    struct eng_ids ids = {.max = 100};
    OK(eng_tok_encode(tok, text, strlen(text), ENG_TOK_ADDED, &ids, &e));
    for (size_t i = 0; i < ids.n; i++)
        OK(eng_guide_token(u, vocab, ids.v[i], &e));
    eng_ids_free(&ids);
}

START_TEST(triggers)
{
    struct err e = {0};
    struct eng_guide u;
    struct eng_allowed a;
    open_named("qwen3");
    uint64_t *bits = calloc(eng_vocab_words(vocab), 8);
    eng_grammar *g = compile("root ::= [0-9]{2} \";\"");
    OK(eng_guide_open(&u, g, vocab, "ccacc(", 6, &e));
    OK(eng_guide_sync(&u, vocab, NULL, 0, KEEP, &e));
    for (int round = 0; round < 3; round++) {
        OK(eng_guide_mask(&u, bits, &a, &e));
        ck_assert(!a.ruled && a.may_end && !eng_guide_over(&u));
        say(&u, "ccaccacc(");
        OK(eng_guide_mask(&u, bits, &a, &e));
        ck_assert(a.ruled && !a.may_end && a.count >= 10);
        FAILS(ERR_INVALID, "may not come here", eng_guide_token(&u, vocab, eng_tok_find(tok, "a", 1), &e));
        say(&u, "12;");
    }
    eng_guide_close(&u);
    /* a token that ends the trigger and goes on: it must fit */
    size_t n;
    int32_t pair = -1;
    for (uint32_t id = 0; id < eng_tok_count(tok) && pair < 0; id++) {
        const char *p = eng_vocab_text(vocab, (int32_t)id, &n);
        if (p && n == 2 && p[0] == 'i' && p[1] == 'n')
            pair = (int32_t)id;
    }
    if (pair < 0)
        puts("SKIP grammar: no token 'in' in this vocabulary");
    eng_grammar *fits = compile("root ::= \"n\"{2}");
    OK(eng_guide_open(&u, g, vocab, "i", 1, &e));
    OK(eng_guide_sync(&u, vocab, NULL, 0, KEEP, &e));
    if (pair >= 0)
        FAILS(ERR_INVALID, "may not come here", eng_guide_token(&u, vocab, pair, &e));
    ck_assert(!u.ruling && u.n_fed == 0);
    eng_guide_close(&u);
    OK(eng_guide_open(&u, fits, vocab, "i", 1, &e));
    OK(eng_guide_sync(&u, vocab, NULL, 0, KEEP, &e));
    if (pair >= 0) {
        OK(eng_guide_token(&u, vocab, pair, &e));
        OK(eng_guide_mask(&u, bits, &a, &e));
        ck_assert(a.ruled && u.n_fed == 1);
    }
    eng_guide_close(&u);
    /* a control token is met by itself, not by its letters */
    int32_t end = eng_tok_find(tok, "<|im_end|>", 10);
    ck_assert(end >= 0 && eng_tok_is_control(tok, end));
    OK(eng_guide_open(&u, g, vocab, "x<|im_end|>", 11, &e));
    OK(eng_guide_sync(&u, vocab, NULL, 0, KEEP, &e));
    say(&u, "x<|im_end|>");
    ck_assert(!u.ruling);
    say(&u, "x");
    OK(eng_guide_token(&u, vocab, end, &e));
    ck_assert(u.ruling);
    eng_guide_close(&u);
    FAILS(ERR_INVALID, "1 to 256", eng_guide_open(&u, g, vocab, "", 0, &e));
    eng_grammar_close(g);
    eng_grammar_close(fits);
    free(bits);
    close_vocab();
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *gbnf, *words; int code; } cases[] = {
        {"", "no rule 'root'", ERR_INVALID}, {"a ::= \"b\"", "no rule 'root'", ERR_INVALID}, {"root ::= x", "line 1: rule 'x' is not defined", ERR_INVALID},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, rule 'root': it is there twice", ERR_INVALID}, {"root = \"a\"", "expected '::='", ERR_INVALID},
        {"root ::= \"a", "without its end", ERR_INVALID}, {"root ::= \"a\\\"", "without its end", ERR_INVALID}, {"root ::= [a", "without its end", ERR_INVALID},
        {"root ::= []", "no character", ERR_INVALID}, {"root ::= [^\\x00-\\U0010FFFF]", "no character", ERR_INVALID}, {"root ::= [z-a]", "down to", ERR_INVALID},
        {"root ::= \"\\q\"", "unknown escape '\\q'", ERR_INVALID}, {"root ::= \"\\x4\"", "2 hex digits", ERR_INVALID}, {"root ::= \"\\uD800\"", "no character", ERR_INVALID},
        {"root ::= \"\\U00110000\"", "no character", ERR_INVALID}, {"root ::= (\"a\"", "expected ')'", ERR_INVALID}, {"root ::= \"a\" )", "end of the line, found ')'", ERR_INVALID},
        {"root ::= \"a\"{3,2}", "m <= n", ERR_INVALID}, {"root ::= \"a\"{}", "m <= n", ERR_INVALID}, {"root ::= \"a\"{99999999}", "more than 1048576", ERR_LIMIT},
        {"root ::= \"aa\"{1048576}", "rule 'root': the grammar is too large", ERR_LIMIT}, {"root ::= *", "end of the line", ERR_INVALID}, {"::= \"a\"", "name of a rule", ERR_INVALID},
        {"root ::= root \"a\" | \"b\"", "'root' is left-recursive", ERR_INVALID}, {"root ::= x? y\nx ::= \"a\"\ny ::= z*\nz ::= x* y \"b\"", "left-recursive", ERR_INVALID},
        {"root ::= \"a\" root", "'root' can never end", ERR_INVALID}, {"root ::= \"a\" | x\nx ::= \"b\" y\ny ::= x | x \"c\"", "can never end", ERR_INVALID},
        {"root ::= <no such token>", "no token of this model", ERR_INVALID}, {"root ::= <[99999999]>", "an id below", ERR_INVALID}, {"root ::= <x", "without its '>'", ERR_INVALID},
        {"root ::= !\"a\"", "behind '!'", ERR_INVALID}, {"root ::= \"\xFF\"", "expected UTF-8", ERR_INVALID}, {"root ::= [\xC3]", "expected UTF-8", ERR_INVALID},
        {"root ::= \"\\", "without its end", ERR_INVALID}, {"root ::= [\\", "without its end", ERR_INVALID}, {"root ::= .\\", "end of the line", ERR_INVALID}};
    struct err e = {0};
    eng_grammar *g;
    open_named("qwen3");
    for (size_t i = 0; i < N_OF(cases); i++) {
        e.msg[0] = 0;
        int rc = eng_grammar_compile(&g, cases[i].gbnf, strlen(cases[i].gbnf), tok, &e);
        ck_assert_msg(rc == cases[i].code && strstr(e.msg, cases[i].words) && !g, "%s: expected %s \"%s\", found %s \"%s\"", cases[i].gbnf, err_name(cases[i].code), cases[i].words, err_name(rc), e.msg);
    }
    char deep[2000] = "root ::= ";
    for (int i = 0; i < 200; i++)
        strcat(deep, "(");
    FAILS(ERR_LIMIT, "100 deep", eng_grammar_compile(&g, deep, strlen(deep), tok, &e));
    FAILS(ERR_INVALID, "NUL", eng_grammar_compile(&g, "root ::= \"\0\"", 12, tok, &e));
    /* so ambiguous that every reading of n letters is another stack: an error in the end, not all memory */
    struct eng_grammar_state at;
    g = compile("root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"d\" | \"\"");
    OK(eng_grammar_start(g, &at, &e));
    int rc = 0;
    for (int i = 0; i < 100 && !rc; i++)
        rc = eng_grammar_bytes_accept(g, &at, "a", 1, &e);
    ck_assert_msg(rc == ERR_LIMIT && strstr(e.msg, "ambiguous"), "%s", e.msg);
    ck_assert_uint_lt(eng_grammar_bytes(g), 64 << 20);
    eng_grammar_close(g);
    if (!alloc_fail_works())
        puts("SKIP grammar: allocations are not made to fail under a sanitizer");
    long n = 0;
    for (bool more = alloc_fail_works(); more; n++) {
        alloc_fail_at(n);
        rc = eng_grammar_compile(&g, json, sizeof json - 1, tok, &e);
        uint64_t bits[400];
        uint32_t count;
        if (!rc) {
            eng_grammar_begin(g, vocab, KEEP);
            if (!(rc = eng_grammar_start(g, &at, &e)) && !(rc = eng_grammar_bytes_accept(g, &at, "{\"", 2, &e)))
                rc = eng_grammar_mask(g, at, bits, &count, &e);
        }
        more = alloc_fail_end();
        ck_assert_int_eq(rc, more ? ERR_NOMEM : ERR_OK);
        eng_grammar_close(g);
    }
    close_vocab();
}
END_TEST

SUITE("engine", "grammar", core, masks, nowhere, forgetting, triggers, errors)
