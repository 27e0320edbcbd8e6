/* policies/experts: who leaves, by each rule, after a few gates told by hand; and that the answer is sorted whatever is asked. */
#include "policies/experts.h"
#include "tests/support/suite.h"

enum { LAYERS = 3, PER = 4, ALL = LAYERS * PER };
static struct pol_expert of[ALL];
static struct pol_experts p;

static void begin(enum pol_experts_kind kind)
{
    memset(of, 0, sizeof of);
    p = (struct pol_experts){.kind = kind, .layers = LAYERS, .per_layer = PER, .of = of};
}
/* Each layer in turn chooses the experts of a bit mask. */
static void sweep(unsigned a, unsigned b, unsigned c)
{
    const unsigned m[LAYERS] = {a, b, c};
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t rows[PER];
        for (uint32_t e = 0; e < PER; e++)
            rows[e] = m[l] >> e & 1;
        pol_experts_use(&p, l, rows, 1);
    }
}
static uint32_t first(uint32_t layer, const uint32_t *c, uint32_t n)
{
    uint32_t out = UINT32_MAX;
    ck_assert_uint_eq(pol_experts_leave(&p, layer, c, n, 1, &out), n ? 1 : 0);
    return out;
}

START_TEST(core)
{
    /* 0: three times, long ago; 1: once, long ago; 2: twice, just now; 5: of the next layer, as 1 */
    static const uint32_t same_layer[] = {0, 1, 2}, all[] = {0, 1, 2, 5};
    static const struct { enum pol_experts_kind kind; uint32_t want; } cases[] = {
        {POL_EXPERTS_LRU, 1}, {POL_EXPERTS_LFU, 1}, {POL_EXPERTS_LFRU, 1}, {POL_EXPERTS_RATE, 1}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(cases[i].kind);
        sweep(1, 0, 0);
        sweep(1, 0, 0);
        sweep(1 | 2, 2, 0);
        for (int k = 0; k < 6; k++)
            sweep(8, 8, 8);
        sweep(4, 8, 8);
        sweep(4, 8, 8);
        /* LRU: 0 and 1 were last chosen at one gate: the lower number */
        ck_assert_msg(first(0, same_layer, 3) == (cases[i].kind == POL_EXPERTS_LRU ? 0 : cases[i].want), "%s", pol_experts_names[cases[i].kind]);
        if (cases[i].kind == POL_EXPERTS_RATE) /* layer 1 comes next: its expert is wanted sooner than an equal one of layer 0 */
            ck_assert_uint_eq(first(0, all, 4), 1);
    }
    begin(POL_EXPERTS_RATE); /* one of the layer that just ran against one of the next, used alike */
    sweep(1, 1, 1);
    ck_assert_uint_eq(first(0, (uint32_t[]){0, 4, 8}, 3), 0);
    ck_assert_uint_eq(first(1, (uint32_t[]){0, 4, 8}, 3), 4);
    ck_assert_uint_eq(first(2, (uint32_t[]){0, 4, 8}, 3), 8);
}
END_TEST

/* Rows count: after a chunk of many tokens, who got few of them leaves first. */
START_TEST(chunks)
{
    uint32_t rows[PER] = {50, 3, 20, 80};
    begin(POL_EXPERTS_RATE);
    pol_experts_use(&p, 0, rows, 128);
    ck_assert_uint_eq(first(0, (uint32_t[]){0, 1, 2, 3}, 4), 1);
    ck_assert_uint_eq(first(0, (uint32_t[]){0, 2, 3}, 3), 2);
    ck_assert_uint_eq(first(0, (uint32_t[]){0, 3}, 2), 0);
    ck_assert(of[0].uses == 1 && of[0].used_at == 1);
}
END_TEST

/* However many are asked for, they are the first of the whole order. */
START_TEST(limits)
{
    uint64_t s = 11;
    for (int round = 0; round < 400; round++) {
        uint32_t c[ALL], n = 0, one[ALL], out[POL_EXPERTS_LEAVE_MAX], want = (uint32_t)round % (ALL + 1);
        begin((enum pol_experts_kind)(round % POL_EXPERTS_KINDS));
        for (int k = 0; k < round % 7; k++) {
            s = s * 6364136223846793005u + 1442695040888963407u;
            sweep((unsigned)(s >> 33) & 15, (unsigned)(s >> 37) & 15, (unsigned)(s >> 41) & 15);
        }
        for (uint32_t i = 0; i < ALL; i++)
            if (s >> (20 + i) & 1)
                c[n++] = i;
        uint32_t layer = (uint32_t)round % LAYERS, left = n, got = pol_experts_leave(&p, layer, c, n, want, out);
        ck_assert_uint_eq(got, want < n ? want : n);
        memcpy(one, c, sizeof one);
        for (uint32_t i = 0; i < got; i++) {
            uint32_t x = first(layer, one, left);
            ck_assert_msg(x == out[i], "round %d: place %u", round, i);
            for (uint32_t k = 0; k < left; k++)
                if (one[k] == x)
                    one[k] = one[--left];
        }
    }
    ck_assert_uint_eq(pol_experts_leave(&p, 0, NULL, 0, 4, NULL), 0);
}
END_TEST

SUITE("policies", "experts", core, chunks, limits)
