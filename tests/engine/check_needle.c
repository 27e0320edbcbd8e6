/* engine/needle: a number lies where it was asked for, whole and once; only that number is an answer. */
#include "engine/needle.h"
#include "tests/support/suite.h"

static const char text[] = "One went up. Two came down! Three, who had been late, stayed; did four mind? Nobody knows it.";

/* Where the number's sentence begins in the text between the first and the last paragraph; *hay: bytes of that text without it. */
static size_t needle_at(const char *t, size_t n, size_t want, uint32_t depth, uint32_t number, size_t *hay)
{
    struct buf b;
    char words[64];
    buf_init(&b, 1u << 20);
    ck_assert(eng_needle_message(&b, t, n, want, depth, number));
    int k = snprintf(words, sizeof words, "The magic number is %u. ", number);
    const char *from = strstr(b.data, "\n\n"), *at = strstr(b.data, words), *end = strstr(b.data, "\n\nWhat is the magic number");
    ck_assert_msg(from && at && end && at > from && at < end && !strstr(at + 1, words), "%s", b.data);
    *hay = (size_t)(end - from) - 2 - (size_t)k;
    size_t where = (size_t)(at - from) - 2;
    for (size_t i = 0; i < where && i < n; i++) /* the text as it is in front of it */
        ck_assert_int_eq(from[2 + i], t[i]);
    buf_free(&b);
    return where;
}

START_TEST(places)
{
    size_t hay, n = strlen(text);
    ck_assert_uint_eq(needle_at(text, n, n, 0, 12345, &hay), 0);
    ck_assert_uint_eq(needle_at(text, n, 60, 60, 12345, &hay), strlen("One went up. Two came down! "));
    ck_assert_uint_eq(hay, strlen("One went up. Two came down! Three, who had been late, "));
    ck_assert_uint_eq(needle_at(text, n, 90, 25, 12345, &hay), strlen("One went up. "));
    ck_assert_uint_eq(needle_at(text, n, 90, 100, 12345, &hay), hay);
    ck_assert_uint_eq(needle_at(text, n, 0, 50, 12345, &hay), 0);
    for (uint32_t depth = 0; depth <= 100; depth += 10) { /* ten times around: within a sentence of where it should be */
        size_t at = needle_at(text, n, 10 * n, depth, 54321, &hay);
        ck_assert_uint_gt(hay, 9 * n);
        ck_assert_uint_le(hay, 10 * n);
        ck_assert_uint_le(at, hay * depth / 100);
        ck_assert_uint_gt(at + n, hay * depth / 100);
    }
}
END_TEST

/* Without blanks there are still whole characters. */
START_TEST(characters)
{
    char wide[300];
    for (size_t i = 0; i < sizeof wide; i += 3)
        memcpy(wide + i, "\xe8\xaf\x8d", 3);
    for (size_t want = 100; want < 110; want++) {
        struct buf b;
        size_t where = 0;
        buf_init(&b, 1u << 20);
        ck_assert(eng_needle_message(&b, wide, sizeof wide, want, 50, 12345));
        const char *from = strstr(b.data, "\n\n") + 2, *at = strstr(b.data, " The magic number is 12345. "), *end = strstr(b.data, "\n\nWhat");
        ck_assert(at != NULL && end != NULL);
        where = (size_t)(at - from);
        ck_assert(where % 3 == 0 && where > 40 && (size_t)(end - at - 28) % 3 == 0);
        buf_free(&b);
    }
}
END_TEST

START_TEST(numbers)
{
    char all[128];
    uint32_t first = eng_needle_number("", 0, 1024, 50);
    ck_assert(first >= 10000 && first < 100000);
    ck_assert_uint_eq(eng_needle_number(text, strlen(text), 1024, 50), first);
    ck_assert_uint_ne(eng_needle_number("", 0, 1024, 51), first);
    ck_assert_uint_ne(eng_needle_number("", 0, 1025, 50), first);
    int n = snprintf(all, sizeof all, "it was 7%u9 then", first);
    ck_assert_uint_ne(eng_needle_number(all, (size_t)n, 1024, 50), first);
}
END_TEST

START_TEST(answers)
{
    static const struct { const char *said; bool found; } l[] = {
        {"12345", true}, {"It is 12,345.", true}, {"**12345**", true}, {"1 or 12345", true}, {"012345", true}, {"in 1999, 12345", true},
        {"", false}, {"123456", false}, {"112345", false}, {"1234", false}, {"12345,678", false}, {"12 345", false}, {"100000000000000000000000012345", false}, {"54321", false},
    };
    for (size_t i = 0; i < sizeof l / sizeof *l; i++)
        ck_assert_msg(eng_needle_found(l[i].said, strlen(l[i].said), 12345) == l[i].found, "%s", l[i].said);
}
END_TEST

SUITE("engine", "needle", places, characters, numbers, answers)
