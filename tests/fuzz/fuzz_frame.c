/* The frame reader on arbitrary bytes, cut at arbitrary places; every body that comes out goes through its decoder, and what a
 * decoder accepts must encode to the same bytes again. The first byte is the size of the pieces that are fed. */
#include <stdlib.h>
#include <string.h>

#include "engine/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void same(const struct buf *b, const struct eng_frame *f)
{
    must(!b->failed && b->len == f->n && !memcmp(b->data, f->body, f->n));
}

static void body(const struct eng_frame *f)
{
    struct arena a;
    struct buf b;
    struct err e, why;
    struct eng_request r;
    struct eng_event ev;
    struct eng_usage u;
    struct eng_frame_tokens t;
    arena_init(&a, 8 << 20);
    buf_init(&b, 8 << 20);
    if (f->type == ENG_FR_SUBMIT && !eng_frame_get_submit(f, 0, &a, &r, &e)) {
        must(eng_frame_put_submit(&b, &r, 0));
        same(&b, f);
    } else if (f->type == ENG_FR_TOKENS && !eng_frame_get_tokens(f, &a, &t, &e)) {
        must(eng_frame_put_tokens(&b, &t));
        same(&b, f);
    } else if (f->type == ENG_FR_DONE) {
        eng_frame_get_done(f, &ev, &u, &why, &e);
    } else if (f->type == ENG_FR_REFUSED) {
        eng_frame_get_refused(f, &why, &e);
    }
    buf_free(&b);
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct eng_frame_reader r;
    struct eng_frame f;
    struct err e;
    int got = 0;
    size_t step = n ? (size_t)p[0] + 1 : 1;
    eng_frame_reader_init(&r, 4096);
    for (size_t at = 1; at < n && got >= 0; at += step) {
        must(eng_frame_feed(&r, p + at, n - at < step ? n - at : step, &e) == 0);
        while ((got = eng_frame_next(&r, &f, &e)) == 1)
            body(&f);
    }
    eng_frame_reader_free(&r);
    return 0;
}
