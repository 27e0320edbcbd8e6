/* tests/fuzz/use_tokenizer.h - what must hold of any tokenizer that opens, whatever file it came from: ids in range, no control token
 * out of plain text, whole UTF-8 back, and equal to what it saves. */
#ifndef SLUICE_TESTS_FUZZ_USE_TOKENIZER_H
#define SLUICE_TESTS_FUZZ_USE_TOKENIZER_H
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

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

static void use_and_close(eng_tok *t, const char *text, size_t n)
{
    struct buf a, b;
    struct err e;
    eng_tok *u;
    buf_init(&a, 1 << 24);
    buf_init(&b, 1 << 24);
    use(t, text, n);
    if (!eng_tok_save(t, &a, &e)) {
        must(eng_tok_load(&u, a.data, a.len, &e) == ERR_OK);
        must(eng_tok_save(u, &b, &e) == ERR_OK && a.len == b.len && !memcmp(a.data, b.data, a.len));
        eng_tok_close(u);
    }
    eng_tok_close(t);
    buf_free(&a);
    buf_free(&b);
}
#endif
