#include "engine/plan.h"

#include <stdlib.h>

void eng_plan_close(struct eng_plan *p)
{
    if (!p)
        return;
    free(p->ops);
    free(p->op_reg);
    free(p->segments);
    free(p->taps);
    free(p->tensors);
    free(p->weights);
    free(p->records);
    arena_free(&p->mem);
    free(p);
}

static uint64_t type_bytes(enum krn_type t) { return krn_types[t].block_bytes / krn_types[t].block; }

uint64_t eng_plan_kv_bytes_per_token(const struct eng_plan *p, enum krn_type kv)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_kv; i++)
        n += (uint64_t)p->kv[i].heads * (p->kv[i].dim_k + p->kv[i].dim_v) * p->kv[i].n_layers * type_bytes(kv);
    return n;
}

uint64_t eng_plan_state_bytes_per_seq(const struct eng_plan *p)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < p->n_recurrent; i++) {
        const struct eng_recurrent *r = &p->recurrent[i];
        for (uint32_t k = 0; k < r->n_fields; k++) {
            uint64_t one = type_bytes(r->field[k].type) * r->n_layers;
            for (unsigned d = 0; d < r->field[k].n_dims; d++)
                one *= r->field[k].dims[d];
            n += one;
        }
    }
    return n;
}
