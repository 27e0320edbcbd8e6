/* engine/prefix: what is found, shared, kept and dropped, against the pool's own counts; no model. */
#include "engine/prefix.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

enum { PAGE = 16, CTX = 256, SLOTS = 4, CHUNK = 32, WINDOW = 40, SNAPSHOTS = 3 };
static const uint16_t layers_full[] = {0, 2}, layers_win[] = {1};
static struct eng_kv_group groups[] = {
    {.state = "kv", .heads = 2, .dim_k = 16, .dim_v = 16, .layers = layers_full, .n_layers = 2},
    {.state = "kv", .heads = 2, .dim_k = 16, .dim_v = 16, .window = WINDOW, .layers = layers_win, .n_layers = 1},
};
static struct eng_plan plans[] = {{.kv = groups, .n_kv = 1}, {.kv = groups, .n_kv = 2}, {.kv = groups + 1, .n_kv = 1}}; /* full, both, windowed */
static const uint8_t digest[32] = {1};
static struct eng_page_scope scope = {.fingerprint = digest, .sheet = digest, .numerics = "n", .type = KRN_F32, .page_tokens = PAGE, .tp_size = 1,
                                      .image_recipe = "", .adapter = ""};
static struct err e;

struct rig { eng_kv *kv; eng_prefix *x; struct eng_chain c[SLOTS]; int32_t tokens[SLOTS][CTX]; uint32_t past[SLOTS]; };

static void open_rig(struct rig *r, struct eng_plan *p, uint64_t bytes_max)
{
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK, .bytes_max = bytes_max ? bytes_max : 1 << 24};
    *r = (struct rig){0};
    OK(eng_kv_open(&r->kv, p, &c, &e));
    OK(eng_prefix_open(&r->x, p, r->kv, &scope, SLOTS, p->n_recurrent ? SNAPSHOTS : 0, &e));
    for (uint32_t i = 0; i < SLOTS; i++)
        OK(eng_prefix_scope(r->x, "default", false, &r->c[i], &e));
}
static void close_rig(struct rig *r)
{
    eng_prefix_close(r->x);
    eng_kv_close(r->kv);
}
static uint64_t used(const struct rig *r)
{
    uint64_t pages, n, bytes;
    eng_kv_usage(r->kv, &pages, &n, &bytes);
    return n;
}
static uint64_t indexed(const struct rig *r)
{
    struct eng_prefix_stats s;
    eng_prefix_stats(r->x, &s);
    return s.pages;
}
static void text(struct rig *r, uint32_t slot, uint32_t shared, int32_t own) /* `shared` equal tokens, then its own */
{
    for (uint32_t i = 0; i < CTX; i++)
        r->tokens[slot][i] = i < shared ? (int32_t)i : own + (int32_t)i;
}
/* Starts with what is there; returns how many tokens that is. */
static uint32_t start(struct rig *r, uint32_t slot, uint32_t n)
{
    uint32_t have = eng_prefix_match(r->x, &r->c[slot], r->tokens[slot], n);
    eng_prefix_lease(r->x, &r->c[slot], slot, have);
    r->past[slot] = have;
    return have;
}
static int grow(struct rig *r, uint32_t slot, uint32_t n)
{
    for (uint32_t to; r->past[slot] < n; r->past[slot] = to) {
        to = r->past[slot] + CHUNK < n ? r->past[slot] + CHUNK : n;
        if (eng_prefix_reserve(r->x, slot, to, NULL))
            return ERR_AGAIN;
        eng_prefix_add(r->x, &r->c[slot], slot, r->tokens[slot], to);
        eng_kv_slide(r->kv, slot, to);
    }
    return ERR_OK;
}

