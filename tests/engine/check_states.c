/* tests/engine/check_states.c - sequences of models with recurrent layers and with experts: the same bits whatever runs beside them
 * and however they are cut; gone on from a snapshot; tokens forgotten inside a tile; what a state costs. */
#include "engine/session.h"
#include "engine/states.h"
#include "tests/support/make_model.h"
#include "tests/support/rows.h"
#include "tests/support/suite.h"

enum { N = 150, SEQS = 8, CHUNK = 160 };
static const char *const models[] = {"tests/data/models/kimi_linear", "tests/data/models/deepseek_v3", "tests/data/models/qwen3_moe", "tests/data/models/gpt_oss"};
static struct err e;

static eng_session *open_model(const char *path, enum krn_isa isa, unsigned threads, uint32_t page, enum krn_type kv)
{
    struct eng_config c = {.model_path = path, .ctx = 256, .seqs = SEQS, .threads = threads, .chunk = CHUNK, .page_tokens = page, .kv_type = kv, .isa = isa,
                           .precision = kv == KRN_F32 ? KRN_PREC_F32 : KRN_PREC_AUTO};
    eng_session *s = NULL;
    ck_assert_msg(!eng_session_open(&s, &c, SEQS, &e), "%s: %s", path, e.msg);
    return s;
}
static void tokens_of(int32_t *t, uint32_t who, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) t[i] = (int32_t)((i * 37 + who * 101 + i * i % 61) % 400);
}
/* Tokens [from, to) in one step, a snapshot at `at` on the way. */
static void take(eng_session *s, uint32_t slot, const int32_t *t, uint32_t from, uint32_t to, uint32_t at, uint8_t *snap)
{
    struct eng_part part = {.slot = slot, .pos0 = from, .n = to - from, .tokens = t + from, .picks = ENG_PICK_LAST, .snapshot = snap, .snapshot_pos = at};
    OK(eng_session_step(s, &part, 1, NULL, NULL, &e));
}
/* Tokens [from, to) in chunks; the last row's logits. */
static void feed(eng_session *s, uint32_t slot, const int32_t *t, uint32_t from, uint32_t to, uint32_t chunk, float *logits)
{
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    for (uint32_t at = from, n; at < to; at += n) {
        n = to - at < chunk ? to - at : chunk;
        struct eng_part part = {.slot = slot, .pos0 = at, .n = n, .tokens = t + at, .picks = ENG_PICK_LAST};
        OK(eng_session_step(s, &part, 1, NULL, NULL, &e));
    }
    memcpy(logits, eng_session_logits(s, 0), vocab * sizeof *logits);
}

START_TEST(company)
{
    const char *path = models[_i / 2];
    enum krn_type kv = _i % 2 ? KRN_BF16 : KRN_F32;
    eng_session *s = open_model(path, KRN_ISA_C, 1, 64, kv), *b = open_model(path, KRN_ISA_AUTO, 2, 16, kv);
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    static int32_t t[SEQS][N];
    float *want = malloc(vocab * sizeof *want);
    for (uint32_t q = 0; q < SEQS; q++) tokens_of(t[q], q, N);
    /* Eight sequences that start one after the other and run in chunks of different sizes. */
    uint32_t past[SEQS] = {0}, left = SEQS, step = 0;
    static float got[SEQS][1024];
    ck_assert_uint_le(vocab, 1024);
    for (; left; step++) {
        struct eng_part parts[SEQS];
        uint32_t n = 0, who[SEQS];
        for (uint32_t q = 0; q < SEQS; q++) {
            uint32_t take = 1 + (q * 5 + step * 3) % 19;
            if (past[q] == N || q > step) continue;
            take = N - past[q] < take ? N - past[q] : take;
            who[n] = q;
            parts[n++] = (struct eng_part){.slot = (q + 3) % SEQS, .pos0 = past[q], .n = take, .tokens = t[q] + past[q], .picks = ENG_PICK_LAST};
            past[q] += take;
        }
        if (!n) continue;
        OK(eng_session_step(b, parts, n, NULL, NULL, &e));
        for (uint32_t i = 0; i < n; i++)
            if (past[who[i]] == N) {
                memcpy(got[who[i]], eng_session_logits(b, i), vocab * sizeof **got);
                left--;
            }
    }
    for (uint32_t q = 0; q < SEQS; q += 3) {
        feed(s, 0, t[q], 0, N, q ? CHUNK : 64, want);
        ck_assert_msg(rows_equal(want, got[q], vocab), "%s: sequence %u", path, q);
        eng_session_drop(s, 0);
    }
    free(want);
    eng_session_close(s);
    eng_session_close(b);
}
END_TEST

