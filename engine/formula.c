#include "engine/formula.h"

#include <stdio.h>

#include "engine/states.h"

static unsigned type_bytes(enum krn_type t) { return krn_types[t].block_bytes; }

static bool of_group(const struct eng_kv_group *g, const struct eng_kv_config *c, struct eng_formula *f)
{
    struct krn_kv_layout l;
    if (!eng_kv_layout(g, c, &l))
        return false;
    unsigned cell = type_bytes(c->type);
    *f = (struct eng_formula){.bytes = (uint64_t)g->n_layers * g->heads * (g->dim_k + (uint64_t)g->dim_v) * cell, .pages = eng_kv_seq_pages(g, c), .page_tokens = c->page_tokens};
    f->seq_bytes = (uint64_t)f->pages * l.page_bytes;
    int n = snprintf(f->what, sizeof f->what, "KV%s", g->kind == ENG_KV_LATENT ? " latent" : "");
    if (g->window)
        snprintf(f->what + n, sizeof f->what - (size_t)n, " window %u", g->window);
    if (g->kind == ENG_KV_LATENT)
        snprintf(f->text, sizeof f->text, "%u layers x %u x %u bytes", g->n_layers, g->dim_k, cell);
    else if (g->dim_k == g->dim_v)
        snprintf(f->text, sizeof f->text, "%u layers x 2 x %u heads x %u x %u bytes", g->n_layers, g->heads, g->dim_k, cell);
    else
        snprintf(f->text, sizeof f->text, "%u layers x %u heads x (%u + %u) x %u bytes", g->n_layers, g->heads, g->dim_k, g->dim_v, cell);
    return true;
}

/* A matrix has the rows of the open tile beside it, for each head k, e^g and u (kernels/state.h). */
static void of_field(const struct eng_recurrent *r, const struct krn_state_layout *l, uint32_t i, struct eng_formula *f)
{
    const struct krn_state_field *d = &l->field[i];
    size_t end = i + 1 < l->n_fields ? l->field[i + 1].offset : l->layer_bytes;
    *f = (struct eng_formula){.state = true, .bytes = (uint64_t)(end - d->offset) * l->n_layers};
    f->seq_bytes = f->bytes;
    snprintf(f->what, sizeof f->what, "state %.20s.%.20s", r->state, r->field[i].name);
    if (d->n_dims == 3)
        snprintf(f->text, sizeof f->text, "%u layers x %u heads x (%u x %u + %u x (2 x %u + %u)) x 4 bytes", l->n_layers, d->heads, d->dk, d->dv, KRN_TILE, d->dk, d->dv);
    else
        snprintf(f->text, sizeof f->text, "%u layers x %u rows x %u x %u bytes", l->n_layers, KRN_STATE_ROWS, d->cols, type_bytes(d->type));
}

uint32_t eng_formulas(const struct eng_plan *p, const struct eng_kv_config *c, struct eng_formula *out, uint32_t max)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_kv && n < max; i++)
        n += of_group(&p->kv[i], c, &out[n]);
    for (uint32_t i = 0; i < p->n_recurrent; i++) {
        struct krn_state_layout l;
        if (!eng_states_layout(&p->recurrent[i], c->type, &l))
            continue;
        for (uint32_t k = 0; k < l.n_fields && n < max; k++)
            of_field(&p->recurrent[i], &l, k, &out[n++]);
    }
    return n;
}
