/* longrope in the engine: each request turns by the list that its own length asks for, whatever runs beside it and whatever is cached. */
#include <pthread.h>

#include "base/json.h"
#include "engine/session.h"
#include "tests/support/suite.h"

#define MODEL "tests/data/models/phi3" /* two lists, the original context is 100 */

enum { REQS = 12, OUT = 64, IDS = 200 };
struct req { int32_t ids[OUT]; uint32_t n; bool done; enum eng_finish finish; struct eng_usage usage; };
struct box { pthread_mutex_t lock; pthread_cond_t cond; eng_engine *g; struct req r[REQS]; };

static struct golden { int32_t ids[IDS], greedy[OUT]; uint32_t n, n_greedy; } golden[3]; /* 5 + 32, 37 + 32 and 130 + 32 tokens */

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct box *b = ctx;
    pthread_mutex_lock(&b->lock);
    struct req *r = &b->r[ev->id];
    if (ev->type == ENG_EV_TOKEN && r->n < OUT)
        r->ids[r->n++] = ev->token;
    if (ev->type == ENG_EV_DONE) {
        r->done = true;
        r->finish = ev->finish;
        r->usage = *ev->usage;
    }
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static void read_ids(const struct json *a, int32_t *out, uint32_t *n)
{
    int64_t v;
    for (size_t i = 0; i < a->n; i++) {
        ck_assert(json_int(a->items[i], &v));
        out[(*n)++] = (int32_t)v;
    }
}

static void read_golden(void)
{
    struct err e = {0};
    struct arena a;
    struct json *doc;
    arena_init(&a, 1 << 24);
    memset(golden, 0, sizeof golden);
    OK(json_parse_file(&doc, MODEL "/reference/prompts.json", 1 << 22, &a, &e));
    ck_assert(doc->n == 3);
    for (size_t i = 0; i < 3; i++) {
        read_ids(json_get(doc->items[i], "ids"), golden[i].ids, &golden[i].n);
        read_ids(json_get(doc->items[i], "greedy"), golden[i].greedy, &golden[i].n_greedy);
    }
    arena_free(&a);
}

