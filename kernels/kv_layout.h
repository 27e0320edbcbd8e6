/* kernels/kv_layout.h - where a key or value lies inside a KV page: the contract between pages, kernels and tiers.
 *
 * A page holds page_tokens tokens (a multiple of 16) of all layers of one KV group, layer by layer:
 *   [layer]{ K: [kv_head][16-token block][dim][16 tokens]   V: [kv_head][token][dim_v] }
 * K is transposed inside absolute 16-token blocks so that a vector lane is a token and a score is a chain over dim: no
 * reduction crosses lanes and scores of a block come out together (DESIGN says [token][dim]; this is the same page, read
 * faster). Elements are f32, f16 or bf16. Each layer's part begins at a multiple of 64 bytes. */
#ifndef SLUICE_KERNELS_KV_LAYOUT_H
#define SLUICE_KERNELS_KV_LAYOUT_H
#include "kernels/types.h"
#define KRN_KV_BLOCK 16

struct krn_kv_layout {
    enum krn_type type;         /* KRN_F32, KRN_F16, KRN_BF16 */
    uint32_t page_tokens;       /* 16 * n */
    uint32_t n_layers, heads;   /* layers of the group, KV heads */
    uint32_t dim_k, dim_v;
    size_t v_offset;            /* bytes from a layer's start to its V part */
    size_t layer_bytes, page_bytes;
};
/* Fills the last three from the others; false on overflow or an impossible value. */
bool krn_kv_layout_init(struct krn_kv_layout *l);
/* Byte offset inside a page of K element (token t of the page, head h, channel d); likewise V. */
static inline size_t krn_kv_k(const struct krn_kv_layout *l, uint32_t layer, uint32_t h, uint32_t t, uint32_t d)
{
    size_t e = l->type == KRN_F32 ? 4 : 2, blocks = l->page_tokens / KRN_KV_BLOCK;
    return layer * l->layer_bytes + (((h * blocks + t / KRN_KV_BLOCK) * l->dim_k + d) * KRN_KV_BLOCK + t % KRN_KV_BLOCK) * e;
}
static inline size_t krn_kv_v(const struct krn_kv_layout *l, uint32_t layer, uint32_t h, uint32_t t, uint32_t d)
{
    size_t e = l->type == KRN_F32 ? 4 : 2;
    return layer * l->layer_bytes + l->v_offset + (((size_t)h * l->page_tokens + t) * l->dim_v + d) * e;
}
#endif
