/* engine/grammar.c - the automaton over a network, made as far as it is used.
 *
 * A pair (node, frame) is one way to be in a text: an edge that waits for a byte or a token, and the stack of nodes to return to. Stacks share their
 * tails: a frame is (return node, parent), numbered once; frame 0 is the bottom. A call whose return is the end of its own rule pushes nothing, so
 * right-recursive rules do not grow. A configuration is the sorted set of pairs a text can be in; equal sets have one number. Configuration 0 means "not
 * known yet", 1 is dead. Everything is an array of numbers, so forgetting is setting lengths to zero. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/grammar_internal.h"

enum { UNKNOWN, DEAD, PAIRS_MAX = 1 << 12, CONFS_MAX = 1 << 20, FRAMES_MAX = 1 << 20 };

struct frame { uint32_t ret, parent; };
struct pair { uint32_t node, frame; };
struct conf {
    uint32_t first, n;                    /* in pairs */
    uint32_t mask;                        /* number + 1, 0: not made */
    uint32_t text;                        /* where every character of text leads; UNKNOWN: not asked, DEAD: not to one place */
    bool may_end, tokens;                 /* tokens: an edge of it waits for a token */
};
/* A mask: a list of ids while they are few, else bits. */
struct mask { uint32_t count; bool list; void *p; };
struct table { uint32_t *slot, mask, n; }; /* open addressing: number + 1 */

struct eng_grammar {
    struct net w;
    const eng_vocab *v;
    uint32_t generation;
    size_t kept, kept_max;                /* bytes of masks and of what the arrays below use; no more is begun above the latter */
    struct frame *frames; uint32_t n_frames, cap_frames;
    struct pair *pairs; uint32_t n_pairs, cap_pairs;
    struct conf *confs; uint32_t *next; uint32_t n_confs, cap_confs; /* next: [cap_confs][n_classes] */
    struct mask *masks; uint32_t n_masks, cap_masks;
    struct table frame_table, conf_table;
    /* one closure: pairs to look at, the set so far, and which pairs were seen */
    struct pair *work, *set, *seen; uint32_t n_work, n_set, n_seen, cap_seen; uint32_t *seen_stamp, stamp; bool end;
};

/* ---- arrays ------------------------------------------------------------------------------------------------- */

static int grow(void *array, uint32_t *cap, uint32_t n, uint32_t max, size_t size, struct err *e)
{
    void **p = array;
    if (n < *cap)
        return ERR_OK;
    uint32_t more = *cap ? 2 * *cap : 64;
    if (n >= max)
        return err_set(e, ERR_LIMIT, "grammar: more than %u places to keep: it is too ambiguous", max);
    void *q = realloc(*p, more * size);
    if (!q)
        return err_set(e, ERR_NOMEM, "grammar: %zu bytes", more * size);
    *p = q;
    *cap = more;
    return ERR_OK;
}

static int table_room(struct table *t, uint64_t (*hash)(const eng_grammar *, uint32_t), const eng_grammar *g, struct err *e)
{
    if (t->slot && 2 * (t->n + 1) <= t->mask)
        return ERR_OK;
    uint32_t cap = t->slot ? 2 * (t->mask + 1) : 256;
    uint32_t *slot = calloc(cap, sizeof *slot);
    if (!slot)
        return err_set(e, ERR_NOMEM, "grammar: table of %u", cap);
    for (uint32_t i = 0; t->slot && i <= t->mask; i++)
        if (t->slot[i]) {
            uint64_t h = hash(g, t->slot[i] - 1);
            while (slot[h & (cap - 1)])
                h++;
            slot[h & (cap - 1)] = t->slot[i];
        }
    free(t->slot);
    t->slot = slot;
    t->mask = cap - 1;
    return ERR_OK;
}

