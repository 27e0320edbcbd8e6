#include <string.h>

#include "gateway/calls_internal.h"
#include "gateway/json_scan.h"

#define WORD_MAX 256

bool gw_is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static void skip_space(struct gw_cursor *c)
{
    while (c->at < c->n && gw_is_space(c->p[c->at]))
        c->at++;
}

static enum gw_match short_of(const struct gw_cursor *c) { return c->end ? GW_NO : GW_MORE; }

static enum gw_match literal(struct gw_cursor *c, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (gw_is_space(s[i])) {
            skip_space(c);
            continue;
        }
        if (c->at == c->n)
            return short_of(c);
        if (c->p[c->at++] != s[i])
            return GW_NO;
    }
    return GW_YES;
}

enum gw_match gw_match_literal(struct gw_cursor *c, const struct eng_pattern *p)
{
    return p->n ? literal(c, p->v[0].s, p->v[0].n) : GW_NO;
}

static enum gw_match word(struct gw_cursor *c, bool (*in)(const char *, size_t), size_t max, const char **s, size_t *n)
{
    skip_space(c);
    size_t from = c->at;
    while (c->at < c->n && c->at - from <= max && in(c->p + c->at, 1))
        c->at++;
    *s = c->p + from;
    *n = c->at - from;
    if (*n > max)
        return GW_NO;
    return c->at == c->n ? short_of(c) : *n ? GW_YES : GW_NO;
}

static bool is_digit(const char *s, size_t n)
{
    (void)n;
    return *s >= '0' && *s <= '9';
}

static bool is_lower(const char *s, size_t n)
{
    (void)n;
    return *s >= 'a' && *s <= 'z';
}

/* Up to the first byte of the literal that follows. */
static enum gw_match until(struct gw_cursor *c, const struct eng_step *next, const char **s, size_t *n)
{
    char stop = next->s[strspn(next->s, " \n\r\t")];
    size_t left = c->n - c->at, look = left < WORD_MAX ? left : WORD_MAX;
    const char *end = memchr(c->p + c->at, stop, look);
    if (!end)
        return left > WORD_MAX ? GW_NO : short_of(c);
    *s = c->p + c->at;
    *n = (size_t)(end - *s);
    c->at += *n;
    return *n && !memchr(*s, ENG_MARK, *n) ? GW_YES : GW_NO;
}

/* ---- an object with a function's name and arguments ------------------------------------------------------- */

/* A string without escapes. Keys: an unfinished one must still be able to become one of them. */
static enum gw_match string(struct gw_cursor *c, const char *const *keys, const char **s, size_t *n)
{
    skip_space(c);
    if (c->at == c->n)
        return short_of(c);
    if (c->p[c->at++] != '"')
        return GW_NO;
    *s = c->p + c->at;
    while (c->at < c->n && c->p[c->at] != '"' && c->p[c->at] != '\\' && c->p[c->at] != ENG_MARK)
        c->at++;
    *n = (size_t)(c->p + c->at - *s);
    bool possible = !keys && *n <= WORD_MAX;
    for (size_t i = 0; keys && keys[i]; i++)
        possible |= strlen(keys[i]) >= *n && !memcmp(keys[i], *s, *n) && (c->at == c->n || strlen(keys[i]) == *n);
    if (!possible)
        return GW_NO;
    if (c->at == c->n)
        return short_of(c);
    return c->p[c->at++] == '"' ? GW_YES : GW_NO;
}

static enum gw_match punctuation(struct gw_cursor *c, char *out)
{
    skip_space(c);
    if (c->at == c->n)
        return short_of(c);
    *out = c->p[c->at++];
    return GW_YES;
}

static bool is(const char *s, size_t n, const char *word) { return strlen(word) == n && !memcmp(s, word, n); }

static enum gw_match whole_object(struct gw_cursor *c, const char **s, size_t *n)
{
    struct gw_scan scan;
    gw_scan_init(&scan);
    *s = c->p + c->at;
    while (c->at < c->n) {
        enum gw_scan_end e = gw_scan_byte(&scan, (unsigned char)c->p[c->at], NULL);
        if (e == GW_SCAN_WRONG)
            return GW_NO;
        c->at++;
        *n = (size_t)(c->p + c->at - *s);
        if (e == GW_SCAN_OVER)
            return GW_YES;
    }
    return short_of(c);
}

static const char *const *keys_of(const struct eng_tools_format *f, const char *keys[7])
{
    const char *all[] = {f->key_name, f->key_arguments, "arguments", "parameters", "id", "type", NULL};
    memcpy(keys, all, sizeof all);
    return keys;
}

