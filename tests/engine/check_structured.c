/* engine/engine with grammars: whatever seed, temperature, company and interruption, output is a text of its grammar, or a beginning of one that
 * max_tokens cut. */
#include <pthread.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/guide.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

enum { MAX = 64, OUT = 400 };
struct req { int32_t ids[OUT]; uint32_t n; char text[4096]; size_t text_n; bool done; enum eng_finish finish; struct err err; };
static struct { pthread_mutex_t lock; pthread_cond_t cond; struct req r[MAX]; eng_engine *g; } box = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
static char model[256], chain[256];

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct req *r = &box.r[ev->id % MAX];
    (void)ctx;
    pthread_mutex_lock(&box.lock);
    if (ev->type == ENG_EV_TOKEN && r->n < OUT)
        r->ids[r->n++] = ev->token;
    if (ev->n && r->text_n + ev->n < sizeof r->text) {
        memcpy(r->text + r->text_n, ev->text, ev->n);
        r->text_n += ev->n;
    }
    if (ev->type == ENG_EV_DONE) {
        r->done = true;
        r->finish = ev->finish;
        if (ev->err)
            r->err = *ev->err;
    }
    pthread_cond_broadcast(&box.cond);
    pthread_mutex_unlock(&box.lock);
}

static void open_box(const char *path, uint64_t ram, uint32_t ctx)
{
    struct err e = {0};
    struct eng_config c = {.model_path = path, .ctx = ctx, .seqs = 4, .threads = 2, .chunk = 32, .page_tokens = 16, .kv_type = KRN_F16, .ram_max = ram, .queue_max = 60};
    memset(box.r, 0, sizeof box.r);
    OK(eng_open(&box.g, &c, on_event, NULL, &e));
}

static struct eng_request request(uint64_t id, const char *grammar, float temperature)
{
    static int32_t prompt[MAX][8];
    for (int i = 0; i < 8; i++)
        prompt[id % MAX][i] = (int32_t)(3 + (id * 31 + (uint64_t)i * 17) % 200);
    return (struct eng_request){.id = id, .ids = prompt[id % MAX], .n_ids = 8, .max_tokens = 300, .grammar = grammar, .grammar_n = (uint32_t)strlen(grammar),
                                .sampling = {.temperature = temperature, .top_p = 1, .seed = id}};
}

static void submit(const struct eng_request *r)
{
    struct err e = {0};
    OK(eng_submit(box.g, r, &e));
}

static const struct req *wait_done(uint64_t id)
{
    pthread_mutex_lock(&box.lock);
    while (!box.r[id].done)
        pthread_cond_wait(&box.cond, &box.lock);
    pthread_mutex_unlock(&box.lock);
    return &box.r[id];
}

/* 1 whole, 0 a beginning, -1 neither. */
static int reads(const char *gbnf, const char *text, size_t n)
{
    struct err e = {0};
    struct eng_grammar_state s;
    eng_grammar *g;
    OK(eng_grammar_compile(&g, gbnf, strlen(gbnf), NULL, &e));
    eng_grammar_begin(g, NULL, 1 << 20);
    OK(eng_grammar_start(g, &s, &e));
    int rc = eng_grammar_bytes_accept(g, &s, text, n, &e);
    int is = rc ? -1 : eng_grammar_may_end(g, s);
    eng_grammar_close(g);
    return is;
}

static const char *const bounded[] = {
    "root ::= \"{\\\"a\\\": \" [0-9]{1,3} \", \\\"b\\\": \" (\"true\" | \"false\") \"}\"",
    "root ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F] | \"\\\\\" [\"\\\\nt]){0,30} \"\\\"\"",
    "root ::= obj{1,4}\nobj ::= \"[\" (num (\",\" num){0,3})? \"]\"\nnum ::= \"-\"? [1-9] [0-9]{0,4}",
    "root ::= [\\u0400-\\u04FF\\u4E00-\\u9FFF\\U0001F600-\\U0001F64F]{1,8} \"!\"",
};
enum { N_BOUNDED = sizeof bounded / sizeof *bounded };

