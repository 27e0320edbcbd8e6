/* Any JSON as a schema: refused with a place, or a grammar that compiles or says why not (too large, without an end), and that is followed a while: no text of
 * it may get stuck, and a whole one is JSON. The first byte: strictness and which way to go. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/grammar.h"
#include "engine/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void follow(eng_grammar *g, uint8_t way)
{
    struct err e;
    struct eng_grammar_state s;
    char text[400];
    size_t n = 0;
    eng_grammar_begin(g, NULL, 256 << 10);
    if (eng_grammar_start(g, &s, &e))
        return;
    while (!eng_grammar_over(g, s) && n < sizeof text) {
        unsigned c, from = (way + 77u * (unsigned)n) % 256;
        int rc = ERR_INVALID;
        if (n > 100) /* close what is open */
            from = '"';
        for (c = 0; c < 256 && rc == ERR_INVALID; c++) {
            text[n] = (char)(from + c);
            rc = eng_grammar_bytes_accept(g, &s, text + n, 1, &e);
        }
        if (rc == ERR_LIMIT || rc == ERR_NOMEM)
            return;
        must(!rc || eng_grammar_may_end(g, s));
        if (rc)
            break;
        n++;
    }
    if (n < sizeof text && eng_grammar_may_end(g, s)) {
        struct json_limits lim = json_strict;
        lim.allow_duplicates = lim.allow_nul = true;
        lim.depth_max = 500;
        must(!json_check(text, n, &lim, &e));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct arena a;
    struct buf b;
    struct err e = {0};
    struct json *v;
    eng_grammar *g = NULL;
    if (!n)
        return 0;
    arena_init(&a, 16 << 20);
    buf_init(&b, 256 << 10);
    if (!json_parse(&v, (const char *)p + 1, n - 1, &json_strict, &a, &e)) {
        if (eng_schema_to_gbnf(v, "root", p[0] & 1, &b, &e))
            must(e.msg[0] == '#');
        else if (!eng_grammar_compile(&g, b.data, b.len, NULL, &e))
            follow(g, p[0]);
        else
            must(e.code == ERR_LIMIT || e.code == ERR_NOMEM || strstr(e.msg, "can never end"));
    }
    eng_grammar_close(g);
    buf_free(&b);
    arena_free(&a);
    return 0;
}
