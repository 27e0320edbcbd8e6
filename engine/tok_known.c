/* engine/tok_known.c - the texts of published split patterns, under the names that GGUF files and Kimi's class use for them. */
#include <string.h>

#include "engine/tok_internal.h"

#define QUOTES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define NOT_HAN(x) "[" x "&&[^\\p{Han}]]"
#define K_CASED NOT_HAN("\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}")
#define K_SMALL NOT_HAN("\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}")

static const char llama3[] = QUOTES "|" LEAD "\\p{L}+|\\p{N}{1,3}|" REST;
static const char qwen2[] = QUOTES "|" LEAD "\\p{L}+|\\p{N}|" REST;
static const char qwen35[] = QUOTES "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char o200k[] = LEAD CASED "*" SMALL "+" QUOTES "?|" LEAD CASED "+" SMALL "*" QUOTES "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char tekken[] = LEAD CASED "*" SMALL "+|" LEAD CASED "+" SMALL "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char kimi[] = "[\\p{Han}]+|" LEAD K_CASED "*" K_SMALL "+" QUOTES "?|" LEAD K_CASED "+" K_SMALL "*" QUOTES "?|\\p{N}{1,3}|" REST;
static const char digits3[] = "\\p{N}{1,3}", digit[] = "\\p{N}";
static const char cjk[] = "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+";
static const char deepseek3[] = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                                "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *const known[] = {
    [TOK_RE_GPT2] = gpt2, [TOK_RE_LLAMA3] = llama3, [TOK_RE_QWEN2] = qwen2, [TOK_RE_QWEN35] = qwen35, [TOK_RE_O200K] = o200k, [TOK_RE_TEKKEN] = tekken,
    [TOK_RE_KIMI] = kimi, [TOK_RE_DEEPSEEK] = deepseek3, [TOK_RE_DIGITS3] = digits3, [TOK_RE_DIGIT] = digit, [TOK_RE_CJK] = cjk};

const char *tok_known_pattern(enum tok_known k)
{
    return known[k];
}

/* One text with CR and LF written as they are or as escapes. */
static bool same(const char *p, size_t n, const char *want)
{
    size_t i = 0;
    for (; i < n && *want; i++, want++) {
        if (*want == '\\' && (want[1] == 'r' || want[1] == 'n') && p[i] == (want[1] == 'r' ? '\r' : '\n'))
            want++;
        else if (p[i] != *want)
            return false;
    }
    return i == n && !*want;
}

/* All of these take letters in one go, a space in front of them included, whether they tell cases apart or not, and no alternative in front
 * takes less. Contractions are left to the expression. */
bool tok_known_words(const char *pattern, size_t n)
{
    for (int k = TOK_RE_GPT2; k <= TOK_RE_DEEPSEEK; k++)
        if (same(pattern, n, known[k]))
            return true;
    return false;
}
