/* bench/delta - the delta rule in 16-token tiles against the recurrence token by token, one thread, by CPU time.
 *
 *   build/plain/bench/delta [tokens] [heads] [runs]        heads of 128 by 128, as in Kimi Linear and K3
 * The recurrence runs twice: with the same vector operations, and in plain C. Runs alternate; the least time of each counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/ops.h"
#include "kernels/backend.h"

enum { D = 128 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* S = diag(e^g) S; u = beta (v - S^T k); S += k u; o = S^T q. */
static void recurrence(const struct krn_delta *d, const struct krn_ops *f)
{
    float e[D], u[D];
    memset(d->s, 0, D * D * sizeof *d->s);
    for (uint32_t t = 0; t < d->n; t++) {
        const float *k = d->k + t * d->k_stride, *v = d->v + t * d->v_stride;
        float *o = d->out + t * d->out_stride;
        f->exp(e, d->g + t * d->g_stride, D);
        f->mac(d->s, D, e, k, 1, D, k, D, 0, D);
        memset(u, 0, sizeof u);
        f->mac(u, D, NULL, k, D, 1, d->s, D, D, D);
        for (int c = 0; c < D; c++) u[c] = d->beta[t * d->beta_stride] * (v[c] - u[c]);
        f->mac(d->s, D, NULL, k, 1, D, u, D, 1, D);
        memset(o, 0, D * sizeof *o);
        f->mac(o, D, NULL, d->q + t * d->q_stride, D, 1, d->s, D, D, D);
    }
}

int main(int argc, char **argv)
{
    uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) : 2048, heads = argc > 2 ? (uint32_t)atoi(argv[2]) : 8, runs = argc > 3 ? (uint32_t)atoi(argv[3]) : 5;
    size_t row = (size_t)heads * D, x = (size_t)n * row;
    float *in = malloc(4 * x * sizeof *in), *beta = malloc((size_t)n * heads * sizeof *beta), *out = malloc(3 * x * sizeof *out);
    float *s = malloc(D * D * sizeof *s), *tile = malloc(3 * D * KRN_TILE * sizeof *tile), *scratch = malloc(krn_delta_scratch(D, D) * sizeof *scratch);
    double best[3] = {1e9, 1e9, 1e9}, worst = 0;
    if (!n || !heads || !runs || !in || !beta || !out || !s || !tile || !scratch) return 2;
    uint32_t seed = 1;
    for (size_t i = 0; i < 4 * x; i++) {
        seed = seed * 1664525u + 1013904223u;
        float u = (float)(seed >> 8) / 16777216.0f;
        in[i] = i < 3 * x ? (u - 0.5f) * 0.3f : -5 * u * u;
    }
    for (size_t i = 0; i < (size_t)n * heads; i++) beta[i] = 0.5f;
    for (uint32_t r = 0; r < 3 * runs; r++) {
        double t0 = cpu_s();
        for (uint32_t h = 0; h < heads; h++) {
            struct krn_delta d = {.ops = krn_ops_get(KRN_ISA_AUTO), .dk = D, .dv = D, .n = n, .q = in + h * D, .k = in + x + h * D, .v = in + 2 * x + h * D, .g = in + 3 * x + h * D,
                                  .beta = beta + h, .q_stride = row, .k_stride = row, .v_stride = row, .g_stride = row, .beta_stride = heads,
                                  .out = out + (r % 3) * x + h * D, .out_stride = row, .s = s, .tile = tile};
            if (r % 3) recurrence(&d, r % 3 == 1 ? d.ops : &krn_ops_c);
            else krn_delta_run(&d, scratch);
        }
        double took = cpu_s() - t0;
        best[r % 3] = took < best[r % 3] ? took : best[r % 3];
    }
    for (size_t i = 0; i < x; i++) {
        double d = (double)out[i] - (double)out[x + i];
        worst = d > worst ? d : -d > worst ? -d : worst;
    }
    printf("%s: %u tokens, %u heads of %d: tiles %.1f us a token; token by token %.1f us, %.2f times; in plain C %.1f us, %.1f times; outputs differ by %.2g\n", krn_ops_get(KRN_ISA_AUTO)->name, n,
           heads, D, best[0] * 1e6 / n, best[1] * 1e6 / n, best[1] / best[0], best[2] * 1e6 / n, best[2] / best[0], worst);
    free(in);
    free(beta);
    free(out);
    free(s);
    free(tile);
    free(scratch);
    return 0;
}
