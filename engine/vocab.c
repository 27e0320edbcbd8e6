/* engine/vocab.c - the vocabulary by bytes. Nodes stand in preorder, so a walk is one pass over an array that leaps over dead subtrees. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "engine/grammar_internal.h"

struct piece { const char *p; uint32_t n; int32_t id; };

static int by_bytes(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    if (c || x->n != y->n)
        return c ? c : x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Bytes of the character at p, or 0: none, or one that text does not have. */
static unsigned text_char(const uint8_t *p, size_t n)
{
    if (*p < 0x80)
        return *p >= 0x20 && *p != 0x7F && *p != '"' && *p != '\\';
    unsigned k = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    if (*p < 0xC2 || *p > 0xF4 || n < k)
        return 0;
    uint8_t lo = *p == 0xE0 ? 0xA0 : *p == 0xF0 ? 0x90 : 0x80, hi = *p == 0xED ? 0x9F : *p == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < lo || p[1] > hi)
        return 0;
    for (unsigned i = 2; i < k; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return k;
}

static bool is_text(const char *s, size_t n)
{
    unsigned chars = 0, k;
    for (size_t i = 0; i < n; i += k, chars++)
        if (!(k = text_char((const uint8_t *)s + i, n - i)) || chars == TEXT_CHARS_MAX)
            return false;
    return true;
}

/* Pieces are sorted. order[at ...] gets their ids. */
static int make_trie(struct trie *t, const struct piece *v, uint32_t n, uint32_t *order, uint32_t at, struct err *e)
{
    uint32_t path[TOKEN_BYTES_MAX], depth = 0;
    size_t bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += v[i].n;
    if (!(t->nodes = malloc((bytes ? bytes : 1) * sizeof *t->nodes)))
        return err_set(e, ERR_NOMEM, "vocabulary of %zu bytes", bytes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t same = 0;
        while (i && same < depth && same < v[i].n && v[i].p[same] == v[i - 1].p[same])
            same++;
        for (; depth > same; depth--)
            t->nodes[path[depth - 1]].end = t->n;
        for (; depth < v[i].n; depth++) {
            path[depth] = t->n;
            t->nodes[t->n++] = (struct trie_node){.depth = (uint16_t)depth, .byte = (uint8_t)v[i].p[depth]};
        }
        struct trie_node *last = &t->nodes[path[depth - 1]];
        order[at + i] = (uint32_t)v[i].id | 1u << 31;
        if (last->has)
            order[at + i - 1] &= ~(1u << 31);
        else
            last->tok = at + i;
        last->has = 1;
    }
    for (; depth; depth--)
        t->nodes[path[depth - 1]].end = t->n;
    struct trie_node *fit = realloc(t->nodes, (t->n ? t->n : 1) * sizeof *fit);
    t->nodes = fit ? fit : t->nodes;
    return ERR_OK;
}

static void set(uint64_t *bits, int32_t id) { bits[(uint32_t)id / 64] |= 1ull << ((uint32_t)id % 64); }

/* pool and off; which ids exist; control tokens. */
static int gather(eng_vocab *v, struct err *e)
{
    struct buf b;
    size_t n_eos, n;
    const int32_t *eos = eng_tok_eos(v->tok, &n_eos);
    buf_init(&b, 1u << 30);
    for (uint32_t i = 0; i < v->n_ids; i++) {
        v->off[i] = (uint32_t)b.len;
        bool ends = false;
        for (size_t k = 0; k < n_eos; k++)
            ends |= eos[k] == (int32_t)i;
        if (!eng_tok_piece(v->tok, (int32_t)i, &n))
            continue;
        if (!ends)
            set(v->other_bits, (int32_t)i);
        if (eng_tok_is_control(v->tok, (int32_t)i))
            v->control[v->n_control++] = (int32_t)i;
        else if (!ends)
            eng_tok_bytes(v->tok, (int32_t)i, &b);
        if (b.len - v->off[i] > TOKEN_BYTES_MAX)
            b.len = v->off[i]; /* longer than any reader allows */
    }
    v->off[v->n_ids] = (uint32_t)b.len;
    v->pool = b.data;
    if (b.failed) {
        return err_set(e, ERR_NOMEM, "vocabulary of %u tokens", v->n_ids);
    }
    return ERR_OK;
}

static int make_tries(eng_vocab *v, struct piece *all, struct err *e)
{
    uint32_t n_text = 0, n_rest = 0;
    struct piece *rest = all + v->n_ids;
    for (uint32_t i = 0; i < v->n_ids; i++) {
        struct piece p = {v->pool + v->off[i], v->off[i + 1] - v->off[i], (int32_t)i};
        if (!p.n)
            continue;
        if (is_text(p.p, p.n)) {
            all[n_text++] = p;
            set(v->text_bits, p.id);
        } else {
            rest[n_rest++] = p;
        }
    }
    qsort(all, n_text, sizeof *all, by_bytes);
    qsort(rest, n_rest, sizeof *rest, by_bytes);
    v->n_order = n_text + n_rest;
    int rc = make_trie(&v->text, all, n_text, v->order, 0, e);
    return rc ? rc : make_trie(&v->rest, rest, n_rest, v->order, n_text, e);
}

int eng_vocab_open(eng_vocab **out, const eng_tok *t, uint32_t n_ids, struct err *e)
{
    *out = NULL;
    eng_vocab *v = calloc(1, sizeof *v);
    uint32_t count = eng_tok_count(t);
    if (!v)
        return err_set(e, ERR_NOMEM, "vocabulary");
    v->tok = t;
    v->n_ids = n_ids < count ? n_ids : count;
    v->n_words = ((size_t)n_ids + 63) / 64;
    size_t n = v->n_ids + 1u, words = v->n_words + 1;
    struct piece *all = malloc(2 * n * sizeof *all);
    v->off = malloc(n * sizeof *v->off);
    v->order = malloc(n * sizeof *v->order);
    v->control = malloc(n * sizeof *v->control);
    v->text_bits = calloc(words, sizeof *v->text_bits);
    v->other_bits = calloc(words, sizeof *v->other_bits);
    int rc = all && v->off && v->order && v->control && v->text_bits && v->other_bits ? gather(v, e) : err_set(e, ERR_NOMEM, "vocabulary of %u tokens", n_ids);
    if (!rc)
        rc = make_tries(v, all, e);
    free(all);
    if (!rc) {
        *out = v;
        return ERR_OK;
    }
    eng_vocab_close(v);
    return rc;
}

void eng_vocab_close(eng_vocab *v)
{
    if (!v)
        return;
    free(v->pool);
    free(v->off);
    free(v->order);
    free(v->control);
    free(v->text_bits);
    free(v->other_bits);
    free(v->text.nodes);
    free(v->rest.nodes);
    free(v);
}

size_t eng_vocab_words(const eng_vocab *v) { return v->n_words; }

size_t eng_vocab_bytes(const eng_vocab *v)
{
    return sizeof *v + v->off[v->n_ids] + 12 * (size_t)v->n_ids + 16 * v->n_words + ((size_t)v->text.n + v->rest.n) * sizeof *v->text.nodes;
}

const char *eng_vocab_text(const eng_vocab *v, int32_t id, size_t *n)
{
    *n = 0;
    if (id < 0 || (uint32_t)id >= v->n_ids || v->off[id] == v->off[id + 1])
        return NULL;
    *n = v->off[id + 1] - v->off[id];
    return v->pool + v->off[id];
}
