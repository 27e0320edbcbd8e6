/* The mock engine by its functions, with an event sink in place of the link. */
#include <pthread.h>

#include "base/clock.h"
#include "base/json.h"
#include "engine/mock.h"
#include "tests/support/suite.h"

enum { IDS = 4096, TEXT = 1 << 16 };
struct seen { unsigned started, tokens, done; enum eng_finish finish; struct eng_usage usage; char text[256]; size_t n; uint64_t first_ns, last_ns; int32_t ids[32]; bool late; };
static struct seen seen[IDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void sink(void *ctx, const struct eng_event *ev)
{
    struct seen *s = &seen[ev->id];
    (void)ctx;
    pthread_mutex_lock(&lock);
    s->late |= s->done > 0;
    if (ev->type == ENG_EV_STARTED) {
        s->started++;
    } else {
        if (s->n + ev->n < sizeof s->text) {
            memcpy(s->text + s->n, ev->text, ev->n);
            s->n += ev->n;
        }
        if (ev->type == ENG_EV_TOKEN) {
            s->last_ns = clock_now_ns();
            s->first_ns = s->first_ns ? s->first_ns : s->last_ns;
            if (s->tokens < 32)
                s->ids[s->tokens] = ev->token;
            s->tokens++;
        } else {
            s->done++;
            s->finish = ev->finish;
            s->usage = *ev->usage;
        }
    }
    pthread_mutex_unlock(&lock);
}

static struct seen look(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct seen s = seen[id];
    pthread_mutex_unlock(&lock);
    return s;
}

static struct seen wait_done(uint64_t id)
{
    for (int i = 0; i < 10000 && !look(id).done; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_eq(look(id).done, 1);
    return look(id);
}

static void wait_tokens(uint64_t id, unsigned n)
{
    for (int i = 0; i < 10000 && look(id).tokens < n; i++)
        clock_sleep_ns(NS_PER_MS);
    ck_assert_uint_ge(look(id).tokens, n);
}

static eng_mock *open_mock(const char *text, uint32_t rate, uint32_t seqs)
{
    struct err e = {0};
    eng_mock *m;
    memset(seen, 0, sizeof seen);
    OK(eng_mock_open(&m, &(struct eng_mock_config){.text = text, .rate = rate, .seqs = seqs, .ctx = 4000}, sink, NULL, &e));
    return m;
}

static const int32_t prompt[5] = {72, 105, 33, 10, 65};

static struct eng_request request(uint64_t id) { return (struct eng_request){.id = id, .ids = prompt, .n_ids = 5}; }

static void submit(eng_mock *m, const struct eng_request *r)
{
    struct err e = {0};
    OK(eng_mock_submit(m, r, &e));
}

START_TEST(core)
{
    eng_mock *m = open_mock("one two  th\xc3\xa9 a", 0, 0);
    struct eng_request r = request(1);
    submit(m, &r);
    struct seen s = wait_done(1);
    ck_assert_str_eq(s.text, "one two  th\xc3\xa9 a");
    ck_assert_uint_eq(s.tokens, 4);
    ck_assert_uint_eq(s.started, 1);
    ck_assert_int_eq(s.finish, ENG_STOP);
    ck_assert_uint_eq(s.usage.prompt_tokens, 5);
    ck_assert_uint_eq(s.usage.output_tokens, 4);

    r = request(2);
    r.max_tokens = 2;
    submit(m, &r);
    s = wait_done(2);
    ck_assert_str_eq(s.text, "one two");
    ck_assert_int_eq(s.finish, ENG_LENGTH);

    r = request(3); /* over the end, and again */
    r.max_tokens = 9;
    r.ignore_eos = true;
    submit(m, &r);
    ck_assert_str_eq(wait_done(3).text, "one two  th\xc3\xa9 aone two  th\xc3\xa9 aone");
    ck_assert_int_eq(look(3).ids[0], look(3).ids[4]);
    ck_assert_int_ne(look(3).ids[0], look(3).ids[1]);

    r = request(4);
    r.min_tokens = 5;
    submit(m, &r);
    ck_assert_uint_eq(wait_done(4).tokens, 8);

    struct eng_stats st;
    eng_mock_stats(m, &st);
    ck_assert_uint_eq(st.running, 0);
    ck_assert_uint_eq(st.requests, 4);
    ck_assert_uint_eq(st.tokens_out, 4 + 2 + 9 + 8);
    ck_assert_uint_eq(st.tokens_in, 20);
    eng_mock_close(m);
}
END_TEST

START_TEST(stops)
{
    static const char *const stop[] = {"wo t"};
    static const uint32_t len[] = {4};
    eng_mock *m = open_mock("one two three", 0, 0);
    struct eng_request r = request(1);
    r.stops = stop;
    r.stop_lens = len;
    r.n_stops = 1;
    submit(m, &r);
    struct seen s = wait_done(1);
    ck_assert_str_eq(s.text, "one t");
    ck_assert_int_eq(s.finish, ENG_STOP);
    /* A second life: two tokens done, "one t" delivered, "wo" held back. */
    int32_t ids[7] = {72, 105, 33, 10, 65, s.ids[0], s.ids[1]};
    r = (struct eng_request){.id = 2, .ids = ids, .n_ids = 7, .n_done = 2, .text_skip = 5};
    submit(m, &r);
    s = wait_done(2);
    ck_assert_str_eq(s.text, "wo three");
    ck_assert_uint_eq(s.usage.output_tokens, 3);
    ck_assert_uint_eq(s.usage.prompt_tokens, 5);
    /* One that comes back with a token less than it delivered. */
    r = (struct eng_request){.id = 3, .ids = ids, .n_ids = 6, .n_done = 1, .text_skip = 9};
    submit(m, &r);
    s = wait_done(3);
    ck_assert_str_eq(s.text, "hree");
    ck_assert_uint_eq(s.tokens, 2);
    eng_mock_close(m);
}
END_TEST

/* Stamps are when a token was due: exactly 1/rate apart; none is said before. */
START_TEST(rate)
{
    eng_mock *m = open_mock("{ns} {ns} {ns} {ns} {ns}", 100, 0);
    struct eng_request r = request(1);
    submit(m, &r);
    struct seen s = wait_done(1);
    uint64_t t[5];
    ck_assert_uint_eq(s.n, 5 * ENG_MOCK_STAMP + 4);
    for (int i = 0; i < 5; i++)
        t[i] = strtoull(s.text + i * (ENG_MOCK_STAMP + 1), NULL, 10);
    for (int i = 1; i < 5; i++)
        ck_assert_uint_eq(t[i] - t[i - 1], 10 * NS_PER_MS);
    ck_assert_uint_ge(s.last_ns, t[4]);
    ck_assert_uint_ge(s.last_ns - s.first_ns, 20 * NS_PER_MS); /* the first may have been late, the last never early */
    eng_mock_close(m);
}
END_TEST

START_TEST(together)
{
    struct err e = {0};
    eng_mock *m;
    memset(seen, 0, sizeof seen);
    OK(eng_mock_open(&m, &(struct eng_mock_config){.text = "{ns}", .rate = 20, .together = true}, sink, NULL, &e));
    for (uint64_t id = 1; id <= 20; id++) {
        struct eng_request r = request(id);
        submit(m, &r);
        clock_sleep_ns(3 * NS_PER_MS);
    }
    for (uint64_t id = 1; id <= 20; id++)
        ck_assert_uint_eq(strtoull(wait_done(id).text, NULL, 10) % (NS_PER_S / 20), 0);
    eng_mock_close(m);
}
END_TEST

START_TEST(flow)
{
    eng_mock *m = open_mock("a b c d e f g h", 500, 0);
    struct eng_request r = request(1);
    r.ignore_eos = true;
    submit(m, &r);
    wait_tokens(1, 3);
    eng_mock_pause(m, 1, true);
    clock_sleep_ns(20 * NS_PER_MS);
    unsigned n = look(1).tokens;
    clock_sleep_ns(60 * NS_PER_MS);
    ck_assert_uint_eq(look(1).tokens, n);
    eng_mock_pause(m, 1, false);
    wait_tokens(1, n + 3);
    eng_mock_pause(m, 1, true);
    eng_mock_cancel(m, 1); /* a paused one hears it too */
    ck_assert_int_eq(wait_done(1).finish, ENG_CANCELLED);
    n = look(1).tokens;
    clock_sleep_ns(20 * NS_PER_MS);
    ck_assert_uint_eq(look(1).tokens, n);
    ck_assert(!look(1).late);
    eng_mock_cancel(m, 1);
    eng_mock_pause(m, 99, true); /* nobody */

    r = request(2);
    r.deadline_ns = clock_now_ns() + 30 * NS_PER_MS;
    r.ignore_eos = true;
    submit(m, &r);
    eng_mock_pause(m, 2, true);
    ck_assert_int_eq(wait_done(2).finish, ENG_DEADLINE);

    struct err e = {0};
    r = request(3);
    r.ignore_eos = true;
    submit(m, &r);
    eng_mock_drain(m);
    r.id = 4;
    FAILS(ERR_CLOSED, "shutting down", eng_mock_submit(m, &r, &e));
    wait_tokens(3, 5); /* it goes on */
    eng_mock_close(m); /* and is cancelled here */
    ck_assert_int_eq(look(3).finish, ENG_CANCELLED);
    ck_assert_uint_eq(look(3).done, 1);
}
END_TEST

START_TEST(limits)
{
    struct err e = {0};
    eng_mock *m = open_mock("a b", 1, 3);
    struct eng_request r;
    for (uint64_t id = 1; id <= 3; id++) {
        r = request(id);
        r.ignore_eos = true;
        submit(m, &r);
    }
    r.id = 4;
    FAILS(ERR_AGAIN, "full", eng_mock_submit(m, &r, &e));
    eng_mock_cancel(m, 2);
    wait_done(2);
    for (int i = 0; i < 1000 && eng_mock_submit(m, &r, &e); i++)
        clock_sleep_ns(NS_PER_MS); /* its place is free a moment after its end was told */
    r.id = 1;
    eng_mock_cancel(m, 4);
    wait_done(4);
    for (int i = 0; i < 1000 && eng_mock_submit(m, &r, &e) == ERR_AGAIN; i++)
        clock_sleep_ns(NS_PER_MS);
    FAILS(ERR_INVALID, "in use", eng_mock_submit(m, &r, &e));
    static int32_t many[4000];
    r = (struct eng_request){.id = 9, .ids = many, .n_ids = 4000};
    FAILS(ERR_LIMIT, "4000", eng_mock_submit(m, &r, &e));
    eng_mock_close(m);
}
END_TEST

/* Thousands at once, some cancelled, some paused: each ends once, the heap keeps its order. */
START_TEST(crowd)
{
    eng_mock *m = open_mock("a b c d e f g h i j", 200, 0);
    for (uint64_t id = 0; id < IDS; id++) {
        struct eng_request r = request(id);
        submit(m, &r);
        if (id % 5 == 0)
            eng_mock_cancel(m, id);
        else if (id % 7 == 0)
            eng_mock_pause(m, id, true);
    }
    for (uint64_t id = 0; id < IDS; id += 7)
        eng_mock_pause(m, id, false);
    for (uint64_t id = 0; id < IDS; id++) {
        struct seen s = wait_done(id);
        ck_assert(!s.late);
        ck_assert_int_eq(s.finish, id % 5 ? ENG_STOP : s.finish);
        ck_assert_uint_le(s.tokens, 10);
        if (id % 5)
            ck_assert_str_eq(s.text, "a b c d e f g h i j");
    }
    struct eng_stats st;
    for (int i = 0; i < 1000; i++) {
        eng_mock_stats(m, &st);
        if (!st.running)
            break;
        clock_sleep_ns(NS_PER_MS);
    }
    ck_assert_uint_eq(st.running, 0);
    eng_mock_close(m);
}
END_TEST

/* What a gateway makes of it: the tokenizer loads and gives texts back, the description parses. */
START_TEST(describes)
{
    static const char text[] = "Hello \xe4\xbd\xa0\xe5\xa5\xbd, a b c <|end|> 123";
    struct err e = {0};
    struct buf b, out;
    struct eng_ids ids = {.max = 1000};
    struct eng_detok d;
    struct arena a;
    struct json *v;
    size_t n, tn;
    eng_tok *t;
    eng_mock *m = open_mock("Hello \xe4\xbd\xa0\xe5\xa5\xbd, Hello a bc", 0, 0);
    const char *blob = eng_mock_tokenizer(m, &n);
    OK(eng_tok_load(&t, blob, n, &e));
    OK(eng_tok_encode(t, text, sizeof text - 1, ENG_TOK_ADDED, &ids, &e));
    buf_init(&out, 1000);
    eng_detok_init(&d);
    for (size_t i = 0; i < ids.n; i++)
        eng_detok_push(t, &d, ids.v[i], true, &out);
    ck_assert_str_eq(out.data, text); /* the end token, spelled by a user, is text */

    struct eng_request r = request(1);
    submit(m, &r);
    struct seen s = wait_done(1);
    buf_reset(&out);
    for (unsigned i = 0; i < s.tokens; i++)
        eng_detok_push(t, &d, s.ids[i], true, &out);
    ck_assert_str_eq(out.data, s.text); /* its ids say what its text says */

    buf_init(&b, 1 << 16);
    arena_init(&a, 1 << 20);
    OK(eng_mock_describe(m, &b, &e));
    OK(json_parse(&v, b.data, b.len, &json_strict, &a, &e));
    uint64_t vocab;
    ck_assert(json_u64(json_get(v, "vocab"), &vocab));
    ck_assert_uint_eq(vocab, eng_tok_count(t));
    ck_assert_str_eq(json_str(json_get(v, "id")), "mock");
    ck_assert_ptr_nonnull(eng_mock_template(&tn));
    buf_reset(&b);
    eng_put_names(&b, "a", ",b,,c \"d\","); /* empty names do not count */
    ck_assert_str_eq(b.data, "\"id\":\"a\",\"aliases\":[\"b\",\"c \\\"d\\\"\"]");
    arena_free(&a);
    buf_free(&b);
    buf_free(&out);
    eng_ids_free(&ids);
    eng_tok_close(t);
    eng_mock_close(m);
}
END_TEST

START_TEST(errors)
{
    static char large[ENG_MOCK_TEXT_MAX + 2];
    struct err e = {0};
    eng_mock *m;
    const struct { const char *text, *words; } bad[] = {{NULL, "found 0"}, {"", "found 0"}, {"a\xff", "byte 1 is not UTF-8"}, {large, "found 1048577"}};
    memset(large, 'x', sizeof large - 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(ERR_INVALID, bad[i].words, eng_mock_open(&m, &(struct eng_mock_config){.text = bad[i].text}, sink, NULL, &e));
        ck_assert_ptr_null(m);
    }
    eng_mock_close(NULL);
}
END_TEST

SUITE("engine", "mock", core, stops, rate, together, flow, limits, crowd, describes, errors)
