/* engine/tok_json.c - tokenizer.json (+ tokenizer_config.json) to a definition.
 *
 * Vocabulary and merges are streamed (hundreds of thousands of strings); the small parts become trees. Every type is named here or
 * refused by its name: a pre-tokenizer silently left out gives fluent, slightly worse text that no smoke test sees. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/tok_internal.h"

enum { JSON_BYTES_MAX = 256 << 20, TREE_MAX = 64 << 20 };

struct in { json_reader *r; struct tok_def *d; struct arena a, one; struct err *e; bool unigram; char type[24]; };

static int broken(struct in *in, const char *what)
{
    return err_set(in->e, ERR_FORMAT, "tokenizer.json: %s", what);
}

static int next(struct in *in, const char **s, size_t *n)
{
    return json_next(in->r, s, n, in->e);
}

/* The value whose first event is ev as a tree. */
static struct json *tree(struct in *in, struct arena *a, int ev, const char *s, size_t n)
{
    struct json *v = NULL, *kid;
    if (ev < 0)
        return NULL;
    switch (ev) {
    case JSON_EV_STRING: v = json_new_str(a, s, n); break;
    case JSON_EV_NUMBER:
        if ((v = json_new(a, JSON_NUMBER)) && (v->s = arena_strdup(a, s, n)))
            v->n = n;
        break;
    case JSON_EV_TRUE: case JSON_EV_FALSE: v = json_new_bool(a, ev == JSON_EV_TRUE); break;
    case JSON_EV_NULL: v = json_new(a, JSON_NULL); break;
    case JSON_EV_ARRAY:
        v = json_new(a, JSON_ARRAY);
        while (v && (ev = next(in, &s, &n)) != JSON_EV_ARRAY_END)
            if (!(kid = tree(in, a, ev, s, n)))
                return NULL;
            else if (!json_push(a, v, kid))
                v = NULL;
        break;
    case JSON_EV_OBJECT:
        v = json_new(a, JSON_OBJECT);
        while (v && (ev = next(in, &s, &n)) == JSON_EV_KEY) {
            char *key = arena_strdup(a, s, n);
            ev = next(in, &s, &n);
            if (!(kid = tree(in, a, ev, s, n)))
                return NULL;
            if (!key || !json_set(a, v, key, kid))
                v = NULL;
        }
        if (v && ev != JSON_EV_OBJECT_END)
            return NULL;
        break;
    default: return NULL;
    }
    if (!v)
        err_set(in->e, ERR_LIMIT, "tokenizer.json: a part larger than %d bytes", TREE_MAX);
    return v;
}

static int value(struct in *in, struct json **v)
{
    const char *s;
    size_t n;
    if (in->e)
        in->e->code = 0;
    int ev = next(in, &s, &n);
    *v = tree(in, &in->a, ev, s, n);
    return *v ? ERR_OK : in->e && in->e->code ? in->e->code : broken(in, "a value is missing");
}

static bool yes(const struct json *v, const char *key)
{
    const struct json *x = json_get(v, key);
    return json_is(x, JSON_BOOL) && x->b;
}

static bool no(const struct json *v, const char *key)   /* present and false */
{
    const struct json *x = json_get(v, key);
    return json_is(x, JSON_BOOL) && !x->b;
}

static int unknown(struct in *in, const char *part, const struct json *v)
{
    const char *type = json_str(json_get(v, "type"));
    return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: %s \"%s\" is not known", part, type ? type : "(without a type)");
}

/* ---- normalizer --------------------------------------------------------------------------------------------- */
static int base64(struct in *in, const char *s, size_t n, char **out, size_t *out_n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t acc = 0;
    unsigned bits = 0;
    if (!(*out = arena_alloc(&in->a, n)))
        return err_set(in->e, ERR_NOMEM, "tokenizer.json: a map of %zu bytes", n);
    *out_n = 0;
    for (size_t i = 0; i < n && s[i] != '='; i++) {
        const char *d = s[i] ? strchr(digits, s[i]) : NULL;
        if (!d)
            return broken(in, "precompiled_charsmap is not base64");
        acc = acc << 6 | (uint32_t)(d - digits);
        if ((bits += 6) >= 8) {
            bits -= 8;
            (*out)[(*out_n)++] = (char)(acc >> bits);
        }
    }
    return ERR_OK;
}

