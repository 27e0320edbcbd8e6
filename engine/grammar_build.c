/* engine/grammar_build.c - rules as trees -> one network of byte edges and calls; then what is wrong with it is found.
 *
 * Trees are turned from their end to their beginning, so each node knows where it leads when it is made. Repetitions are copies. A class of characters
 * that is more than one row of byte ranges becomes a rule without a name, once: a copy of it is one call. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/grammar_internal.h"

enum { CLASS_BUCKETS = 1024, NONE = UINT32_MAX };

struct class_rule { const struct gbnf_item *item; uint32_t rule; struct class_rule *next; };
struct builder {
    struct net *w;
    const struct gbnf *g;
    struct arena mem;
    uint32_t *rule_at, *todo, n_todo;                  /* [g->n_rules]: its number in w, NONE: not met; rules to build */
    struct class_rule *bucket[CLASS_BUCKETS];
    uint32_t rule;                                     /* being built */
    struct err *e;
    int rc;                                            /* of the first failure; then node numbers mean nothing */
};

static uint32_t fail(struct builder *b, int code, const char *what)
{
    const char *name = b->w->names && b->rule < b->w->n_rules && b->w->names[b->rule] ? b->w->names[b->rule] : "?";
    if (!b->rc)
        b->rc = err_set(b->e, code, "grammar rule '%.80s': %s", name, what);
    return 0;
}

static uint32_t node_new(struct builder *b, struct node v)
{
    struct net *w = b->w;
    if (b->rc)
        return 0;
    if (w->n == w->cap) {
        uint32_t cap = w->cap ? 2 * w->cap : 256;
        if (w->n >= GBNF_NODES_MAX)
            return fail(b, ERR_LIMIT, "the grammar is too large (long repetitions are copies)");
        struct node *n = realloc(w->nodes, cap * sizeof *n);
        w->nodes = n ? n : w->nodes;
        uint32_t *r = n ? realloc(w->rule_of, cap * sizeof *r) : NULL;
        w->rule_of = r ? r : w->rule_of;
        if (!r)
            return fail(b, ERR_NOMEM, "no memory");
        w->cap = cap;
    }
    w->rule_of[w->n] = b->rule;
    w->nodes[w->n] = v;
    return w->n++;
}

static uint32_t rule_new(struct builder *b, const char *name, size_t n)
{
    struct net *w = b->w;
    if (w->n_rules == w->cap_rules) {
        uint32_t cap = w->cap_rules ? 2 * w->cap_rules : 64;
        uint32_t *entry = realloc(w->entry, cap * sizeof *entry);
        w->entry = entry ? entry : w->entry;
        char **names = entry ? realloc(w->names, cap * sizeof *names) : NULL;
        w->names = names ? names : w->names;
        if (!names)
            return fail(b, ERR_NOMEM, "no memory");
        w->cap_rules = cap;
    }
    w->entry[w->n_rules] = 0;
    w->names[w->n_rules] = name ? strndup(name, n) : NULL;
    if (name && !w->names[w->n_rules])
        return fail(b, ERR_NOMEM, "no memory");
    return w->n_rules++;
}

static uint32_t split(struct builder *b, uint32_t x, uint32_t y) { return node_new(b, (struct node){.kind = NODE_SPLIT, .a = x, .b = y}); }
static uint32_t range(struct builder *b, uint32_t lo, uint32_t hi, uint32_t next)
{
    return node_new(b, (struct node){.kind = NODE_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .a = next});
}

/* ---- classes ------------------------------------------------------------------------------------------------ */

/* lo..hi have UTF-8 of one length whose ranges of bytes are independent, after the cuts of put_range. */
static uint32_t utf8_row(struct builder *b, uint32_t lo, uint32_t hi, uint32_t next)
{
    if (hi < 0x80)
        return range(b, lo, hi, next);
    unsigned tail = hi < 0x800 ? 1 : hi < 0x10000 ? 2 : 3;
    uint32_t mark = tail == 1 ? 0xC0 : tail == 2 ? 0xE0 : 0xF0;
    for (unsigned i = 0; i < tail; i++)
        next = range(b, 0x80 | (lo >> 6 * i & 63), 0x80 | (hi >> 6 * i & 63), next);
    return range(b, mark | lo >> 6 * tail, mark | hi >> 6 * tail, next);
}

/* Cuts lo..hi where the length of UTF-8 changes, around surrogates, and where a row of byte ranges would not be their product. alternatives: NONE or
 * a node; returns the new alternatives. */
