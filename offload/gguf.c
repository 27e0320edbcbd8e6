/* GGUF v2 and v3, one file or a split set: counts, metadata, tensor table, then aligned data. All little-endian.
 *
 * The header's length is not written anywhere, so it is read into a block that grows as parsing goes on; what is kept are
 * offsets into it. Every count is held against the bytes left in the file before anything is allocated for it, and lists
 * grow with what was read, not with what was announced. Source: ggml docs/gguf.md. */
#include "offload/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 4096, DIMS_MAX = 4, CHUNK = 256 * 1024, SPLIT_MAX = 99999 };
#define ALIGN_MAX (1u << 20)

/* ---- reading ---------------------------------------------------------------------------------------------- */
struct reader {
    struct off_gguf *g;
    int fd;
    uint64_t size;    /* of the file */
    uint64_t readable; /* of it, what is there */
    size_t pos;
    const char *base;
    struct err *e;
};

/* Makes bytes [pos, pos + n) present. */
static bool need(struct reader *r, uint64_t n, const char *what)
{
    struct off_gguf *g = r->g;
    if (n > r->readable - r->pos) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected %" PRIu64 " bytes at %zu, found the end of the file at %" PRIu64, r->base, what, n, r->pos, r->readable);
        return false;
    }
    if (r->pos + n <= g->have)
        return true;
    if (r->pos + n > OFF_TEXT_BYTES_MAX) {
        err_set(r->e, ERR_LIMIT, "%s: %s: expected at most %zu bytes of header", r->base, what, OFF_TEXT_BYTES_MAX);
        return false;
    }
    size_t want = 2 * g->have > r->pos + n ? 2 * g->have : r->pos + (size_t)n;
    if (want < CHUNK)
        want = CHUNK;
    if (want > OFF_TEXT_BYTES_MAX)
        want = OFF_TEXT_BYTES_MAX;
    if (want > r->readable)
        want = (size_t)r->readable;
    uint8_t *p = realloc(g->block, want);
    if (!p) {
        err_set(r->e, ERR_NOMEM, "%s: header of %zu bytes", r->base, want);
        return false;
    }
    g->block = p;
    int rc = off_io_read_all(r->fd, p + g->have, want - g->have, g->have, r->e);
    if (rc != ERR_OK) {
        err_prefix(r->e, rc, "%s: %s", r->base, what);
        return false;
    }
    g->have = want;
    return true;
}

uint64_t off_gguf_le(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static bool uint_at(struct reader *r, unsigned bytes, const char *what, uint64_t *v)
{
    if (!need(r, bytes, what))
        return false;
    *v = off_gguf_le(r->g->block + r->pos, bytes);
    r->pos += bytes;
    return true;
}

/* A length and that many bytes; the position of the bytes in *at. */
static bool string_at(struct reader *r, const char *what, size_t *at, size_t *n)
{
    uint64_t len;
    if (!uint_at(r, 8, what, &len) || !need(r, len, what))
        return false;
    *at = r->pos;
    *n = (size_t)len;
    r->pos += *n;
    return true;
}

/* ---- metadata --------------------------------------------------------------------------------------------- */
static bool array_at(struct reader *r, const char *what, struct off_gguf_value *v)
{
    uint64_t type, n, bytes;
    if (!uint_at(r, 4, what, &type) || !uint_at(r, 8, what, &n))
        return false;
    if (type > OFF_GGUF_F64 || type == OFF_GGUF_ARRAY) {
        err_set(r->e, type == OFF_GGUF_ARRAY ? ERR_UNSUPPORTED : ERR_FORMAT, "%s: %s: expected an array of numbers, bools or strings, found element type %" PRIu64,
                r->base, what, type);
        return false;
    }
    v->elem = (uint8_t)type;
    v->n = n;
    v->at = r->pos;
    if (type != OFF_GGUF_STRING) {
        if (__builtin_mul_overflow(n, (uint64_t)off_gguf_bytes_of[type], &bytes))
            bytes = UINT64_MAX;
        if (!need(r, bytes, what))
            return false;
        r->pos += (size_t)bytes;
        return true;
    }
    if (n > (r->size - r->pos) / 8) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected at most %" PRIu64 " strings in the rest of the file, found %" PRIu64, r->base, what,
                (r->size - r->pos) / 8, n);
        return false;
    }
    size_t cap = 0;
    for (uint64_t i = 0; i < n; i++) {
        size_t at, len;
        if (!string_at(r, what, &at, &len))
            return false;
        if (i == cap) {
            cap = cap ? 2 * cap : 64;
            uint32_t *p = realloc(v->strings, cap * sizeof *p);
            if (!p) {
                err_set(r->e, ERR_NOMEM, "%s: %s: %" PRIu64 " strings", r->base, what, n);
                return false;
            }
            v->strings = p;
        }
        v->strings[i] = (uint32_t)(at - 8); /* the block is at most 1 GiB */
    }
    return true;
}

