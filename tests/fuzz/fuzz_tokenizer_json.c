/* A tokenizer.json (up to a NUL), then a text: whatever opens must encode without a control token in plain text, and be its saved self. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void use(const eng_tok *t, const char *text, size_t n)
{
    static const unsigned flags[] = {0, ENG_TOK_ADDED, ENG_TOK_SPECIAL, ENG_TOK_SPECIAL | ENG_TOK_WRAP};
    struct eng_text_span spans[3] = {{0, n / 3, true}, {n / 3, n / 2, false}, {n / 2, n, true}};
    struct eng_ids ids = {.max = 1 << 16};
    struct eng_detok d;
    struct buf out;
    struct err e;
    size_t bad;
    buf_init(&out, 1 << 22);
    for (size_t k = 0; k < 5; k++) {
        ids.n = 0;
        int rc = k < 4 ? eng_tok_encode(t, text, n, flags[k], &ids, &e) : eng_tok_encode_spans(t, text, spans, 3, &ids, &e);
        eng_detok_init(&d);
        for (size_t i = 0; !rc && i < ids.n; i++) {
            must(ids.v[i] >= 0 && (uint32_t)ids.v[i] < eng_tok_count(t));
            must(k > 1 || ids.v[i] == t->d.unk || !eng_tok_is_control(t, ids.v[i]));
            eng_detok_push(t, &d, ids.v[i], k == 2, &out);
        }
        eng_detok_end(t, &d, &out);
        must(out.failed || tok_utf8_valid(out.data ? out.data : "", out.len, &bad));
        buf_reset(&out);
    }
    buf_free(&out);
    eng_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    const uint8_t *nul = memchr(p, 0, n);
    size_t json_n = nul ? (size_t)(nul - p) : n;
    const char *text = nul ? (const char *)nul + 1 : "ab <s>a\xC3\xA9 12";
    size_t text_n = nul ? n - json_n - 1 : strlen(text);
    struct buf a, b;
    struct err e;
    eng_tok *t, *u;
    if (eng_tok_open_json(&t, (const char *)p, json_n, NULL, 0, &e))
        return 0;
    buf_init(&a, 1 << 24);
    buf_init(&b, 1 << 24);
    use(t, text, text_n);
    if (!eng_tok_save(t, &a, &e)) {
        must(eng_tok_load(&u, a.data, a.len, &e) == ERR_OK);
        must(eng_tok_save(u, &b, &e) == ERR_OK && a.len == b.len && !memcmp(a.data, b.data, a.len));
        eng_tok_close(u);
    }
    eng_tok_close(t);
    buf_free(&a);
    buf_free(&b);
    return 0;
}
