/* engine/tok_split.c - pre-tokenizers in sequence: each cuts the stretches that the one before left; the last hands on pieces. */
#include <string.h>

#include "engine/tok_internal.h"

static int level(struct tok_run *r, unsigned k, const char *s, size_t n);

/* Joins matches and what lies between them into pieces, as the behaviour says. */
struct joiner { struct tok_run *r; const char *s; unsigned next; uint8_t how; bool have, matched; size_t b, e; };

static bool py_space(const char *s) /* str.isspace(): the four separators U+001C..1F too */
{
    uint8_t c = (uint8_t)*s;
    return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x1F) : tok_is_space(tok_utf8_at(s));
}

static int flush(struct joiner *j)
{
    if (!j->have)
        return ERR_OK;
    j->have = false;
    return level(j->r, j->next, j->s + j->b, j->e - j->b);
}

static int take(struct joiner *j, size_t b, size_t e, bool match)
{
    int rc = ERR_OK;
    if (b == e)
        return ERR_OK;
    switch (j->how) {
    case TOK_ISOLATED: return level(j->r, j->next, j->s + b, e - b);
    case TOK_REMOVED: return match ? ERR_OK : level(j->r, j->next, j->s + b, e - b);
    default: break;
    }
    bool join = j->have && (j->how == TOK_CONTIGUOUS ? match == j->matched
                            : j->how == TOK_MERGED_PREVIOUS ? match && !j->matched : !match && j->matched);
    if (!join) {
        rc = flush(j);
        j->b = b;
        j->have = true;
    }
    j->e = e;
    j->matched = match;
    return rc;
}

static int split_re(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    const struct tok_op *op = &r->t->d.split[k];
    struct joiner j = {.r = r, .s = s, .next = k + 1, .how = op->behaviour};
    size_t at = 0, b, e;
    int rc = ERR_OK;
    if (!r->md[k] && !(r->md[k] = pcre2_match_data_create(1, NULL)))
        return err_set(r->e, ERR_NOMEM, "tokenizer: match data");
    while (!rc && at < n && tok_re_next(r, &r->t->re[k], r->md[k], s, n, at, &b, &e, &rc)) {
        rc = take(&j, at, b, op->invert);
        if (!rc)
            rc = take(&j, b, e, !op->invert);
        at = e;
    }
    if (!rc)
        rc = take(&j, at, n, op->invert);
    return rc ? rc : flush(&j);
}

static int split_string(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    const struct tok_op *op = &r->t->d.split[k];
    struct joiner j = {.r = r, .s = s, .next = k + 1, .how = op->behaviour};
    size_t at = 0;
    int rc = ERR_OK;
    const char *m;
    while (!rc && at < n && (m = tok_find(s + at, n - at, op->a, op->an))) {
        size_t b = (size_t)(m - s);
        rc = take(&j, at, b, op->invert);
        if (!rc)
            rc = take(&j, b, b + op->an, !op->invert);
        at = b + op->an;
    }
    if (!rc)
        rc = take(&j, at, n, op->invert);
    return rc ? rc : flush(&j);
}

static int with_buf(struct tok_run *r, struct buf *b)
{
    return b->failed ? err_set(r->e, ERR_NOMEM, "tokenizer: %zu bytes of a prepared stretch", b->len) : ERR_OK;
}

static int space_prefix(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    struct buf *b = &r->level[k];
    if (n == 0 || s[0] == ' ' || r->continues)
        return level(r, k + 1, s, n);
    buf_reset(b);
    buf_char(b, ' ');
    buf_add(b, s, n);
    int rc = with_buf(r, b);
    return rc ? rc : level(r, k + 1, b->data, b->len);
}

/* Kimi's own class hands its tokenizer at most 400,000 characters, and inside these at most 25,000 of one kind in a row. */
static int cut(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    enum { TEXT = 400000, RUN = 25000 };
    size_t from = 0, text = 0, run = 0;
    bool kind = false;
    int rc = ERR_OK;
    if (n <= RUN)
        return level(r, k + 1, s, n);
    for (size_t i = 0; !rc && i < n; i += tok_utf8_len((uint8_t)s[i])) {
        bool space = py_space(s + i);
        bool fresh = text == TEXT;
        if (fresh)
            text = 0;
        if (text == 0 || space != kind) {
            run = 0;
            kind = space;
        }
        if (i > from && (fresh || run == RUN)) {
            rc = level(r, k + 1, s + from, i - from);
            from = i;
            run = run == RUN ? 0 : run;
        }
        text++;
        run++;
    }
    return rc ? rc : level(r, k + 1, s + from, n - from);
}

/* Metaspace: spaces become the mark, one is put in front if the scheme says so and none is there, each mark starts a piece. */
static int meta(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    const struct tok_op *op = &r->t->d.split[k];
    struct buf *b = &r->level[k];
    char scheme = op->b[0];
    size_t i = 0;
    buf_reset(b);
    bool marked = n >= op->an && !memcmp(s, op->a, op->an);
    if (!r->continues && (scheme == 'a' || (scheme == 'f' && r->at_start)) && n && s[0] != ' ' && !marked)
        buf_add(b, op->a, op->an);
    for (size_t at = 0; at < n; at = i + 1) {
        const char *sp = memchr(s + at, ' ', n - at);
        i = sp ? (size_t)(sp - s) : n;
        buf_add(b, s + at, i - at);
        if (sp)
            buf_add(b, op->a, op->an);
    }
    int rc = with_buf(r, b);
    if (rc || op->b[1] == 'n')
        return rc ? rc : level(r, k + 1, b->data, b->len);
    for (size_t at = 0; !rc && at < b->len; at = i) {
        const char *m = b->len - at > op->an ? tok_find(b->data + at + op->an, b->len - at - op->an, op->a, op->an) : NULL;
        if (memcmp(b->data + at, op->a, b->len - at < op->an ? b->len - at : op->an)) /* text in front of the first mark */
            m = tok_find(b->data + at, b->len - at, op->a, op->an);
        i = m ? (size_t)(m - b->data) : b->len;
        rc = level(r, k + 1, b->data + at, i - at);
    }
    return rc;
}

static int level(struct tok_run *r, unsigned k, const char *s, size_t n)
{
    if (n == 0)
        return ERR_OK;
    if (k == r->t->d.n_split)
        return tok_piece_ids(r, s, n);
    switch (r->t->d.split[k].kind) {
    case TOK_SPLIT_RE: return split_re(r, k, s, n);
    case TOK_SPLIT_STRING: return split_string(r, k, s, n);
    case TOK_SPLIT_CUT: return cut(r, k, s, n);
    case TOK_SPLIT_SPACE_PREFIX: return space_prefix(r, k, s, n);
    default: return meta(r, k, s, n);
    }
}

int tok_split(struct tok_run *r, const char *s, size_t n)
{
    return level(r, 0, s, n);
}