static bool value_at(struct reader *r, const char *what, struct off_gguf_value *v)
{
    uint64_t type;
    size_t n;
    if (!uint_at(r, 4, what, &type))
        return false;
    if (type > OFF_GGUF_F64) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected a value type from 0 to 12, found %" PRIu64, r->base, what, type);
        return false;
    }
    v->type = (uint8_t)type;
    if (type == OFF_GGUF_ARRAY)
        return array_at(r, what, v);
    if (type == OFF_GGUF_STRING) {
        bool ok = string_at(r, what, &v->at, &n);
        v->n = n;
        return ok;
    }
    if (!need(r, off_gguf_bytes_of[type], what))
        return false;
    v->at = r->pos;
    r->pos += off_gguf_bytes_of[type];
    if (type == OFF_GGUF_BOOL && r->g->block[v->at] > 1) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected a bool of 0 or 1, found %u", r->base, what, r->g->block[v->at]);
        return false;
    }
    return true;
}

static bool pair_at(struct reader *r, uint64_t i)
{
    struct off_gguf *g = r->g;
    char what[160];
    size_t at, n;
    bool fresh;
    snprintf(what, sizeof what, "metadata key %" PRIu64, i);
    if (!string_at(r, what, &at, &n))
        return false;
    const char *key = (const char *)g->block + at;
    if (n == 0 || n > UINT16_MAX || !off_name_valid(key, n)) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected 1 to 65535 bytes of UTF-8, found %s", r->base, what,
                n == 0 ? "none" : n > UINT16_MAX ? "more" : "others");
        return false;
    }
    snprintf(what, sizeof what, "%.*s", (int)(n < OFF_NAME_SHOWN ? n : OFF_NAME_SHOWN), key);
    uint32_t k = off_names_add(&g->keys, key, n, &fresh);
    if (k != OFF_NO_NAME && !fresh) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected this metadata key once, found it twice", r->base, what);
        return false;
    }
    struct off_gguf_value *v = k == OFF_NO_NAME ? NULL : realloc(g->values, (k + 1) * sizeof *v);
    if (!v) {
        err_set(r->e, ERR_NOMEM, "%s: %s", r->base, what);
        return false;
    }
    g->values = v;
    v[k] = (struct off_gguf_value){0};
    g->n_values = k + 1;
    return value_at(r, what, &v[k]);
}

static const struct off_gguf_value *value_of(const struct off_gguf *g, const char *key)
{
    uint32_t k = off_names_find(&g->keys, key, strlen(key));
    return k == OFF_NO_NAME ? NULL : &g->values[k];
}

