/* tests/kernels/check_linear.c - every instruction set against an oracle that reads the published layout, bit for bit. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/linear.h"
#include "kernels/quantise.h"
#include "tests/support/blocks.h"
#include "tests/support/scales.h"

static const enum krn_type types[] = {KRN_F32, KRN_F16, KRN_BF16, KRN_Q8_0, KRN_Q4_0, KRN_Q4_1, KRN_Q5_0, KRN_Q5_1, KRN_Q2_K, KRN_Q3_K,
                                      KRN_Q4_K, KRN_Q5_K, KRN_Q6_K, KRN_IQ4_NL, KRN_IQ4_XS, KRN_MXFP4, KRN_INT4, KRN_F8_SCALED};
static const enum krn_isa isas[] = {KRN_ISA_C, KRN_ISA_AVX2, KRN_ISA_AVX512};
enum { N_TYPES = sizeof types / sizeof *types, N_FILES = N_TYPES - 2 /* the last two are put together while loading */, N_ISAS = sizeof isas / sizeof *isas };

/* Without AVX-512 its file is checked on emulated registers (tests/support/avx512_emu.h). */
#if defined(__x86_64__)
extern const struct krn_linear_isa krn_linear_emulated;
static const struct krn_linear_isa *get(enum krn_isa isa)
{
    return isa == KRN_ISA_AVX512 && !krn_isa_have(isa) && krn_isa_have(KRN_ISA_AVX2) ? &krn_linear_emulated : krn_linear_get(isa);
}
#else
static const struct krn_linear_isa *get(enum krn_isa isa) { return krn_linear_get(isa); }
#endif

static uint32_t seed;
static uint32_t draw(void) { return (seed = seed * 1664525u + 1013904223u) >> 8; }
static float uniform(void) { return (float)draw() / 8388608.0f - 1.0f; }
static float normal(void) { return (uniform() + uniform() + uniform() + uniform()) * 0.87f; }

/* One product: published and tiled weights, inputs, bias, and what the oracle says. */
struct problem {
    uint32_t rows, cols, n;
    size_t row_bytes, x_stride;
    uint8_t *published;
    void *slot, *scratch;
    float *x, *bias, *want, *got;
    struct krn_weight w, b;
    bool int8;
};

enum wild { TAME, WILD }; /* WILD: any bits in the blocks; scales negative, zero, subnormal, large */

static void make_weights(struct problem *p, enum krn_type t, enum wild wild)
{
    if (t == KRN_F8_SCALED) {
        for (size_t i = 0; i < p->rows * p->row_bytes; i++)
            p->published[i] = (uint8_t)(draw() & (wild == WILD ? 0xfe : 0xbf)); /* no NaN */
        for (uint32_t r = 0; r < p->rows; r++)
            for (uint32_t b = 0; b < (p->cols + 127) / 128; b++) {
                float s = wild == TAME ? 0.01f * normal() : draw() % 8 ? ldexpf(normal(), (int)(draw() % 60) - 30) : 0;
                memcpy(p->published + r * p->row_bytes + b * sizeof s, &s, sizeof s);
            }
        return;
    }
    if (krn_types[t].block == 1) {
        float *row = malloc(p->cols * sizeof *row);
        for (uint32_t r = 0; r < p->rows; r++) {
            for (uint32_t c = 0; c < p->cols; c++)
                row[c] = normal() * (wild == WILD ? ldexpf(1, (int)(draw() % 20) - 10) : 0.02f);
            ck_assert(krn_quantise_row(t, row, p->cols, p->published + r * p->row_bytes));
        }
        free(row);
        return;
    }
    for (size_t i = 0; i < p->rows * p->row_bytes; i++)
        p->published[i] = (uint8_t)draw();
    for (uint8_t *at = p->published; at < p->published + p->rows * p->row_bytes; at += krn_types[t].block_bytes) {
        const struct scale_places *s = scale_places(t);
        if (t == KRN_MXFP4)
            at[s->at[0]] = (uint8_t)(wild == WILD ? draw() % 150 : 118 + draw() % 4);
        for (int k = 0; t != KRN_MXFP4 && k < s->n; k++) {
            static const uint16_t special[] = {0, 0x8000, 1, 0x8001, 0x03ff, 0x7bff, 0xfbff, 0x3c00};
            uint16_t h = wild == TAME ? (uint16_t)(0x2000 + (draw() & 0x87ff)) : draw() % 4 ? (uint16_t)(draw() & 0xbfff) : special[draw() % 8];
            memcpy(at + s->at[k], &h, 2);
        }
        if (t == KRN_Q8_0)
            at[2 + draw() % 32] = 0x80; /* -128, the sign trick's hard case */
    }
}

