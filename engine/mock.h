/* engine/mock.h - an engine without a model, for load tests: every request is answered with one fixed text, token by token at a
 * given rate. It stands behind engine/link.h like the real one, so that gateway, protocol and clients run unmodified.
 *
 * Owns:      one timer thread, a heap of the live requests by when they speak next, a small byte-level tokenizer and a template.
 * Tokens:    a word of the text with the blanks in front of it, at most 32 bytes; `{ns}` in it becomes, each time it is emitted,
 *            the 19 digits of the clock_now_ns() at which the token was due: whoever reads it on this machine knows the delay.
 * Times:     the first token is due at once, each next one 1/rate later, however late the one before was. With `together` all
 *            requests speak at the same instants (whole multiples of 1/rate). Rate 0: at once, requests take turns.
 * Invariant: as engine/engine.h: one DONE a request, no token after a cancel was seen, a paused request says nothing. The end is
 *            max_tokens (LENGTH) or the end of the text (STOP), unless ignore_eos or min_tokens want more: then it starts over.
 * Threads:   submit, cancel, pause, drain, stats from any; events arrive on the timer thread, with no lock held. */
#ifndef SLUICE_ENGINE_MOCK_H
#define SLUICE_ENGINE_MOCK_H
#include "engine/engine.h"

enum { ENG_MOCK_TEXT_MAX = 1 << 20, ENG_MOCK_STAMP = 19 /* digits of {ns} */, ENG_MOCK_SEQS = 16384, ENG_MOCK_CTX = 131072 };
struct eng_mock_config {
    const char *text, *id;    /* UTF-8, copied; id NULL: "mock"; of several names the first is the id */
    uint32_t rate;            /* tokens a second and request; 0: as fast as possible */
    bool together;
    uint32_t ctx, seqs;       /* 0: ENG_MOCK_CTX, ENG_MOCK_SEQS; more than seqs requests at once are refused with ERR_AGAIN */
};
typedef struct eng_mock eng_mock;
/* ERR_INVALID: a text that is empty, too long or not UTF-8. */
int eng_mock_open(eng_mock **out, const struct eng_mock_config *c, eng_event_fn f, void *ctx, struct err *e);
void eng_mock_close(eng_mock *m); /* cancels what runs. NULL is fine */
int eng_mock_submit(eng_mock *m, const struct eng_request *r, struct err *e);
void eng_mock_cancel(eng_mock *m, uint64_t id);
void eng_mock_pause(eng_mock *m, uint64_t id, bool paused);
void eng_mock_drain(eng_mock *m);
void eng_mock_stats(eng_mock *m, struct eng_stats *s);
/* What a gateway is told: the description, and the two texts that it names by digest. Borrowed from m. */
int eng_mock_describe(const eng_mock *m, struct buf *json, struct err *e);
const char *eng_mock_tokenizer(const eng_mock *m, size_t *n);
const char *eng_mock_template(size_t *n);
const char *eng_mock_id(const eng_mock *m);
#endif
