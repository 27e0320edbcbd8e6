/* offload/replay: made-up routings with known answers, the bound above every rule, and files that are no traces. */
#include <unistd.h>

#include "offload/replay.h"
#include "tests/support/suite.h"

enum { TOKENS = 160, LAYERS = 6, PER = 32, K = 4 };
static struct err e;
static char path[64];

static void begin(void) { snprintf(path, sizeof path, "/tmp/check_replay.%d.jsonl", (int)getpid()); }
static void end(void) { unlink(path); }

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert(f && fputs(text, f) >= 0 && !fclose(f));
}

static uint32_t draw(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

/* A few experts of each layer have most of the work, and who was chosen is likely to be again. */
static void write_trace(void)
{
    bool on[LAYERS][PER] = {{false}};
    uint64_t s = 5;
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    for (int t = 0; t < TOKENS; t++) {
        fprintf(f, "{\"tok\": %d, \"layers\": [", t);
        for (int l = 0; l < LAYERS; l++) {
            int n = 0;
            for (int x = 0; x < PER; x++)
                on[l][x] = on[l][x] && draw(&s) % 3 && n < K, n += on[l][x];
            while (n < K) {
                uint32_t x = draw(&s) % PER * (draw(&s) % 100) / 100;
                n += !on[l][x];
                on[l][x] = true;
            }
            fputs(l ? ", [" : "[", f);
            for (int x = 0, k = 0; x < PER; x++)
                if (on[l][x])
                    fprintf(f, "%s%d", k++ ? ", " : "", x);
            fputs("]", f);
        }
        fputs("]}\n", f);
    }
    ck_assert_int_eq(fclose(f), 0);
}

static uint64_t hits_of(const struct off_trace *t, unsigned kind, uint32_t slots)
{
    uint64_t h;
    OK(off_replay(t, kind, slots, &h, &e));
    return h;
}

START_TEST(core)
{
    struct off_trace t;
    write_text("{\"tok\":0,\"layers\":[[0,1],[2,3]]}\n\n{\"tok\":1,\"layers\":[[0,1],[2,3]]}\n{\"tok\":2,\"layers\":[[0,4],[2,3]]}");
    OK(off_trace_read(&t, path, &e));
    ck_assert(t.tokens == 3 && t.layers == 2 && t.k == 2 && t.experts == 5);
    ck_assert_uint_eq(hits_of(&t, POL_EXPERTS_LRU, 2), 0); /* each gate wants them all */
    ck_assert_uint_eq(hits_of(&t, POL_EXPERTS_LRU, 5), 7);
    for (unsigned k = 0; k < OFF_REPLAY_KINDS; k++)
        ck_assert_uint_eq(hits_of(&t, k, 10), 7);
    ck_assert_uint_eq(hits_of(&t, OFF_REPLAY_BELADY, 3), 4);
    ck_assert_uint_eq(hits_of(&t, POL_EXPERTS_LRU, 3), 3);
    off_trace_free(&t);
}
END_TEST

START_TEST(bound)
{
    struct off_trace t;
    uint64_t before = 0, lru = 0, rate = 0;
    write_trace();
    OK(off_trace_read(&t, path, &e));
    ck_assert(t.tokens == TOKENS && t.layers == LAYERS && t.k == K && t.experts <= PER);
    for (uint32_t slots = K; slots <= LAYERS * PER; slots += 12) {
        uint64_t best = hits_of(&t, OFF_REPLAY_BELADY, slots);
        ck_assert_uint_ge(best, before);
        before = best;
        for (unsigned k = 0; k < POL_EXPERTS_KINDS; k++)
            ck_assert_msg(hits_of(&t, k, slots) <= best, "%s with %u", pol_experts_names[k], slots);
        lru += hits_of(&t, POL_EXPERTS_LRU, slots);
        rate += hits_of(&t, POL_EXPERTS_RATE, slots);
        if (slots > K && slots < LAYERS * K) {
            ck_assert_uint_gt(hits_of(&t, POL_EXPERTS_RATE, slots), 0); /* LRU finds next to nothing here */
            ck_assert_uint_gt(hits_of(&t, POL_EXPERTS_RATE, slots), hits_of(&t, POL_EXPERTS_LRU, slots));
        }
    }
    ck_assert_uint_gt(rate, lru);
    off_trace_free(&t);
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *text, *words; int code; } bad[] = {
        {"", "no token", ERR_FORMAT}, {"{\"tok\":1}", "expected \"layers\"", ERR_FORMAT}, {"{\"layers\":[]}", "expected \"layers\"", ERR_FORMAT},
        {"{\"layers\":[3]}", "experts a layer", ERR_FORMAT}, {"{\"layers\":[[]]}", "1 to 64 experts", ERR_FORMAT}, {"{\"layers\":[[1],[1,2]]}", "expected 1 experts a layer", ERR_FORMAT},
        {"{\"layers\":[[1.5]]}", "numbers of experts", ERR_FORMAT}, {"{\"layers\":[[-1]]}", "numbers of experts", ERR_FORMAT}, {"{\"layers\":[[4096]]}", "below 4096", ERR_FORMAT},
        {"{\"layers\":[[1]]}\n{\"layers\":[[1],[2]]}", "line 2: expected 1 layers, found 2", ERR_FORMAT}, {"{\"layers\":", "line 1", ERR_FORMAT}};
    struct off_trace t;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text(bad[i].text);
        FAILS(bad[i].code, bad[i].words, off_trace_read(&t, path, &e));
        ck_assert_ptr_null(t.chosen);
    }
    unlink(path);
    FAILS(ERR_IO, "cannot be read", off_trace_read(&t, path, &e));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("replay");
    TCase *t = tcase_create("replay");
    tcase_add_checked_fixture(t, begin, end);
    tcase_add_test(t, core);
    tcase_add_test(t, bound);
    tcase_add_test(t, errors);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