static void make_inputs(struct problem *p, enum wild wild)
{
    for (uint32_t t = 0; t < p->n; t++)
        for (uint32_t c = 0; c < p->cols; c++) {
            float *v = &p->x[t * p->x_stride + c];
            *v = normal();
            if (wild == TAME)
                continue;
            switch ((t * 7 + c / 32) % 9) { /* by block */
            case 1: *v = 0; break;
            case 2: *v = -0.0f; break;
            case 3: *v *= 1e30f; break;
            case 4: *v *= 1e-30f; break;
            case 5: *v *= 1e-38f; break;                 /* below the smallest block that counts */
            case 6: *v = c % 2 ? 127 : -127; break;      /* the largest pair sums */
            case 7: *v = ldexpf((float)((int)(draw() % 255) - 127), -1); break; /* ties */
            default: break;
            }
        }
}

static void problem_open(struct problem *p, enum krn_type t, bool int8, uint32_t rows, uint32_t cols, uint32_t n, enum wild wild)
{
    *p = (struct problem){.rows = rows, .cols = cols, .n = n, .int8 = int8, .row_bytes = krn_row_bytes(t, cols), .x_stride = cols + 3};
    uint32_t tiles = (rows + 15) / 16;
    p->published = malloc(rows * p->row_bytes);
    p->slot = aligned_alloc(KRN_SLOT_ALIGN, (krn_slot_bytes(t, KRN_TILED, rows, cols) + 255) / 256 * 256);
    p->scratch = aligned_alloc(64, krn_operand_bytes(n, cols));
    p->x = malloc(n * p->x_stride * sizeof(float));
    p->bias = malloc(rows * sizeof(float));
    p->want = malloc((size_t)n * rows * sizeof(float));
    p->got = malloc((size_t)n * (rows + 5) * sizeof(float));
    make_weights(p, t, wild);
    make_inputs(p, wild);
    for (uint32_t r = 0; r < rows; r++)
        p->bias[r] = normal();
    krn_slot_pack(t, rows, cols, 0, tiles, p->published, p->row_bytes, p->slot);
    p->w = (struct krn_weight){.type = t, .layout = KRN_TILED, .rows = rows, .cols = cols, .data = p->slot};
    p->b = (struct krn_weight){.type = KRN_F32, .layout = KRN_PLAIN, .rows = rows, .cols = 1, .data = p->bias};
}

static void problem_close(struct problem *p)
{
    free(p->published), free(p->slot), free(p->scratch), free(p->x), free(p->bias), free(p->want), free(p->got);
}

/* ---- the oracle ---- */

static float half_at(const uint8_t *p)
{
    return krn_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 32 columns of a published row as linear.h names their parts, spelled out from the published format. */
struct part { int w[32], sc[2], mn[2]; float d, m; bool halves, has_min; };

static int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }
static int bit(const uint8_t *q, int i) { return q[i / 8] >> i % 8 & 1; }

static void six_bits(const uint8_t *s, int k, int *sc, int *mn)
{
    *sc = k < 4 ? s[k] & 63 : (s[k + 4] & 15) + 16 * (s[k - 4] >> 6);
    *mn = k < 4 ? s[k + 4] & 63 : (s[k + 4] >> 4) + 16 * (s[k] >> 6);
}

