/* engine/tok_verify.c - golden cases: encode four ways, decode two ways, stream. See tests' data README for the format. */
#include "engine/tok_verify.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/tok_internal.h"

enum { FILE_MAX = 512 << 20, ARENA_MAX = 1 << 30 };

struct ctx { const eng_tok *t; FILE *out; struct eng_tok_verdict *v; struct eng_ids got; struct buf text; size_t number; const struct json *c; };

static char *slurp(const char *path, size_t *n, struct err *e)
{
    FILE *f = fopen(path, "rb");
    struct buf b;
    char part[65536];
    size_t k;
    *n = 0;
    if (!f) {
        err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
        return NULL;
    }
    buf_init(&b, FILE_MAX);
    buf_reserve(&b, 1);
    while ((k = fread(part, 1, sizeof part, f)) > 0)
        buf_add(&b, part, k);
    bool bad = ferror(f) || b.failed;
    fclose(f);
    if (bad) {
        err_set(e, ERR_IO, "%s: cannot be read, or has more than %d bytes", path, FILE_MAX);
        buf_free(&b);
        return NULL;
    }
    *n = b.len;
    return b.data;
}

static char *beside(const char *path, const char *name, size_t *n)
{
    const char *slash = strrchr(path, '/');
    char *p = NULL, *text = NULL;
    struct err own;
    if (asprintf(&p, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name) >= 0)
        text = slurp(p, n, &own);
    free(p);
    return text;
}

static int open_gguf(eng_tok **out, const char *path, struct err *e)
{
    off_catalog *c = NULL;
    int rc = off_catalog_open(&c, path, 1, e);
    if (!rc)
        rc = eng_tok_open(out, c, TOK_IDS_MAX, e);
    off_catalog_close(c);
    return rc;
}

int eng_tok_open_file(eng_tok **out, const char *path, struct err *e)
{
    size_t n, config_n = 0;
    char *text = slurp(path, &n, e), *config = NULL;
    int rc;
    *out = NULL;
    if (!text)
        return e ? e->code : ERR_IO;
    size_t at = strspn(text, " \t\r\n");
    if (n >= 4 && !memcmp(text, "GGUF", 4))
        rc = open_gguf(out, path, e);
    else if (at < n && text[at] == '{')
        rc = eng_tok_open_json(out, text, n, NULL, 0, e);
    else {
        struct tok_def d;
        config = beside(path, "tokenizer_config.json", &config_n);
        if (!(rc = tok_def_init(&d, e)) && !(rc = tok_read_tiktoken(&d, text, n, config, config_n, e)))
            rc = tok_build(out, &d, e);
        else
            tok_def_free(&d);
    }
    free(text);
    free(config);
    return rc;
}

/* ---- comparing ---------------------------------------------------------------------------------------------- */
static bool same_ids(const struct eng_ids *got, const struct json *want)
{
    if (!json_is(want, JSON_ARRAY) || want->n != got->n)
        return false;
    for (size_t i = 0; i < got->n; i++) {
        int64_t id;
        if (!json_int(want->items[i], &id) || id != got->v[i])
            return false;
    }
    return true;
}

static void show_ids(FILE *out, const char *what, const struct eng_ids *got, const struct json *want)
{
    fprintf(out, " %s", what);
    for (size_t i = 0; i < 24 && i < (got ? got->n : want->n); i++)
        fprintf(out, " %s", got ? "" : want->items[i]->s), got ? (void)fprintf(out, "%d", got->v[i]) : (void)0;
}

static void fail(struct ctx *c, const char *name, const char *detail)
{
    const struct json *text = json_get(c->c, "text");
    c->v->failed++;
    if (!c->out)
        return;
    struct buf b;
    buf_init(&b, 1 << 20);
    if (json_is(text, JSON_STRING))
        json_put_str(&b, text->s, text->n < 60 ? text->n : 60);
    fprintf(c->out, "tokenizer case %zu %s FAIL %s %s", c->number, name, b.data ? b.data : "", detail);
    buf_free(&b);
}

static bool has_control(const struct ctx *c, const struct json *ids)
{
    for (size_t i = 0; json_is(ids, JSON_ARRAY) && i < ids->n; i++) {
        int64_t id;
        if (json_int(ids->items[i], &id) && id >= 0 && id < INT32_MAX && id != c->t->d.unk && eng_tok_is_control(c->t, (int32_t)id))
            return true;
    }
    return false;
}

static void encode(struct ctx *c, const char *name, const struct json *want, unsigned flags)
{
    const struct json *text = json_get(c->c, "text");
    struct err err = {0};
    if (!want)
        return;
    if (!(flags & ENG_TOK_SPECIAL) && has_control(c, want)) { /* some references' Unigram finds control tokens in plain text */
        c->v->refused++;
        return;
    }
    c->got.n = 0;
    int rc = eng_tok_encode(c->t, text->s, text->n, flags, &c->got, &err);
    if (!rc && same_ids(&c->got, want)) {
        c->v->passed++;
        return;
    }
    fail(c, name, rc ? err.msg : "");
    if (c->out && !rc) {
        show_ids(c->out, "expected", NULL, want);
        show_ids(c->out, "found", &c->got, NULL);
    }
    if (c->out)
        fputc('\n', c->out);
}

