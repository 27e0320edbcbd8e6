/* engine/gbnf.c - a grammar's text -> rules as trees. Recursive descent; groups nest at most GBNF_DEPTH_MAX deep. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/grammar_internal.h"

enum { TREE_BYTES_MAX = 64 << 20, COUNT_MAX = 1 << 20 };

struct parser {
    struct gbnf *g;
    const char *start, *p, *end;
    const eng_tok *tok;
    unsigned depth;
    const struct gbnf_rule *rule;              /* the one being read; NULL: between rules */
    struct err *e;
};

static uint32_t line_of(const struct parser *s)
{
    uint32_t n = 1;
    for (const char *q = s->start; q < s->p; q++)
        n += *q == '\n';
    return n;
}

#define BAD(s, ...) bad((s), ERR_INVALID, __VA_ARGS__)
__attribute__((format(printf, 3, 4))) static int bad(struct parser *s, int code, const char *fmt, ...)
{
    char msg[200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (s->rule)
        return err_set(s->e, code, "grammar line %u, rule '%.*s': %s", line_of(s), (int)s->rule->n_name, s->rule->name, msg);
    return err_set(s->e, code, "grammar line %u: %s", line_of(s), msg);
}

static int no_memory(struct parser *s)
{
    return s->g->mem.full ? bad(s, ERR_LIMIT, "the grammar is too large") : bad(s, ERR_NOMEM, "no memory");
}

static bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static char peek(const struct parser *s) { return s->p < s->end ? *s->p : 0; }

static void skip(struct parser *s, bool lines)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '#' || (lines && (*s->p == '\n' || *s->p == '\r')))) {
        if (*s->p == '#')
            while (s->p < s->end && *s->p != '\n' && *s->p != '\r')
                s->p++;
        else
            s->p++;
    }
}

/* ---- names -------------------------------------------------------------------------------------------------- */

static bool grow_rules(struct gbnf *g)
{
    uint32_t cap = g->cap_rules ? 2 * g->cap_rules : 64;
    struct gbnf_rule *r = realloc(g->rules, cap * sizeof *r);
    if (!r)
        return false;
    g->rules = r;
    g->cap_rules = cap;
    uint32_t *slot = calloc(2 * (size_t)cap, sizeof *slot);
    if (!slot)
        return false;
    free(g->slot);
    g->slot = slot;
    g->mask = 2 * cap - 1;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        uint64_t h = hash_bytes(r[i].name, r[i].n_name, 1);
        while (slot[h & g->mask])
            h++;
        slot[h & g->mask] = i + 1;
    }
    return true;
}

/* The rule of this name, new if need be. */
static int rule_named(struct parser *s, const char *name, size_t n, uint32_t *out)
{
    struct gbnf *g = s->g;
    uint64_t h = hash_bytes(name, n, 1);
    for (uint32_t i; g->slot && (i = g->slot[h & g->mask]); h++)
        if (g->rules[i - 1].n_name == n && !memcmp(g->rules[i - 1].name, name, n)) {
            *out = i - 1;
            return ERR_OK;
        }
    if (n > GBNF_NAME_MAX || g->n_rules == GBNF_RULES_MAX)
        return n > GBNF_NAME_MAX ? bad(s, ERR_LIMIT, "a name of %zu bytes, at most %d may be", n, GBNF_NAME_MAX) : bad(s, ERR_LIMIT, "more than %d rules", GBNF_RULES_MAX);
    size_t at = s->rule ? (size_t)(s->rule - g->rules) : 0;
    if (g->n_rules == g->cap_rules && !grow_rules(g))
        return no_memory(s);
    s->rule = s->rule ? g->rules + at : NULL; /* it may have moved */
    for (h = hash_bytes(name, n, 1); g->slot[h & g->mask]; h++)
        ;
    g->rules[g->n_rules] = (struct gbnf_rule){.name = name, .n_name = (uint32_t)n, .line = line_of(s)};
    g->slot[h & g->mask] = ++g->n_rules;
    *out = g->n_rules - 1;
    return ERR_OK;
}

