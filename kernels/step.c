/* kernels/step.c - the checks of a step. */
#include "kernels/step.h"

int krn_step_rows(const struct krn_step *s, const uint32_t rows_max[2], struct err *e)
{
    if (s->n_tokens > rows_max[0] || s->n_picks > rows_max[1])
        return err_set(e, ERR_LIMIT, "a step of %u tokens and %u picked rows; opened for %u and %u", s->n_tokens, s->n_picks, rows_max[0], rows_max[1]);
    for (uint32_t i = 0; i < s->n_picks; i++)
        if (s->picks[i] >= s->n_tokens) return err_set(e, ERR_INVALID, "picked row %u of a step of %u", s->picks[i], s->n_tokens);
    return ERR_OK;
}

uint32_t krn_step_vocab(const struct krn_op *op, const struct krn_weight *weights)
{
    uint32_t tiles = op->u.embed.tiles ? op->u.embed.tiles : 1;
    return (tiles - 1) * op->u.embed.tile_rows + weights[op->weight[0] + tiles - 1].rows;
}

int krn_step_tokens(const struct krn_step *s, uint32_t vocab, struct err *e)
{
    for (uint32_t r = 0; r < s->n_tokens; r++)
        if (s->tokens[r] < 0 || (uint32_t)s->tokens[r] >= vocab) return err_set(e, ERR_INVALID, "token %d of a vocabulary of %u", s->tokens[r], vocab);
    return ERR_OK;
}

int krn_step_sequences(const struct krn_step *s, uint32_t *row_seq, struct err *e)
{
    uint32_t covered = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct krn_seq *q = &s->seqs[i];
        if (q->first != covered || q->count > s->n_tokens - covered || (uint64_t)q->pos0 + q->count > INT32_MAX)
            return err_set(e, ERR_INVALID, "sequence %u: rows %u + %u at position %u do not continue row %u of %u", i, q->first, q->count, q->pos0, covered, s->n_tokens);
        for (uint32_t r = 0; r < q->count; r++) row_seq[covered++] = i;
    }
    return covered == s->n_tokens ? ERR_OK : err_set(e, ERR_INVALID, "%u of %u rows belong to a sequence", covered, s->n_tokens);
}

int krn_step_group(const struct krn_step *s, const struct krn_kv_need *n, struct err *e)
{
    if (n->group >= s->n_groups) return err_set(e, ERR_INVALID, "KV group %u of %u", n->group, s->n_groups);
    const struct krn_kv_layout *l = &s->groups[n->group].layout;
    if (l->heads != n->heads || l->dim_k != n->dim || l->dim_v != n->dim_v || n->layer >= l->n_layers)
        return err_set(e, ERR_INVALID, "KV group %u holds %u layers of %u heads [%u, %u]; the call wants layer %u of %u heads [%u, %u]", n->group, l->n_layers, l->heads, l->dim_k, l->dim_v,
                       n->layer, n->heads, n->dim, n->dim_v);
    return ERR_OK;
}

int krn_step_tables(const struct krn_step *s, const struct krn_kv_need *n, struct err *e)
{
    const struct krn_pages *p = &s->groups[n->group];
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        const struct krn_seq *q = &s->seqs[i];
        if (!q->count) continue;
        uint32_t lo = n->window && q->pos0 >= n->window ? q->pos0 - n->window + 1 : 0, last = (q->pos0 + q->count - 1) / p->layout.page_tokens;
        /* Whole 16-blocks are read, so the first page is that of lo's block: the same page, as pages hold whole blocks. */
        if (last >= p->table_stride) return err_set(e, ERR_INVALID, "sequence %u: page %u beyond its table of %u", i, last, p->table_stride);
        for (uint32_t k = lo / p->layout.page_tokens; k <= last; k++)
            if (p->tables[(size_t)i * p->table_stride + k] == KRN_NO_PAGE) return err_set(e, ERR_INVALID, "sequence %u: page %u of its table is free", i, k);
    }
    return ERR_OK;
}
