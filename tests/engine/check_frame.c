/* Frames there and back, fed whole and byte by byte; joining and its bound; broken headers; every truncation of every body. */
#include "base/clock.h"
#include "engine/frame.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

static const int32_t ids[] = {1, 2, 50000, INT32_MAX};
static const char *const stops[] = {"\n\n", "END\0x"};
static const uint32_t stop_lens[] = {2, 5};
static const struct eng_bias biases[] = {{7, -100}, {50000, 2.5f}};
static const struct eng_logprobs logprobs[4] = {{.logprob = -1}, {.logprob = -2, .n_top = 1, .top = {{3, -0.5f}}}, {.logprob = -3}, {.logprob = -4}};
static const struct eng_frame_tokens tokens = {ids, 4, "text", 4, logprobs};
static const struct eng_request sample = {
    .ids = ids, .n_ids = 4, .n_done = 1, .text_skip = 77, .max_tokens = 9, .min_tokens = 3, .ignore_eos = true, .markers = true, .stops = stops,
    .stop_lens = stop_lens, .n_stops = 2, .deadline_ns = 5000, .priority = -2, .tenant = "acme",
    .sampling = {.temperature = 0.7f, .top_p = 0.9f, .min_p = 0.05f, .top_k = 40, .seed = UINT64_MAX, .choice = 3, .presence = 0.5f, .frequency = -0.25f, .repetition = 1.1f},
    .bias = biases, .n_bias = 2, .logprobs = true, .top_logprobs = 20, .grammar = "root ::= \"a\"", .grammar_n = 12, .grammar_trigger = "<call>", .grammar_trigger_n = 6};
static const struct eng_usage usage = {.prompt_tokens = 10, .cached_tokens = 4, .output_tokens = 6, .draft_tokens = 8, .draft_accepted = 5, .queue_ns = 1ull << 40, .prefill_ns = 2, .decode_ns = 3};

static struct eng_frame frame_of(const struct buf *b)
{
    return (struct eng_frame){.type = 1, .request = 42, .body = (const uint8_t *)b->data, .n = b->len};
}

/* The four kinds of body; what = 0..3. */
static void put_body(struct buf *b, int what)
{
    struct err failed = {.code = ERR_IO, .msg = "drive gone"};
    struct eng_event done = {.type = ENG_EV_DONE, .finish = ENG_FAILED, .usage = &usage, .text = "bye", .n = 3, .stop = 2, .err = &failed};
    bool ok = what == 0 ? eng_frame_put_submit(b, &sample, 4000) : what == 1 ? eng_frame_put_tokens(b, &tokens)
            : what == 2 ? eng_frame_put_done(b, &done) : eng_frame_put_refused(b, &failed);
    ck_assert(ok);
}

static int get_body(const struct eng_frame *f, int what, struct arena *a, struct err *e)
{
    struct eng_request r;
    struct eng_event ev;
    struct eng_usage u;
    struct err why;
    struct eng_frame_tokens t;
    return what == 0 ? eng_frame_get_submit(f, 0, a, &r, e) : what == 1 ? eng_frame_get_tokens(f, a, &t, e)
         : what == 2 ? eng_frame_get_done(f, &ev, &u, &why, e) : eng_frame_get_refused(f, &why, e);
}

