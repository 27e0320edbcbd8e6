#include "engine/sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

enum { LANES = 16, BLOCK = 256 }; /* fixed lanes: loops that the compiler turns into vectors; BLOCK: weights that have a sum of their own */
struct cand { float p; int32_t id; };
struct eng_sampler { uint32_t vocab; struct cand *c; float *x, *y; double *sums; uint32_t *count; const struct krn_ops *ops; }; /* count: all 0 between calls */

int eng_sampler_open(eng_sampler **out, uint32_t vocab, struct err *e)
{
    *out = NULL;
    eng_sampler *s = calloc(1, sizeof *s);
    size_t n = vocab ? vocab : 1;
    if (!s || !(s->c = malloc(n * sizeof *s->c)) || !(s->x = malloc(n * sizeof *s->x)) || !(s->y = malloc(n * sizeof *s->y)) ||
        !(s->count = calloc(n, sizeof *s->count)) || !(s->sums = malloc((n / BLOCK + 1) * sizeof *s->sums))) {
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
    free(s->sums);
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

/* The largest value; *nan: there is one that is not a number. */
static float largest(const float *x, uint32_t n, bool *nan)
{
    float m[LANES], best = -INFINITY;
    uint32_t bad[LANES] = {0}, i = 0, any = 0;
    for (uint32_t k = 0; k < LANES; k++)
        m[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++) {
            m[k] = x[i + k] > m[k] ? x[i + k] : m[k];
            bad[k] |= x[i + k] != x[i + k];
        }
    for (; i < n; i++) {
        m[0] = x[i] > m[0] ? x[i] : m[0];
        any |= x[i] != x[i];
    }
    for (uint32_t k = 0; k < LANES; k++) {
        best = m[k] > best ? m[k] : best;
        any |= bad[k];
    }
    *nan = any != 0;
    return best;
}

static int argmax(const float *logits, uint32_t n, const int32_t *banned, size_t n_banned, int32_t *id, float *max, struct err *e)
{
    bool nan;
    float best = largest(logits, n, &nan);
    int64_t at = -1;
    for (uint32_t i = 0; i < n && nan; i++)
        if (logits[i] != logits[i])
            return err_set(e, ERR_FORMAT, "logit of token %u is not a number: the model's arithmetic overflowed", i);
    uint32_t from = 0;
    for (bool there = false; from + LANES <= n && best > -INFINITY && !there; from += there ? 0 : LANES) {
        uint32_t hit = 0;
        for (uint32_t k = 0; k < LANES; k++)
            hit |= logits[from + k] == best;
        there = hit != 0;
    }
    for (uint32_t i = from; i < n && at < 0 && best > -INFINITY; i++)
        at = logits[i] == best ? (int64_t)i : -1;
    if (at >= 0 && is_banned((int32_t)at, banned, n_banned)) { /* rare: the largest of the others, one by one */
        best = -INFINITY;
        at = -1;
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] > best && !is_banned((int32_t)i, banned, n_banned)) {
                best = logits[i];
                at = i;
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

/* How many of the candidates, best first, hold `mass`: sorts only as deep as needed. 0: all of them do not. */
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
    return 0;
}

static double sum_of(const float *x, uint32_t n)
{
    double lane[LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            lane[k] += (double)x[i + k];
    for (; i < n; i++)
        lane[0] += (double)x[i];
    for (uint32_t k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

/* x[i] = exp((logit - max) / temperature), 0 where banned; their sums block by block. Returns the sum of all. */
static double weigh(eng_sampler *s, const float *logits, uint32_t n_ids, float max, float temperature, const struct eng_draw *d)
{
    float inv = 1.0f / temperature;
    double total = 0;
    uint32_t i0 = 0;
    for (; i0 + LANES <= n_ids; i0 += LANES)
        for (uint32_t k = 0; k < LANES; k++)
            s->x[i0 + k] = (logits[i0 + k] - max) * inv;
    for (; i0 < n_ids; i0++)
        s->x[i0] = (logits[i0] - max) * inv;
    s->ops->exp(s->x, s->x, n_ids);
    for (size_t i = 0; i < d->n_banned; i++)
        if ((uint32_t)d->banned[i] < n_ids)
            s->x[d->banned[i]] = 0;
    for (uint32_t at = 0; at < n_ids; at += BLOCK)
        total += s->sums[at / BLOCK] = sum_of(s->x + at, n_ids - at < BLOCK ? n_ids - at : BLOCK);
    return total;
}

/* Of all weights: the one under u, counted through in order of ids. */
static int32_t draw_any(const eng_sampler *s, uint32_t n_ids, double u)
{
    int32_t id = 0;
    for (uint32_t at = 0; at < n_ids; at += BLOCK) {
        uint32_t end = at + BLOCK < n_ids ? at + BLOCK : n_ids;
        if (u >= s->sums[at / BLOCK] && end < n_ids) {
            u -= s->sums[at / BLOCK];
            continue;
        }
        for (uint32_t i = at; i < end; i++)
            if (s->x[i] > 0) {
                id = (int32_t)i;
                if ((u -= (double)s->x[i]) < 0)
                    return id;
            }
    }
    return id; /* rounding: the last that has a weight */
}

/* Weights of at least `least`, above zero, in order of ids. */
static size_t collect(eng_sampler *s, uint32_t n_ids, float least)
{
    size_t n = 0;
    for (uint32_t at = 0; at < n_ids; at += BLOCK) {
        if (s->sums[at / BLOCK] < (double)least)
            continue;
        for (uint32_t i = at, end = at + BLOCK < n_ids ? at + BLOCK : n_ids; i < end; i++)
            if (s->x[i] >= least && s->x[i] > 0)
                s->c[n++] = (struct cand){s->x[i], (int32_t)i};
    }
    return n;
}

/* The candidates that top-k, top-p and min-p leave, in front of s->c. The likely ones are looked at first: most often they are all
 * that is needed, and a vocabulary is long. total: of all weights; the best one is exactly 1. */
static size_t candidates(eng_sampler *s, uint32_t n_ids, const struct eng_sampling *p, double total)
{
    size_t n = 0, k = p->top_k > 0 ? (size_t)p->top_k : 0;
    if (!k && p->top_p >= 1)
        return collect(s, n_ids, p->min_p);
    for (float least = 1.0f / 64;; least = least > 1e-12f ? least / 64 : 0) {
        n = collect(s, n_ids, least);
        if (least > 0 && n < k)
            continue;
        double of = total;
        if (k) {
            if (k < n)
                select_best(s->c, n, k);
            n = k < n ? k : n;
            qsort(s->c, n, sizeof *s->c, by_p); /* the selection left them in no stated order: sums need one */
            of = 0;
            for (size_t i = 0; i < n; i++)
                of += (double)s->c[i].p;
        }
        size_t m = p->top_p < 1 ? nucleus(s->c, n, (double)p->top_p * of) : n;
        if (!m && least > 0)
            continue;
        n = m ? m : n;
        break;
    }
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (s->c[i].p >= p->min_p)
            s->c[m++] = s->c[i];
    return m;
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
    logits = adjusted(s, logits, n_ids, p, d);
    int rc = argmax(logits, n_ids, d->banned, d->n_banned, id, &max, e);
    if (rc || p->temperature <= 0)
        return rc;
    double total = weigh(s, logits, n_ids, max, p->temperature, d), u = eng_uniform(p->seed, p->choice, d->position);
    if (p->top_k <= 0 && p->top_p >= 1 && p->min_p <= 0) {
        *id = draw_any(s, n_ids, u * total);
        return ERR_OK;
    }
    size_t n = candidates(s, n_ids, p, total);
    double sum = 0;
    total = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)s->c[i].p;
    u *= total;
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
