/* tests/offload/check_packed.c - values and scales kept apart in safetensors, put together while they are read: each number against
 * its formula, whole tensors and strided rows, both ways of reading; scales and values that are no numbers refused by name. */
#include <math.h>

#include "offload/weights.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

enum { ROWS = 150, COLS = 320, E = 3 };
static char *dir;

/* e2m1 and e4m3 spelled out from their specifications. */
static float e2m1(int n)
{
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return n & 8 ? -v[n & 7] : v[n & 7];
}
static float e4m3(int b)
{
    int exp = b >> 3 & 15, man = b & 7;
    float v = exp ? ldexpf(1 + (float)man / 8, exp - 7) : ldexpf((float)man / 8, -6);
    return b & 128 ? -v : v;
}
static uint32_t seed = 1;
static uint8_t draw(void) { return (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24); }

struct tensors { uint8_t mx[E][ROWS][COLS / 2], mx_scale[E][ROWS][COLS / 32], i4[ROWS][COLS / 2], f8[ROWS][COLS - 13]; uint16_t i4_scale[ROWS][COLS / 64]; float f8_scale[2][3], f8_row[ROWS]; };
static struct tensors T;
static float w_mx(int e, int r, int c) { return e2m1(T.mx[e][r][c / 2] >> c % 2 * 4 & 15) * ldexpf(1, T.mx_scale[e][r][c / 32] - 127); }
static float w_i4(int r, int c) { return (float)((T.i4[r][c / 2] >> c % 2 * 4 & 15) - 8) * krn_bf16_to_f32(T.i4_scale[r][c / 64]); }
static float w_f8(int r, int c) { return e4m3(T.f8[r][c]) * T.f8_scale[r / 128][c / 128]; }
static float w_f8_row(int r, int c) { return e4m3(T.f8[r][c]) * T.f8_row[r]; }

static void make(void)
{
    seed = 1;
    for (uint8_t *p = (uint8_t *)&T; p < (uint8_t *)(&T + 1); p++) *p = draw();
    for (size_t i = 0; i < sizeof T.f8; i++)
        if ((((uint8_t *)T.f8)[i] & 127) == 127) ((uint8_t *)T.f8)[i] = 0;
    for (size_t i = 0; i < sizeof T.mx_scale; i++) ((uint8_t *)T.mx_scale)[i] = (uint8_t)(120 + draw() % 16);
    for (size_t i = 0; i < sizeof T.i4_scale / 2; i++) ((uint16_t *)T.i4_scale)[i] = (uint16_t)(0x3c00 + draw());
    for (int i = 0; i < 6; i++) T.f8_scale[i / 3][i % 3] = 0.25f + (float)i;
    for (int i = 0; i < ROWS; i++) T.f8_row[i] = 1 + (float)i;
}
static void write_file(void)
{
    const struct mm_tensor t[] = {{"mx", KRN_U8, 3, {E, ROWS, COLS / 2}, T.mx}, {"mx_s", KRN_U8, 3, {E, ROWS, COLS / 32}, T.mx_scale}, {"i4", KRN_I32, 2, {ROWS, COLS / 8}, T.i4},
                                  {"i4_s", KRN_BF16, 2, {ROWS, COLS / 64}, T.i4_scale}, {"f8", KRN_F8_E4M3, 2, {ROWS, COLS - 13}, T.f8}, {"f8_s", KRN_F32, 2, {2, 3}, T.f8_scale},
                                  {"f8_r", KRN_F32, 2, {ROWS, 1}, T.f8_row}};
    mm_safetensors(mm_path(dir, "x.safetensors"), t, sizeof t / sizeof *t);
}

/* What a part looks like: n rows from `first` on, `step` apart. */
struct kind { const char *data, *scales; enum krn_type type; enum off_packing packing; uint64_t cols, bytes, share_rows, share_cols, n; };
static const struct kind mx = {"mx", "mx_s", KRN_MXFP4, OFF_PACKED_MXFP4, COLS, COLS / 2, 1, 32, COLS / 32}, i4 = {"i4", "i4_s", KRN_INT4, OFF_PACKED_INT4, COLS, COLS / 2, 1, 64, COLS / 64},
                         f8 = {"f8", "f8_s", KRN_F8_SCALED, OFF_PACKED_FP8, COLS - 13, COLS - 13, 128, 128, 3}, f8_row = {"f8", "f8_r", KRN_F8_SCALED, OFF_PACKED_FP8, COLS - 13, COLS - 13, 1, COLS - 13, 1};

