#include "gateway/call_grammar.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/schema.h"
#include "gateway/calls.h"

#define TEXT_MAX ((size_t)1 << 20) /* what the engine takes */
#define CALLS_MAX 15               /* more calls after the first of an answer */

struct writer { struct buf *b; const struct eng_format *f; const eng_tok *tok; struct err *e; };

/* ---- literals: text as it is, control tokens as themselves ------------------------------------------------------ */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The longest control token that s begins with; -1: none. */
static int32_t control_at(const eng_tok *tok, const char *s, size_t n, size_t *len)
{
    for (size_t k = n; k > 1; k--) {
        int32_t id = eng_tok_find(tok, s, k);
        *len = k;
        if (id >= 0 && eng_tok_is_control(tok, id))
            return id;
    }
    return -1;
}

static void put_run(struct buf *b, const char *s, size_t n, bool optional)
{
    if (!n)
        return;
    buf_char(b, ' ');
    eng_gbnf_literal(b, s, n);
    if (optional)
        buf_char(b, '?');
}

/* White space is the model's to leave out; a literal's marks are not text. */
static void put_literal(const struct writer *w, const char *s, size_t n)
{
    size_t run = 0, at = 0, len;
    while (at < n) {
        int32_t id = s[at] == ENG_MARK ? -1 : control_at(w->tok, s + at, n - at, &len);
        bool text = id < 0 && s[at] != ENG_MARK;
        if (!text || is_space(s[at]) != is_space(s[run])) {
            put_run(w->b, s + run, at - run, is_space(s[run]));
            run = at;
        }
        if (id >= 0)
            buf_printf(w->b, " <[%d]>", id);
        at += id >= 0 ? len : 1;
        if (!text)
            run = at;
    }
    put_run(w->b, s + run, n - run, run < n && is_space(s[run]));
}

static void put_pattern(const struct writer *w, const struct eng_pattern *p)
{
    if (p->n)
        put_literal(w, p->v[0].s, p->v[0].n);
}

static void put_class_char(struct buf *b, char c)
{
    if (c == '\n')
        buf_str(b, "\\n");
    else if (strchr("\\[]^-", c))
        buf_printf(b, "\\x%02X", (unsigned char)c);
    else
        buf_char(b, c);
}

/* Any text that does not have s in it; one that begins with a control token never comes out of text. */
static void put_free(const struct writer *w, const char *s, size_t n)
{
    size_t len;
    while (n && is_space(*s))
        s++, n--;
    while (n && is_space(s[n - 1]))
        n--;
    if (n && (*s == ENG_MARK || control_at(w->tok, s, n, &len) >= 0)) {
        buf_str(w->b, " .*");
        return;
    }
    buf_str(w->b, " (");
    for (size_t k = 0; k < n; k++) { /* the first k bytes, then another one */
        if (k)
            buf_str(w->b, " |");
        put_run(w->b, s, k, false);
        buf_str(w->b, " [^");
        put_class_char(w->b, s[k]);
        buf_char(w->b, ']');
    }
    buf_str(w->b, ")*");
}

/* ---- calls ------------------------------------------------------------------------------------------------- */

static bool json_arguments(const struct eng_pattern *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->v[i].kind == ENG_STEP_MEMBERS)
            return false;
    return true;
}

/* The spelling to ask for: the first, unless a later one says its arguments one by one, which is what such a model is used to. */
static const struct eng_pattern *spelling(const struct eng_tools_format *t)
{
    for (uint32_t i = 1; i < t->n_anywhere; i++)
        if (!json_arguments(&t->call[i]))
            return &t->call[i];
    return &t->call[0];
}

static const char *type_of(const struct json *s)
{
    static const char *const known[] = {"string", "number", "integer", "boolean", "null", "object", "array"};
    const char *type = json_str(json_get(s, "type"));
    for (size_t i = 0; type && i < 7; i++)
        if (!strcmp(type, known[i]))
            return known[i];
    const struct json *list = json_get(s, "enum");
    return json_is(list, JSON_ARRAY) && list->n && json_is(list->items[0], JSON_STRING) ? "string" : "object";
}

