/* engine/tok_pattern.c - split patterns: translated from the reference's dialect (Oniguruma) to PCRE2, compiled, applied.
 *
 * The two differ where no error would tell: PCRE2's \s takes U+180E, its \p{Han} means Script_Extensions, && in a class is two
 * ampersands. So a pattern is read token by token; what is not known to mean the same in both is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

enum { PATTERN_MAX = 16384, MATCH_LIMIT = 20000000, HEAP_LIMIT_KIB = 262144, JIT_STACK_MAX = 8 << 20 };
#define SPACES "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

struct reader { const char *p, *end; struct buf out; const char *why; };

static bool refuse(struct reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

/* \p{Name}: a general category means the same; anything else is taken for a script, by Script and not its extensions. */
static bool property(struct reader *r, bool in_class)
{
    static const char *const cats = " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cs Co Cn ";
    char kind = r->p[1], name[40], find[44];
    if (r->end - r->p < 4 || r->p[2] != '{')
        return refuse(r, "\\p without braces");
    const char *b = r->p + 3, *q = memchr(b, '}', (size_t)(r->end - b));
    if (!q || q == b || (size_t)(q - b) >= sizeof name)
        return refuse(r, "\\p with a long or empty name");
    memcpy(name, b, (size_t)(q - b));
    name[q - b] = 0;
    if (strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_") != (size_t)(q - b))
        return refuse(r, "\\p with an unusual name");
    snprintf(find, sizeof find, " %s ", name);
    bool category = strstr(cats, find) != NULL;
    r->p = q + 1;
    if (!category || kind == 'P')
        return buf_printf(&r->out, "\\%c{%s%s}", kind, category ? "" : "sc:", name);
    size_t start = r->out.len;
    buf_printf(&r->out, in_class ? "\\p{%s}" : "[\\p{%s}", name);
    if (!tok_unicode_ranges(name, &r->out) && !in_class) {
        r->out.len = start;
        return buf_printf(&r->out, "\\p{%s}", name);
    }
    return in_class || buf_char(&r->out, ']');
}

static bool hex(struct reader *r)
{
    unsigned v = 0;
    int used = 0;
    if (r->end - r->p < 6 || sscanf(r->p + 2, "%4x%n", &v, &used) != 1 || used != 4)
        return refuse(r, "\\u without four hex digits");
    buf_printf(&r->out, "\\x{%x}", v);
    r->p += 6;
    return true;
}

static bool escape(struct reader *r, bool in_class)
{
    if (r->end - r->p < 2)
        return refuse(r, "a backslash at the end");
    char c = r->p[1];
    switch (c) {
    case 'p': case 'P': return property(r, in_class);
    case 'u': return hex(r);
    case 's':
        buf_str(&r->out, in_class ? SPACES : "[" SPACES "]");
        break;
    case 'S':
        if (in_class)
            return refuse(r, "\\S in a class");
        buf_str(&r->out, "[^" SPACES "]");
        break;
    case 'd':
        buf_str(&r->out, "\\p{Nd}");
        break;
    case 'r': case 'n': case 't':
        buf_add(&r->out, r->p, 2);
        break;
    default:
        if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (uint8_t)c >= 0x80)
            return refuse(r, "an escape of another letter or digit");
        buf_add(&r->out, r->p, 2);
    }
    r->p += 2;
    return true;
}

