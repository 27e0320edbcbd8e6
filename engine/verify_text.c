/* Perplexity of one text on the path in use beside that of the same weights expanded to f32: what quantised activations and shorter keys
 * cost in the end. The text is one sequence from position 0; every token but the first is predicted from those before it. */
#include "engine/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/verify_internal.h"

#define TOKENS_MAX 4096
#define TEXT_MAX (16u << 20)
#define TOL_PERPLEXITY 5e-3

/* -ln p(id) of a row of logits over the n ids that there are. */
static double surprise(const float *row, uint32_t n, int32_t id)
{
    double top = row[0], sum = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > top)
            top = row[i];
    for (uint32_t i = 0; i < n; i++)
        sum += exp(row[i] - top);
    return log(sum) + top - row[id];
}

static int score(eng_session *s, const struct eng_ids *ids, double *perplexity, struct err *e)
{
    struct eng_model *m = eng_session_model(s);
    uint32_t n_ids = eng_tok_count(m->tok) < m->plan->vocab ? eng_tok_count(m->tok) : m->plan->vocab, chunk = eng_session_config(s)->chunk;
    bool far = m->plan->ctx_switch && ids->n > m->plan->ctx_switch;
    double sum = 0;
    int rc = ERR_OK;
    for (uint32_t at = 0, n; at < ids->n && !rc; at += n) {
        n = ids->n - at < chunk ? (uint32_t)ids->n - at : chunk;
        struct eng_part part = {.pos0 = at, .n = n, .tokens = ids->v + at, .picks = ENG_PICK_ALL, .far = far};
        rc = eng_session_step(s, &part, 1, NULL, NULL, e);
        for (uint32_t i = 0; i < n && at + i + 1 < ids->n && !rc; i++)
            sum += surprise(eng_session_logits(s, i), n_ids, ids->v[at + i + 1]);
    }
    *perplexity = exp(sum / (double)(ids->n - 1));
    return rc;
}

static int encode(eng_session *s, const char *text, size_t n, struct eng_ids *ids, struct err *e)
{
    uint32_t ctx = eng_session_config(s)->ctx < TOKENS_MAX ? eng_session_config(s)->ctx : TOKENS_MAX;
    int rc = eng_tok_encode(eng_session_model(s)->tok, text, n, ENG_TOK_WRAP, ids, e);
    if (!rc && ids->n < 2)
        rc = err_set(e, ERR_FORMAT, "the text has %zu tokens, expected at least 2", ids->n);
    if (ids->n > ctx)
        ids->n = ctx;
    return rc;
}

static int run_path(const struct eng_verify *v, enum krn_precision precision, enum krn_type kv, const char *text, size_t n, double *perplexity, size_t *tokens, struct err *e)
{
    struct eng_config c = v->c;
    struct eng_ids ids = {.max = TEXT_MAX};
    eng_session *s;
    c.precision = precision;
    c.kv_type = kv;
    c.seqs = 1;
    c.chunk = c.chunk ? c.chunk : 128;
    int rc = eng_session_open(&s, &c, c.chunk, e);
    if (!rc && !(rc = encode(s, text, n, &ids, e)))
        rc = score(s, &ids, perplexity, e);
    *tokens = ids.n;
    eng_ids_free(&ids);
    eng_session_close(s);
    return rc;
}

int eng_verify_read_text(const char *path, struct buf *b, struct err *e)
{
    char part[65536];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f)
        return err_set(e, ERR_NOTFOUND, "text %s: not there", path);
    while ((n = fread(part, 1, sizeof part, f)) && buf_add(b, part, n))
        ;
    bool bad = ferror(f) != 0;
    fclose(f);
    return bad || b->failed || !b->len ? err_set(e, ERR_IO, "text %s: cannot be read, is empty or has more than %u bytes", path, TEXT_MAX) : ERR_OK;
}

int eng_verify_text(struct eng_verify *v, const char *path, struct err *e)
{
    double exact = 0, used = 0;
    size_t tokens = 0;
    struct buf b;
    char name[80];
    buf_init(&b, TEXT_MAX);
    int rc = eng_verify_read_text(path, &b, e);
    if (!rc)
        rc = run_path(v, KRN_PREC_F32, KRN_F32, b.data, b.len, &exact, &tokens, e);
    if (!rc)
        rc = run_path(v, KRN_PREC_AUTO, v->c.kv_type, b.data, b.len, &used, &tokens, e);
    if (!rc) {
        if (!v->json)
            fprintf(v->out, "perplexity of %zu tokens: %.4f with activations in f32, %.4f as served\n", tokens, exact, used);
        snprintf(name, sizeof name, "text.perplexity (%zu tokens)", tokens);
        eng_verify_line(v, name, fabs(used / exact - 1), TOL_PERPLEXITY);
    }
    buf_free(&b);
    return rc;
}