/* Forty at once through four slots: temperatures up to chaos, some without end-of-sequence. */
START_TEST(valid)
{
    static const float temperatures[] = {0, 0.7f, 1, 5, 100};
    static struct req alone[MAX];
    open_box(model, 256u << 20, 400);
    for (uint64_t id = 1; id <= 40; id++) {
        struct eng_request r = request(id, bounded[id % N_BOUNDED], temperatures[id % 5]);
        r.ignore_eos = id % 3 == 0;
        r.min_tokens = id % 4 ? 0 : 50;
        submit(&r);
    }
    for (uint64_t id = 1; id <= 40; id++) {
        const struct req *r = wait_done(id);
        ck_assert_msg(r->finish == ENG_STOP && reads(bounded[id % N_BOUNDED], r->text, r->text_n) == 1, "request %d: finish %d, text %.*s", (int)id, r->finish, (int)r->text_n, r->text);
        alone[id] = *r;
    }
    eng_close(box.g);
    open_box(model, 256u << 20, 400);
    for (uint64_t id = 1; id <= 40; id += 7) { /* company changes nothing */
        struct eng_request r = request(id, bounded[id % N_BOUNDED], temperatures[id % 5]);
        r.ignore_eos = id % 3 == 0;
        r.min_tokens = id % 4 ? 0 : 50;
        submit(&r);
        wait_done(id);
        ck_assert(box.r[id].n == alone[id].n && !memcmp(box.r[id].ids, alone[id].ids, alone[id].n * sizeof *alone[id].ids));
    }
    eng_close(box.g);
}
END_TEST

/* Resumed anywhere, and preempted for want of pages, a sequence says the same. */
START_TEST(interrupted)
{
    struct req whole;
    int32_t ids[8 + OUT];
    open_box(model, 256u << 20, 400);
    struct eng_request r = request(1, bounded[2], 1.5f);
    submit(&r);
    whole = *wait_done(1);
    ck_assert_uint_gt(whole.n, 6);
    for (uint32_t k = 1; k < whole.n; k += 1 + whole.n / 9) {
        struct eng_request again = r;
        memcpy(ids, r.ids, 8 * sizeof *ids);
        memcpy(ids + 8, whole.ids, k * sizeof *ids);
        again.id = 2 + k % 60;
        again.ids = ids;
        again.n_ids = 8 + k;
        again.n_done = k;
        again.text_skip = k / 2;
        submit(&again);
        const struct req *b = wait_done(again.id);
        ck_assert(b->n == whole.n - k && !memcmp(b->ids, whole.ids + k, b->n * sizeof *b->ids));
        ck_assert(b->text_n == whole.text_n - k / 2 && !memcmp(b->text, whole.text + k / 2, b->text_n));
    }
    /* what an earlier life said does not follow this grammar */
    struct eng_request wrong = request(40, bounded[0], 0);
    ids[8] = tiny_llama_byte('x');
    wrong.ids = ids;
    wrong.n_ids = 9;
    wrong.n_done = 1;
    submit(&wrong);
    wait_done(40);
    ck_assert_msg(box.r[40].finish == ENG_FAILED && strstr(box.r[40].err.msg, "token 0 of the output"), "%s", box.r[40].err.msg);
    struct eng_stats st;
    eng_stats(box.g, &st);
    eng_close(box.g);

    static const char long_text[] = "root ::= [a-z]{90}";
    static struct req ref[5];
    open_box(model, 256u << 20, 400);
    for (uint64_t id = 1; id <= 4; id++) {
        r = request(id, long_text, 1);
        submit(&r);
        ref[id] = *wait_done(id);
        ck_assert_uint_eq(ref[id].text_n, 90);
    }
    eng_close(box.g);
    open_box(model, st.weight_bytes + st.activation_bytes + st.kv_bytes / 4 + st.kv_bytes / 8, 400);
    for (uint64_t id = 1; id <= 4; id++) {
        r = request(id, long_text, 1);
        submit(&r);
    }
    for (uint64_t id = 1; id <= 4; id++) {
        wait_done(id);
        ck_assert(box.r[id].finish == ENG_STOP && box.r[id].n == ref[id].n && !memcmp(box.r[id].ids, ref[id].ids, ref[id].n * sizeof *ref[id].ids));
    }
    eng_close(box.g);
}
END_TEST

