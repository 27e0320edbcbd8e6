/* engine/tok_build.c - from a definition to look-up tables: pieces by text and by bytes, merges by pair, added tokens, patterns.
 *
 * Refuses what contradicts itself: one id with two texts, one text with two ids, a merge whose parts or result are no pieces. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/tok_internal.h"

static const char *piece(const struct tok_def *d, int32_t id, int *n)
{
    *n = (int)d->pieces[id].n;
    return d->pool.data + d->pieces[id].off;
}

/* Added tokens join the pieces; one that is a piece already must be that very piece. */
static int merge_added(struct tok_def *d, struct err *e)
{
    for (uint32_t i = 0; i < d->n_added; i++) {
        const struct tok_added *a = &d->added[i];
        if ((uint32_t)a->id < d->n_ids && d->pieces[a->id].used) {
            int n;
            const char *s = piece(d, a->id, &n);
            if ((uint32_t)n != a->n || memcmp(s, a->s, a->n))
                return err_set(e, ERR_FORMAT, "tokenizer: added token \"%.*s\" has id %d, which is \"%.*s\"", (int)a->n, a->s, a->id, n, s);
        } else {
            int rc = tok_def_piece(d, (uint32_t)a->id, a->s, a->n, 0, e);
            if (rc)
                return rc;
        }
        if (a->flags & TOK_SPECIAL)
            d->pieces[a->id].hidden = true;
    }
    /* Holes are legal (Kimi's special ids), but the tables are sized by the highest id: it may not be a lie. */
    if (d->n_ids > 2 * d->n_used + 65536)
        return err_set(e, ERR_FORMAT, "tokenizer: highest id %u with only %u pieces", d->n_ids - 1, d->n_used);
    return d->n_used ? ERR_OK : err_set(e, ERR_FORMAT, "tokenizer: no pieces");
}

static int map_init(struct tok_map *m, uint32_t n, struct err *e)
{
    uint32_t cap = 64;
    while (cap < n * 2)
        cap *= 2;
    m->mask = cap - 1;
    m->slot = calloc(cap, sizeof *m->slot);
    return m->slot ? ERR_OK : err_set(e, ERR_NOMEM, "tokenizer: table of %u pieces", n);
}

static void map_put(const eng_tok *t, struct tok_map *m, const char *p, size_t n, uint32_t id)
{
    uint64_t h = tok_hash(t->seed, p, n);
    uint32_t i = (uint32_t)h & m->mask;
    while (m->slot[i].id1)
        i = (i + 1) & m->mask;
    m->slot[i] = (struct tok_slot){(uint32_t)(h >> 32), id + 1};
}

static int map_pieces(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    int rc = map_init(&t->by_piece, d->n_used, e);
    for (uint32_t id = 0; !rc && id < d->n_ids; id++) {
        int n;
        const char *s = piece(d, (int32_t)id, &n);
        if (!d->pieces[id].used)
            continue;
        int32_t other = tok_map_find(t, &t->by_piece, false, s, (size_t)n);
        if (other >= 0)
            return err_set(e, ERR_FORMAT, "tokenizer: \"%.*s\" is piece %d and again piece %u", n, s, other, id);
        map_put(t, &t->by_piece, s, (size_t)n, id);
    }
    return rc;
}

/* Spells a byte-level piece out; false: it holds a character outside the byte alphabet and stands for itself. */
static bool spell(const char *s, size_t n, struct buf *out)
{
    size_t start = out->len;
    for (size_t i = 0; i < n; i += tok_utf8_len((uint8_t)s[i])) {
        int b = tok_byte_of_char(tok_utf8_at(s + i));
        if (b < 0) {
            out->len = start;
            return false;
        }
        buf_char(out, (char)b);
    }
    return true;
}