/* One member of the object; *stop: the arguments stand here and the name is known. */
static enum gw_match object_member(const struct eng_tools_format *f, struct gw_cursor *c, struct gw_head *h, const char **name, size_t *name_n, bool *stop)
{
    const char *keys[7], *key, *text;
    size_t key_n, text_n;
    char colon;
    enum gw_match m = string(c, keys_of(f, keys), &key, &key_n);
    if (m != GW_YES || (m = punctuation(c, &colon)) != GW_YES)
        return m;
    if (colon != ':')
        return GW_NO;
    skip_space(c);
    if (c->at == c->n)
        return short_of(c);
    if (is(key, key_n, f->key_arguments) || is(key, key_n, "arguments") || is(key, key_n, "parameters")) {
        if (c->p[c->at] != '{' || h->known)
            return GW_NO;
        *stop = *name != NULL;
        if (*stop)
            return GW_YES;
        m = whole_object(c, &h->args, &h->args_n);
        h->known = m == GW_YES;
        return m;
    }
    if ((m = string(c, NULL, &text, &text_n)) != GW_YES)
        return m;
    if (is(key, key_n, f->key_name)) {
        *name = text;
        *name_n = text_n;
    } else if (is(key, key_n, "id") && text_n) {
        h->id = text;
        h->id_n = text_n;
    }
    return GW_YES;
}

static enum gw_match object(const struct eng_tools_format *f, struct gw_cursor *c, struct gw_head *h, const char **name, size_t *name_n)
{
    char p = 0;
    bool stop = false;
    enum gw_match m = punctuation(c, &p);
    if (m != GW_YES || p != '{')
        return m == GW_YES ? GW_NO : m;
    do {
        if ((m = object_member(f, c, h, name, name_n, &stop)) != GW_YES)
            return m;
        if (stop) {
            h->in_object = true;
            return GW_YES;
        }
        if ((m = punctuation(c, &p)) != GW_YES)
            return m;
    } while (p == ',');
    h->known = true; /* without arguments: none */
    return p == '}' && *name ? GW_YES : GW_NO;
}

