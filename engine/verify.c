#include "engine/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/session.h"
#include "engine/verify_router.h"

/* Tolerances, of max |a - b| / max |b|. Block-quantised weights are compared with dequantise-then-F32. Off the f32 path (int8
 * activations, f16 pages) there is no bar for a layer, so the last number only catches what is broken: there the text's bar is
 * the margin of the reference. */
#define TOL_F32 1e-4
#define TOL_QUANT_F32 2e-3
#define TOL_LOOSE 5e-2

struct run {
    struct eng_verify *v;
    eng_session *s;
    off_catalog *acts;        /* reference activations, NULL for goldens */
    const char *prompt;
    uint32_t row0, n_rows, n_all; /* rows of this chunk, rows of the prompt */
    double *worst;            /* [n_taps + 1] relative error so far; the last one: logits */
    double *scale;            /* max |b| of each tap over the prompt */
    bool *have;
    float *ref;               /* scratch for rows */
    size_t ref_floats;
    unsigned *wrong;          /* rows whose choice differs: of experts, by tap; of the largest logit, the last one */
    bool far;                 /* the prompt and its answer pass the plan's ctx_switch */
    struct err e;
    int rc;
};

void eng_verify_line(struct eng_verify *v, const char *name, double error, double tolerance)
{
    bool ok = error <= tolerance; /* NaN fails */
    fprintf(v->out, "%-44s %10.3g %10.3g  %s\n", name, error, tolerance, ok ? "ok" : "FAILED");
    if (ok)
        v->passed++;
    else
        v->failed++;
}

static void count_line(struct eng_verify *v, const char *name, unsigned wrong, unsigned of)
{
    char label[160];
    snprintf(label, sizeof label, "%s (%u of %u)", name, of - wrong, of);
    eng_verify_line(v, label, wrong, 0);
}

static int read_all(int fd, void *dst, size_t n, uint64_t at, struct err *e)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = pread(fd, (char *)dst + done, n - done, (off_t)(at + done));
        if (k <= 0)
            return err_set(e, ERR_IO, "reference: short read at %llu", (unsigned long long)(at + done));
        done += (size_t)k;
    }
    return ERR_OK;
}

/* The whole reference tensor of a name (F32 or I32) into r->ref; *rows, *cols its shape. ERR_NOTFOUND: the folder has none. */
static int load_ref(struct run *r, const char *name, enum krn_type type, uint64_t *rows, uint64_t *cols, struct err *e)
{
    const struct off_tensor *t = off_catalog_find(r->acts, name, strlen(name));
    if (!t)
        return err_set(e, ERR_NOTFOUND, "reference has no %s", name);
    if (t->type != type || t->n_dims != 2)
        return err_set(e, ERR_FORMAT, "reference %s: expected %s with two axes", name, krn_types[type].name);
    if (t->bytes / sizeof(float) > r->ref_floats) {
        float *p = realloc(r->ref, t->bytes);
        if (!p)
            return err_set(e, ERR_NOMEM, "reference %s of %llu bytes", name, (unsigned long long)t->bytes);
        r->ref = p;
        r->ref_floats = t->bytes / sizeof(float);
    }
    *rows = t->dims[0];
    *cols = t->dims[1];
    return read_all(off_catalog_file(r->acts, t->file)->fd, r->ref, t->bytes, t->offset, e);
}

static uint32_t argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

/* Compares the chunk's rows of one register with the reference tensor "<prompt>.<name>". A reference that has fewer rows holds
 * the last ones. */
