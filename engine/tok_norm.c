/* engine/tok_norm.c - normalisers in sequence over one stretch: Unicode forms by utf8proc, replacements, prefixes. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tok_internal.h"

enum { MARKS_RUN = 32 };

bool tok_is_word(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM: case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC: case UTF8PROC_CATEGORY_ME: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

static bool ascii(const char *s, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++)
        any |= (uint8_t)s[i];
    return any < 0x80;
}

/* These are NFC by themselves, and nothing in front of them changes them: text may be cut before any of them. */
static bool settled(uint32_t c)
{
    return c < 0x300 || (c >= 0x2010 && c <= 0x2027) || (c >= 0x3001 && c <= 0x3002) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x4E00 && c <= 0x9FFF);
}

/* The end of the settled text at the beginning of s, without its last character, which may compose with what follows; n: all of it. */
static size_t settled_len(const char *s, size_t n)
{
    size_t last = 0;
    for (size_t i = 0; i < n; i += tok_utf8_len((uint8_t)s[i])) {
        uint64_t w;
        while (n - i > 8 && (memcpy(&w, s + i, 8), !(w & UINT64_C(0x8080808080808080))))
            last = i + 7, i += 8;
        if ((uint8_t)s[i] >= 0xCC && !settled(tok_utf8_at(s + i)))
            return last;
        last = i;
    }
    return n;
}

static int ccc(const char *s)
{
    return (uint8_t)*s < 0xCC ? 0 : utf8proc_get_property((utf8proc_int32_t)tok_utf8_at(s))->combining_class;
}

/* utf8proc sorts combining marks by insertion: a long run in falling order would cost its square. Sorted runs are canonically
 * the same text, so such a run is sorted first, by counting. */
static void sort_marks(char *s, size_t n, char *tmp)
{
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i += tok_utf8_len((uint8_t)s[i]))
        at[ccc(s + i) + 1] += tok_utf8_len((uint8_t)s[i]);
    for (int k = 1; k < 257; k++)
        at[k] += at[k - 1];
    for (size_t i = 0, len; i < n; i += len) {
        len = tok_utf8_len((uint8_t)s[i]);
        size_t *to = &at[ccc(s + i)];
        memcpy(tmp + *to, s + i, len);
        *to += len;
    }
    memcpy(s, tmp, n);
}

static void sort_long_runs(char *s, size_t n, char *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t b = i, marks = 0;
        while (i < n && ccc(s + i)) {
            i += tok_utf8_len((uint8_t)s[i]);
            marks++;
        }
        if (marks > MARKS_RUN)
            sort_marks(s + b, i - b, tmp);
        if (i < n)
            i += tok_utf8_len((uint8_t)s[i]);
    }
}

static int unicode_form(struct tok_run *r, uint8_t kind, const char *s, size_t n, struct buf *out)
{
    int opts = UTF8PROC_STABLE | (kind == TOK_NORM_NFC || kind == TOK_NORM_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
               (kind == TOK_NORM_NFKC || kind == TOK_NORM_NFKD ? UTF8PROC_COMPAT : 0);
    char *copy = malloc(2 * n);
    utf8proc_uint8_t *made = NULL;
    if (!copy)
        return err_set(r->e, ERR_NOMEM, "tokenizer: %zu bytes to normalise", n);
    memcpy(copy, s, n);
    sort_long_runs(copy, n, copy + n);
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)copy, (utf8proc_ssize_t)n, &made, (utf8proc_option_t)opts);
    free(copy);
    if (len < 0)
        return err_set(r->e, len == UTF8PROC_ERROR_NOMEM ? ERR_NOMEM : ERR_INVALID, "tokenizer: %s", utf8proc_errmsg(len));
    buf_add(out, made, (size_t)len);
    free(made);
    return ERR_OK;
}

/* Only what is not settled goes through the library, from the character in front of it to the next that is. */
static int compose(struct tok_run *r, const char *s, size_t n, struct buf *out)
{
    int rc = ERR_OK;
    for (size_t i = 0, e; !rc && i < n; i = e) {
        size_t keep = settled_len(s + i, n - i);
        buf_add(out, s + i, keep);
        e = i += keep;
        if (i == n)
            break;
        do
            e += tok_utf8_len((uint8_t)s[e]);
        while (e < n && !settled(tok_utf8_at(s + e)));
        rc = unicode_form(r, TOK_NORM_NFC, s + i, e - i, out);
    }
    return rc;
}

