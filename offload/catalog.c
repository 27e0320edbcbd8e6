/* Opening by kind, and what is common to both: names, files, problems, the config. The readers are safetensors.c and gguf.c. */
#include "offload/catalog.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "offload/catalog_internal.h"
#include "offload/pack.h"

uint32_t off_catalog_add(struct off_catalog *c, const char *name, size_t n, bool *fresh, struct err *e)
{
    uint32_t i = off_names_add(&c->names, name, n, fresh);
    if (i != OFF_NO_NAME && *fresh && i >= c->tensors_cap) {
        size_t cap = c->tensors_cap ? 2 * c->tensors_cap : 64;
        struct off_tensor *p = realloc(c->tensors, cap * sizeof *p);
        if (p) {
            c->tensors = p;
            c->tensors_cap = cap;
        } else {
            i = OFF_NO_NAME;
        }
    }
    if (i == OFF_NO_NAME) {
        err_set(e, ERR_NOMEM, "names of %u tensors", c->names.n);
        return i;
    }
    if (*fresh)
        c->tensors[i] = (struct off_tensor){.name = c->names.v[i].s};
    return i;
}

static bool exists(const char *dir, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path && access(path, F_OK) == 0;
}

/* In the model's own directory, or else on the first drive that has a file of that name. */
static char *path_of(struct off_catalog *c, const char *base, uint32_t *drive)
{
    for (*drive = 0; *drive < c->n_dirs && !exists(c->dirs[*drive], base);)
        ++*drive;
    if (*drive >= c->n_dirs)
        *drive = 0;
    return arena_printf(&c->mem, "%s/%s", *drive ? c->dirs[*drive] : c->dir, base);
}

uint32_t off_catalog_add_file(struct off_catalog *c, const char *base, size_t n, struct err *e)
{
    bool fresh;
    uint32_t i = off_names_add(&c->file_names, base, n, &fresh);
    if (i != OFF_NO_NAME && !fresh)
        return i;
    if (i != OFF_NO_NAME && i >= c->files_cap) {
        size_t cap = c->files_cap ? 2 * c->files_cap : 8;
        struct off_file *p = realloc(c->files, cap * sizeof *p);
        if (p) {
            c->files = p;
            c->files_cap = cap;
        } else {
            i = OFF_NO_NAME;
        }
    }
    uint32_t drive = 0;
    char *path = i == OFF_NO_NAME ? NULL : path_of(c, c->file_names.v[i].s, &drive);
    if (!path) {
        if (i != OFF_NO_NAME) { /* closing must not see a file without a descriptor field */
            c->files[i] = (struct off_file){.path = "", .base = "", .fd = -1};
        }
        err_set(e, ERR_NOMEM, "names of %u files", c->file_names.n);
        return OFF_NO_NAME;
    }
    c->files[i] = (struct off_file){.path = path, .base = c->file_names.v[i].s, .fd = -1, .drive = drive};
    return i;
}

int off_catalog_note(struct off_catalog *c, struct err *e)
{
    if (!c->header_only)
        return e->code;
    struct err *p = realloc(c->problems, (c->n_problems + 1) * sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "list of %zu problems", c->n_problems);
    c->problems = p;
    p[c->n_problems++] = *e;
    return ERR_OK;
}

static int by_begin(const void *pa, const void *pb)
{
    const struct off_range *a = pa, *b = pb;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return a->tensor < b->tensor ? -1 : a->tensor > b->tensor;
}

void off_ranges_sort(struct off_range *r, size_t n)
{
    size_t i = 1;
    while (i < n && by_begin(&r[i - 1], &r[i]) < 0) /* published files list tensors in the order of their data */
        i++;
    if (i < n)
        qsort(r, n, sizeof *r, by_begin);
}

/* ---- opening ---------------------------------------------------------------------------------------------- */
static int read_config(struct off_catalog *c, bool required, struct err *e)
{
    char *path = arena_printf(&c->mem, "%s/config.json", c->dir);
    if (!path)
        return err_set(e, ERR_NOMEM, "config.json");
    if (access(path, F_OK) != 0 && !required)
        return ERR_OK;
    int rc = json_parse_file(&c->config, path, OFF_CONFIG_BYTES_MAX, &c->mem, e);
    if (rc == ERR_OK && !json_is(c->config, JSON_OBJECT))
        rc = err_set(e, ERR_FORMAT, "%s: expected an object at the top", path);
    return rc;
}

