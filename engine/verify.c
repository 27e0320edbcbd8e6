/* Prompts of a reference, run in chunks, alone or in company: layers and logits by verify_layers.c, here ids, greedy text and goldens. */
#include "engine/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/verify_internal.h"

#define CHUNK_MAX 1024 /* rows of a step where nothing else is said: logits of so many rows stand in memory */

void eng_verify_line(struct eng_verify *v, const char *name, double error, double tolerance)
{
    bool ok = error <= tolerance; /* NaN fails */
    if (v->json) {
        struct buf b;
        buf_init(&b, 1u << 16);
        json_put_cstr(&b, name);
        fprintf(v->out, "%s\n{\"check\":%s,\"error\":", v->passed + v->failed ? "," : "", b.data ? b.data : "\"\"");
        fprintf(v->out, isfinite(error) ? "%.6g" : "null", error);
        fprintf(v->out, ",\"tolerance\":%.6g,\"ok\":%s}", tolerance, ok ? "true" : "false");
        buf_free(&b);
    } else {
        fprintf(v->out, "%-44s %10.3g %10.3g  %s\n", name, error, tolerance, ok ? "ok" : "FAILED");
    }
    if (ok)
        v->passed++;
    else
        v->failed++;
}

void eng_verify_count(struct eng_verify *v, const char *name, unsigned wrong, unsigned of)
{
    char label[160];
    snprintf(label, sizeof label, "%s (%u of %u)", name, of - wrong, of);
    eng_verify_line(v, label, wrong, 0);
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

int eng_verify_step(struct eng_verify_run *r, const int32_t *ids, uint32_t pos0, uint32_t n, enum eng_picks picks, void (*tap)(void *, uint32_t), struct err *e)
{
    struct eng_part parts[ENG_VERIFY_SEQS_MAX];
    uint32_t seqs = eng_session_config(r->s)->seqs, k = 0;
    for (uint32_t i = 1; i < seqs; i++) { /* other sequences say the same words from elsewhere on, one token a step */
        if (r->beside[i] == r->longest) {
            eng_session_drop(r->s, i);
            r->beside[i] = 0;
        }
        parts[k++] = (struct eng_part){.slot = i, .pos0 = r->beside[i], .n = 1, .tokens = ids + (r->beside[i] + 17 * i) % n, .far = r->far};
        r->beside[i]++;
    }
    r->first = k;
    parts[k++] = (struct eng_part){.pos0 = pos0, .n = n, .tokens = ids, .picks = picks, .far = r->far};
    return eng_session_step(r->s, parts, k, tap, r, e);
}

/* How many rows at the end of the prompt the reference has of what follows the last layer. */
static uint32_t rows_wanted(const struct eng_verify_run *r, uint32_t n)
{
    static const char *const names[] = {"logits", "final_norm"};
    uint32_t most = 1;
    if (!r->acts)
        return r->keep && r->keep < n ? r->keep : n;
    for (size_t i = 0; i < 2; i++) {
        char full[256];
        snprintf(full, sizeof full, "%s.%s", r->prompt, names[i]);
        const struct off_tensor *t = off_catalog_find(r->acts, full, strlen(full));
        if (t && t->n_dims == 2 && t->dims[0] > most)
            most = t->dims[0] < n ? (uint32_t)t->dims[0] : n;
    }
    return most;
}

/* Runs the prompt in chunks; the rows that are looked at are picked. */
int eng_verify_prompt(struct eng_verify_run *r, const int32_t *ids, uint32_t n, void (*tap)(void *, uint32_t), struct err *e)
{
    uint32_t chunk = eng_session_config(r->s)->chunk - (eng_session_config(r->s)->seqs - 1), wanted = rows_wanted(r, n);
    int rc = ERR_OK;
    r->n_all = n;
    for (uint32_t at = 0; at < n && !rc; at += r->n_rows) {
        r->row0 = at;
        r->n_rows = n - at < chunk ? n - at : chunk;
        rc = eng_verify_step(r, ids + at, at, r->n_rows, at + r->n_rows > n - wanted ? ENG_PICK_ALL : ENG_PICK_NONE, tap, e);
        if (!rc && r->rc) {
            *e = r->e;
            rc = r->rc;
        }
    }
    return rc;
}

/* Continues greedily from the last row's logits; counts steps whose id differs. With margins: only steps whose margin exceeds
 * slack are held against it, and the golden id is fed on. */
static int run_greedy(struct eng_verify_run *r, const char *prompt, uint32_t n, const int32_t *want, uint32_t n_want, const struct json *margins,
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
            wrong += (int32_t)eng_verify_argmax(row, n_ids) != want[i];
        }
        if (i + 1 == n_want)
            break;
        int rc = eng_verify_step(r, want + i, n + i, 1, ENG_PICK_LAST, NULL, e);
        if (rc)
            return rc;
        row = eng_session_logits(r->s, 0);
    }
    char name[128];
    snprintf(name, sizeof name, "%s.greedy", prompt);
    eng_verify_count(r->v, name, wrong, held);
    return ERR_OK;
}

