/* sluice bench MODEL: prefill and decode rates by batch and by context, beside what this machine's memory and dot products allow. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "cli/bench_cost.h"
#include "cli/bench_ladder.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/verbs.h"
#include "engine/session.h"
#include "engine/states.h"
#include "kernels/gpu.h"
#include "kernels/probe.h"

struct bench_flags { int64_t prompt, gen, reps, seconds; const char *batch, *depth; bool ladder, ops, json; };
#define AT(f) offsetof(struct bench_flags, f)
static const struct cli_flag flags[] = {
    {{"prompt-tokens", CONF_INT, AT(prompt), 1, 1048576, NULL}, "-p", "N", "tokens of prefill (default 512)"},
    {{"gen-tokens", CONF_INT, AT(gen), 1, 1048576, NULL}, "-n", "N", "tokens of decode (default 128, of a ladder 32)"},
    {{"batch", CONF_STR, AT(batch), 0, 0, NULL}, "-b", "1,8,32", "sequences decoded together (default 1)"},
    {{"depth", CONF_STR, AT(depth), 0, 0, NULL}, "-d", "0,4096", "tokens each sequence holds before it decodes (default 0); with some, prefill is their rate"},
    {{"ladder", CONF_BOOL, AT(ladder), 0, 0, NULL}, NULL, NULL, "depths from 1024 on, doubled as far as the model's context (or -c) and memory (or --ram) go; with the bytes of KV and states"},
    {{"seconds", CONF_INT, AT(seconds), 1, 1 << 24, NULL}, NULL, "N", "a ladder begins no depth that would end later than that (default: no limit)"},
    {{"reps", CONF_INT, AT(reps), 1, 1000, NULL}, "-r", "N", "repetitions; the median is printed (default 5, of a ladder 3)"},
    {{"ops", CONF_BOOL, AT(ops), 0, 0, NULL}, NULL, NULL, "time, bytes and operations of a step by operator"},
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON document"},
};
enum { REPS_MAX = 1000, TIMES_MAX = 256 };
static const size_t PROBE_BYTES = 256u << 20;

struct rates { double min, median, max; };
struct row { uint32_t batch, depth; struct rates prefill, decode, roof; double cpu_ms; }; /* roof: reads measured beside each repetition */
struct bench {
    const struct bench_flags *f;
    eng_session *s;
    const struct eng_plan *plan;
    pool *workers;
    int32_t *tokens;
    struct eng_part *parts;
    uint32_t vocab, threads;
    struct bench_ladder ladder; /* with --ladder */
    double dots, read; /* of the machine, or of the device; read: median beside the row under way */
    bool device;
};

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

/* Tokens spread over the vocabulary: rates do not depend on what is said, embedding rows do on where they lie. Each sequence says
 * something else: those that say the same choose the same experts, and read them once. */
static void fill(struct bench *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        b->tokens[i] = (int32_t)((i * 7919 + 13) % b->vocab);
}

enum { APART = 101 };
static const int32_t *said(const struct bench *b, uint32_t slot, uint32_t pos) { return b->tokens + (size_t)slot * APART + pos; }

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Reads of memory: the machine's by all workers, measured anew since others use it too; a device's were measured at the start. */
static int roof_of(struct bench *b, unsigned rounds, double *out, struct err *e)
{
    *out = b->read;
    return b->device ? ERR_OK : krn_probe_read(b->workers, PROBE_BYTES, rounds, out, e);
}

/* n tokens into an empty slot. */
static int prefill(struct bench *b, uint32_t slot, uint32_t n, double *rate, struct err *e)
{
    uint32_t chunk = eng_session_config(b->s)->chunk;
    eng_session_drop(b->s, slot);
    uint64_t t0 = clock_now_ns();
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t k = n - at < chunk ? n - at : chunk;
        struct eng_part p = {.slot = slot, .pos0 = at, .n = k, .tokens = said(b, slot, at), .picks = at + k == n ? ENG_PICK_LAST : ENG_PICK_NONE};
        int rc = eng_session_step(b->s, &p, 1, NULL, NULL, e);
        if (rc)
            return rc;
    }
    *rate = n * 1e9 / (double)(clock_now_ns() - t0);
    return ERR_OK;
}