/* ---- items -------------------------------------------------------------------------------------------------- */

static struct gbnf_item *item_new(struct parser *s, enum gbnf_kind kind)
{
    struct gbnf_item *i = ARENA_NEW(&s->g->mem, struct gbnf_item);
    if (i)
        i->kind = kind;
    else
        no_memory(s);
    return i;
}

static void append(struct gbnf_item *list, struct gbnf_item *i)
{
    if (list->last)
        list->last->next = i;
    else
        list->first = i;
    list->last = i;
    list->n++;
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

static int get_hex(struct parser *s, unsigned digits, uint32_t *cp)
{
    *cp = 0;
    for (unsigned i = 0; i < digits; i++, s->p++) {
        int d = hex(peek(s));
        if (d < 0)
            return BAD(s, "expected %u hex digits after '\\%c'", digits, digits == 2 ? 'x' : digits == 4 ? 'u' : 'U');
        *cp = *cp << 4 | (uint32_t)d;
    }
    if (*cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF))
        return BAD(s, "U+%X is no character", *cp);
    return ERR_OK;
}

static int get_escape(struct parser *s, uint32_t *cp)
{
    char c = *++s->p; /* behind the backslash: the text ends in NUL */
    s->p += s->p < s->end;
    switch (c) {
    case 'x': return get_hex(s, 2, cp);
    case 'u': return get_hex(s, 4, cp);
    case 'U': return get_hex(s, 8, cp);
    case 'n': *cp = '\n'; return ERR_OK;
    case 'r': *cp = '\r'; return ERR_OK;
    case 't': *cp = '\t'; return ERR_OK;
    case '\\': case '"': case '[': case ']': case '-': case '^': *cp = (uint32_t)c; return ERR_OK;
    default: return BAD(s, "unknown escape '\\%c'", c > 0x20 ? c : ' ');
    }
}

/* One character of a string or class: an escape or UTF-8. */
static int get_char(struct parser *s, uint32_t *cp)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *q = (const uint8_t *)s->p;
    if (*q == '\\')
        return get_escape(s, cp);
    unsigned n = *q < 0x80 ? 1 : *q >= 0xF0 && *q < 0xF8 ? 4 : *q >= 0xE0 ? 3 : *q >= 0xC0 ? 2 : 0;
    if (!n || *q >= 0xF8 || n > (size_t)(s->end - s->p))
        return BAD(s, "expected UTF-8");
    *cp = n == 1 ? *q : *q & (0x7Fu >> n);
    for (unsigned i = 1; i < n; i++) {
        if ((q[i] & 0xC0) != 0x80)
            return BAD(s, "expected UTF-8");
        *cp = *cp << 6 | (q[i] & 0x3Fu);
    }
    if (*cp < least[n] || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp <= 0xDFFF))
        return BAD(s, "expected UTF-8");
    s->p += n;
    return ERR_OK;
}

