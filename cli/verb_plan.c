/* sluice plan MODEL: what would lie where, and what the slowest tier allows, without loading. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/replay.h"
#include "cli/verbs.h"
#include "kernels/probe.h"
#include "offload/drive.h"
#include "offload/ram.h"
#include "policies/predict.h"

struct plan_flags { bool json, no_probe, replay; };
#define AT(f) offsetof(struct plan_flags, f)
static const struct cli_flag flags[] = {
    {{"no-probe", CONF_BOOL, AT(no_probe), 0, 0, NULL}, NULL, NULL, "do not measure memory and drive; no rates then"},
    {{"replay", CONF_BOOL, AT(replay), 0, 0, NULL}, NULL, NULL, "the words are recorded routings, JSON lines: hit rates of the expert cache by policy and size"},
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON document"},
};
enum { LINES = 16, WORDS = 16, DRIVE_BYTES = 512 << 20, MEMORY_BYTES = 256 << 20 };

struct rates { double memory_s, drive_s; bool direct; char reading[LINES][512]; unsigned n_reading; }; /* bytes a second; 0: not measured */

static void keep_line(void *ctx, const char *text)
{
    struct rates *r = ctx;
    if (r->n_reading < LINES)
        snprintf(r->reading[r->n_reading++], sizeof *r->reading, "%.511s", text);
}

static int measure(const struct eng_prediction *p, struct rates *r, struct err *e)
{
    struct off_drive_rate d = {0};
    off_catalog *c;
    pool *workers;
    int rc = pool_open(&workers, p->config.threads, e);
    if (rc)
        return rc;
    rc = krn_probe_read(workers, MEMORY_BYTES, 3, &r->memory_s, e);
    pool_close(workers);
    if (rc || (!p->sweep_bytes && !p->expert_slots) || (rc = off_catalog_open_on(&c, p->config.model_path, p->config.disks, 0, e)))
        return rc;
    rc = off_probe_drive_tell(c, DRIVE_BYTES, p->config.io, keep_line, r, &d, e);
    off_catalog_close(c);
    r->drive_s = d.bytes_s;
    r->direct = d.direct;
    return rc;
}

/* Where a step's bytes come from. Experts that all stay count as held. */
static struct pol_tiers tiers_of(const struct eng_prediction *p, const struct rates *r)
{
    struct pol_tiers t = {.trunk_bytes = p->weight_slot_bytes - p->experts_bytes_all, .streamed_bytes = p->sweep_bytes, .memory_s = r->memory_s, .drive_s = r->drive_s};
    if (p->experts) {
        t.layers = p->expert_layers;
        t.experts = p->experts_per_layer;
        t.k = p->experts_chosen;
        t.expert_bytes = p->experts_bytes_all / p->experts;
        t.resident = p->expert_slots ? (double)p->expert_slots / p->experts : 1;
    }
    return t;
}

static double rate(double tokens, double s) { return s > 0 ? tokens / s : 0; }

static void line(const char *what, uint64_t bytes, const char *note) { printf("  %-30s %12.1f MiB  %s\n", what, (double)bytes / (1 << 20), note); }