START_TEST(core)
{
    struct err e = {0}, why = {0};
    struct arena a;
    struct buf b;
    struct eng_request r;
    struct eng_event ev;
    struct eng_usage u;
    arena_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    put_body(&b, 0);
    struct eng_frame f = frame_of(&b);
    OK(eng_frame_get_submit(&f, 100000, &a, &r, &e));
    ck_assert(r.id == 42 && r.n_ids == 4 && !memcmp(r.ids, ids, sizeof ids) && r.n_done == 1 && r.text_skip == 77 && r.max_tokens == 9 && r.min_tokens == 3 && r.markers);
    ck_assert(r.ignore_eos && r.n_stops == 2 && r.stop_lens[1] == 5 && !memcmp(r.stops[1], "END\0x", 5) && r.deadline_ns == 101000 && r.priority == -2);
    ck_assert(!strcmp(r.tenant, "acme") && r.sampling.temperature == 0.7f && r.sampling.top_p == 0.9f && r.sampling.min_p == 0.05f &&
              r.sampling.top_k == 40 && r.sampling.seed == UINT64_MAX);
    ck_assert(r.sampling.choice == 3 && r.sampling.presence == 0.5f && r.sampling.frequency == -0.25f && r.sampling.repetition == 1.1f);
    ck_assert(r.grammar_n == 12 && !memcmp(r.grammar, sample.grammar, 12) && r.grammar_trigger_n == 6 && !memcmp(r.grammar_trigger, "<call>", 6));
    ck_assert(r.logprobs && r.top_logprobs == 20 && r.n_bias == 2 && !memcmp(r.bias, biases, sizeof biases));
    buf_reset(&b);
    ck_assert(eng_frame_put_submit(&b, &(struct eng_request){.ids = ids, .n_ids = 1, .deadline_ns = 5}, 10)); /* passed already: 1 ns is left */
    f = frame_of(&b);
    OK(eng_frame_get_submit(&f, 20, &a, &r, &e));
    ck_assert(r.deadline_ns == 21 && !r.tenant && !r.n_stops && !r.ignore_eos && !r.grammar && !r.grammar_trigger);

    buf_reset(&b);
    put_body(&b, 1);
    f = frame_of(&b);
    struct eng_frame_tokens t;
    OK(eng_frame_get_tokens(&f, &a, &t, &e));
    ck_assert(t.n == 4 && !memcmp(t.ids, ids, sizeof ids) && t.text_n == 4 && !memcmp(t.text, "text", 4));
    ck_assert(t.logprobs && t.logprobs[3].logprob == -4 && t.logprobs[1].n_top == 1 && t.logprobs[1].top[0].id == 3 && t.logprobs[1].top[0].logprob == -0.5f);
    buf_reset(&b);
    ck_assert(eng_frame_put_tokens(&b, &(struct eng_frame_tokens){.ids = ids, .n = 4}));
    f = frame_of(&b);
    OK(eng_frame_get_tokens(&f, &a, &t, &e));
    ck_assert(t.n == 4 && !t.logprobs && !t.text_n);

    buf_reset(&b);
    put_body(&b, 2);
    f = frame_of(&b);
    OK(eng_frame_get_done(&f, &ev, &u, &why, &e));
    ck_assert(ev.id == 42 && ev.stop == 2 && ev.finish == ENG_FAILED && !memcmp(&u, &usage, sizeof u) && ev.n == 3 && ev.err == &why && why.code == ERR_IO);
    ck_assert_str_eq(why.msg, "drive gone");
    buf_reset(&b);
    ck_assert(eng_frame_put_done(&b, &(struct eng_event){.type = ENG_EV_DONE, .finish = ENG_LENGTH}));
    f = frame_of(&b);
    OK(eng_frame_get_done(&f, &ev, &u, &why, &e));
    ck_assert(ev.finish == ENG_LENGTH && !ev.err && !ev.n && why.code == 0);

    buf_reset(&b);
    put_body(&b, 3);
    f = frame_of(&b);
    OK(eng_frame_get_refused(&f, &why, &e));
    ck_assert(why.code == ERR_IO && !strcmp(why.msg, "drive gone"));
    buf_free(&b);
    arena_free(&a);
}
END_TEST

static void expect_stream(const struct buf *wire, size_t step, const struct eng_frame *want, size_t n_want)
{
    struct err e = {0};
    struct eng_frame_reader r;
    struct eng_frame f;
    size_t seen = 0;
    eng_frame_reader_init(&r, 4 << 20);
    for (size_t at = 0; at < wire->len; at += step) {
        OK(eng_frame_feed(&r, wire->data + at, wire->len - at < step ? wire->len - at : step, &e));
        int got;
        while ((got = eng_frame_next(&r, &f, &e)) == 1) {
            ck_assert(seen < n_want && f.type == want[seen].type && f.request == want[seen].request && f.n == want[seen].n);
            ck_assert(!memcmp(f.body, want[seen].body, f.n));
            seen++;
        }
        ck_assert_msg(got == 0, "%s", e.msg);
    }
    ck_assert_uint_eq(seen, n_want);
    eng_frame_reader_free(&r);
}

