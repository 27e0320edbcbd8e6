#include "engine/format.h"

#include <string.h>

#define LITERAL_MAX 256

static const struct { const char *word; enum eng_step_kind kind; } fields[] = {
    {"name", ENG_STEP_NAME},       {"id", ENG_STEP_ID},     {"index", ENG_STEP_INDEX}, {"arguments", ENG_STEP_ARGUMENTS}, {"object", ENG_STEP_OBJECT},
    {"members", ENG_STEP_MEMBERS}, {"key", ENG_STEP_KEY},   {"type", ENG_STEP_TYPE},   {"value", ENG_STEP_VALUE}};

#define BIT(k) (1u << (k))
#define ONLY_LITERAL BIT(ENG_STEP_LITERAL)
#define OF_CALL (ONLY_LITERAL | BIT(ENG_STEP_NAME) | BIT(ENG_STEP_ID) | BIT(ENG_STEP_INDEX) | BIT(ENG_STEP_ARGUMENTS) | BIT(ENG_STEP_OBJECT) | BIT(ENG_STEP_MEMBERS))
#define OF_MEMBER (ONLY_LITERAL | BIT(ENG_STEP_KEY) | BIT(ENG_STEP_TYPE) | BIT(ENG_STEP_VALUE))
#define OF_ID (ONLY_LITERAL | BIT(ENG_STEP_NAME) | BIT(ENG_STEP_INDEX))

struct reader { const char *section, *entry; const eng_tok *tok; struct arena *a; struct eng_format *f; struct err *e; };

static int wrong(const struct reader *r, const char *field, const char *expected)
{
    return err_set(r->e, ERR_FORMAT, "%s.%s.%s: expected %s", r->section, r->entry, field, expected);
}

/* ---- markers ----------------------------------------------------------------------------------------------- */

static int add_marker(struct reader *r, int32_t id, const char *s, size_t n)
{
    struct eng_format *f = r->f;
    if (eng_format_is_marker(f, id))
        return ERR_OK;
    if (f->n_markers == ENG_MARKERS_MAX)
        return err_set(r->e, ERR_LIMIT, "%s.%s: more than %d control tokens", r->section, r->entry, ENG_MARKERS_MAX);
    f->marker_text[f->n_markers].s = arena_strdup(r->a, s, n);
    f->marker_text[f->n_markers].n = n;
    if (!f->marker_text[f->n_markers].s)
        return err_set(r->e, ERR_NOMEM, "%s.%s", r->section, r->entry);
    f->markers[f->n_markers++] = id;
    return ERR_OK;
}

/* The longest control token that s begins with; -1: none. */
static int32_t control_at(const eng_tok *tok, const char *s, size_t n)
{
    for (size_t k = n; tok && k > 1; k--) {
        int32_t id = eng_tok_find(tok, s, k);
        if (id >= 0 && eng_tok_is_special(tok, id))
            return id;
    }
    return -1;
}

/* s with ENG_MARK before each control token. */
static int literal(struct reader *r, const char *s, size_t n, struct eng_step *out)
{
    char *p = arena_alloc(r->a, 2 * n + 1);
    size_t at = 0;
    if (!p)
        return err_set(r->e, ERR_NOMEM, "%s.%s", r->section, r->entry);
    *out = (struct eng_step){ENG_STEP_LITERAL, p, 0};
    while (at < n) {
        size_t len = 1;
        int32_t id = control_at(r->tok, s + at, n - at);
        if (id >= 0) {
            eng_tok_piece(r->tok, id, &len);
            int rc = add_marker(r, id, s + at, len);
            if (rc)
                return rc;
            p[out->n++] = ENG_MARK;
        }
        memcpy(p + out->n, s + at, len);
        out->n += len;
        at += len;
    }
    return ERR_OK;
}

bool eng_format_is_marker(const struct eng_format *f, int32_t id)
{
    for (uint32_t i = 0; i < f->n_markers; i++)
        if (f->markers[i] == id)
            return true;
    return false;
}

bool eng_format_marked(const struct eng_pattern *p) { return p->n && p->v[0].kind == ENG_STEP_LITERAL && p->v[0].n && p->v[0].s[0] == ENG_MARK; }

bool eng_format_ends_in(const struct eng_pattern *p, const char *text, size_t n)
{
    const struct eng_step *v = &p->v[0];
    size_t k = p->n ? v->n : 0;
    while (n && strchr(" \n\r\t", text[n - 1]))
        n--;
    while (k && (v->s[k - 1] == ENG_MARK || (n && v->s[k - 1] == text[n - 1])))
        n -= v->s[--k] != ENG_MARK;
    return p->n && !k;
}

