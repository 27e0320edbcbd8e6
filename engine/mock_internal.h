/* engine/mock_internal.h - the mock's text as tokens, and the tokenizer made from them (mock_text.c), for mock.c. */
#ifndef SLUICE_ENGINE_MOCK_INTERNAL_H
#define SLUICE_ENGINE_MOCK_INTERNAL_H
#include "engine/mock.h"
#include "engine/tokenizer.h"

struct mock_token { uint32_t off, n; int32_t id, stamp; }; /* stamp: where {ns} begins in it; -1: nowhere */
struct mock_text {
    char *s; size_t n;
    struct mock_token *t; uint32_t n_t;
    uint32_t vocab; int32_t eos;
    struct buf blob;      /* the tokenizer, saved */
};
int mock_text_open(struct mock_text *x, const char *s, struct err *e);
void mock_text_close(struct mock_text *x);
/* Appends token i's text (i counts over the end of the text, which then starts over); its time goes where {ns} stood. */
void mock_text_put(const struct mock_text *x, uint32_t i, uint64_t time_ns, struct buf *out);
#endif
