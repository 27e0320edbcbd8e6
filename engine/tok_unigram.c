/* engine/tok_unigram.c - Unigram: the segmentation of highest summed score, and SentencePiece's precompiled normalisation map.
 *
 * Ties go to what is found first: starts from left to right, at each start pieces from short to long, sums in double, only a
 * strictly better sum replaces (SentencePiece itself decides ties otherwise; the reference is huggingface tokenizers). */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tok_internal.h"

#define UNKNOWN_PENALTY 10.0

struct end { double score; int32_t start, id; };  /* the best way to reach a byte; start -1: none yet */

static void reach(struct end *to, double score, size_t start, int32_t id)
{
    if (to->start < 0 || score > to->score)
        *to = (struct end){score, (int32_t)start, id};
}

static int unknown(struct tok_run *r, const char *s, size_t n)
{
    const eng_tok *t = r->t;
    bool bytes = (t->d.flags & TOK_BYTE_FALLBACK) != 0;
    int rc = ERR_OK;
    for (size_t i = 0; bytes && i < n; i++)
        bytes = t->byte_id[(uint8_t)s[i]] >= 0;
    for (size_t i = 0; bytes && !rc && i < n; i++)
        rc = eng_ids_push(r->ids, t->byte_id[(uint8_t)s[i]], r->e);
    if (bytes || rc || t->d.unk < 0)
        return rc;
    return eng_ids_push(r->ids, t->d.unk, r->e);
}

/* Walks the best path backwards, turns it round, and gives out ids; a run of unknown characters is one. */
static int give(struct tok_run *r, const char *s, size_t n, struct end *best)
{
    int rc = ERR_OK;
    size_t at = n, next = n;
    for (; at > 0; next = at, at = (size_t)best[at].start, r->work++) /* best[start].start becomes the piece's end */
        if (at != n)
            best[at].score = (double)next;
    size_t first = next;
    for (size_t from = 0, to = first; !rc && from < n;) {
        int32_t id = best[to].id;
        size_t after = to == n ? n : (size_t)best[to].score;
        while (id == r->t->d.unk && to < n && best[after].id == id) {
            to = after;
            after = to == n ? n : (size_t)best[to].score;
        }
        rc = id == r->t->d.unk ? unknown(r, s + from, to - from) : eng_ids_push(r->ids, id, r->e);
        from = to;
        to = after;
    }
    return rc;
}

int tok_unigram(struct tok_run *r, const char *s, size_t n)
{
    const eng_tok *t = r->t;
    if (n + 1 > r->cap_uni) {
        struct end *p = n >= INT32_MAX ? NULL : realloc(r->uni, (n + 1) * sizeof *p);
        if (!p)
            return err_set(r->e, ERR_NOMEM, "tokenizer: a stretch of %zu bytes", n);
        r->uni = p;
        r->cap_uni = n + 1;
    }
    struct end *best = r->uni;
    for (size_t i = 0; i <= n; i++)
        best[i] = (struct end){0, -1, -1};
    for (size_t i = 0, len; i < n; i += len) {
        bool single = false;
        uint32_t node = 0;
        len = tok_utf8_len((uint8_t)s[i]);
        for (size_t k = i; k < n && (node = tok_trie_step(&t->uni_trie, node, (uint8_t)s[k])); k++, r->work++) {
            int32_t id = t->uni_trie.value[node];
            if (id < 0 || (r->mode != TOK_MODE_ALL && eng_tok_is_control(t, id))) /* user text never becomes a control token */
                continue;
            reach(&best[k + 1], best[i].score + t->d.pieces[id].score, i, id);
            single = single || k + 1 - i == len;
        }
        if (!single)
            reach(&best[i + len], best[i].score + t->uni_min - UNKNOWN_PENALTY, i, t->d.unk);
    }
    return give(r, s, n, best);
}

