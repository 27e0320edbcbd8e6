/* One safetensors file: u64 header length, JSON header, data. The JSON names each tensor's dtype, shape and [begin, end) within
 * the data; the format forbids holes and overlaps, so the sorted ranges must tile the data exactly. One pass of the streaming
 * reader, straight into the catalog: no tree. Source: the safetensors README, "Format". */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "offload/catalog_internal.h"

/* What one entry of the header says. */
struct entry {
    enum krn_type type;
    uint8_t n_dims;
    uint64_t dims[OFF_DIMS_MAX], begin, end;
    enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 } has;
};
struct parse {
    struct off_catalog *c;
    struct off_header *h;
    json_reader *r;
    uint32_t file;
    bool listed;
    const char *base;         /* the file's, for messages */
    const char *name;         /* the tensor at hand */
    size_t n_ranges;
    uint64_t data_at, data_bytes;
};

#define AT_TENSOR "%s: tensor \"%.*s\": "
#define TENSOR(p) (p)->base, OFF_NAME_SHOWN, (p)->name

/* json_next, with the file in front of the reader's message, which speaks of bytes and lines alone. */
static int next(struct parse *p, const char **s, size_t *n, struct err *e)
{
    int ev = json_next(p->r, s, n, e);
    if (ev < 0)
        err_prefix(e, ERR_FORMAT, "%s: header", p->base);
    return ev;
}

/* A JSON number as an exact unsigned integer: digits only. */
static bool digits(const char *s, size_t n, uint64_t *v)
{
    *v = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned d = (unsigned char)s[i] - '0';
        if (d > 9 || __builtin_mul_overflow(*v, (uint64_t)10, v) || __builtin_add_overflow(*v, (uint64_t)d, v))
            return false;
    }
    return n > 0;
}

/* Reads an array of at most max unsigned integers; *n is their number. */
static int numbers(struct parse *p, const char *what, uint64_t *v, size_t max, size_t *n, struct err *e)
{
    const char *s;
    size_t len;
    int ev = next(p, &s, &len, e);
    if (ev < 0)
        return e->code;
    if (ev != JSON_EV_ARRAY)
        return err_set(e, ERR_FORMAT, AT_TENSOR "%s: expected an array", TENSOR(p), what);
    for (*n = 0; (ev = next(p, &s, &len, e)) != JSON_EV_ARRAY_END; ++*n) {
        if (ev < 0)
            return e->code;
        if (ev != JSON_EV_NUMBER)
            return err_set(e, ERR_FORMAT, AT_TENSOR "%s: expected whole numbers from 0 to 2^64 - 1", TENSOR(p), what);
        if (*n == max)
            return err_set(e, ERR_UNSUPPORTED, AT_TENSOR "%s: expected at most %zu numbers", TENSOR(p), what, max);
        if (!digits(s, len, &v[*n]))
            return err_set(e, ERR_FORMAT, AT_TENSOR "%s: expected whole numbers from 0 to 2^64 - 1, found %.*s", TENSOR(p), what,
                           (int)(len < 40 ? len : 40), s);
    }
    return ERR_OK;
}

static int dtype(struct parse *p, struct entry *t, struct err *e)
{
    const char *s;
    size_t n;
    int ev = next(p, &s, &n, e), type;
    if (ev < 0)
        return e->code;
    if (ev != JSON_EV_STRING)
        return err_set(e, ERR_FORMAT, AT_TENSOR "dtype: expected a string", TENSOR(p));
    if ((type = krn_type_from_safetensors(s, n)) < 0)
        return err_set(e, ERR_UNSUPPORTED, AT_TENSOR "dtype: expected a known one (F32, BF16, F8_E4M3, U8, ...), found \"%.*s\"",
                       TENSOR(p), (int)(n < 40 ? n : 40), s);
    t->type = (enum krn_type)type;
    return ERR_OK;
}

