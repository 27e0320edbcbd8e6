#include "engine/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct entry { uint8_t digest[HASH_BYTES]; eng_grammar *g; size_t bytes /* of the network */; uint32_t leases; uint64_t used; };
struct eng_grammars {
    const eng_tok *tok;
    pthread_mutex_t lock;
    struct entry *v; uint32_t n, max;
    uint64_t clock;
    size_t bytes;
};

int eng_grammars_open(eng_grammars **out, const eng_tok *t, uint32_t entries_max, struct err *e)
{
    eng_grammars *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c || !(c->v = calloc(entries_max, sizeof *c->v))) {
        free(c);
        return err_set(e, ERR_NOMEM, "cache of %u grammars", entries_max);
    }
    c->tok = t;
    c->max = entries_max;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return ERR_OK;
}

void eng_grammars_close(eng_grammars *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n; i++)
        eng_grammar_close(c->v[i].g);
    pthread_mutex_destroy(&c->lock);
    free(c->v);
    free(c);
}

static struct entry *oldest_idle(eng_grammars *c)
{
    struct entry *old = NULL;
    for (uint32_t i = 0; i < c->n; i++)
        if (!c->v[i].leases && (!old || c->v[i].used < old->used))
            old = &c->v[i];
    return old;
}

static uint32_t n_idle(const eng_grammars *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        n += !c->v[i].leases;
    return n;
}

static void drop(eng_grammars *c, struct entry *x)
{
    eng_grammar_close(x->g);
    c->bytes -= x->bytes;
    *x = c->v[--c->n];
}

/* Takes g over, on error too. */
static int enter(eng_grammars *c, const uint8_t *digest, eng_grammar *g, struct err *e)
{
    size_t bytes = eng_grammar_bytes(g);
    struct entry *old;
    while ((c->n == c->max || c->bytes + bytes > ENG_GRAMMARS_BYTES_MAX) && (old = oldest_idle(c)))
        drop(c, old);
    if (c->n == c->max || c->bytes + bytes > ENG_GRAMMARS_BYTES_MAX) {
        eng_grammar_close(g);
        return err_set(e, ERR_AGAIN, "%u grammars of %zu bytes are in use", c->n, c->bytes);
    }
    struct entry *x = &c->v[c->n++];
    *x = (struct entry){.g = g, .bytes = bytes, .leases = 1, .used = ++c->clock};
    memcpy(x->digest, digest, HASH_BYTES);
    c->bytes += bytes;
    return ERR_OK;
}

/* With the lock held; NULL: not here. */
static eng_grammar *find(eng_grammars *c, const uint8_t *digest)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!memcmp(c->v[i].digest, digest, HASH_BYTES)) {
            c->v[i].leases++;
            c->v[i].used = ++c->clock;
            return c->v[i].g;
        }
    return NULL;
}

int eng_grammars_lease(eng_grammars *c, const char *gbnf, size_t n, eng_grammar **out, struct err *e)
{
    uint8_t digest[HASH_BYTES];
    eng_grammar *fresh = NULL;
    hash_sha256(gbnf, n, digest);
    pthread_mutex_lock(&c->lock);
    *out = find(c, digest);
    pthread_mutex_unlock(&c->lock);
    int rc = *out ? ERR_OK : eng_grammar_compile(&fresh, gbnf, n, c->tok, e);
    if (*out || rc)
        return rc;
    pthread_mutex_lock(&c->lock);
    if ((*out = find(c, digest))) /* somebody else was faster */
        eng_grammar_close(fresh);
    else if (!(rc = enter(c, digest, fresh, e)))
        *out = fresh;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void eng_grammars_release(eng_grammars *c, eng_grammar *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->v[i].g == g) {
            c->v[i].leases--;
            break;
        }
    while (n_idle(c) > ENG_GRAMMARS_IDLE)
        drop(c, oldest_idle(c));
    pthread_mutex_unlock(&c->lock);
}
