#include "engine/forms.h"

#include <string.h>

static const char *const suffixes[] = {".weight", ".weight_packed", "", "_blocks"};
#define N_SUFFIXES (sizeof suffixes / sizeof *suffixes)

static const char *const names[ENG_FORM_COUNT] = {"plain", "fp8-block", "fp8-row", "int4-packed", "mxfp4", "mxfp4-blocks"};
const char *eng_form_name(enum eng_form_kind k) { return names[k]; }

enum eng_form_kind eng_form_kind(const char *name)
{
    for (int k = 0; k < ENG_FORM_COUNT; k++)
        if (!strcmp(names[k], name))
            return (enum eng_form_kind)k;
    return ENG_FORM_PLAIN;
}

enum krn_type eng_form_slot(enum eng_form_kind k, enum krn_type data, enum krn_type scale)
{
    switch (k) {
    case ENG_FORM_PLAIN: return data;
    case ENG_FORM_FP8_BLOCK: case ENG_FORM_FP8_ROW: return scale == KRN_F32 || scale == KRN_BF16 || scale == KRN_F16 ? KRN_F8_SCALED : KRN_TYPE_COUNT;
    case ENG_FORM_INT4: return scale == KRN_BF16 ? KRN_INT4 : scale == KRN_F16 ? KRN_Q4_0 : KRN_TYPE_COUNT; /* Q4_0 is the same with an f16 */
    case ENG_FORM_MXFP4: case ENG_FORM_MXFP4_BLOCKS: return scale == KRN_U8 || scale == KRN_E8M0 ? KRN_MXFP4 : KRN_TYPE_COUNT;
    default: return KRN_TYPE_COUNT;
    }
}

static const struct off_tensor *find(const off_catalog *c, char *name, size_t n, const char *suffix)
{
    size_t k = strlen(suffix);

    if (n + k >= ENG_NAME_MAX)
        return NULL;
    memcpy(name + n, suffix, k + 1);
    return off_catalog_find(c, name, n + k);
}

static void companions(const off_catalog *c, char *name, size_t n, struct eng_form *f)
{
    bool packed = f->suffix == 1;

    if (f->suffix == 3) {
        f->kind = ENG_FORM_MXFP4_BLOCKS;
        f->scale = find(c, name, n, "_scales");
    } else if (packed) {
        f->kind = f->data->type == KRN_U8 ? ENG_FORM_MXFP4 : ENG_FORM_INT4;
        f->scale = find(c, name, n, ".weight_scale");
        if (f->kind == ENG_FORM_INT4) { /* K3's 494,592 packed tensors have none of these */
            f->shape = find(c, name, n, ".weight_shape");
            f->refused = find(c, name, n, ".weight_zero_point");
            if (!f->refused)
                f->refused = find(c, name, n, ".weight_g_idx");
        }
    } else if (f->data->type == KRN_F8_E4M3) {
        f->kind = ENG_FORM_FP8_BLOCK;
        if (!(f->scale = find(c, name, n, ".weight_scale_inv"))) {
            f->scale = find(c, name, n, ".weight_scale");
            f->kind = ENG_FORM_FP8_ROW;
        }
    }
}

bool eng_form_find(const off_catalog *c, char *name, size_t n, uint8_t hint, struct eng_form *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < N_SUFFIXES && !out->data; i++) {
        out->suffix = (uint8_t)((hint + i) % N_SUFFIXES);
        out->data = find(c, name, n, suffixes[out->suffix]);
    }
    if (out->data)
        companions(c, name, n, out);
    if (n < ENG_NAME_MAX)
        name[n] = 0;
    return out->data != NULL;
}

uint8_t eng_form_dims(const struct eng_form *f, uint64_t dims[OFF_DIMS_MAX])
{
    uint8_t n = f->data->n_dims;

    memcpy(dims, f->data->dims, sizeof f->data->dims);
    if (!n)
        return 0;
    uint64_t *last = &dims[n - 1];
    uint64_t width = f->kind == ENG_FORM_INT4 ? 8 : f->kind == ENG_FORM_MXFP4 || f->kind == ENG_FORM_MXFP4_BLOCKS ? 2 : 1;
    if (__builtin_mul_overflow(*last, width, last))
        *last = UINT64_MAX; /* can match no shape */
    if (f->kind == ENG_FORM_MXFP4_BLOCKS && n >= 2) {
        if (__builtin_mul_overflow(dims[n - 2], *last, &dims[n - 2]))
            dims[n - 2] = UINT64_MAX;
        n--;
    }
    return n;
}

struct off_tensor eng_form_rows(const struct eng_form *f)
{
    struct off_tensor t = *f->data;

    if (f->kind == ENG_FORM_MXFP4_BLOCKS && t.n_dims >= 2) {
        t.n_dims--;
        if (__builtin_mul_overflow(t.dims[t.n_dims - 1], t.dims[t.n_dims], &t.dims[t.n_dims - 1]))
            t.dims[t.n_dims - 1] = UINT64_MAX;
    }
    return t;
}