static void compare(struct run *r, uint32_t k, const char *name, const struct krn_view *view, bool logits)
{
    char full[256];
    uint64_t rows = 0, cols = 0;
    snprintf(full, sizeof full, "%s.%s", r->prompt, name);
    if (r->rc)
        return;
    int rc = load_ref(r, full, KRN_F32, &rows, &cols, &r->e);
    if (rc == ERR_NOTFOUND)
        return;
    uint32_t width = view->heads * view->dim;
    if (!rc && (cols != width || rows > r->n_all))
        rc = err_set(&r->e, ERR_FORMAT, "reference %s: expected at most [%u, %u], found [%llu, %llu]", full, r->n_all, width,
                     (unsigned long long)rows, (unsigned long long)cols);
    if ((r->rc = rc))
        return;
    uint32_t skip = r->n_all - (uint32_t)rows;
    for (uint64_t i = 0; i < rows * cols; i++)
        if (fabs((double)r->ref[i]) > r->scale[k])
            r->scale[k] = fabs((double)r->ref[i]);
    for (uint32_t i = 0; i < r->n_rows; i++) {
        if (r->row0 + i < skip)
            continue;
        const float *a = eng_session_row(r->s, view, i), *b = r->ref + (size_t)(r->row0 + i - skip) * cols;
        for (uint32_t c = 0; c < width; c++) {
            double d = fabs((double)a[c] - (double)b[c]);
            if (!(d <= r->worst[k]))
                r->worst[k] = d;
        }
        if (logits && argmax(a, width) != argmax(b, width))
            r->wrong[k]++;
    }
    r->have[k] = true;
}

static void tap_name(const struct eng_tap *t, char *name, size_t n)
{
    if (!strcmp(t->reg, "final_norm"))
        snprintf(name, n, "final_norm");
    else if (t->layer == KRN_NO_LAYER)
        snprintf(name, n, "embed");
    else if (strcmp(t->reg, "x"))
        snprintf(name, n, "layer.%u.%s", t->layer, t->reg);
    else
        snprintf(name, n, "layer.%u", t->layer);
}

/* All arithmetic and all pages in f32. */
static bool is_f32(const struct run *r)
{
    const struct eng_config *c = eng_session_config(r->s);
    return c->precision == KRN_PREC_F32 && c->kv_type == KRN_F32;
}

/* Row i of the chunk: its experts against want, and where they are the same their weights. */
static int compare_choice(struct run *r, uint32_t k, uint32_t i, const float *bias, const int32_t *want, const float *weights, struct err *e)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    const struct eng_segment *s = &p->segments[p->taps[k].segment];
    const struct krn_op *op = &p->ops[s->op0 + s->n_ops - 1];
    const float *routing = eng_session_row(r->s, &op->out, i), *scores = eng_session_row(r->s, &op->in[0], i);
    enum eng_choice choice;
    float most = 0;
    for (uint32_t x = 0; x < op->in[0].dim; x++)
        most = fabsf(scores[x]) > most ? fabsf(scores[x]) : most;
    int rc = eng_router_compare(op, bias, scores, routing, want, most * (float)(is_f32(r) ? TOL_F32 : TOL_LOOSE), &choice, e);
    r->wrong[k] += choice == ENG_CHOICE_OTHER;
    for (uint32_t x = 0; x < op->u.route.k && choice == ENG_CHOICE_SAME; x++) {
        double d = fabs((double)routing[op->out.head_stride + x] - (double)weights[x]);
        if (!(d <= r->worst[k]))
            r->worst[k] = d;
        if (fabs((double)weights[x]) > r->scale[k])
            r->scale[k] = fabs((double)weights[x]);
    }
    return rc;
}

