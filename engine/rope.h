/* engine/rope.h - inverse frequencies of rotary embeddings from a config's scaling object, in double.
 *
 * Kinds: default, linear, dynamic (as default up to the model's context, refused beyond), llama3, yarn, longrope (su); none.
 * Owns:      nothing; tables live in the caller's arena.
 * Invariant: an unknown kind, or a field that a kind does not know, is refused by name or left unread for `check`.
 * Source:    docs/sheets.md, "Rope tables"; YaRN, Peng et al. 2023; LongRoPE, Ding et al. 2024; Llama 3.1. */
#ifndef SLUICE_ENGINE_ROPE_H
#define SLUICE_ENGINE_ROPE_H
#include "engine/config.h"
#include "kernels/op.h"

struct eng_rope_spec {
    uint32_t dim;                    /* rotated dims of a head, even */
    double theta;
    const struct eng_value *scaling; /* the config's object, or null */
    double original;                 /* original context given outside the object; 0: none */
    uint32_t ctx, ctx_use;           /* the model's context; the one in force */
    const float *factors;            /* [dim / 2] from the file: each frequency is divided by its factor; NULL: none */
    const float *factors_far;        /* longrope's long list in a GGUF file, likewise */
};
/* cfg: where fields that were used are marked as read; may be NULL. *ctx_switch: sequences that may grow
 * beyond it turn by out->inv_freq_far, others by inv_freq; 0: all turn alike, and inv_freq_far is NULL. ERR_UNSUPPORTED: kind, or dynamic beyond the model's context; ERR_FORMAT: fields. */
int eng_rope_build(const struct eng_rope_spec *s, struct eng_cfg *cfg, struct arena *a, struct krn_rope_table *out, uint32_t *ctx_switch, struct err *e);
#endif
