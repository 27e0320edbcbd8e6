/* A model that does not fit: logits bit for bit as if it did, at every budget, with the vocabulary cut or whole, through the executor
 * and through the engine; steps go on after reads that failed. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/exec.h"
#include "engine/kv.h"
#include "offload/io.h"
#include "offload/pack_make.h"
#include "tests/support/bad_io.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

enum { PROMPT = 21, VOCAB = TINY_VOCAB, N = 4 };
static struct err e;
static char tied[64], untied[64];

static void models(void)
{
    snprintf(tied, sizeof tied, "/tmp/check_streamed.%d.t.gguf", (int)getpid());
    snprintf(untied, sizeof untied, "/tmp/check_streamed.%d.u.gguf", (int)getpid());
    tiny_llama_write(tied, &(struct tiny_llama){.f32 = true, .layers = 16, .ff = 2048});
    tiny_llama_write(untied, &(struct tiny_llama){.untied = true, .f32 = true, .layers = 20, .ff = 1600});
}
static void gone(void)
{
    unlink(tied);
    unlink(untied);
}

/* One whole model by hand. */
struct rig { off_catalog *c; struct eng_plan *p; off_weights *w; eng_kv *kv; eng_exec *x; };

static int rig_open(struct rig *r, const char *path, uint64_t tile_bytes, uint64_t ram)
{
    struct eng_plan_options o = {.tile_bytes = tile_bytes};
    struct eng_kv_config kv = {.type = KRN_F32, .page_tokens = 16, .slots = 1, .ctx = 64, .chunk = PROMPT, .bytes_max = 64u << 20};
    struct eng_exec_config x = {.threads = 2, .rows_max = PROMPT, .picks_max = 1};
    *r = (struct rig){0};
    OK(off_catalog_open(&r->c, path, 0, &e));
    OK(eng_plan_compile(&r->p, r->c, &o, NULL, &e));
    struct off_sweep sweep = {r->p->uses, r->p->n_uses, PROMPT, r->p->choice};
    struct off_weights_config w = {.ram_max = ram ? ram : r->p->weight_bytes_slot, .sweep = &sweep};
    int rc = off_weights_open(&r->w, r->c, r->p->records, r->p->n_records, r->p->weights, r->p->n_weights, &w, &e);
    if (rc)
        return rc;
    OK(eng_kv_open(&r->kv, r->p, &kv, &e));
    OK(eng_exec_open(&r->x, r->p, r->w, &x, &e));
    return ERR_OK;
}
static void rig_close(struct rig *r)
{
    eng_exec_close(r->x);
    eng_kv_close(r->kv);
    off_weights_close(r->w);
    eng_plan_close(r->p);
    off_catalog_close(r->c);
}
/* Logits after tokens [0, PROMPT), n a step. blame: each step is then run call by call, as one that met a NaN is. */
static bool blame;
static int rig_run(struct rig *r, uint32_t n, float *logits)
{
    int rc = ERR_OK;
    int32_t ids[PROMPT];
    uint32_t pos[PROMPT], pick, table[64];
    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = 3 + (int32_t)(i * i * 29 % (VOCAB - 3));
        pos[i] = i;
    }
    for (uint32_t at = 0; at < PROMPT && !rc; at += n) {
        uint32_t k = PROMPT - at < n ? PROMPT - at : n;
        struct krn_seq seq = {.first = 0, .count = k, .pos0 = at};
        struct krn_pages g;
        OK(eng_kv_reserve(r->kv, 0, at + k, &e));
        eng_kv_pages(r->kv, 0, &g);
        eng_kv_table(r->kv, 0, 0, table);
        g.tables = table;
        pick = k - 1;
        struct krn_step st = {.n_tokens = k, .n_picks = 1, .n_seqs = 1, .n_groups = 1, .tokens = ids + at, .pos = pos + at, .picks = &pick, .seqs = &seq, .groups = &g};
        rc = eng_exec_run(r->x, &st, NULL, NULL, &e);
        if (!rc && blame) {
            struct err why = {0};
            ck_assert_int_eq(eng_exec_blame(r->x, &st, 0, &why), ERR_FORMAT);
            ck_assert_str_eq(why.msg, "a result is not a finite number"); /* every call was looked at, and none is to blame */
            rc = eng_exec_run(r->x, &st, NULL, NULL, &e);
        }
    }
    if (!rc)
        memcpy(logits, eng_exec_row(r->x, &r->p->logits, 0), VOCAB * sizeof *logits);
    eng_kv_release(r->kv, 0);
    return rc;
}

