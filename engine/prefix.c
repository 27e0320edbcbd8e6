/* Nodes lie in one array; node 0 is the root of all namespaces and holds nothing. A node is found by the id of group 0's page
 * (its scope holds the namespace), then its token ids are compared. */
#include "engine/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "policies/evict.h"

enum { ROOT = 0, NONE = UINT32_MAX };

struct node {
    uint8_t id[HASH_BYTES];
    uint32_t parent, next;      /* next: in its bucket, or of the free ones */
    uint32_t depth, children, leases;
    uint16_t tenant;
    bool live;
};
struct owner { uint32_t node; uint64_t used_at, came; }; /* of an indexed page; NONE: not indexed. came: `came` of the index when it was used */
struct eng_prefix {
    const struct eng_plan *plan;
    eng_kv *kv;
    struct eng_page_scope scope;
    uint32_t page_tokens, n_groups, stride, n_nodes, mask, free_head, n_snapshots, n_free, reach;
    struct node *nodes;
    int32_t *tokens;            /* [n_nodes][page_tokens] */
    uint32_t *pages;            /* [n_nodes][n_groups] */
    uint32_t *buckets;          /* [mask + 1] */
    struct owner **owners;      /* [n_groups][pool pages] */
    uint32_t *snapshots;        /* [n_nodes] */
    struct owner *snapshot_owners; /* [n_snapshots] */
    uint32_t *free_snapshots;   /* stack of n_free */
    struct pol_page *view;      /* [pages of the largest pool, or snapshots] */
    uint32_t *path;             /* [stride] nodes of the last match */
    hash_ctx *hash;
    uint64_t clock, came, snapshots_came; /* uses; nodes and snapshots that came */
    struct eng_prefix_stats stats;
};

bool eng_prefix_possible(const struct eng_plan *p, uint32_t snapshots) { return p->n_kv != 0 && (!p->n_recurrent || snapshots); }

/* ---- open ----------------------------------------------------------------------------------------------------- */

/* Every indexed page has a node; nodes of windowed groups outlive their pages while something continues them. */
static uint64_t nodes_for(uint64_t pool_pages, uint32_t slots, uint32_t stride) { return 1 + pool_pages + (uint64_t)slots * stride; }

static uint64_t bytes_for(uint64_t nodes, uint64_t pages, uint64_t snapshots, uint32_t page_tokens, uint32_t groups, uint32_t stride)
{
    return nodes * (sizeof(struct node) + page_tokens * sizeof(int32_t) + groups * sizeof(uint32_t) + 3 * sizeof(uint32_t)) +
           pages * (sizeof(struct owner) + sizeof(struct pol_page)) + snapshots * (sizeof(struct owner) + sizeof(struct pol_page) + sizeof(uint32_t)) +
           stride * sizeof(uint32_t) + sizeof(eng_prefix);
}

uint64_t eng_prefix_bytes(const struct eng_plan *p, const struct eng_kv_config *c, uint32_t snapshots)
{
    uint32_t stride = c->ctx / c->page_tokens + 1;
    uint64_t most = (uint64_t)c->slots * stride; /* of one pool */
    return eng_prefix_possible(p, snapshots) ? bytes_for(nodes_for(most, c->slots, stride), p->n_kv * most, snapshots, c->page_tokens, p->n_kv, stride) : 0;
}