static uint32_t put_range(struct builder *b, uint32_t lo, uint32_t hi, uint32_t next, uint32_t alternatives)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, 0x10FFFF};
    while (lo <= hi && !b->rc) {
        uint32_t top = hi;
        size_t k = 0;
        while (ends[k] < lo)
            k++;
        top = ends[k] < top ? ends[k] : top;
        for (unsigned i = 3; i > 0; i--) {
            uint32_t m = (1u << 6 * i) - 1;
            if (lo < 0x80 || (lo & ~m) == (top & ~m))
                continue;
            if (lo & m)
                top = lo | m;
            else if ((top & m) != m)
                top = (top & ~m) - 1;
        }
        if (!(lo >= 0xD800 && lo <= 0xDFFF)) {
            uint32_t row = utf8_row(b, lo, top, next);
            alternatives = alternatives == NONE ? row : split(b, row, alternatives);
        }
        lo = top + 1;
    }
    return alternatives;
}

static uint32_t put_ranges(struct builder *b, const struct gbnf_item *c, uint32_t next)
{
    uint32_t alternatives = NONE;
    for (uint32_t i = 0; i < c->n; i++)
        alternatives = put_range(b, c->ranges[i].lo, c->ranges[i].hi, next, alternatives);
    return alternatives != NONE ? alternatives : fail(b, ERR_INVALID, "a class of no character");
}

static uint32_t build_class(struct builder *b, const struct gbnf_item *c, uint32_t next)
{
    if (c->n == 1 && c->ranges[0].hi < 0x80)
        return put_ranges(b, c, next);
    struct class_rule **at = &b->bucket[hash_bytes(c->ranges, c->n * sizeof *c->ranges, 2) % CLASS_BUCKETS], *k = *at;
    while (k && (k->item->n != c->n || memcmp(k->item->ranges, c->ranges, c->n * sizeof *c->ranges)))
        k = k->next;
    if (!k) {
        uint32_t owner = b->rule;
        if (!(k = ARENA_NEW(&b->mem, struct class_rule)))
            return fail(b, ERR_NOMEM, "no memory");
        k->item = c;
        k->rule = rule_new(b, NULL, 0);
        b->rule = b->rc ? owner : k->rule;
        uint32_t entry = put_ranges(b, c, 0);
        b->rule = owner;
        if (b->rc)
            return 0;
        b->w->entry[k->rule] = entry;
        k->next = *at;
        *at = k;
    }
    return node_new(b, (struct node){.kind = NODE_CALL, .a = k->rule, .b = next});
}

/* ---- trees -------------------------------------------------------------------------------------------------- */

static uint32_t build(struct builder *b, const struct gbnf_item *i, uint32_t next);

/* A rule is numbered when it is first called. */
static uint32_t build_ref(struct builder *b, uint32_t rule, uint32_t next)
{
    if (b->rule_at[rule] == NONE) {
        const struct gbnf_rule *r = &b->g->rules[rule];
        b->rule_at[rule] = rule_new(b, r->name, r->n_name);
        b->todo[b->n_todo++] = rule;
    }
    return node_new(b, (struct node){.kind = NODE_CALL, .a = b->rule_at[rule], .b = next});
}

static uint32_t build_sequence(struct builder *b, const struct gbnf_item *s, uint32_t next)
{
    const struct gbnf_item **v = ARENA_ARRAY(&b->mem, const struct gbnf_item *, s->n);
    uint32_t n = 0;
    if (!v)
        return fail(b, b->mem.full ? ERR_LIMIT : ERR_NOMEM, "the grammar is too large");
    for (const struct gbnf_item *i = s->first; i; i = i->next)
        v[n++] = i;
    while (n && !b->rc)
        next = build(b, v[--n], next);
    return next;
}

static uint32_t build_repeat(struct builder *b, const struct gbnf_item *r, uint32_t next)
{
    uint32_t min = r->min, at = next;
    const struct gbnf_item *x = r->first;
    if (r->max == GBNF_MANY) {
        uint32_t loop = split(b, 0, next), body = build(b, x, loop);
        if (b->rc)
            return 0;
        b->w->nodes[loop].a = body;
        at = min ? body : loop;
        min -= min != 0;
    } else {
        for (uint32_t i = r->min; i < r->max && !b->rc; i++)
            at = split(b, build(b, x, at), next);
    }
    for (uint32_t i = 0; i < min && !b->rc; i++)
        at = build(b, x, at);
    return at;
}