/* The chunk's rows of a router against "<prompt>.layer.<i>.router_ids" and ".router_weights". */
static void compare_router(struct run *r, uint32_t k, const char *name)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    const struct eng_segment *s = &p->segments[p->taps[k].segment];
    const struct krn_op *op = &p->ops[s->op0 + s->n_ops - 1];
    char full[256];
    uint64_t rows = 0, cols = 0, same_rows = 0, same_cols = 0;
    int32_t *ids = NULL;
    float *bias = NULL;
    if (r->rc)
        return;
    snprintf(full, sizeof full, "%s.%s_ids", r->prompt, name);
    int rc = load_ref(r, full, KRN_I32, &rows, &cols, &r->e);
    if (rc == ERR_NOTFOUND)
        return;
    if (!rc && (cols != op->u.route.k || rows != r->n_all))
        rc = err_set(&r->e, ERR_FORMAT, "reference %s: expected [%u, %u], found [%llu, %llu]", full, r->n_all, op->u.route.k, (unsigned long long)rows, (unsigned long long)cols);
    if (!rc && (!(ids = malloc(rows * cols * sizeof *ids)) || !(bias = malloc(op->in[0].dim * sizeof *bias))))
        rc = err_set(&r->e, ERR_NOMEM, "reference %s", full);
    if (!rc) {
        memcpy(ids, r->ref, rows * cols * sizeof *ids);
        snprintf(full, sizeof full, "%s.%s_weights", r->prompt, name);
        rc = load_ref(r, full, KRN_F32, &same_rows, &same_cols, &r->e);
    }
    if (!rc && (rows != same_rows || cols != same_cols))
        rc = err_set(&r->e, ERR_FORMAT, "reference %s: its shape is not that of the ids", full);
    bool biased = op->n_weights && op->weight[0] != KRN_NO_WEIGHT;
    if (!rc && biased)
        krn_weight_row(&p->weights[op->weight[0]], 0, bias);
    for (uint32_t i = 0; i < r->n_rows && !rc; i++)
        rc = compare_choice(r, k, i, biased ? bias : NULL, ids + (r->row0 + i) * cols, r->ref + (r->row0 + i) * cols, &r->e);
    r->have[k] = !rc;
    r->rc = rc;
    free(ids);
    free(bias);
}

static void on_segment(void *ctx, uint32_t segment)
{
    struct run *r = ctx;
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    if (!r->acts)
        return;
    for (uint32_t i = 0; i < p->n_taps; i++) {
        char name[64];
        if (p->taps[i].segment != segment)
            continue;
        tap_name(&p->taps[i], name, sizeof name);
        if (!strcmp(p->taps[i].reg, "router"))
            compare_router(r, i, name);
        else
            compare(r, i, name, &p->taps[i].view, false);
    }
    if (segment == p->n_segments - 1)
        compare(r, p->n_taps, "logits", &p->logits, true);
}

static int get_ids(const struct json *p, const char *key, int32_t **ids, uint32_t *n, struct err *e)
{
    const struct json *a = json_get(p, key);
    if (!json_is(a, JSON_ARRAY) || !a->n || !(*ids = malloc(a->n * sizeof **ids)))
        return err_set(e, ERR_FORMAT, "reference: %s: expected an array of ids", key);
    for (size_t i = 0; i < a->n; i++) {
        int64_t v;
        if (!json_int(a->items[i], &v) || v < 0 || v > INT32_MAX)
            return err_set(e, ERR_FORMAT, "reference: %s[%zu]: expected an id", key, i);
        (*ids)[i] = (int32_t)v;
    }
    *n = (uint32_t)a->n;
    return ERR_OK;
}

/* Runs the prompt in chunks; all rows are picked. */
static int run_prompt(struct run *r, const int32_t *ids, uint32_t n, struct err *e)
{
    uint32_t chunk = eng_session_config(r->s)->chunk;
    int rc = ERR_OK;
    r->n_all = n;
    for (uint32_t at = 0; at < n && !rc; at += r->n_rows) {
        r->row0 = at;
        r->n_rows = n - at < chunk ? n - at : chunk;
        struct eng_part part = {.pos0 = at, .n = r->n_rows, .tokens = ids + at, .picks = ENG_PICK_ALL, .far = r->far};
        rc = eng_session_step(r->s, &part, 1, on_segment, r, e);
        if (!rc && r->rc) {
            *e = r->e;
            rc = r->rc;
        }
    }
    return rc;
}

/* Continues greedily from the last row's logits; counts steps whose id differs. With margins: only steps whose margin exceeds
 * slack are held against it, and the golden id is fed on. */