/* An unsigned integer of the metadata. ERR_NOTFOUND when absent (*v untouched), ERR_FORMAT when it is something else. */
static int uint_of(const struct off_gguf *g, const char *key, const char *base, uint64_t *v, struct err *e)
{
    const struct off_gguf_value *x = value_of(g, key);
    int64_t i;
    if (!x)
        return err_set(e, ERR_NOTFOUND, "%s: expected %s in the metadata, found none", base, key);
    if (!off_gguf_int(g, x->type, x->at, &i) || i < 0)
        return err_set(e, ERR_FORMAT, "%s: %s: expected a whole number from 0", base, key);
    *v = (uint64_t)i;
    return ERR_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */
static bool tensor_at(struct reader *r, struct off_catalog *c, uint32_t file, uint64_t no, struct off_range *out)
{
    char what[OFF_NAME_SHOWN + 32];
    size_t at, n;
    uint64_t n_dims, type, offset, bytes = 1, dims[DIMS_MAX];
    bool fresh;
    snprintf(what, sizeof what, "tensor %" PRIu64, no);
    if (!string_at(r, what, &at, &n))
        return false;
    const char *name = (const char *)r->g->block + at;
    if (n == 0 || n > UINT16_MAX || !off_name_valid(name, n)) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected a name of 1 to 65535 bytes of UTF-8, found %s", r->base, what,
                n == 0 ? "none" : n > UINT16_MAX ? "more" : "others");
        return false;
    }
    snprintf(what, sizeof what, "tensor \"%.*s\"", (int)(n < OFF_NAME_SHOWN ? n : OFF_NAME_SHOWN), name);
    uint32_t i = off_catalog_add(c, name, n, &fresh, r->e);
    if (i == OFF_NO_NAME)
        return false;
    if (!fresh) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected once, found again (first in %s)", r->base, what, c->files[c->tensors[i].file].base);
        return false;
    }
    c->tensors[i].file = file;
    if (!uint_at(r, 4, what, &n_dims))
        return false;
    if (n_dims > DIMS_MAX) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected at most %d dimensions, found %" PRIu64, r->base, what, DIMS_MAX, n_dims);
        return false;
    }
    for (uint64_t d = 0; d < n_dims; d++)
        if (!uint_at(r, 8, what, &dims[d]))
            return false;
    if (!uint_at(r, 4, what, &type) || !uint_at(r, 8, what, &offset))
        return false;
    int t = krn_type_from_ggml((uint32_t)type);
    if (t < 0) {
        err_set(r->e, ERR_UNSUPPORTED, "%s: %s: expected a known ggml type, found number %" PRIu64, r->base, what, type);
        return false;
    }
    const struct krn_type_info *info = &krn_types[t];
    if ((n_dims ? dims[0] : 1) % info->block) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected rows of a multiple of %u elements (%s), found %" PRIu64, r->base, what, info->block, info->name,
                n_dims ? dims[0] : 1);
        return false;
    }
    bool over = false, none = false;
    for (uint64_t d = 0; d < n_dims; d++) {
        uint64_t k = d == 0 ? dims[0] / info->block : dims[d];
        none |= k == 0;
        over |= __builtin_mul_overflow(bytes, k ? k : 1, &bytes);
        c->tensors[i].dims[n_dims - 1 - d] = dims[d];
    }
    over |= __builtin_mul_overflow(bytes, (uint64_t)info->block_bytes, &bytes);
    bytes = none ? 0 : bytes;
    if (over || offset > INT64_MAX || bytes > INT64_MAX - offset) {
        err_set(r->e, ERR_FORMAT, "%s: %s: expected to end within the file's %" PRIu64 " bytes, found shape and offset beyond 2^63", r->base, what, r->size);
        return false;
    }
    c->tensors[i].type = (enum krn_type)t;
    c->tensors[i].n_dims = (uint8_t)n_dims;
    c->tensors[i].bytes = bytes;
    *out = (struct off_range){offset, offset + bytes, i};
    return true;
}

/* Offsets become absolute; alignment, bounds and overlap are checked. */
static int settle(struct reader *r, struct off_catalog *c, struct off_range *v, size_t n, uint64_t align, enum off_lack *lack)
{
    uint64_t data_at = (r->pos + align - 1) & ~(align - 1);
    const struct off_range *cut = NULL;
    off_ranges_sort(v, n);
    for (size_t i = 0; i < n; i++) {
        struct off_tensor *t = &c->tensors[v[i].tensor];
        if (v[i].begin % align)
            return err_set(r->e, ERR_FORMAT, "%s: tensor \"%.*s\": expected an offset that is a multiple of %" PRIu64 ", found %" PRIu64, r->base,
                           OFF_NAME_SHOWN, t->name, align, v[i].begin);
        if (i > 0 && v[i].begin < v[i - 1].end)
            return err_set(r->e, ERR_FORMAT, "%s: tensor \"%.*s\": expected to begin at or behind %" PRIu64 ", where \"%.*s\" ends, found %" PRIu64 ": they share bytes",
                           r->base, OFF_NAME_SHOWN, t->name, v[i - 1].end, OFF_NAME_SHOWN, c->tensors[v[i - 1].tensor].name, v[i].begin);
        if (v[i].end > INT64_MAX - data_at || (v[i].end > v[i].begin && data_at + v[i].end > r->size))
            cut = cut ? cut : &v[i];
        t->offset = data_at + v[i].begin;
    }
    if (!cut)
        return ERR_OK;
    *lack = cut->end > INT64_MAX - data_at ? OFF_WHOLE : OFF_DATA_CUT;
    return err_set(r->e, ERR_FORMAT, "%s: tensor \"%.*s\": expected to end at byte %" PRIu64 ", found a file of %" PRIu64 " bytes: it is cut short", r->base,
                   OFF_NAME_SHOWN, c->tensors[cut->tensor].name, data_at + cut->end, r->size);
}

