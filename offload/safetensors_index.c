/* A sharded set: model.safetensors.index.json says which file has which tensor, and every shard's header must agree.
 *
 * The index is read first and gives all names, so that the headers can be read by several threads without a lock: a thread
 * writes only the tensors that the index assigns to its file. Errors do not depend on timing: files are taken in order, and
 * the error of the first bad one is reported. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "offload/catalog_internal.h"

#define INDEX "model.safetensors.index.json"

struct index_parse {
    struct off_catalog *c;
    json_reader *r;
    const char *path;
    uint32_t last_file;       /* neighbours in the index mostly share their file */
    bool has_total, has_map;
    uint64_t total;
};

static int next(struct index_parse *p, const char **s, size_t *n, struct err *e)
{
    int ev = json_next(p->r, s, n, e);
    if (ev < 0)
        err_prefix(e, ERR_FORMAT, "%s", p->path);
    return ev;
}

/* A shard is named by its base name: an index comes from elsewhere and must not reach other directories. */
static uint32_t shard(struct index_parse *p, uint32_t tensor, const char *s, size_t n, struct err *e)
{
    const struct off_names *f = &p->c->file_names;
    if (p->last_file != OFF_NO_NAME && f->v[p->last_file].n == n && !memcmp(f->v[p->last_file].s, s, n))
        return p->last_file;
    if (n == 0 || n > 255 || memchr(s, '/', n) || s[0] == '.') {
        err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected the name of a file in this directory, found \"%.*s\"", p->path, OFF_NAME_SHOWN,
                p->c->names.v[tensor].s, (int)(n < 80 ? n : 80), s);
        return OFF_NO_NAME;
    }
    return p->last_file = off_catalog_add_file(p->c, s, n, e);
}

static int weight_map(struct index_parse *p, struct err *e)
{
    const char *s;
    size_t n;
    int ev = next(p, &s, &n, e);
    if (ev >= 0 && ev != JSON_EV_OBJECT)
        return err_set(e, ERR_FORMAT, "%s: weight_map: expected an object", p->path);
    while (ev >= 0 && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END) {
        bool fresh;
        if (ev < 0)
            break;
        uint32_t i = off_catalog_add(p->c, s, n, &fresh, e);
        if (i == OFF_NO_NAME)
            return e->code;
        if (!fresh)
            return err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected once, found twice", p->path, OFF_NAME_SHOWN, p->c->names.v[i].s);
        if ((ev = next(p, &s, &n, e)) < 0)
            break;
        if (ev != JSON_EV_STRING)
            return err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected a file's name (a string)", p->path, OFF_NAME_SHOWN, p->c->names.v[i].s);
        if ((p->c->tensors[i].file = shard(p, i, s, n, e)) == OFF_NO_NAME)
            return e->code;
    }
    p->has_map = true;
    return ev < 0 ? e->code : ERR_OK;
}

/* total_size is often wrong in published sets, and some write it as a float: information only. */
static int index_metadata(struct index_parse *p, struct err *e)
{
    const char *s;
    size_t n;
    int ev = next(p, &s, &n, e);
    if (ev >= 0 && ev != JSON_EV_OBJECT)
        return json_skip(p->r, e);
    while (ev >= 0 && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END) {
        if (ev < 0)
            break;
        bool total = n == 10 && !memcmp(s, "total_size", 10);
        if ((ev = next(p, &s, &n, e)) < 0)
            break;
        if (total && ev == JSON_EV_NUMBER && n < 32) {
            char text[32], *end;
            memcpy(text, s, n);
            text[n] = 0;
            p->total = strtoull(text, &end, 10);
            p->has_total = end > text && (*end == 0 || !strcmp(end, ".0"));
        } else if (json_skip(p->r, e) != ERR_OK) {
            return err_prefix(e, ERR_FORMAT, "%s", p->path);
        }
    }
    return ev < 0 ? e->code : ERR_OK;
}

static int parse_index(struct index_parse *p, struct err *e)
{
    const char *s;
    size_t n;
    int rc = ERR_OK, ev = next(p, &s, &n, e);
    if (ev >= 0 && ev != JSON_EV_OBJECT)
        return err_set(e, ERR_FORMAT, "%s: expected an object", p->path);
    while (rc == ERR_OK && ev >= 0 && (ev = next(p, &s, &n, e)) != JSON_EV_OBJECT_END) {
        if (ev < 0)
            break;
        if (n == 10 && !memcmp(s, "weight_map", 10)) {
            rc = p->has_map ? err_set(e, ERR_FORMAT, "%s: expected weight_map once, found it twice", p->path) : weight_map(p, e);
        } else if (n == 8 && !memcmp(s, "metadata", 8)) {
            rc = index_metadata(p, e);
        } else if ((ev = next(p, &s, &n, e)) >= 0 && json_skip(p->r, e) != ERR_OK) {
            rc = err_prefix(e, ERR_FORMAT, "%s", p->path);
        }
    }
    if (rc == ERR_OK && ev >= 0)
        ev = next(p, &s, &n, e);
    if (rc != ERR_OK || ev < 0)
        return rc != ERR_OK ? rc : e->code;
    if (!p->has_map || p->c->names.n == 0)
        return err_set(e, ERR_FORMAT, "%s: expected a weight_map that names tensors, found none", p->path);
    return ERR_OK;
}

/* ---- the shards ------------------------------------------------------------------------------------------- */
struct shards {
    struct off_catalog *c;
    const uint32_t *listed;   /* [files] tensors that the index gives each file */
    atomic_uint next;
    pthread_mutex_t lock;     /* guards the rest, and off_catalog_note */
    uint32_t bad;             /* lowest file with an error, OFF_NO_NAME: none */
    struct err err;
};

