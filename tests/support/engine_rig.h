/* tests/support/engine_rig.h - an engine whose events are kept, request by request, to be compared bit by bit. */
#ifndef SLUICE_TESTS_SUPPORT_ENGINE_RIG_H
#define SLUICE_TESTS_SUPPORT_ENGINE_RIG_H
#include <pthread.h>

#include "engine/engine.h"
#include "tests/support/suite.h"

enum { MAX = 64, TOKENS = 64 };
struct req {
    int32_t ids[TOKENS];
    struct eng_logprobs lp[TOKENS];
    uint32_t n, done;
    char text[1024];
    size_t text_n;
    enum eng_finish finish;
    struct eng_usage usage;
};
struct box { pthread_mutex_t lock; pthread_cond_t cond; struct req r[MAX]; eng_engine *g; uint64_t cancel_at_start, pause_at_second; };
/* Requests are submitted with ids below MAX, with logprobs and at most TOKENS tokens of output. */
static inline void on_event(void *ctx, const struct eng_event *ev)
{
    struct box *b = ctx;
    struct req *r = &b->r[ev->id];
    if (ev->type == ENG_EV_STARTED && ev->id == b->cancel_at_start)
        eng_cancel(b->g, ev->id);
    pthread_mutex_lock(&b->lock);
    if (ev->type == ENG_EV_TOKEN) {
        ck_assert(r->n < TOKENS && ev->logprobs);
        r->ids[r->n] = ev->token;
        r->lp[r->n++] = *ev->logprobs;
        if (ev->n_out == 2 && ev->id == b->pause_at_second)
            eng_pause(b->g, ev->id, true);
    }
    if (ev->n && r->text_n + ev->n <= sizeof r->text) {
        memcpy(r->text + r->text_n, ev->text, ev->n);
        r->text_n += ev->n;
    }
    if (ev->type == ENG_EV_DONE) {
        r->done++;
        r->finish = ev->finish;
        r->usage = *ev->usage;
    }
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static inline void open_box(struct box *b, const struct eng_config *c)
{
    struct err e = {0};
    *b = (struct box){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER, .cancel_at_start = UINT64_MAX, .pause_at_second = UINT64_MAX};
    OK(eng_open(&b->g, c, on_event, b, &e));
}
static inline void wait_done(struct box *b, uint64_t id)
{
    pthread_mutex_lock(&b->lock);
    while (!b->r[id].done)
        pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static inline void same(const struct req *want, uint32_t from, const struct req *got, const char *what, uint32_t k)
{
    ck_assert_msg(got->finish == want->finish && got->n == want->n - from, "%s: prompt %u: %u tokens", what, k, got->n);
    for (uint32_t i = 0; i < got->n; i++) {
        const struct eng_logprobs *a = &want->lp[from + i], *b = &got->lp[i];
        ck_assert_msg(want->ids[from + i] == got->ids[i], "%s: prompt %u: token %u differs", what, k, i);
        ck_assert_msg(a->logprob == b->logprob && a->n_top == b->n_top && !memcmp(a->top, b->top, a->n_top * sizeof a->top[0]),
                      "%s: prompt %u: logits of token %u differ", what, k, i);
    }
    ck_assert_msg(from || (got->text_n == want->text_n && !memcmp(got->text, want->text, got->text_n)), "%s: prompt %u: other text", what, k);
}
#endif