/* ---- SentencePiece's map: a double array over bytes, then texts ended by NUL --------------------------------- */
struct map { const uint8_t *units; size_t n_units; const char *texts; size_t n_texts; };

static uint32_t unit(const struct map *m, size_t i)
{
    const uint8_t *p = m->units + 4 * i;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool open_map(struct map *m, const struct tok_op *op)
{
    if (op->an < 8)
        return false;
    m->units = (const uint8_t *)op->a + 4;
    struct map head = {(const uint8_t *)op->a, 1, NULL, 0};
    uint32_t bytes = unit(&head, 0);
    if (bytes < 4 || bytes % 4 || bytes > op->an - 4)
        return false;
    m->n_units = bytes / 4;
    m->texts = op->a + 4 + bytes;
    m->n_texts = op->an - 4 - bytes;
    return true;
}

/* The value of the shortest entry that begins s, or NULL. */
static const char *lookup(const struct map *m, const char *s, size_t n, size_t *len)
{
    uint32_t u = unit(m, 0);
    size_t pos = u >> 10 << ((u & 512) >> 6);
    for (size_t i = 0; i < n && s[i]; i++) {
        pos ^= (uint8_t)s[i];
        if (pos >= m->n_units)
            return NULL;
        u = unit(m, pos);
        if ((u & 0x800000FFu) != (uint8_t)s[i])
            return NULL;
        pos ^= u >> 10 << ((u & 512) >> 6);
        if (!(u >> 8 & 1))
            continue;
        size_t at = pos < m->n_units ? unit(m, pos) & 0x7FFFFFFF : SIZE_MAX;
        const char *nul = at < m->n_texts ? memchr(m->texts + at, 0, m->n_texts - at) : NULL;
        if (!nul)
            return NULL;
        *len = (size_t)(nul - m->texts) - at;
        return m->texts + at;
    }
    return NULL;
}

/* Bytes that stay as they are in front of another ASCII byte: each is a cluster of its own. */
static void plain_bytes(const struct map *m, bool plain[256])
{
    size_t len;
    memset(plain, 0, 256 * sizeof *plain);
    for (int c = 1; c < 128; c++) {
        char one = (char)c;
        plain[c] = c != '\r' && !lookup(m, &one, 1, &len);
    }
}

/* By grapheme cluster: a short one whose beginning has an entry becomes that entry, the rest of it is lost; else by character. */
int tok_precompiled(struct tok_run *r, const struct tok_op *op, const char *s, size_t n, struct buf *out)
{
    struct map m;
    bool plain[256];
    if (!open_map(&m, op))
        return err_set(r->e, ERR_FORMAT, "tokenizer: the precompiled map of %u bytes is damaged", op->an);
    plain_bytes(&m, plain);
    for (size_t i = 0, e; i < n; i = e) {
        for (e = i; e < n && plain[(uint8_t)s[e]] && (e + 1 == n || (uint8_t)s[e + 1] < 0x80);)
            e++;
        if (e > i) {
            buf_add(out, s + i, e - i);
            continue;
        }
        utf8proc_int32_t state = 0, c = (utf8proc_int32_t)tok_utf8_at(s + i);
        size_t len = 0;
        for (e = i + tok_utf8_len((uint8_t)s[i]); e < n; e += tok_utf8_len((uint8_t)s[e])) {
            utf8proc_int32_t next = (utf8proc_int32_t)tok_utf8_at(s + e);
            if (utf8proc_grapheme_break_stateful(c, next, &state))
                break;
            c = next;
        }
        const char *v = e - i < 6 ? lookup(&m, s + i, e - i, &len) : NULL;
        if (v)
            buf_add(out, v, len);
        for (size_t k = i, w; !v && k < e; k += w) {
            w = tok_utf8_len((uint8_t)s[k]);
            const char *x = lookup(&m, s + k, w, &len);
            buf_add(out, x ? x : s + k, x ? len : w);
        }
    }
    return ERR_OK;
}
