#include "cli/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/state.h"
#include "kernels/gpu.h"

static const char *const precisions[] = {"auto", "f32", NULL};
static const char *const kernels[] = {"auto", "c", "avx2", "avx512", NULL};
static const char *const switches[] = {"auto", "off", NULL};
static const char *const drafts[] = {"auto", "off", "always", NULL};
static const char *const ios[] = {"auto", "ring", "threads", NULL};
static const char *const kv_types[] = {"auto", "f32", "f16", "bf16", NULL};

#define AT(field) offsetof(struct cli_engine, field)
const struct cli_flag cli_engine_flags[] = {
    {{"model", CONF_STR, AT(model), 0, 0, NULL}, "-m", "MODEL", "a .gguf file, or a directory with config.json and safetensors"},
    {{"alias", CONF_STR, AT(alias), 0, 0, NULL}, NULL, "NAME", "the model's name towards clients (default: its file's name); more after commas, or in more flags, are aliases"},
    {{"ctx", CONF_INT, AT(ctx), 0, 16777216, NULL}, "-c", "TOKENS", "context of a sequence (default: as `check` shows, mostly 4096)"},
    {{"seqs", CONF_INT, AT(seqs), 0, 4096, NULL}, "-np", "N", "sequences that run at once (default: as `check` shows, mostly 8)"},
    {{"threads", CONF_INT, AT(threads), 0, 256, NULL}, "-t", "N", "threads of the engine (default: the cores it may use)"},
    {{"chunk", CONF_INT, AT(chunk), 0, 65536, NULL}, "-ub", "TOKENS", "most tokens computed in one step (default: as `check` shows, mostly 256)"},
    {{"page", CONF_INT, AT(page), 0, 4096, NULL}, NULL, "TOKENS", "tokens of a KV page, a multiple of 16 (default 64)"},
    {{"prefix", CONF_ENUM, AT(prefix), 0, 0, switches}, NULL, "auto|off", "off: prompts do not use KV pages of earlier ones that begin alike (same output, more work)"},
    {{"draft", CONF_ENUM, AT(draft), 0, 0, drafts}, NULL, "auto|off|always", "auto: guess tokens from the text so far where that pays (same output, fewer steps); always: pays or not"},
    {{"kv-type", CONF_ENUM, AT(kv_type), 0, 0, kv_types}, NULL, "T", "KV cells: f32, f16, bf16 (default f16; f32 with --precision f32)"},
    {{"precision", CONF_ENUM, AT(precision), 0, 0, precisions}, NULL, "P", "auto: int8 activations meet quantised weights; f32: diagnosis"},
    {{"kernels", CONF_ENUM, AT(kernels), 0, 0, kernels}, NULL, "SET", "auto, c, avx2, avx512: equal bits, different speed"},
    {{"ram", CONF_STR, AT(ram), 0, 0, NULL}, NULL, "SIZE", "memory of the engine: bytes with K M G T, or % of the model's bytes; weights that do not fit stream from the drive"},
    {{"disk", CONF_STR, AT(disk), 0, 0, NULL}, NULL, "DIR", "a directory on another drive with copies of the model's files, or with those its own directory lacks; may be repeated"},
    {{"warm", CONF_STR, AT(warm), 0, 0, NULL}, NULL, "FILE", "where routed experts are cached: those in memory at the end are written there, and read ahead at the next start"},
    {{"io", CONF_ENUM, AT(io), 0, 0, ios}, NULL, "auto|ring|threads", "how weights that stream are read: a ring is io_uring, threads is pread (auto: a ring where the kernel allows it)"},
    {{"verify-reads", CONF_BOOL, AT(verify_reads), 0, 0, NULL}, NULL, NULL, "hold what is read of a packed copy against its checksums"},
    {{"device", CONF_STR, AT(device), 0, 0, NULL}, NULL, "DEV", "cpu, or vulkan[:N]: device N of `sluice devices`"},
    {{"vram", CONF_STR, AT(vram), 0, 0, NULL}, NULL, "SIZE", "with --device vulkan, device memory: bytes with K M G T, or % of the model's bytes (default: nine tenths of it)"},
    {{"device-without", CONF_STR, AT(without), 0, 0, NULL}, NULL, "LIST", "features of the device to leave alone: transfer-queue,budget,timestamps,large-regions"},
};
const size_t cli_n_engine_flags = sizeof cli_engine_flags / sizeof *cli_engine_flags;