static bool allocate(eng_prefix *x, uint32_t pages_max)
{
    uint32_t buckets = 64;
    while (buckets < x->n_nodes)
        buckets *= 2;
    x->mask = buckets - 1;
    x->nodes = calloc(x->n_nodes, sizeof *x->nodes);
    x->tokens = malloc((size_t)x->n_nodes * x->page_tokens * sizeof *x->tokens);
    x->pages = malloc((size_t)x->n_nodes * x->n_groups * sizeof *x->pages);
    x->buckets = malloc(buckets * sizeof *x->buckets);
    x->owners = calloc(x->n_groups, sizeof *x->owners);
    x->snapshots = malloc(x->n_nodes * sizeof *x->snapshots);
    x->snapshot_owners = malloc((x->n_snapshots + 1) * sizeof *x->snapshot_owners);
    x->free_snapshots = malloc((x->n_snapshots + 1) * sizeof *x->free_snapshots);
    x->view = malloc(pages_max * sizeof *x->view);
    x->path = malloc(x->stride * sizeof *x->path);
    x->hash = hash_new();
    if (!x->nodes || !x->tokens || !x->pages || !x->buckets || !x->owners || !x->snapshots || !x->snapshot_owners || !x->free_snapshots || !x->view || !x->path || !x->hash)
        return false;
    for (uint32_t g = 0; g < x->n_groups; g++) {
        size_t n = eng_kv_pool_pages(x->kv, g) * sizeof(struct owner);
        if (!(x->owners[g] = malloc(n)))
            return false;
        memset(x->owners[g], 0xFF, n);
    }
    memset(x->pages, 0xFF, (size_t)x->n_nodes * x->n_groups * sizeof *x->pages);
    memset(x->buckets, 0xFF, buckets * sizeof *x->buckets);
    memset(x->snapshots, 0xFF, x->n_nodes * sizeof *x->snapshots);
    memset(x->snapshot_owners, 0xFF, x->n_snapshots * sizeof *x->snapshot_owners);
    for (uint32_t i = x->n_snapshots; i > 0; i--)
        x->free_snapshots[x->n_free++] = i - 1; /* low ones leave first */
    for (uint32_t i = 1; i < x->n_nodes; i++)
        x->nodes[i].next = i + 1 < x->n_nodes ? i + 1 : NONE;
    x->free_head = x->n_nodes > 1 ? 1 : NONE;
    return true;
}

int eng_prefix_open(eng_prefix **out, const struct eng_plan *p, eng_kv *kv, const struct eng_page_scope *scope, uint32_t slots, uint32_t snapshots, struct err *e)
{
    *out = NULL;
    eng_prefix *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "prefix index");
    *x = (eng_prefix){.plan = p, .kv = kv, .scope = *scope, .page_tokens = scope->page_tokens, .n_groups = eng_kv_groups(kv),
                      .stride = eng_kv_table_stride(kv), .n_snapshots = snapshots};
    uint32_t most = snapshots;
    for (uint32_t g = 0; g < x->n_groups; g++)
        most = eng_kv_pool_pages(kv, g) > most ? eng_kv_pool_pages(kv, g) : most;
    uint64_t nodes = nodes_for(most, slots, x->stride); /* a snapshot has a node with a page */
    x->n_nodes = nodes < NONE / 2 ? (uint32_t)nodes : NONE / 2;
    if (!allocate(x, most)) {
        eng_prefix_close(x);
        return err_set(e, ERR_NOMEM, "prefix index of %llu nodes", (unsigned long long)nodes);
    }
    *out = x;
    return ERR_OK;
}

void eng_prefix_close(eng_prefix *x)
{
    uint8_t unused[HASH_BYTES];
    if (!x)
        return;
    for (uint32_t g = 0; x->owners && g < x->n_groups; g++)
        free(x->owners[g]);
    hash_end(x->hash, unused);
    free(x->path);
    free(x->view);
    free(x->owners);
    free(x->free_snapshots);
    free(x->snapshot_owners);
    free(x->snapshots);
    free(x->buckets);
    free(x->pages);
    free(x->tokens);
    free(x->nodes);
    free(x);
}

int eng_prefix_scope(const eng_prefix *x, const char *tenant, bool far, struct eng_chain *c, struct err *e)
{
    struct eng_page_scope s = x->scope;
    s.kv = &x->plan->kv[0];
    s.far = far;
    s.space = tenant;
    s.space_n = strlen(tenant);
    c->tenant = (uint16_t)(hash_bytes(tenant, s.space_n, 0) % POL_EVICT_TENANTS);
    return eng_page_scope_id(&s, c->scope, e);
}

/* ---- nodes and their pages -------------------------------------------------------------------------------------- */

static uint32_t *page_of(const eng_prefix *x, uint32_t node, uint32_t group) { return &x->pages[(size_t)node * x->n_groups + group]; }
static int32_t *tokens_of(const eng_prefix *x, uint32_t node) { return x->tokens + (size_t)node * x->page_tokens; }
static bool windowed(const eng_prefix *x, uint32_t group) { return x->plan->kv[group].window != 0; }

static uint32_t *bucket_of(const eng_prefix *x, const uint8_t *id)
{
    uint64_t h;
    memcpy(&h, id, sizeof h); /* SHA-256: any bits will do */
    return &x->buckets[h & x->mask];
}

