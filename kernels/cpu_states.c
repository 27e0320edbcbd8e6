/* kernels/cpu_states.c - recurrent layers on the CPU backend: checks a step's states, deals heads and channels of its sequences. */
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

static void run_head(const krn_backend *b, const struct cpu_op *x, const struct krn_seq *s, uint8_t *layer, const struct krn_state_field *f, uint32_t h, float *scratch)
{
    const struct cpu_view *v = x->in;
    size_t r = s->first, one = (size_t)f->dk * f->dv, tile = (2 * (size_t)f->dk + f->dv) * KRN_TILE;
    struct krn_delta d = {
        .ops = b->ops, .dk = f->dk, .dv = f->dv, .n = s->count, .pos0 = s->pos0, .q = v[0].p + r * v[0].stride + h * v[0].head, .k = v[1].p + r * v[1].stride + h * v[1].head,
        .v = v[2].p + r * v[2].stride + h * v[2].head, .g = v[3].p + r * v[3].stride + h * v[3].head, .beta = v[4].p + r * v[4].stride + h, .q_stride = v[0].stride,
        .k_stride = v[1].stride, .v_stride = v[2].stride, .g_stride = v[3].stride, .beta_stride = v[4].stride, .out = x->out.p + r * x->out.stride + h * x->out.head,
        .out_stride = x->out.stride, .s = (float *)(void *)(layer + f->offset) + h * one, .tile = (float *)(void *)(layer + f->tile_offset) + h * tile};
    krn_delta_run(&d, scratch);
}

static void run_channels(const krn_backend *b, const struct cpu_op *x, const struct krn_seq *s, uint8_t *layer, const struct krn_state_field *f, uint32_t block, float *scratch)
{
    const struct krn_weight *w = cpu_weight(b->list, x->op, 0);
    uint32_t c0 = block * KRN_CONV_COLS, n = x->out.dim - c0 < KRN_CONV_COLS ? x->out.dim - c0 : KRN_CONV_COLS;
    struct krn_conv c = {.ops = b->ops, .taps = w->cols, .cols = f->cols, .n = s->count, .pos0 = s->pos0, .c0 = c0, .n_cols = n, .x = x->in[0].p + s->first * x->in[0].stride,
                         .x_stride = x->in[0].stride, .out = x->out.p + s->first * x->out.stride, .out_stride = x->out.stride, .w = w->data, .w_type = w->type,
                         .rows = layer + f->offset, .type = f->type};
    krn_conv_run(&c, scratch);
}

bool cpu_run_state(const krn_backend *b, struct cpu_op *x, unsigned worker)
{
    const struct krn_step *st = b->step;
    const struct krn_states *g = &st->states[x->op->state];
    uint32_t per = units_of(x), n = st->n_seqs * per;
    float *scratch = b->scratch + worker * b->scratch_floats;
    for (bool last = false;;) {
        uint32_t u = atomic_fetch_add_explicit(&x->next, 1, memory_order_relaxed);
        if (u >= n) return last;
        const struct krn_seq *s = &st->seqs[u / per];
        uint8_t *layer = g->base + st->slots[u / per] * g->layout.slot_bytes + x->op->state_layer * g->layout.layer_bytes;
        const struct krn_state_field *f = &g->layout.field[x->op->u.state.field];
        if (s->count) (x->kind == CPU_DELTA ? run_head : run_channels)(b, x, s, layer, f, u % per, scratch);
        last = atomic_fetch_add_explicit(&x->done, 1, memory_order_acq_rel) + 1 == n;
    }
}
