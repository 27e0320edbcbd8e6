/* Merging: objects merge by key, null deletes, everything else (arrays too) replaces. `match`, `abstract` and `extends`
 * are a sheet's own: a variant must never inherit the claim on its base's models. */
#include "engine/sheet.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/embedded.h"

#define EXTENDS_MAX 16
#define SHEETS_MAX 512
#define TEXT_MAX (1u << 20)

struct entry { const char *name, *from; struct json *text; };
struct eng_sheets {
    struct arena mem;
    struct entry *v;
    size_t n;
};

static const char *const sections[] = {"sheet", "about", "extends", "abstract", "match", "params", "per_layer", "ropes", "defaults", "model", "blocks",
    "state", "tensors", "parts", "skip", "inert", "keep", "assert", "serve", "say", "tools", "reasoning", "template", "prefix", "anchor", "block_prefix", "config_root"};

static int check_sections(const struct entry *s, struct err *e)
{
    for (size_t i = 0; i < s->text->n; i++) {
        const char *key = s->text->members[i].key;
        bool known = false;
        for (size_t k = 0; k < sizeof sections / sizeof *sections && !known; k++)
            known = !strcmp(sections[k], key);
        if (!known)
            return err_set(e, ERR_FORMAT, "%s: sheet %s has an unknown section `%s`", s->from, s->name, key);
    }
    return ERR_OK;
}

static int add(struct eng_sheets *s, const char *from, const char *text, size_t n, struct err *e)
{
    struct entry x = {NULL, arena_strdup(&s->mem, from, strlen(from)), NULL};
    int rc = json_parse(&x.text, text, n, &json_strict, &s->mem, e);

    if (rc)
        return err_prefix(e, rc, "%s", from);
    if (!(x.name = json_str(json_get(x.text, "sheet"))))
        return err_set(e, ERR_FORMAT, "%s: expected an object with a text `sheet`", from);
    if ((rc = check_sections(&x, e)))
        return rc;
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->v[i].name, x.name)) {
            s->v[i] = x; /* a directory's sheet stands in for the built-in one */
            return ERR_OK;
        }
    if (s->n == SHEETS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d sheets", SHEETS_MAX);
    s->v[s->n++] = x;
    return ERR_OK;
}

/* Two claims on one model are a mistake of the sheets, found before any model is opened. */
static int check_claims(const struct eng_sheets *s, struct err *e)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct json *m = json_get(s->v[i].text, "match");
        for (size_t k = 0; m && k < m->n; k++)
            for (size_t q = 0; q < m->members[k].value->n; q++) {
                const struct json *list = m->members[k].value;
                if (list->type != JSON_OBJECT || list->members[q].value->type != JSON_ARRAY)
                    return err_set(e, ERR_FORMAT, "%s: match.%s must be an object of lists", s->v[i].from, m->members[k].key);
                for (size_t w = 0; w < list->members[q].value->n; w++) {
                    const char *v = json_str(list->members[q].value->items[w]);
                    const char *who = v ? eng_sheets_match(s, m->members[k].key, list->members[q].key, v) : NULL;
                    if (!who || strcmp(who, s->v[i].name))
                        return err_set(e, ERR_FORMAT, "sheets %s and %s both claim %s %s", who ? who : "?", s->v[i].name, list->members[q].key, v ? v : "?");
                }
            }
    }
    return ERR_OK;
}

