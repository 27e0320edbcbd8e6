/* engine/tok_blob.c - the canonical form of a tokenizer: what an engine sends to a gateway and names by its SHA-256.
 *
 * Little-endian; counts before lists, lengths before texts; pieces in the order of their ids, so equal tokenizers give equal bytes.
 * Loading trusts nothing: no list is longer than what is left of the input, and tok_build checks what the lists say. */
#include <math.h>
#include <string.h>

#include "engine/tok_internal.h"

enum { BLOB_MAGIC = 0x4B544C53 /* SLTK */, BLOB_VERSION = 1 };

static void put_ids(struct buf *b, const int32_t *v, unsigned n)
{
    buf_u32(b, n);
    for (unsigned i = 0; i < n; i++)
        buf_u32(b, (uint32_t)v[i]);
}

static void put_ops(struct buf *b, const struct tok_op *op, unsigned n)
{
    buf_u32(b, n);
    for (unsigned i = 0; i < n; i++) {
        buf_u8(b, op[i].kind);
        buf_u8(b, op[i].behaviour);
        buf_u8(b, op[i].invert);
        buf_blob(b, op[i].a, op[i].an);
        buf_blob(b, op[i].b, op[i].bn);
    }
}

int eng_tok_save(const eng_tok *t, struct buf *b, struct err *e)
{
    const struct tok_def *d = &t->d;
    buf_u32(b, BLOB_MAGIC);
    buf_u32(b, BLOB_VERSION);
    buf_u8(b, (uint8_t)d->model);
    buf_u32(b, d->flags);
    buf_u32(b, (uint32_t)d->unk);
    buf_u32(b, (uint32_t)d->bos);
    put_ids(b, d->head, d->n_head);
    put_ids(b, d->tail, d->n_tail);
    put_ids(b, d->eos, d->n_eos);
    put_ops(b, d->norm, d->n_norm);
    put_ops(b, d->split, d->n_split);
    buf_u32(b, d->n_used);
    for (uint32_t i = 0; i < d->n_ids; i++) {
        uint64_t bits;
        if (!d->pieces[i].used)
            continue;
        memcpy(&bits, &d->pieces[i].score, 8);
        buf_u32(b, i);
        buf_u64(b, bits);
        buf_blob(b, d->pool.data + d->pieces[i].off, d->pieces[i].n);
    }
    buf_u32(b, d->n_merges);
    for (uint32_t i = 0; i < d->n_merges; i++) {
        buf_u32(b, (uint32_t)d->merges[i].left);
        buf_u32(b, (uint32_t)d->merges[i].right);
        buf_u32(b, (uint32_t)d->merges[i].out);
        buf_u32(b, d->merges[i].rank);
    }
    buf_u32(b, d->n_added);
    for (uint32_t i = 0; i < d->n_added; i++) {
        buf_u32(b, (uint32_t)d->added[i].id);
        buf_u8(b, d->added[i].flags);
        buf_blob(b, d->added[i].s, d->added[i].n);
    }
    return b->failed ? err_set(e, ERR_LIMIT, "tokenizer: its saved form has more than %zu bytes", b->max) : ERR_OK;
}

static int damaged(struct err *e, const char *what)
{
    return err_set(e, ERR_FORMAT, "saved tokenizer: %s", what);
}

static int get_ids(struct rd *r, int32_t *v, unsigned *n, unsigned max, struct err *e)
{
    uint32_t k = rd_u32(r);
    if (k > max)
        return damaged(e, "a list of ids is too long");
    for (*n = 0; *n < k; ++*n)
        if ((v[*n] = (int32_t)rd_u32(r)) < 0)
            return damaged(e, "an id is negative");
    return ERR_OK;
}

