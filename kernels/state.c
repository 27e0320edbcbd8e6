/* kernels/state.c - sizes of a recurrent state's parts, each product checked. */
#include "kernels/state.h"

static bool mul(size_t *acc, size_t by) { return !__builtin_mul_overflow(*acc, by, acc); }
static bool put(size_t *at, size_t n) { return !__builtin_add_overflow(*at, n, at) && !__builtin_add_overflow(*at, (size_t)63, at) && (*at &= ~(size_t)63, true); }

/* After all else was found to fit: nothing here is larger. */
static size_t kept(const struct krn_state_field *f)
{
    return f->n_dims == 3 ? (size_t)f->heads * f->dk * f->dv * sizeof(float) : (size_t)f->keep * f->cols * (f->type == KRN_F32 ? 4 : 2);
}

static bool matrix(struct krn_state_field *f, size_t *at)
{
    size_t s = sizeof(float), tile = sizeof(float) * KRN_TILE, sum;
    if (!f->heads || !f->dk || !f->dv || !mul(&s, f->heads) || !mul(&s, f->dk) || !mul(&s, f->dv)) return false;
    if (__builtin_add_overflow(2 * (size_t)f->dk, (size_t)f->dv, &sum) || !mul(&tile, sum) || !mul(&tile, f->heads)) return false;
    f->offset = *at;
    if (!put(at, s)) return false;
    f->tile_offset = *at;
    return put(at, tile);
}
static bool rows(struct krn_state_field *f, size_t *at)
{
    size_t n = f->type == KRN_F32 ? 4 : 2;
    if (f->type != KRN_F32 && f->type != KRN_F16 && f->type != KRN_BF16) return false;
    if (f->keep > KRN_STATE_ROWS || !f->cols || !mul(&n, f->cols) || !mul(&n, KRN_STATE_ROWS)) return false;
    f->offset = f->tile_offset = *at;
    return put(at, n);
}

bool krn_state_layout_init(struct krn_state_layout *l)
{
    size_t at = 0;
    l->kept_layer_bytes = 0;
    if (!l->n_layers || l->n_fields > KRN_STATE_FIELDS) return false;
    for (struct krn_state_field *f = l->field; f < l->field + l->n_fields; f++) {
        if (!(f->n_dims == 3 ? matrix(f, &at) : f->n_dims == 2 && rows(f, &at))) return false;
        f->kept_offset = l->kept_layer_bytes;
        l->kept_layer_bytes += kept(f);
    }
    l->layer_bytes = l->slot_bytes = at;
    return mul(&l->slot_bytes, l->n_layers);
}

size_t krn_state_kept_bytes(const struct krn_state_layout *l) { return l->kept_layer_bytes * l->n_layers; }
