/* A tokenizer.json (up to a NUL), then a text: whatever opens must encode without a control token in plain text, and be its saved self. */
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    const uint8_t *nul = memchr(p, 0, n);
    size_t json_n = nul ? (size_t)(nul - p) : n;
    const char *text = nul ? (const char *)nul + 1 : "ab <s>a\xC3\xA9 12";
    struct err e;
    eng_tok *t;
    if (eng_tok_open_json(&t, (const char *)p, json_n, NULL, 0, &e))
        return 0;
    use_and_close(t, text, nul ? n - json_n - 1 : strlen(text));
    return 0;
}