/* n steps of all sequences from position pos on, after one that is not counted. */
static int decode(struct bench *b, uint32_t batch, uint32_t pos, uint32_t n, double *rate, double *cpu, struct err *e)
{
    uint64_t t0 = 0;
    for (uint32_t t = 0; t <= n; t++) {
        if (t == 1) {
            t0 = clock_now_ns();
            *cpu = cpu_seconds();
        }
        for (uint32_t i = 0; i < batch; i++)
            b->parts[i] = (struct eng_part){.slot = i, .pos0 = pos + t, .n = 1, .tokens = said(b, i, pos + t), .picks = ENG_PICK_LAST};
        int rc = eng_session_step(b->s, b->parts, batch, NULL, NULL, e);
        if (rc)
            return rc;
    }
    *rate = (double)n * batch * 1e9 / (double)(clock_now_ns() - t0);
    *cpu = (cpu_seconds() - *cpu) / n / batch;
    return ERR_OK;
}

/* Without depth each repetition prefills and decodes anew; with it sequences are filled once and decoding goes on from there. */
static int measure(struct bench *b, struct row *row, struct err *e)
{
    static double p[REPS_MAX], d[REPS_MAX], cpu[REPS_MAX], roof[REPS_MAX];
    uint32_t n = (uint32_t)b->f->gen, reps = (uint32_t)b->f->reps;
    int rc = ERR_OK;
    if (!row->depth)
        rc = prefill(b, 0, (uint32_t)b->f->prompt, &p[0], e); /* warm-up */
    for (uint32_t i = 0; i < row->batch && row->depth && !rc; i++)
        rc = prefill(b, i, row->depth, &p[0], e);
    for (uint32_t r = 0; r < reps && !rc; r++) {
        if ((rc = roof_of(b, 2, &roof[r], e)))
            break;
        if (!row->depth)
            rc = prefill(b, 0, (uint32_t)b->f->prompt, &p[r], e);
        for (uint32_t i = 0; i < row->batch && !row->depth; i++)
            eng_session_drop(b->s, i);
        if (!rc)
            rc = decode(b, row->batch, row->depth ? row->depth + r * (n + 1) : 0, n, &d[r], &cpu[r], e);
    }
    if (rc)
        return rc;
    row->prefill = rates_of(p, row->depth ? 1 : reps);
    row->decode = rates_of(d, reps);
    row->roof = rates_of(roof, reps);
    row->cpu_ms = rates_of(cpu, reps).median * 1e3;
    b->read = row->roof.median;
    return ERR_OK;
}

/* ---- operators ---- */

