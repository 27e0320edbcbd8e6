#include "engine/exec.h"

#include <stdlib.h>
#include <string.h>

struct eng_exec {
    struct eng_plan *plan;
    off_weights *weights;
    const struct krn_backend_api *api;
    krn_backend *backend;
    krn_list **lists; /* [n_segments] */
    uint64_t *chosen; /* bit e: expert e has rows in this step */
    uint32_t *leased; uint32_t n_leased; /* experts' records; room for three an expert */
};

static struct krn_backend_config backend_config(const struct eng_plan *p, const struct eng_exec_config *c)
{
    return (struct krn_backend_config){
        .isa = c->isa, .precision = c->precision, .threads = c->threads, .rows_max = {c->rows_max, c->picks_max},
        .arena_cols = {p->arena_cols[0], p->arena_cols[1]}, .ropes = p->ropes, .n_ropes = p->n_ropes,
        .linear_cols_max = p->linear_cols_max, .latent_cols = p->latent_cols, .experts = p->experts};
}

uint64_t eng_exec_bytes(const struct eng_plan *p, const struct eng_exec_config *c)
{
    struct krn_backend_config b = backend_config(p, c);
    return krn_cpu.bytes(&b);
}

int eng_exec_open(eng_exec **out, struct eng_plan *p, off_weights *w, const struct eng_exec_config *c, struct err *e)
{
    int rc;
    *out = NULL;
    eng_exec *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "executor");
    x->plan = p;
    x->lists = calloc(p->n_segments, sizeof *x->lists);
    x->chosen = calloc(p->experts.n / 64 + 1, sizeof *x->chosen);
    x->leased = calloc((size_t)p->experts.n * 3 + 1, sizeof *x->leased);
    if (!x->lists || !x->chosen || !x->leased) {
        rc = err_set(e, ERR_NOMEM, "executor of %u segments", p->n_segments);
        goto out;
    }
    x->weights = w;
    x->api = &krn_cpu;
    struct krn_backend_config b = backend_config(p, c);
    if ((rc = x->api->open(&x->backend, &b, e)))
        goto out;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const struct eng_segment *s = &p->segments[i];
        if ((rc = x->api->record(x->backend, p->ops + s->op0, s->n_ops, p->weights, &x->lists[i], e))) {
            err_prefix(e, rc, "%s", s->name);
            goto out;
        }
    }
    *out = x;
    x = NULL;
out:
    eng_exec_close(x);
    return rc;
}

void eng_exec_close(eng_exec *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; x->lists && i < x->plan->n_segments; i++)
        if (x->lists[i])
            x->api->list_free(x->lists[i]);
    if (x->backend)
        x->api->close(x->backend);
    free(x->leased);
    free(x->chosen);
    free(x->lists);
    free(x);
}

/* The gate: what the router wrote in an earlier segment becomes leases of the chosen experts' records. */
static int lease_experts(eng_exec *x, const struct krn_op *op, uint32_t rows, struct err *e)
{
    const struct krn_view *v = &op->in[1];
    uint32_t n = op->u.experts.n;

    memset(x->chosen, 0, (n / 64 + 1) * sizeof *x->chosen);
    for (uint32_t r = 0; r < rows; r++) {
        const float *id = x->api->row(x->backend, v, r);
        for (uint32_t i = 0; i < v->dim; i++) {
            if (!(id[i] >= 0 && id[i] < (float)n))
                return err_set(e, ERR_INVALID, "row %u is routed to expert %g of %u", r, (double)id[i], n);
            x->chosen[(uint32_t)id[i] / 64] |= UINT64_C(1) << (uint32_t)id[i] % 64;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t last = UINT32_MAX;
        for (unsigned s = 0; s < 3 && x->chosen[i / 64] >> i % 64 & 1; s++) {
            uint32_t record = x->plan->record_of[op->weight[s] + i];
            int rc = record == last ? ERR_OK : off_lease(x->weights, record, e);
            if (rc)
                return rc;
            if (record != last)
                x->leased[x->n_leased++] = record;
            last = record;
        }
    }
    return ERR_OK;
}

static int run_segment(eng_exec *x, uint32_t i, const struct krn_step *step, void (*tap)(void *, uint32_t), void *ctx, struct err *e)
{
    const struct eng_segment *s = &x->plan->segments[i];
    int rc = ERR_OK;
    uint32_t leased = 0;
    for (; leased < s->n_records; leased++)
        if ((rc = off_lease(x->weights, s->records[leased], e)))
            goto out;
    for (uint32_t k = s->op0; k < s->op0 + s->n_ops; k++)
        if (x->plan->ops[k].code == KRN_EXPERTS && (rc = lease_experts(x, &x->plan->ops[k], step->n_tokens, e)))
            goto out;
    if ((rc = x->api->submit(x->backend, x->lists[i], step, e)) || (rc = x->api->wait(x->backend, e)))
        goto out;
    if (tap)
        tap(ctx, i);
out:
    while (x->n_leased)
        off_release(x->weights, x->leased[--x->n_leased]);
    while (leased)
        off_release(x->weights, s->records[--leased]);
    if (rc)
        err_prefix(e, rc, "%s", s->name);
    return rc;
}

int eng_exec_run(eng_exec *x, const struct krn_step *step, void (*tap)(void *ctx, uint32_t segment), void *ctx, struct err *e)
{
    for (uint32_t i = 0; i < x->plan->n_segments; i++) {
        int rc = run_segment(x, i, step, tap, ctx, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

const float *eng_exec_row(eng_exec *x, const struct krn_view *v, uint32_t row) { return x->api->row(x->backend, v, row); }
const char *eng_exec_isa(const eng_exec *x) { return x->api->isa(x->backend); }
