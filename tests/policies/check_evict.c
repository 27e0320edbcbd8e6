/* policies/evict: tables of pages and who leaves. */
#include "policies/evict.h"
#include "tests/support/suite.h"

static const struct {
    const char *what;
    bool windowed;
    size_t n, want;
    struct pol_page p[4];
} cases[] = {
    {"nothing there", false, 0, SIZE_MAX, {{0}}},
    {"free pages and those of one sequence are not the index's", false, 2, SIZE_MAX, {{.leases = 0}, {.leases = 1}}},
    {"the least recently used", false, 3, 1, {{true, 0, 0, 0, 7, 0, 0}, {true, 0, 0, 0, 3, 0, 0}, {true, 0, 0, 0, 5, 0, 0}}},
    {"a held page stays", false, 2, 1, {{true, 1, 0, 0, 1, 0, 0}, {true, 0, 0, 0, 9, 0, 0}}},
    {"a page that others continue stays, however old", false, 3, 2, {{true, 0, 1, 0, 1, 0, 0}, {true, 0, 2, 1, 1, 0, 0}, {true, 0, 0, 2, 8, 0, 0}}},
    {"equally old: the deeper", false, 3, 1, {{true, 0, 0, 2, 4, 0, 0}, {true, 0, 0, 9, 4, 0, 0}, {true, 0, 0, 3, 4, 0, 0}}},
    {"equal in all: the first", false, 2, 0, {{true, 0, 0, 2, 4, 0, 0}, {true, 0, 0, 2, 4, 0, 0}}},
    {"all are held or continued", false, 2, SIZE_MAX, {{true, 1, 0, 1, 0, 0, 0}, {true, 0, 1, 0, 0, 0, 0}}},
    {"window: children do not count", true, 2, 0, {{true, 0, 1, 0, 1, 0, 0}, {true, 0, 0, 1, 2, 0, 0}}},
    {"window: equally old: the shallower", true, 3, 2, {{true, 0, 1, 5, 4, 0, 0}, {true, 0, 1, 6, 4, 0, 0}, {true, 0, 1, 3, 4, 0, 0}}},
    {"window: a held page stays", true, 2, 1, {{true, 2, 0, 0, 1, 0, 0}, {true, 0, 0, 1, 2, 0, 0}}},
    {"who has more than its share, though its page is the newer", false, 4, 3, {{true, 0, 0, 0, 1, 0, 7}, {true, 1, 0, 0, 5, 0, 3}, {true, 1, 0, 0, 6, 0, 3}, {true, 0, 0, 0, 9, 0, 3}}},
    {"equal shares: nobody has more: the least recently used", false, 4, 1, {{true, 0, 0, 0, 6, 0, 7}, {true, 0, 0, 0, 5, 0, 7}, {true, 0, 0, 0, 7, 0, 3}, {true, 0, 0, 0, 9, 0, 3}}},
    {"who has more can give none: the other does", false, 4, 0, {{true, 0, 0, 0, 4, 0, 7}, {true, 1, 0, 0, 1, 0, 3}, {true, 1, 0, 0, 1, 0, 3}, {true, 0, 1, 0, 1, 0, 3}}},
    {"a share that nobody has asked for in a long while", false, 4, 0,
     {{true, 0, 0, 0, 4, 4 * POL_EVICT_IDLE + 1, 7}, {true, 0, 0, 0, 5, 0, 3}, {true, 0, 0, 0, 6, 0, 3}, {true, 0, 0, 0, 7, 0, 3}}},
    {"in a while, but not a long one", false, 4, 1,
     {{true, 0, 0, 0, 4, 4 * POL_EVICT_IDLE, 7}, {true, 0, 0, 0, 5, 0, 3}, {true, 0, 0, 0, 6, 0, 3}, {true, 0, 0, 0, 7, 0, 3}}},
    {"window: shares as well", true, 4, 2, {{true, 0, 1, 0, 1, 0, 7}, {true, 1, 1, 0, 5, 0, 3}, {true, 0, 1, 1, 6, 0, 3}, {true, 0, 0, 2, 9, 0, 3}}},
};

START_TEST(core)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t got = pol_evict(cases[i].p, cases[i].n, cases[i].windowed);
        ck_assert_msg(got == cases[i].want, "%s: page %zu", cases[i].what, got);
    }
}
END_TEST

/* Any tree, taken apart page by page: never a page before one that continues it, and in the end nothing is left. */
START_TEST(limits)
{
    enum { PAGES = 40 };
    srand(3);
    for (int round = 0; round < 200; round++) {
        struct pol_page p[PAGES] = {{0}};
        int parent[PAGES];
        for (int i = 0; i < PAGES; i++) {
            parent[i] = i ? rand() % (i + 1) - 1 : -1;
            p[i] = (struct pol_page){.cached = true, .depth = parent[i] < 0 ? 0 : p[parent[i]].depth + 1, .used_at = (uint64_t)(rand() % 5)};
            if (parent[i] >= 0)
                p[parent[i]].children++;
        }
        for (int left = PAGES; left; left--) {
            size_t k = pol_evict(p, PAGES, false);
            ck_assert(k < PAGES && p[k].cached && !p[k].children);
            p[k].cached = false;
            if (parent[k] >= 0)
                p[parent[k]].children--;
        }
        ck_assert(pol_evict(p, PAGES, false) == SIZE_MAX);
    }
}
END_TEST