static uint32_t build(struct builder *b, const struct gbnf_item *i, uint32_t next)
{
    uint32_t at = NONE;
    if (b->rc)
        return 0;
    switch (i->kind) {
    case GBNF_SEQ: return build_sequence(b, i, next);
    case GBNF_ALT:
        for (const struct gbnf_item *k = i->first; k && !b->rc; k = k->next) {
            uint32_t one = build(b, k, next);
            at = at == NONE ? one : split(b, one, at);
        }
        return at;
    case GBNF_TEXT:
        for (uint32_t k = i->n; k; k--)
            next = range(b, (uint8_t)i->text[k - 1], (uint8_t)i->text[k - 1], next);
        return next;
    case GBNF_CLASS: return build_class(b, i, next);
    case GBNF_REF: return build_ref(b, i->rule, next);
    case GBNF_REPEAT: return build_repeat(b, i, next);
    case GBNF_TOKEN: return node_new(b, (struct node){.kind = NODE_TOKEN, .lo = i->negated, .a = next, .b = (uint32_t)i->id});
    }
    return 0;
}

/* ---- what is wrong with it ---------------------------------------------------------------------------------- */

/* which[n]: a text leads from n to the end of its rule; through: by way of bytes and tokens too, else only the empty text counts. */
static int reach_end(const struct net *w, bool through, bool *which, struct err *e)
{
    uint32_t n = w->n, top = 0, *first = calloc(n + 2u, sizeof *first), *pred = calloc(2u * n + 1, sizeof *pred), *stack = calloc(n + 1u, sizeof *stack);
    int rc = first && pred && stack ? ERR_OK : err_set(e, ERR_NOMEM, "grammar of %u nodes", n);
    for (int pass = 0; pass < 2 && !rc; pass++) { /* count, then fill: first[k + 1] walks from the begin to the end of k's list */
        for (uint32_t i = 1; i < n; i++) {
            const struct node *v = &w->nodes[i];
            uint32_t to[2] = {v->kind == NODE_CALL ? w->entry[v->a] : v->a, v->b};
            for (unsigned k = 0; k < (v->kind == NODE_CALL || v->kind == NODE_SPLIT ? 2u : 1u); k++) {
                if (pass)
                    pred[first[to[k] + 1]++] = i;
                else
                    first[to[k] + 1]++;
            }
        }
        for (uint32_t i = 0, sum = 0; !pass && i <= n; i++) {
            uint32_t count = first[i + 1];
            first[i + 1] = sum;
            sum += count;
        }
    }
    memset(which, 0, n * sizeof *which);
    which[0] = true;
    if (!rc)
        stack[top++] = 0;
    while (top) {
        uint32_t at = stack[--top];
        for (uint32_t k = at ? first[at] : 0; k < first[at + 1]; k++) {
            uint32_t p = pred[k];
            const struct node *v = &w->nodes[p];
            bool yes = v->kind == NODE_SPLIT || (v->kind == NODE_CALL ? which[w->entry[v->a]] && which[v->b] : through);
            if (yes && !which[p]) {
                which[p] = true;
                stack[top++] = p;
            }
        }
    }
    free(first);
    free(pred);
    free(stack);
    return rc;
}

struct edge { uint32_t from, to; };

/* Calls that a rule can make before any byte. */
static uint32_t left_calls(const struct net *w, uint32_t rule, const bool *empty, bool *seen, uint32_t *stack, struct edge *out)
{
    uint32_t top = 0, n = 0;
    stack[top++] = w->entry[rule];
    while (top) {
        uint32_t at = stack[--top];
        if (seen[at])
            continue;
        seen[at] = at != 0;
        const struct node *v = &w->nodes[at];
        if (v->kind == NODE_SPLIT) {
            stack[top++] = v->a;
            stack[top++] = v->b;
        } else if (v->kind == NODE_CALL) {
            out[n++] = (struct edge){rule, v->a};
            if (empty[w->entry[v->a]])
                stack[top++] = v->b;
        }
    }
    return n;
}

/* A rule on a cycle of such calls, or NONE. edges are grouped by `from`, which starts at first[from]. */
static uint32_t on_cycle(uint32_t n_rules, const struct edge *edges, const uint32_t *first, uint8_t *colour, uint32_t *stack, uint32_t *next)
{
    for (uint32_t r = 0; r < n_rules; r++) {
        uint32_t top = 0;
        if (colour[r])
            continue;
        stack[top++] = r;
        colour[r] = 1;
        next[r] = first[r];
        while (top) {
            uint32_t at = stack[top - 1];
            if (next[at] == first[at + 1]) {
                colour[at] = 2;
                top--;
                continue;
            }
            uint32_t to = edges[next[at]++].to;
            if (colour[to] == 1)
                return to;
            if (colour[to] == 0) {
                colour[to] = 1;
                next[to] = first[to];
                stack[top++] = to;
            }
        }
    }
    return NONE;
}

