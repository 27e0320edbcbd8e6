/* tests/engine/check_device.c - a whole model on a Vulkan device: a fixture (two windows, norms of heads) against its reference, the counters of a step, too little
 * memory. SKIP where there is no device. */
#include "engine/session.h"
#include "engine/verify.h"
#include "kernels/gpu.h"
#include "tests/support/suite.h"

/* Drivers and layers lose a few bytes of their own, in modules that are gone when leaks are counted: nothing to name in a suppression. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

static bool have_device(void)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e;
    unsigned n;
    if (!gpu_list(g, GPU_DEVICES_MAX, &n, &e) && !g[0].missing[0])
        return true;
    printf("SKIP %s\n", n ? g[0].missing : e.msg);
    return false;
}

static struct eng_config config_of(const char *model)
{
    return (struct eng_config){.model_path = model, .ctx = 512, .seqs = 2, .threads = 1, .chunk = 64, .kv_type = KRN_TYPE_COUNT, .precision = KRN_PREC_F32, .ram_max = 1u << 30,
                               .device = {.vulkan = true}};
}

START_TEST(fixture)
{
    struct err e;
    if (!have_device())
        return;
    struct eng_verify v = {.c = config_of("tests/data/models/gemma3"), .what = ENG_VERIFY_LAYERS, .out = fopen("/dev/null", "w")};
    OK(eng_verify_run(&v, &e));
    ck_assert_uint_eq(v.failed, 0);
    ck_assert_uint_gt(v.passed, 20);
    fclose(v.out);
}
END_TEST

/* A step is one submission; once both classes of steps have run nothing is allocated, compiled or uploaded any more. */
START_TEST(counters)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 9};
    struct eng_config c = config_of("tests/data/models/llama");
    struct krn_counters a, b;
    eng_session *s;
    struct err e;
    if (!have_device())
        return;
    OK(eng_session_open(&s, &c, 2, &e));
    struct eng_part prompt = {.n = 5, .tokens = tokens, .picks = ENG_PICK_LAST}, next = {.pos0 = 5, .n = 1, .tokens = tokens, .picks = ENG_PICK_LAST};
    OK(eng_session_step(s, &prompt, 1, NULL, NULL, &e));
    OK(eng_session_step(s, &next, 1, NULL, NULL, &e));
    ck_assert(eng_session_counters(s, &a));
    for (next.pos0 = 6; next.pos0 < 10; next.pos0++)
        OK(eng_session_step(s, &next, 1, NULL, NULL, &e));
    ck_assert(eng_session_counters(s, &b));
    ck_assert_uint_eq(b.submits - a.submits, 4);
    ck_assert_uint_eq(b.uploads, a.uploads);
    ck_assert_uint_eq(b.allocations, a.allocations);
    ck_assert_uint_eq(b.pipelines, a.pipelines);
    /* embed, pick, norm, head, the scan of rows; 4 layers of norm, q, k, v, two ropes, store, attend, o, add, norm, gate, up, glu, down, add */
    ck_assert_uint_eq((b.dispatches - a.dispatches) / 4, 5 + 4 * 16);
    eng_session_close(s);
}
END_TEST

START_TEST(budget)
{
    struct eng_config c = config_of("tests/data/models/llama");
    eng_session *s;
    struct err e;
    if (!have_device())
        return;
    c.device.bytes_max = 1 << 20;
    FAILS(ERR_BUDGET, "bytes are missing", eng_session_open(&s, &c, 1, &e));
    c.device.bytes_max = 0;
    c.device.index = 50;
    FAILS(ERR_NOTFOUND, "numbered from 0", eng_session_open(&s, &c, 1, &e));
    c = config_of("tests/data/models/deepseek_v3");
    FAILS(ERR_UNSUPPORTED, "vulkan: no kernel for operator", eng_session_open(&s, &c, 1, &e));
}
END_TEST

SUITE("engine", "device", fixture, counters, budget)
