#include "engine/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "engine/model.h"
#include "engine/ops.h"
#include "engine/sheet.h"
#include "kernels/gpu.h"

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

const struct eng_check_backend eng_check_backends[ENG_BACKEND_COUNT] = {[ENG_BACKEND_CPU] = {"cpu", &krn_cpu}, [ENG_BACKEND_VULKAN] = {"vulkan", &krn_vulkan}};

static enum krn_support support(enum eng_backend b, const struct eng_op_use *u)
{
    const struct krn_backend_api *api = eng_check_backends[b].api;

    return u->weighted && (!strcmp(u->form, "mapped") || !strcmp(u->form, "transposed")) ? KRN_MISSING : api->supports(u->code, u->type);
}

void eng_check_operators(const struct eng_plan *p, enum eng_backend backend, struct eng_report *r)
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
            for (int b = 0; b < ENG_BACKEND_COUNT; b++)
                u.support[b] = support((enum eng_backend)b, &u);
            r->op[r->n_ops++] = u;
        }
        r->op[k].calls++;
    }
    for (size_t k = 0; k < r->n_ops; k++) {
        const struct eng_op_use *u = &r->op[k];
        char text[200];
        bool packed = u->weighted && strcmp(u->form, "plain");
        if (u->support[backend] != KRN_MISSING)
            continue;
        snprintf(text, sizeof text, "%s%s%s: no kernel on %s (%zu calls)", u->name, u->weighted ? " on " : "",
                 packed ? u->form : u->weighted ? krn_types[u->type].name : "", eng_check_backends[backend].name, u->calls);
        eng_report_add(r, ENG_ISSUE_OPERATOR, ERR_UNSUPPORTED, NULL, NULL, NULL, text);
    }
}

bool eng_check_page(struct buf *b)
{
    static const char *const words[] = {"missing", "plain C", "kernel"};

    for (size_t i = 0; i < eng_n_ops; i++) {
        const struct eng_opdef *d = &eng_ops[i];
        eng_op_markdown(b, d);
        if (d->code == KRN_OP_NONE)
            buf_str(b, "\nA view: no backend runs anything.\n\n");
        else {
            buf_str(b, "\nBackends:");
            for (int k = 0; k < ENG_BACKEND_COUNT; k++) {
                const struct krn_backend_api *api = eng_check_backends[k].api;
                buf_printf(b, "%s %s %s", k ? "," : "", eng_check_backends[k].name, words[api->supports(d->code, KRN_F32)]);
            }
            if (d->tolerance > 0)
                buf_printf(b, ". Within %g of the known answers.\n\n", d->tolerance);
            else
                buf_str(b, ". Equal to the known answers.\n\n");
        }
    }
    return !b->failed;
}

/* ---- parts ------------------------------------------------------------------------------------------------ */
/* The last entry takes what no other has room for. */
static struct eng_part_use *part_of(struct eng_report *r, const char *name)
{
    size_t i = 0;

    name = name ? name : "other";
    while (i < r->n_parts && strcmp(r->part[i].name, name))
        i++;
    if (i == r->n_parts && i + 1 < sizeof r->part / sizeof *r->part)
        r->part[r->n_parts++] = (struct eng_part_use){.name = arena_strdup(&r->mem, name, strlen(name))};
    return &r->part[i < r->n_parts ? i : r->n_parts - 1];
}

static uint64_t span_bytes(const struct eng_tensor *t)
{
    uint64_t n = 0;

    for (uint32_t k = 0; k < t->n_spans; k++)
        n += t->spans[k].row_bytes * t->spans[k].n_rows * t->spans[k].n_outer;
    return n;
}

/* Interleaved matrices share their scales, which every view of them binds whole: those of a layer stand close together. */
struct met { uint64_t offset[64]; uint32_t file[64]; unsigned n; };
static bool met_before(struct met *m, const struct off_span *s)
{
    for (unsigned i = 0; i < 64 && i < m->n; i++)
        if (m->offset[i] == s->offset && m->file[i] == s->file)
            return true;
    m->offset[m->n % 64] = s->offset;
    m->file[m->n++ % 64] = s->file;
    return false;
}

/* Of the routed experts a token meets k of n; of everything else all, the table of the embedding included. */
static void count_active(const struct eng_plan *p, struct eng_report *r)
{
    r->active = r->values;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct krn_op *op = &p->ops[i];
        uint64_t values = 0;
        if (op->code != KRN_EXPERTS || op->in[1].dim >= op->u.experts.n)
            continue;
        for (unsigned k = 0; k < op->n_weights; k++)
            for (uint32_t x = 0; op->weight[k] != KRN_NO_WEIGHT && x < op->u.experts.n && op->weight[k] + x < p->n_weights; x++)
                values += (uint64_t)p->weights[op->weight[k] + x].rows * p->weights[op->weight[k] + x].cols;
        r->active -= values / op->u.experts.n * (op->u.experts.n - op->in[1].dim);
    }
}

static int count_parts(const struct eng_plan *p, struct eng_report *r, struct err *e)
{
    bool *scale = calloc(p->n_weights + 1, sizeof *scale);
    struct met met = {.n = 0};

    if (!scale)
        return err_set(e, ERR_NOMEM, "parts");
    for (uint32_t i = 0; i < p->n_weights; i++)
        if (p->tensors[i].scales != KRN_NO_WEIGHT)
            scale[p->tensors[i].scales] = true;
    for (uint32_t i = 0; i < p->n_weights; i++) {
        struct eng_part_use *u = part_of(r, p->tensors[i].part);
        if (!scale[i] || !p->tensors[i].n_spans || !met_before(&met, p->tensors[i].spans))
            u->bytes += span_bytes(&p->tensors[i]);
        if (scale[i])
            continue;
        u->tensors++;
        u->values += (uint64_t)p->weights[i].rows * p->weights[i].cols;
        r->values += (uint64_t)p->weights[i].rows * p->weights[i].cols;
    }
    free(scale);
    count_active(p, r);
    return ERR_OK;
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

int eng_check(const off_catalog *c, struct eng_report *r, struct eng_plan **plan, struct err *e)
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
        eng_check_operators(*plan, ENG_BACKEND_CPU, r);
        if ((rc = count_parts(*plan, r, e))) {
            eng_plan_close(*plan);
            *plan = NULL;
            return rc;
        }
        check_text(c, *plan, r);
    }
    return ERR_OK;
}