static int raw_bytes(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    bool bytes = (d->flags & TOK_BYTE_LEVEL) != 0;
    size_t bad;
    int rc = map_init(&t->by_raw, d->n_used, e);
    if (rc)
        return rc;
    buf_init(&t->raw_pool, d->pool.len + 1);
    if (!(t->raw = calloc(d->n_ids, sizeof *t->raw)) || !buf_reserve(&t->raw_pool, 1)) /* an empty piece has an address too */
        return err_set(e, ERR_NOMEM, "tokenizer: %u pieces", d->n_ids);
    for (uint32_t id = 0; id < d->n_ids; id++) {
        const struct tok_piece *p = &d->pieces[id];
        const char *s = d->pool.data + p->off;
        bool makes = p->used && !p->hidden && p->n;
        t->raw[id].off = bytes ? (uint32_t)t->raw_pool.len : p->off;
        t->raw[id].n = p->n;
        if (!p->used)
            continue;
        if (!tok_utf8_valid(s, p->n, &bad))
            return err_set(e, ERR_FORMAT, "tokenizer: piece %u is not UTF-8", id);
        if (bytes) {
            if (!spell(s, p->n, &t->raw_pool)) {
                buf_add(&t->raw_pool, s, p->n);
                makes = false;
            }
            t->raw[id].n = (uint32_t)t->raw_pool.len - t->raw[id].off;
        }
        size_t n;
        const char *r = tok_raw(t, (int32_t)id, &n);
        if (makes && tok_map_find(t, &t->by_raw, true, r, n) < 0)
            map_put(t, &t->by_raw, r, n, id);
    }
    return t->raw_pool.failed ? err_set(e, ERR_NOMEM, "tokenizer: %zu bytes of pieces", d->pool.len) : ERR_OK;
}

static int byte_pieces(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    if (!(t->byte_of = malloc(d->n_ids * sizeof *t->byte_of)) || !(t->added_of = malloc(d->n_ids * sizeof *t->added_of)))
        return err_set(e, ERR_NOMEM, "tokenizer: %u pieces", d->n_ids);
    for (uint32_t i = 0; i < d->n_ids; i++)
        t->byte_of[i] = -1, t->added_of[i] = -1;
    for (uint32_t i = 0; i < d->n_added; i++) {
        if (t->added_of[d->added[i].id] >= 0)
            return err_set(e, ERR_FORMAT, "tokenizer: added token %d \"%.*s\" is listed twice", d->added[i].id, (int)d->added[i].n, d->added[i].s);
        t->added_of[d->added[i].id] = (int32_t)i;
    }
    for (unsigned b = 0; b < 256; b++) {
        char name[8] = {(char)b};
        if (d->flags & TOK_BYTE_LEVEL)
            t->byte_id[b] = tok_map_find(t, &t->by_raw, true, name, 1);
        else {
            static const char hex[] = "0123456789ABCDEF";
            memcpy(name, "<0x", 3);
            name[3] = hex[b >> 4], name[4] = hex[b & 15], name[5] = '>';
            t->byte_id[b] = tok_map_find(t, &t->by_piece, false, name, 6);
            if (t->byte_id[b] >= 0 && (d->flags & TOK_DEC_FALLBACK))
                t->byte_of[t->byte_id[b]] = (int16_t)b;
        }
    }
    return ERR_OK;
}

static int resolve_texts(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    for (uint32_t i = 0; i < d->n_merge_texts; i++) {
        const struct tok_merge_text *x = &d->merge_texts[i];
        const char *s = d->merge_pool.data + x->off;
        struct tok_merge m = {.left = tok_map_find(t, &t->by_piece, false, s, x->n_left),
                              .right = tok_map_find(t, &t->by_piece, false, s + x->n_left, x->n_right),
                              .out = tok_map_find(t, &t->by_piece, false, s, x->n_left + x->n_right), .rank = i};
        if (m.left < 0 || m.right < 0 || m.out < 0)
            return err_set(e, ERR_FORMAT, "tokenizer: merge %u, \"%.*s\" + \"%.*s\": %s is not in the vocabulary", i, (int)x->n_left, s,
                           (int)x->n_right, s + x->n_left, m.left < 0 ? "the left part" : m.right < 0 ? "the right part" : "the result");
        int rc = tok_def_merge(d, &m, e);
        if (rc)
            return rc;
    }
    free(d->merge_texts);
    d->merge_texts = NULL;
    d->n_merge_texts = d->cap_merge_texts = 0;
    buf_free(&d->merge_pool);
    return ERR_OK;
}

struct scored { double score; uint32_t n_left, n_right, seq; struct tok_merge m; };
static int by_score(const void *pa, const void *pb)
{
    const struct scored *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->n_left != b->n_left)
        return a->n_left > b->n_left ? -1 : 1;
    if (a->n_right != b->n_right)
        return a->n_right > b->n_right ? -1 : 1;
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

static uint32_t chars(const char *s, size_t n)
{
    uint32_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += ((uint8_t)s[i] & 0xC0) != 0x80;
    return k;
}

/* Scores or ids instead of merges: every cut of a piece into two pieces is a merge. The reference's converter orders them by
 * score, then by the longer left part, then by the longer right part; with tiktoken all cuts of one piece share its rank. */
