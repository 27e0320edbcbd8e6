/* policies/predict.h - what a decode step costs, from where its bytes lie and how fast they come: the roof, and what to expect.
 *
 * Pure. A step of n sequences reads the trunk once, and of each layer's experts those that its tokens choose: of independent tokens
 * experts * (1 - (1 - k / experts)^n). A cache of them holds each alike: without a trace nothing better is known, and a skewed router hits
 * more often. From the drive come the trunk's streamed part and the missing experts; everything used comes from memory.
 *   roof      the slower of the two tiers, both busy all the time
 *   expected  the trunk's reads go on under everything, the experts' only under their own layers' resident ones, since nobody knows
 *             before the router has chosen
 * More slots or less streamed never makes either slower. */
#ifndef SLUICE_POLICIES_PREDICT_H
#define SLUICE_POLICIES_PREDICT_H
#include <stdbool.h>
#include <stdint.h>

struct pol_tiers {
    uint64_t trunk_bytes, streamed_bytes;        /* of a step; of these what passes from the drive */
    uint32_t layers, experts, k;                 /* with experts; of a layer; chosen by a token. layers 0: none */
    uint64_t expert_bytes;                       /* of one */
    double resident;                             /* share of all experts that memory holds, 0 to 1 */
    double memory_s, drive_s;                    /* bytes a second; 0: not known, and costs nothing */
};
struct pol_step {
    double memory_bytes, drive_bytes, hits;      /* of a step; hits: of expert uses */
    double roof_s, expected_s;
    bool drive;                                  /* the roof is the drive's */
};
struct pol_step pol_predict(const struct pol_tiers *t, uint32_t n_tokens);
#endif
