#include "gateway/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

int gw_tok_open(struct gw_tok_ref **out, const uint8_t digest[HASH_BYTES], const void *blob, size_t n, struct err *e)
{
    uint8_t got[HASH_BYTES];
    *out = NULL;
    hash_sha256(blob, n, got);
    if (memcmp(got, digest, HASH_BYTES))
        return err_set(e, ERR_FORMAT, "tokenizer blob of %zu bytes does not have the digest it was asked by", n);
    struct gw_tok_ref *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "tokenizer");
    int rc = eng_tok_load(&t->tok, blob, n, e);
    if (rc) {
        free(t);
        return rc;
    }
    memcpy(t->digest, digest, HASH_BYTES);
    atomic_init(&t->refs, 1);
    *out = t;
    return ERR_OK;
}

void gw_tok_unref(struct gw_tok_ref *t)
{
    if (t && atomic_fetch_sub(&t->refs, 1) == 1) {
        eng_tok_close(t->tok);
        free(t);
    }
}

int gw_served_open(struct gw_served **out, const void *hello, size_t n, struct gw_tok_ref *tok, const char *tmpl, size_t tmpl_n, struct err *e)
{
    int rc;
    char hex[2 * HASH_BYTES + 1];
    *out = NULL;
    struct gw_served *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "model description");
    atomic_init(&s->refs, 1);
    arena_init(&s->mem, 8 * (size_t)GW_DESCRIPTION_BYTES_MAX);
    if ((rc = gw_description_read(&s->d, hello, n, &s->mem, e)))
        goto out;
    if (tmpl && (rc = eng_chat_open(&s->chat, tok->tok, tmpl, tmpl_n, s->d.special_tokens, e)))
        goto out;
    if ((rc = eng_format_read(&s->format, s->d.format, tok->tok, &s->mem, e)))
        goto out;
    atomic_fetch_add(&tok->refs, 1);
    s->tok = tok;
    hash_hex(s->d.identity, HASH_BYTES, hex);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%.12s", hex);
    s->created = clock_wall_s();
    *out = s;
    s = NULL;
out:
    gw_served_unref(s);
    return rc;
}

struct gw_served *gw_served_ref(struct gw_served *s)
{
    if (s)
        atomic_fetch_add(&s->refs, 1);
    return s;
}

void gw_served_unref(struct gw_served *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    eng_chat_close(s->chat);
    gw_tok_unref(s->tok);
    arena_free(&s->mem);
    free(s);
}

bool gw_served_is(const struct gw_served *s, const char *model)
{
    if (!strcmp(model, s->d.id))
        return true;
    for (size_t i = 0; i < s->d.n_aliases; i++)
        if (!strcmp(model, s->d.aliases[i]))
            return true;
    return false;
}
