#include "gateway/structured.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/grammar.h"
#include "engine/schema.h"
#include "gateway/fields.h"

struct reader { struct gw_structured *s; struct arena *a; struct gw_api_error *ae; const char *param; };

static int no_memory(struct gw_api_error *ae) { return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory."); }

/* Only one field may speak. Takes the text of rules from b. */
static int keep(struct reader *r, struct buf *b, bool whole)
{
    if (r->s->rules)
        return gw_api_error_set(r->ae, 400, "invalid_value", r->param, "Invalid '%s': '%s' has said already what the answer looks like.", r->param, r->s->param);
    if (b->failed && b->len < ENG_GRAMMAR_MAX / 2)
        return no_memory(r->ae);
    if (b->failed)
        return gw_api_error_set(r->ae, 400, "invalid_value", r->param, "Invalid '%s': its grammar has more than %u bytes.", r->param, ENG_GRAMMAR_MAX);
    if (!(r->s->rules = arena_strdup(r->a, b->data, b->len)))
        return no_memory(r->ae);
    r->s->n = b->len;
    r->s->whole = whole;
    r->s->param = r->param;
    return 0;
}

/* ---- one source each ------------------------------------------------------------------------------------------ */

static int take_schema(struct reader *r, const struct json *schema, bool strict)
{
    struct buf b;
    struct err e;
    buf_init(&b, ENG_GRAMMAR_MAX);
    int rc = eng_schema_to_gbnf(schema, "answer", strict, &b, &e);
    if (rc == ERR_NOMEM)
        rc = no_memory(r->ae);
    else if (rc)
        rc = gw_api_error_set(r->ae, 400, rc == ERR_UNSUPPORTED ? "unsupported_value" : "invalid_value", r->param, "Invalid schema in '%s': at %s", r->param, e.msg);
    else
        rc = keep(r, &b, false);
    buf_free(&b);
    return rc;
}

static int take_any_object(struct reader *r)
{
    struct buf b;
    buf_init(&b, ENG_GRAMMAR_MAX);
    int rc = eng_schema_any_object("answer", &b, NULL) ? no_memory(r->ae) : keep(r, &b, false);
    buf_free(&b);
    return rc;
}

static int take_grammar(struct reader *r, const struct json *v)
{
    struct buf b;
    if (v->type != JSON_STRING)
        return gw_wrong_type(r->ae, r->param, "a string", v);
    if (!v->n) /* as llama.cpp's clients send it: none */
        return 0;
    buf_init(&b, ENG_GRAMMAR_MAX);
    buf_add(&b, v->s, v->n);
    int rc = keep(r, &b, true);
    buf_free(&b);
    return rc;
}

static int take_choice(struct reader *r, const struct json *v)
{
    struct buf b;
    int rc = 0;
    if (v->type != JSON_ARRAY || !v->n)
        return gw_api_error_set(r->ae, 400, "invalid_type", r->param, "Invalid '%s': expected an array of strings that is not empty.", r->param);
    buf_init(&b, ENG_GRAMMAR_MAX);
    buf_str(&b, "answer ::= ");
    for (size_t i = 0; i < v->n && !rc; i++) {
        if (v->items[i]->type != JSON_STRING)
            rc = gw_wrong_type(r->ae, r->param, "an array of strings", v->items[i]);
        buf_str(&b, i ? " | " : "");
        eng_gbnf_literal(&b, v->items[i]->s ? v->items[i]->s : "", v->items[i]->type == JSON_STRING ? v->items[i]->n : 0);
    }
    buf_char(&b, '\n');
    rc = rc ? rc : keep(r, &b, false);
    buf_free(&b);
    return rc;
}

/* A schema, or its JSON in a string. */
static int take_json(struct reader *r, const struct json *v)
{
    struct json *tree;
    struct err e;
    if (v->type != JSON_STRING)
        return take_schema(r, v, false);
    if (json_parse(&tree, v->s, v->n, &json_strict, r->a, &e))
        return gw_api_error_set(r->ae, 400, "invalid_value", r->param, "Invalid '%s': %s", r->param, e.msg);
    return take_schema(r, tree, false);
}

/* ---- fields --------------------------------------------------------------------------------------------------- */

/* {"name", "schema", "strict"} of OpenAI. */
static int read_json_schema(struct reader *r, const struct json *v)
{
    bool strict = false;
    const struct json *name, *schema;
    int rc;
    r->param = "response_format.json_schema";
    if (!v)
        return gw_api_error_set(r->ae, 400, "missing_required_parameter", r->param, "Missing required parameter: '%s'.", r->param);
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(r->ae, r->param, "an object", v);
    if (!(name = gw_field(v, "name")))
        return gw_api_error_set(r->ae, 400, "missing_required_parameter", "response_format.json_schema.name", "Missing required parameter: 'response_format.json_schema.name'.");
    if (name->type != JSON_STRING)
        return gw_wrong_type(r->ae, "response_format.json_schema.name", "a string", name);
    if ((rc = gw_get_bool(v, "strict", "response_format.json_schema.strict", &strict, r->ae)))
        return rc;
    r->param = "response_format.json_schema.schema";
    return (schema = gw_field(v, "schema")) ? take_schema(r, schema, strict) : take_any_object(r);
}

static int read_response_format(struct reader *r, const struct json *v)
{
    const struct json *type = json_get(v, "type"), *schema = gw_field(v, "schema");
    r->param = "response_format";
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(r->ae, r->param, "an object", v);
    if (!type)
        return gw_api_error_set(r->ae, 400, "missing_required_parameter", "response_format.type", "Missing required parameter: 'response_format.type'.");
    if (json_eq(type, "text"))
        return 0;
    if (json_eq(type, "json_schema"))
        return read_json_schema(r, gw_field(v, "json_schema"));
    if (json_eq(type, "json_object")) {
        r->param = schema ? "response_format.schema" : r->param;
        return schema ? take_schema(r, schema, false) : take_any_object(r);
    }
    return gw_api_error_set(r->ae, 400, "invalid_value", "response_format.type", "Invalid value for 'response_format.type'. Supported values are: 'text', 'json_object' and 'json_schema'.");
}

/* vLLM names the same three in two places; a name is that for messages, its last part the key. */
static int read_choices(struct reader *r, const struct json *o, const char *const names[3])
{
    static int (*const take[])(struct reader *, const struct json *) = {take_json, take_grammar, take_choice};
    int rc = 0;
    for (size_t i = 0; i < 3 && !rc; i++) {
        const char *dot = strrchr(names[i], '.');
        const struct json *v = gw_field(o, dot ? dot + 1 : names[i]);
        r->param = names[i];
        if (v)
            rc = take[i](r, v);
    }
    return rc;
}

int gw_structured_read(struct gw_structured *s, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    static const char *const guided[] = {"guided_json", "guided_grammar", "guided_choice"}, *const nested[] = {"structured_outputs.json", "structured_outputs.grammar", "structured_outputs.choice"};
    struct reader r = {s, a, ae, NULL};
    const struct json *v;
    bool object = false;
    int rc = 0;
    if ((v = gw_field(body, "response_format")) && (rc = read_response_format(&r, v)))
        return rc;
    r.param = "grammar";
    if (((v = gw_field(body, "grammar")) && (rc = take_grammar(&r, v))) || (rc = read_choices(&r, body, guided)))
        return rc;
    if (!(v = gw_field(body, "structured_outputs")))
        return 0;
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "structured_outputs", "an object", v);
    if (gw_field(v, "regex") || gw_field(v, "structural_tag"))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "structured_outputs", "Unsupported parameter: 'regex' and 'structural_tag' of 'structured_outputs' are not supported by this server.");
    if ((rc = read_choices(&r, v, nested)) || (rc = gw_get_bool(v, "json_object", "structured_outputs.json_object", &object, ae)))
        return rc;
    r.param = "structured_outputs.json_object";
    return object ? take_any_object(&r) : 0;
}