static struct part part_32(enum krn_type t, const uint8_t *p)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int mx[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    struct part o = {.d = t == KRN_MXFP4 ? p[0] == 255 ? NAN : ldexpf(1, p[0] - 128) : t == KRN_INT4 ? krn_bf16_to_f32((uint16_t)(p[0] | p[1] << 8)) : half_at(p)};
    o.has_min = t == KRN_Q4_1 || t == KRN_Q5_1;
    o.m = o.has_min ? half_at(p + 2) : 0;
    for (int i = 0; i < 32; i++)
        switch (t) {
        case KRN_Q8_0: o.w[i] = (int8_t)p[2 + i]; break;
        case KRN_Q4_0: case KRN_INT4: o.w[i] = nibble(p + 2, i) - 8; break;
        case KRN_Q4_1: o.w[i] = nibble(p + 4, i); break;
        case KRN_Q5_0: o.w[i] = nibble(p + 6, i) + 16 * bit(p + 2, i) - 16; break;
        case KRN_Q5_1: o.w[i] = nibble(p + 8, i) + 16 * bit(p + 4, i); break;
        case KRN_IQ4_NL: o.w[i] = iq4[nibble(p + 2, i)]; break;
        default: o.w[i] = mx[nibble(p + 1, i)]; break;
        }
    return o;
}

static struct part part_256(enum krn_type t, const uint8_t *p, int k)
{
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    struct part o = {.halves = t == KRN_Q2_K || t == KRN_Q3_K || t == KRN_Q6_K, .has_min = t == KRN_Q2_K || t == KRN_Q4_K || t == KRN_Q5_K};
    int sc = 0, mn = 0, two = 2 * (k % 4);
    const uint8_t *s = p + 96; /* Q3_K */
    o.d = half_at(p + (t == KRN_Q6_K ? 208 : t == KRN_Q3_K ? 108 : t == KRN_Q2_K ? 80 : 0));
    for (int i = 0; i < 32; i++)
        switch (t) {
        case KRN_Q2_K: o.w[i] = p[16 + 32 * (k / 4) + i] >> two & 3; break;
        case KRN_Q3_K: o.w[i] = (p[32 + 32 * (k / 4) + i] >> two & 3) - 4 * !(p[i] >> k & 1); break;
        case KRN_Q4_K: o.w[i] = p[16 + 32 * (k / 2) + i] >> k % 2 * 4 & 15; break;
        case KRN_Q5_K: o.w[i] = (p[48 + 32 * (k / 2) + i] >> k % 2 * 4 & 15) + 16 * (p[16 + i] >> k & 1); break;
        case KRN_Q6_K:
            o.w[i] = (p[64 * (k / 4) + 32 * (k % 2) + i] >> (k % 4 < 2 ? 0 : 4) & 15) + 16 * (p[128 + 32 * (k / 4) + i] >> two & 3) - 32;
            break;
        default: o.w[i] = iq4[nibble(p + 8 + 16 * k, i)]; break;
        }
    for (int h = 0; h < 2; h++) {
        int n = 2 * k + h;
        o.sc[h] = t == KRN_Q6_K ? (int8_t)p[192 + n] : t == KRN_Q2_K ? p[n] & 15 : (s[n % 8] >> n / 8 * 4 & 15) + 16 * (s[8 + n % 4] >> n / 4 * 2 & 3) - 32;
        o.mn[h] = p[n] >> 4;
    }
    if (t == KRN_Q4_K || t == KRN_Q5_K) {
        six_bits(p + 4, k, &sc, &mn);
        o.d *= (float)sc;
        o.m = -half_at(p + 2) * (float)mn;
    } else if (t == KRN_IQ4_XS) {
        o.d *= (float)((p[4 + k / 2] >> k % 2 * 4 & 15) + 16 * ((p[2] + 256 * p[3]) >> 2 * k & 3) - 32);
    } else if (t == KRN_Q2_K) {
        o.m = -half_at(p + 82);
    }
    return o;
}

