/* Registers against a reference folder: every tap of the chunk's rows, the routers' choices, the logits. A reference tensor that has
 * fewer rows than the prompt holds the last ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/verify_internal.h"
#include "engine/verify_router.h"

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
static int load_ref(struct eng_verify_run *r, const char *name, enum krn_type type, uint64_t *rows, uint64_t *cols, struct err *e)
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

uint32_t eng_verify_argmax(const float *v, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (v[i] > v[best])
            best = i;
    return best;
}

const float *eng_verify_row(const struct eng_verify_run *r, const struct krn_view *view, uint32_t i)
{
    return eng_session_row(r->s, view, view->rows == KRN_ROWS_TOKENS ? r->first + i : i); /* only this prompt's rows are picked */
}

/* Compares the chunk's rows of one register with the reference tensor "<prompt>.<name>". A reference that has fewer rows holds
 * the last ones. */
static void compare(struct eng_verify_run *r, uint32_t k, const char *name, const struct krn_view *view, bool logits)
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
        const float *a = eng_verify_row(r, view, i), *b = r->ref + (size_t)(r->row0 + i - skip) * cols;
        for (uint32_t c = 0; c < width; c++) {
            double d = fabs((double)a[c] - (double)b[c]);
            if (!(d <= r->worst[k]))
                r->worst[k] = d;
        }
        r->seen[k]++;
        if (logits && eng_verify_argmax(a, width) != eng_verify_argmax(b, width))
            r->wrong[k]++;
    }
    r->have[k] = true;
}

void eng_verify_tap_name(const struct eng_tap *t, char *name, size_t n)
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
bool eng_verify_f32(const struct eng_verify_run *r)
{
    const struct eng_config *c = eng_session_config(r->s);
    return c->precision == KRN_PREC_F32 && c->kv_type == KRN_F32;
}

/* Row i of the chunk: its experts against want, and where they are the same their weights. */
static int compare_choice(struct eng_verify_run *r, uint32_t k, uint32_t i, const float *bias, const int32_t *want, const float *weights, struct err *e)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    const struct eng_segment *s = &p->segments[p->taps[k].segment];
    const struct krn_op *op = &p->ops[s->op0 + s->n_ops - 1];
    const float *routing = eng_verify_row(r, &op->out, i), *scores = eng_verify_row(r, &op->in[0], i);
    enum eng_choice choice;
    float most = 0;
    for (uint32_t x = 0; x < op->in[0].dim; x++)
        most = fabsf(scores[x]) > most ? fabsf(scores[x]) : most;
    int rc = eng_router_compare(op, bias, scores, routing, want, most * (float)(eng_verify_f32(r) ? ENG_VERIFY_TOL_F32 : ENG_VERIFY_TOL_LOOSE), &choice, e);
    r->wrong[k] += choice == ENG_CHOICE_OTHER;
    r->seen[k]++;
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
static void compare_router(struct eng_verify_run *r, uint32_t k, const char *name)
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
    if (!rc && (cols != op->u.route.k || rows > r->n_all))
        rc = err_set(&r->e, ERR_FORMAT, "reference %s: expected at most [%u, %u], found [%llu, %llu]", full, r->n_all, op->u.route.k, (unsigned long long)rows, (unsigned long long)cols);
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
    uint32_t skip = r->n_all - (uint32_t)rows;
    for (uint32_t i = 0; i < r->n_rows && !rc; i++)
        if (r->row0 + i >= skip)
            rc = compare_choice(r, k, i, biased ? bias : NULL, ids + (r->row0 + i - skip) * cols, r->ref + (r->row0 + i - skip) * cols, &r->e);
    r->have[k] = !rc;
    r->rc = rc;
    free(ids);
    free(bias);
}

void eng_verify_on_segment(void *ctx, uint32_t segment)
{
    struct eng_verify_run *r = ctx;
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    if (!r->acts)
        return;
    for (uint32_t i = 0; i < p->n_taps; i++) {
        char name[64];
        if (p->taps[i].segment != segment)
            continue;
        eng_verify_tap_name(&p->taps[i], name, sizeof name);
        if (!strcmp(p->taps[i].reg, "router"))
            compare_router(r, i, name);
        else
            compare(r, i, name, &p->taps[i].view, false);
    }
    if (segment == p->n_segments - 1)
        compare(r, p->n_taps, "logits", &p->logits, true);
}

double eng_verify_bar(const struct eng_verify_run *r)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    bool blocks = false;
    for (uint32_t w = 0; w < p->n_weights; w++)
        blocks |= krn_types[p->tensors[w].type].block > 1; /* GGUF: the bar is for a converter's rounding, too */
    return r->same_path ? ENG_VERIFY_TOL_F32 : r->frozen || !eng_verify_f32(r) ? ENG_VERIFY_TOL_LOOSE : blocks ? ENG_VERIFY_TOL_QUANT_F32 : ENG_VERIFY_TOL_F32;
}

void eng_verify_report_layers(struct eng_verify_run *r)
{
    const struct eng_plan *p = eng_session_model(r->s)->plan;
    double bar = eng_verify_bar(r);
    for (uint32_t k = 0; k <= p->n_taps; k++) {
        char tap[64], name[160];
        if (!r->have[k])
            continue;
        if (k < p->n_taps)
            eng_verify_tap_name(&p->taps[k], tap, sizeof tap);
        else
            snprintf(tap, sizeof tap, "logits");
        bool router = k < p->n_taps && !strcmp(p->taps[k].reg, "router");
        if (router) {
            snprintf(name, sizeof name, "%s.%s_ids", r->prompt, tap);
            eng_verify_count(r->v, name, r->wrong[k], r->seen[k]);
        }
        snprintf(name, sizeof name, "%s.%s%s", r->prompt, tap, router ? "_weights" : "");
        eng_verify_line(r->v, name, r->worst[k] / (r->scale[k] > 0 ? r->scale[k] : 1), bar);
    }
    if (r->have[p->n_taps]) {
        char name[128];
        snprintf(name, sizeof name, "%s.argmax", r->prompt);
        eng_verify_count(r->v, name, r->wrong[p->n_taps], r->seen[p->n_taps]);
    }
}