/* Budgets from the floor up; vocabulary in tiles of 16 rows, of 80, whole. */
START_TEST(budgets)
{
    static const uint64_t tiles[] = {0, 80 * TINY_HIDDEN * 4, 1};
    const char *path = _i ? untied : tied;
    float want[VOCAB], got[VOCAB];
    struct rig r;
    OK(rig_open(&r, path, 0, 0));
    OK(rig_run(&r, PROMPT, want));
    uint64_t all = r.p->weight_bytes_slot;
    rig_close(&r);
    for (unsigned t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        int refused = 0, streamed = 0;
        for (unsigned i = 1; i <= 10; i++) {
            struct off_weights_stats s;
            uint64_t ram = i > 1 ? all * i / 10 : all / 50;
            int rc = rig_open(&r, path, tiles[t], ram);
            ck_assert_msg(rc == ERR_OK || (rc == ERR_BUDGET && strstr(e.msg, "missing")), "%s", e.msg);
            if (rc) {
                refused++;
                ck_assert_int_eq(streamed, 0);
                rig_close(&r);
                continue;
            }
            for (uint32_t n = i % 2 ? PROMPT : 5, k = 0; k < 2; k++) {
                OK(rig_run(&r, n, got));
                ck_assert_msg(!memcmp(want, got, sizeof want), "tiles of %llu, %u tenths: other logits", (unsigned long long)tiles[t], i);
            }
            off_weights_stats(r.w, &s);
            ck_assert_uint_le(s.resident_bytes + s.window_bytes + s.staging_bytes, ram);
            streamed += s.sweep_bytes > 0;
            rig_close(&r);
        }
        ck_assert_int_gt(refused, 0);
        ck_assert_int_gt(streamed, 2);
    }
}
END_TEST

/* Looking for the call to blame leases as a step does. */
START_TEST(blamed)
{
    float want[VOCAB], got[VOCAB];
    struct rig r;
    const char *path = _i ? untied : tied;
    OK(rig_open(&r, path, 0, 0));
    OK(rig_run(&r, PROMPT, want));
    uint64_t all = r.p->weight_bytes_slot;
    rig_close(&r);
    OK(rig_open(&r, path, 1, all * 6 / 10));
    blame = true;
    OK(rig_run(&r, PROMPT, got));
    ck_assert(!memcmp(want, got, sizeof want));
    OK(rig_run(&r, 5, got));
    ck_assert(!memcmp(want, got, sizeof want));
    rig_close(&r);
}
END_TEST

/* The drive fails in mid-step: the step says so, and the next one is right again. */
START_TEST(faults)
{
    float want[VOCAB], got[VOCAB];
    struct rig r;
    int failed = 0;
    OK(rig_open(&r, tied, 0, 0));
    OK(rig_run(&r, PROMPT, want));
    uint64_t all = r.p->weight_bytes_slot;
    rig_close(&r);
    bad_io_after(1 << 30, 0);
    off_io_pread = bad_io_pread;
    OK(rig_open(&r, tied, 1, all * 6 / 10));
    for (int n = 0; n < 30; n += 3) {
        bad_io_after(n, EIO);
        int rc = rig_run(&r, PROMPT, got);
        ck_assert_msg(rc == ERR_OK || (rc == ERR_IO && strstr(e.msg, "tensor \"") && strstr(e.msg, strerror(EIO))), "%s", e.msg);
        failed += rc != ERR_OK;
        bad_io_after(1 << 30, 0);
        for (int tries = 0; (rc = rig_run(&r, PROMPT, got)) != ERR_OK; tries++)
            ck_assert_msg(rc == ERR_IO && tries < 40, "%s", e.msg); /* what was read ahead and failed is told once */
        ck_assert(!memcmp(want, got, sizeof want));
    }
    ck_assert_int_gt(failed, 0);
    rig_close(&r);
    off_io_pread = pread;
}
END_TEST

/* ---- the engine --------------------------------------------------------------------------------------------- */
struct box { pthread_mutex_t lock; pthread_cond_t cond; struct { int32_t ids[24]; uint32_t n; bool done; } r[N]; };