static struct part part_at(enum krn_type t, const uint8_t *row, uint32_t b)
{
    size_t bytes = krn_types[t].block_bytes;
    return krn_types[t].block == 32 ? part_32(t, row + b * bytes) : part_256(t, row + b / 8 * bytes, (int)(b % 8));
}

static float oracle_int8(const struct part *parts, const float *x, uint32_t cols)
{
    float acc = 0;
    for (uint32_t b = 0; b < cols / 32; b++, x += 32) {
        struct part o = parts[b];
        float amax = 0, d = 0, s = 0, inv = 0;
        int q[32], sum[2] = {0}, dot[2] = {0};
        bool bad = false;
        for (int i = 0; i < 32; i++) {
            bad |= !isfinite(x[i]);
            amax = fmaxf(amax, fabsf(x[i]));
        }
        if (!bad && amax >= 0x1p-119f) {
            d = amax / 127;
            inv = 127 / amax;
        }
        for (int i = 0; i < 32; i++) {
            q[i] = bad ? 0 : (int)nearbyintf(x[i] * inv);
            sum[i / 16] += q[i];
            dot[i / 16] += q[i] * o.w[i];
        }
        s = d * (float)(sum[0] + sum[1]);
        if (bad)
            d = s = NAN;
        acc = fmaf((float)(o.halves ? o.sc[0] * dot[0] + o.sc[1] * dot[1] : dot[0] + dot[1]), o.d * d, acc);
        if (o.has_min)
            acc = o.halves ? fmaf((float)(o.mn[0] * sum[0] + o.mn[1] * sum[1]), o.m * d, acc) : fmaf(o.m, s, acc);
    }
    return acc;
}

/* The oracle's reading of the published blocks gives the published values. */
START_TEST(oracle_reads)
{
    static struct blocks f;
    enum krn_type t = types[_i];
    ck_assert(blocks_load(&f, krn_types[t].name));
    for (uint32_t r = 0; r < BLOCK_ROWS; r++)
        for (uint32_t c = 0; c < BLOCK_COLS; c++) {
            struct part o = part_at(t, f.raw + r * f.row_bytes, c / 32);
            int h = c % 32 / 16;
            float d = o.halves ? o.d * (float)o.sc[h] : o.d, v = d * (float)o.w[c % 32];
            if (o.has_min)
                v += o.halves ? o.m * (float)o.mn[h] : o.m;
            ck_assert_msg(v == f.values[r * BLOCK_COLS + c], "%s row %u column %u: %a", krn_types[t].name, r, c, (double)v);
        }
}
END_TEST

static float oracle_f32(const float *w, const float *x, uint32_t cols)
{
    float acc = 0;
    for (uint32_t b = 0; b < cols; b += 32) {
        float p = 0;
        for (uint32_t c = b; c < cols && c < b + 32; c++)
            p = fmaf(w[c], x[c], p);
        acc += p;
    }
    return acc;
}

static void oracle(struct problem *p, bool biased)
{
    float *w = malloc(p->cols * sizeof *w);
    struct part *parts = malloc((p->cols / 32 + 1) * sizeof *parts);
    for (uint32_t r = 0; r < p->rows; r++) {
        const uint8_t *row = p->published + r * p->row_bytes;
        krn_expand(p->w.type, row, p->cols, w);
        for (uint32_t b = 0; p->int8 && b < p->cols / 32; b++)
            parts[b] = part_at(p->w.type, row, b);
        for (uint32_t t = 0; t < p->n; t++) {
            const float *x = p->x + t * p->x_stride;
            float y = p->int8 ? oracle_int8(parts, x, p->cols) : oracle_f32(w, x, p->cols);
            p->want[t * p->rows + r] = biased ? y + p->bias[r] : y;
        }
    }
    free(w), free(parts);
}

