/* Matrices with a row for every token are the largest of a model. They are cut into tiles of whole rows, each a weight and a record of
 * its own, so that a budget need not hold one whole: the head runs tile by tile, a segment each; the embedding takes the tile of a
 * token's row. A tied matrix is cut once and serves both. */
#include "engine/bind_internal.h"
#include "engine/emit_internal.h"

#include <stdlib.h>
#include <string.h>

#define TILE_BYTES ((uint64_t)16 << 20)

static bool can_cut(const struct eng_tensor *t)
{
    return !strcmp(t->form, "plain") && !t->transposed && !t->map && t->n_dims == 2 && t->n_spans == 1 && t->spans[0].n_outer == 1;
}

static int cut(struct eng_compiler *c, uint32_t w, uint32_t rows, uint32_t n, uint32_t *first, struct err *e)
{
    struct eng_binder *b = &c->b;
    int rc = eng_bind_reserve(b, n, e);

    *first = b->n;
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct eng_tensor *t = &b->tensors[b->n];
        struct krn_weight *k = &b->weights[b->n++];
        struct off_span *s = ARENA_ARRAY(c->mem, struct off_span, 1);
        *t = b->tensors[w];
        *k = b->weights[w];
        k->rows = i + 1 < n ? rows : k->rows - i * rows;
        k->layout = krn_slot_can(k->type) ? KRN_TILED : KRN_PLAIN;
        t->dims[0] = k->rows;
        if (!s)
            return err_set(e, ERR_NOMEM, "tiles of %s", t->file_name);
        *s = t->spans[0];
        s->offset += (uint64_t)i * rows * s->row_stride;
        s->n_rows = k->rows;
        t->spans = s;
    }
    return rc;
}

int eng_vocab_tiles(struct eng_compiler *c, uint32_t w, struct eng_tiles *out, struct err *e)
{
    const struct eng_tensor *t = w == KRN_NO_WEIGHT ? NULL : &c->b.tensors[w];

    *out = (struct eng_tiles){.weight = w, .first = w, .n = 1, .rows = t ? c->b.weights[w].rows : 0};
    if (!t || c->bind_only || !can_cut(t))
        return ERR_OK;
    for (unsigned i = 0; i < c->n_tiles; i++)
        if (c->tiles[i].weight == w) {
            *out = c->tiles[i];
            return ERR_OK;
        }
    uint64_t most = c->tile_bytes ? c->tile_bytes : TILE_BYTES, row = t->spans[0].row_bytes, all = out->rows;
    uint64_t rows = (most / (row ? row : 1)) & ~(uint64_t)(KRN_TILE_ROWS - 1);
    rows = rows ? rows : KRN_TILE_ROWS;
    if (all <= rows || c->n_tiles == sizeof c->tiles / sizeof *c->tiles)
        return ERR_OK;
    uint32_t n = (uint32_t)((all + rows - 1) / rows);
    int rc = cut(c, w, (uint32_t)rows, n, &out->first, e);
    out->n = n;
    out->rows = (uint32_t)rows;
    if (!rc)
        c->tiles[c->n_tiles++] = *out;
    return rc;
}

int eng_emit_head(struct eng_operands *o, struct krn_op *op, const struct eng_tiles *t, struct eng_val *out)
{
    struct eng_compiler *c = o->c;
    struct krn_op one;
    uint32_t all = c->b.weights[t->weight].rows;
    int rc = eng_emit_call(o, op, 1, all, out);

    one = c->ops[--c->n_ops]; /* the call is made anew, tile by tile */
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        one.weight[0] = t->first + i;
        one.out = out->view;
        one.out.shift += i * t->rows;
        one.out.dim = one.out.head_stride = i + 1 < t->n ? t->rows : all - i * t->rows;
        rc = eng_emit_push(o, &one);
        if (!rc && i + 1 < t->n)
            rc = eng_compile_segment(c, false, o->e);
        c->seg_joins = i + 1 < t->n;
    }
    return rc;
}