static uint32_t find(const eng_prefix *x, uint32_t parent, const uint8_t *id, const int32_t *tokens)
{
    for (uint32_t i = *bucket_of(x, id); i != NONE; i = x->nodes[i].next)
        if (x->nodes[i].parent == parent && !memcmp(x->nodes[i].id, id, HASH_BYTES) && !memcmp(tokens_of(x, i), tokens, x->page_tokens * sizeof *tokens))
            return i;
    return NONE;
}

static void attach(eng_prefix *x, uint32_t node, uint32_t group, uint32_t page)
{
    *page_of(x, node, group) = page;
    x->owners[group][page] = (struct owner){node, ++x->clock, x->came};
    eng_kv_keep(x->kv, group, page, true);
    x->stats.pages++;
}

static void detach(eng_prefix *x, uint32_t node, uint32_t group)
{
    uint32_t *page = page_of(x, node, group);
    x->owners[group][*page].node = NONE;
    eng_kv_keep(x->kv, group, *page, false);
    *page = KRN_NO_PAGE;
    x->stats.pages--;
}

static void free_snapshot(eng_prefix *x, uint32_t snapshot) { x->free_snapshots[x->n_free++] = snapshot; }

static uint32_t detach_snapshot(eng_prefix *x, uint32_t node)
{
    uint32_t i = x->snapshots[node];
    if (i == ENG_NO_SNAPSHOT)
        return i;
    x->snapshots[node] = ENG_NO_SNAPSHOT;
    x->snapshot_owners[i].node = NONE;
    x->stats.snapshots--;
    return i;
}

static uint32_t insert(eng_prefix *x, uint16_t tenant, uint32_t parent, const uint8_t *id, const int32_t *tokens)
{
    uint32_t i = x->free_head, *bucket = bucket_of(x, id);
    if (i == NONE)
        return NONE;
    x->free_head = x->nodes[i].next;
    x->nodes[i] = (struct node){.parent = parent, .next = *bucket, .depth = parent == ROOT ? 0 : x->nodes[parent].depth + 1, .tenant = tenant, .live = true};
    x->came++;
    memcpy(x->nodes[i].id, id, HASH_BYTES);
    memcpy(tokens_of(x, i), tokens, x->page_tokens * sizeof *tokens);
    *bucket = i;
    x->nodes[parent].children++;
    return i;
}

/* Removes a node that nothing continues and nobody leases, and what of its ancestors has no page and is left alone by that. */
static void cut(eng_prefix *x, uint32_t i)
{
    for (bool empty = true; i != ROOT && empty;) {
        struct node *n = &x->nodes[i];
        uint32_t parent = n->parent, *link = bucket_of(x, n->id);
        assert(n->live && !n->children && !n->leases);
        for (uint32_t g = 0; g < x->n_groups; g++)
            if (*page_of(x, i, g) != KRN_NO_PAGE)
                detach(x, i, g);
        if (x->snapshots[i] != ENG_NO_SNAPSHOT)
            free_snapshot(x, detach_snapshot(x, i));
        while (*link != i)
            link = &x->nodes[*link].next;
        *link = n->next;
        *n = (struct node){.next = x->free_head};
        x->free_head = i;
        i = parent;
        n = &x->nodes[i];
        n->children--;
        empty = !n->children && !n->leases;
        for (uint32_t g = 0; g < x->n_groups && i != ROOT; g++)
            empty &= *page_of(x, i, g) == KRN_NO_PAGE;
    }
}

static bool evict(eng_prefix *x, uint32_t group)
{
    uint32_t n = eng_kv_pool_pages(x->kv, group);
    for (uint32_t i = 0; i < n; i++) {
        const struct owner *o = &x->owners[group][i];
        const struct node *of = o->node != NONE ? &x->nodes[o->node] : NULL;
        x->view[i] = (struct pol_page){0};
        if (of)
            x->view[i] = (struct pol_page){.cached = true, .tenant = of->tenant, .leases = eng_kv_holders(x->kv, group, i), .children = of->children, .depth = of->depth,
                                           .used_at = o->used_at, .since = x->came - o->came};
    }
    size_t page = pol_evict(x->view, n, windowed(x, group));
    if (page == SIZE_MAX)
        return false;
    uint32_t i = x->owners[group][page].node;
    x->stats.evictions++;
    bool others = x->nodes[i].children || x->nodes[i].leases;
    for (uint32_t g = 0; g < x->n_groups; g++) /* without its last window a node with pages of full groups still gives deeper ones their prefix */
        others |= windowed(x, group) && g != group && *page_of(x, i, g) != KRN_NO_PAGE;
    if (others)
        detach(x, i, group);
    else
        cut(x, i);
    return true;
}

