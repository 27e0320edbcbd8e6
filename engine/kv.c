#include "engine/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct group {
    struct krn_kv_layout layout;
    uint32_t window;
    uint32_t n_pages, n_free, n_used;
    uint32_t *free_list;        /* stack of page numbers */
    uint32_t *holders;          /* [n_pages] tables a page is in; KEPT set: it stays without one */
    uint32_t *tables;           /* [slots][stride] */
    uint8_t *pool;
    size_t pool_bytes;
};
#define KEPT (1u << 31)
struct eng_kv {
    struct eng_kv_config c;
    uint32_t n_groups, stride;
    uint32_t *reserved;         /* [slots] tokens covered */
    struct group g[];
};

static uint32_t ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }

/* Pages one sequence can hold at a time: all of its context, or what a window and one chunk span. */
uint32_t eng_kv_seq_pages(const struct eng_kv_group *k, const struct eng_kv_config *c)
{
    uint32_t window = k->window;
    uint32_t all = ceil_div(c->ctx, c->page_tokens);
    if (!window)
        return all;
    uint64_t span = (uint64_t)window + c->chunk + KRN_KV_BLOCK;
    uint32_t some = (uint32_t)(span / c->page_tokens) + 2;
    return some < all ? some : all;
}

bool eng_kv_layout(const struct eng_kv_group *k, const struct eng_kv_config *c, struct krn_kv_layout *l)
{
    *l = (struct krn_kv_layout){.type = c->type, .page_tokens = c->page_tokens, .n_layers = k->n_layers, .heads = k->heads,
                                .dim_k = k->dim_k, .dim_v = k->dim_v};
    return krn_kv_layout_init(l);
}

uint64_t eng_kv_bytes(const struct eng_plan *p, const struct eng_kv_config *c, uint32_t slots)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_kv; i++) {
        struct krn_kv_layout l;
        uint64_t n;
        if (!eng_kv_layout(&p->kv[i], c, &l) ||
            __builtin_mul_overflow((uint64_t)eng_kv_seq_pages(&p->kv[i], c) * slots, (uint64_t)l.page_bytes, &n) ||
            __builtin_add_overflow(sum, n, &sum))
            return 0;
    }
    return sum;
}

/* Of a full set of pages (slots * ctx) each group gets the same share of bytes_max, but never less than one sequence's. */
static int size_groups(eng_kv *kv, const struct eng_plan *p, struct err *e)
{
    const struct eng_kv_config *c = &kv->c;
    uint64_t want = eng_kv_bytes(p, c, c->slots), least = eng_kv_bytes(p, c, 1);
    if (kv->n_groups && (!want || !least)) /* recurrent layers alone keep nothing here */
        return err_set(e, ERR_UNSUPPORTED, "KV pages: %s cells, %u tokens a page, %u slots of %u tokens is no possible layout",
                       krn_types[c->type].name, c->page_tokens, c->slots, c->ctx);
    if (least > c->bytes_max)
        return err_set(e, ERR_BUDGET, "KV of one sequence of %u tokens needs %llu bytes, %llu are left for it, %llu are missing", c->ctx,
                       (unsigned long long)least, (unsigned long long)c->bytes_max, (unsigned long long)(least - c->bytes_max));
    double share = want <= c->bytes_max ? 1.0 : (double)(c->bytes_max - least) / (double)(want - least);
    for (uint32_t i = 0; i < kv->n_groups; i++) {
        struct group *g = &kv->g[i];
        g->window = p->kv[i].window;
        if (!eng_kv_layout(&p->kv[i], c, &g->layout))
            return err_set(e, ERR_UNSUPPORTED, "KV group %u: no layout", i);
        uint32_t one = eng_kv_seq_pages(&p->kv[i], c);
        uint64_t n = share >= 1.0 ? (uint64_t)one * c->slots : one + (uint64_t)(share * (double)one * (c->slots - 1));
        if (n > KRN_NO_PAGE - 1)
            return err_set(e, ERR_UNSUPPORTED, "KV group %u: %llu pages", i, (unsigned long long)n);
        g->n_pages = (uint32_t)n;
    }
    return ERR_OK;
}

