/* The reader, json_check and the tree must agree on every input, and what the writer makes of a tree must read back equal. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct json_limits lim = json_strict;
    const char *text = (const char *)p;
    if (n) { /* the last byte picks the limits, so that seeds stay readable */
        lim.allow_nul = p[n - 1] & 1;
        lim.allow_duplicates = p[n - 1] & 2;
    }
    struct arena a;
    struct buf once, twice;
    struct json *v, *w;
    struct err e;
    arena_init(&a, 16 << 20);
    buf_init(&once, 16 << 20);
    buf_init(&twice, 16 << 20);
    int rc = json_check(text, n, &lim, &e), tree = json_parse(&v, text, n, &lim, &a, &e);
    must(rc == tree && (rc == 0) == (v != NULL));
    if (!rc) {
        json_put(&once, v);
        must(!once.failed && json_parse(&w, once.data, once.len, &lim, &a, &e) == 0);
        json_put(&twice, w);
        must(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
        int64_t i;
        uint64_t u;
        double d;
        json_int(v, &i);
        json_u64(v, &u);
        json_num(v, &d);
    }
    json_reader *r;
    if (!json_reader_open(&r, text, n, &lim, &e)) {
        const char *s;
        size_t len;
        int ev;
        for (unsigned k = 0; (ev = json_next(r, &s, &len, &e)) >= 0 && ev != JSON_EV_END; k++)
            if (k % 3 == 2 && json_skip(r, &e))
                break;
        json_reader_close(r);
    }
    buf_free(&once);
    buf_free(&twice);
    arena_free(&a);
    return 0;
}