/* ---- a file ----------------------------------------------------------------------------------------------- */
static int preamble(struct reader *r, uint64_t *n_tensors, uint64_t *n_keys)
{
    uint64_t version;
    if (!need(r, 4, "magic"))
        return r->e->code;
    if (memcmp(r->g->block, "GGUF", 4) != 0)
        return err_set(r->e, ERR_FORMAT, "%s: expected the magic \"GGUF\", found bytes %02x %02x %02x %02x", r->base, r->g->block[0], r->g->block[1],
                       r->g->block[2], r->g->block[3]);
    r->pos = 4;
    if (!uint_at(r, 4, "version", &version))
        return r->e->code;
    if (version != 2 && version != 3)
        return err_set(r->e, ERR_UNSUPPORTED, "%s: expected GGUF version 2 or 3, found %" PRIu64 "%s", r->base, version,
                       version && !(version & 0xFFFF) ? " (a big-endian file?)" : "");
    if (!uint_at(r, 8, "tensor count", n_tensors) || !uint_at(r, 8, "metadata count", n_keys))
        return r->e->code;
    /* the shortest tensor entry takes 25 bytes (a name of one), the shortest pair 14 */
    if (*n_tensors > (r->size - r->pos) / 25)
        return err_set(r->e, ERR_FORMAT, "%s: tensor count: expected at most %" PRIu64 " in a file of %" PRIu64 " bytes, found %" PRIu64, r->base,
                       (r->size - r->pos) / 25, r->size, *n_tensors);
    if (*n_keys > (r->size - r->pos) / 14 || *n_keys > KEYS_MAX)
        return err_set(r->e, ERR_FORMAT, "%s: metadata count: expected at most %" PRIu64 ", found %" PRIu64, r->base,
                       (r->size - r->pos) / 14 < KEYS_MAX ? (r->size - r->pos) / 14 : (uint64_t)KEYS_MAX, *n_keys);
    return ERR_OK;
}

static int read_header(struct reader *r, struct off_catalog *c, uint32_t file, enum off_lack *lack)
{
    uint64_t n_tensors = 0, n_keys = 0, align = 32;
    struct off_range *v = NULL;
    size_t cap = 0;
    int rc = preamble(r, &n_tensors, &n_keys);
    for (uint64_t i = 0; rc == ERR_OK && i < n_keys; i++)
        if (!pair_at(r, i))
            rc = r->e->code;
    if (rc == ERR_OK && (rc = uint_of(r->g, "general.alignment", r->base, &align, r->e)) == ERR_NOTFOUND)
        rc = ERR_OK;
    if (rc == ERR_OK && (align == 0 || align > ALIGN_MAX || (align & (align - 1))))
        rc = err_set(r->e, ERR_FORMAT, "%s: general.alignment: expected a power of two up to %u, found %" PRIu64, r->base, ALIGN_MAX, align);
    for (uint64_t i = 0; rc == ERR_OK && i < n_tensors; i++) {
        if (i == cap) {
            cap = cap ? 2 * cap : 256;
            struct off_range *p = realloc(v, cap * sizeof *p);
            if (!p) {
                rc = err_set(r->e, ERR_NOMEM, "%s: %" PRIu64 " tensors", r->base, n_tensors);
                break;
            }
            v = p;
        }
        if (!tensor_at(r, c, file, i, &v[i]))
            rc = r->e->code;
    }
    if (rc == ERR_OK)
        rc = settle(r, c, v, (size_t)n_tensors, align, lack);
    free(v);
    return rc;
}

/* Opens and reads files[file] into *out, which the caller frees. */
static int read_file(struct off_catalog *c, uint32_t file, struct off_gguf **out, struct err *e)
{
    struct off_file *f = &c->files[file];
    enum off_lack lack = OFF_WHOLE;
    *out = NULL;
    uint64_t readable;
    int rc = off_catalog_open_file(c, file, &readable, e);
    if (rc != ERR_OK)
        return rc;
    struct off_gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "%s", f->base);
    off_names_init(&g->keys);
    *out = g;
    struct reader r = {.g = g, .fd = f->fd, .size = f->size, .readable = readable, .base = f->base, .e = e};
    rc = read_header(&r, c, file, &lack);
    if (rc != ERR_OK && lack == OFF_DATA_CUT)
        rc = off_catalog_note(c, e);
    return rc;
}

void off_gguf_free(struct off_gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_values; i++)
        free(g->values[i].strings);
    free(g->values);
    free(g->block);
    off_names_free(&g->keys);
    free(g);
}