/* A pool of N pages, tenants that fill it and ask again for what they had: chains of pages, the newest use last.
 *   - whoever stays within its share and comes back in time finds everything, whatever the others send;
 *   - a page that has to leave can always be had; what the others leave is used; alone, a tenant has the whole pool;
 *   - a newcomer gets its share from those that have more; a tenant that stays away for long loses its own. */
enum { N = 60 };
struct pool { struct pol_page p[N]; int parent[N]; uint64_t clock, lost[POL_EVICT_TENANTS]; };

static uint32_t count_of(const struct pool *x, uint16_t tenant)
{
    uint32_t n = 0;
    for (int i = 0; i < N; i++)
        n += x->p[i].cached && x->p[i].tenant == tenant;
    return n;
}
static void use(struct pool *x, uint16_t tenant)
{
    x->clock++;
    for (int i = 0; i < N; i++)
        if (x->p[i].cached && x->p[i].tenant == tenant) {
            x->p[i].used_at = x->clock;
            x->p[i].since = 0;
        }
}
/* n pages, each continuing the one before. */
static void fill(struct pool *x, uint16_t tenant, uint32_t n, bool windowed)
{
    int before = -1;
    for (uint32_t d = 0; d < n; d++) {
        int at = 0;
        while (at < N && x->p[at].cached)
            at++;
        if (at == N) {
            size_t k = pol_evict(x->p, N, windowed);
            ck_assert(k < N && x->p[k].cached && !x->p[k].leases && (windowed || !x->p[k].children));
            at = (int)k;
            x->lost[x->p[at].tenant]++;
            if (x->parent[at] >= 0)
                x->p[x->parent[at]].children--;
            for (int i = 0; i < N; i++)
                if (x->p[i].cached && x->parent[i] == at)
                    x->parent[i] = -1;
        }
        if (before >= 0)
            x->p[before].leases = 0;
        x->p[at] = (struct pol_page){.cached = true, .tenant = tenant, .leases = 1, .depth = d, .used_at = ++x->clock};
        x->parent[at] = before;
        if (before >= 0)
            x->p[before].children++;
        before = at;
        for (int i = 0; i < N; i++)
            x->p[i].since += x->p[i].cached && i != at;
    }
    if (before >= 0)
        x->p[before].leases = 0;
}

START_TEST(shares)
{
    enum { TENANTS = 5 };
    static struct pool x;
    bool windowed = _i % 2;
    srand((unsigned)_i);
    x = (struct pool){0};
    for (int round = 0; round < 3; round++)
        fill(&x, 9, N, windowed); /* alone: all of it */
    ck_assert_uint_eq(count_of(&x, 9), N);
    x = (struct pool){0};
    for (uint16_t t = 0; t < TENANTS - 1; t++) /* modest ones: 3, 6, 9, 12 of their 12 */
        fill(&x, t, 3u * (t + 1u), windowed);
    for (int round = 0; round < 200; round++) {
        fill(&x, TENANTS - 1, 1 + (uint32_t)rand() % (N - 30), windowed); /* a flood of ever new prompts */
        use(&x, (uint16_t)(round % (TENANTS - 1)));
    }
    for (uint16_t t = 0; t < TENANTS - 1; t++) {
        ck_assert_uint_eq(x.lost[t], 0);
        ck_assert_uint_eq(count_of(&x, t), 3u * (t + 1u));
    }
    ck_assert_uint_eq(count_of(&x, TENANTS - 1), N - 30); /* and what the modest ones leave is not idle */
    ck_assert_uint_gt(x.lost[TENANTS - 1], 100);
    fill(&x, 8, N / 6, windowed);                         /* a sixth one comes: it gets its share */
    ck_assert_uint_eq(count_of(&x, 8), N / 6);
    for (uint16_t t = 0; t < 3; t++) /* and of the others only those lose that have more than a sixth */
        ck_assert_uint_eq(x.lost[t], 0);
    for (uint16_t t = 0; t < 3; t++)
        use(&x, t);
    for (int round = 0; round < 6 * POL_EVICT_IDLE - 6; round++)
        fill(&x, 8, N / 6, windowed);                     /* all others stay away: not for long enough */
    ck_assert(count_of(&x, 0) == 3 && count_of(&x, 1) == 6 && count_of(&x, 2) == 9 && x.lost[8] > 0);
    for (int round = 0; round < 18; round++)
        fill(&x, 8, N / 6, windowed);                     /* now they count as gone */
    ck_assert_uint_eq(count_of(&x, 8), N);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("policies/evict");
    TCase *t = tcase_create("core");
    tcase_add_test(t, core);
    tcase_add_test(t, limits);
    tcase_add_loop_test(t, shares, 0, 8);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
