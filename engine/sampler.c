#include "engine/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

struct cand { float p; int32_t id; };
struct eng_sampler { uint32_t vocab; struct cand *c; float *x, *y; uint32_t *count; const struct krn_ops *ops; }; /* count: all 0 between calls */

int eng_sampler_open(eng_sampler **out, uint32_t vocab, struct err *e)
{
    *out = NULL;
    eng_sampler *s = calloc(1, sizeof *s);
    size_t n = vocab ? vocab : 1;
    if (!s || !(s->c = malloc(n * sizeof *s->c)) || !(s->x = malloc(n * sizeof *s->x)) || !(s->y = malloc(n * sizeof *s->y)) ||
        !(s->count = calloc(n, sizeof *s->count))) {
        eng_sampler_close(s);
        return err_set(e, ERR_NOMEM, "sampler for %u ids", vocab);
    }
    s->vocab = vocab;
    s->ops = krn_ops_get(KRN_ISA_AUTO); /* exp has equal bits on all of them */
    *out = s;
    return ERR_OK;
}

void eng_sampler_close(eng_sampler *s)
{
    if (!s)
        return;
    free(s->c);
    free(s->x);
    free(s->y);
    free(s->count);
    free(s);
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

double eng_uniform(uint64_t seed, uint32_t choice, uint32_t position)
{
    uint64_t z = mix(seed + 0x9E3779B97F4A7C15u);
    z = mix(z ^ ((uint64_t)choice << 32 | position));
    return (double)(mix(z + 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

static bool is_banned(int32_t id, const int32_t *banned, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (banned[i] == id)
            return true;
    return false;
}

/* Larger probability first, smaller id among equals: a total order, so results do not depend on the sort. */
static int by_p(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;
    if (x->p != y->p)
        return x->p < y->p ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int argmax(const float *logits, uint32_t n, const int32_t *banned, size_t n_banned, int32_t *id, float *max, struct err *e)
{
    float best = -INFINITY;
    int64_t at = -1;
    for (uint32_t i = 0; i < n; i++) {
        float v = logits[i];
        if (v > best) {
            if (n_banned && is_banned((int32_t)i, banned, n_banned))
                continue;
            best = v;
            at = i;
        } else if (v != v) {
            return err_set(e, ERR_FORMAT, "logit of token %u is not a number: the model's arithmetic overflowed", i);
        }
    }
    if (at < 0 || best == INFINITY)
        return err_set(e, ERR_FORMAT, "logits: no finite value among %u", n);
    *id = (int32_t)at;
    *max = best;
    return ERR_OK;
}

/* Puts the k best of c[0, n) in front (unsorted): quickselect with the order of by_p. */
static void select_best(struct cand *c, size_t n, size_t k)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        struct cand pivot = c[lo + (hi - lo) / 2];
        size_t i = lo, j = hi - 1;
        for (;;) {
            while (by_p(&c[i], &pivot) < 0)
                i++;
            while (by_p(&c[j], &pivot) > 0)
                j--;
            if (i >= j)
                break;
            struct cand t = c[i];
            c[i++] = c[j];
            c[j--] = t;
        }
        size_t mid = j + 1; /* c[lo, mid) are not after c[mid, hi) */
        if (k <= mid && mid < hi)
            hi = mid;
        else if (k > mid)
            lo = mid;
        else
            break;
    }
}

/* How many of the sorted-in-front candidates hold `mass`: sorts only as deep as needed. Returns their count. */
static size_t nucleus(struct cand *c, size_t n, double mass)
{
    size_t done = 0;
    double sum = 0;
    for (size_t step = 64; done < n; step *= 4) {
        size_t k = step < n - done ? step : n - done;
        if (k < n - done)
            select_best(c + done, n - done, k);
        qsort(c + done, k, sizeof *c, by_p);
        for (size_t i = 0; i < k; i++) {
            sum += (double)c[done + i].p;
            if (sum >= mass)
                return done + i + 1;
        }
        done += k;
    }
    return n;
}

/* Each distinct token of the range once: repetition takes any, the other two count the output. The last pass leaves count at 0. */
static void penalize(eng_sampler *s, float *x, uint32_t n_ids, const struct eng_sampling *p, const struct eng_draw *d)
{
    uint32_t *count = s->count;
    enum { SEEN = 1u << 31 };
    bool rep = p->repetition > 0 && p->repetition != 1;
    uint32_t from = rep ? 0 : d->n_prompt; /* the prompt matters to repetition alone */
    for (uint32_t i = from; i < d->n_tokens; i++)
        if ((uint32_t)d->tokens[i] < n_ids)
            count[d->tokens[i]] += i >= d->n_prompt;
    for (uint32_t i = from; i < d->n_tokens; i++) {
        uint32_t t = (uint32_t)d->tokens[i];
        if (t >= n_ids || count[t] & SEEN)
            continue;
        if (rep)
            x[t] = x[t] > 0 ? x[t] / p->repetition : x[t] * p->repetition;
        if (count[t])
            x[t] -= p->frequency * (float)count[t] + p->presence;
        count[t] |= SEEN;
    }
    for (uint32_t i = from; i < d->n_tokens; i++)
        if ((uint32_t)d->tokens[i] < n_ids)
            count[d->tokens[i]] = 0;
}

/* Minus infinity wherever a bit is not set. */
static void mask(float *x, uint32_t n_ids, const uint64_t *allowed)
{
    for (uint32_t at = 0; at < n_ids; at += 64) {
        uint32_t n = n_ids - at < 64 ? n_ids - at : 64;
        uint64_t bits = allowed[at / 64];
        for (uint32_t i = 0; bits != UINT64_MAX && i < n; i++)
            x[at + i] = bits >> i & 1 ? x[at + i] : -INFINITY;
    }
}

/* The row with biases, penalties and mask; the row itself when there are none. */
static const float *adjusted(eng_sampler *s, const float *logits, uint32_t n_ids, const struct eng_sampling *p, const struct eng_draw *d)
{
    bool penalties = d->n_tokens && (p->presence != 0 || p->frequency != 0 || (p->repetition > 0 && p->repetition != 1));
    if (!penalties && !d->n_bias && !d->allowed)
        return logits;
    memcpy(s->y, logits, n_ids * sizeof *s->y);
    for (uint32_t i = 0; i < d->n_bias; i++)
        if ((uint32_t)d->bias[i].id < n_ids)
            s->y[d->bias[i].id] += d->bias[i].bias;
    if (penalties)
        penalize(s, s->y, n_ids, p, d);
    if (d->allowed)
        mask(s->y, n_ids, d->allowed);
    return s->y;
}

int eng_sample(eng_sampler *s, const float *logits, uint32_t n_ids, const struct eng_sampling *p, const struct eng_draw *d, int32_t *id, struct err *e)
{
    assert(n_ids <= s->vocab);
    float max = 0;
    const int32_t *banned = d->banned;
    size_t n_banned = d->n_banned;
    logits = adjusted(s, logits, n_ids, p, d);
    int rc = argmax(logits, n_ids, banned, n_banned, id, &max, e);
    if (rc || p->temperature <= 0)
        return rc;
    size_t n = 0;
    float inv = 1.0f / p->temperature;
    for (uint32_t i = 0; i < n_ids; i++)
        s->x[i] = (logits[i] - max) * inv;
    s->ops->exp(s->x, s->x, n_ids);
    for (uint32_t i = 0; i < n_ids; i++)
        if (s->x[i] > 0 && (!n_banned || !is_banned((int32_t)i, banned, n_banned)))
            s->c[n++] = (struct cand){s->x[i], (int32_t)i};
    if (p->top_k > 0 && (size_t)p->top_k < n) {
        select_best(s->c, n, (size_t)p->top_k);
        n = (size_t)p->top_k;
    }
    double total = 0;
    if (p->top_k > 0) /* the selection left them in no stated order: sums need one */
        qsort(s->c, n, sizeof *s->c, by_p);
    for (size_t i = 0; i < n; i++)
        total += (double)s->c[i].p;
    if (p->top_p < 1)
        n = nucleus(s->c, n, (double)p->top_p * total);
    if (p->min_p > 0) {
        size_t m = 0;
        for (size_t i = 0; i < n; i++)
            if (s->c[i].p >= p->min_p) /* the best candidate's weight is exactly 1 */
                s->c[m++] = s->c[i];
        n = m;
    }
    total = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)s->c[i].p;
    double u = eng_uniform(p->seed, p->choice, d->position) * total, sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)s->c[i].p;
        *id = s->c[i].id;
        if (u < sum)
            break;
    }
    return ERR_OK;
}

void eng_sample_logprobs(eng_sampler *s, const float *logits, uint32_t n_ids, int32_t id, uint32_t k, struct eng_logprobs *out)
{
    assert(n_ids <= s->vocab && k <= ENG_TOP_MAX);
    float max = -INFINITY;
    double sum = 0;
    out->n_top = 0;
    for (uint32_t i = 0; i < n_ids; i++) {
        float v = logits[i];
        max = v > max ? v : max;
        if (!k || (out->n_top == k && v <= out->top[k - 1].logprob))
            continue;
        uint32_t at = out->n_top < k ? out->n_top++ : k - 1; /* insertion: few of a vocabulary get this far */
        for (; at && out->top[at - 1].logprob < v; at--)
            out->top[at] = out->top[at - 1];
        out->top[at] = (struct eng_top){(int32_t)i, v};
    }
    for (uint32_t i = 0; i < n_ids; i++)
        s->x[i] = logits[i] - max;
    s->ops->exp(s->x, s->x, n_ids);
    for (uint32_t i = 0; i < n_ids; i++)
        sum += (double)s->x[i];
    double norm = (double)max + log(sum);
    out->logprob = (float)((double)logits[id] - norm);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - norm);
}
