#include "engine/config.h"

#include <stdio.h>
#include <string.h>

#define LIST_MAX 4096 /* longest GGUF array that a sheet may read as a list */
#define PATH_MAX_BYTES 256

int eng_cfg_open(struct eng_cfg *c, const off_catalog *cat, const struct json *roots, struct arena *a, struct err *e)
{
    const struct json *top = off_catalog_config(cat);

    memset(c, 0, sizeof *c);
    c->catalog = cat;
    c->mem = a;
    c->gguf = off_catalog_kind(cat) == OFF_GGUF;
    if (!json_is(top, JSON_OBJECT))
        return err_set(e, ERR_FORMAT, "the model has no %s", c->gguf ? "metadata" : "config.json");
    if (c->gguf && !(c->arch = json_str(json_get(top, "general.architecture"))))
        return err_set(e, ERR_FORMAT, "the GGUF file has no text general.architecture");
    for (size_t i = 0; !c->gguf && json_is(roots, JSON_ARRAY) && i < roots->n && c->n_roots < ENG_ROOTS_MAX; i++) {
        const char *path = json_str(roots->items[i]);
        const struct json *r = !path ? NULL : !strcmp(path, ".") ? top : json_path(top, path);
        if (json_is(r, JSON_OBJECT))
            c->root[c->n_roots++] = r;
    }
    if (!c->n_roots)
        c->root[c->n_roots++] = top;
    return ERR_OK;
}

static const char *gguf_key(const struct eng_cfg *c, const char *key, char *buf, size_t n)
{
    if (key[0] == '/')
        return key + 1;
    snprintf(buf, n, "%s.%s", c->arch, key);
    return buf;
}

static const struct json *find(const struct eng_cfg *c, const char *key)
{
    char buf[PATH_MAX_BYTES];

    if (c->gguf)
        return json_get(c->root[0], gguf_key(c, key, buf, sizeof buf));
    for (unsigned i = 0; i < c->n_roots; i++) {
        const struct json *v = json_path(c->root[i], key);
        if (v)
            return v;
    }
    return NULL;
}

static int from_array(const struct eng_cfg *c, const struct off_array *a, const char *key, struct eng_value *out, struct err *e)
{
    struct eng_value *items;

    if (a->n > LIST_MAX)
        return err_set(e, ERR_LIMIT, "metadata list %s has %llu entries, more than %d", key, (unsigned long long)a->n, LIST_MAX);
    if (!(items = ARENA_ARRAY(c->mem, struct eng_value, a->n)))
        return err_set(e, ERR_NOMEM, "metadata list %s", key);
    for (uint64_t i = 0; i < a->n; i++) {
        int64_t v;
        double f;
        size_t n;
        const char *s;
        if (off_array_int(a, i, &v))
            items[i] = eng_v_int(v);
        else if (off_array_num(a, i, &f))
            items[i] = eng_v_num(f);
        else if ((s = off_array_str(a, i, &n)) && (s = arena_strdup(c->mem, s, n)))
            items[i] = (struct eng_value){.type = ENG_V_STR, .u.s = s, .n = n};
        else
            return err_set(e, ERR_FORMAT, "metadata list %s: entry %llu cannot be read", key, (unsigned long long)i);
    }
    *out = (struct eng_value){.type = ENG_V_LIST, .u.items = items, .n = a->n};
    return ERR_OK;
}

static int get_gguf(const struct eng_cfg *c, const char *key, struct eng_value *out, bool *found, struct err *e)
{
    char buf[PATH_MAX_BYTES], bare[PATH_MAX_BYTES];
    struct off_array a;
    const char *name = gguf_key(c, key, buf, sizeof buf);
    size_t n = strlen(name);
    bool len = n > 4 && !strcmp(name + n - 4, "#len");
    const struct json *v;

    if (len) {
        snprintf(bare, sizeof bare, "%.*s", (int)(n - 4), name);
        name = bare;
    }
    v = json_get(c->root[0], name);
    if (v && v->type != JSON_NULL) {
        *found = true;
        if (len)
            *out = eng_v_int((int64_t)(v->type == JSON_ARRAY ? v->n : 0));
        return len ? ERR_OK : eng_v_from_json(v, c->mem, out, e);
    }
    if (!off_gguf_array(c->catalog, name, &a))
        return ERR_OK;
    *found = true;
    if (len) {
        *out = eng_v_int((int64_t)a.n);
        return ERR_OK;
    }
    return from_array(c, &a, name, out, e);
}

int eng_cfg_get(const struct eng_cfg *c, const char *key, struct eng_value *out, bool *found, struct err *e)
{
    *out = (struct eng_value){.type = ENG_V_NULL};
    *found = false;
    if (c->gguf)
        return get_gguf(c, key, out, found, e);
    for (unsigned i = 0; i < c->n_roots; i++) {
        const struct json *v = json_path(c->root[i], key);
        if (v && v->type != JSON_NULL) {
            *found = true;
            return eng_v_from_json(v, c->mem, out, e);
        }
    }
    return ERR_OK;
}

bool eng_cfg_present(const struct eng_cfg *c, const char *key)
{
    struct off_array a;
    char buf[PATH_MAX_BYTES];

    return find(c, key) || (c->gguf && off_gguf_array(c->catalog, gguf_key(c, key, buf, sizeof buf), &a));
}