/* {"type": "json_schema", "schema": {..}} */
static int read_format(struct reader *r, const struct json *v)
{
    const struct json *schema = gw_field(v, "schema");
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(r->ae, r->param, "an object", v);
    if (!json_eq(json_get(v, "type"), "json_schema"))
        return gw_api_error_set(r->ae, 400, "invalid_value", r->param, "%s.type: expected 'json_schema'", r->param);
    if (!schema)
        return gw_api_error_set(r->ae, 400, "missing_required_parameter", r->param, "%s.schema: Field required", r->param);
    return take_schema(r, schema, true);
}

int gw_structured_read_anthropic(struct gw_structured *s, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    struct reader r = {s, a, ae, "output_config.format"};
    const struct json *v = gw_field(gw_field(body, "output_config"), "format");
    int rc = v ? read_format(&r, v) : 0;
    r.param = "output_format";
    return !rc && (v = gw_field(body, "output_format")) ? read_format(&r, v) : rc;
}

/* ---- the whole grammar ---------------------------------------------------------------------------------------- */

/* The longest control token at s; -1: none. */
static int32_t control_at(const eng_tok *tok, const char *s, size_t n, size_t *len)
{
    for (*len = n; *len > 1; --*len) {
        int32_t id = eng_tok_find(tok, s, *len);
        if (id >= 0 && eng_tok_is_control(tok, id))
            return id;
    }
    return -1;
}

