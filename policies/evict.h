/* policies/evict.h - which cached KV page leaves when its group's pool has no free one.
 *
 * Pure: a snapshot in, a decision out. A page that a sequence holds, or that has children (pages whose prefix it ends), stays:
 * a prefix is taken apart from its far end. Among the others the least recently used goes; of equally old ones the deeper.
 * In a windowed group a page's children can live without it, because a continuation reads the last window only: there children
 * do not count, and of equally old pages the shallower goes. Ties break by index.
 *
 * Shares. The cached pages are divided equally among the tenants that have any. A tenant that has no more than its share loses
 * none while one that has more can give one: whatever the others send, they flush their own prefixes. What a tenant does not
 * use, others may fill, and a share that nobody has asked for in a long while is given up: its tenant may be gone for good. */
#ifndef SLUICE_POLICIES_EVICT_H
#define SLUICE_POLICIES_EVICT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    POL_EVICT_TENANTS = 1024, /* numbers of tenants; two whose names fall on one number share its share */
    POL_EVICT_IDLE = 16       /* no share protects a page after whose last use so many times all pages have come */
};
struct pol_page {
    bool cached;        /* the index has it: else it is free, or one sequence's own */
    uint32_t leases;    /* sequences that hold it */
    uint32_t children;  /* indexed pages that continue it */
    uint32_t depth;     /* pages of its prefix before it */
    uint64_t used_at;   /* a counter: smaller is longer ago */
    uint64_t since;     /* pages that have come into the index after its last use */
    uint16_t tenant;    /* below POL_EVICT_TENANTS */
};
/* The page to give back, or SIZE_MAX: none may go. */
size_t pol_evict(const struct pol_page *p, size_t n, bool windowed);
#endif
