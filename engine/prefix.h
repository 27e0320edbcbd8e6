/* engine/prefix.h - the prefix index: full KV pages of finished and running sequences, found again by what they hold; snapshots of
 * recurrent states at the ends of such pages.
 *
 * Owns:      a tree of nodes. A node is one page of tokens after its parent's, and names the page of every KV group that still
 *            has it, and the snapshot after its last token if there is one. Nodes, tables and scratch are allocated at open; nothing is
 *            allocated later.
 * Leaves:    pages and their counts to engine/kv.h, a snapshot's bytes to engine/states.h (here it is a number), where to take one to
 *            engine/snapshot.c, the choice of what leaves to policies/evict.h, ids to engine/page_id.h.
 * Invariant: an indexed page is full and never written again; a node whose descendant is leased is leased; a page that a
 *            sequence holds is never evicted; pages are shared within one namespace only.
 * Threads:   the scheduler's; eng_prefix_scope from any.   Source: docs/kv.md. */
#ifndef SLUICE_ENGINE_PREFIX_H
#define SLUICE_ENGINE_PREFIX_H
#include "engine/kv.h"
#include "engine/page_id.h"

typedef struct eng_prefix eng_prefix;
/* Can pages of an earlier sequence stand for computing them: all that a token leaves behind is in pages, or in the recurrent states
 * that `snapshots` (how many there is room for) are of. */
bool eng_prefix_possible(const struct eng_plan *p, uint32_t snapshots);
uint64_t eng_prefix_bytes(const struct eng_plan *p, const struct eng_kv_config *c, uint32_t snapshots); /* at most, for any pool within c */
/* scope: all that identifies pages here but group, kv, far and space, which this module fills; its pointers are borrowed for the
 * index's life, like plan and kv. ERR_NOMEM. */
int eng_prefix_open(eng_prefix **out, const struct eng_plan *p, eng_kv *kv, const struct eng_page_scope *scope, uint32_t slots, uint32_t snapshots, struct err *e);
void eng_prefix_close(eng_prefix *x);

/* How far a sequence's pages are indexed: the chain of nodes from the root to `node`, n_pages long, leased by it. All zero but
 * scope and tenant, which eng_prefix_scope sets: nothing yet. */
struct eng_chain { uint8_t scope[HASH_BYTES]; uint16_t tenant; uint32_t node, n_pages; };
/* far: as in krn_seq. */
int eng_prefix_scope(const eng_prefix *x, const char *tenant, bool far, struct eng_chain *c, struct err *e); /* ERR_NOMEM */

/* Tokens of the longest prefix, whole pages and less than n, of which all that a continuation needs is here: pages, and a snapshot where
 * there are recurrent layers. */
uint32_t eng_prefix_match(eng_prefix *x, const struct eng_chain *c, const int32_t *tokens, uint32_t n);
/* Fills the empty slot with the pages of the first n_tokens (of the last match) and leases them. */
void eng_prefix_lease(eng_prefix *x, struct eng_chain *c, uint32_t slot, uint32_t n_tokens);
/* Pages that became full with n_past tokens are indexed; where another sequence has brought the same one, that one is taken and
 * ours goes back. */
void eng_prefix_add(eng_prefix *x, struct eng_chain *c, uint32_t slot, const int32_t *tokens, uint32_t n_past);
/* The slot's pages go back (eng_kv_release); those that are indexed stay as long as there is room. */
void eng_prefix_release(eng_prefix *x, struct eng_chain *c, uint32_t slot);
/* eng_kv_reserve that makes room by eviction. ERR_AGAIN: all other pages are held by sequences. */
int eng_prefix_reserve(eng_prefix *x, uint32_t slot, uint32_t n_tokens, struct err *e);

/* Of the last match: tokens whose pages are all here, with a snapshot at their end or without. */
uint32_t eng_prefix_reach(const eng_prefix *x);

/* Snapshots: free ones are taken, filled, and put where their sequence was; another one may have to leave the index for that. */
#define ENG_NO_SNAPSHOT UINT32_MAX
uint32_t eng_prefix_snapshot_take(eng_prefix *x);                                       /* NO_SNAPSHOT: there is room for none */
void eng_prefix_snapshot_give(eng_prefix *x, uint32_t snapshot);                        /* it was not filled */
/* After n_tokens of the chain; where those are not indexed, or have a snapshot already, it is given back. True: it is there now. */
bool eng_prefix_snapshot_put(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens, uint32_t snapshot);
uint32_t eng_prefix_snapshot_get(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens);  /* to go on from; NO_SNAPSHOT: none */
uint32_t eng_prefix_snapshot_pull(eng_prefix *x, const struct eng_chain *c, uint32_t n_tokens); /* takes it out of the index */

struct eng_prefix_stats { uint64_t pages, evictions, snapshots; }; /* pages, snapshots: indexed, of all groups, held by a sequence or not */
void eng_prefix_stats(const eng_prefix *x, struct eng_prefix_stats *s);
#endif
