/* sluice check MODEL [--json]: the Day-0 report. Exit 0 only if the model can run here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/verbs.h"
#include "engine/check.h"

#define SHOWN 12 /* findings of each kind in the text report; --json has all that were kept */

static const char *const supports[] = {"missing", "plain C", "kernel"};

static void usage(FILE *f)
{
    fprintf(f, "usage: sluice check MODEL [--json]\n"
               "       sluice check --operators       the operators that a sheet may call, as docs/operators.md has them\n"
               "Files, tensors, config, operators and state of a model, from headers alone. MODEL: a GGUF file or a directory with config.json.\n"
               "Exit 0: it can run; 1: it cannot, and the report says why.\n");
}

/* 1560860324864 -> "1,560,860,324,864"; eight buffers in turn. */
static const char *grouped(uint64_t v)
{
    static char buf[8][32];
    static unsigned turn;
    char digits[24], *out = buf[turn++ % 8];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, v), at = 0;

    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static size_t missing_files(const off_catalog *c)
{
    size_t n = 0;

    for (size_t i = 0; i < off_catalog_files(c); i++)
        n += off_catalog_file(c, i)->missing;
    return n;
}

static void print_model(const off_catalog *c, const struct eng_report *r, const char *path)
{
    size_t files = off_catalog_files(c), missing = missing_files(c);

    printf("model      %s: %s, %s bytes of tensors\n", path, off_catalog_kind(c) == OFF_GGUF ? "GGUF" : "safetensors", grouped(off_catalog_bytes(c)));
    printf("files      %s present, %s missing, %s problems\n", grouped(files - missing), grouped(missing), grouped(r->total[ENG_ISSUE_FILE]));
    if (r->sheet)
        printf("sheet      %s for %s\n", r->sheet, r->model_type ? r->model_type : "?");
    else
        printf("sheet      none for %s\n", r->model_type ? r->model_type : "(no model_type)");
    if (r->suggestion)
        printf("nearest    %s binds %s of %s names; below is what stands against it\n", r->suggestion, grouped(r->suggestion_bound), grouped(r->names));
    size_t unknown = r->total[ENG_ISSUE_UNKNOWN];
    printf("tensors    %s in the files: %s bound, %s excused, %s unknown; %s missing, %s mis-shaped\n", grouped(r->names), grouped(r->bound), grouped(r->excused),
           grouped(unknown), grouped(r->total[ENG_ISSUE_MISSING]), grouped(r->total[ENG_ISSUE_SHAPE]));
    for (size_t i = 0; i < r->n_excuses; i++)
        printf("  excused  %s: %s (%s values, %s bytes)\n", grouped(r->excuse[i].n), r->excuse[i].reason, grouped(r->excuse[i].values), grouped(r->excuse[i].bytes));
    printf("dtypes    ");
    for (size_t i = 0; i < r->n_dtypes; i++)
        printf(" %s %s (%s bytes)%s", r->dtype[i].name, grouped(r->dtype[i].tensors), grouped(r->dtype[i].bytes), i + 1 < r->n_dtypes ? "," : "\n");
}

/* Parameters and bytes by part; the excused ones are above. */
static void print_parts(const struct eng_report *r)
{
    printf("parameters %s in all", grouped(r->values));
    printf(r->active < r->values ? ", %s met by a token\n" : "\n", grouped(r->active));
    for (size_t i = 0; i < r->n_parts; i++)
        printf("  %-18s %19s  %19s bytes  %5.1f %%\n", r->part[i].name, grouped(r->part[i].values), grouped(r->part[i].bytes),
               r->values ? 100.0 * (double)r->part[i].values / (double)r->values : 0.0);
}

