#include "engine/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "engine/ops.h"
#include "engine/sheet.h"

static void count_dtypes(const off_catalog *c, struct eng_report *r)
{
    struct eng_dtype_use use[KRN_TYPE_COUNT] = {{0}};
    size_t n = off_catalog_count(c);

    for (size_t i = 0; i < n; i++) {
        const struct off_tensor *t = off_catalog_at(c, i);
        use[t->type].tensors++;
        use[t->type].bytes += t->bytes;
    }
    r->n_dtypes = 0;
    for (int t = 0; t < KRN_TYPE_COUNT; t++)
        if (use[t].tensors) {
            r->dtype[r->n_dtypes] = use[t];
            r->dtype[r->n_dtypes++].name = krn_types[t].name;
        }
}

/* What a call's arithmetic depends on: its operator and how its first weight is stored. */
static void use_of(const struct eng_plan *p, const struct krn_op *op, struct eng_op_use *u)
{
    const struct eng_opdef *d = eng_op_of(op->code);

    *u = (struct eng_op_use){.code = op->code, .name = d ? d->name : "copy", .form = "", .type = KRN_F32};
    if (op->code == KRN_COPY)
        u->name = "copy";
    for (unsigned k = 0; k < op->n_weights && !u->weighted; k++)
        if (op->weight[k] != KRN_NO_WEIGHT) {
            const struct eng_tensor *t = &p->tensors[op->weight[k]];
            bool turned = t->transposed && !(op->code == KRN_ATTEND_MLA && op->u.attend.turned);
            u->weighted = true;
            u->type = p->weights[op->weight[k]].type; /* as kernels read it */
            u->form = t->map ? "mapped" : turned ? "transposed" : t->form ? t->form : "";
        }
}

static enum krn_support support(const struct krn_backend_api *b, const struct eng_op_use *u)
{
    return u->weighted && (!strcmp(u->form, "mapped") || !strcmp(u->form, "transposed")) ? KRN_MISSING : b->supports(u->code, u->type);
}

void eng_check_operators(const struct eng_plan *p, const struct krn_backend_api *backend, struct eng_report *r)
{
    r->n_ops = 0;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct eng_op_use u;
        size_t k = 0;
        use_of(p, &p->ops[i], &u);
        while (k < r->n_ops && (r->op[k].code != u.code || r->op[k].type != u.type || r->op[k].weighted != u.weighted || strcmp(r->op[k].form, u.form)))
            k++;
        if (k == sizeof r->op / sizeof *r->op)
            continue;
        if (k == r->n_ops) {
            u.support = support(backend, &u);
            r->op[r->n_ops++] = u;
        }
        r->op[k].calls++;
    }
    for (size_t k = 0; k < r->n_ops; k++) {
        const struct eng_op_use *u = &r->op[k];
        char text[200];
        bool packed = u->weighted && strcmp(u->form, "plain");
        if (u->support != KRN_MISSING)
            continue;
        snprintf(text, sizeof text, "%s%s%s: no kernel on %s (%zu calls)", u->name, u->weighted ? " on " : "",
                 packed ? u->form : u->weighted ? krn_types[u->type].name : "", backend->name, u->calls);
        eng_report_add(r, ENG_ISSUE_OPERATOR, ERR_UNSUPPORTED, NULL, NULL, NULL, text);
    }
}