/* One line, or one JSON object: ms is time a step on each thread. */
static void print_time(const struct bench *b, const struct krn_time *t, double ms, double all_ms, const struct bench_cost *c, bool first)
{
    double bytes_s = c && ms > 0 ? c->bytes / ms * 1e3 : 0, ops_s = c && ms > 0 ? c->ops / ms * 1e3 : 0;
    if (b->f->json) {
        printf("%s{\"operator\":\"%s\",\"type\":\"%s\",\"ms\":%.5f,\"bytes\":%.0f,\"ops\":%.0f}", first ? "" : ",", t->name, krn_types[t->type].name, ms,
               c ? c->bytes : 0, c ? c->ops : 0);
        return;
    }
    printf("        %-10s %-6s %9.3f ms  %5.1f %%", t->name, t->type == KRN_F32 ? "" : krn_types[t->type].name, ms, 100 * ms / all_ms);
    if (c)
        printf("  %9.2f MB %7.2f GB/s (%3.0f %% of reads) %9.3f Gop %7.1f Gop/s", c->bytes / 1e6, bytes_s / 1e9, 100 * bytes_s / b->read, c->ops / 1e9, ops_s / 1e9);
    if (c && b->dots > 0 && c->ops > 0)
        printf(" (%2.0f %% of %s)", 100 * ops_s / b->dots, b->device ? "f32" : "dots");
    putchar('\n');
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = ((const struct krn_time *)a)->ns, y = ((const struct krn_time *)b)->ns;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Where the time of `steps` steps of one shape went. */
static void print_times(struct bench *b, const char *phase, const struct bench_shape *shape, uint32_t steps)
{
    static struct krn_time t[TIMES_MAX];
    struct bench_cost costs[BENCH_COSTS_MAX];
    size_t n = eng_session_times(b->s, t, TIMES_MAX), n_costs = bench_costs(b->plan, shape, costs);
    double scale = 1e-6 / (b->device ? 1 : b->threads) / steps, all = 0;
    qsort(t, n, sizeof *t, by_time);
    for (size_t i = 0; i < n; i++)
        all += (double)t[i].ns * scale;
    if (b->f->json)
        printf(",\"%s_ops\":[", phase);
    else
        printf("      a step of %s: %u x %u tokens at %u, %.3f ms\n", phase, shape->seqs, shape->rows, shape->pos0, all);
    for (size_t i = 0; i < n; i++) {
        const struct bench_cost *c = NULL;
        for (size_t k = 0; k < n_costs; k++)
            if (costs[k].type == t[i].type && !strcmp(costs[k].name, t[i].name))
                c = &costs[k];
        print_time(b, &t[i], (double)t[i].ns * scale, all, c, i == 0);
    }
    if (b->f->json)
        putchar(']');
}

/* One prefill (only without depth) and one decode with the clocks on. */
static int operators(struct bench *b, const struct row *row, struct err *e)
{
    static struct krn_time unused[TIMES_MAX];
    const struct eng_config *c = eng_session_config(b->s);
    uint32_t n = (uint32_t)b->f->gen, prompt = (uint32_t)b->f->prompt, chunk = prompt < c->chunk ? prompt : c->chunk;
    uint32_t pos = row->depth ? row->depth + (uint32_t)b->f->reps * (n + 1) : 0;
    struct bench_shape first = {1, chunk, prompt == chunk, 0, c->kv_type}, step = {row->batch, 1, 1, pos + n / 2, c->kv_type};
    double rate, cpu;
    int rc = ERR_OK;
    eng_session_times(b->s, unused, TIMES_MAX);
    if (!row->depth && !(rc = prefill(b, 0, chunk, &rate, e)))
        print_times(b, "prefill", &first, 1);
    for (uint32_t i = 0; i < row->batch && !row->depth; i++)
        eng_session_drop(b->s, i);
    if (!rc && !(rc = decode(b, row->batch, pos, n, &rate, &cpu, e)))
        print_times(b, "decode", &step, n + 1);
    return rc;
}

/* ---- rows ---- */

/* Of all sequences of a row, in whole pages. */
static uint64_t kv_bytes(const struct bench *b, const struct row *r)
{
    const struct eng_config *c = eng_session_config(b->s);
    const struct eng_kv_config kv = {.type = c->kv_type, .page_tokens = c->page_tokens, .slots = r->batch, .ctx = r->depth ? r->depth : (uint32_t)b->f->gen + 1, .chunk = c->chunk};
    return eng_kv_bytes(b->plan, &kv, r->batch);
}

static void print_row(const struct bench *b, const struct row *r)
{
    uint64_t kv = kv_bytes(b, r), states = eng_states_bytes(b->plan, eng_session_config(b->s)->kv_type, r->batch);
    const struct bench_shape step = {r->batch, 1, 1, (r->depth ? r->depth + (uint32_t)(b->f->reps * (b->f->gen + 1) / 2) : (uint32_t)b->f->gen / 2), eng_session_config(b->s)->kv_type};
    double bytes = bench_bytes(b->plan, &step), rate = r->decode.median / r->batch * bytes;
    if (b->f->json)
        printf("{\"batch\":%u,\"depth\":%u,\"prefill_tok_s\":%.2f,\"prefill_min\":%.2f,\"prefill_max\":%.2f,\"decode_tok_s\":%.2f,\"decode_min\":%.2f,"
               "\"decode_max\":%.2f,\"decode_cpu_ms\":%.4f,\"decode_bytes\":%.0f,\"read_bytes_s\":%.0f,\"decode_roof_share\":%.4f,\"kv_bytes\":%llu,\"state_bytes\":%llu",
               r->batch, r->depth, r->prefill.median, r->prefill.min, r->prefill.max, r->decode.median, r->decode.min, r->decode.max, r->cpu_ms, bytes,
               r->roof.median, rate / r->roof.median, (unsigned long long)kv, (unsigned long long)states);
    else
        printf("%5u %6u  %9.1f (%.1f..%.1f)   %9.1f (%.1f..%.1f)   %8.2f ms CPU   %7.1f MB a step, %5.1f GB/s, %3.0f %% of %.1f (%.1f..%.1f)", r->batch, r->depth,
               r->prefill.median, r->prefill.min, r->prefill.max, r->decode.median, r->decode.min, r->decode.max, r->cpu_ms, bytes / 1e6, rate / 1e9,
               100 * rate / r->roof.median, r->roof.median / 1e9, r->roof.min / 1e9, r->roof.max / 1e9);
    if (!b->f->json && b->f->ladder)
        printf("   KV %.1f MiB, states %.1f MiB", (double)kv / (1 << 20), (double)states / (1 << 20));
    if (!b->f->json)
        putchar('\n');
}

static void print_head(struct bench *b, double roof)
{
    double bytes = (double)b->plan->weight_bytes_slot;
    if (b->f->json) {
        struct buf id;
        buf_init(&id, 1u << 20);
        json_put_cstr(&id, eng_session_model(b->s)->id);
        printf("{\"model\":%s,\"kernels\":\"%s\",\"threads\":%u,\"prompt\":%lld,\"gen\":%lld,\"weight_bytes\":%.0f,\"read_roof_bytes_s\":%.0f,\"dot_ops_s\":%.0f,\"rows\":[",
               id.data ? id.data : "\"\"", eng_session_isa(b->s), b->threads, (long long)b->f->prompt, (long long)b->f->gen, bytes, roof, b->dots);
        buf_free(&id);
        return;
    }
    printf("%s, %u threads: memory reads %.1f GB/s, %s %.0f Gop/s; weights %.1f MB\n%5s %6s  %-26s   %-26s\n", eng_session_isa(b->s), b->threads, roof / 1e9,
           b->device ? "f32 products and sums" : "byte dot products", b->dots / 1e9, bytes / 1e6, "batch", "depth", "prefill tok/s (min..max)", "decode tok/s (min..max)");
}

/* Where a ladder ended, and why. */
static void print_end(const struct bench *b, uint32_t last)
{
    const struct bench_ladder *l = &b->ladder;
    if (b->f->json) {
        struct buf why;
        buf_init(&why, 8192);
        json_put_cstr(&why, l->why);
        printf(",\"ladder\":{\"last\":%u,\"end\":\"%s\",\"why\":%s}", last, bench_end_name(l->end), why.data ? why.data : "\"\"");
        buf_free(&why);
    } else {
        printf("ended at %u tokens: %s: %s\n", last, bench_end_name(l->end), l->why);
    }
}

/* Before row i, the first one of a depth: does the ladder end here for want of time. */
static bool late(struct bench *b, uint32_t depth, uint32_t next, uint64_t t0, uint64_t t_depth)
{
    uint64_t now = clock_now_ns();
    if (!b->f->ladder || !bench_ladder_late(depth, next, (double)(now - t_depth) / 1e9, (double)(now - t0) / 1e9, (double)b->f->seconds))
        return false;
    b->ladder.end = BENCH_END_TIME;
    snprintf(b->ladder.why, sizeof b->ladder.why, "%u tokens would pass the %lld seconds given", next, (long long)b->f->seconds);
    return true;
}

static int run_rows(struct bench *b, const uint32_t *batches, uint32_t n, const uint32_t *depths, uint32_t n_depths, struct err *e)
{
    double roof;
    struct gpu_peaks peaks = {0};
    b->device = eng_session_config(b->s)->device.vulkan;
    int rc = b->device ? gpu_measure(eng_session_config(b->s)->device.index, PROBE_BYTES, &peaks, e) : ERR_OK;
    b->read = peaks.read_bytes_s;
    if (rc || (rc = roof_of(b, 5, &roof, e)))
        return rc;
    b->dots = b->device ? peaks.fma_ops_s : krn_probe_dot(b->workers, eng_session_config(b->s)->isa, 3);
    print_head(b, roof);
    uint64_t t0 = clock_now_ns(), t_depth = t0;
    uint32_t i = 0;
    for (; i < n * n_depths; i++) {
        if (i && i % n == 0) {
            if (late(b, depths[i / n - 1], depths[i / n], t0, t_depth))
                break;
            t_depth = clock_now_ns();
        }
        struct row row = {.batch = batches[i % n], .depth = depths[i / n]};
        if ((rc = measure(b, &row, e)))
            return rc;
        if (b->f->json && i)
            putchar(',');
        print_row(b, &row);
        if (b->f->ops && (rc = operators(b, &row, e)))
            return rc;
        if (b->f->json)
            putchar('}');
        fflush(stdout);
    }
    if (b->f->json)
        putchar(']');
    if (b->f->ladder)
        print_end(b, depths[(i - 1) / n]);
    if (b->f->json)
        puts("}");
    return ERR_OK;
}

/* The depths that are asked for, or those of a ladder. */
static int choose_depths(struct bench *b, const struct eng_config *c, uint32_t seqs, uint32_t *depths, uint32_t *n, uint32_t *deepest, struct err *e)
{
    const struct bench_flags *f = b->f;
    if (f->seconds && !f->ladder)
        return err_set(e, ERR_INVALID, "--seconds is for --ladder");
    if (!f->ladder)
        return cli_list("-d", f->depth ? f->depth : "0", 0, 1 << 24, depths, n, deepest, e);
    if (f->depth)
        return err_set(e, ERR_INVALID, "-d and --ladder exclude each other");
    if (f->gen * f->reps > 1 << 24)
        return err_set(e, ERR_INVALID, "-n, -r: %lld tokens after each depth are too many", (long long)(f->gen * f->reps));
    struct eng_config at = *c;
    at.seqs = seqs;
    int rc = bench_ladder(&b->ladder, &at, (uint32_t)((f->gen + 1) * (f->reps + 1)), e);
    *n = b->ladder.n;
    memcpy(depths, b->ladder.depth, sizeof b->ladder.depth);
    *deepest = *n ? depths[*n - 1] : 0;
    return rc;
}

static int bench_model(const struct bench_flags *f, struct eng_config *c, struct err *e)
{
    uint32_t batches[CLI_LIST_MAX], depths[CLI_LIST_MAX], n, n_depths, most, deepest;
    struct bench b = {.f = f};
    _Static_assert((int)BENCH_RUNGS_MAX == (int)CLI_LIST_MAX, "a ladder is a list of depths");
    int rc = cli_list("-b", f->batch, 1, 4096, batches, &n, &most, e);
    if (!rc && c->chunk && c->chunk < most)
        c->chunk = most;
    if (!rc)
        rc = choose_depths(&b, c, most, depths, &n_depths, &deepest, e);
    if (rc)
        return rc;
    uint64_t decoded = deepest + (uint64_t)(f->gen + 1) * (deepest ? (uint64_t)f->reps + 1 : 1), longest = (uint64_t)f->prompt > decoded ? (uint64_t)f->prompt : decoded;
    if (longest > INT32_MAX)
        return err_set(e, ERR_INVALID, "-d, -n, -r: %llu positions are too many", (unsigned long long)longest);
    c->ctx = c->ctx > longest && !f->ladder ? c->ctx : (uint32_t)longest;
    c->seqs = most;
    if ((rc = eng_session_open(&b.s, c, most, e)))
        return rc;
    b.plan = eng_session_model(b.s)->plan;
    b.threads = eng_session_config(b.s)->threads;
    b.vocab = eng_tok_count(eng_session_model(b.s)->tok);
    size_t n_tokens = (size_t)longest + (size_t)most * APART;
    b.tokens = malloc(n_tokens * sizeof *b.tokens);
    b.parts = calloc(most, sizeof *b.parts);
    if (!b.tokens || !b.parts)
        rc = err_set(e, ERR_NOMEM, "bench");
    else if (!(rc = pool_open(&b.workers, b.threads, e))) {
        fill(&b, n_tokens);
        cli_echo_config(eng_session_config(b.s), eng_session_isa(b.s));
        rc = run_rows(&b, batches, n, depths, n_depths, e);
    }
    pool_close(b.workers);
    free(b.tokens);
    free(b.parts);
    eng_session_close(b.s);
    return rc;
}

int verb_bench(int argc, char **argv)
{
    struct cli_engine ef = CLI_ENGINE_DEFAULTS;
    struct bench_flags f = {.prompt = 512, .batch = "1"};
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
        f.gen = f.gen ? f.gen : f.ladder ? 32 : 128;
        f.reps = f.reps ? f.reps : f.ladder ? 3 : 5;
        if (!(rc = cli_engine_config(&ef, &c, &e))) {
            c.progress = cli_load_progress;
            rc = bench_model(&f, &c, &e);
        }
    }
    arena_free(&a);
    return rc ? cli_fail("bench", &e) : CLI_OK;
}
