/* Weights -> records -> what each segment leases. A record is at most 64 MiB of one segment's weights (a larger tensor has one of
 * its own); an expert's matrices share one. A weight that two segments use (a tied head) lies in the record of the first. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile_internal.h"
#include "engine/forms.h"

#define RECORD_BYTES_MAX ((uint64_t)64 << 20)

struct packer {
    struct eng_compiler *c;
    uint32_t *record_of;          /* [n weights] UINT32_MAX: none yet */
    struct off_record *records; uint32_t n, cap;
    struct off_part *parts; uint32_t n_parts, cap_parts; /* of the record being filled */
    uint64_t bytes;
    const char *name;
    uint32_t n_of_name;
    uint32_t *list; uint32_t n_list, cap_list; /* the segment's records */
    struct err *e;
};

static int grow(void **p, uint32_t n, uint32_t *cap, size_t size, struct err *e)
{
    if (n < *cap)
        return ERR_OK;
    uint32_t more = *cap ? 2 * *cap : 64;
    void *q = realloc(*p, more * size);
    if (!q)
        return err_set(e, ERR_NOMEM, "records");
    *p = q;
    *cap = more;
    return ERR_OK;
}

static int list_record(struct packer *k, uint32_t r)
{
    int rc;

    for (uint32_t i = 0; i < k->n_list; i++)
        if (k->list[i] == r)
            return ERR_OK;
    if ((rc = grow((void **)&k->list, k->n_list, &k->cap_list, sizeof *k->list, k->e)))
        return rc;
    k->list[k->n_list++] = r;
    return ERR_OK;
}

static int end_record(struct packer *k)
{
    struct arena *a = k->c->mem;
    struct off_record *r;
    int rc;

    if (!k->n_parts)
        return ERR_OK;
    if ((rc = grow((void **)&k->records, k->n, &k->cap, sizeof *k->records, k->e)))
        return rc;
    r = &k->records[k->n];
    memset(r, 0, sizeof *r);
    r->name = k->n_of_name++ ? arena_printf(a, "%s/%u", k->name, k->n_of_name) : k->name;
    r->parts = ARENA_ARRAY(a, struct off_part, k->n_parts);
    if (!r->name || !r->parts)
        return err_set(k->e, ERR_NOMEM, "record");
    memcpy(r->parts, k->parts, k->n_parts * sizeof *k->parts);
    r->n_parts = k->n_parts;
    if ((rc = off_record_layout(r, k->e)))
        return rc;
    k->c->p->weight_bytes_file += r->file_bytes;
    k->c->p->weight_bytes_slot += r->slot_bytes;
    k->n_parts = 0;
    k->bytes = 0;
    k->n++;
    return ERR_OK;
}

/* Values and scales apart: what the loader needs to put them together. */
static int packed_of(struct packer *k, const struct eng_tensor *t, const struct off_packed **out, struct err *e)
{
    const off_catalog *cat = k->c->cat;
    enum eng_form_kind kind = eng_form_kind(t->form);
    const struct eng_tensor *s = t->scales != KRN_NO_WEIGHT ? &k->c->b.tensors[t->scales] : NULL;
    struct off_packed *p;

    *out = NULL;
    if (kind == ENG_FORM_PLAIN)
        return ERR_OK;
    if (!s || eng_form_slot(kind, t->type, s->type) == KRN_TYPE_COUNT)
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: no kernel reads %s with scales of type %s", t->file_name, t->form, s ? krn_types[s->type].name : "none");
    if (!(p = ARENA_NEW(k->c->mem, struct off_packed)))
        return err_set(e, ERR_NOMEM, "packed weights");
    *p = (struct off_packed){.kind = kind == ENG_FORM_INT4 ? OFF_PACKED_INT4 : kind == ENG_FORM_MXFP4 || kind == ENG_FORM_MXFP4_BLOCKS ? OFF_PACKED_MXFP4 : OFF_PACKED_FP8,
                             .data = off_catalog_find(cat, t->file_name, strlen(t->file_name)), .scales = off_catalog_find(cat, s->file_name, strlen(s->file_name)), .rows = 1};
    struct eng_form f = {.kind = kind, .data = p->data, .scale = p->scales};
    struct off_tensor rows = eng_form_rows(&f);
    uint64_t cols = t->dims[t->n_dims - 1];
    p->row_bytes = krn_row_bytes(rows.type, rows.dims[rows.n_dims - 1]);
    p->matrix_rows = rows.n_dims > 1 ? rows.dims[rows.n_dims - 2] : 1;
    p->n = p->scales->n_dims ? p->scales->dims[p->scales->n_dims - 1] : 1;
    p->cols = cols;
    if (kind == ENG_FORM_FP8_BLOCK) {
        p->rows = k->c->b.scale_block[0];
        p->cols = k->c->b.scale_block[1];
    } else if (kind == ENG_FORM_FP8_ROW && p->scales->bytes == krn_types[p->scales->type].block_bytes) {
        p->rows = UINT64_MAX / 4; /* one for the tensor */
    } else if (p->kind != OFF_PACKED_FP8) {
        p->cols = p->n ? cols / p->n : 0;
    }
    uint64_t granule = p->kind == OFF_PACKED_FP8 ? KRN_F8_BLOCK : 32;
    if (!p->row_bytes || !p->cols || (p->cols % granule && p->cols < cols))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: expected a scale for a multiple of %" PRIu64 " columns, found one for %" PRIu64, t->file_name, granule, p->cols);
    *out = p;
    return ERR_OK;
}