/* r->p is behind '['; writes the class with its brackets. [A&&[^B]] becomes (?:(?![B])[A]). */
static bool class(struct reader *r, int depth)
{
    size_t start = r->out.len;
    buf_char(&r->out, '[');
    if (r->p < r->end && *r->p == '^')
        buf_char(&r->out, *r->p++);
    for (bool first = true; r->p < r->end; first = false) {
        if (*r->p == ']' && !first) {
            r->p++;
            return buf_char(&r->out, ']');
        }
        if (*r->p == '[')
            return refuse(r, "a class inside a class");
        if (r->end - r->p >= 4 && !memcmp(r->p, "&&[^", 4)) {
            if (depth || r->out.data[start + 1] == '^')
                return refuse(r, "an intersection of this form");
            size_t n = r->out.len - start;
            char *a = malloc(n);
            if (!a)
                return refuse(r, "memory");
            memcpy(a, r->out.data + start, n);
            r->out.len = start;
            r->p += 4;
            buf_str(&r->out, "(?:(?!");
            bool ok = class(r, depth + 1);     /* the ^ is behind us: the negation is the look-ahead's */
            buf_char(&r->out, ')');
            buf_add(&r->out, a, n);
            free(a);
            if (!ok || r->p == r->end || *r->p != ']')
                return refuse(r, "an intersection of this form");
            r->p++;
            return buf_str(&r->out, "])");
        }
        if (r->end - r->p >= 2 && !memcmp(r->p, "&&", 2))
            return refuse(r, "an intersection of this form");
        if (*r->p == '\\') {
            if (!escape(r, true))
                return false;
        } else
            buf_char(&r->out, *r->p++);
    }
    return refuse(r, "a class without end");
}

static bool group(struct reader *r)
{
    static const char *const known[] = {"(?:", "(?i:", "(?i)", "(?!", "(?=", "(?<!", "(?<=", "(?>"};
    if (r->end - r->p < 2 || r->p[1] != '?')
        return buf_char(&r->out, *r->p++);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i]);
        if ((size_t)(r->end - r->p) >= n && !memcmp(r->p, known[i], n)) {
            r->p += n;
            return buf_str(&r->out, known[i]);
        }
    }
    return refuse(r, "a group of this form");
}

static bool translate(struct reader *r)
{
    while (r->p < r->end) {
        bool ok = true;
        switch (*r->p) {
        case '\\': ok = escape(r, false); break;
        case '[':
            r->p++;
            ok = class(r, 0);
            break;
        case '(': ok = group(r); break;
        case '^': case '$': ok = refuse(r, "an anchor"); break;
        case '}':
            if (r->end - r->p > 1 && r->p[1] == '+')   /* possessive there, a second repeat here */
                ok = refuse(r, "a plus behind braces");
            else
                buf_char(&r->out, *r->p++);
            break;
        default: buf_char(&r->out, *r->p++);
        }
        if (!ok)
            return false;
    }
    return true;
}

/* Kimi's words: capitals then small letters, none of them Han. The general translation of its && classes repeats a group, which
 * costs a frame a letter; this says the same with possessive groups, which do not. U = capitals and common letters (Lm Lo M),
 * D = small and common. "U*D+" with its backtracking is: all of U, then a small letter, then D*; else up to the last common one. */
#define CAP "[\\p{Lu}\\p{Lt}]"
#define COM "(?:(?!\\p{Han})[\\p{Lm}\\p{Lo}\\p{M}])"
#define UPPER "(?:" CAP "|" COM ")"
#define LOWER "(?:\\p{Ll}|" COM ")"
#define TAIL "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
static const char kimi_ours[] =
    "\\p{Han}+|" LEAD "(?:" UPPER "*+\\p{Ll}" LOWER "*+|(?:" CAP "*+" COM "++)++)" TAIL "|" LEAD UPPER "++" LOWER "*+" TAIL
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

int tok_re_translate(const char *pattern, size_t n, struct buf *out, struct err *e)
{
    const char *kimi = tok_known_pattern(TOK_RE_KIMI);
    struct reader r = {.p = pattern, .end = pattern + n};
    size_t bad;
    buf_init(&r.out, 16 * PATTERN_MAX);
    *out = r.out;
    if (n == 0 || n > PATTERN_MAX || !tok_utf8_valid(pattern, n, &bad))
        return err_set(e, ERR_FORMAT, "tokenizer: split pattern of %zu bytes, expected 1 to %d of UTF-8", n, PATTERN_MAX);
    if (n == strlen(kimi) && !memcmp(pattern, kimi, n)) {
        r.p = kimi_ours;
        r.end = r.p + sizeof kimi_ours - 1;
    }
    bool ok = translate(&r);
    *out = r.out;
    if (!ok)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer: split pattern with %s at byte %zu: %.*s", r.why, (size_t)(r.p - pattern), (int)n, pattern);
    return out->failed ? err_set(e, ERR_NOMEM, "tokenizer: split pattern of %zu bytes", n) : ERR_OK;
}