static int norm_op(struct in *in, uint8_t kind, const char *a, size_t an, const char *b, size_t bn)
{
    return tok_def_op(in->d, false, kind, 0, false, a, an, b, bn, in->e);
}

static int normalizer(struct in *in, const struct json *v)
{
    static const struct { const char *name; uint8_t kind; } plain[] = {
        {"NFC", TOK_NORM_NFC}, {"NFD", TOK_NORM_NFD}, {"NFKC", TOK_NORM_NFKC}, {"NFKD", TOK_NORM_NFKD}, {"Lowercase", TOK_NORM_LOWER}};
    const struct json *type = json_get(v, "type"), *x, *y;
    int rc = ERR_OK;
    if (!v || json_is(v, JSON_NULL))
        return ERR_OK;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (json_eq(type, plain[i].name))
            return norm_op(in, plain[i].kind, NULL, 0, NULL, 0);
    if (json_eq(type, "Sequence")) {
        const struct json *l = json_get(v, "normalizers");
        for (size_t i = 0; !rc && json_is(l, JSON_ARRAY) && i < l->n; i++)
            rc = normalizer(in, l->items[i]);
        return rc;
    }
    if (json_eq(type, "Prepend") && json_is(x = json_get(v, "prepend"), JSON_STRING))
        return norm_op(in, TOK_NORM_PREPEND, x->s, x->n, NULL, 0);
    if (json_eq(type, "Replace") && json_is(y = json_get(v, "content"), JSON_STRING)) {
        if (json_is(x = json_path(v, "pattern.String"), JSON_STRING) && x->n)
            return norm_op(in, TOK_NORM_REPLACE, x->s, x->n, y->s, y->n);
        if (json_is(x = json_path(v, "pattern.Regex"), JSON_STRING))
            return norm_op(in, TOK_NORM_REPLACE_RE, x->s, x->n, y->s, y->n);
    }
    if (json_eq(type, "Strip")) {
        if (!no(v, "strip_left"))
            rc = norm_op(in, TOK_NORM_STRIP_LEFT, NULL, 0, NULL, 0);
        return rc || no(v, "strip_right") ? rc : norm_op(in, TOK_NORM_STRIP_RIGHT, NULL, 0, NULL, 0);
    }
    if (json_eq(type, "Precompiled") && json_is(x = json_get(v, "precompiled_charsmap"), JSON_STRING)) {
        char *map = NULL;
        size_t n = 0;
        rc = base64(in, x->s, x->n, &map, &n);
        return rc ? rc : norm_op(in, TOK_NORM_PRECOMPILED, map, n, NULL, 0);
    }
    return unknown(in, "normalizer", v);
}

/* ---- pre-tokenizer ------------------------------------------------------------------------------------------ */
static int split_op(struct in *in, uint8_t kind, uint8_t how, bool invert, const char *a, size_t an, const char *b, size_t bn)
{
    return tok_def_op(in->d, true, kind, how, invert, a, an, b, bn, in->e);
}

static int split(struct in *in, const struct json *v)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const struct json *x, *how = json_get(v, "behavior");
    for (uint8_t k = 0; k < 5; k++) {
        if (!json_eq(how, names[k]))
            continue;
        if (json_is(x = json_path(v, "pattern.Regex"), JSON_STRING))
            return split_op(in, TOK_SPLIT_RE, k, yes(v, "invert"), x->s, x->n, NULL, 0);
        if (json_is(x = json_path(v, "pattern.String"), JSON_STRING) && x->n)
            return split_op(in, TOK_SPLIT_STRING, k, yes(v, "invert"), x->s, x->n, NULL, 0);
        return broken(in, "pre_tokenizer Split: expected a pattern String or Regex");
    }
    const char *s = json_str(how);
    return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: pre_tokenizer Split: behavior \"%s\" is not known", s ? s : "");
}

