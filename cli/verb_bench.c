/* sluice bench MODEL: prefill and decode rates by batch, beside the memory roof of this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/verbs.h"
#include "engine/session.h"
#include "kernels/probe.h"

struct bench_flags { int64_t prompt, gen, reps; const char *batch; bool json; };
#define AT(f) offsetof(struct bench_flags, f)
static const struct cli_flag flags[] = {
    {{"prompt-tokens", CONF_INT, AT(prompt), 1, 1048576, NULL}, "-p", "N", "tokens of prefill (default 512)"},
    {{"gen-tokens", CONF_INT, AT(gen), 1, 1048576, NULL}, "-n", "N", "tokens of decode (default 128)"},
    {{"batch", CONF_STR, AT(batch), 0, 0, NULL}, "-b", "1,8,32", "sequences decoded together (default 1)"},
    {{"reps", CONF_INT, AT(reps), 1, 1000, NULL}, "-r", "N", "repetitions; the median is printed (default 5)"},
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON document"},
};
enum { BATCHES_MAX = 16, REPS_MAX = 1000 };

struct rates { double min, median, max; };
struct row { uint32_t batch; struct rates prefill, decode; };
struct bench { const struct bench_flags *f; eng_session *s; int32_t *tokens; struct eng_part *parts; uint32_t vocab; };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static struct rates rates_of(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return (struct rates){v[0], n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v[n - 1]};
}

/* Tokens spread over the vocabulary: rates do not depend on what is said, embedding rows do on where they lie. */
static void fill(struct bench *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)((i * 7919 + 13) % b->vocab);
}

static int prefill(struct bench *b, double *rate, struct err *e)
{
    uint32_t chunk = eng_session_config(b->s)->chunk, n = (uint32_t)b->f->prompt;
    eng_session_drop(b->s, 0);
    uint64_t t0 = clock_now_ns();
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t k = n - at < chunk ? n - at : chunk;
        struct eng_part p = {.pos0 = at, .n = k, .tokens = b->tokens + at, .picks = at + k == n ? ENG_PICK_LAST : ENG_PICK_NONE};
        int rc = eng_session_step(b->s, &p, 1, NULL, NULL, e);
        if (rc)
            return rc;
    }
    *rate = n * 1e9 / (double)(clock_now_ns() - t0);
    return ERR_OK;
}

static int decode(struct bench *b, uint32_t batch, double *rate, struct err *e)
{
    uint32_t n = (uint32_t)b->f->gen;
    for (uint32_t i = 0; i < batch; i++)
        eng_session_drop(b->s, i);
    uint64_t t0 = 0;
    for (uint32_t t = 0; t <= n; t++) { /* the first step is not counted */
        if (t == 1)
            t0 = clock_now_ns();
        for (uint32_t i = 0; i < batch; i++)
            b->parts[i] = (struct eng_part){.slot = i, .pos0 = t, .n = 1, .tokens = b->tokens + t, .picks = ENG_PICK_LAST};
        int rc = eng_session_step(b->s, b->parts, batch, NULL, NULL, e);
        if (rc)
            return rc;
    }
    *rate = (double)n * batch * 1e9 / (double)(clock_now_ns() - t0);
    return ERR_OK;
}

static int measure(struct bench *b, struct row *row, struct err *e)
{
    static double p[REPS_MAX], d[REPS_MAX];
    int rc = prefill(b, &p[0], e); /* warm-up */
    for (int64_t r = 0; r < b->f->reps && !rc; r++)
        if (!(rc = prefill(b, &p[r], e)))
            rc = decode(b, row->batch, &d[r], e);
    if (rc)
        return rc;
    row->prefill = rates_of(p, (size_t)b->f->reps);
    row->decode = rates_of(d, (size_t)b->f->reps);
    return ERR_OK;
}

static int batches_of(const char *s, uint32_t *v, uint32_t *n, uint32_t *most, struct err *e)
{
    *n = *most = 0;
    while (*s) {
        char *end;
        long k = strtol(s, &end, 10);
        if (end == s || k < 1 || k > 4096 || *n == BATCHES_MAX || (*end && *end != ','))
            return err_set(e, ERR_INVALID, "-b: expected up to %d numbers from 1 to 4096 with commas, found '%.20s'", BATCHES_MAX, s);
        v[(*n)++] = (uint32_t)k;
        *most = (uint32_t)k > *most ? (uint32_t)k : *most;
        s = *end ? end + 1 : end;
    }
    return *n ? ERR_OK : err_set(e, ERR_INVALID, "-b: expected numbers with commas");
}