static int field(struct parse *p, const char *key, size_t key_n, struct entry *t, struct err *e)
{
    static const struct { const char *name; unsigned bit; } fields[] = {{"dtype", HAS_DTYPE}, {"shape", HAS_SHAPE}, {"data_offsets", HAS_OFFSETS}};
    unsigned bit = 0;
    uint64_t at[2];
    size_t n;
    int rc;
    for (size_t i = 0; i < 3; i++)
        if (strlen(fields[i].name) == key_n && !memcmp(fields[i].name, key, key_n))
            bit = fields[i].bit;
    if (t->has & bit)
        return err_set(e, ERR_FORMAT, AT_TENSOR "expected %.*s once, found it twice", TENSOR(p), (int)key_n, key);
    t->has |= bit;
    switch (bit) {
    case HAS_DTYPE:
        return dtype(p, t, e);
    case HAS_SHAPE:
        rc = numbers(p, "shape", t->dims, OFF_DIMS_MAX, &n, e);
        t->n_dims = (uint8_t)n;
        return rc;
    case HAS_OFFSETS:
        rc = numbers(p, "data_offsets", at, 2, &n, e);
        if (rc == ERR_OK && n != 2)
            rc = err_set(e, ERR_FORMAT, AT_TENSOR "data_offsets: expected 2 numbers, found %zu", TENSOR(p), n);
        if (rc == ERR_OK) {
            t->begin = at[0];
            t->end = at[1];
        }
        return rc;
    default: { /* the format may grow; what we do not know cannot move bytes, since the three above fix them */
        const char *s;
        if (next(p, &s, &n, e) < 0)
            return e->code;
        if (json_skip(p->r, e) != ERR_OK)
            return err_prefix(e, ERR_FORMAT, "%s: header", p->base);
        return ERR_OK;
    }
    }
}

static int check_entry(struct parse *p, const struct entry *t, struct err *e)
{
    if (t->has != HAS_ALL)
        return err_set(e, ERR_FORMAT, AT_TENSOR "expected dtype, shape and data_offsets, found no %s", TENSOR(p),
                       !(t->has & HAS_DTYPE) ? "dtype" : !(t->has & HAS_SHAPE) ? "shape" : "data_offsets");
    if (t->begin > t->end)
        return err_set(e, ERR_FORMAT, AT_TENSOR "data_offsets: expected begin <= end, found [%" PRIu64 ", %" PRIu64 "]", TENSOR(p), t->begin, t->end);
    uint64_t bytes = krn_types[t->type].block_bytes;
    bool over = false, none = false;
    for (unsigned i = 0; i < t->n_dims; i++) {
        none |= t->dims[i] == 0;
        over |= __builtin_mul_overflow(bytes, t->dims[i] ? t->dims[i] : 1, &bytes);
    }
    if (over)
        return err_set(e, ERR_FORMAT, AT_TENSOR "shape: expected fewer than 2^64 bytes in all", TENSOR(p));
    if (none)
        bytes = 0;
    if (t->end - t->begin != bytes)
        return err_set(e, ERR_FORMAT, AT_TENSOR "expected %" PRIu64 " bytes for its %s shape, found %" PRIu64 " (data_offsets [%" PRIu64 ", %" PRIu64 "])",
                       TENSOR(p), bytes, krn_types[t->type].name, t->end - t->begin, t->begin, t->end);
    if (t->end > INT64_MAX - p->data_at)
        return err_set(e, ERR_FORMAT, AT_TENSOR "data_offsets: expected to end within the file's %" PRIu64 " data bytes, found %" PRIu64,
                       TENSOR(p), p->data_bytes, t->end);
    return ERR_OK;
}

/* The index of a name in the catalog. With an index file, what it says rules; without one, a name must be new. */
static uint32_t place(struct parse *p, const char *s, size_t n, struct err *e)
{
    int shown = (int)(n < OFF_NAME_SHOWN ? n : OFF_NAME_SHOWN);
    uint32_t i;
    bool twice;
    if (p->listed) {
        i = off_names_find(&p->c->names, s, n);
        if (i == OFF_NO_NAME) {
            err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected every tensor in model.safetensors.index.json, found no entry for this one",
                    p->base, shown, s);
            return i;
        }
        const struct off_tensor *t = &p->c->tensors[i];
        if (t->file != p->file) {
            err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected in %s, where the index has it, found in this file's header",
                    p->base, shown, s, p->c->files[t->file].base);
            return OFF_NO_NAME;
        }
        twice = t->offset != 0;
    } else {
        bool fresh;
        i = off_catalog_add(p->c, s, n, &fresh, e);
        twice = i != OFF_NO_NAME && !fresh;
    }
    if (twice) {
        err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected once, found twice in the header", p->base, shown, s);
        return OFF_NO_NAME;
    }
    return i;
}

static int add_range(struct parse *p, const struct off_range *r, struct err *e)
{
    struct off_header *h = p->h;
    if (p->n_ranges == h->ranges_cap) {
        size_t cap = h->ranges_cap ? 2 * h->ranges_cap : 256;
        struct off_range *v = realloc(h->ranges, cap * sizeof *v);
        if (!v)
            return err_set(e, ERR_NOMEM, "%s: %zu tensors", p->base, p->n_ranges);
        h->ranges = v;
        h->ranges_cap = cap;
    }
    h->ranges[p->n_ranges++] = *r;
    return ERR_OK;
}

