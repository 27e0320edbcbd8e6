/* The manifest is text, a line a thing, so that one that is being made only grows: see docs/formats.md. */
#include "offload/pack.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "offload/weights_internal.h"

struct reader {
    const char *text, *end, *at;  /* at: the line to come */
    const char *line, *stop;      /* the current one, and where it ends */
    uint32_t number;
    struct off_pack *p;
    struct arena *a;
    struct err *e;
    uint32_t caps[3];
};

static int bad(struct reader *r, const char *what)
{
    return err_set(r->e, ERR_FORMAT, "%s: line %" PRIu32 ": expected %s, found \"%.*s\"", OFF_PACK_MANIFEST, r->number, what,
                   (int)(r->stop - r->line < 60 ? r->stop - r->line : 60), r->line);
}

/* The next whole line; false: there is none. */
static bool next(struct reader *r)
{
    const char *nl = r->at < r->end ? memchr(r->at, '\n', (size_t)(r->end - r->at)) : NULL;
    if (!nl)
        return false;
    r->line = r->at;
    r->stop = nl;
    r->at = nl + 1;
    r->number++;
    return true;
}

static bool word(struct reader *r, const char *w)
{
    size_t n = strlen(w);
    if ((size_t)(r->stop - r->line) < n || memcmp(r->line, w, n))
        return false;
    r->line += n;
    return true;
}

/* Decimal (base 10) or all of 16 hex digits, and the character behind it. */
static bool number(struct reader *r, int base, char after, uint64_t *v)
{
    const char *s = r->line;
    *v = 0;
    for (; s < r->stop; s++) {
        unsigned c = (unsigned char)*s, d = c - '0' < 10 ? c - '0' : base == 16 && c - 'a' < 6 ? c - 'a' + 10 : 99;
        if (d == 99)
            break;
        if (__builtin_mul_overflow(*v, (uint64_t)base, v) || __builtin_add_overflow(*v, d, v))
            return false;
    }
    if (s == r->line || (base == 16 && s - r->line != 16) || (after ? s >= r->stop || *s != after : s != r->stop))
        return false;
    r->line = s + (after != 0);
    return true;
}

/* The rest of the line: a name. file: of a file in the copy's own directory. */
static const char *name(struct reader *r, bool file)
{
    size_t n = (size_t)(r->stop - r->line);
    if (n == 0 || memchr(r->line, 0, n) || (file && (memchr(r->line, '/', n) || (n == 2 && !memcmp(r->line, "..", 2)))))
        return NULL;
    return arena_strdup(r->a, r->line, n);
}

/* Room for one more of list k. */
static void *grow(struct reader *r, int k, void *list, uint32_t n, size_t size)
{
    if (n < r->caps[k])
        return list;
    r->caps[k] = n ? 2 * n : 16;
    void *more = arena_array(r->a, r->caps[k], size);
    if (more && n)
        memcpy(more, list, n * size);
    return more;
}

static int file_line(struct reader *r)
{
    struct off_pack *p = r->p;
    struct off_pack_file f;
    if (!number(r, 10, ' ', &f.size) || !number(r, 10, ' ', &f.head) || f.head > f.size || !(f.name = name(r, true)))
        return bad(r, "a file's bytes, those of its head and its name");
    if (!(p->files = grow(r, 0, p->files, p->n_files, sizeof *p->files)))
        return err_set(r->e, ERR_NOMEM, "%s", OFF_PACK_MANIFEST);
    p->files[p->n_files++] = f;
    return ERR_OK;
}

/* Where the data that a line names begins and ends; they come in order and do not overlap. */
static bool range(struct reader *r, uint64_t *at, uint64_t *bytes)
{
    uint64_t end;
    if (!number(r, 10, ' ', at) || !number(r, 10, ' ', bytes) || *at < r->p->end || *at % OFF_PACK_ALIGN || __builtin_add_overflow(*at, *bytes, &end) || end > INT64_MAX)
        return false;
    r->p->end = end;
    return true;
}

static int tensor_line(struct reader *r)
{
    struct off_pack *p = r->p;
    struct off_pack_tensor t;
    if (!range(r, &t.at, &t.bytes) || !(t.name = name(r, false)))
        return bad(r, "a tensor's place, bytes and name");
    if (!(p->tensors = grow(r, 1, p->tensors, p->n_tensors, sizeof *p->tensors)))
        return err_set(r->e, ERR_NOMEM, "%s", OFF_PACK_MANIFEST);
    p->tensors[p->n_tensors++] = t;
    return ERR_OK;
}

static int record_line(struct reader *r)
{
    static const char what[] = "a record's place, bytes, key and a checksum for each MiB";
    struct off_pack *p = r->p;
    struct off_pack_record x;
    uint64_t before = p->end;
    if (!range(r, &x.at, &x.bytes) || !number(r, 16, ' ', &x.key))
        return bad(r, what);
    uint64_t n = off_pack_pieces(x.bytes);
    if (n > (uint64_t)(r->stop - r->line + 1) / 17) { /* nothing is allocated that the line does not back */
        p->end = before;
        return bad(r, what);
    }
    uint64_t *sums = arena_array(r->a, n + 1, sizeof *sums);
    if (!sums || !(p->records = grow(r, 2, p->records, p->n_records, sizeof *p->records)))
        return err_set(r->e, ERR_NOMEM, "%s", OFF_PACK_MANIFEST);
    for (uint64_t i = 0; i < n; i++)
        if (!number(r, 16, i + 1 < n ? ',' : 0, &sums[i]))
            return bad(r, what);
    if (n == 0 || p->n_records == p->n_planned)
        return bad(r, "no more records than were planned, each of some bytes");
    x.sums = sums;
    p->records[p->n_records++] = x;
    return ERR_OK;
}

