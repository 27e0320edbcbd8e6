/* kernels/types.h - how numbers are stored: element and block types of weights and KV, their sizes, their expansion.
 *
 * Source of the block types: the GGUF specification (ggml's type numbers are kept in krn_type_from_ggml). The plain C
 * expansion here is the definition of what a block stands for; kernels are held against it. */
#ifndef SLUICE_KERNELS_TYPES_H
#define SLUICE_KERNELS_TYPES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum krn_type {
    KRN_F32, KRN_F16, KRN_BF16, KRN_F64,
    KRN_I8, KRN_U8, KRN_I16, KRN_I32, KRN_I64, KRN_BOOL,
    KRN_F8_E4M3, KRN_F8_E5M2, KRN_E8M0,
    KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1, KRN_Q8_0,
    KRN_Q2_K, KRN_Q3_K, KRN_Q4_K, KRN_Q5_K, KRN_Q6_K,
    KRN_IQ4_NL, KRN_IQ4_XS, KRN_MXFP4,
    /* Rows that offload/packed.h puts together from values and scales which safetensors keep apart: */
    KRN_INT4,     /* blocks of 32: bf16 d, then nibbles as in Q4_0; d * (nibble - 8) */
    KRN_F8_SCALED,/* a row: an f32 scale for each 128 columns, then an E4M3 byte a column; scale * value */
    KRN_TYPE_COUNT
};
struct krn_type_info {
    const char *name;      /* "F32", "Q4_1" */
    uint16_t block;        /* elements a block: 1, 32 or 256 */
    uint16_t block_bytes;
};
extern const struct krn_type_info krn_types[KRN_TYPE_COUNT];

#define KRN_F8_BLOCK 128 /* columns that share a scale of F8_SCALED */

/* Bytes of one row of n elements as published (INT4, F8_SCALED: as above); 0 when n is not a multiple of the block. */
size_t krn_row_bytes(enum krn_type t, uint64_t n);
int krn_type_from_ggml(uint32_t ggml_type);                 /* -1: unknown */
int krn_type_from_safetensors(const char *s, size_t n);     /* "BF16", "F8_E4M3", ...; -1: unknown */

/* Expands n elements (a multiple of the block; F8_SCALED: a whole row) of a published row to f32. false: no expansion for this type. */
bool krn_expand(enum krn_type t, const void *src, size_t n, float *dst);

/* Tables that 4-bit types index: IQ4_NL and IQ4_XS; MXFP4 (e2m1, doubled, so that its scale is halved). */
extern const int8_t krn_iq4_values[16], krn_e2m1_doubled[16];
float krn_e8m0_half(uint8_t b);    /* 2^(b - 128), exact (a subnormal below 2); 255 is NaN */

float krn_f16_to_f32(uint16_t h);
uint16_t krn_f32_to_f16(float f);  /* round to nearest even */
static inline float krn_bf16_to_f32(uint16_t h) { union { uint32_t u; float f; } v = {(uint32_t)h << 16}; return v.f; }
uint16_t krn_f32_to_bf16(float f); /* round to nearest even, NaN stays NaN */
#endif