static int open_empty(struct eng_sheets **out, struct err *e)
{
    struct eng_sheets *s = calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return err_set(e, ERR_NOMEM, "sheets");
    arena_init(&s->mem, 64u << 20);
    if (!(s->v = ARENA_ARRAY(&s->mem, struct entry, SHEETS_MAX))) {
        eng_sheets_close(s);
        return err_set(e, ERR_NOMEM, "sheets");
    }
    *out = s;
    return ERR_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_json(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 5 && !strcmp(d->d_name + n - 5, ".json");
}

static int add_directory(struct eng_sheets *s, const char *dir, struct err *e)
{
    struct dirent **list = NULL;
    int rc = ERR_OK, n = scandir(dir, &list, is_json, by_name);

    if (n < 0)
        return err_set(e, ERR_IO, "cannot list %s: %m", dir);
    for (int i = 0; i < n; i++) {
        struct json *j = NULL;
        struct buf b;
        char *path = arena_printf(&s->mem, "%s/%s", dir, list[i]->d_name);
        buf_init(&b, 2 * TEXT_MAX);
        if (!rc && !(rc = path ? json_parse_file(&j, path, TEXT_MAX, &s->mem, e) : err_set(e, ERR_NOMEM, "sheet path"))) {
            json_put(&b, j);
            rc = b.failed ? err_set(e, ERR_NOMEM, "%s", path) : add(s, path, b.data, b.len, e);
        }
        buf_free(&b);
        free(list[i]);
    }
    free(list);
    return rc;
}

int eng_sheets_open(eng_sheets **out, const char *dir, struct err *e)
{
    eng_sheets *s;
    int rc = open_empty(&s, e);

    *out = NULL;
    if (rc)
        return rc;
    for (const struct embedded *x = sluice_embedded; !rc && x->name; x++)
        if (!strncmp(x->name, "conf/models/", 12))
            rc = add(s, x->name, x->data, (size_t)(x->end - x->data), e);
    if (!rc && dir)
        rc = add_directory(s, dir, e);
    if (!rc)
        rc = check_claims(s, e);
    if (rc)
        eng_sheets_close(s);
    else
        *out = s;
    return rc;
}

int eng_sheets_open_texts(eng_sheets **out, const char *const *texts, size_t n, struct err *e)
{
    eng_sheets *s;
    int rc = open_empty(&s, e);

    *out = NULL;
    for (size_t i = 0; !rc && i < n; i++)
        rc = add(s, "text", texts[i], strlen(texts[i]), e);
    if (!rc)
        rc = check_claims(s, e);
    if (rc)
        eng_sheets_close(s);
    else
        *out = s;
    return rc;
}

void eng_sheets_close(eng_sheets *s)
{
    if (!s)
        return;
    arena_free(&s->mem);
    free(s);
}

size_t eng_sheets_count(const eng_sheets *s) { return s->n; }
const char *eng_sheets_name(const eng_sheets *s, size_t i) { return s->v[i].name; }
bool eng_sheets_abstract(const eng_sheets *s, size_t i)
{
    const struct json *a = json_get(s->v[i].text, "abstract");
    return json_is(a, JSON_BOOL) && a->b;
}

const char *eng_sheets_match(const eng_sheets *s, const char *kind, const char *key, const char *value)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct json *list = json_get(json_get(json_get(s->v[i].text, "match"), kind), key);
        for (size_t k = 0; json_is(list, JSON_ARRAY) && k < list->n; k++)
            if (json_eq(list->items[k], value))
                return s->v[i].name;
    }
    return NULL;
}

/* ---- merging ---------------------------------------------------------------------------------------------- */
static struct json *merge(struct arena *a, const struct json *base, const struct json *over)
{
    struct json *r = json_new(a, JSON_OBJECT);

    for (size_t i = 0; r && i < (base ? base->n : 0); i++) {
        const struct json_member *m = &base->members[i];
        const struct json *v = json_get_n(over, m->key, m->key_len);
        if (v && v->type == JSON_NULL)
            continue;
        if (v && v->type == JSON_OBJECT && m->value->type == JSON_OBJECT)
            v = merge(a, m->value, v);
        else if (!v)
            v = m->value;
        if (!v || !json_set(a, r, m->key, v))
            return NULL;
    }
    for (size_t i = 0; r && i < over->n; i++) {
        const struct json_member *m = &over->members[i];
        if (m->value->type == JSON_NULL || json_get_n(base, m->key, m->key_len))
            continue;
        const struct json *v = m->value->type == JSON_OBJECT ? merge(a, NULL, m->value) : m->value;
        if (!v || !json_set(a, r, m->key, v))
            return NULL;
    }
    return r;
}

static struct json *own_only(struct arena *a, const struct json *text)
{
    static const char *const own[] = {"match", "abstract", "extends", "about"};
    struct json *r = json_new(a, JSON_OBJECT);

    for (size_t i = 0; r && i < text->n; i++) {
        bool keep = true;
        for (size_t k = 0; k < sizeof own / sizeof *own; k++)
            keep = keep && strcmp(own[k], text->members[i].key);
        if (keep && !json_set(a, r, text->members[i].key, text->members[i].value))
            return NULL;
    }
    return r;
}

static int merge_in(const eng_sheets *s, const char *name, struct arena *a, struct json **acc, unsigned depth, struct err *e)
{
    const struct json *text = NULL, *ext;
    struct json *own;
    int rc = ERR_OK;

    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->v[i].name, name))
            text = s->v[i].text;
    if (!text)
        return err_set(e, ERR_NOTFOUND, "no sheet `%s`", name);
    if (depth > EXTENDS_MAX)
        return err_set(e, ERR_FORMAT, "sheet %s: `extends` goes in a circle or deeper than %d", name, EXTENDS_MAX);
    ext = json_get(text, "extends");
    if (json_is(ext, JSON_STRING))
        rc = merge_in(s, ext->s, a, acc, depth + 1, e);
    for (size_t i = 0; !rc && json_is(ext, JSON_ARRAY) && i < ext->n; i++) {
        if (!json_str(ext->items[i]))
            return err_set(e, ERR_FORMAT, "sheet %s: `extends` must be names", name);
        rc = merge_in(s, ext->items[i]->s, a, acc, depth + 1, e);
    }
    if (rc)
        return rc == ERR_NOTFOUND ? err_prefix(e, rc, "sheet %s extends", name) : rc;
    if (!(own = own_only(a, text)) || !(*acc = merge(a, *acc, own)))
        return err_set(e, ERR_NOMEM, "sheet %s", name);
    return ERR_OK;
}

int eng_sheets_merge(const eng_sheets *s, const char *name, struct arena *a, const struct json **out, struct err *e)
{
    struct json *acc = NULL;
    int rc = merge_in(s, name, a, &acc, 0, e);

    *out = acc;
    return rc;
}