static int open_group(eng_kv *kv, struct group *g, struct err *e)
{
    size_t cells = (size_t)kv->c.slots * kv->stride;
    g->pool_bytes = g->layout.page_bytes * g->n_pages;
    g->free_list = malloc(g->n_pages * sizeof *g->free_list);
    g->tables = malloc(cells * sizeof *g->tables);
    g->holders = calloc(g->n_pages, sizeof *g->holders);
    void *p = kv->c.elsewhere ? NULL : mmap(NULL, g->pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || !g->free_list || !g->tables || !g->holders) {
        if (p && p != MAP_FAILED)
            munmap(p, g->pool_bytes);
        return err_set(e, ERR_NOMEM, "KV pool of %zu bytes", g->pool_bytes);
    }
    if (p)
        madvise(p, g->pool_bytes, MADV_HUGEPAGE); /* a wish: a long context walks pages all over the pool */
    g->pool = p;
    g->n_free = g->n_pages;
    for (uint32_t i = 0; i < g->n_pages; i++)
        g->free_list[i] = g->n_pages - 1 - i; /* page 0 leaves first: low pages stay warm */
    memset(g->tables, 0xFF, cells * sizeof *g->tables);
    return ERR_OK;
}

int eng_kv_open(eng_kv **out, const struct eng_plan *p, const struct eng_kv_config *c, struct err *e)
{
    int rc = ERR_OK;
    *out = NULL;
    assert(c->page_tokens && c->page_tokens % KRN_KV_BLOCK == 0 && c->slots && c->ctx);
    eng_kv *kv = calloc(1, sizeof *kv + p->n_kv * sizeof kv->g[0]);
    if (!kv)
        return err_set(e, ERR_NOMEM, "KV pool");
    kv->c = *c;
    kv->n_groups = p->n_kv;
    kv->stride = ceil_div(c->ctx, c->page_tokens);
    if (!(kv->reserved = calloc(c->slots, sizeof *kv->reserved))) {
        rc = err_set(e, ERR_NOMEM, "KV tables");
        goto out;
    }
    if ((rc = size_groups(kv, p, e)))
        goto out;
    for (uint32_t i = 0; i < kv->n_groups; i++)
        if ((rc = open_group(kv, &kv->g[i], e)))
            goto out;
    *out = kv;
    kv = NULL;
out:
    eng_kv_close(kv);
    return rc;
}

void eng_kv_close(eng_kv *kv)
{
    if (!kv)
        return;
    for (uint32_t i = 0; i < kv->n_groups; i++) {
        struct group *g = &kv->g[i];
        if (g->pool)
            munmap(g->pool, g->pool_bytes);
        free(g->free_list);
        free(g->holders);
        free(g->tables);
    }
    free(kv->reserved);
    free(kv);
}

static uint32_t *cell_of(const eng_kv *kv, const struct group *g, uint32_t slot, uint32_t index)
{
    assert(slot < kv->c.slots && index < kv->stride);
    return &g->tables[(size_t)slot * kv->stride + index];
}

static void hold(struct group *g, uint32_t *cell, uint32_t page)
{
    g->n_used += !(g->holders[page] & ~KEPT);
    g->holders[page]++;
    *cell = page;
}

static void drop(struct group *g, uint32_t *cell)
{
    uint32_t page = *cell;
    if (page == KRN_NO_PAGE)
        return;
    assert(g->holders[page] & ~KEPT);
    *cell = KRN_NO_PAGE;
    if (--g->holders[page] & ~KEPT)
        return;
    g->n_used--;
    if (!g->holders[page])
        g->free_list[g->n_free++] = page;
}

uint32_t eng_kv_missing(const eng_kv *kv, uint32_t slot, uint32_t group, uint32_t n_tokens)
{
    uint32_t from = ceil_div(kv->reserved[slot], kv->c.page_tokens), to = ceil_div(n_tokens, kv->c.page_tokens);
    uint32_t want = to > from ? to - from : 0, have = kv->g[group].n_free;
    return want > have ? want - have : 0;
}