/* 12,288 */
static const char *commas(uint64_t v, char *out, size_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, v), k = 0;
    for (int i = 0; i < len && k + 2 < (int)n; i++) {
        if (i && (len - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
    return out;
}

/* What a sequence costs, as it follows from the model. */
static void print_formulas(const struct eng_prediction *p)
{
    char a[32], b[32];
    for (uint32_t i = 0; i < p->n_formulas; i++) {
        const struct eng_formula *f = &p->formulas[i];
        printf("%-10s %s: %s = %s bytes", i ? "" : "context", f->what, f->text, commas(f->bytes, a, sizeof a));
        if (f->state)
            printf(" a sequence\n");
        else
            printf(" a token; at %s tokens %u pages of %u, %.1f MiB\n", commas(p->config.ctx, b, sizeof b), f->pages, f->page_tokens, (double)f->seq_bytes / (1 << 20));
    }
}

static void print_text(const struct eng_prediction *p, const struct rates *r, const char *ruled)
{
    uint64_t sum = p->resident_bytes + p->window_bytes + p->staging_bytes + p->expert_bytes + p->activation_bytes + p->state_bytes + p->snapshot_bytes + p->kv_bytes;
    struct pol_tiers t = tiers_of(p, r);
    struct pol_step one = pol_predict(&t, 1), all = pol_predict(&t, p->config.seqs), chunk = pol_predict(&t, p->config.chunk);
    printf("model      %s: %.1f MiB of weights in memory's layout\n", p->config.model_path, (double)p->weight_slot_bytes / (1 << 20));
    printf("budget     %.1f MiB (%s)\n", (double)p->config.ram_max / (1 << 20), ruled);
    line("weights that stay", p->resident_bytes, p->sweep_bytes ? "" : p->expert_slots ? "all but experts" : "all of them");
    if (p->expert_slots)
        printf("  %-30s %12.1f MiB  %u of %u\n", "experts", (double)p->expert_bytes / (1 << 20), p->expert_slots, p->experts);
    if (p->sweep_bytes)
        line("window for the others", p->window_bytes, "");
    if (p->staging_bytes)
        line("reading buffers", p->staging_bytes, "");
    line("activations and tables", p->activation_bytes, "");
    if (p->state_bytes)
        line("recurrent states", p->state_bytes, "");
    if (p->state_bytes)
        printf("  %-30s %12.1f MiB  room for %u, to reuse prefixes\n", "snapshots of them", (double)p->snapshot_bytes / (1 << 20), p->snapshots);
    printf("  %-30s %12.1f MiB  %" PRIu64 " bytes a token; room for %" PRIu64 " of %u sequences of %u tokens\n", "KV pages", (double)p->kv_bytes / (1 << 20), p->kv_token_bytes,
           p->kv_seq_bytes ? p->kv_bytes / p->kv_seq_bytes : p->config.seqs, p->config.seqs, p->config.ctx);
    line("together", sum, "");
    print_formulas(p);
    printf("a token    reads %.1f MiB of weights from memory, %.1f MiB from the drive", one.memory_bytes / (1 << 20), one.drive_bytes / (1 << 20));
    printf(p->expert_slots ? " (%.0f %% of chosen experts found there if all are chosen alike; more where they are not)\n" : "\n", 100 * one.hits);
    if (!(r->memory_s > 0))
        return;
    printf("measured   memory %.1f GB/s", r->memory_s / 1e9);
    if (r->drive_s > 0)
        printf(", drive %.2f GB/s%s", r->drive_s / 1e9, r->direct ? "" : " (through the page cache: may be memory's rate)");
    for (unsigned i = 0; i < r->n_reading; i++)
        printf("\nreads      %s", r->reading[i]);
    printf("\nroof       the %s: %.2f tokens/s for one sequence, before arithmetic and attention\n", one.drive ? "drive" : "memory", rate(1, one.roof_s));
    printf("expected   at most %.2f tokens/s for one sequence, %.2f together for %u; a prompt's first token after %.1f s for each %u of its tokens\n", rate(1, one.expected_s),
           rate(p->config.seqs, all.expected_s), p->config.seqs, chunk.expected_s, p->config.chunk);
}

static void print_formulas_json(const struct eng_prediction *p)
{
    struct buf b;
    buf_init(&b, 1u << 20);
    for (uint32_t i = 0; i < p->n_formulas; i++) {
        const struct eng_formula *f = &p->formulas[i];
        buf_str(&b, i ? ",{\"what\":" : "{\"what\":");
        json_put_cstr(&b, f->what);
        buf_printf(&b, ",\"formula\":\"%s\",\"%s\":%" PRIu64 ",\"sequence_bytes\":%" PRIu64, f->text, f->state ? "state_bytes" : "token_bytes", f->bytes, f->seq_bytes);
        if (!f->state)
            buf_printf(&b, ",\"sequence_pages\":%u,\"page_tokens\":%u", f->pages, f->page_tokens);
        buf_char(&b, '}');
    }
    printf(",\"formulas\":[%s]", b.data && !b.failed ? b.data : "");
    buf_free(&b);
}

static void print_json(const struct eng_prediction *p, const struct rates *r, const char *ruled)
{
    struct pol_tiers t = tiers_of(p, r);
    struct pol_step one = pol_predict(&t, 1), all = pol_predict(&t, p->config.seqs), chunk = pol_predict(&t, p->config.chunk);
    printf("{\"ram_max\":%" PRIu64 ",\"ruled_by\":\"%s\",\"weight_bytes\":%" PRIu64 ",\"resident_bytes\":%" PRIu64 ",\"window_bytes\":%" PRIu64 ",\"staging_bytes\":%" PRIu64
           ",\"sweep_bytes\":%" PRIu64 ",\"activation_bytes\":%" PRIu64 ",\"state_bytes\":%" PRIu64 ",\"snapshot_bytes\":%" PRIu64 ",\"snapshots\":%u,\"kv_bytes\":%" PRIu64 ",\"kv_token_bytes\":%" PRIu64 ",\"kv_sequence_bytes\":%" PRIu64
           ",\"ctx\":%u,\"seqs\":%u",
           p->config.ram_max, ruled, p->weight_slot_bytes, p->resident_bytes, p->window_bytes, p->staging_bytes, p->sweep_bytes, p->activation_bytes, p->state_bytes, p->snapshot_bytes,
           p->snapshots, p->kv_bytes,
           p->kv_token_bytes, p->kv_seq_bytes, p->config.ctx, p->config.seqs);
    printf(",\"expert_bytes\":%" PRIu64 ",\"expert_slots\":%u,\"experts\":%u,\"expert_hits\":%.4f,\"token_memory_bytes\":%.0f,\"token_drive_bytes\":%.0f", p->expert_bytes, p->expert_slots,
           p->experts, one.hits, one.memory_bytes, one.drive_bytes);
    print_formulas_json(p);
    if (r->memory_s > 0)
        printf(",\"memory_bytes_s\":%.0f,\"roof\":\"%s\",\"roof_tok_s\":%.3f,\"expected_tok_s\":%.3f,\"expected_tok_s_all\":%.3f,\"chunk\":%u,\"expected_chunk_s\":%.3f", r->memory_s,
               one.drive ? "drive" : "memory", rate(1, one.roof_s), rate(1, one.expected_s), rate(p->config.seqs, all.expected_s), p->config.chunk, chunk.expected_s);
    if (r->drive_s > 0)
        printf(",\"drive_bytes_s\":%.0f,\"drive_direct\":%s", r->drive_s, r->direct ? "true" : "false");
    for (unsigned i = 0; i < r->n_reading; i++) {
        struct buf b;
        buf_init(&b, 8192);
        json_put_cstr(&b, r->reading[i]);
        printf("%s%s%s", i ? "," : ",\"reading\":[", b.failed ? "null" : b.data, i + 1 == r->n_reading ? "]" : "");
        buf_free(&b);
    }
    printf("}\n");
}

int verb_plan(int argc, char **argv)
{
    struct plan_flags f = {0};
    struct cli_engine eng = CLI_ENGINE_DEFAULTS;
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {cli_engine_flags, cli_n_engine_flags, &eng}, {0}};
    struct eng_prediction p;
    struct eng_config c;
    struct rates r = {0};
    struct arena a;
    struct err e = {0};
    const char *words[WORDS];
    size_t n;
    bool asked;
    arena_init(&a, 1 << 20);
    int rc = cli_parse(argc, argv, "MODEL [flags], or --replay FILE...\nBytes by tier, how many sequences fit, what a step reads and the roof that sets, without loading.\n"
                       "Exit 0: it fits; 1: it does not, and the bytes that are missing are named.", tables, words, WORDS, &n, &asked, &a, &e), code = CLI_OK;
    if (rc || asked)
        goto out;
    if (f.replay) {
        rc = n ? cli_replay(words, n, &e) : err_set(&e, ERR_INVALID, "--replay: expected files of routings");
        goto out;
    }
    if (n > 1) {
        rc = err_set(&e, ERR_INVALID, "expected one MODEL, found \"%s\" too", words[1]);
        goto out;
    }
    if (n)
        eng.model = words[0];
    const char *ruled = eng.ram ? "--ram" : off_ram_limit("").rule;
    if ((rc = cli_engine_config(&eng, &c, &e)))
        goto out;
    if (c.device.vulkan) {
        rc = err_set(&e, ERR_INVALID, "plan looks at the CPU's tiers; expected no --device %s", eng.device);
        goto out;
    }
    if ((rc = eng_predict(&c, &p, &e)) == ERR_BUDGET) {
        fprintf(stderr, "sluice plan: %s\n", e.msg);
        code = CLI_NO;
        rc = ERR_OK;
        goto out;
    }
    if (rc || (!f.no_probe && (rc = measure(&p, &r, &e))))
        goto out;
    (f.json ? print_json : print_text)(&p, &r, ruled);
out:
    if (rc)
        code = cli_fail("plan", &e);
    arena_free(&a);
    return code;
}
