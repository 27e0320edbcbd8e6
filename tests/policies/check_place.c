/* policies/place: tables, and what must hold for any model and budget. */
#include <check.h>
#include <stdlib.h>

#include "policies/place.h"

enum { N = 200 };
static bool keep[N];
static uint32_t scratch[N];

static uint64_t random_next(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

static const struct {
    const char *what;
    uint64_t budget;
    uint32_t n;
    struct pol_item items[8];
    bool fits, overlap;
    uint64_t floor, kept, streamed;
} cases[] = {
    {"all fits", 80, 8, {{10, 0}, {10, 1}, {10, 2}, {10, 3}, {10, 4}, {10, 5}, {10, 6}, {10, 7}}, true, false, 20, 80, 0},
    {"half", 60, 8, {{10, 0}, {10, 1}, {10, 2}, {10, 3}, {10, 4}, {10, 5}, {10, 6}, {10, 7}}, true, true, 20, 30, 50},
    {"a window and nothing more", 30, 8, {{10, 0}, {10, 1}, {10, 2}, {10, 3}, {10, 4}, {10, 5}, {10, 6}, {10, 7}}, true, true, 20, 0, 80},
    {"one segment at a time", 29, 8, {{10, 0}, {10, 1}, {10, 2}, {10, 3}, {10, 4}, {10, 5}, {10, 6}, {10, 7}}, true, false, 20, 0, 80},
    {"below the floor", 19, 8, {{10, 0}, {10, 1}, {10, 2}, {10, 3}, {10, 4}, {10, 5}, {10, 6}, {10, 7}}, false, false, 20, 0, 0},
    {"two items a segment", 50, 4, {{10, 0}, {15, 0}, {10, 1}, {15, 1}}, true, false, 40, 50, 0},
    {"two items a segment, less", 45, 4, {{10, 0}, {15, 0}, {10, 1}, {15, 1}}, true, false, 40, 0, 50},
    {"the floor is never above the model", 10, 1, {{10, 0}}, true, false, 10, 10, 0},
    {"nothing", 0, 0, {{0, 0}}, true, false, 0, 0, 0},
};

START_TEST(core)
{
    struct pol_place p;
    ck_assert_msg(pol_place(cases[_i].items, cases[_i].n, cases[_i].budget, keep, scratch, &p) == cases[_i].fits, "%s", cases[_i].what);
    ck_assert_msg(p.floor_bytes == cases[_i].floor, "%s: floor %llu", cases[_i].what, (unsigned long long)p.floor_bytes);
    if (!cases[_i].fits)
        return;
    ck_assert_msg(p.kept_bytes == cases[_i].kept, "%s: keeps %llu", cases[_i].what, (unsigned long long)p.kept_bytes);
    ck_assert_msg(p.streamed_bytes == cases[_i].streamed, "%s: streams %llu", cases[_i].what, (unsigned long long)p.streamed_bytes);
    ck_assert_msg(p.overlap == cases[_i].overlap, "%s", cases[_i].what);
}
END_TEST

/* Every budget from nothing to the whole of 60 random models: sums are right, the window holds two segments and the largest item, what
 * was kept stays kept, and the bytes of a sweep never rise. */
START_TEST(any)
{
    static struct pol_item items[N];
    static bool before[N];
    uint64_t seed = 7 + (uint64_t)_i;
    uint32_t n = 1 + (uint32_t)(random_next(&seed) % N), segment = 0;
    uint64_t total = 0, last = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        segment += i && random_next(&seed) % 3 == 0;
        items[i] = (struct pol_item){random_next(&seed) % (i % 5 == 0 ? 1000 : 100), segment};
        total += items[i].bytes;
        before[i] = false;
    }
    for (uint64_t budget = 0; budget <= total + 1 + total / 500; budget += 1 + total / 500) {
        struct pol_place p;
        if (!pol_place(items, n, budget, keep, scratch, &p)) {
            ck_assert_uint_lt(budget, p.floor_bytes);
            continue;
        }
        uint64_t kept = 0, seg = 0, most = 0, item = 0;
        uint32_t n_kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (i && items[i].segment != items[i - 1].segment)
                seg = 0;
            n_kept += keep[i];
            kept += keep[i] ? items[i].bytes : 0;
            seg += keep[i] ? 0 : items[i].bytes;
            most = seg > most ? seg : most;
            item = !keep[i] && items[i].bytes > item ? items[i].bytes : item;
            ck_assert_msg(keep[i] || !before[i], "item %u left at %llu", i, (unsigned long long)budget);
            before[i] = keep[i];
        }
        ck_assert_uint_eq(kept, p.kept_bytes);
        ck_assert_uint_eq(n_kept, p.n_kept);
        ck_assert_uint_eq(kept + p.streamed_bytes, total);
        ck_assert_uint_le(kept + p.window_bytes, budget);
        if (p.streamed_bytes)
            ck_assert_uint_le((p.overlap ? 2 : 1) * most + item, p.window_bytes);
        ck_assert_uint_le(p.streamed_bytes, last);
        last = p.streamed_bytes;
    }
    ck_assert_uint_eq(last, 0);
}
END_TEST

/* Kept items lie evenly: no stretch of a uniform sweep holds much more of them than its share. */
START_TEST(even)
{
    static struct pol_item items[N];
    struct pol_place p;
    for (uint32_t i = 0; i < N; i++)
        items[i] = (struct pol_item){100, i};
    ck_assert(pol_place(items, N, 100 * N / 2, keep, scratch, &p));
    for (uint32_t i = 0; i + 20 <= N; i++) {
        uint32_t in = 0;
        for (uint32_t k = 0; k < 20; k++)
            in += keep[i + k];
        ck_assert_uint_ge(in, 5);
        ck_assert_uint_le(in, 15);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("place");
    TCase *t = tcase_create("place");
    tcase_add_loop_test(t, core, 0, sizeof cases / sizeof *cases);
    tcase_add_loop_test(t, any, 0, 60);
    tcase_add_test(t, even);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
