/* bench/step.c - time of one step of a decoder with SmolLM2's other sizes on the CPU backend, whole and by kind of operator:
 *   step [THREADS [ROWS [CONTEXT [HEADS [KV_HEADS [DIM]]]]]]     rows of one sequence at the end of that context, KV in f16
 * One thread is timed by its own CPU time, which other programs do not lengthen.
 * Everything but "all" leaves the linears out; "rest" is all of that together, with its barriers. Build: make build/plain/bench/step */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "base/clock.h"
#include "kernels/backend.h"

enum { LAYERS = 30, H = 576, FF = 1536, REPEATS = 60, OPS = 16 * LAYERS, PAGE = 64 };
static uint32_t HEADS = 9, KV = 3, D = 64;
enum { WIDEST = 8192, X = 0, N = X + H, Q = N + H, K = Q + WIDEST, V = K + WIDEST, A = V + WIDEST, G = A + WIDEST, U = G + FF, COLS = U + FF };
enum part { NORM = 1, ROPE = 2, ATTEND = 4, ADD = 8, GLU = 16, LINEAR = 32 };

struct plan { struct krn_op ops[OPS]; size_t n; struct krn_weight w[OPS]; uint32_t n_w; unsigned parts; };

static void *bytes(size_t n)
{
    const size_t huge = 2u << 20;
    void *p = aligned_alloc(huge, (n + huge - 1) / huge * huge);
    if (!p) abort();
    madvise(p, n, MADV_HUGEPAGE); /* as the engine's own memory has it */
    return memset(p, 0x11, n);
}
static uint32_t weight(struct plan *p, enum krn_type t, uint32_t rows, uint32_t cols)
{
    enum krn_layout l = rows > 1 ? KRN_TILED : KRN_PLAIN;
    p->w[p->n_w] = (struct krn_weight){t, l, rows, cols, bytes(krn_slot_bytes(t, l, rows, cols))};
    return p->n_w++;
}
static struct krn_view view(uint32_t base, uint32_t heads, uint32_t dim)
{
    return (struct krn_view){.base = base, .stride = heads * dim, .heads = heads, .dim = dim, .head_stride = dim};
}
static struct krn_op *call(struct plan *p, unsigned part, enum krn_opcode code, struct krn_view out, struct krn_view a, struct krn_view b)
{
    static struct krn_op unused;
    struct krn_op *op = p->parts & part ? &p->ops[p->n++] : &unused;
    *op = (struct krn_op){.code = code, .n_in = 2, .in = {a, b}, .out = out, .state = KRN_NO_STATE};
    return op;
}
static void linear(struct plan *p, uint32_t out, uint32_t in, uint32_t rows, uint32_t cols)
{
    struct krn_op *op = call(p, LINEAR, KRN_LINEAR, view(out, 1, rows), view(in, 1, cols), view(in, 1, cols));
    op->n_weights = 1;
    op->weight[0] = p->parts & LINEAR ? weight(p, KRN_Q4_1, rows, cols) : KRN_NO_WEIGHT;
}
static void norm(struct plan *p)
{
    struct krn_op *op = call(p, NORM, KRN_RMSNORM, view(N, 1, H), view(X, 1, H), view(X, 1, H));
    op->n_weights = 1;
    op->weight[0] = p->parts & NORM ? weight(p, KRN_F32, 1, H) : KRN_NO_WEIGHT;
    op->u.norm.eps = 1e-5f;
}
static void layer(struct plan *p, uint32_t l)
{
    struct krn_view x = view(X, 1, H), q = view(Q, HEADS, D), k = view(K, KV, D);
    norm(p);
    linear(p, Q, N, HEADS * D, H);
    linear(p, K, N, KV * D, H);
    linear(p, V, N, KV * D, H);
    call(p, ROPE, KRN_ROPE, q, q, q)->u.rope.pairs = KRN_PAIRS_ADJACENT;
    call(p, ROPE, KRN_ROPE, k, k, k)->u.rope.pairs = KRN_PAIRS_ADJACENT;
    struct krn_op *op = call(p, ATTEND, KRN_ATTEND, view(A, HEADS, D), q, k);
    op->in[op->n_in++] = view(V, KV, D);
    op->state = 0;
    op->state_layer = l;
    op->u.attend.scale = 0.125f;
    linear(p, N, A, H, HEADS * D);
    call(p, ADD, KRN_ADD, x, x, view(N, 1, H));
    norm(p);
    linear(p, G, N, FF, H);
    linear(p, U, N, FF, H);
    call(p, GLU, KRN_GLU, view(G, 1, FF), view(G, 1, FF), view(U, 1, FF))->u.glu.act = KRN_ACT_SILU;
    linear(p, A, G, H, FF);
    call(p, ADD, KRN_ADD, x, x, view(A, 1, H));
}