static void table_clear(struct table *t)
{
    if (t->slot)
        memset(t->slot, 0, (t->mask + 1u) * sizeof *t->slot);
    t->n = 0;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static uint64_t pair_hash(uint32_t a, uint32_t b) { return mix((uint64_t)a << 32 | b); }
static uint64_t frame_hash(const eng_grammar *g, uint32_t i) { return pair_hash(g->frames[i].ret, g->frames[i].parent); }
static uint64_t set_hash(const struct pair *p, uint32_t n, bool end) { return hash_bytes(p, n * sizeof *p, end); }
static uint64_t conf_hash(const eng_grammar *g, uint32_t i) { return set_hash(g->pairs + g->confs[i].first, g->confs[i].n, g->confs[i].may_end); }

static int frame_of(eng_grammar *g, uint32_t ret, uint32_t parent, uint32_t *out, struct err *e)
{
    int rc = table_room(&g->frame_table, frame_hash, g, e);
    if (rc || (rc = grow(&g->frames, &g->cap_frames, g->n_frames, FRAMES_MAX, sizeof *g->frames, e)))
        return rc;
    uint64_t h = pair_hash(ret, parent);
    for (uint32_t i; (i = g->frame_table.slot[h & g->frame_table.mask]); h++)
        if (g->frames[i - 1].ret == ret && g->frames[i - 1].parent == parent) {
            *out = i - 1;
            return ERR_OK;
        }
    g->frames[g->n_frames] = (struct frame){ret, parent};
    g->frame_table.slot[h & g->frame_table.mask] = ++g->n_frames;
    g->frame_table.n++;
    g->kept += sizeof(struct frame) + 8;
    *out = g->n_frames - 1;
    return ERR_OK;
}

/* ---- closures ----------------------------------------------------------------------------------------------- */

static int grow_seen(eng_grammar *g, struct err *e)
{
    uint32_t cap = g->cap_seen ? 2 * g->cap_seen : 256;
    if (cap > 4 * PAIRS_MAX)
        return err_set(e, ERR_LIMIT, "grammar: more than %d ways to read one text: it is too ambiguous", PAIRS_MAX);
    struct pair *work = realloc(g->work, cap * sizeof *work), *set = work ? realloc(g->set, cap * sizeof *set) : NULL;
    g->work = work ? work : g->work;
    g->set = set ? set : g->set;
    struct pair *seen = malloc(cap * sizeof *seen);
    uint32_t *stamp = calloc(cap, sizeof *stamp);
    if (!set || !seen || !stamp) {
        free(seen);
        free(stamp);
        return err_set(e, ERR_NOMEM, "grammar: closure of %u", cap);
    }
    for (uint32_t i = 0; i < g->cap_seen; i++)
        if (g->seen_stamp[i] == g->stamp) {
            uint64_t h = pair_hash(g->seen[i].node, g->seen[i].frame);
            while (stamp[h & (cap - 1)])
                h++;
            seen[h & (cap - 1)] = g->seen[i];
            stamp[h & (cap - 1)] = g->stamp;
        }
    free(g->seen);
    free(g->seen_stamp);
    g->seen = seen;
    g->seen_stamp = stamp;
    g->cap_seen = cap;
    return ERR_OK;
}

static void begin_set(eng_grammar *g)
{
    g->n_work = g->n_set = g->n_seen = 0;
    g->end = false;
    if (!++g->stamp) { /* wrapped: old stamps could look new */
        if (g->seen_stamp)
            memset(g->seen_stamp, 0, g->cap_seen * sizeof *g->seen_stamp);
        g->stamp = 1;
    }
}

static int see(eng_grammar *g, uint32_t node, uint32_t frame, struct err *e)
{
    if (2 * (g->n_seen + 1) > g->cap_seen) {
        int rc = grow_seen(g, e);
        if (rc)
            return rc;
    }
    uint32_t m = g->cap_seen - 1;
    uint64_t h = pair_hash(node, frame);
    for (; g->seen_stamp[h & m] == g->stamp; h++)
        if (g->seen[h & m].node == node && g->seen[h & m].frame == frame)
            return ERR_OK;
    g->seen[h & m] = (struct pair){node, frame};
    g->seen_stamp[h & m] = g->stamp;
    g->n_seen++;
    g->work[g->n_work++] = (struct pair){node, frame};
    return ERR_OK;
}

/* Follows everything that takes no byte. Left recursion was refused, so stacks end. */
static int close_set(eng_grammar *g, struct err *e)
{
    int rc = ERR_OK;
    while (g->n_work && !rc) {
        struct pair at = g->work[--g->n_work];
        const struct node *v = &g->w.nodes[at.node];
        uint32_t frame = at.frame;
        switch (v->kind) {
        case NODE_END:
            if (!at.frame)
                g->end = true;
            else
                rc = see(g, g->frames[at.frame].ret, g->frames[at.frame].parent, e);
            break;
        case NODE_SPLIT:
            rc = see(g, v->a, frame, e);
            if (!rc)
                rc = see(g, v->b, frame, e);
            break;
        case NODE_CALL:
            if (v->b)
                rc = frame_of(g, v->b, at.frame, &frame, e);
            if (!rc)
                rc = see(g, g->w.entry[v->a], frame, e);
            break;
        default: g->set[g->n_set++] = at;
        }
    }
    return rc;
}

static int by_pair(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

static int add_conf(eng_grammar *g, uint32_t *out, struct err *e)
{
    int rc = g->kept <= g->kept_max ? ERR_OK : err_set(e, ERR_LIMIT, "grammar: one step needs more than %zu bytes: it is too ambiguous", g->kept_max);
    while (!rc && g->n_pairs + g->n_set > g->cap_pairs)
        rc = grow(&g->pairs, &g->cap_pairs, g->cap_pairs, UINT32_MAX / 2, sizeof *g->pairs, e);
    if (!rc && g->n_confs == g->cap_confs) {
        uint32_t cap = g->cap_confs;
        if ((rc = grow(&g->confs, &cap, g->n_confs, CONFS_MAX, sizeof *g->confs, e)))
            return rc;
        uint32_t *next = realloc(g->next, (size_t)cap * g->w.n_classes * sizeof *next);
        if (!next)
            return err_set(e, ERR_NOMEM, "grammar: %u configurations", cap);
        g->next = next;
        g->cap_confs = cap;
    }
    if (rc)
        return rc;
    struct conf *c = &g->confs[g->n_confs];
    *c = (struct conf){.first = g->n_pairs, .n = g->n_set, .may_end = g->end};
    memcpy(g->pairs + g->n_pairs, g->set, g->n_set * sizeof *g->set);
    for (uint32_t i = 0; i < g->n_set; i++)
        c->tokens |= g->w.nodes[g->set[i].node].kind == NODE_TOKEN;
    memset(g->next + (size_t)g->n_confs * g->w.n_classes, 0, g->w.n_classes * sizeof *g->next);
    g->n_pairs += g->n_set;
    g->kept += sizeof *c + g->n_set * sizeof *g->set + (g->w.n_classes + 2u) * sizeof *g->next;
    *out = g->n_confs++;
    return ERR_OK;
}

/* The number of the set that was begun and seen. */
static int number_set(eng_grammar *g, uint32_t *out, struct err *e)
{
    int rc = close_set(g, e);
    if (rc || (rc = table_room(&g->conf_table, conf_hash, g, e)))
        return rc;
    *out = DEAD;
    if (!g->n_set && !g->end)
        return ERR_OK;
    qsort(g->set, g->n_set, sizeof *g->set, by_pair);
    uint64_t h = set_hash(g->set, g->n_set, g->end);
    for (uint32_t i; (i = g->conf_table.slot[h & g->conf_table.mask]); h++) {
        const struct conf *c = &g->confs[i - 1];
        if (c->n == g->n_set && c->may_end == g->end && !memcmp(g->pairs + c->first, g->set, g->n_set * sizeof *g->set)) {
            *out = i - 1;
            return ERR_OK;
        }
    }
    if ((rc = add_conf(g, out, e)))
        return rc;
    g->conf_table.slot[h & g->conf_table.mask] = *out + 1;
    g->conf_table.n++;
    return ERR_OK;
}

static int make_step(eng_grammar *g, uint32_t at, uint8_t byte, uint32_t *to, struct err *e)
{
    int rc = ERR_OK;
    begin_set(g);
    for (uint32_t i = 0; i < g->confs[at].n && !rc; i++) {
        struct pair p = g->pairs[g->confs[at].first + i];
        const struct node *v = &g->w.nodes[p.node];
        if (v->kind == NODE_RANGE && byte >= v->lo && byte <= v->hi)
            rc = see(g, v->a, p.frame, e);
    }
    if (!rc && !(rc = number_set(g, to, e)))
        g->next[(size_t)at * g->w.n_classes + g->w.class_of[byte]] = *to;
    return rc;
}

static inline int step(eng_grammar *g, uint32_t at, uint8_t byte, uint32_t *to, struct err *e)
{
    *to = g->next[(size_t)at * g->w.n_classes + g->w.class_of[byte]];
    return *to ? ERR_OK : make_step(g, at, byte, to, e);
}

/* ---- life --------------------------------------------------------------------------------------------------- */

int eng_grammar_compile(eng_grammar **out, const char *gbnf, size_t n, const eng_tok *t, struct err *e)
{
    struct gbnf parsed;
    *out = NULL;
    eng_grammar *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "grammar");
    int rc = gbnf_parse(&parsed, gbnf, n, t, e);
    if (!rc)
        rc = net_build(&g->w, &parsed, e);
    gbnf_free(&parsed);
    if (!rc) {
        *out = g;
        return ERR_OK;
    }
    eng_grammar_close(g);
    return rc;
}

static void forget(eng_grammar *g)
{
    for (uint32_t i = 0; i < g->n_masks; i++)
        free(g->masks[i].p);
    g->n_masks = g->n_pairs = g->n_confs = g->n_frames = 0;
    table_clear(&g->frame_table);
    table_clear(&g->conf_table);
    g->kept = 0;
    g->generation++;
}

void eng_grammar_close(eng_grammar *g)
{
    if (!g)
        return;
    forget(g);
    net_free(&g->w);
    free(g->frames);
    free(g->pairs);
    free(g->confs);
    free(g->next);
    free(g->masks);
    free(g->frame_table.slot);
    free(g->conf_table.slot);
    free(g->work);
    free(g->set);
    free(g->seen);
    free(g->seen_stamp);
    free(g);
}

size_t eng_grammar_bytes(const eng_grammar *g) { return sizeof *g + net_bytes(&g->w) + g->kept; }

void eng_grammar_begin(eng_grammar *g, const eng_vocab *v, size_t keep_max)
{
    g->v = v;
    g->kept_max = 4 * keep_max + (4u << 20);
    if (!g->generation || g->kept > keep_max)
        forget(g);
}

bool eng_grammar_valid(const eng_grammar *g, struct eng_grammar_state s) { return s.generation == g->generation && s.at < g->n_confs; }

/* Configurations 0 and 1 and frame 0 come first in each generation; no array is NULL from here on. */
static int first_ones(eng_grammar *g, struct err *e)
{
    uint32_t at;
    int rc = g->n_frames ? ERR_OK : grow(&g->frames, &g->cap_frames, 0, FRAMES_MAX, sizeof *g->frames, e);
    if (!rc)
        rc = grow(&g->pairs, &g->cap_pairs, 0, UINT32_MAX / 2, sizeof *g->pairs, e);
    if (!rc && !g->cap_seen)
        rc = grow_seen(g, e);
    if (!rc && !g->n_frames)
        g->frames[g->n_frames++] = (struct frame){0, 0};
    while (!rc && g->n_confs < 2) {
        begin_set(g);
        rc = add_conf(g, &at, e);
    }
    for (uint32_t i = 0; !rc && i < g->w.n_classes; i++)
        g->next[(size_t)DEAD * g->w.n_classes + i] = DEAD;
    return rc;
}

int eng_grammar_start(eng_grammar *g, struct eng_grammar_state *s, struct err *e)
{
    int rc = first_ones(g, e);
    if (rc)
        return rc;
    begin_set(g);
    s->generation = g->generation;
    if ((rc = see(g, g->w.root, 0, e)))
        return rc;
    return number_set(g, &s->at, e);
}

bool eng_grammar_may_end(const eng_grammar *g, struct eng_grammar_state s) { return g->confs[s.at].may_end; }
bool eng_grammar_over(const eng_grammar *g, struct eng_grammar_state s) { return g->confs[s.at].may_end && !g->confs[s.at].n; }

/* ---- tokens ------------------------------------------------------------------------------------------------- */

static int run_bytes(eng_grammar *g, uint32_t at, const char *p, size_t n, uint32_t *to, struct err *e)
{
    int rc = ERR_OK;
    *to = at;
    for (size_t i = 0; i < n && !rc && *to != DEAD; i++)
        rc = step(g, *to, (uint8_t)p[i], to, e);
    return rc;
}

int eng_grammar_bytes_accept(eng_grammar *g, struct eng_grammar_state *s, const char *p, size_t n, struct err *e)
{
    uint32_t to;
    int rc = run_bytes(g, s->at, p, n, &to, e);
    if (!rc && to == DEAD)
        rc = err_set(e, ERR_INVALID, "grammar: this text may not come here");
    if (!rc)
        s->at = to;
    return rc;
}

static bool is_other(const eng_vocab *v, uint32_t id) { return id < v->n_ids && v->other_bits[id / 64] >> id % 64 & 1; }

static bool takes_token(const eng_grammar *g, const struct node *v, uint32_t id)
{
    return v->kind == NODE_TOKEN && (v->lo ? v->b != id && is_other(g->v, id) : v->b == id);
}

int eng_grammar_accept(eng_grammar *g, struct eng_grammar_state *s, int32_t id, struct err *e)
{
    size_t n;
    uint32_t to = DEAD;
    const char *p = eng_vocab_text(g->v, id, &n);
    int rc = p ? run_bytes(g, s->at, p, n, &to, e) : ERR_OK;
    if (!rc && g->confs[s->at].tokens) { /* the token itself, and what its bytes lead to, are ways to go on */
        begin_set(g);
        for (uint32_t i = 0; i < g->confs[s->at].n && !rc; i++) {
            struct pair q = g->pairs[g->confs[s->at].first + i];
            if (takes_token(g, &g->w.nodes[q.node], (uint32_t)id))
                rc = see(g, g->w.nodes[q.node].a, q.frame, e);
        }
        for (uint32_t i = 0; i < g->confs[to].n && !rc; i++) {
            struct pair q = g->pairs[g->confs[to].first + i];
            rc = see(g, q.node, q.frame, e);
        }
        g->end |= g->confs[to].may_end;
        if (!rc)
            rc = number_set(g, &to, e);
    }
    if (!rc && to == DEAD)
        rc = err_set(e, ERR_INVALID, "grammar: token %d may not come here", id);
    if (!rc)
        s->at = to;
    return rc;
}

/* ---- masks -------------------------------------------------------------------------------------------------- */

/* Marks the tokens of t that lead from `at` to anything but death. */
static int walk(eng_grammar *g, const struct trie *t, uint32_t at, uint64_t *bits, struct err *e)
{
    uint32_t conf[TOKEN_BYTES_MAX + 1];
    conf[0] = at;
    for (uint32_t i = 0; i < t->n;) {
        const struct trie_node *v = &t->nodes[i];
        uint32_t to;
        int rc = step(g, conf[v->depth], v->byte, &to, e);
        if (rc)
            return rc;
        if (to == DEAD) {
            i = v->end;
            continue;
        }
        conf[v->depth + 1] = to;
        if (v->has)
            for (uint32_t k = v->tok;; k++) {
                uint32_t id = g->v->order[k] & INT32_MAX;
                bits[id / 64] |= 1ull << id % 64;
                if (g->v->order[k] >> 31)
                    break;
            }
        i++;
    }
    return ERR_OK;
}

/* *to becomes where lo..hi lead from `at`, if that is one place and the same as it was; else DEAD. */
static int same_step(eng_grammar *g, uint32_t at, unsigned lo, unsigned hi, uint32_t *to, struct err *e)
{
    for (unsigned c = lo; c <= hi && *to != DEAD; c++) {
        uint32_t k;
        int rc = step(g, at, (uint8_t)c, &k, e);
        if (rc)
            return rc;
        *to = *to == UNKNOWN || *to == k ? k : DEAD;
    }
    return ERR_OK;
}

/* Where every character of text leads from `at`: DEAD unless it is one place. */
static int text_step(eng_grammar *g, uint32_t at, uint32_t *out, struct err *e)
{
    static const struct { uint8_t lead_lo, lead_hi, lo, hi, more; } rows[] = {
        {0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1},
        {0xF0, 0xF0, 0x90, 0xBF, 2}, {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};
    uint32_t to = UNKNOWN;
    if ((*out = g->confs[at].text))
        return ERR_OK;
    int rc = same_step(g, at, 0x20, 0x21, &to, e);
    if (!rc)
        rc = same_step(g, at, 0x23, 0x5B, &to, e);
    if (!rc)
        rc = same_step(g, at, 0x5D, 0x7E, &to, e);
    for (size_t r = 0; r < sizeof rows / sizeof *rows && !rc && to != DEAD; r++) {
        uint32_t lead = UNKNOWN, mid = UNKNOWN, last;
        rc = same_step(g, at, rows[r].lead_lo, rows[r].lead_hi, &lead, e);
        if (!rc && lead != DEAD)
            rc = same_step(g, lead, rows[r].lo, rows[r].hi, rows[r].more ? &mid : &to, e);
        for (unsigned k = rows[r].more; k && !rc && mid != DEAD && lead != DEAD; k--, mid = last) {
            last = UNKNOWN;
            rc = same_step(g, mid, 0x80, 0xBF, k == 1 ? &to : &last, e);
        }
        if (lead == DEAD || mid == DEAD)
            to = DEAD;
    }
    if (!rc)
        g->confs[at].text = *out = to;
    return rc;
}

/* Does every token of the text trie lead on: characters of text lead to one place TEXT_CHARS_MAX times, or to where they started. */
static int all_text(eng_grammar *g, uint32_t at, bool *yes, struct err *e)
{
    *yes = true;
    for (unsigned i = 0; i < TEXT_CHARS_MAX; i++) {
        uint32_t to;
        int rc = text_step(g, at, &to, e);
        if (rc)
            return rc;
        if (to == DEAD)
            *yes = false;
        if (to == DEAD || to == at)
            return ERR_OK;
        at = to;
    }
    return ERR_OK;
}

static int make_bits(eng_grammar *g, uint32_t at, uint64_t *bits, struct err *e)
{
    bool all;
    memset(bits, 0, g->v->n_words * sizeof *bits);
    int rc = all_text(g, at, &all, e);
    if (rc || (rc = walk(g, &g->v->rest, at, bits, e)))
        return rc;
    if (all)
        for (size_t i = 0; i < g->v->n_words; i++)
            bits[i] |= g->v->text_bits[i];
    else if ((rc = walk(g, &g->v->text, at, bits, e)))
        return rc;
    for (uint32_t i = 0; g->confs[at].tokens && i < g->confs[at].n; i++) {
        const struct node *v = &g->w.nodes[g->pairs[g->confs[at].first + i].node];
        if (v->kind != NODE_TOKEN)
            continue;
        if (!v->lo) {
            if (v->b < g->v->n_ids)
                bits[v->b / 64] |= 1ull << v->b % 64;
            continue;
        }
        if (v->b >= g->v->n_ids)
            return err_set(e, ERR_INVALID, "grammar: token %u is beyond the model's", v->b);
        bool had = bits[v->b / 64] >> v->b % 64 & 1;
        for (size_t k = 0; k < g->v->n_words; k++)
            bits[k] |= g->v->other_bits[k];
        if (!had)
            bits[v->b / 64] &= ~(1ull << v->b % 64);
    }
    return ERR_OK;
}

static int keep_mask(eng_grammar *g, uint32_t at, const uint64_t *bits, struct err *e)
{
    size_t words = g->v->n_words, bytes;
    struct mask m = {0};
    int rc = grow(&g->masks, &g->cap_masks, g->n_masks, CONFS_MAX, sizeof *g->masks, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < words; i++)
        m.count += (uint32_t)__builtin_popcountll(bits[i]);
    m.list = m.count < words; /* half the size, or less */
    bytes = m.list ? (m.count + 1) * sizeof(uint32_t) : words * sizeof *bits;
    if (!(m.p = malloc(bytes)))
        return err_set(e, ERR_NOMEM, "grammar: mask of %zu bytes", bytes);
    if (!m.list)
        memcpy(m.p, bits, bytes);
    for (size_t i = 0, n = 0; m.list && i < words; i++)
        for (uint64_t x = bits[i]; x; x &= x - 1)
            ((uint32_t *)m.p)[n++] = (uint32_t)(64 * i) + (uint32_t)__builtin_ctzll(x);
    g->masks[g->n_masks] = m;
    g->confs[at].mask = ++g->n_masks;
    g->kept += bytes + sizeof m;
    return ERR_OK;
}

int eng_grammar_mask(eng_grammar *g, struct eng_grammar_state s, uint64_t *bits, uint32_t *count, struct err *e)
{
    if (!g->confs[s.at].mask) {
        int rc = make_bits(g, s.at, bits, e);
        if (rc || (rc = keep_mask(g, s.at, bits, e)))
            return rc;
    }
    const struct mask *m = &g->masks[g->confs[s.at].mask - 1];
    *count = m->count;
    if (!m->list) {
        memcpy(bits, m->p, g->v->n_words * sizeof *bits);
        return ERR_OK;
    }
    memset(bits, 0, g->v->n_words * sizeof *bits);
    for (uint32_t i = 0; i < m->count; i++)
        bits[((uint32_t *)m->p)[i] / 64] |= 1ull << ((uint32_t *)m->p)[i] % 64;
    return ERR_OK;
}

void eng_grammar_where(const eng_grammar *g, struct eng_grammar_state s, char *out, size_t n)
{
    enum { SHOWN = 8 };
    const char *names[SHOWN];
    uint32_t k = 0, frame;
    const struct conf *c = &g->confs[s.at];
    if (n)
        *out = 0;
    if (!c->n)
        return;
    struct pair p = g->pairs[c->first];
    for (uint32_t node = p.node, f = p.frame; k < SHOWN; node = g->frames[frame].ret, f = g->frames[frame].parent) {
        const char *name = g->w.names[g->w.rule_of[node]];
        if (name)
            names[k++] = name;
        frame = f;
        if (!f)
            break;
    }
    for (size_t at = 0; k && at < n; k--) {
        int len = snprintf(out + at, n - at, "%s%s", at ? " > " : "", names[k - 1]);
        at += len > 0 ? (size_t)len : n;
    }
}