static int end_line(struct reader *r)
{
    uint64_t sum, have = off_pack_sum(r->text, (size_t)(r->line - 4 - r->text));
    if (!number(r, 16, 0, &sum) || sum != have)
        return err_set(r->e, ERR_FORMAT, "%s: line %" PRIu32 ": expected the checksum of what is above, %016" PRIx64 ", found another", OFF_PACK_MANIFEST, r->number, have);
    if (r->at != r->end || r->p->n_records != r->p->n_planned)
        return bad(r, "the last line, behind as many records as were planned");
    r->p->whole = true;
    return ERR_OK;
}

/* version, model, number of records: what every line behind them is held against. */
static int head(struct reader *r)
{
    uint64_t n;
    if (!next(r) || !word(r, "sluice-pack 1") || r->line != r->stop) {
        r->line = r->stop = r->text;
        return bad(r, "\"sluice-pack 1\" in the first line");
    }
    if (!next(r) || !word(r, "model ") || !(r->p->model = name(r, true)))
        return bad(r, "\"model NAME\"");
    if (!next(r) || !word(r, "records ") || !number(r, 10, 0, &n) || n > UINT32_MAX / 2)
        return bad(r, "\"records N\"");
    r->p->n_planned = (uint32_t)n;
    return ERR_OK;
}

int off_pack_parse(struct off_pack *p, const char *text, size_t n, bool partial, struct arena *a, struct err *e)
{
    struct reader r = {.text = text, .end = text + n, .at = text, .line = text, .stop = text, .p = p, .a = a, .e = e};
    uint32_t lines = 0;
    *p = (struct off_pack){0};
    for (const char *s = text; partial && lines < 3 && s < text + n && (s = memchr(s, '\n', (size_t)(text + n - s))); s++)
        lines++;
    if (partial && lines < 3) /* it had hardly begun: nothing of it counts */
        return ERR_OK;
    int rc = head(&r);
    while (!rc && !p->whole && next(&r))
        rc = word(&r, "file ") ? file_line(&r) : word(&r, "tensor ") ? tensor_line(&r) : word(&r, "record ") ? record_line(&r) : word(&r, "end ") ? end_line(&r)
             : bad(&r, "file, tensor, record or end");
    p->parsed = (size_t)(r.at - text);
    if (!rc && !p->whole && !partial)
        rc = err_set(e, ERR_FORMAT, "%s: expected %" PRIu32 " records and an end, found %" PRIu32 ": packing was interrupted; `sluice pack` with the same directory goes on",
                     OFF_PACK_MANIFEST, p->n_planned, p->n_records);
    return rc;
}

const struct off_pack_file *off_pack_file(const struct off_pack *p, const char *file)
{
    for (uint32_t i = 0; i < p->n_files; i++)
        if (!strcmp(p->files[i].name, file))
            return &p->files[i];
    return NULL;
}

/* Bound to the files: hash_bytes must not change without the version above. */
uint64_t off_pack_sum(const void *p, size_t n) { return hash_bytes(p, n, 0x736c756963652e70ull); }

uint64_t off_pack_key(const struct off_record *r)
{
    uint64_t h = off_pack_sum(r->name, strlen(r->name));
    for (uint32_t k = 0; k < r->n_parts; k++) {
        const struct off_part *p = &r->parts[k];
        const uint64_t shape[] = {h, (uint64_t)p->type, (uint64_t)p->layout, p->rows, p->cols, p->slot_offset, off_pack_sum(p->name, strlen(p->name))};
        h = off_pack_sum(shape, sizeof shape);
    }
    return h;
}

int off_pack_attach(const off_catalog *c, struct off_record *records, uint32_t n, struct off_part *images, struct off_span *spans, struct err *e)
{
    const struct off_pack *p = off_catalog_pack(c);
    if (p->n_records != n)
        return err_set(e, ERR_FORMAT, "%s: expected %" PRIu32 " records, found %" PRIu32 ": the model has to be packed again by this version", OFF_PACK_MANIFEST, n, p->n_records);
    for (uint32_t i = 0; i < n; i++) {
        const struct off_pack_record *x = &p->records[i];
        struct off_record *r = &records[i];
        if (x->bytes != r->slot_bytes || x->key != off_pack_key(r))
            return err_set(e, ERR_FORMAT, "%s: record %" PRIu32 ", \"%s\": expected %" PRIu64 " bytes and key %016" PRIx64 ", found %" PRIu64 " and %016" PRIx64
                           ": the model has to be packed again by this version", OFF_PACK_MANIFEST, i, r->name, r->slot_bytes, off_pack_key(r), x->bytes, x->key);
        spans[i] = (struct off_span){.file = p->data, .offset = x->at, .row_bytes = x->bytes, .n_rows = 1, .row_stride = x->bytes, .n_outer = 1};
        images[i] = (struct off_part){.name = r->name, .type = KRN_U8, .layout = KRN_PLAIN, .rows = 1, .cols = x->bytes, .spans = &spans[i], .n_spans = 1, .sums = x->sums};
        r->image = &images[i];
    }
    return ERR_OK;
}
