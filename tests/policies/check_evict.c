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
    {"the least recently used", false, 3, 1, {{true, 0, 0, 0, 7}, {true, 0, 0, 0, 3}, {true, 0, 0, 0, 5}}},
    {"a held page stays", false, 2, 1, {{true, 1, 0, 0, 1}, {true, 0, 0, 0, 9}}},
    {"a page that others continue stays, however old", false, 3, 2, {{true, 0, 1, 0, 1}, {true, 0, 2, 1, 1}, {true, 0, 0, 2, 8}}},
    {"equally old: the deeper", false, 3, 1, {{true, 0, 0, 2, 4}, {true, 0, 0, 9, 4}, {true, 0, 0, 3, 4}}},
    {"equal in all: the first", false, 2, 0, {{true, 0, 0, 2, 4}, {true, 0, 0, 2, 4}}},
    {"all are held or continued", false, 2, SIZE_MAX, {{true, 1, 0, 1, 0}, {true, 0, 1, 0, 0}}},
    {"window: children do not count", true, 2, 0, {{true, 0, 1, 0, 1}, {true, 0, 0, 1, 2}}},
    {"window: equally old: the shallower", true, 3, 2, {{true, 0, 1, 5, 4}, {true, 0, 1, 6, 4}, {true, 0, 1, 3, 4}}},
    {"window: a held page stays", true, 2, 1, {{true, 2, 0, 0, 1}, {true, 0, 0, 1, 2}}},
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
    enum { N = 40 };
    srand(3);
    for (int round = 0; round < 200; round++) {
        struct pol_page p[N] = {{0}};
        int parent[N];
        for (int i = 0; i < N; i++) {
            parent[i] = i ? rand() % (i + 1) - 1 : -1;
            p[i] = (struct pol_page){.cached = true, .depth = parent[i] < 0 ? 0 : p[parent[i]].depth + 1, .used_at = (uint64_t)(rand() % 5)};
            if (parent[i] >= 0)
                p[parent[i]].children++;
        }
        for (int left = N; left; left--) {
            size_t k = pol_evict(p, N, false);
            ck_assert(k < N && p[k].cached && !p[k].children);
            p[k].cached = false;
            if (parent[k] >= 0)
                p[parent[k]].children--;
        }
        ck_assert(pol_evict(p, N, false) == SIZE_MAX);
    }
}
END_TEST

SUITE("policies", "evict", core, limits)