static void print_row(const struct bench *b, const struct row *r, double roof, uint64_t bytes)
{
    double share = roof > 0 && r->batch == 1 ? r->decode.median * (double)bytes / roof * 100 : NAN;
    if (b->f->json)
        printf("{\"batch\":%u,\"prefill_tok_s\":%.2f,\"prefill_min\":%.2f,\"prefill_max\":%.2f,\"decode_tok_s\":%.2f,\"decode_min\":%.2f,\"decode_max\":%.2f%s", r->batch,
               r->prefill.median, r->prefill.min, r->prefill.max, r->decode.median, r->decode.min, r->decode.max, isnan(share) ? "}" : "");
    if (b->f->json && !isnan(share))
        printf(",\"decode_roof_share\":%.4f}", share / 100);
    if (b->f->json)
        return;
    printf("%5u  %9.1f (%.1f..%.1f)   %9.1f (%.1f..%.1f)", r->batch, r->prefill.median, r->prefill.min, r->prefill.max, r->decode.median,
           r->decode.min, r->decode.max);
    if (!isnan(share))
        printf("   %3.0f %% of the memory roof", share);
    putchar('\n');
}

static int run_rows(struct bench *b, const uint32_t *batches, uint32_t n, struct err *e)
{
    const struct eng_config *c = eng_session_config(b->s);
    const struct eng_plan *p = eng_session_model(b->s)->plan;
    double roof = 0;
    pool *workers;
    int rc = pool_open(&workers, c->threads, e);
    if (rc)
        return rc;
    rc = krn_probe_read(workers, 512u << 20, 5, &roof, e);
    pool_close(workers);
    if (rc)
        return rc;
    uint64_t bytes = p->weight_bytes_slot;
    if (b->f->json) {
        struct buf id;
        buf_init(&id, 1u << 20);
        json_put_cstr(&id, eng_session_model(b->s)->id);
        printf("{\"model\":%s,\"kernels\":\"%s\",\"threads\":%u,\"prompt\":%lld,\"gen\":%lld,\"weight_bytes\":%llu,\"read_roof_bytes_s\":%.0f,\"rows\":[",
               id.data ? id.data : "\"\"", eng_session_isa(b->s), c->threads, (long long)b->f->prompt, (long long)b->f->gen, (unsigned long long)bytes, roof);
        buf_free(&id);
    } else
        printf("memory read roof %.1f GB/s, weights %.1f MB a token, %u threads, %s\n%5s  %-30s %-30s\n", roof / 1e9, (double)bytes / 1e6, c->threads,
               eng_session_isa(b->s), "batch", "prefill tok/s (min..max)", "decode tok/s (min..max)");
    for (uint32_t i = 0; i < n; i++) {
        struct row row = {.batch = batches[i]};
        if ((rc = measure(b, &row, e)))
            return rc;
        if (b->f->json && i)
            putchar(',');
        print_row(b, &row, roof, bytes);
        fflush(stdout);
    }
    if (b->f->json)
        puts("]}");
    return ERR_OK;
}

static int bench_model(const struct bench_flags *f, struct eng_config *c, struct err *e)
{
    uint32_t batches[BATCHES_MAX], n, most;
    struct bench b = {.f = f};
    int rc = batches_of(f->batch, batches, &n, &most, e);
    if (rc)
        return rc;
    uint32_t longest = (uint32_t)(f->prompt > f->gen + 1 ? f->prompt : f->gen + 1);
    c->ctx = c->ctx > longest ? c->ctx : longest;
    c->seqs = most;
    if (c->chunk && c->chunk < most)
        c->chunk = most;
    if ((rc = eng_session_open(&b.s, c, most, e)))
        return rc;
    b.vocab = eng_tok_count(eng_session_model(b.s)->tok);
    b.tokens = malloc((size_t)longest * sizeof *b.tokens);
    b.parts = calloc(most, sizeof *b.parts);
    if (!b.tokens || !b.parts)
        rc = err_set(e, ERR_NOMEM, "bench");
    else {
        fill(&b, longest);
        cli_echo_config(eng_session_config(b.s), eng_session_isa(b.s));
        rc = run_rows(&b, batches, n, e);
    }
    free(b.tokens);
    free(b.parts);
    eng_session_close(b.s);
    return rc;
}

int verb_bench(int argc, char **argv)
{
    struct cli_engine ef = CLI_ENGINE_DEFAULTS;
    struct bench_flags f = {.prompt = 512, .gen = 128, .reps = 5, .batch = "1"};
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {cli_engine_flags, cli_n_engine_flags, &ef}, {NULL, 0, NULL}};
    const char *words[1];
    size_t n_words;
    bool helped;
    struct arena a;
    struct err e = {0};
    struct eng_config c;
    arena_init(&a, 1u << 20);
    int rc = cli_parse(argc, argv, "MODEL [flags]", tables, words, 1, &n_words, &helped, &a, &e);
    if (!rc && !helped) {
        if (n_words)
            ef.model = words[0];
        if (!(rc = cli_engine_config(&ef, &c, &e))) {
            c.progress = cli_load_progress;
            rc = bench_model(&f, &c, &e);
        }
    }
    arena_free(&a);
    return rc ? cli_fail("bench", &e) : CLI_OK;
}