static int byte_level(struct in *in, const struct json *v)
{
    const char *gpt2 = tok_known_pattern(TOK_RE_GPT2);
    int rc = ERR_OK;
    in->d->flags |= TOK_BYTE_LEVEL;
    if (!no(v, "add_prefix_space"))
        rc = split_op(in, TOK_SPLIT_SPACE_PREFIX, 0, false, NULL, 0, NULL, 0);
    return rc || no(v, "use_regex") ? rc : split_op(in, TOK_SPLIT_RE, TOK_ISOLATED, false, gpt2, strlen(gpt2), NULL, 0);
}

static int metaspace(struct in *in, const struct json *v)
{
    const struct json *mark = json_get(v, "replacement"), *scheme = json_get(v, "prepend_scheme");
    char how[2] = {'a', no(v, "split") ? 'n' : 'y'};
    if (!json_is(mark, JSON_STRING) || mark->n == 0)
        return broken(in, "pre_tokenizer Metaspace: expected a replacement");
    if (json_eq(scheme, "never") || (!scheme && no(v, "add_prefix_space")))
        how[0] = 'n';
    else if (json_eq(scheme, "first"))
        how[0] = 'f';
    else if (scheme && !json_eq(scheme, "always"))
        return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: Metaspace prepend_scheme is not known");
    return split_op(in, TOK_SPLIT_META, 0, false, mark->s, mark->n, how, 2);
}

static int pre_tokenizer(struct in *in, const struct json *v)
{
    const struct json *type = json_get(v, "type");
    int rc = ERR_OK;
    if (!v || json_is(v, JSON_NULL))
        return ERR_OK;
    if (json_eq(type, "Sequence")) {
        const struct json *l = json_get(v, "pretokenizers");
        for (size_t i = 0; !rc && json_is(l, JSON_ARRAY) && i < l->n; i++)
            rc = in->d->flags & TOK_BYTE_LEVEL ? broken(in, "a pre_tokenizer behind ByteLevel") : pre_tokenizer(in, l->items[i]);
        return rc;
    }
    if (json_eq(type, "Split"))
        return split(in, v);
    if (json_eq(type, "ByteLevel"))
        return byte_level(in, v);
    if (json_eq(type, "Metaspace"))
        return metaspace(in, v);
    if (json_eq(type, "Digits"))
        return yes(v, "individual_digits") ? split_op(in, TOK_SPLIT_RE, TOK_ISOLATED, false, "\\p{N}", 5, NULL, 0)
                                           : split_op(in, TOK_SPLIT_RE, TOK_ISOLATED, false, "\\p{N}+", 6, NULL, 0);
    return unknown(in, "pre_tokenizer", v);
}

/* ---- post-processor ----------------------------------------------------------------------------------------- */
static int wrap_ids(struct in *in, const struct json *v, const char *name, int32_t *list, unsigned *n)
{
    const struct json *ids = json_get(json_get(json_get(v, "special_tokens"), name), "ids");
    for (size_t i = 0; json_is(ids, JSON_ARRAY) && i < ids->n; i++) {
        int64_t id;
        if (!json_int(ids->items[i], &id) || id < 0 || id > INT32_MAX)
            return broken(in, "post_processor: an id of special_tokens is no id");
        if (*n == TOK_WRAP_MAX)
            return err_set(in->e, ERR_LIMIT, "tokenizer.json: post_processor adds more than %d tokens", TOK_WRAP_MAX);
        list[(*n)++] = (int32_t)id;
    }
    return ids ? ERR_OK : err_set(in->e, ERR_FORMAT, "tokenizer.json: post_processor names \"%s\", which special_tokens lacks", name);
}

static int post_processor(struct in *in, const struct json *v)
{
    const struct json *type = json_get(v, "type");
    struct tok_def *d = in->d;
    int rc = ERR_OK;
    if (!v || json_is(v, JSON_NULL) || json_eq(type, "ByteLevel"))
        return ERR_OK;
    if (json_eq(type, "Sequence")) {
        const struct json *l = json_get(v, "processors");
        for (size_t i = 0; !rc && json_is(l, JSON_ARRAY) && i < l->n; i++)
            rc = post_processor(in, l->items[i]);
        return rc;
    }
    if (!json_eq(type, "TemplateProcessing"))
        return unknown(in, "post_processor", v);
    const struct json *single = json_get(v, "single");
    bool behind = false;
    for (size_t i = 0; !rc && json_is(single, JSON_ARRAY) && i < single->n; i++) {
        const char *name = json_str(json_path(single->items[i], "SpecialToken.id"));
        if (json_get(single->items[i], "Sequence"))
            behind = true;
        else if (!name)
            rc = broken(in, "post_processor: expected Sequence or SpecialToken");
        else
            rc = behind ? wrap_ids(in, v, name, d->tail, &d->n_tail) : wrap_ids(in, v, name, d->head, &d->n_head);
    }
    return rc;
}