static int derive(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    struct scored *v = NULL;
    size_t n = 0, cap = 0;
    int rc = ERR_OK;
    for (uint32_t id = 0; id < d->n_ids; id++) {
        size_t len = t->raw[id].n, got;
        if (!d->pieces[id].used || d->pieces[id].hidden || (t->byte_of[id] >= 0) || len == 0)
            continue;
        const char *s = tok_raw(t, (int32_t)id, &got);
        for (size_t k = 1; k < len; k++) {
            if (!(d->flags & TOK_BYTE_LEVEL) && ((uint8_t)s[k] & 0xC0) == 0x80)
                continue;
            int32_t l = tok_map_find(t, &t->by_raw, true, s, k), r = l < 0 ? -1 : tok_map_find(t, &t->by_raw, true, s + k, len - k);
            if (r < 0)
                continue;
            if (n == cap) {
                cap = cap ? cap * 2 : 4096;
                struct scored *more = cap > (1u << 24) ? NULL : realloc(v, cap * sizeof *v);
                if (!more) {
                    rc = err_set(e, ERR_NOMEM, "tokenizer: %zu merges", cap);
                    goto out;
                }
                v = more;
            }
            v[n] = (struct scored){d->pieces[id].score, chars(s, k), chars(s + k, len - k), (uint32_t)n, {l, r, (int32_t)id, id}};
            n++;
        }
    }
    if (d->merges_by_score && n)
        qsort(v, n, sizeof *v, by_score);
    for (size_t i = 0; !rc && i < n; i++) {
        if (d->merges_by_score)
            v[i].m.rank = (uint32_t)i;
        rc = tok_def_merge(d, &v[i].m, e);
    }
out:
    free(v);
    return rc;
}

static int pair_table(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    uint32_t cap = 64;
    while (cap < d->n_merges * 2)
        cap *= 2;
    if (!(t->pairs = malloc(cap * sizeof *t->pairs)))
        return err_set(e, ERR_NOMEM, "tokenizer: table of %u merges", d->n_merges);
    memset(t->pairs, 0xFF, cap * sizeof *t->pairs);
    t->pair_mask = cap - 1;
    t->cut_at_space = !(d->flags & TOK_BYTE_LEVEL) && tok_map_find(t, &t->by_raw, true, "\xE2\x96\x81", 3) >= 0;
    for (uint32_t i = 0; i < d->n_merges; i++) {
        const struct tok_merge *m = &d->merges[i];
        if (d->pieces[m->out].hidden)  /* user text must never become a control token */
            continue;
        uint64_t h = ((uint64_t)(uint32_t)m->left << 32 | (uint32_t)m->right) * UINT64_C(0x9E3779B97F4A7C15) ^ t->seed;
        uint32_t k = (uint32_t)(h >> 32) & t->pair_mask;
        while (t->pairs[k].out != UINT32_MAX && (t->pairs[k].left != (uint32_t)m->left || t->pairs[k].right != (uint32_t)m->right))
            k = (k + 1) & t->pair_mask;
        t->pairs[k] = (struct tok_pair){(uint32_t)m->left, (uint32_t)m->right, (uint32_t)m->out, m->rank}; /* the last one counts, as in the reference */
        size_t ln, rn;
        const char *l = tok_raw(t, m->left, &ln), *r = tok_raw(t, m->right, &rn);
        bool l_space = ln >= 3 && !memcmp(l + ln - 3, "\xE2\x96\x81", 3), r_space = rn >= 3 && !memcmp(r, "\xE2\x96\x81", 3);
        if (r_space && !l_space && ln)
            t->no_cut[(uint8_t)l[ln - 1]] = true;
    }
    return ERR_OK;
}

static int tries(eng_tok *t, struct err *e)
{
    struct tok_def *d = &t->d;
    struct tok_run r;
    int rc = tok_run_open(&r, t, 0, NULL, e);
    for (uint32_t i = 0; !rc && i < d->n_added; i++) {
        const struct tok_added *a = &d->added[i];
        const char *s = a->s;
        size_t n = a->n;
        rc = tok_trie_add(&t->raw_trie, s, n, (int32_t)i, e);
        if (rc || !(a->flags & TOK_NORMALIZED))
            continue;
        t->has_norm_added = true;
        if (!(rc = tok_normalise(&r, &s, &n)) && n)
            rc = tok_trie_add(&t->norm_trie, s, n, (int32_t)i, e);
    }
    if (d->model == TOK_UNIGRAM) {
        bool first = true;
        for (uint32_t id = 0; !rc && id < d->n_ids; id++)
            if (d->pieces[id].used && d->pieces[id].n) {
                rc = tok_trie_add(&t->uni_trie, d->pool.data + d->pieces[id].off, d->pieces[id].n, (int32_t)id, e);
                t->uni_min = first || d->pieces[id].score < t->uni_min ? d->pieces[id].score : t->uni_min;
                first = false;
            }
    }
    tok_run_close(&r);
    return rc;
}

