/* Depths of `bench --ladder`: doubled to the end of the context, of memory, or of the time given. */
#include <unistd.h>

#include "cli/bench_ladder.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

START_TEST(rungs)
{
    uint32_t d[BENCH_RUNGS_MAX];
    ck_assert_uint_eq(bench_rungs(1024, 1, d), 0);
    ck_assert_uint_eq(bench_rungs(1034, 10, d), 1);
    ck_assert_uint_eq(bench_rungs(4096, 100, d), 3);
    ck_assert(d[0] == 1024 && d[1] == 2048 && d[2] == 3996);
    ck_assert_uint_eq(bench_rungs(4196, 100, d), 3);
    ck_assert_uint_eq(d[2], 4096);
    ck_assert_uint_eq(bench_rungs(1u << 20, 100, d), 11);
    ck_assert(d[9] == 1u << 19 && d[10] == (1u << 20) - 100);
    ck_assert_uint_eq(bench_rungs(UINT32_MAX, 100, d), BENCH_RUNGS_MAX);
}
END_TEST

START_TEST(time_given)
{
    ck_assert(!bench_ladder_late(1024, 2048, 10, 1e9, 0));
    ck_assert(!bench_ladder_late(1024, 2048, 10, 10, 30));
    ck_assert(bench_ladder_late(1024, 2048, 10, 11, 30));
    ck_assert(bench_ladder_late(1024, 4096, 10, 10, 30));
}
END_TEST

/* What fits is what the engine says fits: no depth more, none less. */
START_TEST(memory)
{
    char path[64];
    struct err e = {0};
    struct bench_ladder l;
    struct eng_prediction p;
    snprintf(path, sizeof path, "/tmp/check_ladder.%d.gguf", (int)getpid());
    tiny_llama_write(path, &(struct tiny_llama){.ctx = 1 << 20});
    struct eng_config c = {.model_path = path, .seqs = 2, .threads = 1, .kv_type = KRN_F16, .ram_max = 1ull << 40};
    OK(bench_ladder(&l, &c, 50, &e));
    ck_assert(l.end == BENCH_END_CONTEXT && l.n == 11 && l.depth[10] == (1u << 20) - 50);
    ck_assert_str_eq(l.why, "the model was made for 1048576 tokens");
    struct eng_config at = c;
    at.ctx = 8192 + 50;
    at.prefix_off = true;
    OK(eng_predict(&at, &p, &e));
    uint64_t need = p.weight_slot_bytes + p.activation_bytes + p.state_bytes + 2 * p.kv_seq_bytes;
    c.ram_max = need;
    OK(bench_ladder(&l, &c, 50, &e));
    ck_assert_msg(l.end == BENCH_END_MEMORY && l.n == 4 && l.depth[3] == 8192, "%u depths, ended by %s: %s", l.n, bench_end_name(l.end), l.why);
    ck_assert_msg(strstr(l.why, "16434 tokens"), "%s", l.why);
    c.ram_max = need - 100000; /* a page is less */
    OK(bench_ladder(&l, &c, 50, &e));
    ck_assert_msg(l.end == BENCH_END_MEMORY && l.n == 3, "%u depths: %s", l.n, l.why);
    c.ctx = 3000;
    OK(bench_ladder(&l, &c, 50, &e));
    ck_assert(l.end == BENCH_END_CONTEXT && l.n == 3 && l.depth[2] == 2950);
    ck_assert_str_eq(l.why, "-c is 3000 tokens");
    c.ctx = 1000;
    FAILS(ERR_LIMIT, "longer than the context of 1000", bench_ladder(&l, &c, 50, &e));
    c.ctx = 0;
    c.ram_max = 1 << 20;
    FAILS(ERR_BUDGET, "bytes are missing", bench_ladder(&l, &c, 50, &e));
    unlink(path);
}
END_TEST

SUITE("cli", "ladder", rungs, time_given, memory)
