/* kernels/cpu_states.c - recurrent layers on the CPU backend: checks a step's states, deals heads and channels of its sequences,
 * copies them where a snapshot is to be taken. */
#include <string.h>

#include "kernels/cpu_internal.h"

static uint32_t units_of(const struct cpu_op *x) /* of one sequence */
{
    return x->kind == CPU_DELTA ? x->out.heads : (x->out.dim - 1) / KRN_CONV_COLS + 1;
}
size_t cpu_state_scratch(const struct cpu_op *x)
{
    return x->kind == CPU_DELTA ? krn_delta_scratch(x->in[1].dim, x->out.dim) : krn_conv_scratch(KRN_CONV_TAPS);
}

static bool fits(const struct krn_list *l, const struct cpu_op *x, const struct krn_state_field *f)
{
    if (x->kind == CPU_DELTA) return f->n_dims == 3 && f->heads == x->out.heads && f->dk == x->in[1].dim && f->dv == x->out.dim;
    return f->n_dims == 2 && f->cols == x->out.dim && f->keep + 1 == cpu_weight(l, x->op, 0)->cols;
}

int cpu_check_states(const krn_backend *b, const krn_list *l, const struct krn_step *s, struct err *e)
{
    (void)b;
    for (uint32_t i = 0; i < s->n_snapshots; i++) {
        const struct krn_snapshot *p = &s->snapshots[i];
        if (p->seq >= s->n_seqs || p->pos % KRN_TILE || p->pos <= s->seqs[p->seq].pos0 || p->pos - s->seqs[p->seq].pos0 > s->seqs[p->seq].count)
            return err_set(e, ERR_INVALID, "snapshot %u: sequence %u is not at the end of a tile at position %u in this step", i, p->seq, p->pos);
    }
    for (size_t i = 0; i < l->n; i++) {
        const struct cpu_op *x = &l->ops[i];
        if (x->kind != CPU_CONV && x->kind != CPU_DELTA) continue;
        if (x->op->state >= s->n_states) return err_set(e, ERR_INVALID, "recurrent group %u of %u", x->op->state, s->n_states);
        const struct krn_state_layout *y = &s->states[x->op->state].layout;
        if (x->op->state_layer >= y->n_layers || x->op->u.state.field >= y->n_fields || !fits(l, x, &y->field[x->op->u.state.field]))
            return err_set(e, ERR_INVALID, "recurrent group %u: field %u of layer %u is not what %s wants", x->op->state, x->op->u.state.field, x->op->state_layer, krn_op_name(x->op->code));
    }
    return ERR_OK;
}

/* One head, or one block of channels, of one sequence in one layer. */
struct unit { const struct cpu_op *x; const struct krn_state_field *f; uint8_t *layer; uint32_t index; float *scratch; };

static void run_head(const krn_backend *b, const struct unit *u, const struct krn_seq *s)
{
    const struct cpu_op *x = u->x;
    const struct cpu_view *v = x->in;
    size_t r = s->first, h = u->index, one = (size_t)u->f->dk * u->f->dv, tile = (2 * (size_t)u->f->dk + u->f->dv) * KRN_TILE;
    struct krn_delta d = {
        .ops = b->ops, .dk = u->f->dk, .dv = u->f->dv, .n = s->count, .pos0 = s->pos0, .q = v[0].p + r * v[0].stride + h * v[0].head, .k = v[1].p + r * v[1].stride + h * v[1].head,
        .v = v[2].p + r * v[2].stride + h * v[2].head, .g = v[3].p + r * v[3].stride + h * v[3].head, .beta = v[4].p + r * v[4].stride + h, .q_stride = v[0].stride,
        .k_stride = v[1].stride, .v_stride = v[2].stride, .g_stride = v[3].stride, .beta_stride = v[4].stride, .out = x->out.p + r * x->out.stride + h * x->out.head,
        .out_stride = x->out.stride, .s = (float *)(void *)(u->layer + u->f->offset) + h * one, .tile = (float *)(void *)(u->layer + u->f->tile_offset) + h * tile};
    krn_delta_run(&d, u->scratch);
}