/* What a server and a request get that say nothing of their own. */
static void print_serving(const struct eng_plan *p, const struct eng_report *r)
{
    if (r->n_template)
        printf("template   %s bytes; one question makes %u tokens\n", grouped(r->n_template), r->n_trial);
    else
        printf("template   none: completions only\n");
    printf("serving    context %s, %u sequences, steps of %u tokens\n", grouped(p->serve.ctx), p->serve.seqs, p->serve.chunk);
    if (p->ctx_switch)
        printf("  rope     -c beyond %s takes the long list of factors, for every sequence\n", grouped(p->ctx_switch));
    printf("  sampling temperature %g, top-p %g, top-k %d (%s)\n  ends at ", (double)r->temperature, (double)r->top_p, r->top_k,
           r->sampling_from_files ? "from the files" : "from the sheet");
    for (uint32_t i = 0; i < r->n_stop; i++)
        printf(" %s", r->stop[i]);
    printf(r->n_stop ? "\n" : " nothing\n");
    for (uint32_t i = 0; i < p->n_notes; i++)
        printf("  note     %s\n", p->notes[i]);
}

static void print_plan(const struct eng_plan *p, const struct eng_report *r)
{
    print_parts(r);
    printf("plan       %u layers, hidden %u, vocabulary %u, context %s; %s calls in %u segments\n", p->layers, p->hidden, p->vocab, grouped(p->ctx), grouped(p->n_ops),
           p->n_segments);
    printf("state      %s bytes a token (16-bit KV), %s bytes a sequence\n", grouped(eng_plan_kv_bytes_per_token(p, KRN_BF16)), grouped(eng_plan_state_bytes_per_seq(p)));
    for (uint32_t i = 0; i < p->n_kv; i++) {
        const struct eng_kv_group *g = &p->kv[i];
        printf("  group    $%s: %u layers, %u heads of %u + %u", g->state, g->n_layers, g->heads, g->dim_k, g->dim_v);
        printf(g->window ? ", window %u\n" : "\n", g->window);
    }
    for (uint32_t i = 0; i < p->n_recurrent; i++)
        printf("  state    $%s: %u layers, %u fields\n", p->recurrent[i].state, p->recurrent[i].n_layers, p->recurrent[i].n_fields);
    if (r->n_tokens)
        printf("tokenizer  %s tokens for %s rows\n", grouped(r->n_tokens), grouped(p->vocab));
    print_serving(p, r);
    printf("%-39s", "operators");
    for (int b = 0; b < ENG_BACKEND_COUNT; b++)
        printf(" %-8s", eng_check_backends[b].name);
    printf("\n");
    for (size_t i = 0; i < r->n_ops; i++) {
        const struct eng_op_use *u = &r->op[i];
        bool packed = u->weighted && strcmp(u->form, "plain");
        printf("  %-10s %-12s %8s calls ", u->name, packed ? u->form : u->weighted ? krn_types[u->type].name : "", grouped(u->calls));
        for (int b = 0; b < ENG_BACKEND_COUNT; b++)
            printf(" %-8s", supports[u->support[b]]);
        printf("\n");
    }
}

/* Returns how many problems the line stands for. */
static size_t print_finding(const struct eng_finding *f, size_t *shown)
{
    printf("problem    %s", f->text);
    printf(f->alike ? " (and %s more like it)\n" : "\n", grouped(f->alike));
    ++*shown;
    return 1 + f->alike;
}

static void print_findings(const struct eng_report *r)
{
    for (int k = 0; k < ENG_ISSUE_COUNT; k++) {
        size_t shown = 0, covered = 0;
        if (!r->total[k])
            continue;
        if (k == ENG_ISSUE_INERT) {
            printf("not read  ");
            for (size_t i = 0; i < r->n; i++)
                if (r->v[i].kind == ENG_ISSUE_INERT)
                    printf(" %s", r->v[i].text);
            printf("\n");
            continue;
        }
        for (size_t i = 0; i < r->n && shown < SHOWN; i++)
            if ((int)r->v[i].kind == k)
                covered += print_finding(&r->v[i], &shown);
        if (r->total[k] > covered)
            printf("           and %s more of kind %s\n", grouped(r->total[k] - covered), eng_issue_name((enum eng_issue)k));
    }
}

static void key_u64(struct buf *b, const char *key, uint64_t v) { buf_printf(b, "\"%s\":%" PRIu64 ",", key, v); }
static void key_str(struct buf *b, const char *key, const char *v)
{
    buf_printf(b, "\"%s\":", key);
    json_put_cstr(b, v);
    buf_char(b, ',');
}
static void close_list(struct buf *b, const char *end)
{
    if (b->len && b->data[b->len - 1] == ',')
        b->len--;
    buf_str(b, end);
}