/* ---- the sequences' side ---------------------------------------------------------------------------------------- */

static bool has_window(const eng_prefix *x, uint32_t n_pages, uint32_t group)
{
    for (uint32_t k = eng_kv_first(x->kv, group, n_pages * x->page_tokens); k < n_pages; k++)
        if (*page_of(x, x->path[k], group) == KRN_NO_PAGE)
            return false;
    return true;
}

uint32_t eng_prefix_match(eng_prefix *x, const struct eng_chain *c, const int32_t *tokens, uint32_t n)
{
    uint32_t m = 0, at = ROOT, most = n ? (n - 1) / x->page_tokens : 0; /* the last token is computed: its logits are wanted */
    uint8_t id[HASH_BYTES];
    for (; m < most; m++) {
        const int32_t *t = tokens + (size_t)m * x->page_tokens;
        eng_page_id(x->hash, c->scope, at == ROOT ? NULL : x->nodes[at].id, t, x->page_tokens, NULL, 0, id);
        if ((at = find(x, at, id, t)) == NONE)
            break;
        x->path[m] = at;
    }
    x->reach = 0;
    for (; m; m--) {
        bool all = true;
        for (uint32_t g = 0; g < x->n_groups && all; g++)
            all = has_window(x, m, g);
        if (all && !x->reach)
            x->reach = m * x->page_tokens;
        if (all && (!x->plan->n_recurrent || x->snapshots[x->path[m - 1]] != ENG_NO_SNAPSHOT))
            break;
    }
    return m * x->page_tokens;
}

uint32_t eng_prefix_reach(const eng_prefix *x) { return x->reach; }

void eng_prefix_lease(eng_prefix *x, struct eng_chain *c, uint32_t slot, uint32_t n_tokens)
{
    uint32_t n = n_tokens / x->page_tokens;
    assert(!c->n_pages);
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t k = eng_kv_first(x->kv, g, n_tokens); k < n; k++)
            eng_kv_map(x->kv, slot, g, k, *page_of(x, x->path[k], g));
    for (uint32_t k = 0; k < n; k++)
        x->nodes[x->path[k]].leases++;
    c->n_pages = n;
    c->node = n ? x->path[n - 1] : ROOT;
    eng_kv_cover(x->kv, slot, n_tokens);
}

/* The node's pages and the slot's become the same ones. */
static void join(eng_prefix *x, uint32_t node, uint32_t slot, uint32_t index)
{
    for (uint32_t g = 0; g < x->n_groups; g++) {
        uint32_t ours = eng_kv_page(x->kv, slot, g, index), theirs = *page_of(x, node, g);
        if (ours == KRN_NO_PAGE || ours == theirs)
            continue;
        if (theirs == KRN_NO_PAGE)
            attach(x, node, g, ours);
        else
            eng_kv_map(x->kv, slot, g, index, theirs); /* equal bits: ours is given back */
    }
}

void eng_prefix_add(eng_prefix *x, struct eng_chain *c, uint32_t slot, const int32_t *tokens, uint32_t n_past)
{
    uint8_t id[HASH_BYTES];
    while ((uint64_t)(c->n_pages + 1) * x->page_tokens <= n_past) {
        uint32_t parent = c->n_pages ? c->node : ROOT;
        const int32_t *t = tokens + (size_t)c->n_pages * x->page_tokens;
        eng_page_id(x->hash, c->scope, parent == ROOT ? NULL : x->nodes[parent].id, t, x->page_tokens, NULL, 0, id);
        uint32_t i = find(x, parent, id, t);
        if (i == NONE && (i = insert(x, c->tenant, parent, id, t)) == NONE)
            return; /* every node is in use: tried again with the next page */
        join(x, i, slot, c->n_pages);
        x->nodes[i].leases++;
        c->node = i;
        c->n_pages++;
    }
}