static void on_event(void *ctx, const struct eng_event *ev)
{
    struct box *b = ctx;
    pthread_mutex_lock(&b->lock);
    if (ev->type == ENG_EV_TOKEN)
        b->r[ev->id].ids[b->r[ev->id].n++] = ev->token;
    if (ev->type == ENG_EV_DONE) {
        ck_assert_int_eq(ev->finish, ENG_LENGTH);
        b->r[ev->id].done = true;
    }
    pthread_cond_broadcast(&b->cond);
    pthread_mutex_unlock(&b->lock);
}

static struct { const char *path, *disks; bool verify; } from = {untied, NULL, false};
static void generate(uint64_t ram, struct box *b, struct eng_stats *st)
{
    eng_engine *g;
    struct eng_config c = {.model_path = from.path, .disks = from.disks, .verify_reads = from.verify, .ctx = 128, .seqs = N, .threads = 2, .chunk = 16, .page_tokens = 16, .kv_type = KRN_F16, .ram_max = ram, .queue_max = N};
    *b = (struct box){.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    OK(eng_open(&g, &c, on_event, b, &e));
    for (uint32_t k = 0; k < N; k++) {
        int32_t ids[40];
        for (uint32_t i = 0; i < 40; i++)
            ids[i] = 3 + (int32_t)((i * 37 + k * i * 11) % (VOCAB - 3));
        struct eng_request r = {.id = k, .ids = ids, .n_ids = 10 + 9 * k, .max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = k % 2 ? 0.8f : 0, .top_p = 1, .seed = k}};
        OK(eng_submit(g, &r, &e));
    }
    pthread_mutex_lock(&b->lock);
    for (uint32_t k = 0; k < N; k++)
        while (!b->r[k].done)
            pthread_cond_wait(&b->cond, &b->lock);
    pthread_mutex_unlock(&b->lock);
    eng_stats(g, st);
    eng_close(g);
}

START_TEST(served)
{
    static struct box whole, part;
    struct eng_stats st;
    generate(512u << 20, &whole, &st);
    ck_assert_uint_eq(st.weight_sweep_bytes, 0);
    uint64_t others = st.activation_bytes + st.kv_bytes, weights = st.weight_bytes;
    for (unsigned i = 9; i >= 5; i -= 2) {
        generate(others + weights * i / 10, &part, &st);
        ck_assert_uint_gt(st.weight_sweep_bytes, 0);
        ck_assert_uint_ge(st.weight_read_bytes, st.steps * (st.weight_sweep_bytes - (8u << 20)));
        ck_assert_uint_le(st.weight_bytes + st.activation_bytes + st.kv_bytes, others + weights * i / 10);
        for (uint32_t k = 0; k < N; k++)
            ck_assert_msg(whole.r[k].n == part.r[k].n && !memcmp(whole.r[k].ids, part.r[k].ids, sizeof whole.r[k].ids), "%u tenths: other text", i);
    }
    struct eng_config c = {.model_path = untied, .ctx = 128, .seqs = N, .threads = 2, .chunk = 16, .ram_max = others + weights / 20};
    eng_engine *g;
    ck_assert_int_eq(eng_open(&g, &c, on_event, &part, &e), ERR_BUDGET);
    ck_assert_msg(strstr(e.msg, "bytes are missing"), "%s", e.msg);
}
END_TEST

/* The same text from published files, from two directories, from a packed copy and from two of those. */
START_TEST(elsewhere)
{
    static struct box whole, part;
    struct eng_stats st;
    char *dirs[3] = {mm_tmpdir(), mm_tmpdir(), mm_tmpdir()};
    const char *base = strrchr(untied, '/') + 1;
    size_t n;
    void *p = mm_read(untied, &n);
    mm_write(mm_path(dirs[0], base), p, n);
    free(p);
    struct eng_plan_options o = {0};
    off_catalog *c;
    struct eng_plan *plan;
    OK(off_catalog_open(&c, untied, 0, &e));
    OK(eng_plan_compile(&plan, c, &o, NULL, &e));
    for (uint32_t i = 0; i < plan->n_records; i++)
        OK(off_record_layout(&plan->records[i], &e));
    for (int i = 1; i < 3; i++)
        OK(off_pack_make(c, plan->records, plan->n_records, dirs[i], NULL, NULL, &e));
    eng_plan_close(plan);
    off_catalog_close(c);
    generate(512u << 20, &whole, &st);
    uint64_t ram = st.activation_bytes + st.kv_bytes + st.weight_bytes * 6 / 10;
    for (int way = 0; way < 4; way++) {
        from.path = way == 0 ? untied : dirs[1];
        from.disks = way == 0 ? dirs[0] : way == 3 ? dirs[2] : NULL;
        from.verify = way == 2;
        generate(ram, &part, &st);
        ck_assert_uint_gt(st.weight_sweep_bytes, 0);
        ck_assert_uint_eq(st.n_drives, from.disks ? 2 : 1);
        for (uint32_t k = 0; k < st.n_drives; k++)
            ck_assert_uint_gt(st.drives[k].bytes, 0);
        ck_assert_uint_le(st.weight_read_bytes, st.weight_wanted_bytes + st.weight_wanted_bytes / 100);
        for (uint32_t k = 0; k < N; k++)
            ck_assert_msg(whole.r[k].n == part.r[k].n && !memcmp(whole.r[k].ids, part.r[k].ids, sizeof whole.r[k].ids), "way %d: other text", way);
    }
    for (int i = 0; i < 3; i++)
        mm_rmdir(dirs[i]);
}
END_TEST