/* Snapshots at the end of tiles, of steps that end there and that go on: after other tokens, after another sequence in the slot, the
 * same bits again. */
START_TEST(snapshot)
{
    enum krn_type kv = _i ? KRN_BF16 : KRN_F32;
    eng_session *s = open_model(models[0], KRN_ISA_AUTO, 2, 16, kv);
    struct eng_states *st = eng_session_states(s);
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    int32_t t[N], other[N];
    float *want = malloc(vocab * 4), *got = malloc(vocab * 4);
    tokens_of(t, 1, N);
    tokens_of(other, 2, N);
    size_t bytes = eng_states_snapshot_bytes(eng_session_model(s)->plan, kv);
    ck_assert_uint_gt(bytes, 0);
    static const uint32_t at[] = {16, 64, 144};
    uint8_t *snap[3], *again = malloc(bytes);
    for (int i = 0; i < 3; i++) {
        uint32_t from = i ? at[i - 1] : 0;
        ck_assert((snap[i] = malloc(bytes)) != NULL);
        feed(s, 2, t, from, at[i] - 3, 13, want);
        take(s, 2, t, at[i] - 3, at[i], at[i], snap[i]);
    }
    feed(s, 2, t, 144, N, CHUNK, want);
    for (int i = 0; i < 3; i++) { /* in the middle of a long step; the state of another slot does not matter */
        memset(again, 0xAA, bytes);
        take(s, 6, t, 0, N, at[i], again);
        ck_assert_msg(!memcmp(again, snap[i], bytes), "snapshot at %u in a step of %u", at[i], N);
        eng_session_drop(s, 6);
    }
    for (int i = 2; i >= 0; i--) { /* pages up to at[i] are still the sequence's: only what came later is computed anew */
        eng_states_load(st, 2, at[i], snap[i]);
        feed(s, 2, t, at[i], N, 7 + 40 * (uint32_t)i, got);
        ck_assert_msg(rows_equal(want, got, vocab), "snapshot at %u", at[i]);
    }
    feed(s, 5, other, 0, N, 50, got); /* beside it: other slots are not touched */
    eng_states_load(st, 2, at[1], snap[1]);
    feed(s, 2, other, at[1], N, 50, got);
    ck_assert(memcmp(want, got, vocab * 4) != 0);
    eng_states_load(st, 2, at[1], snap[1]);
    feed(s, 2, t, at[1], N, 1, got);
    ck_assert(rows_equal(want, got, vocab));
    eng_states_load(st, 2, at[1], snap[1]);
    take(s, 2, t, at[1], N, at[2], again); /* of a sequence that went on from one itself */
    ck_assert(!memcmp(again, snap[2], bytes));
    static const uint32_t wrong[] = {0, 64, 140, 160};
    for (int i = 0; i < 4; i++) {
        struct eng_part part = {.slot = 2, .pos0 = 64, .n = N - 64, .tokens = t + 64, .snapshot = again, .snapshot_pos = wrong[i]};
        ck_assert_int_eq(eng_session_step(s, &part, 1, NULL, NULL, &e), ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(e.msg, "is not at the end of a tile"));
    }
    free(again);
    for (int i = 0; i < 3; i++) free(snap[i]);
    free(want);
    free(got);
    eng_session_close(s);
}
END_TEST

