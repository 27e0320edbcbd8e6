/* bench/kernels.c - rates of the linears beside the memory read rate: kernels [THREADS [MIB [ISA [WORD]]]].
 *
 * Decode rows cycle through MIB of weights (default 256), so that they come from memory, and plain reads of the same memory are
 * timed in turn; `cached` rows use one matrix. WORD: only rows that have it in their name or type.
 * Build: make build/plain/bench/kernels */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/probe.h"

static const struct row {
    const char *name;
    enum krn_type type;
    enum krn_precision precision;
    uint32_t rows, cols, tokens;
    bool cached;
} rows[] = {
    {"decode  ffn up", KRN_Q4_1, KRN_PREC_AUTO, 1536, 576, 1, false},
    {"decode  ffn down", KRN_Q4_1, KRN_PREC_AUTO, 576, 1536, 1, false},
    {"decode  attention", KRN_Q4_1, KRN_PREC_AUTO, 576, 576, 1, false},
    {"decode  head", KRN_Q8_0, KRN_PREC_AUTO, 49152, 576, 1, false},
    {"decode  4-bit", KRN_Q4_0, KRN_PREC_AUTO, 1536, 576, 1, false},
    {"decode  f16", KRN_F16, KRN_PREC_AUTO, 1536, 576, 1, false},
    {"decode  bf16", KRN_BF16, KRN_PREC_AUTO, 1536, 576, 1, false},
    {"decode  f32", KRN_F32, KRN_PREC_AUTO, 1536, 576, 1, false},
    {"decode  prec f32", KRN_Q4_1, KRN_PREC_F32, 1536, 576, 1, false},
    {"decode  wide", KRN_Q4_1, KRN_PREC_AUTO, 4096, 4096, 1, false},
#define DECODE(t) {"decode", KRN_##t, KRN_PREC_AUTO, 1536, 1536, 1, false}
    DECODE(Q4_1), DECODE(Q4_K), DECODE(Q5_0), DECODE(Q6_K), DECODE(Q5_K), DECODE(Q8_0), DECODE(Q5_1), DECODE(Q3_K), DECODE(Q2_K), DECODE(IQ4_NL),
    DECODE(IQ4_XS), DECODE(MXFP4),
#define CACHED(t) {"cached", KRN_##t, KRN_PREC_AUTO, 512, 512, 1, true}
    CACHED(Q4_1), CACHED(Q4_K), CACHED(Q5_0), CACHED(Q6_K), CACHED(Q5_K), CACHED(Q8_0), CACHED(Q5_1), CACHED(Q3_K), CACHED(Q2_K), CACHED(IQ4_NL),
    CACHED(IQ4_XS), CACHED(MXFP4),
#define PREFILL(t) {"prefill", KRN_##t, KRN_PREC_AUTO, 256, 1536, 64, true}
    PREFILL(Q4_1), PREFILL(Q4_K), PREFILL(Q5_0), PREFILL(Q6_K), PREFILL(Q5_K), PREFILL(Q8_0), PREFILL(Q5_1), PREFILL(Q3_K), PREFILL(Q2_K), PREFILL(IQ4_NL),
    PREFILL(IQ4_XS), PREFILL(MXFP4),
    {"cached  q4_1", KRN_Q4_1, KRN_PREC_AUTO, 1536, 576, 1, true},
    {"cached  q8_0", KRN_Q8_0, KRN_PREC_AUTO, 1536, 576, 1, true},
    {"batch 4 q4_1", KRN_Q4_1, KRN_PREC_AUTO, 1536, 576, 4, false},
    {"batch 8 q4_1", KRN_Q4_1, KRN_PREC_AUTO, 1536, 576, 8, false},
    {"prefill q4_1", KRN_Q4_1, KRN_PREC_AUTO, 1536, 576, 512, true},
    {"prefill q4_1 down", KRN_Q4_1, KRN_PREC_AUTO, 576, 1536, 512, true},
    {"prefill q4_0", KRN_Q4_0, KRN_PREC_AUTO, 1536, 576, 512, true},
    {"prefill q8_0", KRN_Q8_0, KRN_PREC_AUTO, 1536, 576, 512, true},
    {"prefill q8_0 wide", KRN_Q8_0, KRN_PREC_AUTO, 4096, 4096, 64, true},
    {"prefill f16", KRN_F16, KRN_PREC_AUTO, 1536, 576, 128, true},
    {"prefill f32", KRN_F32, KRN_PREC_AUTO, 1536, 576, 128, true},
    {"prefill prec f32", KRN_Q4_1, KRN_PREC_F32, 1536, 576, 128, true},
};

int main(int argc, char **argv)
{
    struct err e = {0};
    pool *p = NULL;
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    size_t mib = argc > 2 ? strtoul(argv[2], NULL, 10) : 256;
    enum krn_isa isa = KRN_ISA_AUTO;
    double read = 0;
    for (int i = KRN_ISA_C; argc > 3 && i <= KRN_ISA_AVX512; i++)
        if (strcmp(argv[3], krn_isa_name((enum krn_isa)i)) == 0)
            isa = (enum krn_isa)i;
    int rc = pool_open(&p, threads, &e);
    if (rc == ERR_OK)
        rc = krn_probe_read(p, mib << 20, 10, &read, &e);
    if (rc == ERR_OK)
        printf("%u threads, %s: memory read %.1f GB/s over %zu MiB\n", threads, krn_linear_get(isa) ? krn_linear_get(isa)->name : "?", read / 1e9, mib);
    for (size_t i = 0; rc == ERR_OK && i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        if (argc > 4 && !strstr(r->name, argv[4]) && strcmp(krn_types[r->type].name, argv[4]) != 0)
            continue;
        size_t bytes = krn_slot_bytes(r->type, KRN_TILED, r->rows, r->cols);
        struct krn_probe_linear k = {.isa = isa, .type = r->type, .precision = r->precision, .rows = r->rows, .cols = r->cols, .tokens = r->tokens,
                                     .copies = r->cached ? 1 : (uint32_t)((mib << 20) / bytes + 1), .rounds = r->cached ? r->tokens > 1 ? 10 : 2000 : 25};
        struct krn_probe_rate got;
        rc = krn_probe_linear(p, &k, &got, &e);
        if (rc == ERR_OK)
            printf("%-18s %-4s %6u x %-5u %4u tokens %10.1f us %7.1f GB/s (%3.0f %% of read) %8.1f GOP/s\n", r->name, krn_types[r->type].name,
                   r->rows, r->cols, r->tokens, got.ns / 1e3, got.weight_bytes_s / 1e9, 100 * got.weight_bytes_s / (got.read_bytes_s > 0 ? got.read_bytes_s : read), got.ops_s / 1e9);
    }
    pool_close(p);
    if (rc != ERR_OK)
        fprintf(stderr, "kernels: %s\n", e.msg);
    return rc != ERR_OK;
}
