/* The compiler: choose the sheet, evaluate, walk its lines layer by layer, bind, lay out, cut into segments and records.
 *
 * `model` is the outer program; its word `layers` stands for blocks.layer at L = 0 .. layers-1. Conditions are decided during the
 * walk, and a branch that is not taken is never looked at. */
#include "engine/compile_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/forms.h"
#include "engine/sheet.h"

#define PLAN_BYTES_MAX ((size_t)8 << 30)
#define LAYERS_MAX 4096
#define DEPTH_MAX 16

int eng_compile_at(struct eng_compiler *c, struct err *e, int code, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(e, code, "%s:%u: %s", c->where, c->line, text);
}

/* ---- registers -------------------------------------------------------------------------------------------- */
static struct eng_reg *find_reg(struct eng_compiler *c, const char *name)
{
    for (unsigned i = 0; i < c->n_regs; i++)
        if (!strcmp(c->reg[i].name, name))
            return &c->reg[i];
    return NULL;
}

static int set_reg(struct eng_compiler *c, const char *name, const struct eng_val *v, struct err *e)
{
    struct eng_reg *r = find_reg(c, name);

    if (eng_env_has(&c->env, name))
        return eng_compile_at(c, e, ERR_FORMAT, "register `%s` has the name of a parameter", name);
    if (!strcmp(name, "tok") || !strcmp(name, "pos"))
        return eng_compile_at(c, e, ERR_FORMAT, "`%s` is given and cannot be set", name);
    if (!r && c->n_regs == ENG_REGS_MAX)
        return eng_compile_at(c, e, ERR_LIMIT, "more than %d registers", ENG_REGS_MAX);
    if (!r)
        r = &c->reg[c->n_regs++];
    *r = (struct eng_reg){name, *v};
    return ERR_OK;
}

int eng_compile_arg(struct eng_compiler *c, const struct eng_arg *a, struct eng_val *out, unsigned *n_out, struct err *e)
{
    struct eng_reg *r;

    if (a->kind == ENG_ARG_CALL)
        return eng_emit(c, a, out, n_out, e);
    *n_out = 1;
    if (!a->name)
        return eng_compile_at(c, e, ERR_FORMAT, "expected a register or a call");
    if (!strcmp(a->name, "tok")) {
        *out = (struct eng_val){.kind = ENG_VAL_TOKENS};
        return ERR_OK;
    }
    if (!(r = find_reg(c, a->name)))
        return eng_compile_at(c, e, ERR_FORMAT, "`%s` is neither a parameter nor a register set by an earlier line", a->name);
    *out = r->val;
    return ERR_OK;
}

/* ---- segments and taps ------------------------------------------------------------------------------------ */
int eng_compile_segment(struct eng_compiler *c, bool gate, struct err *e)
{
    if (c->n_ops == c->seg_op0)
        return ERR_OK;
    if (c->n_segs == c->cap_segs) {
        uint32_t cap = c->cap_segs ? 2 * c->cap_segs : 64;
        struct eng_segment *s = realloc(c->segs, cap * sizeof *s);
        if (!s)
            return err_set(e, ERR_NOMEM, "segments");
        c->segs = s;
        c->cap_segs = cap;
    }
    bool again = c->n_segs && c->env.layer >= 0 && c->segs[c->n_segs - 1].layer == c->env.layer, experts = c->n_ops == c->seg_op0 + 1 && c->ops[c->seg_op0].code == KRN_EXPERTS;
    const char *name = c->env.layer < 0 ? c->seg_name : arena_printf(c->mem, experts ? "layer %d experts" : again ? "layer %d rest" : "layer %d", (int)c->env.layer);
    if (!name)
        return err_set(e, ERR_NOMEM, "segment name");
    c->segs[c->n_segs++] = (struct eng_segment){.name = name, .layer = c->env.layer < 0 ? KRN_NO_LAYER : (uint16_t)c->env.layer, .op0 = c->seg_op0,
                                                .n_ops = c->n_ops - c->seg_op0, .gate = gate, .experts = experts, .joins = c->seg_joins};
    c->seg_joins = false;
    c->seg_op0 = c->n_ops;
    return ERR_OK;
}