/* ---- decoder ------------------------------------------------------------------------------------------------ */
static int decoder(struct in *in, const struct json *v)
{
    const struct json *type = json_get(v, "type");
    int64_t start = 0, stop = 0;
    int rc = ERR_OK;
    if (json_eq(type, "Sequence")) {
        const struct json *l = json_get(v, "decoders");
        for (size_t i = 0; !rc && json_is(l, JSON_ARRAY) && i < l->n; i++)
            rc = decoder(in, l->items[i]);
        return rc;
    }
    if (json_eq(type, "ByteLevel"))
        in->d->flags |= TOK_DEC_BYTES;
    else if (json_eq(type, "ByteFallback"))
        in->d->flags |= TOK_DEC_FALLBACK;
    else if (json_eq(type, "Metaspace") && json_eq(json_get(v, "replacement"), "\xE2\x96\x81"))
        in->d->flags |= TOK_DEC_SPACE | (json_eq(json_get(v, "prepend_scheme"), "never") || no(v, "add_prefix_space") ? 0u : TOK_DEC_FIRST);
    else if (json_eq(type, "Replace") && json_eq(json_path(v, "pattern.String"), "\xE2\x96\x81") && json_eq(json_get(v, "content"), " "))
        in->d->flags |= TOK_DEC_SPACE;
    else if (json_eq(type, "Strip") && json_eq(json_get(v, "content"), " ") && json_int(json_get(v, "start"), &start) && start == 1 &&
             json_int(json_get(v, "stop"), &stop) && stop == 0)
        in->d->flags |= TOK_DEC_STRIP;
    else if (!json_eq(type, "Fuse"))
        return unknown(in, "decoder", v);
    return ERR_OK;
}

/* ---- added tokens, vocabulary, merges ----------------------------------------------------------------------- */
static int added(struct in *in)
{
    const char *s;
    size_t n;
    int ev = next(in, &s, &n), rc = ERR_OK;
    if (ev == JSON_EV_NULL)
        return ERR_OK;
    if (ev != JSON_EV_ARRAY)
        return ev < 0 ? in->e->code : broken(in, "added_tokens: expected an array");
    while (!rc && (ev = next(in, &s, &n)) == JSON_EV_OBJECT) {
        struct json *v = tree(in, &in->one, ev, s, n);
        const struct json *text = json_get(v, "content");
        int64_t id;
        if (!v)
            return in->e->code;
        if (!json_is(text, JSON_STRING) || !json_int(json_get(v, "id"), &id) || id < 0 || id > INT32_MAX)
            return broken(in, "added_tokens: expected id and content");
        rc = tok_def_added(in->d, (int32_t)id, text->s, text->n,
                           (yes(v, "special") ? TOK_SPECIAL : 0u) | (yes(v, "normalized") ? TOK_NORMALIZED : 0u) | (yes(v, "lstrip") ? TOK_LSTRIP : 0u) |
                           (yes(v, "rstrip") ? TOK_RSTRIP : 0u) | (yes(v, "single_word") ? TOK_WORD : 0u), in->e);
        arena_reset(&in->one);
    }
    return rc ? rc : ev == JSON_EV_ARRAY_END ? ERR_OK : ev < 0 ? in->e->code : broken(in, "added_tokens: expected objects");
}

static bool number_id(const char *s, size_t n, uint32_t *id)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9' || n > 9)
            return false;
        v = v * 10 + (uint64_t)(s[i] - '0');
    }
    *id = (uint32_t)v;
    return n > 0;
}

