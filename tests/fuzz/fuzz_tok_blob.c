/* A saved tokenizer, damaged: refused, or one that encodes and decodes within its own ids. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char text[] = "ab abab  <s><x>\xE2\x96\x81 e\xCC\x81\xCC\xA3 \xE6\xB0\xB4 12345\n\n";
    struct eng_ids ids = {.max = 1 << 16};
    struct eng_detok d;
    struct buf out;
    struct err e;
    eng_tok *t;
    size_t bad;
    if (eng_tok_load(&t, p, n, &e))
        return 0;
    buf_init(&out, 1 << 22);
    eng_detok_init(&d);
    for (unsigned flags = 0; flags < 8; flags++) {
        ids.n = 0;
        eng_tok_encode(t, text, sizeof text - 1, flags, &ids, &e);
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.v[i] < 0 || (uint32_t)ids.v[i] >= eng_tok_count(t))
                abort();
            eng_detok_push(t, &d, ids.v[i], flags & 1, &out);
        }
    }
    eng_detok_end(t, &d, &out);
    if (!out.failed && !tok_utf8_valid(out.data ? out.data : "", out.len, &bad))
        abort();
    buf_free(&out);
    eng_ids_free(&ids);
    eng_tok_close(t);
    return 0;
}
