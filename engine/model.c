#include "engine/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { TEXT_MAX = 64 << 20, EOS_MAX = 16 };

/* "dir/name.gguf" and "dir/name/" are called name. */
static const char *name_of(struct arena *a, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t from = n;
    while (from && path[from - 1] != '/')
        from--;
    if (n - from > 5 && !memcmp(path + n - 5, ".gguf", 5))
        n -= 5;
    return arena_strdup(a, path + from, n - from);
}

/* A special token is a string, or an object with `content`. */
static const struct json *token_text(const struct json *v)
{
    return json_is(v, JSON_STRING) ? v : json_is(json_get(v, "content"), JSON_STRING) ? json_get(v, "content") : NULL;
}

static const char *const special_names[] = {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"};

static void specials_from_config(struct eng_model *m, struct json *out, const struct json *config)
{
    for (size_t i = 0; i < sizeof special_names / sizeof *special_names; i++) {
        const struct json *t = token_text(json_get(config, special_names[i]));
        if (t)
            json_set(&m->mem, out, special_names[i], json_new_str(&m->mem, t->s, t->n));
    }
}

static void specials_from_gguf(struct eng_model *m, struct json *out)
{
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.unknown_token_id",
                                       "tokenizer.ggml.padding_token_id"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int64_t id;
        size_t n;
        if (!json_int(json_get(off_catalog_config(m->catalog), keys[i]), &id) || id < 0 || id > INT32_MAX)
            continue;
        const char *piece = eng_tok_piece(m->tok, (int32_t)id, &n);
        if (piece)
            json_set(&m->mem, out, special_names[i], json_new_str(&m->mem, piece, n));
    }
}

static int keep_template(struct eng_model *m, const char *s, size_t n, struct err *e)
{
    m->template_text = arena_strdup(&m->mem, s, n);
    m->template_len = n;
    return m->template_text ? ERR_OK : err_set(e, ERR_NOMEM, "chat template of %zu bytes", n);
}

/* tokenizer_config.json's chat_template: a string, or a list of {name, template} whose "default" is meant. */
static int template_from_config(struct eng_model *m, const struct json *config, struct err *e)
{
    const struct json *t = json_get(config, "chat_template");
    for (size_t i = 0; json_is(t, JSON_ARRAY) && i < t->n; i++)
        if (json_eq(json_get(t->items[i], "name"), "default")) {
            t = json_get(t->items[i], "template");
            break;
        }
    return json_is(t, JSON_STRING) ? keep_template(m, t->s, t->n, e) : ERR_OK;
}

/* A JSON file beside the weights; NULL without error where there is none. */
static int side_file(struct eng_model *m, const char *name, const struct json **out, struct err *e)
{
    struct err why = {0};
    size_t n;
    struct json *doc;
    *out = NULL;
    char *text = off_catalog_text(m->catalog, name, TEXT_MAX, &n, &why);
    if (!text) {
        if (why.code == ERR_NOTFOUND)
            return ERR_OK;
        *e = why;
        return why.code;
    }
    struct json_limits lim = {.allow_nul = true, .allow_duplicates = true};
    char *own = arena_strdup(&m->mem, text, n); /* the tree may borrow from it */
    free(text);
    if (!own)
        return err_set(e, ERR_NOMEM, "%s of %zu bytes", name, n);
    int rc = json_parse(&doc, own, n, &lim, &m->mem, e);
    if (rc)
        return err_prefix(e, rc, "%s", name);
    *out = doc;
    return ERR_OK;
}

static int open_text(struct eng_model *m, struct err *e)
{
    const struct json *config = NULL;
    struct json *specials = json_new(&m->mem, JSON_OBJECT);
    size_t n;
    struct err why = {0};
    int rc = ERR_OK;
    if (!specials)
        return err_set(e, ERR_NOMEM, "special tokens");
    if (off_catalog_kind(m->catalog) == OFF_GGUF) {
        const struct json *t = json_get(off_catalog_config(m->catalog), "tokenizer.chat_template");
        specials_from_gguf(m, specials);
        rc = json_is(t, JSON_STRING) ? keep_template(m, t->s, t->n, e) : ERR_OK;
    } else {
        char *text = off_catalog_text(m->catalog, "chat_template.jinja", TEXT_MAX, &n, &why);
        if (text) {
            rc = keep_template(m, text, n, e);
            free(text);
        } else if (why.code != ERR_NOTFOUND) {
            *e = why;
            rc = why.code;
        }
        if (!rc)
            rc = side_file(m, "tokenizer_config.json", &config, e);
        if (!rc && !m->template_text)
            rc = template_from_config(m, config, e);
        specials_from_config(m, specials, config);
    }
    m->special_tokens = specials;
    if (rc || !m->template_text)
        return rc;
    eng_tok_mark_template(m->tok, m->template_text, m->template_len);
    return eng_chat_open(&m->chat, m->tok, m->template_text, m->template_len, specials, e);
}