static int run_greedy(struct run *r, const char *prompt, uint32_t n, const int32_t *want, uint32_t n_want, const struct json *margins,
                      double slack, struct err *e)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    uint32_t n_ids = eng_tok_count(eng_session_model(r->s)->tok), wrong = 0, held = 0;
    if (n_ids > p->vocab)
        n_ids = p->vocab;
    const float *row = eng_session_logits(r->s, r->n_rows - 1);
    for (uint32_t i = 0; i < n_want; i++) {
        double margin = INFINITY;
        if (margins && i < margins->n)
            json_num(margins->items[i], &margin);
        if (margin > slack) {
            held++;
            wrong += (int32_t)argmax(row, n_ids) != want[i];
        }
        if (i + 1 == n_want)
            break;
        struct eng_part part = {.pos0 = n + i, .n = 1, .tokens = want + i, .picks = ENG_PICK_LAST, .far = r->far};
        int rc = eng_session_step(r->s, &part, 1, NULL, NULL, e);
        if (rc)
            return rc;
        row = eng_session_logits(r->s, 0);
    }
    char name[128];
    snprintf(name, sizeof name, "%s.greedy", prompt);
    count_line(r->v, name, wrong, held);
    return ERR_OK;
}

/* The prompt's text, or its segments [text, is it mark-up] one after the other; a prompt that is ids alone has nothing to check. */
static void check_ids(struct run *r, const struct json *p, const int32_t *ids, uint32_t n)
{
    char name[128];
    struct eng_ids got = {.max = 1u << 20};
    struct err e = {0};
    const char *prompt = r->prompt, *text = json_str(json_get(p, "text"));
    const struct json *segments = json_get(p, "segments");
    const eng_tok *tok = eng_session_model(r->s)->tok;
    int rc = ERR_OK;
    if (!text && !json_is(segments, JSON_ARRAY))
        return;
    if (text)
        rc = eng_tok_encode(tok, text, strlen(text), ENG_TOK_ADDED | ENG_TOK_WRAP, &got, &e);
    for (size_t i = 0; !text && i < segments->n && !rc; i++) {
        const struct json *s = segments->items[i];
        const char *part = json_is(s, JSON_ARRAY) && s->n == 2 ? json_str(s->items[0]) : NULL;
        rc = part ? eng_tok_encode(tok, part, strlen(part), s->items[1]->b ? ENG_TOK_SPECIAL : 0, &got, &e) : ERR_FORMAT;
    }
    unsigned wrong = rc || got.n != n || memcmp(got.v, ids, n * sizeof *ids) != 0;
    snprintf(name, sizeof name, "%s.ids", prompt);
    count_line(r->v, name, wrong, 1);
    eng_ids_free(&got);
}

static void report_layers(struct run *r)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    bool f32 = is_f32(r), blocks = false;
    for (uint32_t w = 0; w < p->n_weights; w++)
        blocks |= krn_types[p->tensors[w].type].block > 1; /* GGUF: the bar is for a converter's rounding, too */
    for (uint32_t k = 0; k <= p->n_taps; k++) {
        char tap[64], name[160];
        if (!r->have[k])
            continue;
        if (k < p->n_taps)
            tap_name(&p->taps[k], tap, sizeof tap);
        else
            snprintf(tap, sizeof tap, "logits");
        bool router = k < p->n_taps && !strcmp(p->taps[k].reg, "router");
        if (router) {
            snprintf(name, sizeof name, "%s.%s_ids", r->prompt, tap);
            count_line(r->v, name, r->wrong[k], r->n_all);
        }
        snprintf(name, sizeof name, "%s.%s%s", r->prompt, tap, router ? "_weights" : "");
        eng_verify_line(r->v, name, r->worst[k] / (r->scale[k] > 0 ? r->scale[k] : 1), !f32 ? TOL_LOOSE : blocks ? TOL_QUANT_F32 : TOL_F32);
    }
    if (r->have[p->n_taps]) {
        char name[128];
        snprintf(name, sizeof name, "%s.argmax", r->prompt);
        count_line(r->v, name, r->wrong[p->n_taps], r->n_all);
    }
}

