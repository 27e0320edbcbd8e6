#include "cli/bench_cost.h"

#include <math.h>
#include <string.h>

struct costs { struct bench_cost *c; size_t n; };

static void put(struct costs *o, const char *name, enum krn_type t, double bytes, double ops)
{
    size_t i = 0;
    while (i < o->n && (o->c[i].type != t || strcmp(o->c[i].name, name)))
        i++;
    if (i == BENCH_COSTS_MAX)
        return;
    if (i == o->n)
        o->c[o->n++] = (struct bench_cost){.name = name, .type = t};
    o->c[i].bytes += bytes;
    o->c[i].ops += ops;
}

static double matrix_bytes(const struct krn_weight *w) { return (double)krn_slot_bytes(w->type, w->layout, w->rows, w->cols); }

static const struct krn_weight *weight_of(const struct eng_plan *p, const struct krn_op *op, unsigned i)
{
    return i < op->n_weights && op->weight[i] != KRN_NO_WEIGHT ? &p->weights[op->weight[i]] : NULL;
}

/* Each row's k experts; those that several rows choose are read once: so many different ones are expected of a router without skew. */
static void experts(struct costs *o, const struct eng_plan *p, const struct krn_op *op, double rows)
{
    double k = (double)op->in[1].heads * op->in[1].dim / 2, n = op->u.experts.n, read = n * (1 - pow(1 - k / n, rows));
    for (unsigned i = 0; i < 3; i++) {
        const struct krn_weight *w = weight_of(p, op, i);
        if (w)
            put(o, krn_op_name(op->code), w->type, read * matrix_bytes(w), 2.0 * w->rows * w->cols * k * rows);
    }
}

static void attend(struct costs *o, const struct krn_op *op, const struct bench_shape *s)
{
    double element = s->kv == KRN_F32 ? 4 : 2, end = (double)s->pos0 + s->rows, window = op->u.attend.window, pairs = 0;
    double keys = window > 0 && end > window + s->rows ? window + s->rows : end;
    for (uint32_t r = 0; r < s->rows; r++)
        pairs += window > 0 && s->pos0 + r + 1 > window ? window : s->pos0 + r + 1;
    put(o, krn_op_name(op->code), KRN_F32, s->seqs * keys * op->in[1].heads * (op->in[1].dim + op->in[2].dim) * element,
        2.0 * s->seqs * pairs * op->in[0].heads * (op->in[1].dim + op->in[2].dim));
}

size_t bench_costs(const struct eng_plan *p, const struct bench_shape *s, struct bench_cost *out)
{
    struct costs o = {out, 0};
    for (uint32_t i = 0; i < p->n_ops; i++) {
        const struct krn_op *op = &p->ops[i];
        const struct krn_weight *w = weight_of(p, op, 0);
        double rows = (double)s->seqs * (op->out.rows == KRN_ROWS_PICKED ? s->picks : s->rows);
        if (op->code == KRN_LINEAR && rows > 0)
            put(&o, krn_op_name(op->code), w->type, matrix_bytes(w), 2.0 * w->rows * w->cols * rows);
        else if (op->code == KRN_EMBED)
            put(&o, krn_op_name(op->code), w->type, rows * (double)krn_row_bytes(w->type, w->cols), 0);
        else if (op->code == KRN_EXPERTS)
            experts(&o, p, op, rows);
        else if (op->code == KRN_ATTEND)
            attend(&o, op, s);
    }
    return o.n;
}

double bench_bytes(const struct eng_plan *p, const struct bench_shape *s)
{
    struct bench_cost c[BENCH_COSTS_MAX];
    double sum = 0;
    for (size_t i = 0, n = bench_costs(p, s, c); i < n; i++)
        sum += c[i].bytes;
    return sum;
}