static int check(const struct net *w, struct err *e)
{
    uint32_t n = w->n, r = w->n_rules, bad = NONE;
    bool *which = calloc(n, sizeof *which), *seen = calloc(n, sizeof *seen);
    uint32_t *stack = calloc(2u * n + r + 2, sizeof *stack), *first = calloc(r + 1u, sizeof *first), *next = calloc(r + 1u, sizeof *next);
    struct edge *edges = calloc(n + 1u, sizeof *edges);
    uint8_t *colour = calloc(r + 1u, 1);
    int rc = which && seen && stack && first && next && edges && colour ? ERR_OK : err_set(e, ERR_NOMEM, "grammar of %u nodes", n);
    if (!rc && !(rc = reach_end(w, true, which, e))) {
        for (uint32_t i = 0; i < r; i++)
            if (!which[w->entry[i]])
                bad = i;
        if (bad != NONE)
            rc = err_set(e, ERR_INVALID, "grammar rule '%s' can never end: each of its texts contains another one", w->names[bad] ? w->names[bad] : "?");
    }
    if (!rc && !(rc = reach_end(w, false, which, e))) {
        for (uint32_t i = 0; i < r; i++)
            first[i + 1] = first[i] + left_calls(w, i, which, seen, stack, edges + first[i]);
        if ((bad = on_cycle(r, edges, first, colour, stack, next)) != NONE)
            rc = err_set(e, ERR_INVALID, "grammar rule '%s' is left-recursive: it calls itself before any character", w->names[bad] ? w->names[bad] : "?");
    }
    free(which);
    free(seen);
    free(stack);
    free(first);
    free(next);
    free(edges);
    free(colour);
    return rc;
}

static void classify_bytes(struct net *w)
{
    bool cut[257] = {false};
    for (uint32_t i = 0; i < w->n; i++)
        if (w->nodes[i].kind == NODE_RANGE)
            cut[w->nodes[i].lo] = cut[w->nodes[i].hi + 1] = true;
    uint32_t k = 0;
    for (unsigned c = 0; c < 256; c++) {
        k += c && cut[c];
        w->class_of[c] = (uint8_t)k;
    }
    w->n_classes = k + 1;
}

int net_build(struct net *w, const struct gbnf *g, struct err *e)
{
    struct builder *b = calloc(1, sizeof *b);
    memset(w, 0, sizeof *w);
    if (!b)
        return err_set(e, ERR_NOMEM, "grammar");
    *b = (struct builder){.w = w, .g = g, .e = e};
    arena_init(&b->mem, 64 << 20);
    b->rule_at = malloc((g->n_rules + 1u) * sizeof *b->rule_at);
    b->todo = malloc((g->n_rules + 1u) * sizeof *b->todo);
    if (!b->rule_at || !b->todo)
        b->rc = err_set(e, ERR_NOMEM, "grammar of %u rules", g->n_rules);
    for (uint32_t i = 0; i < g->n_rules && !b->rc; i++)
        b->rule_at[i] = NONE;
    node_new(b, (struct node){.kind = NODE_END});
    if (!b->rc)
        w->root = build_ref(b, g->root, 0);
    for (uint32_t i = 0; i < b->n_todo && !b->rc; i++) { /* grows while rules are built */
        b->rule = b->rule_at[b->todo[i]];
        uint32_t entry = build(b, g->rules[b->todo[i]].body, 0);
        w->entry[b->rule] = entry;
    }
    int rc = b->rc ? b->rc : check(w, e);
    classify_bytes(w);
    free(b->rule_at);
    free(b->todo);
    arena_free(&b->mem);
    free(b);
    return rc;
}

void net_free(struct net *w)
{
    for (uint32_t i = 0; i < w->n_rules; i++)
        free(w->names[i]);
    free(w->nodes);
    free(w->rule_of);
    free(w->entry);
    free(w->names);
}

size_t net_bytes(const struct net *w) { return (size_t)w->cap * (sizeof *w->nodes + 4) + (size_t)w->cap_rules * (sizeof *w->names + 4 + 32); }
