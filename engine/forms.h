/* engine/forms.h - how a named weight is stored: one file tensor, or packed values with block scales beside them.
 *
 * Sheets name a weight without suffix; the catalog decides which form it has:
 *   NAME.weight or NAME                              plain (GGUF block types included)
 *   NAME.weight F8_E4M3 + NAME.weight_scale_inv      fp8-block, a scale per block of weight_block_size
 *   NAME.weight F8_E4M3 + NAME.weight_scale          fp8-row, a scale per row or one
 *   NAME.weight_packed I32 + NAME.weight_scale       int4-packed, 8 values a word (+ weight_shape)
 *   NAME.weight_packed U8 + NAME.weight_scale U8     mxfp4, 2 values a byte, E8M0 per 32
 *   NAME_blocks U8 + NAME_scales U8                  mxfp4-blocks, the same bytes with an axis more
 * Owns:      nothing.  Source: docs/sheets.md, "Storage forms". */
#ifndef SLUICE_ENGINE_FORMS_H
#define SLUICE_ENGINE_FORMS_H
#include "offload/catalog.h"

#define ENG_NAME_MAX 512 /* bytes of a tensor name with its suffix */

enum eng_form_kind { ENG_FORM_PLAIN, ENG_FORM_FP8_BLOCK, ENG_FORM_FP8_ROW, ENG_FORM_INT4, ENG_FORM_MXFP4, ENG_FORM_MXFP4_BLOCKS, ENG_FORM_COUNT };
struct eng_form {
    enum eng_form_kind kind;
    const struct off_tensor *data, *scale, *shape; /* scale, shape: NULL where the form has none */
    const struct off_tensor *refused;              /* a companion there is no meaning for (zero points, group index) */
    uint8_t suffix;                                /* which spelling matched: pass it back as a hint for the next expert */
};
const char *eng_form_name(enum eng_form_kind k);
/* name: n bytes in a buffer of ENG_NAME_MAX, which is written beyond n. false: not in the files. */
bool eng_form_find(const off_catalog *c, char *name, size_t n, uint8_t hint, struct eng_form *out);
/* Logical dims of the stored tensor: packed axes widened, the block axis folded in. */
uint8_t eng_form_dims(const struct eng_form *f, uint64_t dims[OFF_DIMS_MAX]);
/* The stored tensor with its last axis as long as a row has stored elements and the block axis folded in: what rows are cut from. */
struct off_tensor eng_form_rows(const struct eng_form *f);
enum eng_form_kind eng_form_kind(const char *name);
/* The type in which kernels read a weight of this form; KRN_TYPE_COUNT: none. scale: type of its scales where it has any. */
enum krn_type eng_form_slot(enum eng_form_kind k, enum krn_type data, enum krn_type scale);
#endif