static int order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t now_ns(unsigned threads)
{
    struct timespec t;
    if (threads > 1 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)) return clock_now_ns();
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int measure(const char *name, unsigned parts, unsigned threads, uint32_t rows, uint32_t ctx)
{
    static double inv[WIDEST];
    static uint64_t took[REPEATS];
    struct err e;
    struct plan *p = calloc(1, sizeof *p);
    const struct krn_rope_table rope = {.n_freq = D / 2, .inv_freq = inv, .mscale = 1};
    const struct krn_backend_config c = {.threads = threads, .rows_max = {rows, 1}, .arena_cols = {COLS, 0}, .ropes = &rope, .n_ropes = 1, .linear_cols_max = HEADS * D > FF ? HEADS * D : FF};
    krn_backend *b = NULL;
    krn_list *l = NULL;
    uint32_t n_pages = (ctx + PAGE - 1) / PAGE, *pos = calloc(rows, sizeof *pos), *table = calloc(n_pages, sizeof *table);
    if (!p || !pos || !table) return 1;
    for (uint32_t i = 0; i < D / 2; i++) inv[i] = 1.0 / (1 + i * i);
    for (uint32_t i = 0; i < n_pages; i++) table[i] = i;
    for (uint32_t i = 0; i < rows; i++) pos[i] = ctx - rows + i;
    p->parts = parts;
    for (uint32_t i = 0; i < LAYERS; i++) layer(p, i);
    struct krn_pages pages = {.layout = {.type = KRN_F16, .page_tokens = PAGE, .n_layers = LAYERS, .heads = KV, .dim_k = D, .dim_v = D}, .tables = table, .table_stride = n_pages};
    krn_kv_layout_init(&pages.layout);
    pages.pool = bytes(n_pages * pages.layout.page_bytes);
    const struct krn_seq seq = {0, rows, ctx - rows, false};
    const struct krn_step step = {.n_tokens = rows, .n_seqs = 1, .n_groups = 1, .pos = pos, .seqs = &seq, .groups = &pages};
    int rc = krn_cpu.open(&b, &c, &e);
    if (!rc) rc = krn_cpu.record(b, p->ops, p->n, p->w, &l, &e);
    for (int i = 0; i < REPEATS && !rc; i++) {
        uint64_t t = now_ns(threads);
        rc = krn_cpu.submit(b, l, &step, &e);
        took[i] = now_ns(threads) - t;
    }
    qsort(took, REPEATS, sizeof *took, order);
    if (rc) fprintf(stderr, "step: %s\n", e.msg);
    else printf("%-8s best %9.1f us   median %9.1f us%s", name, (double)took[0] / 1e3, (double)took[REPEATS / 2] / 1e3, parts == ATTEND ? "" : "\n");
    if (!rc && parts == ATTEND) printf("   %.1f GB/s of keys and values\n", (double)LAYERS * ctx * KV * D * 4 / (double)took[0]);
    krn_cpu.list_free(l);
    krn_cpu.close(b);
    for (uint32_t i = 0; i < p->n_w; i++) free((void *)p->w[i].data);
    free(pages.pool);
    free(table);
    free(pos);
    free(p);
    return rc;
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)atoi(argv[1]) : 2;
    uint32_t rows = argc > 2 ? (uint32_t)atoi(argv[2]) : 1, ctx = argc > 3 ? (uint32_t)atoi(argv[3]) : 128;
    if (argc > 6) HEADS = (uint32_t)atoi(argv[4]), KV = (uint32_t)atoi(argv[5]), D = (uint32_t)atoi(argv[6]);
    static const struct { const char *name; unsigned parts; } of[] = {{"all", 63}, {"rest", 31}, {"norm", NORM}, {"rope", ROPE}, {"attend", ATTEND}, {"add", ADD}, {"glu", GLU}};
    if (!threads || !rows || rows > ctx || ctx > 1u << 20 || !KV || !D || HEADS % KV || D > WIDEST || HEADS > WIDEST / D) {
        fprintf(stderr, "usage: step [THREADS [ROWS [CONTEXT [HEADS KV_HEADS DIM]]]]\n");
        return 2;
    }
    printf("%u threads, %u rows at the end of %u tokens\n", threads, rows, ctx);
    for (unsigned i = 0; i < sizeof of / sizeof *of; i++)
        if (measure(of[i].name, of[i].parts, threads, rows, ctx)) return 1;
    return 0;
}
