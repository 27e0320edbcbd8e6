/* Random programs run twice on symbols: once with a memory for every register, once in the columns that the layout gave. Every
 * call must read the same symbols. */
#include <string.h>

#include "engine/layout.h"
#include "tests/support/suite.h"

enum { OPS = 60, COLS = 1 << 16 };
static uint64_t rng;
static uint32_t below(uint32_t n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % n;
}
static bool in_place(enum krn_opcode c) { return c == KRN_ADD || c == KRN_ROPE || c == KRN_SILU; }
static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9E3779B97F4A7C15u ^ (h >> 29); }

static uint64_t by_store[OPS * 4][4][64], by_column[2][COLS];
static struct eng_store st[OPS * 4];
static uint64_t *cell(const struct krn_view *v, uint32_t head, uint32_t d, bool laid_out)
{
    uint32_t c = v->shift + head * v->head_stride + d;
    return laid_out ? &by_column[v->rows == KRN_ROWS_PICKED][v->base + c] : &by_store[v->base][v->stride][c];
}

/* Symbols that call i reads, as a hash; then writes its own. */
static uint64_t step(const struct krn_op *op, uint32_t i, bool laid_out)
{
    uint64_t h = i + 1;
    for (unsigned k = 0; k < op->n_in; k++)
        for (uint32_t copy = 0; copy < (op->in[k].list ? op->in[k].list : 1); copy++) {
            struct krn_view v = op->in[k];
            if (v.list && laid_out)
                v.base += copy * v.stride;
            else if (v.list)
                v.stride = copy;
            for (uint32_t a = 0; a < v.heads; a++)
                for (uint32_t d = 0; d < v.dim; d++)
                    h = mix(h, *cell(&v, a, d, laid_out));
        }
    for (uint32_t a = 0; a < op->out.heads; a++)
        for (uint32_t d = 0; d < op->out.dim; d++)
            *cell(&op->out, a, d, laid_out) = mix(h, a * 1000 + d);
    return h;
}

static void one(uint64_t seed)
{
    struct krn_op ops[OPS];
    struct krn_view known[OPS * 4], tap;
    struct krn_view *extra[] = {&tap};
    uint64_t want[OPS];
    uint32_t n_st = 0, n_known = 0, n = 10 + below(OPS - 10), cols[2], list = UINT32_MAX, n_list = 0;
    struct err e;
    rng = seed;
    memset(ops, 0, sizeof ops);
    for (uint32_t i = 0; i < n; i++) {
        struct krn_op *op = &ops[i];
        bool push = list != UINT32_MAX && n_list < 3 && n_known && below(8) == 0;
        static const enum krn_opcode codes[] = {KRN_ADD, KRN_ROPE, KRN_SILU, KRN_LINEAR, KRN_MIX};
        op->code = n_known ? codes[below(5)] : KRN_EMBED;
        op->n_in = (uint8_t)(!n_known ? 0 : op->code == KRN_ADD ? 2 : 1);
        for (unsigned k = 0; k < op->n_in; k++) /* mostly recent registers, sometimes old ones */
            op->in[k] = known[below(4) ? n_known - 1 - below(n_known < 3 ? n_known : 3) : below(n_known)];
        if (op->code == KRN_ADD && op->in[1].heads * op->in[1].dim != op->in[0].heads * op->in[0].dim)
            op->in[1] = op->in[0];
        if (list == UINT32_MAX && below(10) == 0) {
            st[n_st] = (struct eng_store){.width = 16, .copies = 3, .def = i, .last = i};
            list = n_st++;
        }
        if (push) {
            op->code = KRN_COPY;
            op->n_in = 1;
            op->out = (struct krn_view){.base = list, .stride = n_list++, .heads = 1, .dim = 16, .head_stride = 16};
            continue;
        }
        if (op->code == KRN_MIX && n_list) {
            op->in[op->n_in++] = (struct krn_view){.base = list, .heads = 1, .dim = 16, .head_stride = 16, .list = n_list};
        }
        uint32_t heads = 1 + below(4), dim = 4u * (1 + below(4));
        if (op->n_in && op->code != KRN_LINEAR) {
            heads = op->in[0].heads;
            dim = op->in[0].dim;
        }
        st[n_st] = (struct eng_store){.width = heads * dim, .copies = 1, .def = i, .last = i, .fixed = below(20) == 0};
        op->out = (struct krn_view){.base = n_st++, .heads = heads, .dim = dim, .head_stride = dim};
        known[n_known++] = op->out;
        if (below(3) == 0 && dim >= 8) { /* split into two registers that share a store */
            struct krn_view a = op->out, b = op->out;
            a.dim = b.dim = dim / 2;
            b.shift = dim / 2;
            if (heads == 1)
                a.head_stride = b.head_stride = dim / 2;
            known[n_known - 1] = a;
            known[n_known++] = b;
        }
    }
    tap = ops[n - 1].out;
    memset(by_store, 0, sizeof by_store);
    memset(by_column, 0, sizeof by_column);
    for (uint32_t i = 0; i < n; i++)
        want[i] = step(&ops[i], i, false);
    OK(eng_layout(ops, n, in_place, st, n_st, extra, 1, cols, &e));
    ck_assert_uint_lt(cols[0], COLS);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_msg(step(&ops[i], i, true) == want[i], "seed %llu: call %u of %u reads other values", (unsigned long long)seed, i, n);
    for (uint32_t i = 0; i < n_st; i++) /* results outlive everything */
        for (uint32_t k = 0; st[i].fixed && st[i].into == i && k < n_st; k++)
            if (k != i && st[k].into == k && st[k].last >= st[i].def && st[k].rows == st[i].rows)
                ck_assert(st[k].column >= st[i].column + st[i].width * st[i].copies || st[i].column >= st[k].column + st[k].width * st[k].copies);
}

START_TEST(core)
{
    for (uint64_t seed = 1; seed <= 3000; seed++)
        one(seed);
}
END_TEST

START_TEST(reuse)
{
    /* x = embed; a = linear(x); x = add(x, a); b = linear(x); x = add(x, b): one x, and b where a was */
    struct krn_op ops[5] = {{0}};
    uint32_t cols[2];
    struct err e;
    for (uint32_t i = 0; i < 5; i++) {
        st[i] = (struct eng_store){.width = 32, .copies = 1, .def = i, .last = i};
        ops[i].code = i == 0 ? KRN_EMBED : i % 2 ? KRN_LINEAR : KRN_ADD;
        ops[i].out = (struct krn_view){.base = i, .heads = 1, .dim = 32, .head_stride = 32};
        if (i)
            ops[i].in[ops[i].n_in++] = ops[i % 2 ? i - 1 : i - 2].out;
        if (i && i % 2 == 0)
            ops[i].in[ops[i].n_in++] = ops[i - 1].out;
    }
    OK(eng_layout(ops, 5, in_place, st, 5, NULL, 0, cols, &e));
    ck_assert_uint_eq(cols[0], 64);
    ck_assert_uint_eq(cols[1], 0);
    ck_assert_uint_eq(ops[4].out.base, ops[0].out.base);
    ck_assert_uint_eq(ops[3].out.base, ops[1].out.base);
    ck_assert_uint_eq(ops[0].out.stride, 32);
}
END_TEST

SUITE("engine", "layout", core, reuse)