int off_catalog_open_file(struct off_catalog *c, uint32_t file, uint64_t *readable, struct err *e)
{
    struct off_file *f = &c->files[file];
    int rc = off_io_open(f->path, &f->fd, &f->size, e);
    *readable = f->size;
    if (rc || !c->pack)
        return rc;
    const struct off_pack_file *k = off_pack_file(c->pack, f->base);
    if (!k || k->head != f->size)
        return err_set(e, ERR_FORMAT, "%s: expected a file that %s lists, %" PRIu64 " bytes of it, found %" PRIu64, f->path, OFF_PACK_MANIFEST, k ? k->head : 0, f->size);
    f->size = k->size;
    f->cut = true;
    return ERR_OK;
}

static int read_manifest(struct off_catalog *c, struct err *e)
{
    char *path = arena_printf(&c->mem, "%s/%s", c->dir, OFF_PACK_MANIFEST), *text = NULL;
    uint64_t size;
    int fd = -1, rc = path && (c->pack = ARENA_NEW(&c->mem, struct off_pack)) ? off_io_open(path, &fd, &size, e) : err_set(e, ERR_NOMEM, "%s", OFF_PACK_MANIFEST);
    if (!rc && (size > OFF_PACK_BYTES_MAX || !(text = malloc((size_t)size + 1))))
        rc = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes, found %" PRIu64, path, OFF_PACK_BYTES_MAX, size);
    if (!rc && !(rc = off_io_read_all(fd, text, (size_t)size, 0, e)) && (rc = off_pack_parse(c->pack, text, (size_t)size, false, &c->mem, e)))
        err_prefix(e, rc, "%s", c->dir);
    free(text);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int open_file(struct off_catalog *c, const char *path, const char *base, struct err *e);
static int open_published(struct off_catalog *c, struct err *e);

/* A packed copy: the heads as if they were the files, then the data behind them. */
static int open_packed(struct off_catalog *c, struct err *e)
{
    int rc = read_manifest(c, e);
    if (rc)
        return rc;
    if (!strcmp(c->pack->model, ".")) {
        rc = open_published(c, e);
    } else {
        char *path = arena_printf(&c->mem, "%s/%s", c->dir, c->pack->model);
        rc = path ? open_file(c, path, c->pack->model, e) : err_set(e, ERR_NOMEM, "%s", c->pack->model);
    }
    uint32_t i = rc ? OFF_NO_NAME : off_catalog_add_file(c, OFF_PACK_DATA, strlen(OFF_PACK_DATA), e);
    if (rc || i == OFF_NO_NAME)
        return rc ? rc : e->code;
    struct off_file *f = &c->files[i];
    if (!(rc = off_io_open(f->path, &f->fd, &f->size, e)) && f->size < c->pack->end)
        rc = err_set(e, ERR_FORMAT, "%s: expected %" PRIu64 " bytes, as %s says, found %" PRIu64, f->path, c->pack->end, OFF_PACK_MANIFEST, f->size);
    c->pack->data = i;
    return rc;
}

static int open_directory(struct off_catalog *c, struct err *e) { return exists(c->dir, OFF_PACK_MANIFEST) ? open_packed(c, e) : open_published(c, e); }

static int open_published(struct off_catalog *c, struct err *e)
{
    c->kind = OFF_SAFETENSORS;
    if (exists(c->dir, "model.safetensors.index.json")) {
        int rc = read_config(c, true, e);
        return rc == ERR_OK ? off_safetensors_open_index(c, e) : rc;
    }
    if (exists(c->dir, "model.safetensors")) {
        int rc = read_config(c, true, e);
        return rc == ERR_OK ? off_safetensors_open_file(c, "model.safetensors", e) : rc;
    }
    return err_set(e, ERR_NOTFOUND,
                   "%s: expected model.safetensors or model.safetensors.index.json in this directory (a GGUF model is named by its file)",
                   c->dir);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static int open_file(struct off_catalog *c, const char *path, const char *base, struct err *e)
{
    int fd;
    uint64_t size;
    size_t got = 0;
    char magic[4] = {0};
    int rc = off_io_open(path, &fd, &size, e);
    if (rc != ERR_OK)
        return rc;
    rc = off_io_read(fd, magic, sizeof magic, 0, &got, e);
    close(fd);
    if (rc != ERR_OK)
        return err_prefix(e, rc, "%s", path);
    if (!memcmp(magic, "GGUF", 4) || ends_with(path, ".gguf")) {
        c->kind = OFF_GGUF;
        return off_gguf_open(c, base, e);
    }
    if (!ends_with(path, ".safetensors"))
        return err_set(e, ERR_FORMAT, "%s: expected a GGUF file (magic \"GGUF\"), a .safetensors file or a model's directory", path);
    c->kind = OFF_SAFETENSORS;
    rc = read_config(c, false, e);
    return rc == ERR_OK ? off_safetensors_open_file(c, base, e) : rc;
}

/* The model's own directory, then the others. */
static int list_dirs(struct off_catalog *c, const char *disks, struct err *e)
{
    uint32_t n = 1;
    for (const char *p = disks; p && *p; p++)
        n += *p == ',';
    c->dirs = arena_alloc(&c->mem, (n + 1) * sizeof *c->dirs);
    if (!c->dirs)
        return err_set(e, ERR_NOMEM, "list of %u directories", n);
    c->dirs[c->n_dirs++] = c->dir;
    for (const char *p = disks; p && *p; p += *p == ',') {
        size_t k = strcspn(p, ",");
        char *dir = arena_strdup(&c->mem, p, k);
        if (!dir)
            return err_set(e, ERR_NOMEM, "list of %u directories", n);
        if (k)
            c->dirs[c->n_dirs++] = dir;
        p += k;
    }
    return ERR_OK;
}

static int check_dirs(const struct off_catalog *c, struct err *e)
{
    for (uint32_t d = 1; d < c->n_dirs; d++) {
        uint32_t i = 0;
        while (i < c->file_names.n && !exists(c->dirs[d], c->files[i].base))
            i++;
        if (i == c->file_names.n)
            return err_set(e, ERR_INVALID, "--disk %s: expected at least one of the model's files, found none", c->dirs[d]);
    }
    return ERR_OK;
}

int off_catalog_open(off_catalog **out, const char *path, int header_only, struct err *e) { return off_catalog_open_on(out, path, NULL, header_only, e); }

int off_catalog_open_on(off_catalog **out, const char *path, const char *disks, int header_only, struct err *e)
{
    struct stat st;
    struct err mine;
    *out = NULL;
    if (!e) /* the readers look at e->code */
        e = &mine;
    struct off_catalog *c = calloc(1, sizeof *c);
    char *copy = strdup(path);
    int rc;
    if (!c || !copy) {
        rc = err_set(e, ERR_NOMEM, "catalog");
        goto out;
    }
    c->header_only = header_only != 0;
    off_names_init(&c->names);
    off_names_init(&c->file_names);
    arena_init(&c->mem, (size_t)4 << 30);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/';)
            copy[--n] = 0;
        c->dir = copy;
        copy = NULL;
        c->model = ".";
        rc = list_dirs(c, disks, e);
        rc = rc ? rc : open_directory(c, e);
    } else {
        char *slash = strrchr(copy, '/');
        const char *base = slash ? path + (slash - copy) + 1 : path;
        if (slash)
            slash[slash == copy] = 0; /* "/x" lies in "/" */
        c->dir = slash ? copy : strdup(".");
        if (slash)
            copy = NULL;
        c->model = c->dir ? arena_strdup(&c->mem, base, strlen(base)) : NULL;
        rc = c->model ? list_dirs(c, disks, e) : err_set(e, ERR_NOMEM, "catalog");
        rc = rc ? rc : open_file(c, path, base, e);
    }
    if (rc == ERR_OK)
        rc = check_dirs(c, e);
    if (rc == ERR_OK) {
        for (size_t i = 0; i < c->names.n; i++)
            c->bytes += c->tensors[i].bytes;
        *out = c;
        c = NULL;
    }
out:
    free(copy);
    off_catalog_close(c);
    return rc;
}

void off_catalog_close(off_catalog *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->file_names.n && i < c->files_cap; i++)
        if (c->files[i].fd >= 0)
            close(c->files[i].fd);
    off_gguf_free(c->gguf);
    off_names_free(&c->names);
    off_names_free(&c->file_names);
    arena_free(&c->mem);
    free(c->tensors);
    free(c->files);
    free(c->problems);
    free(c->dir);
    free(c);
}

