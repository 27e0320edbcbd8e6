/* GGUF metadata as others read it: a flat object under the file's dotted keys, and long arrays by index. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "offload/gguf.h"

enum { TREE_ARRAY_MAX = 64 };
const uint8_t off_gguf_bytes_of[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

bool off_gguf_int(const struct off_gguf *g, unsigned type, size_t at, int64_t *v)
{
    if (type == OFF_GGUF_STRING || type == OFF_GGUF_ARRAY)
        return false;
    uint64_t u = off_gguf_le(g->block + at, off_gguf_bytes_of[type]);
    switch (type) {
    case OFF_GGUF_I8: *v = (int8_t)u; return true;
    case OFF_GGUF_I16: *v = (int16_t)u; return true;
    case OFF_GGUF_I32: *v = (int32_t)u; return true;
    case OFF_GGUF_U8: case OFF_GGUF_U16: case OFF_GGUF_U32: case OFF_GGUF_BOOL: case OFF_GGUF_I64: *v = (int64_t)u; return true;
    case OFF_GGUF_U64: *v = (int64_t)u; return u <= INT64_MAX;
    default: return false;
    }
}

bool off_gguf_num(const struct off_gguf *g, unsigned type, size_t at, double *v)
{
    if (type == OFF_GGUF_STRING || type == OFF_GGUF_ARRAY)
        return false;
    uint64_t u = off_gguf_le(g->block + at, off_gguf_bytes_of[type]);
    int64_t i;
    if (type == OFF_GGUF_F32) {
        uint32_t w = (uint32_t)u;
        float f;
        memcpy(&f, &w, 4);
        *v = f;
    } else if (type == OFF_GGUF_F64) {
        memcpy(v, &u, 8);
    } else if (type == OFF_GGUF_U64) {
        *v = (double)u;
    } else if (off_gguf_int(g, type, at, &i)) {
        *v = (double)i;
    } else {
        return false;
    }
    return true;
}

/* JSON has no infinities: those become strings, which no reader of numbers takes for one. */
static struct json *number(struct arena *a, const struct off_gguf *g, unsigned type, size_t at)
{
    double d = 0;
    int64_t i;
    off_gguf_num(g, type, at, &d);
    char *text = type == OFF_GGUF_U64   ? arena_printf(a, "%" PRIu64, off_gguf_le(g->block + at, 8))
                 : type == OFF_GGUF_F32 ? arena_printf(a, "%.9g", d)
                 : type == OFF_GGUF_F64 ? arena_printf(a, "%.17g", d)
                 : off_gguf_int(g, type, at, &i) ? arena_printf(a, "%" PRId64, i) : NULL;
    struct json *v = text ? json_new(a, isfinite(d) ? JSON_NUMBER : JSON_STRING) : NULL;
    if (v) {
        v->s = text;
        v->n = strlen(text);
    }
    return v;
}

static struct json *value(struct arena *a, const struct off_gguf *g, unsigned type, size_t at, uint64_t n)
{
    if (type == OFF_GGUF_STRING)
        return json_new_str(a, (const char *)g->block + at, (size_t)n);
    if (type == OFF_GGUF_BOOL)
        return json_new_bool(a, g->block[at] != 0);
    return number(a, g, type, at);
}

static struct json *array(struct arena *a, const struct off_gguf *g, const struct off_gguf_value *v)
{
    struct json *arr = json_new(a, JSON_ARRAY);
    for (uint64_t i = 0; arr && i < v->n; i++) {
        size_t at = v->elem == OFF_GGUF_STRING ? (size_t)v->strings[i] + 8 : v->at + (size_t)i * off_gguf_bytes_of[v->elem];
        uint64_t n = v->elem == OFF_GGUF_STRING ? off_gguf_le(g->block + v->strings[i], 8) : 0;
        struct json *x = value(a, g, v->elem, at, n);
        if (!x || !json_push(a, arr, x))
            return NULL;
    }
    return arr;
}

int off_gguf_config(struct off_catalog *c, struct err *e)
{
    struct off_gguf *g = c->gguf;
    struct json *obj = json_new(&c->mem, JSON_OBJECT);
    for (size_t i = 0; obj && i < g->n_values; i++) {
        struct off_gguf_value *v = &g->values[i];
        v->g = g;
        if (v->type == OFF_GGUF_ARRAY && v->n > TREE_ARRAY_MAX)
            continue;
        struct json *x = v->type == OFF_GGUF_ARRAY ? array(&c->mem, g, v) : value(&c->mem, g, v->type, v->at, v->n);
        if (!x || !json_set(&c->mem, obj, g->keys.v[i].s, x))
            obj = NULL;
    }
    if (!obj)
        return err_set(e, ERR_NOMEM, "%s: metadata of %zu keys", c->files[0].base, g->n_values);
    c->config = obj;
    return ERR_OK;
}

/* ---- arrays ----------------------------------------------------------------------------------------------- */
bool off_gguf_array(const off_catalog *c, const char *key, struct off_array *a)
{
    uint32_t k = c->gguf ? off_names_find(&c->gguf->keys, key, strlen(key)) : OFF_NO_NAME;
    if (k == OFF_NO_NAME || c->gguf->values[k].type != OFF_GGUF_ARRAY)
        return false;
    *a = (struct off_array){.type = c->gguf->values[k].elem, .n = c->gguf->values[k].n, .priv = &c->gguf->values[k]};
    return true;
}

const char *off_array_str(const struct off_array *a, uint64_t i, size_t *n)
{
    const struct off_gguf_value *v = a->priv;
    *n = 0;
    if (v->elem != OFF_GGUF_STRING || i >= v->n)
        return NULL;
    *n = (size_t)off_gguf_le(v->g->block + v->strings[i], 8);
    return (const char *)v->g->block + v->strings[i] + 8;
}

bool off_array_int(const struct off_array *a, uint64_t i, int64_t *out)
{
    const struct off_gguf_value *v = a->priv;
    return i < v->n && off_gguf_int(v->g, v->elem, v->at + (size_t)i * off_gguf_bytes_of[v->elem], out);
}

bool off_array_num(const struct off_array *a, uint64_t i, double *out)
{
    const struct off_gguf_value *v = a->priv;
    return i < v->n && off_gguf_num(v->g, v->elem, v->at + (size_t)i * off_gguf_bytes_of[v->elem], out);
}
