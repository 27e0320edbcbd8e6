#include "policies/draft.h"

enum { MATCH_MIN = 2, MATCH_MAX = 8 };
static const float UNKNOWN_RATE = 0.5f; /* of a sequence that has not guessed yet: a try costs little */
static const float UNKNOWN_ROW = 0.08f; /* share of a step that another row adds, until that has been measured */
static const float WORTH = 1.05f;

uint32_t pol_draft_guess(const int32_t *tokens, uint32_t n, uint32_t k, int32_t *out)
{
    uint32_t best = MATCH_MIN - 1, at = 0; /* tokens[at - 1] is the end of the earlier match */
    for (uint32_t i = n - 1; n > MATCH_MIN && i > 0 && best < MATCH_MAX; i--) {
        if (tokens[i - 1] != tokens[n - 1])
            continue;
        uint32_t m = 1;
        while (m < MATCH_MAX && m < i && tokens[i - 1 - m] == tokens[n - 1 - m])
            m++;
        if (m > best) {
            best = m;
            at = i;
        }
    }
    for (uint32_t j = 0; at && j < k; j++) /* past the end the guesses themselves go on: a text that repeats itself */
        out[j] = at + j < n ? tokens[at + j] : out[at + j - n];
    return at ? k : 0;
}

static float rate(const struct pol_draft_record *r) { return r->guesses ? r->rate : UNKNOWN_RATE; }

void pol_draft_seen(struct pol_draft_record *r, uint32_t guessed, uint32_t accepted)
{
    uint32_t trials = accepted < guessed ? accepted + 1 : guessed; /* those behind the first wrong one were not tried */
    r->rate = rate(r);
    for (uint32_t i = 0; i < trials; i++)
        r->rate += ((i < accepted ? 1.0f : 0.0f) - r->rate) / 8;
    r->guesses += trials;
}

void pol_draft_idle(struct pol_draft_record *r)
{
    if (r->guesses && r->rate < UNKNOWN_RATE)
        r->rate += (UNKNOWN_RATE - r->rate) / 256;
}

void pol_draft_timed(struct pol_draft_cost *c, uint32_t rows, uint64_t ns)
{
    if (!rows || rows > POL_DRAFT_ROWS)
        return;
    float *t = &c->ns[rows];
    *t = *t > 0 ? *t + ((float)ns - *t) / 8 : (float)ns;
}

/* Measured, or between its measured neighbours, or beyond the last one at the assumed price of a row. */
static float cost(const struct pol_draft_cost *c, uint32_t rows)
{
    uint32_t lo = rows, hi = rows;
    while (lo && !(c->ns[lo] > 0))
        lo--;
    while (hi <= POL_DRAFT_ROWS && !(c->ns[hi] > 0))
        hi++;
    if (!lo && hi > POL_DRAFT_ROWS)
        return 1 + UNKNOWN_ROW * (float)rows; /* nothing is known: any unit will do */
    if (hi > POL_DRAFT_ROWS)
        return c->ns[lo] * (1 + UNKNOWN_ROW * (float)(rows - lo));
    if (!lo)
        return c->ns[hi] / (1 + UNKNOWN_ROW * (float)(hi - rows));
    return lo == hi ? c->ns[lo] : c->ns[lo] + (c->ns[hi] - c->ns[lo]) * (float)(rows - lo) / (float)(hi - lo);
}

float pol_draft_gain(const struct pol_draft_record *r, uint32_t k)
{
    float p = rate(r), all = 1, sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += all *= p;
    return sum;
}

uint32_t pol_draft_rows(const struct pol_draft_record *r, const struct pol_draft_cost *c, uint32_t rows, float tokens, uint32_t most)
{
    uint32_t best = 0;
    float speed = WORTH * tokens / cost(c, rows);
    for (uint32_t k = 1; k <= most && rows + k <= POL_DRAFT_ROWS; k++) {
        float s = (tokens + pol_draft_gain(r, k)) / cost(c, rows + k);
        if (s > speed) {
            speed = s;
            best = k;
        }
    }
    return best;
}
