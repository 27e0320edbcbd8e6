/* engine/tok_bpe.c - one piece to ids: symbols, then the pair of lowest rank is joined (leftmost among equals) until none is left.
 *
 * Short pieces keep the ranks in an array and scan it; long ones use a heap over a linked list, n log n whatever the text. Words
 * repeat, so a direct-mapped cache of short pieces answers most of an ordinary text. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

static const struct tok_pair *pair_find(struct tok_run *r, int32_t left, int32_t right)
{
    const eng_tok *t = r->t;
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9E3779B97F4A7C15) ^ t->seed;
    r->work++;
    for (uint32_t k = (uint32_t)(h >> 32) & t->pair_mask; t->pairs[k].out != UINT32_MAX; k = (k + 1) & t->pair_mask)
        if (t->pairs[k].left == (uint32_t)left && t->pairs[k].right == (uint32_t)right)
            return &t->pairs[k];
    return NULL;
}

static int push_id(struct tok_run *r, int32_t id)
{
    struct eng_ids *v = r->ids;
    if (v->n < v->cap) {
        v->v[v->n++] = id;
        return ERR_OK;
    }
    return eng_ids_push(v, id, r->e);
}

static int sym_room(struct tok_run *r, size_t n)
{
    if (n <= r->cap_sym)
        return ERR_OK;
    struct tok_sym *p = n > INT32_MAX ? NULL : realloc(r->sym, n * sizeof *p);
    if (!p)
        return err_set(r->e, ERR_NOMEM, "tokenizer: a piece of %zu symbols", n);
    r->sym = p;
    r->cap_sym = n;
    return ERR_OK;
}

/* Symbols of a stretch of characters: a piece of its own, else its bytes, else the unknown token (one for a run if fused). */
static size_t symbols_of_chars(struct tok_run *r, const char *s, size_t n)
{
    const eng_tok *t = r->t;
    size_t k = 0;
    bool unk_open = false;
    for (size_t i = 0, len; i < n; i += len) {
        len = tok_utf8_len((uint8_t)s[i]);
        int32_t id = tok_map_find(t, &t->by_raw, true, s + i, len);
        if (id >= 0) {
            r->sym[k++].id = id;
            unk_open = false;
            continue;
        }
        bool bytes = (t->d.flags & TOK_BYTE_FALLBACK) != 0;
        for (size_t b = 0; bytes && b < len; b++)
            bytes = t->byte_id[(uint8_t)s[i + b]] >= 0;
        if (bytes) {
            for (size_t b = 0; b < len; b++)
                r->sym[k++].id = t->byte_id[(uint8_t)s[i + b]];
            unk_open = false;
        } else if (t->d.unk >= 0) {
            if (!unk_open || !(t->d.flags & TOK_FUSE_UNK))
                r->sym[k++].id = t->d.unk;
            unk_open = true;
        }
    }
    return k;
}

/* A byte without a piece is dropped before merging (SmolLM2 lacks 21 of them): its neighbours may merge. */
static size_t symbols_of_bytes(struct tok_run *r, const char *s, size_t n)
{
    const eng_tok *t = r->t;
    size_t k = 0;
    bool unk_open = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)s[i]];
        if (id < 0 && (id = t->d.unk) >= 0 && unk_open && (t->d.flags & TOK_FUSE_UNK))
            continue;
        unk_open = t->byte_id[(uint8_t)s[i]] < 0;
        if (id >= 0)
            r->sym[k++].id = id;
    }
    return k;
}

static int merge_small(struct tok_run *r, size_t n)
{
    struct tok_sym *s = r->sym;
    uint32_t rank[TOK_SMALL], out[TOK_SMALL];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_pair *p = pair_find(r, s[i].id, s[i + 1].id);
        rank[i] = p ? p->rank : UINT32_MAX;
        out[i] = p ? p->out : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        s[best].id = (int32_t)out[best];
        n--;
        for (size_t i = best + 1; i < n; i++)
            s[i].id = s[i + 1].id;
        for (size_t i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            out[i] = out[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tok_pair *p = pair_find(r, s[i].id, s[i + 1].id);
            rank[i] = p ? p->rank : UINT32_MAX;
            out[i] = p ? p->out : 0;
        }
    }
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < n; i++)
        rc = push_id(r, s[i].id);
    return rc;
}

static void sift_up(struct tok_run *r, size_t i)
{
    struct tok_cand c = r->heap[i];
    for (; i && c.key < r->heap[(i - 1) / 2].key; i = (i - 1) / 2, r->work++)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = c;
}

static struct tok_cand heap_pop(struct tok_run *r)
{
    struct tok_cand top = r->heap[0], c = r->heap[--r->n_heap];
    size_t i = 0, k;
    for (; (k = 2 * i + 1) < r->n_heap; i = k, r->work++) {
        if (k + 1 < r->n_heap && r->heap[k + 1].key < r->heap[k].key)
            k++;
        if (c.key <= r->heap[k].key)
            break;
        r->heap[i] = r->heap[k];
    }
    if (r->n_heap)
        r->heap[i] = c;
    return top;
}

