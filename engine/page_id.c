#include "engine/page_id.h"

#include <string.h>

static void put_u32(hash_ctx *h, const char *tag, uint32_t v)
{
    uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    hash_field(h, tag, b, sizeof b);
}
static void put_text(hash_ctx *h, const char *tag, const char *s) { hash_field(h, tag, s, strlen(s)); }

static void put_group(hash_ctx *h, const struct eng_page_scope *s)
{
    const struct eng_kv_group *k = s->kv;
    put_u32(h, "group", s->group);
    put_text(h, "state", k->state);
    put_u32(h, "kind", (uint32_t)k->kind);
    put_u32(h, "heads", k->heads);
    put_u32(h, "dim_k", k->dim_k);
    put_u32(h, "dim_v", k->dim_v);
    put_u32(h, "window", k->window);
    for (uint32_t i = 0; i < k->n_layers; i++)
        put_u32(h, "layer", k->layers[i]);
    put_text(h, "dtype", krn_types[s->type].name);
    put_u32(h, "page", s->page_tokens);
}

static void put_rope(hash_ctx *h, const struct krn_rope_table *t, bool far)
{
    const double *f = far && t->inv_freq_far ? t->inv_freq_far : t->inv_freq;
    put_u32(h, "rope", t->n_freq);
    for (uint32_t i = 0; i < t->n_freq; i++) {
        uint64_t bits;
        memcpy(&bits, &f[i], sizeof bits);
        put_u32(h, "freq", (uint32_t)bits);
        put_u32(h, "freq", (uint32_t)(bits >> 32));
    }
    uint32_t scale;
    memcpy(&scale, &t->mscale, sizeof scale);
    put_u32(h, "mscale", scale);
    for (uint32_t i = 0; t->sections && i < 4; i++)
        put_u32(h, "section", t->section[i]);
}

int eng_page_scope_id(const struct eng_page_scope *s, uint8_t out[HASH_BYTES], struct err *e)
{
    hash_ctx *h = hash_new();
    if (!h)
        return err_set(e, ERR_NOMEM, "identity of KV pages");
    put_u32(h, "format", ENG_PAGE_FORMAT);
    hash_field(h, "model", s->fingerprint, HASH_BYTES);
    hash_field(h, "sheet", s->sheet, HASH_BYTES);
    put_text(h, "numerics", s->numerics);
    put_group(h, s);
    put_u32(h, "tp_rank", s->tp_rank);
    put_u32(h, "tp_size", s->tp_size);
    for (uint32_t i = 0; i < s->n_ropes; i++)
        put_rope(h, &s->ropes[i], s->far);
    put_text(h, "images", s->image_recipe);
    put_text(h, "adapter", s->adapter);
    hash_field(h, "namespace", s->space, s->space_n);
    hash_end(h, out);
    return ERR_OK;
}

void eng_page_id(hash_ctx *h, const uint8_t scope[HASH_BYTES], const uint8_t *parent, const int32_t *ids, uint32_t n,
                 const struct eng_page_image *images, uint32_t n_images, uint8_t out[HASH_BYTES])
{
    uint8_t len[8] = {0}, le[256];
    hash_field(h, "scope", scope, HASH_BYTES);
    hash_field(h, "parent", parent, parent ? HASH_BYTES : 0);
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)n * 4 >> (8 * i));
    hash_raw(h, "ids", 4); /* a field like the others, its bytes made piece by piece */
    hash_raw(h, len, sizeof len);
    for (uint32_t i = 0; i < n;) {
        size_t k = 0;
        for (; i < n && k < sizeof le; i++, k += 4)
            for (unsigned j = 0; j < 4; j++)
                le[k + j] = (uint8_t)((uint32_t)ids[i] >> (8 * j));
        hash_raw(h, le, k);
    }
    for (uint32_t i = 0; i < n_images; i++) {
        put_u32(h, "image at", images[i].offset);
        hash_field(h, "image", images[i].digest, HASH_BYTES);
    }
    hash_again(h, out);
}
