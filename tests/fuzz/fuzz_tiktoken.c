/* A tiktoken.model (up to a NUL), its tokenizer_config.json (up to a NUL), then a text. */
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    const char *model = (const char *)p, *end = model + n, *config, *text;
    const char *nul = memchr(model, 0, n);
    struct err e;
    eng_tok *t;
    config = nul ? nul + 1 : "{}";
    size_t model_n = nul ? (size_t)(nul - model) : n, config_n = nul ? (size_t)(end - config) : 2;
    const char *second = nul ? memchr(config, 0, config_n) : NULL;
    text = second ? second + 1 : "ab [EOS]a\xC3\xA9 12";
    size_t text_n = second ? (size_t)(end - text) : strlen(text);
    if (second)
        config_n = (size_t)(second - config);
    struct tok_def d;
    must(tok_def_init(&d, &e) == ERR_OK);
    if (tok_read_tiktoken(&d, model, model_n, config, config_n, &e))
        tok_def_free(&d);
    else if (tok_build(&t, &d, &e) == ERR_OK)
        use_and_close(t, text, text_n);
    return 0;
}
