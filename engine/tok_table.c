/* engine/tok_table.c - the look-ups of a built tokenizer: hash, pieces by bytes, byte tries, GPT-2's byte alphabet, UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

static uint64_t mix(uint64_t a, uint64_t b)
{
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Multiply-and-fold over 8-byte words. Seeded, since the keys of a hostile file could otherwise be made to collide. */
uint64_t tok_hash(uint64_t seed, const char *p, size_t n)
{
    uint64_t h = seed ^ (n * UINT64_C(0x9E3779B97F4A7C15)), w;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = mix(h ^ w, UINT64_C(0xD6E8FEB86659FD93));
    }
    w = 0;
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)(uint8_t)p[i] << (8 * i);
    return mix(h ^ w, UINT64_C(0xA0761D6478BD642F) ^ seed);
}

const char *tok_raw(const eng_tok *t, int32_t id, size_t *n)
{
    *n = t->raw[id].n;
    return ((t->d.flags & TOK_BYTE_LEVEL) ? t->raw_pool.data : t->d.pool.data) + t->raw[id].off;
}

int32_t tok_map_find(const eng_tok *t, const struct tok_map *m, bool raw, const char *p, size_t n)
{
    if (!m->slot)
        return -1;
    uint64_t h = tok_hash(t->seed, p, n);
    for (uint32_t i = (uint32_t)h & m->mask; m->slot[i].id1; i = (i + 1) & m->mask) {
        int32_t id = (int32_t)m->slot[i].id1 - 1;
        if (m->slot[i].tag != (uint32_t)(h >> 32)) /* most others are told apart without a look at their bytes */
            continue;
        size_t len = t->d.pieces[id].n;
        const char *s = raw ? tok_raw(t, id, &len) : t->d.pool.data + t->d.pieces[id].off;
        if (len == n && !memcmp(s, p, n))
            return id;
    }
    return -1;
}

/* Short marks are met at every word: looking for their first byte beats a search that prepares itself. */
const char *tok_find(const char *s, size_t n, const char *what, size_t m)
{
    if (m == 0 || m > 4)
        return memmem(s, n, what, m);
    for (const char *end = s + n, *p; (size_t)(end - s) >= m && (p = memchr(s, what[0], (size_t)(end - s) - m + 1)); s = p + 1)
        if (!memcmp(p, what, m))
            return p;
    return NULL;
}

uint32_t tok_trie_step(const struct tok_trie *tr, uint32_t node, uint8_t byte)
{
    if (node == 0)
        return tr->first[byte];
    if (!tr->edge)
        return 0;
    uint32_t key = node << 8 | byte;
    for (uint32_t i = (key * UINT32_C(2654435769)) >> 7 & tr->mask; tr->edge[i].to; i = (i + 1) & tr->mask)
        if (tr->edge[i].key == key)
            return tr->edge[i].to;
    return 0;
}

static void edge_put(struct tok_node *edge, uint32_t mask, struct tok_node n)
{
    uint32_t i = (n.key * UINT32_C(2654435769)) >> 7 & mask;
    while (edge[i].to)
        i = (i + 1) & mask;
    edge[i] = n;
}

static int edges_grow(struct tok_trie *tr, struct err *e)
{
    uint32_t cap = tr->edge ? (tr->mask + 1) * 2 : 256;
    struct tok_node *edge = calloc(cap, sizeof *edge);
    if (!edge)
        return err_set(e, ERR_NOMEM, "tokenizer: trie of %u edges", cap);
    for (uint32_t i = 0; tr->edge && i <= tr->mask; i++)
        if (tr->edge[i].to)
            edge_put(edge, cap - 1, tr->edge[i]);
    free(tr->edge);
    tr->edge = edge;
    tr->mask = cap - 1;
    return ERR_OK;
}

static int node_new(struct tok_trie *tr, uint32_t *node, struct err *e)
{
    if (tr->n_nodes == tr->cap_nodes) {
        uint32_t cap = tr->cap_nodes ? tr->cap_nodes * 2 : 256;
        if (cap > 1u << 24)
            return err_set(e, ERR_LIMIT, "tokenizer: trie of more than %u nodes", 1u << 24);
        int32_t *v = realloc(tr->value, cap * sizeof *v);
        if (!v)
            return err_set(e, ERR_NOMEM, "tokenizer: trie of %u nodes", cap);
        tr->value = v;
        tr->cap_nodes = cap;
    }
    tr->value[tr->n_nodes] = -1;
    *node = tr->n_nodes++;
    return ERR_OK;
}

/* The first value given to a string stays. */
int tok_trie_add(struct tok_trie *tr, const char *s, size_t n, int32_t value, struct err *e)
{
    uint32_t at = 0;
    int rc = ERR_OK;
    if (tr->n_nodes == 0 && (rc = node_new(tr, &at, e)))
        return rc;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)s[i];
        uint32_t next = tok_trie_step(tr, at, byte);
        if (!next) {
            if ((rc = node_new(tr, &next, e)))
                return rc;
            if (at == 0)
                tr->first[byte] = next;
            else {
                if ((!tr->edge || tr->n_edges * 2 >= tr->mask) && (rc = edges_grow(tr, e)))
                    return rc;
                edge_put(tr->edge, tr->mask, (struct tok_node){at << 8 | byte, next});
                tr->n_edges++;
            }
        }
        at = next;
    }
    if (tr->value[at] < 0)
        tr->value[at] = value;
    return ERR_OK;
}

void tok_trie_free(struct tok_trie *tr)
{
    free(tr->edge);
    free(tr->value);
    memset(tr, 0, sizeof *tr);
}

/* Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 upwards. */
int tok_byte_of_char(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 256 || cp > 323)
        return -1;
    uint32_t k = cp - 256;             /* 0..32 -> 0..32, then 127..160, then 173 */
    return (int)(k < 33 ? k : k < 67 ? k - 33 + 127 : 173);
}

size_t tok_utf8_len(uint8_t lead)
{
    return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

uint32_t tok_utf8_at(const char *s)
{
    const uint8_t *p = (const uint8_t *)s;
    if (p[0] < 0x80)
        return p[0];
    if (p[0] < 0xE0)
        return (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu);
    if (p[0] < 0xF0)
        return (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
}

bool tok_utf8_valid(const char *s, size_t n, size_t *bad)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t i = 0;
    while (i < n) {
        uint64_t w;
        if (n - i >= 8 && (memcpy(&w, p + i, 8), !(w & UINT64_C(0x8080808080808080)))) {
            i += 8;
            continue;
        }
        uint8_t c = p[i];
        if (c < 0x80) {
            i++;
            continue;
        }
        size_t len = tok_utf8_len(c);
        uint8_t lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        bool ok = c >= 0xC2 && c <= 0xF4 && n - i >= len && p[i + 1] >= lo && p[i + 1] <= hi;
        for (size_t k = 2; ok && k < len; k++)
            ok = (p[i + k] & 0xC0) == 0x80;
        if (!ok) {
            *bad = i;
            return false;
        }
        i += len;
    }
    return true;
}

bool tok_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}