/* ---- running ---- */

/* Computes rows [t0, t0 + n) of the problem into got, whose rows are rows + 5 apart, in pieces of `step` tiles. */
static void compute(struct problem *p, const struct krn_linear_isa *isa, bool biased, uint32_t t0, uint32_t n, uint32_t step)
{
    struct krn_operand a;
    size_t stride = p->rows + 5;
    struct krn_linear l = {.w = &p->w, .bias = biased ? &p->b : NULL, .y = p->got + t0 * stride, .y_stride = stride, .int8 = p->int8};
    krn_operand_init(&a, p->x + t0 * p->x_stride, p->x_stride, n, p->cols, p->int8 ? p->scratch : NULL);
    if (p->int8)
        for (uint32_t r = 0; r < n; r += step + 2)
            isa->quantise(&a, r, n - r < step + 2 ? n - r : step + 2);
    uint32_t tiles = krn_linear_tiles(&p->w);
    for (uint32_t k = 0; k < tiles; k += step)
        isa->run(&l, &a, k, tiles - k < step ? tiles - k : step);
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b));
}

static void compare(const struct problem *p, const char *what)
{
    for (uint32_t t = 0; t < p->n; t++)
        for (uint32_t r = 0; r < p->rows + 5; r++) {
            float got = p->got[t * (p->rows + 5) + r];
            if (r >= p->rows)
                ck_assert_msg(got == 12345, "%s: wrote beyond row %u of token %u", what, p->rows, t);
            else
                ck_assert_msg(same(got, p->want[t * p->rows + r]), "%s %s%s %ux%u, %u tokens: token %u row %u is %a, not %a", what,
                              krn_types[p->w.type].name, p->int8 ? " int8" : "", p->rows, p->cols, p->n, t, r, (double)got,
                              (double)p->want[t * p->rows + r]);
        }
}

static void clear(struct problem *p)
{
    for (size_t i = 0; i < (size_t)p->n * (p->rows + 5); i++)
        p->got[i] = 12345;
}

static void all_ways(struct problem *p)
{
    for (int biased = 0; biased < 2; biased++) {
        oracle(p, biased);
        for (int i = 0; i < N_ISAS; i++) {
            const struct krn_linear_isa *isa = get(isas[i]);
            if (!isa)
                continue;
            clear(p); /* all tokens together, all tiles in one call */
            compute(p, isa, biased, 0, p->n, krn_linear_tiles(&p->w));
            compare(p, isa->name);
            clear(p); /* token by token, tile by tile */
            for (uint32_t t = 0; t < p->n; t++)
                compute(p, isa, biased, t, 1, 1);
            compare(p, isa->name);
        }
    }
}