/* A literal of a format: text, and control tokens behind their marks. Outer white space is left to the model. */
static void put_literal(struct buf *b, const char *s, size_t n, const eng_tok *tok)
{
    size_t len;
    while (n && strchr(" \n", s[n - 1]))
        n--;
    for (size_t i = 0, from = 0; i <= n; i++) {
        bool mark = i < n && s[i] == ENG_MARK;
        int32_t id = mark ? control_at(tok, s + i + 1, n - i - 1, &len) : -1;
        if (i < n && !mark)
            continue;
        if (i > from) {
            buf_char(b, ' ');
            eng_gbnf_literal(b, s + from, i - from);
        }
        if (id >= 0)
            buf_printf(b, " <[%d]>", id);
        i += id >= 0 ? len : 0;
        from = i + 1;
    }
}

/* Reasoning up to its end: any token but the one that closes it, or text without the character that the closing text begins with. */
static void put_reasoning(struct buf *b, const struct gw_structured_place *p)
{
    const struct eng_step *close = &p->format->reasoning.close.v[0];
    size_t len;
    const char *s = close->s;
    size_t n = close->n;
    for (; n && strchr(" \n", *s); s++)
        n--;
    int32_t id = n && *s == ENG_MARK ? control_at(p->tok, s + 1, n - 1, &len) : -1;
    if (id >= 0)
        buf_printf(b, " !<[%d]>*", id);
    else
        buf_printf(b, " [^\\x%02X]*", n ? (uint8_t)*s : 0);
    put_literal(b, s, n, p->tok);
    buf_str(b, " [ \\n]{0,4}");
}

/* Mark-up around content, where a format has it: any of it, a few times. */
static void put_drops(struct buf *b, const struct gw_structured_place *p)
{
    const struct eng_reasoning_format *r = &p->format->reasoning;
    for (uint32_t i = 0; i < r->n_drops; i++) {
        buf_str(b, i ? " |" : " (");
        put_literal(b, r->drop[i].v[0].s, r->drop[i].v[0].n, p->tok);
    }
    if (r->n_drops)
        buf_str(b, "){0,3}");
}

/* Rules of whole calls, under the name `calls`. */
static int put_calls(struct buf *b, const struct gw_structured_place *p, struct gw_api_error *ae)
{
    struct gw_call_grammar g;
    struct gw_tools t = *p->tools;
    struct err e;
    uint32_t bad = 0;
    t.choice = GW_TOOLS_REQUIRED;
    int rc = gw_call_grammar(&g, p->format, &t, p->place, p->tok, &bad, &e);
    if (rc == ERR_NOMEM)
        rc = no_memory(ae);
    else if (rc)
        rc = gw_api_error_set(ae, 400, "invalid_value", "tools", "Invalid schema of the function '%.64s': %s", bad < t.n ? t.v[bad].name : "?", e.msg);
    else if (!strncmp(g.text.data ? g.text.data : "", "root ", 5)) {
        buf_str(b, "calls ");
        buf_add(b, g.text.data + 5, g.text.len - 5);
    }
    gw_call_grammar_free(&g);
    return rc;
}

/* Reasoning and mark-up, then the answer. */
static void put_root(struct buf *b, const struct gw_structured_place *p)
{
    const struct eng_reasoning_format *r = p->format && p->format->has_reasoning && p->format->reasoning.close.n ? &p->format->reasoning : NULL;
    buf_str(b, "root ::=");
    if (r && p->place == GW_PLACE_REASONING) {
        put_reasoning(b, p);
    } else if (r && r->open.n && p->place == GW_PLACE_START && !p->no_reasoning) {
        buf_str(b, " (");
        put_literal(b, r->open.v[0].s, r->open.v[0].n, p->tok);
        put_reasoning(b, p);
        buf_str(b, ")?");
    }
    if (r)
        put_drops(b, p);
    buf_str(b, " answer");
    if (r)
        put_drops(b, p);
    buf_str(b, p->tools ? " | calls\n" : "\n");
}

int gw_structured_grammar(const struct gw_structured *s, const struct gw_structured_place *p, struct arena *a, const char **text, uint32_t *n, struct gw_api_error *ae)
{
    struct buf b;
    struct err e;
    eng_grammar *g;
    int rc = 0;
    buf_init(&b, ENG_GRAMMAR_MAX);
    if (!s->whole)
        put_root(&b, p);
    if (!s->whole && p->tools && (rc = put_calls(&b, p, ae))) {
        buf_free(&b);
        return rc;
    }
    buf_add(&b, s->rules, s->n);
    rc = b.failed ? ERR_LIMIT : eng_grammar_compile(&g, b.data, b.len, p->tok, &e);
    if (b.failed)
        rc = gw_api_error_set(ae, 400, "invalid_value", s->param, "Invalid '%s': its grammar has more than %u bytes.", s->param, ENG_GRAMMAR_MAX);
    else if (rc == ERR_NOMEM || (!rc && !(*text = arena_strdup(a, b.data, b.len))))
        rc = no_memory(ae);
    else if (rc)
        rc = gw_api_error_set(ae, 400, "invalid_value", s->param, "Invalid '%s': %s", s->param, e.msg);
    else
        eng_grammar_close(g);
    *n = (uint32_t)b.len;
    buf_free(&b);
    return rc;
}