static int tensor(struct parse *p, const char *s, size_t n, struct err *e)
{
    struct entry t = {0};
    uint32_t i = place(p, s, n, e);
    int ev, rc = ERR_OK;
    if (i == OFF_NO_NAME)
        return e->code;
    p->name = p->c->names.v[i].s;
    if ((ev = next(p, &s, &n, e)) < 0)
        return e->code;
    if (ev != JSON_EV_OBJECT)
        return err_set(e, ERR_FORMAT, AT_TENSOR "expected an object", TENSOR(p));
    while (rc == ERR_OK && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END)
        rc = ev < 0 ? e->code : field(p, s, n, &t, e);
    if (rc != ERR_OK || (rc = check_entry(p, &t, e)) != ERR_OK)
        return rc;
    /* offset is at least 8 from here on, which marks the name as seen */
    struct off_tensor *o = &p->c->tensors[i];
    o->type = t.type;
    o->n_dims = t.n_dims;
    memcpy(o->dims, t.dims, sizeof t.dims);
    o->offset = p->data_at + t.begin;
    o->bytes = t.end - t.begin;
    if (!p->listed) /* else the index set it, and other threads compare it with theirs */
        o->file = p->file;
    return add_range(p, &(struct off_range){t.begin, t.end, i}, e);
}

/* __metadata__: strings only. Nothing in it bears on the tensors. */
static int metadata(struct parse *p, struct err *e)
{
    const char *s;
    size_t n;
    int ev = next(p, &s, &n, e);
    if (ev >= 0 && ev != JSON_EV_OBJECT)
        return err_set(e, ERR_FORMAT, "%s: __metadata__: expected an object of strings", p->base);
    while (ev >= 0 && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END) {
        if (ev >= 0 && (ev = next(p, &s, &n, e)) >= 0 && ev != JSON_EV_STRING)
            return err_set(e, ERR_FORMAT, "%s: __metadata__: expected an object of strings", p->base);
    }
    return ev < 0 ? e->code : ERR_OK;
}

static int header(struct parse *p, struct err *e)
{
    const char *s;
    size_t n;
    bool meta = false;
    int rc = ERR_OK, ev = next(p, &s, &n, e);
    if (ev >= 0 && ev != JSON_EV_OBJECT)
        return err_set(e, ERR_FORMAT, "%s: header: expected an object", p->base);
    while (rc == ERR_OK && ev >= 0 && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END) {
        if (ev < 0)
            break;
        if (n == 12 && !memcmp(s, "__metadata__", 12)) {
            rc = meta ? err_set(e, ERR_FORMAT, "%s: header: expected __metadata__ once, found it twice", p->base) : metadata(p, e);
            meta = true;
        } else {
            rc = tensor(p, s, n, e);
        }
    }
    if (rc == ERR_OK && ev >= 0)
        ev = next(p, &s, &n, e); /* END, or trailing text */
    return rc != ERR_OK ? rc : ev < 0 ? e->code : ERR_OK;
}

/* The sorted ranges must tile the data: what is wrong first, by its tensor. */
static int tiled(struct parse *p, enum off_lack *lack, struct err *e)
{
    uint64_t at = 0;
    off_ranges_sort(p->h->ranges, p->n_ranges);
    for (size_t i = 0; i < p->n_ranges; i++) {
        const struct off_range *r = &p->h->ranges[i];
        p->name = p->c->names.v[r->tensor].s;
        if (r->begin < at)
            return err_set(e, ERR_FORMAT, AT_TENSOR "expected to begin at %" PRIu64 ", where \"%.*s\" ends, found %" PRIu64 ": they share bytes",
                           TENSOR(p), at, OFF_NAME_SHOWN, p->c->names.v[r[-1].tensor].s, r->begin);
        if (r->begin > at)
            return err_set(e, ERR_FORMAT, AT_TENSOR "expected to begin at %" PRIu64 ", found %" PRIu64 ": %" PRIu64 " bytes before it belong to no tensor",
                           TENSOR(p), at, r->begin, r->begin - at);
        at = r->end;
    }
    for (size_t i = 0; at > p->data_bytes && i < p->n_ranges; i++)
        if (p->h->ranges[i].end > p->data_bytes) {
            p->name = p->c->names.v[p->h->ranges[i].tensor].s;
            *lack = OFF_DATA_CUT;
            return err_set(e, ERR_FORMAT, AT_TENSOR "expected to end at data byte %" PRIu64 ", found a file of %" PRIu64 " data bytes: it is cut short",
                           TENSOR(p), p->h->ranges[i].end, p->data_bytes);
        }
    if (at < p->data_bytes)
        return err_set(e, ERR_FORMAT, "%s: expected the file to end with its last tensor at %" PRIu64 " data bytes, found %" PRIu64 ": %" PRIu64 " bytes follow it",
                       p->base, at, p->data_bytes, p->data_bytes - at);
    return ERR_OK;
}