static const uint32_t shapes[][3] = {
    /* rows, cols, tokens */
    {1, 32, 1}, {17, 32, 2}, {16, 64, 3}, {33, 96, 5}, {40, 128, 4}, {17, 160, 9}, {48, 224, 16}, {31, 288, 17}, {16, 576, 33},
    {35, 1536, 7}, {18, 1056, 21},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static bool has_int8(enum krn_type t) { return krn_linear_int8(t, KRN_TILED, KRN_PREC_AUTO); }

START_TEST(equal_bits)
{
    struct problem p;
    enum krn_type t = types[_i];
    for (int k = 0; k < N_SHAPES; k++)
        for (int wild = 0; wild < 2; wild++)
            for (int int8 = 0; int8 <= has_int8(t); int8++) {
                uint32_t block = krn_types[t].block, cols = block > 32 ? (shapes[k][1] + block - 1) / block * block : shapes[k][1];
                seed = (uint32_t)(k * 100 + _i * 10 + wild);
                problem_open(&p, t, int8, shapes[k][0], cols, shapes[k][2], (enum wild)wild);
                all_ways(&p);
                problem_close(&p);
            }
}
END_TEST

/* Element types take any number of columns. */
START_TEST(odd_columns)
{
    static const uint32_t cols[] = {1, 7, 31, 33, 100, 131, 259};
    struct problem p;
    for (size_t k = 0; k < sizeof cols / sizeof *cols; k++) {
        seed = (uint32_t)k;
        problem_open(&p, types[_i], false, 19, cols[k], (uint32_t)k + 1, TAME);
        all_ways(&p);
        problem_close(&p);
    }
}
END_TEST

/* Plain layouts: the same definition, whatever the type; one row (a vector) too. */
START_TEST(plain_layout)
{
    static const enum krn_type plain[] = {KRN_F32, KRN_Q4_1, KRN_Q5_0, KRN_Q6_K, KRN_Q4_K, KRN_MXFP4, KRN_F8_E4M3};
    struct problem p;
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++)
        for (uint32_t rows = 1; rows < 40; rows += 18) {
            enum krn_type t = plain[k];
            seed = (uint32_t)k;
            problem_open(&p, KRN_F32, false, rows, 512, 3, TAME);
            free(p.published);
            p.row_bytes = krn_row_bytes(t, p.cols);
            p.published = malloc(rows * p.row_bytes);
            for (size_t i = 0; i < rows * p.row_bytes; i++)
                p.published[i] = (uint8_t)draw() & 0x3f;
            p.w = (struct krn_weight){.type = t, .layout = KRN_PLAIN, .rows = rows, .cols = p.cols, .data = p.published};
            ck_assert_int_eq(krn_linear_support(t, KRN_PLAIN), KRN_LINEAR_SLOW);
            all_ways(&p);
            problem_close(&p);
        }
    ck_assert_int_eq(krn_linear_support(KRN_I32, KRN_PLAIN), KRN_LINEAR_NONE);
    ck_assert_int_eq(krn_linear_support(KRN_F8_E4M3, KRN_TILED), KRN_LINEAR_NONE);
    ck_assert_int_eq(krn_linear_support(KRN_Q6_K, KRN_TILED), KRN_LINEAR_FAST);
    ck_assert_int_eq(krn_linear_support(KRN_Q4_1, KRN_TILED), KRN_LINEAR_FAST);
    ck_assert(!krn_linear_int8(KRN_Q4_1, KRN_PLAIN, KRN_PREC_AUTO) && !krn_linear_int8(KRN_Q4_1, KRN_TILED, KRN_PREC_F32));
}
END_TEST

/* A NaN or infinity in one token makes that token's outputs NaN and no other's; a NaN scale spoils its row alone. */
START_TEST(nan_stays_put)
{
    struct problem p;
    enum krn_type t = types[_i];
    for (int int8 = 0; int8 <= has_int8(t); int8++) {
        seed = 5;
        problem_open(&p, t, int8, 20, krn_types[t].block > 32 ? 512 : 96, 7, TAME);
        p.x[2 * p.x_stride + 40] = NAN;
        p.x[5 * p.x_stride + 95] = int8 ? -INFINITY : -NAN;
        bool wide = t == KRN_F32 || t == KRN_F8_SCALED;
        uint16_t bad = t == KRN_BF16 || t == KRN_INT4 || wide ? 0x7fc0 : 0x7e00;
        uint8_t *at = p.published + 17 * p.row_bytes;
        if (t == KRN_MXFP4)
            *at = 255;
        else
            memcpy(at + (wide ? 2 : krn_types[t].block == 1 ? 0 : scale_places(t)->at[0]), &bad, 2);
        krn_slot_pack(t, p.rows, p.cols, 0, 2, p.published, p.row_bytes, p.slot);
        all_ways(&p);
        for (uint32_t k = 0; k < p.n; k++)
            for (uint32_t r = 0; r < p.rows; r++)
                ck_assert(!isnan(p.got[k * (p.rows + 5) + r]) == !(k == 2 || k == 5 || r == 17));
        problem_close(&p);
    }
}
END_TEST

