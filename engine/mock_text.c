/* The text cut into tokens, and a byte-level tokenizer whose pieces are the 256 bytes and the words of the text. Its saved form goes
 * to gateways, which count and render prompts with it as with any other. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/mock_internal.h"
#include "engine/tok_internal.h"

enum { TOKEN_BYTES = 32, BYTES = 256 };
static const char stamp[] = "{ns}", eos[] = "<|end|>";

/* A word and the blanks before it, cut at TOKEN_BYTES between characters; {ns} stays whole. */
static uint32_t token_len(const char *s, size_t n)
{
    size_t i = 0, len;
    bool word = false;
    while (i < n) {
        bool blank = s[i] == ' ' || s[i] == '\n' || s[i] == '\t';
        if (blank && word)
            break;
        word |= !blank;
        bool st = n - i >= sizeof stamp - 1 && !memcmp(s + i, stamp, sizeof stamp - 1);
        len = st ? sizeof stamp - 1 : tok_utf8_len((uint8_t)s[i]);
        if (i && i + len > TOKEN_BYTES)
            break;
        i += len;
        if (st)
            break;
    }
    return (uint32_t)i;
}

static int cut(struct mock_text *x, struct err *e)
{
    if (!(x->t = calloc(x->n, sizeof *x->t)))
        return err_set(e, ERR_NOMEM, "mock: %zu tokens", x->n);
    for (size_t at = 0; at < x->n;) {
        struct mock_token *t = &x->t[x->n_t++];
        *t = (struct mock_token){.off = (uint32_t)at, .n = token_len(x->s + at, x->n - at), .stamp = -1};
        const char *p = memmem(x->s + at, t->n, stamp, sizeof stamp - 1);
        if (p)
            t->stamp = (int32_t)(p - (x->s + at));
        at += t->n;
    }
    return ERR_OK;
}

/* ---- the tokenizer -------------------------------------------------------------------------------------------- */

struct letters { uint8_t n[BYTES]; char s[BYTES][2]; }; /* the byte alphabet in UTF-8 */

static void letters_make(struct letters *l)
{
    for (uint32_t cp = 1; cp < 0x200; cp++) {
        int b = tok_byte_of_char(cp);
        if (b < 0)
            continue;
        l->n[b] = cp < 0x80 ? 1 : 2;
        l->s[b][0] = (char)(cp < 0x80 ? cp : 0xc0 | cp >> 6);
        l->s[b][1] = (char)(0x80 | (cp & 0x3f));
    }
}

static int add_piece(struct tok_def *d, const struct letters *l, const char *s, size_t n, int32_t id, struct err *e)
{
    char piece[2 * TOKEN_BYTES];
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)s[i];
        memcpy(piece + k, l->s[b], l->n[b]);
        k += l->n[b];
    }
    return tok_def_piece(d, (uint32_t)id, piece, k, 0, e);
}

/* Equal tokens share an id. table: token index + 1, open addressing. */
static int add_words(struct mock_text *x, struct tok_def *d, const struct letters *l, uint32_t *table, uint32_t mask, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t i = 0; !rc && i < x->n_t; i++) {
        struct mock_token *t = &x->t[i];
        const char *s = x->s + t->off;
        uint32_t at = (uint32_t)hash_bytes(s, t->n, 1) & mask;
        if (t->n == 1) {
            t->id = (uint8_t)*s;
            continue;
        }
        while (table[at] && (x->t[table[at] - 1].n != t->n || memcmp(x->s + x->t[table[at] - 1].off, s, t->n)))
            at = (at + 1) & mask;
        if (table[at]) {
            t->id = x->t[table[at] - 1].id;
            continue;
        }
        table[at] = i + 1;
        t->id = (int32_t)x->vocab++;
        rc = add_piece(d, l, s, t->n, t->id, e);
    }
    return rc;
}

static int define(struct mock_text *x, struct tok_def *d, struct err *e)
{
    struct letters l = {0};
    const char *pattern = tok_known_pattern(TOK_RE_GPT2);
    uint32_t size = 64;
    int rc = ERR_OK;
    while (size < 2 * x->n_t)
        size *= 2;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return err_set(e, ERR_NOMEM, "mock: table of %u tokens", size);
    letters_make(&l);
    d->model = TOK_BPE;
    d->flags = TOK_BYTE_LEVEL | TOK_DEC_BYTES | TOK_IGNORE_MERGES;
    for (int b = 0; !rc && b < BYTES; b++)
        rc = add_piece(d, &l, &(char){(char)b}, 1, b, e);
    x->vocab = BYTES;
    if (!rc)
        rc = add_words(x, d, &l, table, size - 1, e);
    x->eos = (int32_t)x->vocab++;
    if (!rc && !(rc = tok_def_added(d, x->eos, eos, sizeof eos - 1, TOK_SPECIAL, e)))
        rc = tok_def_op(d, true, TOK_SPLIT_RE, TOK_ISOLATED, false, pattern, strlen(pattern), "", 0, e);
    tok_def_eos(d, x->eos);
    free(table);
    return rc;
}

static int make_tokenizer(struct mock_text *x, struct err *e)
{
    struct tok_def d;
    eng_tok *t;
    int rc = tok_def_init(&d, e);
    if (rc)
        return rc;
    if ((rc = define(x, &d, e))) {
        tok_def_free(&d);
        return rc;
    }
    if ((rc = tok_build(&t, &d, e)))
        return rc;
    buf_init(&x->blob, 256u << 20);
    rc = eng_tok_save(t, &x->blob, e);
    eng_tok_close(t);
    return rc;
}

/* ---- the front ------------------------------------------------------------------------------------------------ */

int mock_text_open(struct mock_text *x, const char *s, struct err *e)
{
    size_t bad, n = s ? strlen(s) : 0;
    int rc;
    memset(x, 0, sizeof *x);
    if (!n || n > ENG_MOCK_TEXT_MAX)
        return err_set(e, ERR_INVALID, "--mock: expected a text of 1 to %d bytes, found %zu", ENG_MOCK_TEXT_MAX, n);
    if (!tok_utf8_valid(s, n, &bad))
        return err_set(e, ERR_INVALID, "--mock: byte %zu is not UTF-8", bad);
    x->n = n;
    if (!(x->s = strdup(s)))
        return err_set(e, ERR_NOMEM, "mock: text of %zu bytes", n);
    if ((rc = cut(x, e)) || (rc = make_tokenizer(x, e)))
        mock_text_close(x);
    return rc;
}

void mock_text_close(struct mock_text *x)
{
    free(x->s);
    free(x->t);
    buf_free(&x->blob);
    memset(x, 0, sizeof *x);
}

void mock_text_put(const struct mock_text *x, uint32_t i, uint64_t time_ns, struct buf *out)
{
    const struct mock_token *t = &x->t[i % x->n_t];
    const char *s = x->s + t->off;
    char digits[ENG_MOCK_STAMP + 1];
    if (t->stamp < 0) {
        buf_add(out, s, t->n);
        return;
    }
    size_t skip = (size_t)t->stamp + sizeof stamp - 1;
    snprintf(digits, sizeof digits, "%019" PRIu64, time_ns);
    buf_add(out, s, (size_t)t->stamp);
    buf_add(out, digits, ENG_MOCK_STAMP);
    buf_add(out, s + skip, t->n - skip);
}
