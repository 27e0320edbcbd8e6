#include "policies/predict.h"

#include <math.h>

static double seconds(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

struct pol_step pol_predict(const struct pol_tiers *t, uint32_t n_tokens)
{
    double chosen = t->layers ? t->experts * (1 - pow(1 - (double)t->k / t->experts, n_tokens)) : 0, used = chosen * t->layers * (double)t->expert_bytes;
    double hits = t->resident < 1 ? t->resident : 1, missed = used * (1 - hits);
    struct pol_step s = {.memory_bytes = (double)t->trunk_bytes + used, .drive_bytes = (double)t->streamed_bytes + missed, .hits = t->layers ? hits : 1};
    double memory = seconds(s.memory_bytes, t->memory_s), drive = seconds(s.drive_bytes, t->drive_s);
    double trunk = seconds((double)t->trunk_bytes, t->memory_s), experts = seconds(used, t->memory_s), reads = seconds(missed, t->drive_s);
    s.drive = drive > memory;
    s.roof_s = s.drive ? drive : memory;
    s.expected_s = trunk + (reads > experts ? reads : experts);
    s.expected_s = drive > s.expected_s ? drive : s.expected_s;
    return s;
}