static bool required(const struct json *schema, const struct json_member *m)
{
    const struct json *r = json_get(schema, "required");
    for (size_t i = 0; json_is(r, JSON_ARRAY) && i < r->n; i++)
        if (json_is(r->items[i], JSON_STRING) && r->items[i]->n == m->key_len && !memcmp(r->items[i]->s, m->key, m->key_len))
            return true;
    return false;
}

static void put_escaped(const struct writer *w, const char *s, size_t n)
{
    struct buf t;
    buf_init(&t, 8 * n + 8);
    for (size_t i = 0; i < n; i++)
        if (w->f->tools.xml && s[i] == '&')
            buf_str(&t, "&amp;");
        else if (w->f->tools.xml && s[i] == '"')
            buf_str(&t, "&quot;");
        else
            buf_char(&t, s[i]);
    put_run(w->b, t.data, t.len, false);
    buf_free(&t);
}

/* A string that stands as it is: one of a list, or any text up to what closes it. */
static void put_text_value(const struct writer *w, const struct json *s)
{
    const struct json *list = json_get(s, "enum"), *one = json_get(s, "const");
    const struct eng_step *close = &w->f->tools.member.v[w->f->tools.member.n - 1];
    if (json_is(one, JSON_STRING)) {
        put_run(w->b, one->s, one->n, false);
    } else if (json_is(list, JSON_ARRAY) && list->n) {
        buf_str(w->b, " (");
        for (size_t i = 0, n = 0; i < list->n; i++)
            if (json_is(list->items[i], JSON_STRING)) {
                buf_str(w->b, n++ ? " |" : "");
                put_run(w->b, list->items[i]->s, list->items[i]->n, false);
            }
        buf_str(w->b, ")");
    } else {
        put_free(w, close->s, close->n);
    }
}

/* Arguments one by one: a rule for each, in the order of the schema. */
static int put_members(const struct writer *w, const struct gw_tool *tool, uint32_t number, struct buf *rules)
{
    const struct json *props = json_get(tool->parameters, "properties");
    const struct eng_pattern *p = &w->f->tools.member;
    for (size_t i = 0; json_is(props, JSON_OBJECT) && i < props->n; i++) {
        const struct json_member *m = &props->members[i];
        const char *type = type_of(m->value), *shown = strcmp(type, "integer") ? type : "number";
        bool text = !strcmp(type, "string");
        char name[40], rule[48];
        int rc;
        struct writer in = {rules, w->f, w->tok, w->e};
        snprintf(name, sizeof name, "m%u-%zu", number, i);
        buf_printf(w->b, " %s%s", name, required(tool->parameters, m) ? "" : "?");
        struct buf value;
        buf_init(&value, TEXT_MAX);
        snprintf(rule, sizeof rule, "%s-v", name);
        if (!text && (rc = eng_schema_to_gbnf(m->value, rule, false, &value, w->e))) {
            buf_free(&value);
            return rc;
        }
        buf_add(rules, value.data, value.len);
        buf_free(&value);
        buf_printf(rules, "%s ::=", name);
        for (uint32_t k = 0; k < p->n; k++)
            switch (p->v[k].kind) {
            case ENG_STEP_KEY: put_escaped(&in, m->key, m->key_len); break;
            case ENG_STEP_TYPE: put_run(rules, shown, strlen(shown), false); break;
            case ENG_STEP_VALUE:
                if (text)
                    put_text_value(&in, m->value);
                else
                    buf_printf(rules, " %s", rule);
                break;
            default: put_literal(&in, p->v[k].s, p->v[k].n);
            }
        buf_char(rules, '\n');
    }
    return ERR_OK;
}

/* The rule aN of a tool's arguments as JSON. */
static int put_arguments(const struct writer *w, const struct gw_tool *tool, uint32_t number, struct buf *rules)
{
    struct buf b;
    char name[24];
    int rc = ERR_INVALID;
    snprintf(name, sizeof name, "a%u", number);
    buf_init(&b, TEXT_MAX);
    if (tool->parameters && tool->parameters->n)
        rc = eng_schema_to_gbnf(tool->parameters, name, tool->strict, &b, w->e);
    if (rc && rc != ERR_NOMEM && !(tool->strict && tool->parameters && tool->parameters->n)) {
        buf_reset(&b);
        rc = eng_schema_any_object(name, &b, w->e);
    }
    buf_add(rules, b.data ? b.data : "", b.len);
    buf_free(&b);
    return rc;
}

