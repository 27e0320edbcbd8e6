/* engine/tok_open.c - a model's tokenizer from its files: which file it is in, what else names its ends, whether its ids fit. */
#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

enum { TOKENIZER_MAX = 256 << 20, CONFIG_MAX = 64 << 20 };

static void eos_of(struct tok_def *d, const struct json *v)
{
    int64_t id;
    if (json_int(v, &id))
        tok_def_eos(d, id);
    for (size_t i = 0; json_is(v, JSON_ARRAY) && i < v->n; i++)
        if (json_int(v->items[i], &id))
            tok_def_eos(d, id);
}

/* An optional text beside the weights: absent is no error. */
static int optional(const off_catalog *c, const char *name, char **text, size_t *n, struct err *e)
{
    struct err own = {0};
    *n = 0;
    *text = off_catalog_text(c, name, CONFIG_MAX, n, &own);
    if (*text || own.code == ERR_NOTFOUND)
        return ERR_OK;
    return err_set(e, own.code, "%s", own.msg);
}

static int ends(struct tok_def *d, const off_catalog *c, struct err *e)
{
    const struct json *config = off_catalog_config(c), *inner = json_get(config, "text_config");
    struct json_limits lim = {.bytes_max = CONFIG_MAX, .allow_duplicates = true};
    struct arena a;
    char *text;
    size_t n;
    int64_t bos;
    int rc = optional(c, "generation_config.json", &text, &n, e);
    if (rc)
        return rc;
    arena_init(&a, CONFIG_MAX);
    struct json *gen = NULL;
    if (text && (rc = json_parse(&gen, text, n, &lim, &a, e)))
        rc = err_prefix(e, rc, "generation_config.json");
    eos_of(d, json_get(gen, "eos_token_id"));
    eos_of(d, json_get(config, "eos_token_id"));
    eos_of(d, json_get(inner, "eos_token_id"));
    if (d->bos < 0 && (json_int(json_get(config, "bos_token_id"), &bos) || json_int(json_get(inner, "bos_token_id"), &bos)) && bos >= 0 && bos < TOK_IDS_MAX)
        d->bos = (int32_t)bos;
    arena_free(&a);
    free(text);
    return rc;
}

static int read_folder(struct tok_def *d, const off_catalog *c, struct err *e)
{
    char *text = NULL, *config = NULL;
    size_t n = 0, config_n = 0;
    struct err own = {0};
    int rc = optional(c, "tokenizer_config.json", &config, &config_n, e);
    if (!rc && (text = off_catalog_text(c, "tokenizer.json", TOKENIZER_MAX, &n, &own)))
        rc = tok_read_json(d, text, n, config, config_n, e);
    else if (!rc && own.code == ERR_NOTFOUND && (text = off_catalog_text(c, "tiktoken.model", TOKENIZER_MAX, &n, &own)))
        rc = tok_read_tiktoken(d, text, n, config, config_n, e);
    else if (!rc)
        rc = own.code == ERR_NOTFOUND ? err_set(e, ERR_NOTFOUND, "no tokenizer.json and no tiktoken.model beside the weights") : err_set(e, own.code, "%s", own.msg);
    free(text);
    free(config);
    return rc ? rc : ends(d, c, e);
}

/* Gemma 3's text-only files have no row for the token that images become; the tokenizer file lists it all the same. */
static void drop_image_token(struct tok_def *d, uint32_t rows)
{
    static const char name[] = "<image_soft_token>";
    for (uint32_t i = 0; i < d->n_added; i++)
        if ((uint32_t)d->added[i].id >= rows && d->added[i].n == sizeof name - 1 && !memcmp(d->added[i].s, name, sizeof name - 1) &&
            (uint32_t)d->added[i].id >= d->n_ids)
            d->added[i--] = d->added[--d->n_added];
}

int eng_tok_open(eng_tok **out, const off_catalog *c, uint32_t rows, struct err *e)
{
    struct tok_def d;
    int rc = tok_def_init(&d, e);
    *out = NULL;
    if (!rc)
        rc = off_catalog_kind(c) == OFF_GGUF ? tok_read_gguf(&d, c, e) : read_folder(&d, c, e);
    if (rc) {
        tok_def_free(&d);
        return rc;
    }
    drop_image_token(&d, rows);
    if ((rc = tok_build(out, &d, e)))
        return rc;
    if (eng_tok_count(*out) > rows) {
        rc = err_set(e, ERR_FORMAT, "the tokenizer has %u ids, the embedding %u rows", eng_tok_count(*out), rows);
        eng_tok_close(*out);
        *out = NULL;
    }
    return rc;
}