static int patterns(eng_tok *t, struct err *e)
{
    int rc = ERR_OK;
    for (unsigned i = 0; !rc && i < t->d.n_split; i++)
        if (t->d.split[i].kind == TOK_SPLIT_RE)
            rc = tok_re_compile(&t->re[i], t->d.split[i].a, t->d.split[i].an, e);
    for (unsigned i = 0; !rc && i < t->d.n_norm; i++)
        if (t->d.norm[i].kind == TOK_NORM_REPLACE_RE)
            rc = tok_re_compile(&t->norm_re[i], t->d.norm[i].a, t->d.norm[i].an, e);
    return rc;
}

static int check_ids(const struct tok_def *d, struct err *e)
{
    const struct { const char *what; const int32_t *v; unsigned n; } l[] = {
        {"bos", &d->bos, d->bos >= 0}, {"unknown", &d->unk, d->unk >= 0}, {"first", d->head, d->n_head}, {"last", d->tail, d->n_tail}};
    for (size_t k = 0; k < sizeof l / sizeof *l; k++)
        for (unsigned i = 0; i < l[k].n; i++)
            if ((uint32_t)l[k].v[i] >= d->n_ids || !d->pieces[l[k].v[i]].used)
                return err_set(e, ERR_FORMAT, "tokenizer: the %s token is %d, which is no piece", l[k].what, l[k].v[i]);
    for (uint32_t i = 0; i < d->n_merges; i++) {
        const struct tok_merge *m = &d->merges[i];
        if ((uint32_t)m->left >= d->n_ids || (uint32_t)m->right >= d->n_ids || (uint32_t)m->out >= d->n_ids)
            return err_set(e, ERR_FORMAT, "tokenizer: merge %u names ids %d, %d, %d of %u", i, m->left, m->right, m->out, d->n_ids);
    }
    return ERR_OK;
}

int tok_build(eng_tok **out, struct tok_def *d, struct err *e)
{
    int rc;
    eng_tok *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t) {
        tok_def_free(d);
        return err_set(e, ERR_NOMEM, "tokenizer");
    }
    t->d = *d;
    memset(d, 0, sizeof *d);
    d = &t->d;
    buf_init(&t->raw_pool, 0);
    if (getrandom(&t->seed, sizeof t->seed, 0) != sizeof t->seed)
        t->seed = (uint64_t)(uintptr_t)t;
    tok_def_named_eos(d);
    if (!d->pool.data && !buf_reserve(&d->pool, 1))
        rc = err_set(e, ERR_NOMEM, "tokenizer");
    else if (!(rc = merge_added(d, e)) && !(rc = check_ids(d, e)) && !(rc = map_pieces(t, e)) && !(rc = raw_bytes(t, e)) &&
             !(rc = byte_pieces(t, e)) && !(rc = resolve_texts(t, e)) &&
             !(rc = d->merges_by_score || d->merges_by_id ? derive(t, e) : ERR_OK) && !(rc = pair_table(t, e)) &&
             !(rc = patterns(t, e)))
        rc = tries(t, e);
    d->merges_by_score = d->merges_by_id = false; /* derived now; a saved copy carries them */
    if (rc)
        eng_tok_close(t);
    else
        *out = t;
    return rc;
}

void eng_tok_close(eng_tok *t)
{
    if (!t)
        return;
    for (unsigned i = 0; i < TOK_OPS_MAX; i++) {
        tok_re_free(&t->re[i]);
        tok_re_free(&t->norm_re[i]);
    }
    tok_trie_free(&t->raw_trie);
    tok_trie_free(&t->norm_trie);
    tok_trie_free(&t->uni_trie);
    free(t->by_piece.slot);
    free(t->by_raw.slot);
    free(t->pairs);
    free(t->byte_of);
    free(t->added_of);
    free(t->raw);
    buf_free(&t->raw_pool);
    tok_def_free(&t->d);
    free(t);
}
