/* kernels/kv_layout.c - sizes of a KV page's parts, each product checked. */
#include "kernels/kv_layout.h"

static bool mul(size_t *acc, size_t by) { return !__builtin_mul_overflow(*acc, by, acc); }
static bool align64(size_t *n) { return !__builtin_add_overflow(*n, (size_t)63, n) && (*n &= ~(size_t)63, true); }

bool krn_kv_layout_init(struct krn_kv_layout *l)
{
    size_t k, v;
    if (l->type != KRN_F32 && l->type != KRN_F16 && l->type != KRN_BF16) return false;
    if (!l->page_tokens || l->page_tokens % KRN_KV_BLOCK || !l->n_layers || !l->heads || !l->dim_k) return false;
    k = v = l->type == KRN_F32 ? 4 : 2;
    if (!mul(&k, l->page_tokens) || !mul(&k, l->heads) || !mul(&k, l->dim_k) || !align64(&k)) return false;
    if (!mul(&v, l->page_tokens) || !mul(&v, l->heads) || !mul(&v, l->dim_v) || !align64(&v)) return false;
    l->v_offset = k;
    if (__builtin_add_overflow(k, v, &l->layer_bytes)) return false;
    l->page_bytes = l->layer_bytes;
    return mul(&l->page_bytes, l->n_layers);
}