/* Guessed tokens that turn out wrong are forgotten by going on from before them, as long as they did not end a tile. */
START_TEST(forget)
{
    eng_session *s = open_model(models[0], KRN_ISA_AUTO, 1, 64, KRN_F32);
    uint32_t vocab = eng_session_model(s)->plan->vocab;
    int32_t t[N], other[N];
    float *want = malloc(vocab * 4), *got = malloc(vocab * 4);
    tokens_of(t, 1, N);
    tokens_of(other, 2, N);
    struct eng_states *st = eng_session_states(s);
    /* At every place of a tile: as many wrong guesses as may be, forgotten from after the last certain token on. */
    for (uint32_t pos = 40; pos < 60; pos++) {
        uint32_t k = eng_states_guesses_max(st, pos);
        ck_assert_uint_le(k, 12);
        feed(s, 3, t, 0, pos, CHUNK, got);
        feed(s, 3, t, pos, pos + 1, 1, got);
        if (k) feed(s, 3, other, pos + 1, pos + 1 + k, CHUNK, got);
        feed(s, 3, t, pos + 1, 80, CHUNK, got);
        if (pos == 40) feed(s, 0, t, 0, 80, CHUNK, want);
        ck_assert_msg(rows_equal(want, got, vocab), "%u guesses after position %u", k, pos);
    }
    feed(s, 1, t, 0, 67, CHUNK, got);
    feed(s, 1, other, 67, 79, CHUNK, got);
    feed(s, 1, t, 67, 80, CHUNK, got);
    ck_assert(rows_equal(want, got, vocab));
    feed(s, 2, t, 0, 64, CHUNK, got);
    feed(s, 2, other, 64, 76, CHUNK, got);
    feed(s, 2, t, 64, 80, 3, got);
    ck_assert(rows_equal(want, got, vocab));
    free(want);
    free(got);
    eng_session_close(s);
}
END_TEST

START_TEST(sizes)
{
    eng_session *s = open_model(models[0], KRN_ISA_C, 1, 64, KRN_BF16), *d = open_model(models[1], KRN_ISA_C, 1, 64, KRN_BF16);
    const struct eng_plan *p = eng_session_model(s)->plan, *q = eng_session_model(d)->plan;
    ck_assert_uint_eq(eng_states_snapshot_bytes(p, KRN_BF16), eng_plan_state_bytes_per_seq(p));
    ck_assert_uint_gt(eng_states_bytes(p, KRN_BF16, 1), eng_plan_state_bytes_per_seq(p));
    ck_assert_uint_eq(eng_states_bytes(p, KRN_BF16, 3), 3 * eng_states_bytes(p, KRN_BF16, 1));
    ck_assert_uint_gt(eng_states_bytes(p, KRN_F32, 1), eng_states_bytes(p, KRN_BF16, 1));
    ck_assert_uint_eq(eng_states_bytes(p, KRN_F32, UINT32_MAX) >= eng_states_bytes(p, KRN_F32, 1), 1);
    ck_assert_uint_eq(eng_states_guesses_max(eng_session_states(d), 5), UINT32_MAX);
    ck_assert_uint_eq(eng_states_bytes(q, KRN_F32, 8), 0);
    ck_assert_uint_gt(eng_states_snapshot_bytes(p, KRN_F32), eng_states_snapshot_bytes(p, KRN_BF16));
    ck_assert_uint_eq(eng_states_snapshot_bytes(q, KRN_F32), 0);
    eng_session_close(s);
    eng_session_close(d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("states");
    TCase *t = tcase_create("core");
    tcase_set_timeout(t, 600);
    tcase_add_loop_test(t, company, 0, 8);
    tcase_add_loop_test(t, snapshot, 0, 2);
    tcase_add_test(t, forget);
    tcase_add_test(t, sizes);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