static unsigned put_utf8(char *o, uint32_t c)
{
    if (c < 0x80)
        return o[0] = (char)c, 1;
    if (c < 0x800)
        return o[0] = (char)(0xC0 | c >> 6), o[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return o[0] = (char)(0xE0 | c >> 12), o[1] = (char)(0x80 | (c >> 6 & 63)), o[2] = (char)(0x80 | (c & 63)), 3;
    return o[0] = (char)(0xF0 | c >> 18), o[1] = (char)(0x80 | (c >> 12 & 63)), o[2] = (char)(0x80 | (c >> 6 & 63)), o[3] = (char)(0x80 | (c & 63)), 4;
}

static int get_string(struct parser *s, struct gbnf_item **out)
{
    const char *q = ++s->p;
    while (q < s->end && *q != '"')
        q += *q == '\\' ? 2 : 1;
    size_t room = q < s->end ? (size_t)(q - s->p) : 0;
    if (q >= s->end)
        return BAD(s, "a string without its end");
    char *text = arena_alloc(&s->g->mem, room + 4); /* no spelling of a character is shorter than the character */
    if (!(*out = item_new(s, GBNF_TEXT)) || !text)
        return no_memory(s);
    uint32_t n = 0, cp;
    while (*s->p != '"') {
        if (s->p >= s->end)
            return BAD(s, "a string without its end");
        int rc = get_char(s, &cp);
        if (rc)
            return rc;
        n += put_utf8(text + n, cp);
    }
    s->p++;
    (*out)->text = text;
    (*out)->n = n;
    return ERR_OK;
}

static int by_lo(const void *a, const void *b)
{
    const struct gbnf_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorted and apart; complemented if wanted; without surrogates. r has room for n + 2. */
static uint32_t tidy(struct gbnf_range *r, uint32_t n, bool complement)
{
    uint32_t k = 0, from = 0, m = 0;
    qsort(r, n, sizeof *r, by_lo);
    for (uint32_t i = 0; i < n; i++) {
        if (k && r[i].lo <= r[k - 1].hi + 1)
            r[k - 1].hi = r[i].hi > r[k - 1].hi ? r[i].hi : r[k - 1].hi;
        else
            r[k++] = r[i];
    }
    if (!complement)
        return k;
    for (uint32_t i = 0; i <= k; i++) {
        struct gbnf_range next = i < k ? r[i] : (struct gbnf_range){0x110000, 0x110000};
        if (next.lo > from)
            r[m++] = (struct gbnf_range){from, next.lo - 1};
        from = next.hi + 1;
    }
    return m;
}

static int get_class(struct parser *s, struct gbnf_item **out)
{
    const char *q = ++s->p;
    bool complement = *q == '^';
    uint32_t n = 0;
    int rc;
    s->p += complement;
    while (q < s->end && *q != ']')
        q += *q == '\\' ? 2 : 1;
    if (q >= s->end)
        return BAD(s, "a class without its end");
    struct gbnf_range *r = ARENA_ARRAY(&s->g->mem, struct gbnf_range, (size_t)(q - s->p) + 2);
    if (!(*out = item_new(s, GBNF_CLASS)) || !r)
        return no_memory(s);
    while (*s->p != ']') {
        if (s->p >= s->end)
            return BAD(s, "a class without its end");
        if ((rc = get_char(s, &r[n].lo)))
            return rc;
        r[n].hi = r[n].lo;
        if (*s->p == '-' && s->p + 1 < s->end && s->p[1] != ']') {
            s->p++;
            if ((rc = get_char(s, &r[n].hi)))
                return rc;
            if (r[n].hi < r[n].lo)
                return BAD(s, "a range from U+%04X down to U+%04X", r[n].lo, r[n].hi);
        }
        n++;
    }
    s->p++;
    (*out)->n = tidy(r, n, complement);
    (*out)->ranges = r;
    return (*out)->n ? ERR_OK : BAD(s, "a class of no character");
}

static int get_any(struct parser *s, struct gbnf_item **out)
{
    struct gbnf_range *r = ARENA_NEW(&s->g->mem, struct gbnf_range);
    s->p++;
    if (!(*out = item_new(s, GBNF_CLASS)) || !r)
        return no_memory(s);
    *r = (struct gbnf_range){0, 0x10FFFF};
    (*out)->ranges = r;
    (*out)->n = 1;
    return ERR_OK;
}

/* <text>, <[id]>, and either with ! in front. */
static int get_token(struct parser *s, struct gbnf_item **out)
{
    if (!(*out = item_new(s, GBNF_TOKEN)))
        return s->e->code;
    (*out)->negated = *s->p == '!';
    s->p += (*out)->negated;
    if (peek(s) != '<')
        return BAD(s, "expected a token behind '!'");
    const char *from = s->p, *close = memchr(s->p, '>', (size_t)(s->end - s->p));
    if (!close)
        return BAD(s, "a token without its '>'");
    s->p = close + 1;
    if (!s->tok)
        return BAD(s, "tokens are not known here");
    if (from[1] == '[') {
        uint64_t id = 0;
        const char *q = from + 2;
        for (; is_digit(*q) && id <= INT32_MAX; q++)
            id = 10 * id + (uint64_t)(*q - '0');
        if (q == from + 2 || *q != ']' || q + 1 != close || id >= eng_tok_count(s->tok))
            return BAD(s, "expected a token as <[id]>, with an id below %u", eng_tok_count(s->tok));
        (*out)->id = (int32_t)id;
        return ERR_OK;
    }
    if (((*out)->id = eng_tok_find(s->tok, from, (size_t)(s->p - from))) < 0)
        return BAD(s, "'%.*s' is no token of this model", (int)(s->p - from > 80 ? 80 : s->p - from), from);
    return ERR_OK;
}

static int get_alternatives(struct parser *s, bool nested, struct gbnf_item **out);

static int get_group(struct parser *s, struct gbnf_item **out)
{
    s->p++;
    if (++s->depth > GBNF_DEPTH_MAX)
        return bad(s, ERR_LIMIT, "groups nest more than %d deep", GBNF_DEPTH_MAX);
    skip(s, true);
    int rc = get_alternatives(s, true, out);
    if (rc)
        return rc;
    s->depth--;
    if (peek(s) != ')')
        return BAD(s, "expected ')'");
    s->p++;
    return ERR_OK;
}

static int get_count(struct parser *s, uint32_t *n)
{
    uint64_t v = 0;
    for (; is_digit(peek(s)); s->p++)
        if ((v = 10 * v + (uint64_t)(*s->p - '0')) > COUNT_MAX)
            return bad(s, ERR_LIMIT, "more than %d repetitions", COUNT_MAX);
    *n = (uint32_t)v;
    return ERR_OK;
}

/* {m}, {m,}, {m,n}, {,n} */
static int get_braces(struct parser *s, uint32_t *min, uint32_t *max)
{
    int rc;
    s->p++;
    skip(s, false);
    bool first = is_digit(peek(s));
    if ((rc = get_count(s, min)))
        return rc;
    *max = *min;
    skip(s, false);
    if (peek(s) == ',') {
        s->p++;
        skip(s, false);
        bool second = is_digit(peek(s));
        if ((rc = get_count(s, max)))
            return rc;
        if (!second)
            *max = GBNF_MANY;
        first |= second;
        skip(s, false);
    }
    if (!first || peek(s) != '}' || *max < *min)
        return BAD(s, "expected repetitions as {m}, {m,} or {m,n} with m <= n");
    s->p++;
    return ERR_OK;
}

static int get_repeats(struct parser *s, struct gbnf_item **item)
{
    for (;;) {
        uint32_t min = 0, max = GBNF_MANY;
        int rc = 0;
        switch (peek(s)) {
        case '*': s->p++; break;
        case '+': s->p++; min = 1; break;
        case '?': s->p++; max = 1; break;
        case '{': rc = get_braces(s, &min, &max); break;
        default: return ERR_OK;
        }
        if (rc)
            return rc;
        if (++s->depth > GBNF_DEPTH_MAX) /* x???...: a tree as deep as it is long */
            return bad(s, ERR_LIMIT, "groups and repetitions nest more than %d deep", GBNF_DEPTH_MAX);
        struct gbnf_item *r = item_new(s, GBNF_REPEAT);
        if (!r)
            return s->e->code;
        r->min = min;
        r->max = max;
        append(r, *item);
        *item = r;
    }
}

static int get_item(struct parser *s, struct gbnf_item **out)
{
    char c = peek(s);
    *out = NULL;
    if (c == '"')
        return get_string(s, out);
    if (c == '[')
        return get_class(s, out);
    if (c == '.')
        return get_any(s, out);
    if (c == '<' || c == '!')
        return get_token(s, out);
    if (c == '(')
        return get_group(s, out);
    if (!is_name(c))
        return ERR_OK;
    const char *name = s->p;
    while (s->p < s->end && is_name(*s->p))
        s->p++;
    uint32_t rule;
    int rc = rule_named(s, name, (size_t)(s->p - name), &rule);
    if (rc)
        return rc;
    if (!(*out = item_new(s, GBNF_REF)))
        return s->e->code;
    (*out)->rule = rule;
    return ERR_OK;
}

static int get_sequence(struct parser *s, bool nested, struct gbnf_item **out)
{
    if (!(*out = item_new(s, GBNF_SEQ)))
        return s->e->code;
    for (;;) {
        struct gbnf_item *i;
        unsigned depth = s->depth;
        int rc = get_item(s, &i);
        if (rc || !i || (rc = get_repeats(s, &i)))
            return rc;
        s->depth = depth;
        i->next = NULL;
        append(*out, i);
        skip(s, nested);
    }
}

static int get_alternatives(struct parser *s, bool nested, struct gbnf_item **out)
{
    if (!(*out = item_new(s, GBNF_ALT)))
        return s->e->code;
    for (;;) {
        struct gbnf_item *i;
        int rc = get_sequence(s, nested, &i);
        if (rc)
            return rc;
        append(*out, i);
        const char *here = s->p;
        skip(s, true); /* a line may begin with | */
        if (peek(s) != '|') {
            s->p = here;
            return ERR_OK;
        }
        s->p++;
        skip(s, true);
    }
}

static int get_rule(struct parser *s)
{
    const char *name = s->p;
    uint32_t at;
    while (s->p < s->end && is_name(*s->p))
        s->p++;
    if (s->p == name)
        return BAD(s, "expected the name of a rule");
    int rc = rule_named(s, name, (size_t)(s->p - name), &at);
    if (rc)
        return rc;
    s->rule = &s->g->rules[at];
    skip(s, false);
    if (s->end - s->p < 3 || memcmp(s->p, "::=", 3))
        return BAD(s, "expected '::='");
    if (s->rule->body)
        return BAD(s, "it is there twice");
    s->p += 3;
    skip(s, true);
    struct gbnf_item *body;
    s->depth = 0;
    if ((rc = get_alternatives(s, false, &body)))
        return rc;
    skip(s, false);
    if (s->p < s->end && *s->p != '\n' && *s->p != '\r')
        return BAD(s, "expected the end of the line, found '%c'", *s->p > 0x20 && *s->p < 0x7F ? *s->p : '?');
    s->g->rules[at].body = body;
    s->rule = NULL;
    skip(s, true);
    return ERR_OK;
}

int gbnf_parse(struct gbnf *g, const char *text, size_t n, const eng_tok *t, struct err *e)
{
    struct err own;
    memset(g, 0, sizeof *g);
    arena_init(&g->mem, TREE_BYTES_MAX);
    struct parser s = {.g = g, .tok = t, .e = e ? e : &own};
    s.e->code = ERR_NOMEM;
    if (n > ((size_t)1 << 20))
        return err_set(e, ERR_LIMIT, "grammar of %zu bytes, at most %d may be", n, 1 << 20);
    if (!(s.start = s.p = arena_strdup(&g->mem, text, n))) /* names stay; a NUL stands behind it */
        return err_set(e, ERR_NOMEM, "grammar of %zu bytes", n);
    s.end = s.start + n;
    if (memchr(s.start, 0, n))
        return err_set(e, ERR_INVALID, "grammar: a NUL byte");
    skip(&s, true);
    while (s.p < s.end) {
        int rc = get_rule(&s);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (!g->rules[i].body)
            return err_set(e, ERR_INVALID, "grammar line %u: rule '%.*s' is not defined", g->rules[i].line, (int)g->rules[i].n_name, g->rules[i].name);
    s.rule = NULL;
    uint32_t known = g->n_rules;
    int rc = rule_named(&s, "root", 4, &g->root);
    return rc ? rc : g->n_rules > known ? err_set(e, ERR_INVALID, "grammar: there is no rule 'root'") : ERR_OK;
}

void gbnf_free(struct gbnf *g)
{
    arena_free(&g->mem);
    free(g->rules);
    free(g->slot);
}