START_TEST(ends)
{
    open_box(chain, 256u << 20, 400);
    struct eng_request r = request(1, "root ::= [a-z0-9]*", 0); /* after 'a' the model wants b, c .. 9, then the end */
    r.ids = (int32_t[]){tiny_llama_byte('a')};
    r.n_ids = 1;
    submit(&r);
    const struct req *q = wait_done(1);
    ck_assert_msg(q->finish == ENG_STOP && q->text_n == sizeof TINY_CHAIN - 2 && !memcmp(q->text, &TINY_CHAIN[1], q->text_n), "%.*s", (int)q->text_n, q->text);
    ck_assert_int_eq(q->ids[q->n - 1], TINY_IM_END);
    r.id = 2;
    r.min_tokens = 60; /* the end may not come yet, so letters go on */
    submit(&r);
    q = wait_done(2);
    ck_assert(q->finish == ENG_STOP && q->n >= 60 && reads(r.grammar, q->text, q->text_n) == 1);
    r.id = 3;
    r.min_tokens = 0;
    r.max_tokens = 5;
    submit(&r);
    q = wait_done(3);
    ck_assert(q->finish == ENG_LENGTH && q->n == 5 && q->text_n == 5);
    r = request(4, "root ::= \"ab\"{3}", 0); /* whole with its last token: not cut */
    r.max_tokens = 6;
    submit(&r);
    q = wait_done(4);
    ck_assert(q->finish == ENG_STOP && q->text_n == 6 && !memcmp(q->text, "ababab", 6));
    r.id = 5;
    r.max_tokens = 2;
    submit(&r);
    q = wait_done(5);
    ck_assert(q->finish == ENG_LENGTH && reads(r.grammar, q->text, q->text_n) == 0);
    r = request(6, "root ::= \"\"", 0);
    r.min_tokens = 3;
    submit(&r);
    q = wait_done(6);
    ck_assert(q->finish == ENG_STOP && !q->n && !q->text_n);
    r = request(7, "root ::= [a-c]{4}", 0);
    struct eng_bias bias[] = {{tiny_llama_byte('z'), 2000}, {tiny_llama_byte('b'), 1000}};
    r.bias = bias;
    r.n_bias = 2;
    submit(&r);
    q = wait_done(7);
    ck_assert(q->finish == ENG_STOP && q->text_n == 4 && !memcmp(q->text, "bbbb", 4)); /* as far as the grammar goes */
    r = request(8, "root ::= [a-z]{20}", 0);
    r.stops = (const char *const[]){"fg"};
    r.stop_lens = (uint32_t[]){2};
    r.n_stops = 1;
    r.ids = (int32_t[]){tiny_llama_byte('a')};
    r.n_ids = 1;
    submit(&r);
    q = wait_done(8);
    ck_assert(q->finish == ENG_STOP && q->text_n == 4 && !memcmp(q->text, "bcde", 4));
    r = request(9, "root ::= \"x\" <|im_start|> [0-9] <|im_end|>", 0); /* control tokens that the grammar names */
    submit(&r);
    q = wait_done(9);
    ck_assert(q->finish == ENG_STOP && q->n == 4 && q->ids[1] == TINY_IM_START && q->ids[3] == TINY_IM_END && q->text_n == 2);
    eng_close(box.g);
}
END_TEST