static void help(const char *verb, const char *usage, const struct cli_flags *t)
{
    printf("usage: sluice %s %s\n\n", verb, usage);
    for (; t->flags; t++)
        for (size_t i = 0; i < t->n; i++) {
            const struct cli_flag *f = &t->flags[i];
            char left[80];
            snprintf(left, sizeof left, "%s%s--%s %s", f->brief ? f->brief : "", f->brief ? ", " : "", f->d.name, f->arg ? f->arg : "");
            printf("  %-28s %s\n", left, f->help);
        }
}

static const struct cli_flag *find(const struct cli_flags *t, const char *arg, size_t n, void **target)
{
    for (; t->flags; t++)
        for (size_t i = 0; i < t->n; i++) {
            const struct cli_flag *f = &t->flags[i];
            bool brief = f->brief && strlen(f->brief) == n && !memcmp(f->brief, arg, n);
            bool full = n > 2 && arg[0] == '-' && arg[1] == '-' && strlen(f->d.name) == n - 2 && !memcmp(f->d.name, arg + 2, n - 2);
            if (brief || full) {
                *target = t->target;
                return f;
            }
        }
    return NULL;
}

/* Names of one model, drives it lies on: given again, the values are one list. Other flags take the last. */
static bool joins(const struct cli_flag *f) { return !strcmp(f->d.name, "alias") || !strcmp(f->d.name, "disk"); }