static int get_ops(struct rd *r, struct tok_def *d, bool split, struct err *e)
{
    uint32_t k = rd_u32(r);
    int rc = ERR_OK;
    for (uint32_t i = 0; !rc && i < k; i++) {
        size_t an = 0, bn = 0;
        uint8_t kind = rd_u8(r), how = rd_u8(r), invert = rd_u8(r);
        const char *a = rd_blob(r, &an), *b = rd_blob(r, &bn);
        bool known = split ? kind >= TOK_SPLIT_RE && kind <= TOK_SPLIT_META : kind >= TOK_NORM_NFC && kind <= TOK_NORM_PRECOMPILED;
        bool needs_text = kind == TOK_SPLIT_STRING || kind == TOK_SPLIT_META || kind == TOK_NORM_REPLACE;
        if (r->bad || !known || how > TOK_CONTIGUOUS || invert > 1 || (needs_text && an == 0) || (kind == TOK_SPLIT_META && bn != 2))
            return damaged(e, "a normalizer or pre-tokenizer is not one");
        size_t bad;
        if (kind != TOK_NORM_PRECOMPILED && (!tok_utf8_valid(a, an, &bad) || !tok_utf8_valid(b, bn, &bad)))
            return damaged(e, "a text is not UTF-8");
        rc = tok_def_op(d, split, kind, how, invert, a, an, b, bn, e);
    }
    return rc;
}

static int get_pieces(struct rd *r, struct tok_def *d, struct err *e)
{
    uint32_t k = rd_u32(r);
    int rc = ERR_OK;
    for (uint32_t i = 0, last = 0; !rc && i < k; i++) {
        size_t n = 0;
        double score;
        uint32_t id = rd_u32(r);
        uint64_t bits = rd_u64(r);
        const char *s = rd_blob(r, &n);
        memcpy(&score, &bits, 8);
        if (r->bad || !isfinite(score) || (i && id <= last) || id > 2 * k + 65536)
            return damaged(e, "a piece is not one");
        rc = tok_def_piece(d, id, s, n, score, e);
        last = id;
    }
    return rc;
}

static int get_lists(struct rd *r, struct tok_def *d, struct err *e)
{
    int rc = get_pieces(r, d, e);
    uint32_t k = rd_u32(r);
    for (uint32_t i = 0; !rc && i < k; i++) {
        struct tok_merge m = {.left = (int32_t)rd_u32(r), .right = (int32_t)rd_u32(r)};
        m.out = (int32_t)rd_u32(r);
        m.rank = rd_u32(r);
        if (r->bad || m.left < 0 || m.right < 0 || m.out < 0)
            return damaged(e, "a merge is not one");
        rc = tok_def_merge(d, &m, e);
    }
    k = rc ? 0 : rd_u32(r);
    for (uint32_t i = 0; !rc && i < k; i++) {
        size_t n = 0;
        int32_t id = (int32_t)rd_u32(r);
        uint8_t flags = rd_u8(r);
        const char *s = rd_blob(r, &n);
        size_t bad;
        if (r->bad || !tok_utf8_valid(s, n, &bad))
            return damaged(e, "an added token is not one");
        rc = tok_def_added(d, id, s, n, flags, e);
    }
    if (!rc && (r->bad || rd_left(r)))
        rc = damaged(e, r->bad ? "it is cut off" : "bytes behind the end");
    return rc;
}

int eng_tok_load(eng_tok **out, const void *p, size_t n, struct err *e)
{
    struct rd r = rd_of(p, n);
    struct tok_def d;
    int rc = tok_def_init(&d, e);
    *out = NULL;
    if (!rc && (rd_u32(&r) != BLOB_MAGIC || rd_u32(&r) != BLOB_VERSION))
        rc = damaged(e, "it does not begin as one, or has another version");
    uint8_t model = rd_u8(&r);
    d.flags = rd_u32(&r);
    d.unk = (int32_t)rd_u32(&r);
    d.bos = (int32_t)rd_u32(&r);
    d.model = model == TOK_UNIGRAM ? TOK_UNIGRAM : TOK_BPE;
    if (!rc && ((model != TOK_BPE && model != TOK_UNIGRAM) || (d.flags & ~(unsigned)TOK_FLAGS_ALL) || d.unk < -1 || d.bos < -1))
        rc = damaged(e, "its model or flags are unknown");
    if (!rc && !(rc = get_ids(&r, d.head, &d.n_head, TOK_WRAP_MAX, e)) && !(rc = get_ids(&r, d.tail, &d.n_tail, TOK_WRAP_MAX, e)) &&
        !(rc = get_ids(&r, d.eos, &d.n_eos, TOK_EOS_MAX, e)) && !(rc = get_ops(&r, &d, false, e)) && !(rc = get_ops(&r, &d, true, e)))
        rc = get_lists(&r, &d, e);
    if (!rc)
        return tok_build(out, &d, e);
    tok_def_free(&d);
    return rc;
}
