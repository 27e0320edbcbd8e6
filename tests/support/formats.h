/* tests/support/formats.h - the built-in descriptions of calls and reasoning, compiled over a small tokenizer that has their control tokens.
 * A header alone: tests with a tokenizer of their own do not link it. */
#ifndef SLUICE_TESTS_FORMATS_H
#define SLUICE_TESTS_FORMATS_H
#include "engine/format.h"
#include "engine/sheet.h"
#include "tests/support/suite.h"

static const char formats_vocabulary[] =
    "{\"added_tokens\":["
    "{\"id\":1,\"content\":\"<|python_tag|>\",\"special\":true},{\"id\":2,\"content\":\"[TOOL_CALLS]\",\"special\":true},{\"id\":3,\"content\":\"[ARGS]\",\"special\":true},"
    "{\"id\":4,\"content\":\"<｜tool▁calls▁begin｜>\",\"special\":true},{\"id\":5,\"content\":\"<｜tool▁call▁begin｜>\",\"special\":true},"
    "{\"id\":6,\"content\":\"<｜tool▁sep｜>\",\"special\":true},{\"id\":7,\"content\":\"<｜tool▁call▁end｜>\",\"special\":true},"
    "{\"id\":8,\"content\":\"<｜tool▁calls▁end｜>\",\"special\":true},{\"id\":9,\"content\":\"<|tool_calls_section_begin|>\",\"special\":true},"
    "{\"id\":10,\"content\":\"<|tool_call_begin|>\",\"special\":true},{\"id\":11,\"content\":\"<|tool_call_argument_begin|>\",\"special\":true},"
    "{\"id\":12,\"content\":\"<|tool_call_end|>\",\"special\":true},{\"id\":13,\"content\":\"<|tool_calls_section_end|>\",\"special\":true},"
    "{\"id\":14,\"content\":\"<|open|>\",\"special\":true},{\"id\":15,\"content\":\"<|close|>\",\"special\":true},{\"id\":16,\"content\":\"<|sep|>\",\"special\":true},"
    "{\"id\":17,\"content\":\"<|channel|>\",\"special\":true},{\"id\":18,\"content\":\"<|message|>\",\"special\":true},{\"id\":19,\"content\":\"<|constrain|>\",\"special\":true},"
    "{\"id\":20,\"content\":\"<|call|>\",\"special\":true},{\"id\":21,\"content\":\"<|end|>\",\"special\":true},{\"id\":22,\"content\":\"<|start|>\",\"special\":true},"
    "{\"id\":23,\"content\":\"<|return|>\",\"special\":true},{\"id\":24,\"content\":\"[CALL_ID]\",\"special\":true},{\"id\":25,\"content\":\"<tool_call>\",\"special\":false}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";

/* {"tools", "reasoning"} of a sheet that adds to what all inherit. */
static const struct json *formats_sections(struct arena *a)
{
    struct err e;
    eng_sheets *s;
    const struct json *m;
    struct json *copy;
    struct buf b;
    OK(eng_sheets_open(&s, NULL, &e));
    OK(eng_sheets_merge(s, "qwen2", a, &m, &e));
    buf_init(&b, 1u << 20);
    json_put(&b, m);
    OK(json_parse(&copy, b.data, b.len, &json_strict, a, &e));
    buf_free(&b);
    eng_sheets_close(s);
    return copy;
}

static void formats_pick(struct json *out, const struct json *sections, const char *section, const char *name, struct arena *a)
{
    const struct json *entry = name ? json_get(json_get(sections, section), name) : NULL;
    ck_assert_msg(entry || !name, "no format %s", name);
    struct json *o = json_new(a, entry ? JSON_OBJECT : JSON_NULL);
    if (entry)
        json_set(a, o, "name", json_new_str(a, name, strlen(name)));
    for (size_t i = 0; entry && i < entry->n; i++)
        json_set(a, o, entry->members[i].key, entry->members[i].value);
    json_set(a, out, section, o);
}

static eng_tok *formats_tokenizer(void)
{
    struct err e;
    eng_tok *tok;
    OK(eng_tok_open_json(&tok, formats_vocabulary, sizeof formats_vocabulary - 1, NULL, 0, &e));
    return tok;
}

/* tools, reasoning: names of entries, NULL: none. marked: the vocabulary has the control tokens as special ones. In a; fails the test. */
static struct eng_format *formats_open(const char *tools, const char *reasoning, bool marked, struct arena *a)
{
    const struct json *sections = formats_sections(a);
    struct json *chosen = json_new(a, JSON_OBJECT);
    struct eng_format *f = ARENA_NEW(a, struct eng_format);
    eng_tok *tok = NULL;
    struct err e;
    formats_pick(chosen, sections, "tools", tools, a);
    formats_pick(chosen, sections, "reasoning", reasoning, a);
    if (marked)
        tok = formats_tokenizer();
    OK(eng_format_read(f, chosen, tok, a, &e));
    eng_tok_close(tok);
    return f;
}
#endif
