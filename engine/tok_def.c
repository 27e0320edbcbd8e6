/* engine/tok_def.c - the neutral definition of a tokenizer: growing lists with bounds, filled by the readers. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

enum { POOL_MAX = 1 << 30, MERGES_MAX = 1 << 24, MEM_MAX = 1 << 28 };

int tok_def_init(struct tok_def *d, struct err *e)
{
    (void)e;
    memset(d, 0, sizeof *d);
    arena_init(&d->mem, MEM_MAX);
    buf_init(&d->pool, POOL_MAX);
    buf_init(&d->merge_pool, POOL_MAX);
    d->unk = d->bos = -1;
    return ERR_OK;
}

void tok_def_free(struct tok_def *d)
{
    arena_free(&d->mem);
    buf_free(&d->pool);
    buf_free(&d->merge_pool);
    free(d->pieces);
    free(d->merge_texts);
    free(d->merges);
    free(d->added);
    memset(d, 0, sizeof *d);
}

/* Room for one more element of an array; doubling, so that growing is linear in total. */
static void *room(void *p, uint32_t n, uint32_t *cap, size_t size, uint32_t max, const char *what, struct err *e)
{
    if (n < *cap)
        return p;
    if (n >= max) {
        err_set(e, ERR_LIMIT, "tokenizer: more than %u %s", max, what);
        return NULL;
    }
    uint32_t more = *cap ? (*cap > max / 2 ? max : *cap * 2) : 64;
    void *q = realloc(p, (size_t)more * size);
    if (!q)
        err_set(e, ERR_NOMEM, "tokenizer: %u %s", more, what);
    else
        *cap = more;
    return q;
}

static int grow_ids(struct tok_def *d, uint32_t id, struct err *e)
{
    if (id >= TOK_IDS_MAX)
        return err_set(e, ERR_LIMIT, "tokenizer: id %u, at most %d ids", id, TOK_IDS_MAX);
    if (id >= d->cap_ids) {
        uint32_t cap = d->cap_ids ? d->cap_ids : 1024;
        while (cap <= id)
            cap *= 2;
        struct tok_piece *p = realloc(d->pieces, (size_t)cap * sizeof *p);
        if (!p)
            return err_set(e, ERR_NOMEM, "tokenizer: %u pieces", cap);
        d->pieces = p;
        d->cap_ids = cap;
    }
    if (id >= d->n_ids) {
        memset(d->pieces + d->n_ids, 0, (id + 1 - d->n_ids) * sizeof *d->pieces);
        d->n_ids = id + 1;
    }
    return ERR_OK;
}

int tok_def_piece(struct tok_def *d, uint32_t id, const char *s, size_t n, double score, struct err *e)
{
    int rc = n > TOK_PIECE_BYTES_MAX ? err_set(e, ERR_LIMIT, "tokenizer: piece %u has %zu bytes, at most %d", id, n, TOK_PIECE_BYTES_MAX) : grow_ids(d, id, e);
    if (rc)
        return rc;
    struct tok_piece *p = &d->pieces[id];
    if (p->used)
        return err_set(e, ERR_FORMAT, "tokenizer: id %u is both \"%.*s\" and \"%.*s\"", id, (int)p->n, d->pool.data + p->off, (int)n, s);
    size_t off = d->pool.len;
    if (!buf_add(&d->pool, s, n))
        return err_set(e, ERR_NOMEM, "tokenizer: %zu bytes of pieces", off + n);
    *p = (struct tok_piece){.off = (uint32_t)off, .n = (uint32_t)n, .score = score, .used = true};
    d->n_used++;
    return ERR_OK;
}

int tok_def_merge_text(struct tok_def *d, const char *l, size_t ln, const char *r, size_t rn, struct err *e)
{
    struct tok_merge_text *p = room(d->merge_texts, d->n_merge_texts, &d->cap_merge_texts, sizeof *p, MERGES_MAX, "merges", e);
    if (!p)
        return e ? e->code : ERR_LIMIT;
    d->merge_texts = p;
    size_t off = d->merge_pool.len;
    if (!buf_add(&d->merge_pool, l, ln) || !buf_add(&d->merge_pool, r, rn))
        return err_set(e, ERR_NOMEM, "tokenizer: %zu bytes of merges", off + ln + rn);
    d->merge_texts[d->n_merge_texts++] = (struct tok_merge_text){(uint32_t)off, (uint32_t)ln, (uint32_t)rn};
    return ERR_OK;
}