static void replace(const struct tok_op *op, const char *s, size_t n, struct buf *out)
{
    const char *end = s + n, *m;
    while (op->an && (m = tok_find(s, (size_t)(end - s), op->a, op->an))) {
        buf_add(out, s, (size_t)(m - s));
        buf_add(out, op->b, op->bn);
        s = m + op->an;
    }
    buf_add(out, s, (size_t)(end - s));
}

static int replace_re(struct tok_run *r, unsigned k, const struct tok_op *op, const char *s, size_t n, struct buf *out)
{
    size_t at = 0, b, e;
    int rc = ERR_OK;
    if (!r->norm_md && !(r->norm_md = pcre2_match_data_create(1, NULL)))
        return err_set(r->e, ERR_NOMEM, "tokenizer: match data");
    while (at < n && tok_re_next(r, &r->t->norm_re[k], r->norm_md, s, n, at, &b, &e, &rc)) {
        buf_add(out, s + at, b - at);
        buf_add(out, op->b, op->bn);
        at = e;
    }
    buf_add(out, s + at, n - at);
    return rc;
}

static void lower(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i += tok_utf8_len((uint8_t)s[i])) {
        uint32_t c = tok_utf8_at(s + i);
        utf8proc_uint8_t u[4];
        if (c == 0x130)                        /* the one letter whose lower case is two */
            buf_str(out, "i\xCC\x87");
        else
            buf_add(out, u, (size_t)utf8proc_encode_char(utf8proc_tolower((utf8proc_int32_t)c), u));
    }
}

static void strip(uint8_t kind, const char **s, size_t *n)
{
    while (kind == TOK_NORM_STRIP_LEFT && *n && tok_is_space(tok_utf8_at(*s))) {
        size_t len = tok_utf8_len((uint8_t)**s);
        *s += len;
        *n -= len;
    }
    while (kind == TOK_NORM_STRIP_RIGHT && *n) {
        size_t at = *n - 1;
        while (((uint8_t)(*s)[at] & 0xC0) == 0x80)
            at--;
        if (!tok_is_space(tok_utf8_at(*s + at)))
            break;
        *n = at;
    }
}

/* *s, *n: in the stretch, out the normalised one, in r->norm[0] or [1] or the input itself. An empty stretch stays empty. */
int tok_normalise(struct tok_run *r, const char **s, size_t *n)
{
    const struct tok_def *d = &r->t->d;
    unsigned into = 0;
    for (unsigned k = 0; k < d->n_norm; k++) {
        const struct tok_op *op = &d->norm[k];
        struct buf *out = &r->norm[into];
        int rc = ERR_OK;
        if (*n == 0)
            return ERR_OK;
        if (r->continues && (op->kind == TOK_NORM_PREPEND || op->kind == TOK_NORM_STRIP_LEFT))
            continue;
        if ((op->kind <= TOK_NORM_NFKD && ascii(*s, *n)) || (op->kind == TOK_NORM_NFC && settled_len(*s, *n) == *n) || (op->kind == TOK_NORM_REPLACE && !tok_find(*s, *n, op->a, op->an)))
            continue;
        if (op->kind == TOK_NORM_STRIP_LEFT || op->kind == TOK_NORM_STRIP_RIGHT) {
            strip(op->kind, s, n);
            continue;
        }
        buf_reset(out);
        switch (op->kind) {
        case TOK_NORM_PREPEND:
            buf_add(out, op->a, op->an);
            buf_add(out, *s, *n);
            break;
        case TOK_NORM_REPLACE: replace(op, *s, *n, out); break;
        case TOK_NORM_REPLACE_RE: rc = replace_re(r, k, op, *s, *n, out); break;
        case TOK_NORM_LOWER: lower(*s, *n, out); break;
        case TOK_NORM_PRECOMPILED: rc = tok_precompiled(r, op, *s, *n, out); break;
        case TOK_NORM_NFC: rc = compose(r, *s, *n, out); break;
        default: rc = unicode_form(r, op->kind, *s, *n, out);
        }
        if (rc || out->failed)
            return rc ? rc : err_set(r->e, ERR_NOMEM, "tokenizer: normalised text of %zu bytes", *n);
        *s = out->data ? out->data : "";
        *n = out->len;
        into ^= 1;
    }
    return ERR_OK;
}
