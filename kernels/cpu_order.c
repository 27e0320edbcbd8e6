/* kernels/cpu_order.c - where the workers of a list must wait for each other.
 *
 * Ops since the last barrier are remembered with what they read and write. The next op needs a barrier when it touches what
 * one of them wrote, or writes what one of them read, unless both deal the same rows (or columns) to the same workers: then
 * every worker only meets its own data. Done once for each class of step.
 * In a decode of one sequence nothing is dealt but linears and attention; the small ops between two of them run as the tail of
 * the first, on the worker that finishes its last piece, so that one barrier a parallel op is enough. */
#include "kernels/cpu_internal.h"

enum { SPACE_QUANT = 2, SPACE_SLOTS, SPACE_LATENT, SPACE_MOE_IN, SPACE_MOE_MID, SPACE_STATE, SPACE_RECURRENT = 1 << 16 }; /* 0 and 1 are the arenas */
struct touch { uint32_t space, lo, hi; bool write; const struct cpu_view *view; };
struct touches { struct touch t[8]; unsigned n; };

static void put(struct touches *s, uint32_t space, uint32_t lo, uint32_t hi, bool write, const struct cpu_view *v)
{
    s->t[s->n++] = (struct touch){space, lo, hi, write, v};
}
static void view(struct touches *s, const struct cpu_view *v, bool write) { put(s, v->rows, v->lo, v->hi, write, v); }

/* The outputs of a LINEAR's calls after the first lie in its `in` entries 1 and 2. */
static void touches_of(const struct cpu_op *x, struct touches *s)
{
    uint32_t state = SPACE_STATE + x->op->state, layer = x->op->state_layer;
    s->n = 0;
    switch (x->kind) {
    case CPU_ROW:
        for (unsigned i = 0; i < x->n_in; i++) view(s, &x->in[i], false);
        view(s, &x->out, true);
        break;
    case CPU_QUANTISE:
        view(s, &x->in[0], false);
        put(s, SPACE_QUANT, 0, 1, true, NULL);
        break;
    case CPU_LINEAR:
        view(s, &x->in[0], false);
        put(s, SPACE_QUANT, 0, 1, false, NULL);
        view(s, &x->out, true);
        for (unsigned i = 1; i < x->n_linear; i++) view(s, &x->in[i], true);
        break;
    case CPU_STORE:
        for (unsigned i = 1; i < x->n_in; i++) view(s, &x->in[i], false);
        put(s, state, layer, layer + 1, true, NULL);
        break;
    case CPU_ATTEND:
        view(s, &x->in[0], false);
        put(s, state, layer, layer + 1, false, NULL);
        put(s, SPACE_SLOTS, 0, 1, true, NULL);
        if (x->op->code == KRN_ATTEND_MLA) put(s, SPACE_LATENT, 0, 1, true, NULL);
        else view(s, &x->out, true);
        break;
    case CPU_ABSORB:
        view(s, &x->in[0], false);
        view(s, &x->in[1], false);
        put(s, SPACE_LATENT, 0, 1, true, NULL);
        break;
    case CPU_CONV: case CPU_DELTA:
        for (unsigned i = 0; i < x->n_in; i++) view(s, &x->in[i], false);
        layer = layer * KRN_STATE_FIELDS + x->op->u.state.field;
        put(s, SPACE_RECURRENT + x->op->state, layer, layer + 1, true, NULL);
        view(s, &x->out, true);
        break;
    case CPU_UNFOLD:
        put(s, SPACE_LATENT, 0, 1, false, NULL);
        view(s, &x->out, true);
        break;
    case CPU_MOE_IN:
        view(s, &x->in[0], false);
        put(s, SPACE_MOE_IN, 0, 1, true, NULL);
        break;
    case CPU_MOE_UP:
        view(s, &x->in[0], false); /* the input itself where one row meets f32 weights */
        put(s, SPACE_MOE_IN, 0, 1, false, NULL);
        put(s, SPACE_MOE_MID, 0, 1, true, NULL);
        break;
    case CPU_MOE_DOWN:
        view(s, &x->in[1], false);
        put(s, SPACE_MOE_MID, 0, 1, false, NULL);
        view(s, &x->out, true);
        break;
    }
}

static bool overlap(const struct touch *a, const struct touch *b) { return a->space == b->space && a->lo < b->hi && b->lo < a->hi; }

/* Row r of one is where row r of the other is. Registers that share columns but not their first one have their rows elsewhere. */
static bool same_rows(const struct cpu_view *a, const struct cpu_view *b)
{
    return a->stride == b->stride && (a->lo > b->lo ? a->lo - b->lo : b->lo - a->lo) % a->stride == 0;
}

/* Does each worker touch, through a and b, only what it touched itself. */
static bool own(const struct cpu_op *x, const struct cpu_op *y, const struct touch *a, const struct touch *b, unsigned class)
{
    enum cpu_deal d = cpu_deal_of(x, class);
    if (d != cpu_deal_of(y, class) || x->out.rows != y->out.rows) return false;
    if (d == CPU_BY_ROWS) return !a->view || !b->view || (a->view->rows == x->out.rows && same_rows(a->view, b->view));
    return d == CPU_BY_COLS && a->view && b->view && a->view->p == b->view->p && a->view->dim == b->view->dim;
}

static bool must_wait(const struct cpu_op *x, const struct cpu_op *y, unsigned class)
{
    struct touches a, b;
    touches_of(x, &a);
    touches_of(y, &b);
    for (unsigned i = 0; i < a.n; i++)
        for (unsigned j = 0; j < b.n; j++)
            if ((a.t[i].write || b.t[j].write) && overlap(&a.t[i], &b.t[j]) && !own(x, y, &a.t[i], &b.t[j], class)) return true;
    return false;
}

static bool any_must_wait(const krn_list *l, size_t since, size_t i, unsigned class)
{
    for (size_t j = since; j < i; j++)
        if (must_wait(&l->ops[j], &l->ops[i], class)) return true;
    return false;
}
static void set_barrier(struct cpu_op *x, unsigned class) { x->barrier |= (uint8_t)(1u << class); }

static void order_dealt(krn_list *l, unsigned class)
{
    for (size_t i = 0, since = 0; i < l->n; i++)
        if (any_must_wait(l, since, i, class)) {
            set_barrier(&l->ops[i], class);
            since = i;
        }
}

/* Small ops at the start belong to worker 0, others to the tail of the parallel op before them; if that one began without a
 * barrier, its end does not tell that everything before has ended, so they wait for a barrier and belong to worker 0. */
static void order_one(krn_list *l)
{
    struct cpu_op *owner = NULL;
    for (size_t i = 0, since = 0; i < l->n; i++) {
        struct cpu_op *x = &l->ops[i];
        bool after_parallel = i && cpu_parallel(x - 1);
        if (cpu_parallel(x)) {
            owner = NULL;
            if (any_must_wait(l, since, i, CPU_CLASS_ONE)) {
                set_barrier(x, CPU_CLASS_ONE);
                since = i;
            }
            continue;
        }
        if (after_parallel && since == i - 1) owner = x - 1;
        else if (after_parallel) {
            set_barrier(x, CPU_CLASS_ONE);
            since = i;
        }
        if (owner) owner->tail++;
    }
}

void cpu_order(krn_list *l)
{
    for (unsigned class = 0; class < CPU_CLASS_ONE; class++) order_dealt(l, class);
    order_one(l);
}