START_TEST(bias_types)
{
    struct problem p;
    uint16_t b[20];
    for (int k = 0; k < 2; k++) {
        seed = 9;
        problem_open(&p, KRN_Q8_0, true, 20, 64, 2, TAME);
        krn_quantise_row(k ? KRN_F16 : KRN_BF16, p.bias, 20, b);
        krn_expand(k ? KRN_F16 : KRN_BF16, b, 20, p.bias); /* the oracle adds what the half floats stand for */
        p.b.type = k ? KRN_F16 : KRN_BF16;
        p.b.data = b;
        all_ways(&p);
        problem_close(&p);
    }
}
END_TEST

/* The int8 path against exact products of the dequantised weights: no worse than a float simulation of the same quantisation. */
START_TEST(accuracy)
{
    struct problem p;
    enum krn_type t = types[_i];
    seed = 77;
    problem_open(&p, t, true, 64, 1536, 8, TAME);
    float *w = malloc(p.cols * sizeof *w);
    double ours = 0, simulated = 0;
    clear(&p);
    compute(&p, krn_linear_get(KRN_ISA_AUTO), false, 0, p.n, 4);
    for (uint32_t r = 0; r < p.rows; r++) {
        krn_expand(t, p.published + r * p.row_bytes, p.cols, w);
        for (uint32_t k = 0; k < p.n; k++) {
            const float *x = p.x + k * p.x_stride;
            double exact = 0, sim = 0;
            for (uint32_t b = 0; b < p.cols; b += 32) {
                float amax = 0;
                for (uint32_t c = b; c < b + 32; c++)
                    amax = fmaxf(amax, fabsf(x[c]));
                for (uint32_t c = b; c < b + 32; c++) {
                    exact += (double)w[c] * (double)x[c];
                    sim += (double)w[c] * nearbyint((double)x[c] / (double)amax * 127) * (double)amax / 127;
                }
            }
            double got = (double)p.got[k * (p.rows + 5) + r];
            ours += (got - exact) * (got - exact);
            simulated += (sim - exact) * (sim - exact);
        }
    }
    ck_assert_msg(sqrt(ours) <= 1.1 * sqrt(simulated), "%s: error %g, simulated %g", krn_types[t].name, sqrt(ours), sqrt(simulated));
    ck_assert(simulated > 0);
    free(w);
    problem_close(&p);
}
END_TEST

START_TEST(scratch_sizes)
{
    ck_assert_uint_eq(krn_operand_bytes(1, 32), 6 * 256);
    ck_assert_uint_ge(krn_operand_bytes(512, 1536), 512 * 1536 + 4 * 512 * 48 * 4);
    ck_assert(!krn_linear_get(KRN_ISA_AVX512) == !krn_isa_have(KRN_ISA_AVX512));
    ck_assert_str_eq(krn_linear_get(KRN_ISA_C)->name, "c");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("linear");
    TCase *core = tcase_create("core"), *limits = tcase_create("limits");
    for (int i = 1; i < N_ISAS; i++)
        if (!krn_linear_get(isas[i]))
            printf("SKIP %s: this processor does not have it%s\n", krn_isa_name(isas[i]), get(isas[i]) ? "; its code ran on emulated registers" : "");

    tcase_add_loop_test(core, equal_bits, 0, N_TYPES);
    tcase_add_loop_test(core, odd_columns, 0, 3);
    tcase_add_loop_test(core, odd_columns, N_TYPES - 1, N_TYPES);
    tcase_add_loop_test(core, oracle_reads, 3, N_FILES);
    tcase_add_loop_test(core, accuracy, 3, N_FILES);
    tcase_add_test(core, plain_layout);
    tcase_add_test(core, bias_types);
    tcase_add_loop_test(limits, nan_stays_put, 0, N_TYPES);
    tcase_add_test(limits, scratch_sizes);
    suite_add_tcase(s, core);
    suite_add_tcase(s, limits);
    SRunner *r = srunner_create(s);
    fflush(stdout);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