int eng_compile_tap(struct eng_compiler *c, const char *name, const struct krn_view *v, struct err *e)
{
    struct eng_store *s;

    if (c->n_taps == c->cap_taps) {
        uint32_t cap = c->cap_taps ? 2 * c->cap_taps : 64;
        struct eng_tap *t = realloc(c->taps, cap * sizeof *t);
        if (!t)
            return err_set(e, ERR_NOMEM, "taps");
        c->taps = t;
        c->cap_taps = cap;
    }
    s = &c->stores[v->base];
    if (s->last < c->n_ops - 1)
        s->last = c->n_ops - 1; /* it must outlive that segment */
    c->taps[c->n_taps++] = (struct eng_tap){name, c->segs[c->n_segs - 1].layer, c->n_segs - 1, *v};
    return ERR_OK;
}

static int tap(struct eng_compiler *c, const char *name, bool fixed, struct err *e)
{
    struct eng_reg *r = find_reg(c, name);

    if (!r || r->val.kind != ENG_VAL_REG || !c->n_segs)
        return ERR_OK;
    c->stores[r->val.view.base].fixed |= fixed;
    return eng_compile_tap(c, r->name, &r->val.view, e);
}

/* ---- the walk --------------------------------------------------------------------------------------------- */
static int walk(struct eng_compiler *c, const char *where, const struct json *lines, struct err *e);

static int walk_layers(struct eng_compiler *c, struct err *e)
{
    const struct json *block = json_get(json_get(c->env.sheet, "blocks"), "layer");
    int rc = ERR_OK;

    if (!json_is(block, JSON_ARRAY))
        return eng_compile_at(c, e, ERR_FORMAT, "sheet %s has no block `layer`", c->env.sheet_name);
    c->seg_name = "embed";
    if ((rc = eng_compile_segment(c, false, e)) || (rc = tap(c, "x", false, e)))
        return rc;
    for (uint32_t l = 0; l < c->p->layers && !rc; l++) {
        eng_env_layer(&c->env, (int32_t)l);
        if (!(rc = walk(c, "layer", block, e)) && !(rc = eng_compile_segment(c, false, e)))
            rc = tap(c, "x", false, e);
    }
    eng_env_layer(&c->env, -1);
    c->seg_name = "head";
    return rc;
}

static int run_line(struct eng_compiler *c, const char *text, struct err *e)
{
    struct eng_line *l;
    struct eng_val v[ENG_VALS_MAX];
    unsigned n = 0;
    const struct json *block;
    int rc = eng_line_parse(&l, text, c->mem, e);

    if (rc)
        return eng_compile_at(c, e, rc, "%s", e ? e->msg : text);
    if (l->kind == ENG_LINE_WORD && !strcmp(l->block, "layers") && c->env.layer < 0)
        return walk_layers(c, e);
    if (l->kind == ENG_LINE_WORD)
        return eng_compile_at(c, e, ERR_FORMAT, "`%s` alone is no line", l->block);
    if (l->kind == ENG_LINE_USE) {
        if (!(block = json_get(json_get(c->env.sheet, "blocks"), l->block)))
            return eng_compile_at(c, e, ERR_FORMAT, "no block `%s` in sheet %s", l->block, c->env.sheet_name);
        return walk(c, l->block, block, e);
    }
    uint32_t ops = c->n_ops;
    rc = eng_compile_arg(c, l->value, v, &n, e);
    if (!rc && c->n_ops > ops && v[0].view.base == c->ops[c->n_ops - 1].out.base)
        c->op_reg[c->n_ops - 1] = l->regs[0];
    if (!rc && n != l->n_regs)
        rc = eng_compile_at(c, e, ERR_FORMAT, "%u registers are set from %u values", l->n_regs, n);
    for (unsigned i = 0; i < n && !rc; i++)
        rc = set_reg(c, l->regs[i], &v[i], e);
    return rc;
}