static bool same_text(const struct buf *b, const struct json *want)
{
    return json_is(want, JSON_STRING) && b->len == want->n && (want->n == 0 || !memcmp(b->data, want->s, want->n));
}

static void decode(struct ctx *c, const char *name, const struct json *want, bool skip)
{
    const struct json *ids = json_get(c->c, "ids");
    struct eng_detok d;
    if (!want)
        return;
    eng_detok_init(&d);
    buf_reset(&c->text);
    for (size_t i = 0; json_is(ids, JSON_ARRAY) && i < ids->n; i++) {
        int64_t id;
        if (json_int(ids->items[i], &id))
            eng_detok_push(c->t, &d, (int32_t)id, skip, &c->text);
    }
    eng_detok_end(c->t, &d, &c->text);
    if (same_text(&c->text, want)) {
        c->v->passed++;
        return;
    }
    fail(c, name, "found ");
    if (c->out) {
        fwrite(c->text.data, 1, c->text.len < 80 ? c->text.len : 80, c->out);
        fputc('\n', c->out);
    }
}

static void stream(struct ctx *c)
{
    const struct json *ids = json_get(c->c, "ids"), *chunks = json_get(c->c, "chunks"), *skip = json_get(c->c, "skip_special");
    struct eng_detok d;
    bool ok = json_is(ids, JSON_ARRAY) && json_is(chunks, JSON_ARRAY) && chunks->n == ids->n;
    eng_detok_init(&d);
    for (size_t i = 0; ok && i < ids->n; i++) {
        int64_t id = -1;
        buf_reset(&c->text);
        ok = json_int(ids->items[i], &id) && eng_detok_push(c->t, &d, (int32_t)id, json_is(skip, JSON_BOOL) && skip->b, &c->text) == ERR_OK &&
             same_text(&c->text, chunks->items[i]);
    }
    buf_reset(&c->text);
    eng_detok_end(c->t, &d, &c->text);
    if (ok && same_text(&c->text, json_get(c->c, "tail"))) {
        c->v->passed++;
        return;
    }
    fail(c, "stream", "\n");
}

static void one(struct ctx *c)
{
    const struct json *ids = json_get(c->c, "ids"), *plain = json_get(c->c, "ids_plain"), *none = json_get(c->c, "ids_noadded");
    if (json_get(c->c, "chunks")) {
        stream(c);
        return;
    }
    if (!json_is(json_get(c->c, "text"), JSON_STRING) || !ids) {
        fail(c, "format", "a case without text and ids\n");
        return;
    }
    encode(c, "ids", ids, ENG_TOK_SPECIAL);
    encode(c, "ids_with_specials", json_get(c->c, "ids_with_specials"), ENG_TOK_SPECIAL | ENG_TOK_WRAP);
    encode(c, "ids_plain", plain ? plain : ids, ENG_TOK_ADDED);
    encode(c, "ids_noadded", none, 0);
    decode(c, "decoded", json_get(c->c, "decoded"), false);
    decode(c, "decoded_skip_specials", json_get(c->c, "decoded_skip_specials"), true);
}

int eng_tok_verify_with(const eng_tok *t, const char *golden, FILE *out, struct eng_tok_verdict *v, struct err *e)
{
    struct json_limits lim = {.bytes_max = FILE_MAX, .allow_nul = true};
    struct ctx c = {.t = t, .out = out, .v = v, .got = {.max = SIZE_MAX / 8}};
    struct json *all = NULL;
    struct arena a;
    size_t n;
    char *text = slurp(golden, &n, e);
    if (!text)
        return e ? e->code : ERR_IO;
    arena_init(&a, ARENA_MAX);
    buf_init(&c.text, 1 << 28);
    int rc = json_parse(&all, text, n, &lim, &a, e);
    if (!rc && !json_is(all, JSON_ARRAY))
        rc = err_set(e, ERR_FORMAT, "%s: expected an array of cases", golden);
    for (c.number = 0; !rc && c.number < all->n; c.number++) {
        c.c = all->items[c.number];
        one(&c);
    }
    eng_ids_free(&c.got);
    buf_free(&c.text);
    arena_free(&a);
    free(text);
    return rc;
}

int eng_tok_verify(const char *file, const char *golden, FILE *out, struct eng_tok_verdict *v, struct err *e)
{
    eng_tok *t = NULL;
    int rc = eng_tok_open_file(&t, file, e);
    if (!rc)
        rc = eng_tok_verify_with(t, golden, out, v, e);
    eng_tok_close(t);
    return rc;
}