int cli_parse(int argc, char **argv, const char *usage, const struct cli_flags *tables, const char **words, size_t words_max, size_t *n_words,
              bool *asked_help, struct arena *a, struct err *e)
{
    *n_words = 0;
    *asked_help = false;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            if (*n_words == words_max)
                return err_set(e, ERR_INVALID, "one word too many: '%s' (--help lists what there is)", arg);
            words[(*n_words)++] = arg;
            continue;
        }
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            help(argv[0], usage, tables);
            *asked_help = true;
            return ERR_OK;
        }
        const char *eq = arg[1] == '-' ? strchr(arg, '=') : NULL;
        void *target = NULL;
        const struct cli_flag *f = find(tables, arg, eq ? (size_t)(eq - arg) : strlen(arg), &target);
        if (!f)
            return err_set(e, ERR_INVALID, "no flag '%s' (--help lists what there is)", arg);
        const char *value = f->d.type == CONF_BOOL ? (eq ? eq + 1 : "on") : eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return err_set(e, ERR_INVALID, "%s: expected a value (%s)", arg, f->arg);
        const char **set = (const char **)((char *)target + f->d.offset);
        if (joins(f) && *set && !(value = arena_printf(a, "%s,%s", *set, value)))
            return err_set(e, ERR_NOMEM, "%s", arg);
        int rc = conf_set(arg, value, &f->d, target, a, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

int cli_list(const char *flag, const char *s, long least, long most, uint32_t *v, uint32_t *n, uint32_t *top, struct err *e)
{
    *n = *top = 0;
    while (*s) {
        char *end;
        long k = strtol(s, &end, 10);
        if (end == s || k < least || k > most || *n == CLI_LIST_MAX || (*end && *end != ','))
            return err_set(e, ERR_INVALID, "%s: expected up to %d numbers from %ld to %ld with commas, found '%.20s'", flag, CLI_LIST_MAX, least, most, s);
        v[(*n)++] = (uint32_t)k;
        *top = (uint32_t)k > *top ? (uint32_t)k : *top;
        s = *end ? end + 1 : end;
    }
    return *n ? ERR_OK : err_set(e, ERR_INVALID, "%s: expected numbers with commas", flag);
}

static int size_of(const struct cli_engine *f, const char *flag, const char *text, uint64_t *out, struct err *e)
{
    size_t n = strlen(text);
    if (n && text[n - 1] == '%') {
        char *end;
        double pct = strtod(text, &end);
        if (end != text + n - 1 || !(pct > 0 && pct <= 10000))
            return err_set(e, ERR_INVALID, "%s %s: expected a share like 40%%", flag, text);
        off_catalog *c;
        int rc = off_catalog_open_on(&c, f->model, f->disk, 0, e);
        if (rc)
            return rc;
        *out = (uint64_t)((double)off_catalog_bytes(c) * pct / 100);
        off_catalog_close(c);
        return ERR_OK;
    }
    if (conf_size(text, out) || !*out)
        return err_set(e, ERR_INVALID, "%s %s: expected bytes with K M G T, or a share like 40%%", flag, text);
    return ERR_OK;
}

/* --device cpu, vulkan or vulkan:N, and what goes with it. */
static int device_of(const struct cli_engine *f, struct eng_config *c, struct err *e)
{
    char *end;
    int rc = ERR_OK;
    if (!f->device || !strcmp(f->device, "cpu")) {
        if (f->vram || f->without)
            return err_set(e, ERR_INVALID, "%s goes with --device vulkan", f->vram ? "--vram" : "--device-without");
        return ERR_OK;
    }
    c->device.vulkan = !strncmp(f->device, "vulkan", 6) && (!f->device[6] || (f->device[6] == ':' && f->device[7] >= '0' && f->device[7] <= '9'));
    unsigned long n = c->device.vulkan && f->device[6] ? strtoul(f->device + 7, &end, 10) : 0;
    if (!c->device.vulkan || n > 99 || (f->device[6] && *end))
        return err_set(e, ERR_INVALID, "--device %s: expected cpu, vulkan or vulkan:N", f->device);
    if (f->kernels)
        return err_set(e, ERR_INVALID, "--kernels chooses among the processor's; it does not go with --device %s", f->device);
    c->device.index = (unsigned)n;
    static char cache[512]; /* compiled kernels are kept beside a server's state; where there is no home, they are not */
    if (!cli_state_dir(NULL, cache, sizeof cache) && !cli_state_make(cache, NULL))
        c->device.cache_dir = cache;
    if (f->without && (rc = gpu_mask_parse(f->without, &c->device.without, e)))
        return err_prefix(e, rc, "--device-without");
    return f->vram ? size_of(f, "--vram", f->vram, &c->device.bytes_max, e) : ERR_OK;
}

int cli_engine_config(const struct cli_engine *f, struct eng_config *c, struct err *e)
{
    static const enum krn_type types[] = {KRN_TYPE_COUNT, KRN_F32, KRN_F16, KRN_BF16};
    static const enum eng_draft_mode modes[] = {ENG_DRAFT_AUTO, ENG_DRAFT_OFF, ENG_DRAFT_ALWAYS};
    static const enum krn_isa isas[] = {KRN_ISA_AUTO, KRN_ISA_C, KRN_ISA_AVX2, KRN_ISA_AVX512};
    if (!f->model)
        return err_set(e, ERR_INVALID, "no model given (-m MODEL)");
    *c = (struct eng_config){.model_path = f->model, .alias = f->alias, .ctx = (uint32_t)f->ctx, .seqs = (uint32_t)f->seqs,
                             .threads = (uint32_t)f->threads, .chunk = (uint32_t)f->chunk, .page_tokens = (uint32_t)f->page,
                             .prefix_off = f->prefix == 1, .disks = f->disk, .warm_path = f->warm, .verify_reads = f->verify_reads, .io = (enum off_io)f->io, .draft = modes[f->draft], .kv_type = types[f->kv_type], .isa = isas[f->kernels],
                             .precision = f->precision == 1 ? KRN_PREC_F32 : KRN_PREC_AUTO};
    int rc = device_of(f, c, e);
    return !rc && f->ram ? size_of(f, "--ram", f->ram, &c->ram_max, e) : rc;
}

void cli_echo_config(const struct eng_config *c, const char *isa)
{
    fprintf(stderr, "sluice: ctx %u, seqs %u, threads %u, chunk %u, page %u, prefix %s, draft %s, kv %s, precision %s, kernels %s, ram %.1f MiB", c->ctx, c->seqs,
            c->threads, c->chunk, c->page_tokens, c->prefix_off ? "off" : "auto", drafts[c->draft], krn_types[c->kv_type].name, c->precision == KRN_PREC_F32 ? "f32" : "auto", isa,
            (double)c->ram_max / (1 << 20));
    if (c->device.vulkan)
        fprintf(stderr, ", device vulkan:%u, vram %.1f MiB", c->device.index, (double)c->device.bytes_max / (1 << 20));
    fputc('\n', stderr);
}

void cli_load_progress(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    cli_progress("loading", done, total);
}

void cli_progress(const char *what, uint64_t done, uint64_t total)
{
    static uint64_t last;
    if (!isatty(2) || !total)
        return;
    uint64_t now = clock_now_ns();
    if (done < total && now - last < 100 * NS_PER_MS)
        return;
    last = now;
    fprintf(stderr, "\r%s %3.0f %% of %.0f MiB%s", what, 100.0 * (double)done / (double)total, (double)total / (1 << 20), done >= total ? "\r\x1b[K" : "");
}

int cli_fail(const char *verb, const struct err *e)
{
    fprintf(stderr, "sluice %s: %s\n", verb, e->msg);
    return e->code == ERR_INVALID ? CLI_USAGE : CLI_FAULT;
}