static int one_fixture_prompt(struct run *r, const struct json *p, struct err *e)
{
    int32_t *ids = NULL, *greedy = NULL;
    uint32_t n = 0, n_greedy = 0, slots = eng_session_model(r->s)->plan->n_taps + 1;
    r->prompt = json_str(json_get(p, "name"));
    int rc = get_ids(p, "ids", &ids, &n, e);
    if (rc || (rc = get_ids(p, "greedy", &greedy, &n_greedy, e)))
        goto out;
    memset(r->worst, 0, slots * sizeof *r->worst);
    memset(r->scale, 0, slots * sizeof *r->scale);
    memset(r->have, 0, slots * sizeof *r->have);
    memset(r->wrong, 0, slots * sizeof *r->wrong);
    eng_session_drop(r->s, 0);
    if (r->v->what & ENG_VERIFY_TEXT)
        check_ids(r, p, ids, n);
    if ((rc = run_prompt(r, ids, n, e)))
        goto out;
    if (r->v->what & ENG_VERIFY_LAYERS)
        report_layers(r);
    if (r->v->what & ENG_VERIFY_TEXT)
        rc = run_greedy(r, r->prompt, n, greedy, n_greedy, NULL, 0, e);
out:
    free(ids);
    free(greedy);
    return rc;
}

/* Goldens hold the ten best logits of the last positions: each is compared where it stands. */
static double compare_top(struct run *r, const struct json *last, double *abs_max)
{
    double worst = 0;
    *abs_max = 0;
    for (size_t i = 0; i < last->n; i++) {
        int64_t pos = -1, id;
        double scale = 1, want;
        const struct json *top = json_get(last->items[i], "top");
        if (!json_int(json_get(last->items[i], "position"), &pos) || !json_num(json_get(last->items[i], "max_abs"), &scale) ||
            pos < r->row0 || pos >= (int64_t)r->row0 + r->n_rows || !json_is(top, JSON_ARRAY))
            continue;
        const float *row = eng_session_logits(r->s, (uint32_t)pos - r->row0);
        for (size_t k = 0; k < top->n; k++) {
            const struct json *pair = top->items[k];
            if (!json_is(pair, JSON_ARRAY) || pair->n != 2 || !json_int(pair->items[0], &id) || !json_num(pair->items[1], &want) || id < 0 ||
                (uint64_t)id >= eng_session_model(r->s)->plan->vocab)
                return INFINITY;
            double d = fabs((double)row[id] - want);
            if (d > *abs_max)
                *abs_max = d;
            if (!(d / scale <= worst))
                worst = d / scale;
        }
    }
    return worst;
}

static int one_golden_prompt(struct run *r, const struct json *p, struct err *e)
{
    int32_t *ids = NULL, *greedy = NULL;
    uint32_t n = 0, n_greedy = 0;
    char name[128];
    const struct json *last = json_get(p, "last");
    r->prompt = json_str(json_get(p, "name"));
    int rc = get_ids(p, "ids", &ids, &n, e);
    if (rc || (rc = get_ids(p, "greedy", &greedy, &n_greedy, e)))
        goto out;
    if (!json_is(last, JSON_ARRAY)) {
        rc = err_set(e, ERR_FORMAT, "reference: prompt %s: `last` is not an array", r->prompt);
        goto out;
    }
    eng_session_drop(r->s, 0);
    check_ids(r, p, ids, n);
    if ((rc = run_prompt(r, ids, n, e)))
        goto out;
    double abs_max, rel = compare_top(r, last, &abs_max);
    bool f32 = is_f32(r);
    snprintf(name, sizeof name, "%s.top10", r->prompt);
    eng_verify_line(r->v, name, rel, f32 ? TOL_F32 : TOL_LOOSE);
    rc = run_greedy(r, r->prompt, n, greedy, n_greedy, json_get(p, "margins"), f32 ? 0 : 3 * abs_max, e);
out:
    free(ids);
    free(greedy);
    return rc;
}