/* ---- patterns ---------------------------------------------------------------------------------------------- */

static int add_field(struct reader *r, const char *field, const char *s, size_t n, unsigned allowed, struct eng_pattern *p)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strlen(fields[i].word) == n && !memcmp(fields[i].word, s, n) && (allowed & BIT(fields[i].kind))) {
            if (p->n && p->v[p->n - 1].kind != ENG_STEP_LITERAL)
                return wrong(r, field, "a text between two fields");
            p->v[p->n++] = (struct eng_step){fields[i].kind, NULL, 0};
            return ERR_OK;
        }
    return wrong(r, field, "other fields in braces");
}

static int pattern(struct reader *r, const char *field, const struct json *v, unsigned allowed, struct eng_pattern *p)
{
    const char *s = json_str(v), *end;
    int rc = ERR_OK;
    p->n = 0;
    if (!v)
        return ERR_OK;
    if (!s || !v->n || v->n > LITERAL_MAX)
        return wrong(r, field, "a text of 1 to 256 bytes");
    for (end = s + v->n; s < end && !rc;) {
        const char *open = memchr(s, '{', (size_t)(end - s)), *close = open ? memchr(open, '}', (size_t)(end - open)) : NULL;
        bool is_field = open == s && close && allowed != ONLY_LITERAL;
        if (p->n == ENG_STEPS_MAX)
            return wrong(r, field, "at most 16 parts");
        if (is_field) {
            rc = add_field(r, field, s + 1, (size_t)(close - s - 1), allowed, p);
            s = close + 1;
        } else {
            const char *to = open && allowed != ONLY_LITERAL ? open : end;
            if (to == s)
                return wrong(r, field, "a closing brace");
            rc = literal(r, s, (size_t)(to - s), &p->v[p->n++]);
            s = to;
        }
    }
    return rc;
}

static uint32_t count(const struct eng_pattern *p, enum eng_step_kind k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++)
        n += p->v[i].kind == k;
    return n;
}

/* A call says its function once, before its arguments. */
static int check_call(struct reader *r, const struct eng_pattern *p)
{
    const struct eng_tools_format *t = &r->f->tools;
    uint32_t body = count(p, ENG_STEP_ARGUMENTS) + count(p, ENG_STEP_MEMBERS), whole = count(p, ENG_STEP_OBJECT), said = count(p, ENG_STEP_NAME);
    said += t->id == ENG_ID_PATTERN ? count(p, ENG_STEP_ID) : 0;
    if (whole ? whole != 1 || body || said : body != 1 || said != 1)
        return wrong(r, "call", "{object}, or {name} (or {id}) before {arguments} or {members}");
    for (uint32_t i = 0; !whole && i < p->n; i++) {
        if (p->v[i].kind == ENG_STEP_NAME || p->v[i].kind == ENG_STEP_ID)
            said = 0;
        if (said && (p->v[i].kind == ENG_STEP_ARGUMENTS || p->v[i].kind == ENG_STEP_MEMBERS))
            return wrong(r, "call", "the function before its arguments");
    }
    if (count(p, ENG_STEP_MEMBERS) && (p->v[p->n - 1].kind != ENG_STEP_LITERAL || !t->member.n))
        return wrong(r, "call", "a `member`, and a text after {members}");
    return ERR_OK;
}

static int check_member(struct reader *r, const struct eng_pattern *p)
{
    if (p->n && (count(p, ENG_STEP_KEY) != 1 || count(p, ENG_STEP_VALUE) != 1 || count(p, ENG_STEP_TYPE) > 1 || p->n < 2 || p->v[0].kind != ENG_STEP_LITERAL ||
                 p->v[p->n - 1].kind != ENG_STEP_LITERAL || p->v[p->n - 2].kind != ENG_STEP_VALUE))
        return wrong(r, "member", "a text, {key}, maybe {type}, {value} and a text at the end");
    return ERR_OK;
}

/* ---- entries ----------------------------------------------------------------------------------------------- */

static int check_fields(const struct reader *r, const struct json *o, const char *const *names)
{
    for (size_t i = 0; i < o->n; i++) {
        size_t k = 0;
        while (names[k] && strcmp(names[k], o->members[i].key))
            k++;
        if (!names[k])
            return wrong(r, o->members[i].key, "no such field");
    }
    return ERR_OK;
}

static int read_keys(struct reader *r, const struct json *v)
{
    struct eng_tools_format *t = &r->f->tools;
    t->key_name = "name";
    t->key_arguments = "arguments";
    if (!v)
        return ERR_OK;
    if (!json_is(v, JSON_ARRAY) || v->n != 2 || !json_str(v->items[0]) || !json_str(v->items[1]))
        return wrong(r, "keys", "two texts: of the name and of the arguments");
    t->key_name = arena_strdup(r->a, v->items[0]->s, v->items[0]->n);
    t->key_arguments = arena_strdup(r->a, v->items[1]->s, v->items[1]->n);
    return t->key_name && t->key_arguments ? ERR_OK : err_set(r->e, ERR_NOMEM, "tools");
}