static int run_if(struct eng_compiler *c, const struct json *j, struct err *e)
{
    const char *cond = json_str(json_get(j, "if")), *where = c->where;
    struct eng_value v;
    int rc;

    for (size_t i = 0; i < j->n; i++)
        if (strcmp(j->members[i].key, "if") && strcmp(j->members[i].key, "do") && strcmp(j->members[i].key, "else"))
            return eng_compile_at(c, e, ERR_FORMAT, "expected {\"if\", \"do\", \"else\"}, found `%s`", j->members[i].key);
    if (!cond || !json_get(j, "do"))
        return eng_compile_at(c, e, ERR_FORMAT, "expected {\"if\": \"condition\", \"do\": [lines], \"else\": [lines]}");
    if ((rc = eng_env_text(&c->env, cond, &v, e)))
        return eng_compile_at(c, e, rc, "if %s: %s", cond, e ? e->msg : "");
    const struct json *lines = json_get(j, eng_v_truth(&v) ? "do" : "else");
    return lines ? walk(c, where, lines, e) : ERR_OK;
}

static int walk(struct eng_compiler *c, const char *where, const struct json *lines, struct err *e)
{
    const char *outer = c->where;
    unsigned outer_line = c->line;
    int rc = ERR_OK;

    c->where = where;
    if (++c->depth > DEPTH_MAX)
        return eng_compile_at(c, e, ERR_LIMIT, "blocks use each other more than %d deep", DEPTH_MAX);
    if (!json_is(lines, JSON_ARRAY))
        return eng_compile_at(c, e, ERR_FORMAT, "expected a list of lines");
    for (size_t i = 0; i < lines->n && !rc; i++) {
        c->where = where;
        c->line = (unsigned)i + 1;
        const struct json *x = lines->items[i];
        if (x->type == JSON_STRING)
            rc = run_line(c, x->s, e);
        else if (x->type == JSON_OBJECT)
            rc = run_if(c, x, e);
        else
            rc = eng_compile_at(c, e, ERR_FORMAT, "a line is text or {\"if\": ...}");
    }
    c->depth--;
    c->where = outer;
    c->line = outer_line;
    return rc;
}

/* ---- choosing the sheet ----------------------------------------------------------------------------------- */
/* The outer model_type first, the nested one only if no sheet claims it: K3 says kimi_linear inside. */
static const char *choose(const eng_sheets *s, const off_catalog *cat, const char **type)
{
    const struct json *top = off_catalog_config(cat);
    const char *name, *inner = json_str(json_path(top, "text_config.model_type"));

    if (off_catalog_kind(cat) == OFF_GGUF) {
        *type = json_str(json_get(top, "general.architecture"));
        return *type ? eng_sheets_match(s, "gguf", "general.architecture", *type) : NULL;
    }
    *type = json_str(json_get(top, "model_type"));
    name = *type ? eng_sheets_match(s, "hf", "model_type", *type) : NULL;
    return !name && inner ? eng_sheets_match(s, "hf", "model_type", inner) : name;
}

static int check_asserts(struct eng_compiler *c, struct err *e)
{
    const struct json *a = json_get(c->env.sheet, "assert");

    for (size_t i = 0; json_is(a, JSON_OBJECT) && i < a->n; i++) {
        const char *text = json_str(a->members[i].value);
        struct eng_value v;
        int rc = text ? eng_env_text(&c->env, text, &v, e) : err_set(e, ERR_FORMAT, "assert needs an expression");
        if (rc)
            return err_prefix(e, rc, "sheet %s: assert `%s`", c->env.sheet_name, a->members[i].key);
        if (!eng_v_truth(&v) && (rc = eng_bind_issue(&c->b, ENG_ISSUE_CONFIG, ERR_UNSUPPORTED, NULL, NULL, NULL, e, "sheet %s: %s", c->env.sheet_name, a->members[i].key)))
            return rc;
    }
    return ERR_OK;
}