static int vocab_object(struct in *in, struct buf *key)
{
    const char *s;
    size_t n;
    int ev, rc = ERR_OK;
    uint32_t id;
    while (!rc && (ev = next(in, &s, &n)) == JSON_EV_KEY) {
        buf_reset(key);
        if (!buf_add(key, s, n))
            return err_set(in->e, ERR_LIMIT, "tokenizer.json: a piece of %zu bytes", n);
        if ((ev = next(in, &s, &n)) < 0)
            return in->e->code;
        if (ev != JSON_EV_NUMBER || !number_id(s, n, &id))
            return err_set(in->e, ERR_FORMAT, "tokenizer.json: the id of \"%s\" is no id", key->data);
        rc = tok_def_piece(in->d, id, key->data, key->len, 0, in->e);
    }
    return rc ? rc : ev == JSON_EV_OBJECT_END ? ERR_OK : in->e->code;
}

static int vocab_array(struct in *in, struct buf *key)
{
    const char *s;
    size_t n;
    int ev, rc = ERR_OK;
    for (uint32_t id = 0; !rc && (ev = next(in, &s, &n)) == JSON_EV_ARRAY; id++) {
        char num[64], *end;
        if ((ev = next(in, &s, &n)) != JSON_EV_STRING)
            return ev < 0 ? in->e->code : broken(in, "vocab: expected [piece, score]");
        buf_reset(key);
        if (!buf_add(key, s, n))
            return err_set(in->e, ERR_LIMIT, "tokenizer.json: a piece of %zu bytes", n);
        if ((ev = next(in, &s, &n)) != JSON_EV_NUMBER || n >= sizeof num)
            return ev < 0 ? in->e->code : broken(in, "vocab: expected [piece, score]");
        memcpy(num, s, n);
        num[n] = 0;
        double score = strtod(num, &end);
        if (!isfinite(score))
            return broken(in, "vocab: a score is not finite");
        rc = tok_def_piece(in->d, id, key->data, key->len, score, in->e);
        if (!rc && (ev = next(in, &s, &n)) != JSON_EV_ARRAY_END)
            return ev < 0 ? in->e->code : broken(in, "vocab: expected [piece, score]");
    }
    return rc ? rc : ev == JSON_EV_ARRAY_END ? ERR_OK : ev < 0 ? in->e->code : broken(in, "vocab: expected [piece, score]");
}

static int vocab(struct in *in)
{
    const char *s;
    size_t n;
    struct buf key;
    int ev = next(in, &s, &n), rc;
    buf_init(&key, 1 << 20);
    buf_reserve(&key, 256);
    in->unigram = ev == JSON_EV_ARRAY;
    rc = ev == JSON_EV_OBJECT ? vocab_object(in, &key) : ev == JSON_EV_ARRAY ? vocab_array(in, &key)
         : ev < 0 ? in->e->code : broken(in, "model.vocab: expected an object or an array");
    buf_free(&key);
    return rc;
}

static int merges(struct in *in)
{
    const char *s;
    size_t n, n_left;
    char left[4096];
    int ev = next(in, &s, &n), rc = ERR_OK;
    if (ev != JSON_EV_ARRAY)
        return ev < 0 ? in->e->code : broken(in, "model.merges: expected an array");
    while (!rc && (ev = next(in, &s, &n)) != JSON_EV_ARRAY_END) {
        if (ev == JSON_EV_STRING)
            rc = tok_def_merge_line(in->d, s, n, in->e);
        else if (ev == JSON_EV_ARRAY && (ev = next(in, &s, &n_left)) == JSON_EV_STRING && n_left <= sizeof left) {
            memcpy(left, s, n_left);
            if ((ev = next(in, &s, &n)) == JSON_EV_STRING)
                rc = tok_def_merge_text(in->d, left, n_left, s, n, in->e);
            if (ev != JSON_EV_STRING || (!rc && (ev = next(in, &s, &n)) != JSON_EV_ARRAY_END))
                return ev < 0 ? in->e->code : broken(in, "model.merges: expected [left, right]");
        } else
            return ev < 0 ? in->e->code : broken(in, "model.merges: expected \"left right\" or [left, right]");
    }
    return rc;
}