/* What follows the arguments inside the object. */
static enum gw_match object_rest(const struct eng_tools_format *f, struct gw_cursor *c)
{
    for (;;) {
        const char *keys[7], *s;
        size_t n;
        char p = 0;
        enum gw_match m = punctuation(c, &p);
        if (m != GW_YES || p == '}')
            return m;
        if (p != ',' || (m = string(c, keys_of(f, keys), &s, &n)) != GW_YES || (m = punctuation(c, &p)) != GW_YES || p != ':' || (m = string(c, NULL, &s, &n)) != GW_YES)
            return m == GW_YES ? GW_NO : m;
    }
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

/* The function's name out of an id such as functions.NAME:3. */
static bool name_of_id(const struct eng_pattern *p, const char *id, size_t n, const char **name, size_t *name_n)
{
    size_t from = 0, to = n;
    uint32_t at = 0;
    while (p->v[at].kind != ENG_STEP_NAME)
        at++;
    for (uint32_t i = 0; i < at; i++) /* before the name: literals */
        if (p->v[i].kind != ENG_STEP_LITERAL || p->v[i].n > to - from || memcmp(id + from, p->v[i].s, p->v[i].n))
            return false;
        else
            from += p->v[i].n;
    for (uint32_t i = p->n; i-- > at + 1;) /* after it, from the end */
        if (p->v[i].kind == ENG_STEP_INDEX) {
            size_t had = to;
            while (to > from && is_digit(id + to - 1, 1))
                to--;
            if (to == had)
                return false;
        } else if (p->v[i].n > to - from || memcmp(id + to - p->v[i].n, p->v[i].s, p->v[i].n)) {
            return false;
        } else {
            to -= p->v[i].n;
        }
    *name = id + from;
    *name_n = to - from;
    return to > from;
}

static enum gw_match step(const struct eng_tools_format *f, const struct eng_pattern *p, uint32_t i, struct gw_cursor *c, struct gw_head *h, const char **name, size_t *name_n)
{
    const char *s;
    size_t n;
    enum gw_match m;
    switch (p->v[i].kind) {
    case ENG_STEP_LITERAL:
        if (i)
            skip_space(c);
        return literal(c, p->v[i].s, p->v[i].n);
    case ENG_STEP_NAME: return word(c, gw_tools_name_ok, GW_TOOL_NAME_MAX, name, name_n);
    case ENG_STEP_INDEX: return word(c, is_digit, 9, &s, &n);
    case ENG_STEP_ID:
        skip_space(c);
        if ((m = until(c, &p->v[i + 1], &h->id, &h->id_n)) != GW_YES)
            return m;
        while (h->id_n && gw_is_space(h->id[h->id_n - 1]))
            h->id_n--;
        if (f->id == ENG_ID_PATTERN && !name_of_id(&f->id_pattern, h->id, h->id_n, name, name_n))
            return GW_NO;
        return h->id_n ? GW_YES : GW_NO;
    case ENG_STEP_OBJECT: return object(f, c, h, name, name_n);
    case ENG_STEP_ARGUMENTS:
        skip_space(c);
        if (c->at == c->n)
            return short_of(c);
        return c->p[c->at] == '{' ? GW_YES : GW_NO;
    default: return GW_YES;
    }
}

static enum gw_match head(const struct eng_tools_format *f, uint32_t alt, const struct gw_tools *tools, bool section, bool fresh, struct gw_cursor *c, struct gw_head *h)
{
    const struct eng_pattern *p = &f->call[alt];
    const char *name = NULL;
    size_t name_n = 0;
    enum gw_match m = GW_YES;
    *h = (struct gw_head){.alt = alt};
    if (!section && f->begin.n)
        m = gw_match_literal(c, &f->begin);
    else if ((alt >= f->n_anywhere || p->v[0].kind != ENG_STEP_LITERAL) && !section && !fresh)
        return GW_NO;
    if (m == GW_YES && !section && f->begin.n)
        skip_space(c);
    for (; m == GW_YES; h->body++) {
        enum eng_step_kind k = p->v[h->body].kind;
        m = step(f, p, h->body, c, h, &name, &name_n);
        if (k == ENG_STEP_ARGUMENTS || k == ENG_STEP_OBJECT || k == ENG_STEP_MEMBERS)
            break;
    }
    if (m != GW_YES)
        return m;
    h->tool = gw_tools_find(tools, name, name_n);
    return h->tool ? GW_YES : GW_NO;
}

enum gw_match gw_match_head(const struct eng_tools_format *f, const struct gw_tools *tools, bool section, bool fresh, struct gw_cursor *c, struct gw_head *h)
{
    size_t from = c->at;
    for (uint32_t alt = 0; alt < f->n_calls; alt++) {
        c->at = from;
        enum gw_match m = head(f, alt, tools, section, fresh, c, h);
        if (m != GW_NO)
            return m;
    }
    c->at = from;
    return GW_NO;
}

enum gw_match gw_match_tail(const struct eng_tools_format *f, const struct gw_head *h, struct gw_cursor *c)
{
    const struct eng_pattern *p = &f->call[h->alt];
    const char *s;
    size_t n;
    enum gw_match m = h->in_object ? object_rest(f, c) : GW_YES;
    for (uint32_t i = h->body + 1; i < p->n && m == GW_YES; i++) {
        skip_space(c);
        m = p->v[i].kind == ENG_STEP_LITERAL ? literal(c, p->v[i].s, p->v[i].n) : word(c, is_digit, 9, &s, &n);
    }
    return m;
}

/* ---- arguments one by one --------------------------------------------------------------------------------- */

static void trim(const struct eng_step *v, const char **s, size_t *n)
{
    *s = v->s;
    *n = v->n;
    while (*n && gw_is_space(**s))
        ++*s, --*n;
    while (*n && gw_is_space((*s)[*n - 1]))
        --*n;
}

enum gw_match gw_match_member(const struct eng_tools_format *f, struct gw_cursor *c, struct gw_member *m)
{
    const struct eng_pattern *p = &f->member;
    enum gw_match r = GW_YES;
    *m = (struct gw_member){0};
    for (uint32_t i = 0; r == GW_YES && p->v[i].kind != ENG_STEP_VALUE; i++) {
        const struct eng_step *v = &p->v[i];
        if (v->kind == ENG_STEP_KEY) {
            r = until(c, &p->v[i + 1], &m->key, &m->key_n);
        } else if (v->kind == ENG_STEP_TYPE) {
            r = word(c, is_lower, 32, &m->type, &m->type_n);
        } else if (p->v[i + 1].kind != ENG_STEP_VALUE) {
            r = literal(c, v->s, v->n);
        } else { /* a value may begin with white space of its own: only one line end is the pattern's */
            const char *s;
            size_t n;
            trim(v, &s, &n);
            r = literal(c, s, n);
            if (r == GW_YES && v->s[v->n - 1] == '\n') {
                if (c->at == c->n && !c->end)
                    return GW_MORE;
                c->at += c->at < c->n && c->p[c->at] == '\n';
            }
        }
    }
    return r;
}

const char *gw_match_value(const struct eng_tools_format *f, const char *p, size_t n, size_t *safe, size_t *used)
{
    const struct eng_step *v = &f->member.v[f->member.n - 1];
    const char *core, *at;
    size_t len;
    trim(v, &core, &len);
    if ((at = memmem(p, n, core, len))) {
        *used = (size_t)(at - p) + len;
        return at > p && v->s[0] == '\n' && at[-1] == '\n' ? at - 1 : at;
    }
    size_t hold = n < len ? n : len - 1;
    while (hold && memcmp(p + n - hold, core, hold))
        hold--;
    if (v->s[0] == '\n' && hold < n && p[n - hold - 1] == '\n')
        hold++;
    *safe = n - hold;
    return NULL;
}