static void put_id(const struct writer *w, const struct gw_tool *tool)
{
    const struct eng_tools_format *t = &w->f->tools;
    if (t->id != ENG_ID_PATTERN) {
        buf_str(w->b, " [a-zA-Z0-9]{9}");
        return;
    }
    for (uint32_t i = 0; i < t->id_pattern.n; i++)
        if (t->id_pattern.v[i].kind == ENG_STEP_NAME)
            put_run(w->b, tool->name, tool->n, false);
        else if (t->id_pattern.v[i].kind == ENG_STEP_INDEX)
            buf_str(w->b, " [0-9]{1,3}");
        else
            put_run(w->b, t->id_pattern.v[i].s, t->id_pattern.v[i].n, false);
}

/* One tool's call from step `from` of the pattern on; object_begun: the trigger has the object's beginning. */
static int put_call(const struct writer *w, const struct gw_tool *tool, uint32_t number, uint32_t from, bool object_begun, struct buf *rules)
{
    const struct eng_tools_format *t = &w->f->tools;
    const struct eng_pattern *p = spelling(t);
    int rc = json_arguments(p) ? put_arguments(w, tool, number, rules) : ERR_OK;
    struct buf head;
    for (uint32_t i = from; i < p->n && !rc; i++)
        switch (p->v[i].kind) {
        case ENG_STEP_NAME: put_run(w->b, tool->name, tool->n, false); break;
        case ENG_STEP_ID: put_id(w, tool); break;
        case ENG_STEP_INDEX: buf_str(w->b, " [1-9] [0-9]?"); break;
        case ENG_STEP_ARGUMENTS: buf_printf(w->b, " a%u", number); break;
        case ENG_STEP_OBJECT:
            buf_init(&head, 4096);
            if (!object_begun)
                buf_printf(&head, "{\"%s\": ", t->key_name);
            buf_printf(&head, "\"%.*s\", \"%s\": ", (int)tool->n, tool->name, t->key_arguments);
            put_run(w->b, head.data, head.len, false);
            buf_free(&head);
            buf_printf(w->b, " a%u \"}\"", number);
            break;
        case ENG_STEP_MEMBERS: rc = put_members(w, tool, number, rules); break;
        default: put_literal(w, p->v[i].s, p->v[i].n);
        }
    return rc;
}

/* The rule `call`: one of the tools. */
static int put_calls(const struct writer *w, const struct gw_tools *t, uint32_t from, bool object_begun, uint32_t *bad)
{
    struct buf rules;
    int rc = ERR_OK;
    bool first = true;
    buf_init(&rules, TEXT_MAX);
    buf_str(w->b, "call ::=");
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        if (t->choice == GW_TOOLS_NAMED && i != t->named)
            continue;
        buf_str(w->b, first ? "" : " |");
        first = false;
        *bad = i;
        rc = put_call(w, &t->v[i], i, from, object_begun, &rules);
    }
    buf_char(w->b, '\n');
    buf_add(w->b, rules.data ? rules.data : "", rules.len);
    w->b->failed |= rules.failed;
    buf_free(&rules);
    return rc;
}

/* ---- what comes before ------------------------------------------------------------------------------------- */

static void put_section(const struct writer *w, const struct eng_pattern *close, const struct eng_pattern *next)
{
    put_free(w, close->v[0].s, close->v[0].n);
    put_pattern(w, close);
    buf_str(w->b, " [ \\n]{0,3}");
    if (next)
        put_pattern(w, next);
}

/* Reasoning and content's mark-up: there already, or left to the model. */
static void put_before(const struct writer *w, enum gw_call_place place)
{
    const struct eng_reasoning_format *r = &w->f->reasoning;
    if (!w->f->has_reasoning)
        return;
    if (place == GW_PLACE_REASONING) {
        put_section(w, &r->close, &r->next);
    } else if (place == GW_PLACE_START) {
        buf_str(w->b, " (");
        put_pattern(w, &r->open);
        put_section(w, &r->close, &r->next);
        buf_str(w->b, ")?");
    }
    if (place == GW_PLACE_CONTENT) {
        put_section(w, &r->content_close, NULL);
    } else if (r->content_open.n) {
        buf_str(w->b, " (");
        put_pattern(w, &r->content_open);
        put_section(w, &r->content_close, NULL);
        buf_str(w->b, ")?");
    }
}

