#include "policies/experts.h"

#include <math.h>

const char *const pol_experts_names[POL_EXPERTS_KINDS] = {"lru", "lfu", "lfru", "rate"};

static const float fast_tokens = 4, slow_tokens = 64; /* half of an average's weight is younger than this */
static const float never = 1e9f;

void pol_experts_use(struct pol_experts *p, uint32_t layer, const uint32_t *rows, uint32_t n_tokens)
{
    struct pol_expert *x = p->of + (size_t)layer * p->per_layer;
    float n = (float)n_tokens, keep_fast = exp2f(-n / fast_tokens), keep_slow = exp2f(-n / slow_tokens);
    p->gates++;
    for (uint32_t e = 0; e < p->per_layer; e++, x++) {
        float rate = (float)rows[e] / n;
        x->fast = x->fast * keep_fast + rate * (1 - keep_fast);
        x->slow = x->slow * keep_slow + rate * (1 - keep_slow);
        rate = (x->fast + x->slow) / 2;
        x->wait = rate * never > 1 ? 1 / rate : never;
        if (rows[e]) {
            x->uses++;
            x->used_at = p->gates;
        }
    }
}

/* Larger: it leaves sooner. */
static double leaves(const struct pol_experts *p, uint32_t now, uint32_t id)
{
    const struct pol_expert *x = &p->of[id];
    uint32_t layer = id / p->per_layer;
    double age = (double)(p->gates - x->used_at);
    switch (p->kind) {
    case POL_EXPERTS_LFU: return -(double)x->uses + age / ((double)p->gates + 1);
    case POL_EXPERTS_LFRU: return -(double)x->uses / (age + p->layers);
    case POL_EXPERTS_RATE: return (double)((layer + 2 * p->layers - now - 1) % p->layers) / p->layers + (double)(x->uses ? x->wait : never);
    default: return age;
    }
}

uint32_t pol_experts_leave(const struct pol_experts *p, uint32_t layer, const uint32_t *candidates, uint32_t n, uint32_t want, uint32_t *out)
{
    double score[POL_EXPERTS_LEAVE_MAX];
    uint32_t k = 0;
    for (uint32_t i = 0; i < n; i++) {
        double s = leaves(p, layer, candidates[i]);
        if (k == want && (!want || s < score[k - 1] || (!(s > score[k - 1]) && candidates[i] > out[k - 1])))
            continue;
        uint32_t at = k < want ? k++ : k - 1;
        for (; at && (s > score[at - 1] || (!(s < score[at - 1]) && candidates[i] < out[at - 1])); at--) {
            score[at] = score[at - 1];
            out[at] = out[at - 1];
        }
        score[at] = s;
        out[at] = candidates[i];
    }
    return k;
}
