/* tests/support/blocks.h - reads tests/data/gguf-blocks: an 8 x 256 matrix as published, and what it stands for. */
#ifndef SLUICE_TESTS_SUPPORT_BLOCKS_H
#define SLUICE_TESTS_SUPPORT_BLOCKS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_ROWS = 8, BLOCK_COLS = 256 };
struct blocks {
    uint8_t file[16384];
    const uint8_t *raw;    /* [8][row_bytes] */
    size_t row_bytes;
    const float *values;   /* [8][256] */
    unsigned ggml_type;
};
/* name: "Q4_0"; false: no such file, or not of the shape above. */
bool blocks_load(struct blocks *b, const char *name);
#endif
