/* sluice verify MODEL: a model against stored reference results; also tokenizers and chat templates against goldens. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/flags.h"
#include "cli/verbs.h"
#include "engine/template_verify.h"
#include "engine/tok_verify.h"
#include "engine/verify.h"

struct verify_flags { const char *ref, *text, *tokenizer, *golden, *tmpl, *cases, *write_ref, *length, *depth; int64_t only; bool json; };
enum { ALL, LAYERS, TEXT, OPERATORS, NEEDLE };
static const char *const parts[] = {"all", "layers", "text", "operators", "needle", NULL};
#define AT(f) offsetof(struct verify_flags, f)
static const struct cli_flag flags[] = {
    {{"ref", CONF_STR, AT(ref), 0, 0, NULL}, NULL, "DIR", "reference folder or goldens file (default MODEL/reference)"},
    {{"text", CONF_STR, AT(text), 0, 0, NULL}, NULL, "FILE", "perplexity of a text as served beside f32 (with --ref: after it); of needle: what it is hidden in (default: made up)"},
    {{"only", CONF_ENUM, AT(only), 0, 0, parts}, NULL, "WHAT", "layers, text, needle (a number hidden in a long text, found again; as served unless --precision f32), or operators (those need no MODEL)"},
    {{"length", CONF_STR, AT(length), 0, 0, NULL}, NULL, "1024,2048", "needle: tokens of the prompts with their answers (default 1024, doubled up to the context)"},
    {{"depth", CONF_STR, AT(depth), 0, 0, NULL}, NULL, "10,50,90", "needle: where in the text it is, in percent (these are the default)"},
    {{"write-ref", CONF_STR, AT(write_ref), 0, 0, NULL}, NULL, "DIR", "freeze what this build computes (with --text: its beginning as the long prompt); --ref DIR checks it later"},
    {{"json", CONF_BOOL, AT(json), 0, 0, NULL}, NULL, NULL, "one JSON document"},
    {{"tokenizer", CONF_STR, AT(tokenizer), 0, 0, NULL}, NULL, "FILE", "check a tokenizer instead (with --golden)"},
    {{"golden", CONF_STR, AT(golden), 0, 0, NULL}, NULL, "FILE", "golden ids of the tokenizer"},
    {{"template", CONF_STR, AT(tmpl), 0, 0, NULL}, NULL, "FILE", "check a chat template instead (with --cases)"},
    {{"cases", CONF_STR, AT(cases), 0, 0, NULL}, NULL, "FILE", "golden renderings; without --template, cases with templates of their own"},
};

static void head(const struct verify_flags *f)
{
    if (f->json)
        printf("{\"checks\":[");
    else
        printf("%-44s %10s %10s\n", "check", "error", "tolerance");
}

static int needle(const struct verify_flags *f, struct eng_verify *v, struct err *e)
{
    uint32_t lengths[CLI_LIST_MAX], depths[CLI_LIST_MAX], n_lengths = 0, n_depths = 0, top;
    int rc = f->ref ? err_set(e, ERR_INVALID, "--only needle has no reference") : ERR_OK;
    if (!rc && f->length)
        rc = cli_list("--length", f->length, 1, 1 << 24, lengths, &n_lengths, &top, e);
    if (!rc && f->depth)
        rc = cli_list("--depth", f->depth, 0, 100, depths, &n_depths, &top, e);
    if (!rc && f->json)
        head(f);
    return rc ? rc : eng_verify_needle(v, f->text, lengths, n_lengths, depths, n_depths, e);
}

static int verify_model(const struct verify_flags *f, const struct eng_config *c, unsigned *passed, unsigned *failed, struct err *e)
{
    static const unsigned what[] = {[ALL] = ENG_VERIFY_ALL, [LAYERS] = ENG_VERIFY_LAYERS, [TEXT] = ENG_VERIFY_TEXT, [NEEDLE] = 0};
    struct eng_verify v = {.c = *c, .ref = f->ref, .what = what[f->only], .out = stdout, .json = f->json};
    int rc;
    if (f->write_ref)
        return eng_verify_write(&v, f->write_ref, f->text, e);
    if (f->only == NEEDLE) {
        rc = needle(f, &v, e);
    } else {
        head(f);
        rc = f->text && !f->ref ? ERR_OK : eng_verify_run(&v, e);
        if (!rc && f->text)
            rc = eng_verify_text(&v, f->text, e);
    }
    *passed = v.passed;
    *failed = v.failed;
    return rc;
}

int verb_verify(int argc, char **argv)
{
    struct cli_engine ef = CLI_ENGINE_DEFAULTS;
    struct verify_flags f = {0};
    ef.precision = -1;
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {cli_engine_flags, cli_n_engine_flags, &ef}, {NULL, 0, NULL}};
    const char *words[1];
    size_t n_words;
    bool helped;
    struct arena a;
    struct err e = {0};
    struct eng_config c;
    unsigned passed = 0, failed = 0;
    arena_init(&a, 1u << 20);
    int rc = cli_parse(argc, argv, "MODEL [--ref DIR | --write-ref DIR] [--text FILE] [flags], or MODEL --only needle, or --only operators, or --tokenizer FILE --golden FILE, or --template FILE --cases FILE", tables, words, 1, &n_words, &helped, &a, &e);
    if (ef.precision < 0) /* f32 is what the bars are for, --precision auto looks at the fast path; a needle is asked for as it would be served */
        ef.precision = f.only != NEEDLE;
    if (!rc && !helped && (f.length || f.depth) && f.only != NEEDLE)
        rc = err_set(&e, ERR_INVALID, "--length and --depth are for --only needle");
    if (!rc && !helped && f.json && (f.tokenizer || f.golden || f.tmpl || f.cases))
        rc = err_set(&e, ERR_INVALID, "--json is for models and operators");
    if (!rc && !helped && (f.tokenizer || f.golden)) {
        if (!f.tokenizer || !f.golden || n_words)
            rc = err_set(&e, ERR_INVALID, "--tokenizer FILE and --golden FILE go together, without a model");
        else {
            struct eng_tok_verdict verdict = {0};
            rc = eng_tok_verify(f.tokenizer, f.golden, stdout, &verdict, &e);
            passed = (unsigned)verdict.passed;
            failed = (unsigned)verdict.failed;
        }
    } else if (!rc && !helped && (f.tmpl || f.cases)) {
        if (!f.cases || n_words)
            rc = err_set(&e, ERR_INVALID, "--template FILE needs --cases FILE, without a model");
        else
            rc = eng_template_verify(f.tmpl, f.cases, stdout, &passed, &failed, &e);
    } else if (!rc && !helped && f.only == OPERATORS) {
        struct eng_verify v = {.out = stdout, .json = f.json};
        head(&f);
        rc = n_words ? err_set(&e, ERR_INVALID, "operators are looked at without a model") : eng_verify_operators(&v, f.ref, &e);
        passed = v.passed;
        failed = v.failed;
    } else if (!rc && !helped) {
        if (n_words)
            ef.model = words[0];
        if (!(rc = cli_engine_config(&ef, &c, &e)))
            rc = verify_model(&f, &c, &passed, &failed, &e);
    }
    arena_free(&a);
    if (helped)
        return CLI_OK;
    if (rc)
        return cli_fail("verify", &e);
    if (f.write_ref)
        return CLI_OK;
    printf(f.json ? "],\"passed\":%u,\"failed\":%u}\n" : "%u passed, %u failed\n", passed, failed);
    return failed || !passed ? CLI_NO : CLI_OK;
}