/* ---- asking ----------------------------------------------------------------------------------------------- */
enum off_kind off_catalog_kind(const off_catalog *c) { return c->kind; }
size_t off_catalog_count(const off_catalog *c) { return c->names.n; }
size_t off_catalog_files(const off_catalog *c) { return c->file_names.n; }
size_t off_catalog_dirs(const off_catalog *c) { return c->n_dirs; }
const char *off_catalog_dir(const off_catalog *c, size_t i) { return c->dirs[i]; }
size_t off_catalog_problems(const off_catalog *c) { return c->n_problems; }
uint64_t off_catalog_bytes(const off_catalog *c) { return c->bytes; }
const struct json *off_catalog_config(const off_catalog *c) { return c->config; }

const struct off_pack *off_catalog_pack(const off_catalog *c) { return c->pack; }
const char *off_catalog_model(const off_catalog *c) { return c->model; }

int off_catalog_read(const off_catalog *c, const struct off_tensor *t, void *dst, struct err *e)
{
    int fd = c->files[t->file].fd;
    uint64_t at = t->offset;
    if (c->pack) {
        uint32_t i = 0;
        while (i < c->pack->n_tensors && (strcmp(c->pack->tensors[i].name, t->name) || c->pack->tensors[i].bytes != t->bytes))
            i++;
        if (i == c->pack->n_tensors)
            return err_set(e, ERR_NOTFOUND, "%s: tensor \"%s\": expected it by itself, found that the packed copy has it in a record or not at all", OFF_PACK_MANIFEST, t->name);
        fd = c->files[c->pack->data].fd;
        at = c->pack->tensors[i].at;
    }
    int rc = off_io_read_all(fd, dst, (size_t)t->bytes, at, e);
    return rc ? err_prefix(e, rc, "%s: tensor \"%s\"", c->files[t->file].base, t->name) : ERR_OK;
}