/* Rows [first, first + n * step) of the tensor, every step-th, into values; the error of open in *e. */
static int load(const struct kind *k, enum krn_layout layout, uint32_t first, uint32_t step, uint32_t n, int read, float *values, struct err *e)
{
    off_catalog *c;
    off_weights *w;
    ck_assert_int_eq(off_catalog_open(&c, mm_path(dir, "x.safetensors"), 0, e), ERR_OK);
    struct off_packed p = {.kind = k->packing, .data = off_catalog_find(c, k->data, strlen(k->data)), .scales = off_catalog_find(c, k->scales, strlen(k->scales)), .row_bytes = k->bytes,
                           .matrix_rows = ROWS, .rows = k->share_rows, .cols = k->share_cols, .n = k->n};
    struct off_span span = {.file = 0, .offset = p.data->offset + first * k->bytes, .row_bytes = k->bytes, .n_rows = n, .row_stride = step * k->bytes, .n_outer = 1};
    struct off_part part = {.name = k->data, .type = k->type, .layout = layout, .rows = n, .cols = k->cols, .spans = &span, .n_spans = 1, .packed = &p};
    struct off_record record = {.name = "r", .parts = &part, .n_parts = 1};
    struct krn_weight weight = {.type = k->type, .layout = layout, .rows = n, .cols = (uint32_t)k->cols};
    struct off_weights_config cfg = {.ram_max = 1 << 24, .read = read};
    int rc = off_weights_open(&w, c, &record, 1, &weight, 1, &cfg, e);
    if (!rc) {
        ck_assert_int_eq(off_lease(w, 0, e), ERR_OK);
        for (uint32_t r = 0; r < n; r++) ck_assert(krn_weight_row(&weight, r, values + r * k->cols));
        off_release(w, 0);
        off_weights_close(w);
    }
    off_catalog_close(c);
    return rc;
}

START_TEST(core)
{
    static float v[ROWS * E * COLS];
    struct err e;
    dir = mm_tmpdir();
    make();
    write_file();
    for (int way = 0; way < 4; way++) {
        enum krn_layout l = way & 1 ? KRN_TILED : KRN_PLAIN;
        int read = way & 2 ? OFF_READ_DIRECT : OFF_READ_CACHED;
        OK(load(&mx, l, 0, 1, ROWS * E, read, v, &e));
        for (int r = 0; r < ROWS * E; r++)
            for (int c = 0; c < COLS; c++) ck_assert(v[r * COLS + c] == w_mx(r / ROWS, r % ROWS, c));
        OK(load(&mx, l, ROWS + 1, 2, ROWS / 2, read, v, &e)); /* the odd rows of the second matrix */
        for (int r = 0; r < ROWS / 2; r++)
            for (int c = 0; c < COLS; c++) ck_assert(v[r * COLS + c] == w_mx(1, 2 * r + 1, c));
        OK(load(&i4, l, 0, 1, ROWS, read, v, &e));
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) ck_assert(v[r * COLS + c] == w_i4(r, c));
        OK(load(&f8, l, 0, 1, ROWS, read, v, &e));
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS - 13; c++) ck_assert(v[r * (COLS - 13) + c] == w_f8(r, c));
        OK(load(&f8, l, 100, 1, 50, read, v, &e)); /* across the border of two blocks of rows, and of no tile */
        for (int r = 0; r < 50; r++)
            for (int c = 0; c < COLS - 13; c++) ck_assert(v[r * (COLS - 13) + c] == w_f8(r + 100, c));
        OK(load(&f8_row, l, 3, 7, 20, read, v, &e));
        for (int r = 0; r < 20; r++)
            for (int c = 0; c < COLS - 13; c++) ck_assert(v[r * (COLS - 13) + c] == w_f8_row(3 + 7 * r, c));
    }
    mm_rmdir(dir);
}
END_TEST

START_TEST(errors)
{
    static float v[ROWS * E * COLS];
    struct err e;
    struct kind few = f8;
    dir = mm_tmpdir();
    for (int i = 0; i < 5; i++) {
        const struct kind *k = i == 0 ? &mx : i == 1 ? &i4 : &f8;
        make();
        if (i == 0) T.mx_scale[0][17][4] = 255;
        if (i == 1) T.i4_scale[17][2] = 0x7f80;
        if (i == 2) T.f8_scale[0][1] = NAN;
        if (i == 3) T.f8[17][130] = 0xff;
        if (i == 4) T.f8[17][130] = 0x7f;
        write_file();
        ck_assert_int_eq(load(k, KRN_TILED, 0, 1, ROWS, OFF_READ_CACHED, v, &e), ERR_FORMAT);
        ck_assert_msg(strstr(e.msg, k->data) && strstr(e.msg, k->scales) && strstr(e.msg, i == 2 ? "row 0, column 128" : i >= 3 ? "row 17, column 130" : "row 17, column 128"), "%s", e.msg);
    }
    make();
    write_file();
    few.share_rows = 32; /* more rows of scales than the tensor has */
    ck_assert_int_eq(load(&few, KRN_TILED, 0, 1, ROWS, OFF_READ_CACHED, v, &e), ERR_INVALID);
    ck_assert(strstr(e.msg, "rows of scales"));
    mm_rmdir(dir);
}
END_TEST

SUITE("offload", "packed", core, errors)