START_TEST(streams)
{
    struct buf wire;
    uint8_t *big = malloc(3 << 20);
    for (size_t i = 0; i < 3 << 20; i++)
        big[i] = (uint8_t)(i * 7 + i / 251);
    const struct eng_frame small[] = {{ENG_FR_HELLO, 0, big, 30}, {ENG_FR_CANCEL, 5, big, 0}, {ENG_FR_TOKENS, UINT64_MAX, big + 9, 1}};
    const struct eng_frame large[] = {{ENG_FR_BLOB, 0, big, 3 << 20}, {ENG_FR_PING, 1, big, 0}, {ENG_FR_BLOB, 2, big, 1 << 20}, {ENG_FR_BLOB, 3, big, (1 << 20) + 1}};
    buf_init(&wire, 16 << 20);
    for (int i = 0; i < 3; i++) {
        ck_assert(eng_frame_put(&wire, small[i].type, small[i].request, small[i].body, small[i].n));
        ck_assert(eng_frame_put(&wire, 999, 1, "a later version's", 17)); /* skipped */
    }
    for (size_t step = 1; step < 40; step++)
        expect_stream(&wire, step, small, 3);
    buf_reset(&wire);
    for (int i = 0; i < 4; i++)
        ck_assert(eng_frame_put(&wire, large[i].type, large[i].request, large[i].body, large[i].n));
    ck_assert_uint_eq(wire.len, (3u << 20) + (1 << 20) + (1 << 20) + 1 + (3 + 1 + 1 + 2) * ENG_FRAME_HEADER);
    expect_stream(&wire, 65536, large, 4);
    expect_stream(&wire, 1 << 20, large, 4);
    buf_free(&wire);
    free(big);
}
END_TEST

/* One frame with a field of its header set to something else, or wire bytes as they are; the reader must refuse with these words. */
static void expect_broken(const void *wire, size_t n, size_t body_max, const char *words)
{
    struct err e = {0};
    struct eng_frame_reader r;
    struct eng_frame f;
    int got;
    eng_frame_reader_init(&r, body_max);
    OK(eng_frame_feed(&r, wire, n, &e));
    while ((got = eng_frame_next(&r, &f, &e)) == 1)
        ;
    ck_assert_int_eq(got, -1);
    ck_assert_msg(e.code == ERR_FORMAT && strstr(e.msg, words), "%s", e.msg);
    eng_frame_reader_free(&r);
}

START_TEST(limits)
{
    struct err e = {0};
    struct buf w;
    buf_init(&w, 8 << 20);
    static const struct { size_t at; uint8_t v; const char *words; } odd[] = {
        {0, 'X', "magic"}, {6, 2, "flags"}, {7, 0x80, "flags"}, {20, 1, "last word"}, {23, 1, "last word"}, {18, 0x11, "body, at most bytes"}, {19, 1, "body, at most bytes"}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        buf_reset(&w);
        eng_frame_put(&w, ENG_FR_PING, 1, "x", 1);
        w.data[odd[i].at] = (char)odd[i].v;
        expect_broken(w.data, w.len, 1 << 20, odd[i].words);
    }
    buf_reset(&w);
    eng_frame_put(&w, ENG_FR_HELLO, 0, "12345", 5);
    expect_broken(w.data, w.len, 4, "body, at most bytes: expected 4, found 5");

    char *big = calloc(1, 3 << 20);
    buf_reset(&w);
    eng_frame_put(&w, ENG_FR_BLOB, 0, big, (2 << 20) - 8);
    expect_broken(w.data, w.len, (2 << 20) - 9, "joined body");
    w.data[8 + ENG_FRAME_HEADER + (1 << 20)] = 1; /* the second part belongs to another request */
    expect_broken(w.data, w.len, 4 << 20, "a part of another body");
    buf_reset(&w);
    eng_frame_put(&w, ENG_FR_BLOB, 0, "", 0);
    w.data[6] = ENG_FRAME_MORE;
    expect_broken(w.data, w.len, 4 << 20, "an empty part");

    struct eng_frame_reader r;
    eng_frame_reader_init(&r, 4 << 20);
    FAILS(ERR_LIMIT, "unread", eng_frame_feed(&r, big, 3 << 20, &e));
    eng_frame_reader_free(&r);
    struct buf little;
    buf_init(&little, 30);
    ck_assert(!eng_frame_put(&little, ENG_FR_PING, 0, "1234567", 7) && little.len == 0 && little.failed);
    buf_free(&little);
    buf_free(&w);
    free(big);
}
END_TEST

