/* `serve` and `say` of a sheet, and what check makes of them, of stop tokens and of a chat template. */
#include <unistd.h>

#include "engine/check.h"
#include "engine/model.h"
#include "engine/sheet.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

static struct err e;
static const char fixture[] = "tests/data/models/llama";

/* The llama fixture under a sheet of its own that adds `text`. */
static int compile(const char *text, uint32_t ctx, struct eng_plan **p)
{
    char *dir = mm_tmpdir(), *sheet;
    off_catalog *c;
    eng_sheets *s;
    struct eng_plan_options o = {.ctx = ctx};
    ck_assert(asprintf(&sheet, "{\"sheet\":\"mine\",\"extends\":\"llama\",%s}", text) > 0);
    mm_text(dir, "mine.json", sheet);
    OK(off_catalog_open(&c, fixture, 0, &e));
    OK(eng_sheets_open(&s, dir, &e));
    int rc = eng_plan_compile_sheet(p, s, "mine", c, &o, NULL, &e);
    eng_sheets_close(s);
    off_catalog_close(c);
    mm_rmdir(dir);
    free(sheet);
    return rc;
}

START_TEST(core)
{
    struct eng_plan *p;
    OK(compile("\"serve\":{\"ctx\":\"min(ctx, 640)\",\"seqs\":\"2\",\"chunk\":\"heads * 8\",\"temperature\":\"0.5\",\"top_k\":\"7\",\"stop\":[\"<x>\",\"<y>\"]},"
               "\"say\":{\"this holds\":\"hf && layers > 0\",\"this does not\":\"gguf\"}", 0, &p));
    ck_assert(p->serve.ctx == 640 && p->ctx_use == 640 && p->serve.seqs == 2 && p->serve.chunk % 8 == 0 && p->serve.top_k == 7);
    ck_assert(p->serve.temperature > 0.49f && p->serve.temperature < 0.51f && p->serve.n_stop == 2 && !strcmp(p->serve.stop[1], "<y>"));
    ck_assert(p->n_notes == 1 && !strcmp(p->notes[0], "this holds"));
    eng_plan_close(p);
    OK(compile("\"say\":{\"asked for more than is usual\":\"ctx_use > 600\"}", 700, &p)); /* what was asked rules over the sheet */
    ck_assert(p->ctx_use == 700 && p->serve.ctx != 700 && p->n_notes == 1 && p->ctx_switch == 0);
    eng_plan_close(p);
}
END_TEST

START_TEST(errors)
{
    static const struct { const char *text, *says; } bad[] = {
        {"\"serve\":{\"speed\":\"9\"}", "serve has no `speed`"}, {"\"serve\":{\"top_p\":\"1.5\"}", "serve.top_p: expected a number from 0 to 1, found 1.5"},
        {"\"serve\":{\"ctx\":\"ctx_use\"}", "cannot decide it"}, {"\"serve\":{\"seqs\":4}", "serve.seqs: expected an expression in quotes"},
        {"\"serve\":{\"stop\":[\"\"]}", "serve.stop: expected tokens as text"}, {"\"say\":{\"x\":\"nobody\"}", "say `x`: `nobody`"},
        {"\"template\":\"text\"", "template: expected a list of lines"}, {"\"template\":[]", "template: expected a list of lines"}, {"\"template\":[\"a\",1]", "template: expected a list of lines"}};
    struct eng_plan *p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = compile(bad[i].text, 0, &p);
        ck_assert_msg(rc && !p && strstr(e.msg, bad[i].says), "%s: expected \"%s\" in \"%s\"", bad[i].text, bad[i].says, e.msg);
    }
}
END_TEST

static void copy(const char *from, const char *dir, const char *name)
{
    char path[300];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", from, name);
    if (access(path, R_OK))
        return;
    void *text = mm_read(path, &n);
    mm_write(mm_path(dir, name), text, n);
    free(text);
}

/* The fixture with another generation_config and template. */
static void examine(const char *generation, const char *template, struct eng_report *r)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    char *dir = mm_tmpdir();
    off_catalog *c;
    struct eng_plan *p;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        copy(fixture, dir, files[i]);
    if (generation)
        mm_text(dir, "generation_config.json", generation);
    if (template)
        mm_text(dir, "chat_template.jinja", template);
    OK(off_catalog_open(&c, dir, 1, &e));
    eng_report_init(r);
    OK(eng_check(c, r, &p, &e));
    eng_plan_close(p);
    off_catalog_close(c);
    mm_rmdir(dir);
}

START_TEST(files_rule)
{
    struct eng_report r;
    examine(NULL, NULL, &r);
    ck_assert(!r.sampling_from_files && r.temperature > 0.59f && r.temperature < 0.61f && r.n_template && r.n_trial && r.n_stop >= 1);
    ck_assert_uint_eq(eng_report_problems(&r), 0);
    eng_report_free(&r);
    examine("{\"temperature\":0.25,\"eos_token_id\":[508,3]}", "{{ messages[0].content }}", &r); /* a set of the files counts as a whole */
    ck_assert(r.sampling_from_files && r.temperature > 0.24f && r.temperature < 0.26f && r.top_p > 0.99f && r.top_k == 0 && r.n_stop >= 2);
    ck_assert_uint_eq(eng_report_problems(&r), 0);
    eng_report_free(&r);
}
END_TEST

START_TEST(templates)
{
    static const char *const bad[] = {"{% if %}", "{{ messages[0].content.nothing.at_all }}", "{{ raise_exception('never a user') }}"};
    struct eng_report r;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        examine(NULL, bad[i], &r);
        ck_assert_msg(r.total[ENG_ISSUE_TEMPLATE] == 1 && eng_report_problems(&r) == 1, "%s: %zu problems", bad[i], eng_report_problems(&r));
        eng_report_free(&r);
    }
}
END_TEST

SUITE("engine", "serving", core, errors, files_rule, templates)