int tok_def_merge_line(struct tok_def *d, const char *s, size_t n, struct err *e)
{
    const char *sp = n > 1 ? memchr(s + 1, ' ', n - 1) : NULL;
    if (!sp || sp + 1 == s + n || memchr(sp + 1, ' ', (size_t)(s + n - sp - 1)))
        return err_set(e, ERR_FORMAT, "tokenizer: merge %u: expected two pieces with a space between, found \"%.*s\"", d->n_merge_texts, (int)n, s);
    return tok_def_merge_text(d, s, (size_t)(sp - s), sp + 1, (size_t)(s + n - sp - 1), e);
}

int tok_def_merge(struct tok_def *d, const struct tok_merge *m, struct err *e)
{
    struct tok_merge *p = room(d->merges, d->n_merges, &d->cap_merges, sizeof *p, MERGES_MAX, "merges", e);
    if (!p)
        return e ? e->code : ERR_LIMIT;
    d->merges = p;
    d->merges[d->n_merges++] = *m;
    return ERR_OK;
}

int tok_def_added(struct tok_def *d, int32_t id, const char *s, size_t n, unsigned flags, struct err *e)
{
    if (n == 0 || n > TOK_ADDED_BYTES_MAX)
        return err_set(e, n ? ERR_LIMIT : ERR_FORMAT, "tokenizer: added token %d has %zu bytes, expected 1 to %d", id, n, TOK_ADDED_BYTES_MAX);
    if (id < 0 || id >= TOK_IDS_MAX)
        return err_set(e, ERR_FORMAT, "tokenizer: added token \"%.*s\" has id %d", (int)n, s, id);
    struct tok_added *p = room(d->added, d->n_added, &d->cap_added, sizeof *p, 1 << 20, "added tokens", e);
    if (!p)
        return e ? e->code : ERR_LIMIT;
    d->added = p;
    char *copy = arena_strdup(&d->mem, s, n);
    if (!copy)
        return err_set(e, ERR_NOMEM, "tokenizer: added token %d", id);
    d->added[d->n_added++] = (struct tok_added){id, (uint32_t)n, copy, (uint8_t)flags};
    return ERR_OK;
}

int tok_def_op(struct tok_def *d, bool split, uint8_t kind, uint8_t behaviour, bool invert,
               const char *a, size_t an, const char *b, size_t bn, struct err *e)
{
    unsigned *n = split ? &d->n_split : &d->n_norm;
    struct tok_op *op = (split ? d->split : d->norm) + *n;
    if (*n == TOK_OPS_MAX)
        return err_set(e, ERR_LIMIT, "tokenizer: more than %d %s", TOK_OPS_MAX, split ? "pre-tokenizers" : "normalizers");
    *op = (struct tok_op){kind, behaviour, invert, NULL, NULL, (uint32_t)an, (uint32_t)bn};
    if (an > UINT32_MAX || bn > UINT32_MAX || !(op->a = arena_strdup(&d->mem, a ? a : "", an)) || !(op->b = arena_strdup(&d->mem, b ? b : "", bn)))
        return err_set(e, ERR_NOMEM, "tokenizer: %zu bytes of a normalizer or pre-tokenizer", an + bn);
    ++*n;
    return ERR_OK;
}

void tok_def_eos(struct tok_def *d, int64_t id)
{
    if (id < 0 || id >= TOK_IDS_MAX || d->n_eos == TOK_EOS_MAX)
        return;
    for (unsigned i = 0; i < d->n_eos; i++)
        if (d->eos[i] == id)
            return;
    d->eos[d->n_eos++] = (int32_t)id;
}

void tok_def_named_eos(struct tok_def *d)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|return|>", "<|call|>"};
    for (uint32_t i = 0; i < d->n_added; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if ((d->added[i].flags & TOK_SPECIAL) && d->added[i].n == strlen(names[k]) && !memcmp(d->added[i].s, names[k], d->added[i].n))
                tok_def_eos(d, d->added[i].id);
}
