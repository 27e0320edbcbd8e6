/* tests/engine/check_device.c - a whole model on a Vulkan device: a fixture (two windows, norms of heads) against its reference, the counters of a step, too little
 * memory, the bits of both widths of a software driver. SKIP where there is no device. */
#include <sys/wait.h>
#include <unistd.h>

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

/* Logits of a prompt and of the token behind it, by a process of its own: a driver reads its settings once. */
enum { LOGITS = 512 };
struct logits { uint32_t subgroup; float x[2][LOGITS]; };
static int compute(struct logits *out)
{
    static const int32_t tokens[] = {5, 6, 7, 8, 9, 10, 11};
    struct eng_config c = config_of("tests/data/models/llama");
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e;
    unsigned n;
    eng_session *s;
    if (gpu_list(g, GPU_DEVICES_MAX, &n, &e) || g[0].missing[0])
        return 77;
    *out = (struct logits){.subgroup = g[0].subgroup};
    if (eng_session_open(&s, &c, 1, &e))
        return 1;
    n = eng_tok_count(eng_session_model(s)->tok);
    for (unsigned i = 0; i < 2; i++) {
        struct eng_part p = {.pos0 = i ? 6 : 0, .n = i ? 1 : 6, .tokens = tokens + (i ? 6 : 0), .picks = ENG_PICK_LAST};
        if (eng_session_step(s, &p, 1, NULL, NULL, &e))
            return 2;
        memcpy(out->x[i], eng_session_logits(s, 0), (n < LOGITS ? n : LOGITS) * sizeof *out->x[i]);
    }
    eng_session_close(s);
    return 0;
}

static int with_width(const char *width, struct logits *out)
{
    int fds[2], status;
    size_t n = 0;
    ssize_t got;
    ck_assert(pipe(fds) == 0);
    pid_t pid = fork();
    if (!pid) {
        static struct logits mine;
        setenv("LP_NATIVE_VECTOR_WIDTH", width, 1);
        setenv("MESA_SHADER_CACHE_DISABLE", "true", 1);
        int rc = compute(&mine);
        _exit(rc ? rc : write(fds[1], &mine, sizeof mine) != sizeof mine);
    }
    close(fds[1]);
    while (n < sizeof *out && (got = read(fds[0], (char *)out + n, sizeof *out - n)) > 0)
        n += (size_t)got;
    close(fds[0]);
    ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

START_TEST(widths)
{
    static struct logits a, b;
    int rc = with_width("128", &a);
    if (rc == 77) {
        have_device(); /* says why not */
        return;
    }
    ck_assert_int_eq(rc, 0);
    ck_assert_int_eq(with_width("256", &b), 0);
    if (a.subgroup == b.subgroup)
        printf("SKIP widths: subgroups of %u both times, this driver has no setting\n", a.subgroup);
    ck_assert(a.x[0][3] != 0 && !memcmp(a.x, b.x, sizeof a.x));
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

SUITE("engine", "device", fixture, counters, widths, budget)