const struct off_tensor *off_catalog_at(const off_catalog *c, size_t i)
{
    assert(i < c->names.n);
    return &c->tensors[i];
}

const struct off_tensor *off_catalog_find(const off_catalog *c, const char *name, size_t n)
{
    uint32_t i = off_names_find(&c->names, name, n);
    return i == OFF_NO_NAME ? NULL : &c->tensors[i];
}

const struct off_file *off_catalog_file(const off_catalog *c, size_t i)
{
    assert(i < c->file_names.n);
    return &c->files[i];
}

const struct err *off_catalog_problem(const off_catalog *c, size_t i)
{
    assert(i < c->n_problems);
    return &c->problems[i];
}

size_t off_catalog_memory(const off_catalog *c)
{
    return sizeof *c + c->names.bytes + c->file_names.bytes + c->tensors_cap * sizeof *c->tensors +
           c->files_cap * sizeof *c->files + c->n_problems * sizeof *c->problems + c->mem.used + off_gguf_bytes(c->gguf);
}

char *off_catalog_text(const off_catalog *c, const char *name, size_t bytes_max, size_t *n, struct err *e)
{
    int fd = -1;
    uint64_t size;
    char *text = NULL, *path = NULL;
    int rc;
    *n = 0;
    if (!*name || strchr(name, '/') || !strcmp(name, "..") || !strcmp(name, ".")) {
        err_set(e, ERR_INVALID, "%s: expected the name of a file beside the model", name);
        return NULL;
    }
    if (asprintf(&path, "%s/%s", c->dir, name) < 0) {
        err_set(e, ERR_NOMEM, "%s", name);
        return NULL;
    }
    rc = off_io_open(path, &fd, &size, e);
    if (rc == ERR_OK && size > bytes_max)
        rc = err_set(e, ERR_LIMIT, "%s: expected at most %zu bytes, found %llu", path, bytes_max, (unsigned long long)size);
    if (rc == ERR_OK && !(text = malloc((size_t)size + 1)))
        rc = err_set(e, ERR_NOMEM, "%s: %llu bytes", path, (unsigned long long)size);
    if (rc == ERR_OK && (rc = off_io_read_all(fd, text, (size_t)size, 0, e)) != ERR_OK)
        err_prefix(e, rc, "%s", path);
    if (fd >= 0)
        close(fd);
    free(path);
    if (rc != ERR_OK) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    *n = (size_t)size;
    return text;
}
