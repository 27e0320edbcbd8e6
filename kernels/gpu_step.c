/* kernels/gpu_step.c - the step block: what changes from step to step, in one piece of host-visible memory that kernels read.
 *
 *   head (GPU_HEAD_*) | tokens [rows] | (sequence, position) [rows] | picks | page tables of each KV group | cos, sin [row][2][n_freq]
 *   of each rope table | dispatch sizes
 * Recorded command buffers hold the addresses of these parts, so a step is: write the block, submit. It is written when the first list
 * of a step is submitted; nothing is under way then. */
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu_internal.h"
#include "kernels/rope.h"
#include "kernels/step.h"

static uint64_t part(uint64_t *at, uint64_t bytes)
{
    uint64_t here = *at;
    *at = (*at + bytes + 255) & ~(uint64_t)255;
    return here;
}

int gpu_step_open(krn_backend *b, struct err *e)
{
    uint64_t at = 256, rows = b->cfg.rows_max[0];
    if (!(b->at_tables = calloc(b->dev.n_pools + 1, sizeof *b->at_tables)) || !(b->at_ropes = calloc(b->cfg.n_ropes + 1, sizeof *b->at_ropes)) ||
        !(b->row_seq = calloc(rows, sizeof *b->row_seq)))
        return err_set(e, ERR_NOMEM, "a step's tables");
    b->at_tokens = part(&at, rows * 4);
    b->at_rows = part(&at, rows * 8);
    b->at_picks = part(&at, (uint64_t)b->cfg.rows_max[1] * 4);
    for (uint32_t i = 0; i < b->dev.n_pools; i++) b->at_tables[i] = part(&at, (uint64_t)b->dev.seqs_max * b->dev.pools[i].table_stride * 4);
    for (uint32_t i = 0; i < b->cfg.n_ropes; i++) b->at_ropes[i] = part(&at, rows * b->cfg.ropes[i].n_freq * 8);
    b->at_sizes = part(&at, GPU_SIZES_MAX * sizeof(VkDispatchIndirectCommand));
    return gpu_alloc(b->g, GPU_UPLOAD, at, "the step block", &b->block, e);
}

void gpu_step_close(krn_backend *b)
{
    free(b->at_tables);
    free(b->at_ropes);
    free(b->row_seq);
}

static int same_layout(const krn_backend *b, const struct krn_step *s, uint32_t g, struct err *e)
{
    const struct krn_kv_layout *have = &b->dev.pools[g].layout, *l = &s->groups[g].layout;
    if (have->type != l->type || have->page_tokens != l->page_tokens || have->page_bytes != l->page_bytes || b->dev.pools[g].table_stride != s->groups[g].table_stride)
        return err_set(e, ERR_INVALID, "KV group %u: pages of %zu bytes, tables of %u; opened for %zu and %u", g, l->page_bytes, s->groups[g].table_stride, have->page_bytes,
                       b->dev.pools[g].table_stride);
    return ERR_OK;
}

/* Every page number is below the pool's: the device has no fault that would stop a stray one. */
static int check_pages(const krn_backend *b, const struct krn_step *s, uint32_t g, struct err *e)
{
    const uint32_t *t = s->groups[g].tables;
    for (size_t i = 0; i < (size_t)s->n_seqs * s->groups[g].table_stride; i++)
        if (t[i] != KRN_NO_PAGE && t[i] >= b->dev.pools[g].n_pages) return err_set(e, ERR_INVALID, "KV group %u: page %u of a pool of %u", g, t[i], b->dev.pools[g].n_pages);
    return ERR_OK;
}

static int check(krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e)
{
    int rc = krn_step_rows(s, b->cfg.rows_max, e);
    if (!rc && s->n_seqs > b->dev.seqs_max) rc = err_set(e, ERR_LIMIT, "a step of %u sequences; opened for %u", s->n_seqs, b->dev.seqs_max);
    for (size_t i = 0; i < l->n_plan && !rc; i++) {
        const struct krn_op *op = &l->plan[i];
        if (op->code == KRN_EMBED) rc = krn_step_tokens(s, krn_step_vocab(op, l->weights), e);
        if (op->code != KRN_ATTEND) continue;
        struct krn_kv_need need = {.group = op->state, .layer = op->state_layer, .heads = op->in[1].heads, .dim = op->in[1].dim, .dim_v = op->in[2].dim, .window = op->u.attend.window};
        if (!rc) rc = krn_step_group(s, &need, e);
        if (!rc) rc = krn_step_tables(s, &need, e);
        if (!rc) rc = same_layout(b, s, op->state, e);
        if (!rc) rc = check_pages(b, s, op->state, e);
    }
    return rc;
}

static void write_angles(krn_backend *b, const struct krn_step *s, uint32_t i)
{
    const struct krn_rope_table *t = &b->cfg.ropes[i];
    struct krn_rope_table far = *t;
    float *out = (float *)(void *)((uint8_t *)b->block.host + b->at_ropes[i]);
    if (t->inv_freq_far) far.inv_freq = t->inv_freq_far;
    for (uint32_t r = 0; r < s->n_tokens; r++, out += 2 * t->n_freq) {
        uint32_t pos[3];
        for (unsigned k = 0; k < 3; k++) pos[k] = s->pos_rows[k] ? s->pos_rows[k][r] : s->pos[r];
        krn_rope_angles(s->seqs[b->row_seq[r]].far ? &far : t, pos, out, out + t->n_freq);
    }
}

static void write_block(krn_backend *b, const struct krn_step *s)
{
    uint8_t *block = b->block.host;
    uint32_t head[2] = {[GPU_HEAD_TOKENS] = s->n_tokens, [GPU_HEAD_PICKS] = s->n_picks}, *rows = (uint32_t *)(void *)(block + b->at_rows);
    VkDispatchIndirectCommand *size = (void *)(block + b->at_sizes);
    memcpy(block, head, sizeof head);
    memcpy(block + b->at_tokens, s->tokens, s->n_tokens * 4);
    if (s->n_picks) memcpy(block + b->at_picks, s->picks, s->n_picks * 4);
    for (uint32_t r = 0; r < s->n_tokens; r++) {
        const struct krn_seq *q = &s->seqs[b->row_seq[r]];
        rows[2 * r] = b->row_seq[r];
        rows[2 * r + 1] = q->pos0 + (r - q->first);
    }
    for (uint32_t g = 0; g < s->n_groups && g < b->dev.n_pools; g++)
        if (s->groups[g].table_stride == b->dev.pools[g].table_stride) memcpy(block + b->at_tables[g], s->groups[g].tables, (size_t)s->n_seqs * s->groups[g].table_stride * 4);
    for (uint32_t i = 0; i < b->cfg.n_ropes; i++) write_angles(b, s, i);
    for (uint32_t i = 0; i < b->n_sizes; i++) {
        uint32_t n = b->sizes[i].picked ? s->n_picks : s->n_tokens;
        size[i] = (VkDispatchIndirectCommand){b->sizes[i].x, (n + b->sizes[i].per - 1) / b->sizes[i].per, 1};
    }
}

int gpu_step_write(krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e)
{
    int rc = check(b, l, s, e);
    if (rc || b->step) return rc;
    if ((rc = krn_step_sequences(s, b->row_seq, e))) return rc;
    write_block(b, s);
    return ERR_OK;
}