/* A drive that does not answer: who has a deadline meets it, who is cancelled goes, and when it answers again all is well. */
static atomic_bool stuck;
static ssize_t stuck_pread(int fd, void *p, size_t n, off_t at)
{
    while (atomic_load(&stuck) && n != 16 * TINY_HIDDEN * sizeof(float)) /* rows of the table come from the page cache */
        usleep(1000);
    return pread(fd, p, n, at);
}

struct ends { pthread_mutex_t lock; pthread_cond_t cond; int finish[3]; };
static void on_end(void *ctx, const struct eng_event *ev)
{
    struct ends *x = ctx;
    if (ev->type != ENG_EV_DONE)
        return;
    pthread_mutex_lock(&x->lock);
    x->finish[ev->id] = (int)ev->finish;
    pthread_cond_broadcast(&x->cond);
    pthread_mutex_unlock(&x->lock);
}
static int end_of(struct ends *x, int i)
{
    pthread_mutex_lock(&x->lock);
    while (x->finish[i] < 0)
        pthread_cond_wait(&x->cond, &x->lock);
    pthread_mutex_unlock(&x->lock);
    return x->finish[i];
}

START_TEST(stuck_drive)
{
    static struct box whole;
    struct ends x = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, {-1, -1, -1}};
    struct eng_stats st;
    eng_engine *g;
    int32_t ids[10] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    generate(512u << 20, &whole, &st);
    struct eng_config c = {.model_path = untied, .ctx = 128, .seqs = N, .threads = 2, .chunk = 16, .page_tokens = 16, .kv_type = KRN_F16, .queue_max = N, .io = OFF_IO_THREADS,
                           .ram_max = st.activation_bytes + st.kv_bytes + st.weight_bytes * 6 / 10};
    off_io_pread = stuck_pread;
    OK(eng_open(&g, &c, on_end, &x, &e));
    atomic_store(&stuck, true);
    for (uint64_t i = 0; i < 2; i++) {
        struct eng_request r = {.id = i, .ids = ids, .n_ids = 10, .max_tokens = 20, .ignore_eos = true, .sampling = {.top_p = 1}, .deadline_ns = i ? 0 : clock_now_ns() + 200 * NS_PER_MS};
        OK(eng_submit(g, &r, &e));
    }
    ck_assert_int_eq(end_of(&x, 0), ENG_DEADLINE);
    eng_cancel(g, 1);
    ck_assert_int_eq(end_of(&x, 1), ENG_CANCELLED);
    atomic_store(&stuck, false);
    struct eng_request r = {.id = 2, .ids = ids, .n_ids = 10, .max_tokens = 20, .ignore_eos = true, .sampling = {.top_p = 1}};
    OK(eng_submit(g, &r, &e));
    ck_assert_int_eq(end_of(&x, 2), ENG_LENGTH);
    eng_close(g);
    off_io_pread = pread;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("streamed");
    TCase *t = tcase_create("streamed");
    tcase_add_unchecked_fixture(t, models, gone);
    tcase_add_loop_test(t, budgets, 0, 2);
    tcase_add_loop_test(t, blamed, 0, 2);
    tcase_add_test(t, faults);
    tcase_add_test(t, served);
    tcase_add_test(t, elsewhere);
    tcase_add_test(t, stuck_drive);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
