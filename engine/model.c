#include "engine/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"

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
    if (!rc && !m->template_text && m->plan->template_text)
        rc = keep_template(m, m->plan->template_text, m->plan->template_len, e);
    if (rc || !m->template_text)
        return rc;
    eng_tok_mark_template(m->tok, m->template_text, m->template_len);
    return eng_chat_open(&m->chat, m->tok, m->template_text, m->template_len, specials, e);
}

static void add_id(int32_t *ids, size_t *n, int32_t id)
{
    for (size_t k = 0; k < *n; k++)
        if (ids[k] == id)
            return;
    if (*n < EOS_MAX)
        ids[(*n)++] = id;
}

/* End-of-sequence ids: the tokenizer's own, those that v (one id or a list) names beside them, and the sheet's stop tokens where the
 * vocabulary has them as control tokens. */
static void set_eos(struct eng_model *m, const struct json *v)
{
    int32_t ids[EOS_MAX];
    size_t n = 0, n_have;
    const int32_t *have = eng_tok_eos(m->tok, &n_have);
    for (size_t k = 0; k < n_have; k++)
        add_id(ids, &n, have[k]);
    size_t count = json_is(v, JSON_ARRAY) ? v->n : v ? 1 : 0;
    for (size_t i = 0; i < count; i++) {
        int64_t id;
        if (json_int(json_is(v, JSON_ARRAY) ? v->items[i] : v, &id) && id >= 0 && id < eng_tok_count(m->tok))
            add_id(ids, &n, (int32_t)id);
    }
    for (uint32_t i = 0; i < m->plan->serve.n_stop; i++) {
        int32_t id = eng_tok_find(m->tok, m->plan->serve.stop[i], strlen(m->plan->serve.stop[i]));
        if (id >= 0 && eng_tok_is_control(m->tok, id))
            add_id(ids, &n, id);
    }
    eng_tok_set_eos(m->tok, ids, n);
}

static bool read_default(const struct json *from, const char *key, double low, double high, double *out)
{
    double v;
    if (!json_num(json_get(from, key), &v) || !(v >= low && v <= high))
        return false;
    *out = v;
    return true;
}

/* Sampling defaults and stop ids: what the files say, over what the sheet says. A set of the files counts as a whole, because its
 * numbers were chosen together: a temperature without a top_p means no top_p. */
static int open_defaults(struct eng_model *m, struct err *e)
{
    static const char *const keys[2][3] = {{"temperature", "top_p", "top_k"}, {"general.sampling.temp", "general.sampling.top_p", "general.sampling.top_k"}};
    const struct json *g = NULL, *config = off_catalog_config(m->catalog), *eos = NULL;
    const struct eng_serving *s = &m->plan->serve;
    bool gguf = off_catalog_kind(m->catalog) == OFF_GGUF;
    double v[3] = {1, 1, 0};
    int rc = ERR_OK;
    if (gguf)
        g = config;
    else if ((rc = side_file(m, "generation_config.json", &g, e)))
        return rc;
    else if (!(eos = json_get(g, "eos_token_id")) || eos->type == JSON_NULL)
        eos = json_get(config, "eos_token_id");
    set_eos(m, eos);
    m->sampling_from_files = read_default(g, keys[gguf][0], 0, 100, &v[0]);
    m->sampling_from_files |= read_default(g, keys[gguf][1], 1e-6, 1, &v[1]);
    m->sampling_from_files |= read_default(g, keys[gguf][2], 0, INT32_MAX - 1, &v[2]);
    m->temperature = m->sampling_from_files ? (float)v[0] : s->temperature;
    m->top_p = m->sampling_from_files ? (float)v[1] : s->top_p;
    m->top_k = m->sampling_from_files ? (int)v[2] : s->top_k;
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
    for (uint32_t i = 0; i < m->plan->n_ropes; i++) {
        hash_field(h, "rope", m->plan->ropes[i].inv_freq, m->plan->ropes[i].n_freq * sizeof *m->plan->ropes[i].inv_freq);
        if (m->plan->ropes[i].inv_freq_far)
            hash_field(h, "rope far", m->plan->ropes[i].inv_freq_far, m->plan->ropes[i].n_freq * sizeof *m->plan->ropes[i].inv_freq_far);
        hash_field(h, "mscale", &m->plan->ropes[i].mscale, sizeof m->plan->ropes[i].mscale);
    }
    buf_init(&b, TEXT_MAX);
    json_put(&b, off_catalog_config(m->catalog));
    hash_field(h, "config", b.data, b.len);
    buf_free(&b);
    hash_end(h, m->fingerprint);
    return ERR_OK;
}

int eng_model_attach(struct eng_model *m, struct err *e)
{
    if (!m->mem.bytes_max)
        arena_init(&m->mem, 512u << 20);
    int rc = eng_tok_open(&m->tok, m->catalog, m->plan->vocab, e);
    if (!rc)
        rc = open_text(m, e); /* marks control tokens, which the sheet's stop tokens must be */
    if (!rc && !(m->format_text = eng_format_choose(m->plan->formats, m->template_text, m->template_len, &m->mem)))
        rc = err_set(e, ERR_NOMEM, "formats");
    if (!rc)
        rc = eng_format_read(&m->format, m->format_text, m->tok, &m->mem, e);
    return rc ? rc : open_defaults(m, e);
}

void eng_model_detach(struct eng_model *m)
{
    eng_chat_close(m->chat);
    eng_tok_close(m->tok);
    arena_free(&m->mem);
}

int eng_model_open(struct eng_model **out, const char *path, const char *disks, const char *alias, uint32_t ctx, struct err *e)
{
    struct eng_plan_options o = {.ctx = ctx};
    int rc;
    *out = NULL;
    struct eng_model *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "model");
    arena_init(&m->mem, 512u << 20);
    size_t first = alias ? strcspn(alias, ",") : 0;
    m->aliases = alias && alias[first] ? arena_strdup(&m->mem, alias + first + 1, strlen(alias + first + 1)) : "";
    m->id = first ? arena_strdup(&m->mem, alias, first) : name_of(&m->mem, path);
    if (!m->id || !m->aliases) {
        rc = err_set(e, ERR_NOMEM, "model");
        goto out;
    }
    if ((rc = off_catalog_open_on(&m->catalog, path, disks, 0, e)) || (rc = eng_plan_compile(&m->plan, m->catalog, &o, NULL, e)) ||
        (rc = eng_model_attach(m, e)) || (rc = fingerprint(m, e)))
        goto out;
    for (uint32_t i = 0; i < m->plan->n_notes; i++)
        log_info("%s: %s", m->id, m->plan->notes[i]);
    *out = m;
    m = NULL;
out:
    if (rc == ERR_INVALID) /* no value of the caller's: a config or a file that a sheet cannot make sense of */
        rc = e->code = ERR_FORMAT;
    eng_model_close(m);
    return rc;
}

void eng_put_names(struct buf *b, const char *id, const char *list)
{
    bool first = true;
    buf_str(b, "\"id\":");
    json_put_cstr(b, id);
    buf_str(b, ",\"aliases\":[");
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        if (n && !first)
            buf_char(b, ',');
        if (n)
            json_put_str(b, p, n);
        first = first && !n;
        p += n + (p[n] == ',');
    }
    buf_char(b, ']');
}

void eng_model_close(struct eng_model *m)
{
    if (!m)
        return;
    eng_model_detach(m);
    eng_plan_close(m->plan);
    off_catalog_close(m->catalog);
    free(m);
}