/* quantization_config only confirms what the tensors in the files decide; a method without a form here is refused. */
static int check_quantization(struct eng_compiler *c, struct err *e)
{
    static const char *const known[] = {"fp8", "compressed-tensors", "mxfp4"};
    const char *method = NULL;

    for (unsigned i = 0; !c->env.cfg.gguf && i < c->env.cfg.n_roots; i++) {
        const struct json *q = json_get(c->env.cfg.root[i], "quantization_config");
        eng_cfg_read_all(&c->env.cfg, q);
        if (json_str(json_get(q, "quant_method")))
            method = json_str(json_get(q, "quant_method"));
    }
    for (size_t i = 0; method && i < sizeof known / sizeof *known; i++)
        if (!strcmp(method, known[i]))
            return ERR_OK;
    return !method ? ERR_OK : eng_bind_issue(&c->b, ENG_ISSUE_DTYPE, ERR_UNSUPPORTED, NULL, "fp8, compressed-tensors or mxfp4", method, e,
                                             "quantization_config: expected quant_method fp8, compressed-tensors or mxfp4, found %s", method);
}

struct unread { struct eng_compiler *c; struct err *e; int rc; };
static void on_unread(void *ctx, const char *key, const char *value, bool fatal)
{
    struct unread *u = ctx;

    if (u->rc)
        return;
    if (fatal)
        u->rc = eng_bind_issue(&u->c->b, ENG_ISSUE_CONFIG, ERR_FORMAT, NULL, NULL, value, u->e, "config key %s = %s bears on the result and sheet %s never reads it", key, value,
                               u->c->env.sheet_name);
    else if (u->c->rep)
        eng_report_add(u->c->rep, ENG_ISSUE_INERT, 0, NULL, NULL, value, key);
}

/* ---- the passes ------------------------------------------------------------------------------------------- */
static bool in_place(enum krn_opcode code)
{
    const struct eng_opdef *d = eng_op_of(code);
    return d && d->in_place;
}

static int lay_out(struct eng_compiler *c, struct err *e)
{
    struct eng_plan *p = c->p;
    struct krn_view **extra = calloc(c->n_taps + 1, sizeof *extra);
    int rc;

    if (!extra)
        return err_set(e, ERR_NOMEM, "taps");
    for (uint32_t i = 0; i < c->n_taps; i++)
        extra[i] = &c->taps[i].view;
    extra[c->n_taps] = &p->logits;
    rc = eng_layout(c->ops, c->n_ops, in_place, c->stores, c->n_stores, extra, c->n_taps + 1, p->arena_cols, e);
    free(extra);
    return rc;
}

static int finish_model(struct eng_compiler *c, struct err *e)
{
    struct eng_reg *r = find_reg(c, "logits");
    int rc;

    if (!r || r->val.kind != ENG_VAL_REG)
        return err_set(e, ERR_FORMAT, "sheet %s: model sets no `logits`", c->env.sheet_name);
    if (r->val.view.rows != KRN_ROWS_PICKED || r->val.view.heads != 1 || r->val.view.dim != c->p->vocab)
        return err_set(e, ERR_FORMAT, "sheet %s: logits must be picked rows of %u, found %u", c->env.sheet_name, c->p->vocab, r->val.view.heads * r->val.view.dim);
    c->p->logits = r->val.view;
    if ((rc = eng_compile_segment(c, false, e)))
        return rc;
    c->stores[r->val.view.base].fixed = true;
    return tap(c, "final_norm", true, e);
}

/* A stack of matrices, one a head, whose rows a sum runs along: tiled when no tile lies across two heads. */
static void tile_heads(struct eng_compiler *c, uint32_t i)
{
    struct krn_weight *w = &c->b.weights[i];
    const struct eng_tensor *t = &c->b.tensors[i];

    if (t->n_dims == 3 && t->dims[t->transposed ? 2 : 1] % KRN_TILE_ROWS == 0 && krn_slot_can(w->type))
        w->layout = KRN_TILED;
}

