/* policies/experts.h - which routed experts stay in memory: what each one's use so far says about when it is wanted next.
 *
 * Pure: the caller owns the table, tells of every gate, asks who leaves. A gate is a layer's choice in one step; experts are numbered
 * layer * per_layer + expert.
 *   LRU   longest unused first
 *   LFU   least often used first; of equals the longest unused
 *   LFRU  fewest uses per gate since the last one
 *   RATE  longest expected wait first: the mean of two moving averages of an expert's uses a token, over 4 tokens and over 64, gives the
 *         tokens until its next use, to which the part of a sweep is added that lies between the gate at hand and the expert's layer. An
 *         expert of the layer that has just run waits a whole sweep, one of the next layer none: this is what LRU gets wrong below
 *         one token's working set, where it never hits.
 * RATE is the default; docs/measured.md has the replay of real routings that chose it ("Expert cache").
 * Ties go to the lower number. */
#ifndef SLUICE_POLICIES_EXPERTS_H
#define SLUICE_POLICIES_EXPERTS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pol_experts_kind { POL_EXPERTS_LRU, POL_EXPERTS_LFU, POL_EXPERTS_LFRU, POL_EXPERTS_RATE, POL_EXPERTS_KINDS };
extern const char *const pol_experts_names[POL_EXPERTS_KINDS];

struct pol_expert {
    float fast, slow;             /* uses a token, averaged */
    float wait;                   /* tokens until its next use, layers apart */
    uint32_t uses;                /* gates that chose it */
    uint64_t used_at;             /* number of the last of these; 0: never */
};
struct pol_experts {
    enum pol_experts_kind kind;
    uint32_t layers, per_layer;
    struct pol_expert *of;        /* [layers * per_layer] zeroed at first; the caller's */
    uint64_t gates;               /* so far */
};
/* A step of n_tokens passed the gate of this layer: rows[e] of them chose expert e [per_layer]. */
void pol_experts_use(struct pol_experts *p, uint32_t layer, const uint32_t *rows, uint32_t n_tokens);
/* The first `want` of candidates [n] to leave, in that order, while the gate of `layer` is served. Returns how many: want or n.
 * want <= POL_EXPERTS_LEAVE_MAX. */
enum { POL_EXPERTS_LEAVE_MAX = 16 };
uint32_t pol_experts_leave(const struct pol_experts *p, uint32_t layer, const uint32_t *candidates, uint32_t n, uint32_t want, uint32_t *out);
#endif
