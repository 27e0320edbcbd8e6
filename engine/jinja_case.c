/* engine/jinja_case.c - upper, lower and title case with Unicode's full mappings, as Python's str methods.
 *
 * utf8proc maps one code point to one; the characters that become several (sharp s, ligatures, Greek with iota) are in a table made
 * from Unicode's SpecialCasing, unconditional rows. Capital sigma at the end of a word is the one rule that looks at its neighbours. */
#include "engine/jinja_internal.h"

#include <string.h>

#include <utf8proc.h>

static const struct wide { uint16_t from, upper[3], title[3]; } wide[] = {
    {0x00DF, {0x0053, 0x0053}, {0x0053, 0x0073}}, {0x0149, {0x02BC, 0x004E}, {0x02BC, 0x004E}}, {0x01F0, {0x004A, 0x030C}, {0x004A, 0x030C}},
    {0x0390, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}}, {0x03B0, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x0587, {0x0535, 0x0552}, {0x0535, 0x0582}}, {0x1E96, {0x0048, 0x0331}, {0x0048, 0x0331}}, {0x1E97, {0x0054, 0x0308}, {0x0054, 0x0308}},
    {0x1E98, {0x0057, 0x030A}, {0x0057, 0x030A}}, {0x1E99, {0x0059, 0x030A}, {0x0059, 0x030A}}, {0x1E9A, {0x0041, 0x02BE}, {0x0041, 0x02BE}},
    {0x1F50, {0x03A5, 0x0313}, {0x03A5, 0x0313}}, {0x1F52, {0x03A5, 0x0313, 0x0300}, {0x03A5, 0x0313, 0x0300}},
    {0x1F54, {0x03A5, 0x0313, 0x0301}, {0x03A5, 0x0313, 0x0301}}, {0x1F56, {0x03A5, 0x0313, 0x0342}, {0x03A5, 0x0313, 0x0342}},
    {0x1FB2, {0x1FBA, 0x0399}, {0x1FBA, 0x0345}}, {0x1FB3, {0x0391, 0x0399}, {0x1FBC}}, {0x1FB4, {0x0386, 0x0399}, {0x0386, 0x0345}},
    {0x1FB6, {0x0391, 0x0342}, {0x0391, 0x0342}}, {0x1FB7, {0x0391, 0x0342, 0x0399}, {0x0391, 0x0342, 0x0345}}, {0x1FBC, {0x0391, 0x0399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x0399}, {0x1FCA, 0x0345}}, {0x1FC3, {0x0397, 0x0399}, {0x1FCC}}, {0x1FC4, {0x0389, 0x0399}, {0x0389, 0x0345}},
    {0x1FC6, {0x0397, 0x0342}, {0x0397, 0x0342}}, {0x1FC7, {0x0397, 0x0342, 0x0399}, {0x0397, 0x0342, 0x0345}}, {0x1FCC, {0x0397, 0x0399}, {0x1FCC}},
    {0x1FD2, {0x0399, 0x0308, 0x0300}, {0x0399, 0x0308, 0x0300}}, {0x1FD3, {0x0399, 0x0308, 0x0301}, {0x0399, 0x0308, 0x0301}},
    {0x1FD6, {0x0399, 0x0342}, {0x0399, 0x0342}}, {0x1FD7, {0x0399, 0x0308, 0x0342}, {0x0399, 0x0308, 0x0342}},
    {0x1FE2, {0x03A5, 0x0308, 0x0300}, {0x03A5, 0x0308, 0x0300}}, {0x1FE3, {0x03A5, 0x0308, 0x0301}, {0x03A5, 0x0308, 0x0301}},
    {0x1FE4, {0x03A1, 0x0313}, {0x03A1, 0x0313}}, {0x1FE6, {0x03A5, 0x0342}, {0x03A5, 0x0342}},
    {0x1FE7, {0x03A5, 0x0308, 0x0342}, {0x03A5, 0x0308, 0x0342}}, {0x1FF2, {0x1FFA, 0x0399}, {0x1FFA, 0x0345}}, {0x1FF3, {0x03A9, 0x0399}, {0x1FFC}},
    {0x1FF4, {0x038F, 0x0399}, {0x038F, 0x0345}}, {0x1FF6, {0x03A9, 0x0342}, {0x03A9, 0x0342}},
    {0x1FF7, {0x03A9, 0x0342, 0x0399}, {0x03A9, 0x0342, 0x0345}}, {0x1FFC, {0x03A9, 0x0399}, {0x1FFC}}, {0xFB00, {0x0046, 0x0046}, {0x0046, 0x0066}},
    {0xFB01, {0x0046, 0x0049}, {0x0046, 0x0069}}, {0xFB02, {0x0046, 0x004C}, {0x0046, 0x006C}},
    {0xFB03, {0x0046, 0x0046, 0x0049}, {0x0046, 0x0066, 0x0069}}, {0xFB04, {0x0046, 0x0046, 0x004C}, {0x0046, 0x0066, 0x006C}},
    {0xFB05, {0x0053, 0x0054}, {0x0053, 0x0074}}, {0xFB06, {0x0053, 0x0054}, {0x0053, 0x0074}}, {0xFB13, {0x0544, 0x0546}, {0x0544, 0x0576}},
    {0xFB14, {0x0544, 0x0535}, {0x0544, 0x0565}}, {0xFB15, {0x0544, 0x053B}, {0x0544, 0x056B}}, {0xFB16, {0x054E, 0x0546}, {0x054E, 0x0576}},
    {0xFB17, {0x0544, 0x053D}, {0x0544, 0x056D}},
};

