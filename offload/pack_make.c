#include "offload/pack_make.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "offload/io.h"
#include "offload/pack.h"
#include "offload/weights_internal.h"

enum { SYNC_BYTES = 64 << 20, TEXT_BYTES_MAX = 64 << 20, TENSOR_BYTES_MAX = 1 << 20 };

struct maker {
    const off_catalog *c;
    const struct off_record *records; uint32_t n;
    const char *dir;
    struct off_source source;
    int data, manifest;           /* descriptors */
    uint64_t at;                  /* of the data: where the next thing goes */
    uint64_t unsynced;            /* bytes of data that lines in `lines` speak of */
    struct buf said, lines;       /* the manifest so far, for its checksum; lines that wait for their data */
    struct off_pack before;       /* what an earlier run made */
    struct arena mem;
};

static int io_error(const struct maker *m, const char *name, struct err *e) { return err_set(e, ERR_IO, "%s/%s: %s", m->dir, name, strerror(errno)); }

static int write_all(int fd, const void *p, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pwrite(fd, (const char *)p + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return -1;
        done += (size_t)r;
    }
    return 0;
}

static int open_in(const struct maker *m, const char *name, int flags, int *fd, struct err *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", m->dir, name) >= (int)sizeof path)
        return err_set(e, ERR_INVALID, "%s: expected a shorter path", m->dir);
    *fd = open(path, flags | O_CLOEXEC, 0644);
    return *fd < 0 ? io_error(m, name, e) : ERR_OK;
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */
/* Data first, then the lines that speak of it. */
static int settle(struct maker *m, struct err *e)
{
    if (fdatasync(m->data))
        return io_error(m, OFF_PACK_DATA, e);
    posix_fadvise(m->data, 0, 0, POSIX_FADV_DONTNEED); /* nobody reads it soon, and others want the memory */
    if (m->lines.failed || m->said.failed)
        return err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes", OFF_PACK_MANIFEST, OFF_PACK_BYTES_MAX);
    if (write_all(m->manifest, m->lines.data, m->lines.len, m->said.len) || fdatasync(m->manifest))
        return io_error(m, OFF_PACK_MANIFEST, e);
    buf_add(&m->said, m->lines.data, m->lines.len);
    buf_reset(&m->lines);
    m->unsynced = 0;
    return ERR_OK;
}

static int put_data(struct maker *m, const void *p, uint64_t n, struct err *e)
{
    if (write_all(m->data, p, (size_t)n, m->at))
        return io_error(m, OFF_PACK_DATA, e);
    m->at = (m->at + n + OFF_PACK_ALIGN - 1) & ~(uint64_t)(OFF_PACK_ALIGN - 1);
    m->unsynced += n;
    return ERR_OK;
}

/* ---- what is beside the records --------------------------------------------------------------------------------- */
static int copy_bytes(const struct maker *m, int from, uint64_t n, const char *name, struct err *e)
{
    enum { PIECE = 1 << 20 };
    int to = -1, rc = open_in(m, name, O_WRONLY | O_CREAT | O_TRUNC, &to, e);
    char *buf = rc ? NULL : malloc(PIECE);
    if (!rc && !buf)
        rc = err_set(e, ERR_NOMEM, "%s", name);
    for (uint64_t at = 0; !rc && at < n;) {
        size_t k = n - at < PIECE ? (size_t)(n - at) : PIECE;
        if (!(rc = off_io_read_all(from, buf, k, at, e)) && write_all(to, buf, k, at))
            rc = io_error(m, name, e);
        at += k;
    }
    free(buf);
    if (to >= 0 && (fsync(to) || close(to)) && !rc)
        rc = io_error(m, name, e);
    return rc;
}

/* Each published file up to its first tensor. */
static int put_heads(struct maker *m, bool write, struct err *e)
{
    uint32_t n = (uint32_t)off_catalog_files(m->c);
    uint64_t *heads = calloc(n + 1, sizeof *heads);
    int rc = heads ? ERR_OK : err_set(e, ERR_NOMEM, "list of %u files", n);
    for (uint32_t i = 0; !rc && i < n; i++)
        heads[i] = off_catalog_file(m->c, i)->size;
    for (size_t i = 0; !rc && i < off_catalog_count(m->c); i++) {
        const struct off_tensor *t = off_catalog_at(m->c, i);
        if (t->bytes && t->offset < heads[t->file])
            heads[t->file] = t->offset;
    }
    for (uint32_t i = 0; !rc && i < n; i++) {
        const struct off_file *f = off_catalog_file(m->c, i);
        buf_printf(&m->lines, "file %" PRIu64 " %" PRIu64 " %s\n", f->size, heads[i], f->base);
        rc = write ? copy_bytes(m, f->fd, heads[i], f->base, e) : ERR_OK;
    }
    free(heads);
    return rc;
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = {".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".onnx"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n >= strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]))
            return true;
    return !strcmp(name, OFF_PACK_MANIFEST) || !strcmp(name, OFF_PACK_DATA);
}

/* Configuration, tokenizer, template: the regular files beside the weights of a directory. */
static int put_texts(struct maker *m, struct err *e)
{
    const char *from = off_catalog_dir(m->c, 0);
    DIR *d = opendir(from);
    int rc = d ? ERR_OK : err_set(e, ERR_IO, "%s: %s", from, strerror(errno));
    for (struct dirent *x; !rc && (x = readdir(d));) {
        char path[PATH_MAX];
        struct stat st;
        int fd;
        uint64_t size;
        if (is_weights(x->d_name) || snprintf(path, sizeof path, "%s/%s", from, x->d_name) >= (int)sizeof path || stat(path, &st) || !S_ISREG(st.st_mode) ||
            st.st_size > TEXT_BYTES_MAX)
            continue;
        if ((rc = off_io_open(path, &fd, &size, e)) == ERR_OK) {
            rc = copy_bytes(m, fd, size, x->d_name, e);
            close(fd);
        }
    }
    if (d)
        closedir(d);
    return rc;
}

/* Small tensors that are no part of a record, as published: tables of positions, and what a sheet skips. */
static int put_tensors(struct maker *m, struct err *e)
{
    size_t n = off_catalog_count(m->c);
    bool *taken = calloc(n + 1, sizeof *taken);
    void *buf = malloc(TENSOR_BYTES_MAX);
    int rc = taken && buf ? ERR_OK : err_set(e, ERR_NOMEM, "list of %zu tensors", n);
    for (uint32_t r = 0; !rc && r < m->n; r++)
        for (uint32_t k = 0; k < m->records[r].n_parts; k++) {
            const struct off_part *p = &m->records[r].parts[k];
            const struct off_tensor *t = off_catalog_find(m->c, p->name, strlen(p->name));
            if (t)
                taken[t - off_catalog_at(m->c, 0)] = true;
            if (p->packed)
                taken[p->packed->scales - off_catalog_at(m->c, 0)] = true;
        }
    for (size_t i = 0; !rc && i < n; i++) {
        const struct off_tensor *t = off_catalog_at(m->c, i);
        if (taken[i] || !t->bytes || t->bytes > TENSOR_BYTES_MAX)
            continue;
        buf_printf(&m->lines, "tensor %" PRIu64 " %" PRIu64 " %s\n", m->at, t->bytes, t->name);
        if (!(rc = off_catalog_read(m->c, t, buf, e)))
            rc = put_data(m, buf, t->bytes, e);
    }
    free(taken);
    free(buf);
    return rc;
}

/* ---- records ---------------------------------------------------------------------------------------------------- */
static int put_record(struct maker *m, uint32_t i, uint8_t *slot, struct err *e)
{
    const struct off_record *r = &m->records[i];
    const bool keep = true;
    const uint64_t slot_at = 0;
    struct off_weights_config cfg = {0};
    memset(slot, 0, (size_t)r->slot_bytes); /* what lies between parts */
    int rc = off_load(&m->source, r, 1, &keep, slot, &slot_at, &cfg, e);
    if (rc)
        return err_prefix(e, rc, "%s", r->name);
    buf_printf(&m->lines, "record %" PRIu64 " %" PRIu64 " %016" PRIx64, m->at, r->slot_bytes, off_pack_key(r));
    for (uint64_t at = 0; at < r->slot_bytes; at += OFF_PACK_PIECE) {
        uint64_t n = r->slot_bytes - at < OFF_PACK_PIECE ? r->slot_bytes - at : OFF_PACK_PIECE;
        buf_printf(&m->lines, "%c%016" PRIx64, at ? ',' : ' ', off_pack_sum(slot + at, (size_t)n));
    }
    buf_char(&m->lines, '\n');
    return put_data(m, slot, r->slot_bytes, e);
}

static int put_records(struct maker *m, void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx, struct err *e)
{
    uint64_t most = OFF_PACK_ALIGN, total = 0, done = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        most = m->records[i].slot_bytes > most ? m->records[i].slot_bytes : most;
        total += m->records[i].slot_bytes;
    }
    uint8_t *slot = aligned_alloc(OFF_PACK_ALIGN, (size_t)((most + OFF_PACK_ALIGN - 1) & ~(uint64_t)(OFF_PACK_ALIGN - 1)));
    int rc = slot ? ERR_OK : err_set(e, ERR_NOMEM, "a record of %" PRIu64 " bytes", most);
    for (uint32_t i = 0; !rc && i < m->n; i++) {
        if (i >= m->before.n_records && !(rc = put_record(m, i, slot, e)) && m->unsynced >= SYNC_BYTES)
            rc = settle(m, e);
        done += m->records[i].slot_bytes;
        if (progress && !rc)
            progress(ctx, done, total);
    }
    free(slot);
    return rc;
}

/* ---- begin, or go on ---------------------------------------------------------------------------------------------- */
static int other_model(const struct maker *m, const char *what, struct err *e)
{
    return err_set(e, ERR_INVALID, "%s: expected an empty directory or the copy of this model that was begun, found %s of another", m->dir, what);
}

/* What was made must be of this model: its head lines are those that we would write, its records have our keys. */
static int compare(struct maker *m, const char *text, struct err *e)
{
    const struct off_pack *b = &m->before;
    if (memcmp(text, m->lines.data, m->lines.len < b->parsed ? m->lines.len : b->parsed))
        return other_model(m, "files", e);
    for (uint32_t i = 0; i < b->n_records; i++)
        if (i >= m->n || b->records[i].key != off_pack_key(&m->records[i]) || b->records[i].bytes != m->records[i].slot_bytes)
            return other_model(m, "records", e);
    return ERR_OK;
}

/* The manifest of an earlier run: b->parsed bytes of it count. None: an empty one. */
static int read_before(struct maker *m, char **text, struct err *e)
{
    uint64_t size;
    char path[PATH_MAX];
    int fd;
    *text = NULL;
    snprintf(path, sizeof path, "%s/%s", m->dir, OFF_PACK_MANIFEST);
    int rc = off_io_open(path, &fd, &size, e);
    if (rc)
        return rc == ERR_NOTFOUND ? ERR_OK : rc;
    if (size > OFF_PACK_BYTES_MAX || !(*text = malloc((size_t)size + 1)))
        rc = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes, found %" PRIu64, path, OFF_PACK_BYTES_MAX, size);
    if (!rc && !(rc = off_io_read_all(fd, *text, (size_t)size, 0, e)) && memchr(*text, '\n', (size_t)size))
        rc = off_pack_parse(&m->before, *text, (size_t)size, true, &m->mem, e);
    close(fd);
    return rc;
}

static int prepare(struct maker *m, bool *done, struct err *e)
{
    char *text;
    const char *model = off_catalog_model(m->c);
    *done = false;
    if (mkdir(m->dir, 0755) && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", m->dir, strerror(errno));
    int rc = read_before(m, &text, e);
    bool fresh = m->before.n_records == 0; /* heads and texts are written again until a record is there */
    buf_printf(&m->lines, "sluice-pack 1\nmodel %s\nrecords %u\n", model, m->n);
    if (!rc && (rc = put_heads(m, fresh, e)) == ERR_OK && text && m->before.parsed)
        rc = compare(m, text, e);
    if (!rc && fresh && !strcmp(model, "."))
        rc = put_texts(m, e);
    *done = !rc && m->before.whole;
    if (!rc && !*done && !(rc = open_in(m, OFF_PACK_DATA, O_RDWR | O_CREAT | (fresh ? O_TRUNC : 0), &m->data, e)))
        rc = open_in(m, OFF_PACK_MANIFEST, O_WRONLY | O_CREAT | (fresh ? O_TRUNC : 0), &m->manifest, e);
    if (!rc && !*done && !fresh) {
        buf_reset(&m->lines);
        buf_add(&m->said, text, m->before.parsed);
        m->at = (m->before.end + OFF_PACK_ALIGN - 1) & ~(uint64_t)(OFF_PACK_ALIGN - 1);
        if (ftruncate(m->manifest, (off_t)m->before.parsed))
            rc = io_error(m, OFF_PACK_MANIFEST, e);
    }
    free(text);
    return rc || *done || !fresh ? rc : put_tensors(m, e);
}

int off_pack_make(const off_catalog *c, const struct off_record *records, uint32_t n, const char *dir, void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx,
                  struct err *e)
{
    struct maker m = {.c = c, .records = records, .n = n, .dir = dir, .data = -1, .manifest = -1};
    bool done = false;
    if (off_catalog_pack(c))
        return err_set(e, ERR_INVALID, "%s: expected published files, found a packed copy", off_catalog_dir(c, 0));
    buf_init(&m.said, OFF_PACK_BYTES_MAX);
    buf_init(&m.lines, OFF_PACK_BYTES_MAX);
    arena_init(&m.mem, (size_t)8 << 30);
    int rc = off_source_open(&m.source, c, true, OFF_IO_AUTO, e);
    if (!rc && !(rc = prepare(&m, &done, e)) && !done && !(rc = settle(&m, e)) && !(rc = put_records(&m, progress, ctx, e)) && !(rc = settle(&m, e))) {
        buf_printf(&m.lines, "end %016" PRIx64 "\n", off_pack_sum(m.said.data, m.said.len));
        rc = settle(&m, e);
    }
    if (m.data >= 0)
        close(m.data);
    if (m.manifest >= 0)
        close(m.manifest);
    off_source_close(&m.source);
    arena_free(&m.mem);
    buf_free(&m.said);
    buf_free(&m.lines);
    return rc;
}