/* One prompt, then others that begin like it. */
START_TEST(core)
{
    static struct rig r;
    struct eng_plan *p = &plans[_i];
    open_rig(&r, p, 0);
    for (uint32_t s = 0; s < SLOTS; s++)
        text(&r, s, 100, 1000 * (int32_t)s);
    ck_assert_uint_eq(start(&r, 0, 150), 0);
    ck_assert_int_eq(grow(&r, 0, 150), ERR_OK);
    uint64_t held = used(&r);
    /* Running ones give, too: 100 equal tokens are 6 pages. With windows: as long as those before the boundary are there. */
    ck_assert_uint_eq(start(&r, 1, 150), 96);
    uint64_t window_pages = _i == 0 ? 0 : 96 / PAGE - (96 - WINDOW + 1) / PAGE;
    ck_assert_uint_eq(used(&r), held + window_pages); /* full groups share; what a window needs had slid out of the other's */
    for (uint32_t k = 0; k < 6 && _i < 2; k++)
        ck_assert_uint_eq(eng_kv_page(r.kv, 0, 0, k), eng_kv_page(r.kv, 1, 0, k));
    ck_assert_int_eq(grow(&r, 1, 150), ERR_OK);
    ck_assert(_i == 2 || eng_kv_page(r.kv, 0, 0, 6) != eng_kv_page(r.kv, 1, 0, 6));
    eng_prefix_release(r.x, &r.c[0], 0);
    eng_prefix_release(r.x, &r.c[1], 1);
    ck_assert_uint_eq(used(&r), 0);
    ck_assert_uint_gt(indexed(&r), 0);
    ck_assert_uint_eq(start(&r, 2, 97), 96);                /* finished ones still give */
    eng_prefix_release(r.x, &r.c[2], 2);
    ck_assert_uint_eq(start(&r, 2, 96), 80);                /* the last token is always computed */
    eng_prefix_release(r.x, &r.c[2], 2);
    ck_assert_uint_eq(start(&r, 0, 200), 144);              /* 150 tokens are 9 full pages */
    eng_prefix_release(r.x, &r.c[0], 0);
    OK(eng_prefix_scope(r.x, "another", false, &r.c[3], &e));  /* another tenant finds nothing */
    ck_assert_uint_eq(start(&r, 3, 150), 0);
    ck_assert_int_eq(grow(&r, 3, 150), ERR_OK);
    eng_prefix_release(r.x, &r.c[3], 3);
    ck_assert_uint_eq(used(&r), 0);
    close_rig(&r);
}
END_TEST

/* Two that compute the same at once end up with one set of pages. */
START_TEST(join)
{
    static struct rig r;
    open_rig(&r, &plans[_i], 0);
    text(&r, 0, CTX, 0);
    text(&r, 1, CTX, 0);
    start(&r, 0, 96);
    start(&r, 1, 96);
    for (uint32_t n = CHUNK; n <= 96; n += CHUNK) {
        ck_assert_int_eq(grow(&r, 0, n), ERR_OK);
        ck_assert_int_eq(grow(&r, 1, n), ERR_OK);
    }
    for (uint32_t g = 0; g < plans[_i].n_kv; g++)
        for (uint32_t k = 0; k < 6; k++) {
            ck_assert_uint_eq(eng_kv_page(r.kv, 0, g, k), eng_kv_page(r.kv, 1, g, k));
            ck_assert(eng_kv_page(r.kv, 0, g, k) == KRN_NO_PAGE || eng_kv_holders(r.kv, g, eng_kv_page(r.kv, 0, g, k)) == 2);
        }
    eng_prefix_release(r.x, &r.c[0], 0);
    ck_assert_uint_gt(used(&r), 0);
    eng_prefix_release(r.x, &r.c[1], 1);
    ck_assert_uint_eq(used(&r), 0);
    close_rig(&r);
}
END_TEST

