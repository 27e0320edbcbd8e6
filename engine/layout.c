#include "engine/layout.h"

#include <stdlib.h>

#define ALIGN 16u

struct work { struct krn_op *ops; uint32_t n_ops; struct eng_store *st; uint32_t n; };

static void resolve(const struct work *w, struct krn_view *v)
{
    while (w->st[v->base].into != v->base) {
        v->shift += w->st[v->base].shift;
        v->base = w->st[v->base].into;
    }
}

static uint32_t extent(const struct krn_view *v) { return (v->heads - 1) * v->head_stride + v->dim; }

static bool overlap(const struct krn_view *a, const struct krn_view *b)
{
    if (a->shift >= b->shift + extent(b) || b->shift >= a->shift + extent(a))
        return false;
    /* Interleaved heads of one row, as split() makes them, share no column when their places in the head do not. */
    if (a->head_stride == b->head_stride && a->heads == b->heads && a->heads > 1) {
        uint32_t x = a->shift % a->head_stride, y = b->shift % b->head_stride;
        return x < y + b->dim && y < x + a->dim;
    }
    return true;
}

/* Does any later op read the columns of v through a store that is not `except`. */
static bool read_later(const struct work *w, uint32_t op, const struct krn_view *v, uint32_t except)
{
    uint32_t last = w->st[v->base].last;

    for (uint32_t i = op + 1; i < w->n_ops && i <= last; i++)
        for (uint8_t k = 0; k < w->ops[i].n_in; k++) {
            struct krn_view r = w->ops[i].in[k];
            if (r.base == except)
                continue;
            resolve(w, &r);
            if (r.base == v->base && (r.list || overlap(&r, v)))
                return true;
        }
    return false;
}

static void merge(const struct work *w, uint32_t op)
{
    struct krn_op *o = &w->ops[op];
    struct krn_view in = o->in[0];
    struct eng_store *out = &w->st[o->out.base];
    uint32_t width = o->out.heads * o->out.dim;

    resolve(w, &in);
    struct eng_store *s = &w->st[in.base];
    bool plain = (in.heads == 1 || in.head_stride == in.dim) && !in.list && !o->out.list && s->copies == 1 && out->copies == 1;
    if (!plain || s->fixed || out->def != op || out->into != o->out.base || in.base == o->out.base || s->rows != out->rows || in.heads * in.dim != width ||
        out->width != width || o->out.shift || read_later(w, op, &in, UINT32_MAX))
        return;
    /* The other inputs of this op are read while it writes: they must lie elsewhere. */
    for (uint8_t k = 1; k < o->n_in; k++) {
        struct krn_view r = o->in[k];
        resolve(w, &r);
        if (r.base == in.base && overlap(&r, &in))
            return;
    }
    out->into = in.base;
    out->shift = in.shift;
    s->fixed = out->fixed;
    if (out->last > s->last)
        s->last = out->last;
}

static void lives(struct work *w)
{
    for (uint32_t i = 0; i < w->n_ops; i++) {
        for (uint8_t k = 0; k < w->ops[i].n_in; k++)
            if (w->st[w->ops[i].in[k].base].last < i)
                w->st[w->ops[i].in[k].base].last = i;
        if (w->st[w->ops[i].out.base].last < i)
            w->st[w->ops[i].out.base].last = i;
    }
}

static int by_def(const void *a, const void *b, void *ctx)
{
    const struct eng_store *st = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    if (st[x].def != st[y].def)
        return st[x].def < st[y].def ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int place(struct work *w, uint32_t cols[2], struct err *e)
{
    uint32_t *order = calloc(w->n ? w->n : 1, sizeof *order), *live = calloc(w->n ? w->n : 1, sizeof *live), n = 0, n_live = 0;
    int rc = ERR_OK;

    if (!order || !live) {
        rc = err_set(e, ERR_NOMEM, "layout of %u registers", w->n);
        goto out;
    }
    for (uint32_t i = 0; i < w->n; i++)
        if (w->st[i].into == i)
            order[n++] = i;
    qsort_r(order, n, sizeof *order, by_def, w->st);
    for (uint32_t i = 0; i < n; i++) {
        struct eng_store *s = &w->st[order[i]];
        uint64_t size = (uint64_t)s->width * s->copies, at = 0;
        uint32_t keep = 0;
        for (uint32_t k = 0; k < n_live; k++) /* forget the dead; live stays sorted by column */
            if (w->st[live[k]].last >= s->def)
                live[keep++] = live[k];
        n_live = keep;
        size = (size + ALIGN - 1) / ALIGN * ALIGN;
        uint32_t k = 0;
        for (; k < n_live; k++) {
            const struct eng_store *o = &w->st[live[k]];
            if (o->rows != s->rows)
                continue;
            if (o->column >= at + size)
                break;
            at = o->column + ((uint64_t)o->width * o->copies + ALIGN - 1) / ALIGN * ALIGN;
        }
        if (at + size > UINT32_MAX / 2) {
            rc = err_set(e, ERR_LIMIT, "activations wider than %u floats a row", UINT32_MAX / 2);
            goto out;
        }
        s->column = (uint32_t)at;
        for (k = n_live++; k > 0 && w->st[live[k - 1]].column > s->column; k--)
            live[k] = live[k - 1];
        live[k] = order[i];
        uint32_t *c = &cols[s->rows == KRN_ROWS_PICKED];
        if (at + size > *c)
            *c = (uint32_t)(at + size);
    }
out:
    free(order);
    free(live);
    return rc;
}

static void rewrite(const struct work *w, struct krn_view *v)
{
    uint32_t copy = v->stride; /* which copy of a list's store */

    resolve(w, v);
    v->stride = w->st[v->base].width;
    v->base = w->st[v->base].column + copy * v->stride;
}

int eng_layout(struct krn_op *ops, uint32_t n_ops, bool (*in_place)(enum krn_opcode), struct eng_store *stores, uint32_t n_stores,
               struct krn_view **extra, uint32_t n_extra, uint32_t cols[2], struct err *e)
{
    struct work w = {ops, n_ops, stores, n_stores};
    int rc;

    cols[0] = cols[1] = 0;
    for (uint32_t i = 0; i < n_stores; i++)
        stores[i].into = i;
    lives(&w);
    for (uint32_t i = 0; i < n_stores; i++)
        if (stores[i].fixed)
            stores[i].last = n_ops;
    for (uint32_t i = 0; i < n_ops; i++)
        if (ops[i].n_in && in_place(ops[i].code))
            merge(&w, i);
    if ((rc = place(&w, cols, e)))
        return rc;
    for (uint32_t i = 0; i < n_ops; i++) {
        for (uint8_t k = 0; k < ops[i].n_in; k++)
            rewrite(&w, &ops[i].in[k]);
        rewrite(&w, &ops[i].out);
    }
    for (uint32_t i = 0; i < n_extra; i++)
        rewrite(&w, extra[i]);
    return ERR_OK;
}