static int offer(struct tok_run *r, int32_t at)
{
    int32_t next = r->sym[at].next;
    const struct tok_pair *p = next < 0 ? NULL : pair_find(r, r->sym[at].id, r->sym[next].id);
    if (!p)
        return ERR_OK;
    if (r->n_heap == r->cap_heap) {
        size_t cap = r->cap_heap ? r->cap_heap * 2 : 1024;
        struct tok_cand *h = realloc(r->heap, cap * sizeof *h);
        if (!h)
            return err_set(r->e, ERR_NOMEM, "tokenizer: %zu candidates", cap);
        r->heap = h;
        r->cap_heap = cap;
    }
    r->heap[r->n_heap] = (struct tok_cand){(uint64_t)p->rank << 32 | (uint32_t)at, p->left, p->right};
    sift_up(r, r->n_heap++);
    return ERR_OK;
}

/* Each join leaves at most two new candidates, so at most 3n are ever pushed; one whose symbols have changed since is passed over. */
static int merge_long(struct tok_run *r, size_t n)
{
    struct tok_sym *s = r->sym;
    int rc = ERR_OK;
    r->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        s[i].prev = (int32_t)i - 1;
        s[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; !rc && i + 1 < n; i++)
        rc = offer(r, (int32_t)i);
    while (!rc && r->n_heap) {
        struct tok_cand c = heap_pop(r);
        int32_t at = (int32_t)(uint32_t)c.key, next = s[at].next;
        if (next < 0 || (uint32_t)s[at].id != c.left || (uint32_t)s[next].id != c.right)
            continue;
        const struct tok_pair *p = pair_find(r, s[at].id, s[next].id);
        s[at].id = (int32_t)p->out;
        s[at].next = s[next].next;
        s[next].id = -2;
        s[next].next = -1;
        if (s[at].next >= 0)
            s[s[at].next].prev = at;
        rc = offer(r, at);
        if (!rc && s[at].prev >= 0)
            rc = offer(r, s[at].prev);
    }
    for (int32_t i = 0; !rc && i >= 0; i = s[i].next)
        rc = push_id(r, s[i].id);
    return rc;
}

int tok_bpe(struct tok_run *r, const char *s, size_t n)
{
    bool bytes = (r->t->d.flags & TOK_BYTE_LEVEL) != 0;
    int rc = sym_room(r, n < TOK_SMALL ? TOK_SMALL : n);
    if (rc)
        return rc;
    size_t k = bytes ? symbols_of_bytes(r, s, n) : symbols_of_chars(r, s, n);
    return k == 0 ? ERR_OK : k <= TOK_SMALL ? merge_small(r, k) : merge_long(r, k);
}

static int word(struct tok_run *r, const char *s, size_t n)
{
    const eng_tok *t = r->t;
    if (t->d.flags & TOK_IGNORE_MERGES) {
        int32_t id = tok_map_find(t, &t->by_raw, true, s, n);
        if (id >= 0)
            return push_id(r, id);
    }
    return tok_bpe(r, s, n);
}

static int cached(struct tok_run *r, const char *s, size_t n)
{
    if (!r->cache || n > TOK_CACHE_KEY)
        return word(r, s, n);
    struct tok_cached *c = &r->cache[tok_hash(r->t->seed, s, n) & r->cache_mask];
    if (c->n_key == n && !memcmp(c->key, s, n)) {
        int rc = ERR_OK;
        for (unsigned i = 0; !rc && i < c->n_ids; i++)
            rc = push_id(r, c->ids[i]);
        return rc;
    }
    size_t before = r->ids->n;
    int rc = word(r, s, n);
    size_t made = r->ids->n - before;
    if (!rc && made && made <= TOK_CACHE_IDS) {
        c->n_key = (uint8_t)n;
        c->n_ids = (uint8_t)made;
        memcpy(c->key, s, n);
        memcpy(c->ids, r->ids->v + before, made * sizeof *c->ids);
    }
    return rc;
}

/* SentencePiece BPE has no split pattern, but hardly a merge joins a word's end and the mark of the next: cut where none can. */
static int words(struct tok_run *r, const char *s, size_t n)
{
    size_t from = 0, at = 0;
    int rc = ERR_OK;
    while (!rc && at < n) {
        const char *m = tok_find(s + at, n - at, "\xE2\x96\x81", 3);
        size_t cut = m ? (size_t)(m - s) : n;
        bool after_text = cut > from && !r->t->no_cut[(uint8_t)s[cut - 1]] && (cut - from < 3 || memcmp(s + cut - 3, "\xE2\x96\x81", 3));
        if (cut == n || after_text) {
            rc = cached(r, s + from, cut - from);
            from = cut;
        }
        at = cut + 3;
    }
    return rc || from >= n ? rc : cached(r, s + from, n - from);
}

int tok_piece_ids(struct tok_run *r, const char *s, size_t n)
{
    if (r->t->d.model == TOK_UNIGRAM)
        return tok_unigram(r, s, n);
    if (r->t->cut_at_space && !(r->t->d.flags & TOK_IGNORE_MERGES))
        return words(r, s, n);
    return cached(r, s, n);
}