static void json_findings(struct buf *b, const struct eng_report *r)
{
    buf_str(b, "\"findings\":[");
    for (size_t i = 0; i < r->n; i++) {
        const struct eng_finding *f = &r->v[i];
        buf_char(b, '{');
        key_str(b, "kind", eng_issue_name(f->kind));
        key_str(b, "text", f->text);
        key_str(b, "tensor", f->tensor);
        key_str(b, "expected", f->expected);
        key_str(b, "found", f->found);
        key_u64(b, "alike", f->alike);
        close_list(b, "},");
    }
    close_list(b, "],\"totals\":{");
    for (int k = 0; k < ENG_ISSUE_COUNT; k++)
        key_u64(b, eng_issue_name((enum eng_issue)k), r->total[k]);
    close_list(b, "},");
}

static void json_parts(struct buf *b, const struct eng_report *r)
{
    key_u64(b, "parameters", r->values);
    key_u64(b, "parameters_met", r->active);
    buf_str(b, "\"parts\":[");
    for (size_t i = 0; i < r->n_parts; i++) {
        buf_char(b, '{');
        key_str(b, "part", r->part[i].name);
        key_u64(b, "tensors", r->part[i].tensors);
        key_u64(b, "parameters", r->part[i].values);
        key_u64(b, "bytes", r->part[i].bytes);
        close_list(b, "},");
    }
    close_list(b, "]");
}

static void json_plan(struct buf *b, const struct eng_plan *p, const struct eng_report *r)
{
    buf_str(b, "\"plan\":{");
    key_u64(b, "layers", p->layers);
    key_u64(b, "hidden", p->hidden);
    key_u64(b, "vocab", p->vocab);
    key_u64(b, "context", p->ctx);
    key_u64(b, "calls", p->n_ops);
    key_u64(b, "tokenizer_tokens", r->n_tokens);
    key_u64(b, "template_bytes", r->n_template);
    buf_printf(b, "\"serve\":{\"ctx\":%u,\"seqs\":%u,\"chunk\":%u,\"temperature\":%g,\"top_p\":%g,\"top_k\":%d,\"stop\":[", p->serve.ctx, p->serve.seqs,
               p->serve.chunk, (double)r->temperature, (double)r->top_p, r->top_k);
    for (uint32_t i = 0; i < r->n_stop; i++) {
        json_put_cstr(b, r->stop[i]);
        buf_char(b, ',');
    }
    close_list(b, "]},\"notes\":[");
    for (uint32_t i = 0; i < p->n_notes; i++) {
        json_put_cstr(b, p->notes[i]);
        buf_char(b, ',');
    }
    close_list(b, "],");
    key_u64(b, "kv_bytes_per_token", eng_plan_kv_bytes_per_token(p, KRN_BF16));
    key_u64(b, "state_bytes_per_sequence", eng_plan_state_bytes_per_seq(p));
    buf_str(b, "\"operators\":[");
    for (size_t i = 0; i < r->n_ops; i++) {
        buf_char(b, '{');
        key_str(b, "name", r->op[i].name);
        key_str(b, "dtype", r->op[i].weighted ? krn_types[r->op[i].type].name : NULL);
        key_str(b, "form", r->op[i].weighted ? r->op[i].form : NULL);
        key_u64(b, "calls", r->op[i].calls);
        for (int k = 0; k < ENG_BACKEND_COUNT; k++)
            key_str(b, eng_check_backends[k].name, supports[r->op[i].support[k]]);
        close_list(b, "},");
    }
    close_list(b, "],");
    json_parts(b, r);
    buf_str(b, "},");
}