static int loadable(struct packer *k, const struct krn_op *op, const struct eng_tensor *t)
{
    bool mapped = t->map && !(op->code == KRN_DECAY && op->u.decay.raised);
    bool turned = t->transposed && !(op->code == KRN_ATTEND_MLA && op->u.attend.turned);

    if (turned || mapped || (t->transposed && strcmp(t->form, "plain")))
        return err_set(k->e, ERR_UNSUPPORTED, "tensor %s: no kernel reads it as %s%s%s", t->file_name, t->form, t->transposed ? ", transposed" : "", mapped ? ", mapped" : "");
    return ERR_OK;
}

static int add_weight(struct packer *k, const struct krn_op *op, uint32_t i, bool list)
{
    const struct eng_tensor *t = &k->c->b.tensors[i];
    const struct krn_weight *w = &k->c->b.weights[i];
    uint64_t bytes = 0;
    int rc;

    if (i == KRN_NO_WEIGHT)
        return ERR_OK;
    if (k->record_of[i] != UINT32_MAX)
        return list ? list_record(k, k->record_of[i]) : ERR_OK;
    const struct off_packed *packed;
    if ((rc = loadable(k, op, t)) || (rc = packed_of(k, t, &packed, k->e)))
        return rc;
    for (uint32_t s = 0; s < t->n_spans; s++)
        bytes += t->spans[s].n_outer * t->spans[s].n_rows * t->spans[s].row_bytes;
    if (list && k->n_parts && k->bytes + bytes > RECORD_BYTES_MAX && (rc = end_record(k))) /* an expert is one record whatever its size */
        return rc;
    if ((rc = grow((void **)&k->parts, k->n_parts, &k->cap_parts, sizeof *k->parts, k->e)))
        return rc;
    k->parts[k->n_parts++] = (struct off_part){.name = t->file_name, .type = w->type, .packed = packed, .layout = w->layout, .rows = w->rows, .cols = w->cols,
                                               .spans = t->spans, .n_spans = t->n_spans, .weight = i};
    k->bytes += bytes;
    k->record_of[i] = k->n;
    return list ? list_record(k, k->n) : ERR_OK;
}

/* A table that is looked into: each tile is a record of its own, before all others of the segment. */
static int pack_table(struct packer *k, const struct krn_op *op, struct eng_segment *s)
{
    int rc = end_record(k);
    for (uint32_t t = 0; t < op->u.embed.tiles && !rc; t++)
        if (!(rc = add_weight(k, op, op->weight[0] + t, true)))
            rc = end_record(k);
    s->n_lookups = k->n_list;
    return rc;
}