/* A pool that holds one sequence: what is old leaves from its end; what is held never does. */
START_TEST(limits)
{
    static struct rig r;
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK};
    struct eng_prefix_stats s;
    open_rig(&r, &plans[0], eng_kv_bytes(&plans[0], &c, 1)); /* 16 pages */
    text(&r, 0, 48, 0);
    text(&r, 1, 48, 5000);
    start(&r, 0, 160);
    ck_assert_int_eq(grow(&r, 0, 160), ERR_OK);
    eng_prefix_release(r.x, &r.c[0], 0);
    ck_assert_uint_eq(indexed(&r), 10);
    ck_assert_uint_eq(start(&r, 1, 200), 48);
    ck_assert_int_eq(grow(&r, 1, 200), ERR_OK);             /* 13 pages: 3 shared, 10 new of 6 free: 4 leave, the far end first */
    eng_prefix_stats(r.x, &s);
    ck_assert_uint_eq(s.evictions, 4);
    text(&r, 2, 48, 0);
    ck_assert_uint_eq(eng_prefix_match(r.x, &r.c[2], r.tokens[2], 200), 96);
    text(&r, 3, 0, 9000);
    start(&r, 3, 200);
    ck_assert_int_eq(grow(&r, 3, 48), ERR_OK);              /* the rest of the first one goes */
    ck_assert_int_eq(grow(&r, 3, 64), ERR_AGAIN);           /* all are held */
    ck_assert_uint_eq(used(&r), 16);
    eng_prefix_release(r.x, &r.c[3], 3);
    eng_prefix_release(r.x, &r.c[1], 1);
    ck_assert_uint_eq(used(&r), 0);
    close_rig(&r);
}
END_TEST

/* One tenant's prompts, ever new ones, do not flush what another has. */
START_TEST(tenants)
{
    static struct rig r;
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK};
    struct eng_plan *p = &plans[_i];
    open_rig(&r, p, eng_kv_bytes(p, &c, 1) * 2);
    OK(eng_prefix_scope(r.x, "quiet", false, &r.c[1], &e));
    text(&r, 1, 0, 7000);
    start(&r, 1, 81);
    ck_assert_int_eq(grow(&r, 1, 81), ERR_OK);
    eng_prefix_release(r.x, &r.c[1], 1);
    for (int32_t round = 1; round <= 20; round++) {
        text(&r, 0, 0, round * 1000);
        ck_assert_uint_eq(start(&r, 0, 100), 0);
        ck_assert_int_eq(grow(&r, 0, 100), ERR_OK);
        eng_prefix_release(r.x, &r.c[0], 0);
    }
    ck_assert_uint_eq(start(&r, 1, 81), 80);
    eng_prefix_release(r.x, &r.c[1], 1);
    ck_assert_uint_eq(start(&r, 0, 100), 96); /* the other's latest prompt is there as well */
    eng_prefix_release(r.x, &r.c[0], 0);
    close_rig(&r);
}
END_TEST

/* Any order of starts, growth and ends, under pressure: tables never hold less than a continuation needs, and pages of equal
 * content are those of equal tokens. What a page holds is modelled beside it: the tokens up to its end. */
START_TEST(any)
{
    static struct rig r;
    static int32_t held[2][256][CTX]; /* [group][page]: its tokens, its own 16 at [depth * 16) and all before */
    static uint32_t depth[2][256];
    struct eng_plan *p = &plans[_i % 3];
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK};
    uint64_t one = eng_kv_bytes(p, &c, 1);
    bool live[SLOTS] = {0};
    uint64_t found = 0;
    srand((unsigned)_i);
    open_rig(&r, p, one * 2);
    for (int round = 0; round < 4000; round++) {
        uint32_t s = (uint32_t)(rand() % SLOTS);
        if (!live[s]) {
            text(&r, s, (uint32_t)(rand() % 200), 1000 * (1 + rand() % 3));
            found += start(&r, s, 17 + (uint32_t)(rand() % (CTX - 17)));
            live[s] = true;
        } else if (rand() % 8 == 0 || r.past[s] == CTX) {
            eng_prefix_release(r.x, &r.c[s], s);
            live[s] = false;
        } else {
            uint32_t from = r.past[s], to = from + 1 + (uint32_t)(rand() % CHUNK);
            to = to < CTX ? to : CTX;
            if (eng_prefix_reserve(r.x, s, to, NULL)) { /* gives way itself */
                eng_prefix_release(r.x, &r.c[s], s);
                live[s] = false;
                continue;
            }
            for (uint32_t g = 0; g < p->n_kv; g++) {
                for (uint32_t k = eng_kv_first(r.kv, g, from); k * PAGE < from; k++) { /* what the kernels would read */
                    uint32_t page = eng_kv_page(r.kv, s, g, k), n = (k + 1) * PAGE < from ? (k + 1) * PAGE : from;
                    ck_assert_uint_ne(page, KRN_NO_PAGE);
                    ck_assert_uint_eq(depth[g][page], k);
                    ck_assert(!memcmp(held[g][page], r.tokens[s], n * sizeof(int32_t)));
                }
                for (uint32_t t = from; t < to; t++) { /* what they would write */
                    uint32_t page = eng_kv_page(r.kv, s, g, t / PAGE);
                    ck_assert(page != KRN_NO_PAGE && eng_kv_holders(r.kv, g, page) == 1);
                    depth[g][page] = t / PAGE;
                    memcpy(held[g][page], r.tokens[s], (t + 1) * sizeof(int32_t));
                }
            }
            r.past[s] = to;
            eng_prefix_add(r.x, &r.c[s], s, r.tokens[s], to);
            eng_kv_slide(r.kv, s, to);
        }
    }
    for (uint32_t s = 0; s < SLOTS; s++)
        if (live[s])
            eng_prefix_release(r.x, &r.c[s], s);
    ck_assert_uint_eq(used(&r), 0);
    ck_assert_uint_gt(found, 1000);
    close_rig(&r);
}
END_TEST