/* ---- model and the whole ------------------------------------------------------------------------------------ */
/* What must be absent, null, false or empty; anything else changes the ids in a way that is not implemented. */
static int must_be_empty(struct in *in, const char *key, const struct json *v)
{
    bool empty = json_is(v, JSON_NULL) || (json_is(v, JSON_BOOL) && !v->b) || (json_is(v, JSON_STRING) && v->n == 0);
    double x;
    if (json_num(v, &x) && x == 0)
        empty = true;
    return empty ? ERR_OK : err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: model.%s is set", key);
}

static int model_field(struct in *in, const char *key, struct json **unk)
{
    static const struct { const char *key; unsigned flag; } flags[] = {
        {"fuse_unk", TOK_FUSE_UNK}, {"byte_fallback", TOK_BYTE_FALLBACK}, {"ignore_merges", TOK_IGNORE_MERGES}};
    static const char *const empty[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    struct json *v;
    int rc = value(in, &v);
    if (rc)
        return rc;
    for (size_t i = 0; i < 3; i++) {
        if (!strcmp(key, flags[i].key))
            in->d->flags |= json_is(v, JSON_BOOL) && v->b ? flags[i].flag : 0;
        if (!strcmp(key, empty[i]))
            return must_be_empty(in, key, v);
    }
    if (!strcmp(key, "type"))
        snprintf(in->type, sizeof in->type, "%s", json_str(v) ? json_str(v) : "");
    else if (!strcmp(key, "unk_token") || !strcmp(key, "unk_id"))
        *unk = v;
    return ERR_OK;
}

static int model(struct in *in, struct json **unk)
{
    const char *s;
    size_t n;
    int ev = next(in, &s, &n), rc = ERR_OK;
    if (ev != JSON_EV_OBJECT)
        return ev < 0 ? in->e->code : broken(in, "model: expected an object");
    while (!rc && (ev = next(in, &s, &n)) == JSON_EV_KEY) {
        char key[40];
        snprintf(key, sizeof key, "%.*s", (int)n, s);
        if (!strcmp(key, "vocab"))
            rc = in->d->n_used ? broken(in, "model.vocab appears twice") : vocab(in);
        else if (!strcmp(key, "merges"))
            rc = in->d->n_merge_texts ? broken(in, "model.merges appears twice") : merges(in);
        else
            rc = model_field(in, key, unk);
    }
    return rc ? rc : ev == JSON_EV_OBJECT_END ? ERR_OK : in->e->code;
}

struct parts { struct json *normalizer, *pre, *post, *decoder, *unk; };

static int top(struct in *in, struct parts *p)
{
    const char *s;
    size_t n;
    int ev = next(in, &s, &n), rc = ERR_OK;
    bool has_model = false;
    if (ev != JSON_EV_OBJECT)
        return ev < 0 ? in->e->code : broken(in, "expected an object");
    while (!rc && (ev = next(in, &s, &n)) == JSON_EV_KEY) {
        char key[40];
        struct json *other, **v = &other;
        snprintf(key, sizeof key, "%.*s", (int)n, s);
        if (!strcmp(key, "added_tokens"))
            rc = added(in);
        else if (!strcmp(key, "model")) {
            rc = has_model ? broken(in, "model appears twice") : model(in, &p->unk);
            has_model = true;
        } else {
            v = !strcmp(key, "normalizer") ? &p->normalizer : !strcmp(key, "pre_tokenizer") ? &p->pre
                : !strcmp(key, "post_processor") ? &p->post : !strcmp(key, "decoder") ? &p->decoder : &other;
            rc = value(in, v);
        }
    }
    if (!rc && (ev != JSON_EV_OBJECT_END || (ev = next(in, &s, &n)) != JSON_EV_END))
        return ev < 0 ? in->e->code : broken(in, "text behind the end");
    return rc || has_model ? rc : broken(in, "no model");
}

static int finish(struct in *in, const struct parts *p)
{
    struct tok_def *d = in->d;
    int64_t id;
    int rc;
    if (!strcmp(in->type, "Unigram") || (!in->type[0] && in->unigram))
        d->model = TOK_UNIGRAM;
    else if (!strcmp(in->type, "BPE") || (!in->type[0] && d->n_merge_texts))
        d->model = TOK_BPE;
    else
        return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: model \"%s\" is not known", in->type);
    if (in->unigram != (d->model == TOK_UNIGRAM))
        return broken(in, "model.vocab has the form of another model");
    if (json_is(p->unk, JSON_STRING)) {
        for (uint32_t i = 0; i < d->n_ids && d->unk < 0; i++)
            if (d->pieces[i].used && d->pieces[i].n == p->unk->n && !memcmp(d->pool.data + d->pieces[i].off, p->unk->s, p->unk->n))
                d->unk = (int32_t)i;
        if (d->unk < 0)
            return err_set(in->e, ERR_FORMAT, "tokenizer.json: unk_token \"%s\" is not in the vocabulary", p->unk->s);
    } else if (json_int(p->unk, &id) && id >= 0 && id <= INT32_MAX)
        d->unk = (int32_t)id;
    if (!p->decoder || json_is(p->decoder, JSON_NULL))
        return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: no decoder (pieces joined by spaces)");
    if ((rc = normalizer(in, p->normalizer)) || (rc = pre_tokenizer(in, p->pre)) || (rc = post_processor(in, p->post)) || (rc = decoder(in, p->decoder)))
        return rc;
    if (!(d->flags & TOK_BYTE_LEVEL) != !(d->flags & TOK_DEC_BYTES))
        return err_set(in->e, ERR_UNSUPPORTED, "tokenizer.json: ByteLevel is only one of pre_tokenizer and decoder");
    return ERR_OK;
}