static int read_id(struct reader *r, const struct json *v)
{
    struct eng_tools_format *t = &r->f->tools;
    t->id = !v ? ENG_ID_ANY : json_eq(v, "alnum9") ? ENG_ID_ALNUM9 : ENG_ID_PATTERN;
    if (t->id != ENG_ID_PATTERN)
        return ERR_OK;
    int rc = pattern(r, "id", v, OF_ID, &t->id_pattern);
    if (!rc && count(&t->id_pattern, ENG_STEP_NAME) != 1)
        rc = wrong(r, "id", "\"alnum9\", or a pattern with {name}");
    return rc;
}

static int read_calls(struct reader *r, const char *field, const struct json *v)
{
    struct eng_tools_format *t = &r->f->tools;
    size_t n = json_is(v, JSON_ARRAY) ? v->n : 1;
    int rc = ERR_OK;
    if (!n || n > ENG_CALLS_MAX - t->n_calls)
        return wrong(r, field, "a pattern, or a list: 12 with `leading`");
    for (size_t i = 0; i < n && !rc; i++, t->n_calls++)
        if (!(rc = pattern(r, field, json_is(v, JSON_ARRAY) ? v->items[i] : v, OF_CALL, &t->call[t->n_calls])))
            rc = check_call(r, &t->call[t->n_calls]);
    return rc;
}

static int read_tools(struct reader *r, const struct json *o)
{
    static const char *const names[] = {"name", "when", "begin", "end", "separator", "call", "leading", "member", "id", "keys", "escape", "first_index", NULL};
    struct eng_tools_format *t = &r->f->tools;
    const struct json *call = json_get(o, "call"), *escape = json_get(o, "escape");
    int64_t first = 0;
    int rc;
    if ((rc = check_fields(r, o, names)) || (rc = pattern(r, "begin", json_get(o, "begin"), ONLY_LITERAL, &t->begin)) ||
        (rc = pattern(r, "end", json_get(o, "end"), ONLY_LITERAL, &t->end)) || (rc = pattern(r, "separator", json_get(o, "separator"), ONLY_LITERAL, &t->separator)) ||
        (rc = pattern(r, "member", json_get(o, "member"), OF_MEMBER, &t->member)) || (rc = check_member(r, &t->member)) || (rc = read_keys(r, json_get(o, "keys"))) ||
        (rc = read_id(r, json_get(o, "id"))))
        return rc;
    if (!call)
        return wrong(r, "call", "a pattern, or a list of them");
    if ((rc = read_calls(r, "call", call)))
        return rc;
    t->n_anywhere = t->n_calls;
    if (json_get(o, "leading") && (rc = read_calls(r, "leading", json_get(o, "leading"))))
        return rc;
    if (escape && !json_eq(escape, "xml"))
        return wrong(r, "escape", "\"xml\"");
    t->xml = escape != NULL;
    if (json_get(o, "first_index") && (!json_int(json_get(o, "first_index"), &first) || first < 0 || first > 1))
        return wrong(r, "first_index", "0 or 1");
    t->first_index = (uint32_t)first;
    return ERR_OK;
}

static int read_reasoning(struct reader *r, const struct json *o)
{
    static const char *const names[] = {"name", "when", "open", "close", "next", "content", "drop", NULL};
    struct eng_reasoning_format *t = &r->f->reasoning;
    const struct json *drop = json_get(o, "drop"), *content = json_get(o, "content");
    int rc;
    if ((rc = check_fields(r, o, names)) || (rc = pattern(r, "open", json_get(o, "open"), ONLY_LITERAL, &t->open)) ||
        (rc = pattern(r, "close", json_get(o, "close"), ONLY_LITERAL, &t->close)) || (rc = pattern(r, "next", json_get(o, "next"), ONLY_LITERAL, &t->next)))
        return rc;
    if (content && (!json_is(content, JSON_ARRAY) || content->n != 2))
        return wrong(r, "content", "two texts: what opens it and what closes it");
    if (content && ((rc = pattern(r, "content", content->items[0], ONLY_LITERAL, &t->content_open)) || (rc = pattern(r, "content", content->items[1], ONLY_LITERAL, &t->content_close))))
        return rc;
    if (!t->open.n || !t->close.n)
        return wrong(r, "open", "texts for `open` and `close`");
    if (drop && (!json_is(drop, JSON_ARRAY) || drop->n > ENG_DROPS_MAX))
        return wrong(r, "drop", "a list of at most 16 texts");
    for (size_t i = 0; drop && i < drop->n; i++)
        if ((rc = pattern(r, "drop", drop->items[i], ONLY_LITERAL, &t->drop[t->n_drops++])))
            return rc;
    return ERR_OK;
}