/* End-of-sequence ids of the tokenizer, and those that generation_config.json (else config.json) names beside them. */
static void add_eos(struct eng_model *m, const struct json *v)
{
    int32_t ids[EOS_MAX];
    size_t n;
    const int32_t *have = eng_tok_eos(m->tok, &n);
    n = n < EOS_MAX ? n : EOS_MAX;
    memcpy(ids, have, n * sizeof *ids);
    size_t count = json_is(v, JSON_ARRAY) ? v->n : v ? 1 : 0;
    for (size_t i = 0; i < count && n < EOS_MAX; i++) {
        int64_t id;
        bool known = false;
        if (!json_int(json_is(v, JSON_ARRAY) ? v->items[i] : v, &id) || id < 0 || id >= eng_tok_count(m->tok))
            continue;
        for (size_t k = 0; k < n; k++)
            known |= ids[k] == id;
        if (!known)
            ids[n++] = (int32_t)id;
    }
    eng_tok_set_eos(m->tok, ids, n);
}

static int open_defaults(struct eng_model *m, struct err *e)
{
    const struct json *g = NULL;
    double v;
    int64_t k;
    m->temperature = 1;
    m->top_p = 1;
    if (off_catalog_kind(m->catalog) == OFF_GGUF)
        return ERR_OK;
    int rc = side_file(m, "generation_config.json", &g, e);
    if (rc)
        return rc;
    const struct json *eos = json_get(g, "eos_token_id");
    add_eos(m, eos ? eos : json_get(off_catalog_config(m->catalog), "eos_token_id"));
    if (json_num(json_get(g, "temperature"), &v) && v >= 0 && v <= 100)
        m->temperature = (float)v;
    if (json_num(json_get(g, "top_p"), &v) && v > 0 && v <= 1)
        m->top_p = (float)v;
    if (json_int(json_get(g, "top_k"), &k) && k > 0 && k < INT32_MAX)
        m->top_k = (int)k;
    return ERR_OK;
}

/* Not of weight bytes: reading them all would cost more than it tells. */
static int fingerprint(struct eng_model *m, struct err *e)
{
    hash_ctx *h = hash_new();
    struct buf b;
    if (!h)
        return err_set(e, ERR_NOMEM, "fingerprint");
    for (size_t i = 0; i < off_catalog_count(m->catalog); i++) {
        const struct off_tensor *t = off_catalog_at(m->catalog, i);
        uint64_t shape[OFF_DIMS_MAX + 2] = {t->type, t->n_dims};
        memcpy(shape + 2, t->dims, t->n_dims * sizeof *shape);
        hash_field(h, "name", t->name, strlen(t->name));
        hash_field(h, "shape", shape, (2 + (size_t)t->n_dims) * sizeof *shape);
    }
    for (size_t i = 0; i < off_catalog_files(m->catalog); i++)
        hash_field(h, "size", &off_catalog_file(m->catalog, i)->size, sizeof(uint64_t));
    buf_init(&b, TEXT_MAX);
    json_put(&b, off_catalog_config(m->catalog));
    hash_field(h, "config", b.data, b.len);
    buf_free(&b);
    hash_end(h, m->fingerprint);
    return ERR_OK;
}

int eng_model_open(struct eng_model **out, const char *path, const char *alias, struct err *e)
{
    int rc;
    *out = NULL;
    struct eng_model *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "model");
    arena_init(&m->mem, 512u << 20);
    m->id = alias ? arena_strdup(&m->mem, alias, strlen(alias)) : name_of(&m->mem, path);
    if (!m->id) {
        rc = err_set(e, ERR_NOMEM, "model");
        goto out;
    }
    if ((rc = off_catalog_open(&m->catalog, path, 0, e)) || (rc = eng_plan_compile(&m->plan, m->catalog, NULL, NULL, e)) ||
        (rc = eng_tok_open(&m->tok, m->catalog, m->plan->vocab, e)) || (rc = open_text(m, e)) || (rc = open_defaults(m, e)) ||
        (rc = fingerprint(m, e)))
        goto out;
    *out = m;
    m = NULL;
out:
    eng_model_close(m);
    return rc;
}

void eng_model_close(struct eng_model *m)
{
    if (!m)
        return;
    eng_chat_close(m->chat);
    eng_tok_close(m->tok);
    eng_plan_close(m->plan);
    off_catalog_close(m->catalog);
    arena_free(&m->mem);
    free(m);
}