size_t off_gguf_bytes(const struct off_gguf *g)
{
    if (!g)
        return 0;
    size_t n = sizeof *g + g->have + g->keys.bytes + g->n_values * sizeof *g->values;
    for (size_t i = 0; i < g->n_values; i++)
        n += g->values[i].strings ? (size_t)g->values[i].n * sizeof *g->values[i].strings : 0;
    return n;
}

/* ---- a set ------------------------------------------------------------------------------------------------ */
/* What a part says of its place; a file without split.count is a set of one. */
static int split_of(const struct off_gguf *g, const char *base, uint64_t *no, uint64_t *count, struct err *e)
{
    *no = 0;
    *count = 1;
    int rc = uint_of(g, "split.count", base, count, e);
    if (rc == ERR_NOTFOUND || (rc == ERR_OK && *count <= 1)) {
        *count = 1;
        return ERR_OK;
    }
    if (rc == ERR_OK && *count > SPLIT_MAX)
        rc = err_set(e, ERR_FORMAT, "%s: split.count: expected at most %d, found %" PRIu64, base, SPLIT_MAX, *count);
    return rc == ERR_OK ? uint_of(g, "split.no", base, no, e) : rc;
}

static int read_part(struct off_catalog *c, const char *stem, size_t stem_n, uint64_t i, uint64_t count, struct err *e)
{
    struct off_gguf *g = NULL;
    uint64_t no, n;
    char *base = arena_printf(&c->mem, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf", (int)stem_n, stem, i + 1, count);
    if (!base)
        return err_set(e, ERR_NOMEM, "names of %" PRIu64 " files", count);
    uint32_t file = off_catalog_add_file(c, base, strlen(base), e);
    if (file == OFF_NO_NAME)
        return e->code;
    int rc = read_file(c, file, &g, e);
    if (rc == ERR_NOTFOUND) {
        c->files[file].missing = true;
        err_set(e, ERR_NOTFOUND, "%s: expected this file, part %" PRIu64 " of a split set of %" PRIu64 ", found none of that name", c->files[file].path, i + 1, count);
        return off_catalog_note(c, e);
    }
    if (rc == ERR_OK)
        rc = split_of(g, base, &no, &n, e);
    if (rc == ERR_OK && (no != i || n != count))
        rc = err_set(e, ERR_FORMAT, "%s: expected split.no %" PRIu64 " of split.count %" PRIu64 ", found %" PRIu64 " of %" PRIu64, base, i, count, no, n);
    off_gguf_free(g);
    return rc;
}

static int read_rest(struct off_catalog *c, const char *base, uint64_t no, uint64_t count, struct err *e)
{
    char tail[64];
    snprintf(tail, sizeof tail, "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", no + 1, count);
    size_t n = strlen(base), m = strlen(tail);
    if (no != 0)
        return err_set(e, ERR_INVALID, "%s: expected the first file of the split set, found part %" PRIu64 " of %" PRIu64, base, no + 1, count);
    if (n <= m || strcmp(base + n - m, tail) != 0)
        return err_set(e, ERR_FORMAT, "%s: expected a name that ends in %s, as its split.count says", base, tail);
    int rc = ERR_OK;
    for (uint64_t i = 1; rc == ERR_OK && i < count; i++)
        rc = read_part(c, base, n - m, i, count, e);
    return rc;
}

int off_gguf_open(struct off_catalog *c, const char *base, struct err *e)
{
    uint64_t no, count, total = 0;
    uint32_t file = off_catalog_add_file(c, base, strlen(base), e);
    if (file == OFF_NO_NAME)
        return e->code;
    int rc = read_file(c, file, &c->gguf, e);
    if (rc == ERR_OK)
        rc = split_of(c->gguf, c->files[file].base, &no, &count, e);
    if (rc == ERR_OK && count > 1) {
        rc = read_rest(c, base, no, count, e);
        if (rc == ERR_OK && (rc = uint_of(c->gguf, "split.tensors.count", base, &total, e)) == ERR_NOTFOUND) {
            total = c->names.n;
            rc = ERR_OK;
        }
        if (rc == ERR_OK && total != c->names.n && c->n_problems == 0)
            rc = err_set(e, ERR_FORMAT, "%s: expected %" PRIu64 " tensors in the %" PRIu64 " files (split.tensors.count), found %u", base, total, count, c->names.n);
    }
    return rc == ERR_OK ? off_gguf_config(c, e) : rc;
}
