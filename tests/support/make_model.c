#include "tests/support/make_model.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"

#define MUST(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #x); abort(); } } while (0)

char *mm_tmpdir(void)
{
    const char *tmp = getenv("TMPDIR");
    char *dir;
    MUST(asprintf(&dir, "%s/sluice-test-XXXXXX", tmp && *tmp ? tmp : "/tmp") > 0);
    MUST(mkdtemp(dir));
    return dir;
}

static void empty(const char *dir, int depth)
{
    DIR *d = opendir(dir);
    MUST(d);
    for (struct dirent *x; (x = readdir(d));) {
        char *path;
        struct stat st;
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, ".."))
            continue;
        MUST(asprintf(&path, "%s/%s", dir, x->d_name) > 0);
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && depth > 0)
            empty(path, depth - 1);
        remove(path);
        free(path);
    }
    closedir(d);
}

void mm_rmdir(char *dir)
{
    empty(dir, 1);
    rmdir(dir);
    free(dir);
}

const char *mm_path(const char *dir, const char *name)
{
    static char ring[9][512];
    static unsigned at;
    char *p = ring[at++ % 9];
    MUST(snprintf(p, sizeof ring[0], "%s/%s", dir, name) < (int)sizeof ring[0]);
    return p;
}

void mm_write(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    MUST(f);
    MUST(fwrite(p, 1, n, f) == n);
    MUST(fclose(f) == 0);
}

void *mm_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    MUST(f && fseek(f, 0, SEEK_END) == 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(*n + 1);
    MUST(p && fread(p, 1, *n, f) == *n);
    p[*n] = 0;
    fclose(f);
    return p;
}

void mm_text(const char *dir, const char *name, const char *text)
{
    mm_write(mm_path(dir, name), text, strlen(text));
}

uint64_t mm_bytes(const struct mm_tensor *t)
{
    uint64_t n = t->n_dims ? krn_row_bytes(t->type, t->dims[t->n_dims - 1]) : krn_types[t->type].block_bytes;
    for (unsigned i = 0; i + 1 < t->n_dims; i++)
        n *= t->dims[i];
    return n;
}

uint8_t mm_pattern(const char *name, uint64_t i)
{
    uint64_t h = i * 0x9E3779B97F4A7C15ull;
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001B3ull;
    return (uint8_t)(h >> 32);
}

static void add_data(struct buf *b, const struct mm_tensor *t)
{
    uint64_t n = mm_bytes(t);
    if (t->data)
        buf_add(b, t->data, (size_t)n);
    else
        for (uint64_t i = 0; i < n; i++)
            buf_u8(b, mm_pattern(t->name, i));
}

static void flush(struct buf *b, const char *path)
{
    MUST(!b->failed);
    mm_write(path, b->data, b->len);
    buf_free(b);
}

/* ---- safetensors ------------------------------------------------------------------------------------------ */
void mm_safetensors(const char *path, const struct mm_tensor *t, size_t n)
{
    struct buf h, b;
    uint64_t at = 0;
    buf_init(&h, (size_t)1 << 30);
    buf_init(&b, (size_t)1 << 32);
    buf_str(&h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        buf_char(&h, ',');
        json_put_cstr(&h, t[i].name);
        buf_printf(&h, ":{\"dtype\":\"%s\",\"shape\":[", krn_types[t[i].type].name);
        for (unsigned d = 0; d < t[i].n_dims; d++)
            buf_printf(&h, "%s%" PRIu64, d ? "," : "", t[i].dims[d]);
        buf_printf(&h, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + mm_bytes(&t[i]));
        at += mm_bytes(&t[i]);
    }
    buf_char(&h, '}');
    while (h.len % 8)
        buf_char(&h, ' ');
    buf_u64(&b, h.len);
    buf_add(&b, h.data, h.len);
    MUST(!h.failed);
    for (size_t i = 0; i < n; i++)
        add_data(&b, &t[i]);
    flush(&b, path);
    buf_free(&h);
}

void mm_safetensors_raw(const char *path, const char *header, uint64_t header_len, uint64_t data_bytes)
{
    struct buf b;
    buf_init(&b, (size_t)1 << 30);
    buf_u64(&b, header_len ? header_len : strlen(header));
    buf_str(&b, header);
    for (uint64_t i = 0; i < data_bytes; i++)
        buf_u8(&b, 0);
    flush(&b, path);
}

