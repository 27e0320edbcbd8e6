/* The whole grammar of an answer: reasoning in front, calls in its place, a caller's own; and that it is one of this model's. */
#include "engine/grammar.h"
#include "engine/guide.h"
#include "gateway/openai.h"
#include "gateway/structured.h"
#include "tests/support/suite.h"

static eng_tok *tok;
static eng_vocab *vocab;
static struct arena mem;
static struct eng_format format;

static const char chosen[] =
    "{\"tools\":{\"name\":\"hermes\",\"when\":[\"x\"],\"call\":\"<tool_call>\\n{object}\\n</tool_call>\"},"
    "\"reasoning\":{\"name\":\"think\",\"when\":[\"x\"],\"open\":\"<think>\",\"close\":\"</think>\",\"drop\":[\"<end>\",\"say:\"]}}";

/* A vocabulary of single letters and four control tokens. */
static void setup(void)
{
    struct err e = {0};
    struct buf b;
    struct json *v;
    static const char *const special[] = {"<think>", "</think>", "<tool_call>", "<end>"};
    buf_init(&b, 1 << 20);
    buf_str(&b, "{\"added_tokens\":[");
    for (int i = 0; i < 4; i++)
        buf_printf(&b, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false,\"lstrip\":false,\"rstrip\":false,\"single_word\":false}", i ? "," : "", 200 + i, special[i]);
    buf_str(&b, "],\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int c = '!'; c < 0x7F; c++) {
        char text[2] = {(char)c, 0};
        json_put_cstr(&b, text);
        buf_printf(&b, ":%d,", c);
    }
    buf_str(&b, "\"\xC4\xA0\":32,\"\xC4\x8A\":10");
    for (int i = 0; i < 4; i++)
        buf_printf(&b, ",\"%s\":%d", special[i], 200 + i);
    buf_str(&b, "},\"merges\":[]},\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}}");
    OK(eng_tok_open_json(&tok, b.data, b.len, NULL, 0, &e));
    int32_t eos = 203;
    eng_tok_set_eos(tok, &eos, 1);
    OK(eng_vocab_open(&vocab, tok, eng_tok_count(tok), &e));
    arena_init(&mem, 64 << 20);
    OK(json_parse(&v, chosen, sizeof chosen - 1, &json_strict, &mem, &e));
    int rc = eng_format_read(&format, v, tok, &mem, &e);
    ck_assert_msg(rc == 0, "%s", e.msg);
    buf_free(&b);
}

static void teardown(void)
{
    eng_vocab_close(vocab);
    eng_tok_close(tok);
    arena_free(&mem);
}

static eng_grammar *grammar_of(const char *body, bool in_reasoning, bool no_reasoning, bool with_tools, int status)
{
    struct err e = {0};
    struct json *v;
    struct gw_structured s = {0};
    struct gw_tools tools = {0};
    struct gw_api_error ae = {0};
    const char *text = NULL;
    uint32_t n = 0;
    eng_grammar *g = NULL;
    OK(json_parse(&v, body, strlen(body), &json_strict, &mem, &e));
    if (with_tools)
        ck_assert_msg(gw_tools_read(&tools, v, &mem, &ae) == 0 && tools.n == 1, "%s", ae.msg);
    ck_assert_msg(gw_structured_read(&s, v, &mem, &ae) == 0, "%s: %s", body, ae.msg);
    struct gw_structured_place p = {.format = &format, .place = in_reasoning ? GW_PLACE_REASONING : GW_PLACE_START, .no_reasoning = no_reasoning, .tools = with_tools ? &tools : NULL, .tok = tok};
    int rc = gw_structured_grammar(&s, &p, &mem, &text, &n, &ae);
    ck_assert_msg(rc == status, "%s: %s", body, ae.msg);
    if (rc)
        return NULL;
    OK(eng_grammar_compile(&g, text, n, tok, &e));
    eng_grammar_begin(g, vocab, 1 << 20);
    return g;
}

/* Letters are tokens; '\1'..'\4' the control tokens. */
static bool allows(eng_grammar *g, const char *s)
{
    struct err e = {0};
    struct eng_grammar_state at;
    OK(eng_grammar_start(g, &at, &e));
    for (; *s; s++) {
        char c = *s;
        int32_t id = c < 5 ? 199 + c : c == ' ' ? 32 : c == '\n' ? 10 : c;
        if (eng_grammar_accept(g, &at, id, &e))
            return false;
    }
    return eng_grammar_may_end(g, at);
}

#define OBJECT "{\"response_format\":{\"type\":\"json_object\"}}"

START_TEST(core)
{
    setup();
    eng_grammar *g = grammar_of(OBJECT, false, false, false, 0);
    ck_assert(allows(g, "{\"a\":1}") && allows(g, "\1why? {\3}\2\n\n{\"a\":1}") && !allows(g, "a") && !allows(g, "\1why?") && !allows(g, "\3{}") && !allows(g, "{}x"));
    ck_assert(allows(g, "say:{}") && allows(g, "\1x\2\4say:{}\4") && !allows(g, "say:")); /* mark-up that readers drop */
    eng_grammar_close(g);
    g = grammar_of(OBJECT, false, true, false, 0);
    ck_assert(allows(g, "{}") && !allows(g, "\1why?\2{}"));
    eng_grammar_close(g);
    g = grammar_of(OBJECT, true, false, false, 0); /* the prompt has opened it */
    ck_assert(allows(g, "because\2{}") && allows(g, "\2\n{}") && !allows(g, "{}") && !allows(g, "because{}"));
    eng_grammar_close(g);
    g = grammar_of("{\"response_format\":{\"type\":\"json_object\"},\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
                   "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}}}]}", false, false, true, 0);
    ck_assert(allows(g, "{}") && allows(g, "\3\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>") && !allows(g, "\3\n{\"name\": \"g\"") && !allows(g, "x\3"));
    eng_grammar_close(g);
    g = grammar_of("{\"grammar\":\"root ::= [ab]+ </think>?\"}", false, false, false, 0); /* one's own rules the whole answer */
    ck_assert(allows(g, "abba") && allows(g, "a\2") && !allows(g, "\1a\2b"));
    eng_grammar_close(g);
    g = grammar_of("{\"guided_choice\":[\"yes\",\"n\\\"o\"]}", false, true, false, 0);
    ck_assert(allows(g, "yes") && allows(g, "n\"o") && !allows(g, "no"));
    eng_grammar_close(g);
    g = grammar_of("{\"structured_outputs\":{\"json\":{\"type\":\"integer\",\"minimum\":5}}}", false, true, false, 0);
    ck_assert(allows(g, "15") && !allows(g, "4"));
    eng_grammar_close(g);
    teardown();
}
END_TEST

START_TEST(errors)
{
    setup();
    grammar_of("{\"grammar\":\"root ::= <nothing>\"}", false, false, false, 400);
    grammar_of("{\"grammar\":\"root ::= a\"}", false, false, false, 400);
    grammar_of("{\"guided_json\":{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/a\"}},\"required\":[\"a\"]}}}}", false, false, false, 400);
    teardown();
}
END_TEST

SUITE("gateway", "structured", core, errors)