/* ---- what was read ---------------------------------------------------------------------------------------- */
static bool was_read(const struct eng_cfg *c, const struct json *node)
{
    for (unsigned i = 0; i < c->n_read; i++)
        if (c->read[i] == node)
            return true;
    return false;
}

void eng_cfg_read_node(struct eng_cfg *c, const struct json *node)
{
    if (node && !was_read(c, node) && c->n_read < ENG_KEYS_MAX)
        c->read[c->n_read++] = node;
}

void eng_cfg_read_all(struct eng_cfg *c, const struct json *node)
{
    eng_cfg_read_node(c, node);
    for (size_t i = 0; json_is(node, JSON_OBJECT) && i < node->n; i++)
        eng_cfg_read_all(c, node->members[i].value);
    for (size_t i = 0; json_is(node, JSON_ARRAY) && i < node->n; i++)
        if (node->items[i]->type == JSON_OBJECT)
            eng_cfg_read_all(c, node->items[i]);
}

/* The objects on the way to a dotted key are opened, not read: their other keys still count. */
void eng_cfg_read(struct eng_cfg *c, const char *key)
{
    char buf[PATH_MAX_BYTES];
    size_t n = strlen(key);

    if (c->gguf) {
        snprintf(buf, sizeof buf, "%.*s", (int)(n > 4 && !strcmp(key + n - 4, "#len") ? n - 4 : n), key);
        eng_cfg_read_node(c, find(c, buf));
        return;
    }
    for (unsigned i = 0; i < c->n_roots; i++)
        eng_cfg_read_node(c, json_path(c->root[i], key));
}

bool eng_glob(const char *p, const char *s)
{
    for (; *p; p++, s++) {
        if (*p == '*') {
            while (p[1] == '*')
                p++;
            if (!p[1])
                return true;
            for (; *s; s++)
                if (eng_glob(p + 1, s))
                    return true;
            return false;
        }
        if (*p != *s)
            return false;
    }
    return !*s;
}

struct walk {
    const struct eng_cfg *c;
    const struct json *inert;
    eng_cfg_unread_fn f;
    void *ctx;
};

static bool excused(const struct json *inert, const char *path, const char *key)
{
    for (size_t i = 0; json_is(inert, JSON_OBJECT) && i < inert->n; i++) {
        const struct json *list = inert->members[i].value;
        for (size_t k = 0; k < list->n && list->type == JSON_ARRAY; k++) {
            const char *p = json_str(list->items[k]);
            if (p && (eng_glob(p, path) || eng_glob(p, key)))
                return true;
        }
    }
    return false;
}

/* Keys that name something the model computes: not reading one of these gives fluent, wrong text. */
static bool is_fatal(const char *key)
{
    static const char *const words[] = {"rope", "rotary", "attn", "attention", "window", "scal", "norm", "expert", "moe", "quant", "softcap"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(key, words[i]))
            return true;
    return false;
}

static void unread(const struct walk *w, const struct json *obj, const char *prefix, unsigned depth)
{
    char path[PATH_MAX_BYTES], text[80];

    for (size_t i = 0; i < obj->n; i++) {
        const struct json *v = obj->members[i].value;
        bool is_root = false;
        for (unsigned k = 0; k < w->c->n_roots; k++)
            is_root = is_root || w->c->root[k] == v;
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", obj->members[i].key);
        bool holds = v->type == JSON_OBJECT && v->n;
        if (is_root || v->type == JSON_NULL || ((v->type == JSON_ARRAY || v->type == JSON_OBJECT) && !v->n) || excused(w->inert, path, obj->members[i].key))
            continue;
        if (holds && depth < 8) { /* keys inside count one by one, whether or not the object itself was read */
            unread(w, v, path, depth + 1);
            continue;
        }
        if (was_read(w->c, v))
            continue;
        struct eng_value val;
        text[0] = 0;
        if (v->type != JSON_ARRAY && v->type != JSON_OBJECT && !eng_v_from_json(v, w->c->mem, &val, NULL))
            eng_v_show(&val, text, sizeof text);
        w->f(w->ctx, path, text, is_fatal(path));
    }
}

static void unread_gguf(const struct walk *w)
{
    size_t n = strlen(w->c->arch);

    for (size_t i = 0; i < w->c->root[0]->n; i++) {
        const struct json_member *m = &w->c->root[0]->members[i];
        struct eng_value val;
        char text[80] = "";
        if (strncmp(m->key, w->c->arch, n) || m->key[n] != '.' || was_read(w->c, m->value) || excused(w->inert, m->key + n + 1, m->key + n + 1))
            continue;
        if (m->value->type != JSON_ARRAY && !eng_v_from_json(m->value, w->c->mem, &val, NULL))
            eng_v_show(&val, text, sizeof text);
        w->f(w->ctx, m->key, text, is_fatal(m->key + n + 1));
    }
}

void eng_cfg_unread(const struct eng_cfg *c, const struct json *inert, eng_cfg_unread_fn f, void *ctx)
{
    struct walk w = {c, inert, f, ctx};

    if (c->gguf) {
        unread_gguf(&w);
        return;
    }
    for (unsigned i = 0; i < c->n_roots; i++)
        unread(&w, c->root[i], "", 0);
}