static void open_box(struct box *b, uint32_t chunk)
{
    struct eng_config c = {.model_path = MODEL, .ctx = 400, .seqs = 4, .threads = 2, .chunk = chunk, .page_tokens = 16, .precision = KRN_PREC_F32, .kv_type = KRN_F32,
                           .ram_max = 256u << 20, .queue_max = REQS};
    struct err e = {0};
    *b = (struct box){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    OK(eng_open(&b->g, &c, on_event, b, &e));
}

static void submit(struct box *b, uint64_t id, const struct golden *p, uint32_t max_tokens)
{
    struct eng_request r = {.id = id, .ids = p->ids, .n_ids = p->n, .max_tokens = max_tokens, .ignore_eos = true, .sampling = {.temperature = 0, .top_p = 1}};
    struct err e = {0};
    OK(eng_submit(b->g, &r, &e));
}

static void wait_for(struct box *b, uint64_t id, uint32_t tokens) /* so many, or its end */
{
    pthread_mutex_lock(&b->lock);
    while (!b->r[id].done && b->r[id].n < tokens)
        pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void is_golden(const struct box *b, uint64_t id, const struct golden *p)
{
    const struct req *r = &b->r[id];
    ck_assert_msg(r->done && r->finish == ENG_LENGTH && r->n == p->n_greedy, "request %d: %u tokens", (int)id, r->n);
    ck_assert_msg(!memcmp(r->ids, p->greedy, r->n * sizeof *r->ids), "request %d is not the reference", (int)id);
}

/* The reference's texts, short and long ones in one batch, in pieces of any size. */
START_TEST(core)
{
    static const uint32_t chunks[] = {4, 7, 64};
    struct box b;
    read_golden();
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
        open_box(&b, chunks[c]);
        for (uint64_t id = 0; id < 6; id++)
            submit(&b, id, &golden[id % 3], 32);
        for (uint64_t id = 0; id < 6; id++) {
            wait_for(&b, id, UINT32_MAX);
            is_golden(&b, id, &golden[id % 3]);
        }
        eng_close(b.g);
    }
}
END_TEST

/* 37 tokens with room for 63 more are short, with room for 64 they are long, and so from the first token on; no limit: the context. */
START_TEST(limits)
{
    static const uint32_t max_tokens[] = {32, 63, 64, 300, 0};
    struct box b;
    uint32_t same = 0;
    read_golden();
    open_box(&b, 64);
    for (uint64_t id = 0; id < 5; id++) {
        submit(&b, id, &golden[1], max_tokens[id]);
        wait_for(&b, id, 32);
        eng_cancel(b.g, id);
        wait_for(&b, id, UINT32_MAX);
        ck_assert_uint_ge(b.r[id].n, 32);
        bool is_short = !memcmp(b.r[id].ids, golden[1].greedy, 32 * sizeof *golden[1].greedy);
        ck_assert_msg(is_short == (id < 2), "max_tokens %u: expected the %s list", max_tokens[id], id < 2 ? "short" : "long");
        same += id > 2 && !memcmp(b.r[id].ids, b.r[2].ids, 32 * sizeof *b.r[2].ids);
    }
    ck_assert_uint_eq(same, 2);
    eng_close(b.g);
}
END_TEST

/* Pages of one list never serve the other. */
START_TEST(cached)
{
    static const struct { uint32_t max_tokens, cached; } l[] = {{8, 0}, {100, 0}, {8, 32}, {100, 32}};
    struct box b;
    read_golden();
    open_box(&b, 64);
    for (uint64_t id = 0; id < 4; id++) {
        submit(&b, id, &golden[1], l[id].max_tokens);
        wait_for(&b, id, 8);
        eng_cancel(b.g, id);
        wait_for(&b, id, UINT32_MAX);
        ck_assert_msg(b.r[id].usage.cached_tokens == l[id].cached, "request %d: %u tokens cached, expected %u", (int)id, b.r[id].usage.cached_tokens, l[id].cached);
    }
    ck_assert(!memcmp(b.r[0].ids, b.r[2].ids, 8 * sizeof *b.r[0].ids) && !memcmp(b.r[1].ids, b.r[3].ids, 8 * sizeof *b.r[1].ids));
    ck_assert(!memcmp(b.r[0].ids, golden[1].greedy, 8 * sizeof *b.r[0].ids));
    eng_close(b.g);
}
END_TEST

/* The same rows at the same positions, once by each list and again: tables that a step left behind do not serve another list. */
START_TEST(lists)
{
    struct eng_config c = {.model_path = MODEL, .ctx = 400, .seqs = 1, .threads = 1, .chunk = 64, .precision = KRN_PREC_F32, .kv_type = KRN_F32};
    static float row[4][512];
    eng_session *s;
    struct err e = {0};
    read_golden();
    OK(eng_session_open(&s, &c, 1, &e));
    ck_assert_uint_eq(eng_session_model(s)->plan->ctx_switch, 100);
    ck_assert_uint_eq(eng_session_model(s)->plan->vocab, 512);
    for (int i = 0; i < 4; i++) {
        struct eng_part part = {.n = golden[1].n, .tokens = golden[1].ids, .picks = ENG_PICK_LAST, .far = i % 2};
        OK(eng_session_step(s, &part, 1, NULL, NULL, &e));
        memcpy(row[i], eng_session_logits(s, 0), sizeof row[i]);
    }
    ck_assert(!memcmp(row[0], row[2], sizeof row[0]) && !memcmp(row[1], row[3], sizeof row[1]) && memcmp(row[0], row[1], sizeof row[0]));
    eng_session_close(s);
}
END_TEST

SUITE("engine", "longrope", core, limits, cached, lists)