static int print_json(const off_catalog *c, const struct eng_plan *p, const struct eng_report *r, const char *path)
{
    struct buf b;

    buf_init(&b, 16u << 20);
    buf_char(&b, '{');
    key_str(&b, "model", path);
    key_str(&b, "kind", off_catalog_kind(c) == OFF_GGUF ? "gguf" : "safetensors");
    key_u64(&b, "bytes", off_catalog_bytes(c));
    key_u64(&b, "files", off_catalog_files(c));
    key_u64(&b, "files_missing", missing_files(c));
    key_str(&b, "model_type", r->model_type);
    key_str(&b, "sheet", r->sheet);
    key_str(&b, "nearest", r->suggestion);
    key_str(&b, "backend", eng_check_backends[ENG_BACKEND_CPU].name);
    key_u64(&b, "tensors", r->names);
    key_u64(&b, "bound", r->bound);
    key_u64(&b, "excused", r->excused);
    buf_str(&b, "\"excuses\":{");
    for (size_t i = 0; i < r->n_excuses; i++) {
        json_put_cstr(&b, r->excuse[i].reason);
        buf_printf(&b, ":{\"tensors\":%zu,\"values\":%" PRIu64 ",\"bytes\":%" PRIu64 "},", r->excuse[i].n, r->excuse[i].values, r->excuse[i].bytes);
    }
    close_list(&b, "},\"dtypes\":{");
    for (size_t i = 0; i < r->n_dtypes; i++)
        buf_printf(&b, "\"%s\":{\"tensors\":%zu,\"bytes\":%" PRIu64 "},", r->dtype[i].name, r->dtype[i].tensors, r->dtype[i].bytes);
    close_list(&b, "},");
    if (p)
        json_plan(&b, p, r);
    json_findings(&b, r);
    buf_printf(&b, "\"problems\":%zu,\"can_run\":%s}\n", eng_report_problems(r), eng_report_problems(r) ? "false" : "true");
    bool ok = !b.failed && fwrite(b.data, 1, b.len, stdout) == b.len;
    buf_free(&b);
    return ok ? CLI_OK : CLI_FAULT;
}

static int report(const off_catalog *c, const char *path, bool json)
{
    struct eng_report r;
    struct eng_plan *p;
    struct err e = {0};
    int rc;

    eng_report_init(&r);
    if (eng_check(c, &r, &p, &e)) {
        fprintf(stderr, "sluice check: %s\n", e.msg);
        eng_report_free(&r);
        return CLI_FAULT;
    }
    size_t problems = eng_report_problems(&r);
    if (json) {
        rc = print_json(c, p, &r, path);
    } else {
        print_model(c, &r, path);
        if (p)
            print_plan(p, &r);
        print_findings(&r);
        printf(problems ? "verdict    cannot run: %s problems\n" : "verdict    can run%s\n", problems ? grouped(problems) : "");
        rc = CLI_OK;
    }
    eng_plan_close(p);
    eng_report_free(&r);
    return rc ? rc : problems ? CLI_NO : CLI_OK;
}

static int print_operators(void)
{
    struct buf b;

    buf_init(&b, 1u << 20);
    bool ok = eng_check_page(&b) && fwrite(b.data, 1, b.len, stdout) == b.len;
    buf_free(&b);
    return ok ? CLI_OK : CLI_FAULT;
}

int verb_check(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false;
    off_catalog *c;
    struct err e = {0};
    int rc;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            usage(stdout);
            return CLI_OK;
        }
        if (!strcmp(argv[i], "--operators") && argc == 2)
            return print_operators();
        if (!strcmp(argv[i], "--json")) {
            json = true;
        } else if (argv[i][0] == '-' || path) {
            fprintf(stderr, "sluice check: unexpected argument %s\n", argv[i]);
            usage(stderr);
            return CLI_USAGE;
        } else {
            path = argv[i];
        }
    }
    if (!path) {
        usage(stderr);
        return CLI_USAGE;
    }
    if (off_catalog_open(&c, path, 1, &e)) {
        if (json) {
            struct buf b;
            buf_init(&b, 1u << 16);
            json_put_cstr(&b, e.msg);
            printf("{\"can_run\":false,\"problems\":1,\"error\":%s}\n", b.failed ? "null" : b.data);
            buf_free(&b);
        } else {
            fprintf(stderr, "sluice check: %s\n", e.msg);
        }
        return CLI_NO;
    }
    rc = report(c, path, json);
    off_catalog_close(c);
    return rc;
}