/* The header's text into h->text: *n bytes. */
static int read_header(struct off_catalog *c, uint32_t file, struct off_header *h, size_t *n, enum off_lack *lack, struct err *e)
{
    const struct off_file *f = &c->files[file];
    uint8_t le[8];
    uint64_t len = 0;
    if (f->size < 8) {
        *lack = OFF_HEADER_CUT;
        return err_set(e, ERR_FORMAT, "%s: expected 8 bytes of header length, found a file of %" PRIu64, f->base, f->size);
    }
    int rc = off_io_read_all(f->fd, le, 8, 0, e);
    if (rc != ERR_OK)
        return err_prefix(e, rc, "%s: header length", f->base);
    for (unsigned i = 0; i < 8; i++)
        len |= (uint64_t)le[i] << (8 * i);
    if (len > OFF_HEADER_BYTES_MAX || len > f->size - 8) {
        *lack = len <= OFF_HEADER_BYTES_MAX ? OFF_HEADER_CUT : OFF_WHOLE;
        return err_set(e, ERR_FORMAT, "%s: header: expected at most %" PRIu64 " bytes (%s), found a length of %" PRIu64, f->base,
                       f->size - 8 < OFF_HEADER_BYTES_MAX ? f->size - 8 : (uint64_t)OFF_HEADER_BYTES_MAX,
                       f->size - 8 < OFF_HEADER_BYTES_MAX ? "the rest of the file" : "the format's bound", len);
    }
    *n = (size_t)len;
    if (*n > h->cap) {
        free(h->text);
        h->cap = *n > ((size_t)1 << 20) ? *n : (size_t)1 << 20;
        if (!(h->text = malloc(h->cap))) {
            h->cap = 0;
            return err_set(e, ERR_NOMEM, "%s: header of %zu bytes", f->base, *n);
        }
    }
    rc = off_io_read_all(f->fd, h->text, *n, 8, e);
    if (rc != ERR_OK)
        return err_prefix(e, rc, "%s: header", f->base);
    if (*n == 0 || h->text[0] != '{')
        return err_set(e, ERR_FORMAT, "%s: header: expected it to begin with '{'", f->base);
    return ERR_OK;
}

int off_safetensors_header(struct off_catalog *c, uint32_t file, bool listed, struct off_header *h, enum off_lack *lack, struct err *e)
{
    struct parse p = {.c = c, .h = h, .file = file, .listed = listed, .base = c->files[file].base};
    size_t n = 0;
    *lack = OFF_WHOLE;
    int rc = read_header(c, file, h, &n, lack, e);
    if (rc != ERR_OK)
        return rc;
    p.data_at = 8 + n;
    p.data_bytes = c->files[file].size - p.data_at;
    if ((rc = json_reader_open(&p.r, h->text, n, &json_strict, e)) != ERR_OK)
        return err_prefix(e, rc, "%s: header", p.base);
    rc = header(&p, e);
    json_reader_close(p.r);
    return rc == ERR_OK ? tiled(&p, lack, e) : rc;
}

void off_header_free(struct off_header *h)
{
    free(h->text);
    free(h->ranges);
    *h = (struct off_header){0};
}

int off_safetensors_open_file(struct off_catalog *c, const char *base, struct err *e)
{
    struct off_header h = {0};
    enum off_lack lack;
    uint32_t i = off_catalog_add_file(c, base, strlen(base), e);
    if (i == OFF_NO_NAME)
        return ERR_NOMEM;
    uint64_t readable;
    int rc = off_catalog_open_file(c, i, &readable, e);
    if (rc == ERR_OK) {
        rc = off_safetensors_header(c, i, false, &h, &lack, e);
        if (rc != ERR_OK && lack != OFF_WHOLE)
            rc = off_catalog_note(c, e);
    }
    off_header_free(&h);
    return rc;
}