static uint32_t channels(const struct unit *u, uint32_t *c0)
{
    *c0 = u->index * KRN_CONV_COLS;
    return u->f->cols - *c0 < KRN_CONV_COLS ? u->f->cols - *c0 : KRN_CONV_COLS;
}

static void run_channels(const krn_backend *b, const struct unit *u, const struct krn_seq *s)
{
    const struct cpu_op *x = u->x;
    const struct krn_weight *w = cpu_weight(b->list, x->op, 0);
    uint32_t c0, n = channels(u, &c0);
    struct krn_conv c = {.ops = b->ops, .taps = w->cols, .cols = u->f->cols, .n = s->count, .pos0 = s->pos0, .c0 = c0, .n_cols = n, .x = x->in[0].p + s->first * x->in[0].stride,
                         .x_stride = x->in[0].stride, .out = x->out.p + s->first * x->out.stride, .out_stride = x->out.stride, .w = w->data, .w_type = w->type,
                         .rows = u->layer + u->f->offset, .type = u->f->type};
    krn_conv_run(&c, u->scratch);
}

/* The unit's part of a snapshot at position pos, right after that was reached. */
static void save(const krn_backend *b, const struct unit *u, uint8_t *to, uint32_t pos)
{
    const struct krn_states *g = b->step->states;
    for (uint32_t i = 0; i < u->x->op->state; i++) to += krn_state_kept_bytes(&g[i].layout);
    to += u->x->op->state_layer * g[u->x->op->state].layout.kept_layer_bytes + u->f->kept_offset;
    if (u->f->n_dims == 3) {
        size_t one = (size_t)u->f->dk * u->f->dv * sizeof(float);
        memcpy(to + u->index * one, u->layer + u->f->offset + u->index * one, one);
        return;
    }
    uint32_t c0, n = channels(u, &c0);
    size_t e = u->f->type == KRN_F32 ? 4 : 2, row = u->f->cols * e;
    for (uint32_t k = u->f->keep; k > 0; k--, to += row) {
        if (k > pos) memset(to + c0 * e, 0, n * e);
        else memcpy(to + c0 * e, u->layer + u->f->offset + (pos - k) % KRN_STATE_ROWS * row + c0 * e, n * e);
    }
}

/* Sequence q's rows, in parts where snapshots lie in between. */
static void run_unit(const krn_backend *b, const struct unit *u, uint32_t q)
{
    const struct krn_step *st = b->step;
    struct krn_seq s = st->seqs[q];
    uint32_t end = s.pos0 + s.count;
    for (uint32_t i = 0; s.pos0 < end; s.first += s.count, s.pos0 += s.count) {
        while (i < st->n_snapshots && (st->snapshots[i].seq != q || st->snapshots[i].pos <= s.pos0)) i++;
        bool here = i < st->n_snapshots && st->snapshots[i].pos <= end;
        s.count = (here ? st->snapshots[i].pos : end) - s.pos0;
        (u->x->kind == CPU_DELTA ? run_head : run_channels)(b, u, &s);
        if (here) save(b, u, st->snapshots[i].to, st->snapshots[i].pos);
    }
}

bool cpu_run_state(const krn_backend *b, struct cpu_op *x, unsigned worker)
{
    const struct krn_step *st = b->step;
    const struct krn_states *g = &st->states[x->op->state];
    uint32_t per = units_of(x), n = st->n_seqs * per;
    for (bool last = false;;) {
        uint32_t i = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed);
        if (i >= n) return last;
        struct unit u = {.x = x, .f = &g->layout.field[x->op->u.state.field], .index = i % per, .scratch = b->scratch + worker * b->scratch_floats,
                         .layer = g->base + st->slots[i / per] * g->layout.slot_bytes + x->op->state_layer * g->layout.layer_bytes};
        run_unit(b, &u, i / per);
        last = atomic_fetch_add_explicit(&x->done, 1, memory_order_acq_rel) + 1 == n;
    }
}
