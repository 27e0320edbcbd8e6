#include "tests/support/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool field(const char *json, const char *key, const char *part, unsigned long *v)
{
    const char *p = strstr(json, key);
    if (!p || !(p = strstr(p, part)))
        return false;
    *v = strtoul(p + strlen(part), NULL, 10);
    return true;
}

bool blocks_load(struct blocks *b, const char *name)
{
    char path[128], json[1024];
    uint64_t head;
    unsigned long raw, values, width, type;
    snprintf(path, sizeof path, "tests/data/gguf-blocks/%s.safetensors", name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    size_t n = fread(b->file, 1, sizeof b->file, f);
    fclose(f);
    if (n < 16)
        return false;
    memcpy(&head, b->file, 8);
    if (head >= sizeof json || 8 + head > n)
        return false;
    memcpy(json, b->file + 8, head);
    json[head] = 0;
    if (!field(json, "\"raw\":", "\"data_offsets\":[", &raw) || !field(json, "\"raw\":", "\"shape\":[8,", &width) ||
        !field(json, "\"values\":", "\"data_offsets\":[", &values) || !field(json, "\"ggml_type\":", ":\"", &type))
        return false;
    if (8 + head + raw + BLOCK_ROWS * width > n || 8 + head + values + BLOCK_ROWS * BLOCK_COLS * 4 > n)
        return false;
    b->raw = b->file + 8 + head + raw;
    b->row_bytes = width;
    b->values = (const float *)(const void *)(b->file + 8 + head + values);
    b->ggml_type = (unsigned)type;
    return true;
}