/* ---- tokenizer_config.json ---------------------------------------------------------------------------------- */
static int32_t by_text(const struct tok_def *d, const struct json *v)
{
    const struct json *s = json_is(v, JSON_OBJECT) ? json_get(v, "content") : v;
    if (!json_is(s, JSON_STRING))
        return -1;
    for (uint32_t i = 0; i < d->n_added; i++)
        if (d->added[i].n == s->n && !memcmp(d->added[i].s, s->s, s->n))
            return d->added[i].id;
    for (uint32_t i = 0; i < d->n_ids; i++)
        if (d->pieces[i].used && d->pieces[i].n == s->n && !memcmp(d->pool.data + d->pieces[i].off, s->s, s->n))
            return (int32_t)i;
    return -1;
}

static int config_of(struct tok_def *d, const char *config, size_t n, struct arena *a, struct err *e)
{
    struct json *v;
    struct json_limits lim = {.bytes_max = JSON_BYTES_MAX, .allow_nul = true, .allow_duplicates = true};
    int rc = json_parse(&v, config, n, &lim, a, e);
    if (rc)
        return err_prefix(e, rc, "tokenizer_config.json");
    int32_t bos = by_text(d, json_get(v, "bos_token"));
    d->bos = bos >= 0 ? bos : d->n_head ? d->head[0] : -1;
    tok_def_eos(d, by_text(d, json_get(v, "eos_token")));
    /* A class that is asked for a BOS writes it even where the file's post-processor adds nothing (DeepSeek-V3). */
    if (yes(v, "add_bos_token") && bos >= 0 && d->n_head == 0)
        d->head[d->n_head++] = bos;
    return ERR_OK;
}

int tok_read_json(struct tok_def *d, const char *json, size_t n, const char *config, size_t config_n, struct err *e)
{
    struct err own;
    struct json_limits lim = {.bytes_max = JSON_BYTES_MAX, .allow_nul = true};
    struct in in = {.d = d, .e = e ? e : &own};
    struct parts p = {0};
    struct arena keep;
    int rc;
    arena_init(&in.a, TREE_MAX);
    arena_init(&in.one, 1 << 20);
    arena_init(&keep, TREE_MAX);
    if (!(rc = json_reader_open(&in.r, json, n, &lim, in.e)) && !(rc = top(&in, &p)))
        rc = finish(&in, &p);
    json_reader_close(in.r);
    if (!rc && d->n_head)
        d->bos = d->head[0];
    if (!rc && config && config_n)
        rc = config_of(d, config, config_n, &keep, in.e);
    arena_free(&in.a);
    arena_free(&in.one);
    arena_free(&keep);
    return rc;
}