static int pack_segment(struct packer *k, struct eng_segment *s)
{
    int rc = ERR_OK;

    k->name = s->name;
    k->n_of_name = 0;
    k->n_list = 0;
    for (uint32_t i = s->op0; i < s->op0 + s->n_ops && !rc; i++) {
        const struct krn_op *op = &k->c->ops[i];
        if (op->code == KRN_EMBED && k->n_list == 0 && op->weight[0] != KRN_NO_WEIGHT)
            rc = pack_table(k, op, s);
        for (unsigned w = 0; w < KRN_OP_WEIGHTS && !rc && op->code != KRN_EXPERTS; w++)
            if (op->weight[w] != KRN_NO_WEIGHT)
                rc = add_weight(k, op, op->weight[w], true);
    }
    if (rc || (rc = end_record(k)))
        return rc;
    uint32_t *list = ARENA_ARRAY(k->c->mem, uint32_t, k->n_list);
    if (!list)
        return err_set(k->e, ERR_NOMEM, "records of a segment");
    if (k->n_list)
        memcpy(list, k->list, k->n_list * sizeof *list);
    s->records = list;
    s->n_records = k->n_list;
    return ERR_OK;
}

/* One record an expert: its gate, up and down, and their biases. */
static int pack_experts(struct packer *k, const struct krn_op *op, uint32_t *records)
{
    for (uint32_t x = 0; x < op->u.experts.n; x++) {
        int rc = ERR_OK;
        if (!(k->name = arena_printf(k->c->mem, "layer %u expert %u", op->layer, x)))
            return err_set(k->e, ERR_NOMEM, "record name");
        k->n_of_name = 0;
        for (unsigned w = 0; w < op->n_weights && !rc; w++)
            if (op->weight[w] != KRN_NO_WEIGHT)
                rc = add_weight(k, op, op->weight[w] + x, false);
        records[x] = k->n;
        if (rc || (rc = end_record(k)))
            return rc;
    }
    return ERR_OK;
}

static int pack_choices(struct packer *k)
{
    struct eng_compiler *c = k->c;
    struct off_choice *to = &c->p->choice;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < c->n_segs; i++)
        to->layers += c->segs[i].experts;
    to->per_layer = c->p->experts.n;
    to->k = c->p->experts.k;
    uint32_t *records = ARENA_ARRAY(c->mem, uint32_t, (size_t)to->layers * to->per_layer + 1), layer = 0;
    if (!records)
        return err_set(k->e, ERR_NOMEM, "records of experts");
    memset(records, 0xFF, ((size_t)to->layers * to->per_layer + 1) * sizeof *records);
    to->records = records;
    for (uint32_t i = 0; i < c->n_segs && !rc; i++)
        if (c->segs[i].experts) {
            c->segs[i].choice = layer;
            rc = pack_experts(k, &c->ops[c->segs[i].op0], records + (size_t)layer++ * to->per_layer);
        }
    return rc;
}

static int list_uses(struct packer *k)
{
    struct eng_plan *p = k->c->p;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->c->n_segs; i++)
        n += k->c->segs[i].n_records;
    if (!(p->uses = ARENA_ARRAY(k->c->mem, struct off_use, n)))
        return err_set(k->e, ERR_NOMEM, "uses of records");
    for (uint32_t i = 0; i < k->c->n_segs; i++)
        for (uint32_t r = 0; r < k->c->segs[i].n_records; r++)
            p->uses[p->n_uses++] = (struct off_use){.record = k->c->segs[i].records[r], .segment = i, .looked_up = r < k->c->segs[i].n_lookups};
    return ERR_OK;
}

int eng_segment_records(struct eng_compiler *c, struct err *e)
{
    struct packer k = {.c = c, .e = e};
    int rc = ERR_OK;

    if (!(k.record_of = ARENA_ARRAY(c->mem, uint32_t, c->b.n)))
        return err_set(e, ERR_NOMEM, "records");
    memset(k.record_of, 0xFF, c->b.n * sizeof *k.record_of);
    for (uint32_t i = 0; i < c->n_segs && !rc; i++)
        rc = pack_segment(&k, &c->segs[i]);
    rc = rc ? rc : pack_choices(&k);
    rc = rc ? rc : list_uses(&k);
    c->p->records = k.records;
    c->p->n_records = k.n;
    c->p->record_of = k.record_of;
    free(k.parts);
    free(k.list);
    return rc;
}