static int check_when(const struct reader *r, const struct json *o)
{
    const struct json *w = json_get(o, "when");
    if (!json_is(w, JSON_ARRAY) || !w->n)
        return wrong(r, "when", "a list of texts");
    for (size_t i = 0; i < w->n; i++)
        if (!json_str(w->items[i]) || !w->items[i]->n)
            return wrong(r, "when", "a list of texts");
    return ERR_OK;
}

/* o: one entry with its `name`, or absent. */
static int read_entry(struct eng_format *f, bool tools, const char *name, const struct json *o, const eng_tok *tok, struct arena *a, struct err *e)
{
    struct reader r = {tools ? "tools" : "reasoning", name ? name : "?", tok, a, f, e};
    int rc;
    if (!json_is(o, JSON_OBJECT) || !name)
        return wrong(&r, "name", "an object with a name");
    char *own = arena_strdup(a, name, strlen(name));
    if (!own)
        return err_set(e, ERR_NOMEM, "%s", r.section);
    if ((rc = check_when(&r, o)) || (rc = tools ? read_tools(&r, o) : read_reasoning(&r, o)))
        return rc;
    if (tools)
        f->tools.name = own;
    else
        f->reasoning.name = own;
    return ERR_OK;
}

int eng_format_read(struct eng_format *f, const struct json *chosen, const eng_tok *tok, struct arena *a, struct err *e)
{
    const struct json *t = json_get(chosen, "tools"), *g = json_get(chosen, "reasoning");
    int rc = ERR_OK;
    memset(f, 0, sizeof *f);
    f->has_tools = t && t->type != JSON_NULL;
    f->has_reasoning = g && g->type != JSON_NULL;
    if (f->has_tools)
        rc = read_entry(f, true, json_str(json_get(t, "name")), t, tok, a, e);
    if (!rc && f->has_reasoning)
        rc = read_entry(f, false, json_str(json_get(g, "name")), g, tok, a, e);
    return rc;
}

int eng_format_check(const struct json *sections, struct arena *a, struct err *e)
{
    static const char *const names[] = {"tools", "reasoning"};
    struct eng_format *f = ARENA_NEW(a, struct eng_format);
    int rc = f ? ERR_OK : err_set(e, ERR_NOMEM, "formats");
    for (size_t k = 0; k < 2 && !rc; k++) {
        const struct json *s = json_get(sections, names[k]);
        if (s && s->type != JSON_OBJECT)
            return err_set(e, ERR_FORMAT, "%s: expected an object of entries", names[k]);
        for (size_t i = 0; s && i < s->n && !rc; i++) {
            memset(f, 0, sizeof *f);
            rc = read_entry(f, !k, s->members[i].key, s->members[i].value, NULL, a, e);
        }
    }
    return rc;
}

/* ---- which ------------------------------------------------------------------------------------------------- */

static bool holds(const struct json *o, const char *tmpl, size_t n)
{
    const struct json *w = json_get(o, "when");
    if (!json_is(w, JSON_ARRAY) || !w->n)
        return false;
    for (size_t i = 0; i < w->n; i++)
        if (!json_str(w->items[i]) || !memmem(tmpl, n, w->items[i]->s, w->items[i]->n))
            return false;
    return true;
}

const struct json *eng_format_choose(const struct json *sections, const char *tmpl, size_t n, struct arena *a)
{
    static const char *const names[] = {"tools", "reasoning"};
    struct json *out = json_new(a, JSON_OBJECT);
    for (size_t k = 0; k < 2 && out; k++) {
        const struct json *s = json_get(sections, names[k]);
        struct json *found = NULL;
        for (size_t i = s && tmpl ? s->n : 0; i-- && !found;) {
            const struct json_member *m = &s->members[i];
            if (!holds(m->value, tmpl, n))
                continue;
            found = json_new(a, JSON_OBJECT);
            bool ok = found && json_set(a, found, "name", json_new_str(a, m->key, m->key_len));
            for (size_t q = 0; ok && q < m->value->n; q++)
                ok = json_set(a, found, m->value->members[q].key, m->value->members[q].value);
            if (!ok)
                return NULL;
        }
        if (!found)
            found = json_new(a, JSON_NULL);
        if (!found || !json_set(a, out, names[k], found))
            return NULL;
    }
    return out;
}
