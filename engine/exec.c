#include "engine/exec.h"

#include <stdlib.h>

struct eng_exec {
    struct eng_plan *plan;
    off_weights *weights;
    const struct krn_backend_api *api;
    krn_backend *backend;
    krn_list **lists; /* [n_segments] */
};

static struct krn_backend_config backend_config(const struct eng_plan *p, const struct eng_exec_config *c)
{
    return (struct krn_backend_config){
        .isa = c->isa, .precision = c->precision, .threads = c->threads, .rows_max = {c->rows_max, c->picks_max},
        .arena_cols = {p->arena_cols[0], p->arena_cols[1]}, .ropes = p->ropes, .n_ropes = p->n_ropes,
        .linear_cols_max = p->linear_cols_max, .latent_cols = p->latent_cols};
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
    if (!x || !(x->lists = calloc(p->n_segments, sizeof *x->lists))) {
        free(x);
        return err_set(e, ERR_NOMEM, "executor of %u segments", p->n_segments);
    }
    x->plan = p;
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
    for (uint32_t i = 0; i < x->plan->n_segments; i++)
        if (x->lists[i])
            x->api->list_free(x->lists[i]);
    if (x->backend)
        x->api->close(x->backend);
    free(x->lists);
    free(x);
}

static int run_segment(eng_exec *x, uint32_t i, const struct krn_step *step, void (*tap)(void *, uint32_t), void *ctx, struct err *e)
{
    const struct eng_segment *s = &x->plan->segments[i];
    int rc = ERR_OK;
    uint32_t leased = 0;
    for (; leased < s->n_records; leased++)
        if ((rc = off_lease(x->weights, s->records[leased], e)))
            goto out;
    if ((rc = x->api->submit(x->backend, x->lists[i], step, e)) || (rc = x->api->wait(x->backend, e)))
        goto out;
    if (tap)
        tap(ctx, i);
out:
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
