/* The front of a running engine: requests enter, are cancelled and paused; what it says about itself. */
#include "engine/engine.h"

#include <stdio.h>

#include "base/hash.h"
#include "engine/engine_internal.h"

void eng_kick(eng_engine *g)
{
    g->kicked = true;
    pthread_cond_signal(&g->wake);
}

const struct eng_model *eng_model_of(const eng_engine *g) { return g->model; }
void eng_config_in_force(const eng_engine *g, struct eng_config *c) { *c = g->c; }

const char *eng_isa(const eng_engine *g) { return eng_exec_isa(g->exec); }

static struct eng_seq *find(eng_engine *g, uint64_t id)
{
    for (uint32_t i = 0; i < g->n_live; i++)
        if (g->live[i]->id == id)
            return g->live[i];
    return NULL;
}

/* With the lock held: may this request enter. */
static int enter(eng_engine *g, struct eng_seq *s, struct err *e)
{
    if (g->draining || g->stop)
        return err_set(e, ERR_CLOSED, "the engine is shutting down");
    if (find(g, s->id))
        return err_set(e, ERR_INVALID, "request id %llu is in use", (unsigned long long)s->id);
    if (g->n_live >= g->live_max || g->n_waiting >= g->c.queue_max)
        return err_set(e, ERR_AGAIN, "the queue is full: %u requests wait", g->n_waiting);
    if (g->waiting_tokens && g->waiting_tokens + s->n_tokens > g->c.queue_tokens_max)
        return err_set(e, ERR_AGAIN, "the queue is full: %llu tokens wait, at most %llu may", (unsigned long long)g->waiting_tokens,
                       (unsigned long long)g->c.queue_tokens_max);
    s->arrival = g->arrivals++;
    g->live[g->n_live++] = s;
    g->n_waiting++;
    g->waiting_tokens += s->n_tokens;
    g->stats.requests++;
    g->stats.tokens_in += s->n_prompt;
    eng_kick(g);
    return ERR_OK;
}

int eng_submit(eng_engine *g, const struct eng_request *r, struct err *e)
{
    struct eng_seq *s;
    int rc = eng_seq_new(&s, g, r, e);
    if (rc)
        return rc;
    pthread_mutex_lock(&g->lock);
    rc = enter(g, s, e);
    pthread_mutex_unlock(&g->lock);
    if (rc)
        eng_seq_free(g, s);
    return rc;
}

void eng_cancel(eng_engine *g, uint64_t id)
{
    pthread_mutex_lock(&g->lock);
    struct eng_seq *s = find(g, id);
    if (s) {
        atomic_store(&s->cancel, true);
        eng_kick(g);
    }
    pthread_mutex_unlock(&g->lock);
}

void eng_pause(eng_engine *g, uint64_t id, bool paused)
{
    pthread_mutex_lock(&g->lock);
    struct eng_seq *s = find(g, id);
    if (s) {
        atomic_store(&s->paused, paused);
        eng_kick(g);
    }
    pthread_mutex_unlock(&g->lock);
}

void eng_drain(eng_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->draining = true;
    pthread_mutex_unlock(&g->lock);
}

void eng_stats(eng_engine *g, struct eng_stats *s)
{
    pthread_mutex_lock(&g->lock);
    *s = g->stats;
    s->waiting = g->n_waiting;
    s->waiting_tokens = g->waiting_tokens;
    pthread_mutex_unlock(&g->lock);
    s->seqs_max = g->c.seqs;
    s->weight_bytes = g->weight_bytes;
    s->activation_bytes = g->activation_bytes;
    s->ram_max = g->c.ram_max;
    s->n_drives = 0;
    if (!g->weights) /* a device has them all */
        return;
    s->weight_failing = off_weights_failing(g->weights);
    struct off_drive_stats d;
    for (s->n_drives = 0; s->n_drives < ENG_DRIVES_MAX && off_weights_drive(g->weights, s->n_drives, &d); s->n_drives++) {
        struct eng_drive *x = &s->drives[s->n_drives];
        *x = (struct eng_drive){.bytes = d.bytes, .reads = d.reads, .errors = d.errors};
        snprintf(x->dir, sizeof x->dir, "%s", d.dir);
        snprintf(x->reading, sizeof x->reading, "%s", d.reading);
    }
}

static void put_digest(struct buf *b, const char *key, const void *p, size_t n)
{
    uint8_t d[HASH_BYTES];
    char hex[2 * HASH_BYTES + 1];
    hash_sha256(p, n, d);
    hash_hex(d, sizeof d, hex);
    buf_printf(b, ",\"%s\":\"%s\"", key, hex);
}

int eng_describe(const eng_engine *g, struct buf *b, struct err *e)
{
    const struct eng_model *m = g->model;
    struct buf tok;
    buf_init(&tok, 256u << 20);
    int rc = eng_tok_save(m->tok, &tok, e);
    if (rc) {
        buf_free(&tok);
        return rc;
    }
    buf_char(b, '{');
    eng_put_names(b, m->id, m->aliases);
    buf_printf(b, ",\"ctx\":%u,\"ctx_trained\":%u,\"seqs\":%u,\"vocab\":%u,\"page_tokens\":%u,\"queue_max\":%u,\"queue_tokens_max\":%llu", g->c.ctx,
               m->plan->ctx, g->c.seqs, eng_tok_count(m->tok), g->c.page_tokens, g->c.queue_max, (unsigned long long)g->c.queue_tokens_max);
    buf_printf(b, ",\"kv_type\":\"%s\",\"numerics\":\"%s\",\"sheet\":", krn_types[g->c.kv_type].name, eng_numerics(g));
    json_put_cstr(b, m->plan->sheet);
    put_digest(b, "tokenizer", tok.data, tok.len);
    if (m->template_text)
        put_digest(b, "template", m->template_text, m->template_len);
    size_t n;
    const int32_t *eos = eng_tok_eos(m->tok, &n);
    buf_str(b, ",\"eos\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%d", i ? "," : "", eos[i]);
    char hex[2 * HASH_BYTES + 1];
    hash_hex(m->fingerprint, HASH_BYTES, hex);
    buf_printf(b, "],\"fingerprint\":\"%s\",\"temperature\":%.9g,\"top_p\":%.9g,\"top_k\":%d,\"special_tokens\":", hex,
               (double)m->temperature, (double)m->top_p, m->top_k);
    json_put(b, m->special_tokens);
    buf_str(b, ",\"format\":");
    json_put(b, m->format_text);
    buf_char(b, '}');
    buf_free(&tok);
    return b->failed ? err_set(e, ERR_NOMEM, "engine description") : ERR_OK;
}