/* With recurrent layers a prefix ends at a snapshot; snapshots leave by age, or with their page. */
START_TEST(snapshots)
{
    static struct rig r;
    static struct eng_recurrent state = {.state = "s"};
    struct eng_plan p = {.kv = groups, .n_kv = 1, .recurrent = &state, .n_recurrent = 1};
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK};
    struct eng_prefix_stats st;
    uint32_t n[SNAPSHOTS];
    open_rig(&r, &p, eng_kv_bytes(&p, &c, 1)); /* 16 pages */
    for (uint32_t s = 0; s < SLOTS; s++)
        text(&r, s, 100, 1000 * (int32_t)s);
    ck_assert_uint_eq(start(&r, 0, 150), 0);
    ck_assert_int_eq(grow(&r, 0, 150), ERR_OK);
    ck_assert_uint_eq(eng_prefix_match(r.x, &r.c[1], r.tokens[1], 150), 0);
    ck_assert_uint_eq(eng_prefix_reach(r.x), 96);           /* pages alone would do */
    for (uint32_t i = 0; i < SNAPSHOTS; i++)
        ck_assert_uint_ne(n[i] = eng_prefix_snapshot_take(r.x), ENG_NO_SNAPSHOT);
    ck_assert_uint_eq(eng_prefix_snapshot_take(r.x), ENG_NO_SNAPSHOT); /* those under way do not leave */
    ck_assert(eng_prefix_snapshot_put(r.x, &r.c[0], 48, n[0]) && eng_prefix_snapshot_put(r.x, &r.c[0], 144, n[1]));
    ck_assert(!eng_prefix_snapshot_put(r.x, &r.c[0], 48, n[2]));       /* one is there */
    n[2] = eng_prefix_snapshot_take(r.x);
    ck_assert(!eng_prefix_snapshot_put(r.x, &r.c[0], 160, n[2]));      /* no such page */
    n[2] = eng_prefix_snapshot_take(r.x);
    ck_assert(!eng_prefix_snapshot_put(r.x, &r.c[0], 50, n[2]));       /* not the end of one */
    ck_assert_uint_eq(start(&r, 1, 150), 48);
    ck_assert_uint_eq(eng_prefix_reach(r.x), 96);
    ck_assert_uint_eq(eng_prefix_snapshot_get(r.x, &r.c[1], 48), n[0]);
    ck_assert_uint_eq(eng_prefix_snapshot_get(r.x, &r.c[1], 32), ENG_NO_SNAPSHOT);
    ck_assert_uint_eq(eng_prefix_snapshot_get(r.x, &r.c[1], 144), ENG_NO_SNAPSHOT);
    eng_prefix_release(r.x, &r.c[1], 1);
    eng_prefix_release(r.x, &r.c[0], 0);
    ck_assert_uint_eq(start(&r, 0, 150), 144);
    ck_assert_uint_eq(eng_prefix_snapshot_pull(r.x, &r.c[0], 144), n[1]);
    ck_assert_uint_eq(eng_prefix_snapshot_pull(r.x, &r.c[0], 144), ENG_NO_SNAPSHOT);
    ck_assert(eng_prefix_snapshot_put(r.x, &r.c[0], 96, n[1]));
    eng_prefix_snapshot_get(r.x, &r.c[0], 48);              /* used later than the one at 96 */
    n[2] = eng_prefix_snapshot_take(r.x);                   /* the last free one */
    eng_prefix_snapshot_give(r.x, n[2]);
    ck_assert_uint_eq(eng_prefix_snapshot_take(r.x), n[2]);
    ck_assert(eng_prefix_snapshot_put(r.x, &r.c[0], 16, n[2]));
    ck_assert_uint_eq(eng_prefix_snapshot_take(r.x), n[1]); /* the oldest */
    eng_prefix_snapshot_give(r.x, n[1]);
    eng_prefix_release(r.x, &r.c[0], 0);
    eng_prefix_stats(r.x, &st);
    ck_assert(st.snapshots == 2 && st.evictions == 1);
    ck_assert_uint_eq(start(&r, 3, 150), 48);
    eng_prefix_release(r.x, &r.c[3], 3);
    text(&r, 2, 0, 9000);                                   /* takes all pages: snapshots go with theirs */
    start(&r, 2, CTX);
    ck_assert_int_eq(grow(&r, 2, CTX), ERR_OK);
    eng_prefix_stats(r.x, &st);
    ck_assert_uint_eq(st.snapshots, 0);
    for (uint32_t i = 0; i < SNAPSHOTS; i++)
        ck_assert_uint_ne(eng_prefix_snapshot_take(r.x), ENG_NO_SNAPSHOT);
    eng_prefix_release(r.x, &r.c[2], 2);
    close_rig(&r);
}
END_TEST

