/* engine/kv.h - KV pages: one pool a KV group, one page table a sequence slot and group.
 *
 * Owns:      the pools (anonymous memory, sized at open, touched only as pages are used), the tables, the free lists, the counts
 *            of who holds a page.
 * Leaves:    the bytes inside a page to kernels/kv_layout.h, who gets pages to policies/schedule.h, which full pages are kept for
 *            later sequences to engine/prefix.h.
 * Invariant: a page is on the free list, or in one table or more, or kept, or both; only full pages, which nobody writes any
 *            more, are in two tables; a slot's table covers [first kept token, reserved tokens).
 * Threads:   the scheduler's. */
#ifndef SLUICE_ENGINE_KV_H
#define SLUICE_ENGINE_KV_H
#include "engine/plan.h"
#include "kernels/kv_layout.h"

typedef struct eng_kv eng_kv;
struct eng_kv_config {
    enum krn_type type;         /* F32, F16, BF16 */
    uint32_t page_tokens, slots, ctx, chunk;
    bool elsewhere;             /* the pages lie on a device: tables and counts only, no memory here */
    uint64_t bytes_max;         /* ceiling of all pools; the pools hold less than slots * ctx tokens if need be */
};
/* The page of a group, and how many a sequence of ctx tokens holds at most: of a windowed group what its window and a chunk span. False: no possible layout. */
bool eng_kv_layout(const struct eng_kv_group *k, const struct eng_kv_config *c, struct krn_kv_layout *l);
uint32_t eng_kv_seq_pages(const struct eng_kv_group *k, const struct eng_kv_config *c);
/* Bytes that slots sequences of ctx tokens need, and the least that one sequence needs. 0 on overflow. */
uint64_t eng_kv_bytes(const struct eng_plan *p, const struct eng_kv_config *c, uint32_t slots);
int eng_kv_open(eng_kv **out, const struct eng_plan *p, const struct eng_kv_config *c, struct err *e); /* ERR_BUDGET, ERR_UNSUPPORTED */
void eng_kv_close(eng_kv *kv);

/* Pages for tokens [0, n_tokens) of the slot. ERR_AGAIN: the pool is out of pages; what was reserved stays. */
int eng_kv_reserve(eng_kv *kv, uint32_t slot, uint32_t n_tokens, struct err *e);
void eng_kv_release(eng_kv *kv, uint32_t slot);                      /* all pages back */
/* Drops pages of windowed groups that no query at position >= pos can see. */
void eng_kv_slide(eng_kv *kv, uint32_t slot, uint32_t pos);


/* Sharing. A kept page stays when the last table lets it go. */
void eng_kv_keep(eng_kv *kv, uint32_t group, uint32_t page, bool keep);
/* Puts a page that is kept or in a table into cell `index` of the slot's table; what was there goes. */
void eng_kv_map(eng_kv *kv, uint32_t slot, uint32_t group, uint32_t index, uint32_t page);
/* The table of an empty slot has been filled by map: it covers n_tokens, a multiple of the page size. */
void eng_kv_cover(eng_kv *kv, uint32_t slot, uint32_t n_tokens);
uint32_t eng_kv_page(const eng_kv *kv, uint32_t slot, uint32_t group, uint32_t index); /* KRN_NO_PAGE: none */
uint32_t eng_kv_holders(const eng_kv *kv, uint32_t group, uint32_t page);              /* tables it is in */
uint32_t eng_kv_missing(const eng_kv *kv, uint32_t slot, uint32_t group, uint32_t n_tokens); /* free pages that reserve lacks */
/* Index of the first page that a query at position pos reads. */
uint32_t eng_kv_first(const eng_kv *kv, uint32_t group, uint32_t pos);
uint32_t eng_kv_pool_pages(const eng_kv *kv, uint32_t group);

uint32_t eng_kv_groups(const eng_kv *kv);
uint32_t eng_kv_table_stride(const eng_kv *kv);                      /* entries a table has */
/* Copies the slot's table of a group into dst [table_stride] (step tables are rows in step order). */
void eng_kv_table(const eng_kv *kv, uint32_t group, uint32_t slot, uint32_t *dst);
void eng_kv_pages(const eng_kv *kv, uint32_t group, struct krn_pages *out); /* all but tables */
void eng_kv_usage(const eng_kv *kv, uint64_t *pages, uint64_t *used, uint64_t *bytes); /* used: in a table */
#endif
