/* engine/page_id.h - the identity of a KV page: equal ids mean equal bytes, whoever computed them.
 *
 * SHA-256 over tagged, length-prefixed fields. Those that all pages of a namespace and group share are hashed once into a
 * *scope*; an id is then the hash of scope, parent, token ids and images. Pure; ids are the same on every machine (integers are
 * hashed little-endian). Source: docs/kv.md, "Identity". */
#ifndef SLUICE_ENGINE_PAGE_ID_H
#define SLUICE_ENGINE_PAGE_ID_H
#include "base/err.h"
#include "base/hash.h"
#include "engine/plan.h"

#define ENG_PAGE_FORMAT 1 /* grows when kernels/kv_layout.h or the meaning of a field below changes */

struct eng_page_scope {
    const uint8_t *fingerprint, *sheet;   /* [32] each: eng_model.fingerprint, eng_plan.sheet_digest */
    const char *numerics;                 /* as the engine's description says it */
    uint32_t group;                       /* index of the KV group, and what it is */
    const struct eng_kv_group *kv;
    enum krn_type type;                   /* of the cells */
    uint32_t page_tokens;
    uint32_t tp_rank, tp_size;            /* 0, 1: whole */
    const struct krn_rope_table *ropes; uint32_t n_ropes;
    bool far;                             /* the sequence turns by the second lists: its keys are no good to others */
    const char *image_recipe, *adapter;   /* "": none */
    const void *space; size_t space_n;    /* the tenant's namespace */
};
int eng_page_scope_id(const struct eng_page_scope *s, uint8_t out[HASH_BYTES], struct err *e); /* ERR_NOMEM */

struct eng_page_image { uint32_t offset; const uint8_t *digest; }; /* first token of the page that is the image's; [32] */
/* h: from hash_new, ready for the next id afterwards. parent: id of the page before, NULL for the first. */
void eng_page_id(hash_ctx *h, const uint8_t scope[HASH_BYTES], const uint8_t *parent, const int32_t *ids, uint32_t n,
                 const struct eng_page_image *images, uint32_t n_images, uint8_t out[HASH_BYTES]);
#endif