int tok_re_compile(struct tok_re *re, const char *pattern, size_t n, struct err *e)
{
    struct buf out = {0};
    PCRE2_SIZE at;
    int code, rc = tok_re_translate(pattern, n, &out, e);
    if (!rc && !(re->code = pcre2_compile((PCRE2_SPTR)out.data, out.len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL))) {
        char msg[120] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg);
        rc = err_set(e, ERR_UNSUPPORTED, "tokenizer: split pattern: %s at %zu of %s", msg, at, out.data);
    }
    if (!rc)
        re->jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
    re->words = !rc && tok_known_words(pattern, n);
    buf_free(&out);
    return rc;
}

void tok_re_free(struct tok_re *re)
{
    pcre2_code_free(re->code);
    re->code = NULL;
}

int tok_re_open(struct tok_run *r)
{
    if (!(r->mc = pcre2_match_context_create(NULL)))
        return err_set(r->e, ERR_NOMEM, "tokenizer: match context");
    pcre2_set_match_limit(r->mc, MATCH_LIMIT);
    pcre2_set_heap_limit(r->mc, HEAP_LIMIT_KIB);
    return ERR_OK;
}

/* The end of " ?[A-Z]?[a-z]+" at s[at] where it is all that a known pattern would take there: in front of ASCII that is no letter and no
 * apostrophe, or of the end. 0: ask the pattern. */
static size_t plain_word(const char *s, size_t n, size_t at)
{
    size_t i = at + (s[at] == ' ');
    if (i < n && (uint8_t)(s[i] - 'A') < 26)
        i++;
    size_t small = i;
    while (i < n && (uint8_t)(s[i] - 'a') < 26)
        i++;
    if (i == small || (i < n && ((uint8_t)s[i] >= 0x80 || s[i] == '\'' || (uint8_t)(s[i] - 'A') < 26)))
        return 0;
    return i;
}

/* The next match at or behind *pos: true with [*b, *e). False at the end or, with r->e filled and *rc set, on an error. The JIT's
 * own stack is made when a match first needs more than the machine's 32 KiB; beyond its maximum the interpreter takes over. */
bool tok_re_next(struct tok_run *r, const struct tok_re *re, pcre2_match_data *md, const char *s, size_t n, size_t pos, size_t *b, size_t *end, int *rc)
{
    if (re->words && pos < n && (*end = plain_word(s, n, pos)) > 0) {
        *b = pos;
        return true;
    }
    for (;;) {
        int m = re->jit ? pcre2_jit_match(re->code, (PCRE2_SPTR)s, n, pos, PCRE2_NO_UTF_CHECK, md, r->mc)
                        : pcre2_match(re->code, (PCRE2_SPTR)s, n, pos, PCRE2_NO_UTF_CHECK, md, r->mc);
        if (m == PCRE2_ERROR_JIT_STACKLIMIT && !r->stack && (r->stack = pcre2_jit_stack_create(64 << 10, JIT_STACK_MAX, NULL))) {
            pcre2_jit_stack_assign(r->mc, NULL, r->stack);
            continue;
        }
        if (m == PCRE2_ERROR_JIT_STACKLIMIT)
            m = pcre2_match(re->code, (PCRE2_SPTR)s, n, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md, r->mc);
        if (m == PCRE2_ERROR_NOMATCH)
            return false;
        if (m < 0) {
            *rc = err_set(r->e, m == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_LIMIT, "tokenizer: the split pattern gave up at byte %zu of %zu (PCRE2 error %d)", pos, n, m);
            return false;
        }
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
        *b = ov[0];
        *end = ov[1];
        if (*end > *b)
            return true;
        if (*b >= n)                                   /* an empty match is none: look on behind the next character */
            return false;
        pos = *b + tok_utf8_len((uint8_t)s[*b]);
    }
}
