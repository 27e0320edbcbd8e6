/* engine/stops: what may leave, what is held, where it ends. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stops.h"

static const struct { const char *stops[3]; const char *pending; bool over; size_t ready; } cases[] = {
    {{0}, "hello", false, 5},
    {{"STOP"}, "hello", false, 5},
    {{"STOP"}, "hello ST", false, 6},
    {{"STOP"}, "hello STOP and more", true, 6},
    {{"STOP"}, "STOP", true, 0},
    {{"STOP"}, "STO", false, 0},
    {{"\n\n", "END"}, "a\nEN", false, 2},
    {{"\n\n", "END"}, "a\n", false, 1},
    {{"b", "abc"}, "xxabc", true, 2},     /* both complete: the earlier start wins */
    {{"abc", "b"}, "xxab", true, 3},    /* "abc" never completed, "b" did */
    {{"aab"}, "aaab", true, 1},
    {{"aab"}, "aaa", false, 1},
    {{"\xC3\xA9"}, "caf\xC3", false, 3},
    {{"\xC3\xA9"}, "caf\xC3\xA9!", true, 3},
    {{"x"}, "", false, 0},
};

static struct eng_stops make(const char *const *t)
{
    struct eng_stops s = {0};
    for (; s.n < 3 && t[s.n]; s.n++) {
        s.len[s.n] = (uint32_t)strlen(t[s.n]);
        memcpy(s.text[s.n], t[s.n], s.len[s.n]);
    }
    return s;
}

START_TEST(core)
{
    struct eng_stops s = make(cases[_i].stops);
    size_t ready = 99;
    uint32_t which = 99;
    bool over = eng_stops_scan(&s, cases[_i].pending, strlen(cases[_i].pending), &ready, &which);
    ck_assert(!over || (which < s.n && !memcmp(cases[_i].pending + ready, s.text[which], s.len[which])));
    ck_assert_msg(over == cases[_i].over && ready == cases[_i].ready, "case %d: over %d ready %zu", _i, over, ready);
}
END_TEST

/* Fed in random pieces, the emitted text is the same as scanned whole, up to the first stop. */
START_TEST(pieces)
{
    static const char *const stops[] = {"aba", "bb"};
    struct eng_stops s = make((const char *const[3]){stops[0], stops[1], NULL});
    srand(3);
    for (int round = 0; round < 20000; round++) {
        char text[33] = {0}, out[64] = {0}, pend[64] = {0};
        size_t n_out = 0, n_pend = 0;
        for (int i = 0; i < 32; i++)
            text[i] = (char)('a' + (rand() % 5 ? 2 * (rand() % 2) : 1));
        const char *a = strstr(text, stops[0]), *b = strstr(text, stops[1]);
        bool over = false;
        for (size_t at = 0; at < 32 && !over;) {
            size_t k = 1; /* byte by byte decides at the first completed stop */
            memcpy(pend + n_pend, text + at, k);
            n_pend += k;
            at += k;
            size_t ready;
            uint32_t which;
            over = eng_stops_scan(&s, pend, n_pend, &ready, &which);
            memcpy(out + n_out, pend, ready);
            n_out += ready;
            n_pend -= ready;
            memmove(pend, pend + ready, n_pend);
        }
        const char *a_end = a ? a + 3 : text + 99, *b_end = b ? b + 2 : text + 99;
        if (!a && !b) {
            ck_assert(!over && n_out + n_pend == 32);
            continue;
        }
        ck_assert(over);
        const char *first = a_end < b_end ? a : a_end > b_end ? b : (a < b ? a : b);
        ck_assert_uint_eq(n_out, (size_t)(first - text));
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stops");
    TCase *t = tcase_create("core");
    tcase_add_loop_test(t, core, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, pieces);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