/* Linears, experts and embeddings read tiled matrices where there is such a layout; everything else stays as published. */
static void choose_layouts(struct eng_compiler *c)
{
    for (uint32_t i = 0; i < c->b.n; i++) { /* values and scales apart in the files become one type */
        const struct eng_tensor *t = &c->b.tensors[i];
        enum krn_type slot = t->form && t->scales != KRN_NO_WEIGHT ? eng_form_slot(eng_form_kind(t->form), t->type, c->b.tensors[t->scales].type) : KRN_TYPE_COUNT;
        if (slot != KRN_TYPE_COUNT)
            c->b.weights[i].type = slot;
    }
    for (uint32_t i = 0; i < c->n_ops; i++) {
        const struct krn_op *op = &c->ops[i];
        if (op->code == KRN_ATTEND_MLA) {
            tile_heads(c, op->weight[1]);
            if (op->u.attend.turned)
                tile_heads(c, op->weight[0]);
        }
        bool experts = op->code == KRN_EXPERTS;
        if (op->code != KRN_LINEAR && op->code != KRN_EMBED && !experts)
            continue;
        for (unsigned s = 0; s < (experts ? 3 : 1); s++)
            for (uint32_t x = 0; x < (experts ? op->u.experts.n : 1) && op->weight[s] != KRN_NO_WEIGHT && x < c->b.n - op->weight[s]; x++) { /* `check` goes on without missing experts */
                struct krn_weight *w = &c->b.weights[op->weight[s] + x];
                const struct eng_tensor *t = &c->b.tensors[op->weight[s] + x];
                if (!t->transposed && t->n_dims == 2 && krn_slot_can(w->type))
                    w->layout = KRN_TILED;
            }
    }
}

static void keep_rules(struct eng_compiler *c)
{
    const struct json *keep = json_get(c->env.sheet, "keep");

    for (uint32_t i = 0; json_is(keep, JSON_ARRAY) && i < c->b.n; i++)
        for (size_t k = 0; k < keep->n && c->b.tensors[i].name; k++)
            if (json_str(keep->items[k]) && eng_glob(keep->items[k]->s, c->b.tensors[i].name)) {
                c->b.tensors[i].keep_precision = true;
                break;
            }
}

static int compile_sheet(struct eng_compiler *c, struct err *e)
{
    struct eng_plan *p = c->p;
    struct unread u = {c, e, ERR_OK};
    int rc;

    if ((rc = check_quantization(c, e)) || (rc = eng_env_u32(&c->env, "ctx", &p->ctx, e)) || (rc = eng_serving(c, e)) || (rc = check_asserts(c, e)) || (rc = eng_notes(c, e)) || (rc = eng_formats(c, e)) || (rc = eng_own_template(c, e)) ||
        (rc = eng_env_u32(&c->env, "layers", &p->layers, e)) || (rc = eng_env_u32(&c->env, "hidden", &p->hidden, e)) || (rc = eng_env_u32(&c->env, "vocab", &p->vocab, e)))
        return rc;
    if (p->layers > LAYERS_MAX)
        return err_set(e, ERR_LIMIT, "%u layers, more than %d", p->layers, LAYERS_MAX);
    c->seg_name = "model";
    if ((rc = walk(c, "model", json_get(c->env.sheet, "model"), e)) || (rc = finish_model(c, e)) || (rc = eng_bind_rest(&c->b, e)))
        return rc;
    eng_cfg_unread(&c->env.cfg, json_get(c->env.sheet, "inert"), on_unread, &u);
    if (u.rc)
        return u.rc;
    choose_layouts(c);
    keep_rules(c);
    return (rc = eng_parts(c, e)) ? rc : lay_out(c, e);
}

/* Hands what was gathered to the plan, whose close frees it. */
static void hand_over(struct eng_compiler *c)
{
    struct eng_plan *p = c->p;

    p->ops = c->ops;
    p->op_reg = c->op_reg;
    p->n_ops = c->n_ops;
    p->segments = c->segs;
    p->n_segments = c->n_segs;
    p->taps = c->taps;
    p->n_taps = c->n_taps;
    p->tensors = c->b.tensors;
    p->weights = c->b.weights;
    p->n_weights = c->b.n;
    c->b.tensors = NULL;
    c->b.weights = NULL;
    free(c->stores);
}