/* What a leaving sequence held was in use until now: equally old, so that the policy's order within a prefix decides. */
static void touch(eng_prefix *x, uint32_t slot, uint32_t n_pages)
{
    x->clock++;
    for (uint32_t g = 0; g < x->n_groups; g++)
        for (uint32_t k = 0; k < n_pages; k++) {
            uint32_t page = eng_kv_page(x->kv, slot, g, k);
            if (page != KRN_NO_PAGE && x->owners[g][page].node != NONE)
                x->owners[g][page] = (struct owner){x->owners[g][page].node, x->clock, x->came};
        }
}

void eng_prefix_release(eng_prefix *x, struct eng_chain *c, uint32_t slot)
{
    touch(x, slot, c->n_pages);
    eng_kv_release(x->kv, slot);
    for (uint32_t i = c->n_pages ? c->node : ROOT; i != ROOT;) {
        struct node *n = &x->nodes[i];
        uint32_t parent = n->parent;
        bool empty = !--n->leases && !n->children;
        for (uint32_t g = 0; g < x->n_groups; g++)
            empty &= *page_of(x, i, g) == KRN_NO_PAGE;
        if (empty) /* its windows have gone: there is nothing to find in it */
            cut(x, i);
        i = parent;
    }
    c->node = c->n_pages = 0;
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

/* The chain's node whose last token is n_tokens' last; ROOT: there is none. */
static uint32_t node_at(const eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens)
{
    uint32_t i = c->node, k = c->n_pages, n = n_tokens / x->page_tokens;
    if (!n || n > k || n_tokens % x->page_tokens)
        return ROOT;
    for (; k > n; k--)
        i = x->nodes[i].parent;
    return i;
}

uint32_t eng_prefix_snapshot_take(eng_prefix *x)
{
    if (x->n_free)
        return x->free_snapshots[--x->n_free];
    for (uint32_t i = 0; i < x->n_snapshots; i++) {
        const struct owner *o = &x->snapshot_owners[i];
        x->view[i] = (struct pol_page){0};
        if (o->node != NONE)
            x->view[i] = (struct pol_page){.cached = true, .tenant = x->nodes[o->node].tenant, .depth = x->nodes[o->node].depth, .used_at = o->used_at,
                                           .since = x->snapshots_came - o->came};
    }
    size_t i = pol_evict(x->view, x->n_snapshots, true); /* shares as of pages; as with a window, later ones are of use without it */
    if (i == SIZE_MAX)
        return ENG_NO_SNAPSHOT;
    x->stats.evictions++;
    return detach_snapshot(x, x->snapshot_owners[i].node);
}

void eng_prefix_snapshot_give(eng_prefix *x, uint32_t snapshot) { free_snapshot(x, snapshot); }

bool eng_prefix_snapshot_put(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens, uint32_t snapshot)
{
    uint32_t i = node_at(x, c, n_tokens);
    if (i == ROOT || x->snapshots[i] != ENG_NO_SNAPSHOT) {
        free_snapshot(x, snapshot);
        return false;
    }
    x->snapshots[i] = snapshot;
    x->snapshot_owners[snapshot] = (struct owner){i, ++x->clock, ++x->snapshots_came};
    x->stats.snapshots++;
    return true;
}

uint32_t eng_prefix_snapshot_get(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens)
{
    uint32_t i = node_at(x, c, n_tokens), snapshot = i == ROOT ? ENG_NO_SNAPSHOT : x->snapshots[i];
    if (snapshot != ENG_NO_SNAPSHOT)
        x->snapshot_owners[snapshot] = (struct owner){i, ++x->clock, x->snapshots_came};
    return snapshot;
}

uint32_t eng_prefix_snapshot_pull(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens)
{
    uint32_t i = node_at(x, c, n_tokens);
    return i == ROOT ? ENG_NO_SNAPSHOT : detach_snapshot(x, i);
}

int eng_prefix_reserve(eng_prefix *x, uint32_t slot, uint32_t n_tokens, struct err *e)
{
    for (uint32_t g = 0; g < x->n_groups; g++)
        while (eng_kv_missing(x->kv, slot, g, n_tokens))
            if (!evict(x, g))
                return err_set(e, ERR_AGAIN, "KV group %u: every page is held by a running sequence", g);
    return eng_kv_reserve(x->kv, slot, n_tokens, e);
}

void eng_prefix_stats(const eng_prefix *x, struct eng_prefix_stats *s) { *s = x->stats; }