START_TEST(errors)
{
    struct err e = {0};
    struct arena a;
    struct buf b, longer;
    arena_init(&a, 64 << 20);
    buf_init(&b, 1 << 20);
    buf_init(&longer, 1 << 20);
    for (int what = 0; what < 4; what++) {
        buf_reset(&b);
        put_body(&b, what);
        for (size_t n = 0; n < b.len; n++) {
            char *exact = malloc(n + !n); /* its end is where a sanitizer sees it */
            memcpy(exact, b.data, n);
            struct eng_frame f = {.request = 1, .body = (const uint8_t *)exact, .n = n};
            ck_assert_int_eq(get_body(&f, what, &a, &e), ERR_FORMAT);
            free(exact);
        }
        buf_reset(&longer);
        buf_add(&longer, b.data, b.len);
        buf_char(&longer, 0);
        struct eng_frame f = frame_of(&longer);
        ck_assert_int_eq(get_body(&f, what, &a, &e), ERR_FORMAT);
        if (alloc_fail_works() && what < 2) {
            f = frame_of(&b);
            long n = 0;
            for (bool more = true; more; n++) {
                struct arena fresh;
                arena_init(&fresh, 1 << 20);
                alloc_fail_at(n);
                int rc = get_body(&f, what, &fresh, &e);
                more = alloc_fail_end();
                ck_assert_int_eq(rc, more ? ERR_NOMEM : ERR_OK);
                arena_free(&fresh);
            }
            ck_assert_int_ge(n, 2);
        }
    }
    static const struct { size_t at; uint8_t v[4]; const char *words; } odd[] = {
        {0, {255, 255, 255, 255}, "as many token ids"}, {4, {4}, "a prompt"}, {24, {8}, "unknown flags"}, {28, {0, 0, 192, 127}, "temperature"},
        {28, {0, 0, 128, 255}, "temperature"}, {32, {0, 0, 0, 64}, "top_p"}, {36, {0, 0, 128, 191}, "min_p"}, {40, {255, 255, 255, 255}, "top_k"},
        {84, {0, 1, 0, 0}, "ends too early"}, {88, {0}, "without NUL"}, {92, {17}, "at most 16"}, {96, {0}, "1 to 256"},
        {64, {0, 0, 128, 127}, "penalties"}, {72, {0, 0, 128, 191}, "penalties"}, {80, {21}, "at most 20"}, {111, {45, 1}, "300 biases"},
        {115, {255, 255, 255, 255}, "finite biases"}, {119, {0, 0, 192, 127}, "finite biases"},
        {131, {255, 255, 31}, "at most 1 MiB"}, {147, {1, 1}, "a trigger"}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        buf_reset(&b);
        put_body(&b, 0);
        memcpy(b.data + odd[i].at, odd[i].v, 4);
        struct eng_frame f = frame_of(&b);
        FAILS(ERR_FORMAT, odd[i].words, get_body(&f, 0, &a, &e));
    }
    buf_reset(&b);
    put_body(&b, 3);
    b.data[0] = 100;
    struct eng_frame f = frame_of(&b);
    FAILS(ERR_FORMAT, "unknown error code", get_body(&f, 3, &a, &e));
    if (!alloc_fail_works())
        puts("SKIP frame: allocations are not made to fail under a sanitizer");
    buf_free(&b);
    buf_free(&longer);
    arena_free(&a);
}
END_TEST

SUITE("engine", "frame", core, streams, limits, errors)
