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
    if (rc || !p->sweep_bytes || (rc = off_catalog_open_on(&c, p->config.model_path, p->config.disks, 0, e)))
        return rc;
    rc = off_probe_drive_tell(c, DRIVE_BYTES, p->config.io, keep_line, r, &d, e);
    off_catalog_close(c);
    r->drive_s = d.bytes_s;
    r->direct = d.direct;
    return rc;
}

/* A decode step reads every weight from memory, and what does not stay from the drive, both at once. */
static double step_s(const struct eng_prediction *p, const struct rates *r, const char **roof)
{
    double memory = r->memory_s > 0 ? (double)p->weight_slot_bytes / r->memory_s : 0, drive = r->drive_s > 0 ? (double)p->sweep_bytes / r->drive_s : 0;
    *roof = drive > memory ? "drive" : "memory";
    return drive > memory ? drive : memory;
}

static void line(const char *what, uint64_t bytes, const char *note) { printf("  %-30s %12.1f MiB  %s\n", what, (double)bytes / (1 << 20), note); }

static void print_text(const struct eng_prediction *p, const struct rates *r, const char *ruled)
{
    uint64_t sum = p->resident_bytes + p->window_bytes + p->staging_bytes + p->activation_bytes + p->state_bytes + p->snapshot_bytes + p->kv_bytes;
    const char *roof;
    double s = step_s(p, r, &roof);
    printf("model      %s: %.1f MiB of weights in memory's layout\n", p->config.model_path, (double)p->weight_slot_bytes / (1 << 20));
    printf("budget     %.1f MiB (%s)\n", (double)p->config.ram_max / (1 << 20), ruled);
    line("weights that stay", p->resident_bytes, p->sweep_bytes ? "" : "all of them");
    if (p->sweep_bytes) {
        line("window for the others", p->window_bytes, "");
        line("reading buffers", p->staging_bytes, "");
    }
    line("activations and tables", p->activation_bytes, "");
    if (p->state_bytes)
        line("recurrent states", p->state_bytes, "");
    if (p->state_bytes)
        printf("  %-30s %12.1f MiB  room for %u, to reuse prefixes\n", "snapshots of them", (double)p->snapshot_bytes / (1 << 20), p->snapshots);
    printf("  %-30s %12.1f MiB  %" PRIu64 " bytes a token; room for %" PRIu64 " of %u sequences of %u tokens\n", "KV pages", (double)p->kv_bytes / (1 << 20), p->kv_token_bytes,
           p->kv_seq_bytes ? p->kv_bytes / p->kv_seq_bytes : p->config.seqs, p->config.seqs, p->config.ctx);
    line("together", sum, "");
    printf("a step     reads %.1f MiB of weights from memory, %.1f MiB from the drive\n", (double)p->weight_slot_bytes / (1 << 20), (double)p->sweep_bytes / (1 << 20));
    if (!(r->memory_s > 0))
        return;
    printf("measured   memory %.1f GB/s", r->memory_s / 1e9);
    if (r->drive_s > 0)
        printf(", drive %.2f GB/s%s", r->drive_s / 1e9, r->direct ? "" : " (through the page cache: may be memory's rate)");
    for (unsigned i = 0; i < r->n_reading; i++)
        printf("\nreads      %s", r->reading[i]);
    printf("\nroof       the %s: %.2f tokens/s for one sequence, before arithmetic and attention; sequences that run together share each step\n", roof, s > 0 ? 1 / s : 0);
}

static void print_json(const struct eng_prediction *p, const struct rates *r, const char *ruled)
{
    const char *roof;
    double s = step_s(p, r, &roof);
    printf("{\"ram_max\":%" PRIu64 ",\"ruled_by\":\"%s\",\"weight_bytes\":%" PRIu64 ",\"resident_bytes\":%" PRIu64 ",\"window_bytes\":%" PRIu64 ",\"staging_bytes\":%" PRIu64
           ",\"sweep_bytes\":%" PRIu64 ",\"activation_bytes\":%" PRIu64 ",\"state_bytes\":%" PRIu64 ",\"snapshot_bytes\":%" PRIu64 ",\"snapshots\":%u,\"kv_bytes\":%" PRIu64 ",\"kv_token_bytes\":%" PRIu64 ",\"kv_sequence_bytes\":%" PRIu64
           ",\"ctx\":%u,\"seqs\":%u",
           p->config.ram_max, ruled, p->weight_slot_bytes, p->resident_bytes, p->window_bytes, p->staging_bytes, p->sweep_bytes, p->activation_bytes, p->state_bytes, p->snapshot_bytes,
           p->snapshots, p->kv_bytes,
           p->kv_token_bytes, p->kv_seq_bytes, p->config.ctx, p->config.seqs);
    if (r->memory_s > 0)
        printf(",\"memory_bytes_s\":%.0f,\"roof\":\"%s\",\"roof_tok_s\":%.3f", r->memory_s, roof, s > 0 ? 1 / s : 0);
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