static size_t copy_wide(const uint16_t *from, int32_t *to)
{
    size_t n = 0;
    while (n < 3 && from[n]) {
        to[n] = from[n];
        n++;
    }
    return n;
}

/* Upper or title case of one code point: 1 to 3 of them. */
static size_t raise_case(int32_t c, bool title, int32_t *to)
{
    if (c >= 0x1F80 && c <= 0x1FAF) { /* Greek with iota below: capital and capital iota, or the one titlecase character */
        int32_t base = c < 0x1F90 ? 0x1F08 : c < 0x1FA0 ? 0x1F28 : 0x1F68;
        to[0] = title ? c | 8 : base + (c & 7);
        to[1] = 0x0399;
        return title ? 1 : 2;
    }
    for (size_t i = 0; c >= 0xDF && c <= 0xFB17 && i < sizeof wide / sizeof *wide; i++)
        if (wide[i].from == c)
            return copy_wide(title ? wide[i].title : wide[i].upper, to);
    to[0] = title ? utf8proc_totitle(c) : utf8proc_toupper(c);
    return 1;
}

static bool is_cased(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT || utf8proc_toupper(c) != c || utf8proc_tolower(c) != c;
}

/* Marks, apostrophes and the like, which the search for a word's end passes over. */
static bool is_ignored(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK ||
           c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019 || c == 0x2024 || c == 0x2027;
}

/* A capital sigma at byte i: final when a cased letter stands before it and none after it. */
static bool final_sigma(const struct jstr *s, size_t i)
{
    enum { REACH = 64 }; /* code points looked at on either side: words are shorter */
    size_t at = i, len;
    bool before = false;
    for (int k = 0; at > 0 && k < REACH; k++) {
        do
            at--;
        while (at > 0 && ((unsigned char)s->s[at] & 0xC0) == 0x80);
        int32_t c = j_cp_at(s->s + at, s->n - at, &len);
        if (!is_ignored(c)) {
            before = is_cased(c);
            break;
        }
    }
    at = i + j_cp_len(s->s + i, s->n - i);
    for (int k = 0; before && at < s->n && k < REACH; k++, at += len) {
        int32_t c = j_cp_at(s->s + at, s->n - at, &len);
        if (!is_ignored(c))
            return !is_cased(c);
    }
    return before;
}

static size_t lower_case(const struct jstr *s, size_t i, int32_t c, int32_t *to)
{
    if (c == 0x130) { /* capital I with a dot keeps its dot */
        to[0] = 'i';
        to[1] = 0x307;
        return 2;
    }
    to[0] = c == 0x3A3 ? (final_sigma(s, i) ? 0x3C2 : 0x3C3) : utf8proc_tolower(c);
    return 1;
}

bool j_case(struct jrun *r, const struct jstr *s, enum j_case how, jv *out)
{
    struct jout o = {0};
    bool trusted = j_all_trusted(s), first = true, word = false;
    char utf8[16];
    if (!j_charge(r, s->n / 16))
        return false;
    for (size_t i = 0, len; i < s->n; i += len, first = false) {
        int32_t c = j_cp_at(s->s + i, s->n - i, &len), to[3];
        size_t n = 0, bytes = 0;
        bool up = how == CASE_UPPER || (how == CASE_CAPITALIZE && first) || (how == CASE_TITLE && !word) ||
                  (how == CASE_SWAP && utf8proc_category(c) == UTF8PROC_CATEGORY_LL);
        word = is_cased(c);
        if (up)
            n = raise_case(c, how == CASE_TITLE || how == CASE_CAPITALIZE, to);
        else
            n = lower_case(s, i, c, to);
        for (size_t k = 0; k < n; k++)
            bytes += j_cp_put(utf8 + bytes, to[k]);
        if (!j_put(r, &o, utf8, bytes, trusted))
            return false;
    }
    if (!j_taken(r, &o, out))
        return false;
    out->u.s->safe = s->safe;
    return true;
}