START_TEST(errors)
{
    struct rig r = {0};
    struct eng_kv_config c = {.type = KRN_F32, .page_tokens = PAGE, .slots = SLOTS, .ctx = CTX, .chunk = CHUNK, .bytes_max = 1 << 24};
    struct eng_recurrent state = {.state = "s"};
    struct eng_plan with_state = {.kv = groups, .n_kv = 1, .recurrent = &state, .n_recurrent = 1}, none = {0};
    ck_assert(eng_prefix_possible(&plans[0], 0) && !eng_prefix_possible(&with_state, 0) && eng_prefix_possible(&with_state, 1) && !eng_prefix_possible(&none, 1));
    ck_assert_uint_eq(eng_prefix_bytes(&with_state, &c, 0), 0);
    ck_assert_uint_gt(eng_prefix_bytes(&with_state, &c, 5), eng_prefix_bytes(&plans[0], &c, 0));
    if (!alloc_fail_works()) {
        puts("SKIP prefix: allocations are not made to fail under a sanitizer");
        return;
    }
    OK(eng_kv_open(&r.kv, &plans[1], &c, &e));
    bool failed = true;
    for (unsigned long n = 0; failed; n++) {
        alloc_fail_at(n);
        int rc = eng_prefix_open(&r.x, &plans[1], r.kv, &scope, SLOTS, SNAPSHOTS, &e);
        failed = alloc_fail_end();
        ck_assert_int_eq(rc, failed ? ERR_NOMEM : ERR_OK);
        ck_assert((r.x == NULL) == failed);
    }
    close_rig(&r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/prefix");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, core, 0, 3);
    tcase_add_loop_test(t, join, 0, 3);
    tcase_add_test(t, limits);
    tcase_add_loop_test(t, tenants, 0, 3);
    tcase_add_test(t, snapshots);
    tcase_add_loop_test(t, any, 0, 12);
    tcase_add_test(t, errors);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