/* Free until "cd"; then three digits; free again: the chain goes on from the last of them. */
START_TEST(triggered)
{
    open_box(chain, 256u << 20, 400);
    struct eng_request r = request(1, "root ::= [0-2]{3} \"b\"", 0);
    r.ids = (int32_t[]){tiny_llama_byte('a')};
    r.n_ids = 1;
    r.grammar_trigger = "cd";
    r.grammar_trigger_n = 2;
    r.max_tokens = 40;
    submit(&r);
    const struct req *q = wait_done(1);
    ck_assert_msg(q->finish == ENG_LENGTH && !memcmp(q->text, "bcd", 3) && q->text[6] == 'b' && !memcmp(q->text + 7, "cd", 2), "%.*s", (int)q->text_n, q->text);
    for (size_t i = 0; i + 8 <= q->text_n; i++)
        if (!memcmp(q->text + i, "cd", 2)) /* it fires again, as the chain comes back to it */
            ck_assert_msg(reads("root ::= \"cd\" [0-2]{3} \"b\"", q->text + i, 6) == 1, "%.*s", (int)q->text_n, q->text);
    r.id = 2;
    r.grammar_trigger = "never said";
    r.grammar_trigger_n = 10;
    r.max_tokens = 60;
    submit(&r);
    q = wait_done(2);
    ck_assert(q->finish == ENG_STOP && q->text_n == sizeof TINY_CHAIN - 2 && !memcmp(q->text, &TINY_CHAIN[1], q->text_n));
    r.id = 3;
    r.grammar_trigger = "c";
    r.grammar_trigger_n = 1;
    r.grammar = "root ::= \"<\" <[1]> \">\" [xy]{2}";
    r.grammar_n = (uint32_t)strlen(r.grammar);
    r.max_tokens = 6;
    submit(&r);
    q = wait_done(3);
    ck_assert_msg(q->text_n == 5 && !memcmp(q->text, "bc<>", 4) && q->ids[3] == TINY_IM_START, "%.*s", (int)q->text_n, q->text);
    eng_close(box.g);
}
END_TEST

START_TEST(errors)
{
    struct err e = {0};
    open_box(model, 256u << 20, 400);
    struct eng_request r = request(1, "root ::= \"a\" root", 0);
    FAILS(ERR_INVALID, "'root' can never end", eng_submit(box.g, &r, &e));
    r = request(1, "root ::= (", 0);
    FAILS(ERR_INVALID, "line 1", eng_submit(box.g, &r, &e));
    r = request(1, "root ::= \"a\"", 0);
    r.grammar = NULL;
    r.grammar_trigger = "x";
    r.grammar_trigger_n = 1;
    FAILS(ERR_INVALID, "expected a grammar", eng_submit(box.g, &r, &e));
    r = request(1, "root ::= s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"a\" s \"d\" | \"z\"", 0);
    r.bias = (struct eng_bias[]){{tiny_llama_byte('a'), 1000}};
    r.n_bias = 1;
    submit(&r);
    const struct req *q = wait_done(1);
    ck_assert_msg(q->finish == ENG_FAILED && strstr(q->err.msg, "ambiguous"), "%s", q->err.msg);
    r = request(2, bounded[0], 1); /* and the engine goes on */
    submit(&r);
    ck_assert_int_eq(wait_done(2)->finish, ENG_STOP);
    char many[100];
    for (uint64_t id = 3; id < 33; id++) { /* more grammars than are kept */
        snprintf(many, sizeof many, "root ::= \"%d\"", (int)id);
        r = request(id, many, 1);
        submit(&r);
        q = wait_done(id);
        ck_assert(q->finish == ENG_STOP && q->text_n && strtoul(q->text, NULL, 10) == id);
    }
    eng_close(box.g);
}
END_TEST

int main(void)
{
    snprintf(model, sizeof model, "/tmp/sluice-structured-%d.gguf", (int)getpid());
    snprintf(chain, sizeof chain, "/tmp/sluice-structured-chain-%d.gguf", (int)getpid());
    tiny_llama_write(model, &(struct tiny_llama){.seed = 7});
    tiny_llama_write(chain, &(struct tiny_llama){.seed = 7, .chain = true});
    const TTest *const tests[] = {valid, interrupted, ends, triggered, errors};
    const char *const names[] = {"valid", "interrupted", "ends", "triggered", "errors"};
    int rc = suite_main("engine/structured", tests, names, 5);
    unlink(model);
    unlink(chain);
    return rc;
}
