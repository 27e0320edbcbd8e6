#include "engine/needle.h"

#include <stdio.h>
#include <string.h>

enum { SENTENCE_MAX = 400, WORD_MAX = 64, LEAST = 10000, NUMBERS = 90000 };

const char eng_needle_filler[] = "The grass is green. The sky is blue. The sun is yellow. Rivers run down to the sea, and the wind drives the clouds back over the hills. Here we go. "
                                 "There and back again. Somebody left the gate open, so the goats went to look at the village. Nobody minded. In the evening they came home by themselves.\n";

static bool space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static bool digit(char c) { return c >= '0' && c <= '9'; }

/* The last place at or before `at` where a word ends or, without one near, a character. */
static size_t word(const char *s, size_t at)
{
    size_t near = at > WORD_MAX ? at - WORD_MAX : 0;
    for (size_t i = at; i > near; i--)
        if (space(s[i - 1]))
            return i;
    while (at && ((unsigned char)s[at] & 0xC0) == 0x80)
        at--;
    return at;
}

/* The same of a sentence, or of a word. */
static size_t sentence(const char *s, size_t at)
{
    size_t near = at > SENTENCE_MAX ? at - SENTENCE_MAX : 0;
    for (size_t i = at; i > near + 1; i--)
        if (space(s[i - 1]) && strchr(".!?", s[i - 2]))
            return i;
    return word(s, at);
}

bool eng_needle_message(struct buf *b, const char *text, size_t n, size_t hay, uint32_t depth, uint32_t number)
{
    struct buf h;
    buf_init(&h, hay + 2 * n + 2);
    while (h.len <= hay && buf_add(&h, text, n) && buf_char(&h, '\n'))
        ;
    bool ok = h.len > hay;
    if (ok) {
        size_t end = word(h.data, hay), at = depth == 100 ? end : sentence(h.data, (size_t)((double)end * depth / 100));
        buf_str(b, "A magic number is hidden in the text below. Remember it: you will be asked for it.\n\n");
        buf_add(b, h.data, at);
        buf_printf(b, "%sThe magic number is %u. ", at && !space(h.data[at - 1]) ? " " : "", number);
        buf_add(b, h.data + at, end - at);
        buf_str(b, "\n\nWhat is the magic number in the text above? Answer with the number alone.");
        ok = !b->failed;
    }
    buf_free(&h);
    return ok;
}

uint32_t eng_needle_number(const char *text, size_t n, uint32_t length, uint32_t depth)
{
    uint64_t x = ((uint64_t)length << 32 | depth) + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    x ^= x >> 31;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        char digits[16];
        uint32_t number = LEAST + (uint32_t)((x + i) % NUMBERS);
        int k = snprintf(digits, sizeof digits, "%u", number);
        if (!memmem(text, n, digits, (size_t)k))
            return number;
    }
    return LEAST + (uint32_t)(x % NUMBERS); /* a text that has them all hides nothing */
}

bool eng_needle_found(const char *answer, size_t n, uint32_t number)
{
    uint64_t value = 0;
    size_t digits = 0;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && digit(answer[i])) {
            value = digits++ < 18 ? value * 10 + (uint64_t)(answer[i] - '0') : UINT64_MAX;
            continue;
        }
        if (i + 1 < n && digits && answer[i] == ',' && digit(answer[i + 1]))
            continue;
        if (digits && value == number)
            return true;
        value = digits = 0;
    }
    return false;
}