int eng_kv_reserve(eng_kv *kv, uint32_t slot, uint32_t n_tokens, struct err *e)
{
    assert(slot < kv->c.slots && n_tokens <= kv->c.ctx);
    if (n_tokens <= kv->reserved[slot])
        return ERR_OK;
    uint32_t from = ceil_div(kv->reserved[slot], kv->c.page_tokens), to = ceil_div(n_tokens, kv->c.page_tokens);
    for (uint32_t i = 0; i < kv->n_groups; i++)
        if (kv->g[i].n_free < to - from) /* all groups or none: a half-grown table would have to be undone */
            return err_set(e, ERR_AGAIN, "KV group %u has %u free pages, %u are needed", i, kv->g[i].n_free, to - from);
    for (uint32_t i = 0; i < kv->n_groups; i++) {
        struct group *g = &kv->g[i];
        for (uint32_t k = from; k < to; k++) {
            assert(*cell_of(kv, g, slot, k) == KRN_NO_PAGE);
            hold(g, cell_of(kv, g, slot, k), g->free_list[--g->n_free]);
        }
    }
    kv->reserved[slot] = n_tokens;
    return ERR_OK;
}

void eng_kv_release(eng_kv *kv, uint32_t slot)
{
    for (uint32_t i = 0; i < kv->n_groups; i++)
        for (uint32_t k = 0; k < kv->stride; k++)
            drop(&kv->g[i], cell_of(kv, &kv->g[i], slot, k));
    kv->reserved[slot] = 0;
}

uint32_t eng_kv_first(const eng_kv *kv, uint32_t group, uint32_t pos)
{
    uint32_t window = kv->g[group].window;
    return window && pos >= window ? (pos - window + 1) / kv->c.page_tokens : 0; /* pages hold whole blocks, as kernels read them */
}

void eng_kv_slide(eng_kv *kv, uint32_t slot, uint32_t pos)
{
    for (uint32_t i = 0; i < kv->n_groups; i++)
        for (uint32_t k = 0, first = eng_kv_first(kv, i, pos); k < first; k++)
            drop(&kv->g[i], cell_of(kv, &kv->g[i], slot, k));
}

void eng_kv_keep(eng_kv *kv, uint32_t group, uint32_t page, bool keep)
{
    struct group *g = &kv->g[group];
    assert(!(g->holders[page] & KEPT) == keep);
    g->holders[page] ^= KEPT;
    if (!g->holders[page])
        g->free_list[g->n_free++] = page;
}

void eng_kv_map(eng_kv *kv, uint32_t slot, uint32_t group, uint32_t index, uint32_t page)
{
    struct group *g = &kv->g[group];
    uint32_t *cell = cell_of(kv, g, slot, index), old = *cell;
    assert(g->holders[page]);
    hold(g, cell, page);
    drop(g, &old);
}

void eng_kv_cover(eng_kv *kv, uint32_t slot, uint32_t n_tokens)
{
    assert(!kv->reserved[slot] && n_tokens <= kv->c.ctx && n_tokens % kv->c.page_tokens == 0);
    kv->reserved[slot] = n_tokens;
}

uint32_t eng_kv_page(const eng_kv *kv, uint32_t slot, uint32_t group, uint32_t index) { return *cell_of(kv, &kv->g[group], slot, index); }
uint32_t eng_kv_holders(const eng_kv *kv, uint32_t group, uint32_t page) { return kv->g[group].holders[page] & ~KEPT; }
uint32_t eng_kv_pool_pages(const eng_kv *kv, uint32_t group) { return kv->g[group].n_pages; }
uint32_t eng_kv_groups(const eng_kv *kv) { return kv->n_groups; }
uint32_t eng_kv_table_stride(const eng_kv *kv) { return kv->stride; }

void eng_kv_table(const eng_kv *kv, uint32_t group, uint32_t slot, uint32_t *dst)
{
    memcpy(dst, kv->g[group].tables + (size_t)slot * kv->stride, kv->stride * sizeof *dst);
}

void eng_kv_pages(const eng_kv *kv, uint32_t group, struct krn_pages *out)
{
    *out = (struct krn_pages){.pool = kv->g[group].pool, .layout = kv->g[group].layout, .table_stride = kv->stride};
}

void eng_kv_usage(const eng_kv *kv, uint64_t *pages, uint64_t *used, uint64_t *bytes)
{
    *pages = *used = *bytes = 0;
    for (uint32_t i = 0; i < kv->n_groups; i++) {
        *pages += kv->g[i].n_pages;
        *used += kv->g[i].n_used;
        *bytes += kv->g[i].pool_bytes;
    }
}