static void put_more(const struct writer *w)
{
    buf_str(w->b, " (");
    put_pattern(w, &w->f->tools.separator);
    buf_printf(w->b, " call){0,%d}", CALLS_MAX);
}

static int demanded(const struct writer *w, const struct gw_tools *t, enum gw_call_place place, uint32_t *bad)
{
    const struct eng_tools_format *f = &w->f->tools;
    buf_str(w->b, "root ::=");
    put_before(w, place);
    put_pattern(w, &f->begin);
    buf_str(w->b, " call");
    if (t->parallel_said && t->choice == GW_TOOLS_REQUIRED)
        put_more(w);
    put_pattern(w, &f->end);
    buf_char(w->b, '\n');
    return put_calls(w, t, 0, false, bad);
}

/* The trigger: a literal up to its last blanks; what follows them begins the grammar. cut: blanks inside count too. */
static void put_trigger(const struct writer *w, const struct eng_step *v, bool cut, struct buf *trigger)
{
    size_t n = v->n, from;
    while (n && (cut ? !is_space(v->s[n - 1]) : false))
        n--;
    from = n = n ? n : v->n;
    while (n && is_space(v->s[n - 1]))
        n--;
    for (size_t i = 0; i < n; i++)
        if (v->s[i] != ENG_MARK)
            buf_char(trigger, v->s[i]);
    if (n < from)
        buf_str(w->b, " [ \\n]{0,2}");
    put_literal(w, v->s + from, v->n - from);
}

/* Calls are free to come, but must be well made: what follows the mark of one (or of all) is ruled. */
static int well_made(const struct writer *w, const struct gw_tools *t, struct buf *trigger, uint32_t *bad)
{
    const struct eng_tools_format *f = &w->f->tools;
    const struct eng_pattern *p = spelling(f);
    bool bare = p->v[0].kind != ENG_STEP_LITERAL, all = bare && f->begin.n;
    buf_str(w->b, "root ::=");
    if (all)
        put_trigger(w, &f->begin.v[0], true, trigger);
    else if (bare)
        buf_printf(trigger, "{\"%s\": ", f->key_name);
    else
        put_trigger(w, &p->v[0], false, trigger);
    buf_str(w->b, " call");
    if (all && t->parallel)
        put_more(w);
    if (all)
        put_pattern(w, &f->end);
    buf_char(w->b, '\n');
    return put_calls(w, t, bare ? 0 : 1, bare && !all, bad);
}

int gw_call_grammar(struct gw_call_grammar *g, const struct eng_format *f, const struct gw_tools *t, enum gw_call_place place, const eng_tok *tok, uint32_t *bad, struct err *e)
{
    struct writer w = {&g->text, f, tok, e};
    bool strict = false;
    int rc = ERR_OK;
    *bad = 0;
    buf_init(&g->text, TEXT_MAX);
    buf_init(&g->trigger, ENG_GRAMMAR_TRIGGER_MAX);
    for (uint32_t i = 0; i < t->n; i++)
        strict |= t->v[i].strict;
    if (t->choice == GW_TOOLS_REQUIRED || t->choice == GW_TOOLS_NAMED)
        rc = demanded(&w, t, place, bad);
    else if (t->choice == GW_TOOLS_AUTO && strict)
        rc = well_made(&w, t, &g->trigger, bad);
    if (!rc && (g->text.failed || g->trigger.failed))
        rc = err_set(e, g->text.len > TEXT_MAX / 2 ? ERR_LIMIT : ERR_NOMEM, "the grammar of the tools' calls is larger than %zu bytes", TEXT_MAX);
    return rc;
}

void gw_call_grammar_free(struct gw_call_grammar *g)
{
    buf_free(&g->text);
    buf_free(&g->trigger);
}
