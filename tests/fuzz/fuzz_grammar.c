/* GBNF of any kind is refused or compiled; what compiles is walked by the rest of the input: the first byte splits text from steps. Every token that a mask
 * allows must be accepted, and no other one of a few. */
#include <stdlib.h>
#include <string.h>

#include "engine/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static eng_tok *tok;
static eng_vocab *vocab;

/* Single bytes and some pairs, so that tokens cross every border. */
static void open_vocab(void)
{
    struct err e;
    struct buf b;
    static const char *const more[] = {"ab", "\\\"a", "{\\\"", "\\\":", "\\u00c3\\u00a9", "\\u00c3", "\\u00a9", "\\u00e4\\u00b8", "\\u00ad", "  ", "a1", "true"};
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"added_tokens\":[{\"id\":200,\"content\":\"<x>\",\"special\":true,\"normalized\":false,\"lstrip\":false,\"rstrip\":false,\"single_word\":false}],\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int c = '!'; c < 0x7F; c++) {
        char text[2] = {(char)c, 0};
        json_put_cstr(&b, text);
        buf_printf(&b, ":%d,", c);
    }
    for (int i = 0; i < (int)(sizeof more / sizeof *more); i++)
        buf_printf(&b, "\"%s\":%d,", more[i], 150 + i);
    buf_str(&b, "\"\xC4\xA0\":32,\"\xC4\x8A\":10,\"<x>\":200},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},"
                "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}}");
    must(!eng_tok_open_json(&tok, b.data, b.len, NULL, 0, &e) && !eng_vocab_open(&vocab, tok, eng_tok_count(tok), &e));
    buf_free(&b);
}

static void walk(eng_grammar *g, const uint8_t *p, size_t n)
{
    struct err e;
    struct eng_grammar_state s;
    uint64_t bits[8];
    uint32_t count;
    must(eng_vocab_words(vocab) <= 8);
    eng_grammar_begin(g, vocab, 64 << 10);
    if (eng_grammar_start(g, &s, &e))
        return;
    for (size_t i = 0; i < n && i < 64; i++) {
        if (eng_grammar_mask(g, s, bits, &count, &e))
            return;
        struct eng_grammar_state next = s;
        uint32_t id = p[i] % eng_tok_count(tok);
        int rc = eng_grammar_accept(g, &next, (int32_t)id, &e);
        must(rc == ERR_LIMIT || rc == ERR_NOMEM || (bits[id / 64] >> id % 64 & 1) == !rc);
        if (rc && count) { /* take an allowed one instead */
            for (id = 0; !(bits[id / 64] >> id % 64 & 1);)
                id++;
            rc = eng_grammar_accept(g, &next, (int32_t)id, &e);
        }
        if (rc)
            return;
        s = next;
        char where[64];
        eng_grammar_where(g, s, where, sizeof where);
        must(!eng_grammar_over(g, s) || eng_grammar_may_end(g, s));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    eng_grammar *g;
    if (!tok)
        open_vocab();
    if (!n)
        return 0;
    size_t text = (n - 1) - (n - 1) * (p[0] % 4) / 8;
    if (!eng_grammar_compile(&g, (const char *)p + 1, text, tok, &e))
        walk(g, p + 1 + text, n - 1 - text);
    eng_grammar_close(g);
    return 0;
}