static int longest_prompt(const struct json *prompts, uint32_t *longest, struct err *e)
{
    *longest = 0;
    for (size_t i = 0; json_is(prompts, JSON_ARRAY) && i < prompts->n; i++) {
        const struct json *ids = json_get(prompts->items[i], "ids"), *g = json_get(prompts->items[i], "greedy");
        if (!json_is(ids, JSON_ARRAY) || !json_is(g, JSON_ARRAY) || !json_str(json_get(prompts->items[i], "name")) || ids->n + g->n > 1u << 20)
            return err_set(e, ERR_FORMAT, "reference: prompt %zu: expected name, ids and greedy", i);
        if (ids->n + g->n > *longest)
            *longest = (uint32_t)(ids->n + g->n);
    }
    return *longest ? ERR_OK : err_set(e, ERR_FORMAT, "reference: no prompts");
}

static int open_session(struct run *r, uint32_t ctx, struct err *e)
{
    struct eng_config c = r->v->c;
    eng_session_close(r->s);
    r->s = NULL;
    c.ctx = ctx;
    c.seqs = 1;
    if (!c.chunk || c.chunk > ctx)
        c.chunk = ctx;
    return eng_session_open(&r->s, &c, c.chunk, e);
}

/* The reference takes longrope's list by the length of a sequence, as the engine does at admission. */
static bool is_far(const struct run *r, const struct json *p)
{
    uint32_t need = (uint32_t)(json_get(p, "ids")->n + json_get(p, "greedy")->n), at = eng_session_model(r->s)->plan->ctx_switch;
    return at && need > at;
}

static int run_prompts(struct run *r, const struct json *prompts, struct err *e)
{
    uint32_t longest;
    int rc = longest_prompt(prompts, &longest, e);
    if (rc || (rc = open_session(r, longest, e)))
        return rc;
    uint32_t slots = eng_session_model(r->s)->plan->n_taps + 1;
    r->worst = calloc(slots, sizeof *r->worst);
    r->scale = calloc(slots, sizeof *r->scale);
    r->have = calloc(slots, sizeof *r->have);
    r->wrong = calloc(slots, sizeof *r->wrong);
    if (!r->worst || !r->scale || !r->have || !r->wrong)
        return err_set(e, ERR_NOMEM, "verify");
    for (size_t i = 0; i < prompts->n && !rc; i++) {
        r->far = is_far(r, prompts->items[i]);
        rc = r->acts ? one_fixture_prompt(r, prompts->items[i], e) : one_golden_prompt(r, prompts->items[i], e);
    }
    return rc;
}

int eng_verify_run(struct eng_verify *v, struct err *e)
{
    char path[4096], file[4200];
    struct stat st;
    struct arena a;
    struct json *doc;
    struct run r = {.v = v};
    arena_init(&a, 256u << 20);
    snprintf(path, sizeof path, "%s%s", v->ref ? v->ref : v->c.model_path, v->ref ? "" : "/reference");
    int rc;
    if (stat(path, &st) != 0) {
        rc = err_set(e, ERR_NOTFOUND, "reference %s: not there", path);
    } else if (S_ISDIR(st.st_mode)) {
        snprintf(file, sizeof file, "%s/activations.safetensors", path);
        if (!(rc = off_catalog_open(&r.acts, file, 0, e))) {
            snprintf(file, sizeof file, "%s/prompts.json", path);
            rc = json_parse_file(&doc, file, 64u << 20, &a, e);
        }
        if (!rc)
            rc = run_prompts(&r, doc, e);
    } else {
        rc = json_parse_file(&doc, path, 64u << 20, &a, e);
        if (!rc)
            rc = run_prompts(&r, json_get(doc, "prompts"), e);
    }
    eng_session_close(r.s);
    off_catalog_close(r.acts);
    free(r.worst);
    free(r.scale);
    free(r.have);
    free(r.wrong);
    free(r.ref);
    arena_free(&a);
    return rc;
}
