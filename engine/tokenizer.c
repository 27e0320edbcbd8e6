/* engine/tokenizer.c - the tokenizer's front: opening, looking up, encoding around added tokens.
 *
 * A text goes through: added tokens with normalized = false, found on the raw text; the stretches between them are normalised;
 * added tokens with normalized = true, found there; the stretches between those are split and merged. */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tok_internal.h"

enum { TEXT_MAX = 1 << 30, TEXT_PAYS_CACHE = 2048 };

/* ---- ids ---------------------------------------------------------------------------------------------------- */
void eng_ids_free(struct eng_ids *ids)
{
    free(ids->v);
    ids->v = NULL;
    ids->n = ids->cap = 0;
}

int eng_ids_push(struct eng_ids *ids, int32_t id, struct err *e)
{
    if (ids->n >= ids->max)
        return err_set(e, ERR_LIMIT, "more than %zu tokens", ids->max);
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        if (cap > ids->max)
            cap = ids->max;
        int32_t *v = realloc(ids->v, cap * sizeof *v);
        if (!v)
            return err_set(e, ERR_NOMEM, "%zu tokens", cap);
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return ERR_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */
int eng_tok_open_json(eng_tok **out, const char *json, size_t n, const char *config, size_t config_n, struct err *e)
{
    struct tok_def d;
    int rc = tok_def_init(&d, e);
    *out = NULL;
    if (!rc)
        rc = tok_read_json(&d, json, n, config, config_n, e);
    if (!rc)
        return tok_build(out, &d, e);
    tok_def_free(&d);
    return rc;
}

/* ---- looking up --------------------------------------------------------------------------------------------- */
uint32_t eng_tok_count(const eng_tok *t)
{
    return t->d.n_ids;
}

static bool exists(const eng_tok *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->d.n_ids && t->d.pieces[id].used;
}

const char *eng_tok_piece(const eng_tok *t, int32_t id, size_t *n)
{
    if (!exists(t, id))
        return NULL;
    *n = t->d.pieces[id].n;
    return t->d.pool.data + t->d.pieces[id].off;
}

int32_t eng_tok_find(const eng_tok *t, const char *piece, size_t n)
{
    return tok_map_find(t, &t->by_piece, false, piece, n);
}

static bool control(const struct tok_added *a)
{
    return (a->flags & (TOK_SPECIAL | TOK_IN_TEMPLATE)) != 0;
}

bool eng_tok_is_control(const eng_tok *t, int32_t id)
{
    return exists(t, id) && t->added_of[id] >= 0 && control(&t->d.added[t->added_of[id]]);
}

bool eng_tok_is_special(const eng_tok *t, int32_t id)
{
    return exists(t, id) && t->added_of[id] >= 0 && (t->d.added[t->added_of[id]].flags & TOK_SPECIAL);
}

void eng_tok_mark_template(eng_tok *t, const char *tmpl, size_t n)
{
    for (uint32_t i = 0; i < t->d.n_added; i++) {
        struct tok_added *a = &t->d.added[i];
        bool blank = true;
        for (size_t k = 0; blank && k < a->n; k += tok_utf8_len((uint8_t)a->s[k]))
            blank = tok_is_space(tok_utf8_at(a->s + k));
        if (!blank && n >= a->n && memmem(tmpl, n, a->s, a->n))
            a->flags |= TOK_IN_TEMPLATE;
    }
}

int32_t eng_tok_bos(const eng_tok *t)
{
    return t->d.bos;
}

const int32_t *eng_tok_eos(const eng_tok *t, size_t *n)
{
    *n = t->d.n_eos;
    return t->d.eos;
}

void eng_tok_set_eos(eng_tok *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (exists(t, ids[i]))
            tok_def_eos(&t->d, ids[i]);
}

/* ---- one call ----------------------------------------------------------------------------------------------- */
int tok_run_open(struct tok_run *r, const eng_tok *t, size_t text_bytes, struct eng_ids *ids, struct err *e)
{
    memset(r, 0, sizeof *r);
    r->t = t;
    r->ids = ids;
    r->e = e;
    for (unsigned i = 0; i < TOK_OPS_MAX; i++)
        buf_init(&r->level[i], TEXT_MAX);
    buf_init(&r->norm[0], TEXT_MAX);
    buf_init(&r->norm[1], TEXT_MAX);
    uint32_t slots = text_bytes < 16384 ? 1024 : text_bytes < 131072 ? 4096 : 16384;
    r->cache_mask = slots - 1;
    if (text_bytes >= TEXT_PAYS_CACHE && t->d.model == TOK_BPE && !(r->cache = aligned_alloc(64, slots * sizeof *r->cache)))
        return err_set(e, ERR_NOMEM, "tokenizer: word cache");
    if (r->cache)
        memset(r->cache, 0, slots * sizeof *r->cache);
    return tok_re_open(r);
}

void tok_run_close(struct tok_run *r)
{
    for (unsigned i = 0; i < TOK_OPS_MAX; i++) {
        pcre2_match_data_free(r->md[i]);
        buf_free(&r->level[i]);
    }
    pcre2_match_data_free(r->norm_md);
    pcre2_match_context_free(r->mc);
    pcre2_jit_stack_free(r->stack);
    buf_free(&r->norm[0]);
    buf_free(&r->norm[1]);
    free(r->sym);
    free(r->heap);
    free(r->uni);
    free(r->cache);
}

/* ---- added tokens ------------------------------------------------------------------------------------------- */
static bool trusted(const struct tok_run *r, size_t b, size_t e)
{
    size_t lo = 0, hi = r->n_spans;
    while (lo + 1 < hi) {                          /* the last span that begins at or before b */
        size_t mid = (lo + hi) / 2;
        if (r->spans[mid].begin <= b)
            lo = mid;
        else
            hi = mid;
    }
    for (; lo < r->n_spans && r->spans[lo].begin < e; lo++)
        if (!r->spans[lo].trusted && r->spans[lo].end > b && r->spans[lo].end > r->spans[lo].begin)
            return false;
    return true;
}

/* pass 0 is the raw text, 1 a normalised stretch. A token that is normalised first is looked for in pass 1, except a control
 * token in spans whose text changes there: trust is known by raw offsets, so it is looked for in the raw text. */
static bool in_pass(const struct tok_run *r, const struct tok_added *a, int pass)
{
    bool late = (a->flags & TOK_NORMALIZED) != 0;
    if (late && r->mode == TOK_MODE_SPANS && r->t->d.n_norm && control(a))
        late = false;
    return late == (pass == 1);
}

static bool allowed(const struct tok_run *r, const struct tok_added *a, size_t b, size_t e)
{
    if (!control(a) || r->mode == TOK_MODE_ALL)
        return true;
    return r->mode == TOK_MODE_SPANS && trusted(r, b, e);
}

static bool word_char(uint32_t c)
{
    return c == '_' || tok_is_word(c);
}

static const char *char_before(const char *s, const char *p)
{
    do
        p--;
    while (p > s && ((uint8_t)*p & 0xC0) == 0x80);
    return p;
}

static bool alone(const char *s, size_t n, size_t b, size_t e)
{
    return (b == 0 || !word_char(tok_utf8_at(char_before(s, s + b)))) && (e == n || !word_char(tok_utf8_at(s + e)));
}

struct match { size_t b, e; const struct tok_added *a; /* NULL: a control token in user text, to be encoded as text */ };

/* The longest token that begins at s[at] and belongs to this pass. One that may not be recognised here hides what lies in it, as
 * in the reference; but where it would cross from user text into the template, shorter and later ones still count. */
static const struct tok_added *longest(struct tok_run *r, const struct tok_trie *tr, int pass, size_t base, const char *s, size_t n,
                                       size_t at, size_t *end, size_t *hidden)
{
    const struct tok_added *best = NULL, *found = NULL;
    size_t best_end = at, found_end = at;
    uint32_t node = 0;
    for (size_t i = at; i < n && (node = tok_trie_step(tr, node, (uint8_t)s[i])); i++, r->work++) {
        if (tr->value[node] < 0)
            continue;
        const struct tok_added *a = &r->t->d.added[tr->value[node]];
        if (!in_pass(r, a, pass))
            continue;
        found = a;
        found_end = i + 1;
        if (allowed(r, a, base + at, base + i + 1)) {
            best = a;
            best_end = i + 1;
        }
    }
    *end = best_end;
    *hidden = at;
    if (!found || found == best)
        return best;
    bool crosses = r->mode == TOK_MODE_SPANS;
    for (size_t i = at; crosses && i < found_end; i++)
        if (trusted(r, base + i, base + i + 1))
            return best;
    *hidden = found_end;
    return NULL;
}

/* The next added token at or behind *at; what the reference skips (see longest) is skipped. */
static bool next_added(struct tok_run *r, int pass, size_t base, const char *s, size_t n, size_t from, size_t at, struct match *m)
{
    const struct tok_trie *tr = pass ? &r->t->norm_trie : &r->t->raw_trie;
    while (at < n) {
        size_t end, hidden;
        if (!tr->first[(uint8_t)s[at]]) {
            at++;
            continue;
        }
        const struct tok_added *a = longest(r, tr, pass, base, s, n, at, &end, &hidden);
        if (!a && hidden > at && r->mode == TOK_MODE_SPANS) {
            *m = (struct match){at, hidden, NULL};
            return true;
        }
        if (!a) {
            at = hidden > at ? hidden : at + 1;
            continue;
        }
        if ((a->flags & TOK_WORD) && !alone(s, n, at, end)) {
            at = end;
            continue;
        }
        *m = (struct match){at, end, a};
        while ((a->flags & TOK_LSTRIP) && m->b > from) {
            const char *p = char_before(s, s + m->b);
            if ((size_t)(p - s) < from || !tok_is_space(tok_utf8_at(p)))
                break;
            m->b = (size_t)(p - s);
        }
        while ((a->flags & TOK_RSTRIP) && m->e < n && tok_is_space(tok_utf8_at(s + m->e)))
            m->e += tok_utf8_len((uint8_t)s[m->e]);
        return true;
    }
    return false;
}

static int around(struct tok_run *r, int pass, size_t base, const char *s, size_t n);

static int stretch(struct tok_run *r, int pass, size_t base, const char *s, size_t n)
{
    if (pass == 1)
        return tok_split(r, s, n);
    int rc = tok_normalise(r, &s, &n);
    if (rc)
        return rc;
    return r->t->has_norm_added && r->mode != TOK_MODE_NONE ? around(r, 1, base, s, n) : tok_split(r, s, n);
}

/* base: where s begins in the whole text; only used where offsets of pass 1 are still raw ones. A control token in user text stays
 * text, but nothing merges across its ends: that is how the reference sanitises messages, and what is around it keeps its ids. */
static int around(struct tok_run *r, int pass, size_t base, const char *s, size_t n)
{
    struct match m;
    size_t from = 0, at = 0;
    int rc = ERR_OK;
    if (pass == 0)
        r->continues = false;
    while (!rc && at < n && next_added(r, pass, base, s, n, from, at, &m)) {
        r->at_start = base + from == 0;
        if (m.b > from) {
            rc = stretch(r, pass, base + from, s + from, m.b - from);
            r->continues = true;
        }
        if (!rc && m.a)
            rc = eng_ids_push(r->ids, m.a->id, r->e);
        else if (!rc)
            rc = stretch(r, pass, base + m.b, s + m.b, m.e - m.b);
        r->continues = !m.a;
        from = m.e;
        at = m.e;
    }
    r->at_start = base + from == 0;
    return rc || from >= n ? rc : stretch(r, pass, base + from, s + from, n - from);
}

int tok_run_text(struct tok_run *r, const char *text, size_t n)
{
    if (n == 0)
        return ERR_OK;
    if (r->mode == TOK_MODE_NONE) {
        r->at_start = true;
        return stretch(r, 0, 0, text, n);
    }
    return around(r, 0, 0, text, n);
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */
static int check_text(const char *text, size_t n, struct err *e)
{
    size_t bad;
    if (n > TEXT_MAX)
        return err_set(e, ERR_LIMIT, "text of %zu bytes, at most %d", n, TEXT_MAX);
    if (!tok_utf8_valid(text, n, &bad))
        return err_set(e, ERR_INVALID, "text is not UTF-8: byte 0x%02x at %zu", (uint8_t)text[bad], bad);
    return ERR_OK;
}

int eng_tok_encode(const eng_tok *t, const char *text, size_t n, unsigned flags, struct eng_ids *ids, struct err *e)
{
    struct tok_run r;
    int rc = check_text(text, n, e);
    if (rc)
        return rc;
    rc = tok_run_open(&r, t, n, ids, e);
    r.mode = flags & ENG_TOK_SPECIAL ? TOK_MODE_ALL : flags & ENG_TOK_ADDED ? TOK_MODE_PLAIN : TOK_MODE_NONE;
    for (unsigned i = 0; !rc && (flags & ENG_TOK_WRAP) && i < t->d.n_head; i++)
        rc = eng_ids_push(ids, t->d.head[i], e);
    if (!rc)
        rc = tok_run_text(&r, text, n);
    for (unsigned i = 0; !rc && (flags & ENG_TOK_WRAP) && i < t->d.n_tail; i++)
        rc = eng_ids_push(ids, t->d.tail[i], e);
    tok_run_close(&r);
    return rc;
}

int eng_tok_encode_spans(const eng_tok *t, const char *text, const struct eng_text_span *spans, size_t n_spans, struct eng_ids *ids, struct err *e)
{
    struct tok_run r;
    size_t n = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].begin != n || spans[i].end < n)
            return err_set(e, ERR_INVALID, "span %zu is [%zu, %zu), expected to begin at %zu", i, spans[i].begin, spans[i].end, n);
        n = spans[i].end;
    }
    int rc = check_text(text, n, e);
    if (rc)
        return rc;
    rc = tok_run_open(&r, t, n, ids, e);
    r.mode = TOK_MODE_SPANS;
    r.spans = spans;
    r.n_spans = n_spans;
    if (!rc)
        rc = tok_run_text(&r, text, n);
    tok_run_close(&r);
    return rc;
}