/* The sheet with most of the files' names bound (then fewest problems), if that is at least a fifth of them. */
static int suggest(const off_catalog *c, struct eng_report *r, struct err *e)
{
    struct eng_plan_options o = {.bind_only = true};
    eng_sheets *s;
    const char *best = NULL;
    size_t most = 0, fewest = 0;
    int rc = eng_sheets_open(&s, NULL, e);

    if (rc)
        return rc;
    for (size_t i = 0; i < eng_sheets_count(s); i++) {
        struct eng_report one;
        struct eng_plan *p = NULL;
        struct err own;
        if (eng_sheets_abstract(s, i))
            continue;
        eng_report_init(&one);
        eng_plan_compile_sheet(&p, s, eng_sheets_name(s, i), c, &o, &one, &own);
        size_t against = eng_report_problems(&one);
        if (one.bound > most || (one.bound == most && best && against < fewest)) {
            most = one.bound;
            fewest = against;
            best = eng_sheets_name(s, i);
        }
        eng_plan_close(p);
        eng_report_free(&one);
    }
    if (best && 5 * most >= off_catalog_count(c)) {
        struct eng_plan *p = NULL;
        struct err own;
        r->suggestion = arena_strdup(&r->mem, best, strlen(best));
        r->suggestion_bound = most;
        eng_plan_compile_sheet(&p, s, best, c, &o, r, &own); /* its differences, as findings */
        eng_plan_close(p);
    }
    eng_sheets_close(s);
    return ERR_OK;
}

/* One question as a client would send it: a template that cannot render this renders nothing. */
static void trial_chat(struct eng_model *m, struct eng_report *r)
{
    static const char text[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}";
    struct arena a;
    struct json *body;
    struct eng_ids ids = {.max = 1u << 20};
    struct err e = {0};

    arena_init(&a, 64u << 20);
    int rc = json_parse(&body, text, sizeof text - 1, &json_strict, &a, &e);
    if (!rc)
        rc = eng_chat_prompt(m->chat, body, 0, &a, &ids, NULL, &e);
    if (rc)
        eng_report_add(r, ENG_ISSUE_TEMPLATE, rc, NULL, NULL, NULL, e.msg);
    r->n_trial = (uint32_t)ids.n;
    eng_ids_free(&ids);
    arena_free(&a);
}

static void check_text(const off_catalog *c, struct eng_plan *p, struct eng_report *r)
{
    struct eng_model m = {.catalog = (off_catalog *)c, .plan = p}; /* read only */
    struct err e = {0};
    size_t n = 0;
    int rc = eng_model_attach(&m, &e);

    if (rc)
        eng_report_add(r, m.tok && m.template_text && !m.chat ? ENG_ISSUE_TEMPLATE : ENG_ISSUE_TOKENIZER, rc, NULL, NULL, NULL, e.msg);
    r->n_tokens = m.tok ? eng_tok_count(m.tok) : 0;
    r->n_template = (uint32_t)m.template_len;
    r->temperature = m.temperature;
    r->top_p = m.top_p;
    r->top_k = m.top_k;
    r->sampling_from_files = m.sampling_from_files;
    const int32_t *eos = m.tok ? eng_tok_eos(m.tok, &n) : NULL;
    for (size_t i = 0; i < n && r->n_stop < sizeof r->stop / sizeof *r->stop; i++) {
        size_t len;
        const char *piece = eng_tok_piece(m.tok, eos[i], &len);
        if (piece && (piece = arena_strdup(&r->mem, piece, len)))
            r->stop[r->n_stop++] = piece;
    }
    if (m.chat)
        trial_chat(&m, r);
    eng_model_detach(&m);
}

int eng_check(const off_catalog *c, const struct krn_backend_api *backend, struct eng_report *r, struct eng_plan **plan, struct err *e)
{
    struct eng_plan_options o = {.bind_only = true};
    int rc;

    *plan = NULL;
    for (size_t i = 0; i < off_catalog_problems(c); i++)
        eng_report_add(r, ENG_ISSUE_FILE, off_catalog_problem(c, i)->code, NULL, NULL, NULL, off_catalog_problem(c, i)->msg);
    count_dtypes(c, r);
    r->names = off_catalog_count(c);
    rc = eng_plan_compile(plan, c, &o, r, e);
    if (rc == ERR_NOMEM)
        return rc;
    if (rc && !r->sheet && (rc = suggest(c, r, e)))
        return rc;
    if (*plan) {
        eng_check_operators(*plan, backend, r);
        check_text(c, *plan, r);
    }
    return ERR_OK;
}
