#include "gateway/description.h"

#include <string.h>

#include "engine/frame.h"

static int need_u32(const struct json *o, const char *key, uint32_t min, uint32_t *out, struct err *e)
{
    uint64_t v;
    if (!json_u64(json_get(o, key), &v) || v < min || v > INT32_MAX)
        return err_set(e, ERR_FORMAT, "engine description: '%s': expected an integer from %u to %d", key, min, INT32_MAX);
    *out = (uint32_t)v;
    return ERR_OK;
}

static int need_digest(const struct json *v, const char *key, uint8_t out[HASH_BYTES], struct err *e)
{
    if (!json_is(v, JSON_STRING) || v->n != 2 * HASH_BYTES || !hash_unhex(v->s, HASH_BYTES, out))
        return err_set(e, ERR_FORMAT, "engine description: '%s': expected a SHA-256 in hex", key);
    return ERR_OK;
}

static int read_aliases(struct gw_description *d, const struct json *v, struct arena *a, struct err *e)
{
    if (!v || v->type == JSON_NULL)
        return ERR_OK;
    if (v->type != JSON_ARRAY || v->n > 64)
        return err_set(e, ERR_FORMAT, "engine description: 'aliases': expected an array of at most 64 strings");
    if (!(d->aliases = ARENA_ARRAY(a, const char *, v->n)))
        return err_set(e, ERR_NOMEM, "engine description");
    for (size_t i = 0; i < v->n; i++) {
        if (!json_str(v->items[i]))
            return err_set(e, ERR_FORMAT, "engine description: 'aliases[%zu]': expected a string", i);
        d->aliases[d->n_aliases++] = v->items[i]->s;
    }
    return ERR_OK;
}

static void read_sampling(struct gw_description *d, const struct json *v)
{
    double x;
    int64_t k;
    d->sampling = (struct eng_sampling){.temperature = 1, .top_p = 1};
    if (json_num(json_get(v, "temperature"), &x) && x >= 0 && x <= 100)
        d->sampling.temperature = (float)x;
    if (json_num(json_get(v, "top_p"), &x) && x > 0 && x <= 1)
        d->sampling.top_p = (float)x;
    if (json_int(json_get(v, "top_k"), &k) && k >= 0 && k <= INT32_MAX)
        d->sampling.top_k = (int32_t)k;
}

static void put_field(hash_ctx *h, const struct json *o, const char *key)
{
    const struct json *v = json_get(o, key);
    struct buf b;
    buf_init(&b, GW_DESCRIPTION_BYTES_MAX);
    if (v)
        json_put(&b, v);
    hash_field(h, key, b.len ? b.data : "", b.len);
    buf_free(&b);
}

/* What decides the bits of an answer. The process id, limits of the queue and the like do not. */
static int make_identity(struct gw_description *d, const struct json *o, struct err *e)
{
    static const char *const keys[] = {"id", "ctx", "vocab", "numerics", "sheet", "fingerprint", "kv_type", "tokenizer", "template", "eos", "format"};
    hash_ctx *h = hash_new();
    if (!h)
        return err_set(e, ERR_NOMEM, "engine description");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        put_field(h, o, keys[i]);
    hash_end(h, d->identity);
    return ERR_OK;
}

int gw_description_read(struct gw_description *d, const void *json, size_t n, struct arena *a, struct err *e)
{
    struct json *o = NULL;
    struct json_limits lim = json_strict;
    uint64_t proto = 0, big = 0;
    int rc;

    memset(d, 0, sizeof *d);
    lim.bytes_max = GW_DESCRIPTION_BYTES_MAX;
    if ((rc = json_parse(&o, json, n, &lim, a, e)))
        return err_prefix(e, rc, "engine description");
    if (!json_u64(json_get(o, "proto"), &proto))
        return err_set(e, ERR_FORMAT, "engine description: 'proto': expected an integer");
    if (proto != ENG_PROTO)
        return err_set(e, ERR_UNSUPPORTED, "the engine speaks protocol %llu, this gateway %d", (unsigned long long)proto, ENG_PROTO);
    if (!(d->id = json_str(json_get(o, "id"))) || !*d->id)
        return err_set(e, ERR_FORMAT, "engine description: 'id': expected a string");
    if ((rc = need_u32(o, "ctx", 1, &d->ctx, e)) || (rc = need_u32(o, "seqs", 1, &d->seqs, e)) ||
        (rc = need_u32(o, "vocab", 1, &d->vocab, e)) || (rc = read_aliases(d, json_get(o, "aliases"), a, e)) ||
        (rc = need_digest(json_get(o, "tokenizer"), "tokenizer", d->tokenizer, e)))
        return rc;
    const struct json *t = json_get(o, "template");
    d->has_template = t && t->type != JSON_NULL;
    if (d->has_template && (rc = need_digest(t, "template", d->template_digest, e)))
        return rc;
    if (json_u64(json_get(o, "queue_max"), &big) && big <= UINT32_MAX)
        d->queue_max = (uint32_t)big;
    if (json_u64(json_get(o, "queue_tokens_max"), &big))
        d->queue_tokens_max = big;
    json_int(json_get(o, "pid"), &d->pid);
    d->special_tokens = json_get(o, "special_tokens");
    d->format = json_get(o, "format");
    read_sampling(d, o);
    return make_identity(d, o, e);
}