void mm_sharded(const char *dir, const struct mm_tensor *t, size_t n, unsigned shards)
{
    struct buf b;
    char name[64];
    uint64_t total = 0;
    struct mm_tensor *own = calloc(n + 1, sizeof *own);
    MUST(own);
    for (unsigned s = 0; s < shards; s++) {
        size_t k = 0;
        for (size_t i = s; i < n; i += shards)
            own[k++] = t[i];
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", s + 1, shards);
        mm_safetensors(mm_path(dir, name), own, k);
    }
    free(own);
    for (size_t i = 0; i < n; i++)
        total += mm_bytes(&t[i]);
    buf_init(&b, (size_t)1 << 30);
    buf_printf(&b, "{\"metadata\": {\"total_size\": %" PRIu64 "}, \"weight_map\": {", total);
    for (size_t i = 0; i < n; i++) {
        buf_str(&b, i ? ", " : "");
        json_put_cstr(&b, t[i].name);
        buf_printf(&b, ": \"model-%05u-of-%05u.safetensors\"", (unsigned)(i % shards) + 1, shards);
    }
    buf_str(&b, "}}\n");
    flush(&b, mm_path(dir, "model.safetensors.index.json"));
}

/* ---- GGUF ------------------------------------------------------------------------------------------------- */
static void gguf_str(struct buf *b, const char *s)
{
    buf_u64(b, strlen(s));
    buf_str(b, s);
}

static void scalar(struct buf *b, int type, int64_t i, double f)
{
    uint64_t u;
    switch (type) {
    case MM_U8: case MM_I8: case MM_BOOL: buf_u8(b, (uint8_t)i); break;
    case MM_U16: case MM_I16: buf_u16(b, (uint16_t)i); break;
    case MM_U32: case MM_I32: buf_u32(b, (uint32_t)i); break;
    case MM_U64: case MM_I64: buf_u64(b, (uint64_t)i); break;
    case MM_F32: buf_f32(b, (float)f); break;
    case MM_F64: memcpy(&u, &f, 8); buf_u64(b, u); break;
    default: MUST(!"a scalar type");
    }
}

static void pair(struct buf *b, const struct mm_kv *kv)
{
    gguf_str(b, kv->key);
    buf_u32(b, (uint32_t)kv->type);
    if (kv->type == MM_STR) {
        gguf_str(b, kv->s);
    } else if (kv->type == MM_ARR) {
        buf_u32(b, (uint32_t)kv->elem);
        buf_u64(b, kv->n);
        for (uint64_t i = 0; i < kv->n; i++) {
            if (kv->elem == MM_STR)
                gguf_str(b, kv->strs[i]);
            else
                scalar(b, kv->elem, kv->ints ? kv->ints[i] : 0, kv->floats ? (double)kv->floats[i] : 0);
        }
    } else {
        scalar(b, kv->type, kv->i, kv->f);
    }
}

static uint32_t ggml_number(enum krn_type t)
{
    for (uint32_t i = 0; i < 64; i++)
        if (krn_type_from_ggml(i) == (int)t)
            return i;
    fprintf(stderr, "%s has no ggml number\n", krn_types[t].name);
    abort();
}

void mm_gguf_bytes(struct buf *b, const struct mm_kv *kv, size_t n_kv, const struct mm_tensor *t, size_t n)
{
    uint64_t align = 32, at = 0;
    size_t start = b->len;
    buf_str(b, "GGUF");
    buf_u32(b, 3);
    buf_u64(b, n);
    buf_u64(b, n_kv);
    for (size_t i = 0; i < n_kv; i++) {
        pair(b, &kv[i]);
        if (!strcmp(kv[i].key, "general.alignment"))
            align = (uint64_t)kv[i].i;
    }
    for (size_t i = 0; i < n; i++) {
        gguf_str(b, t[i].name);
        buf_u32(b, t[i].n_dims);
        for (unsigned d = t[i].n_dims; d > 0; d--)
            buf_u64(b, t[i].dims[d - 1]);
        buf_u32(b, ggml_number(t[i].type));
        buf_u64(b, at);
        at = (at + mm_bytes(&t[i]) + align - 1) / align * align;
    }
    for (size_t i = 0; i < n; i++) {
        while ((b->len - start) % align)
            buf_u8(b, 0);
        add_data(b, &t[i]);
    }
    MUST(!b->failed);
}

void mm_gguf(const char *path, const struct mm_kv *kv, size_t n_kv, const struct mm_tensor *t, size_t n)
{
    struct buf b;
    buf_init(&b, (size_t)1 << 32);
    mm_gguf_bytes(&b, kv, n_kv, t, n);
    flush(&b, path);
}