/* The prompt's text, or its segments [text, is it mark-up] one after the other; a prompt that is ids alone has nothing to check. */
static void check_ids(struct eng_verify_run *r, const struct json *p, const int32_t *ids, uint32_t n)
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
    eng_verify_count(r->v, name, wrong, 1);
    eng_ids_free(&got);
}

static int one_fixture_prompt(struct eng_verify_run *r, const struct json *p, struct err *e)
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
    memset(r->seen, 0, slots * sizeof *r->seen);
    eng_session_drop(r->s, 0);
    if (r->v->what & ENG_VERIFY_TEXT)
        check_ids(r, p, ids, n);
    if ((rc = eng_verify_prompt(r, ids, n, eng_verify_on_segment, e)))
        goto out;
    if (r->v->what & ENG_VERIFY_LAYERS)
        eng_verify_report_layers(r);
    if (r->v->what & ENG_VERIFY_TEXT)
        rc = run_greedy(r, r->prompt, n, greedy, n_greedy, json_get(p, "margins"), r->same_path ? 0 : 2 * eng_verify_bar(r) * r->scale[slots - 1], e);
out:
    free(ids);
    free(greedy);
    return rc;
}

/* Goldens hold the ten best logits of the last positions: each is compared where it stands. */
static double compare_top(struct eng_verify_run *r, const struct json *last, double *abs_max)
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

static int one_golden_prompt(struct eng_verify_run *r, const struct json *p, struct err *e)
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
    if ((rc = eng_verify_prompt(r, ids, n, eng_verify_on_segment, e)))
        goto out;
    double abs_max, rel = compare_top(r, last, &abs_max);
    bool f32 = eng_verify_f32(r);
    snprintf(name, sizeof name, "%s.top10", r->prompt);
    eng_verify_line(r->v, name, rel, f32 ? ENG_VERIFY_TOL_F32 : ENG_VERIFY_TOL_LOOSE);
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

int eng_verify_open(struct eng_verify_run *r, uint32_t ctx, struct err *e)
{
    struct eng_config c = r->v->c;
    uint32_t seqs = c.seqs ? c.seqs : 1;
    if (seqs > ENG_VERIFY_SEQS_MAX)
        return err_set(e, ERR_INVALID, "verify runs at most %d sequences at once", ENG_VERIFY_SEQS_MAX);
    eng_session_close(r->s);
    r->s = NULL;
    c.ctx = ctx;
    c.seqs = seqs;
    if (!c.chunk && (!ctx || ctx > CHUNK_MAX))
        c.chunk = ctx ? CHUNK_MAX : 256;
    if (!c.chunk || (ctx && c.chunk > ctx))
        c.chunk = ctx;
    c.chunk += seqs - 1;
    memset(r->beside, 0, sizeof r->beside);
    int rc = eng_session_open(&r->s, &c, c.chunk, e);
    r->longest = rc ? 0 : eng_session_config(r->s)->ctx;
    return rc;
}

/* The reference takes longrope's list by the length of a sequence, as the engine does at admission. */
static bool is_far(const struct eng_verify_run *r, const struct json *p)
{
    uint32_t need = (uint32_t)(json_get(p, "ids")->n + json_get(p, "greedy")->n), at = eng_session_model(r->s)->plan->ctx_switch;
    return at && need > at;
}

static int run_prompts(struct eng_verify_run *r, const struct json *prompts, struct err *e)
{
    uint32_t longest;
    int rc = longest_prompt(prompts, &longest, e);
    if (rc || (rc = eng_verify_open(r, longest, e)))
        return rc;
    const struct eng_config *c = eng_session_config(r->s);
    r->same_path = r->frozen && json_eq(json_get(r->frozen, "precision"), c->precision == KRN_PREC_F32 ? "f32" : "auto") && json_eq(json_get(r->frozen, "kv"), krn_types[c->kv_type].name);
    uint32_t slots = eng_session_model(r->s)->plan->n_taps + 1;
    r->worst = calloc(slots, sizeof *r->worst);
    r->scale = calloc(slots, sizeof *r->scale);
    r->have = calloc(slots, sizeof *r->have);
    r->wrong = calloc(slots, sizeof *r->wrong);
    r->seen = calloc(slots, sizeof *r->seen);
    if (!r->worst || !r->scale || !r->have || !r->wrong || !r->seen)
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
    struct eng_verify_run r = {.v = v};
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
        if (!rc) {
            r.frozen = json_is(doc, JSON_OBJECT) ? doc : NULL;
            rc = run_prompts(&r, r.frozen ? json_get(doc, "prompts") : doc, e);
        }
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
    free(r.seen);
    free(r.ref);
    arena_free(&a);
    return rc;
}