static int note(struct shards *x, struct err *e)
{
    pthread_mutex_lock(&x->lock);
    int rc = off_catalog_note(x->c, e);
    pthread_mutex_unlock(&x->lock);
    return rc;
}

static int one_shard(struct shards *x, uint32_t i, struct off_header *h, struct err *e)
{
    struct off_file *f = &x->c->files[i];
    enum off_lack lack;
    uint64_t readable;
    int rc = off_catalog_open_file(x->c, i, &readable, e);
    if (rc == ERR_NOTFOUND) {
        err_set(e, ERR_NOTFOUND, "%s: expected this file, which the index gives %u tensors, found none of that name", f->path, x->listed[i]);
        f->missing = true;
        return note(x, e);
    }
    if (rc != ERR_OK || (rc = off_safetensors_header(x->c, i, true, h, &lack, e)) == ERR_OK || lack == OFF_WHOLE)
        return rc;
    f->missing = lack == OFF_HEADER_CUT; /* nothing of it is known */
    return note(x, e);
}

static void *shard_thread(void *arg)
{
    struct shards *x = arg;
    struct off_header h = {0};
    struct err e;
    for (;;) {
        uint32_t i = atomic_fetch_add(&x->next, 1);
        if (i >= x->c->file_names.n)
            break;
        pthread_mutex_lock(&x->lock);
        bool stop = x->bad < i; /* files before i were all taken: the lowest error is found all the same */
        pthread_mutex_unlock(&x->lock);
        if (stop)
            break;
        if (one_shard(x, i, &h, &e) == ERR_OK)
            continue;
        pthread_mutex_lock(&x->lock);
        if (i < x->bad) {
            x->bad = i;
            x->err = e;
        }
        pthread_mutex_unlock(&x->lock);
    }
    off_header_free(&h);
    return NULL;
}

static int read_shards(struct off_catalog *c, const uint32_t *listed, struct err *e)
{
    enum { THREADS_MAX = 8 };
    struct shards x = {.c = c, .listed = listed, .lock = PTHREAD_MUTEX_INITIALIZER, .bad = OFF_NO_NAME};
    pthread_t id[THREADS_MAX];
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned want = c->file_names.n < THREADS_MAX ? c->file_names.n : THREADS_MAX, n = 0;
    if (cpus > 0 && (unsigned long)cpus < want)
        want = (unsigned)cpus;
    while (n + 1 < want && pthread_create(&id[n], NULL, shard_thread, &x) == 0)
        n++;
    shard_thread(&x); /* whatever threads there are, this one finishes the list */
    while (n > 0)
        pthread_join(id[--n], NULL);
    pthread_mutex_destroy(&x.lock);
    if (x.bad == OFF_NO_NAME)
        return ERR_OK;
    *e = x.err;
    return e->code;
}

static int by_message(const void *a, const void *b)
{
    return strcmp(((const struct err *)a)->msg, ((const struct err *)b)->msg);
}

/* Names that no header confirmed: an error, unless their file is missing (then they leave the catalog). */
static int drop_absent(struct off_catalog *c, struct err *e)
{
    uint32_t absent = 0, kept = 0;
    for (uint32_t i = 0; i < c->names.n; i++) {
        const struct off_file *f = &c->files[c->tensors[i].file];
        if (c->tensors[i].offset)
            continue;
        absent++;
        if (!f->missing)
            return err_set(e, ERR_FORMAT, "%s: tensor \"%.*s\": expected in this file, where the index has it, found no such name in its header",
                           f->base, OFF_NAME_SHOWN, c->names.v[i].s);
    }
    if (absent == 0)
        return ERR_OK;
    bool *keep = calloc(c->names.n, sizeof *keep);
    if (!keep)
        return err_set(e, ERR_NOMEM, "names of %u tensors", c->names.n);
    for (uint32_t i = 0; i < c->names.n; i++)
        if ((keep[i] = c->tensors[i].offset != 0))
            c->tensors[kept++] = c->tensors[i];
    off_names_filter(&c->names, keep);
    free(keep);
    return ERR_OK;
}

static int read_index(struct off_catalog *c, struct index_parse *p, struct err *e)
{
    size_t n;
    char *text = off_catalog_text(c, INDEX, OFF_TEXT_BYTES_MAX, &n, e);
    if (!text)
        return e->code;
    int rc = json_reader_open(&p->r, text, n, &json_strict, e);
    if (rc == ERR_OK)
        rc = parse_index(p, e);
    json_reader_close(p->r);
    free(text);
    return rc;
}

int off_safetensors_open_index(struct off_catalog *c, struct err *e)
{
    struct index_parse p = {.c = c, .path = INDEX, .last_file = OFF_NO_NAME};
    uint32_t *listed = NULL;
    uint64_t bytes = 0;
    int rc = read_index(c, &p, e);
    if (rc != ERR_OK)
        return rc;
    if (!(listed = calloc(c->file_names.n, sizeof *listed)))
        return err_set(e, ERR_NOMEM, "list of %u files", c->file_names.n);
    for (uint32_t i = 0; i < c->names.n; i++)
        listed[c->tensors[i].file]++;
    rc = read_shards(c, listed, e);
    free(listed);
    if (rc == ERR_OK)
        rc = drop_absent(c, e);
    if (rc != ERR_OK)
        return rc;
    if (c->n_problems > 1) /* threads note them in any order */
        qsort(c->problems, c->n_problems, sizeof *c->problems, by_message);
    for (uint32_t i = 0; i < c->names.n; i++)
        bytes += c->tensors[i].bytes;
    if (p.has_total && p.total != bytes && c->n_problems == 0)
        log_warn("%s/%s: metadata.total_size: expected %" PRIu64 " (the tensors' bytes), found %" PRIu64 "; going on", c->dir, INDEX, bytes, p.total);
    return ERR_OK;
}