static void note(struct eng_report *rep, const struct err *e)
{
    if (rep && e->code)
        eng_report_add(rep, ENG_ISSUE_SHEET, e->code, NULL, NULL, NULL, e->msg);
}

static int compile_with(struct eng_compiler *c, const char *name, const struct json *merged, struct err *e)
{
    struct buf text;
    int rc;

    buf_init(&text, 16u << 20);
    json_put(&text, merged);
    if (!text.failed)
        hash_sha256(text.data, text.len, c->p->sheet_digest);
    rc = text.failed ? err_set(e, ERR_NOMEM, "sheet text") : ERR_OK;
    buf_free(&text);
    if (!rc && !(rc = eng_env_open(&c->env, name, merged, c->cat, c->mem, e)) && !(rc = eng_binder_open(&c->b, &c->env, c->rep, e)))
        rc = compile_sheet(c, e);
    if (!rc && !c->b.first.code && !c->bind_only)
        rc = eng_segment_records(c, e);
    if (c->rep)
        c->rep->bound = c->b.n_seen; /* also when the walk ended early: check suggests by it */
    if (!rc && c->b.first.code) { /* noted in the report on the way */
        if (e)
            *e = c->b.first;
        return c->b.first.code;
    }
    if (rc && e)
        note(c->rep, e);
    return rc;
}

int eng_plan_compile_sheet(struct eng_plan **out, const eng_sheets *sheets, const char *name, const off_catalog *cat, const struct eng_plan_options *o,
                           struct eng_report *rep, struct err *e)
{
    struct eng_compiler *c = calloc(1, sizeof *c);
    struct eng_plan *p = calloc(1, sizeof *p);
    const struct json *merged;
    int rc;

    *out = NULL;
    if (!c || !p) {
        free(c);
        free(p);
        return err_set(e, ERR_NOMEM, "plan");
    }
    arena_init(&p->mem, PLAN_BYTES_MAX);
    c->cat = cat;
    c->p = p;
    c->rep = rep;
    c->bind_only = o && o->bind_only;
    c->ctx_asked = o ? o->ctx : 0;
    c->tile_bytes = o ? o->tile_bytes : 0;
    c->mem = &p->mem;
    c->where = name;
    if (!(rc = eng_sheets_merge(sheets, name, &p->mem, &merged, e)) && !(p->sheet = arena_strdup(&p->mem, name, strlen(name))))
        rc = err_set(e, ERR_NOMEM, "plan");
    if (rc)
        note(rep, e ? e : &(struct err){.code = rc});
    else
        rc = compile_with(c, p->sheet, merged, e);
    hand_over(c);
    free(c);
    /* With problems in a report the plan is still good to be looked at: ops, counts, states. Only a clean one is given out. */
    if (rc && !(o && o->bind_only && p->n_segments && p->logits.dim))
        eng_plan_close(p);
    else
        *out = p;
    return rc;
}

int eng_plan_compile(struct eng_plan **out, const off_catalog *cat, const struct eng_plan_options *o, struct eng_report *rep, struct err *e)
{
    eng_sheets *s;
    struct err own = {0};
    const char *name, *type;
    int rc = eng_sheets_open(&s, NULL, e ? e : &own);

    *out = NULL;
    if (rc)
        return rc;
    name = choose(s, cat, &type);
    if (rep) {
        rep->model_type = type ? arena_strdup(&rep->mem, type, strlen(type)) : NULL;
        rep->sheet = name ? arena_strdup(&rep->mem, name, strlen(name)) : NULL;
    }
    if (name) {
        rc = eng_plan_compile_sheet(out, s, name, cat, o, rep, e ? e : &own);
    } else {
        rc = err_set(e ? e : &own, ERR_UNSUPPORTED, "no sheet for %s `%s`%s", off_catalog_kind(cat) == OFF_GGUF ? "architecture" : "model_type", type ? type : "(none)",
                     rep ? "" : "; `sluice check` names the nearest one and what is missing");
        note(rep, e ? e : &own);
    }
    eng_sheets_close(s);
    return rc;
}
