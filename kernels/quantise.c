#include "kernels/quantise.h"

#include <math.h>
#include <string.h>

enum { B = 32 };

static void put_half(uint8_t *p, float f)
{
    uint16_t h = krn_f32_to_f16(f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static void q8_0(const float *x, uint8_t *p)
{
    float amax = 0;
    for (int i = 0; i < B; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    float d = amax / 127, inv = d > 0 ? 1 / d : 0;
    put_half(p, d);
    for (int i = 0; i < B; i++)
        p[2 + i] = (uint8_t)(int8_t)roundf(fmaxf(-127, fminf(127, x[i] * inv)));
}

static void nibbles(const float *x, float zero, float inv, float half, uint8_t *q)
{
    for (int j = 0; j < B / 2; j++) {
        int lo = (int)((x[j] - zero) * inv + half), hi = (int)((x[B / 2 + j] - zero) * inv + half);
        q[j] = (uint8_t)((lo < 15 ? lo : 15) | (hi < 15 ? hi : 15) << 4);
    }
}

static void q4_0(const float *x, uint8_t *p)
{
    float top = 0;
    for (int i = 0; i < B; i++)
        if (fabsf(x[i]) > fabsf(top))
            top = x[i];
    float d = top / -8;
    put_half(p, d);
    nibbles(x, 0, fabsf(d) > 0x1p-120f ? 1 / d : 0, 8.5f, p + 2);
}

static void q4_1(const float *x, uint8_t *p)
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < B; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    float d = (hi - lo) / 15;
    put_half(p, d);
    put_half(p + 2, lo);
    nibbles(x, lo, d > 0x1p-120f ? 1 / d : 0, 0.5f, p + 4);
}

bool krn_quantise_row(enum krn_type t, const float *x, size_t n, void *dst)
{
    uint8_t *p = dst;
    uint16_t h;
    switch (t) {
    case KRN_F32:
        memcpy(dst, x, n * sizeof *x);
        return true;
    case KRN_F16: case KRN_BF16:
        for (size_t i = 0; i < n; i++, p += 2) {
            h = t == KRN_F16 ? krn_f32_to_f16(x[i]) : krn_f32_to_bf16(x[i]);
            memcpy(p, &h, 2);
        }
        return true;
    case KRN_Q8_0: case KRN_Q4_0: case KRN_Q4_1:
        for (size_t i = 0; i < n; i += B, p += krn_types[t].block_bytes)
            (t == KRN_Q8_0 ? q8_0 : t == KRN_Q4_0 ? q4_0 : q4_1)(x + i, p);
        return true;
    default:
        return false;
    }
}
